//! A communicator of NCCL's: made without blocking, used by one thread at a time, and ended once.
//!
//! # One at a time
//! Calls on a communicator must not meet, and the next may be made only once the one before is
//! done. So whoever uses it *enters* ([`Comm::enter`]), and leaves when NCCL has done what it was
//! asked. Nothing in between blocks: calls return at once, and their end is asked for again and
//! again, until the deadline or the group's failure. Then the thread leaves, and the communicator
//! is used no more: its state is unknown.
//!
//! Where that was asked for ([`Meeting::may_block`]), the ranks meet without blocking, and split
//! off a communicator whose calls may block, which cost less: NCCL starts a thread for each launch
//! of one whose calls do not. Then who is inside leaves when NCCL lets him, or because of the abort
//! at his deadline, which the watchdog keeps ([`Comm::overdue`]).
//!
//! # The end
//! The handle is taken away once, by the watchdog, which enters for that. A group that has failed
//! ends its communicator by `ncclCommAbort`, which ends what is on the device; one that is left in
//! order by `ncclCommFinalize` and `ncclCommDestroy`.

mod meeting;

pub(super) use meeting::{Meeting, unique_id};

use super::functions::{Code, CommHandle, IN_PROGRESS, SUCCESS, SYMMETRIC};
use super::library::Library;
use super::types::is_fine;
use crate::backend::Fate;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::log::Level;
use crate::device::context::{Context, Current};
use crate::wait::asking::Asking;
use crate::wait::bell::Bell;
use crate::wait::{Interrupt, Pace, until};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The longest pause between two questions.
const LONGEST_NAP: Duration = Duration::from_millis(1);

/// How long the watchdog waits for a thread inside before it ends a communicator all the same.
const EVICTION: Duration = Duration::from_secs(5);

/// How long it waits where calls may block: what makes the thread leave is the abort.
const GRACE: Duration = Duration::from_millis(10);

/// A communicator.
#[derive(Debug)]
pub(super) struct Comm {
    library: &'static Library,
    context: Arc<Context>,
    /// 0 once it has ended.
    handle: AtomicUsize,
    /// Calls may block.
    blocks: bool,
    /// A thread is inside.
    busy: AtomicBool,
    /// For which function, and until when, where calls may block.
    inside_for: Mutex<Option<(&'static str, Deadline)>>,
    bell: Bell,
    fate: Arc<dyn Fate>,
    /// What was registered and not taken back, which must be before the end.
    registrations: Mutex<Vec<Registration>>,
}

/// What memory is known as to the communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Registration {
    /// Of this rank alone.
    Buffer(usize),
    /// Of all ranks.
    Window(usize),
}

/// The right to use the communicator. Several may be held at once, of communicators that were
/// entered in the same order as everywhere.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    comm: &'a Comm,
    _inside: Inside<'a>,
}

/// A thread is inside; it leaves when this is dropped.
#[derive(Debug)]
struct Inside<'a>(&'a Comm);

impl Comm {
    pub(super) fn may_block(&self) -> bool {
        self.blocks
    }

    pub(super) fn library(&self) -> &'static Library {
        self.library
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    fn handle(&self) -> CommHandle {
        self.handle.load(Ordering::Acquire)
    }

    /// What NCCL says while nobody is inside; who is inside asks by himself.
    pub(super) fn state_if_free(&self) -> Result<Code> {
        if self.occupy().is_none() {
            return Ok(IN_PROGRESS);
        }
        let _inside = Inside(self);
        self.state()
    }

    /// What NCCL says of the communicator: success, in progress, or what has gone wrong on a thread
    /// of its own. Only by who is inside: NCCL puts away what it has launched as it is asked, and
    /// two threads at once would do so twice.
    fn state(&self) -> Result<Code> {
        let mut state = SUCCESS;
        // SAFETY: the communicator lives, and there is room for a number.
        let code =
            unsafe { (self.library.functions.comm_async_error)(self.handle(), &raw mut state) };
        self.library.check("ncclCommGetAsyncError", code, 0)?;
        Ok(state)
    }

    /// An asynchronous error in words.
    pub(super) fn asynchronous(&self, state: Code) -> Option<Error> {
        if is_fine(state) {
            return None;
        }
        self.library.check("an operation on the device", state, self.handle()).err()
    }

