//! The checks of the Python package: it installs into a fresh virtual environment, the commands of
//! its guide run, its wheel is small, and its tests pass.
//!
//! The package takes the library and the programs of the release build, so that cargo does not
//! build them again. Without Python, its module venv, or the package index, the checks are skipped.

use super::counts::TestCounts;
use super::report::{CheckReport, CheckResult, CheckVerdict, PASSED};
use super::rust::counted_result;
use crate::workspace::{StagedBuild, repository_root, scratch_folder};
use crate::{licences, run, tools};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const INSTALL_LIMIT: Duration = Duration::from_secs(600);
const TEST_LIMIT: Duration = Duration::from_secs(900);

/// The packages that the tests need, besides libdist.
const NEEDED_PACKAGES: &[&str] = &["hatchling", "numpy", "ml_dtypes", "lightgbm==4.7.0"];

/// The first command of `docs/python.md` that uses several ranks. Each rank prints the sum of the
/// ones of four ranks.
const FIRST_COMMAND: &str = "distrun --nproc-per-node 4 python -c \
     \"import libdist as d, numpy as n; d.init(); x=n.ones(3); d.world().all_reduce(x); print(x)\"";
const FIRST_RESULT: &str = "[4. 4. 4.]";

/// The largest size of the wheel in bytes.
const WHEEL_LIMIT: u64 = 7_000_000;

pub(super) fn run(report: &mut CheckReport, stage: &StagedBuild) {
    let mut environment = None;
    report.run_check("python: a fresh virtual environment", || match create_environment()? {
        Ok(folder) => {
            environment = Some(folder);
            Ok(PASSED)
        }
        Err(reason) => Ok(CheckVerdict::Skipped(reason)),
    });
    let with_environment = |check: &dyn Fn(&Path) -> CheckResult| match &environment {
        Some(folder) => check(folder),
        None => Ok(CheckVerdict::Skipped("there is no virtual environment".into())),
    };
    let is_installed = report.run_check("python: pip install ./python", || {
        with_environment(&|environment| install(environment, stage))
    });
    if !is_installed || environment.is_none() {
        return;
    }
    report.run_check("python: the size of the wheel", || {
        with_environment(&|environment| check_wheel(environment, stage))
    });
    report.run_check("python: tests", || with_environment(&run_tests));
}

/// Creates a virtual environment with the packages that the tests need. Returns the reason if this
/// machine cannot create it.
fn create_environment() -> Result<Result<PathBuf, String>, String> {
    let Some(python) = tools::find_program("python3") else {
        return Ok(Err("not installed: python3".into()));
    };
    if !tools::has_program(tools::PYTHON_VENV) {
        return Ok(Err("not installed: the module venv of python3".into()));
    }
    let folder = scratch_folder("python-venv")?;
    tools::recreate_folder(&folder)?;
    run::run_checked(run::command(python).args(["-m", "venv"]).arg(&folder), INSTALL_LIMIT)?;
    let mut pip = pip(&folder);
    pip.args(["install", "--quiet", "--disable-pip-version-check"]).args(NEEDED_PACKAGES);
    let installed = run::run_quietly(&mut pip, INSTALL_LIMIT)?;
    if !installed.success() {
        let reason = installed.text.lines().last().unwrap_or("pip failed").to_owned();
        return Ok(Err(format!("pip cannot install {}: {reason}", NEEDED_PACKAGES.join(", "))));
    }
    Ok(Ok(folder))
}

fn pip(environment: &Path) -> Command {
    let mut pip = run::command(environment.join("bin/python"));
    pip.args(["-m", "pip"]).current_dir(repository_root());
    pip
}

/// Installs the package, and runs the first command of its guide.
fn install(environment: &Path, stage: &StagedBuild) -> CheckResult {
    let mut install = pip(environment);
    install.args(["install", "--quiet", "--disable-pip-version-check", "./python"]);
    run::run_checked(install.env("LIBDIST_PREBUILT", &stage.lib), INSTALL_LIMIT)?;
    run_first_command(environment)?;
    Ok(PASSED)
}

/// Runs the first command of the guide with the package of an environment.
fn run_first_command(environment: &Path) -> Result<(), String> {
    let mut command = run::command("sh");
    command
        .args(["-c", FIRST_COMMAND])
        .env("PATH", tools::search_path_with(&environment.join("bin"))?);
    let text = run::run_checked(&mut command, TEST_LIMIT)?.text;
    if text.matches(FIRST_RESULT).count() != 4 {
        return Err(format!("{FIRST_COMMAND} printed {text}"));
    }
    Ok(())
}

/// Installs a wheel into a fresh virtual environment, and runs the first command of the guide.
pub(crate) fn use_wheel(wheel: &Path) -> Result<(), String> {
    let folder = scratch_folder("wheel-use")?;
    tools::recreate_folder(&folder)?;
    run::run_checked(run::command("python3").args(["-m", "venv"]).arg(&folder), INSTALL_LIMIT)?;
    let mut install = pip(&folder);
    install.args(["install", "--quiet", "--disable-pip-version-check", "numpy"]).arg(wheel);
    run::run_checked(&mut install, INSTALL_LIMIT)?;
    run_first_command(&folder)
}

/// Builds the wheel, and checks its size and its name.
fn check_wheel(environment: &Path, stage: &StagedBuild) -> CheckResult {
    let folder = scratch_folder("python-wheel")?;
    tools::recreate_folder(&folder)?;
    let mut build = pip(environment);
    build.args(["wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "./python", "-w"]);
    build.arg(&folder).env("LIBDIST_PREBUILT", &stage.lib);
    build.env("LIBDIST_LICENSES", licences::write(&scratch_folder("licences")?)?);
    run::run_checked(&mut build, INSTALL_LIMIT)?;
    let mut files = std::fs::read_dir(&folder).map_err(|cause| cause.to_string())?.flatten();
    let wheel = files.next().ok_or("pip has made no wheel")?;
    let name = wheel.file_name().to_string_lossy().into_owned();
    let size = wheel.metadata().map_err(|cause| cause.to_string())?.len();
    println!("{name}: {size} bytes");
    if !name.contains("-py3-none-") || name.ends_with("-any.whl") {
        return Err(format!("the wheel {name} is not for all versions of Python on one platform"));
    }
    if size > WHEEL_LIMIT {
        return Err(format!("the wheel has {size} bytes, and at most {WHEEL_LIMIT} are allowed"));
    }
    Ok(PASSED)
}

fn run_tests(environment: &Path) -> CheckResult {
    let mut tests = run::command(environment.join("bin/python"));
    tests.args(["-m", "unittest", "discover", "--start-directory"]);
    tests
        .arg(repository_root().join("python/tests"))
        .env("PATH", tools::search_path_with(&environment.join("bin"))?);
    // A file of Python's cache in the source would be a change of the working tree.
    tests.env("PYTHONDONTWRITEBYTECODE", "1");
    counted_result(&run::run_visibly(&mut tests, TEST_LIMIT)?, TestCounts::of_unittest)
}
