//! The transport layer moves bytes between ranks; the algorithms of the collectives are a layer
//! above it. It has two traits:
//!
//! - [`SharedDomain`]: the ranks of one host and the memory that they share. [`shm`] implements it
//!   for processes and [`inproc`] for threads. The memory, the *region*, has for each rank *control
//!   slots* (step number and short payload), *data slots* (long payload) and *doorbells* (futex
//!   words on which a waiting rank sleeps). It also has one *abort record* (the reason why the
//!   domain failed).
//! - [`Endpoint`]: byte streams between any two ranks. [`tcp`] and [`inproc`] implement it.
//!
//! On top of both traits, [`matching`] implements [`PointToPoint`]: messages that are matched by
//! sender and tag.
//!
//! [`region`] gives access to the region, whose layout is the same for processes and for threads.
//! [`heartbeat`] describes how ranks show that they are alive.
//!
//! This layer does not depend on algorithms, stores or back ends.

pub mod abort;
pub mod arena;
pub mod cma;
pub mod cma_bounce;
pub mod collective_header;
pub mod ctrl_slot;
pub mod descriptor;
pub mod endpoint;
pub mod exposure;
pub mod heartbeat;
pub mod inproc;
pub mod labels;
mod layout;
pub mod loans;
pub mod matching;
mod message_counts;
#[cfg(all(test, loom))]
mod models;
pub mod neighbour;
pub mod op_kind;
pub mod point_to_point;
pub mod presence;
pub mod rank_progress;
pub mod region;
pub mod reuse_policy;
pub mod ring;
mod shared_text;
pub mod shm;
#[cfg(all(test, loom))]
mod stamp_models;
pub mod survivor_rendezvous;
pub mod tcp;

pub use abort::AbortRecord;
pub use ctrl_slot::CtrlSlot;
pub use descriptor::{CountSpec, Descriptor};
pub use endpoint::{
    Channel, Endpoint, MAX_COLLECTIVE_STREAMS, ProgressHandler, StreamDirection, StreamInterest,
};
pub use heartbeat::{HeartbeatConfig, HeartbeatTiming};
pub use message_counts::{MessageCounts, PeerTag};
pub use op_kind::OpKind;
pub use point_to_point::{
    Completion, Delivery, ImmediateMessage, LARGEST_TAG, MessageEnvelope, MessageTraffic,
    PointToPoint, ProbeRequest, ProbedMessage, ReceiveBuffer, ReceiveRequest, RefusedMessage,
    RefusedMessages, SendRequest, UnmatchedMessage,
};
pub use region::{Region, RegionGeometry};
pub use reuse_policy::ReusePolicy;

use crate::base::error::Error;
use crate::base::ids::{Rank, WorldSize};
use crate::base::sync::lock;
use crate::wait::WaitPolicy;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, Weak};

/// The identity of a rank, as error messages and the log show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerName {
    /// The number of the rank in the group.
    pub rank: Rank,
    /// The number of the rank that texts show. It differs from `rank` only in a group that the
    /// library uses inside of another group: there it is the number in the other group, which the
    /// user knows. A `u32` suffices for every group, and does not enlarge this struct.
    pub shown_rank: u32,
    /// The id of the rank's process.
    pub pid: u32,
    /// The name of the rank's host. The names of all ranks of one host share this text.
    pub host: Arc<str>,
}

impl PeerName {
    /// Returns the name of a rank that texts show with its own number.
    pub fn new(rank: Rank, pid: u32, host: Arc<str>) -> Self {
        Self { rank, shown_rank: 0, pid, host }.shown_as(rank)
    }

    /// Returns the name with another number in texts.
    #[must_use]
    pub fn shown_as(self, shown_rank: Rank) -> Self {
        Self { shown_rank: u32::try_from(shown_rank).unwrap_or(u32::MAX), ..self }
    }
}

impl std::fmt::Display for PeerName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} (pid {}, host {})", self.shown_rank, self.pid, self.host)
    }
}

/// The callback of a rank that listens on its doorbell
/// ([`Doorbell::listen`](crate::wait::doorbell::Doorbell::listen)). A listening rank does not sleep
/// on the doorbell's futex word, because it also waits for descriptors. When another rank of the
/// domain rings the doorbell, the callback is called in the process of the listening rank.
pub trait DoorbellListener: Send + Sync {
    /// Called by any thread, possibly inside a call that the listener itself has made. An
    /// implementation only sets a flag and returns.
    fn on_doorbell(&self);
}

crate::base::trait_object_debug::impl_debug_of_objects!(DoorbellListener);

/// The ranks of one host and their shared memory.
///
/// Obligations of an implementation:
/// - The region is zeroed when the domain is created, and no other domain reuses this memory.
/// - If a rank dies, [`SharedDomain::failure`] becomes `Some` on every other member, and that
///   member's doorbell rings. The member need not make a call for this. On a member that tolerates
///   deaths ([`SharedDomain::tolerate_deaths`]), only [`SharedDomain::death`] becomes `Some`.
/// - If a rank's process sends no heartbeat for longer than the agreed limit, the domain fails in
///   the same way. Ranks that are threads of one process need no monitoring.
/// - If a rank leaves in order, [`SharedDomain::has_left`] becomes true on every other member, and
///   that member's doorbell rings.
/// - If the doorbell of a listening rank is rung, the listeners of that rank are called in its
///   process.
/// - [`SharedDomain::leave`] leaves the domain. Dropping the domain also leaves it.
pub trait SharedDomain: Send + Sync {
    /// Returns the shared region.
    fn region(&self) -> &Region;

