//! The state of an engine, and the matching of messages and receives.
//!
//! All code here runs under the engine's lock. Completed messages are collected in `completed`;
//! their completions are called after the lock has been released.

use super::exposure_slots::FreeExposureSlots;
use super::frame::MessageFrame;
use super::limits::{MAX_OUTSTANDING, MatchingLimits};
use super::link::{PeerLink, QueuedItem};
use super::outstanding::{
    CompletedMessage, OutstandingReceive, OutstandingSend, ReceiveStage, SendStage, allocate_zeroed,
};
use super::peer_streams::{BulkRings, PeerStreams};
use super::posted::{MatchKey, PostedReceives};
use super::rendezvous::{ANSWER_TIMEOUT, ActiveGet};
use super::split_transfer::ActivePut;
use super::unexpected::{MessageBody, UnexpectedMessage, UnexpectedQueue};
use crate::base::buffer::Dst;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{Nonce, Rank};
use crate::base::sync::AtomicU64;
use crate::transport::exposure::ExposureTable;
use crate::transport::ring::{RingReader, RingWriter};
use crate::transport::{
    Completion, Delivery, Endpoint, PeerName, ReceiveBuffer, ReceiveRequest, Region, SendRequest,
    SharedDomain, cma,
};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A deadline that is further away needs no timer.
const MAX_TIMED_DEADLINE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The object of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TimerTarget {
    Send(u64),
    Receive(u64),
    /// The end of a link's grace period.
    Departure(Rank),
}

/// The state that the engine's lock protects.
#[derive(Debug)]
pub(super) struct MatchingState {
    pub(super) rank: Rank,
    pub(super) domain: Arc<dyn SharedDomain>,
    pub(super) endpoint: Option<Arc<dyn Endpoint>>,
    pub(super) limits: MatchingLimits,
    pub(super) links: Vec<PeerLink>,
    /// The other ranks of the domain.
    pub(super) node_peers: Vec<Rank>,
    pub(super) sends: HashMap<u64, OutstandingSend>,
    pub(super) receives: HashMap<u64, OutstandingReceive>,
    pub(super) posted: PostedReceives,
    pub(super) unexpected: UnexpectedQueue,
    /// The messages that probes have removed from matching, by arrival number.
    pub(super) probed_messages: HashMap<u64, UnexpectedMessage>,
    /// The number of probes that wait for a message.
    pub(super) waiting_probes: usize,
    /// Whether the waiting probes must search again.
    pub(super) has_new_message: bool,
    /// The gets in progress: buffers of peers that this rank reads.
    pub(super) active_gets: VecDeque<ActiveGet>,
    /// The gets whose senders have been asked for fragments first.
    pub(super) asked_gets: Vec<ActiveGet>,
    /// The gets whose front half has been read, and whose back half the sender writes.
    pub(super) half_done_gets: Vec<ActiveGet>,
    /// The puts in progress: back halves that this rank writes.
    pub(super) active_puts: VecDeque<ActivePut>,
    /// Whether this process can write by CMA.
    pub(super) can_cma_write: bool,
    /// The time that a sender has to answer a CTS.
    pub(super) answer_timeout: Duration,
    pub(super) timers: BTreeSet<(Instant, TimerTarget)>,
    /// The peers with queued frames.
    pub(super) peers_to_flush: Vec<Rank>,
    /// The peer that this rank's bulk ring served last.
    pub(super) bulk_ring_peer: Option<Rank>,
    /// The peers whose streams may make progress.
    pub(super) ready_peers: Vec<Rank>,
    /// The free slots of this rank's exposure table.
    pub(super) free_exposure_slots: FreeExposureSlots,
    pub(super) completed: Vec<CompletedMessage>,
    pub(super) failure: Option<Error>,
    /// The number of bytes transferred in both directions; shows whether progress was made.
    pub(super) moved_bytes: u64,
    /// Whether a ring had more bytes than one drain takes.
    pub(super) has_unread_data: bool,
    /// The bytes of buffered eager messages.
    pub(super) buffered_bytes: usize,
    /// The process cookie, at the address that the exposure table publishes.
    cookie: Box<Nonce>,
    last_number: u64,
    /// The word on which a read-modify-write acts as a fence.
    pub(super) fence_word: AtomicU64,
}

#[cold]
fn missing_streams_error(peer: Rank) -> Error {
    Error::internal(format!("rank {peer} is on another node, and this group has no streams to it"))
}

