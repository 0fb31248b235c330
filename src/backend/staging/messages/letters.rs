//! What two ranks say to each other of a message on their devices, beside its bytes.

use crate::backend::LARGEST_TAG;
use crate::base::dtype::DataType;

/// The tag of letters, which no caller's receive takes.
pub(super) const TAG: u32 = LARGEST_TAG + 5;

/// The bytes of a letter.
pub(super) const BYTES: usize = 40;

/// The tags of the pieces of messages: this, and the lowest bits of the message's number.
const PIECES: u32 = 0xc000_0000;

/// One letter. Numbers are the sender's of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Letter {
    /// There is a message.
    Offer { number: u64, tag: u32, dtype: DataType, len: u64 },
    /// There is room for one more piece of it.
    Go { number: u64 },
    /// It is not there any more.
    Gone { number: u64 },
}

impl Letter {
    pub(super) fn encode(&self) -> [u8; BYTES] {
        let words = match *self {
            Self::Offer { number, tag, dtype, len } => {
                [1, number, u64::from(tag), dtype as u64, len]
            }
            Self::Go { number } => [2, number, 0, 0, 0],
            Self::Gone { number } => [3, number, 0, 0, 0],
        };
        let mut bytes = [0; BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// `None` for bytes that no letter has.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let word = |i: usize| {
            let word = bytes.get(8 * i..8 * i + 8)?;
            Some(u64::from_le_bytes(word.try_into().ok()?))
        };
        let (number, dtype) = (word(1)?, usize::try_from(word(3)?).ok()?);
        let letter = match word(0)? {
            1 => Self::Offer {
                number,
                tag: u32::try_from(word(2)?).ok().filter(|&tag| tag <= LARGEST_TAG)?,
                dtype: *DataType::ALL.get(dtype)?,
                len: word(4)?,
            },
            2 => Self::Go { number },
            3 => Self::Gone { number },
            _ => return None,
        };
        (letter.encode() == *bytes).then_some(letter)
    }
}

/// The tag of the pieces of a message.
pub(super) fn piece_tag(number: u64) -> u32 {
    let low = u32::try_from(number & u64::from(!PIECES)).unwrap_or(0);
    PIECES | low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_survives_its_bytes_and_nothing_else_is_one() {
        let offer =
            Letter::Offer { number: 7, tag: LARGEST_TAG, dtype: DataType::C128, len: 1 << 40 };
        for letter in [offer, Letter::Go { number: u64::MAX }, Letter::Gone { number: 1 }] {
            let bytes = letter.encode();
            assert_eq!(Letter::decode(&bytes), Some(letter));
            assert_eq!(Letter::decode(&bytes[1..]), None);
            let mut other = bytes;
            other[0] = 9;
            assert_eq!(Letter::decode(&other), None);
        }
        let mut wrong = offer.encode();
        wrong[20] = 1;
        assert_eq!(Letter::decode(&wrong), None, "a tag that no caller can have");
        assert!(piece_tag(0) > TAG && piece_tag(u64::MAX) > TAG);
        assert_ne!(piece_tag(1), piece_tag(2));
    }
}
