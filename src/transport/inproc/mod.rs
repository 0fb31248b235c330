//! Ranks that are threads of one process: both transport traits over ordinary memory.
//!
//! It is the oracle for the other transports, and what programs with a rank per thread use. Members
//! find each other through tables of the process, under the id of their group.

mod domain;
mod fabric;
mod heap;

pub use domain::Domain;
pub use fabric::Fabric;
pub use heap::Heap;
