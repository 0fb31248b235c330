//! The events of a trace. The threads that run operations record them in memory, and the writer
//! thread converts them to lines of the file.

use super::track::GroupTrack;
use crate::api::observe::operation_details::OperationDetails;
use crate::api::p2p::message_descriptor::MessageDescriptor;
use crate::base::error::Error;
use crate::base::ids::Rank;
use crate::base::label::LabelledName;
use crate::transport::Descriptor;
use std::sync::Arc;
use std::time::Instant;

/// The name of a monitored barrier.
pub(super) const MONITORED_BARRIER: &str = "monitored_barrier";

/// An event with its start and end: an ended operation, or a wait inside one.
#[derive(Debug)]
pub(super) struct TraceEvent {
    pub(super) track: Arc<GroupTrack>,
    /// The lane (a line of the viewer on which spans do not overlap). `None` if no lane was free;
    /// then the span may overlap other spans.
    pub(super) lane: Option<u32>,
    pub(super) began: Instant,
    pub(super) ended: Instant,
    pub(super) kind: TraceEventKind,
}

#[derive(Debug)]
pub(super) enum TraceEventKind {
    Collective {
        descriptor: Descriptor,
        details: Box<OperationDetails>,
        /// The start of the operation's turn, in which it runs as the group's only operation.
        /// `None` if the operation had no turn.
        turn: Option<Instant>,
        algorithm: Option<&'static str>,
        failure: Option<Box<Error>>,
    },
    Message {
        message: MessageDescriptor,
        sequence: u64,
        failure: Option<Box<Error>>,
    },
    MonitoredBarrier {
        number: u64,
        timeout_ms: u64,
        details: Box<OperationDetails>,
        failure: Option<Box<Error>>,
    },
    /// The work of a device for an operation that was enqueued on it.
    DeviceWork {
        name: LabelledName,
        sequence: u64,
    },
    Wait {
        rank: Rank,
    },
}
