//! The interface of an asynchronous operation to its run queue.

use super::turns::Turn;
use crate::base::deadline::Deadline;
use crate::base::error::Error;

/// An asynchronous operation that waits for its turn. The queue calls exactly one of [`Self::run`],
/// [`Self::expire`] and [`Self::fail`], and holds no lock during the call.
pub trait QueueJob: Send {
    /// Returns the operation's deadline.
    fn deadline(&self) -> &Deadline;

    /// Returns the failure of the operation's group, if it has failed.
    fn failure(&self) -> Option<Error>;

    /// Runs the operation and ends the turn.
    fn run(self: Box<Self>, turn: Turn<'_>);

    /// Ends the operation and fails the group, because the deadline passed before the turn.
    fn expire(self: Box<Self>);

    /// Ends the operation with the failure of its group.
    fn fail(self: Box<Self>, cause: &Error);
}

crate::base::trait_object_debug::impl_debug_of_objects!(QueueJob);

/// A job whose turn has begun, together with the turn.
#[derive(Debug)]
pub struct ClaimedJob<'a> {
    pub(super) job: Box<dyn QueueJob>,
    pub(super) turn: Turn<'a>,
}

impl ClaimedJob<'_> {
    /// Runs the job to its end.
    pub fn run(self) {
        self.job.run(self.turn);
    }
}
