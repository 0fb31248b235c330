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
 * The outcomes of calls, the messages of errors, and the version of the library.
 */

/**
 * As a time-out: no limit. A time-out of a century or more has the same meaning.
 */
#define DIST_WAIT_FOREVER -1

/**
 * As a time-out: no time. The call checks once whether the result is complete. A call that needs
 * time refuses this value.
 */
#define DIST_NO_WAIT -2

/**
 * The outcome of a call: DIST_OK, DIST_IN_PROGRESS or a negative error.
 *
 * The errors have these ranges:
 *
 * - -1 to -99: a mistake of the caller. The call has had no effect.
 * - -100 to -199: a failure of a peer, or a time-out. A collective that returns such an error has
 *   failed its group, except if its comment names an error that does not.
 * - -200 to -299: a failure of the system or of a back end.
 * - -300: a defect of the library.
 */
typedef int32_t dist_status_t;

/**
 * Success.
 */
#define DIST_OK 0

/**
 * The wait ended before the work was done; the work continues.
 */
#define DIST_IN_PROGRESS 1

/**
 * An argument is out of range, is NULL although it is required, or contradicts another argument.
 */
#define DIST_ERR_INVALID_ARGUMENT -1

/**
 * The handle was never made, was released, or belongs to another type of object.
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
 * Ranks wait for each other in a cycle; the message has the whole cycle.
 */
#define DIST_ERR_DEADLOCK -106

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
 * DIST_VERSION is the version of the header; compare both to find a mismatch.
 *
 * @agree nothing.
 * @blocks no.
 * @return the version.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
uint32_t dist_version(void);

/**
 * Returns the version of the loaded library as text, such as "0.1.0".
 *
 * @agree nothing.
 * @blocks no.
 * @return the version, static.
 * @threads Any thread may call this at any time.
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
 * @threads Any thread may call this at any time.
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
 * @return the message in UTF-8, or "" if no call of the thread has failed. The pointer is
 *   valid until the second next failing call of the thread.
 * @threads Any thread may call this at any time. Each thread has its own message.
 * @since 0.1
 */
const char *dist_last_error(void);

/**
 * Copies the message of the calling thread's last failed call.
 *
 * @param buf out, optional: receives the message, always with its terminator; NULL only if
 *   `cap` is 0. A message that is too long is cut between two characters.
 * @param cap in: the size of `buf` in bytes.
 * @agree nothing.
 * @blocks no.
 * @return the number of bytes of the whole message with its terminator; 0 if `buf` is NULL and
 *   `cap` is not 0.
 * @threads Any thread may call this at any time. Each thread has its own message.
 * @since 0.1
 */
size_t dist_last_error_copy(char *buf, size_t cap);

/**
 * Returns the call stack of the calling thread's last failed call.
 *
 * The stack begins at the called function of libdist, and has one or two lines for each frame.
 * For the error of a work, the text also has the stack of the call that issued the work. The
 * text has the names of functions for which the program has symbols.
 *
 * The library records stacks if the debug level is DIST_DEBUG_DETAIL, or if the variable
 * DIST_SHOW_STACKTRACES is 1. If DIST_SHOW_STACKTRACES is unset, TORCH_SHOW_CPP_STACKTRACES
 * has its effect. The library reads both variables whenever a group is created.
 *
 * @agree nothing.
 * @blocks No. The first call for an error reads symbols, which may take a moment.
 * @return the text; "" if no call of the thread has failed or no stack was recorded; valid
 *   until the second next failing call of the thread.
 * @threads Any thread may call this at any time. Each thread has its own text.
 * @since 0.1
 */
const char *dist_last_error_backtrace(void);

/*
 * Byte strings
 *
 * Lists of byte strings that the library makes and the caller releases.
 */

/**
 * A list of byte strings that the library returns.
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
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
size_t dist_blob_count(const struct dist_blob_t *blob);

/**
 * Returns one byte string of a blob.
 *
 * A zero byte follows the bytes, so that a text can be printed. `len_bytes` does not count it.
 *
 * @param blob in: the blob.
 * @param index in: the position of the byte string, from 0, less than the result of
 *   dist_blob_count.
 * @param data out: the bytes, owned by the blob, valid until dist_blob_release; NULL on
 *   failure.
 * @param len_bytes out: the number of bytes; not written on failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `data` or `len_bytes`
 *   is NULL or `index` is out of range.
 * @threads Any thread may call this at any time.
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
 * @threads Any thread may call this, but not while another thread reads the bytes.
 * @since 0.1
 */
dist_status_t dist_blob_release(struct dist_blob_t *blob);

/*
 * Initialization
 *
 * Functions that create and end the world, the group of all ranks of the job.
 */

/**
 * In place of the index of a device: host memory.
 */
#define DIST_DEVICE_HOST -1

/**
 * A bit of `fields` in an options struct: the field `rank` is set.
 */
#define DIST_FIELD_RANK 1

/**
 * A bit of `fields` in an options struct: the field `listen_fd` is set.
 */
#define DIST_FIELD_LISTEN_FD 2

/**
 * A bit of `fields` in an options struct: the field `wait_for_workers` is set.
 */
#define DIST_FIELD_WAIT_FOR_WORKERS 4

/**
 * A bit of `fields` in an options struct: the field `device` is set.
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
     * The back end; case does not count.
     *
     * - "native" (or "gloo"), "mpi" and registered names serve host memory. If `device` is set,
     *   they also serve the memory of that GPU.
     * - "nccl" serves GPU memory.
     * - "cpu:native,cuda:nccl" names one back end for each kind of memory; "cpu:native" names one
     *   for host memory only.
     * - "inside=nccl,between=native" names one back end inside each host and one between hosts.
     * - NULL or "default" selects native. If `device` is set and all ranks have NCCL, it also
     *   selects nccl.
     */
    const char *backend;
    /**
     * How the ranks find each other; NULL for env://.
     *
     * - "env://" reads the environment variables of the launcher.
     * - "tcp://host:port?rank=R&world_size=N" uses a TCP store at this address.
     * - "file:///path?rank=R&world_size=N" uses a file that all ranks can access and that no other
     *   job uses. In the path, %XX is the byte with this hexadecimal number.
     *
     * If the URL has no rank or size, they come from the fields `rank` and `world_size` or from
     * the environment.
     */
    const char *init_method;
    /**
     * The store through which the ranks find each other, in place of init_method; borrowed for the
     * call.
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
     * Time-out of operations in the world group; the default is DIST_TIMEOUT_MS, or 30 minutes.
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
     * Options of the back end, "key=value;key=value"; NULL for none.
     *
     * The native back end uses rank 0's values of transport=auto|shm|inproc|tcp, slot_bytes=N,
     * heartbeat_ms=N (as DIST_HEARTBEAT_LIMIT_MS), algorithm=LIST (as DIST_ALGORITHM) and
     * tuning_file=PATH (as DIST_TUNING_FILE). It also accepts cma=0|1 (as DIST_CMA) and, for GPU
     * memory, staging.chunk_bytes=N, the size of a chunk. For tests it accepts host_id=LABEL:
     * ranks with the same label count as ranks of one host.
     *
     * The NCCL back end accepts nccl.high_priority, nccl.blocking_wait, nccl.windows and
     * nccl.blocking, each 0 or 1.
     */
    const char *backend_options;
    /**
     * The index of this rank's GPU; needs DIST_FIELD_DEVICE in `fields`. Without this bit, "nccl"
     * uses the current device of the calling thread. Either all ranks set a device, or no rank
     * does.
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
 * `rank` is the rank of the process. `arg` is the pointer that the caller passed together with the
 * function. The function returns 0 for success. It must return or end its process, and must not
 * throw.
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
     * Time-out for all processes together; the default is no limit. DIST_NO_WAIT is refused.
     */
    int64_t join_timeout_ms;
    /**
     * Time from SIGTERM to SIGKILL; the default is 2 seconds. With DIST_NO_WAIT, SIGKILL follows
     * immediately.
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
     * The port of the server, 0 to 65535. With 0, a server uses a free port (dist_store_port).
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
     * Not 0: a server whose `world_size` is set waits until all clients have connected. Without
     * DIST_FIELD_WAIT_FOR_WORKERS, the default is 1.
     */
    int32_t wait_for_workers;
    /**
     * A listening TCP socket for the server; needs DIST_FIELD_LISTEN_FD in `fields`. The library
     * takes ownership.
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
     * A secret of 1 to 4096 bytes that server and clients share; borrowed for the call. NULL for
     * none, as with torch's stores. Before other messages, each side proves that it knows the
     * secret. Only dist_init reads DIST_STORE_SECRET_FILE.
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
 * The default init method is env://, which reads the environment variables of distrun,
 * torchrun, mpirun and srun. If a wait takes longer than DIST_SLOW_WARNING_MS (30 seconds if
 * unset), the log reports it at level WARN.
 *
 * @param options in, optional: NULL for all defaults; borrowed for the call. The default of
 *   `connect_timeout_ms` is DIST_CONNECT_TIMEOUT_MS, or 5 minutes; DIST_NO_WAIT is refused.
 * @agree the store or init method, the world size, the group name and the back end.
 * @blocks Until all ranks have joined, but at most until `connect_timeout_ms`.
 * @return DIST_OK; DIST_ERR_ALREADY_INITIALIZED if there is a world; DIST_ERR_INVALID_ARGUMENT
 *   if an option or environment variable is wrong (the message names it), if two processes
 *   have the same rank, or inside a completion callback; DIST_ERR_INVALID_HANDLE if
 *   `options.store` is no store; DIST_ERR_NOT_FOUND if no back end has this name;
 *   DIST_ERR_UNSUPPORTED if the back end cannot run here or the options set a field that this
 *   version does not know; DIST_ERR_TIMEOUT if ranks did not join (the message names them);
 *   DIST_ERR_CONNECTION if the store cannot be reached; DIST_ERR_AUTH if the store refuses the
 *   secret, if ranks have different secrets or settings of DIST_SECURITY, or if the setting
 *   needs a secret or an encrypted store that the job does not have; DIST_ERR_MISMATCH if
 *   ranks run different versions or have different world sizes or options;
 *   DIST_ERR_PEER_FAILED if another rank failed to join; DIST_ERR_OUT_OF_MEMORY;
 *   DIST_ERR_SYSTEM; DIST_ERR_BACKEND if the back end failed.
 * @threads Any thread may call this at any time. Calls of dist_init and dist_finalize run one
 *   after the other.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_init(const struct dist_init_options_t *options);

/**
 * Leaves the world group and ends its handle; dist_init may be called again afterwards.
 *
 * Each rank calls dist_finalize when it has no more collectives to call. Pending works of the
 * world get 5 seconds to complete. Works that are still pending then end with
 * DIST_ERR_ABORTED. The handles of works stay valid until dist_work_release. Completion
 * callbacks run before the world ends. Blocking calls of other threads continue to their own
 * end.
 *
 * The ranks compare the collectives that each of them has called in the world and in the
 * groups made from it, released or not. They compare the number and order of the calls. Of
 * each call they compare the kind, element type, operator, root, label, and the counts that
 * must agree. If they differ, every rank of the group returns DIST_ERR_MISMATCH, and the
 * message names the first difference. A rank whose calls have already returned the failure of
 * this group does not return it again. In a group that has failed, the ranks compare only the
 * calls that both have made. If some ranks do not come within 5 seconds, the others leave
 * without them, and the log reports this at level WARN. The process keeps the calls of its
 * last 1024 groups.
 *
 * The rank that hosts the store leaves last: it waits until the other ranks have left. After
 * DIST_ERR_MISMATCH the rank has left, too.
 *
 * A process that returns from main or calls exit without dist_finalize leaves the world, and
 * the groups that it has not released, at its end. It then waits for no other rank. A process
 * that calls _exit, or that a signal ends, has died.
 *
 * @agree nothing; every rank calls dist_finalize once.
 * @blocks Until works and callbacks have ended and all ranks have compared their calls. On the
 *   rank that hosts the store, also until the other ranks have left. The call takes at most 6
 *   seconds, or about 1 second if the group has failed.
 * @return DIST_OK; DIST_ERR_NOT_INITIALIZED if there is no world; DIST_ERR_INVALID_ARGUMENT
 *   inside a completion callback; DIST_ERR_MISMATCH if ranks made different calls.
 * @threads Any thread may call this at any time. Calls of dist_init and dist_finalize run one
 *   after the other.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_finalize(void);

/**
 * Returns whether the world group exists.
 *
 * @agree nothing.
 * @blocks no.
 * @return 1 between dist_init and dist_finalize, otherwise 0.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
int32_t dist_is_initialized(void);

/**
 * Returns whether torchrun or distrun started this process.
 *
 * @agree nothing.
 * @blocks no.
 * @return 1 if the environment variable TORCHELASTIC_RUN_ID is set and not empty, otherwise 0.
 * @threads Any thread may call this, but not while another thread changes the environment.
 * @since 0.1
 */
int32_t dist_is_elastic_launched(void);

/**
 * Runs a function in forked processes, one for each rank, and waits for all of them.
 *
 * The function is for programs and tests that have no launcher. The environment of each child
 * has RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and
 * DIST_STORE_SECRET_FD. With these variables, dist_init(NULL) in the children creates a world
 * of all children. The parent serves the store of this world on a free port of the loopback
 * interface until all children have ended. Only the children know the secret of the store.
 *
 * End of a child: a child ends when its function returns. The library then flushes the child's
 * C streams, but exit handlers do not run. The flush waits for a stream that another thread of
 * the child holds, for instance a thread that reads standard input. Therefore, such threads
 * must have ended, or the child calls _exit instead of returning. A child may also call exit
 * or _exit; status 0 means success.
 *
 * Failure of a child: a child has failed if its result or exit status is not 0, or if a signal
 * ended it. The other children then get 100 ms to fail on their own. After that the library
 * sends SIGTERM to them, and SIGKILL after another `options.grace_ms`. If the parent dies, the
 * kernel kills the children. The library does not end processes that a child starts.
 *
 * Conditions: the parent must have one thread and must not ignore SIGCHLD. It must never have
 * called dist_init, dist_group_create, dist_store_tcp_create or dist_store_file_create. After
 * dist_spawn, it may call dist_spawn another time, and may then call dist_init. Each child has
 * its own copy of a hash store. The library flushes the parent's C streams before the forks.
 * SIGCHLD is blocked in the calling thread during the call, so no handler reaps the children.
 * The call does not affect other children and signals of the parent.
 *
 * @param function in: called in each child with its rank and `arg`.
 * @param arg in, optional: passed to `function`; each child has its own copy of the memory.
 * @param nprocs in: the number of ranks, 1 to 4096. The parent needs 2 free descriptors for
 *   each rank and 64 more within its limit (ulimit -n).
 * @param options in, optional: NULL for all defaults; borrowed for the call. The default of
 *   `join_timeout_ms` is no limit; DIST_NO_WAIT is refused. The default of `grace_ms` is 2
 *   seconds.
 * @agree nothing.
 * @blocks Until all children have ended and been reaped. If SIGKILL does not end a child
 *   within 5 seconds, the call returns without it.
 * @return DIST_OK if all children succeeded; DIST_ERR_PEER_FAILED if a child failed (the
 *   message has the first failed rank, its process, its result or signal, and its last error
 *   in libdist); DIST_ERR_TIMEOUT if children still ran after `join_timeout_ms` (the message
 *   names them; they have been ended); DIST_ERR_INVALID_ARGUMENT if an argument is wrong, if
 *   the parent does not meet the conditions above, or inside a completion callback;
 *   DIST_ERR_UNSUPPORTED if the options set a field that this version does not know;
 *   DIST_ERR_OUT_OF_MEMORY or DIST_ERR_SYSTEM if children or their store cannot be started, or
 *   too few descriptors are free; DIST_ERR_SYSTEM if another part of the program reaped a
 *   child.
 * @threads Only the single thread of the process may call this.
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
 * The store uses the protocol of PyTorch's TCPStore, so the server or the clients may be
 * PyTorch processes. A client waits until the server runs. If the launcher (torchrun) already
 * hosts a store at this address, a call with `is_server` connects to that store.
 *
 * A process that has made this call must not be forked without exec, because the child would
 * share the connection. The library refuses all calls in such a child, and dist_spawn refuses
 * this process.
 *
 * @param options in: the options; borrowed for the call.
 * @param out out: the store; owned by the caller, released with dist_store_release; NULL on
 *   failure.
 * @agree the secret, between server and clients.
 * @blocks Until this process has connected and, if `wait_for_workers` applies, until all
 *   clients have connected, but at most until `timeout_ms`.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if an argument is wrong or inside a completion
 *   callback; DIST_ERR_UNSUPPORTED if `options` has a newer field; DIST_ERR_NOT_INITIALIZED in
 *   a forked child; DIST_ERR_TIMEOUT or DIST_ERR_CONNECTION with a message that lists the
 *   attempts; DIST_ERR_AUTH if the secrets differ or only one side has a secret;
 *   DIST_ERR_SYSTEM, for example if the port is in use.
 * @threads Any thread may call this at any time.
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
 * Groups of ranks: queries, creation of new groups, and failures.
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
 * The process died or does not run, or the network is interrupted.
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
 * If several ranks did not call, the culprit is the first rank that the error names.
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
     * The store through which the ranks find each other; required, borrowed for the call.
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
     * The name of the group, the same on all its ranks; required. Two groups that exist at the
     * same time in one store need different names.
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
     * The ranks of the new group's members in the surrounding group: `world_size` numbers, in the
     * order of the new ranks (dist_group_ranks). No rank appears twice, and all ranks pass the
     * same list. NULL if the new group is the outermost; borrowed for the call.
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
     * As in dist_init_options_t. NULL for the options of the parent group, "" for none.
     *
     * Even with other options, the parent's DIST_ALGORITHM applies. The parent's tuning file also
     * applies, unless these options have a tuning_file.
     */
    const char *backend_options;
    /**
     * Time-out of operations in the new group; the default is the parent's. DIST_NO_WAIT is
     * refused.
     */
    int64_t timeout_ms;
    /**
     * Time-out of creating the group; the default is DIST_CONNECT_TIMEOUT_MS, or 5 minutes.
     * DIST_NO_WAIT is refused.
     */
    int64_t connect_timeout_ms;
    /**
     * Not 0: only the members of the new group call dist_group_new. Not allowed for
     * dist_group_split.
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
     * The time within which each rank must call dist_group_shrink; the other ranks exclude a rank
     * that calls later. The default is 10 seconds. DIST_NO_WAIT is refused. Ranks call at
     * different times: choose more than the time between two calls in the group.
     */
    int64_t timeout_ms;
    /**
     * Time-out of creating the group; the default is DIST_CONNECT_TIMEOUT_MS, or 5 minutes.
     * DIST_NO_WAIT is refused.
     */
    int64_t connect_timeout_ms;
} dist_shrink_options_t;

/**
 * The rank that an error blames, its fault and its process (dist_work_culprit,
 * dist_group_culprit).
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
 * @threads Any thread may call this at any time.
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
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
int32_t dist_get_world_size(const struct dist_group_t *group);

/**
 * Returns the world group.
 *
 * @agree nothing.
 * @blocks no.
 * @return the world, static: dist_finalize ends it. NULL before dist_init and after
 *   dist_finalize.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
struct dist_group_t *dist_world(void);

/**
 * Creates a group whose ranks bootstrap through a store, independently of dist_init.
 *
 * A process may have several such groups. The ranks of a group may be threads of one process.
 *
 * @param options in: the options; borrowed for the call. Required are `store`, `rank` (with
 *   DIST_FIELD_RANK in `fields`), `world_size` and `name`. The default of `connect_timeout_ms`
 *   is DIST_CONNECT_TIMEOUT_MS, or 5 minutes if this variable is unset; DIST_NO_WAIT is
 *   refused.
 * @param out out: the group, owned by the caller, released with dist_group_release; NULL on
 *   failure.
 * @agree the store, `world_size`, `name`, the back end and `global_ranks`.
 * @blocks Until all ranks have joined, but at most until `connect_timeout_ms` has passed.
 * @return as dist_init, but never DIST_ERR_ALREADY_INITIALIZED. DIST_ERR_INVALID_HANDLE if
 *   `options.store` is NULL or is not the handle of a store.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_group_create(const struct dist_group_options_t *options,
                                struct dist_group_t **out);

/**
 * Fails a group on all its ranks, with a reason.
 *
 * The calls that wait in the group, and its pending works, end with DIST_ERR_ABORTED and the
 * reason. Later calls in the group return DIST_ERR_ABORTED too. If the group has failed
 * before, the earlier failure stays.
 *
 * The abort also aborts the groups that dist_group_new and dist_group_split made from `group`,
 * the groups made from those groups, and so on. Each rank that has not released `group` aborts
 * them.
 *
 * @param group in: the group.
 * @param reason in, optional: a text for the error message; NULL for none; borrowed for the
 *   call.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED;
 *   DIST_ERR_INVALID_ARGUMENT if `reason` is not UTF-8 or longer than 1 MiB.
 * @threads Any thread may call this at any time, also while other threads are inside a
 *   collective of the group.
 * @since 0.1
 */
dist_status_t dist_group_abort(struct dist_group_t *group, const char *reason);

