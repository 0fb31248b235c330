//! The sending end of a link: the connection on which the ranks of this process send to the ranks
//! of another process. All groups share it. It is connected when the first rank sends.
//!
//! A caller writes whole frames. If the system takes only a part of a frame, the rest of that frame
//! is copied, so that the frames of other channels need not wait for this caller. The copied bytes
//! count as sent only after the system has taken them.

use super::hello::Hello;
use super::link_events::LinkEvent;
use super::link_frame::{ChannelRanks, Frame, padding};
use super::link_owner::LinkOwner;
use super::link_user::{ChannelUser, LinkEnd, LinkKey, LinkUser};
use super::outgoing_channel::{
    Connection, KeepPolicy, OutgoingChannel, OutgoingState, SendOutcome,
};
use super::peer_connect::{PeerConnectHandler, PeerConnector};
use crate::base::buffer::Src;
use crate::base::error::Error;
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::sys::socket;
use crate::sys::stream::{SocketStream, is_transient};
use crate::transport::Channel;
use crate::wait::service::{self, DescriptorHandler, WatchAction};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// The maximum number of bytes that may wait before further grants are dropped.
const MAX_PENDING: usize = 64 << 20;

/// The sending end of a link.
#[derive(Debug)]
pub(super) struct OutgoingLink {
    pub(super) key: LinkKey,
    /// The idle time after which the system probes the connection.
    keep_alive: Duration,
    /// The time within which a broken connection must be replaced; 0 if it is not replaced.
    pub(super) retry_time: Duration,
    pub(super) state: Mutex<OutgoingState>,
    channels: Mutex<BTreeMap<u32, Weak<OutgoingChannel>>>,
    /// The number of meshes that use the link.
    pub(super) users: AtomicUsize,
    pub(super) owner: Weak<dyn LinkOwner>,
    weak: Weak<Self>,
}

impl OutgoingLink {
    pub(super) fn new(
        key: LinkKey,
        (keep_alive, retry_time): (Duration, Duration),
        owner: Weak<dyn LinkOwner>,
    ) -> Arc<Self> {
        let mut state = OutgoingState::default();
        if retry_time.is_zero() {
            state.queue.policy = KeepPolicy::Nothing;
        }
        Arc::new_cyclic(|weak| Self {
            key,
            keep_alive,
            retry_time,
            state: Mutex::new(state),
            channels: Mutex::default(),
            users: AtomicUsize::new(0),
            owner,
            weak: weak.clone(),
        })
    }

    /// Returns a new channel on this link.
    pub(super) fn new_channel(
        &self,
        ranks: ChannelRanks,
        user: Weak<dyn LinkUser>,
    ) -> Arc<OutgoingChannel> {
        let mut state = lock(&self.state);
        let number = state.next_number;
        state.next_number += 1;
        drop(state);
        let channel = Arc::new(OutgoingChannel {
            number,
            ranks,
            user,
            is_opened: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            limit: AtomicU64::new(super::incoming_channel::WINDOW),
            copied: AtomicUsize::new(0),
            awaits_room: AtomicBool::new(false),
        });
        lock(&self.channels).insert(number, Arc::downgrade(&channel));
        channel
    }

