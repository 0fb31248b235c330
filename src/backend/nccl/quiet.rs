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
use crate::wait::bell::Bell;
use crate::wait::{Interrupt, Pace, pause, until};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long one waits before one tries again whether all is quiet. Watchdogs see some milliseconds
/// late what has ended.
const BETWEEN_TRIES: Duration = Duration::from_millis(1);

/// After how many tries something is under way indeed.
const TRIES: u32 = 20;

/// One communicator, as the others see it.
#[derive(Debug, Default)]
pub(super) struct Life {
    bell: Bell,
    /// How many of its operations are under way.
    under_way: AtomicUsize,
    /// It has ended, and the thread that has ended it has let go of everything.
    has_ended: AtomicBool,
}

/// A communicator that has not ended, of which group, and whether its rank has left that.
struct Alive {
    group: GroupId,
    life: Arc<Life>,
    has_left: bool,
}

static ALIVE: Mutex<Vec<Alive>> = Mutex::new(Vec::new());

static TRAFFIC: LazyLock<Traffic> = LazyLock::new(Traffic::default);

/// Who enqueues, and whether that must wait.
#[derive(Default)]
struct Traffic {
    enqueuing: AtomicUsize,
    is_quiet: AtomicBool,
    bell: Bell,
}

/// The right to enqueue.
#[derive(Debug)]
pub(super) struct Pass;

/// A quiet moment, until this is dropped.
#[derive(Debug)]
pub(super) struct Quiet;

fn alive() -> MutexGuard<'static, Vec<Alive>> {
    ALIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Life {
    /// That of a group's new communicator.
    pub(super) fn begin(group: GroupId) -> Arc<Self> {
        let life = Arc::<Self>::default();
        alive().push(Alive { group, life: Arc::clone(&life), has_left: false });
        life
    }

    /// Notes how many operations are under way.
    pub(super) fn has_under_way(&self, count: usize) {
        self.under_way.store(count, Ordering::SeqCst);
    }

    /// It has ended.
    pub(super) fn end(self: &Arc<Self>) {
        alive().retain(|it| !Arc::ptr_eq(&it.life, self));
        self.has_ended.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// Notes that its rank has left. Those that end now without anybody else's doing: where it is
    /// the last one of its group in this process, all whose ranks have left.
    pub(super) fn leave(self: &Arc<Self>) -> Vec<Arc<Self>> {
        let mut alive = alive();
        let mut own = None;
        for it in alive.iter_mut().filter(|it| Arc::ptr_eq(&it.life, self)) {
            (it.has_left, own) = (true, Some(it.group));
        }
        let is_left = |group| !alive.iter().any(|it| it.group == group && !it.has_left);
        if own.is_some_and(|group| !is_left(group)) {
            return Vec::new();
        }
        let left = alive.iter().filter(|it| is_left(it.group));
        left.map(|it| Arc::clone(&it.life)).collect()
    }

    /// Waits until it has ended; false where the limit came first.
    pub(super) fn wait(&self, limit: &Deadline) -> bool {
        let ended = || self.has_ended.load(Ordering::Acquire).then_some(());
        until(&self.bell, Pace::PATIENT, limit, || None, ended).is_ok()
    }

    /// The same, as long as no group is used that its rank has not left: it waits for that itself.
    pub(super) fn wait_unless_used(&self, limit: &Deadline) -> bool {
        let mut in_use = 0;
        while in_use < TRIES && !limit.has_passed() {
            if self.wait(&limit.capped(BETWEEN_TRIES)) {
                return true;
            }
            in_use = if is_in_use(|it| !it.has_left) { in_use + 1 } else { 0 };
        }
        in_use == TRIES
    }
}

/// Whether some communicators have anything under way, or anybody is about to enqueue.
fn is_in_use(of: impl Fn(&Alive) -> bool) -> bool {
    let is_busy = |it: &Alive| it.life.under_way.load(Ordering::SeqCst) > 0;
    TRAFFIC.enqueuing.load(Ordering::SeqCst) > 0 || alive().iter().any(|it| of(it) && is_busy(it))
}

/// The right to enqueue, until it is dropped: what is enqueued must be known to be under way before
/// that.
///
/// # Errors
/// `Timeout`.
pub(super) fn enqueue(deadline: &Deadline) -> Result<Pass> {
    loop {
        TRAFFIC.enqueuing.fetch_add(1, Ordering::SeqCst);
        let pass = Pass;
        if !TRAFFIC.is_quiet.load(Ordering::SeqCst) {
            return Ok(pass);
        }
        drop(pass);
        let is_over = || (!TRAFFIC.is_quiet.load(Ordering::SeqCst)).then_some(());
        match until(&TRAFFIC.bell, Pace::PATIENT, deadline, || None, is_over) {
            Ok(()) => {}
            Err(Interrupt::Halted(error)) => return Err(error),
            Err(Interrupt::Deadline) => {
                let ms = deadline.elapsed().as_millis();
                let message =
                    format!("another group's communicator was being destroyed for {ms} ms");
                return Err(Error::new(ErrorKind::Timeout, message));
            }
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        TRAFFIC.enqueuing.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits for a quiet moment, or until `is_over`, and then there is none.
pub(super) fn moment(is_over: impl Fn() -> bool) -> Option<Quiet> {
    loop {
        let is_mine = !TRAFFIC.is_quiet.swap(true, Ordering::SeqCst);
        // Whoever has begun to enqueue before is seen here, and whoever begins after that sees the
        // moment.
        if let Some(quiet) = is_mine.then_some(Quiet)
            && !is_in_use(|_| true)
        {
            return Some(quiet);
        }
        if is_over() {
            return None;
        }
        pause(BETWEEN_TRIES, &Deadline::never());
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        TRAFFIC.is_quiet.store(false, Ordering::SeqCst);
        TRAFFIC.bell.ring();
    }
}
