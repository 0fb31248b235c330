//! What has been posted and has not ended: sends, receives with their memory, and what is told of
//! them at the end.
//!
//! Must not know: links, frames, how messages and receives find each other.

use super::unexpected::{Body, Message};
use crate::base::buffer::Dst;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::transport::{Completion, Delivery, Incoming, Outgoing, PeerName, Room};
use std::sync::Arc;
use std::time::Instant;

/// A send that has not ended.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) message: Outgoing,
    pub(super) done: Arc<dyn Completion>,
    pub(super) due: Option<Instant>,
    pub(super) stage: SendStage,
    /// The place on the desk where its buffer is lent.
    pub(super) place: Option<u16>,
}

/// How far a send has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendStage {
    /// It goes whole as soon as there is room.
    Whole,
    /// It has been offered, or soon is.
    Offered,
    /// It goes in pieces.
    Pulled { attempt: u32, sent: usize, begun: bool },
    /// It is to this rank itself, and waits for its receive.
    Own { arrival: u64 },
}

/// A receive that has not ended.
#[derive(Debug)]
pub(super) struct Receiving {
    pub(super) message: Incoming,
    pub(super) done: Arc<dyn Completion>,
    pub(super) due: Option<Instant>,
    pub(super) stage: ReceiveStage,
    /// What was made for its message, where that is not lent: reserved at once, used as far as
    /// bytes have come.
    pub(super) grown: Vec<u8>,
    /// It is for one message that a probe took, and takes no other.
    pub(super) is_matched: bool,
}

impl Receiving {
    /// Where its message goes, of that length from the offset on. There is room, since they fit.
    pub(super) fn room(&mut self, offset: usize, len: usize) -> Dst<'_> {
        match self.message.into {
            Room::Lent(bytes) => bytes.slice(offset, len),
            Room::Grows { .. } => {
                // Within what was reserved, and not all at once, for which others would wait.
                let end = self.grown.len().max(offset + len);
                self.grown.resize(end, 0);
                Dst::from(self.grown.as_mut_slice()).slice(offset, len)
            }
        }
    }

    /// Why it cannot take a message, if so; else there is room for it from now on. A message that
    /// is held brings its own memory.
    pub(super) fn refuses(&mut self, from: &PeerName, message: &Message) -> Option<Error> {
        if let Some(error) = mismatch(from, message, &self.message) {
            return Some(error);
        }
        let is_here = matches!(&message.body, Body::Held(bytes) if bytes.len() == message.len);
        if is_here || matches!(self.message.into, Room::Lent(_)) {
            return None;
        }
        match reserve(message.len) {
            Ok(bytes) => self.grown = bytes,
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
    Filling { from: Rank, tag: u32, len: usize },
    /// It has asked for a message that was offered, or is to read it; nothing has come.
    Asked { from: Rank, number: u64 },
    /// Bytes of that message have come.
    Begun { from: Rank, number: u64 },
    /// All of it has, and its sender is told.
    Delivered(Delivery),
}

/// Something that has ended, and for whom.
#[derive(Debug)]
pub(super) struct Ended {
    done: Arc<dyn Completion>,
    outcome: Result<Delivery>,
    /// The message, where the engine has made its memory.
    grown: Option<Vec<u8>>,
}

impl Ended {
    /// Something whose memory was lent, if it needed any.
    pub(super) fn new(done: Arc<dyn Completion>, outcome: Result<Delivery>) -> Self {
        Self { done, outcome, grown: None }
    }

    /// A receive, with its message where that was not lent the memory.
    pub(super) fn of_receive(receiving: Receiving, outcome: Result<Delivery>) -> Self {
        let grows = matches!(receiving.message.into, Room::Grows { .. });
        Self { done: receiving.done, outcome, grown: grows.then_some(receiving.grown) }
    }

    /// Tells of it. The engine's lock must not be held.
    pub(super) fn tell(self) {
        match (self.outcome, self.grown) {
            (Ok(delivery), Some(bytes)) => self.done.complete_grown(delivery, bytes),
            (outcome, _) => self.done.complete(outcome),
        }
    }
}

/// Zeroed memory for a message.
pub(super) fn hold(len: usize) -> Result<Vec<u8>> {
    let mut bytes = reserve(len)?;
    bytes.resize(len, 0);
    Ok(bytes)
}

/// Memory for a message, none of it used.
fn reserve(len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| {
        let message = format!("no memory to hold a message of {len} bytes");
        Error::new(ErrorKind::OutOfMemory, message)
    })?;
    Ok(bytes)
}

/// Why a receive cannot take a message, if so.
fn mismatch(from: &PeerName, message: &Message, wanted: &Incoming) -> Option<Error> {
    let (len, room) = (message.len, wanted.into.most());
    let why = if message.dtype != wanted.dtype {
        format!("is of type {}, and the receive is for {}", message.dtype, wanted.dtype)
    } else if len > room {
        format!("has {len} bytes, and the receive has room for {room}")
    } else {
        return None;
    };
    let message = format!(
        "the message of {from} with tag {} {why}; nothing was written, and it stays for the next receive",
        message.tag
    );
    Some(Error::new(ErrorKind::Mismatch, message).with_culprit(from.rank))
}
