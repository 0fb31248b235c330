//! The links of this process: one connection for each pair of processes, direction and kind of
//! stream, which all groups share.
//!
//! | files | content |
//! |---|---|
//! | `link_frame` | the frames on a link |
//! | `outgoing_link`, `outgoing_channel` | the sending end |
//! | `incoming_link`, `link_reader`, `link_reading` | the receiving end |
//! | `byte_queue` | the bytes that were read or wait for room |
//! | `incoming_channel` | the bytes from one rank of a group to another |
//! | `message_input` | links for messages, which the service thread reads |
//! | `link_events` | ends, departures and control frames, for the service thread |
//! | `link_registration` | the groups that use the links |
//! | `link_ownership` | what the ends of links need of the table |
//! | `link_watchdog` | finds connections that carry nothing |
//! | `link_resume`, `suspended_link`, `outgoing_resume` | replace connections that broke |
//! | `kept_bytes` | the bytes that may be sent again |
//!
//! The end of a connection shows how the *process* at its other end has ended: in order (FIN), or
//! not (reset). After a reset, the connection is replaced; if the other process does not answer, it
//! has died. A rank that leaves a group says so by a frame. A group that this process
//! does not know yet may already send: its bytes wait in the inboxes until the group registers.

use super::hello::ConnectionPurpose;
use super::incoming_channel::IncomingChannel;
use super::incoming_link::IncomingLink;
use super::link_events::{EarlyControl, LinkEvent, LinkEvents};
use super::link_frame::{ChannelRanks, Frame};
use super::link_owner::LinkOwner as _;
use super::link_user::{ChannelUser, LinkEnd, LinkKey, LinkUser, UserKey};
use super::message_input::MessageInput;
use super::outgoing_link::OutgoingLink;
use super::peer_connect::PeerConnectHandler;
use super::registered_users::RegisteredUsers;
use super::suspended_link::SuspendedLink;
use crate::base::config;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result as LocalResult};
use crate::base::ids::{Nonce, Rank};
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::sys::eventfd::EventFd;
use crate::sys::poll::{PollEvents, Poller};
use crate::sys::stream::SocketStream;
use crate::transport::Channel;
use crate::wait::io;
use crate::wait::service::{self, Alarm, DescriptorHandler, DescriptorWatch, WatchAction};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

/// The time for which a process that leaves its last group waits in total until the buffers of its
/// sockets have room for the records by which encrypted links end in order.
const END_TIMEOUT: Duration = Duration::from_secs(1);

const DEFAULT_KEEP_ALIVE_MS: u64 = 60_000;
const KEEP_ALIVE_LIMITS_MS: (u64, u64) = (1000, 3_600_000);

const DEFAULT_RETRY_MS: u64 = 10_000;
const MAX_RETRY_MS: u64 = 3_600_000;

/// The links of this process.
#[derive(Debug)]
pub(super) struct LinkTable {
    pub(super) state: Mutex<LinkTableState>,
    pub(super) message_input: Arc<MessageInput>,
    /// Reports the ends of incoming links to the service thread.
    end_poller: Arc<Poller>,
    pub(super) events: LinkEvents,
    /// The idle time after which the system probes a link.
    keep_alive: Duration,
    /// The time within which a broken connection must be replaced.
    pub(super) retry_time: Duration,
    /// Other such times, for the links of single processes in tests.
    #[cfg(test)]
    test_retry_times: Mutex<HashMap<Nonce, Duration>>,
    pub(super) watchdog: OnceLock<Alarm>,
    pub(super) weak: Weak<Self>,
}

