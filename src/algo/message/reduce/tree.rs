//! Up a binomial tree: each member folds what its children send into its own part.

use crate::algo::Operation;
use crate::algo::fold::{Fold, contribute_part, finish};
use crate::algo::message::{Call, SEGMENT, Team};
use crate::algo::pattern::slices::chunks;
use crate::algo::pattern::tree::{Place, binomial};
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Reduce],
    name: "binomial",
    description: "messages up a binomial tree",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: false,
    body: Body::Message(run),
};

/// All ranks, a segment at a time.
///
/// # Errors
/// As [`up`].
pub fn run(call: &mut Call<'_>, team: Team<'_>, operation: &Operation<'_>) -> Result<()> {
    let (root, fold) = (operation.root()?, Fold::partial(operation)?);
    let place = binomial(team.size(), root, team.me());
    let most = SEGMENT.min(operation.bytes());
    let mut scratch = call.scratch(2 * most)?;
    let memory = Dst::from(scratch.as_mut_slice());
    for chunk in chunks(operation.bytes(), SEGMENT) {
        let (start, len) = (chunk.start, chunk.len());
        let part = match place.parent {
            None => operation.recv.slice(start, len),
            Some(_) => memory.slice(most, len),
        };
        contribute_part(operation, part, operation.send.slice(start, len), team.size())?;
        up(call, team, &place, fold, part, memory.slice(0, len))?;
    }
    call.keep(scratch);
    finish(operation, operation.recv, team.size())
}

/// Folds `part` of all members into that of the root; those of the others are left with anything.
/// `theirs` is scratch memory as long as the part.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`].
pub fn up(
    call: &mut Call<'_>,
    team: Team<'_>,
    place: &Place,
    fold: Fold,
    part: Dst<'_>,
    theirs: Dst<'_>,
) -> Result<()> {
    let mut exchange = call.exchange(team);
    // The nearest first: it has least to wait for.
    for &child in place.children.iter().rev() {
        let came = exchange.receive(child, theirs);
        exchange.wait(came)?;
        fold.two(part, part.as_src(), theirs.as_src());
    }
    if let Some(parent) = place.parent {
        exchange.send(parent, part.as_src());
    }
    exchange.finish()
}
