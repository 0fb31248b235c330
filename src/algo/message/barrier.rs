//! Barrier over messages: dissemination, about log2 of the number of members in hops.

use super::{Call, Team};
use crate::algo::pattern::bruck::rounds;
use crate::algo::pattern::pairwise;
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;

/// Empty messages over distances that double.
///
/// # Errors
/// As [`super::Exchange::wait`].
pub fn dissemination(call: &mut Call<'_>, team: Team<'_>) -> Result<()> {
    let (size, me) = (team.size(), team.me());
    let mut exchange = call.exchange(team);
    for round in rounds(size) {
        exchange.send(pairwise::to(size, me, round.distance), Src::empty());
        let came = exchange.receive(pairwise::from(size, me, round.distance), Dst::empty());
        exchange.wait(came)?;
    }
    exchange.finish()
}