#[derive(Debug, Default)]
pub(super) struct LinkTableState {
    pub(super) outgoing: HashMap<LinkKey, Arc<OutgoingLink>>,
    pub(super) incoming: HashMap<LinkKey, Arc<IncomingLink>>,
    /// The incoming links whose connections broke.
    pub(super) suspended: HashMap<LinkKey, Arc<SuspendedLink>>,
    /// The tokens of the incoming links in the poller.
    tokens: BTreeMap<u64, LinkKey>,
    next_token: u64,
    pub(super) users: RegisteredUsers,
    pub(super) channels: HashMap<UserKey, HashMap<(Rank, Channel), Arc<IncomingChannel>>>,
    pub(super) unknown_channels: usize,
    /// Control frames for groups that this process does not know yet, with their senders.
    pub(super) early_control: HashMap<UserKey, Vec<EarlyControl>>,
    pub(super) early_control_count: usize,
    /// The leaders that can handle control frames.
    pub(super) control_users: HashSet<UserKey>,
    pub(super) departed: VecDeque<UserKey>,
    /// Links that have no user and still send.
    closing: Vec<Arc<OutgoingLink>>,
    /// Events that no waiting thread uses.
    spare_events: Vec<Arc<EventFd>>,
    watch: Option<DescriptorWatch>,
}

impl LinkTable {
    /// Creates an empty table.
    ///
    /// # Errors
    /// `System`; `InvalidArgument` if `DIST_LINK_KEEPALIVE_MS` is invalid.
    pub(super) fn new() -> LocalResult<Arc<Self>> {
        let (low, high) = KEEP_ALIVE_LIMITS_MS;
        let keep_alive_ms =
            config::read_bounded(config::LINK_KEEPALIVE_MS, DEFAULT_KEEP_ALIVE_MS, low, high)?;
        let retry_ms =
            config::read_bounded(config::LINK_RETRY_MS, DEFAULT_RETRY_MS, 0, MAX_RETRY_MS)?;
        let (message_input, end_poller) = (MessageInput::new()?, Arc::new(Poller::new()?));
        let table = Arc::new_cyclic(|weak| Self {
            state: Mutex::default(),
            message_input,
            end_poller,
            events: LinkEvents::default(),
            keep_alive: Duration::from_millis(keep_alive_ms),
            retry_time: Duration::from_millis(retry_ms),
            #[cfg(test)]
            test_retry_times: Mutex::default(),
            watchdog: OnceLock::new(),
            weak: weak.clone(),
        });
        let handler = Arc::downgrade(&table);
        let watchdog = Self::new_watchdog(handler.clone())?;
        table.watchdog.get_or_init(|| watchdog);
        table.events.start(move || {
            handler.upgrade().iter().for_each(|table| table.handle_events());
        })?;
        Ok(table)
    }

    /// Returns the time within which a broken connection of a link must be replaced. If it is 0,
    /// the end of a connection is the death of the other process. Only in tests, the time depends
    /// on the process.
    pub(super) fn retry_time(&self, own: Nonce) -> Duration {
        #[cfg(test)]
        if let Some(&time) = lock(&self.test_retry_times).get(&own) {
            return time;
        }
        let _ = own;
        self.retry_time
    }

    /// Returns all outgoing links, also links that are being closed.
    pub(super) fn all_outgoing(&self) -> Vec<Arc<OutgoingLink>> {
        let mut state = lock(&self.state);
        state.closing.retain(|link| !link.has_ended());
        state.outgoing.values().chain(&state.closing).cloned().collect()
    }

    /// Returns the outgoing links with this key, including one that is being closed.
    pub(super) fn all_outgoing_to(&self, key: &LinkKey) -> impl Iterator<Item = Arc<OutgoingLink>> {
        let key = *key;
        self.all_outgoing().into_iter().filter(move |link| link.key == key)
    }

    /// Sets the time for links of a process that are created later.
    #[cfg(test)]
    pub(super) fn set_retry_time(&self, own: Nonce, time: Duration) {
        lock(&self.test_retry_times).insert(own, time);
    }

    /// Returns the link from another process, if there is one.
    pub(super) fn incoming(&self, key: &LinkKey) -> Option<Arc<IncomingLink>> {
        lock(&self.state).incoming.get(key).cloned()
    }

