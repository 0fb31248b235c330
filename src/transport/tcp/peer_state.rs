//! The state of each peer as its streams show it: present, leaving, gone, or dead.
//!
//! A broken stream and an ended stream do not fail the group at once, because a better reason may
//! arrive:
//!
//! * **Death.** The rank's own node knows best why the rank died. A broken stream therefore fails
//!   the group only after [`DEATH_GRACE`], if no other reason arrives until then.
//! * **Departure.** A rank may leave because the group has failed. Its leader then reports the
//!   failure on another connection. A waiting peer therefore treats the departed rank as gone only
//!   after [`DEPARTURE_GRACE`].
//! * **Partial end.** If one connection ends and the other connections of the same peer do not end
//!   within [`LEAVE_TIMEOUT`], a device between the hosts has ended it. This also counts as a
//!   death.

use super::mesh::{DelayedPeerEvent, StreamPair, TcpMeshShared};
use crate::base::error::{Error, ErrorKind, RankFault, Result};
use crate::base::ids::Rank;
use crate::base::sync::lock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a broken stream waits for the report of the rank's own node, which knows the cause.
const DEATH_GRACE: Duration = Duration::from_millis(100);

/// The limit within which all connections of a departing rank must end.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long peers wait after a rank has left. The rank may have left because of a failure whose
/// report has not arrived yet.
pub(super) const DEPARTURE_GRACE: Duration = Duration::from_millis(500);

/// The state of a peer; a state only changes to a larger number.
pub(super) const PRESENT: u8 = 0;
/// One of the peer's streams has ended.
pub(super) const HAS_LEFT: u8 = 1;
/// The peer has left, and no failure of the group was reported within [`DEPARTURE_GRACE`].
const IS_GONE: u8 = 2;
pub(super) const HAS_DIED: u8 = 3;
/// The peer's node reports an orderly departure. This report takes precedence over every stream.
const REPORTED_LEFT: u8 = 4;

impl TcpMeshShared {
    /// Returns the state of a peer.
    pub(super) fn peer_state(&self, peer: Rank) -> u8 {
        self.peer_states[peer].load(Ordering::Acquire)
    }

    fn left_error(&self, peer: Rank) -> Error {
        let message = format!("{} has left the group", self.name(peer));
        Error::new(ErrorKind::PeerFailed, message).with_culprit(peer).with_fault(RankFault::Left)
    }

    /// Returns the result of a transfer on a stream that has ended: 0 bytes while the reason for
    /// the death or departure is awaited.
    ///
    /// # Errors
    /// `PeerFailed`.
    pub(super) fn result_after_end(&self, peer: Rank) -> Result<usize> {
        match self.peer_state(peer) {
            IS_GONE | REPORTED_LEFT => Err(self.left_error(peer)),
            HAS_DIED => match self.domain.failure() {
                None => Ok(0),
                Some(error) if error.culprit() == Some(peer) => Err(error),
                Some(_) => Err(self.died_error(peer, "its connection broke")),
            },
            _ => Ok(0),
        }
    }

    pub(super) fn died_error(&self, peer: Rank, reason: &str) -> Error {
        let message =
            format!("{} died, or its host is no longer reachable: {reason}", self.name(peer));
        let error = Error::new(ErrorKind::PeerFailed, message).with_culprit(peer);
        error.with_fault(RankFault::Unreachable)
    }

    /// Records that a stream of the peer ended with a FIN. A caller that reads this end from the
    /// socket must call this before it unlocks the stream's entry, because the socket reports the
    /// end only once.
    pub(super) fn mark_left(&self, peer: Rank) {
        if self.peer_states[peer].fetch_max(HAS_LEFT, Ordering::AcqRel) == PRESENT {
            let reason = "one of its connections ended, but its other connections did not";
            self.schedule_event(DEPARTURE_GRACE, DelayedPeerEvent::Departure(peer));
            self.schedule_event(
                LEAVE_TIMEOUT,
                DelayedPeerEvent::Death(self.died_error(peer, reason)),
            );
            self.wake.raise();
            self.messages.notify_peer(peer);
        }
    }

