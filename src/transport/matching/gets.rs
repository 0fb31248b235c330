//! The gets of this rank: it reads announced messages from the memory of their senders by CMA.
//!
//! The bytes must still be the sender's message when this rank reports success: see
//! [`crate::transport::exposure`]. The sender's process is verified before the first read, and again
//! after each message. The proof is a random process cookie, whose address is in the sender's exposure
//! table. The memory of a process that has left or died is not read any more.
//!
//! A get changes the RTS and the receive of its message. All other consequences are returned as a
//! [`GetStep`].

use super::exposed_buffers::cookie_words;
use super::frame::{ExposedBuffer, MessageFrame};
use super::outstanding::{OutstandingReceive, ReceiveStage};
use super::puts::MIN_SPLIT_BYTES;
use super::requests::Requests;
use super::rts_table::{BackHalf, RtsTable};
use crate::base::buffer::Dst;
use crate::base::error::{Error, ErrorKind};
use crate::base::ids::{Nonce, Rank};
use crate::base::log::LogLevel;
use crate::sys::cma;
use crate::transport::{self, SharedDomain};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// The number of bytes per CMA read. Between two reads, other streams make progress, and a failure
/// is noticed.
const GET_CHUNK_BYTES: usize = 1 << 20;

/// The time that a waiting sender has to answer a CTS before this rank reads its buffer. If both
/// processes run, an answer takes a tenth of that.
const ANSWER_TIMEOUT: Duration = Duration::from_micros(5);

/// Whether this rank can read a peer's memory by CMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CmaAccess {
    Untested,
    Allowed,
    Denied,
}

/// How a get begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GetPlan {
    /// This rank reads the whole message.
    GetAll,
    /// This rank reads the front half, and asks the sender to write the back half.
    Split,
    /// The sender is asked for fragments. This rank reads the message if the sender does not answer
    /// in time.
    AskFirst,
}

/// An announced message whose sender has exposed its buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExposedMessage {
    pub(super) peer: Rank,
    /// The rank of the peer in the domain.
    pub(super) local: Rank,
    pub(super) number: u64,
    pub(super) exposed: ExposedBuffer,
}

/// A get that is in progress or will begin.
#[derive(Clone, Copy, Debug)]
struct ActiveGet {
    message: ExposedMessage,
    /// Whether the read has begun, so that the owner can no longer withdraw the buffer.
    has_begun: bool,
    /// Whether the owner is asked to write the back half.
    is_split: bool,
    /// The end of the time in which the owner may answer a CTS.
    answer_deadline: Option<Instant>,
}

impl ActiveGet {
    fn is_for_message(&self, peer: Rank, number: u64) -> bool {
        self.message.peer == peer && self.message.number == number
    }

    /// Returns the receive of the message.
    fn receive<'r>(
        &self,
        rts: &RtsTable,
        requests: &'r Requests,
    ) -> Option<&'r OutstandingReceive> {
        requests.receive(rts.get(self.message.peer, self.message.number)?.receive?)
    }
}

/// The result of a step of a get.
#[derive(Debug)]
pub(super) enum GetStep {
    /// There is no get, or the get continues later, or it was cancelled.
    Pending,
    /// The sender has withdrawn the buffer, and this receive needs another message.
    Withdrawn { receive: u64 },
    /// The get has begun. This frame asks the sender to write the back half.
    AskForPut { peer: Rank, frame: MessageFrame },
    /// The whole message has arrived.
    Finished { peer: Rank, number: u64 },
    /// The message cannot be read and must be requested in fragments.
    NeedsFragments { peer: Rank, number: u64 },
    /// The group fails.
    Failed(Error),
}

/// The gets of one engine.
#[derive(Debug)]
pub(super) struct Gets {
    domain: Arc<dyn SharedDomain>,
    /// The access to the memory of each rank of the domain.
    access: Vec<CmaAccess>,
    /// The gets in progress.
    active: VecDeque<ActiveGet>,
    /// The gets whose senders have been asked for fragments first.
    asked: Vec<ActiveGet>,
    /// The gets whose front half has been read, and whose back half the sender writes.
    half_done: Vec<ActiveGet>,
    answer_timeout: Duration,
}

