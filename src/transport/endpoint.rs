//! Byte streams between ranks: what `algo/message` and the matching engine build on.

use super::PeerName;
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, Result};
use crate::base::ids::{Rank, WorldSize};
use crate::base::label::Label;
use crate::wait::Pace;
use serde_json::Value;
use std::fmt::Debug;
use std::sync::Weak;
use std::time::Duration;

/// The most parallel streams for collectives from one rank to another.
pub const MAX_LANES: usize = 8;

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
pub enum Direction {
    /// To the peer.
    Out,
    /// From the peer.
    In,
}

/// Something that is waited for: that a stream may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The other end.
    pub peer: Rank,
    /// The stream.
    pub channel: Channel,
    /// Which way.
    pub direction: Direction,
}

/// Who goes on with point-to-point streams when nobody waits for them.
pub trait Attendant: Send + Sync + Debug {
    /// Called on the service thread when a stream may go on ([`Endpoint::ready`] says which). Must
    /// not block.
    fn attend(&self);
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
/// * when a rank of another node dies, [`Endpoint::failure`] becomes `Some` and every rest ends,
///   without anybody asking, also where no stream to it was made; the failure of one rank's node
///   reaches all nodes;
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
    /// [`MAX_LANES`].
    fn lanes(&self) -> u8;

    /// How long to look before resting pays.
    fn pace(&self) -> Pace;

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
    fn rest(&self, wishes: &[Wish], limit: Duration);

    /// Adds the peers whose point-to-point streams may go on: bytes have come, or there is room
    /// again where the last [`Endpoint::try_send`] took less than it was given, or the stream has
    /// ended.
    fn ready(&self, peers: &mut Vec<Rank>);

    /// Says who attends to the point-to-point streams when nobody waits.
    fn set_attendant(&self, attendant: Weak<dyn Attendant>);

    /// While paused, the attendant is not called: somebody looks at [`Endpoint::ready`] without
    /// end.
    fn pause_attendant(&self, paused: bool);

    /// What the processes of ranks do beside the collectives of this group, for messages: asks
    /// them, and waits for [`PATIENCE`](super::pulse::PATIENCE) at most. `None` for those that have
    /// not answered, nothing for those that cannot be asked.
    fn ask(&self, ranks: &[Rank]) -> Vec<Option<String>> {
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
