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
use crate::transport::ring::RecordHeader;

/// The bytes of a head.
pub(super) const HEADER_BYTES: usize = size_of::<RecordHeader>();

/// The longest payload of one piece of a message.
pub(super) const MAX_FRAGMENT: usize = 1 << 20;

/// Where a sender's buffer can be read: its address, and the place on the sender's desk that guards
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExposedBuffer {
    pub(super) address: u64,
    pub(super) slot: u16,
}

/// A head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageFrame {
    /// A whole message; its bytes follow, or lie in the sender's lane.
    Eager { tag: u32, dtype: DataType, len: u64, is_bulk: bool },
    /// A message that stays with its sender until it is pulled. `is_awaited`: somebody waits until
    /// it is taken.
    Rts {
        tag: u32,
        dtype: DataType,
        number: u64,
        len: u64,
        exposed: Option<ExposedBuffer>,
        is_awaited: bool,
    },
    /// Send the message that was offered; a later attempt replaces an earlier one.
    Cts { number: u64, attempt: u32 },
    /// A piece of a pulled message; its bytes follow, or lie in the sender's lane.
    Fragment { number: u64, attempt: u32, offset: u64, len: u64, is_bulk: bool },
    /// The offered message has been taken whole.
    Fin { number: u64 },
    /// Whole messages of so many bytes are no longer held.
    Credit { bytes: u64 },
    /// The offer does not stand any more.
    CancelRts { number: u64 },
    /// The offered message is being read from its front: write its back to the buffer at `address`,
    /// where the process has the domain's region at `region_address`.
    SplitPut { number: u64, address: u64, region_address: u64 },
    /// So much of the back has been written, and no more will be.
    PutDone { number: u64, len: u64 },
}

const EAGER: u8 = 1;
const RTS: u8 = 2;
const CTS: u8 = 3;
const FRAGMENT: u8 = 4;
const FIN: u8 = 5;
const CREDIT: u8 = 6;
const CANCEL_RTS: u8 = 7;
/// An offer, too.
const RTS_AWAITED: u8 = 8;
const SPLIT_PUT: u8 = 9;
const PUT_DONE: u8 = 10;

/// In place of a place: the buffer is not lent.
const NO_EXPOSURE_SLOT: u16 = u16::MAX;

/// The fields of a head, whatever its kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FrameFields {
    kind: u8,
    dtype: u8,
    slot_or_bulk: u16,
    tag: u32,
    number: u64,
    len: u64,
    address_or_offset: u64,
}

impl MessageFrame {
    /// The head's bytes.
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let places = bytes.as_chunks_mut().0.iter_mut();
        places.zip(self.fields().to_words()).for_each(|(place, word)| *place = word.to_le_bytes());
        bytes
    }

    #[inline]
    fn fields(&self) -> FrameFields {
        let none = FrameFields::default();
        match *self {
            Self::Eager { tag, dtype, len, is_bulk: in_lane } => {
                let place = u16::from(in_lane);
                FrameFields {
                    kind: EAGER,
                    dtype: dtype as u8,
                    slot_or_bulk: place,
                    tag,
                    len,
                    ..none
                }
            }
            Self::Rts { tag, dtype, number, len, exposed: lent, is_awaited: awaited } => {
                FrameFields {
                    kind: if awaited { RTS_AWAITED } else { RTS },
                    dtype: dtype as u8,
                    tag,
                    number,
                    len,
                    slot_or_bulk: lent.map_or(NO_EXPOSURE_SLOT, |lent| lent.slot),
                    address_or_offset: lent.map_or(0, |lent| lent.address),
                }
            }
            Self::Cts { number, attempt } => {
                FrameFields { kind: CTS, tag: attempt, number, ..none }
            }
            Self::Fragment { number, attempt, offset, len, is_bulk: in_lane } => {
                let place = u16::from(in_lane);
                FrameFields {
                    kind: FRAGMENT,
                    slot_or_bulk: place,
                    tag: attempt,
                    number,
                    len,
                    address_or_offset: offset,
                    ..none
                }
            }
            Self::Fin { number } => FrameFields { kind: FIN, number, ..none },
            Self::Credit { bytes } => FrameFields { kind: CREDIT, len: bytes, ..none },
            Self::CancelRts { number } => FrameFields { kind: CANCEL_RTS, number, ..none },
            Self::SplitPut { number, address: extra, region_address: len } => {
                FrameFields { kind: SPLIT_PUT, number, len, address_or_offset: extra, ..none }
            }
            Self::PutDone { number, len } => FrameFields { kind: PUT_DONE, number, len, ..none },
        }
    }

    /// The first word of a whole message's head, of which the others are as a [ring's](Head).
    #[inline]
    pub(super) fn eager_first_word(tag: u32, dtype: DataType) -> u64 {
        let [first, ..] =
            FrameFields { kind: EAGER, dtype: dtype as u8, tag, ..FrameFields::default() }
                .to_words();
        first
    }

    /// The whole message of so many bytes whose head has this first word; `None` for that of
    /// anything else.
    #[inline]
    pub(super) fn eager_from_first_word(first: u64, len: u64) -> Option<Self> {
        let FrameFields { kind, dtype, slot_or_bulk: place, tag, .. } =
            FrameFields::from_words([first, 0, len, 0]);
        let dtype = DataType::ALL.get(usize::from(dtype)).copied();
        dtype.filter(|_| kind == EAGER && place == 0).map(|dtype| Self::Eager {
            tag,
            dtype,
            len,
            is_bulk: false,
        })
    }

    /// The inverse of [`MessageFrame::encode`]; `None` for bytes that no frame has.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let words = bytes.as_chunks().0;
        let fields = FrameFields::from_words(std::array::from_fn(|i| u64::from_le_bytes(words[i])));
        let FrameFields {
            kind,
            dtype,
            slot_or_bulk: place,
            tag,
            number,
            len,
            address_or_offset: extra,
        } = fields;
        let dtype = || DataType::ALL.get(usize::from(dtype)).copied();
        let frame = match kind {
            EAGER => Self::Eager { tag, dtype: dtype()?, len, is_bulk: place == 1 },
            RTS | RTS_AWAITED => {
                let lent = (place != NO_EXPOSURE_SLOT)
                    .then_some(ExposedBuffer { address: extra, slot: place });
                Self::Rts {
                    tag,
                    dtype: dtype()?,
                    number,
                    len,
                    exposed: lent,
                    is_awaited: kind == RTS_AWAITED,
                }
            }
            CTS => Self::Cts { number, attempt: tag },
            FRAGMENT => {
                Self::Fragment { number, attempt: tag, offset: extra, len, is_bulk: place == 1 }
            }
            FIN => Self::Fin { number },
            CREDIT => Self::Credit { bytes: len },
            CANCEL_RTS => Self::CancelRts { number },
            SPLIT_PUT => Self::SplitPut { number, address: extra, region_address: len },
            PUT_DONE => Self::PutDone { number, len },
            _ => return None,
        };
        // Fields that a kind does not use are zero.
        (frame.fields() == fields).then_some(frame)
    }
}

