//! The links of this process: one connection for each pair of processes, direction and kind of
//! stream, which all groups share.
//!
//! | file | content |
//! |---|---|
//! | [`link_frame`](super::link_frame) | the frames on a link |
//! | [`outgoing_link`](super::outgoing_link) | the sending end |
//! | [`incoming_link`](super::incoming_link), [`link_reader`](super::link_reader) | the receiving end |
//! | [`incoming_channel`](super::incoming_channel) | the bytes from one rank of a group to another |
//! | [`message_input`](super::message_input) | links for messages, which the service thread reads |
//! | [`link_events`](super::link_events) | ends, departures and control frames, for the service thread |
//!
//! The end of a connection shows how the *process* at its other end has ended: in order (FIN), or by
//! a death (reset). A rank that leaves a group says so by a frame. A group that this process does
//! not know yet may already send: its bytes wait in the inboxes until the group registers.

use super::incoming_channel::{DueGrant, IncomingChannel};
use super::incoming_link::IncomingLink;
use super::link_events::{LinkEvent, LinkEvents};
use super::link_frame::{ChannelRanks, Frame};
use super::message_input::MessageInput;
use super::outgoing_link::OutgoingLink;
use super::peer_connect::{PeerConnectHandler, PeerConnector};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result as LocalResult};
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::sys::eventfd::EventFd;
use crate::sys::poll::{PollEvents, Poller};
use crate::sys::stream::SocketStream;
use crate::transport::Channel;
use crate::wait::io;
use crate::wait::service::{self, DescriptorHandler, DescriptorWatch, WatchAction};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The time for which a process that leaves its last group waits in total until the buffers of its
/// sockets have room for the records by which encrypted links end in order.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The number of groups that have ended, and whose late bytes are dropped.
const MAX_DEPARTED: usize = 4096;
/// The maximum number of channels of groups that this process does not know yet.
const MAX_UNKNOWN_CHANNELS: usize = 4096;

/// The maximum number of control frames for groups that this process does not know yet.
const MAX_EARLY_CONTROL: usize = 4096;

/// A link: this process, the other process, and the kind of stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LinkKey {
    pub(super) own: Nonce,
    pub(super) peer: Nonce,
    pub(super) channel: Channel,
}

/// A rank of a group in this process.
pub(super) type UserKey = (GroupId, Rank);

/// A rank of this process that has a channel on a link, and the rank at the other end of the channel.
pub(super) type ChannelUser = (Arc<dyn LinkUser>, Rank);

/// How a link has ended.
#[derive(Debug)]
pub(super) enum LinkEnd {
    /// The other process has closed it in order.
    Closed,
    /// It broke.
    Broken(std::io::Error),
}

impl LinkEnd {
    pub(super) fn of(cause: Option<std::io::Error>) -> Self {
        cause.map_or(Self::Closed, Self::Broken)
    }
}

/// A rank of a group that uses links. The functions are called on any thread and must not block.
pub(super) trait LinkUser: Send + Sync + Debug {
    /// Returns the process of a rank.
    fn process_of(&self, rank: Rank) -> Option<Nonce>;

    /// Called when bytes of a channel have arrived while the caller did not read them.
    fn on_input(&self, from: Rank, channel: Channel);

    /// Called when a channel may have room again, or when its link was connected.
    fn on_room(&self, to: Rank, channel: Channel);

    /// Called when a rank has left the group, with the reason if the group has failed.
    fn on_left(&self, from: Rank, reason: Option<Error>);

    /// Called when a control frame of another leader has arrived on this incoming link.
    fn on_control(&self, from: Rank, link: u64, bytes: &[u8]);

    /// Called when a message link has ended: an incoming one with its number, or an outgoing one.
    fn on_control_end(&self, key: &LinkKey, link: Option<u64>, end: &LinkEnd);

    /// Called when a rank cannot be reached.
    fn on_unreachable(&self, to: Rank, channel: Channel, error: Error);

    /// Called when a link has ended on which the rank has a channel to or from `peer`.
    fn on_link_end(&self, peer: Rank, end: &LinkEnd);

