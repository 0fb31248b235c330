//! The reader of an incoming link: takes frames from its stream, and their payloads to the
//! channels.
//!
//! The reader belongs to the thread that holds its lock. A caller that waits for a channel passes
//! its own memory as the *target*. Payload of that channel goes there directly, usually by one
//! system call together with the head of its frame. Payload of other channels goes into their
//! inboxes. When a thread gives the reader back, the buffer contains no complete head, and no
//! payload (except after [`LinkReader::announce`]). So a thread that waits until the stream is
//! readable misses nothing.

use super::byte_queue::ByteQueue;
use super::control_frame::ControlFrame;
use super::incoming_channel::IncomingChannel;
use super::link_frame::{ChannelRanks, Frame, FrameHead, HEAD_BYTES, MAX_PAYLOAD, padding};
use super::link_reading::{LinkNotice, ReadStop, ReadTarget, Reading};
use super::link_user::ChannelUser;
use crate::base::buffer::{Dst, Src};
use crate::base::error::Error;
use crate::sys::stream::is_transient;
use crate::transport::Channel;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

/// The number of bytes that are read before it is known to which channel they belong.
const BUFFER_BYTES: usize = 2 * HEAD_BYTES + (2 << 10);
/// The bytes that one call reads for the inbox of a channel.
const SCRATCH_BYTES: usize = 64 << 10;
/// The maximum number of channels of a link.
const MAX_CHANNELS: usize = 1 << 16;
/// The maximum number of reads of one call.
const MAX_READS: usize = 64;

/// The state of reading a link.
#[derive(Debug)]
pub(super) struct LinkReader {
    buffer: ByteQueue,
    current: Option<CurrentFrame>,
    padding: usize,
    /// The channels by number; `None` for a channel whose bytes are dropped.
    channels: HashMap<u32, Option<Arc<IncomingChannel>>>,
    /// Whether a channel was ever opened.
    has_had_channels: bool,
    scratch: Vec<u8>,
    /// Whether the last read got less than there was room for, and the stream was not announced as
    /// readable since.
    is_exhausted: bool,
    /// The channel of the last payload, and its number.
    last: Option<(u32, Arc<IncomingChannel>)>,
    /// Whether the stream was announced to the group of `last`, and nothing was read since.
    is_expected: bool,
    /// The number of bytes that were read, on all connections of the link.
    received: u64,
}

/// A frame whose payload has not arrived completely.
#[derive(Debug)]
struct CurrentFrame {
    sink: PayloadSink,
    payload: usize,
    left: usize,
    /// Whether the frame was announced to the channel's group, which has taken nothing since.
    is_announced: bool,
}

/// The destination of a payload.
#[derive(Debug)]
enum PayloadSink {
    Channel(Arc<IncomingChannel>),
    Dropped,
    /// The reason of a departure, or a control frame.
    Whole(ChannelRanks, WholeKind, Vec<u8>),
}

/// What a payload is that is used as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WholeKind {
    Reason,
    Control,
}

impl LinkReader {
    pub(super) fn new() -> Self {
        Self {
            buffer: ByteQueue::with_room(BUFFER_BYTES),
            current: None,
            padding: 0,
            channels: HashMap::new(),
            has_had_channels: false,
            scratch: Vec::new(),
            is_exhausted: false,
            last: None,
            is_expected: false,
            received: 0,
        }
    }

    /// Returns the number of bytes that were read.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Continues on another connection.
    pub(super) fn begin_connection(&mut self) {
        self.is_exhausted = false;
        self.is_expected = false;
    }

    /// Reads until the target has got bytes, or nothing more can be read. A link for messages is
    /// only read after it was announced as readable, which saves the read that finds nothing.
    pub(super) fn read(&mut self, reading: &mut Reading<'_>) -> ReadStop {
        let mut reads = 0;
        while reads < MAX_READS || reading.stream.has_buffered_input() {
            reads += 1;
            if let Err(cause) = self.use_buffer(reading) {
                return ReadStop::Ended(Some(cause));
            }
            // An encrypted stream may have bytes for which the socket does not become readable.
            if reading.target.as_ref().is_some_and(|it| it.filled > 0 || it.room() == 0)
                && !reading.stream.has_buffered_input()
            {
                return ReadStop::Paused;
            }
            if self.is_exhausted
                && reading.key.channel == Channel::PointToPoint
                && !reading.stream.is_encrypted()
            {
                return ReadStop::Paused;
            }
            if let Some(stop) = self.read_step(reading) {
                return stop;
            }
        }
        self.pause(reading)
    }

