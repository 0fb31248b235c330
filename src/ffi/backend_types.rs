//! The types of the C interface for back ends that others write. Fields are only ever appended.
#![allow(non_camel_case_types, reason = "C names")]
#![allow(missing_debug_implementations, reason = "plain C structs")]

use super::constants::*;
use super::options::Options;
use super::types::dist_store_sink_fn;
use std::ffi::{c_char, c_void};

/// The version of the interface between the library and a plug-in (dist_backend_load). It changes when something that was
/// there changes its meaning; what is appended to a struct is seen by struct_size.
pub const DIST_BACKEND_VERSION: u32 = 2;

/// In `kinds` of dist_backend_created_t: messages (DIST_KIND_SEND and DIST_KIND_RECV). A collective has the bit of its
/// number: 1 << DIST_KIND_BROADCAST.
pub const DIST_BACKEND_MESSAGES: u64 = 4294967296;

/// In `flags` of dist_backend_operation_t: input and output are the same memory, as the operation allows.
pub const DIST_BACKEND_IN_PLACE: u64 = 1;

/// In `flags` of dist_backend_outcome_t, of run: the operation was small and has taken a moment only, some ten microseconds
/// at most, so that the library need not look at the clock to note its end.
pub const DIST_BACKEND_SHORT: u64 = 1;

/// What a function of a plug-in says beside its status. The library sets all fields before each call: culprit, peer, tag
/// and len_bytes to -1, flags to 0, and the text to "".
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_backend_outcome_t {
    /// sizeof(dist_backend_outcome_t), as the library knows it.
    pub struct_size: usize,
    /// Of an error: the rank that is to blame, or -1.
    pub culprit: i32,
    /// Of a message that has been received: who sent it.
    pub peer: i32,
    /// Of a message that has been received: its tag.
    pub tag: i64,
    /// Of a message that has been received: its length, whatever the room for it.
    pub len_bytes: i64,
    /// Of an error: room for what happened and what to do, as terminated UTF-8; text_cap bytes.
    pub text: *mut c_char,
    /// At least 256.
    pub text_cap: usize,
    /// DIST_BACKEND_SHORT, or 0.
    pub flags: u64,
}

/// One operation. Valid during submit; the buffers that it points to are lent until the operation has ended or has been
/// released, the arrays of places and counts during submit only. A field that an operation does not have is NULL, 0, or -1
/// for types and ranks.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_backend_operation_t {
    /// sizeof(dist_backend_operation_t), as the library knows it.
    pub struct_size: usize,
    /// A DIST_KIND_ constant.
    pub kind: i32,
    /// The element type; -1 for a barrier.
    pub dtype: dist_dtype_t,
    /// The operator of a reduction, defined for the type; else -1.
    pub op: dist_op_t,
    /// The root, or -1.
    pub root: i32,
    /// The other rank of a message; DIST_ANY_SOURCE is possible in a receive.
    pub peer: i32,
    /// Where the buffers are: DIST_DEVICE_HOST, or the index of a GPU.
    pub device: i32,
    /// The tag of a message: 0 to 2147483647, of the library's own messages up to 4294967295. DIST_ANY_TAG in a receive
    /// takes callers' tags only.
    pub tag: i64,
    /// What this rank contributes; NULL where it contributes nothing. In a broadcast, the root's buffer on the root. In
    /// the _v forms the lowest address of its blocks.
    pub send: *const c_void,
    /// Where its result goes; NULL where it gets none. In a broadcast, the buffer on all but the root. In the _v forms the
    /// lowest address of its blocks.
    pub recv: *mut c_void,
    /// The count argument in elements: of a vector, of a block where there is one for each rank, of a message; of a
    /// receive, the room. 0 in the _v forms, which have send_count and recv_count.
    pub count: usize,
    /// In the _v forms, where this rank sends a block for each rank: how long each is in elements; one for each rank.
    pub send_counts: *const usize,
    /// And where each begins, in bytes from `send`; they need not follow each other.
    pub send_displs: *const usize,
    /// In the _v forms, where this rank gets a block from each rank: how long each is in elements.
    pub recv_counts: *const usize,
    /// And where each begins, in bytes from `recv`.
    pub recv_displs: *const usize,
    /// In the _v forms: the length of `send` in elements where it is one block, else 0.
    pub send_count: usize,
    /// In the _v forms: the length of `recv` in elements where it is one block, else 0.
    pub recv_count: usize,
    /// Of DIST_PREMUL_SUM: this rank's own factor.
    pub factor: f64,
    /// The time-out of the operation, from now; never 0.
    pub timeout_ms: i64,
    /// The number of the collective in its group, from 1, the same on all ranks; 0 for messages.
    pub sequence: u64,
    /// Which part of that collective, where the library makes it of several, by a number of its own; else 0.
    pub part: u64,
    /// The caller's stream for a device's operation, as the driver's handle, or NULL: what was in it has been done. NULL for
    /// host memory.
    pub stream: *mut c_void,
    /// DIST_BACKEND_IN_PLACE, or 0.
    pub flags: u64,
    /// What complete() is called with, by a plug-in without test and wait.
    pub ticket: u64,
    /// In a receive of a message of any length, in place of `recv`: gives the memory for it, once its length is known, or
    /// NULL where it is too long (then the receive ends with DIST_ERR_MISMATCH). Called once, with `grow_arg`, from any
    /// thread, before the receive ends.
    pub grow: Option<unsafe extern "C" fn(grow_arg: *mut c_void, len_bytes: usize) -> *mut c_void>,
    /// For `grow`; valid until the operation has ended or has been released.
    pub grow_arg: *mut c_void,
}

