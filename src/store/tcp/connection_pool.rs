//! The connections of one client, and the handling of broken connections.
//!
//! **Primary connection.** All requests with an immediate reply or without a reply use the primary
//! connection. One caller at a time uses this connection, so that requests take effect in the order
//! of the calls. One-way requests (SET, APPEND, `MULTI_SET`, `QUEUE_PUSH`) have no reply. The
//! client continues as soon as it has sent them. They are *unconfirmed* until the next reply on the
//! same connection: the server processes requests in order, so this reply confirms all requests
//! before it.
//!
//! **Side connections.** A request that may wait at the server uses a connection from a small pool
//! of side connections. So a thread that waits for a key does not block other callers. Before the
//! request, the client confirms all one-way requests, with a PING if necessary. So all clients see
//! the operations of one thread in their order.
//!
//! **Bulk connection.** If client and server are on one host, the primary connection is a Unix
//! socket, which has a lower latency than TCP. But a long series of small one-way requests costs
//! more kernel time on a Unix socket, because the kernel handles each request as a separate
//! message, while TCP merges them. This matters if client and server share a CPU core. Then the
//! client sends the first [`BULK_THRESHOLD`] one-way requests of a series on the primary
//! connection. It sends the further ones over TCP on the bulk connection, up to the next request
//! with a reply. At any time, at most one of the two connections has unconfirmed requests.
//!
//! **Broken connections.** If a connection breaks, the client connects again. If the request in
//! progress changes nothing, or if no byte of it was sent, the client sends it once more. If
//! one-way requests were unconfirmed, they may be lost, and the call that detects the broken
//! connection returns an error that says so. A broken connection can also mean that the server
//! rejected a request: torch's protocol has no error reply, so a server rejects a request by
//! closing the connection.

use super::connect::{self, StoreEndpoint};
use super::connection::StoreConnection;
use super::proto::StoreRequest;
use super::request_failure::{RequestFailure, RequestResult};
use crate::base::error::ErrorContext as _;
use crate::base::sync::lock;
use crate::base::{Deadline, Error, ErrorKind, Result};
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitPolicy, wait_until};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The largest number of idle side connections.
const MAX_IDLE_SIDE_CONNECTIONS: usize = 4;

/// If a connection was idle for longer, the client checks that it is still open before the next
/// request.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// The number of consecutive one-way requests on the primary connection. The next one goes to the
/// bulk connection.
const BULK_THRESHOLD: u32 = 8;

/// The time limit for connecting the bulk connection.
const BULK_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether an operation is repeated after its connection was lost during the operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestRetry {
    /// The operation may have taken place and must not be repeated.
    Never,
    /// The operation changes nothing and may be repeated.
    Once,
}

/// All connections of a client.
#[derive(Debug)]
pub(super) struct ConnectionPool {
    peer: StoreEndpoint,
    /// The primary and the bulk connection, or `None` while a caller uses them.
    main: Mutex<Option<Box<MainConnections>>>,
    /// The doorbell (a futex word that waiters sleep on) that is notified when a caller has
    /// returned the main connections.
    main_returned: Doorbell,
    side_slots: Mutex<Vec<ConnectionSlot>>,
}

/// The connections for requests that do not wait at the server: the primary and the bulk
/// connection. At most one of the two has unconfirmed requests.
#[derive(Debug)]
struct MainConnections {
    primary: ConnectionSlot,
    /// A TCP connection for long series of one-way requests. It is used only if the primary
    /// connection is a Unix socket.
    bulk: ConnectionSlot,
    /// The number of one-way requests since the last request with a reply.
    one_way_streak: u32,
    /// True if the bulk connection could not be opened. Then all requests use the primary
    /// connection.
    is_bulk_unavailable: bool,
}

/// A connection that is opened at its first use, and its state.
#[derive(Debug)]
struct ConnectionSlot {
    connection: Option<Box<StoreConnection>>,
    /// The number of one-way requests since the last reply on this connection.
    unanswered: u64,
    last_used: Instant,
    /// True to use TCP even if the server offers a Unix socket.
    tcp_only: bool,
}

/// The parameters of one call: the operation's name for messages, the retry rule and the deadline.
#[derive(Clone, Copy)]
pub(super) struct RequestContext<'a> {
    pub(super) op_name: &'a str,
    pub(super) retry: RequestRetry,
    pub(super) deadline: &'a Deadline,
}

