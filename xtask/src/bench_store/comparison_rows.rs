//! The rows of the comparison between libdist's store and torch's store. Each row has an operation,
//! a required ratio, and the measured values.

use std::collections::HashMap;
use std::fmt::Write as _;

/// The unit of a measured value.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ValueUnit {
    /// Larger values are better.
    PerSecond,
    /// Smaller values are better.
    Milliseconds,
    Microseconds,
}

/// One row of the comparison.
#[derive(Clone, Debug)]
pub(super) struct ComparisonRow {
    /// The pinning mode and the name of the row, as the programs print them.
    id: String,
    title: String,
    unit: ValueUnit,
    /// The required ratio of libdist's performance to torch's. `None` if there is no requirement.
    pub(super) required_ratio: Option<f64>,
}

impl ComparisonRow {
    /// Returns all rows, in the order of the table.
    pub(super) fn all() -> Vec<Self> {
        let mut rows = Vec::new();
        for (mode, cores) in [("same", "one core"), ("apart", "two cores")] {
            for (op, what, unit, needed, sizes) in OPERATIONS {
                for clients in [1, 4] {
                    for bytes in *sizes {
                        let size = match bytes {
                            0 => String::new(),
                            16 => ", 16 B".into(),
                            _ => ", 4 KiB".into(),
                        };
                        let plural = if clients == 1 { "" } else { "s" };
                        rows.push(Self {
                            id: format!("{mode}/{op}/{clients}/{bytes}"),
                            title: format!("{what}{size}, {clients} client{plural}, {cores}"),
                            unit: *unit,
                            required_ratio: Some(*needed),
                        });
                    }
                }
            }
            rows.push(Self {
                id: format!("{mode}/wake"),
                title: format!("a blocked get wakes after a set, {cores}"),
                unit: ValueUnit::Microseconds,
                required_ratio: Some(1.0),
            });
        }
        let processes = "128 processes connect, set a key and get all 128";
        for (id, how, needed) in [
            ("free/processes", "one by one", Some(2.0)),
            ("free/processes-multi-get", "with multi_get, both", None),
        ] {
            let what = format!("{processes}, {how}, not pinned");
            rows.push(Self {
                id: id.into(),
                title: what,
                unit: ValueUnit::Milliseconds,
                required_ratio: needed,
            });
        }
        rows
    }

    /// Returns how many times better libdist's value is than torch's value.
    fn ratio(&self, ours: f64, torch: f64) -> f64 {
        match self.unit {
            ValueUnit::PerSecond => ours / torch,
            ValueUnit::Milliseconds | ValueUnit::Microseconds => torch / ours,
        }
    }

    fn value_text(&self, value: f64) -> String {
        match self.unit {
            ValueUnit::PerSecond => format!("{value:.0} /s"),
            ValueUnit::Milliseconds => format!("{value:.2} ms"),
            ValueUnit::Microseconds => format!("{value:.1} µs"),
        }
    }
}

/// An operation that is measured with different numbers of clients: its name, its description, the
/// unit, the required ratio, and the sizes of the values.
type MeasuredOperation = (&'static str, &'static str, ValueUnit, f64, &'static [u32]);
const OPERATIONS: &[MeasuredOperation] = &[
    ("set", "1000 sets, then a round trip", ValueUnit::Milliseconds, 1.0, &[16, 4096]),
    ("get", "get", ValueUnit::PerSecond, 2.0, &[16, 4096]),
    ("add", "add", ValueUnit::PerSecond, 1.3, &[0]),
    ("wait", "wait for an existing key", ValueUnit::PerSecond, 1.3, &[16, 4096]),
    ("check", "check", ValueUnit::PerSecond, 1.3, &[16, 4096]),
];

/// For each row, the pairs of libdist's value and torch's value.
#[derive(Debug, Default)]
pub(super) struct PairedSamples {
    pairs: HashMap<String, Vec<(f64, f64)>>,
}

impl PairedSamples {
    /// Adds the output of both programs of a pair.
    pub(super) fn add(&mut self, mode: &str, ours: &str, torch: &str) -> Result<(), String> {
        let torch: HashMap<String, f64> = parse_rows(torch).collect();
        for (name, value) in parse_rows(ours) {
            let torch_values = torch
                .get(&name)
                .ok_or_else(|| format!("the output of torch's program has no row {name}"))?;
            self.pairs.entry(format!("{mode}/{name}")).or_default().push((value, *torch_values));
        }
        Ok(())
    }

    /// Computes the result of a row.
    pub(super) fn result(&self, row: &ComparisonRow) -> Result<RowResult, String> {
        let pairs = self.pairs.get(&row.id).filter(|pairs| !pairs.is_empty());
        let pairs = pairs.ok_or_else(|| format!("the outputs have no row {}", row.id))?;
        let ratios = pairs.iter().map(|&(ours, torch)| row.ratio(ours, torch));
        let ours = median(pairs.iter().map(|pair| pair.0).collect());
        let torch = median(pairs.iter().map(|pair| pair.1).collect());
        Ok(RowResult {
            ours,
            torch,
            ratio: row.ratio(ours, torch),
            min_ratio: ratios.clone().fold(f64::INFINITY, f64::min),
            max_ratio: ratios.fold(0.0, f64::max),
        })
    }
}

/// The result of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RowResult {
    ours: f64,
    torch: f64,
    /// The ratio of libdist's median to torch's median. The number 2 means twice as good as torch.
    ratio: f64,
    /// The smallest ratio of a pair.
    min_ratio: f64,
    /// The largest ratio of a pair.
    max_ratio: f64,
}

