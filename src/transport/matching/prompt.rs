//! Small messages between ranks of a node that need not be posted: put into the ring by the call that sends them, taken
//! out of it by the call that receives them. What takes longer than a moment, or has others before it, is posted.
//!
//! A message here is the same in the ring, and counts for the limits, as one that was posted: the other side cannot
//! tell. A receive may overtake nothing: it is done here only where nothing else is outstanding or held.

use super::attendance::Core;
use super::frame::{Frame, HEAD_BYTES};
use super::limits::Limits;
use super::link::{Inflow, Wire};
use super::posted::is_internal;
use super::state::State;
use crate::base::buffer::{Dst, Src};
use crate::transport::{Delivery, Incoming, Outgoing, Room};
use std::sync::atomic::{Ordering, fence};

/// How often a receive looks, where its rank has a core of its own, before it is posted: about as long as a message is on
/// its way.
const LOOKS: u32 = 1000;

/// What a look for a message has found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    Message(Delivery),
    /// None has come yet.
    Nothing,
    /// Something that only a posted receive can go by.
    Else,
}

impl Core {
    /// See [`crate::transport::PointToPoint::send_at_once`].
    pub(super) fn send_at_once(&self, message: &Outgoing) -> bool {
        self.lock().state.send_at_once(message)
    }

    /// See [`crate::transport::PointToPoint::receive_at_once`].
    pub(super) fn receive_at_once(&self, message: &Incoming) -> Option<Delivery> {
        let looks = if self.domain().pace().crowded { 1 } else { LOOKS };
        for _ in 0..looks {
            let mut locked = self.lock();
            // To stop the service thread is the part of one that attends.
            if locked.watch.listens() {
                return None;
            }
            match locked.state.take_at_once(message) {
                Found::Message(delivery) => {
                    locked.watch.note_prompt();
                    locked.state.put_all();
                    return Some(delivery);
                }
                Found::Nothing => drop(locked),
                Found::Else => return None,
            }
            std::hint::spin_loop();
        }
        None
    }
}

impl State {
    /// Puts a message into the ring as a whole; false where it has to be posted.
    fn send_at_once(&mut self, message: &Outgoing) -> bool {
        let Outgoing { to, tag, dtype, bytes, .. } = *message;
        let (cost, limits) = (Limits::cost(bytes.len()), self.limits);
        let Some(link) = self.links.get_mut(to).filter(|_| self.failed.is_none()) else {
            return false;
        };
        let is_small = bytes.len() <= limits.eager_bytes && link.used + cost <= limits.held_bytes;
        if !is_small || !link.is_open() || !link.is_idle() {
            return false;
        }
        let Wire::Rings { peer, out, .. } = &mut link.wire else { return false };
        let head = Frame::Eager { tag, dtype, len: bytes.len() as u64 }.encode();
        if !out.put_whole(self.domain.region(), &[Src::from(&head[..]), bytes]) {
            return false;
        }
        fence(Ordering::SeqCst);
        self.domain.ring_for_messages_fenced(*peer);
        link.used += cost;
        true
    }

    /// Takes a message that lies whole in its sender's ring into the receiver's memory.
    pub(super) fn take_at_once(&mut self, wanted: &Incoming) -> Found {
        let (Some(from), Room::Lent(into)) = (wanted.from, wanted.into) else { return Found::Else };
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
        let Wire::Rings { into: ring, .. } = &mut link.wire else { return Found::Else };
        let (region, mut head) = (self.domain.region(), [0; HEAD_BYTES]);
        let Ok(held) = ring.peek(region, Dst::from(&mut head[..])) else { return Found::Else };
        if held == 0 {
            return Found::Nothing;
        }
        let Some(Frame::Eager { tag, dtype, len }) = Frame::decode(&head) else {
            return Found::Else;
        };
        let fits = |len: &usize| *len <= into.len() && HEAD_BYTES + len <= held;
        let Some(len) = usize::try_from(len).ok().filter(fits) else { return Found::Else };
        let is_wanted = wanted.tag.map_or(!is_internal(tag), |wanted| wanted == tag);
        let (cost, Limits { eager_bytes, held_bytes }) = (Limits::cost(len), self.limits);
        let is_allowed = len <= eager_bytes && link.held + link.owed + cost <= held_bytes;
        if !is_wanted || dtype != wanted.dtype || !is_allowed {
            return Found::Else;
        }
        if ring.take_seen(region, HEAD_BYTES, into.slice(0, len)).is_err() {
            return Found::Else;
        }
        link.wire.settle(self.domain.as_ref());
        link.held += cost;
        self.pay_back(from, cost);
        Found::Message(Delivery { peer: from, tag, bytes: len })
    }
}
