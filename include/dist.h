/*
 * libdist: collective communication between the processes of a training job.
 *
 * Generated from the source of the library; do not edit.
 *
 * Conventions
 *   Comments   @param gives direction, NULL rule and owner; @agree: what ranks must agree on; @blocks: how
 *              long the call blocks; @return: the results; @threads: which threads; @since: the version.
 *   Status     Functions return dist_status_t unless their comment says otherwise. dist_last_error() returns
 *              the message of the calling thread's last failure; the text stays valid until the second
 *              subsequent failing call on this thread.
 *              A defect of the library is DIST_ERR_INTERNAL in every function; @return does not repeat it.
 *   Handles    Pointers to incomplete types. A wrong, released or NULL handle gives
 *              DIST_ERR_INVALID_HANDLE; the _release functions accept NULL and do nothing. A call that makes
 *              a handle returns DIST_ERR_OUT_OF_MEMORY if the process holds too many handles of the type.
 *   Groups     dist_world() is the world. NULL is no group: it gives DIST_ERR_NOT_INITIALIZED before
 *              dist_init, else DIST_ERR_INVALID_HANDLE.
 *   Constants  Element types, operators and statuses have disjoint ranges of numbers. An argument of
 *              another family is DIST_ERR_INVALID_ARGUMENT.
 *   Options    Structs that begin with struct_size; initialise them with the DIST_..._INIT macros. Zero in
 *              a field means its default. NULL in place of a struct means all defaults. A field for which
 *              zero has a meaning counts only if its DIST_FIELD_... bit is set in `fields`.
 *   Counts     Counts are numbers of elements; names of sizes in bytes say so. Ranks are ranks of the group.
 *   Time-outs  All time-outs have one meaning. They are int64_t milliseconds; their names end in _ms. 0 is
 *              the default of the operation or object, which its comment gives. DIST_WAIT_FOREVER is no
 *              limit, and so is a century or more. DIST_NO_WAIT is no time: a call that waits looks once,
 *              and returns DIST_ERR_TIMEOUT if the result is not there (dist_work_wait and dist_probe:
 *              DIST_IN_PROGRESS). A call that needs time refuses DIST_NO_WAIT, and all calls refuse other
 *              negative numbers, with DIST_ERR_INVALID_ARGUMENT. The variables DIST_TIMEOUT_MS and
 *              DIST_CONNECT_TIMEOUT_MS follow the same rule.
 *   Ownership  "borrowed for the call": the library keeps no pointer after the call. "borrowed until the
 *              work completes": the caller neither frees nor changes the memory until then. "owned by the
 *              caller": the caller releases the object with the named function. "static": never released.
 *              (NULL, 0) is a legal empty buffer or list.
 *   Threads    "any": any thread may call the function at any time.
 *   Order      All ranks of a group call its collectives in the same order.
 *   Callbacks  A completion callback makes no call that blocks; such a call is DIST_ERR_INVALID_ARGUMENT.
 *   Fork       In a process forked without exec from one that uses the library, functions with a status
 *              return DIST_ERR_NOT_INITIALIZED.
 */

#ifndef DIST_H
#define DIST_H

#include <stddef.h>
#include <stdint.h>

#define DIST_VERSION_MAJOR 0
#define DIST_VERSION_MINOR 1
#define DIST_VERSION_PATCH 0
/* The result of dist_version() for the library of this header. */
#define DIST_VERSION \
    (DIST_VERSION_MAJOR * 10000 + DIST_VERSION_MINOR * 100 + DIST_VERSION_PATCH)

/*
 * Marks functions whose status must not be ignored. To silence the compiler, define the macro as empty before
 * the header; GCC warns in spite of a cast to void, except in C++17 and C23.
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

/* In place of the length of a key: the key is a C string. */
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
 * As a time-out: no limit. A century or more means the same.
 */
#define DIST_WAIT_FOREVER -1

/**
 * As a time-out: no time. The call checks once; a call that needs time refuses the value.
 */
#define DIST_NO_WAIT -2

/**
 * The outcome of a call: DIST_OK, DIST_IN_PROGRESS or a negative error.
 *
 * Errors from -1 to -99 are mistakes of the caller, and nothing has changed. Errors from -100 to
 * -199 concern peers and time; a collective that returns such an error has failed its group.
 * Errors from -200 to -299 concern the system or a back end. Error -300 is a defect of the
 * library.
 */
typedef int32_t dist_status_t;

/**
 * Success.
 */
#define DIST_OK 0

/**
 * The wait ended before the work did; the work goes on.
 */
#define DIST_IN_PROGRESS 1

/**
 * An argument is out of range, is NULL although it is required, or contradicts another argument.
 */
#define DIST_ERR_INVALID_ARGUMENT -1

/**
 * The handle was never made, was released, or belongs to another type.
 */
#define DIST_ERR_INVALID_HANDLE -2

/**
 * dist_init was not called, dist_finalize was called, or this process is a forked child.
 */
#define DIST_ERR_NOT_INITIALIZED -3

/**
 * dist_init was called twice.
 */
#define DIST_ERR_ALREADY_INITIALIZED -4

/**
 * The requested combination does not exist; the message names it.
 */
#define DIST_ERR_UNSUPPORTED -5

/**
 * The key, name or file does not exist.
 */
#define DIST_ERR_NOT_FOUND -6

/**
 * The queue was empty, and the caller asked not to wait.
 */
#define DIST_ERR_QUEUE_EMPTY -7

/**
 * The value of a counter is not a number; the value is unchanged.
 */
#define DIST_ERR_NOT_A_NUMBER -8

/**
 * The deadline of the operation passed; the message names the ranks or keys that were missing.
 */
#define DIST_ERR_TIMEOUT -100

/**
 * Another rank died, left or stopped answering; the message names the rank.
 */
#define DIST_ERR_PEER_FAILED -101

/**
 * Ranks called different operations or gave different arguments; the message describes both.
 */
#define DIST_ERR_MISMATCH -102

/**
 * A rank aborted the group; the message has the reason.
 */
#define DIST_ERR_ABORTED -103

/**
 * The store or a peer cannot be reached, or the connection broke.
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
 * A back end or a custom store reported an error.
 */
#define DIST_ERR_BACKEND -202

/**
 * The library has a defect.
 */
#define DIST_ERR_INTERNAL -300

/**
 * Returns the version of the loaded library as MAJOR * 10000 + MINOR * 100 + PATCH.
 *
 * Compare it with DIST_VERSION, which is the version of the header.
 *
 * @agree nothing.
 * @blocks no.
 * @return the version.
 * @threads any.
 * @since 0.1
 */
uint32_t dist_version(void);

/**
 * Returns the version of the loaded library as text, such as "0.1.0".
 *
 * @agree nothing.
 * @blocks no.
 * @return the version, static.
 * @threads any.
 * @since 0.1
 */
const char *dist_version_string(void);

/**
 * Describes a status in a few words, such as "timed out".
 *
 * @param status in: the status; any number is allowed.
 * @agree nothing.
 * @blocks no.
 * @return the text, static; "unknown status" for a number that is no status.
 * @threads any.
 * @since 0.1
 */
const char *dist_status_string(dist_status_t status);

/**
 * Returns the message of the calling thread's last failed call.
 *
 * Later calls that succeed do not change the message.
 *
 * @agree nothing.
 * @blocks no.
 * @return the message in UTF-8, or "" if no call of the thread has failed; valid until the
 *   second next failing call of the thread.
 * @threads any; each thread has its own message.
 * @since 0.1
 */
const char *dist_last_error(void);

/**
 * Copies the message of the calling thread's last failed call.
 *
 * @param buf out, optional: receives the message, always with its terminator; NULL only if
 *   `cap` is 0. A longer message is cut between two characters.
 * @param cap in: the size of `buf` in bytes.
 * @agree nothing.
 * @blocks no.
 * @return the bytes that the whole message needs, with its terminator; 0 if `buf` is NULL and
 *   `cap` is not 0.
 * @threads any; each thread has its own message.
 * @since 0.1
 */
size_t dist_last_error_copy(char *buf, size_t cap);

/**
 * Returns the call stack of the calling thread's last failed call.
 *
 * The stack begins at the function of libdist, with one or two lines for each frame. For the
 * error of a work it also has the stack of the call that issued the work. Names appear as far
 * as the program has symbols.
 *
 * Stacks are recorded at the debug level DETAIL and if DIST_SHOW_STACKTRACES is 1. If the
 * latter is unset, TORCH_SHOW_CPP_STACKTRACES is used. Both are read whenever a group is
 * created.
 *
 * @agree nothing.
 * @blocks no; the first call for an error reads symbols, which may take a moment.
 * @return the text; "" if no call of the thread has failed or no stack was recorded; valid
 *   until the second next failing call of the thread.
 * @threads any; each thread has its own text.
 * @since 0.1
 */
const char *dist_last_error_backtrace(void);

/*
 * Byte strings
 *
 * Lists of byte strings that the library makes and the caller releases.
 */

/**
 * A list of byte strings that the library made.
 *
 * Owned by the caller, released with dist_blob_release. Any thread may use it.
 */
typedef struct dist_blob_t dist_blob_t;

/**
 * Returns the number of byte strings in a blob.
 *
 * @param blob in: the blob.
 * @agree nothing.
 * @blocks no.
 * @return the number; 0 for NULL or an invalid handle.
 * @threads any.
 * @since 0.1
 */
size_t dist_blob_count(const struct dist_blob_t *blob);

/**
 * Returns one byte string of a blob.
 *
 * A zero byte, not counted in `len_bytes`, follows the bytes, so that a text can be printed.
 *
 * @param blob in: the blob.
 * @param index in: the position of the byte string, less than dist_blob_count.
 * @param data out: the bytes, owned by the blob, valid until dist_blob_release; NULL on
 *   failure.
 * @param len_bytes out: the number of bytes; not written on failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `data` or `len_bytes`
 *   is NULL or `index` is out of range.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_blob_data(const struct dist_blob_t *blob,
                             size_t index,
                             const void **data,
                             size_t *len_bytes);

/**
 * Releases a blob and its bytes.
 *
 * @param blob in, optional: the blob; NULL does nothing.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE.
 * @threads any, but not while another thread reads the bytes.
 * @since 0.1
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
 * In `fields`: the field `rank` is set.
 */
#define DIST_FIELD_RANK 1

/**
 * In `fields`: the field `listen_fd` is set.
 */
#define DIST_FIELD_LISTEN_FD 2

/**
 * In `fields`: the field `wait_for_workers` is set.
 */
#define DIST_FIELD_WAIT_FOR_WORKERS 4

/**
 * In `fields`: the field `device` is set.
 */
#define DIST_FIELD_DEVICE 8

/**
 * A key-value store.
 *
 * Owned by the caller, released with dist_store_release. Any thread may use it.
 */
typedef struct dist_store_t dist_store_t;

/**
 * Options of dist_init.
 *
 * Zero in a field means the default of the field.
 */
typedef struct dist_init_options_t {
    /**
     * sizeof(dist_init_options_t).
     */
    size_t struct_size;
    /**
     * The set fields with a meaningful zero: DIST_FIELD_RANK, DIST_FIELD_DEVICE.
     */
    uint64_t fields;
    /**
     * The back end; case does not count. "native" (or "gloo"), "mpi" and registered names serve
     * host memory. If `device` is set, they also serve the memory of that GPU. "nccl"
     * serves GPU memory. "cpu:native,cuda:nccl" names one back end for each kind of memory. NULL
     * or "default" selects native, and also nccl if `device` is set and all ranks have
     * NCCL.
     */
    const char *backend;
    /**
     * How the ranks find each other: "env://", "tcp://host:port?rank=R&world_size=N" or
     * "file:///path?rank=R&world_size=N"; NULL for env://. All ranks reach the file, and no other
     * job uses it. In the path of a file, %XX is the byte of this hexadecimal number. A rank or
     * size that is missing in the URL comes from the fields `rank` and `world_size` or from the
     * environment.
     */
    const char *init_method;
    /**
     * The store through which the ranks bootstrap, in place of init_method; borrowed for the call.
     */
    const struct dist_store_t *store;
    /**
     * The rank of this process; needs DIST_FIELD_RANK in `fields`.
     */
    int32_t rank;
    /**
     * The number of ranks; 0 to take the number from init_method or the environment.
     */
    int32_t world_size;
    /**
     * Time-out of the world's operations; the default is DIST_TIMEOUT_MS, or 30 minutes.
     * DIST_NO_WAIT is refused.
     */
    int64_t timeout_ms;
    /**
     * Time-out of dist_init; the default is DIST_CONNECT_TIMEOUT_MS, or 5 minutes. DIST_NO_WAIT is
     * refused.
     */
    int64_t connect_timeout_ms;
    /**
     * The name of the world group; NULL for "world".
     */
    const char *group_name;
    /**
     * Options of the back end, "key=value;key=value"; NULL for none. The native back end takes
     * rank 0's values of transport=auto|shm|inproc|tcp, slot_bytes=N, heartbeat_ms=N (as
     * DIST_HEARTBEAT_LIMIT_MS), algorithm=LIST (as DIST_ALGORITHM) and tuning_file=PATH (as
     * DIST_TUNING_FILE). It also takes cma=0|1 (as DIST_CMA) and, for tests, host_id=LABEL: ranks
     * with the same label count as ranks of one host. NCCL options: nccl.high_priority,
     * nccl.blocking_wait, nccl.windows and nccl.blocking, each 0 or 1. Option of native for GPU
     * memory: staging.chunk_bytes=N, the size of a chunk.
     */
    const char *backend_options;
    /**
     * The index of this rank's GPU; needs DIST_FIELD_DEVICE in `fields`. Without the bit, "nccl"
     * takes the current device of the calling thread. Either all ranks set a device, or none does.
     */
    int32_t device;
    /**
     * Must be 0.
     */
    int32_t reserved;
} dist_init_options_t;

/**
 * The function that each process of dist_spawn runs.
 *
 * `rank` is the rank of the process; `arg` is the pointer that was given with the function. The
 * function returns 0 for success. It must return or end its process, and must not throw.
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
     * Time-out of all processes together; the default is no limit. DIST_NO_WAIT is refused.
     */
    int64_t join_timeout_ms;
    /**
     * Time from SIGTERM to SIGKILL; the default is 2 seconds. DIST_NO_WAIT kills the processes at
     * once.
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
     * The set fields with a meaningful zero: DIST_FIELD_LISTEN_FD, DIST_FIELD_WAIT_FOR_WORKERS.
     */
    uint64_t fields;
    /**
     * The host of the server; required.
     */
    const char *host;
    /**
     * The port of the server, 0 to 65535. For a server, 0 takes a free port (dist_store_port).
     */
    int32_t port;
    /**
     * Not 0: this process runs the server and is its first client.
     */
    int32_t is_server;
    /**
     * The number of clients; 0 if the number is not known.
     */
    int32_t world_size;
    /**
     * Not 0: a server with a world_size waits until all clients have connected. Without
     * DIST_FIELD_WAIT_FOR_WORKERS, the default is 1.
     */
    int32_t wait_for_workers;
    /**
     * A listening TCP socket for the server, with DIST_FIELD_LISTEN_FD; the library takes
     * ownership.
     */
    int32_t listen_fd;
    /**
     * Not 0: stores of this process with the same port share one server.
     */
    int32_t multi_tenant;
    /**
     * Time-out of creating the store and of calls through its handle; the default is 5 minutes.
     * DIST_NO_WAIT is refused.
     */
    int64_t timeout_ms;
    /**
     * The address on which the server listens; NULL for `host`, "" for all interfaces.
     */
    const char *bind_address;
    /**
     * A secret of 1 to 4096 bytes that server and clients share; borrowed for the call. Each side
     * first proves that it knows the secret. NULL for none, as with torch's stores. Only dist_init
     * reads DIST_STORE_SECRET_FILE.
     */
    const void *secret;
    /**
     * The length of `secret`.
     */
    size_t secret_len_bytes;
} dist_store_tcp_options_t;

/**
 * Creates the world group together with all other processes of the job.
 *
 * The default init method is env://, which reads the environment of distrun, torchrun, mpirun
 * and srun. Waits longer than DIST_SLOW_WARNING_MS (30 seconds if unset) appear in the log at
 * level WARN.
 *
 * @param options in, optional: NULL for all defaults; borrowed for the call. The default of
 *   `connect_timeout_ms` is DIST_CONNECT_TIMEOUT_MS, or 5 minutes; DIST_NO_WAIT is refused.
 * @agree the store or init method, the world size, the group name and the back end.
 * @blocks until all ranks have joined, until `connect_timeout_ms` at the latest.
 * @return DIST_OK; DIST_ERR_ALREADY_INITIALIZED if there is a world; DIST_ERR_INVALID_ARGUMENT
 *   if an option or environment variable is wrong (the message names it), if two processes
 *   have one rank, or inside a completion callback; DIST_ERR_INVALID_HANDLE if
 *   `options.store` is no store; DIST_ERR_NOT_FOUND if no back end has this name;
 *   DIST_ERR_UNSUPPORTED if the back end cannot run here or the options set a field that this
 *   version does not know; DIST_ERR_TIMEOUT if ranks did not join (the message names them);
 *   DIST_ERR_CONNECTION if the store cannot be reached; DIST_ERR_AUTH if the store refuses the
 *   secret; DIST_ERR_MISMATCH if ranks run different versions or have different world sizes or
 *   options; DIST_ERR_PEER_FAILED if another rank failed to join; DIST_ERR_OUT_OF_MEMORY;
 *   DIST_ERR_SYSTEM; DIST_ERR_BACKEND if the back end failed.
 * @threads any; calls of dist_init and dist_finalize run one after the other.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_init(const struct dist_init_options_t *options);

/**
 * Leaves the world group and ends its handle; dist_init may be called again afterwards.
 *
 * Each rank calls dist_finalize when it has no more collectives to call. Pending works of the
 * world get 5 seconds to complete; then they end with DIST_ERR_ABORTED. Their handles stay
 * valid until dist_work_release. Their completion callbacks run before the world ends.
 * Blocking calls of other threads continue to their own end.
 *
 * The rank that hosts the store leaves last: it waits until the other ranks have left.
 *
 * @agree nothing; every rank calls it once.
 * @blocks until works and callbacks have ended, on the store's host until the other ranks have
 *   left: at most 6 seconds, about 1 second if the group has failed.
 * @return DIST_OK; DIST_ERR_NOT_INITIALIZED if there is no world; DIST_ERR_INVALID_ARGUMENT
 *   inside a completion callback.
 * @threads any; calls of dist_init and dist_finalize run one after the other.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_finalize(void);

/**
 * Tells whether the world group exists.
 *
 * @agree nothing.
 * @blocks no.
 * @return 1 between dist_init and dist_finalize, else 0.
 * @threads any.
 * @since 0.1
 */
int32_t dist_is_initialized(void);

/**
 * Tells whether torchrun or distrun started this process, from TORCHELASTIC_RUN_ID.
 *
 * @agree nothing.
 * @blocks no.
 * @return 1 if TORCHELASTIC_RUN_ID is set and not empty, else 0.
 * @threads any, but not while another thread changes the environment.
 * @since 0.1
 */
int32_t dist_is_elastic_launched(void);

/**
 * Runs a function in forked processes, one for each rank, and waits for all of them.
 *
 * It serves programs and tests that have no launcher. The environment of each child has RANK,
 * WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and DIST_STORE_SECRET_FD.
 * So dist_init(NULL) in the children makes a world of them. The parent serves their store on a
 * free port of the loopback interface until all children have ended; only the children know
 * its secret.
 *
 * A child ends when its function returns. The library then flushes the child's C streams, but
 * exit handlers do not run. Flushing waits for a stream that another thread of the child
 * holds, for instance a thread that reads standard input. Such threads must have ended before,
 * or the child calls _exit. A child may also call exit or _exit; status 0 means success.
 *
 * A child fails with a result or exit status other than 0, or by a signal. Then the other
 * children get 100 ms to fail on their own, then SIGTERM, and SIGKILL after
 * `options.grace_ms`. If the parent dies, the kernel kills the children. Processes that a
 * child starts are the child's own concern.
 *
 * The parent must have one thread and must not ignore SIGCHLD. It must never have called
 * dist_init, dist_group_create, dist_store_tcp_create or dist_store_file_create. It may call
 * dist_spawn again, and dist_init after it. Each child has its own copy of a hash store. The
 * parent's C streams are flushed before the forks. SIGCHLD is blocked in the calling thread
 * during the call, so that no handler reaps the children. Other children and signals of the
 * parent are left alone.
 *
 * @param function in: called in each child with its rank and `arg`.
 * @param arg in, optional: passed to `function`; each child has its own copy of the memory.
 * @param nprocs in: the number of ranks, 1 to 4096. The parent needs 2 free descriptors for
 *   each rank and 64 more within its limit (ulimit -n).
 * @param options in, optional: NULL for all defaults; borrowed for the call. The default of
 *   `join_timeout_ms` is no limit; DIST_NO_WAIT is refused. The default of `grace_ms` is 2
 *   seconds.
 * @agree nothing.
 * @blocks until all children have ended and been reaped; a child that SIGKILL does not end
 *   within 5 seconds is left behind.
 * @return DIST_OK if all children succeeded; DIST_ERR_PEER_FAILED if a child failed (the
 *   message has the first failed rank, its process, its result or signal, and its last error
 *   in libdist); DIST_ERR_TIMEOUT if children still ran after `join_timeout_ms` (the message
 *   names them; they have been ended); DIST_ERR_INVALID_ARGUMENT if an argument is wrong, if
 *   the parent cannot be forked as above, or inside a completion callback;
 *   DIST_ERR_UNSUPPORTED if the options set a field that this version does not know;
 *   DIST_ERR_OUT_OF_MEMORY or DIST_ERR_SYSTEM if children or their store cannot be started, or
 *   too few descriptors are free; DIST_ERR_SYSTEM if another part of the program reaped a
 *   child.
 * @threads the only thread of the process.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_spawn(dist_spawn_fn function,
                         void *arg,
                         int32_t nprocs,
                         const struct dist_spawn_options_t *options);

/**
 * Connects to a TCP store, and hosts the store if `is_server` is set.
 *
 * The store speaks the protocol of PyTorch's TCPStore; server or clients may be PyTorch
 * processes. A client waits for a server that does not run yet. If the launcher (torchrun)
 * already hosts the store at this address, a server connects to that store.
 *
 * After the call, the library refuses calls in a process forked from this one without exec,
 * which would share the connection, and dist_spawn refuses this process.
 *
 * @param options in: the options; borrowed for the call.
 * @param out out: the store; owned by the caller, released with dist_store_release; NULL on
 *   failure.
 * @agree the secret, between server and clients.
 * @blocks until connected, and until all clients have connected if wait_for_workers applies;
 *   until timeout_ms at the latest.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT, also in a completion callback;
 *   DIST_ERR_UNSUPPORTED if `options` has a newer field; DIST_ERR_NOT_INITIALIZED in a
 *   forked child; DIST_ERR_TIMEOUT or DIST_ERR_CONNECTION with a message that lists the
 *   attempts; DIST_ERR_AUTH if the secrets differ or only one side has a secret;
 *   DIST_ERR_SYSTEM, for example if the port is in use.
 * @threads any.
 * @since 0.1
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
 * In place of a color (dist_group_split): this rank belongs to no new group.
 */
#define DIST_NO_COLOR -1

/**
 * The error names no rank.
 */
#define DIST_CULPRIT_NONE 0

/**
 * The rank's process ended without leaving the group; only ranks of the same host can detect this.
 */
#define DIST_CULPRIT_DIED 1

/**
 * The rank left the group in order while other ranks still needed it.
 */
#define DIST_CULPRIT_LEFT 2

/**
 * The connection to the rank ended or broke, or the rank sends no heartbeat.
 *
 * The process died or is held up, or the network is interrupted.
 */
#define DIST_CULPRIT_UNREACHABLE 3

/**
 * The rank's process is stopped by a signal or a debugger and sends no heartbeat.
 *
 * Only ranks of the same host can detect this.
 */
#define DIST_CULPRIT_STOPPED 4

/**
 * The rank did not call before the deadline.
 *
 * If several ranks did not call, this is the first rank that the error names.
 */
#define DIST_CULPRIT_LATE 5

/**
 * The rank called another operation than the rank that found the difference.
 */
#define DIST_CULPRIT_MISMATCH 6

/**
 * The rank aborted the group.
 */
#define DIST_CULPRIT_ABORTED 7

/**
 * The rank failed in another way, which the message of the error describes.
 */
#define DIST_CULPRIT_FAILED 8

