//! Operators that the caller defines (`dist_op_create`), and their numbers.
//!
//! The number of such an operator contains a slot of the table [`OPERATORS`] and the slot's
//! generation. Each new operator in a slot increments the generation, so the number of a released
//! operator differs from all live numbers until the 18 bits of the generation wrap around.
//!
//! ```text
//! number - FIRST_OPERATOR:   bits 12 to 29: generation   bits 0 to 11: slot
//! ```
//!
//! The numbers of the library's own operators are below [`FIRST_OPERATOR`].

use super::args::{OutPtr, required_str, src_blocks_by};
use super::submit::{WorkOut, issue_with_handle};
use super::types::*;
use crate::api::collective::operator::Combine;
use crate::api::{Call, CallOptions, Group, Operator, OperatorCall};
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::op::ReduceOp;
use crate::base::sync::unpoisoned;
use std::ffi::{c_char, c_void};
use std::sync::{Arc, RwLock, RwLockWriteGuard};

/// The base of the numbers of callers' operators.
const FIRST_OPERATOR: dist_op_t = 0x100_0000;

/// The number of bits for the slot in an operator's number.
const SLOT_BITS: u32 = 12;
/// The number of bits for the generation, which are above the bits of the slot.
const GENERATION_BITS: u32 = 18;

/// The element type of a reduction with a custom operator, before [`CustomOperator::submit`] sets
/// the actual type.
pub(super) const PLACEHOLDER_DTYPE: DataType = DataType::U8;
/// The operator of such a reduction, before [`CustomOperator::submit`] sets the custom operator.
pub(super) const PLACEHOLDER_OP: ReduceOp = ReduceOp::Sum;

/// A caller's reduction function, its argument, and the size of an element.
struct COperatorFunction {
    function: unsafe extern "C" fn(*const c_void, *mut c_void, usize, usize, *mut c_void),
    user: *mut c_void,
    elem_bytes: usize,
}

// SAFETY: the caller promises that the function may be called with the pointer on any thread.
unsafe impl Send for COperatorFunction {}

// SAFETY: the caller promises the same for calls from several threads at once.
unsafe impl Sync for COperatorFunction {}

impl std::fmt::Debug for COperatorFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CFunction")
    }
}

impl Combine for COperatorFunction {
    fn combine(&self, lower: Src<'_>, inout: Dst<'_>, count: usize) {
        let (lower, inout) = (lower.as_ptr().cast(), inout.as_mut_ptr().cast());
        // SAFETY: both vectors have `count` elements, do not overlap, and belong to this thread for
        // the length of the call. The caller promises that the function stays within them and
        // returns.
        unsafe { (self.function)(lower, inout, count, self.elem_bytes, self.user) };
    }
}

/// A slot of the table. Without an operator, it is free.
#[derive(Debug)]
struct OperatorSlot {
    generation: u32,
    operator: Option<Arc<Operator>>,
}

/// The table of live operators.
static OPERATORS: RwLock<Vec<OperatorSlot>> = RwLock::new(Vec::new());

fn write_slots() -> RwLockWriteGuard<'static, Vec<OperatorSlot>> {
    unpoisoned(OPERATORS.write())
}

fn encode_operator(slot: usize, generation: u32) -> Result<dist_op_t> {
    let offset = (generation as usize) << SLOT_BITS | slot;
    let offset =
        dist_op_t::try_from(offset).ok().and_then(|offset| FIRST_OPERATOR.checked_add(offset));
    offset.ok_or_else(|| Error::internal("the operator number does not fit its type"))
}

/// Returns the slot and the generation in a number; `None` if the number is below
/// [`FIRST_OPERATOR`].
fn decode_operator(number: dist_op_t) -> Option<(usize, u32)> {
    let offset = u32::try_from(number.checked_sub(FIRST_OPERATOR)?).ok()?;
    Some(((offset & ((1 << SLOT_BITS) - 1)) as usize, offset >> SLOT_BITS))
}