impl Gets {
    /// Creates the state of a rank that reads nothing.
    pub(super) fn new(domain: Arc<dyn SharedDomain>) -> Self {
        Self {
            access: vec![CmaAccess::Untested; domain.size()],
            domain,
            active: VecDeque::new(),
            asked: Vec::new(),
            half_done: Vec::new(),
            answer_timeout: ANSWER_TIMEOUT,
        }
    }

    /// Returns whether the memory of a rank of the domain can be read. Tested once per rank.
    pub(super) fn can_read(&mut self, local: Rank) -> bool {
        if self.domain.has_left(local) {
            return false;
        }
        if self.access[local] == CmaAccess::Untested {
            let works = self.has_valid_cookie(local);
            self.access[local] = if works { CmaAccess::Allowed } else { CmaAccess::Denied };
            if !works {
                let name = self.domain.peer(local);
                crate::log!(
                    LogLevel::Info,
                    "the memory of {name} cannot be read by CMA; messages are sent in fragments"
                );
            }
        }
        self.access[local] == CmaAccess::Allowed
    }

    /// Returns whether the process with the rank's process id is the rank.
    fn has_valid_cookie(&self, local: Rank) -> bool {
        let Some((address, cookie)) = self.domain.region().exposure_table(local).cookie() else {
            return false;
        };
        let found = transport::cma::read_process_cookie(self.domain.peer(local).pid, address);
        found.is_some_and(|found| cookie_words(&found) == cookie)
    }

    /// Returns whether a rank of the domain appears to poll for messages: its doorbell has no
    /// waiter and no listener. A sleeping rank is a waiter; a rank whose service thread polls is a
    /// listener.
    pub(super) fn is_polling(&self, local: Rank) -> bool {
        fence(Ordering::SeqCst);
        !self.domain.region().message_doorbell(local).has_waiters()
    }

    /// Adds the get of an accepted message.
    pub(super) fn add(&mut self, message: ExposedMessage, plan: GetPlan) {
        let is_asked = plan == GetPlan::AskFirst;
        let get = ActiveGet {
            message,
            has_begun: false,
            is_split: plan == GetPlan::Split,
            answer_deadline: is_asked.then(|| Instant::now() + self.answer_timeout),
        };
        if is_asked { self.asked.push(get) } else { self.active.push_back(get) }
    }

    /// Checks the gets whose senders were asked for fragments: drops the answered gets, and
    /// activates the others after their deadline.
    pub(super) fn check_answers(&mut self, rts: &RtsTable, requests: &Requests) {
        if self.asked.is_empty() {
            return;
        }
        let now = Instant::now();
        for get in std::mem::take(&mut self.asked) {
            let stage = get.receive(rts, requests).map(|it| it.stage);
            if !matches!(stage, Some(ReceiveStage::Accepted { .. })) {
                continue;
            }
            if get.answer_deadline.is_none_or(|until| now >= until) {
                self.active.push_back(get);
            } else {
                self.asked.push(get);
            }
        }
    }

    /// Makes progress on one active get. Before the first read, marks the buffer as being read.
    pub(super) fn step(&mut self, rts_table: &mut RtsTable, requests: &mut Requests) -> GetStep {
        let Some(mut get) = self.active.pop_front() else { return GetStep::Pending };
        if get.has_begun {
            return self.read_chunk(get, rts_table, requests);
        }
        let ExposedMessage { peer, local, number, exposed } = get.message;
        let Some(receive) = rts_table.get(peer, number).and_then(|it| it.receive) else {
            return GetStep::Pending;
        };
        get.has_begun = self.domain.region().exposure_table(local).begin_read(exposed.slot, number);
        if get.has_begun {
            let stage = ReceiveStage::Transferring { from: peer, number };
            requests.set_receive_stage(receive, stage);
            if get.is_split
                && let Some(frame) = self.request_put(&get.message, rts_table, requests)
            {
                self.active.push_front(get);
                return GetStep::AskForPut { peer, frame };
            }
            return self.read_chunk(get, rts_table, requests);
        }
        // A sender that was asked for fragments withdraws the buffer before it sends them.
        if get.answer_deadline.is_some() {
            return GetStep::Pending;
        }
        rts_table.remove(peer, number);
        GetStep::Withdrawn { receive }
    }

