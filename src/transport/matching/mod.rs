//! The matching engine: [`PointToPoint`] over shared memory inside a node, and over an endpoint
//! between nodes.
//!
//! - **Streams.** Between this rank and each peer there is a pair of byte streams: rings
//!   ([`super::ring`]) or streams of the endpoint ([`peer_streams`]). They carry frames
//!   ([`frame`]). A rank never stops reading its streams while it waits, so that no message blocks
//!   another.
//! - **Bulk ring.** In addition to its rings, a rank has one bulk ring. It holds the bodies of long
//!   messages for one peer at a time; long messages for other peers go through their rings during
//!   that time.
//! - **Eager and rendezvous.** A small message is *eager* as long as the receiver has room to
//!   buffer it ([`limits`]). The sender announces any other message by an *RTS* and keeps its bytes
//!   until a receive has accepted the RTS. Then the bytes take one of three ways into the
//!   receiver's buffer:
//!   - The sender sends fragments, if CMA is impossible or both sides only wait for this message.
//!   - The receiver reads the sender's memory by CMA ([`gets`], [`exposure`](super::exposure)).
//!   - The receiver reads the front half while the sender writes the back half, if callers wait on
//!     both sides of a long message ([`split_transfer`]).
//! - **Completion.** The send of an eager message completes once the message is in the stream. The
//!   send of an announced message completes once the receiver has it. A timeout cancels the RTS
//!   without waiting for an answer, since numbers distinguish old requests from new ones.
//! - **Receive buffers.** A receive borrows the caller's memory, or the engine allocates it once a
//!   message has matched ([`ReceiveBuffer`]). It does so before the message counts as received, so
//!   that a message without memory stays for the next receive.
//! - **Probes.** A probe searches the messages that no receive has matched, and may remove one from
//!   matching ([`probe`]).
//! - **Progress.** A caller that waits makes all progress on its own thread
//!   ([`PointToPoint::progress_until`]). If no caller has waited for a while, the service thread
//!   takes over progress and is woken for all events ([`progress_owner`]).
//!
//! If all peers share memory, the engine is created by the first message ([`lazy_engine`]). Small
//! messages of blocking calls bypass most of the engine ([`fast_path`]).
//!
//! Completions are called without any lock held. Does not depend on works, groups or the C ABI.

mod exposed_buffers;
mod fast_path;
mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod gets;
mod immediate;
mod inbound;
mod incoming;
mod lazy_engine;
mod limits;
mod link;
mod outbound;
mod outstanding;
mod peer_departure;
mod peer_streams;
mod peers;
mod posted;
mod probe;
mod progress_owner;
mod puts;
mod queues;
mod rendezvous;
mod requests;
mod rts_table;
mod split_transfer;
mod state;
mod termination;
#[cfg(test)]
mod tests;
mod timers;
mod unexpected;

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
use progress_owner::EngineCore;
use state::MatchingState;
use std::sync::Arc;

/// The point-to-point messages of one rank of a group.
#[derive(Debug)]
pub struct MatchingEngine(Arc<LazyEngine>);

impl MatchingEngine {
    /// Creates the engine of this rank of the domain. The endpoint connects the ranks of other
    /// nodes. If `allow_cma_read`, peers may read this process's memory, as far as the system
    /// permits.
    ///
    /// # Errors
    /// `System` if the service thread cannot be reached, `Internal` if there is no connection to a
    /// rank.
    pub fn new(
        domain: Arc<dyn SharedDomain>,
        endpoint: Option<Arc<dyn Endpoint>>,
        allow_cma_read: bool,
    ) -> Result<Self> {
        let core = EngineCore::new(Arc::clone(&domain), endpoint, allow_cma_read)?;
        Ok(Self(LazyEngine::with_core(domain, core)))
    }

    /// Creates a lazy engine for a group whose ranks are all in the domain. The first message
    /// creates the engine itself. No rank may send before this function has returned on all ranks.
    pub fn new_lazy(domain: Arc<dyn SharedDomain>, allow_cma_read: bool) -> Self {
        Self(LazyEngine::new(domain, allow_cma_read))
    }

    fn core(&self) -> Result<&EngineCore> {
        self.0.core()
    }

    /// Returns the engine, if it exists.
    fn existing_core(&self) -> Option<&EngineCore> {
        self.0.existing_core()
    }
}

impl Drop for MatchingEngine {
    fn drop(&mut self) {
        self.0.leave();
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
        incoming: ReceiveRequest,
        received: Arc<dyn Completion>,
        outgoing: SendRequest,
        sent: Arc<dyn Completion>,
    ) -> Result<()> {
        self.core()?.with_state(|state| {
            state.requests.check_capacity(2)?;
            state.receive(incoming, received)?;
            if let Err(error) = state.send(outgoing, Arc::clone(&sent)) {
                state.requests.complete_unposted(sent, Err(error));
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

    // If the engine does not exist, no probe has removed a message.
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

    // If the engine does not exist, there is no message to wait for.
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
        let search = |state: &mut MatchingState| {
            state.progress();
            state.peers.get(peer)?.close_error.clone()
        };
        self.core().map_or_else(Some, |core| core.with_state(search))
    }
}
