//! `cargo xtask mpi`: builds a plug-in for each installed MPI implementation. The command places
//! the plug-ins next to libdist.so, or in the folder that `--into` names.

use crate::workspace::{repository_root, target_folder};
use crate::{Arguments, CommandResult, run, tools};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const BUILD_LIMIT: Duration = Duration::from_secs(1800);
const QUERY_TIMEOUT: Duration = Duration::from_secs(60);

/// An implementation of MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MpiLibrary {
    OpenMpi,
    Mpich,
}

impl MpiLibrary {
    pub(crate) const ALL: [Self; 2] = [Self::OpenMpi, Self::Mpich];

    /// Returns the name of the implementation, as in the plug-in's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OpenMpi => "openmpi",
            Self::Mpich => "mpich",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::OpenMpi => "Open MPI",
            Self::Mpich => "MPICH",
        }
    }

    /// Returns the names of the Debian packages of the implementation.
    fn packages(self) -> &'static str {
        match self {
            Self::OpenMpi => "libopenmpi-dev openmpi-bin",
            Self::Mpich => "libmpich-dev mpich",
        }
    }

    /// Returns the possible names of the launcher, and the words that identify it: its version
    /// output contains at least one of them.
    fn launcher_names(self) -> ([&'static str; 2], &'static [&'static str]) {
        match self {
            Self::OpenMpi => (["mpirun.openmpi", "mpirun"], &["Open MPI", "OpenRTE", "PRRTE"]),
            Self::Mpich => (["mpiexec.mpich", "mpiexec"], &["HYDRA"]),
        }
    }

    /// Returns the compiler of the implementation.
    ///
    /// # Errors
    /// If the program is missing, a message with the packages to install.
    pub(crate) fn compiler(self) -> Result<PathBuf, String> {
        let by_name = tools::find_program(&format!("mpicc.{}", self.name()));
        by_name
            .or_else(|| tools::find_program("mpicc").filter(|mpicc| self.is_compiler_for(mpicc)))
            .ok_or_else(|| {
                format!(
                    "{}: no compiler found; on Debian or Ubuntu: `apt-get install {} libclang-dev`",
                    self.title(),
                    self.packages()
                )
            })
    }

    /// Returns whether a compiler with a generic MPI name belongs to this implementation.
    fn is_compiler_for(self, mpicc: &Path) -> bool {
        let shown = run::run_quietly(run::command(mpicc).arg("-show"), QUERY_TIMEOUT);
        shown.is_ok_and(|shown| shown.text.to_lowercase().contains(self.name()))
    }

    /// Returns the launcher for this number of ranks.
    ///
    /// # Errors
    /// If the program is missing, a message with the packages to install.
    pub(crate) fn launcher(self, ranks: usize) -> Result<Command, String> {
        let (names, words) = self.launcher_names();
        let launcher_name = names.iter().find(|name| tools::version_mentions(name, words));
        let program =
            launcher_name.and_then(|name| tools::find_program(name)).ok_or_else(|| {
                format!(
                    "{}: no launcher found; on Debian or Ubuntu: `apt-get install {}`",
                    self.title(),
                    self.packages()
                )
            })?;
        let mut command = run::command(program);
        if self == Self::OpenMpi {
            command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
        }
        command.args(["-n", &ranks.to_string()]);
        Ok(command)
    }
}

/// Runs the command.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    let mut arguments = Arguments::new(rest);
    let only = arguments.value("--only")?;
    let into = arguments.value("--into")?;
    arguments.finish()?;
    let selected: Vec<MpiLibrary> = MpiLibrary::ALL
        .into_iter()
        .filter(|mpi| only.as_deref().is_none_or(|only| only == mpi.name()))
        .collect();
    if selected.is_empty() {
        return Err("--only takes openmpi or mpich".into());
    }
    let folder = match into {
        Some(folder) => PathBuf::from(folder),
        None => target_folder()?.join("release"),
    };
    let mut built = 0;
    for mpi in selected {
        match (mpi.compiler(), &only) {
            (Err(reason), None) => println!("skipped: {reason}"),
            (Err(reason), Some(_)) => return Err(reason),
            (Ok(_), _) => {
                println!("built: {}", build_plugin(mpi, &folder)?.display());
                built += 1;
            }
        }
    }
    Ok(built > 0)
}

/// Builds the plug-in for an MPI implementation and copies it into a folder.
pub(crate) fn build_plugin(mpi: MpiLibrary, folder: &Path) -> Result<PathBuf, String> {
    // Each implementation has its own folder, because the build results are not compatible.
    let out = target_folder()?.join("mpi").join(mpi.name());
    let mut cargo = run::command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(repository_root().join("plugins/mpi"));
    cargo.args(["build", "--release", "--locked"]);
    cargo.env("CARGO_TARGET_DIR", &out).env("MPICC", mpi.compiler()?);
    let finished = run::run_visibly(&mut cargo, BUILD_LIMIT)?;
    if !finished.success() {
        return Err(format!(
            "cannot build the plug-in for {}: it needs {} and libclang (Debian, Ubuntu: `apt-get install {} libclang-dev`)",
            mpi.title(),
            mpi.title(),
            mpi.packages()
        ));
    }
    let plugin = folder.join(format!("libdist_mpi_{}.so", mpi.name()));
    let fresh = plugin.with_extension("so.new");
    let put = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::copy(out.join("release/libdist_mpi.so"), &fresh))
        .and_then(|_| std::fs::rename(&fresh, &plugin));
    put.map_err(|cause| format!("{}: {cause}", plugin.display()))?;
    Ok(plugin)
}
