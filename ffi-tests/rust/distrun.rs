//! Tests the built launcher with shell scripts.
//!
//! Each wait has a deadline. At the end of a test, also of a failed one, all its processes have
//! been removed.
#![allow(clippy::unwrap_used, reason = "in a test a broken assumption is a failure")]

#[path = "program/mod.rs"]
mod program;
mod program_paths;

use program::{
    FinishedProgram, PROGRAM_TIMEOUT, RunningProgram, TestFolder, free_port, is_alive, kill,
    wait_until,
};
use program_paths::DISTRUN;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn start(args: &[&str]) -> RunningProgram {
    start_with(args, |_| {})
}

fn start_with(args: &[&str], change: impl FnOnce(&mut Command)) -> RunningProgram {
    let mut command = Command::new(DISTRUN);
    command.args(args).env_remove("OMP_NUM_THREADS");
    RunningProgram::start(command, change)
}

fn run(args: &[&str]) -> FinishedProgram {
    start(args).wait()
}

/// Returns the lines of a rank without the prefix `[rank] `.
fn lines_of_rank(out: &str, rank: usize) -> Vec<&str> {
    let prefix = format!("[{rank}] ");
    out.lines().filter_map(|line| line.strip_prefix(prefix.as_str())).collect()
}

#[test]
fn ranks_get_the_environment_that_torchrun_gives() {
    let ended = start_with(&["--nproc_per_node", "3", "env"], |command| {
        command.env("OF_THE_USER", "kept");
        command.env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_SUBSYS", "INIT,NET");
    })
    .wait();
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    for rank in 0..3 {
        let lines = lines_of_rank(&ended.stdout, rank);
        let has = |text: String| assert!(lines.contains(&text.as_str()), "{rank}: {text}");
        for name in ["RANK", "LOCAL_RANK", "ROLE_RANK"] {
            has(format!("{name}={rank}"));
        }
        for name in ["WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"] {
            has(format!("{name}=3"));
        }
        for text in [
            "GROUP_RANK=0",
            "GROUP_WORLD_SIZE=1",
            "ROLE_NAME=default",
            "MASTER_ADDR=127.0.0.1",
            "TORCHELASTIC_RESTART_COUNT=0",
            "TORCHELASTIC_MAX_RESTARTS=0",
            "TORCHELASTIC_USE_AGENT_STORE=True",
            "OMP_NUM_THREADS=1",
            "DIST_LOG_LEVEL=WARN",
            "OF_THE_USER=kept",
            "NCCL_DEBUG=INFO",
            "NCCL_DEBUG_SUBSYS=INIT,NET",
        ] {
            has(text.to_owned());
        }
        for name in ["MASTER_PORT=", "TORCHELASTIC_RUN_ID=", "TORCHELASTIC_ERROR_FILE=/"] {
            assert!(lines.iter().any(|line| line.starts_with(name)), "{rank}: {name}");
        }
    }
}

#[test]
fn settings_of_the_user_replace_the_defaults_of_ranks() {
    let ended = start_with(&["env"], |command| {
        command.env("DIST_DEBUG_LEVEL", "INFO").env("DIST_FLIGHT_RECORDER_TRIGGER", "/tmp/now");
    })
    .wait();
    for name in ["DIST_LOG_LEVEL=", "DIST_FLIGHT_RECORDER_FILE="] {
        assert!(!ended.stdout.contains(name), "{}", ended.stdout);
    }
}

/// Runs distrun with 20 ranks that print their limit of open files, in a shell with these limits.
fn run_with_limits(limits: &str) -> FinishedProgram {
    let mut command = Command::new("sh");
    let line = format!("{limits}; exec {DISTRUN} --nproc_per_node 20 sh -c 'ulimit -n'");
    command.args(["-c", &line]);
    RunningProgram::start(command, |_| {}).wait()
}

#[test]
fn soft_limit_of_open_files_is_raised_for_ranks() {
    let ended = run_with_limits("ulimit -Hn 800; ulimit -Sn 50");
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    for rank in 0..20 {
        let lines = lines_of_rank(&ended.stdout, rank);
        let limit: u64 = lines[0].parse().unwrap();
        assert!((100..=800).contains(&limit), "{limit}");
    }
    // A sufficient limit stays as it is.
    let ended = run_with_limits("ulimit -Sn 777");
    assert_eq!(lines_of_rank(&ended.stdout, 0), ["777"]);
}

