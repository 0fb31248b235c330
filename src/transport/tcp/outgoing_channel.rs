//! What an outgoing link sends: the frames of its channels, and the bytes that wait for room.

use super::byte_queue::ByteQueue;
use super::kept_bytes::KeptBytes;
use super::link_frame::{
    ALIGNMENT, ChannelRanks, Frame, FrameHead, HEAD_BYTES, MAX_PAYLOAD, MAX_SHORT_PAYLOAD,
    ShortPayload, padding,
};
use super::link_user::LinkUser;
use super::peer_connect::PeerConnector;
use crate::base::buffer::Src;
use crate::sys::poll::Interest;
use crate::sys::stream::{SocketStream, is_transient};
use crate::sys::tcp_state::ConnectionEnds;
use crate::transport::endpoint::COPIED_BYTES;
use crate::wait::service::DescriptorWatch;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The maximum number of frames of one call that sends in place.
const FRAMES_PER_CALL: usize = 6;
/// The maximum number of parts that one call sends in place. The caller offers further parts again.
const MESSAGE_PARTS: usize = 3;
/// The maximum number of pieces of one call: each frame has a head, each border between frames cuts
/// a part in two, and zeros follow.
const MAX_PIECES: usize = 2 * FRAMES_PER_CALL + MESSAGE_PARTS;

/// The memory that a link keeps for bytes that wait.
const KEPT_BYTES: usize = MAX_PAYLOAD;

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
    pub(super) queue: SendQueue,
    pub(super) next_number: u32,
    pub(super) watch: Option<DescriptorWatch>,
    pub(super) user_timeout: Option<Duration>,
    pub(super) last_heartbeat: Option<Instant>,
    /// Whether the service thread waits for room.
    pub(super) watches_room: bool,
    /// Whether the link is to be closed when it has sent everything.
    pub(super) is_closing: bool,
    /// The last attempt to connect.
    pub(super) last_connector: Option<Arc<PeerConnector>>,
    /// Why and when the connection broke, until it is replaced.
    pub(super) broken: Option<LinkBreak>,
    /// The present time without progress, as the watchdog has seen it.
    pub(super) stall: Option<Stall>,
    /// The position of the other side, as far as it has arrived on a new connection.
    pub(super) position: Vec<u8>,
}

/// The break of a connection.
#[derive(Debug)]
pub(super) struct LinkBreak {
    pub(super) cause: io::Error,
    pub(super) since: Instant,
    pub(super) ends: Option<ConnectionEnds>,
}

/// A time in which the other end of a connection acknowledges nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stall {
    /// The low bits of the number of acknowledged bytes.
    pub(super) acknowledged: u32,
    pub(super) since: Instant,
}

/// What waits for room on a link.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    /// Bytes that must be sent before the next frame.
    pub(super) pending: ByteQueue,
    /// The bytes that were sent.
    pub(super) kept: KeptBytes,
    pub(super) policy: KeepPolicy,
}

/// Which of the sent bytes are kept until they are acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum KeepPolicy {
    /// None, because a broken connection is not replaced.
    Nothing,
    /// All, but no long messages inside a host: only the end of a process breaks such a connection.
    #[default]
    ByEnds,
    /// All.
    #[cfg(test)]
    All,
}

/// The connection of an outgoing link.
#[derive(Debug, Default)]
pub(super) enum Connection {
    #[default]
    Unused,
    Connecting(Arc<PeerConnector>),
    Open(Arc<SocketStream>),
    /// It broke, and is to be replaced.
    Broken,
    /// A connection that replaces a broken one, before the other side has sent its position.
    Resuming {
        stream: Arc<SocketStream>,
        since: Instant,
    },
    Ended,
}

impl OutgoingChannel {
    pub(super) fn credit(&self) -> u64 {
        self.limit.load(Ordering::Acquire).saturating_sub(self.sent.load(Ordering::Relaxed))
    }
}

impl OutgoingState {
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
        self.queue = SendQueue::default();
        (std::mem::replace(&mut self.connection, Connection::Ended), self.watch.take())
    }
}

impl SendQueue {
    /// Returns true if bytes wait, or may not have arrived.
    pub(super) fn has_rest(&self) -> bool {
        !self.pending.is_empty() || self.kept.len() > 0
    }

    /// Ends the loans of the callers' memory.
    pub(super) fn end_loans(&mut self, stream: Option<&SocketStream>) {
        if self.kept.has_loans() {
            stream.iter().for_each(|stream| self.kept.review(stream.unacknowledged()));
            self.kept.end_loans();
        }
    }

