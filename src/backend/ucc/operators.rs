//! Reductions that UCC's own operators lack or define otherwise, made of libdist's kernels. These
//! are all operators of `f16` and the 8-bit floats, and MIN and MAX of floats, in which a NaN must
//! win.
//!
//! Each such reduction is a data type of UCC with a callback that reduces. The types are created
//! once in a process. UCC 1.2 does not pass the callback its context, so each type and operator
//! has a function of its own.

use super::functions::{
    ERR_NO_MESSAGE, GENERIC_TYPE_CONTIGUOUS, GENERIC_TYPE_FLAGS, GENERIC_TYPE_REDUCES,
    GenericTypeOperations, OK, ReduceCallbackParameters, UccStatus,
};
use super::library::UccLibrary;
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::error::{Error, Result};
use crate::base::op::ReduceOp;
use crate::base::sync::lock;
use crate::kernel;
use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::sync::Mutex;

/// The types of UCC that were created, by element type and operator.
static TYPES: Mutex<BTreeMap<(u8, u8), u64>> = Mutex::new(BTreeMap::new());

/// The function by which UCC reduces vectors.
type ReduceCallback = unsafe extern "C" fn(*const ReduceCallbackParameters) -> UccStatus;

/// Reduces the vectors with the operator of the type.
unsafe extern "C" fn reduce<const DTYPE: usize, const OP: usize>(
    parameters: *const ReduceCallbackParameters,
) -> UccStatus {
    let (Some(&dtype), Some(&op)) = (DataType::ALL.get(DTYPE), ReduceOp::ALL.get(OP)) else {
        return ERR_NO_MESSAGE;
    };
    // SAFETY: UCC's parameters, which are valid during the call.
    let Some(parameters) = (unsafe { parameters.as_ref() }) else { return ERR_NO_MESSAGE };
    let bytes = parameters.count * dtype.size();
    let vector = |index: usize| {
        let start = match index {
            0 => parameters.src1.cast::<u8>(),
            _ => parameters.src2.cast::<u8>().wrapping_add((index - 1) * parameters.stride),
        };
        // SAFETY: UCC's vectors of `count` elements, which are valid during the call.
        unsafe { Src::new(start, bytes) }
    };
    // SAFETY: UCC's result of `count` elements, which may be the memory of a vector.
    let result = unsafe { Dst::new(parameters.dst.cast(), bytes) };
    let fold = || {
        let vectors: Vec<Src<'_>> = (0..=parameters.n_vectors).map(vector).collect();
        kernel::fold(dtype, op, result, &vectors);
    };
    // No panic may pass through UCC.
    match catch_unwind(std::panic::AssertUnwindSafe(fold)) {
        Ok(()) => OK,
        Err(_) => ERR_NO_MESSAGE,
    }
}

macro_rules! callbacks {
    ($($dtype:ident: $($op:ident)+;)+) => {
        /// Returns the callback for a reduction, or `None` if UCC's own operator is used.
        fn callback(dtype: DataType, op: ReduceOp) -> Option<ReduceCallback> {
            match (dtype, op) {
                $($((DataType::$dtype, ReduceOp::$op) => {
                    Some(reduce::<{ DataType::$dtype as usize }, { ReduceOp::$op as usize }>)
                })+)+
                _ => None,
            }
        }
    };
}

callbacks! {
    F16: Sum Product Min Max;
    Bf16: Min Max;
    F32: Min Max;
    F64: Min Max;
    F8E4M3: Sum Product Min Max;
    F8E5M2: Sum Product Min Max;
}

/// Returns true if this reduction uses a kernel of libdist in place of UCC's operator.
pub(super) fn uses_kernel(dtype: DataType, op: ReduceOp) -> bool {
    callback(dtype, op).is_some()
}

/// Returns UCC's type for a reduction for which [`uses_kernel`] is true. The first call creates
/// it.
///
/// # Errors
/// The error of UCC.
pub(super) fn datatype(library: &UccLibrary, dtype: DataType, op: ReduceOp) -> Result<u64> {
    let callback = callback(dtype, op)
        .ok_or_else(|| Error::internal(format!("UCC has an own operator for {dtype}, {op}")))?;
    let mut types = lock(&TYPES);
    if let Some(&datatype) = types.get(&(dtype as u8, op as u8)) {
        return Ok(datatype);
    }
    let operations = GenericTypeOperations {
        mask: GENERIC_TYPE_FLAGS,
        flags: GENERIC_TYPE_CONTIGUOUS | GENERIC_TYPE_REDUCES,
        element_bytes: dtype.size(),
        pack_functions: [0; 6],
        reduce: Some(callback),
        reduce_context: std::ptr::null_mut(),
    };
    let mut datatype = 0;
    // SAFETY: operations that UCC copies, no context, and space for the result.
    let status = unsafe {
        (library.functions.dt_create_generic)(
            &raw const operations,
            std::ptr::null_mut(),
            &raw mut datatype,
        )
    };
    library.check("ucc_dt_create_generic", status)?;
    types.insert((dtype as u8, op as u8), datatype);
    Ok(datatype)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callback_reduces_all_vectors() {
        let first = [1.0_f32, f32::NAN, 5.0];
        let others = [[2.0_f32, 1.0, 4.0], [0.5, 7.0, 6.0]];
        let mut result = [0.0_f32; 3];
        let parameters = ReduceCallbackParameters {
            mask: 0,
            src1: first.as_ptr().cast_mut().cast(),
            src2: others.as_ptr().cast_mut().cast(),
            dst: result.as_mut_ptr().cast(),
            n_vectors: 2,
            count: 3,
            stride: 12,
            dt: std::ptr::null_mut(),
            context: std::ptr::null_mut(),
        };
        let max = callback(DataType::F32, ReduceOp::Max).unwrap();
        // SAFETY: vectors of three elements.
        assert_eq!(unsafe { max(&raw const parameters) }, OK);
        assert!(result[0] == 2.0 && result[1].is_nan() && result[2] == 6.0, "{result:?}");
        // SAFETY: the callback checks for a null pointer.
        assert_eq!(unsafe { max(std::ptr::null()) }, ERR_NO_MESSAGE);
        assert!(callback(DataType::F32, ReduceOp::Sum).is_none());
    }
}
