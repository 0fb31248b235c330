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
use crate::backend::lent::Lent;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::transport::{Completion, Delivery, Outgoing};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Messages of one tag to the ranks of a group.
#[derive(Debug)]
pub(super) struct Outbox {
    tag: u32,
    /// The ranks that something is on its way to, and what waits behind it.
    busy: Mutex<HashMap<Rank, Option<Vec<u8>>>>,
}

/// A message on its way, which keeps its memory.
#[derive(Debug)]
struct Sent {
    _memory: Lent,
    to: Rank,
    outbox: Arc<Outbox>,
    group: Weak<Group>,
}

impl Outbox {
    pub(super) fn new(tag: u32) -> Self {
        Self { tag, busy: Mutex::default() }
    }

    fn busy(&self) -> MutexGuard<'_, HashMap<Rank, Option<Vec<u8>>>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says something to a rank, instead of whatever has not gone to it yet.
    ///
    /// # Errors
    /// Those of the engine's send.
    pub(super) fn say(self: &Arc<Self>, group: &Arc<Group>, to: Rank, bytes: &[u8]) -> Result<()> {
        {
            let mut busy = self.busy();
            if let Some(newest) = busy.get_mut(&to) {
                *newest = Some(bytes.to_vec());
                return Ok(());
            }
            busy.insert(to, None);
        }
        self.hand_over(group, to, bytes)
    }

    /// Whether everything that was said to some ranks, and still counts, has gone.
    pub(super) fn has_gone(&self, to: &[Rank]) -> bool {
        let busy = self.busy();
        busy.is_empty() || !to.iter().any(|to| busy.contains_key(to))
    }

    /// Gives the engine a message to a rank that counts as busy. Without a deadline: one that
    /// passed in the middle would fail the group.
    fn hand_over(self: &Arc<Self>, group: &Arc<Group>, to: Rank, bytes: &[u8]) -> Result<()> {
        let memory = Lent::copy_of(bytes);
        let (tag, dtype, deadline) = (self.tag, DataType::U8, Deadline::never());
        let message =
            Outgoing { to, tag, dtype, bytes: memory.bytes(), deadline, synchronous: false };
        let (outbox, group_of) = (Arc::clone(self), Arc::downgrade(group));
        let sent = Arc::new(Sent { _memory: memory, to, outbox, group: group_of });
        // No lock is held: it may be told within the call.
        let posted = group.engine().and_then(|engine| engine.send(message, sent));
        posted.inspect_err(|_| drop(self.busy().remove(&to)))
    }

    /// What follows a message that has ended; nothing where none waits, or nothing reaches the rank
    /// any more.
    fn next(&self, to: Rank, outcome: &Result<Delivery>) -> Option<Vec<u8>> {
        let mut busy = self.busy();
        let newest = busy.get_mut(&to).and_then(Option::take).filter(|_| outcome.is_ok());
        if newest.is_none() {
            busy.remove(&to);
        }
        newest
    }
}

impl Completion for Sent {
    fn complete(&self, outcome: Result<Delivery>) {
        let Self { to, outbox, group, .. } = self;
        let Some(newest) = outbox.next(*to, &outcome) else { return };
        let Some(group) = group.upgrade() else { return };
        // Whom nothing reaches any more will not miss it.
        drop(outbox.hand_over(&group, *to, &newest));
        // This may be a thread that must not be the one to end a group.
        callbacks::let_go(group);
    }
}
