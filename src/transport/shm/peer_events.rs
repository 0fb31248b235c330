//! The events of the peers of a domain: wake requests, departures and deaths. The service thread
//! reports them ([`neighbour`](crate::transport::neighbour)).
//!
//! **Death and departure.** A rank that leaves in order sets its departure flag in the region (the
//! shared memory of the host's ranks). This is a store, which cannot fail. If the link to the
//! process of a peer ends and the peer has not set that flag, the peer has died. The death fails
//! the domain, unless this rank tolerates deaths: then only operations that need the peer fail.
//!
//! **Wake requests.** On a wake request, the service thread of the peer's process calls the
//! listeners. A rank sends one when it leaves, when it rings the doorbell of a peer that listens
//! (`SharedDomain::notify_listeners`), and when it queries the peer's activity. The region has a
//! word for each direction that says whether a request is pending. While a request is pending, a
//! rank sends no further request, so many wake requests cost one system call.

use super::domain_state::ShmDomainShared;
use crate::base::ids::{Nonce, Rank};
use crate::base::log::LogLevel;
use crate::transport::SharedDomain as _;
use crate::transport::neighbour::{NeighbourHandler, PeerRoute};

/// Handles the ends of links that ended before the domain took over their events.
pub(super) fn check_links(shared: &ShmDomainShared) {
    let others = (0..shared.peers.len()).filter(|&peer| peer != shared.rank);
    others
        .filter(|&peer| shared.route(peer).has_ended())
        .for_each(|peer| handle_process_end(shared, peer));
}

/// Returns whether the peer has left in order. If it has, records this and notifies this rank.
fn check_departure(shared: &ShmDomainShared, peer: Rank) -> bool {
    if !shared.region.presence(peer).has_left() {
        return false;
    }
    if shared.ends.record_left(peer) {
        notify_own_waiters(shared);
    }
    true
}

/// Makes the waiting threads of this rank check the peers again.
fn notify_own_waiters(shared: &ShmDomainShared) {
    shared.region.doorbell(shared.rank).notify();
    shared.listeners.notify_all();
}

/// Handles the end of a peer's process. If the peer has not left in order, it has died.
fn handle_process_end(shared: &ShmDomainShared, peer: Rank) {
    if check_departure(shared, peer) {
        return;
    }
    // The peer may have ended because of the death of another rank. The kernel closes the sockets
    // of a dead process one after another, so this rank may see that death later.
    let earlier_death = shared.region.presence(peer).known_death();
    shared
        .ends
        .record_earlier_death(peer, earlier_death.filter(|&dead| dead != shared.rank as u64));
    if !shared.ends.record_died(peer) {
        return;
    }
    if let Some(first) = shared.ends.first_dead() {
        shared.region.presence(shared.rank).record_known_death(first);
    }
    let error = shared.death_error(peer);
    crate::log!(LogLevel::Error, "{error}");
    // If the group exists on the dead rank, all ranks have joined. This rank may not know this yet,
    // and tolerates the death as well.
    let is_tolerant = |rank| shared.region.presence(rank).is_tolerant();
    if is_tolerant(shared.rank) || is_tolerant(peer) {
        notify_own_waiters(shared);
    } else {
        shared.fail(&error);
    }
}

impl ShmDomainShared {
    /// Returns whether a peer is in a process, which has a registry with this name.
    fn is_in_process(&self, peer: Rank, process: Nonce) -> bool {
        match self.route(peer) {
            PeerRoute::SameProcess => self.member.is_own_process(process),
            PeerRoute::Link(link) => link.process() == process,
        }
    }

    /// Returns whether this rank has left the domain, so that it takes no further events.
    fn has_departed(&self) -> bool {
        self.region.presence(self.rank).has_left()
    }
}

impl NeighbourHandler for ShmDomainShared {
    fn on_wake(&self, process: Nonce, from: Rank) {
        let Ok(peer) = self.peers.binary_search_by_key(&from, |name| name.rank) else { return };
        if peer == self.rank || !self.is_in_process(peer, process) || self.has_departed() {
            return;
        }
        // Mark the request as answered before handling it. If the peer has something new to report
        // after this mark, it sends another request.
        self.region.finish_wake_request(peer, self.rank);
        if self.region.heartbeat(self.rank).take_activity_request() {
            self.publish_activity();
        }
        check_departure(self, peer);
        self.listeners.notify_all();
    }

