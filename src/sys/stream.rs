//! A connected stream socket, TCP or Unix, whose reads and writes say themselves whether they may block.

use super::socket;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The longest that [`Stream::receive_patiently`] blocks.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// One end of a connection. Writing never raises SIGPIPE.
#[derive(Debug)]
pub struct Stream {
    fd: OwnedFd,
}

impl Stream {
    /// Takes over a TCP connection; it sends small writes at once, and notices within minutes that the peer's
    /// host is gone.
    ///
    /// # Errors
    /// The reason as the system gives it.
    pub fn from_tcp(stream: TcpStream) -> io::Result<Self> {
        socket::tune(&stream)?;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { fd: stream.into() })
    }

    /// Takes over a Unix connection.
    ///
    /// # Errors
    /// The reason as the system gives it.
    pub fn from_unix(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { fd: stream.into() })
    }

    /// Sends what finds room now, and returns how much that was.
    ///
    /// # Errors
    /// The reason as the system gives it; `WouldBlock` where there is no room.
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: reads `len` bytes of the slice.
        let sent =
            unsafe { libc::send(self.fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Receives what is there now. Zero bytes mean that the other end has closed.
    ///
    /// # Errors
    /// The reason as the system gives it; `WouldBlock` where there is nothing.
    pub fn receive(&self, bytes: &mut [u8]) -> io::Result<usize> {
        self.receive_with(bytes, libc::MSG_DONTWAIT)
    }

    /// The same, but waits for something to come, for [`PATIENCE`] at most.
    ///
    /// # Errors
    /// The reason as the system gives it; `WouldBlock` where nothing has come.
    pub fn receive_patiently(&self, bytes: &mut [u8]) -> io::Result<usize> {
        self.receive_with(bytes, 0)
    }

    /// True while the other end has neither closed the connection nor sent anything.
    pub fn is_open_and_silent(&self) -> bool {
        let outcome = self.receive_with(&mut [0], libc::MSG_DONTWAIT | libc::MSG_PEEK);
        outcome.is_err_and(|cause| cause.kind() == io::ErrorKind::WouldBlock)
    }

    fn receive_with(&self, bytes: &mut [u8], flags: libc::c_int) -> io::Result<usize> {
        let (fd, len) = (self.fd.as_raw_fd(), bytes.len());
        // SAFETY: writes at most `len` bytes to the slice.
        let got = unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), len, flags) };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::unix;

    #[test]
    fn both_ends_of_a_pair() {
        let (a, b) = unix::pair().unwrap();
        let (a, b) = (Stream::from_unix(a).unwrap(), Stream::from_unix(b).unwrap());
        let mut bytes = [0; 8];
        assert_eq!(a.receive(&mut bytes).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(a.is_open_and_silent());
        assert_eq!(b.send(b"hi").unwrap(), 2);
        assert!(!a.is_open_and_silent());
        assert_eq!(a.receive_patiently(&mut bytes).unwrap(), 2);
        drop(b);
        assert!(!a.is_open_and_silent());
        assert_eq!(a.receive_patiently(&mut bytes).unwrap(), 0);
        assert_eq!(a.send(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
