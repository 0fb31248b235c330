//! Scalar conversions of f16, bf16, f8e4m3 and f8e5m2 from and to f32, without branches, so that
//! the loops vectorise.
//!
//! Widening (to f32) is exact. Narrowing (from f32) rounds to nearest, ties to even, also where the
//! result is a subnormal number. Every NaN becomes the canonical NaN, which has the quiet bit set
//! and no sign. No step produces or reads a subnormal f32, so the results are the same in a thread
//! that flushes subnormal numbers to zero.
//!
//! Subnormal numbers are rounded by an addition that aligns the last place. This method is Fabian
//! Giesen's (float_to_half_fast3 and half_to_float_fast5).

use super::element::Element;

/// The format f16, IEEE 754 binary16.
pub(super) struct F16;
/// The format bf16, the upper half of an f32.
pub(super) struct Bf16;
/// The format f8e4m3: 1 sign bit, 4 exponent bits, 3 mantissa bits, no infinities. The largest code
/// is NaN, and the code below it is 448.
pub(super) struct F8E4M3;
/// The format f8e5m2: 1 sign bit, 5 exponent bits, 2 mantissa bits; the upper byte of an f16.
pub(super) struct F8E5M2;

const F32_MANTISSA: u32 = 23;
const F32_BIAS: u32 = 127;
const F32_ABS: u32 = 0x7fff_ffff;
const F32_INFINITY: u32 = 0x7f80_0000;

/// A small floating-point format with subnormal numbers. From the highest bit to the lowest, a
/// *code* (the bit pattern of a number) consists of the sign, the exponent and the mantissa.
pub(super) trait FloatFormat {
    const BITS: u32;
    const MANTISSA: u32;
    const BIAS: u32;
    /// The lowest code that is not a finite number, without the sign bit.
    const FIRST_SPECIAL: u32;
    /// The bits of the largest f32 that narrowing rounds. A larger f32 is rounded as if it were
    /// this f32.
    const CLAMP: u32;
    /// The code to which an infinite f32 is narrowed.
    const FROM_INFINITY: u32;
    const NAN: u32;

    const SIGN: u32 = 1 << (Self::BITS - 1);
    /// The number of mantissa bits that narrowing drops.
    const DROPPED: u32 = F32_MANTISSA - Self::MANTISSA;
    /// The difference of the exponent biases, shifted to the position of the exponent in a code.
    const EXCESS: u32 = (F32_BIAS - Self::BIAS) << Self::MANTISSA;
    /// The bits of the smallest normal number as an f32.
    const MIN_NORMAL: u32 = (F32_BIAS + 1 - Self::BIAS) << F32_MANTISSA;
    /// The bits of the f32 whose last place has the value of the smallest subnormal number.
    const SUBNORMAL_UNIT: u32 = Self::MIN_NORMAL + (Self::DROPPED << F32_MANTISSA);
}

impl FloatFormat for F16 {
    const BITS: u32 = 16;
    const MANTISSA: u32 = 10;
    const BIAS: u32 = 15;
    const FIRST_SPECIAL: u32 = 0x7c00;
    // The limit is 65536, which is narrowed to the code of infinity.
    const CLAMP: u32 = 0x4780_0000;
    const FROM_INFINITY: u32 = 0x7c00;
    const NAN: u32 = 0x7e00;
}

impl FloatFormat for F8E4M3 {
    const BITS: u32 = 8;
    const MANTISSA: u32 = 3;
    const BIAS: u32 = 7;
    const FIRST_SPECIAL: u32 = 0x7f;
    // The limit is 448, the largest number.
    const CLAMP: u32 = 0x43e0_0000;
    const FROM_INFINITY: u32 = 0x7e;
    const NAN: u32 = 0x7f;
}

impl FloatFormat for F8E5M2 {
    const BITS: u32 = 8;
    const MANTISSA: u32 = 2;
    const BIAS: u32 = 15;
    const FIRST_SPECIAL: u32 = 0x7c;
    // The limit is 57344, the largest number.
    const CLAMP: u32 = 0x4760_0000;
    const FROM_INFINITY: u32 = 0x7c;
    const NAN: u32 = 0x7e;
}

/// Returns the number with this code.
#[inline(always)]
fn widen<F: FloatFormat>(code: u32) -> f32 {
    let sign = (code & F::SIGN) << (32 - F::BITS);
    let abs = code & (F::SIGN - 1);
    let shifted = abs << F::DROPPED;
    let normal = shifted + ((F32_BIAS - F::BIAS) << F32_MANTISSA);
    // A subnormal number has an implicit leading 0. If its mantissa is combined with the exponent
    // of the smallest normal number, which has an implicit leading 1, the result is too large by
    // exactly that smallest normal number.
    let subnormal = f32::from_bits(shifted + F::MIN_NORMAL) - f32::from_bits(F::MIN_NORMAL);
    let finite = if abs < 1 << F::MANTISSA { subnormal.to_bits() } else { normal };
    let value = if abs < F::FIRST_SPECIAL { finite } else { shifted | F32_INFINITY };
    f32::from_bits(value | sign)
}

/// Returns the code of the nearest number. If two numbers are equally near, returns the even code.
#[inline(always)]
fn narrow<F: FloatFormat>(value: f32) -> u32 {
    let bits = value.to_bits();
    let sign = (bits >> (32 - F::BITS)) & F::SIGN;
    let abs = bits & F32_ABS;
    let clamped = abs.min(F::CLAMP);
    let odd = (clamped >> F::DROPPED) & 1;
    let rounded = (clamped + (1 << (F::DROPPED - 1)) - 1 + odd) >> F::DROPPED;
    let normal = rounded.wrapping_sub(F::EXCESS);
    let aligned = f32::from_bits(clamped) + f32::from_bits(F::SUBNORMAL_UNIT);
    let subnormal = aligned.to_bits().wrapping_sub(F::SUBNORMAL_UNIT);
    let finite = if clamped < F::MIN_NORMAL { subnormal } else { normal };
    let number = if abs == F32_INFINITY { F::FROM_INFINITY } else { finite };
    if abs > F32_INFINITY { F::NAN } else { number | sign }
}

macro_rules! element {
    ($($format:ty, $stored:ty;)*) => {$(
        impl Element for $format {
            type Stored = $stored;
            type Acc = f32;

            #[inline(always)]
            fn load(stored: $stored) -> f32 {
                widen::<Self>(u32::from(stored))
            }

            #[inline(always)]
            #[allow(clippy::cast_possible_truncation, reason = "the code fits the stored type")]
            fn store(acc: f32) -> $stored {
                narrow::<Self>(acc) as $stored
            }
        }
    )*};
}

element! {
    F16, u16;
    F8E4M3, u8;
    F8E5M2, u8;
}

impl Element for Bf16 {
    type Stored = u16;
    type Acc = f32;

    #[inline(always)]
    fn load(stored: u16) -> f32 {
        f32::from_bits(u32::from(stored) << 16)
    }

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "only the upper half is used")]
    fn store(acc: f32) -> u16 {
        let bits = acc.to_bits();
        let odd = (bits >> 16) & 1;
        // If the rounding carries beyond the largest finite number, the result is infinity. The
        // bits of an infinity do not carry.
        let number = bits.wrapping_add(0x7fff + odd) >> 16;
        if acc.is_nan() { 0x7fc0 } else { number as u16 }
    }
}
