//! The engines that use MPI. Their ranks run one C program. For each MPI implementation, the
//! program is compiled with the compiler wrapper of this implementation and started by its
//! launcher, with the settings that were the fastest in measurements.

use crate::cell::BenchCell;
use crate::engine::EngineLauncher;
use crate::ops::BenchOp;
use crate::peer_programs::{ProgramSource, find_program};
use crate::run_context::RunContext;
use dist::sys::host;
use dist_tools::Failure;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The source files of the program.
const FILES: &[(&str, &str)] =
    &[("mpi.c", include_str!("peers/mpi.c")), ("rank.h", include_str!("peers/rank.h"))];

/// An implementation of MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MpiImplementation {
    Openmpi,
    /// Open MPI that does not read the memory of other processes directly (no single copy).
    OpenmpiStaged,
    Mpich,
}

/// The settings of a launcher.
#[derive(Clone, Copy, Debug)]
struct LauncherSetting {
    /// The suffix that the setting adds to the engine's name.
    name: &'static str,
    arguments: &'static [&'static str],
    /// If the setting only affects one operation, this operation and the smallest size in bytes for
    /// which the setting can be faster.
    only_op_and_min_bytes: Option<(BenchOp, usize)>,
}

const DEFAULT_SETTING: LauncherSetting =
    LauncherSetting { name: "", arguments: &[], only_op_and_min_bytes: None };

/// Makes Open MPI use shared memory only. The caller adds the single-copy mechanism as the next
/// argument: "cma" for direct reads from the other process, or "none".
const SHARED_MEMORY_ARGUMENTS: &[&str] = &[
    "--mca",
    "pml",
    "ob1",
    "--mca",
    "btl",
    "vader,self",
    "--mca",
    "btl_vader_single_copy_mechanism",
];

/// Selects a segmented ring, the fastest all_reduce of Open MPI for long vectors. The caller adds
/// the segment size as the next argument.
const SEGMENTED_RING_ARGUMENTS: &[&str] = &[
    "--mca",
    "coll_tuned_use_dynamic_rules",
    "1",
    "--mca",
    "coll_tuned_allreduce_algorithm",
    "5",
    "--mca",
    "coll_tuned_allreduce_algorithm_segmentsize",
];

/// Makes waiting ranks yield their core. This is faster if there are more ranks than cores.
const YIELD_ARGUMENTS: &[&str] = &["--mca", "mpi_yield_when_idle", "1"];

const OPENMPI_SETTINGS: &[LauncherSetting] = &[
    DEFAULT_SETTING,
    LauncherSetting {
        name: "-ring128k",
        arguments: &["131072"],
        only_op_and_min_bytes: Some((BenchOp::AllReduce, 65_536)),
    },
    LauncherSetting {
        name: "-ring1m",
        arguments: &["1048576"],
        only_op_and_min_bytes: Some((BenchOp::AllReduce, 524_288)),
    },
];

impl MpiImplementation {
    fn name(self) -> &'static str {
        match self {
            Self::Openmpi => "openmpi",
            Self::OpenmpiStaged => "openmpi-staged",
            Self::Mpich => "mpich",
        }
    }

    /// Returns the single-copy mechanism that Open MPI uses for long vectors, or `None` for another
    /// implementation.
    fn single_copy_mechanism(self) -> Option<&'static str> {
        match self {
            Self::Openmpi => Some("cma"),
            Self::OpenmpiStaged => Some("none"),
            Self::Mpich => None,
        }
    }

    pub(crate) fn compiler(self) -> &'static str {
        match self {
            Self::Openmpi | Self::OpenmpiStaged => "mpicc.openmpi",
            Self::Mpich => "mpicc.mpich",
        }
    }

    pub(crate) fn launcher(self) -> &'static str {
        match self {
            Self::Openmpi | Self::OpenmpiStaged => "mpirun.openmpi",
            Self::Mpich => "mpiexec.mpich",
        }
    }

    pub(crate) fn packages(self) -> &'static str {
        match self {
            Self::Openmpi | Self::OpenmpiStaged => "libopenmpi-dev and openmpi-bin",
            Self::Mpich => "libmpich-dev and mpich",
        }
    }

    /// Adds the launcher arguments that are the same for all programs.
    pub(crate) fn add_arguments(self, command: &mut Command, ranks: usize) {
        if let Some(single_copy) = self.single_copy_mechanism() {
            // The program pins its ranks to cores itself, like libdist's ranks.
            command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
            command.args(SHARED_MEMORY_ARGUMENTS).arg(single_copy);
            if ranks > host::cores() {
                command.args(YIELD_ARGUMENTS);
            }
        }
    }

    /// Adds the arguments that were the fastest for a training step of two ranks: a ring with
    /// segments of 1 MiB, and ranks that yield their core during waits. Yielding helps here,
    /// because a rank has other threads in addition to the thread that calls MPI.
    pub(crate) fn add_training_arguments(command: &mut Command, ranks: usize) {
        Self::Openmpi.add_arguments(command, ranks);
        command.args(SEGMENTED_RING_ARGUMENTS).arg("1048576").args(YIELD_ARGUMENTS);
    }

    fn settings(self) -> &'static [LauncherSetting] {
        match self {
            Self::Openmpi | Self::OpenmpiStaged => OPENMPI_SETTINGS,
            Self::Mpich => &[DEFAULT_SETTING],
        }
    }

    /// Returns the remedy for the error that a part of the implementation is missing.
    fn remedy(self) -> String {
        let (name, packages) = (self.name(), self.packages());
        format!(
            "install {packages} (package names of Debian and Ubuntu), or leave {name} out of --peer"
        )
    }

    /// Returns the source of the program.
    fn source(self) -> ProgramSource {
        let name = if self == Self::Mpich { "mpi-mpich" } else { "mpi-openmpi" };
        ProgramSource {
            name,
            files: FILES,
            options: &["-std=gnu11", "-O3"],
            libraries: &[],
            prefix: None,
        }
    }
}

