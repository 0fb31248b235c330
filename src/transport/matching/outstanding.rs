//! What has been posted and has not ended: sends, receives with their memory, and what is told of
//! them at the end.
//!
//! Must not know: links, frames, how messages and receives find each other.

use super::unexpected::{MessageBody, UnexpectedMessage};
use crate::base::buffer::Dst;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::transport::{
    Completion, Delivery, PeerName, ReceiveBuffer, ReceiveRequest, SendRequest,
};
use std::sync::Arc;
use std::time::Instant;

/// A send that has not ended.
#[derive(Debug)]
pub(super) struct OutstandingSend {
    pub(super) message: SendRequest,
    pub(super) completion: Arc<dyn Completion>,
    pub(super) expires_at: Option<Instant>,
    pub(super) stage: SendStage,
    /// The place on the desk where its buffer is lent.
    pub(super) exposure_slot: Option<u16>,
}

/// How far a send has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendStage {
    /// It goes whole as soon as there is room.
    Eager,
    /// It has been offered, or soon is.
    RtsSent,
    /// It goes in pieces.
    SendingFragments { attempt: u32, sent: usize, has_begun: bool },
    /// It is to this rank itself, and waits for its receive.
    ToSelf { arrival: u64 },
}

/// A receive that has not ended.
#[derive(Debug)]
pub(super) struct OutstandingReceive {
    pub(super) message: ReceiveRequest,
    pub(super) completion: Arc<dyn Completion>,
    pub(super) expires_at: Option<Instant>,
    pub(super) stage: ReceiveStage,
    /// What was made for its message, where that is not lent: reserved at once, used as far as
    /// bytes have come.
    pub(super) allocated: Vec<u8>,
    /// It is for one message that a probe took, and takes no other.
    pub(super) is_matched: bool,
}

impl OutstandingReceive {
    /// Where its message goes, of that length from the offset on. There is room, since they fit.
    pub(super) fn buffer_range(&mut self, offset: usize, len: usize) -> Dst<'_> {
        match self.message.buffer {
            ReceiveBuffer::Borrowed(bytes) => bytes.slice(offset, len),
            ReceiveBuffer::Allocated { .. } => {
                // Within what was reserved, and not all at once, for which others would wait.
                let end = self.allocated.len().max(offset + len);
                self.allocated.resize(end, 0);
                Dst::from(self.allocated.as_mut_slice()).slice(offset, len)
            }
        }
    }

    /// Why it cannot take a message, if so; else there is room for it from now on. A message that
    /// is held brings its own memory.
    pub(super) fn prepare_buffer(
        &mut self,
        from: &PeerName,
        message: &UnexpectedMessage,
    ) -> Option<Error> {
        if let Some(error) = mismatch_error(from, message, &self.message) {
            return Some(error);
        }
        let is_buffered =
            matches!(&message.body, MessageBody::Buffered(bytes) if bytes.len() == message.len);
        if is_buffered || matches!(self.message.buffer, ReceiveBuffer::Borrowed(_)) {
            return None;
        }
        match allocate_reserved(message.len) {
            Ok(bytes) => self.allocated = bytes,
            Err(error) => {
                let what = format!("{from}, tag {}: it stays for the next receive", message.tag);
                return Some(error.context(what).with_culprit(from.rank));
            }
        }
        None
    }
}

/// How far a receive has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiveStage {
    /// It waits for a message.
    Posted,
    /// A message goes into it as it comes.
    ReceivingEager { from: Rank, tag: u32, len: usize },
    /// It has asked for a message that was offered, or is to read it; nothing has come.
    Accepted { from: Rank, number: u64 },
    /// Bytes of that message have come.
    Transferring { from: Rank, number: u64 },
    /// All of it has, and its sender is told.
    Delivered(Delivery),
}

/// Something that has ended, and for whom.
#[derive(Debug)]
pub(super) struct CompletedMessage {
    completion: Arc<dyn Completion>,
    outcome: Result<Delivery>,
    /// The message, where the engine has made its memory.
    allocated: Option<Vec<u8>>,
}

impl CompletedMessage {
    /// Something whose memory was lent, if it needed any.
    pub(super) fn new(completion: Arc<dyn Completion>, outcome: Result<Delivery>) -> Self {
        Self { completion, outcome, allocated: None }
    }

    /// A receive, with its message where that was not lent the memory.
    pub(super) fn from_receive(receiving: OutstandingReceive, outcome: Result<Delivery>) -> Self {
        let grows = matches!(receiving.message.buffer, ReceiveBuffer::Allocated { .. });
        Self {
            completion: receiving.completion,
            outcome,
            allocated: grows.then_some(receiving.allocated),
        }
    }

    /// Tells of it. The engine's lock must not be held.
    pub(super) fn notify(self) {
        match (self.outcome, self.allocated) {
            (Ok(delivery), Some(bytes)) => self.completion.complete_allocated(delivery, bytes),
            (outcome, _) => self.completion.complete(outcome),
        }
    }
}

/// Zeroed memory for a message.
pub(super) fn allocate_zeroed(len: usize) -> Result<Vec<u8>> {
    let mut bytes = allocate_reserved(len)?;
    bytes.resize(len, 0);
    Ok(bytes)
}

/// Memory for a message, none of it used.
fn allocate_reserved(len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| {
        let message = format!("no memory to hold a message of {len} bytes");
        Error::new(ErrorKind::OutOfMemory, message)
    })?;
    Ok(bytes)
}

/// Why a receive cannot take a message, if so.
fn mismatch_error(
    from: &PeerName,
    message: &UnexpectedMessage,
    request: &ReceiveRequest,
) -> Option<Error> {
    let (len, capacity) = (message.len, request.buffer.max_bytes());
    let reason = if message.dtype != request.dtype {
        format!("is of type {}, and the receive is for {}", message.dtype, request.dtype)
    } else if len > capacity {
        format!("has {len} bytes, and the receive has room for {capacity}")
    } else {
        return None;
    };
    let message = format!(
        "the message of {from} with tag {} {reason}; nothing was written, and it stays for the next receive",
        message.tag
    );
    Some(Error::new(ErrorKind::Mismatch, message).with_culprit(from.rank))
}
