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

use super::control_channel::ControlChannel;
use super::definition::{GroupDefinition, conflict_error, format_ranks};
use super::exchange::{DepartureCheck, MEMBER_GRACE};
use super::message::{ExchangeKey, SubgroupMessage};
use crate::api::group::Group;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::base::log::LogLevel;
use crate::process::this_process;
use std::collections::HashMap;
use std::time::Duration;

/// How long another definition is held before it counts. It was taken back by now if it is left
/// over; what takes it back is right behind it.
const CONFLICT_GRACE: Duration = Duration::from_millis(100);

/// One attempt to make a group by its members.
#[derive(Debug)]
pub(super) struct JoinAttempt<'a> {
    parent: &'a Group,
    channel: &'a ControlChannel,
    definition: &'a GroupDefinition,
    key: ExchangeKey,
    nonce: Nonce,
    deadline: &'a Deadline,
    /// Who has said hello, in which attempt, and whether that was in answer to this one.
    join_requests: HashMap<Rank, (Nonce, bool)>,
    /// What somebody else says that the group is, and since when that has not been taken back.
    pending_conflict: Option<(ConflictingDefinition, Deadline)>,
    departures: DepartureCheck,
}

/// Another definition, by whom, and of which attempt.
#[derive(Debug)]
struct ConflictingDefinition {
    from: Rank,
    nonce: Nonce,
    definition: GroupDefinition,
}

/// Why an attempt has failed, and who knows already.
struct JoinFailure {
    reason: Error,
    /// Whose definition is another one.
    conflicting_rank: Option<(Rank, Nonce)>,
    /// The first member has said it.
    is_echo: bool,
}

impl From<Error> for JoinFailure {
    fn from(why: Error) -> Self {
        Self { reason: why, conflicting_rank: None, is_echo: false }
    }
}

/// Meets the other members, once the mailbox has begun the meeting; the id of the new group.
///
/// # Errors
/// `Mismatch` with both definitions, `Timeout` naming who did not come, `PeerFailed`.
pub(super) fn join_by_name(
    parent: &Group,
    channel: &ControlChannel,
    definition: &GroupDefinition,
    deadline: &Deadline,
) -> Result<GroupId> {
    let nonce = this_process::random_nonce()?;
    let key = ExchangeKey::Name(definition.name().to_owned());
    let mut attempt = JoinAttempt {
        parent,
        channel,
        definition,
        key,
        nonce,
        deadline,
        join_requests: HashMap::new(),
        pending_conflict: None,
        departures: DepartureCheck::default(),
    };
    attempt.run().map_err(|failure| {
        attempt.send_failure(&failure);
        failure.reason
    })
}

