//! Recursive doubling: in each round partners exchange what they have folded so far. Few hops;
//! everybody sends the whole vector in each.

use crate::algo::Operation;
use crate::algo::fold::Fold;
use crate::algo::message::{Call, SEGMENT, Team};
use crate::algo::pattern::doubling::{Role, member, partners, role};
use crate::algo::pattern::slices::chunks;
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::base::ids::WorldSize;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "recursive_doubling",
    description: "messages, recursive doubling of whole vectors",
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

/// A hop more for each doubling of the ranks, and the whole vector each time.
pub(super) fn pays(bytes: usize, _ranks: WorldSize) -> bool {
    bytes <= 32 << 10
}

/// All rounds for each chunk.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`], and `OutOfMemory`.
pub fn among(call: &mut Call<'_>, team: Team<'_>, fold: Fold, data: Dst<'_>) -> Result<()> {
    let mut scratch = call.scratch(SEGMENT.min(data.len()))?;
    let memory = Dst::from(scratch.as_mut_slice());
    for chunk in chunks(data.len(), SEGMENT) {
        let (data, theirs) = (data.slice(chunk.start, chunk.len()), memory.slice(0, chunk.len()));
        one(call, team, fold, data, theirs)?;
    }
    call.keep(scratch);
    Ok(())
}

fn one(
    call: &mut Call<'_>,
    team: Team<'_>,
    fold: Fold,
    data: Dst<'_>,
    theirs: Dst<'_>,
) -> Result<()> {
    let (size, me) = (team.size(), team.me());
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
        let given = exchange.receive(me - 1, theirs);
        exchange.wait(given)?;
        fold.two(data, theirs.as_src(), data.as_src());
    }
    for partner in partners(size, number) {
        let partner = member(size, partner);
        let sent = exchange.send(partner, data.as_src());
        let came = exchange.receive(partner, theirs);
        exchange.wait(came)?;
        exchange.wait(sent)?;
        let (low, high) = if partner < me { (theirs, data) } else { (data, theirs) };
        fold.two(data, low.as_src(), high.as_src());
    }
    if takes {
        exchange.send(me - 1, data.as_src());
    }
    exchange.finish()
}
