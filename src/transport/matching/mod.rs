//! The matching engine: [`PointToPoint`] over shared memory inside a node, and an endpoint between
//! nodes.
//!
//! * Between this rank and each other there is a pair of byte streams: rings ([`super::ring`]) or
//!   those of the endpoint ([`peer_streams`]). On them go frames ([`frame`]). A rank never stops
//!   reading its streams, whatever it waits for, so that no message blocks another.
//! * Beside its rings a rank has one lane, into which it puts the bodies of long messages for one
//!   other rank at a time; those for others go through their rings meanwhile.
//! * A small message goes *whole* as long as the receiver may hold it ([`limits`]). Any other is
//!   *offered*: its bytes stay with the sender until a receive has taken the offer. They are then
//!   sent in pieces, straight into the receiver's buffer, while both sides wait for nothing else,
//!   or read in the sender's memory ([`rendezvous`], [`exposure`]), of which the sender writes the
//!   back to the receiver's meanwhile, where both wait for it ([`split_transfer`]).
//! * A whole message is sent once it is in the stream, an offered one once the receiver has taken
//!   it. A time-out withdraws an offer; no answer is waited for, since numbers tell old questions
//!   from new ones.
//! * A receive lends memory, or has some made once it has a message ([`ReceiveBuffer`]): before the
//!   message counts as taken, so that one for which there is no memory stays for the next receive.
//! * A probe looks among the messages that no receive has taken, and may take one out of matching
//!   ([`probe`]).
//! * Whoever attends makes all progress on its own thread ([`PointToPoint::progress_until`]). When
//!   nobody has for a moment, the service thread is told of whatever comes ([`progress_owner`]).
//!
//! An engine whose peers share memory is made with the first message ([`dormant`]). Small messages
//! of calls that block go past most of it ([`fast_path`]).
//!
//! Completions are called while no lock is held. Must not know: works, groups, the C ABI.

mod exposure;
mod fast_path;
mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod incoming;
mod lazy_engine;
mod limits;
mod link;
mod outgoing;
mod outstanding;
mod peer_departure;
mod peer_streams;
mod posted;
mod probe;
mod progress_owner;
mod rendezvous;
mod split_transfer;
mod state;
mod termination;
#[cfg(test)]
mod tests;
mod unexpected;

pub use exposure::{ExposureTable, ExposureWords, ProcessCookie};

#[cfg(doc)]
use super::ReceiveBuffer;
use super::{
    Completion, Delivery, Endpoint, ImmediateMessage, PointToPoint, ProbeRequest, ProbedMessage,
    ReceiveRequest, SendRequest, SharedDomain,
};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use lazy_engine::LazyEngine;
use outstanding::CompletedMessage;
use progress_owner::EngineCore;
use state::MatchingState;
use std::sync::Arc;

/// The messages of one rank of a group.
#[derive(Debug)]
pub struct MatchingEngine(EngineInner);

#[derive(Debug)]
enum EngineInner {
    Ready(Arc<EngineCore>),
    /// Perhaps not made yet.
    Lazy(Arc<LazyEngine>),
}

impl MatchingEngine {
    /// The engine of the rank that the domain is a membership of; the endpoint leads to the ranks
    /// of other nodes. Others read this process's memory if they can, and `allow_cma_read`.
    ///
    /// # Errors
    /// `System` where the service thread cannot be reached, `Internal` where a rank cannot be
    /// reached in any way.
    pub fn new(
        domain: Arc<dyn SharedDomain>,
        endpoint: Option<Arc<dyn Endpoint>>,
        allow_cma_read: bool,
    ) -> Result<Self> {
        Ok(Self(EngineInner::Ready(EngineCore::new(domain, endpoint, allow_cma_read)?)))
    }

    /// The same where all ranks are of the domain, and nobody sends anything before this has
    /// returned on all of them: it is made with the first message.
    pub fn new_lazy(domain: Arc<dyn SharedDomain>, allow_cma_read: bool) -> Self {
        Self(EngineInner::Lazy(LazyEngine::new(domain, allow_cma_read)))
    }

    fn core(&self) -> Result<&EngineCore> {
        match &self.0 {
            EngineInner::Ready(core) => Ok(core),
            EngineInner::Lazy(dormant) => dormant.core(),
        }
    }

    /// What there is already.
    fn existing_core(&self) -> Option<&EngineCore> {
        match &self.0 {
            EngineInner::Ready(core) => Some(core),
            EngineInner::Lazy(dormant) => dormant.existing_core(),
        }
    }
}

impl Drop for MatchingEngine {
    fn drop(&mut self) {
        match &self.0 {
            EngineInner::Ready(core) => core.leave(),
            EngineInner::Lazy(dormant) => dormant.leave(),
        }
    }
}

impl PointToPoint for MatchingEngine {
    fn send(&self, message: SendRequest, completion: Arc<dyn Completion>) -> Result<()> {
        self.core()?.with_state(|state| state.send(message, completion))
    }

    fn receive(&self, message: ReceiveRequest, completion: Arc<dyn Completion>) -> Result<()> {
        self.core()?.with_state(|state| state.receive(message, completion))
    }

    fn exchange(
        &self,
        (incoming, received): (ReceiveRequest, Arc<dyn Completion>),
        (outgoing, sent): (SendRequest, Arc<dyn Completion>),
    ) -> Result<()> {
        self.core()?.with_state(|state| {
            state.check_capacity(2)?;
            state.receive(incoming, received)?;
            if let Err(error) = state.send(outgoing, Arc::clone(&sent)) {
                state.completed.push(CompletedMessage::new(sent, Err(error)));
            }
            Ok(())
        })
    }

    fn probe(&self, request: &ProbeRequest, limit: &Deadline) -> Result<Option<ProbedMessage>> {
        self.core()?.probe(request, limit)
    }

    fn receive_matched(
        &self,
        match_id: u64,
        message: ReceiveRequest,
        completion: Arc<dyn Completion>,
    ) -> Result<()> {
        self.core()?.with_state(|state| state.receive_matched(match_id, message, completion))
    }

    // Without an engine there was no probe.
    fn release_matched(&self, match_id: u64) {
        self.existing_core()
            .into_iter()
            .for_each(|core| core.with_state(|state| state.release_matched(match_id)));
    }

    fn try_send_immediate(&self, message: &ImmediateMessage<Src<'static>>) -> bool {
        self.core().is_ok_and(|core| core.try_send_immediate(message))
    }

    fn try_receive_immediate(&self, message: &ImmediateMessage<Dst<'static>>) -> Option<Delivery> {
        self.core().ok()?.try_receive_immediate(message)
    }

    // Without a message there is nothing to wait for, nor to be told.
    fn progress_until(&self, is_done: &dyn Fn() -> bool, limit: &Deadline) {
        self.existing_core().into_iter().for_each(|core| core.progress_until(is_done, limit));
    }

    fn is_completing(&self) -> bool {
        self.existing_core().is_some_and(EngineCore::is_completing)
    }

    fn wake_waiters(&self) {
        self.core().into_iter().for_each(EngineCore::wake_waiters);
    }

    fn departure_error(&self, peer: Rank) -> Option<Error> {
        let look = |state: &mut MatchingState| {
            state.progress();
            state.links.get(peer)?.close_error.clone()
        };
        self.core().map_or_else(Some, |core| core.with_state(look))
    }
}
