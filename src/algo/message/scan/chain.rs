//! A pipeline along the ranks. Each rank receives the fold of the lower ranks' vectors, folds its
//! own vector in, and sends the result to the next rank, a segment at a time. Every rank sends and
//! receives each element once.

use crate::algo::Operation;
use crate::algo::fold::{Fold, contribute};
use crate::algo::message::{Call, SEGMENT, Team};
use crate::algo::pattern::slices::chunks;
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Scan, OpKind::Exscan],
    name: "chain",
    description: "messages along the ranks, each folds its vector into what comes and passes that on",
    fits: ALWAYS,
    pays: |bytes, shape| shape.largest == 1 && shape.ranks > 2 && bytes > LEAST,
    ordered: false,
    body: Body::Message(run),
};

/// Up to this many bytes one hop is faster than a chain, whose last rank waits for all others in
/// turn.
const LEAST: usize = 64 << 10;

/// Segments that a rank may be ahead of the next one.
const AHEAD: usize = 2;

/// All ranks, a segment at a time.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`], and `OutOfMemory`.
pub fn run(call: &mut Call<'_>, team: Team<'_>, operation: &Operation<'_>) -> Result<()> {
    let (size, me) = (team.size(), team.me());
    let fold = Fold::of(operation)?;
    let is_inclusive = operation.descriptor.kind == OpKind::Scan;
    let most = SEGMENT.min(operation.bytes());
    // One prefix that is received, and AHEAD prefixes that are being sent.
    let mut scratch = call.scratch((1 + AHEAD) * most)?;
    let memory = Dst::from(scratch.as_mut_slice());
    let mut exchange = call.exchange(team);
    let mut sent = [None; AHEAD];
    for (index, chunk) in chunks(operation.bytes(), SEGMENT).enumerate() {
        let (start, len) = (chunk.start, chunk.len());
        let lower = memory.slice(0, len);
        let token = (me > 0).then(|| exchange.receive(me - 1, lower));
        let place = index % AHEAD;
        if let Some(token) = sent[place].take() {
            exchange.wait(token)?;
        }
        let through = memory.slice((1 + place) * most, len);
        contribute(operation, through, operation.send.slice(start, len))?;
        if let Some(token) = token {
            exchange.wait(token)?;
            fold.two(through, lower.as_src(), through.as_src());
        } else {
            // As with more vectors: a bool becomes 0 or 1, a NaN the canonical one.
            fold.in_order(through, 1, |_| through.as_src());
        }
        if me + 1 < size {
            sent[place] = Some(exchange.send(me + 1, through.as_src()));
        }
        let result = if is_inclusive { through } else { lower };
        if is_inclusive || me > 0 {
            kernel::copy(operation.recv.slice(start, len), result.as_src());
        }
    }
    exchange.finish()?;
    call.keep(scratch);
    Ok(())
}
