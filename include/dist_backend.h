/*
 * libdist: the interface between the library and a back end of another author.
 *
 * Generated from the source of the library; do not edit.
 *
 * The conventions of dist.h apply. docs/backend-plugins.md is the guide. c-examples/backend_store is a complete
 * back end. A plug-in is a back end in a shared object (dist_backend_load). A part is the share of a back
 * end in one group on one rank. A request is an operation of a part that has not ended.
 */

#ifndef DIST_BACKEND_H
#define DIST_BACKEND_H

#include "dist.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The interface of back ends
 *
 * What a plug-in gets from the library, and what it gives.
 */

/**
 * The version of the interface between the library and a plug-in (dist_backend_load).
 *
 * The version changes when an existing item changes its meaning. struct_size shows appended
 * fields.
 */
#define DIST_BACKEND_VERSION 2

/**
 * In `kinds` of dist_backend_created_t: messages (DIST_KIND_SEND and DIST_KIND_RECV).
 *
 * The bit of a collective is 1 << its number, for example 1 << DIST_KIND_BROADCAST.
 */
#define DIST_BACKEND_MESSAGES 4294967296

/**
 * In `flags` of dist_backend_operation_t: input and output are the same memory.
 */
#define DIST_BACKEND_IN_PLACE 1

/**
 * In `flags` of dist_backend_outcome_t, set by run: the operation was short.
 *
 * The operation took about 10 microseconds at most. The library then does not read the clock to
 * record the end of the operation.
 */
#define DIST_BACKEND_SHORT 1

/**
 * Details that a function of a plug-in returns in addition to its status.
 *
 * Before each call, the library sets culprit, peer, tag and len_bytes to -1, flags to 0 and the
 * text to "".
 */
typedef struct dist_backend_outcome_t {
    /**
     * sizeof(dist_backend_outcome_t) in the version of the library.
     */
    size_t struct_size;
    /**
     * For an error: the rank that caused it, or -1.
     */
    int32_t culprit;
    /**
     * For a received message: the rank of the sender.
     */
    int32_t peer;
    /**
     * For a received message: the tag.
     */
    int64_t tag;
    /**
     * For a received message: its length, which may exceed the receive buffer.
     */
    int64_t len_bytes;
    /**
     * For an error: a buffer of text_cap bytes for terminated UTF-8 that names the fault and the
     * remedy.
     */
    char *text;
    /**
     * The size of `text` in bytes, at least 256.
     */
    size_t text_cap;
    /**
     * DIST_BACKEND_SHORT, or 0.
     */
    uint64_t flags;
} dist_backend_outcome_t;

/**
 * The services of the library for a plug-in.
 *
 * The struct and `context` stay valid until destroy has returned. Any thread may call the
 * functions. Each function takes `context` first and copies its other arguments. After an error
 * status, dist_last_error has the message. Keys belong to this group alone: other groups and other
 * attempts to make this group do not see them.
 */
typedef struct dist_backend_host_t {
    /**
     * sizeof(dist_backend_host_t) in the version of the library.
     */
    size_t struct_size;
    /**
     * DIST_BACKEND_VERSION of the library.
     */
    uint32_t version;
    /**
     * The version of the library as dist_version() returns it.
     */
    uint32_t library_version;
    /**
     * The first argument of the functions below.
     */
    void *context;
    /**
     * Stores a value. The default time-out of this function and the next four is 5 minutes. They
     * return DIST_ERR_UNSUPPORTED if the group's store was released.
     */
    dist_status_t (*store_set)(void *context,
                               const char *key,
                               const void *value,
                               size_t len_bytes,
                               int64_t timeout_ms);
    /**
     * Waits until the key exists and passes its value to `sink(sink_arg, ...)`; DIST_NO_WAIT
     * checks once. Returns DIST_ERR_TIMEOUT at the deadline. If the group fails on this rank,
     * returns DIST_ERR_ABORTED within about 100 ms.
     */
    dist_status_t (*store_get)(void *context,
                               const char *key,
                               dist_store_sink_fn sink,
                               void *sink_arg,
                               int64_t timeout_ms);
    /**
     * Adds to a counter (a missing counter is 0) and writes the sum.
     */
    dist_status_t (*store_add)(void *context,
                               const char *key,
                               int64_t amount,
                               int64_t *result,
                               int64_t timeout_ms);
    /**
     * Writes 1 if the key exists, else 0, without waiting for the key.
     */
    dist_status_t (*store_check)(void *context,
                                 const char *key,
                                 int32_t *present,
                                 int64_t timeout_ms);
    /**
     * Removes a key; a missing key is no error.
     */
    dist_status_t (*store_delete)(void *context, const char *key, int64_t timeout_ms);
    /**
     * Writes a line to the library's log at a DIST_LOG_ level.
     */
    void (*log)(void *context, int32_t level, const char *text);
    /**
     * Returns 1 once the group has failed on this rank, else 0. All waits should then end. The
     * call is cheap.
     */
    int32_t (*is_aborted)(void *context);
    /**
     * Ends the operation with this ticket, for plug-ins without test and wait. `outcome` has
     * its struct_size set, or is NULL. Any thread may call the function, also inside submit.
     * Returns DIST_ERR_INVALID_ARGUMENT if no outstanding operation has the ticket.
     */
    dist_status_t (*complete)(void *context,
                              uint64_t ticket,
                              dist_status_t status,
                              const struct dist_backend_outcome_t *outcome);
} dist_backend_host_t;

