//! The events of a trace, as threads record them and the writer writes them.

use super::track::GroupTrack;
use crate::api::p2p::message_descriptor::MessageDescriptor;
use crate::base::error::Error;
use crate::base::ids::Rank;
use crate::transport::Descriptor;
use std::sync::Arc;
use std::time::Instant;

/// An event with its start and end.
#[derive(Debug)]
pub(super) struct TraceEvent {
    pub(super) track: Arc<GroupTrack>,
    /// The lane in which the span nests; `None` if it may overlap other spans.
    pub(super) lane: Option<u32>,
    pub(super) began: Instant,
    pub(super) ended: Instant,
    pub(super) kind: TraceEventKind,
}

#[derive(Debug)]
pub(super) enum TraceEventKind {
    Collective {
        descriptor: Descriptor,
        /// The start of the turn, if the operation had one.
        turn: Option<Instant>,
        algorithm: Option<&'static str>,
        failure: Option<Box<Error>>,
    },
    Message {
        message: MessageDescriptor,
        sequence: u64,
        failure: Option<Box<Error>>,
    },
    Wait {
        rank: Rank,
    },
}
