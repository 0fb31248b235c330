//! Split transfers: both sides copy a long message at the same time, if callers wait on both sides
//! and have nothing else to do. The receiver reads the front half from the sender's memory, and the
//! sender writes the back half to the receiver's memory.
//!
//! 1. Once the receiver has begun to read, it sends the address of its buffer
//!    ([`MessageFrame::SplitPut`]).
//! 2. The sender writes the back half if it handles that frame before the receiver has finished the
//!    front half. Otherwise the receiver reads the back half too. A compare-and-swap of the word in
//!    the sender's [exposure table](crate::transport::exposure) decides between the two, so that the receiver
//!    never waits for a sender that does not poll.
//! 3. When the sender has written the back half, or cannot continue, it sends the number of written
//!    bytes ([`MessageFrame::PutDone`]). The receiver reads the rest, which is usually empty.
//! 4. To withdraw its buffer, the receiver fails the group. It then waits until the sender is in no
//!    call that writes ([`cma::cma_write`]), as
//!    [`RankProgress`](crate::transport::rank_progress::RankProgress) shows.

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

/// The number of bytes per write call. Between two calls, other streams make progress.
const PUT_CHUNK_BYTES: usize = 1 << 20;

/// The alignment of the end of the front half: one page, so that only one side has to look up each
/// page.
const SPLIT_ALIGNMENT: usize = 4 << 10;

/// The message length from which on a split is worth its two additional frames.
const MIN_SPLIT_BYTES: usize = 64 << 10;

/// The time that a receiver that withdraws its buffer waits for a sender that writes, and its poll
/// interval.
const WRITER_GRACE: Duration = Duration::from_millis(100);
const WRITER_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Returns the length of the front half, which the receiver reads.
fn front_len(len: usize) -> usize {
    len / 2 / SPLIT_ALIGNMENT * SPLIT_ALIGNMENT
}

impl ReceivedRts {
    /// Returns the end of the part that the receiver reads.
    pub(super) fn get_end(&self) -> usize {
        if self.back_half == BackHalf::GetAll { self.len } else { front_len(self.len) }
    }
}

/// A put: the back half of a message that this rank writes to the receiver's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActivePut {
    peer: Rank,
    number: u64,
    target: cma::CmaTarget,
    /// The end of the written part, as an offset in the message.
    done: usize,
}

impl ActivePut {
    pub(super) fn is_for_other_peer(&self, peer: Rank) -> bool {
        self.peer != peer
    }
}

impl MatchingState {
    /// Returns whether the sender of an accepted message may be asked to write. The sender is known
    /// to wait and poll.
    pub(super) fn can_split(&self, receive: u64) -> bool {
        let has_room = |into: &ReceiveBuffer| {
            matches!(into, ReceiveBuffer::Borrowed(_)) && into.max_bytes() >= MIN_SPLIT_BYTES
        };
        self.can_cma_write
            && self.receives.get(&receive).is_some_and(|it| has_room(&it.message.buffer))
    }

    /// Asks the sender of a message that is being read to write the back half.
    pub(super) fn request_split_put(&mut self, peer: Rank, number: u64, receive: u64) {
        let region = self.region().address();
        let Some(rts) = self.links[peer].received_rts.get_mut(&number) else { return };
        let Some(receiving) = self.receives.get_mut(&receive) else { return };
        if rts.len < MIN_SPLIT_BYTES {
            return;
        }
        rts.back_half = BackHalf::PutRequested;
        let address = receiving.buffer_range(0, rts.len).as_mut_ptr().expose_provenance() as u64;
        self.queue_control(
            peer,
            MessageFrame::SplitPut { number, address, region_address: region },
        );
        self.flush_peer(peer);
    }

    /// Returns whether this rank has read the front half of a message that has a back half.
    pub(super) fn has_read_front(&self, reading: &ActiveGet) -> bool {
        let rts = self.links[reading.peer].received_rts.get(&reading.number);
        rts.is_some_and(|it| it.back_half != BackHalf::GetAll && it.received == it.get_end())
    }

    /// Continues a get whose front half has been read.
    pub(super) fn finish_front(&mut self, reading: ActiveGet) {
        let ActiveGet { peer, local, number, exposed, .. } = reading;
        let try_read_all =
            || self.domain.region().exposure_table(local).read_all(exposed.slot, number);
        let Some(rts) = self.links[peer].received_rts.get_mut(&number) else { return };
        match rts.back_half {
            BackHalf::PutRequested if !try_read_all() => return self.half_done_gets.push(reading),
            BackHalf::PutDone(len) => rts.received += len,
            BackHalf::PutRequested | BackHalf::GetAll => {}
        }
        rts.back_half = BackHalf::GetAll;
        if rts.received == rts.len {
            self.finish_rendezvous(peer, number);
        } else {
            self.active_gets.push_back(reading);
        }
    }

    /// Handles a receiver's request to write the back half of a message.
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
                protocol_error("it sent a split put request for an unknown message")
            };
        };
        let SendRequest { to, bytes, .. } = sending.message;
        let (SendStage::RtsSent, Some(slot), true) =
            (sending.stage, sending.exposure_slot, to == peer)
        else {
            return protocol_error("it sent a split put request without an RTS");
        };
        let PeerStreams::Rings { peer: rank, .. } = self.links[peer].streams else {
            return protocol_error("it sent a split put request from another node");
        };
        if self.can_cma_write
            && self.can_cma_read(peer)
            && self.exposure_table().begin_split(slot, number)
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

    /// Writes the next chunk of one put.
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
                crate::log!(
                    LogLevel::Debug,
                    "cannot write the rest of a message; the receiver reads it: {error}"
                );
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

    /// Returns whether a caller waits for the message of a put.
    pub(super) fn has_blocking_sender(&self, writing: &ActivePut) -> bool {
        self.sends.get(&writing.number).is_some_and(|it| it.completion.is_awaited())
    }

    /// Handles the sender's report that it has written the back half, or a part of it.
    pub(super) fn on_put_done(&mut self, peer: Rank, number: u64, len: u64) -> Result<()> {
        let Some(rts) = self.links[peer].received_rts.get_mut(&number) else {
            return protocol_error("it sent a put-done frame for an unknown message");
        };
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if rts.back_half != BackHalf::PutRequested || len > rts.len - front_len(rts.len) {
            return protocol_error("it sent a put-done frame without a split put request");
        }
        rts.back_half = BackHalf::PutDone(len);
        let is_its = |reading: &ActiveGet| reading.is_for_message(peer, number);
        if let Some(at) = self.half_done_gets.iter().position(is_its) {
            let reading = self.half_done_gets.swap_remove(at);
            self.finish_front(reading);
        }
        Ok(())
    }

    /// Returns whether a sender may be writing to the buffer of a receive of this rank.
    pub(super) fn has_requested_puts(&self) -> bool {
        self.links
            .iter()
            .any(|link| link.received_rts.values().any(|it| it.back_half == BackHalf::PutRequested))
    }

    /// Waits, after the group has failed, until no rank writes to the receives of this rank. If a
    /// rank may still write after [`WRITER_GRACE`], returns an error that names it.
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
                let what = "was stopped while it wrote to the buffer of a receive, and may still write to it until \
                            the process ends";
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
