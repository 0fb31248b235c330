//! The messages by which the ranks of a local job get the store from rank 0, and the service of
//! rank 0 that answers them.
//!
//! ```text
//! request   "ldj2" | rank u32
//! reply     kind u8 | 0 | port u16
//! ```
//!
//! A reply of the kind [`STORE_WITH_SECRET`] carries the descriptor of the job's secret.
//!
//! Rank 0 closes a connection of another user before it reads a byte, and serves all others
//! concurrently. A process that connects and sends nothing delays no rank.

use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::log::LogLevel;
use crate::security::Secret;
use crate::sys::{poll, socket, unix};
use crate::wait::{self, io};
use std::collections::VecDeque;
use std::io::ErrorKind as Io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

const REQUEST_MAGIC: [u8; 4] = *b"ldj2";
const REQUEST_BYTES: usize = 8;
const REPLY_BYTES: usize = 4;

/// The kinds of replies.
const STORE: u8 = b'O';
const STORE_WITH_SECRET: u8 = b'S';
const REFUSED: u8 = b'R';

/// The time within which a new connection must send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of connections without a request. A further connection closes the oldest one.
const MAX_PENDING: usize = 256;
/// The maximum number of connections that rank 0 accepts before it reads from them.
const ACCEPTS_PER_WAKEUP: usize = 64;
/// The longest wait for events. Rank 0 then closes connections without a request.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// The pause after the system ran out of descriptors.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(10);
/// While rank 0 waits for other ranks, it writes one log line per interval.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// The store that rank 0 offers.
#[derive(Debug)]
pub(super) struct StoreOffer {
    /// The port of the store on the loopback interface.
    pub(super) port: u16,
    /// The memory file of the secret that rank 0 has made. `None` if the user has given the secret.
    pub(super) secret_fd: Option<OwnedFd>,
}

impl StoreOffer {
    /// Reads the secret, if rank 0 has made it.
    ///
    /// # Errors
    /// As [`Secret::from_fd`].
    pub(super) fn read_secret(&self) -> Result<Option<Secret>> {
        self.secret_fd.as_ref().map(|fd| Secret::from_fd(fd.as_raw_fd())).transpose()
    }
}

/// The request of one rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobStoreRequest {
    /// The rank that sends the request.
    pub(super) rank: usize,
}

impl JobStoreRequest {
    /// Sends the request to rank 0 and returns the answer.
    ///
    /// # Errors
    /// `Auth` if rank 0 refuses the rank; `System` if the descriptor of the secret did not arrive;
    /// `Connection`; `Timeout`.
    pub(super) fn send(self, stream: &UnixStream, deadline: &Deadline) -> Result<StoreOffer> {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC);
        bytes[4..].copy_from_slice(&u32::try_from(self.rank).unwrap_or(u32::MAX).to_le_bytes());
        io::write_all(stream, &bytes, None, deadline)?;
        let mut reply = [0; REPLY_BYTES];
        let secret_fd = io::read_exact_with_descriptor(stream, &mut reply, deadline)?;
        match (reply[0], secret_fd) {
            (STORE, secret_fd @ None) | (STORE_WITH_SECRET, secret_fd @ Some(_)) => {
                Ok(StoreOffer { port: u16::from_le_bytes([reply[2], reply[3]]), secret_fd })
            }
            (STORE_WITH_SECRET, None) => {
                let message = "the descriptor of the job's secret did not arrive: this process may \
                               have reached its limit of open descriptors (ulimit -n)";
                Err(Error::new(ErrorKind::System, message))
            }
            (REFUSED, _) => {
                let message = format!(
                    "rank 0 expects no rank {}: the ranks have different world sizes",
                    self.rank
                );
                Err(Error::new(ErrorKind::Auth, message))
            }
            _ => Err(Error::new(ErrorKind::Connection, "the answer of rank 0 is malformed")),
        }
    }

    fn decode(bytes: [u8; REQUEST_BYTES]) -> Option<Self> {
        let rank = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let rank = usize::try_from(rank).ok()?;
        (bytes[..4] == REQUEST_MAGIC).then_some(Self { rank })
    }
}

/// Answers the requests on rank 0 until all other ranks of the job have the offer.
///
/// # Errors
/// `Timeout` with the missing ranks; `Connection` if the listening socket was shut down; `System`.
pub(super) fn serve(
    listener: &UnixListener,
    offer: &StoreOffer,
    size: usize,
    deadline: &Deadline,
) -> Result<()> {
    let mut is_served = vec![false; size];
    is_served[0] = true;
    let pending = VecDeque::new();
    let mut service =
        JobService { listener, offer, is_served, pending, has_logged_stranger: false };
    let mut log_at = LOG_INTERVAL;
    while service.is_served.contains(&false) {
        if deadline.has_passed() {
            let message = format!(
                "rank 0 waited on this host for ranks {} for {} ms",
                service.missing_ranks(),
                deadline.elapsed().as_millis()
            );
            return Err(Error::new(ErrorKind::Timeout, message));
        }
        if deadline.elapsed() >= log_at {
            log_at += LOG_INTERVAL;
            crate::log!(
                LogLevel::Warn,
                "rank 0 still waits on this host for ranks {}",
                service.missing_ranks()
            );
        }
        let sockets = service.pending.iter().map(|it| it.stream.as_fd());
        io::wait_for_any_readable(sockets.chain([listener.as_fd()]), &deadline.capped(MAX_WAIT))?;
        service.accept_connections(deadline)?;
        service.answer_requests();
    }
    Ok(())
}

