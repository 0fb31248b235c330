//! The sending end of a link: the connection on which the ranks of this process send to the ranks
//! of another process. All groups share it. It is connected when the first rank sends.
//!
//! A caller writes whole frames. If the system takes only a part of a frame, the rest of that frame
//! is copied, so that the frames of other channels need not wait for this caller. The caller is
//! told that the copied bytes are sent only after the system has taken them.

use super::hello::Hello;
use super::link_events::LinkEvent;
use super::link_frame::{
    ALIGNMENT, ChannelRanks, Frame, FrameHead, HEAD_BYTES, MAX_PAYLOAD, padding,
};
use super::link_table::{ChannelUser, LinkEnd, LinkKey, LinkTable, LinkUser};
use super::peer_connect::{PeerConnectHandler, PeerConnector};
use crate::base::buffer::{Dst, Src};
use crate::base::error::Error;
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::sys::poll::Interest;
use crate::sys::socket;
use crate::sys::stream::{SocketStream, is_transient};
use crate::wait::service::{self, DescriptorHandler, DescriptorWatch, WatchAction};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// A message of at most this length is copied behind its head, so that one part is sent.
const COPY_BYTES: usize = 4 << 10;
/// The maximum number of frames of one call.
const FRAMES_PER_CALL: usize = 6;
/// The maximum number of bytes that may wait before further grants are dropped.
const MAX_PENDING: usize = 64 << 20;

/// The sending end of a channel.
#[derive(Debug)]
pub(super) struct OutgoingChannel {
    number: u32,
    ranks: ChannelRanks,
    user: Weak<dyn LinkUser>,
    is_opened: AtomicBool,
    sent: AtomicU64,
    /// The number of bytes that may be sent in all.
    limit: AtomicU64,
    /// The bytes of the caller that were copied, and that the system had not taken yet.
    copied: AtomicUsize,
    /// Whether the group waits for room on a message stream.
    awaits_room: AtomicBool,
}

/// The result of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendOutcome {
    /// The system has taken this number of bytes.
    Sent(usize),
    /// The receiver has not granted more bytes.
    NotGranted,
    /// The link must be connected first.
    Unconnected,
    /// The link has ended.
    Ended,
}

/// The sending end of a link.
#[derive(Debug)]
pub(super) struct OutgoingLink {
    pub(super) key: LinkKey,
    state: Mutex<OutgoingState>,
    channels: Mutex<BTreeMap<u32, Weak<OutgoingChannel>>>,
    /// The number of meshes that use the link.
    pub(super) users: AtomicUsize,
    table: Weak<LinkTable>,
    weak: Weak<Self>,
}

#[derive(Debug, Default)]
struct OutgoingState {
    connection: Connection,
    /// Bytes that must be sent before the next frame.
    pending: Vec<u8>,
    pending_start: usize,
    next_number: u32,
    watch: Option<DescriptorWatch>,
    user_timeout: Option<Duration>,
    last_heartbeat: Option<Instant>,
    /// Whether the service thread waits for room.
    watches_room: bool,
    /// Whether the link is to be closed when it has sent everything.
    is_closing: bool,
}

#[derive(Debug, Default)]
enum Connection {
    #[default]
    Unused,
    Connecting(Arc<PeerConnector>),
    Open(Arc<SocketStream>),
    Ended,
}

impl OutgoingChannel {
    fn credit(&self) -> u64 {
        self.limit.load(Ordering::Acquire).saturating_sub(self.sent.load(Ordering::Relaxed))
    }
}