impl JoinAttempt<'_> {
    fn coordinator(&self) -> Rank {
        self.definition.ranks()[0]
    }

    fn is_coordinator(&self) -> bool {
        self.coordinator() == self.parent.rank()
    }

    /// Those who hear this rank's hello.
    fn recipients(&self) -> Vec<Rank> {
        if !self.is_coordinator() {
            return vec![self.coordinator()];
        }
        self.definition.ranks()[1..].to_vec()
    }

    fn run(&mut self) -> std::result::Result<GroupId, JoinFailure> {
        match self.send_join_request(None) {
            // Below, those who did not take it are named.
            Err(error) if error.kind() == ErrorKind::Timeout => {}
            sent => sent?,
        }
        let grace = if self.is_coordinator() { Duration::ZERO } else { MEMBER_GRACE };
        let limit = Deadline::after(self.deadline.remaining() + grace);
        loop {
            let missing = self.missing_ranks();
            if missing.is_empty() && self.pending_conflict.is_none() {
                return Ok(self.send_commit()?);
            }
            let on_poll = || match &self.pending_conflict {
                Some(_) => Ok(()),
                None => self.departures.check(self.parent, &missing),
            };
            let conflict_deadline = self.pending_conflict.as_ref().map(|(_, held)| *held);
            let limit_or_conflict = conflict_deadline.as_ref().unwrap_or(&limit);
            match self.channel.next_message(self.parent, &self.key, limit_or_conflict, &on_poll)? {
                Some((from, message)) => {
                    if let Some(id) = self.handle_message(from, message)? {
                        return Ok(id);
                    }
                }
                None => match self.pending_conflict.take() {
                    Some((conflicting, _)) => return Err(self.conflict_failure(conflicting)),
                    None => return Err(self.timeout_error(&missing).into()),
                },
            }
        }
    }

    fn send_join_request(&self, seen: Option<Nonce>) -> Result<()> {
        let (nonce, definition) = (self.nonce, self.definition.clone());
        let request = SubgroupMessage::JoinRequest { nonce, peer_nonce: seen, definition };
        let to = self.recipients();
        self.channel.send(self.parent, &to, &self.key, &request, self.deadline).map(drop)
    }

    /// For whom this rank waits.
    fn missing_ranks(&self) -> Vec<Rank> {
        if !self.is_coordinator() {
            return vec![self.coordinator()];
        }
        let absent =
            |rank: &Rank| !self.join_requests.get(rank).is_some_and(|&(_, answers)| answers);
        self.definition.ranks()[1..].iter().copied().filter(absent).collect()
    }

    /// What a letter changes; the id, where it has that.
    fn handle_message(
        &mut self,
        from: Rank,
        message: SubgroupMessage,
    ) -> std::result::Result<Option<GroupId>, JoinFailure> {
        match message {
            SubgroupMessage::JoinRequest { nonce, peer_nonce: seen, definition } => {
                self.pending_conflict.take_if(|(dispute, _)| dispute.from == from);
                if definition == *self.definition {
                    self.join_requests.insert(from, (nonce, seen == Some(self.nonce)));
                    if from == self.coordinator() {
                        self.send_join_request(Some(nonce))?;
                    }
                } else if self.pending_conflict.is_none() {
                    let conflicting = ConflictingDefinition { from, nonce, definition };
                    self.pending_conflict = Some((conflicting, Deadline::after(CONFLICT_GRACE)));
                }
            }
            SubgroupMessage::Commit { nonce, id }
                if nonce == self.nonce && from == self.coordinator() =>
            {
                return Ok(Some(id));
            }
            SubgroupMessage::Commit { id, .. } => {
                self.channel.end_exchange(id);
                let (key, message) = super::queues::abandoned_reply(id, self.parent.rank());
                self.channel.reply(self.parent, from, &key, &message);
            }
            SubgroupMessage::Fail { attempt: of, peer_attempt: to, is_echo: echo, reason } => {
                return self.handle_failure(from, (of, to), echo, reason);
            }
            _ => {}
        }
        Ok(None)
    }

    fn handle_failure(
        &mut self,
        from: Rank,
        (failed_attempt, own_attempt): (Nonce, Option<Nonce>),
        echo: bool,
        reason: Error,
    ) -> std::result::Result<Option<GroupId>, JoinFailure> {
        let was_heard =
            self.join_requests.get(&from).is_some_and(|(nonce, _)| *nonce == failed_attempt);
        if was_heard {
            self.join_requests.remove(&from);
        }
        if !echo && own_attempt.map_or(was_heard, |to| to == self.nonce) {
            return Err(JoinFailure {
                reason,
                conflicting_rank: None,
                is_echo: from == self.coordinator(),
            });
        }
        let is_from_attempt = |dispute: &ConflictingDefinition| {
            dispute.from == from && dispute.nonce == failed_attempt
        };
        if let Some((conflicting, _)) =
            self.pending_conflict.take_if(|(dispute, _)| is_from_attempt(dispute))
        {
            // It is over. Others found the conflict, and this rank comes late; or it is none of its
            // business.
            if !echo && own_attempt.is_none() && reason.kind() == ErrorKind::Mismatch {
                return Err(self.conflict_failure(conflicting));
            }
        }
        Ok(None)
    }

    fn conflict_failure(
        &self,
        ConflictingDefinition { from, nonce, definition }: ConflictingDefinition,
    ) -> JoinFailure {
        let own = (self.parent.rank(), self.definition.clone());
        let mut claims = [own, (from, definition)];
        claims.sort_by_key(|(rank, _)| *rank);
        let reason = conflict_error(self.parent.name(), &claims);
        JoinFailure { reason, conflicting_rank: Some((from, nonce)), is_echo: false }
    }

    /// All have come: this rank, the first, says so.
    fn send_commit(&self) -> Result<GroupId> {
        let id = this_process::random_nonce()?;
        let mut notified = Vec::new();
        for (&rank, &(nonce, _)) in &self.join_requests {
            let commit = SubgroupMessage::Commit { nonce, id };
            let sent = self.channel.send(self.parent, &[rank], &self.key, &commit, self.deadline);
            sent.inspect_err(|reason| self.revoke_commit(id, &notified, reason))?;
            notified.push(rank);
        }
        Ok(id)
    }

    /// Tells those who have the id already, and so do not listen to the name any more.
    fn revoke_commit(&self, id: GroupId, notified: &[Rank], reason: &Error) {
        self.channel.end_exchange(id);
        let (key, message) =
            (ExchangeKey::Id(id), SubgroupMessage::Abandoned(self.peer_error(reason)));
        let limit = Deadline::after(MEMBER_GRACE);
        let sent = self.channel.send(self.parent, notified, &key, &message, &limit);
        let outcome = sent.and_then(|sent| self.channel.await_sent(self.parent, &sent, &limit));
        if let Err(error) = outcome {
            crate::log!(LogLevel::Info, "telling the other ranks why this one gave up: {error}");
        }
    }

    /// Tells those who have heard of this attempt that it has failed.
    fn send_failure(&self, failure: &JoinFailure) {
        let JoinFailure { reason: why, conflicting_rank: opponent, is_echo } = failure;
        let mut to: Vec<(Rank, Option<Nonce>)> = self
            .recipients()
            .into_iter()
            .map(|rank| (rank, self.join_requests.get(&rank).map(|&(nonce, _)| nonce)))
            .filter(|(rank, _)| opponent.is_none_or(|(known, _)| known != *rank))
            .collect();
        to.extend(opponent.map(|(rank, nonce)| (rank, Some(nonce))));
        let (of, echo) = (self.nonce, *is_echo && !self.is_coordinator());
        let limit = Deadline::after(MEMBER_GRACE);
        for (rank, to) in to {
            let message = SubgroupMessage::Fail {
                attempt: of,
                peer_attempt: to,
                is_echo: echo,
                reason: self.peer_error(why),
            };
            let outcome = self.channel.send(self.parent, &[rank], &self.key, &message, &limit);
            let outcome =
                outcome.and_then(|sent| self.channel.await_sent(self.parent, &sent, &limit));
            if let Err(error) = outcome {
                crate::log!(LogLevel::Info, "telling rank {rank} why this one gave up: {error}");
            }
        }
    }

    /// The reason as others read it.
    fn peer_error(&self, reason: &Error) -> Error {
        match reason.kind() {
            ErrorKind::Mismatch | ErrorKind::Timeout => reason.clone(),
            _ => {
                let (rank, name) = (self.parent.rank(), self.definition.name());
                let text = format!("rank {rank} gave up making group {name}: {reason}");
                Error::new(ErrorKind::PeerFailed, text)
            }
        }
    }

    fn timeout_error(&self, missing: &[Rank]) -> Error {
        let message = format!(
            "rank {} of group {} waited {} ms for {} to make group \"{}\" of ranks {} by its members",
            self.parent.rank(),
            self.parent.name(),
            self.deadline.elapsed().as_millis(),
            format_ranks(missing),
            self.definition.name(),
            super::definition::format_rank_list(self.definition.ranks()),
        );
        Error::new(ErrorKind::Timeout, message)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::super::definition::CreationCall;
    use super::*;
    use crate::api::tests::FakeBackend;

    #[test]
    fn revoked_commit_reaches_notified_members() {
        let (group, _fake) = FakeBackend::group("parent", true);
        let (own, theirs) = (ControlChannel::new(&group), ControlChannel::new(&group));
        // The fake takes what is sent to any rank to whoever listens.
        theirs.open();
        let definition = GroupDefinition::new(CreationCall::MembersOnly, "g", &[0, 1], "native");
        let deadline = Deadline::after_ms(20_000);
        let attempt = JoinAttempt {
            parent: &group,
            channel: &own,
            definition: &definition,
            key: ExchangeKey::Name("g".into()),
            nonce: Nonce([1; 16]),
            deadline: &deadline,
            join_requests: HashMap::new(),
            pending_conflict: None,
            departures: DepartureCheck::default(),
        };
        let (id, why) = (Nonce([2; 16]), Error::new(ErrorKind::OutOfMemory, "full"));
        attempt.revoke_commit(id, &[1], &why);
        let Some((0, SubgroupMessage::Abandoned(error))) = theirs.try_take(&ExchangeKey::Id(id))
        else {
            panic!("untold")
        };
        assert_eq!(error.kind(), ErrorKind::PeerFailed);
        assert!(error.message().contains("gave up making group g: full"), "{error}");
    }
}
