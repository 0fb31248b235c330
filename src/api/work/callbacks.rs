//! Completion callbacks: functions that the library calls when a work (an asynchronous operation)
//! ends. All callbacks of the process run on one thread, the callback thread, in the order in which
//! their works end.
//!
//! The callback thread runs while callbacks are registered, and up to 100 ms longer
//! (`IDLE_TIMEOUT`). A callback that waits could deadlock: if it waited for the effect of a second
//! callback, the second callback could never run on the shared thread. Therefore blocking calls
//! inside a callback return an error.
//!
//! The states of a callback: it is registered for a work; when the work ends, it is posted, that
//! is, put into the queue of the callback thread; then it is called. Before the call, the caller
//! may withdraw it, or it may be dropped. The thread that takes the function out of the
//! [`CallbackSlot`] decides which of the three happens, so only one of them does.
//!
//! [`stop`] waits for the posted callbacks and starts a new generation. Callbacks that were
//! registered in an earlier generation are no longer posted. The callback thread also drops objects
//! for threads that must not drop them ([`drop_on_callback_thread`]).

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

/// The maximum number of callbacks that are registered or posted and have not been called.
pub const MAX_CALLBACKS: usize = 1 << 20;

/// The time after which the callback thread ends if no callback is registered.
const IDLE_TIMEOUT: Duration = Duration::from_millis(100);

/// A function that is called with the outcome of a work.
pub(in crate::api) type CallbackFn = Box<dyn FnOnce(&Result<()>) + Send>;

/// The key that identifies a callback when the caller withdraws it: the function and its user
/// pointer.
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
    /// The waiting tasks, each with its number, in ascending order.
    waiting: VecDeque<(u64, CallbackThreadTask)>,
    /// The number of the next task.
    next_number: u64,
    /// The number of the task that the callback thread currently runs.
    running: Option<u64>,
    /// The number of callbacks of this generation that are registered or posted and have not
    /// returned.
    registered: usize,
    /// The current generation. Incremented when callbacks are stopped. Callbacks of an earlier
    /// generation are no longer posted.
    generation: u64,
    /// True between [`stop`] and [`start`].
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

/// The callback thread and threads that wait for callbacks sleep on this doorbell. It is notified
/// when a task is added or has run, and when callbacks are stopped.
static DOORBELL: LazyLock<Doorbell> = LazyLock::new(Doorbell::default);

/// A callback that has not been called, withdrawn or dropped. Each of the three takes the function,
/// so only one of them happens.
struct CallbackSlot {
    key: CallbackKey,
    generation: u64,
    function: Mutex<Option<CallbackFn>>,
}

/// A registered callback. It is posted at most once. If this object is dropped before it is posted,
/// the function is never called.
pub(in crate::api) struct RegisteredCallback(Arc<CallbackSlot>);

/// A reference to a posted callback, with which the callback can be withdrawn until it is called.
pub(in crate::api) struct PostedCallback(Weak<CallbackSlot>);

impl fmt::Debug for RegisteredCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callback").field("key", &self.0.key).finish_non_exhaustive()
    }
}

impl CallbackSlot {
    /// Takes the function. The callback counts as registered until [`CallbackQueue::unregister`] is
    /// called.
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
    /// Counts a callback as called, withdrawn or dropped. Callbacks of earlier generations are not
    /// counted.
    fn unregister(&mut self, generation: u64) {
        if generation == self.generation {
            self.registered -= 1;
        }
    }

    fn push(&mut self, task: CallbackThreadTask) {
        self.waiting.push_back((self.next_number, task));
        self.next_number += 1;
    }

    /// Returns whether all tasks with numbers below `number` have run.
    fn has_run_all_below(&self, number: u64) -> bool {
        let mut left = self.running.iter().chain(self.waiting.front().map(|(first, _)| first));
        left.all(|&left| left >= number)
    }
}

/// Registers a function that is to be called with the outcome of a work.
///
/// # Errors
/// `OutOfMemory` if too many callbacks are registered; `System` if the callback thread cannot be
/// started; `NotInitialized` between [`stop`] and [`start`].
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

/// Returns whether there are callbacks that have not returned. A callback may make calls.
pub(in crate::api) fn has_registered() -> bool {
    lock_queue().registered > 0
}

