//! Operations on GPU memory: the device and stream of an operation, and the objects that report its
//! completion.
//!
//! Such an operation is *enqueued*: the call returns after the device has accepted the operation,
//! and the operation runs later, in stream order. If an operation cannot be enqueued (because the
//! host transfers the bytes), it waits for a [`StreamMarker`] instead.
//!
//! This module does not depend on drivers, or on the code that enqueues.

use super::deadline::Deadline;
use super::error::Result;
use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

/// The device and stream of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GpuTarget {
    /// The index of the device.
    pub device: usize,
    /// The driver's handle of the caller's stream; `None` for a stream of the library.
    pub stream: Option<usize>,
}

/// An enqueued operation. A reference to it keeps neither its group nor its buffers alive.
pub trait EnqueuedOperation: Send + Sync + Debug {
    /// Waits until the device has completed the operation. Returns false if the limit passed first.
    ///
    /// # Errors
    /// The failure of its group. The destination buffers then have arbitrary contents.
    fn wait(&self, limit: &Deadline) -> Result<bool>;
}

/// A position in a stream.
pub trait StreamMarker: Send + Sync + Debug {
    /// Returns whether the device has completed all earlier work of the stream.
    ///
    /// # Errors
    /// The device's error in that earlier work.
    fn is_complete(&self) -> Result<bool>;
}

/// The slot that receives an enqueued operation, once.
pub type EnqueuedOperationSlot = OnceLock<Arc<dyn EnqueuedOperation>>;

/// The request to enqueue an operation.
#[derive(Clone, Copy, Debug)]
pub struct EnqueueRequest<'a> {
    /// The device and stream.
    pub gpu: GpuTarget,
    /// The slot for the enqueued operation, which reports its completion.
    pub operation_slot: &'a EnqueuedOperationSlot,
    /// The stream position at which the buffers are ready, if it was recorded when the operation
    /// was issued.
    pub buffers_ready: Option<&'a dyn StreamMarker>,
}
