//! Completion callbacks: they run on one thread of the process, in the order in which their works
//! end.
//!
//! The thread is there while callbacks are registered, and a moment longer. Since all callbacks
//! share it, a call that waits for a work inside one could wait for what only another callback
//! would bring about; such calls are refused.
//!
//! A callback is called, withdrawn or dropped; the thread that takes the function out of its slot
//! decides which. Stopping drains what was posted, and begins a new generation: callbacks of an
//! earlier one are not posted any more. The thread also drops groups whose last holder is a thread
//! that must not (see [`let_go`]).

use super::group::Group;
use super::work::Progress;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::log::Level;
use crate::process::thread::{self, MARKS};
use crate::wait::bell::Bell;
use crate::wait::{Pace, until};
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// How many callbacks may be registered and not have been called.
pub const MOST_CALLBACKS: usize = 1 << 20;

/// How long the thread stays when no callback is registered.
const IDLE: Duration = Duration::from_millis(100);

/// What is called with the outcome of a work.
pub(super) type Function = Box<dyn FnOnce(&Result<()>) + Send>;

/// By what a caller names a callback that it withdraws: its function and the pointer given with
/// that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallbackKey {
    /// The address of the function.
    pub function: usize,
    /// The pointer, which is not followed.
    pub user: usize,
}

/// What the thread is to do.
enum Task {
    Call(Arc<Slot>, Result<()>),
    Drop(Box<Group>),
}

struct Tasks {
    /// With their numbers, which rise.
    waiting: VecDeque<(u64, Task)>,
    /// The number of the next one.
    next: u64,
    /// The number of the one that the thread performs.
    performed: Option<u64>,
    /// Callbacks of this generation that are registered and have not been called.
    registered: usize,
    /// Rises when callbacks are stopped: those of an earlier one are not posted any more.
    generation: u64,
    is_stopped: bool,
    has_thread: bool,
}

static TASKS: Mutex<Tasks> = Mutex::new(Tasks {
    waiting: VecDeque::new(),
    next: 0,
    performed: None,
    registered: 0,
    generation: 0,
    is_stopped: false,
    has_thread: false,
});

/// Rung when a task comes or has been performed, and when callbacks are stopped.
static BELL: LazyLock<Bell> = LazyLock::new(Bell::default);

/// A callback until it is called, withdrawn or dropped: one of the three takes its function.
struct Slot {
    key: CallbackKey,
    generation: u64,
    function: Mutex<Option<Function>>,
}

/// A registered callback. It is posted once; one that is dropped instead is forgotten.
pub(super) struct Callback(Arc<Slot>);

/// A callback that has been posted, for withdrawing it.
pub(super) struct Posted(Weak<Slot>);

impl fmt::Debug for Callback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callback").field("key", &self.0.key).finish_non_exhaustive()
    }
}

