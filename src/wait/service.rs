//! The service thread; a process has at most one. It watches descriptors (for example sockets that
//! show whether a peer lives, and listening sockets) and alarms, runs tasks that other threads
//! start, and calls the registered handlers.
//!
//! The thread starts with the first registration and ends when no registration is left. It calls
//! one handler at a time, and a handler must not block. A panic in a handler is caught and logged.
//! A descriptor handler that has panicked loses its registration, and an alarm handler keeps it.

use crate::base::error::{Error, Result};
use crate::base::log::LogLevel;
use crate::sys::eventfd::EventFd;
use crate::sys::poll::{Interest, PollEvent, PollEvents, Poller};
use crate::sys::{host, thread};
use crate::wait::io;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// What to do with a registration after its handler was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchAction {
    /// Call the handler again at the next event.
    Keep,
    /// Remove the registration.
    Done,
}

/// Handles the events of one descriptor.
pub trait DescriptorHandler: Send + Sync {
    /// Returns the name of the handler's type, for the log.
    fn type_name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }

    /// Returns the descriptor, which must stay open while the registration lasts.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Called on the service thread when the descriptor is readable or was closed by the peer.
    fn on_readable(&self) -> WatchAction;

    /// Called on the service thread when the descriptor is writable, if
    /// [`DescriptorWatch::set_interest`] requested it.
    fn on_writable(&self) -> WatchAction {
        WatchAction::Keep
    }
}

crate::base::trait_object_debug::impl_debug_of_objects!(DescriptorHandler);

/// Performs an action at a certain time.
pub trait AlarmHandler: Send + Sync {
    /// Returns the name of the handler's type, for the log.
    fn type_name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }

    /// Called on the service thread when the alarm is due. The alarm is off from then until it is
    /// set again.
    fn on_alarm(&self);
}

crate::base::trait_object_debug::impl_debug_of_objects!(AlarmHandler);

/// The registration of a descriptor handler. Dropping it ends the watch; a handler call that is
/// already running finishes.
#[derive(Debug)]
pub struct DescriptorWatch {
    id: u64,
}

/// An alarm, which calls its handler at a set time. Dropping it removes the alarm; a handler call
/// that is already running finishes.
#[derive(Debug)]
pub struct Alarm {
    id: u64,
}

/// Runs when another thread starts it.
pub(super) trait TaskHandler: Send + Sync {
    /// Returns the name of the handler's type, for the log.
    fn type_name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }

    /// Called on the service thread after [`TaskRegistration::start`].
    fn on_start(&self);
}

crate::base::trait_object_debug::impl_debug_of_objects!(TaskHandler);

/// The registration of a task. Dropping it ends the registration; a run that has begun finishes.
#[derive(Debug)]
pub(super) struct TaskRegistration {
    id: u64,
}

#[derive(Debug)]
struct ServiceState {
    next_id: u64,
    handlers: BTreeMap<u64, Arc<dyn DescriptorHandler>>,
    alarms: BTreeMap<u64, AlarmEntry>,
    tasks: BTreeMap<u64, Arc<dyn TaskHandler>>,
    /// The tasks that were started and have not run since.
    started_tasks: Vec<u64>,
    /// The running service thread, if any.
    thread: Option<ServiceThread>,
}

/// An alarm handler, and the time at which the alarm is due; `None` if the alarm is off.
#[derive(Debug)]
struct AlarmEntry {
    handler: Arc<dyn AlarmHandler>,
    due: Option<Instant>,
}

/// The state that the registering threads and the service thread share.
#[derive(Clone, Debug)]
struct ServiceThread {
    poller: Arc<Poller>,
    /// Raising this flag wakes the thread. It then runs the started tasks, computes the next alarm
    /// again, and ends if no registration is left.
    wake_flag: Arc<EventFd>,
    /// The process that started the thread. After a fork, the child has a copy of this state but no
    /// thread.
    pid: u32,
}

/// The number by which the poller reports the wake-up flag. Registrations have the numbers from 1
/// on, which never reach it.
const WAKE_TOKEN: u64 = u64::MAX;

