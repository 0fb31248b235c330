//! How a peer goes: everything ends that only it could end, and what it sent before that stays.
//!
//! The two directions of a stream end apart: one to a peer that has left gives an error at once,
//! while what the peer sent is still on its way. And where a group fails, its ranks may be seen to
//! leave before the reason comes: a link is kept for a moment, it *parts*, so that what ends is
//! told the reason.

use super::outstanding::ReceiveStage;
use super::state::{State, Timed};
use super::unexpected::{Body, Message};
use crate::base::error::{Error, ErrorKind};
use crate::base::ids::Rank;
use crate::base::log::Level;
use crate::transport::pulse::PARTING;
use std::time::Instant;

impl State {
    /// What came through a stream, or did not, was an error.
    pub(super) fn broken(&mut self, peer: Rank, error: Error) {
        match error.kind() {
            ErrorKind::PeerFailed => {
                self.links[peer].in_closed = Some(error);
                self.part(peer);
            }
            ErrorKind::Internal => {
                let what = format!("{} does not keep to the protocol of messages", self.name(peer));
                self.fail(error.context(what).with_culprit(peer));
            }
            _ => self.fail(error.context(format!("messages of {}", self.name(peer)))),
        }
    }

    /// Nothing could be put into a stream. A peer that is there and cannot be reached fails the
    /// group: it waits for what does not come, and nobody else would tell it.
    pub(super) fn broken_out(&mut self, peer: Rank, error: Error) {
        if error.kind() != ErrorKind::PeerFailed {
            return self.broken(peer, error);
        }
        let link = &mut self.links[peer];
        link.clear_out();
        link.out_closed = Some(error);
        self.end_all_delivered(peer);
        // What it sent is taken to its end.
        self.ready.push(peer);
        self.part(peer);
    }

    /// A peer seems to have left: the reason may be on its way.
    fn part(&mut self, peer: Rank) {
        if let Some(error) = self.domain.failure() {
            return self.fail(error);
        }
        let link = &mut self.links[peer];
        if link.parts_at.is_none() {
            let at = Instant::now() + PARTING;
            link.parts_at = Some(at);
            self.timers.insert((at, Timed::Parting(peer)));
        }
    }

    /// No reason has come.
    pub(super) fn has_parted(&mut self, peer: Rank) {
        let link = &mut self.links[peer];
        link.parts_at = None;
        match (link.in_closed.clone(), link.out_closed.clone()) {
            (Some(error), _) => self.close(peer, &error),
            (None, Some(error)) => self.end_sends(peer, &error),
            (None, None) => {}
        }
    }

    /// Nothing goes to a peer or comes from it any more.
    pub(super) fn close(&mut self, peer: Rank, error: &Error) {
        let link = &mut self.links[peer];
        if link.closed.is_some() {
            return;
        }
        link.closed = Some(error.clone());
        if let Some(doubt) = self.outlast_writers() {
            crate::log!(Level::Warn, "{}", doubt.message());
        }
        let link = &mut self.links[peer];
        link.clear();
        if let Some(at) = link.parts_at.take() {
            self.timers.remove(&(at, Timed::Parting(peer)));
        }
        self.readings.retain(|reading| reading.is_not_of(peer));
        self.asked.retain(|reading| reading.is_not_of(peer));
        self.half_read.retain(|reading| reading.is_not_of(peer));
        self.writings.retain(|writing| writing.is_not_of(peer));
        let offered: Vec<u64> = self
            .unexpected
            .of_sender(peer)
            .filter(|(_, message)| matches!(message.body, Body::Offered(_)))
            .map(|(arrival, _)| arrival)
            .collect();
        offered.into_iter().for_each(|arrival| drop(self.unexpected.remove(arrival)));
        let is_offered = |it: &Message| it.from == peer && matches!(it.body, Body::Offered(_));
        self.matched.retain(|_, message| !is_offered(message));
        self.note_news();
        self.end_sends(peer, error);
        let waiting = self.receives.iter().filter(|(_, receiving)| match receiving.stage {
            ReceiveStage::Posted => receiving.message.from == Some(peer),
            ReceiveStage::Filling { from, .. } | ReceiveStage::Begun { from, .. } => from == peer,
            ReceiveStage::Asked { .. } => false,
            ReceiveStage::Delivered(delivery) => delivery.peer == peer,
        });
        let waiting: Vec<u64> = waiting.map(|(&receive, _)| receive).collect();
        for receive in waiting {
            self.unpost(receive);
            self.end_delivered(receive);
            self.end_receive(receive, Err(error.clone()));
        }
        self.ask_no_more(peer, error);
    }

    /// Ends the receives that have their message and cannot tell its sender any more.
    fn end_all_delivered(&mut self, peer: Rank) {
        let is_its = |stage| matches!(stage, ReceiveStage::Delivered(it) if it.peer == peer);
        let receives = self.receives.iter().filter(|(_, receiving)| is_its(receiving.stage));
        let receives: Vec<u64> = receives.map(|(&receive, _)| receive).collect();
        receives.into_iter().for_each(|receive| self.end_delivered(receive));
    }

    /// Ends what goes to a peer.
    fn end_sends(&mut self, peer: Rank, error: &Error) {
        let sends = self.sends.iter().filter(|(_, sending)| sending.message.to == peer);
        let sends: Vec<u64> = sends.map(|(&number, _)| number).collect();
        sends.into_iter().for_each(|number| self.end_send(number, Err(error.clone())));
    }

    /// What was asked of a peer does not come: a receive from any rank waits for the next message.
    fn ask_no_more(&mut self, peer: Rank, error: &Error) {
        let asked =
            self.receives.iter().filter_map(|(&receive, receiving)| match receiving.stage {
                ReceiveStage::Asked { from, number } if from == peer => Some((receive, number)),
                _ => None,
            });
        let mut asked: Vec<(u64, u64)> = asked.collect();
        asked.sort_unstable();
        for (receive, number) in asked {
            if let Some(offer) = self.links[peer].offers.get_mut(&number) {
                offer.receive = None;
            }
            match self.receives.get(&receive).and_then(|receiving| receiving.message.from) {
                Some(_) => self.end_receive(receive, Err(error.clone())),
                None => self.place(receive),
            }
        }
    }
}
