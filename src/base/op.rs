//! Reduction operators: names, the numbers of the C constants, and the element types for which they
//! are defined.

use super::dtype::DataType;
use super::error::{Error, ErrorKind, Result};
use std::fmt;

/// The operator that combines the elements of the ranks. The discriminants are internal:
/// [`ReduceOp::number`] gives the C constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReduceOp {
    /// The sum. Integers wrap. For bool, the sum is the logical or.
    Sum = 0,
    /// The product. Integers wrap. For bool, the product is the logical and.
    Product = 1,
    /// The minimum; a NaN wins.
    Min = 2,
    /// The maximum; a NaN wins.
    Max = 3,
    /// The average. Floats are multiplied by 1/N and then summed. For integers, the exact sum is
    /// divided, and the quotient is rounded towards zero.
    Avg = 4,
    /// Bitwise and, of integers and bool.
    BitAnd = 5,
    /// Bitwise or, of integers and bool.
    BitOr = 6,
    /// Bitwise exclusive or, of integers and bool.
    BitXor = 7,
    /// Each rank multiplies its elements by a factor of its own, and the products are summed.
    PremulSum = 8,
}

impl ReduceOp {
    /// All operators, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::Sum,
        Self::Product,
        Self::Min,
        Self::Max,
        Self::Avg,
        Self::BitAnd,
        Self::BitOr,
        Self::BitXor,
        Self::PremulSum,
    ];

    /// Returns the name for messages and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "SUM",
            Self::Product => "PRODUCT",
            Self::Min => "MIN",
            Self::Max => "MAX",
            Self::Avg => "AVG",
            Self::BitAnd => "BAND",
            Self::BitOr => "BOR",
            Self::BitXor => "BXOR",
            Self::PremulSum => "PREMUL_SUM",
        }
    }

    /// Returns whether the operator is defined for elements of this type. The restrictions are:
    ///
    /// * MIN, MAX and PRODUCT are not defined for complex numbers.
    /// * The bitwise operators are not defined for floating point.
    /// * AVG is not defined for bool.
    /// * PREMUL_SUM is defined only for floating point.
    pub const fn is_defined_for(self, dtype: DataType) -> bool {
        match self {
            Self::Sum => true,
            Self::Product | Self::Min | Self::Max => !dtype.is_complex(),
            Self::Avg => !matches!(dtype, DataType::Bool),
            Self::BitAnd | Self::BitOr | Self::BitXor => !dtype.is_float(),
            Self::PremulSum => dtype.is_float(),
        }
    }

    /// Returns whether the operator averages integers. The exact sum of all vectors does not fit in
    /// the type, so such a reduction has no partial results.
    pub const fn is_integer_average(self, dtype: DataType) -> bool {
        matches!(self, Self::Avg) && !dtype.is_float()
    }

    /// The number of the first operator's C constant. No element type and no status has a number in
    /// the operators' range.
    const FIRST_NUMBER: i32 = 0x200;

    /// Returns the number of the operator's C constant.
    pub const fn number(self) -> i32 {
        Self::FIRST_NUMBER + self as i32
    }

    #[inline]
    pub(super) fn find_number(number: i32) -> Option<Self> {
        let index = usize::try_from(number.wrapping_sub(Self::FIRST_NUMBER)).ok()?;
        Self::ALL.get(index).copied()
    }

    /// Checks that the operator is defined for an element type.
    ///
    /// # Errors
    /// `Unsupported`, with the operator, the type and the back end.
    pub fn check_defined_for<'a>(
        self,
        dtype: DataType,
        backend: impl FnOnce() -> &'a str,
    ) -> Result<()> {
        if self.is_defined_for(dtype) {
            return Ok(());
        }
        let backend = backend();
        let message = format!("{self} is not defined on {dtype} elements (back end {backend})");
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_numbers_round_trip() {
        for (number, op) in ReduceOp::ALL.into_iter().enumerate() {
            assert_eq!(op as usize, number);
            assert_eq!(ReduceOp::from_number(op.number()).unwrap(), op);
        }
        for number in [i32::MIN, -1, 0, 8, 0x100, 0x1ff, 0x209, i32::MAX] {
            assert!(ReduceOp::from_number(number).is_err(), "{number}");
        }
    }

    #[test]
    fn unsupported_op_error_names_op_dtype_and_backend() {
        let error = ReduceOp::Max.check_defined_for(DataType::C64, || "native").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        for word in ["MAX", "c64", "native"] {
            assert!(error.message().contains(word), "{error}");
        }
    }
}
