//! Point-to-point messages: the interface of a matching engine (the code that pairs sends with
//! receives by sender and tag), with its requests and completions.

use super::message_counts::MessageCounts;
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::gpu::GpuTarget;
use crate::base::ids::Rank;
use std::sync::Arc;

/// The largest tag of a caller's message. A receive of any tag accepts messages with tags up to
/// this one. Messages of the library itself have larger tags; only a receive that names such a tag
/// gets the message.
pub const LARGEST_TAG: u32 = i32::MAX as u32;

/// Returns an error if the message is in GPU memory. For engines that support host memory only.
fn reject_gpu_memory(gpu: Option<GpuTarget>) -> Result<()> {
    let Some(GpuTarget { device, .. }) = gpu else { return Ok(()) };
    let message = format!(
        "the message is in memory of device {device}, and this engine supports only host memory"
    );
    Err(Error::new(ErrorKind::Unsupported, message))
}

/// A message that a receive of this rank has refused.
#[derive(Clone, Debug)]
pub struct RefusedMessage {
    /// The message.
    pub message: MessageEnvelope,
    /// The error that the sender gets.
    pub text: String,
}

/// The messages of a group that receives have refused, because their type or length differed from
/// that of the receive.
#[derive(Clone, Debug, Default)]
pub struct RefusedMessages {
    /// The last message of each sender that this rank has refused.
    pub by_this_rank: Vec<RefusedMessage>,
    /// The error of a message of this rank, if the program has not got the error yet. The next
    /// message call returns the error.
    pub unreported: Option<Error>,
    /// True if the program has got the error of a message of this rank.
    pub is_reported: bool,
}

impl RefusedMessages {
    /// Returns whether no message was refused.
    pub fn is_empty(&self) -> bool {
        self.by_this_rank.is_empty() && self.unreported.is_none() && !self.is_reported
    }
}

/// A message to send. The engine borrows the bytes of the message until it calls the completion.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest {
    /// The receiver. A rank may send to itself.
    pub to: Rank,
    /// The tag. A receive matches the message by its tag and its sender.
    pub tag: u32,
    /// The type of the elements.
    pub dtype: DataType,
    /// The bytes of the message.
    pub bytes: Src<'static>,
    /// The deadline by which the message must have been buffered or delivered.
    pub deadline: Deadline,
    /// Whether the send completes only once a receive has matched the message.
    pub is_synchronous: bool,
}

/// The buffer into which a message is received.
#[derive(Clone, Copy, Debug)]
pub enum ReceiveBuffer {
    /// The caller's buffer, which may be longer than the message. Borrowed until the completion is
    /// called.
    Borrowed(Dst<'static>),
    /// A buffer that the engine allocates once a message has matched. The buffer has the length of
    /// the message. The engine passes the buffer to [`Completion::complete_allocated`].
    Allocated {
        /// The maximum length of an accepted message.
        max_bytes: usize,
    },
}

impl ReceiveBuffer {
    /// Returns the maximum length of a message that fits.
    pub fn max_bytes(&self) -> usize {
        match self {
            Self::Borrowed(bytes) => bytes.len(),
            Self::Allocated { max_bytes: most } => *most,
        }
    }
}

impl From<Dst<'static>> for ReceiveBuffer {
    fn from(bytes: Dst<'static>) -> Self {
        Self::Borrowed(bytes)
    }
}

/// A request to receive a message.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveRequest {
    /// The sender; `None` for any rank.
    pub from: Option<Rank>,
    /// The tag; `None` for any tag up to [`LARGEST_TAG`].
    pub tag: Option<u32>,
    /// The type of the elements, which must equal the sender's type.
    pub dtype: DataType,
    /// The buffer of the message.
    pub buffer: ReceiveBuffer,
    /// The deadline by which the message must have arrived.
    pub deadline: Deadline,
}

