//! One call of the reader of a link ([`link_reader`](super::link_reader)): what the caller passes,
//! and what the reader returns.

use super::incoming_channel::{DueGrant, IncomingChannel};
use super::link_frame::ChannelRanks;
use super::link_owner::LinkOwner;
use super::link_user::{LinkKey, LinkUser};
use crate::base::buffer::Dst;
use crate::base::error::Error;
use crate::base::ids::Rank;
use crate::sys::stream::SocketStream;
use crate::transport::Channel;
use std::io;
use std::sync::{Arc, Weak};

/// What the reader must report after its lock was released.
#[derive(Debug)]
pub(super) enum LinkNotice {
    /// Bytes of a channel have arrived.
    Input(Arc<dyn LinkUser>, Rank, Channel),
    /// The other side must get a grant.
    Grant(DueGrant),
    /// The other side has granted more bytes for one of this side's channels.
    Granted { number: u32, total: u64 },
    /// A rank has left its group.
    Left(ChannelRanks, Option<Error>),
    /// A control frame has arrived.
    Control(ChannelRanks, Vec<u8>),
    /// The other side sends to a rank that has left its group.
    SentToDeparted(ChannelRanks),
    /// The other side asks whether a rank has left its group.
    Asked(ChannelRanks, Channel),
}

/// The memory of the caller for the bytes of a channel.
pub(super) struct ReadTarget<'a> {
    pub(super) channel: &'a Arc<IncomingChannel>,
    pub(super) into: Dst<'a>,
    pub(super) filled: usize,
}

impl ReadTarget<'_> {
    pub(super) fn room(&self) -> usize {
        self.into.len() - self.filled
    }
}

/// The state of one call of the reader.
pub(super) struct Reading<'a> {
    pub(super) key: &'a LinkKey,
    pub(super) stream: &'a SocketStream,
    pub(super) owner: &'a Weak<dyn LinkOwner>,
    pub(super) target: Option<ReadTarget<'a>>,
    pub(super) notices: Vec<LinkNotice>,
    /// The number of reads that got bytes.
    pub(super) reads: u64,
}

/// Why the reader has stopped.
#[derive(Debug)]
pub(super) enum ReadStop {
    /// Nothing more can be read now, or enough was read.
    Paused,
    /// The stream has ended: in order, or by an error.
    Ended(Option<io::Error>),
}
