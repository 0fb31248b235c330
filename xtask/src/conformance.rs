//! `cargo xtask conformance`: runs the conformance suite with its whole matrix of test cases.
//!
//! `cargo xtask test` runs only a part of the matrix that covers every feature. This command builds
//! the suite with optimisation, and runs the whole matrix or the requested part.

use crate::mpi::MpiLibrary;
use crate::workspace::{cargo, json_string, scratch_folder};
use crate::{Arguments, CommandResult, run, tools};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The default time limit of the suite in minutes.
const DEFAULT_MINUTES: u64 = 60;
const BUILD_LIMIT: Duration = Duration::from_secs(1800);
/// The suite stops by itself at its time limit. It then has this much time for its report.
const REPORT_TIME: Duration = Duration::from_secs(180);

/// The names of the options that select test cases for the native back end. The command passes them
/// to the suite.
const NATIVE_OPTIONS: [&str; 4] = ["part", "transport", "kind", "only"];

/// The names of the options for a back end other than the native one.
const BACKEND_OPTIONS: [&str; 5] = ["plugin", "options", "ranks", "calls", "kind"];

/// Runs the command.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    let mut arguments = Arguments::new(rest);
    let minutes = match arguments.value("--minutes")? {
        None => DEFAULT_MINUTES,
        Some(text) => text.parse().map_err(|_| format!("\"{text}\" is not a number"))?,
    };
    let backend = arguments.value("--backend")?;
    if let (Some(name), Some(launcher)) = (&backend, arguments.value("--launcher")?) {
        return run_under_launcher(name, &launcher, minutes, arguments);
    }
    let (name, options) = match backend {
        None => ("whole::whole_matrix", &NATIVE_OPTIONS[..]),
        Some(_) => ("backends::a_back_end_by_name", &BACKEND_OPTIONS[..]),
    };
    let mut test = cargo();
    test.args(["test", "--release", "--test", "conformance", "--"]);
    test.args([name, "--exact", "--ignored", "--nocapture"]);
    test.env("CONFORMANCE_MINUTES", minutes.to_string());
    test.envs(backend.map(|name| ("CONFORMANCE_BACKEND", name)));
    for option in options {
        if let Some(value) = arguments.value(&format!("--{option}"))? {
            if *option == "part" {
                check_part(&value)?;
            }
            test.env(format!("CONFORMANCE_{}", option.to_uppercase()), value);
        }
    }
    arguments.finish()?;
    let limit = BUILD_LIMIT + REPORT_TIME + Duration::from_secs(minutes.saturating_mul(60));
    Ok(run::run_visibly(&mut test, limit)?.success())
}

/// Runs the suite with one process per rank, which the launcher of an MPI implementation starts.
fn run_under_launcher(
    name: &str,
    launcher: &str,
    minutes: u64,
    mut arguments: Arguments,
) -> CommandResult {
    let mpi = MpiLibrary::ALL.into_iter().find(|mpi| mpi.name() == launcher);
    let mpi = mpi.ok_or("--launcher takes openmpi or mpich")?;
    let ranks = arguments.value("--ranks")?.unwrap_or_else(|| "1,2,3,4".into());
    let mut settings = vec![("BACKEND", name.to_owned()), ("MINUTES", minutes.to_string())];
    for option in ["plugin", "options", "calls", "kind"] {
        if let Some(value) = arguments.value(&format!("--{option}"))? {
            settings.push((variable_suffix(option), value));
        }
    }
    arguments.finish()?;
    let program = build_suite(true)?;
    let limit = REPORT_TIME + Duration::from_secs(minutes.saturating_mul(60));
    for text in ranks.split(',') {
        let ranks = text.parse().map_err(|_| format!("\"{text}\" is not a number"))?;
        let job = ConformanceJob { launcher: mpi.launcher(ranks)?, settings: settings.clone() };
        if !job.run(&program, limit)?.success() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn variable_suffix(option: &str) -> &'static str {
    match option {
        "plugin" => "PLUGIN",
        "options" => "OPTIONS",
        "calls" => "CALLS",
        _ => "KIND",
    }
}

/// A run of the suite under a launcher: the launcher's command, and the options of the suite.
pub(crate) struct ConformanceJob {
    pub(crate) launcher: Command,
    pub(crate) settings: Vec<(&'static str, String)>,
}

impl ConformanceJob {
    /// Runs the suite to its end and shows its output.
    pub(crate) fn run(
        self,
        program: &Path,
        limit: Duration,
    ) -> Result<run::FinishedProcess, String> {
        let folder = scratch_folder("conformance")?;
        tools::recreate_folder(&folder)?;
        let Self { mut launcher, settings } = self;
        launcher.arg(program);
        launcher.args(["processes::a_rank_of_a_back_end", "--exact", "--ignored", "--nocapture"]);
        launcher.env("CONFORMANCE_STORE", folder.join("store"));
        launcher
            .envs(settings.into_iter().map(|(name, text)| (format!("CONFORMANCE_{name}"), text)));
        run::run_visibly(&mut launcher, limit)
    }
}

/// Builds the suite and returns the path of its program.
pub(crate) fn build_suite(optimised: bool) -> Result<PathBuf, String> {
    let mut build = cargo();
    build.args(["test", "--test", "conformance", "--no-run", "--message-format", "json"]);
    build.args(optimised.then_some("--release"));
    let built = run::run_checked(&mut build, BUILD_LIMIT)?.text;
    let lines = built.lines().filter(|line| line.contains("\"name\":\"conformance\""));
    let program = lines.filter_map(|line| json_string(line, "executable")).next_back();
    program
        .map(PathBuf::from)
        .ok_or_else(|| "the output of cargo names no program of the suite".into())
}

/// Checks the notation of a part, for example "2/6".
fn check_part(text: &str) -> Result<(), String> {
    let numbers = text
        .split_once('/')
        .and_then(|(part, of)| Some((part.parse::<usize>().ok()?, of.parse::<usize>().ok()?)));
    match numbers {
        Some((part, of)) if (1..=of).contains(&part) => Ok(()),
        _ => Err(format!("\"{text}\" is not a part: 2/6 is the second of six parts")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_one_of_several() {
        assert!(check_part("1/1").is_ok() && check_part("2/6").is_ok());
        for wrong in ["0/3", "4/3", "3", "a/b", "1/"] {
            assert!(check_part(wrong).unwrap_err().contains(wrong));
        }
    }
}
