//! Taking messages that were offered: read where they are, in the memory of a process of the same
//! host, or asked for and sent in pieces where that cannot be.
//!
//! What is read must still be the sender's message when this rank says that it has it: see
//! [`super::exposure_table`]. The process is recognised before its memory is read for the first
//! time, and again after each message, by a random mark at an address that its desk tells; one that
//! has left or died is not read any more.

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

/// How much is read at once; between two such reads others have their turn, and a failure is
/// noticed.
const GET_CHUNK_BYTES: usize = 1 << 20;

/// How long a sender that waits has to answer before its buffer is read. It takes a tenth of that
/// where both run.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_micros(5);

/// The buffer of another rank that is being read, or soon is.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActiveGet {
    pub(super) peer: Rank,
    /// The peer in the domain.
    pub(super) local: Rank,
    pub(super) number: u64,
    pub(super) exposed: ExposedBuffer,
    /// Its owner cannot take it back any more.
    has_begun: bool,
    /// Its owner is asked to write the back.
    is_split: bool,
    /// Its owner has been asked for it, and has until then to answer.
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

/// A nonce as two words.
pub(super) fn cookie_words(nonce: &Nonce) -> [u64; 2] {
    let word = |from: usize| {
        let bytes = &nonce.0[from..from + 8];
        bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
    };
    [word(0), word(8)]
}

