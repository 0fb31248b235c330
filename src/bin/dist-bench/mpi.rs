//! Peers that speak MPI: one C program, compiled with each implementation's own compiler and
//! started by its own launcher, with the settings that were found to be the best.

use crate::Failure;
use crate::build::{Source, find};
use crate::cell::Cell;
use crate::engine::Launch;
use crate::ops::Op;
use crate::stage::Stage;
use dist::sys::host;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The files of the program.
const FILES: &[(&str, &str)] =
    &[("mpi.c", include_str!("peers/mpi.c")), ("rank.h", include_str!("peers/rank.h"))];

/// An implementation of MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Implementation {
    Openmpi,
    /// Without reading the memory of other processes.
    OpenmpiStaged,
    Mpich,
}

/// What an implementation is called with.
#[derive(Clone, Copy, Debug)]
struct Setting {
    /// After the implementation's name.
    name: &'static str,
    arguments: &'static [&'static str],
    /// The only operation that it changes, and from which size on it can be better.
    only: Option<(Op, usize)>,
}

const PLAIN: Setting = Setting { name: "", arguments: &[], only: None };

/// Shared memory alone, and what follows says whether the other process is read directly where that
/// pays.
const SHARED_MEMORY: &[&str] = &[
    "--mca",
    "pml",
    "ob1",
    "--mca",
    "btl",
    "vader,self",
    "--mca",
    "btl_vader_single_copy_mechanism",
];

/// The all-reduce that is best for long vectors: a ring, whose pieces have the size that follows.
const SEGMENTED_RING: &[&str] = &[
    "--mca",
    "coll_tuned_use_dynamic_rules",
    "1",
    "--mca",
    "coll_tuned_allreduce_algorithm",
    "5",
    "--mca",
    "coll_tuned_allreduce_algorithm_segmentsize",
];

/// Ranks that wait let others have the core: better where there are fewer cores than ranks.
const YIELD: &[&str] = &["--mca", "mpi_yield_when_idle", "1"];

const OPENMPI: &[Setting] = &[
    PLAIN,
    Setting { name: "-ring128k", arguments: &["131072"], only: Some((Op::AllReduce, 65_536)) },
    Setting { name: "-ring1m", arguments: &["1048576"], only: Some((Op::AllReduce, 524_288)) },
];

impl Implementation {
    fn name(self) -> &'static str {
        match self {
            Self::Openmpi => "openmpi",
            Self::OpenmpiStaged => "openmpi-staged",
            Self::Mpich => "mpich",
        }
    }

    /// How Open MPI moves long vectors between processes; `None` for another one.
    fn single_copy(self) -> Option<&'static str> {
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

    /// Adds the arguments of the launcher that all programs have.
    pub(crate) fn add_arguments(self, command: &mut Command, ranks: usize) {
        if let Some(single_copy) = self.single_copy() {
            // Where ranks run is the program's own business, the same as ours.
            command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
            command.args(SHARED_MEMORY).arg(single_copy);
            if ranks > host::cores() {
                command.args(YIELD);
            }
        }
    }

    /// Adds the arguments with which a training step of two ranks waits least for Open MPI: a ring
    /// with pieces of 1 MiB, and ranks that yield. A rank has more threads than the one that calls
    /// MPI.
    pub(crate) fn add_training_arguments(command: &mut Command, ranks: usize) {
        Self::Openmpi.add_arguments(command, ranks);
        command.args(SEGMENTED_RING).arg("1048576").args(YIELD);
    }

    fn settings(self) -> &'static [Setting] {
        match self {
            Self::Openmpi | Self::OpenmpiStaged => OPENMPI,
            Self::Mpich => &[PLAIN],
        }
    }

    /// What to do where something of it is missing.
    fn remedy(self) -> String {
        let (name, packages) = (self.name(), self.packages());
        format!(
            "install {packages} (the names of Debian and Ubuntu), or leave {name} out of --peer"
        )
    }

    /// The program.
    fn source(self) -> Source {
        let name = if self == Self::Mpich { "mpi-mpich" } else { "mpi-openmpi" };
        Source { name, files: FILES, options: &["-std=gnu11", "-O3"], libraries: &[] }
    }
}

