//! A cell: one measured case, which is an operation, a number of ranks, a size and a variant (a way
//! to call the operation). A cell result also has the times of all engines. The module does no I/O.

use crate::against::{BASELINE, CELL_LIMIT};
use crate::offsets::OffsetPair;
use crate::ops::BenchOp;
use crate::request::BenchRequest;
use crate::stats::{MedianEstimate, RunTimes, estimate, median};
use crate::values;
use clap::ValueEnum;
use dist::base::dtype::DataType;
use dist::base::op::ReduceOp;

/// Calls up to this size in bytes are short: a run makes many of them, without barriers between
/// them.
const SHORT_CALL_BYTES: usize = 8 << 10;

/// The number of short calls in a run.
const SHORT_CALLS_PER_RUN: usize = 1000;

/// For larger sizes, the number of calls in a run is this number of bytes divided by the size, but
/// at least [`MIN_CALLS`] and at most [`MAX_CALLS`].
const BYTES_PER_RUN: usize = 128 << 20;
const MIN_CALLS: usize = 3;
const MAX_CALLS: usize = 200;

/// The number of calls in a trial. The trial before the measurement shows how long a call takes,
/// and which peers are too slow to compare.
const TRIAL_CALLS: usize = 11;

/// A run has fewer calls if it would take longer than this time in nanoseconds, but at least as
/// many calls as a trial.
const MAX_RUN_NS: f64 = 1e9;

/// Whether callers write new values before each call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BufferMode {
    Rewritten,
    Untouched,
}

/// The kind of memory of the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BufferKind {
    Ordinary,
    Arena,
    /// Ordinary memory at these offsets in its pages.
    Offsets(OffsetPair),
    /// Memory of GPUs.
    Device,
}

impl BufferKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ordinary => "ordinary",
            Self::Arena => "arena",
            Self::Offsets(pair) => pair.name(),
            Self::Device => "device",
        }
    }
}

/// A way to call an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallVariant {
    pub(crate) mode: BufferMode,
    pub(crate) buffers: BufferKind,
    pub(crate) in_place: bool,
    pub(crate) asynchronous: bool,
}

impl CallVariant {
    /// Returns the names of the properties.
    pub(crate) fn describe(self) -> [&'static str; 4] {
        [
            if self.mode == BufferMode::Rewritten { "rewritten" } else { "untouched" },
            self.buffers.name(),
            if self.in_place { "in place" } else { "out of place" },
            if self.asynchronous { "async" } else { "blocking" },
        ]
    }
}

/// One measured case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BenchCell {
    pub(crate) ranks: usize,
    pub(crate) op: BenchOp,
    /// The number of elements: the sum over all blocks if the operation has one block per rank.
    pub(crate) count: usize,
    pub(crate) dtype: DataType,
    pub(crate) redop: ReduceOp,
    pub(crate) variant: CallVariant,
}

impl BenchCell {
    /// Returns the size in bytes, as nccl-tests defines it.
    pub(crate) const fn bytes(&self) -> usize {
        self.count * self.dtype.size()
    }

    /// Returns the largest total size of the buffers of one engine's ranks, in bytes.
    pub(crate) const fn buffer_bytes(&self) -> usize {
        let buffers = match self.op {
            BenchOp::SendRecv => 2 * 2,
            BenchOp::AllToAll => 2 * self.ranks,
            _ if self.variant.in_place => self.ranks,
            _ => 2 * self.ranks,
        };
        self.bytes().saturating_mul(buffers)
    }

