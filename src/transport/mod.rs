//! How ranks reach each other. Two traits, and no algorithm:
//!
//! * [`SharedDomain`]: the ranks of one host, which share memory: control lines, staging slots, an
//!   abort record, and doorbells. Implemented by [`shm`] (processes) and [`inproc`] (threads).
//! * [`Endpoint`]: messages between any two ranks. Implemented by [`inproc`]; TCP comes with hosts.
//!
//! Everything that several ranks write is described in [`region`]; it is the same for both domains.
//!
//! Must not know: algorithms, stores, back ends.

pub mod abort;
pub mod endpoint;
pub mod inproc;
pub mod line;
pub mod point_to_point;
pub mod region;
pub mod shm;

pub use abort::Failure;
pub use endpoint::Endpoint;
pub use line::{Descriptor, Line, OpKind};
pub use point_to_point::{Completion, Delivery, Incoming, Outgoing, PointToPoint};
pub use region::{Geometry, Region};

use crate::base::error::Error;
use crate::base::ids::{Rank, WorldSize};
use crate::wait::Pace;
use std::fmt::Debug;

/// Who a rank is, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerName {
    /// The rank in the group.
    pub rank: Rank,
    /// Its process.
    pub pid: u32,
    /// Its host.
    pub host: String,
}

impl std::fmt::Display for PeerName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} (pid {}, host {})", self.rank, self.pid, self.host)
    }
}

/// The ranks of one host and the memory they share.
///
/// Obligations of an implementation:
/// * the region is zeroed when the domain begins, and is never reused for another;
/// * when a rank dies, every other member's `failure` becomes `Some` and its doorbell rings, without
///   anybody asking;
/// * when a rank leaves in order, `has_left` becomes true on every other member and its doorbell rings;
/// * dropping the domain is leaving.
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
    fn pace(&self) -> Pace;

    /// Who a rank is.
    fn peer(&self, rank: Rank) -> &PeerName;

    /// True once a rank has left in order; what it published before that stays readable.
    fn has_left(&self, rank: Rank) -> bool;

    /// Why the domain has failed, if it has.
    fn failure(&self) -> Option<Error> {
        self.region().failure().get()
    }

    /// Fails the domain for all its ranks; the first reason stays.
    fn fail(&self, error: &Error) {
        self.region().fail(error);
    }
}
