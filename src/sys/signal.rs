//! Signals as something to read, so that no handler runs: they are blocked and arrive on a
//! descriptor.

use crate::base::error::{Error, Result};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Ends a process at once; it cannot be caught.
pub const KILL: i32 = libc::SIGKILL;

/// Asks a process to end.
pub const TERMINATE: i32 = libc::SIGTERM;

/// Tells a process that a child of it has ended.
pub const CHILD: i32 = libc::SIGCHLD;

/// The signals that a thread blocks.
#[derive(Clone, Copy)]
pub struct SignalMask(libc::sigset_t);

impl SignalMask {
    /// Makes this the calling thread's mask. Async-signal-safe: a forked child may call it.
    ///
    /// # Errors
    /// The reason as the system gives it.
    pub fn apply(&self) -> io::Result<()> {
        // SAFETY: reads the set; a null third argument asks for nothing back.
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

/// Signals taken from their ordinary delivery. Dropping it gives them back.
#[derive(Debug)]
pub struct SignalFd {
    fd: OwnedFd,
    before: SignalMask,
}

impl SignalFd {
    /// Blocks `wanted` in the calling thread, and so in every thread and process that it starts
    /// from now on, and makes them readable here. A signal that this process ignores (as under
    /// `nohup`) stays ignored.
    ///
    /// # Errors
    /// `System`.
    pub fn intercept(wanted: &[i32]) -> Result<Self> {
        // SAFETY: sigset_t is a plain array of integers, for which zero is the empty set.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        let mut before = set;
        for &signal in wanted.iter().filter(|&&signal| !is_ignored(signal)) {
            // SAFETY: changes the set on this stack.
            unsafe { libc::sigaddset(&raw mut set, signal) };
        }
        // SAFETY: makes a new descriptor from the set, which the call reads.
        let fd =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(Error::system("signalfd", &io::Error::last_os_error()));
        }
        // SAFETY: the descriptor is new and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: reads one set and writes the other; both live on this stack.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before) };
        Ok(Self { fd, before: SignalMask(before) })
    }

    /// The number of the next signal that has arrived, if one has. Does not wait.
    pub fn next_signal(&self) -> Option<i32> {
        // SAFETY: all fields are integers, for which zero is a value.
        let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: writes at most `size` bytes, the size of the structure.
        let got = unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut info).cast(), size) };
        (usize::try_from(got) == Ok(size)).then(|| i32::try_from(info.ssi_signo).unwrap_or(0))
    }

    /// The mask from before, which programs started from here should have.
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
        // What was read must not be delivered a second time; what was not read still is.
        drop(self.before.apply());
    }
}

/// A signal that the calling thread does not take while this exists. What comes meanwhile is
/// delivered afterwards.
#[derive(Debug)]
pub struct BlockedSignal {
    before: SignalMask,
}

impl BlockedSignal {
    /// Blocks a signal in the calling thread, and so in the threads and processes that it starts
    /// from now on.
    pub fn new(signal: i32) -> Self {
        // SAFETY: sigset_t is a plain array of integers, for which zero is the empty set.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        let mut before = set;
        // SAFETY: changes the set on this stack.
        unsafe { libc::sigaddset(&raw mut set, signal) };
        // SAFETY: reads one set and writes the other; both live on this stack.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before) };
        Self { before: SignalMask(before) }
    }

    /// The mask from before.
    pub fn mask_before(&self) -> SignalMask {
        self.before
    }
}

impl Drop for BlockedSignal {
    fn drop(&mut self) {
        // It was the thread's mask before.
        drop(self.before.apply());
    }
}

/// Whether the system forgets how children end, because this process ignores [`CHILD`] or has asked
/// for it.
pub fn discards_child_status() -> bool {
    is_ignored(CHILD) || action_flags(CHILD) & libc::SA_NOCLDWAIT != 0
}

/// Gives a signal its default effect on this process, whatever the process was started with.
pub fn set_default(signal: i32) {
    // SAFETY: installs no handler. It fails only for a number that is no signal's.
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
    // SAFETY: a null second argument changes nothing; the third is written.
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
        // SAFETY: sends a signal to this thread, which has it blocked.
        unsafe { libc::raise(libc::SIGWINCH) };
        assert_eq!(signals.next_signal(), Some(libc::SIGWINCH));
        assert_eq!(signals.next_signal(), None);
    }

    #[test]
    fn signal_mask_is_restored() {
        let outer = BlockedSignal::new(libc::SIGWINCH);
        let inner = BlockedSignal::new(libc::SIGURG);
        let has = |mask: &SignalMask, signal| {
            // SAFETY: reads the set that it is given.
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