impl MatchingState {
    /// Creates the state of a rank without any messages.
    pub(super) fn new(
        domain: Arc<dyn SharedDomain>,
        endpoint: Option<Arc<dyn Endpoint>>,
        cookie: Nonce,
    ) -> Result<Self> {
        let me = domain.rank();
        let rank = domain.peer(me).rank;
        let local_ranks: HashMap<Rank, Rank> =
            (0..domain.size()).map(|local| (domain.peer(local).rank, local)).collect();
        let size = endpoint.as_ref().map_or(domain.size(), |endpoint| endpoint.size());
        let link = |peer: Rank| -> Result<PeerLink> {
            if peer == rank {
                return Ok(PeerLink::new(domain.peer(me).clone(), PeerStreams::Loopback));
            }
            if let Some(&local) = local_ranks.get(&peer) {
                let (out, into) = (RingWriter::new(me, local), RingReader::new(local, me));
                let wire = PeerStreams::Rings {
                    peer: local,
                    writer: out,
                    reader: into,
                    bulk_rings: BulkRings::new_between(me, local),
                };
                return Ok(PeerLink::new(domain.peer(local).clone(), wire));
            }
            let endpoint = endpoint.clone().ok_or_else(|| missing_streams_error(peer))?;
            let name = endpoint.peer(peer).clone();
            Ok(PeerLink::new(
                name,
                PeerStreams::Streams { endpoint, peer, staging: Vec::new(), staging_used: 0 },
            ))
        };
        let links = (0..size).map(link).collect::<Result<_>>()?;
        let mut neighbours: Vec<Rank> =
            local_ranks.into_keys().filter(|&peer| peer != rank).collect();
        neighbours.sort_unstable();
        Ok(Self {
            rank,
            limits: MatchingLimits::new(
                size,
                endpoint.is_none().then(|| domain.region().geometry()),
            ),
            links,
            node_peers: neighbours,
            sends: HashMap::new(),
            receives: HashMap::new(),
            posted: PostedReceives::default(),
            unexpected: UnexpectedQueue::default(),
            probed_messages: HashMap::new(),
            waiting_probes: 0,
            has_new_message: false,
            active_gets: VecDeque::new(),
            asked_gets: Vec::new(),
            half_done_gets: Vec::new(),
            active_puts: VecDeque::new(),
            can_cma_write: cma::can_cma_write(),
            answer_timeout: ANSWER_TIMEOUT,
            timers: BTreeSet::new(),
            peers_to_flush: Vec::new(),
            bulk_ring_peer: None,
            ready_peers: Vec::new(),
            free_exposure_slots: FreeExposureSlots::default(),
            completed: Vec::new(),
            failure: None,
            moved_bytes: 0,
            has_unread_data: false,
            buffered_bytes: 0,
            cookie: Box::new(cookie),
            last_number: 0,
            fence_word: AtomicU64::new(0),
            domain,
            endpoint,
        })
    }

    /// Publishes the process cookie's address, which permits peers to read this process's memory.
    pub(super) fn publish_cookie(&self) {
        let address = u64::try_from(self.cookie.0.as_ptr().addr()).unwrap_or(0);
        self.exposure_table()
            .publish_cookie(address, super::rendezvous::cookie_words(&self.cookie));
    }

    pub(super) fn region(&self) -> &Region {
        self.domain.region()
    }

