//! [`Endpoint`](crate::transport::Endpoint) over TCP: one connection for each direction and channel
//! that is used.
//!
//! **Streams are raw**: after the hello of each connection its bytes are the caller's, read
//! straight into where they belong. So the end of a stream is told by the connection itself. A rank
//! that leaves sends the end of each connection (FIN) after its last bytes. A rank that dies must
//! not: all connections of a mesh are set to be *reset* when they are closed, which is what the
//! system does for a process that dies, and which only leaving in order undoes. An end of file is
//! thus an orderly leave, and anything else a death. What a dying rank's system had not sent yet is
//! lost. A reset that is lost under way, or comes from a host that is gone, is made good by the
//! control connections, which tell every death. What comes of all that is in
//! [`standing`](super::standing).

use super::control::Line;
use super::dial::{Caller, Dial, Target};
use super::door::{is_passing, lock};
use super::frame::Frame;
use super::hello::{Hello, Purpose};
use super::join::Member;
use super::last_words;
use super::messages::Messages;
use super::standing::Obituary;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::ids::{GroupId, Rank};
use crate::base::label::Label;
use crate::base::log::Level;
use crate::sys::event::Event;
use crate::sys::poll::{Events, Interest, Poller};
use crate::sys::stream::Stream;
use crate::transport::{Channel, Direction, Listener, PeerName, SharedDomain, Vitals};
use crate::wait::Pace;
use crate::wait::bell::Bell;
use crate::wait::nudge::Nudge;
use crate::wait::service::{Alarm, Next, Watched};
use std::collections::BTreeMap;
use std::io::ErrorKind as Io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Instant;

/// A stream to a peer.
#[derive(Debug, Default)]
pub(super) enum Out {
    #[default]
    Unused,
    Dialing(Arc<Dial>),
    Open(Arc<Stream>),
    Failed(Error),
}

/// The two streams of one channel between this rank and one peer.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) out: Mutex<Out>,
    pub(super) incoming: Mutex<Option<Arc<Stream>>>,
}

/// What the calling threads and the service thread share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) group: GroupId,
    pub(super) epoch: u32,
    pub(super) me: Rank,
    pub(super) members: Vec<Member>,
    /// The first rank of each node.
    pub(super) leaders: Vec<Rank>,
    pub(super) lanes: u8,
    pub(super) pace: Pace,
    pub(super) domain: Arc<dyn SharedDomain>,
    /// By peer and channel.
    pub(super) slots: Vec<Slot>,
    pub(super) standings: Vec<AtomicU8>,
    /// All streams, watched for their end.
    pub(super) ends: Arc<Poller>,
    /// Raised when something has changed that no stream shows; ends rests.
    pub(super) wake: Event,
    pub(super) messages: Arc<Messages>,
    /// What was seen on streams, and when it counts.
    pub(super) obituaries: Mutex<Vec<(Instant, Obituary)>>,
    pub(super) undertaker: OnceLock<Alarm>,
    pub(super) vitals: Vitals,
    /// Present on a leader that beats.
    pub(super) heart: OnceLock<Alarm>,
    /// The ranks of other nodes that were asked what they do, and their answers.
    pub(super) inquiry: Mutex<BTreeMap<Rank, Option<String>>>,
    /// The operation whose labels another node was asked for, and the answer.
    pub(super) labels_asked: Mutex<Option<LabelInquiry>>,
    /// By node: the connections to the other leaders; present on a leader.
    pub(super) lines: Mutex<Vec<Option<Arc<Line>>>>,
    pub(super) dials: Mutex<Vec<Arc<Dial>>>,
    /// Why a leader cannot be reached.
    pub(super) unreached: Mutex<Option<Error>>,
    /// Rung when a line comes or cannot, and when somebody answers.
    pub(super) bell: Bell,
    pub(super) leads: bool,
    /// The failure is known on all nodes, or on its way.
    pub(super) spread: AtomicBool,
    /// The attendant knows of the failure.
    pub(super) stirred: AtomicBool,
    /// Which ranks of the node the others know to have left.
    pub(super) reported: Mutex<Vec<bool>>,
    /// Held while news goes to the other leaders, and while the lines to them end.
    pub(super) passing: Mutex<()>,
    /// Passes news of this node on to the other leaders.
    pub(super) news: OnceLock<Nudge>,
    /// This rank leaves: what comes now is closed at once. Looked at under the lock of the place
    /// that it is for.
    pub(super) leaving: AtomicBool,
    pub(super) weak: Weak<Self>,
}

