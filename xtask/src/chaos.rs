//! `cargo xtask chaos`: injects faults into jobs for a chosen number of times. It kills, stops and
//! disconnects ranks, or sends them false messages. With options, it measures the time until the
//! other ranks detect a failure, it runs many rounds of `kill -9`, or it breaks connections between
//! hosts.
//!
//! The test program `chaos` makes the same checks with few faults as a part of the test suite. This
//! command runs it with the number of faults that the options give. Overflow checks and assertions
//! are enabled, except for measurements, which use an optimised build.

use crate::workspace::cargo;
use crate::{Arguments, CommandResult, run};
use std::time::Duration;

const DEFAULT_SEEDS: u64 = 2000;
const DEFAULT_INJECTIONS: u64 = 200;
const DEFAULT_ROUNDS: u64 = 1000;
const BUILD_LIMIT: Duration = Duration::from_secs(1800);
/// The time limit of the command is this time multiplied by the number of seeds, injections or
/// rounds. It suffices on a busy machine.
const LIMIT_PER_SEED: Duration = Duration::from_secs(10);

/// Runs the command.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    let mut arguments = Arguments::new(rest);
    let mut test = cargo();
    test.arg("test");
    let (name, times) = if arguments.flag("--latency") {
        let times = number_option(&mut arguments, "--times")?.unwrap_or(DEFAULT_INJECTIONS);
        test.arg("--release").env("CHAOS_TIMES", times.to_string());
        if let Some(limit) = number_option(&mut arguments, "--limit-ms")? {
            test.env("CHAOS_LIMIT_MS", limit.to_string());
        }
        // The test injects four kinds of failures, each of them `times` times.
        ("latency::latencies", times.saturating_mul(4))
    } else if arguments.flag("--rounds") {
        let rounds = number_option(&mut arguments, "--times")?.unwrap_or(DEFAULT_ROUNDS);
        test.env("CHAOS_ROUNDS", rounds.to_string());
        ("rounds::rounds_of_kill_leave_nothing", rounds)
    } else {
        let name = if arguments.flag("--links") { "link_faults::link_faults" } else { "chaos" };
        (name, set_seed_range(&mut arguments, &mut test)?)
    };
    if let Some(only) = arguments.value("--only")? {
        test.env("CHAOS_ONLY", only);
    }
    arguments.finish()?;
    test.args(["--test", "chaos", "--", name, "--exact", "--nocapture"]);
    let limit = BUILD_LIMIT + LIMIT_PER_SEED * u32::try_from(times).unwrap_or(u32::MAX / 16);
    Ok(run::run_visibly(&mut test, limit)?.success())
}

/// Sets the seeds, the duration and the number of concurrent jobs. Returns the number of seeds.
fn set_seed_range(
    arguments: &mut Arguments,
    test: &mut std::process::Command,
) -> Result<u64, String> {
    let one = number_option(arguments, "--seed")?;
    let first = one.or(number_option(arguments, "--first")?).unwrap_or(1);
    let count = number_option(arguments, "--seeds")?.unwrap_or(if one.is_some() {
        1
    } else {
        DEFAULT_SEEDS
    });
    let end = first.checked_add(count).ok_or("--first plus --seeds exceeds the largest seed")?;
    test.env("CHAOS_SEEDS", format!("{first}..{end}"));
    for (option, variable) in [("--minutes", "CHAOS_MINUTES"), ("--jobs", "CHAOS_JOBS")] {
        if let Some(value) = number_option(arguments, option)? {
            test.env(variable, value.to_string());
        }
    }
    Ok(count)
}

fn number_option(arguments: &mut Arguments, name: &str) -> Result<Option<u64>, String> {
    let parse = |text: String| text.parse().map_err(|_| format!("{name} {text} is not a number"));
    arguments.value(name)?.map(parse).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeds_of(words: &[&str]) -> (u64, String) {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        let mut test = std::process::Command::new("true");
        let count = set_seed_range(&mut Arguments::new(&words), &mut test).unwrap();
        let value = test.get_envs().find(|(name, _)| *name == "CHAOS_SEEDS").unwrap().1.unwrap();
        (count, value.to_string_lossy().into_owned())
    }

    #[test]
    fn seeds_are_a_range_or_one() {
        assert_eq!(seeds_of(&[]), (2000, "1..2001".to_owned()));
        assert_eq!(seeds_of(&["--seed", "17"]), (1, "17..18".to_owned()));
        assert_eq!(seeds_of(&["--first", "5", "--seeds", "3"]), (3, "5..8".to_owned()));
    }
}
