//! The culprit of a failure as fields: rank, kind of fault, process and host. All other ranks must
//! report the same culprit. Each rank is a process; the emulated hosts differ only in their names.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::expect_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "a test says what it has measured")]

mod harness;
mod worker;

use dist::ffi::constants::{
    DIST_CULPRIT_ABORTED, DIST_CULPRIT_DIED, DIST_CULPRIT_LATE, DIST_CULPRIT_LEFT,
    DIST_CULPRIT_MISMATCH, DIST_CULPRIT_NONE, DIST_CULPRIT_STOPPED, DIST_CULPRIT_UNREACHABLE,
};
use harness::{FinishedJob, TestHost, TestJob};

const ONE_HOST: &[&str] = &["a", "a", "a"];
/// Ranks 0 and 1 are the leaders of their hosts; rank 2 is on rank 1's host.
const TWO_HOSTS: &[&str] = &["a", "b", "b"];

/// The heartbeat limit, in milliseconds.
const HEARTBEAT_LIMIT_MS: u64 = 1000;

/// Starts the ranks of a job on hosts with these names.
fn start(hosts: &[&str], program: impl Fn(usize) -> String) -> TestJob {
    let mut job = TestJob::new();
    for (rank, host) in hosts.iter().enumerate() {
        let mut environment = job.environment(rank, hosts.len());
        environment.push(("DIST_HEARTBEAT_LIMIT_MS", HEARTBEAT_LIMIT_MS.to_string()));
        job.start_on_host(
            &TestHost::on_this_network(host),
            &rank.to_string(),
            &environment,
            &program(rank),
        );
    }
    job
}

fn names(hosts: &[&str]) -> Vec<String> {
    (0..hosts.len()).map(|rank| rank.to_string()).collect()
}

/// Asserts that a rank reports this culprit for its group and for its work.
fn assert_culprit(ended: &FinishedJob, name: &str, culprit: (usize, i32, u32)) {
    let (rank, kind, pid) = culprit;
    let expected_prefix = format!("rank {rank}, kind {kind}, pid {pid}, host ");
    for report in ended.reports(name).iter().filter(|it| it.command.ends_with("culprit")) {
        let message = &report.assert_succeeded().message;
        let host = message.strip_prefix(&expected_prefix);
        assert!(
            host.is_some_and(|host| !host.is_empty()),
            "{name}: {message}, not {expected_prefix}"
        );
    }
}

/// The program of a surviving rank.
const SURVIVOR_PROGRAM: &str =
    "init\nbarrier\nbarrier async=yes\nwork_culprit\nculprit\nfinalize\n";

/// Kills or stops a victim while the other ranks wait for it; `kinds` has the kind that each of the
/// other ranks must report.
fn check_harmed_rank(
    hosts: &[&str],
    victim: usize,
    kinds: &[i32],
    harm_rank: impl Fn(&mut TestJob, &str),
) {
    let mut job = start(hosts, |rank| match rank == victim {
        true => "init\nbarrier\ngate never\n".to_owned(),
        false => SURVIVOR_PROGRAM.to_owned(),
    });
    let names = names(hosts);
    for name in names.iter().filter(|name| **name != names[victim]) {
        job.await_report(name, "barrier async=yes").assert_succeeded();
    }
    job.await_report(&names[victim], "at never");
    let pid = job.pid(&names[victim]);
    harm_rank(&mut job, &names[victim]);
    for name in names.iter().filter(|name| **name != names[victim]) {
        job.await_report(name, "finalize");
    }
    job.kill(&names[victim]);
    let ended = job.finish();
    for (rank, &kind) in kinds.iter().enumerate().filter(|&(rank, _)| rank != victim) {
        assert_culprit(&ended, &names[rank], (victim, kind, pid));
    }
}

fn kill(job: &mut TestJob, name: &str) {
    job.kill(name);
}

fn stop(job: &mut TestJob, name: &str) {
    job.stop(name);
}

