//! Reads and checks the hello of an incoming connection, without input or output: the listener
//! registry supplies the bytes.

use super::hello::{self, CONFIRM, ConnectionPurpose, HELLO_BYTES, Hello, HelloRefusal};
use super::join::TcpMember;
use crate::base::ids::Rank;
use crate::transport::Channel;

/// The hello of a connection and the confirmation byte after it.
#[derive(Debug)]
pub(super) struct HelloReader {
    bytes: [u8; HELLO_BYTES + 1],
    filled: usize,
}

/// The state of the handshake after some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HelloReadState {
    /// More bytes must arrive.
    Incomplete,
    /// The hello is complete; the acceptor must check and answer it.
    Hello(Hello),
    /// The connecting rank has verified the answer and confirmed.
    Confirmed,
}

impl Default for HelloReader {
    fn default() -> Self {
        Self { bytes: [0; HELLO_BYTES + 1], filled: 0 }
    }
}

impl HelloReader {
    /// Returns the buffer for the next read. It ends with the hello or the confirmation byte,
    /// because the later bytes belong to the stream.
    pub(super) fn free_space(&mut self) -> &mut [u8] {
        let end = if self.filled < HELLO_BYTES { HELLO_BYTES } else { self.bytes.len() };
        &mut self.bytes[self.filled..end]
    }

    /// Handles `count` bytes that were read into the buffer.
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
    /// Checks that the sender of a hello is a member, that the hello addresses this rank, and that
    /// the requested stream exists.
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
            // The leader of the node with the larger index connects.
            ConnectionPurpose::Control => {
                from.node > members[me].node && leaders.get(from.node) == Some(&hello.from)
            }
            // [`ReconnectEndpoint`](super::ReconnectEndpoint) checks these connections.
            ConnectionPurpose::Reconnect => false,
        };
        if is_expected { Ok(()) } else { Err(HelloRefusal::IdentityMismatch) }
    }
}
