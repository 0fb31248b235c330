# Generated from the source of the library by `cargo xtask python`; do not edit.

from ctypes import Structure
from typing import Any, Final

# An address, a handle, an object of ctypes, or None for NULL.
_Pointer = Any
# A function object of ctypes, or None for NULL.
_Function = Any

FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]]


# Status and errors: the outcomes of calls, the messages of errors, and the version of the library.
DIST_OK: Final = 0
DIST_IN_PROGRESS: Final = 1
DIST_ERR_INVALID_ARGUMENT: Final = -1
DIST_ERR_INVALID_HANDLE: Final = -2
DIST_ERR_NOT_INITIALIZED: Final = -3
DIST_ERR_ALREADY_INITIALIZED: Final = -4
DIST_ERR_UNSUPPORTED: Final = -5
DIST_ERR_NOT_FOUND: Final = -6
DIST_ERR_QUEUE_EMPTY: Final = -7
DIST_ERR_NOT_A_NUMBER: Final = -8
DIST_ERR_TIMEOUT: Final = -100
DIST_ERR_PEER_FAILED: Final = -101
DIST_ERR_MISMATCH: Final = -102
DIST_ERR_ABORTED: Final = -103
DIST_ERR_CONNECTION: Final = -104
DIST_ERR_AUTH: Final = -105
DIST_ERR_DEADLOCK: Final = -106
DIST_ERR_OUT_OF_MEMORY: Final = -200
DIST_ERR_SYSTEM: Final = -201
DIST_ERR_BACKEND: Final = -202
DIST_ERR_INTERNAL: Final = -300
DIST_WAIT_FOREVER: Final = -1
DIST_NO_WAIT: Final = -2


# Byte strings: lists of byte strings that the library makes and the caller releases.


# Initialization: functions that create and end the world, the group of all ranks of the job.
DIST_DEVICE_HOST: Final = -1
DIST_FIELD_RANK: Final = 1
DIST_FIELD_LISTEN_FD: Final = 2
DIST_FIELD_WAIT_FOR_WORKERS: Final = 4
DIST_FIELD_DEVICE: Final = 8


class dist_init_options_t(Structure):
    """Options of dist_init."""
    struct_size: int
    fields: int
    backend: _Pointer
    init_method: _Pointer
    store: _Pointer
    rank: int
    world_size: int
    timeout_ms: int
    connect_timeout_ms: int
    group_name: _Pointer
    backend_options: _Pointer
    device: int
    reserved: int




class dist_store_tcp_options_t(Structure):
    """Options of dist_store_tcp_create."""
    struct_size: int
    fields: int
    host: _Pointer
    port: int
    is_server: int
    world_size: int
    wait_for_workers: int
    listen_fd: int
    multi_tenant: int
    timeout_ms: int
    bind_address: _Pointer
    secret: _Pointer
    secret_len_bytes: int




class dist_spawn_options_t(Structure):
    """Options of dist_spawn."""
    struct_size: int
    join_timeout_ms: int
    grace_ms: int


dist_spawn_fn: Any


# Groups: groups of ranks: queries, creation of new groups, and failures.
DIST_NO_COLOR: Final = -1
DIST_CULPRIT_NONE: Final = 0
DIST_CULPRIT_DIED: Final = 1
DIST_CULPRIT_LEFT: Final = 2
DIST_CULPRIT_UNREACHABLE: Final = 3
DIST_CULPRIT_STOPPED: Final = 4
DIST_CULPRIT_LATE: Final = 5
DIST_CULPRIT_MISMATCH: Final = 6
DIST_CULPRIT_ABORTED: Final = 7
DIST_CULPRIT_FAILED: Final = 8


class dist_group_options_t(Structure):
    """Options of dist_group_create."""
    struct_size: int
    fields: int
    store: _Pointer
    rank: int
    world_size: int
    backend: _Pointer
    name: _Pointer
    timeout_ms: int
    connect_timeout_ms: int
    backend_options: _Pointer
    global_ranks: _Pointer
    n_global_ranks: int
    device: int
    reserved: int




class dist_group_new_options_t(Structure):
    """Options of dist_group_new and dist_group_split."""
    struct_size: int
    name: _Pointer
    backend: _Pointer
    backend_options: _Pointer
    timeout_ms: int
    connect_timeout_ms: int
    use_local_synchronization: int




class dist_shrink_options_t(Structure):
    """Options of dist_group_shrink."""
    struct_size: int
    timeout_ms: int
    connect_timeout_ms: int




class dist_culprit_t(Structure):
    """The rank that an error blames, its fault and its process (dist_work_culprit, dist_group_culprit)."""
    struct_size: int
    rank: int
    kind: int
    pid: int
    host: bytes




# Element types and operators: the types of the elements of vectors, and the operators of reductions.
DIST_I8: Final = 256
DIST_U8: Final = 257
DIST_I16: Final = 258
DIST_U16: Final = 259
DIST_I32: Final = 260
DIST_U32: Final = 261
DIST_I64: Final = 262
DIST_U64: Final = 263
DIST_F16: Final = 264
DIST_BF16: Final = 265
DIST_F32: Final = 266
DIST_F64: Final = 267
DIST_C64: Final = 268
DIST_C128: Final = 269
DIST_BOOL: Final = 270
DIST_F8E4M3: Final = 271
DIST_F8E5M2: Final = 272
DIST_OPAQUE: Final = 273
DIST_SUM: Final = 512
DIST_PRODUCT: Final = 513
DIST_MIN: Final = 514
DIST_MAX: Final = 515
DIST_AVG: Final = 516
DIST_BAND: Final = 517
DIST_BOR: Final = 518
DIST_BXOR: Final = 519
DIST_PREMUL_SUM: Final = 520
DIST_OP_COMMUTATIVE: Final = 1
dist_op_fn: Any


