//! `cargo xtask cross`: builds for aarch64, and runs unit tests, C programs and the conformance
//! suite under the emulator qemu-user. `docs/aarch64.md` has the last result.
//!
//! The emulator translates each process, and passes system calls to the kernel of this machine. It
//! cannot run some tests. [`UNIT_EXCEPTIONS`] and [`PROGRAM_EXCEPTIONS`] list them with the
//! reasons. The processor of this machine orders memory accesses strongly, also those of the
//! emulated program. So this command finds no missing fence; `cargo xtask loom` and the list in
//! `docs/aarch64.md` are for that.

use crate::run::{self, FinishedProcess};
use crate::workspace::{cargo, repository_root, target_folder};
use crate::{Arguments, CommandResult, tools};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const COMPILER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";
/// The folder of the C library for aarch64, as Debian's packages for cross-compilation install it.
const SYSROOT: &str = "/usr/aarch64-linux-gnu";

const QUERY_TIMEOUT: Duration = Duration::from_secs(60);
const BUILD_LIMIT: Duration = Duration::from_secs(3600);
const TEST_LIMIT: Duration = Duration::from_secs(7200);
/// The limit of a C program, which takes 10 to 30 times as long as without the emulator.
const PROGRAM_LIMIT: Duration = Duration::from_secs(900);

/// A test that the emulator cannot run, and the reason.
type CrossException = (&'static str, &'static str);

/// Unit tests that the emulator cannot run.
const UNIT_EXCEPTIONS: &[CrossException] = &[];

const EMULATOR_THREAD: &str =
    "the emulator has a thread of its own, and dist_spawn refuses to fork a process with threads";
const EMULATOR_START_TIME: &str = "the emulator shows a process another start time in its /proc/PID/stat than other \
                                   processes see, so the file store believes that its members have died";

/// C programs that the emulator cannot run.
const PROGRAM_EXCEPTIONS: &[CrossException] = &[
    (
        "api_fork",
        "the emulator ignores MADV_WIPEONFORK, by which the library recognises a forked child",
    ),
    ("api_null", EMULATOR_THREAD),
    ("call_mismatch", EMULATOR_START_TIME),
    ("closed_streams", EMULATOR_THREAD),
    ("deadlock", EMULATOR_START_TIME),
    ("deadlock_calls", EMULATOR_START_TIME),
    ("labels", EMULATOR_START_TIME),
    ("memory", EMULATOR_THREAD),
    ("spawn", EMULATOR_THREAD),
    ("timeouts", EMULATOR_THREAD),
];

/// The name and the function of a part of the command.
type CrossPart = (&'static str, fn() -> CommandResult);

/// Runs the command.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    let mut arguments = Arguments::new(rest);
    let only = arguments.value("--only")?;
    arguments.finish()?;
    check_tools()?;
    let parts: [CrossPart; 3] =
        [("unit", run_unit_tests), ("programs", run_programs), ("conformance", run_conformance)];
    if let Some(name) = &only
        && !parts.iter().any(|(part, _)| part == name)
    {
        return Err(format!("--only {name}: the parts are unit, programs and conformance"));
    }
    let mut all_passed = true;
    for (part, run_part) in parts {
        if only.as_deref().is_some_and(|name| name != part) {
            continue;
        }
        let began = Instant::now();
        println!("\n== {part}");
        let passed = run_part()?;
        let verdict = if passed { "passed" } else { "FAILED" };
        println!("== {part}: {verdict} after {} s", began.elapsed().as_secs());
        all_passed &= passed;
    }
    Ok(all_passed)
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
    let folder = run::run_checked(&mut rustc, QUERY_TIMEOUT)?.text;
    if Path::new(folder.trim()).is_dir() {
        return Ok(());
    }
    Err(format!(
        "the compiler has no standard library for {TARGET}: `rustup target add {TARGET}`. Debian's \
         unstable suite has one, too: debootstrap it into a folder, install rustc, cargo and \
         libstd-rust-dev:arm64 there, and run this command in it"
    ))
}

/// Returns a cargo command that compiles for aarch64 and runs the programs in the emulator.
fn cross_cargo(arguments: &[&str]) -> Result<Command, String> {
    let mut command = cargo();
    command.args(arguments).args(["--target", TARGET]);
    command.arg("--target-dir").arg(target_folder()?.join("cross"));
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", COMPILER);
    command
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", format!("{EMULATOR} -L {SYSROOT}"));
    Ok(command)
}

