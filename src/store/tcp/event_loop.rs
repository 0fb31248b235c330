//! The server's thread: accepts, reads, serves and writes, without ever blocking on one client.
//!
//! Each turn reads at most one chunk from each client that has sent something, so that a busy one
//! does not hold up the others. All timing is here; the meaning of requests is [`Session`]'s.

use super::proto::{self, Decoder, Opcode, Request, Violation};
use super::session::{ConnectionId, MAX_PENDING_BYTES, Refusal, Session};
use crate::base::Result;
use crate::base::error::Error;
use crate::base::log::Level;
use crate::sys::poll::{Event, Events, Interest, Poller};
use crate::sys::socket;
use std::collections::{HashMap, VecDeque};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The most connections at once.
const MAX_CONNECTIONS: usize = 65_536;
/// How many connections one turn accepts.
const ACCEPTS_PER_TURN: usize = 64;
/// How long a new connection may take to prove that it is a store client's.
const VALIDATE_WITHIN: Duration = Duration::from_secs(5);
/// How long nothing is accepted after the system had no descriptor left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often the same complaint about accepting is logged.
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);
/// How much is read from one connection in one turn.
const CHUNK_BYTES: usize = 64 << 10;
/// An output buffer larger than this is given back once it is empty.
const KEPT_BYTES: usize = 64 << 10;

const STOP: u64 = 0;
const FIRST_LISTENER: u64 = 1;
/// Connections are numbered from here on, and no number is used twice.
const FIRST_CONNECTION: u64 = 1 << 16;

/// The state of the server's thread.
#[derive(Debug)]
pub(super) struct EventLoop {
    poller: Poller,
    listeners: Vec<TcpListener>,
    /// Held so that its token stays watched; readable once the server is to end.
    _stop: UnixStream,
    session: Session,
    connections: HashMap<ConnectionId, Connection>,
    next_id: ConnectionId,
    /// Connections in the order in which they must have validated.
    newcomers: VecDeque<(Instant, ConnectionId)>,
    accept_again: Option<Instant>,
    complained: Option<Instant>,
    chunk: Vec<u8>,
    woken: Vec<ConnectionId>,
}

/// One client.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    decoder: Decoder,
    validated: bool,
    /// The client will send nothing more; what it is owed is still sent.
    ended: bool,
    output: Vec<u8>,
    /// How much of `output` has been sent.
    sent: usize,
    interest: Interest,
}

/// Why a connection ends.
enum End {
    Closed,
    Broken(io::Error),
    Refused(Refusal),
}

impl From<io::Error> for End {
    fn from(cause: io::Error) -> Self {
        Self::Broken(cause)
    }
}

impl From<Refusal> for End {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Violation> for End {
    fn from(violation: Violation) -> Self {
        Self::Refused(violation.into())
    }
}

impl EventLoop {
    /// A loop over these listening sockets, which ends when the other end of `stop` is closed.
    ///
    /// # Errors
    /// `System`.
    pub(super) fn new(
        listeners: Vec<TcpListener>,
        stop: UnixStream,
        max_bytes: usize,
    ) -> Result<Self> {
        let poller = Poller::new()?;
        let watch = || {
            poller.add(stop.as_fd(), STOP, Interest::READ)?;
            for (token, listener) in (FIRST_LISTENER..).zip(&listeners) {
                poller.add(listener.as_fd(), token, Interest::READ)?;
            }
            Ok(())
        };
        watch().map_err(|cause: io::Error| Error::system("epoll_ctl", &cause))?;
        Ok(Self {
            poller,
            listeners,
            _stop: stop,
            session: Session::new(max_bytes),
            connections: HashMap::new(),
            next_id: FIRST_CONNECTION,
            newcomers: VecDeque::new(),
            accept_again: None,
            complained: None,
            chunk: vec![0; CHUNK_BYTES],
            woken: Vec::new(),
        })
    }

