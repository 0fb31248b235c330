//! A cell: one operation on one size, called in one way; and what engines took for it. Pure.

use crate::against::{BASELINE, CELL_LIMIT};
use crate::ops::Op;
use crate::order::Order;
use crate::stats::{Estimate, Times, estimate, median};
use crate::values;
use clap::ValueEnum;
use dist::base::dtype::DataType;
use dist::base::op::ReduceOp;

/// Up to here calls follow each other without barriers.
const SHORT: usize = 8 << 10;

/// How many of them make a run.
const MANY: usize = 1000;

/// Above, calls go on until so many bytes were handed in, within limits.
const VOLUME: usize = 128 << 20;
const FEWEST: usize = 3;
const MOST: usize = 200;

/// A trial: how long a call takes, and whether a peer is worth its turns.
const TRIAL: usize = 11;

/// A run lasts no longer, in nanoseconds, unless it has no more calls than a trial.
const LONGEST: f64 = 1e9;

/// Whether callers write new values before each call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    Rewritten,
    Untouched,
}

/// Where buffers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Buffers {
    Ordinary,
    Arena,
    /// In the memory of GPUs.
    Device,
}

impl Buffers {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ordinary => "ordinary",
            Self::Arena => "arena",
            Self::Device => "device",
        }
    }
}

/// A way to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Variant {
    pub(crate) mode: Mode,
    pub(crate) buffers: Buffers,
    pub(crate) in_place: bool,
    pub(crate) asynchronous: bool,
}

impl Variant {
    /// In words.
    pub(crate) fn describe(self) -> [&'static str; 4] {
        [
            if self.mode == Mode::Rewritten { "rewritten" } else { "untouched" },
            self.buffers.name(),
            if self.in_place { "in place" } else { "out of place" },
            if self.asynchronous { "async" } else { "blocking" },
        ]
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub(crate) ranks: usize,
    pub(crate) op: Op,
    /// Elements of all blocks.
    pub(crate) count: usize,
    pub(crate) dtype: DataType,
    pub(crate) redop: ReduceOp,
    pub(crate) variant: Variant,
}

impl Cell {
    /// Its bytes, in the sense of nccl-tests.
    pub(crate) const fn bytes(&self) -> usize {
        self.count * self.dtype.size()
    }

    /// What the buffers of one engine's ranks take at most, in bytes.
    pub(crate) const fn memory(&self) -> usize {
        let buffers = match self.op {
            Op::SendRecv => 2 * 2,
            Op::AllToAll => 2 * self.ranks,
            _ if self.variant.in_place => self.ranks,
            _ => 2 * self.ranks,
        };
        self.bytes().saturating_mul(buffers)
    }

    /// The order for one run: for an engine that has taken so many nanoseconds for a call; `calls`
    /// where the user has said how many.
    pub(crate) fn order(&self, calls: Option<usize>, took: f64) -> Order {
        let bytes = self.bytes();
        let is_short = bytes <= SHORT;
        let usual = if is_short { MANY } else { (VOLUME / bytes).clamp(FEWEST, MOST) };
        #[allow(
            clippy::cast_possible_truncation,
            reason = "a bound that may be the largest number"
        )]
        #[allow(clippy::cast_sign_loss, reason = "times are not negative")]
        let bearable = (LONGEST / took.max(1.0)) as usize;
        let calls = calls.unwrap_or(usual.min(bearable.max(TRIAL)));
        let rewrites = self.variant.mode == Mode::Rewritten && self.count > 0;
        Order {
            op: self.op,
            dtype: self.dtype,
            redop: self.redop,
            count: self.count,
            warm_up: calls.div_ceil(10),
            calls,
            barrier: !is_short || self.op.may_run_ahead(),
            rewrite: if rewrites { values::ones(self.dtype) } else { 0 },
            in_place: self.variant.in_place,
            arena: self.variant.buffers == Buffers::Arena,
            asynchronous: self.variant.asynchronous,
            verify: false,
            algorithm: None,
        }
    }

    /// The order that comes first: a checked call, and a few timed ones.
    pub(crate) fn trial(&self, calls: Option<usize>) -> Order {
        let order = self.order(calls, 0.0);
        let calls = order.calls.min(TRIAL);
        Order { verify: self.op != Op::Barrier, warm_up: 1, calls, ..order }
    }
}