thread_local! {
    /// True on the service thread. After each round of handler calls, that thread runs the started
    /// tasks and computes the next alarm, so it need not wake itself.
    static IS_SERVICE: Cell<bool> = const { Cell::new(false) };
}

/// The maximum number of events that one poll returns.
const EVENTS_PER_POLL: u16 = 64;

static SERVICE: Mutex<ServiceState> = Mutex::new(ServiceState {
    next_id: 0,
    handlers: BTreeMap::new(),
    alarms: BTreeMap::new(),
    tasks: BTreeMap::new(),
    started_tasks: Vec::new(),
    thread: None,
});

/// Registers a handler and begins to watch its descriptor. Starts the service thread if it does not
/// run.
///
/// # Errors
/// `System` if the thread or its wake-up flag cannot be created, or if the descriptor cannot be
/// watched.
pub fn watch(handler: Arc<dyn DescriptorHandler>) -> Result<DescriptorWatch> {
    let mut service = lock();
    let thread = service.ensure_thread()?;
    let id = service.new_id();
    let added = thread.poller.add(handler.descriptor(), id, Interest::READ);
    added.map_err(|cause| Error::system("watching a descriptor", cause))?;
    service.handlers.insert(id, handler);
    Ok(DescriptorWatch { id })
}

/// Creates an alarm that is off. Starts the service thread if it does not run.
///
/// # Errors
/// `System` if the thread or its wake-up flag cannot be created.
pub fn alarm(handler: Arc<dyn AlarmHandler>) -> Result<Alarm> {
    let mut service = lock();
    service.ensure_thread()?;
    let id = service.new_id();
    service.alarms.insert(id, AlarmEntry { handler, due: None });
    Ok(Alarm { id })
}

/// Registers a task. Starts the service thread if it does not run.
///
/// # Errors
/// `System` if the thread or its wake-up flag cannot be created.
pub(super) fn task(handler: Arc<dyn TaskHandler>) -> Result<TaskRegistration> {
    let mut service = lock();
    service.ensure_thread()?;
    let id = service.new_id();
    service.tasks.insert(id, handler);
    Ok(TaskRegistration { id })
}

