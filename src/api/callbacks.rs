//! Completion callbacks: they run on one thread of the process, in the order in which their works end.
//!
//! The thread is there while callbacks are registered, and a moment longer. Since all callbacks share it, a call that
//! waits for a work inside one could wait for what only another callback would bring about; such calls are refused.
//! The thread also drops groups whose last holder is a thread that must not (see [`let_go`]).

use super::group::Group;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::log::Level;
use crate::process::thread::{self, MARKS};
use crate::wait::bell::Bell;
use crate::wait::{Pace, until};
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How many callbacks may be registered and not have been called.
pub const MOST_CALLBACKS: usize = 1 << 20;

/// How long the thread stays when no callback is registered.
const IDLE: Duration = Duration::from_millis(100);

/// What is called with the outcome of a work.
pub(super) type Function = Box<dyn FnOnce(&Result<()>) + Send>;

/// What the thread is to do.
enum Task {
    Call(Function, Result<()>),
    Drop(Box<Group>),
}

struct Tasks {
    waiting: VecDeque<Task>,
    /// Callbacks that are registered and have not been called.
    registered: usize,
    has_thread: bool,
}

static TASKS: Mutex<Tasks> =
    Mutex::new(Tasks { waiting: VecDeque::new(), registered: 0, has_thread: false });

/// Rung when a task comes.
static BELL: LazyLock<Bell> = LazyLock::new(Bell::default);

/// A registered callback. It is posted once; one that is dropped instead is forgotten.
pub(super) struct Callback {
    /// Taken when it is posted.
    function: Option<Function>,
}

impl fmt::Debug for Callback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callback").finish_non_exhaustive()
    }
}

/// Registers a function that will be called with the outcome of a work.
///
/// # Errors
/// `OutOfMemory` where too many are registered, `System` where the thread cannot be started.
pub(super) fn register(function: impl FnOnce(&Result<()>) + Send + 'static) -> Result<Callback> {
    let mut tasks = lock();
    if tasks.registered >= MOST_CALLBACKS {
        let message =
            format!("{MOST_CALLBACKS} completion callbacks are registered, the most there may be");
        return Err(Error::new(ErrorKind::OutOfMemory, message));
    }
    ensure_thread(&mut tasks)?;
    tasks.registered += 1;
    Ok(Callback { function: Some(Box::new(function)) })
}

impl Callback {
    /// Has the function called with this outcome, after those that were posted before.
    pub(super) fn post(mut self, outcome: Result<()>) {
        if let Some(function) = self.function.take() {
            // The thread is there as long as a callback is registered.
            lock().waiting.push_back(Task::Call(function, outcome));
            BELL.ring();
        }
    }
}

impl Drop for Callback {
    fn drop(&mut self) {
        if self.function.is_some() {
            lock().registered -= 1;
            BELL.ring();
        }
    }
}

/// Gives up a hold on a group, on a thread that may belong to the group's own engine. If this was the last one, the
/// callback thread ends the group: an engine cannot be taken down by the thread that runs it.
pub(super) fn let_go(group: Arc<Group>) {
    let Some(group) = Arc::into_inner(group) else { return };
    let mut tasks = lock();
    match ensure_thread(&mut tasks) {
        Ok(()) => {
            tasks.waiting.push_back(Task::Drop(Box::new(group)));
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

/// The thread: calls what is posted, until nothing is registered for a while.
fn run() {
    MARKS.with(|marks| marks.in_callbacks.set(true));
    loop {
        let lingers = lock().registered == 0;
        let limit = if lingers { Deadline::after(IDLE) } else { Deadline::never() };
        let ready = || {
            let mut tasks = lock();
            let task = tasks.waiting.pop_front();
            (task.is_some() || !lingers && tasks.registered == 0).then_some(task)
        };
        match until(&BELL, Pace::PATIENT, &limit, || None, ready) {
            Ok(Some(task)) => perform(task),
            Ok(None) => {}
            Err(_) if retire() => return,
            Err(_) => {}
        }
    }
}

fn perform(task: Task) {
    match task {
        Task::Call(function, outcome) => {
            if catch_unwind(AssertUnwindSafe(|| function(&outcome))).is_err() {
                crate::log!(Level::Error, "a completion callback panicked");
            }
            lock().registered -= 1;
        }
        Task::Drop(group) => drop(group),
    }
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
