//! Copies of bytes with vector loads and stores. Callers use [`super::copy`] or
//! [`super::buffer::Dst::copy_from`].
//!
//! Copies of 2 KiB and more do not use the C library's memmove, because memmove uses `rep movsb`.
//! On AMD's Zen 3, `rep movsb` falls from 30 GB/s to 2 GB/s if the destination is 1 to 31 bytes
//! after the source, modulo 4096. Vector copies have the same rate at every distance: 20 to
//! 40 GB/s in cache. On some processors `rep movsb` is slow at other distances, too.
#![allow(
    unsafe_code,
    reason = "memory that other processes may write is copied through raw pointers"
)]

/// The size of a cache line, the unit of transfer between cores.
pub(super) const CACHE_LINE: usize = 64;

/// The minimum size at which the vector loop pays; below it, memmove is as fast, and does not use
/// `rep movsb`.
#[cfg(target_arch = "x86_64")]
const VECTOR_COPY_MIN_BYTES: usize = 2048;

/// How the bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreKind {
    /// In the cache.
    Cached,
    /// Past the cache, with non-temporal stores, if the two ranges do not overlap.
    NonTemporal,
}

/// Moves `len` bytes. The two ranges may overlap in any way. Callers copy the shortest ranges
/// themselves.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes.
#[inline(never)]
pub(super) unsafe fn move_bytes(to: *mut u8, from: *const u8, len: usize, stores: StoreKind) {
    #[cfg(target_arch = "x86_64")]
    if len >= VECTOR_COPY_MIN_BYTES
        && to.addr().abs_diff(from.addr()) >= len
        && is_x86_feature_detected!("avx")
    {
        let copy_loop = match stores {
            StoreKind::Cached => copy_avx,
            StoreKind::NonTemporal => copy_avx_non_temporal,
        };
        // SAFETY: AVX was detected. Both ranges are valid by the caller's guarantee, do not
        // overlap, and are longer than two iterations of either loop.
        return unsafe { copy_loop(to, from, len) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = stores;
    // SAFETY: the caller gives the same guarantee.
    unsafe { std::ptr::copy(from, to, len) };
}

/// Copies with 32-byte loads and stores.
///
/// # Safety
/// The processor has AVX, and `len` is at least 128. `from` is readable and `to` is writable for
/// `len` bytes. The two ranges do not overlap.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn copy_avx(to: *mut u8, from: *const u8, len: usize) {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_storeu_si256};
    const UNROLLED_BYTES: usize = 128;
    let copy_block = |offset: usize| {
        let load = |part: usize| {
            let address = from.wrapping_add(offset + 32 * part).cast::<__m256i>();
            // SAFETY: within the `len` readable bytes; no alignment is needed.
            unsafe { _mm256_loadu_si256(address) }
        };
        let parts = [load(0), load(1), load(2), load(3)];
        for (part, value) in parts.into_iter().enumerate() {
            let address = to.wrapping_add(offset + 32 * part).cast::<__m256i>();
            // SAFETY: within the `len` writable bytes; no alignment is needed.
            unsafe { _mm256_storeu_si256(address, value) };
        }
    };
    (0..len / UNROLLED_BYTES).for_each(|i| copy_block(i * UNROLLED_BYTES));
    // The last block may overlap bytes that are copied already.
    copy_block(len - UNROLLED_BYTES);
}

/// Copies with non-temporal stores.
///
/// # Safety
/// As [`copy_avx`], and `len` is at least two cache lines.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn copy_avx_non_temporal(to: *mut u8, from: *const u8, len: usize) {
    use std::arch::x86_64::{
        __m256i, _mm_sfence, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_stream_si256,
    };
    let load = |offset: usize| {
        // SAFETY: within the `len` readable bytes; no alignment is needed.
        unsafe { _mm256_loadu_si256(from.wrapping_add(offset).cast::<__m256i>()) }
    };
    // The first and the last cache line may be partial, so normal stores write them.
    for offset in [0, 32, len - 64, len - 32] {
        let value = load(offset);
        // SAFETY: within the `len` writable bytes; no alignment is needed.
        unsafe { _mm256_storeu_si256(to.wrapping_add(offset).cast::<__m256i>(), value) };
    }
    let aligned_start = to.align_offset(CACHE_LINE).min(len);
    for offset in (aligned_start..=len - CACHE_LINE).step_by(CACHE_LINE) {
        for half in [offset, offset + 32] {
            let value = load(half);
            // SAFETY: within the `len` writable bytes; `aligned_start` is on a cache line, which
            // aligns both halves.
            unsafe { _mm256_stream_si256(to.wrapping_add(half).cast::<__m256i>(), value) };
        }
    }
    // The fence orders the non-temporal stores before a later store that publishes the data.
    _mm_sfence();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn non_temporal_copies_are_correct() {
        if !is_x86_feature_detected!("avx") {
            return;
        }
        let source: Vec<u8> = (0..10_000u32).map(|i| (i * 7 % 251) as u8).collect();
        for len in (128..260).chain([4096, 9000]) {
            for (offset, skew) in [(0, 0), (1, 0), (31, 5), (64, 33), (7, 63)] {
                let mut target = vec![0; len + 66];
                let (to, from) = (target[1 + skew..].as_mut_ptr(), source[offset..].as_ptr());
                // SAFETY: AVX was detected; both are valid for `len` bytes from there, at least two
                // cache lines.
                unsafe { copy_avx_non_temporal(to, from, len) };
                let mut expected = vec![0; len + 66];
                expected[1 + skew..][..len].copy_from_slice(&source[offset..offset + len]);
                assert_eq!(target, expected, "{len} {offset} {skew}");
            }
        }
    }
}
