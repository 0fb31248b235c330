//! Completion callbacks. They run on one thread of the process, in the order in which their works
//! end.
//!
//! The callback thread runs while callbacks are registered, and up to 100 ms longer
//! (`IDLE_TIMEOUT`). All callbacks share the thread. If a callback waited for a work, it could wait
//! for an effect of another callback and deadlock; therefore blocking calls inside a callback are
//! refused.
//!
//! A callback is called, withdrawn or dropped. The thread that takes the function out of its slot
//! decides which. [`stop`] drains the posted callbacks and starts a new generation: callbacks of an
//! earlier generation are not posted any more. The callback thread also drops objects for threads
//! that must not drop them ([`drop_on_callback_thread`]).

use crate::api::work::progress::WorkProgress;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::process::thread::{self, THREAD_FLAGS};
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitPolicy, wait_until};
use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Weak};
use std::time::Duration;

/// The maximum number of callbacks that are registered and have not been called.
pub const MAX_CALLBACKS: usize = 1 << 20;

/// The time that the thread stays when no callback is registered.
const IDLE_TIMEOUT: Duration = Duration::from_millis(100);

/// A function that is called with the outcome of a work.
pub(in crate::api) type CallbackFn = Box<dyn FnOnce(&Result<()>) + Send>;

/// The key by which a caller withdraws a callback: the function and its user pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallbackKey {
    /// The address of the function.
    pub function: usize,
    /// The user pointer, which is never dereferenced.
    pub user: usize,
}

/// A task for the callback thread.
enum CallbackThreadTask {
    Call(Arc<CallbackSlot>, Result<()>),
    Drop(Box<dyn Any + Send>),
}

struct CallbackQueue {
    /// The waiting tasks with their numbers, in ascending order.
    waiting: VecDeque<(u64, CallbackThreadTask)>,
    /// The number of the next task.
    next_number: u64,
    /// The number of the task that the thread runs.
    running: Option<u64>,
    /// The number of registered callbacks of this generation that have not been called.
    registered: usize,
    /// Incremented when callbacks are stopped. Callbacks of an earlier generation are not posted
    /// any more.
    generation: u64,
    is_stopped: bool,
    has_thread: bool,
}

static QUEUE: Mutex<CallbackQueue> = Mutex::new(CallbackQueue {
    waiting: VecDeque::new(),
    next_number: 0,
    running: None,
    registered: 0,
    generation: 0,
    is_stopped: false,
    has_thread: false,
});

/// Rung when a task is added or has run, and when callbacks are stopped.
static DOORBELL: LazyLock<Doorbell> = LazyLock::new(Doorbell::default);

/// A callback until it is called, withdrawn or dropped. Exactly one of the three takes its
/// function.
struct CallbackSlot {
    key: CallbackKey,
    generation: u64,
    function: Mutex<Option<CallbackFn>>,
}

/// A registered callback. It is posted at most once. If it is dropped before, the function is never
/// called.
pub(in crate::api) struct RegisteredCallback(Arc<CallbackSlot>);

/// A posted callback, which can be withdrawn until it is called.
pub(in crate::api) struct PostedCallback(Weak<CallbackSlot>);

impl fmt::Debug for RegisteredCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callback").field("key", &self.0.key).finish_non_exhaustive()
    }
}

impl CallbackSlot {
    /// Takes the function. It counts as registered until [`CallbackQueue::unregister`] is called.
    fn take_function(&self) -> Option<CallbackFn> {
        lock(&self.function).take()
    }

    fn has_function(&self) -> bool {
        lock(&self.function).is_some()
    }

    fn withdraw(&self) -> Option<CallbackFn> {
        let function = self.take_function()?;
        lock_queue().unregister(self.generation);
        DOORBELL.notify();
        Some(function)
    }
}

impl Drop for CallbackSlot {
    fn drop(&mut self) {
        drop(self.withdraw());
    }
}

impl CallbackQueue {
    /// Counts a callback of this generation as called, withdrawn or dropped.
    fn unregister(&mut self, generation: u64) {
        if generation == self.generation {
            self.registered -= 1;
        }
    }

    fn push(&mut self, task: CallbackThreadTask) {
        self.waiting.push_back((self.next_number, task));
        self.next_number += 1;
    }

    /// Returns whether all tasks with numbers below this one have run.
    fn has_run_all_below(&self, number: u64) -> bool {
        let mut left = self.running.iter().chain(self.waiting.front().map(|(first, _)| first));
        left.all(|&left| left >= number)
    }
}