#[test]
fn low_hard_limit_of_open_files_is_refused() {
    let ended = run_with_limits("ulimit -n 100");
    assert_ne!(ended.status, 0);
    assert!(ended.stdout.is_empty(), "{}", ended.stdout);
    for word in ["20 ranks", "need 120 open files", "ulimit -Hn 120"] {
        assert!(ended.stderr.contains(word), "{}", ended.stderr);
    }
}

#[test]
fn omp_num_threads_is_set_only_for_several_ranks() {
    let job = start_with(&["--nproc-per-node", "2", "env"], |command| {
        command.env("OMP_NUM_THREADS", "5");
    });
    assert!(lines_of_rank(&job.wait().stdout, 1).contains(&"OMP_NUM_THREADS=5"));
    assert!(!run(&["env"]).stdout.contains("OMP_NUM_THREADS"));
}

#[test]
fn lines_are_prefixed_whole_and_in_order() {
    let script = "i=0; while [ $i -lt 400 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done; \
                  printf last";
    let ended = run(&["--nproc-per-node", "4", "sh", "-c", script]);
    assert_eq!(ended.status, 0);
    for rank in 0..4 {
        let mut expected: Vec<_> = (0..400).map(|i| format!("out {i}")).collect();
        expected.push("last".to_owned());
        assert_eq!(lines_of_rank(&ended.stdout, rank), expected);
        let expected: Vec<_> = (0..400).map(|i| format!("err {i}")).collect();
        assert_eq!(lines_of_rank(&ended.stderr, rank), expected);
    }
    assert_eq!(ended.stdout.lines().count(), 4 * 401);
}

#[test]
fn very_long_lines_are_split() {
    let ended = run(&["sh", "-c", "head -c 200000 /dev/zero | tr '\\0' x; echo; echo y"]);
    let pieces = lines_of_rank(&ended.stdout, 0);
    assert_eq!(pieces.concat(), format!("{}y", "x".repeat(200_000)));
    assert!(pieces.iter().all(|piece| piece.len() <= 64 * 1024));
}

#[test]
fn program_gets_its_flags_and_empty_stdin() {
    let ended = run(&["sh", "-c", "cat; echo \"$@\"", "name", "--nproc-per-node", "7"]);
    assert_eq!((ended.status, ended.stdout.as_str()), (0, "[0] --nproc-per-node 7\n"));
}

#[test]
fn first_failure_sets_exit_status_and_is_shown_with_log() {
    let script = "echo of $RANK; [ $RANK != 1 ] && exec sleep 300; \
                  i=0; while [ $i -lt 30 ]; do echo line $i >&2; i=$((i+1)); done; exit 7";
    let ended = run(&["--nproc-per-node", "3", "sh", "-c", script]);
    assert_eq!(ended.status, 7);
    let report = ended.stderr.split("distrun: ").nth(1).unwrap();
    assert!(report.starts_with("rank 1 failed first: exit status 7"), "{report}");
    assert!(report.contains("local rank 1, process "), "{report}");
    assert!(report.contains("line 29\n") && report.contains("line 10\n"), "{report}");
    assert!(!report.contains("line 9\n"), "{report}");
    assert!(report.contains("of 1\n") && !report.contains("of 0\n"), "{report}");
    for rank in [0, 2] {
        let text = format!("rank {rank}: signal 15 (SIGTERM) after SIGTERM from distrun");
        assert!(report.contains(&text), "{report}");
    }
}

#[test]
fn killed_rank_is_named_as_the_root_cause() {
    // Ranks 0 and 1 each read from a pipe whose only writer is rank 2.
    let script = "cd $FOLDER; if [ $RANK = 2 ]; then exec 3>p0 4>p1; kill -9 $$; fi; \
                  cat <p$RANK; echo 'rank 2 died' >&2; exit 1";
    let folder = TestFolder::new();
    let pipes = [folder.path("p0"), folder.path("p1")];
    assert!(Command::new("mkfifo").args(&pipes).status().unwrap().success());
    let ended = start_with(&["--nproc-per-node", "3", "sh", "-c", script], |command| {
        command.env("FOLDER", &folder.0);
    })
    .wait();
    assert_eq!(ended.status, 128 + 9);
    assert!(ended.stderr.contains("rank 2 failed first: signal 9 (SIGKILL)"), "{}", ended.stderr);
    for rank in [0, 1] {
        assert!(ended.stderr.contains(&format!("[{rank}] rank 2 died\n")), "{}", ended.stderr);
        assert!(
            ended.stderr.contains(&format!("rank {rank}: exit status 1, ")),
            "{}",
            ended.stderr
        );
    }
}

