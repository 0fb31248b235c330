//! The state of each peer: present, left, gone, or dead. The streams to and from a peer show most
//! changes, and the node of the peer reports some.
//!
//! If a stream ends, this rank does not report an error immediately, because a better reason may
//! still arrive on another connection. It waits for a *grace period* in each of three cases:
//!
//! * **Death.** The stream broke, as it does if the peer dies. The peer's node knows best why the
//!   peer died, and reports this. This rank fails the group only if no reason arrives within
//!   [`DEATH_GRACE`].
//! * **Departure.** The stream ended in order, because the peer has left. The peer may have left
//!   because the group failed. In this case the leader of its node reports the failure. This rank
//!   treats the peer as gone, and returns an error for transfers with the peer, only if no failure
//!   is reported within [`DEPARTURE_GRACE`].
//! * **Partial end.** One stream ended in order, but the other streams of the same peer do not end
//!   within [`LEAVE_TIMEOUT`]. Then the peer has not left: a device between the hosts has ended the
//!   one connection. This counts as a death.

use super::hello::ConnectionPurpose;
use super::late_link::{LateLinkAnswer, LateLinkCheck};
use super::link_frame::Frame;
use super::link_user::LinkEnd;
use super::mesh::{DelayedPeerEvent, TcpMeshShared};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, RankFault, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::security::SecuritySetting;
use crate::transport::Channel;
use std::io::ErrorKind as Io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The time for which this rank waits, after a stream broke, for the report of the peer's node.
const DEATH_GRACE: Duration = Duration::from_millis(100);

/// The time within which all connections of a departing rank must end.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// The time for which this rank waits, after a peer has left, for the report of a failure that may
/// have caused the departure.
pub(super) const DEPARTURE_GRACE: Duration = Duration::from_millis(500);

/// The time after which this rank asks the process of a departed rank again, if its link does not
/// come.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(500);

// The states of a peer. A state only changes to a larger number.

/// No stream of the peer has ended.
pub(super) const PRESENT: u8 = 0;
/// One of the peer's streams has ended in order.
pub(super) const HAS_LEFT: u8 = 1;
/// The peer has left, and no failure of the group was reported within [`DEPARTURE_GRACE`].
const IS_GONE: u8 = 2;
/// A stream of the peer broke, or a failure report names the peer as dead.
pub(super) const HAS_DIED: u8 = 3;
/// The peer's node has reported that the peer left in order. This report takes precedence over
/// every stream.
const REPORTED_LEFT: u8 = 4;

impl TcpMeshShared {
    /// Returns the state of a peer.
    pub(super) fn peer_state(&self, peer: Rank) -> u8 {
        self.peer_states[peer].load(Ordering::Acquire)
    }

    /// Returns true if a peer is known to have left or died.
    pub(super) fn has_left(&self, peer: Rank) -> bool {
        self.peer_state(peer) != PRESENT
    }

    fn left_error(&self, peer: Rank) -> Error {
        let message = format!("{} has left the group", self.name(peer));
        Error::new(ErrorKind::PeerFailed, message).with_culprit(peer).with_fault(RankFault::Left)
    }

    /// Returns the result of a transfer on a stream that has ended. The result is 0 bytes while
    /// this rank waits for the reason of the death or departure.
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

    /// Returns true if no bytes arrive on a channel that the peer has not opened, although its link
    /// still lives: the peer has died. If the peer has left, asks its process.
    ///
    /// The report that a peer has left may overtake the peer's bytes, which travel on another
    /// connection. So this rank asks the peer's process. The answer arrives on the link of the
    /// channel, after all bytes of the peer, and ends the channel.
    pub(super) fn is_never_opened(&self, peer: Rank, channel: Channel) -> bool {
        let state = self.peer_state(peer);
        if state != IS_GONE && state != REPORTED_LEFT {
            return state == HAS_DIED;
        }
        let pair = self.channel_pair(peer, channel);
        if pair.has_asked.load(Ordering::Acquire) {
            return false;
        }
        let query = Frame::Query { ranks: self.ranks_to(peer), answer_on: channel };
        let messages = self.link_key(peer, Channel::PointToPoint);
        // Without a group to ask by, the link is about to end.
        let has_asked = self.links.send_frame(&messages, &query).is_ok();
        pair.has_asked.store(has_asked, Ordering::Release);
        false
    }

