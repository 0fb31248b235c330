//! The client of a store behind TCP: the operations, over the connections of [`link`](super::link).
//!
//! What is usually there is asked for on the main connection, in one round trip. Only when it is
//! not does the call go to a connection of its own and wait there.

use super::abilities::{Abilities, Ability};
use super::connect::{self, Peer};
use super::connection::{Connection, Failure, GRACE, at_least_grace};
use super::link::{Again, Link};
use super::names::{wire_key, wire_keys};
use super::proto::{Bytes, Request};
use super::secret::Secret;
use super::server::{Server, ServerOptions, Start};
use super::slow;
use crate::base::{Deadline, Error, ErrorKind, Result};
use crate::store::limits::{check_count, check_total, check_value};
use crate::store::table::parse_number;
use crate::store::{Store, barrier_incomplete, composed, missing_keys, not_a_number};
use crate::wait;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// The key that counts the clients of a job; the only one without "/" before it.
const ARRIVALS: &[u8] = b"init/";
/// How often the arrivals are looked at.
const ARRIVALS_EVERY: Duration = Duration::from_millis(10);
/// How long after a wait that ended for nothing the next one begins.
const AGAIN_AFTER: Duration = Duration::from_millis(2);
/// How long the store that holds a port may take to show that it is the job's own.
const JOIN_WITHIN: Duration = Duration::from_secs(10);

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
    /// Use TCP also where the server is on this host and offers a Unix socket.
    pub tcp_only: bool,
    /// What the server must prove that it knows, and this client to the server.
    pub secret: Option<Secret>,
}

