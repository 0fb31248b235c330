//! Checks of projects that use libdist. The projects use the installed package through CMake,
//! pkg-config or dlopen, or they build libdist as a part of themselves. The C tests also run here.
//!
//! After the installation, the test moves the installed files to another folder. So it fails if a
//! file contains the path where it was built or installed.

use super::counts::TestCounts;
use super::mpi;
use super::report::{CheckReport, CheckResult, CheckVerdict, PASSED};
use super::rust::counted_result;
use crate::mpi::MpiLibrary;
use crate::workspace::{StagedBuild, repository_root, scratch_folder, target_folder};
use crate::{package, run, tools};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(900);

pub(super) fn run(report: &mut CheckReport, stage: &StagedBuild) {
    let mut prefix = None;
    report.run_check("install through CMake", || match missing_programs(&["cmake", "make"]) {
        Some(reason) => Ok(CheckVerdict::Skipped(reason)),
        None => {
            prefix = Some(install()?);
            Ok(PASSED)
        }
    });
    report.run_check("installed: manual pages, completions, documents", || match &prefix {
        Some(prefix) => check_documents(prefix),
        None => Ok(CheckVerdict::Skipped("the installed tree does not exist".into())),
    });
    let installed = |check: &dyn Fn(&Path) -> CheckResult| match &prefix {
        Some(prefix) => check(prefix),
        None => Ok(CheckVerdict::Skipped("the installed tree does not exist".into())),
    };
    report.run_check("consumer: CMake, shared and static", || {
        installed(&|prefix| find_package("ffi-tests/consumer/cmake", prefix, stage))
    });
    report.run_check("consumer: CMake, C++", || {
        installed(&|prefix| find_package_cxx("ffi-tests/consumer/cxx", prefix, stage))
    });
    for (title, project) in
        [("add_subdirectory", "subdirectory"), ("FetchContent", "fetch_content")]
    {
        report.run_check(&format!("consumer: {title}"), || {
            build_tree(&format!("ffi-tests/consumer/{project}"), stage)
        });
    }
    report.run_check("consumer: pkg-config", || {
        installed(&|prefix| run_pkg_config_consumer(ConsumerLanguage::C, prefix, stage))
    });
    report.run_check("consumer: pkg-config, C++", || {
        installed(&|prefix| run_pkg_config_consumer(ConsumerLanguage::Cxx, prefix, stage))
    });
    report.run_check("consumer: dlopen from Python", || {
        installed(&|prefix| run_dlopen_consumer(prefix, stage))
    });
    for mpi in MpiLibrary::ALL {
        report.run_check(&format!("installed: the plug-in for {}", mpi.title()), || {
            installed(&|prefix| run_installed_plugin(mpi, prefix))
        });
    }
    report.run_check("examples as a CMake project", || {
        installed(&|prefix| find_package_cxx("c-examples", prefix, stage))
    });
    report.run_check("package: archive", || match missing_programs(&["cmake", "make", "tar"]) {
        Some(reason) => Ok(CheckVerdict::Skipped(reason)),
        None => package::check_tarball().map(|()| PASSED),
    });
    report
        .run_check("C tests", || installed(&|prefix| find_package_cxx("ffi-tests", prefix, stage)));
}

/// Uses an installed package in C through CMake and pkg-config, and in Python through dlopen.
/// Prints the reason for each of them that this machine cannot run.
pub(crate) fn use_installed(prefix: &Path, stage: &StagedBuild) -> Result<(), String> {
    let checks: [(&str, CheckResult); 3] = [
        ("CMake", find_package("ffi-tests/consumer/cmake", prefix, stage)),
        ("pkg-config", run_pkg_config_consumer(ConsumerLanguage::C, prefix, stage)),
        ("dlopen", run_dlopen_consumer(prefix, stage)),
    ];
    for (title, result) in checks {
        match result.map_err(|problem| format!("{title}: {problem}"))? {
            CheckVerdict::Skipped(reason) => println!("{title}: skipped: {reason}"),
            CheckVerdict::Ran { counts, failed } if counts.failed > 0 => {
                return Err(format!(
                    "{title}: {} tests failed: {}",
                    counts.failed,
                    failed.join(", ")
                ));
            }
            CheckVerdict::Ran { .. } => println!("{title}: passed"),
        }
    }
    Ok(())
}

