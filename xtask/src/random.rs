//! `cargo xtask random`: runs random programs, and compares their results with an oracle (a simple
//! computation of the expected results). The user chooses the number of seeds.
//!
//! The random programs are programs of collectives and messages (`random_programs`), trainings with
//! a reducer (`reducer_random`), and programs that end although some of their steps look like
//! deadlocks (`deadlock_random`). The test suite runs `random_programs` for a minute,
//! `reducer_random` for 200 seeds and `deadlock_random` for 400. This command runs any number of
//! seeds, with an optimised build.

use crate::workspace::cargo;
use crate::{Arguments, CommandResult, run};
use std::time::Duration;

const DEFAULT_SEEDS: u64 = 1000;
const BUILD_LIMIT: Duration = Duration::from_secs(1800);
/// The time limit of the command is this time multiplied by the number of programs. It suffices on
/// a busy machine.
const LIMIT_PER_PROGRAM: Duration = Duration::from_secs(10);

/// Runs the command.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    let mut arguments = Arguments::new(rest);
    let number = |text: Option<String>, default| match text {
        None => Ok(default),
        Some(text) => text.parse::<u64>().map_err(|_| format!("\"{text}\" is not a number")),
    };
    let seeds = number(arguments.value("--seeds")?, DEFAULT_SEEDS)?;
    let first = number(arguments.value("--first")?, 1)?;
    arguments.finish()?;
    let end = first.checked_add(seeds).ok_or("--first plus --seeds exceeds the largest seed")?;
    let mut test = cargo();
    test.args(["test", "--release", "--test", "random", "--", "--nocapture"]);
    test.env("RANDOM_SEEDS", format!("{first}..{end}"));
    let limit = BUILD_LIMIT + LIMIT_PER_PROGRAM * u32::try_from(seeds).unwrap_or(u32::MAX);
    let c_program = |name: &str, variables: [&str; 2]| {
        let mut test = cargo();
        test.args(["test", "--release", "--test", "ctests", "--"]);
        test.args(["--ignored", "--exact", name, "--nocapture"]);
        test.env(variables[0], first.to_string()).env(variables[1], seeds.to_string());
        test
    };
    let mut trainings = c_program("many_reducer_random", ["REDUCER_FIRST", "REDUCER_SEEDS"]);
    let mut endings = c_program("many_deadlock_random", ["DEADLOCK_FIRST", "DEADLOCK_SEEDS"]);
    for command in [&mut test, &mut trainings, &mut endings] {
        if !run::run_visibly(command, limit)?.success() {
            return Ok(false);
        }
    }
    Ok(true)
}