/**
 * The description of a group for create; valid during create, except `host`.
 */
typedef struct dist_backend_setup_t {
    /**
     * sizeof(dist_backend_setup_t) in the version of the library.
     */
    size_t struct_size;
    /**
     * The rank of this process in the group.
     */
    int32_t rank;
    /**
     * The number of ranks.
     */
    int32_t size;
    /**
     * How many times dist_group_shrink replaced a failed group on the way to this group.
     */
    uint32_t epoch;
    /**
     * The GPU of this rank, or DIST_DEVICE_HOST.
     */
    int32_t device;
    /**
     * A unique identifier of 32 hexadecimal digits, the same on all ranks.
     */
    const char *group_id;
    /**
     * The group's name.
     */
    const char *group_name;
    /**
     * The caller's options for the back end, "key=value;key=value", or "".
     */
    const char *options;
    /**
     * The default time-out of operations.
     */
    int64_t timeout_ms;
    /**
     * The time-out of create.
     */
    int64_t create_timeout_ms;
    /**
     * The services of the library; valid until destroy has returned.
     */
    const struct dist_backend_host_t *host;
    /**
     * Contributes bytes of this rank under the name of a phase and waits for the bytes of all
     * ranks. Then passes the bytes of each rank to `sink(sink_arg, ...)` in the order of ranks.
     * All ranks call the function with the same phases in the same order, on the thread of create.
     * If a rank publishes a failure, the function fails on all ranks.
     */
    dist_status_t (*exchange)(void *exchange_arg,
                              const char *phase,
                              const void *bytes,
                              size_t len_bytes,
                              dist_store_sink_fn sink,
                              void *sink_arg);
    /**
     * The first argument of `exchange`.
     */
    void *exchange_arg;
} dist_backend_setup_t;

/**
 * The result of create; the library sets struct_size, and all other fields to zero.
 */
typedef struct dist_backend_created_t {
    /**
     * sizeof(dist_backend_created_t) in the version of the library.
     */
    size_t struct_size;
    /**
     * The first argument of the other functions; may be NULL.
     */
    void *part;
    /**
     * The operations of the plug-in, the same on all ranks: bits 1 << DIST_KIND_... of
     * collectives, and DIST_BACKEND_MESSAGES; 0 for all. The library composes missing operations
     * of these if the result is the same.
     */
    uint64_t kinds;
    /**
     * Not 0: buffers may also be in the memory of the setup's device, in calls that `supports`
     * accepts. The device's context is then current in create, submit, run, test, wait and
     * release. 0: the library copies device memory to host memory and back. The same on all ranks.
     */
    int32_t serves_device;
    /**
     * Must be 0.
     */
    int32_t reserved;
} dist_backend_created_t;

/**
 * One operation; valid during submit or run.
 *
 * The buffers are borrowed until the operation has ended or was released. The arrays of
 * displacements and counts are borrowed for the call. An absent field is NULL or 0; absent types,
 * ranks and tags are -1.
 */
