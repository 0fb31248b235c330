//! The mapping of libdist's element types and operators to those of UCC, and the calls that the
//! back end supports.
//!
//! - Calls without arithmetic transfer elements of any type as bytes.
//! - UCC's operators reduce integers, `bf16`, `f32`, `f64` and complex numbers. The reductions of
//!   `bool` are UCC's logical operators.
//! - AVG and PREMUL_SUM of floats in host memory are sums of vectors that this rank has scaled
//!   first. UCC has no PREMUL_SUM, and its own AVG of a reduce_scatter is off by default.
//! - UCC has no arithmetic for the 8-bit floats, in host memory none for `f16`, and no exact average
//!   of integers.

use super::functions;
use crate::backend::{OpKind, SupportQuery};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::op::ReduceOp;
use std::ffi::c_int;

/// The type of bytes, as which elements are transferred without arithmetic.
pub(super) const BYTES: u64 = predefined(5);

const SUM: c_int = 0;
const PRODUCT: c_int = 1;
const MAX: c_int = 2;
const MIN: c_int = 3;
const LOGICAL_AND: c_int = 4;
const LOGICAL_OR: c_int = 5;
const LOGICAL_XOR: c_int = 6;
const BIT_AND: c_int = 7;
const BIT_OR: c_int = 8;
const BIT_XOR: c_int = 9;
const AVERAGE: c_int = 12;

/// Returns the number of a predefined type: its id, shifted by the bits of the type's class.
const fn predefined(id: u64) -> u64 {
    id << 3
}

/// UCC's type and operator of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reduction {
    pub(super) datatype: u64,
    pub(super) op: c_int,
    /// True if this rank scales its vector first, and UCC sums the scaled vectors.
    pub(super) scales_input: bool,
}

/// The memory of the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BufferMemory {
    Host,
    Cuda,
}

impl BufferMemory {
    /// Returns UCC's number.
    pub(super) fn number(self) -> c_int {
        match self {
            Self::Host => functions::MEMORY_HOST,
            Self::Cuda => functions::MEMORY_CUDA,
        }
    }
}

/// Returns UCC's type for arithmetic on elements of this type.
fn arithmetic_type(dtype: DataType, memory: BufferMemory) -> Option<u64> {
    let id = match dtype {
        DataType::I8 => 0,
        DataType::I16 => 1,
        DataType::I32 => 2,
        DataType::I64 => 3,
        DataType::U8 | DataType::Bool => 5,
        DataType::U16 => 6,
        DataType::U32 => 7,
        DataType::U64 => 8,
        DataType::F16 if memory == BufferMemory::Cuda => 10,
        DataType::F32 => 11,
        DataType::F64 => 12,
        DataType::Bf16 => 13,
        DataType::C64 => 15,
        DataType::C128 => 16,
        DataType::F16 | DataType::F8E4M3 | DataType::F8E5M2 => return None,
    };
    Some(predefined(id))
}

/// Returns UCC's type and operator for a reduction, or `None` if UCC cannot run it. The operator
/// must be defined for the type.
pub(super) fn reduction(dtype: DataType, op: ReduceOp, memory: BufferMemory) -> Option<Reduction> {
    let datatype = arithmetic_type(dtype, memory)?;
    let is_inexact = dtype.is_float() || dtype.is_complex();
    let scales_input = match op {
        ReduceOp::Avg | ReduceOp::PremulSum if !is_inexact => return None,
        ReduceOp::PremulSum if memory == BufferMemory::Cuda => return None,
        ReduceOp::Avg | ReduceOp::PremulSum => memory == BufferMemory::Host,
        _ => false,
    };
    let op = match (op, dtype) {
        (ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr, DataType::Bool) => LOGICAL_OR,
        (ReduceOp::Product | ReduceOp::Min | ReduceOp::BitAnd, DataType::Bool) => LOGICAL_AND,
        (ReduceOp::BitXor, DataType::Bool) => LOGICAL_XOR,
        (ReduceOp::Sum | ReduceOp::PremulSum, _) => SUM,
        (ReduceOp::Avg, _) if scales_input => SUM,
        (ReduceOp::Avg, _) => AVERAGE,
        (ReduceOp::Product, _) => PRODUCT,
        (ReduceOp::Min, _) => MIN,
        (ReduceOp::Max, _) => MAX,
        (ReduceOp::BitAnd, _) => BIT_AND,
        (ReduceOp::BitOr, _) => BIT_OR,
        (ReduceOp::BitXor, _) => BIT_XOR,
    };
    Some(Reduction { datatype, op, scales_input })
}

/// Checks whether UCC supports a call. The operator must be defined for the type. The result is the
/// same on all ranks.
///
/// # Errors
/// `Unsupported`, with the reason.
pub fn check_support(query: &SupportQuery) -> Result<()> {
    let memory = if query.gpu.is_some() { BufferMemory::Cuda } else { BufferMemory::Host };
    let reduces = query.kind.is_none_or(OpKind::is_reduction);
    let reason = match (query.dtype, query.op) {
        (Some(dtype), Some(op)) if reduces && reduction(dtype, op, memory).is_none() => {
            "UCC has no such reduction"
        }
        _ => return Ok(()),
    };
    let message = format!("{query}: the back end ucc does not support this call: {reason}");
    Err(Error::new(ErrorKind::Unsupported, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reductions_follow_the_table_of_ucc() {
        let host = |dtype, op| reduction(dtype, op, BufferMemory::Host);
        assert_eq!(
            host(DataType::F32, ReduceOp::Sum),
            Some(Reduction { datatype: 11 << 3, op: SUM, scales_input: false })
        );
        assert_eq!(
            host(DataType::Bool, ReduceOp::Sum),
            Some(Reduction { datatype: 5 << 3, op: LOGICAL_OR, scales_input: false })
        );
        assert!(host(DataType::F64, ReduceOp::Avg).is_some_and(|it| it.scales_input));
        assert!(host(DataType::C64, ReduceOp::PremulSum).is_some_and(|it| it.scales_input));
        for (dtype, op) in [
            (DataType::F16, ReduceOp::Sum),
            (DataType::F8E4M3, ReduceOp::Max),
            (DataType::I32, ReduceOp::Avg),
            (DataType::U8, ReduceOp::PremulSum),
        ] {
            assert_eq!(host(dtype, op), None, "{dtype} {op:?}");
        }
        let cuda = |dtype, op| reduction(dtype, op, BufferMemory::Cuda);
        assert_eq!(
            cuda(DataType::F16, ReduceOp::Avg),
            Some(Reduction { datatype: 10 << 3, op: AVERAGE, scales_input: false })
        );
        assert_eq!(cuda(DataType::F32, ReduceOp::PremulSum), None);
    }
}
