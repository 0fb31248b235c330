//! Progress, and how messages end that do not arrive: time, the failure of the group, leaving it.

use super::frame::Frame;
use super::limits::Limits;
use super::link::{Inflow, Sink};
use super::outstanding::{ReceiveStage, SendStage, Sending};
use super::state::{State, Timed};
use super::transfer::Reading;
use super::unexpected::{Body, Message};
use super::wire::Wire;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Fault};
use crate::base::ids::Rank;
use crate::transport::{Incoming, Outgoing};
use std::time::Instant;

impl State {
    /// Goes on with everything, and then ends what has run out of time: an answer that is there
    /// already counts.
    pub(super) fn go_on(&mut self) {
        self.progress();
        self.expire();
        self.put_all();
    }

    /// Goes on with everything, without waiting for anything.
    pub(super) fn progress(&mut self) {
        if self.failed.is_some() {
            return;
        }
        if let Some(error) = self.domain.failure() {
            return self.fail(error);
        }
        self.has_rest = false;
        for index in 0..self.neighbours.len() {
            let peer = self.neighbours[index];
            self.look_at(peer);
        }
        self.look_at_streams();
        self.look_for_answers();
        self.read_some();
        self.write_some();
        self.put_all();
    }

    /// Whether something could go on at once.
    pub(super) fn has_more(&self) -> bool {
        self.failed.is_none()
            && (self.has_rest
                || !self.readings.is_empty()
                || !self.asked.is_empty()
                || !self.writings.is_empty()
                || !self.ready.is_empty())
    }

    /// The same of what nobody goes on with at once who has posted it and waits for it.
    pub(super) fn leaves_more(&self) -> bool {
        let is_left_alone = |reading: &Reading| !self.is_awaited(reading);
        self.failed.is_none()
            && (self.has_rest
                || self.readings.iter().any(is_left_alone)
                || self.writings.iter().any(|it| !self.is_written_for_somebody(it))
                || !self.ready.is_empty())
    }

    /// Looks at the ring of a rank of the same node.
    fn look_at(&mut self, peer: Rank) {
        let Wire::Rings { peer: local, .. } = self.links[peer].wire else { return };
        if self.links[peer].closed.is_some() {
            return;
        }
        // Before the ring: what it wrote before it left is there then.
        let has_left = self.domain.has_left(local);
        let has_more = self.drain(peer);
        self.has_rest |= has_more;
        if has_left && !has_more && self.failed.is_none() {
            // Those who leave a group that has failed leave after that.
            if let Some(error) = self.domain.failure() {
                return self.fail(error);
            }
            let message = format!("{} has left the group", self.name(peer));
            let error = Error::new(ErrorKind::PeerFailed, message).with_culprit(peer);
            self.close(peer, &error.with_fault(Fault::Left));
        }
    }

    /// Looks at those streams between nodes that may go on.
    fn look_at_streams(&mut self) {
        let Some(endpoint) = &self.endpoint else { return };
        let mut ready = std::mem::take(&mut self.ready);
        endpoint.ready(&mut ready);
        for &peer in &ready {
            if !matches!(self.links.get(peer).map(|link| &link.wire), Some(Wire::Streams { .. })) {
                continue;
            }
            self.links[peer].is_full = false;
            // First what has come: to a peer that has left nothing can be sent, and what it says
            // may end a send.
            if self.drain(peer) {
                self.ready.push(peer);
            }
            self.put(peer);
        }
    }

    /// Fails the group, and ends everything with the reason that counts.
    pub(super) fn fail(&mut self, error: Error) {
        self.spread(&error);
        let reason = self.domain.failure().unwrap_or(error);
        self.end_all(&reason);
    }

    /// Fails the group on all nodes; the first reason stays.
    fn spread(&self, error: &Error) {
        self.domain.fail(error);
        self.endpoint.iter().for_each(|endpoint| endpoint.fail(error));
    }

