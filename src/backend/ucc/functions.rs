//! The functions, types and structs of UCC's binary interface. The declarations are written by
//! hand from UCC's public headers. A test compares the layouts and the values with those headers.
//!
//! The structs are those of UCC 1.2. Newer versions append fields, and read them only if a bit of
//! the mask is set. UCC copies the arguments of a collective in the size of its own version, so
//! [`CollectiveArguments`] ends with reserved zeros.

use crate::sys::library::function_table;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// The return type of UCC's functions: 0 is success, a positive number is a state, and a negative
/// number is an error.
pub(super) type UccStatus = c_int;

pub(super) const OK: UccStatus = 0;
pub(super) const IN_PROGRESS: UccStatus = 1;
pub(super) const ERR_NOT_SUPPORTED: UccStatus = -1;
pub(super) const ERR_NOT_IMPLEMENTED: UccStatus = -2;
pub(super) const ERR_NO_MEMORY: UccStatus = -4;
pub(super) const ERR_NO_MESSAGE: UccStatus = -6;

/// UCC's pointer to an object, which libdist does not dereference. 0 means no object.
pub(super) type Handle = usize;

/// The version of the interface that libdist uses.
pub(super) const API_MAJOR: c_uint = 1;
pub(super) const API_MINOR: c_uint = 2;

pub(super) const THREAD_SINGLE: c_int = 0;
pub(super) const THREAD_MULTIPLE: c_int = 2;

/// The parameters of `ucc_init_version`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct LibraryParameters {
    pub(super) mask: u64,
    pub(super) thread_mode: c_int,
    pub(super) coll_types: u64,
    pub(super) reduction_types: u64,
    pub(super) sync_type: c_int,
}

/// Bits of [`LibraryParameters::mask`] and [`LibraryAttributes::mask`].
pub(super) const LIBRARY_THREAD_MODE: u64 = 1;
pub(super) const LIBRARY_COLL_TYPES: u64 = 1 << 1;

/// The result of `ucc_lib_get_attr`. It has the layout of the parameters.
pub(super) type LibraryAttributes = LibraryParameters;

/// The exchange of data between the ranks of a team that is being created.
#[derive(Debug)]
#[repr(C)]
pub(super) struct OobCollectives {
    pub(super) all_gather: Option<
        unsafe extern "C" fn(
            *mut c_void,
            *mut c_void,
            usize,
            *mut c_void,
            *mut *mut c_void,
        ) -> UccStatus,
    >,
    pub(super) request_test: Option<unsafe extern "C" fn(*mut c_void) -> UccStatus>,
    pub(super) request_free: Option<unsafe extern "C" fn(*mut c_void) -> UccStatus>,
    pub(super) info: *mut c_void,
    pub(super) endpoints: u32,
    pub(super) endpoint: u32,
}

/// The memory segments of one-sided collectives, which libdist does not use.
#[derive(Debug)]
#[repr(C)]
pub(super) struct MemoryMap {
    pub(super) segments: *mut c_void,
    pub(super) n_segments: u64,
}

/// The parameters of `ucc_context_create`. libdist sets no exchange, so a context belongs to one
/// process, and teams of any processes can share it.
#[derive(Debug)]
#[repr(C)]
pub(super) struct ContextParameters {
    pub(super) mask: u64,
    pub(super) context_type: c_int,
    pub(super) sync_type: c_int,
    pub(super) oob: OobCollectives,
    pub(super) context_id: u64,
    pub(super) memory: MemoryMap,
}

/// The bit of [`ContextParameters::mask`] and the value for a context that several threads use.
pub(super) const CONTEXT_TYPE: u64 = 1;
pub(super) const CONTEXT_SHARED: c_int = 1;

/// Bits of [`TeamParameters::mask`].
pub(super) const TEAM_EP: u64 = 1 << 2;
pub(super) const TEAM_EP_RANGE: u64 = 1 << 4;
pub(super) const TEAM_SIZE: u64 = 1 << 5;
pub(super) const TEAM_OOB: u64 = 1 << 7;
pub(super) const TEAM_ID: u64 = 1 << 11;

pub(super) const EP_RANGE_CONTIGUOUS: c_int = 0;

/// The largest id of a team that a caller may choose.
pub(super) const MAX_TEAM_ID: u16 = (1 << 15) - 1;

