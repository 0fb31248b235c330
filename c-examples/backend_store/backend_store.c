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
 * file contains the requests and the life of a part; the rest is in backend_store_keys.c,
 * _calls.c, _messages.c and _fold.c.
 */
#define _POSIX_C_SOURCE 200809L
#include "backend_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LONGEST_NAP_NS 5000000L

/* ---- Requests ---- */

static void forget(struct part *part, struct request *request)
{
    struct request **place = &part->receives;
    while (*place != NULL && *place != request) {
        place = &(*place)->next;
    }
    if (*place == request) {
        *place = request->next;
    }
    if (request->message != NULL) { /* matched, and not received */
        request->message->next = part->unmatched;
        part->unmatched = request->message;
    }
    free(request->lists);
    free(request);
    match(part);
}

/* Copies the operation and its lists: the operation outlives submit, but the memory of the lists
 * does not. */
static int keep(const struct part *part, struct request *request, const dist_backend_operation_t *what)
{
    const size_t **places[2];
    size_t n = (size_t)part->size, i;
    request->what = *what;
    places[0] = &request->what.recv_counts;
    places[1] = &request->what.recv_displs;
    if (what->recv_counts == NULL) {
        return 1;
    }
    request->lists = malloc(2 * n * sizeof(size_t));
    for (i = 0; i < 2 && request->lists != NULL; i++) {
        memcpy(request->lists + i * n, *places[i], n * sizeof(size_t));
        *places[i] = request->lists + i * n;
    }
    return request->lists != NULL;
}

static dist_status_t begin(struct part *part, const dist_backend_operation_t *what, struct request *request,
                           dist_backend_outcome_t *outcome)
{
    char key[KEY_BYTES];
    dist_backend_operation_t scaled = *what;
    dist_status_t status;
    if (what->kind == DIST_KIND_RECV) {
        struct request **end = &part->receives;
        while (*end != NULL) {
            end = &(*end)->next;
        }
        *end = request;
        match(part);
        return DIST_IN_PROGRESS;
    }
    if (what->op == DIST_PREMUL_SUM) {
        size_t count = what->kind == DIST_KIND_REDUCE_SCATTER ? what->count * (size_t)part->size : what->count;
        if (what->kind == DIST_KIND_REDUCE_SCATTER_V) {
            return fail(outcome, DIST_ERR_UNSUPPORTED, -1, "reduce_scatter_v with PREMUL_SUM");
        }
        scaled.send = scale(what->dtype, what->send, count, what->factor);
        if (scaled.send == NULL) {
            return no_memory(outcome);
        }
    }
    key_of(key, what, part->rank);
    status = publish(part, &scaled, key, block_count(part, &scaled), outcome);
    if (scaled.send != what->send) {
        free((void *)scaled.send);
    }
    return status == DIST_OK ? DIST_IN_PROGRESS : status;
}

static dist_status_t submit(void *arg, const dist_backend_operation_t *what, void **handle,
                            dist_backend_outcome_t *outcome)
{
    struct part *part = arg;
    struct request *request;
    dist_status_t status;
    if (what->kind == DIST_KIND_SEND) { /* the store has the data, and the buffer is free again */
        pthread_mutex_lock(&part->lock);
        status = send_message(part, what, outcome);
        pthread_mutex_unlock(&part->lock);
        return status;
    }
    request = calloc(1, sizeof(*request));
    if (request == NULL || !keep(part, request, what)) {
        free(request);
        return no_memory(outcome);
    }
    pthread_mutex_lock(&part->lock);
    status = begin(part, what, request, outcome);
    if (status != DIST_IN_PROGRESS) {
        forget(part, request);
    }
    pthread_mutex_unlock(&part->lock);
    *handle = request;
    return status;
}

