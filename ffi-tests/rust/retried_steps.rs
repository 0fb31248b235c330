//! A training whose reducer repeats a step after the death of a rank, in real processes under
//! distrun.
//!
//! The survivors must get the same result, bit for bit, as a job of only these ranks that starts at
//! that step.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "in a test a broken assumption is a failure"
)]

mod interface;
#[path = "program/mod.rs"]
mod program;
mod program_paths;
#[path = "ctests/toolchain.rs"]
mod toolchain;

use program::{FinishedProgram, RunningProgram};
use program_paths::DISTRUN;
use std::path::PathBuf;
use std::process::Command;
use toolchain::Compiler;

const STEPS: &str = "6";
/// The step in which a rank is killed, and the rank.
const KILLED_STEP: &str = "3";
const KILLED_RANK: &str = "2";
/// The number of gradients of the model.
const GRADIENTS: usize = 12;

/// A program with a folder for its checkpoints.
struct RetryTraining {
    program: PathBuf,
    folder: PathBuf,
    hook: Option<&'static str>,
}

impl RetryTraining {
    fn new(name: &str, hook: Option<&'static str>) -> Option<Self> {
        let program = Compiler::find()?.program(name, &["reducer_retry.c"]);
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}_checkpoints"));
        drop(std::fs::remove_dir_all(&folder));
        std::fs::create_dir_all(&folder).expect("a folder");
        Some(Self { program, folder, hook })
    }

    fn run(&self, ranks: &str, hosts: &str, rest: &[&str]) -> FinishedProgram {
        let mut command = Command::new(DISTRUN);
        command.args(["--nproc-per-node", ranks, "--on-failure", "continue"]);
        command
            .arg(&self.program)
            .args([STEPS, self.folder.to_str().expect("UTF-8"), hosts])
            .args(rest)
            .envs(self.hook.map(|hook| ("RETRY_HOOK", hook)));
        RunningProgram::start(command, |_| {}).wait()
    }
}

/// Returns the lines of the steps with this number of ranks, without the times.
fn steps(ended: &FinishedProgram, ranks: usize) -> Vec<String> {
    assert_eq!(ended.status, 0, "{}\n{}", ended.stdout, ended.stderr);
    let with_ranks = format!(" ranks {ranks} ");
    let lines = ended.stdout.lines().filter(|line| line.contains(&with_ranks));
    lines.filter_map(|line| Some(line.split_once(" end ")?.0.to_owned())).collect()
}

fn check_retry(name: &str, hosts: &str, marked: usize) {
    check_retry_with_hook(name, hosts, marked, None);
}

fn check_retry_with_hook(name: &str, hosts: &str, marked: usize, hook: Option<&'static str>) {
    let Some(training) = RetryTraining::new(name, hook) else { return };
    let retried =
        training.run("4", hosts, &["kill", KILLED_STEP, KILLED_RANK, &marked.to_string()]);
    assert_eq!(steps(&retried, 4).len(), 3, "{}", retried.stdout);
    let from_there = training.run("3", hosts, &["from", KILLED_STEP, KILLED_RANK]);
    assert_eq!(steps(&retried, 3).len(), 3, "{}\n{}", retried.stdout, retried.stderr);
    assert_eq!(steps(&retried, 3), steps(&from_there, 3));
}

#[test]
fn a_rank_killed_before_its_first_gradient() {
    check_retry("retry_first", "1", 0);
}

#[test]
fn a_rank_killed_in_mid_step() {
    check_retry("retry_middle", "1", GRADIENTS / 2);
}

#[test]
fn a_rank_killed_before_the_end() {
    check_retry("retry_end", "1", GRADIENTS);
}

#[test]
fn a_rank_killed_in_mid_step_on_two_hosts() {
    check_retry("retry_hosts", "2", GRADIENTS / 2);
}

#[test]
fn a_rank_killed_in_mid_step_with_compressed_gradients() {
    check_retry_with_hook("retry_int8", "1", GRADIENTS / 2, Some("int8"));
}

#[test]
fn a_rank_killed_in_mid_step_with_a_function_as_hook() {
    check_retry_with_hook("retry_function", "2", GRADIENTS / 2, Some("add up"));
}

/// The survivors keep the committed fragments of an outer optimizer and agree on the other
/// fragments.
#[test]
fn a_rank_killed_in_an_outer_step() {
    let Some(compiler) = Compiler::find() else { return };
    let program = compiler.program("outer_retry", &["outer_retry.c"]);
    for delay_us in ["0", "300", "1000", "3000"] {
        let mut command = Command::new(DISTRUN);
        command.args(["--nproc-per-node", "3", "--on-failure", "continue"]);
        command.arg(&program).arg(delay_us);
        let ended = RunningProgram::start(command, |_| {}).wait();
        assert_eq!(ended.status, 0, "{}\n{}", ended.stdout, ended.stderr);
        let outer_steps =
            |ranks: &str| ended.stdout.lines().filter(|line| line.ends_with(ranks)).count();
        let (whole, left) = (outer_steps(" ranks 3"), outer_steps(" ranks 2"));
        assert!(whole >= 4 && left >= 6 && whole + left == 12, "{}", ended.stdout);
    }
}
