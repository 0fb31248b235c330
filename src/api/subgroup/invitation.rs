//! How the members of a group find each other by its name alone, while the other ranks of the
//! parent do not know.
//!
//! Every member says hello to the first member, and that one to every other, each with what it was
//! told of the group and a fresh nonce. So whoever is in the list of another hears how that one
//! defines the group, also where the two have different first members. A member answers the first
//! one's hello with another hello, which names its nonce; once all have, the first member sends
//! each of them the new group's id.
//!
//! Whoever finds a conflict, or gives up, says so to those who have heard its hello and to whom it
//! disagrees with; the first member says it to all. A name may be used again, so that what an
//! earlier attempt has left over must not be taken for part of this one:
//! * an answer and an id count only with the nonce of this attempt;
//! * a hello that defines the group otherwise counts unless it is taken back within a moment: then
//!   it is left over;
//! * a failure counts with the nonce of this attempt, or if the hello of the same writer and
//!   attempt was not heard by an earlier attempt of this rank: a conflict is told also to whoever
//!   comes late;
//! * a failure that its reader has told first only takes back the writer's hello;
//! * what comes while there is no attempt is sorted by the mailbox, in the same way.
//!
//! What slips through makes an attempt fail. Members only ever form a group that they have defined
//! alike.

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
use std::time::Duration;

/// How long another definition is held before it counts. It was taken back by now if it is left
/// over; what takes it back is right behind it.
const DISPUTE: Duration = Duration::from_millis(100);

/// One attempt to make a group by its members.
#[derive(Debug)]
pub(super) struct Invitation<'a> {
    parent: &'a Group,
    mailbox: &'a Mailbox,
    definition: &'a Definition,
    key: Key,
    nonce: Nonce,
    deadline: &'a Deadline,
    /// Who has said hello, in which attempt, and whether that was in answer to this one.
    present: HashMap<Rank, (Nonce, bool)>,
    /// What somebody else says that the group is, and since when that has not been taken back.
    dispute: Option<(Dispute, Deadline)>,
    partings: Partings,
}

/// Another definition, by whom, and of which attempt.
#[derive(Debug)]
struct Dispute {
    from: Rank,
    nonce: Nonce,
    definition: Definition,
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

/// Meets the other members, once the mailbox has begun the meeting; the id of the new group.
///
/// # Errors
/// `Mismatch` with both definitions, `Timeout` naming who did not come, `PeerFailed`.
pub(super) fn meet(
    parent: &Group,
    mailbox: &Mailbox,
    definition: &Definition,
    deadline: &Deadline,
) -> Result<GroupId> {
    let nonce = this::fresh_nonce()?;
    let key = Key::Name(definition.name().to_owned());
    let mut attempt = Invitation {
        parent,
        mailbox,
        definition,
        key,
        nonce,
        deadline,
        present: HashMap::new(),
        dispute: None,
        partings: Partings::default(),
    };
    attempt.run().map_err(|failure| {
        attempt.tell(&failure);
        failure.why
    })
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
        match self.say_hello(None) {
            // Below, those who did not take it are named.
            Err(error) if error.kind() == ErrorKind::Timeout => {}
            said => said?,
        }
        let grace = if self.is_first() { Duration::ZERO } else { HEARING };
        let limit = Deadline::after(self.deadline.left() + grace);
        loop {
            let missing = self.missing();
            if missing.is_empty() && self.dispute.is_none() {
                return Ok(self.go()?);
            }
            let look_around = || match &self.dispute {
                Some(_) => Ok(()),
                None => self.partings.check(self.parent, &missing),
            };
            let held = self.dispute.as_ref().map(|(_, held)| *held);
            let next = held.as_ref().unwrap_or(&limit);
            match self.mailbox.next(self.parent, &self.key, next, &look_around)? {
                Some((from, letter)) => {
                    if let Some(id) = self.read(from, letter)? {
                        return Ok(id);
                    }
                }
                None => match self.dispute.take() {
                    Some((dispute, _)) => return Err(self.conflict(dispute)),
                    None => return Err(self.late(&missing).into()),
                },
            }
        }
    }

    fn say_hello(&self, seen: Option<Nonce>) -> Result<()> {
        let (nonce, definition) = (self.nonce, self.definition.clone());
        let hello = Letter::Hello { nonce, seen, definition };
        let to = self.audience();
        self.mailbox.send(self.parent, &to, &self.key, &hello, self.deadline).map(drop)
    }

    /// For whom this rank waits.
    fn missing(&self) -> Vec<Rank> {
        if !self.is_first() {
            return vec![self.first()];
        }
        let absent = |rank: &Rank| !self.present.get(rank).is_some_and(|&(_, answers)| answers);
        self.definition.ranks()[1..].iter().copied().filter(absent).collect()
    }