/**
 * A group of ranks.
 *
 * Owned by the caller, released with dist_group_release. Any thread may use it.
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
     * The set fields with a meaningful zero: DIST_FIELD_RANK, DIST_FIELD_DEVICE.
     */
    uint64_t fields;
    /**
     * The store through which the ranks bootstrap; required, borrowed for the call.
     */
    const dist_store_t *store;
    /**
     * The rank of the caller in the new group; required, needs DIST_FIELD_RANK in `fields`.
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
     * The name of the group, the same on all its ranks; required. Two groups that live at the same
     * time in one store need different names.
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
     * The `world_size` ranks of the surrounding group, in the order of the group's ranks
     * (dist_group_ranks). No rank appears twice, and all ranks give the same list. NULL if the
     * group is the outermost; borrowed for the call.
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
     * Must be 0.
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
     * The name of the new group, the same on all its ranks: 1 to 200 bytes without "/". NULL for a
     * name made from the parent's name, the ranks (or the color) and a count.
     */
    const char *name;
    /**
     * As in dist_init_options_t, the same on all ranks of the new group; NULL for the parent's
     * back end.
     */
    const char *backend;
    /**
     * As in dist_init_options_t; NULL for the parent's options, "" for none. If this is not NULL,
     * the parent's DIST_ALGORITHM still applies. The parent's tuning file applies unless this has
     * a tuning_file.
     */
    const char *backend_options;
    /**
     * Time-out of the group's operations; the default is the parent's. DIST_NO_WAIT is refused.
     */
    int64_t timeout_ms;
    /**
     * Time-out of making the group; the default is DIST_CONNECT_TIMEOUT_MS, or 5 minutes.
     * DIST_NO_WAIT is refused.
     */
    int64_t connect_timeout_ms;
    /**
     * Not 0: only the members of the new group call dist_group_new. Not for dist_group_split.
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
     * Time within which a rank must call before the others exclude it; the default is 10 seconds.
     * DIST_NO_WAIT is refused. Ranks call dist_group_shrink at different times: choose more than
     * the time between two calls in the group.
     */
    int64_t timeout_ms;
    /**
     * Time-out of making the group; the default is DIST_CONNECT_TIMEOUT_MS, or 5 minutes.
     * DIST_NO_WAIT is refused.
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
     * The rank in the group of the failed operation; -1 if the error names no rank.
     */
    int32_t rank;
    /**
     * The kind of failure, a DIST_CULPRIT_ constant; DIST_CULPRIT_NONE if the error names no rank.
     */
    int32_t kind;
    /**
     * The process id of the rank on its host; 0 if the id is not known.
     */
    int64_t pid;
    /**
     * The name of the rank's host, terminated, at most 255 bytes; "" if the name is not known.
     */
    char host[256];
} dist_culprit_t;

/**
 * Returns this process's rank in a group.
 *
 * @param group in: the group.
 * @agree nothing.
 * @blocks no.
 * @return the rank; -1 for NULL or an invalid handle.
 * @threads any.
 * @since 0.1
 */
int32_t dist_get_rank(const struct dist_group_t *group);

/**
 * Returns the number of ranks of a group.
 *
 * @param group in: the group.
 * @agree nothing.
 * @blocks no.
 * @return the number of ranks; -1 for NULL or an invalid handle.
 * @threads any.
 * @since 0.1
 */
int32_t dist_get_world_size(const struct dist_group_t *group);

/**
 * Returns the world group.
 *
 * @agree nothing.
 * @blocks no.
 * @return the world, static: dist_finalize ends it; NULL before dist_init and after
 *   dist_finalize.
 * @threads any.
 * @since 0.1
 */
struct dist_group_t *dist_world(void);

/**
 * Creates a group whose ranks bootstrap through a store, independently of dist_init.
 *
 * A process may have several such groups. The ranks of a group may be threads of one process.
 *
 * @param options in: `store`, DIST_FIELD_RANK with `rank`, `world_size` and `name` are
 *   required; borrowed for the call. The default of `connect_timeout_ms` is
 *   DIST_CONNECT_TIMEOUT_MS, or 5 minutes; DIST_NO_WAIT is refused.
 * @param out out: the group, owned by the caller, released with dist_group_release; NULL on
 *   failure.
 * @agree the store, `world_size`, `name`, the back end and `global_ranks`.
 * @blocks until all ranks have joined, until `connect_timeout_ms` at the latest.
 * @return as dist_init, without DIST_ERR_ALREADY_INITIALIZED; DIST_ERR_INVALID_HANDLE if
 *   `options.store` is NULL or no store.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_group_create(const struct dist_group_options_t *options,
                                struct dist_group_t **out);

/**
 * Fails a group on all its ranks, with a reason.
 *
 * Calls that wait in the group and pending works end with DIST_ERR_ABORTED and the reason.
 * Later calls return DIST_ERR_ABORTED too. A rank that has not released `group` passes the
 * abort on to groups that dist_group_new and dist_group_split made from it, and from those
 * groups to theirs. Only the first failure of a group counts: if the group has failed before,
 * its failure stays.
 *
 * @param group in: the group.
 * @param reason in, optional: a text for the error message; NULL for none; borrowed for the
 *   call.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED;
 *   DIST_ERR_INVALID_ARGUMENT if `reason` is not UTF-8 or longer than 1 MiB.
 * @threads any, also while other threads are inside a collective of the group.
 * @since 0.1
 */
dist_status_t dist_group_abort(struct dist_group_t *group, const char *reason);

/**
 * Leaves a group and ends its handle.
 *
 * The other ranks can still receive what this rank has sent. A collective that needs this rank
 * ends on them with DIST_ERR_PEER_FAILED. The parent of the group and groups made from it may
 * be released before or after it. Blocking calls of other threads and pending works continue
 * to their own end; this rank leaves the group after them.
 *
 * On several hosts, the lowest rank of each host should be the last rank there to leave. It
 * forwards failures and deaths to the other hosts. Ranks of its host that stay longer learn of
 * them only from their own connections and time-outs.
 *
 * @param group in, optional: the group, not the world (see dist_finalize); NULL does nothing.
 * @agree nothing.
 * @blocks no; for a group on GPUs until its device and the other ranks are ready, at most 10
 *   seconds.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT for the world.
 * @threads any.
 * @since 0.1
 */
dist_status_t dist_group_release(struct dist_group_t *group);

/**
 * Copies the message of the error that failed a group.
 *
 * @param group in: the group.
 * @param buf out, optional: receives the message, "" while the group has not failed; as in
 *   dist_last_error_copy.
 * @param cap in: the size of `buf` in bytes.
 * @agree nothing.
 * @blocks no.
 * @return the bytes that the whole message needs, with its terminator; 0 for NULL or an
 *   invalid handle, and if `buf` is NULL and `cap` is not 0.
 * @threads any.
 * @since 0.1
 */
size_t dist_group_error(const struct dist_group_t *group, char *buf, size_t cap);

/**
 * Returns how many collectives this rank has issued on a group.
 *
 * Ranks that made the same calls have the same number. A call on byte strings counts as two.
 * Calls of a batch that became one operation count as one. A dist_group_new or
 * dist_group_split of all ranks counts on the parent. Messages do not count.
 *
 * @param group in: the group.
 * @agree nothing.
 * @blocks no.
 * @return the number; 0 before the first collective, and for NULL or an invalid handle.
 * @threads any.
 * @since 0.1
 */
uint64_t dist_group_sequence(const struct dist_group_t *group);

/**
 * Sets the default time-out of a group's operations on this rank.
 *
 * It applies to later calls that set no time-out of their own.
 *
 * @param group in: the group.
 * @param timeout_ms in: the time-out; the default is DIST_TIMEOUT_MS, or 30 minutes;
 *   DIST_NO_WAIT is refused.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if `timeout_ms` or DIST_TIMEOUT_MS is wrong;
 *   DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_group_set_timeout(struct dist_group_t *group, int64_t timeout_ms);

/**
 * Returns the default time-out of a group's operations on this rank, in milliseconds.
 *
 * @param group in: the group.
 * @agree nothing.
 * @blocks no.
 * @return the time-out; DIST_WAIT_FOREVER if there is no limit; 0 for NULL or an invalid
 *   handle.
 * @threads any.
 * @since 0.1
 */
int64_t dist_group_get_timeout(const struct dist_group_t *group);

/**
 * Copies a group's name.
 *
 * @param group in: the group.
 * @param buf out, optional: receives the name; as in dist_last_error_copy.
 * @param cap in: the size of `buf` in bytes.
 * @agree nothing.
 * @blocks no.
 * @return as dist_group_error, for the name.
 * @threads any.
 * @since 0.1
 */
size_t dist_group_name(const struct dist_group_t *group, char *buf, size_t cap);

/**
 * Copies the name of a group's back end.
 *
 * @param group in: the group.
 * @param buf out, optional: receives the name; as in dist_last_error_copy.
 * @param cap in: the size of `buf` in bytes.
 * @agree nothing.
 * @blocks no.
 * @return as dist_group_error, for the name.
 * @threads any.
 * @since 0.1
 */
size_t dist_group_backend(const struct dist_group_t *group, char *buf, size_t cap);

/**
 * Returns this rank's position among the group's ranks on its host, from 0.
 *
 * @param group in: the group.
 * @agree nothing.
 * @blocks no.
 * @return the local rank; -1 for NULL or an invalid handle.
 * @threads any.
 * @since 0.1
 */
int32_t dist_group_local_rank(const struct dist_group_t *group);

/**
 * Returns the number of the group's ranks on this rank's host.
 *
 * @param group in: the group.
 * @agree nothing.
 * @blocks no.
 * @return the number; -1 for NULL or an invalid handle.
 * @threads any.
 * @since 0.1
 */
int32_t dist_group_local_size(const struct dist_group_t *group);

/**
 * Returns the number of this rank's host among the group's hosts, from 0.
 *
 * Hosts are ordered by their lowest ranks.
 *
 * @param group in: the group.
 * @agree nothing.
 * @blocks no.
 * @return the number; -1 for NULL or an invalid handle.
 * @threads any.
 * @since 0.1
 */
int32_t dist_group_host_index(const struct dist_group_t *group);

/**
 * Returns the number of hosts that the group's ranks run on.
 *
 * @param group in: the group.
 * @agree nothing.
 * @blocks no.
 * @return the number; -1 for NULL or an invalid handle.
 * @threads any.
 * @since 0.1
 */
int32_t dist_group_host_count(const struct dist_group_t *group);

/**
 * Describes a group as JSON.
 *
 * The JSON has the members with host and process, their ranks in the outermost group and the
 * parent's name. It has the back end with its transport and its algorithms by size, the
 * default time-out, the failure, the arrival skew and the trace.
 *
 * @param group in: the group.
 * @param json out: a blob of one text, owned by the caller, released with dist_blob_release;
 *   NULL on failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `json` is NULL;
 *   DIST_ERR_NOT_INITIALIZED; DIST_ERR_OUT_OF_MEMORY.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_group_describe(const struct dist_group_t *group,
                                  dist_blob_t **json);

/**
 * Creates a group of some ranks of another group, in the order given.
 *
 * All ranks of `parent` call it, members of the new group or not. The call has its place in
 * the order of the parent's collectives.
 *
 * With `options.use_local_synchronization` only the members need to call it, in no order
 * with other calls. The members find each other by the name. While a rank has a group of this
 * kind and name from `parent`, it cannot make a second one. An unnamed group is named after
 * its ranks and the number of groups made of these ranks before.
 *
 * The ranks exchange messages of the parent; they do not use the store. The parent may be
 * released before or after the new group, which is not affected. Aborting the parent aborts
 * the new group while both exist. Errors leave the parent usable, with one exception. If a
 * rank does not make a call of all ranks, or makes another call instead, the parent fails as
 * with any collective.
 *
 * @param parent in: the group whose ranks form the new group.
 * @param ranks in, optional: `n` ranks of the parent, none twice; NULL only if `n` is 0;
 *   borrowed for the call.
 * @param n in: the number of ranks; 0 for all ranks of the parent.
 * @param options in, optional: NULL for all defaults; borrowed for the call. The default of
 *   `connect_timeout_ms` is DIST_CONNECT_TIMEOUT_MS, or 5 minutes; DIST_NO_WAIT is refused.
 * @param out out: the new group, owned by the caller, released with dist_group_release; NULL
 *   on failure, and with DIST_OK on a rank that is not a member.
 * @agree the order of calls on the parent, the ranks, the name and the back end.
 * @blocks until all ranks that make the group have called, until `connect_timeout_ms` at the
 *   latest.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if ranks, name or options are wrong, or inside a
 *   completion callback; DIST_ERR_NOT_FOUND if no back end has this name; DIST_ERR_MISMATCH if
 *   ranks define the group differently (the message has each definition and its ranks);
 *   DIST_ERR_TIMEOUT if ranks did not call (the message names them); DIST_ERR_PEER_FAILED if
 *   another rank failed to join, left or died; DIST_ERR_UNSUPPORTED if the parent's back end
 *   has no messages, the new back end cannot run here or the options set a field that this
 *   version does not know; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED;
 *   DIST_ERR_OUT_OF_MEMORY; DIST_ERR_SYSTEM; DIST_ERR_BACKEND if the new back end failed; the
 *   parent's failure if it has failed.
 * @threads any.
 * @since 0.1
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
 * All ranks of `parent` call it. The call has its place in the order of the parent's
 * collectives. Within a color, ranks are ordered by `key`; ranks with equal keys are ordered
 * by their ranks in the parent. If the options give a name, all new groups have this name. For
 * the parent's release and abort the rules of dist_group_new apply.
 *
 * @param parent in: the group to split.
 * @param color in: 0 or more, or DIST_NO_COLOR for no new group on this rank.
 * @param key in: the sort key; any number.
 * @param options in, optional: as in dist_group_new; `use_local_synchronization` is refused.
 * @param out out: this rank's new group, owned by the caller, released with
 *   dist_group_release; NULL on failure, and with DIST_OK for DIST_NO_COLOR.
 * @agree the order of calls on the parent; ranks with a color also the name and the back end.
 * @blocks as dist_group_new.
 * @return as dist_group_new; DIST_ERR_INVALID_ARGUMENT also if `color` is negative and not
 *   DIST_NO_COLOR.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_group_split(struct dist_group_t *parent,
                               int32_t color,
                               int32_t key,
                               const struct dist_group_new_options_t *options,
                               struct dist_group_t **out);

/**
 * Copies the ranks that a group's ranks have in the outermost group.
 *
 * The outermost group is the one at the beginning of the chain of dist_group_new,
 * dist_group_split and dist_group_shrink: the world, or a group of dist_group_create. The
 * latter may define other numbers in `global_ranks`. Element i of the result belongs to rank i
 * of `group`.
 *
 * @param group in: the group.
 * @param out out, optional: receives up to `cap` ranks; NULL only if `cap` is 0.
 * @param cap in: the number of ranks that fit into `out`; a longer list is cut.
 * @agree nothing.
 * @blocks no.
 * @return the number of the group's ranks; 0 for NULL or an invalid handle, and if `out` is
 *   NULL and `cap` is not 0.
 * @threads any.
 * @since 0.1
 */
size_t dist_group_ranks(const struct dist_group_t *group, int32_t *out, size_t cap);

/**
 * Converts a rank of the outermost group (see dist_group_ranks) to a rank of a group.
 *
 * @param group in: the group.
 * @param global_rank in: the rank in the outermost group.
 * @agree nothing.
 * @blocks no.
 * @return the rank in `group`; -1 if the group does not contain it, and for NULL or an invalid
 *   handle.
 * @threads any.
 * @since 0.1
 */
int32_t dist_group_rank_from_global(const struct dist_group_t *group, int32_t global_rank);

/**
 * Converts a rank of a group to its rank in the outermost group (see dist_group_ranks).
 *
 * @param group in: the group.
 * @param rank in: the rank in `group`.
 * @agree nothing.
 * @blocks no.
 * @return the rank in the outermost group; -1 if `rank` is no rank of the group, and for NULL
 *   or an invalid handle.
 * @threads any.
 * @since 0.1
 */
int32_t dist_group_rank_to_global(const struct dist_group_t *group, int32_t rank);

/**
 * Creates a group of the remaining ranks of a failed group.
 *
 * Each remaining rank calls it after its calls in `group` have failed, for instance with
 * DIST_ERR_PEER_FAILED or DIST_ERR_TIMEOUT. If the group has not failed, the call aborts it.
 * The ranks find each other without the store and without the connections of the old group. A
 * failed attempt may be repeated.
 *
 * Dead ranks are left out at once. A rank that does not call within `options.timeout_ms`
 * is excluded. If the failure is DIST_ERR_PEER_FAILED, the rank that it names is excluded too.
 * The remaining ranks must be more than half of the ranks that are not proven dead, or exactly
 * half with the lowest of these. A closed socket proves that a process is dead. So at most one
 * of two parts that cannot reach each other continues. A rank that dies during the call is
 * left out as well.
 *
 * The new group keeps the order of the ranks, numbered from 0; dist_group_ranks converts them.
 * It has the back end, the options and the time-out of the old group. Its name ends with "#1",
 * then "#2" and so on. The ranks may have different results of the call that failed;
 * c-examples/survive shows how to compare them. The old group stays failed. The caller still
 * releases it, or calls dist_finalize for the world, before or after the new group's release.
 *
 * @param group in: the group.
 * @param options in, optional: NULL for all defaults; borrowed for the call. The default of
 *   `timeout_ms` is 10 seconds, of `connect_timeout_ms` DIST_CONNECT_TIMEOUT_MS or 5 minutes;
 *   DIST_NO_WAIT is refused.
 * @param out out: the new group, owned by the caller, released with dist_group_release; NULL
 *   on failure.
 * @agree nothing; every remaining rank calls it.
 * @blocks until all remaining ranks have joined or `timeout_ms` has passed for the others,
 *   until `connect_timeout_ms` at the latest.
 * @return DIST_OK; DIST_ERR_ABORTED if the other ranks continue without this rank;
 *   DIST_ERR_PEER_FAILED if this rank caused the failure or too few ranks remain (the message
 *   has the missing ranks and the reasons); DIST_ERR_TIMEOUT; DIST_ERR_INVALID_ARGUMENT if
 *   options are wrong, if another thread shrinks the group, or inside a completion callback;
 *   DIST_ERR_UNSUPPORTED if the back end cannot shrink groups or the options set a field that
 *   this version does not know; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED;
 *   DIST_ERR_OUT_OF_MEMORY; DIST_ERR_SYSTEM; DIST_ERR_BACKEND if the back end failed.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_group_shrink(struct dist_group_t *group,
                                const struct dist_shrink_options_t *options,
                                struct dist_group_t **out);

/**
 * Gives the rank that has failed a group, with its kind of failure and its process.
 *
 * @param group in: the group.
 * @param out out: DIST_CULPRIT_NONE and rank -1 while the group has not failed, and if its
 *   error names no rank. Set struct_size before the call (DIST_CULPRIT_INIT).
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE, with DIST_CULPRIT_NONE in `out`;
 *   DIST_ERR_NOT_INITIALIZED if `group` is NULL before dist_init; DIST_ERR_INVALID_ARGUMENT if
 *   `out` is NULL or its struct_size is wrong.
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
 * In the flags of dist_op_create: the operator is commutative, a op b equals b op a.
 */
#define DIST_OP_COMMUTATIVE 1

/**
 * The type of one element.
 *
 * No operator and no status has the number of a type. An argument of another family is
 * DIST_ERR_INVALID_ARGUMENT.
 */
typedef int32_t dist_dtype_t;

/**
 * The operator of a reduction.
 *
 * Integers wrap around. f16, bf16 and f8 are reduced in single precision. The result is rounded
 * once per host, and once more for each step between hosts.
 */
typedef int32_t dist_op_t;

/**
 * Reduces two vectors with a caller-defined operator: `inout[i]` becomes `lower[i]` op `inout[i]`.
 *
 * Both vectors have `count` elements of `elem_bytes` bytes. `lower` is the reduction of the
 * vectors of lower ranks. `inout` is the vector of the next rank, and receives the result. `user`
 * is the pointer that was given with the function.
 *
 * The vectors are private memory of the library and do not overlap. Each starts at a multiple of
 * 64 bytes, or a whole number of elements after one. The library calls the function on the calling
 * thread or on its own threads, for different groups at the same time. The function must be
 * associative and depend on the elements only. It must not call libdist, throw or longjmp.
 */
typedef void (*dist_op_fn)(const void *lower,
                           void *inout,
                           size_t count,
                           size_t elem_bytes,
                           void *user);

/**
 * Signed integer of 8 bits.
 */
#define DIST_I8 256

/**
 * Unsigned integer of 8 bits.
 */
#define DIST_U8 257

/**
 * Signed integer of 16 bits.
 */
#define DIST_I16 258

/**
 * Unsigned integer of 16 bits.
 */
#define DIST_U16 259

/**
 * Signed integer of 32 bits.
 */
#define DIST_I32 260

/**
 * Unsigned integer of 32 bits.
 */
#define DIST_U32 261

/**
 * Signed integer of 64 bits.
 */
#define DIST_I64 262

/**
 * Unsigned integer of 64 bits.
 */
#define DIST_U64 263

/**
 * IEEE 754 half precision (16 bits).
 */
#define DIST_F16 264

/**
 * bfloat16: the upper half of an IEEE 754 single.
 */
#define DIST_BF16 265

/**
 * IEEE 754 single precision (32 bits).
 */
#define DIST_F32 266

/**
 * IEEE 754 double precision (64 bits).
 */
#define DIST_F64 267

/**
 * Complex number of two singles: real part, imaginary part.
 */
#define DIST_C64 268

/**
 * Complex number of two doubles: real part, imaginary part.
 */
#define DIST_C128 269

/**
 * Boolean of one byte; every value except 0 is true.
 */
#define DIST_BOOL 270

/**
 * Floating point of 8 bits: 4 bits of exponent, 3 of mantissa, no infinities.
 */
#define DIST_F8E4M3 271

/**
 * Floating point of 8 bits: 5 bits of exponent, 2 of mantissa.
 */
#define DIST_F8E5M2 272

/**
 * Elements of the size that a caller-defined operator declares (dist_op_create).
 *
 * Only calls with such an operator take this type.
 */
#define DIST_OPAQUE 273

/**
 * The sum. For DIST_BOOL: logical or.
 */
#define DIST_SUM 512

/**
 * The product. For DIST_BOOL: logical and. Not for complex numbers.
 */
#define DIST_PRODUCT 513

/**
 * The minimum; NaN if any element is NaN. Not for complex numbers.
 */
#define DIST_MIN 514

/**
 * The maximum; NaN if any element is NaN. Not for complex numbers.
 */
#define DIST_MAX 515

/**
 * The sum divided by the number of ranks. Not for DIST_BOOL.
 *
 * For integers: the wrapped sum is divided and rounded towards zero.
 */
#define DIST_AVG 516

/**
 * Bitwise and. Not for floating point and complex numbers.
 */
#define DIST_BAND 517

/**
 * Bitwise or. Not for floating point and complex numbers.
 */
#define DIST_BOR 518

/**
 * Bitwise exclusive or. Not for floating point and complex numbers.
 */
#define DIST_BXOR 519

/**
 * The sum of each rank's elements times the rank's premul_scale. Not for integers and bools.
 */
#define DIST_PREMUL_SUM 520

/**
 * Returns the size of one element of a type in bytes.
 *
 * @param dtype in: the element type; any number is allowed.
 * @agree nothing.
 * @blocks no.
 * @return the size; 0 for a number that is no built-in element type, and for DIST_OPAQUE.
 * @threads any.
 * @since 0.1
 */
size_t dist_dtype_size(dist_dtype_t dtype);

/**
 * Returns the name of an element type, such as "f32", as error messages show it.
 *
 * @param dtype in: the element type; any number is allowed.
 * @agree nothing.
 * @blocks no.
 * @return the name, static; "unknown dtype" for a number that is no built-in element type.
 * @threads any.
 * @since 0.1
 */
const char *dist_dtype_name(dist_dtype_t dtype);

/**
 * Returns the name of a built-in operator, such as "sum".
 *
 * @param op in: the operator; any number is allowed.
 * @agree nothing.
 * @blocks no.
 * @return the name, static; "unknown op" for a number that is no built-in operator.
 * @threads any.
 * @since 0.1
 */
const char *dist_op_name(dist_op_t op);

