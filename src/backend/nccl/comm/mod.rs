//! An NCCL communicator: its initialization, its exclusive use by one thread at a time, and its
//! end.
//!
//! # Exclusive use
//! NCCL does not allow concurrent calls on a communicator, and a call must not begin before the
//! previous call is complete. A thread therefore *acquires* the communicator
//! ([`NcclComm::acquire`]), and releases it when NCCL has completed the thread's calls.
//!
//! Usually the calls are non-blocking: they return before they are complete. The thread then polls
//! NCCL until the call is complete, the deadline has passed, or the group has failed. After a
//! passed deadline or a failure, the state of the communicator is unknown. The thread releases the
//! communicator, and no thread uses it again except to abort it.
//!
//! If all ranks allow it ([`CommInitParams::may_block`]), the ranks split off a communicator whose
//! calls may block. Blocking calls cost less, because NCCL starts a thread for each launch of a
//! non-blocking communicator. The thread that holds a blocking communicator releases it when the
//! NCCL call returns. If the call exceeds its deadline, the watchdog
//! ([`NcclComm::overdue_call_error`]) aborts the communicator, which makes the call return.
//!
//! # The end
//! Only the watchdog ends a communicator. It acquires the communicator and takes the handle out of
//! it, so that the communicator ends once. If the group has failed, `ncclCommAbort` ends the
//! communicator and its operations on the device. If the ranks leave the group normally,
//! `ncclCommFinalize` and `ncclCommDestroy` end the communicator.

mod init;

pub(super) use init::{CommInitParams, create_unique_id};

use super::functions::{CommHandle, IN_PROGRESS, NcclResult, SUCCESS, WINDOW_COLL_SYMMETRIC};
use super::library::NcclLibrary;
use super::types::is_success;
use crate::backend::GroupFailureState;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::device::context::{CudaContext, CurrentContext};
use crate::wait::doorbell::Doorbell;
use crate::wait::poll_backoff::PollBackoff;
use crate::wait::{WaitInterrupt, WaitPolicy, wait_until};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The maximum pause between two polls.
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The maximum time for which the watchdog waits until the holder of a communicator releases it.
/// After that, the watchdog ends the communicator anyway.
const RELEASE_WAIT: Duration = Duration::from_secs(5);

/// The maximum time for the same wait before the abort of a communicator with blocking calls. It is
/// short, because the holder may return only after the abort.
const BLOCKING_RELEASE_WAIT: Duration = Duration::from_millis(10);

/// An NCCL communicator.
#[derive(Debug)]
pub(super) struct NcclComm {
    library: &'static NcclLibrary,
    context: Arc<CudaContext>,
    /// NCCL's handle of the communicator, or 0 after the end of the communicator.
    handle: AtomicUsize,
    /// True if calls may block.
    is_blocking: bool,
    /// True while a thread holds the communicator.
    is_busy: AtomicBool,
    /// If calls may block: the function that the holder is calling, and the deadline of the call.
    blocking_call: Mutex<Option<(&'static str, Deadline)>>,
    doorbell: Doorbell,
    failure_state: Arc<dyn GroupFailureState>,
    /// The memory registrations, which must be removed before the end of the communicator.
    registrations: Mutex<Vec<CommRegistration>>,
}

/// A registration of memory with the communicator. The number is NCCL's handle of the registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommRegistration {
    /// A buffer that only this rank has registered.
    Buffer(usize),
    /// A window, which all ranks have registered together.
    Window(usize),
}

/// The right to use the communicator. A thread may hold several communicators if all threads and
/// ranks acquire them in the same order.
#[derive(Debug)]
pub(super) struct CommGuard<'a> {
    comm: &'a NcclComm,
    _busy_guard: BusyGuard<'a>,
}

/// A guard that marks the communicator as held. When it is dropped, the communicator is released.
#[derive(Debug)]
struct BusyGuard<'a>(&'a NcclComm);

impl NcclComm {
    pub(super) fn may_block(&self) -> bool {
        self.is_blocking
    }

