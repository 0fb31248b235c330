//! The client of a store behind TCP.
//!
//! Connections: each call takes one from a small pool of idle ones, or opens another, and gives it
//! back when done. So a thread that waits for a key holds up nobody, and the number of connections is
//! that of the calls in progress at once. Since every call that changes something returns only when
//! the server has confirmed it, what one thread does in order, all see in order, whichever connections
//! it took.
//!
//! Failures: torch's protocol answers a bad request by closing the connection, and a SET not at all.
//! Therefore requests without an answer are followed by a PING in the same write, and a lost
//! connection is tried anew, once, if the request changes nothing or not a byte of it was sent.
//! Otherwise the caller learns that the outcome is unknown.

use super::connect::{self, Peer};
use super::connection::{Connection, Failure, GRACE};
use super::proto::{self, Bytes, Request};
use super::server::{Server, ServerOptions};
use crate::base::error::Context as _;
use crate::base::{Deadline, Error, ErrorKind, Result};
use crate::store::limits::{check_count, check_total, check_value};
use crate::store::table::parse_number;
use crate::store::{Store, missing_keys, not_a_number};
use crate::wait;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How many idle connections are kept.
const KEPT_IDLE: usize = 4;
/// The key that counts the clients of a job; the only one without "/" before it.
const ARRIVALS: &[u8] = b"init/";
/// How often the arrivals are looked at.
const ARRIVALS_EVERY: Duration = Duration::from_millis(10);

/// Whom to connect to, and as part of what.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// The server's host name or address literal.
    pub host: String,
    /// The server's port.
    pub port: u16,
    /// The number of clients of the job, this one included; with it, this client counts itself.
    pub world_size: Option<usize>,
    /// In the process that hosts the server: wait until all clients of the job have counted
    /// themselves. Elsewhere it means nothing, as with torch.
    pub wait_for_workers: bool,
}

/// A store whose values are in a server, reached over TCP. Share it through an `Arc`.
#[derive(Debug)]
pub struct TcpStore {
    peer: Peer,
    idle: Mutex<Vec<Connection>>,
    /// Kept running as long as this store lives, where this process hosts it.
    server: Option<Arc<Server>>,
}

impl TcpStore {
    /// Connects to a server, which may start later.
    ///
    /// # Errors
    /// `Connection` where the server cannot be reached until the deadline, or is something else;
    /// `Timeout` where nothing answers, or where not all workers have come.
    pub fn connect(options: ClientOptions, deadline: &Deadline) -> Result<Self> {
        let peer = Peer { host: options.host.clone(), port: options.port, local: None };
        Self::join(peer, None, &options, deadline)
    }

    /// Starts a server in this process and connects to it. The server lives as long as the store.
    /// Its port replaces that of `client`; an empty host in `client` means an address that the
    /// server listens on.
    ///
    /// # Errors
    /// Those of [`Server::start`] and [`TcpStore::connect`].
    pub fn host(server: ServerOptions, client: ClientOptions, deadline: &Deadline) -> Result<Self> {
        let server = Server::start(server)?;
        let local = reachable(server.address());
        let host =
            if client.host.is_empty() { local.ip().to_string() } else { client.host.clone() };
        let peer = Peer { host, port: server.port(), local: Some(local) };
        Self::join(peer, Some(Arc::new(server)), &client, deadline)
    }

    /// The server, where this process hosts it.
    pub fn server(&self) -> Option<&Arc<Server>> {
        self.server.as_ref()
    }

    fn join(
        peer: Peer,
        server: Option<Arc<Server>>,
        options: &ClientOptions,
        deadline: &Deadline,
    ) -> Result<Self> {
        let connection = connect::persistently(&peer, deadline)?;
        let store = Self { peer, idle: Mutex::new(vec![connection]), server };
        if let Some(expected) = options.world_size {
            let count = |connection: &mut Connection| {
                connection.send(&[Request::Add(ARRIVALS.into(), 1)], deadline)?;
                connection.number(deadline)
            };
            store.run("joining", Again::Never, deadline, count)?;
            if options.wait_for_workers && store.server.is_some() {
                store.wait_for_workers(expected, deadline)?;
            }
        }
        Ok(store)
    }

