//! How ranks reach each other. Two traits, and no algorithm:
//!
//! * [`SharedDomain`]: the ranks of one host, which share memory: control lines, staging slots, an
//!   abort record, and doorbells. Implemented by [`shm`] (processes) and [`inproc`] (threads).
//! * [`Endpoint`]: byte streams between any two ranks. Implemented by [`tcp`] and [`inproc`].
//!
//! Over the two, [`matching`] implements [`PointToPoint`]: messages that are matched by sender and
//! tag.
//!
//! Everything that several ranks write is described in [`region_address`]; it is the same for both
//! domains. How ranks show that they live is described in [`heartbeat`].
//!
//! Must not know: algorithms, stores, back ends.

pub mod abort;
pub mod arena;
pub mod cma;
pub mod collective_header;
pub mod ctrl_slot;
pub mod descriptor;
pub mod endpoint;
pub mod heartbeat;
pub mod inproc;
pub mod labels;
mod layout;
pub mod matching;
#[cfg(all(test, loom))]
mod models;
pub mod point_to_point;
pub mod rank_progress;
pub mod region;
pub mod reuse_policy;
pub mod ring;
pub mod shm;
pub mod survivor_rendezvous;
pub mod tcp;

pub use abort::AbortRecord;
pub use ctrl_slot::CtrlSlot;
pub use descriptor::{CountSpec, Descriptor, OpKind};
pub use endpoint::{
    Channel, Endpoint, MAX_COLLECTIVE_STREAMS, ProgressHandler, StreamDirection, StreamInterest,
};
pub use heartbeat::{HeartbeatConfig, HeartbeatTiming};
pub use point_to_point::{
    Completion, Delivery, ImmediateMessage, LARGEST_TAG, MessageEnvelope, PointToPoint,
    ProbeRequest, ProbedMessage, ReceiveBuffer, ReceiveRequest, SendRequest,
};
pub use region::{Region, RegionGeometry};
pub use reuse_policy::ReusePolicy;

use crate::base::error::Error;
use crate::base::ids::{Rank, WorldSize};
use crate::wait::WaitPolicy;
use std::fmt::Debug;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Who a rank is, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerName {
    /// The rank in the group.
    pub rank: Rank,
    /// Its process.
    pub pid: u32,
    /// Its host; shared by the names of all its ranks.
    pub host: Arc<str>,
}

impl std::fmt::Display for PeerName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} (pid {}, host {})", self.rank, self.pid, self.host)
    }
}

/// Who is told that another rank of the domain has rung while this one listens
/// ([`Bell::listen`](crate::wait::bell::Bell::listen)).
pub trait DoorbellListener: Send + Sync + Debug {
    /// Called by any thread, perhaps within a call of the listener's own: it raises a flag and
    /// returns.
    fn on_doorbell(&self);
}

/// The ranks of one host and the memory they share.
///
/// Obligations of an implementation:
/// * the region is zeroed when the domain begins, and is never reused for another;
/// * when a rank dies, every other member's `abort_record` becomes `Some` and its doorbell rings,
///   without anybody asking;
/// * when a rank's process does nothing for longer than the agreed limit, the same; ranks that are
///   threads of one process need no watch;
/// * when a rank leaves in order, `has_left` becomes true on every other member and its doorbell
///   rings;
/// * a rank that listens is knocked for whenever its doorbell is rung;
/// * [`SharedDomain::leave`] is leaving, and so is dropping the domain.
pub trait SharedDomain: Send + Sync + Debug {
    /// The memory.
    fn region(&self) -> &Region;

    /// This process's rank in the domain.
    fn rank(&self) -> Rank;

    /// The number of ranks in the domain.
    fn size(&self) -> WorldSize {
        self.region().geometry().ranks
    }

    /// How this rank waits.
    fn wait_policy(&self) -> WaitPolicy;

    /// Who a rank is.
    fn peer(&self, rank: Rank) -> &PeerName;

    /// True once a rank has left in order; what it published before that stays readable.
    fn has_left(&self, rank: Rank) -> bool;

    /// Tells the others that this rank leaves in order, whoever else still holds the domain. Once
    /// is enough.
    fn leave(&self);

    /// Why the domain has failed, if it has.
    fn failure(&self) -> Option<Error> {
        self.region().abort_record().get()
    }

    /// Fails the domain for all its ranks; the first reason stays. Listeners are told of it also
    /// where they do not listen just now.
    fn fail(&self, error: &Error) {
        self.region().abort_record().set(error);
        self.wake_all();
        (0..self.size()).for_each(|rank| self.notify_listeners(rank));
    }

    /// Calls the listeners of a rank, in its process.
    fn notify_listeners(&self, rank: Rank);

    /// What the process of a rank last said that it does beside the collectives of this group.
    fn last_activity(&self, rank: Rank) -> String;

    /// The same after asking these ranks, for messages; waits for [`heartbeat::PATIENCE`] at most.
    /// `None` for those that have not answered.
    fn query_activities(&self, ranks: &[Rank]) -> Vec<Option<String>>;

    /// Adds somebody to call when this rank is knocked for; it is forgotten when it is gone.
    fn add_listener(&self, listener: Weak<dyn DoorbellListener>);

    /// Wakes a rank that waits for what this one has just stored. The caller has put a
    /// `fence(SeqCst)` between the store and this.
    fn wake_rank_fenced(&self, rank: Rank) {
        let bell = self.region().doorbell(rank);
        bell.notify_fenced();
        if bell.has_listeners() {
            self.notify_listeners(rank);
        }
    }

    /// [`SharedDomain::wake_rank_fenced`] for whoever attends to a rank's messages. They have a
    /// bell of their own, so that listening for them costs collectives nothing.
    fn wake_message_waiter_fenced(&self, rank: Rank) {
        let bell = self.region().message_doorbell(rank);
        bell.notify_fenced();
        if bell.has_listeners() {
            self.notify_listeners(rank);
        }
    }

    /// Wakes every rank, this one included.
    fn wake_all(&self) {
        fence(Ordering::SeqCst);
        for rank in 0..self.size() {
            self.wake_rank_fenced(rank);
            self.wake_message_waiter_fenced(rank);
        }
    }
}

/// The listeners of one rank.
#[derive(Debug, Default)]
pub struct DoorbellListeners {
    listeners: Mutex<Vec<Weak<dyn DoorbellListener>>>,
}

impl DoorbellListeners {
    /// Adds one; those that are gone are forgotten.
    pub fn add(&self, listener: Weak<dyn DoorbellListener>) {
        let mut list = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|known| known.strong_count() > 0);
        list.push(listener);
    }

    /// Calls all that are there.
    pub fn notify_all(&self) {
        let list = self.listeners.lock().unwrap_or_else(PoisonError::into_inner).clone();
        list.iter().filter_map(Weak::upgrade).for_each(|listener| listener.on_doorbell());
    }
}
