//! Composes operations that a plug-in lacks from operations that it has, if the result is the same.
//! [`CompositionTable`] selects the method of each operation.
//!
//! The plug-in gets the sub-operations one after another. They have the sequence number of the
//! original operation, and each has its own part number. The messages of
//! [`CompositionMethod::Messages`] are submitted together instead, with a tag that no caller can
//! use. Scratch memory of this rank exists for the length of the call.

use super::super::{LARGEST_TAG, OpKind, SupportQuery};
use super::messages::message_suboperation;
use super::{
    OperationKinds, PluginMessageStatus, PluginRequest, PluginTask, SubmitOutcome, TaskKind,
};
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::op::ReduceOp;
use crate::kernel;

/// The tag of the messages that compose an operation.
const COMPOSED_TAG: u32 = LARGEST_TAG + 4;

/// The method that runs an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompositionMethod {
    /// The plug-in's own operation.
    Direct,
    /// One all_reduce; each rank copies its part of the result.
    AllReduce,
    /// One reduce to rank 0, and one broadcast from rank 0.
    ReduceAndBroadcast,
    /// One broadcast from each rank that has data.
    Broadcasts,
    /// One all_gather; each rank uses its part of the result.
    AllGather,
    /// Messages between each pair of ranks that have data for each other.
    Messages,
    /// No method exists.
    Unavailable,
}

/// The method of each operation.
#[derive(Debug)]
pub(super) struct CompositionTable([CompositionMethod; OpKind::ALL.len()]);

impl CompositionTable {
    /// Selects the first possible method of each operation, given the operations of the plug-in.
    pub(super) fn for_kinds(kinds: OperationKinds) -> Self {
        Self(OpKind::ALL.map(|kind| {
            let possible = candidates(kind).iter().copied();
            possible
                .into_iter()
                .find(|method| method.is_possible(kinds, kind))
                .unwrap_or(CompositionMethod::Unavailable)
        }))
    }

    pub(super) fn method_for(&self, kind: OpKind) -> CompositionMethod {
        self.0[kind as usize]
    }
}

/// Returns the methods that can compose an operation, in the order of preference.
fn candidates(kind: OpKind) -> &'static [CompositionMethod] {
    match kind {
        OpKind::AllReduce => &[CompositionMethod::Direct, CompositionMethod::ReduceAndBroadcast],
        OpKind::Reduce | OpKind::ReduceScatter | OpKind::ReduceScatterV => {
            &[CompositionMethod::Direct, CompositionMethod::AllReduce]
        }
        OpKind::Barrier => {
            &[CompositionMethod::Direct, CompositionMethod::AllReduce, CompositionMethod::AllGather]
        }
        OpKind::AllGather | OpKind::AllGatherV => {
            &[CompositionMethod::Direct, CompositionMethod::Broadcasts]
        }
        OpKind::Gather => {
            &[CompositionMethod::Direct, CompositionMethod::Messages, CompositionMethod::AllGather]
        }
        OpKind::Scatter => {
            &[CompositionMethod::Direct, CompositionMethod::Messages, CompositionMethod::Broadcasts]
        }
        OpKind::Broadcast
        | OpKind::AllToAll
        | OpKind::GatherV
        | OpKind::ScatterV
        | OpKind::AllToAllV => &[CompositionMethod::Direct, CompositionMethod::Messages],
        OpKind::Scan | OpKind::Exscan => &[CompositionMethod::Direct, CompositionMethod::AllGather],
    }
}

/// Runs sub-operations: the plug-in, with the group's failure state and deadlines.
pub(super) trait SuboperationRunner {
    /// Returns this rank.
    fn rank(&self) -> Rank;

    /// Returns the number of ranks.
    fn size(&self) -> usize;