fn insert_operator(operator: Operator) -> Result<dist_op_t> {
    let mut slots = write_slots();
    let mut live = slots.iter().filter_map(|slot| slot.operator.as_ref());
    if live.any(|other| other.name() == operator.name()) {
        return Err(Error::invalid(format!(
            "the operator \"{}\" exists already in this process: release it with dist_op_release, \
             or choose another name",
            operator.name()
        )));
    }
    let free = slots.iter().position(|slot| slot.operator.is_none());
    let index = match free {
        Some(index) => index,
        None if slots.len() < 1 << SLOT_BITS => {
            slots.push(OperatorSlot { generation: 0, operator: None });
            slots.len() - 1
        }
        None => {
            let message = format!(
                "{} operators are live, which is the maximum: release some with dist_op_release",
                slots.len()
            );
            return Err(Error::new(ErrorKind::OutOfMemory, message));
        }
    };
    let slot = &mut slots[index];
    slot.generation = (slot.generation + 1) & ((1 << GENERATION_BITS) - 1);
    slot.operator = Some(Arc::new(operator));
    encode_operator(index, slot.generation)
}

fn find_operator(number: dist_op_t) -> Result<Arc<Operator>> {
    let slots = unpoisoned(OPERATORS.read());
    let slot = decode_operator(number).and_then(|(index, generation)| {
        slots.get(index).filter(|slot| slot.generation == generation)
    });
    slot.and_then(|slot| slot.operator.clone()).ok_or_else(|| stale_operator(number))
}

fn remove_operator(number: dist_op_t) -> Result<()> {
    let mut slots = write_slots();
    let slot = decode_operator(number).and_then(|(index, generation)| {
        slots.get_mut(index).filter(|slot| slot.generation == generation)
    });
    slot.and_then(|slot| slot.operator.take()).map(drop).ok_or_else(|| stale_operator(number))
}

fn stale_operator(number: dist_op_t) -> Error {
    Error::invalid(format!(
        "argument op: {number:#x} is not a live operator of dist_op_create (released, of another \
         process, or never created)"
    ))
}

/// Returns whether the operator or the element type is a custom one (`DIST_OPAQUE`).
#[inline]
pub(super) fn is_custom(dtype: dist_dtype_t, op: dist_op_t) -> bool {
    op >= FIRST_OPERATOR || dtype == DIST_OPAQUE
}

/// The custom operator and the element type of a reduction. The type is `None` for `DIST_OPAQUE`.
pub(super) struct CustomOperator {
    operator: Arc<Operator>,
    dtype: Option<DataType>,
}

impl CustomOperator {
    /// Finds the operator and the element type by their numbers.
    #[cold]
    pub(super) fn find(dtype: dist_dtype_t, op: dist_op_t) -> Result<Self> {
        if op < FIRST_OPERATOR {
            let message = format!(
                "argument op: DIST_OPAQUE needs an operator of dist_op_create, and this is \
                 {op:#x}: pass the type of the elements"
            );
            return Err(Error::invalid(message));
        }
        let dtype = match dtype {
            DIST_OPAQUE => None,
            _ => Some(DataType::from_number(dtype)?),
        };
        Ok(Self { operator: find_operator(op)?, dtype })
    }

    /// Returns the size of `blocks` blocks of `count` elements in bytes.
    pub(super) fn bytes(&self, count: usize, blocks: usize) -> Result<usize> {
        self.operator.buffer_bytes(count, blocks)
    }

    /// Returns the send blocks of a call whose name ends in `_v`.
    pub(super) fn blocks<'a>(
        &self,
        ptrs: *const *const c_void,
        counts: *const usize,
        size: usize,
        names: [&str; 2],
    ) -> Result<Vec<Src<'a>>> {
        src_blocks_by(ptrs, counts, size, |count| self.bytes(count, 1), names)
    }

    /// Depending on `work` and the thread's batch: runs the call, issues it, or adds it to the
    /// batch.
    #[cold]
    #[inline(never)]
    pub(super) fn submit(
        self,
        group: &Arc<Group>,
        call: Call<'static>,
        options: &CallOptions,
        work: WorkOut,
    ) -> Result<()> {
        let call = OperatorCall::new(call, self.operator, self.dtype)?;
        if work.blocks() {
            return group.run_operator(call, options);
        }
        issue_with_handle(group.prepare_operator(call, options.clone())?, work)
    }
}

