//! Element types: names, sizes, and the numbers of the C constants.

use std::fmt;

/// The type of one element of a buffer. The discriminants are internal: [`DataType::number`] gives
/// the C constant.
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
    /// A complex number of two `f32`: real, imaginary.
    C64 = 12,
    /// A complex number of two `f64`: real, imaginary.
    C128 = 13,
    /// A boolean in one byte; every value except 0 is true.
    Bool = 14,
    /// An 8-bit float: four exponent bits, three mantissa bits, no infinity (the "fn" form).
    F8E4M3 = 15,
    /// An 8-bit float: five exponent bits, two mantissa bits, with infinities.
    F8E5M2 = 16,
}

impl DataType {
    /// All element types, in the order of their numbers.
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

    /// Returns the size of one element in bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::Bool | Self::F8E4M3 | Self::F8E5M2 => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 | Self::C64 => 8,
            Self::C128 => 16,
        }
    }

    /// Returns the number of whole elements in `bytes` bytes. All sizes are powers of two, so a
    /// shift replaces the division, which would take as long as a dozen other instructions.
    #[inline]
    pub const fn elements_in(self, bytes: usize) -> usize {
        bytes >> self.size().trailing_zeros()
    }

    /// Returns the name for messages and tables.
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

    /// Returns whether the type is a real or complex floating-point type.
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

    /// Returns whether the type is complex.
    pub const fn is_complex(self) -> bool {
        matches!(self, Self::C64 | Self::C128)
    }

    /// The number of the first type's C constant. Types, operators and statuses have disjoint
    /// ranges of numbers, so that swapped arguments of a C call are an error.
    const FIRST_NUMBER: i32 = 0x100;

    /// Returns the number of the type's C constant.
    pub const fn number(self) -> i32 {
        Self::FIRST_NUMBER + self as i32
    }

    #[inline]
    pub(super) fn find_number(number: i32) -> Option<Self> {
        let index = usize::try_from(number.wrapping_sub(Self::FIRST_NUMBER)).ok()?;
        Self::ALL.get(index).copied()
    }
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
    fn dtype_numbers_round_trip() {
        for (number, dtype) in DataType::ALL.into_iter().enumerate() {
            assert_eq!(
                (dtype.elements_in(16), dtype.elements_in(15)),
                (16 / dtype.size(), 15 / dtype.size())
            );
            assert_eq!(dtype as usize, number);
            assert_eq!(DataType::from_number(dtype.number()).unwrap(), dtype);
        }
        for number in [i32::MIN, -1, 0, 16, 0xff, 0x111, 0x200, i32::MAX] {
            assert!(DataType::from_number(number).is_err(), "{number}");
        }
    }
}
