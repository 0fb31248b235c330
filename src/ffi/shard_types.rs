//! C types of sharded optimizers.
#![allow(non_camel_case_types, reason = "C names")]
#![allow(missing_debug_implementations, reason = "incomplete types and plain C structs")]

use super::sized_struct::sized_structs;
use std::ffi::{c_char, c_void};

/// Splits the state of an optimizer over the ranks of a reducer (ZeRO-1 and ZeRO-2).
///
/// Each rank updates its own elements only, and has the optimizer's states of these elements only.
/// In each training step, every rank makes these calls:
///
/// 1. dist_reducer_begin, dist_reducer_ready and dist_reducer_end reduce the gradients.
/// 2. dist_shard_ranges and dist_shard_state return the elements and the states of this rank. The
///    caller updates them.
/// 3. dist_shard_gather sends the new values of every rank to all ranks.
///
/// The shard is owned by the caller and released with dist_shard_release. Any thread may call
/// dist_shard_wait; one thread at a time calls the other functions.
#[repr(C)]
pub struct dist_shard_t {
    _opaque: [u8; 0],
}

/// Options of dist_shard_create.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_shard_options_t {
    /// sizeof(dist_shard_options_t).
    pub struct_size: usize,
    /// The names of the optimizer's states, for instance "m" and "v"; borrowed for the call.
    pub states: *const *const c_char,
    /// The number of states, 64 at most.
    pub n_states: usize,
    /// The number of ranks that update each element; 0 for 1. With N ranks and 2 copies, rank r
    /// also updates the elements of rank (r + N - 1) mod N, so the death of one rank loses no
    /// state. Not above 1 with DIST_REDUCER_SHARDED.
    pub copies: i32,
    /// Must be 0.
    pub reserved: i32,
    /// The deadline of each operation in milliseconds. 0 is the group's default, and
    /// DIST_WAIT_FOREVER is no deadline.
    pub timeout_ms: i64,
}

/// Elements of one parameter that this rank updates.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_shard_range_t {
    /// sizeof(dist_shard_range_t).
    pub struct_size: usize,
    /// The index of the parameter.
    pub param: usize,
    /// The index of the first element, counted from the beginning of the parameter.
    pub begin: usize,
    /// The number of elements.
    pub count: usize,
    /// The index of the bucket that has the gradients of these elements (dist_reducer_on_bucket).
    pub bucket: usize,
    /// The index of the first element in the array of each state (dist_shard_state).
    pub offset: usize,
    /// The values of the elements, in the parameter's element type.
    pub data: *mut c_void,
    /// After dist_reducer_end: the reduced gradients of the elements, in the gradient's element
    /// type.
    pub grad: *mut c_void,
}

sized_structs! {
    dist_shard_options_t: 40, 40;
    dist_shard_range_t: 64, 64;
}