impl OutgoingLink {
    pub(super) fn new(key: LinkKey, table: Weak<LinkTable>) -> Arc<Self> {
        Arc::new_cyclic(|weak| Self {
            key,
            state: Mutex::default(),
            channels: Mutex::default(),
            users: AtomicUsize::new(0),
            table,
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

    /// Sends as many bytes of the parts as the receiver and the system take.
    pub(super) fn send(&self, channel: &OutgoingChannel, parts: &[Src<'_>]) -> SendOutcome {
        let mut state = lock(&self.state);
        let stream = match &state.connection {
            Connection::Open(stream) => Arc::clone(stream),
            Connection::Ended => return SendOutcome::Ended,
            Connection::Unused | Connection::Connecting(_) => return SendOutcome::Unconnected,
        };
        let outcome = state.send(&stream, channel, parts);
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(cause) if is_transient(&cause) => SendOutcome::Sent(0),
            Err(cause) => {
                let ended = state.end();
                drop(state);
                drop(ended);
                self.report_end(LinkEnd::of(Some(cause)));
                return SendOutcome::Ended;
            }
        };
        outcome
    }

    /// Makes the service thread tell the group of a channel when there is room again.
    pub(super) fn watch_for_room(&self, channel: &OutgoingChannel) {
        channel.awaits_room.store(true, Ordering::Release);
        lock(&self.state).watch_for_room();
    }

    /// Returns true if the link is being connected.
    pub(super) fn is_connecting(&self) -> bool {
        matches!(lock(&self.state).connection, Connection::Connecting(_))
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
        let mut state = lock(&self.state);
        if !matches!(state.connection, Connection::Unused) {
            return Ok(());
        }
        let handler: Weak<dyn PeerConnectHandler> = self.weak.clone();
        let connector = connector(handler)?;
        state.connection = Connection::Connecting(Arc::clone(&connector));
        drop(state);
        // The lock must be free: if the attempt fails inside this call, the handler takes it.
        connector.start();
        Ok(())
    }

    /// Returns true if bytes wait for room or for the connection.
    pub(super) fn is_busy(&self) -> bool {
        !lock(&self.state).pending.is_empty()
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
        if !is_due || !state.pending.is_empty() {
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
        if matches!(state.connection, Connection::Ended)
            || state.pending.len() - state.pending_start > MAX_PENDING
        {
            return;
        }
        state.pending.extend_from_slice(&frame.encode());
        state.pending.extend_from_slice(payload);
        let padded = state.pending.len() + padding(payload.len());
        state.pending.resize(padded, 0);
        self.flush(state);
    }

    /// Sends what waits, as far as there is room. The service thread sends the rest. Returns true if
    /// nothing waits any more.
    fn flush<'a>(&'a self, mut state: MutexGuard<'a, OutgoingState>) -> bool {
        let Connection::Open(stream) = &state.connection else { return false };
        let stream = Arc::clone(stream);
        match state.flush(&stream) {
            Ok(true) => {
                if state.is_closing {
                    if !stream.try_send_end() {
                        // An encrypted stream ends by a record, which must have room, too.
                        state.watch_for_room();
                        return false;
                    }
                    let ended = state.end();
                    drop(state);
                    stream.close_gracefully();
                    drop(ended);
                } else {
                    state.stop_watching_for_room();
                }
                true
            }
            Ok(false) => {
                state.watch_for_room();
                false
            }
            Err(cause) => {
                let ended = state.end();
                drop(state);
                drop(ended);
                self.report_end(LinkEnd::of(Some(cause)));
                false
            }
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
            Connection::Connecting(connector) if !delivers || state.pending.is_empty() => {
                let connector = Arc::clone(connector);
                let ended = state.end();
                drop(state);
                drop(ended);
                connector.cancel();
            }
            // The attempt ends in `on_connected` or `on_failed`.
            Connection::Connecting(_) => {}
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

    fn report_end(&self, end: LinkEnd) {
        if let Some(table) = self.table.upgrade() {
            let users: Vec<ChannelUser> = self
                .live_channels()
                .iter()
                .filter_map(|channel| Some((channel.user.upgrade()?, channel.ranks.to)))
                .collect();
            table.end_outgoing(self, end, users);
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
    fn report_change(&self) {
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
        if let Some(limit) = state.user_timeout {
            set_user_timeout(stream, limit);
        }
        state.connection = Connection::Open(Arc::clone(stream));
        state.watch = Some(watch);
        self.flush(state);
        Ok(())
    }
}

impl PeerConnectHandler for OutgoingLink {
    fn on_connected(&self, _: &Hello, stream: Arc<SocketStream>) {
        if let Err(cause) = self.open(&stream) {
            drop(lock(&self.state).end());
            self.report_end(LinkEnd::of(Some(cause)));
        }
        self.report_change();
    }

    fn on_failed(&self, hello: &Hello, error: Error) {
        let mut state = lock(&self.state);
        state.connection = if state.is_closing { Connection::Ended } else { Connection::Unused };
        drop(state);
        if let Some(table) = self.table.upgrade()
            && let Some(user) = table.user((hello.group, hello.from))
        {
            let (to, channel) = (hello.to, self.key.channel);
            table.events.push(LinkEvent::Unreachable { user, to, channel, error });
        }
        // The other groups try again, by their own members.
        self.report_change();
    }
}

impl OutgoingState {
    /// Sends what waits. Returns true if nothing waits any more.
    fn flush(&mut self, stream: &SocketStream) -> io::Result<bool> {
        while self.pending_start < self.pending.len() {
            match stream.send(&self.pending[self.pending_start..]) {
                Ok(sent) => self.pending_start += sent,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) if is_transient(&cause) => return Ok(false),
                Err(cause) => return Err(cause),
            }
        }
        self.pending.clear();
        self.pending_start = 0;
        if self.pending.capacity() > 4 * MAX_PAYLOAD {
            self.pending = Vec::new();
        }
        Ok(true)
    }

    fn watch_for_room(&mut self) {
        if let Some(watch) = &self.watch
            && !std::mem::replace(&mut self.watches_room, true)
        {
            watch.set_interest(Interest { read: true, write: true });
        }
    }

    fn stop_watching_for_room(&mut self) {
        if let Some(watch) = &self.watch
            && std::mem::take(&mut self.watches_room)
        {
            watch.set_interest(Interest::READ);
        }
    }

    /// Marks the link as ended. The caller drops the result after it has released the lock.
    fn end(&mut self) -> (Connection, Option<DescriptorWatch>) {
        self.pending = Vec::new();
        self.pending_start = 0;
        (std::mem::replace(&mut self.connection, Connection::Ended), self.watch.take())
    }

    fn send(
        &mut self,
        stream: &SocketStream,
        channel: &OutgoingChannel,
        parts: &[Src<'_>],
    ) -> io::Result<SendOutcome> {
        if !self.pending.is_empty() && !self.flush(stream)? {
            return Ok(SendOutcome::Sent(0));
        }
        let copied = channel.copied.swap(0, Ordering::Relaxed);
        if copied > 0 {
            let mut rest = PartCursor { parts, part: 0, offset: 0 };
            rest.take(copied, &mut Vec::new());
            let mut left = Vec::with_capacity(parts.len());
            rest.take(usize::MAX, &mut left);
            return match self.send(stream, channel, &left) {
                Ok(SendOutcome::Sent(sent)) => Ok(SendOutcome::Sent(copied + sent)),
                // The next call reports everything else.
                _ => Ok(SendOutcome::Sent(copied)),
            };
        }
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let credit = usize::try_from(channel.credit()).unwrap_or(usize::MAX);
        let wanted = total.min(credit);
        if wanted == 0 {
            return Ok(if total == 0 { SendOutcome::Sent(0) } else { SendOutcome::NotGranted });
        }
        if !channel.is_opened.load(Ordering::Relaxed) {
            let open = Frame::Open { channel: channel.number, ranks: channel.ranks };
            self.pending.extend_from_slice(&open.encode());
            channel.is_opened.store(true, Ordering::Relaxed);
            if wanted > COPY_BYTES && !self.flush(stream)? {
                return Ok(SendOutcome::Sent(0));
            }
        }
        if wanted <= COPY_BYTES {
            self.send_copy(stream, channel, parts, wanted)
        } else {
            self.send_in_place(stream, channel, parts, wanted)
        }
        .map(SendOutcome::Sent)
    }

    /// Sends a short message, behind the bytes that wait, from one buffer.
    fn send_copy(
        &mut self,
        stream: &SocketStream,
        channel: &OutgoingChannel,
        parts: &[Src<'_>],
        wanted: usize,
    ) -> io::Result<usize> {
        let before = self.pending.len();
        let head = Frame::Data { channel: channel.number, payload: wanted }.encode();
        self.pending.extend_from_slice(&head);
        let mut left = wanted;
        for part in parts {
            let count = part.len().min(left);
            append(&mut self.pending, part.slice(0, count));
            left -= count;
        }
        let end = self.pending.len() + padding(wanted);
        self.pending.resize(end, 0);
        match stream.send(&self.pending) {
            Ok(sent) if sent == self.pending.len() => {
                self.pending.clear();
                channel.sent.fetch_add(wanted as u64, Ordering::Relaxed);
                Ok(wanted)
            }
            Ok(sent) if sent > before => {
                self.pending_start = sent;
                channel.sent.fetch_add(wanted as u64, Ordering::Relaxed);
                let taken = (sent - before).saturating_sub(HEAD_BYTES).min(wanted);
                channel.copied.store(wanted - taken, Ordering::Relaxed);
                Ok(taken)
            }
            // The system has taken nothing of the message, which the caller offers again.
            Ok(sent) => {
                self.pending.truncate(before);
                self.pending_start = sent;
                Ok(0)
            }
            Err(cause) => {
                self.pending.truncate(before);
                if is_transient(&cause) { Ok(0) } else { Err(cause) }
            }
        }
    }

    /// Sends a long message from the caller's memory, in several frames.
    fn send_in_place(
        &mut self,
        stream: &SocketStream,
        channel: &OutgoingChannel,
        parts: &[Src<'_>],
        wanted: usize,
    ) -> io::Result<usize> {
        let count = wanted.div_ceil(MAX_PAYLOAD).min(FRAMES_PER_CALL);
        let wanted = wanted.min(count * MAX_PAYLOAD);
        let payload_of = |index: usize| (wanted - index * MAX_PAYLOAD).min(MAX_PAYLOAD);
        let heads: [FrameHead; FRAMES_PER_CALL] = std::array::from_fn(|index| {
            let payload = if index < count { payload_of(index) } else { MAX_PAYLOAD };
            Frame::Data { channel: channel.number, payload }.encode()
        });
        let zeros = [0; ALIGNMENT];
        let mut vector: Vec<Src<'_>> = Vec::with_capacity(2 * count + parts.len() + 1);
        let mut rest = PartCursor { parts, part: 0, offset: 0 };
        for index in 0..count {
            vector.push(Src::from(&heads[index][..]));
            rest.take(payload_of(index), &mut vector);
        }
        let pad = padding(payload_of(count - 1));
        if pad > 0 {
            vector.push(Src::from(&zeros[..pad]));
        }
        let sent = stream.send_parts(&vector)?;
        if sent == 0 {
            return Ok(0);
        }
        // Copy the rest of the frame that the system has taken only in part.
        let (frame_bytes, index) = (HEAD_BYTES + MAX_PAYLOAD, sent / (HEAD_BYTES + MAX_PAYLOAD));
        let in_frame = sent - index * frame_bytes;
        let (begun, payload) = if index >= count {
            (count, 0)
        } else {
            (index + usize::from(in_frame > 0), payload_of(index))
        };
        let begun_bytes = wanted.min(begun * MAX_PAYLOAD);
        channel.sent.fetch_add(begun_bytes as u64, Ordering::Relaxed);
        let end_of_frame = HEAD_BYTES + payload + padding(payload);
        if begun == index || in_frame >= end_of_frame {
            return Ok(begun_bytes);
        }
        let taken = index * MAX_PAYLOAD + in_frame.saturating_sub(HEAD_BYTES).min(payload);
        let mut skip = sent;
        let frame_end = index * frame_bytes + end_of_frame;
        let mut left = frame_end - sent;
        for part in &vector {
            let begin = skip.min(part.len());
            skip -= begin;
            let count = (part.len() - begin).min(left);
            append(&mut self.pending, part.slice(begin, count));
            left -= count;
        }
        channel.copied.store(begun_bytes - taken, Ordering::Relaxed);
        Ok(taken)
    }
}

/// A position in a list of parts.
struct PartCursor<'a, 'b> {
    parts: &'b [Src<'a>],
    part: usize,
    offset: usize,
}

impl<'a> PartCursor<'a, '_> {
    /// Appends the next `count` bytes to `vector`.
    fn take(&mut self, mut count: usize, vector: &mut Vec<Src<'a>>) {
        while count > 0
            && let Some(part) = self.parts.get(self.part)
        {
            let here = count.min(part.len() - self.offset);
            if here > 0 {
                vector.push(part.slice(self.offset, here));
            }
            self.offset += here;
            count -= here;
            if self.offset == part.len() {
                self.part += 1;
                self.offset = 0;
            }
        }
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

fn append(to: &mut Vec<u8>, bytes: Src<'_>) {
    let before = to.len();
    to.resize(before + bytes.len(), 0);
    Dst::from(&mut to[before..]).copy_from(bytes);
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

    /// Nothing arrives on this connection but its end.
    fn on_readable(&self) -> WatchAction {
        let Some(link) = self.link.upgrade() else { return WatchAction::Done };
        let cause = match self.stream.receive(&mut [0]) {
            Ok(0) => None,
            Ok(_) => Some(io::Error::new(io::ErrorKind::InvalidData, "it sent unexpected bytes")),
            Err(cause) if is_transient(&cause) => return WatchAction::Keep,
            Err(cause) => Some(cause),
        };
        let mut state = lock(&link.state);
        let ended = state.end();
        drop(state);
        drop(ended);
        crate::log!(LogLevel::Debug, "a link has ended: {cause:?}");
        link.report_end(LinkEnd::of(cause));
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
