//! The peers of this rank: their links, and the lists of links with work to do.
//!
//! - A link is on the *flush list* while it has frames to write.
//! - A link is on the *ready list* while its streams between nodes may make progress.
//!
//! The functions return the errors of streams. Their callers decide what an error means.

use super::frame::MessageFrame;
use super::immediate::FastReceive;
use super::inbound::ReadStep;
use super::limits::MatchingLimits;
use super::link::{BodyDestination, FrameInProgress, PeerLink, QueuedItem};
use super::outbound::{EagerWrite, NextFrame};
use super::peer_streams::PeerStreams;
use super::requests::Requests;
use super::rts_table::RtsTable;
use super::timers::TimerQueue;
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, Result};
use crate::base::ids::{Rank, WorldSize};
use crate::base::sync::AtomicU64;
use crate::transport::heartbeat::DEPARTURE_GRACE;
use crate::transport::{Delivery, Endpoint, ImmediateMessage, PeerName, SendRequest, SharedDomain};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// The links of one rank. A rank has a link to each rank of its group, itself included.
#[derive(Debug)]
pub(super) struct PeerTable {
    domain: Arc<dyn SharedDomain>,
    limits: MatchingLimits,
    /// The rank of this process in the group.
    rank: Rank,
    links: Vec<PeerLink>,
    /// The other ranks of the domain.
    node_peers: Vec<Rank>,
    /// The flush list: the peers with frames to write.
    flush_list: Vec<Rank>,
    /// The ready list: the peers whose streams between nodes may make progress.
    ready_list: Vec<Rank>,
    /// The ends of the grace periods of departing peers.
    departures: TimerQueue<Rank>,
    /// The peer that this rank's bulk ring (for the bodies of long frames) serves or served last.
    bulk_ring_peer: Option<Rank>,
    /// The number of bytes sent and received. It changes when this rank makes progress.
    moved_bytes: u64,
    /// A word that only this rank uses, for [`fence_with_rmw`](crate::base::sync::fence_with_rmw).
    fence_word: AtomicU64,
}

impl PeerTable {
    /// Creates the links of a rank.
    ///
    /// # Errors
    /// `Internal` if a rank of another node has no streams.
    pub(super) fn new(
        domain: Arc<dyn SharedDomain>,
        endpoint: Option<&Arc<dyn Endpoint>>,
    ) -> Result<Self> {
        let local_ranks: HashMap<Rank, Rank> =
            (0..domain.size()).map(|local| (domain.peer(local).rank, local)).collect();
        let size = endpoint.map_or(domain.size(), |endpoint| endpoint.size());
        let link =
            |peer| PeerLink::new(domain.as_ref(), endpoint, peer, local_ranks.get(&peer).copied());
        let links: Vec<PeerLink> = (0..size).map(link).collect::<Result<_>>()?;
        let shares_memory = |&peer: &Rank| links[peer].ring_rank().is_some();
        let geometry = endpoint.is_none().then(|| domain.region().geometry());
        Ok(Self {
            limits: MatchingLimits::new(size, geometry),
            rank: domain.peer(domain.rank()).rank,
            domain,
            node_peers: (0..size).filter(shares_memory).collect(),
            links,
            flush_list: Vec::new(),
            ready_list: Vec::new(),
            departures: TimerQueue::new(),
            bulk_ring_peer: None,
            moved_bytes: 0,
            fence_word: AtomicU64::new(0),
        })
    }

    /// Returns this rank.
    pub(super) fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns the number of ranks.
    pub(super) fn len(&self) -> WorldSize {
        self.links.len()
    }

    /// Returns the link to a rank.
    pub(super) fn link(&self, peer: Rank) -> &PeerLink {
        &self.links[peer]
    }

    /// Returns the link to a rank, if the rank exists.
    pub(super) fn get(&self, peer: Rank) -> Option<&PeerLink> {
        self.links.get(peer)
    }

    /// Returns the name of a rank.
    pub(super) fn name(&self, peer: Rank) -> &PeerName {
        &self.links[peer].name
    }

    /// Returns the other ranks of the domain.
    pub(super) fn node_peers(&self) -> &[Rank] {
        &self.node_peers
    }

    /// Returns the limits of eager messages.
    pub(super) fn limits(&self) -> &MatchingLimits {
        &self.limits
    }

