//! The fast path for small messages between ranks of a node. The sending call writes the message to
//! the ring, and the receiving call takes it from the ring; neither posts a request. If the call
//! would take longer, or other messages are before it, the message is posted instead.
//!
//! The message has the same bytes in the ring, and the same cost in the limits, as a posted
//! message. The peer cannot tell the difference. A receive on the fast path must not overtake other
//! messages, so it requires that no other message is outstanding or buffered.

use super::frame::{HEADER_BYTES, MessageFrame};
use super::limits::MatchingLimits;
use super::link::InboundFrame;
use super::peer_streams::{PeerStreams, STREAM_POLLS};
use super::posted::is_internal_tag;
use super::progress_owner::EngineCore;
use super::state::MatchingState;
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::base::sync::fence_with_rmw;
use crate::transport::ring::{ByteRing, InlineSnapshot, RingReader};
use crate::transport::{Delivery, ImmediateMessage, Region};

/// The number of polls before a receive is posted: several times the travel time of a message.
#[derive(Clone, Copy)]
struct PollBudget {
    /// The first polls: under the lock and without a pause. Together they take about as long as a
    /// cache line from core to core.
    locked: u32,
    /// The later polls: without the lock, and with a pause.
    unlocked: u32,
}

const POLL_BUDGET: PollBudget = PollBudget { locked: 300, unlocked: 800 };
/// The poll budget of a rank without a core of its own. It yields the core between two of the later
/// polls. The sender may run on another core anyway, and one yield costs as much as all the first
/// polls.
const OVERSUBSCRIBED_POLL_BUDGET: PollBudget = PollBudget { locked: 300, unlocked: 40 };

/// The result of a poll for a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FastReceive {
    Message(Delivery),
    /// No message has arrived. `taken` is the reader's position in the ring of rank `from` of the
    /// domain.
    Empty {
        from: Rank,
        taken: u64,
    },
    /// The next frame, or the state of the engine, needs a posted receive.
    NeedsPosting,
}

impl EngineCore {
    /// See [`crate::transport::PointToPoint::try_send_immediate`].
    pub(super) fn try_send_immediate(&self, message: &ImmediateMessage<Src<'static>>) -> bool {
        self.lock().state.try_send_immediate(message)
    }

    /// See [`crate::transport::PointToPoint::try_receive_immediate`].
    pub(super) fn try_receive_immediate(
        &self,
        message: &ImmediateMessage<Dst<'static>>,
    ) -> Option<Delivery> {
        let oversubscribed = self.domain().wait_policy().is_oversubscribed;
        let PollBudget { mut locked, unlocked: mut free } =
            if oversubscribed { OVERSUBSCRIBED_POLL_BUDGET } else { POLL_BUDGET };
        loop {
            let mut guard = self.lock();
            // Only a caller that waits and makes progress may stop the service thread's listening.
            if guard.delegation.is_listening() {
                return None;
            }
            let (from, taken) = match guard.state.try_take_immediate(message, locked) {
                FastReceive::Message(delivery) => {
                    guard.delegation.record_fast_receive();
                    guard.state.flush_all();
                    return Some(delivery);
                }
                FastReceive::Empty { from, taken } => (from, taken),
                FastReceive::NeedsPosting => return None,
            };
            drop(guard);
            free = self.poll_for_more(from, taken, free)?;
            locked = 0;
        }
    }

