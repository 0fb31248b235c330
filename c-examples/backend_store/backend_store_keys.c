/*
 * Errors and keys of the back end in backend_store.c: reports errors to the library, and sets
 * and gets its values in the store.
 */
#include "backend_store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dist_status_t fail(dist_backend_outcome_t *outcome, dist_status_t status, int culprit, const char *text)
{
    snprintf(outcome->text, outcome->text_cap, "%s", text);
    outcome->culprit = culprit;
    return status;
}

dist_status_t no_memory(dist_backend_outcome_t *outcome)
{
    return fail(outcome, DIST_ERR_OUT_OF_MEMORY, -1, "out of memory");
}

dist_status_t store_failed(dist_backend_outcome_t *outcome, dist_status_t status)
{
    return fail(outcome, status, -1, "the group's store does not answer as it should");
}

static void take(void *arg, const void *data, size_t len)
{
    struct bytes *bytes = arg;
    bytes->data = malloc(len + 1);
    if (bytes->data != NULL) {
        memcpy(bytes->data, data, len);
        bytes->len = len;
    }
}

int is_there(const struct part *part, const char *key)
{
    int32_t present = 0;
    return part->host->store_check(part->host->context, key, &present, SOON_MS) == DIST_OK && present;
}

dist_status_t get(const struct part *part, const char *key, struct bytes *bytes)
{
    dist_status_t status;
    bytes->data = NULL;
    bytes->len = 0;
    status = part->host->store_get(part->host->context, key, take, bytes, SOON_MS);
    if (status == DIST_OK && bytes->data == NULL) {
        return DIST_ERR_OUT_OF_MEMORY;
    }
    if (status == DIST_OK && bytes->len < sizeof(struct header)) {
        free(bytes->data);
        return DIST_ERR_MISMATCH;
    }
    return status;
}

void key_of(char key[KEY_BYTES], const dist_backend_operation_t *what, int rank)
{
    snprintf(key, KEY_BYTES, "call/%" PRIu64 ".%" PRIu64 "/%d", what->sequence, what->part, rank);
}

struct header header_of(const struct bytes *bytes)
{
    struct header header;
    memcpy(&header, bytes->data, sizeof(header));
    return header;
}

size_t block_count(const struct part *part, const dist_backend_operation_t *what)
{
    switch (what->kind) {
    case DIST_KIND_SCATTER:
    case DIST_KIND_SCATTER_V:
    case DIST_KIND_REDUCE_SCATTER:
    case DIST_KIND_REDUCE_SCATTER_V:
    case DIST_KIND_ALL_TO_ALL:
    case DIST_KIND_ALL_TO_ALL_V:
        return what->send != NULL || what->send_counts != NULL ? (size_t)part->size : 0;
    default:
        return 1;
    }
}

/* Returns the number of elements that this rank has for rank `to`. */
static size_t length_to(const dist_backend_operation_t *what, size_t to)
{
    if (what->send_counts != NULL) {
        return what->send_counts[to];
    }
    if (what->kind >= DIST_KIND_ALL_GATHER_V && what->kind <= DIST_KIND_ALL_TO_ALL_V) {
        return what->send_count;
    }
    return what->send == NULL ? 0 : what->count;
}

dist_status_t publish(const struct part *part, const dist_backend_operation_t *what, const char *key,
                             size_t blocks, dist_backend_outcome_t *outcome)
{
    size_t element = size_of(what->dtype), head = sizeof(struct header) + blocks * sizeof(uint64_t), len = head, b;
    struct header header;
    dist_status_t status;
    char *all, *end;
    for (b = 0; b < blocks; b++) {
        len += length_to(what, b) * element;
    }
    all = malloc(len);
    if (all == NULL) {
        return no_memory(outcome);
    }
    memset(&header, 0, sizeof(header));
    header.kind = what->kind;
    header.dtype = what->dtype;
    header.op = what->op;
    header.root = what->root;
    header.tag = what->tag;
    header.count = what->kind == DIST_KIND_SEND ? 0 : what->count;
    header.blocks = blocks;
    memcpy(all, &header, sizeof(header));
    end = all + head;
    for (b = 0; b < blocks; b++) {
        uint64_t bytes = length_to(what, b) * element;
        size_t from = what->send_displs != NULL ? what->send_displs[b] : b * what->count * element;
        memcpy(all + sizeof(header) + b * sizeof(bytes), &bytes, sizeof(bytes));
        if (bytes > 0) {
            memcpy(end, (const char *)what->send + from, bytes);
            end += bytes;
        }
    }
    status = part->host->store_set(part->host->context, key, all, len, SOON_MS);
    free(all);
    return status == DIST_OK ? status : store_failed(outcome, status);
}

struct bytes block_to(const struct bytes *all, size_t to)
{
    struct header header = header_of(all);
    struct bytes block = { NULL, 0 };
    size_t at = sizeof(header) + header.blocks * sizeof(uint64_t), b;
    to = header.blocks == 1 ? 0 : to;
    for (b = 0; b < header.blocks && at <= all->len; b++) {
        uint64_t len;
        memcpy(&len, all->data + sizeof(header) + b * sizeof(len), sizeof(len));
        if (b == to && len <= all->len - at) {
            block.data = all->data + at;
            block.len = len;
        }
        at += len;
    }
    return block;
}