/// The functions of a caller that connects ranks itself, which libdist does not use.
#[derive(Debug)]
#[repr(C)]
pub(super) struct PeerConnections {
    pub(super) functions: [usize; 5],
}

/// The map between the ranks of a team and of its context, which libdist does not use.
#[derive(Debug)]
#[repr(C)]
pub(super) struct EndpointMap {
    pub(super) map_type: c_int,
    pub(super) endpoints: u64,
    pub(super) map: [u64; 2],
}

/// The parameters of `ucc_team_create_post`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct TeamParameters {
    pub(super) mask: u64,
    pub(super) flags: u64,
    pub(super) ordering: c_int,
    pub(super) outstanding: u64,
    pub(super) endpoint: u64,
    pub(super) endpoint_list: *mut u64,
    pub(super) endpoint_range: c_int,
    pub(super) size: u64,
    pub(super) sync_type: c_int,
    pub(super) oob: OobCollectives,
    pub(super) peer_connections: PeerConnections,
    pub(super) memory: MemoryMap,
    pub(super) endpoint_map: EndpointMap,
    pub(super) id: u64,
}

/// Types of collectives.
pub(super) const ALL_GATHER: c_int = 1;
pub(super) const ALL_GATHER_V: c_int = 1 << 1;
pub(super) const ALL_REDUCE: c_int = 1 << 2;
pub(super) const ALL_TO_ALL: c_int = 1 << 3;
pub(super) const ALL_TO_ALL_V: c_int = 1 << 4;
pub(super) const BARRIER: c_int = 1 << 5;
pub(super) const BROADCAST: c_int = 1 << 6;
pub(super) const GATHER: c_int = 1 << 9;
pub(super) const GATHER_V: c_int = 1 << 10;
pub(super) const REDUCE: c_int = 1 << 11;
pub(super) const REDUCE_SCATTER: c_int = 1 << 12;
pub(super) const REDUCE_SCATTER_V: c_int = 1 << 13;
pub(super) const SCATTER_V: c_int = 1 << 15;

pub(super) const MEMORY_HOST: c_int = 0;
pub(super) const MEMORY_CUDA: c_int = 1;

/// One buffer of a collective, or the blocks of a `_v` form: UCC's union of both structs. A plain
/// buffer has the count in the second word and the type in the third. A `_v` form has a pointer to
/// the counts, a pointer to the displacements, and then the type.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union BufferInfo {
    pub(super) plain: PlainBuffer,
    pub(super) blocks: BlockBuffer,
}

impl std::fmt::Debug for BufferInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BufferInfo")
    }
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct PlainBuffer {
    pub(super) buffer: *mut c_void,
    pub(super) count: u64,
    pub(super) datatype: u64,
    pub(super) memory_type: c_int,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct BlockBuffer {
    pub(super) buffer: *mut c_void,
    pub(super) counts: *const u64,
    pub(super) displacements: *const u64,
    pub(super) datatype: u64,
    pub(super) memory_type: c_int,
}

/// The set of ranks of a message: the sender and the receiver.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct ActiveSet {
    pub(super) start: u64,
    pub(super) stride: i64,
    pub(super) size: u64,
}

/// The arguments of `ucc_collective_init`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct CollectiveArguments {
    pub(super) mask: u64,
    pub(super) coll_type: c_int,
    pub(super) src: BufferInfo,
    pub(super) dst: BufferInfo,
    pub(super) op: c_int,
    pub(super) flags: u64,
    pub(super) root: u64,
    pub(super) error_type: c_int,
    pub(super) tag: u16,
    pub(super) work_buffer: *mut c_void,
    pub(super) callback: [usize; 2],
    pub(super) timeout: f64,
    pub(super) active_set: ActiveSet,
    /// The fields of newer versions.
    reserved: [u64; 16],
}

/// The bit of [`CollectiveArguments::mask`] for the flags.
pub(super) const ARGUMENTS_FLAGS: u64 = 1;

/// Bits of [`CollectiveArguments::flags`].
pub(super) const IN_PLACE: u64 = 1;
pub(super) const COUNT_64BIT: u64 = 1 << 2;
pub(super) const DISPLACEMENTS_64BIT: u64 = 1 << 3;

impl BufferInfo {
    const NONE: Self = Self {
        blocks: BlockBuffer {
            buffer: std::ptr::null_mut(),
            counts: std::ptr::null(),
            displacements: std::ptr::null(),
            datatype: 0,
            memory_type: MEMORY_HOST,
        },
    };
}