    /// Polls without the lock until the writer's position differs from `taken`. Returns the number
    /// of polls left, or `None` if no bytes arrived.
    fn poll_for_more(&self, from: Rank, taken: u64, polls: u32) -> Option<u32> {
        let (domain, oversubscribed) =
            (self.domain(), self.domain().wait_policy().is_oversubscribed);
        let written = domain.region().ring(from, domain.rank()).writer_cursor;
        (0..polls).rev().find(|_| {
            if oversubscribed {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
            written.position() != taken
        })
    }
}

impl MatchingState {
    /// Writes a message to the ring or bulk ring. Returns false if the message has to be posted.
    pub(super) fn try_send_immediate(&mut self, message: &ImmediateMessage<Src<'static>>) -> bool {
        let ImmediateMessage { peer: Some(to), tag: Some(tag), dtype, bytes } = *message else {
            return false;
        };
        let (cost, limits) = (MatchingLimits::credit_cost(bytes.len()), self.limits);
        let Some(link) = self.links.get(to).filter(|_| self.failure.is_none()) else {
            return false;
        };
        let is_small =
            bytes.len() <= limits.eager_bytes && link.used_credit + cost <= limits.held_bytes;
        if !is_small || !link.is_open() || !link.is_idle() {
            return false;
        }
        let is_put = if self.should_use_bulk_ring(to, bytes.len()) {
            self.write_to_bulk_ring(to, tag, dtype, bytes)
        } else {
            self.write_to_ring(to, tag, dtype, bytes)
        };
        if is_put {
            self.links[to].used_credit += cost;
        }
        is_put
    }

    /// Writes a message to the ring, if the ring has room for all of it.
    fn write_to_ring(&mut self, to: Rank, tag: u32, dtype: DataType, bytes: Src<'_>) -> bool {
        let PeerStreams::Rings { peer, writer: out, .. } = &mut self.links[to].streams else {
            return false;
        };
        let first = MessageFrame::eager_first_word(tag, dtype);
        if !out.write_record(self.domain.region(), first, bytes) {
            return false;
        }
        fence_with_rmw(&self.fence_word);
        self.domain.wake_message_waiter_fenced(*peer);
        out.prefetch_next(self.domain.region(), bytes.len());
        true
    }

    /// Writes a message to the bulk ring, if the bulk ring has room for all of it. The receiver
    /// takes one part while the sender writes the next.
    fn write_to_bulk_ring(&mut self, to: Rank, tag: u32, dtype: DataType, bytes: Src<'_>) -> bool {
        let head =
            MessageFrame::Eager { tag, dtype, len: bytes.len() as u64, is_bulk: true }.encode();
        let wire = &mut self.links[to].streams;
        wire.write_to_bulk_ring(self.domain.as_ref(), Src::from(&head[..]), bytes)
    }

    /// Takes a message that is complete in its sender's ring into the receiver's buffer. If the
    /// ring is empty, polls up to `polls` times.
    pub(super) fn try_take_immediate(
        &mut self,
        request: &ImmediateMessage<Dst<'static>>,
        polls: u32,
    ) -> FastReceive {
        let ImmediateMessage { peer: Some(from), tag: tag_wanted, bytes: into, .. } = *request
        else {
            return FastReceive::NeedsPosting;
        };
        if self.failure.is_some() || self.domain.region().abort_record().is_set() {
            return FastReceive::NeedsPosting;
        }
        let has_no_other_message =
            self.receives.is_empty() && self.sends.is_empty() && self.unexpected.is_empty();
        let Some(link) = self.links.get_mut(from).filter(|_| has_no_other_message) else {
            return FastReceive::NeedsPosting;
        };
        let is_at_frame_start =
            matches!(link.inbound_frame, InboundFrame::Header { received: 0, .. });
        if !is_at_frame_start || link.close_error.is_some() || link.receive_close_error.is_some() {
            return FastReceive::NeedsPosting;
        }
        let PeerStreams::Rings { reader, bulk_rings, peer, .. } = &mut link.streams else {
            return FastReceive::NeedsPosting;
        };
        let region = self.domain.region();
        let ring = reader.ring(region);
        reader.poll_for(&ring, into.len(), polls);
        let PeekedFrame { frame, available: held, inline: beside } = match peek_frame(reader, &ring)
        {
            Ok(Some(seen)) => seen,
            Ok(None) => return FastReceive::Empty { from: *peer, taken: reader.position() },
            Err(_) => return FastReceive::NeedsPosting,
        };
        let (tag, dtype, len, is_bulk) = match frame {
            Some(MessageFrame::Eager { tag, dtype, len, is_bulk: in_lane }) => {
                (tag, dtype, len, in_lane)
            }
            Some(MessageFrame::Credit { bytes }) => return self.apply_credit(from, bytes),
            _ => return FastReceive::NeedsPosting,
        };
        let fits = |len: &usize| *len <= into.len() && HEADER_BYTES <= held;
        let Some(len) = usize::try_from(len).ok().filter(fits) else {
            return FastReceive::NeedsPosting;
        };
        let is_wanted = tag_wanted.map_or(!is_internal_tag(tag), |wanted| wanted == tag);
        let (cost, MatchingLimits { eager_bytes, held_bytes }) =
            (MatchingLimits::credit_cost(len), self.limits);
        let is_allowed =
            len <= eager_bytes && link.held_cost + link.owed_credit + cost <= held_bytes;
        if !is_wanted || dtype != request.dtype || !is_allowed {
            return FastReceive::NeedsPosting;
        }
        let into = into.slice(0, len);
        let is_taken = match beside {
            Some(beside) => reader.take_inline(&ring, beside, into).map(|()| true),
            None if is_bulk => take_from_bulk_ring(reader, &mut bulk_rings.reader, region, into),
            None => reader.take_peeked(&ring, (HEADER_BYTES, STREAM_POLLS), into),
        };
        if !is_taken.unwrap_or(false) {
            return FastReceive::NeedsPosting;
        }
        if is_bulk {
            // The peer can use its bulk ring for another rank now.
            link.streams.release_received(self.domain.as_ref());
        } else {
            link.streams.release_received_lazily(self.domain.as_ref());
        }
        link.held_cost += cost;
        self.return_credit(from, cost);
        FastReceive::Message(Delivery { peer: from, tag, bytes: len })
    }