/**
 * Leaves a group and ends its handle.
 *
 * The other ranks can still receive the messages that this rank has sent. If another rank
 * calls a collective that needs this rank, the collective fails with DIST_ERR_PEER_FAILED.
 * Blocking calls of other threads and pending works continue until they end, and then this
 * rank leaves the group. The parent of the group, and the groups made from the group, may be
 * released before or after the group.
 *
 * If the ranks made different calls in the group, this call or dist_finalize returns
 * DIST_ERR_MISMATCH, and the message names the first difference. For a group of the world,
 * dist_finalize returns it on all ranks. For any other group, the ranks that release the group
 * after the first one return it, while the store of the group is open. A rank whose calls have
 * already returned the failure of the group does not return it again. The rank leaves the
 * group in any case.
 *
 * If the group has ranks on several hosts, the lowest rank of each host should be the last
 * rank of its host to leave. This rank exchanges reports of failures and deaths with the other
 * hosts. After it has left, the ranks that stay on its host learn of failures on other hosts
 * only from their own connections and time-outs.
 *
 * @param group in, optional: the group, not the world (see dist_finalize); NULL does nothing.
 * @agree nothing.
 * @blocks no, except for a group on GPUs: until the device of this rank and the other ranks
 *   are ready, but at most 10 seconds. The requests to the store of a group that does not
 *   belong to the world take at most 300 ms.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT for the world;
 *   DIST_ERR_MISMATCH if ranks made different calls.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
dist_status_t dist_group_release(struct dist_group_t *group);

/**
 * Copies the message of the error that failed a group.
 *
 * If a rank has died and the group has not failed, the message describes the death. Calls that
 * do not need that rank still succeed.
 *
 * @param group in: the group.
 * @param buf out, optional: as in dist_last_error_copy; receives the message, or "" if the
 *   group has not failed.
 * @param cap in: the size of `buf` in bytes.
 * @agree nothing.
 * @blocks no.
 * @return the number of bytes that the whole message needs, terminator included; 0 if `group`
 *   is NULL or invalid, and if `buf` is NULL and `cap` is not 0.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
size_t dist_group_error(const struct dist_group_t *group, char *buf, size_t cap);

/**
 * Returns how many collectives this rank has issued on a group.
 *
 * Ranks that made the same calls have the same number. Each collective counts as one, with
 * these exceptions and additions:
 *
 * - A call on byte strings counts as two.
 * - Calls of a batch that the library has fused into one operation count as one.
 * - A call of dist_group_new or dist_group_split that all ranks of the parent make counts as
 *   one on the parent.
 * - Messages do not count.
 *
 * @param group in: the group.
 * @agree nothing.
 * @blocks no.
 * @return the number; 0 before the first collective, and for NULL or an invalid handle.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
uint64_t dist_group_sequence(const struct dist_group_t *group);

/**
 * Sets the default time-out of a group's operations on this rank.
 *
 * The new default applies to later calls whose options set no time-out.
 *
 * @param group in: the group.
 * @param timeout_ms in: the time-out. The default is DIST_TIMEOUT_MS, or 30 minutes if this
 *   variable is unset; DIST_NO_WAIT is refused.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if `timeout_ms` or DIST_TIMEOUT_MS is wrong;
 *   DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED.
 * @threads Any thread may call this at any time.
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
 * @threads Any thread may call this at any time.
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
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
size_t dist_group_name(const struct dist_group_t *group, char *buf, size_t cap);

/**
 * Copies the name of a group's back end.
 *
 * "gloo" is another name of "native". A group that was created with the name "gloo" has this
 * name here. dist_group_describe has the name of the back end that is in use.
 *
 * @param group in: the group.
 * @param buf out, optional: receives the name; as in dist_last_error_copy.
 * @param cap in: the size of `buf` in bytes.
 * @agree nothing.
 * @blocks no.
 * @return as dist_group_error, for the name.
 * @threads Any thread may call this at any time.
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
 * @threads Any thread may call this at any time.
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
 * @threads Any thread may call this at any time.
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
 * @threads Any thread may call this at any time.
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
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
int32_t dist_group_host_count(const struct dist_group_t *group);

/**
 * Describes a group as JSON.
 *
 * The JSON has these parts:
 *
 * - the members, each with its host, its process and its rank in the outermost group (see
 *   dist_group_ranks);
 * - the name of the parent;
 * - the back end, with its transport and its algorithms by size;
 * - the default time-out, the failure, the arrival skew (how late each rank is) and the trace.
 *
 * @param group in: the group.
 * @param json out: a blob of one text, owned by the caller, released with dist_blob_release;
 *   NULL on failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `json` is NULL;
 *   DIST_ERR_NOT_INITIALIZED; DIST_ERR_OUT_OF_MEMORY.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_group_describe(const struct dist_group_t *group,
                                  dist_blob_t **json);

/**
 * Creates a group of some ranks of another group, in the given order.
 *
 * All ranks of `parent` call dist_group_new, also the ranks that are not members of the new
 * group. The order of this call and of the parent's collectives is the same on all ranks.
 *
 * With `options.use_local_synchronization`, only the members need to call dist_group_new, and
 * the call has no order with other calls. The members find each other by the name of the
 * group. While a rank has a group that was made in this way from `parent`, the rank cannot
 * make a second group with the same name. A group without a name in the options gets a name
 * from its ranks and from the number of earlier groups of these ranks.
 *
 * The ranks communicate through messages of the parent, and do not use the store. The parent
 * may be released before the new group, and the new group stays usable. While both groups
 * exist, an abort of the parent also aborts the new group.
 *
 * After an error the parent stays usable, with one exception. If all ranks of the parent must
 * call, and a rank does not call or calls another function, the parent fails as in any
 * collective.
 *
 * @param parent in: the group whose ranks form the new group.
 * @param ranks in, optional: `n` different ranks of the parent; NULL only if `n` is 0;
 *   borrowed for the call.
 * @param n in: the number of ranks; 0 for all ranks of the parent.
 * @param options in, optional: NULL for all defaults; borrowed for the call. The default of
 *   `connect_timeout_ms` is DIST_CONNECT_TIMEOUT_MS, or 5 minutes if this variable is unset;
 *   DIST_NO_WAIT is refused.
 * @param out out: the new group, owned by the caller, released with dist_group_release. NULL
 *   on failure. On a rank that is not a member, NULL with DIST_OK.
 * @agree the ranks, the name and the back end; the order of calls on the parent.
 * @blocks Until all ranks that must call have called, but at most until `connect_timeout_ms`
 *   has passed.
 * @return DIST_OK. DIST_ERR_INVALID_ARGUMENT if ranks, name or options are wrong, or inside a
 *   completion callback. DIST_ERR_NOT_FOUND if no back end has the name in the options.
 *   DIST_ERR_MISMATCH if ranks define the group differently (the message has each definition
 *   and its ranks). DIST_ERR_TIMEOUT if ranks did not call (the message names them).
 *   DIST_ERR_PEER_FAILED if another rank failed to join, left or died. DIST_ERR_UNSUPPORTED if
 *   the parent's back end has no messages, if the new back end cannot run here, or if the
 *   options set a field that this version does not know. DIST_ERR_BACKEND if the new back end
 *   failed. If the parent has failed, its failure. Also DIST_ERR_INVALID_HANDLE,
 *   DIST_ERR_NOT_INITIALIZED, DIST_ERR_OUT_OF_MEMORY and DIST_ERR_SYSTEM.
 * @threads Any thread may call this at any time.
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
 * All ranks of `parent` call dist_group_split. The order of this call and of the parent's
 * collectives is the same on all ranks. Within a color, the new ranks are in the order of
 * `key`; ranks with equal keys keep their order in the parent. If the options have a name, all
 * new groups get this name. The rules of dist_group_new for the release and the abort of the
 * parent apply.
 *
 * For example, with 4 ranks, the colors 0, 1, 0, 1 and equal keys make two groups: ranks 0 and
 * 2 of the parent, and ranks 1 and 3 of the parent.
 *
 * @param parent in: the group to split.
 * @param color in: 0 or more, or DIST_NO_COLOR for no new group on this rank.
 * @param key in: the sort key of this rank; any number.
 * @param options in, optional: as in dist_group_new; `use_local_synchronization` is refused.
 * @param out out: this rank's new group, owned by the caller, released with
 *   dist_group_release. NULL on failure. With DIST_NO_COLOR, NULL with DIST_OK.
 * @agree the order of calls on the parent. The ranks with a color also agree on the name and
 *   the back end.
 * @blocks as dist_group_new.
 * @return as dist_group_new. DIST_ERR_INVALID_ARGUMENT also if `color` is negative and not
 *   DIST_NO_COLOR.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_group_split(struct dist_group_t *parent,
                               int32_t color,
                               int32_t key,
                               const struct dist_group_new_options_t *options,
                               struct dist_group_t **out);

/**
 * Copies, for each rank of a group, the rank of the same process in the outermost group.
 *
 * The outermost group is the first group of the chain: dist_group_new, dist_group_split and
 * dist_group_shrink make a group from another one, and the first group is the world or comes
 * from dist_group_create. The options of dist_group_create may set other numbers in
 * `global_ranks`. Element i of the result belongs to rank i of `group`.
 *
 * @param group in: the group.
 * @param out out, optional: receives up to `cap` ranks; NULL only if `cap` is 0.
 * @param cap in: the number of ranks that fit into `out`. A longer list is truncated.
 * @agree nothing.
 * @blocks no.
 * @return the number of ranks in the group; 0 if `group` is NULL or invalid, and if `out` is
 *   NULL and `cap` is not 0.
 * @threads Any thread may call this at any time.
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
 * @return the rank in `group`; -1 if the group does not contain the rank, and if `group` is
 *   NULL or invalid.
 * @threads Any thread may call this at any time.
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
 * @return the rank in the outermost group; -1 if `rank` is no rank of the group, and if
 *   `group` is NULL or invalid.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
int32_t dist_group_rank_to_global(const struct dist_group_t *group, int32_t rank);

/**
 * Creates a group of the remaining ranks of a failed group.
 *
 * Each remaining rank calls dist_group_shrink after its calls in `group` have failed, for
 * instance with DIST_ERR_PEER_FAILED or DIST_ERR_TIMEOUT. If the group has not failed, the
 * call aborts the group. The ranks find each other without the store and without the
 * connections of the old group. If the call fails, it may be repeated.
 *
 * These ranks are not in the new group:
 *
 * - ranks that died, also during the call; the call does not wait for them;
 * - ranks that do not call within `options.timeout_ms`;
 * - the rank that the failure names, if the failure is DIST_ERR_PEER_FAILED.
 *
 * The remaining ranks must be a quorum of the ranks that are not proven dead: more than half
 * of these ranks, or exactly half of them with the lowest one. A closed socket proves that a
 * process is dead. Therefore, if the network splits the ranks into two parts, at most one part
 * continues.
 *
 * The new group keeps the order of the ranks, and numbers them from 0; dist_group_ranks
 * converts them. It has the back end, the options and the time-out of the old group. Its name
 * ends with "#1" after the first shrink, "#2" after the second, and so on.
 *
 * The call that failed may have different results on different ranks; c-examples/survive shows
 * how to compare the results. The old group stays failed. The caller still releases it, before
 * or after the new group. If the old group is the world, the caller calls dist_finalize
 * instead.
 *
 * @param group in: the group.
 * @param options in, optional: NULL for all defaults; borrowed for the call. The default of
 *   `timeout_ms` is 10 seconds. The default of `connect_timeout_ms` is
 *   DIST_CONNECT_TIMEOUT_MS, or 5 minutes if this variable is unset. DIST_NO_WAIT is refused
 *   for both.
 * @param out out: the new group, owned by the caller, released with dist_group_release; NULL
 *   on failure.
 * @agree nothing; every remaining rank calls it.
 * @blocks Until each rank of the old group has joined, has died, or has not called within
 *   `timeout_ms`, but at most until `connect_timeout_ms` has passed.
 * @return DIST_OK. DIST_ERR_ABORTED if the other ranks continue without this rank.
 *   DIST_ERR_PEER_FAILED if this rank caused the failure, or if too few ranks remain (the
 *   message has the missing ranks and the reasons). DIST_ERR_TIMEOUT.
 *   DIST_ERR_INVALID_ARGUMENT if options are wrong, if another thread shrinks the group, or
 *   inside a completion callback. DIST_ERR_UNSUPPORTED if the back end cannot shrink groups,
 *   or if the options set a field that this version does not know. DIST_ERR_BACKEND if the
 *   back end failed. Also DIST_ERR_INVALID_HANDLE, DIST_ERR_NOT_INITIALIZED,
 *   DIST_ERR_OUT_OF_MEMORY and DIST_ERR_SYSTEM.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_group_shrink(struct dist_group_t *group,
                                const struct dist_shrink_options_t *options,
                                struct dist_group_t **out);

/**
 * Returns the rank that has failed a group, with the kind of its failure and its process.
 *
 * If a rank has died and the group has not failed, that rank is the culprit.
 *
 * @param group in: the group.
 * @param out out: the culprit. Its kind is DIST_CULPRIT_NONE and its rank -1 if the group has
 *   not failed, and if the error of the group names no rank. Set struct_size before the call
 *   (DIST_CULPRIT_INIT).
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE (`out` then has the kind DIST_CULPRIT_NONE);
 *   DIST_ERR_NOT_INITIALIZED if `group` is NULL before dist_init; DIST_ERR_INVALID_ARGUMENT if
 *   `out` is NULL or its struct_size is wrong.
 * @threads Any thread may call this at any time.
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
 * The types of the elements of vectors, and the operators of reductions.
 */

/**
 * In the flags of dist_op_create: the operator is commutative: a op b equals b op a.
 */
#define DIST_OP_COMMUTATIVE 1

/**
 * The type of an element.
 *
 * Types, operators and statuses have different numbers. So a call with an operator in place of a
 * type returns DIST_ERR_INVALID_ARGUMENT.
 */
typedef int32_t dist_dtype_t;

/**
 * The operator of a reduction.
 *
 * Integer results wrap around, except averages. Elements of the f16, bf16 and f8 types are reduced
 * in single precision. Their result is rounded once per host, and once more for each step between
 * hosts.
 */
typedef int32_t dist_op_t;

/**
 * Reduces two vectors with a caller-defined operator: `inout[i]` becomes `lower[i]` op `inout[i]`.
 *
 * Both vectors have `count` elements of `elem_bytes` bytes. `lower` is the reduction of the
 * vectors of lower ranks. `inout` is the vector of the next rank, and receives the result. `user`
 * is the pointer that the caller passed together with the function.
 *
 * The vectors are private memory of the library and do not overlap. Each vector starts at a
 * multiple of 64 bytes, or a whole number of elements after such a multiple. The library calls the
 * function on the calling thread or on its own threads, for different groups at the same time. The
 * function must be associative, and its result must depend on the elements only. It must not call
 * libdist, throw or longjmp.
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
 * Opaque elements, whose size a caller-defined operator declares (dist_op_create).
 *
 * Only calls with a caller-defined operator take this type.
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
 * The average over the ranks. Not for DIST_BOOL.
 *
 * An average that is a value of the type does not overflow, even if the sum does. Floats are
 * multiplied by 1/N, for N ranks, before they are summed. If N is no power of two, the result may
 * differ from the divided sum in its last bits. Elements within N units in the last place of the
 * largest number may then give infinity. A subnormal contribution loses the bits below the
 * smallest subnormal number. For integers, the exact sum is divided, and the quotient is rounded
 * towards zero. On GPUs, NCCL determines the sum of integers, which wraps.
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
 * The sum of the ranks' elements, each multiplied by the premul_scale of its rank. Not for
 * integers and bools.
 */
#define DIST_PREMUL_SUM 520

/**
 * Returns the size of one element of a type in bytes.
 *
 * @param dtype in: the element type; any number is allowed.
 * @agree nothing.
 * @blocks no.
 * @return the size; 0 for a number that is no built-in element type, and for DIST_OPAQUE.
 * @threads Any thread may call this at any time.
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
 * @threads Any thread may call this at any time.
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
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
const char *dist_op_name(dist_op_t op);

/**
 * Creates an operator from a function, for every collective that reduces.
 *
 * The calls dist_all_reduce, dist_reduce, dist_reduce_scatter, dist_reduce_scatter_v,
 * dist_scan and dist_exscan accept `*out` as their operator. Their element type is then
 * DIST_OPAQUE or a type of `elem_bytes` bytes, and `algorithm` in their options must be NULL.
 * The operator reduces host memory, over every back end that serves host memory. The library
 * always reduces vectors in rank order, even if the operator is commutative. Every rank gets
 * the same bits.
 *
 * In each call, the ranks compare the operator's name, `elem_bytes` and `flags`. If they
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
 * @agree nothing. Calls that use the operator agree on its name, `elem_bytes` and `flags`.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if an argument is wrong or the name is in use;
 *   DIST_ERR_UNSUPPORTED if `flags` has a bit that this version does not know;
 *   DIST_ERR_OUT_OF_MEMORY if 4096 operators are live.
 * @threads Any thread may call this at any time.
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
 * Releases an operator. Another operator may then use its name.
 *
 * Calls that were already issued still use the operator: the library calls the function until
 * their works have completed.
 *
 * @param op in: an operator that dist_op_create returned.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if `op` is no live operator.
 * @threads Any thread may call this at any time.
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
 * The result has the same bits for every placement of the ranks and every algorithm. A call with
 * this flag may be slower between hosts. All ranks of a call must set the flag, or none.
 */
#define DIST_CALL_CANONICAL 1

/**
 * In the flags of a call: a NaN in an input or in the result fails the group.
 *
 * The environment variable DIST_CHECK_NAN=1 has the same effect for all calls. Ranks may set the
 * flag independently of each other.
 */
#define DIST_CALL_CHECK_NAN 2

/**
 * In the flags of a call: a NaN or an infinity in an input or in the result fails the group.
 *
 * Ranks may set the flag independently of each other.
 */
#define DIST_CALL_CHECK_INF 4

/**
 * In the flags of a call: the field `device` is set, and says where the buffers are.
 */
#define DIST_CALL_DEVICE 8

/**
 * In the flags of a send: the send is done once a receive has matched the message.
 *
 * The flag is only for dist_send, dist_send_bytes and the send of dist_sendrecv. Ranks may set the
 * flag independently of each other.
 */
#define DIST_CALL_SYNCHRONOUS 16

/**
 * The maximum length of a call's label in bytes, without the terminator.
 */
#define DIST_LABEL_BYTES 32

/**
 * An issued operation, with its progress and outcome.
 *
 * Owned by the caller, released with dist_work_release. Any thread may use it. A work may outlive
 * its group, and keeps its outcome until its release.
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
     * DIST_NO_WAIT, because any other call with this time-out would fail its group.
     */
    int64_t timeout_ms;
    /**
     * The factor of this rank for DIST_PREMUL_SUM.
     */
    double premul_scale;
    /**
     * The name of an algorithm (dist_group_describe lists the names), the same on all ranks. NULL:
     * the library chooses.
     */
    const char *algorithm;
    /**
     * The sum of DIST_CALL_ constants; or 0.
     */
    uint64_t flags;
    /**
     * The stream (CUstream, cudaStream_t) of a call on GPU memory. Later work in the stream sees
     * the result.
     *
     * NULL selects a stream of the library: the operation runs after the work on the default
     * stream, and a blocking call then waits for the device. (void *)1 is CUDA's own default
     * stream.
     *
     * If the native back end serves the GPU's memory, the call starts after the work that is
     * already in the stream. Only work that is put into the stream after the end of the call sees
     * the result.
     */
    void *stream;
    /**
     * The location of the buffers, with DIST_CALL_DEVICE in `flags`: the index of the group's GPU
     * on this rank, or DIST_DEVICE_HOST. Without the flag, the library queries the driver.
     */
    int32_t device;
    /**
     * Must be 0.
     */
    int32_t reserved;
    /**
     * The label of the call: UTF-8 of at most DIST_LABEL_BYTES bytes without the terminator;
     * borrowed for the call; NULL or "" for none.
     *
     * All ranks pass the same label to a collective: the native back end reports different labels
     * with DIST_ERR_MISMATCH. Labels do not affect the matching of messages. Errors, the flight
     * recorder, the trace and dist-doctor show the label.
     */
    const char *label;
} dist_call_options_t;

/**
 * Describes a tensor of a list. Its elements are contiguous.
 */
typedef struct dist_tensor_t {
    /**
     * sizeof(dist_tensor_t).
     */
    size_t struct_size;
    /**
     * The set fields with a meaningful zero: DIST_FIELD_DEVICE.
     */
    uint64_t fields;
    /**
     * The name: UTF-8 of at most 255 bytes without the terminator; required, and may be "".
     * Several tensors may have the same name.
     */
    const char *name;
    /**
     * The elements, as many as `shape` has; NULL only if there are none.
     */
    void *data;
    /**
     * The extent of each dimension; NULL only if `n_shape` is 0.
     */
    const int64_t *shape;
    /**
     * The number of dimensions, at most 64. A tensor with 0 dimensions has one element.
     */
    size_t n_shape;
    /**
     * The type of the elements.
     */
    dist_dtype_t dtype;
    /**
     * The index of the group's GPU on this rank, if DIST_FIELD_DEVICE is in `fields`: the elements
     * are in its memory. Otherwise the elements are in host memory.
     */
    int32_t device;
} dist_tensor_t;

