//! How a rank gets its memory back to which others write, when an operation fails.
//!
//! * A rank writes to another's memory only while its
//!   [`Progress`](crate::transport::progress::Progress) says so, and looks before each part whether
//!   the domain has failed. Whoever gives up fails the domain, and then waits until nobody alive is
//!   writing: by Dekker's pattern one of the two has seen the other.
//! * A part takes some microseconds, or as long as its writer is kept from its core. Only a writer
//!   that was stopped (by a signal, a debugger) keeps anybody waiting. In the middle of a chunk
//!   that it writes by stores that may well happen; then the allocation is in doubt
//!   ([`arena::quarantine`]), and not handed out again. Where the kernel writes for it, the end of
//!   the call has said already that it does not write any more, and what is left are the some
//!   hundred instructions between its last look and the call. The rank waits longer for it then,
//!   and at last returns, since it never hangs, and says what it does not know.

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

/// How long a rank that gives up waits for those who write to its memory: in an arena, and
/// elsewhere.
const ARENA_WRITER_TIMEOUT: Duration = Duration::from_millis(100);
const CMA_WRITER_TIMEOUT: Duration = Duration::from_secs(2);
/// How often it looks.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

impl ShmSequencer<'_> {
    /// The outcome of what others may have written to this rank's result for: where it is an error,
    /// nobody writes there any more.
    ///
    /// # Errors
    /// As that, or the first failure of all.
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
                "{peer} may still write to the result of an operation that has failed; its memory is not handed out again"
            );
            return error;
        }
        let consequence = "was stopped on its way to the result of this call, and may still write there before it ends";
        error.context(format_args!("{peer} {consequence}"))
    }

    /// Waits until nobody writes to this rank's memory any more; who still may, after so long.
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
            let (bell, slice) = (region.doorbell(self.rank()), limit.capped(POLL_INTERVAL));
            drop(wait_until(bell, WaitPolicy::SLEEP_SOON, &slice, || None, || None::<()>));
        }
        None
    }
}