    /// Waits until nobody else is inside. Who wants to call a function that may wait for other
    /// ranks, until that deadline too, says so.
    ///
    /// # Errors
    /// The group's failure, `Timeout`.
    pub(super) fn enter(
        &self,
        function: Option<&'static str>,
        deadline: &Deadline,
    ) -> Result<Entry<'_>> {
        if let Some(failure) = self.fate.failure() {
            return Err(failure);
        }
        match until(&self.bell, Pace::PATIENT, deadline, || self.fate.failure(), || self.occupy()) {
            Ok(()) => {}
            Err(Interrupt::Halted(failure)) => return Err(failure),
            Err(Interrupt::Deadline) => {
                let message = format!(
                    "another thread was inside the communicator for {} ms",
                    deadline.elapsed().as_millis()
                );
                return Err(Error::new(ErrorKind::Timeout, message));
            }
        }
        let inside = Inside(self);
        if self.blocks {
            *self.inside_for() = function.map(|function| (function, *deadline));
        }
        if self.handle() == 0 {
            let failure = self.fate.failure();
            let ended = || Error::new(ErrorKind::Aborted, "the communicator has ended");
            return Err(failure.unwrap_or_else(ended));
        }
        Ok(Entry { comm: self, _inside: inside })
    }

    fn occupy(&self) -> Option<()> {
        self.busy.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).ok().map(drop)
    }

    fn inside_for(&self) -> MutexGuard<'_, Option<(&'static str, Deadline)>> {
        self.inside_for.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread is inside a call that blocks beyond its deadline.
    pub(super) fn overdue(&self) -> Option<Error> {
        let inside_for = *self.inside_for();
        let (function, deadline) = inside_for.filter(|(_, deadline)| deadline.has_passed())?;
        Some(self.late(function, &deadline))
    }

    /// What other ranks have to do with has not happened in time.
    fn late(&self, function: &str, deadline: &Deadline) -> Error {
        let message = format!(
            "{function} was not launched within {} ms: another rank may not have called it ({})",
            deadline.elapsed().as_millis(),
            self.library.signature()
        );
        Error::new(ErrorKind::Timeout, message)
    }

    fn leave(&self) {
        if self.blocks {
            *self.inside_for() = None;
        }
        self.busy.store(false, Ordering::Release);
        self.bell.ring();
    }

    /// Ends it, and what it does on the device, without the other ranks.
    pub(super) fn abort(&self) {
        self.evict(if self.blocks { GRACE } else { EVICTION });
        self.end_by_force();
        self.leave();
    }

    /// By who is inside.
    fn end_by_force(&self) {
        // An abort ends windows by itself; to take one back may wait for the device, which may
        // hang.
        self.registrations().retain(|it| matches!(it, Registration::Buffer(_)));
        if let Some(handle) = self.take_handle() {
            // SAFETY: the handle was taken away, so that nobody begins to use it; who is inside has
            // had time to leave.
            let code = unsafe { (self.library.functions.comm_abort)(handle) };
            lament(self.library.check("ncclCommAbort", code, 0));
        }
    }

    /// Ends it together with the other ranks, which must do so within the limit; else alone. What
    /// only frees what it had waits for `quiet`.
    pub(super) fn part<Quiet>(&self, limit: &Deadline, quiet: impl FnOnce() -> Quiet) {
        self.evict(EVICTION);
        let finalized = self.finalize(limit);
        let _quiet = quiet();
        if let Err(error) = &finalized {
            crate::log!(Level::Warn, "NCCL's part of a group ends by force: {error}");
            self.end_by_force();
        } else if let Some(handle) = self.take_handle() {
            // SAFETY: as in `abort`; all ranks have finalized it.
            let code = unsafe { (self.library.functions.comm_destroy)(handle) };
            lament(self.library.check("ncclCommDestroy", code, 0));
        }
        self.leave();
    }

    fn finalize(&self, limit: &Deadline) -> Result<()> {
        let _current = self.context.enter()?;
        self.forget_registrations();
        // SAFETY: the communicator lives, and nobody is inside.
        let code = unsafe { (self.library.functions.comm_finalize)(self.handle()) };
        self.settle("ncclCommFinalize", code, limit)
    }

    /// Waits until nobody is inside, for a while.
    fn evict(&self, patience: Duration) {
        let limit = Deadline::after(patience);
        if until(&self.bell, Pace::PATIENT, &limit, || None, || self.occupy()).is_err() {
            let (ms, which) = (patience.as_millis(), self.library.signature());
            crate::log!(Level::Warn, "a call of NCCL has not returned for {ms} ms ({which})");
        }
    }

    fn take_handle(&self) -> Option<CommHandle> {
        self.forget_registrations();
        Some(self.handle.swap(0, Ordering::AcqRel)).filter(|&handle| handle != 0)
    }

    /// Waits until NCCL has done what it was asked.
    fn settle(&self, function: &str, code: Code, deadline: &Deadline) -> Result<()> {
        let (mut state, mut asking) = (code, Asking::new(LONGEST_NAP));
        while state == IN_PROGRESS {
            if let Some(failure) = self.fate.failure() {
                return Err(failure);
            }
            if deadline.has_passed() {
                return Err(self.late(function, deadline));
            }
            asking.again(deadline);
            state = self.state()?;
        }
        self.library.check(function, state, self.handle())
    }

    fn registrations(&self) -> MutexGuard<'_, Vec<Registration>> {
        self.registrations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget_registrations(&self) {
        let all = std::mem::take(&mut *self.registrations());
        all.into_iter().for_each(|registration| self.deregister_now(registration));
    }

    fn deregister_now(&self, registration: Registration) {
        let functions = &self.library.functions;
        let (name, function, what) = match registration {
            Registration::Buffer(what) => ("ncclCommDeregister", functions.comm_deregister, what),
            Registration::Window(what) => {
                ("ncclCommWindowDeregister", functions.window_deregister, what)
            }
        };
        let (Some(function), handle) = (function, self.handle()) else { return };
        if handle != 0 {
            // SAFETY: a registration of this communicator, which lives, taken back once.
            let code = unsafe { function(handle, what) };
            lament(self.library.check(name, code, 0));
        }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        if self.handle() != 0 {
            self.abort();
        }
    }
}

