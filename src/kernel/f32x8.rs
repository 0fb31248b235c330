//! Conversions and arithmetic of f16, bf16, f8e4m3 and f8e5m2 in vectors of 8 elements, with x86-64
//! instructions (AVX2, F16C). The compiler cannot generate the instructions that convert f16, and
//! generates slower code for the other types.
//!
//! The results are equal to the results of [`super::minifloat`], bit for bit.

use super::element::{Element, Numeric, Real};
use super::minifloat::{Bf16, F8E4M3, F8E5M2, F16, FloatFormat};
use std::arch::x86_64::*;
use std::marker::PhantomData;

/// A vector of 8 elements of the type `F`. Only loops that are compiled for AVX2 and F16C may use
/// this type, and only on a processor that has both.
pub(super) struct SmallFloatX8<F>(PhantomData<F>);

/// The number of elements in a vector.
pub(super) const LANES: usize = 8;

/// A vector of 8 f32.
#[derive(Clone, Copy)]
#[repr(align(32))]
pub(super) struct F32x8([f32; 8]);

impl From<__m256> for F32x8 {
    #[inline(always)]
    fn from(values: __m256) -> Self {
        // SAFETY: both types are 32 bytes of any value.
        unsafe { std::mem::transmute(values) }
    }
}

impl From<F32x8> for __m256 {
    #[inline(always)]
    fn from(lanes: F32x8) -> Self {
        // SAFETY: both types are 32 bytes of any value.
        unsafe { std::mem::transmute(lanes) }
    }
}

#[cfg(test)]
impl From<[f32; LANES]> for F32x8 {
    fn from(values: [f32; LANES]) -> Self {
        Self(values)
    }
}

#[cfg(test)]
impl From<F32x8> for [f32; LANES] {
    fn from(lanes: F32x8) -> Self {
        lanes.0
    }
}

/// The conversions of a vector of 8 elements of one type.
trait VectorConversion {
    /// Converts 8 codes (bit patterns of elements) to f32. Each code has 16 bits; the caller
    /// sign-extends a code of 8 bits to 16 bits.
    ///
    /// # Safety
    /// The processor must have AVX2 and F16C.
    unsafe fn widen(codes: __m128i) -> __m256;

    /// Rounds 8 f32 to codes. Each code is in the lowest bits of a 32-bit lane.
    ///
    /// # Safety
    /// As [`VectorConversion::widen`].
    unsafe fn narrow(values: __m256) -> __m256i;
}

impl VectorConversion for F16 {
    #[inline(always)]
    unsafe fn widen(codes: __m128i) -> __m256 {
        // SAFETY: the caller guarantees F16C.
        unsafe { _mm256_cvtph_ps(codes) }
    }

    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block, reason = "arithmetic without memory access")]
    unsafe fn narrow(values: __m256) -> __m256i {
        // SAFETY: the caller guarantees the instructions, and none accesses memory.
        unsafe {
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(values, values);
            let canonical = _mm256_blendv_ps(values, _mm256_set1_ps(f32::NAN), nan);
            let codes = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(canonical);
            _mm256_cvtepu16_epi32(codes)
        }
    }
}

impl VectorConversion for Bf16 {
    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block, reason = "arithmetic without memory access")]
    unsafe fn widen(codes: __m128i) -> __m256 {
        // SAFETY: the caller guarantees the instructions, and none accesses memory.
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(codes))) }
    }

    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block, reason = "arithmetic without memory access")]
    unsafe fn narrow(values: __m256) -> __m256i {
        // SAFETY: the caller guarantees the instructions, and none accesses memory.
        unsafe {
            let bits = _mm256_castps_si256(values);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
            let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, half));
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(values, values);
            _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), _mm256_castps_si256(nan))
        }
    }
}

impl VectorConversion for F8E5M2 {
    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block, reason = "arithmetic without memory access")]
    unsafe fn widen(codes: __m128i) -> __m256 {
        // The code of an f8e5m2 is the upper byte of an f16.
        //
        // SAFETY: the caller guarantees the instructions, and none accesses memory.
        unsafe { _mm256_cvtph_ps(_mm_slli_epi16::<8>(codes)) }
    }

    #[inline(always)]
    unsafe fn narrow(values: __m256) -> __m256i {
        // SAFETY: the caller gives the same guarantee.
        unsafe { narrow::<Self>(values) }
    }
}

impl VectorConversion for F8E4M3 {
    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block, reason = "arithmetic without memory access")]
    unsafe fn widen(codes: __m128i) -> __m256 {
        // The shift moves the exponent and the mantissa of the code to the positions of an f16. The
        // exponent bias of an f16 is 15 and thus larger by 8, so the f16 is exactly 2^8 times too
        // small. The code of NaN gives 480, which is not an f8e4m3 number.
        //
        // SAFETY: the caller guarantees the instructions, and none accesses memory.
        unsafe {
            let half = _mm_and_si128(_mm_slli_epi16::<7>(codes), _mm_set1_epi16(-0x4080));
            let small = _mm256_cvtph_ps(half);
            let value = _mm256_mul_ps(small, _mm256_set1_ps(256.0));
            let plus = _mm256_andnot_ps(_mm256_set1_ps(-0.0), value);
            let nan = _mm256_cmp_ps::<_CMP_EQ_OQ>(plus, _mm256_set1_ps(480.0));
            _mm256_or_ps(value, nan)
        }
    }

    #[inline(always)]
    unsafe fn narrow(values: __m256) -> __m256i {
        // SAFETY: the caller gives the same guarantee.
        unsafe { narrow::<Self>(values) }
    }
}

