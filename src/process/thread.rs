//! Starts and recognises threads of the library, for the layers that must not import `sys`.

use crate::base::error::Result;
use crate::base::log::LogLevel;
use crate::sys::thread;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

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
    /// `COUNTED`, `IN_SLICED_WAIT` and `CONTINUES_WAIT`.
    caller_state: Cell<u8>,
}

/// A bit of `caller_state`: the thread has called an exported function. Unless it is a thread of
/// the library, it counts as a caller.
const COUNTED: u8 = 1;
/// A bit of `caller_state`: the last call of the thread was a part of a wait that goes on.
const IN_SLICED_WAIT: u8 = 2;
/// A bit of `caller_state`: the present call of the thread continues the sliced wait.
const CONTINUES_WAIT: u8 = 4;

/// Counts a thread among the callers until the thread ends.
struct CountedCaller;

thread_local! {
    /// The flags of the calling thread. They exist as long as the thread.
    pub static THREAD_FLAGS: ThreadFlags = const {
        ThreadFlags {
            in_call: Cell::new(false),
            in_callbacks: Cell::new(false),
            in_batch: Cell::new(false),
            caller_state: Cell::new(0),
        }
    };
    static COUNTED_CALLER: CountedCaller = CountedCaller::new();
}

/// The number of running threads that have called exported functions.
static CALLERS: AtomicUsize = AtomicUsize::new(0);

/// The function that ends the sliced wait of the calling thread.
static END_OF_SLICED_WAIT: OnceLock<fn()> = OnceLock::new();

/// Sets the function that ends the sliced wait of a thread. Only the first call has an effect.
pub fn set_end_of_sliced_wait(end: fn()) {
    let _first = END_OF_SLICED_WAIT.set(end);
}

impl CountedCaller {
    fn new() -> Self {
        CALLERS.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for CountedCaller {
    fn drop(&mut self) {
        THREAD_FLAGS.with(ThreadFlags::end_sliced_wait);
        CALLERS.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ThreadFlags {
    /// Records that the thread calls an exported function. The call ends the sliced wait of the
    /// thread, unless the call continues the wait.
    #[inline]
    pub fn record_call(&self) {
        if self.caller_state.get() != COUNTED {
            self.record_special_call();
        }
    }

    #[cold]
    fn record_special_call(&self) {
        let state = self.caller_state.get();
        // Threads of the library call exported functions only in callbacks, which are counted
        // apart.
        if state & COUNTED == 0 && !is_library_thread() {
            // While the thread ends, the variable may be gone. Then the thread no longer counts.
            let _gone = COUNTED_CALLER.try_with(|_| {});
        }
        self.caller_state.set(COUNTED | state & IN_SLICED_WAIT);
        if state & CONTINUES_WAIT == 0 {
            self.end_sliced_wait();
        }
    }

    /// Announces that the next call continues the sliced wait of the thread.
    pub fn continue_sliced_wait(&self) {
        self.caller_state.set(self.caller_state.get() | CONTINUES_WAIT);
    }

    /// Records that the present call is a part of a wait that goes on after the call.
    pub fn begin_sliced_wait(&self) {
        self.caller_state.set(self.caller_state.get() | IN_SLICED_WAIT);
    }

    fn end_sliced_wait(&self) {
        let state = self.caller_state.get();
        if state & IN_SLICED_WAIT != 0 {
            self.caller_state.set(state & !IN_SLICED_WAIT);
            if let Some(end) = END_OF_SLICED_WAIT.get() {
                end();
            }
        }
    }
}

/// Returns whether at most one running thread has called an exported function.
pub fn has_one_caller() -> bool {
    CALLERS.load(Ordering::Relaxed) <= 1
}

/// Starts a detached thread with all signals blocked. `name` must begin with "dist-". A panic ends
/// only the thread, and is logged.
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
    thread::is_library_thread()
}
