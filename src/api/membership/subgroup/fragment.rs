//! Splits a control message into fragments of at most 4 KiB, and reassembles the fragments. Each
//! fragment is sent as a separate message:
//!
//! | bytes | content of a fragment |
//! |---|---|
//! | 0–7 | `distlttr` |
//! | 8–15 | the number of the message, which the sender counts |
//! | 16–19 | the length of the whole message |
//! | 20–23 | the offset of this fragment's payload in the message |
//! | 24–4095 | the payload |
//!
//! Because a fragment is small, a single posted receive with a small buffer fits any fragment. In
//! groups of up to about 2,000 ranks, fragments also travel eagerly, that is, without waiting for
//! the receiver. A fragment is in [pooled memory](crate::backend::buffer_pool), which the engine
//! uses until the send or the receive completes.
//!
//! If a fragment does not continue its message, the receiver drops the fragment and the message.
//! The memory for incomplete messages is bounded. If the memory is used up, the receiver drops the
//! oldest incomplete message of the same sender, because the sender has probably given up this
//! message.
//!
//! This module does not depend on the content of messages.

use super::quota::SenderQuota;
use crate::backend::buffer_pool::PooledBuffer;
use crate::base::buffer::{Dst, Src};
use crate::base::ids::Rank;
use std::collections::BTreeMap;

/// The maximum size of a fragment in bytes, including its header.
const FRAGMENT_BYTES: usize = 4096;
const HEADER_BYTES: usize = 24;
const PAYLOAD_BYTES: usize = FRAGMENT_BYTES - HEADER_BYTES;
const MAGIC: [u8; 8] = *b"distlttr";

/// The maximum size of a message in bytes: 1 KiB for each rank of the largest group. Most ranks
/// contribute about a third of 1 KiB.
pub(super) const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// The buffer of one fragment.
#[derive(Debug)]
pub(super) struct FragmentBuffer(PooledBuffer);

impl FragmentBuffer {
    /// Creates a buffer for receiving a fragment.
    pub(super) fn new() -> Self {
        Self(PooledBuffer::new(FRAGMENT_BYTES))
    }

    /// Returns the memory into which a fragment is received.
    pub(super) fn writable(&self) -> Dst<'static> {
        self.0.as_dst()
    }

    /// Returns the bytes of the fragment.
    pub(super) fn bytes(&self) -> Src<'static> {
        self.0.as_src()
    }

    /// Copies the first `len` bytes of a received fragment.
    pub(super) fn read(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len.min(FRAGMENT_BYTES)];
        let len = bytes.len();
        Dst::from(bytes.as_mut_slice()).copy_from(self.bytes().slice(0, len));
        bytes
    }

    fn from_parts(header: &[u8; HEADER_BYTES], payload: &[u8]) -> Self {
        let buffer = Self(PooledBuffer::new(HEADER_BYTES + payload.len()));
        buffer.writable().slice(0, HEADER_BYTES).copy_from(header.as_slice().into());
        buffer.writable().slice(HEADER_BYTES, payload.len()).copy_from(payload.into());
        buffer
    }
}

/// Splits a message into fragments. `number` distinguishes the message from other messages of the
/// sender.
pub(super) fn split_into_fragments(
    number: u64,
    message: &[u8],
) -> impl Iterator<Item = FragmentBuffer> + '_ {
    let total = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let payloads = message.chunks(PAYLOAD_BYTES).enumerate();
    let fragment = move |(index, payload): (usize, &[u8])| {
        let offset = u32::try_from(index * PAYLOAD_BYTES).unwrap_or(u32::MAX);
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&MAGIC);
        header[8..16].copy_from_slice(&number.to_le_bytes());
        header[16..20].copy_from_slice(&total.to_le_bytes());
        header[20..].copy_from_slice(&offset.to_le_bytes());
        FragmentBuffer::from_parts(&header, payload)
    };
    payloads.map(fragment)
}

/// The incomplete messages of all senders, by sender and message number.
#[derive(Debug)]
pub(super) struct Reassembly {
    partial: BTreeMap<(Rank, u64), Vec<u8>>,
    quota: SenderQuota,
}

impl Reassembly {
    /// Creates the state of a rank in a group of `size` ranks.
    pub(super) fn new(size: usize) -> Self {
        Self { partial: BTreeMap::new(), quota: SenderQuota::new(MAX_MESSAGE_BYTES, size) }
    }

    /// Adds a fragment to its message. Returns the message if it is now complete.
    pub(super) fn add_fragment(&mut self, from: Rank, fragment: &[u8]) -> Option<Vec<u8>> {
        let (header, payload) = fragment.split_at_checked(HEADER_BYTES)?;
        let number = u64::from_le_bytes(header[8..16].try_into().ok()?);
        let total = usize::try_from(u32::from_le_bytes(header[16..20].try_into().ok()?)).ok()?;
        let offset = usize::try_from(u32::from_le_bytes(header[20..].try_into().ok()?)).ok()?;
        let mut message = self.remove_partial(from, number).unwrap_or_default();
        let fits = header[..8] == MAGIC
            && total <= MAX_MESSAGE_BYTES
            && offset == message.len()
            && !payload.is_empty()
            && payload.len() <= total - offset.min(total);
        if !fits {
            return None;
        }
        message.extend_from_slice(payload);
        if message.len() == total {
            return Some(message);
        }
        let partial = &mut self.partial;
        let drop_oldest = || {
            let (&oldest, _) = partial.range((from, 0)..=(from, u64::MAX)).next()?;
            partial.remove(&oldest).map(|bytes| bytes.len())
        };
        if self.quota.charge(from, message.len(), drop_oldest) {
            self.partial.insert((from, number), message);
        }
        None
    }