/// The state of the service.
#[derive(Debug)]
struct JobService<'a> {
    listener: &'a UnixListener,
    offer: &'a StoreOffer,
    /// For each rank, whether it has the offer.
    is_served: Vec<bool>,
    /// The connections without a complete request, in order of arrival.
    pending: VecDeque<PendingRequest>,
    has_logged_stranger: bool,
}

/// A connection whose request is not complete.
#[derive(Debug)]
struct PendingRequest {
    stream: UnixStream,
    bytes: [u8; REQUEST_BYTES],
    filled: usize,
    deadline: Deadline,
}

/// The state of a connection after a read.
enum RequestProgress {
    Incomplete,
    Complete([u8; REQUEST_BYTES]),
    /// The peer closed the connection, or sent nothing in time.
    Ended,
}

impl JobService<'_> {
    fn missing_ranks(&self) -> String {
        let missing = self.is_served.iter().enumerate().filter(|(_, is_served)| !**is_served);
        missing.map(|(rank, _)| rank.to_string()).collect::<Vec<_>>().join(", ")
    }

    /// Accepts waiting connections, and closes those of other users.
    fn accept_connections(&mut self, deadline: &Deadline) -> Result<()> {
        for _ in 0..ACCEPTS_PER_WAKEUP {
            match unix::accept(self.listener) {
                Ok(stream) => self.admit(stream),
                Err(cause) if cause.kind() == Io::WouldBlock => break,
                Err(cause) if socket::is_resource_shortage(&cause) => {
                    crate::log!(
                        LogLevel::Warn,
                        "rank 0 cannot accept a connection now: {cause} (see ulimit -n)"
                    );
                    self.pending.pop_front();
                    wait::pause(SHORTAGE_PAUSE, deadline);
                    break;
                }
                Err(_) if poll::has_hung_up(self.listener.as_fd()) => {
                    let message = "the listening socket was shut down";
                    return Err(Error::new(ErrorKind::Connection, message));
                }
                // The peer closed the connection before rank 0 accepted it.
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn admit(&mut self, stream: UnixStream) {
        if let Err(error) = unix::check_peer_user(&stream) {
            if !std::mem::replace(&mut self.has_logged_stranger, true) {
                crate::log!(
                    LogLevel::Warn,
                    "rank 0 dropped an unexpected connection, and will drop further ones without \
                     a log line: {error}"
                );
            }
            return;
        }
        let deadline = Deadline::after(REQUEST_TIMEOUT);
        self.pending.push_back(PendingRequest {
            stream,
            bytes: [0; REQUEST_BYTES],
            filled: 0,
            deadline,
        });
        if self.pending.len() > MAX_PENDING {
            self.pending.pop_front();
        }
    }

    /// Reads from all connections, and answers the complete requests.
    fn answer_requests(&mut self) {
        for mut pending in std::mem::take(&mut self.pending) {
            match pending.receive() {
                RequestProgress::Incomplete => self.pending.push_back(pending),
                RequestProgress::Complete(bytes) => self.answer(&pending.stream, bytes),
                RequestProgress::Ended => {}
            }
        }
    }

    fn answer(&mut self, stream: &UnixStream, bytes: [u8; REQUEST_BYTES]) {
        let request = JobStoreRequest::decode(bytes);
        let Some(JobStoreRequest { rank }) =
            request.filter(|it| (1..self.is_served.len()).contains(&it.rank))
        else {
            crate::log!(
                LogLevel::Warn,
                "rank 0 dropped an unexpected connection: the peer is not a rank of this job"
            );
            // The peer may have closed the connection.
            drop(unix::send(stream, &[REFUSED, 0, 0, 0], None));
            return;
        };
        let StoreOffer { port, secret_fd } = self.offer;
        let [low, high] = port.to_le_bytes();
        let kind = if secret_fd.is_some() { STORE_WITH_SECRET } else { STORE };
        let secret_fd = secret_fd.as_ref().map(|fd| fd.as_fd());
        // A new connection has room for the reply.
        let sent = unix::send(stream, &[kind, 0, low, high], secret_fd);
        self.is_served[rank] |= sent.is_ok_and(|sent| sent == REPLY_BYTES);
    }
}

impl PendingRequest {
    /// Reads the bytes that have arrived.
    fn receive(&mut self) -> RequestProgress {
        while self.filled < REQUEST_BYTES {
            match unix::receive(&self.stream, &mut self.bytes[self.filled..]) {
                Ok((0, _)) => return RequestProgress::Ended,
                Ok((received, _)) => self.filled += received,
                Err(cause) if cause.kind() == Io::Interrupted => {}
                Err(cause) if cause.kind() == Io::WouldBlock && !self.deadline.has_passed() => {
                    return RequestProgress::Incomplete;
                }
                Err(_) => return RequestProgress::Ended,
            }
        }
        RequestProgress::Complete(self.bytes)
    }
}
