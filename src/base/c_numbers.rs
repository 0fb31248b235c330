//! The numbers of element types and operators in the C interface.
//!
//! Types and operators have disjoint ranges of numbers. If a caller swaps the two arguments, the
//! numbers are therefore wrong, and the error reports the swap.

use super::dtype::DataType;
use super::error::{Error, Result};
use super::op::ReduceOp;

impl DataType {
    /// Returns the type with this number in the C interface.
    ///
    /// # Errors
    /// `InvalidArgument` for a number that is not a type.
    #[inline]
    pub fn from_number(number: i32) -> Result<Self> {
        Self::find_number(number).ok_or_else(|| unknown_dtype_error(number))
    }
}

impl ReduceOp {
    /// Returns the operator with this number in the C interface.
    ///
    /// # Errors
    /// `InvalidArgument` for a number that is not an operator.
    #[inline]
    pub fn from_number(number: i32) -> Result<Self> {
        Self::find_number(number).ok_or_else(|| unknown_op_error(number))
    }
}

#[cold]
fn unknown_dtype_error(number: i32) -> Error {
    let cause = match ReduceOp::find_number(number) {
        Some(op) => {
            format!("it is the operator DIST_{op}; are the arguments dtype and op swapped?")
        }
        None => "pass a DIST_ constant of a type, such as DIST_F32".to_owned(),
    };
    Error::invalid(format!("argument dtype: {number} is not a dist_dtype_t; {cause}"))
}

#[cold]
fn unknown_op_error(number: i32) -> Error {
    let cause = match DataType::find_number(number) {
        Some(dtype) => {
            format!("it is the element type {dtype}; are the arguments dtype and op swapped?")
        }
        None => "pass a DIST_ constant of an operator, such as DIST_SUM".to_owned(),
    };
    Error::invalid(format!("argument op: {number} is not a dist_op_t; {cause}"))
}
