//! C types of outer optimizers.
#![allow(non_camel_case_types, reason = "C names")]
#![allow(missing_debug_implementations, reason = "incomplete types and plain C structs")]

use super::sized_struct::sized_structs;
use std::ffi::{c_char, c_void};

/// Lets ranks train on their own for many steps between two agreements (local SGD, DiLoCo).
///
/// Owned by the caller, released with dist_outer_release. One thread at a time calls its functions.
#[repr(C)]
pub struct dist_outer_t {
    _opaque: [u8; 0],
}

/// Updates the global values of a parameter, `count` elements of each array.
///
/// `pseudo_grad` is the mean over the ranks of the global values less those of the rank.
/// `state` is memory of the function's own, zeros at first. The function computes the same
/// bits on all ranks. It must not throw and must not call libdist. `user` is that of the options.
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
    /// In how many parts the parameters are agreed on, at different steps; 0 for 1. Not above
    /// `every` and the number of parameters.
    pub fragments: usize,
    /// "nesterov" or NULL, "sgd", or "average": the global values become the mean of the ranks'.
    /// With `function`, its name. Borrowed for the call.
    pub optimizer: *const c_char,
    /// The learning rate of the optimizer; 0 for 0.7.
    pub learning_rate: f64,
    /// The momentum of "nesterov"; 0 for 0.9.
    pub momentum: f64,
    /// An optimizer of the caller's; optional.
    pub function: dist_outer_fn,
    /// Passed to `function`; valid until dist_outer_release.
    pub user: *mut c_void,
    /// The deadline of each operation in milliseconds; 0 for the group's, DIST_WAIT_FOREVER for
    /// none.
    pub timeout_ms: i64,
    /// How distances are reduced, as in dist_reducer_options_t; not "none".
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
    /// The calls of dist_outer_step, without repetitions.
    pub steps: u64,
    /// How often the ranks have agreed on a fragment.
    pub updates: u64,
    /// How often a rank voted against a fragment, so that all went back.
    pub restores: u64,
    /// The bytes that were reduced.
    pub bytes_reduced: u64,
    /// How many of these bytes a hook did not have to send.
    pub bytes_saved: u64,
    /// How long operations ran, together.
    pub communication_ns: u64,
}

sized_structs! {
    dist_outer_options_t: 96, 96;
    dist_outer_stats_t: 56, 56;
}
