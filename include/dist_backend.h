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
 * The services of the library for a plug-in, and the functions that a plug-in provides.
 */

/**
 * The version of the interface between the library and a plug-in (dist_backend_load).
 *
 * The version changes only if an existing item changes its meaning. If a field is appended to a
 * struct, the version stays, and struct_size shows whether the struct has the field.
 */
#define DIST_BACKEND_VERSION 2

/**
 * In `kinds` of dist_backend_created_t: the plug-in supports messages (DIST_KIND_SEND and
 * DIST_KIND_RECV).
 *
 * The bit of a collective is 1 << its DIST_KIND_ number, for example 1 << DIST_KIND_BROADCAST.
 */
#define DIST_BACKEND_MESSAGES 4294967296

/**
 * In `flags` of dist_backend_operation_t: input and output are the same memory.
 */
#define DIST_BACKEND_IN_PLACE 1

/**
 * In `flags` of dist_backend_outcome_t: the operation was short. Only run sets this flag.
 *
 * The flag means that the operation took at most about 10 microseconds. The library then saves the
 * time of reading the clock at the end of the operation.
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
     * A buffer of text_cap bytes. For an error, the plug-in writes terminated UTF-8 that names the
     * fault and the remedy.
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
 * status, dist_last_error returns the message.
 *
 * The five store_ functions use keys that belong to this group alone: other groups, and other
 * attempts to make this group, do not see them. Their default time-out is 5 minutes. They return
 * DIST_ERR_UNSUPPORTED if the store of the group was released.
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
     * Stores a value under a key.
     */
    dist_status_t (*store_set)(void *context,
                               const char *key,
                               const void *value,
                               size_t len_bytes,
                               int64_t timeout_ms);
    /**
     * Waits until the key exists, and passes its value to `sink(sink_arg, ...)`. With DIST_NO_WAIT
     * the function checks the key once. Returns DIST_ERR_TIMEOUT at the deadline. If the group
     * fails on this rank, returns DIST_ERR_ABORTED within about 100 ms.
     */
    dist_status_t (*store_get)(void *context,
                               const char *key,
                               dist_store_sink_fn sink,
                               void *sink_arg,
                               int64_t timeout_ms);
    /**
     * Adds `amount` to a counter and writes the sum to `result`. A missing counter counts as 0.
     */
    dist_status_t (*store_add)(void *context,
                               const char *key,
                               int64_t amount,
                               int64_t *result,
                               int64_t timeout_ms);
    /**
     * Writes to `present` 1 if the key exists, and 0 otherwise. The function does not wait for the
     * key.
     */
    dist_status_t (*store_check)(void *context,
                                 const char *key,
                                 int32_t *present,
                                 int64_t timeout_ms);
    /**
     * Removes a key. A missing key is no error.
     */
    dist_status_t (*store_delete)(void *context, const char *key, int64_t timeout_ms);
    /**
     * Writes a line to the library's log at a DIST_LOG_ level.
     */
    void (*log)(void *context, int32_t level, const char *text);
    /**
     * Returns 1 if the group has failed on this rank, and 0 otherwise. After a result of 1, the
     * plug-in should end all waits of the part. The call is cheap.
     */
    int32_t (*is_aborted)(void *context);
    /**
     * For plug-ins without test and wait: reports the end of the operation with this ticket.
     * `outcome` is NULL, or has its struct_size set. Any thread may call the function, also during
     * submit. Returns DIST_ERR_INVALID_ARGUMENT if no outstanding operation has the ticket.
     */
    dist_status_t (*complete)(void *context,
                              uint64_t ticket,
                              dist_status_t status,
                              const struct dist_backend_outcome_t *outcome);
} dist_backend_host_t;

