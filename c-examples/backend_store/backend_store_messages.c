/*
 * The messages of the back end in backend_store.c. Each message is a key with its number in the
 * sequence from its sender to its receiver. The receiver fetches messages in this order and
 * matches them with its receives.
 */
#include "backend_store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dist_status_t send_message(struct communicator *comm, const dist_backend_operation_t *operation,
                           dist_backend_outcome_t *outcome)
{
    char key[KEY_BYTES];
    dist_status_t status;
    snprintf(key, KEY_BYTES, "message/%d/%d/%" PRIu64, comm->rank, (int)operation->peer, comm->n_sent[operation->peer]);
    status = publish_data(comm, operation, key, 1, outcome);
    comm->n_sent[operation->peer] += status == DIST_OK;
    return status;
}

static int message_matches(const dist_backend_operation_t *operation, const struct message *message)
{
    int64_t tag = read_header(&message->bytes).tag;
    int has_tag = operation->tag == DIST_ANY_TAG ? tag <= INT32_MAX : operation->tag == tag;
    return has_tag && (operation->peer == DIST_ANY_SOURCE || operation->peer == message->from);
}

void match_messages(struct communicator *comm)
{
    struct request *request;
    for (request = comm->receives; request != NULL; request = request->next) {
        struct message **link = &comm->unmatched;
        while (request->message == NULL && *link != NULL) {
            if (message_matches(&request->operation, *link)) {
                request->message = *link;
                *link = (*link)->next;
            } else {
                link = &(*link)->next;
            }
        }
    }
}

/* Fetches the messages that have arrived, from each rank in sending order. */
static dist_status_t fetch_messages(struct communicator *comm, dist_backend_outcome_t *outcome)
{
    struct message **tail = &comm->unmatched;
    char key[KEY_BYTES];
    int r;
    while (*tail != NULL) {
        tail = &(*tail)->next;
    }
    for (r = 0; r < comm->size; r++) {
        for (;;) {
            struct message *message;
            dist_status_t status;
            snprintf(key, KEY_BYTES, "message/%d/%d/%" PRIu64, r, comm->rank, comm->n_received[r]);
            if (!key_exists(comm, key)) {
                break;
            }
            message = calloc(1, sizeof(*message));
            status = message == NULL ? DIST_ERR_OUT_OF_MEMORY : get_value(comm, key, &message->bytes);
            if (status != DIST_OK) {
                free(message);
                return fail_store_call(outcome, status);
            }
            comm->host->store_delete(comm->host->context, key, STORE_TIMEOUT_MS);
            comm->n_received[r]++;
            message->from = r;
            *tail = message;
            tail = &message->next;
        }
    }
    match_messages(comm);
    return DIST_OK;
}

/* If a message does not fit a receive, the message stays for the next receive. */
static dist_status_t reject_message(struct communicator *comm, struct request *request, const char *text,
                                    dist_backend_outcome_t *outcome)
{
    request->message->next = comm->unmatched;
    comm->unmatched = request->message;
    request->message = NULL;
    return fail(outcome, DIST_ERR_MISMATCH, comm->unmatched->from, text);
}

static dist_status_t complete_receive(struct communicator *comm, struct request *request,
                                      dist_backend_outcome_t *outcome)
{
    const dist_backend_operation_t *operation = &request->operation;
    struct message *message = request->message;
    struct bytes block = find_block(&message->bytes, 0);
    struct header header = read_header(&message->bytes);
    void *buffer = operation->recv;
    if (header.dtype != operation->dtype) {
        return reject_message(comm, request, "the message has elements of another type", outcome);
    }
    if (block.len > operation->count * element_size(operation->dtype)) {
        return reject_message(comm, request, "the message is longer than the buffer", outcome);
    }
    if (operation->grow != NULL) {
        buffer = operation->grow(operation->grow_arg, block.len);
        if (buffer == NULL) {
            return reject_message(comm, request, "there is no room for the message", outcome);
        }
    }
    if (block.len > 0) {
        memcpy(buffer, block.data, block.len);
    }
    outcome->peer = message->from;
    outcome->tag = header.tag;
    outcome->len_bytes = (int64_t)block.len;
    free(message->bytes.data);
    free(message);
    request->message = NULL;
    return DIST_OK;
}

dist_status_t poll_receive(struct communicator *comm, struct request *request, dist_backend_outcome_t *outcome)
{
    dist_status_t status = request->message == NULL ? fetch_messages(comm, outcome) : DIST_OK;
    if (status != DIST_OK) {
        return status;
    }
    return request->message == NULL ? DIST_IN_PROGRESS : complete_receive(comm, request, outcome);
}
