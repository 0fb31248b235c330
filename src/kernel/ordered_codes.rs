//! The small floats as integers that are in the order of their numbers, for MIN and MAX, which need
//! no arithmetic.
//!
//! Without its sign a code is larger where its number is; the codes of negative numbers are turned
//! over. So -0 is below +0 by itself, and a NaN lies at either end: which one is the operator's,
//! since there it wins.

use super::element::Element;
use super::minifloat::{Bf16, F8E4M3, F8E5M2, F16};
use std::marker::PhantomData;

/// A type for MIN: what is no number is below all that are.
pub(super) struct OrderedForMin<F>(PhantomData<F>);
/// A type for MAX: what is no number is above all that are.
pub(super) struct OrderedForMax<F>(PhantomData<F>);

/// `$largest` is the largest code, without its sign, that is no NaN, and `$nan` the code of the
/// canonical one.
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

/// Turns over all bits but the sign of a negative number; twice is nothing.
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
