//! The layout of a domain's region, which is the memory that its ranks share. The layout is a pure
//! function of the number of ranks, the size of a data slot, and the reuse policy:
//!
//! ```text
//! abort record
//! per rank           presence record
//! per rank           doorbell
//! per rank           progress
//! per rank           doorbell for messages
//! per rank           heartbeat state
//! per pair of ranks  wake request
//! per 64 ranks of the group  departures from other hosts
//! ---- the memory of all arrays above is allocated when the region is created ----
//! per pair of ranks  cursors of a ring and of a bulk ring
//! per rank           control slots
//! per rank           labels
//! per rank           exposure table
//! per rank           data slots
//! per rank           bulk ring
//! per pair of ranks  ring
//! ```
//!
//! The arrays that an idle group needs are at the beginning, in at most 8 KiB for 8 ranks, so that
//! a thousand idle groups cost little memory.
//!
//! This module does not depend on the memory itself.

use super::abort::AbortRecord;
use super::ctrl_slot::{CTRL_SLOT_COUNT, CtrlSlot};
use super::exposure::ExposureWords;
use super::heartbeat::HeartbeatState;
use super::labels::LabelTable;
use super::presence::RankPresence;
use super::rank_progress::RankProgress;
use super::reuse_policy::ReusePolicy;
use super::ring::memory::{RewindPolicy, RingCursor};
use crate::base::error::{Error, Result};
use crate::base::ids::WorldSize;
use crate::base::sync::AtomicU64;

/// The number of data slots per rank. Step n uses slot n modulo 4, so at most 4 steps with a
/// payload in data slots are in flight.
pub const DATA_SLOT_COUNT: u64 = 4;

/// The parameters from which the layout of a region follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionGeometry {
    /// The number of ranks.
    pub ranks: WorldSize,
    /// The number of ranks of the whole group, on all hosts.
    pub group_ranks: WorldSize,
    /// The size of one data slot in bytes, a multiple of 4096.
    pub slot_bytes: usize,
    /// The reuse policy of data slots and rings.
    pub reuse_policy: ReusePolicy,
}

/// The maximum and the minimum size of the ring from one rank to another. (A ring is the byte queue
/// for the messages of one sender to one receiver.)
const RING_BYTES_MAX_MIN: (usize, usize) = (256 << 10, 4 << 10);
/// The target size of all rings together. If the first value leaves each ring less than
/// [`TWO_MESSAGE_RING_BYTES`], the second value applies, but no ring becomes larger than that. The
/// size of one ring is rounded down to a power of two:
///
/// ```text
/// 4 ranks, 12 rings:     3 MiB / 12 = 256 KiB
/// 8 ranks, 56 rings:     3 MiB / 56 = 54 KiB -> 32 KiB
/// 16 ranks, 240 rings:   3 MiB / 240 = 12 KiB; 16 MiB / 240 = 68 KiB -> 32 KiB
/// 32 ranks, 992 rings:   16 MiB / 992 = 16.5 KiB -> 16 KiB
/// ```
const ALL_RINGS_BYTES: (usize, usize) = (3 << 20, 16 << 20);
/// The size of a ring that holds two eager messages of 16 KiB.
const TWO_MESSAGE_RING_BYTES: usize = 32 << 10;

/// The usual size of a rank's bulk ring. A rank has one bulk ring for its long messages to all
/// peers. A bulk ring is as large as the largest ring, so that a line of the ring leaves the
/// reader's cache before the writer writes the line again. A core gets a line more slowly while
/// another core's cache holds it than after the line has left that cache.
const BULK_RING_BYTES: usize = 256 << 10;
/// The size of a rank's bulk ring under [`ReusePolicy::AfterEviction`], if the domain has at most
/// [`LARGE_BULK_RING_MAX_RANKS`] ranks.
const LARGE_BULK_RING_BYTES: usize = 1 << 20;
/// The maximum number of ranks with large bulk rings.
const LARGE_BULK_RING_MAX_RANKS: WorldSize = 4;
/// The size of each of the two rings of a domain with two ranks, under
/// [`ReusePolicy::AfterEviction`].
const PAIR_RING_BYTES: usize = 2 << 20;

/// The length of the longest eager message. A bulk ring holds at least two of them.
const EAGER_BYTES: usize = 128 << 10;
/// The length of the longest eager message if a bulk ring is so small that its bytes have not left
/// the near caches (L1 and L2) before they are written again.
const CACHED_EAGER_BYTES: usize = 32 << 10;

