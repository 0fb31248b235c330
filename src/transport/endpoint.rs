//! Byte streams between ranks. `algo/message` and the matching engine are built on them.

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

/// The maximum number of parallel streams for collectives from one rank to another.
pub const MAX_COLLECTIVE_STREAMS: usize = 8;

/// The streams from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Channel {
    /// A stream for messages of collectives. Large messages are spread over several of these
    /// streams, numbered from 0.
    Collective(u8),
    /// The stream for point-to-point messages.
    PointToPoint,
}

/// The direction of a stream, seen from this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamDirection {
    /// From this rank to the peer.
    Out,
    /// From the peer to this rank.
    In,
}

/// A stream that a caller waits for: until it can send or receive more bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamInterest {
    /// The peer at the other end.
    pub peer: Rank,
    /// The channel of the stream.
    pub channel: Channel,
    /// The direction of the stream.
    pub direction: StreamDirection,
}

/// The handler that makes progress on point-to-point streams while no caller waits for them.
pub trait ProgressHandler: Send + Sync + Debug {
    /// Called on the service thread when a stream can make progress
    /// ([`Endpoint::collect_ready_peers`] returns its peer). Must not block.
    fn on_streams_ready(&self);
}

/// Ordered, reliable byte streams between this rank and every other rank: one stream per direction
/// and [`Channel`].
///
/// Obligations of an implementation:
/// - Bytes arrive once and in order, or not at all. A stream buffers a bounded number of bytes, so
///   that a sender that is faster than its receiver waits.
/// - A stream is created at its first use. Until it exists, it accepts no bytes and returns none.
/// - If a peer dies or leaves, its streams end. The bytes that it sent before can still be
///   received; after them, [`Endpoint::try_receive`] returns `PeerFailed` with the peer as the
///   culprit. [`Endpoint::try_send`] returns this error immediately. The error distinguishes a
///   death from a departure.
/// - If a rank of another node dies, [`Endpoint::failure`] becomes `Some`, and every
///   [`Endpoint::wait_for_streams`] ends. This needs no call of this rank, and no stream to the
///   dead rank. The failure of one rank's node reaches all nodes.
/// - Dropping the endpoint leaves the group in order.
///
/// One thread at a time uses the collective streams, and one thread at a time the point-to-point
/// streams. The two threads may run concurrently.
pub trait Endpoint: Send + Sync + Debug {
    /// Returns the rank of this process.
    fn rank(&self) -> Rank;

    /// Returns the number of ranks.
    fn size(&self) -> WorldSize;

    /// Returns the name of a rank.
    fn peer(&self, rank: Rank) -> &PeerName;

    /// Returns the number of parallel collective streams to each peer: the same on all ranks, from
    /// 1 to [`MAX_COLLECTIVE_STREAMS`].
    fn collective_streams(&self) -> u8;

    /// Returns the wait policy of this rank.
    fn wait_policy(&self) -> WaitPolicy;

    /// Writes the parts, one after another, to a stream, as many bytes as it accepts without
    /// blocking. Returns the number of bytes written.
    ///
    /// # Errors
    /// `PeerFailed`; `Connection` if the peer cannot be reached.
    fn try_send(&self, to: Rank, channel: Channel, parts: &[Src<'_>]) -> Result<usize>;

    /// Reads received bytes into `into`, without blocking. Returns the number of bytes read.
    ///
    /// # Errors
    /// `PeerFailed`, `Connection`.
    fn try_receive(&self, from: Rank, channel: Channel, into: Dst<'_>) -> Result<usize>;

    /// Sleeps until one of the streams may make progress, a rank has failed, or the limit has
    /// passed. May return early. For collective streams.
    fn wait_for_streams(&self, interests: &[StreamInterest], limit: Duration);

    /// Adds the peers whose point-to-point streams may make progress: bytes have arrived, the
    /// stream has room again after a partial [`Endpoint::try_send`], or the stream has ended.
    fn collect_ready_peers(&self, peers: &mut Vec<Rank>);

    /// Sets the handler of the point-to-point streams for the time in which no caller waits.
    fn set_progress_handler(&self, handler: Weak<dyn ProgressHandler>);

    /// Pauses or resumes the progress handler. While it is paused, a caller polls
    /// [`Endpoint::collect_ready_peers`] continuously.
    fn pause_progress_handler(&self, paused: bool);

    /// Queries the activity of the ranks' processes outside the collectives of this group, for
    /// messages. Waits for at most
    /// [`ACTIVITY_QUERY_TIMEOUT`](super::heartbeat::ACTIVITY_QUERY_TIMEOUT). Returns `None` for a
    /// rank that has not answered, and an empty text for a rank that cannot be queried.
    fn query_activities(&self, ranks: &[Rank]) -> Vec<Option<String>> {
        vec![Some(String::new()); ranks.len()]
    }

    /// Returns the labels of an operation of a rank, to explain a mismatch: the label of the
    /// operation, followed by the labels of its calls if it consists of several calls. Queries the
    /// rank's node and waits for at most 1 s. Returns an empty list if the operation has no label,
    /// or if the node no longer stores it.
    fn labels(&self, _rank: Rank, _sequence: u64) -> Vec<Label> {
        Vec::new()
    }

    /// Describes the kind of the streams and the reason for this choice, for people.
    fn describe(&self) -> Value;

    /// Returns the failure of the group, if it has failed.
    fn failure(&self) -> Option<Error>;

    /// Fails the group on all nodes. The first reason is kept.
    fn fail(&self, error: &Error);
}