/// A send or a receive that the engine may complete immediately, before it has a deadline.
#[derive(Clone, Copy, Debug)]
pub struct ImmediateMessage<T> {
    /// The receiver of a send, or the sender for a receive; `None` for a receive from any rank.
    pub peer: Option<Rank>,
    /// The tag of the message; `None` for a receive of any tag up to [`LARGEST_TAG`].
    pub tag: Option<u32>,
    /// The type of the elements.
    pub dtype: DataType,
    /// The bytes to send, or the buffer to receive into.
    pub bytes: T,
}

/// A message that was sent or received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The sender of a received message, or the receiver of a sent message.
    pub peer: Rank,
    /// The tag of the message.
    pub tag: u32,
    /// The length of the message in bytes.
    pub bytes: usize,
}

/// The messages that a probe searches for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeRequest {
    /// The sender; `None` for any rank.
    pub from: Option<Rank>,
    /// The tag; `None` for any tag up to [`LARGEST_TAG`].
    pub tag: Option<u32>,
    /// True if the probe removes the message from matching, as `MPI_Mprobe` does. False if the
    /// probe only reports the message, as `MPI_Probe` does.
    pub is_matched_probe: bool,
}

/// The envelope of a message (its sender, tag, type and length), as a probe reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageEnvelope {
    /// The sender of the message.
    pub from: Rank,
    /// The tag of the message.
    pub tag: u32,
    /// The type of the elements.
    pub dtype: DataType,
    /// The length of the message in bytes.
    pub bytes: usize,
}

/// A message that a probe has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbedMessage {
    /// The envelope of the message.
    pub envelope: MessageEnvelope,
    /// The number that the engine gave the message, if the probe removed the message from
    /// matching.
    pub match_id: Option<u64>,
}

fn probe_unsupported_error() -> Error {
    Error::new(ErrorKind::Unsupported, "the back end of the group cannot probe for messages")
}

/// A message of this rank that waits until another rank makes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmatchedMessage {
    /// A posted receive of a message.
    Receive {
        /// The rank that must send the message; `None` for any rank.
        from: Option<Rank>,
    },
    /// An announced message that no receive has matched.
    Send {
        /// The rank that must receive the message.
        to: Rank,
        /// The number with which this rank has announced the message.
        number: u64,
    },
    /// A posted receive of an engine that counts messages.
    CountedReceive {
        /// The rank that must send the message; `None` for any rank.
        from: Option<Rank>,
        /// The tag; `None` for any tag.
        tag: Option<u32>,
    },
    /// A message of an engine that counts messages, which is not complete.
    CountedSend {
        /// The rank that must receive the message.
        to: Rank,
        /// The tag.
        tag: u32,
        /// The position among the messages to this rank with this tag, from 1.
        position: u64,
    },
}

/// What a rank has exchanged with the other ranks of its group. With the traffic of both ranks, one
/// can prove that a message which a rank waits for has not been sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageTraffic {
    /// The number of bytes that this rank has sent to each rank; `None` if some messages are not in
    /// the stream yet. Ranks to which this rank has sent nothing are missing.
    pub sent: Vec<(Rank, Option<u64>)>,
    /// The number of bytes that this rank has received and processed from each rank. Ranks from
    /// which a message is partly received are missing.
    pub received: Vec<(Rank, u64)>,
    /// The ranks that have left, from which no message can come any more.
    pub departed: Vec<Rank>,
    /// The messages that have been announced to this rank and that no receive has matched: the
    /// sender, and its number of the message.
    pub announced: Vec<(Rank, u64)>,
    /// The numbers of messages, if the engine counts messages instead of bytes.
    pub counts: Option<MessageCounts>,
    /// The messages of one work that wait for a call of another rank.
    pub unmatched: Vec<UnmatchedMessage>,
}

impl MessageTraffic {
    /// Returns the number of bytes that this rank has received and processed from a rank, or `None`
    /// if a message is partly received.
    pub fn received_from(&self, rank: Rank) -> Option<u64> {
        self.received.iter().find(|&&(peer, _)| peer == rank).map(|&(_, bytes)| bytes)
    }
}

