//! The additions of the lower bound. They are plain loops that the compiler vectorises. At run
//! time, the functions select the version for the widest vector extension of the processor.
#![allow(unsafe_code, reason = "raw pointers access vectors that other processes use too")]

/// Adds two vectors, and stores the sums in both vectors.
///
/// # Safety
/// Both vectors have `count` elements, and no other code uses them during the call.
pub(super) unsafe fn add_into_both(a: *mut f32, b: *mut f32, count: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has AVX-512. The caller ensures the other conditions.
            return unsafe { x86::add_into_both_avx512(a, b, count) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2. The caller ensures the other conditions.
            return unsafe { x86::add_into_both_avx2(a, b, count) };
        }
    }
    // SAFETY: ensured by the caller.
    unsafe { add_into_both_loop(a, b, count) }
}

/// Adds two vectors, and stores the sums in the first vector.
///
/// # Safety
/// As for [`add_into_both`]. The second vector is only read.
pub(super) unsafe fn add_into_first(a: *mut f32, b: *const f32, count: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has AVX-512. The caller ensures the other conditions.
            return unsafe { x86::add_into_first_avx512(a, b, count) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            return unsafe { x86::add_into_first_avx2(a, b, count) };
        }
    }
    // SAFETY: ensured by the caller.
    unsafe { add_into_first_loop(a, b, count) }
}

/// # Safety
/// That of `add_into_both`.
#[inline(always)]
unsafe fn add_into_both_loop(a: *mut f32, b: *mut f32, count: usize) {
    for index in 0..count {
        // SAFETY: within the vector, as the caller ensures.
        let one = unsafe { a.wrapping_add(index).read() };
        // SAFETY: as above.
        let sum = one + unsafe { b.wrapping_add(index).read() };
        // SAFETY: as above.
        unsafe { a.wrapping_add(index).write(sum) };
        // SAFETY: as above.
        unsafe { b.wrapping_add(index).write(sum) };
    }
}

/// # Safety
/// That of `add_into_first`.
#[inline(always)]
unsafe fn add_into_first_loop(a: *mut f32, b: *const f32, count: usize) {
    for index in 0..count {
        // SAFETY: within the vector, as the caller ensures.
        let one = unsafe { a.wrapping_add(index).read() };
        // SAFETY: as above.
        let sum = one + unsafe { b.wrapping_add(index).read() };
        // SAFETY: as above.
        unsafe { a.wrapping_add(index).write(sum) };
    }
}

/// The same loops, compiled for vector extensions that not every processor has.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{add_into_both_loop, add_into_first_loop};

    /// # Safety
    /// The processor has AVX-512; see also `add_into_both`.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn add_into_both_avx512(a: *mut f32, b: *mut f32, count: usize) {
        // SAFETY: ensured by the caller.
        unsafe { add_into_both_loop(a, b, count) }
    }

    /// # Safety
    /// The processor has AVX2; see also `add_into_both`.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn add_into_both_avx2(a: *mut f32, b: *mut f32, count: usize) {
        // SAFETY: ensured by the caller.
        unsafe { add_into_both_loop(a, b, count) }
    }

    /// # Safety
    /// The processor has AVX-512; see also `add_into_first`.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn add_into_first_avx512(a: *mut f32, b: *const f32, count: usize) {
        // SAFETY: ensured by the caller.
        unsafe { add_into_first_loop(a, b, count) }
    }

    /// # Safety
    /// The processor has AVX2; see also `add_into_first`.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn add_into_first_avx2(a: *mut f32, b: *const f32, count: usize) {
        // SAFETY: ensured by the caller.
        unsafe { add_into_first_loop(a, b, count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_replace_one_or_both_vectors() {
        let (a, b): (Vec<f32>, Vec<f32>) = (0..100u8).map(|n| (f32::from(n), 1.0)).unzip();
        let (mut one, mut two) = (a.clone(), b.clone());
        // SAFETY: both vectors belong to this function and have 100 elements.
        unsafe { add_into_both(one.as_mut_ptr(), two.as_mut_ptr(), 100) };
        assert_eq!(one, two);
        assert_eq!((one[0], one[99]), (1.0, 100.0));
        let mut first = a;
        // SAFETY: as above.
        unsafe { add_into_first(first.as_mut_ptr(), b.as_ptr(), 100) };
        assert_eq!((first, b), (one, vec![1.0; 100]));
    }
}
