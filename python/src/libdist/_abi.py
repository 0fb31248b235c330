"""The C interface of libdist for ctypes: constants, structs, function types and signatures.

Generated from the source of the library by `cargo xtask python`; do not edit. The comments are
in include/dist.h.
"""

# ruff: noqa
# fmt: off

from ctypes import (
    CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int32, c_int64,
    c_size_t, c_uint32, c_uint64, c_void_p,
)


# Status and errors: the outcomes of calls, the messages of errors, and the version of the library.
DIST_OK = 0
DIST_IN_PROGRESS = 1
DIST_ERR_INVALID_ARGUMENT = -1
DIST_ERR_INVALID_HANDLE = -2
DIST_ERR_NOT_INITIALIZED = -3
DIST_ERR_ALREADY_INITIALIZED = -4
DIST_ERR_UNSUPPORTED = -5
DIST_ERR_NOT_FOUND = -6
DIST_ERR_QUEUE_EMPTY = -7
DIST_ERR_NOT_A_NUMBER = -8
DIST_ERR_TIMEOUT = -100
DIST_ERR_PEER_FAILED = -101
DIST_ERR_MISMATCH = -102
DIST_ERR_ABORTED = -103
DIST_ERR_CONNECTION = -104
DIST_ERR_AUTH = -105
DIST_ERR_DEADLOCK = -106
DIST_ERR_OUT_OF_MEMORY = -200
DIST_ERR_SYSTEM = -201
DIST_ERR_BACKEND = -202
DIST_ERR_INTERNAL = -300
DIST_WAIT_FOREVER = -1
DIST_NO_WAIT = -2


# Byte strings: lists of byte strings that the library makes and the caller releases.


# Initialization: functions that create and end the world, the group of all ranks of the job.
DIST_DEVICE_HOST = -1
DIST_FIELD_RANK = 1
DIST_FIELD_LISTEN_FD = 2
DIST_FIELD_WAIT_FOR_WORKERS = 4
DIST_FIELD_DEVICE = 8


class dist_init_options_t(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("fields", c_uint64),
        ("backend", c_char_p),
        ("init_method", c_char_p),
        ("store", c_void_p),
        ("rank", c_int32),
        ("world_size", c_int32),
        ("timeout_ms", c_int64),
        ("connect_timeout_ms", c_int64),
        ("group_name", c_char_p),
        ("backend_options", c_char_p),
        ("device", c_int32),
        ("reserved", c_int32),
    ]




class dist_store_tcp_options_t(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("fields", c_uint64),
        ("host", c_char_p),
        ("port", c_int32),
        ("is_server", c_int32),
        ("world_size", c_int32),
        ("wait_for_workers", c_int32),
        ("listen_fd", c_int32),
        ("multi_tenant", c_int32),
        ("timeout_ms", c_int64),
        ("bind_address", c_char_p),
        ("secret", c_void_p),
        ("secret_len_bytes", c_size_t),
    ]




class dist_spawn_options_t(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("join_timeout_ms", c_int64),
        ("grace_ms", c_int64),
    ]


dist_spawn_fn = CFUNCTYPE(c_int32, c_int32, c_void_p)


# Groups: groups of ranks: queries, creation of new groups, and failures.
DIST_NO_COLOR = -1
DIST_CULPRIT_NONE = 0
DIST_CULPRIT_DIED = 1
DIST_CULPRIT_LEFT = 2
DIST_CULPRIT_UNREACHABLE = 3
DIST_CULPRIT_STOPPED = 4
DIST_CULPRIT_LATE = 5
DIST_CULPRIT_MISMATCH = 6
DIST_CULPRIT_ABORTED = 7
DIST_CULPRIT_FAILED = 8


class dist_group_options_t(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("fields", c_uint64),
        ("store", c_void_p),
        ("rank", c_int32),
        ("world_size", c_int32),
        ("backend", c_char_p),
        ("name", c_char_p),
        ("timeout_ms", c_int64),
        ("connect_timeout_ms", c_int64),
        ("backend_options", c_char_p),
        ("global_ranks", POINTER(c_int32)),
        ("n_global_ranks", c_size_t),
        ("device", c_int32),
        ("reserved", c_int32),
    ]




class dist_group_new_options_t(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("backend", c_char_p),
        ("backend_options", c_char_p),
        ("timeout_ms", c_int64),
        ("connect_timeout_ms", c_int64),
        ("use_local_synchronization", c_int64),
    ]




class dist_shrink_options_t(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("timeout_ms", c_int64),
        ("connect_timeout_ms", c_int64),
    ]




class dist_culprit_t(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rank", c_int32),
        ("kind", c_int32),
        ("pid", c_int64),
        ("host", c_char * 256),
    ]