# Collectives: operations that all ranks of a group call in the same order.
DIST_CALL_CANONICAL: Final = 1
DIST_CALL_CHECK_NAN: Final = 2
DIST_CALL_CHECK_INF: Final = 4
DIST_CALL_DEVICE: Final = 8
DIST_CALL_SYNCHRONOUS: Final = 16
DIST_LABEL_BYTES: Final = 32


class dist_call_options_t(Structure):
    """Options of one collective call or of one message."""
    struct_size: int
    timeout_ms: int
    premul_scale: float
    algorithm: _Pointer
    flags: int
    stream: _Pointer
    device: int
    reserved: int
    label: _Pointer




class dist_tensor_t(Structure):
    """Describes a tensor of a list."""
    struct_size: int
    fields: int
    name: _Pointer
    data: _Pointer
    shape: _Pointer
    n_shape: int
    dtype: int
    device: int




# Messages: messages that one rank sends to another rank.
DIST_ANY_SOURCE: Final = -1
DIST_ANY_TAG: Final = -1


class dist_recv_status_t(Structure):
    """Source, tag, count and type of a received message."""
    struct_size: int
    source: int
    tag: int
    count: int
    dtype: int
    reserved: int




# Works: a work is an operation that a call has issued and that may still be running.
dist_work_fn: Any


# Stores: key-value stores, through which ranks find each other; programs may use them, too.


class dist_store_file_options_t(Structure):
    """Options of dist_store_file_create."""
    struct_size: int
    job_id: _Pointer
    timeout_ms: int


dist_store_sink_fn: Any


class dist_store_vtable_t(Structure):
    """The functions of a custom store (dist_store_custom_create), such as etcd or Redis."""
    struct_size: int
    set: _Function
    get: _Function
    add: _Function
    wait: _Function
    check: _Function
    delete_key: _Function
    destroy: _Function
    compare_set: _Function
    append: _Function
    num_keys: _Function
    list_keys: _Function
    queue_push: _Function
    queue_pop: _Function
    queue_len: _Function
    clone: _Function
    interrupt: _Function




# Memory: memory that operations access without a copy.


# Training: the functions that data-parallel trainers need.
DIST_SAMPLER_IN_ORDER: Final = 1
DIST_SAMPLER_DROP_LAST: Final = 2


class dist_sampler_options_t(Structure):
    """Options of dist_sampler_create."""
    struct_size: int
    fields: int
    num_replicas: int
    rank: int
    seed: int
    flags: int


DIST_PARAM_FROZEN: Final = 1
DIST_PARAM_BUFFER: Final = 2
DIST_PARAM_SPARSE_ROWS: Final = 4


class dist_param_t(Structure):
    """Describes a parameter of a model."""
    struct_size: int
    fields: int
    name: _Pointer
    data: _Pointer
    grad: _Pointer
    shape: _Pointer
    n_shape: int
    count: int
    dtype: int
    grad_dtype: int
    device: int
    reserved: int
    flags: int
    tag: int


DIST_DIVIDE_WORLD: Final = 0
DIST_DIVIDE_NONE: Final = 1
DIST_DIVIDE_INITIAL: Final = 2
DIST_DIVIDE_WEIGHTED: Final = 3
DIST_MISSING_ERROR: Final = 0
DIST_MISSING_ZERO: Final = 1
DIST_MISSING_SKIP: Final = 2
DIST_REDUCER_RETRYABLE: Final = 1
DIST_REDUCER_CANONICAL: Final = 2
DIST_REDUCER_FIXED_LAYOUT: Final = 4
DIST_REDUCER_MOVE_GRADS: Final = 8
DIST_REDUCER_STATIC_GRAPH: Final = 16
DIST_REDUCER_BROADCAST_BUFFERS: Final = 32
DIST_REDUCER_UNEVEN: Final = 64
DIST_REDUCER_NO_BROADCAST: Final = 128
DIST_REDUCER_SHARDED: Final = 256
DIST_REDUCER_SHARE_GRADS: Final = 512
DIST_STEP_NO_SYNC: Final = 1
DIST_VOTE_COMMIT: Final = 0
DIST_VOTE_NON_FINITE: Final = 1
DIST_VOTE_SKIP: Final = 2
DIST_VOTE_ERROR: Final = 4
DIST_REDUCER_PARAMS: Final = 1
DIST_REDUCER_BUFFERS: Final = 2
DIST_REDUCER_GRADS: Final = 4


class dist_bucket_t(Structure):
    """A bucket of gradients, as a function of dist_reducer_on_bucket or a hook function gets it."""
    struct_size: int
    index: int
    n_buckets: int
    data: _Pointer
    count: int
    dtype: int
    reserved: int
    params: _Pointer
    offsets: _Pointer
    n_params: int
    step: int




class dist_reducer_stats_t(Structure):
    """Figures of a reducer."""
    struct_size: int
    steps: int
    n_buckets: int
    bytes_reduced: int
    bytes_saved: int
    bytes_copied: int
    first_ready_to_last_ready_ns: int
    communication_ns: int
    exposed_ns: int
    step_ns: int
    rebuilds: int
    retries: int




class dist_shard_options_t(Structure):
    """Options of dist_shard_create."""
    struct_size: int
    states: _Pointer
    n_states: int
    copies: int
    reserved: int
    timeout_ms: int




class dist_shard_range_t(Structure):
    """Elements of one parameter that this rank updates."""
    struct_size: int
    param: int
    begin: int
    count: int
    bucket: int
    offset: int
    data: _Pointer
    grad: _Pointer


dist_outer_fn: Any


class dist_outer_stats_t(Structure):
    """Figures of an outer optimizer on this rank."""
    struct_size: int
    steps: int
    updates: int
    restores: int
    bytes_reduced: int
    bytes_saved: int
    communication_ns: int


dist_bucket_fn: Any
dist_hook_fn: Any


