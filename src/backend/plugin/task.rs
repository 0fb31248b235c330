//! One operation, as a plug-in gets it, and what becomes of it.

use super::super::{CallArguments, OpKind, Operation};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::gpu::GpuTarget;
use crate::base::ids::Rank;
use crate::base::op::ReduceOp;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Which operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskKind {
    /// One that all ranks call.
    Collective(OpKind),
    /// A message to another rank.
    Send,
    /// A message from another rank.
    Receive,
}

impl TaskKind {
    /// As in the C function.
    pub fn name(self) -> &'static str {
        match self {
            Self::Collective(kind) => kind.name(),
            Self::Send => "send",
            Self::Receive => "recv",
        }
    }
}

/// The arguments of one operation.
#[derive(Clone, Copy, Debug)]
pub struct PluginTask<'a> {
    /// Which.
    pub kind: TaskKind,
    /// The type of its elements, where there are any.
    pub dtype: Option<DataType>,
    /// The operator, for reductions.
    pub op: Option<ReduceOp>,
    /// The root, where there is one.
    pub root: Option<Rank>,
    /// The other rank of a message; `Unavailable` for any.
    pub peer: Option<Rank>,
    /// The tag of a message; `Unavailable` for any of callers.
    pub tag: Option<u32>,
    /// The count argument: of a vector, or of a block where there is one for each rank; 0 in the
    /// `_v` forms.
    pub count: usize,
    /// What this rank contributes, in one piece.
    pub send: Src<'a>,
    /// Where its result goes, in one piece.
    pub recv: Dst<'a>,
    /// In the `_v` forms, what this rank has for each.
    pub sends: Option<&'a [Src<'a>]>,
    /// In the `_v` forms, where what each rank has goes.
    pub recvs: Option<&'a [Dst<'a>]>,
    /// Where the memory for a message of unknown length comes from, in place of `recv`.
    pub growable_buffer: Option<&'a GrowableBuffer>,
    /// This rank's factor, for `PREMUL_SUM`.
    pub factor: f64,
    /// When it must have ended.
    pub deadline: &'a Deadline,
    /// Its deadline has just begun.
    pub has_full_time: bool,
    /// The number of the collective in its group; 0 for messages.
    pub sequence: u64,
    /// Which part of it, where it is made of several.
    pub part: u64,
    /// Where its buffers lie, if in the memory of a GPU: what was in the stream before it has been
    /// done.
    pub gpu: Option<GpuTarget>,
}

impl<'a> PluginTask<'a> {
    /// A collective as it was called.
    pub(super) fn from_operation(operation: &Operation<'a>) -> Self {
        let descriptor = &operation.descriptor;
        let has_blocks = descriptor.kind.has_per_rank_counts();
        Self {
            kind: TaskKind::Collective(descriptor.kind),
            // Also what the library calls for itself has elements.
            dtype: (descriptor.kind != OpKind::Barrier).then(|| operation.dtype()),
            op: descriptor.op,
            root: descriptor.root,
            peer: None,
            tag: None,
            count: if has_blocks { 0 } else { operation.count },
            send: operation.send,
            recv: operation.recv,
            sends: operation.sends,
            recvs: operation.recvs,
            growable_buffer: None,
            factor: operation.factor,
            deadline: operation.deadline(),
            has_full_time: operation.has_new_deadline,
            sequence: descriptor.sequence,
            part: u64::from(descriptor.part) << 32,
            gpu: operation.enqueue_request.as_ref().map(|launch| launch.gpu),
        }
    }

    /// A collective that is nothing but its arguments, and has just begun.
    pub(super) fn from_fast_call(
        fast_call: &CallArguments<'a>,
        sequence: u64,
        deadline: &'a Deadline,
    ) -> Self {
        Self {
            kind: TaskKind::Collective(fast_call.kind),
            dtype: (fast_call.kind != OpKind::Barrier).then(|| fast_call.dtype()),
            op: fast_call.op,
            root: fast_call.root,
            peer: None,
            tag: None,
            count: fast_call.count,
            send: fast_call.send,
            recv: fast_call.recv,
            sends: None,
            recvs: None,
            growable_buffer: None,
            factor: fast_call.factor,
            deadline,
            has_full_time: true,
            sequence,
            part: 0,
            gpu: None,
        }
    }

