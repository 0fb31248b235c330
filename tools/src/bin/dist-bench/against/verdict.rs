//! The rule that decides whether this tree is slower than the other tree. This tree is not slower
//! if no cell has a confidence interval that is entirely above [`CELL_LIMIT`], and no operation has
//! a geometric mean above [`MEAN_LIMIT`]. The functions do no I/O.

use crate::cell::{self, CellResult};
use crate::table::{OpMean, mean_key, op_means};

/// A cell is slower if the whole confidence interval of its ratio is above this limit.
pub(crate) const CELL_LIMIT: f64 = 1.03;

/// An operation is slower if the geometric mean of the ratios of its cells is above this limit.
pub(super) const MEAN_LIMIT: f64 = 1.005;

/// The result of the comparison with the other tree.
#[derive(Debug)]
pub(crate) struct TreeVerdict<'a> {
    /// The means of all operations.
    pub(super) op_means: Vec<OpMean>,
    /// The cells with an interval entirely above the limit.
    pub(super) slower_cells: Vec<&'a CellResult>,
    /// The cells without an interval, because they have too few pairs.
    pub(super) inconclusive: Vec<&'a CellResult>,
    /// The cells that the other tree does not support.
    pub(super) unsupported: Vec<&'a CellResult>,
    /// The number of cells with an interval wider than 10 % to each side.
    pub(super) wide_intervals: usize,
    /// The number of cells with a ratio.
    pub(super) compared_cells: usize,
}

impl<'a> TreeVerdict<'a> {
    pub(crate) fn of(all: &'a [CellResult]) -> Self {
        let cells_with_verdict = |wanted: cell::CellVerdict| -> Vec<&CellResult> {
            all.iter().filter(|measured| measured.verdict() == Some(wanted)).collect()
        };
        let ratios = all.iter().filter_map(CellResult::ratio);
        let wide = ratios.clone().filter(|ratio| !ratio.is_narrow()).count();
        Self {
            op_means: op_means(all),
            slower_cells: cells_with_verdict(cell::CellVerdict::Slower),
            inconclusive: cells_with_verdict(cell::CellVerdict::Uncertain),
            unsupported: all.iter().filter(|measured| measured.ratio().is_none()).collect(),
            wide_intervals: wide,
            compared_cells: ratios.count(),
        }
    }

    /// Returns the operations above the limit.
    pub(super) fn slower_means(&self) -> impl Iterator<Item = &OpMean> {
        self.op_means.iter().filter(|mean| is_above_mean_limit(mean))
    }

    /// Returns true if no limit is exceeded and every compared cell has an interval. Returns false
    /// if no cell was compared.
    pub(crate) fn is_no_slower(&self) -> bool {
        let is_exceeded = !self.slower_cells.is_empty() || self.slower_means().next().is_some();
        self.compared_cells > 0 && self.inconclusive.is_empty() && !is_exceeded
    }
}

/// Returns true if the operation's geometric mean is above its limit.
pub(super) fn is_above_mean_limit(mean: &OpMean) -> bool {
    mean.ratio > MEAN_LIMIT
}

/// Returns the indices of the cells above [`CELL_LIMIT`], and of all cells of the operations above
/// [`MEAN_LIMIT`].
pub(super) fn cells_above_limit(all: &[Option<CellResult>]) -> Vec<usize> {
    let present: Vec<CellResult> = all.iter().flatten().cloned().collect();
    let slow_ops: Vec<OpMean> =
        op_means(&present).into_iter().filter(is_above_mean_limit).collect();
    let exceeds = |measured: &CellResult| {
        let (ranks, words, op) = mean_key(&measured.cell);
        let is_slower = measured.verdict() == Some(cell::CellVerdict::Slower);
        let has_ratio = measured.ratio().is_some();
        is_slower
            || has_ratio
                && slow_ops.iter().any(|m| (m.ranks, m.variant_words, m.op) == (ranks, words, op))
    };
    let numbered = all.iter().enumerate();
    numbered
        .filter(|(_, measured)| measured.as_ref().is_some_and(exceeds))
        .map(|(index, _)| index)
        .collect()
}

/// Cells for tests.
#[cfg(test)]
pub(super) mod samples {
    use super::super::BASELINE;
    use crate::cell::CellResult;
    use crate::cell::samples::{figures, measured};
    use crate::ops::BenchOp;