/**
 * The description of a group for create; valid only during create, except `host`.
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
     * The number of successive calls of dist_group_shrink that led to this group, or 0.
     */
    uint32_t epoch;
    /**
     * The GPU of this rank, or DIST_DEVICE_HOST.
     */
    int32_t device;
    /**
     * A unique identifier of the group, of 32 hexadecimal digits, the same on all ranks.
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
     * The default time-out of the group's operations.
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
     * An all-gather of bytes between the ranks of the group. The function contributes the bytes of
     * this rank, and waits for the bytes of all ranks. Then it passes the bytes of each rank to
     * `sink(sink_arg, ...)`, in the order of ranks. `phase` is a name for this exchange. All ranks
     * call the function with the same phases in the same order, on the thread of create. If create
     * fails on a rank, the function fails on all ranks.
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
 * The result of create. Before the call, the library sets struct_size, and sets all other fields
 * to zero.
 */
typedef struct dist_backend_created_t {
    /**
     * sizeof(dist_backend_created_t) in the version of the library.
     */
    size_t struct_size;
    /**
     * The first argument of the plug-in's other functions; may be NULL.
     */
    void *part;
    /**
     * The operations that the plug-in supports, the same on all ranks: the sum of the bits 1 <<
     * DIST_KIND_... of its collectives, and of DIST_BACKEND_MESSAGES. 0 means all operations. The
     * library composes a missing operation of supported operations if the result is the same.
     */
    uint64_t kinds;
    /**
     * Whether the plug-in uses buffers in the memory of the setup's device, the same on all ranks.
     * If 0, the plug-in gets only host memory: the library copies device memory to host memory and
     * back. If not 0, it also gets device memory, in calls that `supports` accepts. The device's
     * context is then current in create, submit, run, test, wait and release.
     */
    int32_t serves_device;
    /**
     * Must be 0.
     */
    int32_t reserved;
} dist_backend_created_t;

/**
 * One operation of a part. The struct is valid only during submit or run.
 *
 * The buffers are borrowed until the operation has ended or was released. The arrays of counts and
 * displacements are borrowed for the call of submit or run. A field that the operation does not
 * use is NULL or 0, except that an unused type, operator, rank or tag is -1.
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
     * The root, or -1 if the operation has no root.
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
     * The input of this rank; NULL if the rank has no input. In a broadcast, only the root has an
     * input. In the _v forms, the lowest address of the blocks.
     */
    const void *send;
    /**
     * The buffer for the result; NULL if this rank gets no result. In a broadcast, all ranks but
     * the root get a result. In the _v forms, the lowest address of the blocks.
     */
    void *recv;
    /**
     * The argument `count` of the call in elements: the length of a vector, of one rank's block or
     * of a message. In a receive, the capacity of the buffer. The _v forms have send_count and
     * recv_count instead, and 0 here.
     */
    size_t count;
    /**
     * In the _v forms, if this rank sends one block to each rank: the length of each block in
     * elements. Otherwise NULL.
     */
    const size_t *send_counts;
    /**
     * The start of each block of send_counts, in bytes from `send`; there may be gaps.
     */
    const size_t *send_displs;
    /**
     * In the _v forms, if this rank receives one block from each rank: the length of each block in
     * elements. Otherwise NULL.
     */
    const size_t *recv_counts;
    /**
     * The start of each block of recv_counts, in bytes from `recv`; there may be gaps.
     */
    const size_t *recv_displs;
    /**
     * In the _v forms: the length of `send` in elements if `send` is one block, otherwise 0.
     */
    size_t send_count;
    /**
     * In the _v forms: the length of `recv` in elements if `recv` is one block, otherwise 0.
     */
    size_t recv_count;
    /**
     * The factor of this rank for DIST_PREMUL_SUM.
     */
    double factor;
    /**
     * The time left: 1 or more, DIST_WAIT_FOREVER, or DIST_NO_WAIT if no time is left.
     */
    int64_t timeout_ms;
    /**
     * The number of the collective in its group, from 1, the same on all ranks; 0 for messages.
     */
    uint64_t sequence;
    /**
     * The number of the operation among several that the library composes to one collective; else
     * 0.
     */
    uint64_t part;
    /**
     * For buffers in GPU memory: the caller's stream as a handle of the driver, or NULL if the
     * caller named no stream. The work that the caller put into the stream before is done. NULL
     * for host memory.
     */
    void *stream;
    /**
     * DIST_BACKEND_IN_PLACE, or 0.
     */
    uint64_t flags;
    /**
     * For a plug-in without test and wait: the ticket, a number that the plug-in passes to
     * complete() at the end of the operation. Otherwise 0.
     */
    uint64_t ticket;
    /**
     * Set instead of `recv` in a receive that accepts a message of any length. The plug-in calls
     * the function once, with `grow_arg`, from any thread, before the receive ends. The function
     * returns memory for a message of `len_bytes`. If it returns NULL, the message is too long,
     * and the plug-in ends the receive with DIST_ERR_MISMATCH.
     */
    void *(*grow)(void *grow_arg, size_t len_bytes);
    /**
     * The argument of `grow`; valid until the operation has ended or was released.
     */
    void *grow_arg;
} dist_backend_operation_t;

