/*
 * libdist: collective communication between the processes of a training job.
 *
 * Generated from the source of the library; do not edit.
 *
 * Conventions
 *   Status     Functions return dist_status_t unless they say otherwise. dist_last_error() has the message
 *              of the calling thread's last failure.
 *   Handles    Pointers to incomplete types. A wrong, released or NULL handle gives
 *              DIST_ERR_INVALID_HANDLE. dist_world() is the world. NULL is no group: DIST_ERR_NOT_INITIALIZED before
 *              dist_init, else DIST_ERR_INVALID_HANDLE.
 *   Constants  No type, operator or status has the number of another, so exchanged arguments are an error.
 *   Options    Structs that begin with struct_size; initialise them with the DIST_..._INIT macros. Zero in a
 *              field means its default; NULL in place of a struct means all defaults. Fields for which zero
 *              means something count only if their DIST_FIELD_... bit is set in `fields`.
 *   Counts     In elements; sizes in bytes say so in their names. Ranks are those of the group.
 *   Time-outs  All have one meaning. They are int64_t numbers of milliseconds, and their names end in _ms. 0 is the
 *              default of the operation or object, which its comment says. DIST_WAIT_FOREVER is no limit, and so is
 *              a century or more. DIST_NO_WAIT is no time: a call that waits looks once, and returns
 *              DIST_ERR_TIMEOUT (dist_work_wait: DIST_IN_PROGRESS) if that is too early. A call that cannot do
 *              without time refuses it, as all refuse other negative numbers, with DIST_ERR_INVALID_ARGUMENT.
 *              DIST_TIMEOUT_MS and DIST_CONNECT_TIMEOUT_MS are read in the same way.
 *   Ownership  "borrowed for the call": the library keeps no pointer. "owned by the caller": released with
 *              the function named. (NULL, 0) is a legal empty buffer or list.
 *   Order      All ranks of a group call its collectives in the same order.
 */

#ifndef DIST_H
#define DIST_H

#include <stddef.h>
#include <stdint.h>

#define DIST_VERSION_MAJOR 0
#define DIST_VERSION_MINOR 1
#define DIST_VERSION_PATCH 0
/* What dist_version() returns for this header. */
#define DIST_VERSION \
    (DIST_VERSION_MAJOR * 10000 + DIST_VERSION_MINOR * 100 + DIST_VERSION_PATCH)

/*
 * Marks functions whose status must not be ignored. Define it as empty before the header to silence the compiler; GCC warns
 * in spite of a cast to void, except in C++17 and C23.
 */
#ifndef DIST_NODISCARD
#if (defined(__cplusplus) && __cplusplus >= 201703L) || \
    (defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L)
#define DIST_NODISCARD [[nodiscard]]
#elif defined(__GNUC__)
#define DIST_NODISCARD __attribute__((__warn_unused_result__))
#else
#define DIST_NODISCARD
#endif
#endif

/* A null pointer for the DIST_..._INIT macros. */
#if defined(__cplusplus) && __cplusplus >= 201103L
#define DIST_NULL nullptr
#else
#define DIST_NULL NULL
#endif

/* In place of the length of a store's key: the key is a C string. */
#ifdef __cplusplus
#define DIST_TERMINATED (static_cast<size_t>(-1))
#else
#define DIST_TERMINATED ((size_t)-1)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Status and errors
 *
 * Outcomes of calls, their messages, and the version of the library.
 */

/**
 * As a time-out: no limit. Times of a century or more mean the same.
 */
#define DIST_WAIT_FOREVER -1

/**
 * As a time-out: no time; the call looks once. Refused by calls that cannot do without time.
 */
#define DIST_NO_WAIT -2

/**
 * The outcome of a call: DIST_OK, DIST_IN_PROGRESS, or a negative error.
 *
 * Errors -1 to -99 are mistakes of the caller, and nothing has changed. -100 to -199 concern peers and
 * time; a collective that returns one has failed its group. -200 to -299 concern the system or a back
 * end. -300 is a defect of the library.
 */
typedef int32_t dist_status_t;

/**
 * Success.
 */
#define DIST_OK 0

/**
 * A wait has expired and the work goes on.
 */
#define DIST_IN_PROGRESS 1

/**
 * An argument is out of range, NULL where that is not allowed, or contradicts another.
 */
#define DIST_ERR_INVALID_ARGUMENT -1

/**
 * A handle that was never made, was released, or is of another type.
 */
#define DIST_ERR_INVALID_HANDLE -2

/**
 * dist_init has not been called, dist_finalize has, or this is a forked child.
 */
#define DIST_ERR_NOT_INITIALIZED -3

/**
 * dist_init was called twice.
 */
#define DIST_ERR_ALREADY_INITIALIZED -4

/**
 * The combination asked for does not exist; the message names it.
 */
#define DIST_ERR_UNSUPPORTED -5

/**
 * The key or name does not exist.
 */
#define DIST_ERR_NOT_FOUND -6

/**
 * A queue was empty and the caller did not want to wait.
 */
#define DIST_ERR_QUEUE_EMPTY -7

/**
 * A counter operation met a value that is not a number; the value is unchanged.
 */
#define DIST_ERR_NOT_A_NUMBER -8

/**
 * The deadline of the operation passed; the message names who was missing.
 */
#define DIST_ERR_TIMEOUT -100

/**
 * Another rank died or left; the message names it and what it was doing.
 */
#define DIST_ERR_PEER_FAILED -101

/**
 * Ranks called different operations or with different arguments; the message describes both.
 */
#define DIST_ERR_MISMATCH -102

/**
 * Somebody aborted the group; the message has the reason.
 */
#define DIST_ERR_ABORTED -103

/**
 * The store or a peer cannot be reached, or broke the connection.
 */
#define DIST_ERR_CONNECTION -104

/**
 * A peer could not prove that it belongs to this job.
 */
#define DIST_ERR_AUTH -105

/**
 * Memory, or another limited resource of the host, is exhausted.
 */
#define DIST_ERR_OUT_OF_MEMORY -200

/**
 * The operating system refused a call.
 */
#define DIST_ERR_SYSTEM -201

/**
 * A back end, or a caller's own store, reported an error.
 */
#define DIST_ERR_BACKEND -202

/**
 * A defect of the library.
 */
#define DIST_ERR_INTERNAL -300

/**
 * The version of the library that is loaded: MAJOR * 10000 + MINOR * 100 + PATCH.
 *
 * Compare it with DIST_VERSION, the version of the header. Any thread. Since 0.1.
 */
uint32_t dist_version(void);

/**
 * The version of the library that is loaded, as static text. Any thread. Since 0.1.
 */
const char *dist_version_string(void);

/**
 * What a status means, as static text; any number may be asked for. Any thread. Since 0.1.
 */
const char *dist_status_string(dist_status_t status);

/**
 * Gives the message of the calling thread's last failed call.
 *
 * @agree nothing.
 * @blocks no.
 * @return the message in UTF-8, "" if no call has failed; valid until the second next failing call of the thread.
 * @threads any.
 * @since 0.1
 */
const char *dist_last_error(void);

/**
 * Copies the message of the calling thread's last failed call.
 *
 * `buf`: out, may be NULL if `cap` is 0. `cap`: its size in bytes; a longer message is cut and always
 * terminated. Returns the bytes that the whole message needs, its terminator included. Any thread.
 * Since 0.1.
 */
size_t dist_last_error_copy(char *buf,
                            size_t cap);

/**
 * Where in the program the calling thread's last failed call was made: one or two lines for each frame, from the
 * function of libdist on, and for the error of a work those of the call that issued it. Names are there as far as
 * the program has symbols.
 *
 * "" where no call has failed, or where neither DIST_SHOW_STACKTRACES or TORCH_SHOW_CPP_STACKTRACES was 1 nor the
 * debug level DETAIL when it did. Valid until the thread's second next failing call. The first call for an error reads
 * symbols, which may take a moment. Any thread. Since 0.1.
 */
const char *dist_last_error_backtrace(void);

/*
 * Byte strings
 *
 * Lists of byte strings that the library makes and the caller releases.
 */

/**
 * A list of byte strings that the library made. Any thread may use it; owned by the caller, released
 * with dist_blob_release.
 */
typedef struct dist_blob_t dist_blob_t;

/**
 * The number of byte strings in a blob.
 *
 * `blob`: required, borrowed for the call. Returns 0 for an invalid handle. Does not block. Any
 * thread. Since 0.1.
 */
size_t dist_blob_count(const struct dist_blob_t *blob);

/**
 * One byte string of a blob.
 *
 * `blob`: required, borrowed for the call. `index`: from 0 to dist_blob_count - 1. `data`, `len_bytes`:
 * out, required; the bytes belong to the blob and stay valid until it is released. A zero byte that
 * `len_bytes` does not count follows them, so that text can be printed. Does not block. Any thread.
 *
 * Returns DIST_OK, DIST_ERR_INVALID_HANDLE, or DIST_ERR_INVALID_ARGUMENT for a NULL or an index out of
 * range. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_blob_data(const struct dist_blob_t *blob,
                             size_t index,
                             const void **data,
                             size_t *len_bytes);

/**
 * Releases a blob and the bytes that it owns.
 *
 * `blob`: NULL does nothing. Does not block. Any thread, but not while another reads its bytes.
 *
 * Returns DIST_OK or DIST_ERR_INVALID_HANDLE. Since 0.1.
 */
dist_status_t dist_blob_release(struct dist_blob_t *blob);

/*
 * Initialization
 *
 * The world of a process: how it begins and ends.
 */

/**
 * In place of the index of a device: host memory.
 */
#define DIST_DEVICE_HOST -1

/**
 * In `fields`: `rank` is set.
 */
#define DIST_FIELD_RANK 1

/**
 * In `fields`: `listen_fd` is set.
 */
#define DIST_FIELD_LISTEN_FD 2

/**
 * In `fields`: `wait_for_workers` is set.
 */
#define DIST_FIELD_WAIT_FOR_WORKERS 4

/**
 * In `fields`: `device` is set.
 */
#define DIST_FIELD_DEVICE 8

/**
 * A key-value store. Any thread may use it; owned by the caller, released with dist_store_release.
 */
typedef struct dist_store_t dist_store_t;

/**
 * Options of dist_init. Zero in a field means its default.
 */
typedef struct dist_init_options_t {
    /**
     * sizeof(dist_init_options_t).
     */
    size_t struct_size;
    /**
     * Which fields with a meaningful zero are set: DIST_FIELD_RANK, DIST_FIELD_DEVICE.
     */
    uint64_t fields;
    /**
     * In any case: "native" (also called "gloo"), "mpi", or the name of a back end that was registered, for host memory, and
     * by way of it the memory of GPUs where a device is named; "nccl", for the memory of GPUs; or one for each kind of memory, as
     * "cpu:native,cuda:nccl". NULL or "default" for native, and nccl beside it where a device is named and all ranks have NCCL.
     */
    const char *backend;
    /**
     * "env://", "tcp://host:port?rank=R&world_size=N", or "file:///path?rank=R&world_size=N" with a file that all
     * ranks reach and that no other job uses; NULL for env://. In a file's path, %XX is the byte of that
     * hexadecimal number. What the URL does not say of rank and size comes from rank and world_size or the environment.
     */
    const char *init_method;
    /**
     * A store to meet in, instead of init_method; borrowed for the call.
     */
    const struct dist_store_t *store;
    /**
     * This process's rank, with DIST_FIELD_RANK in fields.
     */
    int32_t rank;
    /**
     * The number of ranks; 0 to take it from init_method or the environment.
     */
    int32_t world_size;
    /**
     * Time-out of the world's operations; the default is DIST_TIMEOUT_MS, or 30 minutes. Not DIST_NO_WAIT.
     */
    int64_t timeout_ms;
    /**
     * Time-out of dist_init; the default is DIST_CONNECT_TIMEOUT_MS, or 5 minutes. Not DIST_NO_WAIT.
     */
    int64_t connect_timeout_ms;
    /**
     * The world group's name; NULL for "world".
     */
    const char *group_name;
    /**
     * What is asked of the back end, "key=value;key=value"; NULL for nothing. The native back end knows
     * transport=auto|shm|inproc|tcp, slot_bytes=N and heartbeat_ms=N (as DIST_HEARTBEAT_LIMIT_MS), of which those of
     * rank 0 count, cma=0|1 (as DIST_CMA), and host_id=LABEL: ranks with the same label are on one host, whatever
     * the truth (for tests). NCCL's part knows nccl.high_priority, nccl.blocking_wait, nccl.windows and nccl.blocking, each
     * 0 or 1. If native carries the memory of GPUs, staging.chunk_bytes=N is the size of a chunk.
     */
    const char *backend_options;
    /**
     * The index of this rank's GPU, with DIST_FIELD_DEVICE in fields. Without it, "nccl" takes the device that is current on
     * the calling thread. All ranks name one, or none does.
     */
    int32_t device;
    /**
     * 0.
     */
    int32_t reserved;
} dist_init_options_t;

/**
 * What one of the processes of dist_spawn runs: its rank, and the pointer given with the function. Returns 0 for success.
 * Must return (or end its process) and must not throw.
 */
typedef int32_t (*dist_spawn_fn)(int32_t rank, void *arg);

/**
 * Options of dist_spawn.
 */
typedef struct dist_spawn_options_t {
    /**
     * sizeof(dist_spawn_options_t).
     */
    size_t struct_size;
    /**
     * How long the processes may run together; the default is no limit. Not DIST_NO_WAIT.
     */
    int64_t join_timeout_ms;
    /**
     * How long they may take from SIGTERM to SIGKILL; the default is 2 seconds. DIST_NO_WAIT kills them at once.
     */
    int64_t grace_ms;
} dist_spawn_options_t;

/**
 * Options of dist_store_tcp_create.
 */
typedef struct dist_store_tcp_options_t {
    /**
     * sizeof(dist_store_tcp_options_t).
     */
    size_t struct_size;
    /**
     * Which fields with a meaningful zero are set: DIST_FIELD_LISTEN_FD, DIST_FIELD_WAIT_FOR_WORKERS.
     */
    uint64_t fields;
    /**
     * The host of the server; required.
     */
    const char *host;
    /**
     * The port of the server; for a server, 0 takes a free one (see dist_store_port).
     */
    int32_t port;
    /**
     * Not 0: this process runs the server, and is its first client.
     */
    int32_t is_server;
    /**
     * The number of clients that will come; 0 where that is not known.
     */
    int32_t world_size;
    /**
     * Where this process runs the server and world_size is set: not 0 waits until all clients have
     * come. Without DIST_FIELD_WAIT_FOR_WORKERS, as if it were 1.
     */
    int32_t wait_for_workers;
    /**
     * A listening TCP socket for the server, with DIST_FIELD_LISTEN_FD; the store owns it from then on.
     */
    int32_t listen_fd;
    /**
     * Not 0: stores of this process with the same port share one server.
     */
    int32_t multi_tenant;
    /**
     * Time-out of creating the store, and of calls through its handle; the default is 5 minutes. Not DIST_NO_WAIT.
     */
    int64_t timeout_ms;
    /**
     * The address that the server listens on; NULL for `host`, "" for all interfaces.
     */
    const char *bind_address;
    /**
     * A secret that server and clients must share, 1 to 4096 bytes, borrowed for the call: each side proves to
     * the other that it knows it before anything else. NULL for none, as with torch's stores. The
     * environment's (DIST_STORE_SECRET_FILE) is dist_init's alone.
     */
    const void *secret;
    /**
     * The length of `secret`.
     */
    size_t secret_len_bytes;
} dist_store_tcp_options_t;

/**
 * Makes the world group together with all other processes of the job.
 *
 * All ranks must agree on where they meet, on the world size and on the group's name. `options`: NULL
 * for all defaults (env://, which understands distrun, torchrun, mpirun and srun); borrowed for the
 * call. Blocks until all ranks have come, until connect_timeout_ms at the latest; a long wait is
 * told in the log at level WARN. One thread at a time.
 *
 * Returns DIST_OK; DIST_ERR_ALREADY_INITIALIZED; DIST_ERR_INVALID_ARGUMENT for wrong options or
 * environment (the message names the variable) or a rank that two processes have; DIST_ERR_NOT_FOUND
 * for an unknown back end; DIST_ERR_TIMEOUT naming the ranks that did not come; DIST_ERR_CONNECTION
 * where the store cannot be reached; DIST_ERR_MISMATCH where ranks run different versions or were told
 * different world sizes; DIST_ERR_UNSUPPORTED where ranks are on several hosts (this version);
 * DIST_ERR_PEER_FAILED, DIST_ERR_OUT_OF_MEMORY, DIST_ERR_SYSTEM. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_init(const struct dist_init_options_t *options);

/**
 * Leaves the world group. Handles of it are invalid afterwards, and dist_init may be called again.
 *
 * Call it on every rank once it has no more collectives to call. Works of the world that are pending get 5 seconds
 * to end, and then end with DIST_ERR_ABORTED; they can be asked until they are released. Their completion callbacks
 * are called while the world is still there. Blocks until then, and on
 * the rank that hosts the store, which leaves last, until the others have left: 6 seconds at most in all, and about
 * one where the group has failed. One thread at a time; blocking calls under way on other threads end as they would.
 *
 * Returns DIST_OK, DIST_ERR_NOT_INITIALIZED, or DIST_ERR_INVALID_ARGUMENT inside a completion callback. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_finalize(void);

/**
 * 1 between dist_init and dist_finalize, else 0. Any thread. Since 0.1.
 */
int32_t dist_is_initialized(void);

/**
 * 1 if torchrun or distrun has started this process (TORCHELASTIC_RUN_ID is set), else 0. Any thread.
 * Since 0.1.
 */
