//! Tests of failures: ranks that die, leave, arrive late, stop, fork or make mismatching calls.
//! Every rank is a process. Each test checks the error of the other ranks, its time and the named
//! culprit, and the harness checks that no resources remain.
#![allow(clippy::unwrap_used, reason = "in a test a broken assumption is a failure")]
#![allow(clippy::expect_used, clippy::panic, reason = "in a test a broken assumption is a failure")]
#![allow(clippy::print_stdout, reason = "a test says what it has measured")]

mod harness;
mod program_paths;
mod worker;

use dist::ffi::types::{
    DIST_ERR_ABORTED, DIST_ERR_MISMATCH, DIST_ERR_PEER_FAILED, DIST_ERR_TIMEOUT, DIST_OK,
};
use harness::{CommandReport, TestJob};
use program_paths::DISTRUN;
use std::process::Command;

/// The limits in milliseconds for the report of a death, and for `finalize` after it.
const MAX_REPORT_MS: u64 = 2000;
const MAX_FINALIZE_MS: u64 = 6000;

/// The limit in milliseconds for a call on a failed group on a busy host; the call waits for no
/// rank.
const MAX_IMMEDIATE_MS: u64 = 500;

/// Kills each rank of groups of 2, 3 and 4 in turn, during a loop of one operation.
fn kill_each_rank(operation: &str) {
    let mut latencies = Vec::new();
    for size in 2..=4 {
        for victim in 0..size {
            latencies.extend(kill_rank(operation, size, victim));
        }
    }
    latencies.sort_unstable();
    let (middle, last) = (latencies[latencies.len() / 2], latencies[latencies.len() - 1]);
    println!("{operation}: a death was told after {middle} us (median), {last} us (longest)");
}

/// Kills one rank and returns the times in microseconds until each other rank got the error.
fn kill_rank(operation: &str, size: usize, victim: usize) -> Vec<u64> {
    // The store exists only while the rank that hosts it is alive.
    let use_store = if victim == 0 { "" } else { "store\nset key here\nget key here\nunstore\n" };
    let program =
        format!("init\nloop {operation}\nbarrier\n{use_store}gate end\nfinalize\nleaks\n");
    let mut job = TestJob::without_launcher(size, |_| program.clone());
    let names: Vec<String> = (0..size).map(|rank| rank.to_string()).collect();
    job.await_reports(&names, "ready");
    let victim_name = names[victim].as_str();
    let pid = job.pid(victim_name);
    let killed_at = job.kill(victim_name);
    let survivors = || names.iter().filter(|name| *name != victim_name);
    for name in survivors() {
        job.await_report(name, "at end");
    }
    job.open_gate("end");
    let ended = job.finish();
    assert_eq!(ended.exit_status(victim_name), 128 + 9);

    let died = format!("rank {victim} (pid {pid}, host ");
    let verb = operation.split(' ').next().unwrap();
    let mut latencies = Vec::new();
    for name in survivors() {
        let first = ended.report(name, operation);
        first.assert_failed(DIST_ERR_PEER_FAILED, &[&died, "died; it ", &format!("{verb} #")]);
        latencies.push(first.at_us.saturating_sub(killed_at));
        let after_loop = ended.report_after(name, "barrier", &format!("loop {operation}"));
        after_loop.assert_failed(DIST_ERR_PEER_FAILED, &[&died]).assert_within_ms(MAX_IMMEDIATE_MS);
        if victim != 0 {
            ended.report(name, "get key here").assert_succeeded();
        }
        ended.report(name, "finalize").assert_succeeded().assert_within_ms(MAX_FINALIZE_MS);
        ended.report(name, "leaks").assert_succeeded();
        assert_eq!(ended.exit_status(name), 0);
    }
    assert!(latencies.iter().all(|&us| us < MAX_REPORT_MS * 1000), "{latencies:?}");
    latencies
}

