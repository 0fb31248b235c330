//! The send window of a control message. It counts the fragments of the message that are in flight
//! to each rank (posted and not completed), and keeps the first send error.
//!
//! This module does not depend on the content of messages.

use super::definition::format_ranks;
use super::fragment::FragmentBuffer;
use crate::api::group::process_group::Group;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::sync::lock;
use crate::transport::{Completion, Delivery, LARGEST_TAG, PointToPoint, SendRequest};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The tag of control messages.
pub(super) const CONTROL_TAG: u32 = LARGEST_TAG + 1;

/// The maximum number of fragments of a message that are in flight. It is far below the engine's
/// limit for outstanding messages, which also applies to the messages of the caller.
pub(super) const MAX_FRAGMENTS_IN_FLIGHT: usize = 256;

/// The first interval between two polls of a wait. Further intervals become longer.
pub(super) const FIRST_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The maximum interval between two polls of a wait.
pub(super) const MAX_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The send window of one message.
#[derive(Debug)]
pub(super) struct SendWindow {
    /// The number of fragments in flight to each rank.
    in_flight: Vec<(Rank, AtomicUsize)>,
    first_error: Mutex<Option<Error>>,
}

impl SendWindow {
    /// Creates the window of a message to these ranks.
    pub(super) fn new(to: &[Rank]) -> Self {
        let in_flight = to.iter().map(|&rank| (rank, AtomicUsize::new(0))).collect();
        Self { in_flight, first_error: Mutex::default() }
    }

    /// Returns the number of fragments in flight to all ranks.
    fn total_in_flight(&self) -> usize {
        self.in_flight.iter().map(|(_, in_flight)| in_flight.load(Ordering::Acquire)).sum()
    }

    fn in_flight_to(&self, to: Rank) -> Option<&AtomicUsize> {
        self.in_flight.iter().find_map(|(rank, in_flight)| (*rank == to).then_some(in_flight))
    }

    /// Takes the first send error.
    pub(super) fn take_error(&self) -> Option<Error> {
        lock(&self.first_error).take()
    }

    /// Counts a fragment as in flight.
    fn add_in_flight(&self, to: Rank) {
        if let Some(in_flight) = self.in_flight_to(to) {
            in_flight.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Counts a fragment as sent or failed.
    fn remove_in_flight(&self, to: Rank) {
        if let Some(in_flight) = self.in_flight_to(to) {
            in_flight.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Waits until at most `max_in_flight` fragments are in flight to all ranks together.
    pub(super) fn await_in_flight(
        &self,
        group: &Group,
        max_in_flight: usize,
        limit: &Deadline,
    ) -> Result<()> {
        let engine = message_engine(group)?;
        let is_below_limit = || self.total_in_flight() <= max_in_flight;
        while !is_below_limit() {
            if let Some(error) = group.failure() {
                return Err(error);
            }
            if limit.has_passed() {
                return Err(self.timeout_error(group, limit));
            }
            engine.progress_until(&is_below_limit, &limit.capped(MAX_POLL_INTERVAL));
        }
        Ok(())
    }

    /// Returns the timeout error, which names the ranks to which fragments are in flight.
    #[cold]
    fn timeout_error(&self, group: &Group, limit: &Deadline) -> Error {
        let has_in_flight = |in_flight: &AtomicUsize| in_flight.load(Ordering::Acquire) > 0;
        let pending_ranks = self.in_flight.iter().filter(|(_, in_flight)| has_in_flight(in_flight));
        let pending_ranks: Vec<Rank> = pending_ranks.map(|&(rank, _)| rank).collect();
        let message = format!(
            "{} waited {} ms for {} of group {} to acknowledge the control messages for the \
             creation of another group",
            group.rank_location().name,
            limit.elapsed().as_millis(),
            format_ranks(&pending_ranks),
            group.name(),
        );
        let error = Error::new(ErrorKind::Timeout, message);
        match pending_ranks[..] {
            [rank] => error.with_culprit(rank),
            _ => error,
        }
    }

    /// Posts a fragment. If the engine has too many outstanding messages (of the caller or of the
    /// library), waits until the limit. Without a limit, returns the error immediately.
    pub(super) fn post_fragment(
        self: &Arc<Self>,
        group: &Group,
        to: Rank,
        buffer: &Arc<FragmentBuffer>,
        limit: Option<&Deadline>,
    ) -> Result<()> {
        let (tag, dtype, bytes) = (CONTROL_TAG, DataType::U8, buffer.bytes());
        // A fragment has no deadline. If its deadline passed during the transfer, the group would
        // fail, and a late receiver still needs the fragment.
        let deadline = Deadline::never();
        let engine = message_engine(group)?;
        loop {
            let sent = FragmentSend { to, _buffer: Arc::clone(buffer), window: Arc::clone(self) };
            self.add_in_flight(to);
            let Err(error) = engine.send(
                SendRequest { to, tag, dtype, bytes, deadline, is_synchronous: false },
                Arc::new(sent),
            ) else {
                return Ok(());
            };
            self.remove_in_flight(to);
            let limit = limit.filter(|limit| !limit.has_passed());
            match (error.kind(), limit, group.failure()) {
                (ErrorKind::OutOfMemory, Some(limit), None) => {
                    engine.progress_until(&|| false, &limit.capped(FIRST_POLL_INTERVAL));
                }
                _ => return Err(error),
            }
        }
    }
}

/// Returns the engine for point-to-point messages of a group.
pub(super) fn message_engine(group: &Group) -> Result<&dyn PointToPoint> {
    group
        .messaging_engine()
        .map_err(|error| error.context("the creation of a group needs messages between ranks"))
}

/// The completion of a fragment that is in flight to one rank. The sends of a fragment to several
/// ranks share its buffer.
#[derive(Debug)]
struct FragmentSend {
    to: Rank,
    _buffer: Arc<FragmentBuffer>,
    window: Arc<SendWindow>,
}

impl Completion for FragmentSend {
    fn complete(&self, outcome: Result<Delivery>) {
        if let Err(error) = outcome {
            let mut first_error = lock(&self.window.first_error);
            first_error.get_or_insert(error);
        }
        self.window.remove_in_flight(self.to);
    }
}