/**
 * Reduces the vectors of all ranks and gives every rank a bitwise identical result.
 *
 * The operations of a group run in the order in which they were issued; blocking and
 * asynchronous operations share this order. Inside a batch (dist_batch_begin) a call with
 * `work` NULL does not block: dist_batch_end issues the operation. An operation over NCCL on
 * the memory of a GPU is done as soon as it is enqueued in its stream (`stream` in
 * dist_call_options_t).
 *
 * @param group in: the group.
 * @param send in: `count` elements; borrowed until the work completes; NULL only if `count` is
 *   0.
 * @param recv out: `count` elements; borrowed until the work completes; NULL only if `count`
 *   is 0. `recv` may be equal to `send` (in place); otherwise the two must not overlap.
 * @param count in: the number of elements.
 * @param dtype in: the type of the elements. DIST_OPAQUE is only for operators that
 *   dist_op_create made.
 * @param op in: the operator: a constant such as DIST_SUM, or an operator that dist_op_create
 *   made.
 * @param options in, optional: NULL for all defaults; borrowed for the call.
 * @param work out, optional: the work, owned by the caller, released with dist_work_release;
 *   `*work` is NULL on failure. If `work` itself is NULL, the call blocks, except inside a
 *   batch.
 * @agree count, dtype, op and label; the order of calls on the group.
 * @blocks Until the result is complete, which needs the call of every rank, but at most until
 *   the deadline. A call with a work or inside a batch does not block.
 * @return DIST_OK. If the call has had no effect: DIST_ERR_INVALID_ARGUMENT if an argument is
 *   wrong, or if the call would block inside a completion callback; DIST_ERR_INVALID_HANDLE;
 *   DIST_ERR_NOT_INITIALIZED; DIST_ERR_UNSUPPORTED if the group's back end cannot do the call.
 *   A call with a work or inside a batch can have no effect for two more reasons:
 *   DIST_ERR_OUT_OF_MEMORY if the batch has 65536 calls, or if 65536 works of the group are
 *   outstanding until the deadline (the call waits, except inside a completion callback);
 *   DIST_ERR_SYSTEM if no thread can be started. A blocking call returns the following
 *   errors; otherwise the work reports them: DIST_ERR_TIMEOUT, DIST_ERR_PEER_FAILED,
 *   DIST_ERR_MISMATCH, DIST_ERR_ABORTED; DIST_ERR_BACKEND if NCCL or a plug-in fails;
 *   DIST_ERR_OUT_OF_MEMORY if a rank lacks memory that the operation needs. After these errors
 *   every later call in the group returns the same error, and the contents of `recv` are
 *   undefined.
 * @threads Any thread may call this at any time. If several threads issue collectives on one
 *   group, the order of their calls must be the same on all ranks.
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
 * @param recv out, optional: on the root, `count` elements; borrowed until the work completes;
 *   NULL only if `count` is 0. `recv` may be equal to `send` (in place); otherwise the two
 *   must not overlap. Not used on other ranks.
 * @param count in: the number of elements.
 * @param dtype in: as dist_all_reduce.
 * @param op in: as dist_all_reduce.
 * @param root in: the rank that gets the result.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree count, dtype, op, root and label; the order of calls on the group.
 * @blocks The root blocks as in dist_all_reduce. Another rank may return before all ranks have
 *   called.
 * @return as dist_all_reduce.
 * @threads as dist_all_reduce.
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
 * @agree count, dtype, root and label; the order of calls on the group.
 * @blocks Until the data is in `buf`, but at most until the deadline. The root may return
 *   before the other ranks have called. A call with a work or inside a batch does not block.
 * @return as dist_all_reduce, with `buf` in place of `recv`.
 * @threads as dist_all_reduce.
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
 *   only if `count` is 0. In place, `send` is `recv` + rank * `count` elements; otherwise the
 *   two must not overlap.
 * @param count in: the number of elements of one rank.
 * @param dtype in: the type of the elements.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree count, dtype and label; the order of calls on the group.
 * @blocks as dist_all_reduce.
 * @return as dist_all_reduce.
 * @threads as dist_all_reduce.
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
 *   elements; otherwise the two must not overlap.
 * @param count in: the number of elements of one block.
 * @param dtype in: as dist_all_reduce.
 * @param op in: as dist_all_reduce.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree count, dtype, op and label; the order of calls on the group.
 * @blocks as dist_all_reduce.
 * @return as dist_all_reduce.
 * @threads as dist_all_reduce.
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
 * Reduces the vectors of the ranks up to this rank: rank r gets the reduction of ranks 0 to r.
 *
 * The call reduces the vectors in rank order. It takes every operator that dist_all_reduce
 * takes, except DIST_AVG. DIST_PREMUL_SUM first multiplies each rank's vector by the factor of
 * that rank.
 *
 * For example, with one element per rank (1, 2, 3 and 4 on ranks 0 to 3) and DIST_SUM, the
 * ranks get 1, 3, 6 and 10.
 *
 * @param group in: the group.
 * @param send in: `count` elements; borrowed until the work completes; NULL only if `count` is
 *   0.
 * @param recv out: `count` elements; borrowed until the work completes; NULL only if `count`
 *   is 0. `recv` may be equal to `send` (in place); otherwise the two must not overlap.
 * @param count in: the number of elements.
 * @param dtype in: as dist_all_reduce.
 * @param op in: as dist_all_reduce.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree count, dtype, op and label; the order of calls on the group.
 * @blocks Until the result is complete, but at most until the deadline. A call with a work or
 *   inside a batch does not block.
 * @return as dist_all_reduce. DIST_ERR_UNSUPPORTED also if `op` is DIST_AVG, or if the buffers
 *   are in the memory of a GPU and the call would use NCCL.
 * @threads as dist_all_reduce.
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
 * Reduces the vectors of all lower ranks: rank r gets the reduction of ranks 0 to r - 1.
 *
 * The call is dist_scan without the rank's own vector: in the example of dist_scan, ranks 1 to
 * 3 get 1, 3 and 6. Rank 0 has nothing to reduce, and the library does not write its `recv`.
 *
 * @param group in: the group.
 * @param send in: `count` elements; borrowed until the work completes; NULL only if `count` is
 *   0.
 * @param recv out, optional: `count` elements; borrowed until the work completes; NULL is
 *   allowed only on rank 0, and if `count` is 0. `recv` may be equal to `send` (in place);
 *   otherwise the two must not overlap.
 * @param count in: the number of elements.
 * @param dtype in: as dist_all_reduce.
 * @param op in: as dist_all_reduce.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree count, dtype, op and label; the order of calls on the group.
 * @blocks as dist_scan.
 * @return as dist_scan.
 * @threads as dist_all_reduce.
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
 * Completes when all ranks of the group have called dist_barrier.
 *
 * @param group in: the group.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree label, and the order of calls on the group.
 * @blocks Until all ranks have called, but at most until the deadline. A call with a work or
 *   inside a batch does not block.
 * @return as dist_all_reduce.
 * @threads as dist_all_reduce.
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
 * @param recv out, optional: on the root, world size times `count` elements; borrowed until
 *   the work completes; NULL only if `count` is 0. In place, `send` is `recv` + rank * `count`
 *   elements; otherwise the two must not overlap. Not used on other ranks.
 * @param count in: the number of elements of one rank.
 * @param dtype in: the type of the elements.
 * @param root in: the rank that gets the vectors.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree count, dtype, root and label; the order of calls on the group.
 * @blocks The root blocks as in dist_all_reduce. Another rank may return before all ranks have
 *   called.
 * @return as dist_all_reduce.
 * @threads as dist_all_reduce.
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
 * @param send in, optional: on the root, world size times `count` elements; borrowed until the
 *   work completes; NULL only if `count` is 0. Not used on other ranks.
 * @param recv out: `count` elements, block `rank` of the root's `send`; borrowed until the
 *   work completes; NULL only if `count` is 0. In place on the root, `recv` is `send` + rank *
 *   `count` elements; otherwise the two must not overlap.
 * @param count in: the number of elements of one block.
 * @param dtype in: the type of the elements.
 * @param root in: the rank that has the blocks.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree count, dtype, root and label; the order of calls on the group.
 * @blocks Until the data is in `recv`, but at most until the deadline. The root may return
 *   before the other ranks have called. A call with a work or inside a batch does not block.
 * @return as dist_all_reduce.
 * @threads as dist_all_reduce.
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
 * Exchanges blocks between all pairs of ranks: block j of rank i goes to block i of rank j.
 *
 * Block i of `recv` comes from block `rank` of the `send` of rank i. The call has no in-place
 * form.
 *
 * For example, with blocks a0, a1 on rank 0 and b0, b1 on rank 1, rank 0 gets a0, b0, and rank
 * 1 gets a1, b1.
 *
 * @param group in: the group.
 * @param send in: world size times `count` elements; borrowed until the work completes; NULL
 *   only if `count` is 0.
 * @param recv out: world size times `count` elements; borrowed until the work completes; NULL
 *   only if `count` is 0. The two buffers must not overlap.
 * @param count in: the number of elements of one block.
 * @param dtype in: the type of the elements.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree count, dtype and label; the order of calls on the group.
 * @blocks as dist_all_reduce.
 * @return as dist_all_reduce.
 * @threads as dist_all_reduce.
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
 * Gives every rank the vectors of all ranks, each of its own length and in its own buffer.
 *
 * @param group in: the group.
 * @param send in: `counts[rank]` elements; borrowed until the work completes; NULL only if
 *   `counts[rank]` is 0.
 * @param recv out: an array of one pointer per rank, borrowed for the call. The buffer at
 *   `recv[i]` gets the `counts[i]` elements of rank i and is borrowed until the work
 *   completes; `recv[i]` is NULL only if `counts[i]` is 0. In place, `send` is `recv[rank]`;
 *   otherwise no buffer may overlap another.
 * @param counts in: one count per rank, in elements; borrowed for the call.
 * @param dtype in: the type of the elements.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree all counts, dtype and label; the order of calls on the group.
 * @blocks as dist_all_reduce.
 * @return as dist_all_reduce.
 * @threads as dist_all_reduce.
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
 * Gives every rank the vectors of all ranks, each of its own length, in one buffer.
 *
 * The operation is that of dist_all_gather_v, with all blocks in one buffer as in
 * MPI_Allgatherv. In the same operation, some ranks may call this function and others
 * dist_all_gather_v. In place, `send` is this rank's block in `recv`; otherwise no block may
 * overlap another block or `send`.
 *
 * For example, let `counts` be 2, 1 and 3. If `displs` is NULL, the blocks begin at elements
 * 0, 2 and 3 of `recv`. If `displs` is 0, 4 and 8, they begin at elements 0, 4 and 8.
 *
 * @param group in: the group.
 * @param send in: `counts[rank]` elements; borrowed until the work completes; NULL only if
 *   `counts[rank]` is 0.
 * @param recv out: the block of rank i begins `displs[i]` elements behind `recv` and has
 *   `counts[i]` elements; borrowed until the work completes; NULL only if all counts are 0.
 *   The call does not change the elements between the blocks.
 * @param counts in: one count per rank, in elements; borrowed for the call.
 * @param displs in, optional: one displacement per rank, in elements; borrowed for the call.
 *   If `displs` is NULL, the blocks follow each other in rank order. Ranks may pass different
 *   displacements.
 * @param dtype in: the type of the elements.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree all counts, dtype and label; the order of calls on the group.
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
 * Gives every rank the counts of all ranks, for calls that need all counts.
 *
 * The call is an all-gather of one count per rank, for instance before dist_all_gather_v_at.
 * The call writes this rank's count to `counts[rank]` before it returns, even if it has a
 * work.
 *
 * @param group in: the group.
 * @param count in: this rank's count, any number.
 * @param counts out: one count per rank, in rank order; borrowed until the work completes.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree label, and the order of calls on the group.
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
 * Reports whether all ranks have the same bytes, and the first rank that differs.
 *
 * The bytes may have any length; bytes of different lengths are different. The call is an
 * all-gather of 40 bytes per rank: the length and the BLAKE3 hash of the rank's bytes. Its
 * deadline and its failures are those of an all-gather. Different bytes of the same length
 * count as equal with a probability of 2^-256.
 *
 * @param group in: the group; its back end must serve host memory.
 * @param bytes in: `len_bytes` bytes in host memory; borrowed for the call; NULL only if
 *   `len_bytes` is 0.
 * @param len_bytes in: the number of bytes on this rank.
 * @param equal out, optional: 1 if all ranks have the same bytes, else 0; the same on all
 *   ranks.
 * @param differing_rank out, optional: the lowest rank whose bytes differ from the bytes of
 *   rank 0, the same on all ranks; -1 if no rank differs.
 * @param options in, optional: as dist_all_reduce, but without a device and without a stream.
 * @agree label, and the order of calls on the group.
 * @blocks Until all ranks have called, but at most until the deadline.
 * @return DIST_OK, also if the bytes differ; otherwise the errors of a blocking
 *   dist_all_reduce. DIST_ERR_INVALID_ARGUMENT also inside a batch, and if the options have a
 *   device or a stream.
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
 * Gives the root the vectors of all ranks, each of its own length and in its own buffer.
 *
 * The native back end compares the counts. If the counts of two ranks disagree, at least one
 * of the two ranks gets DIST_ERR_MISMATCH from this call. Every other rank gets the error from
 * this call or from its next call in the group.
 *
 * @param group in: the group.
 * @param send in: `count` elements; borrowed until the work completes; NULL only if `count` is
 *   0.
 * @param count in: the number of elements of this rank, equal to `counts[rank]` of the root.
 * @param recv out, optional: on the root, an array of one pointer per rank, borrowed for the
 *   call. The buffer at `recv[i]` gets the `counts[i]` elements of rank i and is borrowed
 *   until the work completes; `recv[i]` is NULL only if `counts[i]` is 0. In place, `send` is
 *   `recv[rank]`; otherwise no buffer may overlap another. Not used on other ranks.
 * @param counts in, optional: on the root, one count per rank, in elements; borrowed for the
 *   call. Not used on other ranks.
 * @param dtype in: the type of the elements.
 * @param root in: the rank that gets the vectors.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree dtype, root and label; the order of calls on the group; `count` of rank i equals
 *   `counts[i]` of the root.
 * @blocks The root blocks as in dist_all_reduce. Another rank may return before all ranks have
 *   called.
 * @return as dist_all_reduce. DIST_ERR_INVALID_ARGUMENT also if `count` and `counts[rank]`
 *   differ on the root.
 * @threads as dist_all_reduce.
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
 * Gives each rank a vector of the root; the vectors have their own lengths and buffers.
 *
 * The native back end compares the counts. If the counts of two ranks disagree, at least one
 * of the two ranks gets DIST_ERR_MISMATCH from this call. Every other rank gets the error from
 * this call or from its next call in the group.
 *
 * @param group in: the group.
 * @param send in, optional: on the root, an array of one pointer per rank, borrowed for the
 *   call. The buffer at `send[i]` has the `counts[i]` elements for rank i and is borrowed
 *   until the work completes; `send[i]` is NULL only if `counts[i]` is 0. Not used on other
 *   ranks.
 * @param counts in, optional: on the root, one count per rank, in elements; borrowed for the
 *   call. Not used on other ranks.
 * @param recv out: `count` elements; borrowed until the work completes; NULL only if `count`
 *   is 0. In place on the root, `recv` is `send[rank]`; otherwise `recv` must not overlap the
 *   other buffers.
 * @param count in: the number of elements of this rank, equal to `counts[rank]` of the root.
 * @param dtype in: the type of the elements.
 * @param root in: the rank that has the vectors.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree dtype, root and label; the order of calls on the group; `count` of rank i equals
 *   `counts[i]` of the root.
 * @blocks as dist_scatter.
 * @return as dist_all_reduce. DIST_ERR_INVALID_ARGUMENT also if `count` and `counts[rank]`
 *   differ on the root.
 * @threads as dist_all_reduce.
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
 * Reduces one vector for each rank, each of its own length, and gives each rank its result.
 *
 * Every rank passes one vector for each rank. Rank i gets the reduction of the vectors that
 * all ranks passed for rank i.
 *
 * @param group in: the group.
 * @param send in: an array of one pointer per rank, borrowed for the call. The buffer at
 *   `send[i]` has the `counts[i]` elements that this rank contributes to the result of rank i.
 *   It is borrowed until the work completes; `send[i]` is NULL only if `counts[i]` is 0.
 * @param counts in: one count per rank, in elements; borrowed for the call.
 * @param recv out: `counts[rank]` elements; borrowed until the work completes; NULL only if
 *   `counts[rank]` is 0. In place, `recv` is `send[rank]`; otherwise `recv` must not overlap
 *   the other buffers.
 * @param dtype in: as dist_all_reduce.
 * @param op in: as dist_all_reduce.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree all counts, dtype, op and label; the order of calls on the group.
 * @blocks as dist_all_reduce.
 * @return as dist_all_reduce.
 * @threads as dist_all_reduce.
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
 * Exchanges vectors between all pairs of ranks, each of its own length and in its own buffer.
 *
 * The buffer at `recv[i]` gets the data at `send[rank]` of rank i. The call has no in-place
 * form. The native back end compares the counts. If the counts of two ranks disagree, at least
 * one of the two ranks gets DIST_ERR_MISMATCH from this call. Every other rank gets the error
 * from this call or from its next call in the group.
 *
 * @param group in: the group.
 * @param send in: an array of one pointer per rank, borrowed for the call. The buffer at
 *   `send[i]` has the `send_counts[i]` elements for rank i and is borrowed until the work
 *   completes; `send[i]` is NULL only if `send_counts[i]` is 0.
 * @param send_counts in: one count per rank, in elements; borrowed for the call.
 * @param recv out: an array of one pointer per rank, borrowed for the call. The buffer at
 *   `recv[i]` gets the `recv_counts[i]` elements of rank i and is borrowed until the work
 *   completes; `recv[i]` is NULL only if `recv_counts[i]` is 0. No buffer of `recv` may
 *   overlap any other buffer.
 * @param recv_counts in: one count per rank, in elements; borrowed for the call.
 * @param dtype in: the type of the elements.
 * @param options in, optional: as dist_all_reduce.
 * @param work out, optional: as dist_all_reduce.
 * @agree dtype and label; the order of calls on the group; `send_counts[j]` of rank i equals
 *   `recv_counts[i]` of rank j.
 * @blocks as dist_all_reduce.
 * @return as dist_all_reduce. DIST_ERR_INVALID_ARGUMENT also if `send_counts[rank]` and
 *   `recv_counts[rank]` differ.
 * @threads as dist_all_reduce.
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
 * Copies a list of the root's tensors to all ranks.
 *
 * The tensors may have different types, and may be in host memory and in the memory of a GPU.
 * The library copies small tensors in host memory together, and one operation transfers many
 * of them. The copies need at most 4 MiB. Longer tensors and tensors in the memory of a GPU
 * are not copied together.
 *
 * Before any data moves, the ranks compare their lists: the operation, the number of tensors,
 * and the name, the type, the shape and the kind of memory of each tensor. Addresses and the
 * indices of devices may differ. If the lists differ, every rank gets DIST_ERR_MISMATCH with a
 * message that names the first difference: the index and the name of the tensor, two ranks,
 * and what each of them has. No tensor has changed then, and the group can be used further.
 *
 * The call has one sequence number, and one entry in the flight recorder.
 *
 * @param group in: the group.
 * @param tensors in: the list; NULL only if `n` is 0; borrowed for the call. The elements of
 *   the tensors are read on the root and written on the other ranks, and are borrowed until
 *   the work completes. No two tensors overlap.
 * @param n in: the number of tensors, at most 32768.
 * @param root in: the rank that has the data.
 * @param options in, optional: as dist_all_reduce. `stream` is for the tensors in the memory
 *   of a GPU. `algorithm` must be NULL, and `flags` must not have DIST_CALL_DEVICE: each
 *   tensor has its own location.
 * @param work out, optional: as dist_all_reduce. Operations in the memory of a GPU are in the
 *   stream when the work is done, not yet when this call returns.
 * @agree the list, root, DIST_CALL_CANONICAL and label; the order of calls on the group.
 * @blocks as dist_all_reduce: the comparison needs the call of every rank.
 * @return as dist_all_reduce. DIST_ERR_MISMATCH, without a failure of the group, if the lists
 *   differ. DIST_ERR_UNSUPPORTED also if the list needs more operations than one call can
 *   number.
 * @threads as dist_all_reduce.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_broadcast_list(dist_group_t *group,
                                  const struct dist_tensor_t *tensors,
                                  size_t n,
                                  int32_t root,
                                  const struct dist_call_options_t *options,
                                  struct dist_work_t **work);

/**
 * Reduces a list of tensors of all ranks in place, and gives every rank the result.
 *
 * The call treats and compares the lists as dist_broadcast_list does. Tensors share an
 * operation only if they have the same type. On one host, the results are bitwise those of
 * dist_all_reduce; between hosts, the library may add floating-point numbers in the order that
 * it uses for a vector of the total length.
 *
 * @param group in: the group.
 * @param tensors in: the list; NULL only if `n` is 0; borrowed for the call. The elements of
 *   the tensors are read and written, and are borrowed until the work completes. No two
 *   tensors overlap.
 * @param n in: the number of tensors, at most 32768.
 * @param op in: a constant such as DIST_SUM, which is defined for the type of each tensor. The
 *   call refuses operators of dist_op_create.
 * @param options in, optional: as dist_broadcast_list.
 * @param work out, optional: as dist_broadcast_list.
 * @agree the list, op, DIST_CALL_CANONICAL and label; the order of calls on the group.
 * @blocks as dist_all_reduce.
 * @return as dist_broadcast_list.
 * @threads as dist_all_reduce.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_all_reduce_list(dist_group_t *group,
                                   const struct dist_tensor_t *tensors,
                                   size_t n,
                                   dist_op_t op,
                                   const struct dist_call_options_t *options,
                                   struct dist_work_t **work);

/**
 * Gives every rank the blocks of all ranks, for each tensor of a list, in place.
 *
 * Each tensor consists of one block for each rank, in rank order, and all its blocks have the
 * same length. Before the call, block r of a tensor has the data of rank r on rank r; the
 * other blocks are overwritten. The call treats and compares the lists as dist_broadcast_list
 * does.
 *
 * @param group in: the group.
 * @param tensors in: the list; NULL only if `n` is 0; borrowed for the call. The number of
 *   elements of each tensor is a multiple of the world size. The elements are read and
 *   written, and are borrowed until the work completes. No two tensors overlap.
 * @param n in: the number of tensors, at most 32768.
 * @param options in, optional: as dist_broadcast_list.
 * @param work out, optional: as dist_broadcast_list.
 * @agree the list, DIST_CALL_CANONICAL and label; the order of calls on the group.
 * @blocks as dist_all_reduce.
 * @return as dist_broadcast_list.
 * @threads as dist_all_reduce.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_all_gather_list(dist_group_t *group,
                                   const struct dist_tensor_t *tensors,
                                   size_t n,
                                   const struct dist_call_options_t *options,
                                   struct dist_work_t **work);

/**
 * Reduces a list of tensors of all ranks in place, and gives each rank its own blocks.
 *
 * Each tensor consists of one block for each rank, in rank order, and all its blocks have the
 * same length. After the call, block r of a tensor has its part of the result on rank r; the
 * other blocks keep their data. The call treats and compares the lists as dist_all_reduce_list
 * does.
 *
 * @param group in: the group.
 * @param tensors in: the list; NULL only if `n` is 0; borrowed for the call. The number of
 *   elements of each tensor is a multiple of the world size. The elements are read and
 *   written, and are borrowed until the work completes. No two tensors overlap.
 * @param n in: the number of tensors, at most 32768.
 * @param op in: as dist_all_reduce_list.
 * @param options in, optional: as dist_broadcast_list.
 * @param work out, optional: as dist_broadcast_list.
 * @agree the list, op, DIST_CALL_CANONICAL and label; the order of calls on the group.
 * @blocks as dist_all_reduce.
 * @return as dist_broadcast_list.
 * @threads as dist_all_reduce.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reduce_scatter_list(dist_group_t *group,
                                       const struct dist_tensor_t *tensors,
                                       size_t n,
                                       dist_op_t op,
                                       const struct dist_call_options_t *options,
                                       struct dist_work_t **work);

/**
 * Gives every rank the root's byte string, which may have any length.
 *
 * The call is two operations with two sequence numbers: the first transfers the length, and
 * the second transfers the bytes. The bytes are in host memory.
 *
 * @param group in: the group.
 * @param data in, optional: on the root, the bytes to send; borrowed until the work completes;
 *   NULL only if `len_bytes` is 0. Not used on other ranks.
 * @param len_bytes in: the number of bytes on the root. Not used on other ranks.
 * @param root in: the rank that has the bytes.
 * @param out out: a blob with one string, also on the root; owned by the caller, released with
 *   dist_blob_release; `*out` is NULL on failure, and until the call completes. The variable
 *   `*out` is borrowed until the work completes.
 * @param options in, optional: NULL for all defaults; borrowed for the call. The call uses
 *   only timeout_ms and label; algorithm must be NULL.
 * @param work out, optional: as dist_all_reduce.
 * @agree root and label; the order of calls on the group.
 * @blocks as dist_broadcast.
 * @return as dist_all_reduce. DIST_ERR_OUT_OF_MEMORY also if a rank has no memory for its
 *   strings, which fails the group.
 * @threads as dist_all_reduce.
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
 * Gives every rank the byte strings of all ranks; each string may have any length.
 *
 * The call is two operations, one for the lengths and one for the bytes (see
 * dist_broadcast_bytes).
 *
 * @param group in: the group.
 * @param data in: this rank's bytes; borrowed until the work completes; NULL only if
 *   `len_bytes` is 0.
 * @param len_bytes in: the number of bytes on this rank.
 * @param out out: a blob with one string per rank, in rank order; owned by the caller,
 *   released with dist_blob_release; `*out` is NULL on failure, and until the call completes.
 *   The variable `*out` is borrowed until the work completes.
 * @param options in, optional: as dist_broadcast_bytes.
 * @param work out, optional: as dist_all_reduce.
 * @agree label, and the order of calls on the group.
 * @blocks as dist_all_reduce.
 * @return as dist_all_reduce. DIST_ERR_OUT_OF_MEMORY also if a rank has no memory for its
 *   strings, which fails the group.
 * @threads as dist_all_reduce.
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
 * Gives the root the byte strings of all ranks; each string may have any length.
 *
 * The call is two operations, one for the lengths and one for the bytes (see
 * dist_broadcast_bytes).
 *
 * @param group in: the group.
 * @param data in: this rank's bytes; borrowed until the work completes; NULL only if
 *   `len_bytes` is 0.
 * @param len_bytes in: the number of bytes on this rank.
 * @param root in: the rank that gets the strings.
 * @param out out, optional: on the root, a blob with one string per rank, in rank order; owned
 *   by the caller, released with dist_blob_release; `*out` is NULL on failure, and until the
 *   call completes. The variable `*out` is borrowed until the work completes. On other ranks
 *   `out` may be NULL, and `*out` is set to NULL.
 * @param options in, optional: as dist_broadcast_bytes.
 * @param work out, optional: as dist_all_reduce.
 * @agree root and label; the order of calls on the group.
 * @blocks as dist_gather.
 * @return as dist_all_reduce. DIST_ERR_OUT_OF_MEMORY also if a rank has no memory for its
 *   strings, which fails the group.
 * @threads as dist_all_reduce.
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
 * Gives each rank a byte string of its own from the root; each string may have any length.
 *
 * The call is two operations, one for the lengths and one for the bytes (see
 * dist_broadcast_bytes).
 *
 * @param group in: the group.
 * @param data in, optional: on the root, an array of one pointer per rank, borrowed for the
 *   call. The bytes at `data[i]` are for rank i and are borrowed until the work completes;
 *   `data[i]` is NULL only if `lens_bytes[i]` is 0. Not used on other ranks.
 * @param lens_bytes in, optional: on the root, one length per rank, in bytes; borrowed for the
 *   call. Not used on other ranks.
 * @param root in: the rank that has the strings.
 * @param out out: a blob with one string; owned by the caller, released with
 *   dist_blob_release; `*out` is NULL on failure, and until the call completes. The variable
 *   `*out` is borrowed until the work completes.
 * @param options in, optional: as dist_broadcast_bytes.
 * @param work out, optional: as dist_all_reduce.
 * @agree root and label; the order of calls on the group.
 * @blocks as dist_scatter.
 * @return as dist_all_reduce. DIST_ERR_OUT_OF_MEMORY also if a rank has no memory for its
 *   strings, which fails the group.
 * @threads as dist_all_reduce.
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
 * Waits until all ranks have called this barrier, or names the ranks that have not.
 *
 * Rank 0 waits for the other ranks until the time-out and sends the result to all ranks. The
 * other ranks wait for this result 500 ms longer than the time-out; with DIST_NO_WAIT, they do
 * not wait longer. If no result arrives, they report rank 0 as missing.
 *
 * A missing rank fails this barrier only, not the group. A rank that has left or died counts
 * as missing immediately. A rank that calls too late immediately gets the result of the failed
 * barrier. The next barrier is then a new one for all ranks. The order of monitored barriers
 * and collectives may differ between ranks.
 *
 * @param group in: the group.
 * @param timeout_ms in: the time-out; the default is the group's. With DIST_NO_WAIT, only
 *   ranks that have already called count as present.
 * @param wait_all_ranks in: 0 to return as soon as one rank is known to be missing, and to
 *   name only this rank. Any other number to wait for all ranks until the time-out, and to
 *   name all missing ranks.
 * @param missing out, optional: the missing ranks, in ascending order; needs `n_missing`.
 * @param n_missing in, out, optional: in, the number of ranks that fit into `missing` (the
 *   group's size always suffices). Out, the number of missing ranks.
 * @agree the number of calls, `timeout_ms` and `wait_all_ranks`.
 * @blocks Until the result is known, but at most until about 1 second after the time-out.
 * @return DIST_OK if all ranks have called. If ranks are missing, all ranks get
 *   DIST_ERR_PEER_FAILED if one of the missing ranks has left or died, otherwise
 *   DIST_ERR_TIMEOUT; the message names the missing ranks. DIST_ERR_INVALID_ARGUMENT if an
 *   argument is wrong, inside a completion callback, inside a batch, or if another thread is
 *   in this barrier on the group; DIST_ERR_UNSUPPORTED if the back end has no messages;
 *   DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED; the group's error if the group has
 *   failed.
 * @threads Any thread may call this, but only one at a time for each rank and group.
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
 * A batch collects collectives and messages. Inside a batch, a call without `work` does not
 * block: it returns DIST_OK after the check of its arguments. A call with `work` returns a
 * work, which can be waited for only after dist_batch_end. All buffers are borrowed until the
 * work of the batch completes. A batch has at most 65536 calls; a further call returns
 * DIST_ERR_OUT_OF_MEMORY.
 *
 * No call of a batch may use memory that another call of the batch writes, whatever the sizes
 * and the groups of the two calls are. The buffer of dist_broadcast counts as written also on
 * the root. If two collectives break this rule on a rank, their groups fail with
 * DIST_ERR_INVALID_ARGUMENT on all ranks.
 *
 * The library fuses small collectives: it runs several calls as one operation with one
 * sequence number and the shortest of their time-outs. Calls are fused if all of these
 * conditions hold:
 *
 * - They are calls of dist_all_reduce, dist_reduce, dist_broadcast, dist_all_gather or
 *   dist_reduce_scatter in host memory.
 * - They follow each other on a group, and have the same dtype, op, root and
 *   DIST_CALL_CANONICAL flag.
 * - The longer buffer of each call has at most 16 KiB, and all calls together have at most 256
 *   KiB.
 * - They do not use DIST_PREMUL_SUM, an operator of dist_op_create or a chosen algorithm.
 *
 * On one host, the results of fused calls are bitwise those of single calls. Between hosts,
 * the library may reduce floating-point sums in the order that it uses for a vector of the
 * total length.
 *
 * @param groups in, optional: the groups that the batch may use, none of them NULL; NULL only
 *   if `n` is 0; borrowed for the call.
 * @param n in: the number of groups; 0 allows any group.
 * @agree the collectives of the batch and their order on each group; otherwise the ranks get
 *   DIST_ERR_MISMATCH.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if the thread has already begun a batch or
 *   `groups` is wrong; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED.
 * @threads Any thread may call this at any time. Each thread has its own batch.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_batch_begin(dist_group_t *const *groups, size_t n);

/**
 * Ends the calling thread's batch and issues its calls.
 *
 * The library issues the calls on all groups in this order: operations of NCCL, receives,
 * sends, and then the other collectives in the order of the calls. The operations of NCCL are
 * issued as one operation on all their groups, devices and streams. Therefore, whatever the
 * order of the sends, receives and groups in the batches is, the ranks do not deadlock. The
 * batch has ended even if dist_batch_end fails.
 *
 * @param work out, optional: the work of the batch, owned by the caller, released with
 *   dist_work_release; `*work` is NULL on failure. If `work` itself is NULL, the call blocks.
 *   The work completes when all operations have completed, with the first error in the order
 *   of the calls.
 * @agree the collectives of the batch and their order on each group.
 * @blocks Until all operations have completed, but at most until their deadlines. A call with
 *   `work` does not block.
 * @return DIST_OK. DIST_ERR_INVALID_ARGUMENT if the thread has no batch, or if a call without
 *   `work` is made inside a completion callback; then the operations end with
 *   DIST_ERR_ABORTED. DIST_ERR_OUT_OF_MEMORY if there are too many works. Without `work`, also
 *   the first error of an operation in the order of the calls.
 * @threads Any thread may call this at any time.
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
 * @threads Any thread may call this at any time.
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
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
int32_t dist_work_tag(const struct dist_work_t *work);

/**
 * Reports whether a work of a list is done.
 *
 * @param works in: as in dist_work_wait_all.
 * @param n in: the length of the list.
 * @param index out: as in dist_work_wait_any.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK, also if all entries are NULL. If the work at `index` has failed, its error.
 *   DIST_IN_PROGRESS if no work is done; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if
 *   an argument is wrong, also if `index` is NULL.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_work_test_any(struct dist_work_t *const *works,
                                 size_t n,
                                 size_t *index);

/* All defaults; assign the fields that differ. */
#define DIST_CALL_OPTIONS_INIT { sizeof(dist_call_options_t), 0, 0.0, DIST_NULL, 0, DIST_NULL, \
    0, 0, DIST_NULL }
