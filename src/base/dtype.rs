//! Element types: their C numbers, names and sizes.

use super::error::{Error, Result};
use std::fmt;

/// The type of one element of a buffer. The discriminants are the C API's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are their own documentation")]
pub enum DataType {
    I8 = 0,
    U8 = 1,
    I16 = 2,
    U16 = 3,
    I32 = 4,
    U32 = 5,
    I64 = 6,
    U64 = 7,
    F16 = 8,
    Bf16 = 9,
    F32 = 10,
    F64 = 11,
    /// Two `f32`: real, imaginary.
    C64 = 12,
    /// Two `f64`: real, imaginary.
    C128 = 13,
    /// One byte; every value but 0 is true.
    Bool = 14,
    /// Four exponent bits, three of mantissa, no infinity (the "fn" form).
    F8E4M3 = 15,
    /// Five exponent bits, two of mantissa, with infinities.
    F8E5M2 = 16,
}

impl DataType {
    /// Every element type, in the order of its number.
    pub const ALL: [Self; 17] = [
        Self::I8,
        Self::U8,
        Self::I16,
        Self::U16,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F16,
        Self::Bf16,
        Self::F32,
        Self::F64,
        Self::C64,
        Self::C128,
        Self::Bool,
        Self::F8E4M3,
        Self::F8E5M2,
    ];

    /// The size of one element in bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::Bool | Self::F8E4M3 | Self::F8E5M2 => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 | Self::C64 => 8,
            Self::C128 => 16,
        }
    }

    /// How many whole elements so many bytes hold. Sizes are powers of two, and a division takes as long as a dozen other
    /// instructions.
    #[inline]
    pub const fn elements_in(self, bytes: usize) -> usize {
        bytes >> self.size().trailing_zeros()
    }

    /// The name used in messages and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::I16 => "i16",
            Self::U16 => "u16",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::I64 => "i64",
            Self::U64 => "u64",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::C64 => "c64",
            Self::C128 => "c128",
            Self::Bool => "bool",
            Self::F8E4M3 => "f8e4m3",
            Self::F8E5M2 => "f8e5m2",
        }
    }

    /// True for real and complex floating-point types.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            Self::F16
                | Self::Bf16
                | Self::F32
                | Self::F64
                | Self::C64
                | Self::C128
                | Self::F8E4M3
                | Self::F8E5M2
        )
    }

    /// True for the two complex types.
    pub const fn is_complex(self) -> bool {
        matches!(self, Self::C64 | Self::C128)
    }

    /// The type with this C number.
    ///
    /// # Errors
    /// `InvalidArgument` for a number that names no type.
    #[inline]
    pub fn from_number(number: i32) -> Result<Self> {
        let known = usize::try_from(number).ok().and_then(|i| Self::ALL.get(i));
        known.copied().ok_or_else(|| unknown(number))
    }
}

#[cold]
fn unknown(number: i32) -> Error {
    Error::invalid(format!("{number} is not a dist_dtype_t (they run from 0 to 16)"))
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_positions() {
        for (number, dtype) in DataType::ALL.into_iter().enumerate() {
            assert_eq!(
                (dtype.elements_in(16), dtype.elements_in(15)),
                (16 / dtype.size(), 15 / dtype.size())
            );
            assert_eq!(dtype as usize, number);
            assert_eq!(DataType::from_number(i32::try_from(number).unwrap()).unwrap(), dtype);
        }
        assert!(DataType::from_number(-1).is_err());
        assert!(DataType::from_number(17).is_err());
    }
}
