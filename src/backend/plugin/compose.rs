//! The composition of operations that a plug-in does not have from operations that it has. For
//! example, a reduce can be composed from an all_reduce. The result is the same.
//! [`super::composition_table`] selects the method for each operation, and this file runs the
//! methods.
//!
//! The sub-operations are submitted to the plug-in one after another. They have the sequence number
//! of the original operation, and each has its own part number. The messages of
//! [`CompositionMethod::Messages`] are an exception: they are submitted together, with a tag that
//! no caller can use. The scratch memory of a composed operation exists only during the call.

use super::composition_table::CompositionMethod;
use super::task::{PluginMessageStatus, PluginRequest, PluginTask, SubmitOutcome, TaskKind};
use crate::backend::{LARGEST_TAG, OpKind};
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::op::ReduceOp;
use crate::kernel;

/// The tag of the messages that compose an operation.
const COMPOSED_TAG: u32 = LARGEST_TAG + 4;

/// The interface through which the methods of this file run sub-operations. The group of the
/// plug-in implements it.
pub(super) trait SuboperationRunner {
    /// Returns this rank.
    fn rank(&self) -> Rank;

    /// Returns the number of ranks.
    fn size(&self) -> usize;

    /// Submits a sub-operation to the plug-in.
    fn submit(&self, task: &PluginTask<'_>) -> Result<SubmitOutcome>;

    /// Waits until a sub-operation is complete.
    fn finish(&self, request: PluginRequest, task: &PluginTask<'_>) -> Result<PluginMessageStatus>;

    /// Cancels a sub-operation that is not complete.
    fn cancel(&self, request: PluginRequest);
}

/// Runs the operation `whole` by this method.
pub(super) fn run_composed(
    method: CompositionMethod,
    runner: &dyn SuboperationRunner,
    whole: &PluginTask<'_>,
) -> Result<()> {
    let TaskKind::Collective(kind) = whole.kind else {
        return Err(Error::internal("a message cannot be composed of other operations"));
    };
    match method {
        CompositionMethod::AllReduce => compose_from_all_reduce(runner, whole, kind),
        CompositionMethod::ReduceAndBroadcast => compose_from_reduce_and_broadcast(runner, whole),
        CompositionMethod::Broadcasts if kind == OpKind::Scatter => {
            compose_from_one_broadcast(runner, whole)
        }
        CompositionMethod::Broadcasts => compose_from_broadcasts(runner, whole),
        CompositionMethod::AllGather if kind.is_prefix() => {
            compose_from_gathered_vectors(runner, whole, kind)
        }
        CompositionMethod::AllGather => compose_from_all_gather(runner, whole, kind),
        CompositionMethod::Messages => compose_from_messages(runner, whole, kind),
        CompositionMethod::Direct | CompositionMethod::Unavailable => {
            let message = format!("{} cannot be composed of other operations", kind.name());
            Err(Error::new(ErrorKind::Unsupported, message))
        }
    }
}

/// Allocates scratch memory.
fn allocate_scratch(bytes: usize) -> Result<Vec<u8>> {
    let mut buffer = Vec::new();
    if buffer.try_reserve_exact(bytes).is_err() {
        let message = format!(
            "no memory for {bytes} bytes of scratch space, which a composed operation needs"
        );
        return Err(Error::new(ErrorKind::OutOfMemory, message));
    }
    buffer.resize(bytes, 0);
    Ok(buffer)
}

fn run_one(runner: &dyn SuboperationRunner, task: &PluginTask<'_>) -> Result<()> {
    match runner.submit(task)? {
        SubmitOutcome::Pending(request) => runner.finish(request, task).map(drop),
        SubmitOutcome::Done(_) => Ok(()),
    }
}

fn element_bytes(whole: &PluginTask<'_>) -> usize {
    whole.dtype.map_or(1, DataType::size)
}

/// Returns a copy of the original operation with a different kind, without its blocks and its root.
fn as_kind<'a>(whole: &PluginTask<'a>, kind: OpKind) -> PluginTask<'a> {
    PluginTask { kind: TaskKind::Collective(kind), root: None, sends: None, recvs: None, ..*whole }
}

