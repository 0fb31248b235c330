//! The track of a group in a trace. It consists of lanes, in which spans nest and do not overlap.
//!
//! An operation keeps a lane from its issue to its end, so the events that it records are inside
//! its span. A group's single blocking caller always uses the first lane. Operations that are
//! outstanding at the same time use different lanes. There are [`LANES_PER_KIND`] lanes for
//! collectives and as many for messages. If no lane is free, the operation is drawn as a span that
//! may overlap other spans.

use super::{TraceEvent, TraceEventKind, push_event};
use crate::api::point_to_point::MessageDescriptor;
use crate::base::error::Result;
use crate::base::ids::{GroupId, Rank};
use crate::base::sync::lock;
use crate::transport::Descriptor;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The number of lanes per group and kind of operation.
pub(super) const LANES_PER_KIND: u32 = 64;

/// The minimum duration of a wait in the trace. Shorter waits are not visible in a viewer.
const SHORTEST_WAIT: Duration = Duration::from_micros(1);

/// A group in the trace.
#[derive(Debug)]
pub(in crate::api) struct GroupTrack {
    /// A number that distinguishes the groups of this process.
    pub(super) index: u32,
    pub(super) id: GroupId,
    pub(super) name: String,
    /// This process's rank in the group.
    pub(super) rank: Rank,
    /// The rank of each member in the outermost group.
    pub(super) global_ranks: Box<[Rank]>,
    /// Bit masks of the lanes in use: by collectives, and by messages.
    taken_lanes: [AtomicU64; 2],
    /// The operation that holds the turn; there is at most one.
    current_turn: Mutex<Option<TracedTurn>>,
}

/// The data of the operation that holds the turn.
#[derive(Clone, Copy, Debug)]
struct TracedTurn {
    lane: Option<u32>,
    began: Instant,
    algorithm: Option<&'static str>,
}

/// A running operation that is traced.
#[derive(Debug)]
pub(in crate::api) struct OperationSpan {
    track: Arc<GroupTrack>,
    lane: Option<u32>,
    began: Instant,
    subject: SpanSubject,
    has_turn: AtomicBool,
}

#[derive(Clone, Copy, Debug)]
enum SpanSubject {
    Collective(Descriptor),
    Message(MessageDescriptor, u64),
}

impl GroupTrack {
    /// Creates the track of a group with these global ranks, in which this process is `rank`.
    pub(in crate::api) fn new(id: GroupId, name: &str, rank: Rank, ranks: &[Rank]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Self {
            index: NEXT.fetch_add(1, Ordering::Relaxed),
            id,
            name: name.to_owned(),
            rank,
            global_ranks: ranks.into(),
            taken_lanes: Default::default(),
            current_turn: Mutex::new(None),
        }
    }

    /// Returns the rank in the outermost group of a rank in this group.
    pub(super) fn global_rank(&self, rank: Rank) -> Rank {
        self.global_ranks.get(rank).copied().unwrap_or(rank)
    }

    /// Records the algorithm of the operation that holds the turn.
    pub(in crate::api) fn set_algorithm(&self, algorithm: &'static str) {
        if let Some(turn) = self.lock_turn().as_mut() {
            turn.algorithm = Some(algorithm);
        }
    }

    /// Records that the operation that holds the turn waited for a rank.
    pub(in crate::api) fn record_wait(
        self: &Arc<Self>,
        rank: Rank,
        began: Instant,
        ended: Instant,
    ) {
        let Some(turn) = *self.lock_turn() else { return };
        if turn.lane.is_some() && ended.duration_since(began) >= SHORTEST_WAIT {
            let (track, lane, kind) = (Arc::clone(self), turn.lane, TraceEventKind::Wait { rank });
            push_event(TraceEvent { track, lane, began, ended, kind });
        }
    }

