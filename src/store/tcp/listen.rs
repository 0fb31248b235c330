//! Opening the server's listening sockets.

use super::conversation::Name;
use super::server::ServerOptions;
use super::shortcut;
use crate::base::{Deadline, Error, ErrorKind, Result};
use crate::sys::stream::Stream;
use crate::sys::{socket, unix};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::Duration;

/// How long the host name to listen on may take to look up.
const LOOK_UP: Duration = Duration::from_secs(30);

/// How often a free port is chosen anew because another address of the host has it in use.
const TRIES: usize = 16;

/// One listening socket.
#[derive(Debug)]
pub(super) enum Listener {
    /// At an address.
    Tcp(TcpListener),
    /// Beside an address, for clients of this host.
    Unix(UnixListener),
}

/// What became of opening them.
#[derive(Debug)]
pub(super) enum Opened {
    /// All of them; those at addresses first.
    Listening(Vec<Listener>),
    /// Somebody else has the port; the error that says so.
    Taken(Error),
}

/// Why an address cannot be listened on.
type Unusable = (SocketAddr, io::Error);

/// Opens the listening sockets.
///
/// # Errors
/// See [`super::server::Server::start`].
pub(super) fn open(options: ServerOptions) -> Result<Opened> {
    let outcome = match options.listen_fd {
        Some(fd) => Ok(vec![adopt(fd, options.port)?]),
        None if options.bind.is_empty() => everywhere(options.port).map(|listener| vec![listener]),
        None => {
            let deadline = Deadline::after(LOOK_UP);
            let addresses = socket::resolve(&options.bind, options.port, &deadline)
                .map_err(|cause| cause.context("the address for the store's server"))?;
            all_of(&addresses)
        }
    };
    match outcome {
        Ok(listeners) => Ok(Opened::Listening(with_shortcuts(listeners)?)),
        Err((address, cause)) => {
            let error = cannot_listen(address, &cause);
            if cause.kind() == io::ErrorKind::AddrInUse {
                Ok(Opened::Taken(error))
            } else {
                Err(error)
            }
        }
    }
}

fn with_shortcuts(tcp: Vec<TcpListener>) -> Result<Vec<Listener>> {
    let addresses: io::Result<Vec<_>> = tcp.iter().map(TcpListener::local_addr).collect();
    let addresses =
        addresses.map_err(|cause| Error::system("the store server's own address", &cause))?;
    let unix = addresses.into_iter().filter_map(shortcut::listen).map(Listener::Unix);
    Ok(tcp.into_iter().map(Listener::Tcp).chain(unix).collect())
}

impl Listener {
    /// The TCP address, where it has one.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(_) => None,
        }
    }

    /// Accepts one client.
    ///
    /// # Errors
    /// The reason as the system gives it, `WouldBlock` included.
    pub(super) fn accept(&self) -> io::Result<(Stream, Name)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept()?;
                // An IPv4 peer of a socket for both families is named as IPv4 users know it.
                let address = SocketAddr::new(address.ip().to_canonical(), address.port());
                Ok((Stream::from_tcp(stream)?, Name::Address(address)))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                let pid = unix::peer_credentials(&stream).map_or(0, |(pid, _)| pid);
                Ok((Stream::from_unix(stream)?, Name::Process(pid)))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

fn everywhere(port: u16) -> std::result::Result<TcpListener, Unusable> {
    let v6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    match socket::listen(v6) {
        Err(cause) if cause.kind() != io::ErrorKind::AddrInUse => {
            // A host without IPv6.
            let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
            socket::listen(v4).map_err(|cause| (v4, cause))
        }
        outcome => outcome.map_err(|cause| (v6, cause)),
    }
}

/// One socket for each address, all with the same port.
fn all_of(addresses: &[SocketAddr]) -> std::result::Result<Vec<TcpListener>, Unusable> {
    let mut outcome = try_all_of(addresses);
    for _ in 1..TRIES {
        let chosen_port_taken = addresses.iter().all(|address| address.port() == 0)
            && matches!(&outcome, Err((_, cause)) if cause.kind() == io::ErrorKind::AddrInUse);
        if !chosen_port_taken {
            break;
        }
        outcome = try_all_of(addresses);
    }
    outcome
}

fn try_all_of(addresses: &[SocketAddr]) -> std::result::Result<Vec<TcpListener>, Unusable> {
    let mut listeners: Vec<TcpListener> = Vec::new();
    let mut unusable = None;
    for &wanted in addresses {
        let mut address = wanted;
        if let Some(first) = listeners.first() {
            address.set_port(first.local_addr().map_err(|cause| (wanted, cause))?.port());
        }
        match socket::listen(address) {
            Ok(listener) => listeners.push(listener),
            Err(cause) if cause.kind() == io::ErrorKind::AddrInUse => return Err((address, cause)),
            // For instance the IPv6 address of "localhost" on a host without IPv6.
            Err(cause) => unusable = Some((address, cause)),
        }
    }
    match unusable {
        Some(failure) if listeners.is_empty() => Err(failure),
        _ => Ok(listeners),
    }
}

fn adopt(fd: OwnedFd, port: u16) -> Result<TcpListener> {
    let adopted = socket::adopt_listener(fd).and_then(|listener| {
        let own = listener.local_addr()?.port();
        Ok((listener, own))
    });
    match adopted {
        Ok((listener, own)) if port == 0 || port == own => Ok(listener),
        Ok((_, own)) => {
            let message = format!(
                "the listening socket passed for the store's server has port {own}, not {port}"
            );
            Err(Error::invalid(message))
        }
        Err(cause) => {
            let message =
                format!("the descriptor passed for the store's server cannot listen: {cause}");
            Err(Error::invalid(message))
        }
    }
}

fn cannot_listen(address: SocketAddr, cause: &io::Error) -> Error {
    let remedy = match cause.kind() {
        io::ErrorKind::AddrInUse => {
            "; another program, or an earlier run, uses the port: end it, choose another port, or \
             pass port 0 for a free one"
        }
        io::ErrorKind::AddrNotAvailable => {
            "; this host has no such address: bind to one of its own (bind_address in the options, or \
             DIST_STORE_BIND_ADDRESS), or to \"::\" for all"
        }
        io::ErrorKind::PermissionDenied => "; choose a port above 1023",
        _ => "",
    };
    let message = format!("the store's server cannot listen on {address}: {cause}{remedy}");
    Error::new(ErrorKind::System, message)
}
