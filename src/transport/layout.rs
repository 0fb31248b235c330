//! Where everything lies in the memory of a domain: a pure function of how many ranks there are,
//! how large a slot is, and how soon that memory is used again.
//!
//! ```text
//! abort record | per rank: presence, doorbell, progress, doorbell for messages, pulse | per two ranks: knock |
//! per two ranks: cursors of a ring and of a lane | per rank: lines, labels, desk, slots, lane | per two ranks: ring
//! ```
//!
//! What a group that does nothing needs lies together at the beginning, in few pages, so that a
//! thousand of them cost little.
//!
//! Must not know: the memory itself.

use super::abort::Failure;
use super::labels::LabelTable;
use super::line::Line;
use super::matching::Lent;
use super::progress::Progress;
use super::pulse::Pulse;
use super::region::{Knock, Presence};
use super::reuse::Reuse;
use super::ring::{Cursor, Turn};
use crate::base::error::{Error, Result};
use crate::base::ids::WorldSize;

/// Lines per rank: how far a root may run ahead of its readers with small payloads.
pub const LINES: u64 = 64;

/// Slots per rank: how many staged steps may be in flight.
pub const SLOTS: u64 = 4;

/// The size of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The number of ranks.
    pub ranks: WorldSize,
    /// The size of one staging slot; a multiple of 4096.
    pub slot_bytes: usize,
    /// How soon that and the rest is used again.
    pub reuse: Reuse,
}

/// The most and the least that the ring from one rank to another holds.
const RING_BYTES: (usize, usize) = (256 << 10, 4 << 10);
/// What all rings together should have, and where that leaves each less than [`ROOMY_RING`], at
/// most.
const ALL_RINGS: (usize, usize) = (3 << 20, 16 << 20);
/// What two whole messages of the largest size need.
const ROOMY_RING: usize = 32 << 10;

/// The least that the lane of a rank holds, for all others together: as much as the largest ring,
/// and for the same reason, that what was in a core's cache a little while ago takes another core
/// longer to get than what has been out of it.
const LANE_BYTES: usize = 256 << 10;
/// What it holds where memory is used again late, among so few ranks that there is room for it; and
/// what each of two rings does.
const LATE_LANE_BYTES: usize = 1 << 20;
const LATE_LANES: WorldSize = 4;
const LATE_RING_BYTES: usize = 2 << 20;

/// The longest message that goes without being asked for, of which a lane holds two; and where what
/// is in the lane would not have left the near caches.
const EAGER_BYTES: usize = 128 << 10;
const NEAR_EAGER_BYTES: usize = 32 << 10;

/// The most and the least that a slot has where nobody asks for a size and each wait costs a
/// context switch, and what all slots together then should.
const SLOT_BYTES: (usize, usize) = (256 << 10, 128 << 10);
const ALL_SLOTS: usize = 4 << 20;
/// What a slot has where each rank has a core: what all slots of one hold stays in that core's
/// cache.
const SPACIOUS_SLOT_BYTES: usize = 128 << 10;
/// What it has at most where memory is used again late: what all slots of one hold leaves that
/// cache before.
const LATE_SLOT_BYTES: usize = 512 << 10;

/// How much of a slot is used in turn for vectors that are shorter, where memory is used again
/// soon. What a core has in its nearest cache another one gets, and takes, more slowly than what
/// lies in the next one (on a Xeon of the fourth generation, whose nearest cache has 48 KiB: 6
/// against 3 ns a line); what all slots of a rank have in all is several times as much as that
/// cache holds.
const TURNED: usize = 64 << 10;
/// Where it is used again late, short vectors stay in so much of each slot all the same: their few
/// lines come soonest from where they were a moment ago (on an EPYC of the fourth generation 1 KiB
/// takes 0.35 to 0.45 microseconds there, and 0.5 elsewhere).
const SHORT: usize = 2 << 10;
const SHORT_TURNED: usize = 1 << 10;

