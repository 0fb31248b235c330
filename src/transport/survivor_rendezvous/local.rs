//! Survivor connections to ranks of the same node, over Unix sockets. The registry of a process
//! accepts them ([`neighbour`](crate::transport::neighbour)) and gives them to the rank that the
//! hello names.
//!
//! The connecting rank sends a [`SurvivorHello`]. The other process answers with
//! [`SURVIVOR_ACCEPTED`] or, if the receiver does not exist, with [`SURVIVOR_UNKNOWN`]. This
//! module does not depend on the content of the later frames.
//!
//! **Proof of death.** The end of the process decides, as the kernel reports it. A closed socket is
//! a proof only if the kernel does not show the process, and the link to it has ended, too.

use super::link::SurvivorLink;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, RankFault, Result};
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::base::log::LogLevel;
use crate::sys::poll::Interest;
use crate::sys::stream::SocketStream;
use crate::sys::unix;
use crate::transport::neighbour::{
    NeighbourMember, ProcessAddress, ProcessEnd, SURVIVOR_ACCEPTED, SURVIVOR_UNKNOWN, SurvivorHello,
};
use crate::wait::io;
use std::cell::RefCell;
use std::io::ErrorKind as Io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// The time for which the first poll of an attempt waits for the answer. A process that runs
/// answers within some 100 µs.
const FIRST_ANSWER_WAIT: Duration = Duration::from_millis(2);

/// The data that the other ranks need to connect to one rank of the group.
#[derive(Clone, Debug)]
pub struct SurvivorAddress {
    /// The nonce that the rank published.
    pub nonce: Nonce,
    /// The registry of the rank's process ([`ProcessAddress::registry`]). `None` if the rank is on
    /// another node, and is reached through the reconnect endpoint.
    pub process: Option<Nonce>,
}

/// The failed group as one of its ranks knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SurvivorGroup<'a> {
    pub(super) group: GroupId,
    pub(super) members: &'a [SurvivorAddress],
    pub(super) me: Rank,
}

impl SurvivorGroup<'_> {
    /// Returns the hello of rank `from` to rank `to`.
    pub(super) fn hello(&self, from: Rank, to: Rank) -> SurvivorHello {
        let [from_nonce, to_nonce] = [from, to].map(|rank| self.members[rank].nonce);
        SurvivorHello { group: self.group, from_nonce, to_nonce, from, to }
    }

    /// Returns whether the hello is that of another member of the group to this rank.
    fn is_valid(&self, hello: &SurvivorHello) -> bool {
        let from = hello.from;
        from < self.members.len() && from != self.me && *hello == self.hello(from, self.me)
    }
}

/// Returns the connections whose hello is valid, each with the rank that sent the hello.
pub(super) fn take_arrivals(
    member: &NeighbourMember,
    group: SurvivorGroup<'_>,
    max_frame_len: usize,
) -> Vec<(Rank, SurvivorLink)> {
    let (valid, others): (Vec<_>, Vec<_>) =
        member.take_survivors().into_iter().partition(|(hello, _)| group.is_valid(hello));
    if !others.is_empty() {
        crate::log!(
            LogLevel::Warn,
            "dropped an unexpected connection: its hello does not identify a rank of this group"
        );
    }
    let link = |(hello, stream): (SurvivorHello, _)| {
        (hello.from, SurvivorLink::new(stream, max_frame_len))
    };
    valid.into_iter().map(link).collect()
}

/// Another process of the same node. This process may know that it has ended.
#[derive(Debug)]
pub(super) struct NodeProcess {
    pub(super) registration: Arc<NeighbourMember>,
    pub(super) process: Nonce,
    /// The process id that its rank has published.
    pub(super) pid: u32,
}

impl NodeProcess {
    /// Returns true if the process is proven to have ended.
    pub(super) fn has_died(&self) -> bool {
        self.end() == ProcessEnd::Proven
    }

    fn end(&self) -> ProcessEnd {
        self.registration.process_end(self.process, self.pid)
    }

    /// Returns the error for a socket that the process does not have any more.
    fn closed_socket_error(&self, reason: &str) -> Error {
        match self.end() {
            ProcessEnd::Proven | ProcessEnd::LinkEnded => death_error(),
            // The socket was shut down, or the process ends at this moment.
            ProcessEnd::Unproven => Error::new(ErrorKind::Connection, reason),
        }
    }
}

