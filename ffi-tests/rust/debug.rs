//! The debugging features between processes: reports of absent ranks before a collective, debug
//! levels that differ between ranks, NaN checks, and log lines about groups and long waits.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![allow(clippy::print_stdout, reason = "a test says what it knows of a job that has failed")]

mod harness;
mod worker;

use dist::ffi::types::{
    DIST_ERR_ABORTED, DIST_ERR_INVALID_ARGUMENT, DIST_ERR_SYSTEM, DIST_ERR_TIMEOUT,
};
use harness::{FinishedJob, TestJob};

/// The transports between the ranks.
const TRANSPORTS: &[&str] = &["auto", "tcp"];

/// Starts the ranks of a job without a launcher, with these additional variables.
fn job(size: usize, variables: &[(&str, &str)], program: impl Fn(usize) -> String) -> TestJob {
    let mut job = TestJob::new();
    for rank in 0..size {
        start(&mut job, rank, size, variables, &program(rank));
    }
    job
}

fn start(job: &mut TestJob, rank: usize, size: usize, variables: &[(&str, &str)], program: &str) {
    let mut environment = job.environment(rank, size);
    environment.extend(variables.iter().map(|&(name, value)| (name, value.to_owned())));
    job.start(&rank.to_string(), &environment, program);
}

fn names(size: usize) -> Vec<String> {
    (0..size).map(|rank| rank.to_string()).collect()
}

/// Waits until one line of a process's log contains all parts.
fn wait_for_log(job: &mut TestJob, name: &str, parts: &[&str]) {
    let is_said = |line: &str| parts.iter().all(|part| line.contains(part));
    job.wait_until(&format!("{name} to say {parts:?}"), |job| {
        job.stderr_text(name).lines().any(is_said)
    });
}

fn assert_all_left(ended: &FinishedJob, size: usize) {
    for name in names(size) {
        ended.report(&name, "finalize").assert_succeeded();
        ended.report(&name, "leaks").assert_succeeded();
    }
}

#[test]
fn detail_level_names_all_missing_ranks() {
    for transport in TRANSPORTS {
        let variables = [("TORCH_DISTRIBUTED_DEBUG", "detail"), ("DIST_TRANSPORT", *transport)];
        let operation = "broadcast f32 4 0 timeout_ms=400";
        let mut job = job(4, &variables, |rank| {
            let late = if rank >= 2 { "gate late\n" } else { "" };
            format!("init\nall_reduce f32 SUM 7\n{late}{operation}\nfinalize\nleaks\n")
        });
        let pids = [job.pid("2"), job.pid("3")];
        job.await_reports(&["0", "1"], operation);
        job.open_gate("late");
        let ended = job.finish();
        let late = [2, 3].map(|rank| format!("rank {rank} (pid {}, host ", pids[rank - 2]));
        for name in names(4) {
            let report = ended.report(&name, operation);
            report.assert_failed(
                DIST_ERR_TIMEOUT,
                &[&late[0], &late[1], "broadcast #2 (f32", "400 ms"],
            );
            if *transport == "auto" {
                report.assert_failed(DIST_ERR_TIMEOUT, &["which last finished all_reduce #1"]);
            }
            ended.report(&name, "all_reduce f32 SUM 7").assert_succeeded();
        }
        assert_all_left(&ended, 4);
    }
}

#[test]
fn detail_level_names_missing_rank_0() {
    let operation = "barrier timeout_ms=400";
    let mut job = job(3, &[("DIST_DEBUG_LEVEL", "DETAIL")], |rank| {
        let late = if rank == 0 { "gate late\n" } else { "" };
        format!("init\n{late}{operation}\nfinalize\nleaks\n")
    });
    let pid = job.pid("0");
    job.await_reports(&["1", "2"], operation);
    job.open_gate("late");
    let ended = job.finish();
    for name in names(3) {
        let report = ended.report(&name, operation);
        report.assert_failed(DIST_ERR_TIMEOUT, &[&format!("rank 0 (pid {pid}, "), "waiting for"]);
    }
    assert_all_left(&ended, 3);
}

