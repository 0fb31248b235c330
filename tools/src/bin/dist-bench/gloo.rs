//! Two engines of Gloo: one calls Gloo through PyTorch, as most users do, and one calls it from C++
//! without Python and torch.

use crate::cell::BenchCell;
use crate::engine::EngineLauncher;
use crate::peer_programs::{ProgramSource, find_program};
use crate::run_context::RunContext;
use dist::base::config::{self, EnvVariable};
use dist::base::deadline::Deadline;
use dist_tools::Failure;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The Python program that calls Gloo through torch.
const SCRIPT: &str = include_str!("peers/gloo.py");

/// The C++ program that calls Gloo.
const SOURCE: ProgramSource = ProgramSource {
    name: "gloo-cpp",
    files: &[("gloo.cc", include_str!("peers/gloo.cc")), ("rank.h", include_str!("peers/rank.h"))],
    options: &["-std=gnu++17", "-O3"],
    libraries: &["-lgloo", "-lpthread"],
    prefix: None,
};

const PYTHON: EnvVariable = EnvVariable {
    name: "DIST_BENCH_PYTHON",
    set_by: "user",
    default: "python3",
    meaning: "The Python interpreter with the torch that dist-bench compares with.",
};

/// A Python command that checks whether torch is installed, without loading it.
const TORCH_PROBE: &str = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)";

/// The timeout of [`TORCH_PROBE`]. It is long, because the disk may be slow.
const PROBE_TIMEOUT: Duration = Duration::from_secs(60);

const TORCH_REMEDY: &str =
    "pip install torch, name another Python in DIST_BENCH_PYTHON, or leave gloo out of --peer";
const CPP_REMEDY: &str = "install libgloo-dev and g++ (package names of Debian and Ubuntu), or leave \
                          gloo-cpp out of --peer";

/// Gloo through torch.
#[derive(Debug)]
struct TorchGlooEngine {
    python: PathBuf,
    program: PathBuf,
}

/// Builds the engine of Gloo through torch.
pub(crate) fn torch_engines(
    context: &mut RunContext,
) -> Result<Vec<Box<dyn EngineLauncher>>, Failure> {
    let python = python_with_torch(context, TORCH_REMEDY)?;
    let program = context.folder().join("gloo.py");
    let written = fs::write(&program, SCRIPT);
    written.map_err(|cause| Failure::new(format!("{}: {cause}", program.display())))?;
    Ok(vec![Box::new(TorchGlooEngine { python, program })])
}

/// Returns the path of a Python interpreter that has torch: the one in DIST_BENCH_PYTHON, or
/// python3. If it has no torch, returns an error with `remedy`.
pub(crate) fn python_with_torch(
    context: &mut RunContext,
    remedy: &str,
) -> Result<PathBuf, Failure> {
    let named = config::read_text(PYTHON)?;
    let python = named.map_or_else(|| find_program("python3", remedy), |path| Ok(path.into()))?;
    let log = context.folder().join("python.log");
    let mut command = Command::new(&python);
    let probing = [context.start(command.args(["-c", TORCH_PROBE]), &log)?];
    let has_ended = context.await_exits(&probing, &Deadline::after(PROBE_TIMEOUT))?;
    if !has_ended || !context.exit_status(probing[0]).is_some_and(|exit| exit.is_success()) {
        context.terminate(&probing)?;
        let probe_output = fs::read_to_string(&log).unwrap_or_default();
        let text = format!("{} has no torch: {remedy}\n{probe_output}", python.display());
        return Err(Failure::new(text.trim_end()));
    }
    Ok(python)
}

/// Limits torch to one thread, because all engines use one thread per rank, and limits Gloo to the
/// loopback interface.
pub(crate) fn limit_threads_and_interface(command: &mut Command) {
    command.env("OMP_NUM_THREADS", "1").env("GLOO_SOCKET_IFNAME", "lo");
}

impl EngineLauncher for TorchGlooEngine {
    fn name(&self) -> &str {
        "gloo"
    }

    fn commands(&self, ranks: usize, path_prefix: &Path) -> Result<Vec<Command>, Failure> {
        let command = |rank: usize| {
            let mut command = Command::new(&self.python);
            command.arg(&self.program).args([rank.to_string(), ranks.to_string()]).arg(path_prefix);
            limit_threads_and_interface(&mut command);
            command
        };
        Ok((0..ranks).map(command).collect())
    }

    fn supports_cell(&self, _cell: &BenchCell) -> bool {
        true
    }
}

/// The compiled program of Gloo from C++.
#[derive(Debug)]
struct CppGlooEngine {
    program: PathBuf,
}

/// Builds the engine of Gloo from C++.
pub(crate) fn cpp_engines(
    context: &mut RunContext,
) -> Result<Vec<Box<dyn EngineLauncher>>, Failure> {
    let compiler = find_program("g++", CPP_REMEDY)?;
    let program = SOURCE.find_or_compile(&compiler, CPP_REMEDY, context)?;
    Ok(vec![Box::new(CppGlooEngine { program })])
}

impl EngineLauncher for CppGlooEngine {
    fn name(&self) -> &str {
        "gloo-cpp"
    }

    fn commands(&self, ranks: usize, path_prefix: &Path) -> Result<Vec<Command>, Failure> {
        let command = |rank: usize| {
            let mut command = Command::new(&self.program);
            command.args([rank.to_string(), ranks.to_string()]).arg(path_prefix);
            command
        };
        Ok((0..ranks).map(command).collect())
    }

    fn supports_cell(&self, _cell: &BenchCell) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_command_has_rank_and_size() {
        let torch = TorchGlooEngine { python: "python3".into(), program: "gloo.py".into() };
        let commands = torch.commands(3, Path::new("/prefix")).unwrap();
        let words: Vec<String> =
            commands[2].get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        assert_eq!(
            (commands.len(), words),
            (3, ["gloo.py", "2", "3", "/prefix"].map(str::to_owned).to_vec())
        );
    }
}
