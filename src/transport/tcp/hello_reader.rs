//! What a newcomer says before anything else, as far as it has come, and what a rank knows of those
//! who may come. Pure: the door brings the bytes.

use super::hello::{self, CONFIRM, ConnectionPurpose, HELLO_BYTES, Hello, HelloRefusal};
use super::join::TcpMember;
use crate::base::ids::Rank;
use crate::transport::Channel;

/// A hello and the word behind it.
#[derive(Debug)]
pub(super) struct HelloReader {
    bytes: [u8; HELLO_BYTES + 1],
    filled: usize,
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HelloReadState {
    /// More must come.
    Incomplete,
    /// The hello is there, to be checked and answered.
    Hello(Hello),
    /// The newcomer has checked the answer too.
    Confirmed,
}

impl Default for HelloReader {
    fn default() -> Self {
        Self { bytes: [0; HELLO_BYTES + 1], filled: 0 }
    }
}

impl HelloReader {
    /// Room for what comes next; only for what belongs to the introduction, since anything after is
    /// the stream's.
    pub(super) fn free_space(&mut self) -> &mut [u8] {
        let end = if self.filled < HELLO_BYTES { HELLO_BYTES } else { self.bytes.len() };
        &mut self.bytes[self.filled..end]
    }

    /// So many bytes have come into the room.
    ///
    /// # Errors
    /// `UnknownProtocol`.
    pub(super) fn advance(&mut self, count: usize) -> Result<HelloReadState, HelloRefusal> {
        self.filled += count;
        let received = &self.bytes[..self.filled];
        if !hello::has_valid_prefix(received) {
            return Err(HelloRefusal::UnknownProtocol);
        }
        match (self.bytes.first_chunk(), received.len().checked_sub(HELLO_BYTES)) {
            (Some(bytes), Some(0)) => Hello::decode(bytes).map(HelloReadState::Hello),
            (_, Some(1)) if received[HELLO_BYTES] == CONFIRM => Ok(HelloReadState::Confirmed),
            (_, Some(_)) => Err(HelloRefusal::UnknownProtocol),
            (_, None) => Ok(HelloReadState::Incomplete),
        }
    }
}

/// The group as a rank knows it.
#[derive(Debug)]
pub(super) struct ExpectedPeers<'a> {
    pub(super) epoch: u32,
    pub(super) me: Rank,
    pub(super) members: &'a [TcpMember],
    /// The first rank of each node.
    pub(super) leaders: &'a [Rank],
    pub(super) lanes: u8,
}

impl ExpectedPeers<'_> {
    /// Whether a hello is from whom it says, to this rank, and for something that there is.
    ///
    /// # Errors
    /// `IdentityMismatch`.
    pub(super) fn check(&self, hello: &Hello) -> Result<(), HelloRefusal> {
        let Self { epoch, me, members, leaders, lanes } = *self;
        let known = members.get(hello.from).filter(|member| member.nonce == hello.nonce);
        let is_to_this_one = hello.expected_nonce == members[me].nonce && hello.epoch == epoch;
        let is_meant = is_to_this_one && hello.from != me;
        let Some(from) = known.filter(|_| is_meant) else {
            return Err(HelloRefusal::IdentityMismatch);
        };
        let is_expected = match hello.purpose {
            ConnectionPurpose::Stream(Channel::Collective(lane)) => lane < lanes,
            ConnectionPurpose::Stream(Channel::PointToPoint) => true,
            // Of two leaders the one of the later node connects.
            ConnectionPurpose::Control => {
                from.node > members[me].node && leaders.get(from.node) == Some(&hello.from)
            }
            // Not with the mesh of the group.
            ConnectionPurpose::Reconnect => false,
        };
        if is_expected { Ok(()) } else { Err(HelloRefusal::IdentityMismatch) }
    }
}
