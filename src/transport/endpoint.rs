//! Byte streams between ranks: what `algo/message` and the matching engine build on.

use super::PeerName;
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, Result};
use crate::base::ids::{Rank, WorldSize};
use crate::base::label::Label;
use crate::wait::WaitPolicy;
use serde_json::Value;
use std::fmt::Debug;
use std::sync::Weak;
use std::time::Duration;

/// The most parallel streams for collectives from one rank to another.
pub const MAX_COLLECTIVE_STREAMS: usize = 8;

/// Which of the streams from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Channel {
    /// Messages of collectives; large ones are spread over several of these, numbered from 0.
    Collective(u8),
    /// Point-to-point messages.
    PointToPoint,
}

/// Which way bytes go, seen from this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamDirection {
    /// To the peer.
    Out,
    /// From the peer.
    In,
}

/// Something that is waited for: that a stream may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamInterest {
    /// The other end.
    pub peer: Rank,
    /// The stream.
    pub channel: Channel,
    /// Which way.
    pub direction: StreamDirection,
}

/// Who goes on with point-to-point streams when nobody waits for them.
pub trait ProgressHandler: Send + Sync + Debug {
    /// Called on the service thread when a stream may go on ([`Endpoint::collect_ready_peers`] says
    /// which). Must not block.
    fn on_streams_ready(&self);
}

/// Ordered, reliable streams of bytes from this rank to every other and back: one per direction and
/// [`Channel`].
///
/// Obligations of an implementation:
/// * bytes arrive once, in order, or not at all; what a stream holds is bounded, so that a sender
///   that is faster than its receiver waits;
/// * a stream is made when it is first used: until it is there it takes no bytes and gives none;
/// * a peer that died or left ends its streams: bytes that it sent before can still be received,
///   then [`Endpoint::try_receive`] (and [`Endpoint::try_send`] at once) is `PeerFailed` with the
///   peer as the culprit, and says which of the two it was;
/// * when a rank of another node dies, [`Endpoint::abort_record`] becomes `Some` and every rest
///   ends, without anybody asking, also where no stream to it was made; the failure of one rank's
///   node reaches all nodes;
/// * dropping the endpoint is leaving in order.
///
/// Collective streams are used by one thread at a time, point-to-point ones too, but both at once.
pub trait Endpoint: Send + Sync + Debug {
    /// This process's rank.
    fn rank(&self) -> Rank;

    /// The number of ranks.
    fn size(&self) -> WorldSize;

    /// Who a rank is.
    fn peer(&self, rank: Rank) -> &PeerName;

    /// How many parallel collective streams there are to each peer; the same on all ranks, 1 to
    /// [`MAX_COLLECTIVE_STREAMS`].
    fn collective_streams(&self) -> u8;

    /// How long to look before resting pays.
    fn wait_policy(&self) -> WaitPolicy;

    /// Puts the parts, one after another, into a stream as far as goes without waiting; how many
    /// bytes that was.
    ///
    /// # Errors
    /// `PeerFailed`, `Connection` where the peer cannot be reached.
    fn try_send(&self, to: Rank, channel: Channel, parts: &[Src<'_>]) -> Result<usize>;

    /// Takes what has come, as far as there is room; how many bytes that was.
    ///
    /// # Errors
    /// `PeerFailed`, `Connection`.
    fn try_receive(&self, from: Rank, channel: Channel, into: Dst<'_>) -> Result<usize>;

    /// Sleeps until one of the wishes may have come true, somebody has failed, or the limit has
    /// passed; may end early. For collective streams.
    fn wait_for_streams(&self, interests: &[StreamInterest], limit: Duration);

    /// Adds the peers whose point-to-point streams may go on: bytes have come, or there is room
    /// again where the last [`Endpoint::try_send`] took less than it was given, or the stream has
    /// ended.
    fn collect_ready_peers(&self, peers: &mut Vec<Rank>);

    /// Says who attends to the point-to-point streams when nobody waits.
    fn set_progress_handler(&self, handler: Weak<dyn ProgressHandler>);

    /// While paused, the attendant is not called: somebody looks at
    /// [`Endpoint::collect_ready_peers`] without end.
    fn pause_progress_handler(&self, paused: bool);

    /// What the processes of ranks do beside the collectives of this group, for messages: asks
    /// them, and waits for [`PATIENCE`](super::pulse::PATIENCE) at most. `None` for those that have
    /// not answered, nothing for those that cannot be asked.
    fn query_activities(&self, ranks: &[Rank]) -> Vec<Option<String>> {
        vec![Some(String::new()); ranks.len()]
    }

    /// The labels of an operation of a rank, to explain a mismatch: that of the whole and, if it is
    /// made of several calls, theirs. Asks the rank's node, and waits a second at most. Empty if
    /// the operation has none, or if that is not known any more.
    fn labels(&self, _rank: Rank, _sequence: u64) -> Vec<Label> {
        Vec::new()
    }

    /// What the streams are made of and why, for people.
    fn describe(&self) -> Value;

    /// Why the group has failed, if it has.
    fn failure(&self) -> Option<Error>;

    /// Fails the group on all nodes; the first reason stays.
    fn fail(&self, error: &Error);
}