/// What one engine took in all of its runs.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) engine: String,
    pub(crate) runs: Vec<Times>,
    pub(crate) wrong: u64,
}

impl Figures {
    fn median_of(&self, part: impl Fn(&Times) -> f64) -> f64 {
        median(&self.runs.iter().map(part).collect::<Vec<f64>>())
    }

    /// The median, in nanoseconds.
    pub(crate) fn p50(&self) -> f64 {
        self.median_of(|times| times.p50)
    }

    /// The 99th percentile.
    pub(crate) fn p99(&self) -> f64 {
        self.median_of(|times| times.p99)
    }

    /// The mean.
    pub(crate) fn mean(&self) -> f64 {
        self.median_of(|times| times.mean)
    }

    /// The median of the root's own calls, where another rank's end counts.
    pub(crate) fn root(&self) -> Option<f64> {
        let has_root = self.runs.iter().any(|times| times.root.is_some());
        has_root.then(|| self.median_of(|times| times.root.unwrap_or(0.0)))
    }
}

/// How a cell ended against the best peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Won,
    /// The peer took less.
    Slower,
    /// Who took less is not certain enough.
    Uncertain,
}

impl Verdict {
    /// Why it is lost, if it is.
    pub(crate) const fn lost(self) -> Option<&'static str> {
        match self {
            Self::Won => None,
            Self::Slower => Some("slower"),
            Self::Uncertain => Some("uncertain"),
        }
    }
}

/// A cell with what everybody took.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) cell: Cell,
    pub(crate) ours: Figures,
    /// Those that took part; whoever was far behind after a round has fewer runs than ours.
    pub(crate) peers: Vec<Figures>,
    /// What a program by hand takes, where there is one.
    pub(crate) bound: Option<Figures>,
    /// Those that failed.
    pub(crate) left_out: Vec<String>,
}

impl Measured {
    /// The peer with the smallest median.
    pub(crate) fn best(&self) -> Option<&Figures> {
        self.peers.iter().min_by(|a, b| a.p50().total_cmp(&b.p50()))
    }

    /// Our time by the best peer's, in pairs.
    pub(crate) fn ratio(&self) -> Option<Estimate> {
        let best = self.best()?;
        let pairs = self.ours.runs.iter().zip(&best.runs);
        Some(estimate(
            &pairs.map(|(ours, peer)| ours.p50 / peer.p50.max(1.0)).collect::<Vec<f64>>(),
        ))
    }

    /// Our mean by the best peer's, where calls followed each other.
    pub(crate) fn ratio_of_means(&self) -> Option<f64> {
        Some(self.ours.mean() / self.best()?.mean().max(1.0))
    }

    /// How it ended, where there was a peer. Another tree is compared by a rule of its own.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        let ratio = self.ratio()?;
        if self.best()?.engine == BASELINE {
            return Some(match ratio.interval {
                Some((low, _)) if low > CELL_LIMIT => Verdict::Slower,
                Some(_) => Verdict::Won,
                None => Verdict::Uncertain,
            });
        }
        Some(match () {
            () if ratio.value > 1.0 => Verdict::Slower,
            () if !ratio.is_narrow() => Verdict::Uncertain,
            () => Verdict::Won,
        })
    }

    /// Bandwidths of the algorithm and of the bus for a time, in GB/s.
    #[allow(clippy::cast_precision_loss, reason = "a size is shown with few digits")]
    pub(crate) fn bandwidths(&self, ns: f64) -> (f64, f64) {
        let algorithm = if ns > 0.0 { self.cell.bytes() as f64 / ns } else { 0.0 };
        (algorithm, algorithm * self.cell.op.bus_factor(self.cell.ranks))
    }
}

/// Cells for tests.
#[cfg(test)]
pub(crate) mod samples {
    use super::*;

    pub(crate) fn cell(op: Op, bytes: usize) -> Cell {
        let variant = Variant {
            mode: Mode::Rewritten,
            buffers: Buffers::Ordinary,
            in_place: true,
            asynchronous: false,
        };
        let (dtype, redop) = (DataType::F32, ReduceOp::Sum);
        Cell { ranks: 2, op, count: op.elements(bytes, 4, 2), dtype, redop, variant }
    }

