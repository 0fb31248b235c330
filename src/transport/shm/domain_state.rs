//! The state of one process's membership in a domain (the ranks of one host that share memory). The
//! calling threads and the service thread share this state.

use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, RankFault};
use crate::base::ids::{GroupId, Rank};
use crate::transport::neighbour::{FrameKind, NeighbourMember, PeerRoute};
use crate::transport::region::Region;
use crate::transport::{
    DoorbellListener, DoorbellListeners, HeartbeatConfig, PeerName, SharedDomain, heartbeat,
};
use crate::wait::service::Alarm;
use crate::wait::{WaitPolicy, wait_until};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// The state of a peer that is in the domain.
const PRESENT: u8 = 0;
/// The state of a peer that has left in order.
const LEFT: u8 = 1;
/// The state of a peer that has died.
const DIED: u8 = 2;

/// Which peers of a domain have left or died, as this process knows.
#[derive(Debug)]
pub(super) struct PeerEnds {
    states: Box<[AtomicU8]>,
    /// The first peer that has died, plus 1; 0 if no peer has died.
    first_dead: AtomicUsize,
}

impl PeerEnds {
    pub(super) fn new(size: usize) -> Self {
        Self {
            states: (0..size).map(|_| AtomicU8::new(PRESENT)).collect(),
            first_dead: AtomicUsize::new(0),
        }
    }

    /// Records that a peer has left. Returns false if its end was recorded before.
    pub(super) fn record_left(&self, peer: Rank) -> bool {
        self.record(peer, LEFT)
    }

    /// Records that a peer has died. Returns false if its end was recorded before.
    pub(super) fn record_died(&self, peer: Rank) -> bool {
        let is_new = self.record(peer, DIED);
        if is_new {
            let (release, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
            // If this fails, another peer has died before.
            let _before = self.first_dead.compare_exchange(0, peer + 1, release, relaxed);
        }
        is_new
    }

    /// Records that `dead` died before `peer`, which knew of its death. Called before the death of
    /// `peer` is recorded.
    pub(super) fn record_earlier_death(&self, peer: Rank, dead: Option<u64>) {
        let dead = dead.and_then(|dead| Rank::try_from(dead).ok());
        if let Some(dead) = dead.filter(|&dead| dead < self.states.len() && dead != peer) {
            let (release, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
            // If this fails, this rank knows of an even earlier death.
            let _before = self.first_dead.compare_exchange(0, dead + 1, release, relaxed);
        }
    }

    fn record(&self, peer: Rank, state: u8) -> bool {
        let state_of_peer = &self.states[peer];
        state_of_peer.compare_exchange(PRESENT, state, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Returns the peer that died first, as far as this rank knows.
    pub(super) fn first_dead(&self) -> Option<Rank> {
        self.first_dead.load(Ordering::Acquire).checked_sub(1)
    }

    fn state(&self, peer: Rank) -> u8 {
        self.states[peer].load(Ordering::Acquire)
    }
}

/// The state of a membership.
#[derive(Debug)]
pub(super) struct ShmDomainShared {
    pub(super) group: GroupId,
    pub(super) region: Region,
    pub(super) rank: Rank,
    pub(super) peers: Arc<[PeerName]>,
    pub(super) wait_policy: WaitPolicy,
    pub(super) ends: PeerEnds,
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

    /// Returns the error about a peer whose process has ended without leaving.
    pub(super) fn death_error(&self, peer: Rank) -> Error {
        let (name, doing) = (&self.peers[peer], self.region.describe_progress(peer));
        let error = Error::new(ErrorKind::PeerFailed, format!("{name} died; it {doing}"));
        error.with_culprit(name.rank).with_fault(RankFault::Died)
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
        self.ends.state(rank) == LEFT
    }

    fn has_ended(&self, rank: Rank) -> bool {
        self.ends.state(rank) != PRESENT
    }

    fn tolerate_deaths(&self) {
        self.region.presence(self.rank).mark_tolerant();
    }

    fn death(&self, rank: Rank) -> Option<Error> {
        (self.ends.state(rank) == DIED).then(|| self.death_error(rank))
    }

    fn has_deaths(&self) -> bool {
        self.ends.first_dead.load(Ordering::Relaxed) != 0
    }

    fn first_death(&self) -> Option<Error> {
        Some(self.death_error(self.ends.first_dead()?))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn death_that_a_dead_peer_knew_is_the_first() {
        let ends = PeerEnds::new(4);
        for invalid in [None, Some(4), Some(u64::MAX), Some(1)] {
            ends.record_earlier_death(1, invalid);
            assert_eq!(ends.first_dead(), None);
        }
        ends.record_earlier_death(1, Some(3));
        assert!(ends.record_died(1) && ends.record_died(3));
        assert_eq!(ends.first_dead(), Some(3));
    }
}
