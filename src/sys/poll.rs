//! Waits until a descriptor is readable or writable.
//!
//! | item | watches |
//! |---|---|
//! | [`wait_ready`] | one descriptor, with a deadline |
//! | [`Poller`] | many descriptors that stay registered between waits (epoll) |
//! | [`PollSet`] | many descriptors that the caller adds again for each wait (ppoll) |

use super::descriptor;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The events that a descriptor is watched for. Errors and hang-ups are always reported, as both
/// readable and writable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Watch for data, a connection, or the end of the stream.
    pub read: bool,
    /// Watch for room to send, or the end of a connect.
    pub write: bool,
}

impl Interest {
    /// Watches for reading only.
    pub const READ: Self = Self { read: true, write: false };
    /// Watches for writing only.
    pub const WRITE: Self = Self { read: false, write: true };
}

/// Waits until `fd` is ready. Polls at least once, even if the deadline has passed. Returns false
/// if the deadline passed.
///
/// # Errors
/// The error of the system.
pub fn wait_ready(fd: BorrowedFd<'_>, interest: Interest, deadline: &Deadline) -> io::Result<bool> {
    let mut events = 0;
    if interest.read {
        events |= libc::POLLIN;
    }
    if interest.write {
        events |= libc::POLLOUT;
    }
    loop {
        let left = deadline.remaining();
        let mut watched = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
        // SAFETY: the call reads and writes one structure, which is on this stack.
        let ready = unsafe { libc::poll(&raw mut watched, 1, timeout_ms(left)) };
        if ready > 0 {
            return Ok(true);
        }
        if ready < 0 {
            let cause = io::Error::last_os_error();
            if cause.kind() != io::ErrorKind::Interrupted {
                return Err(cause);
            }
        } else if deadline.has_passed() {
            return Ok(false);
        }
    }
}

/// Returns true if the descriptor will never be ready again, for example a listening socket that
/// was shut down.
pub fn has_hung_up(fd: BorrowedFd<'_>) -> bool {
    let mut watched = libc::pollfd { fd: fd.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: the call reads and writes one structure, which is on this stack; it does not wait.
    let ready = unsafe { libc::poll(&raw mut watched, 1, 0) };
    ready > 0 && watched.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0
}

/// Returns true if a read from the descriptor would not wait. Does not wait itself.
pub fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut watched = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the call reads and writes one structure, which is on this stack; it does not wait.
    let ready = unsafe { libc::poll(&raw mut watched, 1, 0) };
    ready > 0 && watched.revents & libc::POLLIN != 0
}

/// Converts a time to the milliseconds of a system call. Rounds up, so that a wait never ends
/// early. The maximum is about 24 days.
fn timeout_ms(time: Duration) -> libc::c_int {
    let up = time.as_nanos().div_ceil(1_000_000);
    libc::c_int::try_from(up).unwrap_or(libc::c_int::MAX)
}

/// Watches many descriptors. The caller adds each descriptor with a token, by which the events name
/// the descriptor.
#[derive(Debug)]
pub struct Poller {
    fd: OwnedFd,
}

/// The readiness of one watched descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollEvent {
    /// The token that the descriptor was added with.
    pub token: u64,
    /// A read does not block.
    pub readable: bool,
    /// A write does not block.
    pub writable: bool,
}

/// The buffer for the events of one [`Poller::wait`].
pub struct PollEvents {
    buffer: Vec<libc::epoll_event>,
    filled: usize,
}

impl std::fmt::Debug for PollEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl PollEvents {
    /// Creates a buffer for `count` events per wait. The next wait reports the events that do not
    /// fit.
    pub fn with_capacity(count: u16) -> Self {
        let empty = libc::epoll_event { events: 0, u64: 0 };
        Self { buffer: vec![empty; usize::from(count.max(1))], filled: 0 }
    }

    /// Returns true if the last wait reported no event.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Returns the events of the last wait.
    pub fn iter(&self) -> impl Iterator<Item = PollEvent> + '_ {
        self.buffer[..self.filled].iter().map(|raw| {
            let (bits, token) = (raw.events, raw.u64);
            let broken = has_bits(bits, libc::EPOLLERR | libc::EPOLLHUP);
            PollEvent {
                token,
                readable: broken || has_bits(bits, libc::EPOLLIN | libc::EPOLLRDHUP),
                writable: broken || has_bits(bits, libc::EPOLLOUT),
            }
        })
    }
}

impl Poller {
    /// Creates a poller without descriptors.
    ///
    /// # Errors
    /// `System`.
    pub fn new() -> Result<Self> {
        // SAFETY: the call creates a new descriptor and touches no memory.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        let fd = descriptor::from_new(fd).map_err(|cause| Error::system("epoll_create1", cause))?;
        Ok(Self { fd })
    }

