//! The watchdog: a thread that monitors the operations of one group on the device. It detects
//! errors and passed deadlines, and ends the communicator.
//!
//! Only the watchdog ends the communicator, even if another thread or another rank has failed the
//! group. The failure state notifies the watchdog of a failure. In addition, the watchdog polls
//! every 5 ms while operations are in flight, and otherwise every 100 ms.

use super::comm::NcclComm;
use super::enqueued::NcclEnqueuedOperation;
use super::event_pool::EventPool;
use super::options::NcclOptions;
use super::quiescence::{self, CommUsage};
use crate::backend::{DoorbellListener, GroupContext, GroupFailureState};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::gpu;
use crate::base::ids::GroupId;
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::device::CudaStream;
use crate::process::thread;
use crate::wait::doorbell::Doorbell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The poll interval while operations are in flight.
const BUSY_INTERVAL: Duration = Duration::from_millis(5);
/// The poll interval while no operations are in flight.
const IDLE_INTERVAL: Duration = Duration::from_millis(100);

/// The maximum time for which a closing group waits for its operations in flight. After that, it
/// waits for the other ranks for at most the same time.
const CLOSE_WAIT: Duration = Duration::from_secs(5);

/// The state that the group's threads and the watchdog share.
#[derive(Debug)]
pub(super) struct NcclWatchdog {
    pub(super) comm: NcclComm,
    pub(super) group: GroupId,
    pub(super) group_name: Arc<str>,
    /// The timeout of operations of the group that do not specify a timeout.
    pub(super) timeout: Duration,
    /// The library's own stream, for calls that name no stream. It is destroyed after the
    /// communicator has ended.
    pub(super) stream: CudaStream,
    pub(super) failure_state: Arc<dyn GroupFailureState>,
    pub(super) options: NcclOptions,
    pub(super) event_pool: Arc<EventPool>,
    /// The events with times, for operations whose device time is measured.
    pub(super) timed_event_pool: Arc<EventPool>,
    enqueued: Mutex<VecDeque<Arc<NcclEnqueuedOperation>>>,
    doorbell: Doorbell,
    is_closing: AtomicBool,
    usage: Arc<CommUsage>,
    /// True if an error was logged. The flag is set only if the options disable error handling, so
    /// that only the first error is logged.
    has_logged_error: AtomicBool,
}

impl DoorbellListener for NcclWatchdog {
    fn on_doorbell(&self) {
        self.doorbell.notify();
    }
}

impl NcclWatchdog {
    /// Registers the communicator and starts the watchdog thread.
    pub(super) fn start_thread(
        comm: NcclComm,
        context: &GroupContext<'_>,
        failure_state: Arc<dyn GroupFailureState>,
        options: NcclOptions,
    ) -> Result<Arc<Self>> {
        let stream = CudaStream::new(comm.context(), options.high_priority)?;
        let usage = CommUsage::register(context.group);
        let end_guard = UsageEndGuard(Arc::clone(&usage));
        let watchdog = Arc::new(Self {
            comm,
            group: context.group,
            group_name: context.name.into(),
            timeout: Duration::from_millis(context.timeout_ms),
            stream,
            failure_state,
            options,
            event_pool: Arc::default(),
            timed_event_pool: Arc::new(EventPool::with_times()),
            enqueued: Mutex::default(),
            doorbell: Doorbell::default(),
            is_closing: AtomicBool::new(false),
            usage,
            has_logged_error: AtomicBool::new(false),
        });
        let watcher = Arc::clone(&watchdog);
        thread::start("dist-nccl", move || {
            // The guard is dropped last, so that a waiter that sees the end knows that the thread
            // has released all resources.
            let _end_guard = end_guard;
            watcher.run();
            drop(watcher);
        })?;
        let listener = Arc::clone(&watchdog) as Arc<dyn DoorbellListener>;
        watchdog.failure_state.add_listener(Arc::downgrade(&listener));
        Ok(watchdog)
    }

    /// Returns whether the device time of operations is measured now.
    pub(super) fn measures_time(&self) -> bool {
        let is_wanted = self.options.has_timing || gpu::is_tracing();
        is_wanted && self.comm.context().driver().can_measure_time()
    }

    /// Adds an enqueued operation. Wakes the watchdog if no other operation is in flight; otherwise
    /// the watchdog already polls at the short interval.
    pub(super) fn track(&self, operation: Arc<NcclEnqueuedOperation>) {
        let was_idle = self.update_enqueued(|flights| {
            flights.push_back(operation);
            flights.len() == 1
        });
        if was_idle {
            self.doorbell.notify();
        }
    }

    /// Closes the group when its rank leaves.
    ///
    /// The ranks of a group end their communicators together, but one thread may own several ranks
    /// and can close only one at a time. Therefore only the last rank of the group in this process
    /// waits; it waits for the communicators of all ranks that have left. It stops waiting if other
    /// groups stay in use, because their operations have priority.
    ///
    /// If the group has failed, each rank waits for the end of its own communicator. That
    /// communicator ends without the other ranks, and may use the caller's streams until its end.
    pub(super) fn close(&self) {
        self.is_closing.store(true, Ordering::Release);
        self.doorbell.notify();
        let limit = Deadline::after(CLOSE_WAIT * 3);
        let ended_usages = self.usage.leave_group();
        let have_ended = match self.failure_state.failure() {
            Some(_) => self.usage.wait_ended(&limit),
            None => ended_usages.iter().all(|usage| usage.wait_ended_unless_in_use(&limit)),
        };
        if !have_ended {
            let which = self.comm.library().version_and_file();
            crate::log!(
                LogLevel::Error,
                "NCCL does not complete the end of a communicator ({which})"
            );
        }
    }