#[test]
fn monitored_barrier_reports_killed_rank_immediately() {
    for victim in 0..3 {
        let waits = "init\nbarrier\nmonitored_barrier 60000\nfinalize\nleaks\n";
        let mut job = TestJob::without_launcher(3, |rank| match rank == victim {
            true => "init\nbarrier\ngate never\n".to_owned(),
            false => waits.to_owned(),
        });
        let names: Vec<String> = (0..3).map(|rank| rank.to_string()).collect();
        job.await_reports(&names, "barrier");
        let victim_name = names[victim].as_str();
        let pid = job.pid(victim_name);
        let killed_at = job.kill(victim_name);
        let ended = job.finish();
        let died = format!("rank {victim} (pid {pid}, host ");
        let list = format!("(list: [{victim}])");
        for name in names.iter().filter(|name| *name != victim_name) {
            let report = ended.report(name, "monitored_barrier 60000");
            report.assert_failed(DIST_ERR_PEER_FAILED, &["monitored_barrier #1", &died]);
            // Rank 0 may have a more precise error; all other ranks list all absent ranks.
            assert!(name == "0" || report.message.contains(&list), "{}", report.message);
            let told_after = report.at_us.saturating_sub(killed_at);
            assert!(told_after < MAX_REPORT_MS * 1000, "told after {told_after} us");
            ended.report(name, "finalize").assert_succeeded().assert_within_ms(MAX_FINALIZE_MS);
            assert_eq!(ended.exit_status(name), 0);
        }
    }
}

#[test]
fn a_killed_rank_is_named_in_small_all_reduces() {
    kill_each_rank("all_reduce f32 SUM 1");
}

#[test]
fn a_killed_rank_is_named_in_large_all_reduces() {
    kill_each_rank("all_reduce f32 SUM 1048576");
}

#[test]
fn a_killed_rank_is_named_in_barriers() {
    kill_each_rank("barrier");
}

#[test]
fn a_killed_rank_is_named_in_broadcasts() {
    kill_each_rank("broadcast f32 5000 0");
}

/// Returns the report of each of three ranks on a command.
fn reports_of_three(ended: &harness::FinishedJob, what: &str) -> [CommandReport; 3] {
    std::array::from_fn(|rank| ended.report(&rank.to_string(), what))
}

#[test]
fn finalized_rank_fails_later_calls_without_waiting() {
    for (leaver, others_first) in [(1, true), (1, false), (0, true), (0, false)] {
        let gate = |needed: bool| if needed { "gate go\n" } else { "" };
        let mut job = TestJob::without_launcher(3, |rank| {
            let begin = "init\nall_reduce f32 SUM 7\n";
            if rank == leaver {
                format!("{begin}{}finalize\nleaks\n", gate(others_first))
            } else {
                format!("{begin}{}barrier\nfinalize\nleaks\n", gate(!others_first))
            }
        });
        let leaver = leaver.to_string();
        if others_first {
            // The ranks are in the barrier or about to enter it.
            job.await_reports(&["0", "1", "2"], "all_reduce f32 SUM 7");
        } else {
            // The rank that hosts the store returns from `finalize` last, but it has already left
            // the group.
            let last_seen = if leaver == "0" { "all_reduce f32 SUM 7" } else { "finalize" };
            job.await_report(&leaver, last_seen);
        }
        let pid = job.pid(&leaver);
        job.open_gate("go");
        let ended = job.finish();
        for name in ["0", "1", "2"].into_iter().filter(|name| *name != leaver) {
            let finalized = format!("rank {leaver} (pid {pid}, ");
            ended
                .report(name, "barrier")
                .assert_failed(
                    DIST_ERR_PEER_FAILED,
                    &[&finalized, "has left the group", "all_reduce #1"],
                )
                .assert_within_ms(MAX_REPORT_MS);
            ended.report(name, "finalize").assert_succeeded().assert_within_ms(MAX_FINALIZE_MS);
        }
        assert!(reports_of_three(&ended, "leaks").iter().all(|report| report.status == DIST_OK));
    }
}

#[test]
fn exit_without_finalize_is_a_departure() {
    let mut job = TestJob::without_launcher(3, |rank| match rank {
        1 => "init\nbarrier\nexit 0\n".to_owned(),
        _ => "init\nbarrier\nloop all_reduce f32 SUM 3\nfinalize\nleaks\n".to_owned(),
    });
    let pid = job.pid("1");
    let ended = job.finish();
    assert_eq!(ended.exit_status("1"), 0);
    for name in ["0", "2"] {
        let left = format!("rank 1 (pid {pid}, ");
        let parts = [left.as_str(), "has left the group; it last finished barrier #1"];
        ended.report(name, "all_reduce f32 SUM 3").assert_failed(DIST_ERR_PEER_FAILED, &parts);
        ended.report(name, "finalize").assert_succeeded().assert_within_ms(MAX_FINALIZE_MS);
        ended.report(name, "leaks").assert_succeeded();
    }
}

