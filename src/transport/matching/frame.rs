//! The frames that engines exchange: a header of 32 bytes, little endian, with message bytes after
//! some kinds of frames. A kind of frame uses some of the fields; the other fields are zero.
//!
//! ```text
//! bytes    field
//! 0        kind
//! 1        element type
//! 2..4     exposure slot, or bulk flag
//! 4..8     tag, or attempt
//! 8..16    number of the message
//! 16..24   length, or address of the region
//! 24..32   address, or offset
//! ```
//!
//! In a report of a refused message, the type of the receive is in the bytes 2..4, and the size of
//! the receive in the bytes 24..32.
//!
//! This file only converts between bytes and values. The receiver checks whether a value is valid
//! in its context, for example whether it knows the number, or expects the offset.

use crate::base::dtype::DataType;
use crate::transport::ring::RecordHeader;

/// The size of a header in bytes.
pub(super) const HEADER_BYTES: usize = size_of::<RecordHeader>();

/// The maximum payload of one fragment.
pub(super) const MAX_FRAGMENT: usize = 1 << 20;

/// A send buffer that the receiver may read by CMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExposedBuffer {
    /// The address in the sender's process.
    pub(super) address: u64,
    /// The entry of the sender's exposure table. Its word says whether the buffer may still be
    /// read.
    pub(super) slot: u16,
}

/// A refused message, as the receiver describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) tag: u32,
    /// The type and the bytes of the message.
    pub(super) dtype: DataType,
    pub(super) len: u64,
    /// The type and the size of the receive.
    pub(super) wanted: DataType,
    pub(super) capacity: u64,
}

/// A decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageFrame {
    /// An eager message. Its bytes follow in the stream. If `is_bulk`, they are in the sender's
    /// bulk ring instead, a second ring for the bodies of long frames.
    Eager { tag: u32, dtype: DataType, len: u64, is_bulk: bool },
    /// Request to send: announces a message that stays with its sender until the receiver requests
    /// or reads it. `is_awaited` says whether a caller of the sender waits for this send.
    Rts {
        tag: u32,
        dtype: DataType,
        number: u64,
        len: u64,
        exposed: Option<ExposedBuffer>,
        is_awaited: bool,
    },
    /// Clear to send: requests the fragments of an announced message. If the receive expires, a
    /// later receive requests the message again with a higher `attempt`. The sender then starts
    /// again from the first byte.
    Cts { number: u64, attempt: u32 },
    /// A fragment of a requested message. Its bytes follow in the stream, or are in the sender's
    /// bulk ring.
    Fragment { number: u64, attempt: u32, offset: u64, len: u64, is_bulk: bool },
    /// Finish: the receiver has the whole announced message.
    Fin { number: u64 },
    /// The receiver returns credit: it no longer buffers eager messages of this cost.
    Credit { bytes: u64 },
    /// Cancels an RTS, because the deadline of the send has passed.
    CancelRts { number: u64 },
    /// The receiver reads the front half of the announced message and asks the sender to write the
    /// back half. `address` is the start of the receive buffer in the receiver's process, and
    /// `region_address` is the address at which that process has mapped the shared region.
    SplitPut { number: u64, address: u64, region_address: u64 },
    /// The sender has written `len` bytes of the back half and will write no more.
    PutDone { number: u64, len: u64 },
    /// A receive has refused an earlier message of the frame's receiver.
    Refused(Refusal),
}

const EAGER: u8 = 1;
const RTS: u8 = 2;
const CTS: u8 = 3;
const FRAGMENT: u8 = 4;
const FIN: u8 = 5;
const CREDIT: u8 = 6;
const CANCEL_RTS: u8 = 7;
/// An RTS whose `is_awaited` is true.
const RTS_AWAITED: u8 = 8;
const SPLIT_PUT: u8 = 9;
const PUT_DONE: u8 = 10;
const REFUSED: u8 = 11;

/// The value of the slot field in an RTS whose buffer is not exposed.
const NO_EXPOSURE_SLOT: u16 = u16::MAX;

/// The fields of a header of any kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FrameFields {
    kind: u8,
    dtype: u8,
    /// An exposure slot, or the bulk flag.
    slot: u16,
    /// A tag, or an attempt.
    tag: u32,
    number: u64,
    len: u64,
    /// An address, or an offset.
    address: u64,
}

