//! The arena of a process: one large memory file that other ranks of the host can map, and from
//! which this process allocates blocks.
//!
//! One arena serves all groups of the process, so a peer opens and maps the file only once. The
//! first allocation creates the arena, which then exists until the process exits. Only the process
//! that owns the arena allocates blocks, without communication. The state of the allocator is in
//! private memory.
//!
//! Memory is committed in units of the size of a huge page. A unit has memory while it contains at
//! least a part of an allocation. An allocation of a unit or more begins at the start of a unit,
//! and any smaller allocation begins at the start of a cache line.
//!
//! If an operation fails while another rank writes to a block, that rank may not notice that it
//! must stop. The block is then *quarantined*: after the block is freed, its memory is not
//! allocated again.
//!
//! This process maps the arena of another rank only once, for all groups that use it.
//!
//! This module does not depend on groups, or on the ranks that read or write the memory.

mod range_allocator;

pub use crate::sys::peer_mapping::PeerMapping;
pub use crate::sys::sparse_mapping::MemfdIdentity;

use crate::base::buffer::Src;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::sync::lock;
use crate::sys::process_status;
use crate::sys::sparse_mapping::{COMMIT_UNIT, SparseMapping};
use range_allocator::RangeAllocator;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

/// The alignment of small allocations: a cache line.
pub const SMALL_ALIGN: usize = 64;

/// The arena of a process.
#[derive(Debug)]
pub struct Arena {
    mapping: SparseMapping,
    identity: MemfdIdentity,
    state: Mutex<ArenaState>,
}

#[derive(Debug)]
struct ArenaState {
    allocator: RangeAllocator,
    /// The number of allocations in each unit, by the number of the unit. A unit without an entry
    /// has no memory.
    allocations_per_unit: BTreeMap<usize, usize>,
    /// The start offsets of the quarantined allocations.
    quarantined: BTreeSet<usize>,
}

/// An allocation in an arena. Dropping the block frees its memory.
#[derive(Debug)]
pub struct ArenaBlock {
    arena: Arc<Arena>,
    offset: usize,
    len: usize,
}

/// The location of bytes in an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaLocation {
    /// The identity of the arena.
    pub identity: MemfdIdentity,
    /// The offset of the first byte.
    pub offset: u64,
}

/// The arena of this process; empty before the first allocation.
static ARENA: OnceLock<Arc<Arena>> = OnceLock::new();
/// The lock that ensures that only one thread creates the arena.
static CREATION_LOCK: Mutex<()> = Mutex::new(());

/// Allocates a block in this process's arena.
///
/// # Errors
/// `OutOfMemory`, with the requested and the available number of bytes; `System`.
pub fn allocate(len: usize) -> Result<ArenaBlock> {
    if ARENA.get().is_none() {
        let _one = lock(&CREATION_LOCK);
        if ARENA.get().is_none() {
            // `set` cannot fail: the cell is empty, and this thread has the lock.
            drop(ARENA.set(Arc::new(Arena::new()?)));
        }
    }
    let arena = ARENA.get().ok_or_else(|| Error::internal("this process has no arena"))?;
    arena.allocate(len)
}

/// Returns the location of these bytes in this process's arena, or `None` if they are not in the
/// arena.
#[inline]
pub fn locate(bytes: Src<'_>) -> Option<ArenaLocation> {
    let arena = ARENA.get()?;
    let offset = arena.offset_of(bytes.as_ptr().addr(), bytes.len())?;
    Some(ArenaLocation { identity: arena.identity, offset: offset as u64 })
}

/// Quarantines the block of these bytes in this process's arena, because peers may still write to
/// the block. Has no effect for bytes that are not in the arena.
#[cold]
pub fn quarantine(bytes: Src<'_>) {
    if let (Some(arena), Some(place)) = (ARENA.get(), locate(bytes)) {
        arena.quarantine(usize::try_from(place.offset).unwrap_or(usize::MAX));
    }
}

impl Arena {
    fn new() -> Result<Self> {
        let mapping = SparseMapping::create()?;
        let (allocator, allocations_per_unit) =
            (RangeAllocator::new(mapping.len()), BTreeMap::new());
        let state = ArenaState { allocator, allocations_per_unit, quarantined: BTreeSet::new() };
        Ok(Self { identity: mapping.identity()?, mapping, state: Mutex::new(state) })
    }

    /// Returns the offset of these bytes if all of them are in the arena.
    #[inline]
    fn offset_of(&self, address: usize, len: usize) -> Option<usize> {
        let offset = address.checked_sub(self.mapping.as_mut_ptr().addr())?;
        (offset.checked_add(len)? <= self.mapping.len()).then_some(offset)
    }

    /// Quarantines the allocation that contains the byte at this offset.
    fn quarantine(&self, offset: usize) {
        let mut state = self.lock();
        if let Some(start) = state.allocator.allocated_at(offset) {
            state.quarantined.insert(start);
        }
    }