#[test]
fn late_rank_is_named_with_its_last_operation() {
    let mut job = TestJob::without_launcher(3, |rank| {
        let begin = "init\nall_reduce f32 SUM 100\n";
        let late = if rank == 2 { "gate late\n" } else { "" };
        format!("{begin}{late}broadcast f32 4 2 timeout_ms=300\nbarrier\nfinalize\nleaks\n")
    });
    let pid = job.pid("2");
    let broadcast = "broadcast f32 4 2 timeout_ms=300";
    job.await_reports(&["0", "1"], broadcast);
    job.open_gate("late");
    let ended = job.finish();
    let late = format!("rank 2 (pid {pid}, ");
    let parts =
        [late.as_str(), "which last finished all_reduce #1 (f32, SUM, count 100)", "300 ms"];
    for report in reports_of_three(&ended, broadcast) {
        report.assert_failed(DIST_ERR_TIMEOUT, &parts).assert_within_ms(MAX_REPORT_MS);
    }
    for report in reports_of_three(&ended, "barrier") {
        report.assert_failed(DIST_ERR_TIMEOUT, &parts).assert_within_ms(MAX_IMMEDIATE_MS);
    }
    assert!(reports_of_three(&ended, "finalize").iter().all(|report| report.status == DIST_OK));
    assert!(reports_of_three(&ended, "leaks").iter().all(|report| report.status == DIST_OK));
}

#[test]
fn the_deadline_of_the_options_holds_for_every_call() {
    let mut job = TestJob::without_launcher(2, |rank| {
        let late = if rank == 1 { "gate late\n" } else { "" };
        format!("init timeout_ms=300\n{late}barrier\nfinalize\nleaks\n")
    });
    let report = job.await_report("0", "barrier");
    report.assert_failed(DIST_ERR_TIMEOUT, &["rank 1 (pid ", "has entered no operation yet"]);
    report.assert_within_ms(MAX_REPORT_MS);
    assert!(report.took_us >= 300_000, "{report:?}");
    job.open_gate("late");
    let ended = job.finish();
    ended.report("1", "barrier").assert_failed(DIST_ERR_TIMEOUT, &["rank 1 (pid "]);
    for name in ["0", "1"] {
        ended.report(name, "finalize").assert_succeeded();
        ended.report(name, "leaks").assert_succeeded();
    }
}

