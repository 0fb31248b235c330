//! Heartbeat tests: stopped ranks are detected and named, computing ranks are not, and a rank that
//! waits for a rank of another group gets the name of that group. Every rank is a process; the
//! emulated hosts differ only in their names. The tests of network partitions are in `multi_host`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::expect_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "a test says what it has measured")]

mod harness;
mod worker;

use dist::ffi::types::{DIST_ERR_PEER_FAILED, DIST_ERR_TIMEOUT};
use harness::{TestHost, TestJob};
use std::time::Duration;

/// The heartbeat limit, its largest excess, and the limit for `finalize`, in milliseconds.
const HEARTBEAT_LIMIT_MS: u64 = 1000;
const REPORT_TOLERANCE_MS: u64 = 500;
const MAX_FINALIZE_MS: u64 = 6000;

/// Starts the ranks of a job on hosts with these names; only rank 0 has the heartbeat limit in its
/// environment.
fn start(hosts: &[&str], program: impl Fn(usize) -> String) -> TestJob {
    let mut job = TestJob::new();
    for (rank, host) in hosts.iter().enumerate() {
        let mut environment = job.environment(rank, hosts.len());
        if rank == 0 {
            environment.push(("DIST_HEARTBEAT_LIMIT_MS", HEARTBEAT_LIMIT_MS.to_string()));
        }
        job.start_on_host(
            &TestHost::on_this_network(host),
            &rank.to_string(),
            &environment,
            &program(rank),
        );
    }
    job
}

fn names(ranks: usize) -> Vec<String> {
    (0..ranks).map(|rank| rank.to_string()).collect()
}

/// Stops one rank during a loop until all other ranks have reported it and finalized; then resumes
/// it.
fn stop_rank(hosts: &[&str], operation: &str, victim: usize) {
    let mut job = start(hosts, |rank| {
        let wait = if rank == victim { "gate end\n" } else { "" };
        format!("init\nloop {operation}\nbarrier\n{wait}finalize\nleaks\n")
    });
    let names = names(hosts.len());
    job.await_reports(&names, "ready");
    let pid = job.pid(&names[victim]);
    job.stop(&names[victim]);
    let stopped_at = worker::now_us();
    let others = || names.iter().filter(|name| **name != names[victim]);
    for name in others() {
        job.await_report(name, "finalize").assert_succeeded().assert_within_ms(MAX_FINALIZE_MS);
    }
    job.resume(&names[victim]);
    job.open_gate("end");
    let ended = job.finish();
    let silent = format!("rank {victim} (pid {pid}, host ");
    let mut longest = 0;
    for name in &names {
        let report = ended.report(name, operation);
        report.assert_failed(DIST_ERR_PEER_FAILED, &[&silent, "does not respond: no"]);
        ended.report(name, "barrier").assert_failed(DIST_ERR_PEER_FAILED, &[&silent]);
        ended.report(name, "finalize").assert_succeeded().assert_within_ms(MAX_FINALIZE_MS);
        ended.report(name, "leaks").assert_succeeded();
        assert_eq!(ended.exit_status(name), 0);
    }
    for name in others() {
        let latency = ended.report(name, operation).at_us.saturating_sub(stopped_at);
        assert!(
            latency <= (HEARTBEAT_LIMIT_MS + REPORT_TOLERANCE_MS) * 1000,
            "{name} was told after {latency} us"
        );
        longest = longest.max(latency);
    }
    println!("{hosts:?}: that rank {victim} had stopped was told after {longest} us at most");
}

#[test]
fn stopped_rank_is_named_and_resumes_safely() {
    stop_rank(&["a", "a", "a"], "all_reduce f32 SUM 10", 1);
    stop_rank(&["a", "a", "a"], "all_reduce f32 SUM 1048576", 2);
    // Rank 0 hosts the store.
    stop_rank(&["a", "a", "a"], "barrier", 0);
}

#[test]
fn a_stopped_rank_is_named_on_all_hosts() {
    // The first victim is a leader: the ranks of its own host and the other leader detect the stop.
    // The second victim is no leader: the ranks of its host detect the stop. The last victim is
    // alone on its host.
    for victim in [2, 3] {
        stop_rank(&["a", "a", "b", "b"], "all_reduce f32 SUM 1000", victim);
    }
    stop_rank(&["a", "a", "b"], "barrier", 2);
}

#[test]
fn ranks_stopped_together_report_no_failure() {
    for hosts in [["a", "a", "a"], ["a", "a", "b"]] {
        let program = "init\nbarrier\ngate go\nall_reduce f32 SUM 10\nbarrier\nfinalize\nleaks\n";
        let mut job = start(&hosts, |_| program.to_owned());
        let names = names(hosts.len());
        job.await_reports(&names, "at go");
        names.iter().for_each(|name| job.stop(name));
        // The test depends on the two pauses: the time of the stop, and the time in which a rank
        // could be reported after it.
        std::thread::sleep(Duration::from_millis(2 * HEARTBEAT_LIMIT_MS));
        names.iter().for_each(|name| job.resume(name));
        std::thread::sleep(Duration::from_millis(2 * HEARTBEAT_LIMIT_MS));
        job.open_gate("go");
        let ended = job.finish();
        names.iter().for_each(|name| ended.assert_all_succeeded(name, program.lines().count() + 2));
    }
}

#[test]
fn computing_rank_is_not_declared_dead() {
    let hosts = ["a", "a", "b"];
    let program = |rank| {
        let computes = if rank == 1 { "gate done\n" } else { "" };
        format!("init\nbarrier\n{computes}all_reduce f32 SUM 10\nfinalize\nleaks\n")
    };
    let mut job = start(&hosts, program);
    job.await_report("1", "at done");
    std::thread::sleep(Duration::from_millis(3 * HEARTBEAT_LIMIT_MS));
    job.open_gate("done");
    let ended = job.finish();
    for (rank, name) in names(hosts.len()).iter().enumerate() {
        ended
            .assert_all_succeeded(name, program(rank).lines().count() + 1 + usize::from(rank == 1));
    }
}

#[test]
fn deadlock_across_groups_names_the_groups() {
    for hosts in [["a", "a"], ["a", "b"]] {
        let call = |rank| match rank {
            0 => "barrier timeout_ms=1000",
            _ => "barrier on=pp timeout_ms=1000",
        };
        let mut job = start(&hosts, |rank| {
            let call = call(rank);
            format!(
                "init\nstore\ngroup pp\n{call}\ngate end\nrelease pp\nunstore\nfinalize\nleaks\n"
            )
        });
        let names = names(hosts.len());
        job.await_reports(&names, "at end");
        job.open_gate("end");
        let ended = job.finish();
        // The queried rank may have given up shortly before.
        for (rank, elsewhere) in
            [(0, "barrier #1 of group pp (rank 1)"), (1, "barrier #1 of group world (rank 0)")]
        {
            let other = format!("rank {} (pid ", 1 - rank);
            let parts = ["barrier #1 on group ", other.as_str(), "and whose process ", elsewhere];
            ended.report(&names[rank], call(rank)).assert_failed(DIST_ERR_TIMEOUT, &parts);
            ended.report(&names[rank], "leaks").assert_succeeded();
        }
    }
}