impl MessageFrame {
    /// Returns the bytes of the header.
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
            Self::Eager { tag, dtype, len, is_bulk } => {
                let (dtype, slot) = (dtype as u8, u16::from(is_bulk));
                FrameFields { kind: EAGER, dtype, slot, tag, len, ..none }
            }
            Self::Rts { tag, dtype, number, len, exposed, is_awaited } => {
                let kind = if is_awaited { RTS_AWAITED } else { RTS };
                let no_exposure = ExposedBuffer { address: 0, slot: NO_EXPOSURE_SLOT };
                let ExposedBuffer { address, slot } = exposed.unwrap_or(no_exposure);
                FrameFields { kind, dtype: dtype as u8, slot, tag, number, len, address }
            }
            Self::Cts { number, attempt } => {
                FrameFields { kind: CTS, tag: attempt, number, ..none }
            }
            Self::Fragment { number, attempt: tag, offset: address, len, is_bulk } => {
                let slot = u16::from(is_bulk);
                FrameFields { kind: FRAGMENT, slot, tag, number, len, address, ..none }
            }
            Self::Fin { number } => FrameFields { kind: FIN, number, ..none },
            Self::Credit { bytes } => FrameFields { kind: CREDIT, len: bytes, ..none },
            Self::CancelRts { number } => FrameFields { kind: CANCEL_RTS, number, ..none },
            Self::SplitPut { number, address, region_address: len } => {
                FrameFields { kind: SPLIT_PUT, number, len, address, ..none }
            }
            Self::PutDone { number, len } => FrameFields { kind: PUT_DONE, number, len, ..none },
            Self::Refused(Refusal { tag, dtype, len, wanted, capacity: address }) => {
                let (dtype, slot) = (dtype as u8, wanted as u16);
                FrameFields { kind: REFUSED, dtype, slot, tag, len, address, ..none }
            }
        }
    }

    /// Returns the first word of an eager message's header. The fast path writes an eager frame as
    /// a ring record, and the ring itself writes the other words of the header ([`RecordHeader`]).
    #[inline]
    pub(super) fn eager_first_word(tag: u32, dtype: DataType) -> u64 {
        let [first, ..] =
            FrameFields { kind: EAGER, dtype: dtype as u8, tag, ..FrameFields::default() }
                .to_words();
        first
    }

    /// Returns the eager message of `len` bytes whose header has this first word. Returns `None`
    /// for the first word of another kind of frame.
    #[inline]
    pub(super) fn eager_from_first_word(first: u64, len: u64) -> Option<Self> {
        let FrameFields { kind, dtype, slot, tag, .. } =
            FrameFields::from_words([first, 0, len, 0]);
        let dtype = DataType::ALL.get(usize::from(dtype)).copied();
        let is_eager = kind == EAGER && slot == 0;
        dtype.filter(|_| is_eager).map(|dtype| Self::Eager { tag, dtype, len, is_bulk: false })
    }

    /// Decodes a header; the inverse of [`MessageFrame::encode`]. Returns `None` for invalid bytes.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let words = bytes.as_chunks().0;
        let fields = FrameFields::from_words(std::array::from_fn(|i| u64::from_le_bytes(words[i])));
        let FrameFields { kind, dtype, slot, tag, number, len, address } = fields;
        let dtype = || DataType::ALL.get(usize::from(dtype)).copied();
        let frame = match kind {
            EAGER => Self::Eager { tag, dtype: dtype()?, len, is_bulk: slot == 1 },
            RTS | RTS_AWAITED => {
                let is_awaited = kind == RTS_AWAITED;
                let exposed = (slot != NO_EXPOSURE_SLOT).then_some(ExposedBuffer { address, slot });
                Self::Rts { tag, dtype: dtype()?, number, len, exposed, is_awaited }
            }
            CTS => Self::Cts { number, attempt: tag },
            FRAGMENT => {
                let (attempt, offset, is_bulk) = (tag, address, slot == 1);
                Self::Fragment { number, attempt, offset, len, is_bulk }
            }
            FIN => Self::Fin { number },
            CREDIT => Self::Credit { bytes: len },
            CANCEL_RTS => Self::CancelRts { number },
            SPLIT_PUT => Self::SplitPut { number, address, region_address: len },
            PUT_DONE => Self::PutDone { number, len },
            REFUSED => {
                let wanted = DataType::ALL.get(usize::from(slot)).copied()?;
                Self::Refused(Refusal { tag, dtype: dtype()?, len, wanted, capacity: address })
            }
            _ => return None,
        };
        // The fields that a kind of frame does not use must be zero.
        (frame.fields() == fields).then_some(frame)
    }
}

impl FrameFields {
    #[inline]
    fn to_words(self) -> RecordHeader {
        let first = u64::from(self.kind)
            | u64::from(self.dtype) << 8
            | u64::from(self.slot) << 16
            | u64::from(self.tag) << 32;
        [first, self.number, self.len, self.address]
    }

    #[inline]
    fn from_words([first, number, len, address]: RecordHeader) -> Self {
        let [kind, dtype, slot @ .., a, b, c, d] = first.to_le_bytes();
        let (slot, tag) = (u16::from_le_bytes(slot), u32::from_le_bytes([a, b, c, d]));
        Self { kind, dtype, slot, tag, number, len, address }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames() -> impl Strategy<Value = MessageFrame> {
        let dtype = (0..DataType::ALL.len()).prop_map(|i| DataType::ALL[i]);
        let exposed = proptest::option::of(
            (any::<u64>(), 0..NO_EXPOSURE_SLOT)
                .prop_map(|(address, place)| ExposedBuffer { address, slot: place }),
        );
        let words = (any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>());
        (0..10, dtype, exposed, words).prop_map(
            |(kind, dtype, exposed, (tag, number, len, offset))| match kind {
                0 => MessageFrame::Eager { tag, dtype, len, is_bulk: number & 1 == 1 },
                1 => MessageFrame::Rts {
                    tag,
                    dtype,
                    number,
                    len,
                    exposed,
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
                8 => {
                    let wanted = DataType::I32;
                    MessageFrame::Refused(Refusal { tag, dtype, len, wanted, capacity: offset })
                }
                _ => MessageFrame::CancelRts { number },
            },
        )
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
