//! The region of a domain (the memory that the ranks of one host share), and safe access to it.
//!
//! The layout ([`super::layout`]) follows from a [`RegionGeometry`], which every member computes
//! from the agreed configuration. No offset, index or length is ever read from the shared bytes.
//! Control structures consist of atomics. Data slots and rings are accessed only as the views
//! [`Src`] and [`Dst`].
//!
//! The pages that an idle group needs are allocated when the region is created. The pages of a data
//! slot or ring are allocated when its owner reserves them. All other pages are allocated when a
//! rank first touches them.
#![allow(unsafe_code, reason = "converts offsets within a mapping to references and views")]

use super::abort::AbortRecord;
use super::ctrl_slot::{CtrlSlot, INLINE_BYTES};
use super::descriptor::Descriptor;
use super::exposure::{ExposureTable, ExposureWords};
use super::heartbeat::HeartbeatState;
use super::labels::LabelTable;
use super::layout::{
    DEPARTURES_PER_WORD, DOORBELL_STRIDE, DepartureWord, PAGE, PRESENCE_OFFSET, RegionLayout,
    WakeRequest,
};
use super::presence::RankPresence;
use super::rank_progress::{RankProgress, RemoteWritePurpose};
use super::ring::memory::{ByteRing, RingCursor, RingRoute};
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::base::sync::{AtomicBool, Ordering};
use crate::wait::doorbell::Doorbell;
use std::sync::atomic::AtomicPtr;

pub use super::ctrl_slot::CTRL_SLOT_COUNT;
pub use super::layout::{DATA_SLOT_COUNT, RegionGeometry};

/// The number of bytes by which the reserved memory of a ring grows.
const RING_RESERVE_STEP: usize = 16 << 10;

/// Memory that stays mapped at one address for as long as the value lives.
///
/// # Safety
/// `base` must point to at least `bytes` bytes that are aligned to 4096, readable and writable, and
/// that were zero when the domain began. They must stay mapped in this way until the value is
/// dropped.
pub unsafe trait RegionBacking: Send + Sync {
    /// Returns the address of the first byte.
    fn base(&self) -> *mut u8;
    /// Returns the number of bytes.
    fn bytes(&self) -> usize;
    /// Ensures that `len` bytes from `offset` on have memory before a rank uses them. Both numbers
    /// are multiples of the page size.
    ///
    /// # Errors
    /// `OutOfMemory`, `System`.
    fn reserve(&self, _offset: usize, _len: usize) -> Result<()> {
        Ok(())
    }
}

crate::base::trait_object_debug::impl_debug_of_objects!(RegionBacking);

/// The region of one domain, as one member maps it.
#[derive(Debug)]
pub struct Region {
    geometry: RegionGeometry,
    layout: RegionLayout,
    backing: Box<dyn RegionBacking>,
    /// The base address of the backing, cached here because asking the backing is a virtual call.
    base: AtomicPtr<u8>,
    /// For each data slot of each rank, whether this member has reserved its memory.
    reserved_slots: Box<[AtomicBool]>,
}

impl Region {
    /// Creates the region in this memory.
    ///
    /// # Errors
    /// `InvalidArgument` if the geometry is impossible, `Internal` if the memory is too small.
    pub fn new(geometry: RegionGeometry, memory: Box<dyn RegionBacking>) -> Result<Self> {
        let layout = geometry.layout()?;
        if memory.bytes() < layout.len || !geometry.slot_bytes.is_multiple_of(PAGE) {
            return Err(Error::internal(format!("{memory:?} does not fit {geometry:?}")));
        }
        let slots = geometry.ranks * usize::try_from(DATA_SLOT_COUNT).unwrap_or(0);
        let reserved = (0..slots).map(|_| AtomicBool::new(false)).collect();
        let base = AtomicPtr::new(memory.base());
        Ok(Self { geometry, layout, backing: memory, base, reserved_slots: reserved })
    }

    /// Returns the geometry.
    pub fn geometry(&self) -> RegionGeometry {
        self.geometry
    }

    /// Returns the address of the region in this process.
    pub fn address(&self) -> u64 {
        self.base().expose_provenance() as u64
    }

    /// Returns the offset, from [`Region::address`], of a rank's remote-write word. The word is not
    /// 0 while the rank writes to memory of other ranks for this purpose.
    pub fn remote_write_offset(&self, rank: Rank, purpose: RemoteWritePurpose) -> u64 {
        (self.progress(rank).remote_write_address(purpose) - self.base().addr()) as u64
    }

