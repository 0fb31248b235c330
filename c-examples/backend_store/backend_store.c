/*
 * A complete but slow back end for libdist: ranks exchange all data through the store of their
 * group.
 *
 * In a collective each rank sets its data under its own key, and reads the data of its peers
 * when all keys exist. So every rank detects a mismatching call, and knows which rank is late. A
 * message is also a key; it contains the message's number in the sequence from its sender to its
 * receiver. The receiver matches messages and receives. The functions submit and test never
 * wait.
 *
 *     cc -shared -fPIC backend_store*.c -o libdist_store.so -lpthread
 *     dist_backend_load("./libdist_store.so"), then "store" as the name of the back end
 *
 * Back-end options: "only=N" gives the operations that the back end declares as supported, as
 * the bits of dist_backend_created_t. libdist composes the other operations from these. This
 * file contains the requests, and creates and destroys the communicator; the rest is in
 * backend_store_keys.c, _calls.c, _messages.c and _fold.c.
 */
#define _POSIX_C_SOURCE 200809L
#include "backend_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_POLL_INTERVAL_NS 5000000L

/* ---- Requests ---- */

static void release_request(struct communicator *comm, struct request *request)
{
    struct request **link = &comm->receives;
    while (*link != NULL && *link != request) {
        link = &(*link)->next;
    }
    if (*link == request) {
        *link = request->next;
    }
    if (request->message != NULL) { /* matched, and not received */
        request->message->next = comm->unmatched;
        comm->unmatched = request->message;
    }
    free(request->counts_and_displs);
    free(request);
    match_messages(comm);
}

/* Copies the operation and its lists: the operation outlives submit, but the memory of the lists
 * does not. */
static int copy_operation(const struct communicator *comm, struct request *request,
                          const dist_backend_operation_t *operation)
{
    const size_t **lists[2];
    size_t n = (size_t)comm->size, i;
    request->operation = *operation;
    lists[0] = &request->operation.recv_counts;
    lists[1] = &request->operation.recv_displs;
    if (operation->recv_counts == NULL) {
        return 1;
    }
    request->counts_and_displs = malloc(2 * n * sizeof(size_t));
    for (i = 0; i < 2 && request->counts_and_displs != NULL; i++) {
        memcpy(request->counts_and_displs + i * n, *lists[i], n * sizeof(size_t));
        *lists[i] = request->counts_and_displs + i * n;
    }
    return request->counts_and_displs != NULL;
}

static dist_status_t start_operation(struct communicator *comm, const dist_backend_operation_t *operation,
                                     struct request *request, dist_backend_outcome_t *outcome)
{
    char key[KEY_BYTES];
    dist_backend_operation_t scaled = *operation;
    dist_status_t status;
    if (operation->kind == DIST_KIND_RECV) {
        struct request **tail = &comm->receives;
        while (*tail != NULL) {
            tail = &(*tail)->next;
        }
        *tail = request;
        match_messages(comm);
        return DIST_IN_PROGRESS;
    }
    if (operation->op == DIST_PREMUL_SUM) {
        size_t count = operation->kind == DIST_KIND_REDUCE_SCATTER ? operation->count * (size_t)comm->size
            : operation->count;
        if (operation->kind == DIST_KIND_REDUCE_SCATTER_V) {
            return fail(outcome, DIST_ERR_UNSUPPORTED, -1, "reduce_scatter_v with PREMUL_SUM");
        }
        size_t bytes = count * element_size(operation->dtype);
        void *copy = malloc(bytes + 1);
        if (copy == NULL) {
            return fail_out_of_memory(outcome);
        }
        if (bytes > 0) {
            memcpy(copy, operation->send, bytes);
        }
        scale_elements(operation->dtype, copy, count, operation->factor);
        scaled.send = copy;
    }
    format_call_key(key, operation, comm->rank);
    status = publish_data(comm, &scaled, key, block_count(comm, &scaled), outcome);
    if (scaled.send != operation->send) {
        free((void *)scaled.send);
    }
    return status == DIST_OK ? DIST_IN_PROGRESS : status;
}

