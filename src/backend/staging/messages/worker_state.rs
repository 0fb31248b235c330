//! The state of the worker thread for the staged messages of a group: the posted messages, their
//! progress, and the states of the halves of the staging buffers. The other files of this folder
//! change this state in the steps of the protocol. This file contains the functions that several of
//! them need.

use super::control::{self, StagingControlMessage};
use super::inbox::{
    ControlReceiveCompletion, ControlSendCompletion, PieceCompletion, PostedCompletion, WorkerInbox,
};
use super::matching::{ReceiveCriteria, StagingMatcher, StagingRts};
use crate::backend::buffer_pool::PooledBuffer;
use crate::backend::staging::buffers::StagingBuffers;
use crate::backend::staging::host::StagingHost;
use crate::backend::{Delivery, PointToPoint, ReceiveBuffer, ReceiveRequest, SendRequest};
use crate::base::buffer::Dst;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use std::collections::BTreeMap;
use std::mem::replace;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest sleep of the worker while messages are outstanding.
pub(super) const MESSAGE_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The state of a half of a staging buffer, with the number of the staged message that uses the
/// half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HalfState {
    Free,
    /// The device copies a piece of this message between the half and device memory.
    Copying(u64),
    /// The matching engine sends or receives the piece with this index (second field) of this
    /// message (first field). The index is necessary because the completions of the two halves may
    /// arrive in any order.
    InMessage(u64, usize),
}

#[derive(Debug)]
pub(super) struct StagingWorker {
    pub(super) chunk: usize,
    pub(super) buffers: StagingBuffers,
    pub(super) host: StagingHost,
    pub(super) inbox: Arc<WorkerInbox>,
    /// True if a receive for the next control message is posted.
    pub(super) has_control_receive: bool,
    /// The number of the next send or receive that a caller posts.
    pub(super) next_id: u64,
    pub(super) matcher: StagingMatcher,
    pub(super) sends: BTreeMap<u64, StagingSend>,
    pub(super) receives: BTreeMap<u64, StagingReceive>,
    pub(super) from_device: [HalfState; 2],
    pub(super) to_device: [HalfState; 2],
    /// After a failure or the close of the group: the reason, and the limit of the wait for the
    /// device.
    pub(super) shutdown: Option<(Error, Deadline)>,
    /// The time of the last departure check.
    pub(super) last_departure_check: Instant,
}

/// A send that is not complete.
#[derive(Debug)]
pub(super) struct StagingSend {
    pub(super) message: SendRequest,
    pub(super) posted: PostedCompletion,
    pub(super) is_ready: bool,
    /// The number of pieces for which a CTS has arrived.
    pub(super) granted: usize,
    /// The number of pieces whose copy from the device has begun.
    pub(super) loaded: usize,
    /// The number of pieces that were passed to the matching engine.
    pub(super) submitted: usize,
    /// The number of pieces that the matching engine has sent.
    pub(super) sent: usize,
}

/// A posted receive.
#[derive(Debug)]
pub(super) struct StagingReceive {
    pub(super) criteria: ReceiveCriteria,
    pub(super) into: Dst<'static>,
    pub(super) deadline: Deadline,
    pub(super) posted: PostedCompletion,
    pub(super) is_ready: bool,
    pub(super) rts: Option<StagingRts>,
    /// True if the sender has cancelled the matched message but has not yet answered every CTS.
    pub(super) is_cancelled: bool,
    /// The number of pieces for which this rank has sent a CTS.
    pub(super) granted: usize,
    /// The number of pieces that have arrived in staging memory.
    pub(super) arrived: usize,
    /// The number of pieces that have been copied to device memory.
    pub(super) written: usize,
}

impl StagingReceive {
    /// Returns the length of the matched message in bytes, or 0 before the match.
    pub(super) fn len(&self) -> usize {
        self.rts.map_or(0, |rts| rts.len)
    }
}

impl StagingWorker {
    pub(super) fn new(
        chunk: usize,
        buffers: StagingBuffers,
        host: StagingHost,
        inbox: Arc<WorkerInbox>,
    ) -> Self {
        Self {
            chunk,
            buffers,
            host,
            inbox,
            has_control_receive: false,
            next_id: 1,
            matcher: StagingMatcher::default(),
            sends: BTreeMap::new(),
            receives: BTreeMap::new(),
            from_device: [HalfState::Free; 2],
            to_device: [HalfState::Free; 2],
            shutdown: None,
            last_departure_check: Instant::now(),
        }
    }

    /// Fails the group on all its ranks.
    pub(super) fn fail(&self, error: &Error) {
        self.host.failure_state.fail(error);
    }

    /// Posts a receive for the next control message of any rank.
    pub(super) fn post_control_receive(&mut self) -> Result<()> {
        if replace(&mut self.has_control_receive, true) {
            return Ok(());
        }
        let into = ReceiveBuffer::Allocated { max_bytes: control::CONTROL_BYTES };
        let (tag, dtype, deadline) = (Some(control::CONTROL_TAG), DataType::U8, Deadline::never());
        let receive = ReceiveRequest { from: None, tag, dtype, buffer: into, deadline };
        self.host
            .point_to_point()?
            .receive(receive, Arc::new(ControlReceiveCompletion(Arc::clone(&self.inbox))))
    }

    pub(super) fn send_control(&self, to: Rank, message: StagingControlMessage) -> Result<()> {
        self.send_bytes(to, control::CONTROL_TAG, &message.encode())
    }

    /// Sends bytes that the worker itself has generated: a control message or an empty piece.
    pub(super) fn send_bytes(&self, to: Rank, tag: u32, bytes: &[u8]) -> Result<()> {
        let buffer = PooledBuffer::copy_of(bytes);
        let (dtype, bytes, deadline) = (DataType::U8, buffer.as_src(), Deadline::never());
        let outgoing = SendRequest { to, tag, dtype, bytes, deadline, is_synchronous: false };
        self.host
            .point_to_point()?
            .send(outgoing, Arc::new(ControlSendCompletion { _buffer: buffer }))
    }

    pub(super) fn piece_completion(&self, half: usize, is_outgoing: bool) -> Arc<PieceCompletion> {
        Arc::new(PieceCompletion { inbox: Arc::clone(&self.inbox), half, is_outgoing })
    }

    pub(super) fn complete(&self, posted: PostedCompletion, outcome: Result<Delivery>) {
        posted.complete(outcome);
        // A caller that waits for this message sleeps in the matching engine.
        self.host.backend.point_to_point().into_iter().for_each(PointToPoint::wake_waiters);
    }
}

/// Returns the number of pieces of a message.
pub(super) fn piece_count(len: usize, chunk: usize) -> usize {
    len.div_ceil(chunk)
}

/// Returns the length in bytes of the piece with the index `piece`.
pub(super) fn piece_len(len: usize, chunk: usize, piece: usize) -> usize {
    len.saturating_sub(piece * chunk).min(chunk)
}
