//! The sending side of staged messages. The head of [`super`] explains the protocol.

use super::control::{StagingControlMessage, piece_tag};
use super::inbox::PostedCompletion;
use super::worker_state::{HalfState, StagingSend, StagingWorker, piece_count, piece_len};
use crate::backend::{Delivery, SendRequest};
use crate::base::dtype::DataType;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use std::mem::replace;

impl StagingWorker {
    pub(super) fn begin_send(
        &mut self,
        message: SendRequest,
        posted: PostedCompletion,
    ) -> Result<()> {
        let number = self.next_id;
        self.next_id += 1;
        let SendRequest { to, tag, dtype, bytes, .. } = message;
        let (is_ready, granted, loaded, submitted, sent) = (false, 0, 0, 0, 0);
        let sending = StagingSend { message, posted, is_ready, granted, loaded, submitted, sent };
        self.sends.insert(number, sending);
        if self.shutdown.is_some() {
            return Ok(());
        }
        let rts = StagingControlMessage::Rts { number, tag, dtype, len: bytes.len() as u64 };
        match self.post_control_receive().and_then(|()| self.send_control(to, rts)) {
            Err(error) => self.end_send(number, Err(error)),
            // An empty message has no pieces, so it is complete after the RTS.
            Ok(()) if bytes.is_empty() => self.end_send(number, Ok(())),
            Ok(()) => {}
        }
        Ok(())
    }

    pub(super) fn send_empty_piece(&self, to: Rank, number: u64) -> Result<()> {
        self.send_bytes(to, piece_tag(number), &[])
    }

    /// For each free half of the staging buffer, lets the device copy the next piece for which a
    /// CTS has arrived.
    pub(super) fn load_pieces(&mut self) -> Result<()> {
        let chunk = self.chunk;
        while let Some(half) = self.from_device.iter().position(|half| *half == HalfState::Free) {
            let can_load =
                |(_, it): &(&u64, &mut StagingSend)| it.is_ready && it.granted > it.loaded;
            let Some((&number, it)) = self.sends.iter_mut().find(can_load) else { return Ok(()) };
            let all = it.message.bytes;
            let len = piece_len(all.len(), chunk, it.loaded);
            let from = all.slice(it.loaded * chunk, len);
            it.loaded += 1;
            let into = self.buffers.from_device.half_memory(half)?.slice(0, len);
            self.from_device[half] = HalfState::Copying(number);
            self.buffers.from_device.begin_copies(half, &[(from, into)])?;
        }
        Ok(())
    }

    /// Sends the pieces that the device has copied to staging memory, in the order of the copies.
    pub(super) fn send_loaded_pieces(&mut self) -> Result<()> {
        // The half whose copy began earlier comes first, because the pieces must be sent in order
        // and the stream performs the copies in order.
        for half in self.buffers.from_device.oldest_first() {
            let HalfState::Copying(number) = self.from_device[half] else { continue };
            if !self.buffers.from_device.is_half_free(half)? {
                return Ok(());
            }
            self.from_device[half] = HalfState::Free;
            let Some(it) = self.sends.get_mut(&number).filter(|_| self.shutdown.is_none()) else {
                continue;
            };
            let SendRequest { to, bytes, deadline, .. } = it.message;
            let index = it.submitted;
            let len = piece_len(bytes.len(), self.chunk, index);
            it.submitted += 1;
            let bytes = self.buffers.from_device.half_memory(half)?.as_src().slice(0, len);
            let (tag, dtype) = (piece_tag(number), DataType::U8);
            self.host.point_to_point()?.send(
                SendRequest { to, tag, dtype, bytes, deadline, is_synchronous: false },
                self.piece_completion(half, true),
            )?;
            self.from_device[half] = HalfState::InMessage(number, index);
        }
        Ok(())
    }

    /// Handles the completion of the send of a piece.
    pub(super) fn handle_piece_sent(
        &mut self,
        half: usize,
        outcome: Result<Delivery>,
    ) -> Result<()> {
        let HalfState::InMessage(number, _) = replace(&mut self.from_device[half], HalfState::Free)
        else {
            return Err(Error::internal("a piece was sent from a half that held none"));
        };
        let Some(it) = self.sends.get_mut(&number) else { return Ok(()) };
        it.sent += 1;
        let is_whole = it.sent == piece_count(it.message.bytes.len(), self.chunk);
        // The caller fails the group if this piece was not sent.
        outcome?;
        if is_whole {
            self.end_send(number, Ok(()));
        }
        Ok(())
    }

    pub(super) fn end_send(&mut self, number: u64, outcome: Result<()>) {
        let Some(StagingSend { message, posted, .. }) = self.sends.remove(&number) else { return };
        let SendRequest { to, tag, bytes, .. } = message;
        let delivery = Delivery { peer: to, tag, bytes: bytes.len() };
        self.complete(posted, outcome.map(|()| delivery));
    }
}