#[test]
fn ranks_with_different_debug_levels_synchronise() {
    let calls = "all_reduce f32 SUM 10\nbroadcast f32 5000 1\nall_gather f32 3\nreduce_scatter f32 SUM 9\n\
                 barrier\nall_reduce f32 SUM 10 async=yes\nbarrier async=yes\nsettle\n";
    for detailed in [0, 1] {
        let job = job(3, &[], |rank| {
            let (before, after) = if rank == detailed { (2, 0) } else { (0, 2) };
            format!("debug {before}\ninit\n{calls}debug {after}\n{calls}finalize\nleaks\n")
        });
        let ended = job.finish();
        for name in names(3) {
            ended.assert_all_succeeded(&name, 1 + 1 + 1 + 8 + 1 + 8 + 2);
        }
    }
}

#[test]
fn killed_rank_ends_the_detail_barrier() {
    let mut job = job(3, &[("DIST_DEBUG_LEVEL", "DETAIL")], |rank| match rank {
        2 => "init\nbarrier\ngate never\n".to_owned(),
        _ => "init\nbarrier\nall_reduce f32 SUM 10\nfinalize\nleaks\n".to_owned(),
    });
    job.await_reports(&["0", "1", "2"], "barrier");
    let pid = job.pid("2");
    job.kill("2");
    let ended = job.finish();
    for name in ["0", "1"] {
        let report = ended.report(name, "all_reduce f32 SUM 10");
        let parts = [format!("rank 2 (pid {pid}, host "), "died".to_owned()];
        report.assert_failed(dist::ffi::types::DIST_ERR_PEER_FAILED, &[&parts[0], &parts[1]]);
        report.assert_within_ms(2000);
        ended.report(name, "leaks").assert_succeeded();
    }
}

#[test]
fn nan_input_is_reported_to_all_ranks() {
    for transport in TRANSPORTS {
        let variables = [("DIST_CHECK_NAN", "1"), ("DIST_TRANSPORT", *transport)];
        for call in ["all_reduce f32 SUM 1000", "all_gather f32 1000", "reduce f32 SUM 1000 0"] {
            let mut job = job(3, &variables, |rank| {
                let nan = if rank == 1 { " nan=777" } else { "" };
                format!("init\n{call}\n{call}{nan}\ngate end\nbarrier\nfinalize\nleaks\n")
            });
            let pid = job.pid("1");
            job.await_reports(&names(3), "at end");
            job.open_gate("end");
            let ended = job.finish();
            let parts = [format!("rank 1 (pid {pid}, "), "input: element 777 is NaN".to_owned()];
            let verb = call.split(' ').next().unwrap();
            for name in names(3) {
                let report = ended.report(&name, "barrier");
                let what = format!("aborted group world: {verb} #2 (f32");
                report.assert_failed(DIST_ERR_ABORTED, &[&parts[0], &parts[1], &what]);
            }
            assert_all_left(&ended, 3);
        }
    }
}

#[test]
fn message_with_nan_is_not_sent() {
    // Workers send messages of bytes, which the NaN check does not examine.
    let job = job(2, &[("DIST_CHECK_NAN", "inf")], |rank| match rank {
        0 => "init\nsend 100 1 3\nfinalize\nleaks\n".to_owned(),
        _ => "init\nrecv 100 0 3\nfinalize\nleaks\n".to_owned(),
    });
    let ended = job.finish();
    ended.report("1", "recv 100 0 3").assert_succeeded();
    assert_all_left(&ended, 2);
}

