//! Ranks that are processes of one host: [`SharedDomain`] over one anonymous shared-memory
//! segment.
//!
//! The lowest rank creates the segment and passes its descriptor to the other ranks over Unix
//! sockets ([`segment_setup`]). After the setup, the sockets stay open as *liveness sockets*, one
//! between each two ranks. If a peer dies, its end of the socket is closed, and this rank reads an
//! end of file ([`liveness_socket`]). A peer that is only stopped keeps its socket open; the
//! [`heartbeat_monitor`] detects such a peer. Neither the segment nor a socket has a name in a file
//! system, so a crash leaves no file behind.

mod domain_state;
mod heartbeat_monitor;
mod liveness_socket;
mod segment_setup;

pub use segment_setup::{ShmJoinConfig, ShmListener, ShmMember};

use super::region::{Region, RegionBacking};
use super::{DoorbellListener, DoorbellListeners, PeerName, SharedDomain};
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::base::sync::lock;
use crate::sys::shm::Segment;
use crate::wait::WaitPolicy;
use crate::wait::service::{self, DescriptorWatch};
use domain_state::ShmDomainShared;
use liveness_socket::LivenessSocket;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
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

/// One process's membership in a domain.
#[derive(Debug)]
pub struct ShmDomain {
    shared: Arc<ShmDomainShared>,
    /// The service thread's watches of the liveness sockets. They end before the liveness sockets
    /// close.
    watches: Mutex<Vec<DescriptorWatch>>,
}

impl ShmDomain {
    /// Creates the membership of this rank. `streams` has the connection to each other rank.
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
        // After this line, an error drops `domain`, so this rank leaves the domain.
        let domain = Self { shared, watches: Mutex::new(watches) };
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
        // Drop the watches outside the lock, because dropping a watch takes another lock.
        drop(watches);
    }
}
