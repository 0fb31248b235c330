//! The client of a TCP store: how a process connects, and how it sends requests over the
//! connections of its [`ConnectionPool`] (a primary connection for immediate replies, and side
//! connections for waits).
//!
//! A request for a value first runs on the primary connection, in one round trip. If the value is
//! missing, the client waits for the key on a side connection and then requests the value again.
//! During a long wait, it logs the missing keys periodically.

use super::capabilities::{ServerCapabilities, ServerCapability};
use super::connect::{self, ClientOptions, StoreEndpoint};
use super::connection::{StoreConnection, extend_to_grace_period};
use super::connection_pool::{ConnectionPool, RequestContext, change, query};
use super::listener::{self, ServerOptions};
use super::proto::{Bytes, StoreRequest};
use super::request_failure::RequestResult;
use super::server::{Server, ServerStart};
use crate::base::log::LogLevel;
use crate::base::{Deadline, Error, ErrorKind, Result};
use crate::store::table::parse_number;
use crate::store::{format_keys, missing_keys};
use crate::wait;
use crate::wait::slow_wait::SlowWaitWatch;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// The key that counts the clients of a job. The protocol defines this key. All other keys begin
/// with "/" on the wire.
const WORKER_COUNT_KEY: &[u8] = b"init/";
/// The interval at which the hosting process polls the number of clients.
const WORKER_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// If a wait ended but the value is missing, the client pauses for this time before the next wait.
const RETRY_PAUSE: Duration = Duration::from_millis(2);
/// If the port is in use, the time limit for checking that the process on this port is this job's
/// store.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);

/// A client of a store server. The values are in the server. Callers share the client through an
/// `Arc`.
#[derive(Debug)]
pub struct TcpStore {
    pub(super) pool: ConnectionPool,
    capabilities: ServerCapabilities,
    /// The server, if this process hosts it. It runs at least as long as this store.
    server: Option<Arc<Server>>,
}

impl TcpStore {
    /// Connects to a server. Retries until the deadline if the server has not started yet.
    ///
    /// # Errors
    /// `Connection` if the server cannot be reached until the deadline, or is not a store.
    /// `Timeout` if the server does not answer, or if not all workers have joined. `Auth` if the
    /// server and this process do not hold the same secret.
    pub fn connect(options: ClientOptions, deadline: &Deadline) -> Result<Self> {
        let peer = StoreEndpoint::new(&options, None);
        Self::join(peer, None, &options, deadline)
    }