    /// What is left until its deadline. A look at the clock takes a tenth of what a short operation
    /// does.
    pub fn time_left(&self) -> Duration {
        if self.has_full_time { self.deadline.timeout() } else { self.deadline.remaining() }
    }

    /// Whether it is one of those with a block of its own length for each rank.
    pub fn has_blocks(&self) -> bool {
        matches!(self.kind, TaskKind::Collective(kind) if kind.has_per_rank_counts())
    }

    /// Whether input and output are the same memory, as far as an operation of this kind can have
    /// that.
    pub fn is_in_place(&self, rank: Rank) -> bool {
        let block = self.count * self.dtype.map_or(1, DataType::size);
        let TaskKind::Collective(kind) = self.kind else { return false };
        let (send, recv) = (self.send, self.recv.as_src());
        let same = |one: Src<'_>, other: Src<'_>| {
            !one.is_empty() && !other.is_empty() && one.as_ptr() == other.as_ptr()
        };
        let own = |all: Src<'a>| if all.is_empty() { all } else { all.slice(rank * block, block) };
        match kind {
            OpKind::AllReduce | OpKind::Reduce | OpKind::Scan | OpKind::Exscan => same(send, recv),
            OpKind::AllGather | OpKind::Gather => same(send, own(recv)),
            OpKind::ReduceScatter | OpKind::Scatter => same(own(send), recv),
            OpKind::AllGatherV | OpKind::GatherV => {
                self.recvs.is_some_and(|recvs| same(send, recvs[rank].as_src()))
            }
            OpKind::ReduceScatterV | OpKind::ScatterV => {
                self.sends.is_some_and(|sends| same(sends[rank], recv))
            }
            OpKind::Broadcast | OpKind::Barrier | OpKind::AllToAll | OpKind::AllToAllV => false,
        }
    }
}

/// An operation under way: whatever the plug-in calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PluginRequest {
    /// The plug-in's own word for it.
    pub handle: usize,
    /// The library's.
    pub ticket: u64,
}

/// What submitting an operation has led to.
#[derive(Clone, Copy, Debug)]
pub enum SubmitOutcome {
    /// It has ended.
    Done(PluginMessageStatus),
    /// It goes on.
    Pending(PluginRequest),
}

/// What carrying out an operation in one step has led to.
#[derive(Clone, Copy, Debug)]
pub enum RunOutcome {
    /// It has ended, after a moment.
    DoneQuickly,
    /// It has ended.
    Done,
    /// It goes on.
    Pending(PluginRequest),
}

/// What a plug-in says of an operation that has ended; it counts for messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct PluginMessageStatus {
    /// Who sent it; `Unavailable` where that is not said.
    pub peer: Option<Rank>,
    /// Under which tag.
    pub tag: Option<u32>,
    /// How long it is; `Unavailable` where that is not said.
    pub bytes: Option<u64>,
}

/// Memory for one message, made once its length is known.
#[derive(Debug)]
pub struct GrowableBuffer {
    max_bytes: usize,
    bytes: Mutex<Option<Vec<u8>>>,
}

impl GrowableBuffer {
    /// For a message of up to `max_bytes` bytes.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { max_bytes, bytes: Mutex::new(None) }
    }

    /// The longest message.
    pub fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// Makes the memory, once; `Unavailable` where the message is too long for the receiver or for
    /// the memory that there is.
    pub fn allocate(&self, bytes: usize) -> Option<*mut u8> {
        let mut buffer = self.lock();
        if bytes > self.max_bytes || buffer.is_some() {
            return None;
        }
        let mut memory = Vec::new();
        memory.try_reserve_exact(bytes).ok()?;
        memory.resize(bytes, 0);
        // The memory of a vector stays where it is while nobody changes the vector.
        Some(buffer.insert(memory).as_mut_ptr())
    }

    /// The message, after the plug-in's last write.
    pub(super) fn take(&self) -> Vec<u8> {
        self.lock().take().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
