//! The encoding of a message in the four words of a recorder entry:
//!
//! | word | content |
//! |---|---|
//! | 0 | bits 0–7: [`MESSAGE_KIND`], 8: sends, 16–23: data type, 24: has a label, 32–63: peer + 1 |
//! | 1 | the number of elements |
//! | 2 | the sequence number |
//! | 3 | the tag + 1 |
//!
//! If the field of the peer or of the tag is 0, the receive accepts any peer or any tag.
//!
//! A monitored barrier has [`MONITORED_BARRIER_KIND`] in word 0, its timeout in milliseconds in
//! word 1, and its number in word 2.

use crate::api::p2p::message_descriptor::MessageDescriptor;
use crate::base::dtype::DataType;
use crate::base::label::Label;
use crate::transport::Descriptor;

/// The value of the lowest byte in a message's first word. It distinguishes a message from a
/// collective, for which this byte is odd.
pub(super) const MESSAGE_KIND: u64 = 2;

/// The first word of a monitored barrier.
pub(super) const MONITORED_BARRIER_KIND: u64 = 4;

/// Set in a message's first word if the message has a label.
const LABEL_FLAG: u64 = 1 << 24;

/// Returns whether the words encode an operation with a label.
pub(super) fn is_labelled(words: &[u64; 4]) -> bool {
    match words[0] & 0xff {
        MESSAGE_KIND => words[0] & LABEL_FLAG != 0,
        MONITORED_BARRIER_KIND => false,
        _ => Descriptor::is_labelled(words[0]),
    }
}

/// Encodes a message into the words of an entry, without the text of its label. The inverse is
/// [`decode_message`].
pub(super) fn encode_message(message: &MessageDescriptor, sequence: u64) -> [u64; 4] {
    let direction = u64::from(message.is_outgoing);
    let peer = message.peer.map_or(0, |peer| peer as u64 + 1);
    let tag = message.tag.map_or(0, |tag| u64::from(tag) + 1);
    let labelled = if message.label.is_none() { 0 } else { LABEL_FLAG };
    let first =
        MESSAGE_KIND | direction << 8 | (message.dtype as u64) << 16 | labelled | peer << 32;
    [first, message.count as u64, sequence, tag]
}

pub(super) fn decode_message(words: [u64; 4]) -> Option<MessageDescriptor> {
    let dtype = usize::try_from((words[0] >> 16) & 0xff).ok()?;
    let peer = (words[0] >> 32).checked_sub(1);
    let tag = words[3].checked_sub(1);
    Some(MessageDescriptor {
        is_outgoing: words[0] >> 8 & 1 == 1,
        peer: peer.and_then(|peer| usize::try_from(peer).ok()),
        tag: tag.and_then(|tag| u32::try_from(tag).ok()),
        dtype: *DataType::ALL.get(dtype)?,
        count: usize::try_from(words[1]).ok()?,
        label: Label::NONE,
    })
}
