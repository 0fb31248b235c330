//! `cargo xtask cross`: builds for aarch64, and runs unit tests, C programs and the conformance
//! suite under the emulator qemu-user.
//!
//! | file | content |
//! |---|---|
//! | `part.rs` | the parts of the command, and the comparison of outcomes with the exceptions |
//! | `exceptions.rs` | the tests that the emulator cannot run, and the limits of the emulator |
//! | `emulator.rs` | programs in the emulator, and the proofs of its limits |
//! | `rust_tests.rs` | unit tests and the conformance suite |
//! | `programs.rs` | the C programs |
//! | `report.rs` | the last results in `docs/aarch64.md` |
//!
//! The emulator translates each process, and passes system calls to the kernel of this machine. The
//! processor of this machine orders memory accesses strongly, also those of the emulated program.
//! So this command finds no missing fence; `cargo xtask loom` and the list in `docs/aarch64.md` are
//! for that.

mod emulator;
mod exceptions;
mod part;
mod programs;
mod report;
mod rust_tests;

use crate::run;
use crate::workspace::{cargo, repository_root, target_folder};
use crate::{Arguments, CommandResult, tools};
use part::{CrossPart, TestOutcome};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const COMPILER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";
/// The folder of the C library for aarch64, as Debian's packages for cross-compilation install it.
const SYSROOT: &str = "/usr/aarch64-linux-gnu";

const QUERY_LIMIT: Duration = Duration::from_secs(60);
const BUILD_LIMIT: Duration = Duration::from_secs(3600);
/// The time limit of a unit test.
const UNIT_TEST_LIMIT: Duration = Duration::from_secs(300);
/// The time limit of a test of the conformance suite, which has a large part of the matrix.
const CONFORMANCE_TEST_LIMIT: Duration = Duration::from_secs(7200);

/// Runs the command.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    let mut arguments = Arguments::new(rest);
    let only = arguments.value("--only")?;
    let is_written = arguments.flag("--write");
    arguments.finish()?;
    let parts = selected_parts(only.as_deref())?;
    check_tools()?;
    let folder = target_folder()?.join("cross/programs");
    fs::create_dir_all(&folder).map_err(|cause| format!("{}: {cause}", folder.display()))?;
    let mut all_passed = true;
    for part in parts {
        all_passed &= run_part(part, &folder, is_written)?;
    }
    Ok(all_passed)
}

fn selected_parts(only: Option<&str>) -> Result<Vec<CrossPart>, String> {
    let is_selected = |part: &CrossPart| only.is_none_or(|name| name == part.name());
    let parts: Vec<CrossPart> = CrossPart::ALL.into_iter().filter(is_selected).collect();
    if parts.is_empty() {
        let names = CrossPart::ALL.map(CrossPart::name).join(", ");
        return Err(format!("--only {}: the parts are {names}", only.unwrap_or_default()));
    }
    Ok(parts)
}

/// Runs one part, and prints its result. Returns true if all tests ended as expected.
fn run_part(part: CrossPart, folder: &Path, is_written: bool) -> CommandResult {
    let began = Instant::now();
    println!("\n== {}", part.title());
    let outcomes = test_outcomes(part, folder)?;
    let verdict = part::judge(part, &outcomes);
    for problem in &verdict.problems {
        println!("{problem}");
    }
    println!(
        "== {}: {} passed, {} failed as expected, {} ignored, {} problems, after {} s",
        part.title(),
        verdict.passed,
        verdict.excepted,
        verdict.ignored,
        verdict.problems.len(),
        began.elapsed().as_secs()
    );
    if is_written {
        report::write_result(part, &verdict)?;
    }
    Ok(verdict.problems.is_empty())
}

fn test_outcomes(part: CrossPart, folder: &Path) -> Result<Vec<TestOutcome>, String> {
    match part {
        CrossPart::Emulator => emulator::prove_limits(folder),
        CrossPart::Unit => rust_tests::run_tests(part, &["--lib"], UNIT_TEST_LIMIT),
        CrossPart::Programs => programs::run_programs(folder),
        CrossPart::Conformance => {
            rust_tests::run_tests(part, &["--test", "conformance"], CONFORMANCE_TEST_LIMIT)
        }
    }
}

fn check_tools() -> Result<(), String> {
    let missing: Vec<&str> =
        [COMPILER, EMULATOR].into_iter().filter(|name| !tools::has_program(name)).collect();
    if !missing.is_empty() || !Path::new(SYSROOT).is_dir() {
        return Err(format!(
            "{} missing (Debian, Ubuntu: `apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross \
             qemu-user`)",
            if missing.is_empty() { SYSROOT.to_owned() } else { missing.join(" and ") }
        ));
    }
    let mut rustc = run::command("rustc");
    rustc.args(["--print", "target-libdir", "--target", TARGET]).current_dir(repository_root());
    let folder = run::run_checked(&mut rustc, QUERY_LIMIT)?.text;
    if Path::new(folder.trim()).is_dir() {
        return Ok(());
    }
    Err(format!(
        "the compiler has no standard library for {TARGET}: `rustup target add {TARGET}`. Debian's \
         unstable suite has one, too: debootstrap it into a folder, install rustc, cargo and \
         libstd-rust-dev:arm64 there, and run this command in it"
    ))
}

/// Returns a cargo command that compiles for aarch64.
fn cross_cargo(arguments: &[&str]) -> Result<Command, String> {
    let mut command = cargo();
    command.args(arguments).args(["--target", TARGET]);
    command.arg("--target-dir").arg(target_folder()?.join("cross"));
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", COMPILER);
    Ok(command)
}
