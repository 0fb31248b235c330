//! Who is there: before a collective, all ranks tell the first one that they have come, and it
//! tells them to go on. So at the deadline all who are missing are named at once, whatever
//! algorithm would have waited for whom.
//!
//! Whether a group does this was agreed when it was made (rank 0's level counted), so that all of
//! its ranks do or none. It happens in the turn of the collective, on messages under a tag of the
//! library's own, in the order of turns. Whatever goes wrong fails the group, so that nothing that
//! is left over is ever read.
//!
//! Every collective waits for all ranks then, also a collective in which a root could run ahead.
//! The messages contain the label of the call, so that labels are compared also over back ends that
//! compare nothing themselves.

use crate::api::group::Group;
use crate::api::verdict::names;
use crate::backend::lent::Lent;
use crate::base::buffer::Src;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::label::{LABEL_BYTES, Label};
use crate::base::log::Level;
use crate::transport::{
    Completion, Delivery, Descriptor, Incoming, LARGEST_TAG, Outgoing, PointToPoint, Room,
};
use crate::wait::watch::Watch;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What both directions go under.
const TAG: u32 = LARGEST_TAG + 3;

/// The rank that names the missing.
const FIRST: Rank = 0;

/// A message: the number of the operation, and its label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Arrival {
    sequence: u64,
    label: Label,
}

impl Arrival {
    const BYTES: usize = 8 + LABEL_BYTES;

    fn of(descriptor: &Descriptor) -> Self {
        Self { sequence: descriptor.sequence, label: descriptor.label }
    }

    fn encode(self) -> Vec<u8> {
        let words = [self.sequence].into_iter().chain(*self.label.words());
        words.flat_map(u64::to_le_bytes).collect()
    }

    /// The inverse; `None` for bytes that are no arrival.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let (words, _) = bytes.as_chunks::<8>();
        let word = |at: usize| u64::from_le_bytes(words[at]);
        let label = Label::from_words(std::array::from_fn(|at| word(at + 1)))?;
        Some(Self { sequence: word(0), label })
    }
}

/// How much longer than the first rank the others wait.
const GRACE: Duration = Duration::from_millis(500);

/// How often a wait looks whether the group has failed.
const LOOK_AROUND: Duration = Duration::from_millis(100);

/// What has come, and what has gone.
#[derive(Debug, Default)]
struct Mail {
    heard: Mutex<HashMap<Rank, Result<Arrival>>>,
    /// Messages of this rank that are on their way.
    unsent: AtomicUsize,
    /// Grows with whatever happens.
    news: AtomicU64,
}

impl Mail {
    fn heard(&self) -> MutexGuard<'_, HashMap<Rank, Result<Arrival>>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, from: Rank, word: Result<Arrival>) {
        self.heard().insert(from, word);
        self.news.fetch_add(1, Ordering::Release);
    }

    fn gone(&self) {
        self.unsent.fetch_sub(1, Ordering::AcqRel);
        self.news.fetch_add(1, Ordering::Release);
    }
}

/// A posted receive.
#[derive(Debug)]
struct Awaited {
    mail: Arc<Mail>,
    from: Rank,
}

impl Completion for Awaited {
    fn complete(&self, outcome: Result<Delivery>) {
        let silent = || Error::internal("a message came without its bytes");
        self.mail.hear(self.from, outcome.and_then(|_| Err(silent())));
    }

    fn complete_grown(&self, _: Delivery, bytes: Vec<u8>) {
        let other = || Error::internal("a message that reports no arrival came");
        self.mail.hear(self.from, Arrival::decode(&bytes).ok_or_else(other));
    }
}

/// A message on its way, which keeps its memory.
#[derive(Debug)]
struct Sent {
    mail: Arc<Mail>,
    memory: Lent,
}

impl Sent {
    fn bytes(&self) -> Src<'static> {
        self.memory.bytes()
    }
}

impl Completion for Sent {
    fn complete(&self, _: Result<Delivery>) {
        self.mail.gone();
    }
}

/// The part of one rank, before one operation.
struct Presence<'a> {
    group: &'a Group,
    engine: &'a dyn PointToPoint,
    descriptor: &'a Descriptor,
    deadline: &'a Deadline,
    mail: Arc<Mail>,
}

impl Group {
    /// Waits until all ranks have come to an operation, where the group does that.
    ///
    /// # Errors
    /// `Timeout` with all who are missing, `PeerFailed`, `Mismatch`; the group has failed.
    pub(in crate::api) fn await_presence(
        &self,
        descriptor: &Descriptor,
        deadline: &Deadline,
    ) -> Result<()> {
        if !self.looks_who_is_there || self.size() == 1 {
            return Ok(());
        }
        let (group, mail) = (self, Arc::default());
        let presence = Presence { group, engine: self.engine()?, descriptor, deadline, mail };
        let outcome = if self.rank() == FIRST { presence.lead() } else { presence.follow() };
        outcome.map_err(|error| self.fail_with(error))
    }
}

