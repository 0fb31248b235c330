//! The integers, and bool.

use super::element::{Element, Number};

/// One truth value per byte: any byte but 0 is true, and what is stored is exactly 0 or 1.
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

/// `$wide` holds every `$int` and the divisor, which may exceed the largest `$int`.
macro_rules! integer {
    ($($int:ty, $wide:ty;)*) => {$(
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

        impl Number for $int {
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

            #[inline(always)]
            #[allow(
                clippy::cast_possible_truncation,
                trivial_numeric_casts,
                reason = "a quotient is no larger than its dividend, which was a value of this type"
            )]
            fn divided_by(self, divisor: usize) -> Self {
                let divisor = <$wide>::try_from(divisor).unwrap_or(<$wide>::MAX);
                (<$wide>::from(self) / divisor) as Self
            }
        }
    )*};
}

integer! {
    i8, i64;
    i16, i64;
    i32, i64;
    i64, i64;
    u8, u64;
    u16, u64;
    u32, u64;
    u64, u64;
}
