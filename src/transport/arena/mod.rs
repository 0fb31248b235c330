//! Memory of this process that other ranks of the host can be given: one large file in memory,
//! parts of which are handed out.
//!
//! One arena serves all groups of the process, so that a peer needs its descriptor once, whatever
//! is allocated later. It appears with the first allocation and stays. Its owner alone allocates in
//! it: nobody else is asked, and what says which part is in use lies elsewhere.
//!
//! Memory comes in units of a huge page, which a unit has while something is allocated in it. An
//! allocation of a unit or more begins at one, any other at a cache line.
//!
//! Another rank that writes there may be told to stop, and not hear it. What it writes to is *in
//! doubt* then: freed, it is not handed out again.
//!
//! Must not know: groups, and who reads or writes the memory.

mod reach;
mod space;

pub use crate::sys::sparse::Identity;
pub use reach::{Window, has_ended, open};

use crate::base::buffer::Src;
use crate::base::error::{Error, ErrorKind, Result};
use crate::sys::sparse::{Sparse, UNIT};
use space::Space;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// What small allocations begin at a multiple of: a cache line.
pub const SMALL_ALIGN: usize = 64;

/// An arena.
#[derive(Debug)]
pub struct Arena {
    sparse: Sparse,
    identity: Identity,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    space: Space,
    /// How many allocations lie in a unit; those that are not here have no memory.
    users: BTreeMap<usize, usize>,
    /// Where allocations begin that are in doubt.
    doubted: BTreeSet<usize>,
}

/// An allocation. Dropping it frees it.
#[derive(Debug)]
pub struct Block {
    arena: Arc<Arena>,
    offset: usize,
    len: usize,
}

/// Where bytes lie in an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Whose it is.
    pub identity: Identity,
    /// The first of them.
    pub offset: u64,
}

/// That of this process, which one thread at a time may make.
static ARENA: OnceLock<Arc<Arena>> = OnceLock::new();
static MAKING: Mutex<()> = Mutex::new(());

/// Allocates in this process's arena.
///
/// # Errors
/// `OutOfMemory` with what was wanted and what there is; `System`.
pub fn allocate(len: usize) -> Result<Block> {
    if ARENA.get().is_none() {
        let _one = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        if ARENA.get().is_none() {
            // There is none yet, and nobody else makes one.
            drop(ARENA.set(Arc::new(Arena::new()?)));
        }
    }
    let arena = ARENA.get().ok_or_else(|| Error::internal("there is no arena"))?;
    arena.allocate(len)
}

/// Where these bytes lie in this process's arena, if they do.
#[inline]
pub fn locate(bytes: Src<'_>) -> Option<Place> {
    let arena = ARENA.get()?;
    let offset = arena.offset_of(bytes.as_ptr().addr(), bytes.len())?;
    Some(Place { identity: arena.identity, offset: offset as u64 })
}

/// Others may still write to these bytes of this process's arena.
#[cold]
pub fn doubt(bytes: Src<'_>) {
    if let (Some(arena), Some(place)) = (ARENA.get(), locate(bytes)) {
        arena.doubt(usize::try_from(place.offset).unwrap_or(usize::MAX));
    }
}

impl Arena {
    fn new() -> Result<Self> {
        let sparse = Sparse::create()?;
        let (space, users) = (Space::new(sparse.len()), BTreeMap::new());
        let state = State { space, users, doubted: BTreeSet::new() };
        Ok(Self { identity: sparse.identity()?, sparse, state: Mutex::new(state) })
    }

    /// Where these bytes begin, if all of them lie in the arena.
    #[inline]
    fn offset_of(&self, address: usize, len: usize) -> Option<usize> {
        let offset = address.checked_sub(self.sparse.as_mut_ptr().addr())?;
        (offset.checked_add(len)? <= self.sparse.len()).then_some(offset)
    }

    /// The allocation with this byte is not handed out again.
    fn doubt(&self, offset: usize) {
        let mut state = self.lock();
        if let Some(start) = state.space.allocated_at(offset) {
            state.doubted.insert(start);
        }
    }

    /// Allocates `len` bytes, at least one. What they hold is arbitrary.
    fn allocate(self: &Arc<Self>, len: usize) -> Result<Block> {
        let align = if len >= UNIT { UNIT } else { SMALL_ALIGN };
        let mut state = self.lock();
        let wanted = len.max(1).checked_next_multiple_of(SMALL_ALIGN);
        let Some(offset) = wanted.and_then(|wanted| state.space.take(wanted, align)) else {
            let (in_use, free) = (state.space.in_use(), state.space.longest_free());
            let message = format!(
                "{len} bytes do not fit the arena of {} bytes, of which {in_use} are in use and at most {free} are free in one piece",
                self.sparse.len()
            );
            return Err(Error::new(ErrorKind::OutOfMemory, message));
        };
        let units = units(offset, len);
        if let Err(error) = self.commit(&state, units.clone()) {
            state.space.give_back(offset);
            let in_use = state.space.in_use();
            return Err(error.context(format_args!("with {in_use} bytes of the arena in use")));
        }
        for unit in units {
            *state.users.entry(unit).or_default() += 1;
        }
        drop(state);
        Ok(Block { arena: Arc::clone(self), offset, len })
    }

