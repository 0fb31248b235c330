//! Formats the table and the summary of a comparison with another tree. The functions do no I/O.

use super::tree::OtherTree;
use super::verdict::{CELL_LIMIT, MEAN_LIMIT, TreeVerdict, is_above_mean_limit};
use crate::cell::{BenchCell, CellResult};
use crate::ops::BenchOp;
use crate::stats::MedianEstimate;
use crate::table::OpMean;
use crate::text::{microseconds_text, size_text};
use dist_terminal::{Alignment, text_table};
use dist_tools::count_text;

/// Formats the message at the start of the measurement.
pub(super) fn opening_text(tree: &OtherTree, cells: usize, pairs: usize) -> String {
    let mut text = format!(
        "This tree against {}: {}, {} of runs each\n",
        tree.program.display(),
        count_text(cells, "cell"),
        count_text(pairs, "pair")
    );
    if cfg!(debug_assertions) {
        text.push_str("This program is a debug build: its times are not valid.\n");
    }
    text
}

/// Formats the message that cells are measured again.
pub(super) fn repetition_text(cells: usize) -> String {
    format!("\nAbove a limit: {} measured again\n", count_text(cells, "cell"))
}

/// Formats the line above the rows of an operation, and the names of the columns.
pub(super) fn table_header(cell: &BenchCell, transport: &str) -> String {
    let (op, ranks, words) = (cell.op.name(), cell.ranks, cell.variant.describe().join(", "));
    format!(
        "\n{op}, {ranks} ranks, {words}, transport {transport}\n{:>9} {:>9} {:>7} {:>10} {:>10} {:>10} {:>10} {:>6} \
         {:>6} {:>6}  {:<15} it is\n",
        "size B",
        "count",
        "type",
        "p50 us",
        "p99 us",
        "before p50",
        "before p99",
        "#wrong",
        "pairs",
        "ratio",
        "95 %"
    )
}

/// Formats a row.
pub(super) fn table_row(measured: &CellResult) -> String {
    let CellResult { cell, libdist: ours, .. } = measured;
    let shown = cell.op.shown_count(cell.count, cell.ranks);
    let start = format!("{:>9} {shown:>9} {:>7}", cell.bytes(), cell.dtype.name());
    let (Some(baseline), Some(ratio)) = (measured.best_peer(), measured.ratio()) else {
        return format!("{start}  the other tree does not support this\n");
    };
    let note = measured.comparison_word().unwrap_or_default();
    let text = format!(
        "{start} {:>10} {:>10} {:>10} {:>10} {:>6} {:>6} {:>6.3}  {:<15} {note}",
        microseconds_text(ours.p50()),
        microseconds_text(ours.p99()),
        microseconds_text(baseline.p50()),
        microseconds_text(baseline.p99()),
        ours.wrong + baseline.wrong,
        ours.runs.len(),
        ratio.value,
        interval_text(&ratio)
    );
    text.trim_end().to_owned() + "\n"
}

fn interval_text(ratio: &MedianEstimate) -> String {
    ratio.interval.map_or_else(|| "-".to_owned(), |(low, high)| format!("{low:.3} to {high:.3}"))
}

/// The columns of the summary.
const SUMMARY_COLUMNS: [(&str, Alignment); 6] = [
    ("operation", Alignment::Left),
    ("ranks", Alignment::Right),
    ("variant", Alignment::Left),
    ("cells", Alignment::Right),
    ("mean", Alignment::Right),
    ("", Alignment::Left),
];

/// Formats the summary: means, cells above the limit, and the verdict in the last line.
pub(super) fn summary_text(verdict: &TreeVerdict<'_>) -> String {
    let row = |mean: &OpMean| {
        let OpMean { ranks, variant_words: words, op, ratio, cells, .. } = mean;
        [
            (*op).to_owned(),
            ranks.to_string(),
            words.join(", "),
            cells.to_string(),
            format!("{ratio:.4}"),
            if is_above_mean_limit(mean) { "above the limit".to_owned() } else { String::new() },
        ]
    };
    let mut text = format!(
        "\nRatio of this tree's time to the other tree's, geometric mean per operation (limit {MEAN_LIMIT})\n{}",
        text_table(SUMMARY_COLUMNS, verdict.op_means.iter().map(row))
    );
    if verdict.slower_cells.is_empty() {
        text.push_str(&format!("No interval is entirely above {CELL_LIMIT}.\n"));
    } else {
        text.push_str(&format!("Cells with an interval entirely above {CELL_LIMIT}:\n"));
        verdict.slower_cells.iter().for_each(|measured| text.push_str(&cell_line(measured)));
    }
    for (cells, heading) in [
        (&verdict.inconclusive, "No verdict, because there are too few pairs for an interval:"),
        (&verdict.unsupported, "Not compared, because the other tree does not support them:"),
    ] {
        if !cells.is_empty() {
            text.push_str(&format!("{heading}\n"));
            cells.iter().for_each(|measured| text.push_str(&cell_line(measured)));
        }
    }
    if verdict.wide_intervals > 0 {
        text.push_str(&format!(
            "{} of {} intervals are wider than +-10 %: other processes may have used the cores.\n",
            verdict.wide_intervals, verdict.compared_cells
        ));
    }
    text + &conclusion_text(verdict)
}