    /// Announces payload of a channel to the group of the channel, which then reads the payload
    /// into its own memory. First expects payload of the same channel as before, without reading
    /// anything. If the group has taken nothing since, reads heads until payload of a channel
    /// follows. If its group has taken nothing since the last call, takes the payload to the
    /// inbox.
    pub(super) fn announce(&mut self, reading: &mut Reading<'_>) -> ReadStop {
        self.is_exhausted = false;
        if self.can_read_head()
            && !std::mem::replace(&mut self.is_expected, true)
            && let Some((_, channel)) = &self.last
            && let Some(user) = channel.user()
        {
            reading.notices.push(LinkNotice::Input(user, channel.from, channel.channel));
            return ReadStop::Paused;
        }
        for _ in 0..MAX_READS {
            match &mut self.current {
                Some(CurrentFrame {
                    sink: PayloadSink::Channel(channel), is_announced, ..
                }) if !*is_announced => {
                    *is_announced = true;
                    if let Some(user) = channel.user() {
                        let (from, kind) = (channel.from, channel.channel);
                        reading.notices.push(LinkNotice::Input(user, from, kind));
                        return ReadStop::Paused;
                    }
                }
                _ => {}
            }
            match self.use_some(reading) {
                Ok(true) => {}
                Ok(false) => {
                    if let Some(stop) = self.read_step(reading) {
                        return stop;
                    }
                }
                Err(cause) => return ReadStop::Ended(Some(cause)),
            }
        }
        self.pause(reading)
    }

    /// Reads until nothing more can be read.
    pub(super) fn drain(&mut self, reading: &mut Reading<'_>) -> ReadStop {
        loop {
            if let Err(cause) = self.use_buffer(reading) {
                return ReadStop::Ended(Some(cause));
            }
            if let Some(stop) = self.read_step(reading) {
                return stop;
            }
        }
    }

    /// Returns the ranks of this process that have a channel on this link. Returns `None` if no
    /// channel was ever opened on it.
    pub(super) fn users(&self) -> Option<Vec<ChannelUser>> {
        let channels = self.channels.values().flatten();
        let users = channels.filter_map(|channel| Some((channel.user()?, channel.from))).collect();
        self.has_had_channels.then_some(users)
    }

    /// Stops after enough reads. No thread would wake for bytes that stay in the buffer.
    fn pause(&mut self, reading: &mut Reading<'_>) -> ReadStop {
        match self.use_buffer(reading) {
            Ok(()) => ReadStop::Paused,
            Err(cause) => ReadStop::Ended(Some(cause)),
        }
    }

    fn use_buffer(&mut self, reading: &mut Reading<'_>) -> io::Result<()> {
        while self.use_some(reading)? {}
        Ok(())
    }

    /// Uses some bytes of the buffer. Returns false if the buffer has no usable bytes.
    fn use_some(&mut self, reading: &mut Reading<'_>) -> io::Result<bool> {
        if self.buffer.is_empty() {
            return Ok(false);
        }
        if self.padding > 0 {
            let count = self.padding.min(self.buffer.len());
            self.padding -= count;
            self.buffer.take(count);
            return Ok(true);
        }
        if let Some(current) = &mut self.current {
            let count = current.left.min(self.buffer.len());
            deliver(&mut current.sink, &self.buffer.bytes()[..count], reading);
            self.buffer.take(count);
            self.advance(count, reading);
            return Ok(true);
        }
        let Some(head) = self.buffer.bytes().first_chunk::<HEAD_BYTES>() else {
            return Ok(false);
        };
        let head = *head;
        self.buffer.take(HEAD_BYTES);
        self.begin_frame(&head, reading)?;
        Ok(true)
    }

    /// Counts bytes of the payload of the current frame.
    fn advance(&mut self, count: usize, reading: &mut Reading<'_>) {
        let Some(current) = &mut self.current else { return };
        current.left -= count;
        current.is_announced = false;
        if current.left > 0 {
            return;
        }
        self.padding = padding(current.payload);
        let Some(CurrentFrame { sink: PayloadSink::Whole(ranks, kind, bytes), .. }) =
            self.current.take()
        else {
            return;
        };
        if kind == WholeKind::Control {
            reading.notices.push(LinkNotice::Control(ranks, bytes));
        } else {
            // A malformed reason only means that the reason is unknown.
            let reason = match ControlFrame::decode(&bytes, usize::MAX) {
                Ok(Some((ControlFrame::Abort(reason), _))) => Some(reason),
                _ => None,
            };
            self.leave(ranks, reason, reading);
        }
    }

    /// Returns true if the next byte of the stream is the first one of a head.
    fn can_read_head(&self) -> bool {
        self.current.is_none() && self.padding == 0 && self.buffer.is_empty()
    }

    /// Reads once. Returns the reason to stop, if nothing more can be read.
    fn read_step(&mut self, reading: &mut Reading<'_>) -> Option<ReadStop> {
        match self.read_more(reading) {
            Ok(true) => {
                reading.reads += 1;
                None
            }
            Ok(false) => Some(ReadStop::Ended(None)),
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => None,
            Err(cause) if is_transient(&cause) => Some(ReadStop::Paused),
            Err(cause) => Some(ReadStop::Ended(Some(cause))),
        }
    }