    /// Starts to watch a descriptor. Closing the descriptor ends the watch.
    ///
    /// # Errors
    /// The error of the system.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()> {
        self.epoll_ctl(libc::EPOLL_CTL_ADD, fd, token, epoll_bits(interest))
    }

    /// Starts to watch a descriptor edge-triggered: readiness is reported once, and again after
    /// further data arrives or further room becomes free.
    ///
    /// # Errors
    /// The error of the system.
    pub fn add_edge_triggered(
        &self,
        fd: BorrowedFd<'_>,
        token: u64,
        interest: Interest,
    ) -> io::Result<()> {
        let bits = epoll_bits(interest) | (libc::EPOLLET | libc::EPOLLRDHUP).cast_unsigned();
        self.epoll_ctl(libc::EPOLL_CTL_ADD, fd, token, bits)
    }

    /// Starts to watch a connection for its end only: the peer shut down its sending side, or the
    /// connection broke. Received data causes no event.
    ///
    /// # Errors
    /// The error of the system.
    pub fn add_hang_up(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        self.epoll_ctl(libc::EPOLL_CTL_ADD, fd, token, libc::EPOLLRDHUP.cast_unsigned())
    }

    /// Changes the events that a descriptor is watched for.
    ///
    /// # Errors
    /// The error of the system.
    pub fn change(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()> {
        self.epoll_ctl(libc::EPOLL_CTL_MOD, fd, token, epoll_bits(interest))
    }

    /// Stops watching a descriptor that stays open.
    ///
    /// # Errors
    /// The error of the system.
    pub fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.epoll_ctl(libc::EPOLL_CTL_DEL, fd, 0, 0)
    }

    /// Returns whether an event is ready, without taking it.
    pub fn has_events(&self) -> bool {
        let fd = self.fd.as_raw_fd();
        let mut watched = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: the call reads and writes one structure, which is on this stack; it does not
        // wait.
        unsafe { libc::poll(&raw mut watched, 1, 0) > 0 }
    }

    /// Collects the ready descriptors without waiting.
    ///
    /// # Errors
    /// The error of the system.
    #[allow(clippy::disallowed_methods, reason = "with no time to wait")]
    pub fn poll_now(&self, events: &mut PollEvents) -> io::Result<()> {
        self.wait(events, Some(Duration::ZERO))
    }

    /// Waits until a descriptor is ready or `limit` has passed. `None` means no limit, and is only
    /// for a thread that can be woken through one of the descriptors. A signal ends the wait early.
    ///
    /// # Errors
    /// The error of the system.
    pub fn wait(&self, events: &mut PollEvents, limit: Option<Duration>) -> io::Result<()> {
        events.filled = 0;
        let room = libc::c_int::try_from(events.buffer.len()).unwrap_or(libc::c_int::MAX);
        // SAFETY: the call writes at most `room` events to the vector, which has room for that
        // many.
        let got = unsafe {
            libc::epoll_wait(
                self.fd.as_raw_fd(),
                events.buffer.as_mut_ptr(),
                room,
                limit.map_or(-1, timeout_ms),
            )
        };
        match usize::try_from(got) {
            Ok(got) => {
                events.filled = got;
                Ok(())
            }
            Err(_) => match io::Error::last_os_error() {
                cause if cause.kind() == io::ErrorKind::Interrupted => Ok(()),
                cause => Err(cause),
            },
        }
    }

    fn epoll_ctl(
        &self,
        what: libc::c_int,
        fd: BorrowedFd<'_>,
        token: u64,
        bits: u32,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event { events: bits, u64: token };
        // SAFETY: the call reads one structure, which is on this stack.
        let status =
            unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), what, fd.as_raw_fd(), &raw mut event) };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A set of descriptors for one wait. The caller adds the descriptors again for each wait; the
/// memory is reused.
#[derive(Default)]
pub struct PollSet {
    entries: Vec<libc::pollfd>,
}

impl std::fmt::Debug for PollSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.entries.iter().map(|entry| entry.fd)).finish()
    }
}

impl PollSet {
    /// Removes all descriptors.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Adds a descriptor. The caller must keep it open until the wait has ended.
    pub fn push(&mut self, fd: BorrowedFd<'_>, interest: Interest) {
        let read = if interest.read { libc::POLLIN | libc::POLLRDHUP } else { libc::POLLRDHUP };
        let events = read | if interest.write { libc::POLLOUT } else { 0 };
        self.entries.push(libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 });
    }

    /// Returns true if the descriptor that was added first was ready at the end of the last wait.
    pub fn is_first_ready(&self) -> bool {
        self.entries.first().is_some_and(|entry| entry.revents != 0)
    }

    /// Sleeps until one of the descriptors is ready, the limit has passed, or a signal arrives.
    ///
    /// # Errors
    /// The error of the system.
    pub fn wait(&mut self, limit: Duration) -> io::Result<()> {
        let count = libc::nfds_t::try_from(self.entries.len()).unwrap_or(libc::nfds_t::MAX);
        let nanoseconds = libc::c_long::from(limit.subsec_nanos().cast_signed());
        let seconds = libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX);
        let limit = libc::timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let entries = self.entries.as_mut_ptr();
        // SAFETY: the call reads and writes `count` structures, which the vector has, and reads one
        // on this stack.
        let ready = unsafe { libc::ppoll(entries, count, &raw const limit, std::ptr::null()) };
        if ready >= 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            cause if cause.kind() == io::ErrorKind::Interrupted => Ok(()),
            cause => Err(cause),
        }
    }
}