    /// Sends as many bytes of the parts as the receiver and the system take. The link may keep a
    /// view of `lent`, which is one of the parts, until [`OutgoingLink::end_loans`].
    pub(super) fn send(
        &self,
        channel: &OutgoingChannel,
        parts: &[Src<'_>],
        lent: Src<'static>,
    ) -> SendOutcome {
        let mut state = lock(&self.state);
        let OutgoingState { connection, queue, .. } = &mut *state;
        let stream = match connection {
            Connection::Open(stream) => stream,
            Connection::Ended => return SendOutcome::Ended,
            _ => return SendOutcome::Unconnected,
        };
        match queue.send(stream, channel, parts, lent) {
            Ok(outcome) => outcome,
            Err(cause) if is_transient(&cause) => SendOutcome::Sent(0),
            Err(cause) => {
                self.break_off(state, cause);
                if self.has_ended() { SendOutcome::Ended } else { SendOutcome::Sent(0) }
            }
        }
    }

    /// Ends the loans of the callers' memory.
    pub(super) fn end_loans(&self) {
        let mut state = lock(&self.state);
        let OutgoingState { connection, queue, .. } = &mut *state;
        let stream = match connection {
            Connection::Open(stream) => Some(&**stream),
            _ => None,
        };
        queue.end_loans(stream);
    }

    /// Makes the service thread tell the group of a channel when there is room again.
    pub(super) fn watch_for_room(&self, channel: &OutgoingChannel) {
        channel.awaits_room.store(true, Ordering::Release);
        lock(&self.state).watch_for_room();
    }

    /// Returns true if the link is being connected, or broke and is being replaced.
    pub(super) fn is_connecting(&self) -> bool {
        let state = lock(&self.state);
        !matches!(state.connection, Connection::Unused | Connection::Open(_) | Connection::Ended)
    }

    /// Returns the stream, if the link is connected.
    pub(super) fn stream(&self) -> Option<Arc<SocketStream>> {
        match &lock(&self.state).connection {
            Connection::Open(stream) => Some(Arc::clone(stream)),
            _ => None,
        }
    }

    /// Returns true if the receiver has granted bytes that were not sent.
    pub(super) fn is_granted(&self, channel: &OutgoingChannel) -> bool {
        channel.credit() > 0
    }

    /// Starts to connect the link, unless it is connected or being connected. `connector` creates
    /// the attempt.
    ///
    /// # Errors
    /// The error of `connector`.
    pub(super) fn connect(
        &self,
        connector: impl FnOnce(Weak<dyn PeerConnectHandler>) -> Result<Arc<PeerConnector>, Error>,
    ) -> Result<(), Error> {
        let state = lock(&self.state);
        match state.connection {
            Connection::Unused => self.begin_connect(state, connector),
            _ => Ok(()),
        }
    }

    /// Starts to connect the link.
    ///
    /// # Errors
    /// The error of `connector`.
    pub(super) fn begin_connect(
        &self,
        mut state: MutexGuard<'_, OutgoingState>,
        connector: impl FnOnce(Weak<dyn PeerConnectHandler>) -> Result<Arc<PeerConnector>, Error>,
    ) -> Result<(), Error> {
        let handler: Weak<dyn PeerConnectHandler> = self.weak.clone();
        let connector = connector(handler)?;
        state.connection = Connection::Connecting(Arc::clone(&connector));
        state.last_connector = Some(Arc::clone(&connector));
        drop(state);
        // The lock must be free: if the attempt fails inside this call, the handler takes it.
        connector.start();
        Ok(())
    }

    /// Returns true if bytes wait for room or for the connection.
    pub(super) fn is_busy(&self) -> bool {
        !lock(&self.state).queue.pending.is_empty()
    }

    /// Sets the time after which the link ends if sent bytes are not acknowledged.
    pub(super) fn set_user_timeout(&self, limit: Duration) {
        let mut state = lock(&self.state);
        state.user_timeout = Some(limit);
        if let Connection::Open(stream) = &state.connection {
            set_user_timeout(stream, limit);
        }
    }

    /// Sends a heartbeat, unless one was sent within nearly this interval, or bytes wait for room.
    pub(super) fn send_heartbeat(&self, interval: Duration) {
        let mut state = lock(&self.state);
        let is_due = state.last_heartbeat.is_none_or(|at| at.elapsed() >= interval * 3 / 4);
        if !is_due || !state.queue.pending.is_empty() {
            return;
        }
        state.last_heartbeat = Some(Instant::now());
        drop(state);
        self.send_frame(&Frame::Heartbeat, &[]);
    }

    /// Describes why the link is not connected yet.
    pub(super) fn describe_connect(&self) -> Option<String> {
        let connector = match &lock(&self.state).connection {
            Connection::Connecting(connector) => Arc::clone(connector),
            _ => return None,
        };
        connector.describe()
    }

    /// Accepts a grant of the receiver.
    pub(super) fn grant(&self, number: u32, total: u64) {
        let channel = lock(&self.channels).get(&number).and_then(Weak::upgrade);
        let Some(channel) = channel else { return };
        channel.limit.fetch_max(total, Ordering::AcqRel);
        if let Some(user) = channel.user.upgrade() {
            user.on_room(channel.ranks.to, self.key.channel);
        }
    }

    /// Sends a frame, as soon as there is room. If the link is not connected, the frame waits for
    /// the connection.
    pub(super) fn send_frame(&self, frame: &Frame, payload: &[u8]) {
        let mut state = lock(&self.state);
        if matches!(state.connection, Connection::Ended) || state.queue.pending.len() > MAX_PENDING
        {
            return;
        }
        state.queue.pending.push(Src::from(&frame.encode()[..]));
        state.queue.pending.push(Src::from(payload));
        state.queue.pending.push_zeros(padding(payload.len()));
        self.flush(state);
    }

    /// Sends what waits, as far as there is room. The service thread sends the rest. Returns true
    /// if nothing waits any more.
    pub(super) fn flush<'a>(&'a self, mut state: MutexGuard<'a, OutgoingState>) -> bool {
        let Connection::Open(stream) = &state.connection else { return false };
        let stream = Arc::clone(stream);
        match state.queue.flush(&stream) {
            Ok(true) => {
                if state.is_closing && !stream.try_send_end() {
                    // An encrypted stream ends by a record, which must have room, too.
                    state.watch_for_room();
                    return false;
                }
                state.stop_watching_for_room();
                if state.is_closing {
                    stream.shutdown_write();
                    self.end_if_arrived(state);
                }
                true
            }
            Ok(false) => {
                state.watch_for_room();
                false
            }
            Err(cause) => {
                self.break_off(state, cause);
                false
            }
        }
    }

