//! How the ranks of a group find each other again once it has failed: without its streams, its
//! memory and the store.
//!
//! Every rank keeps a [`SurvivorEndpoint`] from the beginning of its group on: the Unix socket on
//! which the ranks of its node had met, and, where there are other nodes, a place behind the
//! process's TCP door. Nobody looks at it: who connects waits there until this rank opens a
//! [`SurvivorSession`], or, once that has ended with an [answer](Session::answer), is told that. A
//! port depends on nothing of its group and may outlive it.
//!
//! A rank whose socket is closed has died or has left everything that came of the group; one that
//! lets others wait is alive, or stopped.
//!
//! Must not know: what the ranks say to each other.

mod link;
mod local;

pub use link::SurvivorLink;

use super::PeerName;
use super::shm;
use super::tcp::{PendingConnect, ReconnectEndpoint};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::wait::io;
use crate::wait::service::{self, DescriptorWatch};
use local::{LocalAnswerHandler, LocalListener};
use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The longest frame: each of the ranks may contribute so much, and one of them a list of rules.
const MAX_FRAME_BASE: usize = 1 << 20;
const MAX_FRAME_PER_RANK: usize = 64 << 10;

/// How one rank of the group is found.
#[derive(Clone, Debug)]
pub struct SurvivorAddress {
    /// The nonce that it published.
    pub nonce: Nonce,
    /// What tells its Unix socket, where it is on this rank's node ([`shm::ShmListener::nonce`]);
    /// the others are behind the gate.
    pub socket: Option<Nonce>,
}

/// Where the others find this rank.
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
    /// A session is open.
    is_session_open: bool,
    answer_watch: Option<DescriptorWatch>,
}

impl SurvivorEndpoint {
    /// The port of rank `me`. There is a gate where some of the members have no socket.
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

    /// Who a rank is.
    pub fn name(&self, rank: Rank) -> &PeerName {
        &self.peer_names[rank]
    }

    /// Begins to look for the others; whoever comes is no longer answered.
    ///
    /// # Errors
    /// `InvalidArgument` while there is another session.
    pub fn open_session(&self) -> Result<SurvivorSession<'_>> {
        let mut state = self.state();
        if state.is_session_open {
            return Err(Error::invalid("another thread does the same with this group"));
        }
        state.is_session_open = true;
        let answer_watch = state.answer_watch.take();
        drop(state);
        drop(answer_watch);
        self.reconnect_endpoint.iter().for_each(|gate| gate.set_answer(None));
        let local_listener = RefCell::new(LocalListener::new(Arc::clone(&self.listener)));
        Ok(SurvivorSession { endpoint: self, local_listener })
    }

    fn max_frame_len(&self) -> usize {
        MAX_FRAME_BASE + self.members.len() * MAX_FRAME_PER_RANK
    }

    fn state(&self) -> MutexGuard<'_, SurvivorEndpointState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A port that is looked at.
#[derive(Debug)]
pub struct SurvivorSession<'a> {
    endpoint: &'a SurvivorEndpoint,
    local_listener: RefCell<LocalListener>,
}

impl SurvivorSession<'_> {
    /// Who a rank is.
    pub fn name(&self, rank: Rank) -> &PeerName {
        self.endpoint.name(rank)
    }

    /// Begins to connect with a rank.
    pub fn connect(&self, to: Rank) -> PendingSurvivorConnect {
        let SurvivorEndpoint { group, me, members, reconnect_endpoint: gate, .. } = self.endpoint;
        let route = match (&members[to].socket, gate) {
            (Some(socket), _) => {
                let socket = shm::ShmListener::socket_name(*socket);
                SurvivorRoute::Local {
                    socket,
                    hello: local::encode_hello(*group, members, *me, to),
                }
            }
            (None, Some(gate)) => {
                gate.connect(to).map_or_else(SurvivorRoute::Unreachable, SurvivorRoute::Remote)
            }
            (None, None) => SurvivorRoute::Unreachable(Error::internal("there is no gate")),
        };
        PendingSurvivorConnect { route, max_frame_len: self.endpoint.max_frame_len() }
    }

    /// Those who have come and said who they are.
    pub fn take_arrivals(&self) -> Vec<(Rank, SurvivorLink)> {
        let SurvivorEndpoint { group, me, members, reconnect_endpoint: gate, .. } = self.endpoint;
        let longest = self.endpoint.max_frame_len();
        let mut identified =
            self.local_listener.borrow_mut().take_arrivals((*group, members, *me), longest);
        let link = |(rank, stream)| (rank, SurvivorLink::new(stream, longest));
        identified.extend(gate.iter().flat_map(ReconnectEndpoint::take_arrivals).map(link));
        identified
    }

    /// Waits until somebody comes, something is to be read on one of the links, a call through the
    /// gate has ended, or the deadline has passed.
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

    /// Waits until something is to be read on one of the links, or the deadline has passed. Who
    /// comes is not looked for.
    ///
    /// # Errors
    /// `System`.
    pub fn wait_for_links<'a>(
        links: impl IntoIterator<Item = &'a SurvivorLink>,
        deadline: &Deadline,
    ) -> Result<()> {
        io::wait_for_any_readable(links.into_iter().map(SurvivorLink::as_fd), deadline)
    }

    /// Ends the session: from now on the service thread tells everybody who comes this, those who
    /// have come first.
    ///
    /// # Errors
    /// `System`.
    pub fn finish_with_answer(self, answer: &[u8]) -> Result<()> {
        let handler = LocalAnswerHandler::new(Arc::clone(&self.endpoint.listener), answer);
        // A registration tells at once what is there already.
        let watch = service::watch(Arc::new(handler))?;
        self.endpoint
            .reconnect_endpoint
            .iter()
            .for_each(|gate| gate.set_answer(Some(link::encode_frame(answer))));
        self.endpoint.state().answer_watch = Some(watch);
        Ok(())
    }
}

impl Drop for SurvivorSession<'_> {
    fn drop(&mut self) {
        self.endpoint.state().is_session_open = false;
    }
}

/// A connection that is being made; dropping it gives that up.
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

/// How a call ended.
#[derive(Debug)]
pub enum SurvivorConnectResult {
    /// There is a connection, whether or not anybody looks at it.
    Reached(SurvivorLink),
    /// Nobody is there: the process has ended, or has left the group and everything that came of
    /// it.
    Gone(Error),
    /// It may be there, but cannot be reached.
    Unreachable(Error),
}

impl PendingSurvivorConnect {
    /// How it ended, once it has.
    pub fn poll(&self) -> Option<SurvivorConnectResult> {
        let outcome = match &self.route {
            SurvivorRoute::Local { socket, hello } => local::connect(socket, hello).transpose()?,
            SurvivorRoute::Remote(ringing) => ringing.take_result()?,
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