    /// Records the report of the peer's node that the peer has left in order.
    pub(super) fn mark_reported_left(&self, peer: Rank) {
        let before = self.peer_states[peer].fetch_max(REPORTED_LEFT, Ordering::AcqRel);
        if before != REPORTED_LEFT {
            self.wake.raise();
            self.messages.notify_peer(peer);
        }
    }

    /// Records that a stream broke without a FIN; the lock rule of [`TcpMeshShared::mark_left`]
    /// applies.
    pub(super) fn mark_died(&self, peer: Rank, reason: &str) {
        if self.peer_states[peer].fetch_max(HAS_DIED, Ordering::AcqRel) >= HAS_DIED {
            return;
        }
        self.schedule_event(DEATH_GRACE, DelayedPeerEvent::Death(self.died_error(peer, reason)));
        self.wake.raise();
        self.messages.notify_peer(peer);
    }

    /// Schedules an event that takes effect after the delay unless it is refuted.
    fn schedule_event(&self, after: Duration, event: DelayedPeerEvent) {
        let mut events = lock(&self.delayed_events);
        events.push((Instant::now() + after, event));
        self.update_event_alarm(&events);
    }

    /// Returns true if a peer whose grace period is over has died. A rank that leaves in order ends
    /// all its connections. If only one connection ended, another cause ended it, and no data would
    /// arrive on the others. A connection with unread data does not count as open, because its end
    /// may follow that data.
    fn has_died(&self, peer: Rank) -> bool {
        let is_open = |slot: &StreamPair| {
            lock(&slot.incoming).as_ref().is_some_and(|it| it.is_open_and_silent())
        };
        let slots = || &self.stream_pairs[peer * self.channel_count()..][..self.channel_count()];
        match self.peer_state(peer) {
            HAS_DIED => true,
            HAS_LEFT | IS_GONE => slots().iter().any(is_open),
            _ => false,
        }
    }

    fn update_event_alarm(&self, events: &[(Instant, DelayedPeerEvent)]) {
        if let Some(alarm) = self.delayed_event_alarm.get() {
            alarm.set(events.iter().map(|&(due, _)| due).min());
        }
    }

    /// Applies the due events: fails the group for deaths without another reason, and marks
    /// departed ranks as gone.
    pub(super) fn apply_due_events(&self) {
        let now = Instant::now();
        let mut events = lock(&self.delayed_events);
        let (due, rest): (Vec<_>, Vec<_>) = events.drain(..).partition(|(at, _)| *at <= now);
        *events = rest;
        self.update_event_alarm(&events);
        drop(events);
        for (_, event) in due {
            match event {
                DelayedPeerEvent::Death(error)
                    if error.culprit().is_none_or(|it| self.has_died(it)) =>
                {
                    self.fail_all_nodes(&error);
                }
                DelayedPeerEvent::Death(_) => {}
                DelayedPeerEvent::Departure(peer) => self.mark_gone(peer),
            }
        }
    }

    fn mark_gone(&self, peer: Rank) {
        if self.peer_states[peer].fetch_max(IS_GONE, Ordering::AcqRel) < IS_GONE {
            self.wake.raise();
            self.messages.notify_peer(peer);
        }
    }

    /// Marks the culprit of a reported failure as dead if no stream has shown its death.
    pub(super) fn mark_culprit_died(&self) {
        let failure = self.domain.failure().filter(|it| it.kind() == ErrorKind::PeerFailed);
        let Some(culprit) = failure.and_then(|error| error.culprit()) else { return };
        let Some(standing) = self.peer_states.get(culprit).filter(|_| culprit != self.me) else {
            return;
        };
        let (old, new) = (PRESENT, HAS_DIED);
        if standing.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.wake.raise();
            self.messages.notify_peer(culprit);
        }
    }
}
