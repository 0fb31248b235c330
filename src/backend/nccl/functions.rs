//! The functions and types of NCCL's binary interface. The declarations are written by hand from
//! the public interface. Tests compare them at run time with the declarations of the stub library.

use crate::device::driver::CudaHandle;
use crate::sys::library::function_table;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// The return type of NCCL's functions.
pub(super) type NcclResult = c_int;
pub(super) const SUCCESS: NcclResult = 0;
pub(super) const SYSTEM_ERROR: NcclResult = 2;
pub(super) const REMOTE_ERROR: NcclResult = 6;
pub(super) const IN_PROGRESS: NcclResult = 7;

/// NCCL's pointer to a communicator, which libdist never dereferences. 0 means no communicator.
pub(super) type CommHandle = usize;

/// The value which states that the scalar of an operator is in host memory and that NCCL reads it
/// during the call.
pub(super) const SCALAR_HOST_IMMEDIATE: c_int = 1;

/// The flag of a window that all ranks register together and use symmetrically.
pub(super) const WINDOW_COLL_SYMMETRIC: c_int = 1;

/// The unique id by which the ranks of a communicator find each other.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct NcclUniqueId(pub(super) [u8; Self::BYTES]);

impl NcclUniqueId {
    pub(super) const BYTES: usize = 128;
}

/// The configuration of a new communicator. The NCCL library reads only the first `size` bytes, so
/// an older version does not read newer fields.
#[derive(Debug)]
#[repr(C)]
pub(super) struct NcclConfig {
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

const _: () = assert!(size_of::<NcclConfig>() == 72);

const CONFIG_MAGIC: c_uint = 0xcafe_beef;
const CONFIG_UNDEF_INT: c_int = c_int::MIN;

impl NcclConfig {
    /// Returns the configuration for a communicator, in the layout of this version of the NCCL
    /// library. If `may_block` is false, calls of the communicator return before they are complete.
    pub(super) fn new(library_version: i32, may_block: bool) -> Self {
        let (size, version) = match library_version {
            22_700.. => (72, 22_700),
            21_700.. => (48, 21_700),
            _ => (24, 21_400),
        };
        Self {
            size,
            magic: CONFIG_MAGIC,
            version,
            blocking: c_int::from(may_block),
            cga_cluster_size: CONFIG_UNDEF_INT,
            min_ctas: CONFIG_UNDEF_INT,
            max_ctas: CONFIG_UNDEF_INT,
            net_name: std::ptr::null(),
            split_share: CONFIG_UNDEF_INT,
            traffic_class: CONFIG_UNDEF_INT,
            comm_name: std::ptr::null(),
            collnet_enable: CONFIG_UNDEF_INT,
            cta_policy: CONFIG_UNDEF_INT,
            shrink_share: CONFIG_UNDEF_INT,
            nvls_ctas: CONFIG_UNDEF_INT,
        }
    }
}

function_table! {
    /// NCCL's functions.
    pub(super) struct NcclFunctions {
        required {
            get_version = c"ncclGetVersion": fn(*mut c_int) -> NcclResult;
            get_error_string = c"ncclGetErrorString": fn(NcclResult) -> *const c_char;
            get_unique_id = c"ncclGetUniqueId": fn(*mut NcclUniqueId) -> NcclResult;
            comm_init = c"ncclCommInitRankConfig": fn(*mut CommHandle, c_int, NcclUniqueId, c_int, *mut NcclConfig) -> NcclResult;
            comm_finalize = c"ncclCommFinalize": fn(CommHandle) -> NcclResult;
            comm_destroy = c"ncclCommDestroy": fn(CommHandle) -> NcclResult;
            comm_abort = c"ncclCommAbort": fn(CommHandle) -> NcclResult;
            comm_async_error = c"ncclCommGetAsyncError": fn(CommHandle, *mut NcclResult) -> NcclResult;
            group_start = c"ncclGroupStart": fn() -> NcclResult;
            group_end = c"ncclGroupEnd": fn() -> NcclResult;
            all_reduce = c"ncclAllReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, CommHandle, CudaHandle) -> NcclResult;
            reduce = c"ncclReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, CommHandle, CudaHandle) -> NcclResult;
            broadcast = c"ncclBroadcast": fn(*const c_void, *mut c_void, usize, c_int, c_int, CommHandle, CudaHandle) -> NcclResult;
            all_gather = c"ncclAllGather": fn(*const c_void, *mut c_void, usize, c_int, CommHandle, CudaHandle) -> NcclResult;
            reduce_scatter = c"ncclReduceScatter": fn(*const c_void, *mut c_void, usize, c_int, c_int, CommHandle, CudaHandle) -> NcclResult;
            send = c"ncclSend": fn(*const c_void, usize, c_int, c_int, CommHandle, CudaHandle) -> NcclResult;
            recv = c"ncclRecv": fn(*mut c_void, usize, c_int, c_int, CommHandle, CudaHandle) -> NcclResult;
        }
        optional {
            comm_split = c"ncclCommSplit": fn(CommHandle, c_int, c_int, *mut CommHandle, *mut NcclConfig) -> NcclResult;
            get_last_error = c"ncclGetLastError": fn(CommHandle) -> *const c_char;
            create_premul_sum = c"ncclRedOpCreatePreMulSum": fn(*mut c_int, *mut c_void, c_int, c_int, CommHandle) -> NcclResult;
            destroy_op = c"ncclRedOpDestroy": fn(c_int, CommHandle) -> NcclResult;
            mem_alloc = c"ncclMemAlloc": fn(*mut *mut c_void, usize) -> NcclResult;
            mem_free = c"ncclMemFree": fn(*mut c_void) -> NcclResult;
            comm_register = c"ncclCommRegister": fn(CommHandle, *mut c_void, usize, *mut usize) -> NcclResult;
            comm_deregister = c"ncclCommDeregister": fn(CommHandle, usize) -> NcclResult;
            window_register = c"ncclCommWindowRegister": fn(CommHandle, *mut c_void, usize, *mut usize, c_int) -> NcclResult;
            window_deregister = c"ncclCommWindowDeregister": fn(CommHandle, usize) -> NcclResult;
        }
    }
}

/// Returns the names of the NCCL functions that libdist requires, and the names of the optional
/// functions.
pub fn function_names() -> [&'static [&'static CStr]; 2] {
    [NcclFunctions::REQUIRED, NcclFunctions::OPTIONAL]
}
