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

use super::abort::AbortRecord;
use super::ctrl_slot::CtrlSlot;
use super::heartbeat::HeartbeatState;
use super::labels::LabelTable;
use super::matching::ExposureWords;
use super::rank_progress::RankProgress;
use super::region::{RankPresence, WakeRequest};
use super::reuse_policy::ReusePolicy;
use super::ring::{RewindPolicy, RingCursor};
use crate::base::error::{Error, Result};
use crate::base::ids::WorldSize;

/// Lines per rank: how far a root may run ahead of its readers with small payloads.
pub const CTRL_SLOT_COUNT: u64 = 64;

/// Slots per rank: how many staged steps may be in flight.
pub const DATA_SLOT_COUNT: u64 = 4;

/// The size of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionGeometry {
    /// The number of ranks.
    pub ranks: WorldSize,
    /// The size of one staging slot; a multiple of 4096.
    pub slot_bytes: usize,
    /// How soon that and the rest is used again.
    pub reuse_policy: ReusePolicy,
}

/// The most and the least that the ring from one rank to another holds.
const RING_BYTES_MAX_MIN: (usize, usize) = (256 << 10, 4 << 10);
/// What all rings together should have, and where that leaves each less than
/// [`TWO_MESSAGE_RING_BYTES`], at most.
const ALL_RINGS_BYTES: (usize, usize) = (3 << 20, 16 << 20);
/// What two whole messages of the largest size need.
const TWO_MESSAGE_RING_BYTES: usize = 32 << 10;

/// The least that the lane of a rank holds, for all others together: as much as the largest ring,
/// and for the same reason, that what was in a core's cache a little while ago takes another core
/// longer to get than what has been out of it.
const BULK_RING_BYTES: usize = 256 << 10;
/// What it holds where memory is used again late, among so few ranks that there is room for it; and
/// what each of two rings does.
const LARGE_BULK_RING_BYTES: usize = 1 << 20;
const LARGE_BULK_RING_MAX_RANKS: WorldSize = 4;
const PAIR_RING_BYTES: usize = 2 << 20;

/// The longest message that goes without being asked for, of which a lane holds two; and where what
/// is in the lane would not have left the near caches.
const EAGER_BYTES: usize = 128 << 10;
const CACHED_EAGER_BYTES: usize = 32 << 10;

/// The most and the least that a slot has where nobody asks for a size and each wait costs a
/// context switch, and what all slots together then should.
const SLOT_BYTES_MAX_MIN: (usize, usize) = (256 << 10, 128 << 10);
const ALL_SLOTS_BYTES: usize = 4 << 20;
/// What a slot has where each rank has a core: what all slots of one hold stays in that core's
/// cache.
const DEDICATED_CORE_SLOT_BYTES: usize = 128 << 10;
/// What it has at most where memory is used again late: what all slots of one hold leaves that
/// cache before.
const EVICTING_SLOT_BYTES_MAX: usize = 512 << 10;

/// How much of a slot is used in turn for vectors that are shorter, where memory is used again
/// soon. What a core has in its nearest cache another one gets, and takes, more slowly than what
/// lies in the next one (on a Xeon of the fourth generation, whose nearest cache has 48 KiB: 6
/// against 3 ns a line); what all slots of a rank have in all is several times as much as that
/// cache holds.
const CYCLED_SLOT_BYTES: usize = 64 << 10;
/// Where it is used again late, short vectors stay in so much of each slot all the same: their few
/// lines come soonest from where they were a moment ago (on an EPYC of the fourth generation 1 KiB
/// takes 0.35 to 0.45 microseconds there, and 0.5 elsewhere).
const SHORT_VECTOR_BYTES: usize = 2 << 10;
const SHORT_CYCLED_BYTES: usize = 1 << 10;

/// Byte offsets of the arrays.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegionLayout {
    pub(super) doorbells: usize,
    pub(super) progress: usize,
    pub(super) message_doorbells: usize,
    pub(super) heartbeats: usize,
    pub(super) wake_requests: usize,
    /// What lies before this has its memory from the beginning.
    pub(super) cursors: usize,
    pub(super) ctrl_slots: usize,
    pub(super) labels: usize,
    pub(super) exposure_tables: usize,
    pub(super) data_slots: usize,
    pub(super) bulk_rings: usize,
    pub(super) rings: usize,
    /// What one ring holds, computed once.
    pub(super) ring_bytes: usize,
    /// The same of a lane.
    pub(super) bulk_ring_bytes: usize,
    pub(super) ring_rewind: RewindPolicy,
    pub(super) bulk_ring_rewind: RewindPolicy,
    /// The longest message that goes into a ring.
    pub(super) max_ring_message: usize,
    pub(super) len: usize,
}

