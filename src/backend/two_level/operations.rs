//! The operations of a two-level group, each composed of steps of the inner groups.
//!
//! - all_reduce: reduce_scatter inside, all_reduce between, all_gather inside. By leaders: reduce,
//!   all_reduce between, broadcast.
//! - reduce: reduce inside to the root's local rank, reduce between.
//! - reduce_scatter: reduce_scatter inside for each host, reduce_scatter between. By leaders:
//!   reduce, reduce_scatter_v between, scatter.
//! - all_gather: all_gather between, all_gather inside for each host. By leaders: all_gather_v
//!   inside and between, broadcast.
//! - broadcast: broadcast between, broadcast inside.
//! - barrier: barrier inside, barrier between. By leaders: another barrier inside.
//!
//! If all hosts have the same number of ranks, the ranks with the same local rank form an inner
//! group between hosts (a *rail*). All ranks of a host then use the network at the same time, and
//! the rails exchange different elements. Otherwise only the leaders (the lowest ranks of the
//! hosts) use the network.
//!
//! Each element is reduced in one place and then copied, so all ranks get the same bits.

use super::call::TwoLevelCall;
use super::copies;
use super::reductions;
use super::steps::Step;
use crate::backend::OpKind;
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, Result};

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

/// Runs the operation and waits for its end.
pub(super) fn run(call: &TwoLevelCall<'_>) -> Result<()> {
    match call.steps.whole.descriptor.kind {
        OpKind::AllReduce => reductions::all_reduce(call),
        OpKind::Reduce => reductions::reduce(call),
        OpKind::ReduceScatter => reductions::reduce_scatter(call),
        OpKind::AllGather => copies::all_gather(call),
        OpKind::Broadcast => copies::broadcast(call),
        OpKind::Barrier => run_barrier(call),
        kind => Err(Error::internal(format!("{} has no steps", kind.name()))),
    }?;
    call.steps.finish()
}

fn run_barrier(call: &TwoLevelCall<'_>) -> Result<()> {
    let barrier = Step::of(OpKind::Barrier, Src::empty(), Dst::empty());
    call.steps.inside(&barrier)?;
    call.steps.between(&barrier.at_stage(1))?;
    // Only the leaders know that all hosts have arrived.
    if call.groups().is_even { Ok(()) } else { call.steps.inside(&barrier.at_stage(2)) }
}
