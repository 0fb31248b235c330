//! The types of the C interface. New versions only append fields.
#![allow(non_camel_case_types, reason = "C names")]
#![allow(missing_debug_implementations, reason = "incomplete types and plain C structs")]

pub use super::args::DIST_TERMINATED;
pub use super::constants::*;
use super::sized_struct::sized_structs;
pub use super::store_types::*;
use std::ffi::{c_char, c_void};

/// A group of ranks.
///
/// Owned by the caller, released with dist_group_release. Any thread may use it.
#[repr(C)]
pub struct dist_group_t {
    _opaque: [u8; 0],
}

/// A key-value store.
///
/// Owned by the caller, released with dist_store_release. Any thread may use it.
#[repr(C)]
pub struct dist_store_t {
    _opaque: [u8; 0],
}

/// A list of byte strings that the library returns.
///
/// Owned by the caller, released with dist_blob_release. Any thread may use it.
#[repr(C)]
pub struct dist_blob_t {
    _opaque: [u8; 0],
}

/// An issued operation, with its progress and outcome.
///
/// Owned by the caller, released with dist_work_release. Any thread may use it. A work may outlive
/// its group, and keeps its outcome until its release.
#[repr(C)]
pub struct dist_work_t {
    _opaque: [u8; 0],
}

/// A message that dist_probe removed from matching.
///
/// Owned by the caller, who passes it to dist_recv_message or dist_message_release. Any thread may
/// use it. The message does not keep its group alive: when the group ends, the message is lost.
#[repr(C)]
pub struct dist_message_t {
    _opaque: [u8; 0],
}

/// Options of dist_init.
///
/// Zero in a field means the default of the field.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_init_options_t {
    /// sizeof(dist_init_options_t).
    pub struct_size: usize,
    /// The set fields with a meaningful zero: DIST_FIELD_RANK, DIST_FIELD_DEVICE.
    pub fields: u64,
    /// The back end; case does not count.
    ///
    /// - "native" (or "gloo"), "mpi" and registered names serve host memory. If `device` is set,
    ///   they also serve the memory of that GPU.
    /// - "nccl" serves GPU memory.
    /// - "cpu:native,cuda:nccl" names one back end for each kind of memory; "cpu:native" names one
    ///   for host memory only.
    /// - "inside=nccl,between=native" names one back end inside each host and one between hosts.
    /// - NULL or "default" selects native. If `device` is set and all ranks have NCCL, it also
    ///   selects nccl.
    pub backend: *const c_char,
    /// How the ranks find each other; NULL for env://.
    ///
    /// - "env://" reads the environment variables of the launcher.
    /// - "tcp://host:port?rank=R&world_size=N" uses a TCP store at this address.
    /// - "file:///path?rank=R&world_size=N" uses a file that all ranks can access and that no other
    ///   job uses. In the path, %XX is the byte with this hexadecimal number.
    ///
    /// If the URL has no rank or size, they come from the fields `rank` and `world_size` or from
    /// the environment.
    pub init_method: *const c_char,
    /// The store through which the ranks find each other, in place of init_method; borrowed for the
    /// call.
    pub store: *const dist_store_t,
    /// The rank of this process; needs DIST_FIELD_RANK in `fields`.
    pub rank: i32,
    /// The number of ranks; 0 to take the number from init_method or the environment.
    pub world_size: i32,
    /// Time-out of operations in the world group; the default is DIST_TIMEOUT_MS, or 30 minutes.
    /// DIST_NO_WAIT is refused.
    pub timeout_ms: i64,
    /// Time-out of dist_init; the default is DIST_CONNECT_TIMEOUT_MS, or 5 minutes. DIST_NO_WAIT is
    /// refused.
    pub connect_timeout_ms: i64,
    /// The name of the world group; NULL for "world".
    pub group_name: *const c_char,
    /// Options of the back end, "key=value;key=value"; NULL for none.
    ///
    /// The native back end uses rank 0's values of transport=auto|shm|inproc|tcp, slot_bytes=N,
    /// heartbeat_ms=N (as DIST_HEARTBEAT_LIMIT_MS), algorithm=LIST (as DIST_ALGORITHM) and
    /// tuning_file=PATH (as DIST_TUNING_FILE). It also accepts cma=0|1 (as DIST_CMA) and, for GPU
    /// memory, staging.chunk_bytes=N, the size of a chunk. For tests it accepts host_id=LABEL:
    /// ranks with the same label count as ranks of one host.
    ///
    /// The NCCL back end accepts nccl.high_priority, nccl.blocking_wait, nccl.windows and
    /// nccl.blocking, each 0 or 1.
    pub backend_options: *const c_char,
    /// The index of this rank's GPU; needs DIST_FIELD_DEVICE in `fields`. Without this bit, "nccl"
    /// uses the current device of the calling thread. Either all ranks set a device, or no rank
    /// does.
    pub device: i32,
    /// Must be 0.
    pub reserved: i32,
}