int32_t dist_is_elastic_launched(void);

/**
 * Runs a function in processes of its own, one for each rank, and waits for all of them: for programs and tests without
 * a launcher.
 *
 * Forks this process `nprocs` times (there is no other way to start them: nothing is executed anew). In each child the
 * environment says what a launcher would say (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT,
 * DIST_STORE_SECRET_FD), so that dist_init(NULL) there makes a world of them; this process serves their store until they
 * have ended, on a free port of the loopback interface, with a secret that only they have. A child ends when its function
 * returns: C's streams are written out, exit handlers do not run. Writing them out waits for each stream that another
 * thread of the child holds, as one that reads standard input does: such threads must have ended by then, or the child
 * calls _exit. It may also call exit or _exit itself, and succeeds with status 0. When the first one fails (a result other
 * than 0, another exit status, a signal), the others get a tenth of a second to fail on their own, then SIGTERM, then
 * SIGKILL. When this process dies, the kernel kills the children. What children start themselves is theirs to end.
 *
 * The caller must have one thread, must never have made a group (dist_init, dist_group_create) or a TCP or file store
 * (dist_store_tcp_create, dist_store_file_create), even if it has released it, and must not ignore SIGCHLD; it may call
 * dist_spawn again later, and dist_init after it. Of a hash store every child has a copy of its own. What C's streams hold
 * back is written out before the forks, so that nothing is written twice. SIGCHLD stays blocked in the calling thread
 * until the end, so that no handler takes the children's ends; other children and signals of the caller are left alone.
 *
 * `function`: required; called in each child with its rank and `arg`. `arg`: may be NULL; every child has its own copy of
 * what it points to. `nprocs`: 1 to 4096; this process needs 2 descriptors for each and 64 more, which its limit
 * (ulimit -n) must leave. `options`: NULL for all defaults; borrowed for the call. Blocks until all children have ended,
 * and no child and no descriptor of the call is left then.
 *
 * Returns DIST_OK where all have succeeded; DIST_ERR_PEER_FAILED naming the rank that failed first, its process, its
 * result, exit status or signal, and its last error in libdist if it had one; DIST_ERR_TIMEOUT naming the ranks that
 * still ran after join_timeout_ms, which have been ended; DIST_ERR_INVALID_ARGUMENT for wrong arguments, other threads, a
 * process that has used groups or such stores, and inside a completion callback; DIST_ERR_UNSUPPORTED for unknown
 * options; DIST_ERR_OUT_OF_MEMORY or DIST_ERR_SYSTEM where the processes or their store cannot be started, descriptors are
 * too few, or somebody else has waited for one of them. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_spawn(dist_spawn_fn function,
                         void *arg,
                         int32_t nprocs,
                         const struct dist_spawn_options_t *options);

/**
 * Connects to a TCP store, and hosts it if asked to. It speaks the protocol of PyTorch's TCPStore, so
 * that either side may be torch.
 *
 * `options`: required, borrowed for the call. `out`: out, required; owned by the caller, released with
 * dist_store_release; NULL on failure. Blocks until connected (a server that is not there yet is
 * waited for), until timeout_ms at the latest. Any thread.
 *
 * From then on the library refuses calls in a process forked from this one without exec, which would share
 * the connection, and dist_spawn refuses this process.
 *
 * Returns DIST_OK; DIST_ERR_INVALID_ARGUMENT; DIST_ERR_TIMEOUT or DIST_ERR_CONNECTION saying what was
 * tried and how it failed; DIST_ERR_AUTH where only one side has a secret, or each another one;
 * DIST_ERR_SYSTEM, for instance for a port in use. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_store_tcp_create(const struct dist_store_tcp_options_t *options,
                                    struct dist_store_t **out);

/* All defaults; assign the fields that differ. */
#define DIST_INIT_OPTIONS_INIT { sizeof(dist_init_options_t), 0, DIST_NULL, DIST_NULL, \
    DIST_NULL, 0, 0, 0, 0, DIST_NULL, DIST_NULL, 0, 0 }
#define DIST_STORE_TCP_OPTIONS_INIT { sizeof(dist_store_tcp_options_t), 0, DIST_NULL, 0, 0, 0, \
    0, 0, 0, 0, DIST_NULL, DIST_NULL, 0 }
#define DIST_SPAWN_OPTIONS_INIT { sizeof(dist_spawn_options_t), 0, 0 }

/*
 * Groups
 *
 * Groups of ranks: queries, new groups, failure.
 */

/**
 * In place of a color: no group (dist_group_split).
 */
#define DIST_NO_COLOR -1

/**
 * No rank is named.
 */
#define DIST_CULPRIT_NONE 0

/**
 * Its process ended without leaving the group; only ranks of its host can tell.
 */
#define DIST_CULPRIT_DIED 1

/**
 * It left the group in order, while others still needed it.
 */
#define DIST_CULPRIT_LEFT 2

/**
 * Its connection ended or broke, or it sends no heartbeat: it died, is held up, or the network parted.
 */
#define DIST_CULPRIT_UNREACHABLE 3

/**
 * It sends no heartbeat, and its process is stopped by a signal or a debugger; only ranks of its host can tell.
 */
#define DIST_CULPRIT_STOPPED 4

/**
 * It did not come before the deadline; if several did not, it is the first that the error names.
 */
#define DIST_CULPRIT_LATE 5

/**
 * It called another operation than the rank that found the difference.
 */
#define DIST_CULPRIT_MISMATCH 6

/**
 * It aborted the group.
 */
#define DIST_CULPRIT_ABORTED 7

/**
 * It failed in another way; the error's message says how.
 */
#define DIST_CULPRIT_FAILED 8

/**
 * A group of ranks. Any thread may use it; owned by the caller, released with dist_group_release.
 */
typedef struct dist_group_t dist_group_t;

/**
 * Options of dist_group_create.
 */
typedef struct dist_group_options_t {
    /**
     * sizeof(dist_group_options_t).
     */
    size_t struct_size;
    /**
     * Which fields with a meaningful zero are set: DIST_FIELD_RANK, DIST_FIELD_DEVICE.
     */
    uint64_t fields;
    /**
     * Where the ranks meet; required, borrowed for the call.
     */
    const dist_store_t *store;
    /**
     * This rank, with DIST_FIELD_RANK in fields; required.
     */
    int32_t rank;
    /**
     * The number of ranks; required.
     */
    int32_t world_size;
    /**
     * As in dist_init_options_t.
     */
    const char *backend;
    /**
     * The group's name, the same on all its ranks; required. Two groups that are alive at once in one
     * store need different names.
     */
    const char *name;
    /**
     * As in dist_init_options_t.
     */
    int64_t timeout_ms;
    /**
     * As in dist_init_options_t.
     */
    int64_t connect_timeout_ms;
    /**
     * As in dist_init_options_t.
     */
    const char *backend_options;
    /**
     * Which ranks of something larger the group's ranks are, in order, as dist_group_ranks gives them: world_size
     * ranks, none twice, the same on all ranks. NULL where the group is the outermost; borrowed for the call.
     */
    const int32_t *global_ranks;
    /**
     * The length of `global_ranks`: world_size, or 0 for NULL.
     */
    size_t n_global_ranks;
    /**
     * As in dist_init_options_t.
     */
    int32_t device;
    /**
     * 0.
     */
    int32_t reserved;
} dist_group_options_t;

/**
 * Options of dist_group_new and dist_group_split.
 */
typedef struct dist_group_new_options_t {
    /**
     * sizeof(dist_group_new_options_t).
     */
    size_t struct_size;
    /**
     * The new group's name, the same on all ranks that make it: 1 to 200 bytes without "/". NULL for one made from
     * the parent's name, the ranks (or the color) and a count.
     */
    const char *name;
    /**
     * As in dist_init_options_t, the same on all ranks that make the group; NULL for the parent's.
     */
    const char *backend;
    /**
     * As in dist_init_options_t; NULL for what was asked for the parent, "" for nothing. What the parent's environment
     * and tuning file said about algorithms holds also where this is not NULL, but for a tuning_file in it.
     */
    const char *backend_options;
    /**
     * Time-out of the group's operations; the default is the parent's. Not DIST_NO_WAIT.
     */
    int64_t timeout_ms;
    /**
     * Time-out of making the group; the default is DIST_CONNECT_TIMEOUT_MS, or 5 minutes. Not DIST_NO_WAIT.
     */
    int64_t connect_timeout_ms;
    /**
     * Not 0: only the group's members call dist_group_new. Not for dist_group_split.
     */
    int64_t use_local_synchronization;
} dist_group_new_options_t;

/**
 * Options of dist_group_shrink.
 */
typedef struct dist_shrink_options_t {
    /**
     * sizeof(dist_shrink_options_t).
     */
    size_t struct_size;
    /**
     * How long a rank may take to come before it is excluded; the default is 10 seconds. Not DIST_NO_WAIT. Ranks call
     * dist_group_shrink at different times, so it should be longer than the time between two calls in the group.
     */
    int64_t timeout_ms;
    /**
     * Time-out of making the group; the default is DIST_CONNECT_TIMEOUT_MS, or 5 minutes. Not DIST_NO_WAIT.
     */
    int64_t connect_timeout_ms;
} dist_shrink_options_t;

/**
 * The rank that an error names, its fault and its process (dist_work_culprit, dist_group_culprit).
 */
typedef struct dist_culprit_t {
    /**
     * sizeof(dist_culprit_t).
     */
    size_t struct_size;
    /**
     * Its rank in the group of the failed operation; -1 if the error names no rank.
     */
    int32_t rank;
    /**
     * How it failed: DIST_CULPRIT_DIED and so on; DIST_CULPRIT_NONE if the error names no rank.
     */
    int32_t kind;
    /**
     * Its process id on its host; 0 if it is not known.
     */
    int64_t pid;
    /**
     * Its host, terminated, at most 255 bytes of it; "" if it is not known.
     */
    char host[256];
} dist_culprit_t;

/**
 * This process's rank in a group.
 *
 * `group`: required. Returns -1 for an invalid handle or before dist_init. Any thread.
 * Since 0.1.
 */
int32_t dist_get_rank(const struct dist_group_t *group);

/**
 * The number of ranks of a group.
 *
 * `group`: required. Returns -1 for an invalid handle or before dist_init. Any thread.
 * Since 0.1.
 */
int32_t dist_get_world_size(const struct dist_group_t *group);

/**
 * The world group, or NULL before dist_init and after dist_finalize.
 *
 * Static: never released by the caller. Any thread. Since 0.1.
 */
struct dist_group_t *dist_world(void);

/**
 * Makes a group from a store, without any global state: several groups may live in one process, and
 * ranks may be threads.
 *
 * All ranks must agree on store, world_size and name. `options`: required, borrowed for the call. `out`:
 * out, required; owned by the caller, released with dist_group_release; NULL on failure. Blocks until
 * all ranks have come, until connect_timeout_ms at the latest. Any thread.
 *
 * Returns as dist_init, and DIST_ERR_INVALID_HANDLE for a wrong store. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_group_create(const struct dist_group_options_t *options,
                                struct dist_group_t **out);

/**
 * Fails a group on all its ranks: every call that waits in it returns DIST_ERR_ABORTED with the reason, every
 * pending work ends with it, and so does every later call. So it is with groups that were made from it by
 * dist_group_new and dist_group_split, and from those, on all ranks that have not released `group`.
 *
 * `group`: required. `reason`: may be NULL; borrowed for the call. Only the first failure of a
 * group counts. Does not block. Any thread, also while others are inside a collective.
 *
 * Returns DIST_OK, DIST_ERR_INVALID_HANDLE, DIST_ERR_NOT_INITIALIZED. Since 0.1.
 */
dist_status_t dist_group_abort(struct dist_group_t *group,
                               const char *reason);

/**
 * Leaves a group and releases it. Its other ranks can go on among what they have already received; a
 * collective that needs this rank ends there with DIST_ERR_PEER_FAILED. On several hosts, the lowest rank of
 * each host should be the last one there to leave: it tells the other hosts of failures and deaths on its
 * own, so that ranks that stay behind it learn of them from their connections and time limits only.
 *
 * Groups made from it, and the one that it was made from, are other groups: they may be released before or after.
 *
 * `group`: NULL does nothing; the world is left with dist_finalize instead. Calls under way on other
 * threads end as they would; so do pending works, until which the group is not left. Does not block, but for groups on
 * GPUs: these wait for their device and for the other ranks, 10 seconds at most. Any thread.
 *
 * Returns DIST_OK, DIST_ERR_INVALID_HANDLE, or DIST_ERR_INVALID_ARGUMENT for the world. Since 0.1.
 */
dist_status_t dist_group_release(struct dist_group_t *group);

/**
 * Copies the message of the error that has failed a group; "" while it has not failed.
 *
 * `group`: required. `buf`, `cap`: as in dist_last_error_copy. Returns the bytes that the whole
 * message needs, its terminator included; 0 for an invalid handle. Any thread. Since 0.1.
 */
size_t dist_group_error(const struct dist_group_t *group, char *buf, size_t cap);

/**
 * Returns how many collectives have been issued on a group on this rank; ranks that called the same have the same.
 *
 * Calls on byte strings count as two, those of a batch that became one operation as one, messages not at all.
 *
 * @param group in: the group.
 * @agree nothing.
 * @blocks no.
 * @return the number; 0 before the first one, and for an invalid handle.
 * @threads any.
 * @since 0.1
 */
uint64_t dist_group_sequence(const struct dist_group_t *group);

/**
 * Sets the time-out of a group's operations that name none themselves.
 *
 * It holds for calls from now on, of this process only.
 *
 * @param group in: the group.
 * @param timeout_ms in: the default is DIST_TIMEOUT_MS, or 30 minutes; DIST_NO_WAIT is refused.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT; DIST_ERR_NOT_INITIALIZED.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_group_set_timeout(struct dist_group_t *group, int64_t timeout_ms);

/**
 * Gives the time-out of a group's operations that name none themselves, in milliseconds.
 *
 * @param group in: the group.
 * @agree nothing.
 * @blocks no.
 * @return the time-out; DIST_WAIT_FOREVER; 0 for an invalid handle.
 * @threads any.
 * @since 0.1
 */
int64_t dist_group_get_timeout(const struct dist_group_t *group);

/**
 * Copies a group's name.
 *
 * `group`: required. `buf`, `cap`, result: as in dist_group_error. Any thread. Since 0.1.
 */
size_t dist_group_name(const struct dist_group_t *group, char *buf, size_t cap);

/**
 * Copies the name of the back end that serves a group.
 *
 * `group`: required. `buf`, `cap`, result: as in dist_group_error. Any thread. Since 0.1.
 */
size_t dist_group_backend(const struct dist_group_t *group, char *buf, size_t cap);

/**
 * This process's rank among the group's ranks of its host.
 *
 * `group`: required. Returns -1 for an invalid handle. Any thread. Since 0.1.
 */
int32_t dist_group_local_rank(const struct dist_group_t *group);

/**
 * The number of the group's ranks on this process's host.
 *
 * `group`: required. Returns -1 for an invalid handle. Any thread. Since 0.1.
 */
int32_t dist_group_local_size(const struct dist_group_t *group);

/**
 * Which of the group's hosts this process is on, from 0 in order of their lowest ranks.
 *
 * `group`: required. Returns -1 for an invalid handle. Any thread. Since 0.1.
 */
int32_t dist_group_host_index(const struct dist_group_t *group);

/**
 * The number of hosts that the group's ranks are on.
 *
 * `group`: required. Returns -1 for an invalid handle. Any thread. Since 0.1.
 */
int32_t dist_group_host_count(const struct dist_group_t *group);

/**
 * Describes a group as JSON: its ranks and where they are, which ranks of the outermost group they are, the name
 * of the group that it was made from, the transport, and which algorithm would run
 * from which size on.
 *
 * `group`: required. `json`: out, required; a blob of one text, owned by the caller. Does not
 * block. Any thread.
 *
 * Returns DIST_OK, DIST_ERR_INVALID_HANDLE, DIST_ERR_INVALID_ARGUMENT, DIST_ERR_NOT_INITIALIZED.
 * Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_group_describe(const struct dist_group_t *group,
                                  dist_blob_t **json);

/**
 * Makes a group of some ranks of another group, in the order given.
 *
 * All ranks of `parent` call it, also those that are not in the new group, in the same order with the parent's
 * other collectives, and agree on the ranks, the name and the back end. With use_local_synchronization only
 * the new group's members call it, in no order with anything; they find each other by the name, which no
 * other group that any of them made this way from `parent` and has not released may have; an unnamed one is
 * named by its ranks and how often these were made a group.
 *
 * `parent`: required. `ranks`: in, `n` ranks of the parent, none twice; (NULL, 0) for all of them;
 * borrowed for the call. `options`: NULL for all defaults; borrowed for the call. `out`: out, required;
 * owned by the caller, released with dist_group_release; NULL on failure, and with DIST_OK on ranks that are
 * not in the new group. The ranks meet over messages of the parent; the store is not asked. The parent may be
 * released before or after the new group, which then goes on as before; aborting it before that aborts the new one.
 * Blocks until all who make the group have come, until connect_timeout_ms at the latest. Any thread.
 *
 * Returns DIST_OK; DIST_ERR_INVALID_ARGUMENT for wrong ranks, names or options, DIST_ERR_NOT_FOUND for an unknown
 * back end, both before anything has happened; DIST_ERR_MISMATCH on all ranks that came where they define the
 * group differently (the message has each definition and who said it); DIST_ERR_TIMEOUT naming ranks that did
 * not come; DIST_ERR_PEER_FAILED where another rank could not join or left; DIST_ERR_SYSTEM where a limit of
 * the system is reached; DIST_ERR_UNSUPPORTED where the parent's back end has no messages; DIST_ERR_INVALID_HANDLE,
 * DIST_ERR_NOT_INITIALIZED, DIST_ERR_OUT_OF_MEMORY. The parent goes on after all of these, except where
 * ranks of it did not come to a call of all of them, or came to another one, which fails it as with any
 * collective. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_group_new(struct dist_group_t *parent,
                             const int32_t *ranks,
                             size_t n,
                             const struct dist_group_new_options_t *options,
                             struct dist_group_t **out);

/**
 * Splits a group into one group for each color.
 *
 * All ranks of `parent` call it, in the same order with the parent's other collectives; those with a color agree
 * on the name and the back end. Within a color, ranks are ordered by `key`, and where keys are equal by their
 * ranks in the parent. All groups have the name that the options give.
 *
 * `parent`: required. `color`: 0 or more, or DIST_NO_COLOR for no group. `key`: any number. `options`:
 * NULL for all defaults; borrowed for the call. `out`: out, required; owned by the caller, released with
 * dist_group_release; NULL on failure, and with DIST_OK for DIST_NO_COLOR. Releasing, blocking, threads: as in
 * dist_group_new.
 *
 * Returns as dist_group_new. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_group_split(struct dist_group_t *parent,
                               int32_t color,
                               int32_t key,
                               const struct dist_group_new_options_t *options,
                               struct dist_group_t **out);

/**
 * Copies which ranks of the outermost group a group's ranks are, in the order of its own ranks.
 *
 * The outermost group is the one that a chain of dist_group_new and dist_group_split began with: the world, or
 * one made by dist_group_create, which may say otherwise in global_ranks.
 *
 * `group`: required. `out`: out, may be NULL if `cap` is 0. `cap`: how many ranks it has room for; a
 * longer list is cut. Returns how many there are; 0 for an invalid handle. Any thread. Since 0.1.
 */
