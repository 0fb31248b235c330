//! The table of the RTS frames (announcements of messages) that the peers of this rank have sent.
//! An entry stays until its message has been received or cancelled.
//!
//! A peer numbers its RTS frames in ascending order and never reuses a number. The table bounds the
//! number of entries per peer.

use super::frame::ExposedBuffer;
use super::limits::MAX_OUTSTANDING;
use super::unexpected::{MessageBody, UnexpectedMessage};
use crate::base::dtype::DataType;
use crate::base::ids::{Rank, WorldSize};
use std::collections::HashMap;

/// The front half of a split transfer ends at a multiple of this length, a page. The kernel then
/// looks up each page for only one of the two sides.
const SPLIT_ALIGNMENT: usize = 4 << 10;

/// Returns the length of the front half of a message, which the receiver of a split transfer reads.
/// The sender writes the rest, the back half. For example, a message of 100,000 bytes has a front
/// half of 49,152 bytes.
pub(super) fn front_len(len: usize) -> usize {
    len / 2 / SPLIT_ALIGNMENT * SPLIT_ALIGNMENT
}

/// An RTS that a peer has sent, and the progress of its message.
#[derive(Debug)]
pub(super) struct ReceivedRts {
    /// The number of the message in the match queues of this rank.
    pub(super) arrival: u64,
    pub(super) tag: u32,
    pub(super) dtype: DataType,
    pub(super) len: usize,
    /// The sender's buffer, if this rank may read it by CMA.
    pub(super) exposed: Option<ExposedBuffer>,
    /// Whether a caller of the sender waits for the send.
    pub(super) is_awaited: bool,
    /// The number of CTS frames sent for the message.
    pub(super) attempt: u32,
    /// The receive that has accepted the RTS, if any.
    pub(super) receive: Option<u64>,
    /// The number of bytes that have arrived.
    pub(super) received: usize,
    /// The rank that copies the back half. Used only if the message is read by CMA.
    pub(super) back_half: BackHalf,
}

/// The rank that copies the back half of a message that is read by CMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BackHalf {
    /// The receiver reads the whole message.
    GetAll,
    /// The receiver has asked the sender to write the back half.
    PutRequested,
    /// The sender has written this many bytes of the back half, and will write no more.
    PutDone(usize),
}

impl ReceivedRts {
    /// Returns the offset up to which the receiver reads the message.
    pub(super) fn get_end(&self) -> usize {
        if self.back_half == BackHalf::GetAll { self.len } else { front_len(self.len) }
    }

    /// Returns whether the receiver has read the front half of a message that has a back half.
    pub(super) fn has_front(&self) -> bool {
        self.back_half != BackHalf::GetAll && self.received == self.get_end()
    }

    /// Returns the message as an unexpected message.
    pub(super) fn to_unexpected(&self, from: Rank, number: u64) -> UnexpectedMessage {
        let body = MessageBody::AtSender(number);
        UnexpectedMessage { from, tag: self.tag, dtype: self.dtype, len: self.len, body }
    }
}

/// The RTS frames of one peer.
#[derive(Debug, Default)]
struct RtsOfPeer {
    last_number: u64,
    by_number: HashMap<u64, ReceivedRts>,
}

/// The RTS frames of all peers.
#[derive(Debug)]
pub(super) struct RtsTable(Vec<RtsOfPeer>);

impl RtsTable {
    /// Creates a table for this number of ranks.
    pub(super) fn new(ranks: WorldSize) -> Self {
        Self((0..ranks).map(|_| RtsOfPeer::default()).collect())
    }

    /// Adds an RTS. Returns false if the peer has too many entries, or if the number is not higher
    /// than the numbers before.
    pub(super) fn insert(&mut self, peer: Rank, number: u64, rts: ReceivedRts) -> bool {
        let table = &mut self.0[peer];
        let is_valid = number > table.last_number && table.by_number.len() < MAX_OUTSTANDING;
        if is_valid {
            table.last_number = number;
            table.by_number.insert(number, rts);
        }
        is_valid
    }

    /// Returns whether the peer has sent an RTS of this or a higher number.
    pub(super) fn has_reached(&self, peer: Rank, number: u64) -> bool {
        number <= self.0[peer].last_number
    }

    /// Returns an entry, if the message has not been received or cancelled.
    pub(super) fn get(&self, peer: Rank, number: u64) -> Option<&ReceivedRts> {
        self.0[peer].by_number.get(&number)
    }

    /// Returns an entry, so that the caller can change its progress.
    pub(super) fn get_mut(&mut self, peer: Rank, number: u64) -> Option<&mut ReceivedRts> {
        self.0[peer].by_number.get_mut(&number)
    }

    /// Removes an RTS.
    pub(super) fn remove(&mut self, peer: Rank, number: u64) -> Option<ReceivedRts> {
        self.0[peer].by_number.remove(&number)
    }

    /// Removes all entries of a peer.
    pub(super) fn clear_peer(&mut self, peer: Rank) {
        self.0[peer].by_number.clear();
    }

    /// Removes all entries.
    pub(super) fn clear(&mut self) {
        self.0.iter_mut().for_each(|table| table.by_number.clear());
    }

    /// Returns whether a sender may be writing to a receive buffer of this rank.
    pub(super) fn has_requested_puts(&self) -> bool {
        let mut all = self.0.iter().flat_map(|table| table.by_number.values());
        all.any(|rts| rts.back_half == BackHalf::PutRequested)
    }

    /// Returns the numbers of a peer's RTS frames, in ascending order.
    #[cfg(test)]
    pub(super) fn numbers(&self, peer: Rank) -> Vec<u64> {
        let mut numbers: Vec<u64> = self.0[peer].by_number.keys().copied().collect();
        numbers.sort_unstable();
        numbers
    }
}
