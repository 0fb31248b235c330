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

use super::connect::{self, Peer};
use super::connection::{Connection, Failure};
use super::proto::Request;
use crate::base::error::Context as _;
use crate::base::{Deadline, Error, ErrorKind, Result};
use crate::wait::bell::Bell;
use crate::wait::{Pace, until};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How many idle side connections are kept.
const KEPT_IDLE: usize = 4;

/// After how long without use the main connection is looked at before it is used again.
const FRESH: Duration = Duration::from_millis(10);

/// How many requests without an answer in a row are worth the bulk connection.
const LONG_ROW: u32 = 8;

/// How long the bulk connection may take to be made.
const BULK_WITHIN: Duration = Duration::from_secs(1);

/// Whether an operation is tried anew when its connection is lost in mid-operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// It may have taken place.
    Never,
    /// It changes nothing.
    Once,
}

/// All connections of a client.
#[derive(Debug)]
pub(super) struct Link {
    peer: Peer,
    /// Away while somebody uses it.
    main: Mutex<Option<Box<Main>>>,
    /// Rung when that comes back.
    returned: Bell,
    side: Mutex<Vec<Lane>>,
}

/// The connections for what does not wait. Only one of them ever has something unanswered.
#[derive(Debug)]
struct Main {
    near: Lane,
    /// Over TCP where the near one is not.
    bulk: Lane,
    /// How many requests without an answer were the last ones.
    in_a_row: u32,
    /// The bulk connection could not be made; the near one does as well.
    no_bulk: bool,
}

/// A connection, which is made when it is needed, and what is known of it.
#[derive(Debug)]
struct Lane {
    connection: Option<Box<Connection>>,
    /// How many requests without an answer were sent since the last answer.
    unanswered: u64,
    last_used: Instant,
    /// Not over a Unix socket.
    tcp_only: bool,
}

/// A request in words: for messages.
#[derive(Clone, Copy)]
struct Call<'a> {
    what: &'a str,
    again: Again,
    deadline: &'a Deadline,
}

impl Link {
    /// The connections to a server, of which the first is this one.
    pub(super) fn new(peer: Peer, connection: Connection) -> Self {
        let tcp_only = peer.tcp_only;
        let near = Lane::new(Some(connection), tcp_only);
        let main = Main { near, bulk: Lane::new(None, true), in_a_row: 0, no_bulk: false };
        Self {
            peer,
            main: Mutex::new(Some(Box::new(main))),
            returned: Bell::default(),
            side: Mutex::new(Vec::new()),
        }
    }

    /// The server.
    pub(super) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Sends a request that has no answer.
    ///
    /// # Errors
    /// See [`Link::ask`].
    pub(super) fn tell(
        &self,
        what: &str,
        request: &Request<'_>,
        deadline: &Deadline,
    ) -> Result<()> {
        let call = Call { what, again: Again::Never, deadline };
        self.on_main(call, |main| {
            let lane = self.lane_to_tell(main, call)?;
            let send = |connection: &mut Connection| {
                connection.send(std::slice::from_ref(request), deadline)
            };
            self.run(lane, call, send)?;
            lane.unanswered += 1;
            Ok(())
        })
    }

    /// Where a request without an answer goes.
    fn lane_to_tell<'a>(&self, main: &'a mut Main, call: Call<'_>) -> Result<&'a mut Lane> {
        main.in_a_row = main.in_a_row.saturating_add(1);
        let Main { near, bulk, in_a_row, no_bulk } = main;
        if bulk.unanswered > 0 {
            return Ok(bulk);
        }
        let pays = |near: &Connection| near.is_shortcut() && near.shares_core();
        if *in_a_row <= LONG_ROW || *no_bulk || !near.connection.as_deref().is_some_and(pays) {
            return Ok(near);
        }
        if bulk.connection.is_none() {
            let limit = call.deadline.capped(BULK_WITHIN);
            bulk.connection = self.connect(bulk, Call { deadline: &limit, ..call }).ok();
            *no_bulk = bulk.connection.is_none();
        }
        self.confirm(near, call)?;
        Ok(if *no_bulk { near } else { bulk })
    }