/// Returns the context of a call that changes nothing.
pub(super) fn query<'a>(op_name: &'a str, deadline: &'a Deadline) -> RequestContext<'a> {
    RequestContext { op_name, retry: RequestRetry::Once, deadline }
}

/// Returns the context of a call that changes the store.
pub(super) fn change<'a>(op_name: &'a str, deadline: &'a Deadline) -> RequestContext<'a> {
    RequestContext { op_name, retry: RequestRetry::Never, deadline }
}

impl ConnectionPool {
    /// Creates the pool with `connection` as its primary connection.
    pub(super) fn new(peer: StoreEndpoint, connection: StoreConnection) -> Self {
        let tcp_only = peer.tcp_only;
        let primary = ConnectionSlot::new(Some(connection), tcp_only);
        let main = MainConnections {
            primary,
            bulk: ConnectionSlot::new(None, true),
            one_way_streak: 0,
            is_bulk_unavailable: false,
        };
        Self {
            peer,
            main: Mutex::new(Some(Box::new(main))),
            main_returned: Doorbell::default(),
            side_slots: Mutex::new(Vec::new()),
        }
    }

    /// Returns the server's endpoint.
    pub(super) fn peer(&self) -> &StoreEndpoint {
        &self.peer
    }

    /// Sends a one-way request.
    ///
    /// # Errors
    /// See [`ConnectionPool::round_trip`].
    pub(super) fn send_one_way(
        &self,
        call: RequestContext<'_>,
        request: &StoreRequest<'_>,
    ) -> Result<()> {
        self.with_main(call, |main| {
            let slot = self.slot_for_one_way(main, call)?;
            let send = |connection: &mut StoreConnection| {
                connection.send(std::slice::from_ref(request), call.deadline)
            };
            self.run_with_retry(slot, call, send)?;
            slot.unanswered += 1;
            Ok(())
        })
    }

