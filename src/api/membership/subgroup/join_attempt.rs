//! Join by name: the members of a new group find each other by the group's name, and the parent's
//! other ranks do not take part.
//!
//! 1. Each member sends a join request, which has the member's definition of the group and a new
//!    nonce (random number) for this attempt. The coordinator (the first member) sends its request
//!    to every other member. Every other member sends its request to the coordinator. With this
//!    rule, two ranks that list each other as members receive each other's definitions, even if
//!    their lists have different coordinators.
//! 2. A member answers the coordinator's request with a second request, which also has the
//!    coordinator's nonce.
//! 3. When all members have answered, the coordinator sends each member a commit with the id of the
//!    new group.
//!
//! For example, coordinator C and member M:
//!
//! ```text
//! C -- JoinRequest(nonce c) ----------> M
//! M -- JoinRequest(nonce m) ----------> C      both requests are sent at the start
//! M -- JoinRequest(nonce m, peer c) --> C      the answer
//! C -- Commit(nonce m, id) -----------> M
//! ```
//!
//! If a rank detects a conflict or gives up, it sends the failure to the recipients of its join
//! request and to the rank with the conflicting definition. The recipients of the coordinator are
//! all members, so its failure reaches all of them.
//!
//! A name may be used again, so messages of an earlier attempt must not count for this attempt. The
//! rules:
//! * An answer or a commit counts only if it has the nonce of this rank's attempt.
//! * A join request with a conflicting definition counts only if its sender does not revoke it
//!   within [`CONFLICT_GRACE`]. If the sender revokes it, it was from an earlier attempt.
//! * A failure that has the nonce of this rank's attempt counts. A failure without such a nonce
//!   counts if this rank has received the join request of the same sender and attempt. With this
//!   rule, a member that comes late also learns about a conflict.
//! * A failure may be an echo: a member returns to the coordinator a failure that the coordinator
//!   has reported. An echo only revokes the sender's join request.
//! * If messages arrive while this rank has no attempt for the name, the control channel applies
//!   the same rules (see [`super::queues`]).
//!
//! If a message of an earlier attempt passes these rules, the attempt fails. In no case do members
//! form a group that they have defined differently.

use super::control_channel::ControlChannel;
use super::definition::{GroupDefinition, conflict_error, format_rank_list, format_ranks};
use super::exchange::DepartureCheck;
use super::join_needs::JoinNeeds;
use super::message::{ExchangeKey, SubgroupMessage};
use super::queues::ControlReply;
use crate::api::group::process_group::Group;
use crate::api::membership::bootstrap::{MEMBER_GRACE, log_unreported_failure};
use crate::api::observe::deadlock::BlockedCallGuard;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::base::log::LogLevel;
use crate::base::sort::sort_by_key;
use crate::process::this_process;
use crate::wait::blocked_thread::BlockedWatch;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The time for which a conflicting definition is held before it counts. A definition of an earlier
/// attempt is revoked within this time, because the sender's failure message follows it
/// immediately.
const CONFLICT_GRACE: Duration = Duration::from_millis(100);

/// An attempt of this rank to create a group. In the attempt, the rank finds the other members by
/// the group's name.
#[derive(Debug)]
pub(super) struct JoinAttempt<'a> {
    parent: &'a Group,
    channel: &'a ControlChannel,
    definition: &'a GroupDefinition,
    key: ExchangeKey,
    /// The nonce of this attempt.
    nonce: Nonce,
    deadline: &'a Deadline,
    /// The nonce in the last join request of each sender, and whether this request answers the
    /// request of this rank.
    join_requests: HashMap<Rank, (Nonce, bool)>,
    /// A conflicting definition that was received, and the time at which it counts if it is not
    /// revoked.
    pending_conflict: Option<(ConflictingDefinition, Deadline)>,
    departures: DepartureCheck,
}

/// A definition of another rank that differs from the definition of this rank.
#[derive(Debug)]
struct ConflictingDefinition {
    from: Rank,
    nonce: Nonce,
    definition: GroupDefinition,
}

/// The failure of this rank's attempt.
struct JoinFailure {
    reason: Error,
    /// The rank with a conflicting definition, and the nonce of that rank's attempt.
    conflicting_rank: Option<(Rank, Nonce)>,
    /// True if this rank got the failure from the coordinator.
    is_echo: bool,
}

/// A failure that another rank has reported.
struct PeerFailure {
    from: Rank,
    /// The nonce of the sender's attempt.
    attempt: Nonce,
    /// The nonce of this rank's attempt, if the sender knows it.
    peer_attempt: Option<Nonce>,
    is_echo: bool,
}

