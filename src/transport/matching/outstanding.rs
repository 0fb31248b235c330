//! Outstanding messages: sends and receives that have been posted and have not completed, with
//! their buffers and their completions (callbacks).
//!
//! Does not depend on links, on frames, or on the rules by which messages and receives match.

use super::unexpected::{MessageBody, UnexpectedMessage};
use crate::base::buffer::Dst;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::transport::loans::MessageLoan;
use crate::transport::{
    Completion, Delivery, PeerName, ReceiveBuffer, ReceiveRequest, SendRequest,
};
use std::sync::Arc;
use std::time::Instant;

/// A send that has not completed.
#[derive(Debug)]
pub(super) struct OutstandingSend {
    pub(super) message: SendRequest,
    pub(super) completion: Arc<dyn Completion>,
    pub(super) expires_at: Option<Instant>,
    pub(super) stage: SendStage,
    /// The exposure slot of the message's buffer, if the receiver may read the buffer by CMA.
    pub(super) exposure_slot: Option<u16>,
    /// The loan of the message to the endpoint. It ends with the send.
    pub(super) loan: Option<MessageLoan>,
}

/// The progress of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendStage {
    /// The message is eager and waits until the stream has room for all of its bytes.
    Eager,
    /// The RTS is sent or queued.
    RtsSent,
    /// The message is sent in fragments, which the CTS number `attempt` has requested. `sent` bytes
    /// are in the stream. `has_begun` becomes true with the first byte of this attempt.
    SendingFragments { attempt: u32, sent: usize, has_begun: bool },
    /// The message is for this rank itself and waits for a receive in the match queues, under the
    /// number `arrival`.
    ToSelf { arrival: u64 },
}

/// A receive that has not completed.
#[derive(Debug)]
pub(super) struct OutstandingReceive {
    pub(super) message: ReceiveRequest,
    pub(super) completion: Arc<dyn Completion>,
    pub(super) expires_at: Option<Instant>,
    pub(super) stage: ReceiveStage,
    /// The buffer that the engine allocates for a receive that borrows no buffer of the caller.
    /// When a message matches, the engine reserves memory for the whole message. The length of the
    /// vector grows as bytes arrive.
    pub(super) allocated: Vec<u8>,
    /// Whether the receive is only for one message, which a probe removed from matching.
    pub(super) is_matched: bool,
}

impl OutstandingReceive {
    /// Returns the buffer range for `len` bytes from `offset`. The range fits, since the message
    /// was checked.
    pub(super) fn buffer_range(&mut self, offset: usize, len: usize) -> Dst<'_> {
        match self.message.buffer {
            ReceiveBuffer::Borrowed(bytes) => bytes.slice(offset, len),
            ReceiveBuffer::Allocated { .. } => {
                // The vector grows within its reserved capacity, step by step: zeroing all bytes of
                // a long message in one step would delay other messages.
                let end = self.allocated.len().max(offset + len);
                self.allocated.resize(end, 0);
                Dst::from(self.allocated.as_mut_slice()).slice(offset, len)
            }
        }
    }

    /// Prepares the buffer for a message, or returns the error if the receive cannot take the
    /// message. A message that the engine has buffered needs no new memory, because the receive
    /// takes over the memory of the message.
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
                let what = format!(
                    "the message of {from} with tag {} stays for the next receive",
                    message.tag
                );
                return Some(error.context(what).with_culprit(from.rank));
            }
        }
        None
    }
}

/// The progress of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiveStage {
    /// The receive waits for a message.
    Posted,
    /// An eager message is being received into the buffer.
    ReceivingEager { from: Rank, tag: u32, len: usize },
    /// The receive has accepted an RTS: it has requested fragments, or will read the sender's
    /// buffer. No bytes have arrived.
    Accepted { from: Rank, number: u64 },
    /// Bytes of the announced message have arrived.
    Transferring { from: Rank, number: u64 },
    /// The whole message has arrived, and the FIN to its sender is pending.
    Delivered(Delivery),
}

/// The outcome of a completed message, and the completion to call with it.
#[derive(Debug)]
pub(super) struct CompletedMessage {
    completion: Arc<dyn Completion>,
    outcome: Result<Delivery>,
    /// The bytes of the message, if the engine has allocated its buffer.
    allocated: Option<Vec<u8>>,
}

impl CompletedMessage {
    /// Creates the result of a send, or of a receive with a borrowed buffer.
    pub(super) fn new(completion: Arc<dyn Completion>, outcome: Result<Delivery>) -> Self {
        Self { completion, outcome, allocated: None }
    }

    /// Creates the result of a receive, with its buffer if the engine allocated it.
    pub(super) fn from_receive(receiving: OutstandingReceive, outcome: Result<Delivery>) -> Self {
        let is_allocated = matches!(receiving.message.buffer, ReceiveBuffer::Allocated { .. });
        Self {
            completion: receiving.completion,
            outcome,
            allocated: is_allocated.then_some(receiving.allocated),
        }
    }

    /// Calls the completion. The engine's lock must not be held.
    pub(super) fn notify(self) {
        match (self.outcome, self.allocated) {
            (Ok(delivery), Some(bytes)) => self.completion.complete_allocated(delivery, bytes),
            (outcome, _) => self.completion.complete(outcome),
        }
    }
}

/// Allocates zeroed memory for a message.
pub(super) fn allocate_zeroed(len: usize) -> Result<Vec<u8>> {
    let mut bytes = allocate_reserved(len)?;
    bytes.resize(len, 0);
    Ok(bytes)
}

/// Returns an empty vector with reserved memory for a message.
fn allocate_reserved(len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| {
        let message = format!("cannot allocate a buffer for a message of {len} bytes");
        Error::new(ErrorKind::OutOfMemory, message)
    })?;
    Ok(bytes)
}

/// Returns the error if a receive cannot take a message.
fn mismatch_error(
    from: &PeerName,
    message: &UnexpectedMessage,
    request: &ReceiveRequest,
) -> Option<Error> {
    let (len, capacity) = (message.len, request.buffer.max_bytes());
    let reason = if message.dtype != request.dtype {
        format!("is of type {}, and the receive is for {}", message.dtype, request.dtype)
    } else if len > capacity {
        format!("has {len} bytes, and the receive has room for {capacity} bytes")
    } else {
        return None;
    };
    let message = format!(
        "the message of {from} with tag {} {reason}; nothing was written, and it stays for the next receive",
        message.tag
    );
    Some(Error::new(ErrorKind::Mismatch, message).with_culprit(from.rank))
}
