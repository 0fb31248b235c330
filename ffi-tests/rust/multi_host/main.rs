//! Groups whose ranks are on several hosts. Every rank is a process, and every host a network name
//! space, but for those tests whose hosts differ in name alone.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "a test says what it has measured, or why it is skipped")]

mod collectives;
mod deaths;
#[path = "../harness/mod.rs"]
mod harness;
#[path = "../hosts/mod.rs"]
mod hosts;
#[path = "../interface.rs"]
mod interface;
mod interfaces;
mod messages;
mod strangers;
#[path = "../ctests/toolchain.rs"]
mod toolchain;
mod trouble;
#[path = "../worker/mod.rs"]
mod worker;

use harness::{Ended, Job, Place};
use hosts::Hosts;

/// How soon a death must be told on a busy machine, and how long leaving may take after it, in
/// milliseconds.
const TOLD_WITHIN_MS: u64 = 2000;
const LEFT_WITHIN_MS: u64 = 6000;

/// How long a call on a failed group takes where no core is free at once: it waits for nobody.
const AT_ONCE_MS: u64 = 500;

/// The place of each rank, where host `h` has `counts[h]` of them, one host after the other.
fn block(hosts: &Hosts, counts: &[usize]) -> Vec<Place> {
    let of = |(host, &count): (usize, &usize)| vec![hosts.place(host); count];
    counts.iter().enumerate().flat_map(of).collect()
}

/// The names under which so many ranks report.
fn names(ranks: usize) -> Vec<String> {
    (0..ranks).map(|rank| rank.to_string()).collect()
}

/// Starts the ranks of a job, as [`Job::spread`] does, each with variables of its own beside those
/// that a launcher sets.
fn start_ranks(
    job: &mut Job,
    places: &[Place],
    master: &str,
    variables: impl Fn(usize) -> Vec<(&'static str, String)>,
    program: impl Fn(usize) -> String,
) {
    for (rank, place) in places.iter().enumerate() {
        let mut environment = job.environment_towards(master, rank, places.len());
        environment.extend(variables(rank));
        job.start_at(place, &rank.to_string(), &environment, &program(rank));
    }
}

/// Asserts that every rank has done all of its program, with the right results.
fn all_is_right(ended: &Ended, ranks: usize, program: &str) {
    for rank in 0..ranks {
        // The worker reports its start as well, and at a gate that it has come there.
        let gates = program.lines().filter(|line| line.starts_with("gate ")).count();
        ended.all_succeeded(&rank.to_string(), program.lines().count() + gates + 1);
        assert_eq!(ended.status(&rank.to_string()), 0);
    }
}
