//! Connections between the surviving ranks of a failed group. They use neither the streams of the
//! group, nor its shared memory, nor the store.
//!
//! Every rank has a [`SurvivorEndpoint`] from the creation of its group on. The endpoint contains
//! the registration of the rank with the registry of its process ([`NeighbourMember`]), which
//! accepts connections from ranks of the same node. If the group has more than one node, the
//! endpoint also contains a [`ReconnectEndpoint`], which accepts TCP connections from ranks of
//! other nodes. An incoming connection waits in one of the two until one of two events:
//!
//! 1. This rank opens a [`SurvivorSession`], which gives the connection to the caller.
//! 2. The session ends with [an answer](SurvivorSession::finish_with_answer). After the end of the
//!    session, the service thread sends this answer on each connection and closes the connection.
//!
//! The endpoint does not depend on the group object and may outlive it. A rank that tries to
//! connect to a peer distinguishes five cases ([`SurvivorConnectResult`]). If the process of the
//! peer accepts the connection, the peer is alive. If the process answers that it has no such rank,
//! the peer has left the group and all groups that were created from this group. If there is no
//! answer, the peer is stopped (for example by SIGSTOP). A refused connection proves nothing, since
//! a firewall may refuse it. Only the host of a dead process can prove the death. The kernel proves
//! it to the ranks of the same node, the death witness of the process to the ranks of other nodes.
//!
//! This module does not depend on the content of the frames (messages) on these connections.

mod link;
mod local;

pub use link::SurvivorLink;
pub use local::SurvivorAddress;

use super::PeerName;
use super::neighbour::NeighbourMember;
use super::tcp::{PendingConnect, ReconnectEndpoint};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, RankFault, Result};
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::sys::eventfd::EventFd;
use crate::wait::io;
use local::{LocalConnect, NodeProcess, SurvivorGroup};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The part of the limit of a frame that does not depend on the number of ranks. One rank adds a
/// list of rules to a frame.
const MAX_FRAME_BASE: usize = 1 << 20;
/// The limit of a frame for each rank of the group, in addition to [`MAX_FRAME_BASE`]. Each rank
/// adds up to 64 KiB to a frame.
const MAX_FRAME_PER_RANK: usize = 64 << 10;

/// The endpoint of this rank for connections with the other survivors of its group. A
/// [`SurvivorSession`] accepts and makes these connections.
#[derive(Debug)]
pub struct SurvivorEndpoint {
    group: GroupId,
    me: Rank,
    peer_names: Arc<[PeerName]>,
    members: Vec<SurvivorAddress>,
    /// The registration of this rank, which takes the connections of ranks of the same node.
    registration: Arc<NeighbourMember>,
    reconnect_endpoint: Option<ReconnectEndpoint>,
    is_session_open: AtomicBool,
}

impl SurvivorEndpoint {
    /// Creates the endpoint of rank `me`. `reconnect_endpoint` is required if some members are on
    /// other nodes.
    pub fn new(
        group: GroupId,
        me: Rank,
        peer_names: Arc<[PeerName]>,
        members: Vec<SurvivorAddress>,
        registration: Arc<NeighbourMember>,
        reconnect_endpoint: Option<ReconnectEndpoint>,
    ) -> Self {
        let is_session_open = AtomicBool::new(false);
        Self { group, me, peer_names, members, registration, reconnect_endpoint, is_session_open }
    }

    /// Returns the display name of a rank.
    pub fn name(&self, rank: Rank) -> &PeerName {
        &self.peer_names[rank]
    }

    /// Opens a session. The service thread stops answering connections with the answer of an
    /// earlier session, and the new session accepts them.
    ///
    /// # Errors
    /// `InvalidArgument` while another session is open; `System`.
    pub fn open_session(&self) -> Result<SurvivorSession<'_>> {
        if self.is_session_open.swap(true, Ordering::AcqRel) {
            return Err(Error::invalid("another thread already shrinks this group"));
        }
        let opened = self.registration.open_survivor_session();
        let arrival_flag =
            opened.inspect_err(|_| self.is_session_open.store(false, Ordering::Release))?;
        self.reconnect_endpoint
            .iter()
            .for_each(|endpoint| endpoint.begin_session(Arc::clone(&arrival_flag)));
        Ok(SurvivorSession { endpoint: self, arrival_flag })
    }

    fn group(&self) -> SurvivorGroup<'_> {
        SurvivorGroup { group: self.group, members: &self.members, me: self.me }
    }

    fn node_process(&self, process: Nonce, rank: Rank) -> NodeProcess {
        let registration = Arc::clone(&self.registration);
        NodeProcess { registration, process, pid: self.peer_names[rank].pid }
    }

    fn max_frame_len(&self) -> usize {
        MAX_FRAME_BASE + self.members.len() * MAX_FRAME_PER_RANK
    }
}

/// An open session of a [`SurvivorEndpoint`], which accepts and makes connections.
#[derive(Debug)]
pub struct SurvivorSession<'a> {
    endpoint: &'a SurvivorEndpoint,
    /// Raised when a rank of the same node has connected.
    arrival_flag: Arc<EventFd>,
}

