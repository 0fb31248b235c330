//! The types of the C interface for back ends that others write. Fields are only ever appended.
#![allow(non_camel_case_types, reason = "C names")]
#![allow(missing_debug_implementations, reason = "plain C structs")]

use super::constants::*;
use super::sized_struct::sized_structs;
use super::store_types::dist_store_sink_fn;
use std::ffi::{c_char, c_void};

/// The version of the interface between the library and a plug-in (dist_backend_load).
///
/// The version changes when an existing item changes its meaning. struct_size shows appended
/// fields.
pub const DIST_BACKEND_VERSION: u32 = 2;

/// In `kinds` of dist_backend_created_t: messages (DIST_KIND_SEND and DIST_KIND_RECV).
///
/// The bit of a collective is 1 << its number, for example 1 << DIST_KIND_BROADCAST.
pub const DIST_BACKEND_MESSAGES: u64 = 4294967296;

/// In `flags` of dist_backend_operation_t: input and output are the same memory.
pub const DIST_BACKEND_IN_PLACE: u64 = 1;

/// In `flags` of dist_backend_outcome_t, set by run: the operation was short.
///
/// The operation took about 10 microseconds at most. The library then does not read the clock to
/// record the end of the operation.
pub const DIST_BACKEND_SHORT: u64 = 1;

/// Details that a function of a plug-in returns in addition to its status.
///
/// Before each call, the library sets culprit, peer, tag and len_bytes to -1, flags to 0 and the
/// text to "".
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_backend_outcome_t {
    /// sizeof(dist_backend_outcome_t) in the version of the library.
    pub struct_size: usize,
    /// For an error: the rank that caused it, or -1.
    pub culprit: i32,
    /// For a received message: the rank of the sender.
    pub peer: i32,
    /// For a received message: the tag.
    pub tag: i64,
    /// For a received message: its length, which may exceed the receive buffer.
    pub len_bytes: i64,
    /// For an error: a buffer of text_cap bytes for terminated UTF-8 that names the fault and the
    /// remedy.
    pub text: *mut c_char,
    /// The size of `text` in bytes, at least 256.
    pub text_cap: usize,
    /// DIST_BACKEND_SHORT, or 0.
    pub flags: u64,
}

/// One operation; valid during submit or run.
///
/// The buffers are borrowed until the operation has ended or was released. The arrays of
/// displacements and counts are borrowed for the call. An absent field is NULL or 0; absent types,
/// ranks and tags are -1.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_backend_operation_t {
    /// sizeof(dist_backend_operation_t) in the version of the library.
    pub struct_size: usize,
    /// A DIST_KIND_ constant.
    pub kind: i32,
    /// The element type; -1 for a barrier.
    pub dtype: dist_dtype_t,
    /// The operator of a reduction, defined for the type; -1 for other operations.
    pub op: dist_op_t,
    /// The root, or -1 if the operation has none.
    pub root: i32,
    /// The other rank of a message; DIST_ANY_SOURCE in a receive means any rank.
    pub peer: i32,
    /// The location of the buffers: DIST_DEVICE_HOST, or the index of a GPU.
    pub device: i32,
    /// The tag of a message: 0 to 2147483647 for callers, up to 4294967295 for the library's own
    /// messages. DIST_ANY_TAG in a receive matches callers' tags only.
    pub tag: i64,
    /// The input of this rank; NULL if the rank has none. In a broadcast, the buffer of the root,
    /// on the root only. In the _v forms, the lowest address of the blocks.
    pub send: *const c_void,
    /// The buffer for the result; NULL if this rank gets none. In a broadcast, the buffer on all
    /// ranks but the root. In the _v forms, the lowest address of the blocks.
    pub recv: *mut c_void,
    /// The count argument in elements: of a vector, of one rank's block, or of a message; in a
    /// receive, the capacity of the buffer. 0 in the _v forms, which have send_count and
    /// recv_count.
    pub count: usize,
    /// In the _v forms, if this rank sends a block to each rank: the length of each block in
    /// elements.
    pub send_counts: *const usize,
    /// The start of each of these blocks in bytes from `send`; gaps between the blocks are
    /// possible.
    pub send_displs: *const usize,
    /// In the _v forms, if this rank receives a block from each rank: the length of each block in
    /// elements.
    pub recv_counts: *const usize,
    /// The start of each of these blocks in bytes from `recv`; gaps between the blocks are
    /// possible.
    pub recv_displs: *const usize,
    /// In the _v forms: the length of `send` in elements if `send` is one block, else 0.
    pub send_count: usize,
    /// In the _v forms: the length of `recv` in elements if `recv` is one block, else 0.
    pub recv_count: usize,
    /// The factor of this rank for DIST_PREMUL_SUM.
    pub factor: f64,
    /// The time-out of the operation from now on: 1 or more, DIST_WAIT_FOREVER, or DIST_NO_WAIT if
    /// no time is left.
    pub timeout_ms: i64,
    /// The number of the collective in its group, from 1, the same on all ranks; 0 for messages.
    pub sequence: u64,
    /// The number of the part, if the library composes the collective of several operations; else
    /// 0.
    pub part: u64,
    /// For GPU memory: the caller's stream as the driver's handle, or NULL; the earlier work in the
    /// stream is done. NULL for host memory.
    pub stream: *mut c_void,
    /// DIST_BACKEND_IN_PLACE, or 0.
    pub flags: u64,
    /// The ticket for complete(), for a plug-in without test and wait; else 0.
    pub ticket: u64,
    /// In a receive of a message of any length, in place of `recv`. Returns memory for the given
    /// length, or NULL if the message is too long; the receive then ends with DIST_ERR_MISMATCH.
    /// The plug-in calls the function once, with `grow_arg`, from any thread, before the receive
    /// ends.
    pub grow: Option<unsafe extern "C" fn(grow_arg: *mut c_void, len_bytes: usize) -> *mut c_void>,
    /// The argument of `grow`; valid until the operation has ended or was released.
    pub grow_arg: *mut c_void,
}

