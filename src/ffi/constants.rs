//! The numbers of the C interface: statuses, types of elements, operators, and what stands for nothing or anything.
//!
//! None is ever used again for something else.
#![allow(non_camel_case_types, reason = "C names")]

use crate::api::supports;

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

/// The type of one element. No operator and no status has the number of a type: an argument in the place of another
/// kind is DIST_ERR_INVALID_ARGUMENT.
pub type dist_dtype_t = i32;
/// Signed, 8 bits.
pub const DIST_I8: dist_dtype_t = 0x100;
/// Unsigned, 8 bits.
pub const DIST_U8: dist_dtype_t = 0x101;
/// Signed, 16 bits.
pub const DIST_I16: dist_dtype_t = 0x102;
/// Unsigned, 16 bits.
pub const DIST_U16: dist_dtype_t = 0x103;
/// Signed, 32 bits.
pub const DIST_I32: dist_dtype_t = 0x104;
/// Unsigned, 32 bits.
pub const DIST_U32: dist_dtype_t = 0x105;
/// Signed, 64 bits.
pub const DIST_I64: dist_dtype_t = 0x106;
/// Unsigned, 64 bits.
pub const DIST_U64: dist_dtype_t = 0x107;
/// IEEE half precision.
pub const DIST_F16: dist_dtype_t = 0x108;
/// The upper half of an IEEE single.
pub const DIST_BF16: dist_dtype_t = 0x109;
/// IEEE single precision.
pub const DIST_F32: dist_dtype_t = 0x10a;
/// IEEE double precision.
pub const DIST_F64: dist_dtype_t = 0x10b;
/// Two singles: real, imaginary.
pub const DIST_C64: dist_dtype_t = 0x10c;
/// Two doubles: real, imaginary.
pub const DIST_C128: dist_dtype_t = 0x10d;
/// One byte; every value but 0 is true.
pub const DIST_BOOL: dist_dtype_t = 0x10e;
/// 8 bits: 4 of exponent, 3 of mantissa, no infinities.
pub const DIST_F8E4M3: dist_dtype_t = 0x10f;
/// 8 bits: 5 of exponent, 2 of mantissa.
pub const DIST_F8E5M2: dist_dtype_t = 0x110;

/// Elements that only a caller-defined operator knows (dist_op_create), which also says how long one is. No other
/// operator takes them, and no other call.
pub const DIST_OPAQUE: dist_dtype_t = 0x111;

/// How elements of different ranks become one. Integers wrap; f16, bf16 and f8 are folded in single
/// precision and rounded once per host, and once more for each step between hosts.
pub type dist_op_t = i32;
/// The sum; of bools, or.
pub const DIST_SUM: dist_op_t = 0x200;
/// The product; of bools, and. Not for complex numbers.
pub const DIST_PRODUCT: dist_op_t = 0x201;
/// The smallest; NaN wins. Not for complex numbers.
pub const DIST_MIN: dist_op_t = 0x202;
/// The largest; NaN wins. Not for complex numbers.
pub const DIST_MAX: dist_op_t = 0x203;
/// The sum divided by the number of ranks; of integers, the wrapped sum rounded towards zero. Not for
/// bools.
pub const DIST_AVG: dist_op_t = 0x204;
/// Bitwise and. Not for floating point.
pub const DIST_BAND: dist_op_t = 0x205;
/// Bitwise or. Not for floating point.
pub const DIST_BOR: dist_op_t = 0x206;
/// Bitwise exclusive or. Not for floating point.
pub const DIST_BXOR: dist_op_t = 0x207;
/// The sum of each rank's elements times its own premul_scale. Only for floating point.
pub const DIST_PREMUL_SUM: dist_op_t = 0x208;

/// In the flags of dist_op_create: a op b is b op a.
pub const DIST_OP_COMMUTATIVE: u64 = 1;

/// As a time-out: no limit. Times of a century or more mean the same.
pub const DIST_WAIT_FOREVER: i64 = -1;
/// As a time-out: no time; the call looks once. Refused by calls that cannot do without time.
pub const DIST_NO_WAIT: i64 = -2;

/// In place of a rank: whoever sends (dist_recv).
pub const DIST_ANY_SOURCE: i32 = -1;
/// In place of a color: no group (dist_group_split).
pub const DIST_NO_COLOR: i32 = -1;
/// In place of a tag: any (dist_recv).
pub const DIST_ANY_TAG: i32 = -1;
/// In place of the index of a device: host memory.
pub const DIST_DEVICE_HOST: i32 = -1;