static dist_status_t submit_operation(void *arg, const dist_backend_operation_t *operation, void **handle,
                                      dist_backend_outcome_t *outcome)
{
    struct communicator *comm = arg;
    struct request *request;
    dist_status_t status;
    if (operation->kind == DIST_KIND_SEND) { /* the store has the data, and the buffer is free again */
        pthread_mutex_lock(&comm->lock);
        status = send_message(comm, operation, outcome);
        pthread_mutex_unlock(&comm->lock);
        return status;
    }
    request = calloc(1, sizeof(*request));
    if (request == NULL || !copy_operation(comm, request, operation)) {
        free(request);
        return fail_out_of_memory(outcome);
    }
    pthread_mutex_lock(&comm->lock);
    status = start_operation(comm, operation, request, outcome);
    if (status != DIST_IN_PROGRESS) {
        release_request(comm, request);
    }
    pthread_mutex_unlock(&comm->lock);
    *handle = request;
    return status;
}

static dist_status_t test_request(void *arg, void *handle, dist_backend_outcome_t *outcome)
{
    struct communicator *comm = arg;
    struct request *request = handle;
    int is_message = request->operation.kind == DIST_KIND_RECV;
    dist_status_t status;
    if (!is_message) { /* no other thread accesses the request */
        status = poll_collective(comm, request, outcome);
    }
    pthread_mutex_lock(&comm->lock);
    if (is_message) {
        status = poll_receive(comm, request, outcome);
    }
    if (status != DIST_IN_PROGRESS) {
        release_request(comm, request);
    }
    pthread_mutex_unlock(&comm->lock);
    return status;
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static dist_status_t get_failure(void *arg, dist_backend_outcome_t *outcome)
{
    struct communicator *comm = arg;
    struct bytes reason;
    if (!key_exists(comm, "aborted") || get_value(comm, "aborted", &reason) != DIST_OK) {
        return DIST_OK;
    }
    reason.data[reason.len] = '\0';
    fail(outcome, DIST_ERR_ABORTED, read_header(&reason).root, reason.data + sizeof(struct header));
    free(reason.data);
    return DIST_ERR_ABORTED;
}

static dist_status_t wait_for(void *arg, void *handle, int64_t timeout_ms, dist_backend_outcome_t *outcome)
{
    struct communicator *comm = arg;
    int64_t deadline_ns = now_ns() + timeout_ms * 1000000;
    struct timespec poll_interval = { 0, 20000 };
    for (;;) {
        dist_status_t status = test_request(comm, handle, outcome);
        if (status != DIST_IN_PROGRESS || comm->host->is_aborted(comm->host->context) || now_ns() >= deadline_ns) {
            return status;
        }
        nanosleep(&poll_interval, NULL);
        poll_interval.tv_nsec = poll_interval.tv_nsec * 2 < MAX_POLL_INTERVAL_NS ? poll_interval.tv_nsec * 2
            : MAX_POLL_INTERVAL_NS;
        if (poll_interval.tv_nsec == MAX_POLL_INTERVAL_NS && key_exists(comm, "aborted")) {
            return DIST_IN_PROGRESS; /* the library calls get_failure for the reason */
        }
    }
}

static dist_status_t cancel_request(void *arg, void *handle, dist_backend_outcome_t *outcome)
{
    struct communicator *comm = arg;
    struct request *request = handle;
    char key[KEY_BYTES];
    size_t len = 0;
    int r;
    for (r = request->n_arrived; r < comm->size && request->operation.kind != DIST_KIND_RECV; r++) {
        format_call_key(key, &request->operation, r);
        if (!key_exists(comm, key) && len < outcome->text_cap) {
            outcome->culprit = outcome->culprit < 0 ? r : outcome->culprit;
            len += (size_t)snprintf(outcome->text + len, outcome->text_cap - len, "%srank %d has not come",
                                    len > 0 ? ", " : "", r);
        }
    }
    pthread_mutex_lock(&comm->lock);
    release_request(comm, request);
    pthread_mutex_unlock(&comm->lock);
    return DIST_OK;
}

/* ---- The communicator ---- */

static void abort_all(void *arg, dist_status_t status, const char *reason, int32_t culprit)
{
    struct communicator *comm = arg;
    struct header header;
    size_t len = strlen(reason);
    char *payload = malloc(sizeof(header) + len);
    memset(&header, 0, sizeof(header));
    header.kind = status;
    header.root = culprit;
    if (payload != NULL) {
        memcpy(payload, &header, sizeof(header));
        memcpy(payload + sizeof(header), reason, len);
        comm->host->store_set(comm->host->context, "aborted", payload, sizeof(header) + len, STORE_TIMEOUT_MS);
        free(payload);
    }
}

static dist_status_t supports(void *arg, const dist_backend_query_t *query, dist_backend_outcome_t *outcome)
{
    (void)arg;
    if (query->op >= 0 && !can_reduce(query->dtype, query->op)) {
        return fail(outcome, DIST_ERR_UNSUPPORTED, -1, "this back end cannot reduce elements of that type with that operator");
    }
    if (query->op == DIST_PREMUL_SUM && query->kind == DIST_KIND_REDUCE_SCATTER_V) {
        return fail(outcome, DIST_ERR_UNSUPPORTED, -1, "this back end has no reduce_scatter_v with PREMUL_SUM");
    }
    return DIST_OK;
}

static dist_status_t describe(void *arg, dist_store_sink_fn sink, void *sink_arg)
{
    static const char text[] = "{\"keeps\": \"everything in the group's store\"}";
    (void)arg;
    sink(sink_arg, text, sizeof(text) - 1);
    return DIST_OK;
}

static void destroy(void *arg)
{
    struct communicator *comm = arg;
    while (comm->unmatched != NULL) {
        struct message *next = comm->unmatched->next;
        free(comm->unmatched->bytes.data);
        free(comm->unmatched);
        comm->unmatched = next;
    }
    pthread_mutex_destroy(&comm->lock);
    free(comm->n_sent);
    free(comm->n_received);
    free(comm);
}

/* All ranks must use the same data layout in the store. */
static void compare_layout(void *arg, const void *data, size_t len)
{
    uint64_t peer_layout = 0;
    memcpy(&peer_layout, data, len < sizeof(peer_layout) ? len : sizeof(peer_layout));
    *(int *)arg += peer_layout != sizeof(struct header);
}

static dist_status_t create(void *user, const dist_backend_setup_t *setup, dist_backend_created_t *created,
                            dist_backend_outcome_t *outcome)
{
    const char *only = strstr(setup->options, "only=");
    struct communicator *comm = calloc(1, sizeof(*comm));
    uint64_t own_layout = sizeof(struct header);
    int n_mismatches = 0;
    dist_status_t status;
    (void)user;
    if (comm == NULL) {
        return fail_out_of_memory(outcome);
    }
    comm->rank = setup->rank;
    comm->size = setup->size;
    comm->host = setup->host;
    comm->n_sent = calloc((size_t)setup->size, sizeof(*comm->n_sent));
    comm->n_received = calloc((size_t)setup->size, sizeof(*comm->n_received));
    pthread_mutex_init(&comm->lock, NULL);
    if (comm->n_sent == NULL || comm->n_received == NULL) {
        destroy(comm);
        return fail_out_of_memory(outcome);
    }
    status = setup->exchange(setup->exchange_arg, "layout", &own_layout, sizeof(own_layout), compare_layout,
                             &n_mismatches);
    if (status != DIST_OK || n_mismatches > 0) {
        destroy(comm);
        return fail(outcome, status != DIST_OK ? status : DIST_ERR_MISMATCH, -1,
                    "the ranks could not compare what they put into the store, or it differs");
    }
    created->part = comm;
    created->kinds = only != NULL ? strtoull(only + strlen("only="), NULL, 0) : 0;
    return DIST_OK;
}

static const dist_backend_vtable_t functions = { sizeof(dist_backend_vtable_t),
                                                 create,
                                                 destroy,
                                                 submit_operation,
                                                 cancel_request,
                                                 test_request,
                                                 wait_for,
                                                 abort_all,
                                                 get_failure,
                                                 supports,
                                                 NULL, /* no memory of its own */
                                                 NULL,
                                                 describe,
                                                 /* no run function: submit and wait_for suffice */
                                                 NULL };

dist_status_t dist_backend_plugin_v2(const dist_backend_host_t *host, dist_backend_plugin_t *plugin,
                                     dist_backend_outcome_t *outcome);

dist_status_t dist_backend_plugin_v2(const dist_backend_host_t *host, dist_backend_plugin_t *plugin,
                                     dist_backend_outcome_t *outcome)
{
    if (host->version < DIST_BACKEND_VERSION) {
        return fail(outcome, DIST_ERR_UNSUPPORTED, -1, "libdist is older than this back end");
    }
    plugin->version = DIST_BACKEND_VERSION;
    plugin->name = "store";
    plugin->functions = &functions;
    return DIST_OK;
}