/// Options of dist_group_create.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_group_options_t {
    /// sizeof(dist_group_options_t).
    pub struct_size: usize,
    /// The set fields with a meaningful zero: DIST_FIELD_RANK, DIST_FIELD_DEVICE.
    pub fields: u64,
    /// The store through which the ranks find each other; required, borrowed for the call.
    pub store: *const dist_store_t,
    /// The rank of the caller in the new group; required, needs DIST_FIELD_RANK in `fields`.
    pub rank: i32,
    /// The number of ranks; required.
    pub world_size: i32,
    /// As in dist_init_options_t.
    pub backend: *const c_char,
    /// The name of the group, the same on all its ranks; required. Two groups that exist at the
    /// same time in one store need different names.
    pub name: *const c_char,
    /// As in dist_init_options_t.
    pub timeout_ms: i64,
    /// As in dist_init_options_t.
    pub connect_timeout_ms: i64,
    /// As in dist_init_options_t.
    pub backend_options: *const c_char,
    /// The ranks of the new group's members in the surrounding group: `world_size` numbers, in the
    /// order of the new ranks (dist_group_ranks). No rank appears twice, and all ranks pass the
    /// same list. NULL if the new group is the outermost; borrowed for the call.
    pub global_ranks: *const i32,
    /// The length of `global_ranks`: world_size, or 0 for NULL.
    pub n_global_ranks: usize,
    /// As in dist_init_options_t.
    pub device: i32,
    /// Must be 0.
    pub reserved: i32,
}

/// Options of dist_group_new and dist_group_split.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_group_new_options_t {
    /// sizeof(dist_group_new_options_t).
    pub struct_size: usize,
    /// The name of the new group, the same on all its ranks: 1 to 200 bytes without "/". NULL for a
    /// name made from the parent's name, the ranks (or the color) and a count.
    pub name: *const c_char,
    /// As in dist_init_options_t, the same on all ranks of the new group; NULL for the parent's
    /// back end.
    pub backend: *const c_char,
    /// As in dist_init_options_t. NULL for the options of the parent group, "" for none.
    ///
    /// Even with other options, the parent's DIST_ALGORITHM applies. The parent's tuning file also
    /// applies, unless these options have a tuning_file.
    pub backend_options: *const c_char,
    /// Time-out of operations in the new group; the default is the parent's. DIST_NO_WAIT is
    /// refused.
    pub timeout_ms: i64,
    /// Time-out of creating the group; the default is DIST_CONNECT_TIMEOUT_MS, or 5 minutes.
    /// DIST_NO_WAIT is refused.
    pub connect_timeout_ms: i64,
    /// Not 0: only the members of the new group call dist_group_new. Not allowed for
    /// dist_group_split.
    pub use_local_synchronization: i64,
}

/// Options of dist_group_shrink.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_shrink_options_t {
    /// sizeof(dist_shrink_options_t).
    pub struct_size: usize,
    /// The time within which each rank must call dist_group_shrink; the other ranks exclude a rank
    /// that calls later. The default is 10 seconds. DIST_NO_WAIT is refused. Ranks call at
    /// different times: choose more than the time between two calls in the group.
    pub timeout_ms: i64,
    /// Time-out of creating the group; the default is DIST_CONNECT_TIMEOUT_MS, or 5 minutes.
    /// DIST_NO_WAIT is refused.
    pub connect_timeout_ms: i64,
}

