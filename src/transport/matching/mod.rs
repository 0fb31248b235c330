//! The matching engine: [`PointToPoint`] over shared memory inside a node, and an endpoint between
//! nodes.
//!
//! * Between this rank and each other there is a pair of byte streams: rings ([`super::ring`]) or
//!   those of the endpoint ([`wire`]). On them go frames ([`frame`]). A rank never stops reading
//!   its streams, whatever it waits for, so that no message blocks another.
//! * Beside its rings a rank has one lane, into which it puts the bodies of long messages for one
//!   other rank at a time; those for others go through their rings meanwhile.
//! * A small message goes *whole* as long as the receiver may hold it ([`limits`]). Any other is
//!   *offered*: its bytes stay with the sender until a receive has taken the offer. They are then
//!   sent in pieces, straight into the receiver's buffer, while both sides wait for nothing else,
//!   or read in the sender's memory ([`transfer`], [`desk`]), of which the sender writes the back
//!   to the receiver's meanwhile, where both wait for it ([`sharing`]).
//! * A whole message is sent once it is in the stream, an offered one once the receiver has taken
//!   it. A time-out withdraws an offer; no answer is waited for, since numbers tell old questions
//!   from new ones.
//! * A receive lends memory, or has some made once it has a message ([`Room`]): before the message
//!   counts as taken, so that one for which there is no memory stays for the next receive.
//! * A probe looks among the messages that no receive has taken, and may take one out of matching
//!   ([`probe`]).
//! * Whoever attends makes all progress on its own thread ([`PointToPoint::attend`]). When nobody
//!   has for a moment, the service thread is told of whatever comes ([`attendance`]).
//!
//! An engine whose peers share memory is made with the first message ([`dormant`]). Small messages
//! of calls that block go past most of it ([`prompt`]).
//!
//! Completions are called while no lock is held. Must not know: works, groups, the C ABI.

mod attendance;
mod desk;
mod dormant;
mod ending;
mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod incoming;
mod limits;
mod link;
mod outgoing;
mod outstanding;
mod parting;
mod posted;
mod probe;
mod prompt;
mod sharing;
mod state;
#[cfg(test)]
mod tests;
mod transfer;
mod unexpected;
mod wire;

pub use desk::{Desk, Lent, Mark};

#[cfg(doc)]
use super::Room;
use super::{
    Completion, Delivery, Endpoint, Incoming, Outgoing, PointToPoint, ProbeRequest, ProbedMessage,
    SharedDomain, Small,
};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use attendance::Core;
use dormant::Dormant;
use outstanding::Ended;
use state::State;
use std::sync::Arc;

/// The messages of one rank of a group.
#[derive(Debug)]
pub struct Engine(Inner);

#[derive(Debug)]
enum Inner {
    Made(Arc<Core>),
    /// Perhaps not made yet.
    Dormant(Arc<Dormant>),
}

impl Engine {
    /// The engine of the rank that the domain is a membership of; the endpoint leads to the ranks
    /// of other nodes. Others read this process's memory if they can, and `may_be_read`.
    ///
    /// # Errors
    /// `System` where the service thread cannot be reached, `Internal` where a rank cannot be
    /// reached in any way.
    pub fn new(
        domain: Arc<dyn SharedDomain>,
        endpoint: Option<Arc<dyn Endpoint>>,
        may_be_read: bool,
    ) -> Result<Self> {
        Ok(Self(Inner::Made(Core::new(domain, endpoint, may_be_read)?)))
    }

    /// The same where all ranks are of the domain, and nobody sends anything before this has
    /// returned on all of them: it is made with the first message.
    pub fn dormant(domain: Arc<dyn SharedDomain>, may_be_read: bool) -> Self {
        Self(Inner::Dormant(Dormant::new(domain, may_be_read)))
    }

    fn core(&self) -> Result<&Core> {
        match &self.0 {
            Inner::Made(core) => Ok(core),
            Inner::Dormant(dormant) => dormant.core(),
        }
    }

    /// What there is already.
    fn made(&self) -> Option<&Core> {
        match &self.0 {
            Inner::Made(core) => Some(core),
            Inner::Dormant(dormant) => dormant.made(),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        match &self.0 {
            Inner::Made(core) => core.leave(),
            Inner::Dormant(dormant) => dormant.leave(),
        }
    }
}

impl PointToPoint for Engine {
    fn send(&self, message: Outgoing, done: Arc<dyn Completion>) -> Result<()> {
        self.core()?.with(|state| state.send(message, done))
    }

    fn receive(&self, message: Incoming, done: Arc<dyn Completion>) -> Result<()> {
        self.core()?.with(|state| state.receive(message, done))
    }

    fn exchange(
        &self,
        (incoming, received): (Incoming, Arc<dyn Completion>),
        (outgoing, sent): (Outgoing, Arc<dyn Completion>),
    ) -> Result<()> {
        self.core()?.with(|state| {
            state.check_room(2)?;
            state.receive(incoming, received)?;
            if let Err(error) = state.send(outgoing, Arc::clone(&sent)) {
                state.ended.push(Ended::new(sent, Err(error)));
            }
            Ok(())
        })
    }

    fn probe(&self, request: &ProbeRequest, limit: &Deadline) -> Result<Option<ProbedMessage>> {
        self.core()?.probe(request, limit)
    }

    fn receive_matched(
        &self,
        matched: u64,
        message: Incoming,
        done: Arc<dyn Completion>,
    ) -> Result<()> {
        self.core()?.with(|state| state.receive_matched(matched, message, done))
    }

    // Without an engine there was no probe.
    fn release_matched(&self, matched: u64) {
        self.made().into_iter().for_each(|core| core.with(|state| state.release_matched(matched)));
    }

    fn send_at_once(&self, message: &Small<Src<'static>>) -> bool {
        self.core().is_ok_and(|core| core.send_at_once(message))
    }

    fn receive_at_once(&self, message: &Small<Dst<'static>>) -> Option<Delivery> {
        self.core().ok()?.receive_at_once(message)
    }

    // Without a message there is nothing to wait for, nor to be told.
    fn attend(&self, over: &dyn Fn() -> bool, limit: &Deadline) {
        self.made().into_iter().for_each(|core| core.attend(over, limit));
    }

    fn is_telling(&self) -> bool {
        self.made().is_some_and(Core::is_telling)
    }

    fn rouse(&self) {
        self.core().into_iter().for_each(Core::rouse);
    }

    fn departed(&self, peer: Rank) -> Option<Error> {
        let look = |state: &mut State| {
            state.progress();
            state.links.get(peer)?.closed.clone()
        };
        self.core().map_or_else(Some, |core| core.with(look))
    }
}
