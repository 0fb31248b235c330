//! The point-to-point streams of a group. A caller does not wait for a single one of them. Instead,
//! this module lists the peers whose streams are ready, and calls the progress handler when one
//! becomes ready.

use super::link_table::LinkTable;
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::base::sync::lock;
use crate::transport::ProgressHandler;
use crate::wait::service_task::ServiceTask;
use std::sync::{Arc, Mutex, Weak};

/// The point-to-point streams of a group and their progress handler.
#[derive(Debug)]
pub(super) struct MessageStreams {
    table: Arc<LinkTable>,
    state: Mutex<MessageState>,
    /// Calls the progress handler on the service thread.
    task: ServiceTask,
}

#[derive(Debug, Default)]
struct MessageState {
    ready_peers: Vec<Rank>,
    /// The peers whose streams had no room.
    blocked_peers: Vec<Rank>,
    progress_handler: Option<Weak<dyn ProgressHandler>>,
    is_paused: bool,
    /// Whether this group counts as one in which a caller polls.
    is_counted: bool,
}

impl MessageStreams {
    /// Creates an empty set.
    ///
    /// # Errors
    /// `System`.
    pub(super) fn new(table: Arc<LinkTable>) -> Result<Arc<Self>> {
        let cell: Arc<Mutex<Weak<Self>>> = Arc::new(Mutex::new(Weak::new()));
        let own = Arc::clone(&cell);
        let task = ServiceTask::new(move || {
            let messages = lock(&own).upgrade();
            messages.iter().for_each(|messages| messages.call_handler());
        })?;
        let messages = Arc::new(Self { table, state: Mutex::default(), task });
        *lock(&cell) = Arc::downgrade(&messages);
        Ok(messages)
    }

    /// Marks a peer as ready: bytes have arrived, there is room, or its state has changed.
    pub(super) fn notify_peer(&self, peer: Rank) {
        let mut state = lock(&self.state);
        if !state.ready_peers.contains(&peer) {
            state.ready_peers.push(peer);
        }
        let is_paused = state.is_paused;
        drop(state);
        if !is_paused {
            self.task.wake();
        }
    }

    /// Records that the stream to a peer has no room. Returns true if no caller polls, so that the
    /// service thread must wait for room.
    pub(super) fn mark_blocked(&self, peer: Rank) -> bool {
        let mut state = lock(&self.state);
        if state.is_counted && !state.blocked_peers.contains(&peer) {
            state.blocked_peers.push(peer);
        }
        !state.is_counted
    }

    /// Removes and returns the peers whose streams had no room while a caller polled.
    pub(super) fn take_blocked(&self) -> Vec<Rank> {
        std::mem::take(&mut lock(&self.state).blocked_peers)
    }

    /// Calls the progress handler even if no stream is ready.
    pub(super) fn wake_progress(&self) {
        if !lock(&self.state).is_paused {
            self.task.wake();
        }
    }

    /// Appends the peers whose streams are ready. While a caller polls, it also tries again to send
    /// to peers whose streams had no room.
    pub(super) fn ready(&self, peers: &mut Vec<Rank>) {
        self.table.message_input.poll();
        let mut state = lock(&self.state);
        let MessageState { ready_peers, blocked_peers, .. } = &mut *state;
        peers.append(ready_peers);
        peers.append(blocked_peers);
    }

    /// Sets the progress handler.
    pub(super) fn set_progress_handler(&self, progress_handler: Weak<dyn ProgressHandler>) {
        let mut state = lock(&self.state);
        state.progress_handler = Some(progress_handler);
        let has_ready = !state.ready_peers.is_empty() && !state.is_paused;
        drop(state);
        if has_ready {
            self.task.wake();
        }
    }

    /// Pauses or resumes calls of the progress handler. `polls` is false if no caller polls while
    /// the handler is paused, because the group has failed.
    pub(super) fn pause(&self, paused: bool, polls: bool) {
        let mut state = lock(&self.state);
        state.is_paused = paused;
        let is_counted = paused && polls;
        let has_changed = std::mem::replace(&mut state.is_counted, is_counted) != is_counted;
        let has_ready = !state.ready_peers.is_empty() && !paused;
        drop(state);
        if has_changed {
            self.table.message_input.count_poller(is_counted);
        }
        if has_ready {
            self.task.wake();
        }
    }

    /// Records that no caller of this group polls any more, because the group has failed.
    pub(super) fn stop_counting(&self) {
        if std::mem::take(&mut lock(&self.state).is_counted) {
            self.table.message_input.count_poller(false);
        }
    }

    /// Removes the progress handler.
    pub(super) fn stop(&self) {
        let handler = lock(&self.state).progress_handler.take();
        drop(handler);
        self.stop_counting();
    }

    fn call_handler(&self) {
        let state = lock(&self.state);
        let handler = state.progress_handler.as_ref().and_then(Weak::upgrade);
        let is_paused = state.is_paused;
        drop(state);
        if let Some(handler) = handler.filter(|_| !is_paused) {
            handler.on_streams_ready();
        }
    }
}
