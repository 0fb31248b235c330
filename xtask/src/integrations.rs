//! `cargo xtask integrations`: tests the Python package inside LightGBM, Ray, torchft and
//! Accelerate.
//!
//! The command installs the versions in `python/tests/integrations.txt` into a virtual environment
//! of its own, and the package with the release build of the library. It downloads torch and Ray,
//! which are large. Then it runs the tests in `python/tests`.

use crate::workspace::{self, StagedBuild, repository_root, scratch_folder};
use crate::{Arguments, CommandResult, run, tools};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const INSTALL_LIMIT: Duration = Duration::from_secs(1800);
/// The time limit of one part. The programs of the parts have shorter limits of their own.
const PART_LIMIT: Duration = Duration::from_secs(1500);
/// The list of the packages.
const REQUIREMENTS: &str = "python/tests/integrations.txt";
/// The copy of the list in an environment that has all packages.
const INSTALLED: &str = "installed.txt";

/// One program of the tests.
struct Part {
    name: &'static str,
    script: &'static str,
    /// True if the part runs only on request.
    is_slow: bool,
}

const PARTS: &[Part] = &[
    Part { name: "lightgbm", script: "test_lightgbm.py", is_slow: false },
    Part { name: "ray", script: "integration_ray.py", is_slow: false },
    Part { name: "torchft", script: "integration_torchft.py", is_slow: false },
    Part { name: "accelerate", script: "integration_accelerate.py", is_slow: false },
    Part { name: "documents", script: "integration_docs.py", is_slow: false },
    Part { name: "speed of lightgbm", script: "lightgbm_speed.py", is_slow: true },
];

/// Runs the command.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    let mut arguments = Arguments::new(rest);
    let only = arguments.value("--only")?;
    let subclass = arguments.value("--subclass")?.unwrap_or_else(|| "python".to_owned());
    arguments.finish()?;
    if !["python", "cxx"].contains(&subclass.as_str()) {
        return Err(format!("--subclass takes python or cxx, not \"{subclass}\""));
    }
    let selected: Vec<&Part> = PARTS
        .iter()
        .filter(|part| only.as_ref().map_or(!part.is_slow, |words| part.name.contains(words)))
        .collect();
    if selected.is_empty() {
        return Err("no part has such a name".into());
    }

    let stage = workspace::stage_release_build()?;
    let environment = PythonEnvironment::create(&stage)?;
    if subclass == "cxx" {
        println!("compiling the back end against torch");
        let mut build = environment.python(&subclass)?;
        run::run_checked(build.args(["-m", "libdist.torch", "build"]), PART_LIMIT)?;
    }
    run_parts(&environment, &subclass, &selected)
}

/// Runs the parts one after the other. Returns true if all passed.
fn run_parts(environment: &PythonEnvironment, subclass: &str, parts: &[&Part]) -> CommandResult {
    let mut failed = Vec::new();
    for part in parts {
        println!("\n{}", part.name);
        let start = Instant::now();
        let mut script = environment.python(subclass)?;
        script.arg(repository_root().join("python/tests").join(part.script));
        let finished = run::run_visibly(&mut script, PART_LIMIT)?;
        let seconds = start.elapsed().as_secs();
        println!("{}: {} after {seconds} s", part.name, finished.exit_description());
        if !finished.success() {
            failed.push(part.name);
        }
    }
    if failed.is_empty() {
        println!("\nAll {} parts passed", parts.len());
    } else {
        println!("\nFailed: {}", failed.join(", "));
    }
    Ok(failed.is_empty())
}

/// A virtual environment with the packages and with libdist.
struct PythonEnvironment {
    folder: PathBuf,
}

impl PythonEnvironment {
    /// Creates the environment, unless it has all packages, and installs libdist into it.
    fn create(stage: &StagedBuild) -> Result<Self, String> {
        let environment = Self { folder: scratch_folder("integrations-venv")? };
        let list = repository_root().join(REQUIREMENTS);
        let wanted = read(&list)?;
        let installed = environment.folder.join(INSTALLED);
        if read(&installed).ok().as_ref() != Some(&wanted) {
            println!("downloading {REQUIREMENTS} into {} (large)", environment.folder.display());
            tools::recreate_folder(&environment.folder)?;
            let mut create = run::command("python3");
            create.args(["-m", "venv"]).arg(&environment.folder);
            run::run_checked(&mut create, INSTALL_LIMIT)?;
            run::run_checked(environment.install().arg("-r").arg(&list), INSTALL_LIMIT)?;
            fs::write(&installed, &wanted).map_err(|cause| describe(&installed, &cause))?;
        }
        let mut install = environment.install();
        install.args(["--force-reinstall", "--no-deps", "./python"]);
        run::run_checked(install.env("LIBDIST_PREBUILT", &stage.lib), INSTALL_LIMIT)?;
        Ok(environment)
    }

    fn install(&self) -> Command {
        let mut pip = run::command(self.folder.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        pip.current_dir(repository_root());
        pip
    }

    /// Returns a command of the environment's Python.
    fn python(&self, subclass: &str) -> Result<Command, String> {
        let mut python = run::command(self.folder.join("bin/python"));
        python
            .env("PATH", tools::search_path_with(&self.folder.join("bin"))?)
            .env("PYTHONUNBUFFERED", "1")
            // A file of Python's cache in the source would be a change of the working tree.
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("LIBDIST_TORCH_SUBCLASS", subclass)
            .env("OMP_NUM_THREADS", "1")
            // Ray would write a token into the home folder of the user.
            .env("RAY_AUTH_MODE", "disabled");
        Ok(python)
    }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|cause| describe(path, &cause))
}

fn describe(path: &Path, cause: &std::io::Error) -> String {
    format!("{}: {cause}", path.display())
}