    /// Ends everything. The caller has seen to it that nobody reads this rank's buffers for good
    /// any more.
    pub(super) fn end_all(&mut self, reason: &Error) {
        self.failed = Some(reason.clone());
        self.note_news();
        let doubt = self.outlast_writers();
        self.readings.clear();
        self.asked.clear();
        self.half_read.clear();
        self.writings.clear();
        self.links.iter_mut().for_each(super::link::Link::clear);
        self.pending.clear();
        self.ready.clear();
        let sends: Vec<u64> = self.sends.keys().copied().collect();
        sends.into_iter().for_each(|number| self.end_send(number, Err(reason.clone())));
        let receives: Vec<u64> = self.receives.keys().copied().collect();
        for receive in receives {
            self.end_delivered(receive);
            let error = match &doubt {
                Some(doubt) => reason.clone().context(doubt.message()),
                None => reason.clone(),
            };
            self.end_receive(receive, Err(error));
        }
        self.timers.clear();
    }

    /// Leaves in order: what was lent is taken back; where it is being read, the group fails.
    pub(super) fn leave(&mut self) {
        self.progress();
        if self.failed.is_some() {
            return;
        }
        let is_read = |(&number, sending): (&u64, &Sending)| {
            sending.place.is_some_and(|place| !self.desk().take_back(place, number))
        };
        let text = "the group was left before the message was through";
        let reason = Error::new(ErrorKind::Aborted, text);
        if self.sends.iter().any(is_read) {
            let what = format!("{} left while its message was being read", self.name(self.rank));
            let error = left_early(what, self.rank);
            self.spread(&error);
        } else if self.is_written_to() {
            let what = format!("{} left while a message was written to it", self.name(self.rank));
            let error = left_early(what, self.rank);
            self.spread(&error);
        }
        self.end_all(&reason);
    }

    /// Lets go of the streams, whoever still holds this.
    pub(super) fn detach(&mut self) {
        self.endpoint = None;
        self.links.iter_mut().for_each(|link| link.wire = Wire::Own);
    }

    /// Why nothing can come any more from a rank. From any, something always can: this rank itself
    /// may send.
    pub(super) fn nobody_left(&self, from: Option<Rank>) -> Option<Error> {
        self.links[from?].closed.clone()
    }

    /// Ends a receive that has its message, if it does.
    pub(super) fn end_delivered(&mut self, receive: u64) {
        if let Some(receiving) = self.receives.get(&receive)
            && let ReceiveStage::Delivered(delivery) = receiving.stage
        {
            self.end_receive(receive, Ok(delivery));
        }
    }

    pub(super) fn unpost(&mut self, receive: u64) {
        if let Some(receiving) = self.receives.get(&receive) {
            let Incoming { from, tag, .. } = receiving.message;
            self.posted.remove((from, tag), receive);
        }
    }

