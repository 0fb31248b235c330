//! Direct exchange, for few members and small vectors: everybody sends its vector to everybody, and folds all of
//! them in the order of the team. One hop.

use crate::algo::fold::Fold;
use crate::algo::message::{Call, SEGMENT, Team};
use crate::algo::pattern::pairwise;
use crate::algo::pattern::slices::chunks;
use crate::base::buffer::Dst;
use crate::base::error::Result;

/// The least that is exchanged at a time.
const LEAST: usize = 4 << 10;

/// One round for each chunk.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`], and `OutOfMemory`.
pub fn run(call: &mut Call<'_>, team: Team<'_>, fold: Fold, data: Dst<'_>) -> Result<()> {
    let most = (SEGMENT / team.size() / LEAST).max(1) * LEAST;
    let mut scratch = call.scratch(team.size() * most.min(data.len()))?;
    let memory = Dst::from(scratch.as_mut_slice());
    for chunk in chunks(data.len(), most) {
        one(call, team, fold, data.slice(chunk.start, chunk.len()), memory)?;
    }
    call.keep(scratch);
    Ok(())
}

fn one(
    call: &mut Call<'_>,
    team: Team<'_>,
    fold: Fold,
    data: Dst<'_>,
    memory: Dst<'_>,
) -> Result<()> {
    let (size, me, len) = (team.size(), team.me(), data.len());
    let vector = |member: usize| if member == me { data } else { memory.slice(member * len, len) };
    let mut exchange = call.exchange(team);
    for distance in 1..size {
        let from = pairwise::from(size, me, distance);
        exchange.receive(from, vector(from));
        exchange.send(pairwise::to(size, me, distance), data.as_src());
    }
    exchange.finish()?;
    if size > 1 {
        fold.in_order(data, size, |member| vector(member).as_src());
    }
    Ok(())
}
