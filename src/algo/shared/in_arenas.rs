//! The algorithms on arenas (memory of `dist_mem_alloc` that all ranks of the host map): each rank
//! reads the data that it needs directly from the arenas of its peers. If the buffers of all ranks
//! are in arenas, these algorithms replace every other shared-memory algorithm of several steps.
//! [`super::arena_access`] contains the protocol.

use super::arena_state::PeerAccess;
use super::sequencer::ShmSequencer;
use crate::algo::Operation;
use crate::algo::fold::{Fold, is_contribution_unscaled};
use crate::algo::pattern::slices::{chunks, owned_slice};
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// The number of bytes that a rank folds between two checks for a failure, if it writes to the
/// memory of its peers.
const CHUNK: usize = 16 << 10;
/// The number of bytes that a rank folds between two checks for a failure, if it only reads the
/// memory of its peers.
const READ_ONLY_CHUNK: usize = 1 << 20;

/// Runs an operation on the arenas if possible ([`ShmSequencer::run_in_arenas`]), otherwise by
/// `run`. An operation with the operator `PREMUL_SUM` always runs by `run`, because the vectors
/// must be multiplied by their factors before they are folded.
///
/// # Errors
/// As [`ShmSequencer::run_in_arenas`], and the errors of `run`.
pub fn run_in_arenas_or(
    steps: &mut ShmSequencer<'_>,
    operation: &Operation<'_>,
    run: fn(&mut ShmSequencer<'_>, &Operation<'_>) -> Result<()>,
) -> Result<()> {
    let kind = operation.descriptor.kind;
    let (access, in_arenas): (_, fn(&ShmSequencer<'_>, &Operation<'_>) -> Result<()>) = match kind {
        OpKind::AllGather => (PeerAccess::ReadsSendBuffers, copy_blocks),
        OpKind::AllToAll => (PeerAccess::ReadsSendBuffers, copy_blocks_for_self),
        OpKind::AllReduce if is_contribution_unscaled(operation)? => {
            (PeerAccess::WritesRecvBuffers, fold_slice)
        }
        OpKind::ReduceScatter if is_contribution_unscaled(operation)? => {
            (PeerAccess::ReadsSendBuffers, fold_block)
        }
        _ => return run(steps, operation),
    };
    match steps.run_in_arenas(operation, access, |steps| in_arenas(steps, operation))? {
        true => Ok(()),
        false => run(steps, operation),
    }
}

/// All-gather: copies each block once.
fn copy_blocks(steps: &ShmSequencer<'_>, operation: &Operation<'_>) -> Result<()> {
    kernel::copy(operation.recv_block(steps.rank()), operation.send);
    for rank in steps.others() {
        steps.check_failure()?;
        let recv_block = operation.recv_block(rank);
        kernel::copy(recv_block, steps.peer_send_part(rank, 0, recv_block.len())?);
    }
    Ok(())
}

/// All-to-all: copies the peers' blocks for this rank. All blocks have the same length.
fn copy_blocks_for_self(steps: &ShmSequencer<'_>, operation: &Operation<'_>) -> Result<()> {
    let me = steps.rank();
    kernel::copy(operation.recv_block(me), operation.send_block(me));
    for rank in steps.others() {
        steps.check_failure()?;
        let recv_block = operation.recv_block(rank);
        let offset = me * recv_block.len();
        kernel::copy(recv_block, steps.peer_send_part(rank, offset, recv_block.len())?);
    }
    Ok(())
}

/// All-reduce: folds this rank's slice of all vectors, and stores the folded slice in the receive
/// buffers of all ranks. This takes two hops and no extra copy. Only this rank reads and writes
/// this slice of any vector, so an in-place call overwrites no input that another rank still reads.
fn fold_slice(steps: &ShmSequencer<'_>, operation: &Operation<'_>) -> Result<()> {
    let (bytes, me, size) = (operation.bytes(), steps.rank(), steps.size());
    let (own_slice, fold) = (owned_slice(bytes, size, me), Fold::of(operation)?);
    let (start, len) = (own_slice.start, own_slice.len());
    let own = (operation.send.slice(start, len), operation.recv.slice(start, len));
    let slices = |rank| match rank == me {
        true => Ok(own),
        false => {
            Ok((steps.peer_send_part(rank, start, len)?, steps.peer_recv_part(rank, start, len)?))
        }
    };
    let slices = (0..size).map(slices).collect::<Result<Vec<_>>>()?;
    let mut extra_dsts = Vec::with_capacity(size);
    for chunk in chunks(len, CHUNK) {
        steps.check_failure()?;
        let result = |rank: usize| slices[rank].1.range(&chunk);
        extra_dsts.clear();
        extra_dsts.extend(steps.others().map(result));
        let vector = |rank: usize| slices[rank].0.range(&chunk);
        fold.fold_to_all(result(me), &extra_dsts, size, vector);
    }
    Ok(())
}

/// Reduce-scatter: folds this rank's block of all vectors. In an in-place call, the result
/// overwrites this rank's block of its own vector, which no other rank reads.
fn fold_block(steps: &ShmSequencer<'_>, operation: &Operation<'_>) -> Result<()> {
    let (len, me, size) = (operation.recv.len(), steps.rank(), steps.size());
    let start = me * len;
    let block = |rank| match rank == me {
        true => Ok(operation.send.slice(start, len)),
        false => steps.peer_send_part(rank, start, len),
    };
    let blocks = (0..size).map(block).collect::<Result<Vec<_>>>()?;
    for chunk in chunks(len, READ_ONLY_CHUNK) {
        steps.check_failure()?;
        let part = |rank: usize| blocks[rank].range(&chunk);
        Fold::of(operation)?.fold_in_order(operation.recv.range(&chunk), size, part);
    }
    Ok(())
}
