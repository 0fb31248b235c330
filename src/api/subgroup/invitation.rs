//! How the members of a group find each other by its name alone, while the other ranks of the parent do not know.
//!
//! Every member says hello to the first member, and that one to every other, each with what it was told of the group and
//! a fresh nonce. So whoever is in the list of another hears how that one defines the group, also where the two have
//! different first members. Once all have come, the first member sends each of them the new group's id.
//!
//! Whoever finds a conflict, or gives up, says so to those who have heard its hello and to whom it disagrees with; the
//! first member says it to all. A name may be used again, so that what an earlier attempt has left over must not be
//! taken for part of this one:
//! * an id counts only with the nonce of this attempt;
//! * a failure counts with the nonce of this attempt, or if the hello of the same writer and attempt was not heard by an
//!   earlier attempt of this rank: then it is for whoever comes late;
//! * a failure that its reader has told first only takes back the writer's hello;
//! * what comes while there is no attempt is sorted by the mailbox, in the same way.
//!
//! What slips through makes an attempt fail. Members only ever form a group that they have defined alike.

use super::definition::{Definition, conflict, named};
use super::exchange::{HEARING, Partings};
use super::letter::{Key, Letter};
use super::mailbox::Mailbox;
use crate::api::group::Group;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::base::log::Level;
use crate::process::this;
use std::collections::HashMap;

/// One attempt to make a group by its members.
#[derive(Debug)]
pub(super) struct Invitation<'a> {
    parent: &'a Group,
    mailbox: &'a Mailbox,
    definition: &'a Definition,
    key: Key,
    nonce: Nonce,
    deadline: &'a Deadline,
    /// Who has said hello, and in which attempt.
    present: HashMap<Rank, Nonce>,
    partings: Partings,
}

/// Why an attempt has failed, and who knows already.
struct Failure {
    why: Error,
    /// Whose definition is another one.
    opponent: Option<(Rank, Nonce)>,
    /// The first member has said it.
    is_echo: bool,
}

impl From<Error> for Failure {
    fn from(why: Error) -> Self {
        Self { why, opponent: None, is_echo: false }
    }
}

/// Meets the other members; the id of the new group.
///
/// # Errors
/// `Mismatch` with both definitions, `Timeout` naming who did not come, `PeerFailed`, `InvalidArgument` where this rank
/// has a group of the name.
pub(super) fn meet(
    parent: &Group,
    mailbox: &Mailbox,
    definition: &Definition,
    deadline: &Deadline,
) -> Result<GroupId> {
    let nonce = this::fresh_nonce()?;
    mailbox.begin(definition.name())?;
    let key = Key::Name(definition.name().to_owned());
    let (present, partings) = (HashMap::new(), Partings::default());
    let mut attempt =
        Invitation { parent, mailbox, definition, key, nonce, deadline, present, partings };
    let outcome = attempt.run().map_err(|failure| {
        attempt.tell(&failure);
        failure.why
    });
    mailbox.finish(definition.name());
    outcome
}

