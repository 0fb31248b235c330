//! Groups of the survivors of a failed group, and aborts that reach subgroups. Every rank is a
//! process; some of them are killed, stopped or late.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "a test says why it is skipped")]

mod aborts;
mod coordinators;
#[path = "../harness/mod.rs"]
mod harness;
#[path = "../interface.rs"]
mod interface;
mod survivors;
#[path = "../ctests/toolchain.rs"]
mod toolchain;
mod training;
#[path = "../worker/mod.rs"]
mod worker;

use harness::{FinishedJob, TestHost, TestJob};

/// The commands of every survivor after the failure of its group.
const CONTINUE_COMMANDS: &str = "shrink rest\nall_reduce f32 SUM 1000 on=rest\nbarrier on=rest\n";

/// The last commands of every program.
const LEAVE_COMMANDS: &str = "release rest\nfinalize\nleaks\n";

/// Returns one place per letter. Ranks with the same letter are on one host; the emulated hosts
/// differ only in their names.
fn places(hosts: &str) -> Vec<TestHost> {
    hosts.chars().map(|host| TestHost::on_this_network(&format!("host-{host}"))).collect()
}

/// Returns the names under which the ranks report.
fn names(ranks: usize) -> Vec<String> {
    (0..ranks).map(|rank| rank.to_string()).collect()
}

/// Returns a list of ranks in the format of a worker's report.
fn rank_list(ranks: &[usize]) -> String {
    format!("{ranks:?}")
}

/// Starts the ranks of a job on these hosts.
fn start(hosts: &str, program: impl Fn(usize) -> String) -> (TestJob, Vec<String>) {
    (TestJob::on_hosts(&places(hosts), "127.0.0.1", program), names(hosts.len()))
}

/// Asserts that these ranks have used the new group and finalized without an error.
fn assert_continued(ended: &FinishedJob, group: &str, survivors: &[usize]) {
    for rank in survivors {
        let name = rank.to_string();
        for report in ended.reports(&name) {
            if report.command.starts_with(&format!("shrink {group}")) {
                assert_eq!(report.assert_succeeded().message, rank_list(survivors), "rank {rank}");
            } else if report.command.ends_with(&format!("on={group}")) || report.command == "leaks"
            {
                report.assert_succeeded();
            }
        }
        ended.report(&name, "leaks").assert_succeeded();
        assert_eq!(ended.exit_status(&name), 0, "{}", ended.stderr_text(&name));
    }
}