    fn lock_turn(&self) -> MutexGuard<'_, Option<TracedTurn>> {
        lock(&self.current_turn)
    }

    /// Takes the lowest free lane.
    fn take_lane(&self, about: &SpanSubject) -> Option<u32> {
        let taken = &self.taken_lanes[about.lane_set()];
        let lowest = |taken: u64| (taken != u64::MAX).then(|| taken | (taken + 1));
        let before = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lowest).ok()?;
        Some(before.trailing_ones())
    }

    fn release_lane(&self, about: &SpanSubject, lane: u32) {
        self.taken_lanes[about.lane_set()].fetch_and(!(1 << lane), Ordering::Relaxed);
    }
}

impl SpanSubject {
    const fn lane_set(&self) -> usize {
        match self {
            Self::Collective(_) => 0,
            Self::Message(..) => 1,
        }
    }
}

impl OperationSpan {
    /// Starts the span of a collective at its issue.
    pub(in crate::api) fn collective(track: &Arc<GroupTrack>, descriptor: &Descriptor) -> Self {
        Self::begin(track, SpanSubject::Collective(*descriptor))
    }

    /// Starts the span of a message when it is posted.
    pub(in crate::api) fn message(
        track: &Arc<GroupTrack>,
        message: &MessageDescriptor,
        sequence: u64,
    ) -> Self {
        Self::begin(track, SpanSubject::Message(*message, sequence))
    }

    fn begin(track: &Arc<GroupTrack>, about: SpanSubject) -> Self {
        let lane = track.take_lane(&about);
        let has_turn = AtomicBool::new(false);
        Self { track: Arc::clone(track), lane, began: Instant::now(), subject: about, has_turn }
    }

    /// Records the start of the operation's turn. Until it ends, events of the group belong to it.
    pub(in crate::api) fn take_turn(&self) {
        let turn = TracedTurn { lane: self.lane, began: Instant::now(), algorithm: None };
        *self.track.lock_turn() = Some(turn);
        self.has_turn.store(true, Ordering::Relaxed);
    }

    /// Ends the span and records it.
    pub(in crate::api) fn end(self, outcome: &Result<()>) {
        let turn = if self.has_turn.load(Ordering::Relaxed) {
            self.track.lock_turn().take()
        } else {
            None
        };
        let failure = outcome.as_ref().err().cloned().map(Box::new);
        let kind = match self.subject {
            SpanSubject::Collective(descriptor) => TraceEventKind::Collective {
                descriptor,
                turn: turn.map(|turn| turn.began),
                algorithm: turn.and_then(|turn| turn.algorithm),
                failure,
            },
            SpanSubject::Message(message, sequence) => {
                TraceEventKind::Message { message, sequence, failure }
            }
        };
        let (track, lane, began) = (Arc::clone(&self.track), self.lane, self.began);
        push_event(TraceEvent { track, lane, began, ended: Instant::now(), kind });
    }
}

impl Drop for OperationSpan {
    fn drop(&mut self) {
        if let Some(lane) = self.lane {
            self.track.release_lane(&self.subject, lane);
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::base::dtype::DataType;
    use crate::base::ids::Nonce;
    use crate::base::label::Label;

    #[test]
    fn lowest_free_lane_is_taken_and_released_lanes_reused() {
        let track = Arc::new(GroupTrack::new(Nonce::default(), "lanes", 0, &[4, 5]));
        let (peer, tag, dtype) = (Some(1), Some(0), DataType::U8);
        let message =
            MessageDescriptor { is_outgoing: true, peer, tag, dtype, count: 1, label: Label::NONE };
        let mut spans: Vec<OperationSpan> =
            (0..66).map(|i| OperationSpan::message(&track, &message, i)).collect();
        let lanes: Vec<_> = spans.iter().map(|span| span.lane).collect();
        assert_eq!(lanes[..3], [Some(0), Some(1), Some(2)]);
        assert_eq!(lanes[63..], [Some(63), None, None]);
        drop(spans.remove(1));
        assert_eq!(OperationSpan::message(&track, &message, 67).lane, Some(1));
        assert_eq!(track.global_rank(1), 5);
    }
}
