//! Threads of the library, for the layers that make no system calls of their own.

use crate::base::error::Result;
use crate::base::log::LogLevel;
use crate::sys::thread;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What the names of all threads of the library begin with.
pub const THREAD_NAME_PREFIX: &str = "dist-";

/// Where a thread is, as the layers above note it. In one place for all of them, since a thread's
/// own variable is a call away in a library that is loaded.
#[derive(Debug)]
pub struct ThreadFlags {
    /// Inside an exported function.
    pub in_call: Cell<bool>,
    /// It is the thread of completion callbacks.
    pub in_callbacks: Cell<bool>,
    /// It has opened a batch.
    pub in_batch: Cell<bool>,
}

thread_local! {
    /// Those of the calling thread; there as long as it is.
    pub static THREAD_FLAGS: ThreadFlags = const {
        ThreadFlags { in_call: Cell::new(false), in_callbacks: Cell::new(false), in_batch: Cell::new(false) }
    };
}

/// Starts a thread that ends by itself: named `name` (which begins with [`THREAD_NAME_PREFIX`]),
/// with all signals blocked. A panic ends only the thread, and is logged.
///
/// # Errors
/// `System` where the operating system refuses another thread.
pub fn start(name: &'static str, body: impl FnOnce() + Send + 'static) -> Result<()> {
    let guarded = move || {
        if catch_unwind(AssertUnwindSafe(body)).is_err() {
            crate::log!(
                LogLevel::Error,
                "the thread {name} has ended by a panic, a defect in libdist"
            );
        }
    };
    // Detached: it has an end of its own.
    thread::spawn(name, guarded).map(drop)
}

/// True on a thread of the library.
pub fn is_library_thread() -> bool {
    std::thread::current().name().is_some_and(|name| name.starts_with(THREAD_NAME_PREFIX))
}
