//! Copies between callers' buffers and data slots.
//!
//! A vector of at least 8 MiB does not stay in a cache. Its copy uses non-temporal stores, which do
//! not read a cache line before they overwrite it. On a 4th-generation Xeon, copies of 32 MiB and
//! more are a third faster with such stores, and copies of 4 to 16 MiB are as fast. If such a
//! vector is copied in parts, each part uses non-temporal stores, whatever its size. On a
//! 4th-generation EPYC, a broadcast of 256 MiB then takes three quarters of the time.
//!
//! A staged copy is a copy into a data slot ([`stage`]). A staged copy also uses non-temporal
//! stores if the cache lines of the destination belong to a far core, a core of another last-level
//! cache. [`Stager`] measures this with the copy of the first lines (the probe). On a
//! 4th-generation EPYC, the rate at which a core writes lines depends on the core that has read
//! these lines before:
//!
//! | reader | stores | rate |
//! |---|---|---|
//! | core of the same last-level cache | normal | 45 GB/s |
//! | core of another last-level cache | normal | 2.5 GB/s |
//! | core of another last-level cache | non-temporal | 27 GB/s; the reads are as fast |

use super::buffer::{Dst, Src};
use super::processor::read_tsc;
use super::vector_copy::CACHE_LINE;

/// The minimum total size for non-temporal stores.
const NON_TEMPORAL_MIN_BYTES: usize = 8 << 20;

/// The minimum size of a staged copy with a probe, which measures the distance to the core that
/// owns the destination's cache lines.
const PROBE_MIN_BYTES: usize = 16 << 10;
/// The number of bytes from one probe to the next.
const PROBE_INTERVAL_BYTES: usize = 512 << 10;
/// The number of bytes of a probe: more than a core's store buffer holds while it waits for the
/// lines.
const PROBE_BYTES: usize = 8 << 10;
/// If a probe takes more than this number of time stamp counter ticks per cache line, the owner of
/// the lines is far. The counter has 2 to 4 ticks per nanosecond. Near cores took 2 to 20 ticks,
/// far cores 36 to 80.
const FAR_TICKS: u64 = 28;

/// Copies `src` to `dst`. The two may overlap in any way.
///
/// # Panics
/// If the lengths differ.
pub fn copy(dst: Dst<'_>, src: Src<'_>) {
    copy_part(dst.len(), dst, src);
}

/// Copies a part of a vector of `total_bytes` bytes. If the total is at least 8 MiB, the copy uses
/// non-temporal stores.
///
/// # Panics
/// As [`copy()`].
pub fn copy_part(total_bytes: usize, dst: Dst<'_>, src: Src<'_>) {
    if total_bytes >= NON_TEMPORAL_MIN_BYTES {
        dst.copy_past_cache(src);
    } else {
        dst.copy_from(src);
    }
}

/// Copies `src` to `dst`. `dst` is memory such as a data slot, which another core has read before
/// and will read again. The two must not overlap.
///
/// # Panics
/// If the lengths differ.
pub fn stage(dst: Dst<'_>, src: Src<'_>) {
    Stager::for_total(dst.len()).stage(dst, src);
}

/// The state of a staged copy in several pieces.
#[derive(Clone, Copy, Debug)]
pub struct Stager {
    /// The number of bytes until the next probe.
    unprobed_bytes: usize,
    is_far: bool,
}

impl Stager {
    /// Returns a stager for `total_bytes` bytes.
    pub fn for_total(total_bytes: usize) -> Self {
        Self {
            unprobed_bytes: if total_bytes >= PROBE_MIN_BYTES { 0 } else { PROBE_INTERVAL_BYTES },
            is_far: false,
        }
    }

    /// Returns whether the last probe found a far owner. In that case it is faster to produce the
    /// data in a buffer that this core's cache contains, and then to copy the data to the
    /// destination.
    pub fn is_far(self) -> bool {
        self.is_far
    }

    /// Returns how many bytes at the start of the next piece the probe copies, or 0 if no probe is
    /// due.
    pub fn probe_len(self) -> usize {
        if self.unprobed_bytes == 0 { PROBE_BYTES } else { 0 }
    }

    /// Copies one piece, as [`stage`] does.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn stage(&mut self, dst: Dst<'_>, src: Src<'_>) {
        assert!(dst.len() == src.len(), "the source and the destination have different lengths");
        let probed = if dst.len() >= PROBE_BYTES { self.probe_len() } else { 0 };
        if probed > 0 {
            let start_ticks = read_tsc();
            copy(dst.slice(0, probed), src.slice(0, probed));
            self.is_far =
                read_tsc().wrapping_sub(start_ticks) > FAR_TICKS * (probed / CACHE_LINE) as u64;
            self.unprobed_bytes = PROBE_INTERVAL_BYTES;
        }
        let rest = dst.len() - probed;
        self.copy_remainder(dst.slice(probed, rest), src.slice(probed, rest));
        self.record_staged(rest);
    }

    /// Records that `len` bytes of the destination have been written, by this stager or by the
    /// caller itself.
    pub fn record_staged(&mut self, len: usize) {
        self.unprobed_bytes = self.unprobed_bytes.saturating_sub(len);
    }

    fn copy_remainder(self, dst: Dst<'_>, src: Src<'_>) {
        if self.is_far {
            dst.copy_past_cache(src);
        } else {
            copy(dst, src);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_every_length_and_offset_are_correct() {
        let source: Vec<u8> = (0..10_000u32).map(|i| (i * 7 % 251) as u8).collect();
        for len in (0..300).chain(2040..2200).chain([4096, 9000]) {
            for offset in [0, 1, 31, 64] {
                let mut target = vec![0; len + 2];
                let src = Src::from(&source[offset..offset + len]);
                // The first total is the copy's own length; the second is a total that no cache
                // keeps.
                for all in [len, usize::MAX] {
                    target.fill(0);
                    copy_part(all, Dst::from(&mut target[1..=len]), src);
                    assert_eq!(target[1..=len], source[offset..offset + len]);
                    assert_eq!((target[0], target[len + 1]), (0, 0));
                }
            }
        }
    }

    #[test]
    fn staged_copies_are_correct() {
        let source: Vec<u8> = (0..50_000u32).map(|i| (i * 7 % 251) as u8).collect();
        for len in [0, 1, 4096, 16_383, 16_384, 16_385, 20_001, 49_000] {
            for (offset, skew) in [(0, 0), (1, 0), (31, 5), (64, 33)] {
                let mut target = vec![0; len + 66];
                stage(
                    Dst::from(&mut target[skew..skew + len]),
                    Src::from(&source[offset..offset + len]),
                );
                let mut expected = vec![0; len + 66];
                expected[skew..skew + len].copy_from_slice(&source[offset..offset + len]);
                assert_eq!(target, expected, "{len} {offset} {skew}");
            }
        }
    }

    #[test]
    fn overlapping_copies_move_the_bytes() {
        for distance in [0, 1, 100, 3000] {
            let mut bytes: Vec<u8> = (0..8000u32).map(|i| (i * 7 % 251) as u8).collect();
            let expected = [bytes[..distance].to_vec(), bytes[..5000].to_vec()].concat();
            let whole = Dst::from(bytes.as_mut_slice());
            copy(whole.slice(distance, 5000), whole.as_src().slice(0, 5000));
            assert_eq!(bytes[..distance + 5000], expected);
        }
    }
}
