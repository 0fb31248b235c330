//! Error files: the file that the library writes for a launcher when a group fails, and the summary
//! that distrun prints from the files of libdist and of other writers.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::expect_used, reason = "in a test a broken assumption is a failure")]
#![allow(clippy::print_stdout, reason = "the harness tells what it knows of a job that failed")]

mod harness;
#[path = "program/mod.rs"]
mod program;
mod program_paths;
mod worker;

use dist::ffi::types::{DIST_ERR_ABORTED, DIST_ERR_PEER_FAILED, DIST_ERR_TIMEOUT};
use harness::{FinishedJob, TestJob};
use program::{RunningProgram, TestFolder};
use program_paths::DISTRUN;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// Starts ranks without a launcher, each with an error file `R.json` in the job's folder.
fn with_error_files(size: usize, program: impl Fn(usize) -> String) -> TestJob {
    let mut job = TestJob::new();
    for rank in 0..size {
        let mut environment = job.environment(rank, size);
        let file = job.file(&format!("{rank}.json")).to_str().unwrap().to_owned();
        environment.push(("TORCHELASTIC_ERROR_FILE", file));
        job.start(&rank.to_string(), &environment, &program(rank));
    }
    job
}

/// Returns the `message` field of a rank's error file.
fn message(ended: &FinishedJob, rank: usize) -> Value {
    let text = fs::read_to_string(ended.file(&format!("{rank}.json"))).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    value["message"].clone()
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn the_first_fatal_error_is_written_once_in_torchruns_form() {
    let began = now();
    let loops = "init\nloop all_reduce f32 SUM 10\nbarrier\nabort later\nfinalize\n";
    let mut job = with_error_files(3, |_| loops.to_owned());
    job.await_reports(&["0", "1", "2"], "ready");
    job.kill("2");
    let ended = job.finish();
    for rank in 0..2 {
        let message = message(&ended, rank);
        let report = ended.report(&rank.to_string(), "all_reduce f32 SUM 10");
        report.assert_failed(DIST_ERR_PEER_FAILED, &["rank 2 (pid "]);
        let text = message["message"].as_str().unwrap();
        // The message of the call begins with the function's name.
        let own = report.message.split_once(": ").unwrap().1;
        assert_eq!(text, format!("libdist: {own}"));
        let extra = &message["extraInfo"];
        assert_eq!(extra["py_callstack"], message["message"]);
        assert_eq!(extra["culprit"], "2");
        // The timestamp is text, as torchrun expects it, and not earlier than the death that the
        // message reports.
        let timestamp: u64 = extra["timestamp"].as_str().unwrap().parse().unwrap();
        assert!((began + 1..=now() + 1).contains(&timestamp), "{timestamp}");
        let files = fs::read_dir(ended.file("")).unwrap().flatten();
        let drafts = files.filter(|file| file.file_name().to_string_lossy().contains("draft"));
        assert_eq!(drafts.count(), 0);
    }
    assert!(!ended.file("2.json").exists(), "the killed rank cannot have written");
}

#[test]
fn error_file_of_the_program_is_kept() {
    let mut job = with_error_files(2, |rank| match rank {
        0 => "init\nbarrier\ngate go\nbarrier\n".to_owned(),
        _ => "init\nbarrier\nexit 3\n".to_owned(),
    });
    job.await_report("0", "at go");
    fs::write(job.file("0.json"), "my own").unwrap();
    job.open_gate("go");
    let ended = job.finish();
    assert_eq!(fs::read_to_string(ended.file("0.json")).unwrap(), "my own");
}

#[test]
fn work_and_init_errors_are_fatal_until_next_init() {
    let job = with_error_files(1, |_| {
        "init size=2 connect_timeout_ms=200\ninit size=1\nfinalize\n".to_owned()
    });
    let ended = job.finish();
    ended
        .report("0", "init size=2 connect_timeout_ms=200")
        .assert_failed(DIST_ERR_TIMEOUT, &["rank 1"]);
    ended.report("0", "init size=1").assert_succeeded();
    assert!(!ended.file("0.json").exists());

    let mut job = with_error_files(2, |rank| match rank {
        0 => "init\nrecv 8 1 0 async=yes\nall_reduce f32 SUM 9 async=yes\nsettle\nfinalize\n"
            .to_owned(),
        _ => "init\ngate go\nabort enough of it\nfinalize\n".to_owned(),
    });
    job.await_report("1", "at go");
    job.await_report("0", "all_reduce f32 SUM 9 async=yes");
    job.open_gate("go");
    let ended = job.finish();
    ended.report("0", "settle").assert_failed(DIST_ERR_ABORTED, &["enough of it"]);
    let message = message(&ended, 0);
    assert!(message["message"].as_str().unwrap().contains("enough of it"), "{message}");
    assert_eq!(message["extraInfo"]["culprit"], "1");
}

#[test]
fn unwritable_error_file_is_ignored() {
    let mut job = TestJob::new();
    for rank in 0..2 {
        let mut environment = job.environment(rank, 2);
        environment.push(("TORCHELASTIC_ERROR_FILE", "/no/such/folder/error.json".to_owned()));
        let program =
            ["init\nbarrier\nbarrier\nfinalize\nleaks\n", "init\nbarrier\nexit 1\n"][rank];
        job.start(&rank.to_string(), &environment, program);
    }
    let ended = job.finish();
    assert_eq!(ended.exit_status("0"), 0);
    ended.report("0", "leaks").assert_succeeded();
}

/// Runs distrun with a shell script.
fn run(args: &[&str], script: &str) -> program::FinishedProgram {
    let mut command = Command::new(DISTRUN);
    command.args(args).args(["sh", "-c", script]);
    RunningProgram::start(command, |_| {}).wait()
}

#[test]
fn summary_names_killed_rank_and_errors_of_the_others() {
    let mut job = TestJob::new();
    let mut command = Command::new(DISTRUN);
    command.args(["--nproc-per-node", "4"]);
    job.start_under("distrun", command, "init\nloop all_reduce f32 SUM 1000\nexit 9\n");
    job.await_reports(&["0", "1", "2", "3"], "ready");
    let pid = job.pid("2");
    job.kill("2");
    let ended = job.finish();
    assert_eq!(ended.exit_status("distrun"), 137);
    let errors = ended.stderr_text("distrun");
    let report = errors.split("distrun: ").last().unwrap();
    assert!(report.starts_with("rank 2 failed first: signal 9 (SIGKILL), "), "{report}");
    assert!(report.contains(&format!("it was local rank 2, process {pid} on host ")), "{report}");
    assert!(report.contains(", ended 20") && report.contains(" UTC\n"), "{report}");
    for rank in [0, 1, 3] {
        let line = report.lines().find(|line| line.starts_with(&format!("    rank {rank}: ")));
        let line = line.expect(report);
        // On a busy host, distrun may have ended this rank before the rank noticed the death.
        let is_told = line.contains(&format!("rank 2 (pid {pid}, host "));
        assert!(is_told || !line.contains("exit status 9"), "{line}");
    }
}

#[test]
fn blamed_rank_that_failed_alone_is_listed_first() {
    // Rank 0 exits after rank 1 has exited with an error file that blames rank 0.
    let blame = r#"{"message": {"message": "rank 0 is gone", "extraInfo": {"timestamp": "1", "culprit": "0"}}}"#;
    let script = format!(
        "if [ $RANK = 1 ]; then exec 3>$TMPDIR/pipe; echo '{blame}' >$TORCHELASTIC_ERROR_FILE; exit 4; fi; \
         cat <$TMPDIR/pipe; exit 6"
    );
    let folder = TestFolder::new();
    assert!(Command::new("mkfifo").arg(folder.path("pipe")).status().unwrap().success());
    let mut command = Command::new(DISTRUN);
    command.args(["--nproc-per-node", "2", "sh", "-c", &script]).env("TMPDIR", &folder.0);
    let ended = RunningProgram::start(command, |_| {}).wait();
    // On a busy host, distrun may have ended rank 0 before it failed by itself.
    if ended.status == 6 {
        assert!(ended.stderr.contains("rank 0 failed first: exit status 6"), "{}", ended.stderr);
        let other =
            ended.stderr.lines().find(|line| line.starts_with("    rank 1: exit status 4, "));
        assert!(other.unwrap().ends_with(" ms later: rank 0 is gone"), "{}", ended.stderr);
    } else {
        assert_eq!(ended.status, 4, "{}", ended.stderr);
        assert!(
            ended
                .stderr
                .contains("it names rank 0 as the cause; that rank had not exited by itself"),
            "{}",
            ended.stderr
        );
    }
    assert!(!has_leftover_files(&folder.0), "the folder of error files is still there");
}

/// Returns true if a folder of distrun remains.
fn has_leftover_files(folder: &Path) -> bool {
    let mut names = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.file_name());
    names.any(|name| name.to_string_lossy().contains("distrun"))
}

