//! One socket to each other rank of the host. A rank that leaves in order says goodbye on it; the end
//! of file without a goodbye is a death. A rank that listens (`SharedDomain::knock`) is told on it too.
//!
//! A process that forked without exec leaves its end open in the child, so the death of the process
//! itself is watched too, where the kernel shows us the same process id that the peer has told.

use super::Shared;
use crate::base::error::{Error, ErrorKind};
use crate::base::ids::Rank;
use crate::base::log::Level;
use crate::sys::pidfd::PidFd;
use crate::sys::{host, unix};
use crate::transport::SharedDomain as _;
use crate::wait::service::{Next, Watched};
use std::io::ErrorKind as Io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const GOODBYE: u8 = b'B';
const KNOCK: u8 = b'K';

/// The connection to one peer, as the service thread watches it.
#[derive(Debug)]
pub(super) struct Lifeline {
    shared: Arc<Shared>,
    peer: Rank,
    stream: Arc<UnixStream>,
}

/// The death of a peer's process, as the kernel reports it.
#[derive(Debug)]
struct Death {
    lifeline: Arc<Lifeline>,
    process: PidFd,
}

impl Lifeline {
    /// Those to all other ranks.
    pub(super) fn of_all(shared: &Arc<Shared>) -> impl Iterator<Item = Arc<Self>> {
        shared.streams.iter().enumerate().filter_map(|(peer, stream)| {
            let stream = Arc::clone(stream.as_ref()?);
            Some(Arc::new(Self { shared: Arc::clone(shared), peer, stream }))
        })
    }

    /// Something to watch that ends with the peer's process, where that is possible.
    pub(super) fn watch_process(self: &Arc<Self>) -> Option<Arc<dyn Watched>> {
        let told = self.shared.peers[self.peer].pid;
        let (seen, _) = unix::peer_credentials(&self.stream).ok()?;
        if seen != told || told == host::pid() {
            return None;
        }
        let process = PidFd::open(i32::try_from(told).ok()?).ok()?;
        Some(Arc::new(Death { lifeline: Arc::clone(self), process }))
    }

    /// Reads what the peer has said so far; true once nothing more can come.
    fn drain(&self) -> bool {
        let mut bytes = [0; 16];
        loop {
            match unix::receive(&self.stream, &mut bytes) {
                Ok((0, _)) => return true,
                Ok((got, _)) => {
                    if bytes[..got].contains(&GOODBYE) {
                        self.mark_left();
                    }
                    if bytes[..got].contains(&KNOCK) {
                        self.shared.listeners.call();
                    }
                }
                Err(cause) if cause.kind() == Io::Interrupted => {}
                Err(cause) => return cause.kind() != Io::WouldBlock,
            }
        }
    }

    fn mark_left(&self) {
        self.shared.left[self.peer].store(true, Ordering::Release);
        self.shared.region.bell(self.shared.rank).ring();
        self.shared.listeners.call();
    }

    /// The peer can say nothing more: it has left, or it has died.
    fn ended(&self) {
        let shared = &self.shared;
        if shared.left[self.peer].load(Ordering::Acquire) {
            return;
        }
        let name = &shared.peers[self.peer];
        let doing = shared.region.progress(self.peer).describe();
        let message = format!("{name} died; it {doing}");
        crate::log!(Level::Error, "{message}");
        shared.fail(&Error::new(ErrorKind::PeerFailed, message).with_culprit(name.rank));
    }
}

/// Tells the other ranks that this one leaves in order.
pub(super) fn say_goodbye(shared: &Shared) {
    for stream in shared.streams.iter().flatten() {
        // A peer that is gone does not need it.
        drop(unix::send(stream, &[GOODBYE], None));
    }
}

/// Calls the listeners of a rank, in its process.
pub(super) fn knock(shared: &Shared, rank: Rank) {
    match &shared.streams[rank] {
        None => shared.listeners.call(),
        // Where the socket is full, knocks enough wait there already.
        Some(stream) => drop(unix::send(stream, &[KNOCK], None)),
    }
}

impl Watched for Lifeline {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn on_readable(&self) -> Next {
        if !self.drain() {
            return Next::Keep;
        }
        self.ended();
        Next::Done
    }
}

impl Watched for Death {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }

    fn on_readable(&self) -> Next {
        // What it said before it died counts.
        self.lifeline.drain();
        self.lifeline.ended();
        Next::Done
    }
}
