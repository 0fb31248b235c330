//! What engines say to each other: a head of 32 bytes, little endian, and for some a payload behind
//! it.
//!
//! ```text
//! kind u8 | dtype u8 | desk place or lane u16 | tag or attempt u32 | number u64 | length u64 | address or offset u64
//! ```
//!
//! Pure: bytes to values and back. What a value may be in its place (whether a number is known, an
//! offset the next one) is judged by whoever receives it.

use crate::base::dtype::DataType;
use crate::transport::ring::Head;

/// The bytes of a head.
pub(super) const HEAD_BYTES: usize = size_of::<Head>();

/// The longest payload of one piece of a message.
pub(super) const MAX_PIECE: usize = 1 << 20;

/// Where a sender's buffer can be read: its address, and the place on the sender's desk that guards
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lent {
    pub(super) address: u64,
    pub(super) place: u16,
}

/// A head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A whole message; its bytes follow, or lie in the sender's lane.
    Eager { tag: u32, dtype: DataType, len: u64, in_lane: bool },
    /// A message that stays with its sender until it is pulled. `awaited`: somebody waits until it
    /// is taken.
    Offer { tag: u32, dtype: DataType, number: u64, len: u64, lent: Option<Lent>, awaited: bool },
    /// Send the message that was offered; a later attempt replaces an earlier one.
    Pull { number: u64, attempt: u32 },
    /// A piece of a pulled message; its bytes follow, or lie in the sender's lane.
    Piece { number: u64, attempt: u32, offset: u64, len: u64, in_lane: bool },
    /// The offered message has been taken whole.
    Taken { number: u64 },
    /// Whole messages of so many bytes are no longer held.
    Credit { bytes: u64 },
    /// The offer does not stand any more.
    Withdraw { number: u64 },
    /// The offered message is being read from its front: write its back to the buffer at `address`,
    /// where the process has the domain's region at `region`.
    Share { number: u64, address: u64, region: u64 },
    /// So much of the back has been written, and no more will be.
    Wrote { number: u64, len: u64 },
}

const EAGER: u8 = 1;
const OFFER: u8 = 2;
const PULL: u8 = 3;
const PIECE: u8 = 4;
const TAKEN: u8 = 5;
const CREDIT: u8 = 6;
const WITHDRAW: u8 = 7;
/// An offer, too.
const AWAITED: u8 = 8;
const SHARE: u8 = 9;
const WROTE: u8 = 10;

/// In place of a place: the buffer is not lent.
const NOWHERE: u16 = u16::MAX;

/// The fields of a head, whatever its kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fields {
    kind: u8,
    dtype: u8,
    place: u16,
    tag: u32,
    number: u64,
    len: u64,
    extra: u64,
}

impl Frame {
    /// The head's bytes.
    pub(super) fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        let places = bytes.as_chunks_mut().0.iter_mut();
        places.zip(self.fields().words()).for_each(|(place, word)| *place = word.to_le_bytes());
        bytes
    }

    #[inline]
    fn fields(&self) -> Fields {
        let none = Fields::default();
        match *self {
            Self::Eager { tag, dtype, len, in_lane } => {
                let place = u16::from(in_lane);
                Fields { kind: EAGER, dtype: dtype as u8, place, tag, len, ..none }
            }
            Self::Offer { tag, dtype, number, len, lent, awaited } => Fields {
                kind: if awaited { AWAITED } else { OFFER },
                dtype: dtype as u8,
                tag,
                number,
                len,
                place: lent.map_or(NOWHERE, |lent| lent.place),
                extra: lent.map_or(0, |lent| lent.address),
            },
            Self::Pull { number, attempt } => Fields { kind: PULL, tag: attempt, number, ..none },
            Self::Piece { number, attempt, offset, len, in_lane } => {
                let place = u16::from(in_lane);
                Fields { kind: PIECE, place, tag: attempt, number, len, extra: offset, ..none }
            }
            Self::Taken { number } => Fields { kind: TAKEN, number, ..none },
            Self::Credit { bytes } => Fields { kind: CREDIT, len: bytes, ..none },
            Self::Withdraw { number } => Fields { kind: WITHDRAW, number, ..none },
            Self::Share { number, address: extra, region: len } => {
                Fields { kind: SHARE, number, len, extra, ..none }
            }
            Self::Wrote { number, len } => Fields { kind: WROTE, number, len, ..none },
        }
    }

    /// The first word of a whole message's head, of which the others are as a [ring's](Head).
    #[inline]
    pub(super) fn first_of_whole(tag: u32, dtype: DataType) -> u64 {
        let [first, ..] =
            Fields { kind: EAGER, dtype: dtype as u8, tag, ..Fields::default() }.words();
        first
    }

    /// The whole message of so many bytes whose head has this first word; `None` for that of
    /// anything else.
    #[inline]
    pub(super) fn whole(first: u64, len: u64) -> Option<Self> {
        let Fields { kind, dtype, place, tag, .. } = Fields::of_words([first, 0, len, 0]);
        let dtype = DataType::ALL.get(usize::from(dtype)).copied();
        dtype.filter(|_| kind == EAGER && place == 0).map(|dtype| Self::Eager {
            tag,
            dtype,
            len,
            in_lane: false,
        })
    }

    /// The inverse of [`Frame::encode`]; `None` for bytes that no frame has.
    pub(super) fn decode(bytes: &[u8; HEAD_BYTES]) -> Option<Self> {
        let words = bytes.as_chunks().0;
        let fields = Fields::of_words(std::array::from_fn(|i| u64::from_le_bytes(words[i])));
        let Fields { kind, dtype, place, tag, number, len, extra } = fields;
        let dtype = || DataType::ALL.get(usize::from(dtype)).copied();
        let frame = match kind {
            EAGER => Self::Eager { tag, dtype: dtype()?, len, in_lane: place == 1 },
            OFFER | AWAITED => {
                let lent = (place != NOWHERE).then_some(Lent { address: extra, place });
                Self::Offer { tag, dtype: dtype()?, number, len, lent, awaited: kind == AWAITED }
            }
            PULL => Self::Pull { number, attempt: tag },
            PIECE => Self::Piece { number, attempt: tag, offset: extra, len, in_lane: place == 1 },
            TAKEN => Self::Taken { number },
            CREDIT => Self::Credit { bytes: len },
            WITHDRAW => Self::Withdraw { number },
            SHARE => Self::Share { number, address: extra, region: len },
            WROTE => Self::Wrote { number, len },
            _ => return None,
        };
        // Fields that a kind does not use are zero.
        (frame.fields() == fields).then_some(frame)
    }
}

