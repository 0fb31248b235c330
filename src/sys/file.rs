//! Functions for files that several processes write: locks that never wait, and writes that return
//! an error where the kernel would otherwise raise SIGXFSZ.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// The kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileLock {
    /// A shared lock: other open files may hold shared locks at the same time.
    Shared,
    /// An exclusive lock: no other open file may hold a lock at the same time.
    Exclusive,
}

/// Creates a named pipe that only its owner can open.
///
/// # Errors
/// The error of the system.
pub fn create_fifo(path: &Path) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the call reads a C string, which lives until the call returns.
    let status = unsafe { libc::mkfifo(name.as_ptr(), 0o600) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Locks the whole file without waiting. Returns false if another lock conflicts. If this open file
/// already has a lock, the lock changes to the new kind.
///
/// The lock belongs to the open file description, so threads that opened the file separately
/// exclude each other. The lock ends when the description is closed: after a process has died, its
/// lock is gone, unless a forked child keeps the description open.
///
/// # Errors
/// The error of the system; a file system may not support locks.
pub fn try_lock(file: &File, lock: FileLock) -> io::Result<bool> {
    let kind = match lock {
        FileLock::Shared => libc::F_RDLCK,
        FileLock::Exclusive => libc::F_WRLCK,
    };
    match set_lock(file, kind) {
        Ok(()) => Ok(true),
        Err(cause) => match cause.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES | libc::EINTR) => Ok(false),
            _ => Err(cause),
        },
    }
}

/// Removes the lock of this open file, if it has one.
///
/// # Errors
/// The error of the system.
pub fn unlock(file: &File) -> io::Result<()> {
    set_lock(file, libc::F_UNLCK)
}

fn set_lock(file: &File, kind: libc::c_int) -> io::Result<()> {
    let whole = libc::flock {
        l_type: libc::c_short::try_from(kind).unwrap_or_default(),
        l_whence: libc::c_short::try_from(libc::SEEK_SET).unwrap_or_default(),
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: the call reads one structure, which is on this stack.
    let status = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const whole) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Writes all bytes at an offset, in one system call unless the system accepts only a part. After
/// an error, some bytes may have been written. If the file would exceed the file size limit of this
/// process, this function returns an error, and SIGXFSZ does not end the process.
///
/// # Errors
/// The error of the system.
pub fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let size_signal = signal_set(libc::SIGXFSZ);
    let before = block_signals(&size_signal)?;
    let was_pending = is_pending(libc::SIGXFSZ);
    let outcome = file.write_all_at(bytes, offset);
    if is_too_large(&outcome) && !was_pending {
        take_pending_signal(&size_signal);
    }
    restore_signals(&before);
    outcome
}

fn is_too_large(outcome: &io::Result<()>) -> bool {
    outcome.as_ref().is_err_and(|cause| cause.raw_os_error() == Some(libc::EFBIG))
}

fn signal_set(signal: libc::c_int) -> libc::sigset_t {
    let mut set = empty_set();
    // SAFETY: the call changes the set on this stack.
    unsafe { libc::sigaddset(&raw mut set, signal) };
    set
}

fn empty_set() -> libc::sigset_t {
    // SAFETY: sigset_t is a plain array of integers, for which zero is the empty set.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// Blocks signals in this thread; returns the previous mask.
fn block_signals(set: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut before = empty_set();
    // SAFETY: the call reads one set and writes the other, which is on this stack.
    let status = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set, &raw mut before) };
    if status == 0 { Ok(before) } else { Err(io::Error::from_raw_os_error(status)) }
}

fn restore_signals(before: &libc::sigset_t) {
    // SAFETY: the call reads the set; a null third argument means that no old mask is returned. It
    // cannot fail, because the first argument is valid.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
}

fn is_pending(signal: libc::c_int) -> bool {
    let mut pending = empty_set();
    // SAFETY: the call writes the set on this stack.
    unsafe { libc::sigpending(&raw mut pending) };
    // SAFETY: the call reads the set on this stack.
    unsafe { libc::sigismember(&raw const pending, signal) == 1 }
}

/// Removes a blocked signal that is pending for this thread, if there is one.
fn take_pending_signal(set: &libc::sigset_t) {
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call reads the set and the time; a null second argument means that no information
    // is returned.
    unsafe { libc::sigtimedwait(set, std::ptr::null_mut(), &raw const at_once) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened_twice() -> (File, File) {
        let path = std::env::temp_dir().join(format!("dist-lock-{}", std::process::id()));
        let a = File::create(&path).unwrap();
        let b = File::options().read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        (a, b)
    }

    #[test]
    fn locks_exclude_separately_opened_files() {
        let (a, b) = opened_twice();
        // The first file is open for writing only; a shared lock needs read access.
        assert!(try_lock(&a, FileLock::Exclusive).unwrap());
        assert!(!try_lock(&b, FileLock::Exclusive).unwrap());
        assert!(!try_lock(&b, FileLock::Shared).unwrap());
        unlock(&a).unwrap();
        assert!(try_lock(&b, FileLock::Shared).unwrap());
        assert!(!try_lock(&a, FileLock::Exclusive).unwrap());
        drop(b);
        assert!(try_lock(&a, FileLock::Exclusive).unwrap());
    }

    #[test]
    fn write_restores_the_signal_mask() {
        let (file, _) = opened_twice();
        let before = block_signals(&empty_set()).unwrap();
        // SAFETY: the call reads the set on this stack.
        let is_blocked =
            |set: &libc::sigset_t| unsafe { libc::sigismember(set, libc::SIGXFSZ) == 1 };
        write_all_at(&file, b"abc", 5).unwrap();
        assert_eq!(is_blocked(&before), is_blocked(&block_signals(&empty_set()).unwrap()));
        assert_eq!(file.metadata().unwrap().len(), 8);
    }
}
