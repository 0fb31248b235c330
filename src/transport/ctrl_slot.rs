//! The control line: what a rank says about one step of an operation.
//!
//! One writer, many readers, 128 bytes. The first 64 hold what the fast path needs (the step
//! number, the fingerprint, the first bytes of a payload), so that a small operation moves one
//! cache line; the second 64 hold the rest of the payload, and at their end the description of the
//! operation, which is read only to explain a mismatch. What needs both moves two lines that lie
//! side by side, which processors fetch together.
//!
//! Every field is an atomic word, so that reading a line while a rank that has gone wrong writes it
//! is harmless. The step number is stored last (release) and read first (acquire).

use super::descriptor::Descriptor;
use crate::base::processor;
use crate::base::sync::{AtomicU64, Ordering};

/// The bytes of payload that fit beside the step number.
pub const INLINE_BYTES: usize = 88;
const INLINE_WORDS: usize = INLINE_BYTES / 8;

/// One control line. All zero bytes are a line never written.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct CtrlSlot {
    step: AtomicU64,
    call_fingerprint: AtomicU64,
    inline: [AtomicU64; INLINE_WORDS],
    descriptor: [AtomicU64; 3],
}

impl CtrlSlot {
    /// Writes the line for `step`. Only its owner does, and only when no reader needs the step that
    /// the line held before. The step is stored by a sequentially consistent read-modify-write,
    /// after which bells may be rung without a fence.
    pub fn publish(&self, step: u64, call_fingerprint: u64, descriptor: &[u64; 3], payload: &[u8]) {
        self.fill(call_fingerprint, descriptor, payload);
        // A fence would cost more than the exchange.
        self.step.swap(step, Ordering::SeqCst);
    }

    /// [`CtrlSlot::publish`] without an order to what this rank reads next: bells need a fence
    /// before they are rung.
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
            // The bytes lie in memory in their order, whatever the machine's.
            cell.store(word_from_bytes(bytes).to_le(), Ordering::Relaxed);
        }
    }

    /// Asks for the line, which is soon read.
    pub fn prefetch_read(&self) {
        let first: *const Self = self;
        processor::prefetch_to_read(first.cast());
    }

    /// Asks for the line, which is soon written.
    pub fn prefetch_write(&self) {
        let first: *const Self = self;
        processor::prefetch_to_write(first.cast());
    }

    /// The step that the line holds.
    pub fn step(&self) -> u64 {
        self.step.load(Ordering::Acquire)
    }

    /// The fingerprint of everything that its owner has done up to this step.
    pub fn call_fingerprint(&self) -> u64 {
        self.call_fingerprint.load(Ordering::Relaxed)
    }

    /// Copies the payload out; `buffer` says how many bytes there are.
    ///
    /// # Panics
    /// If `buffer` is longer than a payload can be.
    pub fn read_payload(&self, into: &mut [u8]) {
        assert!(into.len() <= INLINE_BYTES, "an inline payload has at most {INLINE_BYTES} bytes");
        for (cell, bytes) in self.inline.iter().zip(into.chunks_mut(8)) {
            let word = cell.load(Ordering::Relaxed).to_le().to_le_bytes();
            bytes.copy_from_slice(&word[..bytes.len()]);
        }
    }

    /// Where the bytes of the payload lie.
    pub(super) fn payload_address(&self) -> *const u8 {
        self.inline.as_ptr().cast()
    }

    /// The description of the operation that the line belongs to.
    pub fn descriptor(&self) -> Option<Descriptor> {
        Descriptor::decode(std::array::from_fn(|i| self.descriptor[i].load(Ordering::Relaxed)))
    }
}

/// Up to eight bytes as a word, the first one lowest. Made in a register: a word that was put
/// together in memory cannot be read before all its parts have left the store buffer.
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
        let line = CtrlSlot::default();
        let payload: Vec<u8> = (0..).take(INLINE_BYTES).collect();
        for len in 0..=INLINE_BYTES {
            line.publish(len as u64, 9, &[1, 2, 3], &payload[..len]);
            let mut back = vec![0; len];
            line.read_payload(&mut back);
            assert_eq!(back, payload[..len]);
            assert_eq!((line.step(), line.call_fingerprint()), (len as u64, 9));
        }
        assert_eq!((size_of::<CtrlSlot>(), std::mem::offset_of!(CtrlSlot, descriptor)), (128, 104));
    }
}
