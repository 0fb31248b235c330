//! A descriptor that becomes readable when a process ends, and through which no other process is
//! signalled.

use crate::base::error::{Error, Result};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A process, held so that its id cannot come to mean another one.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// The process that has this id now.
    ///
    /// # Errors
    /// `System`: no such process, or a kernel older than 5.3.
    pub fn open(pid: i32) -> Result<Self> {
        // SAFETY: touches no memory of ours; the call makes a new descriptor (closed on exec).
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        match i32::try_from(fd) {
            // SAFETY: the descriptor is new and nobody else's.
            Ok(fd) if fd >= 0 => Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) })),
            _ => Err(Error::system(
                format_args!("pidfd_open of process {pid}"),
                &io::Error::last_os_error(),
            )),
        }
    }

    /// Sends a signal to that very process.
    ///
    /// # Errors
    /// The reason as the system gives it, for instance that it has been reaped.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        let (fd, info) = (self.0.as_raw_fd(), std::ptr::null::<libc::siginfo_t>());
        // SAFETY: a null third argument asks for the signal information that kill would send.
        let status = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, info, 0) };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