    /// Returns the abort record.
    pub fn abort_record(&self) -> &AbortRecord {
        self.struct_at(0)
    }

    /// Returns a rank's doorbell for collectives.
    pub fn doorbell(&self, rank: Rank) -> &Doorbell {
        self.struct_at(self.layout.doorbells + self.checked_rank(rank) * DOORBELL_STRIDE)
    }

    /// Returns the doorbell on which the progress owner of a rank's messages sleeps.
    pub fn message_doorbell(&self, rank: Rank) -> &Doorbell {
        self.struct_at(self.layout.message_doorbells + self.checked_rank(rank) * DOORBELL_STRIDE)
    }

    /// Returns a rank's exposure table (the states of the buffers that other ranks may read) and
    /// its process cookie.
    pub fn exposure_table(&self, rank: Rank) -> ExposureTable<'_> {
        ExposureTable {
            cookie: &self.presence(rank).cookie,
            words: self.struct_of(self.layout.exposure_tables, rank),
        }
    }

    /// Returns the length of the longest message whose body goes into a ring instead of a bulk
    /// ring.
    pub fn max_ring_message(&self) -> usize {
        self.layout.max_ring_message
    }

    /// Returns the size of the ring from one rank to another.
    pub fn ring_bytes(&self) -> usize {
        self.layout.ring_bytes
    }

    /// Returns the ring from one rank to another.
    ///
    /// # Panics
    /// If the two ranks are the same.
    pub fn ring(&self, from: Rank, to: Rank) -> ByteRing<'_> {
        self.ring_on(RingRoute { from, to, is_bulk: false })
    }

    /// Returns the ring of a route. Rank `from` has only one bulk ring. The bulk ring is valid as a
    /// ring to rank `to` only while `from` uses it for no other rank.
    ///
    /// # Panics
    /// As [`Region::ring`].
    pub fn ring_on(&self, route: RingRoute) -> ByteRing<'_> {
        let RingRoute { from, to, is_bulk } = route;
        assert!(
            self.checked_rank(from) != self.checked_rank(to),
            "no ring from rank {from} to itself"
        );
        let layout = &self.layout;
        let pair = from * (self.geometry.ranks - 1) + if to > from { to - 1 } else { to };
        let (cursor, start, len, rewind) = if is_bulk {
            let len = layout.bulk_ring_bytes;
            (4 * pair + 2, layout.bulk_rings + from * len, len, &layout.bulk_ring_rewind)
        } else {
            let len = layout.ring_bytes;
            (4 * pair, layout.rings + pair * len, len, &layout.ring_rewind)
        };
        let writer_cursor = layout.cursors + cursor * size_of::<RingCursor>();
        let start = self.base().wrapping_add(start);
        // SAFETY: the layout places the whole ring inside the backing, which outlives `self`. No
        // reference to its bytes is ever made.
        let bytes = unsafe { Dst::new(start, len) };
        ByteRing {
            writer_cursor: self.struct_at(writer_cursor),
            reader_cursor: self.struct_at(writer_cursor + size_of::<RingCursor>()),
            bytes,
            rewind,
        }
    }

    /// Ensures that the first `len` bytes of a ring or bulk ring have memory. `reserved_before` is
    /// the result of the previous call for this ring, or 0. Returns the number of bytes that are
    /// now reserved.
    ///
    /// # Errors
    /// `OutOfMemory`, `System`.
    pub fn reserve_ring(
        &self,
        ring: &ByteRing<'_>,
        reserved_before: usize,
        len: usize,
    ) -> Result<usize> {
        let end = len.next_multiple_of(RING_RESERVE_STEP).min(ring.bytes.len());
        if end > reserved_before {
            let start = ring.bytes.as_mut_ptr().addr() - self.base().addr();
            self.backing.reserve(start + reserved_before, end - reserved_before)?;
        }
        Ok(end.max(reserved_before))
    }

    /// Returns the progress of a rank.
    pub fn progress(&self, rank: Rank) -> &RankProgress {
        self.struct_of(self.layout.progress, rank)
    }

    /// Returns the labels of a rank's last operations.
    pub fn labels(&self, rank: Rank) -> &LabelTable {
        self.struct_of(self.layout.labels, rank)
    }

    /// Returns the descriptor of a rank's operation, with the text of its label if the rank still
    /// stores that text.
    pub fn with_label(&self, rank: Rank, descriptor: Descriptor) -> Descriptor {
        if descriptor.label.is_none() {
            return descriptor;
        }
        descriptor.with_label_text(self.labels(rank).get(descriptor.sequence))
    }

    /// Describes the last known operation of a rank, for error messages.
    pub fn describe_progress(&self, rank: Rank) -> String {
        self.progress(rank).describe(|entered| self.with_label(rank, entered))
    }

    /// Returns the heartbeat counter and activity text of a rank.
    pub fn heartbeat(&self, rank: Rank) -> &HeartbeatState {
        self.struct_of(self.layout.heartbeats, rank)
    }

    /// Returns the control slot that a rank uses for a step.
    pub fn ctrl_slot(&self, rank: Rank, step: u64) -> &CtrlSlot {
        let index = self.per_rank_index(rank, step, CTRL_SLOT_COUNT);
        self.struct_at(self.layout.ctrl_slots + index * size_of::<CtrlSlot>())
    }

    /// Returns the first `len` bytes of the inline payload in the control slot that a rank uses for
    /// a step.
    ///
    /// # Panics
    /// If `len` is greater than [`INLINE_BYTES`].
    pub fn inline_payload(&self, rank: Rank, step: u64, len: usize) -> Src<'_> {
        assert!(len <= INLINE_BYTES, "an inline payload has at most {INLINE_BYTES} bytes");
        let start = self.ctrl_slot(rank, step).payload_address();
        // SAFETY: the bytes are inside the control slot, and so inside the backing, which outlives
        // `self`. No reference to the bytes is made.
        unsafe { Src::new(start, len) }
    }

    /// Returns the data slot that a rank uses for a step, as a view that its owner writes.
    ///
    /// # Errors
    /// `OutOfMemory` or `System` if the slot has no memory yet and none is available.
    pub fn own_data_slot(&self, rank: Rank, step: u64) -> Result<Dst<'_>> {
        let index = self.per_rank_index(rank, step, DATA_SLOT_COUNT);
        if !self.reserved_slots[index].load(Ordering::Relaxed) {
            let bytes = self.geometry.slot_bytes;
            self.backing.reserve(self.layout.data_slots + index * bytes, bytes)?;
            self.reserved_slots[index].store(true, Ordering::Relaxed);
        }
        Ok(self.data_slot_at(index))
    }

    /// Returns all data slots of a rank, which are contiguous, as one view that their owner
    /// writes.
    ///
    /// # Errors
    /// As [`Region::own_data_slot`].
    pub fn own_data_slots(&self, rank: Rank) -> Result<Dst<'_>> {
        for step in 0..DATA_SLOT_COUNT {
            self.own_data_slot(rank, step)?;
        }
        let len = self.geometry.slot_bytes * usize::try_from(DATA_SLOT_COUNT).unwrap_or(0);
        Ok(self.data_slots_at(self.per_rank_index(rank, 0, DATA_SLOT_COUNT), len))
    }

    /// Returns the data slot that a rank uses for a step, as a view for its readers.
    pub fn data_slot(&self, rank: Rank, step: u64) -> Src<'_> {
        self.data_slot_at(self.per_rank_index(rank, step, DATA_SLOT_COUNT)).as_src()
    }

    /// Returns a part of `max_bytes` bytes of the data slot that a rank uses for a step, as a view
    /// that its owner writes. Successive uses of a slot get different parts, if the slot has room
    /// for several parts.
    ///
    /// # Errors
    /// As [`Region::own_data_slot`].
    ///
    /// # Panics
    /// If a slot is smaller than `max_bytes`.
    pub fn own_slot_part(&self, rank: Rank, step: u64, max_bytes: usize) -> Result<Dst<'_>> {
        Ok(self
            .own_data_slot(rank, step)?
            .slice(self.geometry.slot_part_offset(step, max_bytes), max_bytes))
    }

    /// Returns the part that [`Region::own_slot_part`] returns to the owner, as a view for its
    /// readers. All ranks must pass the same `max_bytes`.
    ///
    /// # Panics
    /// As [`Region::own_slot_part`].
    pub fn slot_part(&self, rank: Rank, step: u64, max_bytes: usize) -> Src<'_> {
        self.data_slot(rank, step).slice(self.geometry.slot_part_offset(step, max_bytes), max_bytes)
    }

    /// Records a wake request from rank `from` to rank `to`. Returns false if `to` has not answered
    /// an earlier request. Then `from` need not send another request.
    pub fn begin_wake_request(&self, from: Rank, to: Rank) -> bool {
        self.wake_request(from, to).0.swap(1, Ordering::AcqRel) == 0
    }

    /// Answers a wake request; called by rank `to`. After this call, `to` can read all stores that
    /// `from` made before [`Region::begin_wake_request`].
    pub fn finish_wake_request(&self, from: Rank, to: Rank) {
        self.wake_request(from, to).0.swap(0, Ordering::AcqRel);
    }

    fn wake_request(&self, from: Rank, to: Rank) -> &WakeRequest {
        let index = self.checked_rank(from) * self.geometry.ranks + self.checked_rank(to);
        self.struct_at(self.layout.wake_requests + index * size_of::<WakeRequest>())
    }

    /// Records that a rank of the group on another host has left. Returns false if this was known.
    pub fn mark_remote_departure(&self, rank: Rank) -> bool {
        let bit = 1 << (rank % DEPARTURES_PER_WORD);
        let word = self.departure_word(rank / DEPARTURES_PER_WORD);
        word.0.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// Returns the ranks of the group on other hosts that have left, as recorded.
    pub fn remote_departures(&self) -> impl Iterator<Item = Rank> + '_ {
        let words = 0..self.geometry.group_ranks.div_ceil(DEPARTURES_PER_WORD);
        words.flat_map(|number| {
            let word = self.departure_word(number).0.load(Ordering::Acquire);
            let bits = (0..DEPARTURES_PER_WORD).filter(move |bit| word >> bit & 1 != 0);
            bits.map(move |bit| number * DEPARTURES_PER_WORD + bit)
        })
    }

    fn departure_word(&self, number: usize) -> &DepartureWord {
        let words = self.geometry.group_ranks.div_ceil(DEPARTURES_PER_WORD);
        assert!(number < words, "word {number} of {words} words of departures");
        self.struct_at(self.layout.departures + number * size_of::<DepartureWord>())
    }

    /// Returns the presence record of a rank.
    pub fn presence(&self, rank: Rank) -> &RankPresence {
        self.struct_of(PRESENCE_OFFSET, rank)
    }

    fn checked_rank(&self, rank: Rank) -> usize {
        assert!(
            rank < self.geometry.ranks,
            "rank {rank} of {} ranks of a region",
            self.geometry.ranks
        );
        rank
    }

    fn per_rank_index(&self, rank: Rank, step: u64, per_rank: u64) -> usize {
        // `per_rank` is a small constant, and `step % per_rank` is smaller, so the conversions
        // cannot fail.
        let within = usize::try_from(step % per_rank).unwrap_or(0);
        self.checked_rank(rank) * usize::try_from(per_rank).unwrap_or(0) + within
    }

    fn data_slot_at(&self, index: usize) -> Dst<'_> {
        self.data_slots_at(index, self.geometry.slot_bytes)
    }

    /// Returns `len` bytes of data slots, beginning with slot number `index` of the region.
    fn data_slots_at(&self, index: usize, len: usize) -> Dst<'_> {
        let offset = self.layout.data_slots + index * self.geometry.slot_bytes;
        debug_assert!(offset + len <= self.layout.bulk_rings);
        let start = self.base().wrapping_add(offset);
        // SAFETY: the layout places all data slots contiguously inside the backing, which outlives
        // `self`. No reference to slots is ever made.
        unsafe { Dst::new(start, len) }
    }

    fn base(&self) -> *mut u8 {
        self.base.load(Ordering::Relaxed)
    }

    /// Returns a rank's element of the array that begins at this offset of the layout.
    fn struct_of<T: SharedAtomics>(&self, array: usize, rank: Rank) -> &T {
        self.struct_at(array + self.checked_rank(rank) * size_of::<T>())
    }

    /// Returns the control structure at an offset of the layout.
    fn struct_at<T: SharedAtomics>(&self, offset: usize) -> &T {
        debug_assert!(offset + size_of::<T>() <= self.layout.len);
        debug_assert_eq!(offset % align_of::<T>(), 0);
        let address = self.base().wrapping_add(offset).cast::<T>();
        // SAFETY: the layout places the structure, aligned, inside the backing, which outlives
        // `self`. The structure consists of atomics only, so any bytes are a valid value, and other
        // processes may write.
        unsafe { &*address }
    }
}