    /// Creates an attempt to connect a link, if it leads from this rank to a rank of its group.
    fn connector_to(
        &self,
        key: &LinkKey,
        handler: Weak<dyn PeerConnectHandler>,
    ) -> Option<LocalResult<Arc<PeerConnector>>>;
}

/// The links of this process.
#[derive(Debug)]
pub(super) struct LinkTable {
    state: Mutex<LinkTableState>,
    pub(super) message_input: Arc<MessageInput>,
    /// Reports the ends of incoming links to the service thread.
    end_poller: Arc<Poller>,
    pub(super) events: LinkEvents,
    weak: Weak<Self>,
}

#[derive(Debug, Default)]
struct LinkTableState {
    outgoing: HashMap<LinkKey, Arc<OutgoingLink>>,
    incoming: HashMap<LinkKey, Arc<IncomingLink>>,
    /// The tokens of the incoming links in the poller.
    tokens: BTreeMap<u64, LinkKey>,
    next_token: u64,
    users: HashMap<UserKey, Weak<dyn LinkUser>>,
    channels: HashMap<UserKey, HashMap<(Rank, Channel), Arc<IncomingChannel>>>,
    unknown_channels: usize,
    /// Control frames for groups that this process does not know yet, with their senders.
    early_control: HashMap<UserKey, Vec<EarlyControl>>,
    early_control_count: usize,
    /// The leaders that can handle control frames.
    control_users: HashSet<UserKey>,
    departed: VecDeque<UserKey>,
    /// Links that have no user and still send.
    closing: Vec<Arc<OutgoingLink>>,
    /// Events that no waiting thread uses.
    spare_events: Vec<Arc<EventFd>>,
    watch: Option<DescriptorWatch>,
}

/// A control frame for a group that this process does not know yet.
#[derive(Debug)]
struct EarlyControl {
    process: Nonce,
    from: Rank,
    link: u64,
    bytes: Vec<u8>,
}

impl LinkTable {
    /// Creates an empty table.
    ///
    /// # Errors
    /// `System`.
    pub(super) fn new() -> LocalResult<Arc<Self>> {
        let (message_input, end_poller) = (MessageInput::new()?, Arc::new(Poller::new()?));
        let table = Arc::new_cyclic(|weak| Self {
            state: Mutex::default(),
            message_input,
            end_poller,
            events: LinkEvents::default(),
            weak: weak.clone(),
        });
        let handler = Arc::downgrade(&table);
        table.events.start(move || {
            handler.upgrade().iter().for_each(|table| table.handle_events());
        })?;
        Ok(table)
    }

    /// Registers a rank of a group, and gives it the channels on which bytes have arrived already.
    pub(super) fn register(&self, key: UserKey, user: &Weak<dyn LinkUser>) {
        let mut state = lock(&self.state);
        state.departed.retain(|departed| *departed != key);
        if state.users.is_empty() {
            let incoming = state.incoming.values();
            incoming.for_each(|link| drop(link.stream.set_reset_on_close(true)));
        }
        state.users.insert(key, user.clone());
        let early: Vec<_> =
            state.channels.get(&key).into_iter().flat_map(|it| it.values().cloned()).collect();
        state.unknown_channels -= early.len();
        drop(state);
        for channel in early {
            channel.set_user(user.clone());
            if let Some(user) = user.upgrade()
                && channel.has_bytes()
            {
                user.on_input(channel.from, channel.channel);
            }
        }
    }

    /// Removes a rank of a group. Bytes that still arrive for it are dropped.
    pub(super) fn unregister(&self, key: UserKey) {
        let mut state = lock(&self.state);
        state.users.remove(&key);
        state.control_users.remove(&key);
        let channels = state.channels.remove(&key);
        if let Some(early) = state.early_control.remove(&key) {
            state.early_control_count -= early.len();
        }
        if state.departed.len() == MAX_DEPARTED {
            state.departed.pop_front();
        }
        state.departed.push_back(key);
        let is_last = state.users.is_empty();
        let incoming: Vec<_> = state.incoming.values().cloned().collect();
        drop(state);
        channels.iter().flat_map(HashMap::values).for_each(|channel| channel.abandon());
        if is_last {
            // The end of a process without groups is no death.
            incoming.iter().for_each(|link| drop(link.stream.set_reset_on_close(false)));
        }
    }

