//! The listening socket of the process, and the connections that it has accepted, until their hello
//! has arrived.
//!
//! The listener closes a connection of another user, a connection whose hello is wrong, and a
//! connection that sends no hello within [`HELLO_TIMEOUT`].

use super::frame::{ConnectionHello, HELLO_BYTES, ProcessAddress, SurvivorHello};
use crate::base::error::{Error, Result};
use crate::base::ids::Nonce;
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::sys::fork_descriptors::ForkClosed;
use crate::sys::stream::SocketStream;
use crate::sys::{poll, socket, unix};
use crate::wait::service::{
    self, Alarm, AlarmHandler, DescriptorHandler, DescriptorWatch, WatchAction,
};
use std::collections::VecDeque;
use std::io::ErrorKind as Io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// The time within which a new connection must send its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of connections without a hello. A further connection closes the oldest one.
const MAX_UNIDENTIFIED: usize = 256;
/// The maximum number of connections that the service thread accepts per wakeup.
const ACCEPTS_PER_WAKEUP: usize = 64;
/// The time for which the registry accepts no connections after the system ran out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Takes the connections whose hello has arrived, on the service thread.
pub(super) trait ConnectionReceiver: Send + Sync {
    /// Takes the link that a process has made.
    fn accept_link(self: Arc<Self>, process: Nonce, stream: Arc<UnixStream>);

    /// Takes the connection of a survivor.
    fn accept_survivor(&self, hello: SurvivorHello, stream: SocketStream);
}

crate::base::trait_object_debug::impl_debug_of_objects!(ConnectionReceiver);

/// The listening socket. Dropping it closes the connections that have no hello.
#[derive(Debug)]
pub(super) struct HostListener {
    inner: Arc<HostListenerInner>,
}

#[derive(Debug)]
struct HostListenerInner {
    /// Dropped before the socket closes.
    _fork_closed: ForkClosed,
    socket: UnixListener,
    /// The name of the registry, which a hello must have.
    name: Nonce,
    receiver: Weak<dyn ConnectionReceiver>,
    state: Mutex<UnidentifiedConnections>,
    weak: Weak<Self>,
}

/// The connections without a hello.
#[derive(Debug, Default)]
struct UnidentifiedConnections {
    /// The connections with their deadlines, in order of arrival.
    connections: VecDeque<(Instant, Arc<UnidentifiedConnection>)>,
    resume_accept_at: Option<Instant>,
    accept_watch: Option<DescriptorWatch>,
    alarm: Option<Alarm>,
}

impl HostListener {
    /// Listens for connections to the registry with this name.
    ///
    /// # Errors
    /// `System`.
    pub(super) fn listen(name: Nonce, receiver: Weak<dyn ConnectionReceiver>) -> Result<Self> {
        let socket = unix::listen(&ProcessAddress::socket_name(name))?;
        let fork_closed = ForkClosed::list(socket.as_fd());
        let inner = Arc::new_cyclic(|weak: &Weak<HostListenerInner>| HostListenerInner {
            _fork_closed: fork_closed,
            socket,
            name,
            receiver,
            state: Mutex::default(),
            weak: weak.clone(),
        });
        let alarm = service::alarm(Arc::new(HelloTimeout(Arc::downgrade(&inner))))?;
        let watch = service::watch(inner.clone())?;
        let mut state = inner.state();
        state.alarm = Some(alarm);
        state.accept_watch = Some(watch);
        drop(state);
        Ok(Self { inner })
    }

    /// Returns true if the socket was shut down, so that it accepts no connections.
    pub(super) fn has_ended(&self) -> bool {
        poll::has_hung_up(self.inner.socket.as_fd())
    }
}

impl Drop for HostListener {
    fn drop(&mut self) {
        // Do not hold the lock while the watches end: a handler that is running locks the state.
        let state = std::mem::take(&mut *self.inner.state());
        state.connections.iter().for_each(|(_, connection)| connection.stop_watching());
    }
}

