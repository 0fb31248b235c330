//! The state of one shrink call on one rank: the ranks that want to follow this rank, this rank's
//! view of the other ranks, and the group that this rank has prepared.

use super::membership::{MembershipStatus, MembershipView};
use super::messages::{MembershipProposal, SEND_TIMEOUT, ShrinkMessage};
use crate::api::group::process_group::{Group, GroupOrigin};
use crate::backend::{Backend, PeerMonitor};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, RankFault};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::transport::survivor_rendezvous::{
    SurvivorConnectResult, SurvivorEndpoint, SurvivorLink, SurvivorSession,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The time that a follower waits before it tries again to join a candidate that has abandoned its
/// shrink call. Also the interval at which the coordinator polls a pending connection.
pub(super) const PROBE_INTERVAL: Duration = Duration::from_millis(20);

/// The interval at which a follower and the coordinator check which processes of their nodes have
/// ended.
pub(super) const DEATH_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The number of wait notices ("I am alive, keep waiting") that a rank sends to its followers in
/// one window. A window is the time after which a silent rank is skipped.
const NOTICES_PER_WINDOW: u32 = 4;

/// The times at which a rank sends wait notices to its followers.
#[derive(Debug)]
pub(super) struct NoticeSchedule {
    next: Deadline,
}

impl Default for NoticeSchedule {
    fn default() -> Self {
        Self { next: Deadline::after(Duration::ZERO) }
    }
}

impl NoticeSchedule {
    /// Returns whether notices are due. If so, plans the next ones.
    pub(super) fn take_due(&mut self, window: Duration) -> bool {
        let is_due = self.next.has_passed();
        if is_due {
            self.next = Deadline::after(window / NOTICES_PER_WINDOW);
        }
        is_due
    }

    /// Returns the time until the next notices.
    pub(super) fn remaining(&self) -> Duration {
        self.next.remaining()
    }
}

/// A group that is complete on this rank. The group is formed when the ready notice has confirmed
/// that it is complete on all members.
#[derive(Debug)]
pub(super) struct PreparedGroup {
    pub(super) proposal: MembershipProposal,
    pub(super) rank: Rank,
    pub(super) origin: GroupOrigin,
    pub(super) backend: Arc<dyn Backend>,
}

/// A proposal that all members accepted.
#[derive(Debug)]
pub(super) struct CommittedProposal {
    pub(super) proposal: MembershipProposal,
    /// The connections, each with the peer's rank in the new group. The coordinator has a link to
    /// each other member. Any other member has a link to the coordinator.
    pub(super) links: Vec<(Rank, SurvivorLink)>,
}

/// The reason why this rank ends its round.
#[derive(Debug)]
pub(super) enum ShrinkStop {
    /// The group that this rank has prepared is formed, because another member has received the
    /// ready notice.
    GroupFormed,
    /// A lower rank can be reached again, so this rank must not coordinate.
    NewRound,
    /// This rank gets no new group, for this reason.
    Failed(Error),
}

impl From<Error> for ShrinkStop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The state of one shrink call on one rank.
#[derive(Debug)]
pub(super) struct ShrinkAttempt<'a> {
    pub(super) group: &'a Group,
    pub(super) session: &'a SurvivorSession<'a>,
    pub(super) endpoint: &'a Arc<SurvivorEndpoint>,
    /// The time after which a silent rank is skipped.
    pub(super) window: Duration,
    pub(super) deadline: Deadline,
    /// The absence limit: until then, the coordinator tries again to reach the ranks that it cannot
    /// connect to, and whose death is not proven. After that it goes on without them if it has a
    /// quorum. It is one heartbeat limit, or the window if that is shorter.
    pub(super) absence_limit: Deadline,
    /// The rank that the group's failure names because it sent no heartbeat for the limit, so that
    /// the limit has passed already.
    silent_culprit: Option<Rank>,
    pub(super) membership: MembershipView,
    /// The ranks that have connected to this rank. This rank reads their messages only when it
    /// becomes the coordinator.
    pub(super) pending_followers: PendingFollowers,
    /// The group of the last round, if it is complete on this rank.
    pub(super) prepared: Option<PreparedGroup>,
}

/// The connections of ranks that want to follow this rank, while this rank itself follows a lower
/// rank.
///
/// The lower rank may stop responding, and then this rank becomes the coordinator. Until then, this
/// rank sends periodic wait notices to its pending followers. Without the notices, they would skip
/// this rank and form a group without it.
#[derive(Debug, Default)]
pub(super) struct PendingFollowers {
    links: BTreeMap<Rank, SurvivorLink>,
    notices: NoticeSchedule,
}

impl PendingFollowers {
    /// Accepts new connections and sends the wait notices that are due. Returns the time until the
    /// next notices.
    pub(super) fn send_wait_notices(
        &mut self,
        session: &SurvivorSession<'_>,
        window: Duration,
    ) -> Duration {
        let message = ShrinkMessage::Wait.encode();
        let was_notified =
            |link: &SurvivorLink| link.send(&message, &Deadline::after(SEND_TIMEOUT)).is_ok();
        if self.notices.take_due(window) {
            self.links.retain(|_, link| was_notified(link));
        }
        // If a rank connects again, its earlier connection was lost, and the new one replaces it.
        for (rank, link) in session.take_arrivals() {
            if was_notified(&link) {
                self.links.insert(rank, link);
            }
        }
        self.notices.remaining()
    }