#define DIST_TENSOR_INIT { sizeof(dist_tensor_t), 0, DIST_NULL, DIST_NULL, DIST_NULL, 0, 0, 0 }

/*
 * Messages
 *
 * Messages that one rank sends to another rank.
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
 * Owned by the caller, who passes it to dist_recv_message or dist_message_release. Any thread may
 * use it. The message does not keep its group alive: when the group ends, the message is lost.
 */
typedef struct dist_message_t dist_message_t;

/**
 * Source, tag, count and type of a received message.
 *
 * The caller sets struct_size (DIST_RECV_STATUS_INIT), and the library writes the other fields. It
 * writes struct_size bytes in all; fields that only a newer version knows become zero.
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
     * The library writes 0.
     */
    int32_t reserved;
} dist_recv_status_t;

/**
 * Sends a byte string of any length to one rank of a group.
 *
 * The message is the same as that of dist_send with `len_bytes` elements of DIST_U8. The
 * receiver may call dist_recv_bytes, or dist_recv with DIST_U8.
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
 * @threads Any thread may call this at any time.
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
 * The call receives the first message that matches `peer` and `tag`. The sender calls
 * dist_send_bytes, or dist_send with DIST_U8.
 *
 * @param group in: the group.
 * @param out out: a blob with one string; owned by the caller, released with
 *   dist_blob_release; `*out` is NULL on failure, and until the call completes. The variable
 *   `*out` is borrowed until the work completes.
 * @param max_bytes in: the longest message that the call accepts, in bytes; 0 for any length.
 * @param peer in: the sender, a rank of the group, or DIST_ANY_SOURCE.
 * @param tag in: 0 or more, or DIST_ANY_TAG.
 * @param status out, optional: as dist_recv. The count in `status` is the length of the
 *   message in bytes.
 * @param options in, optional: as dist_recv.
 * @param work out, optional: as dist_recv. dist_work_received_count returns the length of the
 *   message in bytes.
 * @agree the sender and the receiver agree on the tag.
 * @blocks as dist_recv.
 * @return as dist_send. DIST_ERR_MISMATCH also if the message is longer than `max_bytes` or
 *   has another dtype; DIST_ERR_OUT_OF_MEMORY also if there is no memory for the message.
 *   After these two errors the message stays for the next receive.
 * @threads Any thread may call this at any time.
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
 * Messages from one rank with one tag are received in the order in which they were sent.
 * Messages in host memory never wait for collectives. A send may complete before its receiver
 * has called: it completes when the library has copied or delivered the message. With
 * DIST_CALL_SYNCHRONOUS in the flags, it completes only after a receive has matched the
 * message.
 *
 * NCCL transfers messages in GPU memory in one order, without tags. Over NCCL, the tag is 0,
 * the receiver names the sender, and both ranks pass the same count.
 *
 * @param group in: the group.
 * @param buf in: `count` elements; borrowed until the work completes; NULL only if `count` is
 *   0.
 * @param count in: the number of elements.
 * @param dtype in: the type of the elements.
 * @param peer in: the receiver, a rank of the group, this rank included.
 * @param tag in: 0 or more.
 * @param options in, optional: NULL for all defaults; borrowed for the call; `algorithm` must
 *   be NULL.
 * @param work out, optional: NULL to block. Otherwise the call writes the work, which the
 *   caller owns and releases with dist_work_release; NULL on failure.
 * @agree the sender and the receiver agree on the tag and the dtype.
 * @blocks Until the send completes, but at most until the deadline. A call with a work or
 *   inside a batch does not block.
 * @return DIST_OK. If the call has had no effect: DIST_ERR_INVALID_ARGUMENT if an argument is
 *   wrong or the call would block inside a completion callback; DIST_ERR_INVALID_HANDLE;
 *   DIST_ERR_NOT_INITIALIZED; DIST_ERR_UNSUPPORTED if the group's back end has no messages, no
 *   synchronous send, or no messages with this tag or peer in the memory of a GPU;
 *   DIST_ERR_OUT_OF_MEMORY if 65536 messages of this rank in the group are outstanding or the
 *   batch has 65536 calls; DIST_ERR_MISMATCH, once, if a receive has refused an earlier
 *   message of this rank because of its dtype or length. A blocking call returns the following
 *   errors; otherwise the work reports them: DIST_ERR_TIMEOUT; DIST_ERR_PEER_FAILED; the
 *   group's error if the group has failed. DIST_ERR_TIMEOUT and DIST_ERR_PEER_FAILED fail the
 *   group only if a part of the message was transferred.
 * @threads Any thread may call this at any time.
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
 * A message and a receive match if sender, tag and group match. A receive takes the first
 * matching message in the order of the sends, and a message goes to the first matching receive
 * in the order of the receives. If the message is shorter than the buffer, the rest of the
 * buffer stays unchanged. For the memory of a GPU over NCCL, see dist_send.
 *
 * @param group in: the group.
 * @param buf out: a buffer for `count` elements; borrowed until the work completes; NULL only
 *   if `count` is 0.
 * @param count in: the most elements that the call accepts.
 * @param dtype in: the type of the elements, the same as the sender's.
 * @param peer in: the sender, a rank of the group, or DIST_ANY_SOURCE.
 * @param tag in: 0 or more, or DIST_ANY_TAG.
 * @param status out, optional: source, tag, count and dtype of the message, written on
 *   success. With a work and inside a batch, it must be NULL: use dist_work_source,
 *   dist_work_tag and dist_work_received_count.
 * @param options in, optional: as in dist_send, without DIST_CALL_SYNCHRONOUS.
 * @param work out, optional: as in dist_send.
 * @agree the sender and the receiver agree on the tag and the dtype.
 * @blocks Until the message is in `buf`, but at most until the deadline. A call with a work or
 *   inside a batch does not block.
 * @return The results of dist_send, and DIST_ERR_MISMATCH if the message is longer than
 *   `count` or has another dtype. In this case, the library writes nothing, and the next
 *   receive may take the message. With the native back end, the next send or receive of the
 *   sender returns DIST_ERR_MISMATCH, too.
 * @threads Any thread may call this at any time.
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
 * Finds a message before it is received, and optionally takes it out of matching.
 *
 * The call finds the message that a receive with the same arguments would take.
 *
 * - If `message` is not NULL, the call takes the message out of matching: no other receive and
 *   no other probe can find it. dist_recv_message receives it.
 * - If `message` is NULL, the call only reports the message. Another thread may receive the
 *   message before this thread does.
 *
 * As in MPI, a receive on another thread may take a message for which this call waits.
 * Messages in the memory of a GPU are not found. A probe does not join a batch: it runs
 * immediately.
 *
 * @param group in: the group.
 * @param peer in: the sender, a rank of the group, or DIST_ANY_SOURCE.
 * @param tag in: 0 or more, or DIST_ANY_TAG.
 * @param status out, optional: source, tag, count and dtype of the message, written on
 *   success.
 * @param options in, optional: as in dist_recv. With timeout_ms DIST_NO_WAIT, the call does
 *   not block.
 * @param message out, optional: NULL to only report the message. Otherwise the call writes the
 *   message, which the caller owns and passes to dist_recv_message or dist_message_release;
 *   NULL if none was found.
 * @agree nothing.
 * @blocks Until there is a matching message, but at most until the deadline. A call with
 *   DIST_NO_WAIT does not block.
 * @return DIST_OK; DIST_IN_PROGRESS with DIST_NO_WAIT if there is no message;
 *   DIST_ERR_INVALID_ARGUMENT if an argument is wrong or the call would block inside a
 *   completion callback; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED;
 *   DIST_ERR_UNSUPPORTED if the group's back end cannot probe (plug-ins cannot);
 *   DIST_ERR_TIMEOUT; DIST_ERR_PEER_FAILED if the sender has left and none of its messages
 *   remains; the group's error if the group has failed.
 * @threads Any thread may call this at any time.
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
 * The call consumes the handle, even if the operation fails. The handle stays valid only if
 * the call has had no effect: after a wrong argument, DIST_ERR_MISMATCH, DIST_ERR_UNSUPPORTED
 * or DIST_ERR_OUT_OF_MEMORY. If the deadline passes before any part of the message was
 * transferred, the message returns to matching.
 *
 * A byte string (dist_send_bytes) is received as DIST_U8. The status of the probe has its
 * length.
 *
 * @param message in: the message.
 * @param buf out: a buffer for `count` elements in host memory; borrowed until the work
 *   completes; NULL only if `count` is 0.
 * @param count in: the most elements that the call accepts.
 * @param dtype in: the type of the elements, the same as the sender's.
 * @param status out, optional: as in dist_recv.
 * @param options in, optional: as in dist_recv.
 * @param work out, optional: as in dist_recv.
 * @agree the sender and the receiver agree on the dtype.
 * @blocks Until the message is in `buf`, but at most until the deadline. A call with a work or
 *   inside a batch does not block.
 * @return The results of dist_recv, and these errors: DIST_ERR_MISMATCH if the message is
 *   longer than `count` or has another dtype; the library then writes nothing.
 *   DIST_ERR_INVALID_HANDLE if the group of the message was released or another call receives
 *   the message. DIST_ERR_ABORTED if the sender withdrew the message because its deadline
 *   passed. DIST_ERR_PEER_FAILED if the sender left before the message was transferred.
 * @threads Any thread may call this at any time. If several calls receive the same message,
 *   only one succeeds.
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
 * Returns a message to matching, to its old position in the order of messages.
 *
 * dist_probe took the message out of matching. The next receive or probe that matches the
 * message can find it again.
 *
 * @param message in, optional: the message; the handle is consumed. NULL does nothing.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK, also if the group was released or has failed; DIST_ERR_INVALID_HANDLE if
 *   the message was received or released.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
dist_status_t dist_message_release(struct dist_message_t *message);

/**
 * Sends one message and receives another at the same time.
 *
 * Both directions progress concurrently, so a ring of ranks that all call this function does
 * not deadlock, whatever the size. The messages match other calls like the messages of
 * dist_send and dist_recv. Both buffers are in host memory.
 *
 * The two buffers may overlap or be equal: the received message does not overwrite elements
 * that are not sent yet. In this case, the library needs memory of the size of the received
 * message.
 *
 * With a work, dist_work_source, dist_work_tag and dist_work_received_count describe the
 * receive.
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
 * @param status out, optional: the status of the received message, as in dist_recv.
 * @param options in, optional: as in dist_send; DIST_CALL_SYNCHRONOUS applies to the send.
 * @param work out, optional: as in dist_send. The work completes when both messages are done.
 * @agree each sender and its receiver agree on the tag and the dtype.
 * @blocks Until both messages are done, but at most until the deadline. A call with a work or
 *   inside a batch does not block.
 * @return The results of dist_send and dist_recv. The outcome is known when both messages have
 *   ended. If both messages have failed, it is the error of the receive.
 * @threads Any thread may call this at any time.
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
 * A work is an operation that a call has issued and that may still be running.
 */

/**
 * Receives the outcome of a work.
 *
 * `status` is DIST_OK or the error. `message` is the error's text ("" for DIST_OK), borrowed for
 * the call. `user` is the pointer that the caller passed together with the function. The library
 * calls these functions one after the other, on a thread of its own. The function must not throw
 * and must not make calls that block (dist_work_on_complete).
 */
typedef void (*dist_work_fn)(dist_status_t status, const char *message, void *user);

