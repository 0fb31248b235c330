//! C types of outer optimizers.
#![allow(non_camel_case_types, reason = "C names")]
#![allow(missing_debug_implementations, reason = "incomplete types and plain C structs")]

use super::sized_struct::sized_structs;
use std::ffi::{c_char, c_void};

/// Lets ranks train on their own for many steps between two agreements (local SGD, DiLoCo).
///
/// The caller trains with an optimizer of its own, and calls dist_outer_step after each training
/// step. At some of these calls, the ranks agree on new global values for a part of the parameters.
///
/// The outer optimizer is owned by the caller and released with dist_outer_release. One thread at a
/// time calls its functions.
#[repr(C)]
pub struct dist_outer_t {
    _opaque: [u8; 0],
}

/// Updates the global values of a parameter. Each array has `count` elements.
///
/// `pseudo_grad` is the mean, over the ranks, of the global values minus the values of the rank.
/// `state` is memory for the function's own use, initially zero. `user` is the pointer in the
/// options. The function must compute the same bits on all ranks. It must not throw and must not
/// call libdist.
pub type dist_outer_fn = Option<
    unsafe extern "C" fn(
        param: usize,
        global: *mut f32,
        pseudo_grad: *const f32,
        state: *mut f32,
        count: usize,
        user: *mut c_void,
    ),
>;

/// Options of dist_outer_create.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_outer_options_t {
    /// sizeof(dist_outer_options_t).
    pub struct_size: usize,
    /// The number of steps between two agreements on the same parameters; required.
    pub every: u64,
    /// The number of fragments into which the parameters are divided; 0 for 1. The ranks agree on
    /// each fragment at a different step. At most `every`, and at most the number of parameters
    /// with gradients.
    pub fragments: usize,
    /// The optimizer of the global values. Borrowed for the call.
    ///
    /// "nesterov" or NULL is SGD with Nesterov momentum. "sgd" has no momentum. With "average", the
    /// global values become the mean of the ranks' values. If `function` is set, this is the name
    /// of the function, which the ranks compare.
    pub optimizer: *const c_char,
    /// The learning rate of "nesterov" and "sgd"; 0 for 0.7.
    pub learning_rate: f64,
    /// The momentum of "nesterov"; 0 for 0.9.
    pub momentum: f64,
    /// The caller's own optimizer; optional.
    pub function: dist_outer_fn,
    /// Passed to `function`; valid until dist_outer_release.
    pub user: *mut c_void,
    /// The deadline of each operation in milliseconds. 0 is the group's default, and
    /// DIST_WAIT_FOREVER is no deadline.
    pub timeout_ms: i64,
    /// How the ranks reduce their differences, as in dist_reducer_options_t; "none" is not allowed.
    pub hook: *const c_char,
    /// Settings of the hook, as in dist_reducer_options_t.
    pub hook_settings: *const c_char,
    /// The name of the model in the log; optional, borrowed for the call.
    pub name: *const c_char,
}

/// Figures of an outer optimizer on this rank.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_outer_stats_t {
    /// sizeof(dist_outer_stats_t).
    pub struct_size: usize,
    /// The number of calls of dist_outer_step. A repeated call after a failure counts once.
    pub steps: u64,
    /// The number of agreements that updated a fragment.
    pub updates: u64,
    /// The number of agreements that a vote prevented, so all ranks returned to the old global
    /// values.
    pub restores: u64,
    /// The bytes that were reduced.
    pub bytes_reduced: u64,
    /// The part of `bytes_reduced` that a hook did not have to send.
    pub bytes_saved: u64,
    /// The sum of the durations of all operations.
    pub communication_ns: u64,
}

sized_structs! {
    dist_outer_options_t: 96, 96;
    dist_outer_stats_t: 56, 56;
}
