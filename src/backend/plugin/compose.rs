//! Operations that a plug-in lacks, made of those that it has, where that gives the same result:
//! one table of ways, and what each does.
//!
//! The parts go to the plug-in one after another under the number of the whole, each with its own
//! part number, except messages, which go at once and under a tag that no caller can use. What is
//! needed in between is memory of this rank's own, for the length of the call.

use super::super::{LARGEST_TAG, OpKind, Query};
use super::messages::part;
use super::{Kinds, Received, Request, Submitted, Task, What};
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::op::ReduceOp;
use crate::kernel;

/// The tag of the messages that operations are made of.
const TAG: u32 = LARGEST_TAG + 4;

/// What an operation is carried out by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The plug-in's own.
    Own,
    /// One all_reduce, of which each takes what it is to have.
    AllReduce,
    /// One reduce to rank 0, and one broadcast from there.
    ReduceAndBroadcast,
    /// One broadcast from each rank that has something.
    Broadcasts,
    /// One all_gather, of which each takes what it is to have.
    AllGather,
    /// Messages between every two ranks that have something for each other.
    Messages,
    /// There is none.
    None,
}

/// The way of each operation.
#[derive(Debug)]
pub(super) struct Ways([Way; OpKind::ALL.len()]);

impl Ways {
    /// The best there are with what a plug-in has.
    pub(super) fn of(kinds: Kinds) -> Self {
        Self(OpKind::ALL.map(|kind| {
            let possible = candidates(kind).iter().copied();
            possible.into_iter().find(|way| way.is_possible(kinds, kind)).unwrap_or(Way::None)
        }))
    }

    pub(super) fn of_kind(&self, kind: OpKind) -> Way {
        self.0[kind as usize]
    }
}

/// In the order of preference.
fn candidates(kind: OpKind) -> &'static [Way] {
    match kind {
        OpKind::AllReduce => &[Way::Own, Way::ReduceAndBroadcast],
        OpKind::Reduce | OpKind::ReduceScatter | OpKind::ReduceScatterV => {
            &[Way::Own, Way::AllReduce]
        }
        OpKind::Barrier => &[Way::Own, Way::AllReduce, Way::AllGather],
        OpKind::AllGather | OpKind::AllGatherV => &[Way::Own, Way::Broadcasts],
        OpKind::Gather => &[Way::Own, Way::Messages, Way::AllGather],
        OpKind::Scatter => &[Way::Own, Way::Messages, Way::Broadcasts],
        OpKind::Broadcast
        | OpKind::AllToAll
        | OpKind::GatherV
        | OpKind::ScatterV
        | OpKind::AllToAllV => &[Way::Own, Way::Messages],
        OpKind::Scan | OpKind::Exscan => &[Way::Own, Way::AllGather],
    }
}

/// What makes up the parts: the plug-in, with the group's failure and deadlines.
pub(super) trait Parts {
    /// This rank.
    fn rank(&self) -> Rank;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// Begins one.
    fn submit(&self, task: &Task<'_>) -> Result<Submitted>;

    /// Waits for its end.
    fn finish(&self, request: Request, task: &Task<'_>) -> Result<Received>;

    /// Takes it back.
    fn cancel(&self, request: Request);
}

impl Way {
    fn is_possible(self, kinds: Kinds, kind: OpKind) -> bool {
        match self {
            Self::Own => kinds.has(kind),
            Self::AllReduce => kinds.has(OpKind::AllReduce),
            Self::ReduceAndBroadcast => kinds.has(OpKind::Reduce) && kinds.has(OpKind::Broadcast),
            Self::Broadcasts => kinds.has(OpKind::Broadcast),
            Self::AllGather => kinds.has(OpKind::AllGather),
            Self::Messages => kinds.has_messages(),
            Self::None => true,
        }
    }

    /// For `dist_group_describe`.
    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::AllReduce => "made of all_reduce",
            Self::ReduceAndBroadcast => "made of reduce and broadcast",
            Self::Broadcasts => "made of broadcast",
            Self::AllGather => "made of all_gather",
            Self::Messages => "made of send and recv",
            Self::None => "none",
        }
    }

    /// What the plug-in must do for it, of a call that it makes up.
    pub(super) fn queries(self, whole: &Query) -> Vec<Query> {
        let bytes = Some(DataType::U8);
        let of = |kind: OpKind, dtype, op| Query {
            name: kind.name(),
            kind: Some(kind),
            dtype,
            op,
            gpu: None,
        };
        match self {
            Self::Own | Self::None => vec![*whole],
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
                .map(|name| Query { name, kind: None, dtype: bytes, op: None, gpu: None })
                .into(),
        }
    }

