//! The types and constants of the C interface.
//!
//! Numbers are never reused, and fields only ever appended.
#![allow(non_camel_case_types, reason = "C names")]
#![allow(missing_debug_implementations, reason = "incomplete types and plain C structs")]

use super::options::Options;
use std::ffi::{c_char, c_void};

/// The outcome of a call: DIST_OK, DIST_IN_PROGRESS, or a negative error.
///
/// Errors -1 to -99 are mistakes of the caller, and nothing has changed. -100 to -199 concern peers and
/// time; a collective that returns one has failed its group. -200 to -299 concern the system or a back
/// end. -300 is a defect of the library.
pub type dist_status_t = i32;
/// Success.
pub const DIST_OK: dist_status_t = 0;
/// A wait has expired and the work goes on.
pub const DIST_IN_PROGRESS: dist_status_t = 1;
/// An argument is out of range, NULL where that is not allowed, or contradicts another.
pub const DIST_ERR_INVALID_ARGUMENT: dist_status_t = -1;
/// A handle that was never made, was released, or is of another type.
pub const DIST_ERR_INVALID_HANDLE: dist_status_t = -2;
/// dist_init has not been called, dist_finalize has, or this is a forked child.
pub const DIST_ERR_NOT_INITIALIZED: dist_status_t = -3;
/// dist_init was called twice.
pub const DIST_ERR_ALREADY_INITIALIZED: dist_status_t = -4;
/// The combination asked for does not exist; the message names it.
pub const DIST_ERR_UNSUPPORTED: dist_status_t = -5;
/// The key or name does not exist.
pub const DIST_ERR_NOT_FOUND: dist_status_t = -6;
/// A queue was empty and the caller did not want to wait.
pub const DIST_ERR_QUEUE_EMPTY: dist_status_t = -7;
/// A counter operation met a value that is not a number; the value is unchanged.
pub const DIST_ERR_NOT_A_NUMBER: dist_status_t = -8;
/// The deadline of the operation passed; the message names who was missing.
pub const DIST_ERR_TIMEOUT: dist_status_t = -100;
/// Another rank died or left; the message names it and what it was doing.
pub const DIST_ERR_PEER_FAILED: dist_status_t = -101;
/// Ranks called different operations or with different arguments; the message describes both.
pub const DIST_ERR_MISMATCH: dist_status_t = -102;
/// Somebody aborted the group; the message has the reason.
pub const DIST_ERR_ABORTED: dist_status_t = -103;
/// The store or a peer cannot be reached, or broke the connection.
pub const DIST_ERR_CONNECTION: dist_status_t = -104;
/// A peer could not prove that it belongs to this job.
pub const DIST_ERR_AUTH: dist_status_t = -105;
/// Memory, or another limited resource of the host, is exhausted.
pub const DIST_ERR_OUT_OF_MEMORY: dist_status_t = -200;
/// The operating system refused a call.
pub const DIST_ERR_SYSTEM: dist_status_t = -201;
/// A back end, or a caller's own store, reported an error.
pub const DIST_ERR_BACKEND: dist_status_t = -202;
/// A defect of the library.
pub const DIST_ERR_INTERNAL: dist_status_t = -300;

/// The type of one element.
pub type dist_dtype_t = i32;
/// Signed, 8 bits.
pub const DIST_I8: dist_dtype_t = 0;
/// Unsigned, 8 bits.
pub const DIST_U8: dist_dtype_t = 1;
/// Signed, 16 bits.
pub const DIST_I16: dist_dtype_t = 2;
/// Unsigned, 16 bits.
pub const DIST_U16: dist_dtype_t = 3;
/// Signed, 32 bits.
pub const DIST_I32: dist_dtype_t = 4;
/// Unsigned, 32 bits.
pub const DIST_U32: dist_dtype_t = 5;
/// Signed, 64 bits.
pub const DIST_I64: dist_dtype_t = 6;
/// Unsigned, 64 bits.
pub const DIST_U64: dist_dtype_t = 7;
/// IEEE half precision.
pub const DIST_F16: dist_dtype_t = 8;
/// The upper half of an IEEE single.
pub const DIST_BF16: dist_dtype_t = 9;
/// IEEE single precision.
pub const DIST_F32: dist_dtype_t = 10;
/// IEEE double precision.
pub const DIST_F64: dist_dtype_t = 11;
/// Two singles: real, imaginary.
pub const DIST_C64: dist_dtype_t = 12;
/// Two doubles: real, imaginary.
pub const DIST_C128: dist_dtype_t = 13;
/// One byte; every value but 0 is true.
pub const DIST_BOOL: dist_dtype_t = 14;
/// 8 bits: 4 of exponent, 3 of mantissa, no infinities.
pub const DIST_F8E4M3: dist_dtype_t = 15;
/// 8 bits: 5 of exponent, 2 of mantissa.
pub const DIST_F8E5M2: dist_dtype_t = 16;

