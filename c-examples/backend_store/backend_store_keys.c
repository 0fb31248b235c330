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

dist_status_t fail_out_of_memory(dist_backend_outcome_t *outcome)
{
    return fail(outcome, DIST_ERR_OUT_OF_MEMORY, -1, "out of memory");
}

dist_status_t fail_store_call(dist_backend_outcome_t *outcome, dist_status_t status)
{
    return fail(outcome, status, -1, "the group's store does not answer as it should");
}

static void copy_value(void *arg, const void *data, size_t len)
{
    struct bytes *bytes = arg;
    bytes->data = malloc(len + 1);
    if (bytes->data != NULL) {
        memcpy(bytes->data, data, len);
        bytes->len = len;
    }
}

int key_exists(const struct communicator *comm, const char *key)
{
    int32_t present = 0;
    return comm->host->store_check(comm->host->context, key, &present, STORE_TIMEOUT_MS) == DIST_OK && present;
}

dist_status_t get_value(const struct communicator *comm, const char *key, struct bytes *bytes)
{
    dist_status_t status;
    bytes->data = NULL;
    bytes->len = 0;
    status = comm->host->store_get(comm->host->context, key, copy_value, bytes, STORE_TIMEOUT_MS);
    if (status == DIST_OK && bytes->data == NULL) {
        return DIST_ERR_OUT_OF_MEMORY;
    }
    if (status == DIST_OK && bytes->len < sizeof(struct header)) {
        free(bytes->data);
        return DIST_ERR_MISMATCH;
    }
    return status;
}

void format_call_key(char key[KEY_BYTES], const dist_backend_operation_t *operation, int rank)
{
    snprintf(key, KEY_BYTES, "call/%" PRIu64 ".%" PRIu64 "/%d", operation->sequence, operation->part, rank);
}

struct header read_header(const struct bytes *bytes)
{
    struct header header;
    memcpy(&header, bytes->data, sizeof(header));
    return header;
}

size_t block_count(const struct communicator *comm, const dist_backend_operation_t *operation)
{
    switch (operation->kind) {
    case DIST_KIND_SCATTER:
    case DIST_KIND_SCATTER_V:
    case DIST_KIND_REDUCE_SCATTER:
    case DIST_KIND_REDUCE_SCATTER_V:
    case DIST_KIND_ALL_TO_ALL:
    case DIST_KIND_ALL_TO_ALL_V:
        return operation->send != NULL || operation->send_counts != NULL ? (size_t)comm->size : 0;
    default:
        return 1;
    }
}

/* Returns the number of elements that this rank has for rank `to`. */
static size_t count_for_rank(const dist_backend_operation_t *operation, size_t to)
{
    if (operation->send_counts != NULL) {
        return operation->send_counts[to];
    }
    if (operation->kind >= DIST_KIND_ALL_GATHER_V && operation->kind <= DIST_KIND_ALL_TO_ALL_V) {
        return operation->send_count;
    }
    return operation->send == NULL ? 0 : operation->count;
}

dist_status_t publish_data(const struct communicator *comm, const dist_backend_operation_t *operation, const char *key,
                           size_t blocks, dist_backend_outcome_t *outcome)
{
    size_t element = element_size(operation->dtype), data_offset = sizeof(struct header)
        + blocks * sizeof(uint64_t), len = data_offset, b;
    struct header header;
    dist_status_t status;
    char *payload, *write_pos;
    for (b = 0; b < blocks; b++) {
        len += count_for_rank(operation, b) * element;
    }
    payload = malloc(len);
    if (payload == NULL) {
        return fail_out_of_memory(outcome);
    }
    memset(&header, 0, sizeof(header));
    header.kind = operation->kind;
    header.dtype = operation->dtype;
    header.op = operation->op;
    header.root = operation->root;
    header.tag = operation->tag;
    header.count = operation->kind == DIST_KIND_SEND ? 0 : operation->count;
    header.blocks = blocks;
    memcpy(payload, &header, sizeof(header));
    write_pos = payload + data_offset;
    for (b = 0; b < blocks; b++) {
        uint64_t block_len = count_for_rank(operation, b) * element;
        size_t send_offset = operation->send_displs != NULL ? operation->send_displs[b]
            : b * operation->count * element;
        memcpy(payload + sizeof(header) + b * sizeof(block_len), &block_len, sizeof(block_len));
        if (block_len > 0) {
            memcpy(write_pos, (const char *)operation->send + send_offset, block_len);
            write_pos += block_len;
        }
    }
    status = comm->host->store_set(comm->host->context, key, payload, len, STORE_TIMEOUT_MS);
    free(payload);
    return status == DIST_OK ? status : fail_store_call(outcome, status);
}

struct bytes find_block(const struct bytes *rank_data, size_t to)
{
    struct header header = read_header(rank_data);
    struct bytes block = { NULL, 0 };
    size_t offset = sizeof(header) + header.blocks * sizeof(uint64_t), b;
    to = header.blocks == 1 ? 0 : to;
    for (b = 0; b < header.blocks && offset <= rank_data->len; b++) {
        uint64_t len;
        memcpy(&len, rank_data->data + sizeof(header) + b * sizeof(len), sizeof(len));
        if (b == to && len <= rank_data->len - offset) {
            block.data = rank_data->data + offset;
            block.len = len;
        }
        offset += len;
    }
    return block;
}