#[test]
fn own_error_file_is_shown_else_the_last_line() {
    let trace = r#"{"message": {"message": "E: x", "extraInfo": {"py_callstack": "Traceback:\n  train()\nE: no data", "timestamp": "1"}}}"#;
    let script = format!("printf %s '{trace}' >$TORCHELASTIC_ERROR_FILE; exit 5");
    let ended = run(&[], &script);
    assert_eq!(ended.status, 5);
    let shown = "  its error:\n    Traceback:\n      train()\n    E: no data\n";
    assert!(ended.stderr.contains(shown), "{}", ended.stderr);
    // distrun skips a file that is no error report, and ignores the error file of a rank that
    // succeeds.
    let ended = run(&[], "echo '{' >$TORCHELASTIC_ERROR_FILE; exit 5");
    assert!(ended.status == 5 && !ended.stderr.contains("its error"), "{}", ended.stderr);
    let ended = run(&[], &format!("printf %s '{trace}' >$TORCHELASTIC_ERROR_FILE"));
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""));
}

#[test]
fn error_files_are_in_the_log_folder_where_there_is_one() {
    let folder = TestFolder::new();
    let logs = folder.path("logs");
    let script = "cd /; echo $TORCHELASTIC_ERROR_FILE; test -e $TORCHELASTIC_ERROR_FILE && exit 8; \
                  echo '{\"message\": \"oh\"}' >$TORCHELASTIC_ERROR_FILE; exit 3";
    // The second run must ignore the files of the first run.
    for _ in 0..2 {
        let ended = run(&["--log-dir", &logs], script);
        assert_eq!(ended.status, 3, "{}", ended.stderr);
        assert!(ended.stderr.contains("its error:\n    oh\n"), "{}", ended.stderr);
        assert_eq!(ended.stdout, format!("[0] {}\n", folder.path("logs/0/error.json")));
    }
    assert!(folder.0.join("logs/0/error.json").exists());
}
