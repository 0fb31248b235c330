//! The listener registry of the process: one listening socket for each address, which all groups of
//! the process share, and an *acceptor* for each rank, which accepts the connections to this rank.
//!
//! The service thread accepts each connection, performs the handshake ([`hello`]),
//! and passes the connection to the [`ConnectionAcceptor`] of the rank that the hello names. During
//! the handshake, a connection is first *unidentified*, until its hello has arrived, and then
//! *unconfirmed*, until the confirmation has arrived. The registry closes a connection that sends
//! anything else, that sends no hello within [`HELLO_TIMEOUT`], or that sends no confirmation
//! within [`CONFIRM_TIMEOUT`].

use super::hello::{self, ConnectionPurpose, Hello};
use super::incoming_connection::{ConnectionAcceptor, IncomingConnection, IncomingConnections};
use super::link_table::LinkTable;
use super::port_range;
use crate::base::error::{Error, Result};
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::process::death_witness::DeathWitness;
use crate::sys::fork_descriptors::ForkClosed;
use crate::sys::stream::SocketStream;
use crate::sys::{host, limits, poll, socket};
use crate::wait::service::{
    self, Alarm, AlarmHandler, DescriptorHandler, DescriptorWatch, WatchAction,
};
use std::collections::{HashMap, VecDeque};
use std::io::ErrorKind as Io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

/// The time within which a new connection must send its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of unidentified connections. A further connection closes the oldest one.
const MAX_UNIDENTIFIED: usize = 1024;
/// Unidentified connections use at most the process's descriptor limit divided by this number, and
/// unconfirmed ones half as many.
const DESCRIPTOR_DIVISOR: u64 = 4;
/// The time within which a connection with a valid hello must send its confirmation. The connecting
/// side gives up after 20 s if it has not sent the confirmation. The time here is longer, so that a
/// confirmation is never too late.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(60);
/// The number of former ranks that are remembered. Connections of ranks that left before were
/// closed long ago.
const MAX_FORMER_RANKS: usize = 256;
/// The maximum number of connections that the service thread accepts per wakeup.
const ACCEPTS_PER_WAKEUP: usize = 64;
/// The time for which the registry accepts no connections after the system ran out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The group and the rank to which a peer connects.
type ListenerKey = (GroupId, Rank);

/// The listening sockets of this process and their acceptors.
#[derive(Debug)]
pub(super) struct ListenerRegistry {
    /// The id of the process that created the registry. A forked child has a copy of the registry,
    /// but no service thread, so it cannot use the copy.
    pid: u32,
    /// The death witness of this process, after the first request for one. `None` inside if it
    /// could not be started.
    witness: OnceLock<Option<PublishedWitness>>,
    inner: Arc<ListenerRegistryInner>,
    links: Arc<LinkTable>,
}

/// The death witness of this process, and the hash of its certificate.
#[derive(Debug)]
struct PublishedWitness {
    hash: Nonce,
    _witness: DeathWitness,
}

#[derive(Debug)]
struct ListenerRegistryInner {
    state: Mutex<ListenerState>,
    /// The maximum number of unidentified connections.
    max_unidentified: usize,
    /// The maximum number of unconfirmed connections.
    max_unconfirmed: usize,
}

#[derive(Debug, Default)]
struct ListenerState {
    sockets: Vec<ListeningSocket>,
    acceptors: HashMap<ListenerKey, Weak<dyn ConnectionAcceptor>>,
    /// The acceptors for connections with [`ConnectionPurpose::Reconnect`].
    reconnect_acceptors: HashMap<ListenerKey, Weak<dyn ConnectionAcceptor>>,
    /// The ranks that have left their groups, from the oldest departure to the latest.
    former_ranks: VecDeque<(ListenerKey, Arc<dyn ConnectionAcceptor>)>,
    /// The unidentified connections with their deadlines, in order of arrival.
    unidentified: VecDeque<(Instant, Arc<IncomingConnection>)>,
    /// The unconfirmed connections with their deadlines, in the order in which their hellos were
    /// checked. Their hellos may be replays, so their number has a limit, too.
    unconfirmed: VecDeque<(Instant, Arc<IncomingConnection>)>,
    resume_accept_at: Option<Instant>,
    alarm: Option<Alarm>,
}

#[derive(Debug)]
struct ListeningSocket {
    address: SocketAddr,
    listener: Arc<OpenListener>,
    watch: DescriptorWatch,
}