/// The default maximum and minimum size of a data slot if the host is oversubscribed (it has more
/// ranks than cores), so that each wait costs a context switch.
const SLOT_BYTES_MAX_MIN: (usize, usize) = (256 << 10, 128 << 10);
/// The target size of all data slots of a domain together, within the limits of one slot.
const ALL_SLOTS_BYTES: usize = 4 << 20;
/// The default size of a data slot under [`ReusePolicy::WhileCached`], if each rank has a core of
/// its own. All data slots of a rank then stay in the cache of its core.
const DEDICATED_CORE_SLOT_BYTES: usize = 128 << 10;
/// The default maximum size of a data slot under [`ReusePolicy::AfterEviction`]. The data slots of
/// a rank are then so large that their lines leave the cache of its core before reuse.
const EVICTING_SLOT_BYTES_MAX: usize = 512 << 10;

/// The number of bytes of a data slot through which short vectors rotate under
/// [`ReusePolicy::WhileCached`]: successive uses of the slot write the vector at different offsets
/// below this limit.
///
/// A core reads and overwrites lines in the L1 cache of another core more slowly than lines in the
/// L2 cache of that core. On a fourth-generation Xeon with 48 KiB of L1, a line takes 6 ns from L1
/// and 3 ns from L2. With this limit, the vectors in all slots of a rank rotate through several
/// times the size of L1.
const CYCLED_SLOT_BYTES: usize = 64 << 10;
/// The length of the longest vector that rotates through only [`SHORT_CYCLED_BYTES`] bytes of a
/// slot, under [`ReusePolicy::AfterEviction`].
const SHORT_VECTOR_BYTES: usize = 2 << 10;
/// The number of bytes of each slot through which these short vectors rotate. The lines of a short
/// vector are transferred fastest if they are at the offset of their last use. On a
/// fourth-generation EPYC, 1 KiB takes 0.35 to 0.45 us there, and 0.5 us at other offsets.
const SHORT_CYCLED_BYTES: usize = 1 << 10;

/// Whether one rank has sent a wake request to another rank that has not answered it yet. The word
/// is 1 while the request is pending.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(super) struct WakeRequest(pub(super) AtomicU64);

/// The departures of 64 ranks of the group that are on other hosts, one bit each.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(super) struct DepartureWord(pub(super) AtomicU64);

/// The number of ranks for which a [`DepartureWord`] has bits.
pub(super) const DEPARTURES_PER_WORD: usize = 64;

/// The byte offset of each array in a region, and the sizes that follow from the geometry.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegionLayout {
    pub(super) doorbells: usize,
    pub(super) progress: usize,
    pub(super) message_doorbells: usize,
    pub(super) heartbeats: usize,
    pub(super) wake_requests: usize,
    pub(super) departures: usize,
    /// The offset of the ring cursors. All arrays before this offset have their memory from the
    /// creation of the region.
    pub(super) cursors: usize,
    pub(super) ctrl_slots: usize,
    pub(super) labels: usize,
    pub(super) exposure_tables: usize,
    pub(super) data_slots: usize,
    pub(super) bulk_rings: usize,
    pub(super) rings: usize,
    /// The size of one ring, computed once.
    pub(super) ring_bytes: usize,
    /// The size of one bulk ring, computed once.
    pub(super) bulk_ring_bytes: usize,
    pub(super) ring_rewind: RewindPolicy,
    pub(super) bulk_ring_rewind: RewindPolicy,
    /// The longest message whose body goes into a ring.
    pub(super) max_ring_message: usize,
    pub(super) len: usize,
}

/// The distance between two doorbells: two cache lines, so that a prefetcher that fetches line
/// pairs does not couple two doorbells.
pub(super) const DOORBELL_STRIDE: usize = 128;
pub(super) const PAGE: usize = 4096;
/// The alignment of the arrays in a region: two cache lines.
pub(super) const ALIGN: usize = 128;
/// The offset of the presence records, which follow the abort record. The offset does not depend on
/// the number of ranks.
pub(super) const PRESENCE_OFFSET: usize = size_of::<AbortRecord>().next_multiple_of(ALIGN);

impl RegionGeometry {
    /// Returns the geometry for a group on one host.
    pub const fn within_host(
        ranks: WorldSize,
        slot_bytes: usize,
        reuse_policy: ReusePolicy,
    ) -> Self {
        Self { ranks, group_ranks: ranks, slot_bytes, reuse_policy }
    }

