//! `dist_finalize`: it returns within 6 s whatever the other ranks do, logs no message in normal
//! operation, and the rank that hosts the store returns last. Every rank is a process.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::expect_used, reason = "in a test a broken assumption is a failure")]
#![allow(clippy::print_stdout, reason = "the harness tells what it knows of a job that failed")]

mod harness;
mod worker;

use dist::ffi::types::{
    DIST_ERR_ABORTED, DIST_ERR_NOT_INITIALIZED, DIST_ERR_PEER_FAILED, DIST_ERR_TIMEOUT,
};
use harness::{FinishedJob, TestJob};

/// The limit for `finalize` on a busy machine, in milliseconds.
const MAX_FINALIZE_MS: u64 = 6000;

/// Returns the names of some ranks.
fn names(ranks: impl IntoIterator<Item = usize>) -> Vec<String> {
    ranks.into_iter().map(|rank| rank.to_string()).collect()
}

/// Asserts that these ranks have finalized in time and have released their resources.
fn assert_finalized(ended: &FinishedJob, names: &[String]) {
    for name in names {
        ended.report(name, "finalize").assert_succeeded().assert_within_ms(MAX_FINALIZE_MS);
        ended.report(name, "leaks").assert_succeeded();
        assert_eq!(ended.exit_status(name), 0);
    }
}

#[test]
fn survivors_of_a_killed_rank_finalize_in_time() {
    for victim in [0, 2] {
        // The ranks finalize with and without a call that notices the death.
        for after in ["", "barrier\n"] {
            let program = format!("init\nbarrier\ngate go\n{after}finalize\nleaks\n");
            let mut job = TestJob::without_launcher(4, |_| program.clone());
            job.await_reports(&names(0..4), "at go");
            job.kill(&victim.to_string());
            job.open_gate("go");
            let ended = job.finish();
            assert_finalized(&ended, &names((0..4).filter(|&rank| rank != victim)));
        }
    }
}

#[test]
fn pending_works_are_aborted_and_stay_queryable() {
    let mut job = TestJob::without_launcher(3, |rank| {
        match rank {
        2 => "init\nbarrier\ngate go\nfinalize\nleaks\n".to_owned(),
        _ => "init\nbarrier\nall_reduce f32 SUM 10 async=yes\nbarrier async=yes\nrecv 8 2 0 async=yes\n\
              finalize\nsettle\nleaks\n"
            .to_owned(),
    }
    });
    job.await_reports(&names(0..2), "finalize");
    job.open_gate("go");
    let ended = job.finish();
    assert_finalized(&ended, &names(0..3));
    for name in names(0..2) {
        let report = ended.report(&name, "settle");
        let text =
            "dist_finalize was called with 3 asynchronous operations that did not end within 5 s";
        report.assert_failed(DIST_ERR_ABORTED, &[text]).assert_within_ms(1000);
    }
}

#[test]
fn pending_works_fail_when_their_peer_dies() {
    let mut job = TestJob::without_launcher(3, |rank| match rank {
        2 => "init\nbarrier\ngate never\n".to_owned(),
        _ => "init\nbarrier\nall_reduce f32 SUM 10 async=yes\nrecv 8 2 0 async=yes\ngate go\n\
              finalize\nsettle\nleaks\n"
            .to_owned(),
    });
    job.await_reports(&names(0..2), "at go");
    job.await_report("2", "at never");
    job.kill("2");
    job.open_gate("go");
    let ended = job.finish();
    assert_finalized(&ended, &names(0..2));
    for name in names(0..2) {
        ended.report(&name, "settle").assert_failed(DIST_ERR_PEER_FAILED, &["rank 2 (pid "]);
    }
}