/// Registers a function to be called with the outcome of a work.
///
/// # Errors
/// `OutOfMemory` if too many callbacks are registered, `System` if the thread cannot be started,
/// `NotInitialized` between [`stop`] and [`start`].
pub(in crate::api) fn register(
    key: CallbackKey,
    function: impl FnOnce(&Result<()>) + Send + 'static,
) -> Result<RegisteredCallback> {
    let mut tasks = lock_queue();
    if tasks.is_stopped {
        let message = "completion callbacks were stopped (dist_callbacks_stop): call dist_callbacks_start first";
        return Err(Error::new(ErrorKind::NotInitialized, message));
    }
    if tasks.registered >= MAX_CALLBACKS {
        let message = format!(
            "{MAX_CALLBACKS} completion callbacks are registered, which is the maximum: \
                     wait until some have run"
        );
        return Err(Error::new(ErrorKind::OutOfMemory, message));
    }
    ensure_thread(&mut tasks)?;
    tasks.registered += 1;
    let function: CallbackFn = Box::new(function);
    let generation = tasks.generation;
    Ok(RegisteredCallback(Arc::new(CallbackSlot {
        key,
        generation,
        function: Mutex::new(Some(function)),
    })))
}

impl RegisteredCallback {
    /// Posts the callback: the thread calls it with this outcome, after the callbacks posted
    /// before.
    pub(in crate::api) fn post(self, outcome: Result<()>) {
        let mut tasks = lock_queue();
        // A callback of an earlier generation is dropped without the lock.
        if self.0.generation == tasks.generation {
            // The thread runs while a callback is registered.
            tasks.push(CallbackThreadTask::Call(self.0, outcome));
            drop(tasks);
            DOORBELL.notify();
        }
    }

    /// Returns the handle for withdrawing the callback after it is posted.
    pub(in crate::api) fn posted(&self) -> PostedCallback {
        PostedCallback(Arc::downgrade(&self.0))
    }

    /// Returns whether the callback has this key and has not been withdrawn.
    pub(in crate::api) fn is_registered_as(&self, key: CallbackKey) -> bool {
        self.0.key == key && self.0.has_function()
    }

    /// Takes the function, which is then never called.
    pub(in crate::api) fn withdraw(self) -> Option<CallbackFn> {
        self.0.withdraw()
    }
}

impl PostedCallback {
    /// Returns whether the callback has not been called yet.
    pub(in crate::api) fn is_waiting(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Takes the function if the callback has this key and has not been called. The function is
    /// then never called.
    pub(in crate::api) fn withdraw(&self, key: CallbackKey) -> Option<CallbackFn> {
        self.0.upgrade().filter(|slot| slot.key == key)?.withdraw()
    }
}

/// Stops all callbacks: waits until the posted callbacks have returned, drops the other callbacks,
/// and ends the thread. If the limit passes first, drops also the posted callbacks that have not
/// begun, and returns `Pending`. No callback that was registered before is called afterwards.
///
/// # Errors
/// `InvalidArgument` inside a callback.
pub fn stop(limit: &Deadline) -> Result<WorkProgress> {
    reject_blocking_in_callback("stopping completion callbacks")?;
    let posted = {
        let mut tasks = lock_queue();
        if !tasks.is_stopped {
            tasks.is_stopped = true;
            tasks.generation += 1;
            tasks.registered = 0;
        }
        tasks.next_number
    };
    DOORBELL.notify();
    if !wait_until_run(posted, limit) {
        drop_waiting_calls(posted);
    }
    let ended = || (!lock_queue().has_thread).then_some(());
    match wait_until(&DOORBELL, WaitPolicy::SLEEP_SOON, limit, || None, ended) {
        Ok(()) => Ok(WorkProgress::Done),
        Err(_) => Ok(WorkProgress::Pending),
    }
}

/// Permits the registration of callbacks again after [`stop`].
pub fn start() {
    lock_queue().is_stopped = false;
}

/// Waits until the callbacks of all works that are done have returned. If the limit passes first,
/// drops the callbacks that have not begun, and returns their number.
pub(in crate::api) fn drain(limit: &Deadline) -> usize {
    let posted = lock_queue().next_number;
    if wait_until_run(posted, limit) { 0 } else { drop_waiting_calls(posted) }
}

fn wait_until_run(number: u64, limit: &Deadline) -> bool {
    let has_run = || lock_queue().has_run_all_below(number).then_some(());
    wait_until(&DOORBELL, WaitPolicy::SLEEP_SOON, limit, || None, has_run).is_ok()
}

/// Drops the waiting callbacks with numbers below this one. Returns how many were dropped.
fn drop_waiting_calls(number: u64) -> usize {
    let mut tasks = lock_queue();
    let waiting = std::mem::take(&mut tasks.waiting);
    let is_dropped = |(own, task): &(u64, CallbackThreadTask)| {
        *own < number && matches!(task, CallbackThreadTask::Call(slot, _) if slot.has_function())
    };
    let (dropped, kept): (Vec<_>, Vec<_>) = waiting.into_iter().partition(is_dropped);
    tasks.waiting = kept.into();
    drop(tasks);
    // The drop takes the lock for each callback and drops the caller's function.
    dropped.len()
}

/// Drops an object on the callback thread, for a caller whose thread must not drop it.
///
/// # Errors
/// `System` if the thread cannot be started, with the object.
pub(in crate::api) fn drop_on_callback_thread<T: Send + 'static>(
    object: Box<T>,
) -> std::result::Result<(), (Error, Box<T>)> {
    let mut tasks = lock_queue();
    if let Err(error) = ensure_thread(&mut tasks) {
        return Err((error, object));
    }
    tasks.push(CallbackThreadTask::Drop(object));
    drop(tasks);
    DOORBELL.notify();
    Ok(())
}