    /// Sends what waits. Returns true if nothing waits any more.
    pub(super) fn flush(&mut self, stream: &SocketStream) -> io::Result<bool> {
        while !self.pending.is_empty() {
            match stream.send(self.pending.bytes()) {
                Ok(sent) => self.take_sent(sent),
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) if is_transient(&cause) => return Ok(false),
                Err(cause) => return Err(cause),
            }
        }
        self.pending.shrink(KEPT_BYTES);
        Ok(true)
    }

    /// Sends bytes of the parts behind the bytes that wait. Long pieces of `lent`, which the parts
    /// have, are kept as a loan.
    ///
    /// # Errors
    /// The error of the system.
    pub(super) fn send(
        &mut self,
        stream: &SocketStream,
        channel: &OutgoingChannel,
        parts: &[Src<'_>],
        lent: Src<'static>,
    ) -> io::Result<SendOutcome> {
        if !self.pending.is_empty() && !self.flush(stream)? {
            return Ok(SendOutcome::Sent(0));
        }
        let copied = channel.copied.load(Ordering::Relaxed);
        if copied > 0 {
            // These bytes were sent from `pending`.
            channel.copied.store(0, Ordering::Relaxed);
            let mut left = Pieces::default();
            MessageCursor::behind(copied, parts).take(usize::MAX, &mut left);
            return match self.send(stream, channel, left.as_slice(), lent) {
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
            self.pending.push(Src::from(&open.encode()[..]));
            channel.is_opened.store(true, Ordering::Relaxed);
            if wanted > COPIED_BYTES && !self.flush(stream)? {
                return Ok(SendOutcome::Sent(0));
            }
        }
        let sent = if wanted <= COPIED_BYTES {
            self.send_copy(stream, channel, parts, wanted)
        } else {
            let parts = &parts[MessageCursor::behind(0, parts).part..];
            let parts = &parts[..parts.len().min(MESSAGE_PARTS)];
            let wanted = wanted.min(parts.iter().map(|part| part.len()).sum());
            self.send_in_place(stream, channel, (parts, lent), wanted)
        };
        if self.kept.is_review_due() {
            self.kept.review(stream.unacknowledged());
        }
        sent.map(SendOutcome::Sent)
    }

    /// Removes sent bytes from the bytes that wait.
    fn take_sent(&mut self, sent: usize) {
        match self.policy {
            KeepPolicy::Nothing => self.kept.skip(sent),
            _ => self.kept.copy(Src::from(&self.pending.bytes()[..sent])),
        }
        self.pending.take(sent);
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
        let mut left = wanted;
        let pieces = parts.iter().map(|part| {
            let count = part.len().min(left);
            left -= count;
            part.slice(0, count)
        });
        if wanted <= MAX_SHORT_PAYLOAD {
            let payload = ShortPayload::new(pieces);
            let frame = Frame::Short { channel: channel.number, payload };
            self.pending.push(Src::from(&frame.encode()[..]));
        } else {
            let head = Frame::Data { channel: channel.number, payload: wanted }.encode();
            self.pending.push(Src::from(&head[..]));
            pieces.for_each(|piece| self.pending.push(piece));
            self.pending.push_zeros(padding(wanted));
        }
        let frame_bytes = self.pending.len() - before;
        match stream.send(self.pending.bytes()) {
            Ok(sent) if sent > before => {
                self.take_sent(sent);
                channel.sent.fetch_add(wanted as u64, Ordering::Relaxed);
                let sent_of_frame = sent - before;
                let taken = if sent_of_frame == frame_bytes {
                    wanted
                } else {
                    sent_of_frame.saturating_sub(HEAD_BYTES).min(wanted)
                };
                if taken < wanted {
                    channel.copied.store(wanted - taken, Ordering::Relaxed);
                }
                Ok(taken)
            }
            // The system has taken nothing of the message, which the caller offers again.
            Ok(sent) => {
                self.pending.truncate(before);
                self.take_sent(sent);
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
        (parts, lent): (&[Src<'_>], Src<'static>),
        wanted: usize,
    ) -> io::Result<usize> {
        let count = wanted.div_ceil(MAX_PAYLOAD).min(FRAMES_PER_CALL);
        let wanted = wanted.min(count * MAX_PAYLOAD);
        let payload_of = |index: usize| (wanted - index * MAX_PAYLOAD).min(MAX_PAYLOAD);
        let mut heads: [FrameHead; FRAMES_PER_CALL] = [[0; HEAD_BYTES]; FRAMES_PER_CALL];
        for (index, head) in heads.iter_mut().enumerate().take(count) {
            *head = Frame::Data { channel: channel.number, payload: payload_of(index) }.encode();
        }
        let zeros = [0; ALIGNMENT];
        let mut pieces = Pieces::default();
        let mut rest = MessageCursor::behind(0, parts);
        for (index, head) in heads.iter().enumerate().take(count) {
            pieces.push(Src::from(&head[..]));
            rest.take(payload_of(index), &mut pieces);
        }
        pieces.push(Src::from(&zeros[..padding(payload_of(count - 1))]));
        let sent = stream.send_parts(pieces.as_slice())?;
        if sent == 0 {
            return Ok(0);
        }
        self.keep_sent(stream, pieces.as_slice(), sent, lent);
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
        self.copy_range(pieces.as_slice(), sent, index * frame_bytes + end_of_frame);
        channel.copied.store(begun_bytes - taken, Ordering::Relaxed);
        Ok(taken)
    }

    /// Keeps the first `sent` bytes of the pieces, which were sent.
    fn keep_sent(
        &mut self,
        stream: &SocketStream,
        pieces: &[Src<'_>],
        sent: usize,
        lent: Src<'static>,
    ) {
        let is_kept = match self.policy {
            KeepPolicy::Nothing => false,
            KeepPolicy::ByEnds => !stream.ends().is_some_and(|ends| ends.are_on_one_host()),
            #[cfg(test)]
            KeepPolicy::All => true,
        };
        if !is_kept {
            return self.kept.skip(sent);
        }
        let (mut skip, mut left) = (0, sent);
        if lent.is_empty() {
            // Do not copy bytes that have arrived.
            skip = sent.saturating_sub(stream.unacknowledged());
            if skip > 0 {
                self.kept.skip(skip);
            }
        }
        for piece in pieces {
            let piece = piece.slice(0, piece.len().min(left));
            left -= piece.len();
            let skipped = skip.min(piece.len());
            skip -= skipped;
            let piece = piece.slice(skipped, piece.len() - skipped);
            match lent.find(piece).filter(|_| piece.len() > COPIED_BYTES) {
                Some(lent) => self.kept.lend(lent),
                None => self.kept.copy(piece),
            }
        }
    }

    /// Copies the bytes `begin..end` of the pieces, which were not sent.
    fn copy_range(&mut self, pieces: &[Src<'_>], begin: usize, end: usize) {
        let (mut skip, mut left) = (begin, end - begin);
        for piece in pieces {
            let skipped = skip.min(piece.len());
            skip -= skipped;
            let count = (piece.len() - skipped).min(left);
            self.pending.push(piece.slice(skipped, count));
            left -= count;
        }
    }
}

/// The pieces of one call, in order.
struct Pieces<'a> {
    list: [Src<'a>; MAX_PIECES],
    len: usize,
}

impl Default for Pieces<'_> {
    fn default() -> Self {
        Self { list: [Src::empty(); MAX_PIECES], len: 0 }
    }
}

impl<'a> Pieces<'a> {
    /// Adds a piece, unless it is empty.
    fn push(&mut self, piece: Src<'a>) {
        if !piece.is_empty() {
            self.list[self.len] = piece;
            self.len += 1;
        }
    }

    fn as_slice(&self) -> &[Src<'a>] {
        &self.list[..self.len]
    }
}

/// A position in a list of parts.
struct MessageCursor<'a, 'b> {
    parts: &'b [Src<'a>],
    part: usize,
    offset: usize,
}

impl<'a, 'b> MessageCursor<'a, 'b> {
    /// Returns the position behind the first `count` bytes of a message.
    fn behind(mut count: usize, parts: &'b [Src<'a>]) -> Self {
        let mut part = 0;
        while part < parts.len() && count >= parts[part].len() {
            count -= parts[part].len();
            part += 1;
        }
        Self { parts, part, offset: count }
    }

    /// Adds the next `count` bytes to `pieces`, or as many as have room there.
    fn take(&mut self, mut count: usize, pieces: &mut Pieces<'a>) {
        while count > 0
            && pieces.len < MAX_PIECES
            && let Some(part) = self.parts.get(self.part)
        {
            let here = count.min(part.len() - self.offset);
            pieces.push(part.slice(self.offset, here));
            self.offset += here;
            count -= here;
            if self.offset == part.len() {
                self.part += 1;
                self.offset = 0;
            }
        }
    }
}
