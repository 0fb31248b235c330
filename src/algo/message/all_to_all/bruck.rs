//! Bruck's all-to-all, for small blocks: each message forwards at most half of all blocks, over
//! distances that double. A block moves in the rounds that the bits of its total distance select.

use crate::algo::message::{MessageOperation, Team};
use crate::algo::pattern::{bruck, pairwise};
use crate::algo::row::{Algorithm, GroupShape};
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllToAll],
    name: "bruck",
    description: "messages, half of all blocks over distances that double; at most 1 MiB in total",
    fits,
    pays,
    ..Algorithm::message(run)
};

/// The algorithm needs scratch memory for all blocks twice. The limit keeps it small.
fn fits(bytes: usize, shape: &GroupShape) -> bool {
    bytes.saturating_mul(shape.ranks) <= 1 << 20
}

/// Returns whether the smaller number of messages outweighs the data: each message carries half of
/// a rank's blocks, while the pairwise algorithm sends each block once.
fn pays(bytes: usize, shape: &GroupShape) -> bool {
    shape.ranks >= 8 && bytes.saturating_mul(shape.ranks) <= 16 << 10
}

/// Runs the algorithm between all ranks.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`], and `OutOfMemory`.
pub fn run(call: &mut MessageOperation<'_>, team: Team<'_>) -> Result<()> {
    let operation = call.operation;
    let (size, me, len) = (team.size(), team.own_position(), operation.bytes());
    let half = size.div_ceil(2) * len;
    let mut scratch = call.scratch(size * len + 2 * half)?;
    let memory = Dst::from(scratch.as_mut_slice());
    // The index of a block is its total distance from the sender to the receiver.
    let block = |way: usize| memory.slice(way * len, len);
    let (out, come) = (memory.slice(size * len, half), memory.slice(size * len + half, half));
    for way in 0..size {
        kernel::copy(block(way), operation.send_block(pairwise::send_peer(size, me, way)));
    }
    let mut exchange = call.exchange(team);
    for bruck::BruckRound { distance, .. } in bruck::rounds(size) {
        let moving = || bruck::moving_blocks(size, distance).enumerate();
        for (i, way) in moving() {
            kernel::copy(out.slice(i * len, len), block(way).as_src());
        }
        let bytes = moving().count() * len;
        let sent =
            exchange.send(pairwise::send_peer(size, me, distance), out.as_src().slice(0, bytes));
        let incoming =
            exchange.receive(pairwise::receive_peer(size, me, distance), come.slice(0, bytes));
        exchange.wait(incoming)?;
        exchange.wait(sent)?;
        for (i, way) in moving() {
            kernel::copy(block(way), come.as_src().slice(i * len, len));
        }
    }
    exchange.finish()?;
    for way in 0..size {
        let from = pairwise::receive_peer(size, me, way);
        kernel::copy(operation.recv_block(from), block(way).as_src());
    }
    call.return_scratch(scratch);
    Ok(())
}