impl SurvivorSession<'_> {
    /// Returns the display name of a rank.
    pub fn name(&self, rank: Rank) -> &PeerName {
        self.endpoint.name(rank)
    }

    /// Starts to connect to a rank. [`PendingSurvivorConnect::poll`] returns the result.
    pub fn connect(&self, to: Rank) -> PendingSurvivorConnect {
        let SurvivorEndpoint { me, members, reconnect_endpoint, .. } = self.endpoint;
        let route = match (&members[to].process, reconnect_endpoint) {
            (Some(process), _) => {
                let hello = self.endpoint.group().hello(*me, to);
                let target = self.endpoint.node_process(*process, to);
                SurvivorRoute::Local(LocalConnect::new(target, hello))
            }
            (None, Some(reconnect_endpoint)) => reconnect_endpoint
                .connect(to)
                .map_or_else(SurvivorRoute::Unreachable, SurvivorRoute::Remote),
            (None, None) => {
                SurvivorRoute::Unreachable(Error::internal("this rank has no reconnect endpoint"))
            }
        };
        PendingSurvivorConnect { route, max_frame_len: self.endpoint.max_frame_len() }
    }

    /// Returns the ranks of the same node whose processes are proven to have ended.
    pub fn dead_neighbours(&self) -> Vec<Rank> {
        let SurvivorEndpoint { me, members, registration, .. } = self.endpoint;
        let has_died = |&(rank, member): &(Rank, &SurvivorAddress)| {
            rank != *me
                && member.process.is_some_and(|process| {
                    !registration.is_own_process(process)
                        && self.endpoint.node_process(process, rank).has_died()
                })
        };
        members.iter().enumerate().filter(has_died).map(|(rank, _)| rank).collect()
    }

    /// Returns the new connections whose peer has sent a valid hello, with the rank of each peer.
    pub fn take_arrivals(&self) -> Vec<(Rank, SurvivorLink)> {
        let longest = self.endpoint.max_frame_len();
        let SurvivorEndpoint { registration, .. } = self.endpoint;
        let mut identified = local::take_arrivals(registration, self.endpoint.group(), longest);
        let link = |(rank, stream)| (rank, SurvivorLink::new(stream, longest));
        let remote = self.endpoint.reconnect_endpoint.iter();
        identified.extend(remote.flat_map(ReconnectEndpoint::take_arrivals).map(link));
        identified
    }

    /// Waits until a rank connects, one of the links is readable, a connection attempt through the
    /// reconnect endpoint ends, or the deadline passes.
    ///
    /// # Errors
    /// `System`.
    pub fn wait<'a>(
        &self,
        links: impl IntoIterator<Item = &'a SurvivorLink>,
        deadline: &Deadline,
    ) -> Result<()> {
        let mut all: Vec<BorrowedFd<'_>> = vec![self.arrival_flag.as_fd()];
        for link in links {
            all.push(link.as_fd());
        }
        io::wait_for_any_readable(all, deadline)
    }

    /// Waits until one of the links is readable or the deadline passes. New connections do not end
    /// this wait.
    ///
    /// # Errors
    /// `System`.
    pub fn wait_for_links<'a>(
        links: impl IntoIterator<Item = &'a SurvivorLink>,
        deadline: &Deadline,
    ) -> Result<()> {
        io::wait_for_any_readable(links.into_iter().map(SurvivorLink::as_fd), deadline)
    }

    /// Ends the session. The service thread then sends `answer` on every incoming connection,
    /// including the connections that already wait.
    pub fn finish_with_answer(self, answer: &[u8]) {
        let frame = link::encode_frame(answer);
        self.endpoint.reconnect_endpoint.iter().for_each(|reconnect_endpoint| {
            reconnect_endpoint.set_answer(Some(frame.clone()));
        });
        self.endpoint.registration.set_survivor_answer(frame);
    }
}

impl Drop for SurvivorSession<'_> {
    fn drop(&mut self) {
        self.endpoint.registration.close_survivor_session();
        self.endpoint.reconnect_endpoint.iter().for_each(ReconnectEndpoint::end_session);
        self.endpoint.is_session_open.store(false, Ordering::Release);
    }
}

/// A connection attempt. Dropping it cancels the attempt.
#[derive(Debug)]
pub struct PendingSurvivorConnect {
    route: SurvivorRoute,
    max_frame_len: usize,
}

#[derive(Debug)]
enum SurvivorRoute {
    Local(LocalConnect),
    Remote(PendingConnect),
    Unreachable(Error),
}

/// The result of a connection attempt.
#[derive(Debug)]
pub enum SurvivorConnectResult {
    /// The connection is established. The peer may not have opened a session yet.
    Reached(SurvivorLink),
    /// The rank's process is proven dead.
    Dead,
    /// The rank's process lives, and the rank has left the group and all groups that were created
    /// from this group.
    Left,
    /// The rank may be alive, but this rank cannot connect to it now.
    Unreachable(Error),
}

impl PendingSurvivorConnect {
    /// Returns the result once the attempt has ended.
    pub fn poll(&self) -> Option<SurvivorConnectResult> {
        let outcome = match &self.route {
            SurvivorRoute::Local(connect) => connect.poll().transpose()?,
            SurvivorRoute::Remote(pending) => pending.take_result()?,
            SurvivorRoute::Unreachable(error) => Err(error.clone()),
        };
        Some(match outcome {
            Ok(stream) => {
                SurvivorConnectResult::Reached(SurvivorLink::new(stream, self.max_frame_len))
            }
            Err(error) if error.kind() != ErrorKind::PeerFailed => {
                SurvivorConnectResult::Unreachable(error)
            }
            Err(error) if error.has_fault(RankFault::Died) => SurvivorConnectResult::Dead,
            Err(_) => SurvivorConnectResult::Left,
        })
    }
}
