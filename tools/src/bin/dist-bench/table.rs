//! Formats the table and the summary for users. The functions do no I/O.

use crate::cell::{BenchCell, CellResult, CellVerdict};
use crate::ops::BenchOp;
use crate::request::redop_name;
use crate::stats::{MedianEstimate, geometric_mean};
use crate::text::{microseconds_text, size_text};
use dist_terminal::{Alignment, text_table};
use dist_tools::count_text;

/// The project's limit for the share of cells in which libdist's 99th percentile is above that of
/// the best peer.
const ALLOWED_TAIL_SHARE: f64 = 0.05;

/// Formats the lines above the rows of an operation: the variant, and the names of the columns. No
/// line of a table is longer than 120 columns.
pub(crate) fn table_header(cell: &BenchCell, transport: &str, has_peers: bool) -> String {
    let (op, ranks, words) = (cell.op.name(), cell.ranks, cell.variant.describe().join(", "));
    let mut columns = if has_peers {
        format!("{:>9} {:>10} {:>10} {:>8} {:>6}", "size", "p50 us", "p99 us", "busbw", "#wrong")
    } else {
        format!(
            "{:>11} {:>11} {:>7} {:>6} {:>10} {:>10} {:>10} {:>8} {:>8} {:>6}",
            "size B",
            "count",
            "type",
            "redop",
            "p50 us",
            "p99 us",
            "mean us",
            "algbw",
            "busbw",
            "#wrong"
        )
    };
    if has_root(cell.op) {
        columns.push_str(&format!(" {:>8}", "root us"));
    }
    if has_peers {
        columns.push_str(&format!(
            "  {:<16} {:>10} {:>6} {:<14} {}",
            "best peer", "p50 us", "ratio", "95 %", "libdist is"
        ));
    }
    let elements = if has_peers { format!(", {}", elements_text(cell)) } else { String::new() };
    format!(
        "\n{op}, {ranks} ranks{elements}, {words}, transport {transport}\n{}\n",
        columns.trim_end()
    )
}

/// Formats the type of the elements and the operator.
fn elements_text(cell: &BenchCell) -> String {
    let operator = if cell.op.reduces() { redop_name(cell.redop) } else { "" };
    format!("{} {operator}", cell.dtype.name()).trim_end().to_owned()
}

/// Returns true if the table also shows the times of the root's calls.
fn has_root(op: BenchOp) -> bool {
    op.time_rule() == crate::ops::TimeRule::LastAfterRoot
}

/// Formats a row. `has_peers` has the same value as for the header.
pub(crate) fn table_row(measured: &CellResult, has_peers: bool) -> String {
    let CellResult { cell, libdist: ours, .. } = measured;
    let (algbw, busbw) = measured.bandwidths(ours.p50());
    let wrong = ours.wrong + measured.peers.iter().map(|peer| peer.wrong).sum::<u64>();
    let [p50, p99, mean] = [ours.p50(), ours.p99(), ours.mean()].map(microseconds_text);
    let mut text = if has_peers {
        let size = size_text(cell.bytes());
        format!("{size:>9} {p50:>10} {p99:>10} {busbw:>8.2} {wrong:>6}")
    } else {
        format!(
            "{:>11} {:>11} {:>7} {:>6} {p50:>10} {p99:>10} {mean:>10} {algbw:>8.2} {busbw:>8.2} {wrong:>6}",
            cell.bytes(),
            cell.op.shown_count(cell.count, cell.ranks),
            cell.dtype.name(),
            if cell.op.reduces() { redop_name(cell.redop) } else { "none" },
        )
    };
    if has_root(cell.op) {
        let root = ours.root_p50().map_or_else(|| "-".to_owned(), microseconds_text);
        text.push_str(&format!(" {root:>8}"));
    }
    if let (Some(best), Some(ratio)) = (measured.best_peer(), measured.ratio()) {
        text.push_str(&format!(
            "  {:<16} {:>10} {:>6.2} {:<14} {}",
            best.engine,
            microseconds_text(best.p50()),
            ratio.value,
            interval_text(&ratio),
            measured.comparison_word().unwrap_or_default()
        ));
    } else if !measured.left_out.is_empty() {
        text.push_str("  all peers are skipped");
    }
    text.trim_end().to_owned() + "\n"
}

/// Formats the average bus bandwidth of all cells that move data, as nccl-tests do.
pub(crate) fn average_text(all: &[CellResult]) -> String {
    let with_data = all.iter().filter(|measured| measured.cell.bytes() > 0);
    let busbws: Vec<f64> =
        with_data.map(|measured| measured.bandwidths(measured.libdist.p50()).1).collect();
    if busbws.is_empty() {
        return String::new();
    }
    #[allow(clippy::cast_precision_loss, reason = "the output shows only a few digits")]
    let average = busbws.iter().sum::<f64>() / busbws.len() as f64;
    let cells = count_text(busbws.len(), "cell");
    format!("\nAverage bus bandwidth of {cells}: {average:.2} GB/s\n")
}

