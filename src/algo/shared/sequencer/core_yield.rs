//! How ranks share a core while they wait for each other.
//!
//! A rank that waits gives its core to those of the core who have not come yet, since nothing else
//! brings them on. Once they have, it waits for ranks on other cores, and to give the core away
//! would only have others look in vain for what it looks for itself, at the price of two context
//! switches, which take longer than all else of a short operation. Hence each rank notes where it
//! is when it waits, and the others go by that. A note that is out of date costs a few looks or a
//! turn.
//!
//! With two ranks on a core an operation then takes one switch, not one and a half: a rank is away
//! for two switches in every second operation, and goes through the other at once.

use super::sequencer_core::SequencerCore;
use crate::base::ids::Rank;
use crate::wait;

/// How often a core is given away: to each of the others who are likely to be on it, and once more.
const MAX_YIELDS: u32 = 4;

impl SequencerCore<'_> {
    /// Looks, and gives the core to those of it who have not come in between, a few times; what a
    /// look has found.
    pub(super) fn yield_to_missing<T>(
        &self,
        ready: impl FnMut() -> Option<T>,
        has_arrived: impl Fn(Rank) -> bool,
    ) -> Option<T> {
        let core = wait::current_core();
        if let Some(core) = core {
            self.region.record_core(self.rank, core);
        }
        let is_on_core =
            |rank: &Rank| core.is_none_or(|core| self.region.may_run_on_core(*rank, core));
        let has_missing_rank = || self.others().filter(is_on_core).any(|rank| !has_arrived(rank));
        wait::yield_until(MAX_YIELDS, has_missing_rank, ready)
    }
}