    pub(super) fn library(&self) -> &'static NcclLibrary {
        self.library
    }

    pub(super) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    fn handle(&self) -> CommHandle {
        self.handle.load(Ordering::Acquire)
    }

    /// Polls NCCL if no thread holds the communicator. If a thread holds it, that thread polls by
    /// itself, and this function returns `IN_PROGRESS`.
    pub(super) fn async_state_if_free(&self) -> Result<NcclResult> {
        if self.try_acquire().is_none() {
            return Ok(IN_PROGRESS);
        }
        let _inside = BusyGuard(self);
        self.async_state()
    }

    /// Returns NCCL's state of the communicator: success, in progress, or an asynchronous error of
    /// an NCCL thread. Only the holder may call this function. The query frees resources of
    /// completed launches, and two concurrent queries would free them twice.
    fn async_state(&self) -> Result<NcclResult> {
        let mut state = SUCCESS;
        // SAFETY: the communicator is alive, and `state` has space for a number.
        let code =
            unsafe { (self.library.functions.comm_async_error)(self.handle(), &raw mut state) };
        self.library.check("ncclCommGetAsyncError", code, 0)?;
        Ok(state)
    }

    /// Converts a state of the communicator to an error. Returns `None` if the state is not an
    /// error.
    pub(super) fn async_error(&self, state: NcclResult) -> Option<Error> {
        if is_success(state) {
            return None;
        }
        self.library.check("asynchronous operation", state, self.handle()).err()
    }

    /// Waits until no other thread holds the communicator, and acquires it. `function` is the name
    /// of the NCCL function that the caller will call, if this function may wait for other ranks
    /// until `deadline`.
    ///
    /// # Errors
    /// The failure of the group, `Timeout`.
    pub(super) fn acquire(
        &self,
        function: Option<&'static str>,
        deadline: &Deadline,
    ) -> Result<CommGuard<'_>> {
        self.failure_state.check_failure()?;
        let interrupt_error = |interrupt| match interrupt {
            WaitInterrupt::Aborted(failure) => failure,
            WaitInterrupt::Deadline => {
                let ms = deadline.elapsed().as_millis();
                let message = format!("another thread held the communicator for {ms} ms");
                Error::new(ErrorKind::Timeout, message)
            }
        };
        self.wait_acquire(deadline, || self.failure_state.failure()).map_err(interrupt_error)?;
        let busy_guard = BusyGuard(self);
        if self.is_blocking {
            *self.blocking_call() = function.map(|function| (function, *deadline));
        }
        if self.handle() == 0 {
            let failure = self.failure_state.failure();
            let ended = || Error::new(ErrorKind::Aborted, "the communicator was destroyed");
            return Err(failure.unwrap_or_else(ended));
        }
        Ok(CommGuard { comm: self, _busy_guard: busy_guard })
    }

    fn wait_acquire(
        &self,
        limit: &Deadline,
        abort_reason: impl Fn() -> Option<Error>,
    ) -> std::result::Result<(), WaitInterrupt> {
        let doorbell = &self.doorbell;
        wait_until(doorbell, WaitPolicy::SLEEP_SOON, limit, abort_reason, || self.try_acquire())
    }

    fn try_acquire(&self) -> Option<()> {
        self.is_busy
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .ok()
            .map(drop)
    }

    fn blocking_call(&self) -> MutexGuard<'_, Option<(&'static str, Deadline)>> {
        lock(&self.blocking_call)
    }

    /// Returns an error if a thread is in a blocking NCCL call whose deadline has passed.
    pub(super) fn overdue_call_error(&self) -> Option<Error> {
        let inside_for = *self.blocking_call();
        let (function, deadline) = inside_for.filter(|(_, deadline)| deadline.has_passed())?;
        Some(self.launch_timeout(function, &deadline))
    }

    /// Returns the error for a call that needs other ranks and was not complete at its deadline.
    fn launch_timeout(&self, function: &str, deadline: &Deadline) -> Error {
        let message = format!(
            "{function} was not launched within {} ms: another rank may not have called it ({})",
            deadline.elapsed().as_millis(),
            self.library.version_and_file()
        );
        Error::new(ErrorKind::Timeout, message)
    }

    fn release(&self) {
        if self.is_blocking {
            *self.blocking_call() = None;
        }
        self.is_busy.store(false, Ordering::Release);
        self.doorbell.notify();
    }

    /// Aborts the communicator and its operations on the device, without the other ranks.
    pub(super) fn abort(&self) {
        self.acquire_within(if self.is_blocking { BLOCKING_RELEASE_WAIT } else { RELEASE_WAIT });
        self.force_abort();
        self.release();
    }

    /// Aborts the communicator. Only the holder calls this function.
    fn force_abort(&self) {
        // The abort itself ends the windows. They are not deregistered here, because a
        // deregistration may wait for the device, which may hang.
        self.registrations().retain(|it| matches!(it, CommRegistration::Buffer(_)));
        if let Some(handle) = self.take_handle() {
            // SAFETY: the handle was taken out, so no thread begins to use it. A thread that was
            // using it had time to release it.
            let code = unsafe { (self.library.functions.comm_abort)(handle) };
            log_error(self.library.check("ncclCommAbort", code, 0));
        }
    }

    /// Ends the communicator together with the other ranks. If they do not finalize within the
    /// limit, this rank aborts the communicator on its own. Before the step that frees resources,
    /// the function calls `acquire_destroy_guard`, and holds the result during this step.
    pub(super) fn finalize_and_destroy<Guard>(
        &self,
        limit: &Deadline,
        acquire_destroy_guard: impl FnOnce() -> Guard,
    ) {
        self.acquire_within(RELEASE_WAIT);
        let finalized = self.finalize(limit);
        let _destroy_guard = acquire_destroy_guard();
        if let Err(error) = &finalized {
            crate::log!(
                LogLevel::Warn,
                "an NCCL communicator could not be finalized, and is aborted: {error}"
            );
            self.force_abort();
        } else if let Some(handle) = self.take_handle() {
            // SAFETY: the handle was taken out, as in `force_abort`, and all ranks have finalized
            // the communicator.
            let code = unsafe { (self.library.functions.comm_destroy)(handle) };
            log_error(self.library.check("ncclCommDestroy", code, 0));
        }
        self.release();
    }

    fn finalize(&self, limit: &Deadline) -> Result<()> {
        let _current = self.context.make_current()?;
        self.deregister_all();
        // SAFETY: the communicator is alive, and no other thread holds it.
        let code = unsafe { (self.library.functions.comm_finalize)(self.handle()) };
        self.await_completion("ncclCommFinalize", code, limit)
    }

    /// Waits until no thread holds the communicator, and acquires it. After `max_wait`, logs a
    /// warning and returns without the communicator.
    fn acquire_within(&self, max_wait: Duration) {
        let limit = Deadline::after(max_wait);
        if self.wait_acquire(&limit, || None).is_err() {
            let (ms, which) = (max_wait.as_millis(), self.library.version_and_file());
            crate::log!(LogLevel::Warn, "a call of NCCL has not returned for {ms} ms ({which})");
        }
    }

    fn take_handle(&self) -> Option<CommHandle> {
        self.deregister_all();
        Some(self.handle.swap(0, Ordering::AcqRel)).filter(|&handle| handle != 0)
    }

    /// Waits until NCCL has completed a call that returned `code`.
    fn await_completion(
        &self,
        function: &str,
        code: NcclResult,
        deadline: &Deadline,
    ) -> Result<()> {
        let (mut state, mut poller) = (code, PollBackoff::new(MAX_POLL_INTERVAL));
        while state == IN_PROGRESS {
            self.failure_state.check_failure()?;
            if deadline.has_passed() {
                return Err(self.launch_timeout(function, deadline));
            }
            poller.wait_before_retry(deadline);
            state = self.async_state()?;
        }
        self.library.check(function, state, self.handle())
    }

    fn registrations(&self) -> MutexGuard<'_, Vec<CommRegistration>> {
        lock(&self.registrations)
    }

    fn deregister_all(&self) {
        let all = std::mem::take(&mut *self.registrations());
        all.into_iter().for_each(|registration| self.deregister_now(registration));
    }

    fn deregister_now(&self, registration: CommRegistration) {
        let functions = &self.library.functions;
        let (name, function, what) = match registration {
            CommRegistration::Buffer(what) => {
                ("ncclCommDeregister", functions.comm_deregister, what)
            }
            CommRegistration::Window(what) => {
                ("ncclCommWindowDeregister", functions.window_deregister, what)
            }
        };
        let (Some(function), handle) = (function, self.handle()) else { return };
        if handle != 0 {
            // SAFETY: the registration belongs to this communicator, which is alive, and is removed
            // once.
            let code = unsafe { function(handle, what) };
            log_error(self.library.check(name, code, 0));
        }
    }
}