/// An MPI implementation with a setting and the compiled program.
#[derive(Debug)]
pub(crate) struct MpiEngine {
    name: String,
    implementation: MpiImplementation,
    setting: LauncherSetting,
    launcher: PathBuf,
    program: PathBuf,
}

/// Returns one engine for each setting of an implementation. Compiles the program, unless it is
/// cached.
pub(crate) fn mpi_engines(
    implementation: MpiImplementation,
    context: &mut RunContext,
) -> Result<Vec<Box<dyn EngineLauncher>>, Failure> {
    let remedy = implementation.remedy();
    let compiler = find_program(implementation.compiler(), &remedy)?;
    let launcher = find_program(implementation.launcher(), &remedy)?;
    let program = implementation.source().find_or_compile(&compiler, &remedy, context)?;
    let settings = implementation.settings().iter();
    let peer = |&setting: &LauncherSetting| -> Box<dyn EngineLauncher> {
        let name = format!("{}{}", implementation.name(), setting.name);
        let (launcher, program) = (launcher.clone(), program.clone());
        Box::new(MpiEngine { name, implementation, setting, launcher, program })
    };
    Ok(settings.map(peer).collect())
}

impl EngineLauncher for MpiEngine {
    fn name(&self) -> &str {
        &self.name
    }

    fn commands(&self, ranks: usize, path_prefix: &Path) -> Result<Vec<Command>, Failure> {
        let mut command = Command::new(&self.launcher);
        self.implementation.add_arguments(&mut command, ranks);
        if self.setting.only_op_and_min_bytes.is_some() {
            command.args(SEGMENTED_RING_ARGUMENTS);
        }
        command.args(self.setting.arguments);
        command.args(["-n", &ranks.to_string()]).arg(&self.program).arg(path_prefix);
        Ok(vec![command])
    }

    fn supports_cell(&self, cell: &BenchCell) -> bool {
        self.setting
            .only_op_and_min_bytes
            .is_none_or(|(only, least)| cell.op == only && cell.bytes() >= least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::samples::cell;

    fn peer(implementation: MpiImplementation, setting: LauncherSetting) -> MpiEngine {
        let name = format!("{}{}", implementation.name(), setting.name);
        let (launcher, program) = ("run".into(), "program".into());
        MpiEngine { name, implementation, setting, launcher, program }
    }

    fn words(peer: &MpiEngine, ranks: usize) -> Vec<String> {
        let commands = peer.commands(ranks, Path::new("/prefix")).unwrap();
        let arguments = commands[0].get_args();
        arguments.map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn launcher_arguments_have_the_setting() {
        let ring = peer(MpiImplementation::Openmpi, OPENMPI_SETTINGS[1]);
        let arguments = words(&ring, 2).join(" ");
        assert!(
            arguments.contains("coll_tuned_allreduce_algorithm_segmentsize 131072 -n 2"),
            "{arguments}"
        );
        assert!(words(&ring, host::cores() + 1).contains(&"mpi_yield_when_idle".to_owned()));
        let plain = words(&peer(MpiImplementation::Openmpi, DEFAULT_SETTING), 1).join(" ");
        assert!(!plain.contains("dynamic_rules") && !plain.contains("yield"), "{plain}");
        assert!(plain.contains("single_copy_mechanism cma"), "{plain}");
        let staged = words(&peer(MpiImplementation::OpenmpiStaged, DEFAULT_SETTING), 1).join(" ");
        assert!(staged.contains("single_copy_mechanism none"), "{staged}");
        let mpich = words(&peer(MpiImplementation::Mpich, DEFAULT_SETTING), 3);
        assert_eq!(mpich, ["-n", "3", "program", "/prefix"]);
    }

    #[test]
    fn ring_setting_supports_large_all_reduces_only() {
        let ring = peer(MpiImplementation::Openmpi, OPENMPI_SETTINGS[2]);
        let takes = |op, bytes| ring.supports_cell(&cell(op, bytes));
        assert!(takes(BenchOp::AllReduce, 1 << 20) && !takes(BenchOp::AllReduce, 1 << 10));
        assert!(!takes(BenchOp::Broadcast, 1 << 20));
        assert!(
            peer(MpiImplementation::Mpich, DEFAULT_SETTING)
                .supports_cell(&cell(BenchOp::Barrier, 0))
        );
    }

    #[test]
    fn remedy_names_the_packages() {
        let remedy = MpiImplementation::Mpich.remedy();
        assert!(remedy.starts_with("install libmpich-dev and mpich"), "{remedy}");
    }
}