/// An implementation with a setting, compiled.
#[derive(Debug)]
pub(crate) struct Mpi {
    name: String,
    implementation: Implementation,
    setting: Setting,
    launcher: PathBuf,
    program: PathBuf,
}

/// All settings of an implementation, whose program is compiled unless it was before.
pub(crate) fn peers(
    implementation: Implementation,
    stage: &mut Stage,
) -> Result<Vec<Box<dyn Launch>>, Failure> {
    let remedy = implementation.remedy();
    let compiler = find(implementation.compiler(), &remedy)?;
    let launcher = find(implementation.launcher(), &remedy)?;
    let program = implementation.source().compiled(&compiler, &remedy, stage)?;
    let settings = implementation.settings().iter();
    let peer = |&setting: &Setting| -> Box<dyn Launch> {
        let name = format!("{}{}", implementation.name(), setting.name);
        let (launcher, program) = (launcher.clone(), program.clone());
        Box::new(Mpi { name, implementation, setting, launcher, program })
    };
    Ok(settings.map(peer).collect())
}

impl Launch for Mpi {
    fn name(&self) -> &str {
        &self.name
    }

    fn commands(&self, ranks: usize, place: &Path) -> Result<Vec<Command>, Failure> {
        let mut command = Command::new(&self.launcher);
        self.implementation.add_arguments(&mut command, ranks);
        if self.setting.only.is_some() {
            command.args(SEGMENTED_RING);
        }
        command.args(self.setting.arguments);
        command.args(["-n", &ranks.to_string()]).arg(&self.program).arg(place);
        Ok(vec![command])
    }

    fn takes(&self, cell: &Cell) -> bool {
        self.setting.only.is_none_or(|(only, least)| cell.op == only && cell.bytes() >= least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::samples::cell;

    fn peer(implementation: Implementation, setting: Setting) -> Mpi {
        let name = format!("{}{}", implementation.name(), setting.name);
        let (launcher, program) = ("run".into(), "program".into());
        Mpi { name, implementation, setting, launcher, program }
    }

    fn words(peer: &Mpi, ranks: usize) -> Vec<String> {
        let commands = peer.commands(ranks, Path::new("/place")).unwrap();
        let arguments = commands[0].get_args();
        arguments.map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_launcher_is_told_the_setting() {
        let ring = peer(Implementation::Openmpi, OPENMPI[1]);
        let said = words(&ring, 2).join(" ");
        assert!(said.contains("coll_tuned_allreduce_algorithm_segmentsize 131072 -n 2"), "{said}");
        assert!(words(&ring, host::cores() + 1).contains(&"mpi_yield_when_idle".to_owned()));
        let plain = words(&peer(Implementation::Openmpi, PLAIN), 1).join(" ");
        assert!(!plain.contains("dynamic_rules") && !plain.contains("yield"), "{plain}");
        assert!(plain.contains("single_copy_mechanism cma"), "{plain}");
        let staged = words(&peer(Implementation::OpenmpiStaged, PLAIN), 1).join(" ");
        assert!(staged.contains("single_copy_mechanism none"), "{staged}");
        let mpich = words(&peer(Implementation::Mpich, PLAIN), 3);
        assert_eq!(mpich, ["-n", "3", "program", "/place"]);
    }

    #[test]
    fn a_ring_takes_part_where_it_can_be_the_best() {
        let ring = peer(Implementation::Openmpi, OPENMPI[2]);
        let takes = |op, bytes| ring.takes(&cell(op, bytes));
        assert!(takes(Op::AllReduce, 1 << 20) && !takes(Op::AllReduce, 1 << 10));
        assert!(!takes(Op::Broadcast, 1 << 20));
        assert!(peer(Implementation::Mpich, PLAIN).takes(&cell(Op::Barrier, 0)));
    }

    #[test]
    fn what_to_install_is_told() {
        let remedy = Implementation::Mpich.remedy();
        assert!(remedy.starts_with("install libmpich-dev and mpich"), "{remedy}");
    }
}