/// What a plug-in is asked whether it does.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_backend_query_t {
    /// sizeof(dist_backend_query_t), as the library knows it.
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

/// What the library does for a plug-in. The struct and `context` stay valid until destroy has returned. All functions may
/// be called from any thread, take `context` first, copy what they are given, and return a status; dist_last_error has the
/// message. Keys are the group's own: no other group, and no other attempt to make this one, sees them.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_backend_host_t {
    /// sizeof(dist_backend_host_t), as the library knows it.
    pub struct_size: usize,
    /// DIST_BACKEND_VERSION of the library.
    pub version: u32,
    /// The version of the library, as dist_version().
    pub library_version: u32,
    /// For the functions below.
    pub context: *mut c_void,
    /// Stores a value. The default time-out of this and the next four is 5 minutes; they are DIST_ERR_UNSUPPORTED if the group's store was released.
    pub store_set: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            key: *const c_char,
            value: *const c_void,
            len_bytes: usize,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Waits until the key exists, and hands its value to `sink(sink_arg, ...)`; DIST_NO_WAIT looks once. Ends with DIST_ERR_TIMEOUT, and with
    /// DIST_ERR_ABORTED within a tenth of a second after the group has failed on this rank.
    pub store_get: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            key: *const c_char,
            sink: dist_store_sink_fn,
            sink_arg: *mut c_void,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Adds to a counter (a missing one is 0) and writes the sum.
    pub store_add: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            key: *const c_char,
            amount: i64,
            result: *mut i64,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Writes 1 if the key exists, else 0, without waiting for it.
    pub store_check: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            key: *const c_char,
            present: *mut i32,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Removes a key; no error where there is none.
    pub store_delete: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            key: *const c_char,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Writes a line to the library's log, at a DIST_LOG_ level.
    pub log: Option<unsafe extern "C" fn(context: *mut c_void, level: i32, text: *const c_char)>,
    /// Not 0 once the group has failed on this rank: whatever waits is to end. Costs next to nothing.
    pub is_aborted: Option<unsafe extern "C" fn(context: *mut c_void) -> i32>,
    /// Ends the operation with this ticket, for plug-ins without test and wait: the status, and what there is to say
    /// beside it (may be NULL). From any thread, also inside submit. DIST_ERR_INVALID_ARGUMENT where no operation under
    /// way has the ticket.
    pub complete: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            ticket: u64,
            status: dist_status_t,
            outcome: *const dist_backend_outcome_t,
        ) -> dist_status_t,
    >,
}

/// What a plug-in is told about the group that it makes its part of. Valid during create, but for `host`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_backend_setup_t {
    /// sizeof(dist_backend_setup_t), as the library knows it.
    pub struct_size: usize,
    /// This rank.
    pub rank: i32,
    /// The number of ranks.
    pub size: i32,
    /// How often a failed group was replaced by what was left of it, to come to this one (dist_group_shrink).
    pub epoch: u32,
    /// The GPU of this rank, or DIST_DEVICE_HOST.
    pub device: i32,
    /// 32 hexadecimal digits that no other group ever had; the same on all ranks.
    pub group_id: *const c_char,
    /// The group's name.
    pub group_name: *const c_char,
    /// What the caller asked of the back end, "key=value;key=value", or "".
    pub options: *const c_char,
    /// The time-out of operations that name none.
    pub timeout_ms: i64,
    /// How long create may take.
    pub create_timeout_ms: i64,
    /// The library's services, for as long as the part of the group lasts.
    pub host: *const dist_backend_host_t,
    /// Gives some bytes of this rank under the name of a phase, waits for those of all ranks, and hands them to
    /// `sink(sink_arg, ...)` one by one in the order of ranks. All ranks call it with the same phases in the same order,
    /// on the thread of create. Where a rank gives up, it ends on all.
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
    /// For `exchange`.
    pub exchange_arg: *mut c_void,
}

