//! A communicator of NCCL's: made without blocking, used by one thread at a time, and ended once.
//!
//! # One at a time
//! Calls on a communicator must not meet, and the next may be made only once the one before is
//! done. So whoever uses it *enters* ([`NcclComm::acquire`]), and leaves when NCCL has done what it
//! was asked. Nothing in between blocks: calls return at once, and their end is asked for again and
//! again, until the deadline or the group's failure. Then the thread leaves, and the communicator
//! is used no more: its state is unknown.
//!
//! Where that was asked for ([`CommInitParams::may_block`]), the ranks meet without blocking, and
//! split off a communicator whose calls may block, which cost less: NCCL starts a thread for each
//! launch of one whose calls do not. Then who is inside leaves when NCCL lets him, or because of
//! the abort at his deadline, which the watchdog keeps ([`NcclComm::overdue_call_error`]).
//!
//! # The end
//! The handle is taken away once, by the watchdog, which enters for that. A group that has failed
//! ends its communicator by `ncclCommAbort`, which ends what is on the device; one that is left in
//! order by `ncclCommFinalize` and `ncclCommDestroy`.

mod init;

pub(super) use init::{CommInitParams, create_unique_id};

use super::functions::{CommHandle, IN_PROGRESS, NcclResult, SUCCESS, WINDOW_COLL_SYMMETRIC};
use super::library::NcclLibrary;
use super::types::is_success;
use crate::backend::GroupFailureState;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::log::LogLevel;
use crate::device::context::{CudaContext, CurrentContext};
use crate::wait::doorbell::Doorbell;
use crate::wait::poll_backoff::PollBackoff;
use crate::wait::{WaitInterrupt, WaitPolicy, wait_until};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The longest pause between two questions.
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// How long the watchdog waits for a thread inside before it ends a communicator all the same.
const RELEASE_WAIT: Duration = Duration::from_secs(5);

/// How long it waits where calls may block: what makes the thread leave is the abort.
const BLOCKING_RELEASE_WAIT: Duration = Duration::from_millis(10);

/// A communicator.
#[derive(Debug)]
pub(super) struct NcclComm {
    library: &'static NcclLibrary,
    context: Arc<CudaContext>,
    /// 0 once it has ended.
    handle: AtomicUsize,
    /// Calls may block.
    is_blocking: bool,
    /// A thread is inside.
    is_busy: AtomicBool,
    /// For which function, and until when, where calls may block.
    blocking_call: Mutex<Option<(&'static str, Deadline)>>,
    doorbell: Doorbell,
    failure_state: Arc<dyn GroupFailureState>,
    /// What was registered and not taken back, which must be before the end.
    registrations: Mutex<Vec<CommRegistration>>,
}

/// What memory is known as to the communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommRegistration {
    /// Of this rank alone.
    Buffer(usize),
    /// Of all ranks.
    Window(usize),
}

/// The right to use the communicator. Several may be held at once, of communicators that were
/// entered in the same order as everywhere.
#[derive(Debug)]
pub(super) struct CommGuard<'a> {
    comm: &'a NcclComm,
    _busy_guard: BusyGuard<'a>,
}