    /// Reads from the stream. Returns false at its end.
    fn read_more(&mut self, reading: &mut Reading<'_>) -> io::Result<bool> {
        self.is_expected = false;
        if self.padding == 0
            && self.buffer.is_empty()
            && let Some(current) = &mut self.current
        {
            let is_for_target = match (&current.sink, &reading.target) {
                (PayloadSink::Channel(channel), Some(target)) => {
                    Arc::ptr_eq(channel, target.channel) && target.room() > 0
                }
                _ => false,
            };
            if is_for_target {
                return self.read_to_target(reading);
            }
            if current.left > self.buffer.room().len() {
                self.scratch.resize(SCRATCH_BYTES, 0);
                let room = current.left.min(SCRATCH_BYTES);
                let got = reading.stream.receive(&mut self.scratch[..room])?;
                self.received += got as u64;
                self.is_exhausted = got < room;
                deliver(&mut current.sink, &self.scratch[..got], reading);
                self.advance(got, reading);
                return Ok(got > 0);
            }
        }
        let room = reading.target.as_ref().map_or(0, ReadTarget::room);
        if room > BUFFER_BYTES && self.can_read_head() {
            return self.read_head(reading);
        }
        self.buffer.shrink(BUFFER_BYTES);
        let room = self.buffer.room();
        let got = reading.stream.receive(room)?;
        self.is_exhausted = got < room.len();
        self.received += got as u64;
        self.buffer.added(got);
        Ok(got > 0)
    }

    /// Reads a head, and the bytes after it into the target, where most of them belong.
    fn read_head(&mut self, reading: &mut Reading<'_>) -> io::Result<bool> {
        let Some(target) = &mut reading.target else { return Ok(true) };
        let (channel, filled) = (target.channel, target.filled);
        // Bytes of another channel must be copied.
        let is_likely = self.last.as_ref().is_none_or(|(_, last)| Arc::ptr_eq(last, channel));
        let count = target.room().min(if is_likely { MAX_PAYLOAD } else { BUFFER_BYTES });
        let place = target.into.slice(filled, count);
        let mut head: FrameHead = [0; HEAD_BYTES];
        let got = reading.stream.receive_parts([Dst::from(&mut head[..]), place])?;
        self.is_exhausted = got < HEAD_BYTES + count;
        self.received += got as u64;
        let Some(behind) = got.checked_sub(HEAD_BYTES) else {
            self.buffer.push(Src::from(&head[..got]));
            return Ok(got > 0);
        };
        if Frame::is_short(&head) {
            // The payload takes the place of the bytes behind it.
            self.buffer.push(place.as_src().slice(0, behind));
            self.begin_frame(&head, reading)?;
            return Ok(true);
        }
        self.begin_frame(&head, reading)?;
        let direct = match &self.current {
            Some(CurrentFrame { sink: PayloadSink::Channel(sink), left, .. })
                if Arc::ptr_eq(sink, channel) =>
            {
                behind.min(*left)
            }
            _ => 0,
        };
        // Keep the bytes behind the payload.
        self.buffer.push(place.as_src().slice(direct, behind - direct));
        if let Some(target) = &mut reading.target
            && direct > 0
        {
            target.filled = filled + direct;
            reading.notices.extend(channel.count_taken(direct).map(LinkNotice::Grant));
            self.advance(direct, reading);
        }
        Ok(true)
    }

    /// Reads payload of the current frame into the target.
    fn read_to_target(&mut self, reading: &mut Reading<'_>) -> io::Result<bool> {
        let (Some(current), Some(target)) = (&self.current, &mut reading.target) else {
            return Ok(true);
        };
        let count = current.left.min(target.room());
        let place = target.into.slice(target.filled, count);
        // Read beyond the payload only if the target wants more, or if zeros follow, for which a
        // waiting thread would wake up.
        let is_last = count == current.left;
        let reads_beyond = is_last && (target.room() > count || padding(current.payload) > 0);
        let (got, room) = if reads_beyond {
            let behind = self.buffer.room();
            let room = count + behind.len();
            (reading.stream.receive_parts([place, Dst::from(behind)])?, room)
        } else {
            (reading.stream.receive_into(place)?, count)
        };
        self.is_exhausted = got < room;
        self.received += got as u64;
        let direct = got.min(count);
        target.filled += direct;
        self.buffer.added(got - direct);
        reading.notices.extend(target.channel.count_taken(direct).map(LinkNotice::Grant));
        self.advance(direct, reading);
        Ok(got > 0)
    }