    /// Starts a server in this process and connects a client to it. The server runs as long as the
    /// returned store exists. The server's port replaces the port in `client`. If the host in
    /// `client` is empty, the client uses an address of the server.
    ///
    /// If another process uses the port, and `server.join_if_port_in_use` is set or `client` has a
    /// secret that `server` does not share, starts no server and joins the store on this port.
    ///
    /// # Errors
    /// Those of [`Server::start`] and [`TcpStore::connect`].
    pub fn host(server: ServerOptions, client: ClientOptions, deadline: &Deadline) -> Result<Self> {
        // With a secret it is safe to join: only the job's own store can prove that it holds the
        // secret. No other store holds a new secret.
        let has_known_secret = client.secret.is_some() && server.shared_text.is_none();
        let joins = server.join_if_port_in_use || has_known_secret;
        if server.listen_fd.is_none() {
            listener::await_name(&server.bind, deadline)?;
        }
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

    /// Joins the store of the process that uses the port. It must be this job's store; `bind_error`
    /// is the error if it is not.
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
            let call = change("join", deadline);
            store.pool.round_trip(call, |connection| {
                connection.send(std::slice::from_ref(&joined), deadline)?;
                connection.read_i64(deadline)
            })?;
            if options.wait_for_workers && store.server.is_some() {
                store.wait_for_workers(expected, deadline)?;
            }
        }
        Ok(store)
    }

    /// Returns the number of clients that have ever connected with `world_size` set in their
    /// options.
    ///
    /// # Errors
    /// See [`Store`](crate::store::Store).
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
                    self.pool.describe()
                );
                return Err(Error::new(ErrorKind::Timeout, message));
            }
            wait::pause(WORKER_POLL_INTERVAL, deadline);
        }
    }

    /// Builds a client with one connection to a libdist server. It cannot connect again.
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
    pub(super) fn assume_all_capabilities(&mut self) {
        self.capabilities = ServerCapabilities::all();
    }

    /// Sends a one-way request, which has no reply.
    pub(super) fn send_one_way(
        &self,
        op_name: &str,
        request: &StoreRequest<'_>,
        deadline: &Deadline,
    ) -> Result<()> {
        self.check_deadline(op_name, deadline)?;
        self.pool.send_one_way(change(op_name, deadline), request)
    }

    /// Sends a request and reads its reply.
    pub(super) fn round_trip<T>(
        &self,
        call: RequestContext<'_>,
        request: &StoreRequest<'_>,
        read_answer: impl Fn(&mut StoreConnection, &Deadline) -> RequestResult<T>,
    ) -> Result<T> {
        self.check_deadline(call.op_name, call.deadline)?;
        self.pool.round_trip(call, |connection| {
            connection.send(std::slice::from_ref(request), call.deadline)?;
            read_answer(connection, call.deadline)
        })
    }

    /// Returns the value of a key, or `None` if the key does not exist. `key` is in its wire form
    /// (see `key_encoding`).
    pub(super) fn fetch_value(
        &self,
        op_name: &str,
        key: &Bytes<'_>,
        deadline: &Deadline,
    ) -> Result<Option<Vec<u8>>> {
        let keys = std::slice::from_ref(key);
        self.fetch_if_present(op_name, keys, deadline, |connection| connection.get(key, deadline))
    }

    /// Runs `get` for keys that may be missing. Returns `None` if a key is missing.
    ///
    /// Torch's older server closes the connection when a client requests a missing key. For such a
    /// server, the client sends CHECK before `get`. To find out if the server is of this kind, the
    /// client tries `get` once without CHECK. A closed connection must then lose no one-way
    /// request. So the client tries this on the primary connection only if it has no unconfirmed
    /// requests, and otherwise probes the server on a separate connection.
    pub(super) fn fetch_if_present<T>(
        &self,
        op_name: &str,
        keys: &[Bytes<'_>],
        deadline: &Deadline,
        get: impl Fn(&mut StoreConnection) -> RequestResult<Option<T>>,
    ) -> Result<Option<T>> {
        let capability = ServerCapability::MissingKeyGets;
        let call = query(op_name, deadline);
        if self.capabilities.cached(capability).is_none() && !self.pool.has_unconfirmed(call)? {
            match self.pool.round_trip(change(op_name, deadline), &get) {
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
            return self.pool.round_trip(call, get);
        }
        self.pool.round_trip(call, |connection| {
            if connection.check(keys, deadline)? { get(connection) } else { Ok(None) }
        })
    }

    /// Waits for all keys on a side connection, and then runs `fetch`. If `fetch` finds a key
    /// missing, waits again. A key may be missing after the wait because another client deleted it,
    /// or because torch's server woke this waiter without reason. `user_keys` are the names of the
    /// keys for messages.
    pub(super) fn wait_and_fetch<T>(
        &self,
        call: RequestContext<'_>,
        keys: &[Bytes<'_>],
        user_keys: &[&[u8]],
        fetch: impl Fn(&mut StoreConnection, &Deadline) -> RequestResult<Option<T>>,
    ) -> Result<T> {
        let RequestContext { op_name, deadline, .. } = call;
        let attempt = |connection: &mut StoreConnection| {
            loop {
                if !self.wait_with_log(connection, op_name, keys, user_keys, deadline)? {
                    let missing = connection.find_missing(keys)?;
                    if !missing.is_empty() {
                        return Ok(Err(missing));
                    }
                }
                if let Some(value) = fetch(connection, &extend_to_grace_period(deadline))? {
                    return Ok(Ok(value));
                }
                // The wait ended, but the value is missing. Another client has deleted the key or
                // taken the item. Or a queue with the key's name ended the wait for the key, or a
                // key with the queue's name ended the wait for an item.
                if deadline.has_passed() {
                    let missing = connection.find_missing(keys)?;
                    let all_keys = || (0..keys.len()).collect();
                    return Ok(Err(if missing.is_empty() { all_keys() } else { missing }));
                }
                wait::pause(RETRY_PAUSE, deadline);
            }
        };
        // Send the query even if the deadline has passed, so that the error can name the missing
        // keys.
        let limit = extend_to_grace_period(deadline);
        let call = RequestContext { deadline: &limit, ..call };
        self.pool.run_on_side_connection(call, attempt)?.map_err(|missing| {
            let missing: Vec<_> = missing.into_iter().map(|position| user_keys[position]).collect();
            missing_keys(&self.pool.describe(), &missing, deadline).context(op_name)
        })
    }

    /// Waits for `keys`. Returns true once all keys exist, or false if the deadline passes before.
    /// Logs the missing keys periodically. For this, the wait is divided into several WAIT
    /// requests. If the log level suppresses the log lines, there is only one WAIT request.
    fn wait_with_log(
        &self,
        connection: &mut StoreConnection,
        op_name: &str,
        keys: &[Bytes<'_>],
        user_keys: &[&[u8]],
        deadline: &Deadline,
    ) -> RequestResult<bool> {
        let mut watch = SlowWaitWatch::default();
        loop {
            let mut waited = None;
            let time_to_next_log = watch.check(|lasted| waited = Some(lasted));
            if let Some(lasted) = waited {
                let missing = connection.find_missing(keys)?;
                let missing: Vec<&[u8]> =
                    missing.into_iter().map(|index| user_keys[index]).collect();
                let (store, missing) = (self.pool.describe(), format_keys(&missing));
                crate::log!(
                    LogLevel::Warn,
                    "{op_name} of {store} has waited {lasted} for {missing}"
                );
            }
            let slice = time_to_next_log.map_or(*deadline, |limit| deadline.capped(limit));
            if connection.wait(keys, &slice)? {
                return Ok(true);
            }
            if deadline.has_passed() {
                return Ok(false);
            }
        }
    }

    /// Returns true if the key exists and its value is not a number.
    pub(super) fn has_non_number(&self, key: &Bytes<'_>, deadline: &Deadline) -> Result<bool> {
        let value = self.fetch_value("add", key, deadline)?;
        Ok(value.is_some_and(|text| parse_number(&text).is_none()))
    }

    pub(super) fn has(&self, capability: ServerCapability, deadline: &Deadline) -> Result<bool> {
        self.capabilities.has(capability, &self.pool, deadline)
    }

    /// Returns an error if the deadline has passed. A caller checks this before it sends anything,
    /// so that the error means that nothing was changed.
    pub(super) fn check_deadline(&self, op_name: &str, deadline: &Deadline) -> Result<()> {
        if !deadline.has_passed() {
            return Ok(());
        }
        let ms = deadline.elapsed().as_millis();
        let message = format!(
            "{op_name}: the deadline passed before the request was sent to {} ({ms} ms)",
            self.pool.describe()
        );
        Err(Error::new(ErrorKind::Timeout, message))
    }
}

/// Returns an address at which the process of the server can reach the server itself.
fn reachable_address(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => {
            // The socket accepts IPv4 and IPv6. Use IPv4, because the loopback interface has no
            // IPv6 on some hosts.
            address = SocketAddr::from((Ipv4Addr::LOCALHOST, address.port()));
        }
        IpAddr::V4(_) | IpAddr::V6(_) => {}
    }
    address
}
