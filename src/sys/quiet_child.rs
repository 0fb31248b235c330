//! [`QuietChild`]: a child process that runs one function of the library, and that the program does
//! not notice.
//!
//! The child differs from a child that `fork` creates:
//!
//! * No fork handler of the program runs, in neither process.
//! * The program gets no SIGCHLD when the child ends, and its calls of `wait` do not reap it.
//! * The child has only the descriptors that its function needs. It unmaps the large mappings of
//!   this process, so it keeps none of the program's memory.
//! * Each signal has its default action in the child. The child stays in the process group of this
//!   process, so a launcher or a terminal that ends the group also ends the child.
//!
//! The child keeps the memory mappings below [`MIN_UNMAPPED_BYTES`], and those above the number
//! [`MAX_RANGES`]. It is created by the system call `clone`, without an exec.

use super::pidfd::PidFd;
use crate::base::error::{Error, Result};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};

/// The smallest mapping that the child unmaps.
const MIN_UNMAPPED_BYTES: usize = 1 << 20;
/// The most mappings that the child unmaps.
const MAX_RANGES: usize = 256;
/// The number of the last signal.
const LAST_SIGNAL: i32 = 64;
/// Linux before 5.9 has no `close_range`. The system allocates the lowest free descriptors, so
/// descriptors above this limit are rare.
const MAX_CLOSED_SINGLY: RawFd = 4096;

/// A child process. The caller must end and reap it.
#[derive(Debug)]
pub struct QuietChild {
    pid: i32,
}

impl QuietChild {
    /// Starts the child, which runs `body(task)` and exits with the status that `body` returns.
    /// `keep` are the descriptors that stay open in the child.
    ///
    /// # Errors
    /// `System`.
    ///
    /// # Safety
    /// `body` may only call async-signal-safe functions, because other threads may hold any lock at
    /// the time of the clone. It may read no memory except `task` and its stack, because the large
    /// mappings do not exist in the child. `task` must have no pointer to other memory.
    pub unsafe fn start<T: Copy>(
        task: &T,
        keep: &[BorrowedFd<'_>],
        body: fn(&T) -> i32,
    ) -> Result<Self> {
        let task = *task;
        let mut kept: Vec<RawFd> = keep.iter().map(|fd| fd.as_raw_fd()).collect();
        kept.sort_unstable();
        let unneeded = UnneededMemory::of_this_process()?;
        // No handler of the program may run in the child.
        let mask = block_all_signals();
        // SAFETY: without flags the call copies this process, as `fork` does. The child uses only
        // its copies of the values on this stack.
        let pid = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
        if pid == 0 {
            // The list is in a mapping that the child may unmap, so this call comes first.
            close_all_except(&kept);
            unneeded.unmap();
            let status = become_ordinary().map_or(1, |()| body(&task));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(status) };
        }
        let cause = io::Error::last_os_error();
        restore_signals(&mask);
        match i32::try_from(pid) {
            Ok(pid) if pid > 0 => Ok(Self { pid }),
            _ => Err(Error::system("clone", cause)),
        }
    }

    /// Returns the process ID.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns a descriptor that becomes readable when the child ends.
    ///
    /// # Errors
    /// `System`.
    pub fn pidfd(&self) -> Result<PidFd> {
        PidFd::open(self.pid)
    }

    /// Kills the child, which the caller has not reaped yet.
    pub fn kill(&self) {
        // SAFETY: the call touches no memory. The ID belongs to the child until it is reaped.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
    }

    /// Reaps the child if it has ended. Does not wait.
    pub fn reap(&self) -> bool {
        let mut status = 0;
        let options = libc::WNOHANG | libc::__WALL;
        // SAFETY: the call writes the status, which is on this stack.
        unsafe { libc::waitpid(self.pid, &raw mut status, options) == self.pid }
    }
}

/// Opens the calling process for a child that must see its end.
///
/// # Errors
/// `System`.
pub fn own_pidfd() -> Result<PidFd> {
    PidFd::open(i32::try_from(std::process::id()).unwrap_or(0))
}

/// The large mappings of this process that a child without allocations does not need.
#[derive(Clone, Copy)]
struct UnneededMemory {
    /// The start and the length of each mapping.
    ranges: [(usize, usize); MAX_RANGES],
    count: usize,
}