/// A call of most ranks, the mismatching call of one rank, and their descriptions in the messages.
struct MismatchCase {
    usual_call: &'static str,
    different_call: &'static str,
    descriptions: [&'static str; 2],
}

const MISMATCH_CASES: &[MismatchCase] = &[
    MismatchCase {
        usual_call: "all_reduce f32 SUM 10",
        different_call: "barrier",
        descriptions: ["all_reduce #2 (f32, SUM, count 10)", "barrier #2"],
    },
    MismatchCase {
        usual_call: "all_reduce f32 SUM 10",
        different_call: "all_reduce f64 SUM 10",
        descriptions: ["#2 (f32, SUM, count 10)", "#2 (f64, SUM, count 10)"],
    },
    MismatchCase {
        usual_call: "all_reduce f32 SUM 10",
        different_call: "all_reduce f32 MAX 10",
        descriptions: ["#2 (f32, SUM, count 10)", "#2 (f32, MAX, count 10)"],
    },
    MismatchCase {
        usual_call: "all_reduce f32 SUM 10",
        different_call: "all_reduce f32 SUM 12",
        descriptions: ["#2 (f32, SUM, count 10)", "#2 (f32, SUM, count 12)"],
    },
    MismatchCase {
        usual_call: "all_reduce f32 SUM 100000",
        different_call: "all_reduce f32 SUM 100001",
        descriptions: ["#2 (f32, SUM, count 100000)", "#2 (f32, SUM, count 100001)"],
    },
    MismatchCase {
        usual_call: "all_reduce f32 SUM 10",
        different_call: "all_reduce f32 SUM 1000000",
        descriptions: ["#2 (f32, SUM, count 10)", "#2 (f32, SUM, count 1000000)"],
    },
    MismatchCase {
        usual_call: "broadcast f32 10 0",
        different_call: "broadcast f32 10 1",
        descriptions: ["#2 (f32, root 0, count 10)", "#2 (f32, root 1, count 10)"],
    },
    MismatchCase {
        usual_call: "broadcast f32 300000 0",
        different_call: "broadcast f32 300000 1",
        descriptions: ["#2 (f32, root 0, count 300000)", "#2 (f32, root 1, count 300000)"],
    },
    MismatchCase {
        usual_call: "reduce f32 SUM 10 0",
        different_call: "reduce f32 SUM 10 1",
        descriptions: ["#2 (f32, SUM, root 0, count 10)", "#2 (f32, SUM, root 1, count 10)"],
    },
    MismatchCase {
        usual_call: "broadcast f32 10 0",
        different_call: "all_gather f32 10",
        descriptions: ["broadcast #2 (f32, root 0, count 10)", "all_gather #2 (f32, count 10)"],
    },
];

/// Returns true if a rank may return before the mismatch is found, since it waits for no
/// mismatching rank. This holds for a sender of a reduce, and for the root of a broadcast and the
/// ranks whose call matches the root's.
fn may_have_left(rank: usize, calls: &[&str]) -> bool {
    let call = calls[rank];
    let root: Option<usize> = call.split(' ').next_back().and_then(|word| word.parse().ok());
    match (call.split(' ').next(), root) {
        (Some("broadcast"), Some(root)) => calls[root] == call,
        (Some("reduce"), Some(root)) => rank != root,
        _ => false,
    }
}

/// Runs two or three ranks; one of them makes a mismatching call.
fn check_mismatch(case: &MismatchCase, size: usize, different_rank: usize) {
    let call =
        |rank: usize| if rank == different_rank { case.different_call } else { case.usual_call };
    let calls: Vec<&str> = (0..size).map(call).collect();
    let job = TestJob::without_launcher(size, |rank| {
        let call = calls[rank];
        format!("init\nbarrier\n{call}\nall_reduce f32 SUM 2\nfinalize\nleaks\n")
    });
    let ended = job.finish();
    for rank in 0..size {
        let name = rank.to_string();
        // The first barrier and the tested call may be the same command. The reports start with
        // `start`, `init` and the first barrier.
        let outcome = &ended.reports(&name)[3];
        assert_eq!(outcome.command, calls[rank]);
        if outcome.status != DIST_OK || !may_have_left(rank, &calls) {
            outcome
                .assert_failed(DIST_ERR_MISMATCH, &case.descriptions)
                .assert_within_ms(MAX_REPORT_MS);
        }
        let next = ended.report(&name, "all_reduce f32 SUM 2");
        next.assert_failed(DIST_ERR_MISMATCH, &case.descriptions);
        next.assert_failed(DIST_ERR_MISMATCH, &["rank ", "(pid ", "called different operations"]);
        ended.report(&name, "finalize").assert_succeeded().assert_within_ms(MAX_FINALIZE_MS);
        ended.report(&name, "leaks").assert_succeeded();
    }
}

#[test]
fn mismatch_of_two_ranks_is_reported_to_both() {
    for case in MISMATCH_CASES {
        check_mismatch(case, 2, 1);
    }
}

#[test]
fn mismatch_of_three_ranks_is_reported_to_all() {
    for case in MISMATCH_CASES {
        check_mismatch(case, 3, 0);
        check_mismatch(case, 3, 2);
    }
}

#[test]
fn an_abort_ends_every_call_with_its_reason() {
    let end = "all_reduce f32 SUM 1\nfinalize\nleaks\n";
    let mut job = TestJob::without_launcher(4, |rank| match rank {
        // These ranks are in the call when the abort arrives. In rank 0 another rank aborts, in
        // rank 1 a thread of its own process.
        0 => format!("init\nall_reduce f32 SUM 100000\n{end}"),
        1 => format!("init\nabort_at now the loss is NaN\nall_reduce f32 SUM 100000\n{end}"),
        // These ranks are in no call when the abort arrives.
        2 => format!("init\ngate after\nall_reduce f32 SUM 100000\n{end}"),
        _ => format!("init\ngate after\nabort too late\nall_reduce f32 SUM 100000\n{end}"),
    });
    job.await_reports(&["0", "1", "2", "3"], "init");
    job.open_gate("now");
    let aborted_at = job.await_report("1", "aborted").assert_succeeded().at_us;
    for name in ["0", "1"] {
        let told_at = job.await_report(name, "all_reduce f32 SUM 100000").at_us;
        assert!(told_at < aborted_at + MAX_REPORT_MS * 1000);
    }
    job.open_gate("after");
    let ended = job.finish();
    for name in ["0", "1", "2", "3"] {
        let parts = ["rank 1 aborted group world: the loss is NaN"];
        ended.report(name, "all_reduce f32 SUM 100000").assert_failed(DIST_ERR_ABORTED, &parts);
        ended.report(name, "all_reduce f32 SUM 1").assert_failed(DIST_ERR_ABORTED, &parts);
        ended.report(name, "finalize").assert_succeeded().assert_within_ms(MAX_FINALIZE_MS);
        // The thread that called the abort belongs to the worker, and has ended.
        ended.report(name, "leaks").assert_succeeded();
    }
}

#[test]
fn stopped_rank_is_named_at_deadline_and_resumes_safely() {
    for (stopped, operation) in [
        (2, "all_reduce f32 SUM 1048576 timeout_ms=2000"),
        (1, "barrier timeout_ms=2000"),
        // Rank 0 hosts the store.
        (0, "all_reduce f32 SUM 10 timeout_ms=2000"),
    ] {
        let mut job = TestJob::without_launcher(3, |rank| {
            let wait = if rank == stopped { "gate end\n" } else { "" };
            format!("init\nloop {operation}\nbarrier\n{wait}finalize\nleaks\n")
        });
        let names = ["0", "1", "2"];
        job.await_reports(&names, "ready");
        let stopped = stopped.to_string();
        let pid = job.pid(&stopped);
        job.stop(&stopped);
        for name in names.into_iter().filter(|name| *name != stopped) {
            job.await_report(name, "finalize").assert_succeeded().assert_within_ms(MAX_FINALIZE_MS);
        }
        job.resume(&stopped);
        job.open_gate("end");
        let ended = job.finish();
        for name in names {
            let parts = [format!("rank {stopped} (pid {pid}, "), "timed out after".to_owned()];
            let parts = [parts[0].as_str(), parts[1].as_str()];
            let first = ended.report(name, operation);
            if name == stopped && first.status == DIST_ERR_PEER_FAILED {
                // The resumed rank may find the departure of the other ranks before it finds the
                // cause.
                panic!("the first cause was lost: {first:?}");
            }
            first.assert_failed(DIST_ERR_TIMEOUT, &parts);
            ended.report(name, "barrier").assert_failed(DIST_ERR_TIMEOUT, &parts);
            ended.report(name, "finalize").assert_succeeded().assert_within_ms(MAX_FINALIZE_MS);
            ended.report(name, "leaks").assert_succeeded();
        }
    }
}

#[test]
fn a_forked_child_does_not_hide_the_death_of_its_parent() {
    for (size, victim) in [(2, 1), (2, 0), (3, 1)] {
        let mut job = TestJob::without_launcher(size, |rank| {
            let fork = if rank == victim { "fork_sleeper\n" } else { "" };
            format!("init\n{fork}loop all_reduce f32 SUM 10\nfinalize\nleaks\n")
        });
        let names: Vec<String> = (0..size).map(|rank| rank.to_string()).collect();
        job.await_reports(&names, "ready");
        let victim = victim.to_string();
        let pid = job.pid(&victim);
        let killed_at = job.kill(&victim);
        assert_eq!(job.kill_orphans(), 1);
        let ended = job.finish();
        for name in names.iter().filter(|name| **name != victim) {
            let died = format!("rank {victim} (pid {pid}, ");
            let first = ended.report(name, "all_reduce f32 SUM 10");
            first.assert_failed(DIST_ERR_PEER_FAILED, &[&died, "died; it ", "all_reduce #"]);
            assert!(first.at_us.saturating_sub(killed_at) < MAX_REPORT_MS * 1000, "{first:?}");
            ended.report(name, "finalize").assert_succeeded().assert_within_ms(MAX_FINALIZE_MS);
            ended.report(name, "leaks").assert_succeeded();
        }
    }
}

#[test]
fn launcher_ends_job_and_names_killed_rank() {
    let mut job = TestJob::new();
    let mut command = Command::new(DISTRUN);
    command.args(["--nproc-per-node", "3"]);
    job.start_under("distrun", command, "init\nloop all_reduce f32 SUM 1000\nexit 3\n");
    job.await_reports(&["0", "1", "2"], "ready");
    let killed_at = job.kill("1");
    let ended = job.finish();
    let took_us = worker::now_us() - killed_at;
    println!("under distrun the job ended {took_us} us after the kill");
    assert!(took_us < MAX_REPORT_MS * 1000, "{took_us}");
    let text = ended.stderr_text("distrun");
    assert!(text.contains("rank 1 failed first: signal 9 (SIGKILL)"), "{text}");
    assert!(text.contains("explain them with: dist-doctor /"), "{text}");
    assert_eq!(ended.exit_status("distrun"), 128 + 9);
}
