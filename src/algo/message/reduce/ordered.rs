//! Reduce in rank order: each rank sends its vector to the root, which folds all vectors at once
//! and in rank order. The result thus does not depend on which ranks share a node. Only the root
//! waits.

use crate::algo::fold::{Fold, copy_contribution};
use crate::algo::message::reduce_scatter::ordered::chunk_per_vector;
use crate::algo::message::{MessageOperation, Team};
use crate::algo::pattern::slices::chunks;
use crate::algo::row::Algorithm;
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Reduce],
    name: "ordered",
    description: "messages, each rank sends its vector to the root, which reduces all at once in rank order",
    ..Algorithm::message(run)
};

/// Runs the algorithm between all ranks, one chunk of each vector at a time.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`], and `OutOfMemory`.
pub fn run(call: &mut MessageOperation<'_>, team: Team<'_>) -> Result<()> {
    let operation = call.operation;
    let (size, me, root) = (team.size(), team.own_position(), operation.root()?);
    let max_chunk = chunk_per_vector(size);
    let vectors = if me == root { size } else { 1 };
    let mut scratch = call.scratch(vectors * max_chunk.min(operation.bytes()))?;
    let memory = Dst::from(scratch.as_mut_slice());
    for chunk in chunks(operation.bytes(), max_chunk) {
        let (start, len) = (chunk.start, chunk.len());
        let vector_memory =
            |rank: usize| memory.slice(if me == root { rank * len } else { 0 }, len);
        copy_contribution(operation, vector_memory(me), operation.send.slice(start, len))?;
        let mut exchange = call.exchange(team);
        if me != root {
            exchange.send(root, vector_memory(me).as_src());
            exchange.finish()?;
            continue;
        }
        exchange.receive_from_all(vector_memory)?;
        let result = operation.recv.slice(start, len);
        Fold::of(operation)?.fold_in_order(result, size, |rank| vector_memory(rank).as_src());
    }
    call.return_scratch(scratch);
    Ok(())
}
