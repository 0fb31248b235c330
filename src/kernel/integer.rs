//! The integer types and bool, as element types of the reduction loops ([`super::loops`]).

use super::element::{Element, FoldOperator, IntegerAvg, Numeric};
use std::marker::PhantomData;

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

/// An integer type `Int` whose elements are folded in a wider type, which holds the exact sum over
/// all ranks. The wider type is i128 for integers of 64 bits, and i64 for all others, because there
/// are fewer than 2^31 ranks.
pub(super) struct Widened<Int>(PhantomData<Int>);

macro_rules! widened {
    ($($int:ty, $wide:ty;)*) => {$(
        impl Element for Widened<$int> {
            type Stored = $int;
            type Acc = $wide;

            #[inline(always)]
            fn load(stored: $int) -> $wide {
                stored.into()
            }

            #[inline(always)]
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "an average is between the smallest and the largest element"
            )]
            fn store(acc: $wide) -> $int {
                acc as $int
            }
        }
    )*};
}

widened! {
    i8, i64;
    u8, i64;
    i16, i64;
    u16, i64;
    i32, i64;
    u32, i64;
    i64, i128;
    u64, i128;
}

impl FoldOperator<i64> for IntegerAvg {
    type Arg = Reciprocal;

    #[inline(always)]
    fn arg(ranks: usize) -> Reciprocal {
        Reciprocal::of(ranks)
    }

    #[inline(always)]
    fn combine(earlier: i64, later: i64, _: Reciprocal) -> i64 {
        earlier.wrapping_add(later)
    }

    #[inline(always)]
    fn finish(acc: i64, divisor: Reciprocal) -> i64 {
        divisor.divide(acc)
    }
}

impl FoldOperator<i128> for IntegerAvg {
    type Arg = WideDivisor;

    #[inline(always)]
    fn arg(ranks: usize) -> WideDivisor {
        WideDivisor { reciprocal: Reciprocal::of(ranks), ranks: ranks.max(1) }
    }

    #[inline(always)]
    fn combine(earlier: i128, later: i128, _: WideDivisor) -> i128 {
        earlier.wrapping_add(later)
    }

    #[inline(always)]
    fn finish(acc: i128, divisor: WideDivisor) -> i128 {
        // Most sums fit in 64 bits, where a division is much faster.
        match i64::try_from(acc) {
            Ok(sum) => divisor.reciprocal.divide(sum).into(),
            Err(_) => acc / divisor.ranks as i128,
        }
    }
}

/// A divisor of sums of 64 bits and of larger sums.
#[derive(Clone, Copy)]
pub(super) struct WideDivisor {
    reciprocal: Reciprocal,
    ranks: usize,
}

/// A precomputed divisor. It replaces a division by one multiplication and two shifts.
///
/// The method is figure 4.1 of Granlund and Montgomery, "Division by Invariant Integers using
/// Multiplication" (1994).
#[derive(Clone, Copy)]
pub(super) struct Reciprocal {
    magic: u64,
    shifts: [u32; 2],
}

impl Reciprocal {
    #[allow(clippy::cast_possible_truncation, reason = "only the lower half is used")]
    fn of(divisor: usize) -> Self {
        let divisor = (divisor as u64).max(1);
        // The exponent of the smallest power of two that is at least the divisor.
        let power = u64::BITS - (divisor - 1).leading_zeros();
        let excess = (1u128 << power) - u128::from(divisor);
        let magic = (excess << u64::BITS) / u128::from(divisor) + 1;
        Self { magic: magic as u64, shifts: [power.min(1), power.saturating_sub(1)] }
    }

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "only the upper half is used")]
    fn quotient(self, dividend: u64) -> u64 {
        let product = u128::from(self.magic) * u128::from(dividend);
        let upper = (product >> u64::BITS) as u64;
        let [first, second] = self.shifts;
        (upper + ((dividend - upper) >> first)) >> second
    }

    /// Divides and rounds towards zero.
    #[inline(always)]
    fn divide(self, dividend: i64) -> i64 {
        // The quotient of the lowest number by 1 is the lowest number, whose magnitude has the same
        // bits.
        let quotient = self.quotient(dividend.unsigned_abs()).cast_signed();
        if dividend < 0 { quotient.wrapping_neg() } else { quotient }
    }
}

macro_rules! integer {
    ($($int:ty)*) => {$(
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
        }
    )*};
}

integer!(i8 i16 i32 i64 u8 u16 u32 u64);

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns divisors around all limits: powers of two, and numbers without a pattern.
    fn divisors() -> impl Iterator<Item = usize> {
        let powers = (0..=31).flat_map(|power| {
            let power = 1usize << power;
            [power - 1, power, power + 1]
        });
        powers.chain([3, 5, 6, 7, 10, 100, 641, 1000, usize::MAX]).filter(|&divisor| divisor > 0)
    }

    /// Returns numbers around multiples of possible divisors, and at both ends.
    fn dividends() -> Vec<i64> {
        let powers = (0..64).map(|power| 1u64 << power);
        let middles =
            powers.flat_map(|power| [power, power.wrapping_mul(3), power.wrapping_mul(641)]);
        let near = |middle: u64| (0..5).map(move |i| middle.wrapping_add(i).wrapping_sub(2));
        middles.flat_map(near).map(u64::cast_signed).collect()
    }

    #[test]
    fn division_by_the_reciprocal_is_exact() {
        for divisor in divisors() {
            let reciprocal = Reciprocal::of(divisor);
            for dividend in dividends() {
                let want = i128::from(dividend) / i128::try_from(divisor).unwrap();
                assert_eq!(i128::from(reciprocal.divide(dividend)), want, "{dividend} / {divisor}");
            }
        }
    }

    #[test]
    fn sums_beyond_64_bits_are_divided_exactly() {
        for ranks in divisors().filter(|&ranks| ranks < 1 << 33) {
            for value in [i128::from(u64::MAX), i128::from(i64::MIN), i128::from(i64::MAX) - 1] {
                let arg = <IntegerAvg as FoldOperator<i128>>::arg(ranks);
                let sum = value * ranks as i128;
                assert_eq!(IntegerAvg::finish(sum, arg), value, "{ranks}");
                // A sum that is nearer to zero by one gives the next number towards zero.
                let want = if ranks == 1 {
                    sum - sum.signum()
                } else {
                    (sum - sum.signum()) / ranks as i128
                };
                assert_eq!(IntegerAvg::finish(sum - sum.signum(), arg), want, "{ranks}");
            }
        }
    }
}