#[test]
fn the_rank_that_hosts_the_store_leaves_last() {
    let mut job = TestJob::without_launcher(3, |rank| match rank {
        0 => "init\nbarrier\nfinalize\nleaks\n".to_owned(),
        _ => format!(
            "init\nbarrier\nstore\ngate go\nset key{rank} value\nget key{rank} value\nunstore\nfinalize\nleaks\n"
        ),
    });
    job.await_report("0", "barrier");
    job.await_reports(&names(1..3), "at go");
    job.open_gate("go");
    let ended = job.finish();
    assert_finalized(&ended, &names(0..3));
    let host = ended.report("0", "finalize").at_us;
    for rank in 1..3 {
        let name = rank.to_string();
        ended.report(&name, &format!("get key{rank} value")).assert_succeeded();
        // The host returns after it has received the last rank's departure, shortly before that
        // rank's call returns.
        let used = ended.report(&name, "unstore");
        assert!(used.assert_succeeded().at_us < host, "rank {rank} still used the store");
    }
}

#[test]
fn second_finalize_is_an_error_and_new_init_works() {
    let once = "init\nbarrier\nfinalize\nfinalize\n";
    let mut job = TestJob::without_launcher(2, |_| format!("{once}gate again\n{once}leaks\n"));
    // Both ranks initialize at the same time, so that no rank joins the store that is about to end.
    job.await_reports(&names(0..2), "at again");
    job.open_gate("again");
    let ended = job.finish();
    for name in names(0..2) {
        let reports = ended.reports(&name);
        let finalize_reports = reports.iter().filter(|report| report.command == "finalize");
        let finalize_statuses: Vec<i32> = finalize_reports.map(|report| report.status).collect();
        let twice = [0, DIST_ERR_NOT_INITIALIZED];
        assert_eq!(finalize_statuses, [twice, twice].concat());
        for report in reports.iter().filter(|report| report.command != "finalize") {
            report.assert_succeeded();
        }
    }
}

#[test]
fn finalize_with_stopped_rank_is_bounded() {
    // Rank 0 hosts the store.
    for stopped in [0, 2] {
        let program = "init\nbarrier\ngate go\nfinalize\nleaks\n";
        let mut job = TestJob::without_launcher(3, |_| program.to_owned());
        job.await_reports(&names(0..3), "at go");
        job.stop(&stopped.to_string());
        job.open_gate("go");
        let others = names((0..3).filter(|&rank| rank != stopped));
        job.await_reports(&others, "leaks");
        job.resume(&stopped.to_string());
        let ended = job.finish();
        assert_finalized(&ended, &names(0..3));
    }
}

#[test]
fn pending_work_of_stopped_rank_adds_no_delay() {
    let program = "init\nbarrier\ngate go\nall_reduce f32 SUM 10 async=yes\nfinalize\nleaks\n";
    let mut job = TestJob::without_launcher(3, |_| program.to_owned());
    job.await_reports(&names(0..3), "at go");
    job.stop("1");
    job.open_gate("go");
    job.await_reports(&["0", "2"], "leaks");
    job.resume("1");
    let ended = job.finish();
    assert_finalized(&ended, &names(0..3));
}

#[test]
fn normal_finalize_logs_nothing() {
    let programs = [
        "init\nbarrier\nfinalize\nleaks\n",
        "init\nall_reduce f32 SUM 300000 async=yes\nbarrier async=yes\nfinalize\nleaks\n",
    ];
    for program in programs {
        let mut job = TestJob::new();
        for rank in 0..4 {
            let mut environment = job.environment(rank, 4);
            environment.push(("DIST_LOG_LEVEL", "WARN".to_owned()));
            job.start(&rank.to_string(), &environment, program);
        }
        let ended = job.finish();
        for name in names(0..4) {
            ended.assert_all_succeeded(&name, program.lines().count() + 1);
            assert!(!ended.stderr_text(&name).contains("libdist"), "{}", ended.stderr_text(&name));
        }
    }
}

#[test]
fn finalize_after_timeout_does_not_wait_again() {
    let mut job = TestJob::without_launcher(2, |rank| match rank {
        0 => "init timeout_ms=200\nbarrier\nfinalize\nleaks\n".to_owned(),
        _ => "init\ngate go\nfinalize\nleaks\n".to_owned(),
    });
    job.await_report("0", "barrier").assert_failed(DIST_ERR_TIMEOUT, &["rank 1"]);
    let finalize_report = job.await_report("0", "finalize");
    finalize_report.assert_succeeded().assert_within_ms(3000);
    job.open_gate("go");
    assert_finalized(&job.finish(), &names(0..2));
}