    /// Returns this rank's exposure table.
    pub(super) fn exposure_table(&self) -> ExposureTable<'_> {
        self.region().exposure_table(self.domain.rank())
    }

    pub(super) fn peer_name(&self, peer: Rank) -> &PeerName {
        &self.links[peer].name
    }

    /// Returns a new number. Numbers grow.
    pub(super) fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Returns whether a number has been issued.
    pub(super) fn was_issued(&self, number: u64) -> bool {
        (1..=self.last_number).contains(&number)
    }

    /// Rejects a request that cannot be posted.
    pub(super) fn check_postable(&self, peer: Option<Rank>) -> Result<()> {
        self.check_peer(peer)?;
        self.check_capacity(1)
    }

    /// Rejects a rank that does not exist, and any request after the group has failed.
    pub(super) fn check_peer(&self, peer: Option<Rank>) -> Result<()> {
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        let size = self.links.len();
        if let Some(peer) = peer.filter(|&peer| peer >= size) {
            let message = format!("rank {peer} does not exist: the group has {size} ranks");
            return Err(Error::invalid(message));
        }
        Ok(())
    }

    /// Rejects requests beyond the limit of outstanding messages.
    pub(super) fn check_capacity(&self, additional: usize) -> Result<()> {
        if self.sends.len() + self.receives.len() + additional > MAX_OUTSTANDING {
            let message = format!(
                "this rank has reached the limit of {MAX_OUTSTANDING} outstanding messages; wait for some of them \
                 first"
            );
            return Err(Error::new(ErrorKind::OutOfMemory, message));
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
        let link = &self.links[message.to];
        if let Some(error) = link.send_refusal() {
            self.completed.push(CompletedMessage::new(completion, Err(error.clone())));
            return Ok(());
        }
        if !link.is_open() {
            self.store_send(message, completion, SendStage::RtsSent);
            return Ok(());
        }
        let cost = MatchingLimits::credit_cost(message.bytes.len());
        let is_eager = !message.is_synchronous
            && message.bytes.len() <= self.limits.eager_bytes
            && link.used_credit + cost <= self.limits.held_bytes;
        match (message.to == self.rank, is_eager) {
            (true, _) => self.send_to_self(message, completion, is_eager),
            (false, true) => self.send_eager(message, completion),
            (false, false) => self.send_rts(message, completion),
        }
        Ok(())
    }

    /// See [`crate::transport::PointToPoint::receive`].
    pub(super) fn receive(
        &mut self,
        message: ReceiveRequest,
        completion: Arc<dyn Completion>,
    ) -> Result<()> {
        self.check_postable(message.from)?;
        let receive = self.store_receive(message, completion, false);
        self.match_receive(receive);
        self.start_receive_timer(receive);
        Ok(())
    }

    /// Stores a receive until it completes. Returns its number.
    pub(super) fn store_receive(
        &mut self,
        message: ReceiveRequest,
        completion: Arc<dyn Completion>,
        is_matched: bool,
    ) -> u64 {
        let receive = self.next_number();
        let (stage, grown) = (ReceiveStage::Posted, Vec::new());
        let receiving = OutstandingReceive {
            message,
            completion,
            expires_at: None,
            stage,
            allocated: grown,
            is_matched,
        };
        self.receives.insert(receive, receiving);
        receive
    }

    /// Starts the deadline of a receive that has matched a message or waits for one.
    pub(super) fn start_receive_timer(&mut self, receive: u64) {
        self.progress_gets();
        if let Some(receiving) = self.receives.get_mut(&receive) {
            receiving.expires_at = expiry_time(&receiving.message.deadline);
            self.timers
                .extend(receiving.expires_at.map(|due| (due, TimerTarget::Receive(receive))));
        }
    }

    /// Stores a send until it completes. Returns its number.
    pub(super) fn store_send(
        &mut self,
        message: SendRequest,
        completion: Arc<dyn Completion>,
        stage: SendStage,
    ) -> u64 {
        let number = self.next_number();
        let due = expiry_time(&message.deadline);
        self.timers.extend(due.map(|due| (due, TimerTarget::Send(number))));
        self.sends.insert(
            number,
            OutstandingSend { message, completion, expires_at: due, stage, exposure_slot: None },
        );
        number
    }

    fn send_to_self(
        &mut self,
        message: SendRequest,
        completion: Arc<dyn Completion>,
        is_eager: bool,
    ) {
        let SendRequest { to: from, tag, dtype, bytes, .. } = message;
        let arrival = self.next_number();
        let held = if is_eager { allocate_zeroed(bytes.len()).ok() } else { None };
        let body = match held {
            Some(mut held) => {
                Dst::from(held.as_mut_slice()).copy_from(bytes);
                let cost = MatchingLimits::credit_cost(bytes.len());
                let link = &mut self.links[from];
                link.used_credit += cost;
                link.held_cost += cost;
                self.buffered_bytes += held.len();
                let delivery = Delivery { peer: from, tag, bytes: bytes.len() };
                self.completed.push(CompletedMessage::new(completion, Ok(delivery)));
                MessageBody::Buffered(held)
            }
            None => MessageBody::OwnSend(self.store_send(
                message,
                completion,
                SendStage::ToSelf { arrival },
            )),
        };
        self.on_message_arrived(
            arrival,
            UnexpectedMessage { from, tag, dtype, len: bytes.len(), body },
        );
    }

    /// Matches a receive with a message, or posts the receive.
    pub(super) fn match_receive(&mut self, receive: u64) {
        loop {
            let Some(receiving) = self.receives.get_mut(&receive) else { return };
            if receiving.is_matched {
                return self.fail_withdrawn_receive(receive);
            }
            receiving.stage = ReceiveStage::Posted;
            // Drops the buffer that was allocated for a message that its sender has cancelled.
            receiving.allocated = Vec::new();
            let ReceiveRequest { from, tag, .. } = receiving.message;
            let match_key: MatchKey = (from, tag);
            let Some((arrival, found)) = self.unexpected.first(match_key) else {
                match self.departure_error(from) {
                    Some(error) => self.complete_receive(receive, Err(error)),
                    None => self.posted.insert(match_key, receive),
                }
                return;
            };
            if let Some(error) = receiving.prepare_buffer(&self.links[found.from].name, found) {
                return self.complete_receive(receive, Err(error));
            }
            let Some(found) = self.unexpected.remove(arrival) else { return };
            if self.deliver_to_receive(found, receive) {
                return;
            }
        }
    }

    /// Delivers a message to the receive that waits for it, or stores it as unexpected.
    pub(super) fn on_message_arrived(&mut self, arrival: u64, message: UnexpectedMessage) {
        match self.take_matching_receive(&message) {
            None => {
                self.unexpected.insert(arrival, message);
                self.wake_probes();
            }
            Some(receive) => {
                if !self.deliver_to_receive(message, receive) {
                    self.match_receive(receive);
                }
            }
        }
    }

    /// Removes and returns the first posted receive that can take a message. Receives before it
    /// that match but cannot take the message fail.
    pub(super) fn take_matching_receive(&mut self, message: &UnexpectedMessage) -> Option<u64> {
        loop {
            let receive = self.posted.first(message.from, message.tag)?;
            let receiving = self.receives.get_mut(&receive)?;
            let ReceiveRequest { from, tag, .. } = receiving.message;
            self.posted.remove((from, tag), receive);
            match receiving.prepare_buffer(&self.links[message.from].name, message) {
                None => return Some(receive),
                Some(error) => self.complete_receive(receive, Err(error)),
            }
        }
    }

    /// Delivers a message to a receive that can take it. Returns false if the message no longer
    /// exists.
    pub(super) fn deliver_to_receive(&mut self, message: UnexpectedMessage, receive: u64) -> bool {
        let Some(receiving) = self.receives.get_mut(&receive) else { return true };
        let delivery = Delivery { peer: message.from, tag: message.tag, bytes: message.len };
        match message.body {
            MessageBody::AtSender(number) => return self.accept_rts(message.from, number, receive),
            MessageBody::Buffered(bytes) => {
                match receiving.message.buffer {
                    ReceiveBuffer::Borrowed(into) => {
                        into.slice(0, message.len).copy_from(bytes.as_slice().into())
                    }
                    ReceiveBuffer::Allocated { .. } => receiving.allocated = bytes,
                }
                self.buffered_bytes -= message.len;
                self.return_credit(message.from, MatchingLimits::credit_cost(message.len));
            }
            MessageBody::OwnSend(number) => {
                let Some(sending) = self.sends.get(&number) else { return false };
                receiving.buffer_range(0, message.len).copy_from(sending.message.bytes);
                self.complete_send(number, Ok(delivery));
            }
        }
        self.complete_receive(receive, Ok(delivery));
        true
    }

    /// Returns credit to a sender whose message is no longer buffered.
    pub(super) fn return_credit(&mut self, from: Rank, cost: usize) {
        let threshold = self.limits.credit_threshold();
        let link = &mut self.links[from];
        link.held_cost = link.held_cost.saturating_sub(cost);
        if from == self.rank {
            link.used_credit = link.used_credit.saturating_sub(cost);
            return;
        }
        link.owed_credit += cost;
        if link.owed_credit >= threshold {
            let bytes = std::mem::take(&mut link.owed_credit) as u64;
            self.queue_control(from, MessageFrame::Credit { bytes });
        }
    }

    /// Queues a control frame to a peer.
    pub(super) fn queue_control(&mut self, peer: Rank, frame: MessageFrame) {
        self.queue_item(peer, QueuedItem::Control(frame));
    }

    /// Queues an item for the stream to a peer.
    pub(super) fn queue_item(&mut self, peer: Rank, item: QueuedItem) {
        if self.links[peer].is_open() {
            self.links[peer].send_queue.push_back(item);
            self.mark_pending(peer);
        }
    }

    /// Puts a peer on the list of peers with queued frames.
    pub(super) fn mark_pending(&mut self, peer: Rank) {
        if !std::mem::replace(&mut self.links[peer].is_pending, true) {
            self.peers_to_flush.push(peer);
        }
    }

    pub(super) fn complete_send(&mut self, number: u64, outcome: Result<Delivery>) {
        let Some(sending) = self.sends.remove(&number) else { return };
        if let Some(due) = sending.expires_at {
            self.timers.remove(&(due, TimerTarget::Send(number)));
        }
        sending.exposure_slot.into_iter().for_each(|slot| self.release_exposure_slot(slot));
        self.completed.push(CompletedMessage::new(sending.completion, outcome));
    }

    /// Frees a slot of the exposure table.
    pub(super) fn release_exposure_slot(&mut self, slot: u16) {
        self.exposure_table().release_slot(slot);
        self.free_exposure_slots.release(slot);
    }

    pub(super) fn complete_receive(&mut self, receive: u64, outcome: Result<Delivery>) {
        let Some(receiving) = self.receives.remove(&receive) else { return };
        if let Some(due) = receiving.expires_at {
            self.timers.remove(&(due, TimerTarget::Receive(receive)));
        }
        self.completed.push(CompletedMessage::from_receive(receiving, outcome));
    }
}

/// Returns the expiry time of a message, if it has one.
fn expiry_time(deadline: &crate::base::deadline::Deadline) -> Option<Instant> {
    let left = deadline.remaining();
    if left > MAX_TIMED_DEADLINE { None } else { Instant::now().checked_add(left) }
}
