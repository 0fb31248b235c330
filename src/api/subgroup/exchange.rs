//! How the members of a new group tell each other what they need to meet: over messages of the
//! group that it is made from, without the store.
//!
//! Each member sends its part of a phase to the first one, which sends all of them back: two hops.
//! Whoever gives up tells the first member, which tells the others. The first member waits for
//! missing ones until the deadline and then names them; the others wait a moment longer, to hear
//! that.

use super::definition::named;
use super::letter::{Key, Letter};
use super::mailbox::{Mailbox, engine};
use crate::api::group::Group;
use crate::backend::Exchange;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Rank};
use crate::base::log::Level;
use crate::process::this;
use crate::transport::pulse::PARTING;
use crate::wait::watch::{Seconds, Watch};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// How much longer than the first member the others wait.
pub(super) const HEARING: Duration = Duration::from_millis(500);

/// The exchange between the members of a group that has an id.
#[derive(Debug)]
pub(super) struct MemberExchange<'a> {
    parent: &'a Group,
    mailbox: Arc<Mailbox>,
    /// Ranks in the parent.
    members: &'a [Rank],
    /// Which of them is this one.
    me: Rank,
    id: GroupId,
    name: &'a str,
    deadline: &'a Deadline,
    heard: RefCell<Heard>,
    partings: Partings,
}

#[derive(Debug, Default)]
struct Heard {
    /// By phase and member.
    parts: HashMap<String, HashMap<Rank, Vec<u8>>>,
    all: HashMap<String, Vec<Vec<u8>>>,
    failure: Option<Error>,
}

impl<'a> MemberExchange<'a> {
    pub(super) fn new(
        parent: &'a Group,
        mailbox: Arc<Mailbox>,
        members: &'a [Rank],
        me: Rank,
        (id, name): (GroupId, &'a str),
        deadline: &'a Deadline,
    ) -> Self {
        let (heard, partings) = (RefCell::default(), Partings::default());
        Self { parent, mailbox, members, me, id, name, deadline, heard, partings }
    }

    fn key(&self) -> Key {
        Key::Id(self.id)
    }

    fn others(&self) -> Vec<Rank> {
        let own = self.members[self.me];
        self.members.iter().copied().filter(|&rank| rank != own).collect()
    }

    fn note(&self, from: Rank, letter: Letter) {
        let mut heard = self.heard.borrow_mut();
        let Some(member) = self.members.iter().position(|&rank| rank == from) else { return };
        match letter {
            Letter::Part { phase, bytes } if self.me == 0 => {
                heard.parts.entry(phase).or_default().insert(member, bytes);
            }
            Letter::All { phase, list } if member == 0 && list.len() == self.members.len() => {
                heard.all.insert(phase, list);
            }
            Letter::GaveUp(why) => drop(heard.failure.get_or_insert(why)),
            _ => crate::log!(Level::Warn, "a letter of rank {from} fits nothing and is dropped"),
        }
    }

    /// Waits until `ready` takes something out of what was heard; `None` where the limit came
    /// first. Those who are `missing`, in the new group, are waited for.
    fn hear<T>(
        &self,
        limit: &Deadline,
        over: &dyn Fn() -> Option<Error>,
        missing: &dyn Fn(&Heard) -> Vec<Rank>,
        ready: &dyn Fn(&mut Heard) -> Option<T>,
    ) -> Result<Option<T>> {
        let watch = RefCell::new(Watch::default());
        loop {
            if let Some(found) = ready(&mut self.heard.borrow_mut()) {
                return Ok(Some(found));
            }
            if let Some(why) = self.heard.borrow().failure.clone() {
                return Err(why);
            }
            let absent = missing(&self.heard.borrow());
            let absent: Vec<Rank> = absent.into_iter().map(|member| self.members[member]).collect();
            let look_around = || {
                watch.borrow_mut().look(|lasted| self.tell_wait(&absent, lasted));
                match over() {
                    Some(why) => Err(why),
                    None => self.partings.check(self.parent, &absent),
                }
            };
            match self.mailbox.next(self.parent, &self.key(), limit, &look_around)? {
                Some((from, letter)) => self.note(from, letter),
                None => return Ok(None),
            }
        }
    }

    /// A long wait for some ranks of the parent, for the log.
    #[cold]
    fn tell_wait(&self, absent: &[Rank], lasted: Seconds) {
        crate::log!(
            Level::Warn,
            "group {}: {} of group {} has waited {lasted} for {} of it to come",
            self.name,
            self.parent.place().name,
            self.parent.name(),
            named(absent)
        );
    }

    /// The first member's part of a phase.
    fn gather(
        &self,
        phase: &str,
        mine: &[u8],
        over: &dyn Fn() -> Option<Error>,
    ) -> Result<Vec<Vec<u8>>> {
        let size = self.members.len();
        let own = Letter::Part { phase: phase.to_owned(), bytes: mine.to_vec() };
        self.note(self.members[0], own);
        let missing = |heard: &Heard| {
            let here =
                |member: &Rank| heard.parts.get(phase).is_some_and(|p| p.contains_key(member));
            (0..size).filter(|member| !here(member)).collect()
        };
        let ready = |heard: &mut Heard| {
            let parts = heard.parts.get(phase).filter(|parts| parts.len() == size)?;
            (0..size).map(|member| parts.get(&member).cloned()).collect::<Option<Vec<_>>>()
        };
        let Some(list) = self.hear(self.deadline, over, &missing, &ready)? else {
            return Err(self.late(phase, &missing(&self.heard.borrow())));
        };
        self.heard.borrow_mut().parts.remove(phase);
        let all = Letter::All { phase: phase.to_owned(), list };
        let sent =
            self.mailbox.send(self.parent, &self.others(), &self.key(), &all, self.deadline)?;
        self.mailbox.await_gone(self.parent, &sent, self.deadline)?;
        let Letter::All { list, .. } = all else { return Ok(Vec::new()) };
        Ok(list)
    }

    /// The part of every other member.
    fn contribute(
        &self,
        phase: &str,
        mine: &[u8],
        over: &dyn Fn() -> Option<Error>,
    ) -> Result<Vec<Vec<u8>>> {
        let part = Letter::Part { phase: phase.to_owned(), bytes: mine.to_vec() };
        let limit = Deadline::after(self.deadline.left() + HEARING);
        drop(self.mailbox.send(self.parent, &self.members[..1], &self.key(), &part, &limit)?);
        let found = self.hear(&limit, over, &|_| vec![0], &|heard| heard.all.remove(phase))?;
        found.ok_or_else(|| self.late(phase, &[0]))
    }

    fn late(&self, phase: &str, missing: &[Rank]) -> Error {
        let in_parent: Vec<Rank> = missing.iter().map(|&member| self.members[member]).collect();
        let message = format!(
            "rank {} of the new group {} waited {} ms for {} ({} of group {}) to finish the phase \"{phase}\" \
             of starting it",
            self.me,
            self.name,
            self.deadline.elapsed().as_millis(),
            named(missing),
            named(&in_parent),
            self.parent.name(),
        );
        Error::new(ErrorKind::Timeout, message)
    }

    /// Hears what is there already.
    fn listen(&self) {
        while let Some((from, letter)) = self.mailbox.take(&self.key()) {
            self.note(from, letter);
        }
    }
}

impl Drop for MemberExchange<'_> {
    fn drop(&mut self) {
        self.mailbox.end(self.id);
    }
}