/**
 * Creates an operator from a function, for every collective that reduces.
 *
 * dist_all_reduce, dist_reduce, dist_reduce_scatter, dist_reduce_scatter_v, dist_scan and
 * dist_exscan take `*out` as their operator. Their element type is DIST_OPAQUE or one of
 * `elem_bytes` bytes, and algorithm in their options must be NULL. The operator reduces host
 * memory, over every back end that serves host memory. The library reduces vectors in rank
 * order, whether the operator is commutative or not, and every rank gets the same bits.
 *
 * The ranks of a call compare the operator's name, `elem_bytes` and `flags`. If they
 * differ, the call ends with DIST_ERR_MISMATCH, and the error names both operators. An
 * operator belongs to the process, not to a group.
 *
 * @param name in: 1 to 48 bytes of UTF-8, borrowed for the call. No other live operator of the
 *   process has this name.
 * @param function in: reduces two vectors. The library calls it until the operator is released
 *   and all works that use it have completed.
 * @param elem_bytes in: the size of an element, 1 to 1048576.
 * @param flags in: 0 or DIST_OP_COMMUTATIVE.
 * @param user in, optional: passed to `function`; the caller keeps it valid as long as the
 *   library may call `function`.
 * @param out out: the operator, owned by the caller, released with dist_op_release. Not
 *   written on failure.
 * @agree nothing; calls with the operator agree on its name, `elem_bytes` and `flags`.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT for a wrong argument and if the name is in use;
 *   DIST_ERR_UNSUPPORTED if `flags` has a bit that this version does not know;
 *   DIST_ERR_OUT_OF_MEMORY if 4096 operators are live.
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
 * Calls that were issued before still use the operator: the library calls the function until
 * their works have completed.
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
 * In the flags of a call: the vectors of all ranks are reduced in the order of ranks.
 *
 * The result has the same bits for every placement of the ranks and every algorithm. Such a call
 * may be slower between hosts. All ranks give the same value.
 */
#define DIST_CALL_CANONICAL 1

/**
 * In the flags of a call: a NaN in an input or result fails the group.
 *
 * DIST_CHECK_NAN=1 has the same effect on all calls. Each rank sets the flag independently.
 */
#define DIST_CALL_CHECK_NAN 2

/**
 * In the flags of a call: a NaN or an infinity in an input or result fails the group.
 *
 * Each rank sets the flag independently.
 */
#define DIST_CALL_CHECK_INF 4

/**
 * In the flags of a call: the field `device` says where the buffers are.
 */
#define DIST_CALL_DEVICE 8

/**
 * In the flags of a send: the send is done once a receive has matched the message.
 *
 * Only for dist_send, dist_send_bytes and the send of dist_sendrecv. Each rank sets the flag
 * independently.
 */
#define DIST_CALL_SYNCHRONOUS 16

/**
 * The maximum length of a call's label in bytes, without the terminator.
 */
#define DIST_LABEL_BYTES 32

/**
 * An issued operation.
 *
 * Owned by the caller, released with dist_work_release. Any thread may use it. A work outlives its
 * group and keeps its outcome until its release.
 */
typedef struct dist_work_t dist_work_t;

/**
 * Options of one collective call or of one message.
 */
typedef struct dist_call_options_t {
    /**
     * sizeof(dist_call_options_t).
     */
    size_t struct_size;
    /**
     * Time-out from the time of issue; the default is the group's. Only dist_probe accepts
     * DIST_NO_WAIT; another call without time would fail its group.
     */
    int64_t timeout_ms;
    /**
     * The factor of this rank for DIST_PREMUL_SUM.
     */
    double premul_scale;
    /**
     * The name of an algorithm (dist_group_describe lists them), the same on all ranks. NULL: the
     * library chooses.
     */
    const char *algorithm;
    /**
     * The sum of DIST_CALL_ constants; or 0.
     */
    uint64_t flags;
    /**
     * The stream (CUstream, cudaStream_t) of a call on GPU memory; later work in the stream sees
     * the result. NULL: a stream of the library, after the work on the default stream; a blocking
     * call then waits for the device. (void *)1 is CUDA's own default stream. If native serves
     * the GPU's memory, the call starts after the work in the stream, and only work that is put
     * there after the end of the call sees the result.
     */
    void *stream;
    /**
     * The location of the buffers, with DIST_CALL_DEVICE in `flags`: the index of the group's
     * GPU on this rank, or DIST_DEVICE_HOST. Without the flag, the library asks the driver.
     */
    int32_t device;
    /**
     * Must be 0.
     */
    int32_t reserved;
    /**
     * The label of the call: UTF-8 of at most DIST_LABEL_BYTES bytes without the terminator;
     * borrowed for the call; NULL or "" for none. All ranks give the same label to a collective:
     * the native back end reports different labels with DIST_ERR_MISMATCH. Labels do not affect
     * the matching of messages. Errors, the flight recorder, the trace and dist-doctor show the
     * label.
     */
    const char *label;
} dist_call_options_t;

/**
 * Reduces the vectors of all ranks and gives every rank the result, bitwise the same on all.
 *
 * Operations of a group run in the order of their issue, blocking and asynchronous ones alike.
 * Inside a batch (dist_batch_begin) a call with `work` NULL does not block: dist_batch_end
 * issues it. On the memory of a GPU, an operation over NCCL is done once it is in its stream
 * (`stream` in dist_call_options_t).
 *
 * @param group in: the group.
 * @param send in: `count` elements; borrowed until the work completes; NULL only if `count` is
 *   0.
 * @param recv out: `count` elements; borrowed until the work completes; NULL only if `count`
 *   is 0. It may be equal to `send` (in place), else the two must not overlap.
 * @param count in: the number of elements.
 * @param dtype in: the type of the elements; DIST_OPAQUE is for operators of dist_op_create.
 * @param op in: the operator, a constant or one of dist_op_create.
 * @param options in, optional: NULL for all defaults; borrowed for the call.
 * @param work out, optional: NULL to block; else the work, owned by the caller, released with
 *   dist_work_release; NULL on failure.
 * @agree the order of calls on the group, count, dtype, op and label.
 * @blocks until all ranks have called and the result is there, until the deadline at the
 *   latest; not with a work and not inside a batch.
 * @return DIST_OK. With nothing done: DIST_ERR_INVALID_ARGUMENT, also if the call would block
 *   inside a completion callback; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED;
 *   DIST_ERR_UNSUPPORTED if the group's back end cannot do the call. With a work or in a
 *   batch, also with nothing done: DIST_ERR_OUT_OF_MEMORY if 65536 works of the group are
 *   outstanding or the batch has 65536 calls; DIST_ERR_SYSTEM if no thread can be started.
 *   From the call that blocks, else from the work: DIST_ERR_TIMEOUT, DIST_ERR_PEER_FAILED,
 *   DIST_ERR_MISMATCH, DIST_ERR_ABORTED; DIST_ERR_BACKEND if NCCL or a plug-in fails;
 *   DIST_ERR_OUT_OF_MEMORY if a rank has no memory that the operation needs. After these
 *   errors the group refuses work with the same cause, and the contents of `recv` are
 *   undefined.
 * @threads any; threads that use one group keep the same order on all ranks.
 * @since 0.1
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
 * Reduces the vectors of all ranks and gives the root the result.
 *
 * @param group in: the group.
 * @param send in: `count` elements; borrowed until the work completes; NULL only if `count` is
 *   0.
 * @param recv out, optional: on the root `count` elements; borrowed until the work completes;
 *   NULL only if `count` is 0. It may be equal to `send` (in place), else the two must not
 *   overlap. Not used on other ranks.
 * @param count in: the number of elements.
 * @param dtype in: the type of the elements; DIST_OPAQUE is for operators of dist_op_create.
 * @param op in: the operator, a constant or one of dist_op_create.
 * @param root in: the rank that gets the result.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree the order of calls on the group, count, dtype, op, root and label.
 * @blocks on the root as dist_all_reduce; another rank may return before all ranks have
 *   called.
 * @return as dist_all_reduce.
 * @threads any; threads that use one group keep the same order on all ranks.
 * @since 0.1
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
 * @param group in: the group.
 * @param buf in, out: `count` elements, read on the root and written on the other ranks;
 *   borrowed until the work completes; NULL only if `count` is 0.
 * @param count in: the number of elements.
 * @param dtype in: the type of the elements.
 * @param root in: the rank that has the data.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree the order of calls on the group, count, dtype, root and label.
 * @blocks until the data is in `buf`, until the deadline at the latest; not with a work and
 *   not inside a batch. The root may return before the other ranks have called.
 * @return as dist_all_reduce, with `buf` in place of `recv`.
 * @threads any; threads that use one group keep the same order on all ranks.
 * @since 0.1
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
 * @param group in: the group.
 * @param send in: `count` elements; borrowed until the work completes; NULL only if `count` is
 *   0.
 * @param recv out: world size times `count` elements; borrowed until the work completes; NULL
 *   only if `count` is 0. In place, `send` is `recv` + rank * `count` elements; else the two
 *   must not overlap.
 * @param count in: the number of elements of one rank.
 * @param dtype in: the type of the elements.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree the order of calls on the group, count, dtype and label.
 * @blocks as dist_all_reduce.
 * @return as dist_all_reduce.
 * @threads any; threads that use one group keep the same order on all ranks.
 * @since 0.1
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
 * Reduces the vectors of all ranks and gives each rank its block of the result.
 *
 * @param group in: the group.
 * @param send in: world size times `count` elements; borrowed until the work completes; NULL
 *   only if `count` is 0.
 * @param recv out: `count` elements, block `rank` of the result; borrowed until the work
 *   completes; NULL only if `count` is 0. In place, `recv` is `send` + rank * `count`
 *   elements; else the two must not overlap.
 * @param count in: the number of elements of one block.
 * @param dtype in: the type of the elements; DIST_OPAQUE is for operators of dist_op_create.
 * @param op in: the operator, a constant or one of dist_op_create.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree the order of calls on the group, count, dtype, op and label.
 * @blocks as dist_all_reduce.
 * @return as dist_all_reduce.
 * @threads any; threads that use one group keep the same order on all ranks.
 * @since 0.1
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
 * Reduces the vectors of the ranks up to this one: rank r gets the reduction of ranks 0 to r.
 *
 * The ranks' vectors are reduced in rank order. The call takes every operator that
 * dist_all_reduce takes, except DIST_AVG. DIST_PREMUL_SUM multiplies each rank's vector by
 * that rank's factor first.
 *
 * @param group in: the group.
 * @param send in: `count` elements; borrowed until the work completes; NULL only if `count` is
 *   0.
 * @param recv out: `count` elements; borrowed until the work completes; NULL only if `count`
 *   is 0. It may be equal to `send` (in place), else the two must not overlap.
 * @param count in: the number of elements.
 * @param dtype in: the type of the elements; DIST_OPAQUE is for operators of dist_op_create.
 * @param op in: the operator, a constant or one of dist_op_create.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree the order of calls on the group, count, dtype, op and label.
 * @blocks until the result is there, until the deadline at the latest; not with a work and not
 *   inside a batch.
 * @return as dist_all_reduce; DIST_ERR_UNSUPPORTED also for DIST_AVG and for the memory of a
 *   GPU over NCCL.
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
 * Reduces the vectors of the ranks below this one, without its own vector.
 *
 * Rank r gets the reduction of ranks 0 to r - 1. It is dist_scan without the rank's own
 * vector. On rank 0 there is nothing to reduce, and the library does not write `recv`.
 *
 * @param group in: the group.
 * @param send in: `count` elements; borrowed until the work completes; NULL only if `count` is
 *   0.
 * @param recv out, optional: `count` elements; borrowed until the work completes; NULL only if
 *   `count` is 0 or on rank 0. It may be equal to `send` (in place), else the two must not
 *   overlap.
 * @param count in: the number of elements.
 * @param dtype in: the type of the elements; DIST_OPAQUE is for operators of dist_op_create.
 * @param op in: the operator, a constant or one of dist_op_create.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree the order of calls on the group, count, dtype, op and label.
 * @blocks as dist_scan.
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
 * Completes when all ranks of the group have called it.
 *
 * @param group in: the group.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree the order of calls on the group, and label.
 * @blocks until all ranks have called, until the deadline at the latest; not with a work and
 *   not inside a batch.
 * @return as dist_all_reduce.
 * @threads any; threads that use one group keep the same order on all ranks.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_barrier(dist_group_t *group,
                           const struct dist_call_options_t *options,
                           struct dist_work_t **work);

/**
 * Gives the root the vectors of all ranks, in rank order.
 *
 * @param group in: the group.
 * @param send in: `count` elements; borrowed until the work completes; NULL only if `count` is
 *   0.
 * @param recv out, optional: on the root world size times `count` elements; borrowed until the
 *   work completes; NULL only if `count` is 0. In place, `send` is `recv` + rank * `count`
 *   elements; else the two must not overlap. Not used on other ranks.
 * @param count in: the number of elements of one rank.
 * @param dtype in: the type of the elements.
 * @param root in: the rank that gets the vectors.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree the order of calls on the group, count, dtype, root and label.
 * @blocks on the root as dist_all_reduce; another rank may return before all ranks have
 *   called.
 * @return as dist_all_reduce.
 * @threads any; threads that use one group keep the same order on all ranks.
 * @since 0.1
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
 * @param group in: the group.
 * @param send in, optional: on the root world size times `count` elements; borrowed until the
 *   work completes; NULL only if `count` is 0. Not used on other ranks.
 * @param recv out: `count` elements, block `rank` of the root's `send`; borrowed until the
 *   work completes; NULL only if `count` is 0. In place on the root, `recv` is `send` + rank *
 *   `count` elements; else the two must not overlap.
 * @param count in: the number of elements of one block.
 * @param dtype in: the type of the elements.
 * @param root in: the rank that has the blocks.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree the order of calls on the group, count, dtype, root and label.
 * @blocks until the data is in `recv`, until the deadline at the latest; not with a work and
 *   not inside a batch. The root may return before the other ranks have called.
 * @return as dist_all_reduce.
 * @threads any; threads that use one group keep the same order on all ranks.
 * @since 0.1
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
 * Exchanges blocks: block i of a rank's result is that rank's block of the vector of rank i.
 *
 * Block i of `recv` is block `rank` of the `send` of rank i. There is no form in place.
 *
 * @param group in: the group.
 * @param send in: world size times `count` elements; borrowed until the work completes; NULL
 *   only if `count` is 0.
 * @param recv out: world size times `count` elements; borrowed until the work completes; NULL
 *   only if `count` is 0. It must not overlap `send`.
 * @param count in: the number of elements of one block.
 * @param dtype in: the type of the elements.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree the order of calls on the group, count, dtype and label.
 * @blocks as dist_all_reduce.
 * @return as dist_all_reduce.
 * @threads any; threads that use one group keep the same order on all ranks.
 * @since 0.1
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
 * Gives every rank the vectors of all ranks, each with its own length and place.
 *
 * @param group in: the group.
 * @param send in: `counts[rank]` elements; borrowed until the work completes; NULL only if
 *   that is 0.
 * @param recv out: world size pointers, borrowed for the call. The buffer at `recv[i]` gets
 *   the `counts[i]` elements of rank i; borrowed until the work completes; NULL only if that
 *   is 0. In place, `send` is `recv[rank]`; else no buffer may overlap another.
 * @param counts in: world size counts, in elements; borrowed for the call.
 * @param dtype in: the type of the elements.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree the order of calls on the group, all counts, dtype and label.
 * @blocks as dist_all_reduce.
 * @return as dist_all_reduce.
 * @threads any; threads that use one group keep the same order on all ranks.
 * @since 0.1
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
 * Gives every rank the vectors of all ranks, each with its own length, in one buffer.
 *
 * It is dist_all_gather_v with blocks of one buffer, as in MPI_Allgatherv. Some ranks may call
 * this function and others dist_all_gather_v for the same operation. In place, `send` is this
 * rank's block in `recv`; else no block may overlap another block or `send`.
 *
 * @param group in: the group.
 * @param send in: `counts[rank]` elements; borrowed until the work completes; NULL only if
 *   that is 0.
 * @param recv out: the block of rank i begins `displs[i]` elements behind `recv` and has
 *   `counts[i]` elements; borrowed until the work completes; NULL only if all counts are 0.
 *   The elements between blocks stay as they are.
 * @param counts in: world size counts, in elements; borrowed for the call.
 * @param displs in, optional: world size displacements, in elements; borrowed for the call.
 *   NULL puts the blocks one after the other in rank order. Ranks may have different
 *   displacements.
 * @param dtype in: the type of the elements.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree the order of calls on the group, all counts, dtype and label.
 * @blocks as dist_all_reduce.
 * @return as dist_all_reduce.
 * @threads any; threads that use one group keep the same order on all ranks.
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
 * Gives every rank the counts of all ranks, for calls that need all counts.
 *
 * It is an all-gather of one count per rank, for instance before dist_all_gather_v_at. The
 * call writes this rank's count into `counts` at once.
 *
 * @param group in: the group.
 * @param count in: this rank's count, any number.
 * @param counts out: world size counts, in rank order; borrowed until the work completes.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree the order of calls on the group, and label.
 * @blocks as dist_all_reduce.
 * @return as dist_all_reduce.
 * @threads any; threads that use one group keep the same order on all ranks.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_all_gather_counts(dist_group_t *group,
                                     size_t count,
                                     size_t *counts,
                                     const struct dist_call_options_t *options,
                                     struct dist_work_t **work);

/**
 * Reports whether all ranks have the same bytes, and which rank differs.
 *
 * The bytes may have any length, and different lengths are a difference. Each rank gives a
 * record of 40 bytes, the length and the BLAKE3 hash of its bytes. The call takes different
 * bytes of one length for equal with a probability of 2^-256. It is an all-gather, and has its
 * deadline and its failures.
 *
 * @param group in: the group; its back end must serve host memory.
 * @param bytes in: `len_bytes` bytes in host memory; borrowed for the call; NULL only if
 *   `len_bytes` is 0.
 * @param len_bytes in: the number of bytes on this rank.
 * @param equal out, optional: 1 if all ranks have the same bytes, else 0; the same on all
 *   ranks.
 * @param differing_rank out, optional: the lowest rank whose bytes differ from those of rank
 *   0, the same on all ranks; -1 if there is none.
 * @param options in, optional: as dist_all_reduce, without a device and a stream.
 * @agree the order of calls on the group, and label.
 * @blocks until all ranks have called, until the deadline at the latest.
 * @return as dist_all_reduce without a work, DIST_OK also if ranks differ.
 *   DIST_ERR_INVALID_ARGUMENT also inside a batch and for options with a device or a stream.
 * @threads any; threads that use one group keep the same order on all ranks.
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
 * Gives the root the vectors of all ranks, each with its own length and place.
 *
 * The native back end compares the counts: if those of two ranks disagree, at least one of the
 * two gets DIST_ERR_MISMATCH. Every other rank gets the error at its next call at the latest.
 *
 * @param group in: the group.
 * @param send in: `count` elements; borrowed until the work completes; NULL only if `count` is
 *   0.
 * @param count in: the number of elements of this rank; the root's `counts[rank]`.
 * @param recv out, optional: on the root world size pointers, borrowed for the call. The
 *   buffer at `recv[i]` gets the `counts[i]` elements of rank i; borrowed until the work
 *   completes; NULL only if that is 0. In place, `send` is `recv[rank]`; else no buffer may
 *   overlap another. Not used on other ranks.
 * @param counts in, optional: on the root world size counts, in elements; borrowed for the
 *   call. Not used on other ranks.
 * @param dtype in: the type of the elements.
 * @param root in: the rank that gets the vectors.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree the order of calls on the group, dtype, root and label; `count` of rank i is the
 *   root's `counts[i]`.
 * @blocks on the root as dist_all_reduce; another rank may return before all ranks have
 *   called.
 * @return as dist_all_reduce; DIST_ERR_INVALID_ARGUMENT also if `count` and `counts[rank]`
 *   differ on the root.
 * @threads any; threads that use one group keep the same order on all ranks.
 * @since 0.1
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
 * Gives each rank its vector from the root, each with its own length and place.
 *
 * The native back end compares the counts: if those of two ranks disagree, at least one of the
 * two gets DIST_ERR_MISMATCH. Every other rank gets the error at its next call at the latest.
 *
 * @param group in: the group.
 * @param send in, optional: on the root world size pointers, borrowed for the call. The buffer
 *   at `send[i]` has the `counts[i]` elements for rank i; borrowed until the work completes;
 *   NULL only if that is 0. Not used on other ranks.
 * @param counts in, optional: on the root world size counts, in elements; borrowed for the
 *   call. Not used on other ranks.
 * @param recv out: `count` elements; borrowed until the work completes; NULL only if `count`
 *   is 0. In place on the root, `recv` is `send[rank]`; else `recv` must not overlap the other
 *   buffers.
 * @param count in: the number of elements of this rank; the root's `counts[rank]`.
 * @param dtype in: the type of the elements.
 * @param root in: the rank that has the vectors.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree the order of calls on the group, dtype, root and label; `count` of rank i is the
 *   root's `counts[i]`.
 * @blocks as dist_scatter.
 * @return as dist_all_reduce; DIST_ERR_INVALID_ARGUMENT also if `count` and `counts[rank]`
 *   differ on the root.
 * @threads any; threads that use one group keep the same order on all ranks.
 * @since 0.1
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
 * Reduces one vector per rank, each with its own length, and gives each rank its result.
 *
 * @param group in: the group.
 * @param send in: world size pointers, borrowed for the call. The buffer at `send[i]` has the
 *   `counts[i]` elements that this rank adds to the result of rank i; borrowed until the work
 *   completes; NULL only if that is 0.
 * @param counts in: world size counts, in elements; borrowed for the call.
 * @param recv out: `counts[rank]` elements; borrowed until the work completes; NULL only if
 *   that is 0. In place, `recv` is `send[rank]`; else `recv` must not overlap the other
 *   buffers.
 * @param dtype in: the type of the elements; DIST_OPAQUE is for operators of dist_op_create.
 * @param op in: the operator, a constant or one of dist_op_create.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree the order of calls on the group, all counts, dtype, op and label.
 * @blocks as dist_all_reduce.
 * @return as dist_all_reduce.
 * @threads any; threads that use one group keep the same order on all ranks.
 * @since 0.1
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
 * Exchanges vectors between all pairs of ranks, each with its own length and place.
 *
 * The buffer at `recv[i]` gets the data at `send[rank]` of rank i. There is no form in place.
 * The native back end compares the counts: if those of two ranks disagree, at least one of the
 * two gets DIST_ERR_MISMATCH. Every other rank gets the error at its next call at the latest.
 *
 * @param group in: the group.
 * @param send in: world size pointers, borrowed for the call. The buffer at `send[i]` has the
 *   `send_counts[i]` elements for rank i; borrowed until the work completes; NULL only if that
 *   is 0.
 * @param send_counts in: world size counts, in elements; borrowed for the call.
 * @param recv out: world size pointers, borrowed for the call. The buffer at `recv[i]` gets
 *   the `recv_counts[i]` elements of rank i; borrowed until the work completes; NULL only if
 *   that is 0. It must not overlap any other buffer.
 * @param recv_counts in: world size counts, in elements; borrowed for the call.
 * @param dtype in: the type of the elements.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree the order of calls on the group, dtype and label; `send_counts[j]` of rank i is
 *   `recv_counts[i]` of rank j.
 * @blocks as dist_all_reduce.
 * @return as dist_all_reduce; DIST_ERR_INVALID_ARGUMENT also if `send_counts[rank]` and
 *   `recv_counts[rank]` differ.
 * @threads any; threads that use one group keep the same order on all ranks.
 * @since 0.1
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
 * Gives every rank the root's byte string, of any length.
 *
 * The call is two operations with two sequence numbers: the first transfers the length, the
 * second the bytes. The bytes are in host memory. Of the options, only timeout_ms and label
 * count, and algorithm must be NULL.
 *
 * @param group in: the group.
 * @param data in, optional: on the root its bytes; borrowed until the work completes; NULL
 *   only if `len_bytes` is 0. Not used on other ranks.
 * @param len_bytes in: the number of bytes on the root. Not used on other ranks.
 * @param root in: the rank that has the bytes.
 * @param out out: a blob with one string, on the root too; owned by the caller, released with
 *   dist_blob_release; NULL until the blob is there and on failure. The variable is borrowed
 *   until the work completes.
 * @param options in, optional: NULL for all defaults; borrowed for the call.
 * @param work out, optional: as dist_all_reduce.
 * @agree the order of calls on the group, root and label.
 * @blocks as dist_broadcast.
 * @return as dist_all_reduce; DIST_ERR_OUT_OF_MEMORY also if a rank has no memory for its
 *   strings: the group fails.
 * @threads any; threads that use one group keep the same order on all ranks.
 * @since 0.1
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
 * Gives every rank the byte strings of all ranks, each of any length.
 *
 * The call is two operations, as dist_broadcast_bytes.
 *
 * @param group in: the group.
 * @param data in: this rank's bytes; borrowed until the work completes; NULL only if
 *   `len_bytes` is 0.
 * @param len_bytes in: the number of bytes on this rank.
 * @param out out: a blob with one string per rank, in rank order; owned by the caller,
 *   released with dist_blob_release; NULL until the blob is there and on failure. The variable
 *   is borrowed until the work completes.
 * @param options in, optional: as dist_broadcast_bytes.
 * @param work out, optional: as dist_all_reduce.
 * @agree the order of calls on the group, and label.
 * @blocks as dist_all_reduce.
 * @return as dist_all_reduce; DIST_ERR_OUT_OF_MEMORY also if a rank has no memory for its
 *   strings: the group fails.
 * @threads any; threads that use one group keep the same order on all ranks.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_all_gather_bytes(dist_group_t *group,
                                    const void *data,
                                    size_t len_bytes,
                                    dist_blob_t **out,
                                    const struct dist_call_options_t *options,
                                    struct dist_work_t **work);

/**
 * Gives the root the byte strings of all ranks, each of any length.
 *
 * The call is two operations, as dist_broadcast_bytes.
 *
 * @param group in: the group.
 * @param data in: this rank's bytes; borrowed until the work completes; NULL only if
 *   `len_bytes` is 0.
 * @param len_bytes in: the number of bytes on this rank.
 * @param root in: the rank that gets the strings.
 * @param out out, optional: on the root a blob with one string per rank, in rank order; owned
 *   by the caller, released with dist_blob_release; NULL until the blob is there and on
 *   failure. The variable is borrowed until the work completes. On other ranks it may be NULL,
 *   and gets NULL.
 * @param options in, optional: as dist_broadcast_bytes.
 * @param work out, optional: as dist_all_reduce.
 * @agree the order of calls on the group, root and label.
 * @blocks as dist_gather.
 * @return as dist_all_reduce; DIST_ERR_OUT_OF_MEMORY also if a rank has no memory for its
 *   strings: the group fails.
 * @threads any; threads that use one group keep the same order on all ranks.
 * @since 0.1
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
 * Gives each rank its byte string from the root, each of any length.
 *
 * The call is two operations, as dist_broadcast_bytes.
 *
 * @param group in: the group.
 * @param data in, optional: on the root world size pointers, borrowed for the call. The bytes
 *   at `data[i]` are for rank i; borrowed until the work completes; NULL only if their number
 *   is 0. Not used on other ranks.
 * @param lens_bytes in, optional: on the root world size lengths, in bytes; borrowed for the
 *   call. Not used on other ranks.
 * @param root in: the rank that has the strings.
 * @param out out: a blob with one string; owned by the caller, released with
 *   dist_blob_release; NULL until the blob is there and on failure. The variable is borrowed
 *   until the work completes.
 * @param options in, optional: as dist_broadcast_bytes.
 * @param work out, optional: as dist_all_reduce.
 * @agree the order of calls on the group, root and label.
 * @blocks as dist_scatter.
 * @return as dist_all_reduce; DIST_ERR_OUT_OF_MEMORY also if a rank has no memory for its
 *   strings: the group fails.
 * @threads any; threads that use one group keep the same order on all ranks.
 * @since 0.1
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
 * Waits until all ranks have called it, and names the ranks that have not.
 *
 * It has no order with collectives. A missing rank fails this barrier only, not the group.
 * Rank 0 collects the arrivals until the time-out and sends the result to all ranks. The other
 * ranks wait 500 ms longer for it, with DIST_NO_WAIT not longer; if no result arrives, rank 0
 * is missing for them. A rank that has left or died counts as missing at once. A late rank
 * gets the result of the failed barrier at once; the next barrier is a new one for all ranks.
 *
 * @param group in: the group.
 * @param timeout_ms in: the time-out; the default is the group's. With DIST_NO_WAIT only ranks
 *   that have already called count as present.
 * @param wait_all_ranks in: 0 to return when one rank is known to be missing, and to name only
 *   this rank. Else the call waits for all ranks until the time-out and names all missing
 *   ranks.
 * @param missing out, optional: the missing ranks, in ascending order; needs `n_missing`.
 * @param n_missing in, out, optional: in, the number of ranks that fit into `missing`
 * (the
 *   group's size always suffices). Out, the number of missing ranks.
 * @agree the number of calls, `timeout_ms` and `wait_all_ranks`.
 * @blocks until the result is known, until about 1 second after the time-out at the latest.
 * @return DIST_OK; on all ranks DIST_ERR_TIMEOUT if ranks did not call, DIST_ERR_PEER_FAILED
 *   if one of these has left or died (the message names them); DIST_ERR_INVALID_ARGUMENT if an
 *   argument is wrong, inside a completion callback or a batch, or if another thread is in
 *   this barrier on the group; DIST_ERR_UNSUPPORTED if the back end has no messages;
 *   DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED; the group's failure if it has failed.
 * @threads any, for each rank and group one at a time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_monitored_barrier(dist_group_t *group,
                                     int64_t timeout_ms,
                                     int32_t wait_all_ranks,
                                     int32_t *missing,
                                     size_t *n_missing);

/**
 * Begins a batch of the calling thread, which collects calls until dist_batch_end.
 *
 * Collectives and messages are collected. Inside a batch, a call without `work` does not
 * block: it returns DIST_OK after the check of its arguments. A call with `work` returns a
 * work, which can be waited for only after dist_batch_end. All buffers are borrowed until the
 * work of the batch completes. A batch has at most 65536 calls; a further call returns
 * DIST_ERR_OUT_OF_MEMORY.
 *
 * Small calls of dist_all_reduce, dist_reduce, dist_broadcast, dist_all_gather and
 * dist_reduce_scatter in host memory are fused. They must follow each other on a group and
 * have the same dtype, op, root and DIST_CALL_CANONICAL flag. A call is small up to 16 KiB for
 * its longer buffer; a fused operation has at most 256 KiB. Fused calls are one operation with
 * one sequence number and the shortest of their time-outs. Calls with DIST_PREMUL_SUM, an
 * operator of dist_op_create or a chosen algorithm are not fused. On one host the results are
 * bitwise those of single calls. Between hosts, floating-point sums may be reduced in the
 * order for a vector of the whole length.
 *
 * No call of a batch may use memory that another call of the batch writes, whatever their
 * sizes and groups. The buffer of dist_broadcast counts as written on the root too. If two
 * collectives break this rule on a rank, their groups fail with DIST_ERR_INVALID_ARGUMENT on
 * all ranks.
 *
 * @param groups in, optional: the groups that the batch may use, none of them NULL; NULL only
 *   if `n` is 0; borrowed for the call.
 * @param n in: the number of groups; 0 allows any group.
 * @agree the collectives of the batch and their order on each group; otherwise the ranks get
 *   DIST_ERR_MISMATCH.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if the thread has already begun a batch or
 *   `groups` is wrong; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED.
 * @threads any; each thread has its own batch.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_batch_begin(dist_group_t *const *groups, size_t n);

/**
 * Ends the calling thread's batch and issues its calls.
 *
 * Receives are issued first, then sends, then collectives in the order of the calls, on all
 * groups. So no order of sends, receives and groups makes ranks wait for each other.
 * Operations of NCCL are issued before these, as one operation on all their groups,
 * devices and streams. The batch has ended even if the call fails.
 *
 * @param work out, optional: NULL to block; else the work of the batch, owned by the caller,
 *   released with dist_work_release; NULL on failure. It completes when all operations have
 *   completed, with the first error in the order of the calls.
 * @agree the collectives of the batch and their order on each group.
 * @blocks until all operations have completed, until their deadlines at the latest; with
 *   `work` no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if the thread has no batch, or without `work`
 *   inside a completion callback (the operations then end with DIST_ERR_ABORTED);
 *   DIST_ERR_OUT_OF_MEMORY if there are too many works; without `work` the first error of an
 *   operation.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_batch_end(struct dist_work_t **work);

/**
 * Reports whether a work is done.
 *
 * @param work in: the work.
 * @param done out: 1 if the work is done, else 0.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK while the work is pending and if it has succeeded; the operation's error if
 *   it has failed, with `done` 1; DIST_ERR_INVALID_HANDLE with `done` 0;
 *   DIST_ERR_INVALID_ARGUMENT if `done` is NULL.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_work_test(struct dist_work_t *work, int32_t *done);

/**
 * Returns the tag of the message that a work received or sent.
 *
 * @param work in: the work.
 * @agree nothing.
 * @blocks no.
 * @return the tag; -1 for an invalid handle, while the work is pending, after an error, and if
 *   the work is no message.
 * @threads any.
 * @since 0.1
 */
