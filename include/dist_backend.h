/*
 * libdist: the interface between the library and a back end that others write.
 *
 * Generated from the source of the library; do not edit. dist.h has the conventions, docs/backends.md the guide, and
 * c-examples/backend_store.c is a whole back end.
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
 * The version of the interface between the library and a plug-in (dist_backend_load). It changes when something that was
 * there changes its meaning; what is appended to a struct is seen by struct_size.
 */
#define DIST_BACKEND_VERSION 2

/**
 * In `kinds` of dist_backend_created_t: messages (DIST_KIND_SEND and DIST_KIND_RECV). A collective has the bit of its
 * number: 1 << DIST_KIND_BROADCAST.
 */
#define DIST_BACKEND_MESSAGES 4294967296

/**
 * In `flags` of dist_backend_operation_t: input and output are the same memory, as the operation allows.
 */
#define DIST_BACKEND_IN_PLACE 1

/**
 * In `flags` of dist_backend_outcome_t, of run: the operation was small and has taken a moment only, some ten microseconds
 * at most, so that the library need not look at the clock to note its end.
 */
#define DIST_BACKEND_SHORT 1

/**
 * What a function of a plug-in says beside its status. The library sets all fields before each call: culprit, peer, tag
 * and len_bytes to -1, flags to 0, and the text to "".
 */
typedef struct dist_backend_outcome_t {
    /**
     * sizeof(dist_backend_outcome_t), as the library knows it.
     */
    size_t struct_size;
    /**
     * Of an error: the rank that is to blame, or -1.
     */
    int32_t culprit;
    /**
     * Of a message that has been received: who sent it.
     */
    int32_t peer;
    /**
     * Of a message that has been received: its tag.
     */
    int64_t tag;
    /**
     * Of a message that has been received: its length, whatever the room for it.
     */
    int64_t len_bytes;
    /**
     * Of an error: room for what happened and what to do, as terminated UTF-8; text_cap bytes.
     */
    char *text;
    /**
     * At least 256.
     */
    size_t text_cap;
    /**
     * DIST_BACKEND_SHORT, or 0.
     */
    uint64_t flags;
} dist_backend_outcome_t;

/**
 * What the library does for a plug-in. The struct and `context` stay valid until destroy has returned. All functions may
 * be called from any thread, take `context` first, copy what they are given, and return a status; dist_last_error has the
 * message. Keys are the group's own: no other group, and no other attempt to make this one, sees them.
 */
typedef struct dist_backend_host_t {
    /**
     * sizeof(dist_backend_host_t), as the library knows it.
     */
    size_t struct_size;
    /**
     * DIST_BACKEND_VERSION of the library.
     */
    uint32_t version;
    /**
     * The version of the library, as dist_version().
     */
    uint32_t library_version;
    /**
     * For the functions below.
     */
    void *context;
    /**
     * Stores a value. The default time-out of this and the next four is 5 minutes; they are DIST_ERR_UNSUPPORTED if the group's store was released.
     */
    dist_status_t (*store_set)(void *context,
                               const char *key,
                               const void *value,
                               size_t len_bytes,
                               int64_t timeout_ms);
    /**
     * Waits until the key exists, and hands its value to `sink(sink_arg, ...)`; DIST_NO_WAIT looks once. Ends with DIST_ERR_TIMEOUT, and with
     * DIST_ERR_ABORTED within a tenth of a second after the group has failed on this rank.
     */
    dist_status_t (*store_get)(void *context,
                               const char *key,
                               dist_store_sink_fn sink,
                               void *sink_arg,
                               int64_t timeout_ms);
    /**
     * Adds to a counter (a missing one is 0) and writes the sum.
     */
    dist_status_t (*store_add)(void *context,
                               const char *key,
                               int64_t amount,
                               int64_t *result,
                               int64_t timeout_ms);
    /**
     * Writes 1 if the key exists, else 0, without waiting for it.
     */
    dist_status_t (*store_check)(void *context,
                                 const char *key,
                                 int32_t *present,
                                 int64_t timeout_ms);
    /**
     * Removes a key; no error where there is none.
     */
    dist_status_t (*store_delete)(void *context, const char *key, int64_t timeout_ms);
    /**
     * Writes a line to the library's log, at a DIST_LOG_ level.
     */
    void (*log)(void *context, int32_t level, const char *text);
    /**
     * Not 0 once the group has failed on this rank: whatever waits is to end. Costs next to nothing.
     */
    int32_t (*is_aborted)(void *context);
    /**
     * Ends the operation with this ticket, for plug-ins without test and wait: the status, and what there is to say
     * beside it (may be NULL). From any thread, also inside submit. DIST_ERR_INVALID_ARGUMENT where no operation under
     * way has the ticket.
     */
    dist_status_t (*complete)(void *context,
                              uint64_t ticket,
                              dist_status_t status,
                              const struct dist_backend_outcome_t *outcome);
} dist_backend_host_t;

