//! Down a binomial tree: few hops, and the root sends everything several times.

use super::down;
use crate::algo::Operation;
use crate::algo::message::{Call, Team};
use crate::algo::pattern::tree;
use crate::algo::select::Shape;
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::error::Result;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Broadcast],
    name: "binomial",
    description: "messages down a binomial tree",
    fits: ALWAYS,
    pays,
    ordered: true,
    body: Body::Message(run),
};

/// Up to which size a tree's fewer hops beat a chain's sending everything once.
fn pays(bytes: usize, shape: &Shape) -> bool {
    bytes <= 1 << 20 || shape.ranks <= 2
}

/// All ranks.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`].
pub fn run(call: &mut Call<'_>, team: Team<'_>, operation: &Operation<'_>) -> Result<()> {
    let place = tree::binomial(team.size(), operation.root()?, team.me());
    down(call, team, &place, operation.send, operation.recv)
}
