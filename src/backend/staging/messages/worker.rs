//! The worker thread for the staged messages of a group. It owns all their state: the posted
//! messages, their progress, and the users of the halves. [`super::sending`] and
//! [`super::receiving`] implement the two directions, [`super::shutdown`] the messages that are not
//! transferred.
//!
//! No other thread accesses this state. The worker never waits for another rank. It makes all
//! possible progress, and then sleeps until an event arrives, or until it must poll the device or
//! check a deadline.

use super::control::{self, StagingControlMessage};
use super::matching::{StagingMatcher, StagingRts};
use super::receiving::StagingReceive;
use super::sending::StagingSend;
use super::{
    ControlReceiveCompletion, ControlSendCompletion, PieceCompletion, PostedCompletion,
    WorkerEvent, WorkerInbox,
};
use crate::backend::buffer_pool::PooledBuffer;
use crate::backend::staging::buffers::{StagingBuffers, StagingDoubleBuffer};
use crate::backend::{
    Backend, Delivery, GroupFailureState, PointToPoint, ReceiveBuffer, ReceiveRequest, SendRequest,
};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use std::collections::BTreeMap;
use std::mem::replace;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The sleep intervals: while the device copies, while a buffer is not ready, while messages are
/// outstanding, and while none are.
const COPY_POLL_INTERVAL: Duration = Duration::from_micros(20);
const READY_POLL_INTERVAL: Duration = Duration::from_micros(200);
pub(super) const MESSAGE_POLL_INTERVAL: Duration = Duration::from_millis(20);
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The time that the device gets to complete its copies after the group failed.
pub(super) const DRAIN_WAIT: Duration = Duration::from_secs(5);

/// The state of a half, with the number of the message that uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HalfState {
    Free,
    /// The device copies a piece of this message.
    Copying(u64),
    /// The matching engine sends or receives this piece of the message. The completions of two
    /// halves may arrive in any order.
    InMessage(u64, usize),
}

#[derive(Debug)]
pub(super) struct StagingWorker {
    pub(super) chunk: usize,
    pub(super) buffers: StagingBuffers,
    pub(super) cpu: Arc<dyn Backend>,
    pub(super) failure_state: Arc<dyn GroupFailureState>,
    pub(super) inbox: Arc<WorkerInbox>,
    /// True if a receive for control messages is posted.
    pub(super) has_control_receive: bool,
    /// The number of the next message or receive.
    pub(super) next_id: u64,
    pub(super) matcher: StagingMatcher,
    pub(super) sends: BTreeMap<u64, StagingSend>,
    pub(super) receives: BTreeMap<u64, StagingReceive>,
    pub(super) from_device: [HalfState; 2],
    pub(super) to_device: [HalfState; 2],
    /// The reason for the shutdown, and the limit of the wait for the device.
    pub(super) shutdown: Option<(Error, Deadline)>,
    /// The time of the last departure check.
    pub(super) last_departure_check: Instant,
}

