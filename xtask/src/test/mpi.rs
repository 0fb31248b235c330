//! The plug-in for MPI, with each implementation that is installed: a short part of the conformance
//! suite with one rank in each process, what is beyond one count of MPI's, the memory of devices
//! over stubs, and a training under its launcher.

use super::report::{Checked, PASSED, Report, Verdict};
use crate::conformance::{self, Job};
use crate::examples::{self, TRAIN_DIGITS, Training};
use crate::mpi::{self, Mpi};
use crate::run;
use crate::tools;
use crate::workspace::{Stage, root, scratch};
use std::path::{Path, PathBuf};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);

/// Calls of the covering part, on each number of ranks.
const CALLS: &str = "150";

pub(super) fn run(report: &mut Report, stage: &Stage) {
    for mpi in Mpi::ALL {
        let mut plugin = None;
        report.check(&format!("{}: the plug-in is built", mpi.title()), || {
            if let Some(reason) = missing(mpi) {
                return Ok(Verdict::Skipped(reason));
            }
            plugin = Some(mpi::build(mpi, &stage.lib)?);
            Ok(PASSED)
        });
        let built = |check: &dyn Fn(&Path) -> Checked| match &plugin {
            Some(plugin) => check(plugin),
            None => Ok(Verdict::Skipped("there is no plug-in".into())),
        };
        report.check(&format!("{}: conformance", mpi.title()), || {
            built(&|plugin| conform(mpi, plugin))
        });
        report.check(&format!("{}: messages, groups, thread levels", mpi.title()), || {
            built(&|_| behave(mpi, stage))
        });
        report.check(&format!("{}: the memory of devices", mpi.title()), || {
            built(&|_| devices(mpi, stage))
        });
        report.check(&format!("{}: train_digits", mpi.title()), || built(&|_| train(mpi, stage)));
    }
}

fn conform(mpi: Mpi, plugin: &Path) -> Checked {
    let program = conformance::program(false)?;
    // Counts of more than 1000 elements are in pieces, as those are that no int can say.
    // The suite is in place on all ranks or on none.
    let agreed = "in_place=agreed";
    for (ranks, options) in
        [(1, ""), (2, ""), (3, ""), (2, "largest_count=1000"), (2, agreed), (3, agreed)]
    {
        let job = Job {
            launcher: mpi.launcher(ranks)?,
            settings: vec![
                ("BACKEND", "mpi".to_owned()),
                ("PLUGIN", plugin.display().to_string()),
                ("OPTIONS", options.to_owned()),
                ("CALLS", CALLS.to_owned()),
            ],
        };
        let finished = job.run(&program, LIMIT)?;
        if !finished.success() {
            return Err(format!("{ranks} ranks, options \"{options}\": {}", finished.ending()));
        }
    }
    Ok(PASSED)
}

/// Whether there is all that is needed to build the plug-in for an MPI and to run with it; else
/// what is not.
pub(super) fn missing(mpi: Mpi) -> Option<String> {
    if let Err(reason) = mpi.compiler().and(mpi.launcher(1)) {
        return Some(reason);
    }
    (!tools::has(tools::LIBCLANG)).then(|| {
        "libclang is not installed; on Debian or Ubuntu: `apt-get install libclang-dev`".to_owned()
    })
}

/// A program in C that is linked with libdist and MPI, which it initialises or not.
fn behave(mpi: Mpi, stage: &Stage) -> Checked {
    let program = behaviour(mpi, stage)?;
    for level in ["own", "multiple", "serialized", "funneled"] {
        run::must(mpi.launcher(2)?.arg(&program).arg(level), LIMIT)?;
    }
    // Its launcher may end the other ranks as soon as one has gone.
    let late = run::quiet(mpi.launcher(2)?.arg(&program).arg("late"), LIMIT)?;
    if late.text.contains("does not hold") || !late.text.contains("checks, 0 failed") {
        return Err(format!("a rank that does not come: {}", late.tail()));
    }
    refused_by_the_other(mpi, &program)
}

/// The same with a library that was installed, which finds the plug-in beside itself.
pub(super) fn behave_installed(mpi: Mpi, include: &Path, lib: &Path) -> Checked {
    let stage =
        Stage { include: include.into(), lib: lib.into(), distrun: PathBuf::from("not used") };
    let program = behaviour(mpi, &stage)?;
    for level in ["own", "multiple"] {
        run::must(mpi.launcher(2)?.arg(&program).arg(level), LIMIT)?;
    }
    Ok(PASSED)
}

