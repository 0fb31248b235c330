//! The live communicators of this process, and the quiescence that is necessary to destroy a
//! communicator.
//!
//! The destruction of a communicator frees device memory. For that, the driver waits for all work
//! of the device, and blocks all other threads that use the same CUDA context. If one process has
//! several ranks, this can deadlock. The driver may wait for an operation of another group, and
//! that operation may wait for another rank of this process. If the thread of that rank is blocked
//! in the driver, none of them continues. A thread therefore destroys a communicator only in
//! *quiescence*: no communicator of this process has operations in flight, and no thread is
//! enqueuing operations.
//!
//! The thread that destroys a communicator holds a [`DestroyGuard`]. Threads that want to enqueue
//! wait until the guard is dropped. A thread that already holds an [`EnqueueGuard`] never waits for
//! the destruction; the destruction waits for that thread.

use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::GroupId;
use crate::base::sync::lock;
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitPolicy, pause, wait_until};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::Duration;

/// The interval between two checks for quiescence. A shorter interval is not useful, because a
/// watchdog notices the end of an operation some milliseconds late.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// The number of consecutive checks that must find other groups in use, before a leaving rank no
/// longer waits for them.
const IN_USE_TRIES: u32 = 20;

/// The usage of one communicator. All threads of the process can read it.
#[derive(Debug, Default)]
pub(super) struct CommUsage {
    doorbell: Doorbell,
    /// The number of operations of the communicator that are in flight.
    operations_in_flight: AtomicUsize,
    /// True after the communicator has ended and the thread that ended it has released all
    /// resources.
    has_ended: AtomicBool,
}

/// A communicator that has not ended. `group` is its group, and `has_left` is true if its rank has
/// left the group.
struct LiveComm {
    group: GroupId,
    usage: Arc<CommUsage>,
    has_left: bool,
}

static LIVE_COMMS: Mutex<Vec<LiveComm>> = Mutex::new(Vec::new());

static ENQUEUE_STATE: LazyLock<EnqueueState> = LazyLock::new(EnqueueState::default);

/// The number of threads that are enqueuing, and whether threads that want to enqueue must wait.
#[derive(Default)]
struct EnqueueState {
    enqueuer_count: AtomicUsize,
    is_destroying: AtomicBool,
    doorbell: Doorbell,
}

/// The right to enqueue operations. No communicator is destroyed while a thread holds it.
#[derive(Debug)]
pub(super) struct EnqueueGuard;

/// The right to destroy a communicator. Threads that want to enqueue wait until this guard is
/// dropped.
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
    /// its group in this process, returns the communicators of all groups that have no rank left in
    /// this process. These communicators end without further calls of the caller's threads.
    /// Otherwise returns an empty list.
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

    /// Waits until the communicator has ended. Returns false if the limit passes before that.
    pub(super) fn wait_ended(&self, limit: &Deadline) -> bool {
        let ended = || self.has_ended.load(Ordering::Acquire).then_some(());
        wait_until(&self.doorbell, WaitPolicy::SLEEP_SOON, limit, || None, ended).is_ok()
    }

    /// Waits until the communicator has ended, as `wait_ended`. Also returns true if groups whose
    /// ranks have not left stay in use for [`IN_USE_TRIES`] checks, because the end of the
    /// communicator must wait for these groups.
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

/// Returns true if a communicator for which `is_counted` returns true has operations in flight, or
/// if a thread is enqueuing.
fn is_in_use(is_counted: impl Fn(&LiveComm) -> bool) -> bool {
    let is_busy = |it: &LiveComm| it.usage.operations_in_flight.load(Ordering::SeqCst) > 0;
    ENQUEUE_STATE.enqueuer_count.load(Ordering::SeqCst) > 0
        || live_comms().iter().any(|it| is_counted(it) && is_busy(it))
}

/// Acquires the right to enqueue. Before the caller drops the guard, the enqueued operations must
/// count as in flight ([`CommUsage::set_operations_in_flight`]).
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

/// Waits for quiescence, and returns the guard. Returns `None` if `is_over` returns true before
/// that.
pub(super) fn acquire_destroy(is_over: impl Fn() -> bool) -> Option<DestroyGuard> {
    loop {
        let is_mine = !ENQUEUE_STATE.is_destroying.swap(true, Ordering::SeqCst);
        // This thread stores `is_destroying` and then loads `enqueuer_count`. An enqueuing thread
        // stores `enqueuer_count` and then loads `is_destroying`. All four accesses are
        // sequentially consistent, so at least one of the two threads sees the store of the other
        // and waits.
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