static dist_status_t test(void *arg, void *handle, dist_backend_outcome_t *outcome)
{
    struct part *part = arg;
    struct request *request = handle;
    int is_message = request->what.kind == DIST_KIND_RECV;
    dist_status_t status;
    if (!is_message) { /* no other thread accesses it */
        status = look_at_call(part, request, outcome);
    }
    pthread_mutex_lock(&part->lock);
    if (is_message) {
        status = look_for_message(part, request, outcome);
    }
    if (status != DIST_IN_PROGRESS) {
        forget(part, request);
    }
    pthread_mutex_unlock(&part->lock);
    return status;
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static dist_status_t failure(void *arg, dist_backend_outcome_t *outcome)
{
    struct part *part = arg;
    struct bytes reason;
    if (!is_there(part, "aborted") || get(part, "aborted", &reason) != DIST_OK) {
        return DIST_OK;
    }
    reason.data[reason.len] = '\0';
    fail(outcome, DIST_ERR_ABORTED, header_of(&reason).root, reason.data + sizeof(struct header));
    free(reason.data);
    return DIST_ERR_ABORTED;
}

static dist_status_t wait_for(void *arg, void *handle, int64_t timeout_ms, dist_backend_outcome_t *outcome)
{
    struct part *part = arg;
    int64_t until = now_ns() + timeout_ms * 1000000;
    struct timespec nap = { 0, 20000 };
    for (;;) {
        dist_status_t status = test(part, handle, outcome);
        if (status != DIST_IN_PROGRESS || part->host->is_aborted(part->host->context) || now_ns() >= until) {
            return status;
        }
        nanosleep(&nap, NULL);
        nap.tv_nsec = nap.tv_nsec * 2 < LONGEST_NAP_NS ? nap.tv_nsec * 2 : LONGEST_NAP_NS;
        if (nap.tv_nsec == LONGEST_NAP_NS && is_there(part, "aborted")) {
            return DIST_IN_PROGRESS; /* the library asks for the reason */
        }
    }
}

static dist_status_t take_back(void *arg, void *handle, dist_backend_outcome_t *outcome)
{
    struct part *part = arg;
    struct request *request = handle;
    char key[KEY_BYTES];
    size_t len = 0;
    int r;
    for (r = request->seen; r < part->size && request->what.kind != DIST_KIND_RECV; r++) {
        key_of(key, &request->what, r);
        if (!is_there(part, key) && len < outcome->text_cap) {
            outcome->culprit = outcome->culprit < 0 ? r : outcome->culprit;
            len += (size_t)snprintf(outcome->text + len, outcome->text_cap - len, "%srank %d has not come",
                                    len > 0 ? ", " : "", r);
        }
    }
    pthread_mutex_lock(&part->lock);
    forget(part, request);
    pthread_mutex_unlock(&part->lock);
    return DIST_OK;
}

/* ---- A part's life ---- */

static void abort_all(void *arg, dist_status_t status, const char *reason, int32_t culprit)
{
    struct part *part = arg;
    struct header header;
    size_t len = strlen(reason);
    char *all = malloc(sizeof(header) + len);
    memset(&header, 0, sizeof(header));
    header.kind = status;
    header.root = culprit;
    if (all != NULL) {
        memcpy(all, &header, sizeof(header));
        memcpy(all + sizeof(header), reason, len);
        part->host->store_set(part->host->context, "aborted", all, sizeof(header) + len, SOON_MS);
        free(all);
    }
}

static dist_status_t supports(void *arg, const dist_backend_query_t *query, dist_backend_outcome_t *outcome)
{
    (void)arg;
    if (query->op >= 0 && !can_fold(query->dtype, query->op)) {
        return fail(outcome, DIST_ERR_UNSUPPORTED, -1, "this back end cannot fold elements of that type");
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
    struct part *part = arg;
    while (part->unmatched != NULL) {
        struct message *next = part->unmatched->next;
        free(part->unmatched->bytes.data);
        free(part->unmatched);
        part->unmatched = next;
    }
    pthread_mutex_destroy(&part->lock);
    free(part->sent);
    free(part->taken);
    free(part);
}

/* All ranks must use the same data layout in the store. */
static void compare_layout(void *arg, const void *data, size_t len)
{
    uint64_t theirs = 0;
    memcpy(&theirs, data, len < sizeof(theirs) ? len : sizeof(theirs));
    *(int *)arg += theirs != sizeof(struct header);
}

static dist_status_t create(void *user, const dist_backend_setup_t *setup, dist_backend_created_t *created,
                            dist_backend_outcome_t *outcome)
{
    const char *only = strstr(setup->options, "only=");
    struct part *part = calloc(1, sizeof(*part));
    uint64_t mine = sizeof(struct header);
    int others = 0;
    dist_status_t status;
    (void)user;
    if (part == NULL) {
        return no_memory(outcome);
    }
    part->rank = setup->rank;
    part->size = setup->size;
    part->host = setup->host;
    part->sent = calloc((size_t)setup->size, sizeof(*part->sent));
    part->taken = calloc((size_t)setup->size, sizeof(*part->taken));
    pthread_mutex_init(&part->lock, NULL);
    if (part->sent == NULL || part->taken == NULL) {
        destroy(part);
        return no_memory(outcome);
    }
    status = setup->exchange(setup->exchange_arg, "layout", &mine, sizeof(mine), compare_layout, &others);
    if (status != DIST_OK || others > 0) {
        destroy(part);
        return fail(outcome, status != DIST_OK ? status : DIST_ERR_MISMATCH, -1,
                    "the ranks could not compare what they put into the store, or it differs");
    }
    created->part = part;
    created->kinds = only != NULL ? strtoull(only + strlen("only="), NULL, 0) : 0;
    return DIST_OK;
}

static const dist_backend_vtable_t functions = { sizeof(dist_backend_vtable_t),
                                                 create,
                                                 destroy,
                                                 submit,
                                                 take_back,
                                                 test,
                                                 wait_for,
                                                 abort_all,
                                                 failure,
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
