//! Paths of the project's programs, which belong to the package `dist-tools`. A test that includes
//! this file must belong to the same package: cargo then builds the programs before it runs the
//! test, so no test starts an outdated program.
#![allow(dead_code, reason = "each test program uses its own part")]

pub(crate) const DISTRUN: &str = env!("CARGO_BIN_EXE_distrun");
pub(crate) const DIST_STORE: &str = env!("CARGO_BIN_EXE_dist-store");
pub(crate) const DIST_DOCTOR: &str = env!("CARGO_BIN_EXE_dist-doctor");
pub(crate) const DIST_BENCH: &str = env!("CARGO_BIN_EXE_dist-bench");