typedef struct dist_backend_operation_t {
    /**
     * sizeof(dist_backend_operation_t) in the version of the library.
     */
    size_t struct_size;
    /**
     * A DIST_KIND_ constant.
     */
    int32_t kind;
    /**
     * The element type; -1 for a barrier.
     */
    dist_dtype_t dtype;
    /**
     * The operator of a reduction, defined for the type; -1 for other operations.
     */
    dist_op_t op;
    /**
     * The root, or -1 if the operation has none.
     */
    int32_t root;
    /**
     * The other rank of a message; DIST_ANY_SOURCE in a receive means any rank.
     */
    int32_t peer;
    /**
     * The location of the buffers: DIST_DEVICE_HOST, or the index of a GPU.
     */
    int32_t device;
    /**
     * The tag of a message: 0 to 2147483647 for callers, up to 4294967295 for the library's own
     * messages. DIST_ANY_TAG in a receive matches callers' tags only.
     */
    int64_t tag;
    /**
     * The input of this rank; NULL if the rank has none. In a broadcast, the buffer of the root,
     * on the root only. In the _v forms, the lowest address of the blocks.
     */
    const void *send;
    /**
     * The buffer for the result; NULL if this rank gets none. In a broadcast, the buffer on all
     * ranks but the root. In the _v forms, the lowest address of the blocks.
     */
    void *recv;
    /**
     * The count argument in elements: of a vector, of one rank's block, or of a message; in a
     * receive, the capacity of the buffer. 0 in the _v forms, which have send_count and
     * recv_count.
     */
    size_t count;
    /**
     * In the _v forms, if this rank sends a block to each rank: the length of each block in
     * elements.
     */
    const size_t *send_counts;
    /**
     * The start of each of these blocks in bytes from `send`; gaps between the blocks are
     * possible.
     */
    const size_t *send_displs;
    /**
     * In the _v forms, if this rank receives a block from each rank: the length of each block in
     * elements.
     */
    const size_t *recv_counts;
    /**
     * The start of each of these blocks in bytes from `recv`; gaps between the blocks are
     * possible.
     */
    const size_t *recv_displs;
    /**
     * In the _v forms: the length of `send` in elements if `send` is one block, else 0.
     */
    size_t send_count;
    /**
     * In the _v forms: the length of `recv` in elements if `recv` is one block, else 0.
     */
    size_t recv_count;
    /**
     * The factor of this rank for DIST_PREMUL_SUM.
     */
    double factor;
    /**
     * The time-out of the operation from now on: 1 or more, DIST_WAIT_FOREVER, or DIST_NO_WAIT if
     * no time is left.
     */
    int64_t timeout_ms;
    /**
     * The number of the collective in its group, from 1, the same on all ranks; 0 for messages.
     */
    uint64_t sequence;
    /**
     * The number of the part, if the library composes the collective of several operations; else
     * 0.
     */
    uint64_t part;
    /**
     * For GPU memory: the caller's stream as the driver's handle, or NULL; the earlier work in the
     * stream is done. NULL for host memory.
     */
    void *stream;
    /**
     * DIST_BACKEND_IN_PLACE, or 0.
     */
    uint64_t flags;
    /**
     * The ticket for complete(), for a plug-in without test and wait; else 0.
     */
    uint64_t ticket;
    /**
     * In a receive of a message of any length, in place of `recv`. Returns memory for the given
     * length, or NULL if the message is too long; the receive then ends with DIST_ERR_MISMATCH.
     * The plug-in calls the function once, with `grow_arg`, from any thread, before the receive
     * ends.
     */
    void *(*grow)(void *grow_arg, size_t len_bytes);
    /**
     * The argument of `grow`; valid until the operation has ended or was released.
     */
    void *grow_arg;
} dist_backend_operation_t;

/**
 * A call for which the library asks whether the plug-in supports it.
 */
typedef struct dist_backend_query_t {
    /**
     * sizeof(dist_backend_query_t) in the version of the library.
     */
    size_t struct_size;
    /**
     * A DIST_KIND_ constant.
     */
    int32_t kind;
    /**
     * The element type, or -1.
     */
    dist_dtype_t dtype;
    /**
     * The operator, or -1.
     */
    dist_op_t op;
    /**
     * DIST_DEVICE_HOST, or the index of a GPU.
     */
    int32_t device;
} dist_backend_query_t;

