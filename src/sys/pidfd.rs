//! [`PidFd`]: a descriptor of a process. The descriptor becomes readable when the process ends. A
//! signal that is sent through the descriptor reaches only this process, even if the process ID is
//! reused.

use super::descriptor;
use crate::base::error::{Error, Result};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A process descriptor, which stays bound to its process even if the process ID is reused.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// Opens the process that has this ID now.
    ///
    /// # Errors
    /// `System` if the process does not exist, or if the kernel is older than 5.3.
    pub fn open(pid: i32) -> Result<Self> {
        // SAFETY: the call touches no memory; it creates a new descriptor (closed on exec).
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let fd = descriptor::from_new(i32::try_from(fd).unwrap_or(-1));
        fd.map(Self)
            .map_err(|cause| Error::system(format_args!("pidfd_open of process {pid}"), cause))
    }

    /// Sends a signal to the process.
    ///
    /// # Errors
    /// The error of the system, for example if the process has been reaped.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        let (fd, info) = (self.0.as_raw_fd(), std::ptr::null::<libc::siginfo_t>());
        // SAFETY: a null third argument requests the signal information that `kill` would send.
        let status = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, info, 0) };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
