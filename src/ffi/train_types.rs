//! C types and constants for data-parallel training.
#![allow(non_camel_case_types, reason = "C names")]
#![allow(missing_debug_implementations, reason = "incomplete types and plain C structs")]

use super::sized_struct::sized_structs;
use super::types::{dist_dtype_t, dist_group_t, dist_status_t};
use std::ffi::{c_char, c_void};

/// In `flags`: the sampler gives the indices in ascending order, the same in each epoch.
pub const DIST_SAMPLER_IN_ORDER: u64 = 1;

/// In `flags`: the sampler drops the last samples if the ranks cannot share them evenly.
///
/// Without it, samples from the beginning of the list are used twice.
pub const DIST_SAMPLER_DROP_LAST: u64 = 2;

/// Gives a rank its share of the indices of a data set, epoch by epoch.
///
/// Owned by the caller, released with dist_sampler_release. Any thread may use it.
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
    /// The rank whose indices the sampler gives, with DIST_FIELD_RANK in `fields`; else the rank in
    /// the group.
    pub rank: i32,
    /// The seed of the shuffle, the same on all ranks.
    pub seed: u64,
    /// The sum of DIST_SAMPLER_ constants; or 0.
    pub flags: u64,
}

/// In `flags`: the parameter has no gradient.
pub const DIST_PARAM_FROZEN: u64 = 1;

/// In `flags`: the parameter is no weight but state of a layer, such as a running mean.
///
/// It has no gradient.
pub const DIST_PARAM_BUFFER: u64 = 2;

/// In `flags`: the gradient consists of some rows of the parameter, as that of an embedding.
///
/// The first extent of `shape` is the number of rows. `grad` is NULL, and the rows are passed to
/// dist_reducer_ready_rows.
pub const DIST_PARAM_SPARSE_ROWS: u64 = 4;

/// Describes a parameter of a model.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_param_t {
    /// sizeof(dist_param_t).
    pub struct_size: usize,
    /// The set fields with a meaningful zero: DIST_FIELD_DEVICE.
    pub fields: u64,
    /// A name of one line that no other parameter of the reducer has; required.
    pub name: *const c_char,
    /// The values of the parameter, `count` elements of `dtype`; NULL only if `count` is 0.
    pub data: *mut c_void,
    /// The caller's gradient, `count` elements of `grad_dtype`. If NULL, the reducer provides the
    /// memory (dist_reducer_grad), and gradients are reduced without copies.
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
    /// The index of the device whose memory has the values and the gradient, with
    /// DIST_FIELD_DEVICE in `fields`; else host memory.
    pub device: i32,
    /// Must be 0.
    pub reserved: i32,
    /// The sum of DIST_PARAM_ constants; or 0.
    pub flags: u64,
    /// Parameters of different tags never share a bucket, for instance those of different layers.
    pub tag: u64,
}

/// In `divide`: the sum of the gradients is divided by the number of ranks that have data.
pub const DIST_DIVIDE_WORLD: i32 = 0;

/// In `divide`: the gradients are added and not divided.
pub const DIST_DIVIDE_NONE: i32 = 1;

/// In `divide`: the sum is divided by the number of ranks with which the reducer was created.
pub const DIST_DIVIDE_INITIAL: i32 = 2;

/// In `divide`: each rank's gradients are multiplied by its weight (dist_reducer_begin), and the
/// sum is divided by the weights of all ranks together.
pub const DIST_DIVIDE_WEIGHTED: i32 = 3;

/// In `missing`: if a rank does not mark a parameter, the step fails on all ranks.
pub const DIST_MISSING_ERROR: i32 = 0;

/// In `missing`: a rank that does not mark a parameter contributes zeros and gets the
/// result.
pub const DIST_MISSING_ZERO: i32 = 1;

/// In `missing`: as DIST_MISSING_ZERO, but a parameter that no rank marked keeps its
/// gradient.
pub const DIST_MISSING_SKIP: i32 = 2;

