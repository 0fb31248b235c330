//! Reduce over messages: up a binomial tree. Each member folds what its children send into its own part.

use super::{Call, Team};
use crate::algo::fold::Fold;
use crate::algo::pattern::tree::Place;
use crate::base::buffer::Dst;
use crate::base::error::Result;

/// Folds `part` of all members into that of the root; those of the others are left with anything. `theirs` is
/// scratch memory as long as the part.
///
/// # Errors
/// As [`super::Exchange::wait`].
pub fn up(
    call: &mut Call<'_>,
    team: Team<'_>,
    place: &Place,
    fold: Fold,
    part: Dst<'_>,
    theirs: Dst<'_>,
) -> Result<()> {
    let mut exchange = call.exchange(team);
    // The nearest first: it has least to wait for.
    for &child in place.children.iter().rev() {
        let came = exchange.receive(child, theirs);
        exchange.wait(came)?;
        fold.two(part, part.as_src(), theirs.as_src());
    }
    if let Some(parent) = place.parent {
        exchange.send(parent, part.as_src());
    }
    exchange.finish()
}
