//! The arrival check, a debug check that finds the ranks that do not call a collective. Before a
//! collective, each rank sends an arrival message to the coordinator (rank 0). When all ranks have
//! arrived, the coordinator replies to each. If the deadline passes first, the coordinator's error
//! names all missing ranks, and the coordinator sends this error as its reply. Without the check,
//! the error of an algorithm names only the rank that the algorithm waited for.
//!
//! The debug level of rank 0 decides at the creation of a group whether the group runs the check.
//! The check runs in the turn of the collective, that is, after all earlier collectives of the
//! group. Therefore its messages need no number to be matched: they have a tag that only the
//! library uses and arrive in the order of the collectives. Every error fails the group, so no
//! later check reads a leftover message.
//!
//! With the check, every collective waits for all ranks, including a collective whose root could
//! otherwise continue early. The messages contain the whole descriptor of the call, with its label
//! (a name that the caller may give it). If a rank's descriptor differs from the coordinator's, the
//! coordinator replies with an error before any data moves. Thus every rank gets the error in the
//! call, also with back ends that do not inform other ranks of a failure.

use crate::api::collective::barrier_messages::rank_names;
use crate::api::group::process_group::Group;
use crate::backend::Backend;
use crate::backend::buffer_pool::PooledBuffer;
use crate::base::buffer::Src;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::label::{LABEL_BYTES, Label};
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::transport::{
    Completion, Delivery, Descriptor, LARGEST_TAG, PointToPoint, ReceiveBuffer, ReceiveRequest,
    SendRequest,
};
use crate::wait::slow_wait::SlowWaitWatch;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The tag of arrival messages and of the coordinator's replies.
const ARRIVAL_TAG: u32 = LARGEST_TAG + 3;

/// The rank that collects the arrival messages and names the missing ranks.
const COORDINATOR: Rank = 0;

/// An arrival message, or the coordinator's reply: the descriptor of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ArrivalMessage(Descriptor);

impl ArrivalMessage {
    const WORDS: usize = 3;
    const BYTES: usize = 8 * Self::WORDS + LABEL_BYTES;

    fn of(descriptor: &Descriptor) -> Self {
        Self(descriptor.compared())
    }

    fn encode(self) -> Vec<u8> {
        let Self(descriptor) = self;
        let words = descriptor.encode().into_iter().chain(*descriptor.label.words());
        words.flat_map(u64::to_le_bytes).collect()
    }

    /// Decodes a message; `None` for invalid bytes.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let (words, _) = bytes.as_chunks::<8>();
        let word = |at: usize| u64::from_le_bytes(words[at]);
        let label = Label::from_words(std::array::from_fn(|at| word(at + Self::WORDS)))?;
        let descriptor = Descriptor::decode(std::array::from_fn(word))?;
        (descriptor.label.is_none() == label.is_none())
            .then(|| Self(descriptor.with_label_text(Some(label))))
    }
}

/// The coordinator's reply that ends the check with an error.
#[derive(Debug)]
struct Rejection;

impl Rejection {
    /// The maximum size of a reply. The text is cut.
    const MAX_BYTES: usize = 4096;

    /// Encodes the kind, the culprit and the text of an error. The lowest bit is 0, unlike in every
    /// descriptor.
    fn encode(error: &Error) -> Vec<u8> {
        let culprit = error.culprit().map_or(0, |rank| rank as u64 + 1);
        let first = u64::from(error.kind().code()) << 8 | culprit << 16;
        let mut bytes = first.to_le_bytes().to_vec();
        bytes.extend_from_slice(error.message().as_bytes());
        bytes.truncate(Self::MAX_BYTES);
        bytes
    }

    /// Decodes a reply; `None` if it is not an error.
    fn decode(bytes: &[u8]) -> Option<Error> {
        let (first, text) = bytes.split_first_chunk::<8>()?;
        if first[0] & 1 == 1 {
            return None;
        }
        let culprit = usize::try_from(u64::from_le_bytes(*first) >> 16).ok()?.checked_sub(1);
        let error = Error::new(ErrorKind::from_code(first[1]), String::from_utf8_lossy(text));
        Some(culprit.map_or(error.clone(), |rank| error.with_culprit(rank)))
    }
}

/// The time by which the other ranks wait longer than the coordinator, so that the coordinator's
/// error reaches them before their own timeout.
const GRACE: Duration = Duration::from_millis(500);

