//! The plug-in for MPI, with each implementation that is installed: a short part of the conformance suite with one rank in
//! each process, what is beyond one count of MPI's, and a training under its launcher.

use super::report::{Checked, PASSED, Report, Verdict};
use crate::conformance::{self, Job};
use crate::examples::{TRAIN_DIGITS, Training};
use crate::mpi::{self, Mpi};
use crate::run;
use crate::tools;
use crate::workspace::{Stage, root, scratch};
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);

/// Calls of the covering part, on each number of ranks.
const CALLS: &str = "150";

pub(super) fn run(report: &mut Report, stage: &Stage) {
    for mpi in Mpi::ALL {
        let mut plugin = None;
        report.check(&format!("{}: the plug-in is built", mpi.title()), || {
            if let Err(reason) = mpi.compiler().and(mpi.launcher(1)) {
                return Ok(Verdict::Skipped(reason));
            }
            if !tools::has(tools::LIBCLANG) {
                return Ok(Verdict::Skipped(
                    "libclang is not installed; on Debian or Ubuntu: `apt-get install libclang-dev`".into(),
                ));
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
        report.check(&format!("{}: train_digits", mpi.title()), || built(&|_| train(mpi, stage)));
    }
}

fn conform(mpi: Mpi, plugin: &Path) -> Checked {
    let program = conformance::program(false)?;
    // Counts of more than 1000 elements are in pieces, as those are that no int can say.
    for (ranks, options) in [(1, ""), (2, ""), (3, ""), (2, "largest_count=1000")] {
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

/// A program in C that is linked with libdist and MPI, which it initialises or not.
fn behave(mpi: Mpi, stage: &Stage) -> Checked {
    let program = scratch("examples")?.join(format!("mpi_behaviour_{}", mpi.name()));
    let mut compiler = run::command(mpi.compiler()?);
    compiler.args(["-std=gnu99", "-O2", "-Wall", "-Wextra", "-Werror", "-I"]).arg(&stage.include);
    compiler.arg("-I").arg(root().join("ffi-tests/c"));
    compiler.arg(root().join("plugins/mpi/tests/behaviour.c")).arg("-o").arg(&program);
    compiler.arg("-L").arg(&stage.lib).arg(format!("-Wl,-rpath,{}", stage.lib.display()));
    run::must(compiler.args(["-ldist", "-lpthread"]), LIMIT)?;
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

/// The same result as with the native back end, under the same launcher; the plug-in is found beside the library.
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
