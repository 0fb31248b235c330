//! Tables of text with aligned columns and without borders. Each row is one line of any length. The
//! functions do no I/O.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// The spaces between two columns.
const GAP: u16 = 2;

/// The side of a column at which its cells begin or end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alignment {
    /// For words.
    Left,
    /// For numbers.
    Right,
}

/// Formats a table with a line for the titles of the columns and a line for each row. Without
/// titles, all lines are rows. Lines have no spaces at their ends.
pub fn text_table<const COLUMNS: usize>(
    columns: [(&str, Alignment); COLUMNS],
    rows: impl IntoIterator<Item = [String; COLUMNS]>,
) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    if columns.iter().any(|(title, _)| !title.is_empty()) {
        table.add_row(columns.map(|(title, _)| title));
    }
    for row in rows {
        table.add_row(row);
    }
    if table.row_count() == 0 {
        return String::new();
    }
    for (number, (column, (_, alignment))) in table.column_iter_mut().zip(columns).enumerate() {
        column.set_padding((if number == 0 { 0 } else { GAP }, 0));
        column.set_cell_alignment(match alignment {
            Alignment::Left => CellAlignment::Left,
            Alignment::Right => CellAlignment::Right,
        });
    }
    table.trim_fmt() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_are_trimmed() {
        let columns = [("call", Alignment::Left), ("us", Alignment::Right), ("", Alignment::Left)];
        let rows = [["set", "1.5", "ok"], ["compare", "12.5", ""]].map(|row| row.map(String::from));
        let expected = "call       us\nset       1.5  ok\ncompare  12.5\n";
        assert_eq!(text_table(columns, rows), expected);
    }

    #[test]
    fn titles_and_rows_are_optional() {
        let columns = [("", Alignment::Right), ("", Alignment::Left)];
        let rows = [["9", "a b"], ["10", "c"]].map(|row| row.map(String::from));
        assert_eq!(text_table(columns, rows), " 9  a b\n10  c\n");
        assert_eq!(text_table(columns, []), "");
    }
}
