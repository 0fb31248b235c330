//! What a program by hand takes for an all_reduce between two ranks, as a bound for libraries: an
//! engine as any other, which knows nothing but that. It makes no promise that a library makes: no
//! deadline, no check, no peer that may fail.
//!
//! * In memory that both map (*direct*): each rank adds one half of both vectors, and stores the
//!   sums in both.
//! * In memory of its own (*cma_read*): each rank reads the other's values of its half out of that
//!   process, piece by piece, and adds them to its own. Then it reads the sums of the other half.
//!
//! Both are `bound_allreduce`'s in the project's baseline. The pieces have the size that is best of
//! some in a trial.

mod control;
mod pair;
mod sums;

use crate::Failure;
use crate::cell::Cell;
use crate::engine::Launch;
use crate::ops::Op;
use crate::rank::Post;
use dist::base::dtype::DataType;
use dist::base::op::ReduceOp;
use dist::sys::{host, thread};
use pair::Pair;
use std::path::Path;
use std::process::Command;

/// The first word on the command line of a rank.
pub(crate) const AS_BOUND: &str = "--as-bound";

/// How many ranks there are.
const RANKS: usize = 2;

/// Below, a library has shorter ways.
const LEAST: usize = 4096;

/// The engine.
#[derive(Debug)]
pub(crate) struct Bound;

impl Launch for Bound {
    fn name(&self) -> &str {
        "bound"
    }

    fn commands(&self, ranks: usize, place: &Path) -> Result<Vec<Command>, Failure> {
        let program = std::env::current_exe()
            .map_err(|cause| Failure::new(format!("finding this program: {cause}")))?;
        let command = |rank: usize| {
            let mut command = Command::new(&program);
            command.args([AS_BOUND, &rank.to_string()]).arg(place);
            command
        };
        Ok((0..ranks).map(command).collect())
    }

    fn takes(&self, cell: &Cell) -> bool {
        let is_known = cell.op == Op::AllReduce && cell.variant.in_place;
        let is_plain = cell.dtype == DataType::F32 && cell.redop == ReduceOp::Sum;
        let fits = cell.ranks == RANKS && host::cores() >= RANKS && cell.bytes() >= LEAST;
        is_known && is_plain && fits
    }

    fn is_bound(&self) -> bool {
        true
    }
}

/// The life of a rank.
///
/// # Errors
/// Why it ended early, in words; the driver has been told too, if that was possible.
pub(crate) fn run(words: &[String]) -> Result<(), String> {
    let [rank, place] = words else { return Err("a rank is started by dist-bench itself".into()) };
    let rank: usize = rank.parse().map_err(|_| format!("no rank: {rank}"))?;
    Post::open(rank, place)?.tell(|post| {
        thread::pin_to(rank).map_err(|error| error.to_string())?;
        let mut pair = Pair::meet(rank, place)?;
        post.obey(&mut |order| pair.carry_out(order))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::samples::cell;

    #[test]
    fn it_takes_part_where_it_knows_how() {
        let takes = |cell: Cell| Bound.takes(&cell);
        assert_eq!(takes(cell(Op::AllReduce, LEAST)), host::cores() >= RANKS);
        assert!(!takes(cell(Op::AllReduce, 4)) && !takes(cell(Op::AllGather, LEAST)));
        assert!(!takes(Cell { ranks: 4, ..cell(Op::AllReduce, LEAST) }));
        assert!(!takes(Cell { dtype: DataType::F64, ..cell(Op::AllReduce, LEAST) }));
    }
}
