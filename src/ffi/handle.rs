//! Handles: tokens in the form of pointers, which the library looks up and never dereferences. So
//! the library recognises a released, foreign or invented handle without an access to memory that
//! the caller chose.
//!
//! A token has the kind of its object, the index of a slot, and the generation of the slot (the
//! number of objects that the slot has had). Each slot has one atomic word of state:
//!
//! ```text
//! token:  generation (32 bits) | index of the slot (28)         | kind (4)
//! state:  generation (32 bits) | REMOVED (1) | LIVE (1) | number of lookups (30)
//! ```
//!
//! Every call looks up a handle, so a lookup takes no lock:
//!
//! 1. It adds 1 to the number of lookups. The same instruction reads the state.
//! 2. If the state had `LIVE` and the generation of the token, the lookup uses the object.
//!    Otherwise it fails.
//! 3. It subtracts 1 from the number of lookups.
//!
//! A removal clears `LIVE`, so that later lookups fail. If lookups still use the object, the
//! removal also sets `REMOVED`. The object then stays in its slot until the last of these lookups
//! ends. Only then can the slot get another object, with the next generation. Slots are never
//! freed.

#![allow(
    unsafe_code,
    reason = "a slot returns references to its object while the state counts them"
)]

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::sync::{AtomicU64, Ordering, ProtectedCell, lock};
use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock};

const _: () = assert!(usize::BITS == 64, "a handle needs 64 bits");

/// The number of bits of a token for the kind.
const KIND_BITS: u32 = 4;
/// The number of bits of a token for the index of the slot.
const SLOT_BITS: u32 = 28;

/// The slots in the first chunk of a table. Each further chunk has twice as many as the one before.
const FIRST_CHUNK: usize = 16;

/// The number of chunks: [`SLOT_BITS`] bits can hold the indices of their slots.
const CHUNKS: usize = 24;

const _: () = assert!(
    FIRST_CHUNK * ((1 << CHUNKS) - 1) < 1 << SLOT_BITS,
    "a token can hold the index of every slot"
);

/// In a state: one lookup.
const ONE_USER: u64 = 1;
/// In a state: the slot has an object, and its handle is valid.
const LIVE: u64 = 1 << 30;
/// In a state: the handle of the object was removed, and lookups still use the object.
const REMOVED: u64 = 1 << 31;
/// In a state: the bits of the number of lookups.
const USER_MASK: u64 = LIVE - 1;
/// In a state and in a token: the position of the generation.
const GENERATION_SHIFT: u32 = 32;

/// The type of the object that a handle names. The numbers are part of the token. No number is 0,
/// so that no token is NULL.
#[derive(Clone, Copy, Debug)]
pub(super) enum HandleKind {
    Group = 1,
    Store = 2,
    Blob = 3,
    Work = 4,
    Message = 5,
    Sampler = 6,
    Reducer = 7,
    Shard = 8,
    Outer = 9,
}

impl HandleKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Group => "dist_group_t",
            Self::Store => "dist_store_t",
            Self::Blob => "dist_blob_t",
            Self::Work => "dist_work_t",
            Self::Message => "dist_message_t",
            Self::Sampler => "dist_sampler_t",
            Self::Reducer => "dist_reducer_t",
            Self::Shard => "dist_shard_t",
            Self::Outer => "dist_outer_t",
        }
    }
}

/// The table of the objects of one kind. Its chunks of slots are allocated when they are needed.
#[derive(Debug)]
pub(super) struct HandleTable<T: 'static> {
    kind: HandleKind,
    chunks: [OnceLock<Box<[HandleSlot<T>]>>; CHUNKS],
    free_slots: Mutex<FreeSlots>,
}

/// The slots without an object.
#[derive(Debug)]
struct FreeSlots {
    /// The indices of the free slots that had an object before.
    free: Vec<usize>,
    /// The index of the first slot that never had an object.
    next: usize,
}

#[derive(Debug)]
struct HandleSlot<T> {
    state: AtomicU64,
    value: ProtectedCell<Option<Arc<T>>>,
}

// SAFETY: the state decides which threads access `value`. A thread has exclusive access if it has
// taken the slot from the list of free slots, or has itself changed the state to unused. A thread
// has shared access if its lookup was counted while the slot was `LIVE`. So any thread may share
// and drop the `Arc`, which `T: Send + Sync` allows.
unsafe impl<T: Send + Sync> Sync for HandleSlot<T> {}

impl<T> HandleSlot<T> {
    fn unused() -> Self {
        Self { state: AtomicU64::new(0), value: ProtectedCell::new(None) }
    }
}

/// Returns the state of a slot with a valid handle of this generation, with 0 lookups.
const fn live_state(generation: u32) -> u64 {
    (generation as u64) << GENERATION_SHIFT | LIVE
}

