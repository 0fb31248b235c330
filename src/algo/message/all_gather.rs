//! All-gather over messages: every member's block to all members.

use super::ring::Ring;
use super::{Call, Team};
use crate::algo::pattern::bruck::{Round, rounds};
use crate::algo::pattern::pairwise;
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::kernel;

/// Blocks go round. Each member's own block is in its place; blocks may have different lengths, that all members know.
///
/// # Errors
/// As [`super::Exchange::wait`].
pub fn ring<'d>(
    call: &mut Call<'_>,
    team: Team<'_>,
    block: &dyn Fn(usize) -> Dst<'d>,
) -> Result<()> {
    Ring::new(team.size(), block).run(call, team, team.size() - 1, None)
}

/// Bruck's algorithm, for small blocks: what everybody has doubles with each message. `data` holds a block of the
/// same length for each member.
///
/// # Errors
/// As [`super::Exchange::wait`], and `OutOfMemory`.
pub fn bruck(call: &mut Call<'_>, team: Team<'_>, own: Src<'_>, data: Dst<'_>) -> Result<()> {
    let (size, me, len) = (team.size(), team.me(), own.len());
    let mut scratch = call.scratch(data.len())?;
    // The blocks in order from the own one.
    let turned = Dst::from(&mut scratch[..data.len()]);
    kernel::copy(turned.slice(0, len), own);
    let mut exchange = call.exchange(team);
    for Round { distance, blocks } in rounds(size) {
        exchange.send(pairwise::from(size, me, distance), turned.as_src().slice(0, blocks * len));
        let place = turned.slice(distance * len, blocks * len);
        let came = exchange.receive(pairwise::to(size, me, distance), place);
        exchange.wait(came)?;
    }
    exchange.finish()?;
    let first = (size - me) * len;
    kernel::copy(data.slice(me * len, first), turned.as_src().slice(0, first));
    kernel::copy(data.slice(0, me * len), turned.as_src().slice(first, me * len));
    call.keep(scratch);
    Ok(())
}
