//! Long messages that both sides copy at the same time, where both wait for them and have nothing
//! else to do: the receiver reads the front in the sender's memory, as of any message that it
//! reads, and the sender writes the back to the receiver's.
//!
//! * The receiver says where its buffer is once it has begun to read ([`MessageFrame::SplitPut`]).
//!   The sender writes if it gets there before the receiver has come to the end of the front: else
//!   that reads on alone. Which of the two is decided by a compare-and-swap of the word on the
//!   sender's [desk](super::desk). So nobody waits for a sender that does not look.
//! * When the sender has written the back, or cannot, it says how much it was, and the receiver
//!   reads the rest, mostly nothing.
//! * Whoever receives takes its buffer back by failing the group, and then waits until the sender
//!   is in no call that writes ([`cma::cma_write`]), as
//!   [`Progress`](crate::transport::progress::Progress) says.

use super::frame::MessageFrame;
use super::incoming::protocol_error;
use super::link::{BackHalf, ReceivedRts};
use super::outstanding::SendStage;
use super::peer_streams::PeerStreams;
use super::rendezvous::ActiveGet;
use super::state::MatchingState;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::transport::rank_progress::RemoteWritePurpose;
use crate::transport::{ReceiveBuffer, SendRequest, arena, cma};
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitPolicy, wait_until};
use std::time::Duration;

/// How much is written at once; between two such calls others have their turn.
const PUT_CHUNK_BYTES: usize = 1 << 20;

/// What the front ends at a multiple of: a page, which only one side has to find then.
const SPLIT_ALIGNMENT: usize = 4 << 10;

/// From how many bytes on it is worth two more frames.
const MIN_SPLIT_BYTES: usize = 64 << 10;

/// How long a receiver that gives up waits for a sender that writes, and how often it looks.
const WRITER_GRACE: Duration = Duration::from_millis(100);
const WRITER_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// How much of a message its receiver reads.
fn front_len(len: usize) -> usize {
    len / 2 / SPLIT_ALIGNMENT * SPLIT_ALIGNMENT
}

impl ReceivedRts {
    /// How far its receiver reads.
    pub(super) fn get_end(&self) -> usize {
        if self.back_half == BackHalf::GetAll { self.len } else { front_len(self.len) }
    }
}

/// The back of a message that this rank writes to its receiver's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActivePut {
    peer: Rank,
    number: u64,
    target: cma::CmaTarget,
    /// Up to where it has.
    done: usize,
}

impl ActivePut {
    pub(super) fn is_for_other_peer(&self, peer: Rank) -> bool {
        self.peer != peer
    }
}

impl MatchingState {
    /// Whether the sender of what a receive has taken, who waits and looks, may be asked to write.
    pub(super) fn can_split(&self, receive: u64) -> bool {
        let has_room = |into: &ReceiveBuffer| {
            matches!(into, ReceiveBuffer::Borrowed(_)) && into.max_bytes() >= MIN_SPLIT_BYTES
        };
        self.can_cma_write
            && self.receives.get(&receive).is_some_and(|it| has_room(&it.message.buffer))
    }

    /// Asks the sender of a message that is being read to write its back.
    pub(super) fn request_split_put(&mut self, peer: Rank, number: u64, receive: u64) {
        let region = self.region().address();
        let Some(offer) = self.links[peer].received_rts.get_mut(&number) else { return };
        let Some(receiving) = self.receives.get_mut(&receive) else { return };
        if offer.len < MIN_SPLIT_BYTES {
            return;
        }
        offer.back_half = BackHalf::PutRequested;
        let address = receiving.buffer_range(0, offer.len).as_mut_ptr().expose_provenance() as u64;
        self.queue_control(
            peer,
            MessageFrame::SplitPut { number, address, region_address: region },
        );
        self.flush_peer(peer);
    }

    /// Whether all has been read of a message that this rank reads, and there is a back.
    pub(super) fn has_read_front(&self, reading: &ActiveGet) -> bool {
        let offer = self.links[reading.peer].received_rts.get(&reading.number);
        offer.is_some_and(|it| it.back_half != BackHalf::GetAll && it.received == it.get_end())
    }

    /// The front of a message has been read.
    pub(super) fn finish_front(&mut self, reading: ActiveGet) {
        let ActiveGet { peer, local, number, exposed: lent, .. } = reading;
        let try_read_all =
            || self.domain.region().exposure_table(local).read_all(lent.slot, number);
        let Some(offer) = self.links[peer].received_rts.get_mut(&number) else { return };
        match offer.back_half {
            BackHalf::PutRequested if !try_read_all() => return self.half_done_gets.push(reading),
            BackHalf::PutDone(len) => offer.received += len,
            BackHalf::PutRequested | BackHalf::GetAll => {}
        }
        offer.back_half = BackHalf::GetAll;
        if offer.received == offer.len {
            self.finish_rendezvous(peer, number);
        } else {
            self.active_gets.push_back(reading);
        }
    }

