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
//!   ([`super::sender`]), so a later verdict stands for those that are missing before it: they all
//!   failed, since this rank had not come. A later arrival stands in the same way for an earlier
//!   barrier given up.
//! * A receive that has got nothing by the end of a barrier stays posted for the next one; what
//!   comes for an earlier number is read and has no effect.
//! * The first rank waits until the deadline, the others a moment longer, so that it is the one
//!   that names. Who has left is missing at once; a death fails the group, and so ends the barrier
//!   on all ranks with the name of the dead.
//!
//! Must not know: handles; how messages travel.

use super::barrier_messages::{BarrierNotice, BarrierResult, rank_names};
use super::callbacks;
use super::group::Group;
use super::latest_only_sender::LatestOnlySender;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::transport::{
    Completion, Delivery, LARGEST_TAG, PointToPoint, ReceiveBuffer, ReceiveRequest,
};
use crate::wait::slow_wait::{DisplaySeconds, SlowWaitWatch};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// What both directions go under.
const BARRIER_TAG: u32 = LARGEST_TAG + 2;

/// The rank that names the missing.
const COORDINATOR: Rank = 0;

/// How much longer than the first rank the others wait, and how long a rank sees to it that what it
/// says has gone.
const GRACE_PERIOD: Duration = Duration::from_millis(500);

/// How often a wait looks whether the group has failed.
const FAILURE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A barrier that failed, and who was missing, as far as is known.
#[derive(Clone, Debug)]
pub struct BarrierFailure {
    /// Why.
    pub error: Error,
    /// In order.
    pub missing: Vec<Rank>,
}

/// What a rank keeps between the monitored barriers of a group.
#[derive(Debug)]
pub(super) struct MonitoredBarrierState {
    /// How many it has entered. Locked during one.
    entered_count: Mutex<u64>,
    received: Arc<BarrierMessages>,
    sender: Arc<LatestOnlySender>,
}

impl Default for MonitoredBarrierState {
    fn default() -> Self {
        Self {
            entered_count: Mutex::default(),
            received: Arc::default(),
            sender: Arc::new(LatestOnlySender::new(BARRIER_TAG)),
        }
    }
}

/// What has come from other ranks.
#[derive(Debug, Default)]
struct BarrierMessages {
    peers: Mutex<HashMap<Rank, BarrierPeer>>,
    /// Grows with whatever happens.
    changes: AtomicU64,
}

#[derive(Debug, Default)]
struct BarrierPeer {
    /// A receive is posted.
    is_receive_posted: bool,
    unread: VecDeque<Vec<u8>>,
    /// The last verdict that was read, of the first rank.
    last_result: Option<BarrierResult>,
    /// Why nothing comes from it any more.
    departure: Option<Error>,
    /// The last barrier that it has entered, and the last that it has given up.
    last_arrived: u64,
    last_given_up: u64,
}

impl BarrierMessages {
    fn peers(&self) -> MutexGuard<'_, HashMap<Rank, BarrierPeer>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_peer<T>(&self, peer: Rank, act: impl FnOnce(&mut BarrierPeer) -> T) -> T {
        act(self.peers().entry(peer).or_default())
    }

    fn update_peer(&self, peer: Rank, act: impl FnOnce(&mut BarrierPeer)) {
        self.with_peer(peer, act);
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Has the next message of a rank received, unless it is already, or the rank is gone.
    fn post_receive(self: &Arc<Self>, engine: &dyn PointToPoint, from: Rank) -> Result<()> {
        let is_posted = |peer: &mut BarrierPeer| {
            peer.departure.is_some() || std::mem::replace(&mut peer.is_receive_posted, true)
        };
        if self.with_peer(from, is_posted) {
            return Ok(());
        }
        let into = ReceiveBuffer::Allocated { max_bytes: BarrierResult::MAX_BYTES };
        let (tag, dtype, deadline) = (Some(BARRIER_TAG), DataType::U8, Deadline::never());
        let message = ReceiveRequest { from: Some(from), tag, dtype, buffer: into, deadline };
        let receive = BarrierReceive { received: Arc::clone(self), from };
        // No lock is held: it may be told within the call.
        engine.receive(message, Arc::new(receive)).inspect_err(|_| {
            self.with_peer(from, |peer| peer.is_receive_posted = false);
        })
    }
}

/// A posted receive.
#[derive(Debug)]
struct BarrierReceive {
    received: Arc<BarrierMessages>,
    from: Rank,
}

