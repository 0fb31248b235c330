//! Index arithmetic that algorithms share. It has no input or output, and is tested for all small
//! sizes.

pub mod bruck;
pub mod doubling;
pub mod halving;
pub mod pairwise;
pub mod ring;
pub mod slices;
pub mod tree;