fn lament(outcome: Result<()>) {
    if let Err(error) = outcome {
        crate::log!(Level::Warn, "{error}");
    }
}

impl Entry<'_> {
    /// The communicator, for a call.
    pub(super) fn handle(&self) -> CommHandle {
        self.comm.handle()
    }

    pub(super) fn library(&self) -> &'static Library {
        self.comm.library
    }

    /// What a call has returned; done when NCCL has done it.
    pub(super) fn settle(&self, function: &str, code: Code, deadline: &Deadline) -> Result<()> {
        self.comm.settle(function, code, deadline)
    }

    /// Makes its device current on the calling thread.
    pub(super) fn current(&self) -> Result<Current<'_>> {
        self.comm.context.enter()
    }

    /// Makes calls between a start and an end, on whichever communicators, and gives what NCCL says
    /// at the end. `calls` says with which function something went wrong.
    pub(super) fn between(&self, calls: impl FnOnce() -> Result<()>) -> Result<Code> {
        let functions = &self.library().functions;
        // SAFETY: takes nothing; ended below.
        let code = unsafe { (functions.group_start)() };
        self.library().check("ncclGroupStart", code, 0)?;
        let made = calls();
        // SAFETY: ends what was begun above, on the same thread.
        let code = unsafe { (functions.group_end)() };
        made?;
        self.added("ncclGroupEnd", code)?;
        Ok(code)
    }

    /// Checks a call within [`Entry::between`].
    pub(super) fn added(&self, function: &str, code: Code) -> Result<()> {
        if is_fine(code) { Ok(()) } else { self.library().check(function, code, self.handle()) }
    }

    /// Registers memory for this rank, where the library can do that.
    pub(super) fn register(&self, start: usize, bytes: usize) -> Result<Option<Registration>> {
        let functions = &self.library().functions;
        let (Some(function), Some(_)) = (functions.comm_register, functions.comm_deregister) else {
            return Ok(None);
        };
        let _current = self.current()?;
        let mut registration = 0;
        let start = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: memory of NCCL's own, of this length; there is room for the registration.
        let code = unsafe { function(self.handle(), start, bytes, &raw mut registration) };
        self.library().check("ncclCommRegister", code, self.handle())?;
        Ok(Some(self.keep(Registration::Buffer(registration))))
    }

    /// Makes memory of the same length on all ranks a window of theirs, which all call. `None`
    /// where the library or the devices cannot do that, which is so on all ranks.
    pub(super) fn make_window(
        &self,
        start: usize,
        bytes: usize,
        deadline: &Deadline,
    ) -> Result<Option<Registration>> {
        let functions = &self.library().functions;
        let (Some(function), Some(_)) = (functions.window_register, functions.window_deregister)
        else {
            return Ok(None);
        };
        let _current = self.current()?;
        // NCCL writes it once all have come, which may be after this call has given up: then it
        // stays.
        let window: *mut usize = Box::into_raw(Box::default());
        let start = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: memory of NCCL's own, of this length; the place for the window stays.
        let code = unsafe { function(self.handle(), start, bytes, window, SYMMETRIC) };
        // It says `SUCCESS` while it goes on behind the caller's back (seen with 2.30.7): the
        // communicator knows.
        let state = if code == SUCCESS { self.comm.state()? } else { code };
        self.settle("ncclCommWindowRegister", state, deadline)?;
        // SAFETY: NCCL has written it, and writes no more; it is from a box, above.
        let made = *unsafe { Box::from_raw(window) };
        Ok((made != 0).then(|| self.keep(Registration::Window(made))))
    }

    fn keep(&self, registration: Registration) -> Registration {
        self.comm.registrations().push(registration);
        registration
    }

    /// Takes a registration back, unless the communicator's end has done so.
    pub(super) fn deregister(&self, registration: Registration) {
        let mut all = self.comm.registrations();
        let known = all.iter().position(|&known| known == registration);
        let known = known.map(|place| all.swap_remove(place));
        drop(all);
        known.into_iter().for_each(|registration| self.comm.deregister_now(registration));
    }
}
