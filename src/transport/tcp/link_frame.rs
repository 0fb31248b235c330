//! The frames of a link. This module encodes and decodes frame heads, and does no input or output.
//!
//! A frame is a head of [`HEAD_BYTES`], the payload, and zeros up to a multiple of [`ALIGNMENT`]:
//! the kernel copies fastest if all data is at multiples of 64 bytes. Numbers are little endian.
//!
//! ```text
//! 0  "dL" | kind u8 | 0 | channel u32 | payload u32 | 0 0 0 0
//! 16 total u64 | group 16 | from u32 | to u32 | 16 zeros
//! ```
//!
//! | kind | fields | meaning |
//! |---|---|---|
//! | 1 open | channel, group, from, to | `channel` stands for the bytes of these ranks |
//! | 2 data | channel, payload | bytes of a channel |
//! | 3 grant | channel, total | the other side may send `total` bytes in all |
//! | 4 leave | group, from, to, payload | rank `from` has left the group |
//! | 5 control | group, from, to, payload | a control frame between two leaders |
//! | 6 heartbeat | | the process is alive |
//! | 7 short | channel, payload | like data, with the bytes in the head |
//! | 8 query | group, from, to, channel | the answer is a leave frame, if rank `to` has left |
//!
//! The bytes of a short frame begin at byte 16 of the head, and zeros fill the head.
//!
//! The channel of a query is the kind of the link for the answer: a lane, or 2^32 - 1 for messages.
//! Queries are sent on message links, which every process reads.
//!
//! The payload of a leave frame is the reason, if the group has failed, as a control frame.

use super::control_frame::MAX_BYTES as MAX_CONTROL_BYTES;
use crate::base::buffer::{Dst, Src};
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::transport::Channel;

/// The length of a frame without its payload, in bytes.
pub(super) const HEAD_BYTES: usize = 64;
/// Every frame begins at a multiple of this number in its stream.
pub(super) const ALIGNMENT: usize = 64;
/// The maximum length of the payload of one data frame.
pub(super) const MAX_PAYLOAD: usize = 256 << 10;
/// The maximum length of the payload of a short frame.
pub(super) const MAX_SHORT_PAYLOAD: usize = HEAD_BYTES - SHORT_START;

/// The position of the payload of a short frame.
const SHORT_START: usize = 16;

const MAGIC: [u8; 2] = *b"dL";

const OPEN: u8 = 1;
const DATA: u8 = 2;
const GRANT: u8 = 3;
const LEAVE: u8 = 4;
const CONTROL: u8 = 5;
const HEARTBEAT: u8 = 6;
const SHORT: u8 = 7;
const QUERY: u8 = 8;

/// The number for messages in a query.
const MESSAGES: u32 = u32::MAX;

/// The encoded head of a frame.
pub(super) type FrameHead = [u8; HEAD_BYTES];

/// The ranks and the group of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ChannelRanks {
    pub(super) group: GroupId,
    pub(super) from: Rank,
    pub(super) to: Rank,
}

impl ChannelRanks {
    /// Returns the ranks of the channel in the other direction.
    pub(super) fn reversed(&self) -> Self {
        Self { group: self.group, from: self.to, to: self.from }
    }
}

/// The payload of a short frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShortPayload {
    bytes: [u8; MAX_SHORT_PAYLOAD],
    len: usize,
}

