//! The store's server: one thread that serves all clients of a job.
//!
//! It speaks the protocol of [`super::proto`], so that torch's clients can use it as well. Whoever
//! can reach the port can use the store. Bind it to an address that only the job's hosts can reach. What is
//! bounded: all values together, each request, each value, each answer, what a client may leave unread,
//! the number of connections, and the time until a connection has proved to be a store client's.
//!
//! Where it differs from torch's server, to the good of clients of both: it takes a VALIDATE in
//! pieces; it drops at once, with a log line, whoever does not begin with one; a second WAIT on a
//! connection replaces the first cleanly; and a failed compare-and-set on a missing key wakes nobody.

use super::event_loop::EventLoop;
use super::listen;
use super::secret::Secret;
use crate::base::Result;
use crate::sys::{thread, unix};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
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
    /// What clients must prove that they know; without one, whoever can reach the port is a client.
    pub secret: Option<Secret>,
}

/// A running server. Dropping it closes all connections and ends the thread.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    /// Closing this end wakes the thread and tells it to end.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server.
    ///
    /// # Errors
    /// `System`, naming address and port, where it cannot listen there; `InvalidArgument` where
    /// `listen_fd` does not fit; `Connection` where `bind` means nothing.
    pub fn start(options: ServerOptions) -> Result<Self> {
        let max_bytes = match options.max_bytes {
            0 => DEFAULT_MAX_BYTES,
            bytes => bytes,
        };
        let (listeners, address) = listen::open(options)?;
        let (stop, stopped) = unix::pair()?;
        let mut events = EventLoop::new(listeners, stopped, max_bytes)?;
        let thread = thread::spawn("dist-store", move || events.run())?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
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
            // The thread blocks only where the closed end wakes it, so that this takes one turn.
            drop(thread.join());
        }
    }
}
