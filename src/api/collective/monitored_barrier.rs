//! The monitored barrier: a barrier that names the missing ranks. If ranks are missing, the call
//! fails, but the group does not.
//!
//! Every other rank (a follower) sends an arrival notice to the coordinator (rank 0), and the
//! coordinator sends the result to every follower. The messages have a tag that callers cannot use.
//! They do not use the queue of collectives, so a monitored barrier has no order relative to
//! collectives.
//!
//! ```text
//! rank r         -- Arrived(n) -->           coordinator
//! rank r         <-- BarrierResult(n) --     coordinator
//! rank r         -- GaveUp(n) (timeout) -->  coordinator
//! ```
//!
//! * **Numbers.** Each rank counts its barriers, and every message has the number of its barrier.
//! * **Late followers.** The coordinator also sends the result to the missing followers. When a
//!   late follower enters the barrier, it finds the result and learns immediately that the barrier
//!   failed and which ranks were missing. After that its count agrees with the other ranks again.
//! * **Late coordinator.** A follower that reaches its deadline sends `GaveUp`. If the coordinator
//!   enters the barrier after that, it counts this follower as missing.
//! * **Replaced messages.** If a rank does not receive, the sender keeps only the newest unsent
//!   message for it ([`crate::api::work::latest_only_sender`]). So for a missing follower, the
//!   result of a later barrier replaces the results of earlier barriers. The follower can conclude
//!   that the earlier barriers failed, because it was missing in all of them. In the same way,
//!   `Arrived` for a later barrier replaces `GaveUp` for an earlier barrier.
//! * **Posted receives.** If a receive is still posted at the end of a barrier, it stays posted for
//!   the next barrier. A message with the number of an earlier barrier is read and has no effect.
//! * **Deadlines.** The coordinator waits until the deadline. The followers wait 500 ms longer
//!   (`GRACE_PERIOD`), so that they get the coordinator's result, which names the missing ranks.
//! * **Departure and death.** A rank that has left the group counts as missing immediately. If a
//!   rank dies, the group fails, and the barrier ends on all ranks with an error that names the
//!   dead rank.
//!
//! This module does not depend on handles of the C interface or on the transport of messages.

use crate::api::collective::barrier_messages::{
    BarrierFailure, BarrierNotice, BarrierResult, rank_names,
};
use crate::api::collective::barrier_state::MonitoredBarrierState;
use crate::api::group::process_group::Group;
use crate::api::observe::deadlock::{BlockedCallGuard, Need, PublishedNeeds};
use crate::api::work::callbacks;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::base::sync::try_lock;
use crate::transport::{MessageTraffic, PointToPoint};
use crate::wait::slow_wait::{DisplaySeconds, SlowWaitWatch};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The rank that collects the arrivals and names the missing ranks.
const COORDINATOR: Rank = 0;

/// The time by which followers wait longer than the coordinator. Also the maximum time for which a
/// rank waits until its messages are sent.
const GRACE_PERIOD: Duration = Duration::from_millis(500);

/// The interval at which a wait checks whether the group has failed.
const FAILURE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// One call of a monitored barrier on this rank.
struct MonitoredBarrier<'a> {
    group: &'a Arc<Group>,
    engine: &'a dyn PointToPoint,
    state: &'a MonitoredBarrierState,
    number: u64,
    deadline: Deadline,
    wait_all: bool,
    blocked_call: BlockedCallGuard,
}

/// The arrival state of the other ranks, as the coordinator sees it.
#[derive(Default)]
struct ArrivalState {
    arrived: Vec<Rank>,
    /// The ranks that can no longer arrive. If a rank has departed, it has the reason.
    missing: Vec<(Rank, Option<Error>)>,
    /// The ranks that may still arrive.
    awaited: Vec<Rank>,
}

