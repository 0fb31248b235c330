//! The collective operations and their properties.
//!
//! The numbers are part of the descriptor words that ranks exchange
//! ([`Descriptor`](super::Descriptor)), so they never change.

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::op::ReduceOp;

/// The collective operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are their own documentation")]
pub enum OpKind {
    AllReduce = 0,
    Reduce = 1,
    Broadcast = 2,
    AllGather = 3,
    ReduceScatter = 4,
    Barrier = 5,
    Gather = 6,
    Scatter = 7,
    AllToAll = 8,
    AllGatherV = 9,
    GatherV = 10,
    ScatterV = 11,
    ReduceScatterV = 12,
    AllToAllV = 13,
    Scan = 14,
    Exscan = 15,
}

impl OpKind {
    /// All kinds in numerical order.
    pub const ALL: [Self; 16] = [
        Self::AllReduce,
        Self::Reduce,
        Self::Broadcast,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Barrier,
        Self::Gather,
        Self::Scatter,
        Self::AllToAll,
        Self::AllGatherV,
        Self::GatherV,
        Self::ScatterV,
        Self::ReduceScatterV,
        Self::AllToAllV,
        Self::Scan,
        Self::Exscan,
    ];

    /// Returns the name as the C function has it, for example `all_reduce` for `dist_all_reduce`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::Reduce => "reduce",
            Self::Broadcast => "broadcast",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::Barrier => "barrier",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllToAll => "all_to_all",
            Self::AllGatherV => "all_gather_v",
            Self::GatherV => "gather_v",
            Self::ScatterV => "scatter_v",
            Self::ReduceScatterV => "reduce_scatter_v",
            Self::AllToAllV => "all_to_all_v",
            Self::Scan => "scan",
            Self::Exscan => "exscan",
        }
    }

    /// Returns the name of the call on byte strings that uses this operation, for example
    /// `gather_bytes` for `dist_gather_bytes`. Returns the operation's own name if there is no such
    /// call.
    pub const fn bytes_name(self) -> &'static str {
        match self {
            Self::Broadcast => "broadcast_bytes",
            Self::AllGather => "all_gather_bytes",
            Self::Gather => "gather_bytes",
            Self::Scatter => "scatter_bytes",
            other => other.name(),
        }
    }

    /// Returns whether the operation reduces.
    pub const fn is_reduction(self) -> bool {
        matches!(
            self,
            Self::AllReduce
                | Self::Reduce
                | Self::ReduceScatter
                | Self::ReduceScatterV
                | Self::Scan
                | Self::Exscan
        )
    }

    /// Returns whether the operation is a prefix reduction. In an exscan, each rank gets the
    /// reduction over the vectors of all lower ranks. In a scan, the rank's own vector is
    /// included.
    pub const fn is_prefix(self) -> bool {
        matches!(self, Self::Scan | Self::Exscan)
    }

    /// Returns whether the result of `rank` depends on the call of rank `other`.
    pub fn needs_rank(self, root: Option<Rank>, rank: Rank, other: Rank) -> bool {
        match self {
            Self::AllReduce
            | Self::AllGather
            | Self::ReduceScatter
            | Self::Barrier
            | Self::AllToAll
            | Self::AllGatherV
            | Self::ReduceScatterV
            | Self::AllToAllV => true,
            Self::Reduce | Self::Gather | Self::GatherV => root == Some(rank),
            Self::Broadcast | Self::Scatter | Self::ScatterV => root == Some(other),
            Self::Scan | Self::Exscan => other < rank,
        }
    }

    /// Returns the number of vectors that a prefix reduction combines for `rank`: the vectors of
    /// the ranks from 0 up to, but not including, the returned number.
    pub const fn prefix_len(self, rank: Rank) -> usize {
        if matches!(self, Self::Exscan) { rank } else { rank + 1 }
    }

    /// Rejects an operator that the operation does not support.
    ///
    /// # Errors
    /// `Unsupported` for an average in a prefix reduction.
    pub fn check_op(self, op: ReduceOp) -> Result<()> {
        if !self.is_prefix() || op != ReduceOp::Avg {
            return Ok(());
        }
        let message = format!(
            "{op} in {}: the ranks reduce different numbers of vectors; use SUM and divide the result",
            self.name()
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// Returns whether no rank knows all counts of the operation. Each pair of ranks then compares
    /// only the counts that the two exchange.
    pub const fn is_pairwise(self) -> bool {
        matches!(self, Self::GatherV | Self::ScatterV | Self::AllToAllV)
    }

    /// Returns whether the operation is a `_v` form, with its own count and offset for each rank.
    pub const fn has_per_rank_counts(self) -> bool {
        matches!(
            self,
            Self::AllGatherV
                | Self::GatherV
                | Self::ScatterV
                | Self::ReduceScatterV
                | Self::AllToAllV
        )
    }

    /// Returns whether the operation has a root.
    pub const fn has_root(self) -> bool {
        matches!(
            self,
            Self::Reduce
                | Self::Broadcast
                | Self::Gather
                | Self::Scatter
                | Self::GatherV
                | Self::ScatterV
        )
    }
}
