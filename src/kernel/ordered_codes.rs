//! The small floats as integers in the order of their numbers, for MIN and MAX, which need no
//! arithmetic.
//!
//! Without its sign, a larger code is a larger number. The codes of negative numbers have their
//! bits inverted except the sign. So -0 is below +0 without special code. A NaN is at the lowest or
//! highest end of the order, depending on the operator, so that it wins.

use super::element::Element;
use super::minifloat::{Bf16, F8E4M3, F8E5M2, F16};
use std::marker::PhantomData;

/// An ordered type for MIN: NaN is below all numbers.
pub(super) struct OrderedForMin<F>(PhantomData<F>);
/// An ordered type for MAX: NaN is above all numbers.
pub(super) struct OrderedForMax<F>(PhantomData<F>);

/// Implements the ordered types. `$largest` is the largest code, without its sign, that is not NaN,
/// and `$nan` is the code of the canonical NaN.
macro_rules! ordered {
    ($($format:ty, $stored:ty, $key:ty, $largest:literal, $nan:literal;)*) => {$(
        ordered!(OrderedForMin<$format>, MIN, $stored, $key, $largest, $nan);
        ordered!(OrderedForMax<$format>, MAX, $stored, $key, $largest, $nan);
    )*};
    ($order:ty, $end:ident, $stored:ty, $key:ty, $largest:literal, $nan:literal) => {
        impl Element for $order {
            type Stored = $stored;
            type Acc = $key;

            #[inline(always)]
            fn load(code: $stored) -> $key {
                let is_nan = code & (<$stored>::MAX >> 1) > $largest;
                if is_nan { <$key>::$end } else { toggle_signed_order::<$key>(code.cast_signed()) }
            }

            #[inline(always)]
            fn store(key: $key) -> $stored {
                if key == <$key>::$end { $nan } else { toggle_signed_order::<$key>(key).cast_unsigned() }
            }
        }
    };
}

/// Inverts all bits except the sign of a negative number. A second inversion restores the number.
trait SignedOrder {
    fn toggle_order(self) -> Self;
}

impl SignedOrder for i8 {
    #[inline(always)]
    fn toggle_order(self) -> Self {
        self ^ ((self >> 7) & Self::MAX)
    }
}

impl SignedOrder for i16 {
    #[inline(always)]
    fn toggle_order(self) -> Self {
        self ^ ((self >> 15) & Self::MAX)
    }
}

#[inline(always)]
fn toggle_signed_order<T: SignedOrder>(key: T) -> T {
    key.toggle_order()
}

ordered! {
    F16, u16, i16, 0x7c00, 0x7e00;
    Bf16, u16, i16, 0x7f80, 0x7fc0;
    F8E4M3, u8, i8, 0x7e, 0x7f;
    F8E5M2, u8, i8, 0x7c, 0x7e;
}
