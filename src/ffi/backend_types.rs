//! The C types of the interface between the library and a plug-in (a back end of another author).
//!
//! New fields are only appended to the structs.
#![allow(non_camel_case_types, reason = "C names")]
#![allow(missing_debug_implementations, reason = "plain C structs")]

pub use super::backend_operation_types::*;

use super::constants::*;
use super::sized_struct::sized_structs;
use super::store_types::dist_store_sink_fn;
use std::ffi::{c_char, c_void};

/// The version of the interface between the library and a plug-in (dist_backend_load).
///
/// The version changes only if an existing item changes its meaning. If a field is appended to a
/// struct, the version stays, and struct_size shows whether the struct has the field.
pub const DIST_BACKEND_VERSION: u32 = 2;

/// In `kinds` of dist_backend_created_t: the plug-in supports messages (DIST_KIND_SEND and
/// DIST_KIND_RECV).
///
/// The bit of a collective is 1 << its DIST_KIND_ number, for example 1 << DIST_KIND_BROADCAST.
pub const DIST_BACKEND_MESSAGES: u64 = 4294967296;

/// In `flags` of dist_backend_operation_t: input and output are the same memory.
pub const DIST_BACKEND_IN_PLACE: u64 = 1;

/// In `flags` of dist_backend_outcome_t: the operation was short. Only run sets this flag.
///
/// The flag means that the operation took at most about 10 microseconds. The library then saves the
/// time of reading the clock at the end of the operation.
pub const DIST_BACKEND_SHORT: u64 = 1;

/// The kind of call about which the library asks the function `supports`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_backend_query_t {
    /// sizeof(dist_backend_query_t) in the version of the library.
    pub struct_size: usize,
    /// A DIST_KIND_ constant.
    pub kind: i32,
    /// The element type, or -1.
    pub dtype: dist_dtype_t,
    /// The operator, or -1.
    pub op: dist_op_t,
    /// DIST_DEVICE_HOST, or the index of a GPU.
    pub device: i32,
}

/// The services of the library for a plug-in.
///
/// The struct and `context` stay valid until destroy has returned. Any thread may call the
/// functions. Each function takes `context` first and copies its other arguments. After an error
/// status, dist_last_error returns the message.
///
/// The five store_ functions use keys that belong to this group alone: other groups, and other
/// attempts to make this group, do not see them. Their default time-out is 5 minutes. They return
/// DIST_ERR_UNSUPPORTED if the store of the group was released.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_backend_host_t {
    /// sizeof(dist_backend_host_t) in the version of the library.
    pub struct_size: usize,
    /// DIST_BACKEND_VERSION of the library.
    pub version: u32,
    /// The version of the library as dist_version() returns it.
    pub library_version: u32,
    /// The first argument of the functions below.
    pub context: *mut c_void,
    /// Stores a value under a key.
    pub store_set: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            key: *const c_char,
            value: *const c_void,
            len_bytes: usize,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Waits until the key exists, and passes its value to `sink(sink_arg, ...)`. With DIST_NO_WAIT
    /// the function checks the key once. Returns DIST_ERR_TIMEOUT at the deadline. If the group
    /// fails on this rank, returns DIST_ERR_ABORTED within about 100 ms.
    pub store_get: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            key: *const c_char,
            sink: dist_store_sink_fn,
            sink_arg: *mut c_void,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Adds `amount` to a counter and writes the sum to `result`. A missing counter counts as 0.
    pub store_add: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            key: *const c_char,
            amount: i64,
            result: *mut i64,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Writes to `present` 1 if the key exists, and 0 otherwise. The function does not wait for the
    /// key.
    pub store_check: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            key: *const c_char,
            present: *mut i32,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Removes a key. A missing key is no error.
    pub store_delete: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            key: *const c_char,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Writes a line to the library's log at a DIST_LOG_ level.
    pub log: Option<unsafe extern "C" fn(context: *mut c_void, level: i32, text: *const c_char)>,
    /// Returns 1 if the group has failed on this rank, and 0 otherwise. After a result of 1, the
    /// plug-in should end all waits of the part. The call is cheap.
    pub is_aborted: Option<unsafe extern "C" fn(context: *mut c_void) -> i32>,
    /// For plug-ins without test and wait: reports the end of the operation with this ticket.
    /// `outcome` is NULL, or has its struct_size set. Any thread may call the function, also during
    /// submit. Returns DIST_ERR_INVALID_ARGUMENT if no outstanding operation has the ticket.
    pub complete: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            ticket: u64,
            status: dist_status_t,
            outcome: *const dist_backend_outcome_t,
        ) -> dist_status_t,
    >,
}

