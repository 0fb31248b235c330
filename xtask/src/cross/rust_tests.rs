//! The Rust tests for aarch64: builds their programs, and runs the tests in batches. The start of a
//! test program takes longer in the emulator than most tests.
//!
//! A test that has not passed in its batch runs again in a process of its own. That outcome counts,
//! because another test of the batch may have crashed or slowed down the process. So a test that
//! hangs or crashes has a name. The tests in the list of exceptions always run alone.

use super::emulator::run_emulated;
use super::exceptions::exceptions_of;
use super::part::{CrossPart, TestEnd, TestOutcome, print_outcome};
use super::{BUILD_LIMIT, cross_cargo};
use crate::{run, workspace};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time limit for the list of a program's tests.
const LIST_LIMIT: Duration = Duration::from_secs(300);

/// The number of tests in a batch.
const BATCH_SIZE: usize = 40;

/// Builds the test program that `target` selects (arguments of `cargo test`), and runs its tests.
pub(super) fn run_tests(
    part: CrossPart,
    target: &[&str],
    limit: Duration,
) -> Result<Vec<TestOutcome>, String> {
    let program = build_tests(target)?;
    let names = test_names(&program)?;
    println!("{} tests in {}", names.len(), program.display());
    let is_listed = |name: &String| exceptions_of(part).any(|exception| exception.test == name);
    let (listed, ordinary): (Vec<String>, Vec<String>) = names.into_iter().partition(is_listed);
    let mut outcomes = Vec::new();
    let mut alone = listed;
    for batch in ordinary.chunks(BATCH_SIZE) {
        let ended = run_batch(&program, batch, limit)?;
        let is_open = |name: &&String| !ended.iter().any(|outcome| outcome.name == **name);
        alone.extend(batch.iter().filter(is_open).cloned());
        outcomes.extend(ended);
        println!("{} tests have ended, {} run again alone", outcomes.len(), alone.len());
    }
    for name in &alone {
        let outcome = run_alone(&program, name, limit)?;
        print_outcome(part, &outcome);
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

/// Runs a batch of tests in one process. Returns the outcomes of the tests that passed or are
/// ignored.
fn run_batch(
    program: &Path,
    names: &[String],
    limit: Duration,
) -> Result<Vec<TestOutcome>, String> {
    let options = ["--exact", "--test-threads", "2"].map(str::to_owned);
    let words: Vec<String> = options.into_iter().chain(names.iter().cloned()).collect();
    let (finished, _) = run_emulated(program, &words, limit)?;
    let known = |name: &str| names.iter().any(|it| it == name);
    let ended = finished.text.lines().filter_map(end_in_line).filter(|(name, _)| known(name));
    let outcome = |(name, end): (&str, TestEnd)| TestOutcome {
        name: name.to_owned(),
        end,
        tail: String::new(),
    };
    Ok(ended.map(outcome).collect())
}

/// Returns the test and its end from a line such as `test a::b ... ok`, if the test passed or is
/// ignored.
fn end_in_line(line: &str) -> Option<(&str, TestEnd)> {
    let (name, end) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let name = name.strip_suffix(" - should panic").unwrap_or(name);
    match end.split([',', ' ']).next() {
        Some("ok") => Some((name, TestEnd::Passed)),
        Some("ignored") => Some((name, TestEnd::Ignored)),
        _ => None,
    }
}

/// Builds a test program and returns its path.
fn build_tests(target: &[&str]) -> Result<PathBuf, String> {
    let mut build = cross_cargo(&["test", "--no-run", "--package", "dist"])?;
    build.args(target).args(["--message-format", "json-render-diagnostics"]);
    let finished = run::run_checked(&mut build, BUILD_LIMIT)?;
    let programs: Vec<&str> = finished
        .text
        .lines()
        .filter_map(|line| workspace::json_string(line, "executable"))
        .collect();
    match programs[..] {
        [program] => Ok(program.into()),
        _ => Err(format!("cargo built {} test programs instead of one", programs.len())),
    }
}

/// Returns the names of all tests in a test program.
fn test_names(program: &Path) -> Result<Vec<String>, String> {
    let words = ["--list", "--format", "terse"].map(str::to_owned);
    let (finished, _) = run_emulated(program, &words, LIST_LIMIT)?;
    if !finished.success() {
        let end = finished.exit_description();
        return Err(format!("{} --list: {end}{}", program.display(), finished.output_tail()));
    }
    Ok(names_in_list(&finished.text))
}

fn names_in_list(text: &str) -> Vec<String> {
    text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

fn run_alone(program: &Path, name: &str, limit: Duration) -> Result<TestOutcome, String> {
    let words = ["--exact", name, "--nocapture"].map(str::to_owned);
    let (finished, elapsed) = run_emulated(program, &words, limit)?;
    let mut outcome = TestOutcome::of_process(name, &finished, elapsed, limit);
    if outcome.end == TestEnd::Passed {
        outcome.end = end_in_output(&finished.text);
    }
    Ok(outcome)
}

/// Returns how the test of a successful process ended: the process also succeeds if it ran no
/// test.
fn end_in_output(text: &str) -> TestEnd {
    let has = |words: &str| {
        text.lines().any(|line| line.starts_with("test result: ok.") && line.contains(words))
    };
    match (has(" 1 passed;"), has(" 1 ignored;")) {
        (true, _) => TestEnd::Passed,
        (_, true) => TestEnd::Ignored,
        _ => TestEnd::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_test_programs_is_understood() {
        let list = "a::b: test\nc: benchmark\nd: test\n\n2 tests, 1 benchmark\n";
        assert_eq!(names_in_list(list), ["a::b", "d"]);
        let line =
            |counts: &str| format!("running 1 test\n\ntest result: ok. {counts}; 0 measured");
        assert_eq!(end_in_output(&line("1 passed; 0 failed; 0 ignored")), TestEnd::Passed);
        assert_eq!(end_in_output(&line("0 passed; 0 failed; 1 ignored")), TestEnd::Ignored);
        assert_eq!(end_in_output(&line("0 passed; 0 failed; 0 ignored")), TestEnd::Failed);
        assert_eq!(end_in_output(""), TestEnd::Failed);
        assert_eq!(end_in_line("test a::b ... ok"), Some(("a::b", TestEnd::Passed)));
        let panicking = end_in_line("test a - should panic ... ok");
        assert_eq!(panicking, Some(("a", TestEnd::Passed)));
        let ignored = end_in_line("test a ... ignored, takes long");
        assert_eq!(ignored, Some(("a", TestEnd::Ignored)));
        assert_eq!(end_in_line("test a ... FAILED"), None);
        assert_eq!(end_in_line("test result: ok. 1 passed"), None);
    }
}