impl HostListenerInner {
    /// Takes over an accepted connection.
    fn add(&self, stream: UnixStream) {
        if !is_of_trusted_user(&stream) || stream.set_nonblocking(true).is_err() {
            return;
        }
        let (stream, bytes) = (Arc::new(stream), [0; HELLO_BYTES]);
        let hello =
            IncomingHello { stream: Some(Arc::clone(&stream)), bytes, filled: 0, watch: None };
        let (listener, handshake) = (self.weak.clone(), Mutex::new(hello));
        let connection = UnidentifiedConnection { listener, handshake };
        // Most hellos have arrived already.
        if connection.read_hello() == WatchAction::Done {
            return;
        }
        let connection = Arc::new(connection);
        let handler = HelloHandler { stream, connection: Arc::clone(&connection) };
        match service::watch(Arc::new(handler)) {
            Ok(watch) => lock(&connection.handshake).watch = Some(watch),
            Err(error) => {
                crate::log!(LogLevel::Warn, "dropped a connection: {error}");
                return;
            }
        }
        let oldest = self.state().add(connection);
        if let Some(oldest) = oldest {
            oldest.reject("the limit of connections without a hello is exceeded");
        }
    }

    fn state(&self) -> MutexGuard<'_, UnidentifiedConnections> {
        lock(&self.state)
    }
}

impl UnidentifiedConnections {
    /// Adds a connection. Returns the oldest one if there are too many.
    fn add(
        &mut self,
        connection: Arc<UnidentifiedConnection>,
    ) -> Option<Arc<UnidentifiedConnection>> {
        self.connections.push_back((Instant::now() + HELLO_TIMEOUT, connection));
        let oldest = match self.connections.len() > MAX_UNIDENTIFIED {
            true => self.connections.pop_front(),
            false => None,
        };
        self.update_alarm();
        oldest.map(|(_, connection)| connection)
    }

    fn remove(&mut self, connection: &UnidentifiedConnection) {
        self.connections.retain(|(_, it)| !std::ptr::eq(Arc::as_ptr(it), connection));
    }

    fn pause_accepting(&mut self) {
        self.accept_watch.iter().for_each(DescriptorWatch::pause);
        self.resume_accept_at = Some(Instant::now() + ACCEPT_PAUSE);
        self.update_alarm();
    }

    /// Removes and returns the connections whose deadline has passed, and ends a pause.
    fn take_expired(&mut self, now: Instant) -> Vec<Arc<UnidentifiedConnection>> {
        if self.resume_accept_at.is_some_and(|at| at <= now) {
            self.resume_accept_at = None;
            let read = poll::Interest::READ;
            self.accept_watch.iter().for_each(|watch| watch.set_interest(read));
        }
        let late = self.connections.iter().take_while(|(by, _)| *by <= now).count();
        let late = self.connections.drain(..late).map(|(_, connection)| connection).collect();
        self.update_alarm();
        late
    }

    fn update_alarm(&self) {
        let oldest = self.connections.front().map(|&(by, _)| by);
        if let Some(alarm) = &self.alarm {
            alarm.set([oldest, self.resume_accept_at].into_iter().flatten().min());
        }
    }
}