    /// Returns this process's rank in the domain.
    fn rank(&self) -> Rank;

    /// Returns the number of ranks in the domain.
    fn size(&self) -> WorldSize {
        self.region().geometry().ranks
    }

    /// Returns the wait policy of this rank.
    fn wait_policy(&self) -> WaitPolicy;

    /// Returns the name of a rank.
    fn peer(&self, rank: Rank) -> &PeerName;

    /// Returns true once a rank has left in order. The data that it published before stays
    /// readable.
    fn has_left(&self, rank: Rank) -> bool;

    /// Returns true once a rank has left or died. The data that it published before stays readable.
    fn has_ended(&self, rank: Rank) -> bool {
        self.has_left(rank)
    }

    /// Makes the death of a rank no failure of the domain on this member from now on. Operations
    /// that need the rank must check [`SharedDomain::death`], and other operations go on.
    fn tolerate_deaths(&self) {}

    /// Returns the error about a rank that has died.
    fn death(&self, _rank: Rank) -> Option<Error> {
        None
    }

    /// Returns whether a rank has died.
    fn has_deaths(&self) -> bool {
        false
    }

    /// Returns the error about the first rank that has died, if a rank has died.
    fn first_death(&self) -> Option<Error> {
        None
    }

    /// Notifies the other ranks that this rank leaves in order, even if other parts of this process
    /// still hold the domain object. Further calls have no effect.
    fn leave(&self);

    /// Returns the domain's failure, if it has failed.
    fn failure(&self) -> Option<Error> {
        self.region().abort_record().get()
    }

    /// Fails the domain for all its ranks. If several calls fail the domain, the first reason is
    /// kept. This function calls the listeners of all ranks, even of ranks that do not listen on
    /// their doorbells at that time.
    fn fail(&self, error: &Error) {
        self.region().abort_record().set(error);
        self.wake_all();
        (0..self.size()).for_each(|rank| self.notify_listeners(rank));
    }

    /// Calls the listeners of a rank, in the process of that rank.
    fn notify_listeners(&self, rank: Rank);

    /// Returns the text about a rank's activity outside the collectives of this group, as the
    /// rank's process last published it.
    fn last_activity(&self, rank: Rank) -> String;

    /// Queries the current activity of these ranks, for error messages. Waits for at most
    /// [`heartbeat::ACTIVITY_QUERY_TIMEOUT`]. The result has `None` for each rank that has not
    /// answered in that time.
    fn query_activities(&self, ranks: &[Rank]) -> Vec<Option<String>>;

    /// Adds a listener for this rank's doorbells. The list drops a listener whose owner is gone.
    fn add_listener(&self, listener: Weak<dyn DoorbellListener>);

    /// Wakes a rank that waits for a store that this rank has made. The caller must have executed
    /// `fence(SeqCst)` between the store and this call.
    fn wake_rank_fenced(&self, rank: Rank) {
        let doorbell = self.region().doorbell(rank);
        doorbell.notify_fenced();
        if doorbell.has_listeners() {
            self.notify_listeners(rank);
        }
    }

    /// Wakes the progress owner of a rank's messages (the thread that moves them on: a waiting
    /// caller or the service thread). The fence rule of [`SharedDomain::wake_rank_fenced`]
    /// applies. Messages and collectives have separate doorbells, so that a rank that listens for
    /// messages does not slow down collectives.
    fn wake_message_waiter_fenced(&self, rank: Rank) {
        let doorbell = self.region().message_doorbell(rank);
        doorbell.notify_fenced();
        if doorbell.has_listeners() {
            self.notify_listeners(rank);
        }
    }

    /// Wakes all ranks, including this one.
    fn wake_all(&self) {
        fence(Ordering::SeqCst);
        for rank in 0..self.size() {
            self.wake_rank_fenced(rank);
            self.wake_message_waiter_fenced(rank);
        }
    }
}

crate::base::trait_object_debug::impl_debug_of_objects!(SharedDomain);

/// The doorbell listeners of one rank.
#[derive(Debug, Default)]
pub struct DoorbellListeners {
    listeners: Mutex<Vec<Weak<dyn DoorbellListener>>>,
}

impl DoorbellListeners {
    /// Adds a listener, and drops the listeners whose owners are gone.
    pub fn add(&self, listener: Weak<dyn DoorbellListener>) {
        let mut list = lock(&self.listeners);
        list.retain(|known| known.strong_count() > 0);
        list.push(listener);
    }

    /// Calls all listeners that still exist.
    pub fn notify_all(&self) {
        let list = lock(&self.listeners).clone();
        list.iter().filter_map(Weak::upgrade).for_each(|listener| listener.on_doorbell());
    }
}
