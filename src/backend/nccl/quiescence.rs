//! The communicators of this process, and moments in which none of them has anything under way.
//!
//! To destroy a communicator frees memory, for which the driver waits for all that the device was
//! given, and keeps everybody else out of its context meanwhile. Where one process has several
//! ranks, what it waits for may be an operation of another group that waits in turn for another
//! rank of this process: which cannot come, since it cannot get past the driver. So a communicator
//! is destroyed in a *quiet* moment, in which no communicator of this process has anything under
//! way and nobody enqueues; who wants to do so waits until it is over. Nobody who is on his way to
//! enqueue waits for a quiet moment.

use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::GroupId;
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitInterrupt, WaitPolicy, pause, wait_until};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long one waits before one tries again whether all is quiet. Watchdogs see some milliseconds
/// late what has ended.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// After how many tries something is under way indeed.
const IN_USE_TRIES: u32 = 20;

/// One communicator, as the others see it.
#[derive(Debug, Default)]
pub(super) struct CommUsage {
    doorbell: Doorbell,
    /// How many of its operations are under way.
    operations_in_flight: AtomicUsize,
    /// It has ended, and the thread that has ended it has let go of everything.
    has_ended: AtomicBool,
}

/// A communicator that has not ended, of which group, and whether its rank has left that.
struct LiveComm {
    group: GroupId,
    usage: Arc<CommUsage>,
    has_left: bool,
}

static LIVE_COMMS: Mutex<Vec<LiveComm>> = Mutex::new(Vec::new());

static ENQUEUE_STATE: LazyLock<EnqueueState> = LazyLock::new(EnqueueState::default);

/// Who enqueues, and whether that must wait.
#[derive(Default)]
struct EnqueueState {
    enqueuer_count: AtomicUsize,
    is_destroying: AtomicBool,
    doorbell: Doorbell,
}

/// The right to enqueue.
#[derive(Debug)]
pub(super) struct EnqueueGuard;

/// A quiet moment, until this is dropped.
#[derive(Debug)]
pub(super) struct DestroyGuard;

fn live_comms() -> MutexGuard<'static, Vec<LiveComm>> {
    LIVE_COMMS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CommUsage {
    /// That of a group's new communicator.
    pub(super) fn register(group: GroupId) -> Arc<Self> {
        let usage = Arc::<Self>::default();
        live_comms().push(LiveComm { group, usage: Arc::clone(&usage), has_left: false });
        usage
    }

    /// Notes how many operations are under way.
    pub(super) fn set_operations_in_flight(&self, count: usize) {
        self.operations_in_flight.store(count, Ordering::SeqCst);
    }

    /// It has ended.
    pub(super) fn mark_ended(self: &Arc<Self>) {
        live_comms().retain(|it| !Arc::ptr_eq(&it.usage, self));
        self.has_ended.store(true, Ordering::Release);
        self.doorbell.notify();
    }

    /// Notes that its rank has left. Those that end now without anybody else's doing: where it is
    /// the last one of its group in this process, all whose ranks have left.
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

    /// Waits until it has ended; false where the limit came first.
    pub(super) fn wait_ended(&self, limit: &Deadline) -> bool {
        let ended = || self.has_ended.load(Ordering::Acquire).then_some(());
        wait_until(&self.doorbell, WaitPolicy::SLEEP_SOON, limit, || None, ended).is_ok()
    }

    /// The same, as long as no group is used that its rank has not left: it waits for that itself.
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

/// Whether some communicators have anything under way, or anybody is about to enqueue.
fn is_in_use(is_counted: impl Fn(&LiveComm) -> bool) -> bool {
    let is_busy = |it: &LiveComm| it.usage.operations_in_flight.load(Ordering::SeqCst) > 0;
    ENQUEUE_STATE.enqueuer_count.load(Ordering::SeqCst) > 0
        || live_comms().iter().any(|it| is_counted(it) && is_busy(it))
}

/// The right to enqueue, until it is dropped: what is enqueued must be known to be under way before
/// that.
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
        match wait_until(
            &ENQUEUE_STATE.doorbell,
            WaitPolicy::SLEEP_SOON,
            deadline,
            || None,
            is_over,
        ) {
            Ok(()) => {}
            Err(WaitInterrupt::Aborted(error)) => return Err(error),
            Err(WaitInterrupt::Deadline) => {
                let ms = deadline.elapsed().as_millis();
                let message =
                    format!("another group's communicator was being destroyed for {ms} ms");
                return Err(Error::new(ErrorKind::Timeout, message));
            }
        }
    }
}

impl Drop for EnqueueGuard {
    fn drop(&mut self) {
        ENQUEUE_STATE.enqueuer_count.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits for a quiet moment, or until `is_over`, and then there is none.
pub(super) fn acquire_destroy(is_over: impl Fn() -> bool) -> Option<DestroyGuard> {
    loop {
        let is_mine = !ENQUEUE_STATE.is_destroying.swap(true, Ordering::SeqCst);
        // Whoever has begun to enqueue before is seen here, and whoever begins after that sees the
        // moment.
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
