//! The operations that NCCL has enqueued on a stream. Each is tracked by a CUDA event until the
//! device has completed it.

use super::device_timing::DeviceTiming;
use super::event_pool::PooledEvent;
use crate::backend::GroupFailureState;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::gpu::{DeviceTimeListener, EnqueuedOperation};
use crate::wait::poll_backoff::PollBackoff;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The maximum pause between two polls of the device.
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A summary of the calls that one group has enqueued together, for error messages.
#[derive(Clone, Debug)]
pub(super) struct EnqueuedSummary {
    /// The name and sequence number of the first collective, if there is one.
    pub(super) first: Option<(&'static str, u64)>,
    /// The number of collectives and messages.
    pub(super) calls: usize,
}

impl fmt::Display for EnqueuedSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.first, self.calls) {
            (None, 1) => f.write_str("a message"),
            (None, calls) => write!(f, "{calls} messages"),
            (Some((name, sequence)), 1) => write!(f, "{name} #{sequence}"),
            (Some((name, sequence)), calls) => {
                write!(f, "{name} #{sequence} with {} more of its batch", calls - 1)
            }
        }
    }
}

/// An operation that NCCL has enqueued on a stream.
#[derive(Debug)]
pub(super) struct NcclEnqueuedOperation {
    pub(super) summary: EnqueuedSummary,
    pub(super) deadline: Deadline,
    /// The event that is recorded behind the operation in its stream.
    pub(super) end_event: PooledEvent,
    /// The measurement of the device time, if it is measured.
    pub(super) timing: Option<DeviceTiming>,
    /// True if a poll has found the operation complete before the group failed.
    pub(super) is_done: AtomicBool,
    pub(super) failure_state: Arc<dyn GroupFailureState>,
    /// True if the watchdog does not fail the group at the deadline. In that case only the waiter
    /// gets the error, and the group continues.
    pub(super) fails_waiter_only: bool,
}

impl NcclEnqueuedOperation {
    /// Returns true if the device has completed the operation.
    ///
    /// # Errors
    /// The failure of the group, because an abort after the failure may have ended the operation;
    /// `Backend`.
    pub(super) fn poll(&self) -> Result<bool> {
        if self.is_done.load(Ordering::Acquire) {
            return Ok(true);
        }
        // The event is polled before the failure state is read. An abort completes the events of
        // unfinished operations, but it comes after the failure. So if the event is complete and
        // there is no failure, the device has really completed the operation.
        let is_over = self.end_event.is_over();
        match self.failure_state.failure() {
            Some(failure) => Err(failure),
            None => {
                let is_over = is_over?;
                if is_over && let Some(timing) = &self.timing {
                    timing.complete(&self.end_event);
                }
                self.is_done.store(is_over, Ordering::Release);
                Ok(is_over)
            }
        }
    }
}

impl EnqueuedOperation for NcclEnqueuedOperation {
    fn wait(&self, limit: &Deadline) -> Result<bool> {
        let mut poller = PollBackoff::new(MAX_POLL_INTERVAL);
        while !self.poll()? {
            if limit.has_passed() {
                return Ok(false);
            }
            if self.fails_waiter_only && self.deadline.has_passed() {
                let message = format!(
                    "{} was enqueued and did not complete within {} ms; \
                     NCCL_ASYNC_ERROR_HANDLING=0, so the group remains usable",
                    self.summary,
                    self.deadline.elapsed().as_millis()
                );
                return Err(Error::new(ErrorKind::Timeout, message));
            }
            poller.wait_before_retry(limit);
        }
        Ok(true)
    }

    fn listen_for_device_time(&self, listener: &dyn Fn() -> Arc<dyn DeviceTimeListener>) {
        if let Some(timing) = &self.timing {
            timing.add_listener(listener());
        }
    }
}