/// The description of a group for create; valid only during create, except `host`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_backend_setup_t {
    /// sizeof(dist_backend_setup_t) in the version of the library.
    pub struct_size: usize,
    /// The rank of this process in the group.
    pub rank: i32,
    /// The number of ranks.
    pub size: i32,
    /// The number of successive calls of dist_group_shrink that led to this group, or 0.
    pub epoch: u32,
    /// The GPU of this rank, or DIST_DEVICE_HOST.
    pub device: i32,
    /// A unique identifier of the group, of 32 hexadecimal digits, the same on all ranks.
    pub group_id: *const c_char,
    /// The group's name.
    pub group_name: *const c_char,
    /// The caller's options for the back end, "key=value;key=value", or "".
    pub options: *const c_char,
    /// The default time-out of the group's operations.
    pub timeout_ms: i64,
    /// The time-out of create.
    pub create_timeout_ms: i64,
    /// The services of the library; valid until destroy has returned.
    pub host: *const dist_backend_host_t,
    /// An all-gather of bytes between the ranks of the group. The function contributes the bytes of
    /// this rank, and waits for the bytes of all ranks. Then it passes the bytes of each rank to
    /// `sink(sink_arg, ...)`, in the order of ranks. `phase` is a name for this exchange. All ranks
    /// call the function with the same phases in the same order, on the thread of create. If create
    /// fails on a rank, the function fails on all ranks.
    pub exchange: Option<
        unsafe extern "C" fn(
            exchange_arg: *mut c_void,
            phase: *const c_char,
            bytes: *const c_void,
            len_bytes: usize,
            sink: dist_store_sink_fn,
            sink_arg: *mut c_void,
        ) -> dist_status_t,
    >,
    /// The first argument of `exchange`.
    pub exchange_arg: *mut c_void,
}

/// The result of create. Before the call, the library sets struct_size, and sets all other fields
/// to zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_backend_created_t {
    /// sizeof(dist_backend_created_t) in the version of the library.
    pub struct_size: usize,
    /// The first argument of the plug-in's other functions; may be NULL.
    pub part: *mut c_void,
    /// The operations that the plug-in supports, the same on all ranks: the sum of the bits 1 <<
    /// DIST_KIND_... of its collectives, and of DIST_BACKEND_MESSAGES. 0 means all operations. The
    /// library composes a missing operation of supported operations if the result is the same.
    pub kinds: u64,
    /// Whether the plug-in uses buffers in the memory of the setup's device, the same on all ranks.
    /// If 0, the plug-in gets only host memory: the library copies device memory to host memory and
    /// back. If not 0, it also gets device memory, in calls that `supports` accepts. The device's
    /// context is then current in create, submit, run, test, wait and release.
    pub serves_device: i32,
    /// Must be 0.
    pub reserved: i32,
}