    fn begin_frame(&mut self, head: &FrameHead, reading: &mut Reading<'_>) -> io::Result<()> {
        match Frame::decode(head).map_err(malformed)? {
            Frame::Open { channel, ranks } => {
                if self.channels.len() >= MAX_CHANNELS || self.channels.contains_key(&channel) {
                    return Err(malformed("too many channels, or one twice"));
                }
                let owner =
                    reading.owner.upgrade().ok_or_else(|| io::Error::other("no group is left"))?;
                let entry = owner.open_channel(reading.key, &ranks).map_err(malformed)?;
                match &entry {
                    Some(entry) if !entry.open(channel) => {
                        return Err(malformed("one channel twice"));
                    }
                    Some(_) => {}
                    None => reading.notices.push(LinkNotice::SentToDeparted(ranks)),
                }
                self.channels.insert(channel, entry);
                self.has_had_channels = true;
            }
            Frame::Data { channel, payload } => {
                let sink = self.sink_of(channel, payload)?;
                self.current = Some(CurrentFrame::new(sink, payload));
            }
            Frame::Short { channel, payload } => {
                let bytes = payload.as_slice();
                deliver(&mut self.sink_of(channel, bytes.len())?, bytes, reading);
            }
            Frame::Grant { channel: number, total } => {
                reading.notices.push(LinkNotice::Granted { number, total });
            }
            Frame::Leave { ranks, payload: 0 } => self.leave(ranks, None, reading),
            Frame::Leave { ranks, payload } => {
                self.begin_whole(ranks, WholeKind::Reason, payload);
            }
            Frame::Control { ranks, payload } => {
                self.begin_whole(ranks, WholeKind::Control, payload);
            }
            Frame::Heartbeat => {}
            Frame::Query { ranks, answer_on } => {
                reading.notices.push(LinkNotice::Asked(ranks, answer_on));
            }
        }
        Ok(())
    }

    /// Returns the destination of a payload of the channel with this number.
    fn sink_of(&mut self, number: u32, payload: usize) -> io::Result<PayloadSink> {
        if self.last.as_ref().is_none_or(|&(last, _)| last != number) {
            match self.channels.get(&number) {
                Some(Some(channel)) => self.last = Some((number, Arc::clone(channel))),
                Some(None) => return Ok(PayloadSink::Dropped),
                None => return Err(malformed("bytes of an unknown channel")),
            }
        }
        let Some((_, channel)) = &self.last else { return Ok(PayloadSink::Dropped) };
        if !channel.admit(payload) {
            return Err(malformed("more bytes than it was granted"));
        }
        Ok(PayloadSink::Channel(Arc::clone(channel)))
    }

    fn begin_whole(&mut self, ranks: ChannelRanks, kind: WholeKind, payload: usize) {
        let sink = PayloadSink::Whole(ranks, kind, Vec::with_capacity(payload));
        self.current = Some(CurrentFrame::new(sink, payload));
    }

    /// Ends the channels of a rank that has left its group.
    fn leave(&mut self, ranks: ChannelRanks, reason: Option<Error>, reading: &mut Reading<'_>) {
        let owner = reading.owner.upgrade();
        if let Some(channel) = owner.and_then(|it| it.known_channel(reading.key, &ranks)) {
            channel.end();
            let is_other = |entry: &Option<Arc<IncomingChannel>>| {
                entry.as_ref().is_none_or(|entry| !Arc::ptr_eq(entry, &channel))
            };
            self.channels.retain(|_, entry| is_other(entry));
            self.last = None;
        }
        reading.notices.push(LinkNotice::Left(ranks, reason));
    }
}

impl CurrentFrame {
    fn new(sink: PayloadSink, payload: usize) -> Self {
        Self { sink, payload, left: payload, is_announced: false }
    }
}

/// Takes bytes of a payload to their destination.
fn deliver(sink: &mut PayloadSink, bytes: &[u8], reading: &mut Reading<'_>) {
    let channel = match sink {
        PayloadSink::Channel(channel) => channel,
        PayloadSink::Dropped => return,
        PayloadSink::Whole(_, _, whole) => return whole.extend_from_slice(bytes),
    };
    let mut rest = bytes;
    if let Some(target) = &mut reading.target
        && Arc::ptr_eq(channel, target.channel)
    {
        let count = bytes.len().min(target.room());
        target.into.slice(target.filled, count).copy_from(Src::from(&bytes[..count]));
        target.filled += count;
        reading.notices.extend(channel.count_taken(count).map(LinkNotice::Grant));
        rest = &bytes[count..];
    }
    if rest.is_empty() {
        return;
    }
    channel.put(rest.to_vec());
    if let Some(user) = channel.user() {
        reading.notices.push(LinkNotice::Input(user, channel.from, channel.channel));
    }
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("it sent {what}"))
}
