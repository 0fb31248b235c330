//! Groups made from groups: that they have the ranks that were meant, over every transport; and
//! what disagreement and absence lead to.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod conflicts;
mod members;
mod ranks;
mod together;
mod trouble;