impl Slot {
    /// Its function, which counts as registered until [`Tasks::has_ended`] is called.
    fn take(&self) -> Option<Function> {
        self.function.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn is_full(&self) -> bool {
        self.function.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn withdraw(&self) -> Option<Function> {
        let function = self.take()?;
        lock().has_ended(self.generation);
        BELL.ring();
        Some(function)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        drop(self.withdraw());
    }
}

impl Tasks {
    /// A callback of a generation has been called, or never will be.
    fn has_ended(&mut self, generation: u64) {
        if generation == self.generation {
            self.registered -= 1;
        }
    }

    fn put(&mut self, task: Task) {
        self.waiting.push_back((self.next, task));
        self.next += 1;
    }

    /// Whether all tasks with numbers below this one have been performed.
    fn has_performed(&self, number: u64) -> bool {
        let mut left = self.performed.iter().chain(self.waiting.front().map(|(first, _)| first));
        left.all(|&left| left >= number)
    }
}

/// Registers a function that will be called with the outcome of a work.
///
/// # Errors
/// `OutOfMemory` where too many are registered, `System` where the thread cannot be started,
/// `NotInitialized` between [`stop`] and [`start`].
pub(super) fn register(
    key: CallbackKey,
    function: impl FnOnce(&Result<()>) + Send + 'static,
) -> Result<Callback> {
    let mut tasks = lock();
    if tasks.is_stopped {
        let message = "completion callbacks were stopped (dist_callbacks_stop): call dist_callbacks_start first";
        return Err(Error::new(ErrorKind::NotInitialized, message));
    }
    if tasks.registered >= MOST_CALLBACKS {
        let message =
            format!("{MOST_CALLBACKS} completion callbacks are registered, the most there may be");
        return Err(Error::new(ErrorKind::OutOfMemory, message));
    }
    ensure_thread(&mut tasks)?;
    tasks.registered += 1;
    let function: Function = Box::new(function);
    let generation = tasks.generation;
    Ok(Callback(Arc::new(Slot { key, generation, function: Mutex::new(Some(function)) })))
}

impl Callback {
    /// Has the function called with this outcome, after those that were posted before.
    pub(super) fn post(self, outcome: Result<()>) {
        let mut tasks = lock();
        // Of an earlier generation, it is dropped without the lock.
        if self.0.generation == tasks.generation {
            // The thread is there as long as a callback is registered.
            tasks.put(Task::Call(self.0, outcome));
            drop(tasks);
            BELL.ring();
        }
    }

    /// For withdrawing it once it has been posted.
    pub(super) fn posted(&self) -> Posted {
        Posted(Arc::downgrade(&self.0))
    }

    /// Whether it was registered under this key and has not been withdrawn.
    pub(super) fn has(&self, key: CallbackKey) -> bool {
        self.0.key == key && self.0.is_full()
    }

    /// Its function, which is never called then.
    pub(super) fn withdraw(self) -> Option<Function> {
        self.0.withdraw()
    }
}

impl Posted {
    /// Whether it has not been called yet.
    pub(super) fn is_waiting(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Its function, if it was registered under this key and has not been called; it is never
    /// called then.
    pub(super) fn withdraw(&self, key: CallbackKey) -> Option<Function> {
        self.0.upgrade().filter(|slot| slot.key == key)?.withdraw()
    }
}

/// Stops all callbacks: waits until those of works that are done have returned, drops the others,
/// and ends the thread. `Pending` where the limit came first; then those that had not begun have
/// been dropped, too. None is called again that was registered before.
///
/// # Errors
/// `InvalidArgument` inside a callback.
pub fn stop(limit: &Deadline) -> Result<Progress> {
    refuse_to_block("stopping completion callbacks")?;
    let posted = {
        let mut tasks = lock();
        if !tasks.is_stopped {
            tasks.is_stopped = true;
            tasks.generation += 1;
            tasks.registered = 0;
        }
        tasks.next
    };
    BELL.ring();
    if !wait_until_performed(posted, limit) {
        drop_calls(posted);
    }
    let ended = || (!lock().has_thread).then_some(());
    match until(&BELL, Pace::PATIENT, limit, || None, ended) {
        Ok(()) => Ok(Progress::Done),
        Err(_) => Ok(Progress::Pending),
    }
}

/// Lets callbacks be registered again after [`stop`].
pub fn start() {
    lock().is_stopped = false;
}

/// Waits until the callbacks of all works that are done have returned; where the limit comes first,
/// those that have not begun are dropped. The number of these.
pub(super) fn finish(limit: &Deadline) -> usize {
    let posted = lock().next;
    if wait_until_performed(posted, limit) { 0 } else { drop_calls(posted) }
}

fn wait_until_performed(number: u64, limit: &Deadline) -> bool {
    let performed = || lock().has_performed(number).then_some(());
    until(&BELL, Pace::PATIENT, limit, || None, performed).is_ok()
}

/// Drops the callbacks with numbers below this one that wait; how many they were.
fn drop_calls(number: u64) -> usize {
    let mut tasks = lock();
    let waiting = std::mem::take(&mut tasks.waiting);
    let is_dropped = |(own, task): &(u64, Task)| {
        *own < number && matches!(task, Task::Call(slot, _) if slot.is_full())
    };
    let (dropped, kept): (Vec<_>, Vec<_>) = waiting.into_iter().partition(is_dropped);
    tasks.waiting = kept.into();
    drop(tasks);
    // Each takes the lock, and drops what the caller gave.
    dropped.len()
}

/// Gives up a hold on a group, on a thread that may belong to the group's own engine. If this was
/// the last one, the callback thread ends the group: an engine cannot be taken down by the thread
/// that runs it.
pub(super) fn let_go(group: Arc<Group>) {
    let Some(group) = Arc::into_inner(group) else { return };
    let mut tasks = lock();
    match ensure_thread(&mut tasks) {
        Ok(()) => {
            tasks.put(Task::Drop(Box::new(group)));
            drop(tasks);
            BELL.ring();
        }
        Err(error) => {
            drop(tasks);
            crate::log!(Level::Warn, "group {} ends on a thread of its own: {error}", group.name());
        }
    }
}

/// Refuses what may wait inside of a completion callback.
///
/// # Errors
/// `InvalidArgument`, saying what to do instead.
#[inline]
pub fn refuse_to_block(what: &str) -> Result<()> {
    if MARKS.with(|marks| marks.in_callbacks.get()) { Err(refused(what)) } else { Ok(()) }
}

#[cold]
fn refused(what: &str) -> Error {
    let message = format!(
        "{what} may block, which a completion callback must not: all callbacks share one thread. Issue it \
         asynchronously (with a work), or do it on another thread"
    );
    Error::invalid(message)
}

fn ensure_thread(tasks: &mut Tasks) -> Result<()> {
    if !tasks.has_thread {
        thread::start("dist-callback", run)?;
        tasks.has_thread = true;
    }
    Ok(())
}

/// The thread: calls posted functions until nothing is registered for a while, or callbacks are
/// stopped.
fn run() {
    MARKS.with(|marks| marks.in_callbacks.set(true));
    loop {
        let (lingers, was_stopped) = {
            let tasks = lock();
            (tasks.registered == 0, tasks.is_stopped)
        };
        let limit = match lingers {
            true if was_stopped => Deadline::after(Duration::ZERO),
            true => Deadline::after(IDLE),
            false => Deadline::never(),
        };
        let ready = || {
            let mut tasks = lock();
            let task = tasks.waiting.pop_front();
            tasks.performed = task.as_ref().map(|(number, _)| *number);
            let has_changed = !lingers && tasks.registered == 0 || was_stopped != tasks.is_stopped;
            (task.is_some() || has_changed).then(|| task.map(|(_, task)| task))
        };
        match until(&BELL, Pace::PATIENT, &limit, || None, ready) {
            Ok(Some(task)) => perform(task),
            Ok(None) => {}
            Err(_) if retire() => {
                BELL.ring();
                return;
            }
            Err(_) => {}
        }
    }
}

fn perform(task: Task) {
    match task {
        Task::Call(slot, outcome) => {
            if let Some(function) = slot.take() {
                if catch_unwind(AssertUnwindSafe(|| function(&outcome))).is_err() {
                    crate::log!(Level::Error, "a completion callback panicked");
                }
                lock().has_ended(slot.generation);
            }
        }
        Task::Drop(group) => drop(group),
    }
    lock().performed = None;
    BELL.ring();
}

/// Ends the thread's time, unless there is something to do after all.
fn retire() -> bool {
    let mut tasks = lock();
    tasks.has_thread = tasks.registered > 0 || !tasks.waiting.is_empty();
    !tasks.has_thread
}

fn lock() -> MutexGuard<'static, Tasks> {
    TASKS.lock().unwrap_or_else(PoisonError::into_inner)
}
