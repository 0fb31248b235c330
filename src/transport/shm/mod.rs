//! Ranks that are processes of one host: [`SharedDomain`] over one anonymous segment.
//!
//! The lowest rank creates the segment and passes its descriptor to the other ranks over Unix
//! sockets ([`segment_setup`]). The sockets stay open as *liveness sockets*, one between each two
//! ranks: an end of file shows the death of the peer ([`liveness_socket`]). The
//! [`heartbeat_monitor`] detects a rank that is only stopped. No object has a name in a file
//! system, so no file is left behind.

mod heartbeat_monitor;
mod liveness_socket;
mod segment_setup;

pub use segment_setup::{ShmJoinConfig, ShmListener, ShmMember};

use super::region::{Region, RegionBacking};
use super::{
    DoorbellListener, DoorbellListeners, HeartbeatConfig, PeerName, SharedDomain, heartbeat,
};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::ids::{GroupId, Rank};
use crate::base::sync::lock;
use crate::sys::shm::Segment;
use crate::wait::service::{self, Alarm, DescriptorWatch};
use crate::wait::{WaitPolicy, wait_until};
use liveness_socket::LivenessSocket;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

// SAFETY: a segment is a mapping of whole pages that lives as long as the value; a new segment is
// zeroed.
#[allow(unsafe_code, reason = "guarantees the validity of the mapping")]
unsafe impl RegionBacking for Segment {
    fn base(&self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn bytes(&self) -> usize {
        self.len()
    }

    fn reserve(&self, offset: usize, len: usize) -> Result<()> {
        Self::reserve(self, offset, len)
    }
}

/// The state that the calling thread and the service thread share.
#[derive(Debug)]
struct ShmDomainShared {
    group: GroupId,
    region: Region,
    rank: Rank,
    peers: Arc<[PeerName]>,
    wait_policy: WaitPolicy,
    has_left: Vec<AtomicBool>,
    /// The connections to all other ranks, in rank order.
    streams: Box<[UnixStream]>,
    listeners: DoorbellListeners,
    vitals: HeartbeatConfig,
    /// The alarm of the heartbeat; present while this rank beats.
    heartbeat_alarm: Mutex<Option<Alarm>>,
}

/// One process's membership in a domain.
#[derive(Debug)]
pub struct ShmDomain {
    shared: Arc<ShmDomainShared>,
    /// The descriptor watches. They end before the liveness sockets close.
    watches: Mutex<Vec<DescriptorWatch>>,
}

impl ShmDomain {
    /// Creates the membership on the region. `streams` has the connection to every other rank.
    fn new(
        region: Region,
        config: &ShmJoinConfig<'_>,
        wait_policy: WaitPolicy,
        mut streams: Vec<(Rank, UnixStream)>,
    ) -> Result<Self> {
        let ShmJoinConfig { group, me: rank, vitals, .. } = *config;
        let peers = Arc::clone(config.peers);
        let has_left = peers.iter().map(|_| AtomicBool::new(false)).collect();
        streams.sort_by_key(|&(peer, _)| peer);
        let others = (0..peers.len()).filter(|&peer| peer != rank);
        if !streams.iter().map(|&(peer, _)| peer).eq(others) {
            return Err(Error::internal("not all ranks of the host are connected"));
        }
        let streams = streams.into_iter().map(|(_, stream)| stream).collect();
        let (listeners, heartbeat_alarm) = (DoorbellListeners::default(), Mutex::default());
        let shared = ShmDomainShared {
            group,
            region,
            rank,
            peers,
            wait_policy,
            has_left,
            streams,
            listeners,
            vitals,
            heartbeat_alarm,
        };
        let shared = Arc::new(shared);
        let mut watches = Vec::new();
        for socket in LivenessSocket::for_all_peers(&shared) {
            watches.push(service::watch(socket.clone())?);
            if let Some(death) = socket.exit_handler() {
                watches.push(service::watch(death)?);
            }
        }
        // From here on, dropping `domain` leaves the domain.
        let domain = Self { shared, watches: Mutex::new(watches) };
        if let Some(timing) = vitals.timing {
            heartbeat_monitor::start(&domain.shared, timing)?;
        }
        Ok(domain)
    }
}

impl ShmDomainShared {
    /// Returns the connection to another rank.
    fn stream(&self, peer: Rank) -> &UnixStream {
        &self.streams[peer - usize::from(peer > self.rank)]
    }
}

impl Drop for ShmDomain {
    fn drop(&mut self) {
        self.leave();
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
        liveness_socket::notify(self, rank);
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
        // The outcome of the wait does not matter: the answers so far are evaluated below.
        drop(wait_until(doorbell, WaitPolicy::SLEEP_SOON, &limit, || self.failure(), all_answered));
        let answers = ranks.iter().zip(&asked);
        answers.map(|it| has_answered(it).then(|| self.last_activity(*it.0))).collect()
    }

    fn add_listener(&self, listener: Weak<dyn DoorbellListener>) {
        self.listeners.add(listener);
    }

    fn leave(&self) {
        liveness_socket::announce_departure(self);
    }
}

impl SharedDomain for ShmDomain {
    fn region(&self) -> &Region {
        self.shared.region()
    }

    fn rank(&self) -> Rank {
        self.shared.rank()
    }

    fn wait_policy(&self) -> WaitPolicy {
        self.shared.wait_policy()
    }

    fn peer(&self, rank: Rank) -> &PeerName {
        self.shared.peer(rank)
    }

    fn has_left(&self, rank: Rank) -> bool {
        self.shared.has_left(rank)
    }

    fn notify_listeners(&self, rank: Rank) {
        self.shared.notify_listeners(rank);
    }

    fn last_activity(&self, rank: Rank) -> String {
        self.shared.last_activity(rank)
    }

    fn query_activities(&self, ranks: &[Rank]) -> Vec<Option<String>> {
        self.shared.query_activities(ranks)
    }

    fn add_listener(&self, listener: Weak<dyn DoorbellListener>) {
        self.shared.add_listener(listener);
    }

    fn leave(&self) {
        self.shared.leave();
        heartbeat_monitor::stop(&self.shared);
        let watches = std::mem::take(&mut *lock(&self.watches));
        // Drop the watches outside the lock: a watch has a lock of its own.
        drop(watches);
    }
}