impl DescriptorHandler for HostListenerInner {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn on_readable(&self) -> WatchAction {
        for _ in 0..ACCEPTS_PER_WAKEUP {
            match unix::accept(&self.socket) {
                Ok(stream) => self.add(stream),
                Err(cause) if cause.kind() == Io::WouldBlock => break,
                Err(cause) if socket::is_resource_shortage(&cause) => {
                    crate::log!(
                        LogLevel::Warn,
                        "cannot accept a connection of this host now: {cause} (see ulimit -n)"
                    );
                    self.state().pause_accepting();
                    break;
                }
                Err(cause) if poll::has_hung_up(self.socket.as_fd()) => {
                    crate::log!(
                        LogLevel::Error,
                        "the listening Unix socket failed, so no survivor of this host can \
                         connect to this process: {cause}"
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
struct HelloTimeout(Weak<HostListenerInner>);

impl AlarmHandler for HelloTimeout {
    fn on_alarm(&self) {
        let Some(listener) = self.0.upgrade() else { return };
        let late = listener.state().take_expired(Instant::now());
        late.iter().for_each(|it| it.reject("it sent no hello in time"));
    }
}

/// An accepted connection whose hello is not complete.
#[derive(Debug)]
struct UnidentifiedConnection {
    listener: Weak<HostListenerInner>,
    handshake: Mutex<IncomingHello>,
}

#[derive(Debug)]
struct IncomingHello {
    /// `None` once the connection has been given away or rejected.
    stream: Option<Arc<UnixStream>>,
    bytes: [u8; HELLO_BYTES],
    filled: usize,
    watch: Option<DescriptorWatch>,
}

/// The handler for an incoming connection. It keeps the descriptor open while the watch lasts.
#[derive(Debug)]
struct HelloHandler {
    stream: Arc<UnixStream>,
    connection: Arc<UnidentifiedConnection>,
}

/// Returns true if the process at the other end of a connection belongs to this user or to root.
/// Writes a log line if not.
fn is_of_trusted_user(stream: &UnixStream) -> bool {
    let log_refusal = |error: &Error| {
        crate::log!(LogLevel::Warn, "dropped an unexpected connection: {error}");
    };
    unix::check_peer_user(stream).inspect_err(log_refusal).is_ok()
}

impl DescriptorHandler for HelloHandler {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn on_readable(&self) -> WatchAction {
        self.connection.read_hello()
    }
}

impl UnidentifiedConnection {
    /// Reads the hello. Returns `Done` once the connection has a new owner or is rejected.
    fn read_hello(&self) -> WatchAction {
        let mut handshake = lock(&self.handshake);
        let IncomingHello { stream, bytes, filled, .. } = &mut *handshake;
        let Some(socket) = stream else { return WatchAction::Done };
        while *filled < HELLO_BYTES {
            match unix::receive(socket, &mut bytes[*filled..]) {
                Ok((0, _)) => {
                    drop(handshake);
                    self.reject("it was closed before its hello");
                    return WatchAction::Done;
                }
                Ok((got, _)) => *filled += got,
                Err(cause) if cause.kind() == Io::Interrupted => {}
                Err(cause) if cause.kind() == Io::WouldBlock => return WatchAction::Keep,
                Err(cause) => {
                    drop(handshake);
                    self.reject(&cause.to_string());
                    return WatchAction::Done;
                }
            }
        }
        let (hello, socket) = (ConnectionHello::decode(bytes), stream.take());
        drop(handshake);
        self.stop_watching();
        if let (Some(hello), Some(socket)) = (hello, socket) {
            self.give_away(hello, socket);
        } else {
            crate::log!(LogLevel::Warn, "dropped an unexpected connection: its hello is wrong");
            self.forget();
        }
        WatchAction::Done
    }

    /// Gives the connection to the receiver.
    fn give_away(&self, hello: ConnectionHello, stream: Arc<UnixStream>) {
        self.forget();
        let Some(listener) = self.listener.upgrade() else { return };
        let Some(receiver) = listener.receiver.upgrade() else { return };
        match hello {
            ConnectionHello::Link(hello) if hello.to == listener.name => {
                receiver.accept_link(hello.from, stream);
            }
            ConnectionHello::Link(_) => {
                crate::log!(LogLevel::Warn, "dropped a link to another process");
            }
            // The handler of the watch may still hold the stream, so the receiver gets a copy.
            ConnectionHello::Survivor(hello) => match stream.try_clone() {
                Ok(copy) => {
                    receiver.accept_survivor(hello, SocketStream::from_nonblocking_unix(copy));
                }
                Err(cause) => {
                    crate::log!(LogLevel::Warn, "dropped a connection: {cause} (see ulimit -n)");
                }
            },
        }
    }

    fn reject(&self, reason: &str) {
        crate::log!(LogLevel::Debug, "dropped a connection of this host: {reason}");
        let stream = lock(&self.handshake).stream.take();
        self.stop_watching();
        self.forget();
        drop(stream);
    }

    /// Removes the connection from the listener's list.
    fn forget(&self) {
        if let Some(listener) = self.listener.upgrade() {
            listener.state().remove(self);
        }
    }

    fn stop_watching(&self) {
        let watch = lock(&self.handshake).watch.take();
        // Drop the watch outside the lock, because dropping a watch takes another lock.
        drop(watch);
    }
}
