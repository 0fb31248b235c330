//! The server's thread: accepts, reads, serves and writes, without ever blocking on one client.
//!
//! Each turn reads at most one chunk from each client that has sent something, so that a busy one
//! does not hold up the others. All timing is here; the meaning of requests is [`Session`]'s.

use super::conversation::{Arrival, Conversation, Name};
use super::listen::Listener;
use super::proto;
use super::secret::Secret;
use super::session::{ConnectionId, MAX_PENDING_BYTES, Refusal, Session};
use crate::base::Result;
use crate::base::error::Error;
use crate::base::log::Level;
use crate::sys::poll::{self, Event, Events, Interest, Poller};
use crate::sys::socket;
use crate::sys::stream::Stream;
use crate::wait::io::events as wait_for_events;
use crate::wait::patience::Patience;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The most connections at once.
pub const MAX_CONNECTIONS: usize = 65_536;
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
/// The most that may wait for all clients together: unfinished requests and unread answers. Beyond
/// it, the client with most of it is dropped.
const MAX_HELD_BYTES: usize = 1 << 30;

const STOP: u64 = 0;
const FIRST_LISTENER: u64 = 1;
/// Connections are numbered from here on, and no number is used twice.
const FIRST_CONNECTION: u64 = 1 << 16;

/// The state of the server's thread.
#[derive(Debug)]
pub(super) struct EventLoop {
    poller: Poller,
    listeners: Vec<Listener>,
    /// Held so that its token stays watched; readable once the server is to end.
    _stop: UnixStream,
    session: Session,
    /// What clients must prove that they know.
    secret: Option<Secret>,
    connections: HashMap<ConnectionId, Conversation>,
    next_id: ConnectionId,
    /// Connections in the order in which they must have validated.
    newcomers: VecDeque<(Instant, ConnectionId)>,
    /// What waits for all clients together.
    held: usize,
    /// A descriptor to give up when there is no other one left, so that a client can be told.
    spare: Option<File>,
    accept_again: Option<Instant>,
    complained: Option<Instant>,
    patience: Patience,
    chunk: Vec<u8>,
    woken: Vec<ConnectionId>,
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

impl EventLoop {
    /// A loop over these listening sockets, which ends when the other end of `stop` is closed.
    ///
    /// # Errors
    /// `System`.
    pub(super) fn new(
        listeners: Vec<Listener>,
        stop: UnixStream,
        max_bytes: usize,
        secret: Option<Secret>,
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
            secret,
            connections: HashMap::new(),
            next_id: FIRST_CONNECTION,
            newcomers: VecDeque::new(),
            held: 0,
            spare: spare(),
            accept_again: None,
            complained: None,
            patience: Patience::default(),
            chunk: vec![0; CHUNK_BYTES],
            woken: Vec::new(),
        })
    }

    /// Serves until told to end.
    pub(super) fn run(&mut self) {
        let mut events = Events::with_room(256);
        loop {
            if let Err(cause) = self.wait(&mut events) {
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

    fn wait(&mut self, events: &mut Events) -> io::Result<()> {
        let poller = &self.poller;
        let found = self.patience.look(|| match poller.look(events) {
            Ok(()) if events.is_empty() => None,
            outcome => Some(outcome),
        });
        match found {
            Some(outcome) => outcome,
            None => wait_for_events(&self.poller, events, self.time_to_next_duty()),
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
                Ok((stream, name)) => self.admit(stream, name),
                Err(cause) if poll::has_hung_up(listener.as_fd()) => {
                    crate::log!(Level::Error, "store server: nobody can connect any more: {cause}");
                    // Fails only where it is not watched.
                    drop(self.poller.remove(listener.as_fd()));
                    return;
                }
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return,
                Err(cause) if socket::is_shortage(&cause) => {
                    self.complain(&format_args!(
                        "{cause}, with {} connections; raise the limit of open files (ulimit -n)",
                        self.connections.len()
                    ));
                    if !self.turn_away(index) {
                        self.pause_accepting();
                        return;
                    }
                }
                // The client gave up before it was accepted, or the network failed it.
                Err(cause) => crate::log!(Level::Debug, "store server: accept: {cause}"),
            }
        }
    }

    /// Tells the next client that there is no room for it. False: not even that was possible.
    fn turn_away(&mut self, listener: usize) -> bool {
        drop(self.spare.take());
        let accepted = self.listeners.get(listener).map(Listener::accept);
        let told = accepted.is_some_and(|accepted| {
            accepted.is_ok_and(|(stream, _)| stream.send(&proto::FULL).is_ok())
        });
        self.spare = spare();
        told && self.spare.is_some()
    }

    fn admit(&mut self, stream: Stream, name: Name) {
        if self.connections.len() >= MAX_CONNECTIONS {
            self.complain(&format_args!("{MAX_CONNECTIONS} connections are the limit"));
            // It is told as far as that is possible; closing is the point.
            drop(stream.send(&proto::FULL));
            return;
        }
        let id = self.next_id;
        match Conversation::begin(stream, name, id, self.secret.as_ref(), &self.poller) {
            Ok(conversation) => {
                self.next_id += 1;
                self.newcomers.push_back((Instant::now() + VALIDATE_WITHIN, id));
                self.connections.insert(id, conversation);
            }
            Err(cause) => {
                crate::log!(Level::Debug, "store server: {name} came and went: {cause}");
            }
        }
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
            let settled = self.connections.get(&id).is_none_or(Conversation::is_validated);
            if !settled && by > Instant::now() {
                return;
            }
            self.newcomers.pop_front();
            if !settled && let Some(conversation) = self.connections.remove(&id) {
                self.end(id, &conversation, &End::Refused(Refusal::Silent));
            }
        }
    }

    fn attend(&mut self, event: Event) {
        let id = event.token;
        // Taken out of the map meanwhile, since serving it may write to other connections.
        let Some(mut conversation) = self.connections.remove(&id) else { return };
        let held = conversation.held();
        let outcome = self.progress(id, &mut conversation, event);
        // What other clients' answers add to it in between is small, and counted the next time.
        self.held = (self.held + conversation.held()).saturating_sub(held);
        match outcome {
            Ok(()) => {
                self.connections.insert(id, conversation);
                if self.held > MAX_HELD_BYTES {
                    self.drop_largest();
                }
            }
            Err(end) => self.end(id, &conversation, &end),
        }
    }

    fn progress(
        &mut self,
        id: ConnectionId,
        conversation: &mut Conversation,
        event: Event,
    ) -> std::result::Result<(), End> {
        if event.readable {
            let mut chunk = std::mem::take(&mut self.chunk);
            let outcome = match conversation.receive(&mut chunk) {
                Ok(Arrival::Bytes(got)) => self.serve(id, conversation, &chunk[..got]),
                Ok(Arrival::End) => {
                    self.session.forget(id, &mut self.woken);
                    self.wake(None);
                    Ok(())
                }
                Ok(Arrival::Nothing) => Ok(()),
                Err(cause) => Err(cause.into()),
            };
            self.chunk = chunk;
            if outcome.is_err() {
                // What was asked before the offence is still answered.
                drop(conversation.flush());
            }
            outcome?;
        }
        conversation.flush()?;
        if conversation.is_over() {
            return Err(End::Closed);
        }
        conversation.watch(id, &self.poller)?;
        Ok(())
    }

    fn serve(
        &mut self,
        id: ConnectionId,
        conversation: &mut Conversation,
        mut input: &[u8],
    ) -> std::result::Result<(), End> {
        while let Some(request) = conversation.next(&mut input)? {
            self.session.serve(id, request, conversation.output(), &mut self.woken)?;
            if conversation.unsent() > MAX_PENDING_BYTES {
                return Err(Refusal::AnswersUnread.into());
            }
            self.wake(Some((id, &mut *conversation)));
        }
        Ok(())
    }

    /// Answers the WAITs that have come to their end; `current` is the connection that is out of
    /// the map.
    fn wake(&mut self, mut current: Option<(ConnectionId, &mut Conversation)>) {
        if self.woken.is_empty() {
            return;
        }
        let mut woken = std::mem::take(&mut self.woken);
        for id in woken.drain(..) {
            if let Some((_, own)) = current.as_mut().filter(|(own, _)| *own == id) {
                own.output().push(proto::READY);
            } else if let Some(other) = self.connections.get_mut(&id) {
                other.output().push(proto::READY);
                let written = other.flush().and_then(|()| other.watch(id, &self.poller));
                if let Err(cause) = written {
                    // The poller reports the broken connection too, and then it ends.
                    let name = other.name();
                    crate::log!(Level::Debug, "store server: waking {name}: {cause}");
                }
            }
        }
        self.woken = woken;
    }

    fn drop_largest(&mut self) {
        let largest = self.connections.iter().max_by_key(|(_, client)| client.held());
        let Some(id) = largest.map(|(&id, _)| id) else { return };
        if let Some(conversation) = self.connections.remove(&id) {
            self.end(id, &conversation, &End::Refused(Refusal::TooMuchHeld(conversation.held())));
        }
        // Counted anew, with what was not counted before.
        self.held = self.connections.values().map(Conversation::held).sum();
    }

    /// The connection is closed, and so no longer watched, when the caller lets go of it.
    fn end(&mut self, id: ConnectionId, conversation: &Conversation, why: &End) {
        self.held = self.held.saturating_sub(conversation.held());
        self.session.forget(id, &mut self.woken);
        self.wake(None);
        let name = conversation.name();
        match why {
            End::Closed => crate::log!(Level::Debug, "store server: {name} left"),
            End::Broken(cause) => crate::log!(Level::Debug, "store server: lost {name}: {cause}"),
            End::Refused(why) => crate::log!(Level::Warn, "store server: dropped {name}: {why}"),
        }
    }
}

/// A descriptor that means nothing.
fn spare() -> Option<File> {
    File::open("/dev/null").ok()
}
