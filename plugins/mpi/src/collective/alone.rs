//! Collectives of a group of one rank: the result is a copy of the input. MPI is not called,
//! because it would add a copy.

use super::{copy, dst_view, src_view};
use crate::base::op::ReduceOp;
use crate::failure::Result;
use crate::interface::{
    DIST_KIND_BARRIER, DIST_KIND_BROADCAST, DIST_KIND_EXSCAN, dist_backend_operation_t,
};
use crate::kernel;
use crate::types;

/// Returns the only entry of a list; `None` for a null list.
fn first(list: *const usize) -> Option<usize> {
    // SAFETY: the list has one entry per rank, and the group has one rank; valid during submit.
    (!list.is_null()).then(|| unsafe { *list })
}

/// Runs a call.
pub(crate) fn run(operation: &dist_backend_operation_t) -> Result<()> {
    if matches!(operation.kind, DIST_KIND_BARRIER | DIST_KIND_BROADCAST | DIST_KIND_EXSCAN) {
        return Ok(());
    }
    let dtype = types::dtype(operation.dtype)?;
    let counts = [first(operation.send_counts), first(operation.recv_counts)];
    let elements = counts.into_iter().flatten().next().unwrap_or(operation.count);
    let bytes = elements * dtype.size();
    if bytes == 0 {
        return Ok(());
    }
    // The lowest address of a single block is its start.
    let (send, recv) = (operation.send.cast::<u8>(), operation.recv.cast::<u8>());
    if operation.op < 0 {
        copy(send, recv, bytes);
        return Ok(());
    }
    let (dst, op) = (dst_view(recv, bytes), types::op(operation.op)?);
    if op == ReduceOp::PremulSum {
        kernel::scale_copy(dtype, operation.factor, dst, src_view(send, bytes));
        kernel::fold(dtype, ReduceOp::Sum, dst, &[dst.as_src()]);
    } else {
        kernel::fold(dtype, op, dst, &[src_view(send, bytes)]);
    }
    Ok(())
}