    /// Serves until told to end.
    pub(super) fn run(&mut self) {
        let mut events = Events::with_room(256);
        loop {
            if let Err(cause) = self.poller.wait(&mut events, self.time_to_next_duty()) {
                crate::log!(Level::Error, "store server: waiting for clients failed: {cause}");
                return;
            }
            for event in events.iter() {
                match event.token {
                    STOP => return,
                    FIRST_CONNECTION.. => self.attend(event),
                    listener => self.accept_some(listener),
                }
            }
            self.drop_silent_newcomers();
            self.resume_accepting();
        }
    }

    fn time_to_next_duty(&self) -> Option<Duration> {
        let newcomer = self.newcomers.front().map(|&(by, _)| by);
        let next = [newcomer, self.accept_again].into_iter().flatten().min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn accept_some(&mut self, token: u64) {
        let Ok(index) = usize::try_from(token - FIRST_LISTENER) else { return };
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(listener) = self.listeners.get(index) else { return };
            match listener.accept() {
                Ok((stream, peer)) => self.admit(stream, peer),
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return,
                Err(cause) if socket::is_shortage(&cause) => {
                    self.complain(&format_args!(
                        "{cause}, with {} connections; raise the limit of open files (ulimit -n)",
                        self.connections.len()
                    ));
                    self.pause_accepting();
                    return;
                }
                // The client gave up before it was accepted, or the network failed it.
                Err(cause) => crate::log!(Level::Debug, "store server: accept: {cause}"),
            }
        }
    }

    fn admit(&mut self, stream: TcpStream, peer: SocketAddr) {
        if self.connections.len() >= MAX_CONNECTIONS {
            self.complain(&format_args!("{MAX_CONNECTIONS} connections are the limit"));
            return;
        }
        // An IPv4 peer of a socket for both families is named as IPv4 users know it.
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        let id = self.next_id;
        let watched = socket::tune(&stream)
            .and_then(|()| self.poller.add(stream.as_fd(), id, Interest::READ));
        if let Err(cause) = watched {
            crate::log!(Level::Debug, "store server: {peer} came and went: {cause}");
            return;
        }
        self.next_id += 1;
        self.newcomers.push_back((Instant::now() + VALIDATE_WITHIN, id));
        self.connections.insert(id, Connection::new(stream, peer));
    }

    fn pause_accepting(&mut self) {
        self.watch_listeners(Interest { read: false, write: false });
        self.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
    }

    fn resume_accepting(&mut self) {
        if self.accept_again.is_some_and(|at| at <= Instant::now()) {
            self.accept_again = None;
            self.watch_listeners(Interest::READ);
        }
    }

    fn watch_listeners(&self, interest: Interest) {
        for (token, listener) in (FIRST_LISTENER..).zip(&self.listeners) {
            if let Err(cause) = self.poller.change(listener.as_fd(), token, interest) {
                crate::log!(Level::Error, "store server: watching the listening socket: {cause}");
            }
        }
    }

    fn complain(&mut self, why: &dyn std::fmt::Display) {
        if self.complained.is_none_or(|at| at.elapsed() >= COMPLAIN_EVERY) {
            self.complained = Some(Instant::now());
            crate::log!(Level::Warn, "store server: cannot take more clients: {why}");
        }
    }

    fn drop_silent_newcomers(&mut self) {
        while let Some(&(by, id)) = self.newcomers.front() {
            let settled = self.connections.get(&id).is_none_or(|connection| connection.validated);
            if !settled && by > Instant::now() {
                return;
            }
            self.newcomers.pop_front();
            if !settled && let Some(connection) = self.connections.remove(&id) {
                self.end(id, connection, &End::Refused(Refusal::Silent));
            }
        }
    }

    fn attend(&mut self, event: Event) {
        let id = event.token;
        // Taken out of the map meanwhile, since serving it may write to other connections.
        let Some(mut connection) = self.connections.remove(&id) else { return };
        match self.progress(id, &mut connection, event) {
            Ok(()) => drop(self.connections.insert(id, connection)),
            Err(end) => self.end(id, connection, &end),
        }
    }

