//! Hierarchical all-reduce.

pub mod split_rail;
pub mod two_level;

use super::HierarchicalOperation;
use crate::algo::fold::Fold;
use crate::algo::message::{Team, all_reduce};
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::base::ids::Rank;

/// All-reduces the partial results of the nodes between `members`, one rank of each node.
fn all_reduce_between_nodes(
    levels: &mut HierarchicalOperation<'_>,
    members: &[Rank],
    fold: Fold,
    data: Dst<'_>,
) -> Result<()> {
    let team = Team::of(members, levels.messages.rank())?;
    all_reduce::select_team_algorithm(data.len(), team.size())(
        &mut levels.messages,
        team,
        fold,
        data,
    )
}
