//! The thread that carries the messages of a group: what has been posted, how far each message is,
//! and who has which half of the staging memory. [`super::sending`] and [`super::receiving`] are
//! the two ways, [`super::shutdown`] what does not arrive.
//!
//! Only this thread touches any of it. It never waits for another rank: it does what can be done,
//! and sleeps until it is told something, or until it is time to look at the device or at a
//! deadline.

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

/// How long it sleeps while the device copies, while it has to come to where memory is ready, while
/// somebody waits for a message, and while nobody does.
const COPY_POLL_INTERVAL: Duration = Duration::from_micros(20);
const READY_POLL_INTERVAL: Duration = Duration::from_micros(200);
pub(super) const MESSAGE_POLL_INTERVAL: Duration = Duration::from_millis(20);
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How long a device has for copies that it has begun, once the group has failed.
pub(super) const DRAIN_WAIT: Duration = Duration::from_secs(5);

/// Who has a half, by the number of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HalfState {
    Free,
    /// The device copies.
    Copying(u64),
    /// The engine sends or receives this piece of it. What it tells of two halves may come in any
    /// order.
    InMessage(u64, usize),
}

#[derive(Debug)]
pub(super) struct StagingWorker {
    pub(super) chunk: usize,
    pub(super) buffers: StagingBuffers,
    pub(super) cpu: Arc<dyn Backend>,
    pub(super) failure_state: Arc<dyn GroupFailureState>,
    pub(super) inbox: Arc<WorkerInbox>,
    /// A receive for letters is posted.
    pub(super) has_control_receive: bool,
    /// The number of the next message or place.
    pub(super) next_id: u64,
    pub(super) matcher: StagingMatcher,
    pub(super) sends: BTreeMap<u64, StagingSend>,
    pub(super) receives: BTreeMap<u64, StagingReceive>,
    pub(super) from_device: [HalfState; 2],
    pub(super) to_device: [HalfState; 2],
    /// Why nothing goes on any more, and until when the device is waited for.
    pub(super) shutdown: Option<(Error, Deadline)>,
    /// When it looked last who has left.
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

    /// Carries messages until the group is left.
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

    /// Whether nothing is left to be done, after the end.
    fn is_drained(&self) -> bool {
        let Some((_, limit)) = &self.shutdown else { return false };
        let is_empty = self.sends.is_empty() && self.receives.is_empty();
        let is_free =
            self.from_device.iter().chain(&self.to_device).all(|half| *half == HalfState::Free);
        is_empty && (is_free || limit.has_passed())
    }

    pub(super) fn point_to_point(&self) -> Result<&dyn PointToPoint> {
        self.cpu.point_to_point().ok_or_else(|| Error::internal("the host part has no messages"))
    }

    /// How long nothing may have to be done.
    fn sleep_time(&self) -> Duration {
        let copies = |half: &HalfState| matches!(half, HalfState::Copying(_));
        let awaits_device = self.sends.values().any(|it| it.granted > it.loaded && !it.is_ready)
            || self.receives.values().any(|it| it.rts.is_some() && !it.is_ready);
        match self.sends.is_empty() && self.receives.is_empty() {
            _ if self.from_device.iter().chain(&self.to_device).any(copies) => COPY_POLL_INTERVAL,
            // Once all is over it is the engine that is waited for.
            true if self.shutdown.is_some() && !self.is_drained() => READY_POLL_INTERVAL,
            _ if awaits_device => READY_POLL_INTERVAL,
            true => IDLE_POLL_INTERVAL,
            false => MESSAGE_POLL_INTERVAL,
        }
    }

    /// Fails the group, on all its ranks.
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
                // Nobody is left who could send one, or the group has failed.
                self.has_control_receive = false;
                self.end_unmatched(&error);
                Ok(())
            }
            WorkerEvent::PieceSent(half, outcome) => self.handle_piece_sent(half, outcome),
            WorkerEvent::PieceReceived(half, outcome) => self.handle_piece_received(half, outcome),
        }
    }

    /// Has the next letter of any rank received.
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
            let message = format!("rank {from} said something of a message that cannot be read");
            Error::new(ErrorKind::Mismatch, message).with_culprit(from)
        };
        match StagingControlMessage::decode(bytes).ok_or_else(unreadable)? {
            StagingControlMessage::Rts { number, tag, dtype, len } => {
                let len = usize::try_from(len).map_err(|_| unreadable())?;
                let met = self.matcher.add_rts(StagingRts { from, number, tag, dtype, len });
                self.handle_matches(met);
            }
            StagingControlMessage::Cancel { number } => self.matcher.remove_rts(from, number),
            StagingControlMessage::Cts { number } => match self.sends.get_mut(&number) {
                Some(sending) if sending.message.to == from => sending.granted += 1,
                Some(_) => return Err(unreadable()),
                // Its time had passed: nothing comes, and whoever waits for it learns that by a
                // piece without bytes.
                None => self.send_empty_piece(from, number)?,
            },
        }
        Ok(())
    }

    /// Does what can be done.
    fn make_progress(&mut self) -> Result<()> {
        // First what makes halves free.
        let (sent, finished) = (self.send_loaded_pieces(), self.finish_copies_to_device());
        sent.and(finished)?;
        if self.shutdown.is_none() {
            self.poll_ready()?;
            self.grant_pieces()?;
            self.load_pieces()?;
        }
        Ok(())
    }

    /// The device may have come to where memory is ready.
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
        // Those who wait for a message do so in the engine.
        self.cpu.point_to_point().into_iter().for_each(PointToPoint::wake_waiters);
    }
}

/// How many pieces a message has.
pub(super) fn piece_count(len: usize, chunk: usize) -> usize {
    len.div_ceil(chunk)
}

/// How long a piece of it is.
pub(super) fn piece_len(len: usize, chunk: usize, piece: usize) -> usize {
    len.saturating_sub(piece * chunk).min(chunk)
}

impl Drop for StagingWorker {
    /// What the engine still has of the staging memory stays.
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
    /// Messages that came after the end.
    fn complete_unread_events(&mut self) {
        let unread = std::mem::take(&mut *self.inbox.lock_events());
        let error = Error::new(ErrorKind::Aborted, "this rank has left the group");
        for news in unread {
            if let WorkerEvent::Send(_, posted) | WorkerEvent::Receive(_, _, posted) = news {
                self.complete(posted, Err(error.clone()));
            }
        }
    }
}
