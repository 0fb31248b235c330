//! What a rank says to others in messages of the library's own, of which only the newest counts:
//! one at a time is on its way to each rank, and the newest waits behind it.
//!
//! A rank that hangs takes over nothing, for as long as it hangs, while others may have something
//! to say to it again and again. What is kept for it is two messages, however often that is: one
//! with the engine, and the newest, which takes the place of any other that has not gone, and
//! follows as soon as the first one has.
//!
//! It does not keep its group. Completions come on any thread, also within a send.
//!
//! Must not know: what is said.

use super::callbacks;
use super::group::Group;
use crate::backend::buffer_pool::PooledBuffer;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::transport::{Completion, Delivery, SendRequest};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Messages of one tag to the ranks of a group.
#[derive(Debug)]
pub(super) struct LatestOnlySender {
    tag: u32,
    /// The ranks that something is on its way to, and what waits behind it.
    in_flight: Mutex<HashMap<Rank, Option<Vec<u8>>>>,
}

/// A message on its way, which keeps its memory.
#[derive(Debug)]
struct InFlightSend {
    _memory: PooledBuffer,
    to: Rank,
    sender: Arc<LatestOnlySender>,
    group: Weak<Group>,
}

impl LatestOnlySender {
    pub(super) fn new(tag: u32) -> Self {
        Self { tag, in_flight: Mutex::default() }
    }

    fn lock_in_flight(&self) -> MutexGuard<'_, HashMap<Rank, Option<Vec<u8>>>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says something to a rank, instead of whatever has not gone to it yet.
    ///
    /// # Errors
    /// Those of the engine's send.
    pub(super) fn send_latest(
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

    /// Whether everything that was said to some ranks, and still counts, has gone.
    pub(super) fn is_flushed(&self, to: &[Rank]) -> bool {
        let in_flight = self.lock_in_flight();
        in_flight.is_empty() || !to.iter().any(|to| in_flight.contains_key(to))
    }

    /// Gives the engine a message to a rank that counts as busy. Without a deadline: one that
    /// passed in the middle would fail the group.
    fn post_send(self: &Arc<Self>, group: &Arc<Group>, to: Rank, bytes: &[u8]) -> Result<()> {
        let memory = PooledBuffer::copy_of(bytes);
        let (tag, dtype, deadline) = (self.tag, DataType::U8, Deadline::never());
        let message =
            SendRequest { to, tag, dtype, bytes: memory.as_src(), deadline, is_synchronous: false };
        let (sender, weak_group) = (Arc::clone(self), Arc::downgrade(group));
        let in_flight = Arc::new(InFlightSend { _memory: memory, to, sender, group: weak_group });
        // No lock is held: it may be told within the call.
        let posted = group.messaging_engine().and_then(|engine| engine.send(message, in_flight));
        posted.inspect_err(|_| drop(self.lock_in_flight().remove(&to)))
    }

    /// What follows a message that has ended; nothing where none waits, or nothing reaches the rank
    /// any more.
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
        // Whom nothing reaches any more will not miss it.
        drop(sender.post_send(&group, *to, &newest));
        // This may be a thread that must not be the one to end a group.
        callbacks::release_group(group);
    }
}
