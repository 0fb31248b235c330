//! Ranks that are processes of one host: [`SharedDomain`] over one anonymous segment.
//!
//! The lowest rank makes the segment and passes its descriptor over Unix sockets; the same sockets
//! stay open as *lifelines*, one between every two ranks, whose end of file is how a death is
//! noticed. Nothing has a name in any file system, so nothing is left behind.

mod lifeline;
mod meet;

pub use meet::{Meeting, Member, Party};

use super::region::{Backing, Region};
use super::{PeerName, SharedDomain};
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::sys::shm::Segment;
use crate::wait::Pace;
use crate::wait::service::{self, Watch};
use lifeline::Lifeline;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
    left: Vec<AtomicBool>,
}

/// One process's membership.
#[derive(Debug)]
pub struct Domain {
    shared: Arc<Shared>,
    pace: Pace,
    lifelines: Vec<Arc<Lifeline>>,
    /// Dropped before the lifelines close.
    watches: Vec<Watch>,
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
        let shared = Arc::new(Shared { region, rank, peers, left });
        let mut domain =
            Self { shared: Arc::clone(&shared), pace, lifelines: Vec::new(), watches: Vec::new() };
        for (peer, stream) in streams {
            let lifeline = Arc::new(Lifeline::new(Arc::clone(&shared), peer, stream));
            domain.watches.push(service::watch(lifeline.clone())?);
            if let Some(death) = lifeline.watch_process() {
                domain.watches.push(service::watch(death)?);
            }
            domain.lifelines.push(lifeline);
        }
        Ok(domain)
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        self.lifelines.iter().for_each(|lifeline| lifeline.say_goodbye());
        self.watches.clear();
    }
}

impl SharedDomain for Domain {
    fn region(&self) -> &Region {
        &self.shared.region
    }

    fn rank(&self) -> Rank {
        self.shared.rank
    }

    fn pace(&self) -> Pace {
        self.pace
    }

    fn peer(&self, rank: Rank) -> &PeerName {
        &self.shared.peers[rank]
    }

    fn has_left(&self, rank: Rank) -> bool {
        self.shared.left[rank].load(Ordering::Acquire)
    }
}