#[test]
fn unusable_variables_are_named() {
    for (name, value, word) in [
        ("DIST_DEBUG_LEVEL", "VERBOSE", "not one of OFF, INFO, DETAIL"),
        ("TORCH_DISTRIBUTED_DEBUG", "1", "not one of OFF, INFO, DETAIL"),
        ("TORCH_CPP_LOG_LEVEL", "LOUD", "not one of"),
        ("DIST_CHECK_NAN", "yes", "not one of 0, 1, inf"),
        ("DIST_SHOW_STACKTRACES", "on", "neither 0 nor 1"),
        ("TORCH_SHOW_CPP_STACKTRACES", "2", "neither 0 nor 1"),
        ("DIST_SLOW_WARNING_MS", "soon", "not an integer"),
    ] {
        let ended = job(1, &[(name, value)], |_| "init\nleaks\n".to_owned()).finish();
        let expected = format!("{name}=\"{value}\"");
        ended.report("0", "init").assert_failed(DIST_ERR_INVALID_ARGUMENT, &[&expected, word]);
    }
}

#[test]
fn unusable_trace_file_is_an_error() {
    let variables = [("DIST_TRACE_FILE", "/no such folder/trace_")];
    let ended = job(1, &variables, |_| "init\nleaks\n".to_owned()).finish();
    let parts = ["DIST_TRACE_FILE", "/no such folder/trace_0.json"];
    ended.report("0", "init").assert_failed(DIST_ERR_SYSTEM, &parts);
}

#[test]
fn misspelt_variable_is_named_once() {
    let variables = [("DIST_LOG_LEVEL", "WARN"), ("DIST_TIMEOUTMS", "1"), ("DIST_MY_OWN", "1")];
    let program = "init\nfinalize\ninit\nfinalize\nleaks\n";
    let ended = job(1, &variables, |_| program.to_owned()).finish();
    let log = ended.stderr_text("0");
    let line = "the environment variable DIST_TIMEOUTMS has no effect; is DIST_TIMEOUT_MS meant?";
    assert_eq!(log.matches(line).count(), 1, "{log}");
    assert_eq!(log.matches("has no effect").count(), 1, "{log}");
}

#[test]
fn info_level_logs_group_creation() {
    let program = "init\nall_reduce f32 SUM 7\nbarrier\nfinalize\nleaks\n";
    let ended = job(2, &[("DIST_DEBUG_LEVEL", "INFO")], |_| program.to_owned()).finish();
    for name in names(2) {
        let log = ended.stderr_text(&name);
        let assert_logged =
            |part: &str| assert!(log.contains(part), "\"{part}\" is missing:\n{log}");
        assert_logged(&format!("group world, rank {name} of 2 was created in "));
        assert_logged("transport shm");
        assert_logged("has the members: rank 0 (pid ");
        let is_short = |line: &str| !line.contains("group world") || line.chars().count() <= 200;
        assert!(log.lines().all(is_short) && !log.contains('{'), "{log}");
        assert_logged(&format!(
            "group world, rank {name} is released after 2 collective operations and 0 messages"
        ));
    }
    assert_all_left(&ended, 2);
    for variables in [
        &[("DIST_DEBUG_LEVEL", "DETAIL"), ("DIST_LOG_LEVEL", "OFF")][..],
        &[("DIST_LOG_LEVEL", "INFO")],
    ] {
        let ended = job(2, variables, |_| program.to_owned()).finish();
        assert!(!ended.stderr_text("0").contains("was created in"), "{}", ended.stderr_text("0"));
        assert_all_left(&ended, 2);
    }
}

#[test]
fn detail_level_logs_short_lines() {
    let calls = "all_reduce f32 SUM 70000\nbroadcast f32 4 0\nbarrier\nall_reduce f32 SUM 7";
    let program = format!("init\n{calls}\nfinalize\nleaks\n");
    for transport in TRANSPORTS {
        let variables = [
            ("DIST_DEBUG_LEVEL", "DETAIL"),
            ("DIST_LOG_LEVEL", "TRACE"),
            ("DIST_TRANSPORT", *transport),
        ];
        let ended = job(3, &variables, |_| program.clone()).finish();
        for name in names(3) {
            let log = ended.stderr_text(&name);
            let mut lines = log.lines().filter(|line| line.starts_with("libdist "));
            assert!(lines.clone().count() > 10, "{log}");
            assert_eq!(lines.find(|line| line.chars().count() > 200), None);
        }
        assert_all_left(&ended, 3);
    }
}