    /// What a letter changes; the id, where it has that.
    fn read(
        &mut self,
        from: Rank,
        letter: Letter,
    ) -> std::result::Result<Option<GroupId>, Failure> {
        match letter {
            Letter::Hello { nonce, seen, definition } => {
                self.dispute.take_if(|(dispute, _)| dispute.from == from);
                if definition == *self.definition {
                    self.present.insert(from, (nonce, seen == Some(self.nonce)));
                    if from == self.first() {
                        self.say_hello(Some(nonce))?;
                    }
                } else if self.dispute.is_none() {
                    let dispute = Dispute { from, nonce, definition };
                    self.dispute = Some((dispute, Deadline::after(DISPUTE)));
                }
            }
            Letter::Go { nonce, id } if nonce == self.nonce && from == self.first() => {
                return Ok(Some(id));
            }
            Letter::Go { id, .. } => {
                self.mailbox.end(id);
                let (key, letter) = super::inbox::too_late(id, self.parent.rank());
                self.mailbox.answer(self.parent, from, &key, &letter);
            }
            Letter::Fail { of, to, echo, why } => {
                return self.hear_failure(from, (of, to), echo, why);
            }
            _ => {}
        }
        Ok(None)
    }

    fn hear_failure(
        &mut self,
        from: Rank,
        (of, to): (Nonce, Option<Nonce>),
        echo: bool,
        why: Error,
    ) -> std::result::Result<Option<GroupId>, Failure> {
        let was_heard = self.present.get(&from).is_some_and(|(nonce, _)| *nonce == of);
        if was_heard {
            self.present.remove(&from);
        }
        if !echo && to.map_or(was_heard, |to| to == self.nonce) {
            return Err(Failure { why, opponent: None, is_echo: from == self.first() });
        }
        let is_its = |dispute: &Dispute| dispute.from == from && dispute.nonce == of;
        if let Some((dispute, _)) = self.dispute.take_if(|(dispute, _)| is_its(dispute)) {
            // It is over. Others found the conflict, and this rank comes late; or it is none of its
            // business.
            if !echo && to.is_none() && why.kind() == ErrorKind::Mismatch {
                return Err(self.conflict(dispute));
            }
        }
        Ok(None)
    }

    fn conflict(&self, Dispute { from, nonce, definition }: Dispute) -> Failure {
        let own = (self.parent.rank(), self.definition.clone());
        let mut claims = [own, (from, definition)];
        claims.sort_by_key(|(rank, _)| *rank);
        let why = conflict(self.parent.name(), &claims);
        Failure { why, opponent: Some((from, nonce)), is_echo: false }
    }

    /// All have come: this rank, the first, says so.
    fn go(&self) -> Result<GroupId> {
        let id = this::fresh_nonce()?;
        let mut told = Vec::new();
        for (&rank, &(nonce, _)) in &self.present {
            let go = Letter::Go { nonce, id };
            let sent = self.mailbox.send(self.parent, &[rank], &self.key, &go, self.deadline);
            sent.inspect_err(|why| self.take_back(id, &told, why))?;
            told.push(rank);
        }
        Ok(id)
    }

    /// Tells those who have the id already, and so do not listen to the name any more.
    fn take_back(&self, id: GroupId, told: &[Rank], why: &Error) {
        self.mailbox.end(id);
        let (key, letter) = (Key::Id(id), Letter::GaveUp(self.in_words(why)));
        let limit = Deadline::after(HEARING);
        let sent = self.mailbox.send(self.parent, told, &key, &letter, &limit);
        let gone = sent.and_then(|sent| self.mailbox.await_gone(self.parent, &sent, &limit));
        if let Err(error) = gone {
            crate::log!(Level::Info, "telling the other ranks why this one gave up: {error}");
        }
    }

    /// Tells those who have heard of this attempt that it has failed.
    fn tell(&self, failure: &Failure) {
        let Failure { why, opponent, is_echo } = failure;
        let mut to: Vec<(Rank, Option<Nonce>)> = self
            .audience()
            .into_iter()
            .map(|rank| (rank, self.present.get(&rank).map(|&(nonce, _)| nonce)))
            .filter(|(rank, _)| opponent.is_none_or(|(known, _)| known != *rank))
            .collect();
        to.extend(opponent.map(|(rank, nonce)| (rank, Some(nonce))));
        let (of, echo) = (self.nonce, *is_echo && !self.is_first());
        let limit = Deadline::after(HEARING);
        for (rank, to) in to {
            let letter = Letter::Fail { of, to, echo, why: self.in_words(why) };
            let told = self.mailbox.send(self.parent, &[rank], &self.key, &letter, &limit);
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

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::super::definition::How;
    use super::*;
    use crate::api::tests::Fake;

    #[test]
    fn members_that_have_the_id_are_told_that_there_will_be_no_group() {
        let (group, _fake) = Fake::group("parent", true);
        let (own, theirs) = (Mailbox::new(&group), Mailbox::new(&group));
        // The fake takes what is sent to any rank to whoever listens.
        theirs.open();
        let definition = Definition::new(How::Local, "g", &[0, 1], "native");
        let deadline = Deadline::after_ms(20_000);
        let attempt = Invitation {
            parent: &group,
            mailbox: &own,
            definition: &definition,
            key: Key::Name("g".into()),
            nonce: Nonce([1; 16]),
            deadline: &deadline,
            present: HashMap::new(),
            dispute: None,
            partings: Partings::default(),
        };
        let (id, why) = (Nonce([2; 16]), Error::new(ErrorKind::OutOfMemory, "full"));
        attempt.take_back(id, &[1], &why);
        let Some((0, Letter::GaveUp(told))) = theirs.take(&Key::Id(id)) else { panic!("untold") };
        assert_eq!(told.kind(), ErrorKind::PeerFailed);
        assert!(told.message().contains("gave up making group g: full"), "{told}");
    }
}
