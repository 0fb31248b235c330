//! Subgroups: they have the expected ranks over every transport, and mismatching definitions and
//! absent ranks lead to errors.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod conflicts;
mod members;
mod ranks;
mod together;
mod trouble;
