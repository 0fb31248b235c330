//! Connects to the server: resolves its name, tries all addresses, validates the connection, and
//! retries until the deadline.

use super::connection::StoreConnection;
use super::request_failure::RequestFailure;
use super::{proto, unix_socket};
use crate::base::log::LogLevel;
use crate::base::{Deadline, Error, ErrorKind, Result};
use crate::security::Secret;
use crate::sys::stream::SocketStream;
use crate::sys::{host, socket};
use crate::wait;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The time limit for one address in the first round over all addresses. It doubles with each
/// round. The limit is short, because an address without a reply must not consume the time of the
/// other addresses. For example, a host may have IPv4 and IPv6 addresses, and only one of the two
/// families works.
const INITIAL_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);
/// The largest time limit for one address.
const MAX_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit for the handshake and the server's reply to VALIDATE and PING.
const VALIDATION_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause after the first round over all addresses. Each pause is 1.5 times as long as the
/// previous one.
const INITIAL_BACKOFF: Duration = Duration::from_millis(20);
/// The largest number of attempts that are repeated because the server ended them early.
const MAX_EARLY_ENDS: u32 = 5;
/// The longest pause between two rounds.
const MAX_BACKOFF: Duration = Duration::from_secs(1);
/// While a client waits for its server, it writes one log line per interval.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The options of a store client.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// The server's host name or address literal.
    pub host: String,
    /// The server's port.
    pub port: u16,
    /// The number of clients of the job, including this one. If set, this client adds 1 to a
    /// counter in the store when it connects.
    pub world_size: Option<usize>,
    /// If this process hosts the server, wait until this counter reaches `world_size`, so all
    /// clients have connected. Other processes ignore this option, as in torch.
    pub wait_for_workers: bool,
    /// Use TCP even if the server is on this host and offers a Unix socket.
    pub tcp_only: bool,
    /// The secret of the job. The server and this client must prove to each other that they hold
    /// it.
    pub secret: Option<Secret>,
    /// Whether the connections must be encrypted. They are also encrypted if the server requires
    /// it. Has no effect without a secret.
    pub encrypts: bool,
}

/// The server's address and the options for connections to it.
#[derive(Clone, Debug)]
pub(super) struct StoreEndpoint {
    pub(super) host: String,
    pub(super) port: u16,
    /// An address that replaces the lookup of `host`. It is set in the process that runs the
    /// server.
    pub(super) local_address: Option<SocketAddr>,
    /// Use TCP even if a Unix socket exists.
    pub(super) tcp_only: bool,
    /// The secret that both sides must prove to hold.
    pub(super) secret: Option<Secret>,
    /// Whether this client requires encryption.
    pub(super) encrypts: bool,
}

impl StoreEndpoint {
    /// Builds the endpoint from the client's options.
    pub(super) fn new(options: &ClientOptions, local_address: Option<SocketAddr>) -> Self {
        let ClientOptions { host, port, tcp_only, secret, encrypts, .. } = options.clone();
        Self { host, port, local_address, tcp_only, secret, encrypts }
    }
}