/// What create has made; the library has set struct_size, and everything else to zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_backend_created_t {
    /// sizeof(dist_backend_created_t), as the library knows it.
    pub struct_size: usize,
    /// What the other functions get; may be NULL.
    pub part: *mut c_void,
    /// Which operations the plug-in has: the bits 1 << DIST_KIND_... of collectives, and DIST_BACKEND_MESSAGES; 0 for all.
    /// The library makes others of these where that gives the same result. The same on all ranks.
    pub kinds: u64,
    /// Not 0: besides host memory, buffers may be in the memory of the setup's device, in the calls for which `supports` says
    /// so; the device's context is current in create, submit, run, test, wait and release then. The same on all ranks.
    /// Else the library copies that memory to host memory and back.
    pub serves_device: i32,
    /// Zero.
    pub reserved: i32,
}

/// The functions of a back end (dist_backend_register). None may throw or end the process, and each returns DIST_OK or
/// another status of this header, with details in `outcome` where there is one: any other number is DIST_ERR_BACKEND to
/// the caller. `part` is what create made.
///
/// Threads: create and destroy are called once for each part, and nothing else during either. Collectives are submitted by
/// one thread at a time, in the order that all ranks have; which thread that is changes. Everything else may come from any
/// thread at any time, also while another is inside wait: messages are submitted, tested and released beside collectives,
/// abort comes from whoever aborts. A request is used by one thread at a time.
///
/// The life of a request: it begins with submit; it ends when test, wait or complete says that the operation has ended,
/// well or not, and is not used again after that; or it is taken back by release.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_backend_vtable_t {
    /// sizeof(dist_backend_vtable_t).
    pub struct_size: usize,
    /// Makes this rank's part of a group, on all ranks at once, within the setup's time; required. `user`: as it was
    /// registered. `created`: out. After a failure, destroy is not called, and the other ranks are told.
    pub create: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            setup: *const dist_backend_setup_t,
            created: *mut dist_backend_created_t,
            outcome: *mut dist_backend_outcome_t,
        ) -> dist_status_t,
    >,
    /// Ends a part; required. No request is left, and no other rank waited for.
    pub destroy: Option<unsafe extern "C" fn(part: *mut c_void)>,
    /// Begins an operation without waiting for other ranks; required. DIST_OK: it has ended. DIST_IN_PROGRESS: it goes on,
    /// and `request` (out) is what test, wait and release get; NULL only in a plug-in without test and wait.
    /// DIST_ERR_INVALID_ARGUMENT and DIST_ERR_UNSUPPORTED: it is refused, as on every rank, and the group goes on; any
    /// other error of a collective fails the group.
    pub submit: Option<
        unsafe extern "C" fn(
            part: *mut c_void,
            operation: *const dist_backend_operation_t,
            request: *mut *mut c_void,
            outcome: *mut dist_backend_outcome_t,
        ) -> dist_status_t,
    >,
    /// Takes back an operation that has not ended: its deadline has passed, or the group has failed. DIST_OK: its memory
    /// will not be touched any more; the text may say what it has waited for, and the culprit who is late, which becomes
    /// part of the error. Any other status: that cannot be promised; the caller is told so, and the group fails. The
    /// request has gone in either case. Must not wait for other ranks. Required.
    pub release: Option<
        unsafe extern "C" fn(
            part: *mut c_void,
            request: *mut c_void,
            outcome: *mut dist_backend_outcome_t,
        ) -> dist_status_t,
    >,
    /// Whether an operation has ended, without waiting: DIST_OK, DIST_IN_PROGRESS, or the error that it has ended with.
    /// Without it, wait with 0 milliseconds. An operation may make progress here only.
    pub test: Option<
        unsafe extern "C" fn(
            part: *mut c_void,
            request: *mut c_void,
            outcome: *mut dist_backend_outcome_t,
        ) -> dist_status_t,
    >,
    /// The same, but waits for up to `timeout_ms` (1 to 1000, or DIST_NO_WAIT): the library asks again until the deadline, which it keeps.
    /// Ends soon after abort. Without it the library asks test again and again. Without both, submit's operations end by
    /// the host's complete().
    pub wait: Option<
        unsafe extern "C" fn(
            part: *mut c_void,
            request: *mut c_void,
            timeout_ms: i64,
            outcome: *mut dist_backend_outcome_t,
        ) -> dist_status_t,
    >,
    /// The group has failed for this reason: every wait of the part ends soon, on the other ranks too where the plug-in
    /// can tell them. Called once at most; must not wait. Optional: without it, waits end within a second.
    pub abort: Option<
        unsafe extern "C" fn(
            part: *mut c_void,
            status: dist_status_t,
            reason: *const c_char,
            culprit: i32,
        ),
    >,
    /// DIST_OK, or why the part cannot go on: another rank's abort, say. Asked now and then while somebody waits; must not
    /// wait. Optional.
    pub failure: Option<
        unsafe extern "C" fn(
            part: *mut c_void,
            outcome: *mut dist_backend_outcome_t,
        ) -> dist_status_t,
    >,
    /// DIST_OK, or DIST_ERR_UNSUPPORTED: whether it does a call, of an operation in its kinds. The same on all ranks, and
    /// for as long as the part lasts. Optional: without it, all types and operators.
    pub supports: Option<
        unsafe extern "C" fn(
            part: *mut c_void,
            query: *const dist_backend_query_t,
            outcome: *mut dist_backend_outcome_t,
        ) -> dist_status_t,
    >,
    /// Memory for buffers, at least 64 bytes aligned (dist_mem_alloc); optional, with free_memory.
    pub allocate: Option<
        unsafe extern "C" fn(
            part: *mut c_void,
            bytes: usize,
            device: i32,
            memory: *mut *mut c_void,
            outcome: *mut dist_backend_outcome_t,
        ) -> dist_status_t,
    >,
    /// Frees what allocate has given; the part lasts until then.
    pub free_memory:
        Option<unsafe extern "C" fn(part: *mut c_void, memory: *mut c_void, bytes: usize)>,
    /// Hands a JSON text that describes the part to the sink, once (dist_group_describe); optional.
    pub describe: Option<
        unsafe extern "C" fn(
            part: *mut c_void,
            sink: dist_store_sink_fn,
            sink_arg: *mut c_void,
        ) -> dist_status_t,
    >,
    /// Carries out a collective that its caller waits for, where that takes less than submit and then wait: begins it, and
    /// waits for up to `timeout_ms` (1 to 1000, or DIST_NO_WAIT). DIST_OK: it has ended. DIST_IN_PROGRESS: it goes on, and `request` (out) is
    /// what wait, test and release get; the operation itself is valid during run only. DIST_ERR_INVALID_ARGUMENT and
    /// DIST_ERR_UNSUPPORTED: it is refused, as by submit, and nothing has begun; any other error fails the group. Threads
    /// and order as for submit; ends soon after abort, as wait does. Optional, and only beside test or wait; what the
    /// library makes of several operations is submitted all the same.
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

