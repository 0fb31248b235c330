//! `cargo xtask interop`: the trainer under other projects' launchers.
//!
//! torchrun, Open MPI and MPICH each start `train_digits` with their own environment, and each must reach the very
//! result that it reaches under distrun. torch is downloaded into a private environment (`.interop`), since its launcher
//! is all that is wanted of it.

use crate::examples::{TRAIN_DIGITS, Training, distrun};
use crate::tools::{self, Tool};
use crate::{Arguments, Outcome, run, workspace};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const RANKS: &str = "4";
const RUN_LIMIT: Duration = Duration::from_secs(300);
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(3600);

const NEEDED: &[Tool] = &[
    Tool { program: "python3", package: "python3-venv", purpose: "torchrun" },
    Tool { program: "mpirun.openmpi", package: "openmpi-bin", purpose: "Open MPI's launcher" },
    Tool { program: "mpiexec.mpich", package: "mpich", purpose: "MPICH's launcher" },
];

/// Runs the command.
pub(crate) fn main(rest: &[String]) -> Outcome {
    let mut arguments = Arguments::new(rest);
    let venv = arguments.value("--venv")?.map(PathBuf::from);
    let may_install = !arguments.flag("--no-install");
    arguments.finish()?;

    tools::provide(NEEDED, may_install);
    let stage = workspace::release()?;
    let program = TRAIN_DIGITS.compile(&stage)?;
    let expected = train(&mut distrun(&stage, 4, &program))?;
    println!("distrun    ok       {}", expected.result);

    let mut tally = (0, 0, 0);
    for (name, launcher) in [
        ("torchrun", torchrun(venv, &program)),
        ("Open MPI", open_mpi(&program)),
        ("MPICH", mpich(&program)),
    ] {
        let mut command = match launcher {
            Ok(command) => command,
            Err(reason) => {
                println!("{name:<10} skipped  {reason}");
                tally.2 += 1;
                continue;
            }
        };
        match train(&mut command) {
            Ok(training) if training == expected => {
                println!("{name:<10} ok       {}", training.result);
                tally.0 += 1;
            }
            Ok(training) => {
                let distance = training.distance(&expected);
                println!("{name:<10} FAILED   {} (losses differ by {distance})", training.result);
                tally.1 += 1;
            }
            Err(problem) => {
                println!("{name:<10} FAILED   {problem}");
                tally.1 += 1;
            }
        }
    }
    println!("{} passed, {} failed, {} skipped", tally.0, tally.1, tally.2);
    Ok(tally.1 == 0)
}

fn train(command: &mut Command) -> Result<Training, String> {
    let finished = run::must(command, RUN_LIMIT)?;
    Training::read(&finished.text)
}

/// torchrun of the user's environment, or of our own.
fn torchrun(venv: Option<PathBuf>, program: &Path) -> Result<Command, String> {
    let folder = match venv {
        Some(folder) => folder,
        None => private_environment()?,
    };
    let torchrun = folder.join("bin/torchrun");
    if !torchrun.is_file() {
        return Err(format!("{} does not exist", torchrun.display()));
    }
    let mut command = run::command(torchrun);
    command.args(["--standalone", "--nproc-per-node", RANKS, "--no-python"]).arg(program);
    Ok(command)
}

/// Makes a virtual environment with torch, unless it is there already.
fn private_environment() -> Result<PathBuf, String> {
    let folder = workspace::root().join(".interop");
    if folder.join("bin/torchrun").is_file() {
        return Ok(folder);
    }
    println!("downloading torch into {} (large)", folder.display());
    run::must(run::command("python3").args(["-m", "venv"]).arg(&folder), DOWNLOAD_LIMIT)?;
    let mut pip = run::command(folder.join("bin/pip"));
    run::must(pip.args(["install", "--quiet", "torch"]), DOWNLOAD_LIMIT)?;
    Ok(folder)
}

fn open_mpi(program: &Path) -> Result<Command, String> {
    let launcher =
        launcher(&["mpirun.openmpi", "mpirun"], &["Open MPI", "OpenRTE"], "openmpi-bin")?;
    let mut command = run::command(launcher);
    command.args(["--allow-run-as-root", "--oversubscribe", "-n", RANKS]).arg(program);
    Ok(command)
}

fn mpich(program: &Path) -> Result<Command, String> {
    let launcher = launcher(&["mpiexec.mpich", "mpiexec"], &["HYDRA"], "mpich")?;
    let mut command = run::command(launcher);
    command.args(["-n", RANKS]).arg(program);
    Ok(command)
}

/// The first of the names whose version says that it is the implementation meant.
fn launcher(names: &[&str], words: &[&str], package: &str) -> Result<PathBuf, String> {
    let found = names.iter().find(|name| tools::version_mentions(name, words));
    found
        .and_then(|name| tools::find(name))
        .ok_or_else(|| format!("not installed; on Debian or Ubuntu: `apt-get install {package}`"))
}
