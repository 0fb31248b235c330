//! The engine of libdist. Its ranks are processes of this program, one for each rank.

use crate::cell::BenchCell;
use crate::engine::EngineLauncher;
use crate::own_command;
use dist_tools::Failure;
use std::path::Path;
use std::process::Command;

/// The first command line argument of a rank of libdist.
pub(crate) const AS_RANK: &str = "--as-rank";

/// The name of the engine in tables.
pub(crate) const ENGINE_NAME: &str = "libdist";

/// The engine of libdist in this source tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LibdistEngine {
    /// The transport of the native back end.
    pub(crate) transport: &'static str,
    /// The map of back ends for a group with buffers on GPUs. Empty if the buffers are in host
    /// memory.
    pub(crate) device: &'static str,
}

impl LibdistEngine {
    /// Returns the commands that start one process of `program` per rank. `program` may be the
    /// dist-bench of another source tree: every version since 0.1 accepts these arguments.
    pub(crate) fn rank_commands(
        &self,
        program: &Path,
        ranks: usize,
        path_prefix: &Path,
    ) -> Vec<Command> {
        let command = |rank: usize| {
            let mut command = own_command(program);
            command.args([AS_RANK, &rank.to_string(), &ranks.to_string(), self.transport]);
            command.arg(path_prefix).arg(self.device);
            command
        };
        (0..ranks).map(command).collect()
    }
}

impl EngineLauncher for LibdistEngine {
    fn name(&self) -> &str {
        ENGINE_NAME
    }

    fn commands(&self, ranks: usize, path_prefix: &Path) -> Result<Vec<Command>, Failure> {
        let program = std::env::current_exe().map_err(|cause| {
            Failure::new(format!("cannot find the path of this program: {cause}"))
        })?;
        Ok(self.rank_commands(&program, ranks, path_prefix))
    }

    fn supports_cell(&self, _cell: &BenchCell) -> bool {
        true
    }
}