    /// Returns the frame that asks the sender to write the back half.
    fn request_put(
        &self,
        message: &ExposedMessage,
        rts_table: &mut RtsTable,
        requests: &mut Requests,
    ) -> Option<MessageFrame> {
        let rts = rts_table.get_mut(message.peer, message.number)?;
        let receiving = requests.receive_mut(rts.receive?)?;
        if rts.len < MIN_SPLIT_BYTES {
            return None;
        }
        rts.back_half = BackHalf::PutRequested;
        let address = receiving.buffer_range(0, rts.len).as_mut_ptr().expose_provenance() as u64;
        let region_address = self.domain.region().address();
        Some(MessageFrame::SplitPut { number: message.number, address, region_address })
    }

    /// Reads the next chunk of a get that has begun.
    fn read_chunk(
        &mut self,
        get: ActiveGet,
        rts_table: &mut RtsTable,
        requests: &mut Requests,
    ) -> GetStep {
        let ExposedMessage { peer, local, number, exposed } = get.message;
        let Some(rts) = rts_table.get_mut(peer, number) else { return GetStep::Pending };
        if rts.has_front() {
            return self.finish_front(get, rts_table);
        }
        let Some(receiving) = rts.receive.and_then(|it| requests.receive_mut(it)) else {
            return GetStep::Pending;
        };
        let (got, end) = (rts.received, rts.get_end());
        let into = receiving.buffer_range(got, (end - got).min(GET_CHUNK_BYTES));
        // The process id may belong to another process by now, with other memory at that address.
        // The same call therefore reads the process cookie after the message.
        let (cookie_address, cookie) =
            self.domain.region().exposure_table(local).cookie().unwrap_or_default();
        let mut found = Nonce::default();
        let cookie_buffer = Dst::from(&mut found.0[..]);
        let pieces = [(exposed.address + got as u64, into), (cookie_address, cookie_buffer)];
        let more = match cma::read_pieces(self.domain.peer(local).pid, pieces) {
            Ok(0) => {
                return self.fall_back(&get.message, rts_table, "process_vm_readv read no bytes");
            }
            Ok(more) => more,
            Err(cause) => return self.fall_back(&get.message, rts_table, &cause.to_string()),
        };
        let len = into.len();
        rts.received += more.min(len);
        if rts.received < end {
            self.active.push_back(get);
            return GetStep::Pending;
        }
        if more < len + found.0.len() || cookie_words(&found) != cookie {
            self.access[local] = CmaAccess::Denied;
            return self.fall_back(&get.message, rts_table, "the process cookie has changed");
        }
        // A sender that leaves during the read fails the group before its buffer is reused. So this
        // rank checks for a failure after its last read.
        fence(Ordering::SeqCst);
        match self.domain.failure() {
            Some(error) => GetStep::Failed(error),
            None if rts.has_front() => self.finish_front(get, rts_table),
            None => GetStep::Finished { peer, number },
        }
    }

    /// Continues a get whose front half has been read.
    fn finish_front(&mut self, get: ActiveGet, rts_table: &mut RtsTable) -> GetStep {
        let ExposedMessage { peer, local, number, exposed } = get.message;
        let try_read_all =
            || self.domain.region().exposure_table(local).read_all(exposed.slot, number);
        let Some(rts) = rts_table.get_mut(peer, number) else { return GetStep::Pending };
        match rts.back_half {
            BackHalf::PutRequested if !try_read_all() => {
                self.half_done.push(get);
                return GetStep::Pending;
            }
            BackHalf::PutDone(len) => rts.received += len,
            BackHalf::PutRequested | BackHalf::GetAll => {}
        }
        rts.back_half = BackHalf::GetAll;
        if rts.received == rts.len {
            return GetStep::Finished { peer, number };
        }
        self.active.push_back(get);
        GetStep::Pending
    }

