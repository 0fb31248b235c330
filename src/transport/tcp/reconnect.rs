//! [`ReconnectEndpoint`]: connections between ranks of different nodes after their group has
//! failed, by which the survivors agree on a new group. Incoming connections arrive through the
//! listener registry of the process; their hello has the purpose [`ConnectionPurpose::Reconnect`].
//! The endpoint keeps each connection until the caller takes it. Once the caller has set a final
//! answer, the endpoint sends the answer on each connection and closes the connection.
//!
//! The endpoint does not depend on the mesh of the failed group and outlives it, so that a rank
//! that connects late still receives the final answer. This module does not depend on the bytes
//! that the ranks exchange on these connections.

use super::connect_target::PeerConnectTarget;
use super::hello::{ConnectionPurpose, Hello, HelloRefusal};
use super::incoming_connection::ConnectionAcceptor;
use super::link_proof::{LinkAcceptance, LinkTerms};
use super::listener_registry::ListenerRegistry;
use super::members::{TcpJoinConfig, TcpMember};
use super::peer_connect::{PeerConnectHandler, PeerConnector};
use crate::base::error::{Error, Result};
use crate::base::ids::{GroupId, Rank};
use crate::base::sync::lock;
use crate::security::LinkSecurity;
use crate::sys::eventfd::EventFd;
use crate::sys::stream::SocketStream;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};

/// The maximum number of connections from one rank that the endpoint keeps until the caller takes
/// them. A further connection replaces the oldest connection of that rank.
const MAX_KEPT_PER_RANK: usize = 8;

/// The endpoint of one rank for connections after the failure of its group.
#[derive(Debug)]
pub struct ReconnectEndpoint {
    /// Keeps the listening sockets open.
    _registry: Arc<ListenerRegistry>,
    inner: Arc<ReconnectInner>,
}

/// An attempt to connect to another survivor. Dropping this object cancels the attempt.
#[derive(Debug)]
pub struct PendingConnect {
    connector: Arc<PeerConnector>,
    inner: Arc<ReconnectInner>,
    to: Rank,
}

/// The state that the service thread and the caller share.
#[derive(Debug)]
struct ReconnectInner {
    group: GroupId,
    epoch: u32,
    me: Rank,
    members: Vec<TcpMember>,
    security: LinkSecurity,
    state: Mutex<ReconnectState>,
    weak: Weak<Self>,
}

#[derive(Debug, Default)]
struct ReconnectState {
    arrived: VecDeque<(Rank, Arc<SocketStream>)>,
    /// The results of connection attempts, by target rank.
    results: HashMap<Rank, Result<Arc<SocketStream>>>,
    /// The final answer to each incoming connection; `None` while the endpoint keeps connections.
    answer: Option<Vec<u8>>,
    /// Raised when a connection has arrived or an attempt has ended; set while a session is open.
    wake: Option<Arc<EventFd>>,
}

impl ReconnectState {
    fn wake(&self) {
        self.wake.iter().for_each(|event| event.raise());
    }
}

impl ReconnectEndpoint {
    pub(super) fn open(
        registry: Arc<ListenerRegistry>,
        join_config: &TcpJoinConfig<'_>,
    ) -> Result<Self> {
        let TcpJoinConfig { group, epoch, members, me, .. } = *join_config;
        let members = members.to_vec();
        let security = join_config.security.clone();
        let inner = Arc::new_cyclic(|weak: &Weak<ReconnectInner>| {
            let (state, weak) = (Mutex::default(), weak.clone());
            ReconnectInner { group, epoch, me, members, security, state, weak }
        });
        let acceptor: Arc<dyn ConnectionAcceptor> = inner.clone();
        registry.register_reconnect((group, me), Arc::downgrade(&acceptor));
        Ok(Self { _registry: registry, inner })
    }

