//! The measured operations: their names, the meaning of their sizes, and the rule that defines
//! their time.

use std::str::FromStr;

/// The root of operations with a root, and the rank that starts a ping-pong.
pub(crate) const ROOT: usize = 0;

/// A rank, and the number of ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankPosition {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BenchOp {
    AllReduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    AllToAll,
    Barrier,
    SendRecv,
    Reduce,
    Gather,
    Scatter,
}

/// The rule that computes the time of an operation from the start and end times of the calls on its
/// ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeRule {
    /// The time from the start to the end of a rank's call. The rank with the largest median
    /// counts.
    SlowestRank,
    /// The time from the start of the root's call until the calls of all ranks have ended.
    LastAfterRoot,
    /// Half of the time from the start to the end of the call on the rank that starts the
    /// ping-pong.
    HalfRoundTrip,
}

impl BenchOp {
    /// All operations, in the order of measurement.
    pub(crate) const ALL: [Self; 10] = [
        Self::AllReduce,
        Self::Broadcast,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::Barrier,
        Self::SendRecv,
        Self::Reduce,
        Self::Gather,
        Self::Scatter,
    ];

    /// Returns the name on the command line, in tables and in requests.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::Broadcast => "broadcast",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "all_to_all",
            Self::Barrier => "barrier",
            Self::SendRecv => "sendrecv",
            Self::Reduce => "reduce",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
        }
    }

    /// Returns true if the operation reduces elements of several ranks.
    pub(crate) const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }

    /// Returns true if the operation has one block per rank. The size of the operation is then the
    /// sum over all blocks.
    pub(crate) const fn has_blocks(self) -> bool {
        matches!(
            self,
            Self::AllGather | Self::ReduceScatter | Self::AllToAll | Self::Gather | Self::Scatter
        )
    }

    /// Returns true if a rank may make several calls before another rank makes its first one. The
    /// root of a broadcast, for example, need not wait for the receivers. Such an operation needs a
    /// barrier before each measured call. Otherwise a call could include the wait for earlier
    /// calls.
    pub(crate) const fn may_run_ahead(self) -> bool {
        matches!(self, Self::Broadcast | Self::Scatter | Self::Reduce | Self::Gather)
    }

    /// Returns the time rule.
    pub(crate) const fn time_rule(self) -> TimeRule {
        match self {
            Self::Broadcast | Self::Scatter => TimeRule::LastAfterRoot,
            Self::SendRecv => TimeRule::HalfRoundTrip,
            _ => TimeRule::SlowestRank,
        }
    }

    /// Returns the number of elements for a size in bytes: at least one element, and for an
    /// operation with blocks, equal blocks with at least one element each. A barrier has no
    /// elements.
    pub(crate) fn elements(self, bytes: usize, element: usize, ranks: usize) -> usize {
        let count = (bytes / element).max(1);
        match self {
            Self::Barrier => 0,
            _ if self.has_blocks() => (count / ranks).max(1) * ranks,
            _ => count,
        }
    }

    /// Returns the count as nccl-tests defines it: the number of elements in one block for an
    /// operation with blocks, otherwise the number of all elements.
    pub(crate) const fn shown_count(self, elements: usize, ranks: usize) -> usize {
        if self.has_blocks() { elements / ranks } else { elements }
    }

    /// Returns the factor that converts the algorithm bandwidth to the bus bandwidth, as nccl-tests
    /// defines the two.
    #[allow(clippy::cast_precision_loss, reason = "the number of ranks is small")]
    pub(crate) fn bus_factor(self, ranks: usize) -> f64 {
        let ranks = ranks as f64;
        match self {
            Self::AllReduce => 2.0 * (ranks - 1.0) / ranks,
            _ if self.has_blocks() => (ranks - 1.0) / ranks,
            _ => 1.0,
        }
    }
}

impl FromStr for BenchOp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|op| op.name() == text).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|op| op.name()).collect();
            format!("expected one of: {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_names_are_parsed() {
        for op in BenchOp::ALL {
            assert_eq!(op.name().parse(), Ok(op));
        }
        assert!("allreduce".parse::<BenchOp>().unwrap_err().contains("all_reduce, broadcast"));
    }

    #[test]
    fn bytes_and_counts_follow_nccl_tests() {
        assert_eq!(BenchOp::AllReduce.elements(64, 4, 8), 16);
        assert_eq!(BenchOp::AllReduce.elements(2, 4, 8), 1);
        assert_eq!(BenchOp::AllGather.elements(64, 4, 8), 16);
        assert_eq!(BenchOp::AllGather.elements(4, 4, 8), 8);
        assert_eq!(BenchOp::AllToAll.elements(100, 4, 8), 24);
        assert_eq!(BenchOp::Barrier.elements(64, 4, 8), 0);
        assert_eq!(BenchOp::ReduceScatter.shown_count(16, 8), 2);
        assert_eq!(BenchOp::Broadcast.shown_count(16, 8), 16);
        let factor = |op: BenchOp| (op.bus_factor(4) * 100.0).round();
        assert_eq!(factor(BenchOp::AllReduce), 150.0);
        assert_eq!(factor(BenchOp::ReduceScatter), 75.0);
        assert_eq!(factor(BenchOp::Broadcast), 100.0);
    }
}
