//! The memory of a domain, and safe access to it.
//!
//! What a group that does nothing needs has its pages at once. All else has them once it is used:
//! slots and rings when their owner asks for them, the rest when it is touched.
//!
//! The layout ([`super::layout`]) follows from a [`Geometry`] that every member computes from the
//! agreed configuration; no offset, index or length is ever taken from the shared bytes. Control
//! structures are made of atomics; slots are reached only as [`Src`] and [`Dst`].
#![allow(unsafe_code, reason = "turns offsets within a mapping into references and views")]

use super::abort::Failure;
use super::descriptor::Descriptor;
use super::labels::LabelTable;
use super::layout::{BELL_STRIDE, Layout, PAGE, PRESENCE};
use super::line::{INLINE_BYTES, Line};
use super::matching::{Desk, Lent, Mark};
use super::progress::{Progress, Purpose};
use super::pulse::Pulse;
use super::ring::{Cursor, Ring, Turn};
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::base::sync::{AtomicBool, AtomicU64, Ordering};
use crate::wait::bell::Bell;
use std::fmt::Debug;
use std::sync::atomic::AtomicPtr;

pub use super::layout::{Geometry, LINES, SLOTS};

/// In which steps a ring is given its memory.
const RING_GRAIN: usize = 16 << 10;

/// What each rank writes on the region when it maps it, and every other reads: proof that both see
/// the same memory. Whether it has left, and its mark for messages.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(super) struct Presence {
    nonce: [AtomicU64; 2],
    /// Not zero once the rank has left in order.
    left: AtomicU64,
    /// Where it was last seen: the number of the core, and 1 more. Seldom written.
    core: AtomicU64,
    mark: Mark,
}

/// Whether a rank has knocked for another, which has not answered yet.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(super) struct Knock(AtomicU64);

/// Memory that stays mapped, at one address, for as long as the value lives.
///
/// # Safety
/// `base` must point to at least `bytes` bytes, aligned to 4096, readable and writable, that were
/// zero when the domain began; they must stay so until the value is dropped.
pub unsafe trait Backing: Send + Sync + Debug {
    /// The first byte.
    fn base(&self) -> *mut u8;
    /// How many bytes there are.
    fn bytes(&self) -> usize;
    /// Makes sure that there is memory behind a part, of whole pages, before it is used.
    ///
    /// # Errors
    /// `OutOfMemory`, `System`.
    fn reserve(&self, _offset: usize, _len: usize) -> Result<()> {
        Ok(())
    }
}

/// The region of one domain, as one member sees it.
#[derive(Debug)]
pub struct Region {
    geometry: Geometry,
    layout: Layout,
    memory: Box<dyn Backing>,
    /// Where that begins, as it says itself, which would be a call through a table each time.
    base: AtomicPtr<u8>,
    /// Which slots were reserved here.
    reserved: Box<[AtomicBool]>,
}

impl Region {
    /// The region on this memory.
    ///
    /// # Errors
    /// `InvalidArgument` where the geometry is impossible, `Internal` where the memory is too
    /// small.
    pub fn new(geometry: Geometry, memory: Box<dyn Backing>) -> Result<Self> {
        let layout = geometry.layout()?;
        if memory.bytes() < layout.len || !geometry.slot_bytes.is_multiple_of(PAGE) {
            return Err(Error::internal(format!("{memory:?} does not fit {geometry:?}")));
        }
        let slots = geometry.ranks * usize::try_from(SLOTS).unwrap_or(0);
        let reserved = (0..slots).map(|_| AtomicBool::new(false)).collect();
        let base = AtomicPtr::new(memory.base());
        Ok(Self { geometry, layout, memory, base, reserved })
    }

    /// The sizes.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Where it lies in this process.
    pub fn address(&self) -> u64 {
        self.base().expose_provenance() as u64
    }

