//! `cargo xtask random`: random programs against their oracle, as many as are wanted.
//!
//! The test `random_programs` runs for a minute; here somebody says which seeds, and it is built with optimisation.

use crate::workspace::cargo;
use crate::{Arguments, Outcome, run};
use std::time::Duration;

const SEEDS: u64 = 1000;
const BUILD_LIMIT: Duration = Duration::from_secs(1800);
/// What one program may take on average, on a busy machine.
const EACH: Duration = Duration::from_secs(10);

/// Runs the command.
pub(crate) fn main(rest: &[String]) -> Outcome {
    let mut arguments = Arguments::new(rest);
    let number = |text: Option<String>, default| match text {
        None => Ok(default),
        Some(text) => text.parse::<u64>().map_err(|_| format!("\"{text}\" is not a number")),
    };
    let seeds = number(arguments.value("--seeds")?, SEEDS)?;
    let first = number(arguments.value("--first")?, 1)?;
    arguments.finish()?;
    let end = first.checked_add(seeds).ok_or("there are no seeds that large")?;
    let mut test = cargo();
    test.args(["test", "--release", "--test", "random", "--", "--nocapture"]);
    test.env("RANDOM_SEEDS", format!("{first}..{end}"));
    let limit = BUILD_LIMIT + EACH * u32::try_from(seeds).unwrap_or(u32::MAX);
    Ok(run::shown(&mut test, limit)?.success())
}