/// Byte offsets of the arrays.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) bells: usize,
    pub(super) progress: usize,
    pub(super) message_bells: usize,
    pub(super) pulses: usize,
    pub(super) knocks: usize,
    /// What lies before this has its memory from the beginning.
    pub(super) cursors: usize,
    pub(super) lines: usize,
    pub(super) labels: usize,
    pub(super) desks: usize,
    pub(super) slots: usize,
    pub(super) lanes: usize,
    pub(super) rings: usize,
    /// What one ring holds, computed once.
    pub(super) ring_bytes: usize,
    /// The same of a lane.
    pub(super) lane_bytes: usize,
    pub(super) ring_turn: Turn,
    pub(super) lane_turn: Turn,
    /// The longest message that goes into a ring.
    pub(super) longest_in_ring: usize,
    pub(super) len: usize,
}

/// The distance between two doorbells: two cache lines, so that prefetching pairs do not couple
/// them.
pub(super) const BELL_STRIDE: usize = 128;
pub(super) const PAGE: usize = 4096;
/// What structures begin at multiples of: two cache lines.
pub(super) const ALIGN: usize = 128;
/// Offset of the presence records, behind the abort record. It is the same for all numbers of
/// ranks.
pub(super) const PRESENCE: usize = size_of::<Failure>().next_multiple_of(ALIGN);

impl Geometry {
    /// The size of a slot among so many ranks where nobody asks for another: 8 ranks have 8 MiB in
    /// all.
    pub fn usual_slot_bytes(ranks: WorldSize, crowded: bool, reuse: Reuse) -> usize {
        let (most, least) = match (reuse, crowded) {
            (Reuse::Soon, false) => return SPACIOUS_SLOT_BYTES,
            (Reuse::Soon, true) => SLOT_BYTES,
            (Reuse::Late, _) => (LATE_SLOT_BYTES, SLOT_BYTES.1),
        };
        let slots = ranks.saturating_mul(usize::try_from(SLOTS).unwrap_or(1)).max(1);
        (ALL_SLOTS / slots / PAGE * PAGE).clamp(least, most)
    }

    /// The bytes that a region of this geometry needs.
    ///
    /// # Errors
    /// `InvalidArgument` where that is more than an address can hold.
    pub fn bytes(&self) -> Result<usize> {
        Ok(self.layout()?.len)
    }

    /// How many of them, from the first on, are used by a group that does nothing.
    ///
    /// # Errors
    /// As [`Geometry::bytes`].
    pub fn bytes_at_once(&self) -> Result<usize> {
        Ok(self.layout()?.cursors)
    }

    /// What the ring from one rank to another holds: a power of two.
    pub fn ring_bytes(&self) -> usize {
        if self.is_late_pair() {
            return LATE_RING_BYTES;
        }
        let (most, least) = RING_BYTES;
        let share = |all: usize| all / self.rings().unwrap_or(usize::MAX).max(1);
        let (roomy, narrow) = (share(ALL_RINGS.0).min(most), share(ALL_RINGS.1).min(ROOMY_RING));
        (roomy.max(narrow).max(least) + 1).next_power_of_two() / 2
    }

    /// What the lane of a rank holds, for all others together: a power of two.
    pub(super) fn lane_bytes(&self) -> usize {
        if self.has_late_lanes() { LATE_LANE_BYTES } else { LANE_BYTES }
    }

    /// Whether there are two rings only, and what is in them is to leave the near caches before
    /// they are written again.
    fn is_late_pair(&self) -> bool {
        self.reuse == Reuse::Late && self.ranks == 2
    }

    fn has_late_lanes(&self) -> bool {
        self.reuse == Reuse::Late && self.ranks <= LATE_LANES
    }

    /// The longest message that goes without being asked for.
    pub(super) fn eager_bytes(&self) -> usize {
        match self.reuse {
            Reuse::Late if !self.has_late_lanes() => NEAR_EAGER_BYTES,
            _ => EAGER_BYTES,
        }
    }

    /// How much of a slot is used in turn for vectors of so many bytes: a power of two.
    fn turned(&self, room: usize) -> usize {
        let slot = 1 << self.slot_bytes.ilog2();
        match self.reuse {
            Reuse::Soon => slot.min(TURNED),
            Reuse::Late if room <= SHORT => slot.min(SHORT_TURNED),
            Reuse::Late => slot,
        }
    }

    /// Where in a slot the part for a step begins, of which all ranks use no more than `room`
    /// bytes.
    pub(super) fn part_at(&self, step: u64, room: usize) -> usize {
        // All powers of two, so that nothing is divided.
        let stride = room.next_power_of_two().max(ALIGN);
        let parts = (self.turned(room) >> stride.ilog2()).max(1);
        // As many turns as the smallest parts have places.
        let turn = usize::try_from(step / SLOTS % (1 << 32)).unwrap_or(0);
        (turn & (parts - 1)) * stride
    }

