//! The spans of running operations. At the operation's issue, its span takes a lane (a line of the
//! group's track in the viewer). At the operation's end, the span records an event and releases the
//! lane.

use super::event::{MONITORED_BARRIER, TraceEvent, TraceEventKind};
use super::push_event;
use super::track::{GroupTrack, LaneKind, TracedTurn};
use crate::api::observe::operation_details::OperationDetails;
use crate::api::p2p::message_descriptor::MessageDescriptor;
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::base::label::{Label, LabelledName};
use crate::base::sync::lock;
use crate::transport::Descriptor;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The minimum duration of a wait in the trace. Shorter waits are not visible in a viewer.
const SHORTEST_WAIT: Duration = Duration::from_micros(1);

/// A running operation that is traced.
#[derive(Debug)]
pub(in crate::api) struct OperationSpan {
    track: Arc<GroupTrack>,
    lane: Option<u32>,
    began: Instant,
    subject: SpanSubject,
    has_turn: AtomicBool,
    details: Mutex<OperationDetails>,
}

#[derive(Clone, Copy, Debug)]
enum SpanSubject {
    Collective(Descriptor),
    Message(MessageDescriptor, u64),
    MonitoredBarrier { number: u64, timeout_ms: u64 },
}

impl SpanSubject {
    const fn lane_kind(&self) -> LaneKind {
        match self {
            Self::Collective(_) | Self::MonitoredBarrier { .. } => LaneKind::Collectives,
            Self::Message(..) => LaneKind::Messages,
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

    /// Starts the span of a monitored barrier.
    pub(in crate::api) fn monitored_barrier(
        track: &Arc<GroupTrack>,
        number: u64,
        timeout_ms: u64,
    ) -> Self {
        Self::begin(track, SpanSubject::MonitoredBarrier { number, timeout_ms })
    }

    fn begin(track: &Arc<GroupTrack>, subject: SpanSubject) -> Self {
        let lane = track.take_lane(subject.lane_kind());
        let has_turn = AtomicBool::new(false);
        let (track, began, details) = (Arc::clone(track), Instant::now(), Mutex::default());
        Self { track, lane, began, subject, has_turn, details }
    }

    /// Records the start of the operation's turn. Until the turn ends, the algorithm and the waits
    /// that are recorded for the group belong to this operation.
    pub(in crate::api) fn take_turn(&self) {
        let turn = TracedTurn { lane: self.lane, began: Instant::now(), algorithm: None };
        *self.track.lock_turn() = Some(turn);
        self.has_turn.store(true, Ordering::Relaxed);
    }

    /// Changes the details of the operation.
    pub(in crate::api) fn update_details(&self, change: impl FnOnce(&mut OperationDetails)) {
        change(&mut lock(&self.details));
    }

    /// Ends the span and records it.
    pub(in crate::api) fn end(self, outcome: &Result<()>) {
        let turn = if self.has_turn.load(Ordering::Relaxed) {
            self.track.lock_turn().take()
        } else {
            None
        };
        let failure = outcome.as_ref().err().cloned().map(Box::new);
        let details = Box::new(std::mem::take(&mut *lock(&self.details)));
        let kind = match self.subject {
            SpanSubject::Collective(descriptor) => TraceEventKind::Collective {
                descriptor,
                details,
                turn: turn.map(|turn| turn.began),
                algorithm: turn.and_then(|turn| turn.algorithm),
                failure,
            },
            SpanSubject::Message(message, sequence) => {
                TraceEventKind::Message { message, sequence, failure }
            }
            SpanSubject::MonitoredBarrier { number, timeout_ms } => {
                TraceEventKind::MonitoredBarrier { number, timeout_ms, details, failure }
            }
        };
        let (track, lane, began) = (Arc::clone(&self.track), self.lane, self.began);
        push_event(TraceEvent { track, lane, began, ended: Instant::now(), kind });
    }
}

/// An operation whose device time is added to the trace when the device has completed it.
#[derive(Clone, Debug)]
pub(in crate::api) struct DeviceSpan {
    track: Arc<GroupTrack>,
    name: LabelledName,
    sequence: u64,
}

impl OperationSpan {
    /// Returns the operation for the trace of its device time.
    pub(in crate::api) fn device_span(&self) -> DeviceSpan {
        let (name, label, sequence) = match self.subject {
            SpanSubject::Collective(it) => (it.call_name(), it.label, it.sequence),
            SpanSubject::Message(it, sequence) => {
                (if it.is_outgoing { "send" } else { "recv" }, it.label, sequence)
            }
            SpanSubject::MonitoredBarrier { number, .. } => {
                (MONITORED_BARRIER, Label::NONE, number)
            }
        };
        DeviceSpan { track: Arc::clone(&self.track), name: LabelledName { name, label }, sequence }
    }
}

impl DeviceSpan {
    /// Adds the device time to the trace. The library has noticed now that the device has completed
    /// the operation, so the span ends now.
    pub(in crate::api) fn record(&self, time: Duration) {
        let Self { name, sequence, .. } = *self;
        let (track, lane, ended) = (Arc::clone(&self.track), None, Instant::now());
        let began = ended.checked_sub(time).unwrap_or(ended);
        let kind = TraceEventKind::DeviceWork { name, sequence };
        push_event(TraceEvent { track, lane, began, ended, kind });
    }
}

impl GroupTrack {
    /// Records that the operation that has the turn waited for a rank.
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
}

impl Drop for OperationSpan {
    fn drop(&mut self) {
        if let Some(lane) = self.lane {
            self.track.release_lane(self.subject.lane_kind(), lane);
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::base::dtype::DataType;
    use crate::base::ids::Nonce;

    #[test]
    fn lowest_free_lane_is_taken_and_released_lanes_reused() {
        let track = Arc::new(GroupTrack::new(Nonce::default(), "lanes", 0, &Arc::from([4, 5])));
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
