//! The time that the device needs for the operations of one launch on one stream: the time between
//! an event before the operations and the event behind them.
//!
//! The time includes the wait of the device for the other ranks. It is measured only if a trace is
//! written or TORCH_NCCL_ENABLE_TIMING is set, because events with times cost more than others.

use super::event_pool::PooledEvent;
use crate::base::gpu::DeviceTimeListener;
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The measurement of the device time.
#[derive(Debug)]
pub(super) struct DeviceTiming {
    start_event: PooledEvent,
    state: Mutex<TimingState>,
}

#[derive(Debug)]
enum TimingState {
    /// The device has not completed the operations. The listeners wait for the time.
    Running(Vec<Arc<dyn DeviceTimeListener>>),
    /// The device has completed the operations. `None` if the driver gave no time.
    Completed(Option<Duration>),
}

impl DeviceTiming {
    /// Creates the measurement for operations that are enqueued behind `start_event`.
    pub(super) fn new(start_event: PooledEvent) -> Self {
        Self { start_event, state: Mutex::new(TimingState::Running(Vec::new())) }
    }

    /// Adds a listener, or passes the time to it if the time is already known.
    pub(super) fn add_listener(&self, listener: Arc<dyn DeviceTimeListener>) {
        match &mut *lock(&self.state) {
            TimingState::Running(listeners) => listeners.push(listener),
            TimingState::Completed(Some(time)) => listener.on_device_time(*time),
            TimingState::Completed(None) => {}
        }
    }

    /// Measures the time and passes it to the listeners. Does so once. The device has completed
    /// `end_event`.
    pub(super) fn complete(&self, end_event: &PooledEvent) {
        // The lock is held until all listeners have the time. So a second thread that sees the end
        // of the operations continues only after that.
        let mut state = lock(&self.state);
        let TimingState::Running(listeners) = &mut *state else { return };
        let listeners = std::mem::take(listeners);
        let time = end_event.time_since(&self.start_event);
        if let Err(error) = &time {
            crate::log!(LogLevel::Warn, "no device time of an operation: {error}");
        }
        let time = time.ok().flatten();
        *state = TimingState::Completed(time);
        for (listener, time) in listeners.iter().zip(std::iter::repeat(time).flatten()) {
            listener.on_device_time(time);
        }
    }
}
