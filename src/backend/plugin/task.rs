//! The arguments and the outcome of one operation of a plug-in.

use crate::backend::{
    CallArguments, OpKind, Operation, ReceiveBuffer, ReceiveRequest, SendRequest,
};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::gpu::GpuTarget;
use crate::base::ids::Rank;
use crate::base::op::ReduceOp;
use crate::base::sync::lock;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskKind {
    /// A collective operation.
    Collective(OpKind),
    /// A message to a peer.
    Send,
    /// A message from a peer.
    Receive,
}

impl TaskKind {
    /// Returns the name of the C function.
    pub fn name(self) -> &'static str {
        match self {
            Self::Collective(kind) => kind.name(),
            Self::Send => "send",
            Self::Receive => "recv",
        }
    }
}

/// The arguments of one operation of a plug-in.
#[derive(Clone, Copy, Debug)]
pub struct PluginTask<'a> {
    /// The kind of the operation.
    pub kind: TaskKind,
    /// The element type, if the operation has elements.
    pub dtype: Option<DataType>,
    /// The operator, if the operation is a reduction.
    pub op: Option<ReduceOp>,
    /// The root, if the operation has one.
    pub root: Option<Rank>,
    /// The peer of a message; `None` for a receive from any rank.
    pub peer: Option<Rank>,
    /// The tag of a message; `None` for a receive with any tag that callers can use.
    pub tag: Option<u32>,
    /// The count argument in elements: the length of the vector, or the length of one block if
    /// there is one block per rank. In the `_v` forms, it is 0.
    pub count: usize,
    /// The contribution of this rank, as one contiguous buffer.
    pub send: Src<'a>,
    /// The contiguous buffer for the result.
    pub recv: Dst<'a>,
    /// In the `_v` forms, the block that this rank sends to each rank.
    pub sends: Option<&'a [Src<'a>]>,
    /// In the `_v` forms, the buffer for the block of each rank.
    pub recvs: Option<&'a [Dst<'a>]>,
    /// The memory for a received message of unknown length. It replaces `recv`.
    pub growable_buffer: Option<&'a GrowableBuffer>,
    /// The factor of this rank. Only the operator `PREMUL_SUM` uses it.
    pub factor: f64,
    /// The deadline of the operation.
    pub deadline: &'a Deadline,
    /// True if the deadline has just started, so that the full timeout is left.
    pub has_full_time: bool,
    /// The sequence number of the collective in its group; 0 for messages.
    pub sequence: u64,
    /// The part number of a sub-operation, if the original operation is composed of several
    /// sub-operations.
    pub part: u64,
    /// The GPU and the caller's stream, if the buffers are in device memory. The device has already
    /// completed the earlier work of the stream.
    pub gpu: Option<GpuTarget>,
}

impl<'a> PluginTask<'a> {
    /// Returns a task without arguments.
    fn empty(kind: TaskKind, deadline: &'a Deadline) -> Self {
        Self {
            kind,
            dtype: None,
            op: None,
            root: None,
            peer: None,
            tag: None,
            count: 0,
            send: Src::empty(),
            recv: Dst::empty(),
            sends: None,
            recvs: None,
            growable_buffer: None,
            factor: 1.0,
            deadline,
            has_full_time: false,
            sequence: 0,
            part: 0,
            gpu: None,
        }
    }

    /// Returns the task of a collective.
    pub(super) fn from_operation(operation: &Operation<'a>) -> Self {
        let descriptor = &operation.descriptor;
        let has_blocks = descriptor.kind.has_per_rank_counts();
        Self {
            // Even internal calls of the library have an element type.
            dtype: (descriptor.kind != OpKind::Barrier).then(|| operation.dtype()),
            op: descriptor.op,
            root: descriptor.root,
            count: if has_blocks { 0 } else { operation.count },
            send: operation.send,
            recv: operation.recv,
            sends: operation.sends,
            recvs: operation.recvs,
            factor: operation.factor,
            has_full_time: operation.has_new_deadline,
            sequence: descriptor.sequence,
            part: u64::from(descriptor.part) << 32,
            gpu: operation.enqueue_request.as_ref().map(|launch| launch.gpu),
            ..Self::empty(TaskKind::Collective(descriptor.kind), operation.deadline())
        }
    }

    /// Returns the task of a fast call that has just begun.
    pub(super) fn from_fast_call(
        fast_call: &CallArguments<'a>,
        sequence: u64,
        deadline: &'a Deadline,
    ) -> Self {
        Self {
            dtype: (fast_call.kind != OpKind::Barrier).then(|| fast_call.dtype()),
            op: fast_call.op,
            root: fast_call.root,
            count: fast_call.count,
            send: fast_call.send,
            recv: fast_call.recv,
            factor: fast_call.factor,
            has_full_time: true,
            sequence,
            ..Self::empty(TaskKind::Collective(fast_call.kind), deadline)
        }
    }

