//! Starts and recognises threads of the library, for the layers that must not import `sys`.

use crate::base::error::Result;
use crate::base::log::LogLevel;
use crate::sys::thread;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

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

/// The value of `ONLY_CALLER` after several threads have called exported functions.
const SEVERAL_CALLERS: usize = usize::MAX;

/// The id of the only thread that has called exported functions; 0 before the first call.
static ONLY_CALLER: AtomicUsize = AtomicUsize::new(0);

impl ThreadFlags {
    /// Returns a number that identifies the thread while it exists.
    fn thread_id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Records that the thread calls an exported function.
    #[inline]
    pub fn record_call(&self) {
        if ONLY_CALLER.load(Ordering::Relaxed) != self.thread_id() {
            self.record_other_caller();
        }
    }

    #[cold]
    fn record_other_caller(&self) {
        let (me, relaxed) = (self.thread_id(), Ordering::Relaxed);
        let first = ONLY_CALLER.compare_exchange(0, me, relaxed, relaxed);
        if first.is_err_and(|caller| caller != me) {
            ONLY_CALLER.store(SEVERAL_CALLERS, relaxed);
        }
    }
}

/// Returns the id of the calling thread.
pub fn current_thread_id() -> usize {
    THREAD_FLAGS.with(ThreadFlags::thread_id)
}

/// Returns whether no other thread than the one with this id has called an exported function.
pub fn is_only_caller(thread_id: usize) -> bool {
    ONLY_CALLER.load(Ordering::Relaxed) == thread_id
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