/**
 * The functions of a back end (dist_backend_register).
 *
 * No function may throw or end the process. Each function with a status returns DIST_OK or another
 * status of this header, with details in `outcome`. The caller gets DIST_ERR_BACKEND for any
 * other number. `part` is the result of create.
 *
 * Threads: create and destroy are called once for each part, and no other function runs at that
 * time. One thread at a time submits collectives, in the same order on all ranks; the thread may
 * change. Any thread may call the other functions at any time, also during a wait of another
 * thread: messages are submitted, tested and released concurrently with collectives, and any
 * thread may call abort. One thread at a time uses a request.
 *
 * Requests: a request begins with submit or run. The request ends when test, wait or complete
 * reports the end of the operation, successful or not, or when release withdraws the operation.
 * The library does not use a request after its end.
 */
typedef struct dist_backend_vtable_t {
    /**
     * sizeof(dist_backend_vtable_t).
     */
    size_t struct_size;
    /**
     * Required. Makes this rank's part of a group, on all ranks at once, within the setup's time.
     * `user` is the registered pointer; `created` is an output. After a failure, the library
     * informs the other ranks and does not call destroy.
     */
    dist_status_t (*create)(void *user,
                            const struct dist_backend_setup_t *setup,
                            struct dist_backend_created_t *created,
                            struct dist_backend_outcome_t *outcome);
    /**
     * Required. Ends a part. There are no outstanding requests. The function must not wait for
     * other ranks.
     */
    void (*destroy)(void *part);
    /**
     * Required. Begins an operation without waiting for other ranks. DIST_OK: the operation has
     * ended. DIST_IN_PROGRESS: the operation goes on, and `request` (an output) is the argument of
     * test, wait and release; NULL only in a plug-in without test and wait.
     * DIST_ERR_INVALID_ARGUMENT and DIST_ERR_UNSUPPORTED: every rank refuses the operation, and
     * the group goes on. Any other error of a collective fails the group.
     */
    dist_status_t (*submit)(void *part,
                            const struct dist_backend_operation_t *operation,
                            void **request,
                            struct dist_backend_outcome_t *outcome);
    /**
     * Required. Withdraws an operation that has not ended, because its deadline has passed or the
     * group has failed. DIST_OK: the plug-in will not touch the operation's memory any more. The
     * text may then name the reason for the wait, and the culprit the late rank; the library adds
     * both to the error. Any other status: the plug-in cannot promise this, the caller gets the
     * error, and the group fails. The request ends in either case. The function must not wait for
     * other ranks.
     */
    dist_status_t (*release)(void *part, void *request, struct dist_backend_outcome_t *outcome);
    /**
     * Optional. Reports without waiting whether an operation has ended: DIST_OK, DIST_IN_PROGRESS,
     * or the error of the operation. Without test, the library calls wait with 0 ms. An operation
     * may make progress only here.
     */
    dist_status_t (*test)(void *part, void *request, struct dist_backend_outcome_t *outcome);
    /**
     * Optional. As test, but waits for up to `timeout_ms`: 1 to 1000, or DIST_NO_WAIT for no
     * time. The library repeats the call until the operation's deadline. The wait must end soon
     * after abort. Without wait, the library calls test repeatedly. Without both, operations end
     * by the host's complete().
     */
    dist_status_t (*wait)(void *part,
                          void *request,
                          int64_t timeout_ms,
                          struct dist_backend_outcome_t *outcome);
    /**
     * Optional. Reports that the group has failed, with the reason. Every wait of the part should
     * end soon, if possible also on other ranks. The library calls abort at most once. The
     * function must not wait. Without abort, waits end within 1 s.
     */
    void (*abort)(void *part, dist_status_t status, const char *reason, int32_t culprit);
    /**
     * Optional. Returns DIST_OK, or the reason why the part cannot continue, for example another
     * rank's abort. The library calls the function periodically while a thread waits. The function
     * must not wait.
     */
    dist_status_t (*failure)(void *part, struct dist_backend_outcome_t *outcome);
    /**
     * Optional. Returns DIST_OK if the plug-in supports the call of an operation in its kinds,
     * else DIST_ERR_UNSUPPORTED. The answer is the same on all ranks and never changes. Without
     * supports, the plug-in supports all types and operators.
     */
    dist_status_t (*supports)(void *part,
                              const struct dist_backend_query_t *query,
                              struct dist_backend_outcome_t *outcome);
    /**
     * Optional, together with free_memory. Allocates host memory for buffers, aligned to at least
     * 64 bytes (dist_mem_alloc). `device` is DIST_DEVICE_HOST.
     */
    dist_status_t (*allocate)(void *part,
                              size_t bytes,
                              int32_t device,
                              void **memory,
                              struct dist_backend_outcome_t *outcome);
    /**
     * Frees memory of allocate. The part lives at least until then.
     */
    void (*free_memory)(void *part, void *memory, size_t bytes);
    /**
     * Optional. Passes a JSON text about the part to the sink once (dist_group_describe).
     */
    dist_status_t (*describe)(void *part, dist_store_sink_fn sink, void *sink_arg);
    /**
     * Optional, only together with test or wait. Begins a collective whose caller waits, and waits
     * for up to `timeout_ms` (1 to 1000, or DIST_NO_WAIT). For operations that run faster this way
     * than by submit and wait. DIST_OK: the operation has ended. DIST_IN_PROGRESS: the operation
     * goes on, and `request` (an output) is the argument of wait, test and release; the struct of
     * the operation is valid during run only. DIST_ERR_INVALID_ARGUMENT and DIST_ERR_UNSUPPORTED:
     * the operation is refused as by submit. Any other error fails the group. Threads and order
     * are those of submit. The wait must end soon after abort. If the library composes a
     * collective of several operations, it uses submit.
     */
    dist_status_t (*run)(void *part,
                         const struct dist_backend_operation_t *operation,
                         int64_t timeout_ms,
                         void **request,
                         struct dist_backend_outcome_t *outcome);
} dist_backend_vtable_t;

