//! The conformance suite: every collective, type, operator, number of ranks, size, place, transport
//! and algorithm against a naive oracle, bit for bit, on every rank.
//!
//! `matrix.rs` has the dimensions; their product is what `whole.rs` runs (`cargo xtask
//! conformance`), and `cover.rs` chooses the part that the ordinary tests run. `model.rs` says what
//! must come out, `engine.rs` makes the calls: ranks are threads that share nothing but a hash
//! store. `abi.rs` calls through the C interface, also asynchronously. `operators.rs` has operators
//! that the caller defines. `trouble.rs` and `lengths.rs` are about ranks that do not call the
//! same, `refusals.rs` about what no rank may call, and `nodes.rs` about numbers that nearly do not
//! fit. `backends.rs` runs what another back end says that it can do, and `processes.rs` does so
//! with one rank in each process.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod abi;
mod arena;
mod backends;
mod bound;
mod calls;
mod cover;
mod engine;
mod lengths;
mod matrix;
mod model;
mod monitor;
mod nodes;
mod operators;
mod processes;
mod ranks;
mod refusals;
mod selection;
mod trouble;
mod values;
mod whole;

#[path = "../interface.rs"]
mod interface;
#[path = "../ctests/toolchain.rs"]
mod toolchain;

/// Shared with the kernels' unit tests.
#[path = "../../../src/kernel/tests/oracle.rs"]
mod oracle;

// Where the oracle, written inside the library, finds its types.
use dist::base;

use matrix::Transport;

#[test]
fn covering_part_inproc() {
    cover::run(Transport::Inproc);
}

#[test]
fn covering_part_shm() {
    cover::run(Transport::Shm);
}

#[test]
fn covering_part_tcp() {
    cover::run(Transport::Tcp);
}

#[test]
fn covering_part_mixed() {
    cover::run(Transport::Mixed);
}