    pub(crate) fn figures(engine: &str, runs: &[f64]) -> Figures {
        let times = |&p50: &f64| Times { p50, p99: 2.0 * p50, mean: 1.5 * p50, root: None };
        Figures { engine: engine.to_owned(), runs: runs.iter().map(times).collect(), wrong: 0 }
    }

    /// A cell in which ours took 1000 ns, and the peers so many.
    pub(crate) fn measured(op: Op, bytes: usize, peers: &[(&str, f64)]) -> Measured {
        let peers = peers.iter().map(|(name, ns)| figures(name, &[*ns; 10])).collect();
        let ours = figures("libdist", &[1000.0; 10]);
        Measured { cell: cell(op, bytes), ours, peers, bound: None, left_out: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::samples::{cell, figures, measured};
    use super::*;

    #[test]
    fn short_calls_are_many_and_long_ones_have_barriers() {
        let order = |op, bytes| cell(op, bytes).order(None, 1000.0);
        let short = order(Op::AllReduce, 8 << 10);
        assert_eq!((short.calls, short.warm_up, short.barrier), (1000, 100, false));
        assert!(short.rewrite != 0 && !short.verify);
        let long = order(Op::AllReduce, 4 << 20);
        assert_eq!((long.calls, long.warm_up, long.barrier), (32, 4, true));
        assert_eq!(order(Op::AllReduce, 64 << 10).calls, 200);
        assert_eq!(order(Op::AllReduce, 256 << 20).calls, 3);
        assert!(order(Op::Broadcast, 4).barrier);
        assert_eq!(order(Op::Barrier, 4).rewrite, 0);
        let memory = [Op::AllReduce, Op::AllToAll].map(|op| cell(op, 1 << 20).memory() >> 20);
        assert_eq!(memory, [2, 4]);
        assert_eq!(cell(Op::AllReduce, 4).order(Some(7), 1e12).calls, 7);
        let slow = |ns: f64| cell(Op::AllReduce, 4).order(None, ns).calls;
        assert_eq!([2e6, 8e7, 9e9].map(slow), [500, 12, 11]);
        let trial = cell(Op::AllReduce, 4).trial(None);
        assert_eq!((trial.calls, trial.warm_up, trial.verify), (11, 1, true));
        assert!(!cell(Op::Barrier, 4).trial(None).verify);
    }

    #[test]
    fn the_best_peer_is_the_quickest() {
        let measured = measured(Op::AllReduce, 64, &[("a", 1300.0), ("b", 1250.0), ("c", 9000.0)]);
        assert_eq!(measured.best().map(|best| best.engine.as_str()), Some("b"));
        let ratio = measured.ratio().unwrap();
        assert_eq!((ratio.value, ratio.interval), (0.8, Some((0.8, 0.8))));
        assert_eq!(measured.verdict(), Some(Verdict::Won));
        assert_eq!(measured.ratio_of_means(), Some(0.8));
        assert_eq!(measured.bandwidths(32.0), (2.0, 2.0));
    }

    #[test]
    fn what_is_slower_or_uncertain_is_lost() {
        let slower = measured(Op::AllReduce, 64, &[("a", 990.0)]);
        assert_eq!(slower.verdict().and_then(Verdict::lost), Some("slower"));
        let mut wide = measured(Op::AllReduce, 64, &[("a", 2000.0)]);
        wide.peers[0] = figures("a", &[1100.0, 1200.0, 1500.0, 2000.0, 2500.0, 2600.0, 3000.0]);
        assert_eq!(wide.verdict().and_then(Verdict::lost), Some("uncertain"));
        let alone = measured(Op::AllReduce, 64, &[]);
        assert_eq!((alone.ratio(), alone.verdict()), (None, None));
    }

    #[test]
    fn a_ways_words_are_all_told() {
        let words = cell(Op::AllReduce, 4).variant.describe();
        assert_eq!(words, ["rewritten", "ordinary", "in place", "blocking"]);
    }
}