int32_t dist_work_tag(const struct dist_work_t *work);

/**
 * Reports whether a work of a list is done.
 *
 * @param works in: as dist_work_wait_all.
 * @param n in: the length of the list.
 * @param index out: as dist_work_wait_any.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK, also if all entries are NULL; the error of the work at `index`;
 *   DIST_IN_PROGRESS if no work is done; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT
 *   for a wrong argument, also if `index` is NULL.
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
 * In place of a source rank (dist_recv, dist_probe): any rank.
 */
#define DIST_ANY_SOURCE -1

/**
 * In place of a tag (dist_recv, dist_probe): any tag.
 */
#define DIST_ANY_TAG -1

/**
 * A message that dist_probe removed from matching.
 *
 * Owned by the caller, ended by dist_recv_message or dist_message_release. Any thread may use it.
 * The message does not keep its group alive: it ends with the group.
 */
typedef struct dist_message_t dist_message_t;

/**
 * Source, tag, count and type of a received message.
 *
 * The caller sets struct_size (DIST_RECV_STATUS_INIT), and the library writes the other fields.
 * The library writes struct_size bytes, and zeros in fields of a newer version.
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
     * The number of elements in the message, which may be smaller than the buffer.
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
 * Sends a byte string of any length to one rank of a group.
 *
 * It is a message of `len_bytes` elements of DIST_U8, as dist_send sends it. The receiver may
 * call dist_recv_bytes, or dist_recv with DIST_U8.
 *
 * @param group in: the group.
 * @param data in: the bytes; borrowed until the work completes; NULL only if `len_bytes` is 0.
 * @param len_bytes in: the number of bytes.
 * @param peer in: the receiver, a rank of the group, this rank included.
 * @param tag in: 0 or more.
 * @param options in, optional: as dist_send.
 * @param work out, optional: as dist_send.
 * @agree the sender and the receiver agree on the tag.
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
 * Receives a byte string of any length from one rank of a group.
 *
 * It takes the first message that it matches, sent by dist_send_bytes, or by dist_send with
 * DIST_U8.
 *
 * @param group in: the group.
 * @param out out: a blob with one string; owned by the caller, released with
 *   dist_blob_release; NULL until the blob is there and on failure. The variable is borrowed
 *   until the work completes.
 * @param max_bytes in: the longest message that the call accepts, in bytes; 0 for any.
 * @param peer in: the sender, a rank of the group, or DIST_ANY_SOURCE.
 * @param tag in: 0 or more, or DIST_ANY_TAG.
 * @param status out, optional: as dist_recv; its count is the length.
 * @param options in, optional: as dist_recv.
 * @param work out, optional: as dist_recv; dist_work_received_count is the length.
 * @agree the sender and the receiver agree on the tag.
 * @blocks as dist_recv.
 * @return as dist_send; DIST_ERR_MISMATCH also if the message is longer than `max_bytes` or
 *   has another dtype; DIST_ERR_OUT_OF_MEMORY also if there is no memory for the message.
 *   After both the message stays for the next receive.
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
 * Messages from one rank under one tag are received in the order of their sending. Messages in
 * host memory never wait behind collectives. A send may complete before its receiver has
 * called: it completes once the library has copied or delivered the message. With
 * DIST_CALL_SYNCHRONOUS in the flags, it completes only once a receive has matched the
 * message.
 *
 * NCCL transfers messages in GPU memory in one order, without tags. Over NCCL the tag
 * is 0, the receiver names the sender, and both give the same count.
 *
 * @param group in: the group.
 * @param buf in: `count` elements; borrowed until the work completes; NULL only if `count` is
 *   0.
 * @param count in: the number of elements.
 * @param dtype in: the type of the elements.
 * @param peer in: the receiver, a rank of the group, this rank included.
 * @param tag in: 0 or more.
 * @param options in, optional: NULL for all defaults; borrowed for the call; algorithm must be
 *   NULL.
 * @param work out, optional: NULL to block; else the work, owned by the caller, released with
 *   dist_work_release; NULL on failure.
 * @agree the sender and the receiver agree on the tag and the dtype.
 * @blocks until the send completes, until the deadline at the latest; not with a work and not
 *   inside a batch.
 * @return DIST_OK. With nothing done: DIST_ERR_INVALID_ARGUMENT, also if the call would block
 *   inside a completion callback; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED;
 *   DIST_ERR_UNSUPPORTED if the group's back end has no messages, no synchronous send, or no
 *   messages with this tag or peer in the memory of a GPU; DIST_ERR_OUT_OF_MEMORY if 65536
 *   messages of this rank in the group are outstanding or the batch has 65536 calls. From the
 *   call that blocks, else from the work: DIST_ERR_TIMEOUT and DIST_ERR_PEER_FAILED, which
 *   fail the group only if a part of the message was transferred; the group's failure.
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
 * A receive takes the first message that it matches, and a message goes to the first receive
 * that matches it, in the order of the calls. If the message is shorter than the buffer, the
 * rest of the buffer stays as it is. For the memory of a GPU over NCCL, see dist_send.
 *
 * @param group in: the group.
 * @param buf out: a buffer for `count` elements; borrowed until the work completes; NULL only
 *   if `count` is 0.
 * @param count in: the most elements that the call accepts.
 * @param dtype in: the type of the elements, the same as the sender's.
 * @param peer in: the sender, a rank of the group, or DIST_ANY_SOURCE.
 * @param tag in: 0 or more, or DIST_ANY_TAG.
 * @param status out, optional: source, tag, count and dtype of the message, written on
 *   success. It must be NULL with a work and inside a batch: use dist_work_source,
 *   dist_work_tag and dist_work_received_count.
 * @param options in, optional: as dist_send, without DIST_CALL_SYNCHRONOUS.
 * @param work out, optional: as dist_send.
 * @agree the sender and the receiver agree on the tag and the dtype.
 * @blocks until the message is in `buf`, until the deadline at the latest; not with a work and
 *   not inside a batch.
 * @return as dist_send; DIST_ERR_MISMATCH also if the message is longer than `count` or has
 *   another dtype: then the library writes nothing, and the message stays for the next
 *   receive.
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
 * It finds the message that a receive with these arguments would take. No other receive and no
 * other probe sees a message that was taken; dist_recv_message receives it. With `message`
 * NULL the probe only looks, and another thread may receive the message first. As in MPI, a
 * receive on another thread may take a message that this call waits for. Messages in the
 * memory of a GPU are not found. A probe is no part of a batch: inside one it runs at once.
 *
 * @param group in: the group.
 * @param peer in: the sender, a rank of the group, or DIST_ANY_SOURCE.
 * @param tag in: 0 or more, or DIST_ANY_TAG.
 * @param status out, optional: source, tag, count and dtype of the message, written on
 *   success.
 * @param options in, optional: as dist_recv. With timeout_ms DIST_NO_WAIT the call does not
 *   block.
 * @param message out, optional: NULL to look only; else the message, owned by the caller,
 *   consumed by dist_recv_message or released with dist_message_release; NULL if none was
 *   found.
 * @agree nothing.
 * @blocks until there is a message, until the deadline at the latest; not with DIST_NO_WAIT.
 * @return DIST_OK; DIST_IN_PROGRESS with DIST_NO_WAIT if there is no message;
 *   DIST_ERR_INVALID_ARGUMENT, also if the call would block inside a completion callback;
 *   DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED; DIST_ERR_UNSUPPORTED if the group's
 *   back end cannot probe, as a plug-in cannot; DIST_ERR_TIMEOUT; DIST_ERR_PEER_FAILED if the
 *   sender has left and none of its messages is there; the group's failure.
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
 * The call consumes the handle, also if the operation fails. The handle stays valid if the
 * call is refused with nothing done: for a wrong argument, DIST_ERR_MISMATCH,
 * DIST_ERR_UNSUPPORTED or DIST_ERR_OUT_OF_MEMORY. If the deadline passes before any of the
 * message was transferred, the message returns to matching. A byte string (dist_send_bytes) is
 * received as DIST_U8; the status of the probe has its length.
 *
 * @param message in: the message.
 * @param buf out: a buffer for `count` elements in host memory; borrowed until the work
 *   completes; NULL only if `count` is 0.
 * @param count in: the most elements that the call accepts.
 * @param dtype in: the type of the elements, the same as the sender's.
 * @param status out, optional: as dist_recv.
 * @param options in, optional: as dist_recv.
 * @param work out, optional: as dist_recv.
 * @agree the sender and the receiver agree on the dtype.
 * @blocks as dist_recv.
 * @return as dist_recv; DIST_ERR_MISMATCH if the message is longer than `count` or has another
 *   dtype: then the library writes nothing; DIST_ERR_INVALID_HANDLE also if the group of the
 *   message was released or another call receives the message; DIST_ERR_ABORTED if the sender
 *   withdrew the message because its deadline passed; DIST_ERR_PEER_FAILED if the sender left
 *   before the message was transferred.
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
 * Returns a message of dist_probe to matching, in its old place.
 *
 * The next receive or probe that matches the message finds it.
 *
 * @param message in, optional: the message; the handle is consumed. NULL does nothing.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK, also if the group was released or has failed; DIST_ERR_INVALID_HANDLE if
 *   the message was received or released.
 * @threads any.
 * @since 0.1
 */
dist_status_t dist_message_release(struct dist_message_t *message);

/**
 * Sends one message and receives another at the same time.
 *
 * Both directions go on at once, so a ring of ranks that all call it does not deadlock,
 * whatever the size. The two buffers may overlap or be equal: the message that arrives does
 * not overwrite elements that are not sent yet. For this the library needs memory of the size
 * of the message that arrives. The messages are matched as those of dist_send and dist_recv.
 * With a work, dist_work_source, dist_work_tag and dist_work_received_count describe the
 * receive. Both buffers are in host memory.
 *
 * @param group in: the group.
 * @param send in: `send_count` elements; borrowed until the work completes; NULL only if
 *   `send_count` is 0.
 * @param send_count in: the number of elements to send.
 * @param dest in: the receiver, a rank of the group, this rank included.
 * @param send_tag in: 0 or more.
 * @param recv out: a buffer for `recv_count` elements; borrowed until the work completes; NULL
 *   only if `recv_count` is 0.
 * @param recv_count in: the most elements that the call accepts.
 * @param source in: the sender, a rank of the group, or DIST_ANY_SOURCE.
 * @param recv_tag in: 0 or more, or DIST_ANY_TAG.
 * @param dtype in: the type of the elements of both messages.
 * @param status out, optional: as dist_recv, of the message that arrives.
 * @param options in, optional: as dist_send; DIST_CALL_SYNCHRONOUS is for the send.
 * @param work out, optional: as dist_send; the work is that of both messages.
 * @agree each sender and its receiver agree on the tag and the dtype.
 * @blocks until both messages are done, until the deadline at the latest; not with a work and
 *   not inside a batch.
 * @return as dist_send and dist_recv. Once both messages have ended, the error of the receive,
 *   else that of the send.
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
 * Receives the outcome of a work.
 *
 * `status` is DIST_OK or the error. `message` is the error's text ("" for DIST_OK), borrowed for
 * the call. `user` is the pointer that was given with the function. The library calls one such
 * function at a time, on a thread of its own. The function must not throw and must not make calls
 * that block (dist_work_on_complete).
 */
typedef void (*dist_work_fn)(dist_status_t status, const char *message, void *user);

/**
 * Waits until a work is done.
 *
 * Until then the thread may run operations of the work's group. After any result but
 * DIST_IN_PROGRESS, the library no longer uses the operation's buffers. A GPU may use them
 * until dist_work_synchronize has returned DIST_OK.
 *
 * @param work in: the work.
 * @param timeout_ms in: how long to wait; the default is until the operation's own deadline.
 * @agree nothing.
 * @blocks until the work is done, until the time-out at the latest.
 * @return DIST_OK; DIST_IN_PROGRESS if the time-out came first: the operation continues and
 *   its buffers stay borrowed; the operation's error, the same for each call. DIST_ERR_TIMEOUT
 *   always means the operation's own deadline, and is final. DIST_ERR_INVALID_HANDLE.
 *   DIST_ERR_INVALID_ARGUMENT for a wrong time-out; also if the call would wait for a work
 *   whose batch has not ended, or would wait inside a completion callback.
 * @threads any; several threads may wait for one work, any number of times.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_work_wait(dist_work_t *work, int64_t timeout_ms);

/**
 * Waits until a work is done and, for the memory of a GPU, until the device is done as well.
 *
 * An operation over NCCL is done as soon as it is in its stream (`stream` in
 * dist_call_options_t). From then on the caller may put more into that stream, but the buffers
 * stay borrowed until the device is done. For other works this call is dist_work_wait, also
 * if the native back end serves the memory of a GPU.
 *
 * @param work in: the work, also of a batch.
 * @param timeout_ms in: as dist_work_wait.
 * @agree nothing.
 * @blocks until the work and the device are done, until the time-out at the latest.
 * @return as dist_work_wait; for an operation on a device also the failure of its group,
 *   DIST_ERR_TIMEOUT included: then the contents of the buffers that it writes are undefined.
 *   DIST_ERR_INVALID_ARGUMENT for such an operation also inside a completion callback.
 * @threads as dist_work_wait.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_work_synchronize(dist_work_t *work, int64_t timeout_ms);

/**
 * Copies the message of a work's error: "" while it is pending and if it has succeeded.
 *
 * @param work in: the work.
 * @param buf out: as dist_last_error_copy; NULL only if `cap` is 0.
 * @param cap in: as dist_last_error_copy.
 * @agree nothing.
 * @blocks no.
 * @return the bytes that the whole message needs, its terminator included; 0 for an invalid
 *   handle, and if `buf` is NULL and `cap` is not 0.
 * @threads any.
 * @since 0.1
 */
size_t dist_work_error(const dist_work_t *work, char *buf, size_t cap);

/**
 * Returns the sequence number of a work's operation, from 1.
 *
 * Collectives of a group are numbered in the order of their issue, the same on all ranks. The
 * messages of each rank have numbers of their own. A collective on byte strings has two
 * numbers, and the call returns the first. The work of a batch has 1.
 *
 * @param work in: the work.
 * @agree nothing.
 * @blocks no.
 * @return the number; 0 for an invalid handle, and before the work's batch has ended.
 * @threads any.
 * @since 0.1
 */
uint64_t dist_work_sequence(const dist_work_t *work);

/**
 * Returns when a work was issued, in nanoseconds since 1970, as in the flight recorder.
 *
 * It is the time of CLOCK_REALTIME when the recorder began, advanced by the monotonic clock.
 * Later changes of the wall clock do not affect it.
 *
 * @param work in: the work.
 * @agree nothing.
 * @blocks no.
 * @return the time; 0 for an invalid handle, and before the work's batch has ended.
 * @threads any.
 * @since 0.1
 */
uint64_t dist_work_start_ns(const dist_work_t *work);

/**
 * Returns the time from the issue of a work until it was done, or until now, in nanoseconds.
 *
 * @param work in: the work.
 * @agree nothing.
 * @blocks no.
 * @return the time; 0 for an invalid handle, and before the work's batch has ended.
 * @threads any.
 * @since 0.1
 */
uint64_t dist_work_elapsed_ns(const dist_work_t *work);

/**
 * Returns the rank that sent the received message; for a send, the rank that gets it.
 *
 * @param work in: the work.
 * @agree nothing.
 * @blocks no.
 * @return the rank; -1 for an invalid handle, while the work is pending, after an error, and
 *   if the work is no message.
 * @threads any.
 * @since 0.1
 */
int32_t dist_work_source(const dist_work_t *work);

/**
 * Returns how many elements a work has received.
 *
 * It is the number of elements of the message, which may be shorter than the buffer.
 *
 * @param work in: the work.
 * @agree nothing.
 * @blocks no.
 * @return the number; 0 for an invalid handle, while the work is pending, after an error, and
 *   if the work is no receive.
 * @threads any.
 * @since 0.1
 */
size_t dist_work_received_count(const dist_work_t *work);

