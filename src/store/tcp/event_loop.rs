//! The event loop of the server's thread. The loop accepts clients, reads and serves requests, and
//! writes replies. It never blocks on one client.
//!
//! Each iteration reads at most [`CHUNK_BYTES`] from each readable client, so that a busy client
//! does not delay the other clients. This module has all timers of the server. [`RequestHandler`]
//! implements the effect of the requests.

use super::client_connection::{ClientConnection, ClientName, ReadEvent};
use super::handshake::StoreSecurity;
use super::listener::StoreListener;
use super::proto;
use super::request_handler::{ClientRejection, MAX_PENDING_BYTES, RequestHandler};
use super::waiters::ConnectionId;
use crate::base::Result;
use crate::base::error::Error;
use crate::base::log::LogLevel;
use crate::sys::descriptor::above_standard_streams;
use crate::sys::limits;
use crate::sys::poll::{self, Interest, PollEvent, PollEvents, Poller};
use crate::sys::socket;
use crate::sys::stream::SocketStream;
use crate::wait::io::wait_for_events;
use crate::wait::spin_history::AdaptiveSpin;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The largest number of simultaneous connections.
pub const MAX_CONNECTIONS: usize = 65_536;
/// The largest number of connections that one iteration accepts on each listening socket.
const ACCEPTS_PER_ITERATION: usize = 64;
/// A client that has not sent a valid VALIDATE request within this time is disconnected.
const VALIDATION_TIMEOUT: Duration = Duration::from_secs(5);
/// The largest number of connections that have not sent a valid VALIDATE request. Further
/// connections close the oldest ones.
const MAX_UNVALIDATED: usize = 4096;
/// Connections that are not validated use at most the process's descriptor limit divided by this
/// number.
const DESCRIPTOR_DIVISOR: u64 = 4;
/// If the process has no free descriptor, the server accepts no connection for this time.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The shortest interval between two warnings that the server cannot accept more clients.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);
/// The largest number of bytes that one iteration reads from one connection.
const CHUNK_BYTES: usize = 64 << 10;
/// The limit of the buffered bytes of all clients together: their unfinished requests and unsent
/// replies. If the sum exceeds this limit, the server disconnects the client with the most buffered
/// bytes.
const MAX_BUFFERED_BYTES: usize = 1 << 30;

const STOP_TOKEN: u64 = 0;
const FIRST_LISTENER_TOKEN: u64 = 1;
/// The first connection id. A connection's id is also its token in the poller. No id is used twice.
const FIRST_CONNECTION_ID: u64 = 1 << 16;

/// The state of the server's thread.
#[derive(Debug)]
pub(super) struct ServerEventLoop {
    poller: Poller,
    listeners: Vec<StoreListener>,
    /// One end of a socket pair, registered in the poller under `STOP_TOKEN`. It becomes readable
    /// when [`super::Server`] closes the other end, and then the loop ends. The field keeps the
    /// descriptor open.
    _stop: UnixStream,
    handler: RequestHandler,
    /// The secret that each client must prove to hold, and whether connections are encrypted.
    security: StoreSecurity,
    clients: HashMap<ConnectionId, ClientConnection>,
    next_id: ConnectionId,
    /// Connections that have not sent VALIDATE when they were added, with their time limit for it,
    /// the earliest limit first.
    unvalidated: VecDeque<(Instant, ConnectionId)>,
    /// The largest number of connections that are not validated.
    max_unvalidated: usize,
    /// The sum of the buffered bytes of all clients. See [`MAX_BUFFERED_BYTES`].
    buffered_bytes: usize,
    /// A descriptor that the server holds in reserve. If the process has no free descriptor, the
    /// server closes the spare descriptor, accepts the next client in its place, and sends this
    /// client the status word [`proto::SERVER_FULL`]. Without the spare descriptor, the client
    /// would wait without an answer.
    spare_fd: Option<File>,
    accept_resumes_at: Option<Instant>,
    last_warning: Option<Instant>,
    wait_policy: AdaptiveSpin,
    chunk: Vec<u8>,
    woken_clients: Vec<ConnectionId>,
}

/// The reason for disconnecting a client.
enum DisconnectReason {
    Closed,
    ConnectionLost(io::Error),
    Rejected(ClientRejection),
}

impl From<io::Error> for DisconnectReason {
    fn from(cause: io::Error) -> Self {
        Self::ConnectionLost(cause)
    }
}

impl From<ClientRejection> for DisconnectReason {
    fn from(rejection: ClientRejection) -> Self {
        Self::Rejected(rejection)
    }
}