/// A lookup that found an object. While this value exists, the lookup is counted, and the object
/// stays in its slot.
#[derive(Debug)]
pub(super) struct HandleRef<T: 'static> {
    table: &'static HandleTable<T>,
    slot: &'static HandleSlot<T>,
    index: usize,
}

impl<T> Deref for HandleRef<T> {
    type Target = Arc<T>;

    #[inline]
    fn deref(&self) -> &Arc<T> {
        // SAFETY: this lookup was counted while the slot was live. No thread writes the object
        // before the lookup ends.
        let object = unsafe { &*self.slot.value.for_read() };
        match object {
            Some(object) => object,
            None => unreachable!("a live slot has an object"),
        }
    }
}

impl<T> Drop for HandleRef<T> {
    #[inline]
    fn drop(&mut self) {
        self.table.release(self.slot, self.index);
    }
}

impl<T> HandleTable<T> {
    pub(super) const fn new(kind: HandleKind) -> Self {
        let unused = Mutex::new(FreeSlots { free: Vec::new(), next: 0 });
        Self { kind, chunks: [const { OnceLock::new() }; CHUNKS], free_slots: unused }
    }

    /// Puts an object into a free slot and returns its handle.
    pub(super) fn insert<H>(&'static self, value: Arc<T>) -> Result<*mut H> {
        let index = self.take_free_index()?;
        let (chunk, position) = chunk_of(index);
        let slots = self.chunks[chunk]
            .get_or_init(|| (0..FIRST_CHUNK << chunk).map(|_| HandleSlot::unused()).collect());
        let slot = &slots[position];
        // SAFETY: the slot was in the list of free slots, and this thread alone has taken it from
        // the list.
        unsafe { *slot.value.for_write() = Some(value) };
        // An addition, and not a store: lookups with wrong handles may change the number of lookups
        // at any time.
        let before = slot.state.fetch_add((1 << GENERATION_SHIFT) + LIVE, Ordering::Release);
        let generation = generation_of(before).wrapping_add(1);
        Ok(std::ptr::without_provenance_mut(self.token(index, generation)))
    }

    /// Takes the index of a slot without an object.
    fn take_free_index(&self) -> Result<usize> {
        let mut unused = lock(&self.free_slots);
        if let Some(index) = unused.free.pop() {
            return Ok(index);
        }
        if unused.next == FIRST_CHUNK * ((1 << CHUNKS) - 1) {
            let message = format!("there are too many objects of type {}", self.kind.name());
            return Err(Error::new(ErrorKind::OutOfMemory, message));
        }
        unused.next += 1;
        Ok(unused.next - 1)
    }

    /// Looks up the object that a handle names.
    #[inline]
    pub(super) fn get<H>(&'static self, handle: *const H) -> Result<HandleRef<T>> {
        let (slot, index, generation) = self.find_slot(handle.addr())?;
        match self.acquire(slot, index, |state| state == live_state(generation)) {
            Some(found) => Ok(found),
            None => Err(self.invalid_handle(handle.addr())),
        }
    }

    /// Counts a lookup of a slot if `accept` returns true for the state of the slot (without the
    /// number of lookups). Otherwise returns `None`.
    #[inline]
    fn acquire(
        &'static self,
        slot: &'static HandleSlot<T>,
        index: usize,
        accept: impl FnOnce(u64) -> bool,
    ) -> Option<HandleRef<T>> {
        let before = slot.state.fetch_add(ONE_USER, Ordering::Acquire);
        if !accept(before & !USER_MASK) {
            self.release(slot, index);
            return None;
        }
        Some(HandleRef { table: self, slot, index })
    }

    /// Ends a lookup. The last lookup of a removed object takes the object out of its slot.
    #[inline]
    fn release(&self, slot: &HandleSlot<T>, index: usize) {
        let before = slot.state.fetch_sub(ONE_USER, Ordering::Release);
        if before & REMOVED != 0 && before & USER_MASK == ONE_USER {
            self.reclaim(slot, index);
        }
    }