    /// Returns the number of bytes sent and received.
    pub(super) fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    /// Counts bytes that this rank has written by CMA instead of a stream.
    pub(super) fn add_moved_bytes(&mut self, len: usize) {
        self.moved_bytes += len as u64;
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

    /// Queues the fragments of a send, and drops queued fragments of an earlier request.
    pub(super) fn queue_fragments(&mut self, peer: Rank, number: u64) {
        self.drop_fragments(peer, number);
        self.links[peer].fragment_queue.push_back(number);
        self.mark_pending(peer);
    }

    /// Drops the queued fragments of a send.
    pub(super) fn drop_fragments(&mut self, peer: Rank, number: u64) {
        self.links[peer].fragment_queue.retain(|&other| other != number);
    }

    /// Removes the queued frame of a send. Returns false if some of its bytes are in the stream.
    pub(super) fn dequeue_send(&mut self, peer: Rank, number: u64) -> bool {
        self.links[peer].dequeue_send(number)
    }

    /// Removes the queued CTS of a message. Without this, the queue would grow without limit if a
    /// peer sent and cancelled RTS frames and did not read its stream.
    pub(super) fn dequeue_cts(&mut self, peer: Rank, number: u64) {
        self.links[peer].dequeue_cts(number);
    }

    /// Puts a peer on the flush list.
    fn mark_pending(&mut self, peer: Rank) {
        if !std::mem::replace(&mut self.links[peer].is_pending, true) {
            self.flush_list.push(peer);
        }
    }

    /// Takes the flush list. The caller flushes all its peers.
    #[inline]
    pub(super) fn take_flush_list(&mut self) -> Vec<Rank> {
        let peers = std::mem::take(&mut self.flush_list);
        peers.iter().for_each(|&peer| self.links[peer].is_pending = false);
        peers
    }

    /// Writes the queued frames of one peer to its stream, as far as there is room. If frames are
    /// left, the peer stays on the flush list.
    ///
    /// # Errors
    /// The error of the stream.
    pub(super) fn flush_peer(&mut self, peer: Rank, requests: &mut Requests) -> Result<()> {
        if !self.links[peer].is_open() {
            return Ok(());
        }
        if !self.links[peer].is_stream_full {
            let outcome = self.write_frames(peer, requests);
            self.links[peer].streams.flush(self.domain.as_ref());
            outcome?;
        }
        if !self.links[peer].is_idle() {
            self.mark_pending(peer);
        }
        Ok(())
    }

    fn write_frames(&mut self, peer: Rank, requests: &mut Requests) -> Result<()> {
        loop {
            if self.links[peer].current_frame.is_none() && !self.start_next_frame(peer, requests) {
                return Ok(());
            }
            let (link, domain) = (&mut self.links[peer], self.domain.as_ref());
            if link.write_current_frame(domain, requests, &mut self.moved_bytes)? {
                // The peer reads this fragment during the next write, which halves the transfer
                // time.
                link.streams.flush_fragment(domain);
                continue;
            }
            link.streams.flush(domain);
            let is_bulk =
                link.current_frame.as_ref().is_some_and(FrameInProgress::waits_for_bulk_ring);
            if !link.streams.has_room_now(domain, is_bulk)? {
                // The endpoint reports when the stream has room again.
                link.is_stream_full = matches!(link.streams, PeerStreams::Streams { .. });
                return Ok(());
            }
        }
    }

    /// Starts the next frame. Returns false if there is none.
    fn start_next_frame(&mut self, peer: Rank, requests: &Requests) -> bool {
        let Some(next) = self.links[peer].next_frame(requests) else { return false };
        let is_bulk = match &next {
            NextFrame::Bodyless { .. } => false,
            NextFrame::Eager { message, .. } => self.uses_bulk_ring(peer, message.bytes.len()),
            NextFrame::Fragment { .. } => self.acquire_bulk_ring(peer),
        };
        self.links[peer].start_frame(next, is_bulk);
        true
    }

    /// Reserves the bulk ring for an eager message that is too long for the normal ring. Returns
    /// false if the message goes to the normal ring.
    fn uses_bulk_ring(&mut self, peer: Rank, len: usize) -> bool {
        len > self.domain.region().max_ring_message() && self.acquire_bulk_ring(peer)
    }

    /// Reserves the bulk ring for a peer. Returns false if the bulk ring still has bytes for
    /// another peer, which may never read them. The caller then uses the normal ring.
    fn acquire_bulk_ring(&mut self, peer: Rank) -> bool {
        if self.links[peer].ring_rank().is_none() {
            return false;
        }
        if let Some(user) = self.bulk_ring_peer.filter(|&user| user != peer)
            && self.links[user].uses_bulk_ring(self.domain.as_ref())
        {
            return false;
        }
        self.bulk_ring_peer = Some(peer);
        true
    }

    /// Writes as much of an eager message as there is room for, if no other frame is before the
    /// message. Returns how much was written, or `None` if the message has to be queued.
    ///
    /// # Errors
    /// The error of the stream.
    pub(super) fn write_eager(&mut self, message: &SendRequest) -> Result<Option<EagerWrite>> {
        let to = message.to;
        if !self.links[to].is_idle() || self.links[to].is_stream_full {
            return Ok(None);
        }
        let is_bulk = self.uses_bulk_ring(to, message.bytes.len());
        let link = &mut self.links[to];
        link.write_eager(self.domain.as_ref(), message, is_bulk).map(Some)
    }

    /// Makes the rest of a partly written eager message the current frame of its link.
    pub(super) fn resume_eager(&mut self, to: Rank, number: u64, write: EagerWrite) {
        self.links[to].current_frame = Some(write.into_frame(number));
        self.mark_pending(to);
    }

    /// Counts credit that a message to a rank uses.
    pub(super) fn use_credit(&mut self, to: Rank, len: usize) {
        self.links[to].used_credit += MatchingLimits::credit_cost(len);
    }

    /// Returns the credit of a message that will not be sent.
    pub(super) fn unuse_credit(&mut self, to: Rank, len: usize) {
        self.links[to].used_credit -= MatchingLimits::credit_cost(len);
    }

    /// Counts credit that a peer has returned.
    ///
    /// # Errors
    /// `Internal` if this rank did not use that credit.
    pub(super) fn regain_credit(&mut self, to: Rank, bytes: u64) -> Result<()> {
        self.links[to].regain_credit(bytes)
    }

    /// Counts the cost of an eager message from a peer, which this rank buffers.
    pub(super) fn hold_credit(&mut self, from: Rank, len: usize) {
        self.links[from].held_cost += MatchingLimits::credit_cost(len);
    }

    /// Counts that this rank no longer buffers a message of this length from a peer. If the owed
    /// credit has reached the threshold, queues a credit frame.
    pub(super) fn return_credit(&mut self, from: Rank, len: usize) {
        let (is_own, threshold) = (from == self.rank, self.limits.credit_threshold());
        if let Some(bytes) = self.links[from].return_credit(len, is_own, threshold) {
            self.queue_control(from, MessageFrame::Credit { bytes });
        }
    }

    /// Reads the next available bytes of a peer.
    ///
    /// # Errors
    /// As [`PeerLink::read_next`].
    pub(super) fn read_next(
        &mut self,
        peer: Rank,
        requests: &mut Requests,
        rts_table: &mut RtsTable,
    ) -> Result<ReadStep> {
        self.links[peer].read_next(peer, self.domain.as_ref(), requests, rts_table)
    }

    /// As [`PeerLink::expect_body`].
    ///
    /// # Errors
    /// As [`PeerLink::expect_body`].
    pub(super) fn expect_body(
        &mut self,
        peer: Rank,
        destination: BodyDestination,
        len: usize,
        is_bulk: bool,
    ) -> Result<Option<BodyDestination>> {
        self.links[peer].expect_body(destination, len, is_bulk)
    }

    /// Discards the rest of a fragment of the announced message `number`.
    pub(super) fn discard_fragment(&mut self, peer: Rank, number: u64) {
        self.links[peer].discard_fragment(number);
    }

    /// Returns room to a peer during a series of reads, so that the peer can write more.
    pub(super) fn release_lazily(&mut self, peer: Rank) {
        self.links[peer].streams.release_received_lazily(self.domain.as_ref());
    }

    /// Ends a series of reads that read this number of bytes.
    pub(super) fn finish_reads(&mut self, peer: Rank, taken: usize) {
        self.moved_bytes += taken as u64;
        if taken > 0 {
            self.links[peer].streams.release_received(self.domain.as_ref());
        }
    }

    /// Returns whether bytes from a peer may have arrived that this rank has not read.
    pub(super) fn may_have_more(&self, peer: Rank) -> bool {
        self.links[peer].streams.may_have_more(self.domain.as_ref())
    }

    /// Takes the ready list, together with the peers whose streams the endpoint reports as ready.
    pub(super) fn take_ready(&mut self, endpoint: &dyn Endpoint) -> Vec<Rank> {
        let mut ready = std::mem::take(&mut self.ready_list);
        endpoint.collect_ready_peers(&mut ready);
        ready.retain(|&peer| {
            let link = self.links.get_mut(peer);
            let link = link.filter(|it| matches!(it.streams, PeerStreams::Streams { .. }));
            link.is_some_and(|link| {
                link.is_stream_full = false;
                true
            })
        });
        ready
    }

    /// Puts a peer on the ready list.
    pub(super) fn mark_ready(&mut self, peer: Rank) {
        self.ready_list.push(peer);
    }

    /// Returns whether a peer is on the ready list.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready_list.is_empty()
    }