/// A question for the labels of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LabelInquiry {
    pub(super) rank: Rank,
    pub(super) sequence: u64,
    /// `None` before the answer has arrived.
    pub(super) labels: Option<Vec<Label>>,
}

impl Shared {
    pub(super) fn ranks(&self) -> usize {
        self.members.len()
    }

    pub(super) fn name(&self, rank: Rank) -> &PeerName {
        &self.members[rank].name
    }

    pub(super) fn channels(&self) -> usize {
        usize::from(self.lanes) + 1
    }

    fn index(&self, peer: Rank, channel: Channel) -> usize {
        let channel = match channel {
            Channel::Collective(lane) => usize::from(lane),
            Channel::PointToPoint => usize::from(self.lanes),
        };
        peer * self.channels() + channel
    }

    pub(super) fn slot(&self, peer: Rank, channel: Channel) -> &Slot {
        &self.slots[self.index(peer, channel)]
    }

    /// Fails the group for a reason that other nodes must learn.
    pub(super) fn fail_here(&self, error: &Error) {
        if self.domain.failure().is_none() {
            crate::log!(Level::Error, "{error}");
        }
        self.domain.fail(error);
    }

    /// Fails this node for a reason that the others know.
    pub(super) fn fail_from_afar(&self, error: &Error) {
        self.spread.store(true, Ordering::Release);
        self.domain.fail(error);
    }

    /// True where the other leaders do not know all that this one does.
    fn has_news(&self) -> bool {
        let failed = self.domain.region().failure().is_set();
        failed && !self.spread.load(Ordering::Acquire)
            || (0..self.domain.size())
                .zip(lock(&self.reported).iter())
                .any(|(local, &reported)| !reported && self.domain.has_left(local))
    }

    /// Tells the other leaders. On the service thread, and by a leader that leaves.
    pub(super) fn pass_on(&self) {
        let passing = lock(&self.passing);
        self.tell_leaders();
        drop(passing);
    }

    /// Tells them for the last time, and ends the lines. What another thread is passing on goes
    /// first.
    pub(super) fn end_lines(&self) {
        let passing = lock(&self.passing);
        if self.leads {
            self.tell_leaders();
        }
        let lines = std::mem::take(&mut *lock(&self.lines));
        lines.iter().flatten().for_each(|line| line.end(self.me));
        drop(passing);
    }

    fn tell_leaders(&self) {
        // Held to the end: whoever finds nothing left to tell may close the connections.
        let mut reported = lock(&self.reported);
        let frames = self.news_of(&mut reported);
        let lines: Vec<_> = lock(&self.lines).iter().flatten().cloned().collect();
        lines.iter().for_each(|line| frames.iter().for_each(|frame| line.say(frame)));
    }

    /// What the other leaders do not know yet. A failure comes first: those who leave then leave
    /// because of it.
    pub(super) fn news_of(&self, reported: &mut [bool]) -> Vec<Frame> {
        // Looked at before the failure, which whoever leaves after it has seen.
        let left: Vec<bool> =
            (0..reported.len()).map(|local| self.domain.has_left(local)).collect();
        let mut frames = Vec::new();
        if let Some(error) = self.domain.failure()
            && !self.spread.swap(true, Ordering::AcqRel)
        {
            frames.push(Frame::Abort(error));
        }
        for (local, reported) in reported.iter_mut().enumerate() {
            if left[local] && !*reported {
                *reported = true;
                frames.push(Frame::Left(self.domain.peer(local).rank));
            }
        }
        frames
    }

    /// Begins to connect a stream.
    ///
    /// # Errors
    /// `Connection` where there is no address to try.
    pub(super) fn dial(
        &self,
        to: Rank,
        purpose: Purpose,
        retry_until: Option<Deadline>,
    ) -> Result<Arc<Dial>> {
        let (own, peer) = (&self.members[self.me], &self.members[to]);
        let hello = Hello {
            purpose,
            group: self.group,
            epoch: self.epoch,
            from: self.me,
            to,
            nonce: own.nonce,
            expected: peer.nonce,
        };
        let caller: Weak<dyn Caller> = self.weak.clone();
        Ok(Dial::new(Target::of(hello, own, peer, retry_until)?, caller))
    }

