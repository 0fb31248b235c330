//! [`DeathWitness`]: a small process that reports the death of this process to other hosts.
//!
//! A refused connection does not prove a death, because a firewall refuses connections, too. The
//! witness therefore holds copies of the listening sockets of this process. While this process
//! lives, the witness does not use them. After the death it accepts the connections and answers
//! each with the same few bytes, the death certificate, for [`SERVICE_MS`]. Then it ends.
//!
//! The witness knows of the death by two descriptors: a pidfd, and a pipe whose other end only this
//! process has. If this process writes a byte to the pipe, the witness ends without an answer.
//!
//! The witness is a [`QuietChild`]: it allocates no memory, and it interprets no byte that it
//! receives. A connection that sends nothing takes one of [`MAX_CONNECTIONS`] places; the oldest
//! one is closed if there are more.

use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::sys::descriptor::above_standard_streams;
use crate::sys::fork_descriptors::ForkClosed;
use crate::sys::poll::Interest;
use crate::sys::quiet_child::{self, QuietChild, poll_entry};
use crate::sys::{child, host};
use crate::wait::io;
use std::io::PipeWriter;
use std::io::Write as _;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, RawFd};
use std::time::Duration;

/// The length of a death certificate in bytes.
pub const ANSWER_BYTES: usize = 17;
/// The most listening sockets for which a witness answers.
pub const MAX_LISTENERS: usize = 64;
/// The time in milliseconds for which the witness answers after the death. It is longer than the
/// default heartbeat limit and the default time that survivors wait for each other together.
pub const SERVICE_MS: i64 = 30_000;

/// The most connections that the witness has at once.
const MAX_CONNECTIONS: usize = 64;
/// The bytes of one read.
const READ_BYTES: usize = 256;
/// The time for which this process waits for the end of the witness, before it kills the witness.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);
/// The number in a place without a descriptor.
const NONE: RawFd = -1;

/// What the witness needs to know.
#[derive(Clone, Copy)]
struct WitnessTask {
    process: RawFd,
    pipe: RawFd,
    listeners: [RawFd; MAX_LISTENERS],
    listener_count: usize,
    answer: [u8; ANSWER_BYTES],
    /// The number of bytes that a client sends before it reads. The witness receives them before it
    /// closes the connection, since the system would otherwise reset it and drop the answer.
    request_bytes: usize,
}

/// The witness of this process. Dropping it ends the witness, so that no death is reported.
#[derive(Debug)]
pub struct DeathWitness {
    /// The process that started the witness. A forked child has a copy of this object.
    owner: u32,
    child: QuietChild,
    /// Dropped before the pipe is closed.
    _fork_closed: ForkClosed,
    pipe: PipeWriter,
}