size_t dist_group_ranks(const struct dist_group_t *group,
                        int32_t *out,
                        size_t cap);

/**
 * Which rank of a group a rank of the outermost group (see dist_group_ranks) is.
 *
 * `group`: required. `global_rank`: that rank. Returns -1 where it is not in the group, and for an invalid handle. Any
 * thread. Since 0.1.
 */
int32_t dist_group_rank_from_global(const struct dist_group_t *group,
                                    int32_t global_rank);

/**
 * Which rank of the outermost group (see dist_group_ranks) a rank of a group is.
 *
 * `group`: required. `rank`: that rank. Returns -1 for one that the group has not, and for an invalid handle. Any
 * thread. Since 0.1.
 */
int32_t dist_group_rank_to_global(const struct dist_group_t *group,
                                  int32_t rank);

/**
 * Makes a group of those of a failed group's ranks that are left: after DIST_ERR_PEER_FAILED, DIST_ERR_TIMEOUT or any
 * other failure, to go on without whoever caused it.
 *
 * All ranks that go on call it, each after its calls in `group` have failed; a group that has not failed is aborted by
 * it ("rank 2 shrinks group world"). They find each other by what they know since the group began, without the store and
 * without the group's own connections. A rank that has died is passed over at once, one that does not call within
 * timeout_ms after it has been looked for is excluded, and so is the rank that the failure names where that is
 * DIST_ERR_PEER_FAILED. Those that are left must be more than half of the ranks that are not proven dead (a closed socket
 * proves it), or half of them with the lowest: of two parts that do not reach each other, one goes on at most. A rank
 * that dies while they make the group is left out as well.
 *
 * The new group has the ranks in the order they had, numbered from 0; dist_group_ranks says which they are of the outermost
 * group. It has the back end, the options and the time-outs of the old one, and its name with "#1" behind it, "#2" for
 * what is left of that, and so on. Results that some ranks had and others had not when the group failed are the
 * caller's to compare: c-examples/survive.c shows how. The old group stays failed, and is released as before;
 * for the world that is dist_finalize, which may come before or after the new group's release.
 *
 * `group`: required. `options`: NULL for all defaults; borrowed for the call. `out`: out, required; owned by
 * the caller, released with dist_group_release; NULL on failure. Blocks until all who may come have come, and for
 * timeout_ms for each that does not answer, until connect_timeout_ms at the latest. Any thread; not inside a
 * completion callback.
 *
 * Returns DIST_OK; DIST_ERR_ABORTED where the others have gone on without this rank, for as long as they do;
 * DIST_ERR_PEER_FAILED where the group has failed because of this rank, and where those that came are too few (the
 * message has the others, and why each did not come); DIST_ERR_TIMEOUT; DIST_ERR_INVALID_ARGUMENT where another
 * thread shrinks the group; DIST_ERR_UNSUPPORTED for a back end whose ranks cannot meet again;
 * DIST_ERR_INVALID_HANDLE, DIST_ERR_NOT_INITIALIZED, DIST_ERR_OUT_OF_MEMORY, DIST_ERR_SYSTEM. It may be called again after
 * a failure. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_group_shrink(struct dist_group_t *group,
                                const struct dist_shrink_options_t *options,
                                struct dist_group_t **out);

/**
 * Gives the rank that has failed a group, with its fault and its process.
 *
 * @param group in: the group.
 * @param out out: DIST_CULPRIT_NONE and rank -1 while the group has not failed, and if its error names no rank. Set
 *   struct_size before the call (DIST_CULPRIT_INIT).
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `out` is NULL or its struct_size is wrong.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_group_culprit(const struct dist_group_t *group,
                                 struct dist_culprit_t *out);

/* All defaults; assign the fields that differ. */
#define DIST_GROUP_OPTIONS_INIT { sizeof(dist_group_options_t), 0, DIST_NULL, 0, 0, DIST_NULL, \
    DIST_NULL, 0, 0, DIST_NULL, DIST_NULL, 0, 0, 0 }
#define DIST_GROUP_NEW_OPTIONS_INIT { sizeof(dist_group_new_options_t), DIST_NULL, DIST_NULL, \
    DIST_NULL, 0, 0, 0 }
#define DIST_SHRINK_OPTIONS_INIT { sizeof(dist_shrink_options_t), 0, 0 }
#define DIST_CULPRIT_INIT { sizeof(dist_culprit_t), 0, 0, 0, { 0 } }

/*
 * Element types and operators
 *
 * What vectors consist of, and how reductions combine them.
 */

/**
 * In the flags of dist_op_create: a op b is b op a.
 */
#define DIST_OP_COMMUTATIVE 1

/**
 * The type of one element. No operator and no status has the number of a type: an argument in the place of another
 * kind is DIST_ERR_INVALID_ARGUMENT.
 */
typedef int32_t dist_dtype_t;

/**
 * How elements of different ranks become one. Integers wrap; f16, bf16 and f8 are folded in single
 * precision and rounded once per host, and once more for each step between hosts.
 */
typedef int32_t dist_op_t;

/**
 * Folds two vectors with a caller-defined operator: `inout[i]` becomes `lower[i]` op `inout[i]`.
 *
 * Both have `count` elements of `elem_bytes` bytes. `lower` is the fold of lower ranks' vectors, `inout` the next rank's
 * vector and the result. `user` is the pointer given with the function.
 *
 * Both are private memory of the library's, apart from each other. Each begins on a multiple of 64 bytes, or a whole number
 * of elements behind one. The library calls the function on the calling thread or on its own, for different groups at the
 * same time. The function must be associative and depend on nothing but the elements. It must not call libdist, throw or
 * longjmp.
 */
typedef void (*dist_op_fn)(const void *lower,
                           void *inout,
                           size_t count,
                           size_t elem_bytes,
                           void *user);

/**
 * Signed, 8 bits.
 */
#define DIST_I8 256

/**
 * Unsigned, 8 bits.
 */
#define DIST_U8 257

/**
 * Signed, 16 bits.
 */
#define DIST_I16 258

/**
 * Unsigned, 16 bits.
 */
#define DIST_U16 259

/**
 * Signed, 32 bits.
 */
#define DIST_I32 260

/**
 * Unsigned, 32 bits.
 */
#define DIST_U32 261

/**
 * Signed, 64 bits.
 */
#define DIST_I64 262

/**
 * Unsigned, 64 bits.
 */
#define DIST_U64 263

/**
 * IEEE half precision.
 */
#define DIST_F16 264

/**
 * The upper half of an IEEE single.
 */
#define DIST_BF16 265

/**
 * IEEE single precision.
 */
#define DIST_F32 266

/**
 * IEEE double precision.
 */
#define DIST_F64 267

/**
 * Two singles: real, imaginary.
 */
#define DIST_C64 268

/**
 * Two doubles: real, imaginary.
 */
#define DIST_C128 269

/**
 * One byte; every value but 0 is true.
 */
#define DIST_BOOL 270

/**
 * 8 bits: 4 of exponent, 3 of mantissa, no infinities.
 */
#define DIST_F8E4M3 271

/**
 * 8 bits: 5 of exponent, 2 of mantissa.
 */
#define DIST_F8E5M2 272

/**
 * Elements that only a caller-defined operator knows (dist_op_create), which also says how long one is. No other
 * operator takes them, and no other call.
 */
#define DIST_OPAQUE 273

/**
 * The sum; of bools, or.
 */
#define DIST_SUM 512

/**
 * The product; of bools, and. Not for complex numbers.
 */
#define DIST_PRODUCT 513

/**
 * The smallest; NaN wins. Not for complex numbers.
 */
#define DIST_MIN 514

/**
 * The largest; NaN wins. Not for complex numbers.
 */
#define DIST_MAX 515

/**
 * The sum divided by the number of ranks; of integers, the wrapped sum rounded towards zero. Not for
 * bools.
 */
#define DIST_AVG 516

/**
 * Bitwise and. Not for floating point.
 */
#define DIST_BAND 517

/**
 * Bitwise or. Not for floating point.
 */
#define DIST_BOR 518

/**
 * Bitwise exclusive or. Not for floating point.
 */
#define DIST_BXOR 519

/**
 * The sum of each rank's elements times its own premul_scale. Only for floating point.
 */
#define DIST_PREMUL_SUM 520

/**
 * Gives the size of one element of a type in bytes.
 *
 * @param dtype in: the element type; any number may be asked for.
 * @agree nothing.
 * @blocks no.
 * @return the size; 0 for a number that names no type.
 * @threads any.
 * @since 0.1
 */
size_t dist_dtype_size(dist_dtype_t dtype);

/**
 * Gives the name of an element type, such as "f32", as messages have it.
 *
 * @param dtype in: the element type; any number may be asked for.
 * @agree nothing.
 * @blocks no.
 * @return the name, static; "unknown dtype" for a number that names no type.
 * @threads any.
 * @since 0.1
 */
const char *dist_dtype_name(dist_dtype_t dtype);

/**
 * Gives the name of an operator, such as "sum".
 *
 * @param op in: the operator; any number may be asked for.
 * @agree nothing.
 * @blocks no.
 * @return the name, static; "unknown op" for a number that names no operator.
 * @threads any.
 * @since 0.1
 */
const char *dist_op_name(dist_op_t op);

/**
 * Makes an operator of a function, for every collective that reduces.
 *
 * It folds host memory over every back end: dist_all_reduce, dist_reduce, dist_reduce_scatter,
 * dist_reduce_scatter_v, dist_scan and dist_exscan take `*out` as their operator, and as the element type either
 * DIST_OPAQUE or one of `elem_bytes` bytes. The library folds vectors in rank order, whether the operator is commutative
 * or not, and every rank gets the same bits.
 *
 * The ranks of a call compare the operator's name, `elem_bytes` and `flags`: where they differ the call ends with
 * DIST_ERR_MISMATCH, and the error has both names. An operator belongs to the process, not to a group.
 *
 * @param name in: 1 to 48 bytes of UTF-8, borrowed for the call. No other live operator of the process has it.
 * @param function in: folds two vectors; called until the operator is released and all works that use it have
 *   completed.
 * @param elem_bytes in: the size of an element, 1 to 1048576.
 * @param flags in: 0 or DIST_OP_COMMUTATIVE.
 * @param user in, optional: passed to `function` as it is; the caller keeps it valid for as long as `function` is
 *   called.
 * @param out out: the operator; owned by the caller, released with dist_op_release. Not written on failure.
 * @agree nothing; calls with the operator agree on its name, `elem_bytes` and `flags`.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if an argument is not as said or the name is in use;
 *   DIST_ERR_UNSUPPORTED if `flags` has a bit that this version does not know; DIST_ERR_OUT_OF_MEMORY if 4096
 *   operators are live.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_op_create(const char *name,
                             dist_op_fn function,
                             size_t elem_bytes,
                             uint64_t flags,
                             void *user,
                             dist_op_t *out);

/**
 * Releases an operator: its number and its name are free.
 *
 * Calls that were issued before go on with it: the library calls the function until their works have completed.
 *
 * @param op in: an operator of dist_op_create.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if `op` is no live operator of dist_op_create.
 * @threads any.
 * @since 0.1
 */
dist_status_t dist_op_release(dist_op_t op);

/*
 * Collectives
 *
 * Operations that all ranks of a group call in the same order.
 */

/**
 * In a call's flags: the vectors of all ranks are folded in the order of ranks at once, so that the result has the
 * same bits wherever the ranks are and whatever the algorithm. It may be slower between hosts. All ranks say the same.
 */
#define DIST_CALL_CANONICAL 1

/**
 * In a call's flags: an input or a result with a NaN in it fails the group, as with DIST_CHECK_NAN=1. Each rank says
 * this for itself.
 */
#define DIST_CALL_CHECK_NAN 2

/**
 * In a call's flags: the same for what is no finite number, infinite ones included.
 */
#define DIST_CALL_CHECK_INF 4

/**
 * In a call's flags: `device` says where its buffers are.
 */
#define DIST_CALL_DEVICE 8

/**
 * In a call's flags: a send is done only once a receive has matched its message. Only for dist_send, dist_send_bytes and the
 * send of dist_sendrecv; each rank says this for itself.
 */
#define DIST_CALL_SYNCHRONOUS 16

/**
 * The most bytes of a call's label, without the terminator.
 */
#define DIST_LABEL_BYTES 32

/**
 * An operation that was issued and that may still be under way. Any thread may use it; owned by the caller, released
 * with dist_work_release. It outlives its group and keeps its outcome until it is released.
 */
typedef struct dist_work_t dist_work_t;

/**
 * Options of one collective call, or of a message.
 */
typedef struct dist_call_options_t {
    /**
     * sizeof(dist_call_options_t).
     */
    size_t struct_size;
    /**
     * Time-out from the time of issue; the default is the group's. Not DIST_NO_WAIT: a call without time would fail its
     * group.
     */
    int64_t timeout_ms;
    /**
     * This rank's factor for DIST_PREMUL_SUM.
     */
    double premul_scale;
    /**
     * An algorithm by name (dist_group_describe lists them); NULL to let the library choose. All ranks
     * name the same one.
     */
    const char *algorithm;
    /**
     * DIST_CALL_CANONICAL, DIST_CALL_CHECK_NAN, DIST_CALL_CHECK_INF, DIST_CALL_DEVICE, DIST_CALL_SYNCHRONOUS, added up; or 0.
     */
    uint64_t flags;
    /**
     * The stream (CUstream, cudaStream_t) that a call on a GPU's memory is put into: what comes later in it sees the
     * result. NULL for a stream of the library's, behind what is on the default stream; a call that blocks waits for the
     * device then. CUDA's own default stream is (void *)1. Where native carries the memory of a GPU, the call begins behind
     * what is in the stream, and what comes later sees the result only if it is put there once the call has ended.
     */
    void *stream;
    /**
     * Where the buffers are, with DIST_CALL_DEVICE in flags: the index of the group's GPU on this rank, or
     * DIST_DEVICE_HOST. Without it, the driver is asked.
     */
    int32_t device;
    /**
     * 0.
     */
    int32_t reserved;
    /**
     * The label of the call: UTF-8 of at most DIST_LABEL_BYTES bytes without the terminator,
     * borrowed for the call; NULL or "" for none. All ranks give the same label to a collective:
     * the native back end reports different ones with DIST_ERR_MISMATCH. Messages are matched
     * without it. Errors, the flight recorder, the trace and dist-doctor show it.
     */
    const char *label;
} dist_call_options_t;