    /// Returns the default size of a data slot for this number of ranks. For 8 ranks, the whole
    /// region has at most 8 MiB.
    pub fn default_slot_bytes(ranks: WorldSize, oversubscribed: bool, reuse: ReusePolicy) -> usize {
        let (most, least) = match (reuse, oversubscribed) {
            (ReusePolicy::WhileCached, false) => return DEDICATED_CORE_SLOT_BYTES,
            (ReusePolicy::WhileCached, true) => SLOT_BYTES_MAX_MIN,
            (ReusePolicy::AfterEviction, _) => (EVICTING_SLOT_BYTES_MAX, SLOT_BYTES_MAX_MIN.1),
        };
        let slots = ranks.saturating_mul(usize::try_from(DATA_SLOT_COUNT).unwrap_or(1)).max(1);
        (ALL_SLOTS_BYTES / slots / PAGE * PAGE).clamp(least, most)
    }

    /// Returns the size in bytes of a region with this geometry.
    ///
    /// # Errors
    /// `InvalidArgument` if the size exceeds the address range.
    pub fn bytes(&self) -> Result<usize> {
        Ok(self.layout()?.len)
    }

    /// Returns the number of bytes at the beginning of the region that an idle group uses.
    ///
    /// # Errors
    /// As [`RegionGeometry::bytes`].
    pub fn initial_bytes(&self) -> Result<usize> {
        Ok(self.layout()?.cursors)
    }

    /// Returns the size of the ring from one rank to another, a power of two.
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

    /// Returns the size of the one bulk ring of a rank, a power of two.
    pub(super) fn bulk_ring_bytes(&self) -> usize {
        if self.has_large_bulk_rings() { LARGE_BULK_RING_BYTES } else { BULK_RING_BYTES }
    }

    /// Returns whether the domain has only two ranks, and the bytes of their rings must leave the
    /// near caches before reuse.
    fn is_evicting_pair(&self) -> bool {
        self.reuse_policy == ReusePolicy::AfterEviction && self.ranks == 2
    }

    fn has_large_bulk_rings(&self) -> bool {
        self.reuse_policy == ReusePolicy::AfterEviction && self.ranks <= LARGE_BULK_RING_MAX_RANKS
    }

    /// Returns the length of the longest eager message.
    pub(super) fn eager_bytes(&self) -> usize {
        match self.reuse_policy {
            ReusePolicy::AfterEviction if !self.has_large_bulk_rings() => CACHED_EAGER_BYTES,
            _ => EAGER_BYTES,
        }
    }

    /// Returns the number of bytes of a data slot through which vectors of this length rotate, a
    /// power of two.
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

    /// Returns the offset of a step's part in its data slot. All ranks use at most `max_bytes`
    /// bytes of the part.
    ///
    /// The slot is divided into parts of equal size, and successive uses of the slot take
    /// successive parts. For example, vectors of 10,000 bytes have parts of 16 KiB. If they rotate
    /// through 64 KiB, the steps 0, 4, 8, 12 and 16, which all use data slot 0, have the offsets 0,
    /// 16, 32, 48 and 0 KiB.
    pub(super) fn slot_part_offset(&self, step: u64, max_bytes: usize) -> usize {
        // All values are powers of two, so that no division is needed.
        let stride = max_bytes.next_power_of_two().max(ALIGN);
        let parts = (self.cycled_bytes(max_bytes) >> stride.ilog2()).max(1);
        // The number of parts is a power of two and at most 2^32, so this modulus does not change
        // the result.
        let cycle = usize::try_from(step / DATA_SLOT_COUNT % (1 << 32)).unwrap_or(0);
        (cycle & (parts - 1)) * stride
    }

    /// Returns the length of the longest message whose body goes into the ring of its sender and
    /// receiver. Longer bodies go into the sender's bulk ring.
    ///
    /// - If the ring is at least as large as the bulk ring, the limit is half the ring, so that the
    ///   ring holds two messages.
    /// - A smaller ring is slow for long messages: when the sender writes over the bytes of a long
    ///   message, these bytes are still in the caches of both cores. Therefore long messages go
    ///   into the bulk ring. The smaller ring does not slow down the shortest messages. Under
    ///   [`ReusePolicy::AfterEviction`], it does not slow down any message up to the limit, because
    ///   such messages stay in the nearest caches.
    pub(super) fn max_ring_message(&self) -> usize {
        let ring = self.ring_bytes();
        match self.reuse_policy {
            _ if ring >= self.bulk_ring_bytes() => ring / 2,
            ReusePolicy::WhileCached => ring / 32,
            // The bytes of a large bulk ring have left the near caches before they are written
            // again. Messages above 4 KiB are therefore faster in a large bulk ring than in a
            // ring.
            ReusePolicy::AfterEviction => {
                (ring / 4).min(if self.has_large_bulk_rings() { 4 << 10 } else { 8 << 10 })
            }
        }
    }