/// The interval at which a wait checks whether the group has failed.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The messages of one check that have arrived, and the number of pending sends.
#[derive(Debug, Default)]
struct ArrivalTracker {
    arrivals: Mutex<HashMap<Rank, Result<ArrivalMessage>>>,
    /// The number of this rank's sends that have not completed.
    pending_sends: AtomicUsize,
    /// Incremented at every change of the other fields.
    event_count: AtomicU64,
}

impl ArrivalTracker {
    fn lock_arrivals(&self) -> MutexGuard<'_, HashMap<Rank, Result<ArrivalMessage>>> {
        lock(&self.arrivals)
    }

    fn record_arrival(&self, from: Rank, arrival: Result<ArrivalMessage>) {
        self.lock_arrivals().insert(from, arrival);
        self.event_count.fetch_add(1, Ordering::Release);
    }

    fn record_send_completion(&self) {
        self.pending_sends.fetch_sub(1, Ordering::AcqRel);
        self.event_count.fetch_add(1, Ordering::Release);
    }
}

/// The completion of a posted receive. It stores the message in the tracker.
#[derive(Debug)]
struct ArrivalReceive {
    tracker: Arc<ArrivalTracker>,
    from: Rank,
}

impl Completion for ArrivalReceive {
    fn complete(&self, outcome: Result<Delivery>) {
        let no_payload = || Error::internal("an arrival message completed without its payload");
        self.tracker.record_arrival(self.from, outcome.and_then(|_| Err(no_payload())));
    }

    fn complete_allocated(&self, _: Delivery, bytes: Vec<u8>) {
        let arrival = ArrivalMessage::decode(&bytes).ok_or_else(|| {
            Rejection::decode(&bytes).unwrap_or_else(|| {
                Error::internal("received a message that is not an arrival message")
            })
        });
        self.tracker.record_arrival(self.from, arrival);
    }
}

/// The completion of a send. It owns the payload until the send has ended.
#[derive(Debug)]
struct ArrivalSend {
    tracker: Arc<ArrivalTracker>,
    payload: PooledBuffer,
}

impl ArrivalSend {
    fn bytes(&self) -> Src<'static> {
        self.payload.as_src()
    }
}

impl Completion for ArrivalSend {
    fn complete(&self, _: Result<Delivery>) {
        self.tracker.record_send_completion();
    }
}

/// The check on one rank before one operation.
struct ArrivalCheck<'a> {
    group_name: &'a str,
    rank: Rank,
    backend: &'a dyn Backend,
    engine: &'a dyn PointToPoint,
    descriptor: &'a Descriptor,
    deadline: &'a Deadline,
    tracker: Arc<ArrivalTracker>,
}

impl Group {
    /// If the group runs the check, waits until all ranks have arrived at an operation.
    ///
    /// # Errors
    /// `Timeout`, which names all missing ranks; `PeerFailed`; `Mismatch`. On error the group has
    /// failed.
    pub(in crate::api) fn await_all_arrivals(
        &self,
        descriptor: &Descriptor,
        deadline: &Deadline,
    ) -> Result<()> {
        if !self.has_arrival_check || self.size() == 1 {
            return Ok(());
        }
        let check = ArrivalCheck {
            group_name: self.name(),
            rank: self.rank(),
            backend: self.backend.as_ref(),
            engine: self.messaging_engine()?,
            descriptor,
            deadline,
            tracker: Arc::default(),
        };
        let outcome = if self.rank() == COORDINATOR {
            check.collect_arrivals()
        } else {
            check.report_arrival()
        };
        outcome.map_err(|error| self.fail_with(error))
    }
}

