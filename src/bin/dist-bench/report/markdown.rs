//! The report's text. Pure.

use super::ops;
use crate::cell::{Buffers, Cell, Measured, Verdict};
use crate::files::Results;
use crate::ops::{Judged, Op};
use crate::order::redop_name;
use crate::shares::shares;
use crate::stats::Estimate;
use crate::table::{means, tails_text};
use crate::text::{microseconds, size};

/// The engine of Gloo through torch.
const TORCH: &str = "gloo";

/// The whole report; `parts` are the results that it is made of, and plots are in the folder
/// `plots`.
pub(super) fn report(results: &Results, parts: &[Results], plots: &str) -> String {
    let run = &results.run;
    let commands: String = parts.iter().map(|part| format!("{}\n", part.run.command)).collect();
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!(
        "libdist {version}, transport {}, on {}:\n\n```sh\n{commands}```\n\n",
        run.transport,
        run.machine.describe()
    );
    text.push_str(&summary(results));
    text.push_str(&against_torch(results));
    text.push_str(&limits(results));
    for op in ops(results) {
        text.push_str(&operation(results, op, plots));
    }
    text.trim_end().to_owned() + "\n"
}

/// Names of columns, and a line under them: texts to the left, numbers to the right.
fn head(columns: &[(&str, bool)]) -> String {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let lines: Vec<&str> =
        columns.iter().map(|(_, is_number)| if *is_number { "---:" } else { "---" }).collect();
    format!("| {} |\n|{}|\n", names.join(" | "), lines.join("|"))
}

fn row(words: &[String]) -> String {
    format!("| {} |\n", words.join(" | "))
}

/// Means, tails, and what is lost.
fn summary(results: &Results) -> String {
    let means = means(&results.cells);
    if means.is_empty() {
        return String::new();
    }
    let mut text = "### Time by the best peer's\n\n".to_owned();
    text.push_str(&head(&[
        ("operation", false),
        ("ranks", true),
        ("called", false),
        ("geometric mean", true),
        ("of means", true),
        ("cells", true),
        ("lost", true),
    ]));
    for mean in means {
        text.push_str(&row(&[
            mean.op.to_owned(),
            mean.ranks.to_string(),
            mean.words.join(", "),
            format!("{:.2}", mean.ratio),
            format!("{:.2}", mean.of_means),
            mean.cells.to_string(),
            mean.lost.to_string(),
        ]));
    }
    text.push_str(&format!("\n{}\n\n", tails_text(&results.cells)));
    let lost: String = results.cells.iter().filter_map(lost).collect();
    text.push_str(&match lost.is_empty() {
        true => "No cell is lost.\n\n".to_owned(),
        false => format!("Lost cells:\n\n{lost}\n"),
    });
    text
}

fn lost(measured: &Measured) -> Option<String> {
    let why = measured.verdict()?.lost()?;
    let (ratio, best) = (measured.ratio()?, measured.best()?);
    let Cell { ranks, op, variant, .. } = measured.cell;
    Some(format!(
        "* {} {}, {ranks} ranks, {}: {:.2} ({}) of {}, {why}\n",
        op.name(),
        size(measured.cell.bytes()),
        variant.describe().join(", "),
        ratio.value,
        interval(&ratio),
        best.engine
    ))
}

fn interval(ratio: &Estimate) -> String {
    ratio.interval.map_or_else(|| "-".to_owned(), |(low, high)| format!("{low:.2} to {high:.2}"))
}

/// How many times faster an all_reduce in ordinary memory is than Gloo's through torch; nothing
/// where that took no part.
fn against_torch(results: &Results) -> String {
    let times = |measured: &Measured| {
        let Cell { op, ranks, variant, .. } = measured.cell;
        let torch = measured.peers.iter().find(|peer| peer.engine == TORCH)?;
        let is_meant = op == Op::AllReduce && variant.buffers == Buffers::Ordinary;
        is_meant.then(|| {
            row(&[
                ranks.to_string(),
                size(measured.cell.bytes()),
                variant.describe().join(", "),
                microseconds(measured.ours.p50()),
                microseconds(torch.p50()),
                factor(torch.p50() / measured.ours.p50().max(1.0)),
            ])
        })
    };
    let rows: String = results.cells.iter().filter_map(times).collect();
    if rows.is_empty() {
        return String::new();
    }
    let head = head(&[
        ("ranks", true),
        ("bytes", true),
        ("called", false),
        ("libdist p50 µs", true),
        ("Gloo p50 µs", true),
        ("times as fast", true),
    ]);
    format!("### all_reduce against Gloo through torch\n\n{head}{rows}\n")
}