/// Returns the end of a log line about an operation, and whether the log must have it.
fn assert_operation_lines(variables: &[(&str, &str)], ends: bool, starts: bool) {
    // The third call of each kind takes the fast path if it is not logged.
    let program =
        "init\nall_reduce f32 SUM 7\nall_reduce f32 SUM 7\nall_reduce f32 SUM 7\nfinalize\nleaks\n";
    let ended = job(2, variables, |_| program.to_owned()).finish();
    for name in names(2) {
        let log = ended.stderr_text(&name);
        for number in 1..=3 {
            let line = format!("group world, rank {name}: all_reduce #{number} (f32");
            let is_logged = |level: &str, end: &str| {
                log.lines().any(|text| {
                    text.contains(&format!("libdist {level}: {line}")) && text.contains(end)
                })
            };
            assert_eq!(is_logged("DEBUG", " ended after "), ends, "{variables:?}, {line}:\n{log}");
            assert_eq!(is_logged("TRACE", " starts"), starts, "{variables:?}, {line}:\n{log}");
        }
    }
    assert_all_left(&ended, 2);
}

#[test]
fn torch_levels_together_give_the_log_level() {
    let info = ("TORCH_CPP_LOG_LEVEL", "INFO");
    for (variables, ends, starts) in [
        (&[info][..], false, false),
        (&[info, ("TORCH_DISTRIBUTED_DEBUG", "INFO")], true, false),
        (&[info, ("TORCH_DISTRIBUTED_DEBUG", "DETAIL")], true, true),
        (&[("TORCH_CPP_LOG_LEVEL", "0"), ("DIST_DEBUG_LEVEL", "DETAIL")], true, true),
        (
            &[("TORCH_CPP_LOG_LEVEL", "WARNING"), ("TORCH_DISTRIBUTED_DEBUG", "DETAIL")],
            false,
            false,
        ),
        (&[("DIST_LOG_LEVEL", "INFO"), ("TORCH_DISTRIBUTED_DEBUG", "DETAIL")], false, false),
        (&[("DIST_LOG_LEVEL", "DEBUG")], true, false),
        (&[("DIST_LOG_LEVEL", "trace")], true, true),
    ] {
        assert_operation_lines(variables, ends, starts);
    }
}

/// Variables that make a rank log a wait after 100 ms.
const EARLY_WARNINGS: [(&str, &str); 2] =
    [("TORCH_CPP_LOG_LEVEL", "WARNING"), ("DIST_SLOW_WARNING_MS", "100")];

#[test]
fn late_rank_is_logged_during_a_long_wait() {
    for transport in TRANSPORTS {
        let variables = [EARLY_WARNINGS[0], EARLY_WARNINGS[1], ("DIST_TRANSPORT", *transport)];
        let mut job = job(3, &variables, |rank| {
            let late = if rank == 2 { "gate late\n" } else { "" };
            format!("init\nbarrier\n{late}all_reduce f32 SUM 10\nfinalize\nleaks\n")
        });
        let pid = job.pid("2");
        let late = format!("for rank 2 (pid {pid}, host ");
        let did = if *transport == "auto" { "which last finished barrier #1" } else { "" };
        let parts = ["all_reduce #2 (f32", "of group world", "has waited ", &late, did];
        wait_for_log(&mut job, "0", &parts);
        wait_for_log(&mut job, "1", &parts);
        job.open_gate("late");
        let ended = job.finish();
        for name in names(3) {
            ended.assert_all_succeeded(&name, if name == "2" { 8 } else { 6 });
        }
    }
}