#[test]
fn killed_rank_of_one_host_has_died() {
    for victim in 0..3 {
        check_harmed_rank(ONE_HOST, victim, &[DIST_CULPRIT_DIED; 3], kill);
    }
}

#[test]
fn killed_rank_of_another_host_has_died_if_host_reports() {
    check_harmed_rank(TWO_HOSTS, 2, &[DIST_CULPRIT_DIED; 3], kill);
}

#[test]
fn killed_lone_rank_of_another_host_is_unreachable() {
    check_harmed_rank(TWO_HOSTS, 0, &[DIST_CULPRIT_UNREACHABLE; 3], kill);
}

#[test]
fn stopped_rank_of_one_host_is_stopped() {
    check_harmed_rank(ONE_HOST, 1, &[DIST_CULPRIT_STOPPED; 3], stop);
}

#[test]
fn stopped_lone_rank_of_another_host_is_unreachable() {
    check_harmed_rank(TWO_HOSTS, 0, &[DIST_CULPRIT_UNREACHABLE; 3], stop);
}

/// One rank makes a different call instead of the second barrier. All other ranks report this kind
/// and this rank; after a mismatch they report the rank with which the first detecting rank
/// compared its call.
fn check_differing_rank(hosts: &[&str], differing_rank: usize, does: &str, kind: i32) {
    let mut job = start(hosts, |rank| match rank == differing_rank {
        true => format!("init\nbarrier\n{does}\n"),
        false => SURVIVOR_PROGRAM.replace("barrier async=yes", "barrier async=yes timeout_ms=1500"),
    });
    let names = names(hosts);
    let pids: Vec<u32> = names.iter().map(|name| job.pid(name)).collect();
    let ended = job.finish();
    let failed = ended.report("1", if differing_rank == 1 { "start" } else { "culprit" });
    let first = failed.message.strip_prefix("rank ").and_then(|it| it.chars().next());
    let named = match kind {
        DIST_CULPRIT_MISMATCH => first.and_then(|digit| digit.to_digit(10)).unwrap() as usize,
        _ => differing_rank,
    };
    for name in names.iter().filter(|name| **name != names[differing_rank]) {
        assert_culprit(&ended, name, (named, kind, pids[named]));
    }
}

#[test]
fn rank_that_left_has_kind_left() {
    check_differing_rank(ONE_HOST, 1, "finalize", DIST_CULPRIT_LEFT);
    check_differing_rank(TWO_HOSTS, 0, "finalize", DIST_CULPRIT_LEFT);
}

#[test]
fn rank_with_different_call_has_kind_mismatch() {
    check_differing_rank(ONE_HOST, 2, "all_reduce f32 SUM 10\nfinalize", DIST_CULPRIT_MISMATCH);
    check_differing_rank(TWO_HOSTS, 0, "all_reduce f32 SUM 10\nfinalize", DIST_CULPRIT_MISMATCH);
}

#[test]
fn aborting_rank_has_kind_abort() {
    check_differing_rank(ONE_HOST, 0, "abort enough\nfinalize", DIST_CULPRIT_ABORTED);
    check_differing_rank(TWO_HOSTS, 2, "abort enough\nfinalize", DIST_CULPRIT_ABORTED);
}

#[test]
fn late_rank_has_kind_late() {
    check_differing_rank(ONE_HOST, 1, "nap 3000\nfinalize", DIST_CULPRIT_LATE);
    check_differing_rank(TWO_HOSTS, 0, "nap 3000\nfinalize", DIST_CULPRIT_LATE);
}

#[test]
fn group_without_failure_has_no_culprit() {
    let job = start(ONE_HOST, |_| {
        "init\nbarrier async=yes\nwork_culprit\nculprit\nfinalize\n".to_owned()
    });
    let ended = job.finish();
    for name in names(ONE_HOST) {
        for what in ["work_culprit", "culprit"] {
            let expected_prefix = format!("rank -1, kind {DIST_CULPRIT_NONE}, pid 0, host ");
            assert_eq!(ended.report(&name, what).assert_succeeded().message, expected_prefix);
        }
    }
}
