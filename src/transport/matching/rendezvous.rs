//! The rendezvous of announced messages: the receiver reads the sender's memory by CMA, or requests
//! the message by a CTS and gets it in fragments if CMA is impossible.
//!
//! The bytes must still be the sender's message when this rank reports success: see
//! [`crate::transport::exposure`]. The sender's process is verified before the first read, and again after
//! each message. The proof is a random process cookie, whose address is in the sender's exposure
//! table. The memory of a process that has left or died is not read any more.

use super::frame::{ExposedBuffer, MessageFrame};
use super::link::{BackHalf, CmaAccess, QueuedItem};
use super::outstanding::{OutstandingReceive, ReceiveStage};
use super::peer_streams::PeerStreams;
use super::state::MatchingState;
use crate::base::buffer::Dst;
use crate::base::error::{Error, ErrorKind};
use crate::base::ids::{Nonce, Rank};
use crate::base::log::LogLevel;
use crate::sys::cma;
use crate::transport::{self, Delivery};
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// The number of bytes per CMA read. Between two reads, other streams make progress, and a failure
/// is noticed.
const GET_CHUNK_BYTES: usize = 1 << 20;

/// The time that a waiting sender has to answer a CTS before this rank reads its buffer. If both
/// processes run, an answer takes a tenth of that.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_micros(5);

/// A get: a buffer of another rank that this rank reads, or will read, by CMA.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActiveGet {
    pub(super) peer: Rank,
    /// The rank of the peer in the domain.
    pub(super) local: Rank,
    pub(super) number: u64,
    pub(super) exposed: ExposedBuffer,
    /// Whether the read has begun, so that the owner can no longer withdraw the buffer.
    has_begun: bool,
    /// Whether the owner is asked to write the back half.
    is_split: bool,
    /// The end of the time in which the owner may answer a CTS.
    answer_deadline: Option<Instant>,
}

impl ActiveGet {
    pub(super) fn is_for_other_peer(&self, peer: Rank) -> bool {
        self.peer != peer
    }

    pub(super) fn is_for_message(&self, peer: Rank, number: u64) -> bool {
        self.peer == peer && self.number == number
    }
}

/// Returns a nonce as two words.
pub(super) fn cookie_words(nonce: &Nonce) -> [u64; 2] {
    let word = |from: usize| {
        let bytes = &nonce.0[from..from + 8];
        bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
    };
    [word(0), word(8)]
}

impl MatchingState {
    /// Accepts an RTS for a receive. Returns false if the message is no longer available, so that
    /// the receive must look for another message.
    pub(super) fn accept_rts(&mut self, from: Rank, number: u64, receive: u64) -> bool {
        // A peer that has left can no longer be asked for the message.
        if self.links[from].send_close_error.is_some() {
            return false;
        }
        let Some(rts) = self.links[from].received_rts.get(&number) else { return false };
        let (exposed, is_awaited) = (rts.exposed.filter(|_| rts.attempt == 0), rts.is_awaited);
        let exposed = exposed.filter(|_| self.can_cma_read(from));
        self.set_rts_receive(from, number, receive);
        self.set_receive_stage(receive, ReceiveStage::Accepted { from, number });
        if let (Some(exposed), &PeerStreams::Rings { peer: local, .. }) =
            (exposed, &self.links[from].streams)
        {
            let is_asked = is_awaited && self.is_only_waiting(receive) && self.is_polling(local);
            let shares = is_asked && self.can_split(receive);
            let asked_until = (is_asked && !shares).then(|| Instant::now() + self.answer_timeout);
            let reading = ActiveGet {
                peer: from,
                local,
                number,
                exposed,
                has_begun: false,
                is_split: shares,
                answer_deadline: asked_until,
            };
            if asked_until.is_none() {
                self.active_gets.push_back(reading);
                return true;
            }
            self.asked_gets.push(reading);
        }
        self.send_cts(from, number);
        true
    }

    /// Returns whether a caller waits for the receive of a get.
    pub(super) fn has_blocking_receiver(&self, reading: &ActiveGet) -> bool {
        self.receive_of_get(reading).is_some_and(|it| it.completion.is_awaited())
    }

    fn receive_of_get(&self, reading: &ActiveGet) -> Option<&OutstandingReceive> {
        let rts = self.links[reading.peer].received_rts.get(&reading.number)?;
        self.receives.get(&rts.receive?)
    }