class dist_reducer_options_t(Structure):
    """Options of dist_reducer_create."""
    struct_size: int
    flags: int
    bucket_bytes: int
    first_bucket_bytes: int
    divide: int
    missing: int
    timeout_ms: int
    layout: _Pointer
    layout_bytes: int
    name: _Pointer
    stream: _Pointer
    hook: _Pointer
    hook_settings: _Pointer
    hook_function: _Function
    hook_user: _Pointer




class dist_outer_options_t(Structure):
    """Options of dist_outer_create."""
    struct_size: int
    every: int
    fragments: int
    optimizer: _Pointer
    learning_rate: float
    momentum: float
    function: _Function
    user: _Pointer
    timeout_ms: int
    hook: _Pointer
    hook_settings: _Pointer
    name: _Pointer




# Back ends: queries about back ends; authors of back ends use the interface in dist_backend.h.
DIST_KIND_ALL_REDUCE: Final = 0
DIST_KIND_REDUCE: Final = 1
DIST_KIND_BROADCAST: Final = 2
DIST_KIND_ALL_GATHER: Final = 3
DIST_KIND_REDUCE_SCATTER: Final = 4
DIST_KIND_BARRIER: Final = 5
DIST_KIND_GATHER: Final = 6
DIST_KIND_SCATTER: Final = 7
DIST_KIND_ALL_TO_ALL: Final = 8
DIST_KIND_ALL_GATHER_V: Final = 9
DIST_KIND_GATHER_V: Final = 10
DIST_KIND_SCATTER_V: Final = 11
DIST_KIND_REDUCE_SCATTER_V: Final = 12
DIST_KIND_ALL_TO_ALL_V: Final = 13
DIST_KIND_SCAN: Final = 14
DIST_KIND_EXSCAN: Final = 15
DIST_KIND_SEND: Final = 64
DIST_KIND_RECV: Final = 65


# Diagnostics: logs, debug levels, the flight recorder and traces.
DIST_DEBUG_OFF: Final = 0
DIST_DEBUG_INFO: Final = 1
DIST_DEBUG_DETAIL: Final = 2
DIST_LOG_OFF: Final = 0
DIST_LOG_ERROR: Final = 1
DIST_LOG_WARN: Final = 2
DIST_LOG_INFO: Final = 3
DIST_LOG_DEBUG: Final = 4
DIST_LOG_TRACE: Final = 5
dist_log_fn: Any