/// What a plug-in that is loaded from a file says of itself; the library has set struct_size, and everything else to zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_backend_plugin_t {
    /// sizeof(dist_backend_plugin_t), as the library knows it.
    pub struct_size: usize,
    /// DIST_BACKEND_VERSION of the header that the plug-in was compiled with.
    pub version: u32,
    /// Zero.
    pub reserved: u32,
    /// The name of the back end, as for dist_backend_register; copied.
    pub name: *const c_char,
    /// Its functions; copied.
    pub functions: *const dist_backend_vtable_t,
    /// For create.
    pub user: *mut c_void,
}

/// The function that a plug-in exports under the name dist_backend_plugin_v2. `host` has version, library_version and log
/// only. Returns DIST_OK, or why it cannot be used in this process.
pub type dist_backend_plugin_fn = Option<
    unsafe extern "C" fn(
        host: *const dist_backend_host_t,
        plugin: *mut dist_backend_plugin_t,
        outcome: *mut dist_backend_outcome_t,
    ) -> dist_status_t,
>;

/// With the size that a first version has at least: of the functions, those that are required.
macro_rules! sized {
    ($($name:ident: $first:literal),+ $(,)?) => {
        $(
            // SAFETY: repr(C), begins with `struct_size`, and all fields are integers, floats, raw
            // pointers or optional functions.
            unsafe impl Options for $name {
                const NAME: &'static str = stringify!($name);
                const FIRST_SIZE: usize = $first;
            }
        )+
    };
}

sized!(dist_backend_vtable_t: 40, dist_backend_outcome_t: 48);

const _: () = {
    assert!(size_of::<dist_backend_outcome_t>() == 56);
    assert!(size_of::<dist_backend_operation_t>() == 184);
    assert!(size_of::<dist_backend_query_t>() == 24);
    assert!(size_of::<dist_backend_host_t>() == 88);
    assert!(size_of::<dist_backend_setup_t>() == 88);
    assert!(size_of::<dist_backend_created_t>() == 32);
    assert!(size_of::<dist_backend_vtable_t>() == 112);
    assert!(size_of::<dist_backend_plugin_t>() == 40);
};