    /// Ends the link, which has sent everything, if all of it has arrived at the other host. Else
    /// the watchdog calls this function again.
    pub(super) fn end_if_arrived(&self, mut state: MutexGuard<'_, OutgoingState>) {
        let Connection::Open(stream) = &state.connection else { return };
        let is_within_host = stream.ends().is_some_and(|ends| ends.are_on_one_host());
        if self.retry_time.is_zero() || is_within_host || stream.unacknowledged() == 0 {
            let ended = state.end();
            drop(state);
            drop(ended);
        }
    }

    /// Ends the link, and reports the end to its users.
    pub(super) fn end(&self, mut state: MutexGuard<'_, OutgoingState>, end: LinkEnd) {
        let (ended, is_closing) = (state.end(), state.is_closing);
        drop(state);
        drop(ended);
        // A link that is being closed has no users.
        if !is_closing {
            self.report_end(end);
        }
    }

    /// Closes the link in order after it has sent what waits. If it is not connected, it stays only
    /// if `delivers` is true.
    pub(super) fn close(&self, delivers: bool) {
        let mut state = lock(&self.state);
        state.is_closing = true;
        match &state.connection {
            Connection::Open(stream) => {
                // From here on, the end of this process is no death.
                drop(stream.set_reset_on_close(false));
                self.flush(state);
            }
            Connection::Connecting(connector) if !delivers || state.queue.pending.is_empty() => {
                let connector = Arc::clone(connector);
                let ended = state.end();
                drop(state);
                drop(ended);
                connector.cancel();
            }
            // The attempt ends in `on_connected` or `on_failed`.
            Connection::Connecting(_) | Connection::Broken | Connection::Resuming { .. } => {}
            Connection::Unused | Connection::Ended => {
                let ended = state.end();
                drop(state);
                drop(ended);
            }
        }
    }

    /// Drops the connection as the death of the process would.
    #[cfg(test)]
    pub(super) fn drop_abruptly(&self) {
        let ended = lock(&self.state).end();
        drop(ended);
    }

    /// Returns true if the link has nothing more to send.
    pub(super) fn has_ended(&self) -> bool {
        matches!(lock(&self.state).connection, Connection::Ended)
    }

    /// Returns true if the link is connected or being connected, or has something to send.
    pub(super) fn is_needed(&self) -> bool {
        let state = lock(&self.state);
        match &state.connection {
            Connection::Ended => false,
            Connection::Unused => state.queue.has_rest(),
            _ => true,
        }
    }

    pub(super) fn report_end(&self, end: LinkEnd) {
        if let Some(owner) = self.owner.upgrade() {
            let users: Vec<ChannelUser> = self
                .live_channels()
                .iter()
                .filter_map(|channel| Some((channel.user.upgrade()?, channel.ranks.to)))
                .collect();
            owner.end_outgoing(&self.key, end, users);
        }
    }

    fn live_channels(&self) -> Vec<Arc<OutgoingChannel>> {
        lock(&self.channels).values().filter_map(Weak::upgrade).collect()
    }

    /// Wakes the groups whose messages wait for room.
    fn report_room(&self) {
        for channel in self.live_channels() {
            if channel.awaits_room.swap(false, Ordering::AcqRel)
                && let Some(user) = channel.user.upgrade()
            {
                user.on_room(channel.ranks.to, self.key.channel);
            }
        }
    }

    /// Wakes all groups that use the link.
    pub(super) fn report_change(&self) {
        for channel in self.live_channels() {
            if let Some(user) = channel.user.upgrade() {
                user.on_room(channel.ranks.to, self.key.channel);
            }
        }
    }

