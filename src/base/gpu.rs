//! Operations on the memory of a GPU: where one runs, and what tells that the device is done with
//! it.
//!
//! Such an operation is *enqueued*: it ends for its caller once the device knows of it, and takes
//! place later, in the order of a stream. Where nothing can be enqueued (the host carries the
//! bytes), it waits for a [`StreamMarker`] instead.
//!
//! Must not know: drivers, who enqueues.

use super::deadline::Deadline;
use super::error::Result;
use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

/// Where an operation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GpuTarget {
    /// The index of the device.
    pub device: usize,
    /// The caller's stream, as the driver calls it; `None` for one of the library's.
    pub stream: Option<usize>,
}

/// An operation that was enqueued. Holding it keeps neither its group nor its buffers.
pub trait EnqueuedOperation: Send + Sync + Debug {
    /// Waits until the device is done with it; false where the limit came first.
    ///
    /// # Errors
    /// The failure of its group: what the operation has written is arbitrary.
    fn wait(&self, limit: &Deadline) -> Result<bool>;
}

/// A moment in a stream.
pub trait StreamMarker: Send + Sync + Debug {
    /// Whether the device has done everything that was in the stream by then.
    ///
    /// # Errors
    /// What went wrong on the device before it.
    fn is_complete(&self) -> Result<bool>;
}

/// Where an operation that was enqueued is put, once.
pub type EnqueuedOperationSlot = OnceLock<Arc<dyn EnqueuedOperation>>;

/// How an operation is to be enqueued.
#[derive(Clone, Copy, Debug)]
pub struct EnqueueRequest<'a> {
    /// Where.
    pub gpu: GpuTarget,
    /// Who tells its end.
    pub operation_slot: &'a EnqueuedOperationSlot,
    /// When its buffers are ready, where that was noted as it was issued.
    pub buffers_ready: Option<&'a dyn StreamMarker>,
}
