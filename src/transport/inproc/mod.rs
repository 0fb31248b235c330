//! Ranks that are threads of one process: both transport traits over ordinary memory.
//!
//! The tests use it as the reference for the other transports; programs with one thread per rank
//! use it too. Members find each other in tables of the process, by the id of their group.

mod domain;
mod heap;
mod mesh;

pub use domain::InprocDomain;
pub use heap::HeapRegion;
pub use mesh::InprocMesh;