/**
 * Reduces the vectors of all ranks, and gives every rank the result, bitwise the same on all.
 *
 * All ranks must agree on the order of calls on the group, and on count, dtype and op. `group`: required. `send`: in, `count` elements. `recv`: out, `count` elements. Both borrowed until the operation is
 * done, NULL only where count is 0; in place if equal, else they must not overlap. `options`: NULL for
 * defaults; borrowed for the call. `work`: NULL, or out: the operation is issued only, and its work is owned by
 * the caller, released with dist_work_release; NULL on failure. With NULL it blocks until all ranks have called
 * and the result is there, until the deadline at the latest; inside a batch (dist_batch_begin) it never does.
 * Operations of a group run in the order of their issue, blocking and asynchronous ones alike. On the memory of a GPU
 * an operation over NCCL is done when it is in its stream (`stream` in dist_call_options_t). Any thread;
 * threads that use one group must keep the same order on all ranks.
 *
 * Returns DIST_OK; DIST_ERR_INVALID_ARGUMENT (also for a blocking call inside a completion callback),
 * DIST_ERR_INVALID_HANDLE, DIST_ERR_NOT_INITIALIZED, DIST_ERR_UNSUPPORTED with nothing done; with a work also
 * DIST_ERR_OUT_OF_MEMORY (65536 works of the group are outstanding) and DIST_ERR_SYSTEM (no thread can be
 * started), with nothing done. Without one, and else from the work: DIST_ERR_TIMEOUT, DIST_ERR_PEER_FAILED,
 * DIST_ERR_MISMATCH, DIST_ERR_ABORTED, after which the group refuses work with the same cause and `recv` is
 * undefined. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_all_reduce(dist_group_t *group,
                              const void *send,
                              void *recv,
                              size_t count,
                              dist_dtype_t dtype,
                              dist_op_t op,
                              const struct dist_call_options_t *options,
                              struct dist_work_t **work);

/**
 * Reduces the vectors of all ranks, and gives the root the result.
 *
 * As dist_all_reduce; all ranks must agree on `root` too, a rank of the group. `recv` is used on the root
 * only and may be NULL elsewhere. Done on the root when all ranks have called; on the others maybe
 * earlier. In place on the root if `send` and `recv` are equal. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_reduce(dist_group_t *group,
                          const void *send,
                          void *recv,
                          size_t count,
                          dist_dtype_t dtype,
                          dist_op_t op,
                          int32_t root,
                          const struct dist_call_options_t *options,
                          struct dist_work_t **work);

/**
 * Copies the root's vector to all ranks.
 *
 * All ranks must agree on the order of calls on the group, and on count, dtype and root. `group`: required. `buf`: in on the root, out elsewhere, `count` elements, borrowed until the operation is
 * done. `root`: a rank of the group. Done when the data is here; the root may return before the others have called.
 * `options`, `work`, threads and results: as dist_all_reduce. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_broadcast(dist_group_t *group,
                             void *buf,
                             size_t count,
                             dist_dtype_t dtype,
                             int32_t root,
                             const struct dist_call_options_t *options,
                             struct dist_work_t **work);

/**
 * Gives every rank the vectors of all ranks, in rank order.
 *
 * All ranks must agree on the order of calls on the group, and on count and dtype. `group`: required. `send`: in, `count` elements. `recv`: out, world size times `count` elements. Both borrowed
 * until the operation is done; in place if send == recv + rank * count, else they must not overlap. Done when all
 * ranks have called. `options`, `work`, threads and results: as dist_all_reduce. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_all_gather(dist_group_t *group,
                              const void *send,
                              void *recv,
                              size_t count,
                              dist_dtype_t dtype,
                              const struct dist_call_options_t *options,
                              struct dist_work_t **work);

/**
 * Reduces the vectors of all ranks, and gives each rank its block of the result.
 *
 * All ranks must agree on the order of calls on the group, and on count, dtype and op. `group`: required. `send`: in, world size times `count` elements. `recv`: out, `count` elements: block `rank` of
 * the result. Both borrowed until the operation is done; in place if recv == send + rank * count, else they
 * must not overlap. Done when all ranks have called. `options`, `work`, threads and results: as
 * dist_all_reduce. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_reduce_scatter(dist_group_t *group,
                                  const void *send,
                                  void *recv,
                                  size_t count,
                                  dist_dtype_t dtype,
                                  dist_op_t op,
                                  const struct dist_call_options_t *options,
                                  struct dist_work_t **work);

/**
 * Reduces the vectors of the ranks up to this one: rank r gets the fold of ranks 0 to r.
 *
 * Vectors are folded in rank order. Every operator that dist_all_reduce takes, except DIST_AVG. DIST_PREMUL_SUM
 * multiplies each rank's vector by its own factor first.
 *
 * @param group in: the group.
 * @param send in: `count` elements; borrowed until the work completes; NULL only if `count` is 0.
 * @param recv out: `count` elements; borrowed until the work completes; NULL only if `count` is 0. It may be equal
 *   to `send` (in place), else the two must not overlap.
 * @param count in: the number of elements.
 * @param dtype in: the element type.
 * @param op in: the operator.
 * @param options in, optional: defaults if NULL; borrowed for the call.
 * @param work out, optional: the work of a call that does not block; owned by the caller, released with
 *   dist_work_release; NULL on failure.
 * @agree the order of calls on the group, count, dtype and op.
 * @blocks without a work and outside a batch, until the result is there, until the deadline at the latest.
 * @return as dist_all_reduce; DIST_ERR_UNSUPPORTED also for DIST_AVG and for the memory of a GPU over NCCL.
 * @threads any; threads that use one group keep the same order on all ranks.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_scan(dist_group_t *group,
                        const void *send,
                        void *recv,
                        size_t count,
                        dist_dtype_t dtype,
                        dist_op_t op,
                        const struct dist_call_options_t *options,
                        struct dist_work_t **work);

/**
 * Reduces the vectors of the ranks below this one: rank r gets the fold of ranks 0 to r - 1.
 *
 * As dist_scan, without the rank's own vector. On rank 0 there is nothing to fold: the library leaves `recv` as it
 * is.
 *
 * @param group in: the group.
 * @param send in: `count` elements; borrowed until the work completes; NULL only if `count` is 0.
 * @param recv out: `count` elements; borrowed until the work completes; NULL only if `count` is 0 or on rank 0. It may
 *   be equal to `send` (in place), else the two must not overlap.
 * @param count in: the number of elements.
 * @param dtype in: the element type.
 * @param op in: the operator.
 * @param options in, optional: defaults if NULL; borrowed for the call.
 * @param work out, optional: the work of a call that does not block; owned by the caller, released with
 *   dist_work_release; NULL on failure.
 * @agree the order of calls on the group, count, dtype and op.
 * @blocks without a work and outside a batch, until the result is there, until the deadline at the latest.
 * @return as dist_scan.
 * @threads any; threads that use one group keep the same order on all ranks.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_exscan(dist_group_t *group,
                          const void *send,
                          void *recv,
                          size_t count,
                          dist_dtype_t dtype,
                          dist_op_t op,
                          const struct dist_call_options_t *options,
                          struct dist_work_t **work);

/**
 * Done when all ranks of the group have called it.
 *
 * All ranks must agree on the order of calls on the group. `group`: required. `options`, `work`,
 * threads and results: as dist_all_reduce. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_barrier(dist_group_t *group,
                           const struct dist_call_options_t *options,
                           struct dist_work_t **work);

/**
 * Gives the root the vectors of all ranks, in rank order.
 *
 * All ranks must agree on the order of calls on the group, and on count, dtype and root. `group`: required. `send`: in, `count` elements. `recv`: out, world size times `count` elements; used on the root only, may
 * be NULL elsewhere. Both borrowed until the operation is done; in place on the root if send == recv + rank *
 * count, else they must not overlap. `root`: a rank of the group. Done on the root when all ranks have called; on
 * the others maybe earlier. `options`, `work`, threads and results: as dist_all_reduce. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_gather(dist_group_t *group,
                          const void *send,
                          void *recv,
                          size_t count,
                          dist_dtype_t dtype,
                          int32_t root,
                          const struct dist_call_options_t *options,
                          struct dist_work_t **work);

/**
 * Gives each rank its block of the root's vector.
 *
 * All ranks must agree on the order of calls on the group, and on count, dtype and root. `group`: required. `send`: in, world size times `count` elements; used on the root only, may be NULL elsewhere. `recv`: out,
 * `count` elements: block `rank` of `send`. Both borrowed until the operation is done; in place on the root if
 * recv == send + rank * count, else they must not overlap. `root`: a rank of the group. Done when the data is
 * here; the root may return before the others have called. `options`, `work`, threads and results: as
 * dist_all_reduce. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_scatter(dist_group_t *group,
                           const void *send,
                           void *recv,
                           size_t count,
                           dist_dtype_t dtype,
                           int32_t root,
                           const struct dist_call_options_t *options,
                           struct dist_work_t **work);

/**
 * Gives every rank its block of every rank's vector: block i of `recv` is block `rank` of rank i's `send`.
 *
 * All ranks must agree on the order of calls on the group, and on count and dtype. `group`: required. `send`: in, `recv`: out, world size times `count` elements each, borrowed until the operation is done;
 * they must not overlap. Done when all ranks have called. `options`, `work`, threads and results: as
 * dist_all_reduce. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_all_to_all(dist_group_t *group,
                              const void *send,
                              void *recv,
                              size_t count,
                              dist_dtype_t dtype,
                              const struct dist_call_options_t *options,
                              struct dist_work_t **work);

/**
 * Gives every rank the vectors of all ranks, each of its own length, each at its own place.
 *
 * All ranks must agree on the order of calls on the group, on dtype, and on all counts. `group`: required. `send`: in, `counts[rank]` elements. `recv`: an array of world size pointers, `counts`: an array of world
 * size counts, in elements; both borrowed for the call. `recv[i]`: out, `counts[i]` elements of rank i; NULL only
 * where that is 0. The buffers are borrowed until the operation is done; in place if send == `recv[rank]`, else none
 * may overlap another. Done when all ranks have called. `options`, `work`, threads and results: as dist_all_reduce.
 * Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_all_gather_v(dist_group_t *group,
                                const void *send,
                                void *const *recv,
                                const size_t *counts,
                                dist_dtype_t dtype,
                                const struct dist_call_options_t *options,
                                struct dist_work_t **work);

/**
 * Gives every rank the vectors of all ranks, each of its own length, in one buffer.
 *
 * It is dist_all_gather_v with the blocks of one buffer, as MPI_Allgatherv has them, and ranks that call either meet
 * in one operation. It works in place if `send` is this rank's block in `recv`; else no block may overlap another
 * or `send`.
 *
 * @param group in: the group.
 * @param send in: `counts[rank]` elements; borrowed until the work completes; NULL only if that is 0.
 * @param recv out: the block of rank i begins `displs[i]` elements behind `recv`, and has `counts[i]` elements;
 *   borrowed until the work completes; NULL only if all counts are 0. The elements between blocks stay as they are.
 * @param counts in: world size counts, in elements; borrowed for the call.
 * @param displs in, optional: world size displacements, in elements; borrowed for the call. NULL to put the blocks one
 *   after the other in the order of ranks. Each rank may have others.
 * @param dtype in: the element type.
 * @param options in, optional: the call's options; NULL for all defaults; borrowed for the call.
 * @param work out, optional: the work, as in dist_all_reduce; owned by the caller, released with dist_work_release.
 * @agree the order of calls on the group, dtype and all counts.
 * @blocks as dist_all_reduce.
 * @return as dist_all_reduce.
 * @threads as dist_all_reduce.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_all_gather_v_at(dist_group_t *group,
                                   const void *send,
                                   void *recv,
                                   const size_t *counts,
                                   const size_t *displs,
                                   dist_dtype_t dtype,
                                   const struct dist_call_options_t *options,
                                   struct dist_work_t **work);

/**
 * Gives every rank the counts of all ranks, for the calls that need all of them.
 *
 * It is an all-gather of one count, before dist_all_gather_v_at for instance.
 *
 * @param group in: the group.
 * @param count in: this rank's count, any number.
 * @param counts out: world size counts, in the order of ranks; borrowed until the work completes.
 * @param options in, optional: the call's options; NULL for all defaults; borrowed for the call.
 * @param work out, optional: the work, as in dist_all_reduce; owned by the caller, released with dist_work_release.
 * @agree the order of calls on the group.
 * @blocks as dist_all_reduce.
 * @return as dist_all_reduce.
 * @threads as dist_all_reduce.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_all_gather_counts(dist_group_t *group,
                                     size_t count,
                                     size_t *counts,
                                     const struct dist_call_options_t *options,
                                     struct dist_work_t **work);

/**
 * Tells all ranks whether they have the same bytes, and which rank differs.
 *
 * The bytes may have any length; ranks with other lengths differ. The ranks exchange a record of 40 bytes each, the
 * length and the BLAKE3 hash of the bytes: if two ranks have different bytes of one length, the call takes them
 * for equal with a probability of 2^-256. It is an all-gather, and has its deadline and its failures.
 *
 * @param group in: the group; its back end must carry host memory.
 * @param bytes in: `len_bytes` bytes in host memory; borrowed for the call; NULL only if `len_bytes` is 0.
 * @param len_bytes in: the number of bytes on this rank.
 * @param equal out, optional: 1 if all ranks have the same bytes, else 0; the same on all ranks.
 * @param differing_rank out, optional: the lowest rank whose bytes are not those of rank 0, the same on all ranks;
 *   -1 if there is none.
 * @param options in, optional: the call's options, without a device and a stream; NULL for all defaults; borrowed
 *   for the call.
 * @agree the order of calls on the group.
 * @blocks until all ranks have called, until the deadline at the latest.
 * @return as dist_all_reduce without a work; DIST_ERR_INVALID_ARGUMENT inside a batch; DIST_OK also if ranks differ.
 * @threads as dist_all_reduce.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_all_equal(dist_group_t *group,
                             const void *bytes,
                             size_t len_bytes,
                             int32_t *equal,
                             int32_t *differing_rank,
                             const struct dist_call_options_t *options);

/**
 * Gives the root the vectors of all ranks, each of its own length, each at its own place.
 *
 * All ranks must agree on the order of calls on the group, on dtype and root; `count` of rank i must be the
 * root's `counts[i]`. `group`: required. `send`: in, `count` elements. `recv`: an array of world size
 * pointers, `counts`: an array of world size counts, in elements; both used on the root only, may be NULL
 * elsewhere, and are borrowed for the call. `recv[i]`: out, `counts[i]` elements of rank i; NULL only where that is 0.
 * The buffers are borrowed until the operation is done; in place on the root if send == `recv[rank]`, else none may
 * overlap another. `root`: a rank of the group. Done on the root when all ranks have called; on the others maybe
 * earlier. `options`, `work`, threads and results: as dist_all_reduce; `count` and `counts[rank]` that differ on the
 * root are DIST_ERR_INVALID_ARGUMENT there; counts on which two ranks disagree are DIST_ERR_MISMATCH on at least one
 * of the two, and on all others at their next call at the latest. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_gather_v(dist_group_t *group,
                            const void *send,
                            size_t count,
                            void *const *recv,
                            const size_t *counts,
                            dist_dtype_t dtype,
                            int32_t root,
                            const struct dist_call_options_t *options,
                            struct dist_work_t **work);

/**
 * Gives each rank its vector of those that the root has, each of its own length, each at its own place.
 *
 * All ranks must agree on the order of calls on the group, on dtype and root; `count` of rank i must be the
 * root's `counts[i]`. `group`: required. `send`: an array of world size pointers, `counts`: an array of
 * world size counts, in elements; both used on the root only, may be NULL elsewhere, and are borrowed for the call.
 * `send[i]`: in, `counts[i]` elements for rank i; NULL only where that is 0. `recv`: out, `count` elements. The
 * buffers are borrowed until the operation is done; in place on the root if recv == `send[rank]`, else `recv` must
 * not overlap the others. `root`: a rank of the group. Done when the data is here; the root may return before the
 * others have called. `options`, `work`, threads and results: as dist_all_reduce; `count` and `counts[rank]` that
 * differ on the root are DIST_ERR_INVALID_ARGUMENT there; counts on which two ranks disagree are DIST_ERR_MISMATCH
 * on at least one of the two, and on all others at their next call at the latest. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_scatter_v(dist_group_t *group,
                             const void *const *send,
                             const size_t *counts,
                             void *recv,
                             size_t count,
                             dist_dtype_t dtype,
                             int32_t root,
                             const struct dist_call_options_t *options,
                             struct dist_work_t **work);

/**
 * Reduces vectors of all ranks, one for each rank and each of its own length, and gives each rank its own.
 *
 * All ranks must agree on the order of calls on the group, on dtype, op, and on all counts. `group`: required. `send`: an array of world size pointers, `counts`: an array of world size counts, in elements; both
 * borrowed for the call. `send[i]`: in, `counts[i]` elements of what rank i gets; NULL only where that is 0. `recv`:
 * out, `counts[rank]` elements. The buffers are borrowed until the operation is done; in place if recv ==
 * `send[rank]`, else `recv` must not overlap the others. Done when all ranks have called. `options`, `work`, threads
 * and results: as dist_all_reduce. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_reduce_scatter_v(dist_group_t *group,
                                    const void *const *send,
                                    const size_t *counts,
                                    void *recv,
                                    dist_dtype_t dtype,
                                    dist_op_t op,
                                    const struct dist_call_options_t *options,
                                    struct dist_work_t **work);

/**
 * Gives every rank its vector of every rank's, each of its own length, each at its own place: `recv[i]` is
 * `send[rank]` of rank i.
 *
 * All ranks must agree on the order of calls on the group and on dtype; `send_counts[j]` of rank i must be
 * `recv_counts[i]` of rank j. `group`: required. `send`, `recv`: arrays of world size pointers,
 * `send_counts`, `recv_counts`: arrays of world size counts, in elements; all borrowed for the call. `send[i]`: in,
 * `send_counts[i]` elements; `recv[i]`: out, `recv_counts[i]` elements; NULL only where that is 0. The buffers are
 * borrowed until the operation is done, and none may overlap another that is written. Done when all ranks
 * have called. `options`, `work`, threads and results: as dist_all_reduce; `send_counts[rank]` and `recv_counts[rank]`
 * that differ are DIST_ERR_INVALID_ARGUMENT; counts on which two ranks disagree are DIST_ERR_MISMATCH on at least
 * one of the two, and on all others at their next call at the latest. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_all_to_all_v(dist_group_t *group,
                                const void *const *send,
                                const size_t *send_counts,
                                void *const *recv,
                                const size_t *recv_counts,
                                dist_dtype_t dtype,
                                const struct dist_call_options_t *options,
                                struct dist_work_t **work);

/**
 * Gives every rank the root's byte string, of whatever length.
 *
 * All ranks must agree on the order of calls on the group, and on `root`, a rank of the group. `group`: required. `data`, `len_bytes`: in, the root's bytes, borrowed until the operation is done; NULL only where
 * `len_bytes` is 0; not used elsewhere. `out`: out, required on every rank, the root too; a blob with one string,
 * owned by the caller, released with dist_blob_release; NULL until it is there and on failure. It is borrowed
 * until the operation is done. `options`: NULL for defaults; borrowed for the call; algorithm must be NULL. `work`:
 * NULL, or out, as in dist_all_reduce. The call is two operations, of the lengths and of the bytes, with two
 * sequence numbers. Blocking, threads and results: as dist_all_reduce; and DIST_ERR_OUT_OF_MEMORY, which fails the
 * group, where a rank has no memory for what it gets. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_broadcast_bytes(dist_group_t *group,
                                   const void *data,
                                   size_t len_bytes,
                                   int32_t root,
                                   dist_blob_t **out,
                                   const struct dist_call_options_t *options,
                                   struct dist_work_t **work);

/**
 * Gives every rank the byte strings of all ranks, each of whatever length.
 *
 * All ranks must agree on the order of calls on the group. `group`: required. `data`, `len_bytes`: in,
 * this rank's bytes, borrowed until the operation is done; NULL only where `len_bytes` is 0. `out`: out, required;
 * a blob with one string for each rank, in rank order. The rest as in dist_broadcast_bytes. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_all_gather_bytes(dist_group_t *group,
                                    const void *data,
                                    size_t len_bytes,
                                    dist_blob_t **out,
                                    const struct dist_call_options_t *options,
                                    struct dist_work_t **work);

/**
 * Gives the root the byte strings of all ranks, each of whatever length.
 *
 * All ranks must agree on the order of calls on the group, and on `root`, a rank of the group. `group`: required. `data`, `len_bytes`: in, this rank's bytes, borrowed until the operation is done; NULL only where
 * `len_bytes` is 0. `out`: out, required on the root: a blob with one string for each rank, in rank order; elsewhere
 * it may be NULL and gets NULL. The rest as in dist_broadcast_bytes. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_gather_bytes(dist_group_t *group,
                                const void *data,
                                size_t len_bytes,
                                int32_t root,
                                dist_blob_t **out,
                                const struct dist_call_options_t *options,
                                struct dist_work_t **work);

/**
 * Gives each rank its byte string of those that the root has, each of whatever length.
 *
 * All ranks must agree on the order of calls on the group, and on `root`, a rank of the group. `group`: required. `data`: in, an array of world size pointers, `lens_bytes`: in, an array of world size lengths in bytes;
 * both used on the root only, may be NULL elsewhere, and are borrowed for the call. `data[i]`: the bytes for rank i,
 * borrowed until the operation is done; NULL only where the length is 0. `out`: out, required; a blob with one
 * string. The rest as in dist_broadcast_bytes. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_scatter_bytes(dist_group_t *group,
                                 const void *const *data,
                                 const size_t *lens_bytes,
                                 int32_t root,
                                 dist_blob_t **out,
                                 const struct dist_call_options_t *options,
                                 struct dist_work_t **work);

/**
 * Waits until all ranks have called it, and says who has not.
 *
 * All ranks must call it equally often; it has no order with collectives, and fails neither the group nor anything
 * else. `group`: required. `timeout_ms`: how long to wait, the same on all ranks; the default is
 * the group's. With DIST_NO_WAIT, only who is there already counts. Rank 0 waits so long, and tells the
 * others, which wait for its word half a second longer (with DIST_NO_WAIT not at all). `wait_all_ranks`: 0: it ends
 * as soon as one rank is known to be missing, and names the first one; else it waits for all until the deadline and
 * names all that are missing. `missing`: out, may be NULL, which needs `n_missing`; the ranks that did not come, in
 * rank order. `n_missing`: in and out, may be NULL; in: how many elements `missing` has room for (the group's size
 * is always enough), out: how many ranks were missing, of which those that have room are in `missing`.
 *
 * A rank that has left or died is missing at once. Where rank 0 itself does not come, the others say so. A rank that
 * comes late learns at once that this barrier has failed, and who was missing; the next one is a new one for all. It
 * blocks, and cannot be a part of a batch. Any thread; of one rank and group one at a time.
 *
 * Returns DIST_OK; DIST_ERR_TIMEOUT for ranks that did not come, DIST_ERR_PEER_FAILED where one of those has left
 * or died, on all ranks, with their names in the message; DIST_ERR_INVALID_ARGUMENT (also inside a completion
 * callback or a batch, and where another thread is in one), DIST_ERR_INVALID_HANDLE, DIST_ERR_NOT_INITIALIZED,
 * DIST_ERR_UNSUPPORTED (the group's back end has no messages); the group's failure. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_monitored_barrier(dist_group_t *group,
                                     int64_t timeout_ms,
                                     int32_t wait_all_ranks,
                                     int32_t *missing,
                                     size_t *n_missing);

/**
 * Begins a batch on the calling thread: its collectives and messages are only collected from now on, and issued
 * together by dist_batch_end.
 *
 * Inside, a call with `work` NULL does not block and returns DIST_OK once its arguments are checked; one with a
 * work gives it, but it can be waited for only after dist_batch_end. All buffers are borrowed until the work of
 * the batch is done. Small calls of dist_all_reduce, dist_reduce, dist_broadcast, dist_all_gather and
 * dist_reduce_scatter that follow each other on a group, with the same dtype, op, root and flags, become one
 * operation with one sequence number, so all ranks must put the same collectives into the same batch; ranks that do
 * not get DIST_ERR_MISMATCH. Small is up to 16 KiB, and 256 KiB in all. Calls with DIST_PREMUL_SUM or with an
 * algorithm stay alone. What was fused has the shortest of the time-outs. Ranks of one host give bitwise the result
 * of single calls; between hosts floating-point sums may be folded in another order, as for a vector of that length.
 * No call of a batch may use memory that another one of it writes, whatever their sizes and groups; the buffer of
 * dist_broadcast counts as written on the root too. A rank where two collectives do so fails their groups with
 * DIST_ERR_INVALID_ARGUMENT, so that all ranks are told and none waits. `groups`: the groups that the batch may
 * use, borrowed for the call, none of them NULL; (NULL, 0) allows any. `n`: how many there are. Other
 * threads are not concerned. Does not block. Any thread.
 *
 * Returns DIST_OK, DIST_ERR_INVALID_HANDLE, DIST_ERR_NOT_INITIALIZED, or DIST_ERR_INVALID_ARGUMENT, also where the
 * thread has begun one already. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_batch_begin(dist_group_t *const *groups,
                               size_t n);

/**
 * Issues the calls of the calling thread's batch together: receives first, then sends, then collectives in the
 * order of the calls, whatever their groups. So no order of sends, receives and groups makes ranks wait for each
 * other. What NCCL carries goes before all that, as one operation on all its groups, devices and streams.
 *
 * `work`: NULL, or out; the work of the whole, owned by the caller, released with dist_work_release; NULL on
 * failure. It is done when all operations are, with the first error in the order of the calls. With NULL it
 * blocks until then, which the operations' own deadlines bound. The batch has ended in every case. Any thread.
 *
 * Returns DIST_OK; DIST_ERR_INVALID_ARGUMENT without a batch, or for a blocking call inside a completion callback
 * (then its operations end with DIST_ERR_ABORTED); without a work, and else from it, the first error of an
 * operation. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_batch_end(struct dist_work_t **work);

/**
 * Whether a work is done.
 *
 * `work`: required. `done`: out, required; 1 or 0. Does not block. Any thread.
 *
 * Returns DIST_OK while it is pending or where it has succeeded, else the operation's error with `done` 1;
 * DIST_ERR_INVALID_HANDLE, DIST_ERR_INVALID_ARGUMENT with `done` 0. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_work_test(struct dist_work_t *work,
                             int32_t *done);

/**
 * The tag of the message which a work received or sent.
 *
 * `work`: required. Returns -1 as dist_work_source does. Does not block. Any thread. Since 0.1.
 */