impl ServiceState {
    /// Returns the service thread. If it does not run in this process, starts it; registrations
    /// from before a fork are dropped.
    fn ensure_thread(&mut self) -> Result<ServiceThread> {
        match self.thread.clone().filter(|running| running.pid == host::pid()) {
            Some(running) => Ok(running),
            None => {
                self.handlers.clear();
                self.alarms.clear();
                self.tasks.clear();
                self.started_tasks.clear();
                Ok(self.thread.insert(start_thread()?).clone())
            }
        }
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn is_idle(&self) -> bool {
        self.handlers.is_empty() && self.alarms.is_empty() && self.tasks.is_empty()
    }

    /// Wakes the service thread.
    fn wake(&self) {
        self.thread.iter().for_each(|running| running.wake_flag.raise());
    }

    /// Returns the time until the next alarm, or 0 if a task is started.
    fn time_to_next_call(&self) -> Option<Duration> {
        if !self.started_tasks.is_empty() {
            return Some(Duration::ZERO);
        }
        let next = self.alarms.values().filter_map(|clock| clock.due).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Turns off the alarms that are due, and returns their handlers.
    fn take_due_alarms(&mut self) -> Vec<Arc<dyn AlarmHandler>> {
        let now = Instant::now();
        let due = self.alarms.values_mut().filter(|clock| clock.due.is_some_and(|due| due <= now));
        due.map(|clock| {
            clock.due = None;
            Arc::clone(&clock.handler)
        })
        .collect()
    }
}

impl DescriptorWatch {
    /// Stops the calls of the handler until [`DescriptorWatch::set_interest`]. If different threads
    /// call the two functions, they must hold a lock of their own, so that the order of their calls
    /// is defined.
    pub fn pause(&self) {
        let service = lock();
        if let (Some(handler), Some(running)) = (service.handlers.get(&self.id), &service.thread) {
            // Fails only if the watch is already paused.
            drop(running.poller.remove(handler.descriptor()));
        }
    }

    /// Sets the events for which the descriptor is watched, and ends a pause. If the descriptor is
    /// ready already, the handler is called without a further event.
    pub fn set_interest(&self, interest: Interest) {
        let service = lock();
        let (Some(handler), Some(running)) = (service.handlers.get(&self.id), &service.thread)
        else {
            return;
        };
        let descriptor = handler.descriptor();
        // `change` fails if the watch is paused. The poller then does not have the descriptor, so
        // add it.
        if running.poller.change(descriptor, self.id, interest).is_err() {
            drop(running.poller.add(descriptor, self.id, interest));
        }
    }
}

impl Alarm {
    /// Sets the alarm; `None` turns it off.
    pub fn set(&self, due: Option<Instant>) {
        let mut service = lock();
        if let Some(clock) = service.alarms.get_mut(&self.id) {
            let earlier = due.is_some_and(|due| clock.due.is_none_or(|before| due < before));
            clock.due = due;
            if earlier && !IS_SERVICE.get() {
                service.wake();
            }
        }
    }
}

impl TaskRegistration {
    /// Makes the service thread run the task once.
    pub(super) fn start(&self) {
        let mut service = lock();
        service.started_tasks.push(self.id);
        if !IS_SERVICE.get() {
            service.wake();
        }
    }
}

impl Drop for TaskRegistration {
    fn drop(&mut self) {
        let mut service = lock();
        let task = service.tasks.remove(&self.id);
        if service.is_idle() {
            service.wake();
        }
        drop(service);
        // Drop the task after the lock is released: it may own other registrations, whose drop
        // takes the lock.
        drop(task);
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let mut service = lock();
        let clock = service.alarms.remove(&self.id);
        if service.is_idle() {
            service.wake();
        }
        drop(service);
        // Drop the handler after the lock is released: it may own other registrations, whose drop
        // takes the lock.
        drop(clock);
    }
}

impl Drop for DescriptorWatch {
    fn drop(&mut self) {
        // `unregister` has released the lock when the handler is dropped here. The handler may own
        // other registrations, whose drop takes the lock.
        drop(unregister(self.id));
    }
}

/// Removes the registration of a descriptor handler. Wakes the thread if no registration is left,
/// so that it ends.
fn unregister(id: u64) -> Option<Arc<dyn DescriptorHandler>> {
    let mut service = lock();
    let handler = service.handlers.remove(&id)?;
    if let Some(running) = &service.thread {
        // Fails only if the descriptor was closed, which also ends the watch, or if the watch is
        // paused.
        drop(running.poller.remove(handler.descriptor()));
        if service.is_idle() {
            service.wake();
        }
    }
    Some(handler)
}

fn lock() -> MutexGuard<'static, ServiceState> {
    crate::base::sync::lock(&SERVICE)
}

fn start_thread() -> Result<ServiceThread> {
    let wake_flag = Arc::new(EventFd::new()?);
    let poller = Arc::new(Poller::new()?);
    let added = poller.add(wake_flag.as_fd(), WAKE_TOKEN, Interest::READ);
    added.map_err(|cause| Error::system("watching a descriptor", cause))?;
    let running = ServiceThread { poller, wake_flag, pid: host::pid() };
    let ServiceThread { poller, wake_flag, .. } = running.clone();
    // The thread is detached. It ends by itself after the last registration is removed.
    drop(thread::spawn("dist-service", move || run_thread(&poller, &wake_flag))?);
    Ok(running)
}

/// Whether the service thread handles events.
static IS_HANDLING: AtomicBool = AtomicBool::new(false);

/// Shows other threads whether the service thread has an event that it has not handled. Its holder
/// must also have a registration that outlives it, so that the service thread does not end.
#[derive(Clone, Debug)]
pub struct EventProbe(Arc<Poller>);

impl EventProbe {
    /// Returns the probe of the service thread, or `None` if there is no service thread.
    pub fn of_service_thread() -> Option<Self> {
        lock().thread.as_ref().map(|thread| Self(Arc::clone(&thread.poller)))
    }

