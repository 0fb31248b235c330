//! The rounds of a shrink call, and the creation of the new group that the members have agreed on.

use super::attempt::{CommittedProposal, PreparedGroup, ShrinkAttempt, ShrinkStop};
use super::exchange::{BuildFailure, LinkExchange};
use super::follower::FollowOutcome;
use super::messages::MembershipProposal;
use crate::api::group::create::MAX_NAME_BYTES;
use crate::api::group::process_group::{Group, GroupIdentity, GroupOrigin};
use crate::api::membership::bootstrap::SoloExchange;
use crate::api::membership::derived_group::{create_backend, derived_origin};
use crate::backend::BootstrapExchange;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::process::this_process;
use crate::transport::survivor_rendezvous::SurvivorEndpoint;
use crate::wait::pause;
use std::sync::Arc;
use std::time::Duration;

/// The minimum time limit for the creation of the group after all members have agreed.
const MIN_BUILD_TIME: Duration = Duration::from_secs(10);

/// The pause after a failed round. In this time, all members of the round notice the failure.
const ROUND_BACKOFF: Duration = Duration::from_millis(10);

impl ShrinkAttempt<'_> {
    /// Runs rounds until a group is formed or the deadline passes.
    pub(super) fn run(&mut self) -> Result<(Group, MembershipProposal)> {
        let mut last_error = None;
        while !self.deadline.has_passed() {
            match self.run_round() {
                Ok(Some(agreed)) => match self.build_group(agreed) {
                    Ok(()) => return self.take_prepared(),
                    Err(BuildFailure::Fatal(error)) => return Err(error),
                    Err(BuildFailure::Retryable(error)) => {
                        crate::log!(
                            LogLevel::Info,
                            "retrying the creation of the new group: {error}"
                        );
                        last_error = Some(error);
                    }
                },
                Ok(None) => {}
                Err(ShrinkStop::NewRound) => {}
                Err(ShrinkStop::GroupFormed) => return self.take_prepared(),
                Err(ShrinkStop::Failed(error)) => return Err(error),
            }
            pause(ROUND_BACKOFF, &self.deadline);
        }
        let message = format!(
            "the surviving ranks created no group within {} ms{}",
            self.deadline.timeout().as_millis(),
            last_error.map_or_else(String::new, |error| format!("; the last attempt: {error}"))
        );
        Err(Error::new(ErrorKind::Timeout, message))
    }

    /// Runs one membership round: this rank follows the lowest rank that responds, or coordinates
    /// if there is no such lower rank. Returns `None` if the caller must start another round.
    fn run_round(&mut self) -> std::result::Result<Option<CommittedProposal>, ShrinkStop> {
        for candidate in 0..self.me() {
            if !self.membership.is_expected(candidate) {
                continue;
            }
            match self.follow(candidate)? {
                FollowOutcome::Agreed(agreed) => return Ok(Some(agreed)),
                FollowOutcome::Reconnect => return Ok(None),
                FollowOutcome::NotCoordinator => {}
            }
        }
        self.coordinate().map(Some)
    }

    /// Creates the group of a committed proposal on this rank, and waits until it is complete on
    /// all members.
    fn build_group(&mut self, agreed: CommittedProposal) -> std::result::Result<(), BuildFailure> {
        // This rank may have prepared a group in an earlier round. No member of the new proposal
        // has received the ready notice for that group, so that group was not formed.
        self.prepared = None;
        let CommittedProposal { proposal, links } = agreed;
        let rank = proposal.members.iter().position(|&member| member == self.me());
        let rank = rank.ok_or_else(|| {
            BuildFailure::Fatal(Error::internal("this rank is not a member of the agreed group"))
        })?;
        let limit = self.deadline.capped(self.window.max(MIN_BUILD_TIME));
        if proposal.members.len() == 1 {
            return self
                .prepare(proposal, rank, &SoloExchange, &limit)
                .map_err(BuildFailure::Fatal);
        }
        let members = proposal.members.clone();
        let exchange = LinkExchange::new(self.session, &members, rank, links, &limit);
        let outcome = self.prepare(proposal, rank, &exchange, &limit);
        outcome
            .and_then(|()| exchange.confirm_ready())
            .map_err(|error| exchange.classify_failure(error))
    }

    /// Creates the back end of the proposed group on this rank, and stores the prepared group.
    pub(super) fn prepare(
        &mut self,
        proposal: MembershipProposal,
        rank: Rank,
        exchange: &dyn BootstrapExchange,
        limit: &Deadline,
    ) -> Result<()> {
        let mut former = self.group.origin.former_endpoints.clone();
        former.push(Arc::clone(self.endpoint));
        let origin = origin_of(self.group, &proposal, former);
        let identity = identity_of(self.group, &proposal, rank);
        let backend = create_backend(self.group, &identity, &origin, true, exchange, limit)?;
        self.prepared = Some(PreparedGroup { proposal, rank, origin, backend });
        Ok(())
    }

    fn take_prepared(&mut self) -> Result<(Group, MembershipProposal)> {
        let prepared =
            self.prepared.take().ok_or_else(|| Error::internal("no group is prepared"))?;
        let PreparedGroup { proposal, rank, origin, backend } = prepared;
        let identity = identity_of(self.group, &proposal, rank);
        Ok((Group::assemble(identity, origin, backend), proposal))
    }
}

/// Shrinks a group of one rank, whose back end has no survivor endpoint.
pub(super) fn shrink_alone(group: &Group, deadline: &Deadline) -> Result<Group> {
    let (id, epoch) = (this_process::random_nonce()?, group.origin.epoch + 1);
    let proposal = MembershipProposal { id, epoch, members: vec![0] };
    let former = group.origin.former_endpoints.clone();
    let origin = origin_of(group, &proposal, former);
    let identity = identity_of(group, &proposal, 0);
    let backend = create_backend(group, &identity, &origin, true, &SoloExchange, deadline)?;
    Ok(Group::assemble(identity, origin, backend))
}

fn origin_of(
    group: &Group,
    proposal: &MembershipProposal,
    former_endpoints: Vec<Arc<SurvivorEndpoint>>,
) -> GroupOrigin {
    let inherited = derived_origin(group, &proposal.members);
    GroupOrigin { epoch: proposal.epoch, former_endpoints, ..inherited }
}

fn identity_of(group: &Group, proposal: &MembershipProposal, rank: Rank) -> GroupIdentity {
    let name = epoch_name(group.name(), group.origin.epoch, proposal.epoch);
    GroupIdentity { id: proposal.id, name, rank, timeout_ms: group.timeout_ms() }
}

/// Returns the name of the new group: the group's name with the suffix `#<epoch>`, which replaces
/// the suffix of an earlier epoch. For example, `world#1` becomes `world#2`. A long name is
/// shortened.
pub(super) fn epoch_name(name: &str, old_epoch: u32, epoch: u32) -> String {
    let earlier = format!("#{old_epoch}");
    let base = if old_epoch == 0 { name } else { name.strip_suffix(&earlier).unwrap_or(name) };
    let suffix = format!("#{epoch}");
    let mut end = base.len().min(MAX_NAME_BYTES - suffix.len());
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{suffix}", &base[..end])
}