    /// Allocates `len` bytes, or one byte if `len` is 0. The content of the bytes is arbitrary.
    fn allocate(self: &Arc<Self>, len: usize) -> Result<ArenaBlock> {
        let align = if len >= COMMIT_UNIT { COMMIT_UNIT } else { SMALL_ALIGN };
        let mut state = self.lock();
        let wanted = len.max(1).checked_next_multiple_of(SMALL_ALIGN);
        let Some(offset) = wanted.and_then(|wanted| state.allocator.allocate(wanted, align)) else {
            let (in_use, free) = (state.allocator.used_bytes(), state.allocator.longest_free());
            let message = format!(
                "{len} bytes do not fit the arena of {} bytes: {in_use} bytes are in use, and the largest free \
                 range has {free} bytes",
                self.mapping.len()
            );
            return Err(Error::new(ErrorKind::OutOfMemory, message));
        };
        let units = commit_units(offset, len);
        if let Err(error) = self.commit(&state, units.clone()) {
            state.allocator.release(offset);
            let in_use = state.allocator.used_bytes();
            return Err(error.context(format_args!("with {in_use} bytes of the arena in use")));
        }
        for unit in units {
            *state.allocations_per_unit.entry(unit).or_default() += 1;
        }
        drop(state);
        Ok(ArenaBlock { arena: Arc::clone(self), offset, len })
    }

    /// Commits memory for each of these units that has none. If this fails for one unit, the memory
    /// of all units that this call committed is released.
    fn commit(&self, state: &ArenaState, units: Range<usize>) -> Result<()> {
        let mut done: Vec<Range<usize>> = Vec::new();
        for run in
            contiguous_runs(units.filter(|unit| !state.allocations_per_unit.contains_key(unit)))
        {
            if let Err(error) =
                self.mapping.commit(run.start * COMMIT_UNIT, run.len() * COMMIT_UNIT)
            {
                for run in done {
                    self.mapping.release(run.start * COMMIT_UNIT, run.len() * COMMIT_UNIT);
                }
                return Err(error);
            }
            done.push(run);
        }
        Ok(())
    }

    fn free(&self, offset: usize, len: usize) {
        let mut state = self.lock();
        if state.quarantined.contains(&offset) {
            return;
        }
        state.allocator.release(offset);
        let mut empty = Vec::new();
        for unit in commit_units(offset, len) {
            let Some(users) = state.allocations_per_unit.get_mut(&unit) else { continue };
            *users -= 1;
            if *users == 0 {
                state.allocations_per_unit.remove(&unit);
                empty.push(unit);
            }
        }
        for run in contiguous_runs(empty.into_iter()) {
            self.mapping.release(run.start * COMMIT_UNIT, run.len() * COMMIT_UNIT);
        }
    }

    fn lock(&self) -> MutexGuard<'_, ArenaState> {
        lock(&self.state)
    }
}

#[cfg(test)]
impl ArenaBlock {
    /// Returns whether the block is quarantined.
    pub fn is_quarantined(&self) -> bool {
        self.arena.lock().quarantined.contains(&self.offset)
    }
}

impl ArenaBlock {
    /// Returns the address of the first byte.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.arena.mapping.as_mut_ptr().wrapping_add(self.offset)
    }

    /// Returns the number of requested bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the requested length was 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for ArenaBlock {
    fn drop(&mut self) {
        self.arena.free(self.offset, self.len);
    }
}

/// Returns the numbers of the units that contain these bytes. A length of 0 counts as 1.
fn commit_units(offset: usize, len: usize) -> Range<usize> {
    offset / COMMIT_UNIT..(offset + len.max(1)).div_ceil(COMMIT_UNIT)
}

/// Groups ascending numbers into contiguous runs.
fn contiguous_runs(numbers: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some(run) if run.end == number => run.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs
}

/// The arenas that this process has mapped, by process id and file identity.
static PEER_ARENAS: Mutex<BTreeMap<(u32, MemfdIdentity), Weak<PeerMapping>>> =
    Mutex::new(BTreeMap::new());

/// Returns the mapping of the arena with this identity, which belongs to the process with this id.
/// That process may also be this process.
///
/// # Errors
/// `Connection` if the file has another identity; `System`, `OutOfMemory`.
pub fn open_peer_arena(pid: u32, identity: MemfdIdentity) -> Result<Arc<PeerMapping>> {
    let mut mappings = lock(&PEER_ARENAS);
    mappings.retain(|_, mapping| mapping.strong_count() > 0);
    if let Some(mapping) = mappings.get(&(pid, identity)).and_then(Weak::upgrade) {
        return Ok(mapping);
    }
    let mapping = Arc::new(PeerMapping::open(pid, identity)?);
    mappings.insert((pid, identity), Arc::downgrade(&mapping));
    Ok(mapping)
}

