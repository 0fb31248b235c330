//! A barrier that names the missing ranks and does not fail the group.
//!
//! Every rank sends an arrival notice to the coordinator (rank 0), and the coordinator sends the
//! result to every rank. This takes two messages for each rank, with tags that callers cannot use.
//! The messages are independent of collectives and not ordered with them.
//!
//! ```text
//! rank r         -- Arrived(n) -->           coordinator
//! rank r         <-- BarrierResult(n) --     coordinator
//! rank r         -- GaveUp(n) (timeout) -->  coordinator
//! ```
//!
//! * Each rank numbers its barriers, and every message has the number of its barrier. The
//!   coordinator sends the result to every rank, including missing ranks. A late rank finds the
//!   result when it enters the barrier: it learns immediately that the barrier failed and which
//!   ranks were missing. After that its numbers agree with the other ranks again.
//! * A rank that gives up sends a notice. If the coordinator enters later, it does not count this
//!   rank as arrived.
//! * For a rank that does not receive, only the newest unsent message is kept
//!   ([`super::latest_only_sender`]). A later result therefore also answers the earlier barriers
//!   that the missing rank has not completed: all of them failed, because this rank was missing. In
//!   the same way a later arrival replaces the notice that an earlier barrier was given up.
//! * A receive that is still posted at the end of a barrier stays posted for the next barrier. A
//!   message for an earlier number is read and has no effect.
//! * The coordinator waits until the deadline, and the followers 500 ms longer (`GRACE_PERIOD`), so
//!   that the coordinator names the missing ranks. A departed rank is missing immediately. A death
//!   fails the group, which ends the barrier on all ranks with the name of the dead rank.
//!
//! This module does not depend on handles or on the transport of messages.

use super::barrier_messages::{BarrierNotice, BarrierResult, rank_names};
use super::callbacks;
use super::group::Group;
use super::latest_only_sender::LatestOnlySender;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::transport::{
    Completion, Delivery, LARGEST_TAG, PointToPoint, ReceiveBuffer, ReceiveRequest,
};
use crate::wait::slow_wait::{DisplaySeconds, SlowWaitWatch};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

/// The tag of the messages in both directions.
const BARRIER_TAG: u32 = LARGEST_TAG + 2;

/// The rank that names the missing ranks.
const COORDINATOR: Rank = 0;

/// The time by which followers wait longer than the coordinator, and the time for which a rank
/// waits until its messages are sent.
const GRACE_PERIOD: Duration = Duration::from_millis(500);

/// The interval at which a wait checks whether the group has failed.
const FAILURE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A failed barrier, with the known missing ranks.
#[derive(Clone, Debug)]
pub struct BarrierFailure {
    /// The reason of the failure.
    pub error: Error,
    /// The missing ranks, in ascending order.
    pub missing: Vec<Rank>,
}

/// The state that a rank keeps between the monitored barriers of a group.
#[derive(Debug)]
pub(super) struct MonitoredBarrierState {
    /// The number of barriers that this rank has entered. Locked during a barrier.
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

/// The messages received from other ranks.
#[derive(Debug, Default)]
struct BarrierMessages {
    peers: Mutex<HashMap<Rank, BarrierPeer>>,
    /// Incremented at every change.
    changes: AtomicU64,
}

#[derive(Debug, Default)]
struct BarrierPeer {
    /// True if a receive is posted.
    is_receive_posted: bool,
    unread: VecDeque<Vec<u8>>,
    /// The last result that was read from the coordinator.
    last_result: Option<BarrierResult>,
    /// The reason why this rank sends no more messages.
    departure: Option<Error>,
    /// The last barrier that the rank has entered, and the last that it has given up.
    last_arrived: u64,
    last_given_up: u64,
}

impl BarrierMessages {
    fn peers(&self) -> MutexGuard<'_, HashMap<Rank, BarrierPeer>> {
        lock(&self.peers)
    }

