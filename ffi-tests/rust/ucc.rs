//! Groups over the back end `ucc`, in processes, over a stub of libucc: the failures of UCC's
//! calls, device memory, and dead, stopped and late ranks. The stub records misuse, and every
//! program must end without any. `cargo xtask ucc` runs the same program over the real UCC.
#![allow(clippy::expect_used, clippy::panic, reason = "in a test a broken assumption is a failure")]

mod interface;
#[path = "harness/rank_processes.rs"]
mod rank_processes;
#[path = "ctests/toolchain.rs"]
mod toolchain;

use interface::ROOT;
use rank_processes::RankProcesses;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toolchain::Compiler;

/// The time limit of a job.
const LIMIT: Duration = Duration::from_secs(80);

/// Builds the stubs and the programs. Each test may run in a process of its own.
fn build(name: &str) -> Option<(PathBuf, PathBuf)> {
    let compiler = Compiler::find()?;
    let lock = File::create(format!("{}/ucc.lock", env!("CARGO_TARGET_TMPDIR"))).expect("a file");
    lock.lock().expect("a lock");
    let stubs = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stubs_ucc");
    if !stubs.join("selftest").exists() {
        compiler.stubs("ucc");
    }
    let file = |path: &str| format!("{ROOT}/ffi-tests/{path}");
    let folder = stubs.display().to_string();
    let mut files = vec![file(&format!("ucc/{name}.c"))];
    let mut more = vec!["-std=c11".to_owned(), "-D_GNU_SOURCE".to_owned()];
    if name == "device" {
        files.push(file("nccl/ranks.c"));
        more.extend(["libnccl.so.2", "libcuda.so.1"].map(|name| format!("{folder}/{name}")));
        more.extend([format!("-Wl,-rpath,{folder}"), "-lm".to_owned(), "-ldl".to_owned()]);
    }
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let program = compiler.program_with(&format!("ucc_{name}"), &files, &more);
    Some((stubs, program))
}

/// Runs the ranks of a job with this fault of the stub. Returns the output of each rank.
fn run_job(name: &str, ranks: usize, fault: &str, words: &[&str]) -> Vec<String> {
    let Some((stubs, program)) = build(name) else { return Vec::new() };
    let log =
        format!("{}/ucc_{}_{fault}_{ranks}.log", env!("CARGO_TARGET_TMPDIR"), words.join("_"));
    let log = log.replace(' ', "_");
    drop(std::fs::remove_file(&log));
    let mut job = RankProcesses::new(ranks);
    job.set("DIST_UCC_LIB", stubs.join("libucc.so.1").display());
    job.set("LD_LIBRARY_PATH", stubs.display());
    job.set("DIST_STUB_LOG", &log);
    job.set("DIST_STUB_UCC", fault);
    job.set("DIST_HEARTBEAT_LIMIT_MS", 1000);
    let outputs = job.run(&program, words, LIMIT);
    let misuse = std::fs::read_to_string(&log).unwrap_or_default();
    assert!(misuse.is_empty(), "the stubs were misused:\n{misuse}");
    outputs
}

/// Checks that these ranks have passed their checks.
fn expect_passed(outputs: &[String]) {
    for (rank, output) in outputs.iter().enumerate() {
        assert!(output.contains(" checks, 0 failed"), "rank {rank}:\n{output}");
    }
}

#[test]
fn collectives_and_subgroups() {
    for ranks in [1, 2, 3] {
        expect_passed(&run_job("behaviour", ranks, "", &["stub"]));
    }
}

#[test]
fn buffers_in_device_memory() {
    for ranks in [2, 3] {
        expect_passed(&run_job("device", ranks, "", &[]));
    }
}

#[test]
fn dead_stopped_and_aborting_rank_is_named() {
    for way in ["kill", "stop", "abort"] {
        let mut outputs = run_job("behaviour", 3, "", &[way]);
        // The last rank has ended, or is stopped.
        outputs.pop();
        expect_passed(&outputs);
    }
}

#[test]
fn late_rank_is_named() {
    expect_passed(&run_job("behaviour", 3, "", &["late"]));
}

#[test]
fn failing_calls_are_errors() {
    for (fault, text) in [
        ("unsupported", "Operation is not supported"),
        ("post_fails", "ucc_collective_post: Unhandled error"),
        ("fails", "Unhandled error"),
        ("hangs", "did not complete within"),
    ] {
        expect_passed(&run_job("behaviour", 2, fault, &["refused", text]));
    }
}

#[test]
fn group_without_ucc_is_refused() {
    for (fault, text) in [
        ("old", "UCC 1.2 or newer is needed"),
        ("no_init", "ucc_init: Unhandled error"),
        ("no_context", "ucc_context_create: Unhandled error"),
        ("no_team", "ucc_team_create_test: Unhandled error"),
        ("team_hangs", "UCC did not create its team within"),
    ] {
        expect_passed(&run_job("behaviour", 2, fault, &["no_group", text]));
    }
}

#[test]
fn team_that_cannot_be_destroyed_does_not_hang() {
    expect_passed(&run_job("behaviour", 2, "no_destroy", &["stub"]));
}
