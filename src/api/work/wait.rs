//! Waits for a single work.
//!
//! The waiting thread also does work itself. For a collective, it runs jobs of the group's queue.
//! For a message, it runs the messaging engine. For a batch, it waits for the members one after the
//! other. Before a wait returns an operation's error, the error is written to the flight recorder's
//! dump.

use crate::api::group::process_group::Group;
use crate::api::observe::deadlock::{AwaitedWork, AwaitedWorkKind, BlockedCallGuard, ListedWork};
use crate::api::observe::recorder;
use crate::api::work::callbacks;
use crate::api::work::device_wait::DeviceWait;
use crate::api::work::handle::{IssueInfo, Work, WorkKind};
use crate::api::work::progress::WorkProgress;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::log::LogLevel;
use crate::transport::PointToPoint;
use crate::wait::slow_wait::{DisplaySeconds, SlowWaitWatch};
use std::sync::Arc;

impl Work {
    /// Waits until the work has ended or the limit has passed. While it waits, the thread runs
    /// operations of the group. Any thread may call this any number of times.
    ///
    /// # Errors
    /// The operation's error, which every later call also returns. `InvalidArgument` if the work
    /// belongs to a batch that has not been issued, or if the work is pending and the caller is
    /// inside a completion callback.
    pub fn wait(&self, limit: &Deadline) -> Result<WorkProgress> {
        self.wait_for_outcome(limit).inspect_err(|_| recorder::dump_failures_and_wait())
    }

    /// Waits as [`Work::wait`] for one slice of a longer wait of this thread. The search for
    /// deadlocks regards the slices as one wait, which ends at the limit `whole`.
    ///
    /// # Errors
    /// As [`Work::wait`].
    pub fn wait_slice(&self, slice: &Deadline, whole: &Deadline) -> Result<WorkProgress> {
        let guard = self.issue_info.get().and_then(|issue| {
            let work = self.awaited_work(issue.deadline, whole)?;
            let begin = || BlockedCallGuard::work(self.queue_id(), issue.sequence, work);
            Some(BlockedCallGuard::slice(self.id(), begin))
        });
        let outcome = self.wait(slice);
        if let Some(guard) = guard {
            guard.end_slice(matches!(outcome, Ok(WorkProgress::Pending)) && !whole.has_passed());
        }
        outcome
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
            // The work has ended with an error before it was issued.
            return self
                .outcome()
                .map_or(Ok(WorkProgress::Pending), |it| it.map(|()| WorkProgress::Done));
        };
        let work = self.awaited_work(issue.deadline, limit);
        let _guard = work.map(|work| BlockedCallGuard::work(self.queue_id(), issue.sequence, work));
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

    fn queue_id(&self) -> usize {
        Arc::as_ptr(&self.queue).addr()
    }

    /// Describes a wait for the operation, for the search for deadlocks.
    fn awaited_work(&self, deadline: Deadline, limit: &Deadline) -> Option<AwaitedWork> {
        let kind = match self.kind {
            WorkKind::Collective(_) => AwaitedWorkKind::Collective,
            WorkKind::Message(message) => AwaitedWorkKind::Message(self.id(), message),
            // The members are waited for one after the other.
            WorkKind::Batch => return None,
        };
        Some(AwaitedWork { kind, deadlines: [deadline, *limit] })
    }

    /// Waits until the work has ended. If the operation was enqueued on a device, also waits until
    /// the device has completed it. Any thread may call this any number of times.
    ///
    /// # Errors
    /// The errors of [`Work::wait`]; the failure of the group, if the group fails before the device
    /// has completed the operation.
    pub fn synchronize(&self, limit: &Deadline) -> Result<WorkProgress> {
        if self.wait(limit)? == WorkProgress::Pending {
            return Ok(WorkProgress::Pending);
        }
        let waits = self.device_waits();
        if !waits.is_empty() {
            callbacks::reject_blocking_in_callback("waiting for a device")?;
        }
        for wait in waits {
            let _guard = wait.begin(limit);
            let is_done = wait.completion.wait(limit).inspect_err(|_| {
                self.mark_failure_as_known();
                recorder::dump_failures_and_wait();
            })?;
            if !is_done {
                return Ok(WorkProgress::Pending);
            }
        }
        Ok(WorkProgress::Done)
    }

    /// Returns the wait for the device, if the operation was enqueued on one.
    pub(super) fn device_wait(&self) -> Option<DeviceWait> {
        let kind = match self.kind {
            WorkKind::Collective(_) => AwaitedWorkKind::Collective,
            WorkKind::Message(message) => {
                let position = self.enqueued_position.get().copied().unwrap_or(0);
                AwaitedWorkKind::EnqueuedMessage(position, message)
            }
            WorkKind::Batch => return None,
        };
        let completion = Arc::clone(self.device_completion().get()?);
        let IssueInfo { sequence, deadline } = *self.issue_info.get()?;
        let queue = Arc::clone(&self.queue);
        Some(DeviceWait { completion, queue, sequence, deadline, kind })
    }

    /// Describes the work as a part of a wait for any of several works.
    pub(super) fn listed_work(&self, limit: &Deadline) -> Option<ListedWork> {
        let issue = self.issue_info.get()?;
        let work = self.awaited_work(issue.deadline, limit)?;
        Some(ListedWork { queue: self.queue_id(), sequence: issue.sequence, work })
    }

    /// Runs the engine that transfers the message on this thread until the message is done.
    fn progress_message(&self, limit: &Deadline) {
        let group = self.message_group();
        if let Some(engine) = group.as_ref().and_then(|group| group.backend.point_to_point()) {
            self.progress_until(engine, &|| self.is_done(), limit);
        } else {
            self.queue.wait_for(|| self.is_done(), limit, None);
        }
    }

    /// Runs an engine on this thread until `is_over` returns true or the limit passes. If the wait
    /// is long, a log line names this message.
    pub(super) fn progress_until(
        &self,
        engine: &dyn PointToPoint,
        is_over: &dyn Fn() -> bool,
        limit: &Deadline,
    ) {
        // After each check, the engine polls for some time before it sleeps.
        let mut watch = SlowWaitWatch::started();
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

    /// Waits for the members of the batch one after the other. When the last member ends, the batch
    /// ends.
    fn wait_for_members(&self, limit: &Deadline) {
        let members = self.pending_members();
        // The errors of the members are ignored here. The outcome of the batch has the error of the
        // first failed member.
        members.iter().for_each(|member| drop(member.wait(limit)));
        self.queue.wait_for(|| self.is_done(), limit, None);
    }

    /// Checks that the work was issued or has ended, so that a wait can end.
    ///
    /// # Errors
    /// `InvalidArgument` if the work belongs to a batch that has not been issued.
    pub(super) fn check_issued(&self) -> Result<()> {
        if self.issue_info.get().is_some() || self.is_done() {
            return Ok(());
        }
        let message =
            "the work belongs to a batch that has not been issued: call dist_batch_end first";
        Err(Error::invalid(message))
    }
}
