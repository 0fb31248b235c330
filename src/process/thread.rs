//! Starts and recognises threads of the library, for the layers that must not import `sys`.

use crate::base::error::Result;
use crate::base::log::LogLevel;
use crate::sys::thread;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The prefix of the names of all threads of the library.
pub const THREAD_NAME_PREFIX: &str = "dist-";

/// Flags of a thread, which the layers above set and read. All flags are in one variable, because
/// each access to a thread-local variable of a shared library costs a function call.
#[derive(Debug)]
pub struct ThreadFlags {
    /// The thread is inside an exported function.
    pub in_call: Cell<bool>,
    /// The thread runs the completion callbacks.
    pub in_callbacks: Cell<bool>,
    /// The thread has opened a batch.
    pub in_batch: Cell<bool>,
}

thread_local! {
    /// The flags of the calling thread. They exist as long as the thread.
    pub static THREAD_FLAGS: ThreadFlags = const {
        ThreadFlags { in_call: Cell::new(false), in_callbacks: Cell::new(false), in_batch: Cell::new(false) }
    };
}

/// Starts a detached thread with all signals blocked. `name` must begin with
/// [`THREAD_NAME_PREFIX`]. A panic ends only the thread, and is logged.
///
/// # Errors
/// `System` if the system refuses another thread.
pub fn start(name: &'static str, body: impl FnOnce() + Send + 'static) -> Result<()> {
    let guarded = move || {
        if catch_unwind(AssertUnwindSafe(body)).is_err() {
            crate::log!(
                LogLevel::Error,
                "the thread {name} has panicked; this is a defect in libdist, please report it"
            );
        }
    };
    // Dropping the handle detaches the thread, which ends by itself.
    thread::spawn(name, guarded).map(drop)
}

/// Returns true on a thread of the library.
pub fn is_library_thread() -> bool {
    std::thread::current().name().is_some_and(|name| name.starts_with(THREAD_NAME_PREFIX))
}