/**
 * What a plug-in is told about the group that it makes its part of. Valid during create, but for `host`.
 */
typedef struct dist_backend_setup_t {
    /**
     * sizeof(dist_backend_setup_t), as the library knows it.
     */
    size_t struct_size;
    /**
     * This rank.
     */
    int32_t rank;
    /**
     * The number of ranks.
     */
    int32_t size;
    /**
     * How often a failed group was replaced by what was left of it, to come to this one (dist_group_shrink).
     */
    uint32_t epoch;
    /**
     * The GPU of this rank, or DIST_DEVICE_HOST.
     */
    int32_t device;
    /**
     * 32 hexadecimal digits that no other group ever had; the same on all ranks.
     */
    const char *group_id;
    /**
     * The group's name.
     */
    const char *group_name;
    /**
     * What the caller asked of the back end, "key=value;key=value", or "".
     */
    const char *options;
    /**
     * The time-out of operations that name none.
     */
    int64_t timeout_ms;
    /**
     * How long create may take.
     */
    int64_t create_timeout_ms;
    /**
     * The library's services, for as long as the part of the group lasts.
     */
    const struct dist_backend_host_t *host;
    /**
     * Gives some bytes of this rank under the name of a phase, waits for those of all ranks, and hands them to
     * `sink(sink_arg, ...)` one by one in the order of ranks. All ranks call it with the same phases in the same order,
     * on the thread of create. Where a rank gives up, it ends on all.
     */
    dist_status_t (*exchange)(void *exchange_arg,
                              const char *phase,
                              const void *bytes,
                              size_t len_bytes,
                              dist_store_sink_fn sink,
                              void *sink_arg);
    /**
     * For `exchange`.
     */
    void *exchange_arg;
} dist_backend_setup_t;

/**
 * What create has made; the library has set struct_size, and everything else to zero.
 */
typedef struct dist_backend_created_t {
    /**
     * sizeof(dist_backend_created_t), as the library knows it.
     */
    size_t struct_size;
    /**
     * What the other functions get; may be NULL.
     */
    void *part;
    /**
     * Which operations the plug-in has: the bits 1 << DIST_KIND_... of collectives, and DIST_BACKEND_MESSAGES; 0 for all.
     * The library makes others of these where that gives the same result. The same on all ranks.
     */
    uint64_t kinds;
    /**
     * Not 0: besides host memory, buffers may be in the memory of the setup's device, in the calls for which `supports` says
     * so; the device's context is current in create, submit, run, test, wait and release then. The same on all ranks.
     * Else the library copies that memory to host memory and back.
     */
    int32_t serves_device;
    /**
     * Zero.
     */
    int32_t reserved;
} dist_backend_created_t;

/**
 * One operation. Valid during submit; the buffers that it points to are lent until the operation has ended or has been
 * released, the arrays of places and counts during submit only. A field that an operation does not have is NULL, 0, or -1
 * for types and ranks.
 */
