//! The receiving end of a link: a connection that another process has made to this process, and on
//! which the ranks of that process send to the ranks of this one. All groups share it. One thread
//! at a time reads it ([`link_reader`](super::link_reader)).

use super::incoming_channel::IncomingChannel;
use super::link_events::LinkEvent;
use super::link_owner::LinkOwner;
use super::link_reader::LinkReader;
use super::link_reading::{LinkNotice, ReadStop, ReadTarget, Reading};
use super::link_user::{ChannelUser, LinkEnd, LinkKey};
use crate::base::buffer::Dst;
use crate::base::sync::lock;
use crate::sys::stream::SocketStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};

/// The receiving end of a link.
#[derive(Debug)]
pub(super) struct IncomingLink {
    pub(super) key: LinkKey,
    /// The number of the link. No other incoming link of this process has the same one.
    pub(super) number: u64,
    stream: Mutex<Arc<SocketStream>>,
    /// Whether the connection broke, and was not replaced yet.
    is_suspended: AtomicBool,
    /// Whether the link has ended, and all its bytes were read.
    pub(super) is_over: AtomicBool,
    /// The number of times that bytes were read. If it changes, the other process is alive.
    pub(super) read_count: AtomicU64,
    reader: Mutex<ReaderState>,
    owner: Weak<dyn LinkOwner>,
}

/// The reader, and the connection that it reads.
#[derive(Debug)]
struct ReaderState {
    reader: LinkReader,
    stream: Arc<SocketStream>,
}

impl IncomingLink {
    pub(super) fn new(
        key: LinkKey,
        number: u64,
        stream: Arc<SocketStream>,
        owner: Weak<dyn LinkOwner>,
    ) -> Arc<Self> {
        let reader = ReaderState { reader: LinkReader::new(), stream: Arc::clone(&stream) };
        let (reader, stream) = (Mutex::new(reader), Mutex::new(stream));
        Arc::new(Self {
            key,
            number,
            stream,
            is_suspended: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            read_count: AtomicU64::new(0),
            reader,
            owner,
        })
    }

    /// Returns the connection.
    pub(super) fn stream(&self) -> Arc<SocketStream> {
        Arc::clone(&lock(&self.stream))
    }

    /// Returns true if bytes have arrived on the link.
    pub(super) fn is_in_use(&self) -> bool {
        self.read_count.load(Ordering::Acquire) > 0
    }

    /// Returns true if the connection broke, and was not replaced yet.
    pub(super) fn is_suspended(&self) -> bool {
        self.is_suspended.load(Ordering::Acquire)
    }

    /// Replaces the connection. `accept` sends the end of the handshake, and the number of bytes
    /// that have arrived on the link. Returns the old connection, or `None` if the link has ended.
    pub(super) fn replace_stream(
        &self,
        stream: &Arc<SocketStream>,
        accept: impl FnOnce(u64),
    ) -> Option<Arc<SocketStream>> {
        // The bytes that the old connection still has.
        self.drain();
        let mut state = lock(&self.reader);
        if self.is_over.load(Ordering::Acquire) {
            return None;
        }
        state.reader.begin_connection();
        let old = std::mem::replace(&mut state.stream, Arc::clone(stream));
        *lock(&self.stream) = Arc::clone(stream);
        self.is_suspended.store(false, Ordering::Release);
        accept(state.reader.received());
        Some(old)
    }

    /// Ends the link, whose connection broke and was not replaced. Returns its users.
    pub(super) fn give_up(&self) -> Option<Vec<ChannelUser>> {
        let state = lock(&self.reader);
        self.is_over.store(true, Ordering::Release);
        state.reader.users()
    }

    /// Receives bytes of a channel. Returns their number. Returns 0 if nothing has arrived, or if
    /// another thread reads the link and the inbox is empty.
    pub(super) fn receive(&self, channel: &Arc<IncomingChannel>, into: Dst<'_>) -> usize {
        // Bytes in the inbox come first. Only the thread that reads the link adds to it.
        let reader = self.try_lock_reader();
        let (taken, grant) = channel.take(into);
        if taken > 0 {
            drop(reader);
            if let Some(grant) = grant
                && let Some(owner) = self.owner.upgrade()
            {
                owner.send_grant(&self.key, grant);
            }
            return taken;
        }
        let Some(reader) = reader else { return 0 };
        let target = ReadTarget { channel, into, filled: 0 };
        self.run(reader, Some(target), LinkReader::read)
    }

