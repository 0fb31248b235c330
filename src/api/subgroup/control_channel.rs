//! Where the letters of a group's ranks arrive while they make groups from it.
//!
//! Letters travel as messages between two ranks, under a tag of the library's own, so that no store
//! is asked and no receive of the caller sees them. The mailbox listens from the first group on
//! that this rank helps to make; what came before waits in the engine. Letters are filed under the
//! meeting that they are for, also for one to come; those of a meeting by id that is over are
//! dropped ([`super::queues`]). A letter has no deadline of its own: whoever comes later still
//! reads it.
//!
//! The mailbox does not keep its group. It may be called on any thread, also within a send or
//! receive of its own.

use super::definition::GroupDefinition;
use super::fragment::{FragmentBuffer, MAX_MESSAGE_BYTES, split_into_fragments};
use super::message::{ExchangeKey, SubgroupMessage};
use super::queues::{ChannelOwner, ChannelQueues};
use super::send_window::{
    CONTROL_TAG, FIRST_POLL_INTERVAL, MAX_FRAGMENTS_IN_FLIGHT, MAX_POLL_INTERVAL, SendWindow,
};
use crate::api::callbacks;
use crate::api::group::Group;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Rank};
use crate::base::log::LogLevel;
use crate::transport::{Completion, Delivery, PointToPoint, ReceiveBuffer, ReceiveRequest};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The mailbox of one rank of a group.
#[derive(Debug)]
pub(in crate::api) struct ControlChannel {
    self_ref: Weak<Self>,
    group: Weak<Group>,
    owner: ChannelOwner,
    /// Where the next piece comes.
    receive_buffer: FragmentBuffer,
    posting: PostingState,
    queues: Mutex<ChannelQueues>,
    /// Changes with whatever comes.
    arrivals: AtomicU64,
    messages_sent: AtomicU64,
}

/// Whether a thread is posting the receive, so that one that finds it completed need not post
/// inside of that: many letters that wait would be as many calls inside each other.
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
            // A rank has left in the middle of a piece: others go on. Where the group itself has
            // failed, or is gone, the next receive is refused.
            Err(error) if matches!(error.kind(), ErrorKind::PeerFailed | ErrorKind::Connection) => {
                self.post_receives();
            }
            Err(error) => self.stop_receiving(error),
        }
    }
}