    /// Runs an operation on the main connection that ends with an answer.
    ///
    /// # Errors
    /// `Timeout`; `Connection` where the server cannot be reached, has broken the connection, or
    /// where earlier requests without an answer may be lost.
    pub(super) fn ask<T>(
        &self,
        what: &str,
        again: Again,
        deadline: &Deadline,
        operation: impl FnMut(&mut Connection) -> std::result::Result<T, Failure>,
    ) -> Result<T> {
        let call = Call { what, again, deadline };
        self.on_main(call, |main| {
            let lane = main.lane_to_ask();
            let value = self.run(lane, call, operation)?;
            lane.answered();
            Ok(value)
        })
    }

    /// Runs an operation that may wait, on a connection of its own.
    ///
    /// # Errors
    /// See [`Link::ask`].
    pub(super) fn apart<T>(
        &self,
        what: &str,
        again: Again,
        deadline: &Deadline,
        operation: impl FnMut(&mut Connection) -> std::result::Result<T, Failure>,
    ) -> Result<T> {
        let call = Call { what, again, deadline };
        self.settle(call)?;
        let mut lane = self.side().pop().unwrap_or_else(|| Lane::new(None, self.peer.tcp_only));
        let value = self.run(&mut lane, call, operation)?;
        let mut side = self.side();
        if side.len() < KEPT_IDLE {
            side.push(lane);
        }
        Ok(value)
    }

    /// Whether something was told that no answer has confirmed yet.
    ///
    /// # Errors
    /// `Timeout` where the main connection is in use.
    pub(super) fn has_told(&self, what: &str, deadline: &Deadline) -> Result<bool> {
        let call = Call { what, again: Again::Once, deadline };
        self.on_main(call, |main| Ok(main.near.unanswered + main.bulk.unanswered > 0))
    }

    /// A connection of its own for a request that may end it.
    ///
    /// # Errors
    /// As [`connect::once`].
    pub(super) fn fresh(&self, deadline: &Deadline) -> Result<Connection> {
        connect::once(&self.peer, deadline)
    }

    /// Returns when all that was told has taken place.
    fn settle(&self, call: Call<'_>) -> Result<()> {
        self.on_main(call, |main| self.confirm(main.lane_to_ask(), call))
    }

    /// Returns when all that was told on a lane has taken place.
    fn confirm(&self, lane: &mut Lane, call: Call<'_>) -> Result<()> {
        if lane.unanswered > 0 {
            self.run(lane, call, |connection| connection.ping(call.deadline))?;
            lane.answered();
        }
        Ok(())
    }

    /// Lends out the main connection, to one caller at a time.
    fn on_main<T>(&self, call: Call<'_>, act: impl FnOnce(&mut Main) -> Result<T>) -> Result<T> {
        let take = || self.main.lock().unwrap_or_else(PoisonError::into_inner).take();
        let main = until(&self.returned, Pace::PATIENT, call.deadline, || None, take)
            .map_err(|_| self.failed(call, &Failure::Timeout))?;
        let mut lent = Lent { link: self, main: Some(main) };
        match &mut lent.main {
            Some(main) => act(main),
            None => Err(Error::internal("the main connection was lent out empty")),
        }
    }

    fn side(&self) -> MutexGuard<'_, Vec<Lane>> {
        // A list of connections is whole at any time.
        self.side.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs an operation on a lane, once more where its connection breaks and that does no harm.
    fn run<T>(
        &self,
        lane: &mut Lane,
        call: Call<'_>,
        mut operation: impl FnMut(&mut Connection) -> std::result::Result<T, Failure>,
    ) -> Result<T> {
        let mut first_loss = None;
        loop {
            let mut connection = match lane.take() {
                Some(connection) => connection,
                None => self.connect(lane, call).context(|| match &first_loss {
                    Some(cause) => {
                        format!("{}: connection to {} lost ({cause})", call.what, self.describe())
                    }
                    None => call.what.to_owned(),
                })?,
            };
            match operation(&mut connection) {
                Ok(value) => {
                    lane.connection = Some(connection);
                    return Ok(value);
                }
                Err(Failure::Lost { cause, sent })
                    if first_loss.is_none()
                        && lane.unanswered == 0
                        && (call.again == Again::Once || !sent) =>
                {
                    first_loss = Some(cause);
                }
                Err(failure) => {
                    let error = self.failed(call, &failure);
                    return Err(told_in_vain(std::mem::take(&mut lane.unanswered), error));
                }
            }
        }
    }

