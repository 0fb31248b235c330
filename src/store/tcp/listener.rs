//! Opens the server's listening sockets.

use super::client_connection::ClientName;
use super::unix_socket;
use crate::base::log::LogLevel;
use crate::base::{Deadline, Error, ErrorKind, Result};
use crate::security::Secret;
use crate::security::secret::SecretText;
use crate::sys::socket;
use crate::sys::stream::SocketStream;
use crate::wait;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::Duration;

/// The options of a server.
#[derive(Debug, Default)]
pub struct ServerOptions {
    /// The host name or address literal to listen on. If a name has several addresses, the server
    /// listens on all of them. If `bind` is empty, the server listens on all interfaces, with IPv4
    /// and IPv6.
    pub bind: String,
    /// The port; 0 selects a free one.
    pub port: u16,
    /// A bound TCP socket to listen on, instead of a new socket for `bind` and `port`. Its port
    /// must be `port`, unless `port` is 0.
    pub listen_fd: Option<OwnedFd>,
    /// The limit for the approximate memory of all values in bytes; 0 selects
    /// [`DEFAULT_MAX_BYTES`](super::DEFAULT_MAX_BYTES).
    pub max_bytes: usize,
    /// Shares one server among all callers in this process that use the same port.
    pub multi_tenant: bool,
    /// If another process uses the port, [`TcpStore::host`](super::TcpStore::host) joins the store
    /// there instead of returning an error.
    pub join_if_port_in_use: bool,
    /// The secret that clients must prove to hold. If there is none, the server accepts every
    /// process that reaches the port.
    pub secret: Option<Secret>,
    /// Whether the server requires that the connections are encrypted. Has no effect without a
    /// secret.
    pub encrypts: bool,
    /// The text of `secret`. If it is set, clients of the server's user need no proof on the Unix
    /// socket, and read the text under the key [`JOB_SECRET_KEY`](super::JOB_SECRET_KEY).
    pub shared_text: Option<SecretText>,
}

/// The time limit for resolving the host name to listen on.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(30);

/// The time between two attempts to resolve the host name, at first and at most.
const INITIAL_NAME_BACKOFF: Duration = Duration::from_millis(50);
const MAX_NAME_BACKOFF: Duration = Duration::from_secs(1);

/// If `bind` has several addresses and `port` is 0, the system chooses a free port for the first
/// address, and the port may be in use on another address. The server then tries again with another
/// port, up to this number of attempts.
const MAX_PORT_ATTEMPTS: usize = 16;

/// One listening socket.
#[derive(Debug)]
pub(super) enum StoreListener {
    /// A TCP socket.
    Tcp(TcpListener),
    /// A Unix socket for clients on this host. It exists in addition to a TCP socket.
    Unix(UnixListener),
}

/// The result of opening the listening sockets.
#[derive(Debug)]
pub(super) enum ListenOutcome {
    /// All sockets are open; TCP sockets come first.
    Listening(Vec<StoreListener>),
    /// Another process uses the port. The error says so.
    PortInUse(Error),
}

/// An address on which the server cannot listen, and the system error.
type BindFailure = (SocketAddr, io::Error);

/// Waits until the host name to listen on resolves. A name server may learn the name some seconds
/// after the process has started, for example in Kubernetes.
///
/// # Errors
/// `Connection` if the name does not resolve before the deadline.
pub(super) fn await_name(bind: &str, deadline: &Deadline) -> Result<()> {
    if bind.is_empty() {
        return Ok(());
    }
    let mut backoff = INITIAL_NAME_BACKOFF;
    let mut first_error: Option<Error> = None;
    loop {
        let error = match socket::resolve(bind, 0, deadline) {
            Ok(_) => return Ok(()),
            Err(error) => error.context("the address of the store's server"),
        };
        if deadline.has_passed() {
            let ms = deadline.elapsed().as_millis();
            // The deadline may have cut the last attempt short. The first error says more then.
            let error = first_error.unwrap_or(error);
            return Err(error.context(format_args!("after {ms} ms")));
        }
        if first_error.is_none() {
            crate::log!(LogLevel::Warn, "{error}; trying again until the deadline");
            first_error = Some(error);
        }
        wait::pause(backoff, deadline);
        backoff = (2 * backoff).min(MAX_NAME_BACKOFF);
    }
}

/// Opens the listening sockets.
///
/// # Errors
/// See [`super::server::Server::start`].
pub(super) fn open_listeners(options: ServerOptions) -> Result<ListenOutcome> {
    let outcome = match options.listen_fd {
        Some(fd) => Ok(vec![adopt_fd(fd, options.port)?]),
        None if options.bind.is_empty() => {
            listen_on_all_interfaces(options.port).map(|listener| vec![listener])
        }
        None => {
            let deadline = Deadline::after(RESOLVE_TIMEOUT);
            let addresses = socket::resolve(&options.bind, options.port, &deadline)
                .map_err(|cause| cause.context("the address of the store's server"))?;
            listen_on_addresses(&addresses)
        }
    };
    match outcome {
        Ok(listeners) => Ok(ListenOutcome::Listening(add_unix_listeners(listeners)?)),
        Err((address, cause)) => {
            let is_port_in_use = cause.kind() == io::ErrorKind::AddrInUse;
            let error = listen_error(address, cause);
            if is_port_in_use { Ok(ListenOutcome::PortInUse(error)) } else { Err(error) }
        }
    }
}

