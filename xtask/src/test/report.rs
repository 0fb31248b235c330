//! Collects the results of the checks during the run, and prints them at the end.

use super::counts::TestCounts;
use dist_terminal::{Alignment, text_table};
use std::time::Instant;

/// The outcome of a check that did not fail.
pub(super) enum CheckVerdict {
    /// The check ran. It may consist of several tests.
    Ran {
        counts: TestCounts,
        /// The names of the failed tests, if the output of the test runner contains them.
        failed: Vec<String>,
    },
    /// The check could not run on this machine. The text is the reason.
    Skipped(String),
}

/// The verdict of a check that consists of one test, which passed.
pub(super) const PASSED: CheckVerdict = CheckVerdict::Ran {
    counts: TestCounts { passed: 1, failed: 0, skipped: 0 },
    failed: Vec::new(),
};

/// The verdict of a check, or the reason of its failure.
pub(super) type CheckResult = Result<CheckVerdict, String>;

struct ReportLine {
    name: String,
    result: CheckResult,
    seconds: f64,
}

/// The columns of the summary.
const COLUMNS: [(&str, Alignment); 4] = [
    ("", Alignment::Left),
    ("check", Alignment::Left),
    ("time", Alignment::Right),
    ("", Alignment::Left),
];

/// The results of all checks so far.
#[derive(Default)]
pub(super) struct CheckReport {
    lines: Vec<ReportLine>,
}

impl CheckReport {
    /// Runs a check and stores its result. Returns true if the check did not fail.
    pub(super) fn run_check(&mut self, name: &str, check: impl FnOnce() -> CheckResult) -> bool {
        println!("\n== {name}");
        let start = Instant::now();
        let result = check();
        match &result {
            Ok(CheckVerdict::Ran { .. }) => (),
            Ok(CheckVerdict::Skipped(reason)) => println!("skipped: {reason}"),
            Err(problem) => println!("FAILED: {problem}"),
        }
        let is_ok = matches!(&result, Ok(CheckVerdict::Skipped(_)))
            || matches!(&result, Ok(CheckVerdict::Ran { counts, .. }) if counts.failed == 0);
        let seconds = start.elapsed().as_secs_f64();
        self.lines.push(ReportLine { name: name.to_string(), result, seconds });
        is_ok
    }

    /// Prints a line for each check, the names of the failed tests, and the numbers of tests as the
    /// last line. Returns true if no check failed.
    pub(super) fn print_summary(&self) -> bool {
        println!("\n== summary");
        let mut total = TestCounts::default();
        let rows = self.lines.iter().map(|line| {
            let (word, detail, counts) = describe(&line.result);
            total.add(counts);
            [word.to_owned(), line.name.clone(), format!("{:.1} s", line.seconds), detail]
        });
        print!("{}", text_table(COLUMNS, rows));
        let failed: Vec<String> = self.lines.iter().flat_map(failed_names).collect();
        if !failed.is_empty() {
            println!("\nfailed:\n  {}", failed.join("\n  "));
        }
        println!("\n{total}");
        total.failed == 0
    }
}

/// Returns the names of the failed tests of a check. If the check names no failed tests, returns
/// the name of the check.
fn failed_names(line: &ReportLine) -> Vec<String> {
    match &line.result {
        Ok(CheckVerdict::Ran { counts, failed }) if counts.failed > 0 && !failed.is_empty() => {
            failed.iter().map(|name| format!("{}: {name}", line.name)).collect()
        }
        Ok(CheckVerdict::Ran { counts, .. }) if counts.failed == 0 => Vec::new(),
        Ok(CheckVerdict::Skipped(_)) => Vec::new(),
        _ => vec![line.name.clone()],
    }
}

fn describe(result: &CheckResult) -> (&'static str, String, TestCounts) {
    match result {
        Ok(CheckVerdict::Ran { counts, .. }) if counts.failed > 0 => {
            ("FAILED", counts.to_string(), *counts)
        }
        Ok(CheckVerdict::Ran { counts, .. }) if counts.total() == 1 => {
            ("ok", String::new(), *counts)
        }
        Ok(CheckVerdict::Ran { counts, .. }) => ("ok", counts.to_string(), *counts),
        Ok(CheckVerdict::Skipped(reason)) => {
            ("skipped", reason.clone(), TestCounts { skipped: 1, ..TestCounts::default() })
        }
        Err(problem) => {
            let first = problem.lines().next().unwrap_or_default();
            ("FAILED", first.to_string(), TestCounts { failed: 1, ..TestCounts::default() })
        }
    }
}
