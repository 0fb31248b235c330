//! Messages in the memory of devices, which a thread of the group carries piece by piece through
//! staging memory of their own.
//!
//! 1. The sender offers a message by a letter ([`letters`]); who has a place for it ([`matching`])
//!    and a half of staging memory answers that there is room for a piece.
//! 2. For each such answer the sender has the device copy a piece to a half of its own, and sends
//!    it as a message of host memory, under a tag that belongs to this one.
//! 3. What has come is copied to the device. A message has ended for its sender when its last piece
//!    has gone, for its receiver when the device has all of it.
//!
//! A sender's half is taken only for a piece that somebody waits for with memory in hand, so halves
//! become free again whatever order ranks call in. Before the first answer a message is on nobody's
//! way: its time may pass, and nobody else is concerned. Afterwards whatever goes wrong fails the
//! group.
//!
//! They do not meet messages in host memory, whose tags are others.

mod ending;
mod letters;
mod matching;
mod postman;
mod receiving;
mod sending;

use super::desk::Desk;
use crate::backend::lent::Lent;
use crate::backend::{
    Backend, Carried, Completion, Delivery, Fate, Incoming, Listener, Outgoing, Room,
};
use crate::base::buffer::Dst;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{Rank, WorldSize};
use crate::base::log::Level;
use crate::device::stream::DEFAULT_STREAM;
use crate::device::{Context, Event};
use crate::process::thread;
use crate::wait::bell::Bell;
use crate::wait::{Pace, until};
use postman::Postman;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a group that is left waits for its thread.
const PARTING: Duration = Duration::from_secs(10);

/// What the thread is told.
#[derive(Debug)]
enum News {
    Send(Outgoing, Posted),
    Receive(Incoming, Dst<'static>, Posted),
    /// A letter has come, or none can any more.
    Letter(Result<(Rank, Vec<u8>)>),
    /// The piece in a half has gone, or has come.
    Sent(usize, Result<Delivery>),
    Came(usize, Result<Delivery>),
}

/// What every message has.
#[derive(Debug)]
struct Posted {
    /// The device is there when its memory is ready.
    ready: Event,
    /// Until it has been told.
    done: Option<Arc<dyn Completion>>,
}

impl Posted {
    fn end(mut self, outcome: Result<Delivery>) {
        self.done.take().into_iter().for_each(|done| done.complete(outcome.clone()));
    }
}

impl Drop for Posted {
    /// Whatever happens, somebody waits for it.
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            done.complete(Err(Error::internal("a message on a device was lost")));
        }
    }
}

/// Where the thread hears of everything. It knows nothing of the engine, which keeps it.
#[derive(Debug, Default)]
struct Inbox {
    news: Mutex<Vec<News>>,
    bell: Bell,
    closing: AtomicBool,
    ended: AtomicBool,
}

/// The messages of a group on its device.
#[derive(Debug)]
pub(super) struct Messages {
    context: Arc<Context>,
    chunk: usize,
    size: WorldSize,
    cpu: Arc<dyn Backend>,
    fate: Arc<dyn Fate>,
    inbox: Arc<Inbox>,
    /// The thread has been started.
    begun: Mutex<bool>,
}

