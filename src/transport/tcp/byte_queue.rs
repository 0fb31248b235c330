//! A queue of bytes in one block of memory: the bytes that a link has read and not used, or that it
//! has still to send. The memory is reused, so a queue that is empty from time to time allocates
//! nothing.
//!
//! The bytes of an empty queue begin at a multiple of [`ALIGNMENT`] in memory, as frames do in
//! their stream.

use super::link_frame::ALIGNMENT;
use crate::base::buffer::{Dst, Src};

/// A queue of bytes.
#[derive(Debug, Default)]
pub(super) struct ByteQueue {
    memory: Vec<u8>,
    /// The position in `memory` that has the alignment.
    base: usize,
    /// The bytes in the queue.
    start: usize,
    end: usize,
}

impl ByteQueue {
    /// Returns an empty queue with this much room.
    pub(super) fn with_room(room: usize) -> Self {
        let mut memory = vec![0; room + ALIGNMENT];
        let base = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        memory.truncate(base + room);
        Self { memory, base, start: base, end: base }
    }

    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.end]
    }

    /// Removes bytes from the front.
    ///
    /// # Panics
    /// If the queue has fewer bytes.
    pub(super) fn take(&mut self, count: usize) {
        assert!(count <= self.len(), "more bytes are taken than there are");
        self.start += count;
        if self.start == self.end {
            self.clear();
        }
    }

    /// Removes bytes from the end, so that `len` are left.
    pub(super) fn truncate(&mut self, len: usize) {
        self.end = self.end.min(self.start + len);
        if self.is_empty() {
            self.clear();
        }
    }

    /// Removes all bytes, and keeps the memory.
    pub(super) fn clear(&mut self) {
        (self.start, self.end) = (self.base, self.base);
    }

    /// Returns the memory behind the bytes, which [`ByteQueue::added`] adds to the queue. It begins
    /// at the front of the memory, as far as possible.
    pub(super) fn room(&mut self) -> &mut [u8] {
        self.move_to_front();
        &mut self.memory[self.end..]
    }

    /// Adds bytes that were written to [`ByteQueue::room`].
    ///
    /// # Panics
    /// If there was less room.
    pub(super) fn added(&mut self, count: usize) {
        assert!(count <= self.memory.len() - self.end, "more bytes than there was room for");
        self.end += count;
    }

    pub(super) fn push(&mut self, bytes: Src<'_>) {
        self.reserve(bytes.len());
        Dst::from(&mut self.memory[self.end..self.end + bytes.len()]).copy_from(bytes);
        self.end += bytes.len();
    }

    /// Adds bytes before the first one.
    pub(super) fn push_front(&mut self, bytes: &[u8]) {
        let behind = self.bytes().to_vec();
        self.clear();
        self.push(Src::from(bytes));
        self.push(Src::from(&behind[..]));
    }

    pub(super) fn push_zeros(&mut self, count: usize) {
        self.reserve(count);
        self.memory[self.end..self.end + count].fill(0);
        self.end += count;
    }

    /// Reduces the memory of an empty queue to this much room if it has more than four times as
    /// much.
    pub(super) fn shrink(&mut self, room: usize) {
        if self.is_empty() && self.memory.len() > 4 * room {
            *self = Self::with_room(room);
        }
    }

    /// Makes room for further bytes.
    fn reserve(&mut self, more: usize) {
        if more <= self.memory.len() - self.end {
            return;
        }
        self.move_to_front();
        if more <= self.memory.len() - self.end {
            return;
        }
        let mut larger = Self::with_room((self.len() + more).next_power_of_two());
        larger.memory[larger.end..larger.end + self.len()].copy_from_slice(self.bytes());
        larger.end += self.len();
        *self = larger;
    }

    fn move_to_front(&mut self) {
        if self.start > self.base {
            self.memory.copy_within(self.start..self.end, self.base);
            (self.start, self.end) = (self.base, self.base + self.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn queue_keeps_the_order(steps in prop::collection::vec((0..6_u8, 0..300_usize), 0..60)) {
            let (mut queue, mut model) = (ByteQueue::with_room(100), VecDeque::new());
            for (number, (step, count)) in (1..=u8::MAX).cycle().zip(steps) {
                match step {
                    0 | 1 => {
                        queue.push(Src::from(&vec![number; count][..]));
                        model.extend(vec![number; count]);
                    }
                    2 => {
                        queue.push_zeros(count);
                        model.extend(vec![0; count]);
                    }
                    3 => {
                        let count = queue.room().len().min(count);
                        queue.room()[..count].fill(number);
                        queue.added(count);
                        model.extend(vec![number; count]);
                    }
                    4 => {
                        queue.truncate(count);
                        model.truncate(count);
                    }
                    _ => {
                        let count = queue.len().min(count);
                        queue.take(count);
                        drop(model.drain(..count));
                    }
                }
                prop_assert_eq!(queue.bytes(), &*model.make_contiguous());
                if queue.is_empty() {
                    prop_assert_eq!(queue.room().as_ptr().align_offset(ALIGNMENT), 0);
                    queue.shrink(100);
                }
            }
        }
    }
}
