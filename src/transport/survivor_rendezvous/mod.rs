//! Connections between the surviving ranks of a failed group. They use neither the streams of the
//! group, nor its shared memory, nor the store.
//!
//! Every rank has a [`SurvivorEndpoint`] from the creation of its group on. The endpoint contains
//! the Unix socket on which this rank accepted the other ranks of its node when the group was
//! created. If the group has more than one node, the endpoint also contains a
//! [`ReconnectEndpoint`], which accepts TCP connections from ranks of other nodes. An incoming
//! connection waits in the listen queue of the Unix socket or in the reconnect endpoint until one
//! of two events:
//!
//! 1. This rank opens a [`SurvivorSession`], which gives the connection to the caller.
//! 2. The session ends with [an answer](SurvivorSession::finish_with_answer). After the end of the
//!    session, the service thread sends this answer on each connection and closes the connection.
//!
//! The endpoint does not depend on the group object and may outlive it. A rank that tries to
//! connect to a peer can thus distinguish two cases. If the socket of the peer is closed, the peer
//! has died, or it has left the group and all groups that were created from this group. If the
//! connection waits, the peer is alive, or it is stopped (for example by SIGSTOP).
//!
//! This module does not depend on the content of the frames (messages) on these connections.

mod link;
mod local;

pub use link::SurvivorLink;
pub use local::SurvivorAddress;

use super::PeerName;
use super::shm;
use super::tcp::{PendingConnect, ReconnectEndpoint};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Rank};
use crate::base::sync::lock;
use crate::wait::io;
use crate::wait::service::{self, DescriptorWatch};
use local::{LocalAnswerHandler, LocalListener, SurvivorGroup};
use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, MutexGuard};

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
    listener: Arc<UnixListener>,
    reconnect_endpoint: Option<ReconnectEndpoint>,
    state: Mutex<SurvivorEndpointState>,
}

#[derive(Debug, Default)]
struct SurvivorEndpointState {
    is_session_open: bool,
    answer_watch: Option<DescriptorWatch>,
}

impl SurvivorEndpoint {
    /// Creates the endpoint of rank `me`. `reconnect_endpoint` is required if some members are on
    /// other nodes.
    pub fn new(
        group: GroupId,
        me: Rank,
        peer_names: Arc<[PeerName]>,
        members: Vec<SurvivorAddress>,
        listener: UnixListener,
        reconnect_endpoint: Option<ReconnectEndpoint>,
    ) -> Self {
        let (listener, state) = (Arc::new(listener), Mutex::default());
        Self { group, me, peer_names, members, listener, reconnect_endpoint, state }
    }

    /// Returns the display name of a rank.
    pub fn name(&self, rank: Rank) -> &PeerName {
        &self.peer_names[rank]
    }

    /// Opens a session. The service thread stops answering connections with the answer of an
    /// earlier session, and the new session accepts them.
    ///
    /// # Errors
    /// `InvalidArgument` while another session is open.
    pub fn open_session(&self) -> Result<SurvivorSession<'_>> {
        let mut state = self.state();
        if state.is_session_open {
            return Err(Error::invalid("another thread already shrinks this group"));
        }
        state.is_session_open = true;
        let answer_watch = state.answer_watch.take();
        drop(state);
        drop(answer_watch);
        self.reconnect_endpoint
            .iter()
            .for_each(|reconnect_endpoint| reconnect_endpoint.set_answer(None));
        let local_listener = RefCell::new(LocalListener::new(Arc::clone(&self.listener)));
        Ok(SurvivorSession { endpoint: self, local_listener })
    }

    fn group(&self) -> SurvivorGroup<'_> {
        SurvivorGroup { group: self.group, members: &self.members, me: self.me }
    }

    fn max_frame_len(&self) -> usize {
        MAX_FRAME_BASE + self.members.len() * MAX_FRAME_PER_RANK
    }

    fn state(&self) -> MutexGuard<'_, SurvivorEndpointState> {
        lock(&self.state)
    }
}

/// An open session of a [`SurvivorEndpoint`], which accepts and makes connections.
#[derive(Debug)]
pub struct SurvivorSession<'a> {
    endpoint: &'a SurvivorEndpoint,
    local_listener: RefCell<LocalListener>,
}

impl SurvivorSession<'_> {
    /// Returns the display name of a rank.
    pub fn name(&self, rank: Rank) -> &PeerName {
        self.endpoint.name(rank)
    }

    /// Starts to connect to a rank. [`PendingSurvivorConnect::poll`] returns the result.
    pub fn connect(&self, to: Rank) -> PendingSurvivorConnect {
        let SurvivorEndpoint { me, members, reconnect_endpoint, .. } = self.endpoint;
        let route = match (&members[to].socket, reconnect_endpoint) {
            (Some(socket), _) => {
                let socket = shm::ShmListener::socket_name(*socket);
                SurvivorRoute::Local { socket, hello: self.endpoint.group().encode_hello(*me, to) }
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

    /// Returns the new connections whose peer has sent a valid hello, with the rank of each peer.
    pub fn take_arrivals(&self) -> Vec<(Rank, SurvivorLink)> {
        let longest = self.endpoint.max_frame_len();
        let mut identified =
            self.local_listener.borrow_mut().take_arrivals(self.endpoint.group(), longest);
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
        let local_listener = self.local_listener.borrow();
        let mut all: Vec<BorrowedFd<'_>> = local_listener.descriptors().collect();
        all.extend(self.endpoint.reconnect_endpoint.as_ref().map(ReconnectEndpoint::as_fd));
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
    ///
    /// # Errors
    /// `System`.
    pub fn finish_with_answer(self, answer: &[u8]) -> Result<()> {
        let handler = LocalAnswerHandler::new(Arc::clone(&self.endpoint.listener), answer);
        // The watch also reports connections that arrived before the watch was registered.
        let watch = service::watch(Arc::new(handler))?;
        self.endpoint.reconnect_endpoint.iter().for_each(|reconnect_endpoint| {
            reconnect_endpoint.set_answer(Some(link::encode_frame(answer)))
        });
        self.endpoint.state().answer_watch = Some(watch);
        Ok(())
    }
}

impl Drop for SurvivorSession<'_> {
    fn drop(&mut self) {
        self.endpoint.state().is_session_open = false;
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
    Local { socket: String, hello: Vec<u8> },
    Remote(PendingConnect),
    Unreachable(Error),
}

/// The result of a connection attempt.
#[derive(Debug)]
pub enum SurvivorConnectResult {
    /// The connection is established. The peer may not have opened a session yet.
    Reached(SurvivorLink),
    /// No process accepts connections at the address of the rank. The rank's process has exited, or
    /// the rank has left the group and all groups that were created from this group.
    Gone(Error),
    /// The rank may be alive, but this rank cannot connect to it.
    Unreachable(Error),
}

impl PendingSurvivorConnect {
    /// Returns the result once the attempt has ended.
    pub fn poll(&self) -> Option<SurvivorConnectResult> {
        let outcome = match &self.route {
            SurvivorRoute::Local { socket, hello } => local::connect(socket, hello).transpose()?,
            SurvivorRoute::Remote(pending) => pending.take_result()?,
            SurvivorRoute::Unreachable(error) => Err(error.clone()),
        };
        Some(match outcome {
            Ok(stream) => {
                SurvivorConnectResult::Reached(SurvivorLink::new(stream, self.max_frame_len))
            }
            Err(error) => match error.kind() {
                ErrorKind::NotFound | ErrorKind::PeerFailed => SurvivorConnectResult::Gone(error),
                _ => SurvivorConnectResult::Unreachable(error),
            },
        })
    }
}
