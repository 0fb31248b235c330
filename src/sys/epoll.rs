//! Readiness of many descriptors, reported in the order in which they became ready.
//!
//! That order is why this is epoll and not poll: it tells which of several events came first, even to
//! a reader that was late.

use crate::base::error::{Error, Result};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// A set of descriptors, each watched for being readable and known by a number of the caller's.
#[derive(Debug)]
pub struct Epoll {
    fd: OwnedFd,
}

impl Epoll {
    /// An empty set.
    ///
    /// # Errors
    /// `System`.
    pub fn new() -> Result<Self> {
        // SAFETY: makes a new descriptor and touches no memory.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(Error::system("epoll_create1", &io::Error::last_os_error()));
        }
        // SAFETY: the descriptor is new and nobody else's.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Watches `fd`; [`Epoll::wait`] reports it as `token` as long as it is readable or closed at the
    /// other end.
    ///
    /// # Errors
    /// `System`, for instance for a regular file, which is always ready.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64) -> Result<()> {
        let events = u32::try_from(libc::EPOLLIN).unwrap_or_default();
        let mut event = libc::epoll_event { events, u64: token };
        // SAFETY: the call reads the event, which lives on this stack.
        let status = unsafe {
            libc::epoll_ctl(
                self.fd.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                fd.as_raw_fd(),
                &raw mut event,
            )
        };
        if status == 0 {
            return Ok(());
        }
        Err(Error::system("adding a descriptor to an epoll set", &io::Error::last_os_error()))
    }

    /// Stops watching `fd`, which must still be open.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        // SAFETY: EPOLL_CTL_DEL ignores the event, which may be null. The only failures are that the
        // descriptor was not in the set, which is what the caller wants.
        let _removed_or_absent = unsafe {
            libc::epoll_ctl(
                self.fd.as_raw_fd(),
                libc::EPOLL_CTL_DEL,
                fd.as_raw_fd(),
                std::ptr::null_mut(),
            )
        };
    }

    /// The token of the descriptor that has been ready longest; `None` after `limit`, or earlier for
    /// no reason. Descriptors that stay ready take turns.
    ///
    /// # Errors
    /// `System`.
    pub fn wait(&self, limit: Duration) -> Result<Option<u64>> {
        // Rounded up, so that a caller with a deadline does not come back just before it.
        let limit = i32::try_from(limit.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX);
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: the call writes at most one event, which lives on this stack.
        let count = unsafe { libc::epoll_wait(self.fd.as_raw_fd(), &raw mut event, 1, limit) };
        if count > 0 {
            return Ok(Some(event.u64));
        }
        let cause = io::Error::last_os_error();
        if count == 0 || cause.kind() == io::ErrorKind::Interrupted {
            return Ok(None);
        }
        Err(Error::system("epoll_wait", &cause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_first_to_become_ready_is_reported_first() {
        let epoll = Epoll::new().unwrap();
        let mut pairs: Vec<_> = (0..3).map(|_| UnixStream::pair().unwrap()).collect();
        for (token, (_, reader)) in pairs.iter().enumerate() {
            epoll.add(reader.as_fd(), token as u64).unwrap();
        }
        assert_eq!(epoll.wait(Duration::ZERO).unwrap(), None);
        for index in [2, 0, 1] {
            pairs[index].0.write_all(b"x").unwrap();
        }
        for index in [2, 0, 1] {
            assert_eq!(epoll.wait(Duration::from_secs(10)).unwrap(), Some(index as u64));
            pairs[index].1.read_exact(&mut [0]).unwrap();
            epoll.remove(pairs[index].1.as_fd());
        }
        assert_eq!(epoll.wait(Duration::ZERO).unwrap(), None);
    }
}
