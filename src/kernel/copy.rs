//! Copying between a caller's buffer and a slot, or another.
//!
//! Large copies do not go through the C library's memmove: on some processors that uses `rep movsb`,
//! which is several times slower where source and destination lie at the same offset within their
//! pages, and buffers and slots mostly do (on a Zen 3 with glibc 2.36, 256 KiB took 3 to 4 times as
//! long as with vector loads and stores).
//!
//! What is longer than any cache keeps is stored past the caches, so that no line is read only to be overwritten: on a Xeon of the
//! fourth generation 32 MiB and more are copied a third faster so, and 4 to 16 MiB as fast.

use crate::base::buffer::{Dst, Src};

/// From here on the loop pays; below it memmove is as good.
#[cfg(target_arch = "x86_64")]
const LARGE: usize = 2048;

/// From here on stores go past the caches.
#[cfg(target_arch = "x86_64")]
const HUGE: usize = 8 << 20;

/// Copies `src` to `dst`; they may overlap in any way.
///
/// # Panics
/// If the lengths differ.
pub fn copy(dst: Dst<'_>, src: Src<'_>) {
    #[cfg(target_arch = "x86_64")]
    if dst.len() >= LARGE && dst.len() == src.len() && is_x86_feature_detected!("avx") {
        let (to, from, len) = (dst.as_mut_ptr(), src.as_ptr(), dst.len());
        if to.addr().abs_diff(from.addr()) >= len {
            let way = if len >= HUGE { past_caches } else { vectors };
            // SAFETY: AVX was found; both views are valid for `len` bytes by the obligation of their
            // constructors, do not overlap, and are longer than two turns of either loop.
            unsafe { way(to, from, len) };
            return;
        }
    }
    dst.copy_from(src);
}

/// Copies with 32-byte loads and stores.
///
/// # Safety
/// The processor has AVX; `from` is readable and `to` writable for `len` bytes, at least 128; they do
/// not overlap.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn vectors(to: *mut u8, from: *const u8, len: usize) {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_storeu_si256};
    const TURN: usize = 128;
    let turn = |offset: usize| {
        let load = |part: usize| {
            let address = from.wrapping_add(offset + 32 * part).cast::<__m256i>();
            // SAFETY: inside the `len` readable bytes; no alignment is needed.
            unsafe { _mm256_loadu_si256(address) }
        };
        let parts = [load(0), load(1), load(2), load(3)];
        for (part, value) in parts.into_iter().enumerate() {
            let address = to.wrapping_add(offset + 32 * part).cast::<__m256i>();
            // SAFETY: inside the `len` writable bytes; no alignment is needed.
            unsafe { _mm256_storeu_si256(address, value) };
        }
    };
    (0..len / TURN).for_each(|i| turn(i * TURN));
    // The rest, together with bytes that have been copied already.
    turn(len - TURN);
}

/// The same with stores past the caches.
///
/// # Safety
/// As [`vectors`], and at least two lines long.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn past_caches(to: *mut u8, from: *const u8, len: usize) {
    use std::arch::x86_64::{
        __m256i, _mm_sfence, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_stream_si256,
    };
    const LINE: usize = 64;
    let load = |offset: usize| {
        // SAFETY: inside the `len` readable bytes; no alignment is needed.
        unsafe { _mm256_loadu_si256(from.wrapping_add(offset).cast::<__m256i>()) }
    };
    // The ends may not fill their lines.
    for offset in [0, 32, len - 64, len - 32] {
        let value = load(offset);
        // SAFETY: inside the `len` writable bytes; no alignment is needed.
        unsafe { _mm256_storeu_si256(to.wrapping_add(offset).cast::<__m256i>(), value) };
    }
    let skipped = to.align_offset(LINE).min(len);
    for offset in (skipped..=len - LINE).step_by(LINE) {
        for half in [offset, offset + 32] {
            let value = load(half);
            // SAFETY: inside the `len` writable bytes; lines begin at `skipped`, which aligns both halves.
            unsafe { _mm256_stream_si256(to.wrapping_add(half).cast::<__m256i>(), value) };
        }
    }
    // What is published afterwards is seen after what was stored here.
    _mm_sfence();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_offset_arrives_whole() {
        let source: Vec<u8> = (0..10_000u32).map(|i| (i * 7 % 251) as u8).collect();
        for len in (0..300).chain(2040..2200).chain([4096, 9000]) {
            for offset in [0, 1, 31, 64] {
                let mut target = vec![0; len + 2];
                let src = Src::from(&source[offset..offset + len]);
                copy(Dst::from(&mut target[1..=len]), src);
                assert_eq!(target[1..=len], source[offset..offset + len]);
                assert_eq!((target[0], target[len + 1]), (0, 0));
            }
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    #[allow(unsafe_code, reason = "the loop by itself, without as many bytes as it is for")]
    fn what_goes_past_the_caches_arrives_whole() {
        if !is_x86_feature_detected!("avx") {
            return;
        }
        let source: Vec<u8> = (0..10_000u32).map(|i| (i * 7 % 251) as u8).collect();
        for len in (128..260).chain([4096, 9000]) {
            for (offset, skew) in [(0, 0), (1, 0), (31, 5), (64, 33), (7, 63)] {
                let mut target = vec![0; len + 66];
                let (to, from) = (target[1 + skew..].as_mut_ptr(), source[offset..].as_ptr());
                // SAFETY: AVX was found; both have room for `len` bytes from there, at least two lines.
                unsafe { past_caches(to, from, len) };
                let mut expected = vec![0; len + 66];
                expected[1 + skew..][..len].copy_from_slice(&source[offset..offset + len]);
                assert_eq!(target, expected, "{len} {offset} {skew}");
            }
        }
    }

    #[test]
    fn overlaps_are_moved() {
        for distance in [0, 1, 100, 3000] {
            let mut bytes: Vec<u8> = (0..8000u32).map(|i| (i * 7 % 251) as u8).collect();
            let expected = [bytes[..distance].to_vec(), bytes[..5000].to_vec()].concat();
            let whole = Dst::from(bytes.as_mut_slice());
            copy(whole.slice(distance, 5000), whole.as_src().slice(0, 5000));
            assert_eq!(bytes[..distance + 5000], expected);
        }
    }
}