    /// Starts to connect to another rank.
    ///
    /// # Errors
    /// `Connection` if no address is reachable.
    pub fn connect(&self, to: Rank) -> Result<PendingConnect> {
        let inner = &self.inner;
        let (own, peer) = (&inner.members[inner.me], &inner.members[to]);
        let terms = LinkTerms::between(&inner.security, own, peer);
        let hello = Hello {
            purpose: ConnectionPurpose::Reconnect,
            group: inner.group,
            epoch: inner.epoch,
            from: inner.me,
            to,
            security: terms.setting(),
            cipher: terms.cipher(),
        };
        let handler: Weak<dyn PeerConnectHandler> = inner.weak.clone();
        let target = PeerConnectTarget::between(hello, terms, own, peer, None)?;
        let connector = PeerConnector::new(target, handler);
        drop(lock(&inner.state).results.remove(&to));
        connector.start();
        Ok(PendingConnect { connector, inner: Arc::clone(inner), to })
    }

    /// Begins a session: keeps incoming connections, and raises the event when one has arrived or
    /// an attempt has ended. The event must be cleared before the arrivals are taken.
    pub fn begin_session(&self, wake: Arc<EventFd>) {
        lock(&self.inner.state).wake = Some(wake);
        self.set_answer(None);
    }

    /// Ends a session.
    pub fn end_session(&self) {
        lock(&self.inner.state).wake = None;
    }

    /// Removes and returns the connections that have arrived, in order of arrival.
    pub fn take_arrivals(&self) -> Vec<(Rank, Arc<SocketStream>)> {
        lock(&self.inner.state).arrived.drain(..).collect()
    }

    /// Sets the final answer, which the endpoint then sends on each incoming connection, including
    /// the connections that already wait. With `None`, the endpoint keeps incoming connections
    /// again.
    pub fn set_answer(&self, answer: Option<Vec<u8>>) {
        let mut state = lock(&self.inner.state);
        let waiting = match &answer {
            Some(_) => std::mem::take(&mut state.arrived),
            None => VecDeque::new(),
        };
        state.answer.clone_from(&answer);
        drop(state);
        let answer = answer.unwrap_or_default();
        waiting.iter().for_each(|(_, stream)| send_last_answer(stream, &answer));
    }
}

impl PendingConnect {
    /// Returns the result once the attempt has ended.
    pub fn take_result(&self) -> Option<Result<Arc<SocketStream>>> {
        lock(&self.inner.state).results.remove(&self.to)
    }
}

impl Drop for PendingConnect {
    fn drop(&mut self) {
        self.connector.cancel();
    }
}

/// Sends the final answer and closes the connection.
fn send_last_answer(stream: &SocketStream, answer: &[u8]) {
    // A new connection has room for the answer. If the peer has closed the connection, it does not
    // need the answer.
    drop(stream.send(answer));
    stream.shutdown_write();
}

impl ConnectionAcceptor for ReconnectInner {
    fn check_hello(&self, hello: &Hello) -> std::result::Result<LinkTerms, HelloRefusal> {
        let is_expected = hello.purpose == ConnectionPurpose::Reconnect
            && hello.from != self.me
            && hello.to == self.me
            && hello.epoch == self.epoch;
        match self.members.get(hello.from).filter(|_| is_expected) {
            Some(from) => Ok(LinkTerms::between(&self.security, from, &self.members[self.me])),
            None => Err(HelloRefusal::IdentityMismatch),
        }
    }

    fn accept_connection(
        &self,
        hello: &Hello,
        stream: Arc<SocketStream>,
        acceptance: &LinkAcceptance,
    ) {
        acceptance.send(&stream);
        let mut state = lock(&self.state);
        if let Some(answer) = &state.answer {
            return send_last_answer(&stream, answer);
        }
        let is_from_peer = |(from, _): &&(Rank, Arc<SocketStream>)| *from == hello.from;
        if state.arrived.iter().filter(is_from_peer).count() >= MAX_KEPT_PER_RANK {
            let oldest = state.arrived.iter().position(|it| is_from_peer(&it));
            drop(oldest.and_then(|at| state.arrived.remove(at)));
        }
        state.arrived.push_back((hello.from, stream));
        state.wake();
    }
}

impl PeerConnectHandler for ReconnectInner {
    fn on_connected(&self, hello: &Hello, stream: Arc<SocketStream>) {
        let mut state = lock(&self.state);
        state.results.insert(hello.to, Ok(stream));
        state.wake();
    }

    fn on_failed(&self, hello: &Hello, error: Error) {
        let mut state = lock(&self.state);
        state.results.insert(hello.to, Err(error));
        state.wake();
    }
}