    fn with_peer<T>(&self, peer: Rank, act: impl FnOnce(&mut BarrierPeer) -> T) -> T {
        act(self.peers().entry(peer).or_default())
    }

    fn update_peer(&self, peer: Rank, act: impl FnOnce(&mut BarrierPeer)) {
        self.with_peer(peer, act);
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Posts a receive for the next message of a rank, unless one is posted or the rank has
    /// departed.
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
        // No lock is held here: the engine may complete the receive within the call.
        engine.receive(message, Arc::new(receive)).inspect_err(|_| {
            self.with_peer(from, |peer| peer.is_receive_posted = false);
        })
    }
}

/// The completion of a posted receive.
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

/// One barrier on one rank.
struct MonitoredBarrier<'a> {
    group: &'a Arc<Group>,
    engine: &'a dyn PointToPoint,
    received: &'a Arc<BarrierMessages>,
    number: u64,
    deadline: Deadline,
    wait_all: bool,
}

/// The arrival state of the other ranks, as the coordinator sees it.
#[derive(Default)]
struct ArrivalState {
    arrived: Vec<Rank>,
    /// The ranks that are not waited for, with the reason of their departure if they departed.
    missing: Vec<(Rank, Option<Error>)>,
    awaited: Vec<Rank>,
}

impl Group {
    /// Waits until all ranks have entered, and reports the missing ranks. `None` selects the
    /// group's own timeout. If `wait_all` is set, the error names all ranks that are missing at the
    /// deadline, else the first.
    ///
    /// # Errors
    /// `InvalidArgument`, `Unsupported`; `Timeout` and `PeerFailed` with the missing ranks; the
    /// group's failure.
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
                let message = "another thread of this rank is in a monitored barrier of this group";
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
        // The recorded departure may only mean that a message was refused, so this barrier posts
        // receives to them again.
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
    /// Runs the coordinator's part.
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
        // A rank that has arrived may have given up since then. That notice is behind the messages
        // that were read.
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