    /// Reads the bytes that have arrived, and puts them into the inboxes of the channels. If
    /// another thread reads the link, waits until it has finished.
    pub(super) fn drain(&self) {
        self.run(lock(&self.reader), None, LinkReader::drain);
    }

    /// Tells the group to which the next payload belongs that it can receive.
    pub(super) fn announce(&self) {
        if let Some(reader) = self.try_lock_reader() {
            self.run(reader, None, LinkReader::announce);
        }
    }

    fn try_lock_reader(&self) -> Option<MutexGuard<'_, ReaderState>> {
        match self.reader.try_lock() {
            Ok(reader) => Some(reader),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Reads, and reports what must be reported after the lock was released. Returns the number of
    /// bytes that the target got.
    fn run<'a>(
        &'a self,
        mut state: MutexGuard<'_, ReaderState>,
        target: Option<ReadTarget<'a>>,
        read: impl for<'b> FnOnce(&mut LinkReader, &mut Reading<'b>) -> ReadStop,
    ) -> usize {
        if self.is_over.load(Ordering::Acquire) || self.is_suspended() {
            return 0;
        }
        let (key, owner) = (&self.key, &self.owner);
        let ReaderState { reader, stream } = &mut *state;
        let mut reading =
            Reading { key, stream: stream.as_ref(), owner, target, notices: Vec::new(), reads: 0 };
        let mut stop = read(reader, &mut reading);
        if matches!(stop, ReadStop::Ended(None)) && stream.was_reset() {
            stop = ReadStop::Ended(Some(std::io::ErrorKind::ConnectionReset.into()));
        }
        if reading.reads > 0 {
            self.read_count.fetch_add(reading.reads, Ordering::Release);
        }
        let filled = reading.target.as_ref().map_or(0, |target| target.filled);
        if reading.notices.is_empty() && matches!(stop, ReadStop::Paused) {
            return filled;
        }
        let owner = self.owner.upgrade();
        let is_break = |cause: &std::io::Error| {
            LinkEnd::is_break(cause)
                && owner.as_ref().is_some_and(|owner| owner.replaces_links(key.own))
        };
        let has_broken = matches!(&stop, ReadStop::Ended(Some(cause)) if is_break(cause));
        let users = match &stop {
            ReadStop::Ended(_) if has_broken => {
                self.is_suspended.store(true, Ordering::Release);
                None
            }
            ReadStop::Ended(_) => {
                // Nothing after a malformed frame has a meaning.
                self.is_over.store(true, Ordering::Release);
                reader.users()
            }
            ReadStop::Paused => None,
        };
        let Reading { notices, .. } = reading;
        drop(state);
        // Without an owner, no group is left to which anything could be reported.
        let Some(owner) = owner else { return filled };
        notices.into_iter().for_each(|notice| self.report(owner.as_ref(), notice));
        if let ReadStop::Ended(cause) = stop {
            if has_broken {
                let (key, number) = (self.key, self.number);
                let cause = cause.unwrap_or_else(|| std::io::ErrorKind::ConnectionReset.into());
                owner.push_event(LinkEvent::Suspended { key, number, cause });
                return filled;
            }
            // Before a channel was opened, all groups with a rank there may wait for its bytes. An
            // orderly end tells them nothing: a rank that leaves says so.
            let all = || cause.as_ref().map(|_| owner.users_of(self.key.peer)).unwrap_or_default();
            let users = users.unwrap_or_else(all);
            owner.end_incoming(&self.key, self.number, cause, users);
        }
        filled
    }

    fn report(&self, owner: &dyn LinkOwner, notice: LinkNotice) {
        match notice {
            LinkNotice::Input(user, from, channel) => user.on_input(from, channel),
            LinkNotice::Grant(grant) => owner.send_grant(&self.key, grant),
            LinkNotice::Granted { number, total } => {
                owner.accept_grant(&self.key, number, total);
            }
            LinkNotice::Left(ranks, reason) => {
                owner.push_event(LinkEvent::Left { key: self.key, ranks, reason });
            }
            LinkNotice::Control(ranks, bytes) => {
                let (key, number) = (self.key, self.number);
                owner.push_event(LinkEvent::Control { key, number, ranks, bytes });
            }
            LinkNotice::SentToDeparted(ranks) => owner.repeat_departure(&self.key, &ranks),
            LinkNotice::Asked(ranks, channel) => {
                owner.answer_query(&LinkKey { channel, ..self.key }, &ranks);
            }
        }
    }
}