/**
 * Releases a work.
 *
 * The operation of a pending work continues: its buffers stay borrowed until it is done, and
 * its callbacks are called.
 *
 * @param work in, optional: the work; the handle is consumed. NULL does nothing.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE.
 * @threads any.
 * @since 0.1
 */
dist_status_t dist_work_release(dist_work_t *work);

/**
 * Waits until all works of a list are done.
 *
 * Until then the thread may run operations of the works' groups. For the buffers of each work,
 * and for repeated waits, the rules of dist_work_wait hold.
 *
 * @param works in: `n` works of any groups, borrowed for the call; NULL entries are skipped;
 *   NULL only if `n` is 0.
 * @param n in: the length of the list.
 * @param timeout_ms in: for all works together; the default is until the operations' own
 *   deadlines.
 * @agree nothing.
 * @blocks until all works are done, until the time-out at the latest.
 * @return DIST_OK; DIST_IN_PROGRESS if the time-out came first; once all works are done, the
 *   first error in the order of the list, whose message begins with the index of the work;
 *   DIST_ERR_INVALID_HANDLE, whose message names the index of the wrong handle.
 *   DIST_ERR_INVALID_ARGUMENT for a wrong argument; also if the call would wait for a work
 *   whose batch has not ended, or would wait inside a completion callback.
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
 * If several works are done, the call reports the first in the list. To wait for the next
 * work, put NULL in its place.
 *
 * @param works in: as dist_work_wait_all.
 * @param n in: the length of the list.
 * @param timeout_ms in: how long to wait; the default is until the operations' own deadlines.
 * @param index out: the index of the work that is done; `n` if there is none.
 * @agree nothing.
 * @blocks until a work is done, until the time-out at the latest.
 * @return DIST_OK, also if all entries are NULL; the error of the work at `index`;
 *   DIST_IN_PROGRESS if the time-out came first; DIST_ERR_INVALID_HANDLE and
 *   DIST_ERR_INVALID_ARGUMENT as dist_work_wait_all, with `n` in `index`;
 *   DIST_ERR_INVALID_ARGUMENT also if `index` is NULL.
 * @threads any; several threads may wait for the same works.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_work_wait_any(dist_work_t *const *works,
                                 size_t n,
                                 int64_t timeout_ms,
                                 size_t *index);

/**
 * Registers a function that the library calls once a work is done.
 *
 * If the work is done already, the library calls the function at once, but never inside this
 * call. A work may have several functions. One thread of the library calls the functions of
 * all works, one after the other, in the order in which the works were done. The function must
 * not throw.
 *
 * Inside such a function, calls that may block return DIST_ERR_INVALID_ARGUMENT. These are
 * collectives, messages and dist_batch_end without a work, and waits for pending works. The
 * others are dist_init, dist_finalize, dist_spawn, dist_callbacks_stop, and calls that create,
 * split or shrink groups or use stores. Asynchronous calls are allowed. dist_finalize calls
 * the functions of the world's works before the world is gone, but drops functions that wait
 * behind one that does not return.
 *
 * @param work in: the work; the caller may release it before the function is called.
 * @param function in: called once.
 * @param user in, optional: passed to the function. It stays valid until the function has been
 *   called, withdrawn (dist_work_remove_callback) or dropped (dist_callbacks_stop).
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `function` is NULL;
 *   DIST_ERR_OUT_OF_MEMORY if 1048576 functions are registered and not called; DIST_ERR_SYSTEM
 *   if the thread cannot be started; DIST_ERR_NOT_INITIALIZED after dist_callbacks_stop.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_work_on_complete(dist_work_t *work,
                                    dist_work_fn function,
                                    void *user);

/**
 * Withdraws a function of dist_work_on_complete that has not been called.
 *
 * If a function was registered several times with the same pointer, each call withdraws one
 * registration. After DIST_OK the library does not call the function for this registration,
 * and does not use `user` any more.
 *
 * @param work in: the work.
 * @param function in: the function.
 * @param user in, optional: the pointer that was registered with the function.
 * @agree nothing.
 * @blocks no; it does not wait for a function that is running.
 * @return DIST_OK; DIST_ERR_NOT_FOUND if the function was not registered, has been called or
 *   is running; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `function` is NULL.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_work_remove_callback(dist_work_t *work,
                                        dist_work_fn function,
                                        void *user);

/**
 * Stops completion callbacks, for an interpreter that is about to end.
 *
 * After DIST_OK no callback runs and none is called. The callbacks of works that are done are
 * called first. The callbacks of pending works are dropped, as are all callbacks that have not
 * begun at the time-out. Until dist_callbacks_start, dist_work_on_complete returns
 * DIST_ERR_NOT_INITIALIZED. Works continue, and the library still calls other functions of the
 * caller (of a store, a back end, the log).
 *
 * @param timeout_ms in: how long to wait; the default is 5 seconds.
 * @agree nothing.
 * @blocks until the callbacks have returned and their thread has ended, until the time-out at
 *   the latest.
 * @return DIST_OK; DIST_IN_PROGRESS if a callback or its thread still runs at the time-out:
 *   call again; DIST_ERR_INVALID_ARGUMENT for a wrong time-out, and inside a callback.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_callbacks_stop(int64_t timeout_ms);

/**
 * Allows completion callbacks again after dist_callbacks_stop.
 *
 * Dropped callbacks are not called.
 *
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK, also if callbacks were not stopped.
 * @threads any.
 * @since 0.1
 */
dist_status_t dist_callbacks_start(void);

/**
 * Returns a descriptor that is readable while done works of a group have not been taken.
 *
 * It is for poll, epoll, asyncio and tokio: wait until the descriptor is readable, then call
 * dist_group_take_done until it returns less than `cap`. The library makes progress without
 * further calls.
 *
 * A work counts if it has a handle: the works of collectives, of messages, and of a batch
 * whose calls are all of this group. A batch over several groups counts in none of them, but
 * the works of its calls do. A work that was waited for counts until it is taken or released.
 * dist_work_wait may return for a work shortly before the descriptor reports it.
 *
 * @param group in: the group.
 * @agree nothing.
 * @blocks no.
 * @return the descriptor, above 2, the same for each call; -1 on failure. It is static: the
 *   caller does not read, write or close it. dist_group_release closes it (dist_finalize for
 *   the world): remove it from the event loop before.
 * @threads any.
 * @since 0.1
 */
int32_t dist_group_fd(dist_group_t *group);

/**
 * Takes the works of a group that are done and not yet taken, in the order of completion.
 *
 * It counts works from the first call of dist_group_fd on, and works that were done before and
 * are not released. Once no work is left, the descriptor is not readable.
 *
 * @param group in: the group.
 * @param out out: the handles of these works, as the caller got them; the caller still
 *   releases each of them once; NULL only if `cap` is 0.
 * @param cap in: the capacity of `out`, in handles.
 * @agree nothing.
 * @blocks no.
 * @return the number of handles written; 0 if no work is done, before the first dist_group_fd,
 *   and on failure.
 * @threads any; each work is taken once.
 * @since 0.1
 */
size_t dist_group_take_done(dist_group_t *group, dist_work_t **out, size_t cap);

/**
 * Gives the rank that a work's error names, with its kind of failure and its process.
 *
 * @param work in: the work.
 * @param out out: DIST_CULPRIT_NONE and rank -1 while the work is pending, if it has
 *   succeeded, and if its error names no rank. Set struct_size before the call
 *   (DIST_CULPRIT_INIT).
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE, with DIST_CULPRIT_NONE in `out`;
 *   DIST_ERR_INVALID_ARGUMENT if `out` is NULL or its struct_size is wrong.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_work_culprit(const dist_work_t *work, dist_culprit_t *out);

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
     * The name of the job, the same for all its processes; NULL for none. A file of another job is
     * refused.
     */
    const char *job_id;
    /**
     * Time-out of creating the store and of calls through its handle; the default is 5 minutes.
     * DIST_NO_WAIT is refused.
     */
    int64_t timeout_ms;
} dist_store_file_options_t;

/**
 * Receives bytes from a custom store or a plug-in.
 *
 * `bytes` is borrowed for the call. `sink_arg` is the pointer that was given with the function.
 */
typedef void (*dist_store_sink_fn)(void *sink_arg, const void *bytes, size_t len_bytes);

/**
 * The functions of a custom store (dist_store_custom_create), such as etcd or Redis.
 *
 * The library passes `user` to each function, from any thread and from several at once. Each
 * function returns a status within `timeout_ms` (1 or more, or DIST_WAIT_FOREVER). Keys are
 * terminated strings; values are bytes.
 */
typedef struct dist_store_vtable_t {
    /**
     * sizeof(dist_store_vtable_t).
     */
    size_t struct_size;
    /**
     * Required. Stores a value.
     */
    dist_status_t (*set)(void *user,
                         const char *key,
                         const void *value,
                         size_t len_bytes,
                         int64_t timeout_ms);
    /**
     * Required. Waits until the key exists, then passes its value to `sink(sink_arg, ...)` once
     * before returning.
     */
    dist_status_t (*get)(void *user,
                         const char *key,
                         dist_store_sink_fn sink,
                         void *sink_arg,
                         int64_t timeout_ms);
    /**
     * Required. Adds to a counter in decimal text (a missing counter is 0) and writes the sum.
     */
    dist_status_t (*add)(void *user,
                         const char *key,
                         int64_t amount,
                         int64_t *result,
                         int64_t timeout_ms);
    /**
     * Required. Waits until all keys exist, or returns DIST_ERR_TIMEOUT.
     */
    dist_status_t (*wait)(void *user, const char *const *keys, size_t n, int64_t timeout_ms);
    /**
     * Required. Writes 1 if all keys exist, else 0, without waiting.
     */
    dist_status_t (*check)(void *user,
                           const char *const *keys,
                           size_t n,
                           int32_t *all_present,
                           int64_t timeout_ms);
    /**
     * Required. Removes a key, and writes 1 if the key existed, else 0.
     */
    dist_status_t (*delete_key)(void *user, const char *key, int32_t *deleted, int64_t timeout_ms);
    /**
     * Optional. Called once, after the last use of the store.
     */
    void (*destroy)(void *user);
    /**
     * Optional. Stores `desired` if the value is `expected`, or if the key is missing and
     * `expected` is empty. Then passes the resulting value to the sink once. For a missing key and
     * an `expected` that is not empty, the resulting value is `expected`.
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
     * Optional. Appends bytes to a value; a missing value is created.
     */
    dist_status_t (*append)(void *user,
                            const char *key,
                            const void *value,
                            size_t len_bytes,
                            int64_t timeout_ms);
    /**
     * Optional. Writes the number of keys.
     */
    dist_status_t (*num_keys)(void *user, int64_t *result, int64_t timeout_ms);
    /**
     * Optional. Passes each key to the sink before returning.
     */
    dist_status_t (*list_keys)(void *user,
                               dist_store_sink_fn sink,
                               void *sink_arg,
                               int64_t timeout_ms);
    /**
     * Optional. Appends an item to a queue. Unless all three queue functions are set, the library
     * composes queues of keys.
     */
    dist_status_t (*queue_push)(void *user,
                                const char *queue,
                                const void *item,
                                size_t len_bytes,
                                int64_t timeout_ms);
    /**
     * Optional. Takes the first item of a queue and passes it to the sink once. If the queue is
     * empty: waits if `block` is not 0, else returns DIST_ERR_QUEUE_EMPTY.
     */
    dist_status_t (*queue_pop)(void *user,
                               const char *queue,
                               int32_t block,
                               dist_store_sink_fn sink,
                               void *sink_arg,
                               int64_t timeout_ms);
    /**
     * Optional. Writes the number of items in a queue.
     */
    dist_status_t (*queue_len)(void *user, const char *queue, int64_t *result, int64_t timeout_ms);
} dist_store_vtable_t;

/**
 * Opens a store in a file, and creates the file if it is missing.
 *
 * The processes share a file system with file locks that work across it. Only this user can
 * read and write the file (mode 0600). Releasing the last handle of a process leaves the
 * store; the last process removes the file once `world_size` processes have opened it.
 * Leftovers of an earlier run are an error at once. Such a file belongs to another job or
 * size, was opened by all its processes already, or has users on this host that ended without
 * leaving it. If the disk is full, the storing call returns DIST_ERR_SYSTEM and stores
 * nothing; the store remains usable.
 *
 * After the call, the library refuses calls in a process forked from this one without exec,
 * which would share the locks, and dist_spawn refuses this process.
 *
 * @param path in: the path of the file; borrowed for the call.
 * @param world_size in: how many times the file will be opened; 0 if the number is not known.
 * @param options in, optional: the options; borrowed for the call; NULL for defaults.
 * @param out out: the store; owned by the caller, released with dist_store_release; NULL on
 *   failure.
 * @agree world_size and the job_id of the options.
 * @blocks while other processes lock the file, until timeout_ms at the latest.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT, also in a completion callback;
 *   DIST_ERR_UNSUPPORTED if `options` has a newer field; DIST_ERR_NOT_INITIALIZED in a
 *   forked child; DIST_ERR_MISMATCH if the file is not fit, with its kind, age and owner in
 *   the message; DIST_ERR_TIMEOUT; DIST_ERR_SYSTEM.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_store_file_create(const char *path,
                                     int32_t world_size,
                                     const struct dist_store_file_options_t *options,
                                     dist_store_t **out);

/**
 * Makes a store in the memory of this process, for ranks that are threads.
 *
 * @param out out: the store; owned by the caller, released with dist_store_release; NULL on
 *   failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT; DIST_ERR_NOT_INITIALIZED in a forked child.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_store_hash_create(dist_store_t **out);

/**
 * Makes a store that puts a prefix and "/" before every key of another store.
 *
 * The new handle starts with the time-out of `inner`.
 *
 * @param prefix in: the prefix; borrowed for the call; NULL only if `prefix_len_bytes` is 0.
 * @param prefix_len_bytes in: the length of the prefix; DIST_TERMINATED for a C string.
 * @param inner in: the other store, which the new store keeps alive.
 * @param out out: the store; owned by the caller, released with dist_store_release; NULL on
 *   failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT; DIST_ERR_INVALID_HANDLE;
 *   DIST_ERR_NOT_INITIALIZED in a forked child.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_store_prefix_create(const char *prefix,
                                       size_t prefix_len_bytes,
                                       const dist_store_t *inner,
                                       dist_store_t **out);

/**
 * Makes a second handle on a store.
 *
 * The new handle starts with the time-out of `store`; dist_store_set_timeout changes one
 * handle only.
 *
 * @param store in: the store.
 * @param out out: the handle; owned by the caller, released with dist_store_release; NULL on
 *   failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT; DIST_ERR_INVALID_HANDLE;
 *   DIST_ERR_NOT_INITIALIZED in a forked child.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_store_clone(const dist_store_t *store, dist_store_t **out);

/**
 * Stores a value under a key and replaces an earlier value.
 *
 * The call does not wait for an answer. The store replaces the whole value at once; of several
 * concurrent values, the last to arrive stays. Every later call of this process on the store
 * sees the value, through any handle and thread. Other processes see the value at the latest
 * when the next call of this process that has an answer returns (dist_store_check of no keys
 * is the cheapest). If the connection breaks before that, this next call returns
 * DIST_ERR_CONNECTION, and its message has the number of calls that may be lost. The same
 * holds for dist_store_append, dist_store_multi_set and dist_store_queue_push. On hash and
 * file stores, all processes see the value when the call returns.
 *
 * A key may contain any bytes, zero bytes included. Only a custom store gets keys as C strings
 * and refuses keys with a zero byte. On TCP and file stores, a key has at most 8191 bytes, and
 * a value at most 8 MiB. A call takes at most 131072 keys and 256 MiB in all.
 *
 * @param store in: the store.
 * @param key in: the key; borrowed for the call; NULL only if `key_len_bytes` is 0.
 * @param key_len_bytes in: the length of the key; DIST_TERMINATED for a C string.
 * @param value in: `len_bytes` bytes; borrowed for the call; NULL only if `len_bytes` is 0.
 * @param len_bytes in: the length of the value.
 * @agree nothing.
 * @blocks while the connection to the store is congested or others lock the file, until the
 *   store's time-out at the latest.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT, also in a completion callback;
 *   DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED in a forked child; DIST_ERR_TIMEOUT;
 *   DIST_ERR_CONNECTION if the store cannot be reached; DIST_ERR_SYSTEM if the file cannot be
 *   read or written; the error of a custom store's function.
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
 * Returns the value of a key, and waits until the key exists.
 *
 * The value is one whole value that the key had during the call. With the time-out
 * DIST_NO_WAIT (dist_store_set_timeout), the call checks once.
 *
 * @param store in: the store.
 * @param key in: the key; borrowed for the call; NULL only if `key_len_bytes` is 0.
 * @param key_len_bytes in: the length of the key; DIST_TERMINATED for a C string.
 * @param out out: a blob of one byte string; owned by the caller, released with
 *   dist_blob_release; NULL on failure.
 * @agree nothing.
 * @blocks until the key exists, until the store's time-out at the latest; other threads may
 *   use the store in the meantime.
 * @return as dist_store_set; the message of DIST_ERR_TIMEOUT names the key.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_store_get(dist_store_t *store,
                             const char *key,
                             size_t key_len_bytes,
                             dist_blob_t **out);

/**
 * Adds to a counter and returns the sum.
 *
 * A missing counter is 0. Counters are decimal text of 64-bit integers and wrap around. The
 * call is atomic: no addition is lost. After DIST_ERR_CONNECTION or DIST_ERR_TIMEOUT, the
 * addition may or may not have happened.
 *
 * @param store in: the store.
 * @param key in: the key; borrowed for the call; NULL only if `key_len_bytes` is 0.
 * @param key_len_bytes in: the length of the key; DIST_TERMINATED for a C string.
 * @param amount in: the number to add.
 * @param out out: the sum.
 * @agree nothing.
 * @blocks for a round trip, until the store's time-out at the latest.
 * @return as dist_store_set; DIST_ERR_NOT_A_NUMBER if the value is not a number, and stays
 *   unchanged.
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
 * Replaces the value of a key if the value is `expected`.
 *
 * If the key is missing, the call stores `desired` only if `expected` is empty. The call is
 * atomic: of several callers that expect the same value, one stores its own. After
 * DIST_ERR_CONNECTION or DIST_ERR_TIMEOUT, the value may or may not have been stored.
 *
 * @param store in: the store.
 * @param key in: the key; borrowed for the call; NULL only if `key_len_bytes` is 0.
 * @param key_len_bytes in: the length of the key; DIST_TERMINATED for a C string.
 * @param expected in: `expected_len_bytes` bytes; borrowed for the call; NULL only if the
 *   length is 0.
 * @param expected_len_bytes in: the length of `expected`.
 * @param desired in: `desired_len_bytes` bytes; borrowed for the call; NULL only if the length
 *   is 0.
 * @param desired_len_bytes in: the length of `desired`.
 * @param out out: a blob with the value after the call, or with `expected` if the key is
 *   missing and `expected` is not empty (as in c10d); owned by the caller, released with
 *   dist_blob_release; NULL on failure.
 * @agree nothing.
 * @blocks for a round trip, until the store's time-out at the latest.
 * @return as dist_store_set; DIST_ERR_UNSUPPORTED if a custom store has no such function.
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
 * Each key existed at some time during the call, not necessarily all at once. On a store with
 * queues of its own, a queue that is not empty counts as a key. With DIST_NO_WAIT, the call
 * checks once.
 *
 * @param store in: the store.
 * @param keys in: `n` keys; borrowed for the call; NULL only if `n` is 0.
 * @param key_lens_bytes in, optional: `n` lengths, each as in dist_store_set; NULL for C
 *   strings; borrowed for the call.
 * @param n in: the number of keys.
 * @param timeout_ms in: the default is the store's time-out.
 * @agree nothing.
 * @blocks until all keys exist, until `timeout_ms` at the latest; other threads may use the
 *   store in the meantime.
 * @return as dist_store_set; the message of DIST_ERR_TIMEOUT names the missing keys.
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
 * Reports whether all keys exist now.
 *
 * The call checks all keys at the same time (a custom store: as its function does).
 *
 * @param store in: the store.
 * @param keys in: `n` keys; borrowed for the call; NULL only if `n` is 0.
 * @param key_lens_bytes in, optional: `n` lengths, each as in dist_store_set; NULL for C
 *   strings; borrowed for the call.
 * @param n in: the number of keys.
 * @param all_present out: 1 if all keys exist, else 0.
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
 * Returns the number of keys of the whole store, under all prefixes.
 *
 * The result is the number at some time during the call.
 *
 * @param store in: the store.
 * @param out out: the number of keys.
 * @agree nothing.
 * @blocks for a round trip, until the store's time-out at the latest.
 * @return as dist_store_set; DIST_ERR_UNSUPPORTED if a custom store has no such function.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_store_num_keys(dist_store_t *store, int64_t *out);

/**
 * Returns all keys of a store, in no particular order.
 *
 * A prefix store returns the keys under its prefix, without the prefix. The list is the set of
 * keys at one time during the call (a custom store: as its function does).
 *
 * @param store in: the store.
 * @param out out: a blob with one byte string per key; owned by the caller, released with
 *   dist_blob_release; NULL on failure.
 * @agree nothing.
 * @blocks for a round trip, until the store's time-out at the latest.
 * @return as dist_store_set; DIST_ERR_UNSUPPORTED if the store cannot list keys (an older
 *   torch server, a custom store without the function).
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_store_list_keys(dist_store_t *store, dist_blob_t **out);

/**
 * Removes a key.
 *
 * The call is atomic: of several callers that delete a key, one finds it. Calls that wait for
 * the key continue to wait.
 *
 * @param store in: the store.
 * @param key in: the key; borrowed for the call; NULL only if `key_len_bytes` is 0.
 * @param key_len_bytes in: the length of the key; DIST_TERMINATED for a C string.
 * @param deleted out: 1 if the key existed, else 0.
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
 * Appends bytes to a value; a missing value is created.
 *
 * The call is atomic: the bytes of one call stay together, in the order of arrival. They
 * become visible as in dist_store_set.
 *
 * @param store in: the store.
 * @param key in: the key; borrowed for the call; NULL only if `key_len_bytes` is 0.
 * @param key_len_bytes in: the length of the key; DIST_TERMINATED for a C string.
 * @param value in: `len_bytes` bytes; borrowed for the call; NULL only if `len_bytes` is 0.
 * @param len_bytes in: the number of bytes.
 * @agree nothing.
 * @blocks as dist_store_set.
 * @return as dist_store_set; DIST_ERR_UNSUPPORTED if a custom store has no such function.
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
 * Returns the values of several keys, and waits until all exist.
 *
 * All values are from one time (a custom store: each from its own time).
 *
 * @param store in: the store.
 * @param keys in: `n` keys; borrowed for the call; NULL only if `n` is 0.
 * @param key_lens_bytes in, optional: `n` lengths, each as in dist_store_set; NULL for C
 *   strings; borrowed for the call.
 * @param n in: the number of keys.
 * @param out out: a blob of `n` byte strings in the order of the keys; owned by the caller,
 *   released with dist_blob_release; NULL on failure.
 * @agree nothing.
 * @blocks until all keys exist, until the store's time-out at the latest; other threads may
 *   use the store in the meantime.
 * @return as dist_store_set; the message of DIST_ERR_TIMEOUT names the missing keys.
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
 * Other callers see all of the values or none (a custom store: one after the other), at the
 * time that dist_store_set describes.
 *
 * @param store in: the store.
 * @param keys in: `n` keys; borrowed for the call; NULL only if `n` is 0.
 * @param key_lens_bytes in, optional: `n` lengths, each as in dist_store_set; NULL for C
 *   strings; borrowed for the call.
 * @param values in: `n` values; borrowed for the call; a value is NULL only if its length is
 *   0; the array is NULL only if `n` is 0.
 * @param lens_bytes in: the `n` lengths of the values; borrowed for the call; NULL only if `n`
 *   is 0.
 * @param n in: the number of keys and of values.
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
 * With DIST_NO_WAIT, calls that wait for others (dist_store_get, dist_store_wait,
 * dist_store_multi_get, dist_store_queue_pop) check once, and return DIST_ERR_TIMEOUT if the
 * key or item is missing. The time-out of other calls is then 5 minutes; dist_store_barrier
 * needs a time-out of its own.
 *
 * @param store in: the store.
 * @param timeout_ms in: the default is 5 minutes.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT; DIST_ERR_INVALID_HANDLE;
 *   DIST_ERR_NOT_INITIALIZED in a forked child.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_store_set_timeout(dist_store_t *store, int64_t timeout_ms);

/**
 * Returns the time-out of calls through this handle in milliseconds.
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
 * Returns the port of a TCP store.
 *
 * A prefix store returns the port of its inner store.
 *
 * @param store in: the store.
 * @agree nothing.
 * @blocks no.
 * @return the port; -1 for a store without a port and for an invalid handle.
 * @threads any.
 * @since 0.1
 */