    /// Takes the connections, because this rank becomes the coordinator.
    pub(super) fn take_links(&mut self) -> BTreeMap<Rank, SurvivorLink> {
        std::mem::take(&mut self.links)
    }
}

impl<'a> ShrinkAttempt<'a> {
    /// Creates the state for a group that has failed with this error.
    pub(super) fn new(
        group: &'a Group,
        session: &'a SurvivorSession<'a>,
        endpoint: &'a Arc<SurvivorEndpoint>,
        window: Duration,
        deadline: Deadline,
        failure: &Error,
    ) -> Self {
        let is_silence =
            [RankFault::Silent, RankFault::Stopped].into_iter().any(|it| failure.has_fault(it));
        let limit = group.backend.peer_monitor().and_then(PeerMonitor::heartbeat_limit);
        let absence_limit = deadline.capped(limit.map_or(window, |limit| limit.min(window)));
        Self {
            group,
            session,
            endpoint,
            window,
            deadline,
            absence_limit,
            silent_culprit: failure.culprit().filter(|_| is_silence),
            membership: MembershipView::new(group.size(), failure),
            pending_followers: PendingFollowers::default(),
            prepared: None,
        }
    }

    pub(super) fn me(&self) -> Rank {
        self.group.rank()
    }

    /// Returns the epoch of the new group: the number of shrinks since the outermost group.
    pub(super) fn epoch(&self) -> u32 {
        self.group.origin.epoch + 1
    }

    /// Returns true if the rank may be alive although it does not answer, and the heartbeat limit
    /// has not passed for it. The shrink must then not go on without it.
    pub(super) fn may_answer(&self, rank: Rank) -> bool {
        self.silent_culprit != Some(rank) && !self.absence_limit.has_passed()
    }

    /// Records the ranks of this node whose processes have ended.
    pub(super) fn record_node_deaths(&mut self) {
        for rank in self.session.dead_neighbours() {
            self.membership.record_status(rank, MembershipStatus::Dead);
        }
    }

    /// Records the deaths that another survivor can prove. Ranks that take part are alive, whatever
    /// the message says.
    pub(super) fn record_reported_deaths(
        &mut self,
        dead: &[Rank],
        takes_part: impl Fn(Rank) -> bool,
    ) {
        let (me, size) = (self.me(), self.group.size());
        for &rank in dead.iter().filter(|&&rank| rank < size && rank != me && !takes_part(rank)) {
            self.membership.record_status(rank, MembershipStatus::Dead);
        }
    }

    /// Records a rank whose survivor endpoint no longer exists, although its process lives.
    pub(super) fn mark_gone(&mut self, rank: Rank) {
        // A rank that left in order may be a member of a new group without this rank, so it counts
        // as alive. If the group's failure names the rank as culprit, the rank counts as dead even
        // if it left in order.
        let has_left = self.group.backend.peer_monitor().is_some_and(|it| it.has_left(rank));
        let status = match has_left && !self.membership.is_blamed(rank) {
            true => MembershipStatus::Absent("it has left the group".to_owned()),
            false => MembershipStatus::Dead,
        };
        self.membership.record_status(rank, status);
    }

    pub(super) fn mark_absent(&mut self, rank: Rank, reason: impl Into<String>) {
        let reason = reason.into();
        crate::log!(
            LogLevel::Info,
            "this rank does not wait for {}: {reason}",
            self.session.name(rank)
        );
        self.membership.record_status(rank, MembershipStatus::Absent(reason));
    }

    pub(super) fn mark_unreachable(&mut self, rank: Rank, call_outcome: &SurvivorConnectResult) {
        match call_outcome {
            SurvivorConnectResult::Reached(_) => {}
            SurvivorConnectResult::Dead => {
                self.membership.record_status(rank, MembershipStatus::Dead);
            }
            SurvivorConnectResult::Left => self.mark_gone(rank),
            SurvivorConnectResult::Unreachable(reason) => {
                let status = MembershipStatus::Unreachable(reason.message().to_owned());
                self.membership.record_status(rank, status);
            }
        }
    }

    /// Returns whether the group that this rank has prepared is this group.
    pub(super) fn is_prepared(&self, formed: &MembershipProposal) -> bool {
        self.prepared.as_ref().is_some_and(|prepared| prepared.proposal.id == formed.id)
    }

    /// Returns the group's failure as the suffix of an error text.
    pub(super) fn failure_suffix(&self) -> String {
        let failure = self.group.failure();
        failure.map_or_else(String::new, |reason| format!(" after the group failed ({reason})"))
    }

    /// Returns how this rank ends its call after rank `from` has reported a formed group. The
    /// formed group is one of three: the group that this rank has prepared, the group of an earlier
    /// shrink in which this rank took part, or a group without this rank.
    pub(super) fn stop_for_formed_group(
        &self,
        from: Rank,
        closed: &MembershipProposal,
    ) -> ShrinkStop {
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

/// Returns whether a rank that abandoned its shrink call for this reason may call shrink again.
/// This is so if the reason was that other ranks were late or failed, and the rank itself was not
/// the culprit.
pub(super) fn may_rejoin(rank: Rank, reason: &Error) -> bool {
    match reason.kind() {
        ErrorKind::Timeout => true,
        ErrorKind::PeerFailed => reason.culprit() != Some(rank),
        _ => false,
    }
}