fn death_error() -> Error {
    Error::new(ErrorKind::PeerFailed, "its process has died").with_fault(RankFault::Died)
}

/// An attempt to connect to a rank of the same node.
#[derive(Debug)]
pub(super) struct LocalConnect {
    target: NodeProcess,
    hello: SurvivorHello,
    /// The connection on which the hello was sent.
    stream: RefCell<Option<Arc<SocketStream>>>,
}

impl LocalConnect {
    pub(super) fn new(target: NodeProcess, hello: SurvivorHello) -> Self {
        Self { target, hello, stream: RefCell::new(None) }
    }

    /// Returns the connection once the other process has accepted it.
    ///
    /// # Errors
    /// `PeerFailed` if the process has no such rank; with the fault `Died` if the process is proven
    /// dead. `Connection` for other errors.
    pub(super) fn poll(&self) -> Result<Option<Arc<SocketStream>>> {
        // A child of the dead process may hold the listening socket, which then still accepts.
        if self.target.has_died() {
            return Err(death_error());
        }
        let mut stream = self.stream.borrow_mut();
        if stream.is_none() {
            *stream = self.send_hello()?;
            if let Some(stream) = &*stream {
                let limit = Deadline::after(FIRST_ANSWER_WAIT);
                io::ready_within(stream.as_fd(), Interest::READ, &limit)
                    .map_err(|cause| Error::system("poll", cause))?;
            }
        }
        let Some(connected) = &*stream else { return Ok(None) };
        let mut answer = [0];
        match connected.receive(&mut answer) {
            Ok(1) if answer == [SURVIVOR_ACCEPTED] => Ok(stream.take()),
            Ok(1) if answer == [SURVIVOR_UNKNOWN] => {
                let message = "its process has left the group";
                Err(Error::new(ErrorKind::PeerFailed, message))
            }
            Ok(1) => Err(Error::new(ErrorKind::Connection, "its answer is unexpected")),
            Err(cause) if matches!(cause.kind(), Io::WouldBlock | Io::Interrupted) => Ok(None),
            Ok(_) => Err(self.target.closed_socket_error("it has closed the connection")),
            Err(cause) if cause.kind() == Io::ConnectionReset => {
                Err(self.target.closed_socket_error("it has closed the connection"))
            }
            Err(cause) => Err(Error::connection("cannot connect to its Unix socket", cause)),
        }
    }

    /// Connects and sends the hello. Returns `None` if the listen queue of the peer is full.
    fn send_hello(&self) -> Result<Option<Arc<SocketStream>>> {
        let stream = match unix::connect(&ProcessAddress::socket_name(self.target.process)) {
            Ok(stream) => stream,
            Err(cause) if cause.kind() == Io::WouldBlock => return Ok(None),
            Err(cause) if cause.kind() == Io::ConnectionRefused => {
                return Err(self.target.closed_socket_error("its socket is closed"));
            }
            Err(cause) => {
                return Err(Error::connection("cannot connect to its Unix socket", cause));
            }
        };
        if let Err(error) = unix::check_peer_user(&stream) {
            // The peer has closed its socket, and then a process of another user has bound the
            // name.
            return Err(self.target.closed_socket_error(error.message()));
        }
        let stream = Arc::new(SocketStream::from_nonblocking_unix(stream));
        // A new connection has room for the hello. If the connection has ended, the next read
        // reports the end.
        drop(stream.send(&self.hello.encode()));
        Ok(Some(stream))
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::sys::host;
    use std::io::Read as _;

    #[test]
    fn socket_of_another_user_gets_no_hello() {
        let process = host::random_nonce().unwrap();
        let name = ProcessAddress::socket_name(process);
        let Some(squatter) = unix::run_as_other_user(|| unix::listen(&name).unwrap()) else {
            return;
        };
        let group = Nonce([1; 16]);
        let hello = SurvivorHello { group, from_nonce: group, to_nonce: group, from: 1, to: 0 };
        let registration = NeighbourMember::register(group, 1, 2).unwrap();
        let target = NodeProcess { registration, process, pid: host::pid() };
        let error = LocalConnect::new(target, hello).poll().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Connection, "{error}");
        assert_eq!(unix::accept(&squatter).unwrap().read(&mut [0; 64]).unwrap(), 0);
    }
}
