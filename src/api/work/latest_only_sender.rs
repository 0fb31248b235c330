//! Sends messages of the library for which only the newest counts. Per destination, one message is
//! in flight and at most one more waits: the newest.
//!
//! A rank that hangs receives nothing, while other ranks may send to it again and again. This
//! sender keeps at most two messages for it: one in the engine, and the newest one. A newer message
//! replaces the waiting one. The waiting message is sent when the first has completed.
//!
//! The sender holds no reference to its group. Completions come on any thread, also within a send.
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

/// The messages of one tag to the ranks of a group.
#[derive(Debug)]
pub(in crate::api) struct LatestOnlySender {
    tag: u32,
    /// The ranks with a message in flight, and the message that waits behind it.
    in_flight: Mutex<HashMap<Rank, Option<Vec<u8>>>>,
}

/// A message in flight, which owns its buffer.
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

    /// Sends a message to a rank. It replaces a message to this rank that was not sent yet.
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

    /// Returns whether all messages to these ranks have been sent or replaced.
    pub(in crate::api) fn is_flushed(&self, to: &[Rank]) -> bool {
        let in_flight = self.lock_in_flight();
        in_flight.is_empty() || !to.iter().any(|to| in_flight.contains_key(to))
    }

    /// Posts a message to a rank that is marked as in flight. The message has no deadline: a
    /// deadline that passes during the transfer would fail the group.
    fn post_send(self: &Arc<Self>, group: &Arc<Group>, to: Rank, bytes: &[u8]) -> Result<()> {
        let memory = PooledBuffer::copy_of(bytes);
        let (tag, dtype, deadline) = (self.tag, DataType::U8, Deadline::never());
        let message =
            SendRequest { to, tag, dtype, bytes: memory.as_src(), deadline, is_synchronous: false };
        let (sender, weak_group) = (Arc::clone(self), Arc::downgrade(group));
        let in_flight = Arc::new(InFlightSend { _memory: memory, to, sender, group: weak_group });
        // No lock is held here: the engine may complete the send within the call.
        let posted = group.messaging_engine().and_then(|engine| engine.send(message, in_flight));
        posted.inspect_err(|_| drop(self.lock_in_flight().remove(&to)))
    }

    /// Returns the waiting message after a send has completed. Returns nothing if no message waits
    /// or the rank is unreachable.
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
        // This thread may be one that must not drop the group.
        Group::release(group);
    }
}
