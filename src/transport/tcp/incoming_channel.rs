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
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

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
    inbox: Mutex<Inbox>,
    /// The number of entries of the inbox.
    inbox_entries: AtomicUsize,
    /// The group's mesh, once it has registered.
    user: Mutex<Weak<dyn LinkUser>>,
    /// The number that the sender has given to the channel.
    number: OnceLock<u32>,
    /// The number of bytes that have arrived. Only the thread that reads the link changes it.
    received: AtomicU64,
    /// The number of bytes that were taken.
    taken: AtomicU64,
    /// The number of bytes that the sender may send.
    granted: AtomicU64,
    /// Whether no further byte arrives, because the sender has left the group.
    is_ended: AtomicBool,
}

/// The bytes that no caller has taken yet.
#[derive(Debug, Default)]
struct Inbox {
    entries: VecDeque<Vec<u8>>,
    /// The number of bytes of the first entry that were taken.
    front_taken: usize,
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
        Arc::new(Self {
            from,
            channel,
            inbox: Mutex::default(),
            inbox_entries: AtomicUsize::new(0),
            user: Mutex::new(user),
            number: OnceLock::new(),
            received: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            granted: AtomicU64::new(WINDOW),
            is_ended: AtomicBool::new(false),
        })
    }

    pub(super) fn set_user(&self, user: Weak<dyn LinkUser>) {
        *lock(&self.user) = user;
    }

    pub(super) fn user(&self) -> Option<Arc<dyn LinkUser>> {
        lock(&self.user).upgrade()
    }

    /// Begins to receive from a sender, which has given this number to the channel. Returns false
    /// if the channel already has a number.
    pub(super) fn open(&self, number: u32) -> bool {
        self.number.set(number).is_ok()
    }

    /// Returns true if the sender has opened the channel.
    pub(super) fn is_open(&self) -> bool {
        self.number.get().is_some()
    }

    /// Records that no further byte arrives.
    pub(super) fn end(&self) {
        self.is_ended.store(true, Ordering::Release);
    }

    /// Returns true if all bytes of the channel were taken, and no further byte arrives.
    pub(super) fn is_drained(&self) -> bool {
        // The last bytes were put into the inbox before the end.
        self.is_ended.load(Ordering::Acquire) && !self.has_bytes()
    }

    /// Returns true if bytes wait in the inbox.
    pub(super) fn has_bytes(&self) -> bool {
        self.inbox_entries.load(Ordering::Acquire) > 0
    }

    /// Counts a frame that arrives. Returns false if the sender was not allowed to send it. Called
    /// by the thread that reads the link.
    pub(super) fn admit(&self, payload: usize) -> bool {
        let received = self.received.load(Ordering::Relaxed) + payload as u64;
        self.received.store(received, Ordering::Relaxed);
        // The sender has read a grant only after it was stored here.
        received <= self.granted.load(Ordering::Acquire)
    }

    /// Puts bytes into the inbox.
    pub(super) fn put(&self, bytes: Vec<u8>) {
        let mut inbox = lock(&self.inbox);
        if !bytes.is_empty() && !inbox.is_abandoned {
            inbox.entries.push_back(bytes);
            self.inbox_entries.store(inbox.entries.len(), Ordering::Release);
        }
    }

    /// Drops the bytes in the inbox, and all that still arrive.
    pub(super) fn abandon(&self) {
        let mut inbox = lock(&self.inbox);
        *inbox = Inbox { is_abandoned: true, ..Inbox::default() };
        self.inbox_entries.store(0, Ordering::Release);
    }

    /// Takes bytes from the inbox. Returns their number, and the grant that must be sent.
    pub(super) fn take(&self, into: Dst<'_>) -> (usize, Option<DueGrant>) {
        if !self.has_bytes() {
            return (0, None);
        }
        let mut inbox = lock(&self.inbox);
        let mut taken = 0;
        while taken < into.len()
            && let Some(front) = inbox.entries.front()
        {
            let rest = &front[inbox.front_taken..];
            let count = rest.len().min(into.len() - taken);
            into.slice(taken, count).copy_from(Src::from(&rest[..count]));
            taken += count;
            if count == rest.len() {
                inbox.entries.pop_front();
                inbox.front_taken = 0;
            } else {
                inbox.front_taken += count;
            }
        }
        self.inbox_entries.store(inbox.entries.len(), Ordering::Release);
        drop(inbox);
        (taken, self.count_taken(taken))
    }

    /// Records bytes that the caller has taken, from the inbox or directly. Returns the grant that
    /// must be sent.
    pub(super) fn count_taken(&self, bytes: usize) -> Option<DueGrant> {
        let taken = self.taken.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        let granted = self.granted.load(Ordering::Relaxed);
        // Another thread may have taken more bytes, and granted more.
        if granted.saturating_sub(taken) >= GRANT_BELOW {
            return None;
        }
        let number = *self.number.get()?;
        let total = taken + WINDOW;
        // If another thread changes it first, it sends the grant.
        self.granted
            .compare_exchange(granted, total, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
            .then_some(DueGrant { number, total })
    }
}