    /// Returns the rewind policy of a ring or bulk ring of this size: when the writer goes back to
    /// the beginning of the ring.
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

    /// Returns the number of rings: one for each ordered pair of ranks.
    fn ring_count(&self) -> Option<usize> {
        self.ranks.checked_mul(self.ranks.saturating_sub(1))
    }

    pub(super) fn layout(&self) -> Result<RegionLayout> {
        let too_large = || {
            let Self { ranks, slot_bytes, .. } = self;
            Error::invalid(format!(
                "the region for {ranks} ranks with slots of {slot_bytes} bytes is too large"
            ))
        };
        // Returns the end of an array that begins at `start` and has `each` elements of `stride`
        // bytes per rank.
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
            let departures = array(wake_requests, size_of::<WakeRequest>(), self.ranks)?;
            let departure_words = self.group_ranks.div_ceil(DEPARTURES_PER_WORD);
            let departure_bytes = departure_words.checked_mul(size_of::<DepartureWord>())?;
            let cursors = page(departures.checked_add(departure_bytes)?)?;
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
                departures,
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
            let geometry = RegionGeometry::within_host(ranks, 4096, ReusePolicy::WhileCached);
            assert_eq!(geometry.ring_bytes(), bytes << 10, "{ranks}");
        }
    }

    #[test]
    fn large_bulk_ring_takes_messages_over_4_kib() {
        let longest = |ranks| {
            RegionGeometry::within_host(ranks, 4096, ReusePolicy::AfterEviction).max_ring_message()
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
        for (reuse, is_oversubscribed) in [ReusePolicy::WhileCached, ReusePolicy::AfterEviction]
            .map(|it| [(it, false), (it, true)])
            .concat()
        {
            let slot_bytes = RegionGeometry::default_slot_bytes(8, is_oversubscribed, reuse);
            let geometry = RegionGeometry::within_host(8, slot_bytes, reuse);
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
                let geometry = RegionGeometry::within_host(ranks, 4096, reuse);
                assert_eq!(geometry.bulk_ring_bytes(), lane << 10, "{ranks}");
                assert!(geometry.eager_bytes() * 2 <= lane << 10, "{ranks}");
                assert!(geometry.max_ring_message() * 2 <= geometry.ring_bytes(), "{ranks}");
            }
        }
        let pair = |reuse| RegionGeometry::within_host(2, 4096, reuse).ring_bytes() >> 10;
        assert_eq!((pair(ReusePolicy::WhileCached), pair(ReusePolicy::AfterEviction)), (256, 2048));
    }

    #[test]
    fn slot_parts_stay_in_the_slot_and_rotate() {
        let slots = [4096, 12_288, 128 << 10, 196_608, 512 << 10];
        for (slot_bytes, reuse) in slots
            .map(|it| [(it, ReusePolicy::WhileCached), (it, ReusePolicy::AfterEviction)])
            .concat()
        {
            let geometry = RegionGeometry::within_host(2, slot_bytes, reuse);
            let rooms = [0, 1, 64, 129, 2048, 4095, 4096, 12_288, 32 << 10, 100_000, 196_608];
            for room in rooms.into_iter().filter(|&room| room <= slot_bytes) {
                let places: Vec<usize> =
                    (0..32_768).map(|step| geometry.slot_part_offset(step, room)).collect();
                assert!(places.iter().all(|place| place + room <= slot_bytes));
                assert!(places.iter().all(|place| place.is_multiple_of(ALIGN)));
                let mut known: Vec<usize> = places.iter().step_by(4).copied().collect();
                known.sort_unstable();
                known.dedup();
                // Two parts are adjacent: no further part fits into the gap between them.
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
        let geometry =
            RegionGeometry::within_host(usize::MAX / 2, 1 << 20, ReusePolicy::WhileCached);
        assert!(geometry.bytes().is_err());
    }
}
