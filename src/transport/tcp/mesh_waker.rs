//! Wakes the thread that waits in [`Endpoint::wait_for_streams`](crate::transport::Endpoint).

use crate::base::sync::lock;
use crate::sys::eventfd::EventFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Wakes the waiting thread of a mesh. A wake-up before the wait ends that wait at once.
#[derive(Debug, Default)]
pub(super) struct MeshWaker {
    is_woken: AtomicBool,
    is_waiting: AtomicBool,
    event: Mutex<Option<Arc<EventFd>>>,
}

impl MeshWaker {
    /// Ends the present wait, or the next one. The waiter sees what the caller stored before.
    pub(super) fn wake(&self) {
        // One side at least sees the store of the other, because all four operations are
        // sequentially consistent.
        self.is_woken.store(true, Ordering::SeqCst);
        if self.is_waiting.load(Ordering::SeqCst)
            && let Some(event) = &*lock(&self.event)
        {
            event.raise();
        }
    }

    /// Begins a wait with an event that is not raised. The caller then checks its conditions, and
    /// [`MeshWaker::is_woken`].
    pub(super) fn begin_wait(&self, event: &Arc<EventFd>) {
        *lock(&self.event) = Some(Arc::clone(event));
        self.is_waiting.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_woken(&self) -> bool {
        self.is_woken.load(Ordering::SeqCst)
    }

    /// Ends a wait. The caller checks its conditions again. After this call, no thread raises the
    /// event.
    pub(super) fn end_wait(&self) {
        self.is_waiting.store(false, Ordering::SeqCst);
        lock(&self.event).take();
        self.is_woken.store(false, Ordering::SeqCst);
    }
}