    /// Drops a removed object and changes its slot to unused, if no lookup uses the object.
    #[cold]
    fn reclaim(&self, slot: &HandleSlot<T>, index: usize) {
        let state = slot.state.load(Ordering::Relaxed);
        if state & (REMOVED | USER_MASK) != REMOVED {
            return;
        }
        if slot
            .state
            .compare_exchange(state, state - REMOVED, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
        {
            drop(self.take_object(slot, index));
        }
    }

    /// Takes the object out of a slot whose state this thread has changed to unused, and adds the
    /// slot to the free slots.
    fn take_object(&self, slot: &HandleSlot<T>, index: usize) -> Option<Arc<T>> {
        // SAFETY: this thread has changed the state to unused, and the slot is not yet in the list
        // of free slots. So no other thread reads or writes the object.
        let object = unsafe { (*slot.value.for_write()).take() };
        lock(&self.free_slots).free.push(index);
        object
    }

    /// Returns all objects that have a valid handle.
    pub(super) fn all(&'static self) -> Vec<Arc<T>> {
        let next = lock(&self.free_slots).next;
        let live = (0..next)
            .filter_map(|index| self.acquire(self.slot(index)?, index, |state| state & LIVE != 0));
        live.map(|found| Arc::clone(&found)).collect()
    }

    /// Ends the handles of all objects, and returns the objects.
    pub(super) fn remove_all(&'static self) -> Vec<Arc<T>> {
        let next = lock(&self.free_slots).next;
        let live_token = |index| {
            let state = self.slot(index)?.state.load(Ordering::Relaxed);
            (state & LIVE != 0).then(|| self.token(index, generation_of(state)))
        };
        let tokens = (0..next).filter_map(live_token);
        tokens
            .filter_map(|token| self.remove(std::ptr::without_provenance::<u8>(token)).ok())
            .collect()
    }

    /// Ends a handle and returns its object. The object stays in its slot while lookups use it.
    pub(super) fn remove<H>(&'static self, handle: *const H) -> Result<Arc<T>> {
        let (slot, index, generation) = self.find_slot(handle.addr())?;
        let mut state = slot.state.load(Ordering::Relaxed);
        while state & !USER_MASK == live_state(generation) {
            let is_used = state & USER_MASK != 0;
            // If lookups use the object, this thread counts as one more lookup. So the object stays
            // in its slot until this thread has cloned the `Arc`.
            let removed = if is_used { state - LIVE + REMOVED + ONE_USER } else { state - LIVE };
            match slot.state.compare_exchange_weak(
                state,
                removed,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) if is_used => return Ok(Arc::clone(&HandleRef { table: self, slot, index })),
                Ok(_) => {
                    return self
                        .take_object(slot, index)
                        .ok_or_else(|| self.invalid_handle(handle.addr()));
                }
                Err(now) => state = now,
            }
        }
        Err(self.invalid_handle(handle.addr()))
    }

    /// Ends a handle and passes the object to the function `end`. Does nothing for NULL.
    pub(super) fn release_handle<H>(
        &'static self,
        handle: *const H,
        end: impl FnOnce(Arc<T>),
    ) -> Result<()> {
        if handle.is_null() { Ok(()) } else { self.remove(handle).map(end) }
    }

    fn slot(&self, index: usize) -> Option<&HandleSlot<T>> {
        let (chunk, position) = chunk_of(index);
        self.chunks.get(chunk)?.get()?.get(position)
    }

    /// Returns the slot of a token, the index of the slot, and the generation that the slot must
    /// have.
    #[inline]
    fn find_slot(&self, token: usize) -> Result<(&HandleSlot<T>, usize, u32)> {
        let index = (token >> KIND_BITS) & ((1 << SLOT_BITS) - 1);
        let generation = generation_of(token as u64);
        match self.slot(index) {
            Some(slot) if token & ((1 << KIND_BITS) - 1) == self.kind as usize => {
                Ok((slot, index, generation))
            }
            _ => Err(self.invalid_handle(token)),
        }
    }

    fn token(&self, index: usize, generation: u32) -> usize {
        (generation as usize) << GENERATION_SHIFT | index << KIND_BITS | self.kind as usize
    }

    #[cold]
    fn invalid_handle(&self, token: usize) -> Error {
        let name = self.kind.name();
        let message = match token {
            0 => format!("the {name} handle is NULL"),
            _ => format!(
                "{token:#x} is not a live {name} (released, of another type, or never created)"
            ),
        };
        Error::new(ErrorKind::InvalidHandle, message)
    }
}

/// Returns the generation in a state or in a token.
#[inline]
fn generation_of(word: u64) -> u32 {
    u32::try_from(word >> GENERATION_SHIFT).unwrap_or(0)
}

/// Returns the chunk of a slot, and the position of the slot in the chunk. Chunk k begins at slot
/// `FIRST_CHUNK * (2^k - 1)`: chunk 0 has slots 0 to 15, chunk 1 has slots 16 to 47, chunk 2 has
/// slots 48 to 111.
#[inline]
fn chunk_of(index: usize) -> (usize, usize) {
    let shifted = index + FIRST_CHUNK;
    let chunk = shifted.ilog2() - FIRST_CHUNK.ilog2();
    (chunk as usize, shifted - (FIRST_CHUNK << chunk))
}

#[cfg(all(test, loom))]
mod models;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
