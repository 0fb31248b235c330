//! Partition of buffers into byte ranges:
//!
//! - A *slice* is the range of a vector that one rank owns, for example the range that it folds.
//! - A *chunk* is a range that an algorithm handles in one step. It fits in a data slot (a buffer
//!   of one rank in shared memory).
//! - A *part* is the range of a data slot that contains the data for one other rank. The *stride*
//!   is the distance between the starts of two adjacent parts.

use std::ops::Range;

/// The size of a cache line in bytes. Slices start at multiples of it.
const CACHE_LINE: usize = 64;

/// Returns the byte range of the slice that rank `rank` of `ranks` owns, for a vector of `bytes`
/// bytes. Slices are disjoint, cover the vector in rank order, and start at multiples of a cache
/// line. The slices of the last ranks may be empty. Every element is within one slice, because a
/// cache line is a multiple of each element size.
pub fn owned_slice(bytes: usize, ranks: usize, rank: usize) -> Range<usize> {
    let lines = bytes.div_ceil(CACHE_LINE);
    let cut = |rank: usize| {
        let whole = lines / ranks * rank;
        let rest = (lines % ranks) * rank / ranks;
        ((whole + rest) * CACHE_LINE).min(bytes)
    };
    cut(rank)..cut(rank + 1)
}

/// Returns the length of the longest slice of a vector of `bytes` bytes.
pub fn longest_slice(bytes: usize, ranks: usize) -> usize {
    (0..ranks).map(|rank| owned_slice(bytes, ranks, rank).len()).max().unwrap_or(0)
}

/// Returns an upper bound of the slice lengths of a vector of `bytes` bytes, without a loop over
/// the ranks.
pub fn max_slice_bytes(bytes: usize, ranks: usize) -> usize {
    bytes.div_ceil(CACHE_LINE).div_ceil(ranks) * CACHE_LINE
}

/// Returns the chunks of a vector of `bytes` bytes. Each chunk has at most `max_chunk` bytes. An
/// empty vector has one empty chunk, so that every call takes at least one step.
pub fn chunks(bytes: usize, max_chunk: usize) -> impl Iterator<Item = Range<usize>> {
    let count = bytes.div_ceil(max_chunk).max(1);
    (0..count).map(move |i| i * max_chunk..((i + 1) * max_chunk).min(bytes))
}

/// Clips a chunk, which was computed for the longest block, to a block of `bytes` bytes. The result
/// may be shorter than the chunk, or empty.
pub fn clip_to_block(chunk: &Range<usize>, bytes: usize) -> Range<usize> {
    chunk.start.min(bytes)..chunk.end.min(bytes)
}

/// Returns the number of bytes for each block, if `blocks` blocks share `bytes` bytes. The result
/// is a whole number of cache lines if each block gets at least one cache line.
pub fn bytes_per_block(bytes: usize, blocks: usize) -> usize {
    let most = bytes / blocks;
    if most < CACHE_LINE { most.max(1) } else { most / CACHE_LINE * CACHE_LINE }
}

/// Returns the stride of parts of `bytes` bytes: the next multiple of a cache line, but at most
/// `max_stride`.
pub fn part_stride(bytes: usize, max_stride: usize) -> usize {
    bytes.next_multiple_of(CACHE_LINE).min(max_stride)
}

/// Returns the index of the part for `rank` in a data slot of `owner`. The first part is for the
/// rank after `owner`, the next part for the rank after that, and so on. If the slot has a part for
/// the owner, that part is last. For 4 ranks and owner 1, the order is 2, 3, 0, 1.
pub fn part_index(rank: usize, owner: usize, ranks: usize) -> usize {
    (if rank > owner { rank } else { rank + ranks }) - owner - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_every_vector_once() {
        for ranks in 1..=64 {
            for bytes in (0..600).chain([4096, 65_536, 1_000_003]) {
                let mut next = 0;
                for rank in 0..ranks {
                    let slice = owned_slice(bytes, ranks, rank);
                    assert_eq!(slice.start, next);
                    assert!(slice.is_empty() || slice.start.is_multiple_of(CACHE_LINE));
                    next = slice.end;
                }
                assert_eq!(next, bytes);
                let most = (0..ranks).map(|r| owned_slice(bytes, ranks, r).len()).max().unwrap();
                assert!(most <= max_slice_bytes(bytes, ranks));
                assert!(
                    max_slice_bytes(bytes, ranks) <= (bytes / ranks / CACHE_LINE + 2) * CACHE_LINE
                );
            }
        }
    }

    #[test]
    fn chunks_of_the_longest_block_cover_shorter_ones_once() {
        for bytes in [0, 1, 63, 64, 100, 1000] {
            let parts = chunks(1000, 64).map(|chunk| clip_to_block(&chunk, bytes));
            let all: Vec<usize> = parts.flatten().collect();
            assert_eq!(all, (0..bytes).collect::<Vec<_>>());
        }
    }

    #[test]
    fn part_stride_is_cache_aligned_if_there_is_room() {
        assert_eq!(
            [part_stride(0, 64), part_stride(1, 64), part_stride(64, 1000), part_stride(65, 1000)],
            [0, 64, 64, 128]
        );
        assert_eq!(part_stride(99, 100), 100);
    }

    #[test]
    fn part_indices_are_unique_and_the_owner_is_last() {
        for ranks in 1..10 {
            for owner in 0..ranks {
                let mut parts: Vec<_> =
                    (0..ranks).map(|rank| part_index(rank, owner, ranks)).collect();
                assert_eq!(parts[owner], ranks - 1);
                assert_eq!(parts[(owner + 1) % ranks], 0);
                parts.sort_unstable();
                assert_eq!(parts, (0..ranks).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn bytes_per_block_fit_the_total() {
        for bytes in [16, 64, 100, 4096, 65_536] {
            for blocks in (1..=64).filter(|&blocks| blocks <= bytes) {
                let share = bytes_per_block(bytes, blocks);
                assert!(share > 0 && share * blocks <= bytes);
                assert!(share < 64 || share.is_multiple_of(64));
            }
        }
    }

    #[test]
    fn chunks_cover_every_vector_once() {
        for most in [16, 64, 4096] {
            for bytes in [0, 1, 15, 16, 17, 4095, 4096, 4097, 100_000] {
                let all: Vec<_> = chunks(bytes, most).collect();
                assert!(!all.is_empty());
                assert!(all.iter().all(|chunk| chunk.len() <= most));
                assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start));
                assert_eq!((all[0].start, all[all.len() - 1].end), (0, bytes));
            }
        }
    }
}
