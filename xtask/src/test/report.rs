//! What the checks found: kept as they run, printed at the end.

use super::counts::Counts;
use std::time::Instant;

/// How a check ended, if nothing was wrong.
pub(super) enum Verdict {
    /// It ran; several tests may lie behind one check.
    Passed(Counts),
    /// It could not run here, and why.
    Skipped(String),
}

/// A check that is a single test.
pub(super) const PASSED: Verdict = Verdict::Passed(Counts { passed: 1, failed: 0, skipped: 0 });

/// The verdict of a check, or what was wrong.
pub(super) type Checked = Result<Verdict, String>;

struct Line {
    name: String,
    result: Checked,
    seconds: f64,
}

/// All checks so far.
#[derive(Default)]
pub(super) struct Report {
    lines: Vec<Line>,
}

impl Report {
    /// Runs a check and keeps its result. Returns whether nothing was wrong.
    pub(super) fn check(&mut self, name: &str, check: impl FnOnce() -> Checked) -> bool {
        println!("\n== {name}");
        let start = Instant::now();
        let result = check();
        match &result {
            Ok(Verdict::Passed(_)) => (),
            Ok(Verdict::Skipped(reason)) => println!("skipped: {reason}"),
            Err(problem) => println!("FAILED: {problem}"),
        }
        let fine = matches!(&result, Ok(Verdict::Skipped(_)))
            || matches!(&result, Ok(Verdict::Passed(counts)) if counts.failed == 0);
        let seconds = start.elapsed().as_secs_f64();
        self.lines.push(Line { name: name.to_string(), result, seconds });
        fine
    }

    /// Prints a line for each check, and the count of tests as the last line. Returns whether none
    /// failed.
    pub(super) fn print(&self) -> bool {
        println!("\n== summary");
        let mut total = Counts::default();
        for line in &self.lines {
            let (word, detail, counts) = describe(&line.result);
            println!("{word:<8} {:<42} {:>7.1} s  {detail}", line.name, line.seconds);
            total.add(counts);
        }
        println!("\n{total}");
        total.failed == 0
    }
}

fn describe(result: &Checked) -> (&'static str, String, Counts) {
    match result {
        Ok(Verdict::Passed(counts)) if counts.failed > 0 => ("FAILED", counts.to_string(), *counts),
        Ok(Verdict::Passed(counts)) if counts.total() == 1 => ("ok", String::new(), *counts),
        Ok(Verdict::Passed(counts)) => ("ok", counts.to_string(), *counts),
        Ok(Verdict::Skipped(reason)) => {
            ("skipped", reason.clone(), Counts { skipped: 1, ..Counts::default() })
        }
        Err(problem) => {
            let first = problem.lines().next().unwrap_or_default();
            ("FAILED", first.to_string(), Counts { failed: 1, ..Counts::default() })
        }
    }
}