fn compose_from_all_reduce(
    runner: &dyn SuboperationRunner,
    whole: &PluginTask<'_>,
    kind: OpKind,
) -> Result<()> {
    let (base, rank) = (as_kind(whole, OpKind::AllReduce), runner.rank());
    if kind == OpKind::Barrier {
        let (own_byte, mut all) = ([1], [0]);
        let (send, recv) = (Src::from(&own_byte[..]), Dst::from(&mut all[..]));
        let (dtype, op) = (Some(DataType::U8), Some(ReduceOp::Max));
        return run_one(runner, &PluginTask { dtype, op, count: 1, send, recv, ..base });
    }
    if kind == OpKind::Reduce {
        if whole.root == Some(rank) {
            return run_one(runner, &base);
        }
        let mut unwanted = allocate_scratch(whole.send.len())?;
        return run_one(runner, &PluginTask { recv: Dst::from(&mut unwanted[..]), ..base });
    }
    // The all_reduce needs one vector. If there is one block per rank, the blocks are joined to one
    // vector.
    let mut joined = Vec::new();
    let (send, own) = match whole.sends {
        None => (whole.send, rank * whole.recv.len()),
        Some(blocks) => {
            joined = allocate_scratch(blocks.iter().map(|block| block.len()).sum())?;
            let (all, mut from) = (Dst::from(&mut joined[..]), 0);
            for block in blocks {
                kernel::copy(all.slice(from, block.len()), *block);
                from += block.len();
            }
            let before = blocks[..rank].iter().map(|block| block.len()).sum();
            (all.as_src(), before)
        }
    };
    let mut sum = allocate_scratch(send.len())?;
    let recv = Dst::from(&mut sum[..]);
    run_one(runner, &PluginTask { count: send.len() / element_bytes(whole), send, recv, ..base })?;
    kernel::copy(whole.recv, recv.as_src().slice(own, whole.recv.len()));
    drop(joined);
    Ok(())
}

fn compose_from_reduce_and_broadcast(
    runner: &dyn SuboperationRunner,
    whole: &PluginTask<'_>,
) -> Result<()> {
    let (is_root, root) = (runner.rank() == 0, Some(0));
    let recv = if is_root { whole.recv } else { Dst::empty() };
    run_one(runner, &PluginTask { root, recv, ..as_kind(whole, OpKind::Reduce) })?;
    let (send, recv) = match is_root {
        true => (whole.recv.as_src(), Dst::empty()),
        false => (Src::empty(), whole.recv),
    };
    let base = as_kind(whole, OpKind::Broadcast);
    run_one(runner, &PluginTask { root, send, recv, op: None, part: whole.part + 1, ..base })
}

/// Broadcasts the data of each rank to all ranks, one rank after another.
fn compose_from_broadcasts(runner: &dyn SuboperationRunner, whole: &PluginTask<'_>) -> Result<()> {
    let block = whole.count * element_bytes(whole);
    for root in 0..runner.size() {
        let block_dst = match whole.recvs {
            Some(blocks) => blocks[root],
            None => whole.recv.slice(root * block, block),
        };
        let (send, recv) = match root == runner.rank() {
            true => (whole.send, Dst::empty()),
            false => (Src::empty(), block_dst),
        };
        let count = block_dst.len() / element_bytes(whole);
        let part = whole.part + root as u64;
        let base = as_kind(whole, OpKind::Broadcast);
        // All ranks know the count, so all of them skip an empty block.
        if count > 0 {
            run_one(runner, &PluginTask { root: Some(root), count, send, recv, part, ..base })?;
        }
        if root == runner.rank() {
            kernel::copy(block_dst, whole.send);
        }
    }
    Ok(())
}