class Library:
    """The loaded library; each function is an attribute."""

    def dist_version(self) -> int:
        """Returns the version of the loaded library as MAJOR * 10000 + MINOR * 100 + PATCH."""

    def dist_version_string(self) -> bytes | None:
        """Returns the version of the loaded library as text, such as '0.1.0'."""

    def dist_status_string(self, status: int) -> bytes | None:
        """Describes a status in a few words, such as 'timed out'."""

    def dist_last_error(self) -> bytes | None:
        """Returns the message of the calling thread's last failed call."""

    def dist_last_error_copy(self, buf: _Pointer, cap: int) -> int:
        """Copies the message of the calling thread's last failed call."""

    def dist_last_error_backtrace(self) -> bytes | None:
        """Returns the call stack of the calling thread's last failed call."""

    def dist_blob_count(self, blob: _Pointer) -> int:
        """Returns the number of byte strings in a blob."""

    def dist_blob_data(
        self, blob: _Pointer, index: int, data: _Pointer, len_bytes: _Pointer,
    ) -> int:
        """Returns one byte string of a blob."""

    def dist_blob_release(self, blob: _Pointer) -> int:
        """Releases a blob and its bytes."""

    def dist_init(self, options: _Pointer) -> int:
        """Creates the world group together with all other processes of the job."""

    def dist_finalize(self) -> int:
        """Leaves the world group and ends its handle; dist_init may be called again afterwards."""

    def dist_is_initialized(self) -> int:
        """Returns whether the world group exists."""

    def dist_is_elastic_launched(self) -> int:
        """Returns whether torchrun or distrun started this process."""

    def dist_spawn(
        self, function: _Function, arg: _Pointer, nprocs: int, options: _Pointer,
    ) -> int:
        """Runs a function in forked processes, one for each rank, and waits for all of them."""

    def dist_store_tcp_create(self, options: _Pointer, out: _Pointer) -> int:
        """Connects to a TCP store, and hosts the store if `is_server` is set."""

    def dist_get_rank(self, group: _Pointer) -> int:
        """Returns this process's rank in a group."""

    def dist_get_world_size(self, group: _Pointer) -> int:
        """Returns the number of ranks of a group."""

    def dist_world(self) -> int | None:
        """Returns the world group."""

    def dist_group_create(self, options: _Pointer, out: _Pointer) -> int:
        """Creates a group whose ranks bootstrap through a store, independently of dist_init."""

    def dist_group_abort(self, group: _Pointer, reason: _Pointer) -> int:
        """Fails a group on all its ranks, with a reason."""

    def dist_group_release(self, group: _Pointer) -> int:
        """Leaves a group and ends its handle."""

    def dist_group_error(self, group: _Pointer, buf: _Pointer, cap: int) -> int:
        """Copies the message of the error that failed a group."""

    def dist_group_sequence(self, group: _Pointer) -> int:
        """Returns how many collectives this rank has issued on a group."""

    def dist_group_set_timeout(self, group: _Pointer, timeout_ms: int) -> int:
        """Sets the default time-out of a group's operations on this rank."""

    def dist_group_get_timeout(self, group: _Pointer) -> int:
        """Returns the default time-out of a group's operations on this rank, in milliseconds."""

    def dist_group_name(self, group: _Pointer, buf: _Pointer, cap: int) -> int:
        """Copies a group's name."""

    def dist_group_backend(self, group: _Pointer, buf: _Pointer, cap: int) -> int:
        """Copies the name of a group's back end."""

    def dist_group_local_rank(self, group: _Pointer) -> int:
        """Returns this rank's position among the group's ranks on its host, from 0."""

    def dist_group_local_size(self, group: _Pointer) -> int:
        """Returns the number of the group's ranks on this rank's host."""

    def dist_group_host_index(self, group: _Pointer) -> int:
        """Returns the number of this rank's host among the group's hosts, from 0."""

    def dist_group_host_count(self, group: _Pointer) -> int:
        """Returns the number of hosts that the group's ranks run on."""

    def dist_group_describe(self, group: _Pointer, json: _Pointer) -> int:
        """Describes a group as JSON."""

    def dist_group_new(
        self, parent: _Pointer, ranks: _Pointer, n: int, options: _Pointer, out: _Pointer,
    ) -> int:
        """Creates a group of some ranks of another group, in the given order."""

    def dist_group_split(
        self, parent: _Pointer, color: int, key: int, options: _Pointer, out: _Pointer,
    ) -> int:
        """Splits a group into one group for each color."""

    def dist_group_ranks(self, group: _Pointer, out: _Pointer, cap: int) -> int:
        """Copies, for each rank of a group, the rank of the same process in the outermost group."""

    def dist_group_rank_from_global(self, group: _Pointer, global_rank: int) -> int:
        """Converts a rank of the outermost group (see dist_group_ranks) to a rank of a group."""

    def dist_group_rank_to_global(self, group: _Pointer, rank: int) -> int:
        """Converts a rank of a group to its rank in the outermost group (see dist_group_ranks)."""

    def dist_group_shrink(self, group: _Pointer, options: _Pointer, out: _Pointer) -> int:
        """Creates a group of the remaining ranks of a failed group."""

    def dist_group_culprit(self, group: _Pointer, out: _Pointer) -> int:
        """Returns the rank that has failed a group, with the kind of its failure and its process."""

    def dist_dtype_size(self, dtype: int) -> int:
        """Returns the size of one element of a type in bytes."""

    def dist_dtype_name(self, dtype: int) -> bytes | None:
        """Returns the name of an element type, such as 'f32', as error messages show it."""

    def dist_op_name(self, op: int) -> bytes | None:
        """Returns the name of a built-in operator, such as 'sum'."""

    def dist_op_create(
        self, name: _Pointer, function: _Function, elem_bytes: int, flags: int, user: _Pointer,
        out: _Pointer,
    ) -> int:
        """Creates an operator from a function, for every collective that reduces."""

    def dist_op_release(self, op: int) -> int:
        """Releases an operator."""

    def dist_all_reduce(
        self, group: _Pointer, send: _Pointer, recv: _Pointer, count: int, dtype: int, op: int,
        options: _Pointer, work: _Pointer,
    ) -> int:
        """Reduces the vectors of all ranks and gives every rank a bitwise identical result."""

    def dist_reduce(
        self, group: _Pointer, send: _Pointer, recv: _Pointer, count: int, dtype: int, op: int,
        root: int, options: _Pointer, work: _Pointer,
    ) -> int:
        """Reduces the vectors of all ranks and gives the root the result."""

    def dist_broadcast(
        self, group: _Pointer, buf: _Pointer, count: int, dtype: int, root: int,
        options: _Pointer, work: _Pointer,
    ) -> int:
        """Copies the root's vector to all ranks."""

    def dist_all_gather(
        self, group: _Pointer, send: _Pointer, recv: _Pointer, count: int, dtype: int,
        options: _Pointer, work: _Pointer,
    ) -> int:
        """Gives every rank the vectors of all ranks, in rank order."""

    def dist_reduce_scatter(
        self, group: _Pointer, send: _Pointer, recv: _Pointer, count: int, dtype: int, op: int,
        options: _Pointer, work: _Pointer,
    ) -> int:
        """Reduces the vectors of all ranks and gives each rank its block of the result."""

    def dist_scan(
        self, group: _Pointer, send: _Pointer, recv: _Pointer, count: int, dtype: int, op: int,
        options: _Pointer, work: _Pointer,
    ) -> int:
        """Reduces the vectors of the ranks up to this rank: rank r gets the reduction of ranks 0 to r."""

    def dist_exscan(
        self, group: _Pointer, send: _Pointer, recv: _Pointer, count: int, dtype: int, op: int,
        options: _Pointer, work: _Pointer,
    ) -> int:
        """Reduces the vectors of all lower ranks: rank r gets the reduction of ranks 0 to r - 1."""

    def dist_barrier(self, group: _Pointer, options: _Pointer, work: _Pointer) -> int:
        """Completes when all ranks of the group have called dist_barrier."""

    def dist_gather(
        self, group: _Pointer, send: _Pointer, recv: _Pointer, count: int, dtype: int, root: int,
        options: _Pointer, work: _Pointer,
    ) -> int:
        """Gives the root the vectors of all ranks, in rank order."""

    def dist_scatter(
        self, group: _Pointer, send: _Pointer, recv: _Pointer, count: int, dtype: int, root: int,
        options: _Pointer, work: _Pointer,
    ) -> int:
        """Gives each rank its block of the root's vector."""

    def dist_all_to_all(
        self, group: _Pointer, send: _Pointer, recv: _Pointer, count: int, dtype: int,
        options: _Pointer, work: _Pointer,
    ) -> int:
        """Exchanges blocks between all pairs of ranks: block j of rank i goes to block i of rank j."""

    def dist_all_gather_v(
        self, group: _Pointer, send: _Pointer, recv: _Pointer, counts: _Pointer, dtype: int,
        options: _Pointer, work: _Pointer,
    ) -> int:
        """Gives every rank the vectors of all ranks, each of its own length and in its own buffer."""

    def dist_all_gather_v_at(
        self, group: _Pointer, send: _Pointer, recv: _Pointer, counts: _Pointer, displs: _Pointer,
        dtype: int, options: _Pointer, work: _Pointer,
    ) -> int:
        """Gives every rank the vectors of all ranks, each of its own length, in one buffer."""

    def dist_all_gather_counts(
        self, group: _Pointer, count: int, counts: _Pointer, options: _Pointer, work: _Pointer,
    ) -> int:
        """Gives every rank the counts of all ranks, for calls that need all counts."""

    def dist_all_equal(
        self, group: _Pointer, bytes: _Pointer, len_bytes: int, equal: _Pointer,
        differing_rank: _Pointer, options: _Pointer,
    ) -> int:
        """Reports whether all ranks have the same bytes, and the first rank that differs."""

    def dist_gather_v(
        self, group: _Pointer, send: _Pointer, count: int, recv: _Pointer, counts: _Pointer,
        dtype: int, root: int, options: _Pointer, work: _Pointer,
    ) -> int:
        """Gives the root the vectors of all ranks, each of its own length and in its own buffer."""

    def dist_scatter_v(
        self, group: _Pointer, send: _Pointer, counts: _Pointer, recv: _Pointer, count: int,
        dtype: int, root: int, options: _Pointer, work: _Pointer,
    ) -> int:
        """Gives each rank a vector of the root; the vectors have their own lengths and buffers."""

    def dist_reduce_scatter_v(
        self, group: _Pointer, send: _Pointer, counts: _Pointer, recv: _Pointer, dtype: int,
        op: int, options: _Pointer, work: _Pointer,
    ) -> int:
        """Reduces one vector for each rank, each of its own length, and gives each rank its result."""

    def dist_all_to_all_v(
        self, group: _Pointer, send: _Pointer, send_counts: _Pointer, recv: _Pointer,
        recv_counts: _Pointer, dtype: int, options: _Pointer, work: _Pointer,
    ) -> int:
        """Exchanges vectors between all pairs of ranks, each of its own length and in its own buffer."""

    def dist_broadcast_list(
        self, group: _Pointer, tensors: _Pointer, n: int, root: int, options: _Pointer,
        work: _Pointer,
    ) -> int:
        """Copies a list of the root's tensors to all ranks."""

    def dist_all_reduce_list(
        self, group: _Pointer, tensors: _Pointer, n: int, op: int, options: _Pointer,
        work: _Pointer,
    ) -> int:
        """Reduces a list of tensors of all ranks in place, and gives every rank the result."""

    def dist_all_gather_list(
        self, group: _Pointer, tensors: _Pointer, n: int, options: _Pointer, work: _Pointer,
    ) -> int:
        """Gives every rank the blocks of all ranks, for each tensor of a list, in place."""

    def dist_reduce_scatter_list(
        self, group: _Pointer, tensors: _Pointer, n: int, op: int, options: _Pointer,
        work: _Pointer,
    ) -> int:
        """Reduces a list of tensors of all ranks in place, and gives each rank its own blocks."""

    def dist_broadcast_bytes(
        self, group: _Pointer, data: _Pointer, len_bytes: int, root: int, out: _Pointer,
        options: _Pointer, work: _Pointer,
    ) -> int:
        """Gives every rank the root's byte string, which may have any length."""

    def dist_all_gather_bytes(
        self, group: _Pointer, data: _Pointer, len_bytes: int, out: _Pointer, options: _Pointer,
        work: _Pointer,
    ) -> int:
        """Gives every rank the byte strings of all ranks; each string may have any length."""

    def dist_gather_bytes(
        self, group: _Pointer, data: _Pointer, len_bytes: int, root: int, out: _Pointer,
        options: _Pointer, work: _Pointer,
    ) -> int:
        """Gives the root the byte strings of all ranks; each string may have any length."""

    def dist_scatter_bytes(
        self, group: _Pointer, data: _Pointer, lens_bytes: _Pointer, root: int, out: _Pointer,
        options: _Pointer, work: _Pointer,
    ) -> int:
        """Gives each rank a byte string of its own from the root; each string may have any length."""

    def dist_monitored_barrier(
        self, group: _Pointer, timeout_ms: int, wait_all_ranks: int, missing: _Pointer,
        n_missing: _Pointer,
    ) -> int:
        """Waits until all ranks have called this barrier, or names the ranks that have not."""

    def dist_batch_begin(self, groups: _Pointer, n: int) -> int:
        """Begins a batch of the calling thread, which collects calls until dist_batch_end."""

    def dist_batch_end(self, work: _Pointer) -> int:
        """Ends the calling thread's batch and issues its calls."""

    def dist_work_test(self, work: _Pointer, done: _Pointer) -> int:
        """Reports whether a work is done."""

    def dist_work_tag(self, work: _Pointer) -> int:
        """Returns the tag of the message that a work received or sent."""

    def dist_work_test_any(self, works: _Pointer, n: int, index: _Pointer) -> int:
        """Reports whether a work of a list is done."""

    def dist_send_bytes(
        self, group: _Pointer, data: _Pointer, len_bytes: int, peer: int, tag: int,
        options: _Pointer, work: _Pointer,
    ) -> int:
        """Sends a byte string of any length to one rank of a group."""

    def dist_recv_bytes(
        self, group: _Pointer, out: _Pointer, max_bytes: int, peer: int, tag: int,
        status: _Pointer, options: _Pointer, work: _Pointer,
    ) -> int:
        """Receives a byte string of any length from one rank of a group."""

    def dist_send(
        self, group: _Pointer, buf: _Pointer, count: int, dtype: int, peer: int, tag: int,
        options: _Pointer, work: _Pointer,
    ) -> int:
        """Sends a message to one rank of a group."""

    def dist_recv(
        self, group: _Pointer, buf: _Pointer, count: int, dtype: int, peer: int, tag: int,
        status: _Pointer, options: _Pointer, work: _Pointer,
    ) -> int:
        """Receives a message from one rank of a group."""

    def dist_probe(
        self, group: _Pointer, peer: int, tag: int, status: _Pointer, options: _Pointer,
        message: _Pointer,
    ) -> int:
        """Finds a message before it is received, and optionally takes it out of matching."""

    def dist_recv_message(
        self, message: _Pointer, buf: _Pointer, count: int, dtype: int, status: _Pointer,
        options: _Pointer, work: _Pointer,
    ) -> int:
        """Receives a message that dist_probe took out of matching."""

    def dist_message_release(self, message: _Pointer) -> int:
        """Returns a message to matching, to its old position in the order of messages."""

    def dist_sendrecv(
        self, group: _Pointer, send: _Pointer, send_count: int, dest: int, send_tag: int,
        recv: _Pointer, recv_count: int, source: int, recv_tag: int, dtype: int, status: _Pointer,
        options: _Pointer, work: _Pointer,
    ) -> int:
        """Sends one message and receives another at the same time."""

    def dist_work_wait(self, work: _Pointer, timeout_ms: int) -> int:
        """Waits until a work is done."""

    def dist_work_wait_slice(self, work: _Pointer, timeout_ms: int, slice_ms: int) -> int:
        """Waits for a work in one slice of a longer wait, so that the caller can do something between."""

    def dist_work_synchronize(self, work: _Pointer, timeout_ms: int) -> int:
        """Waits until a work is done and, for the memory of a GPU, until the device is done as well."""

    def dist_work_error(self, work: _Pointer, buf: _Pointer, cap: int) -> int:
        """Copies the message of a work's error: '' while the work is pending and if it has succeeded."""

    def dist_work_sequence(self, work: _Pointer) -> int:
        """Returns the sequence number of a work's operation, from 1."""

    def dist_work_start_ns(self, work: _Pointer) -> int:
        """Returns when a work was issued, in nanoseconds since 1970, as in the flight recorder."""

    def dist_work_elapsed_ns(self, work: _Pointer) -> int:
        """Returns the time from the issue of a work until it was done, in nanoseconds."""

    def dist_work_source(self, work: _Pointer) -> int:
        """Returns the rank that sent the received message; for a send, the rank that receives it."""

    def dist_work_received_count(self, work: _Pointer) -> int:
        """Returns how many elements a work has received."""

    def dist_work_release(self, work: _Pointer) -> int:
        """Releases a work."""

    def dist_work_wait_all(self, works: _Pointer, n: int, timeout_ms: int) -> int:
        """Waits until all works of a list are done."""

    def dist_work_wait_any(
        self, works: _Pointer, n: int, timeout_ms: int, index: _Pointer,
    ) -> int:
        """Waits until at least one work of a list is done."""

    def dist_work_wait_any_slice(
        self, works: _Pointer, n: int, timeout_ms: int, slice_ms: int, index: _Pointer,
    ) -> int:
        """Waits for any work of a list in one slice of a longer wait."""

    def dist_work_on_complete(self, work: _Pointer, function: _Function, user: _Pointer) -> int:
        """Registers a function that the library calls once a work is done."""

    def dist_work_remove_callback(self, work: _Pointer, function: _Function, user: _Pointer) -> int:
        """Withdraws a function that dist_work_on_complete registered and that has not been called."""

    def dist_callbacks_stop(self, timeout_ms: int) -> int:
        """Stops all completion callbacks of the process."""

    def dist_callbacks_start(self) -> int:
        """Allows completion callbacks again after dist_callbacks_stop."""

    def dist_group_fd(self, group: _Pointer) -> int:
        """Returns a descriptor that is readable while done works of a group have not been taken."""

    def dist_group_take_done(self, group: _Pointer, out: _Pointer, cap: int) -> int:
        """Takes the works of a group that are done and not yet taken, in the order of completion."""

    def dist_work_culprit(self, work: _Pointer, out: _Pointer) -> int:
        """Returns the rank that a work's error names, with the kind of its failure and its process."""

    def dist_store_file_create(
        self, path: _Pointer, world_size: int, options: _Pointer, out: _Pointer,
    ) -> int:
        """Opens a store in a file, and creates the file if it is missing."""

    def dist_store_hash_create(self, out: _Pointer) -> int:
        """Creates a store in the memory of this process, for ranks that are threads."""

    def dist_store_prefix_create(
        self, prefix: _Pointer, prefix_len_bytes: int, inner: _Pointer, out: _Pointer,
    ) -> int:
        """Creates a store that puts a prefix and '/' before every key of another store."""

    def dist_store_clone(self, store: _Pointer, out: _Pointer) -> int:
        """Creates a second handle of the same store."""

    def dist_store_set(
        self, store: _Pointer, key: _Pointer, key_len_bytes: int, value: _Pointer, len_bytes: int,
    ) -> int:
        """Stores a value under a key and replaces an earlier value."""

    def dist_store_get(
        self, store: _Pointer, key: _Pointer, key_len_bytes: int, out: _Pointer,
    ) -> int:
        """Returns the value of a key, and waits until the key exists."""

    def dist_store_add(
        self, store: _Pointer, key: _Pointer, key_len_bytes: int, amount: int, out: _Pointer,
    ) -> int:
        """Adds to a counter and returns the sum."""

    def dist_store_compare_set(
        self, store: _Pointer, key: _Pointer, key_len_bytes: int, expected: _Pointer,
        expected_len_bytes: int, desired: _Pointer, desired_len_bytes: int, out: _Pointer,
    ) -> int:
        """Replaces the value of a key if the value is `expected`."""

    def dist_store_wait(
        self, store: _Pointer, keys: _Pointer, key_lens_bytes: _Pointer, n: int, timeout_ms: int,
    ) -> int:
        """Waits until all keys exist."""

    def dist_store_check(
        self, store: _Pointer, keys: _Pointer, key_lens_bytes: _Pointer, n: int,
        all_present: _Pointer,
    ) -> int:
        """Reports whether all keys exist now."""

    def dist_store_num_keys(self, store: _Pointer, out: _Pointer) -> int:
        """Returns the number of keys of the whole store, under all prefixes."""

    def dist_store_list_keys(self, store: _Pointer, out: _Pointer) -> int:
        """Returns all keys of a store, in no particular order."""

    def dist_store_delete_key(
        self, store: _Pointer, key: _Pointer, key_len_bytes: int, deleted: _Pointer,
    ) -> int:
        """Removes a key."""

    def dist_store_append(
        self, store: _Pointer, key: _Pointer, key_len_bytes: int, value: _Pointer, len_bytes: int,
    ) -> int:
        """Appends bytes to a value, or creates a missing value."""

    def dist_store_multi_get(
        self, store: _Pointer, keys: _Pointer, key_lens_bytes: _Pointer, n: int, out: _Pointer,
    ) -> int:
        """Returns the values of several keys, and waits until all keys exist."""

    def dist_store_multi_set(
        self, store: _Pointer, keys: _Pointer, key_lens_bytes: _Pointer, values: _Pointer,
        lens_bytes: _Pointer, n: int,
    ) -> int:
        """Stores several values in one call."""

    def dist_store_set_timeout(self, store: _Pointer, timeout_ms: int) -> int:
        """Sets the time-out of calls through this handle."""

    def dist_store_get_timeout(self, store: _Pointer) -> int:
        """Returns the time-out of calls through this handle in milliseconds."""

    def dist_store_port(self, store: _Pointer) -> int:
        """Returns the port of a TCP store."""

    def dist_store_host(self, store: _Pointer, buf: _Pointer, cap: int) -> int:
        """Copies the host of a TCP store."""

    def dist_store_release(self, store: _Pointer) -> int:
        """Releases a store handle."""

    def dist_store_queue_push(
        self, store: _Pointer, key: _Pointer, key_len_bytes: int, value: _Pointer, len_bytes: int,
    ) -> int:
        """Appends an item to a queue."""

    def dist_store_queue_pop(
        self, store: _Pointer, key: _Pointer, key_len_bytes: int, block: int, out: _Pointer,
    ) -> int:
        """Takes the first item of a queue."""

    def dist_store_queue_len(
        self, store: _Pointer, key: _Pointer, key_len_bytes: int, out: _Pointer,
    ) -> int:
        """Returns the number of items in a queue; 0 for a queue that was never used."""

    def dist_store_barrier(
        self, store: _Pointer, key: _Pointer, key_len_bytes: int, world_size: int,
        timeout_ms: int,
    ) -> int:
        """Waits until `world_size` callers have called the barrier."""

    def dist_store_custom_create(self, functions: _Pointer, user: _Pointer, out: _Pointer) -> int:
        """Creates a store from functions of the caller."""

    def dist_mem_alloc(
        self, group: _Pointer, bytes: int, device: int, ptr: _Pointer,
    ) -> int:
        """Allocates memory for buffers that other ranks of the host can access without a copy."""

    def dist_mem_free(self, ptr: _Pointer) -> int:
        """Frees memory that dist_mem_alloc returned."""

    def dist_mem_register(self, group: _Pointer, ptr: _Pointer, bytes: int) -> int:
        """Announces memory that calls in a group will use often."""

    def dist_mem_deregister(self, group: _Pointer, ptr: _Pointer) -> int:
        """Ends a registration that dist_mem_register made."""

    def dist_outer_create(
        self, group: _Pointer, params: _Pointer, n_params: int, options: _Pointer, out: _Pointer,
    ) -> int:
        """Creates an outer optimizer, for ranks that train on their own for many steps."""

    def dist_outer_step(
        self, outer: _Pointer, vote: int, fragment: _Pointer, all_votes: _Pointer,
    ) -> int:
        """Records that this rank has made one training step, and agrees on a fragment if one is due."""

    def dist_outer_regroup(self, outer: _Pointer, group: _Pointer) -> int:
        """Continues in another group, for instance in the group that dist_group_shrink returns."""

    def dist_outer_values(
        self, outer: _Pointer, param: int, global_: _Pointer, state: _Pointer, count: _Pointer,
    ) -> int:
        """Returns the global values of a parameter and the state of the optimizer for this parameter."""

    def dist_outer_save(self, outer: _Pointer, out: _Pointer) -> int:
        """Returns the global values, the states and the number of steps, for a checkpoint."""

    def dist_outer_load(
        self, outer: _Pointer, bytes: _Pointer, len_bytes: int, root: int,
    ) -> int:
        """Loads the data that dist_outer_save returned, from one rank to all ranks."""

    def dist_outer_stats(self, outer: _Pointer, out: _Pointer) -> int:
        """Returns figures of the outer optimizer since its creation."""

    def dist_outer_release(self, outer: _Pointer) -> int:
        """Releases an outer optimizer, its global values and its states."""

    def dist_reducer_create(
        self, group: _Pointer, params: _Pointer, n_params: int, options: _Pointer, out: _Pointer,
    ) -> int:
        """Creates a reducer, which averages gradients over the ranks of a group."""

    def dist_reducer_grad(
        self, reducer: _Pointer, param: int, grad: _Pointer, count: _Pointer,
    ) -> int:
        """Returns the address to which the caller writes a gradient."""

    def dist_reducer_result(
        self, reducer: _Pointer, param: int, grad: _Pointer, count: _Pointer,
    ) -> int:
        """Returns the address of a reduced gradient after the end of a step."""

    def dist_reducer_rows(
        self, reducer: _Pointer, param: int, rows: _Pointer, values: _Pointer, n_rows: _Pointer,
    ) -> int:
        """Returns the reduced rows of a sparse gradient after the end of a step."""

    def dist_reducer_broadcast(self, reducer: _Pointer, root: int, what: int) -> int:
        """Copies the parameters or buffers of one rank to all ranks."""

    def dist_reducer_check(self, reducer: _Pointer, what: int, differences: _Pointer) -> int:
        """Compares values that should be the same on all ranks."""

    def dist_reducer_regroup(self, reducer: _Pointer, group: _Pointer) -> int:
        """Continues in another group, for instance in the group that dist_group_shrink returns."""

    def dist_reducer_layout(self, reducer: _Pointer, out: _Pointer) -> int:
        """Returns the layout: which gradients are reduced together, and in which order."""

    def dist_reducer_stats(self, reducer: _Pointer, out: _Pointer) -> int:
        """Returns figures of the last step, and a few counters since the creation."""

    def dist_reducer_describe(self, reducer: _Pointer, json: _Pointer) -> int:
        """Describes a reducer: parameters, buckets, options, and sums over all steps."""

    def dist_reducer_release(self, reducer: _Pointer) -> int:
        """Releases a reducer and the memory that it provides."""

    def dist_reducer_begin(self, reducer: _Pointer, weight: float, flags: int) -> int:
        """Begins a step."""

    def dist_reducer_ready(self, reducer: _Pointer, param: int) -> int:
        """Marks a gradient as complete."""

    def dist_reducer_ready_many(self, reducer: _Pointer, params: _Pointer, n: int) -> int:
        """Marks several gradients as complete, in one call."""

    def dist_reducer_ready_rows(
        self, reducer: _Pointer, param: int, rows: _Pointer, values: _Pointer, n_rows: int,
    ) -> int:
        """Marks a sparse gradient as complete, and passes its rows."""

    def dist_reducer_unused(self, reducer: _Pointer, param: int) -> int:
        """Marks a parameter that this rank does not use in the step."""

    def dist_reducer_end(
        self, reducer: _Pointer, vote: int, all_votes: _Pointer, work: _Pointer,
    ) -> int:
        """Ends a step."""

    def dist_reducer_clip(
        self, reducer: _Pointer, max_norm: float, norm_type: float, norm: _Pointer,
    ) -> int:
        """Scales the gradients of the last step so that their norm is at most `max_norm`."""

    def dist_reducer_on_bucket(self, reducer: _Pointer, function: _Function, user: _Pointer) -> int:
        """Registers a function that the library calls with each reduced bucket."""

    def dist_reducer_join(self, reducer: _Pointer, steps: _Pointer) -> int:
        """Takes part in the steps of the other ranks after this rank has run out of data."""

    def dist_shard_create(self, reducer: _Pointer, options: _Pointer, out: _Pointer) -> int:
        """Splits the state of an optimizer over the ranks of a reducer."""

    def dist_shard_ranges(
        self, shard: _Pointer, ranges: _Pointer, capacity: int, n_ranges: _Pointer,
    ) -> int:
        """Returns the elements that this rank updates, as ranges of parameters."""

    def dist_shard_state(
        self, shard: _Pointer, state: int, values: _Pointer, count: _Pointer,
    ) -> int:
        """Returns one of the optimizer's states for the elements that this rank updates."""

    def dist_shard_gather(self, shard: _Pointer, work: _Pointer) -> int:
        """Sends the elements that this rank has updated to all ranks, and receives the others."""

    def dist_shard_wait(self, shard: _Pointer, param: int) -> int:
        """Waits for a parameter of a running gather, that is, of dist_shard_gather with a work."""

    def dist_shard_save(self, shard: _Pointer, root: int, out: _Pointer) -> int:
        """Collects the states of all ranks at one rank, for a checkpoint."""

    def dist_shard_load(
        self, shard: _Pointer, bytes: _Pointer, len_bytes: int, root: int,
    ) -> int:
        """Loads states that dist_shard_save returned, from one rank to any number of ranks."""

    def dist_shard_release(self, shard: _Pointer) -> int:
        """Releases a shard and its states."""

    def dist_sampler_create(
        self, group: _Pointer, dataset_len: int, options: _Pointer, out: _Pointer,
    ) -> int:
        """Creates a sampler, which gives each rank its share of the indices of a data set."""

    def dist_sampler_set_epoch(self, sampler: _Pointer, epoch: int) -> int:
        """Begins an epoch at its first index."""

    def dist_sampler_next(
        self, sampler: _Pointer, indices: _Pointer, cap: int, n: _Pointer,
    ) -> int:
        """Takes the next indices of the epoch."""

    def dist_sampler_len(self, sampler: _Pointer) -> int:
        """Returns the number of indices of this rank in an epoch."""

    def dist_sampler_position(self, sampler: _Pointer) -> int:
        """Returns the number of indices taken in the current epoch, for a checkpoint."""

    def dist_sampler_seek(self, sampler: _Pointer, position: int) -> int:
        """Moves to a position in the current epoch, for instance after a restart from a checkpoint."""

    def dist_sampler_release(self, sampler: _Pointer) -> int:
        """Releases a sampler."""

    def dist_backend_is_available(self, name: _Pointer) -> int:
        """Returns whether a back end of this name can be used, and loads the back end if necessary."""

    def dist_backend_supports(
        self, group: _Pointer, kind: int, dtype: int, op: int, device: int,
    ) -> int:
        """Checks whether a group supports a kind of call, without making such a call."""

    def dist_backend_load(self, path: _Pointer) -> int:
        """Loads a back end from a shared object and registers the back end under its own name."""

    def dist_flight_recorder_dump(self, group: _Pointer, json: _Pointer) -> int:
        """Returns the flight recorder's records of operations and groups as JSON."""

    def dist_set_log_callback(self, function: _Function, user: _Pointer) -> int:
        """Sends log lines to a function instead of standard error."""

    def dist_set_log_level(self, level: int) -> int:
        """Sets the log level of the process."""

    def dist_set_debug_level(self, level: int) -> int:
        """Sets the debug level of the process."""

    def dist_get_debug_level(self) -> int:
        """Returns the debug level of the process."""

    def dist_set_debug_level_from_env(self) -> int:
        """Sets the debug level of the process from the environment, and replaces an earlier level."""

    def dist_trace_start(self, path: _Pointer) -> int:
        """Starts a trace of this process's operations as a file in Chrome's trace event format."""

    def dist_trace_stop(self) -> int:
        """Ends the trace of dist_trace_start or DIST_TRACE_FILE and completes its file."""
