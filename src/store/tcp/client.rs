//! The client of a TCP store: implements the operations of [`Store`] over the connections of
//! [`ConnectionPool`].
//!
//! A request for a value first runs on the primary connection, in one round trip. If the value is
//! missing, the client repeats the request on a side connection and waits there.

use super::capabilities::{ServerCapabilities, ServerCapability};
use super::connect::{self, StoreEndpoint};
use super::connection::{GRACE_PERIOD, RequestFailure, StoreConnection, extend_to_grace_period};
use super::connection_pool::{ConnectionPool, RequestRetry};
use super::key_encoding::{encode_key, encode_keys};
use super::logged_wait;
use super::proto::{Bytes, StoreRequest};
use super::secret::Secret;
use super::server::{Server, ServerOptions, ServerStart};
use crate::base::{Deadline, Error, ErrorKind, Result};
use crate::store::limits::{check_count, check_total, check_value};
use crate::store::table::parse_number;
use crate::store::{Store, barrier_incomplete, composed, missing_keys, not_a_number};
use crate::wait;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// The key that counts the clients of a job; the only key without "/" in front.
const WORKER_COUNT_KEY: &[u8] = b"init/";
/// The interval for polling the number of clients.
const WORKER_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The pause between a wait that ended without a value and the next wait.
const RETRY_PAUSE: Duration = Duration::from_millis(2);
/// The time limit for validating the existing store on a port that is in use.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The options of a store client.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// The server's host name or address literal.
    pub host: String,
    /// The server's port.
    pub port: u16,
    /// The number of clients of the job, including this one. If set, this client counts itself.
    pub world_size: Option<usize>,
    /// In the process that hosts the server: wait until all clients of the job have counted
    /// themselves. Other processes ignore this option, as in torch.
    pub wait_for_workers: bool,
    /// Use TCP even if the server is on this host and offers a Unix socket.
    pub tcp_only: bool,
    /// The secret that the server must prove to this client, and this client to the server.
    pub secret: Option<Secret>,
}

/// A store whose values are in a server, reached over TCP. Callers share it through an `Arc`.
#[derive(Debug)]
pub struct TcpStore {
    pool: ConnectionPool,
    capabilities: ServerCapabilities,
    /// The server, if this process hosts it. It runs at least as long as this store.
    server: Option<Arc<Server>>,
}

impl TcpStore {
    /// Connects to a server, which may start later.
    ///
    /// # Errors
    /// `StoreConnection` if the server cannot be reached until the deadline, or is not a store;
    /// `Timeout` if it does not answer, or if not all workers have joined.
    pub fn connect(options: ClientOptions, deadline: &Deadline) -> Result<Self> {
        let peer = StoreEndpoint::new(&options, None);
        Self::join(peer, None, &options, deadline)
    }

    /// Starts a server in this process and connects to it. The server lives as long as the store.
    /// The server's port replaces the port of `client`. An empty host in `client` means an address
    /// of the server. If the port is in use and the options allow it, joins the existing store on
    /// this port instead.
    ///
    /// # Errors
    /// Those of [`Server::start`] and [`TcpStore::connect`].
    pub fn host(server: ServerOptions, client: ClientOptions, deadline: &Deadline) -> Result<Self> {
        // A store that proves that it holds the job's secret is the job's own store.
        let joins = server.join_if_port_in_use || client.secret.is_some();
        let server = match Server::start_unless_port_in_use(server)? {
            ServerStart::Started(server) => server,
            ServerStart::PortInUse(error) if joins => {
                return Self::join_existing(error, client, deadline);
            }
            ServerStart::PortInUse(error) => return Err(error),
        };
        let local = reachable_address(server.address());
        let host =
            if client.host.is_empty() { local.ip().to_string() } else { client.host.clone() };
        let client = ClientOptions { host, port: server.port(), ..client };
        Self::join(StoreEndpoint::new(&client, Some(local)), Some(server), &client, deadline)
    }

    /// Joins the existing store on the port, which should be the job's own.
    fn join_existing(
        bind_error: Error,
        client: ClientOptions,
        deadline: &Deadline,
    ) -> Result<Self> {
        let limit = deadline.capped(JOIN_TIMEOUT);
        let connection = connect::connect_with_retry(&StoreEndpoint::new(&client, None), &limit);
        let connection = connection.map_err(|error| {
            let message = format!(
                "{}; the program that uses the port is not this job's store: {}",
                bind_error.message(),
                error.message()
            );
            Error::new(bind_error.kind(), message).with_source(error)
        })?;
        drop(connection);
        Self::connect(client, deadline)
    }

