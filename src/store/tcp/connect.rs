//! Finding the server: look up, try all addresses, introduce, and again until the deadline.

use super::client::ClientOptions;
use super::connection::{Connection, Failure};
use super::secret::Secret;
use super::{proto, shortcut};
use crate::base::log::Level;
use crate::base::{Deadline, Error, ErrorKind, Result};
use crate::sys::stream::Stream;
use crate::sys::{host, socket};
use crate::wait;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long an attempt at one address may take in the first round and in later ones, so that a
/// silent address does not use up the time of the others: a host may have addresses of both
/// families of which one leads nowhere.
const FIRST_ATTEMPT: Duration = Duration::from_secs(1);
const LONGEST_ATTEMPT: Duration = Duration::from_secs(10);
/// How long a server may take to answer a client's introduction before the client tries anew.
const INTRODUCTION: Duration = Duration::from_secs(30);
/// The pauses between attempts grow from the first to the second.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How often a client that waits for its store says so.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Where the server is.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) host: String,
    pub(super) port: u16,
    /// The address to use instead of looking up the host: for the process that runs the server.
    pub(super) local: Option<SocketAddr>,
    /// Not over a Unix socket, even where there is one.
    pub(super) tcp_only: bool,
    /// What both sides must prove that they know.
    pub(super) secret: Option<Secret>,
}