/// How elements of different ranks become one. Integers wrap; f16, bf16 and f8 are folded in single
/// precision and rounded once per host, and once more for each step between hosts.
pub type dist_op_t = i32;
/// The sum; of bools, or.
pub const DIST_SUM: dist_op_t = 0;
/// The product; of bools, and. Not for complex numbers.
pub const DIST_PRODUCT: dist_op_t = 1;
/// The smallest; NaN wins. Not for complex numbers.
pub const DIST_MIN: dist_op_t = 2;
/// The largest; NaN wins. Not for complex numbers.
pub const DIST_MAX: dist_op_t = 3;
/// The sum divided by the number of ranks; of integers, the wrapped sum rounded towards zero. Not for
/// bools.
pub const DIST_AVG: dist_op_t = 4;
/// Bitwise and. Not for floating point.
pub const DIST_BAND: dist_op_t = 5;
/// Bitwise or. Not for floating point.
pub const DIST_BOR: dist_op_t = 6;
/// Bitwise exclusive or. Not for floating point.
pub const DIST_BXOR: dist_op_t = 7;
/// The sum of each rank's elements times its own premul_scale. Only for floating point.
pub const DIST_PREMUL_SUM: dist_op_t = 8;

/// A time-out that never comes.
pub const DIST_WAIT_FOREVER: i64 = -1;
/// No time at all, for waits that only look.
pub const DIST_NO_WAIT: i64 = -2;

/// In place of a rank: whoever sends (dist_recv).
pub const DIST_ANY_SOURCE: i32 = -1;
/// In place of a tag: any (dist_recv).
pub const DIST_ANY_TAG: i32 = -1;
/// In place of the index of a device: host memory.
pub const DIST_DEVICE_HOST: i32 = -1;

/// Nothing is logged; the default.
pub const DIST_LOG_OFF: i32 = 0;
/// Failures that no return value can tell.
pub const DIST_LOG_ERROR: i32 = 1;
/// And what is unusual: long waits, dropped peers.
pub const DIST_LOG_WARN: i32 = 2;
/// And what was chosen, and why.
pub const DIST_LOG_INFO: i32 = 3;
/// And every step.
pub const DIST_LOG_DEBUG: i32 = 4;

/// In `fields`: `rank` is set.
pub const DIST_FIELD_RANK: u64 = 1;
/// In `fields`: `listen_fd` is set.
pub const DIST_FIELD_LISTEN_FD: u64 = 2;
/// In `fields`: `wait_for_workers` is set.
pub const DIST_FIELD_WAIT_FOR_WORKERS: u64 = 4;

/// A group of ranks. Any thread may use it; owned by the caller, released with dist_group_release.
#[repr(C)]
pub struct dist_group_t {
    _opaque: [u8; 0],
}

/// A key-value store. Any thread may use it; owned by the caller, released with dist_store_release.
#[repr(C)]
pub struct dist_store_t {
    _opaque: [u8; 0],
}

/// A list of byte strings that the library made. Any thread may use it; owned by the caller, released
/// with dist_blob_release.
#[repr(C)]
pub struct dist_blob_t {
    _opaque: [u8; 0],
}

/// An operation that was issued and that may still be under way. Any thread may use it; owned by the caller, released
/// with dist_work_release. It outlives its group and keeps its outcome until it is released.
#[repr(C)]
pub struct dist_work_t {
    _opaque: [u8; 0],
}

/// Options of dist_init. Zero in a field means its default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_init_options_t {
    /// sizeof(dist_init_options_t).
    pub struct_size: usize,
    /// Which fields with a meaningful zero are set: DIST_FIELD_RANK.
    pub fields: u64,
    /// "native" (also called "gloo"), in any case; NULL for native.
    pub backend: *const c_char,
    /// "env://", "tcp://host:port?rank=R&world_size=N", or "file:///path?rank=R&world_size=N" with a file that all
    /// ranks reach and that no other job uses; NULL for env://. In a file's path, %XX is the byte of that
    /// hexadecimal number. What the URL does not say of rank and size comes from rank and world_size or the environment.
    pub init_method: *const c_char,
    /// A store to meet in, instead of init_method; borrowed for the call.
    pub store: *const dist_store_t,
    /// This process's rank, with DIST_FIELD_RANK in fields.
    pub rank: i32,
    /// The number of ranks; 0 to take it from init_method or the environment.
    pub world_size: i32,
    /// Deadline of operations in milliseconds; 0 for DIST_TIMEOUT_MS or 30 minutes.
    pub timeout_ms: i64,
    /// Deadline of dist_init in milliseconds; 0 for DIST_CONNECT_TIMEOUT_MS or 5 minutes.
    pub connect_timeout_ms: i64,
    /// The world group's name; NULL for "world".
    pub group_name: *const c_char,
    /// What is asked of the back end, "key=value;key=value"; NULL for nothing. The native back end knows
    /// transport=auto|shm|inproc|tcp and slot_bytes=N, of which those of rank 0 count, and host_id=LABEL: ranks with
    /// the same label are on one host, whatever the truth (for tests).
    pub backend_options: *const c_char,
}

