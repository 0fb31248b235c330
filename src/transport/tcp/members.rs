//! The members of a group, which all ranks know before they connect, and the check of a hello (the
//! first message on a connection) against this list.

use super::advert::AddressAdvert;
use super::hello::{ConnectionPurpose, Hello, HelloRefusal};
use crate::base::deadline::Deadline;
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::security::LinkSecurity;
use crate::transport::{Channel, HeartbeatConfig, PeerName};
use crate::wait::WaitPolicy;

/// The data about one rank of the group that all ranks know before they connect.
#[derive(Clone, Debug)]
pub struct TcpMember {
    /// The display name of the rank.
    pub name: PeerName,
    /// The nonce of the rank: a random number that the rank published. The proofs of its
    /// connections depend on it.
    pub nonce: Nonce,
    /// The random number of the rank's process. The ranks of all groups in two processes share the
    /// links between these processes.
    pub process: Nonce,
    /// The index of the rank's node, from 0. The first rank of each node is the node leader.
    pub node: usize,
    /// The addresses at which the rank accepts connections.
    pub advert: AddressAdvert,
}

/// The parameters of [`TcpListening::join`](super::TcpListening::join).
#[derive(Debug)]
pub struct TcpJoinConfig<'a> {
    /// The group that the ranks join.
    pub group: GroupId,
    /// The epoch of the group: how often the group was shrunk since it was created.
    pub epoch: u32,
    /// The members of the group, in rank order.
    pub members: &'a [TcpMember],
    /// The number of this rank.
    pub me: Rank,
    /// The deadline by which the node leaders must be connected to each other.
    pub deadline: &'a Deadline,
    /// The wait policy of this rank.
    pub wait_policy: WaitPolicy,
    /// The heartbeat and liveness settings.
    pub vitals: HeartbeatConfig,
    /// The protection of the connections.
    pub security: &'a LinkSecurity,
}

/// Returns the node leaders: for each node, its first rank.
pub(super) fn node_leaders(members: &[TcpMember]) -> Vec<Rank> {
    let nodes = members.iter().map(|member| member.node + 1).max().unwrap_or(0);
    (0..nodes)
        .map(|node| members.iter().position(|member| member.node == node).unwrap_or(usize::MAX))
        .collect()
}

/// The facts about a group that a rank needs to check a hello.
#[derive(Debug)]
pub(super) struct ExpectedPeers<'a> {
    pub(super) epoch: u32,
    pub(super) me: Rank,
    pub(super) members: &'a [TcpMember],
    pub(super) lanes: u8,
}

impl ExpectedPeers<'_> {
    /// Checks that the sender of a hello is a member of the group, that the hello addresses this
    /// rank, and that the requested link can exist.
    ///
    /// # Errors
    /// `IdentityMismatch`.
    pub(super) fn check(&self, hello: &Hello) -> Result<(), HelloRefusal> {
        let Self { epoch, me, members, lanes } = *self;
        let is_meant = hello.epoch == epoch && hello.to == me && hello.from != me;
        if !is_meant || hello.from >= members.len() {
            return Err(HelloRefusal::IdentityMismatch);
        }
        let is_expected = match hello.purpose {
            ConnectionPurpose::Stream(channel)
            | ConnectionPurpose::Resume(channel)
            | ConnectionPurpose::Probe(channel) => match channel {
                Channel::Collective(lane) => lane < lanes,
                Channel::PointToPoint => true,
            },
            // [`ReconnectEndpoint`](super::ReconnectEndpoint) accepts these connections and has its
            // own check.
            ConnectionPurpose::Reconnect => false,
        };
        if is_expected { Ok(()) } else { Err(HelloRefusal::IdentityMismatch) }
    }
}
