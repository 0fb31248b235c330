//! Which element types and operators NCCL has, and what stands for those that it has not.
//!
//! Whatever is only moved goes as bytes where NCCL does not know its type. A bool is folded as a
//! byte: OR is the largest, AND the smallest. Complex numbers are added and averaged by their two
//! parts.

use super::functions::Code;
use crate::backend::OpKind;
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

/// How a vector is told to NCCL: its type, and how many elements there of one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Elements {
    pub(super) dtype: c_int,
    pub(super) per_element: usize,
}

/// Which operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    /// One of NCCL's own.
    Own(c_int),
    /// One that is made for the call, with this rank's factor.
    Scaled,
}

/// NCCL's number of a type, and since which version it has it.
fn number(dtype: DataType) -> Option<(c_int, i32)> {
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

fn known(dtype: DataType, version: i32) -> Option<c_int> {
    number(dtype).filter(|&(_, since)| version >= since).map(|(number, _)| number)
}

/// For what is only moved.
pub(super) fn moved(dtype: DataType, version: i32) -> Elements {
    match known(dtype, version) {
        Some(dtype) => Elements { dtype, per_element: 1 },
        None => Elements { dtype: U8, per_element: dtype.size() },
    }
}

/// For what is folded among so many ranks.
///
/// # Errors
/// `Unsupported`, naming type and operator.
pub(super) fn folded(
    dtype: DataType,
    op: ReduceOp,
    (version, size): (i32, WorldSize),
) -> Result<(Elements, Operator)> {
    let is_f8 = matches!(dtype, DataType::F8E4M3 | DataType::F8E5M2);
    let (real, parts) = match dtype {
        DataType::C64 => (DataType::F32, 2),
        DataType::C128 => (DataType::F64, 2),
        DataType::Bool => (DataType::U8, 1),
        _ => (dtype, 1),
    };
    let operator = match (op, dtype) {
        (ReduceOp::Sum | ReduceOp::Max, DataType::Bool) => Operator::Own(MAX),
        (ReduceOp::Product | ReduceOp::Min, DataType::Bool) => Operator::Own(MIN),
        (ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor, _) => {
            return Err(refusal(dtype, op, "NCCL has no bitwise operators"));
        }
        (ReduceOp::Sum, _) => Operator::Own(SUM),
        (ReduceOp::Product, _) => Operator::Own(PRODUCT),
        (ReduceOp::Max, _) => Operator::Own(MAX),
        (ReduceOp::Min, _) => Operator::Own(MIN),
        // One rank alone has a kernel of its own, which knows no f8 and says "invalid argument";
        // nor is it needed.
        (ReduceOp::Avg, _) if size == 1 => Operator::Own(SUM),
        (ReduceOp::Avg, _) => Operator::Own(AVG),
        (ReduceOp::PremulSum, _) if size == 1 && is_f8 => {
            return Err(refusal(dtype, op, "NCCL has factors of f8 for two ranks or more"));
        }
        (ReduceOp::PremulSum, _) => Operator::Scaled,
    };
    match known(real, version) {
        Some(dtype) => Ok((Elements { dtype, per_element: parts }, operator)),
        None => {
            let why = match number(real) {
                Some((_, since)) => {
                    format!("NCCL has the type from {}.{} on", since / 10_000, since / 100 % 100)
                }
                None => "NCCL has no such type".to_owned(),
            };
            Err(refusal(dtype, op, &why))
        }
    }
}

fn refusal(dtype: DataType, op: ReduceOp, why: &str) -> Error {
    let message = format!("{op} of {dtype} elements (back end nccl): {why}");
    Error::new(ErrorKind::Unsupported, message)
}

/// Why a prefix reduction is refused.
pub(super) fn no_prefix(kind: OpKind) -> Error {
    let message =
        format!("{} (back end nccl): NCCL has no prefix reductions; use host memory", kind.name());
    Error::new(ErrorKind::Unsupported, message)
}

/// A rank's factor as an element of the type, in which NCCL reads it.
pub(super) fn factor(dtype: DataType, factor: f64) -> [u8; 8] {
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

/// Whether a code is none of failure.
pub(super) fn is_fine(code: Code) -> bool {
    matches!(code, super::functions::SUCCESS | super::functions::IN_PROGRESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nccl_lacks_is_moved_as_bytes_and_refused_where_it_is_folded() {
        assert_eq!(moved(DataType::C128, 23_000), Elements { dtype: U8, per_element: 16 });
        assert_eq!(moved(DataType::F8E4M3, 22_005), Elements { dtype: U8, per_element: 1 });
        assert_eq!(moved(DataType::F8E4M3, 22_400).dtype, 10);
        for (dtype, op) in [
            (DataType::I16, ReduceOp::Sum),
            (DataType::I32, ReduceOp::BitOr),
            (DataType::Bool, ReduceOp::BitAnd),
        ] {
            let error = folded(dtype, op, (23_000, 2)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            for word in [dtype.name(), op.name(), "nccl"] {
                assert!(error.message().contains(word), "{error}");
            }
        }
        let old = folded(DataType::F8E5M2, ReduceOp::Sum, (22_005, 2)).unwrap_err();
        assert!(old.message().contains("from 2.24 on"), "{old}");
    }

    #[test]
    fn one_rank_alone_averages_nothing_and_has_no_factor_of_f8() {
        let operator = |op, size| folded(DataType::F8E4M3, op, (23_000, size)).map(|(_, it)| it);
        assert_eq!(operator(ReduceOp::Avg, 1).unwrap(), Operator::Own(SUM));
        assert_eq!(operator(ReduceOp::Avg, 2).unwrap(), Operator::Own(AVG));
        assert_eq!(operator(ReduceOp::PremulSum, 2).unwrap(), Operator::Scaled);
        let error = operator(ReduceOp::PremulSum, 1).unwrap_err();
        assert!(error.message().contains("two ranks or more"), "{error}");
    }

    #[test]
    fn a_factor_is_an_element_of_the_type() {
        assert_eq!(factor(DataType::F32, -2.5)[..4], (-2.5_f32).to_le_bytes());
        assert_eq!(factor(DataType::C64, 0.5)[..4], 0.5_f32.to_le_bytes());
        assert_eq!(factor(DataType::F64, 0.1), 0.1_f64.to_le_bytes());
        assert_eq!(factor(DataType::F16, 2.0)[..2], [0x00, 0x40]);
        assert_eq!(factor(DataType::Bf16, 2.0)[..2], [0x00, 0x40]);
        assert_eq!(factor(DataType::F8E4M3, 2.0)[0], 0x40);
        assert_eq!(factor(DataType::F8E5M2, 2.0)[0], 0x40);
    }
}
