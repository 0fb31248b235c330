//! Rabenseifner's algorithm: recursive halving folds one block at each worker, recursive doubling
//! gathers the blocks. Few hops, and everybody sends about two vectors in all.

use crate::algo::Operation;
use crate::algo::fold::Fold;
use crate::algo::message::{Call, Team};
use crate::algo::pattern::doubling::{Role, member, role, workers};
use crate::algo::pattern::halving::rounds;
use crate::algo::pattern::slices::{chunks, owned};
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::base::ids::WorldSize;
use crate::transport::OpKind;
use std::ops::Range;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "rabenseifner",
    description: "messages, recursive halving and doubling",
    fits: ALWAYS,
    pays: |bytes, shape| pays(bytes, shape.ranks),
    ordered: false,
    body: Body::Message(run),
};

/// All ranks.
///
/// # Errors
/// As [`among`].
pub fn run(call: &mut Call<'_>, team: Team<'_>, operation: &Operation<'_>) -> Result<()> {
    super::by_and_by(call, team, operation, among)
}

/// Twice the hops of doubling, and twice the vector in all; a ring has as many hops as ranks.
pub(super) fn pays(bytes: usize, ranks: WorldSize) -> bool {
    bytes <= if ranks >= 32 { 8 << 20 } else { 1 << 20 }
}

/// What is worked through at a time; scratch memory is as large.
const MOST: usize = 8 << 20;

/// Both phases for each chunk.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`], and `OutOfMemory`.
pub fn among(call: &mut Call<'_>, team: Team<'_>, fold: Fold, data: Dst<'_>) -> Result<()> {
    let mut scratch = call.scratch(MOST.min(data.len()))?;
    let memory = Dst::from(scratch.as_mut_slice());
    for chunk in chunks(data.len(), MOST) {
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
    let (size, me, workers) = (team.size(), team.me(), workers(team.size()));
    let mut exchange = call.exchange(team);
    let (number, takes) = match role(size, me) {
        Role::Gives => {
            exchange.send(me + 1, data.as_src());
            // The result comes only after all of it has gone.
            exchange.receive(me + 1, data);
            return exchange.finish();
        }
        Role::Works { number, takes } => (number, takes),
    };
    if takes {
        let theirs = memory.slice(0, data.len());
        let given = exchange.receive(me - 1, theirs);
        exchange.wait(given)?;
        fold.two(data, theirs.as_src(), data.as_src());
    }
    let blocks = |range: &Range<usize>| {
        let start = owned(data.len(), workers, range.start).start;
        data.slice(start, owned(data.len(), workers, range.end - 1).end - start)
    };
    let rounds = rounds(workers, number);
    for round in &rounds {
        let partner = member(size, round.partner);
        let keeps = blocks(&round.keeps);
        let theirs = memory.slice(0, keeps.len());
        exchange.send(partner, blocks(&round.gives).as_src());
        let came = exchange.receive(partner, theirs);
        exchange.wait(came)?;
        let (low, high) = if partner < me { (theirs, keeps) } else { (keeps, theirs) };
        fold.two(keeps, low.as_src(), high.as_src());
    }
    for round in rounds.iter().rev() {
        let partner = member(size, round.partner);
        exchange.send(partner, blocks(&round.keeps).as_src());
        // The partner sends it after it has received what was given to it there.
        let came = exchange.receive(partner, blocks(&round.gives));
        exchange.wait(came)?;
    }
    if takes {
        exchange.send(me - 1, data.as_src());
    }
    exchange.finish()
}