impl ServerEventLoop {
    /// Creates the event loop. It accepts clients from `listeners`, and ends when the other end of
    /// `stop` is closed. Clients must prove to hold the secret of `security`, if there is one. If
    /// `security` is open, this holds only for clients over TCP.
    ///
    /// # Errors
    /// `System` if the poller cannot be created.
    pub(super) fn new(
        listeners: Vec<StoreListener>,
        stop: UnixStream,
        handler: RequestHandler,
        security: StoreSecurity,
    ) -> Result<Self> {
        let poller = Poller::new()?;
        let share = limits::max_open_files()? / DESCRIPTOR_DIVISOR;
        let max_unvalidated = usize::try_from(share).unwrap_or(usize::MAX);
        let register_all = || {
            poller.add(stop.as_fd(), STOP_TOKEN, Interest::READ)?;
            for (token, listener) in (FIRST_LISTENER_TOKEN..).zip(&listeners) {
                poller.add(listener.as_fd(), token, Interest::READ)?;
            }
            Ok(())
        };
        register_all().map_err(|cause: io::Error| Error::system("epoll_ctl", cause))?;
        Ok(Self {
            poller,
            listeners,
            _stop: stop,
            handler,
            security,
            clients: HashMap::new(),
            next_id: FIRST_CONNECTION_ID,
            unvalidated: VecDeque::new(),
            max_unvalidated: max_unvalidated.clamp(1, MAX_UNVALIDATED),
            buffered_bytes: 0,
            spare_fd: open_spare_fd(),
            accept_resumes_at: None,
            last_warning: None,
            wait_policy: AdaptiveSpin::default(),
            chunk: vec![0; CHUNK_BYTES],
            woken_clients: Vec::new(),
        })
    }

    /// Serves clients until the server is stopped.
    pub(super) fn run(&mut self) {
        let mut events = PollEvents::with_capacity(256);
        loop {
            if let Err(cause) = self.wait_for_events_or_timer(&mut events) {
                crate::log!(
                    LogLevel::Error,
                    "store server: cannot wait for requests, and stops: {cause}"
                );
                return;
            }
            for event in events.iter() {
                match event.token {
                    STOP_TOKEN => return,
                    FIRST_CONNECTION_ID.. => self.handle_client_event(event),
                    listener => self.accept_batch(listener),
                }
            }
            self.drop_unvalidated();
            self.resume_accepting();
        }
    }

    fn wait_for_events_or_timer(&mut self, events: &mut PollEvents) -> io::Result<()> {
        let poller = &self.poller;
        let events_ready = self.wait_policy.try_spin(|| match poller.poll_now(events) {
            Ok(()) if events.is_empty() => None,
            outcome => Some(outcome),
        });
        match events_ready {
            Some(outcome) => outcome,
            None => wait_for_events(&self.poller, events, self.time_to_next_timer()),
        }
    }

