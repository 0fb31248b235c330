//! C types and constants for data-parallel training: samplers, parameters and reducers.
#![allow(non_camel_case_types, reason = "C names")]
#![allow(missing_debug_implementations, reason = "incomplete types and plain C structs")]

use super::sized_struct::sized_structs;
use super::types::{dist_dtype_t, dist_group_t, dist_status_t};
use std::ffi::{c_char, c_void};

/// In `flags`: the sampler returns the indices in ascending order, which is the same in each epoch.
pub const DIST_SAMPLER_IN_ORDER: u64 = 1;

/// In `flags`: the sampler drops the last samples if the ranks cannot share all samples evenly.
///
/// Without the flag, the ranks use some samples from the beginning of the list twice.
pub const DIST_SAMPLER_DROP_LAST: u64 = 2;

/// Gives a rank its share of the indices of a data set, epoch by epoch.
///
/// The sampler is owned by the caller and released with dist_sampler_release. Any thread may use
/// it.
#[repr(C)]
pub struct dist_sampler_t {
    _opaque: [u8; 0],
}

/// Options of dist_sampler_create.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_sampler_options_t {
    /// sizeof(dist_sampler_options_t).
    pub struct_size: usize,
    /// The set fields with a meaningful zero: DIST_FIELD_RANK.
    pub fields: u64,
    /// The number of ranks that share the data set; 0 for the number of ranks of the group.
    pub num_replicas: i32,
    /// The rank whose indices the sampler returns, if DIST_FIELD_RANK is in `fields`. Otherwise the
    /// sampler uses the rank of this process in the group.
    pub rank: i32,
    /// The seed of the shuffle, the same on all ranks.
    pub seed: u64,
    /// The sum of DIST_SAMPLER_ constants; or 0.
    pub flags: u64,
}

/// In `flags`: the parameter has no gradient.
pub const DIST_PARAM_FROZEN: u64 = 1;

/// In `flags`: the parameter is the state of a layer, such as a running mean, and not a weight.
///
/// It has no gradient.
pub const DIST_PARAM_BUFFER: u64 = 2;

/// In `flags`: the gradient consists of some rows of the parameter, as for an embedding.
///
/// The first extent of `shape` is the number of rows of the parameter. `grad` is NULL; the caller
/// passes the rows to dist_reducer_ready_rows.
pub const DIST_PARAM_SPARSE_ROWS: u64 = 4;

/// Describes a parameter of a model.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_param_t {
    /// sizeof(dist_param_t).
    pub struct_size: usize,
    /// The set fields with a meaningful zero: DIST_FIELD_DEVICE.
    pub fields: u64,
    /// The name, in one line; required. No other parameter of the reducer has this name.
    pub name: *const c_char,
    /// The values of the parameter, `count` elements of `dtype`; NULL only if `count` is 0.
    pub data: *mut c_void,
    /// The caller's gradient, `count` elements of `grad_dtype`. If NULL, the reducer provides the
    /// memory (dist_reducer_grad), and reduces the gradient without copies.
    pub grad: *mut c_void,
    /// The extent of each dimension; optional, borrowed for the call.
    pub shape: *const i64,
    /// The number of dimensions.
    pub n_shape: usize,
    /// The number of elements.
    pub count: usize,
    /// The element type of the values.
    pub dtype: dist_dtype_t,
    /// The element type of the gradient; 0 for that of the values.
    pub grad_dtype: dist_dtype_t,
    /// The index of the device whose memory has the values and the gradient, if DIST_FIELD_DEVICE
    /// is in `fields`. Otherwise both are in host memory.
    pub device: i32,
    /// Must be 0.
    pub reserved: i32,
    /// The sum of DIST_PARAM_ constants; or 0.
    pub flags: u64,
    /// A number of the caller, for instance of the layer. Parameters with different tags never
    /// share a bucket.
    pub tag: u64,
}