#[test]
fn error_of_a_time_out_names_the_operation_once() {
    let calls = ["barrier timeout_ms=200", "barrier timeout_ms=200 async=1\nsettle"];
    for (transport, call) in
        TRANSPORTS.iter().flat_map(|transport| calls.map(|call| (transport, call)))
    {
        let mut job = job(2, &[("DIST_TRANSPORT", *transport)], |rank| match rank {
            0 => format!("init\n{call}\nfinalize\n"),
            _ => "init\ngate late\nfinalize\n".to_owned(),
        });
        let command = call.lines().last().unwrap_or_default();
        job.await_reports(&["0"], command);
        job.open_gate("late");
        let ended = job.finish();
        let report = ended.report("0", command);
        report.assert_failed(DIST_ERR_TIMEOUT, &["barrier #1 on group world, rank 0: timed out"]);
        assert_eq!(report.message.matches("barrier #").count(), 1, "{report:?}");
    }
}

#[test]
fn slow_receives_and_barriers_are_logged() {
    let variables = [EARLY_WARNINGS[0], EARLY_WARNINGS[1]];
    let mut job = job(2, &variables, |rank| match rank {
        0 => "init\nrecv 10 1 4\nmonitored_barrier 60000\nfinalize\nleaks\n".to_owned(),
        _ => "init\ngate send\nsend 10 0 4\ngate come\nmonitored_barrier 60000\nfinalize\nleaks\n"
            .to_owned(),
    });
    wait_for_log(&mut job, "0", &["receive from rank 1, tag 4", "on group world", "has waited "]);
    job.open_gate("send");
    wait_for_log(&mut job, "0", &["monitored_barrier #1", "has waited ", "for rank 1 (pid "]);
    job.open_gate("come");
    assert_all_left(&job.finish(), 2);
}

#[test]
fn detail_level_logs_slow_detail_barrier() {
    let variables = [EARLY_WARNINGS[0], EARLY_WARNINGS[1], ("DIST_DEBUG_LEVEL", "DETAIL")];
    let mut job = job(3, &variables, |rank| {
        let late = if rank > 0 { "gate late\n" } else { "" };
        format!("init\n{late}barrier\nfinalize\nleaks\n")
    });
    wait_for_log(&mut job, "0", &["barrier #1", "has waited ", "rank 1 (pid ", "rank 2 (pid "]);
    job.open_gate("late");
    assert_all_left(&job.finish(), 3);
}

#[test]
fn rank_that_does_not_join_is_logged_with_store_address() {
    let mut job = TestJob::new();
    let program = "init\nbarrier\nfinalize\nleaks\n";
    for rank in [0, 1] {
        start(&mut job, rank, 3, &EARLY_WARNINGS, program);
    }
    let store_address = format!("rendezvous at 127.0.0.1:{}", job.port);
    for name in ["0", "1"] {
        let parts = ["group world: rank 2 (of 3) has not joined after ", store_address.as_str()];
        wait_for_log(&mut job, name, &parts);
    }
    start(&mut job, 2, 3, &EARLY_WARNINGS, program);
    assert_all_left(&job.finish(), 3);
}

#[test]
fn slow_store_wait_is_logged_with_the_key() {
    for unix_socket in ["on", "off"] {
        let mut job = TestJob::new();
        let mut environment = vec![
            ("MASTER_PORT", job.port.to_string()),
            ("DIST_STORE_UNIX", unix_socket.to_owned()),
        ];
        job.start(
            "server",
            &environment,
            "store server=yes\ngate go\nset late x\ngate end\nunstore\n",
        );
        job.await_report("server", "store server=yes");
        environment.extend(EARLY_WARNINGS.map(|(name, value)| (name, value.to_owned())));
        job.start("client", &environment, "store\nget late x\nunstore\nleaks\n");
        wait_for_log(&mut job, "client", &["get of ", "has waited ", "for \"late\""]);
        job.open_gate("go");
        job.await_report("client", "leaks");
        job.open_gate("end");
        let ended = job.finish();
        ended.assert_all_succeeded("client", 5);
    }
}