    fn connect(&self, lane: &Lane, call: Call<'_>) -> Result<Box<Connection>> {
        let connection = if lane.tcp_only == self.peer.tcp_only {
            connect::once(&self.peer, call.deadline)
        } else {
            let peer = Peer { tcp_only: lane.tcp_only, ..self.peer.clone() };
            connect::once(&peer, call.deadline)
        };
        connection.map(Box::new)
    }

    fn failed(&self, call: Call<'_>, failure: &Failure) -> Error {
        let store = self.describe();
        let unknown = match call.again {
            Again::Never => "; whether the change took place is unknown",
            Again::Once => "",
        };
        let (kind, what) = match failure {
            Failure::Timeout => {
                let ms = call.deadline.elapsed().as_millis();
                (ErrorKind::Timeout, format!("{store} did not answer within {ms} ms"))
            }
            Failure::Lost { cause, .. } => {
                (ErrorKind::Connection, format!("connection to {store} lost ({cause})"))
            }
            Failure::Unproven(obstacle) => return obstacle.error(&self.peer).context(call.what),
            Failure::Garbled(got) => (ErrorKind::Connection, format!("{store} sent {got}")),
            Failure::Refused(word) => {
                (ErrorKind::Connection, format!("{store} sent \"{}\"", word.escape_ascii()))
            }
        };
        Error::new(kind, format!("{}: {what}{unknown}", call.what))
    }

    /// The store, for messages.
    pub(super) fn describe(&self) -> String {
        format!("the store at {}", self.peer)
    }

    #[cfg(test)]
    pub(super) fn is_usable(&self) -> bool {
        self.main_is(Connection::is_usable)
    }

    #[cfg(test)]
    pub(super) fn assume_shared_core(&self) {
        let mut main = self.main.lock().unwrap();
        let near = main.as_mut().and_then(|main| main.near.connection.as_deref_mut());
        near.unwrap().assume_shared_core();
    }

    #[cfg(test)]
    pub(super) fn has_bulk(&self) -> bool {
        self.main.lock().unwrap().as_ref().is_some_and(|main| main.bulk.connection.is_some())
    }

    #[cfg(test)]
    pub(super) fn is_shortcut(&self) -> bool {
        self.main_is(Connection::is_shortcut)
    }

    #[cfg(test)]
    fn main_is(&self, what: fn(&Connection) -> bool) -> bool {
        let main = self.main.lock().unwrap();
        main.as_ref().and_then(|main| main.near.connection.as_deref()).is_some_and(what)
    }
}

/// The error of a call on a connection whose end may have taken earlier calls along.
fn told_in_vain(lost: u64, error: Error) -> Error {
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

impl Main {
    /// Where a request with an answer goes: behind those that have none yet.
    fn lane_to_ask(&mut self) -> &mut Lane {
        self.in_a_row = 0;
        if self.bulk.unanswered > 0 { &mut self.bulk } else { &mut self.near }
    }
}

impl Lane {
    fn new(connection: Option<Connection>, tcp_only: bool) -> Self {
        let connection = connection.map(Box::new);
        Self { connection, unanswered: 0, last_used: Instant::now(), tcp_only }
    }

    /// All that was sent on it has taken place.
    fn answered(&mut self) {
        self.unanswered = 0;
        self.last_used = Instant::now();
    }

    /// Takes out the connection, unless the server has closed it meanwhile.
    fn take(&mut self) -> Option<Box<Connection>> {
        let connection = self.connection.take()?;
        // One with something outstanding must not be replaced unnoticed.
        let is_good =
            self.unanswered > 0 || self.last_used.elapsed() < FRESH || connection.is_usable();
        is_good.then_some(connection)
    }
}

/// The main connection in use; goes back whatever happens.
struct Lent<'a> {
    link: &'a Link,
    main: Option<Box<Main>>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        *self.link.main.lock().unwrap_or_else(PoisonError::into_inner) = self.main.take();
        self.link.returned.ring();
    }
}