/// A thread is inside; it leaves when this is dropped.
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

    /// What NCCL says while nobody is inside; who is inside asks by himself.
    pub(super) fn async_state_if_free(&self) -> Result<NcclResult> {
        if self.try_acquire().is_none() {
            return Ok(IN_PROGRESS);
        }
        let _inside = BusyGuard(self);
        self.async_state()
    }

    /// What NCCL says of the communicator: success, in progress, or what has gone wrong on a thread
    /// of its own. Only by who is inside: NCCL puts away what it has launched as it is asked, and
    /// two threads at once would do so twice.
    fn async_state(&self) -> Result<NcclResult> {
        let mut state = SUCCESS;
        // SAFETY: the communicator lives, and there is room for a number.
        let code =
            unsafe { (self.library.functions.comm_async_error)(self.handle(), &raw mut state) };
        self.library.check("ncclCommGetAsyncError", code, 0)?;
        Ok(state)
    }

    /// An asynchronous error in words.
    pub(super) fn async_error(&self, state: NcclResult) -> Option<Error> {
        if is_success(state) {
            return None;
        }
        self.library.check("an operation on the device", state, self.handle()).err()
    }

    /// Waits until nobody else is inside. Who wants to call a function that may wait for other
    /// ranks, until that deadline too, says so.
    ///
    /// # Errors
    /// The group's failure, `Timeout`.
    pub(super) fn acquire(
        &self,
        function: Option<&'static str>,
        deadline: &Deadline,
    ) -> Result<CommGuard<'_>> {
        if let Some(failure) = self.failure_state.failure() {
            return Err(failure);
        }
        match wait_until(
            &self.doorbell,
            WaitPolicy::SLEEP_SOON,
            deadline,
            || self.failure_state.failure(),
            || self.try_acquire(),
        ) {
            Ok(()) => {}
            Err(WaitInterrupt::Aborted(failure)) => return Err(failure),
            Err(WaitInterrupt::Deadline) => {
                let message = format!(
                    "another thread was inside the communicator for {} ms",
                    deadline.elapsed().as_millis()
                );
                return Err(Error::new(ErrorKind::Timeout, message));
            }
        }
        let inside = BusyGuard(self);
        if self.is_blocking {
            *self.blocking_call() = function.map(|function| (function, *deadline));
        }
        if self.handle() == 0 {
            let failure = self.failure_state.failure();
            let ended = || Error::new(ErrorKind::Aborted, "the communicator has ended");
            return Err(failure.unwrap_or_else(ended));
        }
        Ok(CommGuard { comm: self, _busy_guard: inside })
    }

    fn try_acquire(&self) -> Option<()> {
        self.is_busy
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .ok()
            .map(drop)
    }

    fn blocking_call(&self) -> MutexGuard<'_, Option<(&'static str, Deadline)>> {
        self.blocking_call.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread is inside a call that blocks beyond its deadline.
    pub(super) fn overdue_call_error(&self) -> Option<Error> {
        let inside_for = *self.blocking_call();
        let (function, deadline) = inside_for.filter(|(_, deadline)| deadline.has_passed())?;
        Some(self.launch_timeout(function, &deadline))
    }

    /// What other ranks have to do with has not happened in time.
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

    /// Ends it, and what it does on the device, without the other ranks.
    pub(super) fn abort(&self) {
        self.acquire_within(if self.is_blocking { BLOCKING_RELEASE_WAIT } else { RELEASE_WAIT });
        self.force_abort();
        self.release();
    }

    /// By who is inside.
    fn force_abort(&self) {
        // An abort ends windows by itself; to take one back may wait for the device, which may
        // hang.
        self.registrations().retain(|it| matches!(it, CommRegistration::Buffer(_)));
        if let Some(handle) = self.take_handle() {
            // SAFETY: the handle was taken away, so that nobody begins to use it; who is inside has
            // had time to leave.
            let code = unsafe { (self.library.functions.comm_abort)(handle) };
            log_error(self.library.check("ncclCommAbort", code, 0));
        }
    }

    /// Ends it together with the other ranks, which must do so within the limit; else alone. What
    /// only frees what it had waits for `acquire_destroy_guard`.
    pub(super) fn finalize_and_destroy<Guard>(
        &self,
        limit: &Deadline,
        acquire_destroy_guard: impl FnOnce() -> Guard,
    ) {
        self.acquire_within(RELEASE_WAIT);
        let finalized = self.finalize(limit);
        let _destroy_guard = acquire_destroy_guard();
        if let Err(error) = &finalized {
            crate::log!(LogLevel::Warn, "NCCL's part of a group ends by force: {error}");
            self.force_abort();
        } else if let Some(handle) = self.take_handle() {
            // SAFETY: as in `abort`; all ranks have finalized it.
            let code = unsafe { (self.library.functions.comm_destroy)(handle) };
            log_error(self.library.check("ncclCommDestroy", code, 0));
        }
        self.release();
    }

    fn finalize(&self, limit: &Deadline) -> Result<()> {
        let _current = self.context.make_current()?;
        self.deregister_all();
        // SAFETY: the communicator lives, and nobody is inside.
        let code = unsafe { (self.library.functions.comm_finalize)(self.handle()) };
        self.await_completion("ncclCommFinalize", code, limit)
    }

    /// Waits until nobody is inside, for a while.
    fn acquire_within(&self, max_wait: Duration) {
        let limit = Deadline::after(max_wait);
        if wait_until(
            &self.doorbell,
            WaitPolicy::SLEEP_SOON,
            &limit,
            || None,
            || self.try_acquire(),
        )
        .is_err()
        {
            let (ms, which) = (max_wait.as_millis(), self.library.version_and_file());
            crate::log!(LogLevel::Warn, "a call of NCCL has not returned for {ms} ms ({which})");
        }
    }

    fn take_handle(&self) -> Option<CommHandle> {
        self.deregister_all();
        Some(self.handle.swap(0, Ordering::AcqRel)).filter(|&handle| handle != 0)
    }

    /// Waits until NCCL has done what it was asked.
    fn await_completion(
        &self,
        function: &str,
        code: NcclResult,
        deadline: &Deadline,
    ) -> Result<()> {
        let (mut state, mut poller) = (code, PollBackoff::new(MAX_POLL_INTERVAL));
        while state == IN_PROGRESS {
            if let Some(failure) = self.failure_state.failure() {
                return Err(failure);
            }
            if deadline.has_passed() {
                return Err(self.launch_timeout(function, deadline));
            }
            poller.wait_before_retry(deadline);
            state = self.async_state()?;
        }
        self.library.check(function, state, self.handle())
    }

    fn registrations(&self) -> MutexGuard<'_, Vec<CommRegistration>> {
        self.registrations.lock().unwrap_or_else(PoisonError::into_inner)
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
            // SAFETY: a registration of this communicator, which lives, taken back once.
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
    /// The communicator, for a call.
    pub(super) fn handle(&self) -> CommHandle {
        self.comm.handle()
    }

    pub(super) fn library(&self) -> &'static NcclLibrary {
        self.comm.library
    }

    /// What a call has returned; done when NCCL has done it.
    pub(super) fn await_completion(
        &self,
        function: &str,
        code: NcclResult,
        deadline: &Deadline,
    ) -> Result<()> {
        self.comm.await_completion(function, code, deadline)
    }

    /// Makes its device current on the calling thread.
    pub(super) fn make_current(&self) -> Result<CurrentContext<'_>> {
        self.comm.context.make_current()
    }

    /// Makes calls between a start and an end, on whichever communicators, and gives what NCCL says
    /// at the end. `calls` says with which function something went wrong.
    pub(super) fn run_grouped(&self, calls: impl FnOnce() -> Result<()>) -> Result<NcclResult> {
        let functions = &self.library().functions;
        // SAFETY: takes nothing; ended below.
        let code = unsafe { (functions.group_start)() };
        self.library().check("ncclGroupStart", code, 0)?;
        let outcome = calls();
        // SAFETY: ends what was begun above, on the same thread.
        let code = unsafe { (functions.group_end)() };
        outcome?;
        self.check_added("ncclGroupEnd", code)?;
        Ok(code)
    }

    /// Checks a call within [`CommGuard::run_grouped`].
    pub(super) fn check_added(&self, function: &str, code: NcclResult) -> Result<()> {
        if is_success(code) { Ok(()) } else { self.library().check(function, code, self.handle()) }
    }

    /// Registers memory for this rank, where the library can do that.
    pub(super) fn register(&self, start: usize, bytes: usize) -> Result<Option<CommRegistration>> {
        let functions = &self.library().functions;
        let (Some(function), Some(_)) = (functions.comm_register, functions.comm_deregister) else {
            return Ok(None);
        };
        let _current = self.make_current()?;
        let mut registration = 0;
        let start = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: memory of NCCL's own, of this length; there is room for the registration.
        let code = unsafe { function(self.handle(), start, bytes, &raw mut registration) };
        self.library().check("ncclCommRegister", code, self.handle())?;
        Ok(Some(self.add_registration(CommRegistration::Buffer(registration))))
    }

    /// Makes memory of the same length on all ranks a window of theirs, which all call. `None`
    /// where the library or the devices cannot do that, which is so on all ranks.
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
        // NCCL writes it once all have come, which may be after this call has given up: then it
        // stays.
        let window: *mut usize = Box::into_raw(Box::default());
        let start = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: memory of NCCL's own, of this length; the place for the window stays.
        let code = unsafe { function(self.handle(), start, bytes, window, WINDOW_COLL_SYMMETRIC) };
        // It says `SUCCESS` while it goes on behind the caller's back (seen with 2.30.7): the
        // communicator knows.
        let state = if code == SUCCESS { self.comm.async_state()? } else { code };
        self.await_completion("ncclCommWindowRegister", state, deadline)?;
        // SAFETY: NCCL has written it, and writes no more; it is from a box, above.
        let handle = *unsafe { Box::from_raw(window) };
        Ok((handle != 0).then(|| self.add_registration(CommRegistration::Window(handle))))
    }

    fn add_registration(&self, registration: CommRegistration) -> CommRegistration {
        self.comm.registrations().push(registration);
        registration
    }

    /// Takes a registration back, unless the communicator's end has done so.
    pub(super) fn deregister(&self, registration: CommRegistration) {
        let mut all = self.comm.registrations();
        let known = all.iter().position(|&known| known == registration);
        let known = known.map(|place| all.swap_remove(place));
        drop(all);
        known.into_iter().for_each(|registration| self.comm.deregister_now(registration));
    }
}