    pub(super) fn user(&self, key: UserKey) -> Option<Arc<dyn LinkUser>> {
        lock(&self.state).users.get(&key).and_then(Weak::upgrade)
    }

    /// Returns the channel from a rank to a registered rank.
    pub(super) fn channel(
        &self,
        key: UserKey,
        from: Rank,
        channel: Channel,
        user: &Weak<dyn LinkUser>,
    ) -> Arc<IncomingChannel> {
        let mut state = lock(&self.state);
        let entry = state.channels.entry(key).or_default().entry((from, channel));
        Arc::clone(entry.or_insert_with(|| IncomingChannel::new(from, channel, user.clone())))
    }

    /// Returns the channel that the process at the other end of a link opens. Returns `None` if the
    /// receiving rank has left the group.
    ///
    /// # Errors
    /// A description of the malformed part.
    pub(super) fn open_channel(
        &self,
        key: &LinkKey,
        ranks: &ChannelRanks,
    ) -> Result<Option<Arc<IncomingChannel>>, &'static str> {
        let user_key = (ranks.group, ranks.to);
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        if state.departed.contains(&user_key) {
            return Ok(None);
        }
        let user = state.users.get(&user_key).cloned();
        let registered = user.as_ref().and_then(Weak::upgrade);
        if let Some(registered) = &registered
            && registered.process_of(ranks.from) != Some(key.peer)
        {
            return Err("a channel of another process");
        }
        let channels = state.channels.entry(user_key).or_default();
        if let Some(known) = channels.get(&(ranks.from, key.channel)) {
            return Ok(Some(Arc::clone(known)));
        }
        if user.is_none() {
            if state.unknown_channels == MAX_UNKNOWN_CHANNELS {
                return Err("channels of too many unknown groups");
            }
            state.unknown_channels += 1;
        }
        let user = user.unwrap_or_else(no_user);
        let channel = IncomingChannel::new(ranks.from, key.channel, user);
        channels.insert((ranks.from, key.channel), Arc::clone(&channel));
        drop(guard);
        // Dropped without the lock, because the last reference may be this one.
        drop(registered);
        Ok(Some(channel))
    }

    /// Gives a leader that can handle control frames those that have arrived already.
    pub(super) fn accept_control(&self, key: UserKey) {
        loop {
            let mut state = lock(&self.state);
            let early = state.early_control.remove(&key).unwrap_or_default();
            state.early_control_count -= early.len();
            let user = state.users.get(&key).and_then(Weak::upgrade);
            if early.is_empty() {
                state.control_users.insert(key);
                return;
            }
            drop(state);
            let Some(user) = user else { return };
            for EarlyControl { process, from, link, bytes } in early {
                if user.process_of(from) == Some(process) {
                    user.on_control(from, link, &bytes);
                }
            }
        }
    }

    /// Takes a control frame to the leader to which it is addressed.
    pub(super) fn deliver_control(
        &self,
        key: &LinkKey,
        link: u64,
        ranks: &ChannelRanks,
        bytes: Vec<u8>,
    ) {
        let user_key = (ranks.group, ranks.to);
        let mut state = lock(&self.state);
        let user = match state.control_users.contains(&user_key) {
            true => state.users.get(&user_key).and_then(Weak::upgrade),
            false => None,
        };
        if let Some(user) = user {
            drop(state);
            if user.process_of(ranks.from) == Some(key.peer) {
                user.on_control(ranks.from, link, &bytes);
            }
        } else if !state.departed.contains(&user_key)
            && state.early_control_count < MAX_EARLY_CONTROL
        {
            state.early_control_count += 1;
            let early = EarlyControl { process: key.peer, from: ranks.from, link, bytes };
            state.early_control.entry(user_key).or_default().push(early);
        }
    }

    /// Returns the channel that carries the bytes of these ranks on a link, if it is open.
    pub(super) fn known_channel(
        &self,
        key: &LinkKey,
        ranks: &ChannelRanks,
    ) -> Option<Arc<IncomingChannel>> {
        let state = lock(&self.state);
        state.channels.get(&(ranks.group, ranks.to))?.get(&(ranks.from, key.channel)).cloned()
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
        let link = Arc::clone(entry.or_insert_with(|| OutgoingLink::new(key, self.weak.clone())));
        link.users.fetch_add(1, Ordering::Relaxed);
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
        let users = state.users_of(key.peer);
        drop(state);
        if let Err(cause) = self.watch(&link) {
            crate::log!(LogLevel::Error, "watching a connection: {cause}");
            self.end_incoming(&link, Some(std::io::Error::other(cause)), Vec::new());
        }
        for (user, rank) in users {
            user.on_input(rank, key.channel);
        }
        true
    }

    fn watch(&self, link: &Arc<IncomingLink>) -> Result<(), String> {
        if link.key.channel == Channel::PointToPoint {
            return self.message_input.add(link);
        }
        let mut state = lock(&self.state);
        state.tokens.insert(link.number, link.key);
        let added = self.end_poller.add_hang_up(link.stream.as_fd(), link.number);
        added.map_err(|cause| cause.to_string())?;
        if state.watch.is_none() {
            let handler =
                LinkEndEvents { table: self.weak.clone(), poller: Arc::clone(&self.end_poller) };
            let watch = service::watch(Arc::new(handler)).map_err(|error| error.to_string())?;
            state.watch = Some(watch);
        }
        Ok(())
    }

    /// Removes an incoming link that has ended, after all its bytes were read. `users` have channels
    /// on it.
    pub(super) fn end_incoming(
        &self,
        link: &IncomingLink,
        cause: Option<std::io::Error>,
        users: Vec<ChannelUser>,
    ) {
        let mut state = lock(&self.state);
        let is_it = |known: &Arc<IncomingLink>| std::ptr::eq(Arc::as_ptr(known), link);
        let removed = match state.incoming.get(&link.key).is_some_and(is_it) {
            true => state.incoming.remove(&link.key),
            false => None,
        };
        state.tokens.retain(|_, key| *key != link.key);
        drop(state);
        if removed.is_none() {
            return;
        }
        // Otherwise the end of this connection would look like the death of this process.
        link.stream.close_gracefully();
        if link.key.channel == Channel::PointToPoint {
            self.message_input.remove(link);
        } else {
            // Fails only if the poller does not watch the stream.
            drop(self.end_poller.remove(link.stream.as_fd()));
        }
        if let Some(cause) = &cause
            && cause.kind() == std::io::ErrorKind::InvalidData
        {
            crate::log!(LogLevel::Error, "a connection between processes is unusable: {cause}");
        }
        let (key, number, end) = (link.key, Some(link.number), LinkEnd::of(cause));
        self.events.push(LinkEvent::Ended { key, number, end, users });
    }

    /// Returns the registered ranks whose groups have a rank in a process, each with that rank.
    pub(super) fn users_of(&self, process: Nonce) -> Vec<ChannelUser> {
        lock(&self.state).users_of(process)
    }

    /// Removes an outgoing link that has ended. `users` have channels on it.
    pub(super) fn end_outgoing(&self, link: &OutgoingLink, end: LinkEnd, users: Vec<ChannelUser>) {
        let mut state = lock(&self.state);
        let is_it = |known: &Arc<OutgoingLink>| std::ptr::eq(Arc::as_ptr(known), link);
        let removed = match state.outgoing.get(&link.key).is_some_and(is_it) {
            true => state.outgoing.remove(&link.key),
            false => None,
        };
        drop(state);
        drop(removed);
        self.events.push(LinkEvent::Ended { key: link.key, number: None, end, users });
    }

    /// Handles the events of links, on the service thread.
    fn handle_events(&self) {
        while let Some(event) = self.events.take() {
            match event {
                LinkEvent::Ended { key, number, end, users } => {
                    self.handle_end(&key, number, &end, &users);
                }
                LinkEvent::Left { key, ranks, reason } => {
                    self.handle_departure(&key, &ranks, reason);
                }
                LinkEvent::Control { key, number, ranks, bytes } => {
                    self.deliver_control(&key, number, &ranks, bytes);
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
        let leaders: Vec<_> = match key.channel {
            Channel::PointToPoint => {
                let keys = state.control_users.iter();
                keys.filter_map(|key| state.users.get(key)?.upgrade()).collect()
            }
            Channel::Collective(_) => Vec::new(),
        };
        drop(state);
        // The notice that a rank has left may have arrived on another link. It is handled before the
        // end.
        others.iter().for_each(|link| link.drain());
        self.handle_departures();
        users.iter().for_each(|(user, peer)| user.on_link_end(*peer, end));
        leaders.iter().for_each(|user| user.on_control_end(key, number, end));
    }

    /// Handles the departures among the events that wait.
    fn handle_departures(&self) {
        for event in self.events.take_departures() {
            if let LinkEvent::Left { key, ranks, reason } = event {
                self.handle_departure(&key, &ranks, reason);
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

    /// Sends a grant for a channel on the link back to its sender.
    pub(super) fn send_grant(&self, key: &LinkKey, grant: DueGrant) {
        let DueGrant { number, total } = grant;
        self.send_frame(key, &Frame::Grant { channel: number, total }, &[]);
    }

    /// Tells a rank again that a rank has left its group.
    pub(super) fn repeat_departure(&self, key: &LinkKey, ranks: &ChannelRanks) {
        let ranks = ChannelRanks { group: ranks.group, from: ranks.to, to: ranks.from };
        self.send_frame(key, &Frame::Leave { ranks, payload: 0 }, &[]);
    }

    /// Sends a frame on the link to a process. Connects the link, if a group still has a rank
    /// there.
    fn send_frame(&self, key: &LinkKey, frame: &Frame, payload: &[u8]) {
        let link = self.acquire(*key);
        link.send_frame(frame, payload);
        let users = lock(&self.state).all_users();
        let connector = |handler: Weak<dyn PeerConnectHandler>| {
            let mut connectors =
                users.iter().filter_map(|user| user.connector_to(key, handler.clone()));
            connectors.next().unwrap_or_else(|| Err(Error::internal("no rank is there")))
        };
        if let Err(error) = link.connect(connector) {
            crate::log!(LogLevel::Debug, "a frame is not sent: {error}");
        }
        self.release_quietly(&link);
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
            drop(self.end_poller.remove(link.stream.as_fd()));
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
            link.stream.close_gracefully();
        }
        self.message_input.clear();
        drop(state);
    }
}

/// A reference to no user.
fn no_user() -> Weak<dyn LinkUser> {
    #[derive(Debug)]
    enum Nobody {}
    impl LinkUser for Nobody {
        fn process_of(&self, _: Rank) -> Option<Nonce> {
            match *self {}
        }
        fn on_input(&self, _: Rank, _: Channel) {}
        fn on_room(&self, _: Rank, _: Channel) {}
        fn on_left(&self, _: Rank, _: Option<Error>) {}
        fn on_control(&self, _: Rank, _: u64, _: &[u8]) {}
        fn on_control_end(&self, _: &LinkKey, _: Option<u64>, _: &LinkEnd) {}
        fn on_unreachable(&self, _: Rank, _: Channel, _: Error) {}
        fn on_link_end(&self, _: Rank, _: &LinkEnd) {}
        fn connector_to(
            &self,
            _: &LinkKey,
            _: Weak<dyn PeerConnectHandler>,
        ) -> Option<LocalResult<Arc<PeerConnector>>> {
            match *self {}
        }
    }
    Weak::<Nobody>::new()
}

impl LinkTableState {
    fn all_users(&self) -> Vec<Arc<dyn LinkUser>> {
        self.users.values().filter_map(Weak::upgrade).collect()
    }

    /// Returns the registered ranks whose groups have a rank in a process, each with that rank.
    fn users_of(&self, process: Nonce) -> Vec<(Arc<dyn LinkUser>, Rank)> {
        let rank_there = |user: &Arc<dyn LinkUser>| {
            (0..).map_while(|rank| Some((rank, user.process_of(rank)?))).find(|it| it.1 == process)
        };
        self.all_users()
            .into_iter()
            .filter_map(|user| rank_there(&user).map(|(rank, _)| (user, rank)))
            .collect()
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