impl Inbox {
    fn tell(&self, news: News) {
        self.lock().push(news);
        self.bell.ring();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<News>> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener for Inbox {
    fn on_knock(&self) {
        self.bell.ring();
    }
}

impl Messages {
    pub(super) fn new(
        context: &Arc<Context>,
        chunk: usize,
        size: WorldSize,
        (cpu, fate): (&Arc<dyn Backend>, &Arc<dyn Fate>),
    ) -> Self {
        Self {
            context: Arc::clone(context),
            chunk,
            size,
            cpu: Arc::clone(cpu),
            fate: Arc::clone(fate),
            inbox: Arc::default(),
            begun: Mutex::new(false),
        }
    }

    /// What every message needs: a thread that carries it, and the moment when its memory is ready.
    fn post(
        &self,
        peer: Option<Rank>,
        stream: Option<usize>,
        done: Arc<dyn Completion>,
    ) -> Result<Posted> {
        if let Some(failure) = self.fate.failure() {
            return Err(failure);
        }
        if let Some(peer) = peer.filter(|&peer| peer >= self.size) {
            let message = format!("there is no rank {peer}: the group has {} ranks", self.size);
            return Err(Error::invalid(message));
        }
        let ready = Event::new(&self.context)?;
        ready.record(stream.unwrap_or(DEFAULT_STREAM))?;
        self.begin()?;
        Ok(Posted { ready, done: Some(done) })
    }

    /// Starts the thread, the first time.
    fn begin(&self) -> Result<()> {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        if *begun {
            return Ok(());
        }
        let desk = Desk::new(&self.context, self.chunk)?;
        let (cpu, fate) = (Arc::clone(&self.cpu), Arc::clone(&self.fate));
        let (inbox, watched) = (Arc::clone(&self.inbox), Arc::clone(&self.fate));
        let postman = Postman::new(self.chunk, desk, (cpu, fate), Arc::clone(&inbox));
        thread::start("dist-staging", move || {
            let _ending = Ending(inbox, watched);
            postman.work();
        })?;
        let listener = Arc::clone(&self.inbox) as Arc<dyn Listener>;
        self.fate.add_listener(Arc::downgrade(&listener));
        *begun = true;
        Ok(())
    }

    /// The group has failed, which its fate does not tell everybody.
    pub(super) fn look_around(&self) {
        self.inbox.bell.ring();
    }
}

impl Carried for Messages {
    fn send(
        &self,
        message: Outgoing,
        stream: Option<usize>,
        done: Arc<dyn Completion>,
    ) -> Result<()> {
        let posted = self.post(Some(message.to), stream, done)?;
        self.inbox.tell(News::Send(message, posted));
        Ok(())
    }

    fn receive(
        &self,
        message: Incoming,
        stream: Option<usize>,
        done: Arc<dyn Completion>,
    ) -> Result<()> {
        let Room::Lent(into) = message.into else {
            return Err(Error::internal("a message of any length on a device"));
        };
        let posted = self.post(message.from, stream, done)?;
        self.inbox.tell(News::Receive(message, into, posted));
        Ok(())
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        let begun = *self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        if !begun {
            return;
        }
        self.inbox.closing.store(true, Ordering::Release);
        self.inbox.bell.ring();
        let limit = Deadline::after(PARTING);
        let ended = || self.inbox.ended.load(Ordering::Acquire).then_some(());
        if until(&self.inbox.bell, Pace::PATIENT, &limit, || None, ended).is_err() {
            crate::log!(Level::Error, "messages on a device do not end");
        }
    }
}

/// Whatever ends the thread, it has ended.
struct Ending(Arc<Inbox>, Arc<dyn Fate>);

impl Drop for Ending {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let message = "a defect in libdist, please report it: a panic in a message on a device";
            self.1.fail(&Error::internal(message));
        }
        self.0.ended.store(true, Ordering::Release);
        self.0.bell.ring();
    }
}

/// Hears of a letter.
#[derive(Debug)]
struct LetterBox(Arc<Inbox>);

impl Completion for LetterBox {
    fn complete(&self, outcome: Result<Delivery>) {
        let nothing = |delivery: Delivery| (delivery.peer, Vec::new());
        self.0.tell(News::Letter(outcome.map(nothing)));
    }

    fn complete_grown(&self, delivery: Delivery, bytes: Vec<u8>) {
        self.0.tell(News::Letter(Ok((delivery.peer, bytes))));
    }
}

/// Keeps a letter until it has gone.
#[derive(Debug)]
struct Envelope {
    _letter: Lent,
}

impl Completion for Envelope {
    fn complete(&self, outcome: Result<Delivery>) {
        // Whom it does not reach is known to be gone by other ways.
        if let Err(error) = outcome {
            crate::log!(Level::Debug, "a letter of a message on a device: {error}");
        }
    }
}

/// Hears of the piece in a half.
#[derive(Debug)]
struct Piece {
    inbox: Arc<Inbox>,
    half: usize,
    is_outgoing: bool,
}

impl Completion for Piece {
    fn complete(&self, outcome: Result<Delivery>) {
        self.inbox.tell(match self.is_outgoing {
            true => News::Sent(self.half, outcome),
            false => News::Came(self.half, outcome),
        });
    }
}

/// A message that waits for another rank has waited for too long.
fn unmatched(deadline: &Deadline) -> Error {
    let waited = deadline.elapsed().as_millis();
    Error::new(ErrorKind::Timeout, format!("not matched within {waited} ms"))
}
