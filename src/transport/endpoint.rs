//! Byte streams between ranks. Two layers use them: the collectives in `algo/message`, and the
//! matching engine of point-to-point messages ([`matching`](super::matching)).

use super::PeerName;
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, Result};
use crate::base::ids::{Rank, WorldSize};
use crate::base::label::Label;
use crate::wait::WaitPolicy;
use serde_json::Value;
use std::sync::Weak;
use std::time::Duration;

/// The maximum number of parallel streams for collectives from one rank to another.
pub const MAX_COLLECTIVE_STREAMS: usize = 8;

/// A payload of at most this many bytes is copied where a longer one may be lent
/// ([`Endpoint::try_send_lent`]).
pub const COPIED_BYTES: usize = 1 << 10;

/// The name of one of the streams from one rank to another.
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

/// A stream on which a caller waits until it can send or receive more bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamInterest {
    /// The peer at the other end.
    pub peer: Rank,
    /// The channel of the stream.
    pub channel: Channel,
    /// The direction of the stream.
    pub direction: StreamDirection,
}

/// The handler that makes progress on point-to-point streams while no caller waits for messages.
pub trait ProgressHandler: Send + Sync {
    /// Called on the service thread when a stream can make progress.
    /// [`Endpoint::collect_ready_peers`] then returns the peer of that stream. An implementation
    /// must not block.
    fn on_streams_ready(&self);
}

crate::base::trait_object_debug::impl_debug_of_objects!(ProgressHandler);

/// Ordered, reliable byte streams between this rank and every other rank: one stream per direction
/// and [`Channel`].
///
/// Obligations of an implementation:
/// - Bytes arrive once and in order, or not at all. A stream buffers a bounded number of bytes, so
///   a sender that is faster than its receiver must wait.
/// - A stream is created at its first use. Until the stream exists, sends and receives on it
///   transfer 0 bytes.
/// - If a peer dies or leaves, its streams end. This rank can still receive the bytes that the peer
///   sent before the end. After these bytes, [`Endpoint::try_receive`] returns `PeerFailed` with
///   the peer as the culprit. [`Endpoint::try_send`] returns this error immediately. The error says
///   whether the peer died or left.
/// - If a rank of another node dies, [`Endpoint::failure`] becomes `Some`, and every
///   [`Endpoint::wait_for_streams`] ends. This happens even if this rank makes no call and has no
///   stream to the dead rank. If the domain of one node fails, the failure reaches all nodes.
/// - When the endpoint is dropped, this rank leaves the group in order.
///
/// At most one thread at a time may use the collective streams, and at most one thread at a time
/// may use the point-to-point streams. These two threads may run concurrently.
pub trait Endpoint: Send + Sync {
    /// Returns the rank of this process.
    fn rank(&self) -> Rank;

    /// Returns the number of ranks.
    fn size(&self) -> WorldSize;

    /// Returns the name of a rank.
    fn peer(&self, rank: Rank) -> &PeerName;

    /// Returns the number of parallel collective streams to each peer, from 1 to
    /// [`MAX_COLLECTIVE_STREAMS`]. The number is the same on all ranks.
    fn collective_streams(&self) -> u8;

    /// Returns the wait policy of this rank.
    fn wait_policy(&self) -> WaitPolicy;

    /// Writes the parts, one after another, to a stream, until all are written or the stream
    /// accepts no more bytes. Never blocks. Returns the number of bytes written. If some bytes were
    /// not written, the next call must begin with these bytes: a part of them may be copied
    /// or encrypted already.
    ///
    /// # Errors
    /// `PeerFailed`; `Connection` if the peer cannot be reached.
    fn try_send(&self, to: Rank, channel: Channel, parts: &[Src<'_>]) -> Result<usize>;

    /// Writes the two parts as [`Endpoint::try_send`]. If the payload is longer than
    /// [`COPIED_BYTES`], the endpoint may keep a view of it until [`Endpoint::end_loans`], so that
    /// it can send the bytes again.
    ///
    /// # Errors
    /// As [`Endpoint::try_send`].
    fn try_send_lent(
        &self,
        to: Rank,
        channel: Channel,
        head: Src<'_>,
        payload: Src<'static>,
    ) -> Result<usize> {
        self.try_send(to, channel, &[head, payload])
    }

    /// Ends the loans of [`Endpoint::try_send_lent`] on a stream: the endpoint keeps no view of the
    /// payloads, which may then be changed.
    fn end_loans(&self, _to: Rank, _channel: Channel) {}

    /// Reads received bytes into `into`, without blocking. Returns the number of bytes read.
    ///
    /// # Errors
    /// `PeerFailed`, `Connection`.
    fn try_receive(&self, from: Rank, channel: Channel, into: Dst<'_>) -> Result<usize>;

    /// Sleeps until one of these collective streams may make progress, a rank has failed, or the
    /// limit has passed. May return early.
    fn wait_for_streams(&self, interests: &[StreamInterest], limit: Duration);

    /// Returns true if a stream to a rank accepts no more bytes only because the rank does not read
    /// the bytes that have arrived there. Returns false if this is not known.
    fn is_held_by_receiver(&self, _to: Rank, _channel: Channel) -> bool {
        false
    }

    /// Appends to `peers` the peers whose point-to-point streams may make progress. A stream may
    /// make progress if bytes have arrived, if it has room again after a partial
    /// [`Endpoint::try_send`], or if it has ended.
    fn collect_ready_peers(&self, peers: &mut Vec<Rank>);

    /// Sets the handler that is called for the point-to-point streams while no caller waits.
    fn set_progress_handler(&self, handler: Weak<dyn ProgressHandler>);

    /// Pauses or resumes the progress handler. While the handler is paused, a caller must poll
    /// [`Endpoint::collect_ready_peers`] continuously.
    fn pause_progress_handler(&self, paused: bool);

    /// Queries the activity of these ranks' processes outside the collectives of this group, for
    /// error messages. Waits for at most
    /// [`ACTIVITY_QUERY_TIMEOUT`](super::heartbeat::ACTIVITY_QUERY_TIMEOUT). The result has `None`
    /// for each rank that has not answered in that time, and an empty text for each rank that
    /// cannot be queried.
    fn query_activities(&self, ranks: &[Rank]) -> Vec<Option<String>> {
        vec![Some(String::new()); ranks.len()]
    }

    /// Returns the labels of a rank's operation, for the error message of a mismatch. The first
    /// label is that of the operation. If several calls of a batch became this operation, the
    /// labels of these calls follow. If the rank is on another node, the function queries that node
    /// and waits for at most 1 s. Returns an empty list if the operation has no label, or if the
    /// node no longer stores the label.
    fn labels(&self, _rank: Rank, _sequence: u64) -> Vec<Label> {
        Vec::new()
    }

    /// Describes the streams for people, for example the addresses and why they were chosen.
    fn describe(&self) -> Value;

    /// Returns the failure of the group, if it has failed.
    fn failure(&self) -> Option<Error>;

    /// Fails the group on all nodes. The first reason is kept.
    fn fail(&self, error: &Error);
}

crate::base::trait_object_debug::impl_debug_of_objects!(Endpoint);
