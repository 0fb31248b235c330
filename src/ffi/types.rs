//! The types of the C interface. Fields are only ever appended.
#![allow(non_camel_case_types, reason = "C names")]
#![allow(missing_debug_implementations, reason = "incomplete types and plain C structs")]

pub use super::args::DIST_TERMINATED;
pub use super::constants::*;
use super::options::Options;
use std::ffi::{c_char, c_void};

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

/// A message that dist_probe took out of matching. Any thread may use it; owned by the caller, who ends it with
/// dist_recv_message or dist_message_release. It does not keep its group: it ends with it.
#[repr(C)]
pub struct dist_message_t {
    _opaque: [u8; 0],
}

/// Options of dist_init. Zero in a field means its default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_init_options_t {
    /// sizeof(dist_init_options_t).
    pub struct_size: usize,
    /// Which fields with a meaningful zero are set: DIST_FIELD_RANK, DIST_FIELD_DEVICE.
    pub fields: u64,
    /// In any case: "native" (also called "gloo"), "mpi", or the name of a back end that was registered, for host memory, and
    /// by way of it the memory of GPUs where a device is named; "nccl", for the memory of GPUs; or one for each kind of memory, as
    /// "cpu:native,cuda:nccl". NULL or "default" for native, and nccl beside it where a device is named and all ranks have NCCL.
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
    /// Time-out of the world's operations; the default is DIST_TIMEOUT_MS, or 30 minutes. Not DIST_NO_WAIT.
    pub timeout_ms: i64,
    /// Time-out of dist_init; the default is DIST_CONNECT_TIMEOUT_MS, or 5 minutes. Not DIST_NO_WAIT.
    pub connect_timeout_ms: i64,
    /// The world group's name; NULL for "world".
    pub group_name: *const c_char,
    /// What is asked of the back end, "key=value;key=value"; NULL for nothing. The native back end knows
    /// transport=auto|shm|inproc|tcp, slot_bytes=N and heartbeat_ms=N (as DIST_HEARTBEAT_LIMIT_MS), of which those of
    /// rank 0 count, cma=0|1 (as DIST_CMA), and host_id=LABEL: ranks with the same label are on one host, whatever
    /// the truth (for tests). NCCL's part knows nccl.high_priority, nccl.blocking_wait, nccl.windows and nccl.blocking, each
    /// 0 or 1. If native carries the memory of GPUs, staging.chunk_bytes=N is the size of a chunk.
    pub backend_options: *const c_char,
    /// The index of this rank's GPU, with DIST_FIELD_DEVICE in fields. Without it, "nccl" takes the device that is current on
    /// the calling thread. All ranks name one, or none does.
    pub device: i32,
    /// 0.
    pub reserved: i32,
}

/// Options of dist_group_create.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_group_options_t {
    /// sizeof(dist_group_options_t).
    pub struct_size: usize,
    /// Which fields with a meaningful zero are set: DIST_FIELD_RANK, DIST_FIELD_DEVICE.
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
    /// Which ranks of something larger the group's ranks are, in order, as dist_group_ranks gives them: world_size
    /// ranks, none twice, the same on all ranks. NULL where the group is the outermost; borrowed for the call.
    pub global_ranks: *const i32,
    /// The length of `global_ranks`: world_size, or 0 for NULL.
    pub n_global_ranks: usize,
    /// As in dist_init_options_t.
    pub device: i32,
    /// 0.
    pub reserved: i32,
}

/// Options of dist_group_new and dist_group_split.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_group_new_options_t {
    /// sizeof(dist_group_new_options_t).
    pub struct_size: usize,
    /// The new group's name, the same on all ranks that make it: 1 to 200 bytes without "/". NULL for one made from
    /// the parent's name, the ranks (or the color) and a count.
    pub name: *const c_char,
    /// As in dist_init_options_t, the same on all ranks that make the group; NULL for the parent's.
    pub backend: *const c_char,
    /// As in dist_init_options_t; NULL for what was asked for the parent, "" for nothing. What the parent's environment
    /// and tuning file said about algorithms holds also where this is not NULL, but for a tuning_file in it.
    pub backend_options: *const c_char,
    /// Time-out of the group's operations; the default is the parent's. Not DIST_NO_WAIT.
    pub timeout_ms: i64,
    /// Time-out of making the group; the default is DIST_CONNECT_TIMEOUT_MS, or 5 minutes. Not DIST_NO_WAIT.
    pub connect_timeout_ms: i64,
    /// Not 0: only the group's members call dist_group_new. Not for dist_group_split.
    pub use_local_synchronization: i64,
}

/// Options of dist_group_shrink.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_shrink_options_t {
    /// sizeof(dist_shrink_options_t).
    pub struct_size: usize,
    /// How long a rank may take to come before it is excluded; the default is 10 seconds. Not DIST_NO_WAIT. Ranks call
    /// dist_group_shrink at different times, so it should be longer than the time between two calls in the group.
    pub timeout_ms: i64,
    /// Time-out of making the group; the default is DIST_CONNECT_TIMEOUT_MS, or 5 minutes. Not DIST_NO_WAIT.
    pub connect_timeout_ms: i64,
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
    /// Time-out of creating the store, and of calls through its handle; the default is 5 minutes. Not DIST_NO_WAIT.
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
    /// Time-out of creating the store, and of calls through its handle; the default is 5 minutes. Not DIST_NO_WAIT.
    pub timeout_ms: i64,
}

