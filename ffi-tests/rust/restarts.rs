//! Restarts of jobs by the launcher, and the flags of torchrun and of torch.distributed.launch. The
//! tests run the built program with shell scripts and with ranks that use the library.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::expect_used, reason = "in a test a broken assumption is a failure")]
#![allow(clippy::print_stdout, reason = "the harness tells what it knows of a job that failed")]

mod harness;
#[path = "program/mod.rs"]
mod program;
mod program_paths;
mod worker;

use dist::ffi::types::DIST_ERR_TIMEOUT;
use harness::TestJob;
use program::{FinishedProgram, RunningProgram, TestFolder, free_port, wait_until};
use program_paths::DISTRUN;
use std::process::Command;

fn start(args: &[&str]) -> RunningProgram {
    let mut command = Command::new(DISTRUN);
    command.args(args);
    RunningProgram::start(command, |_| {})
}

fn run(args: &[&str]) -> FinishedProgram {
    start(args).wait()
}

/// Returns the lines of a text that contain all parts.
fn lines_with<'a>(text: &'a str, parts: &[&str]) -> Vec<&'a str> {
    text.lines().filter(|line| parts.iter().all(|part| line.contains(part))).collect()
}

#[test]
fn a_failed_job_is_started_again_until_it_succeeds() {
    let folder = TestFolder::new();
    let logs = folder.path("logs");
    let script = "echo attempt $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS id $TORCHELASTIC_RUN_ID; \
                  if [ $TORCHELASTIC_RESTART_COUNT = 2 ]; then exit 0; fi; \
                  if [ $RANK = 1 ]; then exit 7; fi; exec sleep 300";
    let args = ["--nproc-per-node", "3", "--max-restarts", "5", "--log-dir", &logs];
    let ended = run(&[&args[..], &["sh", "-c", script]].concat());
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    for next in [2, 3] {
        let begins =
            format!("distrun: attempt {next} of 6 begins: rank 1 failed with exit status 7");
        assert!(ended.stderr.lines().any(|line| line == begins), "{}", ended.stderr);
    }
    assert!(!ended.stderr.contains("attempt 4"), "{}", ended.stderr);
    assert_eq!(
        lines_with(&ended.stderr, &["distrun: rank 1 failed first: exit status 7"]).len(),
        2
    );
    let mut ids = Vec::new();
    for attempt in 0..3 {
        let attempt_lines =
            lines_with(&ended.stdout, &[&format!("attempt {attempt} of 5 id ")]).len();
        // A rank that was ended early may have printed nothing.
        assert!(attempt_lines == 3 || attempt < 2 && attempt_lines >= 1, "{}", ended.stdout);
        let log = folder.text(&format!("logs/attempt_{attempt}/1/stdout.log"));
        ids.push(log.split(" id ").nth(1).expect("the job's id").to_owned());
    }
    ids.dedup();
    assert_eq!(ids.len(), 1, "{ids:?}");
}

#[test]
fn exit_status_is_that_of_the_last_attempt() {
    let script = "exit $((10 + TORCHELASTIC_RESTART_COUNT))";
    let ended = run(&["--max_restarts=2", "sh", "-c", script]);
    assert_eq!(ended.status, 12, "{}", ended.stderr);
    assert!(ended.stderr.contains("attempt 3 of 3 begins: rank 0 failed with exit status 11"));
    assert!(ended.stderr.contains("rank 0 failed first: exit status 12"), "{}", ended.stderr);
    let plain = run(&["sh", "-c", script]);
    assert_eq!(plain.status, 10);
    assert!(!plain.stderr.contains("begins"), "{}", plain.stderr);
}