/// A call for which the library asks whether the plug-in supports it.
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
/// status, dist_last_error has the message. Keys belong to this group alone: other groups and other
/// attempts to make this group do not see them.
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
    /// Stores a value. The default time-out of this function and the next four is 5 minutes. They
    /// return DIST_ERR_UNSUPPORTED if the group's store was released.
    pub store_set: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            key: *const c_char,
            value: *const c_void,
            len_bytes: usize,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Waits until the key exists and passes its value to `sink(sink_arg, ...)`; DIST_NO_WAIT
    /// checks once. Returns DIST_ERR_TIMEOUT at the deadline. If the group fails on this rank,
    /// returns DIST_ERR_ABORTED within about 100 ms.
    pub store_get: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            key: *const c_char,
            sink: dist_store_sink_fn,
            sink_arg: *mut c_void,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Adds to a counter (a missing counter is 0) and writes the sum.
    pub store_add: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            key: *const c_char,
            amount: i64,
            result: *mut i64,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Writes 1 if the key exists, else 0, without waiting for the key.
    pub store_check: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            key: *const c_char,
            present: *mut i32,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Removes a key; a missing key is no error.
    pub store_delete: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            key: *const c_char,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Writes a line to the library's log at a DIST_LOG_ level.
    pub log: Option<unsafe extern "C" fn(context: *mut c_void, level: i32, text: *const c_char)>,
    /// Returns 1 once the group has failed on this rank, else 0. All waits should then end. The
    /// call is cheap.
    pub is_aborted: Option<unsafe extern "C" fn(context: *mut c_void) -> i32>,
    /// Ends the operation with this ticket, for plug-ins without test and wait. `outcome` has
    /// its struct_size set, or is NULL. Any thread may call the function, also inside submit.
    /// Returns DIST_ERR_INVALID_ARGUMENT if no outstanding operation has the ticket.
    pub complete: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            ticket: u64,
            status: dist_status_t,
            outcome: *const dist_backend_outcome_t,
        ) -> dist_status_t,
    >,
}