/// Returns a text that names the programs that are missing, or `None` if all are present.
fn missing_programs(programs: &[&str]) -> Option<String> {
    let absent: Vec<&str> =
        programs.iter().copied().filter(|name| !tools::has_program(name)).collect();
    (!absent.is_empty()).then(|| format!("not installed: {}", absent.join(", ")))
}

/// Configures, builds and installs libdist as docs/install.md describes, and moves the installed
/// files. Returns their new folder.
fn install() -> Result<PathBuf, String> {
    let (build, first, moved) = (
        scratch_folder("cmake")?,
        scratch_folder("installed")?,
        scratch_folder("moved")?.join("dist"),
    );
    tools::recreate_folder(&build)?;
    tools::recreate_folder(&first)?;
    tools::recreate_folder(&scratch_folder("moved")?)?;
    let mut configure = run::command("cmake");
    configure.arg("-S").arg(repository_root()).arg("-B").arg(&build);
    // Let CMake use cargo's target folder, so that the release build of the other checks is used
    // again.
    configure.arg(format!("-DDIST_CARGO_TARGET_DIR={}", target_folder()?.display()));
    if MpiLibrary::ALL.into_iter().any(|mpi| mpi::missing_requirement(mpi).is_none()) {
        configure.arg("-DDIST_MPI=ON");
    }
    run::run_checked(&mut configure, LIMIT)?;
    run::run_checked(run::command("cmake").arg("--build").arg(&build), LIMIT)?;
    let mut install = run::command("cmake");
    run::run_checked(install.arg("--install").arg(&build).arg("--prefix").arg(&first), LIMIT)?;
    std::fs::rename(&first, &moved)
        .map_err(|cause| format!("cannot move the installed tree: {cause}"))?;
    Ok(moved)
}

/// Files of the documents, one of each kind.
const DOCUMENT_FILES: &[&str] = &[
    "man/man1/distrun.1",
    "man/man1/dist-store-get.1",
    "man/man3/dist_all_reduce.3",
    "man/man3/libdist.3",
    "bash-completion/completions/distrun",
    "zsh/site-functions/_dist-bench",
    "fish/vendor_completions.d/dist-doctor.fish",
    "doc/dist/LICENSE",
    "doc/dist/README.md",
    "doc/dist/docs/tutorial.md",
    "doc/dist/docs/reference/index.md",
];

/// Checks that the documents are installed.
fn check_documents(prefix: &Path) -> CheckResult {
    let share = prefix.join("share");
    let missing: Vec<&str> =
        DOCUMENT_FILES.iter().copied().filter(|name| !share.join(name).is_file()).collect();
    match missing.as_slice() {
        [] => Ok(PASSED),
        missing => Err(format!("not installed: {}", missing.join(", "))),
    }
}

/// Tests a project that uses the installed package.
fn find_package(source: &str, prefix: &Path, stage: &StagedBuild) -> CheckResult {
    let build = project_folder(source)?;
    cmake_project(source, &build, &format!("CMAKE_PREFIX_PATH={}", prefix.display()), stage)
}

/// Tests a project that needs a C++ compiler and uses the installed package.
fn find_package_cxx(source: &str, prefix: &Path, stage: &StagedBuild) -> CheckResult {
    match missing_programs(&["c++"]) {
        Some(reason) => Ok(CheckVerdict::Skipped(reason)),
        None => find_package(source, prefix, stage),
    }
}

/// Tests a project that builds libdist as a part of itself. Its installation must not contain files
/// of libdist.
fn build_tree(source: &str, stage: &StagedBuild) -> CheckResult {
    if let Some(reason) = missing_programs(&["cmake", "make", "c++"]) {
        return Ok(CheckVerdict::Skipped(reason));
    }
    let build = project_folder(source)?;
    // Let CMake use cargo's target folder, which contains the release build of the other checks.
    let setting = format!("DIST_CARGO_TARGET_DIR={}", target_folder()?.display());
    let verdict = cmake_project(source, &build, &setting, stage)?;
    let prefix = build.join("installed");
    let mut install = run::command("cmake");
    run::run_checked(install.arg("--install").arg(&build).arg("--prefix").arg(&prefix), LIMIT)?;
    if prefix.exists() {
        return Err(format!("{source} installs files of libdist"));
    }
    Ok(verdict)
}

