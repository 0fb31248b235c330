//! Checks that a training ends when a rank is killed, under distrun and without a launcher.

use super::report::{CheckReport, CheckResult, PASSED};
use crate::examples::{TRAIN_DIGITS, distrun};
use crate::run::{self, FinishedProcess};
use crate::workspace::StagedBuild;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const JOB_TIMEOUT: Duration = Duration::from_secs(60);
/// A job must end within this time after the death of a rank.
const MAX_FAILURE_TIME: Duration = Duration::from_secs(2);
const RANKS: usize = 3;
const VICTIM: usize = 1;

pub(super) fn run(report: &mut CheckReport, stage: &StagedBuild) {
    report.run_check("a killed rank, under distrun", || check_under_distrun(stage));
    report.run_check("a killed rank, started by hand", || check_started_by_hand(stage));
}

fn check_under_distrun(stage: &StagedBuild) -> CheckResult {
    let program = TRAIN_DIGITS.compile(stage)?;
    let mut killed = None;
    let mut command = distrun(stage, RANKS, &program);
    let finished =
        run::run_with_lines(command.args(["--epochs", "1000000"]), JOB_TIMEOUT, |line| {
            if killed.is_none() && line.contains("epoch ") {
                killed = Some(kill_victim(&program));
            }
        })?;
    let (_, when) = killed.ok_or("no epoch started, so no rank was killed")??;
    check_failure_time(when)?;
    for words in [format!("rank {VICTIM}"), "SIGKILL".to_string()] {
        if finished.success() || !finished.text.contains(&words) {
            return Err(format!(
                "the output lacks \"{words}\", or distrun succeeded: {}{}",
                finished.exit_description(),
                finished.output_tail()
            ));
        }
    }
    check_no_processes_left(&program)
}

/// Starts the ranks without a launcher. Each rank only gets the four variables RANK, WORLD_SIZE,
/// MASTER_ADDR and MASTER_PORT. Rank 0 hosts the store.
fn check_started_by_hand(stage: &StagedBuild) -> CheckResult {
    let program = TRAIN_DIGITS.compile(stage)?;
    let port = free_port()?;
    let (program, port) = (program.as_path(), port.as_str());
    let mut killed = None;
    let ended: Vec<Result<FinishedProcess, String>> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..RANKS)
            .map(|rank| {
                scope.spawn(move || {
                    run::run_quietly(&mut rank_command(program, rank, port), JOB_TIMEOUT)
                })
            })
            .collect();
        let first = run::run_with_lines(&mut rank_command(program, 0, port), JOB_TIMEOUT, |line| {
            if killed.is_none() && line.contains("epoch ") {
                killed = Some(kill_victim(program));
            }
        });
        let others = others.into_iter().map(|rank| {
            rank.join().unwrap_or_else(|_| Err("the thread that waits for a rank panicked".into()))
        });
        std::iter::once(first).chain(others).collect()
    });
    let (pid, when) = killed.ok_or("no epoch started, so no rank was killed")??;
    check_failure_time(when)?;
    for (rank, finished) in ended.into_iter().enumerate().filter(|&(rank, _)| rank != VICTIM) {
        let finished = finished?;
        let names_victim = finished.text.lines().any(|line| {
            line.contains("a peer has failed")
                && line.contains("all_reduce")
                && line.contains(&format!("rank {VICTIM}"))
                && line.contains(&pid)
        });
        if finished.code() != Some(3) || !names_victim {
            return Err(format!(
                "rank {rank} did not name rank {VICTIM}, pid {pid}, as the culprit: {}{}",
                finished.exit_description(),
                finished.output_tail()
            ));
        }
    }
    check_no_processes_left(program)
}

fn rank_command(program: &Path, rank: usize, port: &str) -> Command {
    let mut command = run::command(program);
    command.args(["--epochs", "1000000"]);
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", RANKS.to_string());
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port);
    command
}

fn free_port() -> Result<String, String> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener
        .map(|address| address.port().to_string())
        .map_err(|cause| format!("cannot bind a port: {cause}"))
}

/// Kills the victim. Returns its process id and the time of the kill.
fn kill_victim(program: &Path) -> Result<(String, Instant), String> {
    let variable = format!("RANK={VICTIM}");
    let is_victim = |pid: &String| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|entry| entry == variable.as_bytes())
    };
    let pid = processes_of(program)
        .into_iter()
        .find(is_victim)
        .ok_or("the process of the victim does not exist")?;
    let when = Instant::now();
    run::run_checked(run::command("sh").args(["-c", &format!("kill -KILL {pid}")]), JOB_TIMEOUT)?;
    Ok((pid, when))
}

fn check_failure_time(killed: Instant) -> Result<(), String> {
    let took = killed.elapsed();
    println!("all processes exited within {:.3} s after the kill", took.as_secs_f64());
    if took > MAX_FAILURE_TIME {
        Err(format!("the processes exited too late: {:.3} s after the kill", took.as_secs_f64()))
    } else {
        Ok(())
    }
}

fn check_no_processes_left(program: &Path) -> CheckResult {
    match processes_of(program).as_slice() {
        [] => Ok(PASSED),
        left => Err(format!("processes still run: {}", left.join(", "))),
    }
}

/// Returns the ids of all processes that run this program.
fn processes_of(program: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter(|name| fs::read_link(format!("/proc/{name}/exe")).is_ok_and(|exe| exe == program))
        .collect()
}
