//! [`SharedDomain`] for threads: the region (the memory that the ranks share) is on the heap. The
//! threads of a process are stopped together or not at all, so these ranks need no heartbeat
//! monitor.

use super::HeapRegion;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Rank};
use crate::base::sync::lock;
use crate::transport::heartbeat::ActivityFn;
use crate::transport::region::{Region, RegionGeometry};
use crate::transport::{DoorbellListener, DoorbellListeners, PeerName, SharedDomain, cma};
use crate::wait::WaitPolicy;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Weak};

/// The state that the members of one domain share.
#[derive(Debug)]
struct InprocDomainHub {
    heap: Arc<HeapRegion>,
    geometry: RegionGeometry,
    has_left: Vec<AtomicBool>,
    listeners: Vec<DoorbellListeners>,
}

/// The key of a domain: the id of the group, and the index of one of its nodes.
type InprocDomainKey = (GroupId, usize);

/// The shared state of each domain of this process, while at least one member exists.
static HUBS: LazyLock<Mutex<HashMap<InprocDomainKey, Weak<InprocDomainHub>>>> =
    LazyLock::new(Mutex::default);

/// One thread's membership in a domain.
#[derive(Debug)]
pub struct InprocDomain {
    region: Region,
    hub: Arc<InprocDomainHub>,
    rank: Rank,
    peers: Vec<PeerName>,
    wait_policy: WaitPolicy,
    group: GroupId,
    activity: Option<ActivityFn>,
}

impl InprocDomain {
    /// Joins the domain of one node of a group. `rank` is the number of this rank within the node,
    /// and `peers` has the name of each member.
    ///
    /// # Errors
    /// `OutOfMemory`; `Mismatch` if the members do not agree on the geometry.
    pub fn join(
        group: GroupId,
        node: usize,
        rank: Rank,
        peers: Vec<PeerName>,
        geometry: RegionGeometry,
        wait_policy: WaitPolicy,
    ) -> Result<Self> {
        let hub = InprocDomainHub::get_or_create((group, node), geometry)?;
        if hub.geometry != geometry {
            let message = format!(
                "ranks of one group use different region layouts: {geometry:?} and {:?}",
                hub.geometry
            );
            return Err(Error::new(ErrorKind::Mismatch, message));
        }
        let region = Region::new(geometry, Box::new(Arc::clone(&hub.heap)))?;
        // A model of loom needs no writes by CMA, and each store makes it larger.
        if !cfg!(loom) {
            cma::publish_write_cookie(&region, rank)?;
        }
        Ok(Self { region, hub, rank, peers, wait_policy, group, activity: None })
    }

    /// Sets the function that describes the activity of the process.
    #[must_use]
    pub fn with_activity(mut self, activity: Option<ActivityFn>) -> Self {
        self.activity = activity;
        self
    }
}

impl InprocDomainHub {
    fn get_or_create(key: InprocDomainKey, geometry: RegionGeometry) -> Result<Arc<Self>> {
        let mut hubs = lock(&HUBS);
        hubs.retain(|_, hub| hub.strong_count() > 0);
        if let Some(hub) = hubs.get(&key).and_then(Weak::upgrade) {
            return Ok(hub);
        }
        let heap = Arc::new(HeapRegion::zeroed(geometry.bytes()?)?);
        let has_left = (0..geometry.ranks).map(|_| AtomicBool::new(false)).collect();
        let listeners = (0..geometry.ranks).map(|_| DoorbellListeners::default()).collect();
        let hub = Arc::new(Self { heap, geometry, has_left, listeners });
        hubs.insert(key, Arc::downgrade(&hub));
        Ok(hub)
    }
}

impl Drop for InprocDomain {
    fn drop(&mut self) {
        self.leave();
    }
}

impl SharedDomain for InprocDomain {
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
        self.hub.has_left[rank].load(Ordering::Acquire)
    }

    fn notify_listeners(&self, rank: Rank) {
        self.hub.listeners[rank].notify_all();
    }

    fn last_activity(&self, _: Rank) -> String {
        self.activity.map(|tell| tell(self.group)).unwrap_or_default()
    }

    fn query_activities(&self, ranks: &[Rank]) -> Vec<Option<String>> {
        ranks.iter().map(|&rank| Some(self.last_activity(rank))).collect()
    }

    fn add_listener(&self, listener: Weak<dyn DoorbellListener>) {
        self.hub.listeners[self.rank].add(listener);
    }

    fn leave(&self) {
        if !self.hub.has_left[self.rank].swap(true, Ordering::AcqRel) {
            self.wake_all();
            self.hub.listeners.iter().for_each(DoorbellListeners::notify_all);
        }
    }
}
