//! A channel at its receiver: the bytes from one rank of a group to another, on one kind of stream.
//! The bytes arrive in frames of a link ([`incoming_link`](super::incoming_link)). Usually the link
//! writes them directly into the caller's memory. Bytes that arrive while another thread reads the
//! link wait in the *inbox* of the channel.
//!
//! The sender may send at most [`WINDOW`] bytes that the receiver has not taken yet. So the inbox
//! is bounded, and a link can always be read to its end: no channel holds up another one.

use super::link_user::LinkUser;
use crate::base::buffer::{Dst, Src};
use crate::base::ids::Rank;
use crate::base::sync::lock;
use crate::transport::Channel;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

/// The maximum number of bytes of a channel that the receiver has not taken yet.
pub(super) const WINDOW: u64 = 4 << 20;
/// The receiver grants further bytes when the sender may send less than this.
const GRANT_BELOW: u64 = WINDOW / 2;

/// The receiving end of a channel.
#[derive(Debug)]
pub(super) struct IncomingChannel {
    /// The sending rank.
    pub(super) from: Rank,
    /// The kind of the stream.
    pub(super) channel: Channel,
    state: Mutex<IncomingChannelState>,
}

#[derive(Debug)]
struct IncomingChannelState {
    /// The group's mesh, once it has registered.
    user: Weak<dyn LinkUser>,
    inbox: VecDeque<Vec<u8>>,
    /// The number of bytes of the first entry of `inbox` that were taken.
    front_taken: usize,
    /// The number of bytes that have arrived.
    received: u64,
    /// The number of bytes that were taken.
    taken: u64,
    /// The number of bytes that the sender may send.
    granted: u64,
    /// The number that the sender has given to the channel.
    number: Option<u32>,
    /// Whether no further byte arrives, because the sender has left the group.
    is_ended: bool,
    /// Whether bytes are dropped, because the receiver has left the group.
    is_abandoned: bool,
}

/// A grant that must be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DueGrant {
    pub(super) number: u32,
    pub(super) total: u64,
}

impl IncomingChannel {
    pub(super) fn new(from: Rank, channel: Channel, user: Weak<dyn LinkUser>) -> Arc<Self> {
        let state = IncomingChannelState {
            user,
            inbox: VecDeque::new(),
            front_taken: 0,
            received: 0,
            taken: 0,
            granted: WINDOW,
            number: None,
            is_ended: false,
            is_abandoned: false,
        };
        Arc::new(Self { from, channel, state: Mutex::new(state) })
    }

    pub(super) fn set_user(&self, user: Weak<dyn LinkUser>) {
        lock(&self.state).user = user;
    }

    pub(super) fn user(&self) -> Option<Arc<dyn LinkUser>> {
        lock(&self.state).user.upgrade()
    }

    /// Begins to receive from a sender, which has given this number to the channel. Returns false
    /// if the channel already has a number.
    pub(super) fn open(&self, number: u32) -> bool {
        lock(&self.state).number.replace(number).is_none()
    }

    /// Returns true if the sender has opened the channel.
    pub(super) fn is_open(&self) -> bool {
        lock(&self.state).number.is_some()
    }

    /// Records that no further byte arrives.
    pub(super) fn end(&self) {
        lock(&self.state).is_ended = true;
    }

    /// Returns true if all bytes of the channel were taken, and no further byte arrives.
    pub(super) fn is_drained(&self) -> bool {
        let state = lock(&self.state);
        state.is_ended && state.inbox.is_empty()
    }

    /// Returns true if bytes wait in the inbox.
    pub(super) fn has_bytes(&self) -> bool {
        !lock(&self.state).inbox.is_empty()
    }

    /// Counts a frame that arrives. Returns false if the sender was not allowed to send it.
    pub(super) fn admit(&self, payload: usize) -> bool {
        let mut state = lock(&self.state);
        state.received += payload as u64;
        state.received <= state.granted
    }

    /// Puts bytes into the inbox.
    pub(super) fn put(&self, bytes: Vec<u8>) {
        let mut state = lock(&self.state);
        if !bytes.is_empty() && !state.is_abandoned {
            state.inbox.push_back(bytes);
        }
    }

    /// Drops the bytes in the inbox, and all that still arrive.
    pub(super) fn abandon(&self) {
        let mut state = lock(&self.state);
        state.is_abandoned = true;
        state.inbox = VecDeque::new();
        state.front_taken = 0;
    }

    /// Takes bytes from the inbox. Returns their number, and the grant that must be sent.
    pub(super) fn take(&self, into: Dst<'_>) -> (usize, Option<DueGrant>) {
        let mut state = lock(&self.state);
        let mut taken = 0;
        while taken < into.len()
            && let Some(front) = state.inbox.front()
        {
            let rest = &front[state.front_taken..];
            let count = rest.len().min(into.len() - taken);
            into.slice(taken, count).copy_from(Src::from(&rest[..count]));
            taken += count;
            if count == rest.len() {
                state.inbox.pop_front();
                state.front_taken = 0;
            } else {
                state.front_taken += count;
            }
        }
        (taken, state.account(taken))
    }

    /// Records bytes that went directly into the caller's memory. Returns the grant that must be
    /// sent.
    pub(super) fn count_direct(&self, bytes: usize) -> Option<DueGrant> {
        lock(&self.state).account(bytes)
    }
}

impl IncomingChannelState {
    fn account(&mut self, taken: usize) -> Option<DueGrant> {
        self.taken += taken as u64;
        let number = self.number?;
        if self.granted - self.taken >= GRANT_BELOW {
            return None;
        }
        self.granted = self.taken + WINDOW;
        Some(DueGrant { number, total: self.granted })
    }
}