/**
 * Waits until a work is done.
 *
 * While it waits, the thread may run operations of the work's group. After any result except
 * DIST_IN_PROGRESS, the library no longer uses the operation's buffers. A GPU may still use
 * them until dist_work_synchronize has returned DIST_OK.
 *
 * @param work in: the work.
 * @param timeout_ms in: how long to wait; the default is until the operation's own deadline.
 * @agree nothing.
 * @blocks Until the work is done, but at most until the time-out.
 * @return DIST_OK. DIST_IN_PROGRESS if the time-out passed before the work was done: the
 *   operation continues, and its buffers stay borrowed. If the operation has failed, its
 *   error, which is the same for each call. DIST_ERR_TIMEOUT always means that the operation's
 *   own deadline has passed, and is final. DIST_ERR_INVALID_HANDLE. DIST_ERR_INVALID_ARGUMENT
 *   if the time-out is wrong, or if the call would wait for a work whose batch has not ended,
 *   or would wait inside a completion callback.
 * @threads Any thread may call this at any time. Several threads may wait for one work, any
 *   number of times.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_work_wait(dist_work_t *work, int64_t timeout_ms);

/**
 * Waits for a work in one slice of a longer wait, so that the caller can do something between.
 *
 * An interpreter can run the handlers of signals between two slices. The caller repeats the
 * call until the work is done or the whole wait is over. The search for deadlocks regards the
 * slices as one wait, while a wait with a short time-out counts as one that ends by itself. So
 * the caller must not intend to end the wait before `timeout_ms`. Any other call of the thread
 * ends the wait in the view of the search.
 *
 * @param work in: the work.
 * @param timeout_ms in: how long the whole wait may still take. The default is until the
 *   operation's own deadline.
 * @param slice_ms in: how long this call waits at most. The default is 50 ms.
 * @agree nothing.
 * @blocks Until the work is done, but at most for one slice and until the time-out.
 * @return The results of dist_work_wait. DIST_IN_PROGRESS if the work is not done after the
 *   slice.
 * @threads As for dist_work_wait.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_work_wait_slice(dist_work_t *work,
                                   int64_t timeout_ms,
                                   int64_t slice_ms);

/**
 * Waits until a work is done and, for the memory of a GPU, until the device is done as well.
 *
 * An operation over NCCL is done as soon as it is in its stream (`stream` in
 * dist_call_options_t). The caller may then put more work into that stream, but the
 * operation's buffers stay borrowed until the device is done. For all other works, this call
 * is the same as dist_work_wait, also if the native back end serves the memory of a GPU.
 *
 * @param work in: the work, also of a batch.
 * @param timeout_ms in: as in dist_work_wait.
 * @agree nothing.
 * @blocks Until the work and the device are done, but at most until the time-out.
 * @return The results of dist_work_wait. For an operation on a device, also the failure of its
 *   group, including DIST_ERR_TIMEOUT; the contents of the operation's output buffers are then
 *   undefined. For such an operation, also DIST_ERR_INVALID_ARGUMENT inside a completion
 *   callback.
 * @threads Any thread may call this at any time. Several threads may wait for one work, any
 *   number of times.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_work_synchronize(dist_work_t *work, int64_t timeout_ms);

/**
 * Copies the message of a work's error: "" while the work is pending and if it has succeeded.
 *
 * @param work in: the work.
 * @param buf out: as in dist_last_error_copy; NULL only if `cap` is 0.
 * @param cap in: as in dist_last_error_copy.
 * @agree nothing.
 * @blocks no.
 * @return the number of bytes of the whole message with its terminator; 0 for an invalid
 *   handle, and if `buf` is NULL and `cap` is not 0.
 * @threads Any thread may call this at any time.
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
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
uint64_t dist_work_sequence(const dist_work_t *work);

/**
 * Returns when a work was issued, in nanoseconds since 1970, as in the flight recorder.
 *
 * The library reads CLOCK_REALTIME once, when the recorder begins, and then adds the time of
 * the monotonic clock. Later changes of the wall clock therefore do not affect the result.
 *
 * @param work in: the work.
 * @agree nothing.
 * @blocks no.
 * @return the time; 0 for an invalid handle, and before the work's batch has ended.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
uint64_t dist_work_start_ns(const dist_work_t *work);

/**
 * Returns the time from the issue of a work until it was done, in nanoseconds.
 *
 * For a pending work, this is the time from its issue until now.
 *
 * @param work in: the work.
 * @agree nothing.
 * @blocks no.
 * @return the time; 0 for an invalid handle, and before the work's batch has ended.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
uint64_t dist_work_elapsed_ns(const dist_work_t *work);

/**
 * Returns the rank that sent the received message; for a send, the rank that receives it.
 *
 * @param work in: the work.
 * @agree nothing.
 * @blocks no.
 * @return the rank; -1 for an invalid handle, while the work is pending, after an error, and
 *   if the work is no message.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
int32_t dist_work_source(const dist_work_t *work);

/**
 * Returns how many elements a work has received.
 *
 * The message may have fewer elements than the buffer.
 *
 * @param work in: the work.
 * @agree nothing.
 * @blocks no.
 * @return the number; 0 for an invalid handle, while the work is pending, after an error, and
 *   if the work is no receive.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
size_t dist_work_received_count(const dist_work_t *work);

/**
 * Releases a work.
 *
 * If the work is pending, its operation continues: the buffers stay borrowed until it is done,
 * and the library still calls its callbacks.
 *
 * @param work in, optional: the work; the handle is consumed. NULL does nothing.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
dist_status_t dist_work_release(dist_work_t *work);

/**
 * Waits until all works of a list are done.
 *
 * While it waits, the thread may run operations of the works' groups. The rules of
 * dist_work_wait for buffers and for repeated waits apply to each work.
 *
 * @param works in: `n` works of any groups, borrowed for the call; NULL entries are skipped;
 *   NULL only if `n` is 0.
 * @param n in: the length of the list.
 * @param timeout_ms in: for all works together; the default is until the operations' own
 *   deadlines.
 * @agree nothing.
 * @blocks Until all works are done, but at most until the time-out.
 * @return DIST_OK. DIST_IN_PROGRESS if the time-out passed before all works were done. If all
 *   works are done and some have failed: the first error in the order of the list, whose
 *   message begins with the index of the work. DIST_ERR_INVALID_HANDLE, whose message names
 *   the index of the wrong handle. DIST_ERR_INVALID_ARGUMENT if an argument is wrong, or if
 *   the call would wait for a work whose batch has not ended, or would wait inside a
 *   completion callback.
 * @threads Any thread may call this at any time. Several threads may wait for the same works.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_work_wait_all(dist_work_t *const *works,
                                 size_t n,
                                 int64_t timeout_ms);

/**
 * Waits until at least one work of a list is done.
 *
 * If several works are done, the call reports the first one in the list. To wait for the
 * remaining works, replace this work by NULL and call again.
 *
 * @param works in: as in dist_work_wait_all.
 * @param n in: the length of the list.
 * @param timeout_ms in: how long to wait; the default is until the operations' own deadlines.
 * @param index out: the index of the work that is done; `n` if there is none.
 * @agree nothing.
 * @blocks Until a work is done, but at most until the time-out.
 * @return DIST_OK, also if all entries are NULL. If the work at `index` has failed, its error.
 *   DIST_IN_PROGRESS if the time-out passed before a work was done. DIST_ERR_INVALID_HANDLE
 *   and DIST_ERR_INVALID_ARGUMENT as in dist_work_wait_all; `index` is then `n`.
 *   DIST_ERR_INVALID_ARGUMENT also if `index` is NULL.
 * @threads Any thread may call this at any time. Several threads may wait for the same works.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_work_wait_any(dist_work_t *const *works,
                                 size_t n,
                                 int64_t timeout_ms,
                                 size_t *index);

/**
 * Waits for any work of a list in one slice of a longer wait.
 *
 * This is to dist_work_wait_any what dist_work_wait_slice is to dist_work_wait. The caller
 * repeats the call with the same list.
 *
 * @param works in: as in dist_work_wait_all.
 * @param n in: the length of the list.
 * @param timeout_ms in: how long the whole wait may still take. The default is until the
 *   operations' own deadlines.
 * @param slice_ms in: how long this call waits at most. The default is 50 ms.
 * @param index out: as in dist_work_wait_any.
 * @agree nothing.
 * @blocks Until a work is done, but at most for one slice and until the time-out.
 * @return The results of dist_work_wait_any. DIST_IN_PROGRESS if no work is done after the
 *   slice.
 * @threads As for dist_work_wait_any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_work_wait_any_slice(dist_work_t *const *works,
                                       size_t n,
                                       int64_t timeout_ms,
                                       int64_t slice_ms,
                                       size_t *index);

/**
 * Registers a function that the library calls once a work is done.
 *
 * One thread of the library calls the functions of all works, one after the other, in the
 * order in which the works were done. If the work is already done, this thread calls the
 * function as soon as it can; dist_work_on_complete itself never calls it. A work may have
 * several functions. A function must not throw.
 *
 * Inside such a function, asynchronous calls are allowed. Calls that may block return
 * DIST_ERR_INVALID_ARGUMENT:
 *
 * - collectives, messages and dist_batch_end without a work;
 * - waits for pending works;
 * - dist_init, dist_finalize, dist_spawn and dist_callbacks_stop;
 * - calls that create, split or shrink groups, and calls that use stores.
 *
 * dist_finalize calls the functions of the world's works while the world still exists. If one
 * of them does not return, dist_finalize drops the functions after it.
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
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_work_on_complete(dist_work_t *work,
                                    dist_work_fn function,
                                    void *user);

/**
 * Withdraws a function that dist_work_on_complete registered and that has not been called.
 *
 * If a function was registered several times with the same pointer, each call withdraws one
 * registration. After DIST_OK the library does not call the function for this registration,
 * and does not use the `user` of this registration any more.
 *
 * @param work in: the work.
 * @param function in: the function that was registered.
 * @param user in, optional: the pointer that was registered with the function.
 * @agree nothing.
 * @blocks No. The call does not wait for a function that is running.
 * @return DIST_OK; DIST_ERR_NOT_FOUND if the function was not registered, has been called or
 *   is running; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `function` is NULL.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_work_remove_callback(dist_work_t *work,
                                        dist_work_fn function,
                                        void *user);

/**
 * Stops all completion callbacks of the process.
 *
 * The function is for an interpreter that is about to end. The library first calls the
 * callbacks of works that are done. It drops the callbacks of pending works, and all callbacks
 * that have not begun at the time-out. After DIST_OK no callback runs, and no callback will be
 * called. Until dist_callbacks_start, dist_work_on_complete returns DIST_ERR_NOT_INITIALIZED.
 *
 * Works continue. The library still calls other functions of the caller: those of a store, of
 * a back end and of the log.
 *
 * @param timeout_ms in: how long to wait; the default is 5 seconds.
 * @agree nothing.
 * @blocks Until the callbacks have returned and their thread has ended, but at most until the
 *   time-out.
 * @return DIST_OK; DIST_IN_PROGRESS if a callback or the thread of the callbacks still runs at
 *   the time-out (call the function again); DIST_ERR_INVALID_ARGUMENT for a wrong time-out,
 *   and inside a callback.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_callbacks_stop(int64_t timeout_ms);

/**
 * Allows completion callbacks again after dist_callbacks_stop.
 *
 * Callbacks that dist_callbacks_stop dropped are not called.
 *
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK, also if callbacks were not stopped.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
dist_status_t dist_callbacks_start(void);

/**
 * Returns a descriptor that is readable while done works of a group have not been taken.
 *
 * The descriptor is for poll, epoll, asyncio and tokio. Wait until it is readable, then call
 * dist_group_take_done until the result is less than `cap`. The library makes progress without
 * further calls.
 *
 * The descriptor reports works with handles: the works of collectives, of messages, and of
 * batches whose calls are all in this group. For a batch over several groups, the groups
 * report the works of its calls, but no group reports the work of the batch. Waiting for a
 * work does not take it: the descriptor reports the work until it is taken or released.
 * dist_work_wait may return for a work shortly before the descriptor reports the work.
 *
 * @param group in: the group.
 * @agree nothing.
 * @blocks no.
 * @return the descriptor, greater than 2, the same for each call; -1 on failure. The
 *   descriptor is static: the caller does not read, write or close it. dist_group_release
 *   closes it; for the world, dist_finalize closes it. Remove the descriptor from the event
 *   loop before that.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
int32_t dist_group_fd(dist_group_t *group);

/**
 * Takes the works of a group that are done and not yet taken, in the order of completion.
 *
 * The first call of dist_group_fd starts the list of done works. Works that were done before
 * this call are in the list too, unless they were released. When the list is empty, the
 * descriptor is not readable.
 *
 * @param group in: the group.
 * @param out out: the handles of the taken works, the same handles that the calls returned.
 *   The caller still releases each handle once. NULL only if `cap` is 0.
 * @param cap in: the capacity of `out`, in handles.
 * @agree nothing.
 * @blocks no.
 * @return the number of handles written; 0 if no work is done, before the first call of
 *   dist_group_fd, and on failure.
 * @threads Any thread may call this at any time. Each work is taken once.
 * @since 0.1
 */
size_t dist_group_take_done(dist_group_t *group, dist_work_t **out, size_t cap);

/**
 * Returns the rank that a work's error names, with the kind of its failure and its process.
 *
 * @param work in: the work.
 * @param out out: the culprit. Its kind is DIST_CULPRIT_NONE and its rank -1 if the work is
 *   pending or has succeeded, and if the error of the work names no rank. Set struct_size
 *   before the call (DIST_CULPRIT_INIT).
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE (`out` then has the kind DIST_CULPRIT_NONE);
 *   DIST_ERR_INVALID_ARGUMENT if `out` is NULL or its struct_size is wrong.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_work_culprit(const dist_work_t *work, dist_culprit_t *out);

/*
 * Stores
 *
 * Key-value stores, through which ranks find each other; programs may use them, too.
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
     * The name of the job, the same for all its processes; NULL for none. The file of a job with
     * another name is refused.
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
 * `bytes` is borrowed for the call. `sink_arg` is the pointer that the library passed together
 * with this function.
 */
typedef void (*dist_store_sink_fn)(void *sink_arg, const void *bytes, size_t len_bytes);

/**
 * The functions of a custom store (dist_store_custom_create), such as etcd or Redis.
 *
 * The library passes `user` to each function. It calls the functions from any thread, and from
 * several threads at the same time. Each function returns a status within `timeout_ms` (1 or more,
 * or DIST_WAIT_FOREVER). Keys are terminated strings; values are bytes.
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
     * Required. Adds `amount` to a counter and writes the sum. A counter is decimal text; a
     * missing counter is 0.
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
     * Required. Without waiting, writes 1 if all keys exist, otherwise 0.
     */
    dist_status_t (*check)(void *user,
                           const char *const *keys,
                           size_t n,
                           int32_t *all_present,
                           int64_t timeout_ms);
    /**
     * Required. Removes a key, and writes 1 if the key existed, otherwise 0.
     */
    dist_status_t (*delete_key)(void *user, const char *key, int32_t *deleted, int64_t timeout_ms);
    /**
     * Optional. Called once, after the last use of the store.
     */
    void (*destroy)(void *user);
    /**
     * Optional. Stores `desired` if the value is `expected`, or if the key is missing and
     * `expected` is empty. Then passes the resulting value to the sink once. If the key is missing
     * and `expected` is not empty, the resulting value is `expected`.
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
     * Optional. Appends bytes to a value, or creates a missing value.
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
     * Optional. Appends an item to a queue. The library uses the three queue functions only if all
     * three are set; otherwise it implements queues with keys.
     */
    dist_status_t (*queue_push)(void *user,
                                const char *queue,
                                const void *item,
                                size_t len_bytes,
                                int64_t timeout_ms);
    /**
     * Optional. Takes the first item of a queue and passes it to the sink once. If the queue is
     * empty, the function waits if `block` is not 0, and returns DIST_ERR_QUEUE_EMPTY if `block`
     * is 0.
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
    /**
     * Optional. Writes a second pointer to the same store, for example with a connection of its
     * own. A wait through one pointer must not block calls through the other pointer. The library
     * calls `destroy` once for each pointer. Without this function, all handles and threads share
     * one pointer.
     */
    dist_status_t (*clone)(void *user, void **copy, int64_t timeout_ms);
    /**
     * Optional. Ends the wait of another thread through this pointer: `wait` returns
     * DIST_ERR_ABORTED at once. If no thread waits, the next `wait` through this pointer returns
     * at once. The library calls this function only for pointers of `clone`, and needs `clone`
     * for it. It then waits once for the whole time. Without this function, the library polls with
     * `check`.
     */
    void (*interrupt)(void *user);
} dist_store_vtable_t;

/**
 * Opens a store in a file, and creates the file if it is missing.
 *
 * The processes share a file system whose file locks work between all of them. Only this user
 * can read and write the file (mode 0600). A process leaves the store when it releases its
 * last handle. After `world_size` processes have opened the file, the last process that leaves
 * removes the file.
 *
 * The call fails immediately if the file is a leftover of an earlier run. A file is a leftover
 * in these cases:
 *
 * - It belongs to another job or another world size.
 * - All its processes have already opened it.
 * - Processes of this host have ended without leaving it.
 *
 * If the disk is full, the storing call returns DIST_ERR_SYSTEM and stores nothing; the store
 * remains usable.
 *
 * A process that has made this call must not be forked without exec, because the child would
 * share the locks. The library refuses all calls in such a child, and dist_spawn refuses this
 * process.
 *
 * @param path in: the path of the file; borrowed for the call.
 * @param world_size in: how many times the file will be opened; 0 if the number is not known.
 * @param options in, optional: the options; borrowed for the call; NULL for defaults.
 * @param out out: the store; owned by the caller, released with dist_store_release; NULL on
 *   failure.
 * @agree world_size and the job_id of the options.
 * @blocks While other processes lock the file, but at most until `timeout_ms`.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if an argument is wrong or inside a completion
 *   callback; DIST_ERR_UNSUPPORTED if `options` has a newer field; DIST_ERR_NOT_INITIALIZED in
 *   a forked child; DIST_ERR_MISMATCH if the file is unsuitable, for instance a leftover (the
 *   message has its kind, age and owner); DIST_ERR_TIMEOUT; DIST_ERR_SYSTEM.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_store_file_create(const char *path,
                                     int32_t world_size,
                                     const struct dist_store_file_options_t *options,
                                     dist_store_t **out);

/**
 * Creates a store in the memory of this process, for ranks that are threads.
 *
 * @param out out: the store; owned by the caller, released with dist_store_release; NULL on
 *   failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT; DIST_ERR_NOT_INITIALIZED in a forked child.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_store_hash_create(dist_store_t **out);

/**
 * Creates a store that puts a prefix and "/" before every key of another store.
 *
 * For example, with the prefix "a", the key "b" of the new store is the key "a/b" of `inner`.
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
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_store_prefix_create(const char *prefix,
                                       size_t prefix_len_bytes,
                                       const dist_store_t *inner,
                                       dist_store_t **out);

/**
 * Creates a second handle of the same store.
 *
 * Each handle has its own time-out (dist_store_set_timeout). The new handle starts with the
 * time-out of `store`. If `store` is a custom store with the function `clone`, the library
 * calls this function, so that a wait through one handle does not block the other handle.
 *
 * @param store in: the store.
 * @param out out: the handle; owned by the caller, released with dist_store_release; NULL on
 *   failure.
 * @agree nothing.
 * @blocks no, except in the function `clone` of a custom store.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT; DIST_ERR_INVALID_HANDLE;
 *   DIST_ERR_NOT_INITIALIZED in a forked child; the errors of a custom store.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_store_clone(const dist_store_t *store, dist_store_t **out);

/**
 * Stores a value under a key and replaces an earlier value.
 *
 * The store replaces the whole value atomically. If several values arrive concurrently, the
 * last one stays. Hash and file stores have the value when the call returns. On other stores,
 * the call does not wait for an answer:
 *
 * - Every later call of this process on the store sees the value, through any handle and any
 *   thread.
 * - Other processes see the value at the latest when this process has received the answer to a
 *   later call. The cheapest call with an answer is dist_store_check without keys.
 * - If the connection breaks before that, this later call returns DIST_ERR_CONNECTION, and its
 *   message has the number of calls that may be lost.
 *
 * The same rules apply to dist_store_append, dist_store_multi_set and dist_store_queue_push.
 *
 * A key may contain any bytes, including zero bytes. Only custom stores get keys as C strings
 * and refuse keys with a zero byte. On TCP and file stores, a key has at most 8191 bytes, and
 * a value at most 8 MiB. A call takes at most 131072 keys and 256 MiB in all.
 *
 * @param store in: the store.
 * @param key in: the key; borrowed for the call; NULL only if `key_len_bytes` is 0.
 * @param key_len_bytes in: the length of the key; DIST_TERMINATED for a C string.
 * @param value in: `len_bytes` bytes; borrowed for the call; NULL only if `len_bytes` is 0.
 * @param len_bytes in: the length of the value.
 * @agree nothing.
 * @blocks While the connection to the store is congested or other processes lock the file, but
 *   at most until the store's time-out.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if an argument is wrong or inside a completion
 *   callback; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED in a forked child;
 *   DIST_ERR_TIMEOUT; DIST_ERR_CONNECTION if the store cannot be reached; DIST_ERR_SYSTEM if
 *   the file cannot be read or written; the error of a custom store's function.
 * @threads Any thread may call this at any time.
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
 * The result is one whole value that the key had at some time during the call. With the
 * time-out DIST_NO_WAIT (dist_store_set_timeout), the call checks once.
 *
 * @param store in: the store.
 * @param key in: the key; borrowed for the call; NULL only if `key_len_bytes` is 0.
 * @param key_len_bytes in: the length of the key; DIST_TERMINATED for a C string.
 * @param out out: a blob of one byte string; owned by the caller, released with
 *   dist_blob_release; NULL on failure.
 * @agree nothing.
 * @blocks Until the key exists, but at most until the store's time-out. Other threads may use
 *   the store during this time.
 * @return The results of dist_store_set. The message of DIST_ERR_TIMEOUT names the key.
 * @threads Any thread may call this at any time.
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
 * A missing counter counts as 0. Counters are stored as the decimal text of 64-bit integers,
 * and wrap around. The call is atomic: no addition is lost. After DIST_ERR_CONNECTION or
 * DIST_ERR_TIMEOUT, the addition may or may not have happened.
 *
 * @param store in: the store.
 * @param key in: the key; borrowed for the call; NULL only if `key_len_bytes` is 0.
 * @param key_len_bytes in: the length of the key; DIST_TERMINATED for a C string.
 * @param amount in: the number to add.
 * @param out out: the sum.
 * @agree nothing.
 * @blocks For a round trip to the store, but at most until the store's time-out.
 * @return The results of dist_store_set, and DIST_ERR_NOT_A_NUMBER if the value is not a
 *   number; the value then stays unchanged.
 * @threads Any thread may call this at any time.
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
 * atomic: if several callers expect the same value, only one of them stores its `desired`
 * value. After DIST_ERR_CONNECTION or DIST_ERR_TIMEOUT, the value may or may not have been
 * stored.
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
 * @param out out: a blob with the value after the call. If the key is missing and `expected`
 *   is not empty, the blob has `expected` (as in c10d). Owned by the caller, released with
 *   dist_blob_release; NULL on failure.
 * @agree nothing.
 * @blocks For a round trip to the store, but at most until the store's time-out.
 * @return The results of dist_store_set, and DIST_ERR_UNSUPPORTED if a custom store has no
 *   such function.
 * @threads Any thread may call this at any time.
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
 * Each key existed at some time during the call, but not necessarily all keys at the same
 * time. On a store that implements queues itself, a queue that is not empty counts as a key.
 * With DIST_NO_WAIT, the call checks once.
 *
 * @param store in: the store.
 * @param keys in: `n` keys; borrowed for the call; NULL only if `n` is 0.
 * @param key_lens_bytes in, optional: `n` lengths, each as in dist_store_set; NULL for C
 *   strings; borrowed for the call.
 * @param n in: the number of keys.
 * @param timeout_ms in: the default is the store's time-out.
 * @agree nothing.
 * @blocks Until all keys exist, but at most until `timeout_ms`. Other threads may use the
 *   store during this time.
 * @return The results of dist_store_set. The message of DIST_ERR_TIMEOUT names the missing
 *   keys.
 * @threads Any thread may call this at any time.
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
 * The call checks all keys at the same time. In a custom store, this depends on its function.
 *
 * @param store in: the store.
 * @param keys in: `n` keys; borrowed for the call; NULL only if `n` is 0.
 * @param key_lens_bytes in, optional: `n` lengths, each as in dist_store_set; NULL for C
 *   strings; borrowed for the call.
 * @param n in: the number of keys.
 * @param all_present out: 1 if all keys exist, otherwise 0.
 * @agree nothing.
 * @blocks For a round trip to the store, but at most until the store's time-out.
 * @return The results of dist_store_set.
 * @threads Any thread may call this at any time.
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
 * @blocks For a round trip to the store, but at most until the store's time-out.
 * @return The results of dist_store_set, and DIST_ERR_UNSUPPORTED if a custom store has no
 *   such function.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_store_num_keys(dist_store_t *store, int64_t *out);

/**
 * Returns all keys of a store, in no particular order.
 *
 * A prefix store returns the keys under its prefix, without the prefix. The list has the keys
 * that existed at one time during the call. In a custom store, this depends on its function.
 *
 * @param store in: the store.
 * @param out out: a blob with one byte string per key; owned by the caller, released with
 *   dist_blob_release; NULL on failure.
 * @agree nothing.
 * @blocks For a round trip to the store, but at most until the store's time-out.
 * @return The results of dist_store_set, and DIST_ERR_UNSUPPORTED if the store cannot list
 *   keys (an older torch server, or a custom store without the function).
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_store_list_keys(dist_store_t *store, dist_blob_t **out);

/**
 * Removes a key.
 *
 * The call is atomic: if several callers delete the same key, only one of them finds it. Calls
 * that wait for the key continue to wait.
 *
 * @param store in: the store.
 * @param key in: the key; borrowed for the call; NULL only if `key_len_bytes` is 0.
 * @param key_len_bytes in: the length of the key; DIST_TERMINATED for a C string.
 * @param deleted out: 1 if the key existed, otherwise 0.
 * @agree nothing.
 * @blocks For a round trip to the store, but at most until the store's time-out.
 * @return The results of dist_store_set.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_store_delete_key(dist_store_t *store,
                                    const char *key,
                                    size_t key_len_bytes,
                                    int32_t *deleted);

/**
 * Appends bytes to a value, or creates a missing value.
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
 * @blocks As long as dist_store_set.
 * @return The results of dist_store_set, and DIST_ERR_UNSUPPORTED if a custom store has no
 *   such function.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_store_append(dist_store_t *store,
                                const char *key,
                                size_t key_len_bytes,
                                const void *value,
                                size_t len_bytes);

/**
 * Returns the values of several keys, and waits until all keys exist.
 *
 * All values are from the same time during the call. In a custom store, each value is from its
 * own time.
 *
 * @param store in: the store.
 * @param keys in: `n` keys; borrowed for the call; NULL only if `n` is 0.
 * @param key_lens_bytes in, optional: `n` lengths, each as in dist_store_set; NULL for C
 *   strings; borrowed for the call.
 * @param n in: the number of keys.
 * @param out out: a blob of `n` byte strings in the order of the keys; owned by the caller,
 *   released with dist_blob_release; NULL on failure.
 * @agree nothing.
 * @blocks Until all keys exist, but at most until the store's time-out. Other threads may use
 *   the store during this time.
 * @return The results of dist_store_set. The message of DIST_ERR_TIMEOUT names the missing
 *   keys.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_store_multi_get(dist_store_t *store,
                                   const char *const *keys,
                                   const size_t *key_lens_bytes,
                                   size_t n,
                                   dist_blob_t **out);

/**
 * Stores several values in one call.
 *
 * Other callers see either all of the values or none. A custom store stores the values one
 * after the other. The values become visible as in dist_store_set.
 *
 * @param store in: the store.
 * @param keys in: `n` keys; borrowed for the call; NULL only if `n` is 0.
 * @param key_lens_bytes in, optional: `n` lengths, each as in dist_store_set; NULL for C
 *   strings; borrowed for the call.
 * @param values in: `n` values; borrowed for the call. A value is NULL only if its length is
 *   0. The array is NULL only if `n` is 0.
 * @param lens_bytes in: the `n` lengths of the values; borrowed for the call; NULL only if `n`
 *   is 0.
 * @param n in: the number of keys and of values.
 * @agree nothing.
 * @blocks As long as dist_store_set.
 * @return The results of dist_store_set.
 * @threads Any thread may call this at any time.
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
 * DIST_NO_WAIT has three effects:
 *
 * - Calls that wait for other callers (dist_store_get, dist_store_wait, dist_store_multi_get,
 *   dist_store_queue_pop) check once, and return DIST_ERR_TIMEOUT if the key or item is
 *   missing.
 * - dist_store_barrier needs a time-out of its own.
 * - All other calls have a time-out of 5 minutes.
 *
 * @param store in: the store.
 * @param timeout_ms in: the default is 5 minutes.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT; DIST_ERR_INVALID_HANDLE;
 *   DIST_ERR_NOT_INITIALIZED in a forked child.
 * @threads Any thread may call this at any time.
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
 * @threads Any thread may call this at any time.
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
 * @threads Any thread may call this at any time.
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
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
size_t dist_store_host(const dist_store_t *store, char *buf, size_t cap);

/**
 * Releases a store handle.
 *
 * The store lives as long as groups, prefix stores or other handles use it. When its last user
 * is gone, the process that hosts the store stops serving.
 *
 * @param store in, optional: the handle; NULL does nothing.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED in a forked child.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
dist_status_t dist_store_release(dist_store_t *store);

/**
 * Appends an item to a queue.
 *
 * Queues and keys are separate: the same name may be a key and a queue. Only dist_store_wait
 * and the queue functions see queues. Any number of processes may push and pop concurrently.
 * Items keep the order of their arrival, and become visible as in dist_store_set.
 *
 * @param store in: the store.
 * @param key in: the name of the queue; borrowed for the call; NULL only if `key_len_bytes` is
 *   0.
 * @param key_len_bytes in: the length of the name of the queue; DIST_TERMINATED for a C
 *   string.
 * @param value in: `len_bytes` bytes; borrowed for the call; NULL only if `len_bytes` is 0.
 * @param len_bytes in: the length of the item.
 * @agree nothing.
 * @blocks As long as dist_store_set.
 * @return The results of dist_store_set.
 * @threads Any thread may call this at any time.
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
 * @blocks If `block` is not 0: until there is an item, but at most until the store's time-out.
 * @return The results of dist_store_set, and DIST_ERR_QUEUE_EMPTY if `block` is 0 and the
 *   queue is empty. The message of DIST_ERR_TIMEOUT names the queue.
 * @threads Any thread may call this at any time.
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
 * @blocks For a round trip to the store, but at most until the store's time-out.
 * @return The results of dist_store_set.
 * @threads Any thread may call this at any time.
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
 * No caller returns before `world_size` calls have been made. A key serves one barrier: after
 * it has completed, further calls with the same key return immediately. A caller that timed
 * out still counts as a caller. All callers must use the same kind of store, because the
 * barrier of a prefix store and the barrier of its inner store are different.
 *
 * @param store in: the store.
 * @param key in: the key; borrowed for the call; NULL only if `key_len_bytes` is 0.
 * @param key_len_bytes in: the length of the key; DIST_TERMINATED for a C string.
 * @param world_size in: the number of callers, 0 or more; with 0 the call returns immediately.
 * @param timeout_ms in: the default is the store's time-out. DIST_NO_WAIT is refused, also if
 *   it is the store's time-out.
 * @agree the key and world_size.
 * @blocks Until all callers have called, but at most until `timeout_ms`. Other threads may use
 *   the store during this time.
 * @return The results of dist_store_set. The message of DIST_ERR_TIMEOUT has the number of
 *   callers so far.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_store_barrier(dist_store_t *store,
                                 const char *key,
                                 size_t key_len_bytes,
                                 int32_t world_size,
                                 int64_t timeout_ms);

/**
 * Creates a store from functions of the caller.
 *
 * The library implements barriers with keys, and also queues unless all three queue functions
 * are set. Without their functions, dist_store_compare_set, _append, _num_keys and _list_keys
 * return DIST_ERR_UNSUPPORTED.
 *
 * @param functions in: the functions, copied; the required functions must be set.
 * @param user in, optional: passed to each function; must stay valid until the library has
 *   called `destroy`.
 * @param out out: the store; owned by the caller, released with dist_store_release; NULL on
 *   failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT, with the name of a missing function in the
 *   message; DIST_ERR_UNSUPPORTED if `functions` has a newer field; DIST_ERR_NOT_INITIALIZED
 *   in a forked child.
 * @threads Any thread may call this at any time.
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
    DIST_NULL, DIST_NULL, DIST_NULL, DIST_NULL, DIST_NULL }

/*
 * Memory
 *
 * Memory that operations access without a copy.
 */

