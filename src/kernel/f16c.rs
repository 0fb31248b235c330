//! f16 with the conversion instructions of x86-64 (F16C), eight elements at a time: the compiler
//! has no way to find them in a loop.
//!
//! The results are those of [`super::minifloat`], bit for bit.

use super::element::{Element, Number, Real};
use std::arch::x86_64::{
    __m128i, __m256, _MM_FROUND_TO_NEAREST_INT, _mm256_cvtph_ps, _mm256_cvtps_ph,
};

/// Eight f16. Only for loops that are compiled for AVX2 and F16C, on a processor that has both.
pub(super) struct Octet;

impl Octet {
    pub(super) const LANES: usize = 8;
}

/// Eight f32.
#[derive(Clone, Copy)]
#[repr(align(32))]
pub(super) struct Lanes([f32; 8]);

impl Element for Octet {
    type Stored = [u16; 8];
    type Acc = Lanes;

    #[inline(always)]
    fn load(stored: [u16; 8]) -> Lanes {
        // SAFETY: both are 16 bytes of any value.
        let codes: __m128i = unsafe { std::mem::transmute(stored) };
        // SAFETY: the type is used only where the processor has F16C.
        let values = unsafe { _mm256_cvtph_ps(codes) };
        // SAFETY: both are 32 bytes of any value.
        unsafe { std::mem::transmute::<__m256, Lanes>(values) }
    }

    #[inline(always)]
    fn store(acc: Lanes) -> [u16; 8] {
        let canonical = acc.0.map(|v| if v.is_nan() { f32::NAN } else { v });
        // SAFETY: both are 32 bytes of any value.
        let values: __m256 = unsafe { std::mem::transmute(canonical) };
        // SAFETY: the type is used only where the processor has F16C.
        let codes = unsafe { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values) };
        // SAFETY: both are 16 bytes of any value.
        unsafe { std::mem::transmute::<__m128i, [u16; 8]>(codes) }
    }
}

impl Lanes {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        let mut lanes = self.0;
        for (lane, other) in lanes.iter_mut().zip(other.0) {
            *lane = f(*lane, other);
        }
        Self(lanes)
    }
}

impl Number for Lanes {
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self.zip(other, Number::plus)
    }

    #[inline(always)]
    fn times(self, other: Self) -> Self {
        self.zip(other, Number::times)
    }

    #[inline(always)]
    fn lesser(self, other: Self) -> Self {
        self.zip(other, Number::lesser)
    }

    #[inline(always)]
    fn greater(self, other: Self) -> Self {
        self.zip(other, Number::greater)
    }

    #[inline(always)]
    fn divided_by(self, divisor: usize) -> Self {
        self.zip(self, |lane, _| lane.divided_by(divisor))
    }
}

impl Real for Lanes {
    #[inline(always)]
    fn from_factor(factor: f64) -> Self {
        Self([f32::from_factor(factor); 8])
    }
}
