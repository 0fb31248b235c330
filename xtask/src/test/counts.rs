//! Reads the numbers of passed, failed and skipped tests from the output of test runners.

use std::fmt;

/// The numbers of passed, failed and skipped tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TestCounts {
    pub(super) passed: usize,
    pub(super) failed: usize,
    pub(super) skipped: usize,
}

impl TestCounts {
    pub(super) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    pub(super) fn total(self) -> usize {
        self.passed + self.failed + self.skipped
    }

    /// Parses the output of nextest, for example `Summary [1.2s] 12 tests run: 11 passed (1 slow),
    /// 1 timed out, 2 skipped`.
    pub(super) fn of_nextest(text: &str) -> Option<Self> {
        let line = text.lines().rfind(|line| line.contains("Summary ["))?;
        let (_, pieces) = line.split_once(" run: ")?;
        let mut counts = Self::default();
        for piece in pieces.split(", ") {
            let (number, state) = piece.trim().split_once(' ')?;
            // This piece is inside the parentheses of another piece, such as "(1 slow, 2 flaky)".
            let Ok(number) = number.parse::<usize>() else { continue };
            match state.split(' ').next()? {
                "passed" => counts.passed += number,
                "skipped" => counts.skipped += number,
                "failed" | "timed" | "exec" => counts.failed += number,
                _ => (),
            }
        }
        Some(counts)
    }

    /// Parses the output of cargo test. It has a line for each test program, for example `test
    /// result: ok. 3 passed; 0 failed; 1 ignored; …`.
    pub(super) fn of_cargo_test(text: &str) -> Option<Self> {
        let mut counts = None;
        for line in text.lines().filter(|line| line.contains("test result: ")) {
            let counts = counts.get_or_insert_with(Self::default);
            counts.passed += number_before(line, " passed")?;
            counts.failed += number_before(line, " failed")?;
            counts.skipped += number_before(line, " ignored")?;
        }
        counts
    }

    /// Parses the output of ctest, for example `90% tests passed, 1 tests failed out of 10`. A
    /// skipped test has `***Skipped` after its name.
    pub(super) fn of_ctest(text: &str) -> Option<Self> {
        let line = text.lines().rfind(|line| line.contains("tests failed out of "))?;
        let failed = number_before(line, " tests failed")?;
        let total: usize = line.rsplit(' ').next()?.trim().parse().ok()?;
        let skipped = text.matches("***Skipped").count();
        Some(Self { passed: total.checked_sub(failed + skipped)?, failed, skipped })
    }

    /// Parses the output of Python's unittest, for example `Ran 12 tests in 3.4s`, and two lines
    /// later `FAILED (failures=1, errors=1, skipped=2)`, `OK (skipped=2)` or `OK`.
    pub(super) fn of_unittest(text: &str) -> Option<Self> {
        let line = text.lines().rfind(|line| line.starts_with("Ran "))?;
        let total: usize = line.strip_prefix("Ran ")?.split(' ').next()?.parse().ok()?;
        let verdict =
            text.lines().rfind(|line| line.starts_with("OK") || line.starts_with("FAILED"))?;
        let number = |name: &str| {
            let start = verdict.find(&format!("{name}="))? + name.len() + 1;
            verdict[start..].split([',', ')']).next()?.parse::<usize>().ok()
        };
        let failed = number("failures").unwrap_or(0) + number("errors").unwrap_or(0);
        let skipped = number("skipped").unwrap_or(0);
        Some(Self { passed: total.checked_sub(failed + skipped)?, failed, skipped })
    }
}

/// Returns the names of the failed tests in the output of nextest, cargo test, ctest or unittest,
/// without duplicates.
pub(super) fn failed_tests(text: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for line in text.lines().map(str::trim) {
        let name = of_nextest_line(line)
            .or_else(|| of_cargo_test_line(line))
            .or_else(|| of_ctest_line(line))
            .or_else(|| of_unittest_line(line));
        if let Some(name) = name.filter(|name| !names.iter().any(|known| known == name)) {
            names.push(name.to_owned());
        }
    }
    names
}

/// Returns the test in a line of nextest about a failure, for example `FAIL [ 1.2s] (3/9)
/// dist::faults a_name`. The first word may also be `TIMEOUT`, or a signal such as `SIGABRT`.
fn of_nextest_line(line: &str) -> Option<&str> {
    let (state, rest) = line.split_once(" [")?;
    let is_failure = ["FAIL", "TIMEOUT", "LEAK-FAIL"].contains(&state) || state.starts_with("SIG");
    let (_, name) = rest.split_once("] ")?;
    let name = name
        .strip_prefix('(')
        .and_then(|rest| rest.split_once(") "))
        .map_or(name, |(_, name)| name);
    Some(name).filter(|_| is_failure)
}