/// Options of dist_group_create.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_group_options_t {
    /// sizeof(dist_group_options_t).
    pub struct_size: usize,
    /// Which fields with a meaningful zero are set: DIST_FIELD_RANK.
    pub fields: u64,
    /// Where the ranks meet; required, borrowed for the call.
    pub store: *const dist_store_t,
    /// This rank, with DIST_FIELD_RANK in fields; required.
    pub rank: i32,
    /// The number of ranks; required.
    pub world_size: i32,
    /// As in dist_init_options_t.
    pub backend: *const c_char,
    /// The group's name, the same on all its ranks; required. Two groups that are alive at once in one
    /// store need different names.
    pub name: *const c_char,
    /// As in dist_init_options_t.
    pub timeout_ms: i64,
    /// As in dist_init_options_t.
    pub connect_timeout_ms: i64,
    /// As in dist_init_options_t.
    pub backend_options: *const c_char,
}

/// Options of dist_store_tcp_create.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_store_tcp_options_t {
    /// sizeof(dist_store_tcp_options_t).
    pub struct_size: usize,
    /// Which fields with a meaningful zero are set: DIST_FIELD_LISTEN_FD, DIST_FIELD_WAIT_FOR_WORKERS.
    pub fields: u64,
    /// The host of the server; required.
    pub host: *const c_char,
    /// The port of the server; for a server, 0 takes a free one (see dist_store_port).
    pub port: i32,
    /// Not 0: this process runs the server, and is its first client.
    pub is_server: i32,
    /// The number of clients that will come; 0 where that is not known.
    pub world_size: i32,
    /// Where this process runs the server and world_size is set: not 0 waits until all clients have
    /// come. Without DIST_FIELD_WAIT_FOR_WORKERS, as if it were 1.
    pub wait_for_workers: i32,
    /// A listening TCP socket for the server, with DIST_FIELD_LISTEN_FD; the store owns it from then on.
    pub listen_fd: i32,
    /// Not 0: stores of this process with the same port share one server.
    pub multi_tenant: i32,
    /// Deadline of creating, and default deadline of calls, in milliseconds; 0 for 5 minutes.
    pub timeout_ms: i64,
    /// The address that the server listens on; NULL for `host`, "" for all interfaces.
    pub bind_address: *const c_char,
    /// A secret that server and clients must share, 1 to 4096 bytes, borrowed for the call: each side proves to
    /// the other that it knows it before anything else. NULL for none, as with torch's stores. The
    /// environment's (DIST_STORE_SECRET_FILE) is dist_init's alone.
    pub secret: *const c_void,
    /// The length of `secret`.
    pub secret_len_bytes: usize,
}

/// Options of dist_store_file_create.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_store_file_options_t {
    /// sizeof(dist_store_file_options_t).
    pub struct_size: usize,
    /// The name of the job, the same for all processes of it: a file of another job is refused. NULL for none.
    pub job_id: *const c_char,
    /// Deadline of creating, and default deadline of calls, in milliseconds; 0 for 5 minutes.
    pub timeout_ms: i64,
}

/// Options of one collective call, or of a message.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_call_options_t {
    /// sizeof(dist_call_options_t).
    pub struct_size: usize,
    /// Deadline in milliseconds from the time of issue; 0 for the group's, DIST_WAIT_FOREVER for none.
    pub timeout_ms: i64,
    /// This rank's factor for DIST_PREMUL_SUM.
    pub premul_scale: f64,
    /// An algorithm by name (dist_group_describe lists them); NULL to let the library choose. All ranks
    /// name the same one.
    pub algorithm: *const c_char,
}

/// Options of dist_spawn.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_spawn_options_t {
    /// sizeof(dist_spawn_options_t).
    pub struct_size: usize,
    /// How long the processes may run together in milliseconds; 0 or DIST_WAIT_FOREVER for no limit.
    pub join_timeout_ms: i64,
    /// How long they may take from SIGTERM to SIGKILL in milliseconds; 0 for 2 seconds, DIST_WAIT_FOREVER for ever.
    pub grace_ms: i64,
}

/// Takes bytes that a caller's own store hands over, valid during the call; `sink_arg` is the pointer that was
/// given with the function.
pub type dist_store_sink_fn =
    Option<unsafe extern "C" fn(sink_arg: *mut c_void, bytes: *const c_void, len_bytes: usize)>;