/// A store whose values are in a server, reached over TCP. Share it through an `Arc`.
#[derive(Debug)]
pub struct TcpStore {
    link: Link,
    abilities: Abilities,
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
        let peer = Peer::new(&options, None);
        Self::join(peer, None, &options, deadline)
    }

    /// Starts a server in this process and connects to it. The server lives as long as the store.
    /// Its port replaces that of `client`; an empty host in `client` means an address that the
    /// server listens on. Where the port is taken and the options allow it, joins what listens
    /// there instead.
    ///
    /// # Errors
    /// Those of [`Server::start`] and [`TcpStore::connect`].
    pub fn host(server: ServerOptions, client: ClientOptions, deadline: &Deadline) -> Result<Self> {
        // Whoever proves to know the job's secret is the job's own store.
        let joins = server.join_if_taken || client.secret.is_some();
        let server = match Server::start_unless_taken(server)? {
            Start::Started(server) => server,
            Start::Taken(error) if joins => return Self::join_taken(error, client, deadline),
            Start::Taken(error) => return Err(error),
        };
        let local = reachable(server.address());
        let host =
            if client.host.is_empty() { local.ip().to_string() } else { client.host.clone() };
        let client = ClientOptions { host, port: server.port(), ..client };
        Self::join(Peer::new(&client, Some(local)), Some(server), &client, deadline)
    }

    /// Joins the store that holds the port, since it ought to be the job's own.
    fn join_taken(taken: Error, client: ClientOptions, deadline: &Deadline) -> Result<Self> {
        let limit = deadline.capped(JOIN_WITHIN);
        let connection = connect::persistently(&Peer::new(&client, None), &limit);
        let connection = connection.map_err(|error| {
            let message = format!(
                "{}; nor is it this job's store that listens there: {}",
                taken.message(),
                error.message()
            );
            Error::new(taken.kind(), message)
        })?;
        drop(connection);
        Self::connect(client, deadline)
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
        let abilities =
            if connection.is_shortcut() { Abilities::all() } else { Abilities::default() };
        let store = Self { link: Link::new(peer, connection), abilities, server };
        if let Some(expected) = options.world_size {
            let joined = Request::Add(ARRIVALS.into(), 1);
            store.link.ask("joining", Again::Never, deadline, |connection| {
                connection.send(std::slice::from_ref(&joined), deadline)?;
                connection.number(deadline)
            })?;
            if options.wait_for_workers && store.server.is_some() {
                store.wait_for_workers(expected, deadline)?;
            }
        }
        Ok(store)
    }

    /// How many clients with a world size have joined, ever.
    ///
    /// # Errors
    /// See [`Store`].
    pub fn arrivals(&self, deadline: &Deadline) -> Result<i64> {
        let text = self.value("arrivals", &Bytes::Borrowed(ARRIVALS), deadline)?;
        Ok(text.as_deref().and_then(parse_number).unwrap_or(0))
    }

    fn wait_for_workers(&self, expected: usize, deadline: &Deadline) -> Result<()> {
        loop {
            let joined = self.arrivals(&at_least_grace(deadline))?;
            if usize::try_from(joined).is_ok_and(|joined| joined >= expected) {
                return Ok(());
            }
            if deadline.has_passed() {
                let ms = deadline.elapsed().as_millis();
                let message = format!(
                    "timed out after {ms} ms waiting for the workers at {}: {joined} of {expected} \
                     have joined",
                    self.describe()
                );
                return Err(Error::new(ErrorKind::Timeout, message));
            }
            wait::pause(ARRIVALS_EVERY, deadline);
        }
    }

    /// A store over a connection to a server of libdist that cannot be reached a second time.
    #[cfg(any(test, fuzzing))]
    pub(super) fn over(connection: Connection) -> Self {
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let peer = Peer::new(&ClientOptions::default(), Some(nowhere));
        Self { link: Link::new(peer, connection), abilities: Abilities::all(), server: None }
    }

    #[cfg(test)]
    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    #[cfg(test)]
    pub(super) fn assume_all_abilities(&mut self) {
        self.abilities = Abilities::all();
    }

    /// Sends a request that has no answer.
    fn tell(&self, what: &str, request: &Request<'_>, deadline: &Deadline) -> Result<()> {
        self.in_time(what, deadline)?;
        self.link.tell(what, request, deadline)
    }

    /// Sends a request and reads its answer.
    fn ask<T>(
        &self,
        what: &str,
        again: Again,
        request: &Request<'_>,
        deadline: &Deadline,
        answer: impl Fn(&mut Connection, &Deadline) -> std::result::Result<T, Failure>,
    ) -> Result<T> {
        self.in_time(what, deadline)?;
        self.link.ask(what, again, deadline, |connection| {
            connection.send(std::slice::from_ref(request), deadline)?;
            answer(connection, deadline)
        })
    }

    /// The value of a key of the wire, if it exists.
    fn value(&self, what: &str, key: &Bytes<'_>, deadline: &Deadline) -> Result<Option<Vec<u8>>> {
        let keys = std::slice::from_ref(key);
        self.fetch(what, keys, deadline, |connection| connection.get(key, deadline))
    }

    /// What `get` finds under keys that may be missing. A server that closes the connection on
    /// those is asked whether they exist first; that it is one is found out where nothing can be
    /// lost by it.
    fn fetch<T>(
        &self,
        what: &str,
        keys: &[Bytes<'_>],
        deadline: &Deadline,
        get: impl Fn(&mut Connection) -> std::result::Result<Option<T>, Failure>,
    ) -> Result<Option<T>> {
        let ability = Ability::EmptyGets;
        if self.abilities.known(ability).is_none() && !self.link.has_told(what, deadline)? {
            match self.link.ask(what, Again::Never, deadline, &get) {
                Err(error) if error.kind() == ErrorKind::Connection => {
                    self.abilities.learn(ability, false);
                }
                Ok(None) => {
                    self.abilities.learn(ability, true);
                    return Ok(None);
                }
                outcome => return outcome,
            }
        }
        if self.has(ability, deadline)? {
            return self.link.ask(what, Again::Once, deadline, get);
        }
        self.link.ask(what, Again::Once, deadline, |connection| {
            if connection.check(keys, deadline)? { get(connection) } else { Ok(None) }
        })
    }

    /// Waits for all keys, then fetches, on a connection of its own. A fetch that finds a key gone
    /// (deleted meanwhile, or never there: torch's server wakes waiters too often) waits again.
    fn once_there<T>(
        &self,
        what: &str,
        again: Again,
        keys: &[Bytes<'_>],
        user_keys: &[&[u8]],
        deadline: &Deadline,
        fetch: impl Fn(&mut Connection, &Deadline) -> std::result::Result<Option<T>, Failure>,
    ) -> Result<T> {
        let attempt = |connection: &mut Connection| {
            loop {
                if !slow::wait(connection, self, what, (keys, user_keys), deadline)? {
                    let missing = connection.missing(keys)?;
                    if !missing.is_empty() {
                        return Ok(Err(missing));
                    }
                }
                if let Some(value) = fetch(connection, &at_least_grace(deadline))? {
                    return Ok(Ok(value));
                }
                // Gone again; or a queue of that name ends the wait for a key, or a key that for an
                // item.
                if deadline.has_passed() {
                    let missing = connection.missing(keys)?;
                    let all = || (0..keys.len()).collect();
                    return Ok(Err(if missing.is_empty() { all() } else { missing }));
                }
                wait::pause(AGAIN_AFTER, deadline);
            }
        };
        // Also a wait that has no time left asks, so that it can name what is missing.
        let limit = at_least_grace(deadline);
        self.link.apart(what, again, &limit, attempt)?.map_err(|missing| {
            let missing: Vec<_> = missing.into_iter().map(|position| user_keys[position]).collect();
            missing_keys(&self.describe(), &missing, deadline).context(what)
        })
    }

    /// True where the server holds something under `key` that is not a number.
    fn holds_no_number(&self, key: &Bytes<'_>, deadline: &Deadline) -> Result<bool> {
        let value = self.value("add", key, deadline)?;
        Ok(value.is_some_and(|text| parse_number(&text).is_none()))
    }

    fn has(&self, ability: Ability, deadline: &Deadline) -> Result<bool> {
        self.abilities.has(ability, &self.link, deadline)
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

impl Store for TcpStore {
    fn set(&self, key: &[u8], value: &[u8], deadline: &Deadline) -> Result<()> {
        check_value(value)?;
        self.tell("set", &Request::Set(wire_key(key)?, value.into()), deadline)
    }

    fn get(&self, key: &[u8], deadline: &Deadline) -> Result<Vec<u8>> {
        let wire = wire_key(key)?;
        if let Some(value) = self.value("get", &wire, &at_least_grace(deadline))? {
            return Ok(value);
        }
        let keys = std::slice::from_ref(&wire);
        self.once_there("get", Again::Once, keys, &[key], deadline, |connection, limit| {
            connection.get(&wire, limit)
        })
    }

    fn add(&self, key: &[u8], amount: i64, deadline: &Deadline) -> Result<i64> {
        let wire = wire_key(key)?;
        let request = Request::Add(wire.clone(), amount);
        // The server's only way to refuse is to close the connection, so the reason is looked up.
        match self.ask("add", Again::Never, &request, deadline, Connection::number) {
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
        check_value(expected)?;
        check_value(desired)?;
        let request = Request::CompareSet(wire_key(key)?, expected.into(), desired.into());
        self.ask("compare_set", Again::Never, &request, deadline, Connection::bytes)
    }

    fn wait(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<()> {
        let wire = wire_keys(keys)?;
        let check = Request::Check(wire.clone());
        let limit = at_least_grace(deadline);
        if self.ask("wait", Again::Once, &check, &limit, Connection::ready)? {
            return Ok(());
        }
        self.once_there("wait", Again::Once, &wire, keys, deadline, |_, _| Ok(Some(())))
    }

    fn check(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<bool> {
        let check = Request::Check(wire_keys(keys)?);
        self.ask("check", Again::Once, &check, deadline, Connection::ready)
    }

    fn num_keys(&self, deadline: &Deadline) -> Result<i64> {
        self.ask("num_keys", Again::Once, &Request::NumKeys, deadline, Connection::count)
    }

    fn delete_key(&self, key: &[u8], deadline: &Deadline) -> Result<bool> {
        let request = Request::DeleteKey(wire_key(key)?);
        Ok(self.ask("delete_key", Again::Never, &request, deadline, Connection::count)? > 0)
    }

    fn append(&self, key: &[u8], value: &[u8], deadline: &Deadline) -> Result<()> {
        check_value(value)?;
        self.tell("append", &Request::Append(wire_key(key)?, value.into()), deadline)
    }

    fn multi_get(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<Vec<Vec<u8>>> {
        let wire = wire_keys(keys)?;
        let limit = at_least_grace(deadline);
        let get = |connection: &mut Connection| connection.multi_get(&wire, &limit);
        if let Some(values) = self.fetch("multi_get", &wire, &limit, get)? {
            return Ok(values);
        }
        self.once_there("multi_get", Again::Once, &wire, keys, deadline, |connection, limit| {
            connection.multi_get(&wire, limit)
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
        self.tell("multi_set", &Request::MultiSet(wire), deadline)
    }

    fn list_keys(&self, deadline: &Deadline) -> Result<Vec<Vec<u8>>> {
        self.in_time("list_keys", deadline)?;
        if !self.has(Ability::KeyList, deadline)? {
            let message =
                format!("{} cannot list its keys: it is an older server", self.describe());
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let list = Request::ListKeys;
        self.ask("list_keys", Again::Once, &list, deadline, |connection, deadline| {
            let mut names = connection.list(deadline)?;
            // Names without "/" are the protocol's own.
            names.retain_mut(|name| name.first() == Some(&b'/') && name.remove(0) == b'/');
            Ok(names)
        })
    }

    fn queue_push(&self, queue: &[u8], item: &[u8], deadline: &Deadline) -> Result<()> {
        if !self.has(Ability::Queues, deadline)? {
            return composed::push(self, queue, item, deadline);
        }
        check_value(item)?;
        self.tell("queue_push", &Request::QueuePush(wire_key(queue)?, item.into()), deadline)
    }

    fn queue_pop(&self, queue: &[u8], deadline: &Deadline) -> Result<Vec<u8>> {
        if !self.has(Ability::Queues, deadline)? {
            return composed::pop(self, queue, deadline);
        }
        if let Some(item) = self.queue_try_pop(queue, &at_least_grace(deadline))? {
            return Ok(item);
        }
        let wire = wire_key(queue)?;
        let keys = std::slice::from_ref(&wire);
        let what = "queue_pop";
        self.once_there(what, Again::Never, keys, &[queue], deadline, |connection, limit| {
            connection.pop(&wire, limit)
        })
    }

    fn queue_try_pop(&self, queue: &[u8], deadline: &Deadline) -> Result<Option<Vec<u8>>> {
        if !self.has(Ability::Queues, deadline)? {
            return composed::try_pop(self, queue, deadline);
        }
        let wire = wire_key(queue)?;
        self.in_time("queue_pop", deadline)?;
        self.link
            .ask("queue_pop", Again::Never, deadline, |connection| connection.pop(&wire, deadline))
    }

    fn queue_len(&self, queue: &[u8], deadline: &Deadline) -> Result<i64> {
        if !self.has(Ability::Queues, deadline)? {
            return composed::queue_len(self, queue, deadline);
        }
        let request = Request::QueueLen(wire_key(queue)?);
        self.ask("queue_len", Again::Once, &request, deadline, Connection::count)
    }

    fn barrier(&self, key: &[u8], size: usize, deadline: &Deadline) -> Result<()> {
        if size == 0 {
            return Ok(());
        }
        if !self.has(Ability::Barrier, deadline)? {
            return composed::barrier(self, key, size, deadline);
        }
        let wire = wire_key(key)?;
        self.in_time("barrier", deadline)?;
        let count = i64::try_from(size).unwrap_or(i64::MAX);
        let complete = self.link.apart("barrier", Again::Never, deadline, |connection| {
            connection.barrier(&wire, count, deadline)
        })?;
        if complete {
            return Ok(());
        }
        let text = self.value("barrier", &wire, &Deadline::after(GRACE)).ok().flatten();
        let come = text.as_deref().and_then(parse_number);
        Err(barrier_incomplete(&self.describe(), key, come, size, deadline))
    }

    fn address(&self) -> Option<(String, u16)> {
        let peer = self.link.peer();
        Some((peer.host.clone(), peer.port))
    }

    fn describe(&self) -> String {
        self.link.describe()
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
