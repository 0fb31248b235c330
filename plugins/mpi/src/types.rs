//! The mapping of libdist's element types to MPI's.

use crate::base::dtype::DataType;
use crate::base::op::ReduceOp;
use crate::failure::{Failure, Result};
use crate::interface::DIST_ERR_UNSUPPORTED;
use crate::mpi::{constant, sys};

/// Returns an MPI type with the same memory layout. If MPI has no arithmetic for the type, it is an
/// integer of the same size, which the operators of this plug-in interpret.
pub(crate) fn datatype(dtype: DataType) -> sys::MPI_Datatype {
    match dtype {
        DataType::I8 => constant!(RSMPI_INT8_T),
        DataType::U8 | DataType::Bool | DataType::F8E4M3 | DataType::F8E5M2 => {
            constant!(RSMPI_UINT8_T)
        }
        DataType::I16 => constant!(RSMPI_INT16_T),
        DataType::U16 | DataType::F16 | DataType::Bf16 => constant!(RSMPI_UINT16_T),
        DataType::I32 => constant!(RSMPI_INT32_T),
        DataType::U32 => constant!(RSMPI_UINT32_T),
        DataType::I64 => constant!(RSMPI_INT64_T),
        DataType::U64 => constant!(RSMPI_UINT64_T),
        DataType::F32 => constant!(RSMPI_FLOAT),
        DataType::F64 => constant!(RSMPI_DOUBLE),
        DataType::C64 => constant!(RSMPI_FLOAT_COMPLEX),
        DataType::C128 => constant!(RSMPI_DOUBLE_COMPLEX),
    }
}

/// Returns the type with this number.
pub(crate) fn dtype(number: i32) -> Result<DataType> {
    DataType::from_number(number)
        .map_err(|_| Failure::new(DIST_ERR_UNSUPPORTED, format!("unknown element type {number}")))
}

/// Returns the operator with this number.
pub(crate) fn op(number: i32) -> Result<ReduceOp> {
    ReduceOp::from_number(number)
        .map_err(|_| Failure::new(DIST_ERR_UNSUPPORTED, format!("unknown operator {number}")))
}
