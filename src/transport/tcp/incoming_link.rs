//! The receiving end of a link: a connection that another process has made to this process, and on
//! which the ranks of that process send to the ranks of this one. All groups share it. One thread
//! at a time reads it ([`link_reader`](super::link_reader)).

use super::incoming_channel::IncomingChannel;
use super::link_events::LinkEvent;
use super::link_owner::LinkOwner;
use super::link_reader::LinkReader;
use super::link_reading::{LinkNotice, ReadStop, ReadTarget, Reading};
use super::link_user::LinkKey;
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
    pub(super) stream: Arc<SocketStream>,
    /// Whether the link has ended, and all its bytes were read.
    pub(super) is_over: AtomicBool,
    /// The number of times that bytes were read. If it changes, the other process is alive.
    pub(super) read_count: AtomicU64,
    reader: Mutex<LinkReader>,
    owner: Weak<dyn LinkOwner>,
}

impl IncomingLink {
    pub(super) fn new(
        key: LinkKey,
        number: u64,
        stream: Arc<SocketStream>,
        owner: Weak<dyn LinkOwner>,
    ) -> Arc<Self> {
        let reader = Mutex::new(LinkReader::new());
        Arc::new(Self {
            key,
            number,
            stream,
            is_over: AtomicBool::new(false),
            read_count: AtomicU64::new(0),
            reader,
            owner,
        })
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

    fn try_lock_reader(&self) -> Option<MutexGuard<'_, LinkReader>> {
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
        mut reader: MutexGuard<'_, LinkReader>,
        target: Option<ReadTarget<'a>>,
        read: impl FnOnce(&mut LinkReader, &mut Reading<'a>) -> ReadStop,
    ) -> usize {
        if self.is_over.load(Ordering::Acquire) {
            return 0;
        }
        let (key, stream, owner) = (&self.key, self.stream.as_ref(), &self.owner);
        let mut reading = Reading { key, stream, owner, target, notices: Vec::new(), reads: 0 };
        let stop = read(&mut reader, &mut reading);
        if reading.reads > 0 {
            self.read_count.fetch_add(reading.reads, Ordering::Release);
        }
        let filled = reading.target.as_ref().map_or(0, |target| target.filled);
        if reading.notices.is_empty() && matches!(stop, ReadStop::Paused) {
            return filled;
        }
        let users = match &stop {
            ReadStop::Ended(_) => {
                // Nothing after a malformed frame has a meaning.
                self.is_over.store(true, Ordering::Release);
                reader.users()
            }
            ReadStop::Paused => None,
        };
        drop(reader);
        // Without an owner, no group is left to which anything could be reported.
        let Some(owner) = self.owner.upgrade() else { return filled };
        reading.notices.into_iter().for_each(|notice| self.report(owner.as_ref(), notice));
        if let ReadStop::Ended(cause) = stop {
            // Before a channel was opened, all groups with a rank there may wait for its bytes.
            let users = users.unwrap_or_else(|| owner.users_of(self.key.peer));
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
