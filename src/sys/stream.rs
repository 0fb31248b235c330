//! [`SocketStream`]: a connected stream socket, TCP or Unix. Each read and write selects whether it
//! may block. After [`SocketStream::encrypt`], the socket carries records
//! ([`record_layer`](super::record_layer)), and the callers still read and write plain bytes. A
//! forked child keeps no copy of the socket, so the peer sees the death of this process.

use super::encrypted_stream::{EncryptedStream, StreamEnd};
use super::fork_descriptors::ForkClosed;
use super::record_layer::{MAX_TEXT_BYTES, RecordCiphers};
use super::socket;
use super::tcp_state::{self, ConnectionEnds, Retransmission, TcpInfo};
use crate::base::buffer::{Dst, Src};
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The limit of [`SocketStream::receive_blocking`].
pub const RECEIVE_TIMEOUT: Duration = Duration::from_secs(1);

/// The maximum number of parts that one system call sends.
const MAX_PARTS_PER_CALL: usize = 16;

/// One end of a connection. A write never raises SIGPIPE.
#[derive(Debug)]
pub struct SocketStream {
    /// Dropped before the descriptor is closed.
    _fork_closed: ForkClosed,
    fd: OwnedFd,
    encryption: OnceLock<Box<EncryptedStream>>,
    /// The addresses of a TCP connection. The system forgets that of the other end when the
    /// connection breaks.
    ends: Option<ConnectionEnds>,
    was_reset: AtomicBool,
    /// Whether [`SocketStream::reset`] has reset it. The system then does not know how many bytes
    /// were not acknowledged.
    #[cfg(test)]
    was_aborted: AtomicBool,
}

impl SocketStream {
    fn new(fd: OwnedFd) -> Self {
        let _fork_closed = ForkClosed::list(fd.as_fd());
        let was_reset = AtomicBool::new(false);
        Self {
            _fork_closed,
            fd,
            encryption: OnceLock::new(),
            ends: None,
            was_reset,
            #[cfg(test)]
            was_aborted: AtomicBool::new(false),
        }
    }

    fn of_tcp(stream: TcpStream) -> Self {
        Self { ends: ConnectionEnds::of(&stream), ..Self::new(stream.into()) }
    }

    /// Returns the addresses of a TCP connection.
    pub fn ends(&self) -> Option<ConnectionEnds> {
        self.ends
    }

