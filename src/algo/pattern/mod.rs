//! Index arithmetic that the algorithms share. These modules perform no input or output. Their
//! tests cover all small numbers of members.

pub mod bruck;
pub mod doubling;
pub mod halving;
pub mod pairwise;
pub mod ring;
pub mod slices;
pub mod tree;