impl RegisteredCallback {
    /// Posts the callback. The callback thread calls it with this outcome, after the callbacks that
    /// were posted earlier.
    pub(in crate::api) fn post(self, outcome: Result<()>) {
        let mut tasks = lock_queue();
        // A callback of an earlier generation is not posted. It is dropped at the end of this
        // function, when the lock is free.
        if self.0.generation == tasks.generation {
            // The callback thread exists, because it runs while a callback is registered.
            tasks.push(CallbackThreadTask::Call(self.0, outcome));
            drop(tasks);
            DOORBELL.notify();
        }
    }

    /// Returns a reference with which the callback can be withdrawn after it is posted.
    pub(in crate::api) fn posted(&self) -> PostedCallback {
        PostedCallback(Arc::downgrade(&self.0))
    }

    /// Returns whether the callback has this key and has not been withdrawn.
    pub(in crate::api) fn is_registered_as(&self, key: CallbackKey) -> bool {
        self.0.key == key && self.0.has_function()
    }

    /// Withdraws the callback and returns its function, which is then never called. Returns `None`
    /// if another thread has taken the function.
    pub(in crate::api) fn withdraw(self) -> Option<CallbackFn> {
        self.0.withdraw()
    }
}

impl PostedCallback {
    /// Returns whether the callback has not been called.
    pub(in crate::api) fn is_waiting(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Withdraws the callback if it has this key and has not been called. Returns its function,
    /// which is then never called.
    pub(in crate::api) fn withdraw(&self, key: CallbackKey) -> Option<CallbackFn> {
        self.0.upgrade().filter(|slot| slot.key == key)?.withdraw()
    }
}

/// Stops all callbacks. Waits until the posted callbacks have returned and the callback thread has
/// ended. Callbacks that are not posted are dropped when their works end. If the limit passes
/// before that, drops the posted callbacks that have not started, and returns `Pending`. A callback
/// that was registered before this function was called is never started after this function has
/// returned.
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

/// Waits until the callbacks of all works that have ended have returned. If the limit passes before
/// that, drops the posted callbacks that have not started, and returns their number.
pub(in crate::api) fn drain(limit: &Deadline) -> usize {
    let posted = lock_queue().next_number;
    if wait_until_run(posted, limit) { 0 } else { drop_waiting_calls(posted) }
}

/// Waits until all tasks with numbers below `number` have run. Returns false if the limit passes
/// before that.
fn wait_until_run(number: u64, limit: &Deadline) -> bool {
    let has_run = || lock_queue().has_run_all_below(number).then_some(());
    wait_until(&DOORBELL, WaitPolicy::SLEEP_SOON, limit, || None, has_run).is_ok()
}

/// Drops the waiting callbacks with numbers below `number`. Returns how many were dropped.
fn drop_waiting_calls(number: u64) -> usize {
    let mut tasks = lock_queue();
    let waiting = std::mem::take(&mut tasks.waiting);
    let is_dropped = |(own, task): &(u64, CallbackThreadTask)| {
        *own < number && matches!(task, CallbackThreadTask::Call(slot, _) if slot.has_function())
    };
    let (dropped, kept): (Vec<_>, Vec<_>) = waiting.into_iter().partition(is_dropped);
    tasks.waiting = kept.into();
    drop(tasks);
    // `dropped` is dropped here without the lock, because the drop of each callback takes the lock
    // and drops the caller's function.
    dropped.len()
}

/// Drops an object on the callback thread. For threads that must not drop the object themselves.
///
/// # Errors
/// `System` if the callback thread cannot be started. The error comes with the object.
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

/// Returns an error if the calling thread is inside a completion callback, where no action may
/// block.
///
/// # Errors
/// `InvalidArgument`. The message names the alternatives.
#[inline]
pub fn reject_blocking_in_callback(action: &str) -> Result<()> {
    if THREAD_FLAGS.with(|flags| flags.in_callbacks.get()) {
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

/// Runs the callback thread: runs the waiting tasks until no callback is registered for
/// `IDLE_TIMEOUT`, or until callbacks are stopped and no task waits.
fn run_callback_thread() {
    THREAD_FLAGS.with(|flags| flags.in_callbacks.set(true));
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

/// Marks the callback thread as ended unless a callback is registered or a task waits. Returns
/// whether the thread must end.
fn try_retire() -> bool {
    let mut tasks = lock_queue();
    tasks.has_thread = tasks.registered > 0 || !tasks.waiting.is_empty();
    !tasks.has_thread
}

fn lock_queue() -> MutexGuard<'static, CallbackQueue> {
    lock(&QUEUE)
}