impl Completion for BarrierReceive {
    fn complete(&self, outcome: Result<Delivery>) {
        self.received.update_peer(self.from, |peer| {
            peer.is_receive_posted = false;
            peer.departure = outcome.err();
        });
    }

    fn complete_allocated(&self, _: Delivery, bytes: Vec<u8>) {
        self.received.update_peer(self.from, |peer| {
            peer.is_receive_posted = false;
            peer.unread.push_back(bytes);
        });
    }
}

/// One barrier of one rank.
struct MonitoredBarrier<'a> {
    group: &'a Arc<Group>,
    engine: &'a dyn PointToPoint,
    received: &'a Arc<BarrierMessages>,
    number: u64,
    deadline: Deadline,
    wait_all: bool,
}

/// Where the other ranks are, as the first one sees them.
#[derive(Default)]
struct ArrivalState {
    arrived: Vec<Rank>,
    /// Not to be waited for, with the reason why not.
    missing: Vec<(Rank, Option<Error>)>,
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
    ) -> std::result::Result<(), BarrierFailure> {
        let rejected = |error: Error| BarrierFailure {
            error: error.context(OPERATION_NAME),
            missing: Vec::new(),
        };
        callbacks::reject_blocking_in_callback("it").map_err(rejected)?;
        if self.size() == 1 {
            return Ok(());
        }
        let engine = self.messaging_engine().map_err(rejected)?;
        let mut entered = match self.monitored_barrier.entered_count.try_lock() {
            Ok(entered) => entered,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let message = "another thread of this rank is in one on this group";
                return Err(rejected(Error::invalid(message)));
            }
        };
        *entered += 1;
        let timeout = timeout.unwrap_or(Duration::from_millis(self.timeout_ms()));
        let (number, deadline) = (*entered, Deadline::after(timeout));
        let barrier = MonitoredBarrier {
            group: self,
            engine,
            received: &self.monitored_barrier.received,
            number,
            deadline,
            wait_all,
        };
        // Who was gone may only have had its message refused: it is asked anew.
        barrier.received.peers().values_mut().for_each(|peer| peer.departure = None);
        let outcome = if self.rank() == COORDINATOR {
            barrier.run_as_coordinator()
        } else {
            barrier.run_as_follower()
        };
        outcome.map_err(|BarrierFailure { error, missing }| {
            let what = format!("{OPERATION_NAME} #{number} on {}", self.describe_rank());
            BarrierFailure { error: error.context(what), missing }
        })
    }
}

const OPERATION_NAME: &str = "monitored_barrier";