/// In `flags`: results do not overwrite gradients, so that a step can be repeated after a
/// failure (dist_reducer_regroup). It takes as much memory again as the gradients.
pub const DIST_REDUCER_RETRYABLE: u64 = 1;

/// In `flags`: gradients are added in the order of ranks, so that the result does not depend
/// on which ranks share a host.
pub const DIST_REDUCER_CANONICAL: u64 = 2;

/// In `flags`: the buckets stay as they are in the first step.
pub const DIST_REDUCER_FIXED_LAYOUT: u64 = 4;

/// In `flags`: gradients in memory of the reducer may move once, when the first step ends.
///
/// Without this flag, the buckets of a reducer with such gradients stay as they are.
pub const DIST_REDUCER_MOVE_GRADS: u64 = 8;

/// In `flags`: all steps use the same parameters and mark each of them equally often.
///
/// A gradient counts as complete with its last mark, and parameters that the first step did not use
/// are not waited for. The buckets of the first step are sent at its end. The first step is the
/// first one that no rank votes against.
pub const DIST_REDUCER_STATIC_GRAPH: u64 = 16;

/// In `flags`: buffers are broadcast at the beginning of each step that communicates.
pub const DIST_REDUCER_BROADCAST_BUFFERS: u64 = 32;

/// In `flags`: ranks may run out of data at different steps (dist_reducer_join).
pub const DIST_REDUCER_UNEVEN: u64 = 64;

/// In `flags`: dist_reducer_create does not broadcast parameters and buffers.
pub const DIST_REDUCER_NO_BROADCAST: u64 = 128;

/// In `flags`: each bucket is reduced by a reduce_scatter, so that a rank has the results of
/// its own elements only (dist_shard_ranges). The buckets stay as they are.
///
/// Not with DIST_REDUCER_RETRYABLE, hooks, sparse rows or device memory.
pub const DIST_REDUCER_SHARDED: u64 = 256;

/// In `flags`, with DIST_REDUCER_SHARDED: gradients in memory of the reducer have a place
/// only while they are computed (ZeRO-2), so that a few buckets have memory at a time.
///
/// Ask for the place with dist_reducer_grad inside each step, before the gradient is computed. It
/// is not filled with zeros, and valid until the parameter is marked. The call waits while many
/// other buckets are reduced.
pub const DIST_REDUCER_SHARE_GRADS: u64 = 512;

/// For `flags` of dist_reducer_begin: the step does not communicate.
///
/// The gradients stay on this rank, and the caller adds those of the next step to them.
pub const DIST_STEP_NO_SYNC: u64 = 1;

/// For `vote` of dist_reducer_end: this rank agrees with the step.
pub const DIST_VOTE_COMMIT: u64 = 0;

/// For `vote` of dist_reducer_end: a gradient of this rank is infinite or NaN.
pub const DIST_VOTE_NON_FINITE: u64 = 1;

/// For `vote` of dist_reducer_end: this rank leaves the step out.
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
/// Owned by the caller, released with dist_reducer_release. Any thread may mark gradients; one
/// thread at a time calls the other functions. Calls that communicate have the same order on all
/// ranks.
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
    /// A bucket is sent once it has so many bytes; 0 for what suits the transport: 1 MiB for host
    /// memory, 25 MiB for device memory.
    pub bucket_bytes: usize,
    /// The same for the first bucket of each element type, device and tag; 0 for the smaller of
    /// `bucket_bytes` and 1 MiB.
    pub first_bucket_bytes: usize,
    /// One of the DIST_DIVIDE_ constants.
    pub divide: i32,
    /// One of the DIST_MISSING_ constants.
    pub missing: i32,
    /// The deadline of each operation in milliseconds; 0 for the group's, DIST_WAIT_FOREVER for
    /// none.
    pub timeout_ms: i64,
    /// A layout from dist_reducer_layout, of this job or another one; optional, borrowed for the
    /// call.
    pub layout: *const c_void,
    /// The length of the layout.
    pub layout_bytes: usize,
    /// The name of the model in the log; optional, borrowed for the call.
    pub name: *const c_char,
    /// The CUDA stream in which gradients on a device are computed, valid until
    /// dist_reducer_release; NULL for the device's default stream. With a stream, the gradients are
    /// reduced in its order after dist_reducer_end, else when that returns.
    pub stream: *mut c_void,
    /// How buckets in host memory are reduced: "all_reduce" or NULL; "f16", "bf16", "int8" or
    /// "powersgd", which send fewer bytes; "none", which sends nothing: each rank keeps its own
    /// gradients. With `hook_function`, its name. Sparse gradients have no hook. Borrowed for the
    /// call.
    pub hook: *const c_char,
    /// Settings of the hook, as name=value;name=value; optional, borrowed for the call.
    ///
    /// int8: block, the number of elements that share a scale (256). powersgd: rank (1); start, the
    /// first step with compression (10); min_ratio, the minimum compression of a gradient (2). Also
    /// of powersgd: warm, 0 to begin without the last factors; feedback, 0 to discard the error of
    /// the compression. The settings of `hook_function` are its own: the ranks compare them.
    pub hook_settings: *const c_char,
    /// A function that reduces buckets; optional.
    pub hook_function: dist_hook_fn,
    /// Passed to `hook_function`; valid until the reducer is released.
    pub hook_user: *mut c_void,
}

