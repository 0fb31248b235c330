//! The state of an engine, and the matching of messages and receives.
//!
//! The state consists of independent parts: the fields of [`MatchingState`], each with a file of
//! its own. No part refers to another part; a method that needs another part gets it as an
//! argument. The methods of [`MatchingState`] connect the parts. The files [`super::incoming`],
//! [`super::rendezvous`], [`super::termination`] and [`super::peer_departure`] have more of these
//! methods.
//!
//! All code here runs under the engine's lock. The engine calls the completions of messages after
//! it has released the lock.

use super::exposed_buffers::OwnExposedBuffers;
use super::gets::Gets;
use super::link::QueuedItem;
use super::outstanding::{ReceiveStage, SendStage, allocate_zeroed};
use super::peers::PeerTable;
use super::posted::MatchKey;
use super::puts::Puts;
use super::queues::MatchQueues;
use super::requests::Requests;
use super::rts_table::RtsTable;
use super::unexpected::{MessageBody, UnexpectedMessage};
use crate::base::buffer::Dst;
use crate::base::error::{Error, Result};
use crate::base::ids::{Nonce, Rank};
use crate::transport::{
    Completion, Delivery, Endpoint, ReceiveBuffer, ReceiveRequest, RefusedMessages, SendRequest,
    SharedDomain,
};
use std::sync::Arc;

/// The state that the engine's lock protects.
#[derive(Debug)]
pub(super) struct MatchingState {
    pub(super) domain: Arc<dyn SharedDomain>,
    pub(super) endpoint: Option<Arc<dyn Endpoint>>,
    /// The reason why the group has failed; `None` while the group works.
    pub(super) failure: Option<Error>,
    /// Whether the last poll stopped reading a ring at the limit of bytes per poll, so that the
    /// ring may have more bytes.
    pub(super) has_unread_data: bool,
    pub(super) peers: PeerTable,
    pub(super) requests: Requests,
    pub(super) queues: MatchQueues,
    pub(super) rts: RtsTable,
    pub(super) exposed: OwnExposedBuffers,
    pub(super) gets: Gets,
    pub(super) puts: Puts,
    pub(super) refused: RefusedMessages,
}

impl MatchingState {
    /// Creates the state of a rank without any messages.
    pub(super) fn new(
        domain: Arc<dyn SharedDomain>,
        endpoint: Option<Arc<dyn Endpoint>>,
        cookie: Nonce,
    ) -> Result<Self> {
        let peers = PeerTable::new(Arc::clone(&domain), endpoint.as_ref())?;
        Ok(Self {
            endpoint,
            failure: None,
            has_unread_data: false,
            requests: Requests::new(),
            queues: MatchQueues::default(),
            rts: RtsTable::new(peers.len()),
            peers,
            exposed: OwnExposedBuffers::new(Arc::clone(&domain), cookie),
            gets: Gets::new(Arc::clone(&domain)),
            puts: Puts::new(Arc::clone(&domain)),
            refused: RefusedMessages::default(),
            domain,
        })
    }

    /// Rejects a request that cannot be posted.
    pub(super) fn check_postable(&self, peer: Option<Rank>) -> Result<()> {
        self.check_peer(peer)?;
        self.requests.check_capacity(1)
    }

    /// Rejects a rank that does not exist, and any request after the group has failed.
    pub(super) fn check_peer(&self, peer: Option<Rank>) -> Result<()> {
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        let size = self.peers.len();
        if let Some(peer) = peer.filter(|&peer| peer >= size) {
            let message = format!("rank {peer} does not exist: the group has {size} ranks");
            return Err(Error::invalid(message));
        }
        Ok(())
    }

    /// See [`crate::transport::PointToPoint::send`].
    pub(super) fn send(
        &mut self,
        message: SendRequest,
        completion: Arc<dyn Completion>,
    ) -> Result<()> {
        self.check_postable(Some(message.to))?;
        self.take_refusal(Some(message.tag))?;
        let link = self.peers.link(message.to);
        if let Some(error) = link.send_refusal() {
            let error = error.clone();
            self.requests.complete_unposted(completion, Err(error));
            return Ok(());
        }
        // The peer seems to have left. The send waits for the end of the grace period
        // ([`super::peer_departure`]), in which the reason for the departure may arrive.
        if !link.is_open() {
            self.requests.add_send(message, completion, SendStage::RtsSent);
            return Ok(());
        }
        let is_eager =
            !message.is_synchronous && link.has_credit(message.bytes.len(), self.peers.limits());
        match (message.to == self.peers.rank(), is_eager) {
            (true, _) => self.send_to_self(message, completion, is_eager),
            (false, true) => self.send_eager(message, completion),
            (false, false) => self.send_rts(message, completion),
        }
        Ok(())
    }

