//! All-reduce of large vectors, split rail. In each node, the n-th rank owns rail n, which carries
//! the n-th slice. Every rail owner folds its slice of the vectors of the node. It then all-reduces
//! the folded slice with the owners of the same rail on the other nodes. Then all ranks of the node
//! gather the slices.

use super::all_reduce_between_nodes;
use crate::algo::Operation;
use crate::algo::fold::{Fold, stage_contribution};
use crate::algo::hierarchical::{HierarchicalOperation, SLICE_ALIGNMENT, clip_to_slice};
use crate::algo::pattern::slices::{chunks, longest_slice, owned_slice};
use crate::algo::row::Algorithm;
use crate::base::error::Result;
use crate::kernel::{self, Stager};
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "split_rail",
    description: "each rank of a node reduces one slice and exchanges messages about it with the other nodes",
    ordered: false,
    ..Algorithm::hierarchical(run)
};

/// Reduces within the node, exchanges between the nodes, and distributes within the node.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`].
pub fn run(levels: &mut HierarchicalOperation<'_>, operation: &Operation<'_>) -> Result<()> {
    reduce_slices_in_node(levels, operation)?;
    if let Some(rail) = levels.own_rail() {
        let owners = levels.rail_owners(rail);
        let own_slice = owned_slice(operation.bytes(), levels.rail_count(), rail);
        let result = operation.recv.range(&own_slice);
        all_reduce_between_nodes(levels, &owners, Fold::partial(operation)?, result)?;
    }
    gather_slices_in_node(levels, operation)
}

/// Folds each rail owner's slice of the node's vectors into the owner's receive buffer.
fn reduce_slices_in_node(
    levels: &mut HierarchicalOperation<'_>,
    operation: &Operation<'_>,
) -> Result<()> {
    let (bytes, rails) = (operation.bytes(), levels.rail_count());
    let fold = Fold::subset(operation, levels.nodes.rank_count())?;
    let rail_bytes = levels.sequencer.slot_bytes() / rails / SLICE_ALIGNMENT * SLICE_ALIGNMENT;
    for part in chunks(longest_slice(bytes, rails), rail_bytes) {
        let slot = levels.sequencer.next_slot()?;
        for rail in 0..rails {
            let clipped = clip_to_slice(&owned_slice(bytes, rails, rail), &part);
            let src = operation.send.range(&clipped);
            let mut stager = Stager::for_total(clipped.len());
            stage_contribution(
                operation,
                &mut stager,
                slot.slice(rail * rail_bytes, clipped.len()),
                src,
            )?;
        }
        levels.sequencer.publish(&[])?;
        levels.sequencer.await_all()?;
        if let Some(rail) = levels.own_rail() {
            let clipped = clip_to_slice(&owned_slice(bytes, rails, rail), &part);
            let own = operation.recv.range(&clipped);
            fold.fold_in_order(own, levels.sequencer.size(), |rank| {
                levels.sequencer.slot(rank).slice(rail * rail_bytes, own.len())
            });
        }
    }
    Ok(())
}

/// Copies the slices from the rail owners to all ranks of the node.
fn gather_slices_in_node(
    levels: &mut HierarchicalOperation<'_>,
    operation: &Operation<'_>,
) -> Result<()> {
    let (bytes, rails, own_rail) = (operation.bytes(), levels.rail_count(), levels.own_rail());
    for part in chunks(longest_slice(bytes, rails), levels.sequencer.slot_bytes()) {
        match own_rail {
            Some(rail) => {
                let clipped = clip_to_slice(&owned_slice(bytes, rails, rail), &part);
                let slot = levels.sequencer.next_slot()?.slice(0, clipped.len());
                kernel::stage(slot, operation.recv.as_src().range(&clipped));
                levels.sequencer.publish(&[])?;
            }
            None => levels.sequencer.publish_unnotified()?,
        }
        for rail in (0..rails).filter(|&rail| Some(rail) != own_rail) {
            let clipped = clip_to_slice(&owned_slice(bytes, rails, rail), &part);
            levels.sequencer.await_rank(rail)?;
            let from = levels.sequencer.slot(rail).slice(0, clipped.len());
            kernel::copy(operation.recv.range(&clipped), from);
        }
    }
    Ok(())
}
