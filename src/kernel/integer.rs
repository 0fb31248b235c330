//! The integer types and bool, as element types of the reduction loops ([`super::loops`]).

use super::element::{Element, Numeric};

/// A boolean in one byte: any byte except 0 is true, and the stored value is exactly 0 or 1.
pub(super) struct Bool;

impl Element for Bool {
    type Stored = u8;
    type Acc = u8;

    #[inline(always)]
    fn load(stored: u8) -> u8 {
        u8::from(stored != 0)
    }

    #[inline(always)]
    fn store(acc: u8) -> u8 {
        acc
    }
}

/// A precomputed divisor. It replaces a division by one multiplication and two shifts, which the
/// compiler can vectorise.
///
/// The method is figure 4.1 of Granlund and Montgomery, "Division by Invariant Integers using
/// Multiplication" (1994).
#[derive(Clone, Copy)]
pub(super) struct Reciprocal<U> {
    magic: U,
    shifts: [u32; 2],
    /// The mask for the quotient. It is 0 if the divisor is larger than the largest value of the
    /// type, so that each quotient is 0. Otherwise all bits are set.
    keep: U,
}

macro_rules! reciprocal {
    ($($unsigned:ty, $wide:ty;)*) => {$(
        impl Reciprocal<$unsigned> {
            #[allow(clippy::cast_possible_truncation, reason = "only the upper half is used, or it is zero")]
            fn of(divisor: usize) -> Self {
                let Ok(divisor) = <$unsigned>::try_from(divisor) else {
                    return Self { magic: 1, shifts: [0; 2], keep: 0 };
                };
                let divisor = divisor.max(1);
                // The exponent of the smallest power of two that is at least the divisor.
                let power = <$unsigned>::BITS - (divisor - 1).leading_zeros();
                let excess = (<$wide>::from(1u8) << power) - <$wide>::from(divisor);
                let magic = (excess << <$unsigned>::BITS) / <$wide>::from(divisor) + 1;
                let shifts = [power.min(1), power.saturating_sub(1)];
                Self { magic: magic as $unsigned, shifts, keep: <$unsigned>::MAX }
            }

            #[inline(always)]
            #[allow(clippy::cast_possible_truncation, reason = "only the upper half is used")]
            fn quotient(self, dividend: $unsigned) -> $unsigned {
                let product = <$wide>::from(self.magic) * <$wide>::from(dividend);
                let upper = (product >> <$unsigned>::BITS) as $unsigned;
                let [first, second] = self.shifts;
                // Both shifts are smaller than the number of bits of the type. `& last` shows this
                // to the compiler.
                let last = <$unsigned>::BITS - 1;
                let rest = (dividend - upper) >> (first & last);
                ((upper + rest) >> (second & last)) & self.keep
            }
        }
    )*};
}

reciprocal! {
    u16, u32;
    u32, u64;
    u64, u128;
}

/// Implements the integer types. The arguments are the type, the unsigned type of the same size,
/// and the type in which values are divided.
macro_rules! integer {
    ($($int:ty, $plain:ty, $lane:ty;)*) => {$(
        impl Element for $int {
            type Stored = Self;
            type Acc = Self;

            #[inline(always)]
            fn load(stored: Self) -> Self {
                stored
            }

            #[inline(always)]
            fn store(acc: Self) -> Self {
                acc
            }
        }

        impl Numeric for $int {
            type Divisor = Reciprocal<$lane>;

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn lesser(self, other: Self) -> Self {
                self.min(other)
            }

            #[inline(always)]
            fn greater(self, other: Self) -> Self {
                self.max(other)
            }

            fn divisor(ranks: usize) -> Reciprocal<$lane> {
                Reciprocal::<$lane>::of(ranks)
            }

            #[inline(always)]
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_possible_wrap,
                clippy::cast_sign_loss,
                trivial_numeric_casts,
                unused_comparisons,
                reason = "a quotient is no larger than its dividend, which was a value of this type; some have no sign"
            )]
            fn divided_by(self, divisor: Reciprocal<$lane>) -> Self {
                let is_negative = self < 0;
                let magnitude = if is_negative { (0 as Self).wrapping_sub(self) } else { self };
                // The conversion goes through the unsigned type of the same size, because the
                // magnitude of the lowest negative number only fits in that type.
                let quotient = divisor.quotient(<$lane>::from(magnitude as $plain)) as Self;
                if is_negative { (0 as Self).wrapping_sub(quotient) } else { quotient }
            }
        }
    )*};
}

integer! {
    i8, u8, u16;
    i16, u16, u16;
    i32, u32, u32;
    i64, u64, u64;
    u8, u8, u16;
    u16, u16, u16;
    u32, u32, u32;
    u64, u64, u64;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns divisors around all limits: powers of two, halves, the largest values.
    fn divisors(bits: u32) -> impl Iterator<Item = usize> {
        let powers = (0..=bits).flat_map(|power| {
            let power = 1usize.checked_shl(power).unwrap_or(usize::MAX);
            [power.saturating_sub(1), power, power.saturating_add(1)]
        });
        powers.chain([3, 5, 6, 7, 10, 100, 641, 1000, usize::MAX]).filter(|&divisor| divisor > 0)
    }

    macro_rules! check {
        ($int:ty, $wide:ty, $values:expr) => {
            for divisor in divisors(<$int>::BITS) {
                let kept = <$int>::divisor(divisor);
                for value in $values {
                    let value: $int = value;
                    let want = <$wide>::from(value) / <$wide>::try_from(divisor).unwrap();
                    assert_eq!(<$wide>::from(value.divided_by(kept)), want, "{value} / {divisor}");
                }
            }
        };
    }

    #[test]
    #[cfg_attr(miri, ignore = "a test of every value takes too long under Miri")]
    fn small_integer_division_is_exact() {
        check!(i8, i128, i8::MIN..=i8::MAX);
        check!(u8, i128, u8::MIN..=u8::MAX);
        check!(i16, i128, i16::MIN..=i16::MAX);
        check!(u16, i128, u16::MIN..=u16::MAX);
    }

    #[test]
    fn large_integer_division_is_exact() {
        // The values are around multiples of possible divisors, and at both ends.
        let near = |middle: u64| (0..5u64).map(move |i| middle.wrapping_add(i).wrapping_sub(2));
        let mut middles: Vec<u64> = (0..64).map(|power| 1 << power).collect();
        middles.extend(
            middles.clone().into_iter().flat_map(|it| [it.wrapping_mul(3), it.wrapping_mul(641)]),
        );
        let values: Vec<u64> = middles.into_iter().flat_map(near).collect();
        check!(u64, i128, values.iter().copied());
        check!(i64, i128, values.iter().map(|value| value.cast_signed()));
        check!(u32, i128, values.iter().map(|&value| (value & 0xffff_ffff) as u32));
        check!(i32, i128, values.iter().map(|&value| ((value & 0xffff_ffff) as u32).cast_signed()));
    }
}
