//! Where the letters of a group's ranks arrive while they make groups from it.
//!
//! Letters travel as messages between two ranks, under a tag of the library's own, so that no store
//! is asked and no receive of the caller sees them. The mailbox listens from the first group on
//! that this rank helps to make; what came before waits in the engine. Letters are filed under the
//! meeting that they are for, also for one to come; those of a meeting by id that is over are
//! dropped ([`super::inbox`]). A letter has no deadline of its own: whoever comes later still reads
//! it.
//!
//! The mailbox does not keep its group. It may be called on any thread, also within a send or
//! receive of its own.

use super::definition::Definition;
use super::dispatch::{Dispatch, FIRST_LOOK, LETTERS, LOOK_AROUND, WINDOW};
use super::inbox::{Inbox, Owner};
use super::letter::{Key, Letter};
use super::parcel::{Block, LONGEST_LETTER, cut};
use crate::api::callbacks;
use crate::api::group::Group;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Rank};
use crate::base::log::Level;
use crate::transport::{Completion, Delivery, Incoming, PointToPoint, Room};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The mailbox of one rank of a group.
#[derive(Debug)]
pub(in crate::api) struct Mailbox {
    me: Weak<Self>,
    group: Weak<Group>,
    owner: Owner,
    /// Where the next piece comes.
    block: Block,
    posting: Posting,
    inbox: Mutex<Inbox>,
    /// Changes with whatever comes.
    arrivals: AtomicU64,
    letters_sent: AtomicU64,
}

/// Whether a thread is posting the receive, so that one that finds it completed need not post
/// inside of that: many letters that wait would be as many calls inside each other.
#[derive(Debug, Default)]
struct Posting(AtomicU64);

const IDLE: u64 = 0;
const POSTING: u64 = 1;
const AGAIN: u64 = 2;

impl Completion for Mailbox {
    fn complete(&self, outcome: Result<Delivery>) {
        match outcome {
            Ok(delivery) => {
                self.accept(delivery);
                self.listen();
            }
            // A rank has left in the middle of a piece: others go on. Where the group itself has
            // failed, or is gone, the next receive is refused.
            Err(error) if matches!(error.kind(), ErrorKind::PeerFailed | ErrorKind::Connection) => {
                self.listen();
            }
            Err(error) => self.stop(error),
        }
    }
}

/// The right to a name while its group lives.
#[derive(Debug)]
pub(in crate::api) struct Lease {
    mailbox: Weak<Mailbox>,
    name: String,
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(mailbox) = self.mailbox.upgrade() {
            mailbox.lock().release(&self.name);
        }
    }
}

