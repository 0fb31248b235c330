//! Going on with those that are left: groups of the survivors of a failed group, and aborts that
//! reach the groups made from a group. Every rank is a process; some of them are killed, stopped or
//! late.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "a test says why it is skipped")]

mod aborts;
#[path = "../harness/mod.rs"]
mod harness;
#[path = "../interface.rs"]
mod interface;
mod leaders;
mod survivors;
#[path = "../ctests/toolchain.rs"]
mod toolchain;
mod training;
#[path = "../worker/mod.rs"]
mod worker;

use harness::{Ended, Job, Place};

/// What every survivor does once its group has failed.
const GO_ON: &str = "shrink rest\nall_reduce f32 SUM 1000 on=rest\nbarrier on=rest\n";

/// How every program ends.
const LEAVE: &str = "release rest\nfinalize\nleaks\n";

/// One place for each letter: ranks with the same are on one host, which differ in name alone.
fn places(hosts: &str) -> Vec<Place> {
    hosts.chars().map(|host| Place::named(&format!("host-{host}"))).collect()
}

/// The names under which so many ranks report.
fn names(ranks: usize) -> Vec<String> {
    (0..ranks).map(|rank| rank.to_string()).collect()
}

/// The ranks of a list, as a report of a new group has them.
fn listed(ranks: &[usize]) -> String {
    format!("{ranks:?}")
}

/// Starts the ranks of a job on these hosts.
fn start(hosts: &str, program: impl Fn(usize) -> String) -> (Job, Vec<String>) {
    (Job::spread(&places(hosts), "127.0.0.1", program), names(hosts.len()))
}

/// Asserts that these ranks have gone on together, and left well.
fn went_on(ended: &Ended, group: &str, survivors: &[usize]) {
    for rank in survivors {
        let name = rank.to_string();
        for report in ended.reports(&name) {
            if report.what.starts_with(&format!("shrink {group}")) {
                assert_eq!(report.succeeded().message, listed(survivors), "rank {rank}");
            } else if report.what.ends_with(&format!("on={group}")) || report.what == "leaks" {
                report.succeeded();
            }
        }
        ended.report(&name, "leaks").succeeded();
        assert_eq!(ended.status(&name), 0, "{}", ended.errors(&name));
    }
}
