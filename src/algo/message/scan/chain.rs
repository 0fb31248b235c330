//! Scan and exscan by a pipeline along the ranks. Each rank receives the fold of the vectors of all
//! lower ranks, folds its own vector into it, and sends the result to the next rank, one segment at
//! a time. Every rank sends and receives each element once.

use crate::algo::fold::{Fold, copy_contribution};
use crate::algo::message::{MessageOperation, SEGMENT_BYTES, Team};
use crate::algo::pattern::slices::chunks;
use crate::algo::row::Algorithm;
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Scan, OpKind::Exscan],
    name: "chain",
    description: "messages along the ranks, each rank reduces its vector into the received one and sends the result \
                  on",
    pays: |bytes, shape| {
        shape.max_ranks_per_node == 1 && shape.ranks > 2 && bytes > MIN_CHAIN_BYTES
    },
    ordered: false,
    ..Algorithm::message(run)
};

/// The largest size at which the one-hop algorithm [`super::ordered`] is faster. In the chain, the
/// last rank waits for all other ranks one after the other.
const MIN_CHAIN_BYTES: usize = 64 << 10;

/// The maximum number of segments by which a rank may be ahead of the next rank.
const MAX_SEGMENTS_AHEAD: usize = 2;

/// Runs the algorithm between all ranks, one segment at a time.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`], and `OutOfMemory`.
pub fn run(call: &mut MessageOperation<'_>, team: Team<'_>) -> Result<()> {
    let operation = call.operation;
    let (size, me) = (team.size(), team.own_position());
    let fold = Fold::of(operation)?;
    let is_inclusive = operation.descriptor.kind == OpKind::Scan;
    let max_segment = SEGMENT_BYTES.min(operation.bytes());
    // The memory holds one received prefix, and `MAX_SEGMENTS_AHEAD` prefixes that are being sent.
    let mut scratch = call.scratch((1 + MAX_SEGMENTS_AHEAD) * max_segment)?;
    let memory = Dst::from(scratch.as_mut_slice());
    let mut exchange = call.exchange(team);
    let mut sent = [None; MAX_SEGMENTS_AHEAD];
    for (index, chunk) in chunks(operation.bytes(), SEGMENT_BYTES).enumerate() {
        let (start, len) = (chunk.start, chunk.len());
        let lower = memory.slice(0, len);
        let token = (me > 0).then(|| exchange.receive(me - 1, lower));
        let slot = index % MAX_SEGMENTS_AHEAD;
        if let Some(token) = sent[slot].take() {
            exchange.wait(token)?;
        }
        let prefix = memory.slice((1 + slot) * max_segment, len);
        copy_contribution(operation, prefix, operation.send.slice(start, len))?;
        if let Some(token) = token {
            exchange.wait(token)?;
            fold.fold_two(prefix, lower.as_src(), prefix.as_src());
        } else {
            // Rank 0 folds a single vector, because a fold normalises values: a bool becomes 0 or
            // 1, and a NaN becomes the canonical NaN.
            fold.fold_in_order(prefix, 1, |_| prefix.as_src());
        }
        if me + 1 < size {
            sent[slot] = Some(exchange.send(me + 1, prefix.as_src()));
        }
        let result = if is_inclusive { prefix } else { lower };
        if is_inclusive || me > 0 {
            kernel::copy(operation.recv.slice(start, len), result.as_src());
        }
    }
    exchange.finish()?;
    call.return_scratch(scratch);
    Ok(())
}