    /// Runs the part of every other rank.
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
                    let what =
                        format!("the barriers up to #{number} ended before this rank arrived");
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
                    "timed out after {} ms (allowed: {} ms) without a message from {first}, which \
                     has not entered the barrier or still waits for other ranks",
                    self.deadline.elapsed().as_millis(),
                    self.deadline.timeout().as_millis()
                );
                let error = Error::new(ErrorKind::Timeout, message).with_culprit(COORDINATOR);
                Err(BarrierFailure { error, missing: vec![COORDINATOR] })
            }
        }
    }

    /// Waits for messages and calls `look` after each change until it returns a result. Returns
    /// `None` if the limit passes first. The argument of `look` is true at the last call.
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
            watch.check(|waited| self.log_long_wait(waited));
            let is_over = limit.has_passed();
            let has_changed = || self.received.changes.load(Ordering::Acquire) != seen_changes;
            // After the limit the loop runs once more, so that messages that have already arrived
            // count.
            self.engine.progress_until(&has_changed, &limit.capped(FAILURE_CHECK_INTERVAL));
            if is_over && !has_changed() {
                return Ok(look(true));
            }
        }
    }

    /// Logs a long wait.
    #[cold]
    fn log_long_wait(&self, waited: DisplaySeconds) {
        let others: Vec<Rank> =
            (0..self.group.size()).filter(|&rank| rank != COORDINATOR).collect();
        let awaited = match self.group.rank() {
            COORDINATOR => self.collect_arrivals(&others).awaited,
            _ => vec![COORDINATOR],
        };
        let awaited = rank_names(&awaited, self.group.backend.rank_locations());
        let (number, caller) = (self.number, self.group.describe_rank());
        crate::log!(
            LogLevel::Warn,
            "{OPERATION_NAME} #{number} on {caller} has waited {waited} for {awaited}"
        );
    }

    /// Reads the messages that have arrived, without waiting for more.
    fn read_pending(&self, from: &[Rank]) -> Result<()> {
        let limit = Deadline::after(GRACE_PERIOD);
        while !limit.has_passed() {
            let seen_changes = self.received.changes.load(Ordering::Acquire);
            from.iter().try_for_each(|&peer| self.received.post_receive(self.engine, peer))?;
            let has_changed = || self.received.changes.load(Ordering::Acquire) != seen_changes;
            self.engine.progress_until(&has_changed, &Deadline::after(Duration::ZERO));
            // The order of the two checks matters: messages that were being delivered during the
            // first check have arrived at the second.
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
            // A rank in a later barrier did not wait for the end of this one.
            if peer.last_given_up >= self.number || peer.last_arrived > self.number {
                arrivals.missing.push((rank, None));
            } else if peer.last_arrived == self.number {
                arrivals.arrived.push(rank);
            } else if let Some(departure) = &peer.departure {
                arrivals.missing.push((rank, Some(departure.clone())));
            } else {
                arrivals.awaited.push(rank);
            }
        }
        arrivals
    }

    /// Returns the coordinator's result for this barrier, or for a later one that failed.
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

    /// Returns the failure with the missing ranks and the reasons.
    fn missing_ranks_failure(&self, arrivals: &ArrivalState) -> BarrierFailure {
        let locations = self.group.backend.rank_locations();
        let mut missing: Vec<Rank> = arrivals.missing.iter().map(|(rank, _)| *rank).collect();
        // Awaited ranks are missing only if the coordinator waited for them until the deadline.
        if self.wait_all || missing.is_empty() {
            missing.extend(&arrivals.awaited);
        }
        missing.sort_unstable();
        if !self.wait_all {
            missing.truncate(1);
        }
        let named = |rank: &Rank| {
            let reason = arrivals.missing.iter().find(|(missing_rank, _)| missing_rank == rank);
            match reason {
                None => rank_names(&[*rank], locations),
                Some((_, Some(departure))) => departure.message().to_owned(),
                Some((_, None)) => {
                    format!(
                        "{}, which arrived earlier and gave up",
                        rank_names(&[*rank], locations)
                    )
                }
            }
        };
        let list: Vec<String> = missing.iter().map(named).collect();
        let others = if self.wait_all { "" } else { "; more ranks may be missing" };
        let message = format!(
            "after {} ms (allowed: {} ms) missing: {}{others}",
            self.deadline.elapsed().as_millis(),
            self.deadline.timeout().as_millis(),
            list.join("; ")
        );
        let is_gone = |(rank, departure): &(Rank, Option<Error>)| {
            departure.is_some() && missing.contains(rank)
        };
        let kind = match arrivals.missing.iter().any(is_gone) {
            true => ErrorKind::PeerFailed,
            false => ErrorKind::Timeout,
        };
        let error = Error::new(kind, message);
        let error = missing.first().map_or(error.clone(), |&rank| error.with_culprit(rank));
        BarrierFailure { error, missing }
    }

    /// Returns the failure of a barrier whose group has failed. The culprit is missing; with
    /// `wait_all` also the other ranks that have not arrived.
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

    /// Sends a message to some ranks. Waits up to `GRACE_PERIOD` until it is sent to the ranks in
    /// `listening`.
    fn send_and_flush(&self, to: &[Rank], listening: &[Rank], bytes: &[u8]) {
        // An error means that the rank is unreachable. Such a rank does not need the message.
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

/// Returns the missing rank if it is the cause of the error: a rank that departed or died, but not
/// a rank that aborted the group.
fn departed_culprit(error: &Error) -> Vec<Rank> {
    let culprit = error.culprit().filter(|_| error.kind() == ErrorKind::PeerFailed);
    culprit.into_iter().collect()
}

/// The last call of `look` by the coordinator always returns a result.
fn missing_arrivals_error() -> Error {
    Error::internal("a monitored barrier ended without an arrival check")
}