impl ShortPayload {
    /// Returns the payload with the bytes of these parts.
    ///
    /// # Panics
    /// If there are more than [`MAX_SHORT_PAYLOAD`] bytes.
    pub(super) fn new<'a>(parts: impl IntoIterator<Item = Src<'a>>) -> Self {
        let (mut bytes, mut len) = ([0; MAX_SHORT_PAYLOAD], 0);
        for part in parts {
            Dst::from(&mut bytes[len..len + part.len()]).copy_from(part);
            len += part.len();
        }
        Self { bytes, len }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// Gives a channel its number.
    Open { channel: u32, ranks: ChannelRanks },
    /// Bytes of a channel follow.
    Data { channel: u32, payload: usize },
    /// Bytes of a channel, in the head.
    Short { channel: u32, payload: ShortPayload },
    /// The other side may send this number of bytes in all on its channel.
    Grant { channel: u32, total: u64 },
    /// A rank has left its group. The reason of a failure follows, if `payload` is not 0.
    Leave { ranks: ChannelRanks, payload: usize },
    /// A control frame between two leaders follows.
    Control { ranks: ChannelRanks, payload: usize },
    /// The process of the sender is alive.
    Heartbeat,
    /// Asks whether a rank of the receiver has left its group. The answer travels on a link of this
    /// kind.
    Query { ranks: ChannelRanks, answer_on: Channel },
}

/// Returns the number of zeros after a payload of this length.
pub(super) const fn padding(payload: usize) -> usize {
    payload.wrapping_neg() % ALIGNMENT
}

impl Frame {
    pub(super) fn encode(&self) -> FrameHead {
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes();
        let mut bytes = [0; HEAD_BYTES];
        bytes[..2].copy_from_slice(&MAGIC);
        let (kind, channel, payload, ranks) = match *self {
            Self::Open { channel, ranks } => (OPEN, channel, 0, Some(ranks)),
            Self::Data { channel, payload } => (DATA, channel, payload, None),
            Self::Short { channel, payload } => {
                bytes[SHORT_START..].copy_from_slice(&payload.bytes);
                (SHORT, channel, payload.len, None)
            }
            Self::Grant { channel, total } => {
                bytes[16..24].copy_from_slice(&total.to_le_bytes());
                (GRANT, channel, 0, None)
            }
            Self::Leave { ranks, payload } => (LEAVE, 0, payload, Some(ranks)),
            Self::Control { ranks, payload } => (CONTROL, 0, payload, Some(ranks)),
            Self::Heartbeat => (HEARTBEAT, 0, 0, None),
            Self::Query { ranks, answer_on } => {
                let kind = match answer_on {
                    Channel::Collective(lane) => lane.into(),
                    Channel::PointToPoint => MESSAGES,
                };
                (QUERY, kind, 0, Some(ranks))
            }
        };
        bytes[2] = kind;
        bytes[4..8].copy_from_slice(&channel.to_le_bytes());
        bytes[8..12].copy_from_slice(&number(payload));
        if let Some(ranks) = ranks {
            bytes[24..40].copy_from_slice(&ranks.group.0);
            bytes[40..44].copy_from_slice(&number(ranks.from));
            bytes[44..48].copy_from_slice(&number(ranks.to));
        }
        bytes
    }

    /// Returns true if a head is the head of a short frame, or malformed.
    pub(super) fn is_short(bytes: &FrameHead) -> bool {
        bytes[2] == SHORT
    }

    /// Decodes a head.
    ///
    /// # Errors
    /// A description of the malformed part.
    pub(super) fn decode(bytes: &FrameHead) -> Result<Self, &'static str> {
        // Nearly all frames have data, so they take a short path.
        if let Some((channel, payload)) = decode_data(bytes) {
            return Ok(Self::Data { channel, payload });
        }
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let rank = |at: usize| Rank::try_from(word(at)).unwrap_or(Rank::MAX);
        let (kind, channel) = (bytes[2], word(4));
        let payload = usize::try_from(word(8)).unwrap_or(usize::MAX);
        let total = u64::from_le_bytes(std::array::from_fn(|i| bytes[16 + i]));
        let group = Nonce(std::array::from_fn(|i| bytes[24 + i]));
        let ranks = ChannelRanks { group, from: rank(40), to: rank(44) };
        let frame = match kind {
            OPEN => Self::Open { channel, ranks },
            SHORT if (1..=MAX_SHORT_PAYLOAD).contains(&payload) => {
                let bytes = std::array::from_fn(|i| bytes[SHORT_START + i]);
                Self::Short { channel, payload: ShortPayload { bytes, len: payload } }
            }
            GRANT => Self::Grant { channel, total },
            LEAVE if payload <= MAX_CONTROL_BYTES => Self::Leave { ranks, payload },
            CONTROL if (1..=MAX_CONTROL_BYTES).contains(&payload) => {
                Self::Control { ranks, payload }
            }
            HEARTBEAT => Self::Heartbeat,
            QUERY => Self::Query { ranks, answer_on: decode_kind(channel)? },
            DATA => return Err("a malformed frame, or one of a forbidden length"),
            SHORT | LEAVE | CONTROL => return Err("a frame of a forbidden length"),
            _ => return Err("a frame of an unknown kind"),
        };
        let has_garbage = match &frame {
            Self::Short { payload, .. } => payload.bytes[payload.len..].iter().any(|&it| it != 0),
            _ => false,
        };
        // No bit may have a meaning that this version does not know.
        if has_garbage || frame.encode() != *bytes {
            return Err("a malformed frame");
        }
        Ok(frame)
    }
}