impl Fields {
    #[inline]
    fn words(self) -> Head {
        let first = u64::from(self.kind)
            | u64::from(self.dtype) << 8
            | u64::from(self.place) << 16
            | u64::from(self.tag) << 32;
        [first, self.number, self.len, self.extra]
    }

    #[inline]
    fn of_words([first, number, len, extra]: Head) -> Self {
        let [kind, dtype, place @ .., a, b, c, d] = first.to_le_bytes();
        let (place, tag) = (u16::from_le_bytes(place), u32::from_le_bytes([a, b, c, d]));
        Self { kind, dtype, place, tag, number, len, extra }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames() -> impl Strategy<Value = Frame> {
        let dtype = (0..DataType::ALL.len()).prop_map(|i| DataType::ALL[i]);
        let lent = proptest::option::of(
            (any::<u64>(), 0..NOWHERE).prop_map(|(address, place)| Lent { address, place }),
        );
        let words = (any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>());
        (0..9, dtype, lent, words).prop_map(|(kind, dtype, lent, (tag, number, len, offset))| {
            match kind {
                0 => Frame::Eager { tag, dtype, len, in_lane: number & 1 == 1 },
                1 => Frame::Offer { tag, dtype, number, len, lent, awaited: offset & 1 == 1 },
                2 => Frame::Pull { number, attempt: tag },
                3 => Frame::Piece { number, attempt: tag, offset, len, in_lane: tag & 1 == 1 },
                4 => Frame::Taken { number },
                5 => Frame::Credit { bytes: len },
                6 => Frame::Share { number, address: offset, region: len },
                7 => Frame::Wrote { number, len },
                _ => Frame::Withdraw { number },
            }
        })
    }

    #[test]
    fn the_first_word_tells_a_whole_message() {
        let (tag, dtype, len) = (77, DataType::F64, 40);
        let (whole, first) =
            (Frame::Eager { tag, dtype, len, in_lane: false }, Frame::first_of_whole(tag, dtype));
        assert_eq!(whole.fields().words(), [first, 0, len, 0]);
        assert_eq!(Frame::whole(first, len), Some(whole));
        let piece = Frame::Piece { number: 1, attempt: tag, offset: 0, len, in_lane: true };
        let others = [Frame::Credit { bytes: len }, piece].map(|frame| frame.fields().words()[0]);
        let wrong = [first | 1 << 16, first | 0xff00, 0];
        for first in others.into_iter().chain(wrong) {
            assert_eq!(Frame::whole(first, len), None, "{first:#x}");
        }
    }

    proptest! {
        #[test]
        fn a_frame_survives_its_bytes(frame in frames()) {
            prop_assert_eq!(Frame::decode(&frame.encode()), Some(frame));
        }

        #[test]
        fn any_bytes_are_a_frame_with_just_these_bytes_or_none(bytes in any::<[u8; HEAD_BYTES]>(), kind in 0u8..12) {
            let mut bytes = bytes;
            bytes[0] = kind;
            if let Some(frame) = Frame::decode(&bytes) {
                prop_assert_eq!(frame.encode(), bytes);
            }
        }
    }
}