/// The callback for the completion of a posted message.
pub trait Completion: Send + Sync {
    /// Called exactly once, by the thread that completes the message, which holds no lock of the
    /// engine. The engine does not access the message's memory during or after this call. An
    /// implementation must not block.
    fn complete(&self, outcome: Result<Delivery>);

    /// Returns whether a caller waits for the message from the moment it is posted.
    fn is_awaited(&self) -> bool {
        false
    }

    /// Returns a number that identifies the work of the message; 0 if there is none.
    fn work_id(&self) -> usize {
        0
    }

    /// Called instead of [`Completion::complete`] if the engine allocated the buffer of the
    /// message.
    fn complete_allocated(&self, delivery: Delivery, bytes: Vec<u8>) {
        drop(bytes);
        self.complete(Ok(delivery));
    }
}

crate::base::trait_object_debug::impl_debug_of_objects!(Completion);

/// Sends and receives between the ranks of a group, in any order and independent of its
/// collectives.
///
/// Obligations of an implementation:
/// - Messages from one rank with one tag are received in the order of their sends. A receive takes
///   the first message that it matches. A message goes to the first matching receive, in the order
///   in which the receives were posted.
/// - The engine buffers a bounded number of bytes for a receiver that has posted no receive. If a
///   message does not fit into this buffer, it stays with its sender until a receive is posted.
/// - If a message is longer than the buffer of the first matching receive, or has another type,
///   that receive fails with `Mismatch`. If the engine cannot allocate a buffer for the message,
///   the receive fails with `OutOfMemory`. In both cases the engine writes nothing, and the message
///   stays for the next receive.
/// - If the deadline of a posted message passes, the message completes with `Timeout` and is
///   removed. Other messages do not fail. But if the message was already partly transferred, the
///   group fails.
/// - If a peer dies or leaves, the messages that need this peer complete with `PeerFailed`. If the
///   group fails, all messages complete with its cause.
/// - The engine makes progress even while no caller waits.
pub trait PointToPoint: Send + Sync {
    /// Posts a send.
    ///
    /// # Errors
    /// `InvalidArgument` for a rank that does not exist, `OutOfMemory` if too many messages are
    /// outstanding, or the group's failure. After an error, `completion` is never called.
    fn send(&self, message: SendRequest, completion: Arc<dyn Completion>) -> Result<()>;

    /// Posts a receive.
    ///
    /// # Errors
    /// As [`PointToPoint::send`].
    fn receive(&self, message: ReceiveRequest, completion: Arc<dyn Completion>) -> Result<()>;

    /// Posts a send from GPU memory, if the engine transfers GPU memory directly. The work that was
    /// enqueued earlier on the GPU stream must have finished. `gpu` is `None` for host memory.
    ///
    /// # Errors
    /// As [`PointToPoint::send`]; `Unsupported` if the engine handles host memory only.
    fn send_from_gpu(
        &self,
        gpu: Option<GpuTarget>,
        message: SendRequest,
        completion: Arc<dyn Completion>,
    ) -> Result<()> {
        reject_gpu_memory(gpu)?;
        self.send(message, completion)
    }

    /// Posts a receive into GPU memory.
    ///
    /// # Errors
    /// As [`PointToPoint::send_from_gpu`].
    fn receive_to_gpu(
        &self,
        gpu: Option<GpuTarget>,
        message: ReceiveRequest,
        completion: Arc<dyn Completion>,
    ) -> Result<()> {
        reject_gpu_memory(gpu)?;
        self.receive(message, completion)
    }

