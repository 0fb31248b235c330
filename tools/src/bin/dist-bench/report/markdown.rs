//! Formats the report's text. The functions do no I/O.

use super::measured_ops;
use crate::bound_share::bound_shares;
use crate::cell::{BenchCell, BufferKind, CellResult, CellVerdict};
use crate::ops::{BenchOp, TimeRule};
use crate::request::redop_name;
use crate::result_files::BenchResults;
use crate::stats::MedianEstimate;
use crate::table::{op_means, tails_text};
use crate::text::{microseconds_text, size_text};

/// The name of the engine of Gloo through torch.
const TORCH_ENGINE: &str = "gloo";

/// Returns the whole report. `results` are the merged results of `parts`, and `plots` is the folder
/// of the plots.
pub(super) fn report(results: &BenchResults, parts: &[BenchResults], plots: &str) -> String {
    let run = &results.run;
    let commands: String = parts.iter().map(|part| format!("{}\n", part.run.command)).collect();
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!(
        "libdist {version}, transport {}, on {}:\n\n```sh\n{commands}```\n\n",
        run.transport,
        run.machine.describe()
    );
    text.push_str(&summary_section(results));
    text.push_str(&torch_section(results));
    text.push_str(&limits_section(results));
    for op in measured_ops(results) {
        text.push_str(&operation_section(results, op, plots));
    }
    text.trim_end().to_owned() + "\n"
}

/// Formats the column names and the line under them. Columns of text are left-aligned, and columns
/// of numbers are right-aligned. Each column is its name and true for numbers.
fn table_header(columns: &[(&str, bool)]) -> String {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let lines: Vec<&str> =
        columns.iter().map(|(_, is_number)| if *is_number { "---:" } else { "---" }).collect();
    format!("| {} |\n|{}|\n", names.join(" | "), lines.join("|"))
}

fn table_row(words: &[String]) -> String {
    format!("| {} |\n", words.join(" | "))
}

/// Formats the geometric means, the comparison of the 99th percentiles, and the lost cells.
fn summary_section(results: &BenchResults) -> String {
    let means = op_means(&results.cells);
    if means.is_empty() {
        return String::new();
    }
    let mut text = "### Ratio to the time of the best peer\n\n".to_owned();
    text.push_str(&table_header(&[
        ("operation", false),
        ("ranks", true),
        ("called", false),
        ("geometric mean", true),
        ("of means", true),
        ("cells", true),
        ("lost", true),
    ]));
    for mean in means {
        text.push_str(&table_row(&[
            mean.op.to_owned(),
            mean.ranks.to_string(),
            mean.variant_words.join(", "),
            format!("{:.2}", mean.ratio),
            format!("{:.2}", mean.ratio_of_means),
            mean.cells.to_string(),
            mean.lost.to_string(),
        ]));
    }
    text.push_str(&format!("\n{}\n\n", tails_text(&results.cells)));
    let lost: String = results.cells.iter().filter_map(lost_cell_line).collect();
    text.push_str(&match lost.is_empty() {
        true => "No cell is lost.\n\n".to_owned(),
        false => format!("Lost cells:\n\n{lost}\n"),
    });
    text
}

fn lost_cell_line(measured: &CellResult) -> Option<String> {
    let reason = measured.verdict()?.loss_reason()?;
    let (ratio, best) = (measured.ratio()?, measured.best_peer()?);
    let BenchCell { ranks, op, variant, .. } = measured.cell;
    Some(format!(
        "* {} {}, {ranks} ranks, {}: {:.2} ({}) of {}, {reason}\n",
        op.name(),
        size_text(measured.cell.bytes()),
        variant.describe().join(", "),
        ratio.value,
        interval_text(&ratio),
        best.engine
    ))
}

fn interval_text(ratio: &MedianEstimate) -> String {
    ratio.interval.map_or_else(|| "-".to_owned(), |(low, high)| format!("{low:.2} to {high:.2}"))
}

/// Formats how much faster an all_reduce in ordinary memory is than Gloo through torch. Returns an
/// empty text if this engine took no part.
fn torch_section(results: &BenchResults) -> String {
    let times = |measured: &CellResult| {
        let BenchCell { op, ranks, variant, .. } = measured.cell;
        let torch = measured.peers.iter().find(|peer| peer.engine == TORCH_ENGINE)?;
        let is_ordinary_all_reduce =
            op == BenchOp::AllReduce && variant.buffers == BufferKind::Ordinary;
        is_ordinary_all_reduce.then(|| {
            table_row(&[
                ranks.to_string(),
                size_text(measured.cell.bytes()),
                variant.describe().join(", "),
                microseconds_text(measured.libdist.p50()),
                microseconds_text(torch.p50()),
                speedup_text(torch.p50() / measured.libdist.p50().max(1.0)),
            ])
        })
    };
    let rows: String = results.cells.iter().filter_map(times).collect();
    if rows.is_empty() {
        return String::new();
    }
    let head = table_header(&[
        ("ranks", true),
        ("bytes", true),
        ("called", false),
        ("libdist p50 µs", true),
        ("Gloo p50 µs", true),
        ("times as fast", true),
    ]);
    format!("### all_reduce against Gloo through torch\n\n{head}{rows}\n")
}

fn speedup_text(times: f64) -> String {
    if times < 9.95 { format!("{times:.1}") } else { format!("{times:.0}") }
}

