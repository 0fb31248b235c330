//! The candidates of `--training` (the compared ways to average gradients), and the commands that
//! start their ranks.

use crate::gloo;
use crate::mpi::MpiImplementation;
use crate::own_command;
use crate::peer_programs::{ProgramSource, find_program};
use crate::run_context::RunContext;
use clap::ValueEnum;
use dist_tools::Failure;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The first command line argument of a training rank of libdist.
pub(crate) const AS_TRAINER: &str = "--as-trainer";

/// The Python program of the candidate torch-gloo.
const SCRIPT: &str = include_str!("../peers/training.py");

/// The C program of the candidates that use Open MPI.
const SOURCE: ProgramSource = ProgramSource {
    name: "training-openmpi",
    files: &[("training.c", include_str!("../peers/training.c"))],
    options: &["-std=gnu11", "-O3", "-Wall", "-Wextra"],
    libraries: &["-lpthread"],
    prefix: None,
};

/// A way to average gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Candidate {
    /// libdist's reducer, which provides the memory of the gradients
    Arena,
    /// libdist's reducer with gradients in the caller's memory
    Ordinary,
    /// Like arena; a failed step can be repeated (DIST_REDUCER_RETRYABLE)
    Retryable,
    /// Like arena, with gradients of type bf16
    Bf16,
    /// torch's DistributedDataParallel on Gloo, with gradient_as_bucket_view and buckets of 25 MiB
    TorchGloo,
    /// One all-reduce after the backward pass over Open MPI, then a division
    Openmpi,
    /// Horovod's scheme over Open MPI: a thread, cycles of 1 ms, a fusion buffer of 128 MiB
    Horovod,
}

impl Candidate {
    /// All candidates, in the order of tables.
    pub(super) const ALL: [Self; 7] = [
        Self::Arena,
        Self::Ordinary,
        Self::Retryable,
        Self::Bf16,
        Self::TorchGloo,
        Self::Openmpi,
        Self::Horovod,
    ];

    /// Returns the name on the command line, in plans and in files.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Arena => "arena",
            Self::Ordinary => "ordinary",
            Self::Retryable => "retryable",
            Self::Bf16 => "bf16",
            Self::TorchGloo => "torch-gloo",
            Self::Openmpi => "openmpi",
            Self::Horovod => "horovod",
        }
    }

    /// Returns the candidate with this name.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|candidate| candidate.name() == name)
    }

    /// Returns the name in tables.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Arena => "libdist, arena",
            Self::Ordinary => "libdist, ordinary",
            Self::Retryable => "libdist, retryable",
            Self::Bf16 => "libdist, bf16",
            Self::TorchGloo => "torch DDP on Gloo",
            Self::Openmpi => "Open MPI, after backward",
            Self::Horovod => "Horovod's scheme, Open MPI",
        }
    }

    /// Returns true if the candidate uses libdist's reducer.
    pub(super) const fn is_ours(self) -> bool {
        matches!(self, Self::Arena | Self::Ordinary | Self::Retryable | Self::Bf16)
    }

    /// Finds or compiles the program of the candidate.
    ///
    /// # Errors
    /// The message about the missing program.
    pub(super) fn find_program(self, context: &mut RunContext) -> Result<TrainingProgram, Failure> {
        match self {
            Self::TorchGloo => {
                let python = gloo::python_with_torch(
                    context,
                    &self.remedy("pip install torch, name another Python in DIST_BENCH_PYTHON"),
                )?;
                let script = context.folder().join("training.py");
                let written = fs::write(&script, SCRIPT);
                written.map_err(|cause| Failure::new(format!("{}: {cause}", script.display())))?;
                Ok(TrainingProgram::Torch { python, script })
            }
            Self::Openmpi | Self::Horovod => {
                let mpi = MpiImplementation::Openmpi;
                let packages = mpi.packages();
                let remedy = self
                    .remedy(&format!("install {packages} (package names of Debian and Ubuntu)"));
                let compiler = find_program(mpi.compiler(), &remedy)?;
                let launcher = find_program(mpi.launcher(), &remedy)?;
                let program = SOURCE.find_or_compile(&compiler, &remedy, context)?;
                Ok(TrainingProgram::Mpi { launcher, program })
            }
            _ => std::env::current_exe().map(TrainingProgram::Ours).map_err(|cause| {
                Failure::new(format!("cannot find the path of this program: {cause}"))
            }),
        }
    }

    fn remedy(self, install: &str) -> String {
        format!("{install}, or leave {} out of --candidates", self.name())
    }
}

/// The program of a candidate. Each of its processes is a training rank.
#[derive(Clone, Debug)]
pub(super) enum TrainingProgram {
    /// This program.
    Ours(PathBuf),
    Torch {
        python: PathBuf,
        script: PathBuf,
    },
    Mpi {
        launcher: PathBuf,
        program: PathBuf,
    },
}

impl TrainingProgram {
    /// Returns the commands that start all ranks. The path of their plan is `path_prefix` and the
    /// plan's suffix.
    pub(super) fn commands(&self, ranks: usize, path_prefix: &Path) -> Vec<Command> {
        let numbers = |rank: usize| [rank.to_string(), ranks.to_string()];
        match self {
            Self::Ours(program) => {
                let command = |rank: usize| {
                    let mut command = own_command(program);
                    command.arg(AS_TRAINER).args(numbers(rank)).arg(path_prefix);
                    command
                };
                (0..ranks).map(command).collect()
            }
            Self::Torch { python, script } => {
                let command = |rank: usize| {
                    let mut command = Command::new(python);
                    command.arg(script).args(numbers(rank)).arg(path_prefix);
                    gloo::limit_threads_and_interface(&mut command);
                    command
                };
                (0..ranks).map(command).collect()
            }
            Self::Mpi { launcher, program } => {
                let mut command = Command::new(launcher);
                MpiImplementation::add_training_arguments(&mut command, ranks);
                command.args(["-n", &ranks.to_string()]).arg(program).arg(path_prefix);
                vec![command]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &Command) -> Vec<String> {
        command.get_args().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn names_are_those_of_the_command_line() {
        for candidate in Candidate::ALL {
            assert_eq!(Candidate::from_name(candidate.name()), Some(candidate));
            assert_eq!(Candidate::from_str(candidate.name(), false), Ok(candidate));
        }
        assert_eq!(Candidate::ALL.iter().filter(|candidate| candidate.is_ours()).count(), 4);
    }

    #[test]
    fn commands_name_the_rank_and_the_plan() {
        let path_prefix = Path::new("/prefix");
        let ours = TrainingProgram::Ours("bench".into()).commands(3, path_prefix);
        assert_eq!(words(&ours[2]), ["--as-trainer", "2", "3", "/prefix"]);
        let torch =
            TrainingProgram::Torch { python: "python3".into(), script: "training.py".into() };
        let torch = torch.commands(2, path_prefix);
        assert_eq!(words(&torch[1]), ["training.py", "1", "2", "/prefix"]);
        let mpi = TrainingProgram::Mpi { launcher: "mpirun".into(), program: "training".into() };
        let mpi = words(&mpi.commands(2, path_prefix)[0]);
        assert_eq!(mpi[mpi.len() - 4..], ["-n", "2", "training", "/prefix"]);
    }
}