    /// How far from there the word lies that is not 0 while a rank writes to memory of others.
    pub fn reaching_at(&self, rank: Rank, purpose: Purpose) -> u64 {
        (self.progress(rank).reaching_address(purpose) - self.base().addr()) as u64
    }

    /// The abort record.
    pub fn failure(&self) -> &Failure {
        self.at(0)
    }

    /// A rank's doorbell.
    pub fn bell(&self, rank: Rank) -> &Bell {
        self.at(self.layout.bells + self.checked(rank) * BELL_STRIDE)
    }

    /// The doorbell of whoever attends to a rank's messages.
    pub fn message_bell(&self, rank: Rank) -> &Bell {
        self.at(self.layout.message_bells + self.checked(rank) * BELL_STRIDE)
    }

    /// What a rank tells the others about its messages.
    pub fn desk(&self, rank: Rank) -> Desk<'_> {
        Desk {
            mark: &self.presence(rank).mark,
            lent: self.at(self.layout.desks + self.checked(rank) * size_of::<Lent>()),
        }
    }

    /// The longest message that goes into a ring and not into a lane.
    pub fn longest_in_ring(&self) -> usize {
        self.layout.longest_in_ring
    }

    /// What the ring from one rank to another holds.
    pub fn ring_bytes(&self) -> usize {
        self.layout.ring_bytes
    }

    /// The ring from one rank to another.
    ///
    /// # Panics
    /// If the two are the same.
    pub fn ring(&self, from: Rank, to: Rank) -> Ring<'_> {
        assert!(self.checked(from) != self.checked(to), "no ring from rank {from} to itself");
        let index = self.ring_index(from, to);
        let len = self.layout.ring_bytes;
        let start = self.layout.rings + index * len;
        self.ring_at(4 * index, (start, len), &self.layout.ring_turn)
    }

    /// The lane of a rank, as the ring from it to another that it is while no third one uses it.
    ///
    /// # Panics
    /// As [`Region::ring`].
    pub fn lane(&self, from: Rank, to: Rank) -> Ring<'_> {
        assert!(self.checked(from) != self.checked(to), "no lane from rank {from} to itself");
        let len = self.layout.lane_bytes;
        let (index, start) = (self.ring_index(from, to), self.layout.lanes + from * len);
        self.ring_at(4 * index + 2, (start, len), &self.layout.lane_turn)
    }

    fn ring_at<'a>(
        &'a self,
        cursor: usize,
        (start, len): (usize, usize),
        turn: &'a Turn,
    ) -> Ring<'a> {
        let cursors = self.layout.cursors + cursor * size_of::<Cursor>();
        let start = self.base().wrapping_add(start);
        // SAFETY: the layout places the whole ring inside the backing, which outlives `self`. No
        // reference to its bytes is ever made.
        let bytes = unsafe { Dst::new(start, len) };
        let (written, read) = (self.at(cursors), self.at(cursors + size_of::<Cursor>()));
        Ring { written, read, bytes, turn }
    }

    /// Makes sure that there is memory behind the first `len` bytes of a ring or a lane, of which
    /// `had` were asked for before; for how many there is.
    ///
    /// # Errors
    /// `OutOfMemory`, `System`.
    pub fn reserve_ring(&self, ring: &Ring<'_>, had: usize, len: usize) -> Result<usize> {
        let end = len.next_multiple_of(RING_GRAIN).min(ring.bytes.len());
        if end > had {
            let start = ring.bytes.as_mut_ptr().addr() - self.base().addr();
            self.memory.reserve(start + had, end - had)?;
        }
        Ok(end.max(had))
    }

    /// A rank's progress.
    pub fn progress(&self, rank: Rank) -> &Progress {
        self.at(self.layout.progress + self.checked(rank) * size_of::<Progress>())
    }

    /// The labels of a rank's last operations.
    pub fn labels(&self, rank: Rank) -> &LabelTable {
        self.at(self.layout.labels + self.checked(rank) * size_of::<LabelTable>())
    }

    /// The descriptor of an operation of a rank, with the text of its label if the rank still
    /// stores it.
    pub fn with_label(&self, rank: Rank, descriptor: Descriptor) -> Descriptor {
        if descriptor.label.is_none() {
            return descriptor;
        }
        descriptor.with_text(self.labels(rank).get(descriptor.sequence))
    }

    /// What a rank was last seen doing, for messages.
    pub fn doing(&self, rank: Rank) -> String {
        self.progress(rank).describe(|entered| self.with_label(rank, entered))
    }

    /// A rank's pulse, and what it says.
    pub fn pulse(&self, rank: Rank) -> &Pulse {
        self.at(self.layout.pulses + self.checked(rank) * size_of::<Pulse>())
    }

    /// The line of a rank that is used for a step.
    pub fn line(&self, rank: Rank, step: u64) -> &Line {
        let index = self.index(rank, step, LINES);
        self.at(self.layout.lines + index * size_of::<Line>())
    }

    /// The first bytes of the payload in the line of a rank that is used for a step, where they
    /// lie.
    ///
    /// # Panics
    /// If a payload cannot be as long.
    pub fn payload(&self, rank: Rank, step: u64, len: usize) -> Src<'_> {
        assert!(len <= INLINE_BYTES, "an inline payload has at most {INLINE_BYTES} bytes");
        let start = self.line(rank, step).payload_address();
        // SAFETY: inside the line, and thereby the backing, which outlives `self`. No reference to
        // the bytes is made.
        unsafe { Src::new(start, len) }
    }

    /// The slot of a rank that is used for a step, for its owner.
    ///
    /// # Errors
    /// `OutOfMemory` or `System` where it has no memory yet, and there is none.
    pub fn own_slot(&self, rank: Rank, step: u64) -> Result<Dst<'_>> {
        let index = self.index(rank, step, SLOTS);
        if !self.reserved[index].load(Ordering::Relaxed) {
            let bytes = self.geometry.slot_bytes;
            self.memory.reserve(self.layout.slots + index * bytes, bytes)?;
            self.reserved[index].store(true, Ordering::Relaxed);
        }
        Ok(self.slot_at(index))
    }

    /// All slots of a rank, one after the other, for their owner.
    ///
    /// # Errors
    /// As [`Region::own_slot`].
    pub fn own_slots(&self, rank: Rank) -> Result<Dst<'_>> {
        for step in 0..SLOTS {
            self.own_slot(rank, step)?;
        }
        let len = self.geometry.slot_bytes * usize::try_from(SLOTS).unwrap_or(0);
        Ok(self.slots_at(self.index(rank, 0, SLOTS), len))
    }

    /// The slot of a rank that is used for a step, for its readers.
    pub fn slot(&self, rank: Rank, step: u64) -> Src<'_> {
        self.slot_at(self.index(rank, step, SLOTS)).as_src()
    }

    /// The part of its slot, of `room` bytes, that is used for a step, for its owner. It is another
    /// one each time that a slot is used, as far as there is room for several.
    ///
    /// # Errors
    /// As [`Region::own_slot`].
    ///
    /// # Panics
    /// If a slot has not so much room.
    pub fn own_part(&self, rank: Rank, step: u64, room: usize) -> Result<Dst<'_>> {
        Ok(self.own_slot(rank, step)?.slice(self.geometry.part_at(step, room), room))
    }

    /// The same for its readers, of which all name the same room as the owner.
    ///
    /// # Panics
    /// As [`Region::own_part`].
    pub fn part(&self, rank: Rank, step: u64, room: usize) -> Src<'_> {
        self.slot(rank, step).slice(self.geometry.part_at(step, room), room)
    }

    /// Writes a rank's mark of presence.
    pub fn mark_presence(&self, rank: Rank, mark: [u64; 2]) {
        let presence = self.presence(rank);
        for (cell, word) in presence.nonce.iter().zip(mark) {
            cell.store(word, Ordering::Release);
        }
    }

    /// Reads a rank's mark of presence.
    pub fn read_presence(&self, rank: Rank) -> [u64; 2] {
        let presence = self.presence(rank);
        std::array::from_fn(|i| presence.nonce[i].load(Ordering::Acquire))
    }

    /// A rank leaves in order: what it has stored before can be read by whoever sees this.
    pub fn mark_left(&self, rank: Rank) {
        self.presence(rank).left.store(1, Ordering::Release);
    }

    /// True once a rank has left in order.
    pub fn has_left(&self, rank: Rank) -> bool {
        self.presence(rank).left.load(Ordering::Acquire) != 0
    }

    /// Notes the core that a rank is on.
    pub fn note_core(&self, rank: Rank, core: usize) {
        let (noted, core) = (&self.presence(rank).core, core as u64 + 1);
        if noted.load(Ordering::Relaxed) != core {
            noted.store(core, Ordering::Relaxed);
        }
    }

    /// Whether a rank may be on a core: it was when it was last seen, or was not seen yet.
    pub fn may_be_on(&self, rank: Rank, core: usize) -> bool {
        [0, core as u64 + 1].contains(&self.presence(rank).core.load(Ordering::Relaxed))
    }

    /// Notes that `from` knocks for `to`; false where an earlier knock has not been answered, so
    /// that one more says nothing new.
    pub fn begin_knock(&self, from: Rank, to: Rank) -> bool {
        self.knock(from, to).swap(1, Ordering::AcqRel) == 0
    }

    /// `to` answers: what `from` had stored before it knocked can be read after this.
    pub fn answer_knock(&self, from: Rank, to: Rank) {
        self.knock(from, to).swap(0, Ordering::AcqRel);
    }

    fn knock(&self, from: Rank, to: Rank) -> &AtomicU64 {
        let index = self.checked(from) * self.geometry.ranks + self.checked(to);
        &self.at::<Knock>(self.layout.knocks + index * size_of::<Knock>()).0
    }

    fn presence(&self, rank: Rank) -> &Presence {
        self.at(PRESENCE + self.checked(rank) * size_of::<Presence>())
    }

    fn checked(&self, rank: Rank) -> usize {
        assert!(rank < self.geometry.ranks, "rank {rank} of {} in a region", self.geometry.ranks);
        rank
    }

    fn index(&self, rank: Rank, step: u64, each: u64) -> usize {
        // `each` is small and `step % each` smaller.
        let within = usize::try_from(step % each).unwrap_or(0);
        self.checked(rank) * usize::try_from(each).unwrap_or(0) + within
    }

    fn slot_at(&self, index: usize) -> Dst<'_> {
        self.slots_at(index, self.geometry.slot_bytes)
    }

    /// So many bytes of slots from one on.
    fn slots_at(&self, index: usize, len: usize) -> Dst<'_> {
        let offset = self.layout.slots + index * self.geometry.slot_bytes;
        debug_assert!(offset + len <= self.layout.lanes);
        let start = self.base().wrapping_add(offset);
        // SAFETY: the layout places all slots one after the other inside the backing, which
        // outlives `self`. No reference to slots is ever made.
        unsafe { Dst::new(start, len) }
    }

    fn ring_index(&self, from: Rank, to: Rank) -> usize {
        from * (self.geometry.ranks - 1) + if to > from { to - 1 } else { to }
    }

    fn base(&self) -> *mut u8 {
        self.base.load(Ordering::Relaxed)
    }

    /// A control structure at an offset that the layout gives.
    fn at<T: Control>(&self, offset: usize) -> &T {
        debug_assert!(offset + size_of::<T>() <= self.layout.len);
        debug_assert_eq!(offset % align_of::<T>(), 0);
        let address = self.base().wrapping_add(offset).cast::<T>();
        // SAFETY: the layout places the structure, aligned, inside the backing, which outlives
        // `self`. It consists of atomics only, so that any bytes are a value and other processes
        // may write.
        unsafe { &*address }
    }
}