int32_t dist_store_port(const dist_store_t *store);

/**
 * Copies the host of a TCP store.
 *
 * A prefix store has the host of its inner store.
 *
 * @param store in: the store.
 * @param buf out: the terminated name, truncated to fit; NULL only if `cap` is 0.
 * @param cap in: the size of `buf` in bytes.
 * @agree nothing.
 * @blocks no.
 * @return the size of the whole name in bytes with its terminator; 0 for a store without a
 *   host, for an invalid handle, and if `buf` is NULL and `cap` is not 0.
 * @threads any.
 * @since 0.1
 */
size_t dist_store_host(const dist_store_t *store, char *buf, size_t cap);

/**
 * Releases a store handle.
 *
 * The store lives as long as groups, prefix stores or other handles use it. When the last of
 * them is gone, the process that hosts the store stops serving.
 *
 * @param store in, optional: the handle; NULL does nothing.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED in a forked child.
 * @threads any.
 * @since 0.1
 */
dist_status_t dist_store_release(dist_store_t *store);

/**
 * Appends an item to a queue.
 *
 * Queues and keys are separate: one name may be both. Only dist_store_wait and the queue
 * functions see queues. Any number of processes may push and pop concurrently; items keep the
 * order of their arrival and become visible as in dist_store_set.
 *
 * @param store in: the store.
 * @param key in: the name of the queue; borrowed for the call; NULL only if `key_len_bytes` is
 *   0.
 * @param key_len_bytes in: the length of the name of the queue; DIST_TERMINATED for a C
 *   string.
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
 * Each item goes to one caller. A TCP store serves waiting callers in the order of their
 * calls. If a caller dies before it has the item, the next caller gets the item. After
 * DIST_ERR_CONNECTION, the item may be lost.
 *
 * @param store in: the store.
 * @param key in: the name of the queue; borrowed for the call; NULL only if `key_len_bytes` is
 *   0.
 * @param key_len_bytes in: the length of the name of the queue; DIST_TERMINATED for a C
 *   string.
 * @param block in: 0 to check once; any other number to wait for an item.
 * @param out out: a blob of one byte string; owned by the caller, released with
 *   dist_blob_release; NULL on failure.
 * @agree nothing.
 * @blocks if `block` is not 0: until there is an item, until the store's time-out at the
 *   latest.
 * @return as dist_store_set; DIST_ERR_QUEUE_EMPTY if `block` is 0 and the queue is empty; the
 *   message of DIST_ERR_TIMEOUT names the queue.
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
 * Returns the number of items in a queue; 0 for a queue that was never used.
 *
 * The result is the number at some time during the call.
 *
 * @param store in: the store.
 * @param key in: the name of the queue; borrowed for the call; NULL only if `key_len_bytes` is
 *   0.
 * @param key_len_bytes in: the length of the name of the queue; DIST_TERMINATED for a C
 *   string.
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
 * Waits until `world_size` callers have called the barrier.
 *
 * No caller returns before `world_size` calls have been made. A key serves one barrier: later
 * callers return at once. A caller that timed out still counts. All callers use the same kind
 * of store: the barrier of a prefix store and the barrier of its inner store are different.
 *
 * @param store in: the store.
 * @param key in: the key; borrowed for the call; NULL only if `key_len_bytes` is 0.
 * @param key_len_bytes in: the length of the key; DIST_TERMINATED for a C string.
 * @param world_size in: the number of callers, 0 or more; with 0 the call returns at once.
 * @param timeout_ms in: the default is the store's time-out; DIST_NO_WAIT is refused, also as
 *   the store's.
 * @agree the key and world_size.
 * @blocks until all callers have called, until `timeout_ms` at the latest; other threads may
 *   use the store in the meantime.
 * @return as dist_store_set; the message of DIST_ERR_TIMEOUT has the number of callers so far.
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
 * Makes a store from functions of the caller.
 *
 * Barriers are composed of keys, and so are queues unless all three queue functions are set.
 * Without their functions, dist_store_compare_set, _append, _num_keys and _list_keys return
 * DIST_ERR_UNSUPPORTED.
 *
 * @param functions in: the functions, copied; the required functions must be set.
 * @param user in, optional: passed to each function; must stay valid until `destroy` was
 *   called.
 * @param out out: the store; owned by the caller, released with dist_store_release; NULL on
 *   failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT, with the name of a missing function in the
 *   message; DIST_ERR_UNSUPPORTED if `functions` has a newer field; DIST_ERR_NOT_INITIALIZED
 *   in a forked child.
 * @threads any.
 * @since 0.1
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
 * Allocates memory for buffers that other ranks of the host can access without a copy.
 *
 * All calls accept this memory, in any group and on any thread, like all other memory. The
 * contents are undefined. The memory begins at a multiple of 64 bytes, or of 2 MiB from that
 * size on. All of it is resident when the call returns, on the NUMA node of the calling
 * thread. Small allocations share pieces of 2 MiB, which the library takes from the system and
 * gives back.
 *
 * The rest holds for host memory of the native back end. In a group on one host,
 * dist_all_reduce, dist_all_gather, dist_reduce_scatter and dist_all_to_all read such buffers
 * in place. The inputs of all ranks must be such memory, for dist_all_reduce the results too,
 * and the call must not choose an algorithm. The vector or block must have at least 4 KiB, or
 * 64 KiB if the host has fewer cores than ranks. The other ranks map the whole segment of this
 * process, if the system permits it.
 *
 * After a failed dist_all_reduce, a rank that was stopped may still change up to 16 KiB of the
 * result. Free this memory and allocate new memory; the library does not return memory in
 * this state again. A forked child shares the memory and must not use it.
 *
 * @param group in: the group; its back end chooses the kind of memory.
 * @param bytes in: the size; 0 gives NULL.
 * @param device in: DIST_DEVICE_HOST, or the number of the group's GPU on this rank. From NCCL
 *   2.19 on, NCCL allocates and registers GPU memory, which makes some of its operations
 *   faster. Else the memory is from cuMemAlloc.
 * @param ptr out: the memory, owned by the caller, released with dist_mem_free, also after the
 *   group's end; NULL on failure.
 * @agree nothing; for GPU memory in a group with nccl.windows=1 the order of calls and
 *   `bytes`.
 * @blocks no; for GPU memory in a group with nccl.windows=1 until all ranks have called.
 * @return DIST_OK; DIST_ERR_OUT_OF_MEMORY (the message has the requested and the available
 *   size); DIST_ERR_UNSUPPORTED if the back end has no memory of this kind;
 *   DIST_ERR_INVALID_ARGUMENT if `device` is less than DIST_DEVICE_HOST or `ptr` is
 *   NULL; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED; DIST_ERR_SYSTEM; DIST_ERR_BACKEND
 *   if the GPU or NCCL failed.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_mem_alloc(const dist_group_t *group,
                             size_t bytes,
                             int32_t device,
                             void **ptr);

/**
 * Frees memory of dist_mem_alloc.
 *
 * No operation may use the memory any more. The call works also after the group's release and
 * after dist_finalize.
 *
 * @param ptr in, optional: the pointer of dist_mem_alloc; NULL does nothing.
 * @agree nothing.
 * @blocks no; for GPU memory until the device has done the work given to it.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if `ptr` is not the start of allocated memory, or
 *   was freed before.
 * @threads any.
 * @since 0.1
 */
dist_status_t dist_mem_free(void *ptr);

/**
 * Tells a group about memory that its calls will use often.
 *
 * A back end may prepare for such memory. In this version the library only records it. Calls
 * accept all memory, registered or not. Several groups may register the same memory.
 *
 * @param group in: the group.
 * @param ptr in: the start of the memory; borrowed until dist_mem_deregister or the group's
 *   end.
 * @param bytes in: the size, more than 0.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if `ptr` is NULL, if `bytes` is 0 or exceeds the
 *   address space, or if the memory overlaps with registered memory of the group;
 *   DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_mem_register(dist_group_t *group, void *ptr, size_t bytes);

/**
 * Ends a registration of dist_mem_register.
 *
 * No operation may use the memory any more.
 *
 * @param group in: the group of the registration.
 * @param ptr in: the pointer of the registration.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if no registered memory of the group begins at
 *   `ptr`; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_mem_deregister(dist_group_t *group, void *ptr);

/*
 * Training
 *
 * What data-parallel trainers share.
 */

/**
 * In `flags`: the sampler gives the indices in ascending order, the same in each epoch.
 */
#define DIST_SAMPLER_IN_ORDER 1

/**
 * In `flags`: the sampler drops the last samples if the ranks cannot share them evenly.
 *
 * Without it, samples from the beginning of the list are used twice.
 */
#define DIST_SAMPLER_DROP_LAST 2

/**
 * In `flags`: the parameter has no gradient.
 */
#define DIST_PARAM_FROZEN 1

/**
 * In `flags`: the parameter is no weight but state of a layer, such as a running mean.
 *
 * It has no gradient.
 */
#define DIST_PARAM_BUFFER 2

/**
 * In `flags`: the gradient consists of some rows of the parameter, as that of an embedding.
 *
 * The first extent of `shape` is the number of rows. `grad` is NULL, and the rows are passed to
 * dist_reducer_ready_rows.
 */
#define DIST_PARAM_SPARSE_ROWS 4

/**
 * In `divide`: the sum of the gradients is divided by the number of ranks that have data.
 */
#define DIST_DIVIDE_WORLD 0

/**
 * In `divide`: the gradients are added and not divided.
 */
#define DIST_DIVIDE_NONE 1

/**
 * In `divide`: the sum is divided by the number of ranks with which the reducer was created.
 */
#define DIST_DIVIDE_INITIAL 2

/**
 * In `divide`: each rank's gradients are multiplied by its weight (dist_reducer_begin), and the
 * sum is divided by the weights of all ranks together.
 */
#define DIST_DIVIDE_WEIGHTED 3

/**
 * In `missing`: if a rank does not mark a parameter, the step fails on all ranks.
 */
#define DIST_MISSING_ERROR 0

/**
 * In `missing`: a rank that does not mark a parameter contributes zeros and gets the
 * result.
 */
#define DIST_MISSING_ZERO 1

/**
 * In `missing`: as DIST_MISSING_ZERO, but a parameter that no rank marked keeps its
 * gradient.
 */
#define DIST_MISSING_SKIP 2

/**
 * In `flags`: results do not overwrite gradients, so that a step can be repeated after a
 * failure (dist_reducer_regroup). It takes as much memory again as the gradients.
 */
#define DIST_REDUCER_RETRYABLE 1

/**
 * In `flags`: gradients are added in the order of ranks, so that the result does not depend
 * on which ranks share a host.
 */
#define DIST_REDUCER_CANONICAL 2

/**
 * In `flags`: the buckets stay as they are in the first step.
 */
#define DIST_REDUCER_FIXED_LAYOUT 4

/**
 * In `flags`: gradients in memory of the reducer may move once, when the first step ends.
 *
 * Without this flag, the buckets of a reducer with such gradients stay as they are.
 */
#define DIST_REDUCER_MOVE_GRADS 8

/**
 * In `flags`: all steps use the same parameters and mark each of them equally often.
 *
 * A gradient counts as complete with its last mark, and parameters that the first step did not use
 * are not waited for. The buckets of the first step are sent at its end. The first step is the
 * first one that no rank votes against.
 */
#define DIST_REDUCER_STATIC_GRAPH 16

/**
 * In `flags`: buffers are broadcast at the beginning of each step that communicates.
 */
#define DIST_REDUCER_BROADCAST_BUFFERS 32

/**
 * In `flags`: ranks may run out of data at different steps (dist_reducer_join).
 */
#define DIST_REDUCER_UNEVEN 64

/**
 * In `flags`: dist_reducer_create does not broadcast parameters and buffers.
 */
#define DIST_REDUCER_NO_BROADCAST 128

/**
 * In `flags`: each bucket is reduced by a reduce_scatter, so that a rank has the results of
 * its own elements only (dist_shard_ranges). The buckets stay as they are.
 *
 * Not with DIST_REDUCER_RETRYABLE, hooks, sparse rows or device memory.
 */
#define DIST_REDUCER_SHARDED 256

/**
 * In `flags`, with DIST_REDUCER_SHARDED: gradients in memory of the reducer have a place
 * only while they are computed (ZeRO-2), so that a few buckets have memory at a time.
 *
 * Ask for the place with dist_reducer_grad inside each step, before the gradient is computed. It
 * is not filled with zeros, and valid until the parameter is marked. The call waits while many
 * other buckets are reduced.
 */
#define DIST_REDUCER_SHARE_GRADS 512

/**
 * For `flags` of dist_reducer_begin: the step does not communicate.
 *
 * The gradients stay on this rank, and the caller adds those of the next step to them.
 */
#define DIST_STEP_NO_SYNC 1

/**
 * For `vote` of dist_reducer_end: this rank agrees with the step.
 */
#define DIST_VOTE_COMMIT 0

/**
 * For `vote` of dist_reducer_end: a gradient of this rank is infinite or NaN.
 */
#define DIST_VOTE_NON_FINITE 1

/**
 * For `vote` of dist_reducer_end: this rank leaves the step out.
 */
#define DIST_VOTE_SKIP 2

/**
 * For `vote` of dist_reducer_end: this rank could not compute its gradients.
 */
#define DIST_VOTE_ERROR 4

/**
 * For `what`: the values of parameters.
 */
#define DIST_REDUCER_PARAMS 1

/**
 * For `what`: buffers.
 */
#define DIST_REDUCER_BUFFERS 2

/**
 * For `what` of dist_reducer_check: reduced gradients.
 */
#define DIST_REDUCER_GRADS 4

/**
 * Lets ranks train on their own for many steps between two agreements (local SGD, DiLoCo).
 *
 * Owned by the caller, released with dist_outer_release. One thread at a time calls its functions.
 */
typedef struct dist_outer_t dist_outer_t;

/**
 * Averages the gradients of a model over the ranks of a group while they are computed.
 *
 * Owned by the caller, released with dist_reducer_release. Any thread may mark gradients; one
 * thread at a time calls the other functions. Calls that communicate have the same order on all
 * ranks.
 */
typedef struct dist_reducer_t dist_reducer_t;

/**
 * Gives a rank its share of the indices of a data set, epoch by epoch.
 *
 * Owned by the caller, released with dist_sampler_release. Any thread may use it.
 */
typedef struct dist_sampler_t dist_sampler_t;

/**
 * Shares the state of an optimizer over the ranks of a reducer (ZeRO-1 and ZeRO-2).
 *
 * Owned by the caller, released with dist_shard_release. One thread at a time calls its functions.
 */
typedef struct dist_shard_t dist_shard_t;

/**
 * Describes a parameter of a model.
 */
typedef struct dist_param_t {
    /**
     * sizeof(dist_param_t).
     */
    size_t struct_size;
    /**
     * The set fields with a meaningful zero: DIST_FIELD_DEVICE.
     */
    uint64_t fields;
    /**
     * A name of one line that no other parameter of the reducer has; required.
     */
    const char *name;
    /**
     * The values of the parameter, `count` elements of `dtype`; NULL only if `count` is 0.
     */
    void *data;
    /**
     * The caller's gradient, `count` elements of `grad_dtype`. If NULL, the reducer provides the
     * memory (dist_reducer_grad), and gradients are reduced without copies.
     */
    void *grad;
    /**
     * The extent of each dimension; optional, borrowed for the call.
     */
    const int64_t *shape;
    /**
     * The number of dimensions.
     */
    size_t n_shape;
    /**
     * The number of elements.
     */
    size_t count;
    /**
     * The element type of the values.
     */
    dist_dtype_t dtype;
    /**
     * The element type of the gradient; 0 for that of the values.
     */
    dist_dtype_t grad_dtype;
    /**
     * The index of the device whose memory has the values and the gradient, with
     * DIST_FIELD_DEVICE in `fields`; else host memory.
     */
    int32_t device;
    /**
     * Must be 0.
     */
    int32_t reserved;
    /**
     * The sum of DIST_PARAM_ constants; or 0.
     */
    uint64_t flags;
    /**
     * Parameters of different tags never share a bucket, for instance those of different layers.
     */
    uint64_t tag;
} dist_param_t;

/**
 * Updates the global values of a parameter, `count` elements of each array.
 *
 * `pseudo_grad` is the mean over the ranks of the global values less those of the rank.
 * `state` is memory of the function's own, zeros at first. The function computes the same
 * bits on all ranks. It must not throw and must not call libdist. `user` is that of the options.
 */
typedef void (*dist_outer_fn)(size_t param,
                              float *global,
                              const float *pseudo_grad,
                              float *state,
                              size_t count,
                              void *user);

/**
 * Options of dist_outer_create.
 */
typedef struct dist_outer_options_t {
    /**
     * sizeof(dist_outer_options_t).
     */
    size_t struct_size;
    /**
     * The number of steps between two agreements on the same parameters; required.
     */
    uint64_t every;
    /**
     * In how many parts the parameters are agreed on, at different steps; 0 for 1. Not above
     * `every` and the number of parameters.
     */
    size_t fragments;
    /**
     * "nesterov" or NULL, "sgd", or "average": the global values become the mean of the ranks'.
     * With `function`, its name. Borrowed for the call.
     */
    const char *optimizer;
    /**
     * The learning rate of the optimizer; 0 for 0.7.
     */
    double learning_rate;
    /**
     * The momentum of "nesterov"; 0 for 0.9.
     */
    double momentum;
    /**
     * An optimizer of the caller's; optional.
     */
    dist_outer_fn function;
    /**
     * Passed to `function`; valid until dist_outer_release.
     */
    void *user;
    /**
     * The deadline of each operation in milliseconds; 0 for the group's, DIST_WAIT_FOREVER for
     * none.
     */
    int64_t timeout_ms;
    /**
     * How distances are reduced, as in dist_reducer_options_t; not "none".
     */
    const char *hook;
    /**
     * Settings of the hook, as in dist_reducer_options_t.
     */
    const char *hook_settings;
    /**
     * The name of the model in the log; optional, borrowed for the call.
     */
    const char *name;
} dist_outer_options_t;

/**
 * Figures of an outer optimizer on this rank.
 */
typedef struct dist_outer_stats_t {
    /**
     * sizeof(dist_outer_stats_t).
     */
    size_t struct_size;
    /**
     * The calls of dist_outer_step, without repetitions.
     */
    uint64_t steps;
    /**
     * How often the ranks have agreed on a fragment.
     */
    uint64_t updates;
    /**
     * How often a rank voted against a fragment, so that all went back.
     */
    uint64_t restores;
    /**
     * The bytes that were reduced.
     */
    uint64_t bytes_reduced;
    /**
     * How many of these bytes a hook did not have to send.
     */
    uint64_t bytes_saved;
    /**
     * How long operations ran, together.
     */
    uint64_t communication_ns;
} dist_outer_stats_t;

/**
 * A bucket whose gradients are reduced; valid during the function of dist_reducer_on_bucket.
 */
typedef struct dist_bucket_t {
    /**
     * sizeof(dist_bucket_t).
     */
    size_t struct_size;
    /**
     * The position of the bucket, from 0.
     */
    size_t index;
    /**
     * The number of buckets.
     */
    size_t n_buckets;
    /**
     * The reduced gradients, one after the other with gaps; NULL if they are the caller's own, and
     * with DIST_REDUCER_SHARDED.
     */
    void *data;
    /**
     * The number of elements of `data`, gaps included.
     */
    size_t count;
    /**
     * The element type.
     */
    dist_dtype_t dtype;
    /**
     * Must be 0.
     */
    int32_t reserved;
    /**
     * The indices of the parameters.
     */
    const size_t *params;
    /**
     * Where the gradient of each begins in `data`, in elements; NULL if `data` is.
     */
    const size_t *offsets;
    /**
     * The number of parameters.
     */
    size_t n_params;
    /**
     * The number of the step, from 0.
     */
    uint64_t step;
} dist_bucket_t;

/**
 * Reduces a bucket: replaces `data` of it by the sum over all ranks, the same bits on all of them.
 *
 * The gradients in `data` are this rank's, multiplied by its factor: the sum is the result. The
 * function communicates with any calls on `group`, which has the ranks of the reducer's group and
 * is lent for the call. It may block. The library calls it with one bucket after the other, in the
 * same order on all ranks, on the calling thread of dist_reducer_end or on a thread of its own.
 *
 * `bytes_sent` is the number of bytes of `data`; a function that sends another number of bytes
 * stores it there, for `bytes_saved` of dist_reducer_stats_t. `user` is `hook_user` of the
 * options. An error that it returns fails the group. It must not throw, and must not call
 * functions of the reducer.
 */
typedef dist_status_t (*dist_hook_fn)(dist_group_t *group,
                                      const struct dist_bucket_t *bucket,
                                      uint64_t *bytes_sent,
                                      void *user);

/**
 * Options of dist_reducer_create.
 */
typedef struct dist_reducer_options_t {
    /**
     * sizeof(dist_reducer_options_t).
     */
    size_t struct_size;
    /**
     * The sum of DIST_REDUCER_ constants; or 0.
     */
    uint64_t flags;
    /**
     * A bucket is sent once it has so many bytes; 0 for what suits the transport: 1 MiB for host
     * memory, 25 MiB for device memory.
     */
    size_t bucket_bytes;
    /**
     * The same for the first bucket of each element type, device and tag; 0 for the smaller of
     * `bucket_bytes` and 1 MiB.
     */
    size_t first_bucket_bytes;
    /**
     * One of the DIST_DIVIDE_ constants.
     */
    int32_t divide;
    /**
     * One of the DIST_MISSING_ constants.
     */
    int32_t missing;
    /**
     * The deadline of each operation in milliseconds; 0 for the group's, DIST_WAIT_FOREVER for
     * none.
     */
    int64_t timeout_ms;
    /**
     * A layout from dist_reducer_layout, of this job or another one; optional, borrowed for the
     * call.
     */
    const void *layout;
    /**
     * The length of the layout.
     */
    size_t layout_bytes;
    /**
     * The name of the model in the log; optional, borrowed for the call.
     */
    const char *name;
    /**
     * The CUDA stream in which gradients on a device are computed, valid until
     * dist_reducer_release; NULL for the device's default stream. With a stream, the gradients are
     * reduced in its order after dist_reducer_end, else when that returns.
     */
    void *stream;
    /**
     * How buckets in host memory are reduced: "all_reduce" or NULL; "f16", "bf16", "int8" or
     * "powersgd", which send fewer bytes; "none", which sends nothing: each rank keeps its own
     * gradients. With `hook_function`, its name. Sparse gradients have no hook. Borrowed for the
     * call.
     */
    const char *hook;
    /**
     * Settings of the hook, as name=value;name=value; optional, borrowed for the call.
     *
     * int8: block, the number of elements that share a scale (256). powersgd: rank (1); start, the
     * first step with compression (10); min_ratio, the minimum compression of a gradient (2). Also
     * of powersgd: warm, 0 to begin without the last factors; feedback, 0 to discard the error of
     * the compression. The settings of `hook_function` are its own: the ranks compare them.
     */
    const char *hook_settings;
    /**
     * A function that reduces buckets; optional.
     */
    dist_hook_fn hook_function;
    /**
     * Passed to `hook_function`; valid until the reducer is released.
     */
    void *hook_user;
} dist_reducer_options_t;

/**
 * Figures of a reducer.
 */
typedef struct dist_reducer_stats_t {
    /**
     * sizeof(dist_reducer_stats_t).
     */
    size_t struct_size;
    /**
     * The number of steps with communication that have ended.
     */
    uint64_t steps;
    /**
     * Of the last step: the number of buckets.
     */
    uint64_t n_buckets;
    /**
     * Of the last step: the bytes that were reduced.
     */
    uint64_t bytes_reduced;
    /**
     * Of the last step: how many of these bytes a hook did not have to send.
     */
    uint64_t bytes_saved;
    /**
     * Of the last step: the bytes that were copied between gradients, buckets and results.
     */
    uint64_t bytes_copied;
    /**
     * Of the last step: the time from the first mark to the last one.
     */
    uint64_t first_ready_to_last_ready_ns;
    /**
     * Of the last step: how long its operations ran, together.
     */
    uint64_t communication_ns;
    /**
     * Of the last step: how long dist_reducer_end waited.
     */
    uint64_t exposed_ns;
    /**
     * Of the last step: the time from its beginning to its end.
     */
    uint64_t step_ns;
    /**
     * How often the layout changed.
     */
    uint64_t rebuilds;
    /**
     * How often a step was repeated or its end taken from another rank.
     */
    uint64_t retries;
} dist_reducer_stats_t;