/// A listening socket. A forked child keeps no copy of it.
#[derive(Debug)]
struct OpenListener {
    /// Dropped before the socket is closed.
    _fork_closed: ForkClosed,
    socket: TcpListener,
}

static LISTENER_REGISTRY: Mutex<Weak<ListenerRegistry>> = Mutex::new(Weak::new());

impl ListenerRegistry {
    /// Returns the registry of this process, after adding a listening socket for each of these
    /// addresses that has none. The ports of the addresses are ignored: the sockets get any free
    /// port or, if a range is given, a free port of the range.
    ///
    /// # Errors
    /// `Connection` if no port of the range is free; `System`.
    pub(super) fn listen_on(
        addresses: &[SocketAddr],
        ports: Option<&RangeInclusive<u16>>,
    ) -> Result<Arc<Self>> {
        let mut known = lock(&LISTENER_REGISTRY);
        let existing = known.upgrade().filter(|registry| registry.pid == host::pid());
        let registry = match existing {
            Some(registry) => registry,
            None => Arc::new(Self::without_sockets()?),
        };
        for address in addresses {
            registry.inner.listen(*address, ports)?;
        }
        *known = Arc::downgrade(&registry);
        Ok(registry)
    }

    /// Returns the registry of this process, if there is one.
    pub(super) fn of_this_process() -> Option<Arc<Self>> {
        lock(&LISTENER_REGISTRY).upgrade().filter(|registry| registry.pid == host::pid())
    }

    fn without_sockets() -> Result<Self> {
        let share = limits::max_open_files()? / DESCRIPTOR_DIVISOR;
        let max_unidentified =
            usize::try_from(share).unwrap_or(usize::MAX).clamp(1, MAX_UNIDENTIFIED);
        let max_unconfirmed = (max_unidentified / 2).max(1);
        let state = Mutex::default();
        let inner = Arc::new(ListenerRegistryInner { state, max_unidentified, max_unconfirmed });
        let alarm = service::alarm(Arc::new(HandshakeTimeout(Arc::downgrade(&inner))))?;
        inner.state().alarm = Some(alarm);
        Ok(Self { pid: host::pid(), witness: OnceLock::new(), inner, links: LinkTable::new()? })
    }

    /// Starts the death witness of this process, unless it runs. Returns the hash of its
    /// certificate, or `None` if there can be no witness. The witness answers at the sockets that
    /// exist at the first call.
    pub(super) fn start_witness(&self) -> Option<Nonce> {
        let start = || {
            let certificate = host::random_nonce()?;
            let state = self.inner.state();
            let listeners: Vec<Arc<OpenListener>> =
                state.sockets.iter().map(|open| Arc::clone(&open.listener)).collect();
            drop(state);
            let listeners: Vec<BorrowedFd<'_>> =
                listeners.iter().map(|it| it.socket.as_fd()).collect();
            let answer = hello::encode_death(certificate);
            let witness = DeathWitness::start(&listeners, answer, hello::HELLO_BYTES)?;
            Ok(PublishedWitness { hash: hello::death_hash(certificate), _witness: witness })
        };
        let log = |error: &Error| {
            crate::log!(
                LogLevel::Warn,
                "this process has no death witness, so the survivors of its death may have to wait \
                 for the heartbeat limit: {error}"
            );
        };
        let witness = self.witness.get_or_init(|| start().inspect_err(log).ok());
        witness.as_ref().map(|published| published.hash)
    }

    /// Returns the links of the process.
    pub(super) fn links(&self) -> &Arc<LinkTable> {
        &self.links
    }

    /// Returns the listening port at an address.
    pub(super) fn port(&self, ip: IpAddr) -> Option<u16> {
        let state = self.inner.state();
        state.sockets.iter().find(|open| open.address.ip() == ip).map(|open| open.address.port())
    }

    /// Registers the acceptor for connections to this rank of this group.
    ///
    /// # Errors
    /// `Internal` if the rank already has an acceptor.
    pub(super) fn register(
        &self,
        key: ListenerKey,
        acceptor: Weak<dyn ConnectionAcceptor>,
    ) -> Result<()> {
        let mut state = self.inner.state();
        if state.acceptors.get(&key).is_some_and(|acceptor| acceptor.strong_count() > 0) {
            let (group, rank) = key;
            let message =
                format!("rank {rank} of group {group} is registered twice in this process");
            return Err(Error::internal(message));
        }
        state.acceptors.insert(key, acceptor);
        Ok(())
    }