/// Structures made of atomic integers only, which may lie in shared memory.
trait Control {}
impl Control for Failure {}
impl Control for Presence {}
impl Control for Knock {}
impl Control for Bell {}
impl Control for Progress {}
impl Control for Line {}
impl Control for Lent {}
impl Control for Cursor {}
impl Control for Pulse {}
impl Control for LabelTable {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Reuse;
    use crate::transport::inproc::Heap;

    #[test]
    fn a_rank_is_where_it_was_last_seen() {
        let geometry = Geometry { ranks: 2, slot_bytes: 8192, reuse: Reuse::Soon };
        let heap = Heap::zeroed(geometry.bytes().unwrap()).unwrap();
        let region = Region::new(geometry, Box::new(heap)).unwrap();
        assert!(region.may_be_on(1, 0) && region.may_be_on(1, 7));
        for core in [7, 0] {
            region.note_core(1, core);
            assert!(region.may_be_on(1, core) && !region.may_be_on(1, 7 - core));
        }
        assert!(region.may_be_on(0, 3));
    }

    #[test]
    fn nothing_overlaps() {
        let all = [1, 2, 3, 8, 64].map(|ranks| [(ranks, Reuse::Soon), (ranks, Reuse::Late)]);
        for (ranks, reuse) in all.concat() {
            let geometry = Geometry { ranks, slot_bytes: 8192, reuse };
            let heap = Heap::zeroed(geometry.bytes().unwrap()).unwrap();
            let region = Region::new(geometry, Box::new(heap)).unwrap();
            let mut spans = vec![(0, size_of::<Failure>())];
            let base = region.base().addr();
            let mut add = |address: usize, len| spans.push((address - base, len));
            for rank in 0..ranks {
                add(std::ptr::from_ref(region.bell(rank)).addr(), size_of::<Bell>());
                add(std::ptr::from_ref(region.progress(rank)).addr(), size_of::<Progress>());
                add(std::ptr::from_ref(region.presence(rank)).addr(), size_of::<Presence>());
                add(std::ptr::from_ref(region.message_bell(rank)).addr(), size_of::<Bell>());
                add(std::ptr::from_ref(region.desk(rank).lent).addr(), size_of::<Lent>());
                add(std::ptr::from_ref(region.pulse(rank)).addr(), size_of::<Pulse>());
                add(std::ptr::from_ref(region.labels(rank)).addr(), size_of::<LabelTable>());
                for peer in (0..ranks).filter(|&peer| peer != rank) {
                    let ring = region.ring(rank, peer);
                    add(std::ptr::from_ref(ring.written).addr(), size_of::<Cursor>());
                    add(std::ptr::from_ref(ring.read).addr(), size_of::<Cursor>());
                    add(ring.bytes.as_mut_ptr().addr(), ring.bytes.len());
                    let lane = region.lane(rank, peer);
                    add(std::ptr::from_ref(lane.written).addr(), size_of::<Cursor>());
                    add(std::ptr::from_ref(lane.read).addr(), size_of::<Cursor>());
                    // One for all its peers.
                    if peer == usize::from(rank == 0) {
                        add(lane.bytes.as_mut_ptr().addr(), lane.bytes.len());
                    }
                    let knock = std::ptr::from_ref(region.knock(rank, peer)).addr();
                    add(knock, size_of::<Knock>());
                }
                for step in 0..LINES {
                    add(std::ptr::from_ref(region.line(rank, step)).addr(), size_of::<Line>());
                }
                for step in 0..SLOTS {
                    add(region.slot(rank, step).as_ptr().addr(), 8192);
                }
            }
            spans.sort_unstable();
            assert!(spans.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{ranks}");
            let (last, len) = spans[spans.len() - 1];
            assert!(last + len <= geometry.bytes().unwrap());
        }
    }
}