    /// Submits a sub-operation to the plug-in.
    fn submit(&self, task: &PluginTask<'_>) -> Result<SubmitOutcome>;

    /// Waits until a sub-operation is complete.
    fn finish(&self, request: PluginRequest, task: &PluginTask<'_>) -> Result<PluginMessageStatus>;

    /// Cancels a sub-operation.
    fn cancel(&self, request: PluginRequest);
}

impl CompositionMethod {
    fn is_possible(self, kinds: OperationKinds, kind: OpKind) -> bool {
        match self {
            Self::Direct => kinds.has(kind),
            Self::AllReduce => kinds.has(OpKind::AllReduce),
            Self::ReduceAndBroadcast => kinds.has(OpKind::Reduce) && kinds.has(OpKind::Broadcast),
            Self::Broadcasts => kinds.has(OpKind::Broadcast),
            Self::AllGather => kinds.has(OpKind::AllGather),
            Self::Messages => kinds.has_messages(),
            Self::Unavailable => true,
        }
    }

    /// Returns the text for `dist_group_describe`.
    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::Direct => "own",
            Self::AllReduce => "made of all_reduce",
            Self::ReduceAndBroadcast => "made of reduce and broadcast",
            Self::Broadcasts => "made of broadcast",
            Self::AllGather => "made of all_gather",
            Self::Messages => "made of send and recv",
            Self::Unavailable => "none",
        }
    }

    /// Returns the queries that the plug-in must support so that this method can run the original
    /// operation.
    pub(super) fn queries(self, whole: &SupportQuery) -> Vec<SupportQuery> {
        let bytes = Some(DataType::U8);
        let of = |kind: OpKind, dtype, op| SupportQuery {
            name: kind.name(),
            kind: Some(kind),
            dtype,
            op,
            gpu: None,
        };
        match self {
            Self::Direct | Self::Unavailable => vec![*whole],
            Self::AllReduce if whole.op.is_none() => {
                vec![of(OpKind::AllReduce, bytes, Some(ReduceOp::Max))]
            }
            Self::AllReduce => vec![of(OpKind::AllReduce, whole.dtype, whole.op)],
            Self::ReduceAndBroadcast => vec![
                of(OpKind::Reduce, whole.dtype, whole.op),
                of(OpKind::Broadcast, whole.dtype, None),
            ],
            Self::Broadcasts => vec![of(OpKind::Broadcast, whole.dtype, None)],
            Self::AllGather => vec![of(OpKind::AllGather, whole.dtype.or(bytes), None)],
            Self::Messages => ["send", "recv"]
                .map(|name| SupportQuery { name, kind: None, dtype: bytes, op: None, gpu: None })
                .into(),
        }
    }

