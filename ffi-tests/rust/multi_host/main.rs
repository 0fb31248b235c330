//! Groups whose ranks are on several hosts. Every rank is a process. Every host is a network
//! namespace, except in tests whose hosts differ only in their names.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "a test says what it has measured, or why it is skipped")]

mod collectives;
mod containers;
mod deaths;
mod departures;
mod encrypted;
mod failures;
mod garbage_connections;
#[path = "../harness/mod.rs"]
mod harness;
#[path = "../hosts/mod.rs"]
mod hosts;
#[path = "../interface.rs"]
mod interface;
mod interfaces;
mod messages;
mod survivors;
#[path = "../ctests/toolchain.rs"]
mod toolchain;
mod two_level;
#[path = "../worker/mod.rs"]
mod worker;

use harness::{FinishedJob, TestHost, TestJob};
use hosts::Hosts;

/// The limits on a busy machine for the report of a death, and for `finalize` after it, in
/// milliseconds.
const MAX_REPORT_MS: u64 = 2000;
const MAX_FINALIZE_MS: u64 = 6000;

/// The limit in milliseconds for a call on a failed group on a busy host; the call waits for no
/// rank.
const MAX_IMMEDIATE_MS: u64 = 500;

/// Returns the place of each rank; host `h` has `counts[h]` consecutive ranks.
fn block_placement(hosts: &Hosts, counts: &[usize]) -> Vec<TestHost> {
    let of = |(host, &count): (usize, &usize)| vec![hosts.host(host); count];
    counts.iter().enumerate().flat_map(of).collect()
}

/// Returns the names under which the ranks report.
fn names(ranks: usize) -> Vec<String> {
    (0..ranks).map(|rank| rank.to_string()).collect()
}

/// Starts the ranks of a job like [`TestJob::on_hosts`], each with additional variables.
fn start_ranks(
    job: &mut TestJob,
    rank_hosts: &[TestHost],
    master: &str,
    variables: impl Fn(usize) -> Vec<(&'static str, String)>,
    program: impl Fn(usize) -> String,
) {
    for (rank, host) in rank_hosts.iter().enumerate() {
        let mut environment = job.environment_with_master(master, rank, rank_hosts.len());
        environment.extend(variables(rank));
        job.start_on_host(host, &rank.to_string(), &environment, &program(rank));
    }
}

/// Asserts that every rank has executed its whole program with correct results.
fn assert_all_succeeded(ended: &FinishedJob, ranks: usize, program: &str) {
    for rank in 0..ranks {
        // The worker also reports its start, and its arrival at each gate.
        let gates = program.lines().filter(|line| line.starts_with("gate ")).count();
        ended.assert_all_succeeded(&rank.to_string(), program.lines().count() + gates + 1);
        assert_eq!(ended.exit_status(&rank.to_string()), 0);
    }
}
