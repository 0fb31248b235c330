//! Gets: this rank reads announced messages from the memory of their senders by CMA (cross-memory
//! attach, `process_vm_readv`). A get begins when a receive has accepted an RTS ([`Gets::add`]).
//! Each call of [`Gets::step`] reads one chunk of one get. A get is in one of three lists:
//!
//! - `asked`: the sender was asked for fragments. The get becomes active if the sender does not
//!   answer in time.
//! - `active`: the get waits for its first read or for the read of its next chunk.
//! - `half_done`: this rank has read the front half, and the sender writes the back half.
//!
//! When this rank reports success, the bytes that it has read must be the sender's message. Two
//! checks ensure this. The exposure slot of the buffer shows that the sender has not withdrawn the
//! buffer (see [`crate::transport::exposure`]). The process cookie, a random number at a published
//! address in the sender's memory, shows that the memory is the sender's: its process id may belong
//! to another process by now. This rank checks the cookie before its first get from a sender, and
//! after the last chunk of each message. This rank starts no get from a rank that has left.
//!
//! A get itself changes only the RTS and the receive of its message. [`GetStep`] tells the caller
//! what else to do.

use super::frame::{ExposedBuffer, MessageFrame};
use super::outstanding::{OutstandingReceive, ReceiveStage};
use super::puts::MIN_SPLIT_BYTES;
use super::requests::Requests;
use super::rts_table::{BackHalf, RtsTable};
use crate::base::buffer::Dst;
use crate::base::error::{Error, ErrorKind};
use crate::base::ids::{Nonce, Rank};
use crate::base::log::LogLevel;
use crate::sys::cma::is_refusal;
use crate::transport::exposure::cookie_words;
use crate::transport::{SharedDomain, arena, cma, cma_bounce};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// The number of bytes per CMA read. Between two reads, this rank polls its streams and checks
/// whether the group has failed.
const GET_CHUNK_BYTES: usize = 1 << 20;

/// After a CTS, a waiting sender has this time to answer with fragments. After that time, this rank
/// reads the sender's buffer itself. If both processes run, an answer takes about a tenth of the
/// time.
const ANSWER_TIMEOUT: Duration = Duration::from_micros(5);

/// Whether this rank can read a peer's memory by CMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CmaAccess {
    Untested,
    Allowed,
    Denied,
}

/// How an accepted message gets to this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GetPlan {
    /// This rank reads the whole message.
    GetAll,
    /// This rank reads the front half, and asks the sender to write the back half.
    Split,
    /// This rank asks the sender for fragments. It reads the message itself if the sender does not
    /// answer in time.
    AskFirst,
}

/// An announced message whose sender has exposed its buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExposedMessage {
    /// The sender's rank in the group.
    pub(super) peer: Rank,
    /// The sender's rank in the domain (the ranks that share memory).
    pub(super) local: Rank,
    /// The number of the RTS.
    pub(super) number: u64,
    pub(super) exposed: ExposedBuffer,
}

/// A get that is in progress or will begin.
#[derive(Clone, Copy, Debug)]
struct ActiveGet {
    message: ExposedMessage,
    /// Whether the read has begun, so that the sender can no longer withdraw the buffer.
    has_begun: bool,
    /// Whether the sender is to write the back half.
    is_split: bool,
    /// Whether a read failed while the sender wrote the back half. The message is requested in
    /// fragments after the sender's report.
    has_failed: bool,
    /// The end of the time in which the sender may answer a CTS; `None` if no CTS was sent.
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
    /// The caller has nothing to do: there is no active get, the get needs further steps, or the
    /// get was cancelled.
    Pending,
    /// The sender has withdrawn the buffer, so this receive needs another message.
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
    /// The gets whose senders have been asked for fragments and may still answer.
    asked: Vec<ActiveGet>,
    /// The gets whose front half has been read, and whose back half the sender writes.
    half_done: Vec<ActiveGet>,
    /// See [`ANSWER_TIMEOUT`]; tests change the value.
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

    /// Returns whether this rank can read the memory of a rank of the domain. The first call for a
    /// rank tests this.
    pub(super) fn can_read(&mut self, local: Rank) -> bool {
        if self.domain.has_ended(local) {
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

    /// Returns whether the process with the rank's process id has the rank's process cookie in its
    /// memory.
    fn has_valid_cookie(&self, local: Rank) -> bool {
        let Some((address, cookie)) = self.domain.region().exposure_table(local).cookie() else {
            return false;
        };
        let found = cma::read_process_cookie(self.domain.peer(local).pid, address);
        found.is_some_and(|found| cookie_words(&found) == cookie)
    }

    /// Returns whether a rank of the domain seems to be polling for messages. No thread of such a
    /// rank sleeps on its message doorbell (the futex word that senders change), and its service
    /// thread does not listen for the doorbell.
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
            has_failed: false,
            answer_deadline: is_asked.then(|| Instant::now() + self.answer_timeout),
        };
        if is_asked { self.asked.push(get) } else { self.active.push_back(get) }
    }

    /// Checks the gets whose senders were asked for fragments. Drops a get whose sender has
    /// answered, and activates a get whose answer deadline has passed.
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

