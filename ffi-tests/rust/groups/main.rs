//! Subgroups: they have the expected ranks over every transport, and mismatching definitions and
//! absent ranks lead to errors.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod collective_creation;
mod conflicts;
mod creation_failures;
mod members_only_creation;
mod ranks;