fn factor(times: f64) -> String {
    if times < 9.95 { format!("{times:.1}") } else { format!("{times:.0}") }
}

/// What the machine allows, and what comes of it.
fn limits(results: &Results) -> String {
    let mut text = String::new();
    if let Some(limits) = &results.limits {
        text.push_str(&format!("### Limits of the machine\n\n```\n{}```\n\n", limits.text()));
    }
    let shares = shares(results);
    if shares.is_empty() {
        return text;
    }
    text.push_str("### Shares of the limits of the machine\n\n");
    text.push_str(&head(&[
        ("two ranks", false),
        ("bound", false),
        ("bound µs", true),
        ("libdist p50 µs", true),
        ("share", true),
    ]));
    for share in shares {
        text.push_str(&row(&[
            share.what.clone(),
            share.bound.clone(),
            microseconds(share.bound_ns),
            microseconds(share.ours_ns),
            format!("{:.2}", share.share()),
        ]));
    }
    text + "\n"
}

/// All cells of an operation, with its plot.
fn operation(results: &Results, op: Op, plots: &str) -> String {
    let name = op.name();
    let mut text = format!("### {name}\n\n![{name}]({plots}/{name}.svg)\n");
    let mut before = None;
    for measured in results.cells.iter().filter(|measured| measured.cell.op == op) {
        let Cell { ranks, dtype, redop, variant, .. } = measured.cell;
        if before != Some((ranks, variant)) {
            before = Some((ranks, variant));
            let redop =
                if op.reduces() { format!(" {}", redop_name(redop)) } else { String::new() };
            let (words, dtype) = (variant.describe().join(", "), dtype.name());
            text.push_str(&format!("\n{ranks} ranks, {dtype}{redop}, {words}:\n\n{}", columns(op)));
        }
        text.push_str(&cell(measured));
    }
    text + "\n"
}

fn has_root(op: Op) -> bool {
    op.judged() == Judged::LastAfterRoot
}

fn columns(op: Op) -> String {
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
    head(&columns)
}

fn cell(measured: &Measured) -> String {
    let ours = &measured.ours;
    let mut words = vec![size(measured.cell.bytes())];
    words.extend([ours.p50(), ours.p99(), ours.mean()].map(microseconds));
    if has_root(measured.cell.op) {
        words.push(ours.root().map_or_else(|| "-".to_owned(), microseconds));
    }
    match (measured.best(), measured.ratio()) {
        (Some(best), Some(ratio)) => words.extend([
            best.engine.clone(),
            microseconds(best.p50()),
            microseconds(best.p99()),
            microseconds(best.mean()),
            format!("{:.2}", ratio.value),
            interval(&ratio),
            measured.verdict().and_then(Verdict::lost).unwrap_or("").to_owned(),
        ]),
        _ => words.extend(["none", "-", "-", "-", "-", "-", ""].map(str::to_owned)),
    }
    row(&words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::samples::{figures, measured};
    use crate::files::samples::results;

    fn text(cells: Vec<Measured>) -> String {
        let results = results(cells);
        report(&results, &[results.clone(), results.clone()], "docs/plots")
    }

    #[test]
    fn all_that_was_measured_is_told() {
        let mut long = measured(Op::AllReduce, 4 << 20, &[("mpich", 800.0), ("gloo", 4e5)]);
        long.bound = Some(figures("cma_read", &[900.0; 3]));
        let text = text(vec![long, measured(Op::Broadcast, 4, &[])]);
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
    fn what_is_not_there_is_not_told() {
        let text = text(vec![measured(Op::AllReduce, 64, &[("mpich", 4000.0)])]);
        assert!(text.contains("No cell is lost."), "{text}");
        assert!(!text.contains("Gloo") && !text.contains("Limits") && !text.contains("Shares"));
        // Every table's rows have as many columns as its head.
        let columns = |line: &str| line.matches('|').count();
        let lines: Vec<&str> = text.lines().collect();
        for pair in lines.windows(2).filter(|pair| pair.iter().all(|line| line.starts_with('|'))) {
            assert_eq!(columns(pair[0]), columns(pair[1]), "{pair:?}");
        }
    }
}