    /// Carries out an operation in this way.
    pub(super) fn run(self, parts: &dyn Parts, whole: &Task<'_>) -> Result<()> {
        let What::Collective(kind) = whole.what else {
            return Err(Error::internal("a message is made of nothing else"));
        };
        match self {
            Self::AllReduce => by_all_reduce(parts, whole, kind),
            Self::ReduceAndBroadcast => by_reduce_and_broadcast(parts, whole),
            Self::Broadcasts if kind == OpKind::Scatter => by_one_broadcast(parts, whole),
            Self::Broadcasts => by_broadcasts(parts, whole),
            Self::AllGather if kind.is_prefix() => by_gathered_vectors(parts, whole, kind),
            Self::AllGather => by_all_gather(parts, whole, kind),
            Self::Messages => by_messages(parts, whole, kind),
            Self::Own | Self::None => {
                let message = format!("{} has no way to be made", kind.name());
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        }
    }
}

/// Memory for what is needed in between.
fn scratch(bytes: usize) -> Result<Vec<u8>> {
    let mut made = Vec::new();
    if made.try_reserve_exact(bytes).is_err() {
        let message = format!(
            "{bytes} bytes for an operation that is made of others: there is not so much memory"
        );
        return Err(Error::new(ErrorKind::OutOfMemory, message));
    }
    made.resize(bytes, 0);
    Ok(made)
}

fn one(parts: &dyn Parts, task: &Task<'_>) -> Result<()> {
    match parts.submit(task)? {
        Submitted::Pending(request) => parts.finish(request, task).map(drop),
        Submitted::Done(_) => Ok(()),
    }
}

fn element(whole: &Task<'_>) -> usize {
    whole.dtype.map_or(1, DataType::size)
}

/// The same call as another operation, without its blocks and its root.
fn as_kind<'a>(whole: &Task<'a>, kind: OpKind) -> Task<'a> {
    Task { what: What::Collective(kind), root: None, sends: None, recvs: None, ..*whole }
}

fn by_all_reduce(parts: &dyn Parts, whole: &Task<'_>, kind: OpKind) -> Result<()> {
    let (base, rank) = (as_kind(whole, OpKind::AllReduce), parts.rank());
    if kind == OpKind::Barrier {
        let (mine, mut all) = ([1], [0]);
        let (send, recv) = (Src::from(&mine[..]), Dst::from(&mut all[..]));
        let (dtype, op) = (Some(DataType::U8), Some(ReduceOp::Max));
        return one(parts, &Task { dtype, op, count: 1, send, recv, ..base });
    }
    if kind == OpKind::Reduce {
        if whole.root == Some(rank) {
            return one(parts, &base);
        }
        let mut unwanted = scratch(whole.send.len())?;
        return one(parts, &Task { recv: Dst::from(&mut unwanted[..]), ..base });
    }
    // A block for each rank: all of them together are one vector.
    let mut joined = Vec::new();
    let (send, own) = match whole.sends {
        None => (whole.send, rank * whole.recv.len()),
        Some(blocks) => {
            joined = scratch(blocks.iter().map(|block| block.len()).sum())?;
            let (all, mut from) = (Dst::from(&mut joined[..]), 0);
            for block in blocks {
                kernel::copy(all.slice(from, block.len()), *block);
                from += block.len();
            }
            let before = blocks[..rank].iter().map(|block| block.len()).sum();
            (all.as_src(), before)
        }
    };
    let mut sum = scratch(send.len())?;
    let recv = Dst::from(&mut sum[..]);
    one(parts, &Task { count: send.len() / element(whole), send, recv, ..base })?;
    kernel::copy(whole.recv, recv.as_src().slice(own, whole.recv.len()));
    drop(joined);
    Ok(())
}

fn by_reduce_and_broadcast(parts: &dyn Parts, whole: &Task<'_>) -> Result<()> {
    let (is_root, root) = (parts.rank() == 0, Some(0));
    let recv = if is_root { whole.recv } else { Dst::empty() };
    one(parts, &Task { root, recv, ..as_kind(whole, OpKind::Reduce) })?;
    let (send, recv) = match is_root {
        true => (whole.recv.as_src(), Dst::empty()),
        false => (Src::empty(), whole.recv),
    };
    let base = as_kind(whole, OpKind::Broadcast);
    one(parts, &Task { root, send, recv, op: None, part: whole.part + 1, ..base })
}

