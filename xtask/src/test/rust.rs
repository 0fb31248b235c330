//! The checks of the Rust code: the format, the lints, the tests, the documentation, and the build
//! for a second platform.

use super::counts::{self, TestCounts};
use super::report::{CheckReport, CheckResult, CheckVerdict, PASSED};
use crate::{run, workspace};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const QUERY_TIMEOUT: Duration = Duration::from_secs(60);
const AUDIT_LIMIT: Duration = Duration::from_secs(900);
const SECOND_TARGET: &str = "aarch64-unknown-linux-gnu";

pub(super) fn run(report: &mut CheckReport, may_install: bool) {
    report.run_check("format", || run_component("fmt", &["fmt", "--all", "--check"]));
    report.run_check("lints", || {
        run_component("clippy", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
    });
    let built =
        report.run_check("build", || run_as_one_test(&mut cargo(&["build", "--workspace"])));
    if built {
        report.run_check("Rust tests", run_tests);
        report.run_check("documentation examples", run_doc_tests);
        report.run_check("loom models", || {
            counted_result(&crate::loom::run_models()?, TestCounts::of_cargo_test)
        });
    }
    report.run_check("documentation", || {
        // The readers of this documentation develop the library (its users read dist.h). So include
        // private items.
        let mut doc = cargo(&["doc", "--workspace", "--no-deps", "--document-private-items"]);
        run_as_one_test(doc.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links"))
    });
    report.run_check("book", || match crate::docs::check(may_install)? {
        None => Ok(PASSED),
        Some(reason) => Ok(CheckVerdict::Skipped(reason)),
    });
    report.run_check("dependencies", || run_audit(crate::audit::installed_policy_checks()));
    report.run_check("advisories", || run_audit(crate::audit::installed_advisory_checks()));
    report.run_check("aarch64 compiles", check_second_target);
}

fn cargo(arguments: &[&str]) -> Command {
    let mut cargo = workspace::cargo();
    cargo.args(arguments);
    cargo
}

/// Runs a cargo command that counts as one test.
fn run_as_one_test(command: &mut Command) -> CheckResult {
    let finished = workspace::run_cargo_checked(command)?;
    if finished.success() { Ok(PASSED) } else { Err(finished.exit_description()) }
}

/// Runs a check with a component of the toolchain, which may be absent.
fn run_component(name: &str, arguments: &[&str]) -> CheckResult {
    if !has_subcommand(name) {
        let remedy = match name {
            "fmt" => "rustup component add rustfmt",
            _ => "rustup component add clippy",
        };
        return Ok(CheckVerdict::Skipped(format!("cargo {name} is not installed (`{remedy}`)")));
    }
    run_as_one_test(&mut cargo(arguments))
}

/// Runs the commands of an audit, or skips them for the reason that they cannot run.
fn run_audit(commands: Result<Vec<Command>, String>) -> CheckResult {
    match commands {
        Ok(commands) => run::run_all(commands, AUDIT_LIMIT).map(|_| PASSED),
        Err(reason) => Ok(CheckVerdict::Skipped(reason)),
    }
}

fn has_subcommand(name: &str) -> bool {
    run::run_quietly(&mut cargo(&[name, "--version"]), QUERY_TIMEOUT)
        .is_ok_and(|done| done.success())
}

fn run_tests() -> CheckResult {
    let nextest = has_subcommand("nextest");
    let finished = if nextest {
        workspace::run_cargo_checked(&mut cargo(&[
            "nextest",
            "run",
            "--workspace",
            "--no-fail-fast",
        ]))?
    } else {
        println!("cargo nextest is not installed; using cargo test");
        workspace::run_cargo_checked(&mut cargo(&[
            "test",
            "--workspace",
            "--lib",
            "--bins",
            "--tests",
            "--no-fail-fast",
        ]))?
    };
    let read = if nextest { TestCounts::of_nextest } else { TestCounts::of_cargo_test };
    counted_result(&finished, read)
}

fn run_doc_tests() -> CheckResult {
    // Name the whole workspace, so that cargo uses the library that it has built for the tests.
    let finished = workspace::run_cargo_checked(&mut cargo(&["test", "--doc", "--workspace"]))?;
    counted_result(&finished, TestCounts::of_cargo_test)
}

/// Returns the verdict of a test runner. The numbers of tests come from its output. Its exit status
/// decides whether the check passed.
pub(super) fn counted_result(
    finished: &run::FinishedProcess,
    read: fn(&str) -> Option<TestCounts>,
) -> CheckResult {
    match read(&finished.text) {
        Some(counts) if finished.success() || counts.failed > 0 => {
            Ok(CheckVerdict::Ran { counts, failed: counts::failed_tests(&finished.text) })
        }
        _ => Err(finished.exit_description()),
    }
}

fn check_second_target() -> CheckResult {
    let mut rustc = run::command("rustc");
    rustc.args(["--print", "sysroot"]).current_dir(workspace::repository_root());
    let printed = run::run_checked(&mut rustc, QUERY_TIMEOUT)?;
    let library = Path::new(printed.text.trim()).join("lib/rustlib").join(SECOND_TARGET);
    if !library.join("lib").is_dir() {
        let remedy = format!("rustup target add {SECOND_TARGET}");
        return Ok(CheckVerdict::Skipped(format!(
            "its standard library is not installed (`{remedy}`)"
        )));
    }
    run_as_one_test(&mut cargo(&["check", "--package", "dist", "--target", SECOND_TARGET]))
}