# Element types and operators: the types of the elements of vectors, and the operators of reductions.
DIST_I8 = 256
DIST_U8 = 257
DIST_I16 = 258
DIST_U16 = 259
DIST_I32 = 260
DIST_U32 = 261
DIST_I64 = 262
DIST_U64 = 263
DIST_F16 = 264
DIST_BF16 = 265
DIST_F32 = 266
DIST_F64 = 267
DIST_C64 = 268
DIST_C128 = 269
DIST_BOOL = 270
DIST_F8E4M3 = 271
DIST_F8E5M2 = 272
DIST_OPAQUE = 273
DIST_SUM = 512
DIST_PRODUCT = 513
DIST_MIN = 514
DIST_MAX = 515
DIST_AVG = 516
DIST_BAND = 517
DIST_BOR = 518
DIST_BXOR = 519
DIST_PREMUL_SUM = 520
DIST_OP_COMMUTATIVE = 1
dist_op_fn = CFUNCTYPE(None, c_void_p, c_void_p, c_size_t, c_size_t, c_void_p)


# Collectives: operations that all ranks of a group call in the same order.
DIST_CALL_CANONICAL = 1
DIST_CALL_CHECK_NAN = 2
DIST_CALL_CHECK_INF = 4
DIST_CALL_DEVICE = 8
DIST_CALL_SYNCHRONOUS = 16
DIST_LABEL_BYTES = 32


class dist_call_options_t(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("timeout_ms", c_int64),
        ("premul_scale", c_double),
        ("algorithm", c_char_p),
        ("flags", c_uint64),
        ("stream", c_void_p),
        ("device", c_int32),
        ("reserved", c_int32),
        ("label", c_char_p),
    ]




class dist_tensor_t(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("fields", c_uint64),
        ("name", c_char_p),
        ("data", c_void_p),
        ("shape", POINTER(c_int64)),
        ("n_shape", c_size_t),
        ("dtype", c_int32),
        ("device", c_int32),
    ]




# Messages: messages that one rank sends to another rank.
DIST_ANY_SOURCE = -1
DIST_ANY_TAG = -1


class dist_recv_status_t(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("source", c_int32),
        ("tag", c_int32),
        ("count", c_size_t),
        ("dtype", c_int32),
        ("reserved", c_int32),
    ]




# Works: a work is an operation that a call has issued and that may still be running.
dist_work_fn = CFUNCTYPE(None, c_int32, c_char_p, c_void_p)


# Stores: key-value stores, through which ranks find each other; programs may use them, too.


class dist_store_file_options_t(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("job_id", c_char_p),
        ("timeout_ms", c_int64),
    ]


dist_store_sink_fn = CFUNCTYPE(None, c_void_p, c_void_p, c_size_t)


class dist_store_vtable_t(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("set", CFUNCTYPE(c_int32, c_void_p, c_char_p, c_void_p, c_size_t, c_int64)),
        ("get", CFUNCTYPE(
            c_int32, c_void_p, c_char_p, dist_store_sink_fn, c_void_p, c_int64,
        )),
        ("add", CFUNCTYPE(
            c_int32, c_void_p, c_char_p, c_int64, POINTER(c_int64), c_int64,
        )),
        ("wait", CFUNCTYPE(c_int32, c_void_p, POINTER(c_char_p), c_size_t, c_int64)),
        ("check", CFUNCTYPE(
            c_int32, c_void_p, POINTER(c_char_p), c_size_t, POINTER(c_int32), c_int64,
        )),
        ("delete_key", CFUNCTYPE(c_int32, c_void_p, c_char_p, POINTER(c_int32), c_int64)),
        ("destroy", CFUNCTYPE(None, c_void_p)),
        ("compare_set", CFUNCTYPE(
            c_int32, c_void_p, c_char_p, c_void_p, c_size_t, c_void_p, c_size_t, dist_store_sink_fn,
            c_void_p, c_int64,
        )),
        ("append", CFUNCTYPE(c_int32, c_void_p, c_char_p, c_void_p, c_size_t, c_int64)),
        ("num_keys", CFUNCTYPE(c_int32, c_void_p, POINTER(c_int64), c_int64)),
        ("list_keys", CFUNCTYPE(c_int32, c_void_p, dist_store_sink_fn, c_void_p, c_int64)),
        ("queue_push", CFUNCTYPE(c_int32, c_void_p, c_char_p, c_void_p, c_size_t, c_int64)),
        ("queue_pop", CFUNCTYPE(
            c_int32, c_void_p, c_char_p, c_int32, dist_store_sink_fn, c_void_p, c_int64,
        )),
        ("queue_len", CFUNCTYPE(c_int32, c_void_p, c_char_p, POINTER(c_int64), c_int64)),
        ("clone", CFUNCTYPE(c_int32, c_void_p, POINTER(c_void_p), c_int64)),
        ("interrupt", CFUNCTYPE(None, c_void_p)),
    ]




# Memory: memory that operations access without a copy.


# Training: the functions that data-parallel trainers need.
DIST_SAMPLER_IN_ORDER = 1
DIST_SAMPLER_DROP_LAST = 2