impl FrameFields {
    #[inline]
    fn to_words(self) -> RecordHeader {
        let first = u64::from(self.kind)
            | u64::from(self.dtype) << 8
            | u64::from(self.slot_or_bulk) << 16
            | u64::from(self.tag) << 32;
        [first, self.number, self.len, self.address_or_offset]
    }

    #[inline]
    fn from_words([first, number, len, extra]: RecordHeader) -> Self {
        let [kind, dtype, place @ .., a, b, c, d] = first.to_le_bytes();
        let (place, tag) = (u16::from_le_bytes(place), u32::from_le_bytes([a, b, c, d]));
        Self { kind, dtype, slot_or_bulk: place, tag, number, len, address_or_offset: extra }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames() -> impl Strategy<Value = MessageFrame> {
        let dtype = (0..DataType::ALL.len()).prop_map(|i| DataType::ALL[i]);
        let lent = proptest::option::of(
            (any::<u64>(), 0..NO_EXPOSURE_SLOT)
                .prop_map(|(address, place)| ExposedBuffer { address, slot: place }),
        );
        let words = (any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>());
        (0..9, dtype, lent, words).prop_map(|(kind, dtype, lent, (tag, number, len, offset))| {
            match kind {
                0 => MessageFrame::Eager { tag, dtype, len, is_bulk: number & 1 == 1 },
                1 => MessageFrame::Rts {
                    tag,
                    dtype,
                    number,
                    len,
                    exposed: lent,
                    is_awaited: offset & 1 == 1,
                },
                2 => MessageFrame::Cts { number, attempt: tag },
                3 => MessageFrame::Fragment {
                    number,
                    attempt: tag,
                    offset,
                    len,
                    is_bulk: tag & 1 == 1,
                },
                4 => MessageFrame::Fin { number },
                5 => MessageFrame::Credit { bytes: len },
                6 => MessageFrame::SplitPut { number, address: offset, region_address: len },
                7 => MessageFrame::PutDone { number, len },
                _ => MessageFrame::CancelRts { number },
            }
        })
    }

    #[test]
    fn first_word_identifies_an_eager_message() {
        let (tag, dtype, len) = (77, DataType::F64, 40);
        let (whole, first) = (
            MessageFrame::Eager { tag, dtype, len, is_bulk: false },
            MessageFrame::eager_first_word(tag, dtype),
        );
        assert_eq!(whole.fields().to_words(), [first, 0, len, 0]);
        assert_eq!(MessageFrame::eager_from_first_word(first, len), Some(whole));
        let piece =
            MessageFrame::Fragment { number: 1, attempt: tag, offset: 0, len, is_bulk: true };
        let others =
            [MessageFrame::Credit { bytes: len }, piece].map(|frame| frame.fields().to_words()[0]);
        let wrong = [first | 1 << 16, first | 0xff00, 0];
        for first in others.into_iter().chain(wrong) {
            assert_eq!(MessageFrame::eager_from_first_word(first, len), None, "{first:#x}");
        }
    }

    proptest! {
        #[test]
        fn frame_round_trips_through_bytes(frame in frames()) {
            prop_assert_eq!(MessageFrame::decode(&frame.encode()), Some(frame));
        }

        #[test]
        fn decoded_frame_encodes_to_the_same_bytes(bytes in any::<[u8; HEADER_BYTES]>(), kind in 0u8..12) {
            let mut bytes = bytes;
            bytes[0] = kind;
            if let Some(frame) = MessageFrame::decode(&bytes) {
                prop_assert_eq!(frame.encode(), bytes);
            }
        }
    }
}