impl Group {
    /// Waits until all ranks have entered the barrier, and otherwise returns an error that names
    /// missing ranks. A `timeout` of `None` selects the group's timeout. If `wait_all` is set, the
    /// error names all ranks that are missing at the deadline. Otherwise the error names a single
    /// missing rank, and the barrier may fail before the deadline.
    ///
    /// # Errors
    /// `InvalidArgument`; `Unsupported`; `Timeout` or `PeerFailed`, with the missing ranks; the
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
        let state = self.extensions.get_or_init(Arc::<MonitoredBarrierState>::default);
        let Some(mut entered) = try_lock(&state.entered_count) else {
            let message = "another thread of this rank is in a monitored barrier of this group";
            return Err(rejected(Error::invalid(message)));
        };
        *entered += 1;
        let timeout = timeout.unwrap_or(Duration::from_millis(self.timeout_ms()));
        let (number, deadline) = (*entered, Deadline::after(timeout));
        let blocked_call = BlockedCallGuard::control(Arc::as_ptr(&self.queue).addr(), &deadline);
        let barrier = MonitoredBarrier {
            group: self,
            engine,
            state: &state,
            number,
            deadline,
            wait_all,
            blocked_call,
        };
        // A recorded departure may only mean that a message was not accepted. Therefore all
        // departures are cleared, and this barrier posts receives for these peers again.
        barrier.state.received.peers().values_mut().for_each(|peer| peer.departure = None);
        let record = self.observer.record_monitored_barrier(number, &deadline);
        let outcome = if self.rank() == COORDINATOR {
            barrier.run_as_coordinator()
        } else {
            barrier.run_as_follower()
        };
        if let Err(failed) = &outcome {
            record.set_missing(&failed.missing);
        }
        record.end(&outcome.as_ref().copied().map_err(|failed| failed.error.clone()));
        outcome.map_err(|BarrierFailure { error, missing }| {
            let what = format!("{OPERATION_NAME} #{number} on {}", self.describe_rank());
            BarrierFailure { error: error.context(what), missing }
        })
    }
}

const OPERATION_NAME: &str = "monitored_barrier";

