//! The checks of the Rust side: format, lints, tests, documentation, the second platform.

use super::counts::Counts;
use super::report::{Checked, PASSED, Report, Verdict};
use crate::{run, workspace};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const QUICK: Duration = Duration::from_secs(60);
const SECOND_TARGET: &str = "aarch64-unknown-linux-gnu";

pub(super) fn run(report: &mut Report) {
    report.check("format", || component("fmt", &["fmt", "--all", "--check"]));
    report.check("lints", || {
        component("clippy", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
    });
    let built = report.check("build", || single(&mut cargo(&["build", "--workspace"])));
    if built {
        report.check("Rust tests", tests);
        report.check("documentation's examples", doc_tests);
        report
            .check("models of threads", || counted(&crate::loom::models()?, Counts::of_cargo_test));
    }
    report.check("documentation", || {
        // It is for those who work on the library (its users read dist.h), so it may show what is
        // private.
        let mut doc = cargo(&["doc", "--workspace", "--no-deps", "--document-private-items"]);
        single(doc.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links"))
    });
    report.check("dependencies", || {
        component("deny", &["deny", "check", "licenses", "bans", "sources"])
    });
    report.check("aarch64 compiles", second_target);
}

fn cargo(arguments: &[&str]) -> Command {
    let mut cargo = workspace::cargo();
    cargo.args(arguments);
    cargo
}

/// A cargo command that is one test.
fn single(command: &mut Command) -> Checked {
    let finished = workspace::checked(command)?;
    if finished.success() { Ok(PASSED) } else { Err(finished.ending()) }
}

/// A check by a part of the toolchain that may be absent.
fn component(name: &str, arguments: &[&str]) -> Checked {
    if !has_subcommand(name) {
        let remedy = match name {
            "fmt" => "rustup component add rustfmt",
            "clippy" => "rustup component add clippy",
            _ => "cargo install --locked cargo-deny",
        };
        return Ok(Verdict::Skipped(format!("cargo {name} is not installed (`{remedy}`)")));
    }
    single(&mut cargo(arguments))
}

fn has_subcommand(name: &str) -> bool {
    run::quiet(&mut cargo(&[name, "--version"]), QUICK).is_ok_and(|done| done.success())
}

fn tests() -> Checked {
    let nextest = has_subcommand("nextest");
    let finished = if nextest {
        workspace::checked(&mut cargo(&["nextest", "run", "--workspace", "--no-fail-fast"]))?
    } else {
        println!("cargo nextest is not installed; using cargo test");
        workspace::checked(&mut cargo(&[
            "test",
            "--workspace",
            "--lib",
            "--bins",
            "--tests",
            "--no-fail-fast",
        ]))?
    };
    let read = if nextest { Counts::of_nextest } else { Counts::of_cargo_test };
    counted(&finished, read)
}

fn doc_tests() -> Checked {
    let finished = workspace::checked(&mut cargo(&["test", "--doc", "--package", "dist"]))?;
    counted(&finished, Counts::of_cargo_test)
}

/// The count that a test runner printed; its exit status has the last word.
pub(super) fn counted(finished: &run::Finished, read: fn(&str) -> Option<Counts>) -> Checked {
    match read(&finished.text) {
        Some(counts) if finished.success() || counts.failed > 0 => Ok(Verdict::Passed(counts)),
        _ => Err(finished.ending()),
    }
}

fn second_target() -> Checked {
    let mut rustc = run::command("rustc");
    rustc.args(["--print", "sysroot"]).current_dir(workspace::root());
    let printed = run::must(&mut rustc, QUICK)?;
    let library = Path::new(printed.text.trim()).join("lib/rustlib").join(SECOND_TARGET);
    if !library.join("lib").is_dir() {
        let remedy = format!("rustup target add {SECOND_TARGET}");
        return Ok(Verdict::Skipped(format!("its standard library is not installed (`{remedy}`)")));
    }
    single(&mut cargo(&["check", "--package", "dist", "--target", SECOND_TARGET]))
}
