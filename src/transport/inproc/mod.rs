//! Ranks that are threads of one process. This module implements both traits of the transport
//! layer, [`SharedDomain`](super::SharedDomain) and [`Endpoint`](super::Endpoint), in ordinary
//! memory.
//!
//! Programs with one thread per rank use this transport, and the tests use it as the reference for
//! the other transports. Two global tables of the process have the state of each group by the id of
//! the group, so that the members of a group find each other.

mod domain;
mod heap;
mod mesh;

pub use domain::InprocDomain;
pub use heap::HeapRegion;
pub use mesh::InprocMesh;
