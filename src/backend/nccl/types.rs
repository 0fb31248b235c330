//! The mapping of libdist's element types and operators to the types and operators of NCCL. Some
//! types that NCCL does not have are replaced:
//!
//! - Copies transfer elements of such a type as bytes.
//! - Reductions of bool work on bytes: OR is the maximum, and AND is the minimum.
//! - Complex numbers are summed and averaged as pairs of real numbers.

use super::functions::NcclResult;
use crate::backend::{OpKind, SupportQuery};
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::WorldSize;
use crate::base::op::ReduceOp;
use crate::kernel;
use std::ffi::c_int;

const U8: c_int = 1;

const SUM: c_int = 0;
const PRODUCT: c_int = 1;
const MAX: c_int = 2;
const MIN: c_int = 3;
const AVG: c_int = 4;

/// The representation of a vector for NCCL: the number of the NCCL type, and the number of NCCL
/// elements for each libdist element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NcclElements {
    pub(super) dtype: c_int,
    pub(super) per_element: usize,
}

/// The NCCL operator of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NcclOperator {
    /// A built-in operator of NCCL.
    Builtin(c_int),
    /// An operator with the factor of this rank, which is created for the call.
    PreMultiplied,
}

/// Returns the number of the NCCL type for a libdist type, and the first NCCL version that has this
/// type. Returns `None` if NCCL has no such type.
fn type_number(dtype: DataType) -> Option<(c_int, i32)> {
    Some(match dtype {
        DataType::I8 => (0, 0),
        DataType::U8 => (U8, 0),
        DataType::I32 => (2, 0),
        DataType::U32 => (3, 0),
        DataType::I64 => (4, 0),
        DataType::U64 => (5, 0),
        DataType::F16 => (6, 0),
        DataType::F32 => (7, 0),
        DataType::F64 => (8, 0),
        DataType::Bf16 => (9, 21_000),
        DataType::F8E4M3 => (10, 22_400),
        DataType::F8E5M2 => (11, 22_400),
        DataType::I16 | DataType::U16 | DataType::C64 | DataType::C128 | DataType::Bool => {
            return None;
        }
    })
}

fn supported_type(dtype: DataType, version: i32) -> Option<c_int> {
    type_number(dtype).filter(|&(_, since)| version >= since).map(|(number, _)| number)
}

/// Returns the representation of a vector that is copied without arithmetic.
pub(super) fn copy_elements(dtype: DataType, version: i32) -> NcclElements {
    match supported_type(dtype, version) {
        Some(dtype) => NcclElements { dtype, per_element: 1 },
        None => NcclElements { dtype: U8, per_element: dtype.size() },
    }
}

/// Returns the representation of the vectors and the operator for a reduction among `size` ranks.
///
/// # Errors
/// `Unsupported`, naming the type and the operator.
pub(super) fn reduce_elements(
    dtype: DataType,
    op: ReduceOp,
    version: i32,
    size: WorldSize,
) -> Result<(NcclElements, NcclOperator)> {
    let is_f8 = matches!(dtype, DataType::F8E4M3 | DataType::F8E5M2);
    let (real, parts) = match dtype {
        DataType::C64 => (DataType::F32, 2),
        DataType::C128 => (DataType::F64, 2),
        DataType::Bool => (DataType::U8, 1),
        _ => (dtype, 1),
    };
    let operator = match (op, dtype) {
        (ReduceOp::Sum | ReduceOp::Max, DataType::Bool) => NcclOperator::Builtin(MAX),
        (ReduceOp::Product | ReduceOp::Min, DataType::Bool) => NcclOperator::Builtin(MIN),
        (ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor, _) => {
            return Err(unsupported_reduction(dtype, op, "NCCL has no bitwise operators"));
        }
        (ReduceOp::Sum, _) => NcclOperator::Builtin(SUM),
        (ReduceOp::Product, _) => NcclOperator::Builtin(PRODUCT),
        (ReduceOp::Max, _) => NcclOperator::Builtin(MAX),
        (ReduceOp::Min, _) => NcclOperator::Builtin(MIN),
        // For a group of one rank, NCCL uses a separate kernel that returns "invalid argument" for
        // AVG of f8. The average of one vector is the vector itself, so SUM replaces AVG.
        (ReduceOp::Avg, _) if size == 1 => NcclOperator::Builtin(SUM),
        (ReduceOp::Avg, _) => NcclOperator::Builtin(AVG),
        (ReduceOp::PremulSum, _) if size == 1 && is_f8 => {
            return Err(unsupported_reduction(
                dtype,
                op,
                "NCCL supports f8 factors for two ranks or more only",
            ));
        }
        (ReduceOp::PremulSum, _) => NcclOperator::PreMultiplied,
    };
    match supported_type(real, version) {
        Some(dtype) => Ok((NcclElements { dtype, per_element: parts }, operator)),
        None => {
            let reason = match type_number(real) {
                Some((_, since)) => {
                    format!(
                        "NCCL supports the type from {}.{} on",
                        since / 10_000,
                        since / 100 % 100
                    )
                }
                None => "NCCL has no such type".to_owned(),
            };
            Err(unsupported_reduction(dtype, op, &reason))
        }
    }
}