/// The functions of a back end (dist_backend_register).
///
/// No function may throw or end the process. Each function with a status returns DIST_OK or another
/// status of dist.h, with details in `outcome`. If a function returns any other number, the caller
/// gets DIST_ERR_BACKEND. `part` is the pointer that create returned.
///
/// Threads:
///
/// - create and destroy are called once for each part. No other function of the part runs at the
///   same time.
/// - One thread at a time submits collectives, in the same order on all ranks. The thread may
///   change between calls.
/// - Any thread may call the other functions at any time, also while another thread waits. So
///   messages are submitted, tested and released concurrently with collectives, and any thread may
///   call abort.
/// - One thread at a time uses a request.
///
/// Requests: a request begins with submit or run. It ends in one of two ways: test, wait or
/// complete reports the end of the operation, successful or not; or release withdraws the
/// operation. The library does not use a request after its end.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_backend_vtable_t {
    /// sizeof(dist_backend_vtable_t).
    pub struct_size: usize,
    /// Required. Makes this rank's part of a group. All ranks of the group call the function at the
    /// same time. It must end within create_timeout_ms. `user` is the registered pointer, and
    /// `created` is an output. If create fails, the library informs the other ranks and does not
    /// call destroy.
    pub create: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            setup: *const dist_backend_setup_t,
            created: *mut dist_backend_created_t,
            outcome: *mut dist_backend_outcome_t,
        ) -> dist_status_t,
    >,
    /// Required. Ends a part. The part has no outstanding requests. The function must not wait for
    /// other ranks.
    pub destroy: Option<unsafe extern "C" fn(part: *mut c_void)>,
    /// Required. Begins an operation without waiting for other ranks. Its status means:
    ///
    /// - DIST_OK: the operation has ended.
    /// - DIST_IN_PROGRESS: the operation continues. `*request` is then the argument of test, wait
    ///   and release. `*request` may be NULL only if the plug-in has neither test nor wait.
    /// - DIST_ERR_INVALID_ARGUMENT or DIST_ERR_UNSUPPORTED: the operation has had no effect, every
    ///   rank refuses it with this error, and the group continues.
    /// - Any other error of a collective fails the group.
    pub submit: Option<
        unsafe extern "C" fn(
            part: *mut c_void,
            operation: *const dist_backend_operation_t,
            request: *mut *mut c_void,
            outcome: *mut dist_backend_outcome_t,
        ) -> dist_status_t,
    >,
    /// Required. Withdraws an operation that has not ended, because its deadline has passed or the
    /// group has failed. The request ends, whatever the status is. The function must not wait for
    /// other ranks. Its status means:
    ///
    /// - DIST_OK: the plug-in will not touch the memory of the operation any more. In `outcome`,
    ///   the text may name the reason for the wait, and the culprit may be the late rank. The
    ///   library adds both to the error.
    /// - Any other status: the plug-in may still touch the memory. The caller gets the error, and
    ///   the group fails.
    pub release: Option<
        unsafe extern "C" fn(
            part: *mut c_void,
            request: *mut c_void,
            outcome: *mut dist_backend_outcome_t,
        ) -> dist_status_t,
    >,
    /// Optional. Reports without waiting whether an operation has ended: DIST_OK, DIST_IN_PROGRESS,
    /// or the error of the operation. Without test, the library calls wait with DIST_NO_WAIT. A
    /// plug-in may leave all progress of an operation to this function.
    pub test: Option<
        unsafe extern "C" fn(
            part: *mut c_void,
            request: *mut c_void,
            outcome: *mut dist_backend_outcome_t,
        ) -> dist_status_t,
    >,
    /// Optional. As test, but waits for up to `timeout_ms`: 1 to 1000, or DIST_NO_WAIT for no time.
    /// The library repeats the call until the deadline of the operation. The wait must end soon
    /// after abort. A plug-in without wait is polled with test. A plug-in without test and wait
    /// reports the end of each operation with complete() of the host.
    pub wait: Option<
        unsafe extern "C" fn(
            part: *mut c_void,
            request: *mut c_void,
            timeout_ms: i64,
            outcome: *mut dist_backend_outcome_t,
        ) -> dist_status_t,
    >,
    /// Optional. The library calls abort at most once, when the group has failed, with the reason.
    /// Every wait of the part should then end soon, if possible also on other ranks. The function
    /// must not wait. Without abort, waits end within 1 s.
    pub abort: Option<
        unsafe extern "C" fn(
            part: *mut c_void,
            status: dist_status_t,
            reason: *const c_char,
            culprit: i32,
        ),
    >,
    /// Optional. Returns DIST_OK, or the reason why the part cannot continue, for example another
    /// rank's abort. The library calls the function periodically while a thread waits. The function
    /// must not wait.
    pub failure: Option<
        unsafe extern "C" fn(
            part: *mut c_void,
            outcome: *mut dist_backend_outcome_t,
        ) -> dist_status_t,
    >,
    /// Optional. Returns DIST_OK if the plug-in supports a call, and otherwise
    /// DIST_ERR_UNSUPPORTED. The library asks only about operations in `kinds` of
    /// dist_backend_created_t. The answer must be the same on all ranks and must never change.
    /// Without supports, the plug-in supports all types and operators.
    pub supports: Option<
        unsafe extern "C" fn(
            part: *mut c_void,
            query: *const dist_backend_query_t,
            outcome: *mut dist_backend_outcome_t,
        ) -> dist_status_t,
    >,
    /// Optional, together with free_memory. Allocates host memory for buffers, aligned to at least
    /// 64 bytes (dist_mem_alloc). `device` is DIST_DEVICE_HOST.
    pub allocate: Option<
        unsafe extern "C" fn(
            part: *mut c_void,
            bytes: usize,
            device: i32,
            memory: *mut *mut c_void,
            outcome: *mut dist_backend_outcome_t,
        ) -> dist_status_t,
    >,
    /// Frees memory that allocate returned. The library calls destroy only after it has freed all
    /// such memory of the part.
    pub free_memory:
        Option<unsafe extern "C" fn(part: *mut c_void, memory: *mut c_void, bytes: usize)>,
    /// Optional. Passes a JSON text about the part to the sink once, for dist_group_describe.
    pub describe: Option<
        unsafe extern "C" fn(
            part: *mut c_void,
            sink: dist_store_sink_fn,
            sink_arg: *mut c_void,
        ) -> dist_status_t,
    >,
    /// Optional, only together with test or wait. Begins a collective whose caller blocks, and
    /// waits up to `timeout_ms` for its end (1 to 1000, or DIST_NO_WAIT). It is for operations that
    /// run faster this way than with submit and wait. The rules of submit for threads and for the
    /// order of calls apply. The wait must end soon after abort. If the library composes a
    /// collective of several operations, it uses submit instead. The status of run means:
    ///
    /// - DIST_OK: the operation has ended.
    /// - DIST_IN_PROGRESS: the operation continues. `*request` is then the argument of wait, test
    ///   and release.
    /// - DIST_ERR_INVALID_ARGUMENT or DIST_ERR_UNSUPPORTED: the same as for submit.
    /// - Any other error fails the group.
    pub run: Option<
        unsafe extern "C" fn(
            part: *mut c_void,
            operation: *const dist_backend_operation_t,
            timeout_ms: i64,
            request: *mut *mut c_void,
            outcome: *mut dist_backend_outcome_t,
        ) -> dist_status_t,
    >,
}

