//! The connections of one client, and what a broken one means.
//!
//! There is one *main* connection, on which all requests go that are answered at once or not at
//! all, one caller after another, so that they take place in the order in which they were made.
//! Requests without an answer (SET, APPEND, `MULTI_SET`, `QUEUE_PUSH`) are not waited for: the next
//! answer on the main connection shows that they took place. Whatever may have to wait at the
//! server takes a connection of its own from a small pool of *side* connections, once the main one
//! has nothing outstanding any more. So a thread that waits for a key holds up nobody, and what one
//! thread does in order, all see in order.
//!
//! On the server's own host the main connection is a Unix socket, which answers sooner than TCP.
//! But many small requests that are not answered take more of the kernel's time there, since each
//! is a message of its own; that shows where client and server share a core. So there a long row of
//! those goes on over TCP (the *bulk* connection), up to the next request with an answer; only one
//! of the two ever has anything outstanding.
//!
//! When a connection breaks, another is made, and a request is repeated on it, once, if it changes
//! nothing or if not a byte of it was sent. If requests without an answer were outstanding, they
//! may be lost, and the next call says so. Torch's protocol has no other way to refuse a request
//! than to close the connection.

use super::connect::{self, StoreEndpoint};
use super::connection::{RequestFailure, StoreConnection};
use super::proto::StoreRequest;
use crate::base::error::ErrorContext as _;
use crate::base::{Deadline, Error, ErrorKind, Result};
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitPolicy, wait_until};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How many idle side connections are kept.
const MAX_IDLE_SIDE_CONNECTIONS: usize = 4;

/// After how long without use the main connection is looked at before it is used again.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// How many requests without an answer in a row are worth the bulk connection.
const BULK_THRESHOLD: u32 = 8;

/// How long the bulk connection may take to be made.
const BULK_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether an operation is tried anew when its connection is lost in mid-operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestRetry {
    /// It may have taken place.
    Never,
    /// It changes nothing.
    Once,
}

/// All connections of a client.
#[derive(Debug)]
pub(super) struct ConnectionPool {
    peer: StoreEndpoint,
    /// Away while somebody uses it.
    main: Mutex<Option<Box<MainConnections>>>,
    /// Rung when that comes back.
    main_returned: Doorbell,
    side_slots: Mutex<Vec<ConnectionSlot>>,
}

/// The connections for what does not wait. Only one of them ever has something unanswered.
#[derive(Debug)]
struct MainConnections {
    primary: ConnectionSlot,
    /// Over TCP where the near one is not.
    bulk: ConnectionSlot,
    /// How many requests without an answer were the last ones.
    one_way_streak: u32,
    /// The bulk connection could not be made; the near one does as well.
    is_bulk_unavailable: bool,
}

/// A connection, which is made when it is needed, and what is known of it.
#[derive(Debug)]
struct ConnectionSlot {
    connection: Option<Box<StoreConnection>>,
    /// How many requests without an answer were sent since the last answer.
    unanswered: u64,
    last_used: Instant,
    /// Not over a Unix socket.
    tcp_only: bool,
}

/// A request in words: for messages.
#[derive(Clone, Copy)]
struct RequestContext<'a> {
    op_name: &'a str,
    retry: RequestRetry,
    deadline: &'a Deadline,
}

impl ConnectionPool {
    /// The connections to a server, of which the first is this one.
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

    /// The server.
    pub(super) fn peer(&self) -> &StoreEndpoint {
        &self.peer
    }

    /// Sends a request that has no answer.
    ///
    /// # Errors
    /// See [`ConnectionPool::round_trip`].
    pub(super) fn send_one_way(
        &self,
        op_name: &str,
        request: &StoreRequest<'_>,
        deadline: &Deadline,
    ) -> Result<()> {
        let call = RequestContext { op_name, retry: RequestRetry::Never, deadline };
        self.with_main(call, |main| {
            let slot = self.slot_for_one_way(main, call)?;
            let send = |connection: &mut StoreConnection| {
                connection.send(std::slice::from_ref(request), deadline)
            };
            self.run_with_retry(slot, call, send)?;
            slot.unanswered += 1;
            Ok(())
        })
    }