    /// Fails the group on all its ranks.
    pub(super) fn fail(&self, error: &Error) {
        self.failure_state.fail(error);
        self.doorbell.notify();
    }

    /// Fails the group with `error`. Returns the first failure of the group, because `error` may be
    /// a consequence of that failure.
    pub(super) fn fail_with(&self, error: Error) -> Error {
        self.fail(&error);
        self.failure_state.failure().unwrap_or(error)
    }

    fn lock_enqueued(&self) -> MutexGuard<'_, VecDeque<Arc<NcclEnqueuedOperation>>> {
        lock(&self.enqueued)
    }

    fn run(&self) {
        loop {
            if self.failure_state.failure().is_some() {
                self.comm.abort();
                break;
            }
            if self.is_closing.load(Ordering::Acquire) {
                self.close_in_order();
                break;
            }
            if let Err(error) = self.check_operations() {
                self.handle_error(&error);
            }
            if let Some(error) = self.comm.overdue_call_error() {
                self.fail(&error);
                continue;
            }
            let interval =
                if self.lock_enqueued().is_empty() { IDLE_INTERVAL } else { BUSY_INTERVAL };
            let must_look = || {
                let is_over = self.is_closing.load(Ordering::Acquire)
                    || self.failure_state.failure().is_some();
                is_over.then_some(())
            };
            self.doorbell.sleep_unless_ready(interval, || true, must_look);
        }
        self.update_enqueued(std::mem::take);
    }

    /// Changes the list of operations in flight and publishes its length. Returns the result of
    /// `change`.
    fn update_enqueued<T>(
        &self,
        change: impl FnOnce(&mut VecDeque<Arc<NcclEnqueuedOperation>>) -> T,
    ) -> T {
        let mut enqueued = self.lock_enqueued();
        let changed = change(&mut enqueued);
        self.usage.set_operations_in_flight(enqueued.len());
        changed
    }

    /// Removes completed operations from the list. Returns an error if NCCL or the device has
    /// reported an error, or if the deadline of an operation has passed.
    fn check_operations(&self) -> Result<()> {
        if let Some(error) = self.comm.async_error(self.comm.async_state_if_free()?) {
            let first = self.lock_enqueued().front().cloned();
            return Err(match first {
                Some(first) => {
                    error.context(format_args!("in {} or a later operation", first.summary))
                }
                None => error,
            });
        }
        loop {
            let Some(first) = self.lock_enqueued().front().cloned() else { return Ok(()) };
            if !first.poll()? {
                break;
            }
            self.update_enqueued(VecDeque::pop_front);
        }
        let is_late = |flight: &&Arc<NcclEnqueuedOperation>| flight.deadline.has_passed();
        let late = self.lock_enqueued().iter().find(is_late).cloned();
        // The operations may be on several streams, so an operation may be complete even if an
        // earlier operation in the list is not.
        match late {
            Some(flight) if !flight.poll()? => Err(self.timeout_error(&flight)),
            Some(done) => {
                self.update_enqueued(|flights| {
                    flights.retain(|flight| !Arc::ptr_eq(flight, &done))
                });
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Returns the error for an operation that the device did not complete before its deadline.
    pub(super) fn timeout_error(&self, operation: &NcclEnqueuedOperation) -> Error {
        let message = format!(
            "{} was enqueued on device {} and did not complete within {} ms: another rank did not \
             call it, or the device of a rank hangs; NCCL does not report which rank ({})",
            operation.summary,
            self.comm.context().device(),
            operation.deadline.elapsed().as_millis(),
            self.comm.library().version_and_file()
        );
        Error::new(ErrorKind::Timeout, message)
    }

    fn handle_error(&self, error: &Error) {
        if self.options.handles_errors {
            self.fail(error);
        } else if !self.has_logged_error.swap(true, Ordering::Relaxed) {
            crate::log!(
                LogLevel::Error,
                "NCCL_ASYNC_ERROR_HANDLING=0, so this error is only logged: {error}"
            );
        }
    }

    /// Waits for the operations in flight, and then ends the communicator together with the other
    /// ranks. If the operations do not complete, aborts the communicator.
    fn close_in_order(&self) {
        let limit = Deadline::after(CLOSE_WAIT);
        let mut is_idle = false;
        while !limit.has_passed() && self.failure_state.failure().is_none() {
            if let Err(error) = self.check_operations() {
                crate::log!(LogLevel::Warn, "a group ends with operations in flight: {error}");
                break;
            }
            is_idle = self.lock_enqueued().is_empty();
            if is_idle {
                break;
            }
            self.doorbell.sleep_unless_ready(Duration::from_micros(200), || true, || None::<()>);
        }
        if is_idle {
            self.comm.finalize_and_destroy(&Deadline::after(CLOSE_WAIT), || {
                quiescence::acquire_destroy(|| self.failure_state.failure().is_some())
            });
        } else {
            self.comm.abort();
        }
    }
}

/// A guard of the watchdog thread. When the thread ends for any reason, the guard marks the
/// communicator as ended.
struct UsageEndGuard(Arc<CommUsage>);

impl Drop for UsageEndGuard {
    fn drop(&mut self) {
        self.0.mark_ended();
    }
}
