//! Algorithms for the ranks of one host. The ranks share *control slots* (a step number and a short
//! inline payload) and *data slots* (buffers for longer payloads).
//!
//! - [`sequencer`] contains the protocol for these slots.
//! - [`exposure`] extends the protocol for buffers that peers read and write by cross-memory attach
//!   (CMA).
//! - [`refused_access`] completes operations in which the kernel refused CMA.
//! - [`arena_access`] extends the protocol for buffers in arenas, which peers access by load and
//!   store instructions. [`in_arenas`] contains the algorithms on arenas.
//! - The other modules are one folder per collective, with one file per algorithm.

mod arena_access;
pub mod arena_state;
mod count_exchange;
mod exposure;
pub mod in_arenas;
pub mod one_step;
mod refused_access;
mod revocation;
pub mod sequencer;
pub mod stagers;

/// All-gather: each rank receives the blocks of all ranks.
pub mod all_gather {
    pub mod cma_read;
    pub mod cma_write;
    pub mod small;
    pub mod staged;
}
/// All-reduce: each rank receives the fold of all vectors.
pub mod all_reduce {
    pub mod cma_read;
    pub mod cma_write;
    pub mod one_shot;
    pub mod small;
    pub mod two_shot;
}
/// All-to-all: each rank receives one block from each rank.
pub mod all_to_all {
    pub mod cma_read;
    pub mod cma_write;
    pub mod small;
    pub mod staged;
}
/// Barrier: no rank leaves before all ranks have entered.
pub mod barrier {
    pub mod flags;
}
/// Broadcast: each rank receives the root's vector.
pub mod broadcast {
    pub mod cma_write;
    pub mod small;
    pub mod staged;
}
/// Gather: the root receives the blocks of all ranks.
pub mod gather {
    pub mod staged;
}
/// Reduce: the root receives the fold of all vectors.
pub mod reduce {
    pub mod small;
    pub mod staged;
}
/// Reduce-scatter: each rank receives its block of the fold of all vectors.
pub mod reduce_scatter {
    pub mod cma_read;
    pub mod small;
    pub mod staged;
}
/// Scan and exscan: each rank receives the fold of the vectors of the ranks before it.
pub mod scan {
    pub mod small;
    pub mod staged;
}
/// Scatter: each rank receives one block of the root.
pub mod scatter {
    pub mod staged;
}

pub use sequencer::{ShmCursor, ShmSequencer};