/// What each rank has goes to all, one rank after another.
fn by_broadcasts(parts: &dyn Parts, whole: &Task<'_>) -> Result<()> {
    let block = whole.count * element(whole);
    for root in 0..parts.size() {
        let place = match whole.recvs {
            Some(blocks) => blocks[root],
            None => whole.recv.slice(root * block, block),
        };
        let (send, recv) = match root == parts.rank() {
            true => (whole.send, Dst::empty()),
            false => (Src::empty(), place),
        };
        let count = place.len() / element(whole);
        let part = whole.part + root as u64;
        let base = as_kind(whole, OpKind::Broadcast);
        // All know that there is nothing.
        if count > 0 {
            one(parts, &Task { root: Some(root), count, send, recv, part, ..base })?;
        }
        if root == parts.rank() {
            kernel::copy(place, whole.send);
        }
    }
    Ok(())
}

/// What the root has for all goes to all, and each keeps its part.
fn by_one_broadcast(parts: &dyn Parts, whole: &Task<'_>) -> Result<()> {
    let (rank, size, block) = (parts.rank(), parts.size(), whole.recv.len());
    let base = as_kind(whole, OpKind::Broadcast);
    let (root, count) = (whole.root, whole.count * size);
    if root == Some(rank) {
        one(parts, &Task { root, count, recv: Dst::empty(), ..base })?;
        kernel::copy(whole.recv, whole.send.slice(rank * block, block));
        return Ok(());
    }
    let mut all = scratch(block * size)?;
    let recv = Dst::from(&mut all[..]);
    one(parts, &Task { root, count, send: Src::empty(), recv, ..base })?;
    kernel::copy(whole.recv, recv.as_src().slice(rank * block, block));
    Ok(())
}

fn by_all_gather(parts: &dyn Parts, whole: &Task<'_>, kind: OpKind) -> Result<()> {
    let base = as_kind(whole, OpKind::AllGather);
    if kind == OpKind::Barrier {
        let (mine, mut all) = ([1], scratch(parts.size())?);
        let (send, recv) = (Src::from(&mine[..]), Dst::from(&mut all[..]));
        return one(parts, &Task { dtype: Some(DataType::U8), count: 1, send, recv, ..base });
    }
    if whole.root == Some(parts.rank()) {
        return one(parts, &base);
    }
    let mut unwanted = scratch(whole.send.len() * parts.size())?;
    one(parts, &Task { recv: Dst::from(&mut unwanted[..]), ..base })
}

/// The most that a rank keeps of all vectors together in [`by_gathered_vectors`], unless one
/// element of each is more.
const GATHERED: usize = 4 << 20;

/// Every rank gets all vectors, a chunk at a time, and folds the vectors that its result covers, in
/// rank order.
fn by_gathered_vectors(parts: &dyn Parts, whole: &Task<'_>, kind: OpKind) -> Result<()> {
    let (size, element) = (parts.size(), element(whole));
    let vectors = kind.prefix_len(parts.rank());
    let (Some(dtype), Some(op)) = (whole.dtype, whole.op) else {
        return Err(Error::internal("a reduction without an operator"));
    };
    let at_a_time = (GATHERED / size / element).max(1).min(whole.count);
    let mut all = scratch(at_a_time * element * size)?;
    let mut scaled = scratch(if op == ReduceOp::PremulSum { at_a_time * element } else { 0 })?;
    // An empty vector has one empty chunk: ranks that differ find out.
    for (index, start) in (0..whole.count.max(1)).step_by(at_a_time.max(1)).enumerate() {
        let count = at_a_time.min(whole.count - start);
        let (from, len) = (start * element, count * element);
        let mut send = whole.send.slice(from, len);
        if op == ReduceOp::PremulSum {
            let place = Dst::from(&mut scaled[..len]);
            kernel::scale_copy(dtype, whole.factor, place, send);
            send = place.as_src();
        }
        let recv = Dst::from(&mut all[..len * size]);
        let part = whole.part + index as u64;
        let base = as_kind(whole, OpKind::AllGather);
        one(parts, &Task { op: None, count, send, recv, part, ..base })?;
        if vectors > 0 && len > 0 {
            let vector = |rank: usize| recv.as_src().slice(rank * len, len);
            let gathered: Vec<Src<'_>> = (0..vectors).map(vector).collect();
            kernel::fold(dtype, op, whole.recv.slice(from, len), &gathered);
        }
    }
    Ok(())
}

