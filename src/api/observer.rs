//! What a group hears of its own operations, and who is told: the trace, where one is written, and
//! the report on stragglers, always.

use super::group::Group;
use super::point_to_point::Message;
use super::recorder::{self, Origin, Record};
use super::straggler::Straggler;
use super::trace::{self, Span, Track};
use crate::backend::Backend;
use crate::base::ids::{GroupId, Rank, WorldSize};
use crate::base::label::{Label, LabelledName};
use crate::base::log::Level;
use crate::base::probe::Probe;
use crate::transport::Descriptor;
use serde_json::Value;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The bits of a rank beside a time.
const RANK_BITS: u32 = 16;
const MOST_US: u64 = u64::MAX >> RANK_BITS;

/// The ear of one group.
#[derive(Debug)]
pub(super) struct Observer {
    group: String,
    /// Knows who the ranks are, for messages.
    backend: Weak<dyn Backend>,
    rank: Rank,
    size: WorldSize,
    straggler: Straggler,
    /// Of the operation that runs: microseconds, and below them the rank; 0 where nobody was late.
    latest: AtomicU64,
    track: Arc<Track>,
}

impl Observer {
    /// Of a group whose ranks are these of the outermost one, in which this process has rank
    /// `rank`.
    pub(super) fn new(
        id: GroupId,
        name: &str,
        rank: Rank,
        ranks: &[Rank],
        backend: &Arc<dyn Backend>,
    ) -> Self {
        Self {
            group: name.to_owned(),
            backend: Arc::downgrade(backend),
            rank,
            size: ranks.len(),
            latest: AtomicU64::new(0),
            straggler: Straggler::new(rank, ranks.len()),
            track: Arc::new(Track::new(id, name, rank, ranks)),
        }
    }

    /// The arrival skew of ranks, and the last warning.
    pub(super) fn describe(&self) -> (Value, Value) {
        self.straggler.describe()
    }

    /// An operation begins.
    #[inline]
    pub(super) fn nobody_is_late(&self) {
        self.latest.store(0, Ordering::Relaxed);
    }

    fn name(&self, rank: Rank) -> String {
        let backend = self.backend.upgrade();
        let place = backend.as_ref().and_then(|backend| backend.places().get(rank));
        place.map_or_else(|| format!("rank {rank}"), |place| place.name.to_string())
    }
}

impl Probe for Observer {
    fn wants_all(&self) -> bool {
        trace::is_on()
    }

    fn begins(&self, algorithm: &'static str) {
        self.nobody_is_late();
        if trace::is_on() {
            self.track.chosen(algorithm);
        }
    }

    fn waited(&self, rank: Rank, began: Instant, ended: Instant) {
        self.track.waited(rank, began, ended);
    }

    fn late(&self, operation: LabelledName, rank: Rank, by: Duration, alone: Duration) {
        if rank == self.rank || rank >= self.size {
            // By the excuse of another, which may be this rank, and which nobody has checked.
            return;
        }
        let us = u64::try_from(by.as_micros()).unwrap_or(u64::MAX).min(MOST_US);
        self.latest.fetch_max(us << RANK_BITS | rank as u64, Ordering::Relaxed);
        let Some(verdict) = self.straggler.note(operation.name, rank, by, alone, Instant::now())
        else {
            return;
        };
        crate::log!(
            Level::Warn,
            "group {}: {} keeps the others waiting: it alone was missing for {} ms of the last {} s, in {} operations \
             (last: {operation}); see what it does, or what its host does beside",
            self.group,
            self.name(verdict.rank),
            verdict.waited.as_millis(),
            verdict.within.as_secs(),
            verdict.operations
        );
    }

    fn latest(&self) -> Option<(Rank, Duration)> {
        let latest = self.latest.load(Ordering::Relaxed);
        let rank = usize::try_from(latest & ((1 << RANK_BITS) - 1)).ok()?;
        (latest != 0).then(|| (rank, Duration::from_micros(latest >> RANK_BITS)))
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        // A program may end without another call; what it has done should be in the file.
        if trace::is_on() {
            trace::flush();
        }
    }
}

impl Group {
    fn origin(&self, at_ns: u64) -> Origin {
        Origin { group: self.id(), rank: self.rank(), at_ns }
    }

    /// Notes that a collective is issued, for the flight recorder and the trace. It runs from now
    /// on, or it waits for its turn.
    pub(super) fn record(&self, descriptor: &Descriptor, issued: Instant, runs: bool) -> Record {
        self.record_at(recorder::Place::take(), descriptor, issued, runs)
    }

    /// Notes at a place that was taken before that an operation of which only this is known begins,
    /// now.
    #[inline]
    pub(super) fn record_words(
        &self,
        place: recorder::Place,
        words: &[u64; 3],
        label: &Label,
    ) -> Record {
        recorder::begin_at_once(
            place,
            self.origin(recorder::now_ns()),
            (&Descriptor::before_choice(words), label),
        )
    }

    /// The same at a place that was taken before.
    pub(super) fn record_at(
        &self,
        place: recorder::Place,
        descriptor: &Descriptor,
        issued: Instant,
        runs: bool,
    ) -> Record {
        let record = recorder::begin(place, self.origin(recorder::at_ns(issued)), descriptor, runs);
        if trace::is_on() {
            record.with_span(Span::collective(&self.observer.track, descriptor))
        } else {
            record
        }
    }

    /// Notes that a message is posted.
    pub(super) fn record_message(
        &self,
        message: &Message,
        sequence: u64,
        issued_ns: u64,
    ) -> Record {
        let record = recorder::begin_message(self.origin(issued_ns), message, sequence);
        if trace::is_on() {
            record.with_span(Span::message(&self.observer.track, message, sequence))
        } else {
            record
        }
    }
}