/// Returns true only if the process has certainly exited, so that it can no longer write.
pub fn has_process_ended(pid: u32) -> bool {
    process_status::is_gone(pid, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena() -> Arc<Arena> {
        Arc::new(Arena::new().unwrap())
    }

    fn committed(arena: &Arena) -> Vec<usize> {
        arena.lock().allocations_per_unit.keys().copied().collect()
    }

    #[test]
    fn small_blocks_share_a_unit_that_is_freed_with_the_last() {
        let arena = arena();
        let first = arena.allocate(1).unwrap();
        let second = arena.allocate(100).unwrap();
        assert!(
            [&first, &second]
                .iter()
                .all(|block| block.as_mut_ptr().addr().is_multiple_of(SMALL_ALIGN))
        );
        assert_eq!(committed(&arena), [0]);
        drop(first);
        assert_eq!(committed(&arena), [0]);
        drop(second);
        assert!(committed(&arena).is_empty());
        assert_eq!(arena.lock().allocator.used_bytes(), 0);
    }

    #[test]
    fn large_blocks_are_unit_aligned_and_small_ones_fill_gaps() {
        let arena = arena();
        let small = arena.allocate(COMMIT_UNIT - 1).unwrap();
        let large = arena.allocate(COMMIT_UNIT + 1).unwrap();
        assert_eq!(large.as_mut_ptr().addr() % COMMIT_UNIT, 0);
        assert_eq!((large.len(), committed(&arena)), (COMMIT_UNIT + 1, vec![0, 1, 2]));
        let other = arena.allocate(COMMIT_UNIT / 2).unwrap();
        drop(large);
        assert_eq!(committed(&arena), [0, 2]);
        drop((small, other));
        let again = arena.allocate(3 * COMMIT_UNIT).unwrap();
        assert_eq!((again.offset, committed(&arena)), (0, vec![0, 1, 2]));
    }

    #[test]
    fn quarantined_block_is_not_reused() {
        let arena = arena();
        let (one, other) = (arena.allocate(100).unwrap(), arena.allocate(100).unwrap());
        let (offset, next) = (one.offset, other.offset);
        arena.quarantine(offset + 99);
        drop((one, other));
        assert_eq!((committed(&arena), arena.lock().allocator.used_bytes()), (vec![0], 128));
        assert_eq!(arena.allocate(100).unwrap().offset, next);
        // No block is allocated there.
        arena.quarantine(5 * COMMIT_UNIT);
        assert_eq!(arena.lock().quarantined.len(), 1);
    }

    #[test]
    fn only_addresses_inside_the_arena_are_located() {
        let arena = arena();
        let block = arena.allocate(5000).unwrap();
        let (start, whole) = (block.as_mut_ptr().addr(), arena.mapping.len());
        assert_eq!(arena.offset_of(start + 7, 4993), Some(block.offset + 7));
        assert_eq!(arena.offset_of(start, whole - block.offset + 1), None);
        assert_eq!(arena.offset_of(start, usize::MAX), None);
        assert_eq!(arena.offset_of(start - block.offset - 1, 1), None);
        let _block = allocate(100).unwrap();
        assert_eq!(locate(Src::from(&[1_u8, 2][..])), None);
        assert_eq!(locate(Src::empty()), None);
    }

    #[test]
    fn failed_allocation_changes_nothing() {
        let arena = arena();
        let held = arena.allocate(10).unwrap();
        for (len, word) in [
            (usize::MAX, "64 bytes are in use"),
            (arena.mapping.len() - COMMIT_UNIT, "cannot allocate"),
        ] {
            let error = arena.allocate(len).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutOfMemory);
            assert!(error.message().contains(word), "{error}");
        }
        assert_eq!((committed(&arena), arena.lock().allocator.used_bytes()), (vec![0], 64));
        drop(held);
    }

    #[test]
    fn adjacent_units_form_runs() {
        assert_eq!(contiguous_runs([1, 2, 3, 7, 9, 10].into_iter()), [1..4, 7..8, 9..11]);
        assert_eq!(commit_units(COMMIT_UNIT - 1, 2), 0..2);
        assert_eq!(commit_units(COMMIT_UNIT, COMMIT_UNIT), 1..2);
    }

    #[test]
    fn peer_arena_is_mapped_once_for_all_holders() {
        let block = allocate(64).unwrap();
        let (pid, identity) = (std::process::id(), block.arena.identity);
        let one = open_peer_arena(pid, identity).unwrap();
        assert!(Arc::ptr_eq(&one, &open_peer_arena(pid, identity).unwrap()));
        let mapping = Arc::downgrade(&one);
        drop(one);
        assert!(mapping.upgrade().is_none() && !has_process_ended(pid));
        assert!(
            open_peer_arena(pid, MemfdIdentity { inode: identity.inode + 1, ..identity }).is_err()
        );
    }
}
