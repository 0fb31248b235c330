//! An operation that was enqueued, until the device is done with it.

use crate::backend::GroupFailureState;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::gpu::EnqueuedOperation;
use crate::device::driver::CudaHandle;
use crate::device::{CudaContext, CudaEvent};
use crate::wait::poll_backoff::PollBackoff;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The longest pause between two looks at the device.
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// As many events are kept.
const MAX_POOLED_EVENTS: usize = 256;

/// What it is, for messages: what one group has enqueued at once.
#[derive(Clone, Debug)]
pub(super) struct EnqueuedSummary {
    /// The first collective, if there is one: its name and its number.
    pub(super) first: Option<(&'static str, u64)>,
    /// How many collectives and messages it is.
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

/// Events that nobody uses now. To make one and to destroy it takes the driver longer than to
/// record it.
#[derive(Debug, Default)]
pub(super) struct EventPool {
    events: Mutex<Vec<CudaEvent>>,
}

/// An event that was recorded, and goes back to the spares.
#[derive(Debug)]
pub(super) struct PooledEvent {
    event: Option<CudaEvent>,
    pool: Arc<EventPool>,
}

impl EventPool {
    /// Marks what is in a stream by now.
    pub(super) fn record_event(
        self: &Arc<Self>,
        context: &Arc<CudaContext>,
        stream: CudaHandle,
    ) -> Result<PooledEvent> {
        let pooled = self.lock_events().pop();
        let event = match pooled {
            Some(event) => event,
            None => CudaEvent::new(context)?,
        };
        event.record(stream)?;
        Ok(PooledEvent { event: Some(event), pool: Arc::clone(self) })
    }

    fn lock_events(&self) -> MutexGuard<'_, Vec<CudaEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PooledEvent {
    fn is_over(&self) -> Result<bool> {
        self.event.as_ref().map_or(Ok(true), CudaEvent::is_over)
    }
}

impl Drop for PooledEvent {
    fn drop(&mut self) {
        let mut all = self.pool.lock_events();
        if all.len() < MAX_POOLED_EVENTS {
            // Else it is destroyed with this, outside of the lock.
            all.extend(self.event.take());
        }
    }
}

/// One operation.
#[derive(Debug)]
pub(super) struct NcclEnqueuedOperation {
    pub(super) summary: EnqueuedSummary,
    pub(super) deadline: Deadline,
    /// Behind it in its stream.
    end_event: PooledEvent,
    /// The device was seen to be done with it before its group failed.
    is_done: AtomicBool,
    failure_state: Arc<dyn GroupFailureState>,
    /// Nobody fails the group at the deadline: whoever waits is told, and the group goes on.
    fails_waiter_only: bool,
}

impl NcclEnqueuedOperation {
    pub(super) fn new(
        title: EnqueuedSummary,
        deadline: Deadline,
        mark: PooledEvent,
        (failure_state, is_unwatched): (Arc<dyn GroupFailureState>, bool),
    ) -> Self {
        Self {
            summary: title,
            deadline,
            end_event: mark,
            is_done: AtomicBool::new(false),
            failure_state,
            fails_waiter_only: is_unwatched,
        }
    }

    /// Whether the device is done with it.
    ///
    /// # Errors
    /// The group's failure, after which the device may be done with it for another reason;
    /// `Backend`.
    pub(super) fn poll(&self) -> Result<bool> {
        if self.is_done.load(Ordering::Acquire) {
            return Ok(true);
        }
        // In this order: an abort comes after the failure, and ends what is in the stream.
        let is_over = self.end_event.is_over();
        match self.failure_state.failure() {
            Some(failure) => Err(failure),
            None => {
                let is_over = is_over?;
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
                    "{} was enqueued and has not ended within {} ms; NCCL_ASYNC_ERROR_HANDLING=0, so the group goes on",
                    self.summary,
                    self.deadline.elapsed().as_millis()
                );
                return Err(Error::new(ErrorKind::Timeout, message));
            }
            poller.wait_before_retry(limit);
        }
        Ok(true)
    }
}
