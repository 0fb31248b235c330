//! The failure of a group: how a rank fails the group, and how the failure is reported.
//!
//! The first failure of a group is kept, and it ends every wait in the group on all ranks. An abort
//! also fails the groups derived from the group. A failure is written to the flight recorder's dump
//! and to the launcher's error file before the caller gets the error, because the caller may end
//! the process then.

use crate::api::group::activity;
use crate::api::group::process_group::Group;
use crate::api::observe::error_file;
use crate::api::observe::recorder;
use crate::backend::RankLocation;
use crate::base::deadline::Deadline;
use crate::base::error::{Culprit, Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::transport::Descriptor;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

impl Group {
    /// Fails the group on all its ranks. Ends every wait in the group and in its derived groups. If
    /// the group has already failed, the earlier reason is kept.
    pub fn abort(&self, reason: &str) {
        let reason = if reason.is_empty() { "no reason was given" } else { reason };
        let message = format!("rank {} aborted group {}: {reason}", self.rank(), self.name());
        self.fail(&Error::new(ErrorKind::Aborted, message).with_culprit(self.rank()));
        recorder::dump_failures_and_wait();
    }

    /// Fails the group on all its ranks, unless it has already failed.
    pub(in crate::api) fn fail(&self, error: &Error) {
        self.backend.abort(error);
        // Waiting jobs get the group's first failure, which may be another error than `error`.
        self.queue.fail_waiting_jobs(&self.failure().unwrap_or_else(|| error.clone()));
        self.abort_propagator.propagate_abort();
    }

    /// Fails the group and returns the group's first failure, which may be an earlier error or the
    /// error of another rank.
    pub(in crate::api) fn fail_with(&self, error: Error) -> Error {
        self.fail(&error);
        self.failure().unwrap_or(error)
    }

    /// Fails the group because of an error on this rank, so that other ranks do not wait for this
    /// rank. Returns the error, with this rank as the culprit if the error names none.
    ///
    /// A `PeerFailed` error without a culprit does not get this rank as its culprit. Otherwise this
    /// rank would blame itself for the peer's failure, and a shrink would exclude this rank.
    pub(in crate::api) fn fail_with_local_blame(&self, error: Error) -> Error {
        let is_own = error.culprit().is_none() && error.kind() != ErrorKind::PeerFailed;
        let error = if is_own { error.with_culprit(self.rank()) } else { error };
        self.fail(&error);
        error
    }

    /// Writes the failure dump and the error file before a blocking call returns an error to its
    /// caller.
    pub(in crate::api) fn report_to_caller(&self, error: &Error) {
        recorder::dump_failures_and_wait();
        self.record_returned_error(error);
    }

    /// Records that the program gets an error of the group, and writes the error to the launcher's
    /// error file if it is the first fatal error. Called before the program gets the error.
    pub(in crate::api) fn record_returned_error(&self, error: &Error) {
        if self.failure_or_death().is_some() {
            self.observer.history.mark_failure_as_known();
        }
        error_file::write_first_fatal_error(error, self.blamed_global_rank(error));
    }

    /// Returns the culprit of an error as a rank of the outermost group. Returns `None` if the
    /// error has no culprit or if this rank is the culprit.
    pub(in crate::api) fn blamed_global_rank(&self, error: &Error) -> Option<Rank> {
        let culprit = error.culprit().filter(|&rank| rank != self.rank())?;
        self.global_ranks().get(culprit).copied()
    }

    /// Adds the process id and the host of the culprit to an error that names a culprit.
    pub(in crate::api) fn with_culprit_process(&self, error: Error) -> Error {
        match error.culprit().and_then(|rank| self.backend.rank_locations().get(rank)) {
            Some(RankLocation { name, .. }) => error.with_process(name.pid, Arc::clone(&name.host)),
            None => error,
        }
    }

    /// Returns the first rank of this host that has died, also if the group has failed for another
    /// reason before.
    pub(in crate::api) fn first_death(&self) -> Option<Culprit> {
        self.with_culprit_process(self.backend.first_death()?).culprit_details()
    }

    /// Returns the culprit of the group's failure, or a rank that has died although the group has
    /// not failed. Returns `None` if there is neither, or if the failure names no culprit.
    pub fn culprit(&self) -> Option<Culprit> {
        self.with_culprit_process(self.failure_or_death()?).culprit_details()
    }

    /// Runs `run` and converts a panic to an error. A panic also fails the group, because other
    /// ranks may wait for data that this rank never sends.
    pub(in crate::api) fn run_catching_panics<T>(
        &self,
        run: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
            let error =
                Error::internal("a defect in libdist, please report it: a panic in the operation");
            self.fail(&error);
            Err(error)
        })
    }

    /// Adds the title of an operation of this rank and the name of this rank to an error. If the
    /// error is about the same operation of this rank, it does not name them again.
    pub(in crate::api) fn with_call_context(&self, error: Error, title: &str) -> Error {
        let own = format!("{title} of {} ", self.rank_location().name);
        error.without_prefix(&own).context(format_args!("{title} on {}", self.describe_rank()))
    }

    /// Fails the group because the deadline of a call passed while the call waited for earlier
    /// operations of this rank. The call may already run on other ranks, so the group cannot
    /// continue.
    pub(in crate::api) fn fail_expired_call(
        &self,
        descriptor: &Descriptor,
        deadline: &Deadline,
    ) -> Error {
        let earlier =
            activity::find_earlier_running_collective(self.id(), self.rank(), descriptor.sequence);
        let message = format!(
            "{descriptor} of {} timed out after {} ms waiting for earlier operations of this rank{}",
            self.rank_location().name,
            deadline.elapsed().as_millis(),
            earlier.map(|first| format!(", of which {first} is in progress")).unwrap_or_default()
        );
        let error = Error::new(ErrorKind::Timeout, message).with_culprit(self.rank());
        self.fail(&error);
        error
    }
}
