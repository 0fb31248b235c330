//! The state that a rank keeps between the operations of a group whose ranks exchange messages: its
//! past operations, its progress with each peer, the queued presence messages, and the read-ahead
//! buffers. The head of [`super::exchange`] explains presence messages.

use crate::algo::fingerprint;
use crate::algo::mismatch_text::AlgorithmNameFn;
use crate::base::buffer::Dst;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Rank, WorldSize};
use crate::transport::collective_header::{BlamedRank, CollectiveHeader, HEADER_BYTES};
use crate::transport::{Channel, Descriptor, Endpoint};
use std::collections::VecDeque;

/// The number of past operations that a rank keeps to find the first mismatch.
const MAX_PAST_OPERATIONS: usize = 64;

/// The size of a stream's read-ahead buffer. With this buffer, a rank receives the header and the
/// payload of a small message by one call of the transport.
const READ_AHEAD_BYTES: usize = 4096;

/// The maximum number of presence messages that a rank sends to a peer that does not answer. These
/// unread messages fit in the buffer of any stream.
const MAX_UNREAD_PRESENCE: u32 = 64;

/// The maximum size of scratch memory that is kept for the next operation.
const MAX_KEPT_SCRATCH: usize = 8 << 20;

/// One past operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct PastOperation {
    pub(super) descriptor: Descriptor,
    call_fingerprint: u64,
}

/// The progress of this rank with a peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerProgress {
    /// The number of messages that this rank has posted to the peer.
    pub(super) sent: u64,
    /// The number of receives that this rank has posted for messages from the peer.
    pub(super) received: u64,
    /// The last operation in which this rank has seen the peer, as [`Descriptor::order_key`]; 0 for
    /// none.
    pub(super) last_seen_moment: u64,
    /// According to the peer's first message in operation `last_seen_moment`: the rank for which
    /// the peer had waited longest in this operation before that message.
    pub(super) blame: Option<BlamedRank>,
    /// The rank for which the peer waits inside operation `last_seen_moment`, according to its last
    /// presence message.
    pub(super) awaited_rank: Option<Rank>,
    /// The number of presence messages to the peer that the peer may not have read yet.
    pub(super) unread_presence: u32,
}

impl PeerProgress {
    /// Records a message that shows that the peer is in the operation with this order key. `blame`
    /// and `awaited_rank` are the message's values for the fields of these names.
    pub(super) fn record_seen(
        &mut self,
        order_key: u64,
        blame: Option<BlamedRank>,
        awaited_rank: Option<Rank>,
    ) {
        if self.last_seen_moment < order_key {
            self.blame = blame;
        }
        self.last_seen_moment = order_key;
        self.awaited_rank = awaited_rank;
    }
}

/// A pending presence message.
#[derive(Debug)]
pub(super) struct PresenceMessage {
    pub(super) peer: Rank,
    pub(super) header: [u8; HEADER_BYTES],
    /// The number of bytes already sent.
    pub(super) done: usize,
}

/// The message state of one group on this rank.
#[derive(Debug)]
pub struct PeerHistory {
    pub(super) rank: Rank,
    pub(super) algorithm_name: AlgorithmNameFn,
    call_fingerprint: u64,
    pub(super) past_operations: VecDeque<PastOperation>,
    pub(super) peers: Vec<PeerProgress>,
    /// The presence messages that are not completely sent. If an operation ends while a message is
    /// partly sent, the message stays in the queue, and this rank sends the rest before the next
    /// message to that peer.
    pub(super) presence_queue: Vec<PresenceMessage>,
    /// The last operation in which this rank has queued presence messages, as
    /// [`Descriptor::order_key`].
    last_presence_moment: u64,
    /// The read-ahead buffers of each peer, indexed by stream.
    read_ahead: Vec<Vec<ReadAheadBuffer>>,
    scratch: Vec<u8>,
}

