//! How the ranks of one core share the core while they wait for each other.
//!
//! A waiting rank yields its core to the ranks of the core that have not arrived, since nothing
//! else advances them. After they have arrived, the rank waits for ranks on other cores. A yield
//! would then only let the core's other ranks make the same failed polls, at the price of two
//! context switches. These take longer than the rest of a short operation. Hence each rank records
//! its core when it waits, and the other ranks use this record. A stale record costs a few polls or
//! one yield.
//!
//! With two ranks on a core an operation then takes one context switch instead of one and a half.
//! In every second operation a rank is off the core for two switches. It passes through the other
//! operation without a switch.

use super::sequencer_core::SequencerCore;
use crate::base::ids::Rank;
use crate::wait;

/// The maximum number of yields: one for each of the other ranks that are probably on the core, and
/// one more.
const MAX_YIELDS: u32 = 4;

impl SequencerCore<'_> {
    /// Polls, and between the polls yields the core to the ranks of the core that have not arrived,
    /// at most [`MAX_YIELDS`] times. Returns the result of the successful poll.
    pub(in crate::algo) fn yield_to_missing<T>(
        &self,
        ready: impl FnMut() -> Option<T>,
        has_arrived: impl Fn(Rank) -> bool,
    ) -> Option<T> {
        let core = wait::current_core();
        if let Some(core) = core {
            self.region.presence(self.rank).record_core(core);
        }
        let is_on_core =
            |rank: &Rank| core.is_none_or(|core| self.region.presence(*rank).may_run_on_core(core));
        let has_missing_rank = || self.others().filter(is_on_core).any(|rank| !has_arrived(rank));
        wait::yield_until(MAX_YIELDS, has_missing_rank, ready)
    }
}
