//! How the members of the new group tell each other what their back end needs to meet: over their
//! links to the leader, which is the new rank 0. Each sends its part of a phase there and gets all
//! of them back.
//!
//! The end of a link ends the exchange: whoever was lost, the members that remain agree on another
//! group.

use super::Failed;
use super::words::Word;
use crate::backend::Exchange;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::Level;
use crate::transport::reunion::{Link, Session};
use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

/// The phase behind those of the back end.
pub(super) const SEAL: &str = "ready";

/// How much longer than the leader the others wait.
const HEARING: Duration = Duration::from_millis(500);

/// How long to wait in one go before asking whether there is a reason not to.
const LOOK_AROUND: Duration = Duration::from_millis(100);

/// The exchange between members that have agreed.
#[derive(Debug)]
pub(super) struct LinkExchange<'a> {
    session: &'a Session<'a>,
    /// Ranks in the group that has failed.
    members: &'a [Rank],
    /// Which of them is this one.
    me: Rank,
    pub(super) links: RefCell<Vec<(Rank, Link)>>,
    limit: Deadline,
    heard: RefCell<Heard>,
}

#[derive(Debug, Default)]
struct Heard {
    /// By phase and member.
    parts: HashMap<String, HashMap<Rank, Vec<u8>>>,
    all: HashMap<String, Vec<Vec<u8>>>,
    failure: Option<Error>,
}

impl<'a> LinkExchange<'a> {
    pub(super) fn new(
        session: &'a Session<'a>,
        members: &'a [Rank],
        me: Rank,
        links: Vec<(Rank, Link)>,
        limit: &Deadline,
    ) -> Self {
        // The leader says who is missing.
        let limit = if me == 0 { *limit } else { Deadline::after(limit.left() + HEARING) };
        Self { session, members, me, links: RefCell::new(links), limit, heard: RefCell::default() }
    }

    /// Whether it is worth trying again without whoever was lost.
    pub(super) fn judge(&self, error: Error) -> Failed {
        let is_of_others = self.heard.borrow().failure.is_some()
            || matches!(
                error.kind(),
                ErrorKind::PeerFailed
                    | ErrorKind::Connection
                    | ErrorKind::Timeout
                    | ErrorKind::Aborted
            );
        if is_of_others { Failed::Round(error) } else { Failed::Here(error) }
    }

    /// Hears what is there already.
    fn listen(&self) {
        let heard = &mut *self.heard.borrow_mut();
        for (from, link) in self.links.borrow_mut().iter_mut() {
            loop {
                match link.poll() {
                    Ok(Some(frame)) => self.note(heard, *from, Word::decode(&frame)),
                    Ok(None) => break,
                    Err(cause) => {
                        let name = self.session.name(self.members[*from]);
                        let message =
                            format!("{name} was lost while the new group was made: {cause}");
                        let error = Error::new(ErrorKind::PeerFailed, message);
                        heard.failure.get_or_insert(error);
                        break;
                    }
                }
            }
        }
    }

    fn note(&self, heard: &mut Heard, from: Rank, word: Option<Word>) {
        match word {
            Some(Word::Part { phase, bytes }) if self.me == 0 => {
                heard.parts.entry(phase).or_default().insert(from, bytes);
            }
            Some(Word::All { phase, list }) if list.len() == self.members.len() => {
                heard.all.insert(phase, list);
            }
            Some(Word::GaveUp(why)) => drop(heard.failure.get_or_insert(why)),
            _ => crate::log!(Level::Warn, "a word of member {from} fits nothing and is dropped"),
        }
    }

    /// Waits until `ready` takes something out of what was heard.
    fn hear<T>(
        &self,
        over: &dyn Fn() -> Option<Error>,
        missing: &dyn Fn(&Heard) -> Vec<Rank>,
        ready: &dyn Fn(&mut Heard) -> Option<T>,
    ) -> Result<T> {
        loop {
            self.listen();
            if let Some(found) = ready(&mut self.heard.borrow_mut()) {
                return Ok(found);
            }
            if let Some(why) = self.heard.borrow().failure.clone().or_else(over) {
                return Err(why);
            }
            if self.limit.has_passed() {
                return Err(self.late(&missing(&self.heard.borrow())));
            }
            let slice = self.limit.capped(LOOK_AROUND);
            Session::attend(self.links.borrow().iter().map(|(_, link)| link), &slice)?;
        }
    }

