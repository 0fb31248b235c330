//! Sleeping on a 32-bit word until another thread or process wakes the sleeper.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// The processes that may wake the sleeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FutexScope {
    /// Only threads of this process wake the sleeper, which is cheaper.
    Process,
    /// Any process that maps the word may wake the sleeper.
    Host,
}

impl FutexScope {
    const fn flag(self) -> libc::c_int {
        match self {
            Self::Process => libc::FUTEX_PRIVATE_FLAG,
            Self::Host => 0,
        }
    }
}

/// Sleeps if `word` holds `expected`, until [`wake_all`] wakes this thread or `limit` has passed.
/// Returns at once if `word` holds another value. May also return early without a wake, so the
/// caller must check the word again.
pub fn wait(word: &AtomicU32, expected: u32, limit: Duration, scope: FutexScope) {
    let limit = libc::timespec {
        tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(limit.subsec_nanos()),
    };
    // SAFETY: FUTEX_WAIT reads the word, which the reference keeps alive, and the timeout.
    let _woken_or_not = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | scope.flag(),
            expected,
            &raw const limit,
        )
    };
}

/// Wakes every sleeper on `word`.
pub fn wake_all(word: &AtomicU32, scope: FutexScope) {
    // SAFETY: FUTEX_WAKE uses only the address of the word.
    let _count = unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | scope.flag(), i32::MAX)
    };
}