    /// Returns the link to another process, if there is one.
    pub(super) fn outgoing(&self, key: &LinkKey) -> Option<Arc<OutgoingLink>> {
        lock(&self.state).outgoing.get(key).cloned()
    }

    /// Returns the link to another process for one more user. [`LinkTable::release`] ends the use.
    pub(super) fn acquire(&self, key: LinkKey) -> Arc<OutgoingLink> {
        let mut state = lock(&self.state);
        let entry = state.outgoing.entry(key);
        let link = Arc::clone(entry.or_insert_with(|| {
            OutgoingLink::new(key, (self.keep_alive, self.retry_time(key.own)), self.weak.clone())
        }));
        link.users.fetch_add(1, Ordering::Relaxed);
        if state.outgoing.len() == 1 {
            self.start_watchdog();
        }
        link
    }

    /// Ends the use of a link. Closes it after the last use.
    pub(super) fn release(&self, link: &Arc<OutgoingLink>) {
        self.release_after(link, false);
    }

    /// Ends the use of a link. If `delivers` is true and this is the last use, the link first sends
    /// what waits, even if it must be connected for that.
    pub(super) fn release_after(&self, link: &Arc<OutgoingLink>, delivers: bool) {
        let mut state = lock(&self.state);
        if link.users.fetch_sub(1, Ordering::Relaxed) > 1 {
            drop(state);
            return link.forget_ended_channels();
        }
        let is_it = |known: &Arc<OutgoingLink>| Arc::ptr_eq(known, link);
        if state.outgoing.get(&link.key).is_some_and(is_it) {
            state.outgoing.remove(&link.key);
        }
        state.closing.retain(|link| !link.has_ended());
        state.closing.push(Arc::clone(link));
        drop(state);
        link.close(delivers);
    }

    /// Adds a link that another process has connected. `accept` sends the end of the handshake.
    /// Returns false if there is such a link.
    pub(super) fn add_incoming(
        &self,
        key: LinkKey,
        stream: &Arc<SocketStream>,
        accept: impl FnOnce(),
    ) -> bool {
        let mut state = lock(&self.state);
        if state.incoming.contains_key(&key) {
            return false;
        }
        let number = state.next_token;
        state.next_token += 1;
        let link = IncomingLink::new(key, number, Arc::clone(stream), self.weak.clone());
        state.incoming.insert(key, Arc::clone(&link));
        // Send the acceptance under the lock, so that another thread cannot close the stream before
        // these bytes.
        accept();
        let users = state.users.with_rank_in(key.peer);
        drop(state);
        if let Err(cause) = self.watch(&link) {
            crate::log!(LogLevel::Error, "watching a connection: {cause}");
            let cause = Some(std::io::Error::other(cause));
            self.end_incoming(&link.key, link.number, cause, Vec::new());
        }
        for (user, rank) in users {
            user.on_input(rank, key.channel);
        }
        true
    }

    /// Ends the watch of an incoming link.
    pub(super) fn unwatch(&self, link: &IncomingLink) {
        if link.key.channel == Channel::PointToPoint {
            self.message_input.remove(link);
        } else {
            // Fails only if the poller does not watch the stream.
            drop(self.end_poller.remove(link.stream().as_fd()));
        }
    }

    pub(super) fn watch(&self, link: &Arc<IncomingLink>) -> Result<(), String> {
        if link.key.channel == Channel::PointToPoint {
            return self.message_input.add(link);
        }
        let mut state = lock(&self.state);
        state.tokens.insert(link.number, link.key);
        let added = self.end_poller.add_hang_up(link.stream().as_fd(), link.number);
        added.map_err(|cause| cause.to_string())?;
        if state.watch.is_none() {
            let handler =
                LinkEndEvents { table: self.weak.clone(), poller: Arc::clone(&self.end_poller) };
            let watch = service::watch(Arc::new(handler)).map_err(|error| error.to_string())?;
            state.watch = Some(watch);
        }
        Ok(())
    }