impl UnneededMemory {
    /// Finds the mappings, the largest first.
    ///
    /// # Errors
    /// `System`.
    fn of_this_process() -> Result<Self> {
        let text = std::fs::read_to_string("/proc/self/maps")
            .map_err(|cause| Error::system("reading the list of mappings", cause))?;
        let on_stack = 0_u8;
        // SAFETY: the call returns the address of this thread's `errno`.
        let errno = unsafe { libc::__errno_location() };
        // The child needs its stack, and the thread-local storage with `errno`.
        let needed = [(&raw const on_stack).addr(), errno.addr()];
        let mut found = unneeded_ranges(&text);
        found.retain(|&(start, len)| !needed.iter().any(|at| (start..start + len).contains(at)));
        found.sort_unstable_by_key(|&(_, len)| std::cmp::Reverse(len));
        found.truncate(MAX_RANGES);
        let mut ranges = [(0, 0); MAX_RANGES];
        ranges[..found.len()].copy_from_slice(&found);
        Ok(Self { ranges, count: found.len() })
    }

    /// Unmaps the mappings, in the child only. Async-signal-safe.
    fn unmap(&self) {
        for &(start, len) in &self.ranges[..self.count] {
            let start = std::ptr::with_exposed_provenance_mut(start);
            // SAFETY: nothing in the child uses the range: it has neither the code, nor the stack,
            // nor the thread-local storage of the only thread of the child.
            unsafe { libc::munmap(start, len) };
        }
    }
}

/// Returns the start and the length of each large mapping of memory that belongs to no file on a
/// disk. `maps` is the content of `/proc/self/maps`. A mapping that directly follows one of a file
/// may have the static variables of a library, so it is left out.
fn unneeded_ranges(maps: &str) -> Vec<(usize, usize)> {
    let mut ranges = Vec::new();
    let mut end_of_file_mapping = 0;
    for (start, end, path) in maps.lines().filter_map(parse_mapping) {
        let is_memory = path.is_empty()
            || path == "[heap]"
            || ["[anon", "/memfd:", "/dev/shm/", "/dev/zero", "/SYSV"]
                .iter()
                .any(|prefix| path.starts_with(prefix));
        if is_memory && start != end_of_file_mapping && end - start >= MIN_UNMAPPED_BYTES {
            ranges.push((start, end - start));
        }
        if !is_memory {
            end_of_file_mapping = end;
        }
    }
    ranges
}

/// Parses a line of `/proc/self/maps`: the start, the end and the path of a mapping.
fn parse_mapping(line: &str) -> Option<(usize, usize, &str)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let (start, end) = (address(start)?, address(end)?);
    (start <= end).then(|| (start, end, fields.nth(4).unwrap_or_default()))
}

/// Blocks all signals of the calling thread, and returns its mask before.
fn block_all_signals() -> libc::sigset_t {
    // SAFETY: sigset_t is a plain array of integers, for which zero is the empty set.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: the call fills the set.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: the call reads the first set and writes the second one.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    before
}

fn restore_signals(mask: &libc::sigset_t) {
    // SAFETY: the call reads the set; a null third argument means that no old mask is returned.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const *mask, std::ptr::null_mut()) };
}

/// Gives each signal its default action, and lets the child receive all signals. Returns `None` if
/// the mask cannot be changed. Async-signal-safe.
fn become_ordinary() -> Option<()> {
    // SAFETY: all bytes zero are the default action with an empty mask and no flags.
    let default: libc::sigaction = unsafe { std::mem::zeroed() };
    for signal in 1..=LAST_SIGNAL {
        // SAFETY: the call installs no handler. It fails for numbers that the system reserves.
        unsafe { libc::sigaction(signal, &raw const default, std::ptr::null_mut()) };
    }
    // SAFETY: as in `block_all_signals`.
    let mut none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the call empties the set.
    unsafe { libc::sigemptyset(&raw mut none) };
    // SAFETY: as in `restore_signals`.
    let status =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) };
    (status == 0).then_some(())
}

/// Closes all descriptors except these, which are in ascending order. Async-signal-safe.
fn close_all_except(kept: &[RawFd]) {
    let mut first = 0;
    for &fd in kept {
        close_range(first, fd - 1);
        first = fd + 1;
    }
    close_range(first, RawFd::MAX);
}

fn close_range(first: RawFd, last: RawFd) {
    if last < first {
        return;
    }
    // SAFETY: the child gives up the descriptors.
    if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } != 0 {
        for fd in first..=last.min(MAX_CLOSED_SINGLY) {
            // SAFETY: as above.
            unsafe { libc::close(fd) };
        }
    }
}

/// A connection that [`accept_and_send`] has accepted, in the child.
pub type AcceptedFd = RawFd;

/// One descriptor of [`poll_raw`], with the events after the call.
pub type PollEntry = libc::pollfd;

