//! Which processors ranks may use, and whether there is one for each: else whoever waits lets
//! others run.

use std::ffi::c_int;

/// Their numbers as bits.
pub(crate) type Processors = [u64; WORDS];

/// As many as the C library has room for in its own sets.
const WORDS: usize = 16;

/// Those that this process may use; none where that cannot be known.
pub(crate) fn own() -> Processors {
    unsafe extern "C" {
        fn sched_getaffinity(process: c_int, bytes: usize, mask: *mut u64) -> c_int;
    }
    let mut mask = [0; WORDS];
    // SAFETY: room for so many bytes, about the calling thread.
    let status = unsafe { sched_getaffinity(0, size_of::<Processors>(), mask.as_mut_ptr()) };
    if status < 0 { [0; WORDS] } else { mask }
}

/// What another rank has told.
pub(crate) fn read(bytes: &[u8]) -> Processors {
    let mut all = [0; WORDS];
    for (word, bytes) in all.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = bytes.try_into().map(u64::from_le_bytes).unwrap_or(0);
    }
    all
}

/// Whether ranks of one host have fewer processors than they are.
pub(crate) fn are_too_few(ranks: &[Processors]) -> bool {
    let together = (0..WORDS).map(|at| ranks.iter().fold(0, |all, rank| all | rank[at]));
    let count: usize = together.map(|word: u64| word.count_ones() as usize).sum();
    count > 0 && count < ranks.len()
}
