//! Where ranks on other nodes find this one after their group has failed. The connections come
//! through the process's door with [`ConnectionPurpose::Reconnect`] and are kept until somebody
//! asks for them, or, once there is an answer for everybody, are answered and closed.
//!
//! It depends on nothing of the group that may have failed, and outlives its mesh: whoever is late
//! is told what became of the group. Must not know: what is said over the connections.

use super::hello::{ACCEPTED, ConnectionPurpose, Hello, HelloRefusal};
use super::join::{TcpJoinConfig, TcpMember};
use super::listener_registry::{ConnectionAcceptor, ListenerRegistry, lock};
use super::peer_connect::{PeerConnectHandler, PeerConnectTarget, PeerConnector};
use crate::base::error::{Error, Result};
use crate::base::ids::{GroupId, Rank};
use crate::sys::eventfd::EventFd;
use crate::sys::stream::SocketStream;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, Weak};

/// How many connections of one rank are kept that nobody has asked for; the oldest goes when
/// another one comes.
const MAX_KEPT_PER_RANK: usize = 8;

/// A rank's gate.
#[derive(Debug)]
pub struct ReconnectEndpoint {
    /// Open for as long as somebody may come.
    _registry: Arc<ListenerRegistry>,
    inner: Arc<ReconnectInner>,
}

/// A connection that is being made; dropping it gives that up.
#[derive(Debug)]
pub struct PendingConnect {
    connector: Arc<PeerConnector>,
    inner: Arc<ReconnectInner>,
    to: Rank,
}

/// What the service thread and the one who calls share.
#[derive(Debug)]
struct ReconnectInner {
    group: GroupId,
    epoch: u32,
    me: Rank,
    members: Vec<TcpMember>,
    state: Mutex<ReconnectState>,
    /// Raised when something has come.
    wake: EventFd,
    weak: Weak<Self>,
}

#[derive(Debug, Default)]
struct ReconnectState {
    arrived: VecDeque<(Rank, Arc<SocketStream>)>,
    /// How attempts to reach others ended.
    results: HashMap<Rank, Result<Arc<SocketStream>>>,
    /// What whoever comes is told.
    answer: Option<Vec<u8>>,
}

impl ReconnectEndpoint {
    pub(super) fn open(registry: Arc<ListenerRegistry>, party: &TcpJoinConfig<'_>) -> Result<Self> {
        let TcpJoinConfig { group, epoch, members, me, .. } = *party;
        let (members, wake) = (members.to_vec(), EventFd::new()?);
        let inner = Arc::new_cyclic(|weak: &Weak<ReconnectInner>| {
            let (state, weak) = (Mutex::default(), weak.clone());
            ReconnectInner { group, epoch, me, members, state, wake, weak }
        });
        let acceptor: Arc<dyn ConnectionAcceptor> = inner.clone();
        registry.register_reconnect((group, me), Arc::downgrade(&acceptor));
        Ok(Self { _registry: registry, inner })
    }

    /// Begins to connect with another rank.
    ///
    /// # Errors
    /// `Connection` where there is no address to try.
    pub fn connect(&self, to: Rank) -> Result<PendingConnect> {
        let inner = &self.inner;
        let (own, peer) = (&inner.members[inner.me], &inner.members[to]);
        let hello = Hello {
            purpose: ConnectionPurpose::Reconnect,
            group: inner.group,
            epoch: inner.epoch,
            from: inner.me,
            to,
            nonce: own.nonce,
            expected_nonce: peer.nonce,
        };
        let handler: Weak<dyn PeerConnectHandler> = inner.weak.clone();
        let connector =
            PeerConnector::new(PeerConnectTarget::between(hello, own, peer, None)?, handler);
        drop(lock(&inner.state).results.remove(&to));
        connector.start();
        Ok(PendingConnect { connector, inner: Arc::clone(inner), to })
    }

    /// Takes what has come, in the order of its coming.
    pub fn take_arrivals(&self) -> Vec<(Rank, Arc<SocketStream>)> {
        self.inner.wake.clear();
        lock(&self.inner.state).arrived.drain(..).collect()
    }

    /// From now on everybody who comes is told this, those who have come first; with `None`, they
    /// are kept again.
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

impl AsFd for ReconnectEndpoint {
    /// Readable when something may have come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.wake.as_fd()
    }
}

impl PendingConnect {
    /// How it ended, once it has.
    pub fn take_result(&self) -> Option<Result<Arc<SocketStream>>> {
        lock(&self.inner.state).results.remove(&self.to)
    }
}

impl Drop for PendingConnect {
    fn drop(&mut self) {
        self.connector.cancel();
    }
}

/// The last words on a connection.
fn send_last_answer(stream: &SocketStream, answer: &[u8]) {
    // A new connection has room for it, and whoever has gone does not need it.
    drop(stream.send(answer));
    stream.shutdown_write();
}

impl ConnectionAcceptor for ReconnectInner {
    fn check_hello(&self, hello: &Hello) -> std::result::Result<(), HelloRefusal> {
        let known = self.members.get(hello.from).filter(|member| member.nonce == hello.nonce);
        let is_expected = known.is_some()
            && hello.purpose == ConnectionPurpose::Reconnect
            && hello.from != self.me
            && hello.epoch == self.epoch
            && hello.expected_nonce == self.members[self.me].nonce;
        if is_expected { Ok(()) } else { Err(HelloRefusal::IdentityMismatch) }
    }

    fn accept_connection(&self, hello: &Hello, stream: Arc<SocketStream>) {
        drop(stream.send(&[ACCEPTED]));
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
        drop(state);
        self.wake.raise();
    }
}

impl PeerConnectHandler for ReconnectInner {
    fn on_connected(&self, hello: &Hello, stream: Arc<SocketStream>) {
        lock(&self.state).results.insert(hello.to, Ok(stream));
        self.wake.raise();
    }

    fn on_failed(&self, hello: &Hello, error: Error) {
        lock(&self.state).results.insert(hello.to, Err(error));
        self.wake.raise();
    }
}
