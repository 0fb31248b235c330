//! Revokes peers' write access to a rank's buffers after a failed operation.
//!
//! Some algorithms write directly to the receive buffers of other ranks. The writer copies by store
//! instructions if the buffer is in an arena (memory of `dist_mem_alloc` that all ranks of the host
//! map), otherwise by the kernel (cross-memory attach, CMA). A rank whose operation failed, the
//! *owner* of such a buffer, must not return the buffer to its caller while a peer may still write
//! to it.
//!
//! The two ranks use Dekker's pattern: each makes one store and then one load.
//!
//! ```text
//!          store                                       load
//! writer   sets the write mark in its RankProgress     reads whether the domain has failed
//! owner    marks the domain as failed                  reads the write marks of the peers
//! ```
//!
//! Both accesses to the write mark are read-modify-writes, so one of them comes first. If the
//! writer's access comes first, the owner sees the mark in the writer's
//! [`RankProgress`](crate::transport::rank_progress::RankProgress), and waits until the mark is
//! cleared or the process of the writer ends. If the owner's access comes first, the writer's
//! access synchronises with it, so the writer sees the failure and does not write. The writer
//! repeats its load before each chunk, so the owner usually waits for one chunk: some microseconds,
//! or the time for which the writer is off its core.
//!
//! The owner waits longer only for a writer that is stopped by a signal or a debugger. Because the
//! owner must never hang, the wait has a timeout:
//!
//! - If the writer copies by stores, a stop in the middle of a chunk is likely. After
//!   [`ARENA_WRITER_TIMEOUT`], the owner quarantines the allocation ([`arena::quarantine`]): the
//!   arena never allocates that memory again.
//! - If the kernel copies (CMA), the system call that copies the chunk also clears the write mark.
//!   A stopped writer can therefore keep the owner waiting only if it was stopped between its last
//!   load and the system call, that is, within some hundred instructions. The owner waits up to
//!   [`CMA_WRITER_TIMEOUT`], and then returns an error that states that the peer may still write.

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

/// The maximum time for which the owner of a buffer in an arena waits for the writers.
const ARENA_WRITER_TIMEOUT: Duration = Duration::from_millis(100);
/// The maximum time for which the owner of any other buffer waits for the writers.
const CMA_WRITER_TIMEOUT: Duration = Duration::from_secs(2);
/// The interval between two polls of the writers.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

impl ShmSequencer<'_> {
    /// Returns `outcome`, the outcome of an operation in which peers write to `result`, this rank's
    /// receive buffer. If the outcome is an error, this function first fails the domain and waits
    /// until no peer writes to the buffer any more, or until the timeout.
    ///
    /// # Errors
    /// The first failure of the domain, which is the error of `outcome` if no other rank failed
    /// first.
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

    /// Waits until no peer writes to memory of other ranks any more, and returns `None`. If a peer
    /// still writes after `limit`, returns the rank of that peer.
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
