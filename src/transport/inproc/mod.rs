//! Ranks that are threads of one process: both transport traits over ordinary memory.
//!
//! It is the oracle for the other transports, and what programs with a rank per thread use. Members
//! find each other through tables of the process, under the id of their group.

mod domain;
mod heap;
mod mesh;

pub use domain::InprocDomain;
pub use heap::HeapRegion;
pub use mesh::InprocMesh;
