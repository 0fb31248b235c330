//! The store's server: one thread that serves all clients of a job.
//!
//! The server uses the protocol of [`super::proto`], so that torch's clients can use it as well.
//! Without a secret, every process that reaches the port can use the store. So bind the server to
//! an address that only the job's hosts can reach. The server limits the memory of all values, the
//! size of each request, value and reply, and the unread replies of each client. It also limits the
//! number of connections, and the time until a new client has sent VALIDATE.
//!
//! The server differs from torch's server in four points, which benefit clients of both libraries:
//!
//! - It accepts a VALIDATE request that arrives in pieces.
//! - It immediately disconnects a client whose first request is not VALIDATE, and logs the reason.
//! - A second WAIT on a connection replaces the first WAIT.
//! - A failed compare-and-set on a missing key wakes no waiter.

use super::JOB_SECRET_KEY;
use super::event_loop::ServerEventLoop;
use super::handshake::StoreSecurity;
use super::key_encoding::encode_key;
use super::listener::{self, ListenOutcome, ServerOptions, StoreListener};
use super::request_handler::RequestHandler;
use crate::base::sync::lock;
use crate::base::{Error, Result};
use crate::sys::{thread, unix};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;

/// The default limit for the approximate memory of all values.
pub const DEFAULT_MAX_BYTES: usize = 4 << 30;

/// The result of starting a server.
#[derive(Debug)]
pub(super) enum ServerStart {
    /// The server runs.
    Started(Arc<Server>),
    /// Another process uses the port. The error says so.
    PortInUse(Error),
}

/// The servers of this process that were started with [`ServerOptions::multi_tenant`]. Later
/// callers with the same port share them.
static SHARED_SERVERS: Mutex<Vec<Weak<Server>>> = Mutex::new(Vec::new());

/// A running server. The drop of a `Server` ends its thread and closes all its connections.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    security: StoreSecurity,
    /// One end of a socket pair. The server's thread polls the other end, and exits when this end
    /// is closed.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server.
    ///
    /// # Errors
    /// `System` if the server cannot listen on the address; the error names address and port.
    /// `InvalidArgument` if `listen_fd` is not a suitable socket. `Connection` if `bind` cannot be
    /// resolved.
    pub fn start(options: ServerOptions) -> Result<Arc<Self>> {
        match Self::start_unless_port_in_use(options)? {
            ServerStart::Started(server) => Ok(server),
            ServerStart::PortInUse(error) => Err(error),
        }
    }

    /// Starts a server. If another process uses the port, returns [`ServerStart::PortInUse`]
    /// instead of an error.
    pub(super) fn start_unless_port_in_use(options: ServerOptions) -> Result<ServerStart> {
        if !options.multi_tenant {
            return Self::start_new(options);
        }
        // Hold the lock during the start, so that two threads with the same port do not both start
        // a server.
        let mut shared = lock(&SHARED_SERVERS);
        shared.retain(|server| server.strong_count() > 0);
        let has_same_port = |server: &Arc<Self>| options.port != 0 && server.port() == options.port;
        if let Some(server) = shared.iter().filter_map(Weak::upgrade).find(has_same_port) {
            if server.security != requested_security(&options) {
                let message = format!(
                    "this process already serves a store on port {}, with another secret or none, \
                     or with another DIST_SECURITY",
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
        let security = requested_security(&options);
        let mut handler = RequestHandler::new(max_bytes);
        if let Some(text) = &options.shared_text {
            handler.insert(encode_key(JOB_SECRET_KEY)?, text.as_bytes());
        }
        let listeners = match listener::open_listeners(options)? {
            ListenOutcome::Listening(listeners) => listeners,
            ListenOutcome::PortInUse(error) => return Ok(ServerStart::PortInUse(error)),
        };
        let address = listeners
            .iter()
            .find_map(StoreListener::address)
            .ok_or_else(|| Error::internal("the store's server has no listening socket"))?;
        let (stop, stopped) = unix::pair()?;
        let mut events = ServerEventLoop::new(listeners, stopped, handler, security.clone())?;
        let thread = thread::spawn("dist-store", move || events.run())?;
        Ok(ServerStart::Started(Arc::new(Self {
            address,
            security,
            stop: Some(stop),
            thread: Some(thread),
        })))
    }

    /// Returns the port that clients connect to.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Returns the address that the server listens on. It is the wildcard address if the server
    /// listens on all interfaces.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn requested_security(options: &ServerOptions) -> StoreSecurity {
    let is_open = options.shared_text.is_some();
    StoreSecurity { secret: options.secret.clone(), encrypts: options.encrypts, is_open }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            #[allow(
                clippy::disallowed_methods,
                reason = "the closed socket wakes the thread, which exits after one iteration"
            )]
            drop(thread.join());
        }
    }
}