/// Composes a scatter: broadcasts all blocks of the root to all ranks, and each rank keeps its own
/// block.
fn compose_from_one_broadcast(
    runner: &dyn SuboperationRunner,
    whole: &PluginTask<'_>,
) -> Result<()> {
    let (rank, size, block) = (runner.rank(), runner.size(), whole.recv.len());
    let base = as_kind(whole, OpKind::Broadcast);
    let (root, count) = (whole.root, whole.count * size);
    if root == Some(rank) {
        run_one(runner, &PluginTask { root, count, recv: Dst::empty(), ..base })?;
        kernel::copy(whole.recv, whole.send.slice(rank * block, block));
        return Ok(());
    }
    let mut all = allocate_scratch(block * size)?;
    let recv = Dst::from(&mut all[..]);
    run_one(runner, &PluginTask { root, count, send: Src::empty(), recv, ..base })?;
    kernel::copy(whole.recv, recv.as_src().slice(rank * block, block));
    Ok(())
}

fn compose_from_all_gather(
    runner: &dyn SuboperationRunner,
    whole: &PluginTask<'_>,
    kind: OpKind,
) -> Result<()> {
    let base = as_kind(whole, OpKind::AllGather);
    if kind == OpKind::Barrier {
        let (own_byte, mut all) = ([1], allocate_scratch(runner.size())?);
        let (send, recv) = (Src::from(&own_byte[..]), Dst::from(&mut all[..]));
        return run_one(
            runner,
            &PluginTask { dtype: Some(DataType::U8), count: 1, send, recv, ..base },
        );
    }
    if whole.root == Some(runner.rank()) {
        return run_one(runner, &base);
    }
    let mut unwanted = allocate_scratch(whole.send.len() * runner.size())?;
    run_one(runner, &PluginTask { recv: Dst::from(&mut unwanted[..]), ..base })
}

/// The maximum number of bytes that a rank gathers at a time in [`compose_from_gathered_vectors`].
/// The actual number may be larger if one element of every rank does not fit.
const MAX_GATHERED_BYTES: usize = 4 << 20;

/// Composes a scan or exscan: gathers the vectors of all ranks, one chunk at a time. Each rank then
/// reduces, in rank order, the vectors of the ranks that its result covers.
fn compose_from_gathered_vectors(
    runner: &dyn SuboperationRunner,
    whole: &PluginTask<'_>,
    kind: OpKind,
) -> Result<()> {
    let (size, element) = (runner.size(), element_bytes(whole));
    let vectors = kind.prefix_len(runner.rank());
    let (Some(dtype), Some(op)) = (whole.dtype, whole.op) else {
        return Err(Error::internal("the reduction has no operator"));
    };
    let chunk_elements = (MAX_GATHERED_BYTES / size / element).max(1).min(whole.count);
    let mut all = allocate_scratch(chunk_elements * element * size)?;
    let mut scaled =
        allocate_scratch(if op == ReduceOp::PremulSum { chunk_elements * element } else { 0 })?;
    // An empty vector has one empty chunk, so that a mismatch with a rank whose vector is not empty
    // is detected.
    for (index, start) in (0..whole.count.max(1)).step_by(chunk_elements.max(1)).enumerate() {
        let count = chunk_elements.min(whole.count - start);
        let (from, len) = (start * element, count * element);
        let mut send = whole.send.slice(from, len);
        if op == ReduceOp::PremulSum {
            let scaled_dst = Dst::from(&mut scaled[..len]);
            kernel::scale_copy(dtype, whole.factor, scaled_dst, send);
            send = scaled_dst.as_src();
        }
        let recv = Dst::from(&mut all[..len * size]);
        let part = whole.part + index as u64;
        let base = as_kind(whole, OpKind::AllGather);
        run_one(runner, &PluginTask { op: None, count, send, recv, part, ..base })?;
        if vectors > 0 && len > 0 {
            let vector = |rank: usize| recv.as_src().slice(rank * len, len);
            let gathered: Vec<Src<'_>> = (0..vectors).map(vector).collect();
            kernel::fold(dtype, op, whole.recv.slice(from, len), &gathered);
        }
    }
    Ok(())
}

