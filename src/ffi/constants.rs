//! The constants of the C interface: statuses, element types, operators, and numbers that mean
//! "none" or "any".
//!
//! A number never gets another meaning, even if its constant is removed.
#![allow(non_camel_case_types, reason = "C names")]

use crate::api::group::capabilities;

/// The outcome of a call: DIST_OK, DIST_IN_PROGRESS or a negative error.
///
/// The errors have these ranges:
///
/// - -1 to -99: a mistake of the caller. The call has had no effect.
/// - -100 to -199: a failure of a peer, or a time-out. A collective that returns such an error has
///   failed its group, except if its comment names an error that does not.
/// - -200 to -299: a failure of the system or of a back end.
/// - -300: a defect of the library.
pub type dist_status_t = i32;
/// Success.
pub const DIST_OK: dist_status_t = 0;
/// The wait ended before the work was done; the work continues.
pub const DIST_IN_PROGRESS: dist_status_t = 1;
/// An argument is out of range, is NULL although it is required, or contradicts another argument.
pub const DIST_ERR_INVALID_ARGUMENT: dist_status_t = -1;
/// The handle was never made, was released, or belongs to another type of object.
pub const DIST_ERR_INVALID_HANDLE: dist_status_t = -2;
/// dist_init was not called, dist_finalize was called, or this process is a forked child.
pub const DIST_ERR_NOT_INITIALIZED: dist_status_t = -3;
/// dist_init was called twice.
pub const DIST_ERR_ALREADY_INITIALIZED: dist_status_t = -4;
/// The requested combination does not exist; the message names it.
pub const DIST_ERR_UNSUPPORTED: dist_status_t = -5;
/// The key, name or file does not exist.
pub const DIST_ERR_NOT_FOUND: dist_status_t = -6;
/// The queue was empty, and the caller asked not to wait.
pub const DIST_ERR_QUEUE_EMPTY: dist_status_t = -7;
/// The value of a counter is not a number; the value is unchanged.
pub const DIST_ERR_NOT_A_NUMBER: dist_status_t = -8;
/// The deadline of the operation passed; the message names the ranks or keys that were missing.
pub const DIST_ERR_TIMEOUT: dist_status_t = -100;
/// Another rank died, left or stopped answering; the message names the rank.
pub const DIST_ERR_PEER_FAILED: dist_status_t = -101;
/// Ranks called different operations or gave different arguments; the message describes both.
pub const DIST_ERR_MISMATCH: dist_status_t = -102;
/// A rank aborted the group; the message has the reason.
pub const DIST_ERR_ABORTED: dist_status_t = -103;
/// The store or a peer cannot be reached, or the connection broke.
pub const DIST_ERR_CONNECTION: dist_status_t = -104;
/// A peer could not prove that it belongs to this job.
pub const DIST_ERR_AUTH: dist_status_t = -105;
/// Ranks wait for each other in a cycle; the message has the whole cycle.
pub const DIST_ERR_DEADLOCK: dist_status_t = -106;
/// Memory, or another limited resource of the host, is exhausted.
pub const DIST_ERR_OUT_OF_MEMORY: dist_status_t = -200;
/// The operating system refused a call.
pub const DIST_ERR_SYSTEM: dist_status_t = -201;
/// A back end or a custom store reported an error.
pub const DIST_ERR_BACKEND: dist_status_t = -202;
/// The library has a defect.
pub const DIST_ERR_INTERNAL: dist_status_t = -300;

/// The type of an element.
///
/// Types, operators and statuses have different numbers. So a call with an operator in place of a
/// type returns DIST_ERR_INVALID_ARGUMENT.
pub type dist_dtype_t = i32;
/// Signed integer of 8 bits.
pub const DIST_I8: dist_dtype_t = 0x100;
/// Unsigned integer of 8 bits.
pub const DIST_U8: dist_dtype_t = 0x101;
/// Signed integer of 16 bits.
pub const DIST_I16: dist_dtype_t = 0x102;
/// Unsigned integer of 16 bits.
pub const DIST_U16: dist_dtype_t = 0x103;
/// Signed integer of 32 bits.
pub const DIST_I32: dist_dtype_t = 0x104;
/// Unsigned integer of 32 bits.
pub const DIST_U32: dist_dtype_t = 0x105;
/// Signed integer of 64 bits.
pub const DIST_I64: dist_dtype_t = 0x106;
/// Unsigned integer of 64 bits.
pub const DIST_U64: dist_dtype_t = 0x107;
/// IEEE 754 half precision (16 bits).
pub const DIST_F16: dist_dtype_t = 0x108;
/// bfloat16: the upper half of an IEEE 754 single.
pub const DIST_BF16: dist_dtype_t = 0x109;
/// IEEE 754 single precision (32 bits).
pub const DIST_F32: dist_dtype_t = 0x10a;
/// IEEE 754 double precision (64 bits).
pub const DIST_F64: dist_dtype_t = 0x10b;
/// Complex number of two singles: real part, imaginary part.
pub const DIST_C64: dist_dtype_t = 0x10c;
/// Complex number of two doubles: real part, imaginary part.
pub const DIST_C128: dist_dtype_t = 0x10d;
/// Boolean of one byte; every value except 0 is true.
pub const DIST_BOOL: dist_dtype_t = 0x10e;
/// Floating point of 8 bits: 4 bits of exponent, 3 of mantissa, no infinities.
pub const DIST_F8E4M3: dist_dtype_t = 0x10f;
/// Floating point of 8 bits: 5 bits of exponent, 2 of mantissa.
pub const DIST_F8E5M2: dist_dtype_t = 0x110;