    /// Builds a cell in which this tree took these percentages of the other tree's 1000 ns.
    pub(in super::super) fn compared(op: BenchOp, bytes: usize, percents: &[f64]) -> CellResult {
        let mut cell = measured(op, bytes, &[(BASELINE, 1000.0)]);
        let ours: Vec<f64> = percents.iter().map(|percent| percent * 10.0).collect();
        cell.libdist = figures("libdist", &ours);
        cell.peers[0].runs.truncate(percents.len());
        cell
    }
}

#[cfg(test)]
mod tests {
    use super::samples::compared;
    use super::*;
    use crate::ops::BenchOp;

    /// Builds ten ratios. Their interval is from the second smallest to the second largest.
    fn between(low: f64, median: f64, high: f64) -> [f64; 10] {
        [low, low, median, median, median, median, median, median, high, high]
    }

    #[test]
    fn only_an_interval_entirely_above_the_limit_is_slower() {
        for (percents, is_slower) in [
            (between(103.1, 105.0, 108.0), true),
            (between(103.0, 105.0, 108.0), false),
            (between(90.0, 104.9, 130.0), false),
            (between(80.0, 81.0, 82.0), false),
        ] {
            let all = [compared(BenchOp::AllReduce, 4, &percents)];
            assert_eq!(!TreeVerdict::of(&all).slower_cells.is_empty(), is_slower, "{percents:?}");
        }
    }

    #[test]
    fn the_mean_of_an_operation_has_a_limit_of_its_own() {
        // No interval is above 1.03, but together the cells are 0.6 % slower.
        let cell = |bytes: usize, percent: f64| compared(BenchOp::AllReduce, bytes, &[percent; 10]);
        let all = [cell(4, 102.0), cell(64, 99.22), compared(BenchOp::Barrier, 0, &[100.4; 10])];
        let verdict = TreeVerdict::of(&all);
        assert!(verdict.slower_cells.is_empty() && !verdict.is_no_slower());
        let above: Vec<&str> = verdict.slower_means().map(|mean| mean.op).collect();
        assert_eq!(above, ["all_reduce"]);
        let all = [cell(4, 102.0), cell(64, 98.9), compared(BenchOp::Barrier, 0, &[100.4; 10])];
        assert!(TreeVerdict::of(&all).is_no_slower());
    }

    #[test]
    fn cells_without_interval_are_inconclusive() {
        let few = [compared(BenchOp::AllReduce, 4, &[100.0; 5])];
        let verdict = TreeVerdict::of(&few);
        assert_eq!((verdict.inconclusive.len(), verdict.is_no_slower()), (1, false));
        assert!(!TreeVerdict::of(&[]).is_no_slower());
        let mut missing = compared(BenchOp::AllReduce, 4, &[100.0; 10]);
        missing.peers.clear();
        let both = [missing, compared(BenchOp::Barrier, 0, &[100.0; 10])];
        let verdict = TreeVerdict::of(&both);
        assert_eq!((verdict.unsupported.len(), verdict.compared_cells), (1, 1));
        assert!(verdict.is_no_slower());
    }

    #[test]
    fn wide_intervals_are_counted() {
        let all = [
            compared(BenchOp::AllReduce, 4, &between(80.0, 100.0, 120.0)),
            compared(BenchOp::AllReduce, 64, &between(95.0, 100.0, 105.0)),
        ];
        assert_eq!(TreeVerdict::of(&all).wide_intervals, 1);
    }

    #[test]
    fn cells_and_whole_operations_are_measured_again() {
        let all = [
            compared(BenchOp::AllReduce, 4, &[110.0; 10]),
            compared(BenchOp::AllReduce, 64, &[80.0; 10]),
            compared(BenchOp::Barrier, 0, &[101.0; 10]),
            compared(BenchOp::SendRecv, 4, &[101.5; 10]),
            compared(BenchOp::SendRecv, 64, &[100.1; 10]),
            compared(BenchOp::Gather, 64, &[100.1; 10]),
        ];
        let mut all = all.map(Some).to_vec();
        assert_eq!(cells_above_limit(&all), [0, 2, 3, 4]);
        all[2] = None;
        assert_eq!(cells_above_limit(&all), [0, 3, 4]);
    }
}
