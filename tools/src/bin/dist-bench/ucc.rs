//! The engine of UCC: its ranks run one C program, which calls UCC directly.

use crate::cell::BenchCell;
use crate::engine::EngineLauncher;
use crate::peer_programs::{ProgramSource, find_program};
use crate::run_context::RunContext;
use dist::base::config::{self, EnvVariable};
use dist_tools::Failure;
use std::path::{Path, PathBuf};
use std::process::Command;

const PREFIX: EnvVariable = EnvVariable {
    name: "DIST_BENCH_UCC",
    set_by: "user",
    default: "the compiler's search path",
    meaning: "The folder in which UCC is installed, with its headers, for --peer ucc.",
};

const REMEDY: &str = "install UCC 1.2 or newer with its headers, name its folder in DIST_BENCH_UCC, or \
                      leave ucc out of --peer";

/// The compiled program of UCC.
#[derive(Debug)]
struct UccEngine {
    program: PathBuf,
}

/// Builds the engine of UCC.
pub(crate) fn engines(context: &mut RunContext) -> Result<Vec<Box<dyn EngineLauncher>>, Failure> {
    let compiler = find_program("cc", REMEDY)?;
    let source = ProgramSource {
        name: "ucc",
        files: &[("ucc.c", include_str!("peers/ucc.c")), ("rank.h", include_str!("peers/rank.h"))],
        options: &["-std=gnu11", "-O3"],
        libraries: &["-lucc"],
        prefix: config::read_text(PREFIX)?.map(PathBuf::from),
    };
    let program = source.find_or_compile(&compiler, REMEDY, context)?;
    Ok(vec![Box::new(UccEngine { program })])
}

impl EngineLauncher for UccEngine {
    fn name(&self) -> &str {
        "ucc"
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
        let commands = UccEngine { program: "ucc".into() }.commands(2, Path::new("/p")).unwrap();
        let words: Vec<String> =
            commands[1].get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        assert_eq!((commands.len(), words), (2, ["1", "2", "/p"].map(str::to_owned).to_vec()));
    }
}