    /// Returns the request for one run of an engine whose calls take `call_ns` nanoseconds. `calls`
    /// is the number of calls on the command line, if given.
    pub(crate) fn request(&self, calls: Option<usize>, call_ns: f64) -> BenchRequest {
        let bytes = self.bytes();
        let is_short = bytes <= SHORT_CALL_BYTES;
        let default_calls = if is_short {
            SHORT_CALLS_PER_RUN
        } else {
            (BYTES_PER_RUN / bytes).clamp(MIN_CALLS, MAX_CALLS)
        };
        #[allow(
            clippy::cast_possible_truncation,
            reason = "the cast saturates, and the result is only an upper bound"
        )]
        #[allow(clippy::cast_sign_loss, reason = "times are not negative")]
        let calls_within_limit = (MAX_RUN_NS / call_ns.max(1.0)) as usize;
        let calls = calls.unwrap_or(default_calls.min(calls_within_limit.max(TRIAL_CALLS)));
        let rewrites = self.variant.mode == BufferMode::Rewritten && self.count > 0;
        BenchRequest {
            op: self.op,
            dtype: self.dtype,
            redop: self.redop,
            count: self.count,
            warm_up: calls.div_ceil(10),
            calls,
            has_barrier: !is_short || self.op.may_run_ahead(),
            rewrite_word: if rewrites { values::ones_word(self.dtype) } else { 0 },
            is_in_place: self.variant.in_place,
            uses_arena: self.variant.buffers == BufferKind::Arena,
            is_asynchronous: self.variant.asynchronous,
            is_verified: false,
            offsets: match self.variant.buffers {
                BufferKind::Offsets(pair) => pair,
                _ => OffsetPair::default(),
            },
            algorithm: None,
        }
    }

    /// Returns the request of the trial: one call whose result is verified, and some timed calls.
    pub(crate) fn trial_request(&self, calls: Option<usize>) -> BenchRequest {
        let request = self.request(calls, 0.0);
        let calls = request.calls.min(TRIAL_CALLS);
        BenchRequest { is_verified: self.op != BenchOp::Barrier, warm_up: 1, calls, ..request }
    }
}

/// The times of one engine in all of its runs.
#[derive(Clone, Debug)]
pub(crate) struct EngineTimes {
    pub(crate) engine: String,
    pub(crate) runs: Vec<RunTimes>,
    pub(crate) wrong: u64,
}

impl EngineTimes {
    fn median_of(&self, part: impl Fn(&RunTimes) -> f64) -> f64 {
        median(&self.runs.iter().map(part).collect::<Vec<f64>>())
    }

    /// Returns the median in nanoseconds.
    pub(crate) fn p50(&self) -> f64 {
        self.median_of(|times| times.p50)
    }

    /// Returns the 99th percentile.
    pub(crate) fn p99(&self) -> f64 {
        self.median_of(|times| times.p99)
    }

    /// Returns the mean.
    pub(crate) fn mean(&self) -> f64 {
        self.median_of(|times| times.mean)
    }

    /// Returns the median time of the root's calls, for operations whose time rule ends with the
    /// last rank.
    pub(crate) fn root_p50(&self) -> Option<f64> {
        let has_root = self.runs.iter().any(|times| times.root_p50.is_some());
        has_root.then(|| self.median_of(|times| times.root_p50.unwrap_or(0.0)))
    }
}

/// The result of the comparison of libdist with the best peer in one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CellVerdict {
    Won,
    /// The peer is faster.
    Slower,
    /// The confidence interval of the ratio is too wide to decide.
    Uncertain,
}

impl CellVerdict {
    /// Returns the reason for a lost cell.
    pub(crate) const fn loss_reason(self) -> Option<&'static str> {
        match self {
            Self::Won => None,
            Self::Slower => Some("slower"),
            Self::Uncertain => Some("uncertain"),
        }
    }
}

/// A cell with the times of all engines.
#[derive(Clone, Debug)]
pub(crate) struct CellResult {
    pub(crate) cell: BenchCell,
    pub(crate) libdist: EngineTimes,
    /// The peers that took part. A peer that was clearly slower than the best one has fewer runs
    /// than libdist.
    pub(crate) peers: Vec<EngineTimes>,
    /// The lower bound from a handwritten program, if there is one.
    pub(crate) bound: Option<EngineTimes>,
    /// The names of the engines that failed.
    pub(crate) left_out: Vec<String>,
}

impl CellResult {
    /// Returns the peer with the smallest median.
    pub(crate) fn best_peer(&self) -> Option<&EngineTimes> {
        self.peers.iter().min_by(|a, b| a.p50().total_cmp(&b.p50()))
    }

