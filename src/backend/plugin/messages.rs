//! Messages between two ranks over a plug-in, which only says whether one has ended when it is
//! asked.
//!
//! Whoever waits for a message asks for all of them, one thread at a time; while nobody waits, a
//! thread of the group's own does, which is there as long as messages are outstanding. A deadline
//! that passes takes the request back.
//!
//! Must not know: how messages are matched.

use super::super::{
    Completion, Delivery, Incoming, LARGEST_TAG, Outgoing, PointToPoint, ProbeRequest,
    ProbedMessage, Room,
};
use super::{Communicator, Growth, Received, Request, State, Submitted, Task, What};
use crate::backend::Fate as _;
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::gpu::Gpu;
use crate::base::ids::Rank;
use crate::base::log::Level;
use crate::process::thread;
use crate::wait::{Pace, until};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{ThreadId, current};
use std::time::Duration;

/// How many messages may be outstanding.
const MOST: usize = 65_536;

/// For how long whoever waits asks again and again, before it sleeps between two looks.
const EAGER: Duration = Duration::from_millis(1);

/// How long those sleeps are, at first and at most.
const FIRST_NAP: Duration = Duration::from_micros(50);
const LONGEST_NAP: Duration = Duration::from_millis(2);

/// How many looks there are for each question whether the plug-in has failed, which may cost it
/// more.
const LOOKS_PER_QUESTION: u32 = 16;

/// How long the end of a group waits for its thread, which is inside the plug-in then.
const FAREWELL: Duration = Duration::from_secs(1);

/// The messages of one group.
#[derive(Debug)]
pub(super) struct Messages(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    name: &'static str,
    size: usize,
    communicator: Arc<dyn Communicator>,
    state: Arc<State>,
    looks: AtomicU32,
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    outstanding: Vec<Entry>,
    /// Somebody has taken those there were out, and asks for each.
    is_taken: bool,
    has_worker: bool,
    worker: Option<ThreadId>,
    closed: bool,
}

/// A message under way.
#[derive(Debug)]
struct Entry {
    request: Request,
    what: What,
    peer: Option<Rank>,
    tag: Option<u32>,
    most: usize,
    room: Option<Arc<Growth>>,
    deadline: Deadline,
    done: Arc<dyn Completion>,
}

impl Messages {
    pub(super) fn new(
        name: &'static str,
        size: usize,
        communicator: Arc<dyn Communicator>,
        state: Arc<State>,
    ) -> Self {
        let (looks, list) = (AtomicU32::new(1), Mutex::default());
        Self(Arc::new(Shared { name, size, communicator, state, looks, list }))
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        let is_worker = {
            let mut list = self.0.list();
            list.closed = true;
            list.worker == Some(current().id())
        };
        self.0.state.bell().ring();
        if is_worker {
            // The end of a message has ended the group: this thread goes on with the rest, and then
            // ends.
            return;
        }
        let limit = Deadline::after(FAREWELL);
        // Also the thread's hold, so that the plug-in's part ends here and not at some later time.
        while Arc::strong_count(&self.0) > 1 || !self.0.list().outstanding.is_empty() {
            self.0.look();
            self.0.state.bell().doze(FIRST_NAP, || true, || None::<()>);
            if limit.has_passed() {
                crate::log!(
                    Level::Error,
                    "the back end {} does not return from looking at a message",
                    self.0.name
                );
                return;
            }
        }
    }
}

impl PointToPoint for Messages {
    fn send(&self, message: Outgoing, done: Arc<dyn Completion>) -> Result<()> {
        self.send_from(None, message, done)
    }

    fn receive(&self, message: Incoming, done: Arc<dyn Completion>) -> Result<()> {
        self.receive_to(None, message, done)
    }