/// The distance between two doorbells: two cache lines, so that prefetching pairs do not couple
/// them.
pub(super) const DOORBELL_STRIDE: usize = 128;
pub(super) const PAGE: usize = 4096;
/// What structures begin at multiples of: two cache lines.
pub(super) const ALIGN: usize = 128;
/// Offset of the presence records, behind the abort record. It is the same for all numbers of
/// ranks.
pub(super) const PRESENCE_OFFSET: usize = size_of::<AbortRecord>().next_multiple_of(ALIGN);

impl RegionGeometry {
    /// The size of a slot among so many ranks where nobody asks for another: 8 ranks have 8 MiB in
    /// all.
    pub fn default_slot_bytes(ranks: WorldSize, oversubscribed: bool, reuse: ReusePolicy) -> usize {
        let (most, least) = match (reuse, oversubscribed) {
            (ReusePolicy::WhileCached, false) => return DEDICATED_CORE_SLOT_BYTES,
            (ReusePolicy::WhileCached, true) => SLOT_BYTES_MAX_MIN,
            (ReusePolicy::AfterEviction, _) => (EVICTING_SLOT_BYTES_MAX, SLOT_BYTES_MAX_MIN.1),
        };
        let slots = ranks.saturating_mul(usize::try_from(DATA_SLOT_COUNT).unwrap_or(1)).max(1);
        (ALL_SLOTS_BYTES / slots / PAGE * PAGE).clamp(least, most)
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
    /// As [`RegionGeometry::rewind_after`].
    pub fn initial_bytes(&self) -> Result<usize> {
        Ok(self.layout()?.cursors)
    }

    /// What the ring from one rank to another holds: a power of two.
    pub fn ring_bytes(&self) -> usize {
        if self.is_evicting_pair() {
            return PAIR_RING_BYTES;
        }
        let (most, least) = RING_BYTES_MAX_MIN;
        let share = |all: usize| all / self.ring_count().unwrap_or(usize::MAX).max(1);
        let (roomy, narrow) = (
            share(ALL_RINGS_BYTES.0).min(most),
            share(ALL_RINGS_BYTES.1).min(TWO_MESSAGE_RING_BYTES),
        );
        (roomy.max(narrow).max(least) + 1).next_power_of_two() / 2
    }

    /// What the lane of a rank holds, for all others together: a power of two.
    pub(super) fn bulk_ring_bytes(&self) -> usize {
        if self.has_large_bulk_rings() { LARGE_BULK_RING_BYTES } else { BULK_RING_BYTES }
    }

    /// Whether there are two rings only, and what is in them is to leave the near caches before
    /// they are written again.
    fn is_evicting_pair(&self) -> bool {
        self.reuse_policy == ReusePolicy::AfterEviction && self.ranks == 2
    }

    fn has_large_bulk_rings(&self) -> bool {
        self.reuse_policy == ReusePolicy::AfterEviction && self.ranks <= LARGE_BULK_RING_MAX_RANKS
    }

    /// The longest message that goes without being asked for.
    pub(super) fn eager_bytes(&self) -> usize {
        match self.reuse_policy {
            ReusePolicy::AfterEviction if !self.has_large_bulk_rings() => CACHED_EAGER_BYTES,
            _ => EAGER_BYTES,
        }
    }

    /// How much of a slot is used in turn for vectors of so many bytes: a power of two.
    fn cycled_bytes(&self, max_bytes: usize) -> usize {
        let slot = 1 << self.slot_bytes.ilog2();
        match self.reuse_policy {
            ReusePolicy::WhileCached => slot.min(CYCLED_SLOT_BYTES),
            ReusePolicy::AfterEviction if max_bytes <= SHORT_VECTOR_BYTES => {
                slot.min(SHORT_CYCLED_BYTES)
            }
            ReusePolicy::AfterEviction => slot,
        }
    }

    /// Where in a slot the part for a step begins, of which all ranks use no more than `max_bytes`
    /// bytes.
    pub(super) fn slot_part_offset(&self, step: u64, max_bytes: usize) -> usize {
        // All powers of two, so that nothing is divided.
        let stride = max_bytes.next_power_of_two().max(ALIGN);
        let parts = (self.cycled_bytes(max_bytes) >> stride.ilog2()).max(1);
        // As many turns as the smallest parts have places.
        let cycle = usize::try_from(step / DATA_SLOT_COUNT % (1 << 32)).unwrap_or(0);
        (cycle & (parts - 1)) * stride
    }

    /// The longest message that goes into the ring and not into the lane: the ring would hold two
    /// of longer ones, and does not have their bytes in the caches of both cores where it is not
    /// smaller than the lane. The shortest messages do not mind, nor do those that stay in the
    /// nearest caches, as all that are not long do in a small ring of memory that is used again
    /// late.
    pub(super) fn max_ring_message(&self) -> usize {
        let ring = self.ring_bytes();
        match self.reuse_policy {
            _ if ring >= self.bulk_ring_bytes() => ring / 2,
            ReusePolicy::WhileCached => ring / 32,
            // What lies in a long lane has left the near caches before it is written again:
            // messages above 4 KiB gain by that.
            ReusePolicy::AfterEviction => {
                (ring / 4).min(if self.has_large_bulk_rings() { 4 << 10 } else { 8 << 10 })
            }
        }
    }

    /// When the writer of a ring, or of a lane, of so many bytes goes back to its beginning.
    fn rewind_policy(&self, ring: usize) -> RewindPolicy {
        match self.reuse_policy {
            ReusePolicy::WhileCached => RewindPolicy {
                rewind_after: 64 << 10,
                max_short_body: 1 << 10,
                long_body_offset: None,
            },
            ReusePolicy::AfterEviction if ring >= LARGE_BULK_RING_BYTES => RewindPolicy {
                rewind_after: 4 << 10,
                max_short_body: 2 << 10,
                long_body_offset: Some(8 << 10),
            },
            ReusePolicy::AfterEviction => RewindPolicy {
                rewind_after: 4 << 10,
                max_short_body: usize::MAX,
                long_body_offset: None,
            },
        }
    }

    /// One for every rank and every other.
    fn ring_count(&self) -> Option<usize> {
        self.ranks.checked_mul(self.ranks.saturating_sub(1))
    }

    pub(super) fn layout(&self) -> Result<RegionLayout> {
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
            let doorbells = array(PRESENCE_OFFSET, size_of::<RankPresence>(), 1)?;
            let progress = array(doorbells, DOORBELL_STRIDE, 1)?;
            let message_doorbells = array(progress, size_of::<RankProgress>(), 1)?;
            let heartbeats = array(message_doorbells, DOORBELL_STRIDE, 1)?;
            let wake_requests = array(heartbeats, size_of::<HeartbeatState>(), 1)?;
            let cursors = page(array(wake_requests, size_of::<WakeRequest>(), self.ranks)?)?;
            let peers = self.ranks.checked_sub(1)?;
            let ctrl_slots = page(array(cursors, 4 * size_of::<RingCursor>(), peers)?)?;
            let labels = page(array(
                ctrl_slots,
                size_of::<CtrlSlot>(),
                usize::try_from(CTRL_SLOT_COUNT).ok()?,
            )?)?;
            let exposure_tables = page(array(labels, size_of::<LabelTable>(), 1)?)?;
            let data_slots = page(array(exposure_tables, size_of::<ExposureWords>(), 1)?)?;
            let bulk_rings =
                page(array(data_slots, self.slot_bytes, usize::try_from(DATA_SLOT_COUNT).ok()?)?)?;
            let (ring_bytes, bulk_ring_bytes) = (self.ring_bytes(), self.bulk_ring_bytes());
            let rings = page(array(bulk_rings, bulk_ring_bytes, 1)?)?;
            let len = page(array(rings, ring_bytes, peers)?)?;
            Some(RegionLayout {
                doorbells,
                progress,
                message_doorbells,
                heartbeats,
                wake_requests,
                cursors,
                ctrl_slots,
                labels,
                exposure_tables,
                data_slots,
                bulk_rings,
                rings,
                ring_bytes,
                bulk_ring_bytes,
                ring_rewind: self.rewind_policy(ring_bytes),
                bulk_ring_rewind: self.rewind_policy(bulk_ring_bytes),
                max_ring_message: self.max_ring_message(),
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
            let geometry =
                RegionGeometry { ranks, slot_bytes: 4096, reuse_policy: ReusePolicy::WhileCached };
            assert_eq!(geometry.ring_bytes(), bytes << 10, "{ranks}");
        }
    }

    #[test]
    fn large_bulk_ring_takes_messages_over_4_kib() {
        let longest = |ranks| {
            RegionGeometry { ranks, slot_bytes: 4096, reuse_policy: ReusePolicy::AfterEviction }
                .max_ring_message()
                >> 10
        };
        assert_eq!([2, 3, 4, 5, 8, 32].map(longest), [1024, 4, 4, 8, 8, 4]);
    }

    #[test]
    fn eight_ranks_use_8_mib_and_8_kib_initially() {
        let usual = |ranks, reuse| RegionGeometry::default_slot_bytes(ranks, true, reuse) >> 10;
        let ranks = [2, 4, 6, 8, 1000];
        assert_eq!(
            ranks.map(|ranks| usual(ranks, ReusePolicy::WhileCached)),
            [256, 256, 168, 128, 128]
        );
        assert_eq!(
            ranks.map(|ranks| usual(ranks, ReusePolicy::AfterEviction)),
            [512, 256, 168, 128, 128]
        );
        for (reuse, crowded) in [ReusePolicy::WhileCached, ReusePolicy::AfterEviction]
            .map(|it| [(it, false), (it, true)])
            .concat()
        {
            let slot_bytes = RegionGeometry::default_slot_bytes(8, crowded, reuse);
            let geometry = RegionGeometry { ranks: 8, slot_bytes, reuse_policy: reuse };
            let (all, at_once) = (geometry.bytes().unwrap(), geometry.initial_bytes().unwrap());
            assert!(all <= 8 << 20, "{all}");
            assert!(at_once <= 8 << 10, "{at_once}");
        }
    }

    #[test]
    fn bulk_rings_hold_two_eager_messages() {
        for (ranks, late) in [(1, 1024), (2, 1024), (4, 1024), (5, 256), (8, 256), (1000, 256)] {
            for (reuse, lane) in
                [(ReusePolicy::WhileCached, 256), (ReusePolicy::AfterEviction, late)]
            {
                let geometry = RegionGeometry { ranks, slot_bytes: 4096, reuse_policy: reuse };
                assert_eq!(geometry.bulk_ring_bytes(), lane << 10, "{ranks}");
                assert!(geometry.eager_bytes() * 2 <= lane << 10, "{ranks}");
                assert!(geometry.max_ring_message() * 2 <= geometry.ring_bytes(), "{ranks}");
            }
        }
        let pair = |reuse| {
            RegionGeometry { ranks: 2, slot_bytes: 4096, reuse_policy: reuse }.ring_bytes() >> 10
        };
        assert_eq!((pair(ReusePolicy::WhileCached), pair(ReusePolicy::AfterEviction)), (256, 2048));
    }

    #[test]
    fn slot_parts_stay_in_the_slot_and_rotate() {
        let slots = [4096, 12_288, 128 << 10, 196_608, 512 << 10];
        for (slot_bytes, reuse) in slots
            .map(|it| [(it, ReusePolicy::WhileCached), (it, ReusePolicy::AfterEviction)])
            .concat()
        {
            let geometry = RegionGeometry { ranks: 2, slot_bytes, reuse_policy: reuse };
            let rooms = [0, 1, 64, 129, 2048, 4095, 4096, 12_288, 32 << 10, 100_000, 196_608];
            for room in rooms.into_iter().filter(|&room| room <= slot_bytes) {
                let places: Vec<usize> =
                    (0..32_768).map(|step| geometry.slot_part_offset(step, room)).collect();
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
                let several = room <= geometry.cycled_bytes(room) / 2;
                assert_eq!(known.len() > 1, several, "{slot_bytes}, {room}");
            }
        }
    }

    #[test]
    fn an_impossible_geometry_is_an_error() {
        let geometry = RegionGeometry {
            ranks: usize::MAX / 2,
            slot_bytes: 1 << 20,
            reuse_policy: ReusePolicy::WhileCached,
        };
        assert!(geometry.bytes().is_err());
    }
}