class dist_sampler_options_t(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("fields", c_uint64),
        ("num_replicas", c_int32),
        ("rank", c_int32),
        ("seed", c_uint64),
        ("flags", c_uint64),
    ]


DIST_PARAM_FROZEN = 1
DIST_PARAM_BUFFER = 2
DIST_PARAM_SPARSE_ROWS = 4


class dist_param_t(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("fields", c_uint64),
        ("name", c_char_p),
        ("data", c_void_p),
        ("grad", c_void_p),
        ("shape", POINTER(c_int64)),
        ("n_shape", c_size_t),
        ("count", c_size_t),
        ("dtype", c_int32),
        ("grad_dtype", c_int32),
        ("device", c_int32),
        ("reserved", c_int32),
        ("flags", c_uint64),
        ("tag", c_uint64),
    ]


DIST_DIVIDE_WORLD = 0
DIST_DIVIDE_NONE = 1
DIST_DIVIDE_INITIAL = 2
DIST_DIVIDE_WEIGHTED = 3
DIST_MISSING_ERROR = 0
DIST_MISSING_ZERO = 1
DIST_MISSING_SKIP = 2
DIST_REDUCER_RETRYABLE = 1
DIST_REDUCER_CANONICAL = 2
DIST_REDUCER_FIXED_LAYOUT = 4
DIST_REDUCER_MOVE_GRADS = 8
DIST_REDUCER_STATIC_GRAPH = 16
DIST_REDUCER_BROADCAST_BUFFERS = 32
DIST_REDUCER_UNEVEN = 64
DIST_REDUCER_NO_BROADCAST = 128
DIST_REDUCER_SHARDED = 256
DIST_REDUCER_SHARE_GRADS = 512
DIST_STEP_NO_SYNC = 1
DIST_VOTE_COMMIT = 0
DIST_VOTE_NON_FINITE = 1
DIST_VOTE_SKIP = 2
DIST_VOTE_ERROR = 4
DIST_REDUCER_PARAMS = 1
DIST_REDUCER_BUFFERS = 2
DIST_REDUCER_GRADS = 4


class dist_bucket_t(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("index", c_size_t),
        ("n_buckets", c_size_t),
        ("data", c_void_p),
        ("count", c_size_t),
        ("dtype", c_int32),
        ("reserved", c_int32),
        ("params", POINTER(c_size_t)),
        ("offsets", POINTER(c_size_t)),
        ("n_params", c_size_t),
        ("step", c_uint64),
    ]




class dist_reducer_stats_t(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("steps", c_uint64),
        ("n_buckets", c_uint64),
        ("bytes_reduced", c_uint64),
        ("bytes_saved", c_uint64),
        ("bytes_copied", c_uint64),
        ("first_ready_to_last_ready_ns", c_uint64),
        ("communication_ns", c_uint64),
        ("exposed_ns", c_uint64),
        ("step_ns", c_uint64),
        ("rebuilds", c_uint64),
        ("retries", c_uint64),
    ]




class dist_shard_options_t(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("states", POINTER(c_char_p)),
        ("n_states", c_size_t),
        ("copies", c_int32),
        ("reserved", c_int32),
        ("timeout_ms", c_int64),
    ]




class dist_shard_range_t(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("param", c_size_t),
        ("begin", c_size_t),
        ("count", c_size_t),
        ("bucket", c_size_t),
        ("offset", c_size_t),
        ("data", c_void_p),
        ("grad", c_void_p),
    ]


dist_outer_fn = CFUNCTYPE(
    None, c_size_t, POINTER(c_float), POINTER(c_float), POINTER(c_float), c_size_t, c_void_p,
)


class dist_outer_stats_t(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("steps", c_uint64),
        ("updates", c_uint64),
        ("restores", c_uint64),
        ("bytes_reduced", c_uint64),
        ("bytes_saved", c_uint64),
        ("communication_ns", c_uint64),
    ]


dist_bucket_fn = CFUNCTYPE(None, POINTER(dist_bucket_t), c_void_p)
dist_hook_fn = CFUNCTYPE(
    c_int32, c_void_p, POINTER(dist_bucket_t), POINTER(c_uint64), c_void_p,
)


class dist_reducer_options_t(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("flags", c_uint64),
        ("bucket_bytes", c_size_t),
        ("first_bucket_bytes", c_size_t),
        ("divide", c_int32),
        ("missing", c_int32),
        ("timeout_ms", c_int64),
        ("layout", c_void_p),
        ("layout_bytes", c_size_t),
        ("name", c_char_p),
        ("stream", c_void_p),
        ("hook", c_char_p),
        ("hook_settings", c_char_p),
        ("hook_function", dist_hook_fn),
        ("hook_user", c_void_p),
    ]




class dist_outer_options_t(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("every", c_uint64),
        ("fragments", c_size_t),
        ("optimizer", c_char_p),
        ("learning_rate", c_double),
        ("momentum", c_double),
        ("function", dist_outer_fn),
        ("user", c_void_p),
        ("timeout_ms", c_int64),
        ("hook", c_char_p),
        ("hook_settings", c_char_p),
        ("name", c_char_p),
    ]




