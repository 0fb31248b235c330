//! Ranks that are threads of one process: both transport traits over ordinary memory.
//!
//! It is the oracle for the other transports, and what programs with a rank per thread use. Members
//! find each other through a table of the process, under the id of their group.
#![allow(unsafe_code, reason = "hands out one allocation as the backing of a region")]

use super::endpoint::Endpoint;
use super::region::{Backing, Geometry, Region};
use super::{PeerName, SharedDomain};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Rank, WorldSize};
use crate::wait::bell::Bell;
use crate::wait::{Interrupt, Pace, until};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

/// The most bytes that wait for one receiver before its senders wait too.
const MAILBOX_BYTES: usize = 16 << 20;

/// Zeroed memory on the heap, aligned as a mapping would be.
#[derive(Debug)]
pub struct Heap {
    base: *mut u8,
    layout: Layout,
}

// SAFETY: the allocation belongs to the value, and what is in it is only touched through atomics and
// views.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Heap {
    /// `len` zero bytes.
    ///
    /// # Errors
    /// `OutOfMemory`, with the number of bytes.
    pub fn zeroed(len: usize) -> Result<Self> {
        let refused =
            || Error::new(ErrorKind::OutOfMemory, format!("no memory for a region of {len} bytes"));
        let layout = Layout::from_size_align(len.max(1), 4096).map_err(|_| refused())?;
        // SAFETY: the size is not zero.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() { Err(refused()) } else { Ok(Self { base, layout }) }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout, and freed once.
        unsafe { dealloc(self.base, self.layout) };
    }
}

// SAFETY: the allocation is `layout.size()` bytes, zeroed, aligned to 4096, and lives until the drop.
unsafe impl Backing for Heap {
    fn base(&self) -> *mut u8 {
        self.base
    }

    fn bytes(&self) -> usize {
        self.layout.size()
    }
}

// SAFETY: the shared heap lives as long as any of its owners.
unsafe impl Backing for Arc<Heap> {
    fn base(&self) -> *mut u8 {
        self.as_ref().base()
    }

    fn bytes(&self) -> usize {
        self.as_ref().bytes()
    }
}

/// What the members of one group share.
#[derive(Debug)]
struct Hub {
    heap: Arc<Heap>,
    geometry: Geometry,
    left: Vec<AtomicBool>,
    mailboxes: Vec<Mailbox>,
}

/// The messages that wait for one rank.
#[derive(Debug, Default)]
struct Mailbox {
    queues: Mutex<Queues>,
    /// Rung when a message arrives, and when one is taken.
    bell: Bell,
}

#[derive(Debug, Default)]
struct Queues {
    waiting: HashMap<(Rank, u64), VecDeque<Vec<u8>>>,
    bytes: usize,
}

static HUBS: LazyLock<Mutex<HashMap<GroupId, Weak<Hub>>>> = LazyLock::new(Mutex::default);

/// One thread's membership.
#[derive(Debug)]
pub struct Domain {
    region: Region,
    hub: Arc<Hub>,
    rank: Rank,
    peers: Vec<PeerName>,
    pace: Pace,
}

impl Domain {
    /// Joins the domain of a group as `rank`; `peers` names every member.
    ///
    /// # Errors
    /// `OutOfMemory`; `Mismatch` where the members do not agree on the geometry.
    pub fn join(
        group: GroupId,
        rank: Rank,
        peers: Vec<PeerName>,
        geometry: Geometry,
        pace: Pace,
    ) -> Result<Self> {
        let hub = Hub::find_or_make(group, geometry)?;
        if hub.geometry != geometry {
            let message = format!("ranks of one group want {geometry:?} and {:?}", hub.geometry);
            return Err(Error::new(ErrorKind::Mismatch, message));
        }
        let region = Region::new(geometry, Box::new(Arc::clone(&hub.heap)))?;
        Ok(Self { region, hub, rank, peers, pace })
    }
}

impl Hub {
    fn find_or_make(group: GroupId, geometry: Geometry) -> Result<Arc<Self>> {
        let mut hubs = lock(&HUBS);
        hubs.retain(|_, hub| hub.strong_count() > 0);
        if let Some(hub) = hubs.get(&group).and_then(Weak::upgrade) {
            return Ok(hub);
        }
        let heap = Arc::new(Heap::zeroed(geometry.bytes()?)?);
        let left = (0..geometry.ranks).map(|_| AtomicBool::new(false)).collect();
        let mailboxes = (0..geometry.ranks).map(|_| Mailbox::default()).collect();
        let hub = Arc::new(Self { heap, geometry, left, mailboxes });
        hubs.insert(group, Arc::downgrade(&hub));
        Ok(hub)
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        self.hub.left[self.rank].store(true, Ordering::Release);
        self.region.ring_all();
        self.hub.mailboxes.iter().for_each(|mailbox| mailbox.bell.ring());
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
}

impl Endpoint for Domain {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> WorldSize {
        self.hub.geometry.ranks
    }

    fn send(&self, to: Rank, tag: u64, bytes: Src<'_>, deadline: &Deadline) -> Result<()> {
        let mailbox = self.mailbox(to)?;
        let mut copy = vec![0; bytes.len()];
        Dst::from(copy.as_mut_slice()).copy_from(bytes);
        let mut copy = Some(copy);
        let deliver = || {
            let mut queues = lock(&mailbox.queues);
            if queues.bytes >= MAILBOX_BYTES {
                return None;
            }
            let message = copy.take()?;
            queues.bytes += message.len();
            queues.waiting.entry((self.rank, tag)).or_default().push_back(message);
            Some(())
        };
        self.wait_on(mailbox, to, deadline, deliver)?;
        mailbox.bell.ring();
        Ok(())
    }