impl Exchange for MemberExchange<'_> {
    fn all(
        &self,
        phase: &str,
        mine: &[u8],
        over: &dyn Fn() -> Option<Error>,
    ) -> Result<Vec<Vec<u8>>> {
        if self.me == 0 {
            self.gather(phase, mine, over)
        } else {
            self.contribute(phase, mine, over)
        }
    }

    fn give_up(&self, why: &Error) {
        self.listen();
        let heard = self.heard.borrow().failure.clone();
        if heard.is_some() && self.me != 0 {
            // The first member has said so, or knows.
            return;
        }
        let own = || {
            let kind = match why.kind() {
                kind @ (ErrorKind::Timeout | ErrorKind::Mismatch) => kind,
                _ => ErrorKind::PeerFailed,
            };
            let text = format!(
                "rank {} (pid {}, host {}) gave up starting group {}: {why}",
                self.me,
                this::pid(),
                this::host_name(),
                self.name
            );
            Error::new(kind, text)
        };
        let letter = Letter::GaveUp(heard.unwrap_or_else(own));
        let to = if self.me == 0 { self.others() } else { vec![self.members[0]] };
        let limit = Deadline::after(HEARING);
        let told = self.mailbox.send(self.parent, &to, &self.key(), &letter, &limit);
        let told = told.and_then(|sent| self.mailbox.await_gone(self.parent, &sent, &limit));
        if let Err(error) = told {
            crate::log!(Level::Info, "telling the other ranks why this one gave up: {error}");
        }
    }

    fn given_up(&self) -> Option<Error> {
        self.listen();
        self.heard.borrow().failure.clone().or_else(|| self.parent.failure())
    }
}

/// Ranks that have left the parent and will not come.
#[derive(Debug, Default)]
pub(super) struct Partings {
    since: Cell<Option<Deadline>>,
}

impl Partings {
    /// Whether all who are waited for can still come.
    ///
    /// # Errors
    /// `PeerFailed` naming one that has left.
    pub(super) fn check(&self, parent: &Group, awaited: &[Rank]) -> Result<()> {
        let engine = engine(parent)?;
        let gone = awaited.iter().find_map(|&rank| Some((rank, engine.departed(rank)?)));
        let Some((rank, why)) = gone else {
            self.since.set(None);
            return Ok(());
        };
        let since = self.since.get().unwrap_or_else(|| Deadline::after(PARTING));
        self.since.set(Some(since));
        if !since.has_passed() {
            return Ok(());
        }
        let message = format!("rank {rank} of group {} did not come: {why}", parent.name());
        Err(Error::new(ErrorKind::PeerFailed, message).with_culprit(rank))
    }
}
