//! The fast path for small messages between ranks of a node. The sending call writes the message to
//! the ring, and the receiving call takes the message from the ring. Neither call posts a request.
//! If a call cannot complete within a short time, or if other messages come first, its caller posts
//! the message instead.
//!
//! A message on the fast path has the same bytes in the ring and uses the same credit as a posted
//! message. The peer cannot tell the difference, so one rank may use the fast path while the other
//! rank posts. A receive on the fast path must not overtake other messages. It therefore requires
//! that the engine has no posted request and no unexpected message.

use super::immediate::FastReceive;
use super::progress_owner::EngineCore;
use super::state::MatchingState;
use crate::base::buffer::{Dst, Src};
use crate::base::ids::Rank;
use crate::transport::{Delivery, ImmediateMessage};
#[cfg(doc)]
use crate::wait::WaitPolicy;

/// The number of polls before the receive gives up and is posted. All polls together last several
/// times as long as a message travels. The budget counts polls, because [`WaitPolicy`] measures
/// time: a message takes less time than a few reads of the clock.
#[derive(Clone, Copy)]
struct PollBudget {
    /// The first polls hold the engine's lock and do not pause. Together they last about as long as
    /// the transfer of a cache line between two cores.
    locked: u32,
    /// The later polls do not hold the lock, and pause between polls.
    unlocked: u32,
}

/// The poll budget of a rank on a host that is not oversubscribed.
const POLL_BUDGET: PollBudget = PollBudget { locked: 300, unlocked: 800 };
/// The poll budget of a rank on an oversubscribed host, which has more runnable threads than cores.
/// The rank yields the core before each later poll. The first polls are as many as on other hosts:
/// the sender may run on another core, and all first polls together cost no more than one yield.
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
        let PollBudget { mut locked, mut unlocked } =
            if policy.is_oversubscribed { OVERSUBSCRIBED_POLL_BUDGET } else { POLL_BUDGET };
        loop {
            let mut guard = self.lock();
            // While the service thread listens for messages, every receive is posted. Only a caller
            // in `progress_until` may end the listening.
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
            unlocked = self.poll_for_more(from, taken, unlocked)?;
            locked = 0;
        }
    }

    /// Polls without the lock until the writer of the ring from rank `from` has moved on from
    /// position `taken`. Returns the number of polls left, or `None` if no bytes arrived.
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
    /// Writes a message to the ring or bulk ring of its receiver. Returns false if the message has
    /// to be posted.
    pub(super) fn try_send_immediate(&mut self, message: &ImmediateMessage<Src<'static>>) -> bool {
        let is_clear = self.failure.is_none() && self.refused.unreported.is_none();
        is_clear && self.peers.try_send_immediate(message)
    }

    /// Copies the next message in its sender's ring to the receiver's buffer, if the whole message
    /// has arrived. If the ring is empty, polls up to `polls` times.
    pub(super) fn try_take_immediate(
        &mut self,
        request: &ImmediateMessage<Dst<'static>>,
        polls: u32,
    ) -> FastReceive {
        let has_failed = self.failure.is_some() || self.domain.region().abort_record().is_set();
        let has_refusal = self.refused.unreported.is_some();
        if has_failed || has_refusal || !self.requests.is_empty() || self.queues.has_unexpected() {
            return FastReceive::NeedsPosting;
        }
        self.peers.try_take_immediate(request, polls)
    }
}
