//! The MPI operators of reductions: MPI's built-in ones if they have libdist's semantics, else
//! operators made of libdist's kernels.
//!
//! The built-in ones are used for SUM and PRODUCT of wide numbers, and for most operators on
//! integers. The exceptions:
//!
//! - Open MPI 4.1 with AVX saturates sums of 8 and 16 bits, which must wrap.
//! - MPICH 4.0 treats unsigned numbers as signed in MIN and MAX.
//! - MIN and MAX of floating point are undefined in MPI if there is a NaN.
//! - MPI has no f16, bf16, f8 and bool arithmetic.
//!
//! MPI does not define which NaN a sum is. AVG and PREMUL_SUM are sums of elements that the caller
//! scales.

use crate::abilities::{ReductionSource, base_operator, kernel_reductions, reduction_source};
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::op::ReduceOp;
use crate::failure::{Failure, Result};
use crate::interface::DIST_ERR_UNSUPPORTED;
use crate::kernel;
use crate::mpi::{Handle, constant, mpi, sys};
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// True if an operator has panicked. MPI's operator function cannot return an error.
static HAS_PANICKED: AtomicBool = AtomicBool::new(false);

/// Returns an error if an operator has panicked.
pub(crate) fn check_panics() -> Result<()> {
    match HAS_PANICKED.load(Ordering::Relaxed) {
        true => Err(Failure::internal("a kernel of the MPI plug-in panicked")),
        false => Ok(()),
    }
}

/// Returns the operator for elements of this type.
pub(crate) fn operator(dtype: DataType, op: ReduceOp) -> Result<sys::MPI_Op> {
    let base_operator = base_operator(op);
    let found = match reduction_source(dtype, op) {
        Some(ReductionSource::Kernels) => own_function(dtype, base_operator)
            .map(|function| own_operator(dtype, base_operator, function)),
        Some(ReductionSource::Mpi) => builtin(base_operator).map(Ok),
        None => None,
    };
    found.unwrap_or_else(|| {
        Err(Failure::new(DIST_ERR_UNSUPPORTED, format!("{op} is not defined on {dtype}")))
    })
}

fn builtin(op: ReduceOp) -> Option<sys::MPI_Op> {
    match op {
        ReduceOp::Sum => Some(constant!(RSMPI_SUM)),
        ReduceOp::Product => Some(constant!(RSMPI_PROD)),
        ReduceOp::Min => Some(constant!(RSMPI_MIN)),
        ReduceOp::Max => Some(constant!(RSMPI_MAX)),
        ReduceOp::BitAnd => Some(constant!(RSMPI_BAND)),
        ReduceOp::BitOr => Some(constant!(RSMPI_BOR)),
        ReduceOp::BitXor => Some(constant!(RSMPI_BXOR)),
        ReduceOp::Avg | ReduceOp::PremulSum => None,
    }
}

type OperatorFunction =
    unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_int, *mut sys::MPI_Datatype);

/// Returns the function for a type and an operator that MPI lacks or defines differently.
fn own_function(dtype: DataType, op: ReduceOp) -> Option<OperatorFunction> {
    use ReduceOp::{BitAnd, BitOr, BitXor, Max, Min, Product, Sum};
    macro_rules! of {
        ($($dtype:ident: $($op:ident)+;)+) => {
            match (dtype, op) {
                $($((DataType::$dtype, $op) => {
                    Some(fold::<{ DataType::$dtype as u8 }, { $op as u8 }> as OperatorFunction)
                })+)+
                _ => None,
            }
        };
    }
    kernel_reductions!(of)
}

/// The operator function for MPI: `inout` becomes `input` op `inout`.
unsafe extern "C" fn fold<const DTYPE: u8, const OP: u8>(
    input: *mut c_void,
    inout: *mut c_void,
    len: *mut c_int,
    _: *mut sys::MPI_Datatype,
) {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let dtype = DataType::ALL[usize::from(DTYPE)];
        // SAFETY: MPI's pointer to the number of elements.
        let count = usize::try_from(unsafe { *len }).unwrap_or(0);
        let bytes = count * dtype.size();
        // SAFETY: a vector of MPI with this number of elements.
        let input = unsafe { Src::new(input.cast(), bytes) };
        // SAFETY: a vector of MPI with this number of elements.
        let inout = unsafe { Dst::new(inout.cast(), bytes) };
        kernel::fold(dtype, ReduceOp::ALL[usize::from(OP)], inout, &[input, inout.as_src()]);
    }));
    if outcome.is_err() {
        HAS_PANICKED.store(true, Ordering::Relaxed);
    }
}

/// Returns the operator made of a function. It is created once per process and never freed.
fn own_operator(dtype: DataType, op: ReduceOp, function: OperatorFunction) -> Result<sys::MPI_Op> {
    const OPERATORS: usize = ReduceOp::ALL.len();
    static CREATED: [OnceLock<Handle<sys::MPI_Op>>; DataType::ALL.len() * OPERATORS] =
        [const { OnceLock::new() }; DataType::ALL.len() * OPERATORS];
    static CREATION: Mutex<()> = Mutex::new(());
    let slot = &CREATED[dtype as usize * OPERATORS + op as usize];
    if let Some(known) = slot.get() {
        return Ok(known.0);
    }
    let _creation_guard = CREATION.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = slot.get() {
        return Ok(known.0);
    }
    let mut operator = constant!(RSMPI_SUM);
    let commutes = 1;
    mpi!(MPI_Op_create(Some(function), commutes, &raw mut operator))?;
    Ok(slot.get_or_init(|| Handle(operator)).0)
}