/**
 * Allocates memory for buffers that other ranks of the host can access without a copy.
 *
 * All calls accept this memory like all other memory, in any group and on any thread. The
 * contents are undefined. An allocation of 2 MiB or more begins at a multiple of 2 MiB, and a
 * smaller one at a multiple of 64 bytes. All of the memory is resident when the call returns,
 * on the NUMA node of the calling thread. Small allocations share pieces of 2 MiB, which the
 * library takes from the system and gives back.
 *
 * The following holds for host memory of the native back end. In a group on one host,
 * dist_all_reduce, dist_all_gather, dist_reduce_scatter and dist_all_to_all access such
 * buffers in place under these conditions:
 *
 * - The inputs of all ranks are such memory. For dist_all_reduce, the results are also such
 *   memory.
 * - The options of the call do not choose an algorithm.
 * - The vector or block has at least 4 KiB, or at least 64 KiB if the host has fewer cores
 *   than ranks.
 *
 * For this access, the other ranks map the whole segment of this process, if the system
 * permits it.
 *
 * After a failed dist_all_reduce, a rank that was stopped may still change up to 16 KiB of the
 * result. In this case, free this memory and allocate new memory; dist_mem_alloc does not hand
 * out the affected memory again. A forked child shares the memory and must not use it.
 *
 * @param group in: the group; its back end chooses the kind of memory.
 * @param bytes in: the size; 0 gives NULL.
 * @param device in: DIST_DEVICE_HOST, or the number of the group's GPU on this rank. With NCCL
 *   2.19 or later, NCCL allocates and registers GPU memory, which makes some of its operations
 *   faster. Otherwise the memory is from cuMemAlloc.
 * @param ptr out: the memory, owned by the caller, released with dist_mem_free, also after the
 *   group's end; NULL on failure.
 * @agree nothing. For GPU memory in a group with nccl.windows=1: the order of calls and
 *   `bytes`.
 * @blocks no. For GPU memory in a group with nccl.windows=1: until all ranks have called.
 * @return DIST_OK; DIST_ERR_OUT_OF_MEMORY (the message has the requested and the available
 *   size); DIST_ERR_UNSUPPORTED if the back end has no memory of this kind;
 *   DIST_ERR_INVALID_ARGUMENT if `device` is less than DIST_DEVICE_HOST or `ptr` is NULL;
 *   DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED; DIST_ERR_SYSTEM; DIST_ERR_BACKEND if
 *   the GPU or NCCL failed.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_mem_alloc(const dist_group_t *group,
                             size_t bytes,
                             int32_t device,
                             void **ptr);

/**
 * Frees memory that dist_mem_alloc returned.
 *
 * No operation may still use the memory. The call also works after the group's release and
 * after dist_finalize.
 *
 * @param ptr in, optional: the pointer that dist_mem_alloc returned; NULL does nothing.
 * @agree nothing.
 * @blocks no. For GPU memory: until the device has completed all work that was given to it.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if `ptr` is not the start of allocated memory, or
 *   if the memory was freed before.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
dist_status_t dist_mem_free(void *ptr);

/**
 * Announces memory that calls in a group will use often.
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
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_mem_register(dist_group_t *group, void *ptr, size_t bytes);

/**
 * Ends a registration that dist_mem_register made.
 *
 * No operation may still use the memory.
 *
 * @param group in: the group of the registration.
 * @param ptr in: the pointer of the registration.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if no registered memory of the group begins at
 *   `ptr`; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_mem_deregister(dist_group_t *group, void *ptr);

/*
 * Training
 *
 * The functions that data-parallel trainers need.
 */

/**
 * In `flags`: the sampler returns the indices in ascending order, which is the same in each epoch.
 */
#define DIST_SAMPLER_IN_ORDER 1

/**
 * In `flags`: the sampler drops the last samples if the ranks cannot share all samples evenly.
 *
 * Without the flag, the ranks use some samples from the beginning of the list twice.
 */
#define DIST_SAMPLER_DROP_LAST 2

/**
 * In `flags`: the parameter has no gradient.
 */
#define DIST_PARAM_FROZEN 1

/**
 * In `flags`: the parameter is the state of a layer, such as a running mean, and not a weight.
 *
 * It has no gradient.
 */
#define DIST_PARAM_BUFFER 2

/**
 * In `flags`: the gradient consists of some rows of the parameter, as for an embedding.
 *
 * The first extent of `shape` is the number of rows of the parameter. `grad` is NULL; the caller
 * passes the rows to dist_reducer_ready_rows.
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
 * In `divide`: the result is a weighted mean of the ranks' gradients.
 *
 * Each rank's gradients are multiplied by its weight (dist_reducer_begin), and the sum is divided
 * by the sum of all weights.
 */
#define DIST_DIVIDE_WEIGHTED 3

/**
 * In `missing`: if a rank does not mark a parameter, the step fails on all ranks.
 */
#define DIST_MISSING_ERROR 0

/**
 * In `missing`: a rank that does not mark a parameter contributes zeros and gets the result.
 */
#define DIST_MISSING_ZERO 1

/**
 * In `missing`: as DIST_MISSING_ZERO, but a parameter that no rank marked keeps its gradient.
 */
#define DIST_MISSING_SKIP 2

/**
 * In `flags`: results do not overwrite gradients.
 *
 * A step can therefore be repeated after a failure (dist_reducer_regroup). The results need as
 * much memory as the gradients.
 */
#define DIST_REDUCER_RETRYABLE 1

/**
 * In `flags`: gradients are added in the order of ranks.
 *
 * The result then does not depend on which ranks share a host.
 */
#define DIST_REDUCER_CANONICAL 2

/**
 * In `flags`: the buckets never change. Without the flag, they may change once, after the first
 * step.
 */
#define DIST_REDUCER_FIXED_LAYOUT 4

/**
 * In `flags`: the addresses of gradients in memory of the reducer may change after the first step.
 *
 * The change allows better buckets. A reducer that provides memory for gradients and does not have
 * this flag never changes its buckets.
 */
#define DIST_REDUCER_MOVE_GRADS 8

/**
 * In `flags`: each step uses the same parameters, and marks each parameter the same number of
 * times.
 *
 * The first step that no rank votes against counts the marks of each parameter, and sends its
 * buckets only at its end. In each later step, a gradient is complete after this number of marks.
 * The reducer does not wait for parameters that the first step did not use.
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
 * In `flags`: a rank gets the reduced gradients of its own elements only (dist_shard_ranges).
 *
 * A reduce_scatter reduces each bucket. The buckets never change. The flag cannot be combined with
 * DIST_REDUCER_RETRYABLE, hooks, sparse rows or device memory.
 */
#define DIST_REDUCER_SHARDED 256

/**
 * In `flags`, with DIST_REDUCER_SHARDED: gradients share the memory of a few buckets (ZeRO-2).
 *
 * A gradient in memory of the reducer has memory only while the caller computes it. In each step,
 * call dist_reducer_grad before the computation of a gradient. The memory is not filled with
 * zeros, and is valid until the parameter is marked. While many other buckets are reduced,
 * dist_reducer_grad waits.
 */
#define DIST_REDUCER_SHARE_GRADS 512

/**
 * For `flags` of dist_reducer_begin: the step does not communicate.
 *
 * The gradients stay on this rank. The caller adds the gradients of the next step to them.
 */
#define DIST_STEP_NO_SYNC 1

/**
 * For `vote` of dist_reducer_end: this rank votes for the step.
 */
#define DIST_VOTE_COMMIT 0

/**
 * For `vote` of dist_reducer_end: a gradient of this rank is infinite or NaN.
 */
#define DIST_VOTE_NON_FINITE 1

/**
 * For `vote` of dist_reducer_end: this rank wants to skip the step.
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
 * The caller trains with an optimizer of its own, and calls dist_outer_step after each training
 * step. At some of these calls, the ranks agree on new global values for a part of the parameters.
 *
 * The outer optimizer is owned by the caller and released with dist_outer_release. One thread at a
 * time calls its functions.
 */
typedef struct dist_outer_t dist_outer_t;

/**
 * Averages the gradients of a model over the ranks of a group while they are computed.
 *
 * In each training step, a rank calls dist_reducer_begin, marks each gradient with
 * dist_reducer_ready as soon as it is complete, and calls dist_reducer_end. Gradients are reduced
 * in buckets: one operation reduces all gradients of a bucket.
 *
 * The reducer is owned by the caller and released with dist_reducer_release. Any thread may mark
 * gradients; one thread at a time calls the other functions. Calls that communicate have the same
 * order on all ranks.
 */
typedef struct dist_reducer_t dist_reducer_t;

/**
 * Gives a rank its share of the indices of a data set, epoch by epoch.
 *
 * The sampler is owned by the caller and released with dist_sampler_release. Any thread may use
 * it.
 */
typedef struct dist_sampler_t dist_sampler_t;

/**
 * Splits the state of an optimizer over the ranks of a reducer (ZeRO-1 and ZeRO-2).
 *
 * Each rank updates its own elements only, and has the optimizer's states of these elements only.
 * In each training step, every rank makes these calls:
 *
 * 1. dist_reducer_begin, dist_reducer_ready and dist_reducer_end reduce the gradients.
 * 2. dist_shard_ranges and dist_shard_state return the elements and the states of this rank. The
 *    caller updates them.
 * 3. dist_shard_gather sends the new values of every rank to all ranks.
 *
 * The shard is owned by the caller and released with dist_shard_release. Any thread may call
 * dist_shard_wait; one thread at a time calls the other functions.
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
     * The name, in one line; required. No other parameter of the reducer has this name.
     */
    const char *name;
    /**
     * The values of the parameter, `count` elements of `dtype`; NULL only if `count` is 0.
     */
    void *data;
    /**
     * The caller's gradient, `count` elements of `grad_dtype`. If NULL, the reducer provides the
     * memory (dist_reducer_grad), and reduces the gradient without copies.
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
     * The index of the device whose memory has the values and the gradient, if DIST_FIELD_DEVICE
     * is in `fields`. Otherwise both are in host memory.
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
     * A number of the caller, for instance of the layer. Parameters with different tags never
     * share a bucket.
     */
    uint64_t tag;
} dist_param_t;

/**
 * Updates the global values of a parameter. Each array has `count` elements.
 *
 * `pseudo_grad` is the mean, over the ranks, of the global values minus the values of the rank.
 * `state` is memory for the function's own use, initially zero. `user` is the pointer in the
 * options. The function must compute the same bits on all ranks. It must not throw and must not
 * call libdist.
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
     * The number of fragments into which the parameters are divided; 0 for 1. The ranks agree on
     * each fragment at a different step. At most `every`, and at most the number of parameters
     * with gradients.
     */
    size_t fragments;
    /**
     * The optimizer of the global values. Borrowed for the call.
     *
     * "nesterov" or NULL is SGD with Nesterov momentum. "sgd" has no momentum. With "average", the
     * global values become the mean of the ranks' values. If `function` is set, this is the name
     * of the function, which the ranks compare.
     */
    const char *optimizer;
    /**
     * The learning rate of "nesterov" and "sgd"; 0 for 0.7.
     */
    double learning_rate;
    /**
     * The momentum of "nesterov"; 0 for 0.9.
     */
    double momentum;
    /**
     * The caller's own optimizer; optional.
     */
    dist_outer_fn function;
    /**
     * Passed to `function`; valid until dist_outer_release.
     */
    void *user;
    /**
     * The deadline of each operation in milliseconds. 0 is the group's default, and
     * DIST_WAIT_FOREVER is no deadline.
     */
    int64_t timeout_ms;
    /**
     * How the ranks reduce their differences, as in dist_reducer_options_t; "none" is not allowed.
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
     * The number of calls of dist_outer_step. A repeated call after a failure counts once.
     */
    uint64_t steps;
    /**
     * The number of agreements that updated a fragment.
     */
    uint64_t updates;
    /**
     * The number of agreements that a vote prevented, so all ranks returned to the old global
     * values.
     */
    uint64_t restores;
    /**
     * The bytes that were reduced.
     */
    uint64_t bytes_reduced;
    /**
     * The part of `bytes_reduced` that a hook did not have to send.
     */
    uint64_t bytes_saved;
    /**
     * The sum of the durations of all operations.
     */
    uint64_t communication_ns;
} dist_outer_stats_t;

