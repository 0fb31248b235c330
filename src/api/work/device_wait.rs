//! [`DeviceWait`]: a wait for the completion of an operation on its device.

use crate::api::observe::deadlock::{AwaitedWork, AwaitedWorkKind, BlockedCallGuard};
use crate::api::work::queue::RunQueue;
use crate::base::deadline::Deadline;
use crate::base::gpu::EnqueuedOperation;
use std::sync::Arc;

/// A wait for the completion of an operation on its device.
#[derive(Clone, Debug)]
pub(super) struct DeviceWait {
    pub(super) completion: Arc<dyn EnqueuedOperation>,
    /// The queue of the group.
    pub(super) queue: Arc<RunQueue>,
    pub(super) sequence: u64,
    /// The deadline of the operation.
    pub(super) deadline: Deadline,
    pub(super) kind: AwaitedWorkKind,
}

impl DeviceWait {
    /// Marks that the thread begins this wait, for the search for deadlocks.
    pub(super) fn begin(&self, limit: &Deadline) -> BlockedCallGuard {
        let work = AwaitedWork { kind: self.kind, deadlines: [self.deadline, *limit] };
        BlockedCallGuard::work(Arc::as_ptr(&self.queue).addr(), self.sequence, work)
    }
}