/// In `divide`: the sum of the gradients is divided by the number of ranks that have data.
pub const DIST_DIVIDE_WORLD: i32 = 0;

/// In `divide`: the gradients are added and not divided.
pub const DIST_DIVIDE_NONE: i32 = 1;

/// In `divide`: the sum is divided by the number of ranks with which the reducer was created.
pub const DIST_DIVIDE_INITIAL: i32 = 2;

/// In `divide`: the result is a weighted mean of the ranks' gradients.
///
/// Each rank's gradients are multiplied by its weight (dist_reducer_begin), and the sum is divided
/// by the sum of all weights.
pub const DIST_DIVIDE_WEIGHTED: i32 = 3;

/// In `missing`: if a rank does not mark a parameter, the step fails on all ranks.
pub const DIST_MISSING_ERROR: i32 = 0;

/// In `missing`: a rank that does not mark a parameter contributes zeros and gets the result.
pub const DIST_MISSING_ZERO: i32 = 1;

/// In `missing`: as DIST_MISSING_ZERO, but a parameter that no rank marked keeps its gradient.
pub const DIST_MISSING_SKIP: i32 = 2;

/// In `flags`: results do not overwrite gradients.
///
/// A step can therefore be repeated after a failure (dist_reducer_regroup). The results need as
/// much memory as the gradients.
pub const DIST_REDUCER_RETRYABLE: u64 = 1;

/// In `flags`: gradients are added in the order of ranks.
///
/// The result then does not depend on which ranks share a host.
pub const DIST_REDUCER_CANONICAL: u64 = 2;

/// In `flags`: the buckets never change. Without the flag, they may change once, after the first
/// step.
pub const DIST_REDUCER_FIXED_LAYOUT: u64 = 4;

/// In `flags`: the addresses of gradients in memory of the reducer may change after the first step.
///
/// The change allows better buckets. A reducer that provides memory for gradients and does not have
/// this flag never changes its buckets.
pub const DIST_REDUCER_MOVE_GRADS: u64 = 8;

/// In `flags`: each step uses the same parameters, and marks each parameter the same number of
/// times.
///
/// The first step that no rank votes against counts the marks of each parameter, and sends its
/// buckets only at its end. In each later step, a gradient is complete after this number of marks.
/// The reducer does not wait for parameters that the first step did not use.
pub const DIST_REDUCER_STATIC_GRAPH: u64 = 16;

/// In `flags`: buffers are broadcast at the beginning of each step that communicates.
pub const DIST_REDUCER_BROADCAST_BUFFERS: u64 = 32;

/// In `flags`: ranks may run out of data at different steps (dist_reducer_join).
pub const DIST_REDUCER_UNEVEN: u64 = 64;

/// In `flags`: dist_reducer_create does not broadcast parameters and buffers.
pub const DIST_REDUCER_NO_BROADCAST: u64 = 128;

/// In `flags`: a rank gets the reduced gradients of its own elements only (dist_shard_ranges).
///
/// A reduce_scatter reduces each bucket. The buckets never change. The flag cannot be combined with
/// DIST_REDUCER_RETRYABLE, hooks, sparse rows or device memory.
pub const DIST_REDUCER_SHARDED: u64 = 256;

/// In `flags`, with DIST_REDUCER_SHARDED: gradients share the memory of a few buckets (ZeRO-2).
///
/// A gradient in memory of the reducer has memory only while the caller computes it. In each step,
/// call dist_reducer_grad before the computation of a gradient. The memory is not filled with
/// zeros, and is valid until the parameter is marked. While many other buckets are reduced,
/// dist_reducer_grad waits.
pub const DIST_REDUCER_SHARE_GRADS: u64 = 512;

/// For `flags` of dist_reducer_begin: the step does not communicate.
///
/// The gradients stay on this rank. The caller adds the gradients of the next step to them.
pub const DIST_STEP_NO_SYNC: u64 = 1;

/// For `vote` of dist_reducer_end: this rank votes for the step.
pub const DIST_VOTE_COMMIT: u64 = 0;

