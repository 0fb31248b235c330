//! A handwritten all_reduce between two ranks. Its time is a lower bound for the time of a library.
//! It is an engine (like libdist or an MPI library) that supports only this operation. Unlike a
//! library, it has no deadlines, no checks of arguments, and no handling of failed peers.
//!
//! There are two methods:
//!
//! - For buffers in shared memory (*direct*): each rank adds one half of the two vectors, and
//!   stores the sums in both vectors.
//! - For buffers in private memory (*cma_read*): each rank reduces one half. It reads the other
//!   rank's values of this half from the other process, piece by piece, and adds them to its own
//!   values. Then it reads the sums of the other half from the other process.
//!
//! A trial before the measurement selects the fastest piece size. Both methods are the program
//! `bound_allreduce` of the project's baseline.

mod bound_rank;
mod control_segment;
mod sum_kernels;

use crate::cell::BenchCell;
use crate::engine::EngineLauncher;
use crate::ops::BenchOp;
use crate::own_command;
use crate::rank::DriverLink;
use bound_rank::BoundRank;
use dist::base::dtype::DataType;
use dist::base::op::ReduceOp;
use dist::sys::{host, thread};
use dist_tools::Failure;
use std::path::Path;
use std::process::Command;

/// The first command line argument of a rank of this engine.
pub(crate) const AS_BOUND: &str = "--as-bound";

/// The number of ranks.
const RANKS: usize = 2;

/// The smallest size in bytes. For smaller sizes, a library has faster methods, so this program is
/// not a lower bound.
const MIN_BYTES: usize = 4096;

/// The engine.
#[derive(Debug)]
pub(crate) struct BoundEngine;

impl EngineLauncher for BoundEngine {
    fn name(&self) -> &str {
        "bound"
    }

    fn commands(&self, ranks: usize, path_prefix: &Path) -> Result<Vec<Command>, Failure> {
        let program = std::env::current_exe().map_err(|cause| {
            Failure::new(format!("cannot find the path of this program: {cause}"))
        })?;
        let command = |rank: usize| {
            let mut command = own_command(&program);
            command.args([AS_BOUND, &rank.to_string()]).arg(path_prefix);
            command
        };
        Ok((0..ranks).map(command).collect())
    }

    fn supports_cell(&self, cell: &BenchCell) -> bool {
        let is_in_place_all_reduce = cell.op == BenchOp::AllReduce && cell.variant.in_place;
        let is_f32_sum = cell.dtype == DataType::F32 && cell.redop == ReduceOp::Sum;
        let fits = cell.ranks == RANKS && host::cores() >= RANKS && cell.bytes() >= MIN_BYTES;
        is_in_place_all_reduce && is_f32_sum && fits
    }

    fn is_bound_engine(&self) -> bool {
        true
    }
}

/// Runs a rank until the driver ends it.
///
/// # Errors
/// The reason why the rank ended early. The rank has sent it to the driver too, if possible.
pub(crate) fn run_rank(words: &[String]) -> Result<(), String> {
    let [rank, path_prefix] = words else {
        return Err(
            "only dist-bench itself starts ranks; run dist-bench without this argument".into()
        );
    };
    let rank: usize = rank.parse().map_err(|_| format!("not a rank: {rank}"))?;
    DriverLink::open(rank, path_prefix)?.run_and_report(|link| {
        thread::pin_to_core(rank).map_err(|error| error.to_string())?;
        let mut pair = BoundRank::connect(rank, path_prefix)?;
        link.serve_requests(&mut |request| pair.execute(request))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::samples::cell;

    #[test]
    fn only_large_f32_sums_of_two_ranks_are_supported() {
        let takes = |cell: BenchCell| BoundEngine.supports_cell(&cell);
        assert_eq!(takes(cell(BenchOp::AllReduce, MIN_BYTES)), host::cores() >= RANKS);
        assert!(!takes(cell(BenchOp::AllReduce, 4)) && !takes(cell(BenchOp::AllGather, MIN_BYTES)));
        assert!(!takes(BenchCell { ranks: 4, ..cell(BenchOp::AllReduce, MIN_BYTES) }));
        assert!(!takes(BenchCell { dtype: DataType::F64, ..cell(BenchOp::AllReduce, MIN_BYTES) }));
    }
}