/// Opaque elements, whose size a caller-defined operator declares (dist_op_create).
///
/// Only calls with a caller-defined operator take this type.
pub const DIST_OPAQUE: dist_dtype_t = 0x111;

/// The operator of a reduction.
///
/// Integer results wrap around, except averages. Elements of the f16, bf16 and f8 types are reduced
/// in single precision. Their result is rounded once per host, and once more for each step between
/// hosts.
pub type dist_op_t = i32;
/// The sum. For DIST_BOOL: logical or.
pub const DIST_SUM: dist_op_t = 0x200;
/// The product. For DIST_BOOL: logical and. Not for complex numbers.
pub const DIST_PRODUCT: dist_op_t = 0x201;
/// The minimum; NaN if any element is NaN. Not for complex numbers.
pub const DIST_MIN: dist_op_t = 0x202;
/// The maximum; NaN if any element is NaN. Not for complex numbers.
pub const DIST_MAX: dist_op_t = 0x203;
/// The average over the ranks. Not for DIST_BOOL.
///
/// An average that is a value of the type does not overflow, even if the sum does. Floats are
/// multiplied by 1/N, for N ranks, before they are summed. If N is no power of two, the result may
/// differ from the divided sum in its last bits. Elements within N units in the last place of the
/// largest number may then give infinity. A subnormal contribution loses the bits below the
/// smallest subnormal number. For integers, the exact sum is divided, and the quotient is rounded
/// towards zero. On GPUs, NCCL determines the sum of integers, which wraps.
pub const DIST_AVG: dist_op_t = 0x204;
/// Bitwise and. Not for floating point and complex numbers.
pub const DIST_BAND: dist_op_t = 0x205;
/// Bitwise or. Not for floating point and complex numbers.
pub const DIST_BOR: dist_op_t = 0x206;
/// Bitwise exclusive or. Not for floating point and complex numbers.
pub const DIST_BXOR: dist_op_t = 0x207;
/// The sum of the ranks' elements, each multiplied by the premul_scale of its rank. Not for
/// integers and bools.
pub const DIST_PREMUL_SUM: dist_op_t = 0x208;

/// In the flags of dist_op_create: the operator is commutative: a op b equals b op a.
pub const DIST_OP_COMMUTATIVE: u64 = 1;

/// As a time-out: no limit. A time-out of a century or more has the same meaning.
pub const DIST_WAIT_FOREVER: i64 = -1;
/// As a time-out: no time. The call checks once whether the result is complete. A call that needs
/// time refuses this value.
pub const DIST_NO_WAIT: i64 = -2;

/// In place of a source rank (dist_recv, dist_probe): any rank.
pub const DIST_ANY_SOURCE: i32 = -1;
/// In place of a color (dist_group_split): this rank belongs to no new group.
pub const DIST_NO_COLOR: i32 = -1;
/// In place of a tag (dist_recv, dist_probe): any tag.
pub const DIST_ANY_TAG: i32 = -1;
/// In place of the index of a device: host memory.
pub const DIST_DEVICE_HOST: i32 = -1;

/// The operation dist_all_reduce. The DIST_KIND_ constants are for dist_backend_supports.
pub const DIST_KIND_ALL_REDUCE: i32 = 0;
/// The operation dist_reduce.
pub const DIST_KIND_REDUCE: i32 = 1;
/// The operation dist_broadcast.
pub const DIST_KIND_BROADCAST: i32 = 2;
/// The operation dist_all_gather.
pub const DIST_KIND_ALL_GATHER: i32 = 3;
/// The operation dist_reduce_scatter.
pub const DIST_KIND_REDUCE_SCATTER: i32 = 4;
/// The operation dist_barrier.
pub const DIST_KIND_BARRIER: i32 = 5;
/// The operation dist_gather.
pub const DIST_KIND_GATHER: i32 = 6;
/// The operation dist_scatter.
pub const DIST_KIND_SCATTER: i32 = 7;
/// The operation dist_all_to_all.
pub const DIST_KIND_ALL_TO_ALL: i32 = 8;
/// The operation dist_all_gather_v.
pub const DIST_KIND_ALL_GATHER_V: i32 = 9;
/// The operation dist_gather_v.
pub const DIST_KIND_GATHER_V: i32 = 10;
/// The operation dist_scatter_v.
pub const DIST_KIND_SCATTER_V: i32 = 11;
/// The operation dist_reduce_scatter_v.
pub const DIST_KIND_REDUCE_SCATTER_V: i32 = 12;
/// The operation dist_all_to_all_v.
pub const DIST_KIND_ALL_TO_ALL_V: i32 = 13;
/// The operation dist_scan.
pub const DIST_KIND_SCAN: i32 = 14;
/// The operation dist_exscan.
pub const DIST_KIND_EXSCAN: i32 = 15;
/// The operation dist_send.
pub const DIST_KIND_SEND: i32 = 64;
/// The operation dist_recv.
pub const DIST_KIND_RECV: i32 = 65;

