//! `cargo xtask torch`: tests the Python package's back end for PyTorch.
//!
//! The command installs the package as a wheel with the release build of the library, and compiles
//! the subclass in C++. Then it runs PyTorch's own tests of back ends, and the tests in
//! `python/tests/torch_*.py`, with each subclass. It prints the result of each part.

use crate::torch::TorchEnvironment;
use crate::workspace::{self, StagedBuild, repository_root, scratch_folder};
use crate::{Arguments, CommandResult, run, tools};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// The time limit of one part. The parts have shorter limits of their own.
const PART_LIMIT: Duration = Duration::from_secs(1500);
const INSTALL_LIMIT: Duration = Duration::from_secs(600);

/// The two back ends of the package: subclasses of torch's class, in C++ and in Python.
const SUBCLASSES: [&str; 2] = ["cxx", "python"];
/// PyTorch's tests run once on each of these numbers of ranks.
const SUITE_RANKS: [&str; 3] = ["3", "4", "8"];
/// The package with the base classes that PyTorch's tests need.
const TEST_PACKAGE: &str = "expecttest";

/// The number of runs in the part `exits`, for each subclass. In each run, two interpreters end.
const EXIT_RUNS: &str = "100";
const ALL_EXIT_RUNS: &str = "200";

/// One program of the tests, with its arguments.
struct Part {
    name: String,
    script: &'static str,
    arguments: Vec<String>,
    subclass: &'static str,
    /// True if the part runs only on request.
    is_slow: bool,
}

/// The options that select the parts.
struct Selection {
    only: Option<String>,
    subclass: Option<String>,
    exits: Option<String>,
    all: bool,
}

/// What the parts run with.
struct TestSetup {
    torch: TorchEnvironment,
    stage: StagedBuild,
    /// The folder with the installed package.
    site: PathBuf,
    /// The folder of the compiled subclass.
    cache: PathBuf,
}

/// Runs the command.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    let mut arguments = Arguments::new(rest);
    let venv = arguments.value("--venv")?.map(PathBuf::from);
    let selection = Selection {
        only: arguments.value("--only")?,
        subclass: arguments.value("--subclass")?,
        exits: arguments.value("--exits")?,
        all: arguments.flag("--all"),
    };
    arguments.finish()?;
    let parts = selection.parts()?;

    let torch = TorchEnvironment::find_torch(venv.as_deref())?;
    torch.require_package(TEST_PACKAGE)?;
    let setup = TestSetup::new(torch)?;
    let start = Instant::now();
    if parts.iter().any(|part| part.subclass == "cxx") {
        println!("Compiling the subclass in C++ against torch {}", setup.torch.version);
        let mut build = setup.torch.module("libdist.torch");
        run::run_checked(setup.set_environment(build.arg("build"), "cxx"), PART_LIMIT)?;
    }
    let is_passed = setup.run_parts(&parts)?;
    println!("The tests took {:.1} minutes", start.elapsed().as_secs_f64() / 60.0);
    Ok(is_passed)
}

impl Selection {
    /// Returns the selected parts.
    fn parts(&self) -> Result<Vec<Part>, String> {
        let subclasses: Vec<&'static str> = match self.subclass.as_deref() {
            None => SUBCLASSES.to_vec(),
            Some(wanted) => SUBCLASSES.into_iter().filter(|name| *name == wanted).collect(),
        };
        if subclasses.is_empty() {
            return Err("--subclass takes python or cxx".into());
        }
        let all: Vec<Part> =
            subclasses.into_iter().flat_map(|subclass| self.parts_of(subclass)).collect();
        let is_selected = |part: &Part| match &self.only {
            Some(words) => part.name.contains(words.as_str()),
            None => self.all || !part.is_slow,
        };
        let selected: Vec<Part> = all.into_iter().filter(is_selected).collect();
        if selected.is_empty() { Err("no part has such a name".into()) } else { Ok(selected) }
    }

    /// Returns all parts of a subclass.
    fn parts_of(&self, subclass: &'static str) -> Vec<Part> {
        let part = |name: &str, script, words: &[&str], is_slow| Part {
            name: name.to_string(),
            script,
            arguments: words.iter().map(ToString::to_string).collect(),
            subclass,
            is_slow,
        };
        let default_runs = if self.all { ALL_EXIT_RUNS } else { EXIT_RUNS };
        let runs = self.exits.as_deref().unwrap_or(default_runs);
        let mut parts = vec![
            part("calls", "torch_calls.py", &[], false),
            part("groups", "torch_groups.py", &[], false),
            part("training", "torch_training.py", &[], false),
            part("failures", "torch_failures.py", &[], false),
            part("exits", "torch_exits.py", &["--runs", runs], false),
            part("secret", "torch_secret.py", &[], false),
            part("documents", "torch_docs.py", &[], false),
        ];
        parts.extend(SUITE_RANKS.iter().map(|ranks| {
            let words = ["--ranks", ranks, "--subclass", subclass];
            part(&format!("suite of PyTorch on {ranks} ranks"), "torch_suite.py", &words, false)
        }));
        parts.push(part("speed", "torch_speed.py", &["--subclass", subclass], true));
        parts
    }
}

