//! Checks of the MPI plug-in with each installed MPI implementation:
//!
//! * a short part of the conformance suite, with one process per rank;
//! * counts that exceed MPI's `int`;
//! * device memory, with stubs of CUDA;
//! * a training under the launcher of MPI.

use super::report::{CheckReport, CheckResult, CheckVerdict, PASSED};
use crate::conformance::{self, ConformanceJob};
use crate::examples::{self, TRAIN_DIGITS, TrainingResult};
use crate::mpi::{self, MpiLibrary};
use crate::run;
use crate::tools;
use crate::workspace::{StagedBuild, repository_root, scratch_folder};
use std::path::{Path, PathBuf};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);

/// The number of calls in the short part of the conformance suite, for each number of ranks.
const COVERING_CALLS: &str = "150";

pub(super) fn run(report: &mut CheckReport, stage: &StagedBuild) {
    for mpi in MpiLibrary::ALL {
        let mut plugin = None;
        report.run_check(&format!("{}: build of the plug-in", mpi.title()), || {
            if let Some(reason) = missing_requirement(mpi) {
                return Ok(CheckVerdict::Skipped(reason));
            }
            plugin = Some(mpi::build_plugin(mpi, &stage.lib)?);
            Ok(PASSED)
        });
        let built = |check: &dyn Fn(&Path) -> CheckResult| match &plugin {
            Some(plugin) => check(plugin),
            None => Ok(CheckVerdict::Skipped("the plug-in was not built".into())),
        };
        report.run_check(&format!("{}: conformance", mpi.title()), || {
            built(&|plugin| run_conformance(mpi, plugin))
        });
        report.run_check(&format!("{}: messages, groups, thread levels", mpi.title()), || {
            built(&|_| run_behaviour(mpi, stage))
        });
        report.run_check(&format!("{}: device memory", mpi.title()), || {
            built(&|_| run_device_programs(mpi, stage))
        });
        report.run_check(&format!("{}: train_digits", mpi.title()), || {
            built(&|_| compare_training(mpi, stage))
        });
    }
}

fn run_conformance(mpi: MpiLibrary, plugin: &Path) -> CheckResult {
    let program = conformance::build_suite(false)?;
    // The option `largest_count=1000` makes the plug-in split counts above 1000 elements, as it
    // splits counts that exceed an `int`. With `in_place=agreed`, a call is in place on all ranks
    // or on no rank.
    let agreed = "in_place=agreed";
    for (ranks, options) in
        [(1, ""), (2, ""), (3, ""), (2, "largest_count=1000"), (2, agreed), (3, agreed)]
    {
        let job = ConformanceJob {
            launcher: mpi.launcher(ranks)?,
            settings: vec![
                ("BACKEND", "mpi".to_owned()),
                ("PLUGIN", plugin.display().to_string()),
                ("OPTIONS", options.to_owned()),
                ("CALLS", COVERING_CALLS.to_owned()),
            ],
        };
        let finished = job.run(&program, LIMIT)?;
        if !finished.success() {
            return Err(format!(
                "{ranks} ranks, options \"{options}\": {}",
                finished.exit_description()
            ));
        }
    }
    Ok(PASSED)
}

/// Returns the missing requirement for a build and a run of the plug-in with an MPI implementation.
/// Returns `None` if nothing is missing.
pub(super) fn missing_requirement(mpi: MpiLibrary) -> Option<String> {
    if let Err(reason) = mpi.compiler().and(mpi.launcher(1)) {
        return Some(reason);
    }
    (!tools::has_program(tools::LIBCLANG)).then(|| {
        "libclang is not installed; on Debian or Ubuntu: `apt-get install libclang-dev`".to_owned()
    })
}

