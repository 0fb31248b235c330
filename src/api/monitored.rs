//! A barrier that names those who do not come, and fails nobody but itself.
//!
//! Ranks tell the first one that they have arrived, and it tells all of them how the barrier ended:
//! two messages for each rank, under tags that no caller has, beside collectives and in no order
//! with them.
//!
//! * Barriers are numbered on each rank, and so is all that is said about them. The verdict goes to
//!   every rank, also to those that did not come: it lies there when a late one enters the barrier,
//!   which so learns at once that it has failed and who was missing. It then is in step again.
//! * Whoever gives up says so. The first rank, coming later, does not take it for one that is
//!   there.
//! * For a rank that hangs only the newest is kept of what it has not taken over
//!   ([`super::outbox`]), so a later verdict stands for those that are missing before it: they all
//!   failed, since this rank had not come. A later arrival stands in the same way for an earlier
//!   barrier given up.
//! * A receive that has got nothing by the end of a barrier stays posted for the next one; what
//!   comes for an earlier number is read and has no effect.
//! * The first rank waits until the deadline, the others a moment longer, so that it is the one
//!   that names. Who has left is missing at once; a death fails the group, and so ends the barrier
//!   on all ranks with the name of the dead.
//!
//! Must not know: handles; how messages travel.

use super::callbacks;
use super::group::Group;
use super::outbox::Outbox;
use super::verdict::{Verdict, Word, names};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::Level;
use crate::transport::{Completion, Delivery, Incoming, LARGEST_TAG, PointToPoint, Room};
use crate::wait::watch::{Seconds, Watch};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// What both directions go under.
const TAG: u32 = LARGEST_TAG + 2;

/// The rank that names the missing.
const FIRST: Rank = 0;

/// How much longer than the first rank the others wait, and how long a rank sees to it that what it
/// says has gone.
const GRACE: Duration = Duration::from_millis(500);

/// How often a wait looks whether the group has failed.
const LOOK_AROUND: Duration = Duration::from_millis(100);

/// A barrier that failed, and who was missing, as far as is known.
#[derive(Clone, Debug)]
pub struct Failed {
    /// Why.
    pub error: Error,
    /// In order.
    pub missing: Vec<Rank>,
}

/// What a rank keeps between the monitored barriers of a group.
#[derive(Debug)]
pub(super) struct Monitor {
    /// How many it has entered. Locked during one.
    entered: Mutex<u64>,
    mail: Arc<Mail>,
    outbox: Arc<Outbox>,
}

impl Default for Monitor {
    fn default() -> Self {
        Self { entered: Mutex::default(), mail: Arc::default(), outbox: Arc::new(Outbox::new(TAG)) }
    }
}

/// What has come from other ranks.
#[derive(Debug, Default)]
struct Mail {
    peers: Mutex<HashMap<Rank, Peer>>,
    /// Grows with whatever happens.
    news: AtomicU64,
}

#[derive(Debug, Default)]
struct Peer {
    /// A receive is posted.
    posted: bool,
    unread: VecDeque<Vec<u8>>,
    /// The last verdict that was read, of the first rank.
    verdict: Option<Verdict>,
    /// Why nothing comes from it any more.
    gone: Option<Error>,
    /// The last barrier that it has entered, and the last that it has given up.
    arrived: u64,
    gave_up: u64,
}

impl Mail {
    fn peers(&self) -> MutexGuard<'_, HashMap<Rank, Peer>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, peer: Rank, act: impl FnOnce(&mut Peer) -> T) -> T {
        act(self.peers().entry(peer).or_default())
    }

    fn told(&self, peer: Rank, act: impl FnOnce(&mut Peer)) {
        self.with(peer, act);
        self.news.fetch_add(1, Ordering::Release);
    }

    /// Has the next message of a rank received, unless it is already, or the rank is gone.
    fn post(self: &Arc<Self>, engine: &dyn PointToPoint, from: Rank) -> Result<()> {
        let is_posted =
            |peer: &mut Peer| peer.gone.is_some() || std::mem::replace(&mut peer.posted, true);
        if self.with(from, is_posted) {
            return Ok(());
        }
        let into = Room::Grows { most: Verdict::LONGEST };
        let (tag, dtype, deadline) = (Some(TAG), DataType::U8, Deadline::never());
        let message = Incoming { from: Some(from), tag, dtype, into, deadline };
        let slot = Slot { mail: Arc::clone(self), from };
        // No lock is held: it may be told within the call.
        engine.receive(message, Arc::new(slot)).inspect_err(|_| {
            self.with(from, |peer| peer.posted = false);
        })
    }
}