/// Narrows a vector by the same steps as the scalar function `narrow` in [`super::minifloat`].
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
#[allow(clippy::multiple_unsafe_ops_per_block, reason = "arithmetic without memory access")]
unsafe fn narrow<F: FloatFormat>(values: __m256) -> __m256i {
    // SAFETY: the caller guarantees the instructions, and none accesses memory.
    unsafe {
        let all = |bits: u32| _mm256_set1_epi32(bits.cast_signed());
        let dropped = _mm_cvtsi32_si128(F::DROPPED.cast_signed());
        let bits = _mm256_castps_si256(values);
        let sign = _mm256_and_si256(_mm256_srli_epi32::<24>(bits), all(F::SIGN));
        let abs = _mm256_and_si256(bits, all(i32::MAX.cast_unsigned()));
        let clamped = _mm256_min_epu32(abs, all(F::CLAMP));
        let odd = _mm256_and_si256(_mm256_srl_epi32(clamped, dropped), all(1));
        let half = _mm256_add_epi32(odd, all((1 << (F::DROPPED - 1)) - 1));
        let rounded = _mm256_srl_epi32(_mm256_add_epi32(clamped, half), dropped);
        let normal = _mm256_sub_epi32(rounded, all(F::EXCESS));
        let unit = _mm256_castsi256_ps(all(F::SUBNORMAL_UNIT));
        let aligned = _mm256_add_ps(_mm256_castsi256_ps(clamped), unit);
        let subnormal = _mm256_sub_epi32(_mm256_castps_si256(aligned), all(F::SUBNORMAL_UNIT));
        let is_small = _mm256_cmpgt_epi32(all(F::MIN_NORMAL), clamped);
        let finite = _mm256_blendv_epi8(normal, subnormal, is_small);
        let infinity = all(f32::INFINITY.to_bits());
        let is_infinite = _mm256_cmpeq_epi32(abs, infinity);
        let number = _mm256_blendv_epi8(finite, all(F::FROM_INFINITY), is_infinite);
        let is_nan = _mm256_cmpgt_epi32(abs, infinity);
        _mm256_blendv_epi8(_mm256_or_si256(number, sign), all(F::NAN), is_nan)
    }
}

/// Packs the 8 lanes of 32 bits into 8 lanes of 16 bits.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
#[allow(clippy::multiple_unsafe_ops_per_block, reason = "arithmetic without memory access")]
unsafe fn pack(codes: __m256i) -> __m128i {
    // SAFETY: the caller guarantees the instructions, and none accesses memory.
    unsafe {
        let high = _mm256_extracti128_si256::<1>(codes);
        _mm_packus_epi32(_mm256_castsi256_si128(codes), high)
    }
}

macro_rules! of_16_bits {
    ($($format:ty)*) => {$(
        impl Element for SmallFloatX8<$format> {
            type Stored = [u16; LANES];
            type Acc = F32x8;

            #[inline(always)]
            fn load(stored: Self::Stored) -> F32x8 {
                // SAFETY: both types are 16 bytes of any value.
                let codes: __m128i = unsafe { std::mem::transmute(stored) };
                // SAFETY: the type is used only where the processor has the instructions.
                unsafe { <$format>::widen(codes) }.into()
            }

            #[inline(always)]
            fn store(acc: F32x8) -> Self::Stored {
                // SAFETY: as above.
                let codes = unsafe { <$format>::narrow(acc.into()) };
                // SAFETY: as above.
                let packed = unsafe { pack(codes) };
                // SAFETY: both types are 16 bytes of any value.
                unsafe { std::mem::transmute::<__m128i, Self::Stored>(packed) }
            }
        }
    )*};
}

macro_rules! of_8_bits {
    ($($format:ty)*) => {$(
        impl Element for SmallFloatX8<$format> {
            type Stored = [u8; LANES];
            type Acc = F32x8;

            #[inline(always)]
            fn load(stored: Self::Stored) -> F32x8 {
                let bytes = i64::from_le_bytes(stored);
                // SAFETY: the type is used only where the processor has the instructions.
                let packed = unsafe { _mm_cvtsi64_si128(bytes) };
                // SAFETY: as above.
                let codes = unsafe { _mm_cvtepi8_epi16(packed) };
                // SAFETY: as above.
                unsafe { <$format>::widen(codes) }.into()
            }

            #[inline(always)]
            fn store(acc: F32x8) -> Self::Stored {
                // SAFETY: as above.
                let codes = unsafe { <$format>::narrow(acc.into()) };
                // SAFETY: as above.
                let halves = unsafe { pack(codes) };
                // SAFETY: as above.
                let bytes = unsafe { _mm_packus_epi16(halves, halves) };
                // SAFETY: as above.
                unsafe { _mm_cvtsi128_si64(bytes) }.to_le_bytes()
            }
        }
    )*};
}

of_16_bits!(F16 Bf16);
of_8_bits!(F8E4M3 F8E5M2);

impl F32x8 {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        let mut lanes = self.0;
        for (lane, other) in lanes.iter_mut().zip(other.0) {
            *lane = f(*lane, other);
        }
        Self(lanes)
    }
}

impl Numeric for F32x8 {
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self.zip(other, Numeric::plus)
    }

    #[inline(always)]
    fn times(self, other: Self) -> Self {
        self.zip(other, Numeric::times)
    }

    #[inline(always)]
    fn lesser(self, other: Self) -> Self {
        self.zip(other, Numeric::lesser)
    }

    #[inline(always)]
    fn greater(self, other: Self) -> Self {
        self.zip(other, Numeric::greater)
    }
}

impl Real for F32x8 {
    #[inline(always)]
    fn from_factor(factor: f64) -> Self {
        Self([f32::from_factor(factor); 8])
    }
}