    /// Drops the incomplete messages of senders that have departed.
    pub(super) fn drop_senders(&mut self, is_gone: impl Fn(Rank) -> bool) {
        let mut senders: Vec<Rank> = self.partial.keys().map(|&(from, _)| from).collect();
        senders.dedup();
        for from in senders.into_iter().filter(|&from| is_gone(from)) {
            let messages = self.partial.range((from, 0)..=(from, u64::MAX));
            let numbers: Vec<u64> = messages.map(|(&(_, number), _)| number).collect();
            numbers.into_iter().for_each(|number| drop(self.remove_partial(from, number)));
        }
    }

    fn remove_partial(&mut self, from: Rank, number: u64) -> Option<Vec<u8>> {
        let bytes = self.partial.remove(&(from, number))?;
        self.quota.refund(from, bytes.len());
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragments_of(number: u64, message: &[u8]) -> Vec<FragmentBuffer> {
        split_into_fragments(number, message).collect()
    }

    fn content(buffer: &FragmentBuffer) -> Vec<u8> {
        buffer.read(buffer.bytes().len())
    }

    #[test]
    fn interleaved_fragments_are_reassembled() {
        let long: Vec<u8> = (0..=250).cycle().take(3 * PAYLOAD_BYTES + 1).collect();
        let short = vec![7];
        let (one, two) = (fragments_of(1, &long), fragments_of(2, &short));
        assert_eq!((one.len(), two.len()), (4, 1));
        let mut reassembly = Reassembly::new(2);
        assert_eq!(reassembly.add_fragment(0, &content(&one[0])), None);
        assert_eq!(reassembly.add_fragment(0, &content(&two[0])), Some(short));
        assert_eq!(reassembly.add_fragment(1, &content(&one[0])), None);
        assert_eq!(reassembly.add_fragment(0, &content(&one[1])), None);
        assert_eq!(reassembly.add_fragment(0, &content(&one[2])), None);
        assert_eq!(reassembly.add_fragment(0, &content(&one[3])), Some(long));
        assert_eq!(reassembly.partial.keys().collect::<Vec<_>>(), [&(1, 1)]);
        // Rank 1 departed after its first fragment.
        reassembly.drop_senders(|from| from == 0);
        assert_eq!(reassembly.partial.len(), 1);
        reassembly.drop_senders(|from| from == 1);
        assert_eq!((reassembly.quota.total(), reassembly.partial.len()), (0, 0));
    }

    #[test]
    fn fragment_buffers_do_not_share_memory() {
        let blocks: Vec<FragmentBuffer> =
            (0..4).flat_map(|i| fragments_of(i, &[1; 3 * PAYLOAD_BYTES])).collect();
        let mut addresses: Vec<_> =
            blocks.iter().map(|block| block.writable().as_mut_ptr()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), blocks.len());
    }

    #[test]
    fn inconsistent_fragments_are_dropped() {
        let message = vec![1; 2 * PAYLOAD_BYTES];
        let fragments = fragments_of(1, &message);
        let mut reassembly = Reassembly::new(2);
        for bad in [&b""[..], &[0; HEADER_BYTES], &[0xff; 100], &content(&fragments[1])] {
            assert_eq!(reassembly.add_fragment(0, bad), None);
        }
        let mut huge = content(&fragments[0]);
        huge[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(reassembly.add_fragment(0, &huge), None);
        assert_eq!((reassembly.quota.total(), reassembly.partial.len()), (0, 0));
        // The first fragment arrives twice, so both copies of the message are dropped.
        assert_eq!(reassembly.add_fragment(0, &content(&fragments[0])), None);
        assert_eq!(reassembly.add_fragment(0, &content(&fragments[0])), None);
        assert_eq!(reassembly.add_fragment(0, &content(&fragments[1])), None);
        assert_eq!((reassembly.quota.total(), reassembly.partial.len()), (0, 0));
    }

    #[test]
    fn incomplete_messages_make_room_for_later_ones() {
        let mut reassembly =
            Reassembly { partial: BTreeMap::new(), quota: SenderQuota::new(FRAGMENT_BYTES, 2) };
        let messages: Vec<_> =
            (1..=10).map(|number| fragments_of(number, &[7; 2 * PAYLOAD_BYTES])).collect();
        for message in &messages[..9] {
            assert_eq!(reassembly.add_fragment(0, &content(&message[0])), None);
        }
        assert_eq!(reassembly.partial.keys().collect::<Vec<_>>(), [&(0, 9)]);
        // Messages of other senders stay.
        assert_eq!(reassembly.add_fragment(1, &content(&messages[0][0])), None);
        assert_eq!(reassembly.add_fragment(0, &content(&messages[9][0])), None);
        assert_eq!(reassembly.add_fragment(0, &content(&messages[8][1])), None);
        assert!(reassembly.add_fragment(0, &content(&messages[9][1])).is_some());
        assert!(reassembly.add_fragment(1, &content(&messages[0][1])).is_some());
        assert_eq!(reassembly.quota.total(), 0);
    }
}
