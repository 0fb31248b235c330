//! Yields of the core between ranks that share a core on an oversubscribed host.
//!
//! A waiting rank yields its core only to ranks of the same core that have not arrived (that is,
//! have not published the step). These ranks cannot continue before the waiting rank gives up the
//! core. After all ranks of the core have arrived, the rank waits for ranks on other cores and no
//! longer yields. A yield would then only let the other ranks of its core make the same failed
//! polls. It would cost two context switches, which take longer than the rest of a short operation.
//!
//! For this decision, each rank records its core in shared memory when it waits. A stale record
//! costs a few polls or one yield.
//!
//! With two ranks on a core, an operation takes one context switch on average, instead of one and a
//! half. In every second operation, a rank is off the core for two context switches. It passes
//! through the operations between without a context switch.

use super::sequencer_core::SequencerCore;
use crate::base::ids::Rank;
use crate::wait;

/// The maximum number of yields of one wait: one for each of the other ranks that are probably on
/// the core, and one more.
const MAX_YIELDS: u32 = 4;

impl SequencerCore<'_> {
    /// Polls by `ready`. Between the polls, yields the core to the ranks of the same core that have
    /// not arrived, at most [`MAX_YIELDS`] times. Returns the result of the successful poll, or
    /// `None` if all polls failed.
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
        wait::yield_if_short(MAX_YIELDS, has_missing_rank, ready)
    }
}