int32_t dist_work_tag(const struct dist_work_t *work);

/**
 * Looks whether a work of a list is done.
 *
 * @param works in: as in dist_work_wait_all.
 * @param n in: the length of the list.
 * @param index out: as in dist_work_wait_any.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK, also if all entries are NULL; the error of the work at `index`; DIST_IN_PROGRESS if none is done;
 *   DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `index` is NULL.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_work_test_any(struct dist_work_t *const *works,
                                 size_t n,
                                 size_t *index);

/* All defaults; assign the fields that differ. */
#define DIST_CALL_OPTIONS_INIT { sizeof(dist_call_options_t), 0, 0.0, DIST_NULL, 0, DIST_NULL, \
    0, 0, DIST_NULL }

/*
 * Messages
 *
 * Messages from one rank to another.
 */

/**
 * In place of a rank: whoever sends (dist_recv).
 */
#define DIST_ANY_SOURCE -1

/**
 * In place of a tag: any (dist_recv).
 */
#define DIST_ANY_TAG -1

/**
 * A message that dist_probe took out of matching. Any thread may use it; owned by the caller, who ends it with
 * dist_recv_message or dist_message_release. It does not keep its group: it ends with it.
 */
typedef struct dist_message_t dist_message_t;

/**
 * Source, tag, count and type of a message. The library writes it; the caller sets struct_size (DIST_RECV_STATUS_INIT). The library writes
 * as many bytes as struct_size says, and zero to those of fields that it does not know.
 */
typedef struct dist_recv_status_t {
    /**
     * sizeof(dist_recv_status_t).
     */
    size_t struct_size;
    /**
     * The rank that sent the message.
     */
    int32_t source;
    /**
     * The tag of the message.
     */
    int32_t tag;
    /**
     * The number of elements that the message has, which may be fewer than there is room for.
     */
    size_t count;
    /**
     * The type of the elements.
     */
    dist_dtype_t dtype;
    /**
     * 0.
     */
    int32_t reserved;
} dist_recv_status_t;

/**
 * Sends a byte string of any length to one rank of a group, which receives it with dist_recv_bytes.
 *
 * It is a message of `len_bytes` elements of DIST_U8, as dist_send sends them, and may be received as such.
 *
 * @param group in: the group.
 * @param data in, optional: the bytes; borrowed until the work completes; NULL only if `len_bytes` is 0.
 * @param len_bytes in: the number of bytes.
 * @param peer in: the receiver, a rank of the group; this rank itself is possible.
 * @param tag in: 0 or more.
 * @param options in, optional: as in dist_send.
 * @param work out, optional: as in dist_send.
 * @agree sender and receiver agree on the tag.
 * @blocks as dist_send.
 * @return as dist_send.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_send_bytes(dist_group_t *group,
                              const void *data,
                              size_t len_bytes,
                              int32_t peer,
                              int32_t tag,
                              const dist_call_options_t *options,
                              dist_work_t **work);

/**
 * Receives a byte string, of whatever length, from one rank of a group.
 *
 * It takes the first message that it matches, sent by dist_send_bytes, or by dist_send with DIST_U8.
 *
 * @param group in: the group.
 * @param out out: a blob with one string, owned by the caller, released with dist_blob_release; NULL until it is there and
 *   on failure; borrowed until the work completes.
 * @param max_bytes in: the longest message that is taken; 0 for any.
 * @param peer in: the sender, a rank of the group, or DIST_ANY_SOURCE.
 * @param tag in: 0 or more, or DIST_ANY_TAG.
 * @param status out, optional: as in dist_recv; its count is the length.
 * @param options in, optional: as in dist_recv.
 * @param work out, optional: as in dist_recv; dist_work_received_count is the length.
 * @agree sender and receiver agree on the tag.
 * @blocks as dist_recv.
 * @return as dist_send; DIST_ERR_MISMATCH if the message is longer than `max_bytes` or of another dtype,
 *   DIST_ERR_OUT_OF_MEMORY if there is no memory for it: the message stays for the next receive.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_recv_bytes(dist_group_t *group,
                              dist_blob_t **out,
                              size_t max_bytes,
                              int32_t peer,
                              int32_t tag,
                              struct dist_recv_status_t *status,
                              const dist_call_options_t *options,
                              dist_work_t **work);

/**
 * Sends a message to one rank of a group.
 *
 * Messages from one rank under one tag are received in the order of their sending, and never wait behind collectives.
 * A blocking call returns once the message has been taken over or delivered: the receiver may not have asked for it. With
 * DIST_CALL_SYNCHRONOUS in the flags, the send is done only once a receive has matched the message.
 *
 * @param group in: the group.
 * @param buf in, optional: `count` elements; borrowed until the work completes; NULL only if `count` is 0.
 * @param count in: the number of elements.
 * @param dtype in: the type of the elements.
 * @param peer in: the receiver, a rank of the group; this rank itself is possible.
 * @param tag in: 0 or more.
 * @param options in, optional: NULL for defaults; borrowed for the call; algorithm must be NULL.
 * @param work out, optional: the work, owned by the caller, released with dist_work_release; NULL to block.
 * @agree sender and receiver agree on tag and dtype.
 * @blocks with `work` NULL outside a batch, until the message is taken over or delivered, until the deadline at the latest.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT, DIST_ERR_INVALID_HANDLE, DIST_ERR_NOT_INITIALIZED, DIST_ERR_UNSUPPORTED
 *   (the group's back end has no messages, or no synchronous send) or DIST_ERR_OUT_OF_MEMORY (too many are outstanding)
 *   with nothing done. Without a work, and else from it: DIST_ERR_TIMEOUT, DIST_ERR_PEER_FAILED, which fail nothing else
 *   unless a part was transferred, and the group's failure.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_send(dist_group_t *group,
                        const void *buf,
                        size_t count,
                        dist_dtype_t dtype,
                        int32_t peer,
                        int32_t tag,
                        const dist_call_options_t *options,
                        dist_work_t **work);

/**
 * Receives a message from one rank of a group.
 *
 * A receive takes the first message that it matches, a message the first receive, in the order of their calls. A message
 * that is shorter than the buffer leaves the rest of it as it is (`count` of the status, dist_work_received_count).
 *
 * @param group in: the group.
 * @param buf out, optional: room for `count` elements; borrowed until the work completes; NULL only if `count` is 0.
 * @param count in: the number of elements that there is room for.
 * @param dtype in: the type of the elements, the sender's.
 * @param peer in: the sender, a rank of the group, or DIST_ANY_SOURCE.
 * @param tag in: 0 or more, or DIST_ANY_TAG.
 * @param status out, optional: source, tag, count and dtype of the message; written on success. It must be NULL with a work
 *   and inside a batch: dist_work_source, dist_work_tag and dist_work_received_count tell.
 * @param options in, optional: NULL for defaults; borrowed for the call; algorithm must be NULL.
 * @param work out, optional: the work, owned by the caller, released with dist_work_release; NULL to block.
 * @agree sender and receiver agree on tag and dtype.
 * @blocks with `work` NULL outside a batch, until the message is here, until the deadline at the latest.
 * @return as dist_send; DIST_ERR_MISMATCH if the message is longer than `count` or of another dtype: nothing is written, and
 *   the message stays for the next receive.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_recv(dist_group_t *group,
                        void *buf,
                        size_t count,
                        dist_dtype_t dtype,
                        int32_t peer,
                        int32_t tag,
                        struct dist_recv_status_t *status,
                        const dist_call_options_t *options,
                        dist_work_t **work);

/**
 * Finds a message before it is received, and takes it out of matching.
 *
 * It finds the message that a receive with these arguments would take. A message that was taken is seen by no other
 * receive and no other probe; dist_recv_message receives it. With `message` NULL the probe only looks, and the message
 * stays where it is: another thread may receive it first. As in MPI, a receive on another thread may take a message that
 * this call waits for. Messages in the memory of a GPU are not found. It is no part of a batch.
 *
 * @param group in: the group.
 * @param peer in: the sender, a rank of the group, or DIST_ANY_SOURCE.
 * @param tag in: 0 or more, or DIST_ANY_TAG.
 * @param status out, optional: source, tag, count and dtype of the message; written on success.
 * @param options in, optional: NULL for defaults; borrowed for the call; algorithm must be NULL. With timeout_ms
 *   DIST_NO_WAIT the call does not block.
 * @param message out, optional: the message, owned by the caller, ended by dist_recv_message or dist_message_release; NULL
 *   if none was found. NULL to look only.
 * @agree nothing.
 * @blocks until there is a message, until the deadline at the latest; not with DIST_NO_WAIT.
 * @return DIST_OK; DIST_IN_PROGRESS with DIST_NO_WAIT if there is no message; DIST_ERR_INVALID_ARGUMENT also for a call that
 *   blocks inside a completion callback; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED; DIST_ERR_UNSUPPORTED if the
 *   back end cannot probe, as a plug-in cannot; DIST_ERR_TIMEOUT; DIST_ERR_PEER_FAILED if the sender has left and none of
 *   its messages is there; the group's failure.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_probe(dist_group_t *group,
                         int32_t peer,
                         int32_t tag,
                         struct dist_recv_status_t *status,
                         const dist_call_options_t *options,
                         struct dist_message_t **message);

/**
 * Receives a message that dist_probe took out of matching.
 *
 * The handle is consumed, also by an error of the operation. It stays valid if the call is refused with nothing done: for a
 * wrong argument, DIST_ERR_MISMATCH, DIST_ERR_UNSUPPORTED or DIST_ERR_OUT_OF_MEMORY. A byte string
 * (dist_send_bytes) is received as DIST_U8; the status of the probe has its length. If the deadline passes
 * before any of the message was transferred, the message returns to matching.
 *
 * @param message in: the message.
 * @param buf out, optional: room for `count` elements; borrowed until the work completes; NULL only if `count` is 0.
 * @param count in: the number of elements that there is room for.
 * @param dtype in: the type of the elements, the sender's.
 * @param status out, optional: as in dist_recv.
 * @param options in, optional: as in dist_recv.
 * @param work out, optional: as in dist_recv.
 * @agree sender and receiver agree on dtype.
 * @blocks with `work` NULL outside a batch, until the message is here, until the deadline at the latest.
 * @return as dist_recv; DIST_ERR_MISMATCH if the message is longer than `count` or of another dtype: nothing is written, and
 *   the handle stays valid; DIST_ERR_INVALID_HANDLE also if the group of the message was released; DIST_ERR_ABORTED if the
 *   sender withdrew the message because its deadline passed, DIST_ERR_PEER_FAILED if the sender left before the message
 *   was transferred: the handle is consumed.
 * @threads any; of several calls for one message, one receives it.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_recv_message(struct dist_message_t *message,
                                void *buf,
                                size_t count,
                                dist_dtype_t dtype,
                                struct dist_recv_status_t *status,
                                const dist_call_options_t *options,
                                dist_work_t **work);

/**
 * Returns a message that dist_probe took to matching, in its old place: the next receive or probe that matches finds it.
 *
 * @param message in, optional: the message; the handle is consumed. NULL does nothing.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK, also if the group was released or has failed; DIST_ERR_INVALID_HANDLE if the message was received or
 *   released.
 * @threads any.
 * @since 0.1
 */
