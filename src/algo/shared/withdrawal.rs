//! How a rank gets its memory back to which others write, when an operation fails.
//!
//! * A rank writes to another's memory only while its
//!   [`Progress`](crate::transport::progress::Progress) says so, and looks before each part whether
//!   the domain has failed. Whoever gives up fails the domain, and then waits until nobody alive is
//!   writing: by Dekker's pattern one of the two has seen the other.
//! * A part takes some microseconds, or as long as its writer is kept from its core. Only a writer
//!   that was stopped (by a signal, a debugger) keeps anybody waiting. In the middle of a chunk
//!   that it writes by stores that may well happen; then the allocation is in doubt
//!   ([`arena::doubt`]), and not handed out again. Where the kernel writes for it, the end of the
//!   call has said already that it does not write any more, and what is left are the some hundred
//!   instructions between its last look and the call. The rank waits longer for it then, and at
//!   last returns, since it never hangs, and says what it does not know.

use super::steps::Steps;
use crate::base::buffer::Dst;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::base::log::Level;
use crate::transport::arena;
use crate::transport::progress::Purpose;
use crate::wait::{Pace, until};
use std::time::Duration;

/// How long a rank that gives up waits for those who write to its memory: in an arena, and
/// elsewhere.
const PARTING: Duration = Duration::from_millis(100);
const LONG_PARTING: Duration = Duration::from_secs(2);
/// How often it looks.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

impl Steps<'_> {
    /// The outcome of what others may have written to this rank's result for: where it is an error,
    /// nobody writes there any more.
    ///
    /// # Errors
    /// As that, or the first failure of all.
    pub(super) fn or_withdraw<T>(&self, result: Dst<'_>, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|error| self.withdraw(result, error))
    }

    #[cold]
    fn withdraw(&self, result: Dst<'_>, error: Error) -> Error {
        let error = self.fail(error);
        let in_arena = arena::locate(result.as_src()).is_some();
        let Some(rank) = self.outlast(if in_arena { PARTING } else { LONG_PARTING }) else {
            return error;
        };
        let peer = self.peer(rank);
        if in_arena {
            arena::doubt(result.as_src());
            crate::log!(
                Level::Warn,
                "{peer} may still write to the result of an operation that has failed; its memory is not handed out again"
            );
            return error;
        }
        let what = "was stopped on its way to the result of this call, and may still write there before it ends";
        error.context(format_args!("{peer} {what}"))
    }

    /// Waits until nobody writes to this rank's memory any more; who still may, after so long.
    fn outlast(&self, limit: Duration) -> Option<Rank> {
        let (region, limit) = (self.domain().region(), Deadline::after(limit));
        let writes = |&rank: &Rank| {
            region.progress(rank).is_reaching(Purpose::Collective)
                && !arena::has_ended(self.peer(rank).pid)
        };
        while let Some(rank) = self.others().find(writes) {
            if limit.has_passed() {
                return Some(rank);
            }
            let (bell, slice) = (region.bell(self.rank()), limit.capped(LOOK_AGAIN));
            drop(until(bell, Pace::PATIENT, &slice, || None, || None::<()>));
        }
        None
    }
}