    /// Selects the connection for a one-way request.
    fn slot_for_one_way<'a>(
        &self,
        main: &'a mut MainConnections,
        call: RequestContext<'_>,
    ) -> Result<&'a mut ConnectionSlot> {
        main.one_way_streak = main.one_way_streak.saturating_add(1);
        let MainConnections { primary, bulk, one_way_streak, is_bulk_unavailable } = main;
        if bulk.unanswered > 0 {
            return Ok(bulk);
        }
        let prefers_bulk =
            |primary: &StoreConnection| primary.is_unix_socket() && primary.shares_core();
        if *one_way_streak <= BULK_THRESHOLD
            || *is_bulk_unavailable
            || !primary.connection.as_deref().is_some_and(prefers_bulk)
        {
            return Ok(primary);
        }
        if bulk.connection.is_none() {
            let limit = call.deadline.capped(BULK_CONNECT_TIMEOUT);
            bulk.connection =
                self.connect_slot(bulk, RequestContext { deadline: &limit, ..call }).ok();
            *is_bulk_unavailable = bulk.connection.is_none();
        }
        self.confirm_slot(primary, call)?;
        Ok(if *is_bulk_unavailable { primary } else { bulk })
    }

    /// Runs an operation with a reply on a main connection.
    ///
    /// # Errors
    /// `Timeout` if the deadline passes. `Connection` if the server cannot be reached, if the
    /// connection broke, or if earlier one-way requests may be lost.
    pub(super) fn round_trip<T>(
        &self,
        call: RequestContext<'_>,
        operation: impl FnMut(&mut StoreConnection) -> RequestResult<T>,
    ) -> Result<T> {
        self.with_main(call, |main| {
            let slot = main.slot_for_round_trip();
            let value = self.run_with_retry(slot, call, operation)?;
            slot.mark_answered();
            Ok(value)
        })
    }

    /// Runs an operation that may wait at the server. It uses a side connection.
    ///
    /// # Errors
    /// See [`ConnectionPool::round_trip`].
    pub(super) fn run_on_side_connection<T>(
        &self,
        call: RequestContext<'_>,
        operation: impl FnMut(&mut StoreConnection) -> RequestResult<T>,
    ) -> Result<T> {
        self.confirm_all(call)?;
        let idle = lock(&self.side_slots).pop();
        let mut slot = idle.unwrap_or_else(|| ConnectionSlot::new(None, self.peer.tcp_only));
        let value = self.run_with_retry(&mut slot, call, operation)?;
        let mut side = lock(&self.side_slots);
        if side.len() < MAX_IDLE_SIDE_CONNECTIONS {
            side.push(slot);
        }
        Ok(value)
    }

    /// Returns true if there are unconfirmed one-way requests.
    ///
    /// # Errors
    /// `Timeout` if the main connections are in use until the deadline.
    pub(super) fn has_unconfirmed(&self, call: RequestContext<'_>) -> Result<bool> {
        self.with_main(call, |main| Ok(main.primary.unanswered + main.bulk.unanswered > 0))
    }

    /// Opens a connection outside the pool, for a request after which the server may close it.
    ///
    /// # Errors
    /// As [`connect::connect_once`].
    pub(super) fn connect_new(&self, deadline: &Deadline) -> Result<StoreConnection> {
        connect::connect_once(&self.peer, deadline)
    }

    /// Waits until all one-way requests have taken effect.
    fn confirm_all(&self, call: RequestContext<'_>) -> Result<()> {
        self.with_main(call, |main| self.confirm_slot(main.slot_for_round_trip(), call))
    }

    /// Waits until all one-way requests on one connection have taken effect.
    fn confirm_slot(&self, slot: &mut ConnectionSlot, call: RequestContext<'_>) -> Result<()> {
        if slot.unanswered > 0 {
            self.run_with_retry(slot, call, |connection| connection.ping(call.deadline))?;
            slot.mark_answered();
        }
        Ok(())
    }

    /// Waits until no other caller uses the main connections, and then runs `operation` on them.
    fn with_main<T>(
        &self,
        call: RequestContext<'_>,
        operation: impl FnOnce(&mut MainConnections) -> Result<T>,
    ) -> Result<T> {
        let take_main = || lock(&self.main).take();
        let main = wait_until(
            &self.main_returned,
            WaitPolicy::SLEEP_SOON,
            call.deadline,
            || None,
            take_main,
        )
        .map_err(|_| self.failure_error(call, RequestFailure::Timeout))?;
        let mut guard = MainConnectionGuard { pool: self, main: Some(main) };
        match &mut guard.main {
            Some(main) => operation(main),
            None => Err(Error::internal("the main connections are missing")),
        }
    }

    /// Runs an operation on a connection. If the connection breaks, connects again and repeats the
    /// operation once, unless the operation may have changed the store or one-way requests may be
    /// lost.
    fn run_with_retry<T>(
        &self,
        slot: &mut ConnectionSlot,
        call: RequestContext<'_>,
        mut operation: impl FnMut(&mut StoreConnection) -> RequestResult<T>,
    ) -> Result<T> {
        let mut first_loss = None;
        loop {
            let mut connection = match slot.take_usable() {
                Some(connection) => connection,
                None => self.connect_slot(slot, call).context(|| match &first_loss {
                    Some(cause) => {
                        format!(
                            "{}: connection to {} lost ({cause})",
                            call.op_name,
                            self.describe()
                        )
                    }
                    None => call.op_name.to_owned(),
                })?,
            };
            match operation(&mut connection) {
                Ok(value) => {
                    slot.connection = Some(connection);
                    return Ok(value);
                }
                Err(RequestFailure::Lost { cause, was_sent: sent })
                    if first_loss.is_none()
                        && slot.unanswered == 0
                        && (call.retry == RequestRetry::Once || !sent) =>
                {
                    first_loss = Some(cause);
                }
                Err(failure) => {
                    let error = self.failure_error(call, failure);
                    return Err(lost_requests_error(std::mem::take(&mut slot.unanswered), error));
                }
            }
        }
    }

    fn connect_slot(
        &self,
        slot: &ConnectionSlot,
        call: RequestContext<'_>,
    ) -> Result<Box<StoreConnection>> {
        let connection = if slot.tcp_only == self.peer.tcp_only {
            connect::connect_once(&self.peer, call.deadline)
        } else {
            let peer = StoreEndpoint { tcp_only: slot.tcp_only, ..self.peer.clone() };
            connect::connect_once(&peer, call.deadline)
        };
        connection.map(Box::new)
    }

    fn failure_error(&self, call: RequestContext<'_>, failure: RequestFailure) -> Error {
        let store = self.describe();
        let caveat = match call.retry {
            RequestRetry::Never => "; it is unknown whether the change took effect",
            RequestRetry::Once => "",
        };
        let (kind, description) = match &failure {
            RequestFailure::Timeout => {
                let ms = call.deadline.elapsed().as_millis();
                let advice = "check that its process runs, and whether its host is overloaded";
                (ErrorKind::Timeout, format!("{store} did not answer within {ms} ms: {advice}"))
            }
            RequestFailure::Lost { cause, .. } => {
                let advice = "check that its process still runs";
                (ErrorKind::Connection, format!("connection to {store} lost ({cause}): {advice}"))
            }
            RequestFailure::AuthFailed(auth_failure) => {
                return auth_failure.to_error(&self.peer).context(call.op_name);
            }
            RequestFailure::Malformed(_) | RequestFailure::Refused(_) => (
                ErrorKind::Connection,
                format!("{store} {}", failure.reply_error().unwrap_or_default()),
            ),
        };
        let error = Error::new(kind, format!("{}: {description}{caveat}", call.op_name));
        match failure {
            RequestFailure::Lost { cause, .. } => error.with_source(cause),
            _ => error,
        }
    }

    /// Returns the store's name for messages.
    pub(super) fn describe(&self) -> String {
        format!("the store at {}", self.peer)
    }

    #[cfg(test)]
    pub(super) fn is_main_usable(&self) -> bool {
        self.main_matches(StoreConnection::is_usable)
    }

    #[cfg(test)]
    pub(super) fn assume_shared_core(&self) {
        let mut main = self.main.lock().unwrap();
        let primary = main.as_mut().and_then(|main| main.primary.connection.as_deref_mut());
        primary.unwrap().assume_shared_core();
    }

    #[cfg(test)]
    pub(super) fn has_bulk(&self) -> bool {
        self.main.lock().unwrap().as_ref().is_some_and(|main| main.bulk.connection.is_some())
    }

    #[cfg(test)]
    pub(super) fn is_shortcut(&self) -> bool {
        self.main_matches(StoreConnection::is_unix_socket)
    }

    #[cfg(test)]
    fn main_matches(&self, predicate: fn(&StoreConnection) -> bool) -> bool {
        let main = self.main.lock().unwrap();
        main.as_ref().and_then(|main| main.primary.connection.as_deref()).is_some_and(predicate)
    }
}

