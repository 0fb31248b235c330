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
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Command;

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

/// Runs tests again, in a process whose ranks encrypt their connections.
#[test]
fn encrypted_connections() {
    let path = std::env::temp_dir().join(format!("dist-conformance-{}", std::process::id()));
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    file.as_mut().unwrap().write_all(b"correct horse battery staple").unwrap();
    let tests = [
        "covering_part_tcp",
        "custom_operators::operators_fold_in_rank_order_over_every_transport",
        "mismatch_errors::mismatched_peers_across_nodes_are_detected",
    ];
    let run = Command::new(std::env::current_exe().unwrap())
        .arg("--exact")
        .args(tests)
        .envs([("DIST_SECURITY", "encrypt"), ("DIST_STORE_SECRET_FILE", path.to_str().unwrap())])
        .output();
    fs::remove_file(&path).unwrap();
    let run = run.unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{text}\n{}", String::from_utf8_lossy(&run.stderr));
    assert!(text.contains(&format!("{} passed", tests.len())), "{text}");
}
