//! Along a chain: everybody sends everything once.

use super::down;
use crate::algo::Operation;
use crate::algo::message::{Call, Team};
use crate::algo::pattern::tree;
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::error::Result;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Broadcast],
    name: "chain",
    description: "messages along a chain, in segments",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: true,
    body: Body::Message(run),
};

/// All ranks.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`].
pub fn run(call: &mut Call<'_>, team: Team<'_>, operation: &Operation<'_>) -> Result<()> {
    let place = tree::chain(team.size(), operation.root()?, team.me());
    down(call, team, &place, operation.send, operation.recv)
}