# Back ends: queries about back ends; authors of back ends use the interface in dist_backend.h.
DIST_KIND_ALL_REDUCE = 0
DIST_KIND_REDUCE = 1
DIST_KIND_BROADCAST = 2
DIST_KIND_ALL_GATHER = 3
DIST_KIND_REDUCE_SCATTER = 4
DIST_KIND_BARRIER = 5
DIST_KIND_GATHER = 6
DIST_KIND_SCATTER = 7
DIST_KIND_ALL_TO_ALL = 8
DIST_KIND_ALL_GATHER_V = 9
DIST_KIND_GATHER_V = 10
DIST_KIND_SCATTER_V = 11
DIST_KIND_REDUCE_SCATTER_V = 12
DIST_KIND_ALL_TO_ALL_V = 13
DIST_KIND_SCAN = 14
DIST_KIND_EXSCAN = 15
DIST_KIND_SEND = 64
DIST_KIND_RECV = 65


# Diagnostics: logs, debug levels, the flight recorder and traces.
DIST_DEBUG_OFF = 0
DIST_DEBUG_INFO = 1
DIST_DEBUG_DETAIL = 2
DIST_LOG_OFF = 0
DIST_LOG_ERROR = 1
DIST_LOG_WARN = 2
DIST_LOG_INFO = 3
DIST_LOG_DEBUG = 4
DIST_LOG_TRACE = 5
dist_log_fn = CFUNCTYPE(None, c_int32, c_char_p, c_void_p)

