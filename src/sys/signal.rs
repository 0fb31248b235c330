//! Functions for signals: [`SignalFd`] reads them from a descriptor instead of running their
//! handlers, and [`BlockedSignal`] delays one signal.

use super::descriptor;
use crate::base::error::{Error, Result};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// SIGKILL: ends a process at once. A process cannot catch it.
pub const KILL: i32 = libc::SIGKILL;

/// SIGTERM: asks a process to end.
pub const TERMINATE: i32 = libc::SIGTERM;

/// SIGCHLD: reports to a process that one of its children has ended.
pub const CHILD: i32 = libc::SIGCHLD;

/// The signal mask of a thread.
#[derive(Clone, Copy)]
pub struct SignalMask(libc::sigset_t);

impl SignalMask {
    /// Sets the calling thread's mask. Async-signal-safe: a forked child may call it.
    ///
    /// # Errors
    /// The error of the system.
    pub fn apply(&self) -> io::Result<()> {
        // SAFETY: the call reads the set; a null third argument means that no old mask is returned.
        let status = unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
        };
        if status == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(status)) }
    }
}

impl fmt::Debug for SignalMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mask")
    }
}

/// A descriptor from which this process reads certain signals. While it exists, these signals are
/// blocked and run no handler. Dropping it restores the normal delivery.
#[derive(Debug)]
pub struct SignalFd {
    fd: OwnedFd,
    before: SignalMask,
}

impl SignalFd {
    /// Blocks the `wanted` signals in the calling thread, and returns a descriptor from which this
    /// process reads them. Threads and processes that the calling thread starts later inherit the
    /// block. A signal that this process ignores (as under `nohup`) stays ignored.
    ///
    /// # Errors
    /// `System`.
    pub fn intercept(wanted: &[i32]) -> Result<Self> {
        // SAFETY: sigset_t is a plain array of integers, for which zero is the empty set.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        let mut before = set;
        for &signal in wanted.iter().filter(|&&signal| !is_ignored(signal)) {
            // SAFETY: the call changes the set on this stack.
            unsafe { libc::sigaddset(&raw mut set, signal) };
        }
        // SAFETY: the call reads the set and creates a new descriptor.
        let fd =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        let fd = descriptor::from_new(fd).map_err(|cause| Error::system("signalfd", cause))?;
        // SAFETY: the call reads one set and writes the other; both are on this stack.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before) };
        Ok(Self { fd, before: SignalMask(before) })
    }

    /// Returns the number of the next signal that has arrived, if there is one. Does not wait.
    pub fn next_signal(&self) -> Option<i32> {
        // SAFETY: all fields are integers, for which zero is a value.
        let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the call writes at most `size` bytes, the size of the structure.
        let got = unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut info).cast(), size) };
        (usize::try_from(got) == Ok(size)).then(|| i32::try_from(info.ssi_signo).unwrap_or(0))
    }

    /// Returns the mask of the thread before [`SignalFd::intercept`]. Programs that this process
    /// starts should have this mask.
    pub fn mask_before(&self) -> SignalMask {
        self.before
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for SignalFd {
    fn drop(&mut self) {
        // When the old mask applies again, the kernel delivers the signals that arrived and were
        // not read. Signals that were read are not delivered again.
        drop(self.before.apply());
    }
}

/// Blocks one signal in the thread that created this value, until the value is dropped. If the
/// signal arrives while it is blocked, it is delivered after the drop.
#[derive(Debug)]
pub struct BlockedSignal {
    before: SignalMask,
}

impl BlockedSignal {
    /// Blocks a signal in the calling thread. Threads and processes that the calling thread starts
    /// later inherit the block.
    pub fn new(signal: i32) -> Self {
        // SAFETY: sigset_t is a plain array of integers, for which zero is the empty set.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        let mut before = set;
        // SAFETY: the call changes the set on this stack.
        unsafe { libc::sigaddset(&raw mut set, signal) };
        // SAFETY: the call reads one set and writes the other; both are on this stack.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before) };
        Self { before: SignalMask(before) }
    }

    /// Returns the mask of the thread before [`BlockedSignal::new`].
    pub fn mask_before(&self) -> SignalMask {
        self.before
    }
}

impl Drop for BlockedSignal {
    fn drop(&mut self) {
        // This cannot fail, because the mask was the thread's mask before.
        drop(self.before.apply());
    }
}

/// Returns true if the system discards the exit status of children, because this process ignores
/// [`CHILD`] or has set `SA_NOCLDWAIT`.
pub fn discards_child_status() -> bool {
    is_ignored(CHILD) || action_flags(CHILD) & libc::SA_NOCLDWAIT != 0
}

/// Restores the default action of a signal, whatever action the process inherited.
pub fn set_default(signal: i32) {
    // SAFETY: the call installs no handler. It fails only for an invalid signal number.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

fn is_ignored(signal: i32) -> bool {
    current_action(signal).is_some_and(|action| action.sa_sigaction == libc::SIG_IGN)
}

fn action_flags(signal: i32) -> i32 {
    current_action(signal).map_or(0, |action| action.sa_flags)
}

fn current_action(signal: i32) -> Option<libc::sigaction> {
    // SAFETY: all fields are integers and pointers, for which zero is a value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a null second argument changes nothing; the call writes the third.
    let status = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    (status == 0).then_some(action)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_signal_is_read_and_not_delivered() {
        let signals = SignalFd::intercept(&[libc::SIGWINCH]).unwrap();
        assert_eq!(signals.next_signal(), None);
        // SAFETY: the call sends a signal to this thread, which has it blocked.
        unsafe { libc::raise(libc::SIGWINCH) };
        assert_eq!(signals.next_signal(), Some(libc::SIGWINCH));
        assert_eq!(signals.next_signal(), None);
    }

    #[test]
    fn signal_mask_is_restored() {
        let outer = BlockedSignal::new(libc::SIGWINCH);
        let inner = BlockedSignal::new(libc::SIGURG);
        let has = |mask: &SignalMask, signal| {
            // SAFETY: the call reads the set.
            unsafe { libc::sigismember(&raw const mask.0, signal) == 1 }
        };
        assert!(!has(&outer.mask_before(), libc::SIGWINCH));
        assert!(has(&inner.mask_before(), libc::SIGWINCH));
        drop(inner);
        let now = BlockedSignal::new(libc::SIGURG).mask_before();
        assert!(has(&now, libc::SIGWINCH) && !has(&now, libc::SIGURG));
        assert!(!discards_child_status());
    }
}