impl ArrivalCheck<'_> {
    /// Runs the check on the coordinator.
    fn collect_arrivals(&self) -> Result<()> {
        let ranks = 0..self.backend.rank_locations().len();
        let others: Vec<Rank> = ranks.filter(|&rank| rank != COORDINATOR).collect();
        others.iter().try_for_each(|&rank| self.post_receive(rank))?;
        let reply = ArrivalMessage::of(self.descriptor).encode();
        if let Err(error) = self.await_arrivals(&others, self.deadline) {
            self.reject(&others, &error);
            return Err(error);
        }
        others.iter().try_for_each(|&rank| self.send(rank, &reply))?;
        // The coordinator waits until its replies are sent. Otherwise they could stay unsent if
        // this rank makes no further call in the group.
        let limit = Deadline::after(self.deadline.remaining() + GRACE);
        let is_over = || Ok(self.tracker.pending_sends.load(Ordering::Acquire) == 0);
        if self.wait_until(&limit, &others, is_over)? {
            Ok(())
        } else {
            Err(self.timeout_error(&others))
        }
    }

    /// Sends an error to the other ranks. They need it if the back end does not inform them of the
    /// failure of this rank. If it does, a send may fail, which makes no difference.
    fn reject(&self, others: &[Rank], error: &Error) {
        let reply = Rejection::encode(error);
        for &rank in others {
            if self.backend.failure().is_some() {
                return;
            }
            // A rank that has left or died needs no error, but the ranks after it do.
            drop(self.send(rank, &reply));
        }
        let is_over = || Ok(self.tracker.pending_sends.load(Ordering::Acquire) == 0);
        let is_sent = self.wait_until(&Deadline::after(GRACE), others, is_over);
        if !matches!(is_sent, Ok(true)) {
            crate::log!(
                LogLevel::Info,
                "{} of group {}: not all ranks have received the error of {}",
                self.descriptor,
                self.group_name,
                self.own_name()
            );
        }
    }

    /// Runs the check on every rank but the coordinator.
    fn report_arrival(&self) -> Result<()> {
        self.post_receive(COORDINATOR)?;
        self.send(COORDINATOR, &ArrivalMessage::of(self.descriptor).encode())?;
        self.await_arrivals(&[COORDINATOR], &Deadline::after(self.deadline.remaining() + GRACE))
    }

    fn await_arrivals(&self, from: &[Rank], limit: &Deadline) -> Result<()> {
        let is_over = || {
            let arrivals = self.tracker.lock_arrivals();
            for (&rank, arrival) in arrivals.iter() {
                self.check_arrival(rank, arrival.clone()?)?;
            }
            Ok(arrivals.len() == from.len())
        };
        if self.wait_until(limit, from, is_over)? {
            return Ok(());
        }
        Err(self.timeout_error(&self.missing_ranks(from)))
    }

    fn own_name(&self) -> String {
        rank_names(&[self.rank], self.backend.rank_locations())
    }

    fn missing_ranks(&self, ranks: &[Rank]) -> Vec<Rank> {
        let arrivals = self.tracker.lock_arrivals();
        ranks.iter().copied().filter(|rank| !arrivals.contains_key(rank)).collect()
    }

    /// Waits until `is_over` returns true. Returns false if the limit passes before that. `from`
    /// has the ranks that a log line about a long wait names.
    fn wait_until(
        &self,
        limit: &Deadline,
        from: &[Rank],
        is_over: impl Fn() -> Result<bool>,
    ) -> Result<bool> {
        let mut watch = SlowWaitWatch::default();
        loop {
            let seen_events = self.tracker.event_count.load(Ordering::Acquire);
            if let Some(error) = self.backend.failure() {
                return Err(error);
            }
            if is_over()? {
                return Ok(true);
            }
            if limit.has_passed() {
                return Ok(false);
            }
            watch.check(|waited| {
                crate::log!(
                    LogLevel::Warn,
                    "{} of group {}: {} has waited {waited} for {}",
                    self.descriptor,
                    self.group_name,
                    self.own_name(),
                    self.describe_ranks(&self.missing_ranks(from))
                );
            });
            let has_new_event = || self.tracker.event_count.load(Ordering::Acquire) != seen_events;
            self.engine.progress_until(&has_new_event, &limit.capped(POLL_INTERVAL));
        }
    }

    fn post_receive(&self, from: Rank) -> Result<()> {
        let (tag, dtype, deadline) = (Some(ARRIVAL_TAG), DataType::U8, Deadline::never());
        let into = ReceiveBuffer::Allocated { max_bytes: Rejection::MAX_BYTES };
        let message = ReceiveRequest { from: Some(from), tag, dtype, buffer: into, deadline };
        self.engine
            .receive(message, Arc::new(ArrivalReceive { tracker: Arc::clone(&self.tracker), from }))
    }

    fn send(&self, to: Rank, bytes: &[u8]) -> Result<()> {
        let memory = PooledBuffer::copy_of(bytes);
        let sent = Arc::new(ArrivalSend { tracker: Arc::clone(&self.tracker), payload: memory });
        let (tag, dtype, deadline) = (ARRIVAL_TAG, DataType::U8, Deadline::never());
        let message =
            SendRequest { to, tag, dtype, bytes: sent.bytes(), deadline, is_synchronous: false };
        self.tracker.pending_sends.fetch_add(1, Ordering::AcqRel);
        self.engine.send(message, sent).inspect_err(|_| self.tracker.record_send_completion())
    }

    fn check_arrival(&self, rank: Rank, arrival: ArrivalMessage) -> Result<()> {
        if arrival == ArrivalMessage::of(self.descriptor) {
            return Ok(());
        }
        let (me, mine, ArrivalMessage(theirs)) = (self.own_name(), self.descriptor, arrival);
        let message = if theirs.sequence == mine.sequence {
            let other = rank_names(&[rank], self.backend.rank_locations());
            format!(
                "ranks called different operations: {me} called {mine}, but {other} called {theirs}"
            )
        } else {
            format!(
                "ranks are out of step: {me} is at {mine}, {}, at {theirs}",
                self.describe_ranks(&[rank])
            )
        };
        Err(Error::new(ErrorKind::Mismatch, message).with_culprit(rank))
    }

    /// Returns the names of the ranks, each with its last known activity.
    fn describe_ranks(&self, ranks: &[Rank]) -> String {
        let described = |&rank: &Rank| {
            let name = rank_names(&[rank], self.backend.rank_locations());
            let last = self.backend.peer_monitor().and_then(|it| it.last_activity(rank));
            last.map_or(name.clone(), |last| format!("{name}, which {last}"))
        };
        ranks.iter().map(described).collect::<Vec<_>>().join("; ")
    }

    fn timeout_error(&self, missing: &[Rank]) -> Error {
        let message = format!(
            "{} of {} timed out after {} ms (allowed: {} ms) waiting for {}",
            self.descriptor,
            self.own_name(),
            self.deadline.elapsed().as_millis(),
            self.deadline.timeout().as_millis(),
            self.describe_ranks(missing)
        );
        let error = Error::new(ErrorKind::Timeout, message);
        missing.first().map_or(error.clone(), |&rank| error.with_culprit(rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::op::ReduceOp;
    use crate::transport::{CountSpec, OpKind};

    #[test]
    fn arrival_round_trips_and_bad_bytes_are_refused() {
        for text in ["", "layer3.weight", "0123456789abcdef0123456789abcdef"] {
            let descriptor = Descriptor {
                kind: OpKind::Reduce,
                dtype: Some(DataType::F32),
                op: Some(ReduceOp::Max),
                root: Some(2),
                count_spec: CountSpec::Count(9),
                sequence: 7,
                algorithm: 3,
                part: 0,
                label: Label::new(text).unwrap(),
            };
            let arrival = ArrivalMessage::of(&descriptor);
            let mut bytes = arrival.encode();
            assert_eq!(bytes.len(), ArrivalMessage::BYTES);
            assert_eq!(ArrivalMessage::decode(&bytes), Some(arrival));
            bytes[24] = 0xff;
            assert_eq!(ArrivalMessage::decode(&bytes), None);
        }
        for bad in [&[][..], &[0; 8], &[0; 55], &[0; 56], &[0; 57]] {
            assert_eq!(ArrivalMessage::decode(bad), None);
        }
    }

    #[test]
    fn rejection_round_trips_and_is_no_arrival() {
        for culprit in [None, Some(0), Some(70_000)] {
            let error = Error::new(ErrorKind::Mismatch, "ranks called different operations");
            let error = culprit.map_or(error.clone(), |rank| error.with_culprit(rank));
            let bytes = Rejection::encode(&error);
            let decoded = Rejection::decode(&bytes).unwrap();
            assert_eq!((decoded.kind(), decoded.culprit()), (error.kind(), culprit));
            assert_eq!(decoded.message(), error.message());
            assert_eq!(ArrivalMessage::decode(&bytes), None);
        }
        let long = Error::new(ErrorKind::Mismatch, "x".repeat(10_000));
        assert_eq!(Rejection::encode(&long).len(), Rejection::MAX_BYTES);
        assert!(Rejection::decode(&[1; 56]).is_none() && Rejection::decode(&[0; 7]).is_none());
    }
}