#[test]
fn job_within_max_lost_ranks_continues() {
    // The sleep is longer than the time that ranks get after a first failure.
    let script = "[ $RANK = 1 ] && exit 7; [ $RANK = 2 ] && kill -9 $$; sleep 2.5; echo done";
    let job = ["--nproc-per-node", "4", "--on-failure=continue", "--min-ranks", "2", "sh", "-c"];
    let ended = run(&[&job[..], &[script]].concat());
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    for rank in [0, 3] {
        assert_eq!(lines_of_rank(&ended.stdout, rank), ["done"]);
    }
    for rank in [1, 2] {
        let text = format!("rank {rank} failed; the job continues with ");
        assert!(ended.stderr.contains(&text), "{}", ended.stderr);
    }
    let report = ended.stderr.split("distrun: ").last().unwrap();
    assert!(report.starts_with("the job succeeded without 2 of 4 ranks:\n"), "{report}");
    assert!(report.contains("  rank 1: exit status 7, "), "{report}");
    assert!(report.contains("  rank 2: signal 9 (SIGKILL), "), "{report}");
}

#[test]
fn job_beyond_max_lost_ranks_ends() {
    let script = "[ $RANK = 1 ] && exit 7; [ $RANK = 2 ] && sleep 0.5 && exit 8; exec sleep 300";
    let job = ["--nproc-per-node", "4", "--on-failure", "continue", "--min-ranks", "3", "sh", "-c"];
    let ended = run(&[&job[..], &[script]].concat());
    assert_eq!(ended.status, 7, "{}", ended.stderr);
    let report = ended.stderr.split("distrun: ").last().unwrap();
    assert!(report.starts_with("rank 1 failed first: exit status 7"), "{report}");
    for text in
        ["rank 2: exit status 8, ", "rank 0: signal 15 (SIGTERM) after SIGTERM from distrun"]
    {
        assert!(report.contains(text), "{report}");
    }
}

#[test]
fn a_signal_ends_a_job_that_has_lost_a_rank() {
    let script = "[ $RANK = 1 ] && exit 7; echo up; exec sleep 300";
    let job = ["--nproc-per-node", "2", "--on-failure=continue", "sh", "-c", script];
    let job = start(&job);
    job.wait_for_stderr("rank 1 failed; the job continues with 1 of 2 ranks");
    job.signal("TERM");
    let ended = job.wait();
    assert_eq!(ended.status, 128 + 15, "{}", ended.stderr);
}

