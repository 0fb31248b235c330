//! The version of the library, and the names of element types and operators as C strings.

use super::types::{dist_dtype_t, dist_op_t};
use crate::base::dtype::DataType;
use crate::base::op::ReduceOp;
use std::ffi::CStr;

/// The version as a number: MAJOR * 10000 + MINOR * 100 + PATCH, so "0.1.0" is 100.
pub(super) const VERSION: u32 = {
    const fn number(text: &str) -> u32 {
        let bytes = text.as_bytes();
        let mut value = 0;
        let mut i = 0;
        while i < bytes.len() {
            value = value * 10 + (bytes[i] - b'0') as u32;
            i += 1;
        }
        value
    }
    number(env!("CARGO_PKG_VERSION_MAJOR")) * 10_000
        + number(env!("CARGO_PKG_VERSION_MINOR")) * 100
        + number(env!("CARGO_PKG_VERSION_PATCH"))
};

pub(super) const VERSION_STRING: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => c"",
    };

pub(super) const UNKNOWN_DTYPE: &CStr = c"unknown dtype";
pub(super) const UNKNOWN_OP: &CStr = c"unknown op";

/// Returns the name of an element type.
pub(super) fn dtype(number: dist_dtype_t) -> &'static CStr {
    let Ok(dtype) = DataType::from_number(number) else { return UNKNOWN_DTYPE };
    match dtype {
        DataType::I8 => c"i8",
        DataType::U8 => c"u8",
        DataType::I16 => c"i16",
        DataType::U16 => c"u16",
        DataType::I32 => c"i32",
        DataType::U32 => c"u32",
        DataType::I64 => c"i64",
        DataType::U64 => c"u64",
        DataType::F16 => c"f16",
        DataType::Bf16 => c"bf16",
        DataType::F32 => c"f32",
        DataType::F64 => c"f64",
        DataType::C64 => c"c64",
        DataType::C128 => c"c128",
        DataType::Bool => c"bool",
        DataType::F8E4M3 => c"f8e4m3",
        DataType::F8E5M2 => c"f8e5m2",
    }
}

/// Returns the name of an operator.
pub(super) fn op(number: dist_op_t) -> &'static CStr {
    let Ok(op) = ReduceOp::from_number(number) else { return UNKNOWN_OP };
    match op {
        ReduceOp::Sum => c"sum",
        ReduceOp::Product => c"product",
        ReduceOp::Min => c"min",
        ReduceOp::Max => c"max",
        ReduceOp::Avg => c"avg",
        ReduceOp::BitAnd => c"band",
        ReduceOp::BitOr => c"bor",
        ReduceOp::BitXor => c"bxor",
        ReduceOp::PremulSum => c"premul_sum",
    }
}
