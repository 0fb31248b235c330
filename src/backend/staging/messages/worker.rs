//! The main loop of the worker thread for the staged messages of a group. [`super::worker_state`]
//! contains the state of the thread, which no other thread accesses. [`super::sending`] and
//! [`super::receiving`] implement the two directions. [`super::shutdown`] ends the messages that
//! are not transferred.
//!
//! The worker never blocks until another rank acts. It makes all possible progress, and then sleeps
//! until an event arrives, or until it must poll the device or check a deadline.

use super::control::StagingControlMessage;
use super::inbox::WorkerEvent;
use super::matching::StagingRts;
use super::worker_state::{HalfState, MESSAGE_POLL_INTERVAL, StagingWorker};
use crate::backend::staging::buffers::StagingDoubleBuffer;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The longest sleep while the device copies a piece.
const COPY_POLL_INTERVAL: Duration = Duration::from_micros(20);
/// The longest sleep while the buffer of a matched message is not ready.
const READY_POLL_INTERVAL: Duration = Duration::from_micros(200);
/// The longest sleep while no messages are outstanding.
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(100);

impl StagingWorker {
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

    /// Returns true if the shutdown has begun and no work is left.
    fn is_drained(&self) -> bool {
        let Some((_, limit)) = &self.shutdown else { return false };
        let is_empty = self.sends.is_empty() && self.receives.is_empty();
        let is_free =
            self.from_device.iter().chain(&self.to_device).all(|half| *half == HalfState::Free);
        is_empty && (is_free || limit.has_passed())
    }

    /// Returns the time for which the worker may sleep if no event arrives.
    fn sleep_time(&self) -> Duration {
        let copies = |half: &HalfState| matches!(half, HalfState::Copying(_));
        let awaits_device = self.sends.values().any(|it| it.granted > it.loaded && !it.is_ready)
            || self.receives.values().any(|it| it.rts.is_some() && !it.is_ready);
        match self.sends.is_empty() && self.receives.is_empty() {
            _ if self.from_device.iter().chain(&self.to_device).any(copies) => COPY_POLL_INTERVAL,
            // During the shutdown, the worker waits until the matching engine returns the halves.
            true if self.shutdown.is_some() && !self.is_drained() => READY_POLL_INTERVAL,
            _ if awaits_device => READY_POLL_INTERVAL,
            true => IDLE_POLL_INTERVAL,
            false => MESSAGE_POLL_INTERVAL,
        }
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
                // All other ranks have left, so no control message can arrive, or the group has
                // failed.
                self.has_control_receive = false;
                self.end_unmatched(&error);
                Ok(())
            }
            WorkerEvent::PieceSent(half, outcome) => self.handle_piece_sent(half, outcome),
            WorkerEvent::PieceReceived(half, outcome) => self.handle_piece_received(half, outcome),
        }
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
                // The send has timed out. The empty piece answers the CTS and tells the receiver
                // that the message was cancelled.
                None => self.send_empty_piece(from, number)?,
            },
        }
        Ok(())
    }

    /// Makes all progress that is possible now.
    fn make_progress(&mut self) -> Result<()> {
        // The steps that free halves come first.
        let (sent, finished) = (self.send_loaded_pieces(), self.finish_copies_to_device());
        sent.and(finished)?;
        if self.shutdown.is_none() {
            self.poll_ready()?;
            self.grant_pieces()?;
            self.load_pieces()?;
        }
        Ok(())
    }

    /// Polls the CUDA events after which the buffers of matched messages are ready.
    fn poll_ready(&mut self) -> Result<()> {
        for sending in self.sends.values_mut().filter(|it| it.granted > 0 && !it.is_ready) {
            sending.is_ready = sending.posted.ready_event.is_over()?;
        }
        for receiving in self.receives.values_mut().filter(|it| it.rts.is_some() && !it.is_ready) {
            receiving.is_ready = receiving.posted.ready_event.is_over()?;
        }
        Ok(())
    }
}

impl Drop for StagingWorker {
    /// Leaks the staging memory that the matching engine still uses, and completes the messages in
    /// the inbox with an error.
    fn drop(&mut self) {
        let is_in_message = |half: &HalfState| matches!(half, HalfState::InMessage(..));
        let leak_if_in_message = |halves: &[HalfState; 2], side: &mut StagingDoubleBuffer| {
            if halves.iter().any(is_in_message) {
                side.leak_memory();
            }
        };
        leak_if_in_message(&self.from_device, &mut self.buffers.from_device);
        leak_if_in_message(&self.to_device, &mut self.buffers.to_device);
        // These messages were posted after the main loop ended.
        let unread = std::mem::take(&mut *self.inbox.lock_events());
        let error = Error::new(ErrorKind::Aborted, "this rank has left the group");
        for event in unread {
            if let WorkerEvent::Send(_, posted) | WorkerEvent::Receive(_, _, posted) = event {
                self.complete(posted, Err(error.clone()));
            }
        }
    }
}