    fn send_to_self(
        &mut self,
        message: SendRequest,
        completion: Arc<dyn Completion>,
        is_eager: bool,
    ) {
        let SendRequest { to: from, tag, dtype, bytes, .. } = message;
        let arrival = self.requests.next_number();
        let held = if is_eager { allocate_zeroed(bytes.len()).ok() } else { None };
        let body = match held {
            Some(mut held) => {
                Dst::from(held.as_mut_slice()).copy_from(bytes);
                self.peers.use_credit(from, bytes.len());
                self.peers.hold_credit(from, bytes.len());
                let delivery = Delivery { peer: from, tag, bytes: bytes.len() };
                self.requests.complete_unposted(completion, Ok(delivery));
                MessageBody::Buffered(held)
            }
            None => {
                let stage = SendStage::ToSelf { arrival };
                MessageBody::OwnSend(self.requests.add_send(message, completion, stage))
            }
        };
        let message = UnexpectedMessage { from, tag, dtype, len: bytes.len(), body };
        self.on_message_arrived(arrival, message);
    }

    /// Sends an eager message. If the stream has no room for the whole message, later polls write
    /// the rest.
    fn send_eager(&mut self, message: SendRequest, completion: Arc<dyn Completion>) {
        let SendRequest { to, tag, bytes, .. } = message;
        self.peers.use_credit(to, bytes.len());
        let outcome = self.peers.write_eager(&message);
        if let Ok(Some(write)) = &outcome
            && write.is_complete(bytes.len())
        {
            let delivery = Delivery { peer: to, tag, bytes: bytes.len() };
            return self.requests.complete_unposted(completion, Ok(delivery));
        }
        let number = self.requests.add_send(message, completion, SendStage::Eager);
        match outcome {
            Ok(Some(write)) => self.peers.resume_eager(to, number, write),
            Ok(None) => self.peers.queue_item(to, QueuedItem::Eager(number)),
            Err(error) => return self.on_send_error(to, error),
        }
        self.flush_peer(to);
    }

    /// Announces a message by an RTS. If the receiver is on this node, exposes the message's
    /// buffer, so that the receiver may read it by CMA. Otherwise the receiver requests fragments.
    fn send_rts(&mut self, message: SendRequest, completion: Arc<dyn Completion>) {
        let (to, is_empty) = (message.to, message.bytes.is_empty());
        let number = self.requests.add_send(message, completion, SendStage::RtsSent);
        if self.peers.link(to).ring_rank().is_some()
            && !is_empty
            && let Some(sending) = self.requests.send_mut(number)
        {
            sending.exposure_slot = self.exposed.expose(number);
        }
        self.peers.queue_item(to, QueuedItem::Rts(number));
        self.flush_peer(to);
    }

    /// Writes the queued frames of one peer to its stream, as far as there is room.
    pub(super) fn flush_peer(&mut self, peer: Rank) {
        if let Err(error) = self.peers.flush_peer(peer, &mut self.requests) {
            self.on_send_error(peer, error);
        }
    }

    /// Writes the queued frames of all peers to their streams, as far as there is room.
    #[inline]
    pub(super) fn flush_all(&mut self) {
        for peer in self.peers.take_flush_list() {
            self.flush_peer(peer);
        }
    }

    /// Completes a send.
    pub(super) fn complete_send(&mut self, number: u64, outcome: Result<Delivery>) {
        if let Some(slot) = self.requests.complete_send(number, outcome) {
            self.exposed.release(slot);
        }
    }

    /// See [`crate::transport::PointToPoint::receive`].
    pub(super) fn receive(
        &mut self,
        message: ReceiveRequest,
        completion: Arc<dyn Completion>,
    ) -> Result<()> {
        self.check_postable(message.from)?;
        self.take_refusal(message.tag)?;
        let receive = self.requests.add_receive(message, completion, false);
        self.match_receive(receive);
        self.start_receive_timer(receive);
        Ok(())
    }

    /// Starts the deadline of a receive that has just been posted or matched, unless the receive
    /// completes before that: this function first makes one step of a get.
    pub(super) fn start_receive_timer(&mut self, receive: u64) {
        self.progress_gets();
        self.requests.start_receive_timer(receive);
    }

