//! Shrink (ULFM): the survivors of a failed group form a new group, without the old group's streams
//! and without the store.
//!
//! All survivors call [`Group::shrink`] and form a star around the lowest surviving rank:
//!
//! 1. Each rank tries the lower ranks in ascending order as coordinator ([`follower`]). It skips a
//!    rank that is dead, or that sends nothing for the length of the window.
//! 2. A rank that follows another rank may have pending followers of its own. It sends them
//!    periodic wait notices ([`pending_followers`]), since it becomes the coordinator if its
//!    candidate stops responding.
//! 3. A rank with no expected rank below it coordinates ([`coordinator`]). It waits until all ranks
//!    that are not known to be dead or absent have joined, or until the window ends. It then
//!    proposes the joined ranks as members.
//! 4. All members must accept, and they must be a quorum of the ranks that are not proven dead
//!    ([`membership`]). The coordinator then commits.
//! 5. The members run the back end's bootstrap exchange over their links to the coordinator
//!    ([`exchange`]). If a member dies before the group is complete, the round fails and the
//!    remaining ranks start another round.
//!
//! A member keeps the old group's [`SurvivorEndpoint`], so that a late rank receives the outcome.
//! The member keeps it while the new group, or a group that was shrunk from it, exists.
//!
//! The last message of the coordinator is the ready notice: all members have a [`PreparedGroup`].
//! If the coordinator dies while it sends the notice, a member without the notice keeps its
//! prepared group and looks for the other members. The peer that it finds either received the
//! notice and reports the formed group, or takes part in another round.
//!
//! This module does not depend on how ranks connect, or on how the ranks of a back end bootstrap.

mod coordinator;
mod exchange;
mod follower;
mod membership;
mod messages;
mod pending_followers;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use crate::api::group::activity;
use crate::api::group::create::{MAX_NAME_BYTES, connect_deadline};
use crate::api::group::group_keys;
use crate::api::group::process_group::{Group, GroupIdentity, GroupOrigin};
use crate::api::membership::subgroup::SoloExchange;
use crate::api::observe::error_file;
use crate::api::work::callbacks;
use crate::backend::{self, Backend, BootstrapExchange, GroupContext, GroupKeyStore, ParentGroup};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::process::this_process;
use crate::transport::survivor_rendezvous::{
    SurvivorConnectResult, SurvivorEndpoint, SurvivorLink, SurvivorSession,
};
use crate::wait::pause;
use exchange::LinkExchange;
use membership::{MembershipStatus, MembershipView};
use messages::{MembershipProposal, ShrinkMessage};
use pending_followers::PendingFollowers;
use std::sync::Arc;
use std::time::Duration;

/// Default for the time in which the other ranks must call shrink.
const DEFAULT_WINDOW_MS: u64 = 10_000;

/// Minimum time for the members to build the group after the commit.
const MIN_BUILD_TIME: Duration = Duration::from_secs(10);

/// Timeout for sending one message.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval between two polls of a pending connection, for which there is no notification.
const CONNECT_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// How long a follower waits before it rejoins a candidate that abandoned its call, and the
/// coordinator's longest wait while a connect is pending.
const PROBE_INTERVAL: Duration = Duration::from_millis(20);

/// Pause after a failed round, so that all its members notice the failure.
const ROUND_BACKOFF: Duration = Duration::from_millis(10);

/// Options of [`Group::shrink`].
#[derive(Clone, Debug, Default)]
pub struct ShrinkOptions {
    /// How long the other ranks may take to call shrink, in milliseconds; 0 for the default.
    pub timeout_ms: u64,
    /// The deadline of the whole call in milliseconds; 0 for the default.
    pub connect_timeout_ms: u64,
}

/// A group that is ready on this rank, before the ready notice confirms it for all members.
#[derive(Debug)]
struct PreparedGroup {
    proposal: MembershipProposal,
    rank: Rank,
    origin: GroupOrigin,
    backend: Arc<dyn Backend>,
}

/// A proposal that all members accepted.
#[derive(Debug)]
struct CommittedProposal {
    proposal: MembershipProposal,
    /// By rank in the new group: the coordinator has a link to each member, a member has its link
    /// to the coordinator.
    links: Vec<(Rank, SurvivorLink)>,
}

