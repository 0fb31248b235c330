//! The sending side: writes messages and control frames to the streams.

use super::frame::{ExposedBuffer, MessageFrame};
use super::limits::MatchingLimits;
use super::link::{FrameBody, FrameInProgress, PeerLink, QueuedItem};
use super::outstanding::{CompletedMessage, SendStage};
use super::peer_streams::PeerStreams;
use super::state::MatchingState;
use crate::base::buffer::Src;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::transport::{Completion, Delivery, SendRequest};
use std::sync::Arc;

impl MatchingState {
    /// Sends an eager message: immediately, if the stream has room.
    pub(super) fn send_eager(&mut self, message: SendRequest, completion: Arc<dyn Completion>) {
        let SendRequest { to, tag, dtype, bytes, .. } = message;
        self.links[to].used_credit += MatchingLimits::credit_cost(bytes.len());
        if !self.links[to].is_idle() || self.links[to].is_stream_full {
            let number = self.store_send(message, completion, SendStage::Eager);
            self.queue_item(to, QueuedItem::Eager(number));
            return self.flush_peer(to);
        }
        let is_bulk = self.should_use_bulk_ring(to, bytes.len());
        let head = MessageFrame::Eager { tag, dtype, len: bytes.len() as u64, is_bulk }.encode();
        let wire = &mut self.links[to].streams;
        let outcome = wire.send_body(self.domain.as_ref(), [Src::from(&head[..]), bytes], is_bulk);
        wire.flush(self.domain.as_ref());
        let written = match outcome {
            Ok(written) => written,
            Err(error) => {
                self.store_send(message, completion, SendStage::Eager);
                return self.on_send_error(to, error);
            }
        };
        if written == head.len() + bytes.len() {
            let delivery = Delivery { peer: to, tag, bytes: bytes.len() };
            self.completed.push(CompletedMessage::new(completion, Ok(delivery)));
            return;
        }
        let number = self.store_send(message, completion, SendStage::Eager);
        let body = FrameBody::Eager { number, is_bulk };
        self.links[to].current_frame = Some(FrameInProgress { header: head, body, written });
        self.mark_pending(to);
        self.flush_peer(to);
    }

    /// Announces a message by an RTS. The receiver requests its fragments or reads its buffer by
    /// CMA.
    pub(super) fn send_rts(&mut self, message: SendRequest, completion: Arc<dyn Completion>) {
        let to = message.to;
        let number = self.store_send(message, completion, SendStage::RtsSent);
        if matches!(self.links[to].streams, PeerStreams::Rings { .. })
            && !message.bytes.is_empty()
            && let Some(slot) = self.free_exposure_slots.acquire()
        {
            self.exposure_table().expose(slot, number);
            self.sends.get_mut(&number).into_iter().for_each(|it| it.exposure_slot = Some(slot));
        }
        self.queue_item(to, QueuedItem::Rts(number));
        self.flush_peer(to);
    }

    /// Writes the queued frames of all peers to their streams, as far as there is room.
    #[inline]
    pub(super) fn flush_all(&mut self) {
        if !self.peers_to_flush.is_empty() {
            self.flush_pending();
        }
    }

    fn flush_pending(&mut self) {
        for peer in std::mem::take(&mut self.peers_to_flush) {
            self.links[peer].is_pending = false;
            self.flush_peer(peer);
        }
    }

    /// Writes the queued frames of one peer to its stream, as far as there is room. If frames are
    /// left, the peer stays on the list.
    pub(super) fn flush_peer(&mut self, peer: Rank) {
        if !self.links[peer].is_open() {
            return;
        }
        if let Err(error) = self.try_flush(peer) {
            self.on_send_error(peer, error);
        } else if !self.links[peer].is_idle() {
            self.mark_pending(peer);
        }
    }

    fn try_flush(&mut self, peer: Rank) -> Result<()> {
        if self.links[peer].is_stream_full {
            return Ok(());
        }
        let outcome = loop {
            if self.links[peer].current_frame.is_none() && !self.start_next_frame(peer) {
                break Ok(());
            }
            match self.write_current_frame(peer) {
                // If the peer takes one fragment while this rank writes the next, the transfer
                // takes half the time.
                Ok(true) => self.links[peer].streams.flush_fragment(self.domain.as_ref()),
                Ok(false) => {
                    let link = &mut self.links[peer];
                    link.streams.flush(self.domain.as_ref());
                    let is_bulk = link
                        .current_frame
                        .as_ref()
                        .is_some_and(FrameInProgress::waits_for_bulk_ring);
                    match link.streams.has_room_now(self.domain.as_ref(), is_bulk) {
                        Ok(true) => {}
                        Ok(false) => {
                            // The endpoint reports when the stream has room again.
                            link.is_stream_full =
                                matches!(link.streams, PeerStreams::Streams { .. });
                            break Ok(());
                        }
                        Err(error) => break Err(error),
                    }
                }
                Err(error) => break Err(error),
            }
        };
        self.links[peer].streams.flush(self.domain.as_ref());
        outcome
    }

