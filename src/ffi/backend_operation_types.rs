//! The C types of one operation of a plug-in: its arguments and its outcome.
//!
//! New fields are only appended to the structs.
#![allow(non_camel_case_types, reason = "C names")]
#![allow(missing_debug_implementations, reason = "plain C structs")]

use super::constants::*;
use super::sized_struct::sized_structs;
use std::ffi::{c_char, c_void};

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
    /// A buffer of text_cap bytes. For an error, the plug-in writes terminated UTF-8 that names the
    /// fault and the remedy.
    pub text: *mut c_char,
    /// The size of `text` in bytes, at least 256.
    pub text_cap: usize,
    /// DIST_BACKEND_SHORT, or 0.
    pub flags: u64,
}

/// One operation of a part. The struct is valid only during submit or run.
///
/// The buffers are borrowed until the operation has ended or was released. The arrays of counts and
/// displacements are borrowed for the call of submit or run. A field that the operation does not
/// use is NULL or 0, except that an unused type, operator, rank or tag is -1.
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
    /// The root, or -1 if the operation has no root.
    pub root: i32,
    /// The other rank of a message; DIST_ANY_SOURCE in a receive means any rank.
    pub peer: i32,
    /// The location of the buffers: DIST_DEVICE_HOST, or the index of a GPU.
    pub device: i32,
    /// The tag of a message: 0 to 2147483647 for callers, up to 4294967295 for the library's own
    /// messages. DIST_ANY_TAG in a receive matches callers' tags only.
    pub tag: i64,
    /// The input of this rank; NULL if the rank has no input. In a broadcast, only the root has an
    /// input. In the _v forms, the lowest address of the blocks.
    pub send: *const c_void,
    /// The buffer for the result; NULL if this rank gets no result. In a broadcast, all ranks but
    /// the root get a result. In the _v forms, the lowest address of the blocks.
    pub recv: *mut c_void,
    /// The argument `count` of the call in elements: the length of a vector, of one rank's block or
    /// of a message. In a receive, the capacity of the buffer. The _v forms have send_count and
    /// recv_count instead, and 0 here.
    pub count: usize,
    /// In the _v forms, if this rank sends one block to each rank: the length of each block in
    /// elements. Otherwise NULL.
    pub send_counts: *const usize,
    /// The start of each block of send_counts, in bytes from `send`; there may be gaps.
    pub send_displs: *const usize,
    /// In the _v forms, if this rank receives one block from each rank: the length of each block in
    /// elements. Otherwise NULL.
    pub recv_counts: *const usize,
    /// The start of each block of recv_counts, in bytes from `recv`; there may be gaps.
    pub recv_displs: *const usize,
    /// In the _v forms: the length of `send` in elements if `send` is one block, otherwise 0.
    pub send_count: usize,
    /// In the _v forms: the length of `recv` in elements if `recv` is one block, otherwise 0.
    pub recv_count: usize,
    /// The factor of this rank for DIST_PREMUL_SUM.
    pub factor: f64,
    /// The time left: 1 or more, DIST_WAIT_FOREVER, or DIST_NO_WAIT if no time is left.
    pub timeout_ms: i64,
    /// The number of the collective in its group, from 1, the same on all ranks; 0 for messages.
    pub sequence: u64,
    /// The number of the operation among several that the library composes to one collective; else
    /// 0.
    pub part: u64,
    /// For buffers in GPU memory: the caller's stream as a handle of the driver, or NULL if the
    /// caller named no stream. The work that the caller put into the stream before is done. NULL
    /// for host memory.
    pub stream: *mut c_void,
    /// DIST_BACKEND_IN_PLACE, or 0.
    pub flags: u64,
    /// For a plug-in without test and wait: the ticket, a number that the plug-in passes to
    /// complete() at the end of the operation. Otherwise 0.
    pub ticket: u64,
    /// Set instead of `recv` in a receive that accepts a message of any length. The plug-in calls
    /// the function once, with `grow_arg`, from any thread, before the receive ends. The function
    /// returns memory for a message of `len_bytes`. If it returns NULL, the message is too long,
    /// and the plug-in ends the receive with DIST_ERR_MISMATCH.
    pub grow: Option<unsafe extern "C" fn(grow_arg: *mut c_void, len_bytes: usize) -> *mut c_void>,
    /// The argument of `grow`; valid until the operation has ended or was released.
    pub grow_arg: *mut c_void,
}

// The first size is the smallest that the library accepts.
sized_structs! {
    dist_backend_outcome_t: 48, 56;
}

const _: () = assert!(size_of::<dist_backend_operation_t>() == 184);