/// Options of dist_store_tcp_create.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_store_tcp_options_t {
    /// sizeof(dist_store_tcp_options_t).
    pub struct_size: usize,
    /// The set fields with a meaningful zero: DIST_FIELD_LISTEN_FD, DIST_FIELD_WAIT_FOR_WORKERS.
    pub fields: u64,
    /// The host of the server; required.
    pub host: *const c_char,
    /// The port of the server, 0 to 65535. With 0, a server uses a free port (dist_store_port).
    pub port: i32,
    /// Not 0: this process runs the server and is its first client.
    pub is_server: i32,
    /// The number of clients; 0 if the number is not known.
    pub world_size: i32,
    /// Not 0: a server whose `world_size` is set waits until all clients have connected. Without
    /// DIST_FIELD_WAIT_FOR_WORKERS, the default is 1.
    pub wait_for_workers: i32,
    /// A listening TCP socket for the server; needs DIST_FIELD_LISTEN_FD in `fields`. The library
    /// takes ownership.
    pub listen_fd: i32,
    /// Not 0: stores of this process with the same port share one server.
    pub multi_tenant: i32,
    /// Time-out of creating the store and of calls through its handle; the default is 5 minutes.
    /// DIST_NO_WAIT is refused.
    pub timeout_ms: i64,
    /// The address on which the server listens; NULL for `host`, "" for all interfaces.
    pub bind_address: *const c_char,
    /// A secret of 1 to 4096 bytes that server and clients share; borrowed for the call. NULL for
    /// none, as with torch's stores. Before other messages, each side proves that it knows the
    /// secret. Only dist_init reads DIST_STORE_SECRET_FILE.
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
    /// The name of the job, the same for all its processes; NULL for none. The file of a job with
    /// another name is refused.
    pub job_id: *const c_char,
    /// Time-out of creating the store and of calls through its handle; the default is 5 minutes.
    /// DIST_NO_WAIT is refused.
    pub timeout_ms: i64,
}

/// Options of one collective call or of one message.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_call_options_t {
    /// sizeof(dist_call_options_t).
    pub struct_size: usize,
    /// Time-out from the time of issue; the default is the group's. Only dist_probe accepts
    /// DIST_NO_WAIT, because any other call with this time-out would fail its group.
    pub timeout_ms: i64,
    /// The factor of this rank for DIST_PREMUL_SUM.
    pub premul_scale: f64,
    /// The name of an algorithm (dist_group_describe lists the names), the same on all ranks. NULL:
    /// the library chooses.
    pub algorithm: *const c_char,
    /// The sum of DIST_CALL_ constants; or 0.
    pub flags: u64,
    /// The stream (CUstream, cudaStream_t) of a call on GPU memory. Later work in the stream sees
    /// the result.
    ///
    /// NULL selects a stream of the library: the operation runs after the work on the default
    /// stream, and a blocking call then waits for the device. (void *)1 is CUDA's own default
    /// stream.
    ///
    /// If the native back end serves the GPU's memory, the call starts after the work that is
    /// already in the stream. Only work that is put into the stream after the end of the call sees
    /// the result.
    pub stream: *mut c_void,
    /// The location of the buffers, with DIST_CALL_DEVICE in `flags`: the index of the group's GPU
    /// on this rank, or DIST_DEVICE_HOST. Without the flag, the library queries the driver.
    pub device: i32,
    /// Must be 0.
    pub reserved: i32,
    /// The label of the call: UTF-8 of at most DIST_LABEL_BYTES bytes without the terminator;
    /// borrowed for the call; NULL or "" for none.
    ///
    /// All ranks pass the same label to a collective: the native back end reports different labels
    /// with DIST_ERR_MISMATCH. Labels do not affect the matching of messages. Errors, the flight
    /// recorder, the trace and dist-doctor show the label.
    pub label: *const c_char,
}

/// Describes a tensor of a list. Its elements are contiguous.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_tensor_t {
    /// sizeof(dist_tensor_t).
    pub struct_size: usize,
    /// The set fields with a meaningful zero: DIST_FIELD_DEVICE.
    pub fields: u64,
    /// The name: UTF-8 of at most 255 bytes without the terminator; required, and may be "".
    /// Several tensors may have the same name.
    pub name: *const c_char,
    /// The elements, as many as `shape` has; NULL only if there are none.
    pub data: *mut c_void,
    /// The extent of each dimension; NULL only if `n_shape` is 0.
    pub shape: *const i64,
    /// The number of dimensions, at most 64. A tensor with 0 dimensions has one element.
    pub n_shape: usize,
    /// The type of the elements.
    pub dtype: dist_dtype_t,
    /// The index of the group's GPU on this rank, if DIST_FIELD_DEVICE is in `fields`: the elements
    /// are in its memory. Otherwise the elements are in host memory.
    pub device: i32,
}