    /// Selects the next frame. Returns false if there is none.
    fn start_next_frame(&mut self, peer: Rank) -> bool {
        while let Some(item) = self.links[peer].send_queue.pop_front() {
            let (frame, body) = match item {
                QueuedItem::Control(frame) => (frame, FrameBody::Empty(None)),
                QueuedItem::Fin { number, receive } => {
                    (MessageFrame::Fin { number }, FrameBody::Fin(receive))
                }
                QueuedItem::Eager(number) => {
                    let Some(sending) = self.sends.get(&number) else { continue };
                    let SendRequest { tag, dtype, bytes, .. } = sending.message;
                    let is_bulk = self.should_use_bulk_ring(peer, bytes.len());
                    let frame =
                        MessageFrame::Eager { tag, dtype, len: bytes.len() as u64, is_bulk };
                    (frame, FrameBody::Eager { number, is_bulk })
                }
                QueuedItem::Rts(number) => {
                    let Some(sending) = self.sends.get(&number) else { continue };
                    let SendRequest { tag, dtype, bytes, .. } = sending.message;
                    let address = u64::try_from(bytes.as_ptr().addr()).unwrap_or(0);
                    let exposed = sending.exposure_slot.map(|slot| ExposedBuffer { address, slot });
                    let (len, is_awaited) = (bytes.len() as u64, sending.completion.is_awaited());
                    let frame = MessageFrame::Rts { tag, dtype, number, len, exposed, is_awaited };
                    (frame, FrameBody::Empty(Some(number)))
                }
            };
            self.start_frame(peer, &frame, body);
            return true;
        }
        self.start_next_fragment(peer)
    }

    fn start_next_fragment(&mut self, peer: Rank) -> bool {
        while let Some(number) = self.links[peer].fragment_queue.pop_front() {
            let Some(sending) = self.sends.get(&number) else { continue };
            let SendStage::SendingFragments { attempt, sent, .. } = sending.stage else { continue };
            let rest = sending.message.bytes.len() - sent;
            let is_bulk = self.acquire_bulk_ring(peer);
            let len = rest.min(self.links[peer].streams.max_fragment(is_bulk));
            let frame = MessageFrame::Fragment {
                number,
                attempt,
                offset: sent as u64,
                len: len as u64,
                is_bulk,
            };
            self.start_frame(
                peer,
                &frame,
                FrameBody::Fragment { number, attempt, offset: sent, len, is_bulk },
            );
            return true;
        }
        false
    }

    /// Returns whether an eager message goes to the bulk ring: it is too long for the ring, and the
    /// bulk ring is free.
    pub(super) fn should_use_bulk_ring(&mut self, peer: Rank, len: usize) -> bool {
        len > self.region().max_ring_message() && self.acquire_bulk_ring(peer)
    }

    /// Reserves the bulk ring for a peer. Returns false if it still holds bytes for another peer,
    /// which may never read them.
    fn acquire_bulk_ring(&mut self, peer: Rank) -> bool {
        if !matches!(self.links[peer].streams, PeerStreams::Rings { .. }) {
            return false;
        }
        if let Some(user) = self.bulk_ring_peer.filter(|&user| user != peer)
            && self.links[user].uses_bulk_ring(self.domain.as_ref())
        {
            return false;
        }
        self.bulk_ring_peer = Some(peer);
        true
    }

    fn start_frame(&mut self, peer: Rank, frame: &MessageFrame, body: FrameBody) {
        self.links[peer].current_frame =
            Some(FrameInProgress { header: frame.encode(), body, written: 0 });
    }

    /// Writes the current frame to the stream. Returns true once all of it is in the stream.
    fn write_current_frame(&mut self, peer: Rank) -> Result<bool> {
        let PeerLink { current_frame: Some(current), streams: wire, .. } = &mut self.links[peer]
        else {
            return Ok(true);
        };
        let bytes = match current.body {
            FrameBody::Empty(_) | FrameBody::Fin(_) => Some(Src::empty()),
            FrameBody::Eager { number, .. } => {
                self.sends.get(&number).map(|sending| sending.message.bytes)
            }
            FrameBody::Fragment { number, offset, len, .. } => {
                self.sends.get(&number).map(|sending| sending.message.bytes.slice(offset, len))
            }
        };
        // The bytes of a send exist as long as any of them is in transit.
        let bytes =
            bytes.ok_or_else(|| Error::internal("a message completed while it was being sent"))?;
        let head = current.header.len();
        let skip = current.written.saturating_sub(head).min(bytes.len());
        let start = current.written.min(head);
        let parts = [Src::from(&current.header[start..]), bytes.slice(skip, bytes.len() - skip)];
        let sent = wire.send_body(self.domain.as_ref(), parts, current.body.is_bulk())?;
        self.moved_bytes += sent as u64;
        current.written += sent;
        let (body, written) = (current.body, current.written);
        if written > 0
            && let FrameBody::Fragment { number, attempt: of, .. } = body
            && let Some(sending) = self.sends.get_mut(&number)
            && let SendStage::SendingFragments { attempt, has_begun, .. } = &mut sending.stage
            && *attempt == of
        {
            *has_begun = true;
        }
        if written < head + bytes.len() {
            return Ok(false);
        }
        self.links[peer].current_frame = None;
        self.on_frame_written(peer, body);
        Ok(true)
    }

    /// Handles a frame that is completely in the stream.
    fn on_frame_written(&mut self, peer: Rank, body: FrameBody) {
        match body {
            FrameBody::Empty(_) => {}
            FrameBody::Fin(receive) => self.complete_delivered(receive),
            FrameBody::Eager { number, .. } => {
                if let Some(sending) = self.sends.get(&number) {
                    let SendRequest { to, tag, bytes, .. } = sending.message;
                    self.complete_send(number, Ok(Delivery { peer: to, tag, bytes: bytes.len() }));
                }
            }
            FrameBody::Fragment { number, attempt: of, len, .. } => {
                if let Some(sending) = self.sends.get_mut(&number)
                    && let SendStage::SendingFragments { attempt, sent, .. } = &mut sending.stage
                    && *attempt == of
                {
                    *sent += len;
                    if *sent < sending.message.bytes.len() {
                        self.links[peer].fragment_queue.push_back(number);
                    }
                }
            }
        }
    }
}
