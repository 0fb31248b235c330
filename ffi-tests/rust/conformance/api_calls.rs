//! Converts the blocks of a call of the matrix into a call of the library's Rust interface.
#![allow(unsafe_code, reason = "views of memory that the test holds are joined")]

use crate::matrix::CallScene;
use dist::api::Call;
use dist::base::buffer::{Dst, Src};
use dist::base::op::ReduceOp;
use dist::transport::OpKind;

/// Returns contiguous blocks as one buffer.
fn joined_src<'a>(blocks: &[Src<'a>]) -> Src<'a> {
    let Some(first) = blocks.first() else { return Src::empty() };
    let len = blocks.iter().map(|block| block.len()).sum();
    // SAFETY: the blocks are contiguous in one allocation, which lives as long as each block.
    unsafe { Src::new(first.as_ptr(), len) }
}

fn joined_dst<'a>(blocks: &[Dst<'a>]) -> Dst<'a> {
    let Some(first) = blocks.first() else { return Dst::empty() };
    let len = blocks.iter().map(|block| block.len()).sum();
    // SAFETY: as above.
    unsafe { Dst::new(first.as_mut_ptr(), len) }
}

/// Returns the call of a rank.
pub(crate) fn call<'a>(
    scene: &CallScene,
    root: usize,
    rank: usize,
    inputs: Vec<Src<'a>>,
    outputs: Vec<Dst<'a>>,
) -> Call<'a> {
    let CallScene { kind, dtype, ranks, .. } = *scene;
    let op = scene.op.unwrap_or(ReduceOp::Sum);
    let is_root = rank == root;
    let (send, recv) = (joined_src(&inputs), joined_dst(&outputs));
    match kind {
        OpKind::AllReduce => Call::all_reduce(send, recv, dtype, op),
        OpKind::Scan => Call::scan(send, recv, dtype, op),
        OpKind::Exscan => Call::exscan(send, recv, dtype, op),
        OpKind::Reduce => Call::reduce(send, recv, dtype, op, root),
        OpKind::Broadcast if is_root => {
            // SAFETY: the root's buffer is the input, which the call only reads.
            let buf = unsafe { Dst::new(send.as_ptr().cast_mut(), send.len()) };
            Call::broadcast(buf, dtype, root, rank)
        }
        OpKind::Broadcast => Call::broadcast(recv, dtype, root, rank),
        OpKind::AllGather => Call::all_gather(send, recv, dtype),
        OpKind::Gather => Call::gather(send, recv, dtype, root),
        OpKind::Scatter => Call::scatter(send, recv, dtype, root),
        OpKind::ReduceScatter => Call::reduce_scatter(send, recv, dtype, op),
        OpKind::AllToAll => Call::all_to_all(send, recv, dtype, ranks),
        OpKind::AllGatherV => Call::all_gather_v(send, outputs, dtype),
        OpKind::GatherV => Call::gather_v(send, is_root.then_some(outputs), dtype, root),
        OpKind::ScatterV => Call::scatter_v(is_root.then_some(inputs), recv, dtype, root),
        OpKind::ReduceScatterV => Call::reduce_scatter_v(inputs, recv, dtype, op),
        OpKind::AllToAllV => Call::all_to_all_v(inputs, outputs, dtype),
        OpKind::Barrier => Call::barrier(),
    }
}