impl TestSetup {
    /// Builds the library, and installs the package into a folder of its own, so that the
    /// environment of the user does not change.
    fn new(torch: TorchEnvironment) -> Result<Self, String> {
        let stage = workspace::stage_release_build()?;
        let site = scratch_folder("torch-site")?;
        tools::recreate_folder(&site)?;
        println!("Installing the package for torch {}", torch.version);
        let mut pip = torch.module("pip");
        pip.args(["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target"]);
        pip.arg(&site).arg("./python").current_dir(repository_root());
        run::run_checked(pip.env("LIBDIST_PREBUILT", &stage.lib), INSTALL_LIMIT)?;
        Ok(Self { torch, stage, site, cache: scratch_folder("torch-cache")? })
    }

    /// Runs the parts one after the other. Returns true if all passed.
    fn run_parts(&self, parts: &[Part]) -> CommandResult {
        let mut results = Vec::new();
        for part in parts {
            println!("\n{} ({}, torch {})", part.name, part.subclass, self.torch.version);
            let start = Instant::now();
            let mut script = self.torch.script(&format!("python/tests/{}", part.script));
            script.args(&part.arguments);
            let script = self.set_environment(&mut script, part.subclass);
            let finished = run::run_visibly(script, PART_LIMIT)?;
            results.push((
                finished.success(),
                format!(
                    "{:4} s  {} ({}): {}",
                    start.elapsed().as_secs(),
                    part.name,
                    part.subclass,
                    finished.exit_description()
                ),
            ));
        }
        println!();
        results.iter().for_each(|(_, line)| println!("{line}"));
        let failed = results.iter().filter(|(is_passed, _)| !is_passed).count();
        println!("{} parts passed, {failed} failed", results.len() - failed);
        Ok(failed == 0)
    }

    /// Sets the variables by which Python finds the package, the subclass and the launcher.
    fn set_environment<'command>(
        &self,
        command: &'command mut Command,
        subclass: &str,
    ) -> &'command mut Command {
        command
            .env("PYTHONPATH", &self.site)
            .env("PYTHONUNBUFFERED", "1")
            .env_remove("LIBDIST_LIBRARY")
            .env("LIBDIST_DISTRUN", &self.stage.distrun)
            .env("LIBDIST_TORCH_CACHE", &self.cache)
            .env("LIBDIST_TORCH_SUBCLASS", subclass)
            .env("OMP_NUM_THREADS", "1")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(only: Option<&str>, all: bool) -> Selection {
        Selection { only: only.map(str::to_owned), subclass: None, exits: None, all }
    }

    #[test]
    fn both_subclasses_run_all_parts_but_the_slow_ones() {
        let usual = selection(None, false).parts().unwrap();
        let all = selection(None, true).parts().unwrap();
        assert_eq!(usual.len() + 2, all.len());
        assert!(usual.iter().all(|part| part.name != "speed"));
        for subclass in SUBCLASSES {
            let of_subclass = usual.iter().filter(|part| part.subclass == subclass);
            assert_eq!(of_subclass.count() * 2, usual.len());
        }
    }

    #[test]
    fn parts_are_selected_by_name() {
        let suites = selection(Some("suite"), false).parts().unwrap();
        assert_eq!(suites.len(), 2 * SUITE_RANKS.len());
        assert_eq!(selection(Some("speed"), false).parts().unwrap().len(), 2);
        assert!(selection(Some("nothing"), false).parts().is_err());
    }
}