impl MonitoredBarrier<'_> {
    /// Runs the barrier on the coordinator.
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
        // A follower that has arrived may have given up after that. Its `GaveUp` comes after the
        // messages that were read. So the pending messages are read before the barrier succeeds.
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

    /// Runs the barrier on a follower.
    fn run_as_follower(&self) -> std::result::Result<(), BarrierFailure> {
        let departed = |error: Error| BarrierFailure { missing: departed_culprit(&error), error };
        let left = self.deadline.remaining();
        let wait_time = if left.is_zero() { left } else { left + GRACE_PERIOD };
        let limit = Deadline::after(wait_time);
        self.send(COORDINATOR, &BarrierNotice::Arrived(self.number).encode()).map_err(departed)?;
        let result =
            self.wait_for_messages(&limit, &[COORDINATOR], |_| self.read_result().transpose());
        match result.map_err(departed)? {
            Some(Ok(barrier_result)) => {
                let number = barrier_result.number();
                barrier_result.into_outcome(self.group.backend.rank_locations()).map_err(|failed| {
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

    /// Waits for messages from the ranks `from`. Calls `poll` after each change until `poll`
    /// returns a result, and returns this result. If the limit passes, calls `poll` a last time,
    /// with true as its argument, and returns `None` if it again has no result.
    fn wait_for_messages<T>(
        &self,
        limit: &Deadline,
        from: &[Rank],
        poll: impl Fn(bool) -> Option<T>,
    ) -> Result<Option<T>> {
        let mut watch = SlowWaitWatch::default();
        loop {
            let seen_changes = self.state.received.changes.load(Ordering::Acquire);
            for &peer in from {
                self.state.received.post_receive(self.engine, peer)?;
            }
            if let Some(error) = self.group.failure() {
                return Err(error);
            }
            let traffic = self.blocked_call.is_blocked().then(|| self.engine.traffic(0));
            // A message that is just being delivered counts as processed in the traffic, but `poll`
            // may not see it.
            let traffic = traffic.filter(|_| !self.engine.is_completing());
            if let Some(found) = poll(false) {
                return Ok(Some(found));
            }
            if let Some(traffic) = traffic {
                self.publish_needs(&traffic);
            }
            watch.check(|waited| self.log_long_wait(waited));
            let is_over = limit.has_passed();
            let has_changed =
                || self.state.received.changes.load(Ordering::Acquire) != seen_changes;
            // When the limit has passed, the loop runs once more, so that messages count that have
            // already arrived.
            self.engine.progress_until(&has_changed, &limit.capped(FAILURE_CHECK_INTERVAL));
            if is_over && !has_changed() {
                return Ok(poll(true));
            }
        }
    }

    /// Returns the ranks for which this rank waits.
    fn awaited_ranks(&self) -> Vec<Rank> {
        if self.group.rank() != COORDINATOR {
            return vec![COORDINATOR];
        }
        let others: Vec<Rank> =
            (0..self.group.size()).filter(|&rank| rank != COORDINATOR).collect();
        self.collect_arrivals(&others).awaited
    }

    /// Publishes for which messages the barrier waits. `traffic` was read before the last poll.
    fn publish_needs(&self, traffic: &MessageTraffic) {
        let awaited = self.awaited_ranks();
        self.blocked_call.publish(PublishedNeeds {
            title: format!("{OPERATION_NAME} #{}", self.number),
            needs: awaited.iter().filter_map(|&rank| Need::message_of(rank, traffic)).collect(),
            joining: None,
        });
    }

    /// Logs a long wait.
    #[cold]
    fn log_long_wait(&self, waited: DisplaySeconds) {
        let awaited = rank_names(&self.awaited_ranks(), self.group.backend.rank_locations());
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
            let seen_changes = self.state.received.changes.load(Ordering::Acquire);
            from.iter()
                .try_for_each(|&peer| self.state.received.post_receive(self.engine, peer))?;
            let has_changed =
                || self.state.received.changes.load(Ordering::Acquire) != seen_changes;
            self.engine.progress_until(&has_changed, &Deadline::after(Duration::ZERO));
            // `is_delivering` must be read before `has_changed` is called. If a message is being
            // delivered at the first check, `is_delivering` is true. If its delivery has ended
            // before the first check, the second check sees the change.
            let is_delivering = self.engine.is_completing();
            if !has_changed() && !is_delivering {
                break;
            }
        }
        Ok(())
    }

    fn collect_arrivals(&self, others: &[Rank]) -> ArrivalState {
        let mut arrivals = ArrivalState::default();
        let mut peers = self.state.received.peers();
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
            // A rank that has entered a later barrier no longer waits for the end of this barrier.
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

    /// Returns the coordinator's result for this barrier, or for a later barrier that failed.
    /// Returns `None` if no such result has arrived.
    fn read_result(&self) -> Result<Option<BarrierResult>> {
        self.state.received.with_peer(COORDINATOR, |first| {
            loop {
                let decides = |barrier_result: &&BarrierResult| barrier_result.decides(self.number);
                if let Some(barrier_result) = first.last_result.as_ref().filter(decides) {
                    return Ok(Some(barrier_result.clone()));
                }
                let Some(bytes) = first.unread.pop_front() else { break };
                first.last_result = BarrierResult::decode(&bytes).or(first.last_result.take());
            }
            first.departure.clone().map_or(Ok(None), Err)
        })
    }

    /// Returns the failure of this barrier, which names the missing ranks and the reasons.
    fn missing_ranks_failure(&self, arrivals: &ArrivalState) -> BarrierFailure {
        let locations = self.group.backend.rank_locations();
        let mut missing: Vec<Rank> = arrivals.missing.iter().map(|(rank, _)| *rank).collect();
        // Ranks that may still arrive count as missing only if the coordinator waited for them
        // until the deadline.
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

    /// Returns the failure of a barrier whose group has failed. The culprit counts as missing if it
    /// has died or departed. With `wait_all`, the other ranks that have not arrived also count as
    /// missing.
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

    /// Sends a message to the ranks `to`. Then waits until the message is sent to the ranks
    /// `listening`, but at most for `GRACE_PERIOD`.
    fn send_and_flush(&self, to: &[Rank], listening: &[Rank], bytes: &[u8]) {
        // An error means that the rank is unreachable. Such a rank does not need the message.
        to.iter().for_each(|&rank| drop(self.send(rank, bytes)));
        let is_flushed = || self.state.sender.is_flushed(listening);
        let limit = Deadline::after(GRACE_PERIOD);
        while !is_flushed() && !limit.has_passed() {
            self.engine.progress_until(&is_flushed, &limit.capped(FAILURE_CHECK_INTERVAL));
        }
    }

    fn send(&self, to: Rank, bytes: &[u8]) -> Result<()> {
        self.state.sender.send_latest(self.group, to, bytes)
    }
}

/// Returns the culprit of the error as a missing rank if the culprit has departed or died. Returns
/// an empty list if the culprit has aborted the group.
fn departed_culprit(error: &Error) -> Vec<Rank> {
    let culprit = error.culprit().filter(|_| error.kind() == ErrorKind::PeerFailed);
    culprit.into_iter().collect()
}

/// Returns an internal error. It cannot occur, because on the coordinator the last call of `poll`
/// always returns a result.
fn missing_arrivals_error() -> Error {
    Error::internal("a monitored barrier ended without an arrival check")
}
