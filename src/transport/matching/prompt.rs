//! Small messages between ranks of a node that need not be posted: put into the ring by the call
//! that sends them, taken out of it by the call that receives them. What takes longer than a
//! moment, or has others before it, is posted.
//!
//! A message here is the same in the ring, and counts for the limits, as one that was posted: the
//! other side cannot tell. A receive may overtake nothing: it is done here only where nothing else
//! is outstanding or held.

use super::attendance::Core;
use super::frame::{Frame, HEAD_BYTES};
use super::limits::Limits;
use super::link::Inflow;
use super::posted::is_internal;
use super::state::State;
use super::wire::{LOOKS_FOR_MORE, Wire};
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::base::sync::fence_by;
use crate::transport::ring::{Beside, Reader, Ring};
use crate::transport::{Delivery, Region, Small};

/// How often a receive looks before it is posted: some times as long as a message is on its way.
#[derive(Clone, Copy)]
struct Looks {
    /// At first, under the lock and without a pause, which lasts as long as a cache line needs from
    /// core to core.
    locked: u32,
    /// Then, where others may have the lock, with one.
    free: u32,
}

const LOOKS: Looks = Looks { locked: 300, free: 800 };
/// The same where the rank has no core of its own, and gives it away between two of the later
/// looks. The sender may run on another core all the same, and to give one away costs as much as
/// the first looks do.
const CROWDED_LOOKS: Looks = Looks { locked: 300, free: 40 };

/// What a look for a message has found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    Message(Delivery),
    /// None has come yet: so many bytes in all have, from this rank of the domain.
    Nothing {
        from: Rank,
        taken: u64,
    },
    /// Something that only a posted receive can go by.
    Else,
}

impl Core {
    /// See [`crate::transport::PointToPoint::send_at_once`].
    pub(super) fn send_at_once(&self, message: &Small<Src<'static>>) -> bool {
        self.lock().state.send_at_once(message)
    }

    /// See [`crate::transport::PointToPoint::receive_at_once`].
    pub(super) fn receive_at_once(&self, message: &Small<Dst<'static>>) -> Option<Delivery> {
        let crowded = self.domain().pace().crowded;
        let Looks { mut locked, mut free } = if crowded { CROWDED_LOOKS } else { LOOKS };
        loop {
            let mut guard = self.lock();
            // To stop the service thread is the part of one that attends.
            if guard.watch.listens() {
                return None;
            }
            let (from, taken) = match guard.state.take_at_once(message, locked) {
                Found::Message(delivery) => {
                    guard.watch.note_prompt();
                    guard.state.put_all();
                    return Some(delivery);
                }
                Found::Nothing { from, taken } => (from, taken),
                Found::Else => return None,
            };
            drop(guard);
            free = self.look_for_more(from, taken, free)?;
            locked = 0;
        }
    }

    /// Looks without the lock until more has come than was taken; how often it may look again.
    /// `None` where it has not.
    fn look_for_more(&self, from: Rank, taken: u64, looks: u32) -> Option<u32> {
        let (domain, crowded) = (self.domain(), self.domain().pace().crowded);
        let written = domain.region().ring(from, domain.rank()).written;
        (0..looks).rev().find(|_| {
            if crowded {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
            written.position() != taken
        })
    }
}

impl State {
    /// Puts a message into the ring as a whole; false where it has to be posted.
    pub(super) fn send_at_once(&mut self, message: &Small<Src<'static>>) -> bool {
        let Small { peer: Some(to), tag: Some(tag), dtype, bytes } = *message else { return false };
        let (cost, limits) = (Limits::cost(bytes.len()), self.limits);
        let Some(link) = self.links.get(to).filter(|_| self.failed.is_none()) else {
            return false;
        };
        let is_small = bytes.len() <= limits.eager_bytes && link.used + cost <= limits.held_bytes;
        if !is_small || !link.is_open() || !link.is_idle() {
            return false;
        }
        let is_put = if self.goes_in_lane(to, bytes.len()) {
            self.put_in_lane(to, (tag, dtype), bytes)
        } else {
            self.put_in_ring(to, (tag, dtype), bytes)
        };
        if is_put {
            self.links[to].used += cost;
        }
        is_put
    }

    /// Puts a message into the ring, if that has room for all of it.
    fn put_in_ring(&mut self, to: Rank, (tag, dtype): (u32, DataType), bytes: Src<'_>) -> bool {
        let Wire::Rings { peer, out, .. } = &mut self.links[to].wire else { return false };
        let first = Frame::first_of_whole(tag, dtype);
        if !out.put_whole(self.domain.region(), first, bytes) {
            return false;
        }
        fence_by(&self.fence);
        self.domain.ring_for_messages_fenced(*peer);
        out.claim_next(self.domain.region(), bytes.len());
        true
    }

    /// Puts a message into the lane, if that has room for all of it. The receiver takes one part of
    /// it while the next is put.
    fn put_in_lane(&mut self, to: Rank, (tag, dtype): (u32, DataType), bytes: Src<'_>) -> bool {
        let head = Frame::Eager { tag, dtype, len: bytes.len() as u64, in_lane: true }.encode();
        let wire = &mut self.links[to].wire;
        wire.put_in_lane(self.domain.as_ref(), Src::from(&head[..]), bytes)
    }

