//! The receiving side of staged messages. The head of [`super`] explains the protocol.

use super::control::{StagingControlMessage, piece_tag};
use super::inbox::PostedCompletion;
use super::matching::{MatchOutcome, ReceiveCriteria, StagingRts};
use super::worker_state::{HalfState, StagingReceive, StagingWorker, piece_count, piece_len};
use crate::backend::{Delivery, ReceiveBuffer, ReceiveRequest};
use crate::base::buffer::Dst;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use std::mem::replace;

impl StagingWorker {
    pub(super) fn begin_receive(
        &mut self,
        message: &ReceiveRequest,
        into: Dst<'static>,
        posted: PostedCompletion,
    ) -> Result<()> {
        let id = self.next_id;
        self.next_id += 1;
        let ReceiveRequest { from, tag, dtype, deadline, .. } = *message;
        let criteria = ReceiveCriteria { id, from, tag, dtype, max_bytes: into.len() };
        let receiving = StagingReceive {
            criteria,
            into,
            deadline,
            posted,
            is_ready: false,
            rts: None,
            is_cancelled: false,
            granted: 0,
            arrived: 0,
            written: 0,
        };
        self.receives.insert(id, receiving);
        if self.shutdown.is_some() {
            return Ok(());
        }
        match self.post_control_receive() {
            Err(error) => self.end_receive(id, Err(error)),
            Ok(()) => {
                let outcome = self.matcher.post(criteria);
                self.handle_matches(outcome);
            }
        }
        Ok(())
    }

    pub(super) fn handle_matches(&mut self, outcomes: impl IntoIterator<Item = MatchOutcome>) {
        for outcome in outcomes {
            match outcome {
                MatchOutcome::DoesNotFit(criteria, error) => {
                    self.end_receive(criteria.id, Err(error))
                }
                MatchOutcome::Matched(criteria, rts) => {
                    if let Some(receiving) = self.receives.get_mut(&criteria.id) {
                        receiving.rts = Some(rts);
                    }
                    if rts.len == 0 {
                        self.end_receive(criteria.id, Ok(()));
                    }
                }
            }
        }
    }

    /// For each free half of the staging buffer, posts a receive for the next piece of a matched
    /// receive, and sends a CTS for this piece. Receives that were posted earlier come first.
    pub(super) fn grant_pieces(&mut self) -> Result<()> {
        let chunk = self.chunk;
        while let Some(half) = self.to_device.iter().position(|half| *half == HalfState::Free) {
            let can_grant = |it: &&mut StagingReceive| {
                it.is_ready && !it.is_cancelled && it.granted < piece_count(it.len(), chunk)
            };
            let Some(it) = self.receives.values_mut().find(can_grant) else { return Ok(()) };
            let Some(StagingRts { from, number, len, .. }) = it.rts else { return Ok(()) };
            let (id, index, deadline) = (it.criteria.id, it.granted, it.deadline);
            let bytes = piece_len(len, chunk, index);
            it.granted += 1;
            let into =
                ReceiveBuffer::Borrowed(self.buffers.to_device.half_memory(half)?.slice(0, bytes));
            let (tag, dtype) = (Some(piece_tag(number)), DataType::U8);
            let piece = ReceiveRequest { from: Some(from), tag, dtype, buffer: into, deadline };
            self.to_device[half] = HalfState::InMessage(id, index);
            let posted =
                self.host.point_to_point()?.receive(piece, self.piece_completion(half, false));
            if posted.is_err() {
                self.to_device[half] = HalfState::Free;
            }
            posted?;
            self.send_control(from, StagingControlMessage::Cts { number })?;
        }
        Ok(())
    }

    /// Completes the receives whose pieces are all in device memory.
    pub(super) fn finish_copies_to_device(&mut self) -> Result<()> {
        for half in [0, 1] {
            let HalfState::Copying(id) = self.to_device[half] else { continue };
            if !self.buffers.to_device.is_half_free(half)? {
                continue;
            }
            self.to_device[half] = HalfState::Free;
            let chunk = self.chunk;
            let is_whole = self.receives.get_mut(&id).is_some_and(|it| {
                it.written += 1;
                it.written == piece_count(it.len(), chunk)
            });
            if is_whole {
                self.end_receive(id, Ok(()));
            }
        }
        Ok(())
    }

    /// Handles a piece that has arrived in a half: begins the copy of the piece to device memory.
    pub(super) fn handle_piece_received(
        &mut self,
        half: usize,
        outcome: Result<Delivery>,
    ) -> Result<()> {
        let HalfState::InMessage(id, index) = replace(&mut self.to_device[half], HalfState::Free)
        else {
            return Err(Error::internal("a piece was received for a half that expected none"));
        };
        let delivery = outcome?;
        let Some(it) = self.receives.get_mut(&id).filter(|_| self.shutdown.is_none()) else {
            return Ok(());
        };
        if delivery.bytes == 0 {
            return self.handle_cancelled_send(id);
        }
        let bytes = piece_len(it.len(), self.chunk, index);
        if delivery.bytes != bytes {
            let message = format!(
                "rank {} sent {} bytes of a message in device memory where {bytes} bytes were \
                 expected",
                delivery.peer, delivery.bytes
            );
            return Err(Error::new(ErrorKind::Mismatch, message).with_culprit(delivery.peer));
        }
        let into = it.into.slice(index * self.chunk, bytes);
        it.arrived += 1;
        let from = self.buffers.to_device.half_memory(half)?.as_src().slice(0, bytes);
        self.to_device[half] = HalfState::Copying(id);
        self.buffers.to_device.begin_copies(half, &[(from, into)])
    }

    /// Handles an empty piece. The sender has cancelled the message before it sent any piece, and
    /// answers every CTS by an empty piece. When all CTS have been answered, the receive is posted
    /// again.
    fn handle_cancelled_send(&mut self, id: u64) -> Result<()> {
        let Some(it) = self.receives.get_mut(&id) else { return Ok(()) };
        it.granted = it.granted.saturating_sub(1);
        it.is_cancelled = it.granted > 0;
        if it.arrived > 0 {
            return Err(Error::internal(
                "the sender cancelled a message of which a piece was already received",
            ));
        }
        if it.granted == 0 {
            it.rts = None;
            let outcome = self.matcher.post(it.criteria);
            self.handle_matches(outcome);
        }
        Ok(())
    }

    pub(super) fn end_receive(&mut self, id: u64, outcome: Result<()>) {
        let Some(StagingReceive { posted, rts, .. }) = self.receives.remove(&id) else { return };
        let rts = rts.ok_or_else(|| Error::internal("a receive completed without a message"));
        let delivery = |rts: StagingRts| Delivery { peer: rts.from, tag: rts.tag, bytes: rts.len };
        self.complete(posted, outcome.and_then(|()| rts.map(delivery)));
    }
}
