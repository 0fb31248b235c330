//! TCP sockets of both address families: name lookup, listening, and connecting with a deadline.
//!
//! All sockets of this module are non-blocking and closed on exec. A write to the standard
//! library's `TcpStream` never raises SIGPIPE. This module makes no reverse lookups.

use super::descriptor::above_standard_streams;
use super::poll::{self, Interest};
use super::thread;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use std::io;
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _, UdpSocket,
};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;
use std::time::Duration;

/// The idle time after which the kernel probes a connection.
const DEFAULT_KEEP_ALIVE: Duration = Duration::from_secs(60);

/// Returns the addresses of a host name or an address literal (IPv6 with or without brackets). A
/// separate thread looks the name up, because the system's resolver has no deadline. The thread
/// ends when the resolver returns, which may be after the deadline.
///
/// # Errors
/// `Connection` if the name is unknown, `Timeout` if the resolver is too slow.
#[allow(
    clippy::disallowed_methods,
    reason = "the only look-up, on a separate thread, with a deadline"
)]
pub fn resolve(host: &str, port: u16, deadline: &Deadline) -> Result<Vec<SocketAddr>> {
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let (answer, answers) = mpsc::channel();
    let name = bare.to_owned();
    let resolver = thread::spawn("dist-resolve", move || {
        let found = (name.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        // The send fails if the caller's deadline has passed, because the receiver is then gone.
        drop(answer.send(found));
    })?;
    drop(resolver);
    match answers.recv_timeout(deadline.remaining()) {
        Ok(Ok(found)) if !found.is_empty() => Ok(found),
        Ok(Ok(_)) => {
            let message = format!("the host name \"{host}\" has no address");
            Err(Error::new(ErrorKind::Connection, message))
        }
        Ok(Err(cause)) => {
            let message = format!("the host name \"{host}\" does not resolve ({cause})");
            Err(Error::new(ErrorKind::Connection, message).with_source(cause))
        }
        Err(_) => {
            let ms = deadline.elapsed().as_millis();
            let message = format!("looking up the host name \"{host}\" took more than {ms} ms");
            Err(Error::new(ErrorKind::Timeout, message))
        }
    }
}

/// Listens on an address, with the longest queue that the system allows. The IPv6 wildcard address
/// also accepts IPv4 connections.
///
/// # Errors
/// The error of the system.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = new_socket(address)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    // Without this option a port stays unusable for a minute after its last connection.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(i32::MAX)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Creates a TCP socket for addresses of the family of `address`.
fn new_socket(address: SocketAddr) -> io::Result<Socket> {
    let family = Domain::for_address(address);
    above_standard_streams(Socket::new(family, Type::STREAM, Some(Protocol::TCP)))
}

/// Accepts a connection.
///
/// # Errors
/// The error of the system, including `WouldBlock`.
pub fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, address) = listener.accept()?;
    Ok((above_standard_streams(Ok(stream))?, address))
}

