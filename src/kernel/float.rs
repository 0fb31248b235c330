//! The types f32 and f64. The smaller floating-point types are folded as f32, and the complex types
//! as pairs of f32 or f64.

use super::element::{Element, Numeric, Real};

macro_rules! float {
    ($($float:ty, $from_factor:expr;)*) => {$(
        impl Element for $float {
            type Stored = Self;
            type Acc = Self;

            #[inline(always)]
            fn load(stored: Self) -> Self {
                stored
            }

            #[inline(always)]
            fn store(acc: Self) -> Self {
                if acc.is_nan() { Self::NAN } else { acc }
            }
        }

        impl Numeric for $float {
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self * other
            }

            #[inline(always)]
            fn lesser(self, other: Self) -> Self {
                // Equal numbers have equal bits, except +0 and -0. For these two, the bitwise OR
                // gives -0.
                let equal = Self::from_bits(self.to_bits() | other.to_bits());
                let smaller = if other < self { other } else { self };
                let number = if self == other { equal } else { smaller };
                if other.is_nan() { other } else { number }
            }

            #[inline(always)]
            fn greater(self, other: Self) -> Self {
                let equal = Self::from_bits(self.to_bits() & other.to_bits());
                let larger = if other > self { other } else { self };
                let number = if self == other { equal } else { larger };
                if other.is_nan() { other } else { number }
            }
        }

        impl Real for $float {
            #[inline(always)]
            fn from_factor(factor: f64) -> Self {
                $from_factor(factor)
            }
        }
    )*};
}

float! {
    f32, round_factor;
    f64, std::convert::identity;
}

#[inline(always)]
#[allow(
    clippy::cast_possible_truncation,
    reason = "rounding to nearest is the documented behaviour"
)]
fn round_factor(factor: f64) -> f32 {
    factor as f32
}
