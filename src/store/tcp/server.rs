//! The store's server: one thread that serves all clients of a job.
//!
//! It speaks the protocol of [`super::proto`], so that torch's clients can use it as well. Without
//! a secret, whoever can reach the port can use the store: bind it to an address that only the
//! job's hosts can reach. What is bounded: all values together, each request, each value, each
//! answer, what a client may leave unread, the number of connections, and the time until a
//! connection has proved to be a store client's.
//!
//! Where it differs from torch's server, to the good of clients of both: it takes a VALIDATE in
//! pieces; it drops at once, with a log line, whoever does not begin with one; a second WAIT on a
//! connection replaces the first cleanly; and a failed compare-and-set on a missing key wakes
//! nobody.

use super::event_loop::ServerEventLoop;
use super::listener::{self, ListenOutcome, StoreListener};
use super::secret::Secret;
use crate::base::{Error, Result};
use crate::sys::{thread, unix};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

/// The most that a server keeps, roughly, unless told otherwise.
pub const DEFAULT_MAX_BYTES: usize = 4 << 30;

/// Where a server listens.
#[derive(Debug, Default)]
pub struct ServerOptions {
    /// The host name or address literal to listen on; empty: all interfaces, IPv4 and IPv6. A name
    /// with several addresses is listened on at all of them.
    pub bind: String,
    /// The port; 0: a free one.
    pub port: u16,
    /// A bound TCP socket to use instead. Its port must be `port`, unless that is 0.
    pub listen_fd: Option<OwnedFd>,
    /// The most that the server keeps, roughly, in bytes; 0 for [`DEFAULT_MAX_BYTES`].
    pub max_bytes: usize,
    /// Servers of this process with the same port are one.
    pub multi_tenant: bool,
    /// Where the port is taken, [`TcpStore::host`](super::TcpStore::host) joins what listens there.
    pub join_if_port_in_use: bool,
    /// What clients must prove that they know; without one, whoever can reach the port is a client.
    pub secret: Option<Secret>,
}

/// What became of an attempt to start a server.
#[derive(Debug)]
pub(super) enum ServerStart {
    /// It runs.
    Started(Arc<Server>),
    /// Somebody else has the port; the error that says so.
    PortInUse(Error),
}

/// The servers of this process that others may share.
static SHARED_SERVERS: Mutex<Vec<Weak<Server>>> = Mutex::new(Vec::new());

/// A running server. Dropping it closes all connections and ends the thread.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    secret: Option<Secret>,
    /// Closing this end wakes the thread and tells it to end.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server.
    ///
    /// # Errors
    /// `System`, naming address and port, where it cannot listen there; `InvalidArgument` where
    /// `listen_fd` does not fit; `StoreConnection` where `bind` means nothing.
    pub fn start(options: ServerOptions) -> Result<Arc<Self>> {
        match Self::start_unless_port_in_use(options)? {
            ServerStart::Started(server) => Ok(server),
            ServerStart::PortInUse(error) => Err(error),
        }
    }

    /// The same, where a taken port may be no error.
    pub(super) fn start_unless_port_in_use(options: ServerOptions) -> Result<ServerStart> {
        if !options.multi_tenant {
            return Self::start_new(options);
        }
        // Held while starting, so that two threads do not both find none.
        let mut shared = SHARED_SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
        shared.retain(|server| server.strong_count() > 0);
        let has_same_port = |server: &Arc<Self>| options.port != 0 && server.port() == options.port;
        if let Some(server) = shared.iter().filter_map(Weak::upgrade).find(has_same_port) {
            if server.secret != options.secret {
                let message = format!(
                    "this process serves a store on port {} already, with another secret or none",
                    options.port
                );
                return Err(Error::invalid(message));
            }
            return Ok(ServerStart::Started(server));
        }
        let start = Self::start_new(options)?;
        if let ServerStart::Started(server) = &start {
            shared.push(Arc::downgrade(server));
        }
        Ok(start)
    }

    fn start_new(options: ServerOptions) -> Result<ServerStart> {
        let max_bytes = match options.max_bytes {
            0 => DEFAULT_MAX_BYTES,
            bytes => bytes,
        };
        let secret = options.secret.clone();
        let listeners = match listener::open_listeners(options)? {
            ListenOutcome::Listening(listeners) => listeners,
            ListenOutcome::PortInUse(error) => return Ok(ServerStart::PortInUse(error)),
        };
        let address = listeners
            .iter()
            .find_map(StoreListener::address)
            .ok_or_else(|| Error::internal("a server without a listening socket"))?;
        let (stop, stopped) = unix::pair()?;
        let mut events = ServerEventLoop::new(listeners, stopped, max_bytes, secret.clone())?;
        let thread = thread::spawn("dist-store", move || events.run())?;
        Ok(ServerStart::Started(Arc::new(Self {
            address,
            secret,
            stop: Some(stop),
            thread: Some(thread),
        })))
    }

    /// The port that clients connect to.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The address that it listens on: the wildcard address where it listens on all interfaces.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            #[allow(
                clippy::disallowed_methods,
                reason = "the closed end wakes the thread: one turn"
            )]
            drop(thread.join());
        }
    }
}
