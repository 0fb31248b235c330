//! Control channel of a rank: it receives the messages with which the ranks of a parent group
//! create groups.
//!
//! Control messages travel point to point under a tag that the library reserves, so they need no
//! store and match no receive of the caller. The channel posts its receive when this rank first
//! takes part in the creation of a group. Earlier messages wait in the engine as unexpected
//! messages. The channel queues each message under its [`ExchangeKey`], also for a future exchange.
//! It drops messages for an exchange by id that has ended ([`super::queues`]). A message has no
//! deadline of its own, so a late rank still reads it.
//!
//! The channel holds no strong reference to its group. Any thread may call it, also from inside a
//! send or receive of the channel itself.

use super::definition::GroupDefinition;
use super::fragment::{FragmentBuffer, MAX_MESSAGE_BYTES, split_into_fragments};
use super::message::{ExchangeKey, SubgroupMessage};
use super::queues::{ChannelOwner, ChannelQueues, ControlMessage, ControlReply};
use super::send_window::{
    CONTROL_TAG, FIRST_POLL_INTERVAL, MAX_FRAGMENTS_IN_FLIGHT, MAX_POLL_INTERVAL, SendWindow,
    message_engine,
};
use crate::api::group::process_group::Group;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Rank};
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::transport::{Completion, Delivery, ReceiveBuffer, ReceiveRequest};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The control channel of one rank of a group.
#[derive(Debug)]
pub(in crate::api) struct ControlChannel {
    self_ref: Weak<Self>,
    group: Weak<Group>,
    owner: ChannelOwner,
    /// The buffer for the next fragment.
    receive_buffer: FragmentBuffer,
    posting: PostingState,
    queues: Mutex<ChannelQueues>,
    /// Incremented when a message arrives, and when receiving stops for any reason except a full
    /// engine.
    arrivals: AtomicU64,
    messages_sent: AtomicU64,
}

/// Whether a thread is posting the receive. A thread that finds the receive completed then posts no
/// nested receive: many waiting messages would cause as many nested calls.
#[derive(Debug, Default)]
struct PostingState(AtomicU64);

const IDLE: u64 = 0;
const POSTING: u64 = 1;
const REPOST: u64 = 2;

impl Completion for ControlChannel {
    fn complete(&self, outcome: Result<Delivery>) {
        match outcome {
            Ok(delivery) => {
                self.accept_fragment(delivery);
                self.post_receives();
            }
            // A rank departed in the middle of a fragment; other ranks may still send. If the group
            // itself has failed or was released, the next receive is refused.
            Err(error) if matches!(error.kind(), ErrorKind::PeerFailed | ErrorKind::Connection) => {
                self.post_receives();
            }
            Err(error) => self.stop_receiving(error),
        }
    }
}

/// The right of a live group to its name.
#[derive(Debug)]
pub(in crate::api) struct NameLease {
    channel: Weak<ControlChannel>,
    name: String,
}

impl Drop for NameLease {
    fn drop(&mut self) {
        if let Some(channel) = self.channel.upgrade() {
            channel.lock().release_name(&self.name);
        }
    }
}

