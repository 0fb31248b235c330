//! Survivor connections to ranks of the same node, over Unix sockets. Each rank listens on the
//! socket on which it accepted the other ranks of its node when the group was created.
//!
//! The first frame on a connection is the hello of the connecting rank:
//!
//! ```text
//! "libdistr" | group 16 | nonce of the sender 16 | nonce of the receiver 16 | sender u32
//! ```
//!
//! A nonce is a random number that a rank published before the group was created. This module does
//! not depend on the content of the later frames.

use super::link::{SurvivorLink, encode_frame};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::base::log::LogLevel;
use crate::sys::stream::SocketStream;
use crate::sys::{host, poll, unix};
use crate::wait::service::{DescriptorHandler, WatchAction};
use std::io::ErrorKind as Io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MAGIC: [u8; 8] = *b"libdistr";
const HELLO_BYTES: usize = 8 + 3 * 16 + 4;

/// The time within which a new connection must send its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of connections without a hello. Further connections wait in the listen
/// queue.
const MAX_UNIDENTIFIED: usize = 256;

/// The maximum number of connections that the answer handler accepts and answers per wakeup.
const ANSWERS_PER_WAKEUP: usize = 64;

/// The data that the other ranks need to connect to one rank of the group.
#[derive(Clone, Debug)]
pub struct SurvivorAddress {
    /// The nonce that the rank published.
    pub nonce: Nonce,
    /// The nonce in the name of the rank's Unix socket (`ShmListener::nonce_in_name`). `None` if
    /// the rank is on another node, and is reached through the reconnect endpoint.
    pub socket: Option<Nonce>,
}

/// The failed group as one of its ranks knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SurvivorGroup<'a> {
    pub(super) group: GroupId,
    pub(super) members: &'a [SurvivorAddress],
    pub(super) me: Rank,
}

impl SurvivorGroup<'_> {
    /// Encodes the hello of rank `from` to rank `to`.
    pub(super) fn encode_hello(&self, from: Rank, to: Rank) -> Vec<u8> {
        let rank = u32::try_from(from).unwrap_or(u32::MAX).to_le_bytes();
        let [from, to] = [from, to].map(|rank| &self.members[rank].nonce.0[..]);
        [&MAGIC[..], &self.group.0, from, to, &rank].concat()
    }

    /// Returns the rank of the sender if the hello is valid, the sender is a member of the group,
    /// and the receiver is this rank.
    fn decode_hello(&self, hello: &[u8]) -> Option<Rank> {
        let rank = hello.get(HELLO_BYTES - 4..)?.try_into().ok()?;
        let rank = usize::try_from(u32::from_le_bytes(rank)).ok()?;
        let is_right = rank < self.members.len()
            && rank != self.me
            && hello == self.encode_hello(rank, self.me);
        is_right.then_some(rank)
    }
}

/// Checks that the peer process belongs to this user or to root.
fn check_peer_user(stream: &UnixStream) -> Result<()> {
    let (_, uid) = unix::peer_credentials(stream)?;
    if uid == host::uid() || uid == 0 {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Auth,
        format!("the peer process belongs to user {uid}, and this process to user {}", host::uid()),
    ))
}

/// Connects to a Unix socket and sends the hello. Returns `None` if the listen queue of the peer is
/// full.
///
/// # Errors
/// `NotFound` if no process listens on the socket, or if the listener belongs to another user.
/// `Connection` for other errors.
pub(super) fn connect(socket: &str, hello: &[u8]) -> Result<Option<Arc<SocketStream>>> {
    let stream = match unix::connect(socket) {
        Ok(stream) => stream,
        Err(cause) if cause.kind() == Io::WouldBlock => return Ok(None),
        Err(cause) if cause.kind() == Io::ConnectionRefused => {
            return Err(Error::new(ErrorKind::NotFound, "its socket is closed"));
        }
        Err(cause) => return Err(Error::connection("cannot connect to its Unix socket", cause)),
    };
    if let Err(error) = check_peer_user(&stream) {
        // The peer has closed its socket, and then a process of another user has bound the name.
        return Err(Error::new(ErrorKind::NotFound, error.message()));
    }
    let stream = Arc::new(SocketStream::from_nonblocking_unix(stream));
    // A new connection has room for the hello. If the connection has ended, the next read reports
    // the end.
    drop(stream.send(&encode_frame(hello)));
    Ok(Some(stream))
}