/**
 * A bucket of gradients, as a function of dist_reducer_on_bucket or a hook function gets it.
 *
 * The struct is valid during the call of the function.
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
     * The gradients, one after the other with gaps. NULL if the gradients are in the caller's own
     * memory, and with DIST_REDUCER_SHARDED.
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
     * The index in `data` at which each parameter's gradient begins, in elements; NULL if `data`
     * is NULL.
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
 * Reduces a bucket: replaces `data` of the bucket by the sum over all ranks.
 *
 * In the input, `data` has this rank's gradients, already multiplied by the factor of this rank,
 * such as 1/N for a mean over N ranks. The function therefore adds without dividing. All ranks
 * must compute the same bits.
 *
 * The function communicates with any calls on `group`, which has the ranks of the reducer's group
 * and is lent for the call. It may block. The library calls the function for one bucket after the
 * other, in the same order on all ranks. The calls run on the thread that calls dist_reducer_end
 * or on a thread of the library.
 *
 * `bytes_sent` initially has the number of bytes of `data`. A function that sends another number
 * of bytes stores that number there, for `bytes_saved` of dist_reducer_stats_t. `user` is
 * `hook_user` of the options. If the function returns an error, the group fails. The function must
 * not throw, and must not call functions of the reducer.
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
     * The size of a bucket: a bucket is full when its gradients have this number of bytes. 0 for
     * the default: 1 MiB in host memory, 25 MiB in device memory.
     */
    size_t bucket_bytes;
    /**
     * The size of the first bucket of each element type, device and tag; 0 for the smaller of
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
     * The deadline of each operation in milliseconds. 0 is the group's default, and
     * DIST_WAIT_FOREVER is no deadline.
     */
    int64_t timeout_ms;
    /**
     * A layout that dist_reducer_layout returned, in this job or in another job; optional,
     * borrowed for the call.
     */
    const void *layout;
    /**
     * The length of `layout`.
     */
    size_t layout_bytes;
    /**
     * The name of the model in the log; optional, borrowed for the call.
     */
    const char *name;
    /**
     * The CUDA stream in which the caller computes gradients on a device; valid until
     * dist_reducer_release.
     *
     * With a stream, the reduced gradients are available to work that the caller puts into the
     * stream after dist_reducer_end. With NULL, the caller uses the device's default stream, and
     * the gradients are reduced when dist_reducer_end returns.
     */
    void *stream;
    /**
     * How buckets in host memory are reduced. Borrowed for the call.
     *
     * "all_reduce" or NULL sends the gradients as they are. "f16", "bf16", "int8" and "powersgd"
     * send fewer bytes. "none" sends nothing, and each rank keeps its own gradients. If
     * `hook_function` is set, this is the name of the function. Hooks do not apply to sparse
     * gradients.
     */
    const char *hook;
    /**
     * Settings of the hook, as name=value;name=value; optional, borrowed for the call.
     *
     * Settings of "int8", with the default in parentheses: `block` (256) is the number of elements
     * that share a scale. Settings of "powersgd": `rank` (1); `start` (10) is the first step with
     * compression; `min_ratio` (2) is the minimum compression of a gradient; `warm` is 0 to begin
     * without the last factors; `feedback` is 0 to discard the error of the compression. A
     * `hook_function` defines its own settings. The ranks compare all settings.
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
     * Of the last step: the part of `bytes_reduced` that a hook did not have to send.
     */
    uint64_t bytes_saved;
    /**
     * Of the last step: the bytes that were copied between gradients, buckets and results.
     */
    uint64_t bytes_copied;
    /**
     * Of the last step: the time from the first mark of a gradient to the last one.
     */
    uint64_t first_ready_to_last_ready_ns;
    /**
     * Of the last step: the sum of the durations of its operations.
     */
    uint64_t communication_ns;
    /**
     * Of the last step: the time for which dist_reducer_end waited.
     */
    uint64_t exposed_ns;
    /**
     * Of the last step: the time from its beginning to its end.
     */
    uint64_t step_ns;
    /**
     * The number of changes of the layout.
     */
    uint64_t rebuilds;
    /**
     * The number of steps that were repeated, or whose end was taken from another rank.
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
     * The number of ranks that update each element; 0 for 1. With N ranks and 2 copies, rank r
     * also updates the elements of rank (r + N - 1) mod N, so the death of one rank loses no
     * state. Not above 1 with DIST_REDUCER_SHARDED.
     */
    int32_t copies;
    /**
     * Must be 0.
     */
    int32_t reserved;
    /**
     * The deadline of each operation in milliseconds. 0 is the group's default, and
     * DIST_WAIT_FOREVER is no deadline.
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
     * The index of the first element, counted from the beginning of the parameter.
     */
    size_t begin;
    /**
     * The number of elements.
     */
    size_t count;
    /**
     * The index of the bucket that has the gradients of these elements (dist_reducer_on_bucket).
     */
    size_t bucket;
    /**
     * The index of the first element in the array of each state (dist_shard_state).
     */
    size_t offset;
    /**
     * The values of the elements, in the parameter's element type.
     */
    void *data;
    /**
     * After dist_reducer_end: the reduced gradients of the elements, in the gradient's element
     * type.
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
     * The rank whose indices the sampler returns, if DIST_FIELD_RANK is in `fields`. Otherwise the
     * sampler uses the rank of this process in the group.
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
 * All ranks get the parameters of rank 0, which become the global values (the values on which
 * the ranks agree). Then each rank trains without communication, with an optimizer of its own,
 * and calls dist_outer_step after each step. From time to time, dist_outer_step lets the ranks
 * agree on new global values.
 *
 * A rank that joins a training creates its outer optimizer while the other ranks call
 * dist_outer_regroup.
 *
 * @param group in: the group. The outer optimizer does not keep the group alive.
 * @param params in: `n_params` parameters of f16, bf16, f32 or f64 in host memory, in the form
 *   of dist_reducer_create. Gradients are not used. Frozen parameters and buffers are not
 *   exchanged. The values are borrowed until dist_outer_release. NULL only if `n_params` is 0.
 * @param n_params in: the number of parameters.
 * @param options in: the options; borrowed for the call.
 * @param out out: the outer optimizer, owned by the caller, released with dist_outer_release;
 *   NULL on failure.
 * @agree the parameters except their addresses, in the same order; the options except
 *   `timeout_ms` and `name`.
 * @blocks Until every rank has called, but at most until the deadlines of the call's
 *   operations.
 * @return DIST_OK. If the call has had no effect: DIST_ERR_INVALID_ARGUMENT if an argument is
 *   wrong or inside a completion callback; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED;
 *   DIST_ERR_UNSUPPORTED for parameters of other types or in device memory. If parameters or
 *   options differ, all ranks return DIST_ERR_MISMATCH. The call also returns the errors of
 *   dist_all_gather_bytes and dist_broadcast.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_outer_create(dist_group_t *group,
                                const struct dist_param_t *params,
                                size_t n_params,
                                const struct dist_outer_options_t *options,
                                struct dist_outer_t **out);

/**
 * Records that this rank has made one training step, and agrees on a fragment if one is due.
 *
 * A fragment is a part of the parameters. If no fragment is due, the call does not
 * communicate. If a fragment is due, the ranks combine their votes. If no rank votes against
 * the agreement, the optimizer updates the global values of the fragment with the mean
 * difference between the global values and the values of the ranks. In both cases, the
 * parameters of the fragment then get the global values on every rank. After a vote against
 * the agreement, these are still the old global values, so the ranks lose their own steps
 * since the last agreement.
 *
 * @param outer in: the outer optimizer.
 * @param vote in: DIST_VOTE_COMMIT, or a vote against the agreement as in dist_reducer_end.
 *   The vote has no effect if no fragment is due.
 * @param fragment out, optional: the index of the fragment that was due, or -1 if there was
 *   none; not written on failure.
 * @param all_votes out, optional: the votes of all ranks, combined by bitwise or; 0 if no
 *   fragment was due; not written on failure.
 * @agree the number of calls.
 * @blocks If a fragment is due: until every rank has called, but at most until the deadlines
 *   of the call's operations.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT inside a completion callback;
 *   DIST_ERR_INVALID_HANDLE if the handle is wrong or the group was released; the errors of
 *   dist_all_reduce. After an error of dist_all_reduce, call dist_group_shrink,
 *   dist_outer_regroup, and then dist_outer_step again. The repeated call does not count as
 *   another step.
 * @threads Only one thread at a time may call this (see dist_outer_t).
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_outer_step(struct dist_outer_t *outer,
                              uint64_t vote,
                              int64_t *fragment,
                              uint64_t *all_votes);

/**
 * Continues in another group, for instance in the group that dist_group_shrink returns.
 *
 * @param outer in: the outer optimizer.
 * @param group in: the new group.
 * @agree every rank of the new group calls dist_outer_regroup, or dist_outer_create with the
 *   same parameters and options.
 * @blocks Until every rank has called, but at most until the deadlines of the call's
 *   operations.
 * @return The results of dist_reducer_regroup.
 * @threads Only one thread at a time may call this (see dist_outer_t).
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_outer_regroup(struct dist_outer_t *outer, dist_group_t *group);

/**
 * Returns the global values of a parameter and the state of the optimizer for this parameter.
 *
 * @param outer in: the outer optimizer.
 * @param param in: the index of the parameter.
 * @param global out: the global values. The outer optimizer owns the memory, which is valid
 *   until dist_outer_release. NULL on failure.
 * @param state out, optional: the optimizer's state of the parameter, valid until
 *   dist_outer_release; NULL on failure and if the optimizer has no state.
 * @param count out, optional: the number of elements of each array; not written on failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if the parameter does
 *   not exist, is frozen or is a buffer.
 * @threads Only one thread at a time may call this (see dist_outer_t).
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_outer_values(struct dist_outer_t *outer,
                                size_t param,
                                float **global,
                                float **state,
                                size_t *count);

/**
 * Returns the global values, the states and the number of steps, for a checkpoint.
 *
 * The result is the same on all ranks. It does not contain the parameters of this rank. If
 * this rank has made steps since the last agreement, its parameters differ from the global
 * values, and the caller saves them.
 *
 * @param outer in: the outer optimizer.
 * @param out out: one byte string, owned by the caller, released with dist_blob_release; NULL
 *   on failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if dist_outer_step has
 *   failed and was not repeated; DIST_ERR_OUT_OF_MEMORY.
 * @threads Only one thread at a time may call this (see dist_outer_t).
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_outer_save(struct dist_outer_t *outer, dist_blob_t **out);

/**
 * Loads the data that dist_outer_save returned, from one rank to all ranks.
 *
 * The parameters of all ranks get the loaded global values.
 *
 * @param outer in: the outer optimizer, with the same parameters and options as the saved one.
 * @param bytes in: on the root, the byte string of dist_outer_save; borrowed for the call. The
 *   other ranks' `bytes` are not used.
 * @param len_bytes in: the length of `bytes`.
 * @param root in: the rank that has the byte string.
 * @agree the order of calls on the group, and `root`.
 * @blocks Until every rank has called, but at most until the deadlines of the call's
 *   operations.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT on all ranks if the byte string has another
 *   format or other parameters; DIST_ERR_INVALID_ARGUMENT if dist_outer_step has failed and
 *   was not repeated, and inside a completion callback; DIST_ERR_INVALID_HANDLE if the handle
 *   is wrong or the group was released; the errors of dist_broadcast_bytes.
 * @threads Only one thread at a time may call this (see dist_outer_t).
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_outer_load(struct dist_outer_t *outer,
                              const void *bytes,
                              size_t len_bytes,
                              int32_t root);

/**
 * Returns figures of the outer optimizer since its creation.
 *
 * @param outer in: the outer optimizer.
 * @param out out: the figures; `struct_size` is set by the caller.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `out` is NULL or its
 *   `struct_size` is wrong.
 * @threads Only one thread at a time may call this (see dist_outer_t).
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
 * @blocks Until the operations of the outer optimizer have ended, but at most until their
 *   deadlines.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE.
 * @threads Any thread may call this, but no other call may use the outer optimizer at the same
 *   time.
 * @since 0.1
 */
dist_status_t dist_outer_release(struct dist_outer_t *outer);

/**
 * Creates a reducer, which averages gradients over the ranks of a group.
 *
 * The ranks compare their parameters and options and agree on the buckets (the groups of
 * gradients that one operation reduces). Then all ranks get the values of rank 0.
 *
 * A rank that joins a training creates its reducer while the other ranks call
 * dist_reducer_regroup. It gets their buckets, their number of steps, and the values of the
 * lowest of these ranks.
 *
 * @param group in: the group. The reducer does not keep the group alive: release the reducer
 *   first.
 * @param params in: `n_params` parameters. The array, names and shapes are borrowed for the
 *   call. The values and gradients are borrowed until dist_reducer_release. NULL only if
 *   `n_params` is 0.
 * @param n_params in: the number of parameters.
 * @param options in, optional: NULL for all defaults; borrowed for the call.
 * @param out out: the reducer, owned by the caller, released with dist_reducer_release; NULL
 *   on failure.
 * @agree the parameters in the same order, except their addresses and the index of the device;
 *   the options except `timeout_ms`, `layout` and `name`. If ranks pass different layouts, all
 *   ranks use the layout of the lowest of these ranks.
 * @blocks Until every rank has called, but at most until the deadlines of the call's
 *   operations.
 * @return DIST_OK. If the call has had no effect: DIST_ERR_INVALID_ARGUMENT if an argument is
 *   wrong or inside a completion callback; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED;
 *   DIST_ERR_UNSUPPORTED if the group does not serve the device of a gradient, for an element
 *   type that cannot be divided, or for a field or flag that this version does not know. If
 *   parameters or options differ, all ranks return DIST_ERR_MISMATCH, and the message has the
 *   first difference. The call also returns the errors of dist_all_gather_bytes and
 *   dist_broadcast.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reducer_create(dist_group_t *group,
                                  const struct dist_param_t *params,
                                  size_t n_params,
                                  const struct dist_reducer_options_t *options,
                                  struct dist_reducer_t **out);

/**
 * Returns the address to which the caller writes a gradient.
 *
 * The caller overwrites the gradient at this address or adds to it, and then marks the
 * parameter (dist_reducer_ready). Memory of the reducer is initially filled with zeros and
 * valid until dist_reducer_release. With DIST_REDUCER_MOVE_GRADS the address may change once,
 * at the end of the first step: call this function again after that step.
 *
 * @param reducer in: the reducer.
 * @param param in: the index of the parameter in the list of dist_reducer_create.
 * @param grad out: the caller's gradient if the parameter has one, otherwise memory of the
 *   reducer; NULL on failure and for a parameter without elements.
 * @param count out, optional: the number of elements; not written on failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if the parameter does
 *   not exist or has no gradient.
 * @threads Any thread may call this at any time.
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
 * Usually this is the address that dist_reducer_grad returns. It is another address if the
 * reducer has DIST_REDUCER_RETRYABLE and provides the memory of the gradient.
 *
 * @param reducer in: the reducer.
 * @param param in: the index of the parameter.
 * @param grad out: the reduced gradient, valid as long as the memory of dist_reducer_grad;
 *   NULL on failure and for a parameter without elements.
 * @param count out, optional: the number of elements; not written on failure.
 * @agree nothing.
 * @blocks no.
 * @return The results of dist_reducer_grad.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reducer_result(struct dist_reducer_t *reducer,
                                  size_t param,
                                  void **grad,
                                  size_t *count);

/**
 * Returns the reduced rows of a sparse gradient after the end of a step.
 *
 * @param reducer in: the reducer.
 * @param param in: the index of the parameter, which has DIST_PARAM_SPARSE_ROWS.
 * @param rows out: the indices of the rows that any rank passed to dist_reducer_ready_rows, in
 *   ascending order, each index once. The reducer owns the memory, which is valid until the
 *   end of the next step with communication, or until dist_reducer_release. NULL on failure
 *   and if there are no rows.
 * @param values out: the reduced rows, one after the other, valid as long as `rows`; NULL on
 *   failure and if there are no rows.
 * @param n_rows out: the number of rows; not written on failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if the parameter does
 *   not exist or its gradient is not sparse.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reducer_rows(struct dist_reducer_t *reducer,
                                size_t param,
                                const int64_t **rows,
                                void **values,
                                size_t *n_rows);

/**
 * Copies the parameters or buffers of one rank to all ranks.
 *
 * @param reducer in: the reducer.
 * @param root in: the rank that has the values.
 * @param what in: DIST_REDUCER_PARAMS, DIST_REDUCER_BUFFERS, or the sum of both.
 * @agree the order of calls on the group, `root` and `what`.
 * @blocks Until this rank has the values, but at most until the deadlines of the broadcasts.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if an argument is wrong, inside a step, or inside
 *   a completion callback; DIST_ERR_INVALID_HANDLE if the handle is wrong or the group was
 *   released; the errors of dist_broadcast.
 * @threads Only one thread at a time may call this (see dist_reducer_t).
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
 * @param what in: one of DIST_REDUCER_PARAMS, DIST_REDUCER_BUFFERS and DIST_REDUCER_GRADS, or
 *   a sum of them.
 * @param differences out: one text for each parameter whose bytes differ between ranks; the
 *   text names the ranks. The list is equal on all ranks, and empty if all bytes are the same.
 *   Owned by the caller, released with dist_blob_release; NULL on failure.
 * @agree the order of calls on the group, and `what`.
 * @blocks Until every rank has called, but at most until the deadlines of the call's
 *   operations.
 * @return DIST_OK, also if values differ; DIST_ERR_UNSUPPORTED if a parameter is in device
 *   memory; DIST_ERR_INVALID_ARGUMENT if an argument is wrong, inside a step, or inside a
 *   completion callback; DIST_ERR_INVALID_HANDLE if the handle is wrong or the group was
 *   released; the errors of dist_all_gather_bytes.
 * @threads Only one thread at a time may call this (see dist_reducer_t).
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reducer_check(struct dist_reducer_t *reducer,
                                 uint64_t what,
                                 dist_blob_t **differences);

/**
 * Continues in another group, for instance in the group that dist_group_shrink returns.
 *
 * If the last step has failed, the effect on this step depends on DIST_REDUCER_RETRYABLE:
 *
 * - With the flag, the step is open again, and the caller computes no gradient again. The next
 *   dist_reducer_end sends the same gradients again, divided for the new group. If another
 *   rank had already seen the end of the step, dist_reducer_end instead returns the results of
 *   that rank.
 * - Without the flag, the failed step is abandoned. `steps` of dist_reducer_stats shows
 *   whether the step had ended.
 *
 * @param reducer in: the reducer.
 * @param group in: the new group. The reducer does not keep the group alive.
 * @agree every rank of the new group calls dist_reducer_regroup, or dist_reducer_create with
 *   the same parameters and options.
 * @blocks Until every rank has called, but at most until the deadlines of the call's
 *   operations.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if a step is open in a group that has not failed,
 *   or inside a completion callback; DIST_ERR_INVALID_HANDLE. All ranks return
 *   DIST_ERR_MISMATCH if parameters, options or steps differ, or if a rank joins while a step
 *   must be repeated. The call also returns the errors of dist_all_gather_bytes and
 *   dist_broadcast.
 * @threads Only one thread at a time may call this (see dist_reducer_t).
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reducer_regroup(struct dist_reducer_t *reducer,
                                   dist_group_t *group);

/**
 * Returns the layout: which gradients are reduced together, and in which order.
 *
 * The same gradients on the same ranks give the same bits only with the same layout, or with
 * DIST_REDUCER_CANONICAL. Therefore, store the layout in a checkpoint, and pass it to
 * dist_reducer_create after a restart.
 *
 * @param reducer in: the reducer.
 * @param out out: one byte string, a text in JSON with the names of the parameters; owned by
 *   the caller, released with dist_blob_release; NULL on failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `out` is NULL;
 *   DIST_ERR_OUT_OF_MEMORY.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reducer_layout(const struct dist_reducer_t *reducer,
                                  dist_blob_t **out);

/**
 * Returns figures of the last step, and a few counters since the creation.
 *
 * @param reducer in: the reducer.
 * @param out out: the figures; `struct_size` is set by the caller.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `out` is NULL or its
 *   `struct_size` is wrong.
 * @threads Any thread may call this at any time.
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
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reducer_describe(const struct dist_reducer_t *reducer,
                                    dist_blob_t **json);

/**
 * Releases a reducer and the memory that it provides.
 *
 * The call waits until all operations of the last step have ended and all functions of
 * dist_reducer_on_bucket have returned. Inside a completion callback, it does not wait for
 * these functions.
 *
 * @param reducer in, optional: the reducer; NULL does nothing.
 * @agree nothing.
 * @blocks Until the operations have ended, but at most until their deadlines, and until the
 *   functions have returned.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE.
 * @threads Any thread may call this, but no other call may use the reducer at the same time.
 * @since 0.1
 */
dist_status_t dist_reducer_release(struct dist_reducer_t *reducer);

