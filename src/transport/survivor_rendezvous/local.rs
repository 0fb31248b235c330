//! The way to a rank of the same node: the Unix socket on which the ranks had found each other when
//! the group began.
//!
//! ```text
//! hello, one frame:  "libdistr" | group 16 | nonce of the sender 16 | nonce of the receiver 16 | sender u32
//! ```
//! Must not know: what is said afterwards.

use super::SurvivorAddress;
use super::link::{SurvivorLink, encode_frame};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Rank};
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

/// How long somebody who has connected may take to say who it is, and how many may be about to.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_UNIDENTIFIED: usize = 256;

/// How many connections are answered in a row.
const ANSWERS_PER_WAKEUP: usize = 64;

/// What a rank says first.
pub(super) fn encode_hello(
    group: GroupId,
    members: &[SurvivorAddress],
    from: Rank,
    to: Rank,
) -> Vec<u8> {
    let rank = u32::try_from(from).unwrap_or(u32::MAX).to_le_bytes();
    [&MAGIC[..], &group.0, &members[from].nonce.0, &members[to].nonce.0, &rank].concat()
}

/// Who says so, where it is a member of the group and means `me`.
fn decode_hello(
    hello: &[u8],
    group: GroupId,
    members: &[SurvivorAddress],
    me: Rank,
) -> Option<Rank> {
    let rank = hello.get(HELLO_BYTES - 4..)?.try_into().ok()?;
    let rank = usize::try_from(u32::from_le_bytes(rank)).ok()?;
    let is_right =
        rank < members.len() && rank != me && hello == encode_hello(group, members, rank, me);
    is_right.then_some(rank)
}

/// Who is at the other end is one of this user's processes.
fn check_peer_user(stream: &UnixStream) -> Result<()> {
    let (_, uid) = unix::peer_credentials(stream)?;
    if uid == host::uid() || uid == 0 {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Auth, format!("user {uid} is not user {}", host::uid())))
}

/// Connects; `Unreachable` where the listener's queue is full for now.
///
/// # Errors
/// `NotFound` where nobody listens, `Connection`.
pub(super) fn connect(socket: &str, hello: &[u8]) -> Result<Option<Arc<SocketStream>>> {
    let stream = match unix::connect(socket) {
        Ok(stream) => stream,
        Err(cause) if cause.kind() == Io::WouldBlock => return Ok(None),
        Err(cause) if cause.kind() == Io::ConnectionRefused => {
            return Err(Error::new(ErrorKind::NotFound, "its socket is closed"));
        }
        Err(cause) => return Err(Error::connection("its Unix socket", &cause)),
    };
    if let Err(error) = check_peer_user(&stream) {
        // The name is free again, and somebody else has taken it.
        return Err(Error::new(ErrorKind::NotFound, error.message()));
    }
    let stream = Arc::new(SocketStream::from_nonblocking_unix(stream));
    // There is room for it in a new connection; one that has ended says so when it is read.
    drop(stream.send(&encode_frame(hello)));
    Ok(Some(stream))
}

/// Somebody who has connected and has not said who it is.
#[derive(Debug)]
struct UnidentifiedLink {
    link: SurvivorLink,
    deadline: Instant,
}

/// The listening side.
#[derive(Debug)]
pub(super) struct LocalListener {
    listener: Arc<UnixListener>,
    unidentified: Vec<UnidentifiedLink>,
}

impl LocalListener {
    pub(super) fn new(listener: Arc<UnixListener>) -> Self {
        Self { listener, unidentified: Vec::new() }
    }

    /// Takes those who have come and said who they are.
    pub(super) fn take_arrivals(
        &mut self,
        (group, members, me): (GroupId, &[SurvivorAddress], Rank),
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
                Err(error) => crate::log!(LogLevel::Warn, "a stray connection dropped: {error}"),
            }
        }
        let mut identified = Vec::new();
        for mut newcomer in std::mem::take(&mut self.unidentified) {
            match newcomer.link.poll() {
                Ok(Some(said)) => match decode_hello(&said, group, members, me) {
                    Some(rank) => identified.push((rank, newcomer.link)),
                    None => crate::log!(LogLevel::Warn, "a stray connection dropped: no such rank"),
                },
                Ok(None) if newcomer.deadline > Instant::now() => self.unidentified.push(newcomer),
                Ok(None) | Err(_) => {}
            }
        }
        identified
    }

    /// What becomes readable when somebody comes, or says who it is.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let newcomers = self.unidentified.iter().map(|newcomer| newcomer.link.as_fd());
        let listener = Some(self.listener.as_fd()).filter(|listener| !poll::has_hung_up(*listener));
        newcomers.chain(listener)
    }
}

/// Tells everybody who comes the same, as the service thread finds them.
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
            // A new connection has room for it, and whoever has gone does not need it.
            drop(unix::send(&stream, &self.answer, None));
        }
        WatchAction::Keep
    }
}
