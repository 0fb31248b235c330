//! Direct exchange, for few members and small vectors: everybody sends its vector to everybody, and
//! folds all of them in the order of the team. One hop.

use crate::algo::Operation;
use crate::algo::fold::{Fold, contribute};
use crate::algo::message::{Call, POSTED, SEGMENT, Team};
use crate::algo::pattern::pairwise;
use crate::algo::pattern::slices::chunks;
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::base::ids::WorldSize;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "linear",
    description: "messages from all to all, everybody folds all vectors; one hop",
    fits: ALWAYS,
    pays: |bytes, shape| pays(bytes, shape.ranks),
    ordered: true,
    body: Body::Message(run),
};

/// All ranks; all vectors are folded at once, so that nothing is rounded in between.
///
/// # Errors
/// As [`among`].
pub fn run(call: &mut Call<'_>, team: Team<'_>, operation: &Operation<'_>) -> Result<()> {
    contribute(operation, operation.recv, operation.send)?;
    among(call, team, Fold::of(operation)?, operation.recv)
}

/// One message each way between all is the fewest hops, and each rank sends its vector to all
/// others.
pub(super) fn pays(bytes: usize, ranks: WorldSize) -> bool {
    bytes <= 4 << 10 && ranks <= 8
}

/// The least that is exchanged at a time.
const LEAST: usize = 4 << 10;

/// One round for each chunk.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`], and `OutOfMemory`.
pub fn among(call: &mut Call<'_>, team: Team<'_>, fold: Fold, data: Dst<'_>) -> Result<()> {
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
        exchange.wait_few(POSTED)?;
    }
    exchange.finish()?;
    if size > 1 {
        fold.in_order(data, size, |member| vector(member).as_src());
    }
    Ok(())
}
