//! Types for operations on GPU memory: the device and stream of an operation, and the objects that
//! report the operation's completion.
//!
//! Most operations on GPU memory are *enqueued*: the call returns after the device has accepted the
//! operation, and the operation runs later, in stream order. If the host transfers the bytes, the
//! operation cannot be enqueued. Instead, the operation waits for a [`StreamMarker`], a position in
//! the caller's stream, before it reads the buffers.
//!
//! This module does not depend on drivers, or on the code that enqueues.

use super::deadline::Deadline;
use super::error::Result;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The device and stream of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GpuTarget {
    /// The index of the device.
    pub device: usize,
    /// The driver's handle of the caller's stream; `None` for a stream of the library.
    pub stream: Option<usize>,
}

/// An enqueued operation. A reference to this object keeps neither the group nor the buffers of the
/// operation alive.
pub trait EnqueuedOperation: Send + Sync {
    /// Waits until the device has completed the operation. Returns false if the limit passed before
    /// that.
    ///
    /// # Errors
    /// The failure of the operation's group. The destination buffers then have arbitrary contents.
    fn wait(&self, limit: &Deadline) -> Result<bool>;

    /// Registers a listener for the time that the device needs for the operation, if the back end
    /// measures this time. `listener` creates the listener, and is called only in this case.
    fn listen_for_device_time(&self, listener: &dyn Fn() -> Arc<dyn DeviceTimeListener>);
}

crate::base::trait_object_debug::impl_debug_of_objects!(EnqueuedOperation);

/// A listener for the time that the device needed for an operation.
pub trait DeviceTimeListener: Send + Sync {
    /// Receives the time. Called at most once, on any thread; must not block. Operations that were
    /// enqueued together on one stream get the time of all of them.
    fn on_device_time(&self, time: Duration);
}

crate::base::trait_object_debug::impl_debug_of_objects!(DeviceTimeListener);

/// True while a trace is written.
static IS_TRACING: AtomicBool = AtomicBool::new(false);

/// Sets whether a trace is written. If so, back ends measure the device time of operations.
pub fn set_tracing(is_tracing: bool) {
    IS_TRACING.store(is_tracing, Ordering::Relaxed);
}

/// Returns whether a trace is written.
pub fn is_tracing() -> bool {
    IS_TRACING.load(Ordering::Relaxed)
}

/// A position in a stream.
pub trait StreamMarker: Send + Sync {
    /// Returns whether the device has completed all earlier work of the stream.
    ///
    /// # Errors
    /// The device's error in that earlier work.
    fn is_complete(&self) -> Result<bool>;
}

crate::base::trait_object_debug::impl_debug_of_objects!(StreamMarker);

/// The slot into which a back end puts the operation that it has enqueued, at most once.
pub type EnqueuedOperationSlot = OnceLock<Arc<dyn EnqueuedOperation>>;

/// The request to enqueue an operation.
#[derive(Clone, Copy, Debug)]
pub struct EnqueueRequest<'a> {
    /// The device and stream.
    pub gpu: GpuTarget,
    /// The slot for the enqueued operation, through which the caller learns of its completion.
    pub operation_slot: &'a EnqueuedOperationSlot,
    /// The stream position at which the buffers are ready, if it was recorded when the operation
    /// was issued.
    pub buffers_ready: Option<&'a dyn StreamMarker>,
}
