//! The control slot: the state that a rank publishes for one step of an operation.
//!
//! A slot has one writer, many readers, and 128 bytes:
//!
//! ```text
//! bytes   0..64   step | call fingerprint | inline payload, bytes 0..48
//! bytes  64..128  inline payload, bytes 48..88 | descriptor (3 words)
//! ```
//!
//! The first cache line has everything that the fast path needs, so a small operation moves one
//! line. The descriptor is read only to explain a mismatch. A step with a longer payload moves two
//! adjacent lines, which processors fetch together.
//!
//! Every field is an atomic word, so a read is safe even while a faulty rank overwrites the slot.
//! The step number is stored last (release) and read first (acquire).

use super::descriptor::Descriptor;
use crate::base::processor;
use crate::base::sync::{AtomicU64, Ordering};

/// The number of control slots per rank: how many steps a root may be ahead of its readers with
/// small payloads.
pub const CTRL_SLOT_COUNT: u64 = 64;

/// The size of the inline payload in bytes.
pub const INLINE_BYTES: usize = 88;
const INLINE_WORDS: usize = INLINE_BYTES / 8;

/// One control slot. A zeroed slot has never been written.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct CtrlSlot {
    step: AtomicU64,
    call_fingerprint: AtomicU64,
    inline: [AtomicU64; INLINE_WORDS],
    descriptor: [AtomicU64; 3],
}

impl CtrlSlot {
    /// Writes the slot for `step`. Only the owner calls this, once no reader needs the previous
    /// step of the slot. The step is stored by a sequentially consistent read-modify-write, so the
    /// caller may ring doorbells without a fence.
    pub fn publish(&self, step: u64, call_fingerprint: u64, descriptor: &[u64; 3], payload: &[u8]) {
        self.fill(call_fingerprint, descriptor, payload);
        // A fence would cost more than the exchange.
        self.step.swap(step, Ordering::SeqCst);
    }

    /// Writes the slot as [`CtrlSlot::publish`] does, but without ordering the store before later
    /// loads of this rank. The caller needs a fence before it rings a doorbell.
    pub fn publish_unfenced(
        &self,
        step: u64,
        call_fingerprint: u64,
        descriptor: &[u64; 3],
        payload: &[u8],
    ) {
        self.fill(call_fingerprint, descriptor, payload);
        self.step.store(step, Ordering::Release);
    }

    fn fill(&self, call_fingerprint: u64, descriptor: &[u64; 3], payload: &[u8]) {
        self.call_fingerprint.store(call_fingerprint, Ordering::Relaxed);
        for (cell, &word) in self.descriptor.iter().zip(descriptor) {
            cell.store(word, Ordering::Relaxed);
        }
        for (cell, bytes) in self.inline.iter().zip(payload.chunks(8)) {
            // The payload bytes keep their order in memory on a machine of either endianness.
            cell.store(word_from_bytes(bytes).to_le(), Ordering::Relaxed);
        }
    }

    /// Prefetches the slot for a read.
    pub fn prefetch_read(&self) {
        let first: *const Self = self;
        processor::prefetch_to_read(first.cast());
    }

    /// Prefetches the slot for a write.
    pub fn prefetch_write(&self) {
        let first: *const Self = self;
        processor::prefetch_to_write(first.cast());
    }

    /// Returns the step that the slot holds.
    pub fn step(&self) -> u64 {
        self.step.load(Ordering::Acquire)
    }

    /// Returns the fingerprint of all calls of the owner up to this step.
    pub fn call_fingerprint(&self) -> u64 {
        self.call_fingerprint.load(Ordering::Relaxed)
    }

    /// Copies the first `into.len()` bytes of the payload to `into`.
    ///
    /// # Panics
    /// Panics if `into` is longer than [`INLINE_BYTES`].
    pub fn read_payload(&self, into: &mut [u8]) {
        assert!(into.len() <= INLINE_BYTES, "an inline payload has at most {INLINE_BYTES} bytes");
        for (cell, bytes) in self.inline.iter().zip(into.chunks_mut(8)) {
            let word = cell.load(Ordering::Relaxed).to_le().to_le_bytes();
            bytes.copy_from_slice(&word[..bytes.len()]);
        }
    }

    /// Returns the address of the payload.
    pub(super) fn payload_address(&self) -> *const u8 {
        self.inline.as_ptr().cast()
    }

    /// Returns the descriptor of the slot's operation, or `None` if its words are invalid.
    pub fn descriptor(&self) -> Option<Descriptor> {
        Descriptor::decode(std::array::from_fn(|i| self.descriptor[i].load(Ordering::Relaxed)))
    }
}

/// Packs up to eight bytes into a word, the first byte lowest. Builds the word in a register: a
/// load of a word that several narrower stores wrote waits until all of them have left the store
/// buffer.
#[inline]
fn word_from_bytes(bytes: &[u8]) -> u64 {
    match *bytes {
        [a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ctrl_slot_payload_round_trips() {
        let slot = CtrlSlot::default();
        let payload: Vec<u8> = (0..).take(INLINE_BYTES).collect();
        for len in 0..=INLINE_BYTES {
            slot.publish(len as u64, 9, &[1, 2, 3], &payload[..len]);
            let mut back = vec![0; len];
            slot.read_payload(&mut back);
            assert_eq!(back, payload[..len]);
            assert_eq!((slot.step(), slot.call_fingerprint()), (len as u64, 9));
        }
        assert_eq!((size_of::<CtrlSlot>(), std::mem::offset_of!(CtrlSlot, descriptor)), (128, 104));
    }
}