#[test]
fn job_ends_within_2_s_if_ranks_ignore_sigterm() {
    let script = "trap '' TERM; echo $$; while :; do sleep 300; done";
    let job = start(&["--nproc-per-node", "3", "sh", "-c", script]);
    job.first_lines(3);
    let victim = lines_of_rank(&job.folder.text("out"), 1)[0].parse().unwrap();
    let killed = Instant::now();
    kill("KILL", victim);
    let ended = job.wait();
    let took = killed.elapsed();
    assert_eq!(ended.status, 137);
    assert!(ended.stderr.contains("rank 1 failed first: signal 9 (SIGKILL)"), "{}", ended.stderr);
    assert!(ended.stderr.contains("rank 0: signal 9 (SIGKILL) after SIGKILL from distrun"));
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn a_signal_is_passed_on_and_becomes_the_exit_status() {
    // The caller of the tests may ignore some signals; distrun leaves these ignored.
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
    for (number, name) in [(1, "HUP"), (2, "INT"), (3, "QUIT"), (15, "TERM")] {
        if ignored & (1 << (number - 1)) != 0 {
            continue;
        }
        let script =
            format!("sleep 300 & trap \"echo got; kill $!; exit 0\" {name}; echo ready; wait");
        let job = start(&["--nproc-per-node", "2", "sh", "-c", &script]);
        job.first_lines(2);
        job.signal(name);
        let ended = job.wait();
        assert_eq!(ended.status, 128 + number);
        for rank in 0..2 {
            assert_eq!(lines_of_rank(&ended.stdout, rank), ["ready", "got"]);
        }
        assert!(ended.stderr.contains(&format!("distrun: SIG{name} received")), "{}", ended.stderr);
    }
}

#[test]
fn a_second_signal_kills_at_once() {
    let script = "trap '' TERM; echo ready; while :; do sleep 300; done";
    let job = start(&["--nproc-per-node", "2", "sh", "-c", script]);
    job.first_lines(2);
    job.signal("TERM");
    wait_until("the first signal", || job.folder.text("err").contains("SIGTERM received"));
    let second = Instant::now();
    job.signal("TERM");
    assert_eq!(job.wait().status, 128 + 15);
    assert!(second.elapsed() < Duration::from_secs(5), "the grace period was not cut short");
}

#[test]
fn nothing_outlives_a_killed_launcher() {
    // The first child leaves the process group of its rank, so distrun does not reach it.
    let script = "setsid sleep 300 & s=$!; sleep 300 & echo $s $$ $!; wait";
    // The folder takes the files that a killed launcher cannot remove.
    let folder = TestFolder::new();
    let job = start_with(&["--nproc-per-node", "2", "sh", "-c", script], |command| {
        command.env("TMPDIR", &folder.0);
    });
    let lines = job.first_lines(2);
    let numbers = lines.iter().flat_map(|line| line.split(' ').skip(1));
    let mut pids: Vec<u32> = numbers.map(|number| number.parse().unwrap()).collect();
    let escaped = [pids.remove(3), pids.remove(0)];
    // The children of the launcher: the two ranks, which are in the list already, and the guardian
    // process.
    let launcher = job.child.id();
    let children = fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children"));
    pids.extend(children.unwrap().split_whitespace().map(|pid| pid.parse::<u32>().unwrap()));
    assert_eq!(pids.len(), 4 + 3);
    assert!(pids.iter().all(|&pid| is_alive(pid)));
    job.signal("KILL");
    assert_eq!(job.wait().status, -1);
    wait_until("the end of the ranks", || !pids.iter().any(|&pid| is_alive(pid)));
    assert!(escaped.iter().all(|&pid| is_alive(pid)));
    escaped.iter().for_each(|&pid| kill("KILL", pid));
}

#[test]
fn orphans_of_a_successful_rank_are_killed() {
    let ended = run(&["sh", "-c", "sleep 300 & echo $!; exit 0"]);
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    assert!(!is_alive(lines_of_rank(&ended.stdout, 0)[0].parse().unwrap()));
}

#[test]
fn logs_have_teed_and_redirected_output() {
    let script = "echo out $RANK; echo err $RANK >&2";
    let job = |flags: &[&str]| {
        let logs = TestFolder::new();
        let path = logs.path("deep/logs");
        let mut args = vec!["--nproc-per-node", "2", "--log-dir", path.as_str()];
        args.extend(flags);
        args.extend(["sh", "-c", script]);
        let ended = run(&args);
        assert_eq!(ended.status, 0, "{}", ended.stderr);
        (ended, logs)
    };
    let log = |logs: &TestFolder, name: &str| logs.text(&format!("deep/logs/{name}"));

    let (ended, logs) = job(&["--redirects", "3"]);
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("", ""));
    assert_eq!(log(&logs, "0/stdout.log"), "out 0\n");
    assert_eq!(log(&logs, "1/stderr.log"), "err 1\n");

    let (ended, logs) = job(&["--tee", "0:1,1:3"]);
    assert_eq!((ended.stdout.len(), ended.stderr.len()), (20, 20));
    assert_eq!(log(&logs, "0/stdout.log"), "out 0\n");
    assert_eq!(log(&logs, "1/stdout.log"), "out 1\n");
    assert_eq!(log(&logs, "1/stderr.log"), "err 1\n");
    assert!(!logs.0.join("deep/logs/0/stderr.log").exists());

    let (ended, logs) = job(&["--tee", "2", "--redirects", "1:1"]);
    assert_eq!(ended.stdout, "[0] out 0\n");
    assert_eq!(ended.stderr.len(), 20);
    assert_eq!(log(&logs, "1/stdout.log"), "out 1\n");
    assert_eq!(log(&logs, "0/stderr.log"), "err 0\n");

    let (ended, logs) = job(&[]);
    assert_eq!(ended.stdout.len(), 20);
    assert_eq!(log(&logs, "1/stdout.log"), "out 1\n");
}

#[test]
fn last_lines_are_reported_even_if_they_are_only_logged() {
    let folder = TestFolder::new();
    let script = "echo 'no such layer' >&2; exit 4";
    let ended = run(&["--log-dir", &folder.path("l"), "--redirects", "3", "sh", "-c", script]);
    assert_eq!(ended.status, 4);
    assert!(ended.stderr.contains("no such layer"), "{}", ended.stderr);
    assert!(ended.stderr.contains(&folder.path("l/0")), "{}", ended.stderr);
}

