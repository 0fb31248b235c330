//! The live communicators of this process, and the quiescence that the destruction of one needs.
//!
//! The destruction of a communicator frees memory. For that the driver waits for all work of the
//! device, and blocks all other threads that use the context. If one process has several ranks, the
//! driver may wait for an operation of another group, which in turn waits for another rank of this
//! process. This rank is blocked in the driver: a deadlock. So a thread destroys a communicator
//! only in *quiescence*: no communicator of this process has operations in flight, and no thread
//! enqueues.
//!
//! The thread holds a [`DestroyGuard`] during the destruction, and threads that want to enqueue
//! wait until it is dropped. A thread with an [`EnqueueGuard`] never waits for the destruction.

use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::GroupId;
use crate::base::sync::lock;
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitPolicy, pause, wait_until};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::Duration;

/// The interval between two checks for quiescence. Watchdogs notice the end of an operation some
/// milliseconds late.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// The number of consecutive checks after which a group counts as in use.
const IN_USE_TRIES: u32 = 20;

/// The usage of one communicator, visible to all threads of the process.
#[derive(Debug, Default)]
pub(super) struct CommUsage {
    doorbell: Doorbell,
    /// The number of its operations in flight.
    operations_in_flight: AtomicUsize,
    /// True after the communicator ended and the thread that ended it released all resources.
    has_ended: AtomicBool,
}

/// A communicator that has not ended, its group, and whether its rank has left the group.
struct LiveComm {
    group: GroupId,
    usage: Arc<CommUsage>,
    has_left: bool,
}

static LIVE_COMMS: Mutex<Vec<LiveComm>> = Mutex::new(Vec::new());

static ENQUEUE_STATE: LazyLock<EnqueueState> = LazyLock::new(EnqueueState::default);

/// The number of threads that enqueue, and whether threads that want to enqueue must wait.
#[derive(Default)]
struct EnqueueState {
    enqueuer_count: AtomicUsize,
    is_destroying: AtomicBool,
    doorbell: Doorbell,
}

/// The right to enqueue.
#[derive(Debug)]
pub(super) struct EnqueueGuard;

/// The right to destroy a communicator. Threads that want to enqueue wait until it is dropped.
#[derive(Debug)]
pub(super) struct DestroyGuard;

fn live_comms() -> MutexGuard<'static, Vec<LiveComm>> {
    lock(&LIVE_COMMS)
}

impl CommUsage {
    /// Registers the new communicator of a group.
    pub(super) fn register(group: GroupId) -> Arc<Self> {
        let usage = Arc::<Self>::default();
        live_comms().push(LiveComm { group, usage: Arc::clone(&usage), has_left: false });
        usage
    }

    /// Records the number of operations in flight.
    pub(super) fn set_operations_in_flight(&self, count: usize) {
        self.operations_in_flight.store(count, Ordering::SeqCst);
    }

    /// Records that the communicator has ended.
    pub(super) fn mark_ended(self: &Arc<Self>) {
        live_comms().retain(|it| !Arc::ptr_eq(&it.usage, self));
        self.has_ended.store(true, Ordering::Release);
        self.doorbell.notify();
    }

    /// Records that the rank of this communicator has left its group. If it was the last rank of
    /// its group in this process, it returns the communicators of all groups that all their ranks
    /// in this process have left. They end without further calls of other threads.
    pub(super) fn leave_group(self: &Arc<Self>) -> Vec<Arc<Self>> {
        let mut alive = live_comms();
        let mut own = None;
        for it in alive.iter_mut().filter(|it| Arc::ptr_eq(&it.usage, self)) {
            (it.has_left, own) = (true, Some(it.group));
        }
        let has_group_left = |group| !alive.iter().any(|it| it.group == group && !it.has_left);
        if own.is_some_and(|group| !has_group_left(group)) {
            return Vec::new();
        }
        let left = alive.iter().filter(|it| has_group_left(it.group));
        left.map(|it| Arc::clone(&it.usage)).collect()
    }

    /// Waits until the communicator has ended; returns false if the limit passed first.
    pub(super) fn wait_ended(&self, limit: &Deadline) -> bool {
        let ended = || self.has_ended.load(Ordering::Acquire).then_some(());
        wait_until(&self.doorbell, WaitPolicy::SLEEP_SOON, limit, || None, ended).is_ok()
    }

    /// Waits as `wait_ended`, but also returns true if groups that their ranks have not left stay
    /// in use for [`IN_USE_TRIES`] checks: the end of the communicator waits for them.
    pub(super) fn wait_ended_unless_in_use(&self, limit: &Deadline) -> bool {
        let mut in_use = 0;
        while in_use < IN_USE_TRIES && !limit.has_passed() {
            if self.wait_ended(&limit.capped(RETRY_INTERVAL)) {
                return true;
            }
            in_use = if is_in_use(|it| !it.has_left) { in_use + 1 } else { 0 };
        }
        in_use == IN_USE_TRIES
    }
}

/// Returns true if a counted communicator has operations in flight, or a thread is about to
/// enqueue.
fn is_in_use(is_counted: impl Fn(&LiveComm) -> bool) -> bool {
    let is_busy = |it: &LiveComm| it.usage.operations_in_flight.load(Ordering::SeqCst) > 0;
    ENQUEUE_STATE.enqueuer_count.load(Ordering::SeqCst) > 0
        || live_comms().iter().any(|it| is_counted(it) && is_busy(it))
}

/// Acquires the right to enqueue. Before the guard is dropped, the enqueued operations must count
/// as in flight.
///
/// # Errors
/// `Timeout`.
pub(super) fn acquire_enqueue(deadline: &Deadline) -> Result<EnqueueGuard> {
    loop {
        ENQUEUE_STATE.enqueuer_count.fetch_add(1, Ordering::SeqCst);
        let guard = EnqueueGuard;
        if !ENQUEUE_STATE.is_destroying.load(Ordering::SeqCst) {
            return Ok(guard);
        }
        drop(guard);
        let is_over = || (!ENQUEUE_STATE.is_destroying.load(Ordering::SeqCst)).then_some(());
        let doorbell = &ENQUEUE_STATE.doorbell;
        if wait_until(doorbell, WaitPolicy::SLEEP_SOON, deadline, || None, is_over).is_err() {
            let ms = deadline.elapsed().as_millis();
            let message = format!("another group's communicator was being destroyed for {ms} ms");
            return Err(Error::new(ErrorKind::Timeout, message));
        }
    }
}

impl Drop for EnqueueGuard {
    fn drop(&mut self) {
        ENQUEUE_STATE.enqueuer_count.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits for quiescence and returns the guard; returns `None` if `is_over` returns true first.
pub(super) fn acquire_destroy(is_over: impl Fn() -> bool) -> Option<DestroyGuard> {
    loop {
        let is_mine = !ENQUEUE_STATE.is_destroying.swap(true, Ordering::SeqCst);
        // A thread that began to enqueue before is counted here; a thread that begins later sees
        // `is_destroying`.
        if let Some(guard) = is_mine.then_some(DestroyGuard)
            && !is_in_use(|_| true)
        {
            return Some(guard);
        }
        if is_over() {
            return None;
        }
        pause(RETRY_INTERVAL, &Deadline::never());
    }
}

impl Drop for DestroyGuard {
    fn drop(&mut self) {
        ENQUEUE_STATE.is_destroying.store(false, Ordering::SeqCst);
        ENQUEUE_STATE.doorbell.notify();
    }
}
