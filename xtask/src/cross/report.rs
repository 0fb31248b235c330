//! The results of the command in `docs/aarch64.md`: a row for the last run of each part, and the
//! list of the tests that the emulator cannot run.

use super::exceptions::{EXCEPTIONS, EmulatorLimit};
use super::part::{CrossPart, PartVerdict};
use super::{COMPILER, EMULATOR};
use crate::run;
use crate::workspace::repository_root;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const RESULTS_BEGIN: &str = "<!-- cross results: begin -->\n";
const RESULTS_END: &str = "<!-- cross results: end -->";
const EXCEPTIONS_BEGIN: &str = "<!-- cross exceptions: begin -->\n";
const EXCEPTIONS_END: &str = "<!-- cross exceptions: end -->";

const QUERY_LIMIT: Duration = Duration::from_secs(60);

fn page_path() -> PathBuf {
    repository_root().join("docs/aarch64.md")
}

/// Writes the row of a part, and the list of exceptions, into the page.
pub(super) fn write_result(part: CrossPart, verdict: &PartVerdict) -> Result<(), String> {
    let path = page_path();
    let page = fs::read_to_string(&path).map_err(|cause| format!("{}: {cause}", path.display()))?;
    let row = result_row(part, verdict, &today()?, &versions()?);
    let page = with_result_row(&page, part, &row)?;
    let page = replace_between(&page, EXCEPTIONS_BEGIN, EXCEPTIONS_END, &exception_table())?;
    fs::write(&path, page).map_err(|cause| format!("{}: {cause}", path.display()))
}

/// Returns the table row of a part, without the end of the line.
fn result_row(part: CrossPart, verdict: &PartVerdict, date: &str, versions: &str) -> String {
    let failed = verdict.problems.len();
    let total = verdict.passed + verdict.excepted + failed;
    let mut result = format!("{} of {total} passed", verdict.passed);
    if verdict.excepted > 0 {
        result.push_str(&format!(", {} failed as listed below", verdict.excepted));
    }
    if failed > 0 {
        let names: Vec<&str> =
            verdict.problems.iter().filter_map(|problem| problem.split(' ').next()).collect();
        result.push_str(&format!(", {failed} did not end as expected: {}", names.join(", ")));
    }
    if verdict.ignored > 0 {
        result.push_str(&format!("; {} are always ignored", verdict.ignored));
    }
    format!("| {} | {date} | {result} | {versions} |", part.title())
}

/// Replaces the row of a part in the table of results, or adds it.
fn with_result_row(page: &str, part: CrossPart, row: &str) -> Result<String, String> {
    let table = text_between(page, RESULTS_BEGIN, RESULTS_END)?;
    let start = format!("| {} |", part.title());
    let mut lines: Vec<&str> = table.lines().collect();
    match lines.iter_mut().find(|line| line.starts_with(&start)) {
        Some(line) => *line = row,
        None => lines.push(row),
    }
    let table: String = lines.iter().map(|line| format!("{line}\n")).collect();
    replace_between(page, RESULTS_BEGIN, RESULTS_END, &table)
}

/// Returns the table of the tests that the emulator cannot run, by the limit of the emulator.
fn exception_table() -> String {
    let mut table = String::from("| limit of the emulator | proof | tests |\n|---|---|---|\n");
    for limit in EmulatorLimit::ALL {
        let mut cells = Vec::new();
        for part in CrossPart::ALL {
            let tests: Vec<String> = EXCEPTIONS
                .iter()
                .filter(|it| it.limit == limit && it.part == part)
                .map(|it| format!("`{}`", it.test))
                .collect();
            if !tests.is_empty() {
                cells.push(format!("{}: {}", part.title(), tests.join(", ")));
            }
        }
        if cells.is_empty() {
            cells.push("none".to_owned());
        }
        let (reason, check) = (limit.reason(), limit.check());
        table.push_str(&format!("| {reason} | `{check}` | {} |\n", cells.join("; ")));
    }
    table
}

fn text_between<'a>(page: &'a str, begin: &str, end: &str) -> Result<&'a str, String> {
    let rest = page.split_once(begin).and_then(|(_, rest)| rest.split_once(end));
    let (text, _) = rest.ok_or(format!("docs/aarch64.md lacks the line {}", begin.trim_end()))?;
    Ok(text)
}

fn replace_between(page: &str, begin: &str, end: &str, text: &str) -> Result<String, String> {
    let present = text_between(page, begin, end)?;
    Ok(page.replace(&format!("{begin}{present}{end}"), &format!("{begin}{text}{end}")))
}

fn today() -> Result<String, String> {
    let mut date = Command::new("date");
    date.args(["-u", "+%-d %B %Y"]).env("LC_ALL", "C");
    Ok(run::run_checked(&mut date, QUERY_LIMIT)?.text.trim().to_owned())
}

/// Returns the versions of the emulator and the compilers, for example
/// `qemu 7.2.9, rustc 1.95.0, gcc 12.2.0`.
fn versions() -> Result<String, String> {
    let number_in = |program: &str| {
        let text = run::run_checked(Command::new(program).arg("--version"), QUERY_LIMIT)?.text;
        let first = text.lines().next().unwrap_or_default().to_owned();
        let is_number = |word: &&str| word.starts_with(|it: char| it.is_ascii_digit());
        let number = first
            .split_whitespace()
            .find(is_number)
            .unwrap_or("?")
            .trim_end_matches(')')
            .to_owned();
        Ok::<String, String>(number)
    };
    Ok(format!(
        "qemu {}, rustc {}, gcc {}",
        number_in(EMULATOR)?,
        number_in("rustc")?,
        number_in(COMPILER)?
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_the_list_of_exceptions() {
        let page = fs::read_to_string(page_path()).unwrap();
        let present = text_between(&page, EXCEPTIONS_BEGIN, EXCEPTIONS_END).unwrap();
        assert_eq!(present, exception_table(), "`cargo xtask cross --write` writes the list");
    }

    #[test]
    fn row_of_one_part_is_replaced() {
        let page = format!("x\n{RESULTS_BEGIN}| part |\n| unit tests | old |\n{RESULTS_END}\ny");
        let verdict = PartVerdict {
            passed: 7,
            excepted: 2,
            ignored: 1,
            problems: vec!["a::b failed".to_owned()],
        };
        let row = result_row(CrossPart::Unit, &verdict, "1 May 2026", "qemu 1");
        let expected = "| unit tests | 1 May 2026 | 7 of 10 passed, 2 failed as listed below, 1 did \
                        not end as expected: a::b; 1 are always ignored | qemu 1 |";
        assert_eq!(row, expected);
        let page = with_result_row(&page, CrossPart::Unit, &row).unwrap();
        assert!(page.contains(&row) && !page.contains("old"));
        let page = with_result_row(&page, CrossPart::Programs, "| C programs | new |").unwrap();
        assert!(page.contains("| C programs | new |\n<!--") && page.contains(&row));
    }
}
