//! Waits on sockets and other descriptors. Each call ends at its deadline or its time limit.

use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::sys::poll::{self, Interest, PollEvents, PollSet, Poller};
use crate::sys::stream::SocketStream;
use crate::sys::unix;
use std::io::ErrorKind as Io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Waits until the descriptor is ready; returns false if the deadline passed first.
///
/// # Errors
/// The error of the system.
#[allow(clippy::disallowed_methods, reason = "the only caller of this function")]
pub fn ready_within(
    fd: BorrowedFd<'_>,
    interest: Interest,
    deadline: &Deadline,
) -> std::io::Result<bool> {
    poll::wait_ready(fd, interest, deadline)
}

/// Waits until one of the poller's descriptors is ready, a signal arrives, or the limit has passed.
/// If there is no limit, one of the descriptors must be a socket by which another thread ends the
/// wait.
///
/// # Errors
/// The error of the system.
#[allow(clippy::disallowed_methods, reason = "the only caller of this function")]
pub fn wait_for_events(
    poller: &Poller,
    events: &mut PollEvents,
    limit: Option<Duration>,
) -> std::io::Result<()> {
    poller.wait(events, limit)
}

/// Waits until one descriptor of the set is ready or the limit has passed.
///
/// # Errors
/// The error of the system.
#[allow(clippy::disallowed_methods, reason = "the only caller of this function")]
pub fn wait_for_any(set: &mut PollSet, limit: Duration) -> std::io::Result<()> {
    set.wait(limit)
}

/// Sends the record by which an encrypted stream ends in order, and the bytes before it. Waits for
/// room in the socket buffer until the deadline; ends early if the connection breaks. A stream that
/// is not encrypted needs no such record.
pub fn send_end(stream: &SocketStream, deadline: &Deadline) {
    while !stream.try_send_end() {
        match ready_within(stream.as_fd(), Interest::WRITE, deadline) {
            Ok(true) => {}
            Ok(false) | Err(_) => break,
        }
    }
}

/// Waits until the descriptor is ready.
fn wait_until_ready(fd: BorrowedFd<'_>, interest: Interest, deadline: &Deadline) -> Result<()> {
    match ready_within(fd, interest, deadline) {
        Ok(true) => Ok(()),
        Ok(false) => {
            let message =
                format!("the socket was not ready within {} ms", deadline.elapsed().as_millis());
            Err(Error::new(ErrorKind::Timeout, message))
        }
        Err(cause) => Err(Error::system("poll", cause)),
    }
}

/// Waits until one of the descriptors is readable or its stream has ended, or until the deadline
/// has passed.
///
/// # Errors
/// `System`.
pub fn wait_for_any_readable<'a>(
    fds: impl IntoIterator<Item = BorrowedFd<'a>>,
    deadline: &Deadline,
) -> Result<()> {
    let mut set = PollSet::default();
    fds.into_iter().for_each(|fd| set.push(fd, Interest::READ));
    wait_for_any(&mut set, deadline.remaining()).map_err(|cause| Error::system("poll", cause))
}

fn broken_error(cause: std::io::Error) -> Error {
    Error::connection("the connection broke", cause)
}

fn closed_error() -> Error {
    Error::new(ErrorKind::Connection, "the peer closed the connection")
}

/// Writes all bytes. If there is a descriptor, sends it with the first bytes.
///
/// # Errors
/// `Timeout`, `Connection`.
pub fn write_all(
    stream: &UnixStream,
    mut bytes: &[u8],
    mut descriptor: Option<BorrowedFd<'_>>,
    deadline: &Deadline,
) -> Result<()> {
    while !bytes.is_empty() {
        match unix::send(stream, bytes, descriptor) {
            Ok(sent) => {
                bytes = &bytes[sent..];
                descriptor = None;
            }
            Err(cause) if cause.kind() == Io::WouldBlock => {
                wait_until_ready(stream.as_fd(), Interest::WRITE, deadline)?;
            }
            Err(cause) if cause.kind() == Io::Interrupted => {}
            Err(cause) => return Err(broken_error(cause)),
        }
    }
    Ok(())
}

/// Fills the buffer. Returns the first descriptor that the peer sends with the bytes.
///
/// # Errors
/// `Timeout`, `Connection`.
pub fn read_exact_with_descriptor(
    stream: &UnixStream,
    bytes: &mut [u8],
    deadline: &Deadline,
) -> Result<Option<OwnedFd>> {
    let (mut filled, mut descriptor) = (0, None);
    while filled < bytes.len() {
        match receive(stream, &mut bytes[filled..], deadline)? {
            (0, _) => return Err(closed_error()),
            (got, received) => {
                filled += got;
                descriptor = descriptor.or(received);
            }
        }
    }
    Ok(descriptor)
}

fn receive(
    stream: &UnixStream,
    bytes: &mut [u8],
    deadline: &Deadline,
) -> Result<(usize, Option<OwnedFd>)> {
    loop {
        match unix::receive(stream, bytes) {
            Ok(got) => return Ok(got),
            Err(cause) if cause.kind() == Io::WouldBlock => {
                wait_until_ready(stream.as_fd(), Interest::READ, deadline)?;
            }
            Err(cause) if cause.kind() == Io::Interrupted => {}
            Err(cause) => return Err(broken_error(cause)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Shuts down a socket, as other code of the process may do with its descriptor.
    fn shut_down(socket: &impl AsFd) {
        socket2::SockRef::from(socket).shutdown(std::net::Shutdown::Both).unwrap();
    }

    #[test]
    fn shut_down_listener_reports_hang_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(!poll::has_hung_up(listener.as_fd()));
        shut_down(&listener);
        assert!(poll::has_hung_up(listener.as_fd()));
    }
}