    /// The longest message that goes into the ring and not into the lane: the ring would hold two
    /// of longer ones, and does not have their bytes in the caches of both cores where it is not
    /// smaller than the lane. The shortest messages do not mind, nor do those that stay in the
    /// nearest caches, as all that are not long do in a small ring of memory that is used again
    /// late.
    pub(super) fn longest_in_ring(&self) -> usize {
        let ring = self.ring_bytes();
        match self.reuse {
            _ if ring >= self.lane_bytes() => ring / 2,
            Reuse::Soon => ring / 32,
            // What lies in a long lane has left the near caches before it is written again:
            // messages above 4 KiB gain by that.
            Reuse::Late => (ring / 4).min(if self.has_late_lanes() { 4 << 10 } else { 8 << 10 }),
        }
    }

    /// When the writer of a ring, or of a lane, of so many bytes goes back to its beginning.
    fn turn(&self, ring: usize) -> Turn {
        match self.reuse {
            Reuse::Soon => Turn { bytes: 64 << 10, longest: 1 << 10, apart: None },
            Reuse::Late if ring >= LATE_LANE_BYTES => {
                Turn { bytes: 4 << 10, longest: 2 << 10, apart: Some(8 << 10) }
            }
            Reuse::Late => Turn { bytes: 4 << 10, longest: usize::MAX, apart: None },
        }
    }

    /// One for every rank and every other.
    fn rings(&self) -> Option<usize> {
        self.ranks.checked_mul(self.ranks.saturating_sub(1))
    }