fn decode_kind(kind: u32) -> Result<Channel, &'static str> {
    match u8::try_from(kind) {
        Ok(lane) => Ok(Channel::Collective(lane)),
        Err(_) if kind == MESSAGES => Ok(Channel::PointToPoint),
        Err(_) => Err("a query for an unknown kind of link"),
    }
}

/// Decodes the head of a data frame into its channel and the length of its payload.
fn decode_data(bytes: &FrameHead) -> Option<(u32, usize)> {
    let word =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let payload = usize::try_from(word(8)).ok()?;
    let is_data = bytes[..4] == [MAGIC[0], MAGIC[1], DATA, 0] && bytes[12..] == [0; 52];
    (is_data && (1..=MAX_PAYLOAD).contains(&payload)).then(|| (word(4), payload))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames() -> impl Strategy<Value = Frame> {
        let ranks = any::<([u8; 16], u16, u16)>().prop_map(|(group, from, to)| ChannelRanks {
            group: Nonce(group),
            from: from.into(),
            to: to.into(),
        });
        let leave = (ranks.clone(), 0..=MAX_CONTROL_BYTES);
        let control = (ranks.clone(), 1..=MAX_CONTROL_BYTES);
        let query = (ranks.clone(), any::<Option<u8>>());
        prop_oneof![
            (any::<u32>(), ranks).prop_map(|(channel, ranks)| Frame::Open { channel, ranks }),
            query.prop_map(|(ranks, lane)| {
                let answer_on = lane.map_or(Channel::PointToPoint, Channel::Collective);
                Frame::Query { ranks, answer_on }
            }),
            (any::<u32>(), 1..=MAX_PAYLOAD)
                .prop_map(|(channel, payload)| Frame::Data { channel, payload }),
            (any::<u32>(), prop::collection::vec(any::<u8>(), 1..=MAX_SHORT_PAYLOAD)).prop_map(
                |(channel, bytes)| {
                    let payload = ShortPayload::new([Src::from(&bytes[..])]);
                    Frame::Short { channel, payload }
                }
            ),
            any::<(u32, u64)>().prop_map(|(channel, total)| Frame::Grant { channel, total }),
            leave.prop_map(|(ranks, payload)| Frame::Leave { ranks, payload }),
            control.prop_map(|(ranks, payload)| Frame::Control { ranks, payload }),
            Just(Frame::Heartbeat),
        ]
    }

    proptest! {
        #[test]
        fn frame_round_trips(frame in frames()) {
            prop_assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
        }

        #[test]
        fn changed_byte_is_refused_or_decodes_differently(
            frame in frames(), at in 0..HEAD_BYTES, bits in 1..=u8::MAX,
        ) {
            let mut bytes = frame.encode();
            bytes[at] ^= bits;
            prop_assert!(Frame::decode(&bytes) != Ok(frame));
        }

        #[test]
        fn padding_aligns_the_next_frame(payload in 0..MAX_PAYLOAD) {
            prop_assert_eq!((payload + padding(payload)) % ALIGNMENT, 0);
            prop_assert!(padding(payload) < ALIGNMENT);
        }
    }
}
