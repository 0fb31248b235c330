//! The way to a server on the same host: a Unix socket that carries the same bytes as a TCP
//! connection at two thirds of the cost.
//!
//! A server listens, for each TCP address, under an abstract name made of it. Such names belong to
//! a network name space, as the loopback interface does: whoever finds the name would also have
//! reached the address. A client believes a name only for addresses of its own host, and only if
//! the kernel says that the listener is of the client's own user or root, so that nobody else can
//! take the server's place there.

use crate::sys::stream::SocketStream;
use crate::sys::{host, socket, unix};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixListener;

/// Root's number.
const ROOT_UID: u32 = 0;

/// Listens beside a TCP address; `None` where the name is taken, and then clients come over TCP.
pub(super) fn listen(address: SocketAddr) -> Option<UnixListener> {
    match unix::listen(&socket_name(address)) {
        Ok(listener) => Some(listener),
        Err(error) => {
            crate::log!(
                crate::base::log::LogLevel::Info,
                "store server: clients of this host use TCP, since there is no Unix socket: {error}"
            );
            None
        }
    }
}

/// Connects to the server that listens on this TCP address, if that is of this host and has such a
/// socket.
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