/// In the flags of a call: the vectors of all ranks are reduced in the order of ranks.
///
/// The result has the same bits for every placement of the ranks and every algorithm. A call with
/// this flag may be slower between hosts. All ranks of a call must set the flag, or none.
pub const DIST_CALL_CANONICAL: u64 = 1;

/// In the flags of a call: a NaN in an input or in the result fails the group.
///
/// The environment variable DIST_CHECK_NAN=1 has the same effect for all calls. Ranks may set the
/// flag independently of each other.
pub const DIST_CALL_CHECK_NAN: u64 = 2;
/// In the flags of a call: a NaN or an infinity in an input or in the result fails the group.
///
/// Ranks may set the flag independently of each other.
pub const DIST_CALL_CHECK_INF: u64 = 4;

/// In the flags of a call: the field `device` is set, and says where the buffers are.
pub const DIST_CALL_DEVICE: u64 = 8;

/// In the flags of a send: the send is done once a receive has matched the message.
///
/// The flag is only for dist_send, dist_send_bytes and the send of dist_sendrecv. Ranks may set the
/// flag independently of each other.
pub const DIST_CALL_SYNCHRONOUS: u64 = 16;

/// The error names no rank.
pub const DIST_CULPRIT_NONE: i32 = 0;
/// The rank's process ended without leaving the group; only ranks of the same host can detect this.
pub const DIST_CULPRIT_DIED: i32 = 1;
/// The rank left the group in order while other ranks still needed it.
pub const DIST_CULPRIT_LEFT: i32 = 2;
/// The connection to the rank ended or broke, or the rank sends no heartbeat.
///
/// The process died or does not run, or the network is interrupted.
pub const DIST_CULPRIT_UNREACHABLE: i32 = 3;
/// The rank's process is stopped by a signal or a debugger and sends no heartbeat.
///
/// Only ranks of the same host can detect this.
pub const DIST_CULPRIT_STOPPED: i32 = 4;
/// The rank did not call before the deadline.
///
/// If several ranks did not call, the culprit is the first rank that the error names.
pub const DIST_CULPRIT_LATE: i32 = 5;
/// The rank called another operation than the rank that found the difference.
pub const DIST_CULPRIT_MISMATCH: i32 = 6;
/// The rank aborted the group.
pub const DIST_CULPRIT_ABORTED: i32 = 7;
/// The rank failed in another way, which the message of the error describes.
pub const DIST_CULPRIT_FAILED: i32 = 8;

/// The maximum length of a call's label in bytes, without the terminator.
pub const DIST_LABEL_BYTES: usize = 32;

/// The default: no additional checks and no additional log lines.
pub const DIST_DEBUG_OFF: i32 = 0;
/// The log describes how groups are made, which operations they have run when they end, and long
/// waits.
pub const DIST_DEBUG_INFO: i32 = 1;
/// As DIST_DEBUG_INFO, and the library runs expensive checks of calls.
///
/// All ranks synchronise before each collective. The library compares the buffers of a call with
/// the buffers of outstanding works. Errors contain a back-trace.
pub const DIST_DEBUG_DETAIL: i32 = 2;

/// The default: no log lines.
pub const DIST_LOG_OFF: i32 = 0;
/// The log has failures that no status reports.
pub const DIST_LOG_ERROR: i32 = 1;
/// As DIST_LOG_ERROR, and unusual events: long waits, lost peers.
pub const DIST_LOG_WARN: i32 = 2;
/// As DIST_LOG_WARN, and the choices of the library with their reasons.
pub const DIST_LOG_INFO: i32 = 3;
/// As DIST_LOG_INFO, and the end of each operation and every step.
pub const DIST_LOG_DEBUG: i32 = 4;
/// As DIST_LOG_DEBUG, and the issue and the start of each operation.
pub const DIST_LOG_TRACE: i32 = 5;

/// A bit of `fields` in an options struct: the field `rank` is set.
pub const DIST_FIELD_RANK: u64 = 1;
/// A bit of `fields` in an options struct: the field `listen_fd` is set.
pub const DIST_FIELD_LISTEN_FD: u64 = 2;
/// A bit of `fields` in an options struct: the field `wait_for_workers` is set.
pub const DIST_FIELD_WAIT_FOR_WORKERS: u64 = 4;
/// A bit of `fields` in an options struct: the field `device` is set.
pub const DIST_FIELD_DEVICE: u64 = 8;

const _: () = assert!(
    DIST_KIND_SEND == capabilities::SEND_KIND
        && DIST_KIND_RECV == capabilities::RECV_KIND
        && DIST_DEVICE_HOST == capabilities::HOST_DEVICE
);
