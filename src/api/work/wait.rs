//! Waits for one work.
//!
//! The waiting thread makes progress. For a collective it runs jobs of the group's queue, and for a
//! message it runs the engine. For a batch it waits for the members one after the other. An error
//! of the operation is reported before the wait returns it.

use crate::api::group::process_group::Group;
use crate::api::observe::recorder;
use crate::api::work::callbacks;
use crate::api::work::handle::{Work, WorkKind};
use crate::api::work::progress::WorkProgress;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::log::LogLevel;
use crate::transport::PointToPoint;
use crate::wait::slow_wait::{DisplaySeconds, SlowWaitWatch};

impl Work {
    /// Waits until the work has ended or the limit has passed. The thread makes progress while it
    /// waits. Any thread may call this any number of times.
    ///
    /// # Errors
    /// The operation's own error, which stays. `InvalidArgument` for a work of a batch that has not
    /// ended, and for a pending work inside a completion callback.
    pub fn wait(&self, limit: &Deadline) -> Result<WorkProgress> {
        self.wait_for_outcome(limit).inspect_err(|_| recorder::dump_failures_and_wait())
    }

    fn wait_for_outcome(&self, limit: &Deadline) -> Result<WorkProgress> {
        if let Some(outcome) = self.outcome() {
            return outcome.map(|()| WorkProgress::Done);
        }
        if limit.has_passed() {
            return Ok(WorkProgress::Pending);
        }
        callbacks::reject_blocking_in_callback("waiting for a pending work")?;
        self.check_issued()?;
        let Some(issue) = self.issue_info.get() else {
            // The work ended without having been issued.
            return self
                .outcome()
                .map_or(Ok(WorkProgress::Pending), |it| it.map(|()| WorkProgress::Done));
        };
        match self.kind {
            WorkKind::Collective(_) => {
                let own_operation = Some((issue.sequence, issue.deadline));
                self.queue.wait_for(|| self.is_done(), limit, own_operation);
            }
            WorkKind::Message(_) => self.progress_message(limit),
            WorkKind::Batch => self.wait_for_members(limit),
        }
        self.outcome()
            .map_or(Ok(WorkProgress::Pending), |outcome| outcome.map(|()| WorkProgress::Done))
    }

    /// Waits until the work has ended. If the operation was enqueued on a device, also waits until
    /// the device has completed it. Any thread may call this any number of times.
    ///
    /// # Errors
    /// The errors of [`Work::wait`]; the failure of the group, if it comes before the device has
    /// completed the operation.
    pub fn synchronize(&self, limit: &Deadline) -> Result<WorkProgress> {
        if self.wait(limit)? == WorkProgress::Pending {
            return Ok(WorkProgress::Pending);
        }
        let completions = self.device_completions();
        if !completions.is_empty() {
            callbacks::reject_blocking_in_callback("waiting for a device")?;
        }
        for completion in completions {
            if !completion.wait(limit).inspect_err(|_| recorder::dump_failures_and_wait())? {
                return Ok(WorkProgress::Pending);
            }
        }
        Ok(WorkProgress::Done)
    }

    /// Makes progress on this thread with the engine that transfers the message.
    fn progress_message(&self, limit: &Deadline) {
        let group = self.message_group();
        if let Some(engine) = group.as_ref().and_then(|group| group.backend.point_to_point()) {
            self.progress_until(engine, &|| self.is_done(), limit);
        } else {
            self.queue.wait_for(|| self.is_done(), limit, None);
        }
    }

    /// Makes progress with an engine on this thread until `is_over` holds. If the wait is long, the
    /// log names this message.
    pub(super) fn progress_until(
        &self,
        engine: &dyn PointToPoint,
        is_over: &dyn Fn() -> bool,
        limit: &Deadline,
    ) {
        let mut watch = SlowWaitWatch::default();
        while !is_over() && !limit.has_passed() {
            match watch.check(|waited| self.log_long_wait(waited)) {
                Some(interval) => engine.progress_until(is_over, &limit.capped(interval)),
                None => engine.progress_until(is_over, limit),
            }
        }
    }

    /// Logs a long wait for a message.
    #[cold]
    fn log_long_wait(&self, waited: DisplaySeconds) {
        let (Some(group), WorkKind::Message(message)) = (self.message_group(), self.kind) else {
            return;
        };
        let monitor = group.backend.peer_monitor();
        let last = monitor.zip(message.peer).and_then(|(it, peer)| it.last_activity(peer));
        let last = last.map(|last| format!("; that rank {last}")).unwrap_or_default();
        crate::log!(
            LogLevel::Warn,
            "{message} on {} has waited {waited}{last}",
            group.describe_rank()
        );
        Group::release(group);
    }

    /// Waits for the members one after the other. The end of the last member ends the batch.
    fn wait_for_members(&self, limit: &Deadline) {
        let members = self.pending_members();
        // Errors are dropped: the batch's outcome has the error of the first failed member.
        members.iter().for_each(|member| drop(member.wait(limit)));
        self.queue.wait_for(|| self.is_done(), limit, None);
    }

    /// Refuses to wait for a work that has not been issued.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub(super) fn check_issued(&self) -> Result<()> {
        if self.issue_info.get().is_some() || self.is_done() {
            return Ok(());
        }
        let message =
            "the work belongs to a batch that has not been issued: call dist_batch_end first";
        Err(Error::invalid(message))
    }
}