    fn receive(&self, from: Rank, tag: u64, into: Dst<'_>, deadline: &Deadline) -> Result<usize> {
        self.mailbox(from)?;
        let mailbox = &self.hub.mailboxes[self.rank];
        let take = || lock(&mailbox.queues).take(from, tag, into.len());
        let message = self.wait_on(mailbox, from, deadline, take)??;
        mailbox.bell.ring();
        into.slice(0, message.len()).copy_from(Src::from(message.as_slice()));
        Ok(message.len())
    }
}

impl Queues {
    /// The next message of a sender under a tag; one that does not fit stays where it is.
    fn take(&mut self, from: Rank, tag: u64, room: usize) -> Option<Result<Vec<u8>>> {
        let queue = self.waiting.get_mut(&(from, tag))?;
        let len = queue.front()?.len();
        if len > room {
            let message = format!(
                "the message of rank {from} with tag {tag} has {len} bytes, the buffer only {room}"
            );
            return Some(Err(Error::new(ErrorKind::Mismatch, message).with_culprit(from)));
        }
        let message = queue.pop_front()?;
        if queue.is_empty() {
            self.waiting.remove(&(from, tag));
        }
        self.bytes -= len;
        Some(Ok(message))
    }
}

impl Domain {
    fn mailbox(&self, rank: Rank) -> Result<&Mailbox> {
        self.hub.mailboxes.get(rank).ok_or_else(|| {
            let size = self.hub.mailboxes.len();
            Error::invalid(format!("rank {rank} does not exist in a group of {size}"))
        })
    }

    fn wait_on<T>(
        &self,
        mailbox: &Mailbox,
        peer: Rank,
        deadline: &Deadline,
        ready: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        let halted = || {
            let gone =
                || Error::new(ErrorKind::PeerFailed, format!("{} has left", self.peers[peer]));
            self.failure().or_else(|| self.has_left(peer).then(|| gone().with_culprit(peer)))
        };
        until(&mailbox.bell, self.pace, deadline, halted, ready).map_err(
            |interrupt| match interrupt {
                Interrupt::Halted(error) => error,
                Interrupt::Deadline => {
                    let waited = deadline.elapsed().as_millis();
                    let message =
                        format!("{} has not answered within {waited} ms", self.peers[peer]);
                    Error::new(ErrorKind::Timeout, message).with_culprit(peer)
                }
            },
        )
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::host;
    use std::time::Duration;

    fn domain(group: GroupId, rank: Rank, ranks: WorldSize) -> Domain {
        let peer = |rank| PeerName { rank, pid: host::pid(), host: "here".into() };
        let geometry = Geometry { ranks, slot_bytes: 4096 };
        let pace = Pace { spin: Duration::ZERO, crowded: true };
        Domain::join(group, rank, (0..ranks).map(peer).collect(), geometry, pace).unwrap()
    }

    fn soon() -> Deadline {
        Deadline::after_ms(10_000)
    }

    #[test]
    fn messages_keep_their_order_per_tag() {
        let group = host::random_nonce().unwrap();
        let (a, b) = (domain(group, 0, 2), domain(group, 1, 2));
        for (tag, text) in [(7, "one"), (8, "other"), (7, "two")] {
            a.send(1, tag, Src::from(text.as_bytes()), &soon()).unwrap();
        }
        let next = |tag| {
            let mut bytes = [0; 16];
            let len = b.receive(0, tag, Dst::from(&mut bytes[..]), &soon()).unwrap();
            String::from_utf8(bytes[..len].to_vec()).unwrap()
        };
        assert_eq!([next(7), next(7), next(8)], ["one", "two", "other"]);
    }

    #[test]
    fn a_message_too_long_writes_nothing_and_stays() {
        let group = host::random_nonce().unwrap();
        let (a, b) = (domain(group, 0, 2), domain(group, 1, 2));
        a.send(1, 0, Src::from(&b"long"[..]), &soon()).unwrap();
        let mut bytes = [9; 4];
        let error = b.receive(0, 0, Dst::from(&mut bytes[..3]), &soon()).unwrap_err();
        assert_eq!((error.kind(), bytes), (ErrorKind::Mismatch, [9; 4]));
        assert_eq!(b.receive(0, 0, Dst::from(&mut bytes[..]), &soon()).unwrap(), 4);
    }

    #[test]
    fn a_fast_sender_waits_and_a_leaver_is_named() {
        let group = host::random_nonce().unwrap();
        let (a, b) = (domain(group, 0, 2), domain(group, 1, 2));
        let big = vec![1; MAILBOX_BYTES];
        a.send(1, 0, Src::from(big.as_slice()), &soon()).unwrap();
        let full = a.send(1, 0, Src::from(&b"x"[..]), &Deadline::after_ms(20)).unwrap_err();
        assert_eq!((full.kind(), full.culprit()), (ErrorKind::Timeout, Some(1)));
        drop(b);
        let gone = a.send(1, 0, Src::from(&b"x"[..]), &soon()).unwrap_err();
        assert_eq!((gone.kind(), gone.culprit()), (ErrorKind::PeerFailed, Some(1)));
        assert!(a.send(5, 0, Src::empty(), &soon()).is_err());
    }
}
