//! The state of one process's membership in a domain (the ranks of one host that share memory). The
//! calling threads and the service thread share this state.

use crate::base::deadline::Deadline;
use crate::base::ids::{GroupId, Rank};
use crate::transport::neighbour::{FrameKind, NeighbourMember, PeerRoute};
use crate::transport::region::Region;
use crate::transport::{
    DoorbellListener, DoorbellListeners, HeartbeatConfig, PeerName, SharedDomain, heartbeat,
};
use crate::wait::service::Alarm;
use crate::wait::{WaitPolicy, wait_until};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// The state of a membership.
#[derive(Debug)]
pub(super) struct ShmDomainShared {
    pub(super) group: GroupId,
    pub(super) region: Region,
    pub(super) rank: Rank,
    pub(super) peers: Arc<[PeerName]>,
    pub(super) wait_policy: WaitPolicy,
    pub(super) has_left: Vec<AtomicBool>,
    /// The routes to all other ranks, in rank order. This rank has no entry.
    pub(super) routes: Box<[PeerRoute]>,
    /// The registration of this rank with the registry of the process.
    pub(super) member: Arc<NeighbourMember>,
    pub(super) listeners: DoorbellListeners,
    pub(super) vitals: HeartbeatConfig,
    /// The alarm on which the service thread increments this rank's heartbeat; `None` while this
    /// rank sends no heartbeats.
    pub(super) heartbeat_alarm: Mutex<Option<Alarm>>,
}

impl ShmDomainShared {
    /// Returns the route to another rank.
    pub(super) fn route(&self, peer: Rank) -> &PeerRoute {
        &self.routes[peer - usize::from(peer > self.rank)]
    }

    /// Publishes a text about this process's activity, and wakes all ranks of the domain, because
    /// the rank that has queried the activity is one of them. Called on the service thread, which
    /// is the only writer of the text.
    pub(super) fn publish_activity(&self) {
        self.region
            .heartbeat(self.rank)
            .publish_activity(&self.vitals.describe_activity(self.group));
        (0..self.peers.len()).for_each(|peer| self.region.doorbell(peer).notify());
    }
}

impl SharedDomain for ShmDomainShared {
    fn region(&self) -> &Region {
        &self.region
    }

    fn rank(&self) -> Rank {
        self.rank
    }

    fn wait_policy(&self) -> WaitPolicy {
        self.wait_policy
    }

    fn peer(&self, rank: Rank) -> &PeerName {
        &self.peers[rank]
    }

    fn has_left(&self, rank: Rank) -> bool {
        self.has_left[rank].load(Ordering::Acquire)
    }

    fn notify_listeners(&self, rank: Rank) {
        if rank == self.rank {
            self.listeners.notify_all();
        } else if self.region.begin_wake_request(self.rank, rank) {
            // An error of the send does not matter: a peer that is gone needs no request.
            let to = self.peers[rank].rank;
            drop(self.member.send(self.route(rank), FrameKind::Wake, to, None));
        }
    }

    fn last_activity(&self, rank: Rank) -> String {
        if rank == self.rank {
            return self.vitals.describe_activity(self.group);
        }
        self.region.heartbeat(rank).last_activity()
    }

    fn query_activities(&self, ranks: &[Rank]) -> Vec<Option<String>> {
        let asked: Vec<u64> =
            ranks.iter().map(|&rank| self.region.heartbeat(rank).request_activity()).collect();
        ranks.iter().for_each(|&rank| self.notify_listeners(rank));
        let has_answered = |(&rank, &stamp): (&Rank, &u64)| {
            rank == self.rank || self.region.heartbeat(rank).stamp() != stamp
        };
        let all_answered = || ranks.iter().zip(&asked).all(has_answered).then_some(());
        let (doorbell, limit) =
            (self.region.doorbell(self.rank), Deadline::after(heartbeat::ACTIVITY_QUERY_TIMEOUT));
        // The outcome of the wait does not matter, because the lines below check each answer.
        drop(wait_until(doorbell, WaitPolicy::SLEEP_SOON, &limit, || self.failure(), all_answered));
        let answers = ranks.iter().zip(&asked);
        answers.map(|it| has_answered(it).then(|| self.last_activity(*it.0))).collect()
    }

    fn add_listener(&self, listener: Weak<dyn DoorbellListener>) {
        self.listeners.add(listener);
    }

    fn leave(&self) {
        if self.region.presence(self.rank).has_left() {
            return;
        }
        self.region.presence(self.rank).mark_left();
        let others = (0..self.peers.len()).filter(|&peer| peer != self.rank);
        others.for_each(|peer| self.notify_listeners(peer));
    }
}