/// Options of one collective call, or of a message.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_call_options_t {
    /// sizeof(dist_call_options_t).
    pub struct_size: usize,
    /// Time-out from the time of issue; the default is the group's. Not DIST_NO_WAIT: a call without time would fail its
    /// group.
    pub timeout_ms: i64,
    /// This rank's factor for DIST_PREMUL_SUM.
    pub premul_scale: f64,
    /// An algorithm by name (dist_group_describe lists them); NULL to let the library choose. All ranks
    /// name the same one.
    pub algorithm: *const c_char,
    /// DIST_CALL_CANONICAL, DIST_CALL_CHECK_NAN, DIST_CALL_CHECK_INF, DIST_CALL_DEVICE, DIST_CALL_SYNCHRONOUS, added up; or 0.
    pub flags: u64,
    /// The stream (CUstream, cudaStream_t) that a call on a GPU's memory is put into: what comes later in it sees the
    /// result. NULL for a stream of the library's, behind what is on the default stream; a call that blocks waits for the
    /// device then. CUDA's own default stream is (void *)1. Where native carries the memory of a GPU, the call begins behind
    /// what is in the stream, and what comes later sees the result only if it is put there once the call has ended.
    pub stream: *mut c_void,
    /// Where the buffers are, with DIST_CALL_DEVICE in flags: the index of the group's GPU on this rank, or
    /// DIST_DEVICE_HOST. Without it, the driver is asked.
    pub device: i32,
    /// 0.
    pub reserved: i32,
    /// The label of the call: UTF-8 of at most DIST_LABEL_BYTES bytes without the terminator,
    /// borrowed for the call; NULL or "" for none. All ranks give the same label to a collective:
    /// the native back end reports different ones with DIST_ERR_MISMATCH. Messages are matched
    /// without it. Errors, the flight recorder, the trace and dist-doctor show it.
    pub label: *const c_char,
}

/// Source, tag, count and type of a message. The library writes it; the caller sets struct_size (DIST_RECV_STATUS_INIT). The library writes
/// as many bytes as struct_size says, and zero to those of fields that it does not know.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_recv_status_t {
    /// sizeof(dist_recv_status_t).
    pub struct_size: usize,
    /// The rank that sent the message.
    pub source: i32,
    /// The tag of the message.
    pub tag: i32,
    /// The number of elements that the message has, which may be fewer than there is room for.
    pub count: usize,
    /// The type of the elements.
    pub dtype: dist_dtype_t,
    /// 0.
    pub reserved: i32,
}

/// Options of dist_spawn.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_spawn_options_t {
    /// sizeof(dist_spawn_options_t).
    pub struct_size: usize,
    /// How long the processes may run together; the default is no limit. Not DIST_NO_WAIT.
    pub join_timeout_ms: i64,
    /// How long they may take from SIGTERM to SIGKILL; the default is 2 seconds. DIST_NO_WAIT kills them at once.
    pub grace_ms: i64,
}

/// The rank that an error names, its fault and its process (dist_work_culprit, dist_group_culprit).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_culprit_t {
    /// sizeof(dist_culprit_t).
    pub struct_size: usize,
    /// Its rank in the group of the failed operation; -1 if the error names no rank.
    pub rank: i32,
    /// How it failed: DIST_CULPRIT_DIED and so on; DIST_CULPRIT_NONE if the error names no rank.
    pub kind: i32,
    /// Its process id on its host; 0 if it is not known.
    pub pid: i64,
    /// Its host, terminated, at most 255 bytes of it; "" if it is not known.
    pub host: [c_char; 256],
}

/// Takes bytes that a caller's own store hands over, valid during the call; `sink_arg` is the pointer that was
/// given with the function.
pub type dist_store_sink_fn =
    Option<unsafe extern "C" fn(sink_arg: *mut c_void, bytes: *const c_void, len_bytes: usize)>;

/// The functions of a caller's own store (dist_store_custom_create): etcd, Redis, a torch store. Each gets
/// the `user` pointer, may be called from any thread, must return within `timeout_ms` (1 or more, or DIST_WAIT_FOREVER),
/// and returns a status. Keys are terminated strings; values are bytes.
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

/// Folds two vectors with a caller-defined operator: `inout[i]` becomes `lower[i]` op `inout[i]`.
///
/// Both have `count` elements of `elem_bytes` bytes. `lower` is the fold of lower ranks' vectors, `inout` the next rank's
/// vector and the result. `user` is the pointer given with the function.
///
/// Both are private memory of the library's, apart from each other. Each begins on a multiple of 64 bytes, or a whole number
/// of elements behind one. The library calls the function on the calling thread or on its own, for different groups at the
/// same time. The function must be associative and depend on nothing but the elements. It must not call libdist, throw or
/// longjmp.
pub type dist_op_fn = Option<
    unsafe extern "C" fn(
        lower: *const c_void,
        inout: *mut c_void,
        count: usize,
        elem_bytes: usize,
        user: *mut c_void,
    ),
>;

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
    dist_group_new_options_t: 56,
    dist_shrink_options_t: 24,
    dist_store_tcp_options_t: 64,
    dist_store_file_options_t: 24,
    dist_call_options_t: 32,
    dist_recv_status_t: 32,
    dist_spawn_options_t: 24,
    dist_store_vtable_t: 64,
    dist_culprit_t: 280,
);

const _: () = {
    assert!(size_of::<dist_init_options_t>() == 88);
    assert!(size_of::<dist_group_options_t>() == 96);
    assert!(size_of::<dist_group_new_options_t>() == 56);
    assert!(size_of::<dist_shrink_options_t>() == 24);
    assert!(size_of::<dist_store_tcp_options_t>() == 80);
    assert!(size_of::<dist_store_file_options_t>() == 24);
    assert!(size_of::<dist_call_options_t>() == 64);
    assert!(size_of::<dist_recv_status_t>() == 32);
    assert!(size_of::<dist_spawn_options_t>() == 24);
    assert!(size_of::<dist_store_vtable_t>() == 120);
    assert!(size_of::<dist_culprit_t>() == 280);
};