/// For `vote` of dist_reducer_end: a gradient of this rank is infinite or NaN.
pub const DIST_VOTE_NON_FINITE: u64 = 1;

/// For `vote` of dist_reducer_end: this rank wants to skip the step.
pub const DIST_VOTE_SKIP: u64 = 2;

/// For `vote` of dist_reducer_end: this rank could not compute its gradients.
pub const DIST_VOTE_ERROR: u64 = 4;

/// For `what`: the values of parameters.
pub const DIST_REDUCER_PARAMS: u64 = 1;

/// For `what`: buffers.
pub const DIST_REDUCER_BUFFERS: u64 = 2;

/// For `what` of dist_reducer_check: reduced gradients.
pub const DIST_REDUCER_GRADS: u64 = 4;

/// Averages the gradients of a model over the ranks of a group while they are computed.
///
/// In each training step, a rank calls dist_reducer_begin, marks each gradient with
/// dist_reducer_ready as soon as it is complete, and calls dist_reducer_end. Gradients are reduced
/// in buckets: one operation reduces all gradients of a bucket.
///
/// The reducer is owned by the caller and released with dist_reducer_release. Any thread may mark
/// gradients; one thread at a time calls the other functions. Calls that communicate have the same
/// order on all ranks.
#[repr(C)]
pub struct dist_reducer_t {
    _opaque: [u8; 0],
}

/// Options of dist_reducer_create.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_reducer_options_t {
    /// sizeof(dist_reducer_options_t).
    pub struct_size: usize,
    /// The sum of DIST_REDUCER_ constants; or 0.
    pub flags: u64,
    /// The size of a bucket: a bucket is full when its gradients have this number of bytes. 0 for
    /// the default: 1 MiB in host memory, 25 MiB in device memory.
    pub bucket_bytes: usize,
    /// The size of the first bucket of each element type, device and tag; 0 for the smaller of
    /// `bucket_bytes` and 1 MiB.
    pub first_bucket_bytes: usize,
    /// One of the DIST_DIVIDE_ constants.
    pub divide: i32,
    /// One of the DIST_MISSING_ constants.
    pub missing: i32,
    /// The deadline of each operation in milliseconds. 0 is the group's default, and
    /// DIST_WAIT_FOREVER is no deadline.
    pub timeout_ms: i64,
    /// A layout that dist_reducer_layout returned, in this job or in another job; optional,
    /// borrowed for the call.
    pub layout: *const c_void,
    /// The length of `layout`.
    pub layout_bytes: usize,
    /// The name of the model in the log; optional, borrowed for the call.
    pub name: *const c_char,
    /// The CUDA stream in which the caller computes gradients on a device; valid until
    /// dist_reducer_release.
    ///
    /// With a stream, the reduced gradients are available to work that the caller puts into the
    /// stream after dist_reducer_end. With NULL, the caller uses the device's default stream, and
    /// the gradients are reduced when dist_reducer_end returns.
    pub stream: *mut c_void,
    /// How buckets in host memory are reduced. Borrowed for the call.
    ///
    /// "all_reduce" or NULL sends the gradients as they are. "f16", "bf16", "int8" and "powersgd"
    /// send fewer bytes. "none" sends nothing, and each rank keeps its own gradients. If
    /// `hook_function` is set, this is the name of the function. Hooks do not apply to sparse
    /// gradients.
    pub hook: *const c_char,
    /// Settings of the hook, as name=value;name=value; optional, borrowed for the call.
    ///
    /// Settings of "int8", with the default in parentheses: `block` (256) is the number of elements
    /// that share a scale. Settings of "powersgd": `rank` (1); `start` (10) is the first step with
    /// compression; `min_ratio` (2) is the minimum compression of a gradient; `warm` is 0 to begin
    /// without the last factors; `feedback` is 0 to discard the error of the compression. A
    /// `hook_function` defines its own settings. The ranks compare all settings.
    pub hook_settings: *const c_char,
    /// A function that reduces buckets; optional.
    pub hook_function: dist_hook_fn,
    /// Passed to `hook_function`; valid until the reducer is released.
    pub hook_user: *mut c_void,
}