/**
 * Called with each bucket whose gradients are reduced.
 */
typedef void (*dist_bucket_fn)(const struct dist_bucket_t *bucket, void *user);

/**
 * Options of dist_shard_create.
 */
typedef struct dist_shard_options_t {
    /**
     * sizeof(dist_shard_options_t).
     */
    size_t struct_size;
    /**
     * The names of the optimizer's states, for instance "m" and "v"; borrowed for the call.
     */
    const char *const *states;
    /**
     * The number of states, 64 at most.
     */
    size_t n_states;
    /**
     * How many ranks update each element; 0 for 1. With 2, the death of a rank loses no state. Not
     * above 1 with DIST_REDUCER_SHARDED.
     */
    int32_t copies;
    /**
     * Must be 0.
     */
    int32_t reserved;
    /**
     * The deadline of each operation in milliseconds; 0 for the group's, DIST_WAIT_FOREVER for
     * none.
     */
    int64_t timeout_ms;
} dist_shard_options_t;

/**
 * Elements of one parameter that this rank updates.
 */
typedef struct dist_shard_range_t {
    /**
     * sizeof(dist_shard_range_t).
     */
    size_t struct_size;
    /**
     * The index of the parameter.
     */
    size_t param;
    /**
     * The first element, in the parameter.
     */
    size_t begin;
    /**
     * The number of elements.
     */
    size_t count;
    /**
     * The bucket that has their gradients (dist_reducer_on_bucket).
     */
    size_t bucket;
    /**
     * Where the range begins in each state, in elements.
     */
    size_t offset;
    /**
     * The values of the elements, of the parameter's type.
     */
    void *data;
    /**
     * Their reduced gradients after dist_reducer_end, of the gradient's type.
     */
    void *grad;
} dist_shard_range_t;

/**
 * Options of dist_sampler_create.
 */
typedef struct dist_sampler_options_t {
    /**
     * sizeof(dist_sampler_options_t).
     */
    size_t struct_size;
    /**
     * The set fields with a meaningful zero: DIST_FIELD_RANK.
     */
    uint64_t fields;
    /**
     * The number of ranks that share the data set; 0 for the number of ranks of the group.
     */
    int32_t num_replicas;
    /**
     * The rank whose indices the sampler gives, with DIST_FIELD_RANK in `fields`; else the rank in
     * the group.
     */
    int32_t rank;
    /**
     * The seed of the shuffle, the same on all ranks.
     */
    uint64_t seed;
    /**
     * The sum of DIST_SAMPLER_ constants; or 0.
     */
    uint64_t flags;
} dist_sampler_options_t;

/**
 * Creates an outer optimizer, for ranks that train on their own for many steps.
 *
 * All ranks get the parameters of rank 0, which become the global values. A rank trains with
 * an optimizer of its own, without communication, and calls dist_outer_step after each step. A
 * rank that creates an outer optimizer while the other ranks call dist_outer_regroup joins
 * them.
 *
 * @param group in: the group. The outer optimizer does not keep it.
 * @param params in: `n_params` parameters of f16, bf16, f32 or f64 in host memory, as for
 *   dist_reducer_create; gradients are not used. Frozen parameters and buffers stay each
 *   rank's own. The values are borrowed until dist_outer_release. NULL only if `n_params` is
 *   0.
 * @param n_params in: the number of parameters.
 * @param options in: the options; borrowed for the call.
 * @param out out: the outer optimizer, owned by the caller, released with dist_outer_release;
 *   NULL on failure.
 * @agree the parameters but for their addresses, in the same order; the options but for
 *   `timeout_ms` and `name`.
 * @blocks until all ranks have called, until the deadlines of its operations at the latest.
 * @return DIST_OK. With nothing done: DIST_ERR_INVALID_ARGUMENT, also inside a completion
 *   callback; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED; DIST_ERR_UNSUPPORTED for
 *   parameters of other types or in device memory. DIST_ERR_MISMATCH on all ranks if
 *   parameters or options differ. The errors of dist_all_gather_bytes and dist_broadcast.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_outer_create(dist_group_t *group,
                                const struct dist_param_t *params,
                                size_t n_params,
                                const struct dist_outer_options_t *options,
                                struct dist_outer_t **out);

/**
 * Records that this rank has made a step of its own.
 *
 * If a fragment is due, the ranks agree on it. If no rank votes against it, the optimizer
 * updates the global values of the fragment with the mean distance of the ranks. In both cases
 * the fragment's parameters of every rank become the global values: after a vote against it
 * these are the former ones.
 *
 * @param outer in: the outer optimizer.
 * @param vote in: DIST_VOTE_COMMIT, or as for dist_reducer_end. Counts if a fragment is due.
 * @param fragment out, optional: the index of the fragment that was due, or -1; not written on
 *   failure.
 * @param all_votes out, optional: the votes of all ranks, combined by bitwise or; 0 if no
 *   fragment was due; not written on failure.
 * @agree the number of calls.
 * @blocks if a fragment is due: until all ranks have called, until the deadlines of its
 *   operations at the latest.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT inside a completion callback;
 *   DIST_ERR_INVALID_HANDLE, also if the group was released; the errors of dist_all_reduce.
 *   After a failure: dist_group_shrink, dist_outer_regroup, and the same call again, which
 *   counts no further step.
 * @threads one at a time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_outer_step(struct dist_outer_t *outer,
                              uint64_t vote,
                              int64_t *fragment,
                              uint64_t *all_votes);

/**
 * Goes on in another group, for instance in that of dist_group_shrink.
 *
 * @param outer in: the outer optimizer.
 * @param group in: the new group.
 * @agree all ranks of the new group call it, or dist_outer_create with the same parameters and
 *   options.
 * @blocks until all ranks have called, until the deadlines of its operations at the latest.
 * @return as dist_reducer_regroup.
 * @threads one at a time.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_outer_regroup(struct dist_outer_t *outer, dist_group_t *group);

/**
 * Gives the global values of a parameter and the state of the optimizer.
 *
 * @param outer in: the outer optimizer.
 * @param param in: the index of the parameter.
 * @param global out: the global values; owned by the outer optimizer, valid until
 *   dist_outer_release; NULL on failure.
 * @param state out, optional: the optimizer's state, valid as long; NULL on failure and if the
 *   optimizer has none.
 * @param count out, optional: the number of elements; not written on failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if the parameter does
 * not
 *   exist, is frozen or is a buffer.
 * @threads one at a time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_outer_values(struct dist_outer_t *outer,
                                size_t param,
                                float **global,
                                float **state,
                                size_t *count);

/**
 * Gives the global values, the states and the number of steps, for a checkpoint.
 *
 * They are the same on all ranks. The parameters of this rank, if it has made steps of its own
 * since the last agreement, are the caller's to save.
 *
 * @param outer in: the outer optimizer.
 * @param out out: one byte string, owned by the caller, released with dist_blob_release; NULL
 * on
 *   failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if dist_outer_step has
 *   failed and was not repeated; DIST_ERR_OUT_OF_MEMORY.
 * @threads one at a time.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_outer_save(struct dist_outer_t *outer, dist_blob_t **out);

/**
 * Takes what dist_outer_save has given, from one rank to all.
 *
 * The parameters of all ranks become the global values.
 *
 * @param outer in: the outer optimizer, with the same parameters and options.
 * @param bytes in: at the root the byte string of dist_outer_save; borrowed for the call; not
 *   used on other ranks.
 * @param len_bytes in: its length.
 * @param root in: the rank that has it.
 * @agree the order of calls on the group, and root.
 * @blocks until all ranks have called, until the deadlines of its operations at the latest.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT, on all ranks if the byte string has another form
 *   or other parameters; also inside a completion callback; DIST_ERR_INVALID_HANDLE, also if
 *   the group was released; the errors of dist_broadcast_bytes.
 * @threads one at a time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_outer_load(struct dist_outer_t *outer,
                              const void *bytes,
                              size_t len_bytes,
                              int32_t root);

/**
 * Gives figures since the creation.
 *
 * @param outer in: the outer optimizer.
 * @param out out: the figures; `struct_size` is set by the caller.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `out` is NULL or its
 *   `struct_size` is wrong.
 * @threads one at a time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_outer_stats(struct dist_outer_t *outer,
                               struct dist_outer_stats_t *out);

/**
 * Releases an outer optimizer, its global values and its states.
 *
 * @param outer in, optional: the outer optimizer; NULL does nothing.
 * @agree nothing.
 * @blocks until its operations have ended, until their deadlines at the latest.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE.
 * @threads one; no other call uses it.
 * @since 0.1
 */
dist_status_t dist_outer_release(struct dist_outer_t *outer);

/**
 * Creates a reducer, which averages gradients over the ranks of a group.
 *
 * The ranks compare their parameters and options, agree on the buckets, and get the values of
 * rank 0. A rank that creates a reducer while the other ranks call dist_reducer_regroup joins
 * them: it gets their buckets, their number of steps, and the values of the lowest of them.
 *
 * @param group in: the group. The reducer does not keep it: release the reducer first.
 * @param params in: `n_params` parameters; the array, names and shapes are borrowed for the
 *   call, the values and gradients until dist_reducer_release. NULL only if `n_params` is 0.
 * @param n_params in: the number of parameters.
 * @param options in, optional: NULL for all defaults; borrowed for the call.
 * @param out out: the reducer, owned by the caller, released with dist_reducer_release; NULL
 *   on failure.
 * @agree the parameters but for their addresses and the index of the device, in the same
 *   order; the options but for `timeout_ms`, `layout` and `name`. If ranks give different
 *   layouts, that of the lowest of them counts.
 * @blocks until all ranks have called, until the deadlines of its operations at the latest.
 * @return DIST_OK. With nothing done: DIST_ERR_INVALID_ARGUMENT, also inside a completion
 *   callback; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED; DIST_ERR_UNSUPPORTED if the
 *   group does not serve the device of a gradient, for an element type that cannot be divided,
 *   or for a field or flag that this version does not know. DIST_ERR_MISMATCH on all ranks if
 *   parameters or options differ, with the first difference. The errors of
 *   dist_all_gather_bytes and dist_broadcast.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reducer_create(dist_group_t *group,
                                  const struct dist_param_t *params,
                                  size_t n_params,
                                  const struct dist_reducer_options_t *options,
                                  struct dist_reducer_t **out);

/**
 * Gives the place where a gradient is to be written.
 *
 * The caller adds to or overwrites the gradient there before it marks the parameter. A place
 * in memory of the reducer is valid until dist_reducer_release. With DIST_REDUCER_MOVE_GRADS,
 * ask again after the first step. The memory is filled with zeros at first.
 *
 * @param reducer in: the reducer.
 * @param param in: the index of the parameter in the list of dist_reducer_create.
 * @param grad out: the caller's gradient, if the parameter has one, else memory of the
 *   reducer; NULL on failure and for a parameter without elements.
 * @param count out, optional: the number of elements; not written on failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if the parameter does
 *   not exist or has no gradient.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reducer_grad(struct dist_reducer_t *reducer,
                                size_t param,
                                void **grad,
                                size_t *count);

/**
 * Returns the address of a reduced gradient after the end of a step.
 *
 * It is that of dist_reducer_grad, unless the reducer has DIST_REDUCER_RETRYABLE and provides
 * the memory.
 *
 * @param reducer in: the reducer.
 * @param param in: the index of the parameter.
 * @param grad out: the reduced gradient, valid as for dist_reducer_grad; NULL on failure and
 *   for a parameter without elements.
 * @param count out, optional: the number of elements; not written on failure.
 * @agree nothing.
 * @blocks no.
 * @return as dist_reducer_grad.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reducer_result(struct dist_reducer_t *reducer,
                                  size_t param,
                                  void **grad,
                                  size_t *count);

/**
 * Gives the reduced rows of a sparse gradient after the end of a step.
 *
 * @param reducer in: the reducer.
 * @param param in: the index of the parameter, which has DIST_PARAM_SPARSE_ROWS.
 * @param rows out: the indices of the rows that a rank passed, in ascending order, each once;
 *   owned by the reducer, valid until the next step with communication ends or
 *   dist_reducer_release; NULL on failure and if there are none.
 * @param values out: the rows, one after the other, valid as long; NULL on failure and if
 * there
 *   are none.
 * @param n_rows out: the number of rows; not written on failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if the parameter does
 *   not exist or its gradient is not sparse.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reducer_rows(struct dist_reducer_t *reducer,
                                size_t param,
                                const int64_t **rows,
                                void **values,
                                size_t *n_rows);

/**
 * Copies the values of one rank to all ranks.
 *
 * @param reducer in: the reducer.
 * @param root in: the rank that has the values.
 * @param what in: the sum of DIST_REDUCER_PARAMS and DIST_REDUCER_BUFFERS, or one of them.
 * @agree the order of calls on the group, root and what.
 * @blocks until the values are there, until the deadlines of the broadcasts at the latest.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT, also inside a step or a completion callback;
 *   DIST_ERR_INVALID_HANDLE, also if the group was released; the errors of dist_broadcast.
 * @threads one at a time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reducer_broadcast(struct dist_reducer_t *reducer,
                                     int32_t root,
                                     uint64_t what);

/**
 * Compares values that should be the same on all ranks.
 *
 * @param reducer in: the reducer.
 * @param what in: the sum of DIST_REDUCER_PARAMS, DIST_REDUCER_BUFFERS and DIST_REDUCER_GRADS,
 *   or some of them.
 * @param differences out: one text for each parameter whose bytes are not the same on all
 *   ranks, with the ranks; empty if all are the same. The same on all ranks; owned by the
 *   caller, released with dist_blob_release; NULL on failure.
 * @agree the order of calls on the group and what.
 * @blocks until all ranks have called, until the deadlines of its operations at the latest.
 * @return DIST_OK, also if values differ; DIST_ERR_UNSUPPORTED if a parameter is in device
 *   memory; DIST_ERR_INVALID_ARGUMENT, also inside a step or a completion callback;
 *   DIST_ERR_INVALID_HANDLE, also if the group was released; the errors of
 *   dist_all_gather_bytes.
 * @threads one at a time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reducer_check(struct dist_reducer_t *reducer,
                                 uint64_t what,
                                 dist_blob_t **differences);

/**
 * Goes on in another group, for instance in that of dist_group_shrink.
 *
 * If a step had failed, it is open again after this call: with DIST_REDUCER_RETRYABLE the next
 * dist_reducer_end sends the same gradients again, divided for the new group, and nothing is
 * computed again. If another rank had seen the step end before the failure, dist_reducer_end
 * returns what that rank got. Without DIST_REDUCER_RETRYABLE a failed step is given up;
 * `steps` of dist_reducer_stats shows whether it had ended.
 *
 * @param reducer in: the reducer.
 * @param group in: the new group. The reducer does not keep it.
 * @agree all ranks of the new group call it, or dist_reducer_create with the same parameters
 *   and options.
 * @blocks until all ranks have called, until the deadlines of its operations at the latest.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if a step is open in a group that has not failed,
 *   or inside a completion callback; DIST_ERR_INVALID_HANDLE; DIST_ERR_MISMATCH on all ranks
 *   if parameters, options or steps differ, or a rank joins while a step is to be repeated;
 *   the errors of dist_all_gather_bytes and dist_broadcast.
 * @threads one at a time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reducer_regroup(struct dist_reducer_t *reducer,
                                   dist_group_t *group);

/**
 * Gives the layout of a reducer: which gradients are reduced together, and in which order.
 *
 * Results of the same gradients on the same ranks are the same bits only with the same
 * layout, or with DIST_REDUCER_CANONICAL. So a checkpoint has the layout, and passes it to
 * dist_reducer_create after a restart.
 *
 * @param reducer in: the reducer.
 * @param out out: one byte string, a text in JSON with the names of the parameters; owned by
 *   the caller, released with dist_blob_release; NULL on failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `out` is NULL;
 *   DIST_ERR_OUT_OF_MEMORY.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reducer_layout(const struct dist_reducer_t *reducer,
                                  dist_blob_t **out);

/**
 * Gives figures of the last step.
 *
 * @param reducer in: the reducer.
 * @param out out: the figures; `struct_size` is set by the caller.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `out` is NULL or its
 *   `struct_size` is wrong.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reducer_stats(const struct dist_reducer_t *reducer,
                                 struct dist_reducer_stats_t *out);

/**
 * Describes a reducer: parameters, buckets, options, and sums over all steps.
 *
 * @param reducer in: the reducer.
 * @param json out: one byte string, a text in JSON; owned by the caller, released with
 *   dist_blob_release; NULL on failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `json` is NULL;
 *   DIST_ERR_OUT_OF_MEMORY.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reducer_describe(const struct dist_reducer_t *reducer,
                                    dist_blob_t **json);

/**
 * Releases a reducer and the memory that it provides.
 *
 * If operations of a step are in flight, the call waits until they have ended. It also waits
 * for functions of dist_reducer_on_bucket that run, but not inside a completion callback.
 *
 * @param reducer in, optional: the reducer; NULL does nothing.
 * @agree nothing.
 * @blocks until the operations of the step have ended, until their deadlines at the latest,
 * and
 *   until the functions have returned.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE.
 * @threads one; no other call uses the reducer.
 * @since 0.1
 */
dist_status_t dist_reducer_release(struct dist_reducer_t *reducer);

