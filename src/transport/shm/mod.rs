//! Ranks that are processes of one host: [`SharedDomain`] over one anonymous shared-memory
//! segment.
//!
//! The lowest rank creates the segment and passes its descriptor to the other ranks over the links
//! of the process to its [neighbours](super::neighbour) ([`segment_setup`]). Once all ranks have
//! mapped the segment, the domain has no descriptor. If the process of a peer dies, its link ends
//! ([`peer_events`]). A peer that is only stopped keeps its link; the [`heartbeat_monitor`] detects
//! such a peer. Neither the segment nor a socket has a name in a file system, so a crash leaves no
//! file behind.

mod domain_state;
mod heartbeat_monitor;
mod peer_events;
mod segment_setup;
#[cfg(test)]
mod segment_setup_tests;
mod sharing_trial;

pub use segment_setup::{
    SegmentPlan, ShmJoinConfig, ShmMember, create_segment, exceeds_file_limit, join, join_with,
};
pub use sharing_trial::{find_lost_link, try_links};

use super::region::{Region, RegionBacking};
use super::{DoorbellListener, DoorbellListeners, PeerName, SharedDomain};
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::sys::shm::SegmentMapping;
use crate::transport::neighbour::{NeighbourMember, PeerRoute};
use crate::wait::WaitPolicy;
use domain_state::{PeerEnds, ShmDomainShared};
use std::sync::{Arc, Mutex, Weak};

// SAFETY: a segment is a mapping of whole pages that lives as long as the value; a new segment is
// zeroed.
#[allow(unsafe_code, reason = "guarantees the validity of the mapping")]
unsafe impl RegionBacking for SegmentMapping {
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

/// One process's membership in a domain.
#[derive(Debug)]
pub struct ShmDomain {
    shared: Arc<ShmDomainShared>,
}

impl ShmDomain {
    /// Creates the membership of this rank. `routes` has the route to each other rank, in rank
    /// order.
    fn new(
        region: Region,
        config: &ShmJoinConfig<'_>,
        wait_policy: WaitPolicy,
        member: &Arc<NeighbourMember>,
        routes: Box<[PeerRoute]>,
    ) -> Result<Self> {
        let ShmJoinConfig { group, me: rank, vitals, .. } = *config;
        let peers = Arc::clone(config.peers);
        let ends = PeerEnds::new(peers.len());
        let (listeners, heartbeat_alarm) = (DoorbellListeners::default(), Mutex::default());
        let shared = ShmDomainShared {
            group,
            region,
            rank,
            peers,
            wait_policy,
            ends,
            routes,
            member: Arc::clone(member),
            listeners,
            vitals,
            heartbeat_alarm,
        };
        let shared = Arc::new(shared);
        // After this line, an error drops `domain`, so this rank leaves the domain.
        let domain = Self { shared };
        member.hand_over(&domain.shared);
        peer_events::check_links(&domain.shared);
        if let Some(timing) = vitals.timing {
            heartbeat_monitor::start(&domain.shared, timing)?;
        }
        Ok(domain)
    }
}

impl Drop for ShmDomain {
    fn drop(&mut self) {
        self.leave();
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

    fn has_ended(&self, rank: Rank) -> bool {
        self.shared.has_ended(rank)
    }

    fn tolerate_deaths(&self) {
        self.shared.tolerate_deaths();
    }

    fn death(&self, rank: Rank) -> Option<Error> {
        self.shared.death(rank)
    }

    fn has_deaths(&self) -> bool {
        self.shared.has_deaths()
    }

    fn first_death(&self) -> Option<Error> {
        self.shared.first_death()
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
    }
}