/// The reason why building a group failed.
#[derive(Debug)]
enum BuildFailure {
    /// A member was lost; the remaining ranks may start another round.
    Retryable(Error),
    /// This rank cannot continue.
    Fatal(Error),
}

/// The reason why this rank stops and starts no further round.
#[derive(Debug)]
enum ShrinkStop {
    /// The prepared group is formed: another member received the ready notice.
    GroupFormed,
    /// This rank gets no new group.
    Failed(Error),
}

impl From<Error> for ShrinkStop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The state of one shrink call on one rank.
#[derive(Debug)]
struct ShrinkAttempt<'a> {
    group: &'a Group,
    session: &'a SurvivorSession<'a>,
    endpoint: &'a Arc<SurvivorEndpoint>,
    window: Duration,
    deadline: Deadline,
    membership: MembershipView,
    /// Ranks that have connected to this rank. Their messages are not read before this rank
    /// coordinates.
    pending_followers: PendingFollowers,
    prepared: Option<PreparedGroup>,
}

impl Group {
    /// Creates a group of the surviving ranks that call this method, in the order of their old
    /// ranks. If the group has not failed, the method fails it first.
    ///
    /// # Errors
    /// `Aborted` if the other ranks formed a group without this rank; `PeerFailed` if the group's
    /// failure names this rank as culprit, or if the arrived ranks are no quorum; `Timeout`; any
    /// error that prevents the creation of the back end.
    pub fn shrink(self: &Arc<Self>, options: &ShrinkOptions) -> Result<Self> {
        callbacks::reject_blocking_in_callback("shrinking a group")?;
        let deadline = connect_deadline(options.connect_timeout_ms)?;
        let window_ms =
            if options.timeout_ms == 0 { DEFAULT_WINDOW_MS } else { options.timeout_ms };
        if self.size() > 1 && self.backend.survivor_endpoint().is_none() {
            let message = format!(
                "back end {} cannot reconnect the ranks of a failed group",
                self.backend.name()
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if self.failure().is_none() {
            let message = format!("rank {} shrinks group {}", self.rank(), self.name());
            self.fail(&Error::new(ErrorKind::Aborted, message));
        }
        let Some(endpoint) = self.backend.survivor_endpoint() else {
            return self.shrink_alone(&deadline);
        };
        let failure = self.failure().unwrap_or_else(|| Error::internal("the group has no failure"));
        let session =
            endpoint.open_session().context(|| format!("shrinking {}", self.describe_rank()))?;
        let outcome = self.check_blame(&failure).and_then(|()| {
            let (window, membership) =
                (Duration::from_millis(window_ms), MembershipView::new(self.size(), &failure));
            let session = &session;
            let (pending_followers, prepared) = (PendingFollowers::default(), None);
            ShrinkAttempt {
                group: self,
                session,
                endpoint,
                window,
                deadline,
                membership,
                pending_followers,
                prepared,
            }
            .run()
        });
        let final_answer = match &outcome {
            Ok((_, proposal)) => ShrinkMessage::GroupFormed(proposal.clone()),
            Err(reason) => ShrinkMessage::Abandoned(reason.clone()),
        };
        if let Err(error) = session.finish_with_answer(&final_answer.encode()) {
            crate::log!(LogLevel::Warn, "cannot send the result to late ranks: {error}");
        }
        if outcome.is_ok() {
            // The failure of the old group no longer ends the process, so its error file is
            // withdrawn.
            error_file::retract();
        }
        outcome.map(|(group, _)| group).context(|| format!("shrinking {}", self.describe_rank()))
    }

    /// Shrinks a group whose back end has no survivor endpoint: a group of one rank.
    fn shrink_alone(&self, deadline: &Deadline) -> Result<Self> {
        let (id, epoch) = (this_process::random_nonce()?, self.origin.epoch + 1);
        let proposal = MembershipProposal { id, epoch, members: vec![0] };
        let origin = self.origin_of(&proposal, self.origin.former_endpoints.clone());
        let (identity, keys) = (
            self.identity_of(&proposal, 0),
            group_keys::open_group_keys(&origin.rendezvous_store, proposal.id),
        );
        let origin_and_keys = (&origin, keys.as_ref());
        let context = self.context_of(&proposal, origin_and_keys, &identity, deadline);
        let backend = backend::create(&origin.backend, &context, &SoloExchange)?;
        Ok(Self::assemble(identity, origin, backend))
    }

    /// Fails if the group's failure names this rank as its culprit: the other ranks then exclude
    /// it.
    fn check_blame(&self, failure: &Error) -> Result<()> {
        if failure.kind() != ErrorKind::PeerFailed || failure.culprit() != Some(self.rank()) {
            return Ok(());
        }
        let message = format!(
            "this rank caused the failure of the group, so the other ranks continue without it \
             ({failure}): end or restart this process"
        );
        Err(Error::new(ErrorKind::PeerFailed, message).with_culprit(self.rank()))
    }

    fn origin_of(
        &self,
        proposal: &MembershipProposal,
        former: Vec<Arc<SurvivorEndpoint>>,
    ) -> GroupOrigin {
        GroupOrigin {
            global_ranks: proposal
                .members
                .iter()
                .map(|&member| self.origin.global_ranks[member])
                .collect(),
            parent: Some(self.name().to_owned()),
            backend: self.origin.backend.clone(),
            backend_options: self.origin.backend_options.clone(),
            device: self.origin.device,
            store_address: self.origin.store_address.clone(),
            rendezvous_store: self.origin.rendezvous_store.clone(),
            epoch: proposal.epoch,
            former_endpoints: former,
            _name_lease: None,
        }
    }

    fn context_of<'a>(
        &'a self,
        proposal: &MembershipProposal,
        (origin, keys): (&'a GroupOrigin, Option<&'a Arc<dyn GroupKeyStore>>),
        identity: &'a GroupIdentity,
        deadline: &'a Deadline,
    ) -> GroupContext<'a> {
        GroupContext {
            group: proposal.id,
            name: &identity.name,
            timeout_ms: identity.timeout_ms,
            epoch: proposal.epoch,
            rank: identity.rank,
            size: proposal.members.len(),
            store_address: origin.store_address.as_ref().map(|(host, port)| (host.as_str(), *port)),
            group_keys: keys,
            options: &origin.backend_options,
            device: origin.device,
            parent: Some(ParentGroup {
                algorithm_overrides: self.backend.algorithm_overrides(),
                inherits_options: true,
            }),
            activity: Some(activity::describe_other_activity),
            deadline,
        }
    }