fn interval_text(ratio: &MedianEstimate) -> String {
    ratio.interval.map_or_else(|| "-".to_owned(), |(low, high)| format!("{low:.2} to {high:.2}"))
}

/// Returns the number of ranks, the variant and the operation of a cell. All cells with the same
/// key have one geometric mean.
pub(crate) fn mean_key(cell: &BenchCell) -> (usize, [&'static str; 4], &'static str) {
    (cell.ranks, cell.variant.describe(), cell.op.name())
}

/// The geometric mean over the cells of one operation in one variant: in each cell, libdist is
/// compared with the best peer of this cell.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OpMean {
    pub(crate) ranks: usize,
    pub(crate) variant_words: [&'static str; 4],
    pub(crate) op: &'static str,
    /// The geometric mean of the ratios.
    pub(crate) ratio: f64,
    /// The geometric mean of the ratios of the mean times.
    pub(crate) ratio_of_means: f64,
    pub(crate) cells: usize,
    pub(crate) lost: usize,
}

/// Returns the means of all operations, in the order of measurement. Empty if there is no peer.
pub(crate) fn op_means(all: &[CellResult]) -> Vec<OpMean> {
    let mut kinds: Vec<(usize, [&str; 4], &str)> = Vec::new();
    for measured in all.iter().filter(|measured| measured.ratio().is_some()) {
        if !kinds.contains(&mean_key(&measured.cell)) {
            kinds.push(mean_key(&measured.cell));
        }
    }
    let mean = |(ranks, words, op): (usize, [&'static str; 4], &'static str)| {
        let own = all.iter().filter(|measured| mean_key(&measured.cell) == (ranks, words, op));
        let (mut ratios, mut of_means, mut lost) = (Vec::new(), Vec::new(), 0);
        for measured in own {
            ratios.extend(measured.ratio().map(|ratio| ratio.value));
            of_means.extend(measured.ratio_of_means());
            lost += usize::from(measured.verdict().is_some_and(|v| v.loss_reason().is_some()));
        }
        let (ratio, of_means) = (geometric_mean(&ratios), geometric_mean(&of_means));
        OpMean {
            ranks,
            variant_words: words,
            op,
            ratio,
            ratio_of_means: of_means,
            cells: ratios.len(),
            lost,
        }
    };
    kinds.into_iter().map(mean).collect()
}

/// Returns the number of cells in which libdist's 99th percentile is above that of the best peer,
/// and the number of compared cells.
pub(crate) fn tail_counts(all: &[CellResult]) -> (usize, usize) {
    let pairs = all
        .iter()
        .filter_map(|measured| Some((measured.libdist.p99(), measured.best_peer()?.p99())));
    pairs.fold((0, 0), |(above, cells), (ours, peer)| (above + usize::from(ours > peer), cells + 1))
}

/// The columns of the summary.
const SUMMARY_COLUMNS: [(&str, Alignment); 7] = [
    ("operation", Alignment::Left),
    ("ranks", Alignment::Right),
    ("variant", Alignment::Left),
    ("medians", Alignment::Right),
    ("means", Alignment::Right),
    ("cells", Alignment::Right),
    ("lost", Alignment::Right),
];

/// Formats the summary. Empty if there is no peer.
pub(crate) fn summary_text(all: &[CellResult]) -> String {
    let means = op_means(all);
    if means.is_empty() {
        return String::new();
    }
    let row = |mean: &OpMean| {
        let OpMean { ranks, variant_words: words, op, ratio, ratio_of_means, cells, lost } = mean;
        [
            (*op).to_owned(),
            ranks.to_string(),
            words.join(", "),
            format!("{ratio:.2}"),
            format!("{ratio_of_means:.2}"),
            cells.to_string(),
            lost.to_string(),
        ]
    };
    format!(
        "\nRatio to the time of the best peer, geometric means of medians and of means:\n{}{}\n{}",
        text_table(SUMMARY_COLUMNS, means.iter().map(row)),
        tails_text(all),
        lost_cells_text(all)
    )
}

/// Formats the counts of [`tail_counts`].
pub(crate) fn tails_text(all: &[CellResult]) -> String {
    let (above, cells) = tail_counts(all);
    #[allow(clippy::cast_precision_loss, reason = "the output shows only a few digits")]
    let share = 100.0 * above as f64 / cells.max(1) as f64;
    let (cells, allowed) = (count_text(cells, "cell"), ALLOWED_TAIL_SHARE * 100.0);
    format!(
        "p99 is above the best peer's in {above} of {cells} ({share:.1} %; {allowed:.0} % are allowed)"
    )
}

fn lost_cells_text(all: &[CellResult]) -> String {
    let mut text = String::new();
    for measured in all {
        let Some(reason) = measured.verdict().and_then(CellVerdict::loss_reason) else { continue };
        let (Some(ratio), Some(best)) = (measured.ratio(), measured.best_peer()) else { continue };
        let BenchCell { ranks, op, variant, .. } = measured.cell;
        let (op, size, words) = (op.name(), size_text(measured.cell.bytes()), variant.describe());
        text.push_str(&format!(
            "  {op} {size}, {ranks} ranks, {}: {:.2} ({}) of {}, {reason}\n",
            words.join(", "),
            ratio.value,
            interval_text(&ratio),
            best.engine
        ));
    }
    if text.is_empty() { "No cell is lost.\n".to_owned() } else { format!("Lost cells:\n{text}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::samples::measured;

    #[test]
    fn row_has_one_field_per_column() {
        let row = table_row(&measured(BenchOp::AllReduce, 65_536, &[]), false);
        let words: Vec<&str> = row.split_whitespace().collect();
        let expected =
            ["65536", "16384", "f32", "sum", "1.000", "2.000", "1.500", "65.54", "65.54", "0"];
        assert_eq!(words, expected);
        let head = table_header(&measured(BenchOp::AllReduce, 4, &[]).cell, "auto", false);
        let lines: Vec<&str> = head.lines().collect();
        assert!(lines[1].starts_with("all_reduce, 2 ranks, rewritten, ordinary, in place"));
        assert_eq!(lines[2].len(), row.trim_end().len());
    }

    #[test]
    fn row_names_best_peer_and_result() {
        let peers = [("mpich", 1250.0), ("openmpi", 2000.0)];
        let text = table_row(&measured(BenchOp::AllGather, 64, &peers), true);
        assert!(
            text.ends_with("mpich                 1.250   0.80 0.80 to 0.80   faster\n"),
            "{text}"
        );
        assert!(text.trim_start().starts_with("64 B      1.000"), "{text}");
        let text = table_row(&measured(BenchOp::AllReduce, 64, &[("openmpi", 800.0)]), true);
        assert!(text.ends_with("1.25 1.25 to 1.25   slower\n"), "{text}");
    }

    #[test]
    fn lines_with_peers_have_at_most_120_columns() {
        let mut broadcast =
            measured(BenchOp::Broadcast, 256 << 20, &[("openmpi-ring128k", 123_456_789.0)]);
        broadcast.libdist.runs.iter_mut().for_each(|times| times.root_p50 = Some(123_456_789.0));
        broadcast.cell.ranks = 60;
        let text = table_header(&broadcast.cell, "auto", true) + &table_row(&broadcast, true);
        for line in text.lines() {
            assert!(line.len() <= 120, "{} columns: {line}", line.len());
        }
    }

    #[test]
    fn broadcast_row_has_root_time() {
        let mut broadcast = measured(BenchOp::Broadcast, 64, &[]);
        broadcast.libdist.runs.iter_mut().for_each(|times| times.root_p50 = Some(250.0));
        assert!(table_row(&broadcast, false).ends_with(" 0.250\n"));
        assert!(table_header(&broadcast.cell, "shm", false).ends_with("root us\n"));
    }

    #[test]
    fn average_counts_the_cells_with_data() {
        let cells = [
            measured(BenchOp::AllReduce, 65_536, &[]),
            measured(BenchOp::Broadcast, 1000, &[]),
            measured(BenchOp::Barrier, 0, &[]),
        ];
        let text = average_text(&cells);
        assert_eq!(text, "\nAverage bus bandwidth of 2 cells: 33.27 GB/s\n");
        assert_eq!(average_text(&cells[2..]), "");
    }

    #[test]
    fn summary_has_means_and_lost_cells() {
        let all = [
            measured(BenchOp::AllReduce, 4, &[("openmpi", 4000.0)]),
            measured(BenchOp::AllReduce, 65_536, &[("mpich", 250.0)]),
            measured(BenchOp::Barrier, 0, &[("mpich", 2000.0)]),
        ];
        let text = summary_text(&all);
        let rows: Vec<&str> = text.lines().skip(3).take(2).collect();
        assert!(rows[0].starts_with("all_reduce      2  rewritten, ordinary, "), "{text}");
        assert!(rows[0].ends_with("     1.00   1.00      2     1"), "{text}");
        assert!(rows[1].ends_with("     0.50   0.50      1     0"), "{text}");
        assert!(text.contains("above the best peer's in 1 of 3 cells (33.3 %"), "{text}");
        assert!(text.contains("  all_reduce 64 KiB, 2 ranks"), "{text}");
        assert!(text.ends_with("4.00 (4.00 to 4.00) of mpich, slower\n"), "{text}");
        assert!(summary_text(&all[..1]).ends_with("No cell is lost.\n"));
        assert_eq!(summary_text(&[measured(BenchOp::AllReduce, 4, &[])]), "");
    }
}