    /// Watches a stream that has just come to be.
    pub(super) fn enrol(
        &self,
        peer: Rank,
        channel: Channel,
        direction: Direction,
        stream: &Arc<Stream>,
    ) -> std::io::Result<()> {
        if channel == Channel::PointToPoint {
            let interest = match direction {
                Direction::In => Interest::READ,
                Direction::Out => Interest::WRITE,
            };
            self.messages.add(stream.as_fd(), peer, interest)?;
        }
        let token = self.index(peer, channel) * 2 + usize::from(direction == Direction::In);
        self.ends.add_end(stream.as_fd(), u64::try_from(token).unwrap_or(u64::MAX))
    }

    /// A stream has ended; on the service thread.
    fn ended(&self, token: u64) {
        let Ok(token) = usize::try_from(token) else { return };
        let (index, incoming) = (token / 2, token % 2 == 1);
        let Some(slot) = self.slots.get(index) else { return };
        let peer = index / self.channels();
        let (reason, outcome) = if incoming {
            let stream = lock(&slot.incoming);
            (None, stream.as_ref().map_or(Ok(()), |stream| self.judge_ended(peer, stream)))
        } else {
            match &*lock(&slot.out) {
                Out::Open(stream) => {
                    let reason = last_words::heard(stream, self.ranks());
                    (reason, self.judge_ended(peer, stream))
                }
                _ => (None, Ok(())),
            }
        };
        for error in reason.into_iter().chain(outcome.err()) {
            self.fail_here(&error);
        }
    }

    /// A stream has ended, whose place is locked.
    fn judge_ended(&self, peer: Rank, stream: &Stream) -> Result<()> {
        // Fails only where it is not watched.
        drop(self.ends.remove(stream.as_fd()));
        match stream.take_error() {
            Some(cause) => self.judge(peer, &cause).map(drop),
            None => {
                self.mark_left(peer);
                Ok(())
            }
        }
    }

    /// What it means that a transfer with a peer failed: false for nothing yet, true that the peer
    /// has left or died, which is noted. The stream's place is locked.
    ///
    /// # Errors
    /// `System` for a failure of this rank's own.
    pub(super) fn judge(&self, peer: Rank, cause: &std::io::Error) -> Result<bool> {
        if is_passing(cause) {
            return Ok(false);
        }
        match cause.kind() {
            // What the system says where the end had come before the connection was closed.
            Io::BrokenPipe => self.mark_left(peer),
            Io::ConnectionReset
            | Io::ConnectionAborted
            | Io::TimedOut
            | Io::HostUnreachable
            | Io::NetworkUnreachable => self.mark_died(peer, &cause.to_string()),
            _ => {
                let what = format_args!("using the connection with {}", self.name(peer));
                return Err(Error::system(what, cause));
            }
        }
        Ok(true)
    }
}

impl Listener for Shared {
    fn on_knock(&self) {
        self.wake.raise();
        if self.domain.region().failure().is_set() && !self.stirred.swap(true, Ordering::AcqRel) {
            self.heed_failure();
            self.messages.stir();
            self.bell.ring();
        }
        if self.leads
            && self.has_news()
            && let Some(news) = self.news.get()
        {
            news.nudge();
        }
    }
}

/// The ends of all streams, as the service thread watches them.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) shared: Weak<Shared>,
    pub(super) poller: Arc<Poller>,
}

impl Watched for Ends {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    fn on_readable(&self) -> Next {
        let Some(shared) = self.shared.upgrade() else { return Next::Done };
        let mut events = Events::with_room(64);
        if self.poller.look(&mut events).is_ok() {
            events.iter().for_each(|event| shared.ended(event.token));
        }
        Next::Keep
    }
}

/// Sends the end of a stream after its last bytes, and lets the system deliver them.
pub(super) fn leave(stream: &Stream) {
    stream.end_sending();
    // Without it the bytes that have not gone yet would be lost; that is all that can be done.
    drop(stream.set_reset_on_close(false));
}
