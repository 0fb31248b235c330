//! The emulator: how programs run in it, and the proofs of its limits.

use super::exceptions::EmulatorLimit;
use super::part::{TestEnd, TestOutcome};
use super::{COMPILER, EMULATOR, SYSROOT};
use crate::run::{self, FinishedProcess};
use crate::{tools, workspace};
use std::path::Path;
use std::time::{Duration, Instant};

const COMPILE_LIMIT: Duration = Duration::from_secs(300);
const CHECK_LIMIT: Duration = Duration::from_secs(60);

/// The time after which a process that ignores SIGTERM is killed.
const KILL_DELAY: Duration = Duration::from_secs(5);

/// Prefixes of environment variables that change the behaviour of the library. The tests run
/// without them.
const REMOVED_PREFIXES: &[&str] =
    &["DIST_", "MASTER_", "OMPI_", "PMI_", "PMIX_", "SLURM_", "TORCH", "NCCL_"];
const REMOVED_NAMES: &[&str] = &["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"];

/// Runs the words as a command with a time limit. At the limit the process is killed, and so are
/// the children that it has left in its process group: `timeout` sends the signal to the group.
fn run_words(words: &[String], limit: Duration) -> Result<(FinishedProcess, Duration), String> {
    let mut command = run::command("timeout");
    command.arg(format!("--kill-after={}", KILL_DELAY.as_secs()));
    command.arg(limit.as_secs().to_string()).args(words);
    command.current_dir(workspace::repository_root());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let has_prefix = REMOVED_PREFIXES.iter().any(|prefix| text.starts_with(prefix));
        if has_prefix || REMOVED_NAMES.contains(&&*text) {
            command.env_remove(&name);
        }
    }
    command.env("CC", COMPILER);
    let began = Instant::now();
    let finished = run::run_quietly(&mut command, limit + 2 * KILL_DELAY)?;
    Ok((finished, began.elapsed()))
}

/// Runs a program for aarch64 in the emulator.
pub(super) fn run_emulated(
    program: &Path,
    arguments: &[String],
    limit: Duration,
) -> Result<(FinishedProcess, Duration), String> {
    let mut words = vec![EMULATOR.to_owned(), "-L".to_owned(), SYSROOT.to_owned()];
    words.push(program.display().to_string());
    words.extend_from_slice(arguments);
    run_words(&words, limit)
}

/// Compiles `ffi-tests/cross/emulator_limits.c` for this processor and for aarch64. Runs the check
/// of each limit with both programs. A proof passes if the check works natively and fails in the
/// emulator.
pub(super) fn prove_limits(folder: &Path) -> Result<Vec<TestOutcome>, String> {
    let native = folder.join("emulator_limits_native");
    let emulated = folder.join("emulator_limits");
    for (compiler, program) in [(tools::c_compiler()?, &native), (COMPILER.to_owned(), &emulated)] {
        let mut compile = run::command(compiler);
        compile.args(["-std=gnu99", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(program);
        compile.arg(workspace::repository_root().join("ffi-tests/cross/emulator_limits.c"));
        run::run_checked(&mut compile, COMPILE_LIMIT)?;
    }
    let prove = |limit: EmulatorLimit| -> Result<TestOutcome, String> {
        let check = limit.check().to_owned();
        let words = [native.display().to_string(), check.clone()];
        let (on_linux, _) = run_words(&words, CHECK_LIMIT)?;
        let (in_emulator, _) = run_emulated(&emulated, &[check], CHECK_LIMIT)?;
        Ok(proof_outcome(limit, &on_linux, &in_emulator))
    };
    EmulatorLimit::ALL.into_iter().map(prove).collect()
}

/// Returns the outcome of a proof. The exit status of the check is 0 if the feature works, and 1
/// if it does not.
fn proof_outcome(
    limit: EmulatorLimit,
    on_linux: &FinishedProcess,
    in_emulator: &FinishedProcess,
) -> TestOutcome {
    let is_proven = on_linux.code() == Some(0) && in_emulator.code() == Some(1);
    let end = if is_proven { TestEnd::Passed } else { TestEnd::Failed };
    let texts = [("natively", on_linux), ("in the emulator", in_emulator)]
        .map(|(place, done)| format!("{place}: {}{}", done.exit_description(), done.output_tail()));
    println!("{}\n  {}", limit.check(), texts.join("\n  "));
    TestOutcome { name: limit.check().to_owned(), end, tail: texts.join("\n") }
}