/// Takes over a bound TCP socket that other code created, and listens on it.
///
/// # Errors
/// The error of the system; `InvalidInput` if it is not a bound TCP socket.
pub fn adopt_listener(fd: OwnedFd) -> io::Result<TcpListener> {
    let socket = above_standard_streams(Ok(Socket::from(fd)))?;
    let is_tcp = socket.r#type()? == Type::STREAM
        && socket.local_addr()?.as_socket().is_some_and(|address| address.port() != 0);
    if !is_tcp {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a bound TCP socket"));
    }
    socket.set_cloexec(true)?;
    socket.listen(i32::MAX)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Connects to one address, and applies [`set_stream_options`].
///
/// # Errors
/// The error of the system; `TimedOut` if the deadline passed before the connection was
/// established.
#[allow(clippy::disallowed_methods, reason = "with a deadline")]
pub fn connect(address: SocketAddr, deadline: &Deadline) -> io::Result<TcpStream> {
    let socket = new_socket(address)?;
    socket.set_nonblocking(true)?;
    if let Err(cause) = socket.connect(&address.into()) {
        // A non-blocking connect reports EINPROGRESS; the standard library's `ErrorKind` has a name
        // for it only since 1.87.
        if cause.raw_os_error() != Some(libc::EINPROGRESS) {
            return Err(cause);
        }
        if !poll::wait_ready(socket.as_fd(), Interest::WRITE, deadline)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if let Some(cause) = socket.take_error()? {
            return Err(cause);
        }
    }
    let stream = TcpStream::from(socket);
    // If a port of this host has no listener and is in the ephemeral range, a socket that connects
    // to this port can be connected to itself.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    set_stream_options(&stream)?;
    Ok(stream)
}

/// Starts to connect, and does not wait. If `source` is given, the connection starts from this
/// local address. Once the stream is writable, [`finish_connect`] returns the result.
///
/// # Errors
/// The error of the system, if the connect fails at once.
pub fn begin_connect(address: SocketAddr, source: Option<SocketAddr>) -> io::Result<TcpStream> {
    let socket = new_socket(address)?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    if let Some(source) = source {
        socket.bind(&source.into())?;
    }
    if is_own_address(address.ip()) {
        // Within a host no packet is lost, and congestion control that paces by delay is several
        // times slower than reno or cubic. If this process may use neither reno nor cubic, the
        // system's default stays.
        drop(socket.set_tcp_congestion(b"reno").or_else(|_| socket.set_tcp_congestion(b"cubic")));
    }
    match socket.connect(&address.into()) {
        Err(cause) if cause.raw_os_error() != Some(libc::EINPROGRESS) => Err(cause),
        _ => Ok(socket.into()),
    }
}

/// Returns the result of the connect that [`begin_connect`] started. Call it once the stream is
/// writable.
///
/// # Errors
/// The error of the system; `WouldBlock` if the connect has not ended.
pub fn finish_connect(stream: &impl AsFd) -> io::Result<()> {
    let socket = socket2::SockRef::from(stream);
    if let Some(cause) = socket.take_error()? {
        return Err(cause);
    }
    match socket.peer_addr() {
        // The socket is connected to itself; see `connect`.
        Ok(peer) if peer == socket.local_addr()? => Err(io::ErrorKind::ConnectionRefused.into()),
        Err(cause) if cause.kind() == io::ErrorKind::NotConnected => {
            Err(io::ErrorKind::WouldBlock.into())
        }
        outcome => outcome.map(drop),
    }
}

/// Lets the kernel detect within `timeout` that the peer's host is gone. Use it only for a
/// connection whose peer always reads: the kernel also ends a connection whose send buffer stays
/// full for that time.
///
/// # Errors
/// The error of the system.
pub fn set_user_timeout(stream: &impl AsFd, timeout: Duration) -> io::Result<()> {
    let socket = socket2::SockRef::from(stream);
    let (time, interval) = (at_least_one_second(timeout / 3), at_least_one_second(timeout / 6));
    let probes = TcpKeepalive::new().with_time(time).with_interval(interval);
    socket.set_tcp_keepalive(&probes)?;
    socket.set_tcp_user_timeout(Some(timeout))
}

/// Returns the kernel's name of the connection's congestion control algorithm.
pub fn congestion_control(stream: &impl AsFd) -> String {
    let name = socket2::SockRef::from(stream).tcp_congestion().unwrap_or_default();
    let name: Vec<u8> = name.into_iter().take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&name).into_owned()
}

/// Returns the local address from which this host would send to `ip`. Sends no packet.
///
/// # Errors
/// The error of the system, for example if there is no route.
pub fn source_address_for(ip: IpAddr) -> io::Result<IpAddr> {
    let any: IpAddr =
        if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = above_standard_streams(UdpSocket::bind((any, 0)))?;
    // The connect only selects the route; the port has no meaning.
    socket.connect((ip, 9))?;
    Ok(socket.local_addr()?.ip())
}

/// Makes a stream non-blocking, sends small writes without delay, and lets the kernel detect within
/// a few minutes that the peer's host is gone.
///
/// # Errors
/// The error of the system.
pub fn set_stream_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    set_keep_alive(stream, DEFAULT_KEEP_ALIVE)
}