impl StagingWorker {
    pub(super) fn new(
        chunk: usize,
        buffers: StagingBuffers,
        (cpu, failure_state): (Arc<dyn Backend>, Arc<dyn GroupFailureState>),
        inbox: Arc<WorkerInbox>,
    ) -> Self {
        Self {
            chunk,
            buffers,
            cpu,
            failure_state,
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

    /// Runs until the group closes.
    pub(super) fn run(mut self) {
        loop {
            let events = std::mem::take(&mut *self.inbox.lock_events());
            for event in events {
                if let Err(error) = self.handle_event(event) {
                    self.fail(&error);
                }
            }
            if let Err(error) = self.make_progress() {
                self.fail(&error);
            }
            self.expire();
            self.check_shutdown();
            if self.inbox.is_closing.load(Ordering::Acquire) && self.is_drained() {
                return;
            }
            let has_news = || {
                let is_news = !self.inbox.lock_events().is_empty();
                let is_left =
                    self.inbox.is_closing.load(Ordering::Acquire) && self.shutdown.is_none();
                (is_news || is_left).then_some(())
            };
            self.inbox.doorbell.sleep_unless_ready(self.sleep_time(), || true, has_news);
        }
    }

    /// Returns true if nothing is left to do after the shutdown began.
    fn is_drained(&self) -> bool {
        let Some((_, limit)) = &self.shutdown else { return false };
        let is_empty = self.sends.is_empty() && self.receives.is_empty();
        let is_free =
            self.from_device.iter().chain(&self.to_device).all(|half| *half == HalfState::Free);
        is_empty && (is_free || limit.has_passed())
    }

    pub(super) fn point_to_point(&self) -> Result<&dyn PointToPoint> {
        self.cpu
            .point_to_point()
            .ok_or_else(|| Error::internal("the host back end has no messages"))
    }

    /// Returns how long the worker may sleep without an event.
    fn sleep_time(&self) -> Duration {
        let copies = |half: &HalfState| matches!(half, HalfState::Copying(_));
        let awaits_device = self.sends.values().any(|it| it.granted > it.loaded && !it.is_ready)
            || self.receives.values().any(|it| it.rts.is_some() && !it.is_ready);
        match self.sends.is_empty() && self.receives.is_empty() {
            _ if self.from_device.iter().chain(&self.to_device).any(copies) => COPY_POLL_INTERVAL,
            // After the shutdown the worker waits for the matching engine.
            true if self.shutdown.is_some() && !self.is_drained() => READY_POLL_INTERVAL,
            _ if awaits_device => READY_POLL_INTERVAL,
            true => IDLE_POLL_INTERVAL,
            false => MESSAGE_POLL_INTERVAL,
        }
    }

    /// Fails the group on all its ranks.
    pub(super) fn fail(&self, error: &Error) {
        self.failure_state.fail(error);
    }

    fn handle_event(&mut self, event: WorkerEvent) -> Result<()> {
        match event {
            WorkerEvent::Send(message, posted) => self.begin_send(message, posted),
            WorkerEvent::Receive(message, into, posted) => {
                self.begin_receive(&message, into, posted)
            }
            WorkerEvent::Control(Ok((from, bytes))) => {
                self.has_control_receive = false;
                if self.shutdown.is_none() {
                    self.post_control_receive()?;
                    self.handle_control(from, &bytes)?;
                }
                Ok(())
            }
            WorkerEvent::Control(Err(error)) => {
                // No rank is left that could send a control message, or the group has failed.
                self.has_control_receive = false;
                self.end_unmatched(&error);
                Ok(())
            }
            WorkerEvent::PieceSent(half, outcome) => self.handle_piece_sent(half, outcome),
            WorkerEvent::PieceReceived(half, outcome) => self.handle_piece_received(half, outcome),
        }
    }

    /// Posts a receive for the next control message of any rank.
    pub(super) fn post_control_receive(&mut self) -> Result<()> {
        if replace(&mut self.has_control_receive, true) {
            return Ok(());
        }
        let into = ReceiveBuffer::Allocated { max_bytes: control::CONTROL_BYTES };
        let (tag, dtype, deadline) = (Some(control::CONTROL_TAG), DataType::U8, Deadline::never());
        let receive = ReceiveRequest { from: None, tag, dtype, buffer: into, deadline };
        self.point_to_point()?
            .receive(receive, Arc::new(ControlReceiveCompletion(Arc::clone(&self.inbox))))
    }

    pub(super) fn send_control(&self, to: Rank, message: StagingControlMessage) -> Result<()> {
        let buffer = PooledBuffer::copy_of(&message.encode());
        let (tag, dtype, bytes) = (control::CONTROL_TAG, DataType::U8, buffer.as_src());
        let deadline = Deadline::never();
        let outgoing = SendRequest { to, tag, dtype, bytes, deadline, is_synchronous: false };
        self.point_to_point()?.send(outgoing, Arc::new(ControlSendCompletion { _buffer: buffer }))
    }

    fn handle_control(&mut self, from: Rank, bytes: &[u8]) -> Result<()> {
        let unreadable = || {
            let message = format!("rank {from} sent a control message that cannot be decoded");
            Error::new(ErrorKind::Mismatch, message).with_culprit(from)
        };
        match StagingControlMessage::decode(bytes).ok_or_else(unreadable)? {
            StagingControlMessage::Rts { number, tag, dtype, len } => {
                let len = usize::try_from(len).map_err(|_| unreadable())?;
                let outcomes = self.matcher.add_rts(StagingRts { from, number, tag, dtype, len });
                self.handle_matches(outcomes);
            }
            StagingControlMessage::Cancel { number } => self.matcher.remove_rts(from, number),
            StagingControlMessage::Cts { number } => match self.sends.get_mut(&number) {
                Some(sending) if sending.message.to == from => sending.granted += 1,
                Some(_) => return Err(unreadable()),
                // The send timed out: an empty piece answers the CTS and tells the receiver.
                None => self.send_empty_piece(from, number)?,
            },
        }
        Ok(())
    }

    /// Makes all progress that is possible now.
    fn make_progress(&mut self) -> Result<()> {
        // First the steps that free halves.
        let (sent, finished) = (self.send_loaded_pieces(), self.finish_copies_to_device());
        sent.and(finished)?;
        if self.shutdown.is_none() {
            self.poll_ready()?;
            self.grant_pieces()?;
            self.load_pieces()?;
        }
        Ok(())
    }

    /// Polls the events after which buffers are ready.
    fn poll_ready(&mut self) -> Result<()> {
        for sending in self.sends.values_mut().filter(|it| it.granted > 0 && !it.is_ready) {
            sending.is_ready = sending.posted.ready_event.is_over()?;
        }
        for receiving in self.receives.values_mut().filter(|it| it.rts.is_some() && !it.is_ready) {
            receiving.is_ready = receiving.posted.ready_event.is_over()?;
        }
        Ok(())
    }

    pub(super) fn piece_completion(&self, half: usize, is_outgoing: bool) -> Arc<PieceCompletion> {
        Arc::new(PieceCompletion { inbox: Arc::clone(&self.inbox), half, is_outgoing })
    }

    pub(super) fn complete(&self, posted: PostedCompletion, outcome: Result<Delivery>) {
        posted.complete(outcome);
        // Callers wait for a message in the matching engine.
        self.cpu.point_to_point().into_iter().for_each(PointToPoint::wake_waiters);
    }
}

/// Returns the number of pieces of a message.
pub(super) fn piece_count(len: usize, chunk: usize) -> usize {
    len.div_ceil(chunk)
}

/// Returns the length of a piece in bytes.
pub(super) fn piece_len(len: usize, chunk: usize, piece: usize) -> usize {
    len.saturating_sub(piece * chunk).min(chunk)
}

impl Drop for StagingWorker {
    /// Leaks the staging memory that the matching engine still uses.
    fn drop(&mut self) {
        let is_in_message = |half: &HalfState| matches!(half, HalfState::InMessage(..));
        let leak_if_in_message = |halves: &[HalfState; 2], side: &mut StagingDoubleBuffer| {
            if halves.iter().any(is_in_message) {
                side.leak_memory();
            }
        };
        leak_if_in_message(&self.from_device, &mut self.buffers.from_device);
        leak_if_in_message(&self.to_device, &mut self.buffers.to_device);
        self.complete_unread_events();
    }
}

impl StagingWorker {
    /// Completes messages that were posted after the end.
    fn complete_unread_events(&mut self) {
        let unread = std::mem::take(&mut *self.inbox.lock_events());
        let error = Error::new(ErrorKind::Aborted, "this rank has left the group");
        for event in unread {
            if let WorkerEvent::Send(_, posted) | WorkerEvent::Receive(_, _, posted) = event {
                self.complete(posted, Err(error.clone()));
            }
        }
    }
}