    /// Continues the get of a message whose sender has written the back half, or a part of it.
    pub(super) fn on_put_done(
        &mut self,
        peer: Rank,
        number: u64,
        rts_table: &mut RtsTable,
    ) -> GetStep {
        match self.half_done.iter().position(|get| get.is_for_message(peer, number)) {
            Some(at) => {
                let get = self.half_done.swap_remove(at);
                self.finish_front(get, rts_table)
            }
            None => GetStep::Pending,
        }
    }

    /// Gives up reading the sender's memory, so that the message can be requested in fragments.
    fn fall_back(
        &self,
        message: &ExposedMessage,
        rts_table: &mut RtsTable,
        reason: &str,
    ) -> GetStep {
        let ExposedMessage { peer, local, number, exposed } = *message;
        if let Some(error) = self.domain.failure() {
            return GetStep::Failed(error);
        }
        let name = self.domain.peer(local);
        crate::log!(
            LogLevel::Debug,
            "cannot read a message in the memory of {name}; requesting fragments: {reason}"
        );
        if !self.domain.region().exposure_table(local).cancel_read(exposed.slot, number) {
            let what = format!("{name}: cannot read the rest of a message in its memory: {reason}");
            return GetStep::Failed(Error::new(ErrorKind::System, what).with_culprit(peer));
        }
        if let Some(rts) = rts_table.get_mut(peer, number) {
            (rts.exposed, rts.back_half) = (None, BackHalf::GetAll);
        }
        GetStep::NeedsFragments { peer, number }
    }

    /// Returns whether a message is being read by CMA.
    pub(super) fn has_get_of(&self, peer: Rank, number: u64) -> bool {
        self.begun_or_active().any(|get| get.is_for_message(peer, number))
    }

    fn begun_or_active(&self) -> impl Iterator<Item = &ActiveGet> {
        self.active.iter().chain(&self.half_done)
    }

    /// Cancels the get of a message. Returns false if the read has already begun.
    pub(super) fn cancel(&mut self, peer: Rank, number: u64) -> bool {
        let is_its = |get: &ActiveGet| get.is_for_message(peer, number);
        if self.begun_or_active().any(|get| is_its(get) && get.has_begun) {
            return false;
        }
        self.active.retain(|get| !is_its(get));
        self.asked.retain(|get| !is_its(get));
        true
    }

    /// Drops the gets that satisfy a condition on the peer.
    pub(super) fn drop_gets(&mut self, is_dropped: impl Fn(Rank) -> bool) {
        self.active.retain(|get| !is_dropped(get.message.peer));
        self.asked.retain(|get| !is_dropped(get.message.peer));
        self.half_done.retain(|get| !is_dropped(get.message.peer));
    }

    /// Returns whether a further poll could make progress immediately.
    pub(super) fn has_runnable(&self) -> bool {
        !self.active.is_empty() || !self.asked.is_empty()
    }

    /// Returns whether there is an active get for which no caller waits.
    pub(super) fn has_unawaited(&self, rts: &RtsTable, requests: &Requests) -> bool {
        let mut receives = self.active.iter().map(|get| get.receive(rts, requests));
        receives.any(|receive| receive.is_none_or(|it| !it.completion.is_awaited()))
    }
}

#[cfg(test)]
impl Gets {
    /// Changes the time that a waiting sender has to answer a CTS.
    pub(super) fn set_answer_timeout(&mut self, answer_timeout: Duration) {
        self.answer_timeout = answer_timeout;
    }

    /// Forbids to read the memory of a rank of the domain.
    pub(super) fn deny_access(&mut self, local: Rank) {
        self.access[local] = CmaAccess::Denied;
    }

    /// Returns the access to the memory of a rank of the domain.
    pub(super) fn access(&self, local: Rank) -> CmaAccess {
        self.access[local]
    }

    /// Returns the numbers of active, asked and half-done gets.
    pub(super) fn counts(&self) -> [usize; 3] {
        [self.active.len(), self.asked.len(), self.half_done.len()]
    }
}
