//! Prefix reductions over messages: each rank receives the fold of the vectors of the ranks before
//! it.

pub mod chain;
pub mod ordered;
