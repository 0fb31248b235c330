//! A communicator of NCCL: initialized without blocking, used by one thread at a time, and ended
//! once.
//!
//! # Exclusive use
//! NCCL does not allow concurrent calls on a communicator, and the next call must wait until the
//! previous one is complete. So a thread *acquires* the communicator ([`NcclComm::acquire`]) and
//! releases it when NCCL has completed the thread's calls. Non-blocking calls return at once. The
//! thread then polls NCCL until the call is complete, the deadline passed, or the group failed. In
//! the latter two cases the thread releases the communicator, which is not used again because its
//! state is unknown.
//!
//! If the caller allows it ([`CommInitParams::may_block`]), the ranks split off a communicator
//! whose calls may block. Blocking calls cost less: for a non-blocking communicator NCCL starts a
//! thread per launch. The thread that holds a blocking communicator releases it when the NCCL call
//! returns. If the call exceeds its deadline, the watchdog ([`NcclComm::overdue_call_error`])
//! aborts the communicator, and the call returns.
//!
//! # The end
//! The watchdog acquires the communicator and takes the handle away, which happens once. If the
//! group failed, `ncclCommAbort` ends the communicator and its operations on the device. If the
//! ranks leave in order, `ncclCommFinalize` and `ncclCommDestroy` end it.

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

/// The time that the watchdog waits for the holder of a communicator before it ends the
/// communicator anyway.
const RELEASE_WAIT: Duration = Duration::from_secs(5);

/// The same time for a communicator with blocking calls: only the abort makes its holder return.
const BLOCKING_RELEASE_WAIT: Duration = Duration::from_millis(10);

/// A communicator of NCCL.
#[derive(Debug)]
pub(super) struct NcclComm {
    library: &'static NcclLibrary,
    context: Arc<CudaContext>,
    /// The handle; 0 after the end.
    handle: AtomicUsize,
    /// True if calls may block.
    is_blocking: bool,
    /// True while a thread holds the communicator.
    is_busy: AtomicBool,
    /// The function that the holder calls and its deadline, if calls may block.
    blocking_call: Mutex<Option<(&'static str, Deadline)>>,
    doorbell: Doorbell,
    failure_state: Arc<dyn GroupFailureState>,
    /// The registrations, which must be removed before the end.
    registrations: Mutex<Vec<CommRegistration>>,
}

/// A registration of memory with the communicator, by NCCL's handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommRegistration {
    /// A buffer of this rank alone.
    Buffer(usize),
    /// A window of all ranks.
    Window(usize),
}

/// The right to use the communicator. A thread may hold several communicators if all threads and
/// ranks acquire them in the same order.
#[derive(Debug)]
pub(super) struct CommGuard<'a> {
    comm: &'a NcclComm,
    _busy_guard: BusyGuard<'a>,
}

