//! The failure of a group: its causes, its propagation, and its reports.
//!
//! The first failure of a group is kept, and it ends every wait in the group on all ranks. An abort
//! propagates to the derived groups. A failure is reported in the flight recorder's dump and in the
//! launcher's error file before the caller gets the error.

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
    /// Fails the group on all its ranks. Ends every wait in the group and in its derived groups.
    /// The first reason is kept.
    pub fn abort(&self, reason: &str) {
        let reason = if reason.is_empty() { "no reason was given" } else { reason };
        let message = format!("rank {} aborted group {}: {reason}", self.rank(), self.name());
        self.fail(&Error::new(ErrorKind::Aborted, message).with_culprit(self.rank()));
        recorder::dump_failures_and_wait();
    }

    pub(in crate::api) fn fail(&self, error: &Error) {
        self.backend.abort(error);
        // The group reports the first failure, which may differ from `error`.
        self.queue.fail_waiting_jobs(&self.failure().unwrap_or_else(|| error.clone()));
        self.abort_propagator.propagate_abort();
    }

    /// Fails the group and returns the first failure that any rank reported.
    pub(in crate::api) fn fail_with(&self, error: Error) -> Error {
        self.fail(&error);
        self.failure().unwrap_or(error)
    }

    /// Fails the group because of an error on this rank, so that other ranks do not wait for this
    /// rank. Returns the error.
    ///
    /// If the error names a culprit, the culprit stays. A `PeerFailed` error without a culprit
    /// stays without one: otherwise this rank would blame itself for the peer's failure, and a
    /// shrink would exclude this rank.
    pub(in crate::api) fn fail_with_local_blame(&self, error: Error) -> Error {
        let is_own = error.culprit().is_none() && error.kind() != ErrorKind::PeerFailed;
        let error = if is_own { error.with_culprit(self.rank()) } else { error };
        self.fail(&error);
        error
    }

    /// Writes the failure dump and the error file before a blocking call returns an error to its
    /// caller. The caller may end the process after that.
    pub(in crate::api) fn report_to_caller(&self, error: &Error) {
        recorder::dump_failures_and_wait();
        self.write_error_file(error);
    }

    /// Writes a fatal error of the group to the launcher's error file. Call it when the error is
    /// returned to a caller.
    pub(in crate::api) fn write_error_file(&self, error: &Error) {
        error_file::write_first_fatal_error(error, self.blamed_global_rank(error));
    }

    /// Returns the culprit of an error as a rank of the outermost group, or `None` if the error has
    /// no culprit or names this rank.
    pub(in crate::api) fn blamed_global_rank(&self, error: &Error) -> Option<Rank> {
        let culprit = error.culprit().filter(|&rank| rank != self.rank())?;
        self.global_ranks().get(culprit).copied()
    }

    /// Adds the process id and the host of the culprit to an error.
    pub(in crate::api) fn with_culprit_process(&self, error: Error) -> Error {
        match error.culprit().and_then(|rank| self.backend.rank_locations().get(rank)) {
            Some(RankLocation { name, .. }) => error.with_process(name.pid, Arc::clone(&name.host)),
            None => error,
        }
    }

    /// Returns the rank that failed the group, if the group has failed and the error names a
    /// culprit.
    pub fn culprit(&self) -> Option<Culprit> {
        self.with_culprit_process(self.failure()?).culprit_details()
    }

    /// Runs an operation in its turn. A panic fails the group, because other ranks may wait for
    /// data that this rank never sends.
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

    /// Fails the group because a call expired before its turn: an earlier operation took too long.
    /// The call may still run on other ranks, so the group cannot continue.
    pub(in crate::api) fn fail_expired_call(
        &self,
        descriptor: &Descriptor,
        deadline: &Deadline,
    ) -> Error {
        let earlier =
            activity::find_earlier_running_collective(self.id(), self.rank(), descriptor.sequence);
        let message = format!(
            "{descriptor} of rank {} timed out after {} ms waiting for earlier operations of this rank{}",
            self.rank(),
            deadline.elapsed().as_millis(),
            earlier.map(|first| format!(", of which {first} is in progress")).unwrap_or_default()
        );
        let error = Error::new(ErrorKind::Timeout, message).with_culprit(self.rank());
        self.fail(&error);
        error
    }
}