/// Returns the block that rank `me` sends to rank `other`, and the buffer for the block that `me`
/// receives from `other`. An element of the result is `None` if the operation has no such block.
fn blocks_for_peer<'a>(
    whole: &PluginTask<'a>,
    kind: OpKind,
    me: Rank,
    other: Rank,
) -> (Option<Src<'a>>, Option<Dst<'a>>) {
    let block = whole.count * element_bytes(whole);
    let cut_src = |all: Src<'a>| all.slice(other * block, block);
    let cut_dst = |all: Dst<'a>| all.slice(other * block, block);
    let (is_root, with_root) = (whole.root == Some(me), whole.root == Some(other));
    let (sends, recvs) = (whole.sends.map(|all| all[other]), whole.recvs.map(|all| all[other]));
    match kind {
        OpKind::Broadcast => (is_root.then_some(whole.send), with_root.then_some(whole.recv)),
        OpKind::Gather => (with_root.then_some(whole.send), is_root.then(|| cut_dst(whole.recv))),
        OpKind::GatherV => (with_root.then_some(whole.send), recvs.filter(|_| is_root)),
        OpKind::Scatter => (is_root.then(|| cut_src(whole.send)), with_root.then_some(whole.recv)),
        OpKind::ScatterV => (sends.filter(|_| is_root), with_root.then_some(whole.recv)),
        OpKind::AllToAllV => (sends, recvs),
        _ => (Some(cut_src(whole.send)), Some(cut_dst(whole.recv))),
    }
}

/// Composes an operation from messages between pairs of ranks, which are submitted together. An
/// empty block is also sent as a message. Otherwise, if the receiver expected a block that is not
/// empty, it would not detect the mismatch and would receive the message of the next operation.
fn compose_from_messages(
    runner: &dyn SuboperationRunner,
    whole: &PluginTask<'_>,
    kind: OpKind,
) -> Result<()> {
    let me = runner.rank();
    let mut tasks: Vec<PluginTask<'_>> = Vec::new();
    for other in (0..runner.size()).filter(|&other| other != me) {
        let (send, recv) = blocks_for_peer(whole, kind, me, other);
        let base = |what| PluginTask::message_part(what, whole, other, COMPOSED_TAG);
        tasks.extend(recv.map(|recv| PluginTask {
            recv,
            count: recv.len(),
            ..base(TaskKind::Receive)
        }));
        tasks.extend(send.map(|send| PluginTask {
            send,
            count: send.len(),
            ..base(TaskKind::Send)
        }));
    }
    // The receives are submitted first, so that each message finds a posted receive.
    tasks.sort_by_key(|task| task.kind == TaskKind::Send);
    let mut pending = Vec::with_capacity(tasks.len());
    let outcome = tasks.iter().try_for_each(|task| match runner.submit(task)? {
        SubmitOutcome::Done(received) => check_message_length(task, received),
        SubmitOutcome::Pending(request) => {
            pending.push((request, task));
            Ok(())
        }
    });
    let mut pending = pending.into_iter();
    let outcome = outcome.and_then(|()| {
        let mut end = |(request, task)| check_message_length(task, runner.finish(request, task)?);
        pending.by_ref().try_for_each(&mut end)
    });
    pending.for_each(|(request, _)| runner.cancel(request));
    outcome?;
    if let (Some(send), Some(recv)) = blocks_for_peer(whole, kind, me, me)
        && !recv.is_empty()
    {
        kernel::copy(recv, send);
    }
    Ok(())
}

/// Checks that a received message has the length that this rank expects.
fn check_message_length(task: &PluginTask<'_>, received: PluginMessageStatus) -> Result<()> {
    let (Some(bytes), TaskKind::Receive, Some(peer)) = (received.bytes, task.kind, task.peer)
    else {
        return Ok(());
    };
    if bytes == task.recv.len() as u64 {
        return Ok(());
    }
    let message =
        format!("rank {peer} sends {bytes} bytes, and this rank expects {}", task.recv.len());
    Err(Error::new(ErrorKind::Mismatch, message).with_culprit(peer))
}