/**
 * The kind of call about which the library asks the function `supports`.
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
 * status of dist.h, with details in `outcome`. If a function returns any other number, the caller
 * gets DIST_ERR_BACKEND. `part` is the pointer that create returned.
 *
 * Threads:
 *
 * - create and destroy are called once for each part. No other function of the part runs at the
 *   same time.
 * - One thread at a time submits collectives, in the same order on all ranks. The thread may
 *   change between calls.
 * - Any thread may call the other functions at any time, also while another thread waits. So
 *   messages are submitted, tested and released concurrently with collectives, and any thread may
 *   call abort.
 * - One thread at a time uses a request.
 *
 * Requests: a request begins with submit or run. It ends in one of two ways: test, wait or
 * complete reports the end of the operation, successful or not; or release withdraws the
 * operation. The library does not use a request after its end.
 */
typedef struct dist_backend_vtable_t {
    /**
     * sizeof(dist_backend_vtable_t).
     */
    size_t struct_size;
    /**
     * Required. Makes this rank's part of a group. All ranks of the group call the function at the
     * same time. It must end within create_timeout_ms. `user` is the registered pointer, and
     * `created` is an output. If create fails, the library informs the other ranks and does not
     * call destroy.
     */
    dist_status_t (*create)(void *user,
                            const struct dist_backend_setup_t *setup,
                            struct dist_backend_created_t *created,
                            struct dist_backend_outcome_t *outcome);
    /**
     * Required. Ends a part. The part has no outstanding requests. The function must not wait for
     * other ranks.
     */
    void (*destroy)(void *part);
    /**
     * Required. Begins an operation without waiting for other ranks. Its status means:
     *
     * - DIST_OK: the operation has ended.
     * - DIST_IN_PROGRESS: the operation continues. `*request` is then the argument of test, wait
     *   and release. `*request` may be NULL only if the plug-in has neither test nor wait.
     * - DIST_ERR_INVALID_ARGUMENT or DIST_ERR_UNSUPPORTED: the operation has had no effect, every
     *   rank refuses it with this error, and the group continues.
     * - Any other error of a collective fails the group.
     */
    dist_status_t (*submit)(void *part,
                            const struct dist_backend_operation_t *operation,
                            void **request,
                            struct dist_backend_outcome_t *outcome);
    /**
     * Required. Withdraws an operation that has not ended, because its deadline has passed or the
     * group has failed. The request ends, whatever the status is. The function must not wait for
     * other ranks. Its status means:
     *
     * - DIST_OK: the plug-in will not touch the memory of the operation any more. In `outcome`,
     *   the text may name the reason for the wait, and the culprit may be the late rank. The
     *   library adds both to the error.
     * - Any other status: the plug-in may still touch the memory. The caller gets the error, and
     *   the group fails.
     */
    dist_status_t (*release)(void *part, void *request, struct dist_backend_outcome_t *outcome);
    /**
     * Optional. Reports without waiting whether an operation has ended: DIST_OK, DIST_IN_PROGRESS,
     * or the error of the operation. Without test, the library calls wait with DIST_NO_WAIT. A
     * plug-in may leave all progress of an operation to this function.
     */
    dist_status_t (*test)(void *part, void *request, struct dist_backend_outcome_t *outcome);
    /**
     * Optional. As test, but waits for up to `timeout_ms`: 1 to 1000, or DIST_NO_WAIT for no time.
     * The library repeats the call until the deadline of the operation. The wait must end soon
     * after abort. A plug-in without wait is polled with test. A plug-in without test and wait
     * reports the end of each operation with complete() of the host.
     */
    dist_status_t (*wait)(void *part,
                          void *request,
                          int64_t timeout_ms,
                          struct dist_backend_outcome_t *outcome);
    /**
     * Optional. The library calls abort at most once, when the group has failed, with the reason.
     * Every wait of the part should then end soon, if possible also on other ranks. The function
     * must not wait. Without abort, waits end within 1 s.
     */
    void (*abort)(void *part, dist_status_t status, const char *reason, int32_t culprit);
    /**
     * Optional. Returns DIST_OK, or the reason why the part cannot continue, for example another
     * rank's abort. The library calls the function periodically while a thread waits. The function
     * must not wait.
     */
    dist_status_t (*failure)(void *part, struct dist_backend_outcome_t *outcome);
    /**
     * Optional. Returns DIST_OK if the plug-in supports a call, and otherwise
     * DIST_ERR_UNSUPPORTED. The library asks only about operations in `kinds` of
     * dist_backend_created_t. The answer must be the same on all ranks and must never change.
     * Without supports, the plug-in supports all types and operators.
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
     * Frees memory that allocate returned. The library calls destroy only after it has freed all
     * such memory of the part.
     */
    void (*free_memory)(void *part, void *memory, size_t bytes);
    /**
     * Optional. Passes a JSON text about the part to the sink once, for dist_group_describe.
     */
    dist_status_t (*describe)(void *part, dist_store_sink_fn sink, void *sink_arg);
    /**
     * Optional, only together with test or wait. Begins a collective whose caller blocks, and
     * waits up to `timeout_ms` for its end (1 to 1000, or DIST_NO_WAIT). It is for operations that
     * run faster this way than with submit and wait. The rules of submit for threads and for the
     * order of calls apply. The wait must end soon after abort. If the library composes a
     * collective of several operations, it uses submit instead. The status of run means:
     *
     * - DIST_OK: the operation has ended.
     * - DIST_IN_PROGRESS: the operation continues. `*request` is then the argument of wait, test
     *   and release.
     * - DIST_ERR_INVALID_ARGUMENT or DIST_ERR_UNSUPPORTED: the same as for submit.
     * - Any other error fails the group.
     */
    dist_status_t (*run)(void *part,
                         const struct dist_backend_operation_t *operation,
                         int64_t timeout_ms,
                         void **request,
                         struct dist_backend_outcome_t *outcome);
} dist_backend_vtable_t;

