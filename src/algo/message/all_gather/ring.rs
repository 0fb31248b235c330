//! Blocks go round. Everybody sends to its neighbour only, and receives each block once.

use crate::algo::Operation;
use crate::algo::message::ring::Ring;
use crate::algo::message::{Call, Team};
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllGather, OpKind::AllGatherV],
    name: "ring",
    description: "messages, blocks go round",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: true,
    body: Body::Message(run),
};

/// All ranks.
///
/// # Errors
/// As [`among`].
pub fn run(call: &mut Call<'_>, team: Team<'_>, operation: &Operation<'_>) -> Result<()> {
    let block = |rank: usize| operation.recv_block(rank);
    kernel::copy(block(team.me()), operation.send);
    among(call, team, &block)
}

/// Each member's own block is in its place; blocks may have different lengths, that all members
/// know.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`].
pub fn among<'d>(
    call: &mut Call<'_>,
    team: Team<'_>,
    block: &dyn Fn(usize) -> Dst<'d>,
) -> Result<()> {
    Ring::new(team.size(), block).run(call, team, team.size() - 1, None)
}