    /// Returns the server, if this process hosts it.
    pub fn server(&self) -> Option<&Arc<Server>> {
        self.server.as_ref()
    }

    fn join(
        peer: StoreEndpoint,
        server: Option<Arc<Server>>,
        options: &ClientOptions,
        deadline: &Deadline,
    ) -> Result<Self> {
        let connection = connect::connect_with_retry(&peer, deadline)?;
        let capabilities = if connection.is_unix_socket() {
            ServerCapabilities::all()
        } else {
            ServerCapabilities::default()
        };
        let store = Self { pool: ConnectionPool::new(peer, connection), capabilities, server };
        if let Some(expected) = options.world_size {
            let joined = StoreRequest::Add(WORKER_COUNT_KEY.into(), 1);
            store.pool.round_trip("join", RequestRetry::Never, deadline, |connection| {
                connection.send(std::slice::from_ref(&joined), deadline)?;
                connection.read_i64(deadline)
            })?;
            if options.wait_for_workers && store.server.is_some() {
                store.wait_for_workers(expected, deadline)?;
            }
        }
        Ok(store)
    }

    /// Returns the number of clients with a world size that have ever joined.
    ///
    /// # Errors
    /// See [`Store`].
    pub fn worker_count(&self, deadline: &Deadline) -> Result<i64> {
        let text =
            self.fetch_value("worker_count", &Bytes::Borrowed(WORKER_COUNT_KEY), deadline)?;
        Ok(text.as_deref().and_then(parse_number).unwrap_or(0))
    }

    fn wait_for_workers(&self, expected: usize, deadline: &Deadline) -> Result<()> {
        loop {
            let joined = self.worker_count(&extend_to_grace_period(deadline))?;
            if usize::try_from(joined).is_ok_and(|joined| joined >= expected) {
                return Ok(());
            }
            if deadline.has_passed() {
                let ms = deadline.elapsed().as_millis();
                let message = format!(
                    "timed out after {ms} ms waiting for the workers of {}: {joined} of {expected} \
                     have joined",
                    self.describe()
                );
                return Err(Error::new(ErrorKind::Timeout, message));
            }
            wait::pause(WORKER_POLL_INTERVAL, deadline);
        }
    }

    /// Builds a store over one connection to a libdist server, without a way to reconnect.
    #[cfg(any(test, fuzzing))]
    pub(super) fn from_connection(connection: StoreConnection) -> Self {
        let unreachable = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let peer = StoreEndpoint::new(&ClientOptions::default(), Some(unreachable));
        Self {
            pool: ConnectionPool::new(peer, connection),
            capabilities: ServerCapabilities::all(),
            server: None,
        }
    }

    #[cfg(test)]
    pub(super) fn pool(&self) -> &ConnectionPool {
        &self.pool
    }

    #[cfg(test)]
    pub(super) fn assume_all_capabilities(&mut self) {
        self.capabilities = ServerCapabilities::all();
    }

    /// Sends a one-way request, which has no reply.
    fn send_one_way(
        &self,
        op_name: &str,
        request: &StoreRequest<'_>,
        deadline: &Deadline,
    ) -> Result<()> {
        self.check_deadline(op_name, deadline)?;
        self.pool.send_one_way(op_name, request, deadline)
    }

    /// Sends a request and reads its reply.
    fn round_trip<T>(
        &self,
        op_name: &str,
        retry: RequestRetry,
        request: &StoreRequest<'_>,
        deadline: &Deadline,
        read_answer: impl Fn(&mut StoreConnection, &Deadline) -> std::result::Result<T, RequestFailure>,
    ) -> Result<T> {
        self.check_deadline(op_name, deadline)?;
        self.pool.round_trip(op_name, retry, deadline, |connection| {
            connection.send(std::slice::from_ref(request), deadline)?;
            read_answer(connection, deadline)
        })
    }

    /// Returns the value of a wire key, if it exists.
    fn fetch_value(
        &self,
        op_name: &str,
        key: &Bytes<'_>,
        deadline: &Deadline,
    ) -> Result<Option<Vec<u8>>> {
        let keys = std::slice::from_ref(key);
        self.fetch_if_present(op_name, keys, deadline, |connection| connection.get(key, deadline))
    }