/// Lets the kernel send a probe when a connection was idle for `time`, and end the connection after
/// four probes without an answer.
///
/// # Errors
/// The error of the system.
pub fn set_keep_alive(stream: &impl AsFd, time: Duration) -> io::Result<()> {
    let probes = TcpKeepalive::new()
        .with_time(at_least_one_second(time))
        .with_interval(at_least_one_second(time / 4))
        .with_retries(4);
    socket2::SockRef::from(stream).set_tcp_keepalive(&probes)
}

/// The system takes whole seconds, at least one.
fn at_least_one_second(time: Duration) -> Duration {
    time.max(Duration::from_secs(1))
}

/// Returns the local address of a stream, also while it connects. `None` if it has none.
pub fn local_address(stream: &impl AsFd) -> Option<SocketAddr> {
    socket2::SockRef::from(stream).local_addr().ok()?.as_socket()
}

/// Returns true for an address of this host: loopback, or an address from which this host would
/// send to that same address.
pub fn is_own_address(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    ip.is_loopback() || source_address_for(ip).is_ok_and(|own| own.to_canonical() == ip)
}

/// Returns true for the `accept` errors that report a shortage of descriptors or memory. A shortage
/// lasts, so an immediate retry does not help.
pub fn is_resource_shortage(cause: &io::Error) -> bool {
    matches!(cause.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// Returns whether a descriptor could not be sent because too many descriptors are under way
/// between processes.
pub fn has_too_many_in_flight(cause: &io::Error) -> bool {
    cause.raw_os_error() == Some(libc::ETOOMANYREFS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};

    #[test]
    fn address_literals_are_not_resolved() {
        let passed = Deadline::after_ms(0);
        let of = |host| resolve(host, 7, &passed).unwrap();
        assert_eq!(of("127.0.0.1"), ["127.0.0.1:7".parse().unwrap()]);
        assert_eq!(of("::1"), ["[::1]:7".parse().unwrap()]);
        assert_eq!(of("[::1]"), ["[::1]:7".parse().unwrap()]);
    }

    #[test]
    fn unknown_host_error_names_the_host() {
        let error = resolve("no-such-host.invalid", 7, &Deadline::after_ms(60_000)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Connection);
        assert!(error.message().contains("no-such-host.invalid"), "{error}");
    }

    #[test]
    fn connection_carries_bytes_and_end() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let deadline = Deadline::after_ms(10_000);
        let mut client = connect(listener.local_addr().unwrap(), &deadline).unwrap();
        assert!(poll::wait_ready(listener.as_fd(), Interest::READ, &deadline).unwrap());
        let (mut server, _) = listener.accept().unwrap();
        set_stream_options(&server).unwrap();
        client.write_all(b"hi").unwrap();
        assert!(poll::wait_ready(server.as_fd(), Interest::READ, &deadline).unwrap());
        let mut bytes = [0; 8];
        assert_eq!(server.read(&mut bytes).unwrap(), 2);
        drop(client);
        assert!(poll::wait_ready(server.as_fd(), Interest::READ, &deadline).unwrap());
        assert_eq!(server.read(&mut bytes).unwrap(), 0);
    }

    #[test]
    fn own_addresses_are_recognised() {
        for own in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert!(is_own_address(own.parse().unwrap()), "{own}");
        }
        // Addresses that are reserved for documentation.
        assert!(!is_own_address("192.0.2.1".parse().unwrap()));
        assert!(!is_own_address("2001:db8::1".parse().unwrap()));
    }

    #[test]
    fn a_port_without_a_listener_refuses() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let error = connect(address, &Deadline::after_ms(10_000)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn only_bound_tcp_sockets_are_adopted() {
        let file = std::fs::File::open("/proc/self/comm").unwrap();
        assert!(adopt_listener(file.into()).is_err());
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(adopt_listener(listener.into()).unwrap().local_addr().unwrap(), address);
    }
}