/// Formats the machine's limits, and how close libdist is to them.
fn limits_section(results: &BenchResults) -> String {
    let mut text = String::new();
    if let Some(limits) = &results.limits {
        text.push_str(&format!("### Limits of the machine\n\n```\n{}```\n\n", limits.text()));
    }
    let shares = bound_shares(results);
    if shares.is_empty() {
        return text;
    }
    text.push_str("### Shares of the limits of the machine\n\n");
    text.push_str(&table_header(&[
        ("two ranks", false),
        ("bound", false),
        ("bound µs", true),
        ("libdist p50 µs", true),
        ("share", true),
    ]));
    for share in shares {
        text.push_str(&table_row(&[
            share.cell_name.clone(),
            share.bound_label.clone(),
            microseconds_text(share.bound_ns),
            microseconds_text(share.libdist_ns),
            format!("{:.2}", share.ratio()),
        ]));
    }
    text + "\n"
}

/// Formats all cells of an operation, with its plot.
fn operation_section(results: &BenchResults, op: BenchOp, plots: &str) -> String {
    let name = op.name();
    let mut text = format!("### {name}\n\n![{name}]({plots}/{name}.svg)\n");
    let mut previous = None;
    for measured in results.cells.iter().filter(|measured| measured.cell.op == op) {
        let BenchCell { ranks, dtype, redop, variant, .. } = measured.cell;
        if previous != Some((ranks, variant)) {
            previous = Some((ranks, variant));
            let redop =
                if op.reduces() { format!(" {}", redop_name(redop)) } else { String::new() };
            let (words, dtype) = (variant.describe().join(", "), dtype.name());
            text.push_str(&format!(
                "\n{ranks} ranks, {dtype}{redop}, {words}:\n\n{}",
                column_header(op)
            ));
        }
        text.push_str(&cell_row(measured));
    }
    text + "\n"
}

fn has_root(op: BenchOp) -> bool {
    op.time_rule() == TimeRule::LastAfterRoot
}

fn column_header(op: BenchOp) -> String {
    let mut columns = vec![("bytes", true), ("p50 µs", true), ("p99 µs", true), ("mean µs", true)];
    columns.extend(has_root(op).then_some(("root µs", true)));
    columns.extend([
        ("best peer", false),
        ("its p50", true),
        ("its p99", true),
        ("its mean", true),
        ("ratio", true),
        ("95 %", true),
        ("lost", false),
    ]);
    table_header(&columns)
}

fn cell_row(measured: &CellResult) -> String {
    let ours = &measured.libdist;
    let mut words = vec![size_text(measured.cell.bytes())];
    words.extend([ours.p50(), ours.p99(), ours.mean()].map(microseconds_text));
    if has_root(measured.cell.op) {
        words.push(ours.root_p50().map_or_else(|| "-".to_owned(), microseconds_text));
    }
    match (measured.best_peer(), measured.ratio()) {
        (Some(best), Some(ratio)) => words.extend([
            best.engine.clone(),
            microseconds_text(best.p50()),
            microseconds_text(best.p99()),
            microseconds_text(best.mean()),
            format!("{:.2}", ratio.value),
            interval_text(&ratio),
            measured.verdict().and_then(CellVerdict::loss_reason).unwrap_or("").to_owned(),
        ]),
        _ => words.extend(["none", "-", "-", "-", "-", "-", ""].map(str::to_owned)),
    }
    table_row(&words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::samples::{figures, measured};
    use crate::result_files::samples::results;

    fn text(cells: Vec<CellResult>) -> String {
        let results = results(cells);
        report(&results, &[results.clone(), results.clone()], "docs/plots")
    }

    #[test]
    fn report_has_all_measurements() {
        let mut long = measured(BenchOp::AllReduce, 4 << 20, &[("mpich", 800.0), ("gloo", 4e5)]);
        long.bound = Some(figures("cma_read", &[900.0; 3]));
        let text = text(vec![long, measured(BenchOp::Broadcast, 4, &[])]);
        for part in [
            "dist-bench --peer mpich\ndist-bench --peer mpich\n",
            "on 2 cores of Some Processor, 24 GiB, Linux 6.1",
            "| all_reduce | 2 | rewritten, ordinary, in place, blocking | 1.25 | 1.25 | 1 | 1 |",
            "p99 is above the best peer's in 1 of 1 cell (100.0 %; 5 % are allowed)",
            "* all_reduce 4 MiB, 2 ranks, rewritten, ordinary, in place, blocking: 1.25",
            "| 2 | 4 MiB | rewritten, ordinary, in place, blocking | 1.000 | 400.0 | 400 |",
            "| all_reduce 4 MiB, ordinary, rewritten | cma_read | 0.900 | 1.000 | 0.90 |",
            "![all_reduce](docs/plots/all_reduce.svg)",
            "2 ranks, f32 sum, rewritten, ordinary, in place, blocking:",
            "| 4 MiB | 1.000 | 2.000 | 1.500 | mpich | 0.800 | 1.600 | 1.200 | 1.25 | 1.25 to 1.25 | slower |",
            "| 4 B | 1.000 | 2.000 | 1.500 | - | none | - | - | - | - | - |  |",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn report_omits_missing_sections() {
        let text = text(vec![measured(BenchOp::AllReduce, 64, &[("mpich", 4000.0)])]);
        assert!(text.contains("No cell is lost."), "{text}");
        assert!(!text.contains("Gloo") && !text.contains("Limits") && !text.contains("Shares"));
        // The rows of every table have as many columns as its header.
        let columns = |line: &str| line.matches('|').count();
        let lines: Vec<&str> = text.lines().collect();
        for pair in lines.windows(2).filter(|pair| pair.iter().all(|line| line.starts_with('|'))) {
            assert_eq!(columns(pair[0]), columns(pair[1]), "{pair:?}");
        }
    }
}
