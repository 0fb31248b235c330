//! The header of one collective message in a stream between hosts. It has 64 bytes, little endian:
//!
//! ```text
//! magic u16 | version u8 | kind u8 | stripe u8 | stripes u8 | zero u48 | blame u32
//! message_number u64 | call_fingerprint u64 | descriptor 3 x u64 | len u64
//! ```
//!
//! - `message_number` and `stripe` identify the message. A long message is cut into *stripes*, one
//!   for each parallel stream.
//! - `descriptor` (the arguments of the operation) and `call_fingerprint` (a hash over all
//!   operations that the sender has issued so far) identify the operation.
//! - `blame` is the rank that the sender has waited for longest. Only the sender knows this rank.
//!   It appears in error messages, and nothing else depends on it.
//!
//! The receiver knows the expected value of every field except `blame`. It compares each field with
//! that value before it uses the field as a length or an index.
//!
//! This module does not depend on streams or algorithms.

use super::descriptor::Descriptor;
use super::endpoint::MAX_COLLECTIVE_STREAMS;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{MAX_WORLD_SIZE, Rank};
use std::time::Duration;

/// The size of a header in bytes.
pub const HEADER_BYTES: usize = 64;

const MAGIC: u16 = 0xd157;
const VERSION: u8 = 1;

/// The kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveMessageKind {
    /// A message of an algorithm. The payload follows the header.
    Data,
    /// The notice that the sender has entered the operation. An arrival notice has no payload and
    /// no message number.
    ArrivalNotice,
}

/// The rank that the sender has waited for longest in the operation, and the duration of that wait.
/// The duration has whole milliseconds, at most 32.767 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlamedRank {
    /// The rank that the sender waited for.
    pub rank: Rank,
    /// The time that the sender waited.
    pub waited: Duration,
}

impl BlamedRank {
    /// The number of low bits of the encoded word. They hold the rank plus one; the remaining 15
    /// bits hold the milliseconds.
    const RANK_BITS: u32 = 17;

    /// Returns the blame for a wait, or `None` if the wait was shorter than 1 ms.
    pub fn new(rank: Rank, waited: Duration) -> Option<Self> {
        let most = u128::from(u32::MAX >> Self::RANK_BITS);
        let ms = u64::try_from(waited.as_millis().min(most)).unwrap_or(0);
        let waited = Duration::from_millis(ms);
        (ms > 0 && rank < MAX_WORLD_SIZE).then_some(Self { rank, waited })
    }

    fn encode(self) -> u32 {
        let ms = u32::try_from(self.waited.as_millis()).unwrap_or(0);
        let rank = u32::try_from(self.rank).unwrap_or(0);
        ms << Self::RANK_BITS | (rank + 1)
    }

    /// Decodes the header word. Returns `None` if the word blames no rank.
    fn decode(word: u32) -> Option<Self> {
        let rank = (word & ((1 << Self::RANK_BITS) - 1)).checked_sub(1)?;
        let waited = Duration::from_millis(u64::from(word >> Self::RANK_BITS));
        Self::new(usize::try_from(rank).ok()?, waited)
    }
}

/// The decoded header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveHeader {
    /// The kind of the message.
    pub kind: CollectiveMessageKind,
    /// The index of this stripe of the message.
    pub stripe: u8,
    /// The number of stripes into which the message was cut.
    pub stripes: u8,
    /// The number of the message in the sequence from this sender to this receiver, from 1.
    pub message_number: u64,
    /// The fingerprint of all calls of the sender so far.
    pub call_fingerprint: u64,
    /// The sender's current operation.
    pub descriptor: Descriptor,
    /// The length of the whole message in bytes, over all stripes.
    pub len: u64,
    /// The rank that the sender has waited for longest; `None` if it has waited less than 1 ms.
    pub blame: Option<BlamedRank>,
}

impl CollectiveHeader {
    /// Returns the 64 bytes of the header as they are sent.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let kind = match self.kind {
            CollectiveMessageKind::Data => 1,
            CollectiveMessageKind::ArrivalNotice => 2,
        };
        let mut bytes = [0; HEADER_BYTES];
        bytes[..2].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[2..6].copy_from_slice(&[VERSION, kind, self.stripe, self.stripes]);
        let blame_word = self.blame.map_or(0, BlamedRank::encode);
        bytes[12..16].copy_from_slice(&blame_word.to_le_bytes());
        let [first, count, sequence] = self.descriptor.encode();
        let words = [self.message_number, self.call_fingerprint, first, count, sequence, self.len];
        for (place, word) in bytes[16..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes a header; the inverse of [`CollectiveHeader::encode`].
    ///
    /// # Errors
    /// `Connection` if a field is invalid in this version. The message names that field.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self> {
        if u16::from_le_bytes([bytes[0], bytes[1]]) != MAGIC {
            return Err(malformed_header(
                "the first two bytes are not the magic number; the stream is out of step",
            ));
        }
        let [version, kind, stripe, stripes] = [bytes[2], bytes[3], bytes[4], bytes[5]];
        if version != VERSION {
            return Err(malformed_header(&format!(
                "it has version {version}, and this rank uses version {VERSION}"
            )));
        }
        let kind = match kind {
            1 => CollectiveMessageKind::Data,
            2 => CollectiveMessageKind::ArrivalNotice,
            _ => return Err(malformed_header(&format!("kind {kind} is unknown"))),
        };
        if stripe >= stripes || usize::from(stripes) > MAX_COLLECTIVE_STREAMS {
            return Err(malformed_header(&format!("stripe {stripe} of {stripes} does not exist")));
        }
        let blame_word = u32::from_le_bytes(std::array::from_fn(|k| bytes[12 + k]));
        let blame = BlamedRank::decode(blame_word);
        if bytes[6..12] != [0; 6] || (blame_word != 0 && blame.is_none()) {
            return Err(malformed_header("reserved bytes are not zero"));
        }
        let word = |i: usize| {
            let at = 16 + 8 * i;
            u64::from_le_bytes(std::array::from_fn(|k| bytes[at + k]))
        };
        let words = [word(2), word(3), word(4)];
        let descriptor = Descriptor::decode(words).filter(|known| known.encode() == words);
        let Some(descriptor) = descriptor else {
            return Err(malformed_header("its operation does not exist"));
        };
        let header = Self {
            kind,
            stripe,
            stripes,
            message_number: word(0),
            call_fingerprint: word(1),
            descriptor,
            len: word(5),
            blame,
        };
        if kind == CollectiveMessageKind::ArrivalNotice
            && (stripes, header.message_number, header.len) != (1, 0, 0)
        {
            return Err(malformed_header("an arrival notice has no payload"));
        }
        Ok(header)
    }
}