/// A posted receive.
#[derive(Debug)]
struct Slot {
    mail: Arc<Mail>,
    from: Rank,
}

impl Completion for Slot {
    fn complete(&self, outcome: Result<Delivery>) {
        self.mail.told(self.from, |peer| {
            peer.posted = false;
            peer.gone = outcome.err();
        });
    }

    fn complete_grown(&self, _: Delivery, bytes: Vec<u8>) {
        self.mail.told(self.from, |peer| {
            peer.posted = false;
            peer.unread.push_back(bytes);
        });
    }
}

/// One barrier of one rank.
struct Barrier<'a> {
    group: &'a Arc<Group>,
    engine: &'a dyn PointToPoint,
    mail: &'a Arc<Mail>,
    number: u64,
    deadline: Deadline,
    wait_all: bool,
}

/// Where the other ranks are, as the first one sees them.
#[derive(Default)]
struct Roll {
    here: Vec<Rank>,
    /// Not to be waited for, with the reason why not.
    lost: Vec<(Rank, Option<Error>)>,
    awaited: Vec<Rank>,
}

impl Group {
    /// Waits until all ranks have entered, and says who has not; `None` for the group's own
    /// time-out. `wait_all`: all who are missing at the deadline are named, else the first.
    ///
    /// # Errors
    /// `InvalidArgument`, `Unsupported`; `Timeout`, `PeerFailed`, with who was missing; the group's
    /// failure.
    pub fn monitored_barrier(
        self: &Arc<Self>,
        timeout: Option<Duration>,
        wait_all: bool,
    ) -> std::result::Result<(), Failed> {
        let refused = |error: Error| Failed { error: error.context(NAME), missing: Vec::new() };
        callbacks::refuse_to_block("it").map_err(refused)?;
        if self.size() == 1 {
            return Ok(());
        }
        let engine = self.engine().map_err(refused)?;
        let mut entered = match self.monitor.entered.try_lock() {
            Ok(entered) => entered,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let message = "another thread of this rank is in one on this group";
                return Err(refused(Error::invalid(message)));
            }
        };
        *entered += 1;
        let timeout = timeout.unwrap_or(Duration::from_millis(self.timeout_ms()));
        let (number, deadline) = (*entered, Deadline::after(timeout));
        let barrier =
            Barrier { group: self, engine, mail: &self.monitor.mail, number, deadline, wait_all };
        // Who was gone may only have had its message refused: it is asked anew.
        barrier.mail.peers().values_mut().for_each(|peer| peer.gone = None);
        let outcome = if self.rank() == FIRST { barrier.lead() } else { barrier.follow() };
        outcome.map_err(|Failed { error, missing }| {
            let what = format!("{NAME} #{number} on {}", self.whom());
            Failed { error: error.context(what), missing }
        })
    }
}

const NAME: &str = "monitored_barrier";