impl fmt::Display for StoreEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') && !self.host.starts_with('[') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// The error of a failed attempt to connect. If the failure is permanent, further attempts are
/// useless.
struct StoreConnectFailure {
    error: Error,
    is_permanent: bool,
    /// The server ended the connection before it had validated the client. A server with too many
    /// new connections does this.
    ended_early: bool,
}

impl StoreConnectFailure {
    fn permanent(error: Error) -> Self {
        Self { error, is_permanent: true, ended_early: false }
    }

    fn transient(error: Error) -> Self {
        Self { error, is_permanent: false, ended_early: false }
    }

    fn ended_early(error: Error) -> Self {
        Self { error, is_permanent: false, ended_early: true }
    }
}

/// Connects with retries until the deadline, since the server may start later than its clients.
///
/// # Errors
/// `Connection` if until the deadline no process listens on the port, or the host is unknown or
/// unreachable. `Connection` immediately if the server is not a store. `Auth` if the two sides do
/// not hold the same secret. `Timeout` if the server does not reply.
pub(super) fn connect_with_retry(
    peer: &StoreEndpoint,
    deadline: &Deadline,
) -> Result<StoreConnection> {
    let mut backoff = INITIAL_BACKOFF;
    let mut attempt_timeout = INITIAL_ATTEMPT_TIMEOUT;
    let mut log_at = Instant::now() + LOG_INTERVAL;
    let mut previous_error: Option<Error> = None;
    for attempts in 1_u64.. {
        let failed = match connect_any_address(peer, attempt_timeout, deadline) {
            Ok(connection) => return Ok(connection),
            Err(failed) => failed,
        };
        let left = deadline.remaining();
        if failed.is_permanent || left.is_zero() {
            // If the deadline cut this attempt short, its error is only a timeout. The error of the
            // previous attempt says more about the cause.
            let was_cut_short = failed.error.kind() == ErrorKind::Timeout && !failed.is_permanent;
            let error = previous_error.filter(|_| was_cut_short).unwrap_or(failed.error);
            return Err(with_attempt_count(error, attempts, deadline));
        }
        if Instant::now() >= log_at {
            log_at = Instant::now() + LOG_INTERVAL;
            crate::log!(
                LogLevel::Warn,
                "waiting for the store at {peer} for {} s, {} s left: {}",
                deadline.elapsed().as_secs(),
                left.as_secs(),
                failed.error
            );
        }
        previous_error = Some(failed.error);
        wait::pause(jittered(backoff), deadline);
        backoff = (backoff * 3 / 2).min(MAX_BACKOFF);
        attempt_timeout = (attempt_timeout * 2).min(MAX_ATTEMPT_TIMEOUT);
    }
    Err(Error::internal("the connection attempts ended without a result"))
}

/// Tries each address once. This is for a server that this process has reached before, so it
/// repeats only attempts that the server ended early, at most [`MAX_EARLY_ENDS`] times.
///
/// # Errors
/// As [`connect_with_retry`].
pub(super) fn connect_once(peer: &StoreEndpoint, deadline: &Deadline) -> Result<StoreConnection> {
    let mut early_ends = 0;
    loop {
        let failed = match connect_any_address(peer, MAX_ATTEMPT_TIMEOUT, deadline) {
            Ok(connection) => return Ok(connection),
            Err(failed) => failed,
        };
        early_ends += u32::from(failed.ended_early);
        if !failed.ended_early || early_ends > MAX_EARLY_ENDS || deadline.has_passed() {
            return Err(failed.error);
        }
        wait::pause(jittered(INITIAL_BACKOFF * early_ends), deadline);
    }
}

fn connect_any_address(
    peer: &StoreEndpoint,
    attempt_timeout: Duration,
    deadline: &Deadline,
) -> std::result::Result<StoreConnection, StoreConnectFailure> {
    let addresses = match peer.local_address {
        Some(address) => vec![address],
        None => socket::resolve(&peer.host, peer.port, deadline).map_err(|cause| {
            StoreConnectFailure::transient(cause.context(format_args!("the store at {peer}")))
        })?,
    };
    let mut last_error = None;
    for address in addresses {
        if let Some(stream) = unix_socket::connect(address).filter(|_| !peer.tcp_only) {
            return validate_connection(peer, StoreConnection::new(stream, true), deadline);
        }
        let limit = deadline.capped(attempt_timeout);
        match socket::connect(address, &limit).and_then(SocketStream::from_tcp) {
            Ok(stream) => {
                return validate_connection(peer, StoreConnection::new(stream, false), deadline);
            }
            Err(cause) => last_error = Some(connect_error(peer, address, cause)),
        }
    }
    let no_address = || Error::internal(format!("the store at {peer} has no address"));
    Err(StoreConnectFailure::transient(last_error.unwrap_or_else(no_address)))
}

fn validate_connection(
    peer: &StoreEndpoint,
    mut connection: StoreConnection,
    deadline: &Deadline,
) -> std::result::Result<StoreConnection, StoreConnectFailure> {
    let limit = deadline.capped(VALIDATION_TIMEOUT);
    let failure = match connection.validate(peer.secret.as_ref(), peer.encrypts, &limit) {
        Ok(()) => return Ok(connection),
        Err(RequestFailure::Refused(proto::SERVER_FULL)) => {
            let message = format!(
                "the store at {peer} accepts no more clients: the server's process has no free file \
                 descriptor, or too many new connections; raise its limit of open files (ulimit -n)"
            );
            let error = Error::new(ErrorKind::Connection, message);
            return Err(StoreConnectFailure::ended_early(error));
        }
        Err(failure) => failure,
    };
    let is_permanent = matches!(failure, RequestFailure::Malformed(_) | RequestFailure::Refused(_));
    let (kind, problem) = match &failure {
        RequestFailure::AuthFailed(auth_failure) => {
            let error = auth_failure.to_error(peer);
            return Err(match auth_failure.is_final() {
                true => StoreConnectFailure::permanent(error),
                false => StoreConnectFailure::ended_early(error),
            });
        }
        // The caller's deadline passed before [`VALIDATION_TIMEOUT`], so it is unknown whether the
        // server is a store.
        RequestFailure::Timeout
            if deadline.has_passed() && limit.elapsed() < VALIDATION_TIMEOUT =>
        {
            let ms = deadline.elapsed().as_millis();
            let message = format!("the store at {peer} did not answer within {ms} ms");
            return Err(StoreConnectFailure::transient(Error::new(ErrorKind::Timeout, message)));
        }
        RequestFailure::Timeout => {
            let ms = limit.elapsed().as_millis();
            let problem = format!("accepted the connection but did not answer within {ms} ms");
            (ErrorKind::Timeout, problem)
        }
        RequestFailure::Lost { cause, .. } => {
            let problem = format!("accepted the connection, which then broke ({cause})");
            (ErrorKind::Connection, problem)
        }
        RequestFailure::Malformed(_) | RequestFailure::Refused(_) => {
            (ErrorKind::Connection, failure.reply_error().unwrap_or_default())
        }
    };
    let message = format!("the server at {peer} is not a store, or does not work: it {problem}");
    let ended_early = matches!(failure, RequestFailure::Lost { .. });
    Err(StoreConnectFailure { error: Error::new(kind, message), is_permanent, ended_early })
}

fn connect_error(peer: &StoreEndpoint, address: SocketAddr, cause: io::Error) -> Error {
    let (kind, reason) = match cause.kind() {
        io::ErrorKind::ConnectionRefused => {
            let reason = "connection refused: no process listens on this port; check that the store has started";
            (ErrorKind::Connection, reason.to_owned())
        }
        io::ErrorKind::TimedOut => {
            let source = socket::source_address_for(address.ip());
            let from = source.map_or_else(|_| String::new(), |source| format!(" to {source}"));
            let reason = format!(
                "no answer{from}: the host is down, or a firewall drops the packets; it must let \
                 through this port, and the ports of DIST_PORT_RANGE between the ranks"
            );
            (ErrorKind::Timeout, reason)
        }
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            (ErrorKind::Connection, format!("no route to the host ({cause})"))
        }
        _ => (ErrorKind::Connection, cause.to_string()),
    };
    let message = format!("cannot connect to the store at {peer} (address {address}): {reason}");
    Error::new(kind, message).with_source(cause)
}

fn with_attempt_count(error: Error, attempts: u64, deadline: &Deadline) -> Error {
    let ms = deadline.elapsed().as_millis();
    let unit = if attempts == 1 { "attempt" } else { "attempts" };
    Error::new(error.kind(), format!("{error} ({attempts} {unit} in {ms} ms)")).with_source(error)
}

/// Returns a random time between half of `pause` and `pause`, so that clients do not retry
/// simultaneously.
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
            let pause = jittered(MAX_BACKOFF);
            assert!(pause >= MAX_BACKOFF / 2 && pause <= MAX_BACKOFF);
        }
    }

    #[test]
    fn addresses_are_shown_as_users_write_them() {
        let display = |host: &str| {
            StoreEndpoint {
                host: host.to_owned(),
                port: 7,
                local_address: None,
                tcp_only: false,
                secret: None,
                encrypts: false,
            }
            .to_string()
        };
        assert_eq!(display("node1"), "node1:7");
        assert_eq!(display("::1"), "[::1]:7");
        assert_eq!(display("[::1]"), "[::1]:7");
    }
}