/// A bucket of gradients, as a function of dist_reducer_on_bucket or a hook function gets it.
///
/// The struct is valid during the call of the function.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_bucket_t {
    /// sizeof(dist_bucket_t).
    pub struct_size: usize,
    /// The position of the bucket, from 0.
    pub index: usize,
    /// The number of buckets.
    pub n_buckets: usize,
    /// The gradients, one after the other with gaps. NULL if the gradients are in the caller's own
    /// memory, and with DIST_REDUCER_SHARDED.
    pub data: *mut c_void,
    /// The number of elements of `data`, gaps included.
    pub count: usize,
    /// The element type.
    pub dtype: dist_dtype_t,
    /// Must be 0.
    pub reserved: i32,
    /// The indices of the parameters.
    pub params: *const usize,
    /// The index in `data` at which each parameter's gradient begins, in elements; NULL if `data`
    /// is NULL.
    pub offsets: *const usize,
    /// The number of parameters.
    pub n_params: usize,
    /// The number of the step, from 0.
    pub step: u64,
}

/// Called with each bucket whose gradients are reduced.
pub type dist_bucket_fn =
    Option<unsafe extern "C" fn(bucket: *const dist_bucket_t, user: *mut c_void)>;

/// Reduces a bucket: replaces `data` of the bucket by the sum over all ranks.
///
/// In the input, `data` has this rank's gradients, already multiplied by the factor of this rank,
/// such as 1/N for a mean over N ranks. The function therefore adds without dividing. All ranks
/// must compute the same bits.
///
/// The function communicates with any calls on `group`, which has the ranks of the reducer's group
/// and is lent for the call. It may block. The library calls the function for one bucket after the
/// other, in the same order on all ranks. The calls run on the thread that calls dist_reducer_end
/// or on a thread of the library.
///
/// `bytes_sent` initially has the number of bytes of `data`. A function that sends another number
/// of bytes stores that number there, for `bytes_saved` of dist_reducer_stats_t. `user` is
/// `hook_user` of the options. If the function returns an error, the group fails. The function must
/// not throw, and must not call functions of the reducer.
pub type dist_hook_fn = Option<
    unsafe extern "C" fn(
        group: *mut dist_group_t,
        bucket: *const dist_bucket_t,
        bytes_sent: *mut u64,
        user: *mut c_void,
    ) -> dist_status_t,
>;

/// Figures of a reducer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_reducer_stats_t {
    /// sizeof(dist_reducer_stats_t).
    pub struct_size: usize,
    /// The number of steps with communication that have ended.
    pub steps: u64,
    /// Of the last step: the number of buckets.
    pub n_buckets: u64,
    /// Of the last step: the bytes that were reduced.
    pub bytes_reduced: u64,
    /// Of the last step: the part of `bytes_reduced` that a hook did not have to send.
    pub bytes_saved: u64,
    /// Of the last step: the bytes that were copied between gradients, buckets and results.
    pub bytes_copied: u64,
    /// Of the last step: the time from the first mark of a gradient to the last one.
    pub first_ready_to_last_ready_ns: u64,
    /// Of the last step: the sum of the durations of its operations.
    pub communication_ns: u64,
    /// Of the last step: the time for which dist_reducer_end waited.
    pub exposed_ns: u64,
    /// Of the last step: the time from its beginning to its end.
    pub step_ns: u64,
    /// The number of changes of the layout.
    pub rebuilds: u64,
    /// The number of steps that were repeated, or whose end was taken from another rank.
    pub retries: u64,
}

sized_structs! {
    dist_sampler_options_t: 40, 40;
    dist_param_t: 96, 96;
    dist_reducer_options_t: 112, 112;
    dist_reducer_stats_t: 96, 96;
}