fn epoll_bits(interest: Interest) -> u32 {
    let read = if interest.read { libc::EPOLLIN } else { 0 };
    let write = if interest.write { libc::EPOLLOUT } else { 0 };
    (read | write).cast_unsigned()
}

fn has_bits(bits: u32, wanted: libc::c_int) -> bool {
    bits & wanted.cast_unsigned() != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::unix;
    use std::io::Write as _;
    use std::os::fd::AsFd;

    #[test]
    fn wait_ends_with_bytes_or_deadline() {
        let (a, mut b) = unix::pair().unwrap();
        let soon = Deadline::after_ms(20);
        assert!(!wait_ready(a.as_fd(), Interest::READ, &soon).unwrap());
        assert!(soon.has_passed());
        assert!(wait_ready(a.as_fd(), Interest::WRITE, &soon).unwrap());
        b.write_all(b"x").unwrap();
        assert!(wait_ready(a.as_fd(), Interest::READ, &Deadline::never()).unwrap());
    }

    #[test]
    fn a_poller_reports_tokens_and_hang_ups() {
        let (a, mut b) = unix::pair().unwrap();
        let poller = Poller::new().unwrap();
        let mut events = PollEvents::with_capacity(4);
        poller.add(a.as_fd(), 77, Interest::READ).unwrap();
        poller.wait(&mut events, Some(Duration::ZERO)).unwrap();
        assert_eq!(events.iter().count(), 0);
        b.write_all(b"x").unwrap();
        poller.wait(&mut events, None).unwrap();
        let expected = PollEvent { token: 77, readable: true, writable: false };
        assert_eq!(events.iter().collect::<Vec<_>>(), [expected]);
        poller.change(a.as_fd(), 78, Interest::WRITE).unwrap();
        drop(b);
        poller.wait(&mut events, None).unwrap();
        let expected = PollEvent { token: 78, readable: true, writable: true };
        assert_eq!(events.iter().collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn edge_triggered_and_hang_up_events_are_reported_once() {
        let (a, mut b) = unix::pair().unwrap();
        let (changes, ends) = (Poller::new().unwrap(), Poller::new().unwrap());
        changes.add_edge_triggered(a.as_fd(), 1, Interest::READ).unwrap();
        ends.add_hang_up(a.as_fd(), 2).unwrap();
        let mut events = PollEvents::with_capacity(4);
        let mut tokens = |poller: &Poller| {
            poller.wait(&mut events, Some(Duration::ZERO)).unwrap();
            events.iter().map(|event| event.token).collect::<Vec<_>>()
        };
        for _ in 0..2 {
            b.write_all(b"x").unwrap();
            assert_eq!(tokens(&changes), [1]);
            assert!(tokens(&changes).is_empty() && tokens(&ends).is_empty());
        }
        drop(b);
        assert_eq!((tokens(&changes), tokens(&ends)), (vec![1], vec![2]));
    }

    #[test]
    fn poll_set_waits_for_any_descriptor() {
        let ((a, mut b), (c, d)) = (unix::pair().unwrap(), unix::pair().unwrap());
        let mut set = PollSet::default();
        set.push(a.as_fd(), Interest::READ);
        set.push(c.as_fd(), Interest::READ);
        let began = std::time::Instant::now();
        set.wait(Duration::from_millis(20)).unwrap();
        assert!(began.elapsed() >= Duration::from_millis(20));
        b.write_all(b"x").unwrap();
        set.wait(Duration::from_secs(60)).unwrap();
        assert!(set.is_first_ready());
        set.clear();
        set.push(c.as_fd(), Interest { read: false, write: false });
        drop(d);
        set.wait(Duration::from_secs(60)).unwrap();
        assert!(began.elapsed() < Duration::from_secs(50));
    }

    #[test]
    fn timeouts_round_up() {
        assert_eq!(timeout_ms(Duration::ZERO), 0);
        assert_eq!(timeout_ms(Duration::from_nanos(1)), 1);
        assert_eq!(timeout_ms(Duration::from_secs(1 << 40)), libc::c_int::MAX);
    }
}
