//! The small floats as signed integers (keys) in the order of their numbers. MIN and MAX compare
//! these keys and need no conversion to f32.
//!
//! The code of a float is its bit pattern. Without the sign bit, a larger code is a larger number.
//! The key of a positive number is its code. The key of a negative number is its code with all bits
//! inverted except the sign, so that -0 is below +0. The key of a NaN is the lowest integer for MIN
//! and the highest integer for MAX, so that a NaN is always the result.
//!
//! ```text
//! f8e5m2     -2.0    -1.0    -0     +0     1.0    2.0
//! code       0xc0    0xbc    0x80   0x00   0x3c   0x40
//! key         -65     -61      -1      0     60     64
//! ```

use super::element::Element;
use super::minifloat::{Bf16, F8E4M3, F8E5M2, F16};
use std::marker::PhantomData;

/// The element type for MIN: the key of NaN is below the keys of all numbers.
pub(super) struct OrderedForMin<F>(PhantomData<F>);
/// The element type for MAX: the key of NaN is above the keys of all numbers.
pub(super) struct OrderedForMax<F>(PhantomData<F>);

/// Implements the two element types. `$largest` is the largest code without the sign bit that is
/// not NaN, and `$nan` is the code of the canonical NaN.
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

/// Converts between code and key: inverts all bits of a negative number except the sign. A second
/// conversion restores the first value.
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
