//! The matching engine: the point-to-point messages of one rank ([`PointToPoint`]). The engine
//! matches each message with a receive by sender and tag, and moves the bytes into the buffer of
//! that receive.
//!
//! Between this rank and each peer there is one byte stream in each direction. Inside a node, a
//! stream is a ring in shared memory ([`super::ring`]). Between nodes, it is a stream of the
//! [`Endpoint`], for example a TCP connection ([`peer_streams`]). Streams carry frames: headers of
//! 32 bytes, some of them with message bytes after the header ([`frame`]). A message takes one of
//! two protocols:
//!
//! - **Eager**, for a short message. The sender writes the bytes to the stream immediately. If no
//!   receive matches, the receiver buffers the message. The bytes that a receiver may buffer for
//!   one sender are that sender's *credit* ([`limits`]).
//! - **Rendezvous**, for a message that is too long or exceeds the credit, and for a synchronous
//!   send. The sender announces the message by an *RTS* (request to send). It keeps the bytes until
//!   a receive has matched the RTS.
//!
//! # One eager message through the files
//!
//! Rank 0 sends 100 bytes with tag 7 to rank 1:
//!
//! 1. Rank 0 posts the send. [`state`] finds that the message is short and that its credit
//!    suffices. [`outbound`] writes the frame to the stream. If the stream is full, the frame waits
//!    in a queue of the [`link`], which holds all state for one peer. The send completes when the
//!    whole frame is in the stream.
//! 2. Rank 1 polls its streams ([`progress_owner`], [`termination`]). [`inbound`] reads the header.
//!    [`incoming`] searches a posted receive for sender 0 and tag 7 ([`queues`], [`posted`]).
//! 3. If a receive is posted, [`inbound`] reads the bytes directly into the buffer of that receive,
//!    and the receive completes. Otherwise the bytes go to a buffer of the engine. The message then
//!    waits as an *unexpected message* ([`unexpected`]) until a later receive matches it
//!    ([`state`]).
//! 4. Once the message has a receive, rank 1 owes rank 0 the credit of the message. When the owed
//!    credit reaches a threshold, rank 1 returns it by a credit frame.
//!
//! # One rendezvous message through the files
//!
//! Rank 0 sends 3 MiB with tag 7 to rank 1:
//!
//! 1. Rank 0 posts the send. If rank 1 is on the same node, [`state`] exposes the send buffer, so
//!    that rank 1 may read it ([`exposed_buffers`], [`exposure`](super::exposure)). [`outbound`]
//!    writes an RTS, which has the tag, the length and the address of the exposed buffer.
//! 2. Rank 1 stores the RTS ([`rendezvous`], [`rts_table`]) and matches it as it matches an eager
//!    message. If no receive is posted, the RTS waits as an unexpected message.
//! 3. When a receive matches, [`rendezvous`] selects how the bytes move. CMA (cross-memory attach)
//!    is the system call by which one process reads or writes the memory of another.
//!    - *Get*: rank 1 reads the memory of rank 0 by CMA ([`gets`]). This is the usual way inside a
//!      node.
//!    - *Split*: if callers on both ranks do nothing but wait for this message, both ranks copy.
//!      Rank 1 reads the front half by CMA while rank 0 writes the back half ([`split_transfer`],
//!      [`puts`]).
//!    - *Fragments*: rank 1 sends a *CTS* (clear to send), and rank 0 sends the message in
//!      fragments through the stream. This is the way between nodes, and inside a node if CMA is
//!      impossible, or if both callers wait but the message cannot be split.
//! 4. When all bytes have arrived, rank 1 sends a *FIN* (finish). The receive completes once the
//!    FIN is in the stream, and the send completes once rank 0 has read the FIN.
//!
//! # Rules
//!
//! - **No blocking.** A rank never stops reading its streams while it waits, so no message blocks
//!   another message.
//! - **Bulk ring.** In addition to its rings, a rank has one bulk ring for the bodies of long
//!   frames. The bulk ring serves one peer at a time. Long messages to other peers go through their
//!   normal rings during that time.
//! - **Timeouts.** If the deadline of an announced send passes, the sender cancels the RTS and
//!   waits for no answer. Numbers of messages are never reused, so a late CTS or FIN cannot be
//!   taken for the answer to a newer RTS.
//! - **Receive buffers.** A receive borrows the caller's memory, or the engine allocates memory
//!   once a message has matched ([`ReceiveBuffer`]). If the allocation fails, the receive fails,
//!   and the message stays for the next receive.
//! - **Probes.** A probe finds the first message that no receive has matched. It may also remove
//!   the message from matching, so that only its caller can receive it ([`probe`]).
//! - **Progress.** A caller that waits polls all streams on its own thread
//!   ([`PointToPoint::progress_until`]). If no caller has waited for a while, the service thread of
//!   the process polls instead. It is woken by every event ([`progress_owner`]).
//! - **Lazy engine.** If all peers share memory, the first message creates the engine
//!   ([`lazy_engine`]).
//! - **Fast path.** Small messages of blocking calls bypass most of the engine ([`fast_path`]).
//! - **Refused messages.** If a receive cannot take a message because of its type or length, the
//!   next message call of the sender returns an error, too ([`refusals`]).
//! - **Deadlocks.** The bytes that each rank has sent and received show whether a message is on its
//!   way, or must still be sent ([`traffic`]).
//! - **Locks.** The engine holds no lock while it calls a completion.
//!
//! This module does not depend on works, groups or the C ABI.

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
mod refusals;
mod rendezvous;
mod requests;
mod rts_table;
mod split_transfer;
mod state;
mod termination;
#[cfg(test)]
mod tests;
mod timers;
mod traffic;
mod unexpected;

#[cfg(doc)]
use super::ReceiveBuffer;
use super::{
    Completion, Delivery, Endpoint, ImmediateMessage, MessageTraffic, PointToPoint, ProbeRequest,
    ProbedMessage, ReceiveRequest, RefusedMessages, SendRequest, SharedDomain,
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
    /// Creates the engine of the calling rank. `domain` has the ranks that share memory with it,
    /// and `endpoint` connects it to the ranks of other nodes. If `allow_cma_read` is true, the
    /// other ranks of the node may read this process's memory by CMA, as far as the system permits.
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

    /// Creates a lazy engine for a group whose ranks all share memory: the first message creates
    /// the engine itself. No rank may send before this function has returned on all ranks.
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

    fn refused_messages(&self) -> RefusedMessages {
        let refused = |core: &EngineCore| core.lock().state.refused.clone();
        self.existing_core().map(refused).unwrap_or_default()
    }

    fn traffic(&self, work_id: usize) -> MessageTraffic {
        let traffic = |core: &EngineCore| core.lock().state.traffic(work_id);
        self.existing_core().map(traffic).unwrap_or_default()
    }
}
