//! What the plug-in does, as far as that is known without any MPI: which operations it has, and who
//! folds elements.
//!
//! The library's tests read this file for the table of docs/backends.md. So it must not know MPI.

use crate::base::dtype::DataType;
use crate::base::op::ReduceOp;

/// The operations, as `create` tells them: all.
pub(crate) const KINDS: u64 = 0;

/// Who folds elements of a type with an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Folds {
    /// An operator of MPI's.
    Mpi,
    /// One that is made of the library's kernels.
    Kernels,
}

/// Hands the types and operators to a macro that are folded by kernels: what MPI does not have, or
/// has otherwise.
macro_rules! folded_by_kernels {
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
#[allow(unused_imports, reason = "not by the library's tests")]
pub(crate) use folded_by_kernels;

/// The operator that folds for another: AVG and PREMUL_SUM are sums, of which something is divided
/// or scaled.
pub(crate) fn folding(op: ReduceOp) -> ReduceOp {
    match op {
        ReduceOp::Avg | ReduceOp::PremulSum => ReduceOp::Sum,
        op => op,
    }
}

/// Who does it; `None` where it is not done.
pub(crate) fn folds(dtype: DataType, op: ReduceOp) -> Option<Folds> {
    macro_rules! are_named {
        ($($dtype:ident: $($op:ident)+;)+) => {
            match (dtype, folding(op)) {
                $((DataType::$dtype, $(ReduceOp::$op)|+) => true,)+
                _ => false,
            }
        };
    }
    match folded_by_kernels!(are_named) {
        _ if !op.is_defined_for(dtype) => None,
        true => Some(Folds::Kernels),
        false => Some(Folds::Mpi),
    }
}