fn run_unit_tests() -> CommandResult {
    print_exceptions(UNIT_EXCEPTIONS);
    let mut test = cross_cargo(&["test", "--package", "dist", "--lib"])?;
    test.arg("--").args(UNIT_EXCEPTIONS.iter().flat_map(|(name, _)| ["--skip", name]));
    Ok(run::run_visibly(&mut test, TEST_LIMIT)?.success())
}

/// Runs the part of the conformance suite that the ordinary tests run.
fn run_conformance() -> CommandResult {
    let mut test = cross_cargo(&["test", "--package", "dist", "--test", "conformance"])?;
    Ok(run::run_visibly(&mut test, TEST_LIMIT)?.success())
}

fn print_exceptions(exceptions: &[CrossException]) {
    for (name, reason) in exceptions {
        println!("not run: {name}: {reason}");
    }
}

/// Compiles the C programs of `ffi-tests/CMakeLists.txt`, and runs them in the emulator.
fn run_programs() -> CommandResult {
    print_exceptions(PROGRAM_EXCEPTIONS);
    let mut build = cross_cargo(&["build", "--release", "--package", "dist", "--lib"])?;
    if !run::run_visibly(&mut build, BUILD_LIMIT)?.success() {
        return Ok(false);
    }
    let folder = target_folder()?.join("cross/programs");
    fs::create_dir_all(&folder).map_err(|cause| format!("{}: {cause}", folder.display()))?;
    let library = target_folder()?.join("cross").join(TARGET).join("release/libdist.so");
    let copy = folder.join("libdist.so.0");
    fs::copy(&library, &copy).map_err(|cause| format!("{}: {cause}", library.display()))?;
    let is_excepted = |name: &str| PROGRAM_EXCEPTIONS.iter().any(|(known, _)| *known == name);
    let mut failed = Vec::new();
    for name in program_names()?.iter().filter(|name| !is_excepted(name)) {
        let program = compile_program(name, &folder)?;
        let finished = run_in_emulator(&program, &folder)?;
        let last_line = finished.text.lines().last().unwrap_or_default();
        println!("{name}: {} ({last_line})", finished.exit_description());
        if !finished.success() {
            println!("{}", finished.output_tail());
            failed.push(name.clone());
        }
    }
    println!(
        "{} programs failed{}{}",
        failed.len(),
        if failed.is_empty() { "" } else { ": " },
        failed.join(", ")
    );
    Ok(failed.is_empty())
}

/// Returns the names of the programs in the list `programs` of `ffi-tests/CMakeLists.txt`.
fn program_names() -> Result<Vec<String>, String> {
    let path = repository_root().join("ffi-tests/CMakeLists.txt");
    let text = fs::read_to_string(&path).map_err(|cause| format!("{}: {cause}", path.display()))?;
    let list = text.split_once("set(programs").and_then(|(_, rest)| rest.split_once(')'));
    let (list, _) = list.ok_or("ffi-tests/CMakeLists.txt has no list of programs")?;
    Ok(list.split_whitespace().map(str::to_owned).collect())
}

fn compile_program(name: &str, folder: &Path) -> Result<PathBuf, String> {
    let program = folder.join(name);
    let mut compile = run::command(COMPILER);
    compile.args(["-std=c99", "-O1", "-g", "-pthread", "-o"]).arg(&program);
    compile.arg(repository_root().join(format!("ffi-tests/c/{name}.c")));
    compile.arg("-I").arg(repository_root().join("include"));
    compile.arg(folder.join("libdist.so.0")).arg("-lm");
    run::run_checked(&mut compile, BUILD_LIMIT)?;
    Ok(program)
}

fn run_in_emulator(program: &Path, folder: &Path) -> Result<FinishedProcess, String> {
    let mut command = run::command(EMULATOR);
    command.args(["-L", SYSROOT, "-E"]);
    command.arg(format!("LD_LIBRARY_PATH={}", folder.display())).arg(program);
    run::run_quietly(&mut command, PROGRAM_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_name_programs_and_reasons() {
        let names = program_names().unwrap();
        assert!(names.len() > 40, "{names:?}");
        for (name, reason) in PROGRAM_EXCEPTIONS {
            assert!(names.iter().any(|it| it == name) && !reason.is_empty(), "{name}");
        }
        assert!(UNIT_EXCEPTIONS.iter().all(|(_, reason)| !reason.is_empty()));
    }
}