    /// Begins or continues one active get. Before the first read, marks the exposed buffer as being
    /// read.
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
        // The sender has withdrawn the buffer. If it was asked for fragments, it now sends them.
        if get.answer_deadline.is_some() {
            return GetStep::Pending;
        }
        // A sender that was not asked withdraws the buffer only to cancel the message.
        rts_table.remove(peer, number);
        GetStep::Withdrawn { receive }
    }

    /// Returns the frame that asks the sender to write the back half; `None` if the message is too
    /// short for a split.
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
        // The same system call therefore reads the process cookie after the bytes of the message.
        let (cookie_address, cookie) =
            self.domain.region().exposure_table(local).cookie().unwrap_or_default();
        let mut found = Nonce::default();
        let cookie_buffer = Dst::from(&mut found.0[..]);
        let pieces = [(exposed.address + got as u64, into), (cookie_address, cookie_buffer)];
        let more = match cma_bounce::read_pieces(self.domain.peer(local).pid, pieces, rts.len) {
            Ok(0) => return self.fall_back(get, rts_table, "process_vm_readv read no bytes"),
            Ok(more) => more,
            Err(cause) => {
                if is_refusal(&cause) {
                    self.access[local] = CmaAccess::Denied;
                    cma::log_refusal(self.domain.peer(local), &cause);
                }
                return self.fall_back(get, rts_table, &cause.to_string());
            }
        };
        let len = into.len();
        rts.received += more.min(len);
        if rts.received < end {
            self.active.push_back(get);
            return GetStep::Pending;
        }
        if more < len + found.0.len() || cookie_words(&found) != cookie {
            self.access[local] = CmaAccess::Denied;
            return self.fall_back(get, rts_table, "the process cookie has changed");
        }
        // A sender that leaves during the read fails the group before it reuses its buffer. So this
        // rank checks for a failure after its last read.
        fence(Ordering::SeqCst);
        match self.domain.failure() {
            Some(error) => GetStep::Failed(error),
            None if rts.has_front() => self.finish_front(get, rts_table),
            None => GetStep::Finished { peer, number },
        }
    }

    /// Continues a get whose front half has been read. If the sender has claimed the back half,
    /// waits for its report. Otherwise claims the bytes that are left for this rank, which reads
    /// them in the next steps.
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

    /// Continues a get after the sender's report that it has written the back half, or a part of
    /// it.
    pub(super) fn on_put_done(
        &mut self,
        peer: Rank,
        number: u64,
        rts_table: &mut RtsTable,
    ) -> GetStep {
        match self.half_done.iter().position(|get| get.is_for_message(peer, number)) {
            Some(at) => {
                let get = self.half_done.swap_remove(at);
                if get.has_failed {
                    return self.fall_back(get, rts_table, "an earlier read failed");
                }
                self.finish_front(get, rts_table)
            }
            None => GetStep::Pending,
        }
    }

    /// Stops reading the sender's memory, so that the message can be requested in fragments. If the
    /// sender is writing the back half, it cannot send fragments before it has reported that it
    /// writes no more.
    fn fall_back(&mut self, get: ActiveGet, rts_table: &mut RtsTable, reason: &str) -> GetStep {
        let ExposedMessage { peer, local, number, exposed } = get.message;
        if let Some(error) = self.domain.failure() {
            return GetStep::Failed(error);
        }
        let name = self.domain.peer(local);
        crate::log!(
            LogLevel::Debug,
            "cannot read a message in the memory of {name}; requesting fragments: {reason}"
        );
        let Some(rts) = rts_table.get_mut(peer, number) else { return GetStep::Pending };
        let table = self.domain.region().exposure_table(local);
        if !table.cancel_read(exposed.slot, number) {
            if arena::has_process_ended(name.pid) {
                // The death of the sender is reported soon, and then ends the receive.
                return GetStep::Pending;
            }
            if rts.back_half == BackHalf::PutRequested {
                self.half_done.push(ActiveGet { has_failed: true, ..get });
                return GetStep::Pending;
            }
            if !table.cancel_split(exposed.slot, number) {
                let what = format!("{name}: the exposure of a message in its memory has ended");
                return GetStep::Failed(Error::new(ErrorKind::System, what).with_culprit(peer));
            }
        }
        (rts.exposed, rts.back_half) = (None, BackHalf::GetAll);
        GetStep::NeedsFragments { peer, number }
    }

    /// Returns whether a message has an active or half-done get.
    pub(super) fn has_get_of(&self, peer: Rank, number: u64) -> bool {
        self.active_or_half_done().any(|get| get.is_for_message(peer, number))
    }

    fn active_or_half_done(&self) -> impl Iterator<Item = &ActiveGet> {
        self.active.iter().chain(&self.half_done)
    }

    /// Cancels the get of a message, if there is one. Returns false if the read has already begun.
    pub(super) fn cancel(&mut self, peer: Rank, number: u64) -> bool {
        let is_its = |get: &ActiveGet| get.is_for_message(peer, number);
        if self.active_or_half_done().any(|get| is_its(get) && get.has_begun) {
            return false;
        }
        self.active.retain(|get| !is_its(get));
        self.asked.retain(|get| !is_its(get));
        true
    }

    /// Drops all gets from the peers that satisfy a condition.
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

    /// Makes this rank treat the memory of a rank as unreadable.
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