/// Tests a C program that links with libdist and MPI. The program initialises MPI itself, at
/// different thread levels, or lets libdist initialise it ("own").
fn run_behaviour(mpi: MpiLibrary, stage: &StagedBuild) -> CheckResult {
    let program = compile_behaviour(mpi, stage)?;
    for level in ["own", "multiple", "serialized", "funneled"] {
        run::run_checked(mpi.launcher(2)?.arg(&program).arg(level), LIMIT)?;
    }
    run::run_checked(mpi.launcher(3)?.arg(&program).arg("differ"), LIMIT)?;
    // In these modes the group fails, so libdist does not end MPI, and the launcher may end the
    // other ranks. So only the output counts.
    for (mode, ranks) in [("differ_detail", 3), ("late", 2), ("deadlock", 2)] {
        let failed = run::run_quietly(mpi.launcher(ranks)?.arg(&program).arg(mode), LIMIT)?;
        if failed.text.contains("does not hold") || !failed.text.contains("checks, 0 failed") {
            return Err(format!("the test \"{mode}\" failed: {}", failed.output_tail()));
        }
    }
    // Averages of large elements (ffi-tests/c/average.c).
    let averages = compile(mpi, stage, "average", "ffi-tests/c/average.c")?;
    for ranks in [1, 2, 4] {
        run::run_checked(mpi.launcher(ranks)?.arg(&averages).arg("mpi"), LIMIT)?;
    }
    check_wrong_launcher_refused(mpi, &program)
}

/// Runs the same test with an installed library. The library finds the plug-in in its own folder.
pub(super) fn run_behaviour_installed(mpi: MpiLibrary, include: &Path, lib: &Path) -> CheckResult {
    let stage = StagedBuild {
        include: include.into(),
        lib: lib.into(),
        distrun: PathBuf::from("not used"),
    };
    let program = compile_behaviour(mpi, &stage)?;
    for level in ["own", "multiple"] {
        run::run_checked(mpi.launcher(2)?.arg(&program).arg(level), LIMIT)?;
    }
    Ok(PASSED)
}

fn compile_behaviour(mpi: MpiLibrary, stage: &StagedBuild) -> Result<PathBuf, String> {
    compile(mpi, stage, "behaviour", "plugins/mpi/tests/behaviour.c")
}

/// Compiles a test program with the compiler of an MPI implementation.
fn compile(
    mpi: MpiLibrary,
    stage: &StagedBuild,
    name: &str,
    source: &str,
) -> Result<PathBuf, String> {
    let program = examples::program_folder()?.join(format!("mpi_{name}_{}", mpi.name()));
    let mut compiler = run::command(mpi.compiler()?);
    compiler.args(["-std=gnu99", "-O2", "-Wall", "-Wextra", "-Werror", "-I"]).arg(&stage.include);
    compiler.arg("-I").arg(repository_root().join("ffi-tests/c"));
    compiler.arg(repository_root().join(source)).arg("-o").arg(&program);
    compiler.arg("-L").arg(&stage.lib).arg(format!("-Wl,-rpath,{}", stage.lib.display()));
    run::run_checked(compiler.args(["-ldist", "-lpthread"]), LIMIT)?;
    Ok(program)
}

/// Checks that the plug-in reports a launcher of another MPI implementation.
fn check_wrong_launcher_refused(mpi: MpiLibrary, program: &Path) -> CheckResult {
    let other = MpiLibrary::ALL.into_iter().find(|&other| other != mpi);
    let Some(Ok(mut launcher)) = other.map(|other| other.launcher(2)) else { return Ok(PASSED) };
    let finished = run::run_quietly(launcher.arg(program).arg("own"), LIMIT)?;
    let is_launcher_named = finished.text.contains("and the loaded plug-in is for");
    if finished.success() || !is_launcher_named {
        return Err(format!(
            "the plug-in did not refuse the launcher of the other MPI: {}",
            finished.output_tail()
        ));
    }
    Ok(PASSED)
}

