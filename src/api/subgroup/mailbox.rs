//! Where the letters of a group's ranks arrive while they make groups from it.
//!
//! Letters travel as messages between two ranks, under a tag of the library's own, so that no store is asked and no
//! receive of the caller sees them. The mailbox listens from the first group on that this rank helps to make; what came
//! before waits in the engine. Letters are filed under the meeting that they are for, also for one to come; those of a
//! meeting by id that is over are dropped. What is filed is bounded.
//!
//! The mailbox does not keep its group. It may be called on any thread, also within a send or receive of its own.

use super::definition::{Definition, conflict};
use super::letter::{Key, Letter};
use super::parcel::{Assembly, Block, LONGEST_LETTER, cut};
use crate::api::callbacks;
use crate::api::group::Group;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::base::log::Level;
use crate::transport::{Completion, Delivery, Incoming, LARGEST_TAG, Outgoing, PointToPoint, Room};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// The tag of letters.
const LETTERS: u32 = LARGEST_TAG + 1;

/// How much is filed for meetings to come.
const MOST_FILED: usize = 2 * LONGEST_LETTER;

/// Of how many meetings by id it is known that they are over.
const MOST_ENDED: usize = 4096;

/// How long to wait in one go before looking around, at first and later.
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LOOK_AROUND: Duration = Duration::from_millis(250);

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

/// Whose mailbox it is, for letters.
#[derive(Debug)]
struct Owner {
    group: String,
    rank: Rank,
}

/// Whether a thread is posting the receive, so that one that finds it completed need not post inside of that: many
/// letters that wait would be as many calls inside each other.
#[derive(Debug, Default)]
struct Posting(AtomicU64);

const IDLE: u64 = 0;
const POSTING: u64 = 1;
const AGAIN: u64 = 2;

#[derive(Debug, Default)]
struct Inbox {
    is_open: bool,
    assembly: Assembly,
    filed: HashMap<Key, VecDeque<Filed>>,
    filed_bytes: usize,
    /// Names under which this rank just makes a group.
    meeting: HashSet<String>,
    /// Groups that their members made by themselves, and that there still are.
    live: HashMap<String, Definition>,
    /// How often a list of ranks was made a group by its members, for names.
    made: HashMap<[u8; 16], u64>,
    ended: VecDeque<GroupId>,
    /// Why nothing comes any more.
    stopped: Option<Error>,
}

#[derive(Debug)]
struct Filed {
    from: Rank,
    letter: Letter,
    bytes: usize,
}

/// Messages that are on their way.
#[derive(Debug, Default)]
pub(super) struct Dispatch {
    left: AtomicUsize,
    failed: Mutex<Option<Error>>,
}

/// One piece on its way; several ranks may be sent the same block.
#[derive(Debug)]
struct Sent {
    _block: Arc<Block>,
    dispatch: Arc<Dispatch>,
}

