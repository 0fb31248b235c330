//! The events of links that the groups must handle: ends, departures, control frames and failed
//! attempts. Only the service thread hands them to the groups, one at a time. The threads that find
//! them may hold locks of a group, which its handlers take.

use super::link_frame::ChannelRanks;
use super::link_user::{ChannelUser, LinkEnd, LinkKey, LinkUser, SuspensionEnd};
use crate::base::error::{Error, Result};
use crate::base::ids::{Nonce, Rank};
use crate::base::sync::lock;
use crate::transport::Channel;
use crate::wait::service_task::ServiceTask;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};

/// An event of a link.
#[derive(Debug)]
pub(super) enum LinkEvent {
    /// A link has ended on which `users` have channels. `number` is that of an incoming link.
    Ended { key: LinkKey, number: Option<u64>, end: LinkEnd, users: Vec<ChannelUser> },
    /// The connection of an outgoing link broke.
    Broken { key: LinkKey },
    /// The connection of the incoming link with this number broke.
    Suspended { key: LinkKey, number: u64, cause: std::io::Error },
    /// The connection of the incoming link with this number was not replaced. `is_gone` tells
    /// whether the other process is gone.
    NotReplaced { key: LinkKey, number: u64, reason: SuspensionEnd },
    /// A rank has left its group, with the reason if the group has failed.
    Left { key: LinkKey, ranks: ChannelRanks, reason: Option<Error> },
    /// A control frame has arrived on the incoming link with this number.
    Control { key: LinkKey, number: u64, ranks: ChannelRanks, bytes: Vec<u8> },
    /// A message link to another process was connected.
    Connected { key: LinkKey },
    /// A link to a rank of the user's group could not be connected.
    Unreachable { user: Arc<dyn LinkUser>, to: Rank, channel: Channel, error: Error },
}

/// A control frame for a group that this process does not know yet.
#[derive(Debug)]
pub(super) struct EarlyControl {
    pub(super) process: Nonce,
    pub(super) from: Rank,
    pub(super) link: u64,
    pub(super) bytes: Vec<u8>,
}

/// The events that the service thread has not handled yet.
#[derive(Debug, Default)]
pub(super) struct LinkEvents {
    queue: Mutex<VecDeque<LinkEvent>>,
    task: OnceLock<ServiceTask>,
}

impl LinkEvents {
    /// Sets the function that handles the events on the service thread.
    ///
    /// # Errors
    /// `System`.
    pub(super) fn start(&self, handle: impl Fn() + Send + Sync + 'static) -> Result<()> {
        let task = ServiceTask::new(handle)?;
        // Fails only if the function is set already.
        drop(self.task.set(task));
        Ok(())
    }

    /// Adds an event.
    pub(super) fn push(&self, event: LinkEvent) {
        lock(&self.queue).push_back(event);
        if let Some(task) = self.task.get() {
            task.wake();
        }
    }

    /// Removes and returns the departures and the control frames, which may report departures.
    pub(super) fn take_reports(&self) -> Vec<LinkEvent> {
        let is_report =
            |event: &LinkEvent| matches!(event, LinkEvent::Left { .. } | LinkEvent::Control { .. });
        let mut queue = lock(&self.queue);
        let (reports, others): (VecDeque<_>, VecDeque<_>) = queue.drain(..).partition(is_report);
        *queue = others;
        reports.into()
    }

    /// Removes and returns the oldest event.
    pub(super) fn take(&self) -> Option<LinkEvent> {
        lock(&self.queue).pop_front()
    }
}