/// Refuses an action that may block inside a completion callback.
///
/// # Errors
/// `InvalidArgument`, with a message that names the alternative.
#[inline]
pub fn reject_blocking_in_callback(action: &str) -> Result<()> {
    if THREAD_FLAGS.with(|marks| marks.in_callbacks.get()) {
        Err(blocking_in_callback_error(action))
    } else {
        Ok(())
    }
}

#[cold]
fn blocking_in_callback_error(action: &str) -> Error {
    let message = format!(
        "{action} may block, which is not allowed in a completion callback because all callbacks \
         share one thread: issue it asynchronously (with a work), or on another thread"
    );
    Error::invalid(message)
}

fn ensure_thread(tasks: &mut CallbackQueue) -> Result<()> {
    if !tasks.has_thread {
        thread::start("dist-callback", run_callback_thread)?;
        tasks.has_thread = true;
    }
    Ok(())
}

/// Runs the callback thread: calls posted functions until no callback is registered for
/// `IDLE_TIMEOUT`, or callbacks are stopped.
fn run_callback_thread() {
    THREAD_FLAGS.with(|marks| marks.in_callbacks.set(true));
    loop {
        let (is_idle, was_stopped) = {
            let tasks = lock_queue();
            (tasks.registered == 0, tasks.is_stopped)
        };
        let limit = match is_idle {
            true if was_stopped => Deadline::after(Duration::ZERO),
            true => Deadline::after(IDLE_TIMEOUT),
            false => Deadline::never(),
        };
        let ready = || {
            let mut tasks = lock_queue();
            let task = tasks.waiting.pop_front();
            tasks.running = task.as_ref().map(|(number, _)| *number);
            let has_changed = !is_idle && tasks.registered == 0 || was_stopped != tasks.is_stopped;
            (task.is_some() || has_changed).then(|| task.map(|(_, task)| task))
        };
        match wait_until(&DOORBELL, WaitPolicy::SLEEP_SOON, &limit, || None, ready) {
            Ok(Some(task)) => run_task(task),
            Ok(None) => {}
            Err(_) if try_retire() => {
                DOORBELL.notify();
                return;
            }
            Err(_) => {}
        }
    }
}

fn run_task(task: CallbackThreadTask) {
    match task {
        CallbackThreadTask::Call(slot, outcome) => {
            if let Some(function) = slot.take_function() {
                if catch_unwind(AssertUnwindSafe(|| function(&outcome))).is_err() {
                    crate::log!(LogLevel::Error, "a completion callback panicked");
                }
                lock_queue().unregister(slot.generation);
            }
        }
        CallbackThreadTask::Drop(object) => drop(object),
    }
    lock_queue().running = None;
    DOORBELL.notify();
}

/// Ends the thread unless there is something to do. Returns whether the thread ends.
fn try_retire() -> bool {
    let mut tasks = lock_queue();
    tasks.has_thread = tasks.registered > 0 || !tasks.waiting.is_empty();
    !tasks.has_thread
}

fn lock_queue() -> MutexGuard<'static, CallbackQueue> {
    lock(&QUEUE)
}