fn malformed_header(reason: &str) -> Error {
    Error::new(
        ErrorKind::Connection,
        format!("a collective message has an invalid header: {reason}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::dtype::DataType;
    use crate::base::label::Label;
    use crate::base::op::ReduceOp;
    use crate::transport::{CountSpec, OpKind};

    fn sample_header() -> CollectiveHeader {
        let descriptor = Descriptor {
            kind: OpKind::ReduceScatter,
            dtype: Some(DataType::F8E5M2),
            op: Some(ReduceOp::PremulSum),
            root: Some(65_535),
            count_spec: CountSpec::Count(u64::MAX),
            sequence: 0x0304_0506_0708,
            algorithm: 9,
            part: 0x0102,
            label: Label::NONE,
        };
        CollectiveHeader {
            kind: CollectiveMessageKind::Data,
            stripe: 3,
            stripes: 7,
            message_number: 0x1112_1314_1516_1718,
            call_fingerprint: 0xf1f2_f3f4_f5f6_f7f8,
            descriptor,
            len: 0x2122_2324_2526_2728,
            blame: BlamedRank::new(0x0304, Duration::from_millis(5)),
        }
    }

    #[test]
    fn header_round_trips_with_fixed_offsets() {
        let bytes = sample_header().encode();
        assert_eq!(CollectiveHeader::decode(&bytes).unwrap(), sample_header());
        assert_eq!(&bytes[..12], &[0x57, 0xd1, 1, 1, 3, 7, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[12..16], &[5, 3, 10, 0]);
        assert_eq!(&bytes[16..18], &[0x18, 0x17]);
        assert_eq!(&bytes[24..26], &[0xf8, 0xf7]);
        assert_eq!(&bytes[48..50], &[0x08, 0x07]);
        assert_eq!(&bytes[56..58], &[0x28, 0x27]);
        let presence = CollectiveHeader {
            kind: CollectiveMessageKind::ArrivalNotice,
            stripe: 0,
            stripes: 1,
            message_number: 0,
            len: 0,
            ..sample_header()
        };
        assert_eq!(CollectiveHeader::decode(&presence.encode()).unwrap(), presence);
    }

    #[test]
    fn blame_requires_a_valid_rank_and_a_nonzero_wait() {
        let ms = Duration::from_millis;
        assert_eq!(BlamedRank::new(3, Duration::from_micros(999)), None);
        assert_eq!(BlamedRank::new(MAX_WORLD_SIZE, ms(9)), None);
        let longest = BlamedRank::new(65_535, ms(1 << 40)).unwrap();
        assert_eq!((longest.rank, longest.waited), (65_535, ms(32_767)));
        assert_eq!(BlamedRank::decode(longest.encode()), Some(longest));
        for nothing in [0, 7, 1 << 17, 65_537 | 1 << 17] {
            assert_eq!(BlamedRank::decode(nothing), None, "{nothing:#x}");
        }
    }

    #[test]
    fn changed_byte_gives_another_header_or_an_error() {
        let bytes = sample_header().encode();
        for at in 0..HEADER_BYTES {
            for flip in 1..=255 {
                let mut changed = bytes;
                changed[at] ^= flip;
                if let Ok(read) = CollectiveHeader::decode(&changed) {
                    assert_ne!(read, sample_header());
                    assert_eq!(read.encode(), changed, "byte {at}");
                }
            }
        }
    }

    #[test]
    fn malformed_headers_are_rejected_with_a_reason() {
        let good = sample_header().encode();
        let cases: [(usize, u8, &str); 10] = [
            (0, 0, "out of step"),
            (2, 9, "version 9"),
            (3, 0, "kind 0"),
            (4, 7, "stripe 7 of 7"),
            (5, 9, "stripe 3 of 9"),
            (7, 1, "not zero"),
            (11, 1, "not zero"),
            (14, 11, "not zero"),
            (32, 0, "operation does not exist"),
            (3, 2, "arrival notice"),
        ];
        for (at, value, expected_text) in cases {
            let mut bytes = good;
            bytes[at] = value;
            let error = CollectiveHeader::decode(&bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Connection);
            assert!(error.message().contains(expected_text), "{error}");
        }
    }
}