#[test]
fn a_job_outlives_the_reader_of_its_output() {
    let script =
        "i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i+1)); done; echo done >$FOLDER/done";
    let folder = TestFolder::new();
    let mut job = start_with(&["sh", "-c", script], |command| {
        command.stdout(Stdio::piped()).env("FOLDER", &folder.0);
    });
    drop(job.child.stdout.take());
    let ended = job.wait();
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("standard output cannot be written"), "{}", ended.stderr);
    assert_eq!(folder.text("done"), "done\n");
}

#[test]
fn usage_errors_have_text_and_exit_status() {
    let folder = TestFolder::new();
    let plain = folder.path("plain.py");
    fs::write(&plain, "print(1)\n").unwrap();
    let cases: [(&[&str], i32, &str); 8] = [
        (&["no-such-program-here"], 127, "no-such-program-here: program not found"),
        (&[&plain], 126, "python3"),
        (&["--nproc-per-node", "0", "true"], 2, "--nproc-per-node"),
        (&["--nprocs", "2", "true"], 2, "--nprocs"),
        (&["--nnodes", "2", "--node-rank", "2", "true"], 2, "--node-rank 2"),
        (&["--tee", "3", "true"], 2, "--log-dir"),
        (&["--log-dir", "/proc/none", "true"], 1, "/proc/none"),
        (&[], 2, "PROGRAM"),
    ];
    for (args, status, text) in cases {
        let ended = run(args);
        assert_eq!(ended.status, status, "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(text), "{args:?}: {}", ended.stderr);
    }
}

#[test]
fn the_help_explains_flags_environment_and_examples() {
    let ended = run(&["--help"]);
    assert_eq!(ended.status, 0);
    for text in [
        "--nproc-per-node",
        "--nnodes",
        "--node-rank",
        "--master-addr",
        "--master-port",
        "--standalone",
        "--log-dir",
        "--tee",
        "--redirects",
        "--secret-file",
        "--no-secret",
        "--max-restarts",
        "--use-env",
        "--role",
        "--shutdown-timeout",
        "--local-ranks-filter",
        "TORCHELASTIC_ERROR_FILE",
        "LOCAL_RANK",
        "MASTER_PORT",
        "TORCHELASTIC_USE_AGENT_STORE",
        "Examples:",
        "/dev/null",
    ] {
        assert!(ended.stdout.contains(text), "{text}");
    }
}

#[test]
fn the_store_answers_at_the_address_that_ranks_are_given() {
    let script = "echo $MASTER_ADDR:$MASTER_PORT; exec sleep 300";
    let job = start(&["--no-secret", "sh", "-c", script]);
    let address = job.first_lines(1)[0].strip_prefix("[0] ").unwrap().to_owned();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PROGRAM_TIMEOUT)).unwrap();
    // The request is VALIDATE with its magic number, then PING with the number 1; the answer is
    // that number.
    stream.write_all(&[0x00, 0xce, 0xf7, 0x85, 0x3c, 0x0d, 1, 0, 0, 0]).unwrap();
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [1, 0, 0, 0]);
    job.signal("TERM");
    assert_eq!(job.wait().status, 143);
}

#[test]
fn two_nodes_make_one_job() {
    let port = free_port();
    let script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $MASTER_PORT";
    let flags =
        ["--no-secret", "--nnodes", "2", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"];
    let node = |number: &str| {
        let own = ["--master-port", &port, "--node-rank", number, "sh", "-c", script];
        start(&[&flags[..], &own[..]].concat())
    };
    let (first, second) = (node("0"), node("1"));
    let (first, second) = (first.wait(), second.wait());
    assert_eq!((first.status, second.status), (0, 0), "{}{}", first.stderr, second.stderr);
    let (first, second) = (first.stdout, second.stdout);
    assert_eq!(lines_of_rank(&first, 0), [format!("0 0 4 0 2 {port}")]);
    assert_eq!(lines_of_rank(&first, 1), [format!("1 1 4 0 2 {port}")]);
    assert_eq!(lines_of_rank(&second, 2), [format!("2 0 4 1 2 {port}")]);
    assert_eq!(lines_of_rank(&second, 3), [format!("3 1 4 1 2 {port}")]);
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let ended = run(&["--master-port", &port, "true"]);
    assert_eq!(ended.status, 1);
    assert!(ended.stderr.contains(&format!("127.0.0.1 port {port}")), "{}", ended.stderr);
    assert!(ended.stderr.contains("--master-port"), "{}", ended.stderr);
}
