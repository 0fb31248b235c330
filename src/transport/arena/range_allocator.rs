//! A best-fit allocator for a range of offsets: an allocation takes the smallest free range that
//! has room for it. Adjacent free ranges are merged.
//!
//! The allocator only calculates with offsets and stores nothing in the memory that it divides. A
//! process that can write to that memory therefore cannot corrupt the allocator.

use std::collections::{BTreeMap, BTreeSet};

/// The free and the used ranges.
#[derive(Debug)]
pub(super) struct RangeAllocator {
    /// The length of each free range, by its offset. No two free ranges are adjacent.
    free_ranges: BTreeMap<usize, usize>,
    /// The same free ranges as pairs of length and offset, so that they are sorted by length.
    free_by_len: BTreeSet<(usize, usize)>,
    /// The length of each used range, by its offset.
    used_ranges: BTreeMap<usize, usize>,
    used_bytes: usize,
}

impl RangeAllocator {
    /// Creates an allocator for `len` bytes, all free.
    pub(super) fn new(len: usize) -> Self {
        let mut space = Self {
            free_ranges: BTreeMap::new(),
            free_by_len: BTreeSet::new(),
            used_ranges: BTreeMap::new(),
            used_bytes: 0,
        };
        space.insert_free(0, len);
        space
    }

    /// Allocates `len` bytes at a multiple of `align`, in the smallest free range that has room.
    /// `len` must not be 0.
    pub(super) fn allocate(&mut self, len: usize, align: usize) -> Option<usize> {
        let best_fit = self.free_by_len.range((len, 0)..).find_map(|&(part, start)| {
            let offset = start.next_multiple_of(align);
            let end = offset.checked_add(len)?;
            (end <= start + part).then_some((part, start, offset))
        });
        let (part, start, offset) = best_fit?;
        self.remove_free(start, part);
        self.insert_free(start, offset - start);
        self.insert_free(offset + len, start + part - offset - len);
        self.used_ranges.insert(offset, len);
        self.used_bytes += len;
        Some(offset)
    }

    /// Releases the used range at this offset, which [`RangeAllocator::allocate`] returned. Returns
    /// the length of the range, or `None` if no used range begins at this offset.
    pub(super) fn release(&mut self, offset: usize) -> Option<usize> {
        let len = self.used_ranges.remove(&offset)?;
        self.used_bytes -= len;
        let (mut start, mut end) = (offset, offset + len);
        if let Some((&before, &part)) = self.free_ranges.range(..offset).next_back()
            && before + part == offset
        {
            self.remove_free(before, part);
            start = before;
        }
        if let Some(&part) = self.free_ranges.get(&end) {
            self.remove_free(end, part);
            end += part;
        }
        self.insert_free(start, end - start);
        Some(len)
    }

    /// Returns the start of the used range that contains the byte at this offset.
    pub(super) fn allocated_at(&self, offset: usize) -> Option<usize> {
        let (&start, &len) = self.used_ranges.range(..=offset).next_back()?;
        (offset - start < len).then_some(start)
    }

    /// Returns the number of used bytes.
    pub(super) fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    /// Returns the length of the longest free range.
    pub(super) fn longest_free(&self) -> usize {
        self.free_by_len.last().map_or(0, |&(len, _)| len)
    }

    fn insert_free(&mut self, offset: usize, len: usize) {
        if len > 0 {
            self.free_ranges.insert(offset, len);
            self.free_by_len.insert((len, offset));
        }
    }

    fn remove_free(&mut self, offset: usize, len: usize) {
        self.free_ranges.remove(&offset);
        self.free_by_len.remove(&(len, offset));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LEN: usize = 1 << 12;

    /// A model of the range: the owner of each byte.
    struct Model(Vec<Option<usize>>);

    impl Model {
        fn fits(&self, len: usize, align: usize) -> bool {
            (0..=LEN.saturating_sub(len))
                .step_by(align)
                .any(|start| self.0[start..start + len].iter().all(Option::is_none))
        }
    }

    fn step() -> impl Strategy<Value = (bool, usize, u32)> {
        (any::<bool>(), 1..LEN / 4, 0u32..9)
    }

    proptest! {
        #[test]
        fn ranges_are_aligned_disjoint_and_found_if_they_fit(
            steps in proptest::collection::vec(step(), 1..60)
        ) {
            let (mut space, mut model) = (RangeAllocator::new(LEN), Model(vec![None; LEN]));
            let mut held: Vec<(usize, usize)> = Vec::new();
            for (number, (take, len, align)) in steps.into_iter().enumerate() {
                if take || held.is_empty() {
                    let align = 1 << align;
                    let taken = space.allocate(len, align);
                    prop_assert_eq!(taken.is_some(), model.fits(len, align));
                    let Some(offset) = taken else { continue };
                    prop_assert_eq!(offset % align, 0);
                    for owner in &mut model.0[offset..offset + len] {
                        prop_assert_eq!(owner.replace(number), None);
                    }
                    held.push((offset, len));
                } else {
                    let (offset, len) = held.swap_remove(len % held.len());
                    prop_assert_eq!(space.release(offset), Some(len));
                    prop_assert_eq!(space.release(offset), None);
                    model.0[offset..offset + len].fill(None);
                }
                prop_assert_eq!(space.used_bytes(), held.iter().map(|(_, len)| len).sum::<usize>());
            }
            for (offset, _) in held {
                prop_assert!(space.release(offset).is_some());
            }
            prop_assert_eq!(space.longest_free(), LEN);
        }
    }

    #[test]
    fn best_fitting_range_is_taken() {
        let mut space = RangeAllocator::new(1000);
        let parts: Vec<usize> = (0..5).map(|_| space.allocate(100, 1).unwrap()).collect();
        space.release(parts[1]);
        assert_eq!(space.allocate(60, 1), Some(parts[1]));
        assert_eq!(space.allocate(1000, 1), None);
        assert_eq!(space.release(parts[1] + 1), None);
    }
}
