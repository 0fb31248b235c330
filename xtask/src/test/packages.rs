//! Projects that use libdist: the installed package through CMake, pkg-config and dlopen, the C
//! tests, and projects that build libdist as a part of themselves.
//!
//! The tree is moved after installation, so that nothing in it may name the place where it was
//! built or installed.

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
        installed(&|prefix| find_package("ffi-tests/consumer/cmake", prefix, stage))
    });
    report.check("consumer: CMake, C++", || {
        installed(&|prefix| find_package_cxx("ffi-tests/consumer/cxx", prefix, stage))
    });
    for (title, project) in
        [("add_subdirectory", "subdirectory"), ("FetchContent", "fetch_content")]
    {
        report.check(&format!("consumer: {title}"), || {
            build_tree(&format!("ffi-tests/consumer/{project}"), stage)
        });
    }
    report.check("consumer: pkg-config", || {
        installed(&|prefix| pkg_config(Language::C, prefix, stage))
    });
    report.check("consumer: pkg-config, C++", || {
        installed(&|prefix| pkg_config(Language::Cxx, prefix, stage))
    });
    report.check("consumer: dlopen from Python", || installed(&|prefix| dlopen(prefix, stage)));
    for mpi in Mpi::ALL {
        report.check(&format!("installed: the plug-in for {}", mpi.title()), || {
            installed(&|prefix| plugin(mpi, prefix))
        });
    }
    report.check("examples as a CMake project", || {
        installed(&|prefix| find_package_cxx("c-examples", prefix, stage))
    });
    report.check("C tests", || installed(&|prefix| find_package_cxx("ffi-tests", prefix, stage)));
}

/// Why a check cannot run without these programs.
fn missing(programs: &[&str]) -> Option<String> {
    let absent: Vec<&str> = programs.iter().copied().filter(|name| !tools::has(name)).collect();
    (!absent.is_empty()).then(|| format!("not installed: {}", absent.join(", ")))
}

/// Configures, builds and installs as docs/install.md says, and moves the result.
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

/// Tests a project that uses the installed package.
fn find_package(source: &str, prefix: &Path, stage: &Stage) -> Checked {
    let build = project_folder(source)?;
    cmake_project(source, &build, &format!("CMAKE_PREFIX_PATH={}", prefix.display()), stage)
}

/// The same for a project that needs a C++ compiler.
fn find_package_cxx(source: &str, prefix: &Path, stage: &Stage) -> Checked {
    match missing(&["c++"]) {
        Some(reason) => Ok(Verdict::Skipped(reason)),
        None => find_package(source, prefix, stage),
    }
}

/// Tests a project that builds libdist as a part of itself, and that thus installs nothing of
/// libdist.
fn build_tree(source: &str, stage: &Stage) -> Checked {
    if let Some(reason) = missing(&["cmake", "make", "c++"]) {
        return Ok(Verdict::Skipped(reason));
    }
    let build = project_folder(source)?;
    // Cargo finds the release build of the other checks there.
    let setting = format!("DIST_CARGO_TARGET_DIR={}", target()?.display());
    let verdict = cmake_project(source, &build, &setting, stage)?;
    let prefix = build.join("installed");
    let mut install = run::command("cmake");
    run::must(install.arg("--install").arg(&build).arg("--prefix").arg(&prefix), LIMIT)?;
    if prefix.exists() {
        return Err(format!("{source} installs files of libdist"));
    }
    Ok(verdict)
}

/// The empty folder in which a project is built.
fn project_folder(source: &str) -> Result<PathBuf, String> {
    let build = scratch("projects")?.join(source.replace('/', "-"));
    tools::fresh_folder(&build)?;
    Ok(build)
}

/// Configures, builds and tests a project with one CMake variable set.
fn cmake_project(source: &str, build: &Path, setting: &str, stage: &Stage) -> Checked {
    let mut configure = run::command("cmake");
    configure.arg("-S").arg(root().join(source)).arg("-B").arg(build).arg(format!("-D{setting}"));
    run::must(&mut configure, LIMIT)?;
    run::must(run::command("cmake").arg("--build").arg(build), LIMIT)?;
    let mut ctest = run::command("ctest");
    ctest.arg("--output-on-failure").current_dir(build);
    ctest.env("DISTRUN", &stage.distrun);
    counted(&run::shown(&mut ctest, LIMIT)?, Counts::of_ctest)
}

/// A program that asks for the back end over MPI, under its launcher, with nothing but the
/// installed tree.
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

/// The language of a consumer that is built through pkg-config.
#[derive(Clone, Copy)]
enum Language {
    C,
    Cxx,
}

fn pkg_config(language: Language, prefix: &Path, stage: &Stage) -> Checked {
    let (name, needed): (_, &[&str]) = match language {
        Language::C => ("c", &["pkg-config"]),
        Language::Cxx => ("cxx", &["pkg-config", "c++"]),
    };
    if let Some(reason) = missing(needed) {
        return Ok(Verdict::Skipped(reason));
    }
    let out = project_folder(&format!("pkg-config-{name}"))?;
    let mut build = run::command(root().join("ffi-tests/consumer/pkgconfig/build.sh"));
    build.arg(prefix).arg(&out).arg(name).env("CC", tools::c_compiler()?);
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