impl MonitoredBarrier<'_> {
    /// The first rank's part.
    fn run_as_coordinator(&self) -> std::result::Result<(), BarrierFailure> {
        let others: Vec<Rank> =
            (0..self.group.size()).filter(|&rank| rank != COORDINATOR).collect();
        let arrivals = self.wait_for_messages(&self.deadline, &others, |is_over| {
            let arrivals = self.collect_arrivals(&others);
            let is_settled =
                arrivals.awaited.is_empty() || !self.wait_all && !arrivals.missing.is_empty();
            (is_settled || is_over).then_some(arrivals)
        });
        let Some(arrivals) = arrivals
            .map_err(|error| self.failure_with_missing(error, &self.collect_arrivals(&others)))?
        else {
            return Err(
                self.failure_with_missing(missing_arrivals_error(), &ArrivalState::default())
            );
        };
        // Whoever has come may have given up since, and that lies behind what was read.
        let read = if arrivals.awaited.is_empty() { self.read_pending(&others) } else { Ok(()) };
        let arrivals = self.collect_arrivals(&others);
        read.map_err(|error| self.failure_with_missing(error, &arrivals))?;
        let outcome = if arrivals.arrived.len() == others.len() {
            Ok(())
        } else {
            Err(self.missing_ranks_failure(&arrivals))
        };
        let result = BarrierResult::from_outcome(self.number, self.deadline.timeout(), &outcome);
        self.send_and_flush(&others, &arrivals.arrived, &result.encode());
        outcome
    }

    /// Every other rank's part.
    fn run_as_follower(&self) -> std::result::Result<(), BarrierFailure> {
        let departed = |error: Error| BarrierFailure { missing: departed_culprit(&error), error };
        let left = self.deadline.remaining();
        let wait_time = if left.is_zero() { left } else { left + GRACE_PERIOD };
        let limit = Deadline::after(wait_time);
        self.send(COORDINATOR, &BarrierNotice::Arrived(self.number).encode()).map_err(departed)?;
        let result =
            self.wait_for_messages(&limit, &[COORDINATOR], |_| self.read_result().transpose());
        match result.map_err(departed)? {
            Some(Ok(verdict)) => {
                let number = verdict.number();
                verdict.into_outcome(self.group.backend.rank_locations()).map_err(|failed| {
                    if number == self.number {
                        return failed;
                    }
                    let what = format!("it was over before this rank came, as was #{number}");
                    BarrierFailure { error: failed.error.context(what), ..failed }
                })
            }
            Some(Err(error)) => Err(departed(error)),
            None => {
                self.send_and_flush(
                    &[COORDINATOR],
                    &[COORDINATOR],
                    &BarrierNotice::GaveUp(self.number).encode(),
                );
                let first = rank_names(&[COORDINATOR], self.group.backend.rank_locations());
                let message = format!(
                    "timed out after {} ms (allowed: {} ms) without a word of {first}, which has not entered \
                     it or waits for others still",
                    self.deadline.elapsed().as_millis(),
                    self.deadline.timeout().as_millis()
                );
                let error = Error::new(ErrorKind::Timeout, message).with_culprit(COORDINATOR);
                Err(BarrierFailure { error, missing: vec![COORDINATOR] })
            }
        }
    }

    /// Waits for what others say, and looks at it, until there is a result; `None` where the limit
    /// came first. `check` is told whether it is the last time.
    fn wait_for_messages<T>(
        &self,
        limit: &Deadline,
        from: &[Rank],
        look: impl Fn(bool) -> Option<T>,
    ) -> Result<Option<T>> {
        let mut watch = SlowWaitWatch::default();
        loop {
            let seen_changes = self.received.changes.load(Ordering::Acquire);
            for &peer in from {
                self.received.post_receive(self.engine, peer)?;
            }
            if let Some(error) = self.group.failure() {
                return Err(error);
            }
            if let Some(found) = look(false) {
                return Ok(Some(found));
            }
            watch.check(|lasted| self.log_long_wait(lasted));
            let is_over = limit.has_passed();
            let has_changed = || self.received.changes.load(Ordering::Acquire) != seen_changes;
            // Once more after the end: what is there already counts.
            self.engine.progress_until(&has_changed, &limit.capped(FAILURE_CHECK_INTERVAL));
            if is_over && !has_changed() {
                return Ok(look(true));
            }
        }
    }

    /// A long wait, for the log.
    #[cold]
    fn log_long_wait(&self, lasted: DisplaySeconds) {
        let others: Vec<Rank> =
            (0..self.group.size()).filter(|&rank| rank != COORDINATOR).collect();
        let awaited = match self.group.rank() {
            COORDINATOR => self.collect_arrivals(&others).awaited,
            _ => vec![COORDINATOR],
        };
        let awaited = rank_names(&awaited, self.group.backend.rank_locations());
        let (number, whom) = (self.number, self.group.describe_rank());
        crate::log!(
            LogLevel::Warn,
            "{OPERATION_NAME} #{number} on {whom} has waited {lasted} for {awaited}"
        );
    }

    /// Reads what has come, without waiting for more.
    fn read_pending(&self, from: &[Rank]) -> Result<()> {
        let limit = Deadline::after(GRACE_PERIOD);
        while !limit.has_passed() {
            let seen_changes = self.received.changes.load(Ordering::Acquire);
            from.iter().try_for_each(|&peer| self.received.post_receive(self.engine, peer))?;
            let has_changed = || self.received.changes.load(Ordering::Acquire) != seen_changes;
            self.engine.progress_until(&has_changed, &Deadline::after(Duration::ZERO));
            // In this order: what was being told until just now has come.
            let is_delivering = self.engine.is_completing();
            if !has_changed() && !is_delivering {
                break;
            }
        }
        Ok(())
    }

    fn collect_arrivals(&self, others: &[Rank]) -> ArrivalState {
        let mut arrivals = ArrivalState::default();
        let mut peers = self.received.peers();
        for &rank in others {
            let peer = peers.entry(rank).or_default();
            for bytes in std::mem::take(&mut peer.unread) {
                match BarrierNotice::decode(&bytes) {
                    Some(BarrierNotice::Arrived(number)) => {
                        peer.last_arrived = peer.last_arrived.max(number)
                    }
                    Some(BarrierNotice::GaveUp(number)) => {
                        peer.last_given_up = peer.last_given_up.max(number)
                    }
                    None => {}
                }
            }
            // Whoever is further on had not waited for the end of this one.
            if peer.last_given_up >= self.number || peer.last_arrived > self.number {
                arrivals.missing.push((rank, None));
            } else if peer.last_arrived == self.number {
                arrivals.arrived.push(rank);
            } else if let Some(gone) = &peer.departure {
                arrivals.missing.push((rank, Some(gone.clone())));
            } else {
                arrivals.awaited.push(rank);
            }
        }
        arrivals
    }

    /// What the first rank has said about this barrier, or about a later one.
    fn read_result(&self) -> Result<Option<BarrierResult>> {
        self.received.with_peer(COORDINATOR, |first| {
            loop {
                let decides = |verdict: &&BarrierResult| verdict.decides(self.number);
                if let Some(verdict) = first.last_result.as_ref().filter(decides) {
                    return Ok(Some(verdict.clone()));
                }
                let Some(bytes) = first.unread.pop_front() else { break };
                first.last_result = BarrierResult::decode(&bytes).or(first.last_result.take());
            }
            first.departure.clone().map_or(Ok(None), Err)
        })
    }

    /// Who is missing, and why.
    fn missing_ranks_failure(&self, arrivals: &ArrivalState) -> BarrierFailure {
        let places = self.group.backend.rank_locations();
        let mut missing: Vec<Rank> = arrivals.missing.iter().map(|(rank, _)| *rank).collect();
        // Only where it was waited for them in vain.
        if self.wait_all || missing.is_empty() {
            missing.extend(&arrivals.awaited);
        }
        missing.sort_unstable();
        if !self.wait_all {
            missing.truncate(1);
        }
        let named = |rank: &Rank| {
            let reason = arrivals.missing.iter().find(|(lost, _)| lost == rank);
            match reason {
                None => rank_names(&[*rank], places),
                Some((_, Some(gone))) => gone.message().to_owned(),
                Some((_, None)) => {
                    format!("{}, which had come earlier and given up", rank_names(&[*rank], places))
                }
            }
        };
        let list: Vec<String> = missing.iter().map(named).collect();
        let others = if self.wait_all { "" } else { "; there may be others" };
        let message = format!(
            "after {} ms (allowed: {} ms) missing: {}{others}",
            self.deadline.elapsed().as_millis(),
            self.deadline.timeout().as_millis(),
            list.join("; ")
        );
        let is_gone = |(rank, why): &(Rank, Option<Error>)| why.is_some() && missing.contains(rank);
        let kind = match arrivals.missing.iter().any(is_gone) {
            true => ErrorKind::PeerFailed,
            false => ErrorKind::Timeout,
        };
        let error = Error::new(kind, message);
        let error = missing.first().map_or(error.clone(), |&rank| error.with_culprit(rank));
        BarrierFailure { error, missing }
    }

    /// The group has failed: whoever is to blame is missing, and of the rest who has not come.
    fn failure_with_missing(&self, error: Error, arrivals: &ArrivalState) -> BarrierFailure {
        let mut missing = departed_culprit(&error);
        if self.wait_all {
            missing.extend(
                arrivals.awaited.iter().chain(arrivals.missing.iter().map(|(rank, _)| rank)),
            );
        }
        missing.sort_unstable();
        missing.dedup();
        BarrierFailure { error, missing }
    }

    /// Says something to some ranks, and waits a moment until it has gone to those who listen.
    fn send_and_flush(&self, to: &[Rank], listening: &[Rank], bytes: &[u8]) {
        // Whom nothing reaches any more will not miss it.
        to.iter().for_each(|&rank| drop(self.send(rank, bytes)));
        let is_flushed = || self.group.monitored_barrier.sender.is_flushed(listening);
        let limit = Deadline::after(GRACE_PERIOD);
        while !is_flushed() && !limit.has_passed() {
            self.engine.progress_until(&is_flushed, &limit.capped(FAILURE_CHECK_INTERVAL));
        }
    }

    fn send(&self, to: Rank, bytes: &[u8]) -> Result<()> {
        self.group.monitored_barrier.sender.send_latest(self.group, to, bytes)
    }
}

/// Who is missing where this is why a barrier has ended: who has left or died, but not who aborted
/// the group.
fn departed_culprit(error: &Error) -> Vec<Rank> {
    let culprit = error.culprit().filter(|_| error.kind() == ErrorKind::PeerFailed);
    culprit.into_iter().collect()
}

/// The last look of the first rank always finds something.
fn missing_arrivals_error() -> Error {
    Error::internal("a monitored barrier ended without having looked who is there")
}