    fn send_from(
        &self,
        gpu: Option<Gpu>,
        message: Outgoing,
        done: Arc<dyn Completion>,
    ) -> Result<()> {
        let Outgoing { to, tag, dtype, bytes, deadline, synchronous } = message;
        if synchronous {
            let message = format!(
                "the back end {} has no synchronous send: leave DIST_CALL_SYNCHRONOUS out, and have the receiver answer",
                self.0.name
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let task = Task {
            dtype: Some(dtype),
            peer: Some(to),
            tag: Some(tag),
            count: bytes.len() / dtype.size(),
            send: bytes,
            gpu,
            ..bare(What::Send, &deadline)
        };
        self.0.post(&task, None, bytes.len(), done)
    }

    fn receive_to(
        &self,
        gpu: Option<Gpu>,
        message: Incoming,
        done: Arc<dyn Completion>,
    ) -> Result<()> {
        let Incoming { from, tag, dtype, into, deadline } = message;
        let (recv, room) = match into {
            Room::Lent(bytes) => (bytes, None),
            Room::Grows { most } => (Dst::empty(), Some(Arc::new(Growth::new(most)))),
        };
        let task = Task {
            dtype: Some(dtype),
            peer: from,
            tag,
            count: into.most() / dtype.size(),
            recv,
            room: room.as_deref(),
            gpu,
            ..bare(What::Receive, &deadline)
        };
        self.0.post(&task, room.clone(), into.most(), done)
    }

    fn probe(&self, _: &ProbeRequest, _: &Deadline) -> Result<Option<ProbedMessage>> {
        let message = format!(
            "the back end {} cannot look for messages before they are received: use dist_recv with room for the longest, or \
             dist_recv_bytes",
            self.0.name
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    fn attend(&self, over: &dyn Fn() -> bool, limit: &Deadline) {
        let bell = self.0.state.bell();
        let look = || {
            self.0.look();
            over().then_some(())
        };
        if until(bell, Pace::PATIENT, &limit.capped(EAGER), || None, look).is_ok() {
            return;
        }
        let mut nap = FIRST_NAP;
        while !limit.has_passed() {
            self.0.look();
            if bell.doze(nap.min(limit.left()), || true, || over().then_some(())).is_some() {
                return;
            }
            nap = (nap * 2).min(LONGEST_NAP);
        }
    }

    /// A plug-in does not say who has left.
    fn departed(&self, _: Rank) -> Option<Error> {
        None
    }
}

/// A message without anything in it.
fn bare(what: What, deadline: &Deadline) -> Task<'_> {
    Task {
        what,
        dtype: None,
        op: None,
        root: None,
        peer: None,
        tag: None,
        count: 0,
        send: Src::empty(),
        recv: Dst::empty(),
        sends: None,
        recvs: None,
        room: None,
        factor: 1.0,
        deadline,
        is_fresh: false,
        sequence: 0,
        part: 0,
        gpu: None,
    }
}

/// The memory of one message for somebody who needs it to the end: what makes several operations of
/// one.
pub(super) fn part<'a>(what: What, whole: &Task<'a>, with: (Rank, u32)) -> Task<'a> {
    let dtype = Some(DataType::U8);
    let (peer, tag) = (Some(with.0), Some(with.1));
    Task { dtype, peer, tag, sequence: whole.sequence, ..bare(what, whole.deadline) }
}

impl Shared {
    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(
        self: &Arc<Self>,
        task: &Task<'_>,
        room: Option<Arc<Growth>>,
        most: usize,
        done: Arc<dyn Completion>,
    ) -> Result<()> {
        if let Some(failure) = self.state.known_failure() {
            return Err(failure.clone());
        }
        if self.list().outstanding.len() >= MOST {
            let message =
                format!("{MOST} messages are outstanding, which is the most there may be");
            return Err(Error::new(ErrorKind::OutOfMemory, message));
        }
        self.keep_worker()?;
        let submitted = self.communicator.submit(task)?;
        let Task { what, peer, tag, deadline, .. } = *task;
        let (handle, ticket) = (0, 0);
        let request = match submitted {
            Submitted::Pending(request) => request,
            Submitted::Done(_) => Request { handle, ticket },
        };
        let entry = Entry { request, what, peer, tag, most, room, deadline: *deadline, done };
        match submitted {
            Submitted::Done(received) => entry.end(self.delivered(&entry, received)),
            Submitted::Pending(_) => {
                self.list().outstanding.push(entry);
                // Again: it may have found nothing to do, and ended, just before.
                if let Err(error) = self.keep_worker() {
                    crate::log!(Level::Error, "messages go on only while somebody waits: {error}");
                }
            }
        }
        self.state.bell().ring();
        Ok(())
    }

    /// Sees to it that there is a thread which looks.
    fn keep_worker(self: &Arc<Self>) -> Result<()> {
        let mut list = self.list();
        if !list.has_worker {
            let shared = Arc::clone(self);
            thread::start("dist-messages", move || shared.work())?;
            list.has_worker = true;
        }
        Ok(())
    }

    /// The life of that thread.
    fn work(&self) {
        let (bell, mut nap) = (self.state.bell(), FIRST_NAP);
        self.list().worker = Some(current().id());
        loop {
            let moved = self.look();
            {
                let mut list = self.list();
                let is_idle = list.outstanding.is_empty() && !list.is_taken;
                if is_idle && (list.closed || nap == LONGEST_NAP) {
                    list.has_worker = false;
                    list.worker = None;
                    break;
                }
            }
            nap = if moved { FIRST_NAP } else { (nap * 2).min(LONGEST_NAP) };
            bell.doze(nap, || true, || None::<()>);
        }
        bell.ring();
    }