    /// Tells the leader that this member's group is ready, and waits for its word that those of all
    /// are.
    pub(super) fn seal(&self) -> Result<()> {
        let over = || None;
        if self.me != 0 {
            return self.all(SEAL, b"", &over).map(drop);
        }
        let list = self.collect(SEAL, b"", &over).inspect_err(|error| self.give_up(error))?;
        let bytes = Word::All { phase: SEAL.to_owned(), list }.encode();
        // It is there: whoever does not hear so here hears it of another member.
        self.links.borrow().iter().for_each(|(_, link)| drop(link.send(&bytes, &self.limit)));
        Ok(())
    }

    /// What all members contribute to a phase, as the leader hears it.
    pub(super) fn collect(
        &self,
        phase: &str,
        mine: &[u8],
        over: &dyn Fn() -> Option<Error>,
    ) -> Result<Vec<Vec<u8>>> {
        let size = self.members.len();
        let part = Word::Part { phase: phase.to_owned(), bytes: mine.to_vec() };
        self.note(&mut self.heard.borrow_mut(), 0, Some(part));
        let missing = |heard: &Heard| {
            let here = |member: &Rank| {
                heard.parts.get(phase).is_some_and(|parts| parts.contains_key(member))
            };
            (0..size).filter(|member| !here(member)).collect()
        };
        let ready = |heard: &mut Heard| {
            let parts = heard.parts.get(phase).filter(|parts| parts.len() == size)?;
            (0..size).map(|member| parts.get(&member).cloned()).collect::<Option<Vec<_>>>()
        };
        let list = self.hear(over, &missing, &ready)?;
        self.heard.borrow_mut().parts.remove(phase);
        Ok(list)
    }

    fn say(&self, word: &Word, limit: &Deadline) -> Result<()> {
        let bytes = word.encode();
        self.links.borrow().iter().try_for_each(|(_, link)| link.send(&bytes, limit))
    }

    fn late(&self, missing: &[Rank]) -> Error {
        let names = missing.iter().map(|&member| self.session.name(self.members[member]));
        let names: Vec<String> = names.map(ToString::to_string).collect();
        let message = format!(
            "{} did not go on within {} ms while the new group was made",
            names.join(", "),
            self.limit.allowed().as_millis()
        );
        Error::new(ErrorKind::Timeout, message)
    }
}

impl Exchange for LinkExchange<'_> {
    fn all(
        &self,
        phase: &str,
        mine: &[u8],
        over: &dyn Fn() -> Option<Error>,
    ) -> Result<Vec<Vec<u8>>> {
        if self.me != 0 {
            let part = Word::Part { phase: phase.to_owned(), bytes: mine.to_vec() };
            self.say(&part, &self.limit)?;
            return self.hear(over, &|_| vec![0], &|heard| heard.all.remove(phase));
        }
        let list = self.collect(phase, mine, over)?;
        let all = Word::All { phase: phase.to_owned(), list };
        self.say(&all, &self.limit)?;
        let Word::All { list, .. } = all else { return Ok(Vec::new()) };
        Ok(list)
    }

    fn give_up(&self, why: &Error) {
        let name = self.session.name(self.members[self.me]);
        let why = Error::new(why.kind(), format!("{name} gave up making the new group: {why}"));
        if let Err(error) = self.say(&Word::GaveUp(why), &Deadline::after(HEARING)) {
            crate::log!(Level::Info, "telling the other ranks why this one gave up: {error}");
        }
    }

    fn given_up(&self) -> Option<Error> {
        self.listen();
        self.heard.borrow().failure.clone()
    }
}
