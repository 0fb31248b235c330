//! The send buffers of this rank that other ranks of the node may read by CMA, and the process
//! cookie. A word in shared memory, the *exposure slot*, says for each exposed buffer whether it
//! may be read (see the [exposure table]). A slot belongs to one send, from
//! [`OwnExposedBuffers::expose`] to [`OwnExposedBuffers::release`].
//!
//! The process cookie is a random number in this process's memory, at an address that the exposure
//! table publishes. A reader that finds the number at that address knows that it reads this
//! process, and not another process that has got the same process id.
//!
//! [exposure table]: crate::transport::exposure

use crate::base::ids::Nonce;
use crate::transport::SharedDomain;
use crate::transport::exposure::{EXPOSURE_SLOT_COUNT, ExposureTable, cookie_words};
use std::sync::Arc;

/// The exposed buffers of this rank.
#[derive(Debug)]
pub(super) struct OwnExposedBuffers {
    domain: Arc<dyn SharedDomain>,
    free_slots: FreeExposureSlots,
    /// The process cookie. The exposure table publishes its address, so the cookie must not move.
    cookie: Box<Nonce>,
}

impl OwnExposedBuffers {
    /// Creates the state of a rank that exposes nothing.
    pub(super) fn new(domain: Arc<dyn SharedDomain>, cookie: Nonce) -> Self {
        Self { domain, free_slots: FreeExposureSlots::default(), cookie: Box::new(cookie) }
    }

    fn table(&self) -> ExposureTable<'_> {
        self.domain.region().exposure_table(self.domain.rank())
    }

    /// Publishes the address and the value of the process cookie, which permits peers to read this
    /// process's memory.
    pub(super) fn publish_cookie(&self) {
        let address = u64::try_from(self.cookie.0.as_ptr().addr()).unwrap_or(0);
        self.table().publish_cookie(address, cookie_words(&self.cookie));
    }

    /// Exposes the buffer of send `number`. Returns the slot of the buffer, or `None` if no slot is
    /// free.
    pub(super) fn expose(&mut self, number: u64) -> Option<u16> {
        let slot = self.free_slots.acquire()?;
        self.table().expose(slot, number);
        Some(slot)
    }

    /// Withdraws the buffer of a send. Returns false if the receiver is already reading the buffer.
    pub(super) fn withdraw(&self, slot: u16, number: u64) -> bool {
        self.table().withdraw(slot, number)
    }

    /// Claims the back half of a message for this rank, which then writes it. Returns false if the
    /// receiver has claimed the back half and reads it.
    pub(super) fn begin_split(&self, slot: u16, number: u64) -> bool {
        self.table().begin_split(slot, number)
    }

    /// Frees a slot. The caller ensures that no rank reads the buffer any more.
    pub(super) fn release(&mut self, slot: u16) {
        self.table().release_slot(slot);
        self.free_slots.release(slot);
    }
}

/// The free slots of an exposure table.
#[derive(Debug, Default)]
struct FreeExposureSlots {
    /// The slots that were in use before.
    released: Vec<u16>,
    /// The first slot that was never in use.
    next_unused: u16,
}

impl FreeExposureSlots {
    /// Takes a free slot, if there is one.
    fn acquire(&mut self) -> Option<u16> {
        self.released.pop().or_else(|| {
            let slot = self.next_unused;
            self.next_unused = (slot < EXPOSURE_SLOT_COUNT).then_some(slot + 1)?;
            Some(slot)
        })
    }

    /// Returns a slot that is no longer in use.
    fn release(&mut self, slot: u16) {
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
