//! The control messages with which two ranks negotiate the transfer of a staged message. The bytes
//! of the staged message travel in separate messages, the *pieces*. The head of [`super`] explains
//! the protocol.

use crate::backend::LARGEST_TAG;
use crate::base::dtype::DataType;

/// The tag of control messages. A receive of a caller never matches this tag.
pub(super) const CONTROL_TAG: u32 = LARGEST_TAG + 5;

/// The length of a control message in bytes.
pub(super) const CONTROL_BYTES: usize = 40;

/// The base of the tags of pieces. The tag of a piece is this base plus the lowest bits of the
/// staged message's number.
const PIECE_TAG_BASE: u32 = 0xc000_0000;

/// A control message. `number` identifies the staged message; the sender has assigned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StagingControlMessage {
    /// Request to send: the sender has a staged message with this tag, element type and length in
    /// bytes.
    Rts { number: u64, tag: u32, dtype: DataType, len: u64 },
    /// Clear to send: the receiver has buffer space for one more piece of the staged message.
    Cts { number: u64 },
    /// The sender has cancelled the staged message.
    Cancel { number: u64 },
}

impl StagingControlMessage {
    pub(super) fn encode(&self) -> [u8; CONTROL_BYTES] {
        let words = match *self {
            Self::Rts { number, tag, dtype, len } => [1, number, u64::from(tag), dtype as u64, len],
            Self::Cts { number } => [2, number, 0, 0, 0],
            Self::Cancel { number } => [3, number, 0, 0, 0],
        };
        let mut bytes = [0; CONTROL_BYTES];
        for (slot, word) in bytes.chunks_exact_mut(8).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes a control message. Returns `None` if the bytes are not a control message.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; CONTROL_BYTES] = bytes.try_into().ok()?;
        let word = |i: usize| {
            let word = bytes.get(8 * i..8 * i + 8)?;
            Some(u64::from_le_bytes(word.try_into().ok()?))
        };
        let (number, dtype) = (word(1)?, usize::try_from(word(3)?).ok()?);
        let message = match word(0)? {
            1 => Self::Rts {
                number,
                tag: u32::try_from(word(2)?).ok().filter(|&tag| tag <= LARGEST_TAG)?,
                dtype: *DataType::ALL.get(dtype)?,
                len: word(4)?,
            },
            2 => Self::Cts { number },
            3 => Self::Cancel { number },
            _ => return None,
        };
        (message.encode() == *bytes).then_some(message)
    }
}

/// Returns the tag for the pieces of the staged message with this number.
pub(super) fn piece_tag(number: u64) -> u32 {
    let low = u32::try_from(number & u64::from(!PIECE_TAG_BASE)).unwrap_or(0);
    PIECE_TAG_BASE | low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_message_round_trips_and_rejects_other_bytes() {
        let rts = StagingControlMessage::Rts {
            number: 7,
            tag: LARGEST_TAG,
            dtype: DataType::C128,
            len: 1 << 40,
        };
        for message in [
            rts,
            StagingControlMessage::Cts { number: u64::MAX },
            StagingControlMessage::Cancel { number: 1 },
        ] {
            let bytes = message.encode();
            assert_eq!(StagingControlMessage::decode(&bytes), Some(message));
            assert_eq!(StagingControlMessage::decode(&bytes[1..]), None);
            let mut other = bytes;
            other[0] = 9;
            assert_eq!(StagingControlMessage::decode(&other), None);
        }
        let mut wrong = rts.encode();
        wrong[20] = 1;
        assert_eq!(StagingControlMessage::decode(&wrong), None, "a tag that no caller can use");
        assert!(piece_tag(0) > CONTROL_TAG && piece_tag(u64::MAX) > CONTROL_TAG);
        assert_ne!(piece_tag(1), piece_tag(2));
    }
}
