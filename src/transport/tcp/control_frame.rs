//! The frames of the control channels between node leaders (the first rank of each node). This
//! module encodes and decodes frames, and does no input or output. A frame begins with the number
//! of its kind, 1 to 9. Numbers are little endian.
//!
//! ```text
//! 1 | error kind u8 | fault u8 | culprit + 1 u32 (0: none) | length u16 | text
//!                                                    abort: the group has failed
//! 2 | rank u32                                       a rank leaves in order
//! 3                                                  goodbye: no further frame follows
//! 4                                                  heartbeat, for no group
//! 5 | rank u32                                       asks for the activity of the rank
//! 6 | rank u32 | length u16 | text                   answer to 5
//! 7 | rank u32 | sequence u64                        asks for the labels of the rank's operation
//! 8 | rank u32 | sequence u64 | n u8 | n x 32 bytes  answer to 7: the operation, then its calls
//! 9                                                  the leader has joined the group
//! ```

use crate::base::error::{Error, ErrorKind};
use crate::base::ids::Rank;
use crate::base::label::{LABEL_BYTES, LABEL_WORDS, Label};
use crate::transport::abort::TEXT_BYTES;
use crate::transport::heartbeat::ACTIVITY_BYTES;
use crate::transport::labels::MAX_LISTED_LABELS;
use crate::transport::shared_text::truncate_utf8;

/// The maximum length of a frame in bytes.
pub(super) const MAX_BYTES: usize = ABORT_HEAD_BYTES + TEXT_BYTES;

/// The length of an abort frame in bytes, without its text.
const ABORT_HEAD_BYTES: usize = 9;

const ABORT: u8 = 1;
const LEFT: u8 = 2;
const GOODBYE: u8 = 3;
const HEARTBEAT: u8 = 4;
const ASK_ACTIVITY: u8 = 5;
const ACTIVITY: u8 = 6;
const ASK_LABELS: u8 = 7;
const LABELS: u8 = 8;
const JOINED: u8 = 9;

/// The maximum number of labels in a frame: the label of the operation, and the labels of its
/// calls.
const MAX_LABELS: usize = MAX_LISTED_LABELS + 1;

const _: () = assert!(14 + MAX_LABELS * LABEL_BYTES <= MAX_BYTES);

/// One control frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ControlFrame {
    Abort(Error),
    Left(Rank),
    Goodbye,
    /// Shows that the sender is alive. Every other frame also shows this.
    Heartbeat,
    /// Asks a leader for the activity of a rank of its node, outside the collectives of the group.
    AskActivity(Rank),
    /// The answer to [`ControlFrame::AskActivity`].
    Activity(Rank, String),
    /// Asks a leader for the labels of an operation. The fields are a rank of the leader's node and
    /// the sequence number of the operation.
    AskLabels(Rank, u64),
    /// The answer to [`ControlFrame::AskLabels`].
    Labels(Rank, u64, Vec<Label>),
    /// The sender has joined the group.
    Joined,
}

