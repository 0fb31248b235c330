//! A new group of what is left of one that has failed, without its streams and without the store.
//!
//! All survivors call it, as a star around the lowest of them. Each tries the ranks below its own
//! in ascending order ([`follower`]): one that is dead, or says nothing for a window, is passed
//! over; one that follows another meanwhile says so again and again ([`pending_followers`]), since
//! it leads if that one falls silent. A rank with nobody below it leads ([`coordinator`]): it waits
//! until all who are not known to be dead have joined, or for the window, and proposes them as the
//! members; all must agree, and be a majority of those not proven dead ([`membership`]). Then they
//! meet over their links to the leader ([`exchange`]). Whoever dies before the group is there ends
//! the round, and the rest begin another one.
//!
//! A member keeps the old group's [`SurvivorEndpoint`], so that a rank that comes too late is told,
//! for as long as the new group or one made of what is left of it exists. The leader's very last
//! word is that all members are [`PreparedGroup`]. Where it dies while it says that, one that has
//! not heard it keeps what it has ready while it looks for the others: whom it finds has heard the
//! word, and says so, or takes part in another round.
//!
//! Must not know: how ranks reach each other, and how a back end's ranks meet.

mod coordinator;
mod exchange;
mod follower;
mod membership;
mod messages;
mod pending_followers;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use super::group::{Group, GroupIdentity, GroupOrigin, MAX_NAME_BYTES, connect_deadline};
use super::subgroup::SoloExchange;
use super::{activity, callbacks, error_file, group_keys};
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

/// How long the others may take to call it, where nothing else is said.
const DEFAULT_WINDOW_MS: u64 = 10_000;

/// How long members that have agreed may take to meet, at least.
const MIN_BUILD_TIME: Duration = Duration::from_secs(10);

/// How long a word may take into a connection.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// How long to wait between two tries of something that nobody announces.
const CONNECT_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// How long to wait before a rank is asked again that has given up and may call again, or was lost.
const PROBE_INTERVAL: Duration = Duration::from_millis(20);

/// How long a round that has failed is left alone, so that all who were in it hear of it.
const ROUND_BACKOFF: Duration = Duration::from_millis(10);

/// How a group is made of what is left of another.
#[derive(Clone, Debug, Default)]
pub struct ShrinkOptions {
    /// How long each rank may take to come, in milliseconds; 0 for the default.
    pub timeout_ms: u64,
    /// The deadline of all of it in milliseconds; 0 for the default.
    pub connect_timeout_ms: u64,
}

/// A group that is ready on this rank; whether it is on all others is not known yet.
#[derive(Debug)]
struct PreparedGroup {
    proposal: MembershipProposal,
    rank: Rank,
    origin: GroupOrigin,
    backend: Arc<dyn Backend>,
}

/// Members that have agreed.
#[derive(Debug)]
struct CommittedProposal {
    proposal: MembershipProposal,
    /// By rank in the new group: of the leader to all others, of the others to the leader.
    links: Vec<(Rank, SurvivorLink)>,
}

/// Why there is no group yet.
#[derive(Debug)]
enum BuildFailure {
    /// Somebody was lost; the rest may try again.
    Retryable(Error),
    /// This rank cannot go on.
    Fatal(Error),
}

/// Why a round has come to nothing, and there is no other.
#[derive(Debug)]
enum ShrinkStop {
    /// The group that this rank has ready is there: another member has heard that all are.
    GroupFormed,
    /// There will be no group for this rank.
    Failed(Error),
}

impl From<Error> for ShrinkStop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// One call, on one rank.
#[derive(Debug)]
struct ShrinkAttempt<'a> {
    group: &'a Group,
    session: &'a SurvivorSession<'a>,
    endpoint: &'a Arc<SurvivorEndpoint>,
    window: Duration,
    deadline: Deadline,
    membership: MembershipView,
    /// They have connected, and what they say is not read before this rank leads.
    pending_followers: PendingFollowers,
    prepared: Option<PreparedGroup>,
}

impl Group {
    /// Makes a group of those of this one's ranks that are left and call this, in their order.
    /// Fails the group first where it has not failed.
    ///
    /// # Errors
    /// `Aborted` where the others have gone on without this rank; `PeerFailed` where the group has
    /// failed because of this rank, or where too few have come; `Timeout`; what keeps a back end
    /// from being made here.
    pub fn shrink(self: &Arc<Self>, options: &ShrinkOptions) -> Result<Self> {
        callbacks::reject_blocking_in_callback("shrinking a group")?;
        let deadline = connect_deadline(options.connect_timeout_ms)?;
        let window_ms =
            if options.timeout_ms == 0 { DEFAULT_WINDOW_MS } else { options.timeout_ms };
        if self.size() > 1 && self.backend.survivor_endpoint().is_none() {
            let message =
                format!("the ranks of back end {} cannot meet again", self.backend.name());
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if self.failure().is_none() {
            let message = format!("rank {} shrinks group {}", self.rank(), self.name());
            self.fail(&Error::new(ErrorKind::Aborted, message));
        }
        let Some(endpoint) = self.backend.survivor_endpoint() else {
            return self.shrink_alone(&deadline);
        };
        let failure = self.failure().unwrap_or_else(|| Error::internal("no failure"));
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
            crate::log!(LogLevel::Warn, "ranks that are late will not be told: {error}");
        }
        if outcome.is_ok() {
            // What has failed the group ends nobody.
            error_file::retract();
        }
        outcome.map(|(group, _)| group).context(|| format!("shrinking {}", self.describe_rank()))
    }

