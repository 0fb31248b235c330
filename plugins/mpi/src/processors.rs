//! The processors that ranks may use. If a host has fewer processors than ranks, waiting ranks
//! yield to other ranks.

use std::ffi::c_int;

/// A set of processors, as bits.
pub(crate) type Processors = [u64; WORDS];

/// The size of the C library's processor sets.
const WORDS: usize = 16;

/// Returns the processors of this process; an empty set if they are unknown.
pub(crate) fn current() -> Processors {
    unsafe extern "C" {
        fn sched_getaffinity(process: c_int, bytes: usize, mask: *mut u64) -> c_int;
    }
    let mut mask = [0; WORDS];
    // SAFETY: the buffer has this number of bytes; the query is about the calling thread.
    let status = unsafe { sched_getaffinity(0, size_of::<Processors>(), mask.as_mut_ptr()) };
    if status < 0 { [0; WORDS] } else { mask }
}

/// Decodes the set of another rank.
pub(crate) fn decode(bytes: &[u8]) -> Processors {
    let mut all = [0; WORDS];
    for (word, bytes) in all.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = bytes.try_into().map(u64::from_le_bytes).unwrap_or(0);
    }
    all
}

/// Returns true if the ranks of one host outnumber their processors.
pub(crate) fn are_oversubscribed(ranks: &[Processors]) -> bool {
    let union = (0..WORDS).map(|index| ranks.iter().fold(0, |all, rank| all | rank[index]));
    let count: usize = union.map(|word: u64| word.count_ones() as usize).sum();
    count > 0 && count < ranks.len()
}