/// Checks whether an NCCL library of this version (for example 22703 for 2.27.3) supports a kind of
/// call on GPU memory, among `size` ranks. The check assumes that the library has all optional
/// functions.
///
/// # Errors
/// `Unsupported`.
pub fn check_support(query: &SupportQuery, version: i32, size: WorldSize) -> Result<()> {
    let (Some(op), Some(dtype)) = (query.op, query.dtype) else { return Ok(()) };
    op.check_defined_for(dtype, || "nccl")?;
    if let Some(kind) = query.kind.filter(|kind| kind.is_prefix()) {
        return Err(unsupported_prefix(kind));
    }
    reduce_elements(dtype, op, version, size).map(drop)
}

fn unsupported_reduction(dtype: DataType, op: ReduceOp, reason: &str) -> Error {
    let message = format!("{op} of {dtype} elements (back end nccl): {reason}");
    Error::new(ErrorKind::Unsupported, message)
}

/// Returns the error for a prefix reduction.
pub(super) fn unsupported_prefix(kind: OpKind) -> Error {
    let message =
        format!("{} (back end nccl): NCCL has no prefix reductions; use host memory", kind.name());
    Error::new(ErrorKind::Unsupported, message)
}

/// Encodes the factor of a rank as an element of `dtype`, or of the type of its parts if `dtype` is
/// complex.
pub(super) fn encode_factor(dtype: DataType, factor: f64) -> [u8; 8] {
    let real = match dtype {
        DataType::C64 => DataType::F32,
        DataType::C128 => DataType::F64,
        _ => dtype,
    };
    let mut bytes = [0; 8];
    let one: &[u8] = match real {
        DataType::F16 => &[0x00, 0x3c],
        DataType::Bf16 => &[0x80, 0x3f],
        DataType::F8E4M3 => &[0x38],
        DataType::F8E5M2 => &[0x3c],
        DataType::F32 => &1_f32.to_le_bytes(),
        _ => &1_f64.to_le_bytes(),
    };
    let into = Dst::from(&mut bytes[..one.len()]);
    kernel::scale_copy(real, factor, into, Src::from(one));
    bytes
}

/// Returns true unless the code is an error.
pub(super) fn is_success(code: NcclResult) -> bool {
    matches!(code, super::functions::SUCCESS | super::functions::IN_PROGRESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_types_move_as_bytes_and_refuse_reduction() {
        assert_eq!(
            copy_elements(DataType::C128, 23_000),
            NcclElements { dtype: U8, per_element: 16 }
        );
        assert_eq!(
            copy_elements(DataType::F8E4M3, 22_005),
            NcclElements { dtype: U8, per_element: 1 }
        );
        assert_eq!(copy_elements(DataType::F8E4M3, 22_400).dtype, 10);
        for (dtype, op) in [
            (DataType::I16, ReduceOp::Sum),
            (DataType::I32, ReduceOp::BitOr),
            (DataType::Bool, ReduceOp::BitAnd),
        ] {
            let error = reduce_elements(dtype, op, 23_000, 2).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            for word in [dtype.name(), op.name(), "nccl"] {
                assert!(error.message().contains(word), "{error}");
            }
        }
        let old = reduce_elements(DataType::F8E5M2, ReduceOp::Sum, 22_005, 2).unwrap_err();
        assert!(old.message().contains("from 2.24 on"), "{old}");
    }

    #[test]
    fn single_rank_average_is_sum_and_refuses_f8_factor() {
        let operator =
            |op, size| reduce_elements(DataType::F8E4M3, op, 23_000, size).map(|(_, it)| it);
        assert_eq!(operator(ReduceOp::Avg, 1).unwrap(), NcclOperator::Builtin(SUM));
        assert_eq!(operator(ReduceOp::Avg, 2).unwrap(), NcclOperator::Builtin(AVG));
        assert_eq!(operator(ReduceOp::PremulSum, 2).unwrap(), NcclOperator::PreMultiplied);
        let error = operator(ReduceOp::PremulSum, 1).unwrap_err();
        assert!(error.message().contains("two ranks or more"), "{error}");
    }

    #[test]
    fn factor_is_encoded_in_the_element_type() {
        assert_eq!(encode_factor(DataType::F32, -2.5)[..4], (-2.5_f32).to_le_bytes());
        assert_eq!(encode_factor(DataType::C64, 0.5)[..4], 0.5_f32.to_le_bytes());
        assert_eq!(encode_factor(DataType::F64, 0.1), 0.1_f64.to_le_bytes());
        assert_eq!(encode_factor(DataType::F16, 2.0)[..2], [0x00, 0x40]);
        assert_eq!(encode_factor(DataType::Bf16, 2.0)[..2], [0x00, 0x40]);
        assert_eq!(encode_factor(DataType::F8E4M3, 2.0)[0], 0x40);
        assert_eq!(encode_factor(DataType::F8E5M2, 2.0)[0], 0x40);
    }
}