/// Structures that consist of atomic integers only, and so may be in shared memory.
trait SharedAtomics {}
impl SharedAtomics for AbortRecord {}
impl SharedAtomics for RankPresence {}
impl SharedAtomics for WakeRequest {}
impl SharedAtomics for DepartureWord {}
impl SharedAtomics for Doorbell {}
impl SharedAtomics for RankProgress {}
impl SharedAtomics for CtrlSlot {}
impl SharedAtomics for ExposureWords {}
impl SharedAtomics for RingCursor {}
impl SharedAtomics for HeartbeatState {}
impl SharedAtomics for LabelTable {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::ReusePolicy;
    use crate::transport::inproc::HeapRegion;

    #[test]
    fn departures_from_other_hosts_are_bits() {
        let geometry = RegionGeometry {
            group_ranks: 200,
            ..RegionGeometry::within_host(2, 4096, ReusePolicy::WhileCached)
        };
        let heap = HeapRegion::zeroed(geometry.bytes().unwrap()).unwrap();
        let region = Region::new(geometry, Box::new(heap)).unwrap();
        assert_eq!(region.remote_departures().count(), 0);
        for rank in [199, 0, 64, 63] {
            assert!(region.mark_remote_departure(rank));
            assert!(!region.mark_remote_departure(rank));
        }
        assert_eq!(region.remote_departures().collect::<Vec<_>>(), [0, 63, 64, 199]);
        assert_eq!(region.wake_request(1, 1).0.load(Ordering::Acquire), 0);
    }

