//! All-reduce between nodes.

pub mod lanes;
pub mod leader;

use super::Levels;
use crate::algo::Operation;
use crate::algo::fold::{Fold, finish};
use crate::algo::message::{Team, all_reduce};
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::base::ids::Rank;

/// One rank of each node all-reduces what it has folded for its node.
fn between(
    levels: &mut Levels<'_>,
    members: &[Rank],
    fold: Fold,
    operation: &Operation<'_>,
    data: Dst<'_>,
) -> Result<()> {
    let team = Team::of(members, levels.call.rank())?;
    all_reduce::best(data.len(), team.size())(&mut levels.call, team, fold, data)?;
    finish(operation, data, levels.nodes.ranks())
}
