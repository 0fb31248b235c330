//! The description of a message between two ranks. The message's work, the flight recorder, log
//! texts and error texts use it.

use crate::base::dtype::DataType;
use crate::base::ids::Rank;
use crate::base::label::{Label, LabelSuffix};
use std::fmt;

/// The description of a message. A receive may accept any peer or any tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageDescriptor {
    /// True if this rank sends the message.
    pub is_outgoing: bool,
    /// The other rank; `None` for a receive from any rank.
    pub peer: Option<Rank>,
    /// The tag; `None` for a receive with any tag.
    pub tag: Option<u32>,
    /// The data type of the elements.
    pub dtype: DataType,
    /// The number of elements to send, or the maximum to receive; `usize::MAX` if unlimited.
    pub count: usize,
    /// The label of the call, for log and error texts of this rank. The matching of messages
    /// ignores the label.
    pub label: Label,
}

impl MessageDescriptor {
    /// Describes a message of `bytes` bytes that this rank sends.
    pub fn outgoing(to: Rank, tag: u32, dtype: DataType, bytes: usize, label: Label) -> Self {
        let incoming = Self::incoming(Some(to), Some(tag), dtype, bytes, label);
        Self { is_outgoing: true, ..incoming }
    }

    /// Describes a message of at most `bytes` bytes that this rank receives.
    pub fn incoming(
        peer: Option<Rank>,
        tag: Option<u32>,
        dtype: DataType,
        bytes: usize,
        label: Label,
    ) -> Self {
        let count = dtype.elements_in(bytes);
        Self { is_outgoing: false, peer, tag, dtype, count, label }
    }
}

impl fmt::Display for MessageDescriptor {
    /// Formats the message, for instance `send "grad" to rank 3, tag 7 (f32, count 10)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, towards) = if self.is_outgoing { ("send", "to") } else { ("receive", "from") };
        write!(f, "{verb}{} {towards} ", LabelSuffix(self.label))?;
        match self.peer {
            Some(peer) => write!(f, "rank {peer}")?,
            None => f.write_str("any rank")?,
        }
        match self.tag {
            Some(tag) => write!(f, ", tag {tag}")?,
            None => f.write_str(", any tag")?,
        }
        match self.count {
            usize::MAX => write!(f, " ({}, any count)", self.dtype),
            count => write!(f, " ({}, count {count})", self.dtype),
        }
    }
}
