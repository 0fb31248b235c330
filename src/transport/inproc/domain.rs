//! [`SharedDomain`] for threads: a region on the heap. They are stopped together or not at all, so
//! nobody watches for that.

use super::Heap;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Rank};
use crate::transport::pulse::Activity;
use crate::transport::region::{Geometry, Region};
use crate::transport::{Listener, Listeners, PeerName, SharedDomain};
use crate::wait::Pace;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

/// What the members of one domain share.
#[derive(Debug)]
struct Hub {
    heap: Arc<Heap>,
    geometry: Geometry,
    left: Vec<AtomicBool>,
    listeners: Vec<Listeners>,
}

/// A node of a group.
type Key = (GroupId, usize);

/// The domains of the process.
static HUBS: LazyLock<Mutex<HashMap<Key, Weak<Hub>>>> = LazyLock::new(Mutex::default);

/// One thread's membership.
#[derive(Debug)]
pub struct Domain {
    region: Region,
    hub: Arc<Hub>,
    rank: Rank,
    peers: Vec<PeerName>,
    pace: Pace,
    group: GroupId,
    activity: Option<Activity>,
}

impl Domain {
    /// Joins the domain of a group's node as `rank`, counted within it; `peers` names every member.
    ///
    /// # Errors
    /// `OutOfMemory`; `Mismatch` where the members do not agree on the geometry.
    pub fn join(
        group: GroupId,
        node: usize,
        rank: Rank,
        peers: Vec<PeerName>,
        geometry: Geometry,
        pace: Pace,
    ) -> Result<Self> {
        let hub = Hub::find_or_make((group, node), geometry)?;
        if hub.geometry != geometry {
            let message = format!("ranks of one group want {geometry:?} and {:?}", hub.geometry);
            return Err(Error::new(ErrorKind::Mismatch, message));
        }
        let region = Region::new(geometry, Box::new(Arc::clone(&hub.heap)))?;
        Ok(Self { region, hub, rank, peers, pace, group, activity: None })
    }

    /// The same, and it can tell what the process is doing.
    #[must_use]
    pub fn telling(mut self, activity: Option<Activity>) -> Self {
        self.activity = activity;
        self
    }
}

impl Hub {
    fn find_or_make(key: Key, geometry: Geometry) -> Result<Arc<Self>> {
        let mut hubs = HUBS.lock().unwrap_or_else(PoisonError::into_inner);
        hubs.retain(|_, hub| hub.strong_count() > 0);
        if let Some(hub) = hubs.get(&key).and_then(Weak::upgrade) {
            return Ok(hub);
        }
        let heap = Arc::new(Heap::zeroed(geometry.bytes()?)?);
        let left = (0..geometry.ranks).map(|_| AtomicBool::new(false)).collect();
        let listeners = (0..geometry.ranks).map(|_| Listeners::default()).collect();
        let hub = Arc::new(Self { heap, geometry, left, listeners });
        hubs.insert(key, Arc::downgrade(&hub));
        Ok(hub)
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        self.leave();
    }
}

impl SharedDomain for Domain {
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
        self.hub.left[rank].load(Ordering::Acquire)
    }

    fn knock(&self, rank: Rank) {
        self.hub.listeners[rank].call();
    }

    fn said(&self, _: Rank) -> String {
        self.activity.map(|tell| tell(self.group)).unwrap_or_default()
    }

    fn ask(&self, ranks: &[Rank]) -> Vec<Option<String>> {
        ranks.iter().map(|&rank| Some(self.said(rank))).collect()
    }

    fn add_listener(&self, listener: Weak<dyn Listener>) {
        self.hub.listeners[self.rank].add(listener);
    }

    fn leave(&self) {
        if !self.hub.left[self.rank].swap(true, Ordering::AcqRel) {
            self.ring_all();
            self.hub.listeners.iter().for_each(Listeners::call);
        }
    }
}
