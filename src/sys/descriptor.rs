//! New descriptors, which are never those of the standard streams (0 to 2).
//!
//! A daemon may have closed its standard streams. The kernel gives the lowest free number to a new
//! descriptor, so a socket of the library could become descriptor 1, and the output of the program
//! would go into the socket. Each function of the library that creates a descriptor therefore moves
//! it above the standard streams at once, with [`above_standard_streams`] or [`from_new`].
//!
//! The kernel cannot create a descriptor with a minimum number, so the number below 3 exists until
//! the move. Functions of other libraries (the resolver, the dynamic loader, listings of folders)
//! create descriptors of their own, and close them before they return.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

/// The lowest number that the library uses.
const LOWEST: RawFd = libc::STDERR_FILENO + 1;

/// Moves a new descriptor to a number above the standard streams, unless it has one. After an
/// error, the descriptor is closed.
///
/// # Errors
/// The error of the creation, or the error of the system, for example if no number is free.
#[inline]
pub fn above_standard_streams<T: Into<OwnedFd> + From<OwnedFd>>(
    created: io::Result<T>,
) -> io::Result<T> {
    let fd: OwnedFd = created?.into();
    if fd.as_raw_fd() >= LOWEST { Ok(fd.into()) } else { copy(fd.as_raw_fd()).map(T::from) }
}

/// Takes over the descriptor that a system call has just created, and moves it above the standard
/// streams. A negative number is the failure of the call, which has set `errno`.
///
/// # Errors
/// The error of the call, and those of [`above_standard_streams`].
pub(super) fn from_new(fd: libc::c_int) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the caller has just created the descriptor, which has no other owner.
    above_standard_streams(Ok(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Closes a descriptor of this process in each program that this process executes.
///
/// # Errors
/// The error of the system, for example if the descriptor does not exist.
pub(super) fn close_on_exec(fd: RawFd) -> io::Result<()> {
    // SAFETY: F_SETFD takes an integer and touches no memory.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Creates a copy of a descriptor, above the standard streams. The number need not be an open
/// descriptor.
///
/// # Errors
/// The error of the system.
pub(super) fn copy(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the call takes integers and touches no memory.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, LOWEST) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}