dist_status_t dist_message_release(struct dist_message_t *message);

/**
 * Sends one message and receives another at the same time.
 *
 * Both directions go on at once, so that a ring of ranks that all call it does not wait for itself, whatever the size. The two
 * buffers may overlap or be the same: the message that arrives does not overwrite unsent elements. Then the library needs
 * memory of the size of the message that arrives. The messages are matched as those of dist_send and dist_recv. With a
 * work, dist_work_source, dist_work_tag and dist_work_received_count are those of the receive. Host memory only.
 *
 * @param group in: the group.
 * @param send in, optional: `send_count` elements; borrowed until the work completes; NULL only if `send_count` is 0.
 * @param send_count in: the number of elements to send.
 * @param dest in: the receiver, a rank of the group; this rank itself is possible.
 * @param send_tag in: 0 or more.
 * @param recv out, optional: room for `recv_count` elements; borrowed until the work completes; NULL only if `recv_count`
 *   is 0.
 * @param recv_count in: the number of elements that there is room for.
 * @param source in: the sender, a rank of the group, or DIST_ANY_SOURCE.
 * @param recv_tag in: 0 or more, or DIST_ANY_TAG.
 * @param dtype in: the type of the elements of both messages.
 * @param status out, optional: as in dist_recv, of the message that arrives.
 * @param options in, optional: as in dist_send; DIST_CALL_SYNCHRONOUS is about the send.
 * @param work out, optional: the work of both messages, owned by the caller, released with dist_work_release; NULL to block.
 * @agree as dist_send and dist_recv.
 * @blocks with `work` NULL outside a batch, until both messages are done, until the deadline at the latest.
 * @return as dist_send and dist_recv; the error of the receive, else that of the send, once both have ended.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_sendrecv(dist_group_t *group,
                            const void *send,
                            size_t send_count,
                            int32_t dest,
                            int32_t send_tag,
                            void *recv,
                            size_t recv_count,
                            int32_t source,
                            int32_t recv_tag,
                            dist_dtype_t dtype,
                            struct dist_recv_status_t *status,
                            const dist_call_options_t *options,
                            dist_work_t **work);

/* All defaults; assign the fields that differ. */
#define DIST_RECV_STATUS_INIT { sizeof(dist_recv_status_t), 0, 0, 0, 0, 0 }

/*
 * Works
 *
 * Operations that were issued and may still be under way.
 */

/**
 * Told the outcome of a work: DIST_OK or the error, its message ("" for DIST_OK; valid during the call), and the
 * pointer given with the function. Called on a thread of the library, one such function at a time; must not throw,
 * and must not make calls that block (see dist_work_on_complete).
 */
typedef void (*dist_work_fn)(dist_status_t status, const char *message, void *user);

/**
 * Waits until a work is done.
 *
 * `work`: required. `timeout_ms`: how long to wait; the default is until the operation's own deadline.
 * The thread may run operations of the work's group meanwhile. Blocks until the work is
 * done or the time is over. Any thread, any number of times, several threads at once. Once it has returned
 * something else than DIST_IN_PROGRESS, the library does not touch the operation's buffers any more; a GPU may, until
 * dist_work_synchronize.
 *
 * Returns DIST_OK; DIST_IN_PROGRESS if the time was over first: the work goes on, and its buffers stay lent; the
 * operation's error, which stays (DIST_ERR_TIMEOUT is always the operation's own deadline, and final);
 * DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT for a wrong time, a work whose batch has not ended, and a
 * pending one inside a completion callback. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_work_wait(dist_work_t *work,
                             int64_t timeout_ms);

/**
 * Waits until a work is done, and the device with it, where its buffers are in the memory of a GPU.
 *
 * Such a work is done as soon as the operation is in its stream (see `stream` in dist_call_options_t), which is when
 * the caller may put more into that stream; its buffers stay lent until the device is done. For other works, and where the
 * native back end carries the memory of a GPU, this is dist_work_wait. `work`: required; also that of a batch. `timeout_ms`: as in dist_work_wait.
 * Any thread, any number of times.
 *
 * Returns as dist_work_wait; for an operation on a device also the failure of its group, DIST_ERR_TIMEOUT among it, after
 * which what it has written is undefined. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_work_synchronize(dist_work_t *work,
                                    int64_t timeout_ms);

/**
 * Copies the message of a work's error; "" while it is pending and where it has succeeded.
 *
 * `work`: required. `buf`, `cap`: as in dist_last_error_copy. Returns the bytes that the whole message needs, its
 * terminator included; 0 for an invalid handle. Does not block. Any thread. Since 0.1.
 */
size_t dist_work_error(const dist_work_t *work,
                       char *buf,
                       size_t cap);

/**
 * The number of a work's operation: of a collective in its group, from 1, the same on all ranks; messages are
 * counted by themselves.
 *
 * `work`: required. Returns 0 for an invalid handle and before its batch has ended. Does not block. Any thread.
 * Since 0.1.
 */
uint64_t dist_work_sequence(const dist_work_t *work);

/**
 * Returns when a work was issued, in nanoseconds since 1970, as the flight recorder's entries have it.
 *
 * It is the time of CLOCK_REALTIME when the recorder began, advanced by the monotonic clock: later changes of the
 * wall clock do not show in it.
 *
 * @param work in: the work.
 * @agree nothing.
 * @blocks no.
 * @return the time; 0 for an invalid handle and before its batch has ended.
 * @threads any.
 * @since 0.1
 */
uint64_t dist_work_start_ns(const dist_work_t *work);

/**
 * The time from the issue of a work until it was done, or until now, in nanoseconds.
 *
 * `work`: required. Returns 0 for an invalid handle and before its batch has ended. Does not block. Any thread.
 * Since 0.1.
 */
uint64_t dist_work_elapsed_ns(const dist_work_t *work);

/**
 * The rank that sent the message which a work received; of a send, the rank that got it.
 *
 * `work`: required. Returns -1 for an invalid handle, while it is pending, after an error, and for anything but
 * a message. Does not block. Any thread. Since 0.1.
 */
int32_t dist_work_source(const dist_work_t *work);

/**
 * How many elements a work has received: those of the message, which may be fewer than there was room for.
 *
 * `work`: required. Returns 0 for an invalid handle, while it is pending, after an error, and for anything but a
 * receive. Does not block. Any thread. Since 0.1.
 */
size_t dist_work_received_count(const dist_work_t *work);

/**
 * Releases a work. A pending one goes on: its buffers stay lent until it is done, and its functions are called.
 *
 * `work`: NULL does nothing. Does not block. Any thread.
 *
 * Returns DIST_OK or DIST_ERR_INVALID_HANDLE. Since 0.1.
 */
dist_status_t dist_work_release(dist_work_t *work);

/**
 * Waits until all works of a list are done.
 *
 * The thread may run operations of the works' groups until then. All that dist_work_wait says of buffers and of
 * repeated waits holds for each of them.
 *
 * @param works in: `n` works of any groups, NULL among them is skipped; borrowed for the call; NULL only if `n` is 0.
 * @param n in: the length of the list.
 * @param timeout_ms in: for all of them together; 0 until the operations' own deadlines, DIST_NO_WAIT,
 *   DIST_WAIT_FOREVER.
 * @agree nothing.
 * @blocks until all are done, until the time-out at the latest.
 * @return DIST_OK; DIST_IN_PROGRESS if the time was over first; once all are done, the first error in the order of
 *   the list, whose message begins with its place; DIST_ERR_INVALID_HANDLE with the place of a wrong handle;
 *   DIST_ERR_INVALID_ARGUMENT for a wrong time, works whose batch has not ended, and pending ones inside a completion
 *   callback.
 * @threads any; several threads may wait for the same works.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_work_wait_all(dist_work_t *const *works,
                                 size_t n,
                                 int64_t timeout_ms);

/**
 * Waits until a work of a list is done.
 *
 * If several are, it takes the first in the list. To wait for the next one, put NULL in its place.
 *
 * @param works in: as in dist_work_wait_all.
 * @param n in: the length of the list.
 * @param timeout_ms in: as in dist_work_wait_all.
 * @param index out: the place of the work that is done; `n` if there is none.
 * @agree nothing.
 * @blocks until one is done, until the time-out at the latest.
 * @return DIST_OK, also if all entries are NULL; the error of the work at `index`; DIST_IN_PROGRESS if the time was
 *   over first; DIST_ERR_INVALID_HANDLE and DIST_ERR_INVALID_ARGUMENT as dist_work_wait_all, with `n` in `index`.
 * @threads any; several threads may wait for the same works.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_work_wait_any(dist_work_t *const *works,
                                 size_t n,
                                 int64_t timeout_ms,
                                 size_t *index);

/**
 * Has a function called when a work is done; soon, if it is done already.
 *
 * Several may be given. The functions run one after the other on a thread of the library, in the order in which
 * their works were done, and never inside this call. Inside one, calls that block are refused with
 * DIST_ERR_INVALID_ARGUMENT (collectives and messages without a work, waits for pending works, dist_init,
 * dist_finalize, dist_callbacks_stop, making groups, calls of stores); asynchronous calls are not. The function must
 * not throw. dist_finalize calls those of the world's works before the world goes.
 *
 * @param work in: may be released before the function is called.
 * @param function in: called once.
 * @param user in, optional: handed to the function; must stay valid until that has been called, withdrawn or dropped
 *   (dist_work_remove_callback, dist_callbacks_stop).
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT; DIST_ERR_OUT_OF_MEMORY if 1048576 functions
 *   wait for their works; DIST_ERR_SYSTEM if the thread cannot be started; DIST_ERR_NOT_INITIALIZED after
 *   dist_callbacks_stop.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_work_on_complete(dist_work_t *work,
                                    dist_work_fn function,
                                    void *user);

/**
 * Withdraws a function given with dist_work_on_complete that has not been called.
 *
 * If the same function was given with the same pointer several times, each call withdraws one of them. After DIST_OK
 * the function is never called for that one, and the library does not use `user` any more.
 *
 * @param work in: the work that it was given for.
 * @param function in: the function.
 * @param user in, optional: the pointer that was given with it.
 * @agree nothing.
 * @blocks no; it does not wait for a function that is being called.
 * @return DIST_OK; DIST_ERR_NOT_FOUND if it was not given, was called or is being called; DIST_ERR_INVALID_HANDLE;
 *   DIST_ERR_INVALID_ARGUMENT if `function` is NULL.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_work_remove_callback(dist_work_t *work,
                                        dist_work_fn function,
                                        void *user);

/**
 * Stops completion callbacks, for an interpreter that is about to end: none is called any more when it has returned
 * DIST_OK.
 *
 * Callbacks of works that are done are called first. Callbacks of pending works are dropped, as are all callbacks
 * that have not begun at the time-out. Until dist_callbacks_start, dist_work_on_complete returns
 * DIST_ERR_NOT_INITIALIZED. Works themselves go on, and other functions of the caller (those of a store, of a back
 * end, of the log) are called as before.
 *
 * @param timeout_ms in: how long to wait; 0 for 5 seconds, DIST_NO_WAIT, DIST_WAIT_FOREVER.
 * @agree nothing.
 * @blocks until the callbacks have returned and their thread has ended, until the time-out at the latest.
 * @return DIST_OK; DIST_IN_PROGRESS if a callback or their thread still runs at the time-out: call it again;
 *   DIST_ERR_INVALID_ARGUMENT for a wrong time, and inside a callback.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_callbacks_stop(int64_t timeout_ms);

/**
 * Allows completion callbacks again after dist_callbacks_stop.
 *
 * Dropped callbacks are not called.
 *
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK, also where they were not stopped.
 * @threads any.
 * @since 0.1
 */
dist_status_t dist_callbacks_start(void);

/**
 * Returns a descriptor that is readable while works of a group are done that dist_group_take_done has not returned.
 *
 * For poll, epoll, asyncio and tokio: wait for readability, then call dist_group_take_done until it returns less than
 * there was room for. The library makes progress without further calls. A work counts if it has a handle: those of
 * collectives, of messages, and of a batch whose calls are all of this group. A batch over several groups counts in
 * none of them, its calls with works of their own do. A work that was waited for counts until it is released. A work
 * is reported shortly after dist_work_wait can return for it.
 *
 * @param group in: the group.
 * @agree nothing.
 * @blocks no.
 * @return the descriptor, above 2, the same for each call; static: the caller does not read, write or close it; it is
 *   closed by dist_group_release, for the world by dist_finalize, so take it out of the event loop before. -1 on
 *   failure.
 * @threads any.
 * @since 0.1
 */
int32_t dist_group_fd(dist_group_t *group);

/**
 * Takes the works of a group that are done and that it has not returned before, in the order of their completion.
 *
 * It counts works from the first call of dist_group_fd on, and works done before that are not released.
 * The descriptor is not readable any more once none is left.
 *
 * @param group in: the group.
 * @param out out: the handles that the caller has of these works; they are released once, as ever; NULL only if `cap`
 *   is 0.
 * @param cap in: how many there is room for.
 * @agree nothing.
 * @blocks no.
 * @return how many were written; 0 if none is done, without dist_group_fd, and on failure.
 * @threads any; each work is returned once.
 * @since 0.1
 */
size_t dist_group_take_done(dist_group_t *group,
                            dist_work_t **out,
                            size_t cap);

/**
 * Gives the rank that a work's error names, with its fault and its process.
 *
 * @param work in: the work.
 * @param out out: DIST_CULPRIT_NONE and rank -1 while the work is pending, if it has succeeded, and if its error
 *   names no rank. Set struct_size before the call (DIST_CULPRIT_INIT).
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `out` is NULL or its struct_size is wrong.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_work_culprit(const dist_work_t *work,
                                dist_culprit_t *out);

/*
 * Stores
 *
 * Key-value stores, in which ranks meet and that programs may use.
 */

/**
 * Options of dist_store_file_create.
 */
typedef struct dist_store_file_options_t {
    /**
     * sizeof(dist_store_file_options_t).
     */
    size_t struct_size;
    /**
     * The name of the job, the same for all processes of it: a file of another job is refused. NULL for none.
     */
    const char *job_id;
    /**
     * Time-out of creating the store, and of calls through its handle; the default is 5 minutes. Not DIST_NO_WAIT.
     */
    int64_t timeout_ms;
} dist_store_file_options_t;

/**
 * Takes bytes that a caller's own store hands over, valid during the call; `sink_arg` is the pointer that was
 * given with the function.
 */
typedef void (*dist_store_sink_fn)(void *sink_arg, const void *bytes, size_t len_bytes);

/**
 * The functions of a caller's own store (dist_store_custom_create): etcd, Redis, a torch store. Each gets
 * the `user` pointer, may be called from any thread, must return within `timeout_ms` (1 or more, or DIST_WAIT_FOREVER),
 * and returns a status. Keys are terminated strings; values are bytes.
 */