    /// Registers the acceptor for connections to this rank after its group has failed. Later calls
    /// of this function remove the entries of acceptors that were dropped.
    pub(super) fn register_reconnect(
        &self,
        key: ListenerKey,
        acceptor: Weak<dyn ConnectionAcceptor>,
    ) {
        let mut state = self.inner.state();
        state.reconnect_acceptors.retain(|_, known| known.strong_count() > 0);
        state.reconnect_acceptors.insert(key, acceptor);
    }

    /// Removes the acceptor that [`ListenerRegistry::register`] added, as the end of the process
    /// does.
    #[cfg(test)]
    pub(super) fn unregister(&self, key: ListenerKey) {
        self.inner.state().acceptors.remove(&key);
    }

    /// Replaces the acceptor of a rank that leaves its group by this one, which answers where a
    /// connection of a link broke.
    pub(super) fn retire(&self, key: ListenerKey, former: Arc<dyn ConnectionAcceptor>) {
        let mut state = self.inner.state();
        state.acceptors.remove(&key);
        state.former_ranks.push_back((key, former));
        let oldest = match state.former_ranks.len() > MAX_FORMER_RANKS {
            true => state.former_ranks.pop_front(),
            false => None,
        };
        drop(state);
        drop(oldest);
    }
}

impl Drop for ListenerRegistry {
    fn drop(&mut self) {
        // Do not hold the lock while the watches end: a handler that is running locks the state.
        let state = std::mem::take(&mut *self.inner.state());
        let all = state.unidentified.iter().chain(&state.unconfirmed);
        all.for_each(|(_, connection)| connection.stop_watching());
        self.links.close();
    }
}

impl ListenerRegistryInner {
    fn state(&self) -> MutexGuard<'_, ListenerState> {
        lock(&self.state)
    }

    fn listen(
        self: &Arc<Self>,
        address: SocketAddr,
        ports: Option<&RangeInclusive<u16>>,
    ) -> Result<()> {
        if self.state().sockets.iter().any(|open| open.address.ip() == address.ip()) {
            return Ok(());
        }
        let listener = port_range::listen(address, ports)?;
        let local = listener.local_addr();
        let address = local.map_err(|cause| Error::system("getsockname", cause))?;
        let fork_closed = ForkClosed::list(listener.as_fd());
        let listener = Arc::new(OpenListener { _fork_closed: fork_closed, socket: listener });
        let registry = Arc::downgrade(self);
        let handler = AcceptHandler { listener: Arc::clone(&listener), registry };
        let watch = service::watch(Arc::new(handler))?;
        self.state().sockets.push(ListeningSocket { address, listener, watch });
        Ok(())
    }

    fn add_incoming(self: &Arc<Self>, stream: SocketStream, from: SocketAddr) {
        let registry: Arc<dyn IncomingConnections> = self.clone();
        let registry = Arc::downgrade(&registry);
        let incoming = match IncomingConnection::watch(stream, from, registry) {
            Ok(incoming) => incoming,
            Err(error) => {
                crate::log!(LogLevel::Warn, "dropped a connection from {from}: {error}");
                return;
            }
        };
        let mut state = self.state();
        state.unidentified.push_back((Instant::now() + HELLO_TIMEOUT, incoming));
        let oldest = match state.unidentified.len() > self.max_unidentified {
            true => state.unidentified.pop_front(),
            false => None,
        };
        state.update_alarm();
        drop(state);
        if let Some((_, connection)) = oldest {
            connection.evict();
        }
    }

    fn pause_accepting(&self) {
        let mut state = self.state();
        state.sockets.iter().for_each(|open| open.watch.pause());
        state.resume_accept_at = Some(Instant::now() + ACCEPT_PAUSE);
        state.update_alarm();
    }
}

impl IncomingConnections for ListenerRegistryInner {
    /// Returns the acceptor of the rank that a hello addresses.
    fn acceptor_for(&self, hello: &Hello) -> Option<Arc<dyn ConnectionAcceptor>> {
        let state = self.state();
        let acceptors = match hello.purpose {
            ConnectionPurpose::Reconnect => &state.reconnect_acceptors,
            _ => &state.acceptors,
        };
        let key = (hello.group, hello.to);
        let present = acceptors.get(&key).and_then(Weak::upgrade);
        if present.is_some() || hello.purpose.broken_link().is_none() {
            return present;
        }
        let mut former = state.former_ranks.iter().rev();
        former.find(|(known, _)| *known == key).map(|(_, former)| Arc::clone(former))
    }