/// The functions of a caller's own store (dist_store_custom_create): etcd, Redis, a torch store. Each gets
/// the `user` pointer, may be called from any thread, must return within `timeout_ms`, and returns a
/// status. Keys are terminated strings; values are bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_store_vtable_t {
    /// sizeof(dist_store_vtable_t).
    pub struct_size: usize,
    /// Stores a value; required.
    pub set: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            key: *const c_char,
            value: *const c_void,
            len_bytes: usize,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Waits until the key exists, then hands its value to `sink(sink_arg, ...)`, once, before
    /// it returns; required.
    pub get: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            key: *const c_char,
            sink: dist_store_sink_fn,
            sink_arg: *mut c_void,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Adds to a counter (a missing one is 0) kept as decimal text, and writes the sum; required.
    pub add: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            key: *const c_char,
            amount: i64,
            result: *mut i64,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Waits until all keys exist, or returns DIST_ERR_TIMEOUT; required.
    pub wait: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            keys: *const *const c_char,
            n: usize,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Writes 1 if all keys exist, else 0, without waiting; required.
    pub check: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            keys: *const *const c_char,
            n: usize,
            all_present: *mut i32,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Removes a key, and writes whether it was there; required.
    pub delete_key: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            key: *const c_char,
            deleted: *mut i32,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Called once when the last user of the store has gone; optional.
    pub destroy: Option<unsafe extern "C" fn(user: *mut c_void)>,
    /// Stores `desired` if the value is `expected`, or if there is none and `expected` is empty, and hands the
    /// value after that (for a missing key and an `expected` that is not empty: `expected`) to the sink, once;
    /// optional.
    pub compare_set: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            key: *const c_char,
            expected: *const c_void,
            expected_len_bytes: usize,
            desired: *const c_void,
            desired_len_bytes: usize,
            sink: dist_store_sink_fn,
            sink_arg: *mut c_void,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Adds bytes to the end of a value, which is made if it is missing; optional.
    pub append: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            key: *const c_char,
            value: *const c_void,
            len_bytes: usize,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Writes the number of keys; optional.
    pub num_keys: Option<
        unsafe extern "C" fn(user: *mut c_void, result: *mut i64, timeout_ms: i64) -> dist_status_t,
    >,
    /// Hands each key to the sink, before it returns; optional.
    pub list_keys: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            sink: dist_store_sink_fn,
            sink_arg: *mut c_void,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Adds an item to the end of a queue; optional. Without all three queue functions, queues are composed of
    /// keys.
    pub queue_push: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            queue: *const c_char,
            item: *const c_void,
            len_bytes: usize,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Takes the first item of a queue and hands it to the sink, once. Where there is none, waits for one if
    /// `block` is not 0, else returns DIST_ERR_QUEUE_EMPTY; optional.
    pub queue_pop: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            queue: *const c_char,
            block: i32,
            sink: dist_store_sink_fn,
            sink_arg: *mut c_void,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Writes the number of items in a queue; optional.
    pub queue_len: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            queue: *const c_char,
            result: *mut i64,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
}

/// Told the outcome of a work: DIST_OK or the error, its message ("" for DIST_OK; valid during the call), and the
/// pointer given with the function. Called on a thread of the library, one such function at a time; must not throw,
/// and must not make calls that block (see dist_work_on_complete).
pub type dist_work_fn =
    Option<unsafe extern "C" fn(status: dist_status_t, message: *const c_char, user: *mut c_void)>;

/// What one of the processes of dist_spawn runs: its rank, and the pointer given with the function. Returns 0 for success.
/// Must return (or end its process) and must not throw.
pub type dist_spawn_fn = Option<unsafe extern "C" fn(rank: i32, arg: *mut c_void) -> i32>;

/// Receives log lines: a level, a terminated line without its end (valid during the call), and the pointer
/// given with the function. Called from any thread; must not call libdist.
pub type dist_log_fn =
    Option<unsafe extern "C" fn(level: i32, line: *const c_char, user: *mut c_void)>;

/// Each with the size of its first version.
macro_rules! options {
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

options!(
    dist_init_options_t: 80,
    dist_group_options_t: 72,
    dist_store_tcp_options_t: 64,
    dist_store_file_options_t: 24,
    dist_call_options_t: 32,
    dist_spawn_options_t: 24,
    dist_store_vtable_t: 64,
);

const _: () = {
    assert!(size_of::<dist_init_options_t>() == 80);
    assert!(size_of::<dist_group_options_t>() == 72);
    assert!(size_of::<dist_store_tcp_options_t>() == 80);
    assert!(size_of::<dist_store_file_options_t>() == 24);
    assert!(size_of::<dist_call_options_t>() == 32);
    assert!(size_of::<dist_spawn_options_t>() == 24);
    assert!(size_of::<dist_store_vtable_t>() == 120);
};