    /// Removes an incoming link that has ended, and reports its end to its users.
    pub(super) fn end_link(
        &self,
        key: &LinkKey,
        number: u64,
        end: LinkEnd,
        users: Vec<ChannelUser>,
    ) {
        let mut state = lock(&self.state);
        let removed = match state.incoming.get(key).is_some_and(|link| link.number == number) {
            true => state.incoming.remove(key),
            false => None,
        };
        state.tokens.remove(&number);
        drop(state);
        let Some(link) = removed else { return };
        // Otherwise the end of this connection would look like the death of this process.
        link.stream().close_gracefully();
        self.unwatch(&link);
        self.events.push(LinkEvent::Ended { key: *key, number: Some(number), end, users });
    }

    /// Handles the events of links, on the service thread.
    fn handle_events(&self) {
        while let Some(event) = self.events.take() {
            match event {
                LinkEvent::Ended { key, number, end, users } => {
                    self.handle_end(&key, number, &end, &users);
                }
                LinkEvent::Broken { key } => self.reconnect(&key),
                LinkEvent::Suspended { key, number, cause } => self.suspend(&key, number, cause),
                LinkEvent::NotReplaced { key, number, reason } => {
                    self.give_up(&key, number, reason);
                }
                LinkEvent::Left { key, ranks, reason } => {
                    self.handle_departure(&key, &ranks, reason);
                }
                LinkEvent::Control { key, number, ranks, bytes } => {
                    self.deliver_control(&key, number, &ranks, bytes);
                }
                LinkEvent::Connected { key } => {
                    self.leaders_on(&key).iter().for_each(|user| user.on_control_open());
                }
                LinkEvent::Unreachable { user, to, channel, error } => {
                    user.on_unreachable(to, channel, error);
                }
            }
        }
    }

    /// Reports the end of a link to its users and, for a message link, to the leaders that exchange
    /// control frames on it.
    fn handle_end(&self, key: &LinkKey, number: Option<u64>, end: &LinkEnd, users: &[ChannelUser]) {
        let state = lock(&self.state);
        let is_from_peer =
            |it: &&Arc<IncomingLink>| (it.key.own, it.key.peer) == (key.own, key.peer);
        let others: Vec<_> = state.incoming.values().filter(is_from_peer).cloned().collect();
        drop(state);
        let leaders = self.leaders_on(key);
        // The report that a rank has left may have arrived on another link. It is handled before
        // the end.
        others.iter().for_each(|link| link.drain());
        self.handle_reports();
        users.iter().for_each(|(user, peer)| user.on_link_end(*peer, end));
        leaders.iter().for_each(|user| user.on_control_end(key, number, end));
    }

    /// Returns the leaders of this process that may exchange control frames on a link.
    fn leaders_on(&self, key: &LinkKey) -> Vec<Arc<dyn LinkUser>> {
        if key.channel != Channel::PointToPoint {
            return Vec::new();
        }
        let state = lock(&self.state);
        let keys = state.control_users.iter();
        keys.filter_map(|&key| state.users.find(key)).collect()
    }

    /// Handles the departures and the control frames among the events that wait.
    fn handle_reports(&self) {
        for event in self.events.take_reports() {
            match event {
                LinkEvent::Left { key, ranks, reason } => {
                    self.handle_departure(&key, &ranks, reason);
                }
                LinkEvent::Control { key, number, ranks, bytes } => {
                    self.deliver_control(&key, number, &ranks, bytes);
                }
                _ => {}
            }
        }
    }

    fn handle_departure(&self, key: &LinkKey, ranks: &ChannelRanks, reason: Option<Error>) {
        if let Some(user) = self.user((ranks.group, ranks.to))
            && user.process_of(ranks.from) == Some(key.peer)
        {
            user.on_left(ranks.from, reason);
        }
    }