/**
 * Begins a step.
 *
 * @param reducer in: the reducer.
 * @param weight in: with DIST_DIVIDE_WEIGHTED the weight of this rank's gradients, for
 *   instance its number of samples; else not used. Not negative.
 * @param flags in: DIST_STEP_NO_SYNC for a step without communication; or 0.
 * @agree with communication: the order of calls on the group. Ranks may make different numbers
 *   of steps without communication.
 * @blocks no; with DIST_REDUCER_BROADCAST_BUFFERS until the buffers are there.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if a step is open, the last one has failed, or
 *   the weight is wrong; DIST_ERR_INVALID_HANDLE, also if the group was released;
 *   DIST_ERR_UNSUPPORTED for a flag that this version does not know; without
 *   DIST_REDUCER_RETRYABLE the failure of the group.
 * @threads one at a time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reducer_begin(struct dist_reducer_t *reducer,
                                 double weight,
                                 uint64_t flags);

/**
 * Marks a gradient that is complete.
 *
 * Once all gradients of a bucket are marked, and the buckets before it were sent, the bucket
 * is reduced while the caller goes on. The caller does not touch the gradient until the end of
 * the step.
 *
 * @param reducer in: the reducer.
 * @param param in: the index of the parameter.
 * @agree nothing: the order may be another one on each rank.
 * @blocks no.
 * @return DIST_OK, with DIST_REDUCER_RETRYABLE also after a failure, which dist_reducer_end
 *   reports; DIST_ERR_INVALID_ARGUMENT outside of a step, and if the parameter does not exist,
 *   has no gradient or was marked before; DIST_ERR_INVALID_HANDLE; the failure of the group;
 *   DIST_ERR_OUT_OF_MEMORY and DIST_ERR_SYSTEM if a bucket cannot be sent, which fail the
 *   group.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_reducer_ready(struct dist_reducer_t *reducer, size_t param);

/**
 * Marks several gradients that are complete, in one call.
 *
 * @param reducer in: the reducer.
 * @param params in: `n` indices of parameters; borrowed for the call; NULL only if `n` is 0.
 * @param n in: the number of parameters.
 * @agree nothing.
 * @blocks no.
 * @return as dist_reducer_ready. After an error the parameters before the wrong one are
 *   marked.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reducer_ready_many(struct dist_reducer_t *reducer,
                                      const size_t *params,
                                      size_t n);

/**
 * Marks a sparse gradient, with its rows.
 *
 * All ranks get the sums of the rows of all ranks (dist_reducer_rows). In a step without
 * communication the rows are not used: pass those of all steps in the step that communicates.
 *
 * @param reducer in: the reducer.
 * @param param in: the index of the parameter, which has DIST_PARAM_SPARSE_ROWS.
 * @param rows in: the indices of `n_rows` rows, in any order. Rows that appear several times
 *   are added. Borrowed until the step has ended; NULL only if `n_rows` is 0.
 * @param values in: the rows, one after the other, of the gradient's element type; borrowed
 *   until the step has ended; NULL only if `n_rows` is 0.
 * @param n_rows in: the number of rows.
 * @agree nothing.
 * @blocks no.
 * @return as dist_reducer_ready; also DIST_ERR_INVALID_ARGUMENT if the gradient is not sparse
 *   or the parameter has no such row.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reducer_ready_rows(struct dist_reducer_t *reducer,
                                      size_t param,
                                      const int64_t *rows,
                                      const void *values,
                                      size_t n_rows);

/**
 * Marks a parameter that this rank does not use in the step.
 *
 * The rank contributes zeros. If another rank uses the parameter, this rank gets the result,
 * else the gradient stays as it is.
 *
 * @param reducer in: the reducer.
 * @param param in: the index of the parameter.
 * @agree nothing.
 * @blocks no.
 * @return as dist_reducer_ready.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_reducer_unused(struct dist_reducer_t *reducer, size_t param);

/**
 * Ends a step.
 *
 * The buckets that are left are sent, and the ranks agree on the step: on their votes, and on
 * which parameters were used. After DIST_OK all ranks have the same gradients
 * (dist_reducer_result) and the same `all_votes`. It is for the caller to leave out the update
 * if that is not DIST_VOTE_COMMIT. The end of a step without communication changes nothing.
 *
 * @param reducer in: the reducer.
 * @param vote in: DIST_VOTE_COMMIT, or the sum of other DIST_VOTE_ constants and of numbers
 *   from 256 on, which are the caller's. A rank that votes against the step need not mark its
 *   parameters.
 * @param all_votes out, optional: the votes of all ranks, combined by bitwise or; borrowed
 *   until the step has ended.
 * @param work out, optional: NULL to wait; else a work that ends with the step, owned by the
 *   caller, released with dist_work_release; NULL on failure.
 * @agree the order of calls on the group.
 * @blocks until the gradients are reduced and the functions of dist_reducer_on_bucket have
 *   returned, until the deadlines of the operations at the latest; not with a work.
 * @return DIST_OK. DIST_ERR_INVALID_ARGUMENT if no step is open or inside a completion
 *   callback. With DIST_MISSING_ERROR also DIST_ERR_INVALID_ARGUMENT on all ranks if a rank
 *   voted DIST_VOTE_COMMIT and did not mark a parameter: the step has ended, and its gradients
 *   must not be used. DIST_ERR_INVALID_HANDLE, also if the group was released. The errors of
 *   dist_all_reduce: then the step has failed (dist_reducer_regroup). With a work these are
 *   the work's.
 * @threads one at a time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reducer_end(struct dist_reducer_t *reducer,
                               uint64_t vote,
                               uint64_t *all_votes,
                               dist_work_t **work);

/**
 * Scales the gradients of the last step so that their norm is at most `max_norm`.
 *
 * The norm is that of all gradients together, as in PyTorch's clip_grad_norm_, in f64, and the
 * same on all ranks. Gradients with an infinite or NaN norm stay as they are, and those of
 * parameters that no rank used do not count.
 *
 * @param reducer in: the reducer.
 * @param max_norm in: the largest norm; infinity to compute the norm only.
 * @param norm_type in: the exponent of the norm, for instance 2; infinity for the largest
 *   absolute value.
 * @param norm out, optional: the norm before the gradients were scaled.
 * @agree the order of calls on the group, max_norm and norm_type.
 * @blocks until all ranks have called, until the deadline at the latest.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT for wrong numbers, inside a step, before the
 *   first one, or inside a completion callback; DIST_ERR_INVALID_HANDLE, also if the group was
 *   released; DIST_ERR_UNSUPPORTED for gradients of integers or in device memory; the errors
 *   of dist_all_reduce.
 * @threads one at a time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reducer_clip(struct dist_reducer_t *reducer,
                                double max_norm,
                                double norm_type,
                                double *norm);

/**
 * Registers a function that is called with each bucket whose gradients are reduced.
 *
 * So the optimizer updates the parameters of one bucket while the next one is reduced. The
 * function must not throw and must not call functions that may block: it runs on the thread of
 * completion callbacks (dist_work_on_complete). dist_reducer_end returns after the last call.
 * A work of dist_reducer_end may end before the last call has returned.
 * The function is called before the ranks agree on the step: use votes or dist_reducer_clip
 * only without it. With DIST_REDUCER_RETRYABLE the function is called for all buckets after
 * the agreement, and only if no rank voted against the step.
 *
 * @param reducer in: the reducer.
 * @param function in, optional: the function; NULL for none.
 * @param user in, optional: passed to the function; valid until another function is set or the
 *   reducer is released.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT inside a step.
 * @threads one at a time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reducer_on_bucket(struct dist_reducer_t *reducer,
                                     dist_bucket_fn function,
                                     void *user);

/**
 * Takes part in the steps of the other ranks after this rank has run out of data.
 *
 * The rank contributes zeros until no rank has data. Then all ranks get the parameters and
 * buffers of the lowest rank that had data last. All ranks call it at the end of their data.
 *
 * @param reducer in: the reducer, with DIST_REDUCER_UNEVEN.
 * @param steps out, optional: the number of steps in which this rank took part without data.
 * @agree all ranks call it.
 * @blocks until all ranks have called, until the deadlines of the operations at the latest.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT inside a step, without DIST_REDUCER_UNEVEN, or
 *   inside a completion callback; DIST_ERR_INVALID_HANDLE, also if the group was released; the
 *   errors of dist_all_reduce and dist_broadcast. After dist_reducer_regroup the call may be
 *   repeated.
 * @threads one at a time.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_reducer_join(struct dist_reducer_t *reducer, uint64_t *steps);

/**
 * Shares the state of an optimizer over the ranks of a reducer.
 *
 * Every parameter with a gradient is split by elements, evenly over the ranks. After
 * dist_reducer_end a rank updates the elements of dist_shard_ranges, with the states of
 * dist_shard_state, and all ranks call dist_shard_gather. A rank that joins calls this while
 * the other ranks call dist_shard_gather after dist_reducer_regroup; it gets its share of the
 * states.
 *
 * @param reducer in: the reducer, between steps. It keeps its buckets from now on. The shard
 *   keeps the reducer: release the shard first.
 * @param options in, optional: NULL for no states; borrowed for the call.
 * @param out out: the shard, owned by the caller, released with dist_shard_release; NULL on
 *   failure.
 * @agree the order of calls on the group; the options but for `timeout_ms`.
 * @blocks until all ranks have called, until the deadlines of its operations at the latest.
 * @return DIST_OK. With nothing done: DIST_ERR_INVALID_ARGUMENT, also inside a step or a
 *   completion callback, and if the reducer has a shard or DIST_REDUCER_UNEVEN;
 *   DIST_ERR_INVALID_HANDLE, also if the
 *   group was released; DIST_ERR_UNSUPPORTED for sparse gradients and device memory.
 *   DIST_ERR_MISMATCH on all ranks if the options differ. The errors of dist_all_gather_bytes.
 * @threads one at a time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_shard_create(struct dist_reducer_t *reducer,
                                const struct dist_shard_options_t *options,
                                struct dist_shard_t **out);

/**
 * Gives the elements that this rank updates.
 *
 * With `copies` they include copies of other ranks' elements. They stay the same until
 * dist_shard_gather has followed dist_reducer_regroup.
 *
 * @param shard in: the shard.
 * @param ranges out: the first `capacity` ranges; each `struct_size` is set by the caller, to
 *   the same number. NULL only if `capacity` is 0.
 * @param capacity in: the maximum number of ranges in the array.
 * @param n_ranges out: the number of ranges that there are; not written on failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE, also if the group was released;
 *   DIST_ERR_INVALID_ARGUMENT for a wrong argument, and with DIST_REDUCER_SHARDED between
 *   dist_reducer_regroup and dist_shard_gather.
 * @threads one at a time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_shard_ranges(struct dist_shard_t *shard,
                                struct dist_shard_range_t *ranges,
                                size_t capacity,
                                size_t *n_ranges);

/**
 * Gives a state of the elements that this rank updates.
 *
 * @param shard in: the shard.
 * @param state in: the index of the state in `states` of the options.
 * @param values out: one f32 for each element, range by range (`offset` of the range); zeros
 * at
 *   first. Memory of the shard, valid until dist_shard_release, or until dist_shard_gather has
 *   followed dist_reducer_regroup; NULL on failure.
 * @param count out, optional: the number of elements; not written on failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if there is no such
 *   state.
 * @threads one at a time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_shard_state(struct dist_shard_t *shard,
                               size_t state,
                               float **values,
                               size_t *count);

/**
 * Sends the elements that this rank has updated to all ranks, and gets theirs.
 *
 * The parameters go bucket by bucket, those of the first layers first. With a work the forward
 * pass may begin: dist_shard_wait waits for one parameter. Until then the caller does
 * not touch parameters.
 *
 * If the call fails because a rank has died: dist_group_shrink, dist_reducer_regroup, and this
 * call again. It then also redistributes the states to the ranks of the new group, and so does
 * a call after dist_reducer_regroup for another reason. If a step fails, repeat
 * dist_reducer_end and the update first. A gather that was begun with a work, and that has
 * failed, is repeated by dist_reducer_end.
 *
 * @param shard in: the shard.
 * @param work out, optional: NULL to wait; else a work that ends with the gather, owned by the
 *   caller, released with dist_work_release; NULL on failure.
 * @agree the order of calls on the group.
 * @blocks until all parameters are there, until the deadlines of the operations at the latest;
 *   with a work only after dist_reducer_regroup.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT while another gather runs, and inside a
 * completion
 *   callback; DIST_ERR_INVALID_HANDLE, also if the group was released; DIST_ERR_NOT_FOUND if
 *   the states of a rank are lost with it: the group still works, and a repetition is of no
 *   use; the errors of dist_all_gather. With a work these are the work's.
 * @threads one at a time.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_shard_gather(struct dist_shard_t *shard, dist_work_t **work);

/**
 * Waits until a parameter is there that is gathered in the background.
 *
 * @param shard in: the shard.
 * @param param in: the index of the parameter.
 * @agree nothing.
 * @blocks until all ranks' elements are there, until the deadline of the operation at the
 *   latest.
 * @return DIST_OK, also if no gather runs; DIST_ERR_INVALID_ARGUMENT if the parameter does not
 *   exist or has no gradient, and inside a completion callback; DIST_ERR_INVALID_HANDLE; the
 *   errors of the gather.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_shard_wait(struct dist_shard_t *shard, size_t param);

/**
 * Gives the states of all ranks, for a checkpoint.
 *
 * They are ordered by parameter and offset, without padding, so that dist_shard_load can give
 * them to any number of ranks. The parameters themselves are on every rank, and are the
 * caller's to save.
 *
 * @param shard in: the shard.
 * @param root in: the rank that gets them.
 * @param out out: at the root one byte string, owned by the caller, released with
 *   dist_blob_release; NULL on failure and on other ranks.
 * @agree the order of calls on the group, and root.
 * @blocks until all ranks have called, until the deadlines of its operations at the latest.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT, also between dist_reducer_regroup and
 *   dist_shard_gather, and inside a completion callback; DIST_ERR_INVALID_HANDLE, also if the
 *   group was released; DIST_ERR_OUT_OF_MEMORY; the errors of dist_gather_bytes.
 * @threads one at a time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_shard_save(struct dist_shard_t *shard,
                              int32_t root,
                              dist_blob_t **out);

/**
 * Takes states that dist_shard_save has given, on any number of ranks.
 *
 * @param shard in: the shard, with the same parameters and states by name.
 * @param bytes in: at the root the byte string of dist_shard_save; borrowed for the call; not
 *   used on other ranks.
 * @param len_bytes in: its length.
 * @param root in: the rank that has it.
 * @agree the order of calls on the group, and root.
 * @blocks until all ranks have their states, until the deadlines of its operations at the
 *   latest.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT, on all ranks if the byte string has another
 * form,
 *   other parameters or other states; also between dist_reducer_regroup and dist_shard_gather,
 *   and inside a completion callback; DIST_ERR_INVALID_HANDLE, also if the group was released;
 *   the errors of dist_broadcast.
 * @threads one at a time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_shard_load(struct dist_shard_t *shard,
                              const void *bytes,
                              size_t len_bytes,
                              int32_t root);

/**
 * Releases a shard and its states.
 *
 * @param shard in, optional: the shard; NULL does nothing.
 * @agree nothing.
 * @blocks until a gather that runs has ended, until the deadlines of its operations at the
 *   latest.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE.
 * @threads one; no other call uses the shard.
 * @since 0.1
 */
dist_status_t dist_shard_release(struct dist_shard_t *shard);

/**
 * Creates a sampler, which gives each rank its share of the indices of a data set.
 *
 * The indices are those of PyTorch's DistributedSampler with the same arguments, index for
 * index. By default they are shuffled, differently in each epoch. If the ranks cannot share
 * them evenly, indices from the beginning of the list are used twice, so that all ranks have
 * as many. The sampler is at the beginning of epoch 0.
 *
 * @param group in, optional: the group whose ranks share the data set; NULL only if the
 *   options set `num_replicas` and `rank`. The sampler does not keep the group.
 * @param dataset_len in: the number of samples of the data set.
 * @param options in, optional: NULL for all defaults; borrowed for the call.
 * @param out out: the sampler, owned by the caller, released with dist_sampler_release; NULL
 *   on failure.
 * @agree dataset_len, and in the options `num_replicas`, `seed` and `flags`; this is not
 *   checked.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if the rank is not less than the number of ranks,
 *   or an argument is wrong; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED;
 *   DIST_ERR_UNSUPPORTED if the options set a field or a flag that this version does not know.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_sampler_create(const dist_group_t *group,
                                  uint64_t dataset_len,
                                  const struct dist_sampler_options_t *options,
                                  struct dist_sampler_t **out);

/**
 * Begins an epoch: the sampler is at its first index.
 *
 * @param sampler in: the sampler.
 * @param epoch in: the number of the epoch; any number. It is added to the seed.
 * @agree the epoch; this is not checked.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_sampler_set_epoch(struct dist_sampler_t *sampler, uint64_t epoch);

/**
 * Takes the next indices of the epoch.
 *
 * The first call of an epoch that is shuffled computes the permutation of the data set. For
 * this it needs 4 bytes for each sample (8 from 2^32 samples on), and keeps 8 bytes for each
 * index of this rank.
 *
 * @param sampler in: the sampler.
 * @param indices out: a buffer for `cap` indices; NULL only if `cap` is 0.
 * @param cap in: the most indices to take, for instance the size of a batch.
 * @param n out: the number of indices written; 0 at the end of the epoch.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `n` or `indices` is
 *   NULL; DIST_ERR_OUT_OF_MEMORY if there is no memory for the permutation.
 * @threads any; each index is taken once.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_sampler_next(struct dist_sampler_t *sampler,
                                uint64_t *indices,
                                size_t cap,
                                size_t *n);

/**
 * Returns the number of indices of this rank in an epoch.
 *
 * @param sampler in: the sampler.
 * @agree nothing.
 * @blocks no.
 * @return the number, the same on all ranks; 0 for NULL or an invalid handle.
 * @threads any.
 * @since 0.1
 */
uint64_t dist_sampler_len(const struct dist_sampler_t *sampler);

/**
 * Returns the number of indices that were taken in this epoch, for a checkpoint.
 *
 * @param sampler in: the sampler.
 * @agree nothing.
 * @blocks no.
 * @return the number; 0 for NULL or an invalid handle.
 * @threads any.
 * @since 0.1
 */
uint64_t dist_sampler_position(const struct dist_sampler_t *sampler);

/**
 * Goes to a position of the epoch, for instance after a restart from a checkpoint.
 *
 * @param sampler in: the sampler.
 * @param position in: the number of indices to skip, at most dist_sampler_len.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `position` is behind
 *   the end.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_sampler_seek(struct dist_sampler_t *sampler, uint64_t position);

/**
 * Releases a sampler.
 *
 * @param sampler in, optional: the sampler; NULL does nothing.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE.
 * @threads any.
 * @since 0.1
 */
dist_status_t dist_sampler_release(struct dist_sampler_t *sampler);

/* All defaults; assign the fields that differ. */
#define DIST_SAMPLER_OPTIONS_INIT { sizeof(dist_sampler_options_t), 0, 0, 0, 0, 0 }
#define DIST_PARAM_INIT { sizeof(dist_param_t), 0, DIST_NULL, DIST_NULL, DIST_NULL, DIST_NULL, \
    0, 0, 0, 0, 0, 0, 0, 0 }
#define DIST_REDUCER_OPTIONS_INIT { sizeof(dist_reducer_options_t), 0, 0, 0, 0, 0, 0, DIST_NULL, \
    0, DIST_NULL, DIST_NULL, DIST_NULL, DIST_NULL, DIST_NULL, DIST_NULL }
#define DIST_BUCKET_INIT { sizeof(dist_bucket_t), 0, 0, DIST_NULL, 0, 0, 0, DIST_NULL, \
    DIST_NULL, 0, 0 }
#define DIST_REDUCER_STATS_INIT { sizeof(dist_reducer_stats_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
#define DIST_SHARD_OPTIONS_INIT { sizeof(dist_shard_options_t), DIST_NULL, 0, 0, 0, 0 }
#define DIST_SHARD_RANGE_INIT { sizeof(dist_shard_range_t), 0, 0, 0, 0, 0, DIST_NULL, DIST_NULL }
#define DIST_OUTER_OPTIONS_INIT { sizeof(dist_outer_options_t), 0, 0, DIST_NULL, 0.0, 0.0, \
    DIST_NULL, DIST_NULL, 0, DIST_NULL, DIST_NULL, DIST_NULL }
#define DIST_OUTER_STATS_INIT { sizeof(dist_outer_stats_t), 0, 0, 0, 0, 0, 0 }

/*
 * Back ends
 *
 * Which back ends there are and what they do; dist_backend.h is for those who write one.
 */

/**
 * The operation dist_all_reduce, for dist_backend_supports.
 */
#define DIST_KIND_ALL_REDUCE 0

/**
 * The operation dist_reduce.
 */
#define DIST_KIND_REDUCE 1

/**
 * The operation dist_broadcast.
 */
#define DIST_KIND_BROADCAST 2

/**
 * The operation dist_all_gather.
 */
#define DIST_KIND_ALL_GATHER 3

/**
 * The operation dist_reduce_scatter.
 */
#define DIST_KIND_REDUCE_SCATTER 4

/**
 * The operation dist_barrier.
 */
#define DIST_KIND_BARRIER 5

/**
 * The operation dist_gather.
 */
#define DIST_KIND_GATHER 6

/**
 * The operation dist_scatter.
 */
#define DIST_KIND_SCATTER 7

/**
 * The operation dist_all_to_all.
 */
#define DIST_KIND_ALL_TO_ALL 8

/**
 * The operation dist_all_gather_v.
 */
#define DIST_KIND_ALL_GATHER_V 9

/**
 * The operation dist_gather_v.
 */
#define DIST_KIND_GATHER_V 10

/**
 * The operation dist_scatter_v.
 */
#define DIST_KIND_SCATTER_V 11

/**
 * The operation dist_reduce_scatter_v.
 */
#define DIST_KIND_REDUCE_SCATTER_V 12

/**
 * The operation dist_all_to_all_v.
 */
#define DIST_KIND_ALL_TO_ALL_V 13

/**
 * The operation dist_scan.
 */
#define DIST_KIND_SCAN 14

/**
 * The operation dist_exscan.
 */
#define DIST_KIND_EXSCAN 15

/**
 * The operation dist_send.
 */
#define DIST_KIND_SEND 64

/**
 * The operation dist_recv.
 */
#define DIST_KIND_RECV 65

/**
 * Tells whether a back end of this name can be used, and loads it if necessary.
 *
 * Available are the native back end ("native" or "gloo"), back ends that were registered or
 * loaded, and back ends that the plug-ins in DIST_BACKEND_PLUGINS provide. If the name is not
 * known, the call loads these plug-ins, once in the process. For "nccl", and for maps such as
 * "cpu:native,cuda:nccl", it loads the NCCL library; for "mpi" the plug-in for MPI.
 *
 * @param name in: the name, in upper or lower case; borrowed for the call.
 * @agree nothing.
 * @blocks no; loading a shared object may take a moment.
 * @return 1 if the back end is available, else 0; dist_last_error has the reason if a plug-in
 *   cannot be loaded.
 * @threads any.
 * @since 0.1
 */
int32_t dist_backend_is_available(const char *name);

/**
 * Tells whether a group supports a kind of call, without making one.
 *
 * All ranks get the same answer.
 *
 * @param group in: the group.
 * @param kind in: a DIST_KIND_ constant.
 * @param dtype in: the element type; ignored for DIST_KIND_BARRIER.
 * @param op in: the operator, built-in or from dist_op_create; ignored unless `kind`
 * reduces.
 * @param device in: DIST_DEVICE_HOST, or the number of the GPU whose memory has the buffers.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK if the group supports the call; DIST_ERR_UNSUPPORTED if not (the message
 *   names type, operator and back end); DIST_ERR_INVALID_ARGUMENT if a number is no constant
 *   of its family; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_backend_supports(const dist_group_t *group,
                                    int32_t kind,
                                    dist_dtype_t dtype,
                                    dist_op_t op,
                                    int32_t device);

/**
 * Loads a back end from a shared object and registers the back end under its own name.
 *
 * The shared object exports a dist_backend_plugin_fn as dist_backend_plugin_v2. The library
 * never unloads the object. If a name of a back end is not known, the library loads the paths
 * in DIST_BACKEND_PLUGINS (separated by ":") once.
 *
 * @param path in: the path of the file, or a name without "/" that the dynamic loader
 *   searches; borrowed for the call.
 * @agree the ranks of a group load the same back end.
 * @blocks while the object is loaded; does not wait for other ranks.
 * @return DIST_OK; DIST_ERR_NOT_FOUND if there is no such file; DIST_ERR_SYSTEM with the
 *   loader's reason; DIST_ERR_UNSUPPORTED if the object is no back end, or has another
 *   interface version, with both versions in the message; DIST_ERR_INVALID_ARGUMENT as
 *   dist_backend_register, also if the back end is already loaded; DIST_ERR_OUT_OF_MEMORY as
 *   dist_backend_register; DIST_ERR_NOT_INITIALIZED in a forked child; the status that the
 *   back end returns.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_backend_load(const char *path);

/*
 * Diagnostics
 *
 * Logs, debug levels, the flight recorder and traces.
 */

/**
 * No additional checks or log lines; the default.
 */
#define DIST_DEBUG_OFF 0

/**
 * The log describes how groups are made, their operations at the end, and long waits.
 */
#define DIST_DEBUG_INFO 1

/**
 * Additional expensive checks of calls.
 *
 * All ranks synchronise before each collective. Buffers are compared with the buffers of
 * outstanding works. Errors keep a back-trace.
 */
#define DIST_DEBUG_DETAIL 2

/**
 * No log lines; the default.
 */
#define DIST_LOG_OFF 0

/**
 * Failures that no status reports.
 */
#define DIST_LOG_ERROR 1

/**
 * Also unusual events: long waits, lost peers.
 */
#define DIST_LOG_WARN 2

/**
 * Also the choices of the library and their reasons.
 */
#define DIST_LOG_INFO 3

/**
 * Also every step.
 */
#define DIST_LOG_DEBUG 4

/**
 * Receives log lines.
 *
 * `level` is a DIST_LOG_ constant. `line` is a terminated line without its line end, borrowed for
 * the call. `user` is the pointer that was given with the function. Any thread may call the
 * function, which must not call libdist.
 */
typedef void (*dist_log_fn)(int32_t level, const char *line, void *user);

/**
 * Returns the flight recorder's records of operations and groups as JSON.
 *
 * The recorder keeps the last 2000 operations of the process, messages included, and their
 * groups with members and failures. dist-doctor reads this JSON from files. The call works
 * before dist_init and after dist_finalize.
 *
 * @param group in, optional: only operations of this group; NULL for all groups.
 * @param json out: a blob of one text, owned by the caller, released with dist_blob_release;
 *   NULL on failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `json` is NULL;
 *   DIST_ERR_OUT_OF_MEMORY.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_flight_recorder_dump(const dist_group_t *group,
                                        dist_blob_t **json);

/**
 * Sends log lines to a function instead of standard error.
 *
 * Lines up to the level of dist_set_log_level or DIST_LOG_LEVEL are sent.
 *
 * @param function in, optional: called on any thread of the process; must not call libdist and
 *   must not throw. NULL sends lines to standard error again.
 * @param user in, optional: passed to `function`; must stay valid until the function has been
 *   replaced.
 * @agree nothing.
 * @blocks until calls of the previous function have returned; none is made afterwards.
 * @return DIST_OK.
 * @threads any, but not inside `function`.
 * @since 0.1
 */
dist_status_t dist_set_log_callback(dist_log_fn function, void *user);

/**
 * Sets the log level of the process.
 *
 * The environment and the debug level do not change it afterwards.
 *
 * @param level in: DIST_LOG_OFF (the default) to DIST_LOG_DEBUG.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if `level` is no log level.
 * @threads any.
 * @since 0.1
 */
dist_status_t dist_set_log_level(int32_t level);

/**
 * Sets the debug level of the process.
 *
 * Effects of a level apply to this rank's next calls, with one exception. If rank 0 has DETAIL
 * when a group is created whose host memory the native back end serves, all ranks check before
 * each collective that all ranks have arrived. Later changes do not affect this check, so that
 * ranks with different levels do not wait for each other.
 *
 * If neither the program nor the environment has set a log level, INFO and DETAIL set it to
 * DIST_LOG_INFO, and OFF to DIST_LOG_OFF.
 *
 * @param level in: DIST_DEBUG_OFF, DIST_DEBUG_INFO or DIST_DEBUG_DETAIL.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if `level` is no debug level.
 * @threads any.
 * @since 0.1
 */
dist_status_t dist_set_debug_level(int32_t level);

/**
 * Returns the debug level of the process.
 *
 * If no level has been set, the call sets it as dist_set_debug_level_from_env does.
 *
 * @agree nothing.
 * @blocks no.
 * @return the level; -1 if the environment variable has no valid level (see dist_last_error).
 * @threads any, but not while another thread changes the environment.
 * @since 0.1
 */
int32_t dist_get_debug_level(void);

/**
 * Sets the debug level of the process from the environment, and replaces an earlier level.
 *
 * The variable is DIST_DEBUG_LEVEL, or TORCH_DISTRIBUTED_DEBUG if the former is unset. Both
 * take OFF, INFO and DETAIL in upper or lower case. If both are unset, the level is
 * DIST_DEBUG_OFF. If no level has been set, creating the first group has the same effect. For
 * the log level see dist_set_debug_level.
 *
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if the variable has another word (the message
 *   names the variable; the level is unchanged).
 * @threads any, but not while another thread changes the environment.
 * @since 0.1
 */
dist_status_t dist_set_debug_level_from_env(void);

/**
 * Starts a trace of this process's operations as a file in Chrome's trace event format.
 *
 * Perfetto and chrome://tracing open such files. Each rank writes its own file; `dist-doctor
 * trace` merges them on a common clock. The environment variable DIST_TRACE_FILE does the same
 * from the first group to dist_finalize: the file's name is the variable's value followed by
 * the rank and ".json".
 *
 * In the file, a process is a rank of the outermost group, and a thread is a group. The trace
 * has the collectives and messages that begin after this call and end before dist_trace_stop.
 * Each has type, operator, root, bytes, sequence number, algorithm and outcome, and inside it
 * the waits for its turn and for each rank. Failures are recorded too.
 *
 * The file grows about 10 times a second and can be read at any time, also if the process was
 * killed. Records that arrive faster than they can be written are dropped and counted. If the
 * file cannot be written, only the trace ends; dist_group_describe and the log have the
 * reason.
 *
 * @param path in: the file, which is created or emptied; borrowed for the call. Each process
 *   needs its own.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if `path` is NULL or not UTF-8, or while another
 *   trace is written; DIST_ERR_SYSTEM or DIST_ERR_OUT_OF_MEMORY if the file or the writer
 *   thread cannot be created.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_trace_start(const char *path);

/**
 * Ends the trace of dist_trace_start or DIST_TRACE_FILE and completes its file.
 *
 * Operations that have not ended are not in the file. If there is no trace, the call does
 * nothing.
 *
 * @agree nothing.
 * @blocks until the file is written, at most 10 seconds.
 * @return DIST_OK; DIST_ERR_SYSTEM or DIST_ERR_OUT_OF_MEMORY if an error ended the trace
 *   before, for instance a full disk; DIST_ERR_TIMEOUT if the file was not written in time. In
 *   both cases the written part can be read.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_trace_stop(void);

#ifdef __cplusplus
}
#endif

#endif /* DIST_H */