    fn remove_incoming(&self, connection: &IncomingConnection) {
        let is_other = |(_, other): &(Instant, Arc<IncomingConnection>)| {
            !std::ptr::eq(Arc::as_ptr(other), std::ptr::from_ref(connection))
        };
        let mut state = self.state();
        state.unidentified.retain(is_other);
        state.unconfirmed.retain(is_other);
    }

    /// Moves a connection whose hello is valid from the unidentified to the unconfirmed
    /// connections.
    fn mark_unconfirmed(&self, connection: &IncomingConnection) {
        let is_it = |(_, other): &(Instant, Arc<IncomingConnection>)| {
            std::ptr::eq(Arc::as_ptr(other), std::ptr::from_ref(connection))
        };
        let mut state = self.state();
        let index = state.unidentified.iter().position(is_it);
        if let Some((_, connection)) = index.and_then(|at| state.unidentified.remove(at)) {
            state.unconfirmed.push_back((Instant::now() + CONFIRM_TIMEOUT, connection));
            state.update_alarm();
        }
        let oldest = match state.unconfirmed.len() > self.max_unconfirmed {
            true => state.unconfirmed.pop_front(),
            false => None,
        };
        drop(state);
        if let Some((_, connection)) = oldest {
            connection.evict();
        }
    }
}

impl ListenerState {
    fn update_alarm(&self) {
        let [unidentified, unconfirmed] = [&self.unidentified, &self.unconfirmed];
        let [unidentified, unconfirmed] =
            [unidentified, unconfirmed].map(|list| list.front().map(|&(by, _)| by));
        if let Some(alarm) = &self.alarm {
            alarm.set(
                [unidentified, unconfirmed, self.resume_accept_at].into_iter().flatten().min(),
            );
        }
    }

    /// Removes and returns the connections whose deadline has passed.
    fn take_expired(&mut self, now: Instant) -> Vec<Arc<IncomingConnection>> {
        let lists = [&mut self.unidentified, &mut self.unconfirmed];
        let late = lists.into_iter().flat_map(|list| {
            let late = list.iter().take_while(|(by, _)| *by <= now).count();
            list.drain(..late).map(|(_, connection)| connection)
        });
        late.collect()
    }
}

/// The handler that accepts connections on one listening socket, on the service thread.
#[derive(Debug)]
struct AcceptHandler {
    listener: Arc<OpenListener>,
    registry: Weak<ListenerRegistryInner>,
}

impl DescriptorHandler for AcceptHandler {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.socket.as_fd()
    }

    fn on_readable(&self) -> WatchAction {
        let Some(inner) = self.registry.upgrade() else { return WatchAction::Done };
        // Between two wakeups, the service thread reads the hellos that have arrived. So a crowd of
        // prompt peers does not reach the limit of unidentified connections.
        for _ in 0..ACCEPTS_PER_WAKEUP.min(inner.max_unidentified.div_ceil(4)) {
            match socket::accept(&self.listener.socket) {
                Ok((stream, from)) => {
                    inner.add_incoming(SocketStream::from_nonblocking_tcp(stream), from)
                }
                Err(cause) if cause.kind() == Io::WouldBlock => break,
                Err(cause) if socket::is_resource_shortage(&cause) => {
                    crate::log!(
                        LogLevel::Warn,
                        "cannot accept a peer's connection now: {cause} (see ulimit -n)"
                    );
                    inner.pause_accepting();
                    break;
                }
                Err(cause) if poll::has_hung_up(self.listener.socket.as_fd()) => {
                    crate::log!(
                        LogLevel::Error,
                        "the listening socket failed, so no peer can connect to this process: {cause}"
                    );
                    return WatchAction::Done;
                }
                // The peer closed the connection before this process accepted it.
                Err(cause) => crate::log!(LogLevel::Debug, "accept: {cause}"),
            }
        }
        WatchAction::Keep
    }
}

/// The alarm handler that closes connections whose deadline has passed, and that resumes accepting
/// after a shortage of descriptors.
#[derive(Debug)]
struct HandshakeTimeout(Weak<ListenerRegistryInner>);

impl AlarmHandler for HandshakeTimeout {
    fn on_alarm(&self) {
        let Some(inner) = self.0.upgrade() else { return };
        let now = Instant::now();
        let mut state = inner.state();
        let late = state.take_expired(now);
        if state.resume_accept_at.is_some_and(|at| at <= now) {
            state.resume_accept_at = None;
            let read = poll::Interest::READ;
            state.sockets.iter().for_each(|open| open.watch.set_interest(read));
        }
        state.update_alarm();
        drop(state);
        late.iter().for_each(|it| it.reject("it did not complete the handshake in time"));
    }
}