impl Mailbox {
    /// The mailbox of a group. It hears nothing until it is opened.
    pub(in crate::api) fn new(group: &Arc<Group>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            group: Arc::downgrade(group),
            owner: Owner { group: group.name().to_owned(), rank: group.rank() },
            block: Block::new(),
            posting: Posting::default(),
            inbox: Mutex::new(Inbox::new(group.size())),
            arrivals: AtomicU64::new(0),
            letters_sent: AtomicU64::new(0),
        })
    }

    /// Begins to listen, once; again where it has stopped.
    pub(super) fn open(&self) {
        let mut inbox = self.lock();
        let is_open = std::mem::replace(&mut inbox.is_open, true);
        // Whoever takes the reason is the one to listen.
        let has_stopped = inbox.stopped.take().is_some();
        drop(inbox);
        if has_stopped || !is_open {
            self.listen();
        }
    }

    /// Why nothing comes any more. Where only too much was outstanding, it is tried again.
    fn stopped(&self) -> Option<Error> {
        let mut inbox = self.lock();
        let is_full = |error: &mut Error| error.kind() == ErrorKind::OutOfMemory;
        if inbox.stopped.take_if(is_full).is_some() {
            drop(inbox);
            self.listen();
            inbox = self.lock();
        }
        inbox.stopped.clone()
    }

    /// Drops what ranks that have left did not complete.
    pub(super) fn forget(&self, is_gone: impl Fn(Rank) -> bool) {
        self.lock().assembly.forget(is_gone);
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the next piece come into the block. There is one receive at a time, so that at most one
    /// thread comes here while another is still inside the loop.
    fn listen(&self) {
        let Posting(posting) = &self.posting;
        let swap = |from, to| {
            posting.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        if swap(POSTING, AGAIN) {
            return;
        }
        loop {
            posting.store(POSTING, Ordering::Release);
            if let Err(error) = self.post() {
                posting.store(IDLE, Ordering::Release);
                return self.stop(error);
            }
            if swap(POSTING, IDLE) {
                return;
            }
        }
    }

    fn post(&self) -> Result<()> {
        let gone = || Error::new(ErrorKind::Aborted, "the group was released");
        let (group, me) = (self.group.upgrade().ok_or_else(gone)?, self.me.upgrade());
        let (tag, dtype, deadline) = (Some(LETTERS), DataType::U8, Deadline::never());
        let message =
            Incoming { from: None, tag, dtype, into: Room::Lent(self.block.room()), deadline };
        let posted = engine(&group).and_then(|engine| {
            engine.receive(message, me.ok_or_else(gone)? as Arc<dyn Completion>)
        });
        // This may be a thread that must not be the one to end a group.
        callbacks::let_go(group);
        posted
    }

    /// Nothing comes any more, for now.
    fn stop(&self, why: Error) {
        let is_full = why.kind() == ErrorKind::OutOfMemory;
        self.lock().stopped.get_or_insert(why);
        if !is_full {
            self.arrivals.fetch_add(1, Ordering::Release);
        }
        // Else those who wait try again when they look around, and do not wake each other by that.
    }

    /// Takes a piece that has come.
    fn accept(&self, delivery: Delivery) {
        let (from, piece) = (delivery.peer, self.block.read(delivery.bytes));
        let mut inbox = self.lock();
        let Some(bytes) = inbox.assembly.add(from, &piece) else { return };
        let Some((key, letter)) = Letter::decode(&bytes) else {
            crate::log!(Level::Warn, "a letter of rank {from} cannot be read and is dropped");
            return;
        };
        let answer = inbox.file(&self.owner, from, (key, letter), bytes.len());
        drop(inbox);
        self.arrivals.fetch_add(1, Ordering::Release);
        if let (Some((key, letter)), Some(group)) = (answer, self.group.upgrade()) {
            self.answer(&group, from, &key, &letter);
            callbacks::let_go(group);
        }
    }

    /// Sends a letter to some ranks, and does not wait until all of it has gone; but there is only
    /// so much of it on its way at once.
    ///
    /// # Errors
    /// `Timeout` where it could not be handed over within the limit, the group's failure. Then it
    /// is sent in part.
    pub(super) fn send(
        &self,
        group: &Group,
        to: &[Rank],
        key: &Key,
        letter: &Letter,
        limit: &Deadline,
    ) -> Result<Arc<Dispatch>> {
        self.hand_over(group, to, (key, letter), Some(limit))
    }

    /// Sends a short letter from where nothing may wait.
    pub(super) fn answer(&self, group: &Group, to: Rank, key: &Key, letter: &Letter) {
        if let Err(error) = self.hand_over(group, &[to], (key, letter), None) {
            crate::log!(Level::Info, "answering rank {to}: {error}");
        }
    }

    fn hand_over(
        &self,
        group: &Group,
        to: &[Rank],
        (key, letter): (&Key, &Letter),
        limit: Option<&Deadline>,
    ) -> Result<Arc<Dispatch>> {
        let bytes = letter.encode(key);
        if bytes.len() > LONGEST_LETTER {
            let message = format!(
                "{} bytes are to be exchanged to make a group; {LONGEST_LETTER} are possible",
                bytes.len()
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let number = self.letters_sent.fetch_add(1, Ordering::Relaxed);
        let engine = engine(group)?;
        let dispatch = Arc::new(Dispatch::new(to));
        for block in cut(number, &bytes).map(Arc::new) {
            for &to in to {
                if let Some(limit) = limit {
                    dispatch.await_left(group, engine, WINDOW - 1, limit)?;
                }
                dispatch.post(group, engine, (to, &block), limit)?;
            }
        }
        Ok(dispatch)
    }

    /// Waits until a letter has gone, so that its writer may leave.
    pub(super) fn await_gone(
        &self,
        group: &Group,
        dispatch: &Dispatch,
        deadline: &Deadline,
    ) -> Result<()> {
        dispatch.await_left(group, engine(group)?, 0, deadline)?;
        dispatch.failure().map_or(Ok(()), Err)
    }

    /// The next letter for a meeting; `None` where the limit came first. `look_around` is called
    /// now and then.
    pub(super) fn next(
        &self,
        group: &Group,
        key: &Key,
        limit: &Deadline,
        look_around: &dyn Fn() -> Result<()>,
    ) -> Result<Option<(Rank, Letter)>> {
        let engine = engine(group)?;
        let mut slice = FIRST_LOOK;
        loop {
            let seen = self.arrivals.load(Ordering::Acquire);
            if let Some(found) = self.take(key) {
                return Ok(Some(found));
            }
            let stopped = self.stopped();
            if let Some(error) = group.failure() {
                return Err(error);
            }
            let is_over = limit.has_passed();
            let waits = |error: &Error| error.kind() == ErrorKind::OutOfMemory && !is_over;
            if let Some(error) = stopped.filter(|error| !waits(error)) {
                return Err(error);
            }
            look_around()?;
            if is_over {
                return Ok(None);
            }
            let has_come = || self.arrivals.load(Ordering::Acquire) != seen;
            engine.attend(&has_come, &limit.capped(slice));
            slice = (slice * 2).min(LOOK_AROUND);
        }
    }

    /// A letter for a meeting that is there already.
    pub(super) fn take(&self, key: &Key) -> Option<(Rank, Letter)> {
        self.lock().take(key)
    }

    /// A meeting by id is over, for this rank: what still comes for it is dropped.
    pub(super) fn end(&self, id: GroupId) {
        self.lock().end(id);
    }

    /// Begins a meeting by name.
    ///
    /// # Errors
    /// `InvalidArgument` where this rank has a group of the name, or just makes one.
    pub(super) fn begin<'a>(
        &'a self,
        group: &'a Group,
        definition: &'a Definition,
    ) -> Result<Meeting<'a>> {
        self.lock().begin(definition.name())?;
        Ok(Meeting { mailbox: self, group, definition, is_kept: false })
    }

    fn finish(&self, group: &Group, name: &str, made: Option<Definition>) {
        // No lock is held while the answers go.
        let answers = self.lock().finish(&self.owner, name, made);
        for (to, key, letter) in answers {
            self.answer(group, to, &key, &letter);
        }
    }

    /// The number of the next group of a list of ranks that has no name.
    pub(super) fn number(&self, list: [u8; 16]) -> Number {
        let number = self.lock().take_number(list);
        Number { mailbox: Weak::clone(&self.me), list, number, is_made: false }
    }
}

/// A meeting by name, which is over when this is dropped.
#[derive(Debug)]
pub(super) struct Meeting<'a> {
    mailbox: &'a Mailbox,
    group: &'a Group,
    definition: &'a Definition,
    /// It has come to a group.
    is_kept: bool,
}