    /// Where a request without an answer goes.
    fn slot_for_one_way<'a>(
        &self,
        main: &'a mut MainConnections,
        call: RequestContext<'_>,
    ) -> Result<&'a mut ConnectionSlot> {
        main.one_way_streak = main.one_way_streak.saturating_add(1);
        let MainConnections {
            primary: near,
            bulk,
            one_way_streak: in_a_row,
            is_bulk_unavailable: no_bulk,
        } = main;
        if bulk.unanswered > 0 {
            return Ok(bulk);
        }
        let prefers_bulk = |near: &StoreConnection| near.is_unix_socket() && near.shares_core();
        if *in_a_row <= BULK_THRESHOLD
            || *no_bulk
            || !near.connection.as_deref().is_some_and(prefers_bulk)
        {
            return Ok(near);
        }
        if bulk.connection.is_none() {
            let limit = call.deadline.capped(BULK_CONNECT_TIMEOUT);
            bulk.connection =
                self.connect_slot(bulk, RequestContext { deadline: &limit, ..call }).ok();
            *no_bulk = bulk.connection.is_none();
        }
        self.confirm_slot(near, call)?;
        Ok(if *no_bulk { near } else { bulk })
    }

    /// Runs an operation on the main connection that ends with an answer.
    ///
    /// # Errors
    /// `Timeout`; `StoreConnection` where the server cannot be reached, has broken the connection,
    /// or where earlier requests without an answer may be lost.
    pub(super) fn round_trip<T>(
        &self,
        op_name: &str,
        retry: RequestRetry,
        deadline: &Deadline,
        operation: impl FnMut(&mut StoreConnection) -> std::result::Result<T, RequestFailure>,
    ) -> Result<T> {
        let call = RequestContext { op_name, retry, deadline };
        self.with_main(call, |main| {
            let slot = main.slot_for_round_trip();
            let value = self.run_with_retry(slot, call, operation)?;
            slot.mark_answered();
            Ok(value)
        })
    }

    /// Runs an operation that may wait, on a connection of its own.
    ///
    /// # Errors
    /// See [`ConnectionPool::round_trip`].
    pub(super) fn run_on_side_connection<T>(
        &self,
        op_name: &str,
        retry: RequestRetry,
        deadline: &Deadline,
        operation: impl FnMut(&mut StoreConnection) -> std::result::Result<T, RequestFailure>,
    ) -> Result<T> {
        let call = RequestContext { op_name, retry, deadline };
        self.confirm_all(call)?;
        let mut slot = self
            .lock_side_slots()
            .pop()
            .unwrap_or_else(|| ConnectionSlot::new(None, self.peer.tcp_only));
        let value = self.run_with_retry(&mut slot, call, operation)?;
        let mut side = self.lock_side_slots();
        if side.len() < MAX_IDLE_SIDE_CONNECTIONS {
            side.push(slot);
        }
        Ok(value)
    }

    /// Whether something was told that no answer has confirmed yet.
    ///
    /// # Errors
    /// `Timeout` where the main connection is in use.
    pub(super) fn has_unconfirmed(&self, op_name: &str, deadline: &Deadline) -> Result<bool> {
        let call = RequestContext { op_name, retry: RequestRetry::Once, deadline };
        self.with_main(call, |main| Ok(main.primary.unanswered + main.bulk.unanswered > 0))
    }

    /// A connection of its own for a request that may end it.
    ///
    /// # Errors
    /// As [`connect_slot::connect_once`].
    pub(super) fn connect_new(&self, deadline: &Deadline) -> Result<StoreConnection> {
        connect::connect_once(&self.peer, deadline)
    }

    /// Returns when all that was told has taken place.
    fn confirm_all(&self, call: RequestContext<'_>) -> Result<()> {
        self.with_main(call, |main| self.confirm_slot(main.slot_for_round_trip(), call))
    }

    /// Returns when all that was told on a lane has taken place.
    fn confirm_slot(&self, slot: &mut ConnectionSlot, call: RequestContext<'_>) -> Result<()> {
        if slot.unanswered > 0 {
            self.run_with_retry(slot, call, |connection| connection.ping(call.deadline))?;
            slot.mark_answered();
        }
        Ok(())
    }

    /// Lends out the main connection, to one caller at a time.
    fn with_main<T>(
        &self,
        call: RequestContext<'_>,
        operation: impl FnOnce(&mut MainConnections) -> Result<T>,
    ) -> Result<T> {
        let take_main = || self.main.lock().unwrap_or_else(PoisonError::into_inner).take();
        let main = wait_until(
            &self.main_returned,
            WaitPolicy::SLEEP_SOON,
            call.deadline,
            || None,
            take_main,
        )
        .map_err(|_| self.failure_error(call, &RequestFailure::Timeout))?;
        let mut guard = MainConnectionGuard { pool: self, main: Some(main) };
        match &mut guard.main {
            Some(main) => operation(main),
            None => Err(Error::internal("the main connection was lent out empty")),
        }
    }

    fn lock_side_slots(&self) -> MutexGuard<'_, Vec<ConnectionSlot>> {
        // A list of connections is whole at any time.
        self.side_slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs an operation on a lane, once more where its connection breaks and that does no harm.
    fn run_with_retry<T>(
        &self,
        slot: &mut ConnectionSlot,
        call: RequestContext<'_>,
        mut operation: impl FnMut(&mut StoreConnection) -> std::result::Result<T, RequestFailure>,
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
                    let error = self.failure_error(call, &failure);
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

    fn failure_error(&self, call: RequestContext<'_>, failure: &RequestFailure) -> Error {
        let store = self.describe();
        let caveat = match call.retry {
            RequestRetry::Never => "; whether the change took place is unknown",
            RequestRetry::Once => "",
        };
        let (kind, description) = match failure {
            RequestFailure::Timeout => {
                let ms = call.deadline.elapsed().as_millis();
                (ErrorKind::Timeout, format!("{store} did not answer within {ms} ms"))
            }
            RequestFailure::Lost { cause, .. } => {
                (ErrorKind::Connection, format!("connection to {store} lost ({cause})"))
            }
            RequestFailure::AuthFailed(obstacle) => {
                return obstacle.to_error(&self.peer).context(call.op_name);
            }
            RequestFailure::Malformed(got) => {
                (ErrorKind::Connection, format!("{store} sent {got}"))
            }
            RequestFailure::Refused(word) => {
                (ErrorKind::Connection, format!("{store} sent \"{}\"", word.escape_ascii()))
            }
        };
        Error::new(kind, format!("{}: {description}{caveat}", call.op_name))
    }

    /// The store, for messages.
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

/// The error of a call on a connection whose end may have taken earlier calls along.
fn lost_requests_error(lost: u64, error: Error) -> Error {
    if lost == 0 {
        return error;
    }
    let calls = if lost == 1 { "call" } else { "calls" };
    let message = format!(
        "{}; {lost} earlier {calls} (set, append, multi_set or queue_push) may be lost too",
        error.message()
    );
    Error::new(ErrorKind::Connection, message)
}

impl MainConnections {
    /// Where a request with an answer goes: behind those that have none yet.
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

    /// All that was sent on it has taken place.
    fn mark_answered(&mut self) {
        self.unanswered = 0;
        self.last_used = Instant::now();
    }

    /// Takes out the connection, unless the server has closed it meanwhile.
    fn take_usable(&mut self) -> Option<Box<StoreConnection>> {
        let connection = self.connection.take()?;
        // One with something outstanding must not be replaced unnoticed.
        let is_reusable = self.unanswered > 0
            || self.last_used.elapsed() < IDLE_CHECK_INTERVAL
            || connection.is_usable();
        is_reusable.then_some(connection)
    }
}

/// The main connection in use; goes back whatever happens.
struct MainConnectionGuard<'a> {
    pool: &'a ConnectionPool,
    main: Option<Box<MainConnections>>,
}

impl Drop for MainConnectionGuard<'_> {
    fn drop(&mut self) {
        *self.pool.main.lock().unwrap_or_else(PoisonError::into_inner) = self.main.take();
        self.pool.main_returned.notify();
    }
}