typedef struct dist_store_vtable_t {
    /**
     * sizeof(dist_store_vtable_t).
     */
    size_t struct_size;
    /**
     * Stores a value; required.
     */
    dist_status_t (*set)(void *user,
                         const char *key,
                         const void *value,
                         size_t len_bytes,
                         int64_t timeout_ms);
    /**
     * Waits until the key exists, then hands its value to `sink(sink_arg, ...)`, once, before
     * it returns; required.
     */
    dist_status_t (*get)(void *user,
                         const char *key,
                         dist_store_sink_fn sink,
                         void *sink_arg,
                         int64_t timeout_ms);
    /**
     * Adds to a counter (a missing one is 0) kept as decimal text, and writes the sum; required.
     */
    dist_status_t (*add)(void *user,
                         const char *key,
                         int64_t amount,
                         int64_t *result,
                         int64_t timeout_ms);
    /**
     * Waits until all keys exist, or returns DIST_ERR_TIMEOUT; required.
     */
    dist_status_t (*wait)(void *user, const char *const *keys, size_t n, int64_t timeout_ms);
    /**
     * Writes 1 if all keys exist, else 0, without waiting; required.
     */
    dist_status_t (*check)(void *user,
                           const char *const *keys,
                           size_t n,
                           int32_t *all_present,
                           int64_t timeout_ms);
    /**
     * Removes a key, and writes whether it was there; required.
     */
    dist_status_t (*delete_key)(void *user, const char *key, int32_t *deleted, int64_t timeout_ms);
    /**
     * Called once when the last user of the store has gone; optional.
     */
    void (*destroy)(void *user);
    /**
     * Stores `desired` if the value is `expected`, or if there is none and `expected` is empty, and hands the
     * value after that (for a missing key and an `expected` that is not empty: `expected`) to the sink, once;
     * optional.
     */
    dist_status_t (*compare_set)(void *user,
                                 const char *key,
                                 const void *expected,
                                 size_t expected_len_bytes,
                                 const void *desired,
                                 size_t desired_len_bytes,
                                 dist_store_sink_fn sink,
                                 void *sink_arg,
                                 int64_t timeout_ms);
    /**
     * Adds bytes to the end of a value, which is made if it is missing; optional.
     */
    dist_status_t (*append)(void *user,
                            const char *key,
                            const void *value,
                            size_t len_bytes,
                            int64_t timeout_ms);
    /**
     * Writes the number of keys; optional.
     */
    dist_status_t (*num_keys)(void *user, int64_t *result, int64_t timeout_ms);
    /**
     * Hands each key to the sink, before it returns; optional.
     */
    dist_status_t (*list_keys)(void *user,
                               dist_store_sink_fn sink,
                               void *sink_arg,
                               int64_t timeout_ms);
    /**
     * Adds an item to the end of a queue; optional. Without all three queue functions, queues are composed of
     * keys.
     */
    dist_status_t (*queue_push)(void *user,
                                const char *queue,
                                const void *item,
                                size_t len_bytes,
                                int64_t timeout_ms);
    /**
     * Takes the first item of a queue and hands it to the sink, once. Where there is none, waits for one if
     * `block` is not 0, else returns DIST_ERR_QUEUE_EMPTY; optional.
     */
    dist_status_t (*queue_pop)(void *user,
                               const char *queue,
                               int32_t block,
                               dist_store_sink_fn sink,
                               void *sink_arg,
                               int64_t timeout_ms);
    /**
     * Writes the number of items in a queue; optional.
     */
    dist_status_t (*queue_len)(void *user, const char *queue, int64_t *result, int64_t timeout_ms);
} dist_store_vtable_t;

/**
 * Opens a store in a file, and makes the file where there is none: for processes that share a file system, with
 * file locks that work across it. The file belongs to this user alone (mode 0600).
 *
 * All processes give the same `world_size` (the number of times that the file will be opened; 0 where that is not
 * known) and the same job. Releasing the last handle leaves the file; the last user removes it, once
 * `world_size` have come. Whatever an earlier run has left behind is an error at once: a file of another job
 * or size, one that as many have opened already, one whose users on this host have ended without leaving it.
 *
 * `path`: required. `options`: optional. Both borrowed for the call. `out`: out, required; owned by the caller,
 * released with dist_store_release; NULL on failure. Blocks while others lock the file, until
 * timeout_ms at the latest. Any thread.
 *
 * From then on the library refuses calls in a process forked from this one without exec, which would share the
 * locks, and dist_spawn refuses this process.
 *
 * Returns DIST_OK; DIST_ERR_INVALID_ARGUMENT; DIST_ERR_MISMATCH saying what the file is instead, since when and
 * by whom; DIST_ERR_TIMEOUT; DIST_ERR_SYSTEM. A full disk is DIST_ERR_SYSTEM of the call that would have
 * stored something: nothing is then stored, and the store goes on. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_store_file_create(const char *path,
                                     int32_t world_size,
                                     const struct dist_store_file_options_t *options,
                                     dist_store_t **out);

/**
 * Makes a store in the memory of this process, for ranks that are threads.
 *
 * `out`: out, required; owned by the caller, released with dist_store_release. Does not block. Any thread.
 *
 * Returns DIST_OK or DIST_ERR_INVALID_ARGUMENT. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_store_hash_create(dist_store_t **out);

/**
 * Makes a store that puts a prefix and "/" before every key of another store.
 *
 * The new handle begins with the time-out of `inner`.
 *
 * @param prefix in: the prefix; borrowed for the call; NULL only if `prefix_len_bytes` is 0.
 * @param prefix_len_bytes in: its length; DIST_TERMINATED for a C string.
 * @param inner in: the other store, which the new store keeps alive.
 * @param out out: the new store; owned by the caller, released with dist_store_release; NULL on failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT; DIST_ERR_INVALID_HANDLE.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_store_prefix_create(const char *prefix,
                                       size_t prefix_len_bytes,
                                       const dist_store_t *inner,
                                       dist_store_t **out);

/**
 * Makes a second handle on a store, with a time-out of its own.
 *
 * `store`: required. `out`: out, required; owned by the caller, released with dist_store_release. Does not
 * block. Any thread.
 *
 * Returns DIST_OK, DIST_ERR_INVALID_ARGUMENT, DIST_ERR_INVALID_HANDLE. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_store_clone(const dist_store_t *store,
                               dist_store_t **out);

/**
 * Stores a value under a key, whatever was there before.
 *
 * The call waits for no answer. The whole value is replaced at once; of several at the same time the last to
 * arrive stays. Every later call of this process on this store, through any handle and thread, finds it done.
 * Others see it at the latest when the next call of this process that has an answer returns
 * (dist_store_check of no keys is the cheapest). If the connection breaks before that, that next call
 * returns DIST_ERR_CONNECTION and says how many such calls may be lost. The same holds for
 * dist_store_append, dist_store_multi_set and dist_store_queue_push. On hash and file stores the value is
 * visible to all on return.
 *
 * A key may have any bytes, zero bytes too. Only a caller's own store gets keys as C strings, and refuses
 * those with a zero byte.
 *
 * @param store in: the store.
 * @param key in: the key; borrowed for the call; NULL only if `key_len_bytes` is 0.
 * @param key_len_bytes in: its length; DIST_TERMINATED for a C string.
 * @param value in: `len_bytes` bytes; borrowed for the call; NULL only if `len_bytes` is 0.
 * @param len_bytes in: the length of the value.
 * @agree nothing.
 * @blocks only while the way to the store is congested, until the store's time-out at the latest.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT; DIST_ERR_INVALID_HANDLE; DIST_ERR_TIMEOUT; DIST_ERR_CONNECTION if
 *   the store cannot be reached.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_store_set(dist_store_t *store,
                             const char *key,
                             size_t key_len_bytes,
                             const void *value,
                             size_t len_bytes);

/**
 * Gives the value of a key, and waits until there is one.
 *
 * The value is one whole value, which the key had at some time during the call. With a time-out of DIST_NO_WAIT
 * (dist_store_set_timeout) the call looks once.
 *
 * @param store in: the store.
 * @param key in: the key; borrowed for the call; NULL only if `key_len_bytes` is 0.
 * @param key_len_bytes in: its length; DIST_TERMINATED for a C string.
 * @param out out: a blob of one byte string; owned by the caller, released with dist_blob_release; NULL on failure.
 * @agree nothing.
 * @blocks until the key exists, until the store's time-out at the latest; others may use the store then.
 * @return as dist_store_set; DIST_ERR_TIMEOUT names the key.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_store_get(dist_store_t *store,
                             const char *key,
                             size_t key_len_bytes,
                             dist_blob_t **out);

/**
 * Adds to a counter and gives the sum.
 *
 * A missing counter is 0; counters are kept as decimal text and wrap around. The call is atomic: each caller
 * gets a sum of its own, and no addition is lost. After DIST_ERR_CONNECTION or DIST_ERR_TIMEOUT it may or may
 * not have taken place.
 *
 * @param store in: the store.
 * @param key in: the key; borrowed for the call; NULL only if `key_len_bytes` is 0.
 * @param key_len_bytes in: its length; DIST_TERMINATED for a C string.
 * @param amount in: the number to add.
 * @param out out: the sum.
 * @agree nothing.
 * @blocks for a round trip, until the store's time-out at the latest.
 * @return as dist_store_set; DIST_ERR_NOT_A_NUMBER if the value is none, which stays.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_store_add(dist_store_t *store,
                             const char *key,
                             size_t key_len_bytes,
                             int64_t amount,
                             int64_t *out);

/**
 * Stores `desired` if the value is `expected`, or if there is none and `expected` is empty.
 *
 * The call is atomic: of several that expect the same value, one stores its own. After DIST_ERR_CONNECTION or
 * DIST_ERR_TIMEOUT it may or may not have taken place.
 *
 * @param store in: the store.
 * @param key in: the key; borrowed for the call; NULL only if `key_len_bytes` is 0.
 * @param key_len_bytes in: its length; DIST_TERMINATED for a C string.
 * @param expected in: `expected_len_bytes` bytes; borrowed for the call; NULL only if the length is 0.
 * @param expected_len_bytes in: the length of `expected`.
 * @param desired in: `desired_len_bytes` bytes; borrowed for the call; NULL only if the length is 0.
 * @param desired_len_bytes in: the length of `desired`.
 * @param out out: a blob with the value after the call (if the key is missing and `expected` is not empty:
 *   `expected`, as in c10d); owned by the caller, released with dist_blob_release; NULL on failure.
 * @agree nothing.
 * @blocks for a round trip, until the store's time-out at the latest.
 * @return as dist_store_set.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_store_compare_set(dist_store_t *store,
                                     const char *key,
                                     size_t key_len_bytes,
                                     const void *expected,
                                     size_t expected_len_bytes,
                                     const void *desired,
                                     size_t desired_len_bytes,
                                     dist_blob_t **out);

/**
 * Waits until all keys exist.
 *
 * Each key has existed at some time since the call began, not necessarily all at once. On a store with queues of
 * its own, a queue that is not empty counts as a key. DIST_NO_WAIT looks once.
 *
 * @param store in: the store.
 * @param keys in: `n` keys; borrowed for the call; NULL only if `n` is 0.
 * @param key_lens_bytes in, optional: their lengths, each as in dist_store_set; NULL for C strings.
 * @param n in: the number of keys.
 * @param timeout_ms in: the default is the store's time-out.
 * @agree nothing.
 * @blocks until all keys exist, until `timeout_ms` at the latest; others may use the store then.
 * @return as dist_store_set; DIST_ERR_TIMEOUT names the missing keys.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_store_wait(dist_store_t *store,
                              const char *const *keys,
                              const size_t *key_lens_bytes,
                              size_t n,
                              int64_t timeout_ms);

/**
 * Tells whether all keys exist now.
 *
 * The call looks at all keys at one time (a custom store: as its function does).
 *
 * @param store in: the store.
 * @param keys in: `n` keys; borrowed for the call; NULL only if `n` is 0.
 * @param key_lens_bytes in, optional: their lengths, each as in dist_store_set; NULL for C strings.
 * @param n in: the number of keys.
 * @param all_present out: 1 if all exist, else 0.
 * @agree nothing.
 * @blocks for a round trip, until the store's time-out at the latest.
 * @return as dist_store_set.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_store_check(dist_store_t *store,
                               const char *const *keys,
                               const size_t *key_lens_bytes,
                               size_t n,
                               int32_t *all_present);

/**
 * The number of keys of the whole store, whoever set them and under whatever prefix.
 *
 * `store`: required. `out`: out, required. Blocks for a round trip. Any thread.
 *
 * Concurrency: the number at some time during the call.
 *
 * Returns as dist_store_set. Since 0.1.
 */
DIST_NODISCARD dist_status_t dist_store_num_keys(dist_store_t *store, int64_t *out);

/**
 * All keys of a store, in no order; of a prefix store, those under its prefix, without it.
 *
 * `store`: required. `out`: out, required; a blob of as many byte strings, owned by the caller. Blocks for a
 * round trip. Any thread.
 *
 * Concurrency: all keys of one time during the call (a custom store: as its function does).
 *
 * Returns as dist_store_set; DIST_ERR_UNSUPPORTED for a store that cannot tell, such as a server of an
 * older torch. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_store_list_keys(dist_store_t *store,
                                   dist_blob_t **out);

/**
 * Removes a key.
 *
 * The call is atomic: of several that delete a key, one finds it there. Calls that wait for the key go on waiting.
 *
 * @param store in: the store.
 * @param key in: the key; borrowed for the call; NULL only if `key_len_bytes` is 0.
 * @param key_len_bytes in: its length; DIST_TERMINATED for a C string.
 * @param deleted out: 1 if the key was there, else 0.
 * @agree nothing.
 * @blocks for a round trip, until the store's time-out at the latest.
 * @return as dist_store_set.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_store_delete_key(dist_store_t *store,
                                    const char *key,
                                    size_t key_len_bytes,
                                    int32_t *deleted);

/**
 * Adds bytes to the end of a value, which is made if it is missing.
 *
 * The call is atomic: the bytes of one call stay together, in the order of arrival. They become visible as in
 * dist_store_set.
 *
 * @param store in: the store.
 * @param key in: the key; borrowed for the call; NULL only if `key_len_bytes` is 0.
 * @param key_len_bytes in: its length; DIST_TERMINATED for a C string.
 * @param value in: `len_bytes` bytes; borrowed for the call; NULL only if `len_bytes` is 0.
 * @param len_bytes in: the number of bytes.
 * @agree nothing.
 * @blocks as dist_store_set.
 * @return as dist_store_set.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_store_append(dist_store_t *store,
                                const char *key,
                                size_t key_len_bytes,
                                const void *value,
                                size_t len_bytes);

/**
 * Gives the values of several keys, and waits until all exist.
 *
 * All values are of one time (a custom store: each of its own time).
 *
 * @param store in: the store.
 * @param keys in: `n` keys; borrowed for the call; NULL only if `n` is 0.
 * @param key_lens_bytes in, optional: their lengths, each as in dist_store_set; NULL for C strings.
 * @param n in: the number of keys.
 * @param out out: a blob of `n` byte strings in the order of the keys; owned by the caller, released with
 *   dist_blob_release; NULL on failure.
 * @agree nothing.
 * @blocks until all keys exist, until the store's time-out at the latest; others may use the store then.
 * @return as dist_store_set; DIST_ERR_TIMEOUT names the missing keys.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_store_multi_get(dist_store_t *store,
                                   const char *const *keys,
                                   const size_t *key_lens_bytes,
                                   size_t n,
                                   dist_blob_t **out);

/**
 * Stores several values at once.
 *
 * Others see all of the values or none (a custom store: one after the other), at the time that dist_store_set says.
 *
 * @param store in: the store.
 * @param keys in: `n` keys; borrowed for the call; NULL only if `n` is 0.
 * @param key_lens_bytes in, optional: their lengths, each as in dist_store_set; NULL for C strings.
 * @param values in: `n` values; borrowed for the call; one is NULL only if its length is 0.
 * @param lens_bytes in: the `n` lengths of the values.
 * @param n in: the number of keys, and of values; if it is 0, each array may be NULL.
 * @agree nothing.
 * @blocks as dist_store_set.
 * @return as dist_store_set.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_store_multi_set(dist_store_t *store,
                                   const char *const *keys,
                                   const size_t *key_lens_bytes,
                                   const void *const *values,
                                   const size_t *lens_bytes,
                                   size_t n);

/**
 * Sets the time-out of calls through this handle.
 *
 * With DIST_NO_WAIT, calls that wait for others (dist_store_get, dist_store_wait, dist_store_multi_get,
 * dist_store_queue_pop) look once, and return DIST_ERR_TIMEOUT if that is too early; the others have 5 minutes.
 *
 * @param store in: the store.
 * @param timeout_ms in: the default is 5 minutes.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_store_set_timeout(dist_store_t *store,
                                     int64_t timeout_ms);

/**
 * Gives the time-out of calls through this handle in milliseconds.
 *
 * @param store in: the store.
 * @agree nothing.
 * @blocks no.
 * @return the time-out; DIST_WAIT_FOREVER; DIST_NO_WAIT; 0 for an invalid handle.
 * @threads any.
 * @since 0.1
 */
int64_t dist_store_get_timeout(const dist_store_t *store);

/**
 * The port of a TCP store; -1 for a store that has none, or an invalid handle. Any thread. Since 0.1.
 */
int32_t dist_store_port(const dist_store_t *store);

/**
 * Copies the host of a TCP store.
 *
 * `store`: required. `buf`, `cap`: as in dist_last_error_copy. Returns the bytes that the whole name needs,
 * its terminator included; 0 for a store that has none, or an invalid handle. Any thread. Since 0.1.
 */
size_t dist_store_host(const dist_store_t *store,
                       char *buf,
                       size_t cap);

/**
 * Releases a store handle. The store itself lives on while groups, prefix stores or other handles use
 * it; with the last of them, the process that hosts it stops serving.
 *
 * `store`: NULL does nothing. Any thread.
 *
 * Returns DIST_OK or DIST_ERR_INVALID_HANDLE. Since 0.1.
 */
dist_status_t dist_store_release(dist_store_t *store);

