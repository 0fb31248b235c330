//! The installed package, used from outside: CMake, pkg-config, dlopen, and the C tests.
//!
//! The tree is moved after installation, so that nothing in it may name the place where it was built or installed.

use super::counts::Counts;
use super::mpi;
use super::report::{Checked, PASSED, Report, Verdict};
use super::rust::counted;
use crate::mpi::Mpi;
use crate::workspace::{Stage, root, scratch, target};
use crate::{run, tools};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(900);

pub(super) fn run(report: &mut Report, stage: &Stage) {
    let mut prefix = None;
    report.check("install through CMake", || match missing(&["cmake", "make"]) {
        Some(reason) => Ok(Verdict::Skipped(reason)),
        None => {
            prefix = Some(install()?);
            Ok(PASSED)
        }
    });
    let installed = |check: &dyn Fn(&Path) -> Checked| match &prefix {
        Some(prefix) => check(prefix),
        None => Ok(Verdict::Skipped("there is no installed tree".into())),
    };
    report.check("consumer: CMake, shared and static", || {
        installed(&|prefix| cmake_project("ffi-tests/consumer/cmake", prefix, stage))
    });
    report.check("consumer: pkg-config", || installed(&|prefix| pkg_config(prefix, stage)));
    report.check("consumer: dlopen from Python", || installed(&|prefix| dlopen(prefix, stage)));
    for mpi in Mpi::ALL {
        report.check(&format!("installed: the plug-in for {}", mpi.title()), || {
            installed(&|prefix| plugin(mpi, prefix))
        });
    }
    report.check("examples as a CMake project", || {
        installed(&|prefix| cmake_project("c-examples", prefix, stage))
    });
    report.check("C tests", || {
        if let Some(reason) = missing(&["c++"]) {
            return Ok(Verdict::Skipped(reason));
        }
        installed(&|prefix| cmake_project("ffi-tests", prefix, stage))
    });
}

/// Why a check cannot run without these programs.
fn missing(programs: &[&str]) -> Option<String> {
    let absent: Vec<&str> = programs.iter().copied().filter(|name| !tools::has(name)).collect();
    (!absent.is_empty()).then(|| format!("not installed: {}", absent.join(", ")))
}

/// Configures, builds and installs as README says, and moves the result.
fn install() -> Result<PathBuf, String> {
    let (build, first, moved) =
        (scratch("cmake")?, scratch("installed")?, scratch("moved")?.join("dist"));
    tools::fresh_folder(&build)?;
    tools::fresh_folder(&first)?;
    tools::fresh_folder(&scratch("moved")?)?;
    let mut configure = run::command("cmake");
    configure.arg("-S").arg(root()).arg("-B").arg(&build);
    // Cargo's usual target folder, so that the release build is not made twice.
    configure.arg(format!("-DDIST_CARGO_TARGET_DIR={}", target()?.display()));
    if Mpi::ALL.into_iter().any(|mpi| mpi::missing(mpi).is_none()) {
        configure.arg("-DDIST_MPI=ON");
    }
    run::must(&mut configure, LIMIT)?;
    run::must(run::command("cmake").arg("--build").arg(&build), LIMIT)?;
    let mut install = run::command("cmake");
    run::must(install.arg("--install").arg(&build).arg("--prefix").arg(&first), LIMIT)?;
    std::fs::rename(&first, &moved).map_err(|cause| format!("moving the tree: {cause}"))?;
    Ok(moved)
}

/// Configures, builds and tests a project that uses the installed package.
fn cmake_project(source: &str, prefix: &Path, stage: &Stage) -> Checked {
    let build = scratch("projects")?.join(source.replace('/', "-"));
    tools::fresh_folder(&build)?;
    let mut configure = run::command("cmake");
    configure.arg("-S").arg(root().join(source)).arg("-B").arg(&build);
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
    run::must(&mut configure, LIMIT)?;
    run::must(run::command("cmake").arg("--build").arg(&build), LIMIT)?;
    let mut ctest = run::command("ctest");
    ctest.arg("--output-on-failure").current_dir(&build);
    ctest.env("DISTRUN", &stage.distrun);
    counted(&run::shown(&mut ctest, LIMIT)?, Counts::of_ctest)
}

/// A program that asks for the back end over MPI, under its launcher, with nothing but the installed tree.
fn plugin(mpi: Mpi, prefix: &Path) -> Checked {
    if let Some(reason) = mpi::missing(mpi) {
        return Ok(Verdict::Skipped(reason));
    }
    let name = format!("libdist_mpi_{}.so", mpi.name());
    let folders = ["lib", "lib64"].map(|folder| prefix.join(folder));
    let lib = folders.iter().find(|folder| folder.join(&name).exists());
    let lib = lib.ok_or_else(|| format!("{name} was not installed beside the library"))?;
    mpi::behave_installed(mpi, &prefix.join("include"), lib)
}

fn pkg_config(prefix: &Path, stage: &Stage) -> Checked {
    if let Some(reason) = missing(&["pkg-config"]) {
        return Ok(Verdict::Skipped(reason));
    }
    let out = scratch("projects")?.join("pkg-config");
    tools::fresh_folder(&out)?;
    let mut build = run::command(root().join("ffi-tests/consumer/pkgconfig/build.sh"));
    build.arg(prefix).arg(&out).env("CC", tools::c_compiler()?);
    run::must(&mut build, LIMIT)?;
    for program in ["shared", "static"] {
        two_ranks(stage, Command::new(out.join(program)))?;
    }
    Ok(Verdict::Passed(Counts { passed: 2, ..Counts::default() }))
}

fn dlopen(prefix: &Path, stage: &Stage) -> Checked {
    let Some(python) = tools::find("python3") else {
        return Ok(Verdict::Skipped("not installed: python3".into()));
    };
    let mut script = Command::new(python);
    script.arg(root().join("ffi-tests/consumer/dlopen/all_reduce.py")).arg(prefix);
    two_ranks(stage, script)?;
    Ok(PASSED)
}

/// Runs a program and its arguments on two ranks, which must end well.
fn two_ranks(stage: &Stage, program: Command) -> Result<(), String> {
    let mut launcher = run::command(&stage.distrun);
    launcher.args(["--nproc-per-node", "2"]).arg(program.get_program()).args(program.get_args());
    let finished = run::must(&mut launcher, LIMIT)?;
    print!("{}", finished.text);
    Ok(())
}