typedef struct dist_backend_operation_t {
    /**
     * sizeof(dist_backend_operation_t), as the library knows it.
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
     * The operator of a reduction, defined for the type; else -1.
     */
    dist_op_t op;
    /**
     * The root, or -1.
     */
    int32_t root;
    /**
     * The other rank of a message; DIST_ANY_SOURCE is possible in a receive.
     */
    int32_t peer;
    /**
     * Where the buffers are: DIST_DEVICE_HOST, or the index of a GPU.
     */
    int32_t device;
    /**
     * The tag of a message: 0 to 2147483647, of the library's own messages up to 4294967295. DIST_ANY_TAG in a receive
     * takes callers' tags only.
     */
    int64_t tag;
    /**
     * What this rank contributes; NULL where it contributes nothing. In a broadcast, the root's buffer on the root. In
     * the _v forms the lowest address of its blocks.
     */
    const void *send;
    /**
     * Where its result goes; NULL where it gets none. In a broadcast, the buffer on all but the root. In the _v forms the
     * lowest address of its blocks.
     */
    void *recv;
    /**
     * The count argument in elements: of a vector, of a block where there is one for each rank, of a message; of a
     * receive, the room. 0 in the _v forms, which have send_count and recv_count.
     */
    size_t count;
    /**
     * In the _v forms, where this rank sends a block for each rank: how long each is in elements; one for each rank.
     */
    const size_t *send_counts;
    /**
     * And where each begins, in bytes from `send`; they need not follow each other.
     */
    const size_t *send_displs;
    /**
     * In the _v forms, where this rank gets a block from each rank: how long each is in elements.
     */
    const size_t *recv_counts;
    /**
     * And where each begins, in bytes from `recv`.
     */
    const size_t *recv_displs;
    /**
     * In the _v forms: the length of `send` in elements where it is one block, else 0.
     */
    size_t send_count;
    /**
     * In the _v forms: the length of `recv` in elements where it is one block, else 0.
     */
    size_t recv_count;
    /**
     * Of DIST_PREMUL_SUM: this rank's own factor.
     */
    double factor;
    /**
     * The time-out of the operation, from now; never 0.
     */
    int64_t timeout_ms;
    /**
     * The number of the collective in its group, from 1, the same on all ranks; 0 for messages.
     */
    uint64_t sequence;
    /**
     * Which part of that collective, where the library makes it of several, by a number of its own; else 0.
     */
    uint64_t part;
    /**
     * The caller's stream for a device's operation, as the driver's handle, or NULL: what was in it has been done. NULL for
     * host memory.
     */
    void *stream;
    /**
     * DIST_BACKEND_IN_PLACE, or 0.
     */
    uint64_t flags;
    /**
     * What complete() is called with, by a plug-in without test and wait.
     */
    uint64_t ticket;
    /**
     * In a receive of a message of any length, in place of `recv`: gives the memory for it, once its length is known, or
     * NULL where it is too long (then the receive ends with DIST_ERR_MISMATCH). Called once, with `grow_arg`, from any
     * thread, before the receive ends.
     */
    void *(*grow)(void *grow_arg, size_t len_bytes);
    /**
     * For `grow`; valid until the operation has ended or has been released.
     */
    void *grow_arg;
} dist_backend_operation_t;

/**
 * What a plug-in is asked whether it does.
 */
