//! Everybody sends its vector to the root, which folds all at once and in rank order: so the result
//! does not depend on which ranks share a node. Only the root waits.

use crate::algo::Operation;
use crate::algo::fold::{Fold, contribute};
use crate::algo::message::reduce_scatter::ordered::part_of_each;
use crate::algo::message::{Call, POSTED, Team};
use crate::algo::pattern::pairwise;
use crate::algo::pattern::slices::chunks;
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Reduce],
    name: "ordered",
    description: "messages, everybody sends its vector to the root, which folds all at once in rank order",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: true,
    body: Body::Message(run),
};

/// All ranks, a part of each vector at a time.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`], and `OutOfMemory`.
pub fn run(call: &mut Call<'_>, team: Team<'_>, operation: &Operation<'_>) -> Result<()> {
    let (size, me, root) = (team.size(), team.me(), operation.root()?);
    let most = part_of_each(size);
    let vectors = if me == root { size } else { 1 };
    let mut scratch = call.scratch(vectors * most.min(operation.bytes()))?;
    let memory = Dst::from(scratch.as_mut_slice());
    for chunk in chunks(operation.bytes(), most) {
        let (start, len) = (chunk.start, chunk.len());
        let place = |rank: usize| memory.slice(if me == root { rank * len } else { 0 }, len);
        contribute(operation, place(me), operation.send.slice(start, len))?;
        let mut exchange = call.exchange(team);
        if me != root {
            exchange.send(root, place(me).as_src());
            exchange.finish()?;
            continue;
        }
        for distance in 1..size {
            let from = pairwise::to(size, me, distance);
            exchange.receive(from, place(from));
            exchange.wait_few(POSTED)?;
        }
        exchange.finish()?;
        let result = operation.recv.slice(start, len);
        Fold::of(operation)?.in_order(result, size, |rank| place(rank).as_src());
    }
    call.keep(scratch);
    Ok(())
}