# The result and the parameters of each function.
FUNCTIONS = {
    # Status and errors
    "dist_version": (c_uint32, ()),
    "dist_version_string": (c_char_p, ()),
    "dist_status_string": (c_char_p, (c_int32,)),
    "dist_last_error": (c_char_p, ()),
    "dist_last_error_copy": (c_size_t, (c_char_p, c_size_t)),
    "dist_last_error_backtrace": (c_char_p, ()),
    # Byte strings
    "dist_blob_count": (c_size_t, (c_void_p,)),
    "dist_blob_data": (c_int32, (c_void_p, c_size_t, POINTER(c_void_p), POINTER(c_size_t))),
    "dist_blob_release": (c_int32, (c_void_p,)),
    # Initialization
    "dist_init": (c_int32, (POINTER(dist_init_options_t),)),
    "dist_finalize": (c_int32, ()),
    "dist_is_initialized": (c_int32, ()),
    "dist_is_elastic_launched": (c_int32, ()),
    "dist_spawn": (c_int32, (
        dist_spawn_fn, c_void_p, c_int32, POINTER(dist_spawn_options_t),
    )),
    "dist_store_tcp_create": (c_int32, (POINTER(dist_store_tcp_options_t), POINTER(c_void_p))),
    # Groups
    "dist_get_rank": (c_int32, (c_void_p,)),
    "dist_get_world_size": (c_int32, (c_void_p,)),
    "dist_world": (c_void_p, ()),
    "dist_group_create": (c_int32, (POINTER(dist_group_options_t), POINTER(c_void_p))),
    "dist_group_abort": (c_int32, (c_void_p, c_char_p)),
    "dist_group_release": (c_int32, (c_void_p,)),
    "dist_group_error": (c_size_t, (c_void_p, c_char_p, c_size_t)),
    "dist_group_sequence": (c_uint64, (c_void_p,)),
    "dist_group_set_timeout": (c_int32, (c_void_p, c_int64)),
    "dist_group_get_timeout": (c_int64, (c_void_p,)),
    "dist_group_name": (c_size_t, (c_void_p, c_char_p, c_size_t)),
    "dist_group_backend": (c_size_t, (c_void_p, c_char_p, c_size_t)),
    "dist_group_local_rank": (c_int32, (c_void_p,)),
    "dist_group_local_size": (c_int32, (c_void_p,)),
    "dist_group_host_index": (c_int32, (c_void_p,)),
    "dist_group_host_count": (c_int32, (c_void_p,)),
    "dist_group_describe": (c_int32, (c_void_p, POINTER(c_void_p))),
    "dist_group_new": (c_int32, (
        c_void_p, POINTER(c_int32), c_size_t, POINTER(dist_group_new_options_t),
        POINTER(c_void_p),
    )),
    "dist_group_split": (c_int32, (
        c_void_p, c_int32, c_int32, POINTER(dist_group_new_options_t), POINTER(c_void_p),
    )),
    "dist_group_ranks": (c_size_t, (c_void_p, POINTER(c_int32), c_size_t)),
    "dist_group_rank_from_global": (c_int32, (c_void_p, c_int32)),
    "dist_group_rank_to_global": (c_int32, (c_void_p, c_int32)),
    "dist_group_shrink": (c_int32, (c_void_p, POINTER(dist_shrink_options_t), POINTER(c_void_p))),
    "dist_group_culprit": (c_int32, (c_void_p, POINTER(dist_culprit_t))),
    # Element types and operators
    "dist_dtype_size": (c_size_t, (c_int32,)),
    "dist_dtype_name": (c_char_p, (c_int32,)),
    "dist_op_name": (c_char_p, (c_int32,)),
    "dist_op_create": (c_int32, (
        c_char_p, dist_op_fn, c_size_t, c_uint64, c_void_p, POINTER(c_int32),
    )),
    "dist_op_release": (c_int32, (c_int32,)),
    # Collectives
    "dist_all_reduce": (c_int32, (
        c_void_p, c_void_p, c_void_p, c_size_t, c_int32, c_int32, POINTER(dist_call_options_t),
        POINTER(c_void_p),
    )),
    "dist_reduce": (c_int32, (
        c_void_p, c_void_p, c_void_p, c_size_t, c_int32, c_int32, c_int32,
        POINTER(dist_call_options_t), POINTER(c_void_p),
    )),
    "dist_broadcast": (c_int32, (
        c_void_p, c_void_p, c_size_t, c_int32, c_int32, POINTER(dist_call_options_t),
        POINTER(c_void_p),
    )),
    "dist_all_gather": (c_int32, (
        c_void_p, c_void_p, c_void_p, c_size_t, c_int32, POINTER(dist_call_options_t),
        POINTER(c_void_p),
    )),
    "dist_reduce_scatter": (c_int32, (
        c_void_p, c_void_p, c_void_p, c_size_t, c_int32, c_int32, POINTER(dist_call_options_t),
        POINTER(c_void_p),
    )),
    "dist_scan": (c_int32, (
        c_void_p, c_void_p, c_void_p, c_size_t, c_int32, c_int32, POINTER(dist_call_options_t),
        POINTER(c_void_p),
    )),
    "dist_exscan": (c_int32, (
        c_void_p, c_void_p, c_void_p, c_size_t, c_int32, c_int32, POINTER(dist_call_options_t),
        POINTER(c_void_p),
    )),
    "dist_barrier": (c_int32, (c_void_p, POINTER(dist_call_options_t), POINTER(c_void_p))),
    "dist_gather": (c_int32, (
        c_void_p, c_void_p, c_void_p, c_size_t, c_int32, c_int32, POINTER(dist_call_options_t),
        POINTER(c_void_p),
    )),
    "dist_scatter": (c_int32, (
        c_void_p, c_void_p, c_void_p, c_size_t, c_int32, c_int32, POINTER(dist_call_options_t),
        POINTER(c_void_p),
    )),
    "dist_all_to_all": (c_int32, (
        c_void_p, c_void_p, c_void_p, c_size_t, c_int32, POINTER(dist_call_options_t),
        POINTER(c_void_p),
    )),
    "dist_all_gather_v": (c_int32, (
        c_void_p, c_void_p, POINTER(c_void_p), POINTER(c_size_t), c_int32,
        POINTER(dist_call_options_t), POINTER(c_void_p),
    )),
    "dist_all_gather_v_at": (c_int32, (
        c_void_p, c_void_p, c_void_p, POINTER(c_size_t), POINTER(c_size_t), c_int32,
        POINTER(dist_call_options_t), POINTER(c_void_p),
    )),
    "dist_all_gather_counts": (c_int32, (
        c_void_p, c_size_t, POINTER(c_size_t), POINTER(dist_call_options_t), POINTER(c_void_p),
    )),
    "dist_all_equal": (c_int32, (
        c_void_p, c_void_p, c_size_t, POINTER(c_int32), POINTER(c_int32),
        POINTER(dist_call_options_t),
    )),
    "dist_gather_v": (c_int32, (
        c_void_p, c_void_p, c_size_t, POINTER(c_void_p), POINTER(c_size_t), c_int32, c_int32,
        POINTER(dist_call_options_t), POINTER(c_void_p),
    )),
    "dist_scatter_v": (c_int32, (
        c_void_p, POINTER(c_void_p), POINTER(c_size_t), c_void_p, c_size_t, c_int32, c_int32,
        POINTER(dist_call_options_t), POINTER(c_void_p),
    )),
    "dist_reduce_scatter_v": (c_int32, (
        c_void_p, POINTER(c_void_p), POINTER(c_size_t), c_void_p, c_int32, c_int32,
        POINTER(dist_call_options_t), POINTER(c_void_p),
    )),
    "dist_all_to_all_v": (c_int32, (
        c_void_p, POINTER(c_void_p), POINTER(c_size_t), POINTER(c_void_p), POINTER(c_size_t),
        c_int32, POINTER(dist_call_options_t), POINTER(c_void_p),
    )),
    "dist_broadcast_list": (c_int32, (
        c_void_p, POINTER(dist_tensor_t), c_size_t, c_int32, POINTER(dist_call_options_t),
        POINTER(c_void_p),
    )),
    "dist_all_reduce_list": (c_int32, (
        c_void_p, POINTER(dist_tensor_t), c_size_t, c_int32, POINTER(dist_call_options_t),
        POINTER(c_void_p),
    )),
    "dist_all_gather_list": (c_int32, (
        c_void_p, POINTER(dist_tensor_t), c_size_t, POINTER(dist_call_options_t),
        POINTER(c_void_p),
    )),
    "dist_reduce_scatter_list": (c_int32, (
        c_void_p, POINTER(dist_tensor_t), c_size_t, c_int32, POINTER(dist_call_options_t),
        POINTER(c_void_p),
    )),
    "dist_broadcast_bytes": (c_int32, (
        c_void_p, c_void_p, c_size_t, c_int32, POINTER(c_void_p), POINTER(dist_call_options_t),
        POINTER(c_void_p),
    )),
    "dist_all_gather_bytes": (c_int32, (
        c_void_p, c_void_p, c_size_t, POINTER(c_void_p), POINTER(dist_call_options_t),
        POINTER(c_void_p),
    )),
    "dist_gather_bytes": (c_int32, (
        c_void_p, c_void_p, c_size_t, c_int32, POINTER(c_void_p), POINTER(dist_call_options_t),
        POINTER(c_void_p),
    )),
    "dist_scatter_bytes": (c_int32, (
        c_void_p, POINTER(c_void_p), POINTER(c_size_t), c_int32, POINTER(c_void_p),
        POINTER(dist_call_options_t), POINTER(c_void_p),
    )),
    "dist_monitored_barrier": (c_int32, (
        c_void_p, c_int64, c_int32, POINTER(c_int32), POINTER(c_size_t),
    )),
    "dist_batch_begin": (c_int32, (POINTER(c_void_p), c_size_t)),
    "dist_batch_end": (c_int32, (POINTER(c_void_p),)),
    "dist_work_test": (c_int32, (c_void_p, POINTER(c_int32))),
    "dist_work_tag": (c_int32, (c_void_p,)),
    "dist_work_test_any": (c_int32, (POINTER(c_void_p), c_size_t, POINTER(c_size_t))),
    # Messages
    "dist_send_bytes": (c_int32, (
        c_void_p, c_void_p, c_size_t, c_int32, c_int32, POINTER(dist_call_options_t),
        POINTER(c_void_p),
    )),
    "dist_recv_bytes": (c_int32, (
        c_void_p, POINTER(c_void_p), c_size_t, c_int32, c_int32, POINTER(dist_recv_status_t),
        POINTER(dist_call_options_t), POINTER(c_void_p),
    )),
    "dist_send": (c_int32, (
        c_void_p, c_void_p, c_size_t, c_int32, c_int32, c_int32, POINTER(dist_call_options_t),
        POINTER(c_void_p),
    )),
    "dist_recv": (c_int32, (
        c_void_p, c_void_p, c_size_t, c_int32, c_int32, c_int32, POINTER(dist_recv_status_t),
        POINTER(dist_call_options_t), POINTER(c_void_p),
    )),
    "dist_probe": (c_int32, (
        c_void_p, c_int32, c_int32, POINTER(dist_recv_status_t), POINTER(dist_call_options_t),
        POINTER(c_void_p),
    )),
    "dist_recv_message": (c_int32, (
        c_void_p, c_void_p, c_size_t, c_int32, POINTER(dist_recv_status_t),
        POINTER(dist_call_options_t), POINTER(c_void_p),
    )),
    "dist_message_release": (c_int32, (c_void_p,)),
    "dist_sendrecv": (c_int32, (
        c_void_p, c_void_p, c_size_t, c_int32, c_int32, c_void_p, c_size_t, c_int32, c_int32,
        c_int32, POINTER(dist_recv_status_t), POINTER(dist_call_options_t), POINTER(c_void_p),
    )),
    # Works
    "dist_work_wait": (c_int32, (c_void_p, c_int64)),
    "dist_work_wait_slice": (c_int32, (c_void_p, c_int64, c_int64)),
    "dist_work_synchronize": (c_int32, (c_void_p, c_int64)),
    "dist_work_error": (c_size_t, (c_void_p, c_char_p, c_size_t)),
    "dist_work_sequence": (c_uint64, (c_void_p,)),
    "dist_work_start_ns": (c_uint64, (c_void_p,)),
    "dist_work_elapsed_ns": (c_uint64, (c_void_p,)),
    "dist_work_source": (c_int32, (c_void_p,)),
    "dist_work_received_count": (c_size_t, (c_void_p,)),
    "dist_work_release": (c_int32, (c_void_p,)),
    "dist_work_wait_all": (c_int32, (POINTER(c_void_p), c_size_t, c_int64)),
    "dist_work_wait_any": (c_int32, (POINTER(c_void_p), c_size_t, c_int64, POINTER(c_size_t))),
    "dist_work_wait_any_slice": (c_int32, (
        POINTER(c_void_p), c_size_t, c_int64, c_int64, POINTER(c_size_t),
    )),
    "dist_work_on_complete": (c_int32, (c_void_p, dist_work_fn, c_void_p)),
    "dist_work_remove_callback": (c_int32, (c_void_p, dist_work_fn, c_void_p)),
    "dist_callbacks_stop": (c_int32, (c_int64,)),
    "dist_callbacks_start": (c_int32, ()),
    "dist_group_fd": (c_int32, (c_void_p,)),
    "dist_group_take_done": (c_size_t, (c_void_p, POINTER(c_void_p), c_size_t)),
    "dist_work_culprit": (c_int32, (c_void_p, POINTER(dist_culprit_t))),
    # Stores
    "dist_store_file_create": (c_int32, (
        c_char_p, c_int32, POINTER(dist_store_file_options_t), POINTER(c_void_p),
    )),
    "dist_store_hash_create": (c_int32, (POINTER(c_void_p),)),
    "dist_store_prefix_create": (c_int32, (c_char_p, c_size_t, c_void_p, POINTER(c_void_p))),
    "dist_store_clone": (c_int32, (c_void_p, POINTER(c_void_p))),
    "dist_store_set": (c_int32, (c_void_p, c_char_p, c_size_t, c_void_p, c_size_t)),
    "dist_store_get": (c_int32, (c_void_p, c_char_p, c_size_t, POINTER(c_void_p))),
    "dist_store_add": (c_int32, (c_void_p, c_char_p, c_size_t, c_int64, POINTER(c_int64))),
    "dist_store_compare_set": (c_int32, (
        c_void_p, c_char_p, c_size_t, c_void_p, c_size_t, c_void_p, c_size_t, POINTER(c_void_p),
    )),
    "dist_store_wait": (c_int32, (
        c_void_p, POINTER(c_char_p), POINTER(c_size_t), c_size_t, c_int64,
    )),
    "dist_store_check": (c_int32, (
        c_void_p, POINTER(c_char_p), POINTER(c_size_t), c_size_t, POINTER(c_int32),
    )),
    "dist_store_num_keys": (c_int32, (c_void_p, POINTER(c_int64))),
    "dist_store_list_keys": (c_int32, (c_void_p, POINTER(c_void_p))),
    "dist_store_delete_key": (c_int32, (c_void_p, c_char_p, c_size_t, POINTER(c_int32))),
    "dist_store_append": (c_int32, (c_void_p, c_char_p, c_size_t, c_void_p, c_size_t)),
    "dist_store_multi_get": (c_int32, (
        c_void_p, POINTER(c_char_p), POINTER(c_size_t), c_size_t, POINTER(c_void_p),
    )),
    "dist_store_multi_set": (c_int32, (
        c_void_p, POINTER(c_char_p), POINTER(c_size_t), POINTER(c_void_p), POINTER(c_size_t),
        c_size_t,
    )),
    "dist_store_set_timeout": (c_int32, (c_void_p, c_int64)),
    "dist_store_get_timeout": (c_int64, (c_void_p,)),
    "dist_store_port": (c_int32, (c_void_p,)),
    "dist_store_host": (c_size_t, (c_void_p, c_char_p, c_size_t)),
    "dist_store_release": (c_int32, (c_void_p,)),
    "dist_store_queue_push": (c_int32, (c_void_p, c_char_p, c_size_t, c_void_p, c_size_t)),
    "dist_store_queue_pop": (c_int32, (c_void_p, c_char_p, c_size_t, c_int32, POINTER(c_void_p))),
    "dist_store_queue_len": (c_int32, (c_void_p, c_char_p, c_size_t, POINTER(c_int64))),
    "dist_store_barrier": (c_int32, (c_void_p, c_char_p, c_size_t, c_int32, c_int64)),
    "dist_store_custom_create": (c_int32, (POINTER(dist_store_vtable_t), c_void_p, POINTER(c_void_p))),
    # Memory
    "dist_mem_alloc": (c_int32, (c_void_p, c_size_t, c_int32, POINTER(c_void_p))),
    "dist_mem_free": (c_int32, (c_void_p,)),
    "dist_mem_register": (c_int32, (c_void_p, c_void_p, c_size_t)),
    "dist_mem_deregister": (c_int32, (c_void_p, c_void_p)),
    # Training
    "dist_outer_create": (c_int32, (
        c_void_p, POINTER(dist_param_t), c_size_t, POINTER(dist_outer_options_t),
        POINTER(c_void_p),
    )),
    "dist_outer_step": (c_int32, (c_void_p, c_uint64, POINTER(c_int64), POINTER(c_uint64))),
    "dist_outer_regroup": (c_int32, (c_void_p, c_void_p)),
    "dist_outer_values": (c_int32, (
        c_void_p, c_size_t, POINTER(c_void_p), POINTER(c_void_p), POINTER(c_size_t),
    )),
    "dist_outer_save": (c_int32, (c_void_p, POINTER(c_void_p))),
    "dist_outer_load": (c_int32, (c_void_p, c_void_p, c_size_t, c_int32)),
    "dist_outer_stats": (c_int32, (c_void_p, POINTER(dist_outer_stats_t))),
    "dist_outer_release": (c_int32, (c_void_p,)),
    "dist_reducer_create": (c_int32, (
        c_void_p, POINTER(dist_param_t), c_size_t, POINTER(dist_reducer_options_t),
        POINTER(c_void_p),
    )),
    "dist_reducer_grad": (c_int32, (c_void_p, c_size_t, POINTER(c_void_p), POINTER(c_size_t))),
    "dist_reducer_result": (c_int32, (c_void_p, c_size_t, POINTER(c_void_p), POINTER(c_size_t))),
    "dist_reducer_rows": (c_int32, (
        c_void_p, c_size_t, POINTER(c_void_p), POINTER(c_void_p), POINTER(c_size_t),
    )),
    "dist_reducer_broadcast": (c_int32, (c_void_p, c_int32, c_uint64)),
    "dist_reducer_check": (c_int32, (c_void_p, c_uint64, POINTER(c_void_p))),
    "dist_reducer_regroup": (c_int32, (c_void_p, c_void_p)),
    "dist_reducer_layout": (c_int32, (c_void_p, POINTER(c_void_p))),
    "dist_reducer_stats": (c_int32, (c_void_p, POINTER(dist_reducer_stats_t))),
    "dist_reducer_describe": (c_int32, (c_void_p, POINTER(c_void_p))),
    "dist_reducer_release": (c_int32, (c_void_p,)),
    "dist_reducer_begin": (c_int32, (c_void_p, c_double, c_uint64)),
    "dist_reducer_ready": (c_int32, (c_void_p, c_size_t)),
    "dist_reducer_ready_many": (c_int32, (c_void_p, POINTER(c_size_t), c_size_t)),
    "dist_reducer_ready_rows": (c_int32, (c_void_p, c_size_t, POINTER(c_int64), c_void_p, c_size_t)),
    "dist_reducer_unused": (c_int32, (c_void_p, c_size_t)),
    "dist_reducer_end": (c_int32, (c_void_p, c_uint64, POINTER(c_uint64), POINTER(c_void_p))),
    "dist_reducer_clip": (c_int32, (c_void_p, c_double, c_double, POINTER(c_double))),
    "dist_reducer_on_bucket": (c_int32, (c_void_p, dist_bucket_fn, c_void_p)),
    "dist_reducer_join": (c_int32, (c_void_p, POINTER(c_uint64))),
    "dist_shard_create": (c_int32, (c_void_p, POINTER(dist_shard_options_t), POINTER(c_void_p))),
    "dist_shard_ranges": (c_int32, (
        c_void_p, POINTER(dist_shard_range_t), c_size_t, POINTER(c_size_t),
    )),
    "dist_shard_state": (c_int32, (c_void_p, c_size_t, POINTER(c_void_p), POINTER(c_size_t))),
    "dist_shard_gather": (c_int32, (c_void_p, POINTER(c_void_p))),
    "dist_shard_wait": (c_int32, (c_void_p, c_size_t)),
    "dist_shard_save": (c_int32, (c_void_p, c_int32, POINTER(c_void_p))),
    "dist_shard_load": (c_int32, (c_void_p, c_void_p, c_size_t, c_int32)),
    "dist_shard_release": (c_int32, (c_void_p,)),
    "dist_sampler_create": (c_int32, (
        c_void_p, c_uint64, POINTER(dist_sampler_options_t), POINTER(c_void_p),
    )),
    "dist_sampler_set_epoch": (c_int32, (c_void_p, c_uint64)),
    "dist_sampler_next": (c_int32, (c_void_p, POINTER(c_uint64), c_size_t, POINTER(c_size_t))),
    "dist_sampler_len": (c_uint64, (c_void_p,)),
    "dist_sampler_position": (c_uint64, (c_void_p,)),
    "dist_sampler_seek": (c_int32, (c_void_p, c_uint64)),
    "dist_sampler_release": (c_int32, (c_void_p,)),
    # Back ends
    "dist_backend_is_available": (c_int32, (c_char_p,)),
    "dist_backend_supports": (c_int32, (c_void_p, c_int32, c_int32, c_int32, c_int32)),
    "dist_backend_load": (c_int32, (c_char_p,)),
    # Diagnostics
    "dist_flight_recorder_dump": (c_int32, (c_void_p, POINTER(c_void_p))),
    "dist_set_log_callback": (c_int32, (dist_log_fn, c_void_p)),
    "dist_set_log_level": (c_int32, (c_int32,)),
    "dist_set_debug_level": (c_int32, (c_int32,)),
    "dist_get_debug_level": (c_int32, ()),
    "dist_set_debug_level_from_env": (c_int32, ()),
    "dist_trace_start": (c_int32, (c_char_p,)),
    "dist_trace_stop": (c_int32, ()),
}
