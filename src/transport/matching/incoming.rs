//! Handling of the frames that arrive from peers. Every value from a peer is checked before it has
//! an effect. An invalid value fails the group with an error that names the peer.
//!
//! This file handles eager messages and credit; [`super::rendezvous`] and [`super::split_transfer`]
//! handle the frames of announced messages.

use super::frame::MessageFrame;
use super::inbound::{CompletedPart, ReadStep, protocol_error};
use super::link::BodyDestination;
use super::outstanding::{ReceiveStage, allocate_zeroed};
use super::state::MatchingState;
use super::unexpected::{MessageBody, UnexpectedMessage};
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::transport::Delivery;

/// After this number of bytes from one stream, this rank reads the next stream.
const DRAIN_LIMIT_BYTES: usize = 256 << 10;

impl MatchingState {
    /// Reads and handles the frames that have arrived from a peer. Returns true if it stopped at
    /// [`DRAIN_LIMIT_BYTES`] and more bytes may be available.
    pub(super) fn drain_stream(&mut self, peer: Rank) -> bool {
        if self.peers.link(peer).is_receive_closed() || self.failure.is_some() {
            return false;
        }
        let mut taken = 0;
        let outcome = loop {
            match self.take_next(peer) {
                Ok(0) => break Ok(false),
                Ok(received) => {
                    taken += received;
                    self.peers.release_lazily(peer);
                }
                Err(error) => break Err(error),
            }
            if taken >= DRAIN_LIMIT_BYTES {
                break Ok(self.peers.may_have_more(peer));
            }
        };
        self.peers.finish_reads(peer, taken);
        outcome.unwrap_or_else(|error| {
            self.on_receive_error(peer, error);
            false
        })
    }

    /// Reads the next bytes of the current frame, and handles a header or a body that is complete.
    /// Returns the number of bytes.
    fn take_next(&mut self, peer: Rank) -> Result<usize> {
        let ReadStep { taken, completed } =
            self.peers.read_next(peer, &mut self.requests, &mut self.rts)?;
        match completed {
            None => {}
            Some(CompletedPart::Header(frame)) => self.on_frame(peer, frame)?,
            Some(CompletedPart::Body(destination)) => self.on_body(peer, destination),
        }
        Ok(taken)
    }

    fn on_frame(&mut self, peer: Rank, frame: MessageFrame) -> Result<()> {
        match frame {
            MessageFrame::Eager { tag, dtype, len, is_bulk } => {
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                let body = MessageBody::Buffered(Vec::new());
                self.on_eager(UnexpectedMessage { from: peer, tag, dtype, len, body }, is_bulk)
            }
            MessageFrame::Rts { .. } => self.on_rts(peer, frame),
            MessageFrame::Cts { number, attempt } => self.on_cts(peer, number, attempt),
            MessageFrame::Fragment { .. } => self.on_fragment(peer, frame),
            MessageFrame::Fin { number } => self.on_fin(peer, number),
            MessageFrame::Credit { bytes } => self.peers.regain_credit(peer, bytes),
            MessageFrame::CancelRts { number } => self.on_cancel_rts(peer, number),
            MessageFrame::SplitPut { number, address, region_address } => {
                self.on_split_put(peer, number, address, region_address)
            }
            MessageFrame::PutDone { number, len } => self.on_put_done(peer, number, len),
            MessageFrame::Refused(refusal) => {
                self.on_refused(peer, refusal);
                Ok(())
            }
        }
    }

    /// Prepares to read the body of the frame whose header has arrived. Handles an empty body
    /// immediately.
    pub(super) fn expect_body(
        &mut self,
        peer: Rank,
        destination: BodyDestination,
        len: usize,
        is_bulk: bool,
    ) -> Result<()> {
        if let Some(empty) = self.peers.expect_body(peer, destination, len, is_bulk)? {
            self.on_body(peer, empty);
        }
        Ok(())
    }

    fn on_eager(&mut self, mut message: UnexpectedMessage, is_bulk: bool) -> Result<()> {
        let UnexpectedMessage { from, tag, len, .. } = message;
        if !self.peers.link(from).may_send_eager(len, self.peers.limits()) {
            return protocol_error("it sent more eager bytes than its credit allows");
        }
        self.peers.hold_credit(from, len);
        let Some(receive) = self.take_matching_receive(&message) else {
            message.body = MessageBody::Buffered(allocate_zeroed(len)?);
            return self.expect_body(from, BodyDestination::Unexpected(message), len, is_bulk);
        };
        self.requests.set_receive_stage(receive, ReceiveStage::ReceivingEager { from, tag, len });
        self.peers.return_credit(from, len);
        self.expect_body(from, BodyDestination::Receive(receive), len, is_bulk)
    }

    /// Handles a complete body.
    fn on_body(&mut self, peer: Rank, destination: BodyDestination) {
        match destination {
            BodyDestination::Discard => {}
            BodyDestination::Unexpected(message) => {
                let arrival = self.requests.next_number();
                self.on_message_arrived(arrival, message);
            }
            BodyDestination::Receive(receive) => {
                if let Some(receiving) = self.requests.receive(receive)
                    && let ReceiveStage::ReceivingEager { from, tag, len } = receiving.stage
                {
                    let delivery = Delivery { peer: from, tag, bytes: len };
                    self.requests.complete_receive(receive, Ok(delivery));
                }
            }
            BodyDestination::Fragment(number) => {
                if self.rts.get(peer, number).is_some_and(|rts| rts.received == rts.len) {
                    self.finish_rendezvous(peer, number);
                }
            }
        }
    }
}
