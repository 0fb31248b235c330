//! The fast path for small messages between ranks of a node. The sending call writes the message to
//! the ring, and the receiving call takes it from the ring; neither posts a request. If the call
//! would take longer, or other messages are before it, the message is posted instead.
//!
//! The message has the same bytes in the ring, and the same cost in the limits, as a posted
//! message. The peer cannot tell the difference. A receive on the fast path must not overtake other
//! messages, so it requires that no other message is outstanding or buffered.

use super::immediate::FastReceive;
use super::progress_owner::EngineCore;
use super::state::MatchingState;
use crate::base::buffer::{Dst, Src};
use crate::base::ids::Rank;
use crate::transport::{Delivery, ImmediateMessage};
#[cfg(doc)]
use crate::wait::WaitPolicy;

/// The number of polls before a receive is posted: several times the travel time of a message. The
/// loop has its own limits, because [`WaitPolicy`] measures time and a message takes less time than a
/// few reads of the clock.
#[derive(Clone, Copy)]
struct PollBudget {
    /// The first polls: under the lock and without a pause. Together they take about as long as a
    /// cache line from core to core.
    locked: u32,
    /// The later polls: without the lock, and with a pause.
    unlocked: u32,
}

const POLL_BUDGET: PollBudget = PollBudget { locked: 300, unlocked: 800 };
/// The poll budget of a rank without a core of its own. It yields the core between two of the later
/// polls. The sender may run on another core anyway, and one yield costs as much as all the first
/// polls.
const OVERSUBSCRIBED_POLL_BUDGET: PollBudget = PollBudget { locked: 300, unlocked: 40 };

impl EngineCore {
    /// See [`crate::transport::PointToPoint::try_send_immediate`].
    pub(super) fn try_send_immediate(&self, message: &ImmediateMessage<Src<'static>>) -> bool {
        self.lock().state.try_send_immediate(message)
    }

    /// See [`crate::transport::PointToPoint::try_receive_immediate`].
    pub(super) fn try_receive_immediate(
        &self,
        message: &ImmediateMessage<Dst<'static>>,
    ) -> Option<Delivery> {
        let policy = self.domain().wait_policy();
        let PollBudget { mut locked, unlocked: mut free } =
            if policy.is_oversubscribed { OVERSUBSCRIBED_POLL_BUDGET } else { POLL_BUDGET };
        loop {
            let mut guard = self.lock();
            // Only a caller that waits and makes progress may stop the service thread's listening.
            if guard.delegation.is_listening() {
                return None;
            }
            let (from, taken) = match guard.state.try_take_immediate(message, locked) {
                FastReceive::Message(delivery) => {
                    guard.delegation.record_fast_receive();
                    guard.state.flush_all();
                    return Some(delivery);
                }
                FastReceive::Empty { from, taken } => (from, taken),
                FastReceive::NeedsPosting => return None,
            };
            drop(guard);
            free = self.poll_for_more(from, taken, free)?;
            locked = 0;
        }
    }

    /// Polls without the lock until the writer's position differs from `taken`. Returns the number
    /// of polls left, or `None` if no bytes arrived.
    fn poll_for_more(&self, from: Rank, taken: u64, polls: u32) -> Option<u32> {
        let (domain, policy) = (self.domain(), self.domain().wait_policy());
        let written = domain.region().ring(from, domain.rank()).writer_cursor;
        (0..polls).rev().find(|_| {
            policy.separate_polls();
            written.position() != taken
        })
    }
}

impl MatchingState {
    /// Writes a message to the ring or bulk ring. Returns false if the message has to be posted.
    pub(super) fn try_send_immediate(&mut self, message: &ImmediateMessage<Src<'static>>) -> bool {
        self.failure.is_none() && self.peers.try_send_immediate(message)
    }

    /// Takes a message that is complete in its sender's ring into the receiver's buffer. If the
    /// ring is empty, polls up to `polls` times.
    pub(super) fn try_take_immediate(
        &mut self,
        request: &ImmediateMessage<Dst<'static>>,
        polls: u32,
    ) -> FastReceive {
        let has_failed = self.failure.is_some() || self.domain.region().abort_record().is_set();
        if has_failed || !self.requests.is_empty() || self.queues.has_unexpected() {
            return FastReceive::NeedsPosting;
        }
        self.peers.try_take_immediate(request, polls)
    }
}
