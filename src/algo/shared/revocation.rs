//! Revokes peers' write access to a rank's buffers after a failed operation.
//!
//! - A rank writes to another rank's memory only while its
//!   [`RankProgress`](crate::transport::rank_progress::RankProgress) marks this, and checks before
//!   each part whether the domain has failed. A rank that gives up fails the domain, and then waits
//!   until no live rank is writing. By Dekker's pattern, at least one of the two ranks sees the
//!   store of the other.
//! - A part takes some microseconds, or as long as its writer is off its core. Only a stopped
//!   writer (by a signal or a debugger) makes the other rank wait longer. A stop in the middle of a
//!   chunk is likely if the writer copies by stores. After the timeout, the allocation is
//!   quarantined ([`arena::quarantine`]), and not allocated again. If the kernel copies (CMA), the
//!   end of the system call proves that the writer does not write any more. Only some hundred
//!   instructions between the writer's last check and the system call remain. The rank then waits
//!   longer ([`CMA_WRITER_TIMEOUT`]). Because it must never hang, it finally returns an error,
//!   which states that the peer may still write.

use super::sequencer::ShmSequencer;
use crate::base::buffer::Dst;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::transport::arena;
use crate::transport::rank_progress::RemoteWritePurpose;
use crate::wait::{WaitPolicy, wait_until};
use std::time::Duration;

/// The time for which a rank that gives up waits for the writers to its memory: in an arena, and
/// elsewhere.
const ARENA_WRITER_TIMEOUT: Duration = Duration::from_millis(100);
const CMA_WRITER_TIMEOUT: Duration = Duration::from_secs(2);
/// The interval between two polls of the writers.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

impl ShmSequencer<'_> {
    /// Returns the outcome of an operation whose peers write to this rank's result. If the outcome
    /// is an error, first waits until no peer writes there any more.
    ///
    /// # Errors
    /// The error of `outcome`, or the first failure of the domain.
    pub(super) fn or_revoke_access<T>(&self, result: Dst<'_>, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|error| self.revoke_access(result, error))
    }

    #[cold]
    fn revoke_access(&self, result: Dst<'_>, error: Error) -> Error {
        let error = self.fail(error);
        let in_arena = arena::locate(result.as_src()).is_some();
        let Some(rank) =
            self.await_writers(if in_arena { ARENA_WRITER_TIMEOUT } else { CMA_WRITER_TIMEOUT })
        else {
            return error;
        };
        let peer = self.peer(rank);
        if in_arena {
            arena::quarantine(result.as_src());
            crate::log!(
                LogLevel::Warn,
                "{peer} may still write to the result of a failed operation; the arena does not reuse that memory"
            );
            return error;
        }
        let consequence = "was stopped while it wrote to the result of this call, and may still write to it until \
                           the process ends";
        error.context(format_args!("{peer} {consequence}"))
    }

    /// Waits until no peer writes to this rank's memory any more. After `limit`, returns a rank
    /// that may still write.
    fn await_writers(&self, limit: Duration) -> Option<Rank> {
        let (region, limit) = (self.domain().region(), Deadline::after(limit));
        let is_writing = |&rank: &Rank| {
            region.progress(rank).is_writing_remotely(RemoteWritePurpose::Collective)
                && !arena::has_process_ended(self.peer(rank).pid)
        };
        while let Some(rank) = self.others().find(is_writing) {
            if limit.has_passed() {
                return Some(rank);
            }
            let (doorbell, slice) = (region.doorbell(self.rank()), limit.capped(POLL_INTERVAL));
            drop(wait_until(doorbell, WaitPolicy::SLEEP_SOON, &slice, || None, || None::<()>));
        }
        None
    }
}