    /// Runs an operation with this method.
    pub(super) fn run(self, runner: &dyn SuboperationRunner, whole: &PluginTask<'_>) -> Result<()> {
        let TaskKind::Collective(kind) = whole.kind else {
            return Err(Error::internal("a message cannot be composed of other operations"));
        };
        match self {
            Self::AllReduce => compose_from_all_reduce(runner, whole, kind),
            Self::ReduceAndBroadcast => compose_from_reduce_and_broadcast(runner, whole),
            Self::Broadcasts if kind == OpKind::Scatter => {
                compose_from_one_broadcast(runner, whole)
            }
            Self::Broadcasts => compose_from_broadcasts(runner, whole),
            Self::AllGather if kind.is_prefix() => {
                compose_from_gathered_vectors(runner, whole, kind)
            }
            Self::AllGather => compose_from_all_gather(runner, whole, kind),
            Self::Messages => compose_from_messages(runner, whole, kind),
            Self::Direct | Self::Unavailable => {
                let message = format!("{} cannot be composed of other operations", kind.name());
                Err(Error::new(ErrorKind::Unsupported, message))
            }
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

/// Returns the original operation as another kind, without its blocks and its root.
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
    // With one block per rank, the blocks together are one vector.
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

/// Broadcasts the root's data for all ranks; each rank keeps its block.
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

/// The maximum of bytes that a rank gathers at a time in [`compose_from_gathered_vectors`]. One
/// element per rank may exceed it.
const MAX_GATHERED_BYTES: usize = 4 << 20;

/// Gathers the vectors of all ranks, one chunk at a time. Each rank reduces, in rank order, the
/// vectors that its result covers.
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
    // An empty vector has one empty chunk, so that ranks with different counts detect the mismatch.
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

/// Returns the block that rank `me` sends to rank `other`, and the block that it receives from
/// `other`; `None` if the operation has no such block.
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

/// Submits all messages together. It also sends empty messages: ranks with different lengths detect
/// the mismatch, and no message remains for the next operation.
fn compose_from_messages(
    runner: &dyn SuboperationRunner,
    whole: &PluginTask<'_>,
    kind: OpKind,
) -> Result<()> {
    let me = runner.rank();
    let mut tasks: Vec<PluginTask<'_>> = Vec::new();
    for other in (0..runner.size()).filter(|&other| other != me) {
        let (send, recv) = blocks_for_peer(whole, kind, me, other);
        let base = |what| message_suboperation(what, whole, (other, COMPOSED_TAG));
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
    // Receives first, so that each message finds a posted receive.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn table_for(kinds: &[OpKind], messages: bool) -> CompositionTable {
        let bits =
            kinds.iter().fold(u64::from(messages) << 32, |bits, &kind| bits | 1 << kind as u32);
        CompositionTable::for_kinds(OperationKinds::from_bits(bits).unwrap())
    }

    #[test]
    fn plugin_operations_are_never_composed() {
        let all = CompositionTable::for_kinds(OperationKinds::from_bits(0).unwrap());
        assert!(OpKind::ALL.iter().all(|&kind| all.method_for(kind) == CompositionMethod::Direct));
        assert!(
            OperationKinds::from_bits(1 << OpKind::ALL.len()).is_err()
                && OperationKinds::from_bits(1 << 33).is_err()
        );
    }

    #[test]
    fn composition_uses_only_available_operations() {
        let messages = table_for(&[], true);
        for kind in OpKind::ALL {
            let expected = match kind {
                OpKind::Broadcast
                | OpKind::Gather
                | OpKind::Scatter
                | OpKind::AllToAll
                | OpKind::GatherV
                | OpKind::ScatterV
                | OpKind::AllToAllV => CompositionMethod::Messages,
                _ => CompositionMethod::Unavailable,
            };
            assert_eq!(messages.method_for(kind), expected, "{}", kind.name());
        }
        let reduces = table_for(&[OpKind::AllReduce], false);
        for kind in [OpKind::Reduce, OpKind::ReduceScatter, OpKind::ReduceScatterV, OpKind::Barrier]
        {
            assert_eq!(reduces.method_for(kind), CompositionMethod::AllReduce);
        }
        assert_eq!(reduces.method_for(OpKind::AllGather), CompositionMethod::Unavailable);
        let pair = table_for(&[OpKind::Reduce, OpKind::Broadcast], false);
        assert_eq!(pair.method_for(OpKind::AllReduce), CompositionMethod::ReduceAndBroadcast);
        assert_eq!(pair.method_for(OpKind::Scatter), CompositionMethod::Broadcasts);
        // Sub-operations must be the plug-in's own: no operation is composed of composed
        // operations.
        assert_eq!(pair.method_for(OpKind::Reduce), CompositionMethod::Direct);
        assert_eq!(pair.method_for(OpKind::ReduceScatter), CompositionMethod::Unavailable);
    }

    #[test]
    fn composed_queries_match_the_suboperations() {
        let whole = SupportQuery {
            name: "reduce",
            kind: Some(OpKind::Reduce),
            dtype: Some(DataType::F32),
            op: Some(ReduceOp::Sum),
            gpu: None,
        };
        let queries = CompositionMethod::AllReduce.queries(&whole);
        assert_eq!(queries.len(), 1);
        assert_eq!(queries[0].to_string(), "all_reduce (f32, SUM)");
        let barrier = SupportQuery {
            name: "barrier",
            kind: Some(OpKind::Barrier),
            dtype: None,
            op: None,
            gpu: None,
        };
        assert_eq!(
            CompositionMethod::AllReduce.queries(&barrier)[0].to_string(),
            "all_reduce (u8, MAX)"
        );
        assert_eq!(
            CompositionMethod::AllGather.queries(&barrier)[0].to_string(),
            "all_gather (u8)"
        );
    }
}
