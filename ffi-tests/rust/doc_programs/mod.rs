//! Programs in documents: extracts fenced blocks, and compares the output of a program with the
//! output in its document.

use crate::toolchain::{ProgramOutcome, run};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(180);

/// Returns the fenced blocks of a text with their languages, in order.
pub(crate) fn fenced_blocks(text: &str) -> Vec<(&str, &str)> {
    let parts: Vec<&str> = text.split("```").collect();
    // Every second part is between two fences.
    parts.iter().skip(1).step_by(2).filter_map(|block| block.split_once('\n')).collect()
}

/// Runs a command that starts ranks and asserts that they print these lines, in any order.
pub(crate) fn assert_prints(command: &[&str], expected: &str, title: &str) {
    let ProgramOutcome { output, .. } = run(command, LIMIT).expect_success();
    // distrun prefixes each line of a rank with the rank; lines without a prefix are its own.
    let of_rank = |line: &'_ str| Some(line.strip_prefix('[')?.split_once("] ")?.1.to_owned());
    // Under distrun, the library logs warnings and errors. Their lines have process IDs.
    let is_of_program = |line: &String| !line.starts_with("libdist ");
    let mut printed: Vec<String> =
        output.lines().filter_map(of_rank).filter(is_of_program).collect();
    printed.sort();
    let mut expected: Vec<&str> = expected.lines().collect();
    expected.sort_unstable();
    assert_eq!(printed, expected, "{title}");
}
