//! Scan in rank order: each rank sends its vector to all higher ranks, and folds the vectors of the
//! lower ranks at once and in rank order. This takes one hop; rank 0 sends its vector to all other
//! ranks.

use crate::algo::fold::{Fold, copy_contribution};
use crate::algo::message::reduce_scatter::ordered::chunk_per_vector;
use crate::algo::message::{MAX_POSTED_STRIPES, MessageOperation, Team};
use crate::algo::pattern::slices::chunks;
use crate::algo::row::Algorithm;
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Scan, OpKind::Exscan],
    name: "ordered",
    description: "messages from each rank to all higher ranks, each rank reduces all at once in rank order; one hop",
    ..Algorithm::message(run)
};

/// Runs the algorithm between all ranks, one chunk of each vector at a time.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`], and `OutOfMemory`.
pub fn run(call: &mut MessageOperation<'_>, team: Team<'_>) -> Result<()> {
    let operation = call.operation;
    let (size, me) = (team.size(), team.own_position());
    let vectors = operation.descriptor.kind.prefix_len(me);
    let fold = Fold::of(operation)?;
    let max_chunk = chunk_per_vector(size);
    let mut scratch = call.scratch((me + 1) * max_chunk.min(operation.bytes()))?;
    let memory = Dst::from(scratch.as_mut_slice());
    for chunk in chunks(operation.bytes(), max_chunk) {
        let (start, len) = (chunk.start, chunk.len());
        let vector = |rank: usize| memory.slice(rank * len, len);
        copy_contribution(operation, vector(me), operation.send.slice(start, len))?;
        let mut exchange = call.exchange(team);
        // The next rank comes first, so that each sender starts with a different receiver.
        for to in me + 1..size {
            exchange.send(to, vector(me).as_src());
            exchange.wait_until_at_most(MAX_POSTED_STRIPES)?;
        }
        for from in (0..me).rev() {
            exchange.receive(from, vector(from));
            exchange.wait_until_at_most(MAX_POSTED_STRIPES)?;
        }
        exchange.finish()?;
        if vectors > 0 {
            let result = operation.recv.slice(start, len);
            fold.fold_in_order(result, vectors, |rank| vector(rank).as_src());
        }
    }
    call.return_scratch(scratch);
    Ok(())
}
