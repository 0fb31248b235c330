//! Ranks that are processes of one host: [`SharedDomain`] over one anonymous segment.
//!
//! The lowest rank makes the segment and passes its descriptor over Unix sockets; the same sockets
//! stay open as *lifelines*, one between every two ranks, whose end of file is how a death is
//! noticed. Nothing has a name in any file system, so nothing is left behind.

mod lifeline;
mod meet;

pub use meet::{Meeting, Member, Party};

use super::region::{Backing, Region};
use super::{Listener, Listeners, PeerName, SharedDomain};
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::sys::shm::Segment;
use crate::wait::Pace;
use crate::wait::service::{self, Watch};
use lifeline::Lifeline;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

// SAFETY: a segment is a mapping of whole pages that lives as long as the value; a new one is zeroed.
#[allow(unsafe_code, reason = "vouches for the mapping")]
unsafe impl Backing for Segment {
    fn base(&self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn bytes(&self) -> usize {
        self.len()
    }
}

/// What the calling thread and the service thread share.
#[derive(Debug)]
struct Shared {
    region: Region,
    rank: Rank,
    peers: Vec<PeerName>,
    pace: Pace,
    left: Vec<AtomicBool>,
    /// The connection to each other rank.
    streams: Vec<Option<Arc<UnixStream>>>,
    listeners: Listeners,
}

/// One process's membership.
#[derive(Debug)]
pub struct Domain {
    shared: Arc<Shared>,
    /// Ended before the lifelines close.
    watches: Mutex<Vec<Watch>>,
}

impl Domain {
    /// Takes its place on the region; `streams` has the connection to every other rank.
    fn new(
        region: Region,
        rank: Rank,
        peers: Vec<PeerName>,
        pace: Pace,
        streams: Vec<(Rank, UnixStream)>,
    ) -> Result<Self> {
        let left = peers.iter().map(|_| AtomicBool::new(false)).collect();
        let mut by_rank: Vec<Option<Arc<UnixStream>>> = peers.iter().map(|_| None).collect();
        streams.into_iter().for_each(|(peer, stream)| by_rank[peer] = Some(Arc::new(stream)));
        let listeners = Listeners::default();
        let shared = Shared { region, rank, peers, pace, left, streams: by_rank, listeners };
        let shared = Arc::new(shared);
        let mut watches = Vec::new();
        for lifeline in Lifeline::of_all(&shared) {
            watches.push(service::watch(lifeline.clone())?);
            if let Some(death) = lifeline.watch_process() {
                watches.push(service::watch(death)?);
            }
        }
        Ok(Self { shared, watches: Mutex::new(watches) })
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        self.leave();
    }
}

impl SharedDomain for Shared {
    fn region(&self) -> &Region {
        &self.region
    }

    fn rank(&self) -> Rank {
        self.rank
    }

    fn pace(&self) -> Pace {
        self.pace
    }

    fn peer(&self, rank: Rank) -> &PeerName {
        &self.peers[rank]
    }

    fn has_left(&self, rank: Rank) -> bool {
        self.left[rank].load(Ordering::Acquire)
    }

    fn knock(&self, rank: Rank) {
        lifeline::knock(self, rank);
    }

    fn add_listener(&self, listener: Weak<dyn Listener>) {
        self.listeners.add(listener);
    }

    fn leave(&self) {
        lifeline::say_goodbye(self);
    }
}

impl SharedDomain for Domain {
    fn region(&self) -> &Region {
        self.shared.region()
    }

    fn rank(&self) -> Rank {
        self.shared.rank()
    }

    fn pace(&self) -> Pace {
        self.shared.pace()
    }

    fn peer(&self, rank: Rank) -> &PeerName {
        self.shared.peer(rank)
    }

    fn has_left(&self, rank: Rank) -> bool {
        self.shared.has_left(rank)
    }

    fn knock(&self, rank: Rank) {
        self.shared.knock(rank);
    }

    fn add_listener(&self, listener: Weak<dyn Listener>) {
        self.shared.add_listener(listener);
    }

    fn leave(&self) {
        self.shared.leave();
        let watches =
            std::mem::take(&mut *self.watches.lock().unwrap_or_else(PoisonError::into_inner));
        // Outside the lock: what is watched has a lock of its own.
        drop(watches);
    }
}