    /// Returns true if a peer that has left may still connect, and send bytes on a channel that it
    /// has not opened.
    pub(super) fn may_still_open(&self, peer: Rank, channel: Channel) -> bool {
        let state = self.peer_state(peer);
        (state == IS_GONE || state == REPORTED_LEFT) && self.may_link_come(peer, channel)
    }

    /// Returns true if the process of a departed rank may have bytes for this channel, although it
    /// has no link to this process. If this is not known, asks.
    fn may_link_come(&self, from: Rank, channel: Channel) -> bool {
        let new = || LateLinkCheck::new(self.weak.clone(), from, channel);
        let check = self.channel_pair(from, channel).late_link.get_or_init(new);
        match check.answer() {
            LateLinkAnswer::NothingComes => false,
            LateLinkAnswer::MayCome => true,
            LateLinkAnswer::LinkComes => {
                let event = DelayedPeerEvent::LateLink(from, channel);
                self.schedule_event(ASK_AGAIN_AFTER, event);
                true
            }
            LateLinkAnswer::Unknown => {
                let limit = Deadline::after(self.links.retry_time(self.members[self.me].process));
                let purpose = ConnectionPurpose::Probe(channel);
                let connector = |handler| self.new_connector(from, purpose, Some(limit), handler);
                check.ask(connector).is_ok()
            }
        }
    }

    /// Ends the questions to the processes of departed ranks.
    pub(super) fn cancel_late_link_checks(&self) {
        self.channel_pairs.iter().filter_map(|it| it.late_link.get()).for_each(|it| it.cancel());
    }

    pub(super) fn died_error(&self, peer: Rank, reason: &str) -> Error {
        let message =
            format!("{} died, or its host is no longer reachable: {reason}", self.name(peer));
        let error = Error::new(ErrorKind::PeerFailed, message).with_culprit(peer);
        error.with_fault(RankFault::Unreachable)
    }

    /// Returns the error for an encrypted link that a third party changes.
    fn tampered_error(&self, peer: Rank, cause: &std::io::Error) -> Error {
        let message = format!("the connection to {}: {cause}", self.name(peer));
        Error::new(ErrorKind::Auth, message).with_culprit(peer)
    }

    /// Handles the end of a link to or from a peer. Classifies it as a departure or a death of the
    /// peer, unless the peer has left the group before.
    pub(super) fn handle_link_end(&self, peer: Rank, end: &LinkEnd) {
        if self.peer_state(peer) != PRESENT {
            return;
        }
        crate::log!(LogLevel::Debug, "a link to or from {} has ended: {end:?}", self.name(peer));
        match end {
            // The system reports this error if the end of file from the peer arrived before the
            // connection was closed.
            LinkEnd::Broken(cause) if cause.kind() == Io::BrokenPipe => self.mark_left(peer),
            LinkEnd::Closed => self.mark_left(peer),
            LinkEnd::Lost(what) => {
                let message = format!("this rank has lost {}: {what}", self.name(peer));
                self.fail_all_nodes(&Error::new(ErrorKind::Connection, message));
            }
            LinkEnd::Broken(cause)
                if cause.kind() == Io::InvalidData
                    && self.security.setting() == SecuritySetting::Encrypt =>
            {
                self.fail_all_nodes(&self.tampered_error(peer, cause));
                self.mark_died(peer, &cause.to_string());
            }
            LinkEnd::Broken(cause) => match cause.kind() {
                Io::ConnectionReset
                | Io::ConnectionAborted
                | Io::TimedOut
                | Io::HostUnreachable
                | Io::NetworkUnreachable
                | Io::InvalidData => {
                    self.mark_died(peer, &cause.to_string());
                }
                _ => {
                    let what = format_args!("transfer on the connection to {}", self.name(peer));
                    let cause = match cause.raw_os_error() {
                        Some(number) => std::io::Error::from_raw_os_error(number),
                        None => std::io::Error::from(cause.kind()),
                    };
                    self.fail_all_nodes(&Error::system(what, cause));
                }
            },
        }
    }

    /// Records that the peer has said that it leaves the group.
    pub(super) fn mark_announced_left(&self, peer: Rank) {
        lock(&self.announced_departures)[peer] = true;
        self.mark_left(peer);
        // The departure may have been known. But now a channel may have ended.
        self.wake.wake();
        self.messages.notify_peer(peer);
    }