/// A bucket whose gradients are reduced; valid during the function of dist_reducer_on_bucket.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_bucket_t {
    /// sizeof(dist_bucket_t).
    pub struct_size: usize,
    /// The position of the bucket, from 0.
    pub index: usize,
    /// The number of buckets.
    pub n_buckets: usize,
    /// The reduced gradients, one after the other with gaps; NULL if they are the caller's own, and
    /// with DIST_REDUCER_SHARDED.
    pub data: *mut c_void,
    /// The number of elements of `data`, gaps included.
    pub count: usize,
    /// The element type.
    pub dtype: dist_dtype_t,
    /// Must be 0.
    pub reserved: i32,
    /// The indices of the parameters.
    pub params: *const usize,
    /// Where the gradient of each begins in `data`, in elements; NULL if `data` is.
    pub offsets: *const usize,
    /// The number of parameters.
    pub n_params: usize,
    /// The number of the step, from 0.
    pub step: u64,
}

/// Called with each bucket whose gradients are reduced.
pub type dist_bucket_fn =
    Option<unsafe extern "C" fn(bucket: *const dist_bucket_t, user: *mut c_void)>;

/// Reduces a bucket: replaces `data` of it by the sum over all ranks, the same bits on all of them.
///
/// The gradients in `data` are this rank's, multiplied by its factor: the sum is the result. The
/// function communicates with any calls on `group`, which has the ranks of the reducer's group and
/// is lent for the call. It may block. The library calls it with one bucket after the other, in the
/// same order on all ranks, on the calling thread of dist_reducer_end or on a thread of its own.
///
/// `bytes_sent` is the number of bytes of `data`; a function that sends another number of bytes
/// stores it there, for `bytes_saved` of dist_reducer_stats_t. `user` is `hook_user` of the
/// options. An error that it returns fails the group. It must not throw, and must not call
/// functions of the reducer.
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
    /// Of the last step: how many of these bytes a hook did not have to send.
    pub bytes_saved: u64,
    /// Of the last step: the bytes that were copied between gradients, buckets and results.
    pub bytes_copied: u64,
    /// Of the last step: the time from the first mark to the last one.
    pub first_ready_to_last_ready_ns: u64,
    /// Of the last step: how long its operations ran, together.
    pub communication_ns: u64,
    /// Of the last step: how long dist_reducer_end waited.
    pub exposed_ns: u64,
    /// Of the last step: the time from its beginning to its end.
    pub step_ns: u64,
    /// How often the layout changed.
    pub rebuilds: u64,
    /// How often a step was repeated or its end taken from another rank.
    pub retries: u64,
}

sized_structs! {
    dist_sampler_options_t: 40, 40;
    dist_param_t: 96, 96;
    dist_reducer_options_t: 112, 112;
    dist_reducer_stats_t: 96, 96;
}