/// Runs programs with a stub of libcuda. The data goes through host memory, or through a stub of a
/// CUDA-aware MPI.
fn run_device_programs(mpi: MpiLibrary, stage: &StagedBuild) -> CheckResult {
    let stubs = scratch_folder("stubs_mpi")?;
    let sources = repository_root().join("ffi-tests");
    let mut build = run::command("sh");
    run::run_checked(build.arg(sources.join("stubs/build.sh")).arg(&stubs), LIMIT)?;
    let cuda_aware_stub = stubs.join(format!("libstub_mpi_cuda_{}.so", mpi.name()));
    let mut compiler = run::command(mpi.compiler()?);
    compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]);
    run::run_checked(compiler.arg(&cuda_aware_stub).arg(sources.join("stubs/mpi_cuda.c")), LIMIT)?;
    let device = compile_with_stubs(
        stage,
        &stubs,
        &repository_root().join("plugins/mpi/tests/device.c"),
        "mpi_device",
    )?;
    let operations = compile_with_stubs(
        stage,
        &stubs,
        &sources.join("nccl/operations.c"),
        "mpi_device_operations",
    )?;
    let job = |ranks: usize, takes: bool, program: &Path, words: &[&str]| {
        let log = stubs.join("misuse.log");
        drop(std::fs::remove_file(&log));
        let mut launcher = mpi.launcher(ranks)?;
        launcher.arg("env").arg(format!("DIST_STUB_LOG={}", log.display()));
        if takes {
            launcher.arg(format!("LD_PRELOAD={}", cuda_aware_stub.display()));
        }
        run::run_checked(launcher.arg(program).args(words), LIMIT)?;
        match std::fs::read_to_string(&log) {
            Ok(misuse) => Err(format!("the program misused the stubs: {misuse}")),
            Err(_) => Ok(()),
        }
    };
    for ranks in [1, 2, 3] {
        job(ranks, false, &device, &["staged"])?;
        job(ranks, false, &operations, &["job", "mpi"])?;
    }
    for ranks in [2, 4] {
        job(ranks, true, &device, &["direct"])?;
        job(ranks, true, &operations, &["job", "cpu:mpi,cuda:native"])?;
    }
    job(2, true, &device, &["asked_not_to"])?;
    Ok(PASSED)
}

/// Compiles a program whose ranks use the devices of the stub.
fn compile_with_stubs(
    stage: &StagedBuild,
    stubs: &Path,
    source: &Path,
    name: &str,
) -> Result<PathBuf, String> {
    let program = examples::program_folder()?.join(name);
    let sources = repository_root().join("ffi-tests");
    let mut compiler = run::command(tools::c_compiler()?);
    compiler.args(["-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    compiler.arg("-I").arg(&stage.include).arg("-I").arg(sources.join("c"));
    compiler.arg(source).arg(sources.join("nccl/ranks.c")).arg("-o").arg(&program);
    compiler.arg("-L").arg(&stage.lib).arg("-ldist");
    compiler.args(["libnccl.so.2", "libcuda.so.1"].map(|library| stubs.join(library)));
    for folder in [stage.lib.as_path(), stubs] {
        compiler.arg(format!("-Wl,-rpath,{}", folder.display()));
    }
    run::run_checked(compiler.arg("-lm"), LIMIT)?;
    Ok(program)
}

/// Compares the result of a training with the result of the native back end, under the same
/// launcher. The library finds the plug-in in its own folder.
fn compare_training(mpi: MpiLibrary, stage: &StagedBuild) -> CheckResult {
    let program = TRAIN_DIGITS.compile(stage)?;
    let training = |backend: &str| {
        let mut launcher = mpi.launcher(2)?;
        launcher.arg(&program).args(["--backend", backend]);
        TrainingResult::parse_output(&run::run_checked(&mut launcher, LIMIT)?.text)
    };
    let (over_mpi, native) = (training("mpi")?, training("native")?);
    if over_mpi.result != native.result {
        return Err(format!("\"{}\" over MPI, \"{}\" without", over_mpi.result, native.result));
    }
    println!("{}", over_mpi.result);
    Ok(PASSED)
}
