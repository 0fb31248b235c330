//! How the peers of a rank stand, as far as their streams tell: there, leaving, gone, dead.
//!
//! Of those who noticed a death the rank's own node knows best what it was doing. A stream that
//! breaks therefore fails the group only after [`DEATH_GRACE`], if nothing better has come until
//! then. Nor is a rank that leaves the reason why nothing comes, where it leaves a group that has
//! failed: its leader says so on another connection, for which whoever waits for that rank gives it
//! [`DEPARTURE_GRACE`]. Where one connection ends and the others do not ([`LEAVE_TIMEOUT`]),
//! somebody between the hosts has ended it, and that counts as a death too.

use super::listener_registry::lock;
use super::mesh::{StreamPair, TcpMeshShared};
use crate::base::error::{Error, ErrorKind, RankFault, Result};
use crate::base::ids::Rank;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a broken stream waits for somebody who knows better.
const DEATH_GRACE: Duration = Duration::from_millis(100);

/// How long the connections of one that leaves may take to end, all of them.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a rank that has left is waited for, since it may have left because of a failure that is
/// still on its way.
pub(super) const DEPARTURE_GRACE: Duration = Duration::from_millis(500);

/// How a peer stands: the larger number stays.
pub(super) const PRESENT: u8 = 0;
/// One of its streams has come to its end.
pub(super) const HAS_LEFT: u8 = 1;
/// And nobody has said since then that the group had failed.
const IS_GONE: u8 = 2;
pub(super) const HAS_DIED: u8 = 3;
/// Its node says that it has left in order: no stream knows better.
const REPORTED_LEFT: u8 = 4;

/// What is known, and does not count yet.
#[derive(Clone, Debug)]
pub(super) enum DelayedPeerEvent {
    /// A death, seen on a stream.
    Death(Error),
    /// A rank has left, and may have said why.
    Departure(Rank),
}

impl TcpMeshShared {
    /// How a peer stands.
    pub(super) fn peer_state(&self, peer: Rank) -> u8 {
        self.peer_states[peer].load(Ordering::Acquire)
    }

    fn left_error(&self, peer: Rank) -> Error {
        let message = format!("{} has left the group", self.name(peer));
        Error::new(ErrorKind::PeerFailed, message).with_culprit(peer).with_fault(RankFault::Left)
    }

    /// What a stream gives that has ended: nothing while a death, or a parting, waits for its
    /// reason.
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

    fn died_error(&self, peer: Rank, why: &str) -> Error {
        let message = format!("{} died, or was cut off: {why}", self.name(peer));
        let error = Error::new(ErrorKind::PeerFailed, message).with_culprit(peer);
        error.with_fault(RankFault::Unreachable)
    }

    /// The end of a stream has come as of a peer that leaves in order. Whoever has taken the end
    /// from the socket says what it was before the stream's place is unlocked: the socket tells it
    /// once.
    pub(super) fn mark_left(&self, peer: Rank) {
        if self.peer_states[peer].fetch_max(HAS_LEFT, Ordering::AcqRel) == PRESENT {
            let why = "one of its connections ended, and others did not";
            self.schedule_event(DEPARTURE_GRACE, DelayedPeerEvent::Departure(peer));
            self.schedule_event(LEAVE_TIMEOUT, DelayedPeerEvent::Death(self.died_error(peer, why)));
            self.wake.raise();
            self.messages.notify_peer(peer);
        }
    }

    /// A peer's node says that it has left in order.
    pub(super) fn mark_reported_left(&self, peer: Rank) {
        let before = self.peer_states[peer].fetch_max(REPORTED_LEFT, Ordering::AcqRel);
        if before != REPORTED_LEFT {
            self.wake.raise();
            self.messages.notify_peer(peer);
        }
    }

    /// A stream broke without an end; see [`TcpMeshShared::mark_left`].
    pub(super) fn mark_died(&self, peer: Rank, why: &str) {
        if self.peer_states[peer].fetch_max(HAS_DIED, Ordering::AcqRel) >= HAS_DIED {
            return;
        }
        self.schedule_event(DEATH_GRACE, DelayedPeerEvent::Death(self.died_error(peer, why)));
        self.wake.raise();
        self.messages.notify_peer(peer);
    }

    /// What counts after a while, unless it turns out to be otherwise.
    fn schedule_event(&self, after: Duration, event: DelayedPeerEvent) {
        let mut events = lock(&self.delayed_events);
        events.push((Instant::now() + after, event));
        self.update_event_alarm(&events);
    }

    /// Whether a peer whose time of grace is over has died. Who leaves in order ends all its
    /// connections: one that ended alone was cut off by something else, and nothing would come on
    /// the others. The end of one that has something to be read may lie behind that.
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

    /// Fails the group for those whose death nobody has explained, and gives up those who have
    /// left.
    pub(super) fn apply_due_events(&self) {
        let now = Instant::now();
        let mut events = lock(&self.delayed_events);
        let (due, rest): (Vec<_>, Vec<_>) = events.drain(..).partition(|(at, _)| *at <= now);
        *events = rest;
        self.update_event_alarm(&events);
        drop(events);
        for (_, obituary) in due {
            match obituary {
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

    /// Somebody whose death is known in words only is dead, too.
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
