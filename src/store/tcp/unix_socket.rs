//! The Unix socket between a client and a server on the same host. It carries the same bytes as a
//! TCP connection, at two thirds of the cost.
//!
//! For each TCP address that it listens on, the server also listens on an abstract Unix socket (a
//! name without a file) that is derived from the address. Abstract names belong to a network
//! namespace, like the loopback interface. So the Unix socket gives access to no process that could
//! not connect over TCP.
//!
//! A client uses the Unix socket under two conditions. The TCP address must belong to the client's
//! host. The kernel must report that the listener belongs to the client's own user, so that no
//! other user can impersonate the server. The server closes the connections of other users, except
//! those of root. Clients of other users use TCP.

use super::local_job_search::{connect_to_second_name, listen_on_free_name};
use crate::sys::stream::SocketStream;
use crate::sys::{host, socket, unix};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::{UnixListener, UnixStream};

/// Opens the Unix socket for a TCP address of the server. Returns `None` if the name is in use.
/// Clients then use TCP.
pub(super) fn listen(address: SocketAddr) -> Option<UnixListener> {
    match listen_on_free_name(&socket_name(address)) {
        Ok(listener) => Some(listener),
        Err(error) => {
            crate::log!(
                crate::base::log::LogLevel::Info,
                "store server: clients of this host use TCP, since the Unix socket cannot be created: {error}"
            );
            None
        }
    }
}

/// Connects to the server of this TCP address, if the address belongs to this host and the server
/// has a Unix socket.
pub(super) fn connect(address: SocketAddr) -> Option<SocketStream> {
    if let Some(stream) = connect_by_name(&socket_name(address)) {
        return SocketStream::from_unix(stream).ok();
    }
    if !socket::is_own_address(address.ip()) {
        return None;
    }
    let wildcard_addresses: [IpAddr; 2] = [[0; 16].into(), std::net::Ipv4Addr::UNSPECIFIED.into()];
    let connect_at = |ip| connect_by_name(&socket_name(SocketAddr::new(ip, address.port())));
    let stream = wildcard_addresses.into_iter().find_map(connect_at)?;
    SocketStream::from_unix(stream).ok()
}

/// Connects to the listener of this user on a name, or on a second name if another user has taken
/// the first one.
fn connect_by_name(name: &str) -> Option<UnixStream> {
    // A server of root accepts no client of another user, so the rule is stricter than that of
    // [`unix::check_peer_user`].
    let is_own = |stream: &UnixStream| {
        unix::peer_credentials(stream).is_ok_and(|(_, user)| user == host::uid())
    };
    match unix::connect(name) {
        Ok(stream) if is_own(&stream) => Some(stream),
        Err(cause) if cause.kind() == io::ErrorKind::ConnectionRefused => None,
        // The listener belongs to another user, or its queue is full.
        _ => connect_to_second_name(name).filter(is_own),
    }
}

/// Accepts a client, and returns its process ID.
///
/// # Errors
/// The system error, including `WouldBlock`; `PermissionDenied` for a process of another user.
pub(super) fn accept(listener: &UnixListener) -> io::Result<(UnixStream, u32)> {
    let stream = unix::accept(listener)?;
    unix::check_peer_user(&stream)
        .map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error.to_string()))?;
    let pid = unix::peer_credentials(&stream).map_or(0, |(pid, _)| pid);
    Ok((stream, pid))
}

fn socket_name(address: SocketAddr) -> String {
    format!("libdist-store-{}-{}", address.ip().to_canonical(), address.port())
}
