//! Sends internal messages of the library of a kind for which only the newest message to each rank
//! matters, for example a state.
//!
//! A rank that hangs does not receive, while other ranks may send to it again and again. To bound
//! the memory, this sender keeps at most two messages for each destination: one in flight (posted
//! to the engine), and one that waits. A newer message replaces the waiting message. When the
//! message in flight has completed, the waiting message is posted. For example, four messages to a
//! rank that does not receive:
//!
//! | sent | in flight | waiting |
//! |---|---|---|
//! | 1 | 1 | – |
//! | 2 | 1 | 2 |
//! | 3 | 1 | 3 |
//! | 4 | 1 | 4 |
//!
//! The sender holds no reference to its group. A completion may run on any thread, even inside the
//! call that posts the send.
//!
//! This module does not depend on the content of the messages.

use crate::api::group::process_group::Group;
use crate::backend::buffer_pool::PooledBuffer;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::base::sync::lock;
use crate::transport::{Completion, Delivery, SendRequest};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The sender of all messages with one tag to the ranks of a group.
#[derive(Debug)]
pub(in crate::api) struct LatestOnlySender {
    tag: u32,
    /// The ranks to which a message is in flight, each with the message that waits.
    in_flight: Mutex<HashMap<Rank, Option<Vec<u8>>>>,
}

/// A message in flight. It owns the buffer of the message.
#[derive(Debug)]
struct InFlightSend {
    _memory: PooledBuffer,
    to: Rank,
    sender: Arc<LatestOnlySender>,
    group: Weak<Group>,
}

impl LatestOnlySender {
    pub(in crate::api) fn new(tag: u32) -> Self {
        Self { tag, in_flight: Mutex::default() }
    }

    fn lock_in_flight(&self) -> MutexGuard<'_, HashMap<Rank, Option<Vec<u8>>>> {
        lock(&self.in_flight)
    }

    /// Sends a message to a rank. The message replaces a message to this rank that still waits.
    ///
    /// # Errors
    /// The errors of the engine's send.
    pub(in crate::api) fn send_latest(
        self: &Arc<Self>,
        group: &Arc<Group>,
        to: Rank,
        bytes: &[u8],
    ) -> Result<()> {
        {
            let mut in_flight = self.lock_in_flight();
            if let Some(newest) = in_flight.get_mut(&to) {
                *newest = Some(bytes.to_vec());
                return Ok(());
            }
            in_flight.insert(to, None);
        }
        self.post_send(group, to, bytes)
    }

    /// Returns whether no message to these ranks is in flight or waits.
    pub(in crate::api) fn is_flushed(&self, to: &[Rank]) -> bool {
        let in_flight = self.lock_in_flight();
        in_flight.is_empty() || !to.iter().any(|to| in_flight.contains_key(to))
    }

    /// Posts a message to a rank. The caller has already marked the rank as having a message in
    /// flight. The message has no deadline, because a deadline that passes during the transfer
    /// would fail the group.
    fn post_send(self: &Arc<Self>, group: &Arc<Group>, to: Rank, bytes: &[u8]) -> Result<()> {
        let memory = PooledBuffer::copy_of(bytes);
        let (tag, dtype, deadline) = (self.tag, DataType::U8, Deadline::never());
        let message =
            SendRequest { to, tag, dtype, bytes: memory.as_src(), deadline, is_synchronous: false };
        let (sender, weak_group) = (Arc::clone(self), Arc::downgrade(group));
        let in_flight = Arc::new(InFlightSend { _memory: memory, to, sender, group: weak_group });
        // The engine may complete the send within this call. Therefore the lock is not held here.
        let posted = group.messaging_engine().and_then(|engine| engine.send(message, in_flight));
        posted.inspect_err(|_| drop(self.lock_in_flight().remove(&to)))
    }

    /// Returns the waiting message to a rank after the send in flight has completed. Returns `None`
    /// if no message waits, or if the send has failed, which means that the rank is unreachable.
    fn take_next(&self, to: Rank, outcome: &Result<Delivery>) -> Option<Vec<u8>> {
        let mut in_flight = self.lock_in_flight();
        let newest = in_flight.get_mut(&to).and_then(Option::take).filter(|_| outcome.is_ok());
        if newest.is_none() {
            in_flight.remove(&to);
        }
        newest
    }
}

impl Completion for InFlightSend {
    fn complete(&self, outcome: Result<Delivery>) {
        let Self { to, sender, group, .. } = self;
        let Some(newest) = sender.take_next(*to, &outcome) else { return };
        let Some(group) = group.upgrade() else { return };
        // An error means that the rank is unreachable. Such a rank does not need the message.
        drop(sender.post_send(&group, *to, &newest));
        // Some threads must not drop the last reference to a group, and this may be one of them.
        Group::release(group);
    }
}
