//! Bruck's all-to-all, for small blocks. The distance between sender and receiver doubles with each
//! round, and each message forwards at most half of all blocks. A block whose receiver is `d`
//! positions ahead of its sender moves in the rounds whose distances are the set bits of `d`.

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

/// Returns whether all blocks together reach at most 1 MiB. The algorithm needs scratch memory of
/// twice that size.
fn fits(bytes: usize, shape: &GroupShape) -> bool {
    bytes.saturating_mul(shape.ranks) <= 1 << 20
}

/// Returns whether the algorithm is faster than the pairwise algorithm. It sends fewer messages but
/// more data: each message carries half of a rank's blocks, while the pairwise algorithm sends each
/// block once.
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
    let block = |total_distance: usize| memory.slice(total_distance * len, len);
    let (outgoing, arriving) =
        (memory.slice(size * len, half), memory.slice(size * len + half, half));
    for total_distance in 0..size {
        kernel::copy(
            block(total_distance),
            operation.send_block(pairwise::send_peer(size, me, total_distance)),
        );
    }
    let mut exchange = call.exchange(team);
    for bruck::BruckRound { distance, .. } in bruck::rounds(size) {
        let moving = || bruck::moving_blocks(size, distance).enumerate();
        for (i, total_distance) in moving() {
            kernel::copy(outgoing.slice(i * len, len), block(total_distance).as_src());
        }
        let bytes = moving().count() * len;
        let sent = exchange
            .send(pairwise::send_peer(size, me, distance), outgoing.as_src().slice(0, bytes));
        let incoming =
            exchange.receive(pairwise::receive_peer(size, me, distance), arriving.slice(0, bytes));
        exchange.wait(incoming)?;
        exchange.wait(sent)?;
        for (i, total_distance) in moving() {
            kernel::copy(block(total_distance), arriving.as_src().slice(i * len, len));
        }
    }
    exchange.finish()?;
    for total_distance in 0..size {
        let from = pairwise::receive_peer(size, me, total_distance);
        kernel::copy(operation.recv_block(from), block(total_distance).as_src());
    }
    call.return_scratch(scratch);
    Ok(())
}
