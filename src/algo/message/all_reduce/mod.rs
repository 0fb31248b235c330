//! All-reduce over messages, in place: the data of every member become the fold of all.

pub mod direct;
pub mod doubling;
pub mod ordered;
pub mod rabenseifner;
pub mod ring;

use super::{Call, Team};
use crate::algo::Operation;
use crate::algo::fold::{Fold, contribute_part, finish};
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::base::ids::WorldSize;

/// An algorithm among the members of a team.
pub type Among = fn(&mut Call<'_>, Team<'_>, Fold, Dst<'_>) -> Result<()>;

/// The algorithm that pays; all members choose the same.
pub fn best(bytes: usize, ranks: WorldSize) -> Among {
    match () {
        () if direct::pays(bytes, ranks) => direct::among,
        () if doubling::pays(bytes, ranks) => doubling::among,
        () if rabenseifner::pays(bytes, ranks) => rabenseifner::among,
        () => ring::among,
    }
}

/// All ranks, by an algorithm that folds some vectors before others.
fn by_and_by(
    call: &mut Call<'_>,
    team: Team<'_>,
    operation: &Operation<'_>,
    among: Among,
) -> Result<()> {
    contribute_part(operation, operation.recv, operation.send, team.size())?;
    among(call, team, Fold::partial(operation)?, operation.recv)?;
    finish(operation, operation.recv, team.size())
}
