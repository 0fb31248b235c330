//! Waiting until one of several descriptors is ready.

use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

/// One descriptor and what is asked of it; afterwards, whether it was met.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Interest<'fd> {
    raw: libc::pollfd,
    lent: PhantomData<BorrowedFd<'fd>>,
}

impl<'fd> Interest<'fd> {
    /// Bytes, a connection or the end of file can be read.
    pub fn readable(fd: BorrowedFd<'fd>) -> Self {
        Self::new(fd, libc::POLLIN)
    }

    /// Bytes can be written.
    pub fn writable(fd: BorrowedFd<'fd>) -> Self {
        Self::new(fd, libc::POLLOUT)
    }

    fn new(fd: BorrowedFd<'fd>, events: libc::c_short) -> Self {
        let raw = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
        Self { raw, lent: PhantomData }
    }

    /// What was asked for holds, or the descriptor has an error or was closed by its peer.
    pub fn is_ready(&self) -> bool {
        self.raw.revents != 0
    }
}

/// Waits until at least one interest is ready or the deadline passes; returns how many are.
///
/// # Errors
/// `System`.
pub fn wait(interests: &mut [Interest<'_>], deadline: &Deadline) -> Result<usize> {
    loop {
        // Rounded up, so that the last fraction of a millisecond is not spent spinning.
        let left = deadline.left().as_micros().div_ceil(1000);
        if let Some(count) = poll(interests, i32::try_from(left).unwrap_or(i32::MAX))?
            && (count > 0 || deadline.has_passed())
        {
            return Ok(count);
        }
    }
}

/// Waits until at least one interest is ready. For the service thread alone, which has a descriptor
/// to be woken by.
///
/// # Errors
/// `System`.
pub fn wait_forever(interests: &mut [Interest<'_>]) -> Result<()> {
    while poll(interests, -1)?.is_none() {}
    Ok(())
}

/// One call; `None` where a signal cut it short.
fn poll(interests: &mut [Interest<'_>], timeout_ms: i32) -> Result<Option<usize>> {
    let count = libc::nfds_t::try_from(interests.len())
        .map_err(|_| Error::invalid("too many descriptors to poll"))?;
    // SAFETY: `Interest` is a transparent pollfd, and the slice says how many there are.
    let ready = unsafe { libc::poll(interests.as_mut_ptr().cast(), count, timeout_ms) };
    if let Ok(ready) = usize::try_from(ready) {
        return Ok(Some(ready));
    }
    match std::io::Error::last_os_error() {
        cause if cause.kind() == std::io::ErrorKind::Interrupted => Ok(None),
        cause => Err(Error::system("poll", &cause)),
    }
}