impl ControlChannel {
    /// Creates the control channel of a group. It posts no receive before [`Self::open`].
    pub(in crate::api) fn new(group: &Arc<Group>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            self_ref: Weak::clone(me),
            group: Arc::downgrade(group),
            owner: ChannelOwner { group: group.name().to_owned(), rank: group.rank() },
            receive_buffer: FragmentBuffer::new(),
            posting: PostingState::default(),
            queues: Mutex::new(ChannelQueues::new(group.size())),
            arrivals: AtomicU64::new(0),
            messages_sent: AtomicU64::new(0),
        })
    }

    /// Posts the receive if the channel is not open, or if receiving has stopped.
    pub(super) fn open(&self) {
        let mut queues = self.lock();
        let is_open = std::mem::replace(&mut queues.is_open, true);
        // The thread that takes the error posts the receive.
        let has_stopped = queues.receive_error.take().is_some();
        drop(queues);
        if has_stopped || !is_open {
            self.post_receives();
        }
    }

    /// Returns why receiving has stopped. If the reason was a full engine, posts the receive again
    /// first.
    fn receive_error(&self) -> Option<Error> {
        let mut queues = self.lock();
        let is_full = |error: &mut Error| error.kind() == ErrorKind::OutOfMemory;
        if queues.receive_error.take_if(is_full).is_some() {
            drop(queues);
            self.post_receives();
            queues = self.lock();
        }
        queues.receive_error.clone()
    }

    /// Drops the incomplete messages of departed ranks.
    pub(super) fn drop_partial_messages(&self, is_gone: impl Fn(Rank) -> bool) {
        self.lock().reassembly.drop_senders(is_gone);
    }

    fn lock(&self) -> MutexGuard<'_, ChannelQueues> {
        lock(&self.queues)
    }

    /// Posts the receive for the next fragment. Only one receive is posted at a time, so at most
    /// one other thread calls this while a thread is inside the loop.
    fn post_receives(&self) {
        let PostingState(posting) = &self.posting;
        let swap = |from, to| {
            posting.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        if swap(POSTING, REPOST) {
            return;
        }
        loop {
            posting.store(POSTING, Ordering::Release);
            if let Err(error) = self.post_receive() {
                posting.store(IDLE, Ordering::Release);
                return self.stop_receiving(error);
            }
            if swap(POSTING, IDLE) {
                return;
            }
        }
    }

    fn post_receive(&self) -> Result<()> {
        let released = || Error::new(ErrorKind::Aborted, "the group was released");
        let (group, self_ref) =
            (self.group.upgrade().ok_or_else(released)?, self.self_ref.upgrade());
        let (tag, dtype, deadline) = (Some(CONTROL_TAG), DataType::U8, Deadline::never());
        let message = ReceiveRequest {
            from: None,
            tag,
            dtype,
            buffer: ReceiveBuffer::Borrowed(self.receive_buffer.writable()),
            deadline,
        };
        let posted = message_engine(&group).and_then(|engine| {
            engine.receive(message, self_ref.ok_or_else(released)? as Arc<dyn Completion>)
        });
        // This thread may be one that must not drop the last reference to a group.
        Group::release(group);
        posted
    }

    /// Records that receiving has stopped, and why.
    fn stop_receiving(&self, reason: Error) {
        let is_full = reason.kind() == ErrorKind::OutOfMemory;
        self.lock().receive_error.get_or_insert(reason);
        if !is_full {
            self.arrivals.fetch_add(1, Ordering::Release);
        }
        // With a full engine, each waiter retries at its next poll, so the waiters do not wake each
        // other.
    }

    /// Handles a received fragment.
    fn accept_fragment(&self, delivery: Delivery) {
        let (from, fragment) = (delivery.peer, self.receive_buffer.read(delivery.bytes));
        let mut queues = self.lock();
        let Some(bytes) = queues.reassembly.add_fragment(from, &fragment) else { return };
        let Some((key, message)) = SubgroupMessage::decode(&bytes) else {
            crate::log!(
                LogLevel::Warn,
                "a control message of rank {from} cannot be decoded and is dropped"
            );
            return;
        };
        let message = ControlMessage { from, key, message };
        let answer = queues.enqueue(&self.owner, message, bytes.len());
        drop(queues);
        self.arrivals.fetch_add(1, Ordering::Release);
        if let (Some(answer), Some(group)) = (answer, self.group.upgrade()) {
            self.reply(&group, &answer);
            Group::release(group);
        }
    }

    /// Sends a message to some ranks without waiting until all of it was sent. The number of
    /// fragments in flight is bounded.
    ///
    /// # Errors
    /// `Timeout` if the engine does not accept all fragments within the limit; the group's failure.
    /// After an error, the message was sent in part.
    pub(super) fn send(
        &self,
        group: &Group,
        to: &[Rank],
        key: &ExchangeKey,
        message: &SubgroupMessage,
        limit: &Deadline,
    ) -> Result<Arc<SendWindow>> {
        self.send_fragments(group, to, &message.encode(key), Some(limit))
    }

    /// Sends a short message without waiting, for callers that must not block.
    pub(super) fn reply(&self, group: &Group, ControlReply { to, key, message }: &ControlReply) {
        if let Err(error) = self.send_fragments(group, &[*to], &message.encode(key), None) {
            crate::log!(LogLevel::Info, "cannot reply to rank {to}: {error}");
        }
    }

    fn send_fragments(
        &self,
        group: &Group,
        to: &[Rank],
        bytes: &[u8],
        limit: Option<&Deadline>,
    ) -> Result<Arc<SendWindow>> {
        if bytes.len() > MAX_MESSAGE_BYTES {
            let message = format!(
                "the creation of a group needs a message of {} bytes; the maximum is \
                 {MAX_MESSAGE_BYTES} bytes",
                bytes.len()
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let number = self.messages_sent.fetch_add(1, Ordering::Relaxed);
        let window = Arc::new(SendWindow::new(to));
        for buffer in split_into_fragments(number, bytes).map(Arc::new) {
            for &to in to {
                if let Some(limit) = limit {
                    window.await_in_flight(group, MAX_FRAGMENTS_IN_FLIGHT - 1, limit)?;
                }
                window.post_fragment(group, to, &buffer, limit)?;
            }
        }
        Ok(window)
    }

    /// Sends a message to some ranks and waits until it was sent.
    pub(super) fn send_and_await(
        &self,
        group: &Group,
        to: &[Rank],
        key: &ExchangeKey,
        message: &SubgroupMessage,
        limit: &Deadline,
    ) -> Result<()> {
        let sent = self.send(group, to, key, message, limit)?;
        self.await_sent(group, &sent, limit)
    }

    /// Waits until a message was sent, so that the sender may depart.
    pub(super) fn await_sent(
        &self,
        group: &Group,
        window: &SendWindow,
        deadline: &Deadline,
    ) -> Result<()> {
        window.await_in_flight(group, 0, deadline)?;
        window.take_error().map_or(Ok(()), Err)
    }

    /// Returns the next message of an exchange, or `None` if the limit passes first. Calls
    /// `on_poll` periodically.
    pub(super) fn next_message(
        &self,
        group: &Group,
        key: &ExchangeKey,
        limit: &Deadline,
        on_poll: &dyn Fn() -> Result<()>,
    ) -> Result<Option<(Rank, SubgroupMessage)>> {
        let engine = message_engine(group)?;
        let mut slice = FIRST_POLL_INTERVAL;
        loop {
            let seen = self.arrivals.load(Ordering::Acquire);
            if let Some(found) = self.try_take(key) {
                return Ok(Some(found));
            }
            let receive_error = self.receive_error();
            if let Some(error) = group.failure() {
                return Err(error);
            }
            let is_over = limit.has_passed();
            let is_retried = |error: &Error| error.kind() == ErrorKind::OutOfMemory && !is_over;
            if let Some(error) = receive_error.filter(|error| !is_retried(error)) {
                return Err(error);
            }
            on_poll()?;
            if is_over {
                return Ok(None);
            }
            let has_new_message = || self.arrivals.load(Ordering::Acquire) != seen;
            engine.progress_until(&has_new_message, &limit.capped(slice));
            slice = (slice * 2).min(MAX_POLL_INTERVAL);
        }
    }

    /// Returns the next message of an exchange if one is queued.
    pub(super) fn try_take(&self, key: &ExchangeKey) -> Option<(Rank, SubgroupMessage)> {
        self.lock().pop(key)
    }

    /// Ends an exchange by id on this rank: messages that still arrive for it are dropped.
    pub(super) fn end_exchange(&self, id: GroupId) {
        self.lock().end_exchange(id);
    }

    /// Begins a join by name.
    ///
    /// # Errors
    /// `InvalidArgument` if this rank has a group of this name, or another thread is creating one.
    pub(super) fn begin_join<'a>(
        &'a self,
        group: &'a Group,
        definition: &'a GroupDefinition,
    ) -> Result<NameReservation<'a>> {
        self.lock().begin_join(definition.name())?;
        Ok(NameReservation { channel: self, group, definition, is_leased: false })
    }

    fn end_join(&self, group: &Group, name: &str, created: Option<GroupDefinition>) {
        // The lock is released before the replies are sent.
        let answers = self.lock().end_join(&self.owner, name, created);
        answers.iter().for_each(|answer| self.reply(group, answer));
    }

    /// Reserves the number of the next unnamed group of a list of ranks.
    pub(super) fn reserve_number(&self, ranks_fingerprint: [u8; 16]) -> GroupNumber {
        let number = self.lock().reserve_number(ranks_fingerprint);
        GroupNumber {
            channel: Weak::clone(&self.self_ref),
            ranks_fingerprint,
            number,
            is_made: false,
        }
    }
}