    fn on_process_end(&self, process: Nonce) {
        if self.has_departed() {
            return;
        }
        let others = (0..self.peers.len()).filter(|&peer| peer != self.rank);
        others
            // The link may have ended before this domain began, which uses its successor.
            .filter(|&peer| self.is_in_process(peer, process) && self.route(peer).has_ended())
            .for_each(|peer| handle_process_end(self, peer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::deadline::Deadline;
    use crate::sys::host;
    use crate::transport::neighbour::{NeighbourMember, NeighbourRegistry};
    use crate::transport::shm::{self, ShmDomain, ShmJoinConfig, ShmMember};
    use crate::transport::{
        DoorbellListener, HeartbeatConfig, PeerName, RegionGeometry, ReusePolicy,
    };
    use crate::wait::{WaitPolicy, wait_until};
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};

    /// Creates two ranks that are threads, with a registry each, as if they were processes.
    fn pair() -> (ShmDomain, ShmDomain) {
        pair_with([0, 1].map(|_| Arc::new(NeighbourRegistry::new().unwrap())))
    }

    fn pair_with(registries: [Arc<NeighbourRegistry>; 2]) -> (ShmDomain, ShmDomain) {
        let group = host::random_nonce().unwrap();
        let [first, second] = registries;
        let register = |(rank, registry)| NeighbourMember::register_with(registry, group, rank, 2);
        let ranks = [(0, first), (1, second)].map(|it| register(it).unwrap());
        let name = |rank| PeerName::new(rank, host::pid(), "here".into());
        let peers: Arc<[PeerName]> = [name(0), name(1)].into();
        let member = |rank: &Arc<NeighbourMember>| ShmMember {
            socket: rank.socket_name(),
            nonce: host::random_nonce().unwrap(),
        };
        let members: Vec<_> = ranks.iter().map(member).collect();
        let geometry = RegionGeometry::within_host(2, 4096, ReusePolicy::WhileCached);
        let deadline = Deadline::after_ms(30_000);
        std::thread::scope(|scope| {
            let join = |(me, rank): (Rank, Arc<NeighbourMember>)| {
                let (peers, members, deadline) = (&peers, &members, &deadline);
                let vitals = HeartbeatConfig::default();
                let config = ShmJoinConfig { group, peers, members, me, deadline, vitals };
                scope.spawn(move || {
                    shm::join(&rank, &config, geometry, WaitPolicy::SLEEP_SOON, &|| None)
                })
            };
            let threads = ranks.into_iter().enumerate().map(join).collect::<Vec<_>>();
            let mut domains = threads.into_iter().map(|thread| thread.join().unwrap().unwrap());
            (domains.next().unwrap(), domains.next().unwrap())
        })
    }

    /// A listener that blocks the service thread while the test holds the lock.
    #[derive(Debug, Default)]
    struct Slow(Mutex<()>, AtomicU64);

    impl DoorbellListener for Slow {
        fn on_doorbell(&self) {
            self.1.fetch_add(1, Ordering::Release);
            drop(self.0.lock().unwrap());
        }
    }

    #[test]
    fn peer_leaving_after_many_notifications_is_not_dead() {
        let (leaver, stayer) = pair();
        let slow = Arc::new(Slow::default());
        let listener: Arc<dyn DoorbellListener> = slow.clone();
        stayer.add_listener(Arc::downgrade(&listener));
        let held = slow.0.lock().unwrap();
        // Send more notifications than a socket holds.
        (0..5000).for_each(|_| leaver.notify_listeners(1));
        drop(leaver);
        drop(held);
        let region = stayer.region();
        let over = || (stayer.has_left(0) || stayer.failure().is_some()).then_some(());
        let deadline = Deadline::after_ms(30_000);
        wait_until(region.doorbell(1), WaitPolicy::SLEEP_SOON, &deadline, || None, over).unwrap();
        assert_eq!(stayer.failure(), None);
        assert!(stayer.has_left(0));
    }

    #[test]
    fn every_notification_calls_the_listener() {
        check_notifications(pair());
    }

    #[test]
    fn every_notification_within_a_process_arrives() {
        let registry = Arc::new(NeighbourRegistry::new().unwrap());
        check_notifications(pair_with([Arc::clone(&registry), registry]));
    }

    fn check_notifications(domains: (ShmDomain, ShmDomain)) {
        let (notifier, listening) = domains;
        let slow = Arc::new(Slow::default());
        let listener: Arc<dyn DoorbellListener> = slow.clone();
        listening.add_listener(Arc::downgrade(&listener));
        for _ in 0..1000 {
            let before = slow.1.load(Ordering::Acquire);
            notifier.notify_listeners(1);
            let began = std::time::Instant::now();
            while slow.1.load(Ordering::Acquire) == before {
                assert!(began.elapsed().as_secs() < 30, "a notification was lost");
                std::thread::yield_now();
            }
        }
    }
}
