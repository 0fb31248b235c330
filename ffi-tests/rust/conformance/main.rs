//! The conformance suite: compares every collective, type, operator, number of ranks, size,
//! placement, transport and algorithm with a naive oracle, bit for bit, on every rank.
//!
//! | file | content |
//! |---|---|
//! | `matrix.rs` | the dimensions of the matrix |
//! | `whole.rs` | runs the whole matrix (`cargo xtask conformance`) |
//! | `pair_coverage.rs` | chooses the part of the matrix for the ordinary tests |
//! | `expected_results.rs` | the expected results |
//! | `matrix_runner.rs` | the calls; ranks are threads that share only a hash store |
//! | `c_api.rs` | calls through the C interface, also asynchronous ones |
//! | `custom_operators.rs` | operators that the caller defines |
//! | `mismatch_errors.rs`, `block_length_conflicts.rs` | ranks whose calls do not match |
//! | `undefined_operators.rs` | calls that no rank may make |
//! | `multi_node_groups.rs` | values near the limits of narrow types |
//! | `backends.rs` | the operations that another back end reports as supported |
//! | `processes.rs` | another back end with one rank per process |

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod algorithm_selection;
mod api_calls;
mod backends;
mod block_length_conflicts;
mod c_api;
mod custom_operators;
mod error_bound;
mod expected_results;
mod guarded_memory;
mod input_values;
mod matrix;
mod matrix_runner;
mod mismatch_errors;
mod multi_node_groups;
mod pair_coverage;
mod processes;
mod ranks;
mod run_monitor;
mod undefined_operators;
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
    pair_coverage::run(Transport::Inproc);
}

#[test]
fn covering_part_shm() {
    pair_coverage::run(Transport::Shm);
}

#[test]
fn covering_part_tcp() {
    pair_coverage::run(Transport::Tcp);
}

#[test]
fn covering_part_mixed() {
    pair_coverage::run(Transport::Mixed);
}
