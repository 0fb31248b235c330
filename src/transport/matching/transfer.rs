//! Taking messages that were offered: read where they are, in the memory of a process of the same
//! host, or asked for and sent in pieces where that cannot be.
//!
//! What is read must still be the sender's message when this rank says that it has it: see
//! [`super::desk`]. The process is recognised before its memory is read for the first time, and
//! again after each message, by a random mark at an address that its desk tells; one that has left
//! or died is not read any more.

use super::frame::{Frame, Lent};
use super::link::{Attach, Back, Item};
use super::outstanding::{ReceiveStage, Receiving};
use super::state::State;
use super::wire::Wire;
use crate::base::buffer::Dst;
use crate::base::error::{Error, ErrorKind};
use crate::base::ids::{Nonce, Rank};
use crate::base::log::Level;
use crate::sys::attach;
use crate::transport::{self, Delivery};
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// How much is read at once; between two such reads others have their turn, and a failure is
/// noticed.
const READ_BYTES: usize = 1 << 20;

/// How long a sender that waits has to answer before its buffer is read. It takes a tenth of that
/// where both run.
pub(super) const PATIENCE: Duration = Duration::from_micros(5);

/// The buffer of another rank that is being read, or soon is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) peer: Rank,
    /// The peer in the domain.
    pub(super) local: Rank,
    pub(super) number: u64,
    pub(super) lent: Lent,
    /// Its owner cannot take it back any more.
    begun: bool,
    /// Its owner is asked to write the back.
    shares: bool,
    /// Its owner has been asked for it, and has until then to answer.
    asked_until: Option<Instant>,
}

impl Reading {
    pub(super) fn is_not_of(&self, peer: Rank) -> bool {
        self.peer != peer
    }

    pub(super) fn is_of(&self, peer: Rank, number: u64) -> bool {
        self.peer == peer && self.number == number
    }
}

/// A nonce as two words.
pub(super) fn words(nonce: &Nonce) -> [u64; 2] {
    let word = |from: usize| {
        let bytes = &nonce.0[from..from + 8];
        bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
    };
    [word(0), word(8)]
}

impl State {
    /// A receive takes an offer; false where it looks for another message, since that one cannot be
    /// had.
    pub(super) fn take_offer(&mut self, from: Rank, number: u64, receive: u64) -> bool {
        // Whoever has left cannot be asked for it any more.
        if self.links[from].out_closed.is_some() {
            return false;
        }
        let Some(offer) = self.links[from].offers.get(&number) else { return false };
        let (lent, awaited) = (offer.lent.filter(|_| offer.attempt == 0), offer.awaited);
        let lent = lent.filter(|_| self.can_read(from));
        self.set_taken_by(from, number, receive);
        self.set_stage(receive, ReceiveStage::Asked { from, number });
        if let (Some(lent), &Wire::Rings { peer: local, .. }) = (lent, &self.links[from].wire) {
            let is_asked = awaited && self.does_nothing_else(receive) && self.is_looking(local);
            let shares = is_asked && self.may_share(receive);
            let asked_until = (is_asked && !shares).then(|| Instant::now() + self.patience);
            let reading =
                Reading { peer: from, local, number, lent, begun: false, shares, asked_until };
            if asked_until.is_none() {
                self.readings.push_back(reading);
                return true;
            }
            self.asked.push(reading);
        }
        self.ask(from, number);
        true
    }

    /// Whether somebody waits for the receive that a buffer is read for.
    pub(super) fn is_awaited(&self, reading: &Reading) -> bool {
        self.receive_of(reading).is_some_and(|it| it.done.is_awaited())
    }

    fn receive_of(&self, reading: &Reading) -> Option<&Receiving> {
        let offer = self.links[reading.peer].offers.get(&reading.number)?;
        self.receives.get(&offer.receive?)
    }