fn add_unix_listeners(tcp: Vec<TcpListener>) -> Result<Vec<StoreListener>> {
    let addresses: io::Result<Vec<_>> = tcp.iter().map(TcpListener::local_addr).collect();
    let addresses = addresses
        .map_err(|cause| Error::system("cannot get the address of the store's server", cause))?;
    let unix = addresses.into_iter().filter_map(unix_socket::listen).map(StoreListener::Unix);
    Ok(tcp.into_iter().map(StoreListener::Tcp).chain(unix).collect())
}

impl StoreListener {
    /// Returns the TCP address, or `None` for a Unix socket.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(_) => None,
        }
    }

    /// Accepts one client.
    ///
    /// # Errors
    /// The system error, including `WouldBlock`.
    pub(super) fn accept(&self) -> io::Result<(SocketStream, ClientName)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = socket::accept(listener)?;
                // An IPv6 socket that also serves IPv4 reports an IPv4 client as a mapped IPv6
                // address (`::ffff:a.b.c.d`). Convert the address to IPv4.
                let address = SocketAddr::new(address.ip().to_canonical(), address.port());
                Ok((SocketStream::from_tcp(stream)?, ClientName::Address(address)))
            }
            Self::Unix(listener) => {
                let (stream, pid) = unix_socket::accept(listener)?;
                Ok((SocketStream::from_unix(stream)?, ClientName::Process(pid)))
            }
        }
    }
}

impl AsFd for StoreListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

fn listen_on_all_interfaces(port: u16) -> std::result::Result<TcpListener, BindFailure> {
    let v6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    match socket::listen(v6) {
        Err(cause) if cause.kind() != io::ErrorKind::AddrInUse => {
            // The error is not a port in use, so the host has no IPv6.
            let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
            socket::listen(v4).map_err(|cause| (v4, cause))
        }
        outcome => outcome.map_err(|cause| (v6, cause)),
    }
}

/// Opens one socket for each address, all with the same port.
fn listen_on_addresses(
    addresses: &[SocketAddr],
) -> std::result::Result<Vec<TcpListener>, BindFailure> {
    let mut outcome = try_listen_on_addresses(addresses);
    for _ in 1..MAX_PORT_ATTEMPTS {
        let is_chosen_port_in_use = addresses.iter().all(|address| address.port() == 0)
            && matches!(&outcome, Err((_, cause)) if cause.kind() == io::ErrorKind::AddrInUse);
        if !is_chosen_port_in_use {
            break;
        }
        outcome = try_listen_on_addresses(addresses);
    }
    outcome
}

fn try_listen_on_addresses(
    addresses: &[SocketAddr],
) -> std::result::Result<Vec<TcpListener>, BindFailure> {
    let mut listeners: Vec<TcpListener> = Vec::new();
    let mut last_failure = None;
    for &wanted in addresses {
        let mut address = wanted;
        if let Some(first) = listeners.first() {
            address.set_port(first.local_addr().map_err(|cause| (wanted, cause))?.port());
        }
        match socket::listen(address) {
            Ok(listener) => listeners.push(listener),
            Err(cause) if cause.kind() == io::ErrorKind::AddrInUse => return Err((address, cause)),
            // For example, the IPv6 address of "localhost" on a host without IPv6.
            Err(cause) => last_failure = Some((address, cause)),
        }
    }
    match last_failure {
        Some(failure) if listeners.is_empty() => Err(failure),
        _ => Ok(listeners),
    }
}

fn adopt_fd(fd: OwnedFd, port: u16) -> Result<TcpListener> {
    let adopted = socket::adopt_listener(fd).and_then(|listener| {
        let own_port = listener.local_addr()?.port();
        Ok((listener, own_port))
    });
    match adopted {
        Ok((listener, own_port)) if port == 0 || port == own_port => Ok(listener),
        Ok((_, own_port)) => {
            let message = format!(
                "the listening socket passed for the store's server has port {own_port}, not {port}"
            );
            Err(Error::invalid(message))
        }
        Err(cause) => {
            let message =
                format!("the descriptor passed for the store's server cannot listen: {cause}");
            Err(Error::invalid(message).with_source(cause))
        }
    }
}

fn listen_error(address: SocketAddr, cause: io::Error) -> Error {
    let remedy = match cause.kind() {
        io::ErrorKind::AddrInUse => {
            "; another process uses the port: another rank 0 of this job (each process needs its own RANK), \
             another program, or an earlier run; end that process, choose another port, or pass port 0 for a free one"
        }
        io::ErrorKind::AddrNotAvailable => {
            "; this host has no such address: bind to an address of this host (bind_address in the options, or \
             DIST_STORE_BIND_ADDRESS), or to \"::\" for all interfaces"
        }
        io::ErrorKind::PermissionDenied => "; choose a port above 1023",
        _ => "",
    };
    let message = format!("the store's server cannot listen on {address}: {cause}{remedy}");
    Error::new(ErrorKind::System, message).with_source(cause)
}