    /// Sends a frame on the link to a process. Connects the link, if a group still has a rank
    /// there.
    ///
    /// # Errors
    /// If no group has a rank there, or the process has no address.
    pub(super) fn send_frame(&self, key: &LinkKey, frame: &Frame) -> LocalResult<()> {
        let link = self.acquire(*key);
        link.send_frame(frame, &[]);
        let users = lock(&self.state).users.all();
        let purpose = ConnectionPurpose::Stream(key.channel);
        let connector = |handler: Weak<dyn PeerConnectHandler>| {
            let mut connectors = users
                .iter()
                .filter_map(|user| user.connector_to(key, purpose, None, handler.clone(), false));
            connectors.next().unwrap_or_else(|| Err(Error::internal("no rank is there")))
        };
        let sent = link.connect(connector);
        self.release_quietly(&link);
        sent
    }

    pub(super) fn send_frame_logged(&self, key: &LinkKey, frame: &Frame) {
        if let Err(error) = self.send_frame(key, frame) {
            crate::log!(LogLevel::Debug, "a frame is not sent: {error}");
        }
    }

    /// Ends a use of a link that has other users, or that stays for them.
    fn release_quietly(&self, link: &Arc<OutgoingLink>) {
        link.users.fetch_sub(1, Ordering::Relaxed);
    }

    /// Handles events of the ends of incoming links, on the service thread.
    fn handle_ends(&self, tokens: &[u64]) {
        for token in tokens {
            let state = lock(&self.state);
            let link = state.tokens.get(token).and_then(|key| state.incoming.get(key)).cloned();
            drop(state);
            let Some(link) = link else { continue };
            drop(self.end_poller.remove(link.stream().as_fd()));
            link.drain();
        }
    }

    /// Returns an event for a thread that waits.
    ///
    /// # Errors
    /// `System`.
    pub(super) fn take_event(&self) -> LocalResult<Arc<EventFd>> {
        match lock(&self.state).spare_events.pop() {
            Some(event) => Ok(event),
            None => Ok(Arc::new(EventFd::new()?)),
        }
    }

    /// Takes back an event, which is not raised.
    pub(super) fn return_event(&self, event: Arc<EventFd>) {
        lock(&self.state).spare_events.push(event);
    }

    /// Drops the links of a process as its death would.
    #[cfg(test)]
    pub(super) fn drop_abruptly(&self, own: Nonce) {
        let mut state = lock(&self.state);
        let outgoing: Vec<_> = state.outgoing.extract_if(|key, _| key.own == own).collect();
        let incoming: Vec<_> = state.incoming.extract_if(|key, _| key.own == own).collect();
        state.tokens.retain(|_, key| key.own != own);
        drop(state);
        outgoing.iter().for_each(|(_, link)| link.drop_abruptly());
        incoming.iter().for_each(|(_, link)| self.message_input.remove(link));
    }

    /// Closes all links. Called when the last group of the process has ended.
    pub(super) fn close(&self) {
        let state = std::mem::take(&mut *lock(&self.state));
        let outgoing = state.outgoing.values().chain(&state.closing);
        // If the time passes, the peers get all data, and learn of the departure by other ranks.
        let limit = Deadline::after(END_TIMEOUT);
        for link in outgoing {
            link.stream().iter().for_each(|stream| io::send_end(stream, &limit));
            link.close(false);
        }
        for link in state.incoming.values() {
            link.stream().close_gracefully();
        }
        self.message_input.clear();
        state.suspended.values().for_each(|link| link.cancel());
        drop(state);
    }
}

/// The handler of the service thread for the ends of incoming links.
#[derive(Debug)]
struct LinkEndEvents {
    table: Weak<LinkTable>,
    poller: Arc<Poller>,
}

impl DescriptorHandler for LinkEndEvents {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    fn on_readable(&self) -> WatchAction {
        let Some(table) = self.table.upgrade() else { return WatchAction::Done };
        let mut events = PollEvents::with_capacity(64);
        if self.poller.poll_now(&mut events).is_ok() {
            let tokens: Vec<u64> = events.iter().map(|event| event.token).collect();
            table.handle_ends(&tokens);
        }
        WatchAction::Keep
    }
}