/// What this rank sends to another, and where what that sends goes; `None` where an operation has
/// nothing of the kind.
fn blocks<'a>(
    whole: &Task<'a>,
    kind: OpKind,
    me: Rank,
    other: Rank,
) -> (Option<Src<'a>>, Option<Dst<'a>>) {
    let block = whole.count * element(whole);
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

/// Everything at once. Messages of no bytes are sent too, so that ranks which differ about lengths
/// find out, and nothing is left for the next operation.
fn by_messages(parts: &dyn Parts, whole: &Task<'_>, kind: OpKind) -> Result<()> {
    let me = parts.rank();
    let mut tasks: Vec<Task<'_>> = Vec::new();
    for other in (0..parts.size()).filter(|&other| other != me) {
        let (send, recv) = blocks(whole, kind, me, other);
        let base = |what| part(what, whole, (other, TAG));
        tasks.extend(recv.map(|recv| Task { recv, count: recv.len(), ..base(What::Receive) }));
        tasks.extend(send.map(|send| Task { send, count: send.len(), ..base(What::Send) }));
    }
    // Receives first, so that nobody's memory is missing.
    tasks.sort_by_key(|task| task.what == What::Send);
    let mut begun = Vec::with_capacity(tasks.len());
    let outcome = tasks.iter().try_for_each(|task| match parts.submit(task)? {
        Submitted::Done(received) => check_length(task, received),
        Submitted::Pending(request) => {
            begun.push((request, task));
            Ok(())
        }
    });
    let mut begun = begun.into_iter();
    let outcome = outcome.and_then(|()| {
        let mut end = |(request, task)| check_length(task, parts.finish(request, task)?);
        begun.by_ref().try_for_each(&mut end)
    });
    begun.for_each(|(request, _)| parts.cancel(request));
    outcome?;
    if let (Some(send), Some(recv)) = blocks(whole, kind, me, me)
        && !recv.is_empty()
    {
        kernel::copy(recv, send);
    }
    Ok(())
}

/// Whether a message was as long as this rank takes it to be.
fn check_length(task: &Task<'_>, received: Received) -> Result<()> {
    let (Some(bytes), What::Receive, Some(peer)) = (received.bytes, task.what, task.peer) else {
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

    fn ways(kinds: &[OpKind], messages: bool) -> Ways {
        let bits =
            kinds.iter().fold(u64::from(messages) << 32, |bits, &kind| bits | 1 << kind as u32);
        Ways::of(Kinds::from_bits(bits).unwrap())
    }

    #[test]
    fn what_a_plugin_has_is_never_composed() {
        let all = Ways::of(Kinds::from_bits(0).unwrap());
        assert!(OpKind::ALL.iter().all(|&kind| all.of_kind(kind) == Way::Own));
        assert!(
            Kinds::from_bits(1 << OpKind::ALL.len()).is_err() && Kinds::from_bits(1 << 33).is_err()
        );
    }

    #[test]
    fn an_operation_is_made_only_of_what_there_is() {
        let messages = ways(&[], true);
        for kind in OpKind::ALL {
            let expected = match kind {
                OpKind::Broadcast
                | OpKind::Gather
                | OpKind::Scatter
                | OpKind::AllToAll
                | OpKind::GatherV
                | OpKind::ScatterV
                | OpKind::AllToAllV => Way::Messages,
                _ => Way::None,
            };
            assert_eq!(messages.of_kind(kind), expected, "{}", kind.name());
        }
        let reduces = ways(&[OpKind::AllReduce], false);
        for kind in [OpKind::Reduce, OpKind::ReduceScatter, OpKind::ReduceScatterV, OpKind::Barrier]
        {
            assert_eq!(reduces.of_kind(kind), Way::AllReduce);
        }
        assert_eq!(reduces.of_kind(OpKind::AllGather), Way::None);
        let pair = ways(&[OpKind::Reduce, OpKind::Broadcast], false);
        assert_eq!(pair.of_kind(OpKind::AllReduce), Way::ReduceAndBroadcast);
        assert_eq!(pair.of_kind(OpKind::Scatter), Way::Broadcasts);
        // Parts are the plug-in's own: nothing is made of what is made.
        assert_eq!(pair.of_kind(OpKind::Reduce), Way::Own);
        assert_eq!(pair.of_kind(OpKind::ReduceScatter), Way::None);
    }

    #[test]
    fn what_is_asked_of_a_plugin_is_what_it_will_do() {
        let whole = Query {
            name: "reduce",
            kind: Some(OpKind::Reduce),
            dtype: Some(DataType::F32),
            op: Some(ReduceOp::Sum),
            gpu: None,
        };
        let parts = Way::AllReduce.queries(&whole);
        assert_eq!(parts.len(), 1);
        assert_eq!(parts[0].to_string(), "all_reduce (f32, SUM)");
        let barrier = Query {
            name: "barrier",
            kind: Some(OpKind::Barrier),
            dtype: None,
            op: None,
            gpu: None,
        };
        assert_eq!(Way::AllReduce.queries(&barrier)[0].to_string(), "all_reduce (u8, MAX)");
        assert_eq!(Way::AllGather.queries(&barrier)[0].to_string(), "all_gather (u8)");
    }
}
