//! Groups of the survivors of a failed group, and aborts that reach subgroups. Every rank is a
//! process; some of them are killed, stopped or late.
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

/// The commands of every survivor after the failure of its group.
const GO_ON: &str = "shrink rest\nall_reduce f32 SUM 1000 on=rest\nbarrier on=rest\n";

/// The last commands of every program.
const LEAVE: &str = "release rest\nfinalize\nleaks\n";

/// Returns one place per letter. Ranks with the same letter are on one host; the emulated hosts
/// differ only in their names.
fn places(hosts: &str) -> Vec<Place> {
    hosts.chars().map(|host| Place::named(&format!("host-{host}"))).collect()
}

/// Returns the names under which the ranks report.
fn names(ranks: usize) -> Vec<String> {
    (0..ranks).map(|rank| rank.to_string()).collect()
}

/// Returns a list of ranks in the format of a worker's report.
fn listed(ranks: &[usize]) -> String {
    format!("{ranks:?}")
}

/// Starts the ranks of a job on these hosts.
fn start(hosts: &str, program: impl Fn(usize) -> String) -> (Job, Vec<String>) {
    (Job::spread(&places(hosts), "127.0.0.1", program), names(hosts.len()))
}

/// Asserts that these ranks have used the new group and finalized without an error.
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
