//! Pools of CUDA events. A pool saves time, because the driver needs longer to create and destroy
//! an event than to record an event.

use crate::base::error::Result;
use crate::base::sync::lock;
use crate::device::driver::CudaHandle;
use crate::device::{CudaContext, CudaEvent};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The maximum number of unused CUDA events in a pool.
const MAX_POOLED_EVENTS: usize = 256;

/// A pool of unused CUDA events.
#[derive(Debug, Default)]
pub(super) struct EventPool {
    events: Mutex<Vec<CudaEvent>>,
    /// True if the events keep the time at which the device reaches them.
    has_times: bool,
}

/// A recorded event. It returns to its pool when it is dropped.
#[derive(Debug)]
pub(super) struct PooledEvent {
    event: Option<CudaEvent>,
    pool: Arc<EventPool>,
}

impl EventPool {
    /// Creates a pool of events that keep the time at which the device reaches them.
    pub(super) fn with_times() -> Self {
        Self { has_times: true, ..Self::default() }
    }

    /// Records an event behind the work that is in a stream now.
    pub(super) fn record_event(
        self: &Arc<Self>,
        context: &Arc<CudaContext>,
        stream: CudaHandle,
    ) -> Result<PooledEvent> {
        let pooled = self.lock_events().pop();
        let event = match pooled {
            Some(event) => event,
            None if self.has_times => CudaEvent::with_time(context)?,
            None => CudaEvent::new(context)?,
        };
        event.record(stream)?;
        Ok(PooledEvent { event: Some(event), pool: Arc::clone(self) })
    }

    fn lock_events(&self) -> MutexGuard<'_, Vec<CudaEvent>> {
        lock(&self.events)
    }
}

impl PooledEvent {
    /// Returns true if the device has completed the recorded work.
    pub(super) fn is_over(&self) -> Result<bool> {
        self.event.as_ref().map_or(Ok(true), CudaEvent::is_over)
    }

    /// Returns the time between an earlier event and this event; `None` if it is not known.
    pub(super) fn time_since(&self, earlier: &Self) -> Result<Option<Duration>> {
        let (Some(event), Some(earlier)) = (&self.event, &earlier.event) else { return Ok(None) };
        event.time_since(earlier)
    }
}

impl Drop for PooledEvent {
    fn drop(&mut self) {
        let mut all = self.pool.lock_events();
        if all.len() < MAX_POOLED_EVENTS {
            // If the pool is full, the event stays in `self` and is destroyed after the lock was
            // released.
            all.extend(self.event.take());
        }
    }
}
