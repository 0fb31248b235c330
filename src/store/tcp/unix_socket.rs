//! The Unix socket between a client and a server on the same host. It carries the same bytes as a
//! TCP connection, at two thirds of the cost.
//!
//! For each TCP address that it listens on, the server also listens on an abstract Unix socket (a
//! name without a file) that is derived from the address. Abstract names belong to a network
//! namespace, like the loopback interface. So the Unix socket gives access to no process that could
//! not connect over TCP.
//!
//! A client uses the Unix socket under two conditions. The TCP address must belong to the client's
//! host. The kernel must report that the listener runs as the client's own user or as root, so that
//! no other user can impersonate the server.

use crate::sys::stream::SocketStream;
use crate::sys::{host, socket, unix};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixListener;

/// The user id of root.
const ROOT_UID: u32 = 0;

/// Opens the Unix socket for a TCP address of the server. Returns `None` if the name is in use.
/// Clients then use TCP.
pub(super) fn listen(address: SocketAddr) -> Option<UnixListener> {
    match unix::listen(&socket_name(address)) {
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
    let stream = unix::connect(&socket_name(address)).ok().or_else(|| {
        if !socket::is_own_address(address.ip()) {
            return None;
        }
        let wildcard_addresses: [IpAddr; 2] =
            [[0; 16].into(), std::net::Ipv4Addr::UNSPECIFIED.into()];
        let connect_at = |ip| unix::connect(&socket_name(SocketAddr::new(ip, address.port()))).ok();
        wildcard_addresses.into_iter().find_map(connect_at)
    })?;
    let (_, uid) = unix::peer_credentials(&stream).ok()?;
    if uid != host::uid() && uid != ROOT_UID {
        return None;
    }
    SocketStream::from_unix(stream).ok()
}

fn socket_name(address: SocketAddr) -> String {
    format!("libdist-store-{}-{}", address.ip().to_canonical(), address.port())
}