impl Presence<'_> {
    /// The first rank's part.
    fn lead(&self) -> Result<()> {
        let others: Vec<Rank> = (0..self.group.size()).filter(|&rank| rank != FIRST).collect();
        others.iter().try_for_each(|&rank| self.post(rank))?;
        self.await_words(&others, self.deadline)?;
        others.iter().try_for_each(|&rank| self.say(rank))?;
        // What has not gone would be lost, were this the last that this rank does in the group.
        let limit = Deadline::after(self.deadline.left() + GRACE);
        let is_over = || Ok(self.mail.unsent.load(Ordering::Acquire) == 0);
        if self.wait(&limit, &others, is_over)? { Ok(()) } else { Err(self.late(&others)) }
    }

    /// Every other rank's part.
    fn follow(&self) -> Result<()> {
        self.post(FIRST)?;
        self.say(FIRST)?;
        self.await_words(&[FIRST], &Deadline::after(self.deadline.left() + GRACE))
    }

    fn await_words(&self, from: &[Rank], limit: &Deadline) -> Result<()> {
        let is_over = || {
            let heard = self.mail.heard();
            for (&rank, word) in heard.iter() {
                self.check(rank, word.clone()?)?;
            }
            Ok(heard.len() == from.len())
        };
        if self.wait(limit, from, is_over)? {
            return Ok(());
        }
        Err(self.late(&self.missing(from)))
    }

    fn missing(&self, of: &[Rank]) -> Vec<Rank> {
        let heard = self.mail.heard();
        of.iter().copied().filter(|rank| !heard.contains_key(rank)).collect()
    }

    /// Waits until it is over; false where the limit came first.
    fn wait(
        &self,
        limit: &Deadline,
        from: &[Rank],
        is_over: impl Fn() -> Result<bool>,
    ) -> Result<bool> {
        let mut watch = Watch::default();
        loop {
            let seen = self.mail.news.load(Ordering::Acquire);
            if let Some(error) = self.group.failure() {
                return Err(error);
            }
            if is_over()? {
                return Ok(true);
            }
            if limit.has_passed() {
                return Ok(false);
            }
            watch.look(|lasted| {
                crate::log!(
                    Level::Warn,
                    "{} of group {}: {} has waited {lasted} for {}",
                    self.descriptor,
                    self.group.name(),
                    self.group.place().name,
                    self.named(&self.missing(from))
                );
            });
            let has_come = || self.mail.news.load(Ordering::Acquire) != seen;
            self.engine.attend(&has_come, &limit.capped(LOOK_AROUND));
        }
    }

    fn post(&self, from: Rank) -> Result<()> {
        let (tag, dtype, deadline) = (Some(TAG), DataType::U8, Deadline::never());
        let into = Room::Grows { most: Arrival::BYTES };
        let message = Incoming { from: Some(from), tag, dtype, into, deadline };
        self.engine.receive(message, Arc::new(Awaited { mail: Arc::clone(&self.mail), from }))
    }

    fn say(&self, to: Rank) -> Result<()> {
        let memory = Lent::copy_of(&Arrival::of(self.descriptor).encode());
        let sent = Arc::new(Sent { mail: Arc::clone(&self.mail), memory });
        let (tag, dtype, deadline) = (TAG, DataType::U8, Deadline::never());
        let message =
            Outgoing { to, tag, dtype, bytes: sent.bytes(), deadline, synchronous: false };
        self.mail.unsent.fetch_add(1, Ordering::AcqRel);
        self.engine.send(message, sent).inspect_err(|_| self.mail.gone())
    }

    fn check(&self, rank: Rank, arrival: Arrival) -> Result<()> {
        if arrival == Arrival::of(self.descriptor) {
            return Ok(());
        }
        let (me, mine) = (&self.group.place().name, self.descriptor.sequence);
        let message = if arrival.sequence == mine {
            let label = match arrival.label.is_none() {
                true => "no label".to_owned(),
                false => format!("the label {}", arrival.label),
            };
            let (called, other) = (self.descriptor, names(&[rank], self.group.backend.places()));
            format!(
                "ranks called different operations: {me} called {called}, but the call of {other} has {label}"
            )
        } else {
            format!(
                "ranks are out of step: {me} is at operation #{mine}, {}, at #{}",
                self.named(&[rank]),
                arrival.sequence
            )
        };
        Err(Error::new(ErrorKind::Mismatch, message).with_culprit(rank))
    }

    /// Who ranks are, and what each did last.
    fn named(&self, ranks: &[Rank]) -> String {
        let backend = &self.group.backend;
        let named = |&rank: &Rank| {
            let name = names(&[rank], backend.places());
            backend.last_seen(rank).map_or(name.clone(), |last| format!("{name}, which {last}"))
        };
        ranks.iter().map(named).collect::<Vec<_>>().join("; ")
    }

    fn late(&self, missing: &[Rank]) -> Error {
        let message = format!(
            "{} of {} timed out after {} ms (allowed: {} ms) waiting for {}",
            self.descriptor,
            self.group.place().name,
            self.deadline.elapsed().as_millis(),
            self.deadline.allowed().as_millis(),
            self.named(missing)
        );
        let error = Error::new(ErrorKind::Timeout, message);
        missing.first().map_or(error.clone(), |&rank| error.with_culprit(rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrival_survives_its_bytes_and_the_rest_is_refused() {
        for text in ["", "layer3.weight", "0123456789abcdef0123456789abcdef"] {
            let arrival = Arrival { sequence: 7, label: Label::new(text).unwrap() };
            let mut bytes = arrival.encode();
            assert_eq!(Arrival::decode(&bytes), Some(arrival));
            bytes[8] = 0xff;
            assert_eq!(Arrival::decode(&bytes), None);
        }
        for bad in [&[][..], &[0; 8], &[0; 39], &[0; 41]] {
            assert_eq!(Arrival::decode(bad), None);
        }
    }
}