    /// Forgets channels whose groups have ended.
    pub(super) fn forget_ended_channels(&self) {
        lock(&self.channels).retain(|_, channel| channel.strong_count() > 0);
    }

    /// Starts to use a connection on which both sides have verified each other.
    fn open(&self, stream: &Arc<SocketStream>) -> io::Result<()> {
        let handler = OutgoingEvents { link: self.weak.clone(), stream: Arc::clone(stream) };
        let watch = service::watch(Arc::new(handler))
            .map_err(|error| io::Error::other(error.to_string()))?;
        let mut state = lock(&self.state);
        stream.set_reset_on_close(!state.is_closing)?;
        socket::set_keep_alive(stream, self.keep_alive)?;
        if let Some(limit) = state.user_timeout {
            set_user_timeout(stream, limit);
        }
        state.watch = Some(watch);
        if state.broken.is_some() {
            let (stream, since) = (Arc::clone(stream), Instant::now());
            state.connection = Connection::Resuming { stream: Arc::clone(&stream), since };
            drop(state);
            self.read_position(&stream);
        } else {
            state.connection = Connection::Open(Arc::clone(stream));
            self.flush(state);
        }
        Ok(())
    }
}

impl PeerConnectHandler for OutgoingLink {
    fn on_connected(&self, _: &Hello, stream: Arc<SocketStream>) {
        if let Err(cause) = self.open(&stream) {
            self.end(lock(&self.state), LinkEnd::of(Some(cause)));
        }
        if self.key.channel == Channel::PointToPoint
            && let Some(owner) = self.owner.upgrade()
        {
            owner.push_event(LinkEvent::Connected { key: self.key });
        }
        self.report_change();
    }

    fn on_failed(&self, hello: &Hello, error: Error) {
        let mut state = lock(&self.state);
        if state.broken.is_some() {
            let Connection::Connecting(connector) = &state.connection else { return };
            let connector = Arc::clone(connector);
            drop(state);
            crate::log!(LogLevel::Warn, "a broken connection is not replaced: {error}");
            return self.fail_to_resume(connector.has_found_no_process());
        }
        state.connection = if state.is_closing { Connection::Ended } else { Connection::Unused };
        drop(state);
        if let Some(owner) = self.owner.upgrade()
            && let Some(user) = owner.user((hello.group, hello.from))
        {
            let (to, channel) = (hello.to, self.key.channel);
            owner.push_event(LinkEvent::Unreachable { user, to, channel, error });
        }
        // The other groups try again, by their own members.
        self.report_change();
    }
}

fn set_user_timeout(stream: &SocketStream, limit: Duration) {
    if let Err(cause) = socket::set_user_timeout(stream, limit) {
        crate::log!(
            LogLevel::Warn,
            "cannot set the TCP user timeout, so the loss of a host may go undetected: {cause}"
        );
    }
}

/// Handles the events of an outgoing connection on the service thread.
#[derive(Debug)]
struct OutgoingEvents {
    link: Weak<OutgoingLink>,
    stream: Arc<SocketStream>,
}

impl DescriptorHandler for OutgoingEvents {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Nothing arrives on this connection but its end, and the position of the other side at the
    /// beginning of a connection that replaces a broken one.
    fn on_readable(&self) -> WatchAction {
        let Some(link) = self.link.upgrade() else { return WatchAction::Done };
        if matches!(lock(&link.state).connection, Connection::Resuming { .. }) {
            link.read_position(&self.stream);
            return WatchAction::Keep;
        }
        let cause = match self.stream.receive(&mut [0]) {
            Ok(0) if self.stream.was_reset() => Some(io::ErrorKind::ConnectionReset.into()),
            Ok(0) => None,
            Ok(_) => Some(io::Error::new(io::ErrorKind::InvalidData, "it sent unexpected bytes")),
            Err(cause) if is_transient(&cause) => return WatchAction::Keep,
            Err(cause) => Some(cause),
        };
        crate::log!(LogLevel::Debug, "a connection has ended: {cause:?}");
        let state = lock(&link.state);
        let is_current =
            matches!(&state.connection, Connection::Open(it) if Arc::ptr_eq(it, &self.stream));
        match cause {
            _ if !is_current => {}
            Some(cause) => link.break_off(state, cause),
            None => link.end(state, LinkEnd::Closed),
        }
        WatchAction::Done
    }

    fn on_writable(&self) -> WatchAction {
        let Some(link) = self.link.upgrade() else { return WatchAction::Done };
        if link.flush(lock(&link.state)) {
            link.report_room();
        }
        WatchAction::Keep
    }
}
