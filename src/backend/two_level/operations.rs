//! The operations of a two-level group, each composed of steps of the inner groups.
//!
//! | operation | hosts with equal numbers of ranks | otherwise, or for a short vector |
//! |---|---|---|
//! | all_reduce | reduce_scatter inside, all_reduce between, all_gather inside | reduce, all_reduce between leaders, broadcast |
//! | reduce | reduce to the root's local rank inside, reduce between | by the leaders |
//! | reduce_scatter | reduce_scatter inside for each host, reduce_scatter between | reduce, reduce_scatter_v between leaders, scatter |
//! | all_gather | all_gather between, all_gather inside for each host | all_gather_v, all_gather_v between leaders, broadcast |
//! | broadcast | broadcast between, broadcast inside | by the leaders |
//! | barrier | barrier inside, barrier between | and barrier inside |
//!
//! If all hosts have the same number of ranks, the ranks with the same local rank form an inner
//! group between hosts (a *rail*), so all ranks of a host use the network at the same time. All
//! rails exchange different elements. Otherwise only the leaders (the lowest ranks of the hosts)
//! use the network.
//!
//! Each element is reduced in one place and then copied, so all ranks get the same bits.

use super::average::StepOperators;
use super::copies;
use super::inner_group::InnerGroups;
use super::reductions;
use super::scratch::Scratch;
use super::steps::{Step, StepRunner};
use crate::backend::OpKind;
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;

/// The operations that a two-level group supports.
pub(super) const SUPPORTED_KINDS: [OpKind; 6] = [
    OpKind::AllReduce,
    OpKind::Broadcast,
    OpKind::ReduceScatter,
    OpKind::AllGather,
    OpKind::Reduce,
    OpKind::Barrier,
];

/// Returns the kinds of steps of an operation inside the host and between hosts, on any rank.
pub(super) fn step_kinds(kind: OpKind) -> [&'static [OpKind]; 2] {
    use OpKind::*;
    match kind {
        AllReduce => [&[ReduceScatter, AllGather, Reduce, Broadcast, AllReduce], &[AllReduce]],
        Reduce => [&[Reduce, Broadcast], &[Reduce]],
        ReduceScatter => {
            [&[ReduceScatter, ReduceScatterV, Reduce, Scatter], &[ReduceScatter, ReduceScatterV]]
        }
        AllGather => [&[AllGather, AllGatherV, Broadcast], &[AllGather, AllGatherV]],
        Broadcast => [&[Broadcast], &[Broadcast]],
        Barrier => [&[Barrier], &[Barrier]],
        _ => [&[], &[]],
    }
}

/// One operation in progress.
pub(super) struct TwoLevelCall<'a> {
    pub(super) steps: &'a StepRunner<'a>,
    pub(super) scratch: &'a Scratch,
}

impl<'a> TwoLevelCall<'a> {
    pub(super) fn groups(&self) -> &'a InnerGroups {
        self.steps.groups
    }

    /// Returns the host of this rank.
    pub(super) fn own_host(&self) -> usize {
        self.groups().hosts.node_of(self.groups().rank)
    }

    /// Returns the local rank of this rank.
    pub(super) fn own_local(&self) -> Rank {
        self.groups().hosts.local_rank(self.groups().rank)
    }

    /// Returns the host of the root and its local rank.
    pub(super) fn root(&self) -> Result<(usize, Rank)> {
        let (hosts, root) = (&self.groups().hosts, self.steps.whole.root()?);
        Ok((hosts.node_of(root), hosts.local_rank(root)))
    }

    /// Returns the operators of the steps of this reduction.
    pub(super) fn operators(&self) -> Result<StepOperators> {
        let whole = self.steps.whole;
        let size = self.groups().hosts.rank_count();
        StepOperators::of(whole.op()?, whole.dtype(), whole.factor, size)
    }

    /// Runs the operation and waits for its end.
    pub(super) fn run(&self) -> Result<()> {
        match self.steps.whole.descriptor.kind {
            OpKind::AllReduce => reductions::all_reduce(self),
            OpKind::Reduce => reductions::reduce(self),
            OpKind::ReduceScatter => reductions::reduce_scatter(self),
            OpKind::AllGather => copies::all_gather(self),
            OpKind::Broadcast => copies::broadcast(self),
            OpKind::Barrier => self.run_barrier(),
            kind => Err(Error::internal(format!("{} has no steps", kind.name()))),
        }?;
        self.steps.finish()
    }

    fn run_barrier(&self) -> Result<()> {
        let barrier = Step::of(OpKind::Barrier, Src::empty(), Dst::empty());
        self.steps.inside(&barrier)?;
        self.steps.between(&barrier.at_stage(1))?;
        // Only the leaders know that all hosts have arrived.
        if self.groups().is_even { Ok(()) } else { self.steps.inside(&barrier.at_stage(2)) }
    }
}
