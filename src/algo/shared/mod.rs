//! Algorithms for the ranks of one host, over the lines and slots that they share.
//!
//! [`sequencer`] is the protocol, [`exposure`] what it is where buffers are read and written in the
//! memory of their ranks, [`arena_access`] where that is done by loads and stores; the rest is a
//! folder per collective and a file per algorithm.

pub mod arena_access;
mod count_exchange;
mod exposure;
pub mod one_step;
mod revocation;
pub mod sequencer;
pub mod stagers;

/// Everybody's block to everybody.
pub mod all_gather {
    mod arena_access;
    pub mod cma_read;
    pub mod cma_write;
    pub mod eager;
    pub mod inline;
    pub mod staged;
}
/// The fold of all vectors to everybody.
pub mod all_reduce {
    mod arena_access;
    pub mod cma_read;
    pub mod cma_write;
    pub mod eager;
    pub mod inline;
    pub mod one_shot;
    pub mod two_shot;
}
/// To everybody what each has for it.
pub mod all_to_all {
    mod arena_access;
    pub mod cma_read;
    pub mod cma_write;
    pub mod eager;
    pub mod inline;
    pub mod staged;
}
/// Nobody leaves before all have come.
pub mod barrier {
    pub mod flags;
}
/// The root's vector to everybody.
pub mod broadcast {
    pub mod cma_write;
    pub mod eager;
    pub mod inline;
    pub mod staged;
}
/// Everybody's block to the root.
pub mod gather {
    pub mod staged;
}
/// The fold of all vectors to the root.
pub mod reduce {
    pub mod eager;
    pub mod inline;
    pub mod staged;
}
/// To everybody its block of the fold of all vectors.
pub mod reduce_scatter {
    mod arena_access;
    pub mod cma_read;
    pub mod eager;
    pub mod inline;
    pub mod staged;
}
/// To each rank the fold of the vectors of the ranks before it.
pub mod scan {
    pub mod eager;
    pub mod inline;
    pub mod staged;
}
/// The root's blocks, one to each.
pub mod scatter {
    pub mod staged;
}

pub use sequencer::{ShmCursor, ShmSequencer};