    /// Takes over a TCP connection, and sets it to send small writes without delay and to detect
    /// within minutes that the peer's host is gone.
    ///
    /// # Errors
    /// The error of the system.
    pub fn from_tcp(stream: TcpStream) -> io::Result<Self> {
        socket::set_stream_options(&stream)?;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(RECEIVE_TIMEOUT))?;
        Ok(Self::of_tcp(stream))
    }

    /// Takes over a Unix connection.
    ///
    /// # Errors
    /// The error of the system.
    pub fn from_unix(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(RECEIVE_TIMEOUT))?;
        Ok(Self::new(stream.into()))
    }

    /// Takes over a TCP connection unchanged, for a caller that waits by polling.
    pub fn from_nonblocking_tcp(stream: TcpStream) -> Self {
        Self::of_tcp(stream)
    }

    /// Takes over a Unix connection unchanged, for a caller that waits by polling.
    pub fn from_nonblocking_unix(stream: UnixStream) -> Self {
        Self::new(stream.into())
    }

    /// Encrypts all bytes of the connection from now on. `received` are the encrypted bytes that
    /// the caller has already read from the connection.
    ///
    /// # Errors
    /// `InvalidInput` if the connection is encrypted already.
    pub fn encrypt(&self, ciphers: RecordCiphers, received: &[u8]) -> io::Result<()> {
        let encryption = Box::new(EncryptedStream::new(ciphers, received));
        self.encryption.set(encryption).map_err(|_| io::ErrorKind::InvalidInput.into())
    }

    /// Returns true if a receive has a result although the socket may not be readable. Ask before
    /// each wait for input: an encrypted stream keeps received bytes that no caller has taken.
    pub fn has_buffered_input(&self) -> bool {
        self.encryption.get().is_some_and(|encryption| encryption.has_input())
    }

    /// Returns true if the stream is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.encryption.get().is_some()
    }

    /// Sends the parts in order, as far as the socket buffer has room, and returns the number of
    /// sent bytes. After a partial send, the next send must begin with the next byte.
    ///
    /// # Errors
    /// The error of the system; `WouldBlock` if there is no room at all.
    pub fn send_parts(&self, parts: &[Src<'_>]) -> io::Result<usize> {
        if let Some(encryption) = self.encryption.get() {
            return self.send_encrypted(encryption, parts);
        }
        let mut sent = 0;
        for parts in parts.chunks(MAX_PARTS_PER_CALL) {
            let wanted: usize = parts.iter().map(|part| part.len()).sum();
            if wanted == 0 {
                continue;
            }
            match self.send_some(parts) {
                Ok(some) => {
                    sent += some;
                    if some < wanted {
                        return Ok(sent);
                    }
                }
                // Report the bytes that were sent; the next call gets the error again.
                Err(_) if sent > 0 => return Ok(sent),
                Err(cause) => return Err(cause),
            }
        }
        Ok(sent)
    }

    fn send_encrypted(&self, encryption: &EncryptedStream, parts: &[Src<'_>]) -> io::Result<usize> {
        encryption.send(parts, |bytes| self.send_raw(bytes)).map_err(|cause| match cause.kind() {
            // The connection has ended. Only a sealed end proves that the peer ended it.
            io::ErrorKind::BrokenPipe => self.check_end().err().unwrap_or(cause),
            _ => cause,
        })
    }

    fn send_some(&self, parts: &[Src<'_>]) -> io::Result<usize> {
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut vector = [empty; MAX_PARTS_PER_CALL];
        for (entry, part) in vector.iter_mut().zip(parts) {
            entry.iov_base = part.as_ptr().cast_mut().cast();
            entry.iov_len = part.len();
        }
        // SAFETY: all zero bytes are a message without address, parts and control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = vector.as_mut_ptr();
        message.msg_iovlen = parts.len();
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the call reads the parts. Each part is readable for its length, as the caller of
        // its constructor guarantees.
        let sent = unsafe { libc::sendmsg(self.fd.as_raw_fd(), &raw const message, flags) };
        self.outcome_of(sent)
    }

    /// Receives the available data, as far as the buffer has room. Zero bytes mean that the peer
    /// has closed the connection.
    ///
    /// # Errors
    /// The error of the system; `WouldBlock` if no data is available.
    pub fn receive_into(&self, into: Dst<'_>) -> io::Result<usize> {
        if let Some(encryption) = self.encryption.get() {
            return encryption.receive(into, |space| self.receive_raw(space, libc::MSG_DONTWAIT));
        }
        let (fd, len) = (self.fd.as_raw_fd(), into.len());
        // SAFETY: the call writes at most `len` bytes, which are writable, as the caller of the
        // view's constructor guarantees.
        let got = unsafe { libc::recv(fd, into.as_mut_ptr().cast(), len, libc::MSG_DONTWAIT) };
        self.outcome_of(got)
    }

    /// Receives the available data into the parts, in order. Zero bytes mean that the peer has
    /// closed the connection, or that the parts have no room.
    ///
    /// # Errors
    /// The error of the system; `WouldBlock` if no data is available.
    pub fn receive_parts<const N: usize>(&self, parts: [Dst<'_>; N]) -> io::Result<usize> {
        if self.encryption.get().is_some() {
            return self.receive_parts_singly(&parts);
        }
        let mut vector = parts
            .map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
        // SAFETY: all zero bytes are a message without address, parts and control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = vector.as_mut_ptr();
        message.msg_iovlen = N;
        let (fd, flags) = (self.fd.as_raw_fd(), libc::MSG_DONTWAIT);
        // SAFETY: the call writes at most the length of each part, which is writable, as the
        // caller of the view's constructor guarantees.
        let got = unsafe { libc::recvmsg(fd, &raw mut message, flags) };
        self.outcome_of(got)
    }

    fn receive_parts_singly(&self, parts: &[Dst<'_>]) -> io::Result<usize> {
        let mut got = 0;
        for part in parts {
            match self.receive_into(*part) {
                Ok(count) => got += count,
                // The next call gets the error again.
                Err(_) if got > 0 => break,
                Err(cause) => return Err(cause),
            }
            if got < part.len() {
                break;
            }
        }
        Ok(got)
    }

    /// Returns the maximum number of sent bytes that the other host has not acknowledged. Returns 0
    /// if the system does not know it.
    pub fn unacknowledged(&self) -> usize {
        #[cfg(test)]
        if self.was_aborted.load(Ordering::Acquire) {
            return usize::MAX;
        }
        let waiting = tcp_state::unacknowledged(self.fd.as_fd());
        let Some(encryption) = self.encryption.get() else { return waiting };
        match waiting + encryption.unsent() {
            0 => 0,
            // The receiver can use no part of a record, and it may have got a part.
            waiting => waiting + MAX_TEXT_BYTES,
        }
    }

    /// Returns true if the connection has data to send, all sent data was acknowledged, and the
    /// peer has no room for more: its program does not read. Returns false on a Linux before 5.4,
    /// which does not report the room.
    pub fn is_held_by_receiver(&self) -> bool {
        self.tcp_info().is_some_and(|info| info.is_held_by_receiver())
    }

    /// Returns what the system sends again. A receiver that does not read is no reason for that.
    /// Returns `None` on a Linux before 5.4, and for a Unix connection.
    pub fn retransmission(&self) -> Option<Retransmission> {
        self.tcp_info().map(|info| info.retransmission())
    }

    /// Returns true if a call has reported that the peer has reset the connection without ending it
    /// before. The system reports this to one call only, and then the end of the stream.
    pub fn was_reset(&self) -> bool {
        self.was_reset.load(Ordering::Acquire)
    }

    /// Returns the outcome of a system call that has returned this count, or -1.
    fn outcome_of(&self, count: isize) -> io::Result<usize> {
        usize::try_from(count).map_err(|_| {
            let cause = io::Error::last_os_error();
            if cause.kind() == io::ErrorKind::ConnectionReset {
                self.was_reset.store(true, Ordering::Release);
            }
            cause
        })
    }

    fn tcp_info(&self) -> Option<TcpInfo> {
        TcpInfo::of(self.fd.as_fd())
    }

    /// Sends the record by which an encrypted stream ends in order, and the bytes before it,
    /// without waiting. Returns false if the socket buffer has no room: the caller may wait and
    /// call again.
    pub fn try_send_end(&self) -> bool {
        self.encryption.get().is_none_or(|encryption| {
            // On a broken connection there is nothing to wait for.
            encryption.send_end(|bytes| self.send_raw(bytes)).unwrap_or(true)
        })
    }

    /// Checks the end of a connection that the system reports as ended by the peer. An encrypted
    /// stream has ended in order only if the peer has sealed the end, or if unread bytes precede
    /// it.
    ///
    /// # Errors
    /// `ConnectionAborted` if the connection was cut; `InvalidData` if it carried wrong bytes.
    pub fn check_end(&self) -> io::Result<()> {
        let Some(encryption) = self.encryption.get() else { return Ok(()) };
        match encryption.classify_end(|space| self.receive_raw(space, libc::MSG_DONTWAIT)) {
            StreamEnd::Orderly => Ok(()),
            StreamEnd::Failed(error) => Err(error.into()),
        }
    }

    /// Sends the remaining data and then the end of the stream (FIN). Data from the peer can still
    /// be received. If the buffer of the socket is full, an encrypted stream ends without the
    /// record of an orderly end ([`SocketStream::try_send_end`]).
    pub fn shutdown_write(&self) {
        self.try_send_end();
        // Fails only if the connection has already ended.
        drop(socket2::SockRef::from(self).shutdown(std::net::Shutdown::Write));
    }

    /// If `reset` is true, the kernel resets the connection when this process closes it or dies.
    /// The peer can then distinguish such an end from [`SocketStream::shutdown_write`].
    ///
    /// # Errors
    /// The error of the system.
    pub fn set_reset_on_close(&self, reset: bool) -> io::Result<()> {
        socket2::SockRef::from(self).set_linger(reset.then_some(Duration::ZERO))
    }

    /// Sends the end of the stream, and lets the system deliver all bytes before it, even after
    /// [`SocketStream::set_reset_on_close`].
    pub fn close_gracefully(&self) {
        self.shutdown_write();
        // If this call fails, the system drops the bytes that are not sent yet. There is no other
        // remedy.
        drop(self.set_reset_on_close(false));
    }

    /// If the connection is set to be reset ([`SocketStream::set_reset_on_close`]), resets it
    /// immediately, as the death of the process would.
    #[cfg(test)]
    pub(crate) fn reset(&self) {
        self.was_aborted.store(true, Ordering::Release);
        let unspecified = libc::sockaddr {
            sa_family: u16::try_from(libc::AF_UNSPEC).unwrap_or_default(),
            sa_data: [0; 14],
        };
        let len = libc::socklen_t::try_from(size_of_val(&unspecified)).unwrap_or_default();
        // SAFETY: the call reads one structure, which is on this stack.
        unsafe { libc::connect(self.fd.as_raw_fd(), &raw const unspecified, len) };
    }

    /// Returns the pending error of the connection, if there is one. The system reports each error
    /// only once.
    pub fn take_error(&self) -> Option<io::Error> {
        socket2::SockRef::from(self).take_error().unwrap_or_else(Some)
    }

    /// Sends the bytes for which the socket buffer has room, and returns their number.
    ///
    /// # Errors
    /// The error of the system; `WouldBlock` if there is no room.
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.encryption.get() {
            Some(encryption) => self.send_encrypted(encryption, &[Src::from(bytes)]),
            None => self.send_raw(bytes),
        }
    }

    fn send_raw(&self, bytes: &[u8]) -> io::Result<usize> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the call reads `bytes.len()` bytes of the slice.
        let sent =
            unsafe { libc::send(self.fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
        self.outcome_of(sent)
    }

    /// Receives the available data. Zero bytes mean that the peer has closed the connection.
    ///
    /// # Errors
    /// The error of the system; `WouldBlock` if no data is available.
    pub fn receive(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self.encryption.get() {
            Some(_) => self.receive_into(Dst::from(bytes)),
            None => self.receive_raw(bytes, libc::MSG_DONTWAIT),
        }
    }

    /// Like [`SocketStream::receive`], but waits for data for at most [`RECEIVE_TIMEOUT`].
    ///
    /// # Errors
    /// The error of the system; `WouldBlock` if no data has arrived.
    pub fn receive_blocking(&self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.encryption.get().is_none() {
            return self.receive_raw(bytes, 0);
        }
        match self.receive(bytes) {
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {
                // Wait without a lock. The receive after the wait reads the bytes.
                self.receive_raw(&mut [0], libc::MSG_PEEK)?;
                self.receive(bytes)
            }
            outcome => outcome,
        }
    }

    /// Returns true while the peer has neither closed the connection nor sent unread data.
    pub fn is_open_and_silent(&self) -> bool {
        let is_silent = self.encryption.get().is_none_or(|encryption| encryption.is_silent());
        let outcome = self.receive_raw(&mut [0], libc::MSG_DONTWAIT | libc::MSG_PEEK);
        is_silent && outcome.is_err_and(|cause| cause.kind() == io::ErrorKind::WouldBlock)
    }

    fn receive_raw(&self, bytes: &mut [u8], flags: libc::c_int) -> io::Result<usize> {
        let (fd, len) = (self.fd.as_raw_fd(), bytes.len());
        // SAFETY: the call writes at most `len` bytes to the slice.
        let got = unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), len, flags) };
        self.outcome_of(got)
    }
}

/// Returns true if this error of a call on a non-blocking socket is temporary, so that the caller
/// only has to repeat the call later.
pub fn is_transient(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

impl AsFd for SocketStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::unix;

    #[test]
    fn parts_are_sent_in_order_until_the_socket_is_full() {
        let (a, b) = unix::pair().unwrap();
        let (a, b) = (SocketStream::from_unix(a).unwrap(), SocketStream::from_unix(b).unwrap());
        let bytes: Vec<u8> = (0..40).collect();
        let parts: Vec<Src<'_>> = bytes.chunks(1).map(Src::from).collect();
        assert_eq!(a.send_parts(&parts).unwrap(), 40);
        let mut got = [0; 64];
        let mut filled = 0;
        while filled < 40 {
            filled += b.receive_into(Dst::from(&mut got[filled..])).unwrap();
        }
        assert_eq!(got[..40], bytes);
        let much = vec![7; 16 << 20];
        assert!(a.send_parts(&[Src::empty(), Src::from(much.as_slice())]).unwrap() < much.len());
        a.shutdown_write();
        while b.receive_into(Dst::from(&mut got[..])).unwrap() > 0 {}
    }

    #[test]
    fn receiver_that_does_not_read_holds_the_stream() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let a = SocketStream::from_tcp(a).unwrap();
        let b = SocketStream::from_tcp(listener.accept().unwrap().0).unwrap();
        assert!(!a.is_held_by_receiver(), "nothing is sent");
        let mut much = vec![7; 1 << 20];
        let limit = std::time::Instant::now() + Duration::from_secs(10);
        // The kernel may enlarge the buffers for some time.
        while !a.is_held_by_receiver() {
            drop(a.send_parts(&[Src::from(much.as_slice())]));
            assert!(std::time::Instant::now() < limit);
        }
        while a.is_held_by_receiver() {
            drop(b.receive_into(Dst::from(much.as_mut_slice())));
            assert!(std::time::Instant::now() < limit);
        }
        let (c, _d) = unix::pair().unwrap();
        assert!(!SocketStream::from_unix(c).unwrap().is_held_by_receiver());
    }

    #[test]
    fn socket_pair_sends_receives_and_reports_end() {
        let (a, b) = unix::pair().unwrap();
        let (a, b) = (SocketStream::from_unix(a).unwrap(), SocketStream::from_unix(b).unwrap());
        let mut bytes = [0; 8];
        assert_eq!(a.receive(&mut bytes).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(a.is_open_and_silent());
        assert_eq!(b.send(b"hi").unwrap(), 2);
        assert!(!a.is_open_and_silent());
        assert_eq!(a.receive_blocking(&mut bytes).unwrap(), 2);
        drop(b);
        assert!(!a.is_open_and_silent());
        assert_eq!(a.receive_blocking(&mut bytes).unwrap(), 0);
        assert_eq!(a.send(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
