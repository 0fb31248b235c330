//! Index arithmetic that algorithms share; no input or output, tested for all small sizes.

pub mod bruck;
pub mod doubling;
pub mod halving;
pub mod pairwise;
pub mod ring;
pub mod slices;
pub mod tree;