    fn progress(
        &mut self,
        id: ConnectionId,
        connection: &mut Connection,
        event: Event,
    ) -> std::result::Result<(), End> {
        if event.readable && !connection.ended {
            let mut chunk = std::mem::take(&mut self.chunk);
            let outcome = match connection.stream.read(&mut chunk) {
                Ok(0) => {
                    connection.ended = true;
                    self.session.forget(id, &mut self.woken);
                    self.wake(None);
                    Ok(())
                }
                Ok(got) => self.serve(id, connection, &chunk[..got]),
                Err(cause) if is_transient(&cause) => Ok(()),
                Err(cause) => Err(cause.into()),
            };
            self.chunk = chunk;
            if outcome.is_err() {
                // What was asked before the offence is still answered.
                drop(connection.flush());
            }
            outcome?;
        }
        connection.flush()?;
        if connection.ended && connection.output.is_empty() {
            return Err(End::Closed);
        }
        connection.watch(id, &self.poller)?;
        Ok(())
    }

    fn serve(
        &mut self,
        id: ConnectionId,
        connection: &mut Connection,
        mut input: &[u8],
    ) -> std::result::Result<(), End> {
        while let Some(request) = connection.decoder.next(&mut input)? {
            if !connection.validated {
                connection.validate(&request)?;
                continue;
            }
            self.session.serve(id, request, &mut connection.output, &mut self.woken)?;
            if connection.output.len() - connection.sent > MAX_PENDING_BYTES {
                return Err(Refusal::AnswersUnread.into());
            }
            self.wake(Some((id, &mut *connection)));
        }
        match connection.decoder.begun() {
            // Nothing else can become the introduction, so there is no reason to wait for the rest.
            Some(opcode) if !connection.validated && opcode != Opcode::Validate => {
                Err(Refusal::NotValidated.into())
            }
            _ => Ok(()),
        }
    }

    /// Answers the WAITs that have come to their end; `current` is the connection that is out of the map.
    fn wake(&mut self, mut current: Option<(ConnectionId, &mut Connection)>) {
        let mut woken = std::mem::take(&mut self.woken);
        for id in woken.drain(..) {
            if let Some((_, connection)) = current.as_mut().filter(|(own, _)| *own == id) {
                connection.output.push(proto::READY);
            } else if let Some(other) = self.connections.get_mut(&id) {
                other.output.push(proto::READY);
                let written = other.flush().and_then(|()| other.watch(id, &self.poller));
                if let Err(cause) = written {
                    // The poller reports the broken connection too, and then it ends.
                    crate::log!(Level::Debug, "store server: waking {}: {cause}", other.peer);
                }
            }
        }
        self.woken = woken;
    }

    fn end(&mut self, id: ConnectionId, connection: Connection, why: &End) {
        self.session.forget(id, &mut self.woken);
        self.wake(None);
        let peer = connection.peer;
        match why {
            End::Closed => crate::log!(Level::Debug, "store server: {peer} left"),
            End::Broken(cause) => crate::log!(Level::Debug, "store server: lost {peer}: {cause}"),
            End::Refused(why) => crate::log!(Level::Warn, "store server: dropped {peer}: {why}"),
        }
        drop(connection); // closing it ends its being watched
    }
}

impl Connection {
    fn new(stream: TcpStream, peer: SocketAddr) -> Self {
        Self {
            stream,
            peer,
            decoder: Decoder::default(),
            validated: false,
            ended: false,
            output: Vec::new(),
            sent: 0,
            interest: Interest::READ,
        }
    }

    fn validate(&mut self, request: &Request<'_>) -> std::result::Result<(), Refusal> {
        match *request {
            Request::Validate(proto::MAGIC) => {
                self.validated = true;
                Ok(())
            }
            Request::Validate(magic) => Err(Refusal::WrongMagic(magic)),
            _ => Err(Refusal::NotValidated),
        }
    }

    /// Sends as much as the socket takes.
    fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(cause) => return Err(cause),
            }
        }
        self.output.clear();
        self.output.shrink_to(KEPT_BYTES);
        self.sent = 0;
        Ok(())
    }

    /// Has the poller watch for what this connection is about.
    fn watch(&mut self, id: ConnectionId, poller: &Poller) -> io::Result<()> {
        let interest = Interest { read: !self.ended, write: !self.output.is_empty() };
        if interest != self.interest {
            poller.change(self.stream.as_fd(), id, interest)?;
            self.interest = interest;
        }
        Ok(())
    }
}

fn is_transient(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