impl Peer {
    /// The server that these options name.
    pub(super) fn new(options: &ClientOptions, local: Option<SocketAddr>) -> Self {
        let ClientOptions { host, port, tcp_only, secret, .. } = options.clone();
        Self { host, port, local, tcp_only, secret }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') && !self.host.starts_with('[') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Why an attempt failed, and whether another one may succeed.
struct Attempt {
    error: Error,
    hopeless: bool,
}

/// Connects; tries again until the deadline, since the server may start later than its clients.
///
/// # Errors
/// `Connection` where nothing listens there, the host cannot be reached or found, or something else
/// than a store answers (at once); `Timeout` where nothing answers at all.
pub(super) fn persistently(peer: &Peer, deadline: &Deadline) -> Result<Connection> {
    let mut pause = FIRST_PAUSE;
    let mut patience = FIRST_ATTEMPT;
    let mut log_at = Instant::now() + LOG_EVERY;
    let mut before: Option<Error> = None;
    for attempts in 1_u64.. {
        let failed = match attempt(peer, patience, deadline) {
            Ok(connection) => return Ok(connection),
            Err(failed) => failed,
        };
        let left = deadline.left();
        if failed.hopeless || left.is_zero() {
            // An attempt that the deadline cut short says less than the one before it.
            let was_cut_short = failed.error.kind() == ErrorKind::Timeout && !failed.hopeless;
            let error = before.filter(|_| was_cut_short).unwrap_or(failed.error);
            return Err(given_up(error, attempts, deadline));
        }
        if Instant::now() >= log_at {
            log_at = Instant::now() + LOG_EVERY;
            crate::log!(
                Level::Warn,
                "waiting for the store at {peer} for {} s, {} s left: {}",
                deadline.elapsed().as_secs(),
                left.as_secs(),
                failed.error
            );
        }
        before = Some(failed.error);
        wait::pause(jittered(pause), deadline);
        pause = (pause * 3 / 2).min(LONGEST_PAUSE);
        patience = (patience * 2).min(LONGEST_ATTEMPT);
    }
    Err(Error::internal("connecting ended without an outcome"))
}

/// Connects to a server that is known to have been there: one attempt at each of its addresses.
///
/// # Errors
/// As [`persistently`].
pub(super) fn once(peer: &Peer, deadline: &Deadline) -> Result<Connection> {
    attempt(peer, LONGEST_ATTEMPT, deadline).map_err(|failed| failed.error)
}

fn attempt(
    peer: &Peer,
    patience: Duration,
    deadline: &Deadline,
) -> std::result::Result<Connection, Attempt> {
    let maybe_later = |error| Attempt { error, hopeless: false };
    let addresses = match peer.local {
        Some(address) => vec![address],
        None => socket::resolve(&peer.host, peer.port, deadline)
            .map_err(|cause| maybe_later(cause.context(format_args!("the store at {peer}"))))?,
    };
    let mut last = None;
    for address in addresses {
        if let Some(stream) = shortcut::connect(address).filter(|_| !peer.tcp_only) {
            return introduce(peer, Connection::new(stream, true), deadline);
        }
        let limit = deadline.capped(patience);
        match socket::connect(address, &limit).and_then(Stream::from_tcp) {
            Ok(stream) => return introduce(peer, Connection::new(stream, false), deadline),
            Err(cause) => last = Some(cannot_connect(peer, address, &cause)),
        }
    }
    let none = || Error::internal(format!("the store at {peer} has no address"));
    Err(maybe_later(last.unwrap_or_else(none)))
}

fn introduce(
    peer: &Peer,
    mut connection: Connection,
    deadline: &Deadline,
) -> std::result::Result<Connection, Attempt> {
    let limit = deadline.capped(INTRODUCTION);
    let failure = match connection.introduce(peer.secret.as_ref(), &limit) {
        Ok(()) => return Ok(connection),
        Err(Failure::Refused(proto::FULL)) => {
            let message = format!(
                "the store at {peer} takes no more clients: the server's process has no descriptor left \
                 for another one; raise its limit of open files (ulimit -n)"
            );
            let error = Error::new(ErrorKind::Connection, message);
            return Err(Attempt { error, hopeless: false });
        }
        Err(failure) => failure,
    };
    let hopeless = matches!(failure, Failure::Garbled(_) | Failure::Refused(_));
    let (kind, what) = match failure {
        Failure::Unproven(obstacle) => {
            return Err(Attempt { error: obstacle.error(peer), hopeless: obstacle.is_final() });
        }
        // The call's own time was too short to say anything about the server.
        Failure::Timeout if deadline.has_passed() && limit.elapsed() < INTRODUCTION => {
            let ms = deadline.elapsed().as_millis();
            let message = format!("the store at {peer} did not answer within {ms} ms");
            return Err(Attempt {
                error: Error::new(ErrorKind::Timeout, message),
                hopeless: false,
            });
        }
        Failure::Timeout => {
            let ms = limit.elapsed().as_millis();
            let what = format!("accepted the connection but did not answer within {ms} ms");
            (ErrorKind::Timeout, what)
        }
        Failure::Lost { cause, .. } => {
            let what = format!("accepted the connection and broke it off ({cause})");
            (ErrorKind::Connection, what)
        }
        Failure::Garbled(what) => (ErrorKind::Connection, format!("sent {what}")),
        Failure::Refused(word) => {
            (ErrorKind::Connection, format!("said \"{}\"", word.escape_ascii()))
        }
    };
    let message = format!("what listens at {peer} is not a store, or not a healthy one: it {what}");
    Err(Attempt { error: Error::new(kind, message), hopeless })
}

fn cannot_connect(peer: &Peer, address: SocketAddr, cause: &io::Error) -> Error {
    let (kind, why) = match cause.kind() {
        io::ErrorKind::ConnectionRefused => {
            (ErrorKind::Connection, "connection refused: nothing listens there (yet?)".to_owned())
        }
        io::ErrorKind::TimedOut => {
            (ErrorKind::Timeout, "no answer: the host is down, or a firewall drops it".to_owned())
        }
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            (ErrorKind::Connection, format!("no route to the host ({cause})"))
        }
        _ => (ErrorKind::Connection, cause.to_string()),
    };
    Error::new(kind, format!("cannot connect to the store at {peer} (address {address}): {why}"))
}

fn given_up(error: Error, attempts: u64, deadline: &Deadline) -> Error {
    let ms = deadline.elapsed().as_millis();
    let times = if attempts == 1 { "attempt" } else { "attempts" };
    Error::new(error.kind(), format!("{error} ({attempts} {times} in {ms} ms)"))
}

/// Between half of the pause and all of it, so that many clients do not come back together.
fn jittered(pause: Duration) -> Duration {
    let random = host::random_nonce().map_or(128, |nonce| nonce.0[0]);
    pause / 2 + pause * u32::from(random) / 510
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_stays_within_its_half() {
        for _ in 0..100 {
            let pause = jittered(LONGEST_PAUSE);
            assert!(pause >= LONGEST_PAUSE / 2 && pause <= LONGEST_PAUSE);
        }
    }

    #[test]
    fn addresses_are_shown_as_users_write_them() {
        let of = |host: &str| {
            Peer { host: host.to_owned(), port: 7, local: None, tcp_only: false, secret: None }
                .to_string()
        };
        assert_eq!(of("node1"), "node1:7");
        assert_eq!(of("::1"), "[::1]:7");
        assert_eq!(of("[::1]"), "[::1]:7");
    }
}
