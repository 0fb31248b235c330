//! The connections between the leaders of the nodes (the first rank of each): who leaves, who died,
//! why the group has failed. They are made when the group is, and the service thread reads them.
//!
//! A leader that leaves says so. The end of a connection without that is the leader's death: the
//! system closes the sockets of a process that dies, and repeats the end of a connection until it
//! has arrived. Only a host that is gone altogether says nothing, nor does a leader that is
//! stopped: [`heart`](super::heart) notices both. The system's own probes end the connection after
//! the same time, or where nobody watches, after [`SILENCE`].

use super::door::{is_passing, lock};
use super::frame::{Frame, Intake, MAX_BYTES};
use super::mesh::Shared;
use crate::base::error::{Error, ErrorKind, Fault};
use crate::base::ids::Rank;
use crate::base::log::Level;
use crate::sys::poll::Interest;
use crate::sys::socket;
use crate::sys::stream::Stream;
use crate::transport::Rhythm;
use crate::wait::service::{self, Next, Watch, Watched};
use std::io::ErrorKind as Io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// How long the host of another leader may be silent where no heartbeat is expected.
const SILENCE: Duration = Duration::from_secs(20);

/// The connection to the leader of another node.
#[derive(Debug)]
pub(super) struct Line {
    shared: Weak<Shared>,
    /// The other leader.
    leader: Rank,
    stream: Arc<Stream>,
    intake: Mutex<Intake>,
    /// What found no room yet: a frame for each rank of a node and one failure at most.
    outbox: Mutex<Vec<u8>>,
    watch: Mutex<Option<Watch>>,
    /// How often something has come: what shows that the other leader lives.
    signs: AtomicU64,
    /// Nothing more is expected: it has left, or its end is known.
    over: AtomicBool,
}

impl Line {
    /// Takes over a connection to another leader.
    pub(super) fn open(shared: &Arc<Shared>, leader: Rank, stream: Arc<Stream>) -> Arc<Self> {
        let silence = shared.vitals.rhythm.map_or(SILENCE, Rhythm::limit);
        if let Err(cause) = socket::set_user_timeout(stream.as_ref(), silence) {
            crate::log!(Level::Warn, "a host that vanishes may go unnoticed: {cause}");
        }
        Arc::new(Self {
            shared: Arc::downgrade(shared),
            leader,
            stream,
            intake: Mutex::default(),
            outbox: Mutex::default(),
            watch: Mutex::default(),
            signs: AtomicU64::new(0),
            over: AtomicBool::new(false),
        })
    }

    /// Begins to read.
    ///
    /// # Errors
    /// `System`.
    pub(super) fn begin(self: &Arc<Self>) -> crate::base::error::Result<()> {
        let mut watch = lock(&self.watch);
        *watch = Some(service::watch(self.clone())?);
        drop(watch);
        // At once, so that the other leader watches this one from now on.
        if self.shared.upgrade().is_some_and(|shared| shared.vitals.rhythm.is_some()) {
            self.beat();
        }
        Ok(())
    }

    /// Says that this leader lives.
    pub(super) fn beat(&self) {
        self.say_if_room(&Frame::Beat);
    }

    /// How often something has come; `None` for not at all so far, and where nothing more is
    /// expected.
    pub(super) fn signs(&self) -> Option<u64> {
        let signs = self.signs.load(Ordering::Acquire);
        Some(signs).filter(|&signs| signs != 0 && !self.over.load(Ordering::Acquire))
    }

    /// Says something that may as well be left out, unless something else waits for room.
    pub(super) fn say_if_room(&self, frame: &Frame) {
        let mut outbox = lock(&self.outbox);
        if outbox.is_empty() {
            frame.encode(&mut outbox);
            drop(outbox);
            self.flush();
        }
    }

    /// Says something, as soon as there is room.
    pub(super) fn say(&self, frame: &Frame) {
        frame.encode(&mut lock(&self.outbox));
        self.flush();
    }

    /// Says that nothing more will come, and closes.
    pub(super) fn end(&self, rank: Rank) {
        self.say(&Frame::Left(rank));
        self.say(&Frame::Bye);
        let watch = lock(&self.watch).take();
        drop(watch);
        self.stream.end_sending();
    }

    /// Closes without a word, as the system does for a process that dies.
    #[cfg(test)]
    pub(super) fn cut(&self) {
        let watch = lock(&self.watch).take();
        drop(watch);
        self.stream.end_sending();
    }

    fn flush(&self) {
        let mut outbox = lock(&self.outbox);
        while !outbox.is_empty() {
            match self.stream.send(&outbox) {
                Ok(sent) => drop(outbox.drain(..sent)),
                Err(cause) if cause.kind() == Io::Interrupted => {}
                Err(cause) if cause.kind() == Io::WouldBlock => break,
                // Reading meets it too, and tells.
                Err(_) => outbox.clear(),
            }
        }
        let interest = Interest { read: true, write: !outbox.is_empty() };
        if let Some(watch) = lock(&self.watch).as_ref() {
            watch.want(interest);
        }
    }

    /// Reads what has come. An error says why nothing more will.
    fn read(&self, shared: &Shared) -> Result<Next, String> {
        let mut chunk = [0; MAX_BYTES];
        loop {
            match self.stream.receive(&mut chunk) {
                Ok(0) => return Err("the connection ended without a goodbye".to_owned()),
                Ok(got) => {
                    self.signs.fetch_add(1, Ordering::Release);
                    if self.understand(shared, &chunk[..got])? == Next::Done {
                        return Ok(Next::Done);
                    }
                }
                Err(cause) if cause.kind() == Io::Interrupted => {}
                Err(cause) if is_passing(&cause) => return Ok(Next::Keep),
                Err(cause) => return Err(cause.to_string()),
            }
        }
    }

    fn understand(&self, shared: &Shared, bytes: &[u8]) -> Result<Next, String> {
        let mut intake = std::mem::take(&mut *lock(&self.intake));
        intake.add(bytes);
        while let Some(frame) =
            intake.next(shared.ranks()).map_err(|what| format!("it sent {what}"))?
        {
            match frame {
                Frame::Abort(error) => shared.fail_from_afar(&error),
                Frame::Left(rank) => shared.mark_said_left(rank),
                Frame::Bye => return Ok(Next::Done),
                Frame::Beat => {}
                Frame::Ask(rank) => shared.tell(rank, self),
                Frame::Does(rank, text) => shared.heard(rank, text),
                Frame::AskLabels(rank, sequence) => shared.tell_labels(rank, sequence, self),
                Frame::Labels(rank, sequence, labels) => {
                    shared.heard_labels(rank, sequence, labels);
                }
            }
        }
        *lock(&self.intake) = intake;
        Ok(Next::Keep)
    }
}

impl Watched for Line {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn on_readable(&self) -> Next {
        let Some(shared) = self.shared.upgrade() else { return Next::Done };
        match self.read(&shared) {
            Ok(Next::Keep) => Next::Keep,
            Ok(Next::Done) => {
                self.over.store(true, Ordering::Release);
                Next::Done
            }
            Err(why) => {
                self.over.store(true, Ordering::Release);
                let name = shared.name(self.leader);
                let message = format!("{name} died, or its host cannot be reached any more: {why}");
                let error = Error::new(ErrorKind::PeerFailed, message).with_culprit(self.leader);
                let error = error.with_fault(Fault::Unreachable);
                shared.fail_here(&error);
                Next::Done
            }
        }
    }

    fn on_writable(&self) -> Next {
        self.flush();
        Next::Keep
    }
}
