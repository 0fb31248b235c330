//! `cargo xtask random`: runs random programs, and compares their results with an oracle (a simple
//! computation of the expected results). The user chooses the number of seeds.
//!
//! The random programs are programs of collectives and messages (`random_programs`), and trainings
//! with a reducer (`reducer_random`). The test suite runs `random_programs` for a minute, and
//! `reducer_random` for 200 seeds. This command runs any number of seeds, with an optimised build.

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
    let mut trainings = cargo();
    trainings.args(["test", "--release", "--test", "ctests", "--"]);
    trainings.args(["--ignored", "--exact", "many_reducer_random", "--nocapture"]);
    trainings.env("REDUCER_FIRST", first.to_string()).env("REDUCER_SEEDS", seeds.to_string());
    Ok(run::run_visibly(&mut test, limit)?.success()
        && run::run_visibly(&mut trainings, limit)?.success())
}
