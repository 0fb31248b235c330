//! `cargo xtask torch`: tests the Python package's back end for PyTorch.
//!
//! The command runs PyTorch's own tests of back ends, and the tests in `python/tests/torch_*.py`,
//! over the release build of the library. It prints the result of each part.

use crate::torch::TorchEnvironment;
use crate::workspace::{self, StagedBuild, repository_root};
use crate::{Arguments, CommandResult, run};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// The time limit of one part. The parts have shorter limits of their own.
const PART_LIMIT: Duration = Duration::from_secs(1500);
/// PyTorch's tests run once on each of these numbers of ranks.
const RANKS: [&str; 3] = ["3", "4", "8"];
/// The package with the base classes that PyTorch's tests need.
const TEST_PACKAGE: &str = "expecttest";

/// One program of the tests, with its arguments.
struct Part {
    name: String,
    script: &'static str,
    arguments: Vec<String>,
    /// True if the part runs only on request.
    is_slow: bool,
}

/// Runs the command.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    let mut arguments = Arguments::new(rest);
    let venv = arguments.value("--venv")?.map(PathBuf::from);
    let only = arguments.value("--only")?;
    let subclass = arguments.value("--subclass")?.unwrap_or_else(|| "python".to_string());
    let exits = arguments.value("--exits")?;
    arguments.finish()?;
    if !["python", "cxx"].contains(&subclass.as_str()) {
        return Err(format!("--subclass takes python or cxx, not \"{subclass}\""));
    }

    let torch = TorchEnvironment::find_torch(venv.as_deref())?;
    torch.require_package(TEST_PACKAGE)?;
    let stage = workspace::stage_release_build()?;
    if subclass == "cxx" {
        println!("Compiling the back end against torch {}", torch.version);
        let mut build = torch.module("libdist.torch");
        run::run_checked(set_environment(build.arg("build"), &stage, &subclass), PART_LIMIT)?;
    }
    let selected: Vec<Part> = parts(exits.as_deref(), &subclass)
        .into_iter()
        .filter(|part| match &only {
            Some(words) => part.name.contains(words.as_str()),
            None => !part.is_slow,
        })
        .collect();
    if selected.is_empty() {
        return Err("no part has such a name".into());
    }
    run_parts(&torch, &stage, &subclass, &selected)
}

/// Returns all parts.
fn parts(exits: Option<&str>, subclass: &str) -> Vec<Part> {
    let part = |name: &str, script, words: &[&str], is_slow| Part {
        name: name.to_string(),
        script,
        arguments: words.iter().map(ToString::to_string).collect(),
        is_slow,
    };
    let mut parts: Vec<Part> = RANKS
        .iter()
        .map(|ranks| {
            let words = ["--ranks", ranks, "--subclass", subclass];
            part(&format!("suite of PyTorch on {ranks} ranks"), "torch_suite.py", &words, false)
        })
        .collect();
    parts.push(part("calls", "torch_calls.py", &[], false));
    parts.push(part("groups", "torch_groups.py", &[], false));
    parts.push(part("training", "torch_training.py", &[], false));
    parts.push(part("failures", "torch_failures.py", &[], false));
    parts.push(part("exits", "torch_exits.py", &["--runs", exits.unwrap_or("16")], false));
    parts.push(part("documents", "torch_docs.py", &[], false));
    parts.push(part("speed", "torch_speed.py", &["--subclass", subclass], true));
    parts
}

/// Runs the parts one after the other. Returns true if all passed.
fn run_parts(
    torch: &TorchEnvironment,
    stage: &StagedBuild,
    subclass: &str,
    parts: &[Part],
) -> CommandResult {
    let mut failed = Vec::new();
    for part in parts {
        println!("\n{} (torch {}, {subclass} subclass)", part.name, torch.version);
        let start = Instant::now();
        let mut script = torch.script(&format!("python/tests/{}", part.script));
        script.args(&part.arguments);
        let finished = run::run_visibly(set_environment(&mut script, stage, subclass), PART_LIMIT)?;
        println!(
            "{}: {} after {} s",
            part.name,
            finished.exit_description(),
            start.elapsed().as_secs()
        );
        if !finished.success() {
            failed.push(part.name.as_str());
        }
    }
    if failed.is_empty() {
        println!("\nAll {} parts passed", parts.len());
    } else {
        println!("\nFailed: {}", failed.join(", "));
    }
    Ok(failed.is_empty())
}

/// Sets the variables by which Python finds the package and the library.
fn set_environment<'command>(
    command: &'command mut Command,
    stage: &StagedBuild,
    subclass: &str,
) -> &'command mut Command {
    command
        .env("PYTHONPATH", repository_root().join("python/src"))
        .env("PYTHONUNBUFFERED", "1")
        .env("LIBDIST_LIBRARY", stage.lib.join("libdist.so.0"))
        .env("LIBDIST_DISTRUN", &stage.distrun)
        .env("LIBDIST_TORCH_SUBCLASS", subclass)
        .env("OMP_NUM_THREADS", "1")
}
