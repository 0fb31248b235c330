//! All-reduce over messages, in place: the data of every member becomes the fold of the data of all
//! members.

pub mod linear;
pub mod ordered;
pub mod rabenseifner;
pub mod recursive_doubling;
pub mod ring;

use super::{MessageOperation, Team};
use crate::algo::Operation;
use crate::algo::fold::{Fold, copy_partial_contribution, finish_average};
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::base::ids::WorldSize;

/// An all-reduce algorithm within a team.
pub type TeamAllReduce = fn(&mut MessageOperation<'_>, Team<'_>, Fold, Dst<'_>) -> Result<()>;

/// Selects the algorithm that pays. All members choose the same.
pub fn select_team_algorithm(bytes: usize, ranks: WorldSize) -> TeamAllReduce {
    match () {
        () if linear::pays(bytes, ranks) => linear::run_team,
        () if recursive_doubling::pays(bytes, ranks) => recursive_doubling::run_team,
        () if rabenseifner::pays(bytes, ranks) => rabenseifner::run_team,
        () => ring::run_team,
    }
}

/// Runs an all-reduce between all ranks, by an algorithm that folds the vectors step by step.
fn reduce_in_place(
    call: &mut MessageOperation<'_>,
    team: Team<'_>,
    operation: &Operation<'_>,
    run_team: TeamAllReduce,
) -> Result<()> {
    copy_partial_contribution(operation, operation.recv, operation.send, team.size())?;
    run_team(call, team, Fold::partial(operation)?, operation.recv)?;
    finish_average(operation, operation.recv, team.size())
}
