//! The control slot: the state that a rank publishes for one *step*. The operations of a group are
//! a sequence of steps that all ranks number in the same way, from 1 (`algo/shared/sequencer`).
//!
//! A slot has 128 bytes, one writer (the rank that owns it) and many readers:
//!
//! ```text
//! bytes   0..64   step | call fingerprint | inline payload, bytes 0..48
//! bytes  64..128  inline payload, bytes 48..88 | descriptor (3 words)
//! ```
//!
//! - The *call fingerprint* is a hash over all operations that the owner has issued in the group so
//!   far. A reader compares it with its own fingerprint, to detect ranks that issue different
//!   calls.
//! - The *inline payload* is the data of a step that needs no data slot.
//! - The *descriptor* has the arguments of the operation. A reader reads it only to explain a
//!   mismatch of the fingerprints.
//!
//! The first cache line has everything that a step with at most 48 payload bytes needs, so such a
//! step moves one line from core to core. A step with a longer payload moves two adjacent lines,
//! which processors fetch together.
//!
//! The owner stores the step number last (release), and a reader loads it first (acquire). A reader
//! that finds the expected step number therefore also sees all other fields of that step. Every
//! field is an atomic word, so a read is no undefined behaviour even while a faulty rank overwrites
//! the slot.

use super::descriptor::Descriptor;
use crate::base::processor;
use crate::base::sync::{AtomicU64, Ordering};

/// The number of control slots per rank. Step n uses slot n modulo 64, so a rank can publish step n
/// only after all readers have finished step n - 64. A root that sends only inline payloads can
/// thus be up to 64 steps ahead of its slowest reader.
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
    /// Writes the slot for `step`. Only the owner calls this function, and only after no reader
    /// needs the previous step of the slot.
    ///
    /// After this call, the owner rings the doorbells of the readers (the futex words on which
    /// waiting ranks sleep). Ringing loads the doorbell's count of sleepers, and this load must not
    /// be executed before the store of the step. The step is stored by a sequentially consistent
    /// read-modify-write, which orders the two. Between this call and
    /// [`Doorbell::notify_fenced`](crate::wait::doorbell::Doorbell::notify_fenced), the caller
    /// therefore needs only [`fence_after_rmw`](crate::base::sync::fence_after_rmw), which executes
    /// no instruction.
    pub fn publish(&self, step: u64, call_fingerprint: u64, descriptor: &[u64; 3], payload: &[u8]) {
        self.fill(call_fingerprint, descriptor, payload);
        // The exchange costs less than a release store with a fence after it.
        self.step.swap(step, Ordering::SeqCst);
    }

    /// Writes the slot as [`CtrlSlot::publish`] does, but stores the step with release ordering
    /// only. The caller must execute `fence(SeqCst)` before it rings a doorbell.
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
            // `to_le` keeps the payload bytes in their order in memory on a big-endian machine
            // too.
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

    /// Returns the call fingerprint that the owner stored with this step.
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

/// Packs up to eight bytes into a word. The first byte becomes the lowest byte of the word.
///
/// The function builds the word in a register. It does not copy the bytes into a `[u8; 8]` and load
/// that array as a word, because this causes a store-forwarding stall. A core cannot forward
/// several narrow stores to one wider load, so the load waits until all these stores have left the
/// store buffer.
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