    /// Applies a credit frame. A peer sends one before a message from time to time; the message
    /// follows it in the ring.
    #[cold]
    fn apply_credit(&mut self, from: Rank, bytes: u64) -> FastReceive {
        // A frame that returns too much credit stays in the ring, so that a posted receive finds it
        // and reports the error.
        if self.on_credit(from, bytes).is_err() {
            return FastReceive::NeedsPosting;
        }
        let PeerStreams::Rings { reader, peer, .. } = &mut self.links[from].streams else {
            return FastReceive::NeedsPosting;
        };
        let ring = reader.ring(self.domain.region());
        if reader.skip(&ring, HEADER_BYTES).is_err() {
            return FastReceive::NeedsPosting;
        }
        FastReceive::Empty { from: *peer, taken: reader.position() }
    }
}

/// The next frame in a ring.
struct PeekedFrame {
    /// The decoded header; `None` if the bytes are no valid header.
    frame: Option<MessageFrame>,
    /// The number of bytes that have arrived.
    available: usize,
    /// The inline copy of the message next to the writer's position, if there is one.
    inline: Option<InlineSnapshot>,
}

/// Returns the next frame in a ring; `None` if less than a header has arrived.
fn peek_frame(reader: &mut RingReader, ring: &ByteRing<'_>) -> Result<Option<PeekedFrame>> {
    if let Some(beside) = reader.peek_inline(ring)?
        && let Some(frame) =
            MessageFrame::eager_from_first_word(beside.first_word, beside.len as u64)
    {
        let held = HEADER_BYTES + beside.len;
        return Ok(Some(PeekedFrame { frame: Some(frame), available: held, inline: Some(beside) }));
    }
    let mut head = [0; HEADER_BYTES];
    let held = reader.peek(ring, Dst::from(&mut head[..]))?;
    let frame = MessageFrame::decode(&head);
    Ok((held > 0).then_some(PeekedFrame { frame, available: held, inline: None }))
}

/// Takes the body from the bulk ring, and then the header from the ring. If the body has not
/// arrived, leaves both in place and returns false.
fn take_from_bulk_ring(
    reader: &mut RingReader,
    bulk_reader: &mut RingReader,
    region: &Region,
    into: Dst<'_>,
) -> Result<bool> {
    let is_taken = bulk_reader.take_peeked(&bulk_reader.ring(region), (0, STREAM_POLLS), into)?;
    if is_taken {
        reader.skip(&reader.ring(region), HEADER_BYTES)?;
    }
    Ok(is_taken)
}
