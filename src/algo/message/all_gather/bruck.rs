//! Bruck's all-gather, for small blocks: the number of blocks that each member holds doubles with
//! each message ([`crate::algo::pattern::bruck`]).

use crate::algo::message::{MessageOperation, Team};
use crate::algo::pattern::bruck::{BruckRound, rounds};
use crate::algo::pattern::pairwise;
use crate::algo::row::{Algorithm, GroupShape};
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllGather],
    name: "bruck",
    description: "messages, the blocks of each rank double in each round; at most 1 MiB in total",
    fits,
    pays,
    ..Algorithm::message(run)
};

/// Returns whether all blocks together have at most 1 MiB. The algorithm needs scratch memory for
/// all blocks, and this limit bounds it.
fn fits(bytes: usize, shape: &GroupShape) -> bool {
    bytes.saturating_mul(shape.ranks) <= 1 << 20
}

/// Returns whether the algorithm is faster than the ring. It sends fewer messages, but copies every
/// block once more.
fn pays(bytes: usize, shape: &GroupShape) -> bool {
    bytes.saturating_mul(shape.ranks) <= 64 << 10
}

/// Runs the algorithm between all ranks of the group.
///
/// # Errors
/// As [`run_team`].
pub fn run(call: &mut MessageOperation<'_>, team: Team<'_>) -> Result<()> {
    let operation = call.operation;
    run_team(call, team, operation.send, operation.recv)
}

/// Runs the algorithm within a team. `own` is this member's block. `data` receives the blocks of
/// all members, which have the same length.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`], and `OutOfMemory`.
pub fn run_team(
    call: &mut MessageOperation<'_>,
    team: Team<'_>,
    own: Src<'_>,
    data: Dst<'_>,
) -> Result<()> {
    let (size, me, len) = (team.size(), team.own_position(), own.len());
    let mut scratch = call.scratch(data.len())?;
    // The blocks in member order, but rotated: this member's own block is first.
    let rotated = Dst::from(&mut scratch[..data.len()]);
    kernel::copy(rotated.slice(0, len), own);
    let mut exchange = call.exchange(team);
    for BruckRound { distance, blocks } in rounds(size) {
        // Here the blocks move from higher to lower positions, opposite to `pairwise`.
        exchange.send(
            pairwise::receive_peer(size, me, distance),
            rotated.as_src().slice(0, blocks * len),
        );
        let place = rotated.slice(distance * len, blocks * len);
        let incoming = exchange.receive(pairwise::send_peer(size, me, distance), place);
        exchange.wait(incoming)?;
    }
    exchange.finish()?;
    let first = (size - me) * len;
    kernel::copy(data.slice(me * len, first), rotated.as_src().slice(0, first));
    kernel::copy(data.slice(0, me * len), rotated.as_src().slice(first, me * len));
    call.return_scratch(scratch);
    Ok(())
}
