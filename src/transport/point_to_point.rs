//! Point-to-point messages: what a matching engine offers to those who post sends and receives.

use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::gpu::GpuTarget;
use crate::base::ids::Rank;
use std::fmt::Debug;
use std::sync::Arc;

/// The largest tag of a caller's message. Those above are the library's own, and are received only
/// by those who name them: a receive of any tag takes a message up to this one.
pub const LARGEST_TAG: u32 = i32::MAX as u32;

/// For engines of host memory.
fn reject_gpu_memory(gpu: Option<GpuTarget>) -> Result<()> {
    let Some(GpuTarget { device, .. }) = gpu else { return Ok(()) };
    let message = format!("a message in memory of device {device}: the engine is for host memory");
    Err(Error::new(ErrorKind::Unsupported, message))
}

/// A message to send. Its bytes are lent until the completion is called.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest {
    /// Who gets it; this rank itself is possible.
    pub to: Rank,
    /// What it is matched by, beside its sender.
    pub tag: u32,
    /// The type of its elements.
    pub dtype: DataType,
    /// The message.
    pub bytes: Src<'static>,
    /// When it must have been taken over or delivered.
    pub deadline: Deadline,
    /// The send completes only once a receive has matched the message.
    pub is_synchronous: bool,
}

/// The memory of a receive.
#[derive(Clone, Copy, Debug)]
pub enum ReceiveBuffer {
    /// The caller's, which may be longer than the message. Lent until the completion is called.
    Borrowed(Dst<'static>),
    /// As much as the message needs, made once there is one, and handed to
    /// [`Completion::complete_allocated`].
    Allocated {
        /// The longest message that is taken.
        max_bytes: usize,
    },
}

impl ReceiveBuffer {
    /// The longest message that there is room for.
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

/// A place for a message.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveRequest {
    /// From whom; `None` for anybody.
    pub from: Option<Rank>,
    /// Under which tag; `None` for any up to [`LARGEST_TAG`].
    pub tag: Option<u32>,
    /// The type of its elements, which must be the sender's.
    pub dtype: DataType,
    /// Where it goes.
    pub buffer: ReceiveBuffer,
    /// When it must have arrived.
    pub deadline: Deadline,
}

/// A message, or a place for one, that may be done with at once; whose deadline has not begun then.
/// `None` as in [`ReceiveRequest`].
#[derive(Clone, Copy, Debug)]
pub struct ImmediateMessage<T> {
    /// To or from whom.
    pub peer: Option<Rank>,
    /// Under which tag.
    pub tag: Option<u32>,
    /// The type of its elements.
    pub dtype: DataType,
    /// Its bytes, or where they go.
    pub bytes: T,
}

/// A message that has gone or come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Who sent it, or got it.
    pub peer: Rank,
    /// Its tag.
    pub tag: u32,
    /// Its length.
    pub bytes: usize,
}

/// The messages that a probe looks for. `None` as in [`ReceiveRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeRequest {
    /// The sender.
    pub from: Option<Rank>,
    /// The tag.
    pub tag: Option<u32>,
    /// Whether the probe takes the message out of matching, or only looks.
    pub is_matched_probe: bool,
}

/// What a probe learns of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageEnvelope {
    /// The sender.
    pub from: Rank,
    /// The tag.
    pub tag: u32,
    /// The type of the elements.
    pub dtype: DataType,
    /// The length of the message.
    pub bytes: usize,
}

/// A message that a probe has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbedMessage {
    /// What the probe has learnt of it.
    pub envelope: MessageEnvelope,
    /// The engine's number of the message, if the probe took it out of matching.
    pub match_id: Option<u64>,
}

fn probe_unsupported_error() -> Error {
    Error::new(ErrorKind::Unsupported, "the back end of the group cannot probe for messages")
}

/// Told what has become of a posted message.
pub trait Completion: Send + Sync + Debug {
    /// Called exactly once, by whichever thread completes the message, while no lock of the engine
    /// is held. From then on the engine does not touch the message's memory. Must not block.
    fn complete(&self, outcome: Result<Delivery>);

    /// Whether somebody waits for it from the beginning.
    fn is_awaited(&self) -> bool {
        false
    }

    /// Called instead of it for a message whose memory the engine has made.
    fn complete_allocated(&self, delivery: Delivery, bytes: Vec<u8>) {
        drop(bytes);
        self.complete(Ok(delivery));
    }
}