impl Completion for Sent {
    fn complete(&self, outcome: Result<Delivery>) {
        if let Err(error) = outcome {
            let mut failed = self.dispatch.failed.lock().unwrap_or_else(PoisonError::into_inner);
            failed.get_or_insert(error);
        }
        self.dispatch.left.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Completion for Mailbox {
    fn complete(&self, outcome: Result<Delivery>) {
        match outcome {
            Ok(delivery) => {
                self.accept(delivery);
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
            mailbox.lock().live.remove(&self.name);
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
            inbox: Mutex::default(),
            arrivals: AtomicU64::new(0),
            letters_sent: AtomicU64::new(0),
        })
    }

    /// Begins to listen, once.
    pub(super) fn open(&self) {
        if !std::mem::replace(&mut self.lock().is_open, true) {
            self.listen();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the next piece come into the block. There is one receive at a time, so that at most one thread comes here
    /// while another is still inside the loop.
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

    /// Nothing comes any more.
    fn stop(&self, why: Error) {
        self.lock().stopped.get_or_insert(why);
        self.arrivals.fetch_add(1, Ordering::Release);
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
            if let Err(error) = self.send(&group, &[from], &key, &letter) {
                crate::log!(Level::Info, "answering rank {from}: {error}");
            }
            callbacks::let_go(group);
        }
    }

    /// Sends a letter to some ranks, and does not wait until it has gone.
    pub(super) fn send(
        &self,
        group: &Group,
        to: &[Rank],
        key: &Key,
        letter: &Letter,
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
        let (tag, dtype, engine) = (LETTERS, DataType::U8, engine(group)?);
        // Not the meeting's: a message that is cut off in the middle would fail the group.
        let deadline = Deadline::after_ms(group.timeout_ms());
        let dispatch = Arc::new(Dispatch::default());
        for block in cut(number, &bytes).into_iter().map(Arc::new) {
            for &to in to {
                dispatch.left.fetch_add(1, Ordering::AcqRel);
                let bytes = block.bytes();
                let sent = Sent { _block: Arc::clone(&block), dispatch: Arc::clone(&dispatch) };
                engine.send(Outgoing { to, tag, dtype, bytes, deadline }, Arc::new(sent))?;
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
        let is_gone = || dispatch.left.load(Ordering::Acquire) == 0;
        let engine = engine(group)?;
        while !is_gone() {
            if deadline.has_passed() {
                let message = "the other ranks did not take over what this one sent them";
                return Err(Error::new(ErrorKind::Timeout, message));
            }
            engine.attend(&is_gone, &deadline.capped(LOOK_AROUND));
        }
        let mut failed = dispatch.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.take().map_or(Ok(()), Err)
    }

    /// The next letter for a meeting; `None` where the limit came first. `look_around` is called now and then.
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
            if let Some(error) = group.failure().or_else(|| self.lock().stopped.clone()) {
                return Err(error);
            }
            look_around()?;
            if limit.has_passed() {
                return Ok(None);
            }
            let has_come = || self.arrivals.load(Ordering::Acquire) != seen;
            engine.attend(&has_come, &limit.capped(slice));
            slice = (slice * 2).min(LOOK_AROUND);
        }
    }

    /// A letter for a meeting that is there already.
    pub(super) fn take(&self, key: &Key) -> Option<(Rank, Letter)> {
        let mut inbox = self.lock();
        let Filed { from, letter, bytes } = inbox.filed.get_mut(key)?.pop_front()?;
        inbox.filed_bytes -= bytes;
        Some((from, letter))
    }

    /// A meeting by id is over: what still comes for it is dropped.
    pub(super) fn end(&self, id: GroupId) {
        let mut inbox = self.lock();
        inbox.drop_all(&Key::Id(id));
        inbox.ended.push_back(id);
        if inbox.ended.len() > MOST_ENDED {
            inbox.ended.pop_front();
        }
    }

    /// Begins a meeting by name.
    ///
    /// # Errors
    /// `InvalidArgument` where this rank has a group of the name, or just makes one.
    pub(super) fn begin(&self, name: &str) -> Result<()> {
        let mut inbox = self.lock();
        let why = if inbox.live.contains_key(name) {
            "this rank is in a group of that name, which has not been released"
        } else if inbox.meeting.contains(name) {
            "another thread of this rank is making a group of that name"
        } else {
            inbox.meeting.insert(name.to_owned());
            return Ok(());
        };
        Err(Error::invalid(format!("group name \"{name}\": {why}")))
    }

    /// A meeting by name is over. What came for it and was not read is sorted as if it came now.
    pub(super) fn finish(&self, name: &str) {
        let mut inbox = self.lock();
        inbox.meeting.remove(name);
        let key = Key::Name(name.to_owned());
        let rest = inbox.filed.remove(&key).unwrap_or_default();
        for Filed { from, letter, bytes } in rest {
            inbox.filed_bytes -= bytes;
            // Nobody waits for an answer: those who do are told by this attempt.
            drop(inbox.file(&self.owner, from, (key.clone(), letter), bytes));
        }
    }

    /// Keeps a name for as long as its group lives.
    pub(super) fn lease(&self, definition: &Definition) -> Lease {
        let name = definition.name().to_owned();
        self.lock().live.insert(name.clone(), definition.clone());
        Lease { mailbox: Weak::clone(&self.me), name }
    }

    /// How often, this time included, a list of ranks was made a group by its members.
    pub(super) fn count(&self, ranks: [u8; 16]) -> u64 {
        let mut inbox = self.lock();
        let count = inbox.made.entry(ranks).or_default();
        *count += 1;
        *count
    }
}

impl Inbox {
    /// Files a letter; or gives what is to be answered at once, where nobody will read it.
    fn file(
        &mut self,
        owner: &Owner,
        from: Rank,
        (key, letter): (Key, Letter),
        bytes: usize,
    ) -> Option<(Key, Letter)> {
        match &key {
            Key::Id(id) if self.ended.contains(id) => return None,
            Key::Name(name) if !self.meeting.contains(name) => {
                let name = name.clone();
                match self.sort(owner, from, &name, &letter) {
                    Sorted::Keep => {}
                    Sorted::Drop => return None,
                    Sorted::Answer(letter) => return Some((key, letter)),
                    Sorted::Refuse(id) => return Some(too_late(id, owner.rank)),
                }
            }
            _ => {}
        }
        if self.filed_bytes + bytes > MOST_FILED {
            let text = "too many letters for groups to come";
            crate::log!(Level::Warn, "{text}; one of rank {from} is dropped");
            return None;
        }
        self.filed_bytes += bytes;
        self.filed.entry(key).or_default().push_back(Filed { from, letter, bytes });
        None
    }

    /// What becomes of a letter for a meeting by name that this rank does not hold just now.
    fn sort(&mut self, owner: &Owner, from: Rank, name: &str, letter: &Letter) -> Sorted {
        match letter {
            Letter::Hello { nonce, definition, .. } => {
                // Its writer has begun anew.
                self.forget(from, name, |_| true);
                match self.live.get(name).filter(|live| *live != definition) {
                    None => Sorted::Keep,
                    Some(live) => {
                        let claims = [(owner.rank, live.clone()), (from, definition.clone())];
                        let why = conflict(&owner.group, &claims);
                        let (of, to, echo) = (Nonce::default(), Some(*nonce), false);
                        Sorted::Answer(Letter::Fail { of, to, echo, why })
                    }
                }
            }
            // A conflict is something to know for whoever comes late, unless this rank has come, or knows. Other
            // attempts that came to nothing do not concern it.
            Letter::Fail { of, to: None, echo: false, why }
                if why.kind() == ErrorKind::Mismatch && self.has_hello(from, name, *of) =>
            {
                Sorted::Keep
            }
            Letter::Fail { of, .. } => {
                self.forget(from, name, |nonce| nonce == *of);
                Sorted::Drop
            }
            Letter::Go { id, .. } => Sorted::Refuse(*id),
            _ => Sorted::Drop,
        }
    }

    fn has_hello(&self, from: Rank, name: &str, of: Nonce) -> bool {
        let filed = self.filed.get(&Key::Name(name.to_owned()));
        filed.into_iter().flatten().any(|filed| {
            filed.from == from && matches!(filed.letter, Letter::Hello { nonce, .. } if nonce == of)
        })
    }

    /// Drops what one rank has written in some of its attempts.
    fn forget(&mut self, from: Rank, name: &str, which: impl Fn(Nonce) -> bool) {
        let key = Key::Name(name.to_owned());
        let Some(filed) = self.filed.get_mut(&key) else { return };
        let bytes = &mut self.filed_bytes;
        filed.retain(|filed| {
            let of = match filed.letter {
                Letter::Hello { nonce, .. } => nonce,
                Letter::Fail { of, .. } => of,
                _ => return true,
            };
            let is_kept = filed.from != from || !which(of);
            *bytes -= if is_kept { 0 } else { filed.bytes };
            is_kept
        });
        if filed.is_empty() {
            self.filed.remove(&key);
        }
    }

    fn drop_all(&mut self, key: &Key) {
        for filed in self.filed.remove(key).into_iter().flatten() {
            self.filed_bytes -= filed.bytes;
        }
    }
}

/// What becomes of a letter that nobody waits for.
enum Sorted {
    /// It is for a meeting to come.
    Keep,
    /// It is for one that is over.
    Drop,
    /// It is answered.
    Answer(Letter),
    /// It takes this rank for a member of a group that it gave up.
    Refuse(GroupId),
}

/// That a rank has given up before it heard of the group that it was to be in.
pub(super) fn too_late(id: GroupId, rank: Rank) -> (Key, Letter) {
    let text = format!("rank {rank} of the parent had given up making the group");
    (Key::Id(id), Letter::GaveUp(Error::new(ErrorKind::PeerFailed, text)))
}

/// The messages of a group.
pub(super) fn engine(group: &Group) -> Result<&dyn PointToPoint> {
    group.engine().map_err(|error| error.context("groups are made over messages between ranks"))
}