    /// Returns the ratio of libdist's time to the time of the best peer. Each pair of runs gives
    /// one ratio, and the result is their median.
    pub(crate) fn ratio(&self) -> Option<MedianEstimate> {
        let best_peer = self.best_peer()?;
        let pairs = self.libdist.runs.iter().zip(&best_peer.runs);
        Some(estimate(
            &pairs.map(|(ours, peer)| ours.p50 / peer.p50.max(1.0)).collect::<Vec<f64>>(),
        ))
    }

    /// Returns the ratio of the mean times. Unlike the medians, the means include the time that
    /// calls wait for earlier calls.
    pub(crate) fn ratio_of_means(&self) -> Option<f64> {
        Some(self.libdist.mean() / self.best_peer()?.mean().max(1.0))
    }

    /// Returns the verdict, if there is a peer. If the peer is another tree of libdist, the limit
    /// is [`CELL_LIMIT`].
    pub(crate) fn verdict(&self) -> Option<CellVerdict> {
        let ratio = self.ratio()?;
        if self.best_peer()?.engine == BASELINE {
            return Some(match ratio.interval {
                Some((low, _)) if low > CELL_LIMIT => CellVerdict::Slower,
                Some(_) => CellVerdict::Won,
                None => CellVerdict::Uncertain,
            });
        }
        Some(match () {
            () if ratio.value > 1.0 => CellVerdict::Slower,
            () if !ratio.is_narrow() => CellVerdict::Uncertain,
            () => CellVerdict::Won,
        })
    }

    /// Returns the word for this cell in a table: "faster" or "slower" if the whole interval of the
    /// ratio is below 1 or above the limit, otherwise "uncertain". The limit is 1, or
    /// [`CELL_LIMIT`] if the peer is another tree of libdist.
    pub(crate) fn comparison_word(&self) -> Option<&'static str> {
        let is_tree = self.best_peer()?.engine == BASELINE;
        let limit = if is_tree { CELL_LIMIT } else { 1.0 };
        Some(match self.ratio()?.interval {
            Some((_, high)) if high < 1.0 => "faster",
            Some((low, _)) if low > limit => "slower",
            _ => "uncertain",
        })
    }

    /// Returns the algorithm bandwidth and the bus bandwidth for a time, in GB/s.
    #[allow(clippy::cast_precision_loss, reason = "the output shows only a few digits")]
    pub(crate) fn bandwidths(&self, ns: f64) -> (f64, f64) {
        let algorithm = if ns > 0.0 { self.cell.bytes() as f64 / ns } else { 0.0 };
        (algorithm, algorithm * self.cell.op.bus_factor(self.cell.ranks))
    }
}

/// Cells for tests.
#[cfg(test)]
pub(crate) mod samples {
    use super::*;

    pub(crate) fn cell(op: BenchOp, bytes: usize) -> BenchCell {
        let variant = CallVariant {
            mode: BufferMode::Rewritten,
            buffers: BufferKind::Ordinary,
            in_place: true,
            asynchronous: false,
        };
        let (dtype, redop) = (DataType::F32, ReduceOp::Sum);
        BenchCell { ranks: 2, op, count: op.elements(bytes, 4, 2), dtype, redop, variant }
    }

    pub(crate) fn figures(engine: &str, runs: &[f64]) -> EngineTimes {
        let times = |&p50: &f64| RunTimes { p50, p99: 2.0 * p50, mean: 1.5 * p50, root_p50: None };
        EngineTimes { engine: engine.to_owned(), runs: runs.iter().map(times).collect(), wrong: 0 }
    }

