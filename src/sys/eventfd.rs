//! A flag with a descriptor (Linux's eventfd): any thread can raise the flag, and the descriptor
//! then becomes readable for pollers.

use super::descriptor;
use crate::base::error::{Error, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The flag. Its descriptor is readable while the flag is raised.
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
}

impl EventFd {
    /// Creates a flag that is not raised.
    ///
    /// # Errors
    /// `System`.
    pub fn new() -> Result<Self> {
        // SAFETY: the call creates a new descriptor and touches no memory.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        let fd = descriptor::from_new(fd).map_err(|cause| Error::system("eventfd", cause))?;
        Ok(Self { fd })
    }

    /// Raises the flag.
    pub fn raise(&self) {
        let one = 1_u64;
        // SAFETY: the call reads the eight bytes of the number. It fails only if the flag is
        // already raised.
        unsafe { libc::write(self.fd.as_raw_fd(), (&raw const one).cast(), size_of_val(&one)) };
    }

    /// Clears the flag.
    pub fn clear(&self) {
        let mut count = 0_u64;
        // SAFETY: the call writes the eight bytes of the number. It fails only if the flag is not
        // raised.
        unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut count).cast(), size_of_val(&count)) };
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::deadline::Deadline;
    use crate::sys::poll::{Interest, wait_ready};

    #[test]
    fn a_raised_flag_is_readable_until_it_is_cleared() {
        let event = EventFd::new().unwrap();
        let raised = || wait_ready(event.as_fd(), Interest::READ, &Deadline::after_ms(0)).unwrap();
        assert!(!raised());
        event.raise();
        event.raise();
        assert!(raised());
        event.clear();
        assert!(!raised());
        event.clear();
    }
}