    /// Whether this rank waits for the receive, and sends nothing meanwhile: two that both send
    /// read both at the same time.
    fn does_nothing_else(&self, receive: u64) -> bool {
        let is_awaited = |it: &Receiving| it.done.is_awaited();
        self.sends.is_empty() && self.receives.get(&receive).is_some_and(is_awaited)
    }

    /// Whether a rank of the domain seems to be looking for messages: nothing tells one that sleeps
    /// or lets its service thread look.
    fn is_looking(&self, local: Rank) -> bool {
        fence(Ordering::SeqCst);
        !self.region().message_bell(local).is_attended()
    }

    /// Sees which of the buffers that were asked for have been answered, and which are to be read
    /// instead.
    pub(super) fn look_for_answers(&mut self) {
        if self.asked.is_empty() {
            return;
        }
        let now = Instant::now();
        for reading in std::mem::take(&mut self.asked) {
            let stage = self.receive_of(&reading).map(|it| it.stage);
            if !matches!(stage, Some(ReceiveStage::Asked { .. })) {
                continue;
            }
            if reading.asked_until.is_none_or(|until| now >= until) {
                self.readings.push_back(reading);
            } else {
                self.asked.push(reading);
            }
        }
    }

    fn set_taken_by(&mut self, from: Rank, number: u64, receive: u64) {
        if let Some(offer) = self.links[from].offers.get_mut(&number) {
            offer.receive = Some(receive);
        }
    }

    fn set_stage(&mut self, receive: u64, stage: ReceiveStage) {
        if let Some(receiving) = self.receives.get_mut(&receive) {
            receiving.stage = stage;
        }
    }

    /// Asks for the pieces of a message.
    fn ask(&mut self, from: Rank, number: u64) {
        let Some(offer) = self.links[from].offers.get_mut(&number) else { return };
        offer.attempt += 1;
        offer.got = 0;
        let attempt = offer.attempt;
        self.say(from, Frame::Pull { number, attempt });
    }

    /// An offer has come whole.
    pub(super) fn has_taken(&mut self, from: Rank, number: u64) {
        let Some(offer) = self.links[from].offers.remove(&number) else { return };
        let delivery = Delivery { peer: from, tag: offer.tag, bytes: offer.len };
        let Some(receive) = offer.receive else { return };
        // It ends once the sender is sure to hear of it: whoever has it may leave.
        self.set_stage(receive, ReceiveStage::Delivered(delivery));
        if self.links[from].is_open() {
            self.queue(from, Item::Taken { number, receive });
        } else {
            self.end_delivered(receive);
        }
    }

    /// Whether a message is being read where it is.
    pub(super) fn is_reading(&self, from: Rank, number: u64) -> bool {
        self.readings.iter().chain(&self.half_read).any(|reading| reading.is_of(from, number))
    }

    /// A message is not to be read where it is; false where that has begun already.
    pub(super) fn stop_reading(&mut self, from: Rank, number: u64) -> bool {
        let is_its = |reading: &Reading| reading.is_of(from, number);
        let mut all = self.readings.iter().chain(&self.half_read);
        if all.any(|reading| is_its(reading) && reading.begun) {
            return false;
        }
        self.readings.retain(|reading| !is_its(reading));
        self.asked.retain(|reading| !is_its(reading));
        true
    }

    /// Says that a buffer is being read, before it is; false where it has been taken back
    /// meanwhile, or its owner sends it after all.
    fn begin_to_read(&mut self, reading: &mut Reading) -> bool {
        let Reading { peer, local, number, lent, begun, shares, asked_until } = reading;
        if *begun {
            return true;
        }
        let Some(receive) = self.links[*peer].offers.get(number).and_then(|it| it.receive) else {
            return false;
        };
        *begun = self.region().desk(*local).begin(lent.place, *number);
        if *begun {
            self.set_stage(receive, ReceiveStage::Begun { from: *peer, number: *number });
            if *shares {
                self.ask_to_share(*peer, *number, receive);
            }
        } else if asked_until.is_none() {
            self.links[*peer].offers.remove(number);
            self.place(receive);
        }
        *begun
    }