/**
 * Begins a step.
 *
 * @param reducer in: the reducer.
 * @param weight in: the weight of this rank's gradients, for instance its number of samples; 0
 *   or more. Only DIST_DIVIDE_WEIGHTED uses the weight.
 * @param flags in: 0, or DIST_STEP_NO_SYNC for a step without communication.
 * @agree the order of calls on the group, in steps with communication. Ranks may make
 *   different numbers of steps without communication.
 * @blocks Only with DIST_REDUCER_BROADCAST_BUFFERS: until this rank has the buffers.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if a step is open, the last step has failed, or
 *   the weight is wrong; DIST_ERR_INVALID_HANDLE if the handle is wrong or the group was
 *   released; DIST_ERR_UNSUPPORTED for a flag that this version does not know. Without
 *   DIST_REDUCER_RETRYABLE, the call also returns the error of a failed group.
 * @threads Only one thread at a time may call this (see dist_reducer_t).
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reducer_begin(struct dist_reducer_t *reducer,
                                 double weight,
                                 uint64_t flags);

/**
 * Marks a gradient as complete.
 *
 * When all gradients of a bucket are marked and all earlier buckets were sent, the library
 * reduces the bucket in the background. The caller must not read or write a marked gradient
 * until the end of the step.
 *
 * @param reducer in: the reducer.
 * @param param in: the index of the parameter.
 * @agree nothing: the ranks may mark gradients in different orders.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT outside a step, and if the parameter does not
 *   exist, has no gradient or was marked before; DIST_ERR_INVALID_HANDLE; the group's error if
 *   the group has failed; DIST_ERR_OUT_OF_MEMORY and DIST_ERR_SYSTEM if a bucket cannot be
 *   sent, which fails the group. With DIST_REDUCER_RETRYABLE, the call returns DIST_OK even if
 *   the group has failed, and dist_reducer_end reports the failure.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_reducer_ready(struct dist_reducer_t *reducer, size_t param);

/**
 * Marks several gradients as complete, in one call.
 *
 * @param reducer in: the reducer.
 * @param params in: `n` indices of parameters; borrowed for the call; NULL only if `n` is 0.
 * @param n in: the number of parameters.
 * @agree nothing.
 * @blocks no.
 * @return The results of dist_reducer_ready. If a parameter is wrong, the parameters before it
 *   in the list are marked, and the parameters after it are not.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reducer_ready_many(struct dist_reducer_t *reducer,
                                      const size_t *params,
                                      size_t n);

/**
 * Marks a sparse gradient as complete, and passes its rows.
 *
 * At the end of the step, each rank gets the sums of the rows of all ranks
 * (dist_reducer_rows). In a step without communication, the rows are not used. Therefore, pass
 * the rows of all these steps in the next step with communication.
 *
 * @param reducer in: the reducer.
 * @param param in: the index of the parameter, which has DIST_PARAM_SPARSE_ROWS.
 * @param rows in: the indices of `n_rows` rows, in any order. If an index appears several
 *   times, its rows are added. Borrowed until the step has ended; NULL only if `n_rows` is 0.
 * @param values in: the rows, one after the other, in the gradient's element type; borrowed
 *   until the step has ended; NULL only if `n_rows` is 0.
 * @param n_rows in: the number of rows.
 * @agree nothing.
 * @blocks no.
 * @return The results of dist_reducer_ready, and DIST_ERR_INVALID_ARGUMENT if the gradient is
 *   not sparse or a row does not exist in the parameter.
 * @threads Any thread may call this at any time.
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
 * This rank contributes zeros. If another rank uses the parameter, this rank gets the result.
 * If no rank uses it, the gradient stays unchanged.
 *
 * @param reducer in: the reducer.
 * @param param in: the index of the parameter.
 * @agree nothing.
 * @blocks no.
 * @return The results of dist_reducer_ready.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_reducer_unused(struct dist_reducer_t *reducer, size_t param);

/**
 * Ends a step.
 *
 * The reducer sends the remaining buckets. The ranks then agree on the step: they combine
 * their votes, and the information about which parameters were used. After DIST_OK, all ranks
 * have the same gradients (dist_reducer_result) and the same `all_votes`. If `all_votes` is
 * not DIST_VOTE_COMMIT, the caller skips the update; the library does not enforce this.
 *
 * A step without communication (DIST_STEP_NO_SYNC) ends without any effect on the gradients.
 *
 * @param reducer in: the reducer.
 * @param vote in: DIST_VOTE_COMMIT for the step. To vote against the step: a sum of the other
 *   DIST_VOTE_ constants and of the caller's own bits, which are 256 or more. A rank that
 *   votes against the step need not mark its parameters.
 * @param all_votes out, optional: the votes of all ranks, combined by bitwise or; borrowed
 *   until the step has ended.
 * @param work out, optional: NULL to block. Otherwise the call writes a work that ends with
 *   the step. The caller owns the work and releases it with dist_work_release; NULL on
 *   failure.
 * @agree the order of calls on the group.
 * @blocks Until the gradients are reduced and the functions of dist_reducer_on_bucket have
 *   returned, but at most until the deadlines of the call's operations. A call with a work
 *   does not block.
 * @return DIST_OK. If the call has had no effect: DIST_ERR_INVALID_ARGUMENT if no step is open
 *   or inside a completion callback; DIST_ERR_INVALID_HANDLE if the handle is wrong or the
 *   group was released. A blocking call returns the following errors; otherwise the work
 *   reports them: the errors of dist_all_reduce, after which the step has failed (see
 *   dist_reducer_regroup). With DIST_MISSING_ERROR, all ranks get DIST_ERR_INVALID_ARGUMENT if
 *   a rank voted DIST_VOTE_COMMIT without marking all parameters. In this case, the step has
 *   ended, but its gradients must not be used.
 * @threads Only one thread at a time may call this (see dist_reducer_t).
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
 * The norm is computed over all gradients together, as in PyTorch's clip_grad_norm_, in f64,
 * and is the same on all ranks. Gradients of parameters that no rank used are ignored. If the
 * norm is infinite or NaN, the gradients stay unchanged.
 *
 * @param reducer in: the reducer.
 * @param max_norm in: the largest norm; infinity to compute the norm only.
 * @param norm_type in: the exponent of the norm, for instance 2; infinity for the largest
 *   absolute value.
 * @param norm out, optional: the norm before the gradients were scaled.
 * @agree the order of calls on the group, `max_norm` and `norm_type`.
 * @blocks Until every rank has called, but at most until the deadline.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if a number is wrong, inside a step, before the
 *   end of the first step, or inside a completion callback; DIST_ERR_INVALID_HANDLE if the
 *   handle is wrong or the group was released; DIST_ERR_UNSUPPORTED for gradients of integers
 *   or in device memory; the errors of dist_all_reduce.
 * @threads Only one thread at a time may call this (see dist_reducer_t).
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reducer_clip(struct dist_reducer_t *reducer,
                                double max_norm,
                                double norm_type,
                                double *norm);

/**
 * Registers a function that the library calls with each reduced bucket.
 *
 * The function can update the parameters of one bucket while the next bucket is still reduced.
 * The calls have these rules:
 *
 * - The function runs on the thread of completion callbacks (dist_work_on_complete). It must
 *   not throw, and must not call functions that may block.
 * - Usually the library calls the function before the ranks have agreed on the step.
 *   Therefore, do not combine it with votes against a step or with dist_reducer_clip.
 * - With DIST_REDUCER_RETRYABLE, the library calls the function for all buckets after the
 *   agreement, and only if no rank voted against the step.
 * - dist_reducer_end returns after the last call has returned. A work of dist_reducer_end may
 *   end before.
 *
 * @param reducer in: the reducer.
 * @param function in, optional: the function; NULL for none.
 * @param user in, optional: passed to the function; valid until another function is set or the
 *   reducer is released.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT inside a step.
 * @threads Only one thread at a time may call this (see dist_reducer_t).
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_reducer_on_bucket(struct dist_reducer_t *reducer,
                                     dist_bucket_fn function,
                                     void *user);

/**
 * Takes part in the steps of the other ranks after this rank has run out of data.
 *
 * All ranks call this function at the end of their data. This rank contributes zeros to each
 * step until no rank has data. Then all ranks get the parameters and buffers of the lowest
 * rank that had data in the last step.
 *
 * @param reducer in: the reducer, with DIST_REDUCER_UNEVEN.
 * @param steps out, optional: the number of steps in which this rank took part without data.
 * @agree all ranks call this function.
 * @blocks Until every rank has called, but at most until the deadlines of the call's
 *   operations.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT inside a step, without DIST_REDUCER_UNEVEN, or
 *   inside a completion callback; DIST_ERR_INVALID_HANDLE if the handle is wrong or the group
 *   was released; the errors of dist_all_reduce and dist_broadcast. After an error and
 *   dist_reducer_regroup, the call may be repeated.
 * @threads Only one thread at a time may call this (see dist_reducer_t).
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_reducer_join(struct dist_reducer_t *reducer, uint64_t *steps);

/**
 * Splits the state of an optimizer over the ranks of a reducer.
 *
 * Each bucket of the reducer is split by elements, evenly over the ranks. For example, 4 ranks
 * split a bucket of 10 elements into 3, 3, 2 and 2 elements. After dist_reducer_end, each rank
 * updates the elements that dist_shard_ranges returns and the states that dist_shard_state
 * returns. Then all ranks call dist_shard_gather.
 *
 * A new shard has states of zeros. The exception is a rank that joins a training: it calls
 * dist_shard_create while the other ranks call dist_shard_gather after dist_reducer_regroup,
 * and gets its share of their states.
 *
 * @param reducer in: the reducer, between two steps. After this call, its buckets no longer
 *   change. The shard uses the reducer until dist_shard_release: release the shard before the
 *   reducer.
 * @param options in, optional: NULL for no states; borrowed for the call.
 * @param out out: the shard, owned by the caller, released with dist_shard_release; NULL on
 *   failure.
 * @agree the order of calls on the group, and all options except `timeout_ms`.
 * @blocks Until every rank has called, but at most until the deadlines of the call's
 *   operations.
 * @return DIST_OK. If the call has had no effect: DIST_ERR_INVALID_ARGUMENT if an argument is
 *   wrong, inside a step, inside a completion callback, if the reducer already has a shard, or
 *   if it has DIST_REDUCER_UNEVEN; DIST_ERR_INVALID_HANDLE if the handle is wrong or the group
 *   was released; DIST_ERR_UNSUPPORTED for sparse gradients and for device memory. If the
 *   options differ, all ranks return DIST_ERR_MISMATCH. The call also returns the errors of
 *   dist_all_gather_bytes.
 * @threads Only one thread at a time may call this (see dist_shard_t).
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_shard_create(struct dist_reducer_t *reducer,
                                const struct dist_shard_options_t *options,
                                struct dist_shard_t **out);

/**
 * Returns the elements that this rank updates, as ranges of parameters.
 *
 * If `copies` in the options is above 1, the ranges include copies of other ranks' elements.
 * The ranges change only in the first dist_shard_gather after dist_reducer_regroup.
 *
 * @param shard in: the shard.
 * @param ranges out: an array that gets the first `capacity` ranges. The caller sets
 *   `struct_size` of each element of the array to the same number. NULL only if `capacity` is
 *   0.
 * @param capacity in: the length of the array `ranges`.
 * @param n_ranges out: the number of ranges of this rank, which may exceed `capacity`; not
 *   written on failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE if the handle is wrong or the group was released;
 *   DIST_ERR_INVALID_ARGUMENT if an argument is wrong. With DIST_REDUCER_SHARDED, the call
 *   also returns DIST_ERR_INVALID_ARGUMENT between dist_reducer_regroup and dist_shard_gather.
 * @threads Only one thread at a time may call this (see dist_shard_t).
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_shard_ranges(struct dist_shard_t *shard,
                                struct dist_shard_range_t *ranges,
                                size_t capacity,
                                size_t *n_ranges);

/**
 * Returns one of the optimizer's states for the elements that this rank updates.
 *
 * @param shard in: the shard.
 * @param state in: the index of the state in `states` of the options.
 * @param values out: one f32 for each element, initially zero. The state of a range begins at
 *   `offset` of the range. The memory belongs to the shard. It is valid until
 *   dist_shard_release, or until the first dist_shard_gather after dist_reducer_regroup. NULL
 *   on failure.
 * @param count out, optional: the number of elements; not written on failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if the state does not
 *   exist.
 * @threads Only one thread at a time may call this (see dist_shard_t).
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_shard_state(struct dist_shard_t *shard,
                               size_t state,
                               float **values,
                               size_t *count);

/**
 * Sends the elements that this rank has updated to all ranks, and receives the others.
 *
 * All ranks call this after the update of each step. The ranks send the parameters bucket by
 * bucket, beginning with the first layers. Without a work, the call returns when all ranks
 * have all parameters. With a work, the call returns at once, and the forward pass may begin.
 * The caller then neither reads nor writes a parameter until dist_shard_wait has returned for
 * it.
 *
 * If a rank dies, dist_reducer_end or dist_shard_gather fails. The remaining ranks then make
 * these calls:
 *
 * 1. dist_group_shrink, and dist_reducer_regroup with the new group.
 * 2. If dist_reducer_end has failed: dist_reducer_end and the update again.
 * 3. dist_shard_gather. This call also redistributes the states to the ranks of the new group.
 *    After it, dist_shard_ranges returns other ranges.
 *
 * The first dist_shard_gather after a dist_reducer_regroup redistributes the states even if no
 * rank has died. If a gather with a work has failed, dist_reducer_end of the next step repeats
 * this gather after dist_reducer_regroup.
 *
 * @param shard in: the shard.
 * @param work out, optional: NULL to block. Otherwise the call writes a work that ends with
 *   the gather. The caller owns the work and releases it with dist_work_release; NULL on
 *   failure.
 * @agree the order of calls on the group.
 * @blocks Until all ranks have all parameters, but at most until the deadlines of the call's
 *   operations. A call with a work blocks only after dist_reducer_regroup.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT while another gather runs, and inside a
 *   completion callback; DIST_ERR_INVALID_HANDLE if the handle is wrong or the group was
 *   released. DIST_ERR_NOT_FOUND if states were lost because no remaining rank has a copy: the
 *   group still works, but the call cannot succeed later. The call also returns the errors of
 *   dist_all_gather. In a call with a work, the work reports these errors.
 * @threads Only one thread at a time may call this (see dist_shard_t).
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_shard_gather(struct dist_shard_t *shard, dist_work_t **work);

/**
 * Waits for a parameter of a running gather, that is, of dist_shard_gather with a work.
 *
 * @param shard in: the shard.
 * @param param in: the index of the parameter.
 * @agree nothing.
 * @blocks Until the elements of all ranks have arrived, but at most until the deadline of the
 *   operation.
 * @return DIST_OK, also if no gather runs; DIST_ERR_INVALID_ARGUMENT if the parameter does not
 *   exist or has no gradient, and inside a completion callback; DIST_ERR_INVALID_HANDLE; the
 *   errors of the gather.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_shard_wait(struct dist_shard_t *shard, size_t param);

/**
 * Collects the states of all ranks at one rank, for a checkpoint.
 *
 * The states are ordered by parameter, without padding, so dist_shard_load can distribute them
 * to any number of ranks. The result does not contain the values of the parameters. Every rank
 * has all of these values, and the caller saves them.
 *
 * @param shard in: the shard.
 * @param root in: the rank that gets the states.
 * @param out out: on the root, one byte string, owned by the caller, released with
 *   dist_blob_release; NULL on failure and on the other ranks.
 * @agree the order of calls on the group, and `root`.
 * @blocks Until every rank has called, but at most until the deadlines of the call's
 *   operations.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if an argument is wrong, between
 *   dist_reducer_regroup and dist_shard_gather, and inside a completion callback;
 *   DIST_ERR_INVALID_HANDLE if the handle is wrong or the group was released;
 *   DIST_ERR_OUT_OF_MEMORY; the errors of dist_gather_bytes.
 * @threads Only one thread at a time may call this (see dist_shard_t).
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_shard_save(struct dist_shard_t *shard,
                              int32_t root,
                              dist_blob_t **out);

/**
 * Loads states that dist_shard_save returned, from one rank to any number of ranks.
 *
 * @param shard in: the shard. Its parameters and states have the same names as the saved ones.
 * @param bytes in: on the root, the byte string of dist_shard_save; borrowed for the call. The
 *   other ranks' `bytes` are not used.
 * @param len_bytes in: the length of `bytes`.
 * @param root in: the rank that has the byte string.
 * @agree the order of calls on the group, and `root`.
 * @blocks Until all ranks have their states, but at most until the deadlines of the call's
 *   operations.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT on all ranks if the byte string has another
 *   format, other parameters or other states; DIST_ERR_INVALID_ARGUMENT between
 *   dist_reducer_regroup and dist_shard_gather, and inside a completion callback;
 *   DIST_ERR_INVALID_HANDLE if the handle is wrong or the group was released; the errors of
 *   dist_broadcast.
 * @threads Only one thread at a time may call this (see dist_shard_t).
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
 * @blocks Until a running gather has ended, but at most until the deadlines of its operations.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE.
 * @threads Any thread may call this, but no other call may use the shard at the same time.
 * @since 0.1
 */
dist_status_t dist_shard_release(struct dist_shard_t *shard);

/**
 * Creates a sampler, which gives each rank its share of the indices of a data set.
 *
 * The indices are exactly the indices of PyTorch's DistributedSampler with the same arguments.
 * By default they are shuffled, differently in each epoch. If the ranks cannot share the
 * indices evenly, some indices from the beginning of the list are used twice, so all ranks get
 * the same number. For example, without a shuffle, 3 ranks share 7 samples as follows:
 *
 * - rank 0 gets 0, 3 and 6
 * - rank 1 gets 1, 4 and 0
 * - rank 2 gets 2, 5 and 1
 *
 * A new sampler is at the beginning of epoch 0.
 *
 * @param group in, optional: the group whose ranks share the data set; NULL only if the
 *   options set `num_replicas` and `rank`. The sampler does not keep the group alive.
 * @param dataset_len in: the number of samples of the data set.
 * @param options in, optional: NULL for all defaults; borrowed for the call.
 * @param out out: the sampler, owned by the caller, released with dist_sampler_release; NULL
 *   on failure.
 * @agree `dataset_len`, and `num_replicas`, `seed` and `flags` in the options. The library
 *   does not check the agreement.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if the rank is not less than the number of ranks,
 *   or an argument is wrong; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED;
 *   DIST_ERR_UNSUPPORTED if the options set a field or a flag that this version does not know.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_sampler_create(const dist_group_t *group,
                                  uint64_t dataset_len,
                                  const struct dist_sampler_options_t *options,
                                  struct dist_sampler_t **out);

/**
 * Begins an epoch at its first index.
 *
 * @param sampler in: the sampler.
 * @param epoch in: the number of the epoch; any number is allowed. The library adds the number
 *   to the seed.
 * @agree `epoch`. The library does not check the agreement.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_sampler_set_epoch(struct dist_sampler_t *sampler, uint64_t epoch);

/**
 * Takes the next indices of the epoch.
 *
 * If the epoch is shuffled, its first call computes the permutation of the data set. During
 * this call, the sampler needs 4 bytes for each sample, or 8 bytes if the data set has 2^32
 * samples or more. It keeps 8 bytes for each index of this rank.
 *
 * @param sampler in: the sampler.
 * @param indices out: a buffer for `cap` indices; NULL only if `cap` is 0.
 * @param cap in: the most indices to take, for instance the size of a batch.
 * @param n out: the number of indices written; 0 at the end of the epoch.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `n` or `indices` is
 *   NULL; DIST_ERR_OUT_OF_MEMORY if there is no memory for the permutation.
 * @threads Any thread may call this at any time. Each index is taken once.
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
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
uint64_t dist_sampler_len(const struct dist_sampler_t *sampler);

/**
 * Returns the number of indices taken in the current epoch, for a checkpoint.
 *
 * @param sampler in: the sampler.
 * @agree nothing.
 * @blocks no.
 * @return the number; 0 for NULL or an invalid handle.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
uint64_t dist_sampler_position(const struct dist_sampler_t *sampler);

/**
 * Moves to a position in the current epoch, for instance after a restart from a checkpoint.
 *
 * @param sampler in: the sampler.
 * @param position in: the number of indices to skip from the beginning of the epoch, at most
 *   dist_sampler_len.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `position` is more
 *   than dist_sampler_len.
 * @threads Any thread may call this at any time.
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
 * @threads Any thread may call this at any time.
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
 * Queries about back ends; authors of back ends use the interface in dist_backend.h.
 */

/**
 * The operation dist_all_reduce. The DIST_KIND_ constants are for dist_backend_supports.
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
 * Returns whether a back end of this name can be used, and loads the back end if necessary.
 *
 * The available back ends are the native one ("native" or "gloo"), back ends that were
 * registered or loaded, and the back ends of the plug-ins in DIST_BACKEND_PLUGINS. The first
 * call with an unknown name in the process loads these plug-ins. For "nccl", and for maps such
 * as "cpu:native,cuda:nccl", the call loads the NCCL library. For "mpi", it loads the plug-in
 * for MPI.
 *
 * @param name in: the name, in upper or lower case; borrowed for the call.
 * @agree nothing.
 * @blocks no; loading a shared object may take a moment.
 * @return 1 if the back end is available, otherwise 0. If a plug-in cannot be loaded,
 *   dist_last_error returns the reason.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
int32_t dist_backend_is_available(const char *name);

/**
 * Checks whether a group supports a kind of call, without making such a call.
 *
 * All ranks get the same answer.
 *
 * @param group in: the group.
 * @param kind in: a DIST_KIND_ constant.
 * @param dtype in: the element type; ignored for DIST_KIND_BARRIER.
 * @param op in: the operator, built-in or from dist_op_create; ignored unless `kind` reduces.
 * @param device in: DIST_DEVICE_HOST, or the number of the GPU whose memory has the buffers.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK if the group supports the call; DIST_ERR_UNSUPPORTED if not (the message
 *   names type, operator and back end); DIST_ERR_INVALID_ARGUMENT if a number is no constant
 *   of its family; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED.
 * @threads Any thread may call this at any time.
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
 * The shared object exports a function of type dist_backend_plugin_fn under the name
 * dist_backend_plugin_v2. The library never unloads the object.
 *
 * A program need not call dist_backend_load for the paths in the variable DIST_BACKEND_PLUGINS
 * (separated by ":"). When a group requests an unknown back end for the first time, the
 * library loads all of them.
 *
 * @param path in: the path of the file, or a name without "/" that the dynamic loader
 *   searches; borrowed for the call.
 * @agree All ranks of a group load the same back end.
 * @blocks Until the object is loaded. The call does not wait for other ranks.
 * @return DIST_OK; the errors of dist_backend_register; the error that the back end itself
 *   returns. DIST_ERR_NOT_FOUND if the file does not exist. DIST_ERR_SYSTEM if the dynamic
 *   loader refuses the file (the message has the reason). DIST_ERR_UNSUPPORTED if the object
 *   is no back end, or was built for another version of the interface (the message has both
 *   versions). DIST_ERR_INVALID_ARGUMENT also if the back end is already loaded.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_backend_load(const char *path);

/*
 * Diagnostics
 *
 * Logs, debug levels, the flight recorder and traces.
 */

/**
 * The default: no additional checks and no additional log lines.
 */
#define DIST_DEBUG_OFF 0

/**
 * The log describes how groups are made, which operations they have run when they end, and long
 * waits.
 */
#define DIST_DEBUG_INFO 1

/**
 * As DIST_DEBUG_INFO, and the library runs expensive checks of calls.
 *
 * All ranks synchronise before each collective. The library compares the buffers of a call with
 * the buffers of outstanding works. Errors contain a back-trace.
 */
#define DIST_DEBUG_DETAIL 2

/**
 * The default: no log lines.
 */
#define DIST_LOG_OFF 0

/**
 * The log has failures that no status reports.
 */
#define DIST_LOG_ERROR 1

/**
 * As DIST_LOG_ERROR, and unusual events: long waits, lost peers.
 */
#define DIST_LOG_WARN 2

/**
 * As DIST_LOG_WARN, and the choices of the library with their reasons.
 */
#define DIST_LOG_INFO 3

/**
 * As DIST_LOG_INFO, and the end of each operation and every step.
 */
#define DIST_LOG_DEBUG 4

/**
 * As DIST_LOG_DEBUG, and the issue and the start of each operation.
 */
#define DIST_LOG_TRACE 5

/**
 * Receives log lines.
 *
 * `level` is a DIST_LOG_ constant. `line` is a terminated string without the line end, borrowed
 * for the call. `user` is the pointer that the caller passed together with the function. Any
 * thread may call the function, which must not call libdist.
 */
typedef void (*dist_log_fn)(int32_t level, const char *line, void *user);

/**
 * Returns the flight recorder's records of operations and groups as JSON.
 *
 * The flight recorder keeps the last 2000 operations of the process, with messages and
 * monitored barriers, and the groups of these operations with their members and failures. Each
 * call is one record, with the sizes of its inputs and outputs. For calls on GPU memory over
 * NCCL, the record can have the time of the GPU (docs/debugging.md). dist-doctor reads this
 * JSON from files. The call also works before dist_init and after dist_finalize.
 *
 * @param group in, optional: only operations of this group; NULL for all groups.
 * @param json out: a blob of one text, owned by the caller, released with dist_blob_release;
 *   NULL on failure.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `json` is NULL;
 *   DIST_ERR_OUT_OF_MEMORY.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_flight_recorder_dump(const dist_group_t *group,
                                        dist_blob_t **json);

/**
 * Sends log lines to a function instead of standard error.
 *
 * The function gets all lines up to the log level (dist_set_log_level or DIST_LOG_LEVEL).
 *
 * @param function in, optional: called on any thread of the process; must not call libdist and
 *   must not throw. NULL sends lines to standard error again.
 * @param user in, optional: passed to `function`; must stay valid until the function has been
 *   replaced.
 * @agree nothing.
 * @blocks Until running calls of the previous function have returned. The library does not
 *   call the previous function again.
 * @return DIST_OK.
 * @threads Any thread may call this at any time, but not inside `function`.
 * @since 0.1
 */
dist_status_t dist_set_log_callback(dist_log_fn function, void *user);

/**
 * Sets the log level of the process.
 *
 * This level has priority over the environment and the debug level.
 *
 * @param level in: DIST_LOG_OFF (the default) to DIST_LOG_TRACE.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if `level` is no log level.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
dist_status_t dist_set_log_level(int32_t level);

/**
 * Sets the debug level of the process.
 *
 * The level takes effect with the next calls of this rank, with one exception: the arrival
 * check of DIST_DEBUG_DETAIL. In this check, all ranks of a group wait before each collective
 * until all ranks have arrived. The level of rank 0 at the creation of the group decides for
 * all ranks whether the group has the check, and later changes have no effect on it. So no
 * rank waits for a rank that does not run the check. Only groups whose host memory the native
 * back end serves can have the check.
 *
 * If neither the program nor the environment has set a log level, the debug level also sets
 * the log level. DIST_DEBUG_INFO and DIST_DEBUG_DETAIL set it to DIST_LOG_INFO, and
 * DIST_DEBUG_OFF sets it to DIST_LOG_OFF.
 *
 * @param level in: DIST_DEBUG_OFF, DIST_DEBUG_INFO or DIST_DEBUG_DETAIL.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if `level` is no debug level.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
dist_status_t dist_set_debug_level(int32_t level);

/**
 * Returns the debug level of the process.
 *
 * If no level has been set, the call first sets the level as dist_set_debug_level_from_env
 * does.
 *
 * @agree nothing.
 * @blocks no.
 * @return the level; -1 if the environment variable has no valid level (see dist_last_error).
 * @threads Any thread may call this, but not while another thread changes the environment.
 * @since 0.1
 */
int32_t dist_get_debug_level(void);

/**
 * Sets the debug level of the process from the environment, and replaces an earlier level.
 *
 * The variable is DIST_DEBUG_LEVEL, or TORCH_DISTRIBUTED_DEBUG if DIST_DEBUG_LEVEL is unset.
 * Both take OFF, INFO and DETAIL in upper or lower case. If both are unset, the level is
 * DIST_DEBUG_OFF. The creation of the first group also reads the level from the environment if
 * no level has been set. dist_set_debug_level describes the effect on the log level.
 *
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if the variable has another word (the message
 *   names the variable, and the level is unchanged).
 * @threads Any thread may call this, but not while another thread changes the environment.
 * @since 0.1
 */
dist_status_t dist_set_debug_level_from_env(void);

/**
 * Starts a trace of this process's operations as a file in Chrome's trace event format.
 *
 * Perfetto and chrome://tracing open such files. Each rank writes its own file; `dist-doctor
 * trace` merges the files on a common clock. The environment variable DIST_TRACE_FILE also
 * starts a trace, which lasts from the first group to dist_finalize. The name of its file is
 * the variable's value followed by the rank and ".json".
 *
 * The trace viewer shows each rank of the world as a process, and each group as a thread of
 * this process. The trace has the collectives, messages and monitored barriers that begin
 * after this call and end before dist_trace_stop. Each operation has type, operator, root,
 * bytes, sizes of inputs and outputs, sequence number, algorithm and outcome. For a call that
 * was enqueued on a GPU over NCCL, the trace also has the time that the GPU needed. Inside an
 * operation, the trace shows how long it waited for earlier operations of its group and for
 * each peer. The trace also has failures.
 *
 * The library writes to the file about 10 times a second. The file can be read at any time,
 * even if the process was killed. If records arrive faster than they can be written, the
 * library drops records and counts them. If the file cannot be written, only the trace ends;
 * dist_group_describe and the log have the reason.
 *
 * @param path in: the file, which is created or emptied; borrowed for the call. Each process
 *   needs a different file.
 * @agree nothing.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if `path` is NULL or not UTF-8, or if a trace is
 *   already running; DIST_ERR_SYSTEM or DIST_ERR_OUT_OF_MEMORY if the file or the writer
 *   thread cannot be created.
 * @threads Any thread may call this at any time.
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
 * @blocks Until the file is written, but at most 10 seconds.
 * @return DIST_OK; DIST_ERR_SYSTEM or DIST_ERR_OUT_OF_MEMORY if an error has ended the trace
 *   before this call, for instance a full disk; DIST_ERR_TIMEOUT if the file was not written
 *   in time. After an error, the written part of the file can be read.
 * @threads Any thread may call this at any time.
 * @since 0.1
 */
DIST_NODISCARD dist_status_t dist_trace_stop(void);

#ifdef __cplusplus
}
#endif

#endif /* DIST_H */
