//! Warns once if two groups run NCCL operations on one device at the same time without an order.
//!
//! Each operation of NCCL occupies a part of the device until its peers run the same operation. If
//! two ranks run the operations of two groups in opposite orders, each may wait for the other
//! forever. Operations in one stream have an order, and so have the operations of one batch. For
//! two streams, the program must establish the order, for example by events. The library cannot see
//! these events, so the warning says what to check.

use super::enqueued::{EnqueuedSummary, NcclEnqueuedOperation};
use super::watchdog::NcclWatchdog;
use crate::base::ids::GroupId;
use crate::base::log::{self, LogLevel};
use crate::base::sync::lock;
use crate::device::driver::CudaHandle;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// The last operation of a group in a stream.
#[derive(Debug)]
struct StreamUse {
    group: GroupId,
    group_name: Arc<str>,
    device: usize,
    stream: CudaHandle,
    operation: Weak<NcclEnqueuedOperation>,
}

/// The streams with operations that had not completed at the last check.
static STREAMS: Mutex<Vec<StreamUse>> = Mutex::new(Vec::new());

/// True if the warning was logged.
static HAS_WARNED: AtomicBool = AtomicBool::new(false);

/// Returns whether the warning may still be logged.
fn is_watching() -> bool {
    log::enabled(LogLevel::Warn) && !HAS_WARNED.load(Ordering::Relaxed)
}

impl StreamUse {
    /// Returns the operation if the device has not completed it.
    fn in_flight(&self) -> Option<EnqueuedSummary> {
        let operation = self.operation.upgrade()?;
        // An operation of a failed group has ended, or ends soon.
        operation.poll().is_ok_and(|is_over| !is_over).then(|| operation.summary.clone())
    }
}

/// Logs the warning if a group is about to enqueue operations in `streams` while an operation of
/// another group is in flight in another stream of the same device.
pub(super) fn warn_if_concurrent(
    watchdog: &NcclWatchdog,
    streams: impl Iterator<Item = CudaHandle>,
) {
    if !is_watching() {
        return;
    }
    let (device, own_streams) = (watchdog.comm.context().device(), streams.collect::<Vec<_>>());
    let is_unordered = |used: &StreamUse| {
        used.group != watchdog.group
            && used.device == device
            && own_streams.iter().any(|&stream| stream != used.stream)
    };
    let mut found = None;
    lock(&STREAMS).retain(|used| {
        let in_flight = used.in_flight();
        if let Some(summary) = &in_flight
            && found.is_none()
            && is_unordered(used)
        {
            found = Some((Arc::clone(&used.group_name), summary.clone()));
        }
        in_flight.is_some()
    });
    let Some((other, summary)) = found else { return };
    if HAS_WARNED.swap(true, Ordering::Relaxed) {
        return;
    }
    crate::log!(
        LogLevel::Warn,
        "group {} enqueues an operation of NCCL on device {device} while {summary} of group {other} runs there in \
         another stream: unless all ranks run the operations of both groups in the same order, NCCL may wait \
         forever; use one stream, order the streams by events, make both calls in one batch, or synchronize the \
         first work (this warning appears once)",
        watchdog.group_name
    );
}

/// Remembers an operation that a group has enqueued in a stream.
pub(super) fn record(
    watchdog: &NcclWatchdog,
    stream: CudaHandle,
    operation: &Arc<NcclEnqueuedOperation>,
) {
    if !is_watching() {
        return;
    }
    let (group, device) = (watchdog.group, watchdog.comm.context().device());
    let mut all = lock(&STREAMS);
    all.retain(|used| {
        (used.group, used.device, used.stream) != (group, device, stream)
            && used.operation.strong_count() > 0
    });
    all.push(StreamUse {
        group,
        group_name: Arc::clone(&watchdog.group_name),
        device,
        stream,
        operation: Arc::downgrade(operation),
    });
}
