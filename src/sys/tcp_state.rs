//! The state of TCP connections, as the kernel shows it.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// The length of the kernel's `struct tcp_info` up to `tcpi_snd_wnd`, in words of 32 bits. The
/// structure of the crate `libc` ends before that.
const INFO_WORDS: usize = 58;
/// The word with four states of a byte each (on a little-endian processor). The third one is
/// `tcpi_retransmits`.
const WORD_STATES: usize = 0;
/// The word with `tcpi_snd_mss`: the size of the segments, in bytes.
const WORD_SEGMENT: usize = 4;
/// The word with `tcpi_unacked`: the number of segments in flight.
const WORD_UNACKED: usize = 6;
/// The low word of `tcpi_bytes_acked`, on a little-endian processor.
const WORD_ACKNOWLEDGED: usize = 30;
/// The word with `tcpi_notsent_bytes`.
const WORD_NOT_SENT: usize = 36;
/// The word with `tcpi_snd_wnd`: the room at the peer, in bytes.
const WORD_SEND_WINDOW: usize = 57;

/// The addresses of both ends of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionEnds {
    own: SocketAddr,
    peer: SocketAddr,
}

impl ConnectionEnds {
    /// Returns the ends of a connection, if it is established.
    pub(super) fn of(stream: &TcpStream) -> Option<Self> {
        let (own, peer) = (stream.local_addr().ok()?, stream.peer_addr().ok()?);
        Some(Self { own, peer })
    }

    /// Returns true if both ends are on one host, so that no router or firewall is between them.
    pub fn are_on_one_host(&self) -> bool {
        self.own.ip() == self.peer.ip()
    }
}

impl std::fmt::Display for ConnectionEnds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { own, peer } = self;
        write!(f, "{own} (here) - {peer}")
    }
}

/// The number of unanswered repetitions or probes from which on a connection may carry no data.
const SILENT_REPETITIONS: u8 = 3;
/// The number of doublings of the time between two probes from which on one unanswered probe is
/// enough: the next one follows only after more than 3 s.
const SILENT_BACKOFF: u8 = 4;

/// What the system has sent without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retransmission {
    /// How often the oldest unacknowledged bytes were sent again.
    count: u8,
    /// How often the system has asked for room without an answer, because the receiver has none.
    probes: u8,
    /// How often the time until the next repetition or probe was doubled.
    backoff: u8,
    /// The low bits of the number of acknowledged bytes, which show progress.
    pub acknowledged: u32,
}

impl Retransmission {
    /// Returns how often the system has sent something without an answer.
    pub fn unanswered(self) -> u8 {
        self.count.max(self.probes)
    }

    /// Returns true if the other end has not answered for so long that the connection may carry no
    /// data any more. A receiver that does not read answers.
    pub fn is_silent(self) -> bool {
        self.unanswered() >= SILENT_REPETITIONS || self.probes > 0 && self.backoff >= SILENT_BACKOFF
    }
}

/// What the kernel says about a connection (`struct tcp_info`).
#[derive(Debug)]
pub(super) struct TcpInfo([u32; INFO_WORDS]);

impl TcpInfo {
    /// Returns the information about a connection. Returns `None` on a Linux before 5.4, which does
    /// not report all of it, and for a socket of another kind.
    pub(super) fn of(fd: BorrowedFd<'_>) -> Option<Self> {
        let mut info = [0_u32; INFO_WORDS];
        let mut len = libc::socklen_t::try_from(size_of_val(&info)).ok()?;
        // SAFETY: the option writes at most `len` bytes, the size of the array.
        let status = unsafe {
            libc::getsockopt(
                fd.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        let is_complete = usize::try_from(len).is_ok_and(|len| len == size_of_val(&info));
        (status == 0 && is_complete).then_some(Self(info))
    }

    /// Returns true if there is data to send, all sent data was acknowledged, and the peer has no
    /// room.
    pub(super) fn is_held_by_receiver(&self) -> bool {
        let Self(info) = self;
        info[WORD_UNACKED] == 0
            && info[WORD_NOT_SENT] > 0
            && info[WORD_SEND_WINDOW] < info[WORD_SEGMENT].max(1)
    }

    pub(super) fn retransmission(&self) -> Retransmission {
        let [_, _, count, probes] = self.0[WORD_STATES].to_le_bytes();
        let [backoff, ..] = self.0[WORD_STATES + 1].to_le_bytes();
        Retransmission { count, probes, backoff, acknowledged: self.0[WORD_ACKNOWLEDGED] }
    }
}

/// Returns the number of bytes that the socket has taken and the other host has not acknowledged;
/// for a Unix socket, at least the number of bytes that were not read. Returns 0 if the kernel does
/// not know it.
pub(super) fn unacknowledged(fd: BorrowedFd<'_>) -> usize {
    let mut waiting: libc::c_int = 0;
    // SAFETY: the call writes one `c_int`.
    let status = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut waiting) };
    if status == 0 { usize::try_from(waiting).unwrap_or(0) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::stream::SocketStream;
    use std::io::Write as _;
    use std::net::TcpListener;
    use std::os::fd::AsFd as _;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let first = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (first, listener.accept().unwrap().0)
    }

    #[test]
    fn reset_is_no_orderly_end() {
        for (is_reset, ends_before) in [(false, false), (true, false), (true, true)] {
            let (first, second) = pair();
            let [first, second] = [first, second].map(|end| SocketStream::from_tcp(end).unwrap());
            first.send(b"unread").unwrap();
            if ends_before || !is_reset {
                second.shutdown_write();
            }
            second.set_reset_on_close(is_reset).unwrap();
            drop(second);
            let error = first.receive_blocking(&mut [0]).err();
            assert_eq!(error.is_some(), is_reset && !ends_before);
            // The error was reported, so now the stream has ended.
            assert_eq!(first.receive_blocking(&mut [0]).unwrap(), 0);
            assert_eq!(first.was_reset(), is_reset && !ends_before);
        }
    }

    #[test]
    fn unacknowledged_bytes_are_counted() {
        let (mut first, second) = pair();
        first.set_nonblocking(true).unwrap();
        assert_eq!(unacknowledged(first.as_fd()), 0);
        let mut sent = 0;
        while let Ok(count) = first.write(&[0; 1 << 16]) {
            sent += count;
        }
        let waiting = unacknowledged(first.as_fd());
        assert!(waiting > 0 && waiting <= sent, "{waiting} of {sent}");
        let info = TcpInfo::of(first.as_fd()).unwrap();
        assert_eq!(info.retransmission().count, 0);
        drop(second);
    }

    #[test]
    fn ends_are_shown_with_their_ports() {
        let (first, second) = pair();
        let ends = ConnectionEnds::of(&first).unwrap();
        let text =
            format!("{} (here) - {}", first.local_addr().unwrap(), second.local_addr().unwrap());
        assert_eq!(ends.to_string(), text);
        assert!(ends.are_on_one_host());
    }

    #[test]
    fn silence_is_told_from_a_receiver_that_does_not_read() {
        let seen =
            |count, probes, backoff| Retransmission { count, probes, backoff, acknowledged: 0 };
        // Its host answers each probe, so none is unanswered for long.
        assert!(!seen(0, 0, 9).is_silent() && !seen(0, 1, 3).is_silent());
        assert!(!seen(2, 0, 2).is_silent());
        assert!(seen(3, 0, 3).is_silent() && seen(0, 3, 3).is_silent());
        assert!(seen(0, 1, 4).is_silent());
        assert_eq!(seen(0, 2, 4).unanswered(), 2);
    }
}