    /// Posts a receive and a send, in this order. If the send cannot be posted, `sent` completes
    /// with the error.
    ///
    /// # Errors
    /// As [`PointToPoint::send`], if the receive cannot be posted. Neither completion is then
    /// called.
    fn exchange(
        &self,
        incoming: ReceiveRequest,
        received: Arc<dyn Completion>,
        outgoing: SendRequest,
        sent: Arc<dyn Completion>,
    ) -> Result<()> {
        self.receive(incoming, received)?;
        if let Err(error) = self.send(outgoing, Arc::clone(&sent)) {
            sent.complete(Err(error));
        }
        Ok(())
    }

    /// Searches for a message that the next receive with these arguments would take. Waits for such
    /// a message until the limit, and returns `None` if none has arrived.
    ///
    /// If the probe removes the message from matching, the message is stored like an unexpected
    /// message until [`PointToPoint::receive_matched`] or [`PointToPoint::release_matched`] is
    /// called.
    ///
    /// # Errors
    /// `PeerFailed` if the sender has left and no message from the sender is stored; the group's
    /// failure; `Unsupported`.
    fn probe(&self, request: &ProbeRequest, limit: &Deadline) -> Result<Option<ProbedMessage>> {
        let _ = (request, limit);
        Err(probe_unsupported_error())
    }

    /// Posts a receive for a message that a probe removed from matching. The request must name the
    /// sender and the tag of that message.
    ///
    /// If the sender has cancelled the message since the probe, the completion gets `Aborted`, or
    /// `PeerFailed` if the sender has left. If the deadline passes before any byte was transferred,
    /// the message returns to matching.
    ///
    /// # Errors
    /// As [`PointToPoint::receive`].
    fn receive_matched(
        &self,
        match_id: u64,
        message: ReceiveRequest,
        completion: Arc<dyn Completion>,
    ) -> Result<()> {
        let _ = (match_id, message);
        drop(completion);
        Err(probe_unsupported_error())
    }

    /// Puts a message that a probe removed from matching back into matching, at its old position.
    /// Has no effect if the sender has cancelled the message.
    fn release_matched(&self, match_id: u64) {
        let _ = match_id;
    }

    /// Sends a message if this needs no wait. The effect is the same as if the message had been
    /// posted and had completed. Returns false if the engine did nothing.
    fn try_send_immediate(&self, message: &ImmediateMessage<Src<'static>>) -> bool {
        let _ = message;
        false
    }

    /// Receives a message that has already arrived, or that arrives within a short poll. Returns
    /// `None` if the engine received nothing.
    fn try_receive_immediate(&self, message: &ImmediateMessage<Dst<'static>>) -> Option<Delivery> {
        let _ = message;
        None
    }

    /// Makes progress on all messages, on the calling thread, until `is_done` returns true or the
    /// limit has passed. Sleeps while there is no progress to make.
    fn progress_until(&self, is_done: &dyn Fn() -> bool, limit: &Deadline);

    /// Returns whether another thread is calling completions. During that time, a poll may find
    /// nothing although a message has arrived: the other thread has taken the message, but has not
    /// called its completion yet.
    fn is_completing(&self) -> bool {
        false
    }

    /// Wakes all callers that wait in [`PointToPoint::progress_until`], so that each calls its
    /// `is_done` again. This is needed if an `is_done` depends on more than messages.
    fn wake_waiters(&self) {}

    /// Returns the `PeerFailed` error if the rank has left and no message from it can arrive any
    /// more.
    fn departure_error(&self, peer: Rank) -> Option<Error>;

    /// Returns the messages that receives of this rank and of other ranks have refused, as far as
    /// this rank knows. Calls no completion.
    fn refused_messages(&self) -> RefusedMessages {
        RefusedMessages::default()
    }

    /// Returns what this rank has exchanged with the other ranks, and which messages of a work
    /// ([`Completion::work_id`]) wait for a call of another rank. Calls no completion.
    fn traffic(&self, work_id: usize) -> MessageTraffic {
        let _ = work_id;
        MessageTraffic::default()
    }
}

crate::base::trait_object_debug::impl_debug_of_objects!(PointToPoint);