    fn time_to_next_timer(&self) -> Option<Duration> {
        let validation_due = self.unvalidated.front().map(|&(by, _)| by);
        let next = [validation_due, self.accept_resumes_at].into_iter().flatten().min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn accept_batch(&mut self, token: u64) {
        let Ok(index) = usize::try_from(token - FIRST_LISTENER_TOKEN) else { return };
        // Between two batches, the loop serves the clients that have sent VALIDATE. So a crowd of
        // prompt clients does not reach the limit of connections that are not validated.
        for _ in 0..ACCEPTS_PER_ITERATION.min(self.max_unvalidated.div_ceil(4)) {
            let Some(listener) = self.listeners.get(index) else { return };
            match listener.accept() {
                Ok((stream, name)) => self.register_client(stream, name),
                Err(cause) if poll::has_hung_up(listener.as_fd()) => {
                    crate::log!(
                        LogLevel::Error,
                        "store server: a listening socket failed, and accepts no more clients: {cause}"
                    );
                    // The call fails only if the poller does not watch this listener, so ignore the
                    // result.
                    drop(self.poller.remove(listener.as_fd()));
                    return;
                }
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return,
                Err(cause) if socket::is_resource_shortage(&cause) => {
                    self.warn_rejected(&format_args!(
                        "{cause}, with {} connections; raise the limit of open files (ulimit -n)",
                        self.clients.len()
                    ));
                    if !self.reject_next_client(index) {
                        self.pause_accepting();
                        return;
                    }
                }
                // The client closed the connection before the server accepted it, or the network
                // failed.
                Err(cause) => {
                    crate::log!(LogLevel::Debug, "store server: cannot accept a client: {cause}")
                }
            }
        }
    }

    /// Closes the spare descriptor, accepts the next client with it, and rejects this client with a
    /// status word. Returns false if the client got no status word, or if the spare descriptor
    /// could not be opened again.
    fn reject_next_client(&mut self, listener: usize) -> bool {
        drop(self.spare_fd.take());
        let accepted = self.listeners.get(listener).map(StoreListener::accept);
        let was_notified = accepted.is_some_and(|accepted| {
            accepted.is_ok_and(|(stream, _)| stream.send(&proto::SERVER_FULL).is_ok())
        });
        self.spare_fd = open_spare_fd();
        was_notified && self.spare_fd.is_some()
    }

    fn register_client(&mut self, stream: SocketStream, name: ClientName) {
        if self.clients.len() >= MAX_CONNECTIONS {
            self.warn_rejected(&format_args!(
                "the limit of {MAX_CONNECTIONS} connections is reached"
            ));
            // Send the reason if possible. The return closes the connection in any case.
            drop(stream.send(&proto::SERVER_FULL));
            return;
        }
        let id = self.next_id;
        let security = self.security.for_client(matches!(name, ClientName::Process(_)));
        match ClientConnection::register(stream, name, id, &security, &self.poller) {
            Ok(client) => {
                self.next_id += 1;
                self.unvalidated.push_back((Instant::now() + VALIDATION_TIMEOUT, id));
                self.clients.insert(id, client);
                if self.unvalidated.len() > self.max_unvalidated {
                    self.evict_unvalidated();
                }
            }
            Err(cause) => {
                crate::log!(LogLevel::Debug, "store server: cannot register {name}: {cause}");
            }
        }
    }

    /// Makes room for new connections: closes the oldest connections that are not validated, if
    /// there are too many. A client among them connects again.
    fn evict_unvalidated(&mut self) {
        let clients = &self.clients;
        let is_unvalidated =
            |id: &ConnectionId| clients.get(id).is_some_and(|it| !it.is_validated());
        self.unvalidated.retain(|(_, id)| is_unvalidated(id));
        if self.unvalidated.len() <= self.max_unvalidated {
            return;
        }
        // Close several connections at once, because each call examines all of them.
        let excess = self.unvalidated.len() - self.max_unvalidated * 7 / 8;
        let evicted: Vec<_> = self.unvalidated.drain(..excess).collect();
        for (_, id) in evicted {
            if let Some(client) = self.clients.remove(&id) {
                client.send_now(&proto::SERVER_FULL);
                let reason = DisconnectReason::Rejected(ClientRejection::Evicted);
                self.disconnect(id, &client, &reason);
            }
        }
    }

    fn pause_accepting(&mut self) {
        self.watch_listeners(Interest { read: false, write: false });
        self.accept_resumes_at = Some(Instant::now() + ACCEPT_PAUSE);
    }

    fn resume_accepting(&mut self) {
        if self.accept_resumes_at.is_some_and(|at| at <= Instant::now()) {
            self.accept_resumes_at = None;
            self.watch_listeners(Interest::READ);
        }
    }

    fn watch_listeners(&self, interest: Interest) {
        for (token, listener) in (FIRST_LISTENER_TOKEN..).zip(&self.listeners) {
            if let Err(cause) = self.poller.change(listener.as_fd(), token, interest) {
                crate::log!(
                    LogLevel::Error,
                    "store server: cannot watch a listening socket: {cause}"
                );
            }
        }
    }

    fn warn_rejected(&mut self, reason: &dyn std::fmt::Display) {
        if self.last_warning.is_none_or(|at| at.elapsed() >= WARNING_INTERVAL) {
            self.last_warning = Some(Instant::now());
            crate::log!(LogLevel::Warn, "store server: cannot accept more clients: {reason}");
        }
    }

    fn drop_unvalidated(&mut self) {
        while let Some(&(validation_due, id)) = self.unvalidated.front() {
            let is_settled = self.clients.get(&id).is_none_or(ClientConnection::is_validated);
            if !is_settled && validation_due > Instant::now() {
                return;
            }
            self.unvalidated.pop_front();
            if !is_settled && let Some(client) = self.clients.remove(&id) {
                self.disconnect(
                    id,
                    &client,
                    &DisconnectReason::Rejected(ClientRejection::ValidationTimeout),
                );
            }
        }
    }

    fn handle_client_event(&mut self, event: PollEvent) {
        let id = event.token;
        // The client is not in the map while the loop serves it, because its requests may complete
        // the waits of other clients, which are in the map.
        let Some(mut client) = self.clients.remove(&id) else { return };
        let buffered_before = client.buffered_bytes();
        let outcome = self.read_and_write(id, &mut client, event);
        self.buffered_bytes =
            (self.buffered_bytes + client.buffered_bytes()).saturating_sub(buffered_before);
        match outcome {
            Ok(()) => {
                self.clients.insert(id, client);
                if self.buffered_bytes > MAX_BUFFERED_BYTES {
                    self.drop_largest_client();
                }
            }
            Err(reason) => self.disconnect(id, &client, &reason),
        }
    }

    fn read_and_write(
        &mut self,
        id: ConnectionId,
        client: &mut ClientConnection,
        event: PollEvent,
    ) -> std::result::Result<(), DisconnectReason> {
        if event.readable {
            let mut chunk = std::mem::take(&mut self.chunk);
            let mut outcome = self.read_requests(id, client, &mut chunk);
            // The poller does not report bytes that an encrypted connection has received already.
            while outcome.is_ok() && client.has_buffered_input() {
                outcome = self.read_requests(id, client, &mut chunk);
            }
            self.chunk = chunk;
            if outcome.is_err() {
                // The client is disconnected now. First send the replies to its valid requests,
                // which preceded the invalid one.
                drop(client.flush());
            }
            outcome?;
        }
        client.flush()?;
        if client.is_finished() {
            return Err(DisconnectReason::Closed);
        }
        client.update_interest(id, &self.poller)?;
        Ok(())
    }

    /// Reads once from the connection, and serves the requests that have arrived.
    fn read_requests(
        &mut self,
        id: ConnectionId,
        client: &mut ClientConnection,
        chunk: &mut [u8],
    ) -> std::result::Result<(), DisconnectReason> {
        match client.receive(chunk)? {
            ReadEvent::Bytes(received) => self.serve_requests(id, client, &chunk[..received]),
            ReadEvent::Closed => {
                self.handler.remove_connection(id, &mut self.woken_clients);
                self.answer_woken(None);
                Ok(())
            }
            ReadEvent::Nothing => Ok(()),
        }
    }

    fn serve_requests(
        &mut self,
        id: ConnectionId,
        client: &mut ClientConnection,
        mut input: &[u8],
    ) -> std::result::Result<(), DisconnectReason> {
        while let Some(request) = client.next_request(&mut input)? {
            self.handler.serve(id, request, client.output(), &mut self.woken_clients)?;
            if client.unsent_bytes() > MAX_PENDING_BYTES {
                return Err(ClientRejection::AnswersUnread.into());
            }
            self.answer_woken(Some((id, &mut *client)));
        }
        Ok(())
    }

    /// Sends [`proto::READY`] to each connection in `woken_clients`, whose WAIT or BARRIER is
    /// complete. `current` is the connection that is being served and thus not in the map.
    fn answer_woken(&mut self, mut current: Option<(ConnectionId, &mut ClientConnection)>) {
        if self.woken_clients.is_empty() {
            return;
        }
        let mut woken = std::mem::take(&mut self.woken_clients);
        for id in woken.drain(..) {
            if let Some((_, own)) = current.as_mut().filter(|(own, _)| *own == id) {
                own.output().push(proto::READY);
            } else if let Some(other) = self.clients.get_mut(&id) {
                let buffered_before = other.buffered_bytes();
                other.output().push(proto::READY);
                let written = other.flush().and_then(|()| other.update_interest(id, &self.poller));
                self.buffered_bytes =
                    (self.buffered_bytes + other.buffered_bytes()).saturating_sub(buffered_before);
                if let Err(cause) = written {
                    // The poller will report the broken connection as an event, and the server will
                    // then disconnect it.
                    let name = other.name();
                    crate::log!(
                        LogLevel::Debug,
                        "store server: cannot send a reply to {name}: {cause}"
                    );
                }
            }
        }
        self.woken_clients = woken;
    }

    fn drop_largest_client(&mut self) {
        let largest = self.clients.iter().max_by_key(|(_, client)| client.buffered_bytes());
        let Some(id) = largest.map(|(&id, _)| id) else { return };
        if let Some(client) = self.clients.remove(&id) {
            self.disconnect(
                id,
                &client,
                &DisconnectReason::Rejected(ClientRejection::TooMuchBuffered(
                    client.buffered_bytes(),
                )),
            );
        }
        // Compute the exact sum, which includes the bytes that `handle_client_event` did not count.
        self.buffered_bytes = self.clients.values().map(ClientConnection::buffered_bytes).sum();
    }

    /// Releases the state that other parts of the server hold for a client, and logs the reason.
    /// The caller then drops the client. The drop closes the connection and removes it from the
    /// poller.
    fn disconnect(
        &mut self,
        id: ConnectionId,
        client: &ClientConnection,
        reason: &DisconnectReason,
    ) {
        self.buffered_bytes = self.buffered_bytes.saturating_sub(client.buffered_bytes());
        self.handler.remove_connection(id, &mut self.woken_clients);
        self.answer_woken(None);
        let name = client.name();
        match reason {
            DisconnectReason::Closed => {
                crate::log!(LogLevel::Debug, "store server: {name} disconnected")
            }
            DisconnectReason::ConnectionLost(cause) => {
                crate::log!(LogLevel::Debug, "store server: lost the connection to {name}: {cause}")
            }
            DisconnectReason::Rejected(rejection) => {
                crate::log!(LogLevel::Warn, "store server: dropped {name}: {rejection}")
            }
        }
    }
}

/// Opens the spare descriptor.
fn open_spare_fd() -> Option<File> {
    above_standard_streams(File::open("/dev/null")).ok()
}
