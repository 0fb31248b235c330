//! Ranks that are processes of one host: [`SharedDomain`] over one anonymous segment.
//!
//! The lowest rank makes the segment and passes its descriptor over Unix sockets; the same sockets
//! stay open as *lifelines*, one between every two ranks, whose end of file is how a death is
//! noticed; a rank that is merely stopped is noticed by its [`heart`]. Nothing has a name in any
//! file system, so nothing is left behind.

mod heart;
mod lifeline;
mod meet;

pub use meet::{Meeting, Member, Party};

use super::region::{Backing, Region};
use super::{Listener, Listeners, PeerName, SharedDomain, Vitals, pulse};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::ids::{GroupId, Rank};
use crate::sys::shm::Segment;
use crate::wait::service::{self, Alarm, Watch};
use crate::wait::{Pace, until};
use lifeline::Lifeline;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

// SAFETY: a segment is a mapping of whole pages that lives as long as the value; a new one is
// zeroed.
#[allow(unsafe_code, reason = "vouches for the mapping")]
unsafe impl Backing for Segment {
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

/// What the calling thread and the service thread share.
#[derive(Debug)]
struct Shared {
    group: GroupId,
    region: Region,
    rank: Rank,
    peers: Arc<[PeerName]>,
    pace: Pace,
    left: Vec<AtomicBool>,
    /// The connection to each other rank, in order.
    streams: Box<[UnixStream]>,
    listeners: Listeners,
    vitals: Vitals,
    /// Present while this rank beats.
    heart: Mutex<Option<Alarm>>,
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
        party: &Party<'_>,
        pace: Pace,
        mut streams: Vec<(Rank, UnixStream)>,
    ) -> Result<Self> {
        let Party { group, me: rank, vitals, .. } = *party;
        let peers = Arc::clone(party.peers);
        let left = peers.iter().map(|_| AtomicBool::new(false)).collect();
        streams.sort_by_key(|&(peer, _)| peer);
        let others = (0..peers.len()).filter(|&peer| peer != rank);
        if !streams.iter().map(|&(peer, _)| peer).eq(others) {
            return Err(Error::internal("not all ranks of the host are connected"));
        }
        let streams = streams.into_iter().map(|(_, stream)| stream).collect();
        let (listeners, heart) = (Listeners::default(), Mutex::default());
        let shared =
            Shared { group, region, rank, peers, pace, left, streams, listeners, vitals, heart };
        let shared = Arc::new(shared);
        let mut watches = Vec::new();
        for lifeline in Lifeline::of_all(&shared) {
            watches.push(service::watch(lifeline.clone())?);
            if let Some(death) = lifeline.watch_process() {
                watches.push(service::watch(death)?);
            }
        }
        // From here on, dropping it leaves.
        let domain = Self { shared, watches: Mutex::new(watches) };
        if let Some(rhythm) = vitals.rhythm {
            heart::start(&domain.shared, rhythm)?;
        }
        Ok(domain)
    }
}

impl Shared {
    /// The connection to another rank.
    fn stream(&self, peer: Rank) -> &UnixStream {
        &self.streams[peer - usize::from(peer > self.rank)]
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

    fn said(&self, rank: Rank) -> String {
        if rank == self.rank {
            return self.vitals.activity(self.group);
        }
        self.region.pulse(rank).said()
    }

    fn ask(&self, ranks: &[Rank]) -> Vec<Option<String>> {
        let asked: Vec<u64> = ranks.iter().map(|&rank| self.region.pulse(rank).ask()).collect();
        ranks.iter().for_each(|&rank| self.knock(rank));
        let has_answered = |(&rank, &stamp): (&Rank, &u64)| {
            rank == self.rank || self.region.pulse(rank).stamp() != stamp
        };
        let all = || ranks.iter().zip(&asked).all(has_answered).then_some(());
        let (bell, limit) = (self.region.bell(self.rank), Deadline::after(pulse::PATIENCE));
        // Who has answered until then has answered.
        drop(until(bell, Pace::PATIENT, &limit, || self.failure(), all));
        let answers = ranks.iter().zip(&asked);
        answers.map(|it| has_answered(it).then(|| self.said(*it.0))).collect()
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

    fn said(&self, rank: Rank) -> String {
        self.shared.said(rank)
    }

    fn ask(&self, ranks: &[Rank]) -> Vec<Option<String>> {
        self.shared.ask(ranks)
    }

    fn add_listener(&self, listener: Weak<dyn Listener>) {
        self.shared.add_listener(listener);
    }

    fn leave(&self) {
        self.shared.leave();
        heart::stop(&self.shared);
        let watches =
            std::mem::take(&mut *self.watches.lock().unwrap_or_else(PoisonError::into_inner));
        // Outside the lock: what is watched has a lock of its own.
        drop(watches);
    }
}