/// Which operation, for dist_backend_supports: dist_all_reduce.
pub const DIST_KIND_ALL_REDUCE: i32 = 0;
/// dist_reduce.
pub const DIST_KIND_REDUCE: i32 = 1;
/// dist_broadcast.
pub const DIST_KIND_BROADCAST: i32 = 2;
/// dist_all_gather.
pub const DIST_KIND_ALL_GATHER: i32 = 3;
/// dist_reduce_scatter.
pub const DIST_KIND_REDUCE_SCATTER: i32 = 4;
/// dist_barrier.
pub const DIST_KIND_BARRIER: i32 = 5;
/// dist_gather.
pub const DIST_KIND_GATHER: i32 = 6;
/// dist_scatter.
pub const DIST_KIND_SCATTER: i32 = 7;
/// dist_all_to_all.
pub const DIST_KIND_ALL_TO_ALL: i32 = 8;
/// dist_all_gather_v.
pub const DIST_KIND_ALL_GATHER_V: i32 = 9;
/// dist_gather_v.
pub const DIST_KIND_GATHER_V: i32 = 10;
/// dist_scatter_v.
pub const DIST_KIND_SCATTER_V: i32 = 11;
/// dist_reduce_scatter_v.
pub const DIST_KIND_REDUCE_SCATTER_V: i32 = 12;
/// dist_all_to_all_v.
pub const DIST_KIND_ALL_TO_ALL_V: i32 = 13;
/// dist_scan.
pub const DIST_KIND_SCAN: i32 = 14;
/// dist_exscan.
pub const DIST_KIND_EXSCAN: i32 = 15;
/// dist_send.
pub const DIST_KIND_SEND: i32 = 64;
/// dist_recv.
pub const DIST_KIND_RECV: i32 = 65;

/// In a call's flags: the vectors of all ranks are folded in the order of ranks at once, so that the result has the
/// same bits wherever the ranks are and whatever the algorithm. It may be slower between hosts. All ranks say the same.
pub const DIST_CALL_CANONICAL: u64 = 1;

/// In a call's flags: an input or a result with a NaN in it fails the group, as with DIST_CHECK_NAN=1. Each rank says
/// this for itself.
pub const DIST_CALL_CHECK_NAN: u64 = 2;
/// In a call's flags: the same for what is no finite number, infinite ones included.
pub const DIST_CALL_CHECK_INF: u64 = 4;

/// In a call's flags: `device` says where its buffers are.
pub const DIST_CALL_DEVICE: u64 = 8;

/// In a call's flags: a send is done only once a receive has matched its message. Only for dist_send, dist_send_bytes and the
/// send of dist_sendrecv; each rank says this for itself.
pub const DIST_CALL_SYNCHRONOUS: u64 = 16;

/// No rank is named.
pub const DIST_CULPRIT_NONE: i32 = 0;
/// Its process ended without leaving the group; only ranks of its host can tell.
pub const DIST_CULPRIT_DIED: i32 = 1;
/// It left the group in order, while others still needed it.
pub const DIST_CULPRIT_LEFT: i32 = 2;
/// Its connection ended or broke, or it sends no heartbeat: it died, is held up, or the network parted.
pub const DIST_CULPRIT_UNREACHABLE: i32 = 3;
/// It sends no heartbeat, and its process is stopped by a signal or a debugger; only ranks of its host can tell.
pub const DIST_CULPRIT_STOPPED: i32 = 4;
/// It did not come before the deadline; if several did not, it is the first that the error names.
pub const DIST_CULPRIT_LATE: i32 = 5;
/// It called another operation than the rank that found the difference.
pub const DIST_CULPRIT_MISMATCH: i32 = 6;
/// It aborted the group.
pub const DIST_CULPRIT_ABORTED: i32 = 7;
/// It failed in another way; the error's message says how.
pub const DIST_CULPRIT_FAILED: i32 = 8;

/// The most bytes of a call's label, without the terminator.
pub const DIST_LABEL_BYTES: usize = 32;

/// Nothing is added to calls; the default.
pub const DIST_DEBUG_OFF: i32 = 0;
/// How groups are made and what they have done is told in the log, and so are long waits.
pub const DIST_DEBUG_INFO: i32 = 1;
/// Calls are checked in ways that cost: all ranks come together before each collective, buffers are looked up among
/// those of outstanding works, and errors keep a back-trace.
pub const DIST_DEBUG_DETAIL: i32 = 2;

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
/// In `fields`: `device` is set.
pub const DIST_FIELD_DEVICE: u64 = 8;

const _: () = assert!(
    DIST_KIND_SEND == supports::SEND
        && DIST_KIND_RECV == supports::RECV
        && DIST_DEVICE_HOST == supports::HOST
);