/// Returns an entry that waits until the descriptor is readable or has ended. A negative descriptor
/// is skipped.
pub fn poll_entry(fd: RawFd) -> PollEntry {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Waits for one of the entries, or until the time has passed; a negative time is no limit. Returns
/// false if the system cannot wait. Async-signal-safe.
pub fn poll_raw(entries: &mut [PollEntry], timeout_ms: i32) -> bool {
    let count = libc::nfds_t::try_from(entries.len()).unwrap_or_default();
    // SAFETY: the call reads and writes the entries.
    if unsafe { libc::poll(entries.as_mut_ptr(), count, timeout_ms) } >= 0 {
        return true;
    }
    entries.iter_mut().for_each(|entry| entry.revents = 0);
    io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
}

/// Reads into the buffer without waiting. Returns `None` after an error, for example if nothing has
/// arrived. Async-signal-safe.
pub fn read_raw(fd: RawFd, bytes: &mut [u8]) -> Option<usize> {
    // SAFETY: the call writes at most the length of the buffer.
    let got = unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len()) };
    usize::try_from(got).ok()
}

/// Accepts a connection without waiting, and sends these few bytes. Returns a negative number if
/// there is no connection. Async-signal-safe.
pub fn accept_and_send(listener: RawFd, bytes: &[u8]) -> AcceptedFd {
    let (null, flags) = (std::ptr::null_mut(), libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    // SAFETY: null pointers request no address of the peer.
    let accepted = unsafe { libc::accept4(listener, null, std::ptr::null_mut(), flags) };
    if accepted >= 0 {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the call reads the bytes. A new connection has room for them; if it has ended,
        // the bytes are of no use.
        unsafe { libc::send(accepted, bytes.as_ptr().cast(), bytes.len(), flags) };
    }
    accepted
}

/// Closes a connection of [`accept_and_send`]. Async-signal-safe.
pub fn close_accepted(fd: AcceptedFd) {
    // SAFETY: the descriptor came from `accept4`, and the caller uses it no more.
    unsafe { libc::close(fd) };
}

/// Returns the monotonic clock in milliseconds. Async-signal-safe.
pub fn clock_ms() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes the structure, which is on this stack.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec * 1000 + time.tv_nsec / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsFd as _;

    #[test]
    fn large_memory_without_a_file_is_unneeded() {
        let maps = "\
00400000-00600000 r-xp 00000000 08:01 7                                  /usr/bin/program
00600000-00900000 rw-p 00000000 00:00 0
01000000-01800000 rw-p 00000000 00:00 0                                  [heap]
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
7f0000400000-7f0000401000 rw-p 00000000 00:00 0
7f0000500000-7f0000900000 rw-s 00000000 00:01 9                          /memfd:x (deleted)
7f0001000000-7f0002000000 r--p 00000000 08:01 8                          /data/file
7ffe00000000-7ffe00200000 rw-p 00000000 00:00 0                          [stack]
";
        let expected = [
            (0x0100_0000, 0x80_0000),
            (0x7f00_0000_0000, 0x40_0000),
            (0x7f00_0050_0000, 0x40_0000),
        ];
        assert_eq!(unneeded_ranges(maps), expected);
        assert_eq!(unneeded_ranges("nonsense\n5-3 rw-p"), []);
    }

    /// Copies some bytes from the first descriptor to the second one.
    fn copy_bytes(task: &(RawFd, RawFd)) -> i32 {
        let mut bytes = [0; 64];
        let Some(got) = read_raw(task.0, &mut bytes) else { return 2 };
        // SAFETY: the call reads the bytes.
        let put = unsafe { libc::write(task.1, bytes.as_ptr().cast(), got) };
        i32::from(put < 0)
    }

    #[test]
    fn child_gives_back_memory_and_descriptors() {
        let large = vec![1_u8; 64 << 20];
        let (mut reader, writer) = io::pipe().unwrap();
        let (other_reader, other_writer) = io::pipe().unwrap();
        let task = (other_reader.as_fd().as_raw_fd(), writer.as_fd().as_raw_fd());
        let keep = [other_reader.as_fd(), writer.as_fd()];
        // SAFETY: the body makes only async-signal-safe calls.
        let child = unsafe { QuietChild::start(&task, &keep, copy_bytes) }.unwrap();
        let folder = format!("/proc/{}", child.pid());
        let resident_kib = || -> u64 {
            let text = std::fs::read_to_string(format!("{folder}/status")).unwrap();
            let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
            line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
        };
        let descriptors = || std::fs::read_dir(format!("{folder}/fd")).unwrap().count();
        let limit = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while resident_kib() > 32 << 10 || descriptors() > 2 {
            assert!(std::time::Instant::now() < limit, "{} KiB", resident_kib());
            std::thread::yield_now();
        }
        assert!(!child.reap(), "the child waits for the pipe");
        drop((other_reader, writer));
        (&other_writer).write_all(b"end").unwrap();
        drop(other_writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "end");
        // SAFETY: the program's way to wait for any child does not return a quiet child.
        let any = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
        assert_ne!(any, child.pid());
        while !child.reap() {
            assert!(std::time::Instant::now() < limit);
            std::thread::yield_now();
        }
        assert_eq!(large.len(), 64 << 20);
    }
}
