//! How the peers of a rank stand, as far as their streams tell: there, leaving, gone, dead.
//!
//! Of those who noticed a death the rank's own node knows best what it was doing. A stream that
//! breaks therefore fails the group only after [`GRACE`], if nothing better has come until then.
//! Nor is a rank that leaves the reason why nothing comes, where it leaves a group that has failed:
//! its leader says so on another connection, for which whoever waits for that rank gives it
//! [`PARTING`]. Where one connection ends and the others do not ([`LEAVING`]), somebody between the
//! hosts has ended it, and that counts as a death too.

use super::door::lock;
use super::mesh::{Shared, Slot};
use crate::base::error::{Error, ErrorKind, Fault, Result};
use crate::base::ids::Rank;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a broken stream waits for somebody who knows better.
const GRACE: Duration = Duration::from_millis(100);

/// How long the connections of one that leaves may take to end, all of them.
const LEAVING: Duration = Duration::from_secs(2);

/// How long a rank that has left is waited for, since it may have left because of a failure that is
/// still on its way.
pub(super) const PARTING: Duration = Duration::from_millis(500);

/// How a peer stands: the larger number stays.
pub(super) const PRESENT: u8 = 0;
/// One of its streams has come to its end.
pub(super) const HAS_LEFT: u8 = 1;
/// And nobody has said since then that the group had failed.
const IS_GONE: u8 = 2;
pub(super) const HAS_DIED: u8 = 3;
/// Its node says that it has left in order: no stream knows better.
const SAID_LEFT: u8 = 4;

/// What is known, and does not count yet.
#[derive(Clone, Debug)]
pub(super) enum Obituary {
    /// A death, seen on a stream.
    Death(Error),
    /// A rank has left, and may have said why.
    Parting(Rank),
}

impl Shared {
    /// How a peer stands.
    pub(super) fn standing(&self, peer: Rank) -> u8 {
        self.standings[peer].load(Ordering::Acquire)
    }

    fn gone(&self, peer: Rank) -> Error {
        let message = format!("{} has left the group", self.name(peer));
        Error::new(ErrorKind::PeerFailed, message).with_culprit(peer).with_fault(Fault::Left)
    }

    /// What a stream gives that has ended: nothing while a death, or a parting, waits for its
    /// reason.
    ///
    /// # Errors
    /// `PeerFailed`.
    pub(super) fn after_the_end(&self, peer: Rank) -> Result<usize> {
        match self.standing(peer) {
            IS_GONE | SAID_LEFT => Err(self.gone(peer)),
            HAS_DIED => match self.domain.failure() {
                None => Ok(0),
                Some(error) if error.culprit() == Some(peer) => Err(error),
                Some(_) => Err(self.died(peer, "its connection broke")),
            },
            _ => Ok(0),
        }
    }

    fn died(&self, peer: Rank, why: &str) -> Error {
        let message = format!("{} died, or was cut off: {why}", self.name(peer));
        let error = Error::new(ErrorKind::PeerFailed, message).with_culprit(peer);
        error.with_fault(Fault::Unreachable)
    }

    /// The end of a stream has come as of a peer that leaves in order. Whoever has taken the end
    /// from the socket says what it was before the stream's place is unlocked: the socket tells it
    /// once.
    pub(super) fn mark_left(&self, peer: Rank) {
        if self.standings[peer].fetch_max(HAS_LEFT, Ordering::AcqRel) == PRESENT {
            let why = "one of its connections ended, and others did not";
            self.announce(PARTING, Obituary::Parting(peer));
            self.announce(LEAVING, Obituary::Death(self.died(peer, why)));
            self.wake.raise();
            self.messages.tell(peer);
        }
    }

    /// A peer's node says that it has left in order.
    pub(super) fn mark_said_left(&self, peer: Rank) {
        let before = self.standings[peer].fetch_max(SAID_LEFT, Ordering::AcqRel);
        if before != SAID_LEFT {
            self.wake.raise();
            self.messages.tell(peer);
        }
    }

    /// A stream broke without an end; see [`Shared::mark_left`].
    pub(super) fn mark_died(&self, peer: Rank, why: &str) {
        if self.standings[peer].fetch_max(HAS_DIED, Ordering::AcqRel) >= HAS_DIED {
            return;
        }
        self.announce(GRACE, Obituary::Death(self.died(peer, why)));
        self.wake.raise();
        self.messages.tell(peer);
    }

    /// What counts after a while, unless it turns out to be otherwise.
    fn announce(&self, after: Duration, obituary: Obituary) {
        let mut obituaries = lock(&self.obituaries);
        obituaries.push((Instant::now() + after, obituary));
        self.set_alarm(&obituaries);
    }

    /// Whether a peer whose time of grace is over has died. Who leaves in order ends all its
    /// connections: one that ended alone was cut off by something else, and nothing would come on
    /// the others. The end of one that has something to be read may lie behind that.
    fn has_died(&self, peer: Rank) -> bool {
        let lives =
            |slot: &Slot| lock(&slot.incoming).as_ref().is_some_and(|it| it.is_open_and_silent());
        let slots = || &self.slots[peer * self.channels()..][..self.channels()];
        match self.standing(peer) {
            HAS_DIED => true,
            HAS_LEFT | IS_GONE => slots().iter().any(lives),
            _ => false,
        }
    }

    fn set_alarm(&self, obituaries: &[(Instant, Obituary)]) {
        if let Some(alarm) = self.undertaker.get() {
            alarm.set(obituaries.iter().map(|&(due, _)| due).min());
        }
    }

    /// Fails the group for those whose death nobody has explained, and gives up those who have
    /// left.
    pub(super) fn publish_obituaries(&self) {
        let now = Instant::now();
        let mut obituaries = lock(&self.obituaries);
        let (due, rest): (Vec<_>, Vec<_>) = obituaries.drain(..).partition(|(at, _)| *at <= now);
        *obituaries = rest;
        self.set_alarm(&obituaries);
        drop(obituaries);
        for (_, obituary) in due {
            match obituary {
                Obituary::Death(error) if error.culprit().is_none_or(|it| self.has_died(it)) => {
                    self.fail_here(&error);
                }
                Obituary::Death(_) => {}
                Obituary::Parting(peer) => self.mark_gone(peer),
            }
        }
    }

    fn mark_gone(&self, peer: Rank) {
        if self.standings[peer].fetch_max(IS_GONE, Ordering::AcqRel) < IS_GONE {
            self.wake.raise();
            self.messages.tell(peer);
        }
    }

    /// Somebody whose death is known in words only is dead, too.
    pub(super) fn heed_failure(&self) {
        let failure = self.domain.failure().filter(|it| it.kind() == ErrorKind::PeerFailed);
        let Some(culprit) = failure.and_then(|error| error.culprit()) else { return };
        let Some(standing) = self.standings.get(culprit).filter(|_| culprit != self.me) else {
            return;
        };
        let (old, new) = (PRESENT, HAS_DIED);
        if standing.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.wake.raise();
            self.messages.tell(culprit);
        }
    }
}