    /// Asks for each message once, unless somebody else does; true where one has ended.
    fn look(&self) -> bool {
        let taken = {
            let mut list = self.list();
            if list.is_taken || list.outstanding.is_empty() {
                return false;
            }
            list.is_taken = true;
            std::mem::take(&mut list.outstanding)
        };
        let asks = self.looks.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOKS_PER_QUESTION);
        let failure = if asks { self.state.ask() } else { self.state.known_failure().cloned() };
        let count = taken.len();
        let closed = self.list().closed;
        let failure = failure.or_else(|| closed.then(|| self.closed()));
        let (mut left, mut ended) = (Vec::with_capacity(count), Vec::new());
        for entry in taken {
            match self.outcome(&entry, failure.as_ref()) {
                Some(outcome) => ended.push((entry, outcome)),
                None => left.push(entry),
            }
        }
        let mut list = self.list();
        // In the order of their posting.
        left.append(&mut list.outstanding);
        list.outstanding = left;
        list.is_taken = false;
        drop(list);
        let moved = !ended.is_empty();
        // Only now: the end of a message may be the end of the group.
        ended.into_iter().for_each(|(entry, outcome)| entry.end(outcome));
        if moved {
            self.state.bell().ring();
        }
        moved
    }

    fn closed(&self) -> Error {
        Error::new(ErrorKind::Aborted, format!("this rank has left the group ({})", self.name))
    }

    /// What has become of a message; `None` where it goes on.
    fn outcome(&self, entry: &Entry, failure: Option<&Error>) -> Option<Result<Delivery>> {
        if let Some(failure) = failure {
            return Some(Err(self.take_back(entry, failure.clone())));
        }
        match self.communicator.test(entry.request) {
            Ok(Some(received)) => Some(self.delivered(entry, received)),
            Err(error) => Some(Err(error)),
            Ok(None) if entry.deadline.has_passed() => {
                let waited = entry.deadline.elapsed().as_millis();
                let message = format!("not matched within {waited} ms");
                Some(Err(self.take_back(entry, Error::new(ErrorKind::Timeout, message))))
            }
            Ok(None) => None,
        }
    }

    /// Ends a request that will not end by itself. Where the plug-in may still use its memory,
    /// nobody goes on.
    fn take_back(&self, entry: &Entry, error: Error) -> Error {
        match self.communicator.release(entry.request) {
            Ok(awaited) => awaited.explain(error),
            Err(why) => {
                let error = Error::new(
                    error.kind(),
                    format!("{error}; the back end {} may still use its buffer: {why}", self.name),
                );
                self.state.fail(&error);
                error
            }
        }
    }

    /// What the plug-in says of a message, checked.
    fn delivered(&self, entry: &Entry, received: Received) -> Result<Delivery> {
        let said = |what: &str| {
            let message = format!("the back end {} says {what} of a message", self.name);
            Error::new(ErrorKind::Backend, message)
        };
        let peer = entry.peer.or(received.peer).ok_or_else(|| said("nothing of the sender"))?;
        let tag = entry.tag.or(received.tag).ok_or_else(|| said("nothing of the tag"))?;
        let bytes = match (entry.what, received.bytes) {
            (What::Receive, Some(bytes)) => usize::try_from(bytes).unwrap_or(usize::MAX),
            (What::Receive, None) => return Err(said("nothing of the length")),
            _ => entry.most,
        };
        if peer >= self.size || received.peer.is_some_and(|it| it != peer) {
            return Err(said(&format!("that rank {} sent", received.peer.unwrap_or(peer))));
        }
        if entry.tag.is_none() && tag > LARGEST_TAG {
            return Err(said(&format!("the impossible tag {tag}")));
        }
        if bytes > entry.most {
            return Err(said(&format!("{bytes} bytes, with room for {},", entry.most)));
        }
        Ok(Delivery { peer, tag, bytes })
    }
}

impl Entry {
    fn end(&self, outcome: Result<Delivery>) {
        match (outcome, &self.room) {
            (Ok(delivery), Some(room)) => {
                let bytes = room.take();
                let delivery = Delivery { bytes: bytes.len(), ..delivery };
                self.done.complete_grown(delivery, bytes);
            }
            (outcome, _) => self.done.complete(outcome),
        }
    }
}
