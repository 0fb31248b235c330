//! C types of sharded optimizers.
#![allow(non_camel_case_types, reason = "C names")]
#![allow(missing_debug_implementations, reason = "incomplete types and plain C structs")]

use super::sized_struct::sized_structs;
use std::ffi::{c_char, c_void};

/// Shares the state of an optimizer over the ranks of a reducer (ZeRO-1 and ZeRO-2).
///
/// Owned by the caller, released with dist_shard_release. One thread at a time calls its functions.
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
    /// How many ranks update each element; 0 for 1. With 2, the death of a rank loses no state. Not
    /// above 1 with DIST_REDUCER_SHARDED.
    pub copies: i32,
    /// Must be 0.
    pub reserved: i32,
    /// The deadline of each operation in milliseconds; 0 for the group's, DIST_WAIT_FOREVER for
    /// none.
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
    /// The first element, in the parameter.
    pub begin: usize,
    /// The number of elements.
    pub count: usize,
    /// The bucket that has their gradients (dist_reducer_on_bucket).
    pub bucket: usize,
    /// Where the range begins in each state, in elements.
    pub offset: usize,
    /// The values of the elements, of the parameter's type.
    pub data: *mut c_void,
    /// Their reduced gradients after dist_reducer_end, of the gradient's type.
    pub grad: *mut c_void,
}

sized_structs! {
    dist_shard_options_t: 40, 40;
    dist_shard_range_t: 64, 64;
}
