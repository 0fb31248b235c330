//! The conformance suite: compares every collective, type, operator, number of ranks, size,
//! placement, transport and algorithm with a naive oracle, bit for bit, on every rank.
//!
//! | file | content |
//! |---|---|
//! | `matrix.rs` | the dimensions of the matrix |
//! | `whole.rs` | runs the whole matrix (`cargo xtask conformance`) |
//! | `cover.rs` | chooses the part of the matrix for the ordinary tests |
//! | `model.rs` | the expected results |
//! | `engine.rs` | the calls; ranks are threads that share only a hash store |
//! | `abi.rs` | calls through the C interface, also asynchronous ones |
//! | `operators.rs` | operators that the caller defines |
//! | `trouble.rs`, `lengths.rs` | ranks whose calls do not match |
//! | `refusals.rs` | calls that no rank may make |
//! | `nodes.rs` | values near the limits of narrow types |
//! | `backends.rs` | the operations that another back end reports as supported |
//! | `processes.rs` | another back end with one rank per process |

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

/// The oracle is shared with the kernels' unit tests.
#[path = "../../../src/kernel/tests/oracle.rs"]
mod oracle;

// The oracle is part of the library and expects its types at `crate::base`.
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