impl Meeting<'_> {
    /// Keeps the name for as long as the group lives that was agreed on. Nobody else can get it in
    /// between.
    pub(super) fn keep(mut self) -> Lease {
        self.is_kept = true;
        let name = self.definition.name().to_owned();
        Lease { mailbox: Weak::clone(&self.mailbox.me), name }
    }
}

impl Drop for Meeting<'_> {
    fn drop(&mut self) {
        let kept = self.is_kept.then(|| self.definition.clone());
        self.mailbox.finish(self.group, self.definition.name(), kept);
    }
}

/// The number of a group without a name; free again unless the group is made.
#[derive(Debug)]
pub(super) struct Number {
    mailbox: Weak<Mailbox>,
    list: [u8; 16],
    number: u64,
    is_made: bool,
}

impl Number {
    pub(super) fn get(&self) -> u64 {
        self.number
    }

    /// There is the group.
    pub(super) fn use_up(mut self) {
        self.is_made = true;
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        if let Some(mailbox) = self.mailbox.upgrade() {
            mailbox.lock().settle_number(self.list, self.number, self.is_made);
        }
    }
}

/// The messages of a group.
pub(super) fn engine(group: &Group) -> Result<&dyn PointToPoint> {
    group.engine().map_err(|error| error.context("groups are made over messages between ranks"))
}
