//! Opening the server's listening sockets.

use super::server::ServerOptions;
use crate::base::{Deadline, Error, ErrorKind, Result};
use crate::sys::socket;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// How long the host name to listen on may take to look up.
const LOOK_UP: Duration = Duration::from_secs(30);

/// How often a free port is chosen anew because another address of the host has it in use.
const TRIES: usize = 16;

/// The listening sockets, and the address of the first.
///
/// # Errors
/// See [`super::server::Server::start`].
pub(super) fn open(options: ServerOptions) -> Result<(Vec<TcpListener>, SocketAddr)> {
    let listeners = match options.listen_fd {
        Some(fd) => vec![adopt(fd, options.port)?],
        None if options.bind.is_empty() => vec![everywhere(options.port)?],
        None => {
            let deadline = Deadline::after(LOOK_UP);
            let addresses = socket::resolve(&options.bind, options.port, &deadline)
                .map_err(|cause| cause.context("the address for the store's server"))?;
            all_of(&addresses)?
        }
    };
    let address = listeners
        .first()
        .ok_or_else(|| Error::internal("a server without a listening socket"))?
        .local_addr()
        .map_err(|cause| Error::system("the store server's own address", &cause))?;
    Ok((listeners, address))
}

fn everywhere(port: u16) -> Result<TcpListener> {
    let v6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    match socket::listen(v6) {
        Ok(listener) => Ok(listener),
        Err(cause) if cause.kind() == io::ErrorKind::AddrInUse => Err(cannot_listen(v6, &cause)),
        Err(_) => {
            // A host without IPv6.
            let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
            socket::listen(v4).map_err(|cause| cannot_listen(v4, &cause))
        }
    }
}

/// One socket for each address, all with the same port.
fn all_of(addresses: &[SocketAddr]) -> Result<Vec<TcpListener>> {
    let mut outcome = try_all_of(addresses);
    for _ in 1..TRIES {
        let chosen_port_taken = addresses.iter().all(|address| address.port() == 0)
            && matches!(&outcome, Err((_, cause)) if cause.kind() == io::ErrorKind::AddrInUse);
        if !chosen_port_taken {
            break;
        }
        outcome = try_all_of(addresses);
    }
    outcome.map_err(|(address, cause)| cannot_listen(address, &cause))
}

fn try_all_of(
    addresses: &[SocketAddr],
) -> std::result::Result<Vec<TcpListener>, (SocketAddr, io::Error)> {
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
            "; this host has no such address: bind to one of its own, or to none for all"
        }
        io::ErrorKind::PermissionDenied => "; choose a port above 1023",
        _ => "",
    };
    let message = format!("the store's server cannot listen on {address}: {cause}{remedy}");
    Error::new(ErrorKind::System, message)
}
