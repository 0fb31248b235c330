//! Formats the table and the summary for users. The functions do no I/O.

use crate::cell::{BenchCell, CellResult, CellVerdict};
use crate::ops::BenchOp;
use crate::request::redop_name;
use crate::stats::{MedianEstimate, geometric_mean};
use crate::text::{microseconds_text, size_text};
use dist_tools::count_text;

/// The project's limit for the share of cells in which libdist's 99th percentile is above that of
/// the best peer.
const ALLOWED_TAIL_SHARE: f64 = 0.05;

/// Formats the lines above the rows of an operation: the variant, and the names of the columns.
pub(crate) fn table_header(cell: &BenchCell, transport: &str, has_peers: bool) -> String {
    let (op, ranks, words) = (cell.op.name(), cell.ranks, cell.variant.describe().join(", "));
    let mut columns = format!(
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
    );
    if has_root(cell.op) {
        columns.push_str(&format!(" {:>10}", "root us"));
    }
    if has_peers {
        columns.push_str(&format!(
            "  {:<17} {:>10} {:>10} {:>10} {:>6} {:<14} {}",
            "best peer", "p50 us", "p99 us", "mean us", "ratio", "95 %", "lost"
        ));
    }
    format!("\n{op}, {ranks} ranks, {words}, transport {transport}\n{}\n", columns.trim_end())
}

/// Returns true if the table also shows the times of the root's calls.
fn has_root(op: BenchOp) -> bool {
    op.time_rule() == crate::ops::TimeRule::LastAfterRoot
}

/// Formats a row.
pub(crate) fn table_row(measured: &CellResult) -> String {
    let CellResult { cell, libdist: ours, .. } = measured;
    let (algbw, busbw) = measured.bandwidths(ours.p50());
    let redop = if cell.op.reduces() { redop_name(cell.redop) } else { "none" };
    let wrong = ours.wrong + measured.peers.iter().map(|peer| peer.wrong).sum::<u64>();
    let mut text = format!(
        "{:>11} {:>11} {:>7} {:>6} {:>10} {:>10} {:>10} {:>8.2} {:>8.2} {:>6}",
        cell.bytes(),
        cell.op.shown_count(cell.count, cell.ranks),
        cell.dtype.name(),
        redop,
        microseconds_text(ours.p50()),
        microseconds_text(ours.p99()),
        microseconds_text(ours.mean()),
        algbw,
        busbw,
        wrong
    );
    if has_root(cell.op) {
        let root = ours.root_p50().map_or_else(|| "-".to_owned(), microseconds_text);
        text.push_str(&format!(" {root:>10}"));
    }
    if let (Some(best), Some(ratio)) = (measured.best_peer(), measured.ratio()) {
        let lost = measured.verdict().and_then(CellVerdict::loss_reason).unwrap_or("");
        text.push_str(&format!(
            "  {:<17} {:>10} {:>10} {:>10} {:>6.2} {:<14} {lost}",
            best.engine,
            microseconds_text(best.p50()),
            microseconds_text(best.p99()),
            microseconds_text(best.mean()),
            ratio.value,
            interval_text(&ratio)
        ));
    } else if !measured.left_out.is_empty() {
        text.push_str("  all peers are skipped");
    }
    text.trim_end().to_owned() + "\n"
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

/// Formats the summary. Empty if there is no peer.
pub(crate) fn summary_text(all: &[CellResult]) -> String {
    let means = op_means(all);
    if means.is_empty() {
        return String::new();
    }
    let mut text =
        "\nRatio to the time of the best peer, geometric means: of medians, of means\n".to_owned();
    for OpMean { ranks, variant_words: words, op, ratio, ratio_of_means: of_means, cells, lost } in
        &means
    {
        let (words, cells) = (words.join(", "), count_text(*cells, "cell"));
        text.push_str(&format!(
            "{ratio:>6.2} {of_means:>6.2}  {op:<15} {ranks} ranks, {words}: {cells}, {lost} lost\n"
        ));
    }
    text.push_str(&format!("{}\n", tails_text(all)));
    text + &lost_cells_text(all)
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
        let row = table_row(&measured(BenchOp::AllReduce, 65_536, &[]));
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
        let text =
            table_row(&measured(BenchOp::AllGather, 64, &[("mpich", 1250.0), ("openmpi", 2000.0)]));
        assert!(
            text.ends_with(
                "mpich                  1.250      2.500      1.875   0.80 0.80 to 0.80\n"
            ),
            "{text}"
        );
        assert!(text.trim_start().starts_with("64           8     f32   none"), "{text}");
        let text = table_row(&measured(BenchOp::AllReduce, 64, &[("openmpi", 800.0)]));
        assert!(text.ends_with("1.25 1.25 to 1.25   slower\n"), "{text}");
    }

    #[test]
    fn broadcast_row_has_root_time() {
        let mut broadcast = measured(BenchOp::Broadcast, 64, &[]);
        broadcast.libdist.runs.iter_mut().for_each(|times| times.root_p50 = Some(250.0));
        assert!(table_row(&broadcast).ends_with(" 0.250\n"));
        assert!(table_header(&broadcast.cell, "shm", false).ends_with("root us\n"));
    }

    #[test]
    fn summary_has_means_and_lost_cells() {
        let all = [
            measured(BenchOp::AllReduce, 4, &[("openmpi", 4000.0)]),
            measured(BenchOp::AllReduce, 65_536, &[("mpich", 250.0)]),
            measured(BenchOp::Barrier, 0, &[("mpich", 2000.0)]),
        ];
        let text = summary_text(&all);
        assert!(
            text.contains("  1.00   1.00  all_reduce      2 ranks, rewritten, ordinary"),
            "{text}"
        );
        assert!(text.contains("2 cells, 1 lost") && text.contains("1 cell, 0 lost"), "{text}");
        assert!(text.contains("above the best peer's in 1 of 3 cells (33.3 %"), "{text}");
        assert!(text.contains("  all_reduce 64 KiB, 2 ranks"), "{text}");
        assert!(text.ends_with("4.00 (4.00 to 4.00) of mpich, slower\n"), "{text}");
        assert!(summary_text(&all[..1]).ends_with("No cell is lost.\n"));
        assert_eq!(summary_text(&[measured(BenchOp::AllReduce, 4, &[])]), "");
    }
}