/**
 * Adds an item to the end of a queue.
 *
 * Queues are apart from the keys: one name may be both, and only dist_store_wait and the queue functions see
 * queues. Any number of processes may push and pop at once; items keep the order in which they arrive. They
 * become visible as in dist_store_set.
 *
 * @param store in: the store.
 * @param key in: the queue's name; borrowed for the call; NULL only if `key_len_bytes` is 0.
 * @param key_len_bytes in: its length; DIST_TERMINATED for a C string.
 * @param value in: `len_bytes` bytes; borrowed for the call; NULL only if `len_bytes` is 0.
 * @param len_bytes in: the length of the item.
 * @agree nothing.
 * @blocks as dist_store_set.
 * @return as dist_store_set.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_store_queue_push(dist_store_t *store,
                                    const char *key,
                                    size_t key_len_bytes,
                                    const void *value,
                                    size_t len_bytes);

/**
 * Takes the first item of a queue.
 *
 * Each item is given to one caller; a TCP store serves waiting callers in the order in which they came. A caller
 * that dies before it has the item leaves it to the next; after DIST_ERR_CONNECTION it may be lost.
 *
 * @param store in: the store.
 * @param key in: the queue's name; borrowed for the call; NULL only if `key_len_bytes` is 0.
 * @param key_len_bytes in: its length; DIST_TERMINATED for a C string.
 * @param block in: 1 to wait until there is an item, 0 not to wait.
 * @param out out: a blob of one byte string; owned by the caller, released with dist_blob_release; NULL on failure.
 * @agree nothing.
 * @blocks if `block` is not 0: until there is an item, until the store's time-out at the latest.
 * @return as dist_store_set; DIST_ERR_QUEUE_EMPTY if `block` is 0 and there is no item; DIST_ERR_TIMEOUT names the
 *   queue.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_store_queue_pop(dist_store_t *store,
                                   const char *key,
                                   size_t key_len_bytes,
                                   int32_t block,
                                   dist_blob_t **out);

/**
 * Gives the number of items in a queue; 0 for one that was never used.
 *
 * It is the number at some time during the call.
 *
 * @param store in: the store.
 * @param key in: the queue's name; borrowed for the call; NULL only if `key_len_bytes` is 0.
 * @param key_len_bytes in: its length; DIST_TERMINATED for a C string.
 * @param out out: the number of items.
 * @agree nothing.
 * @blocks for a round trip, until the store's time-out at the latest.
 * @return as dist_store_set.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_store_queue_len(dist_store_t *store,
                                   const char *key,
                                   size_t key_len_bytes,
                                   int64_t *out);

/**
 * Waits until `world_size` callers have come to a barrier.
 *
 * No caller passes before `world_size` calls have been made. A key serves one barrier: later callers pass at once.
 * A caller that timed out has been counted all the same. All callers use the same kind of store: a prefix store
 * has its barrier elsewhere than the store under it.
 *
 * @param store in: the store.
 * @param key in: the barrier's key; borrowed for the call; NULL only if `key_len_bytes` is 0.
 * @param key_len_bytes in: its length; DIST_TERMINATED for a C string.
 * @param world_size in: the number of callers; 0 returns at once.
 * @param timeout_ms in: the default is the store's time-out; DIST_NO_WAIT is refused.
 * @agree key and world_size.
 * @blocks until all have come, until `timeout_ms` at the latest; others may use the store then.
 * @return as dist_store_set; DIST_ERR_TIMEOUT says how many have come.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_store_barrier(dist_store_t *store,
                                 const char *key,
                                 size_t key_len_bytes,
                                 int32_t world_size,
                                 int64_t timeout_ms);

/**
 * Makes a store from the caller's own functions.
 *
 * `functions`: required, copied; those that are not optional must be set. `user`: handed to each; must stay
 * valid until destroy has been called. `out`: out, required; owned by the caller, released with
 * dist_store_release. Barriers, and queues unless the caller has functions for them, are composed of
 * keys; compare_set, append, num_keys and list_keys cannot be, and are DIST_ERR_UNSUPPORTED without a
 * function. Does not block. Any thread.
 *
 * Returns DIST_OK or DIST_ERR_INVALID_ARGUMENT, naming the function that is missing. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_store_custom_create(const struct dist_store_vtable_t *functions,
                                       void *user,
                                       dist_store_t **out);

/* All defaults; assign the fields that differ. */
#define DIST_STORE_FILE_OPTIONS_INIT { sizeof(dist_store_file_options_t), DIST_NULL, 0 }
#define DIST_STORE_VTABLE_INIT { sizeof(dist_store_vtable_t), DIST_NULL, DIST_NULL, DIST_NULL, \
    DIST_NULL, DIST_NULL, DIST_NULL, DIST_NULL, DIST_NULL, DIST_NULL, DIST_NULL, DIST_NULL, \
    DIST_NULL, DIST_NULL, DIST_NULL }

/*
 * Memory
 *
 * Memory that operations reach without copies.
 */

/**
 * Allocates memory for buffers: in one shared segment of this process, which other processes of the host can be given.
 *
 * Any call accepts it, in any group and from any thread, as it accepts any other memory; no rank has to agree on it. Where all
 * ranks are on one host, and what all of them give to an all_reduce, all_gather, reduce_scatter or all_to_all lies in such
 * memory (for an all_reduce also the results), it is read (and written) where it lies, without a copy: from 4 KiB a vector
 * or block on, or 64 KiB where the host has fewer cores than ranks. For that the other ranks map the whole segment, if the
 * system lets them look into this process. When an all_reduce has failed, a rank that was stopped in the middle of it may
 * still change up to 16 KiB of the result: free it and allocate another one; where that is so it is not handed out again.
 *
 * It begins at a multiple of 64 bytes, or of 2 MiB if it is that large; what it holds is arbitrary. All of it is there when the call returns, on the caller's node of memory; the process gets memory from the system, and gives it
 * back, in pieces of 2 MiB that small allocations share.
 *
 * `group`: required; its back end says which memory it is. `bytes`: 0 gives NULL. `device`: DIST_DEVICE_HOST; or
 * the group's GPU on this rank, for memory of it that NCCL has allocated and, from 2.19 on, registered with the group,
 * which makes some of its operations faster; without NCCL it is cuMemAlloc's. Freeing that waits for what the device was given.
 * `ptr`: out, required; NULL on failure; freed with dist_mem_free, or by the end of the process: the end of the group does
 * not free it. Does not wait for others, but for a GPU's memory in a group with the back-end option nccl.windows=1, where all
 * ranks call it together, with the same length. Any thread. A child forked by the caller shares the memory, and must leave it
 * alone.
 *
 * Returns DIST_OK; DIST_ERR_OUT_OF_MEMORY with what was asked for and what there is; DIST_ERR_UNSUPPORTED for memory of
 * a device that the back end does not serve; DIST_ERR_INVALID_HANDLE, DIST_ERR_INVALID_ARGUMENT,
 * DIST_ERR_NOT_INITIALIZED, DIST_ERR_SYSTEM. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_mem_alloc(const dist_group_t *group,
                             size_t bytes,
                             int32_t device,
                             void **ptr);

/**
 * Frees memory of dist_mem_alloc.
 *
 * `ptr`: what dist_mem_alloc wrote; NULL does nothing. No operation may be using it any more. Also after the group's
 * release and after dist_finalize. Does not wait for others. Any thread.
 *
 * Returns DIST_OK, or DIST_ERR_INVALID_ARGUMENT for any other pointer, one that was freed before included. Since 0.1.
 */
dist_status_t dist_mem_free(void *ptr);

/**
 * Tells a group of memory that its calls will use again and again.
 *
 * A back end may prepare for that; the native one, of this version, only remembers it. Calls accept all memory, registered
 * or not. No rank has to agree on it.
 *
 * `group`: required. `ptr`: required; borrowed until dist_mem_deregister or the end of the group. `bytes`: its
 * size, more than 0. The same memory may be registered with several groups. Does not wait for others. Any thread.
 *
 * Returns DIST_OK; DIST_ERR_INVALID_ARGUMENT where the bytes overlap with some that are registered with the group already,
 * and for wrong arguments; DIST_ERR_INVALID_HANDLE, DIST_ERR_NOT_INITIALIZED. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_mem_register(dist_group_t *group,
                                void *ptr,
                                size_t bytes);

/**
 * Takes back what dist_mem_register told.
 *
 * `group`: as it was then. `ptr`: required; the pointer of then. No operation may be using the memory any more. Does
 * not wait for others. Any thread.
 *
 * Returns DIST_OK; DIST_ERR_INVALID_ARGUMENT where no memory that begins there is registered with the group;
 * DIST_ERR_INVALID_HANDLE, DIST_ERR_NOT_INITIALIZED. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_mem_deregister(dist_group_t *group,
                                  void *ptr);

/*
 * Back ends
 *
 * Which back ends there are and what they do; dist_backend.h is for those who write one.
 */

/**
 * Which operation, for dist_backend_supports: dist_all_reduce.
 */
#define DIST_KIND_ALL_REDUCE 0

/**
 * dist_reduce.
 */
#define DIST_KIND_REDUCE 1

/**
 * dist_broadcast.
 */
#define DIST_KIND_BROADCAST 2

/**
 * dist_all_gather.
 */
#define DIST_KIND_ALL_GATHER 3

/**
 * dist_reduce_scatter.
 */
#define DIST_KIND_REDUCE_SCATTER 4

/**
 * dist_barrier.
 */
#define DIST_KIND_BARRIER 5

/**
 * dist_gather.
 */
#define DIST_KIND_GATHER 6

/**
 * dist_scatter.
 */
#define DIST_KIND_SCATTER 7

/**
 * dist_all_to_all.
 */
#define DIST_KIND_ALL_TO_ALL 8

/**
 * dist_all_gather_v.
 */
#define DIST_KIND_ALL_GATHER_V 9

/**
 * dist_gather_v.
 */
#define DIST_KIND_GATHER_V 10

/**
 * dist_scatter_v.
 */
#define DIST_KIND_SCATTER_V 11

/**
 * dist_reduce_scatter_v.
 */
#define DIST_KIND_REDUCE_SCATTER_V 12

/**
 * dist_all_to_all_v.
 */
#define DIST_KIND_ALL_TO_ALL_V 13

/**
 * dist_scan.
 */
#define DIST_KIND_SCAN 14

/**
 * dist_exscan.
 */
#define DIST_KIND_EXSCAN 15

/**
 * dist_send.
 */
#define DIST_KIND_SEND 64

/**
 * dist_recv.
 */
#define DIST_KIND_RECV 65

/**
 * 1 if there is a back end of this name, in any case, else 0: the native one, one that was registered or loaded, or
 * one of DIST_BACKEND_PLUGINS, which this loads. For "nccl", and maps with it, whether NCCL can be loaded, which this does.
 *
 * `name`: required, borrowed for the call. Any thread. Since 0.1.
 */
int32_t dist_backend_is_available(const char *name);

/**
 * Whether a group does a kind of call, without making one.
 *
 * `group`: required. `kind`: a DIST_KIND_ constant. `dtype`: the element type; not looked at for
 * DIST_KIND_BARRIER. `op`: the operator; looked at only where the call has one. `device`: DIST_DEVICE_HOST, or the
 * number of the GPU whose memory has the buffers. Ranks need not agree on the call; all get the same answer. Does
 * not block. Any thread.
 *
 * Returns DIST_OK; DIST_ERR_UNSUPPORTED, with type, operator and back end in the message;
 * DIST_ERR_INVALID_ARGUMENT for a number that names nothing; DIST_ERR_INVALID_HANDLE,
 * DIST_ERR_NOT_INITIALIZED. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_backend_supports(const dist_group_t *group,
                                    int32_t kind,
                                    dist_dtype_t dtype,
                                    dist_op_t op,
                                    int32_t device);

/**
 * Loads a back end from a shared object, which exports a dist_backend_plugin_fn as dist_backend_plugin_v2, and makes
 * it known under the name that it gives itself. It is never unloaded.
 *
 * `path`: required, borrowed for the call: the path of the file, or without a "/" a name that the dynamic loader
 * looks for. Paths in DIST_BACKEND_PLUGINS (":" between two) are loaded by themselves, once, when a name of a back
 * end is asked for that is not known. Does not wait for other ranks. Any thread.
 *
 * Returns DIST_OK; DIST_ERR_NOT_FOUND where there is no such file; DIST_ERR_SYSTEM with the loader's reason;
 * DIST_ERR_UNSUPPORTED for a shared object that is no back end, or one of another version of this interface, with
 * both versions; DIST_ERR_INVALID_ARGUMENT as dist_backend_register, so also where it has been loaded before; and
 * whatever the back end returns. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_backend_load(const char *path);

/*
 * Diagnostics
 *
 * Logs, debug levels, the flight recorder and traces.
 */

/**
 * Nothing is added to calls; the default.
 */
#define DIST_DEBUG_OFF 0

/**
 * How groups are made and what they have done is told in the log, and so are long waits.
 */
#define DIST_DEBUG_INFO 1

/**
 * Calls are checked in ways that cost: all ranks come together before each collective, buffers are looked up among
 * those of outstanding works, and errors keep a back-trace.
 */
#define DIST_DEBUG_DETAIL 2

/**
 * Nothing is logged; the default.
 */
#define DIST_LOG_OFF 0

/**
 * Failures that no return value can tell.
 */
#define DIST_LOG_ERROR 1

/**
 * And what is unusual: long waits, dropped peers.
 */
#define DIST_LOG_WARN 2

/**
 * And what was chosen, and why.
 */
#define DIST_LOG_INFO 3

/**
 * And every step.
 */
#define DIST_LOG_DEBUG 4

/**
 * Receives log lines: a level, a terminated line without its end (valid during the call), and the pointer
 * given with the function. Called from any thread; must not call libdist.
 */
typedef void (*dist_log_fn)(int32_t level, const char *line, void *user);

/**
 * What the flight recorder knows: the last 2000 operations of the process, messages included, and the groups that
 * they belong to with their members and failures, as JSON. dist-doctor reads such texts from files.
 *
 * `group`: only the operations of this group; NULL for all. `json`: out, required; a blob of one text,
 * owned by the caller. Does not block. Any thread.
 *
 * Returns DIST_OK, DIST_ERR_INVALID_HANDLE, DIST_ERR_INVALID_ARGUMENT. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_flight_recorder_dump(const dist_group_t *group,
                                        dist_blob_t **json);

/**
 * Sends log lines to a function instead of standard error.
 *
 * `function`: NULL goes back to standard error; it may be called from any thread, must not call libdist,
 * and must not throw. `user`: handed to it; must stay valid until the callback is replaced. Lines
 * come only above the level that dist_set_log_level or DIST_LOG_LEVEL sets. Does not block. Any thread.
 *
 * Returns DIST_OK. Since 0.1.
 */
dist_status_t dist_set_log_callback(dist_log_fn function,
                                    void *user);

/**
 * Sets the log level of the process. It stands, whatever the environment or the debug level says later.
 *
 * `level`: DIST_LOG_OFF (the default) to DIST_LOG_DEBUG. Does not block. Any thread.
 *
 * Returns DIST_OK, or DIST_ERR_INVALID_ARGUMENT for another number. Since 0.1.
 */
dist_status_t dist_set_log_level(int32_t level);

/**
 * Sets the debug level of the process, at any time.
 *
 * `level`: DIST_DEBUG_OFF, DIST_DEBUG_INFO or DIST_DEBUG_DETAIL. Whether all ranks of a group come together before
 * each collective (DETAIL) is decided by rank 0's level when the group is made, so that no rank waits for one that
 * has another level; all else that a level adds is each rank's own and holds for its next calls. Where nobody has
 * set a level of the log, INFO and DETAIL also set that to DIST_LOG_INFO. Does not block. Any thread.
 *
 * Returns DIST_OK, or DIST_ERR_INVALID_ARGUMENT for another number. Since 0.1.
 */
dist_status_t dist_set_debug_level(int32_t level);

/**
 * The debug level of the process: what was set, else what DIST_DEBUG_LEVEL or TORCH_DISTRIBUTED_DEBUG says, else
 * DIST_DEBUG_OFF. Returns -1 where the variable names no level; dist_last_error says so. Does not block. Any
 * thread. Since 0.1.
 */
int32_t dist_get_debug_level(void);

/**
 * Sets the debug level of the process to what DIST_DEBUG_LEVEL says, else TORCH_DISTRIBUTED_DEBUG, else
 * DIST_DEBUG_OFF, whatever was set before. Both have the words OFF, INFO and DETAIL, in any case. Without this
 * call that happens when the first group is made, if nobody has set a level. See dist_set_debug_level. Does not
 * block. Not while another thread changes the environment.
 *
 * Returns DIST_OK, or DIST_ERR_INVALID_ARGUMENT for another word, with the variable's name; then the level is as it
 * was. Since 0.1.
 */
dist_status_t dist_set_debug_level_from_env(void);

/**
 * Begins to write what this process does to a file, in the trace event format of Chrome, which Perfetto and
 * chrome://tracing open.
 *
 * Each rank writes its own file; `dist-doctor trace` makes one of all, on a common clock. Ranks need not agree. The
 * environment variable DIST_TRACE_FILE does the same from the first group to dist_finalize.
 *
 * A process of the trace is a rank of the outermost group, a thread of it a group. In the file are the collectives and
 * messages that begin from now on and end before dist_trace_stop, with type, operator, root, bytes, sequence number,
 * algorithm and outcome; inside of them the wait for their turn and for each rank; and failures. The file grows several
 * times a second, and what there is of it can be read at any time, also after the process was killed. What is recorded
 * faster than it can be written is left out and counted. A file that cannot be written ends the trace and nothing else;
 * dist_group_describe and a line of the log tell of it.
 *
 * `path`: required, borrowed for the call; the file, which is made, or emptied. Give each process its own. Does not block
 * on other ranks. Any thread.
 *
 * Returns DIST_OK; DIST_ERR_INVALID_ARGUMENT for NULL, text that is not UTF-8, and while another trace is being written;
 * DIST_ERR_SYSTEM or DIST_ERR_OUT_OF_MEMORY where the file or the thread that writes it cannot be made. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_trace_start(const char *path);

/**
 * Ends the trace that dist_trace_start or the environment has begun, and its file. Operations under way are not in it.
 *
 * Blocks until the file is written, 10 seconds at most. Any thread. Does nothing where no trace is written.
 *
 * Returns DIST_OK; DIST_ERR_SYSTEM or DIST_ERR_OUT_OF_MEMORY for what ended the trace before (a disk that was full);
 * DIST_ERR_TIMEOUT where the file is not written by then; what there is of it can be read. Since 0.1.
 */
DIST_NODISCARD
dist_status_t dist_trace_stop(void);

#ifdef __cplusplus
}
#endif

#endif /* DIST_H */
