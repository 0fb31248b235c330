//! [`RequestSocket`]: a Unix socket at which this process gives a text about itself to programs of
//! the same user, for example to `dist-doctor --pid`. The process needs no preparation for this.
//!
//! The socket has a name in the abstract namespace, which contains the process ID and the PID
//! namespace. It leaves no file. The service thread accepts connections. A thread of its own
//! creates and writes each text, because a handler of the service thread must not block. Only
//! processes of the same user and of root get the text.
//!
//! A program gets the text by [`request_text`]. It checks that the answer comes from the right
//! process, because any process may take the name.

use super::thread;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::log::LogLevel;
use crate::sys::fork_descriptors::ForkClosed;
use crate::sys::poll::Interest;
use crate::sys::{host, unix};
use crate::wait::io;
use crate::wait::service::{self, DescriptorHandler, DescriptorWatch, WatchAction};
use std::fs;
use std::io::ErrorKind as Io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The time limit for writing one text.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum number of texts that are written at the same time. Further connections are closed.
const MAX_WRITERS: usize = 4;

/// The largest text that [`request_text`] reads.
const MAX_TEXT_BYTES: usize = 8 << 20;

/// The number of threads that write a text.
static WRITERS: AtomicUsize = AtomicUsize::new(0);

/// The socket. Dropping it closes it.
#[derive(Debug)]
pub struct RequestSocket {
    _watch: DescriptorWatch,
}

/// Accepts the connections on the service thread.
#[derive(Debug)]
struct RequestListener {
    /// Dropped before the socket closes.
    _fork_closed: ForkClosed,
    socket: UnixListener,
    text: fn() -> String,
}

impl RequestSocket {
    /// Opens the socket of this process. Each connection gets the text that `text` returns.
    ///
    /// # Errors
    /// `System`, for example if another process has taken the name.
    pub fn open(text: fn() -> String) -> Result<Self> {
        Self::open_with_name(&socket_name(own_pid_namespace(), host::pid()), text)
    }

    fn open_with_name(name: &str, text: fn() -> String) -> Result<Self> {
        let socket = unix::listen(name)?;
        let fork_closed = ForkClosed::list(socket.as_fd());
        let listener = RequestListener { _fork_closed: fork_closed, socket, text };
        Ok(Self { _watch: service::watch(Arc::new(listener))? })
    }
}

impl DescriptorHandler for RequestListener {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn on_readable(&self) -> WatchAction {
        match unix::accept(&self.socket) {
            Ok(stream) => start_answer(stream, self.text),
            Err(cause) if matches!(cause.kind(), Io::WouldBlock | Io::Interrupted) => {}
            Err(cause) if cause.kind() == Io::ConnectionAborted => {}
            Err(cause) => {
                // A further attempt would fail too, for example without a free descriptor.
                let what = "no longer answers requests for the flight recorder";
                crate::log!(LogLevel::Warn, "this process {what}: {cause}");
                return WatchAction::Done;
            }
        }
        WatchAction::Keep
    }
}

/// Starts a thread that writes the text to a connection.
fn start_answer(stream: UnixStream, text: fn() -> String) {
    if unix::check_peer_user(&stream).is_err() || stream.set_nonblocking(true).is_err() {
        return;
    }
    let Some(slot) = WriterSlot::take() else { return };
    let answer = move || {
        let _slot = slot;
        // An error means that the program that has connected is gone.
        drop(io::write_all(&stream, text().as_bytes(), None, &Deadline::after(WRITE_TIMEOUT)));
    };
    if let Err(error) = thread::start("dist-request", answer) {
        crate::log!(LogLevel::Warn, "cannot answer a request for the flight recorder: {error}");
    }
}

const ROOT_USER: u32 = 0;

/// One of the writers. Dropping it frees the place.
struct WriterSlot;

impl WriterSlot {
    /// Takes a place, if one is free.
    fn take() -> Option<Self> {
        let taken_before = WRITERS.fetch_add(1, Ordering::AcqRel);
        let slot = Self;
        if taken_before < MAX_WRITERS { Some(slot) } else { None }
    }
}