impl Barrier<'_> {
    /// The first rank's part.
    fn lead(&self) -> std::result::Result<(), Failed> {
        let others: Vec<Rank> = (0..self.group.size()).filter(|&rank| rank != FIRST).collect();
        let roll = self.await_news(&self.deadline, &others, |is_over| {
            let roll = self.call_roll(&others);
            let is_settled = roll.awaited.is_empty() || !self.wait_all && !roll.lost.is_empty();
            (is_settled || is_over).then_some(roll)
        });
        let Some(roll) = roll.map_err(|error| self.cut_off(error, &self.call_roll(&others)))?
        else {
            return Err(self.cut_off(no_roll(), &Roll::default()));
        };
        // Whoever has come may have given up since, and that lies behind what was read.
        let read = if roll.awaited.is_empty() { self.read_on(&others) } else { Ok(()) };
        let roll = self.call_roll(&others);
        read.map_err(|error| self.cut_off(error, &roll))?;
        let outcome =
            if roll.here.len() == others.len() { Ok(()) } else { Err(self.accuse(&roll)) };
        let verdict = Verdict::of(self.number, self.deadline.allowed(), &outcome);
        self.tell(&others, &roll.here, &verdict.encode());
        outcome
    }

    /// Every other rank's part.
    fn follow(&self) -> std::result::Result<(), Failed> {
        let gone = |error: Error| Failed { missing: lost_with(&error), error };
        let left = self.deadline.left();
        let patience = if left.is_zero() { left } else { left + GRACE };
        let limit = Deadline::after(patience);
        self.say(FIRST, &Word::Arrived(self.number).encode()).map_err(gone)?;
        let verdict = self.await_news(&limit, &[FIRST], |_| self.read_verdict().transpose());
        match verdict.map_err(gone)? {
            Some(Ok(verdict)) => {
                let number = verdict.number();
                verdict.outcome(self.group.backend.places()).map_err(|failed| {
                    if number == self.number {
                        return failed;
                    }
                    let what = format!("it was over before this rank came, as was #{number}");
                    Failed { error: failed.error.context(what), ..failed }
                })
            }
            Some(Err(error)) => Err(gone(error)),
            None => {
                self.tell(&[FIRST], &[FIRST], &Word::GaveUp(self.number).encode());
                let first = names(&[FIRST], self.group.backend.places());
                let message = format!(
                    "timed out after {} ms (allowed: {} ms) without a word of {first}, which has not entered \
                     it or waits for others still",
                    self.deadline.elapsed().as_millis(),
                    self.deadline.allowed().as_millis()
                );
                let error = Error::new(ErrorKind::Timeout, message).with_culprit(FIRST);
                Err(Failed { error, missing: vec![FIRST] })
            }
        }
    }

    /// Waits for what others say, and looks at it, until there is a result; `None` where the limit
    /// came first. `look` is told whether it is the last time.
    fn await_news<T>(
        &self,
        limit: &Deadline,
        from: &[Rank],
        look: impl Fn(bool) -> Option<T>,
    ) -> Result<Option<T>> {
        let mut watch = Watch::default();
        loop {
            let seen = self.mail.news.load(Ordering::Acquire);
            for &peer in from {
                self.mail.post(self.engine, peer)?;
            }
            if let Some(error) = self.group.failure() {
                return Err(error);
            }
            if let Some(found) = look(false) {
                return Ok(Some(found));
            }
            watch.look(|lasted| self.tell_wait(lasted));
            let is_over = limit.has_passed();
            let has_come = || self.mail.news.load(Ordering::Acquire) != seen;
            // Once more after the end: what is there already counts.
            self.engine.attend(&has_come, &limit.capped(LOOK_AROUND));
            if is_over && !has_come() {
                return Ok(look(true));
            }
        }
    }

    /// A long wait, for the log.
    #[cold]
    fn tell_wait(&self, lasted: Seconds) {
        let others: Vec<Rank> = (0..self.group.size()).filter(|&rank| rank != FIRST).collect();
        let awaited = match self.group.rank() {
            FIRST => self.call_roll(&others).awaited,
            _ => vec![FIRST],
        };
        let awaited = names(&awaited, self.group.backend.places());
        let (number, whom) = (self.number, self.group.whom());
        crate::log!(Level::Warn, "{NAME} #{number} on {whom} has waited {lasted} for {awaited}");
    }

    /// Reads what has come, without waiting for more.
    fn read_on(&self, from: &[Rank]) -> Result<()> {
        let limit = Deadline::after(GRACE);
        while !limit.has_passed() {
            let seen = self.mail.news.load(Ordering::Acquire);
            from.iter().try_for_each(|&peer| self.mail.post(self.engine, peer))?;
            let has_come = || self.mail.news.load(Ordering::Acquire) != seen;
            self.engine.attend(&has_come, &Deadline::after(Duration::ZERO));
            // In this order: what was being told until just now has come.
            let is_telling = self.engine.is_telling();
            if !has_come() && !is_telling {
                break;
            }
        }
        Ok(())
    }

    fn call_roll(&self, others: &[Rank]) -> Roll {
        let mut roll = Roll::default();
        let mut peers = self.mail.peers();
        for &rank in others {
            let peer = peers.entry(rank).or_default();
            for bytes in std::mem::take(&mut peer.unread) {
                match Word::decode(&bytes) {
                    Some(Word::Arrived(number)) => peer.arrived = peer.arrived.max(number),
                    Some(Word::GaveUp(number)) => peer.gave_up = peer.gave_up.max(number),
                    None => {}
                }
            }
            // Whoever is further on had not waited for the end of this one.
            if peer.gave_up >= self.number || peer.arrived > self.number {
                roll.lost.push((rank, None));
            } else if peer.arrived == self.number {
                roll.here.push(rank);
            } else if let Some(gone) = &peer.gone {
                roll.lost.push((rank, Some(gone.clone())));
            } else {
                roll.awaited.push(rank);
            }
        }
        roll
    }

    /// What the first rank has said about this barrier, or about a later one.
    fn read_verdict(&self) -> Result<Option<Verdict>> {
        self.mail.with(FIRST, |first| {
            loop {
                let settles = |verdict: &&Verdict| verdict.settles(self.number);
                if let Some(verdict) = first.verdict.as_ref().filter(settles) {
                    return Ok(Some(verdict.clone()));
                }
                let Some(bytes) = first.unread.pop_front() else { break };
                first.verdict = Verdict::decode(&bytes).or(first.verdict.take());
            }
            first.gone.clone().map_or(Ok(None), Err)
        })
    }

    /// Who is missing, and why.
    fn accuse(&self, roll: &Roll) -> Failed {
        let places = self.group.backend.places();
        let mut missing: Vec<Rank> = roll.lost.iter().map(|(rank, _)| *rank).collect();
        // Only where it was waited for them in vain.
        if self.wait_all || missing.is_empty() {
            missing.extend(&roll.awaited);
        }
        missing.sort_unstable();
        if !self.wait_all {
            missing.truncate(1);
        }
        let named = |rank: &Rank| {
            let reason = roll.lost.iter().find(|(lost, _)| lost == rank);
            match reason {
                None => names(&[*rank], places),
                Some((_, Some(gone))) => gone.message().to_owned(),
                Some((_, None)) => {
                    format!("{}, which had come earlier and given up", names(&[*rank], places))
                }
            }
        };
        let list: Vec<String> = missing.iter().map(named).collect();
        let others = if self.wait_all { "" } else { "; there may be others" };
        let message = format!(
            "after {} ms (allowed: {} ms) missing: {}{others}",
            self.deadline.elapsed().as_millis(),
            self.deadline.allowed().as_millis(),
            list.join("; ")
        );
        let is_gone = |(rank, why): &(Rank, Option<Error>)| why.is_some() && missing.contains(rank);
        let kind = match roll.lost.iter().any(is_gone) {
            true => ErrorKind::PeerFailed,
            false => ErrorKind::Timeout,
        };
        let error = Error::new(kind, message);
        let error = missing.first().map_or(error.clone(), |&rank| error.with_culprit(rank));
        Failed { error, missing }
    }

    /// The group has failed: whoever is to blame is missing, and of the rest who has not come.
    fn cut_off(&self, error: Error, roll: &Roll) -> Failed {
        let mut missing = lost_with(&error);
        if self.wait_all {
            missing.extend(roll.awaited.iter().chain(roll.lost.iter().map(|(rank, _)| rank)));
        }
        missing.sort_unstable();
        missing.dedup();
        Failed { error, missing }
    }

    /// Says something to some ranks, and waits a moment until it has gone to those who listen.
    fn tell(&self, to: &[Rank], listening: &[Rank], bytes: &[u8]) {
        // Whom nothing reaches any more will not miss it.
        to.iter().for_each(|&rank| drop(self.say(rank, bytes)));
        let is_gone = || self.group.monitor.outbox.has_gone(listening);
        let limit = Deadline::after(GRACE);
        while !is_gone() && !limit.has_passed() {
            self.engine.attend(&is_gone, &limit.capped(LOOK_AROUND));
        }
    }

    fn say(&self, to: Rank, bytes: &[u8]) -> Result<()> {
        self.group.monitor.outbox.say(self.group, to, bytes)
    }
}

/// Who is missing where this is why a barrier has ended: who has left or died, but not who aborted
/// the group.
fn lost_with(error: &Error) -> Vec<Rank> {
    let culprit = error.culprit().filter(|_| error.kind() == ErrorKind::PeerFailed);
    culprit.into_iter().collect()
}

/// The last look of the first rank always finds something.
fn no_roll() -> Error {
    Error::internal("a monitored barrier ended without having looked who is there")
}
