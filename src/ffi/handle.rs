//! Handles: tokens dressed as pointers, looked up and never dereferenced.
//!
//! A token holds what kind of object it names, a slot and the slot's generation, so that a released,
//! foreign or made-up handle is told apart from a good one without touching memory.

use crate::base::error::{Error, ErrorKind, Result};
use std::sync::{Arc, PoisonError, RwLock};

const _: () = assert!(usize::BITS == 64, "a handle needs 64 bits");

const KIND_BITS: u32 = 4;
const SLOT_BITS: u32 = 28;

/// What a handle names. The numbers are part of the token; none is 0, so that no token is NULL.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Group = 1,
    Store = 2,
    Blob = 3,
    Work = 4,
    Message = 5,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Group => "dist_group_t",
            Self::Store => "dist_store_t",
            Self::Blob => "dist_blob_t",
            Self::Work => "dist_work_t",
            Self::Message => "dist_message_t",
        }
    }
}

/// The objects of one kind.
#[derive(Debug)]
pub(super) struct Table<T> {
    kind: Kind,
    slots: RwLock<Slots<T>>,
}

#[derive(Debug)]
struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<usize>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<Arc<T>>,
}

impl<T> Table<T> {
    pub(super) const fn new(kind: Kind) -> Self {
        Self { kind, slots: RwLock::new(Slots { slots: Vec::new(), free: Vec::new() }) }
    }

    /// A new handle for an object.
    pub(super) fn insert<H>(&self, value: Arc<T>) -> Result<*mut H> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let index = match slots.free.pop() {
            Some(index) => index,
            None if slots.slots.len() < 1 << SLOT_BITS => {
                slots.slots.push(Slot { generation: 0, value: None });
                slots.slots.len() - 1
            }
            None => {
                let message = format!("too many objects of type {}", self.kind.name());
                return Err(Error::new(ErrorKind::OutOfMemory, message));
            }
        };
        let slot = &mut slots.slots[index];
        slot.generation = slot.generation.wrapping_add(1);
        slot.value = Some(value);
        Ok(std::ptr::without_provenance_mut(self.token(index, slot.generation)))
    }

    /// The object that a handle names.
    pub(super) fn get<H>(&self, handle: *const H) -> Result<Arc<T>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let index = self.index(handle.addr());
        let slot = index.and_then(|(index, generation)| {
            slots.slots.get(index).filter(|slot| slot.generation == generation)
        });
        slot.and_then(|slot| slot.value.clone()).ok_or_else(|| self.invalid(handle.addr()))
    }

    /// All objects that have a handle.
    pub(super) fn all(&self) -> Vec<Arc<T>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.slots.iter().filter_map(|slot| slot.value.clone()).collect()
    }

    /// Ends a handle; the object lives on while a call uses it.
    pub(super) fn remove<H>(&self, handle: *const H) -> Result<Arc<T>> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let index = self.index(handle.addr());
        let taken = index.and_then(|(index, generation)| {
            let slot = slots.slots.get_mut(index).filter(|slot| slot.generation == generation)?;
            Some((index, slot.value.take()?))
        });
        let (index, value) = taken.ok_or_else(|| self.invalid(handle.addr()))?;
        slots.free.push(index);
        Ok(value)
    }

    fn token(&self, index: usize, generation: u32) -> usize {
        (generation as usize) << (KIND_BITS + SLOT_BITS) | index << KIND_BITS | self.kind as usize
    }

    fn index(&self, token: usize) -> Option<(usize, u32)> {
        let kind = token & ((1 << KIND_BITS) - 1);
        let index = (token >> KIND_BITS) & ((1 << SLOT_BITS) - 1);
        let generation = u32::try_from(token >> (KIND_BITS + SLOT_BITS)).ok()?;
        (kind == self.kind as usize).then_some((index, generation))
    }

    fn invalid(&self, token: usize) -> Error {
        let name = self.kind.name();
        let message = match token {
            0 => format!("the {name} handle is NULL"),
            _ => format!(
                "{token:#x} is not a live {name} (released, of another type, or never made)"
            ),
        };
        Error::new(ErrorKind::InvalidHandle, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_live_handles_of_the_right_kind_are_found() {
        let (groups, stores) = (Table::new(Kind::Group), Table::new(Kind::Store));
        let first: *mut u8 = groups.insert(Arc::new(1)).unwrap();
        let store: *mut u8 = stores.insert(Arc::new(2)).unwrap();
        assert_eq!(*groups.get(first).unwrap(), 1);
        assert!(groups.get(store).is_err());
        assert!(groups.get(std::ptr::null::<u8>()).is_err());
        assert!(groups.get(std::ptr::without_provenance::<u8>(0xdead_beef)).is_err());
        assert_eq!(*groups.remove(first).unwrap(), 1);
        assert!(groups.remove(first).is_err());
        let second: *mut u8 = groups.insert(Arc::new(3)).unwrap();
        assert_ne!(first, second);
        assert!(groups.get(first).is_err());
        assert_eq!(*groups.get(second).unwrap(), 3);
    }
}