impl MatchingState {
    /// A receive takes an offer; false where it looks for another message, since that one cannot be
    /// had.
    pub(super) fn accept_rts(&mut self, from: Rank, number: u64, receive: u64) -> bool {
        // Whoever has left cannot be asked for it any more.
        if self.links[from].send_close_error.is_some() {
            return false;
        }
        let Some(offer) = self.links[from].received_rts.get(&number) else { return false };
        let (lent, awaited) = (offer.exposed.filter(|_| offer.attempt == 0), offer.is_awaited);
        let lent = lent.filter(|_| self.can_cma_read(from));
        self.set_rts_receive(from, number, receive);
        self.set_receive_stage(receive, ReceiveStage::Accepted { from, number });
        if let (Some(lent), &PeerStreams::Rings { peer: local, .. }) =
            (lent, &self.links[from].streams)
        {
            let is_asked = awaited && self.is_only_waiting(receive) && self.is_polling(local);
            let shares = is_asked && self.can_split(receive);
            let asked_until = (is_asked && !shares).then(|| Instant::now() + self.answer_timeout);
            let reading = ActiveGet {
                peer: from,
                local,
                number,
                exposed: lent,
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

    /// Whether somebody waits for the receive that a buffer is read for.
    pub(super) fn has_blocking_receiver(&self, reading: &ActiveGet) -> bool {
        self.receive_of_get(reading).is_some_and(|it| it.completion.is_awaited())
    }

    fn receive_of_get(&self, reading: &ActiveGet) -> Option<&OutstandingReceive> {
        let offer = self.links[reading.peer].received_rts.get(&reading.number)?;
        self.receives.get(&offer.receive?)
    }

    /// Whether this rank waits for the receive, and sends nothing meanwhile: two that both send
    /// read both at the same time.
    fn is_only_waiting(&self, receive: u64) -> bool {
        let is_awaited = |it: &OutstandingReceive| it.completion.is_awaited();
        self.sends.is_empty() && self.receives.get(&receive).is_some_and(is_awaited)
    }

    /// Whether a rank of the domain seems to be looking for messages: nothing tells one that sleeps
    /// or lets its service thread look.
    fn is_polling(&self, local: Rank) -> bool {
        fence(Ordering::SeqCst);
        !self.region().message_doorbell(local).has_waiters()
    }

    /// Sees which of the buffers that were asked for have been answered, and which are to be read
    /// instead.
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
        if let Some(offer) = self.links[from].received_rts.get_mut(&number) {
            offer.receive = Some(receive);
        }
    }

    fn set_receive_stage(&mut self, receive: u64, stage: ReceiveStage) {
        if let Some(receiving) = self.receives.get_mut(&receive) {
            receiving.stage = stage;
        }
    }

    /// Asks for the pieces of a message.
    fn send_cts(&mut self, from: Rank, number: u64) {
        let Some(offer) = self.links[from].received_rts.get_mut(&number) else { return };
        offer.attempt += 1;
        offer.received = 0;
        let attempt = offer.attempt;
        self.queue_control(from, MessageFrame::Cts { number, attempt });
    }

    /// An offer has come whole.
    pub(super) fn finish_rendezvous(&mut self, from: Rank, number: u64) {
        let Some(offer) = self.links[from].received_rts.remove(&number) else { return };
        let delivery = Delivery { peer: from, tag: offer.tag, bytes: offer.len };
        let Some(receive) = offer.receive else { return };
        // It ends once the sender is sure to hear of it: whoever has it may leave.
        self.set_receive_stage(receive, ReceiveStage::Delivered(delivery));
        if self.links[from].is_open() {
            self.queue_item(from, QueuedItem::Fin { number, receive });
        } else {
            self.complete_delivered(receive);
        }
    }

    /// Whether a message is being read where it is.
    pub(super) fn has_active_get(&self, from: Rank, number: u64) -> bool {
        self.active_gets
            .iter()
            .chain(&self.half_done_gets)
            .any(|reading| reading.is_for_message(from, number))
    }

    /// A message is not to be read where it is; false where that has begun already.
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

    /// Says that a buffer is being read, before it is; false where it has been taken back
    /// meanwhile, or its owner sends it after all.
    fn begin_get(&mut self, reading: &mut ActiveGet) -> bool {
        let ActiveGet {
            peer,
            local,
            number,
            exposed: lent,
            has_begun: begun,
            is_split: shares,
            answer_deadline: asked_until,
        } = reading;
        if *begun {
            return true;
        }
        let Some(receive) = self.links[*peer].received_rts.get(number).and_then(|it| it.receive)
        else {
            return false;
        };
        *begun = self.region().exposure_table(*local).begin_read(lent.slot, *number);
        if *begun {
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
        *begun
    }

    /// Reads on in the buffer of one sender.
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
        let Some(offer) = self.links[peer].received_rts.get_mut(&number) else { return };
        let Some(receiving) = offer.receive.and_then(|it| self.receives.get_mut(&it)) else {
            return;
        };
        let (got, end) = (offer.received, offer.get_end());
        let into = receiving.buffer_range(got, (end - got).min(GET_CHUNK_BYTES));
        // The process may have become another one meanwhile, with memory of its own at that
        // address: its mark is read behind the message, by the same call.
        let (place, mark) = self.domain.region().exposure_table(local).cookie().unwrap_or_default();
        let mut found = Nonce::default();
        let cookie_buffer = Dst::from(&mut found.0[..]);
        let more =
            match cma::read_pieces(pid, [(address + got as u64, into), (place, cookie_buffer)]) {
                Ok(0) => return self.fall_back_to_fragments(&reading, "it gave nothing"),
                Ok(more) => more,
                Err(cause) => return self.fall_back_to_fragments(&reading, &cause.to_string()),
            };
        offer.received += more.min(into.len());
        if offer.received < end {
            self.active_gets.push_back(reading);
            return;
        }
        if more < into.len() + found.0.len() || cookie_words(&found) != mark {
            self.links[peer].cma_access = CmaAccess::Denied;
            return self.fall_back_to_fragments(&reading, "it has changed");
        }
        // Whoever leaves while its buffer is being read says so before the buffer is used for
        // anything else.
        fence(Ordering::SeqCst);
        match self.domain.failure() {
            Some(error) => self.fail(error),
            None if self.has_read_front(&reading) => self.finish_front(reading),
            None => self.finish_rendezvous(peer, number),
        }
    }

    /// The sender's memory gave an error: the message comes in pieces.
    fn fall_back_to_fragments(&mut self, reading: &ActiveGet, reason: &str) {
        let ActiveGet { peer, local, number, exposed: lent, .. } = *reading;
        if let Some(error) = self.domain.failure() {
            return self.fail(error);
        }
        let name = self.peer_name(peer);
        crate::log!(LogLevel::Debug, "a message of {name} cannot be read in its memory: {reason}");
        if !self.region().exposure_table(local).cancel_read(lent.slot, number) {
            let what =
                format!("{name}: the memory of a message cannot be read to its end: {reason}");
            return self.fail(Error::new(ErrorKind::System, what).with_culprit(peer));
        }
        if let Some(offer) = self.links[peer].received_rts.get_mut(&number) {
            (offer.exposed, offer.back_half) = (None, BackHalf::GetAll);
        }
        self.send_cts(peer, number);
    }

    /// Whether a peer's memory can be read: tried once.
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
                    "the memory of {name} is not read: messages are copied"
                );
            }
        }
        self.links[peer].cma_access == CmaAccess::Allowed
    }

    /// Whether the process that has the peer's id is the peer.
    fn has_valid_cookie(&self, peer: Rank, local: Rank) -> bool {
        let Some((address, mark)) = self.region().exposure_table(local).cookie() else {
            return false;
        };
        let found = transport::cma::read_process_cookie(self.links[peer].name.pid, address);
        found.is_some_and(|found| cookie_words(&found) == mark)
    }
}