impl CollectiveArguments {
    /// Returns the arguments of a collective without buffers.
    pub(super) const fn new(coll_type: c_int) -> Self {
        Self {
            mask: ARGUMENTS_FLAGS,
            coll_type,
            src: BufferInfo::NONE,
            dst: BufferInfo::NONE,
            op: 0,
            flags: COUNT_64BIT | DISPLACEMENTS_64BIT,
            root: 0,
            error_type: 0,
            tag: 0,
            work_buffer: std::ptr::null_mut(),
            callback: [0; 2],
            timeout: 0.0,
            active_set: ActiveSet { start: 0, stride: 0, size: 0 },
            reserved: [0; 16],
        }
    }
}

/// The parameters of the callback that reduces elements of a caller's type.
#[derive(Debug)]
#[repr(C)]
pub(super) struct ReduceCallbackParameters {
    pub(super) mask: u64,
    pub(super) src1: *mut c_void,
    pub(super) src2: *mut c_void,
    pub(super) dst: *mut c_void,
    pub(super) n_vectors: usize,
    pub(super) count: usize,
    pub(super) stride: usize,
    pub(super) dt: *mut c_void,
    pub(super) context: *mut c_void,
}

/// The functions of a caller's type.
#[derive(Debug)]
#[repr(C)]
pub(super) struct GenericTypeOperations {
    pub(super) mask: u64,
    pub(super) flags: u64,
    pub(super) element_bytes: usize,
    /// The functions for types that are not contiguous.
    pub(super) pack_functions: [usize; 6],
    pub(super) reduce: Option<unsafe extern "C" fn(*const ReduceCallbackParameters) -> UccStatus>,
    pub(super) reduce_context: *mut c_void,
}

/// The bit of [`GenericTypeOperations::mask`] for the flags, and the flags.
pub(super) const GENERIC_TYPE_FLAGS: u64 = 1;
pub(super) const GENERIC_TYPE_CONTIGUOUS: u64 = 1;
pub(super) const GENERIC_TYPE_REDUCES: u64 = 1 << 1;

function_table! {
    /// UCC's functions.
    pub(super) struct UccFunctions {
        required {
            get_version = c"ucc_get_version": fn(*mut c_uint, *mut c_uint, *mut c_uint) -> ();
            status_string = c"ucc_status_string": fn(UccStatus) -> *const c_char;
            lib_config_read = c"ucc_lib_config_read": fn(*const c_char, *const c_char, *mut Handle) -> UccStatus;
            lib_config_release = c"ucc_lib_config_release": fn(Handle) -> ();
            init = c"ucc_init_version": fn(c_uint, c_uint, *const LibraryParameters, Handle, *mut Handle) -> UccStatus;
            lib_attributes = c"ucc_lib_get_attr": fn(Handle, *mut LibraryAttributes) -> UccStatus;
            context_config_read = c"ucc_context_config_read": fn(Handle, *const c_char, *mut Handle) -> UccStatus;
            context_config_release = c"ucc_context_config_release": fn(Handle) -> ();
            context_create = c"ucc_context_create": fn(Handle, *const ContextParameters, Handle, *mut Handle) -> UccStatus;
            context_progress = c"ucc_context_progress": fn(Handle) -> UccStatus;
            team_create_post = c"ucc_team_create_post": fn(*mut Handle, u32, *const TeamParameters, *mut Handle) -> UccStatus;
            team_create_test = c"ucc_team_create_test": fn(Handle) -> UccStatus;
            team_destroy = c"ucc_team_destroy": fn(Handle) -> UccStatus;
            collective_init = c"ucc_collective_init": fn(*mut CollectiveArguments, *mut Handle, Handle) -> UccStatus;
            collective_post = c"ucc_collective_post": fn(Handle) -> UccStatus;
            dt_create_generic = c"ucc_dt_create_generic": fn(*const GenericTypeOperations, *mut c_void, *mut u64) -> UccStatus;
            collective_finalize = c"ucc_collective_finalize": fn(Handle) -> UccStatus;
        }
        optional {}
    }
}

/// Returns the names of the UCC functions that libdist requires, and the names of the optional
/// functions.
pub fn function_names() -> [&'static [&'static CStr]; 2] {
    [UccFunctions::REQUIRED, UccFunctions::OPTIONAL]
}