fn behaviour(mpi: Mpi, stage: &Stage) -> Result<PathBuf, String> {
    let program = examples::folder()?.join(format!("mpi_behaviour_{}", mpi.name()));
    let mut compiler = run::command(mpi.compiler()?);
    compiler.args(["-std=gnu99", "-O2", "-Wall", "-Wextra", "-Werror", "-I"]).arg(&stage.include);
    compiler.arg("-I").arg(root().join("ffi-tests/c"));
    compiler.arg(root().join("plugins/mpi/tests/behaviour.c")).arg("-o").arg(&program);
    compiler.arg("-L").arg(&stage.lib).arg(format!("-Wl,-rpath,{}", stage.lib.display()));
    run::must(compiler.args(["-ldist", "-lpthread"]), LIMIT)?;
    Ok(program)
}

/// Under the launcher of the other family the plug-in says so.
fn refused_by_the_other(mpi: Mpi, program: &Path) -> Checked {
    let other = Mpi::ALL.into_iter().find(|&other| other != mpi);
    let Some(Ok(mut launcher)) = other.map(|other| other.launcher(2)) else { return Ok(PASSED) };
    let finished = run::quiet(launcher.arg(program).arg("own"), LIMIT)?;
    let told = finished.text.contains("was started by the launcher of");
    if finished.success() || !told {
        return Err(format!("the launcher of the other MPI is not refused: {}", finished.tail()));
    }
    Ok(PASSED)
}

/// Over the stub of libcuda: by way of host memory, and given to an MPI that takes it, which is a
/// stub as well.
fn devices(mpi: Mpi, stage: &Stage) -> Checked {
    let stubs = scratch("stubs_mpi")?;
    let sources = root().join("ffi-tests");
    let mut build = run::command("sh");
    run::must(build.arg(sources.join("stubs/build.sh")).arg(&stubs), LIMIT)?;
    let taker = stubs.join(format!("libstub_mpi_cuda_{}.so", mpi.name()));
    let mut compiler = run::command(mpi.compiler()?);
    compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]);
    run::must(compiler.arg(&taker).arg(sources.join("stubs/mpi_cuda.c")), LIMIT)?;
    let device =
        with_stubs(stage, &stubs, &root().join("plugins/mpi/tests/device.c"), "mpi_device")?;
    let operations =
        with_stubs(stage, &stubs, &sources.join("nccl/operations.c"), "mpi_device_operations")?;
    let job = |ranks: usize, takes: bool, program: &Path, words: &[&str]| {
        let log = stubs.join("misuse.log");
        drop(std::fs::remove_file(&log));
        let mut launcher = mpi.launcher(ranks)?;
        launcher.arg("env").arg(format!("DIST_STUB_LOG={}", log.display()));
        if takes {
            launcher.arg(format!("LD_PRELOAD={}", taker.display()));
        }
        run::must(launcher.arg(program).args(words), LIMIT)?;
        match std::fs::read_to_string(&log) {
            Ok(misuse) => Err(format!("the stubs were misused: {misuse}")),
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

/// A program of ranks on the devices of the stub.
fn with_stubs(stage: &Stage, stubs: &Path, source: &Path, name: &str) -> Result<PathBuf, String> {
    let program = examples::folder()?.join(name);
    let sources = root().join("ffi-tests");
    let mut compiler = run::command(tools::c_compiler()?);
    compiler.args(["-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    compiler.arg("-I").arg(&stage.include).arg("-I").arg(sources.join("c"));
    compiler.arg(source).arg(sources.join("nccl/ranks.c")).arg("-o").arg(&program);
    compiler.arg("-L").arg(&stage.lib).arg("-ldist");
    compiler.args(["libnccl.so.2", "libcuda.so.1"].map(|library| stubs.join(library)));
    for folder in [stage.lib.as_path(), stubs] {
        compiler.arg(format!("-Wl,-rpath,{}", folder.display()));
    }
    run::must(compiler.arg("-lm"), LIMIT)?;
    Ok(program)
}

/// The same result as with the native back end, under the same launcher; the plug-in is found
/// beside the library.
fn train(mpi: Mpi, stage: &Stage) -> Checked {
    let program = TRAIN_DIGITS.compile(stage)?;
    let training = |backend: &str| {
        let mut launcher = mpi.launcher(2)?;
        launcher.arg(&program).args(["--backend", backend]);
        Training::read(&run::must(&mut launcher, LIMIT)?.text)
    };
    let (over_mpi, native) = (training("mpi")?, training("native")?);
    if over_mpi.result != native.result {
        return Err(format!("\"{}\" over MPI, \"{}\" without", over_mpi.result, native.result));
    }
    println!("{}", over_mpi.result);
    Ok(PASSED)
}