    /// Returns the task of a send.
    pub(super) fn from_send(message: &'a SendRequest, gpu: Option<GpuTarget>) -> Self {
        Self {
            dtype: Some(message.dtype),
            peer: Some(message.to),
            tag: Some(message.tag),
            count: message.bytes.len() / message.dtype.size(),
            send: message.bytes,
            gpu,
            ..Self::empty(TaskKind::Send, &message.deadline)
        }
    }

    /// Returns the task of a receive into the caller's buffer or into `growable_buffer`.
    pub(super) fn from_receive(
        message: &'a ReceiveRequest,
        growable_buffer: Option<&'a GrowableBuffer>,
        gpu: Option<GpuTarget>,
    ) -> Self {
        Self {
            dtype: Some(message.dtype),
            peer: message.from,
            tag: message.tag,
            count: message.buffer.max_bytes() / message.dtype.size(),
            recv: match message.buffer {
                ReceiveBuffer::Borrowed(bytes) => bytes,
                ReceiveBuffer::Allocated { .. } => Dst::empty(),
            },
            growable_buffer,
            gpu,
            ..Self::empty(TaskKind::Receive, &message.deadline)
        }
    }

    /// Returns the task of a message between two ranks that is a sub-operation of `whole`. The
    /// caller sets its buffer.
    pub(super) fn message_part(kind: TaskKind, whole: &Self, peer: Rank, tag: u32) -> Self {
        Self {
            dtype: Some(DataType::U8),
            peer: Some(peer),
            tag: Some(tag),
            sequence: whole.sequence,
            ..Self::empty(kind, whole.deadline)
        }
    }

    /// Returns the time until the deadline. If the deadline has just started, the function does not
    /// read the clock, because a read takes a tenth of the time of a short operation.
    pub fn time_left(&self) -> Duration {
        if self.has_full_time { self.deadline.timeout() } else { self.deadline.remaining() }
    }

    /// Returns true for a `_v` form, in which the blocks of the ranks have different lengths.
    pub fn has_blocks(&self) -> bool {
        matches!(self.kind, TaskKind::Collective(kind) if kind.has_per_rank_counts())
    }

    /// Returns true if the call is in place, that is, if the input and the output are the same
    /// memory. Returns false for operations that do not allow calls in place.
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

/// The identification of a submitted operation that is not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PluginRequest {
    /// The plug-in's identification.
    pub handle: usize,
    /// The library's identification.
    pub ticket: u64,
}

/// The outcome of a submission.
#[derive(Clone, Copy, Debug)]
pub enum SubmitOutcome {
    /// The operation is complete.
    Done(PluginMessageStatus),
    /// The operation continues.
    Pending(PluginRequest),
}

/// The outcome of [`Communicator::run`](super::Communicator::run), which runs an operation in one
/// call.
#[derive(Clone, Copy, Debug)]
pub enum RunOutcome {
    /// The operation completed without a long wait.
    DoneQuickly,
    /// The operation completed.
    Done,
    /// The operation continues.
    Pending(PluginRequest),
}

/// The status of a complete operation, which the plug-in returns. The library reads it only for
/// messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct PluginMessageStatus {
    /// The sender; `None` if the plug-in does not report it.
    pub peer: Option<Rank>,
    /// The tag; `None` if the plug-in does not report it.
    pub tag: Option<u32>,
    /// The length in bytes; `None` if the plug-in does not report it.
    pub bytes: Option<u64>,
}

/// A receive buffer whose memory is allocated when the length of the message is known.
#[derive(Debug)]
pub struct GrowableBuffer {
    max_bytes: usize,
    bytes: Mutex<Option<Vec<u8>>>,
}

impl GrowableBuffer {
    /// Returns an unallocated buffer for a message of at most `max_bytes` bytes.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { max_bytes, bytes: Mutex::new(None) }
    }

    /// Returns the maximum length of the message in bytes.
    pub fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// Allocates the memory for a message of `bytes` bytes. Returns `None` if the memory was
    /// already allocated, if the message is longer than the receiver allows, or if there is not
    /// enough memory.
    pub fn allocate(&self, bytes: usize) -> Option<*mut u8> {
        let mut buffer = self.lock();
        if bytes > self.max_bytes || buffer.is_some() {
            return None;
        }
        let mut memory = Vec::new();
        memory.try_reserve_exact(bytes).ok()?;
        memory.resize(bytes, 0);
        // The returned address remains valid, because the memory of a vector does not move while
        // the vector does not change.
        Some(buffer.insert(memory).as_mut_ptr())
    }

    /// Returns the message. The caller must call this after the plug-in's last write.
    pub(super) fn take(&self) -> Vec<u8> {
        self.lock().take().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        lock(&self.bytes)
    }
}
