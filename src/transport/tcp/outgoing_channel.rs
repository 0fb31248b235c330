//! What an outgoing link sends: the frames of its channels, and the bytes that wait for room.

use super::link_frame::{
    ALIGNMENT, ChannelRanks, Frame, FrameHead, HEAD_BYTES, MAX_PAYLOAD, padding,
};
use super::link_user::LinkUser;
use super::peer_connect::PeerConnector;
use crate::base::buffer::{Dst, Src};
use crate::sys::poll::Interest;
use crate::sys::stream::{SocketStream, is_transient};
use crate::wait::service::DescriptorWatch;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A message of at most this length is copied behind its head, so that one part is sent.
const COPY_BYTES: usize = 4 << 10;

/// The maximum number of frames of one call.
const FRAMES_PER_CALL: usize = 6;

/// The sending end of a channel.
#[derive(Debug)]
pub(super) struct OutgoingChannel {
    pub(super) number: u32,
    pub(super) ranks: ChannelRanks,
    pub(super) user: Weak<dyn LinkUser>,
    pub(super) is_opened: AtomicBool,
    pub(super) sent: AtomicU64,
    /// The number of bytes that may be sent in all.
    pub(super) limit: AtomicU64,
    /// The bytes of the caller that were copied, and that the system had not taken yet.
    pub(super) copied: AtomicUsize,
    /// Whether the group waits for room on a message stream.
    pub(super) awaits_room: AtomicBool,
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

/// What a link sends, under its lock.
#[derive(Debug, Default)]
pub(super) struct OutgoingState {
    pub(super) connection: Connection,
    /// Bytes that must be sent before the next frame.
    pub(super) pending: Vec<u8>,
    pub(super) pending_start: usize,
    pub(super) next_number: u32,
    pub(super) watch: Option<DescriptorWatch>,
    pub(super) user_timeout: Option<Duration>,
    pub(super) last_heartbeat: Option<Instant>,
    /// Whether the service thread waits for room.
    pub(super) watches_room: bool,
    /// Whether the link is to be closed when it has sent everything.
    pub(super) is_closing: bool,
}

/// The connection of an outgoing link.
#[derive(Debug, Default)]
pub(super) enum Connection {
    #[default]
    Unused,
    Connecting(Arc<PeerConnector>),
    Open(Arc<SocketStream>),
    Ended,
}

impl OutgoingChannel {
    pub(super) fn credit(&self) -> u64 {
        self.limit.load(Ordering::Acquire).saturating_sub(self.sent.load(Ordering::Relaxed))
    }
}

impl OutgoingState {
    /// Sends what waits. Returns true if nothing waits any more.
    pub(super) fn flush(&mut self, stream: &SocketStream) -> io::Result<bool> {
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

    pub(super) fn watch_for_room(&mut self) {
        if let Some(watch) = &self.watch
            && !std::mem::replace(&mut self.watches_room, true)
        {
            watch.set_interest(Interest { read: true, write: true });
        }
    }

    pub(super) fn stop_watching_for_room(&mut self) {
        if let Some(watch) = &self.watch
            && std::mem::take(&mut self.watches_room)
        {
            watch.set_interest(Interest::READ);
        }
    }

    /// Marks the link as ended. The caller drops the result after it has released the lock.
    pub(super) fn end(&mut self) -> (Connection, Option<DescriptorWatch>) {
        self.pending = Vec::new();
        self.pending_start = 0;
        (std::mem::replace(&mut self.connection, Connection::Ended), self.watch.take())
    }

    pub(super) fn send(
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
            let mut rest = MessageCursor { parts, part: 0, offset: 0 };
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
        let mut rest = MessageCursor { parts, part: 0, offset: 0 };
        for (index, head) in heads.iter().enumerate().take(count) {
            vector.push(Src::from(&head[..]));
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
struct MessageCursor<'a, 'b> {
    parts: &'b [Src<'a>],
    part: usize,
    offset: usize,
}

impl<'a> MessageCursor<'a, '_> {
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

fn append(to: &mut Vec<u8>, bytes: Src<'_>) {
    let before = to.len();
    to.resize(before + bytes.len(), 0);
    Dst::from(&mut to[before..]).copy_from(bytes);
}