/// Source, tag, count and type of a received message.
///
/// The caller sets struct_size (DIST_RECV_STATUS_INIT), and the library writes the other fields. It
/// writes struct_size bytes in all; fields that only a newer version knows become zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_recv_status_t {
    /// sizeof(dist_recv_status_t).
    pub struct_size: usize,
    /// The rank that sent the message.
    pub source: i32,
    /// The tag of the message.
    pub tag: i32,
    /// The number of elements in the message, which may be smaller than the buffer.
    pub count: usize,
    /// The type of the elements.
    pub dtype: dist_dtype_t,
    /// The library writes 0.
    pub reserved: i32,
}

/// Options of dist_spawn.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_spawn_options_t {
    /// sizeof(dist_spawn_options_t).
    pub struct_size: usize,
    /// Time-out for all processes together; the default is no limit. DIST_NO_WAIT is refused.
    pub join_timeout_ms: i64,
    /// Time from SIGTERM to SIGKILL; the default is 2 seconds. With DIST_NO_WAIT, SIGKILL follows
    /// immediately.
    pub grace_ms: i64,
}

/// The rank that an error blames, its fault and its process (dist_work_culprit,
/// dist_group_culprit).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_culprit_t {
    /// sizeof(dist_culprit_t).
    pub struct_size: usize,
    /// The rank in the group of the failed operation; -1 if the error names no rank.
    pub rank: i32,
    /// The kind of failure, a DIST_CULPRIT_ constant; DIST_CULPRIT_NONE if the error names no rank.
    pub kind: i32,
    /// The process id of the rank on its host; 0 if the id is not known.
    pub pid: i64,
    /// The name of the rank's host, terminated, at most 255 bytes; "" if the name is not known.
    pub host: [c_char; 256],
}

/// Receives the outcome of a work.
///
/// `status` is DIST_OK or the error. `message` is the error's text ("" for DIST_OK), borrowed for
/// the call. `user` is the pointer that the caller passed together with the function. The library
/// calls these functions one after the other, on a thread of its own. The function must not throw
/// and must not make calls that block (dist_work_on_complete).
pub type dist_work_fn =
    Option<unsafe extern "C" fn(status: dist_status_t, message: *const c_char, user: *mut c_void)>;

/// The function that each process of dist_spawn runs.
///
/// `rank` is the rank of the process. `arg` is the pointer that the caller passed together with the
/// function. The function returns 0 for success. It must return or end its process, and must not
/// throw.
pub type dist_spawn_fn = Option<unsafe extern "C" fn(rank: i32, arg: *mut c_void) -> i32>;

/// Reduces two vectors with a caller-defined operator: `inout[i]` becomes `lower[i]` op `inout[i]`.
///
/// Both vectors have `count` elements of `elem_bytes` bytes. `lower` is the reduction of the
/// vectors of lower ranks. `inout` is the vector of the next rank, and receives the result. `user`
/// is the pointer that the caller passed together with the function.
///
/// The vectors are private memory of the library and do not overlap. Each vector starts at a
/// multiple of 64 bytes, or a whole number of elements after such a multiple. The library calls the
/// function on the calling thread or on its own threads, for different groups at the same time. The
/// function must be associative, and its result must depend on the elements only. It must not call
/// libdist, throw or longjmp.
pub type dist_op_fn = Option<
    unsafe extern "C" fn(
        lower: *const c_void,
        inout: *mut c_void,
        count: usize,
        elem_bytes: usize,
        user: *mut c_void,
    ),
>;

/// Receives log lines.
///
/// `level` is a DIST_LOG_ constant. `line` is a terminated string without the line end, borrowed
/// for the call. `user` is the pointer that the caller passed together with the function. Any
/// thread may call the function, which must not call libdist.
pub type dist_log_fn =
    Option<unsafe extern "C" fn(level: i32, line: *const c_char, user: *mut c_void)>;

sized_structs! {
    dist_init_options_t: 80, 88;
    dist_group_options_t: 72, 96;
    dist_group_new_options_t: 56, 56;
    dist_shrink_options_t: 24, 24;
    dist_store_tcp_options_t: 64, 80;
    dist_store_file_options_t: 24, 24;
    dist_call_options_t: 32, 64;
    dist_tensor_t: 56, 56;
    dist_recv_status_t: 32, 32;
    dist_spawn_options_t: 24, 24;
    dist_culprit_t: 280, 280;
}