/// An accepted connection whose hello has not arrived yet.
#[derive(Debug)]
struct UnidentifiedLink {
    link: SurvivorLink,
    deadline: Instant,
}

/// The local connections that an open survivor session accepts.
#[derive(Debug)]
pub(super) struct LocalListener {
    listener: Arc<UnixListener>,
    unidentified: Vec<UnidentifiedLink>,
}

impl LocalListener {
    pub(super) fn new(listener: Arc<UnixListener>) -> Self {
        Self { listener, unidentified: Vec::new() }
    }

    /// Accepts new connections. Returns each connection on which a valid hello has arrived, with
    /// the rank that sent the hello.
    pub(super) fn take_arrivals(
        &mut self,
        group: SurvivorGroup<'_>,
        max_frame_len: usize,
    ) -> Vec<(Rank, SurvivorLink)> {
        while self.unidentified.len() < MAX_UNIDENTIFIED
            && let Ok((stream, _)) = self.listener.accept()
        {
            match check_peer_user(&stream) {
                Ok(()) => {
                    let link = SurvivorLink::new(
                        Arc::new(SocketStream::from_nonblocking_unix(stream)),
                        max_frame_len,
                    );
                    let until = Instant::now() + HELLO_TIMEOUT;
                    self.unidentified.push(UnidentifiedLink { link, deadline: until });
                }
                Err(error) => {
                    crate::log!(LogLevel::Warn, "dropped an unexpected connection: {error}")
                }
            }
        }
        let mut identified = Vec::new();
        for mut pending in std::mem::take(&mut self.unidentified) {
            match pending.link.poll() {
                Ok(Some(hello)) => match group.decode_hello(&hello) {
                    Some(rank) => identified.push((rank, pending.link)),
                    None => crate::log!(
                        LogLevel::Warn,
                        "dropped an unexpected connection: its hello does not identify a rank of this group"
                    ),
                },
                Ok(None) if pending.deadline > Instant::now() => self.unidentified.push(pending),
                Ok(None) | Err(_) => {}
            }
        }
        identified
    }

    /// Returns the descriptors that become readable when a rank connects or sends its hello.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let newcomers = self.unidentified.iter().map(|pending| pending.link.as_fd());
        let listener = Some(self.listener.as_fd()).filter(|listener| !poll::has_hung_up(*listener));
        newcomers.chain(listener)
    }
}

/// Answers every incoming connection with the same frame and closes the connection, on the service
/// thread.
#[derive(Debug)]
pub(super) struct LocalAnswerHandler {
    listener: Arc<UnixListener>,
    answer: Vec<u8>,
}

impl LocalAnswerHandler {
    pub(super) fn new(listener: Arc<UnixListener>, answer: &[u8]) -> Self {
        Self { listener, answer: encode_frame(answer) }
    }
}

impl DescriptorHandler for LocalAnswerHandler {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn on_readable(&self) -> WatchAction {
        for _ in 0..ANSWERS_PER_WAKEUP {
            let Ok((stream, _)) = self.listener.accept() else {
                return if poll::has_hung_up(self.listener.as_fd()) {
                    WatchAction::Done
                } else {
                    WatchAction::Keep
                };
            };
            // A new connection has room for the answer. If the peer has closed the connection, it
            // does not need the answer.
            drop(unix::send(&stream, &self.answer, None));
        }
        WatchAction::Keep
    }
}
