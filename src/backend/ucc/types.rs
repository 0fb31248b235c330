//! The mapping of libdist's element types and operators to those of UCC, and the calls that the
//! back end supports.
//!
//! - Calls without arithmetic transfer elements of any type as bytes.
//! - UCC's operators reduce integers, `bf16`, `f32`, `f64` and complex numbers. The reductions of
//!   `bool` are UCC's logical operators. Kernels of libdist replace the operators that UCC lacks
//!   in host memory ([`super::operators`]).
//! - AVG and PREMUL_SUM of floats in host memory are sums of vectors that this rank has scaled
//!   first. UCC has no PREMUL_SUM, and its own AVG of a reduce_scatter is off by default.
//! - UCC has no exact average of integers.

use super::functions;
use super::operators::uses_kernel;
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
    /// The type, if it is one of UCC's own.
    pub(super) datatype: Option<u64>,
    pub(super) op: c_int,
    /// The operator of the kernel that reduces in place of UCC's operator.
    pub(super) kernel: Option<ReduceOp>,
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
fn arithmetic_type(dtype: DataType) -> Option<u64> {
    let id = match dtype {
        DataType::I8 => 0,
        DataType::I16 => 1,
        DataType::I32 => 2,
        DataType::I64 => 3,
        DataType::U8 | DataType::Bool => 5,
        DataType::U16 => 6,
        DataType::U32 => 7,
        DataType::U64 => 8,
        DataType::F16 => 10,
        DataType::F32 => 11,
        DataType::F64 => 12,
        DataType::Bf16 => 13,
        DataType::C64 => 15,
        DataType::C128 => 16,
        DataType::F8E4M3 | DataType::F8E5M2 => return None,
    };
    Some(predefined(id))
}

/// Returns UCC's type and operator for a reduction, or `None` if UCC cannot run it. The operator
/// must be defined for the type.
pub(super) fn reduction(dtype: DataType, op: ReduceOp, memory: BufferMemory) -> Option<Reduction> {
    let is_inexact = dtype.is_float() || dtype.is_complex();
    let scales_input = match op {
        ReduceOp::Avg | ReduceOp::PremulSum if !is_inexact => return None,
        ReduceOp::PremulSum if memory == BufferMemory::Cuda => return None,
        ReduceOp::Avg | ReduceOp::PremulSum => memory == BufferMemory::Host,
        _ => false,
    };
    let base = if scales_input { ReduceOp::Sum } else { op };
    if memory == BufferMemory::Host && uses_kernel(dtype, base) {
        return Some(Reduction { datatype: None, op: SUM, kernel: Some(base), scales_input });
    }
    let datatype = Some(arithmetic_type(dtype)?);
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
    Some(Reduction { datatype, op, kernel: None, scales_input })
}

/// Checks whether UCC supports a call. The operator must be defined for the type. The result is
/// the same on all ranks.
///
/// # Errors
/// `Unsupported`, with the reason.
pub fn check_support(query: &SupportQuery) -> Result<()> {
    let memory = if query.gpu.is_some() { BufferMemory::Cuda } else { BufferMemory::Host };
    let is_reduction = query.kind.is_none_or(OpKind::is_reduction);
    let has_reduction = |(dtype, op)| reduction(dtype, op, memory).is_some();
    let is_composed = matches!(query.kind, Some(OpKind::Scan | OpKind::Exscan));
    let reason = match (memory, query.kind) {
        // Prefix reductions are made of all_gather, and kernels of libdist.
        (BufferMemory::Host, _) if is_composed => return Ok(()),
        (BufferMemory::Cuda, _) if is_composed => "UCC has no prefix reductions",
        (BufferMemory::Cuda, None) => "messages are those of the native group, in host memory",
        // The blocks may be anywhere, and only a kernel of the device could join them.
        (BufferMemory::Cuda, Some(OpKind::ReduceScatterV)) => "UCC needs adjacent blocks",
        _ if is_reduction && !query.dtype.zip(query.op).is_none_or(has_reduction) => {
            "UCC has no such reduction"
        }
        _ => return Ok(()),
    };
    let message = format!("{query}: the back end ucc does not support this call: {reason}");
    Err(Error::new(ErrorKind::Unsupported, message))
}

/// The numbers of operators, by UCC's names, for the comparison with UCC's headers.
#[cfg(test)]
pub(super) const OPERATOR_NUMBERS: [(&str, c_int); 11] = [
    ("UCC_OP_SUM", SUM),
    ("UCC_OP_PROD", PRODUCT),
    ("UCC_OP_MAX", MAX),
    ("UCC_OP_MIN", MIN),
    ("UCC_OP_LAND", LOGICAL_AND),
    ("UCC_OP_LOR", LOGICAL_OR),
    ("UCC_OP_LXOR", LOGICAL_XOR),
    ("UCC_OP_BAND", BIT_AND),
    ("UCC_OP_BOR", BIT_OR),
    ("UCC_OP_BXOR", BIT_XOR),
    ("UCC_OP_AVG", AVERAGE),
];

/// The numbers of types, by UCC's names, as in [`arithmetic_type`].
#[cfg(test)]
pub(super) const TYPE_NUMBERS: [(&str, u64); 10] = [
    ("UCC_DT_INT8", predefined(0)),
    ("UCC_DT_INT64", predefined(3)),
    ("UCC_DT_UINT8", BYTES),
    ("UCC_DT_UINT64", predefined(8)),
    ("UCC_DT_FLOAT16", predefined(10)),
    ("UCC_DT_FLOAT32", predefined(11)),
    ("UCC_DT_FLOAT64", predefined(12)),
    ("UCC_DT_BFLOAT16", predefined(13)),
    ("UCC_DT_FLOAT32_COMPLEX", predefined(15)),
    ("UCC_DT_FLOAT64_COMPLEX", predefined(16)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reductions_follow_the_table_of_ucc() {
        let own = |id: u64, op, scales_input| {
            Some(Reduction { datatype: Some(id << 3), op, kernel: None, scales_input })
        };
        let host = |dtype, op| reduction(dtype, op, BufferMemory::Host);
        assert_eq!(host(DataType::F32, ReduceOp::Sum), own(11, SUM, false));
        assert_eq!(host(DataType::Bool, ReduceOp::Sum), own(5, LOGICAL_OR, false));
        assert_eq!(host(DataType::F64, ReduceOp::Avg), own(12, SUM, true));
        assert_eq!(host(DataType::C64, ReduceOp::PremulSum), own(15, SUM, true));
        assert_eq!(host(DataType::I32, ReduceOp::Max), own(2, MAX, false));
        let kernel = host(DataType::F16, ReduceOp::Avg).unwrap();
        assert_eq!((kernel.kernel, kernel.scales_input), (Some(ReduceOp::Sum), true));
        assert_eq!(host(DataType::F32, ReduceOp::Min).unwrap().kernel, Some(ReduceOp::Min));
        for (dtype, op) in [(DataType::I32, ReduceOp::Avg), (DataType::U8, ReduceOp::PremulSum)] {
            assert_eq!(host(dtype, op), None, "{dtype} {op:?}");
        }
        let cuda = |dtype, op| reduction(dtype, op, BufferMemory::Cuda);
        assert_eq!(cuda(DataType::F16, ReduceOp::Avg), own(10, AVERAGE, false));
        assert_eq!(cuda(DataType::F32, ReduceOp::PremulSum), None);
        assert_eq!(cuda(DataType::F8E5M2, ReduceOp::Max), None);
    }
}