impl PeerHistory {
    /// Returns the state of rank `rank` at the start of a group of `size` ranks.
    pub fn new(
        group: GroupId,
        rank: Rank,
        size: WorldSize,
        algorithm_name: AlgorithmNameFn,
    ) -> Self {
        Self {
            rank,
            algorithm_name,
            call_fingerprint: fingerprint::seed(group, size),
            past_operations: VecDeque::new(),
            peers: vec![PeerProgress::default(); size],
            presence_queue: Vec::new(),
            last_presence_moment: 0,
            read_ahead: std::iter::repeat_with(Vec::new).take(size).collect(),
            scratch: Vec::new(),
        }
    }

    /// Records that this rank enters an operation. The caller must call this for every operation of
    /// the group, even if this rank exchanges no message in the operation.
    pub fn enter(&mut self, descriptor: Descriptor) {
        self.call_fingerprint =
            fingerprint::extend(self.call_fingerprint, &descriptor.encode(), &descriptor.label);
        if self.past_operations.len() == MAX_PAST_OPERATIONS {
            self.past_operations.pop_front();
        }
        self.past_operations
            .push_back(PastOperation { descriptor, call_fingerprint: self.call_fingerprint });
        self.presence_queue.retain(|presence| presence.done > 0);
    }

    /// Queues one presence message to each of `others`. Only the first call in an operation has an
    /// effect. Returns true if this is the first call and the queue is not empty, so that there are
    /// messages to send.
    pub(super) fn queue_presence(&mut self, others: &[Rank], header: &CollectiveHeader) -> bool {
        let order_key = header.descriptor.order_key();
        if self.last_presence_moment == order_key {
            return false;
        }
        self.last_presence_moment = order_key;
        let header = header.encode();
        for &peer in others {
            // An older message in the queue is partly sent, because `enter` removes the others.
            // Then the peer needs no new message: if the peer reads at all, it reads the older
            // message.
            let is_partly_sent = self.presence_queue.iter().any(|presence| presence.peer == peer);
            if !is_partly_sent && self.peers[peer].unread_presence < MAX_UNREAD_PRESENCE {
                self.peers[peer].unread_presence += 1;
                self.presence_queue.push(PresenceMessage { peer, header, done: 0 });
            }
        }
        !self.presence_queue.is_empty()
    }

    /// Returns whether a presence message to a peer is partly sent. If so, the rest of that message
    /// must be sent before any other message.
    pub(super) fn has_partial_presence(&self, peer: Rank) -> bool {
        self.presence_queue.iter().any(|presence| presence.peer == peer && presence.done > 0)
    }

    /// Returns the ranks for which `rank` waited, directly or through other ranks, when they were
    /// last seen. The list ends before `self` and before a rank that it already contains.
    pub(super) fn wait_chain(&self, rank: Rank) -> Vec<Rank> {
        let mut chain = vec![rank];
        while let Some(next) = self.peers[chain[chain.len() - 1]].awaited_rank
            && next < self.peers.len()
            && next != self.rank
            && !chain.contains(&next)
        {
            chain.push(next);
        }
        chain.split_off(1)
    }

    /// Returns the rank that delays the others most: of the ranks `late` and of those for which
    /// they wait, the one that was last seen in the earliest operation. If there are several,
    /// returns the first.
    pub(super) fn latest_rank(&self, late: &[Rank]) -> Option<Rank> {
        let chains = late.iter().flat_map(|&rank| self.wait_chain(rank));
        let ranks = late.iter().copied().chain(chains);
        ranks.min_by_key(|&rank| self.peers[rank].last_seen_moment)
    }

    /// Returns the call fingerprint of all operations that this rank has issued.
    pub(super) fn call_fingerprint(&self) -> u64 {
        self.call_fingerprint
    }