    /// Matches a receive with the first unexpected message that it can take. If there is none,
    /// posts the receive.
    pub(super) fn match_receive(&mut self, receive: u64) {
        loop {
            let Some(receiving) = self.requests.receive_mut(receive) else { return };
            if receiving.is_matched {
                // The receive is for one message that a probe removed from matching, and that
                // message is gone.
                return self.fail_withdrawn_receive(receive);
            }
            receiving.stage = ReceiveStage::Posted;
            // An earlier match may have allocated a buffer for a message that its sender then
            // cancelled.
            receiving.allocated = Vec::new();
            let ReceiveRequest { from, tag, .. } = receiving.message;
            let match_key: MatchKey = (from, tag);
            let Some((arrival, found)) = self.queues.first_unexpected(match_key) else {
                match self.departure_error(from) {
                    Some(error) => self.requests.complete_receive(receive, Err(error)),
                    None => self.queues.post(match_key, receive),
                }
                return;
            };
            if let Some(error) = receiving.prepare_buffer(self.peers.name(found.from), found) {
                let (request, refused) = (receiving.message, found.envelope());
                return self.end_refused_receive(receive, error, &request, &refused);
            }
            let Some(found) = self.queues.take_unexpected(arrival) else { return };
            if self.deliver_to_receive(found, receive) {
                return;
            }
        }
    }

    /// Delivers a message to the first posted receive that can take it. If there is none, stores
    /// the message as unexpected.
    pub(super) fn on_message_arrived(&mut self, arrival: u64, message: UnexpectedMessage) {
        match self.take_matching_receive(&message) {
            None => self.queues.add_unexpected(arrival, message),
            Some(receive) => {
                if !self.deliver_to_receive(message, receive) {
                    self.match_receive(receive);
                }
            }
        }
    }

    /// Removes and returns the first posted receive that can take a message. An earlier receive
    /// that matches the message but cannot take it completes with an error.
    pub(super) fn take_matching_receive(&mut self, message: &UnexpectedMessage) -> Option<u64> {
        loop {
            let receive = self.queues.first_posted(message)?;
            let receiving = self.requests.receive_mut(receive)?;
            let ReceiveRequest { from, tag, .. } = receiving.message;
            self.queues.remove_posted((from, tag), receive);
            let request = receiving.message;
            match receiving.prepare_buffer(self.peers.name(message.from), message) {
                None => return Some(receive),
                Some(error) => {
                    self.end_refused_receive(receive, error, &request, &message.envelope());
                }
            }
        }
    }

    /// Removes a receive from the posted receives, if it is posted.
    pub(super) fn remove_posted(&mut self, receive: u64) {
        if let Some(receiving) = self.requests.receive(receive) {
            let ReceiveRequest { from, tag, .. } = receiving.message;
            self.queues.remove_posted((from, tag), receive);
        }
    }

    /// Delivers a message to a receive that can take it. Returns false if the message no longer
    /// exists, because its sender has cancelled it or has left.
    pub(super) fn deliver_to_receive(&mut self, message: UnexpectedMessage, receive: u64) -> bool {
        let UnexpectedMessage { from, tag, len, body, .. } = message;
        let Some(receiving) = self.requests.receive_mut(receive) else { return true };
        let delivery = Delivery { peer: from, tag, bytes: len };
        match body {
            MessageBody::AtSender(number) => return self.accept_rts(from, number, receive),
            MessageBody::Buffered(bytes) => {
                match receiving.message.buffer {
                    ReceiveBuffer::Borrowed(into) => {
                        into.slice(0, len).copy_from(bytes.as_slice().into())
                    }
                    ReceiveBuffer::Allocated { .. } => receiving.allocated = bytes,
                }
                self.peers.return_credit(from, len);
            }
            MessageBody::OwnSend(number) => {
                let Some(bytes) = self.requests.send(number).map(|it| it.message.bytes) else {
                    return false;
                };
                if let Some(receiving) = self.requests.receive_mut(receive) {
                    receiving.buffer_range(0, len).copy_from(bytes);
                }
                self.complete_send(number, Ok(delivery));
            }
        }
        self.requests.complete_receive(receive, Ok(delivery));
        true
    }

    /// Returns the error of a rank that has left, from which no message can come any more. A
    /// receive from any rank (`None`) gets no error, because this rank may still send a message to
    /// itself.
    pub(super) fn departure_error(&self, from: Option<Rank>) -> Option<Error> {
        self.peers.link(from?).close_error.clone()
    }

    /// Returns the number of bytes that the engine buffers for messages without a receive.
    #[cfg(any(test, fuzzing))]
    pub(super) fn buffered_bytes(&self) -> usize {
        let arriving = (0..self.peers.len()).map(|peer| self.peers.link(peer).buffered_bytes());
        self.queues.buffered_bytes() + arriving.sum::<usize>()
    }
}