    pub(super) fn layout(&self) -> Result<Layout> {
        let too_large = || {
            let Self { ranks, slot_bytes, .. } = self;
            Error::invalid(format!("{ranks} ranks with slots of {slot_bytes} bytes are too many"))
        };
        // Where an array ends that begins at `start` and has `each` elements for each rank.
        let array = |start: usize, stride: usize, each: usize| -> Option<usize> {
            let count = self.ranks.checked_mul(each)?;
            start.checked_add(count.checked_mul(stride)?)?.checked_next_multiple_of(ALIGN)
        };
        let page = |end: usize| end.checked_next_multiple_of(PAGE);
        let compute = || {
            let bells = array(PRESENCE, size_of::<Presence>(), 1)?;
            let progress = array(bells, BELL_STRIDE, 1)?;
            let message_bells = array(progress, size_of::<Progress>(), 1)?;
            let pulses = array(message_bells, BELL_STRIDE, 1)?;
            let knocks = array(pulses, size_of::<Pulse>(), 1)?;
            let cursors = page(array(knocks, size_of::<Knock>(), self.ranks)?)?;
            let peers = self.ranks.checked_sub(1)?;
            let lines = page(array(cursors, 4 * size_of::<Cursor>(), peers)?)?;
            let labels = page(array(lines, size_of::<Line>(), usize::try_from(LINES).ok()?)?)?;
            let desks = page(array(labels, size_of::<LabelTable>(), 1)?)?;
            let slots = page(array(desks, size_of::<Lent>(), 1)?)?;
            let lanes = page(array(slots, self.slot_bytes, usize::try_from(SLOTS).ok()?)?)?;
            let (ring_bytes, lane_bytes) = (self.ring_bytes(), self.lane_bytes());
            let rings = page(array(lanes, lane_bytes, 1)?)?;
            let len = page(array(rings, ring_bytes, peers)?)?;
            Some(Layout {
                bells,
                progress,
                message_bells,
                pulses,
                knocks,
                cursors,
                lines,
                labels,
                desks,
                slots,
                lanes,
                rings,
                ring_bytes,
                lane_bytes,
                ring_turn: self.turn(ring_bytes),
                lane_turn: self.turn(lane_bytes),
                longest_in_ring: self.longest_in_ring(),
                len,
            })
        };
        compute().filter(|layout| isize::try_from(layout.len).is_ok()).ok_or_else(too_large)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_powers_of_two_and_shrink_with_their_number() {
        for (ranks, bytes) in
            [(1, 256), (4, 256), (5, 128), (7, 64), (8, 32), (16, 32), (32, 16), (64, 4), (1000, 4)]
        {
            let geometry = Geometry { ranks, slot_bytes: 4096, reuse: Reuse::Soon };
            assert_eq!(geometry.ring_bytes(), bytes << 10, "{ranks}");
        }
    }

    #[test]
    fn a_long_lane_takes_messages_that_a_short_ring_would_keep_in_the_near_caches() {
        let longest = |ranks| {
            Geometry { ranks, slot_bytes: 4096, reuse: Reuse::Late }.longest_in_ring() >> 10
        };
        assert_eq!([2, 3, 4, 5, 8, 32].map(longest), [1024, 4, 4, 8, 8, 4]);
    }

    #[test]
    fn eight_ranks_have_eight_mib_and_little_at_once() {
        let usual = |ranks, reuse| Geometry::usual_slot_bytes(ranks, true, reuse) >> 10;
        let ranks = [2, 4, 6, 8, 1000];
        assert_eq!(ranks.map(|ranks| usual(ranks, Reuse::Soon)), [256, 256, 168, 128, 128]);
        assert_eq!(ranks.map(|ranks| usual(ranks, Reuse::Late)), [512, 256, 168, 128, 128]);
        for (reuse, crowded) in
            [Reuse::Soon, Reuse::Late].map(|it| [(it, false), (it, true)]).concat()
        {
            let slot_bytes = Geometry::usual_slot_bytes(8, crowded, reuse);
            let geometry = Geometry { ranks: 8, slot_bytes, reuse };
            let (all, at_once) = (geometry.bytes().unwrap(), geometry.bytes_at_once().unwrap());
            assert!(all <= 8 << 20, "{all}");
            assert!(at_once <= 8 << 10, "{at_once}");
        }
    }

    #[test]
    fn lanes_are_powers_of_two_with_room_for_two_messages() {
        for (ranks, late) in [(1, 1024), (2, 1024), (4, 1024), (5, 256), (8, 256), (1000, 256)] {
            for (reuse, lane) in [(Reuse::Soon, 256), (Reuse::Late, late)] {
                let geometry = Geometry { ranks, slot_bytes: 4096, reuse };
                assert_eq!(geometry.lane_bytes(), lane << 10, "{ranks}");
                assert!(geometry.eager_bytes() * 2 <= lane << 10, "{ranks}");
                assert!(geometry.longest_in_ring() * 2 <= geometry.ring_bytes(), "{ranks}");
            }
        }
        let pair = |reuse| Geometry { ranks: 2, slot_bytes: 4096, reuse }.ring_bytes() >> 10;
        assert_eq!((pair(Reuse::Soon), pair(Reuse::Late)), (256, 2048));
    }

    #[test]
    fn parts_lie_in_their_slot_and_take_turns() {
        let slots = [4096, 12_288, 128 << 10, 196_608, 512 << 10];
        for (slot_bytes, reuse) in slots.map(|it| [(it, Reuse::Soon), (it, Reuse::Late)]).concat() {
            let geometry = Geometry { ranks: 2, slot_bytes, reuse };
            let rooms = [0, 1, 64, 129, 2048, 4095, 4096, 12_288, 32 << 10, 100_000, 196_608];
            for room in rooms.into_iter().filter(|&room| room <= slot_bytes) {
                let places: Vec<usize> =
                    (0..32_768).map(|step| geometry.part_at(step, room)).collect();
                assert!(places.iter().all(|place| place + room <= slot_bytes));
                assert!(places.iter().all(|place| place.is_multiple_of(ALIGN)));
                let mut known: Vec<usize> = places.iter().step_by(4).copied().collect();
                known.sort_unstable();
                known.dedup();
                // One behind the other, without a gap that another of them would fit.
                assert!(known.windows(2).all(|pair| {
                    let gap = pair[1] - pair[0];
                    (room..room.max(ALIGN / 2) * 2 + 1).contains(&gap)
                }));
                let several = room <= geometry.turned(room) / 2;
                assert_eq!(known.len() > 1, several, "{slot_bytes}, {room}");
            }
        }
    }

    #[test]
    fn an_impossible_geometry_is_an_error() {
        let geometry = Geometry { ranks: usize::MAX / 2, slot_bytes: 1 << 20, reuse: Reuse::Soon };
        assert!(geometry.bytes().is_err());
    }
}
