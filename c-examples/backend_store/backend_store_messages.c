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

dist_status_t send_message(struct part *part, const dist_backend_operation_t *what,
                                  dist_backend_outcome_t *outcome)
{
    char key[KEY_BYTES];
    dist_status_t status;
    snprintf(key, KEY_BYTES, "message/%d/%d/%" PRIu64, part->rank, (int)what->peer, part->sent[what->peer]);
    status = publish(part, what, key, 1, outcome);
    part->sent[what->peer] += status == DIST_OK;
    return status;
}

static int matches(const dist_backend_operation_t *what, const struct message *message)
{
    int64_t tag = header_of(&message->bytes).tag;
    int has_tag = what->tag == DIST_ANY_TAG ? tag <= INT32_MAX : what->tag == tag;
    return has_tag && (what->peer == DIST_ANY_SOURCE || what->peer == message->from);
}

void match(struct part *part)
{
    struct request *request;
    for (request = part->receives; request != NULL; request = request->next) {
        struct message **place = &part->unmatched;
        while (request->message == NULL && *place != NULL) {
            if (matches(&request->what, *place)) {
                request->message = *place;
                *place = (*place)->next;
            } else {
                place = &(*place)->next;
            }
        }
    }
}

/* Fetches the messages that have arrived, from each rank in sending order. */
static dist_status_t fetch(struct part *part, dist_backend_outcome_t *outcome)
{
    struct message **end = &part->unmatched;
    char key[KEY_BYTES];
    int r;
    while (*end != NULL) {
        end = &(*end)->next;
    }
    for (r = 0; r < part->size; r++) {
        for (;;) {
            struct message *message;
            dist_status_t status;
            snprintf(key, KEY_BYTES, "message/%d/%d/%" PRIu64, r, part->rank, part->taken[r]);
            if (!is_there(part, key)) {
                break;
            }
            message = calloc(1, sizeof(*message));
            status = message == NULL ? DIST_ERR_OUT_OF_MEMORY : get(part, key, &message->bytes);
            if (status != DIST_OK) {
                free(message);
                return store_failed(outcome, status);
            }
            part->host->store_delete(part->host->context, key, SOON_MS);
            part->taken[r]++;
            message->from = r;
            *end = message;
            end = &message->next;
        }
    }
    match(part);
    return DIST_OK;
}

/* If a receive cannot take a message, the message stays for the next receive. */
static dist_status_t refuse(struct part *part, struct request *request, const char *why,
                            dist_backend_outcome_t *outcome)
{
    request->message->next = part->unmatched;
    part->unmatched = request->message;
    request->message = NULL;
    return fail(outcome, DIST_ERR_MISMATCH, part->unmatched->from, why);
}

static dist_status_t receive(struct part *part, struct request *request, dist_backend_outcome_t *outcome)
{
    const dist_backend_operation_t *what = &request->what;
    struct message *message = request->message;
    struct bytes block = block_to(&message->bytes, 0);
    struct header header = header_of(&message->bytes);
    void *place = what->recv;
    if (header.dtype != what->dtype) {
        return refuse(part, request, "the message has elements of another type", outcome);
    }
    if (block.len > what->count * size_of(what->dtype)) {
        return refuse(part, request, "the message is longer than the buffer", outcome);
    }
    if (what->grow != NULL) {
        place = what->grow(what->grow_arg, block.len);
        if (place == NULL) {
            return refuse(part, request, "there is no room for the message", outcome);
        }
    }
    if (block.len > 0) {
        memcpy(place, block.data, block.len);
    }
    outcome->peer = message->from;
    outcome->tag = header.tag;
    outcome->len_bytes = (int64_t)block.len;
    free(message->bytes.data);
    free(message);
    request->message = NULL;
    return DIST_OK;
}

dist_status_t look_for_message(struct part *part, struct request *request, dist_backend_outcome_t *outcome)
{
    dist_status_t status = request->message == NULL ? fetch(part, outcome) : DIST_OK;
    if (status != DIST_OK) {
        return status;
    }
    return request->message == NULL ? DIST_IN_PROGRESS : receive(part, request, outcome);
}