impl Invitation<'_> {
    fn first(&self) -> Rank {
        self.definition.ranks()[0]
    }

    fn is_first(&self) -> bool {
        self.first() == self.parent.rank()
    }

    /// Those who hear this rank's hello.
    fn audience(&self) -> Vec<Rank> {
        if !self.is_first() {
            return vec![self.first()];
        }
        self.definition.ranks()[1..].to_vec()
    }

    fn run(&mut self) -> std::result::Result<GroupId, Failure> {
        let (nonce, definition) = (self.nonce, self.definition.clone());
        let hello = Letter::Hello { nonce, definition };
        drop(self.mailbox.send(self.parent, &self.audience(), &self.key, &hello)?);
        let patience =
            if self.is_first() { self.deadline.left() } else { self.deadline.left() + HEARING };
        let limit = Deadline::after(patience);
        loop {
            let missing = self.missing();
            if missing.is_empty() {
                return Ok(self.go()?);
            }
            let look_around = || self.partings.check(self.parent, &missing);
            match self.mailbox.next(self.parent, &self.key, &limit, &look_around)? {
                None => return Err(self.late(&missing).into()),
                Some((from, letter)) => {
                    if let Some(id) = self.read(from, letter)? {
                        return Ok(id);
                    }
                }
            }
        }
    }

    /// For whom this rank waits.
    fn missing(&self) -> Vec<Rank> {
        if !self.is_first() {
            return vec![self.first()];
        }
        let absent = |rank: &Rank| !self.present.contains_key(rank);
        self.definition.ranks()[1..].iter().copied().filter(absent).collect()
    }

    /// What a letter changes; the id, where it has that.
    fn read(
        &mut self,
        from: Rank,
        letter: Letter,
    ) -> std::result::Result<Option<GroupId>, Failure> {
        match letter {
            Letter::Hello { nonce, definition } if definition == *self.definition => {
                self.present.insert(from, nonce);
            }
            Letter::Hello { nonce, definition } => {
                let own = (self.parent.rank(), self.definition.clone());
                let mut claims = [own, (from, definition)];
                claims.sort_by_key(|(rank, _)| *rank);
                let why = conflict(self.parent.name(), &claims);
                return Err(Failure { why, opponent: Some((from, nonce)), is_echo: false });
            }
            Letter::Go { nonce, id } if nonce == self.nonce && from == self.first() => {
                return Ok(Some(id));
            }
            Letter::Go { id, .. } => {
                let (key, letter) = super::mailbox::too_late(id, self.parent.rank());
                drop(self.mailbox.send(self.parent, &[from], &key, &letter)?);
            }
            Letter::Fail { of, to, echo, why } => {
                let was_heard = self.present.get(&from) == Some(&of);
                if was_heard {
                    self.present.remove(&from);
                }
                let concerns = to.map_or(was_heard, |to| to == self.nonce);
                if concerns && !echo {
                    let is_echo = from == self.first();
                    return Err(Failure { why, opponent: None, is_echo });
                }
            }
            _ => {}
        }
        Ok(None)
    }

    /// All have come: this rank, the first, says so.
    fn go(&self) -> Result<GroupId> {
        let id = this::fresh_nonce()?;
        for (&rank, &nonce) in &self.present {
            let go = Letter::Go { nonce, id };
            drop(self.mailbox.send(self.parent, &[rank], &self.key, &go)?);
        }
        Ok(id)
    }

    /// Tells those who have heard of this attempt that it has failed.
    fn tell(&self, failure: &Failure) {
        let Failure { why, opponent, is_echo } = failure;
        let mut to: Vec<(Rank, Option<Nonce>)> = self
            .audience()
            .into_iter()
            .map(|rank| (rank, self.present.get(&rank).copied()))
            .filter(|(rank, _)| opponent.is_none_or(|(known, _)| known != *rank))
            .collect();
        to.extend(opponent.map(|(rank, nonce)| (rank, Some(nonce))));
        let (of, echo) = (self.nonce, *is_echo && !self.is_first());
        let limit = Deadline::after(HEARING);
        for (rank, to) in to {
            let letter = Letter::Fail { of, to, echo, why: self.in_words(why) };
            let told = self.mailbox.send(self.parent, &[rank], &self.key, &letter);
            let told = told.and_then(|sent| self.mailbox.await_gone(self.parent, &sent, &limit));
            if let Err(error) = told {
                crate::log!(Level::Info, "telling rank {rank} why this one gave up: {error}");
            }
        }
    }

    /// The reason as others read it.
    fn in_words(&self, why: &Error) -> Error {
        match why.kind() {
            ErrorKind::Mismatch | ErrorKind::Timeout => why.clone(),
            _ => {
                let (rank, name) = (self.parent.rank(), self.definition.name());
                let text = format!("rank {rank} gave up making group {name}: {why}");
                Error::new(ErrorKind::PeerFailed, text)
            }
        }
    }

    fn late(&self, missing: &[Rank]) -> Error {
        let message = format!(
            "rank {} of group {} waited {} ms for {} to make group \"{}\" of ranks {} by its members",
            self.parent.rank(),
            self.parent.name(),
            self.deadline.elapsed().as_millis(),
            named(missing),
            self.definition.name(),
            super::definition::list(self.definition.ranks()),
        );
        Error::new(ErrorKind::Timeout, message)
    }
}
