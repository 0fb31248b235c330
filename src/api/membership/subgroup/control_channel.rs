//! The control channel of a rank sends and receives control messages, which are the messages with
//! which ranks of a parent group create new groups.
//!
//! * **Transport.** Control messages are messages between two ranks of the parent, under a tag that
//!   the library reserves. So they need no store, and no receive of the caller can match them. A
//!   long message is split into fragments ([`super::fragment`]).
//! * **Receiving.** The channel posts its receive when this rank first takes part in the creation
//!   of a group. Messages that arrive earlier wait in the engine. The channel queues each message
//!   under its [`ExchangeKey`], which names the exchange that the message belongs to, even if this
//!   rank has not begun this exchange yet. It drops messages for an exchange that has ended
//!   ([`super::queues`]). A message has no deadline, so that a late rank can still read it.
//!
//! The channel holds no strong reference to its group. Any thread may call the channel, even inside
//! a send or a receive that the channel itself has posted.

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
    /// The buffer of the posted receive, into which the next fragment is received.
    receive_buffer: FragmentBuffer,
    posting: PostingState,
    queues: Mutex<ChannelQueues>,
    /// Incremented when a message arrives, so that a wait can detect it. Also incremented when
    /// receiving stops, unless the reason is a full engine.
    arrivals: AtomicU64,
    /// The number of messages that this rank has sent, which gives each message its number.
    messages_sent: AtomicU64,
}

/// Says whether a thread is posting the receive: [`IDLE`], [`POSTING`] or [`REPOST`].
///
/// If a message is already waiting in the engine, the receive completes inside the call that posts
/// it. If the completion then posted the next receive itself, many waiting messages would cause as
/// many nested calls. Therefore the completion only sets the state to `REPOST`, and the outer call
/// posts the next receive in a loop.
#[derive(Debug, Default)]
struct PostingState(AtomicU64);

/// No thread is posting a receive.
const IDLE: u64 = 0;
/// A thread is posting a receive.
const POSTING: u64 = 1;
/// A thread is posting a receive, and must then post another, because the first has completed.
const REPOST: u64 = 2;

impl Completion for ControlChannel {
    fn complete(&self, outcome: Result<Delivery>) {
        match outcome {
            Ok(delivery) => {
                self.accept_fragment(delivery);
                self.post_receives();
            }
            // A rank has departed while it sent a fragment. Other ranks may still send, so the
            // channel posts the next receive. If the group has failed or was released, this post
            // returns an error.
            Err(error) if matches!(error.kind(), ErrorKind::PeerFailed | ErrorKind::Connection) => {
                self.post_receives();
            }
            Err(error) => self.stop_receiving(error),
        }
    }
}

/// The right of a group to its name. The name is free again when this object is dropped.
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
    /// Creates the control channel of a group. The channel posts its first receive in
    /// [`Self::open`].
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
        // Only the thread that takes the error posts the receive again.
        let has_stopped = queues.receive_error.take().is_some();
        drop(queues);
        if has_stopped || !is_open {
            self.post_receives();
        }
    }

    /// Returns the error with which receiving has stopped, if it has stopped. If the reason was a
    /// full engine, first tries to post the receive again.
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

    /// Drops the incomplete messages of ranks that have departed.
    pub(super) fn drop_partial_messages(&self, is_gone: impl Fn(Rank) -> bool) {
        self.lock().reassembly.drop_senders(is_gone);
    }

    fn lock(&self) -> MutexGuard<'_, ChannelQueues> {
        lock(&self.queues)
    }

    /// Posts the receive for the next fragment. Only one receive is posted at a time, so while one
    /// thread is in the loop, at most one other thread calls this function.
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
        // Some threads must not drop the last reference to a group, and this may be one of them.
        Group::release(group);
        posted
    }

    /// Stores the reason why receiving has stopped.
    fn stop_receiving(&self, reason: Error) {
        let is_full = reason.kind() == ErrorKind::OutOfMemory;
        self.lock().receive_error.get_or_insert(reason);
        if !is_full {
            self.arrivals.fetch_add(1, Ordering::Release);
        }
        // If the engine is full, each waiting thread tries again at its next poll. Without this
        // exception, the waiting threads would wake each other again and again.
    }

    /// Adds a received fragment to its message. If the message is complete, queues it or replies to
    /// it.
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

    /// Sends a message to the ranks `to`. Returns when all fragments are posted, which may be
    /// before they are sent. Waits if too many fragments are in flight.
    ///
    /// # Errors
    /// `Timeout` if not all fragments can be posted before the limit; the group's failure. After an
    /// error, a part of the message may have been sent.
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

    /// Sends a short message without waiting. For callers that must not block. An error is only
    /// logged.
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

    /// Sends a message to the ranks `to` and waits until all of it was sent.
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

    /// Waits until all of a message was sent. After that, the sender may leave the group.
    pub(super) fn await_sent(
        &self,
        group: &Group,
        window: &SendWindow,
        deadline: &Deadline,
    ) -> Result<()> {
        window.await_in_flight(group, 0, deadline)?;
        window.take_error().map_or(Ok(()), Err)
    }

    /// Waits for the next message of an exchange and returns it with its sender. Returns `None` if
    /// the limit passes before that. Calls `on_poll` periodically.
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

    /// Returns the next message of an exchange with its sender, if a message is queued.
    pub(super) fn try_take(&self, key: &ExchangeKey) -> Option<(Rank, SubgroupMessage)> {
        self.lock().pop(key)
    }

    /// Ends the exchange with this id on this rank. Messages that arrive later for this exchange
    /// are dropped.
    pub(super) fn end_exchange(&self, id: GroupId) {
        self.lock().end_exchange(id);
    }

    /// Begins a join by name (the members of a new group find each other by its name) and reserves
    /// the name.
    ///
    /// # Errors
    /// `InvalidArgument` if this rank has a group of this name, or if another thread is creating a
    /// group of this name.
    pub(super) fn begin_join<'a>(
        &'a self,
        group: &'a Group,
        definition: &'a GroupDefinition,
    ) -> Result<NameReservation<'a>> {
        self.lock().begin_join(definition.name())?;
        Ok(NameReservation { channel: self, group, definition, is_leased: false })
    }

    fn end_join(&self, group: &Group, name: &str, created: Option<GroupDefinition>) {
        // The lock is held only in this statement. It is free when the replies are sent.
        let answers = self.lock().end_join(&self.owner, name, created);
        answers.iter().for_each(|answer| self.reply(group, answer));
    }

    /// Reserves a number for the default name of a new group with this list of ranks.
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

/// A join by name that is in progress. The join ends when this object is dropped.
#[derive(Debug)]
pub(super) struct NameReservation<'a> {
    channel: &'a ControlChannel,
    group: &'a Group,
    definition: &'a GroupDefinition,
    /// True if the members have agreed, so that the new group keeps the name.
    is_leased: bool,
}

impl NameReservation<'_> {
    /// Converts the reservation of the name to a lease, which lives as long as the agreed group. No
    /// other thread can take the name between the reservation and the lease.
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

/// The reserved number in the default name of a group. When this object is dropped, the number
/// becomes free again unless it was committed.
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

    /// Marks the number as used, because the group was created.
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