    fn wait_for_workers(&self, expected: usize, deadline: &Deadline) -> Result<()> {
        let key = Bytes::Borrowed(ARRIVALS);
        loop {
            let fetch = |connection: &mut Connection| {
                connection.wait(std::slice::from_ref(&key), deadline)?;
                let limit = at_least_grace(deadline);
                connection.send(&[Request::Get(key.clone())], &limit)?;
                connection.bytes(&limit)
            };
            let text = self.run("waiting for the workers", Again::Once, deadline, fetch)?;
            let joined = parse_number(&text).unwrap_or(0);
            if usize::try_from(joined).is_ok_and(|joined| joined >= expected) {
                return Ok(());
            }
            if deadline.has_passed() {
                let ms = deadline.elapsed().as_millis();
                let message = format!(
                    "timed out after {ms} ms waiting for the workers at the store at {}: {joined} \
                     of {expected} have joined",
                    self.peer
                );
                return Err(Error::new(ErrorKind::Timeout, message));
            }
            wait::pause(ARRIVALS_EVERY, deadline);
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        // A list of connections is whole at any time.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An idle connection that is still good, or a new one.
    fn take(&self, deadline: &Deadline) -> Result<Connection> {
        loop {
            let Some(connection) = self.idle().pop() else {
                return connect::once(&self.peer, deadline);
            };
            if connection.is_usable() {
                return Ok(connection);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn idle_is_usable(&self) -> bool {
        self.idle().iter().all(Connection::is_usable)
    }

    fn give_back(&self, connection: Connection) {
        let mut idle = self.idle();
        if idle.len() < KEPT_IDLE {
            idle.push(connection);
        }
    }

    /// Runs one operation on a connection of its own.
    fn run<T>(
        &self,
        what: &str,
        again: Again,
        deadline: &Deadline,
        mut operation: impl FnMut(&mut Connection) -> std::result::Result<T, Failure>,
    ) -> Result<T> {
        let mut first_loss = None;
        loop {
            let mut connection = self.take(deadline).context(|| match &first_loss {
                Some(cause) => format!("{what}: connection to {} lost ({cause})", self.describe()),
                None => what.to_owned(),
            })?;
            match operation(&mut connection) {
                Ok(value) => {
                    self.give_back(connection);
                    return Ok(value);
                }
                Err(Failure::Lost { cause, sent })
                    if first_loss.is_none() && (again == Again::Once || !sent) =>
                {
                    first_loss = Some(cause);
                }
                Err(failure) => return Err(self.failed(what, &failure, again, deadline)),
            }
        }
    }

    fn failed(&self, what: &str, failure: &Failure, again: Again, deadline: &Deadline) -> Error {
        let store = self.describe();
        let unknown = match again {
            Again::Never => "; whether the change took place is unknown",
            Again::Once => "",
        };
        match failure {
            Failure::Timeout => {
                let ms = deadline.elapsed().as_millis();
                let message = format!("{what}: {store} did not answer within {ms} ms{unknown}");
                Error::new(ErrorKind::Timeout, message)
            }
            Failure::Lost { cause, .. } => {
                let message = format!("{what}: connection to {store} lost ({cause}){unknown}");
                Error::new(ErrorKind::Connection, message)
            }
            Failure::Garbled(got) => {
                let message = format!("{what}: {store} sent {got}{unknown}");
                Error::new(ErrorKind::Connection, message)
            }
        }
    }

    /// Waits for all keys, then fetches. A fetch that finds a key gone (deleted meanwhile, or never
    /// there: torch's server wakes waiters too often) waits again.
    fn once_there<T>(
        &self,
        what: &str,
        user_keys: &[&[u8]],
        deadline: &Deadline,
        fetch: impl Fn(
            &mut Connection,
            &[Bytes<'_>],
            &Deadline,
        ) -> std::result::Result<Option<T>, Failure>,
    ) -> Result<T> {
        let keys = wire_keys(user_keys)?;
        let attempt = |connection: &mut Connection| {
            loop {
                if !connection.wait(&keys, deadline)? {
                    let missing = connection.missing(&keys)?;
                    if !missing.is_empty() {
                        return Ok(Err(missing));
                    }
                }
                if let Some(value) = fetch(connection, &keys, &at_least_grace(deadline))? {
                    return Ok(Ok(value));
                }
            }
        };
        self.run(what, Again::Once, deadline, attempt)?.map_err(|missing| {
            let missing: Vec<_> = missing.into_iter().map(|position| user_keys[position]).collect();
            missing_keys(&self.describe(), &missing, deadline).context(what)
        })
    }

    /// True where the server holds something under `key` that is not a number.
    fn holds_no_number(&self, key: &Bytes<'_>, deadline: &Deadline) -> Result<bool> {
        self.run("add", Again::Once, deadline, |connection| {
            if !connection.check(std::slice::from_ref(key), deadline)? {
                return Ok(false);
            }
            connection.send(&[Request::Get(key.clone())], deadline)?;
            Ok(parse_number(&connection.bytes(deadline)?).is_none())
        })
    }

    /// Refuses to begin what could not be finished: a change that may or may not have taken place
    /// helps nobody.
    fn in_time(&self, what: &str, deadline: &Deadline) -> Result<()> {
        if !deadline.has_passed() {
            return Ok(());
        }
        let ms = deadline.elapsed().as_millis();
        let message =
            format!("{what}: the deadline passed before {} was asked ({ms} ms)", self.describe());
        Err(Error::new(ErrorKind::Timeout, message))
    }
}

/// Whether an operation is tried anew when its connection is lost in mid-operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    /// It may have taken place.
    Never,
    /// It changes nothing.
    Once,
}

impl Store for TcpStore {
    fn set(&self, key: &[u8], value: &[u8], deadline: &Deadline) -> Result<()> {
        let key = wire_key(key)?;
        check_value(value)?;
        self.in_time("set", deadline)?;
        self.run("set", Again::Never, deadline, |connection| {
            connection.confirmed(Request::Set(key.clone(), value.into()), deadline)
        })
    }

    fn get(&self, key: &[u8], deadline: &Deadline) -> Result<Vec<u8>> {
        self.once_there("get", &[key], deadline, |connection, keys, limit| {
            connection.send(&[Request::Get(keys[0].clone())], limit)?;
            let value = connection.bytes(limit)?;
            let there = !value.is_empty() || connection.check(keys, limit)?;
            Ok(there.then_some(value))
        })
    }

    fn add(&self, key: &[u8], amount: i64, deadline: &Deadline) -> Result<i64> {
        let wire = wire_key(key)?;
        self.in_time("add", deadline)?;
        let sum = self.run("add", Again::Never, deadline, |connection| {
            connection.send(&[Request::Add(wire.clone(), amount)], deadline)?;
            connection.number(deadline)
        });
        // The server's only way to refuse is to close the connection, so the reason is looked up.
        match sum {
            Err(error)
                if error.kind() == ErrorKind::Connection
                    && self.holds_no_number(&wire, deadline) == Ok(true) =>
            {
                Err(not_a_number(&self.describe(), key))
            }
            sum => sum,
        }
    }

    fn compare_set(
        &self,
        key: &[u8],
        expected: &[u8],
        desired: &[u8],
        deadline: &Deadline,
    ) -> Result<Vec<u8>> {
        let key = wire_key(key)?;
        check_value(expected)?;
        check_value(desired)?;
        self.in_time("compare_set", deadline)?;
        self.run("compare_set", Again::Never, deadline, |connection| {
            let request = Request::CompareSet(key.clone(), expected.into(), desired.into());
            connection.send(&[request], deadline)?;
            connection.bytes(deadline)
        })
    }

    fn wait(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<()> {
        self.once_there("wait", keys, deadline, |_, _, _| Ok(Some(())))
    }

    fn check(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<bool> {
        let keys = wire_keys(keys)?;
        self.in_time("check", deadline)?;
        self.run("check", Again::Once, deadline, |connection| connection.check(&keys, deadline))
    }

    fn num_keys(&self, deadline: &Deadline) -> Result<i64> {
        self.in_time("num_keys", deadline)?;
        self.run("num_keys", Again::Once, deadline, |connection| {
            connection.send(&[Request::NumKeys], deadline)?;
            connection.number(deadline)
        })
    }

    fn delete_key(&self, key: &[u8], deadline: &Deadline) -> Result<bool> {
        let key = wire_key(key)?;
        self.in_time("delete_key", deadline)?;
        self.run("delete_key", Again::Never, deadline, |connection| {
            connection.send(&[Request::DeleteKey(key.clone())], deadline)?;
            Ok(connection.number(deadline)? > 0)
        })
    }

    fn append(&self, key: &[u8], value: &[u8], deadline: &Deadline) -> Result<()> {
        let key = wire_key(key)?;
        check_value(value)?;
        self.in_time("append", deadline)?;
        self.run("append", Again::Never, deadline, |connection| {
            connection.confirmed(Request::Append(key.clone(), value.into()), deadline)
        })
    }

    fn multi_get(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<Vec<Vec<u8>>> {
        self.once_there("multi_get", keys, deadline, |connection, keys, limit| {
            connection.send(&[Request::MultiGet(keys.to_vec())], limit)?;
            let mut values = Vec::new();
            let mut empty = Vec::new();
            for key in keys {
                let value = connection.bytes(limit)?;
                if value.is_empty() {
                    empty.push(key.clone());
                }
                values.push(value);
            }
            let there = empty.is_empty() || connection.check(&empty, limit)?;
            Ok(there.then_some(values))
        })
    }

    fn multi_set(&self, pairs: &[(&[u8], &[u8])], deadline: &Deadline) -> Result<()> {
        check_count(pairs.len())?;
        let mut total = 0;
        let mut wire = Vec::with_capacity(pairs.len());
        for &(key, value) in pairs {
            check_value(value)?;
            total += key.len() + 1 + value.len();
            wire.push((wire_key(key)?, Bytes::Borrowed(value)));
        }
        check_total(total)?;
        self.in_time("multi_set", deadline)?;
        self.run("multi_set", Again::Never, deadline, |connection| {
            connection.confirmed(Request::MultiSet(wire.clone()), deadline)
        })
    }

    fn list_keys(&self, deadline: &Deadline) -> Result<Vec<Vec<u8>>> {
        self.in_time("list_keys", deadline)?;
        self.run("list_keys", Again::Once, deadline, |connection| {
            connection.send(&[Request::ListKeys], deadline)?;
            let count = connection.number(deadline)?;
            let mut keys = Vec::new();
            for _ in 0..count {
                let mut key = connection.bytes(deadline)?;
                // Names without "/" are the protocol's own.
                if key.first() == Some(&b'/') {
                    key.remove(0);
                    keys.push(key);
                }
            }
            Ok(keys)
        })
    }

    fn queue_push(&self, queue: &[u8], item: &[u8], deadline: &Deadline) -> Result<()> {
        let key = wire_key(queue)?;
        check_value(item)?;
        self.in_time("queue_push", deadline)?;
        self.run("queue_push", Again::Never, deadline, |connection| {
            connection.confirmed(Request::QueuePush(key.clone(), item.into()), deadline)
        })
    }

    fn queue_pop(&self, queue: &[u8], deadline: &Deadline) -> Result<Vec<u8>> {
        self.once_there("queue_pop", &[queue], deadline, |connection, keys, limit| {
            connection.pop(&keys[0], limit)
        })
    }

    fn queue_try_pop(&self, queue: &[u8], deadline: &Deadline) -> Result<Option<Vec<u8>>> {
        let key = wire_key(queue)?;
        self.in_time("queue_pop", deadline)?;
        self.run("queue_pop", Again::Never, deadline, |connection| connection.pop(&key, deadline))
    }

    fn queue_len(&self, queue: &[u8], deadline: &Deadline) -> Result<i64> {
        let key = wire_key(queue)?;
        self.in_time("queue_len", deadline)?;
        self.run("queue_len", Again::Once, deadline, |connection| {
            connection.send(&[Request::QueueLen(key.clone())], deadline)?;
            connection.number(deadline)
        })
    }

    fn address(&self) -> Option<(String, u16)> {
        Some((self.peer.host.clone(), self.peer.port))
    }

    fn describe(&self) -> String {
        format!("the store at {}", self.peer)
    }
}

/// Where a server that listens on `address` is reached from its own process.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => {
            // Listens to both families, and loopback has no IPv6 on some hosts.
            address = SocketAddr::from((Ipv4Addr::LOCALHOST, address.port()));
        }
        IpAddr::V4(_) | IpAddr::V6(_) => {}
    }
    address
}

/// Time to finish what has begun: the deadline, but not less than the grace.
fn at_least_grace(deadline: &Deadline) -> Deadline {
    Deadline::after(deadline.left().max(GRACE))
}

/// A user's key as it travels.
fn wire_key(key: &[u8]) -> Result<Bytes<'static>> {
    if key.len() >= proto::MAX_KEY_BYTES {
        let limit = proto::MAX_KEY_BYTES - 1;
        let message = format!("a key of {} bytes is longer than the store's {limit}", key.len());
        return Err(Error::invalid(message));
    }
    Ok(Bytes::Owned([b"/", key].concat()))
}

fn wire_keys(keys: &[&[u8]]) -> Result<Vec<Bytes<'static>>> {
    check_count(keys.len())?;
    check_total(keys.iter().map(|key| key.len() + 1).sum())?;
    keys.iter().map(|key| wire_key(key)).collect()
}