impl RowResult {
    pub(super) fn meets_requirement(&self, row: &ComparisonRow) -> bool {
        row.required_ratio.is_some_and(|needed| self.ratio >= needed)
    }
}

/// Parses the rows that a program printed.
fn parse_rows(text: &str) -> impl Iterator<Item = (String, f64)> + '_ {
    text.lines().filter_map(|line| {
        let (name, value) = line.strip_prefix("row ")?.split_once(' ')?;
        Some((name.to_string(), value.parse().ok()?))
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len() % 2 == 1 { values[half] } else { (values[half - 1] + values[half]) / 2.0 }
}

const TITLES: [&str; 6] = ["", "libdist", "torch", "times as good", "in pairs", "required"];

/// Formats a Markdown table. Its columns are aligned, so that it is also readable as plain text.
pub(super) fn markdown_table(rows: &[ComparisonRow], results: &[RowResult]) -> String {
    let mut cells = vec![TITLES.map(String::from)];
    for (row, result) in rows.iter().zip(results) {
        let required = match row.required_ratio {
            Some(needed) if result.meets_requirement(row) => format!("{needed}"),
            Some(needed) => format!("{needed} (missed)"),
            None => "none".into(),
        };
        cells.push([
            row.title.clone(),
            row.value_text(result.ours),
            row.value_text(result.torch),
            format!("{:.2}", result.ratio),
            format!("{:.2} to {:.2}", result.min_ratio, result.max_ratio),
            required,
        ]);
    }
    let width = |column: usize| cells.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<usize> = (0..TITLES.len()).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for (number, line) in cells.iter().enumerate() {
        text.push('|');
        for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
            let written = match column {
                0 => write!(text, " {cell:<width$} |"),
                _ => write!(text, " {cell:>width$} |"),
            };
            // Writing to a string cannot fail.
            written.unwrap_or(());
        }
        text.push('\n');
        if number == 0 {
            text.push('|');
            for (column, &width) in widths.iter().enumerate() {
                text.push_str(&"-".repeat(width + 1));
                text.push_str(if column == 0 { "-|" } else { ":|" });
            }
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(unit: ValueUnit, needed: f64) -> ComparisonRow {
        ComparisonRow { id: "same/x".into(), title: "x".into(), unit, required_ratio: Some(needed) }
    }

    #[test]
    fn ratio_above_one_means_better_than_torch() {
        let mut samples = PairedSamples::default();
        samples.add("same", "row x 30\nnoise\n", "row x 10\n").unwrap();
        samples.add("same", "row x 10\n", "row x 10\n").unwrap();
        samples.add("same", "row x 40\n", "row x 10\n").unwrap();
        let rate = samples.result(&row(ValueUnit::PerSecond, 2.0)).unwrap();
        assert_eq!((rate.ours, rate.torch, rate.ratio), (30.0, 10.0, 3.0));
        assert_eq!((rate.min_ratio, rate.max_ratio), (1.0, 4.0));
        assert!(rate.meets_requirement(&row(ValueUnit::PerSecond, 2.0)));
        let time = samples.result(&row(ValueUnit::Milliseconds, 1.0)).unwrap();
        assert!(time.ratio < 0.34 && !time.meets_requirement(&row(ValueUnit::Milliseconds, 1.0)));
    }

    #[test]
    fn a_row_that_one_program_lacks_is_an_error() {
        let mut samples = PairedSamples::default();
        assert!(samples.add("same", "row x 1\n", "").is_err());
        assert!(samples.result(&row(ValueUnit::PerSecond, 1.0)).is_err());
    }

    #[test]
    fn medians_of_even_and_odd_numbers() {
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(vec![4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
    }

    #[test]
    fn row_names_are_unique_and_table_has_one_line_each() {
        let rows = ComparisonRow::all();
        let mut names: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), rows.len());
        let measured =
            RowResult { ours: 2.0, torch: 1.0, ratio: 2.0, min_ratio: 1.5, max_ratio: 2.5 };
        let table = markdown_table(&rows, &vec![measured; rows.len()]);
        assert_eq!(table.lines().count(), rows.len() + 2);
        let widths: Vec<usize> = table.lines().map(|line| line.chars().count()).collect();
        assert!(widths.iter().all(|width| *width == widths[0]));
    }
}