    /// Builds a cell in which libdist took 1000 ns and the peers took these times.
    pub(crate) fn measured(op: BenchOp, bytes: usize, peers: &[(&str, f64)]) -> CellResult {
        let peers = peers.iter().map(|(name, ns)| figures(name, &[*ns; 10])).collect();
        let ours = figures("libdist", &[1000.0; 10]);
        CellResult {
            cell: cell(op, bytes),
            libdist: ours,
            peers,
            bound: None,
            left_out: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::samples::{cell, figures, measured};
    use super::*;

    #[test]
    fn call_count_and_barriers_depend_on_size() {
        let request = |op, bytes| cell(op, bytes).request(None, 1000.0);
        let short = request(BenchOp::AllReduce, 8 << 10);
        assert_eq!((short.calls, short.warm_up, short.has_barrier), (1000, 100, false));
        assert!(short.rewrite_word != 0 && !short.is_verified);
        let long = request(BenchOp::AllReduce, 4 << 20);
        assert_eq!((long.calls, long.warm_up, long.has_barrier), (32, 4, true));
        assert_eq!(request(BenchOp::AllReduce, 64 << 10).calls, 200);
        assert_eq!(request(BenchOp::AllReduce, 256 << 20).calls, 3);
        assert!(request(BenchOp::Broadcast, 4).has_barrier);
        assert_eq!(request(BenchOp::Barrier, 4).rewrite_word, 0);
        let memory = [BenchOp::AllReduce, BenchOp::AllToAll]
            .map(|op| cell(op, 1 << 20).buffer_bytes() >> 20);
        assert_eq!(memory, [2, 4]);
        assert_eq!(cell(BenchOp::AllReduce, 4).request(Some(7), 1e12).calls, 7);
        let slow = |ns: f64| cell(BenchOp::AllReduce, 4).request(None, ns).calls;
        assert_eq!([2e6, 8e7, 9e9].map(slow), [500, 12, 11]);
        let trial = cell(BenchOp::AllReduce, 4).trial_request(None);
        assert_eq!((trial.calls, trial.warm_up, trial.is_verified), (11, 1, true));
        assert!(!cell(BenchOp::Barrier, 4).trial_request(None).is_verified);
    }

    #[test]
    fn best_peer_has_smallest_median() {
        let measured =
            measured(BenchOp::AllReduce, 64, &[("a", 1300.0), ("b", 1250.0), ("c", 9000.0)]);
        assert_eq!(measured.best_peer().map(|best| best.engine.as_str()), Some("b"));
        let ratio = measured.ratio().unwrap();
        assert_eq!((ratio.value, ratio.interval), (0.8, Some((0.8, 0.8))));
        assert_eq!(measured.verdict(), Some(CellVerdict::Won));
        assert_eq!(measured.ratio_of_means(), Some(0.8));
        assert_eq!(measured.bandwidths(32.0), (2.0, 2.0));
    }

    #[test]
    fn slower_or_uncertain_cells_are_lost() {
        let slower = measured(BenchOp::AllReduce, 64, &[("a", 990.0)]);
        assert_eq!(slower.verdict().and_then(CellVerdict::loss_reason), Some("slower"));
        let mut wide = measured(BenchOp::AllReduce, 64, &[("a", 2000.0)]);
        wide.peers[0] = figures("a", &[1100.0, 1200.0, 1500.0, 2000.0, 2500.0, 2600.0, 3000.0]);
        assert_eq!(wide.verdict().and_then(CellVerdict::loss_reason), Some("uncertain"));
        let alone = measured(BenchOp::AllReduce, 64, &[]);
        assert_eq!((alone.ratio(), alone.verdict()), (None, None));
    }

    #[test]
    fn a_comparison_is_certain_only_with_its_whole_interval() {
        let word = |runs: &[f64]| {
            let mut cell = measured(BenchOp::AllReduce, 64, &[("openmpi", 1000.0)]);
            cell.libdist = figures("libdist", runs);
            cell.peers = vec![figures("openmpi", &vec![1000.0; runs.len()])];
            cell.comparison_word()
        };
        assert_eq!(word(&[900.0; 10]), Some("faster"));
        assert_eq!(word(&[1010.0; 10]), Some("slower"));
        assert_eq!(word(&[800.0, 900.0, 950.0, 980.0, 990.0, 1010.0]), Some("uncertain"));
        assert_eq!(word(&[500.0; 3]), Some("uncertain"));
        assert_eq!(measured(BenchOp::Barrier, 0, &[]).comparison_word(), None);
    }

    #[test]
    fn variant_description_names_all_settings() {
        let words = cell(BenchOp::AllReduce, 4).variant.describe();
        assert_eq!(words, ["rewritten", "ordinary", "in place", "blocking"]);
    }
}