    /// Gives memory to those of the units that have none; to none of them where it fails.
    fn commit(&self, state: &State, units: Range<usize>) -> Result<()> {
        let mut done: Vec<Range<usize>> = Vec::new();
        for run in runs(units.filter(|unit| !state.users.contains_key(unit))) {
            if let Err(error) = self.sparse.commit(run.start * UNIT, run.len() * UNIT) {
                for run in done {
                    self.sparse.release(run.start * UNIT, run.len() * UNIT);
                }
                return Err(error);
            }
            done.push(run);
        }
        Ok(())
    }

    fn free(&self, offset: usize, len: usize) {
        let mut state = self.lock();
        if state.doubted.contains(&offset) {
            return;
        }
        state.space.give_back(offset);
        let mut empty = Vec::new();
        for unit in units(offset, len) {
            let Some(users) = state.users.get_mut(&unit) else { continue };
            *users -= 1;
            if *users == 0 {
                state.users.remove(&unit);
                empty.push(unit);
            }
        }
        for run in runs(empty.into_iter()) {
            self.sparse.release(run.start * UNIT, run.len() * UNIT);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl Block {
    /// Whether it is not handed out again.
    pub fn is_in_doubt(&self) -> bool {
        self.arena.lock().doubted.contains(&self.offset)
    }
}

impl Block {
    /// The address of the first byte.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.arena.sparse.as_mut_ptr().wrapping_add(self.offset)
    }

    /// How many bytes were asked for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True where that was none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.arena.free(self.offset, self.len);
    }
}

/// The units in which these bytes lie.
fn units(offset: usize, len: usize) -> Range<usize> {
    offset / UNIT..(offset + len.max(1)).div_ceil(UNIT)
}

/// Ascending numbers as runs of neighbours.
fn runs(numbers: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some(run) if run.end == number => run.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena() -> Arc<Arena> {
        Arc::new(Arena::new().unwrap())
    }

    fn committed(arena: &Arena) -> Vec<usize> {
        arena.lock().users.keys().copied().collect()
    }

    #[test]
    fn small_ones_share_a_unit_which_has_memory_while_it_is_used() {
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
        assert_eq!(arena.lock().space.in_use(), 0);
    }

    #[test]
    fn large_ones_begin_at_a_unit_and_small_ones_fill_what_is_left() {
        let arena = arena();
        let small = arena.allocate(UNIT - 1).unwrap();
        let large = arena.allocate(UNIT + 1).unwrap();
        assert_eq!(large.as_mut_ptr().addr() % UNIT, 0);
        assert_eq!((large.len(), committed(&arena)), (UNIT + 1, vec![0, 1, 2]));
        let other = arena.allocate(UNIT / 2).unwrap();
        drop(large);
        assert_eq!(committed(&arena), [0, 2]);
        drop((small, other));
        let again = arena.allocate(3 * UNIT).unwrap();
        assert_eq!((again.offset, committed(&arena)), (0, vec![0, 1, 2]));
    }

    #[test]
    fn what_is_in_doubt_is_not_handed_out_again() {
        let arena = arena();
        let (one, other) = (arena.allocate(100).unwrap(), arena.allocate(100).unwrap());
        let (offset, next) = (one.offset, other.offset);
        arena.doubt(offset + 99);
        drop((one, other));
        assert_eq!((committed(&arena), arena.lock().space.in_use()), (vec![0], 128));
        assert_eq!(arena.allocate(100).unwrap().offset, next);
        // Nothing is allocated there.
        arena.doubt(5 * UNIT);
        assert_eq!(arena.lock().doubted.len(), 1);
    }

    #[test]
    fn only_what_lies_in_it_is_found() {
        let arena = arena();
        let block = arena.allocate(5000).unwrap();
        let (start, whole) = (block.as_mut_ptr().addr(), arena.sparse.len());
        assert_eq!(arena.offset_of(start + 7, 4993), Some(block.offset + 7));
        assert_eq!(arena.offset_of(start, whole - block.offset + 1), None);
        assert_eq!(arena.offset_of(start, usize::MAX), None);
        assert_eq!(arena.offset_of(start - block.offset - 1, 1), None);
        let _block = allocate(100).unwrap();
        assert_eq!(locate(Src::from(&[1_u8, 2][..])), None);
        assert_eq!(locate(Src::empty()), None);
    }

    #[test]
    fn what_does_not_fit_leaves_everything_as_it_was() {
        let arena = arena();
        let held = arena.allocate(10).unwrap();
        for (len, word) in
            [(usize::MAX, "64 are in use"), (arena.sparse.len() - UNIT, "cannot be had")]
        {
            let error = arena.allocate(len).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutOfMemory);
            assert!(error.message().contains(word), "{error}");
        }
        assert_eq!((committed(&arena), arena.lock().space.in_use()), (vec![0], 64));
        drop(held);
    }

    #[test]
    fn neighbours_make_runs() {
        assert_eq!(runs([1, 2, 3, 7, 9, 10].into_iter()), [1..4, 7..8, 9..11]);
        assert_eq!(units(UNIT - 1, 2), 0..2);
        assert_eq!(units(UNIT, UNIT), 1..2);
    }
}