dist_export! {
    /// Creates an operator from a function, for every collective that reduces.
    ///
    /// The calls dist_all_reduce, dist_reduce, dist_reduce_scatter, dist_reduce_scatter_v,
    /// dist_scan and dist_exscan accept `*out` as their operator. Their element type is then
    /// DIST_OPAQUE or a type of `elem_bytes` bytes, and `algorithm` in their options must be NULL.
    /// The operator reduces host memory, over every back end that serves host memory. The library
    /// always reduces vectors in rank order, even if the operator is commutative. Every rank gets
    /// the same bits.
    ///
    /// In each call, the ranks compare the operator's name, `elem_bytes` and `flags`. If they
    /// differ, the call ends with DIST_ERR_MISMATCH, and the error names both operators. An
    /// operator belongs to the process, not to a group.
    ///
    /// @param name in: 1 to 48 bytes of UTF-8, borrowed for the call. No other live operator of the
    ///   process has this name.
    /// @param function in: reduces two vectors. The library calls it until the operator is released
    ///   and all works that use it have completed.
    /// @param elem_bytes in: the size of an element, 1 to 1048576.
    /// @param flags in: 0 or DIST_OP_COMMUTATIVE.
    /// @param user in, optional: passed to `function`; the caller keeps it valid as long as the
    ///   library may call `function`.
    /// @param out out: the operator, owned by the caller, released with dist_op_release. Not
    ///   written on failure.
    /// @agree nothing. Calls that use the operator agree on its name, `elem_bytes` and `flags`.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if an argument is wrong or the name is in use;
    ///   DIST_ERR_UNSUPPORTED if `flags` has a bit that this version does not know;
    ///   DIST_ERR_OUT_OF_MEMORY if 4096 operators are live.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_op_create(
        name: *const c_char,
        function: dist_op_fn,
        elem_bytes: usize,
        flags: u64,
        user: *mut c_void,
        out: *mut dist_op_t,
    ) -> dist_status_t {
        let out = OutPtr::required(out, "out")?;
        let name = required_str(name, "name")?;
        let function = function.ok_or_else(|| super::args::null_argument("function"))?;
        if flags & !DIST_OP_COMMUTATIVE != 0 {
            let message = format!("flags have {flags:#x}, which this version does not know");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let is_commutative = flags & DIST_OP_COMMUTATIVE != 0;
        let function = Box::new(COperatorFunction { function, user, elem_bytes });
        out.write(insert_operator(Operator::new(name, elem_bytes, is_commutative, function)?)?);
        Ok(())
    }
}

dist_export! {
    /// Releases an operator. Another operator may then use its name.
    ///
    /// Calls that were already issued still use the operator: the library calls the function until
    /// their works have completed.
    ///
    /// @param op in: an operator that dist_op_create returned.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if `op` is no live operator.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_op_release(op: dist_op_t) -> dist_status_t {
        remove_operator(op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn no_op(
        _: *const c_void,
        _: *mut c_void,
        _: usize,
        _: usize,
        _: *mut c_void,
    ) {
    }

    fn operator(name: &str) -> Result<Operator> {
        let function =
            COperatorFunction { function: no_op, user: std::ptr::null_mut(), elem_bytes: 3 };
        Operator::new(name, 3, false, Box::new(function))
    }

    #[test]
    fn a_released_number_is_never_an_operator_again() {
        let first = insert_operator(operator("test first").unwrap()).unwrap();
        assert!(is_custom(DIST_F32, first) && !is_custom(DIST_F32, DIST_PREMUL_SUM));
        assert_eq!(find_operator(first).unwrap().name(), "test first");
        let twice = insert_operator(operator("test first").unwrap()).unwrap_err();
        assert!(twice.message().contains("\"test first\""), "{twice}");
        let kept = find_operator(first).unwrap();
        remove_operator(first).unwrap();
        assert_eq!(kept.element_bytes(), 3);
        for _ in 0..3 {
            let again = insert_operator(operator("test first").unwrap()).unwrap();
            assert_ne!(again, first);
            assert!(find_operator(first).is_err() && remove_operator(first).is_err());
            remove_operator(again).unwrap();
        }
        for number in [0, FIRST_OPERATOR - 1, FIRST_OPERATOR, dist_op_t::MAX, -1] {
            assert!(find_operator(number).is_err(), "{number:#x}");
        }
    }

    #[test]
    fn numbers_fit_whatever_the_generation() {
        let last = (1 << SLOT_BITS) - 1;
        for generation in [0, 1, (1 << GENERATION_BITS) - 1] {
            for slot in [0, last] {
                assert_eq!(
                    decode_operator(encode_operator(slot, generation).unwrap()),
                    Some((slot, generation))
                );
            }
        }
    }
}