impl DeathWitness {
    /// Starts the witness, which answers connections to these sockets after the death of this
    /// process.
    ///
    /// # Errors
    /// `InvalidArgument` for too many sockets. `System`, for example if the kernel is older than
    /// 5.3, or if no process can be created.
    pub fn start(
        listeners: &[BorrowedFd<'_>],
        answer: [u8; ANSWER_BYTES],
        request_bytes: usize,
    ) -> Result<Self> {
        if listeners.len() > MAX_LISTENERS {
            let message = format!("{} listening sockets are too many", listeners.len());
            return Err(Error::invalid(message));
        }
        let pipe = std::io::pipe().and_then(|(reader, writer)| {
            Ok((above_standard_streams(Ok(reader))?, above_standard_streams(Ok(writer))?))
        });
        let (reader, writer) =
            pipe.map_err(|cause| Error::system("a pipe for the death witness", cause))?;
        let fork_closed = ForkClosed::list(writer.as_fd());
        let process = quiet_child::own_pidfd()?;
        let mut task = WitnessTask {
            process: process.as_fd().as_raw_fd(),
            pipe: reader.as_raw_fd(),
            listeners: [NONE; MAX_LISTENERS],
            listener_count: listeners.len(),
            answer,
            request_bytes,
        };
        for (entry, listener) in task.listeners.iter_mut().zip(listeners) {
            *entry = listener.as_raw_fd();
        }
        let keep: Vec<BorrowedFd<'_>> =
            listeners.iter().copied().chain([process.as_fd(), reader.as_fd()]).collect();
        // SAFETY: `run_witness` and the functions that it calls are async-signal-safe, and use only
        // the task and their stack.
        let child = unsafe { QuietChild::start(&task, &keep, run_witness) }?;
        Ok(Self { owner: host::pid(), child, _fork_closed: fork_closed, pipe: writer })
    }
}

impl Drop for DeathWitness {
    fn drop(&mut self) {
        if self.owner != host::pid() {
            return;
        }
        // If the witness has ended, the write fails.
        drop(self.pipe.write(&[0]));
        let limit = Deadline::after(EXIT_TIMEOUT);
        let has_ended = self.child.pidfd().is_ok_and(|process| {
            io::ready_within(process.as_fd(), Interest::READ, &limit).unwrap_or(false)
        });
        if !has_ended {
            self.child.kill();
        }
        // A killed process ends at once, but the system may need a moment.
        while !self.child.reap() && !limit.has_passed() {
            std::thread::yield_now();
        }
    }
}

/// The main function of the witness.
fn run_witness(task: &WitnessTask) -> i32 {
    child::set_name(c"dist-witness");
    if await_death(task) {
        serve(task);
    }
    0
}

/// Waits for the death of the process. Returns false if the process dismisses the witness.
fn await_death(task: &WitnessTask) -> bool {
    loop {
        let mut entries = [poll_entry(task.pipe), poll_entry(task.process)];
        if !quiet_child::poll_raw(&mut entries, -1) {
            return false;
        }
        if entries[0].revents != 0 {
            // At the end of the pipe, the last thread of the process has closed its descriptors.
            return quiet_child::read_raw(task.pipe, &mut [0]) == Some(0);
        }
        if entries[1].revents != 0 {
            return true;
        }
    }
}

/// Answers connections until the time is over.
fn serve(task: &WitnessTask) {
    let until = quiet_child::clock_ms() + SERVICE_MS;
    let mut connections = [(NONE, 0_usize); MAX_CONNECTIONS];
    let mut next = 0;
    loop {
        let remaining = until - quiet_child::clock_ms();
        if remaining <= 0 {
            return;
        }
        let mut entries = [poll_entry(NONE); MAX_LISTENERS + MAX_CONNECTIONS];
        let (listeners, others) = entries.split_at_mut(MAX_LISTENERS);
        listeners.iter_mut().zip(&task.listeners).for_each(|(it, &fd)| it.fd = fd);
        others.iter_mut().zip(&connections).for_each(|(it, &(fd, _))| it.fd = fd);
        if !quiet_child::poll_raw(&mut entries, i32::try_from(remaining).unwrap_or(i32::MAX)) {
            return;
        }
        let (listeners, others) = entries.split_at(MAX_LISTENERS);
        for (connection, it) in connections.iter_mut().zip(others) {
            if it.revents != 0 && receive(connection) >= task.request_bytes {
                close(connection);
            }
        }
        for it in listeners[..task.listener_count].iter().filter(|it| it.revents != 0) {
            let accepted = quiet_child::accept_and_send(it.fd, &task.answer);
            if accepted >= 0 {
                close(&mut connections[next]);
                connections[next] = (accepted, 0);
                next = (next + 1) % MAX_CONNECTIONS;
            }
        }
    }
}

/// Receives the bytes that have arrived, and returns their number so far. The end of the connection
/// counts as the maximum.
fn receive(connection: &mut (RawFd, usize)) -> usize {
    let mut bytes = [0; READ_BYTES];
    connection.1 = match quiet_child::read_raw(connection.0, &mut bytes) {
        Some(got @ 1..) => connection.1.saturating_add(got),
        Some(0) | None => usize::MAX,
    };
    connection.1
}

fn close(connection: &mut (RawFd, usize)) {
    if connection.0 >= 0 {
        quiet_child::close_accepted(connection.0);
    }
    *connection = (NONE, 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::net::{TcpListener, TcpStream};

    const ANSWER: [u8; ANSWER_BYTES] = *b"D123456789abcdefg";

    #[test]
    fn dismissed_witness_ends_without_an_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let witness = DeathWitness::start(&[listener.as_fd()], ANSWER, 3).unwrap();
        let began = std::time::Instant::now();
        drop(witness);
        assert!(began.elapsed() < EXIT_TIMEOUT);
        let address = listener.local_addr().unwrap();
        drop(listener);
        TcpStream::connect(address).unwrap_err();
    }

    #[test]
    fn witness_answers_after_the_death_of_its_process() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        // SAFETY: the child ends by `_exit` or by SIGKILL, and uses no lock of another thread: the
        // witness is started with the allocator only, which `fork` keeps usable.
        let process = unsafe { libc::fork() };
        assert!(process >= 0);
        if process == 0 {
            let witness = DeathWitness::start(&[listener.as_fd()], ANSWER, 3);
            drop((&writer).write(&[u8::from(witness.is_ok())]));
            loop {
                // SAFETY: the call takes no arguments; a signal ends the child.
                unsafe { libc::pause() };
            }
        }
        drop((listener, writer));
        let mut started = [0];
        reader.read_exact(&mut started).unwrap();
        assert_eq!(started, [1]);
        // This connection waits for the process, which does not accept it.
        let mut early = TcpStream::connect(address).unwrap();
        early.write_all(b"abc").unwrap();
        early.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        early.read_exact(&mut [0]).unwrap_err();
        // SAFETY: the child has not been reaped, so the number is its own.
        unsafe { libc::kill(process, libc::SIGKILL) };
        let silent = TcpStream::connect(address).unwrap();
        for mut stream in [early, TcpStream::connect(address).unwrap()] {
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            // The early connection has sent these bytes before.
            drop(stream.write_all(b"abc"));
            let mut answer = [0; ANSWER_BYTES];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(answer, ANSWER);
        }
        drop(silent);
        // SAFETY: a null status pointer is allowed.
        unsafe { libc::waitpid(process, std::ptr::null_mut(), 0) };
        let comm = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/comm"));
        let folders = std::fs::read_dir("/proc").unwrap();
        let names = folders.filter_map(|it| it.ok()?.file_name().into_string().ok());
        let witnesses = names.filter(|pid| comm(pid).is_ok_and(|name| name == "dist-witness\n"));
        let ours: Vec<i32> = witnesses
            .filter(|pid| holds_socket_of(pid, address.port()))
            .filter_map(|pid| pid.parse().ok())
            .collect();
        assert_eq!(ours.len(), 1);
        // SAFETY: the process is the witness of this test.
        unsafe { libc::kill(ours[0], libc::SIGTERM) };
        let limit = std::time::Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(address).is_ok() {
            assert!(std::time::Instant::now() < limit, "SIGTERM does not end the witness");
            std::thread::yield_now();
        }
    }

    /// Returns true if the process has the socket that listens on this port.
    fn holds_socket_of(pid: &str, port: u16) -> bool {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let local = format!("0100007F:{port:04X}");
        let line = table.lines().find(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            fields.get(1) == Some(&local.as_str()) && fields.get(3) == Some(&"0A")
        });
        let inode = line.and_then(|line| line.split_ascii_whitespace().nth(9)).unwrap_or("none");
        let target = format!("socket:[{inode}]");
        let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
        let mut links = entries.filter_map(|it| std::fs::read_link(it.ok()?.path()).ok());
        links.any(|link| link.to_string_lossy() == target)
    }
}
