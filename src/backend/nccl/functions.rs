//! NCCL's functions and types, as its binary interface has them. Facts of a public interface,
//! written by hand and held against the stub library's declarations by running.

use crate::device::driver::Handle;
use crate::sys::library::function_table;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// What its functions return.
pub(super) type Code = c_int;
pub(super) const SUCCESS: Code = 0;
pub(super) const SYSTEM_ERROR: Code = 2;
pub(super) const REMOTE_ERROR: Code = 6;
pub(super) const IN_PROGRESS: Code = 7;

/// A communicator, as NCCL calls it: a pointer of its own, which is never followed. 0 is none.
pub(super) type CommHandle = usize;

/// The scalar of an operator lies in host memory and is read at once.
pub(super) const SCALAR_AT_ONCE: c_int = 1;

/// All ranks register a window together, and use it in the same way.
pub(super) const SYMMETRIC: c_int = 1;

/// What the ranks of a communicator find each other by.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct UniqueId(pub(super) [u8; Self::BYTES]);

impl UniqueId {
    pub(super) const BYTES: usize = 128;
}

/// How a communicator is made. Fields beyond `size` are not there for the library.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    traffic_class: c_int,
    comm_name: *const c_char,
    collnet_enable: c_int,
    cta_policy: c_int,
    shrink_share: c_int,
    nvls_ctas: c_int,
}

const _: () = assert!(size_of::<Config>() == 72);

const MAGIC: c_uint = 0xcafe_beef;
const UNDEFINED: c_int = c_int::MIN;

impl Config {
    /// For a communicator whose calls may block, or else return at once, in the form that a library
    /// of this version knows.
    pub(super) fn new(library_version: i32, may_block: bool) -> Self {
        let (size, version) = match library_version {
            22_700.. => (72, 22_700),
            21_700.. => (48, 21_700),
            _ => (24, 21_400),
        };
        Self {
            size,
            magic: MAGIC,
            version,
            blocking: c_int::from(may_block),
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
            traffic_class: UNDEFINED,
            comm_name: std::ptr::null(),
            collnet_enable: UNDEFINED,
            cta_policy: UNDEFINED,
            shrink_share: UNDEFINED,
            nvls_ctas: UNDEFINED,
        }
    }
}

function_table! {
    /// NCCL's functions.
    pub(super) struct Functions {
        required {
            get_version = c"ncclGetVersion": fn(*mut c_int) -> Code;
            get_error_string = c"ncclGetErrorString": fn(Code) -> *const c_char;
            get_unique_id = c"ncclGetUniqueId": fn(*mut UniqueId) -> Code;
            comm_init = c"ncclCommInitRankConfig": fn(*mut CommHandle, c_int, UniqueId, c_int, *mut Config) -> Code;
            comm_finalize = c"ncclCommFinalize": fn(CommHandle) -> Code;
            comm_destroy = c"ncclCommDestroy": fn(CommHandle) -> Code;
            comm_abort = c"ncclCommAbort": fn(CommHandle) -> Code;
            comm_async_error = c"ncclCommGetAsyncError": fn(CommHandle, *mut Code) -> Code;
            group_start = c"ncclGroupStart": fn() -> Code;
            group_end = c"ncclGroupEnd": fn() -> Code;
            all_reduce = c"ncclAllReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, CommHandle, Handle) -> Code;
            reduce = c"ncclReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, CommHandle, Handle) -> Code;
            broadcast = c"ncclBroadcast": fn(*const c_void, *mut c_void, usize, c_int, c_int, CommHandle, Handle) -> Code;
            all_gather = c"ncclAllGather": fn(*const c_void, *mut c_void, usize, c_int, CommHandle, Handle) -> Code;
            reduce_scatter = c"ncclReduceScatter": fn(*const c_void, *mut c_void, usize, c_int, c_int, CommHandle, Handle) -> Code;
            send = c"ncclSend": fn(*const c_void, usize, c_int, c_int, CommHandle, Handle) -> Code;
            recv = c"ncclRecv": fn(*mut c_void, usize, c_int, c_int, CommHandle, Handle) -> Code;
        }
        optional {
            comm_split = c"ncclCommSplit": fn(CommHandle, c_int, c_int, *mut CommHandle, *mut Config) -> Code;
            get_last_error = c"ncclGetLastError": fn(CommHandle) -> *const c_char;
            create_premul_sum = c"ncclRedOpCreatePreMulSum": fn(*mut c_int, *mut c_void, c_int, c_int, CommHandle) -> Code;
            destroy_op = c"ncclRedOpDestroy": fn(c_int, CommHandle) -> Code;
            mem_alloc = c"ncclMemAlloc": fn(*mut *mut c_void, usize) -> Code;
            mem_free = c"ncclMemFree": fn(*mut c_void) -> Code;
            comm_register = c"ncclCommRegister": fn(CommHandle, *mut c_void, usize, *mut usize) -> Code;
            comm_deregister = c"ncclCommDeregister": fn(CommHandle, usize) -> Code;
            window_register = c"ncclCommWindowRegister": fn(CommHandle, *mut c_void, usize, *mut usize, c_int) -> Code;
            window_deregister = c"ncclCommWindowDeregister": fn(CommHandle, usize) -> Code;
        }
    }
}