    /// Closes the incoming stream of a peer.
    pub(super) fn close_receive(&mut self, peer: Rank, error: Error) {
        self.links[peer].receive_close_error = Some(error);
    }

    /// Closes the outgoing stream to a peer, and drops all frames to it. Messages that the peer has
    /// sent are still received, so the peer goes on the ready list.
    pub(super) fn close_send(&mut self, peer: Rank, error: Error) {
        self.links[peer].clear_outbound();
        self.links[peer].send_close_error = Some(error);
        self.ready_list.push(peer);
    }

    /// Closes a link in both directions, and drops its frames. Returns false if it was closed
    /// before.
    pub(super) fn close(&mut self, peer: Rank, error: &Error) -> bool {
        let link = &mut self.links[peer];
        let is_open = link.close_error.is_none();
        if is_open {
            link.close_error = Some(error.clone());
            link.clear();
            if let Some(at) = link.departure_deadline.take() {
                self.departures.remove(at, peer);
            }
        }
        is_open
    }

    /// Drops all frames, all lists and all grace periods.
    pub(super) fn clear(&mut self) {
        self.links.iter_mut().for_each(PeerLink::clear);
        self.flush_list.clear();
        self.ready_list.clear();
        self.departures.clear();
    }

    /// Releases the streams and the endpoint that they hold.
    pub(super) fn detach(&mut self) {
        self.links.iter_mut().for_each(|link| link.streams = PeerStreams::Loopback);
    }

