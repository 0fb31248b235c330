//! Neighbours: the processes of one host that have ranks in common groups. Everything that two such
//! processes share belongs to the processes and not to their groups, so a further group costs no
//! descriptor.
//!
//! Each process has one [`registry::NeighbourRegistry`], with one listening Unix socket and one
//! *link* (a connected Unix socket) to each neighbour. The service thread reads the links. A link
//! has three purposes:
//!
//! - It carries frames ([`frame`]) for the ranks of all groups: the setup of shared memory, and
//!   wake requests.
//! - Its end shows that the neighbour's process has ended. A rank that leaves in order says so in
//!   the memory of its group, so an end without this mark is a death.
//! - The first connection of a pair becomes the link. The listening socket also accepts connections
//!   of survivors, by which the ranks of a failed group reach each other ([`survivors`]).
//!
//! A rank registers with the registry for each of its groups ([`NeighbourMember`]). The registry
//! gives the member the frames and the ends that concern it. The sockets are closed when the last
//! member of the process is gone. The next registry has another name, so a link never belongs to
//! two registries of one process.
//!
//! Ranks of the same process have no link; the registry passes their frames on in memory. A forked
//! child gets no copy of the sockets ([`fork_descriptors`](crate::sys::fork_descriptors)).

mod frame;
mod incoming;
mod link;
mod member;
#[cfg(test)]
#[cfg(not(loom))]
mod other_user_tests;
mod registry;
mod survivors;

pub(super) use frame::FrameKind;
pub use frame::{ProcessAddress, SURVIVOR_ACCEPTED, SURVIVOR_UNKNOWN, SurvivorHello};
pub(super) use link::NeighbourLink;
pub use member::NeighbourMember;
pub(super) use member::{NeighbourHandler, PeerRoute, ProcessEnd, SetupLoss, SetupPeer};
#[cfg(test)]
pub(super) use registry::NeighbourRegistry;