/// Marks the communicator as held; dropping it releases the communicator.
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

    /// Polls NCCL if no thread holds the communicator. The holder polls by itself, so this returns
    /// `IN_PROGRESS`.
    pub(super) fn async_state_if_free(&self) -> Result<NcclResult> {
        if self.try_acquire().is_none() {
            return Ok(IN_PROGRESS);
        }
        let _inside = BusyGuard(self);
        self.async_state()
    }

    /// Returns NCCL's state of the communicator: success, in progress, or an asynchronous error of
    /// an NCCL thread. Only the holder may call it: the query frees what NCCL has launched, and two
    /// concurrent queries would free it twice.
    fn async_state(&self) -> Result<NcclResult> {
        let mut state = SUCCESS;
        // SAFETY: the communicator is alive, and `state` has space for a number.
        let code =
            unsafe { (self.library.functions.comm_async_error)(self.handle(), &raw mut state) };
        self.library.check("ncclCommGetAsyncError", code, 0)?;
        Ok(state)
    }

    /// Converts an asynchronous error of NCCL to an error.
    pub(super) fn async_error(&self, state: NcclResult) -> Option<Error> {
        if is_success(state) {
            return None;
        }
        self.library.check("asynchronous operation", state, self.handle()).err()
    }

    /// Acquires the communicator; waits until its holder releases it. A caller that will call a
    /// function that may wait for other ranks until `deadline` names this function.
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

    /// Returns an error if a thread is in a blocking call whose deadline has passed.
    pub(super) fn overdue_call_error(&self) -> Option<Error> {
        let inside_for = *self.blocking_call();
        let (function, deadline) = inside_for.filter(|(_, deadline)| deadline.has_passed())?;
        Some(self.launch_timeout(function, &deadline))
    }

    /// Returns the error for a call that needs other ranks and did not complete in time.
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

    /// Aborts the communicator. Only the holder calls it.
    fn force_abort(&self) {
        // An abort ends windows by itself. To deregister a window may wait for the device, which
        // may hang.
        self.registrations().retain(|it| matches!(it, CommRegistration::Buffer(_)));
        if let Some(handle) = self.take_handle() {
            // SAFETY: the handle was taken away, so no thread begins to use it; the holder had time
            // to release it.
            let code = unsafe { (self.library.functions.comm_abort)(handle) };
            log_error(self.library.check("ncclCommAbort", code, 0));
        }
    }

    /// Ends the communicator together with the other ranks. If they do not finalize within the
    /// limit, it ends the communicator alone by an abort. The step that frees resources waits for
    /// `acquire_destroy_guard`.
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
            // SAFETY: the handle was taken away, as in `force_abort`; all ranks have finalized it.
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

    /// Waits for at most `max_wait` until no thread holds the communicator, and acquires it.
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

    /// Waits until NCCL has completed a call.
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
            // SAFETY: a registration of this communicator, which is alive; removed once.
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
    /// Returns the handle of the communicator, for a call.
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

    /// Runs `calls` between ncclGroupStart and ncclGroupEnd, on any communicators, and returns the
    /// code of ncclGroupEnd. The error of `calls` names the function that failed.
    pub(super) fn run_grouped(&self, calls: impl FnOnce() -> Result<()>) -> Result<NcclResult> {
        let functions = &self.library().functions;
        // SAFETY: takes no arguments; ended below.
        let code = unsafe { (functions.group_start)() };
        self.library().check("ncclGroupStart", code, 0)?;
        let outcome = calls();
        // SAFETY: ends the group that was started above, on the same thread.
        let code = unsafe { (functions.group_end)() };
        outcome?;
        self.check_added("ncclGroupEnd", code)?;
        Ok(code)
    }

    /// Checks a call within [`CommGuard::run_grouped`].
    pub(super) fn check_added(&self, function: &str, code: NcclResult) -> Result<()> {
        if is_success(code) { Ok(()) } else { self.library().check(function, code, self.handle()) }
    }

    /// Registers memory for this rank; `None` if the library cannot.
    pub(super) fn register(&self, start: usize, bytes: usize) -> Result<Option<CommRegistration>> {
        let functions = &self.library().functions;
        let (Some(function), Some(_)) = (functions.comm_register, functions.comm_deregister) else {
            return Ok(None);
        };
        let _current = self.make_current()?;
        let mut registration = 0;
        let start = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: memory that NCCL allocated, of this length; `registration` has space for the
        // handle.
        let code = unsafe { function(self.handle(), start, bytes, &raw mut registration) };
        self.library().check("ncclCommRegister", code, self.handle())?;
        Ok(Some(self.add_registration(CommRegistration::Buffer(registration))))
    }

    /// Registers memory of the same length on all ranks as a window. All ranks call it. Returns
    /// `None` on all ranks if the library or the devices do not support windows.
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
        // NCCL writes the handle when all ranks have called it, which may be after this function
        // returned an error. Then the box is leaked.
        let window: *mut usize = Box::into_raw(Box::default());
        let start = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: memory that NCCL allocated, of this length; the box for the window stays
        // allocated.
        let code = unsafe { function(self.handle(), start, bytes, window, WINDOW_COLL_SYMMETRIC) };
        // NCCL 2.30.7 returns `SUCCESS` while the registration still runs; the state of the
        // communicator is correct.
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

    /// Removes a registration, unless the end of the communicator removed it.
    pub(super) fn deregister(&self, registration: CommRegistration) {
        let mut all = self.comm.registrations();
        let known = all.iter().position(|&known| known == registration);
        let known = known.map(|index| all.swap_remove(index));
        drop(all);
        known.into_iter().for_each(|registration| self.comm.deregister_now(registration));
    }
}