fn conclusion_text(verdict: &TreeVerdict<'_>) -> String {
    if verdict.is_no_slower() {
        return format!("Verdict: no slower, {}\n", count_text(verdict.compared_cells, "cell"));
    }
    let (cells, means) = (verdict.slower_cells.len(), verdict.slower_means().count());
    if cells + means == 0 {
        return "Verdict: inconclusive\n".to_owned();
    }
    let (cells, means) = (count_text(cells, "cell"), count_text(means, "operation"));
    format!("Verdict: slower, {cells} and {means} above the limits\n")
}

fn cell_line(measured: &CellResult) -> String {
    let BenchCell { ranks, op, variant, .. } = measured.cell;
    let size = if op == BenchOp::Barrier {
        String::new()
    } else {
        format!(" {}", size_text(measured.cell.bytes()))
    };
    let (op, words) = (op.name(), variant.describe().join(", "));
    let ratio = measured.ratio().map_or_else(String::new, |ratio| {
        format!(": {:.3} ({})", ratio.value, interval_text(&ratio))
    });
    format!("  {op}{size}, {ranks} ranks, {words}{ratio}\n")
}

#[cfg(test)]
mod tests {
    use super::super::verdict::samples::compared;
    use super::*;

    #[test]
    fn row_has_both_times_and_ratio() {
        let text = table_row(&compared(BenchOp::AllReduce, 64, &[110.0; 10]));
        let words: Vec<&str> = text.split_whitespace().collect();
        let expected = "64 16 f32 1.100 2.200 1.000 2.000 0 10 1.100 1.100 to 1.100 slower";
        assert_eq!(words.join(" "), expected);
        let text = table_row(&compared(BenchOp::AllReduce, 64, &[102.0; 10]));
        assert!(text.ends_with("1.020 to 1.020  uncertain\n"), "{text}");
        let mut missing = compared(BenchOp::AllReduce, 64, &[100.0; 10]);
        missing.peers.clear();
        assert!(table_row(&missing).ends_with("f32  the other tree does not support this\n"));
    }

    #[test]
    fn the_summary_lists_what_exceeds_a_limit() {
        let all = [
            compared(BenchOp::AllReduce, 64, &[110.0; 10]),
            compared(BenchOp::AllReduce, 4, &[100.0; 10]),
            compared(BenchOp::Barrier, 0, &[100.0; 10]),
        ];
        let text = summary_text(&TreeVerdict::of(&all));
        assert!(text.contains("\nall_reduce      2  rewritten, ordinary, "), "{text}");
        assert!(text.contains("blocking      2  1.0488  above the limit\n"), "{text}");
        assert!(text.contains("entirely above 1.03:\n  all_reduce 64 B, 2 ranks"), "{text}");
        assert!(text.contains("blocking: 1.100 (1.100 to 1.100)\n"), "{text}");
        assert!(text.ends_with("Verdict: slower, 1 cell and 1 operation above the limits\n"));
        let text = summary_text(&TreeVerdict::of(&all[1..]));
        assert!(text.contains("No interval is entirely above 1.03.\n"), "{text}");
        assert!(text.ends_with("Verdict: no slower, 2 cells\n"), "{text}");
    }

    #[test]
    fn too_few_pairs_give_no_verdict() {
        let few = [compared(BenchOp::Barrier, 0, &[100.0; 3])];
        let text = summary_text(&TreeVerdict::of(&few));
        assert!(text.contains(
            "No verdict, because there are too few pairs for an interval:\n  barrier, 2"
        ));
        assert!(text.ends_with("Verdict: inconclusive\n"), "{text}");
    }
}