    /// When the next message runs out of time.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.timers.first().map(|&(due, _)| due)
    }

    /// Ends what has run out of time.
    pub(super) fn expire(&mut self) {
        while let Some(&(due, timed)) = self.timers.first() {
            if self.failed.is_some() || due > Instant::now() {
                return;
            }
            self.timers.pop_first();
            match timed {
                Timed::Send(number) => self.expire_send(number),
                Timed::Receive(receive) => self.expire_receive(receive),
                Timed::Parting(peer) => self.has_parted(peer),
            }
        }
    }

    pub(super) fn expire_send(&mut self, number: u64) {
        let Some(sending) = self.sends.get(&number) else { return };
        let (message, stage, place) = (sending.message, sending.stage, sending.place);
        let error = self.late_send(&message);
        let to = message.to;
        if self.links[to].out_closed.is_some() {
            // No more of it goes anywhere.
            return self.end_send(number, Err(error));
        }
        let is_unsaid = self.links[to].unqueue(number);
        let is_its_own = match stage {
            SendStage::Whole => {
                if is_unsaid {
                    self.links[to].used -= Limits::cost(message.bytes.len());
                }
                is_unsaid
            }
            SendStage::Own { arrival } => {
                self.forget_message(arrival);
                true
            }
            SendStage::Offered => {
                is_unsaid || place.is_none_or(|place| self.desk().take_back(place, number))
            }
            // Pieces that are all in the stream are taken whole, or were asked for in vain.
            SendStage::Pulled { begun, sent, .. } => {
                (!begun || sent == message.bytes.len()) && !self.links[to].is_sending(number)
            }
        };
        if !is_its_own {
            return self.fail(error.context("in the middle of a message"));
        }
        self.links[to].bulk.retain(|&other| other != number);
        let was_offered = matches!(stage, SendStage::Offered) && !is_unsaid
            || matches!(stage, SendStage::Pulled { .. });
        if was_offered {
            self.say(to, Frame::Withdraw { number });
            self.put(to);
        }
        self.end_send(number, Err(error));
    }

    pub(super) fn expire_receive(&mut self, receive: u64) {
        let Some(receiving) = self.receives.get(&receive) else { return };
        let stage = receiving.stage;
        let error = self.late_receive(&receiving.message);
        match stage {
            ReceiveStage::Posted => {
                self.unpost(receive);
                self.end_receive(receive, Err(error));
            }
            ReceiveStage::Delivered(_) => self.end_delivered(receive),
            ReceiveStage::Asked { from, number } => self.give_back(from, number, receive, error),
            ReceiveStage::Filling { from, .. } | ReceiveStage::Begun { from, .. }
                if self.links[from].in_closed.is_some() =>
            {
                // Its sender has left in the middle of it.
                let gone = self.links[from].in_closed.clone().unwrap_or(error);
                self.end_receive(receive, Err(gone));
            }
            ReceiveStage::Begun { from, number } if self.stop_reading(from, number) => {
                self.give_back(from, number, receive, error);
            }
            ReceiveStage::Filling { .. } | ReceiveStage::Begun { .. } => {
                self.fail(error.context("in the middle of a message"));
            }
        }
    }

    /// An offer that was asked for in vain waits for the next receive. Pieces that have come, or
    /// still do, are worth nothing: the next receive asks for it anew.
    fn give_back(&mut self, from: Rank, number: u64, receive: u64, error: Error) {
        self.end_receive(receive, Err(error));
        self.stop_reading(from, number);
        if let Inflow::Body { sink, .. } = &mut self.links[from].inflow
            && matches!(sink, Sink::Piece(of) if *of == number)
        {
            *sink = Sink::Nowhere;
        }
        let Some(offer) = self.links[from].offers.get_mut(&number) else { return };
        (offer.receive, offer.got) = (None, 0);
        let (arrival, body) = (offer.arrival, Body::Offered(number));
        let message = Message { from, tag: offer.tag, dtype: offer.dtype, len: offer.len, body };
        self.arrived(arrival, message);
    }

    fn late_send(&self, message: &Outgoing) -> Error {
        let Outgoing { to, tag, bytes, deadline, .. } = message;
        let name = self.name(*to);
        let what = format!("a message of {} bytes with tag {tag} to {name}", bytes.len());
        let hint = "was not received";
        Error::new(ErrorKind::Timeout, format!("{what} {hint} {}", spent(deadline)))
            .with_culprit(*to)
    }

    fn late_receive(&self, message: &Incoming) -> Error {
        let Incoming { from, tag, deadline, .. } = message;
        let who = from.map_or("any rank".to_owned(), |from| self.name(from).to_string());
        let tag = tag.map_or("any tag".to_owned(), |tag| format!("tag {tag}"));
        let mut others = (0..self.links.len()).filter(|&peer| peer != self.rank);
        let hint = match from {
            None if others.all(|peer| self.links[peer].closed.is_some()) => {
                "; all other ranks have left the group"
            }
            _ => "",
        };
        let what = format!("no message of {who} with {tag} came {}{hint}", spent(deadline));
        let error = Error::new(ErrorKind::Timeout, what);
        match from {
            Some(from) => error.with_culprit(*from),
            None => error,
        }
    }
}

/// A rank left in the middle of a transfer.
fn left_early(what: String, rank: Rank) -> Error {
    Error::new(ErrorKind::PeerFailed, what).with_culprit(rank).with_fault(Fault::Left)
}

/// How long it took, for messages.
fn spent(deadline: &Deadline) -> String {
    let (elapsed, allowed) = (deadline.elapsed().as_millis(), deadline.allowed().as_millis());
    format!("in {elapsed} ms (allowed: {allowed} ms)")
}