typedef struct dist_backend_query_t {
    /**
     * sizeof(dist_backend_query_t), as the library knows it.
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
 * The functions of a back end (dist_backend_register). None may throw or end the process, and each returns DIST_OK or
 * another status of this header, with details in `outcome` where there is one: any other number is DIST_ERR_BACKEND to
 * the caller. `part` is what create made.
 *
 * Threads: create and destroy are called once for each part, and nothing else during either. Collectives are submitted by
 * one thread at a time, in the order that all ranks have; which thread that is changes. Everything else may come from any
 * thread at any time, also while another is inside wait: messages are submitted, tested and released beside collectives,
 * abort comes from whoever aborts. A request is used by one thread at a time.
 *
 * The life of a request: it begins with submit; it ends when test, wait or complete says that the operation has ended,
 * well or not, and is not used again after that; or it is taken back by release.
 */
typedef struct dist_backend_vtable_t {
    /**
     * sizeof(dist_backend_vtable_t).
     */
    size_t struct_size;
    /**
     * Makes this rank's part of a group, on all ranks at once, within the setup's time; required. `user`: as it was
     * registered. `created`: out. After a failure, destroy is not called, and the other ranks are told.
     */
    dist_status_t (*create)(void *user,
                            const struct dist_backend_setup_t *setup,
                            struct dist_backend_created_t *created,
                            struct dist_backend_outcome_t *outcome);
    /**
     * Ends a part; required. No request is left, and no other rank waited for.
     */
    void (*destroy)(void *part);
    /**
     * Begins an operation without waiting for other ranks; required. DIST_OK: it has ended. DIST_IN_PROGRESS: it goes on,
     * and `request` (out) is what test, wait and release get; NULL only in a plug-in without test and wait.
     * DIST_ERR_INVALID_ARGUMENT and DIST_ERR_UNSUPPORTED: it is refused, as on every rank, and the group goes on; any
     * other error of a collective fails the group.
     */
    dist_status_t (*submit)(void *part,
                            const struct dist_backend_operation_t *operation,
                            void **request,
                            struct dist_backend_outcome_t *outcome);
    /**
     * Takes back an operation that has not ended: its deadline has passed, or the group has failed. DIST_OK: its memory
     * will not be touched any more; the text may say what it has waited for, and the culprit who is late, which becomes
     * part of the error. Any other status: that cannot be promised; the caller is told so, and the group fails. The
     * request has gone in either case. Must not wait for other ranks. Required.
     */
    dist_status_t (*release)(void *part, void *request, struct dist_backend_outcome_t *outcome);
    /**
     * Whether an operation has ended, without waiting: DIST_OK, DIST_IN_PROGRESS, or the error that it has ended with.
     * Without it, wait with 0 milliseconds. An operation may make progress here only.
     */
    dist_status_t (*test)(void *part, void *request, struct dist_backend_outcome_t *outcome);
    /**
     * The same, but waits for up to `timeout_ms` (1 to 1000, or DIST_NO_WAIT): the library asks again until the deadline, which it keeps.
     * Ends soon after abort. Without it the library asks test again and again. Without both, submit's operations end by
     * the host's complete().
     */
    dist_status_t (*wait)(void *part,
                          void *request,
                          int64_t timeout_ms,
                          struct dist_backend_outcome_t *outcome);
    /**
     * The group has failed for this reason: every wait of the part ends soon, on the other ranks too where the plug-in
     * can tell them. Called once at most; must not wait. Optional: without it, waits end within a second.
     */
    void (*abort)(void *part, dist_status_t status, const char *reason, int32_t culprit);
    /**
     * DIST_OK, or why the part cannot go on: another rank's abort, say. Asked now and then while somebody waits; must not
     * wait. Optional.
     */
    dist_status_t (*failure)(void *part, struct dist_backend_outcome_t *outcome);
    /**
     * DIST_OK, or DIST_ERR_UNSUPPORTED: whether it does a call, of an operation in its kinds. The same on all ranks, and
     * for as long as the part lasts. Optional: without it, all types and operators.
     */
    dist_status_t (*supports)(void *part,
                              const struct dist_backend_query_t *query,
                              struct dist_backend_outcome_t *outcome);
    /**
     * Memory for buffers, at least 64 bytes aligned (dist_mem_alloc); optional, with free_memory.
     */
    dist_status_t (*allocate)(void *part,
                              size_t bytes,
                              int32_t device,
                              void **memory,
                              struct dist_backend_outcome_t *outcome);
    /**
     * Frees what allocate has given; the part lasts until then.
     */
    void (*free_memory)(void *part, void *memory, size_t bytes);
    /**
     * Hands a JSON text that describes the part to the sink, once (dist_group_describe); optional.
     */
    dist_status_t (*describe)(void *part, dist_store_sink_fn sink, void *sink_arg);
    /**
     * Carries out a collective that its caller waits for, where that takes less than submit and then wait: begins it, and
     * waits for up to `timeout_ms` (1 to 1000, or DIST_NO_WAIT). DIST_OK: it has ended. DIST_IN_PROGRESS: it goes on, and `request` (out) is
     * what wait, test and release get; the operation itself is valid during run only. DIST_ERR_INVALID_ARGUMENT and
     * DIST_ERR_UNSUPPORTED: it is refused, as by submit, and nothing has begun; any other error fails the group. Threads
     * and order as for submit; ends soon after abort, as wait does. Optional, and only beside test or wait; what the
     * library makes of several operations is submitted all the same.
     */
    dist_status_t (*run)(void *part,
                         const struct dist_backend_operation_t *operation,
                         int64_t timeout_ms,
                         void **request,
                         struct dist_backend_outcome_t *outcome);
} dist_backend_vtable_t;

/**
 * What a plug-in that is loaded from a file says of itself; the library has set struct_size, and everything else to zero.
 */
typedef struct dist_backend_plugin_t {
    /**
     * sizeof(dist_backend_plugin_t), as the library knows it.
     */
    size_t struct_size;
    /**
     * DIST_BACKEND_VERSION of the header that the plug-in was compiled with.
     */
    uint32_t version;
    /**
     * Zero.
     */
    uint32_t reserved;
    /**
     * The name of the back end, as for dist_backend_register; copied.
     */
    const char *name;
    /**
     * Its functions; copied.
     */
    const struct dist_backend_vtable_t *functions;
    /**
     * For create.
     */
    void *user;
} dist_backend_plugin_t;

/**
 * The function that a plug-in exports under the name dist_backend_plugin_v2. `host` has version, library_version and log
 * only. Returns DIST_OK, or why it cannot be used in this process.
 */
typedef dist_status_t (*dist_backend_plugin_fn)(const struct dist_backend_host_t *host,
                                                struct dist_backend_plugin_t *plugin,
                                                struct dist_backend_outcome_t *outcome);

/**
 * Makes a back end known to this process: groups can be made with its name as `backend` from then on.
 *
 * `name`: required, 1 to 64 letters, digits, "_" and "-", whose case does not count; none that a back end has
 * already. `functions`: required, copied; those that are not optional must be set. `user`: handed to create; may be
 * NULL. Both must stay usable until the process ends: a back end cannot be taken back. Ranks of one group must have
 * registered the same back end. Does not block. Any thread.
 *
 * Returns DIST_OK; DIST_ERR_INVALID_ARGUMENT, naming the function that is missing or what is wrong with the name;
 * DIST_ERR_OUT_OF_MEMORY. Since 0.1.
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
