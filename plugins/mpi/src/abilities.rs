//! The abilities of the plug-in that are known without an MPI: its operations, and how each
//! reduction is computed.
//!
//! The library's tests read this file for the table in docs/backends.md. So it does not depend on
//! MPI.

use crate::base::dtype::DataType;
use crate::base::op::ReduceOp;

/// The operations that `create` reports; 0 means all.
pub(crate) const KINDS: u64 = 0;

/// The implementation that reduces elements of a type with an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReductionSource {
    /// A built-in operator of MPI.
    Mpi,
    /// An operator made of libdist's kernels.
    Kernels,
}

/// Passes the types and operators that kernels reduce to a macro. MPI lacks these reductions, or
/// defines a different result.
macro_rules! kernel_reductions {
    ($each:ident) => {
        $each! {
            F16: Sum Product Min Max;
            Bf16: Sum Product Min Max;
            F8E4M3: Sum Product Min Max;
            F8E5M2: Sum Product Min Max;
            F32: Min Max;
            F64: Min Max;
            Bool: Sum Product Min Max BitAnd BitOr BitXor;
            I8: Sum;
            U8: Sum Min Max;
            I16: Sum;
            U16: Sum Min Max;
            U32: Min Max;
            U64: Min Max;
        }
    };
}
#[allow(unused_imports, reason = "the library's tests do not use it")]
pub(crate) use kernel_reductions;

/// Returns the operator that reduces for another: AVG and PREMUL_SUM are sums of scaled vectors, or
/// of a wider type.
pub(crate) fn base_operator(op: ReduceOp) -> ReduceOp {
    match op {
        ReduceOp::Avg | ReduceOp::PremulSum => ReduceOp::Sum,
        op => op,
    }
}

/// Returns the implementation; `None` if the reduction is not defined.
pub(crate) fn reduction_source(dtype: DataType, op: ReduceOp) -> Option<ReductionSource> {
    macro_rules! is_listed {
        ($($dtype:ident: $($op:ident)+;)+) => {
            match (dtype, base_operator(op)) {
                $((DataType::$dtype, $(ReduceOp::$op)|+) => true,)+
                _ => false,
            }
        };
    }
    match kernel_reductions!(is_listed) {
        _ if !op.is_defined_for(dtype) => None,
        true => Some(ReductionSource::Kernels),
        false => Some(ReductionSource::Mpi),
    }
}
