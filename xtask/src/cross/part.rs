//! The parts of the command, and the outcomes of their tests.

use super::exceptions::{CrossException, exceptions_of};
use crate::run::FinishedProcess;
use std::time::Duration;

/// A part of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CrossPart {
    /// The proofs of the emulator's limits.
    Emulator,
    Unit,
    Programs,
    Conformance,
}

impl CrossPart {
    pub(super) const ALL: [Self; 4] =
        [Self::Emulator, Self::Unit, Self::Programs, Self::Conformance];

    /// Returns the name for the option `--only`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Emulator => "emulator",
            Self::Unit => "unit",
            Self::Programs => "programs",
            Self::Conformance => "conformance",
        }
    }

    /// Returns the title in the documentation.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Emulator => "proofs of the emulator's limits",
            Self::Unit => "unit tests",
            Self::Programs => "C programs",
            Self::Conformance => "conformance suite",
        }
    }
}

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TestEnd {
    Passed,
    Failed,
    /// The test reached its time limit, and was killed.
    TimedOut,
    /// The test has the attribute `#[ignore]`, so it did not run.
    Ignored,
}

/// The outcome of one test.
#[derive(Debug)]
pub(super) struct TestOutcome {
    pub(super) name: String,
    pub(super) end: TestEnd,
    /// The last lines of the output.
    pub(super) tail: String,
}

impl TestOutcome {
    /// Returns the outcome of a process that ran one test for `elapsed`.
    pub(super) fn of_process(
        name: &str,
        finished: &FinishedProcess,
        elapsed: Duration,
        limit: Duration,
    ) -> Self {
        let end = match finished.success() {
            true => TestEnd::Passed,
            false if elapsed >= limit => TestEnd::TimedOut,
            false => TestEnd::Failed,
        };
        let tail = format!("{}{}", finished.exit_description(), finished.output_tail());
        Self { name: name.to_owned(), end, tail }
    }

    fn has_failed(&self) -> bool {
        matches!(self.end, TestEnd::Failed | TestEnd::TimedOut)
    }
}

/// The numbers of tests of one part by their outcome, and the problems.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PartVerdict {
    pub(super) passed: usize,
    /// Listed tests that failed, as expected.
    pub(super) excepted: usize,
    pub(super) ignored: usize,
    /// One line for each test that did not end as expected.
    pub(super) problems: Vec<String>,
}

/// Compares the outcomes of a part with the list of exceptions.
pub(super) fn judge(part: CrossPart, outcomes: &[TestOutcome]) -> PartVerdict {
    judge_with(outcomes, &exceptions_of(part).collect::<Vec<_>>())
}

fn judge_with(outcomes: &[TestOutcome], exceptions: &[&CrossException]) -> PartVerdict {
    let mut verdict = PartVerdict::default();
    for outcome in outcomes {
        let name = &outcome.name;
        let is_listed = exceptions.iter().any(|exception| exception.test == name);
        match outcome.end {
            TestEnd::Ignored if !is_listed => verdict.ignored += 1,
            TestEnd::Passed if !is_listed => verdict.passed += 1,
            TestEnd::Failed | TestEnd::TimedOut if is_listed => verdict.excepted += 1,
            TestEnd::Failed => verdict.problems.push(format!("{name} failed")),
            TestEnd::TimedOut => verdict.problems.push(format!("{name} reached its time limit")),
            TestEnd::Passed | TestEnd::Ignored => {
                let problem = "is in the list of exceptions, but did not fail; remove it there";
                verdict.problems.push(format!("{name} {problem}"));
            }
        }
    }
    for exception in exceptions {
        if !outcomes.iter().any(|outcome| outcome.name == exception.test) {
            let problem = "is in the list of exceptions, but does not exist; remove it there";
            verdict.problems.push(format!("{} {problem}", exception.test));
        }
    }
    verdict
}

/// Prints the outcome of a test that did not pass. The output of a listed test is short.
pub(super) fn print_outcome(part: CrossPart, outcome: &TestOutcome) {
    let listed = exceptions_of(part).find(|exception| exception.test == outcome.name);
    match listed {
        Some(exception) if outcome.has_failed() => {
            println!("{}: failed as expected ({:?})", outcome.name, exception.limit);
        }
        _ if outcome.has_failed() => {
            println!("{}: {:?}: {}", outcome.name, outcome.end, outcome.tail);
        }
        _ => (),
    }
}

#[cfg(test)]
mod tests {
    use super::super::exceptions::EmulatorLimit;
    use super::*;

    fn outcome(name: &str, end: TestEnd) -> TestOutcome {
        TestOutcome { name: name.to_owned(), end, tail: String::new() }
    }

    #[test]
    fn unexpected_ends_and_stale_exceptions_are_problems() {
        let exceptions: Vec<CrossException> = ["a", "b", "c", "gone"]
            .map(|test| CrossException {
                part: CrossPart::Unit,
                test,
                limit: EmulatorLimit::StartTime,
            })
            .to_vec();
        let outcomes = [
            outcome("a", TestEnd::Failed),
            outcome("b", TestEnd::TimedOut),
            outcome("c", TestEnd::Passed),
            outcome("d", TestEnd::Passed),
            outcome("e", TestEnd::Failed),
            outcome("f", TestEnd::TimedOut),
            outcome("g", TestEnd::Ignored),
        ];
        let verdict = judge_with(&outcomes, &exceptions.iter().collect::<Vec<_>>());
        assert_eq!((verdict.passed, verdict.excepted, verdict.ignored), (1, 2, 1));
        let words = ["c is", "e failed", "f reached", "gone is"];
        assert_eq!(verdict.problems.len(), words.len(), "{verdict:?}");
        for (problem, word) in verdict.problems.iter().zip(words) {
            assert!(problem.starts_with(word), "{problem}");
        }
    }
}