    /// Reads on in the buffer of one sender.
    pub(super) fn read_some(&mut self) {
        let Some(mut reading) = self.readings.pop_front() else { return };
        if !self.begin_to_read(&mut reading) {
            return;
        }
        if self.has_front(&reading) {
            return self.end_front(reading);
        }
        let Reading { peer, local, number, lent: Lent { address, .. }, .. } = reading;
        let pid = self.links[peer].name.pid;
        let Some(offer) = self.links[peer].offers.get_mut(&number) else { return };
        let Some(receiving) = offer.receive.and_then(|it| self.receives.get_mut(&it)) else {
            return;
        };
        let (got, end) = (offer.got, offer.read_end());
        let into = receiving.room(got, (end - got).min(READ_BYTES));
        // The process may have become another one meanwhile, with memory of its own at that
        // address: its mark is read behind the message, by the same call.
        let (place, mark) = self.domain.region().desk(local).mark().unwrap_or_default();
        let mut found = Nonce::default();
        let behind = Dst::from(&mut found.0[..]);
        let more = match attach::read_each(pid, [(address + got as u64, into), (place, behind)]) {
            Ok(0) => return self.cannot_read(&reading, "it gave nothing"),
            Ok(more) => more,
            Err(cause) => return self.cannot_read(&reading, &cause.to_string()),
        };
        offer.got += more.min(into.len());
        if offer.got < end {
            self.readings.push_back(reading);
            return;
        }
        if more < into.len() + found.0.len() || words(&found) != mark {
            self.links[peer].attach = Attach::Refused;
            return self.cannot_read(&reading, "it has changed");
        }
        // Whoever leaves while its buffer is being read says so before the buffer is used for
        // anything else.
        fence(Ordering::SeqCst);
        match self.domain.failure() {
            Some(error) => self.fail(error),
            None if self.has_front(&reading) => self.end_front(reading),
            None => self.has_taken(peer, number),
        }
    }

    /// The sender's memory gave an error: the message comes in pieces.
    fn cannot_read(&mut self, reading: &Reading, why: &str) {
        let Reading { peer, local, number, lent, .. } = *reading;
        if let Some(error) = self.domain.failure() {
            return self.fail(error);
        }
        let name = self.name(peer);
        crate::log!(Level::Debug, "a message of {name} cannot be read in its memory: {why}");
        if !self.region().desk(local).give_back(lent.place, number) {
            let what = format!("{name}: the memory of a message cannot be read to its end: {why}");
            return self.fail(Error::new(ErrorKind::System, what).with_culprit(peer));
        }
        if let Some(offer) = self.links[peer].offers.get_mut(&number) {
            (offer.lent, offer.back) = (None, Back::Read);
        }
        self.ask(peer, number);
    }

    /// Whether a peer's memory can be read: tried once.
    pub(super) fn can_read(&mut self, peer: Rank) -> bool {
        let Wire::Rings { peer: local, .. } = self.links[peer].wire else { return false };
        if self.domain.has_left(local) {
            return false;
        }
        if self.links[peer].attach == Attach::Untried {
            let works = self.recognises(peer, local);
            self.links[peer].attach = if works { Attach::Works } else { Attach::Refused };
            if !works {
                let name = self.name(peer);
                crate::log!(Level::Info, "the memory of {name} is not read: messages are copied");
            }
        }
        self.links[peer].attach == Attach::Works
    }

    /// Whether the process that has the peer's id is the peer.
    fn recognises(&self, peer: Rank, local: Rank) -> bool {
        let Some((address, mark)) = self.region().desk(local).mark() else { return false };
        let found = transport::attach::mark_at(self.links[peer].name.pid, address);
        found.is_some_and(|found| words(&found) == mark)
    }
}