    /// Starts the grace period of a peer that seems to have left, unless it is running already.
    pub(super) fn begin_departure(&mut self, peer: Rank) {
        let deadline = &mut self.links[peer].departure_deadline;
        if deadline.is_none() {
            let at = Instant::now() + DEPARTURE_GRACE;
            *deadline = Some(at);
            self.departures.insert(at, peer);
        }
    }

    /// Returns the end of the next grace period.
    pub(super) fn next_departure(&self) -> Option<Instant> {
        self.departures.next_due()
    }

    /// Returns a peer whose grace period has ended.
    pub(super) fn take_departed(&mut self) -> Option<Rank> {
        let peer = self.departures.take_due()?;
        self.links[peer].departure_deadline = None;
        Some(peer)
    }

    /// Writes a message to the ring or bulk ring. Returns false if the message has to be posted.
    pub(super) fn try_send_immediate(&mut self, message: &ImmediateMessage<Src<'static>>) -> bool {
        let ImmediateMessage { peer: Some(to), tag: Some(tag), dtype, bytes } = *message else {
            return false;
        };
        let can_send = |link: &&PeerLink| {
            link.has_credit(bytes.len(), &self.limits) && link.is_open() && link.is_idle()
        };
        if self.links.get(to).filter(can_send).is_none() {
            return false;
        }
        let is_bulk = self.uses_bulk_ring(to, bytes.len());
        let (link, domain) = (&mut self.links[to], self.domain.as_ref());
        let is_sent = if is_bulk {
            let len = bytes.len() as u64;
            let header = MessageFrame::Eager { tag, dtype, len, is_bulk }.encode();
            link.streams.write_to_bulk_ring(domain, Src::from(&header[..]), bytes)
        } else {
            let first_word = MessageFrame::eager_first_word(tag, dtype);
            link.streams.write_record(domain, &self.fence_word, first_word, bytes)
        };
        if is_sent {
            self.use_credit(to, bytes.len());
        }
        is_sent
    }

    /// Copies the next message in its sender's ring to the receiver's buffer, as
    /// [`PeerLink::take_immediate`] does. The caller knows that no receive is posted and that no
    /// message is buffered.
    pub(super) fn try_take_immediate(
        &mut self,
        request: &ImmediateMessage<Dst<'static>>,
        polls: u32,
    ) -> FastReceive {
        let Some(link) = request.peer.and_then(|from| self.links.get_mut(from)) else {
            return FastReceive::NeedsPosting;
        };
        let taken = link.take_immediate(self.domain.as_ref(), &self.limits, request, polls);
        if let FastReceive::Message(Delivery { peer, bytes, .. }) = taken {
            self.hold_credit(peer, bytes);
            self.return_credit(peer, bytes);
        }
        taken
    }
}

#[cfg(test)]
impl PeerTable {
    /// Returns the peer that this rank's bulk ring served last.
    pub(super) fn bulk_ring_peer(&self) -> Option<Rank> {
        self.bulk_ring_peer
    }
}
