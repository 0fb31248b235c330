//! Dissemination barrier: in each round, each member sends an empty message, and the distance
//! between sender and receiver doubles with each round. The number of hops is about log2 of the
//! number of members.

use crate::algo::message::{MessageOperation, Team};
use crate::algo::pattern::bruck::rounds;
use crate::algo::pattern::pairwise;
use crate::algo::row::Algorithm;
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Barrier],
    name: "dissemination",
    description: "messages over distances that double",
    ..Algorithm::message(run_team)
};

/// Runs the algorithm within a team. Each member learns of the arrival of all members, directly or
/// through other members.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`].
pub fn run_team(call: &mut MessageOperation<'_>, team: Team<'_>) -> Result<()> {
    let (size, me) = (team.size(), team.own_position());
    let mut exchange = call.exchange(team);
    for round in rounds(size) {
        exchange.send(pairwise::send_peer(size, me, round.distance), Src::empty());
        let incoming =
            exchange.receive(pairwise::receive_peer(size, me, round.distance), Dst::empty());
        exchange.wait(incoming)?;
    }
    exchange.finish()
}