/// Sends and receives between the ranks of a group, in any order, beside its collectives.
///
/// Obligations of an implementation:
/// * messages from one rank under one tag are received in the order of their sending; a receive
///   takes the first message that it matches, and a message the first receive, in the order in
///   which they were posted;
/// * what is kept for a receiver that has posted nothing is bounded; a message beyond that stays
///   with its sender;
/// * a message that is longer than the first receive that it matches, or of another type, fails
///   that receive with `Mismatch`, writes nothing, and stays for the next; so does one for which no
///   memory can be made, `OutOfMemory`;
/// * a posted message whose deadline passes is completed with `Timeout` and forgotten; that fails
///   nobody else, unless part of it has been transferred already, which fails the group;
/// * the death or departure of a peer completes what can only be done with it, `PeerFailed`; the
///   failure of the group completes everything with its cause;
/// * progress is made also where nobody attends.
pub trait PointToPoint: Send + Sync + Debug {
    /// Posts a message to send.
    ///
    /// # Errors
    /// `InvalidArgument` for a rank that does not exist, `OutOfMemory` where too many are
    /// outstanding, the group's failure; then `completion` is never called.
    fn send(&self, message: SendRequest, completion: Arc<dyn Completion>) -> Result<()>;

    /// Posts a place for a message.
    ///
    /// # Errors
    /// As [`PointToPoint::send`].
    fn receive(&self, message: ReceiveRequest, completion: Arc<dyn Completion>) -> Result<()>;

    /// Posts a message in the memory of a GPU, by an engine that takes that as it is; what is in
    /// the stream before it must have been done.
    ///
    /// # Errors
    /// As [`PointToPoint::send`]; `Unsupported`.
    fn send_from_gpu(
        &self,
        gpu: Option<GpuTarget>,
        message: SendRequest,
        completion: Arc<dyn Completion>,
    ) -> Result<()> {
        reject_gpu_memory(gpu)?;
        self.send(message, completion)
    }

    /// Posts a place for a message there.
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

    /// Posts a place for a message and a message to send, in this order. If the second cannot be
    /// posted, `sent` is completed with the error.
    ///
    /// # Errors
    /// As [`PointToPoint::send`]; then neither completion is ever called.
    fn exchange(
        &self,
        (incoming, received): (ReceiveRequest, Arc<dyn Completion>),
        (outgoing, sent): (SendRequest, Arc<dyn Completion>),
    ) -> Result<()> {
        self.receive(incoming, received)?;
        if let Err(error) = self.send(outgoing, Arc::clone(&sent)) {
            sent.complete(Err(error));
        }
        Ok(())
    }

    /// Looks for a message that the next receive with these arguments would take, and waits for one
    /// until the limit. `None` if none came.
    ///
    /// A message that is taken out of matching waits for [`PointToPoint::receive_matched`] or
    /// [`PointToPoint::release_matched`], and is held as an unexpected message is.
    ///
    /// # Errors
    /// `PeerFailed` if the sender has left and no message of it is there, the group's failure,
    /// `Unsupported`.
    fn probe(&self, request: &ProbeRequest, limit: &Deadline) -> Result<Option<ProbedMessage>> {
        let _ = (request, limit);
        Err(probe_unsupported_error())
    }

    /// Posts a place for a message that a probe took out of matching; `message` names its sender
    /// and its tag.
    ///
    /// If the message has been withdrawn since, the completion gets `Aborted`, or `PeerFailed` if
    /// the sender has left. If the deadline passes before any of it was transferred, the message
    /// returns to matching.
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

    /// Returns a message that a probe took to matching, in its old place. Without effect if it has
    /// been withdrawn.
    fn release_matched(&self, match_id: u64) {
        let _ = match_id;
    }

    /// Sends a message if that needs no wait, as if it had been posted and completed; false where
    /// nothing has been done.
    fn try_send_immediate(&self, message: &ImmediateMessage<Src<'static>>) -> bool {
        let _ = message;
        false
    }

    /// Receives a message that is there, or comes within a moment; `None` where nothing has been
    /// done.
    fn try_receive_immediate(&self, message: &ImmediateMessage<Dst<'static>>) -> Option<Delivery> {
        let _ = message;
        None
    }

    /// Makes progress on the calling thread, sleeping while there is nothing to do, until `is_done`
    /// holds or the limit has passed.
    fn progress_until(&self, is_done: &dyn Fn() -> bool, limit: &Deadline);

    /// Whether another thread is about to tell the end of what has been taken already, so that
    /// looking for more finds nothing although something has come.
    fn is_completing(&self) -> bool {
        false
    }

    /// Has those who attend ask once more whether it is over, for whom that depends on more than
    /// messages.
    fn wake_waiters(&self) {}

    /// Why nothing can come from a rank any more, if so: it has left.
    fn departure_error(&self, peer: Rank) -> Option<Error>;
}