/// The back end in a shared object: an output of dist_backend_plugin_fn. Before the call, the
/// library sets struct_size, and sets all other fields to zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_backend_plugin_t {
    /// sizeof(dist_backend_plugin_t) in the version of the library.
    pub struct_size: usize,
    /// DIST_BACKEND_VERSION of the header with which the plug-in was compiled.
    pub version: u32,
    /// Must be 0.
    pub reserved: u32,
    /// The name of the back end, as in dist_backend_register; copied.
    pub name: *const c_char,
    /// The functions of the back end; copied.
    pub functions: *const dist_backend_vtable_t,
    /// The pointer that the library passes to create.
    pub user: *mut c_void,
}

/// The function that a plug-in exports under the name dist_backend_plugin_v2.
///
/// Of the functions of `host`, the plug-in may call only log; it may also read version and
/// library_version. The function returns DIST_OK, or the reason why the plug-in cannot be used in
/// this process.
pub type dist_backend_plugin_fn = Option<
    unsafe extern "C" fn(
        host: *const dist_backend_host_t,
        plugin: *mut dist_backend_plugin_t,
        outcome: *mut dist_backend_outcome_t,
    ) -> dist_status_t,
>;

// The first size of each struct is the smallest that the library accepts. For the vtable it
// includes the required functions.
sized_structs! {
    dist_backend_vtable_t: 40, 112;
}

const _: () = {
    assert!(size_of::<dist_backend_query_t>() == 24);
    assert!(size_of::<dist_backend_host_t>() == 88);
    assert!(size_of::<dist_backend_setup_t>() == 88);
    assert!(size_of::<dist_backend_created_t>() == 32);
    assert!(size_of::<dist_backend_plugin_t>() == 40);
};