    /// Returns the result of `get` for keys that may be missing. For a server that closes the
    /// connection on missing keys, first checks whether they exist. The client tests this property
    /// of the server only where a closed connection loses no one-way request: on the primary
    /// connection without unconfirmed requests, or on a separate connection.
    fn fetch_if_present<T>(
        &self,
        op_name: &str,
        keys: &[Bytes<'_>],
        deadline: &Deadline,
        get: impl Fn(&mut StoreConnection) -> std::result::Result<Option<T>, RequestFailure>,
    ) -> Result<Option<T>> {
        let capability = ServerCapability::MissingKeyGets;
        if self.capabilities.cached(capability).is_none()
            && !self.pool.has_unconfirmed(op_name, deadline)?
        {
            match self.pool.round_trip(op_name, RequestRetry::Never, deadline, &get) {
                Err(error) if error.kind() == ErrorKind::Connection => {
                    self.capabilities.record(capability, false);
                }
                Ok(None) => {
                    self.capabilities.record(capability, true);
                    return Ok(None);
                }
                outcome => return outcome,
            }
        }
        if self.has(capability, deadline)? {
            return self.pool.round_trip(op_name, RequestRetry::Once, deadline, get);
        }
        self.pool.round_trip(op_name, RequestRetry::Once, deadline, |connection| {
            if connection.check(keys, deadline)? { get(connection) } else { Ok(None) }
        })
    }

    /// Waits for all keys on a side connection, then fetches them. Waits again if the fetch finds a
    /// missing key: it was deleted, or it never existed (torch's server wakes waiters too often).
    fn wait_and_fetch<T>(
        &self,
        op_name: &str,
        retry: RequestRetry,
        keys: &[Bytes<'_>],
        user_keys: &[&[u8]],
        deadline: &Deadline,
        fetch: impl Fn(
            &mut StoreConnection,
            &Deadline,
        ) -> std::result::Result<Option<T>, RequestFailure>,
    ) -> Result<T> {
        let attempt = |connection: &mut StoreConnection| {
            loop {
                if !logged_wait::wait_with_log(
                    connection,
                    self,
                    op_name,
                    (keys, user_keys),
                    deadline,
                )? {
                    let missing = connection.find_missing(keys)?;
                    if !missing.is_empty() {
                        return Ok(Err(missing));
                    }
                }
                if let Some(value) = fetch(connection, &extend_to_grace_period(deadline))? {
                    return Ok(Ok(value));
                }
                // The key was deleted. Or a queue with the key's name ended the wait for the key,
                // or a key with the queue's name ended the wait for an item.
                if deadline.has_passed() {
                    let missing = connection.find_missing(keys)?;
                    let all_keys = || (0..keys.len()).collect();
                    return Ok(Err(if missing.is_empty() { all_keys() } else { missing }));
                }
                wait::pause(RETRY_PAUSE, deadline);
            }
        };
        // A wait without time left sends its query too, so that its error can name the missing
        // keys.
        let limit = extend_to_grace_period(deadline);
        self.pool.run_on_side_connection(op_name, retry, &limit, attempt)?.map_err(|missing| {
            let missing: Vec<_> = missing.into_iter().map(|position| user_keys[position]).collect();
            missing_keys(&self.describe(), &missing, deadline).context(op_name)
        })
    }

    /// Returns true if the value under `key` exists and is not a number.
    fn has_non_number(&self, key: &Bytes<'_>, deadline: &Deadline) -> Result<bool> {
        let value = self.fetch_value("add", key, deadline)?;
        Ok(value.is_some_and(|text| parse_number(&text).is_none()))
    }

    fn has(&self, capability: ServerCapability, deadline: &Deadline) -> Result<bool> {
        self.capabilities.has(capability, &self.pool, deadline)
    }

    /// Rejects a call whose deadline has passed before sending anything, so that no change is left
    /// in an unknown state.
    fn check_deadline(&self, op_name: &str, deadline: &Deadline) -> Result<()> {
        if !deadline.has_passed() {
            return Ok(());
        }
        let ms = deadline.elapsed().as_millis();
        let message = format!(
            "{op_name}: the deadline passed before the request was sent to {} ({ms} ms)",
            self.describe()
        );
        Err(Error::new(ErrorKind::Timeout, message))
    }
}

impl Store for TcpStore {
    fn set(&self, key: &[u8], value: &[u8], deadline: &Deadline) -> Result<()> {
        check_value(value)?;
        self.send_one_way("set", &StoreRequest::Set(encode_key(key)?, value.into()), deadline)
    }

    fn get(&self, key: &[u8], deadline: &Deadline) -> Result<Vec<u8>> {
        let encoded_key = encode_key(key)?;
        if let Some(value) =
            self.fetch_value("get", &encoded_key, &extend_to_grace_period(deadline))?
        {
            return Ok(value);
        }
        let keys = std::slice::from_ref(&encoded_key);
        self.wait_and_fetch(
            "get",
            RequestRetry::Once,
            keys,
            &[key],
            deadline,
            |connection, limit| connection.get(&encoded_key, limit),
        )
    }

    fn add(&self, key: &[u8], amount: i64, deadline: &Deadline) -> Result<i64> {
        let encoded_key = encode_key(key)?;
        let request = StoreRequest::Add(encoded_key.clone(), amount);
        // The server can refuse only by closing the connection, so the client looks up the reason.
        match self.round_trip(
            "add",
            RequestRetry::Never,
            &request,
            deadline,
            StoreConnection::read_i64,
        ) {
            Err(error)
                if error.kind() == ErrorKind::Connection
                    && self.has_non_number(&encoded_key, deadline) == Ok(true) =>
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
        let request = StoreRequest::CompareSet(encode_key(key)?, expected.into(), desired.into());
        self.round_trip(
            "compare_set",
            RequestRetry::Never,
            &request,
            deadline,
            StoreConnection::read_bytes,
        )
    }

    fn wait(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<()> {
        let encoded_keys = encode_keys(keys)?;
        let check = StoreRequest::Check(encoded_keys.clone());
        let limit = extend_to_grace_period(deadline);
        if self.round_trip(
            "wait",
            RequestRetry::Once,
            &check,
            &limit,
            StoreConnection::read_ready,
        )? {
            return Ok(());
        }
        self.wait_and_fetch("wait", RequestRetry::Once, &encoded_keys, keys, deadline, |_, _| {
            Ok(Some(()))
        })
    }

    fn check(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<bool> {
        let check = StoreRequest::Check(encode_keys(keys)?);
        self.round_trip("check", RequestRetry::Once, &check, deadline, StoreConnection::read_ready)
    }

    fn num_keys(&self, deadline: &Deadline) -> Result<i64> {
        self.round_trip(
            "num_keys",
            RequestRetry::Once,
            &StoreRequest::NumKeys,
            deadline,
            StoreConnection::read_count,
        )
    }

    fn delete_key(&self, key: &[u8], deadline: &Deadline) -> Result<bool> {
        let request = StoreRequest::DeleteKey(encode_key(key)?);
        Ok(self.round_trip(
            "delete_key",
            RequestRetry::Never,
            &request,
            deadline,
            StoreConnection::read_count,
        )? > 0)
    }

    fn append(&self, key: &[u8], value: &[u8], deadline: &Deadline) -> Result<()> {
        check_value(value)?;
        self.send_one_way("append", &StoreRequest::Append(encode_key(key)?, value.into()), deadline)
    }

    fn multi_get(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<Vec<Vec<u8>>> {
        let encoded_keys = encode_keys(keys)?;
        let limit = extend_to_grace_period(deadline);
        let get = |connection: &mut StoreConnection| connection.multi_get(&encoded_keys, &limit);
        if let Some(values) = self.fetch_if_present("multi_get", &encoded_keys, &limit, get)? {
            return Ok(values);
        }
        self.wait_and_fetch(
            "multi_get",
            RequestRetry::Once,
            &encoded_keys,
            keys,
            deadline,
            |connection, limit| connection.multi_get(&encoded_keys, limit),
        )
    }

    fn multi_set(&self, pairs: &[(&[u8], &[u8])], deadline: &Deadline) -> Result<()> {
        check_count(pairs.len())?;
        let mut total = 0;
        let mut encoded_pairs = Vec::with_capacity(pairs.len());
        for &(key, value) in pairs {
            check_value(value)?;
            total += key.len() + 1 + value.len();
            encoded_pairs.push((encode_key(key)?, Bytes::Borrowed(value)));
        }
        check_total(total)?;
        self.send_one_way("multi_set", &StoreRequest::MultiSet(encoded_pairs), deadline)
    }

    fn list_keys(&self, deadline: &Deadline) -> Result<Vec<Vec<u8>>> {
        self.check_deadline("list_keys", deadline)?;
        if !self.has(ServerCapability::KeyList, deadline)? {
            let message = format!(
                "{} cannot list its keys: its server is an older version of torch",
                self.describe()
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let list = StoreRequest::ListKeys;
        self.round_trip("list_keys", RequestRetry::Once, &list, deadline, |connection, deadline| {
            let mut names = connection.read_list(deadline)?;
            // Keys without "/" in front belong to the protocol.
            names.retain_mut(|name| name.first() == Some(&b'/') && name.remove(0) == b'/');
            Ok(names)
        })
    }

    fn queue_push(&self, queue: &[u8], item: &[u8], deadline: &Deadline) -> Result<()> {
        if !self.has(ServerCapability::Queues, deadline)? {
            return composed::push(self, queue, item, deadline);
        }
        check_value(item)?;
        self.send_one_way(
            "queue_push",
            &StoreRequest::QueuePush(encode_key(queue)?, item.into()),
            deadline,
        )
    }

    fn queue_pop(&self, queue: &[u8], deadline: &Deadline) -> Result<Vec<u8>> {
        if !self.has(ServerCapability::Queues, deadline)? {
            return composed::pop(self, queue, deadline);
        }
        if let Some(item) = self.queue_try_pop(queue, &extend_to_grace_period(deadline))? {
            return Ok(item);
        }
        let encoded_key = encode_key(queue)?;
        let keys = std::slice::from_ref(&encoded_key);
        let op_name = "queue_pop";
        self.wait_and_fetch(
            op_name,
            RequestRetry::Never,
            keys,
            &[queue],
            deadline,
            |connection, limit| connection.pop(&encoded_key, limit),
        )
    }

    fn queue_try_pop(&self, queue: &[u8], deadline: &Deadline) -> Result<Option<Vec<u8>>> {
        if !self.has(ServerCapability::Queues, deadline)? {
            return composed::try_pop(self, queue, deadline);
        }
        let encoded_key = encode_key(queue)?;
        self.check_deadline("queue_pop", deadline)?;
        self.pool.round_trip("queue_pop", RequestRetry::Never, deadline, |connection| {
            connection.pop(&encoded_key, deadline)
        })
    }

    fn queue_len(&self, queue: &[u8], deadline: &Deadline) -> Result<i64> {
        if !self.has(ServerCapability::Queues, deadline)? {
            return composed::queue_len(self, queue, deadline);
        }
        let request = StoreRequest::QueueLen(encode_key(queue)?);
        self.round_trip(
            "queue_len",
            RequestRetry::Once,
            &request,
            deadline,
            StoreConnection::read_count,
        )
    }

    fn barrier(&self, key: &[u8], size: usize, deadline: &Deadline) -> Result<()> {
        if size == 0 {
            return Ok(());
        }
        if !self.has(ServerCapability::Barrier, deadline)? {
            return composed::barrier(self, key, size, deadline);
        }
        let encoded_key = encode_key(key)?;
        self.check_deadline("barrier", deadline)?;
        let count = i64::try_from(size).unwrap_or(i64::MAX);
        let complete = self.pool.run_on_side_connection(
            "barrier",
            RequestRetry::Never,
            deadline,
            |connection| connection.barrier(&encoded_key, count, deadline),
        )?;
        if complete {
            return Ok(());
        }
        let text = self
            .fetch_value("barrier", &encoded_key, &Deadline::after(GRACE_PERIOD))
            .ok()
            .flatten();
        let arrived = text.as_deref().and_then(parse_number);
        Err(barrier_incomplete(&self.describe(), key, arrived, size, deadline))
    }

    fn address(&self) -> Option<(String, u16)> {
        let peer = self.pool.peer();
        Some((peer.host.clone(), peer.port))
    }

    fn describe(&self) -> String {
        self.pool.describe()
    }
}

/// Returns an address at which the server's own process can reach it.
fn reachable_address(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => {
            // The socket listens to both families, and loopback has no IPv6 on some hosts.
            address = SocketAddr::from((Ipv4Addr::LOCALHOST, address.port()));
        }
        IpAddr::V4(_) | IpAddr::V6(_) => {}
    }
    address
}