    /// Returns whether this rank waits for the receive and sends nothing. If both ranks send, both
    /// read at the same time instead.
    fn is_only_waiting(&self, receive: u64) -> bool {
        let is_awaited = |it: &OutstandingReceive| it.completion.is_awaited();
        self.sends.is_empty() && self.receives.get(&receive).is_some_and(is_awaited)
    }

    /// Returns whether a rank of the domain appears to poll for messages: its doorbell has no
    /// waiter and no listener. A sleeping rank is a waiter; a rank whose service thread polls is a
    /// listener.
    fn is_polling(&self, local: Rank) -> bool {
        fence(Ordering::SeqCst);
        !self.region().message_doorbell(local).has_waiters()
    }

    /// Checks the gets whose senders were asked for fragments: drops the answered gets, and reads
    /// the buffers of the others after their deadline.
    pub(super) fn check_answers(&mut self) {
        if self.asked_gets.is_empty() {
            return;
        }
        let now = Instant::now();
        for reading in std::mem::take(&mut self.asked_gets) {
            let stage = self.receive_of_get(&reading).map(|it| it.stage);
            if !matches!(stage, Some(ReceiveStage::Accepted { .. })) {
                continue;
            }
            if reading.answer_deadline.is_none_or(|until| now >= until) {
                self.active_gets.push_back(reading);
            } else {
                self.asked_gets.push(reading);
            }
        }
    }

    fn set_rts_receive(&mut self, from: Rank, number: u64, receive: u64) {
        if let Some(rts) = self.links[from].received_rts.get_mut(&number) {
            rts.receive = Some(receive);
        }
    }

    fn set_receive_stage(&mut self, receive: u64, stage: ReceiveStage) {
        if let Some(receiving) = self.receives.get_mut(&receive) {
            receiving.stage = stage;
        }
    }

    /// Requests the fragments of a message.
    fn send_cts(&mut self, from: Rank, number: u64) {
        let Some(rts) = self.links[from].received_rts.get_mut(&number) else { return };
        rts.attempt += 1;
        rts.received = 0;
        let attempt = rts.attempt;
        self.queue_control(from, MessageFrame::Cts { number, attempt });
    }

    /// Completes a rendezvous whose message has completely arrived.
    pub(super) fn finish_rendezvous(&mut self, from: Rank, number: u64) {
        let Some(rts) = self.links[from].received_rts.remove(&number) else { return };
        let delivery = Delivery { peer: from, tag: rts.tag, bytes: rts.len };
        let Some(receive) = rts.receive else { return };
        // The receive completes once the FIN is in the stream, because its caller may leave the
        // group after that.
        self.set_receive_stage(receive, ReceiveStage::Delivered(delivery));
        if self.links[from].is_open() {
            self.queue_item(from, QueuedItem::Fin { number, receive });
        } else {
            self.complete_delivered(receive);
        }
    }

    /// Returns whether a message is being read by CMA.
    pub(super) fn has_active_get(&self, from: Rank, number: u64) -> bool {
        self.active_gets
            .iter()
            .chain(&self.half_done_gets)
            .any(|reading| reading.is_for_message(from, number))
    }

    /// Cancels the get of a message. Returns false if the read has already begun.
    pub(super) fn cancel_get(&mut self, from: Rank, number: u64) -> bool {
        let is_its = |reading: &ActiveGet| reading.is_for_message(from, number);
        let mut all = self.active_gets.iter().chain(&self.half_done_gets);
        if all.any(|reading| is_its(reading) && reading.has_begun) {
            return false;
        }
        self.active_gets.retain(|reading| !is_its(reading));
        self.asked_gets.retain(|reading| !is_its(reading));
        true
    }

    /// Marks a buffer as being read, before the read. Returns false if the owner has withdrawn it
    /// in the meantime or sends fragments after all.
    fn begin_get(&mut self, reading: &mut ActiveGet) -> bool {
        let ActiveGet {
            peer,
            local,
            number,
            exposed,
            has_begun,
            is_split: shares,
            answer_deadline: asked_until,
        } = reading;
        if *has_begun {
            return true;
        }
        let Some(receive) = self.links[*peer].received_rts.get(number).and_then(|it| it.receive)
        else {
            return false;
        };
        *has_begun = self.region().exposure_table(*local).begin_read(exposed.slot, *number);
        if *has_begun {
            self.set_receive_stage(
                receive,
                ReceiveStage::Transferring { from: *peer, number: *number },
            );
            if *shares {
                self.request_split_put(*peer, *number, receive);
            }
        } else if asked_until.is_none() {
            self.links[*peer].received_rts.remove(number);
            self.match_receive(receive);
        }
        *has_begun
    }

