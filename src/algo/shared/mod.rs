//! Algorithms for the ranks of one host, over the lines and slots that they share.
//!
//! [`steps`] is the protocol, [`exposure`] what it is where buffers are read and written in the
//! memory of their ranks, [`direct`] where that is done by loads and stores; the rest is a folder
//! per collective and a file per algorithm.

mod counts;
pub mod direct;
mod exposure;
pub mod one_step;
pub mod stagers;
pub mod steps;
mod withdrawal;

/// Everybody's block to everybody.
pub mod all_gather {
    mod direct;
    pub mod inline;
    pub mod pull;
    pub mod push;
    pub mod short;
    pub mod staged;
}
/// The fold of all vectors to everybody.
pub mod all_reduce {
    mod direct;
    pub mod inline;
    pub mod one_shot;
    pub mod pull;
    pub mod push;
    pub mod short;
    pub mod two_shot;
}
/// To everybody what each has for it.
pub mod all_to_all {
    mod direct;
    pub mod inline;
    pub mod pull;
    pub mod push;
    pub mod short;
    pub mod staged;
}
/// Nobody leaves before all have come.
pub mod barrier {
    pub mod flags;
}
/// The root's vector to everybody.
pub mod broadcast {
    pub mod inline;
    pub mod push;
    pub mod short;
    pub mod staged;
}
/// Everybody's block to the root.
pub mod gather {
    pub mod staged;
}
/// The fold of all vectors to the root.
pub mod reduce {
    pub mod inline;
    pub mod short;
    pub mod staged;
}
/// To everybody its block of the fold of all vectors.
pub mod reduce_scatter {
    mod direct;
    pub mod inline;
    pub mod pull;
    pub mod short;
    pub mod staged;
}
/// To each rank the fold of the vectors of the ranks before it.
pub mod scan {
    pub mod inline;
    pub mod short;
    pub mod staged;
}
/// The root's blocks, one to each.
pub mod scatter {
    pub mod staged;
}

pub use steps::{Lane, Steps};
