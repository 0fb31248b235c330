//! The worker of a queue: a thread that runs jobs for which no other thread waits.
//!
//! The worker starts with the first job. It holds a reference to the queue and none to the group.
//! It ends after 100 ms without jobs (`IDLE_TIMEOUT`).

use super::{NO_JOB, RunQueue};
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::base::sync::Ordering;
use crate::process::thread;
use crate::wait::{WaitInterrupt, WaitPolicy, wait_until};
use std::sync::Arc;
use std::time::Duration;

/// The time for which a worker without jobs stays.
const IDLE_TIMEOUT: Duration = Duration::from_millis(100);

/// Starts the worker of a queue that has none.
///
/// # Errors
/// `System` if no further thread can be started.
pub(super) fn start_worker(queue: Arc<RunQueue>) -> Result<()> {
    thread::start("dist-worker", move || {
        while queue.has_jobs_within(IDLE_TIMEOUT) || !queue.try_retire() {
            queue.run_jobs();
        }
    })
}

impl RunQueue {
    /// Waits until there is a job, even if its turn has not begun. Returns false after `time`.
    fn has_jobs_within(&self, time: Duration) -> bool {
        let has_jobs = || (self.first_job.load(Ordering::Relaxed) != NO_JOB).then_some(());
        wait_until(
            &self.worker_doorbell,
            WaitPolicy::SLEEP_SOON,
            &Deadline::after(time),
            || None,
            has_jobs,
        )
        .is_ok()
    }

    /// Marks the worker as ended unless there is a job. Returns true if the worker must end.
    fn try_retire(&self) -> bool {
        let mut jobs = self.lock_jobs();
        jobs.has_worker = !jobs.waiting.is_empty();
        !jobs.has_worker
    }

    /// Runs the jobs in the order of their turns until none is left.
    pub(super) fn run_jobs(&self) {
        // There is no limit here: the worker also takes a job without a deadline.
        let ready = || match self.first_job.load(Ordering::Relaxed) {
            NO_JOB => Some(None),
            _ => self.claim_first_job(None).map(Some),
        };
        while let Some(deadline) = self.first_deadline() {
            match wait_until(
                &self.doorbell,
                WaitPolicy::SLEEP_SOON,
                &deadline,
                || self.first_job_failure(),
                ready,
            ) {
                Ok(None) => return,
                Ok(Some(claim)) => claim.run(),
                Err(WaitInterrupt::Aborted(cause)) => self.fail_waiting_jobs(&cause),
                Err(WaitInterrupt::Deadline) => self.expire_first_job(),
            }
        }
    }

    fn first_deadline(&self) -> Option<Deadline> {
        self.lock_jobs().waiting.front().map(|(_, job)| *job.deadline())
    }

    /// Expires the first job if its deadline has passed: the operations before it took too long.
    fn expire_first_job(&self) {
        let mut jobs = self.lock_jobs();
        if jobs.waiting.front().is_none_or(|(_, job)| !job.deadline().has_passed()) {
            return;
        }
        let taken = jobs.waiting.pop_front();
        self.publish_first(&jobs);
        drop(jobs);
        if let Some((_, job)) = taken {
            job.expire();
        }
    }
}