impl ControlFrame {
    /// Appends the encoded frame to `to`. A text that is too long is truncated.
    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        let number = |rank: Rank| u32::try_from(rank).unwrap_or(u32::MAX - 1);
        match self {
            Self::Abort(error) => {
                let text = truncate_utf8(error.message(), TEXT_BYTES);
                let culprit = error.culprit().map_or(0, |rank| number(rank) + 1);
                to.extend([ABORT, error.kind().code(), error.fault_code()]);
                to.extend(culprit.to_le_bytes());
                to.extend(u16::try_from(text.len()).unwrap_or(0).to_le_bytes());
                to.extend(text.as_bytes());
            }
            Self::Left(rank) => {
                to.push(LEFT);
                to.extend(number(*rank).to_le_bytes());
            }
            Self::Goodbye => to.push(GOODBYE),
            Self::Heartbeat => to.push(HEARTBEAT),
            Self::Joined => to.push(JOINED),
            Self::AskActivity(rank) => {
                to.push(ASK_ACTIVITY);
                to.extend(number(*rank).to_le_bytes());
            }
            Self::Activity(rank, text) => {
                let text = truncate_utf8(text, ACTIVITY_BYTES);
                to.push(ACTIVITY);
                to.extend(number(*rank).to_le_bytes());
                to.extend(u16::try_from(text.len()).unwrap_or(0).to_le_bytes());
                to.extend(text.as_bytes());
            }
            Self::AskLabels(rank, sequence) => {
                to.push(ASK_LABELS);
                to.extend(number(*rank).to_le_bytes());
                to.extend(sequence.to_le_bytes());
            }
            Self::Labels(rank, sequence, labels) => {
                let labels = &labels[..labels.len().min(MAX_LABELS)];
                to.push(LABELS);
                to.extend(number(*rank).to_le_bytes());
                to.extend(sequence.to_le_bytes());
                to.push(u8::try_from(labels.len()).unwrap_or(0));
                for label in labels {
                    label.words().iter().for_each(|word| to.extend(word.to_le_bytes()));
                }
            }
        }
    }

    /// Returns the frame at the start of `bytes` and the length of the frame in bytes. Returns
    /// `None` if the frame is incomplete. Every rank in the frame must be below `ranks`.
    ///
    /// # Errors
    /// A description of the malformed part.
    pub(super) fn decode(
        bytes: &[u8],
        ranks: usize,
    ) -> Result<Option<(Self, usize)>, &'static str> {
        let word = |at: usize| {
            let word = bytes.get(at..at + 4)?;
            Some(u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        };
        let rank = |number: u32| {
            Rank::try_from(number)
                .ok()
                .filter(|&rank| rank < ranks)
                .ok_or("a rank that does not exist")
        };
        match bytes.first() {
            None => Ok(None),
            Some(&GOODBYE) => Ok(Some((Self::Goodbye, 1))),
            Some(&HEARTBEAT) => Ok(Some((Self::Heartbeat, 1))),
            Some(&JOINED) => Ok(Some((Self::Joined, 1))),
            Some(&kind @ (LEFT | ASK_ACTIVITY)) => match word(1) {
                None => Ok(None),
                Some(number) if kind == LEFT => Ok(Some((Self::Left(rank(number)?), 5))),
                Some(number) => Ok(Some((Self::AskActivity(rank(number)?), 5))),
            },
            Some(&ACTIVITY) => {
                let (Some(number), Some(len)) = (word(1), bytes.get(5..7)) else {
                    return Ok(None);
                };
                let len = usize::from(u16::from_le_bytes([len[0], len[1]]));
                if len > ACTIVITY_BYTES {
                    return Err("a text that is too long");
                }
                let rank = rank(number)?;
                let Some(text) = bytes.get(7..7 + len) else { return Ok(None) };
                let text = String::from_utf8_lossy(text).into_owned();
                Ok(Some((Self::Activity(rank, text), 7 + len)))
            }
            Some(&kind @ (ASK_LABELS | LABELS)) => {
                let (Some(number), Some(sequence)) = (word(1), bytes[1..].get(4..12)) else {
                    return Ok(None);
                };
                let rank = rank(number)?;
                let sequence = u64::from_le_bytes(sequence.try_into().unwrap_or_default());
                if kind == ASK_LABELS {
                    return Ok(Some((Self::AskLabels(rank, sequence), 13)));
                }
                let found = decode_labels(&bytes[13..])?;
                Ok(found.map(|(labels, len)| (Self::Labels(rank, sequence, labels), 13 + len)))
            }
            Some(&ABORT) => {
                let (Some(culprit), Some(len)) = (word(3), bytes.get(7..ABORT_HEAD_BYTES)) else {
                    return Ok(None);
                };
                let len = usize::from(u16::from_le_bytes([len[0], len[1]]));
                if len > TEXT_BYTES {
                    return Err("a text that is too long");
                }
                let culprit = culprit.checked_sub(1).map(rank).transpose()?;
                let end = ABORT_HEAD_BYTES + len;
                let Some(text) = bytes.get(ABORT_HEAD_BYTES..end) else { return Ok(None) };
                let text = String::from_utf8_lossy(text).into_owned();
                let error = Error::new(ErrorKind::from_code(bytes[1]), text);
                let error = error.with_fault_code(bytes[2]);
                let error = culprit.into_iter().fold(error, Error::with_culprit);
                Ok(Some((Self::Abort(error), end)))
            }
            Some(_) => Err("a frame of an unknown kind"),
        }
    }
}

