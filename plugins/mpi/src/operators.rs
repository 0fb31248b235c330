//! Operators: MPI's own where they do what libdist's do, else operators made of libdist's kernels.
//!
//! MPI's own are SUM and PRODUCT of wide numbers, and almost everything of integers; but sums of 8
//! and 16 bits saturate in Open MPI where it uses AVX (4.1), and must wrap, and MPICH (4.0) takes
//! unsigned numbers for signed ones in MIN and MAX. They leave open which NaN a sum is. MIN and MAX
//! of floating point are undefined in MPI where there is a NaN, and of f16, bf16, f8 and bools MPI
//! knows nothing. AVG and PREMUL_SUM are sums, of which the caller has divided or scaled something.

use crate::abilities::{Folds, folded_by_kernels, folding, folds};
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

/// An operator has panicked, which nobody could be told at once.
static BROKEN: AtomicBool = AtomicBool::new(false);

/// Fails once an operator has not done what it should.
pub(crate) fn check() -> Result<()> {
    match BROKEN.load(Ordering::Relaxed) {
        true => Err(Failure::internal("a kernel of the MPI plug-in has panicked")),
        false => Ok(()),
    }
}

/// The operator for elements of this type.
pub(crate) fn operator(dtype: DataType, op: ReduceOp) -> Result<sys::MPI_Op> {
    let folding = folding(op);
    let found = match folds(dtype, op) {
        Some(Folds::Kernels) => own(dtype, folding).map(|function| made(dtype, folding, function)),
        Some(Folds::Mpi) => builtin(folding).map(Ok),
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

type Function = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_int, *mut sys::MPI_Datatype);

/// The function for a type and an operator that MPI does not have, or has otherwise.
fn own(dtype: DataType, op: ReduceOp) -> Option<Function> {
    use ReduceOp::{BitAnd, BitOr, BitXor, Max, Min, Product, Sum};
    macro_rules! of {
        ($($dtype:ident: $($op:ident)+;)+) => {
            match (dtype, op) {
                $($((DataType::$dtype, $op) => {
                    Some(fold::<{ DataType::$dtype as u8 }, { $op as u8 }> as Function)
                })+)+
                _ => None,
            }
        };
    }
    folded_by_kernels!(of)
}

/// What MPI calls: `inout` becomes `input` op `inout`.
unsafe extern "C" fn fold<const DTYPE: u8, const OP: u8>(
    input: *mut c_void,
    inout: *mut c_void,
    len: *mut c_int,
    _: *mut sys::MPI_Datatype,
) {
    let folded = catch_unwind(AssertUnwindSafe(|| {
        let dtype = DataType::ALL[usize::from(DTYPE)];
        // SAFETY: MPI's pointer to the number of elements.
        let count = usize::try_from(unsafe { *len }).unwrap_or(0);
        let bytes = count * dtype.size();
        // SAFETY: a vector of MPI's, of so many elements.
        let input = unsafe { Src::new(input.cast(), bytes) };
        // SAFETY: as above.
        let inout = unsafe { Dst::new(inout.cast(), bytes) };
        kernel::fold(dtype, ReduceOp::ALL[usize::from(OP)], inout, &[input, inout.as_src()]);
    }));
    if folded.is_err() {
        BROKEN.store(true, Ordering::Relaxed);
    }
}

/// The operator made of a function: once for the process, and there until it ends.
fn made(dtype: DataType, op: ReduceOp, function: Function) -> Result<sys::MPI_Op> {
    const OPERATORS: usize = ReduceOp::ALL.len();
    static MADE: [OnceLock<Handle<sys::MPI_Op>>; DataType::ALL.len() * OPERATORS] =
        [const { OnceLock::new() }; DataType::ALL.len() * OPERATORS];
    static MAKING: Mutex<()> = Mutex::new(());
    let place = &MADE[dtype as usize * OPERATORS + op as usize];
    if let Some(known) = place.get() {
        return Ok(known.0);
    }
    let _alone = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = place.get() {
        return Ok(known.0);
    }
    let mut fresh = constant!(RSMPI_SUM);
    let commutes = 1;
    mpi!(MPI_Op_create(Some(function), commutes, &raw mut fresh))?;
    Ok(place.get_or_init(|| Handle(fresh)).0)
}