    /// Records that a link of the peer's process ended with a FIN (an orderly end), or that the
    /// peer has left the group.
    pub(super) fn mark_left(&self, peer: Rank) {
        if self.peer_states[peer].fetch_max(HAS_LEFT, Ordering::AcqRel) == PRESENT {
            let reason = "one of its connections ended, but its other connections did not";
            self.wake_forward_task();
            self.schedule_event(DEPARTURE_GRACE, DelayedPeerEvent::Departure(peer));
            self.schedule_event(
                LEAVE_TIMEOUT,
                DelayedPeerEvent::Death(self.died_error(peer, reason)),
            );
            self.wake.wake();
            self.messages.notify_peer(peer);
        }
    }

    /// Returns true if the peer's node has reported that the peer left in order.
    pub(super) fn is_reported_left(&self, peer: Rank) -> bool {
        self.peer_state(peer) == REPORTED_LEFT
    }

    /// Records that the peer's node has reported that the peer left in order.
    pub(super) fn mark_reported_left(&self, peer: Rank) {
        let before = self.peer_states[peer].fetch_max(REPORTED_LEFT, Ordering::AcqRel);
        if before != REPORTED_LEFT {
            self.wake_forward_task();
            self.wake.wake();
            self.messages.notify_peer(peer);
        }
    }

    /// Records that a link of the peer's process broke without a FIN.
    pub(super) fn mark_died(&self, peer: Rank, reason: &str) {
        if self.peer_states[peer].fetch_max(HAS_DIED, Ordering::AcqRel) >= HAS_DIED {
            return;
        }
        self.schedule_event(DEATH_GRACE, DelayedPeerEvent::Death(self.died_error(peer, reason)));
        self.wake.wake();
        self.messages.notify_peer(peer);
    }

    /// Schedules an event that [`TcpMeshShared::apply_due_events`] applies after the delay.
    fn schedule_event(&self, after: Duration, event: DelayedPeerEvent) {
        let mut events = lock(&self.delayed_events);
        events.push((Instant::now() + after, event));
        self.update_event_alarm(&events);
    }

    /// Returns true if a peer whose grace period is over has died.
    ///
    /// If a link of the peer's process ended in order, this function checks the other links from
    /// that process. A process that leaves in order ends all of them. If one is still open, the
    /// peer has not left, and something else ended the first link, so the peer counts as dead. A
    /// link with unread data does not count as open, because its end may follow that data.
    fn has_died(&self, peer: Rank) -> bool {
        let is_open = |channel: Channel| {
            let link = self.incoming_link(peer, channel);
            link.is_some_and(|link| link.stream().is_open_and_silent())
        };
        match self.peer_state(peer) {
            HAS_DIED => true,
            HAS_LEFT | IS_GONE => {
                let has_said_so = lock(&self.announced_departures)[peer];
                !has_said_so && self.channels().any(is_open)
            }
            _ => false,
        }
    }

    fn update_event_alarm(&self, events: &[(Instant, DelayedPeerEvent)]) {
        if let Some(alarm) = self.delayed_event_alarm.get() {
            alarm.set(events.iter().map(|&(due, _)| due).min());
        }
    }

    /// Applies the events that are due: fails the group if a peer has died, and marks departed
    /// peers as gone.
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
                DelayedPeerEvent::LateLink(peer, channel) => {
                    let check = self.channel_pair(peer, channel).late_link.get();
                    check.iter().for_each(|check| check.expire());
                    self.wake.wake();
                    self.messages.notify_peer(peer);
                }
            }
        }
    }

    fn mark_gone(&self, peer: Rank) {
        if self.peer_states[peer].fetch_max(IS_GONE, Ordering::AcqRel) < IS_GONE {
            self.wake.wake();
            self.messages.notify_peer(peer);
        }
    }

    /// If the group failed because a peer died, marks this peer as dead, even if no stream to or
    /// from the peer has ended.
    pub(super) fn mark_culprit_died(&self) {
        let failure = self.domain.failure().filter(|it| it.kind() == ErrorKind::PeerFailed);
        let Some(culprit) = failure.and_then(|error| error.culprit()) else { return };
        let Some(standing) = self.peer_states.get(culprit).filter(|_| culprit != self.me) else {
            return;
        };
        let (old, new) = (PRESENT, HAS_DIED);
        if standing.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.wake.wake();
            self.messages.notify_peer(culprit);
        }
    }
}