    /// Takes a message that lies whole in its sender's ring into the receiver's memory; looks so
    /// often again where nothing does.
    pub(super) fn take_at_once(&mut self, wanted: &Small<Dst<'static>>, looks: u32) -> Found {
        let Small { peer: Some(from), tag: tag_wanted, bytes: into, .. } = *wanted else {
            return Found::Else;
        };
        if self.failed.is_some() || self.domain.region().failure().is_set() {
            return Found::Else;
        }
        let is_alone =
            self.receives.is_empty() && self.sends.is_empty() && self.unexpected.is_empty();
        let Some(link) = self.links.get_mut(from).filter(|_| is_alone) else { return Found::Else };
        let is_between = matches!(link.inflow, Inflow::Head { have: 0, .. });
        if !is_between || link.closed.is_some() || link.in_closed.is_some() {
            return Found::Else;
        }
        let Wire::Rings { into: reader, lanes, peer, .. } = &mut link.wire else {
            return Found::Else;
        };
        let region = self.domain.region();
        let ring = reader.ring(region);
        reader.look_for(&ring, into.len(), looks);
        let Seen { frame, held, beside } = match see(reader, &ring) {
            Ok(Some(seen)) => seen,
            Ok(None) => return Found::Nothing { from: *peer, taken: reader.position() },
            Err(_) => return Found::Else,
        };
        let (tag, dtype, len, in_lane) = match frame {
            Some(Frame::Eager { tag, dtype, len, in_lane }) => (tag, dtype, len, in_lane),
            Some(Frame::Credit { bytes }) => return self.take_credit(from, bytes),
            _ => return Found::Else,
        };
        let fits = |len: &usize| *len <= into.len() && HEAD_BYTES <= held;
        let Some(len) = usize::try_from(len).ok().filter(fits) else { return Found::Else };
        let is_wanted = tag_wanted.map_or(!is_internal(tag), |wanted| wanted == tag);
        let (cost, Limits { eager_bytes, held_bytes }) = (Limits::cost(len), self.limits);
        let is_allowed = len <= eager_bytes && link.held + link.owed + cost <= held_bytes;
        if !is_wanted || dtype != wanted.dtype || !is_allowed {
            return Found::Else;
        }
        let into = into.slice(0, len);
        let is_taken = match beside {
            Some(beside) => reader.take_newest(&ring, beside, into).map(|()| true),
            None if in_lane => take_from_lane(reader, &mut lanes.into, region, into),
            None => reader.take_seen(&ring, (HEAD_BYTES, LOOKS_FOR_MORE), into),
        };
        if !is_taken.unwrap_or(false) {
            return Found::Else;
        }
        if in_lane {
            // The lane is free for others.
            link.wire.settle(self.domain.as_ref());
        } else {
            link.wire.settle_in_parts(self.domain.as_ref());
        }
        link.held += cost;
        self.pay_back(from, cost);
        Found::Message(Delivery { peer: from, tag, bytes: len })
    }

    /// Takes what a peer gives back, of which a message every now and then brings some: the message
    /// comes behind it.
    #[cold]
    fn take_credit(&mut self, from: Rank, bytes: u64) -> Found {
        // One that gives back too much stays, so that a posted receive finds it and says so.
        if self.on_credit(from, bytes).is_err() {
            return Found::Else;
        }
        let Wire::Rings { into: reader, peer, .. } = &mut self.links[from].wire else {
            return Found::Else;
        };
        let ring = reader.ring(self.domain.region());
        if reader.skip(&ring, HEAD_BYTES).is_err() {
            return Found::Else;
        }
        Found::Nothing { from: *peer, taken: reader.position() }
    }
}

/// What comes next in a ring.
struct Seen {
    /// Its head; `None` where it is no head.
    frame: Option<Frame>,
    /// How many bytes have come.
    held: usize,
    /// What lies of it beside the position.
    beside: Option<Beside>,
}

/// What comes next in a ring; `None` where that is less than a head.
fn see(reader: &mut Reader, ring: &Ring<'_>) -> Result<Option<Seen>> {
    if let Some(beside) = reader.newest(ring)?
        && let Some(frame) = Frame::whole(beside.first, beside.len as u64)
    {
        let held = HEAD_BYTES + beside.len;
        return Ok(Some(Seen { frame: Some(frame), held, beside: Some(beside) }));
    }
    let mut head = [0; HEAD_BYTES];
    let held = reader.peek(ring, Dst::from(&mut head[..]))?;
    let frame = Frame::decode(&head);
    Ok((held > 0).then_some(Seen { frame, held, beside: None }))
}

/// Takes the body that lies in the lane, and then the head; false where it has not come, and both
/// are still there.
fn take_from_lane(
    heads: &mut Reader,
    lane: &mut Reader,
    region: &Region,
    into: Dst<'_>,
) -> Result<bool> {
    let is_taken = lane.take_seen(&lane.ring(region), (0, LOOKS_FOR_MORE), into)?;
    if is_taken {
        heads.skip(&heads.ring(region), HEAD_BYTES)?;
    }
    Ok(is_taken)
}