impl Drop for BusyGuard<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl Drop for NcclComm {
    fn drop(&mut self) {
        if self.handle() != 0 {
            self.abort();
        }
    }
}

fn log_error(outcome: Result<()>) {
    if let Err(error) = outcome {
        crate::log!(LogLevel::Warn, "{error}");
    }
}

impl CommGuard<'_> {
    /// Returns NCCL's handle of the communicator.
    pub(super) fn handle(&self) -> CommHandle {
        self.comm.handle()
    }

    pub(super) fn library(&self) -> &'static NcclLibrary {
        self.comm.library
    }

    /// Waits until NCCL has completed a call that returned `code`.
    pub(super) fn await_completion(
        &self,
        function: &str,
        code: NcclResult,
        deadline: &Deadline,
    ) -> Result<()> {
        self.comm.await_completion(function, code, deadline)
    }

    /// Makes the communicator's device current on the calling thread.
    pub(super) fn make_current(&self) -> Result<CurrentContext<'_>> {
        self.comm.context.make_current()
    }

    /// Runs `calls` between ncclGroupStart and ncclGroupEnd, and returns the code of ncclGroupEnd.
    /// `calls` may use several communicators. An error of `calls` names the function that failed.
    pub(super) fn run_grouped(&self, calls: impl FnOnce() -> Result<()>) -> Result<NcclResult> {
        let functions = &self.library().functions;
        // SAFETY: the function takes no arguments, and the group is ended below.
        let code = unsafe { (functions.group_start)() };
        self.library().check("ncclGroupStart", code, 0)?;
        let outcome = calls();
        // SAFETY: this ends the group that was started above on the same thread.
        let code = unsafe { (functions.group_end)() };
        outcome?;
        self.check_added("ncclGroupEnd", code)?;
        Ok(code)
    }

    /// Checks the code of a call within [`CommGuard::run_grouped`].
    pub(super) fn check_added(&self, function: &str, code: NcclResult) -> Result<()> {
        if is_success(code) { Ok(()) } else { self.library().check(function, code, self.handle()) }
    }

    /// Registers a buffer of this rank. Returns `None` if the library does not support
    /// registration.
    pub(super) fn register(&self, start: usize, bytes: usize) -> Result<Option<CommRegistration>> {
        let functions = &self.library().functions;
        let (Some(function), Some(_)) = (functions.comm_register, functions.comm_deregister) else {
            return Ok(None);
        };
        let _current = self.make_current()?;
        let mut registration = 0;
        let start = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: NCCL has allocated the memory with this length, and `registration` has space for
        // the handle.
        let code = unsafe { function(self.handle(), start, bytes, &raw mut registration) };
        self.library().check("ncclCommRegister", code, self.handle())?;
        Ok(Some(self.add_registration(CommRegistration::Buffer(registration))))
    }

    /// Registers memory as a window. All ranks must call this function with memory of the same
    /// length. Returns `None` on all ranks if the library or the devices do not support windows.
    pub(super) fn make_window(
        &self,
        start: usize,
        bytes: usize,
        deadline: &Deadline,
    ) -> Result<Option<CommRegistration>> {
        let functions = &self.library().functions;
        let (Some(function), Some(_)) = (functions.window_register, functions.window_deregister)
        else {
            return Ok(None);
        };
        let _current = self.make_current()?;
        // NCCL writes the handle when all ranks have called the function. This may be after this
        // rank has returned with an error; in that case the box is leaked.
        let window: *mut usize = Box::into_raw(Box::default());
        let start = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: NCCL has allocated the memory with this length, and the box for the window stays
        // allocated.
        let code = unsafe { function(self.handle(), start, bytes, window, WINDOW_COLL_SYMMETRIC) };
        // NCCL 2.30.7 returns `SUCCESS` even if the registration is not complete, so the state of
        // the communicator is used instead.
        let state = if code == SUCCESS { self.comm.async_state()? } else { code };
        self.await_completion("ncclCommWindowRegister", state, deadline)?;
        // SAFETY: NCCL wrote the handle and writes no more; the pointer is from the box above.
        let handle = *unsafe { Box::from_raw(window) };
        Ok((handle != 0).then(|| self.add_registration(CommRegistration::Window(handle))))
    }

    fn add_registration(&self, registration: CommRegistration) -> CommRegistration {
        self.comm.registrations().push(registration);
        registration
    }

    /// Removes a registration, unless the end of the communicator has already removed it.
    pub(super) fn deregister(&self, registration: CommRegistration) {
        let mut all = self.comm.registrations();
        let known = all.iter().position(|&known| known == registration);
        let known = known.map(|index| all.swap_remove(index));
        drop(all);
        known.into_iter().for_each(|registration| self.comm.deregister_now(registration));
    }
}
