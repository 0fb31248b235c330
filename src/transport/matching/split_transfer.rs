//! Split transfers: both ranks copy a long message at the same time, if callers on both ranks wait
//! for it and have nothing else to do. The receiver reads the front half from the sender's memory
//! by CMA, and the sender writes the back half to the receiver's memory by CMA.
//!
//! 1. Once the receiver has begun to read, it sends the address of its buffer
//!    ([`MessageFrame::SplitPut`]).
//! 2. The sender writes the back half if it handles that frame before the receiver has finished the
//!    front half. Otherwise the receiver reads the back half, so that it never waits for a sender
//!    that does not poll. Each rank claims the back half by a compare-and-swap of the word in the
//!    sender's [exposure table](crate::transport::exposure), and only the first one succeeds.
//! 3. When the sender has written the back half, or cannot continue, it sends the number of written
//!    bytes ([`MessageFrame::PutDone`]). The receiver reads the remaining bytes; usually there are
//!    none.
//! 4. If the receiver needs its buffer back before that, for example because it leaves, it fails
//!    the group. Then it waits until the sender is not inside a call that writes
//!    ([`cma::cma_write`]). [`RankProgress`](crate::transport::rank_progress::RankProgress) shows
//!    whether the sender is in such a call.

use super::frame::MessageFrame;
use super::inbound::protocol_error;
use super::outstanding::SendStage;
use super::puts::{PutReport, wait_for_writers};
use super::rts_table::{BackHalf, front_len};
use super::state::MatchingState;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::transport::{SendRequest, cma};

impl MatchingState {
    /// Handles a receiver's request to write the back half of a message.
    pub(super) fn on_split_put(
        &mut self,
        peer: Rank,
        number: u64,
        address: u64,
        region_address: u64,
    ) -> Result<()> {
        let Some(sending) = self.requests.send(number) else {
            return self.check_issued(number, "it sent a split put request for an unknown message");
        };
        let SendRequest { to, bytes, .. } = sending.message;
        let (SendStage::RtsSent, Some(slot), true) =
            (sending.stage, sending.exposure_slot, to == peer)
        else {
            return protocol_error("it sent a split put request without an RTS");
        };
        let Some(rank) = self.peers.link(peer).ring_rank() else {
            return protocol_error("it sent a split put request from another node");
        };
        if self.puts.can_write(rank)
            && self.gets.can_read(rank)
            && self.exposed.begin_split(slot, number)
        {
            let target = cma::CmaTarget { rank, address, region_address };
            self.puts.add(peer, number, target, bytes.len());
        }
        Ok(())
    }

    /// Writes the next chunk of one put.
    pub(super) fn progress_puts(&mut self) {
        match self.puts.write_chunk(&self.requests) {
            Ok(step) => {
                self.peers.add_moved_bytes(step.written);
                if let Some(PutReport { peer, number, len }) = step.report {
                    let frame = MessageFrame::PutDone { number, len: len as u64 };
                    self.peers.queue_control(peer, frame);
                    self.flush_peer(peer);
                }
            }
            Err(error) => self.fail(error),
        }
    }

    /// Handles the sender's report that it has written the back half, or a part of it.
    pub(super) fn on_put_done(&mut self, peer: Rank, number: u64, len: u64) -> Result<()> {
        let Some(rts) = self.rts.get_mut(peer, number) else {
            return protocol_error("it sent a put-done frame for an unknown message");
        };
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if rts.back_half != BackHalf::PutRequested || len > rts.len - front_len(rts.len) {
            return protocol_error("it sent a put-done frame without a split put request");
        }
        rts.back_half = BackHalf::PutDone(len);
        let step = self.gets.on_put_done(peer, number, &mut self.rts);
        self.finish_get_step(step);
        Ok(())
    }

    /// Waits until no rank writes to the receive buffers of this rank. Called after the group has
    /// failed. If a rank may still write after a grace period, returns an error that names the
    /// rank.
    pub(super) fn wait_for_writers(&self) -> Option<Error> {
        if self.rts.has_requested_puts() { wait_for_writers(self.domain.as_ref()) } else { None }
    }
}