    /// Returns whether an event is ready, for example the end of a connection to another process,
    /// or the service thread handles events. If not, the caller sees everything that the handlers
    /// of all earlier events have stored.
    pub fn has_events(&self) -> bool {
        // A handler may end the watch of its descriptor before it has stored anything, so the order
        // of the two questions matters.
        self.0.has_events() || IS_HANDLING.load(Ordering::SeqCst)
    }
}

/// The main loop of the service thread: waits for a descriptor, an alarm or a wake-up, and calls
/// the handlers, until no registration is left.
fn run_thread(poller: &Arc<Poller>, wake_flag: &EventFd) {
    IS_SERVICE.set(true);
    let mut events = PollEvents::with_capacity(EVENTS_PER_POLL);
    loop {
        let limit = lock().time_to_next_call();
        if let Err(cause) = io::wait_for_events(poller, &mut events, limit) {
            crate::log!(LogLevel::Error, "the service thread cannot wait: {cause}");
            lock().thread = None;
            return;
        }
        IS_HANDLING.store(true, Ordering::SeqCst);
        for event in events.iter() {
            if event.token == WAKE_TOKEN {
                wake_flag.clear();
            } else {
                dispatch_event(event);
            }
        }
        let due = lock().take_due_alarms();
        for handler in due {
            call_handler(handler.type_name(), || handler.on_alarm());
        }
        let started = std::mem::take(&mut lock().started_tasks);
        for id in started {
            let task = lock().tasks.get(&id).cloned();
            if let Some(task) = task {
                call_handler(task.type_name(), || task.on_start());
            }
        }
        IS_HANDLING.store(false, Ordering::SeqCst);
        let mut service = lock();
        if service.is_idle() {
            service.thread = None;
            return;
        }
    }
}

/// Calls a function of a handler of this type, and logs a panic.
fn call_handler(handler: &str, call: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(call)).is_err() {
        log_panic(handler);
    }
}

fn log_panic(handler: &str) {
    crate::log!(LogLevel::Error, "a callback of the service thread panicked: {handler}");
}

fn dispatch_event(event: PollEvent) {
    let Some(handler) = lock().handlers.get(&event.token).cloned() else { return };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let next = if event.readable { handler.on_readable() } else { WatchAction::Keep };
        match next {
            WatchAction::Keep if event.writable => handler.on_writable(),
            next => next,
        }
    }));
    match outcome {
        Ok(WatchAction::Keep) => {}
        Ok(WatchAction::Done) => drop(unregister(event.token)),
        Err(_) => {
            log_panic(handler.type_name());
            drop(unregister(event.token));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::deadline::Deadline;
    use crate::sys::unix;
    use crate::wait::doorbell::Doorbell;
    use crate::wait::{WaitPolicy, wait_until};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[derive(Debug)]
    struct Flag {
        stream: UnixStream,
        seen: AtomicBool,
        doorbell: Doorbell,
    }

    impl DescriptorHandler for Flag {
        fn descriptor(&self) -> BorrowedFd<'_> {
            self.stream.as_fd()
        }

        fn on_readable(&self) -> WatchAction {
            self.seen.store(true, Ordering::Release);
            self.doorbell.notify();
            WatchAction::Done
        }
    }

    #[test]
    fn closed_peer_calls_the_handler() {
        let (local, remote) = unix::pair().unwrap();
        let flag = Arc::new(Flag {
            stream: local,
            seen: AtomicBool::new(false),
            doorbell: Doorbell::default(),
        });
        let watch = watch(flag.clone()).unwrap();
        drop(remote);
        let policy = WaitPolicy { spin_time: Duration::ZERO, is_oversubscribed: true };
        let seen = || flag.seen.load(Ordering::Acquire).then_some(());
        wait_until(&flag.doorbell, policy, &Deadline::after_ms(10_000), || None, seen).unwrap();
        drop(watch);
    }
}