#[test]
fn signalled_job_is_not_restarted() {
    let job = start(&["--max-restarts", "3", "sh", "-c", "echo ready; exec sleep 300"]);
    job.first_lines(1);
    job.signal("TERM");
    let ended = job.wait();
    assert_eq!(ended.status, 143, "{}", ended.stderr);
    assert!(!ended.stderr.contains("begins"), "{}", ended.stderr);
    // The signal arrives while the launcher handles a failure.
    let script = "if [ $RANK = 1 ]; then read line <$FOLDER/deaf; exit 5; fi; \
                  trap 'echo told' TERM; echo >$FOLDER/deaf; while :; do sleep 300 & wait; done";
    let folder = TestFolder::new();
    let pipe = folder.path("deaf");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut command = Command::new(DISTRUN);
    let args = ["--nproc-per-node", "2", "--max-restarts", "3", "--shutdown-timeout", "600"];
    command.args(args).args(["sh", "-c", script]).env("FOLDER", &folder.0);
    let job = RunningProgram::start(command, |_| {});
    wait_until("the first failure", || job.folder.text("out").contains("told"));
    job.signal("TERM");
    let ended = job.wait();
    assert_eq!(ended.status, 5, "{}", ended.stderr);
    assert!(ended.stderr.contains("SIGTERM received, killing the ranks"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("begins"), "{}", ended.stderr);
}

#[test]
fn ranks_that_lose_a_peer_meet_in_the_next_attempt() {
    let program = "init\nall_reduce f32 SUM 1000\nif 0 1 exit 3\nif 0 * loop barrier\nif 0 * exit 1\n\
                   broadcast f32 1000 0\nfinalize\nleaks\n";
    for port in [None, Some(free_port())] {
        let mut job = TestJob::new();
        let mut command = Command::new(DISTRUN);
        command.args(["--nproc-per-node", "3", "--max-restarts", "1"]);
        if let Some(port) = &port {
            command.args(["--master-port", port]);
        }
        job.start_under("distrun", command, program);
        let ended = job.finish();
        let errors = ended.stderr_text("distrun");
        assert_eq!(ended.exit_status("distrun"), 0, "{errors}");
        assert!(
            errors.contains("attempt 2 of 2 begins: rank 1 failed with exit status 3"),
            "{errors}"
        );
        for name in ["0", "2"] {
            // The summary contains the library's error of the rank, unless the launcher ended the
            // rank before.
            let line = lines_with(&errors, &[&format!("    rank {name}: ")]);
            let [line] = line.as_slice() else { panic!("{errors}") };
            assert!(line.contains("rank 1 (pid ") || line.contains("SIGTERM"), "{errors}");
        }
        for name in ["0", "1", "2"] {
            for what in ["broadcast f32 1000 0", "finalize", "leaks"] {
                ended.report(name, what).assert_succeeded();
            }
        }
    }
}

#[test]
fn the_store_of_an_attempt_begins_empty() {
    let port = free_port();
    for address in [&[][..], &["--master-port", port.as_str()]] {
        let mut job = TestJob::new();
        let mut command = Command::new(DISTRUN);
        command.args(["--no-secret", "--max-restarts", "1"]).args(address);
        let program = "if 0 * store\nif 0 * set left behind\nif 0 * exit 3\n\
                       store timeout_ms=300\nwait left\nunstore\n";
        job.start_under("distrun", command, program);
        let ended = job.finish();
        assert_eq!(ended.exit_status("distrun"), 0, "{}", ended.stderr_text("distrun"));
        ended.report("0", "set left behind").assert_succeeded();
        ended.report("0", "store timeout_ms=300").assert_succeeded();
        ended.report("0", "wait left").assert_failed(DIST_ERR_TIMEOUT, &["left"]);
    }
}

#[test]
fn multi_node_restarts_are_refused() {
    let ended = run(&["--nnodes", "2", "--max-restarts", "1", "true"]);
    assert_eq!(ended.status, 2);
    assert!(ended.stderr.contains("only jobs of one node are restarted"), "{}", ended.stderr);
}

#[test]
fn local_rank_is_passed_as_argument_without_use_env() {
    let output = |flag: &[&str]| {
        let args =
            [&["--nproc-per-node", "2"], flag, &["echo", "train.py", "--epochs", "3"]].concat();
        let ended = run(&args);
        assert_eq!(ended.status, 0, "{}", ended.stderr);
        let mut lines: Vec<String> = ended.stdout.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let plain = ["[0] train.py --epochs 3", "[1] train.py --epochs 3"];
    assert_eq!(output(&[]), plain);
    assert_eq!(output(&["--use_env"]), plain);
    assert_eq!(output(&["--use-env=True"]), plain);
    let older = output(&["--use-env=false"]);
    assert_eq!(
        older,
        [0, 1].map(|rank| format!("[{rank}] train.py --epochs 3 --local-rank={rank}"))
    );
}

#[test]
fn torchrun_flags_work_or_are_refused() {
    let flags =
        ["--role", "trainer", "--rdzv_id=job-7", "--rdzv_backend", "c10d", "--rdzv-endpoint"];
    let more =
        ["127.0.0.1:0", "--monitor-interval", "5", "--nproc-per-node=2", "--local-ranks-filter=1"];
    let script = "echo $ROLE_NAME $TORCHELASTIC_RUN_ID $MASTER_ADDR";
    let ended = run(&[&flags[..], &more[..], &["sh", "-c", script]].concat());
    assert_eq!(
        (ended.status, ended.stdout.as_str()),
        (0, "[1] trainer job-7 127.0.0.1\n"),
        "{}",
        ended.stderr
    );
    for (args, text) in [
        (["--module", "package"], "python3 -m MODULE"),
        (["--run-path", "script.py"], "python3 SCRIPT"),
        (["--virtual-local-rank", "true"], "LOCAL_RANK"),
        (["--numa-binding=node", "true"], "numactl"),
        (["--rdzv-conf=timeout=3", "true"], "DIST_CONNECT_TIMEOUT_MS"),
        (["--rdzv-backend=etcd-v2", "true"], "hosts the job's store itself"),
        (["--use-env=perhaps", "true"], "neither true nor false"),
    ] {
        let ended = run(&args);
        assert_eq!(ended.status, 2, "{args:?}");
        assert!(ended.stderr.contains(text), "{args:?}: {}", ended.stderr);
    }
}