    /// What is left of one rank is that rank.
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

    /// Whether the others take this rank for one that is gone.
    fn check_blame(&self, failure: &Error) -> Result<()> {
        if failure.kind() != ErrorKind::PeerFailed || failure.culprit() != Some(self.rank()) {
            return Ok(());
        }
        let message = format!(
            "the group has failed because of this very rank, so the others go on without it ({failure}): end this \
             process, or start it anew"
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

/// The old name with the epoch behind it, in the place of an earlier one.
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
                        crate::log!(LogLevel::Info, "beginning again: {error}");
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
            "the ranks that are left have made no group within {} ms{}",
            self.deadline.timeout().as_millis(),
            last_error.map_or_else(String::new, |error| format!("; the last try: {error}"))
        );
        Err(Error::new(ErrorKind::Timeout, message))
    }

    /// Comes to an agreement, with one below this rank or as the leader; `None` where that may be
    /// tried again.
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

    /// Makes the group that was agreed on, until all members have theirs ready.
    fn build_group(&mut self, agreed: CommittedProposal) -> std::result::Result<(), BuildFailure> {
        // Nobody of these members has heard that an earlier one is there.
        self.prepared = None;
        let CommittedProposal { proposal, links } = agreed;
        let rank = proposal.members.iter().position(|&member| member == self.me());
        let rank = rank.ok_or_else(|| BuildFailure::Fatal(Error::internal("not a member")))?;
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

    /// Makes this rank's part of a group.
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
        let prepared = self.prepared.take().ok_or_else(|| Error::internal("nothing is ready"))?;
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

    /// What it means that nobody is there.
    fn mark_gone(&mut self, rank: Rank) {
        // One that left in order may have gone on without this rank. The one that the failure names
        // is gone either way.
        let status = match self.group.backend.has_left(rank) && !self.membership.is_blamed(rank) {
            true => MembershipStatus::Absent("it has left the group".to_owned()),
            false => MembershipStatus::Dead,
        };
        self.membership.record_status(rank, status);
    }

    fn mark_absent(&mut self, rank: Rank, reason: impl Into<String>) {
        let reason = reason.into();
        crate::log!(LogLevel::Info, "{} is not waited for: {reason}", self.session.name(rank));
        self.membership.record_status(rank, MembershipStatus::Absent(reason));
    }

    fn mark_unreachable(&mut self, rank: Rank, call_outcome: &SurvivorConnectResult) {
        match call_outcome {
            SurvivorConnectResult::Reached(_) => {}
            SurvivorConnectResult::Gone(_) => self.mark_gone(rank),
            SurvivorConnectResult::Unreachable(reason) => self.mark_absent(rank, reason.message()),
        }
    }

    /// Whether this rank has this very group ready.
    fn is_prepared(&self, formed: &MembershipProposal) -> bool {
        self.prepared.as_ref().is_some_and(|prepared| prepared.proposal.id == formed.id)
    }

    /// What everybody shrinks the group for, in words.
    fn failure_suffix(&self) -> String {
        let failure = self.group.failure();
        failure.map_or_else(String::new, |reason| format!(" after the group had failed ({reason})"))
    }

    /// The others have a group: this rank's too, or they have gone on without it.
    fn stop_for_formed_group(&self, from: Rank, closed: &MembershipProposal) -> ShrinkStop {
        if self.is_prepared(closed) {
            return ShrinkStop::GroupFormed;
        }
        let MembershipProposal { epoch, members, .. } = closed;
        let (me, name) = (self.me(), self.session.name(from));
        let message = if members.contains(&me) {
            format!(
                "ranks {members:?} are the group's epoch {epoch} already, says {name}, and this rank's part in it has \
                 ended: the group has been shrunk before"
            )
        } else {
            format!(
                "rank {me} is excluded from epoch {epoch}, which is ranks {members:?}, says {name}: it did not call \
                 dist_group_shrink in time{}, or could not be reached; end this process, or start it anew",
                self.failure_suffix()
            )
        };
        ShrinkStop::Failed(Error::new(ErrorKind::Aborted, message))
    }
}

/// Whether a rank that has given up for this reason may call again: others were late, and not
/// itself at fault.
fn may_rejoin(rank: Rank, reason: &Error) -> bool {
    match reason.kind() {
        ErrorKind::Timeout => true,
        ErrorKind::PeerFailed => reason.culprit() != Some(rank),
        _ => false,
    }
}