/// Decodes a count byte and that number of labels. Returns the labels and the number of decoded
/// bytes. Returns `None` if bytes are missing.
fn decode_labels(bytes: &[u8]) -> Result<Option<(Vec<Label>, usize)>, &'static str> {
    let Some(&count) = bytes.first() else { return Ok(None) };
    let count = usize::from(count);
    if count > MAX_LABELS {
        return Err("too many labels");
    }
    let Some(bytes) = bytes.get(1..1 + count * LABEL_BYTES) else { return Ok(None) };
    let (words, _) = bytes.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|&word| u64::from_le_bytes(word)).collect();
    let (labels, _) = words.as_chunks::<LABEL_WORDS>();
    let labels: Option<Vec<Label>> = labels.iter().map(|&it| Label::from_words(it)).collect();
    Ok(Some((labels.ok_or("a label that is not valid UTF-8")?, 1 + count * LABEL_BYTES)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frames_round_trip_and_prefixes_are_incomplete() {
        let failed = Error::new(ErrorKind::PeerFailed, "rank 2 died").with_culprit(2);
        let frames = [
            ControlFrame::Abort(failed),
            ControlFrame::Abort(Error::new(ErrorKind::Aborted, "")),
            ControlFrame::Left(3),
            ControlFrame::Goodbye,
            ControlFrame::Heartbeat,
            ControlFrame::Joined,
            ControlFrame::AskActivity(2),
            ControlFrame::Activity(1, "is in barrier #1".to_owned()),
            ControlFrame::Activity(0, String::new()),
            ControlFrame::AskLabels(3, u64::MAX),
            ControlFrame::Labels(0, 7, vec![]),
            ControlFrame::Labels(
                1,
                7,
                ["a", "", "b"].map(|text| Label::new(text).unwrap()).to_vec(),
            ),
        ];
        for frame in frames {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            let whole = bytes.len();
            for len in 0..whole {
                assert_eq!(ControlFrame::decode(&bytes[..len], 4), Ok(None));
            }
            bytes.push(99);
            assert_eq!(ControlFrame::decode(&bytes, 4), Ok(Some((frame, whole))));
        }
        let unknown = [
            ControlFrame::Left(4),
            ControlFrame::AskActivity(4),
            ControlFrame::Activity(4, String::new()),
            ControlFrame::AskLabels(4, 1),
            ControlFrame::Labels(4, 1, vec![]),
        ];
        for frame in unknown {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            assert!(ControlFrame::decode(&bytes, 4).is_err());
        }
    }

    #[test]
    fn long_text_is_truncated_at_character_boundary() {
        let mut bytes = Vec::new();
        let text = format!("{}é", "x".repeat(TEXT_BYTES - 1));
        ControlFrame::Abort(Error::new(ErrorKind::Aborted, text)).encode(&mut bytes);
        assert_eq!(bytes.len(), MAX_BYTES - 1);
        assert!(
            matches!(ControlFrame::decode(&bytes, 1), Ok(Some((_, len))) if len == bytes.len())
        );
        let mut bytes = Vec::new();
        ControlFrame::Activity(0, "x".repeat(ACTIVITY_BYTES + 1)).encode(&mut bytes);
        assert!(
            matches!(ControlFrame::decode(&bytes, 1), Ok(Some((_, len))) if len == 7 + ACTIVITY_BYTES)
        );
        bytes[5..7].copy_from_slice(&(257_u16).to_le_bytes());
        assert!(ControlFrame::decode(&bytes, 1).is_err());
    }

    #[test]
    fn label_count_and_encoding_are_checked() {
        let mut bytes = Vec::new();
        ControlFrame::Labels(0, 1, vec![Label::new("x").unwrap(); 100]).encode(&mut bytes);
        assert_eq!(bytes.len(), 14 + MAX_LABELS * LABEL_BYTES);
        assert!(
            matches!(ControlFrame::decode(&bytes, 1), Ok(Some((_, len))) if len == bytes.len())
        );
        bytes[14] = 0xff;
        assert_eq!(ControlFrame::decode(&bytes, 1), Err("a label that is not valid UTF-8"));
        bytes[13] += 1;
        assert_eq!(ControlFrame::decode(&bytes, 1), Err("too many labels"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_bounded(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(Some((_, len))) = ControlFrame::decode(&bytes, 4) {
                prop_assert!(len <= bytes.len());
            }
        }
    }
}