/// The description of a group for create; valid during create, except `host`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_backend_setup_t {
    /// sizeof(dist_backend_setup_t) in the version of the library.
    pub struct_size: usize,
    /// The rank of this process in the group.
    pub rank: i32,
    /// The number of ranks.
    pub size: i32,
    /// How many times dist_group_shrink replaced a failed group on the way to this group.
    pub epoch: u32,
    /// The GPU of this rank, or DIST_DEVICE_HOST.
    pub device: i32,
    /// A unique identifier of 32 hexadecimal digits, the same on all ranks.
    pub group_id: *const c_char,
    /// The group's name.
    pub group_name: *const c_char,
    /// The caller's options for the back end, "key=value;key=value", or "".
    pub options: *const c_char,
    /// The default time-out of operations.
    pub timeout_ms: i64,
    /// The time-out of create.
    pub create_timeout_ms: i64,
    /// The services of the library; valid until destroy has returned.
    pub host: *const dist_backend_host_t,
    /// Contributes bytes of this rank under the name of a phase and waits for the bytes of all
    /// ranks. Then passes the bytes of each rank to `sink(sink_arg, ...)` in the order of ranks.
    /// All ranks call the function with the same phases in the same order, on the thread of create.
    /// If a rank publishes a failure, the function fails on all ranks.
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

/// The result of create; the library sets struct_size, and all other fields to zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_backend_created_t {
    /// sizeof(dist_backend_created_t) in the version of the library.
    pub struct_size: usize,
    /// The first argument of the other functions; may be NULL.
    pub part: *mut c_void,
    /// The operations of the plug-in, the same on all ranks: bits 1 << DIST_KIND_... of
    /// collectives, and DIST_BACKEND_MESSAGES; 0 for all. The library composes missing operations
    /// of these if the result is the same.
    pub kinds: u64,
    /// Not 0: buffers may also be in the memory of the setup's device, in calls that `supports`
    /// accepts. The device's context is then current in create, submit, run, test, wait and
    /// release. 0: the library copies device memory to host memory and back. The same on all ranks.
    pub serves_device: i32,
    /// Must be 0.
    pub reserved: i32,
}