/// The right to a name while its group lives.
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
    /// The mailbox of a group. It hears nothing until it is opened.
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

    /// Begins to listen, once; again where it has stopped.
    pub(super) fn open(&self) {
        let mut queues = self.lock();
        let is_open = std::mem::replace(&mut queues.is_open, true);
        // Whoever takes the reason is the one to listen.
        let has_stopped = queues.receive_error.take().is_some();
        drop(queues);
        if has_stopped || !is_open {
            self.post_receives();
        }
    }

    /// Why nothing comes any more. Where only too much was outstanding, it is tried again.
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

    /// Drops what ranks that have left did not complete.
    pub(super) fn drop_partial_messages(&self, is_gone: impl Fn(Rank) -> bool) {
        self.lock().reassembly.drop_senders(is_gone);
    }

    fn lock(&self) -> MutexGuard<'_, ChannelQueues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the next piece come into the block. There is one receive at a time, so that at most one
    /// thread comes here while another is still inside the loop.
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
        // This may be a thread that must not be the one to end a group.
        callbacks::release_group(group);
        posted
    }

    /// Nothing comes any more, for now.
    fn stop_receiving(&self, reason: Error) {
        let is_full = reason.kind() == ErrorKind::OutOfMemory;
        self.lock().receive_error.get_or_insert(reason);
        if !is_full {
            self.arrivals.fetch_add(1, Ordering::Release);
        }
        // Else those who wait try again when they look around, and do not wake each other by that.
    }

    /// Takes a piece that has come.
    fn accept_fragment(&self, delivery: Delivery) {
        let (from, fragment) = (delivery.peer, self.receive_buffer.read(delivery.bytes));
        let mut queues = self.lock();
        let Some(bytes) = queues.reassembly.add_fragment(from, &fragment) else { return };
        let Some((key, message)) = SubgroupMessage::decode(&bytes) else {
            crate::log!(LogLevel::Warn, "a letter of rank {from} cannot be read and is dropped");
            return;
        };
        let answer = queues.enqueue(&self.owner, from, (key, message), bytes.len());
        drop(queues);
        self.arrivals.fetch_add(1, Ordering::Release);
        if let (Some((key, message)), Some(group)) = (answer, self.group.upgrade()) {
            self.reply(&group, from, &key, &message);
            callbacks::release_group(group);
        }
    }

    /// Sends a letter to some ranks, and does not wait until all of it has gone; but there is only
    /// so much of it on its way at once.
    ///
    /// # Errors
    /// `Timeout` where it could not be handed over within the limit, the group's failure. Then it
    /// is sent in part.
    pub(super) fn send(
        &self,
        group: &Group,
        to: &[Rank],
        key: &ExchangeKey,
        message: &SubgroupMessage,
        limit: &Deadline,
    ) -> Result<Arc<SendWindow>> {
        self.send_fragments(group, to, (key, message), Some(limit))
    }

    /// Sends a short letter from where nothing may wait.
    pub(super) fn reply(
        &self,
        group: &Group,
        to: Rank,
        key: &ExchangeKey,
        message: &SubgroupMessage,
    ) {
        if let Err(error) = self.send_fragments(group, &[to], (key, message), None) {
            crate::log!(LogLevel::Info, "answering rank {to}: {error}");
        }
    }

    fn send_fragments(
        &self,
        group: &Group,
        to: &[Rank],
        (key, control_message): (&ExchangeKey, &SubgroupMessage),
        limit: Option<&Deadline>,
    ) -> Result<Arc<SendWindow>> {
        let bytes = control_message.encode(key);
        if bytes.len() > MAX_MESSAGE_BYTES {
            let message = format!(
                "{} bytes are to be exchanged to make a group; {MAX_MESSAGE_BYTES} are possible",
                bytes.len()
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let number = self.messages_sent.fetch_add(1, Ordering::Relaxed);
        let engine = message_engine(group)?;
        let window = Arc::new(SendWindow::new(to));
        for buffer in split_into_fragments(number, &bytes).map(Arc::new) {
            for &to in to {
                if let Some(limit) = limit {
                    window.await_in_flight(group, engine, MAX_FRAGMENTS_IN_FLIGHT - 1, limit)?;
                }
                window.post_fragment(group, engine, (to, &buffer), limit)?;
            }
        }
        Ok(window)
    }

    /// Waits until a letter has gone, so that its writer may leave.
    pub(super) fn await_sent(
        &self,
        group: &Group,
        window: &SendWindow,
        deadline: &Deadline,
    ) -> Result<()> {
        window.await_in_flight(group, message_engine(group)?, 0, deadline)?;
        window.take_error().map_or(Ok(()), Err)
    }

    /// The next letter for a meeting; `None` where the limit came first. `on_poll` is called now
    /// and then.
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

    /// A letter for a meeting that is there already.
    pub(super) fn try_take(&self, key: &ExchangeKey) -> Option<(Rank, SubgroupMessage)> {
        self.lock().pop(key)
    }

    /// A meeting by id is over, for this rank: what still comes for it is dropped.
    pub(super) fn end_exchange(&self, id: GroupId) {
        self.lock().end_exchange(id);
    }

    /// Begins a meeting by name.
    ///
    /// # Errors
    /// `InvalidArgument` where this rank has a group of the name, or just makes one.
    pub(super) fn begin_join<'a>(
        &'a self,
        group: &'a Group,
        definition: &'a GroupDefinition,
    ) -> Result<NameReservation<'a>> {
        self.lock().begin_join(definition.name())?;
        Ok(NameReservation { channel: self, group, definition, is_leased: false })
    }

    fn end_join(&self, group: &Group, name: &str, made: Option<GroupDefinition>) {
        // No lock is held while the answers go.
        let answers = self.lock().end_join(&self.owner, name, made);
        for (to, key, message) in answers {
            self.reply(group, to, &key, &message);
        }
    }

    /// The number of the next group of a list of ranks that has no name.
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

/// A meeting by name, which is over when this is dropped.
#[derive(Debug)]
pub(super) struct NameReservation<'a> {
    channel: &'a ControlChannel,
    group: &'a Group,
    definition: &'a GroupDefinition,
    /// It has come to a group.
    is_leased: bool,
}

impl NameReservation<'_> {
    /// Keeps the name for as long as the group lives that was agreed on. Nobody else can get it in
    /// between.
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

/// The number of a group without a name; free again unless the group is made.
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

    /// There is the group.
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

/// The messages of a group.
pub(super) fn message_engine(group: &Group) -> Result<&dyn PointToPoint> {
    group
        .messaging_engine()
        .map_err(|error| error.context("groups are made over messages between ranks"))
}
