//! Groups made from groups: that they have the ranks that were meant, over every transport; what disagreement and
//! absence lead to; and that nothing is left of them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod conflicts;
mod many;
mod members;
mod ranks;
mod together;
mod trouble;
