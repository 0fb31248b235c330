//! Each rank folds a slice, and the root gathers the slices: the root receives about two vectors,
//! whatever the number of ranks, and all fold at once.
//!
//! A slice is folded vector by vector as they come; of narrow floats all vectors at once, since a
//! rounding for each rank would lose too much.

use crate::algo::Operation;
use crate::algo::fold::{Fold, changes_parts, contribute_part, finish, is_narrow};
use crate::algo::message::{Call, POSTED, Team, reduce_scatter};
use crate::algo::pattern::pairwise;
use crate::algo::pattern::slices::{chunks, owned};
use crate::algo::select::Shape;
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Reduce],
    name: "reduce_scatter_gather",
    description: "messages, each rank folds a slice, the root gathers the slices",
    fits: ALWAYS,
    pays,
    ordered: false,
    body: Body::Message(run),
};

/// What is worked through at a time; scratch memory is at most about twice as large.
const MOST: usize = 4 << 20;

/// Two vectors to the root, against a tree's one for each doubling of the ranks, and more messages.
fn pays(bytes: usize, shape: &Shape) -> bool {
    shape.ranks > 4 && bytes > shape.ranks.saturating_mul(16 << 10)
}

/// All ranks.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`], and `OutOfMemory`.
pub fn run(call: &mut Call<'_>, team: Team<'_>, operation: &Operation<'_>) -> Result<()> {
    if is_narrow(operation.dtype()) {
        return at_once(call, team, operation);
    }
    let (size, me, bytes) = (team.size(), team.me(), operation.bytes());
    let longest = (0..size).map(|rank| owned(MOST.min(bytes), size, rank).len()).max().unwrap_or(0);
    let changes = changes_parts(operation)?;
    let changed = if changes { MOST.min(bytes) } else { 0 };
    let mut scratch = call.scratch(3 * longest + changed)?;
    let memory = Dst::from(scratch.as_mut_slice());
    let (own, landing) = (memory.slice(0, longest), memory.slice(longest, 2 * longest));
    for chunk in chunks(bytes, MOST) {
        let mut part = operation.send.slice(chunk.start, chunk.len());
        if changes {
            let changed = memory.slice(3 * longest, chunk.len());
            contribute_part(operation, changed, part, size)?;
            part = changed.as_src();
        }
        let own = own.slice(0, owned(chunk.len(), size, me).len());
        let result =
            (me == operation.root()?).then(|| operation.recv.slice(chunk.start, chunk.len()));
        one(call, team, operation, part, own, landing, result)?;
    }
    call.keep(scratch);
    finish(operation, operation.recv, size)
}

/// All vectors of a slice at once, averages and factors included.
fn at_once(call: &mut Call<'_>, team: Team<'_>, operation: &Operation<'_>) -> Result<()> {
    let (size, me, bytes) = (team.size(), team.me(), operation.bytes());
    let longest = (0..size).map(|rank| owned(MOST.min(bytes), size, rank).len()).max().unwrap_or(0);
    let mut scratch = call.scratch(longest)?;
    let memory = Dst::from(scratch.as_mut_slice());
    for chunk in chunks(bytes, MOST) {
        let part = operation.send.slice(chunk.start, chunk.len());
        let slice = |rank: usize| owned(part.len(), size, rank);
        let give = |rank: usize| part.slice(slice(rank).start, slice(rank).len());
        let own = memory.slice(0, slice(me).len());
        reduce_scatter::ordered::among(call, team, operation, &give, own)?;
        let result =
            (me == operation.root()?).then(|| operation.recv.slice(chunk.start, chunk.len()));
        gather(call, team, operation, own, result)?;
    }
    call.keep(scratch);
    Ok(())
}

/// One chunk; `result` is where the root wants it.
fn one(
    call: &mut Call<'_>,
    team: Team<'_>,
    operation: &Operation<'_>,
    part: Src<'_>,
    own: Dst<'_>,
    landing: Dst<'_>,
    result: Option<Dst<'_>>,
) -> Result<()> {
    let slice = |rank: usize| owned(part.len(), team.size(), rank);
    let give = |rank: usize| part.slice(slice(rank).start, slice(rank).len());
    kernel::copy(own, give(team.me()));
    reduce_scatter::pairwise::among(call, team, Fold::partial(operation)?, &give, own, landing)?;
    gather(call, team, operation, own, result)
}

/// Brings the slices of one chunk to the root.
fn gather(
    call: &mut Call<'_>,
    team: Team<'_>,
    operation: &Operation<'_>,
    own: Dst<'_>,
    result: Option<Dst<'_>>,
) -> Result<()> {
    let (size, me, root) = (team.size(), team.me(), operation.root()?);
    let mut exchange = call.exchange(team);
    let Some(result) = result else {
        exchange.send(root, own.as_src());
        return exchange.finish();
    };
    let slice = |rank: usize| owned(result.len(), size, rank);
    let place = |rank: usize| result.slice(slice(rank).start, slice(rank).len());
    kernel::copy(place(me), own.as_src());
    for distance in 1..size {
        let from = pairwise::to(size, me, distance);
        exchange.receive(from, place(from));
        exchange.wait_few(POSTED)?;
    }
    exchange.finish()
}