impl Drop for WriterSlot {
    fn drop(&mut self) {
        WRITERS.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Returns the text that another process gives about itself.
///
/// # Errors
/// `NotFound` if the process has no such socket; `Auth` if another process has taken the name;
/// `Connection`, `Timeout`.
pub fn request_text(pid: u32, deadline: &Deadline) -> Result<Vec<u8>> {
    let missing = |cause: std::io::Error| {
        let message = format!(
            "process {pid} answers no requests: it is not in a group of libdist, or it has another \
             network namespace ({cause})"
        );
        Error::new(ErrorKind::NotFound, message)
    };
    let (namespace, inner_pid) = namespace_and_pid(pid).map_err(missing)?;
    let stream = unix::connect(&socket_name(namespace, inner_pid)).map_err(missing)?;
    read_text(&stream, pid, deadline)
}

/// Reads the text of process `pid` from a connection.
fn read_text(stream: &UnixStream, pid: u32, deadline: &Deadline) -> Result<Vec<u8>> {
    let (answering_pid, user) = unix::peer_credentials(stream)?;
    if answering_pid != pid || user != host::uid() && host::uid() != ROOT_USER {
        let message = format!("process {answering_pid} of user {user} answers for process {pid}");
        return Err(Error::new(ErrorKind::Auth, message));
    }
    let mut text = Vec::new();
    let mut chunk = vec![0; 64 << 10];
    loop {
        match unix::receive(stream, &mut chunk) {
            Ok((0, _)) => break,
            Ok((received, _)) => text.extend_from_slice(&chunk[..received]),
            Err(cause) if cause.kind() == Io::Interrupted => {}
            Err(cause) if cause.kind() == Io::WouldBlock => {
                let is_ready = io::ready_within(stream.as_fd(), Interest::READ, deadline);
                if !is_ready.map_err(|cause| Error::system("poll", cause))? {
                    let message = format!("process {pid} does not answer (is it stopped?)");
                    return Err(Error::new(ErrorKind::Timeout, message));
                }
            }
            Err(cause) => return Err(Error::connection(format_args!("process {pid}"), cause)),
        }
        if text.len() > MAX_TEXT_BYTES {
            let message = format!("process {pid} sent more than {MAX_TEXT_BYTES} bytes");
            return Err(Error::new(ErrorKind::Connection, message));
        }
    }
    if text.is_empty() {
        let message =
            format!("process {pid} refused the request: it belongs to another user, or it is busy");
        return Err(Error::new(ErrorKind::Auth, message));
    }
    Ok(text)
}

/// Returns the name of the socket of a process. `pid` is the ID of the process in its own PID
/// namespace.
fn socket_name(namespace: u64, pid: u32) -> String {
    format!("libdist-request-{namespace}-{pid}")
}

fn own_pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |link| link.ino())
}

/// Returns the PID namespace of a process, and its ID there.
fn namespace_and_pid(pid: u32) -> std::io::Result<(u64, u32)> {
    let namespace = fs::metadata(format!("/proc/{pid}/ns/pid"))?.ino();
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let inner = ids.and_then(|ids| ids.split_ascii_whitespace().last()?.parse().ok());
    Ok((namespace, inner.unwrap_or(pid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_gives_its_text_while_the_socket_is_open() {
        let name = format!("libdist-request-test-{}", host::pid());
        let request = |pid| {
            let stream = unix::connect(&name).map_err(|cause| Error::system("connect", cause))?;
            read_text(&stream, pid, &Deadline::after_ms(20_000))
        };
        let text = || "x".repeat(1 << 20);
        let socket = RequestSocket::open_with_name(&name, text).unwrap();
        for _ in 0..20 {
            assert_eq!(request(host::pid()).unwrap().len(), 1 << 20);
        }
        // The name is taken, and the first socket goes on.
        assert!(RequestSocket::open_with_name(&name, String::new).is_err());
        assert_eq!(request(host::pid()).unwrap().len(), 1 << 20);
        // The answer of another process is refused.
        assert_eq!(request(1).unwrap_err().kind(), ErrorKind::Auth);
        drop(socket);
        assert!(request(host::pid()).is_err());
    }

    #[test]
    fn process_of_another_user_gets_no_text() {
        let name = format!("libdist-request-test-{}", host::random_nonce().unwrap());
        let _socket = RequestSocket::open_with_name(&name, || "secret".to_owned()).unwrap();
        let connect = || unix::connect(&name).unwrap();
        let Some(stranger) = unix::run_as_other_user(connect) else { return };
        let error = read_text(&stranger, host::pid(), &Deadline::after_ms(20_000)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Auth, "{error}");
        assert!(error.message().contains("refused"), "{error}");
    }

    #[test]
    fn process_without_a_socket_is_reported() {
        let error = request_text(1, &Deadline::after_ms(20_000)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
}
