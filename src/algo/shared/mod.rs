//! Algorithms for the ranks of one host, over the lines and slots that they share.
//!
//! [`steps`] is the protocol; the rest is one file per collective, and per algorithm where there are
//! several.

pub mod all_gather;
pub mod all_reduce;
pub mod barrier;
pub mod broadcast;
pub mod reduce;
pub mod reduce_scatter;
pub mod steps;

pub use steps::{Lane, Steps};
