//! The matching engine: [`PointToPoint`] over shared memory inside a node, and an endpoint between nodes.
//!
//! * Between this rank and each other there is a pair of byte streams: rings ([`super::ring`]) or those of the
//!   endpoint. On them go frames ([`frame`]). A rank never stops reading its streams, whatever it waits for, so
//!   that no message blocks another.
//! * A small message goes *whole* as long as the receiver may hold it ([`limits`]). Any other is *offered*: its bytes
//!   stay with the sender until a receive has taken the offer. They are then read in the sender's memory
//!   ([`transfer`], [`desk`]) or, where that cannot be, sent in pieces, straight into the receiver's buffer.
//! * A whole message is sent once it is in the stream, an offered one once the receiver has taken it. A time-out
//!   withdraws an offer; no answer is waited for, since numbers tell old questions from new ones.
//! * A receive lends memory, or has some made once it has a message ([`Room`]): before the message counts as taken, so
//!   that one for which there is no memory stays for the next receive.
//! * Whoever attends makes all progress on its own thread ([`PointToPoint::attend`]). When nobody has for a moment,
//!   the service thread is told of whatever comes ([`attendance`]).
//!
//! Completions are called while no lock is held. Must not know: works, groups, the C ABI.

mod attendance;
mod desk;
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
mod state;
#[cfg(test)]
mod tests;
mod transfer;
mod unexpected;

pub use desk::Desk;

#[cfg(doc)]
use super::Room;
use super::{Completion, Endpoint, Incoming, Outgoing, PointToPoint, SharedDomain};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use attendance::Core;
use std::sync::Arc;

/// The messages of one rank of a group.
#[derive(Debug)]
pub struct Engine {
    core: Arc<Core>,
}

impl Engine {
    /// The engine of the rank that the domain is a membership of; the endpoint leads to the ranks of other nodes. Others
    /// may read this process's memory if `may_be_read`.
    ///
    /// # Errors
    /// `System` where the service thread cannot be reached, `Internal` where a rank cannot be reached in any way.
    pub fn new(
        domain: Arc<dyn SharedDomain>,
        endpoint: Option<Arc<dyn Endpoint>>,
        may_be_read: bool,
    ) -> Result<Self> {
        Ok(Self { core: Core::new(domain, endpoint, may_be_read)? })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.core.leave();
    }
}

impl PointToPoint for Engine {
    fn send(&self, message: Outgoing, done: Arc<dyn Completion>) -> Result<()> {
        self.core.with(|state| state.send(message, done))
    }

    fn receive(&self, message: Incoming, done: Arc<dyn Completion>) -> Result<()> {
        self.core.with(|state| state.receive(message, done))
    }

    fn attend(&self, over: &dyn Fn() -> bool, limit: &Deadline) {
        self.core.attend(over, limit);
    }

    fn departed(&self, peer: Rank) -> Option<Error> {
        self.core.with(|state| state.links.get(peer)?.closed.clone())
    }
}