    #[test]
    fn region_structures_do_not_overlap() {
        let all = [1, 2, 3, 8, 64]
            .map(|ranks| [(ranks, ReusePolicy::WhileCached), (ranks, ReusePolicy::AfterEviction)]);
        for (ranks, reuse) in all.concat() {
            let geometry = RegionGeometry::within_host(ranks, 8192, reuse);
            let heap = HeapRegion::zeroed(geometry.bytes().unwrap()).unwrap();
            let region = Region::new(geometry, Box::new(heap)).unwrap();
            let mut spans = vec![(0, size_of::<AbortRecord>())];
            let base = region.base().addr();
            let mut add = |address: usize, len| spans.push((address - base, len));
            for rank in 0..ranks {
                add(std::ptr::from_ref(region.doorbell(rank)).addr(), size_of::<Doorbell>());
                add(std::ptr::from_ref(region.progress(rank)).addr(), size_of::<RankProgress>());
                add(std::ptr::from_ref(region.presence(rank)).addr(), size_of::<RankPresence>());
                add(
                    std::ptr::from_ref(region.message_doorbell(rank)).addr(),
                    size_of::<Doorbell>(),
                );
                add(
                    std::ptr::from_ref(region.exposure_table(rank).words).addr(),
                    size_of::<ExposureWords>(),
                );
                add(std::ptr::from_ref(region.heartbeat(rank)).addr(), size_of::<HeartbeatState>());
                add(std::ptr::from_ref(region.labels(rank)).addr(), size_of::<LabelTable>());
                for peer in (0..ranks).filter(|&peer| peer != rank) {
                    let ring = region.ring(rank, peer);
                    add(std::ptr::from_ref(ring.writer_cursor).addr(), size_of::<RingCursor>());
                    add(std::ptr::from_ref(ring.reader_cursor).addr(), size_of::<RingCursor>());
                    add(ring.bytes.as_mut_ptr().addr(), ring.bytes.len());
                    let bulk = RingRoute { from: rank, to: peer, is_bulk: true };
                    let bulk_ring = region.ring_on(bulk);
                    add(
                        std::ptr::from_ref(bulk_ring.writer_cursor).addr(),
                        size_of::<RingCursor>(),
                    );
                    add(
                        std::ptr::from_ref(bulk_ring.reader_cursor).addr(),
                        size_of::<RingCursor>(),
                    );
                    // A rank has one bulk ring for all its peers.
                    if peer == usize::from(rank == 0) {
                        add(bulk_ring.bytes.as_mut_ptr().addr(), bulk_ring.bytes.len());
                    }
                    let wake_request = std::ptr::from_ref(region.wake_request(rank, peer)).addr();
                    add(wake_request, size_of::<WakeRequest>());
                }
                for step in 0..CTRL_SLOT_COUNT {
                    add(
                        std::ptr::from_ref(region.ctrl_slot(rank, step)).addr(),
                        size_of::<CtrlSlot>(),
                    );
                }
                for step in 0..DATA_SLOT_COUNT {
                    add(region.data_slot(rank, step).as_ptr().addr(), 8192);
                }
            }
            spans.sort_unstable();
            assert!(spans.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{ranks}");
            let (last, len) = spans[spans.len() - 1];
            assert!(last + len <= geometry.bytes().unwrap());
        }
    }
}