impl From<Error> for JoinFailure {
    fn from(reason: Error) -> Self {
        Self { reason, conflicting_rank: None, is_echo: false }
    }
}

/// Joins the other members under the definition's name, which the control channel has reserved.
/// Returns the id of the new group.
///
/// # Errors
/// `Mismatch`, which names both definitions; `Timeout`, which names the missing ranks;
/// `PeerFailed`.
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

    /// Returns the recipients of this rank's join request.
    fn recipients(&self) -> Vec<Rank> {
        if !self.is_coordinator() {
            return vec![self.coordinator()];
        }
        self.definition.ranks()[1..].to_vec()
    }

    /// Runs the attempt. Returns the id of the new group.
    fn run(&mut self) -> std::result::Result<GroupId, JoinFailure> {
        match self.send_join_request(None) {
            // This timeout is ignored, because the loop below also times out, and its error names
            // the ranks that did not receive the request.
            Err(error) if error.kind() == ErrorKind::Timeout => {}
            sent => sent?,
        }
        let grace = if self.is_coordinator() { Duration::ZERO } else { MEMBER_GRACE };
        let limit = Deadline::after(self.deadline.remaining() + grace);
        let queue = Arc::as_ptr(&self.parent.queue).addr();
        let blocked_call = BlockedCallGuard::control(queue, self.deadline);
        let watch = RefCell::new(BlockedWatch::default());
        loop {
            let missing = self.missing_ranks();
            if missing.is_empty() && self.pending_conflict.is_none() {
                return Ok(self.send_commit()?);
            }
            let needs = JoinNeeds::new(
                self.parent,
                self.definition.name(),
                &missing,
                self.is_coordinator(),
            );
            let on_poll = || match &self.pending_conflict {
                Some(_) => Ok(()),
                None => {
                    needs.publish(&blocked_call, &watch);
                    self.departures.check(self.parent, &missing)
                }
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

    /// Sends this rank's join request. `seen` is the coordinator's nonce if this request is the
    /// answer to the coordinator's request.
    fn send_join_request(&self, seen: Option<Nonce>) -> Result<()> {
        let (nonce, definition) = (self.nonce, self.definition.clone());
        let request = SubgroupMessage::JoinRequest { nonce, peer_nonce: seen, definition };
        let to = self.recipients();
        self.channel.send(self.parent, &to, &self.key, &request, self.deadline).map(drop)
    }

    /// Returns the ranks for which this rank still waits: on the coordinator, the members that have
    /// not answered; on another member, the coordinator.
    fn missing_ranks(&self) -> Vec<Rank> {
        if !self.is_coordinator() {
            return vec![self.coordinator()];
        }
        let absent =
            |rank: &Rank| !self.join_requests.get(rank).is_some_and(|&(_, answers)| answers);
        self.definition.ranks()[1..].iter().copied().filter(absent).collect()
    }

    /// Handles a message. Returns the group's id if the message is the commit of this attempt.
    fn handle_message(
        &mut self,
        from: Rank,
        message: SubgroupMessage,
    ) -> std::result::Result<Option<GroupId>, JoinFailure> {
        match message {
            SubgroupMessage::JoinRequest { nonce, peer_nonce, definition } => {
                self.pending_conflict.take_if(|(conflict, _)| conflict.from == from);
                if definition == *self.definition {
                    self.join_requests.insert(from, (nonce, peer_nonce == Some(self.nonce)));
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
                let reply = ControlReply::abandoned(from, id, self.parent.rank());
                self.channel.reply(self.parent, &reply);
            }
            SubgroupMessage::Fail { attempt, peer_attempt, is_echo, reason } => {
                let failure = PeerFailure { from, attempt, peer_attempt, is_echo };
                return self.handle_failure(&failure, reason);
            }
            _ => {}
        }
        Ok(None)
    }

    fn handle_failure(
        &mut self,
        failure: &PeerFailure,
        reason: Error,
    ) -> std::result::Result<Option<GroupId>, JoinFailure> {
        let &PeerFailure { from, attempt: failed_attempt, peer_attempt: own_attempt, is_echo } =
            failure;
        let is_known_attempt =
            self.join_requests.get(&from).is_some_and(|(nonce, _)| *nonce == failed_attempt);
        if is_known_attempt {
            self.join_requests.remove(&from);
        }
        if !is_echo && own_attempt.map_or(is_known_attempt, |nonce| nonce == self.nonce) {
            return Err(JoinFailure {
                reason,
                conflicting_rank: None,
                is_echo: from == self.coordinator(),
            });
        }
        let is_from_attempt = |conflict: &ConflictingDefinition| {
            conflict.from == from && conflict.nonce == failed_attempt
        };
        if let Some((conflicting, _)) =
            self.pending_conflict.take_if(|(conflict, _)| is_from_attempt(conflict))
        {
            // The sender's attempt has failed. Either the reason is this conflict, which other
            // ranks have found earlier because this rank is late, or the reason does not concern
            // this rank.
            if !is_echo && own_attempt.is_none() && reason.kind() == ErrorKind::Mismatch {
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
        sort_by_key(&mut claims, |(rank, _)| *rank);
        let reason = conflict_error(self.parent.name(), &claims);
        JoinFailure { reason, conflicting_rank: Some((from, nonce)), is_echo: false }
    }

    /// On the coordinator: generates the group's id and sends the commit to all members.
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

    /// Reports the failure to the members that have already received the commit. These members no
    /// longer read messages under the group's name, so the report has the id as its key.
    fn revoke_commit(&self, id: GroupId, notified: &[Rank], reason: &Error) {
        self.channel.end_exchange(id);
        let (key, message) =
            (ExchangeKey::Id(id), SubgroupMessage::Abandoned(self.peer_error(reason)));
        let limit = Deadline::after(MEMBER_GRACE);
        let sent = self.channel.send_and_await(self.parent, notified, &key, &message, &limit);
        if let Err(error) = sent {
            log_unreported_failure(&error);
        }
    }

    /// Reports the failure to the ranks that may have received this rank's join request, and to the
    /// rank with the conflicting definition.
    fn send_failure(&self, failure: &JoinFailure) {
        let JoinFailure { reason, conflicting_rank, is_echo } = failure;
        let mut recipients: Vec<(Rank, Option<Nonce>)> = self
            .recipients()
            .into_iter()
            .map(|rank| (rank, self.join_requests.get(&rank).map(|&(nonce, _)| nonce)))
            .filter(|(rank, _)| conflicting_rank.is_none_or(|(known, _)| known != *rank))
            .collect();
        recipients.extend(conflicting_rank.map(|(rank, nonce)| (rank, Some(nonce))));
        let (attempt, is_echo) = (self.nonce, *is_echo && !self.is_coordinator());
        let limit = Deadline::after(MEMBER_GRACE);
        for (rank, peer_attempt) in recipients {
            let message = SubgroupMessage::Fail {
                attempt,
                peer_attempt,
                is_echo,
                reason: self.peer_error(reason),
            };
            let sent =
                self.channel.send_and_await(self.parent, &[rank], &self.key, &message, &limit);
            if let Err(error) = sent {
                crate::log!(
                    LogLevel::Info,
                    "cannot report the failure of this rank to rank {rank}: {error}"
                );
            }
        }
    }

    /// Returns the error that is sent to the other ranks.
    fn peer_error(&self, reason: &Error) -> Error {
        match reason.kind() {
            ErrorKind::Mismatch | ErrorKind::Timeout => reason.clone(),
            _ => {
                let (rank, name) = (self.parent.rank(), self.definition.name());
                let text = format!("rank {rank} failed to create group {name}: {reason}");
                Error::new(ErrorKind::PeerFailed, text)
            }
        }
    }

    fn timeout_error(&self, missing: &[Rank]) -> Error {
        let message = format!(
            "rank {} of group {} waited {} ms for {} to create group \"{}\" of ranks {} by its members",
            self.parent.rank(),
            self.parent.name(),
            self.deadline.elapsed().as_millis(),
            format_ranks(missing),
            self.definition.name(),
            format_rank_list(self.definition.ranks()),
        );
        Error::new(ErrorKind::Timeout, message)
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::super::definition::CreationCall;
    use super::*;
    use crate::api::tests::FakeBackend;

    #[test]
    fn revoked_commit_reaches_notified_members() {
        let (group, _fake) = FakeBackend::group("parent", true);
        let (own, peer_channel) = (ControlChannel::new(&group), ControlChannel::new(&group));
        // The fake back end delivers every message to the channel with a posted receive.
        peer_channel.open();
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
        let (id, reason) = (Nonce([2; 16]), Error::new(ErrorKind::OutOfMemory, "full"));
        attempt.revoke_commit(id, &[1], &reason);
        let Some((0, SubgroupMessage::Abandoned(error))) =
            peer_channel.try_take(&ExchangeKey::Id(id))
        else {
            panic!("untold")
        };
        assert_eq!(error.kind(), ErrorKind::PeerFailed);
        assert!(error.message().contains("failed to create group g: full"), "{error}");
    }
}
