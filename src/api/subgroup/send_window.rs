//! A letter on its way to some ranks, piece by piece: how much of it is, and who has not taken over
//! theirs.
//!
//! Must not know: what letters say.

use super::definition::format_ranks;
use super::fragment::FragmentBuffer;
use crate::api::group::Group;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::transport::{Completion, Delivery, LARGEST_TAG, PointToPoint, SendRequest};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The tag of letters.
pub(super) const CONTROL_TAG: u32 = LARGEST_TAG + 1;

/// How many pieces of a letter may be on their way: far fewer than messages may be outstanding, of
/// which the caller has some too.
pub(super) const MAX_FRAGMENTS_IN_FLIGHT: usize = 256;

/// How long to wait in one go before looking around, at first and later.
pub(super) const FIRST_POLL_INTERVAL: Duration = Duration::from_millis(20);
pub(super) const MAX_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Messages that are on their way.
#[derive(Debug)]
pub(super) struct SendWindow {
    /// How many of them each rank has not taken over yet.
    in_flight: Vec<(Rank, AtomicUsize)>,
    first_error: Mutex<Option<Error>>,
}

impl SendWindow {
    /// Of a letter to these.
    pub(super) fn new(to: &[Rank]) -> Self {
        let in_flight = to.iter().map(|&rank| (rank, AtomicUsize::new(0))).collect();
        Self { in_flight, first_error: Mutex::default() }
    }

    /// How many are on their way to all of them.
    fn total_in_flight(&self) -> usize {
        self.in_flight.iter().map(|(_, in_flight)| in_flight.load(Ordering::Acquire)).sum()
    }

    fn in_flight_to(&self, to: Rank) -> Option<&AtomicUsize> {
        self.in_flight.iter().find_map(|(rank, in_flight)| (*rank == to).then_some(in_flight))
    }

    /// Why a piece did not go; once.
    pub(super) fn take_error(&self) -> Option<Error> {
        self.first_error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// One more is on its way.
    fn add_in_flight(&self, to: Rank) {
        if let Some(in_flight) = self.in_flight_to(to) {
            in_flight.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// One is on its way no more.
    fn remove_in_flight(&self, to: Rank) {
        if let Some(in_flight) = self.in_flight_to(to) {
            in_flight.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Waits until no more than so many pieces are on their way.
    pub(super) fn await_in_flight(
        &self,
        group: &Group,
        engine: &dyn PointToPoint,
        max_in_flight: usize,
        limit: &Deadline,
    ) -> Result<()> {
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

    /// Who has not taken over what was sent.
    #[cold]
    fn timeout_error(&self, group: &Group, limit: &Deadline) -> Error {
        let has_in_flight = |in_flight: &AtomicUsize| in_flight.load(Ordering::Acquire) > 0;
        let pending_ranks = self.in_flight.iter().filter(|(_, in_flight)| has_in_flight(in_flight));
        let pending_ranks: Vec<Rank> = pending_ranks.map(|&(rank, _)| rank).collect();
        let message = format!(
            "{} waited {} ms for {} of group {} to take over what it was sent to make another group",
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

    /// Posts a piece. Where too much is outstanding, of the caller's or of other letters, it waits
    /// within the limit.
    pub(super) fn post_fragment(
        self: &Arc<Self>,
        group: &Group,
        engine: &dyn PointToPoint,
        (to, buffer): (Rank, &Arc<FragmentBuffer>),
        limit: Option<&Deadline>,
    ) -> Result<()> {
        let (tag, dtype, bytes) = (CONTROL_TAG, DataType::U8, buffer.bytes());
        // One that is cut off in the middle would fail the group; and whoever hears late still
        // needs it.
        let deadline = Deadline::never();
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

/// One piece on its way; several ranks may be sent the same block.
#[derive(Debug)]
struct FragmentSend {
    to: Rank,
    _buffer: Arc<FragmentBuffer>,
    window: Arc<SendWindow>,
}

impl Completion for FragmentSend {
    fn complete(&self, outcome: Result<Delivery>) {
        if let Err(error) = outcome {
            let mut first_error =
                self.window.first_error.lock().unwrap_or_else(PoisonError::into_inner);
            first_error.get_or_insert(error);
        }
        self.window.remove_in_flight(self.to);
    }
}