/// Returns the empty folder in which a project is built.
fn project_folder(source: &str) -> Result<PathBuf, String> {
    let build = scratch_folder("projects")?.join(source.replace('/', "-"));
    tools::recreate_folder(&build)?;
    Ok(build)
}

/// Configures, builds and tests a project with one CMake variable set.
fn cmake_project(source: &str, build: &Path, setting: &str, stage: &StagedBuild) -> CheckResult {
    let mut configure = run::command("cmake");
    configure
        .arg("-S")
        .arg(repository_root().join(source))
        .arg("-B")
        .arg(build)
        .arg(format!("-D{setting}"));
    run::run_checked(&mut configure, LIMIT)?;
    run::run_checked(run::command("cmake").arg("--build").arg(build), LIMIT)?;
    let mut ctest = run::command("ctest");
    ctest.arg("--output-on-failure").current_dir(build);
    ctest.env("DISTRUN", &stage.distrun);
    counted_result(&run::run_visibly(&mut ctest, LIMIT)?, TestCounts::of_ctest)
}

/// Runs a program that requests the MPI back end, under the launcher of MPI. The program uses only
/// installed files.
fn run_installed_plugin(mpi: MpiLibrary, prefix: &Path) -> CheckResult {
    if let Some(reason) = mpi::missing_requirement(mpi) {
        return Ok(CheckVerdict::Skipped(reason));
    }
    let name = format!("libdist_mpi_{}.so", mpi.name());
    let folders = ["lib", "lib64"].map(|folder| prefix.join(folder));
    let lib = folders.iter().find(|folder| folder.join(&name).exists());
    let lib = lib.ok_or_else(|| format!("{name} is not installed in the folder of the library"))?;
    mpi::run_behaviour_installed(mpi, &prefix.join("include"), lib)
}

/// The language of a consumer that is built through pkg-config.
#[derive(Clone, Copy)]
enum ConsumerLanguage {
    C,
    Cxx,
}

fn run_pkg_config_consumer(
    language: ConsumerLanguage,
    prefix: &Path,
    stage: &StagedBuild,
) -> CheckResult {
    let (name, needed): (_, &[&str]) = match language {
        ConsumerLanguage::C => ("c", &["pkg-config"]),
        ConsumerLanguage::Cxx => ("cxx", &["pkg-config", "c++"]),
    };
    if let Some(reason) = missing_programs(needed) {
        return Ok(CheckVerdict::Skipped(reason));
    }
    let out = project_folder(&format!("pkg-config-{name}"))?;
    let mut build = run::command(repository_root().join("ffi-tests/consumer/pkgconfig/build.sh"));
    build.arg(prefix).arg(&out).arg(name).env("CC", tools::c_compiler()?);
    run::run_checked(&mut build, LIMIT)?;
    for program in ["shared", "static"] {
        run_on_two_ranks(stage, Command::new(out.join(program)))?;
    }
    let counts = TestCounts { passed: 2, ..TestCounts::default() };
    Ok(CheckVerdict::Ran { counts, failed: Vec::new() })
}

fn run_dlopen_consumer(prefix: &Path, stage: &StagedBuild) -> CheckResult {
    let Some(python) = tools::find_program("python3") else {
        return Ok(CheckVerdict::Skipped("not installed: python3".into()));
    };
    let mut script = Command::new(python);
    script.arg(repository_root().join("ffi-tests/consumer/dlopen/all_reduce.py")).arg(prefix);
    run_on_two_ranks(stage, script)?;
    Ok(PASSED)
}

/// Runs a program with its arguments on two ranks. Both ranks must succeed.
fn run_on_two_ranks(stage: &StagedBuild, program: Command) -> Result<(), String> {
    let mut launcher = run::command(&stage.distrun);
    launcher.args(["--nproc-per-node", "2"]).arg(program.get_program()).args(program.get_args());
    let finished = run::run_checked(&mut launcher, LIMIT)?;
    print!("{}", finished.text);
    Ok(())
}
