//! A function that runs when this process ends in order, that is, when `main` returns or the
//! program calls `exit`. It does not run if a signal or `_exit` ends the process.
//!
//! The function is called from the section `.fini_array` of the shared object (or program) that
//! contains the library. The C library calls these entries after all handlers of `atexit` and all
//! destructors of static objects of the program. These may thus still use the library. The library
//! is never unloaded, so `dlclose` does not call the entry.
//!
//! The function runs on a thread of its own, because the thread-local variables of the exiting
//! thread are gone. The exiting thread may also hold locks, if a signal handler has called `exit`
//! in the middle of a call of the library. Therefore it waits for the other thread for at most
//! [`TIME_LIMIT`].

use super::thread;
use crate::base::deadline::Deadline;
use crate::sys::fork;
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitPolicy, wait_until};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The longest time by which the function delays the end of the process.
pub const TIME_LIMIT: Duration = Duration::from_millis(500);

/// The function that runs at the end.
#[derive(Clone, Copy, Debug)]
pub struct ExitFunction {
    /// Returns whether the function has anything to do. Called on the exiting thread, so it must
    /// not take a lock.
    pub is_needed: fn() -> bool,
    /// Runs on a thread of its own.
    pub run: fn(),
}

static EXIT_FUNCTION: OnceLock<ExitFunction> = OnceLock::new();

/// Whether the function has started. It runs at most once.
static HAS_STARTED: AtomicBool = AtomicBool::new(false);

#[used]
#[unsafe(link_section = ".fini_array")]
static EXIT_ENTRY: extern "C" fn() = run_at_exit;

/// Sets the function that runs at the end of this process. Only the first call has an effect.
pub fn set(function: ExitFunction) {
    let _first = EXIT_FUNCTION.set(function);
}

/// Runs the function now, for a process that ends by `_exit` although it ends in order.
pub fn run() {
    let Some(&function) = EXIT_FUNCTION.get() else { return };
    if fork::is_forked_child() || !(function.is_needed)() {
        return;
    }
    if HAS_STARTED.swap(true, Ordering::AcqRel) {
        return;
    }
    let ended = Arc::new(EndedFlag::default());
    let setter = EndedFlagSetter(Arc::clone(&ended));
    let body = move || {
        let _setter = setter;
        (function.run)();
    };
    if thread::start("dist-exit", body).is_err() {
        // Without a thread, the process ends as if it had died, and the other ranks detect this.
        return;
    }
    let is_over = || ended.is_set.load(Ordering::Acquire).then_some(());
    let limit = Deadline::after(TIME_LIMIT);
    // If the function has not ended at the limit, the process ends without it.
    drop(wait_until(&ended.doorbell, WaitPolicy::SLEEP_SOON, &limit, || None, is_over));
}

extern "C" fn run_at_exit() {
    run();
}

/// Shows that the function has ended.
#[derive(Debug, Default)]
struct EndedFlag {
    is_set: AtomicBool,
    doorbell: Doorbell,
}

/// Sets the flag when it is dropped, even after a panic of the function.
struct EndedFlagSetter(Arc<EndedFlag>);

impl Drop for EndedFlagSetter {
    fn drop(&mut self) {
        self.0.is_set.store(true, Ordering::Release);
        self.0.doorbell.notify();
    }
}