/**
 * The back end in a shared object: an output of dist_backend_plugin_fn. Before the call, the
 * library sets struct_size, and sets all other fields to zero.
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
 * Of the functions of `host`, the plug-in may call only log; it may also read version and
 * library_version. The function returns DIST_OK, or the reason why the plug-in cannot be used in
 * this process.
 */
typedef dist_status_t (*dist_backend_plugin_fn)(const struct dist_backend_host_t *host,
                                                struct dist_backend_plugin_t *plugin,
                                                struct dist_backend_outcome_t *outcome);

/**
 * Registers a back end of the caller under a name.
 *
 * Afterwards, a group can be made with this name as `backend`. A registration is permanent:
 * the functions and `user` must stay usable until the process ends.
 *
 * @param name in: 1 to 64 characters: letters in upper or lower case, digits, "_" and "-". The
 *   name must not be reserved or in use. Borrowed for the call.
 * @param functions in: the functions, copied during the call. The required functions must be
 *   set.
 * @param user in, optional: passed to create.
 * @agree All ranks of a group register the same back end.
 * @blocks no.
 * @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if a required function is missing or the name is
 *   wrong (the message says which); DIST_ERR_UNSUPPORTED if `functions` sets a field that this
 *   version does not know; DIST_ERR_OUT_OF_MEMORY if too many back ends are registered;
 *   DIST_ERR_NOT_INITIALIZED in a forked child.
 * @threads Any thread may call this at any time.
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