    fn identity_of(&self, proposal: &MembershipProposal, rank: Rank) -> GroupIdentity {
        let name = epoch_name(self.name(), self.origin.epoch, proposal.epoch);
        GroupIdentity { id: proposal.id, name, rank, timeout_ms: self.timeout_ms() }
    }
}

/// Returns the group's name with the suffix `#epoch`, which replaces the suffix of an earlier
/// epoch.
fn epoch_name(name: &str, old_epoch: u32, epoch: u32) -> String {
    let earlier = format!("#{old_epoch}");
    let base = if old_epoch == 0 { name } else { name.strip_suffix(&earlier).unwrap_or(name) };
    let suffix = format!("#{epoch}");
    let mut end = base.len().min(MAX_NAME_BYTES - suffix.len());
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{suffix}", &base[..end])
}

impl ShrinkAttempt<'_> {
    fn run(&mut self) -> Result<(Group, MembershipProposal)> {
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

    /// Runs one membership round, as a follower or as the coordinator. Returns `None` if the round
    /// may be retried.
    fn run_round(&mut self) -> std::result::Result<Option<CommittedProposal>, ShrinkStop> {
        for candidate in 0..self.me() {
            if !self.membership.is_expected(candidate) {
                continue;
            }
            match self.follow(candidate)? {
                follower::FollowOutcome::Agreed(agreed) => return Ok(Some(agreed)),
                follower::FollowOutcome::Reconnect => return Ok(None),
                follower::FollowOutcome::NotCoordinator => {}
            }
        }
        self.coordinate().map(Some)
    }

    /// Builds the group of a committed proposal, and waits until all members have prepared it.
    fn build_group(&mut self, agreed: CommittedProposal) -> std::result::Result<(), BuildFailure> {
        // No member of this proposal received a ready notice for an earlier group, so the earlier
        // group is void.
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

    /// Creates this rank's part of a group.
    fn prepare(
        &mut self,
        proposal: MembershipProposal,
        rank: Rank,
        exchange: &dyn BootstrapExchange,
        limit: &Deadline,
    ) -> Result<()> {
        let mut former = self.group.origin.former_endpoints.clone();
        former.push(Arc::clone(self.endpoint));
        let origin = self.group.origin_of(&proposal, former);
        let keys = group_keys::open_group_keys(&origin.rendezvous_store, proposal.id);
        let identity = self.group.identity_of(&proposal, rank);
        let origin_and_keys = (&origin, keys.as_ref());
        let context = self.group.context_of(&proposal, origin_and_keys, &identity, limit);
        let backend = backend::create(&origin.backend, &context, exchange)?;
        self.prepared = Some(PreparedGroup { proposal, rank, origin, backend });
        Ok(())
    }

    fn take_prepared(&mut self) -> Result<(Group, MembershipProposal)> {
        let prepared =
            self.prepared.take().ok_or_else(|| Error::internal("no group is prepared"))?;
        let PreparedGroup { proposal, rank, origin, backend } = prepared;
        let identity = self.group.identity_of(&proposal, rank);
        Ok((Group::assemble(identity, origin, backend), proposal))
    }

    fn me(&self) -> Rank {
        self.group.rank()
    }

    fn epoch(&self) -> u32 {
        self.group.origin.epoch + 1
    }

    /// Records a rank whose endpoint does not exist any more.
    fn mark_gone(&mut self, rank: Rank) {
        // A rank that left in order may be a member of a new group without this rank, so it counts
        // as alive. A rank that the failure names as culprit is dead in either case.
        let status = match self.group.backend.has_left(rank) && !self.membership.is_blamed(rank) {
            true => MembershipStatus::Absent("it has left the group".to_owned()),
            false => MembershipStatus::Dead,
        };
        self.membership.record_status(rank, status);
    }

    fn mark_absent(&mut self, rank: Rank, reason: impl Into<String>) {
        let reason = reason.into();
        crate::log!(
            LogLevel::Info,
            "this rank does not wait for {}: {reason}",
            self.session.name(rank)
        );
        self.membership.record_status(rank, MembershipStatus::Absent(reason));
    }

    fn mark_unreachable(&mut self, rank: Rank, call_outcome: &SurvivorConnectResult) {
        match call_outcome {
            SurvivorConnectResult::Reached(_) => {}
            SurvivorConnectResult::Gone(_) => self.mark_gone(rank),
            SurvivorConnectResult::Unreachable(reason) => self.mark_absent(rank, reason.message()),
        }
    }

    /// Returns whether this rank has prepared exactly this group.
    fn is_prepared(&self, formed: &MembershipProposal) -> bool {
        self.prepared.as_ref().is_some_and(|prepared| prepared.proposal.id == formed.id)
    }

    /// Returns the group's failure as the suffix of an error text.
    fn failure_suffix(&self) -> String {
        let failure = self.group.failure();
        failure.map_or_else(String::new, |reason| format!(" after the group failed ({reason})"))
    }

    /// Handles the report that other ranks formed a group: it is either the prepared group of this
    /// rank, or a group without it.
    fn stop_for_formed_group(&self, from: Rank, closed: &MembershipProposal) -> ShrinkStop {
        if self.is_prepared(closed) {
            return ShrinkStop::GroupFormed;
        }
        let MembershipProposal { epoch, members, .. } = closed;
        let (me, name) = (self.me(), self.session.name(from));
        let message = if members.contains(&me) {
            format!(
                "ranks {members:?} already are epoch {epoch} of the group, as {name} reports, and \
                 this rank has finished that shrink: the group was shrunk before"
            )
        } else {
            format!(
                "rank {me} is excluded from epoch {epoch}, which has ranks {members:?}, as {name} \
                 reports: it did not call dist_group_shrink in time{}, or could not be reached; \
                 end or restart this process",
                self.failure_suffix()
            )
        };
        ShrinkStop::Failed(Error::new(ErrorKind::Aborted, message))
    }
}

/// Returns whether a rank that abandoned its call for this reason may call again. It may if other
/// ranks were late and the rank itself was not the culprit.
fn may_rejoin(rank: Rank, reason: &Error) -> bool {
    match reason.kind() {
        ErrorKind::Timeout => true,
        ErrorKind::PeerFailed => reason.culprit() != Some(rank),
        _ => false,
    }
}