    /// Returns the read-ahead buffer of a stream.
    pub(super) fn read_ahead(&mut self, peer: Rank, stream: u8) -> &mut ReadAheadBuffer {
        let (buffers, index) = (&mut self.read_ahead[peer], usize::from(stream));
        if index >= buffers.len() {
            buffers.resize_with(index + 1, ReadAheadBuffer::default);
        }
        &mut buffers[index]
    }

    /// Returns scratch memory of at least `bytes` bytes, with arbitrary contents.
    pub(super) fn take_scratch(&mut self, bytes: usize) -> Result<Vec<u8>> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let missing = bytes.saturating_sub(scratch.len());
        scratch.try_reserve_exact(missing).map_err(|_| {
            let message =
                format!("cannot allocate {bytes} bytes of scratch space for a collective");
            Error::new(ErrorKind::OutOfMemory, message)
        })?;
        scratch.resize(scratch.len() + missing, 0);
        Ok(scratch)
    }

    /// Keeps scratch memory for the next operation.
    pub(super) fn keep_scratch(&mut self, scratch: Vec<u8>) {
        if scratch.len() <= MAX_KEPT_SCRATCH {
            self.scratch = scratch;
        }
    }

    /// Returns whether the operations that the sender of a message has issued differ from the
    /// operations of this rank, up to the operation of the message.
    ///
    /// Returns false if this rank has already forgotten the operation of the message. This happens
    /// if a presence message was not read for a long time. Nothing is lost, because the fingerprint
    /// of every later message also covers that operation.
    pub(super) fn has_different_history(&self, header: &CollectiveHeader) -> bool {
        let theirs = header.descriptor;
        let is_forgotten = |oldest: &PastOperation| {
            let oldest = oldest.descriptor;
            // A rank runs an operation as a whole (part 0) or in parts 1, 2, and so on. This rank
            // may have forgotten the first parts of the oldest operation. A message of that
            // operation with part 0 is not older than these parts, but a mismatch.
            let is_whole = theirs.part == 0 && theirs.sequence == oldest.sequence;
            theirs.order_key() < oldest.order_key() && !is_whole
        };
        !self.past_operations.front().is_some_and(is_forgotten)
            && self
                .operation_at(&theirs)
                .is_none_or(|past| past.call_fingerprint != header.call_fingerprint)
    }

    /// Returns this rank's operation with the same order key as another descriptor.
    pub(super) fn operation_at(&self, other: &Descriptor) -> Option<&PastOperation> {
        self.past_operations.iter().find(|past| past.descriptor.order_key() == other.order_key())
    }
}

/// Bytes that were read from a stream before a receive consumed them.
#[derive(Debug, Default)]
pub(super) struct ReadAheadBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl ReadAheadBuffer {
    /// Reads the bytes that have arrived, as far as the buffer has space. Returns their number.
    pub(super) fn fill(
        &mut self,
        endpoint: &dyn Endpoint,
        from: Rank,
        stream: u8,
    ) -> Result<usize> {
        if self.bytes.is_empty() {
            self.bytes.resize(READ_AHEAD_BYTES, 0);
        }
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let room = Dst::from(&mut self.bytes[self.end..]);
        let count = endpoint.try_receive(from, Channel::Collective(stream), room)?;
        self.end += count;
        Ok(count)
    }

    /// Returns the next header, or `None` if a part of it has not arrived.
    pub(super) fn header(&self) -> Result<Option<CollectiveHeader>> {
        let bytes = &self.bytes[self.start..self.end];
        bytes.first_chunk::<HEADER_BYTES>().map(CollectiveHeader::decode).transpose()
    }

    /// Consumes the next header.
    pub(super) fn skip_header(&mut self) {
        self.start += HEADER_BYTES;
    }

    /// Moves payload bytes from the buffer to their destination. Returns their number.
    pub(super) fn copy_out(&mut self, into: Dst<'_>) -> usize {
        let count = into.len().min(self.end - self.start);
        let bytes = &self.bytes[self.start..self.start + count];
        into.slice(0, count).copy_from(bytes.into());
        self.start += count;
        count
    }
}