/// A join by name in progress; dropping this ends the join.
#[derive(Debug)]
pub(super) struct NameReservation<'a> {
    channel: &'a ControlChannel,
    group: &'a Group,
    definition: &'a GroupDefinition,
    /// Whether the join has created a group.
    is_leased: bool,
}

impl NameReservation<'_> {
    /// Converts the reservation into a lease for the agreed group's lifetime. No other thread can
    /// take the name before that.
    pub(super) fn into_lease(mut self) -> NameLease {
        self.is_leased = true;
        let name = self.definition.name().to_owned();
        NameLease { channel: Weak::clone(&self.channel.self_ref), name }
    }
}

impl Drop for NameReservation<'_> {
    fn drop(&mut self) {
        let leased = self.is_leased.then(|| self.definition.clone());
        self.channel.end_join(self.group, self.definition.name(), leased);
    }
}

/// The reserved number of an unnamed group. It becomes free again unless the group is created.
#[derive(Debug)]
pub(super) struct GroupNumber {
    channel: Weak<ControlChannel>,
    ranks_fingerprint: [u8; 16],
    number: u64,
    is_made: bool,
}

impl GroupNumber {
    pub(super) fn get(&self) -> u64 {
        self.number
    }

    /// Marks the number as used by a created group.
    pub(super) fn commit(mut self) {
        self.is_made = true;
    }
}

impl Drop for GroupNumber {
    fn drop(&mut self) {
        if let Some(channel) = self.channel.upgrade() {
            channel.lock().settle_number(self.ranks_fingerprint, self.number, self.is_made);
        }
    }
}