/// Returns the test in a line of cargo test about a failure, for example `test module::a_name ...
/// FAILED`.
fn of_cargo_test_line(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

/// Returns the test in a line of ctest about a failure, for example `3 - a_name (Failed)`. These
/// lines are at the end of the output.
fn of_ctest_line(line: &str) -> Option<&str> {
    let (number, rest) = line.split_once(" - ")?;
    let (name, reason) = rest.split_once(" (")?;
    let is_failure = ["Failed)", "Timeout)", "SEGFAULT)", "Subprocess aborted)"].contains(&reason);
    Some(name.trim()).filter(|_| is_failure && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns the test in a line of unittest about a failure, for example `FAIL: test_name
/// (test_module.TestClass.test_name)`.
fn of_unittest_line(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("FAIL: ").or_else(|| line.strip_prefix("ERROR: "))?;
    let (_, name) = rest.split_once(" (")?;
    name.strip_suffix(')')
}

fn number_before(line: &str, word: &str) -> Option<usize> {
    line[..line.find(word)?].rsplit(' ').next()?.parse().ok()
}

impl fmt::Display for TestCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, skipped } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(passed: usize, failed: usize, skipped: usize) -> Option<TestCounts> {
        Some(TestCounts { passed, failed, skipped })
    }

    #[test]
    fn nextest_summary_is_parsed() {
        let text = "     Summary [   0.012s] 12 tests run: 12 passed, 0 skipped\n";
        assert_eq!(TestCounts::of_nextest(text), counts(12, 0, 0));
        let text = "x\n     Summary [   9.1s] 12/14 tests run: 8 passed (2 slow, 1 leaky), 2 failed, \
                    1 timed out, 1 exec failed, 3 skipped\n        FAIL [0.1s] y\n";
        assert_eq!(TestCounts::of_nextest(text), counts(8, 4, 3));
        assert_eq!(TestCounts::of_nextest("error: could not compile"), None);
    }

    #[test]
    fn cargo_test_summary_is_parsed() {
        let text = "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n\
                    test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(TestCounts::of_cargo_test(text), counts(7, 3, 1));
        assert_eq!(TestCounts::of_cargo_test(""), None);
    }

    #[test]
    fn names_of_failed_tests_are_found_once() {
        let text = "        PASS [   0.2s] (1/3) dist::faults one\n        FAIL [   1.2s] (2/3) dist::faults two\n\
                    test three ... FAILED\ntest four ... ok\n     TIMEOUT [  60.0s] dist::faults five\n\
                    FAIL [   1.2s] (2/3) dist::faults two\n\t  6 - six (Failed)\n\t  7 - seven (Not Run)\n";
        assert_eq!(failed_tests(text), ["dist::faults two", "three", "dist::faults five", "six"]);
        assert!(failed_tests("Summary [ 1s] 3 tests run: 2 passed").is_empty());
    }

    #[test]
    fn unittest_summary_is_parsed() {
        let text = "ERROR: test_a (test_m.C.test_a)\nRan 51 tests in 51.871s\n\n\
                    FAILED (failures=2, errors=1, skipped=2)\n";
        assert_eq!(TestCounts::of_unittest(text), counts(46, 3, 2));
        assert_eq!(failed_tests(text), ["test_m.C.test_a"]);
        assert_eq!(TestCounts::of_unittest("Ran 3 tests in 1.0s\n\nOK\n"), counts(3, 0, 0));
        let text = "Ran 3 tests in 1.0s\n\nOK (skipped=1)\n";
        assert_eq!(TestCounts::of_unittest(text), counts(2, 0, 1));
        assert_eq!(TestCounts::of_unittest("Traceback (most recent call last):"), None);
    }

    #[test]
    fn ctest_summary_is_parsed() {
        let text = "1/3 Test #1: a ...   Passed    0.01 sec\n2/3 Test #2: b ...***Skipped   0.00 sec\n\
                    3/3 Test #3: c ...***Failed    0.01 sec\n\n67% tests passed, 1 tests failed out of 3\n";
        assert_eq!(TestCounts::of_ctest(text), counts(1, 1, 1));
    }
}
