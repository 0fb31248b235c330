//! Messages between ranks: the trait that `algo/message` and point-to-point build on.

use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::base::ids::{Rank, WorldSize};
use std::fmt::Debug;

/// Sends and receives between any two ranks, matched in order per (peer, tag).
///
/// Obligations of an implementation:
/// * messages from one rank under one tag arrive in the order of their sending;
/// * what is buffered on behalf of a receiver is bounded; a sender beyond the bound waits;
/// * a message longer than the receiver's buffer is `Mismatch` and writes nothing;
/// * a peer that is gone ends the wait for it with `PeerFailed`.
pub trait Endpoint: Send + Sync + Debug {
    /// This process's rank.
    fn rank(&self) -> Rank;

    /// The number of ranks.
    fn size(&self) -> WorldSize;

    /// Sends bytes. Returns once they have been copied or delivered: the memory is free again.
    ///
    /// # Errors
    /// `Timeout`, `PeerFailed`, `InvalidArgument` for a rank that does not exist.
    fn send(&self, to: Rank, tag: u64, bytes: Src<'_>, deadline: &Deadline) -> Result<()>;

    /// Receives the next message of a rank under a tag; returns its length.
    ///
    /// # Errors
    /// As [`Endpoint::send`], and `Mismatch` for a message longer than `into`.
    fn receive(&self, from: Rank, tag: u64, into: Dst<'_>, deadline: &Deadline) -> Result<usize>;
}
