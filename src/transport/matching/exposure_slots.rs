//! The free slots of this rank's exposure table.

use crate::transport::exposure::EXPOSURE_SLOT_COUNT;

/// The free slots of an exposure table.
#[derive(Debug, Default)]
pub(super) struct FreeExposureSlots {
    /// The slots that were in use before.
    released: Vec<u16>,
    /// The first slot that was never in use.
    next_unused: u16,
}

impl FreeExposureSlots {
    /// Takes a free slot, if there is one.
    pub(super) fn acquire(&mut self) -> Option<u16> {
        self.released.pop().or_else(|| {
            let slot = self.next_unused;
            self.next_unused = (slot < EXPOSURE_SLOT_COUNT).then_some(slot + 1)?;
            Some(slot)
        })
    }

    /// Returns a slot that is no longer in use.
    pub(super) fn release(&mut self, slot: u16) {
        self.released.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exposure_slot_is_used_once_until_released() {
        let mut slots = FreeExposureSlots::default();
        let all: Vec<u16> = std::iter::from_fn(|| slots.acquire()).collect();
        assert_eq!(all, (0..EXPOSURE_SLOT_COUNT).collect::<Vec<_>>());
        slots.release(7);
        assert_eq!((slots.acquire(), slots.acquire()), (Some(7), None));
    }
}