/// Adds to a connection error the number of earlier one-way requests that may be lost.
fn lost_requests_error(lost: u64, error: Error) -> Error {
    if lost == 0 {
        return error;
    }
    let calls = if lost == 1 { "call" } else { "calls" };
    let message = format!(
        "{}; {lost} earlier {calls} (set, append, multi_set or queue_push) may be lost too",
        error.message()
    );
    Error::new(ErrorKind::Connection, message).with_source(error)
}

impl MainConnections {
    /// Selects the connection for a request with a reply: the bulk connection if it has unconfirmed
    /// requests, otherwise the primary connection.
    fn slot_for_round_trip(&mut self) -> &mut ConnectionSlot {
        self.one_way_streak = 0;
        if self.bulk.unanswered > 0 { &mut self.bulk } else { &mut self.primary }
    }
}

impl ConnectionSlot {
    fn new(connection: Option<StoreConnection>, tcp_only: bool) -> Self {
        let connection = connection.map(Box::new);
        Self { connection, unanswered: 0, last_used: Instant::now(), tcp_only }
    }

    /// Records that all requests on this connection have taken effect.
    fn mark_answered(&mut self) {
        self.unanswered = 0;
        self.last_used = Instant::now();
    }

    /// Takes the connection, unless the server has closed it.
    fn take_usable(&mut self) -> Option<Box<StoreConnection>> {
        let connection = self.connection.take()?;
        // Keep a connection with unconfirmed requests even if it is broken. The next request on it
        // then fails, and the error reports that requests may be lost.
        let is_reusable = self.unanswered > 0
            || self.last_used.elapsed() < IDLE_CHECK_INTERVAL
            || connection.is_usable();
        is_reusable.then_some(connection)
    }
}

/// A guard that returns the main connections on drop.
struct MainConnectionGuard<'a> {
    pool: &'a ConnectionPool,
    main: Option<Box<MainConnections>>,
}

impl Drop for MainConnectionGuard<'_> {
    fn drop(&mut self) {
        *lock(&self.pool.main) = self.main.take();
        self.pool.main_returned.notify();
    }
}