/// The functions of a back end (dist_backend_register).
///
/// No function may throw or end the process. Each function with a status returns DIST_OK or another
/// status of this header, with details in `outcome`. The caller gets DIST_ERR_BACKEND for any
/// other number. `part` is the result of create.
///
/// Threads: create and destroy are called once for each part, and no other function runs at that
/// time. One thread at a time submits collectives, in the same order on all ranks; the thread may
/// change. Any thread may call the other functions at any time, also during a wait of another
/// thread: messages are submitted, tested and released concurrently with collectives, and any
/// thread may call abort. One thread at a time uses a request.
///
/// Requests: a request begins with submit or run. The request ends when test, wait or complete
/// reports the end of the operation, successful or not, or when release withdraws the operation.
/// The library does not use a request after its end.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_backend_vtable_t {
    /// sizeof(dist_backend_vtable_t).
    pub struct_size: usize,
    /// Required. Makes this rank's part of a group, on all ranks at once, within the setup's time.
    /// `user` is the registered pointer; `created` is an output. After a failure, the library
    /// informs the other ranks and does not call destroy.
    pub create: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            setup: *const dist_backend_setup_t,
            created: *mut dist_backend_created_t,
            outcome: *mut dist_backend_outcome_t,
        ) -> dist_status_t,
    >,
    /// Required. Ends a part. There are no outstanding requests. The function must not wait for
    /// other ranks.
    pub destroy: Option<unsafe extern "C" fn(part: *mut c_void)>,
    /// Required. Begins an operation without waiting for other ranks. DIST_OK: the operation has
    /// ended. DIST_IN_PROGRESS: the operation goes on, and `request` (an output) is the argument of
    /// test, wait and release; NULL only in a plug-in without test and wait.
    /// DIST_ERR_INVALID_ARGUMENT and DIST_ERR_UNSUPPORTED: every rank refuses the operation, and
    /// the group goes on. Any other error of a collective fails the group.
    pub submit: Option<
        unsafe extern "C" fn(
            part: *mut c_void,
            operation: *const dist_backend_operation_t,
            request: *mut *mut c_void,
            outcome: *mut dist_backend_outcome_t,
        ) -> dist_status_t,
    >,
    /// Required. Withdraws an operation that has not ended, because its deadline has passed or the
    /// group has failed. DIST_OK: the plug-in will not touch the operation's memory any more. The
    /// text may then name the reason for the wait, and the culprit the late rank; the library adds
    /// both to the error. Any other status: the plug-in cannot promise this, the caller gets the
    /// error, and the group fails. The request ends in either case. The function must not wait for
    /// other ranks.
    pub release: Option<
        unsafe extern "C" fn(
            part: *mut c_void,
            request: *mut c_void,
            outcome: *mut dist_backend_outcome_t,
        ) -> dist_status_t,
    >,
    /// Optional. Reports without waiting whether an operation has ended: DIST_OK, DIST_IN_PROGRESS,
    /// or the error of the operation. Without test, the library calls wait with 0 ms. An operation
    /// may make progress only here.
    pub test: Option<
        unsafe extern "C" fn(
            part: *mut c_void,
            request: *mut c_void,
            outcome: *mut dist_backend_outcome_t,
        ) -> dist_status_t,
    >,
    /// Optional. As test, but waits for up to `timeout_ms`: 1 to 1000, or DIST_NO_WAIT for no
    /// time. The library repeats the call until the operation's deadline. The wait must end soon
    /// after abort. Without wait, the library calls test repeatedly. Without both, operations end
    /// by the host's complete().
    pub wait: Option<
        unsafe extern "C" fn(
            part: *mut c_void,
            request: *mut c_void,
            timeout_ms: i64,
            outcome: *mut dist_backend_outcome_t,
        ) -> dist_status_t,
    >,
    /// Optional. Reports that the group has failed, with the reason. Every wait of the part should
    /// end soon, if possible also on other ranks. The library calls abort at most once. The
    /// function must not wait. Without abort, waits end within 1 s.
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
    /// Optional. Returns DIST_OK if the plug-in supports the call of an operation in its kinds,
    /// else DIST_ERR_UNSUPPORTED. The answer is the same on all ranks and never changes. Without
    /// supports, the plug-in supports all types and operators.
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
    /// Frees memory of allocate. The part lives at least until then.
    pub free_memory:
        Option<unsafe extern "C" fn(part: *mut c_void, memory: *mut c_void, bytes: usize)>,
    /// Optional. Passes a JSON text about the part to the sink once (dist_group_describe).
    pub describe: Option<
        unsafe extern "C" fn(
            part: *mut c_void,
            sink: dist_store_sink_fn,
            sink_arg: *mut c_void,
        ) -> dist_status_t,
    >,
    /// Optional, only together with test or wait. Begins a collective whose caller waits, and waits
    /// for up to `timeout_ms` (1 to 1000, or DIST_NO_WAIT). For operations that run faster this way
    /// than by submit and wait. DIST_OK: the operation has ended. DIST_IN_PROGRESS: the operation
    /// goes on, and `request` (an output) is the argument of wait, test and release; the struct of
    /// the operation is valid during run only. DIST_ERR_INVALID_ARGUMENT and DIST_ERR_UNSUPPORTED:
    /// the operation is refused as by submit. Any other error fails the group. Threads and order
    /// are those of submit. The wait must end soon after abort. If the library composes a
    /// collective of several operations, it uses submit.
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

/// The back end of a shared object; the library sets struct_size, and all other fields to zero.
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
/// `host` provides version, library_version and log only. The function returns DIST_OK, or the
/// reason why the plug-in cannot be used in this process.
pub type dist_backend_plugin_fn = Option<
    unsafe extern "C" fn(
        host: *const dist_backend_host_t,
        plugin: *mut dist_backend_plugin_t,
        outcome: *mut dist_backend_outcome_t,
    ) -> dist_status_t,
>;

// The first size includes the required functions.
sized_structs! {
    dist_backend_vtable_t: 40, 112;
    dist_backend_outcome_t: 48, 56;
}

const _: () = {
    assert!(size_of::<dist_backend_operation_t>() == 184);
    assert!(size_of::<dist_backend_query_t>() == 24);
    assert!(size_of::<dist_backend_host_t>() == 88);
    assert!(size_of::<dist_backend_setup_t>() == 88);
    assert!(size_of::<dist_backend_created_t>() == 32);
    assert!(size_of::<dist_backend_plugin_t>() == 40);
};