    /// Reads the next chunk of one get.
    pub(super) fn progress_gets(&mut self) {
        let Some(mut reading) = self.active_gets.pop_front() else { return };
        if !self.begin_get(&mut reading) {
            return;
        }
        if self.has_read_front(&reading) {
            return self.finish_front(reading);
        }
        let ActiveGet { peer, local, number, exposed: ExposedBuffer { address, .. }, .. } = reading;
        let pid = self.links[peer].name.pid;
        let Some(rts) = self.links[peer].received_rts.get_mut(&number) else { return };
        let Some(receiving) = rts.receive.and_then(|it| self.receives.get_mut(&it)) else {
            return;
        };
        let (got, end) = (rts.received, rts.get_end());
        let into = receiving.buffer_range(got, (end - got).min(GET_CHUNK_BYTES));
        // The process id may belong to another process by now, with other memory at that address.
        // The same call therefore reads the process cookie after the message.
        let (cookie_address, cookie) =
            self.domain.region().exposure_table(local).cookie().unwrap_or_default();
        let mut found = Nonce::default();
        let cookie_buffer = Dst::from(&mut found.0[..]);
        let more = match cma::read_pieces(
            pid,
            [(address + got as u64, into), (cookie_address, cookie_buffer)],
        ) {
            Ok(0) => {
                return self.fall_back_to_fragments(&reading, "process_vm_readv read no bytes");
            }
            Ok(more) => more,
            Err(cause) => return self.fall_back_to_fragments(&reading, &cause.to_string()),
        };
        rts.received += more.min(into.len());
        if rts.received < end {
            self.active_gets.push_back(reading);
            return;
        }
        if more < into.len() + found.0.len() || cookie_words(&found) != cookie {
            self.links[peer].cma_access = CmaAccess::Denied;
            return self.fall_back_to_fragments(&reading, "the process cookie has changed");
        }
        // A sender that leaves during the read fails the group before its buffer is reused. So this
        // rank checks for a failure after its last read.
        fence(Ordering::SeqCst);
        match self.domain.failure() {
            Some(error) => self.fail(error),
            None if self.has_read_front(&reading) => self.finish_front(reading),
            None => self.finish_rendezvous(peer, number),
        }
    }

    /// Requests the message in fragments, because reading the sender's memory failed.
    fn fall_back_to_fragments(&mut self, reading: &ActiveGet, reason: &str) {
        let ActiveGet { peer, local, number, exposed, .. } = *reading;
        if let Some(error) = self.domain.failure() {
            return self.fail(error);
        }
        let name = self.peer_name(peer);
        crate::log!(
            LogLevel::Debug,
            "cannot read a message in the memory of {name}; requesting fragments: {reason}"
        );
        if !self.region().exposure_table(local).cancel_read(exposed.slot, number) {
            let what = format!("{name}: cannot read the rest of a message in its memory: {reason}");
            return self.fail(Error::new(ErrorKind::System, what).with_culprit(peer));
        }
        if let Some(rts) = self.links[peer].received_rts.get_mut(&number) {
            (rts.exposed, rts.back_half) = (None, BackHalf::GetAll);
        }
        self.send_cts(peer, number);
    }

    /// Returns whether a peer's memory can be read by CMA. Tested once per peer.
    pub(super) fn can_cma_read(&mut self, peer: Rank) -> bool {
        let PeerStreams::Rings { peer: local, .. } = self.links[peer].streams else { return false };
        if self.domain.has_left(local) {
            return false;
        }
        if self.links[peer].cma_access == CmaAccess::Untested {
            let works = self.has_valid_cookie(peer, local);
            self.links[peer].cma_access =
                if works { CmaAccess::Allowed } else { CmaAccess::Denied };
            if !works {
                let name = self.peer_name(peer);
                crate::log!(
                    LogLevel::Info,
                    "the memory of {name} cannot be read by CMA; messages are sent in fragments"
                );
            }
        }
        self.links[peer].cma_access == CmaAccess::Allowed
    }

    /// Returns whether the process with the peer's id is the peer.
    fn has_valid_cookie(&self, peer: Rank, local: Rank) -> bool {
        let Some((address, cookie)) = self.region().exposure_table(local).cookie() else {
            return false;
        };
        let found = transport::cma::read_process_cookie(self.links[peer].name.pid, address);
        found.is_some_and(|found| cookie_words(&found) == cookie)
    }
}