/**
 * The back end of a shared object; the library sets struct_size, and all other fields to zero.
 */
typedef struct dist_backend_plugin_t {
    /**
     * sizeof(dist_backend_plugin_t) in the version of the library.
     */
    size_t struct_size;
    /**
     * DIST_BACKEND_VERSION of the header with which the plug-in was compiled.
     */
    uint32_t version;
    /**
     * Must be 0.
     */
    uint32_t reserved;
    /**
     * The name of the back end, as in dist_backend_register; copied.
     */
    const char *name;
    /**
     * The functions of the back end; copied.
     */
    const struct dist_backend_vtable_t *functions;
    /**
     * The pointer that the library passes to create.
     */
    void *user;
} dist_backend_plugin_t;

/**
 * The function that a plug-in exports under the name dist_backend_plugin_v2.
 *
 * `host` provides version, library_version and log only. The function returns DIST_OK, or the
 * reason why the plug-in cannot be used in this process.
 */
typedef dist_status_t (*dist_backend_plugin_fn)(const struct dist_backend_host_t *host,
                                                struct dist_backend_plugin_t *plugin,
                                                struct dist_backend_outcome_t *outcome);

/**
 * Registers a back end of the caller under a name.
 *
 * From then on, groups can be made with this name as `backend`. A back end cannot be
 * withdrawn: the functions and `user` stay usable until the process ends.
 *
 * @param name in: 1 to 64 letters, digits, "_" and "-" in either case, not reserved and not in
 *   use; borrowed for the call.
 * @param functions in: the functions, copied; the required functions must be set.
 * @param user in, optional: passed to create.
 * @agree the ranks of a group register the same back end.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT, with the missing function or the fault of the
 *   name in the message; DIST_ERR_UNSUPPORTED if `functions` has a newer field;
 *   DIST_ERR_OUT_OF_MEMORY if too many back ends are registered; DIST_ERR_NOT_INITIALIZED in a
 *   forked child.
 * @threads any.
 * @since 0.1
 */
DIST_NODISCARD
dist_status_t dist_backend_register(const char *name,
                                    const struct dist_backend_vtable_t *functions,
                                    void *user);

/* All defaults; assign the fields that differ. */
#define DIST_BACKEND_OUTCOME_INIT { sizeof(dist_backend_outcome_t), -1, -1, -1, -1, DIST_NULL, \
    0, 0 }
#define DIST_BACKEND_VTABLE_INIT { sizeof(dist_backend_vtable_t), DIST_NULL, DIST_NULL, \
    DIST_NULL, DIST_NULL, DIST_NULL, DIST_NULL, DIST_NULL, DIST_NULL, DIST_NULL, DIST_NULL, \
    DIST_NULL, DIST_NULL, DIST_NULL }

#ifdef __cplusplus
}
#endif

#endif /* DIST_BACKEND_H */