    /// A receiver would have this rank write the back of a message.
    pub(super) fn on_split_put(
        &mut self,
        peer: Rank,
        number: u64,
        (address, region): (u64, u64),
    ) -> Result<()> {
        let is_known = self.was_issued(number);
        let Some(sending) = self.sends.get(&number) else {
            return if is_known {
                Ok(())
            } else {
                protocol_error("it shares a message that never was")
            };
        };
        let SendRequest { to, bytes, .. } = sending.message;
        let (SendStage::RtsSent, Some(place), true) =
            (sending.stage, sending.exposure_slot, to == peer)
        else {
            return protocol_error("it shares a message that it was not offered");
        };
        let PeerStreams::Rings { peer: rank, .. } = self.links[peer].streams else {
            return protocol_error("it shares a message of another node");
        };
        if self.can_cma_write
            && self.can_cma_read(peer)
            && self.exposure_table().begin_split(place, number)
        {
            let target = cma::CmaTarget { rank, address, region_address: region };
            self.active_puts.push_back(ActivePut {
                peer,
                number,
                target,
                done: front_len(bytes.len()),
            });
        }
        Ok(())
    }

    /// Writes on.
    pub(super) fn progress_puts(&mut self) {
        let Some(mut writing) = self.active_puts.pop_front() else { return };
        let ActivePut { peer, number, target, done } = writing;
        let Some(sending) = self.sends.get(&number) else { return };
        let bytes = sending.message.bytes;
        let part = bytes.slice(done, (bytes.len() - done).min(PUT_CHUNK_BYTES));
        let address = target.address.wrapping_add(done as u64);
        let to = cma::CmaTarget { address, ..target };
        match cma::cma_write(self.domain.as_ref(), RemoteWritePurpose::Message, to, part) {
            Ok(()) => writing.done += part.len(),
            Err(error) if error.kind() != ErrorKind::System => return self.fail(error),
            Err(error) => {
                crate::log!(LogLevel::Debug, "the rest of a message is read: {error}");
                return self.send_put_done(peer, number, done - front_len(bytes.len()));
            }
        }
        self.moved_bytes += part.len() as u64;
        if writing.done < bytes.len() {
            self.active_puts.push_back(writing);
        } else {
            self.send_put_done(peer, number, bytes.len() - front_len(bytes.len()));
        }
    }

    fn send_put_done(&mut self, peer: Rank, number: u64, len: usize) {
        self.queue_control(peer, MessageFrame::PutDone { number, len: len as u64 });
        self.flush_peer(peer);
    }

    /// Whether somebody waits for the message whose back is written.
    pub(super) fn has_blocking_sender(&self, writing: &ActivePut) -> bool {
        self.sends.get(&writing.number).is_some_and(|it| it.completion.is_awaited())
    }

    /// A sender has written the back of a message, or as much of it as it could.
    pub(super) fn on_put_done(&mut self, peer: Rank, number: u64, len: u64) -> Result<()> {
        let Some(offer) = self.links[peer].received_rts.get_mut(&number) else {
            return protocol_error("it wrote a message that nobody wants");
        };
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if offer.back_half != BackHalf::PutRequested || len > offer.len - front_len(offer.len) {
            return protocol_error("it wrote what it was not asked for");
        }
        offer.back_half = BackHalf::PutDone(len);
        let is_its = |reading: &ActiveGet| reading.is_for_message(peer, number);
        if let Some(at) = self.half_done_gets.iter().position(is_its) {
            let reading = self.half_done_gets.swap_remove(at);
            self.finish_front(reading);
        }
        Ok(())
    }

    /// Whether a sender may be writing to memory of a receive of this rank.
    pub(super) fn has_requested_puts(&self) -> bool {
        self.links
            .iter()
            .any(|link| link.received_rts.values().any(|it| it.back_half == BackHalf::PutRequested))
    }

    /// Once the group has failed: waits until nobody writes to the receives of this rank; who still
    /// may, after a while, as an error.
    pub(super) fn wait_for_writers(&self) -> Option<Error> {
        if !self.has_requested_puts() {
            return None;
        }
        let (limit, unused_doorbell) = (Deadline::after(WRITER_GRACE), Doorbell::default());
        let writes = |rank: &Rank| {
            self.region().progress(*rank).is_writing_remotely(RemoteWritePurpose::Message)
                && !arena::has_process_ended(self.domain.peer(*rank).pid)
        };
        let others = || (0..self.domain.size()).filter(|&rank| rank != self.domain.rank());
        while let Some(rank) = others().find(writes) {
            if limit.has_passed() {
                let peer = self.domain.peer(rank);
                let what = "was stopped on its way to the buffer of a receive, and may still write there before it ends";
                let error = Error::new(ErrorKind::PeerFailed, format!("{peer} {what}"));
                return Some(error.with_culprit(peer.rank));
            }
            let slice = limit.capped(WRITER_POLL_INTERVAL);
            drop(wait_until(
                &unused_doorbell,
                WaitPolicy::SLEEP_SOON,
                &slice,
                || None,
                || None::<()>,
            ));
        }
        None
    }
}
