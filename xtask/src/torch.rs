//! Finds torch: in a Python environment of the user, or in a private environment that is downloaded
//! once.

use crate::{run, workspace};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const QUERY_TIMEOUT: Duration = Duration::from_secs(60);
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(3600);

/// A Python script that prints the path and the version of torch. It does not import torch, because
/// the import takes seconds.
const FIND_TORCH_SCRIPT: &str = "import importlib.metadata, importlib.util
print(importlib.util.find_spec('torch').submodule_search_locations[0])
print(importlib.metadata.version('torch'))";

/// A Python environment that contains torch.
#[derive(Clone, Debug)]
pub(crate) struct TorchEnvironment {
    /// The folder of the environment.
    environment: PathBuf,
    /// The folder that contains torch's headers and libraries.
    pub(crate) package: PathBuf,
    /// The version of torch, for example "2.15.0+cpu".
    pub(crate) version: String,
}

impl TorchEnvironment {
    /// Returns the environment in `folder`. If no folder is given, returns the project's private
    /// environment, and creates it if necessary.
    pub(crate) fn find_torch(folder: Option<&Path>) -> Result<Self, String> {
        let environment = match folder {
            // Programs run in other folders, so the path must be absolute.
            Some(folder) => std::path::absolute(folder)
                .map_err(|cause| format!("{}: {cause}", folder.display()))?,
            None => private_environment()?,
        };
        let mut find_torch = run::command(environment.join("bin/python"));
        let text = run::run_checked(find_torch.args(["-c", FIND_TORCH_SCRIPT]), QUERY_TIMEOUT)
            .map_err(|problem| format!("no torch in {}: {problem}", environment.display()))?
            .text;
        let lines: Vec<&str> = text.lines().collect();
        let [package, version] = lines[..] else {
            return Err(format!(
                "the output of Python does not name torch's folder and version: {text}"
            ));
        };
        Ok(Self { environment, package: PathBuf::from(package), version: version.to_string() })
    }

    /// Returns a command for a Python script of this repository.
    pub(crate) fn script(&self, script: &str) -> Command {
        let mut command = run::command(self.environment.join("bin/python"));
        command.arg(workspace::repository_root().join(script));
        command
    }

    /// Returns a command for a Python module.
    pub(crate) fn module(&self, module: &str) -> Command {
        let mut command = run::command(self.environment.join("bin/python"));
        command.args(["-m", module]);
        command
    }

    /// Installs a Python package, unless the environment has it.
    pub(crate) fn require_package(&self, package: &str) -> Result<(), String> {
        let query = format!("import importlib.util\nassert importlib.util.find_spec('{package}')");
        let mut python = run::command(self.environment.join("bin/python"));
        if run::run_quietly(python.args(["-c", &query]), QUERY_TIMEOUT)?.success() {
            return Ok(());
        }
        let mut pip = run::command(self.environment.join("bin/python"));
        run::run_checked(pip.args(["-m", "pip", "install", "--quiet", package]), DOWNLOAD_LIMIT)
            .map_err(|problem| format!("cannot install {package}: {problem}"))?;
        Ok(())
    }

    /// Returns a torchrun command for programs that are not written in Python.
    pub(crate) fn torchrun(&self, ranks: usize, options: &[&str]) -> Command {
        let mut command = run::command(self.environment.join("bin/torchrun"));
        command.args(["--nproc-per-node", &ranks.to_string()]).args(options).arg("--no-python");
        command
    }
}

/// Creates a virtual environment with torch, unless it exists already.
fn private_environment() -> Result<PathBuf, String> {
    let folder = workspace::repository_root().join(".interop");
    if folder.join("bin/torchrun").is_file() {
        return Ok(folder);
    }
    println!("downloading torch into {} (large)", folder.display());
    run::run_checked(run::command("python3").args(["-m", "venv"]).arg(&folder), DOWNLOAD_LIMIT)?;
    let mut pip = run::command(folder.join("bin/pip"));
    // torch needs NumPy to gather objects.
    run::run_checked(pip.args(["install", "--quiet", "torch==2.15.*", "numpy"]), DOWNLOAD_LIMIT)?;
    Ok(folder)
}
