/*
 * Shared declarations of the back end in backend_store.c: a rank's part of a group, its
 * requests, and the data in the store.
 */
#ifndef BACKEND_STORE_H
#define BACKEND_STORE_H

#include "backend_store_fold.h"

#include <pthread.h>

#define KEY_BYTES 96
/* The time limit of one call on the store. */
#define SOON_MS 20000

/* The start of a rank's value: its call. The lengths of `blocks` blocks follow, and then the
 * data. */
struct header {
    int32_t kind, dtype, op, root;
    int64_t tag;
    uint64_t count, blocks;
};

struct bytes {
    char *data;
    size_t len;
};

/* A message that no receive has taken. */
struct message {
    struct message *next;
    int from;
    struct bytes bytes;
};

struct request {
    struct request *next; /* in the list of waiting receives, in posting order */
    dist_backend_operation_t what;
    size_t *lists; /* a copy of the counts and addresses of the _v forms */
    int seen;      /* in a collective: the number of ranks that have come, in rank order */
    struct message *message; /* in a receive */
};

struct part {
    int rank, size;
    const dist_backend_host_t *host;
    pthread_mutex_t lock; /* guards the fields below: any thread sends and receives messages */
    uint64_t *sent, *taken; /* the number of messages to and from each rank */
    struct message *unmatched;
    struct request *receives;
};

/* ---- backend_store_keys.c ---- */

/* Records a failure with a text for the caller and the rank to blame (-1 for none); returns the
 * status. */
dist_status_t fail(dist_backend_outcome_t *outcome, dist_status_t status, int culprit, const char *text);
dist_status_t no_memory(dist_backend_outcome_t *outcome);
dist_status_t store_failed(dist_backend_outcome_t *outcome, dist_status_t status);

int is_there(const struct part *part, const char *key);

/* Gets the value of a key, which begins with a header; the caller releases it with free. */
dist_status_t get(const struct part *part, const char *key, struct bytes *bytes);
struct header header_of(const struct bytes *bytes);

/* Writes the key under which a rank sets its data in a collective. */
void key_of(char key[KEY_BYTES], const dist_backend_operation_t *what, int rank);

/* Sets this rank's data in the store: a header, the lengths of the blocks in bytes, the bytes. */
dist_status_t publish(const struct part *part, const dist_backend_operation_t *what, const char *key, size_t blocks,
                      dist_backend_outcome_t *outcome);

/* Returns the number of this rank's blocks: one for all ranks, one per rank, or none. */
size_t block_count(const struct part *part, const dist_backend_operation_t *what);

/* Returns the bytes of a rank for rank `to`; empty if there are none. */
struct bytes block_to(const struct bytes *all, size_t to);

/* ---- backend_store_calls.c ---- */

/* Continues a collective as far as possible without waiting. */
dist_status_t look_at_call(struct part *part, struct request *request, dist_backend_outcome_t *outcome);

/* ---- backend_store_messages.c: under the part's lock ---- */

dist_status_t send_message(struct part *part, const dist_backend_operation_t *what, dist_backend_outcome_t *outcome);
dist_status_t look_for_message(struct part *part, struct request *request, dist_backend_outcome_t *outcome);

/* Matches messages and receives, in the order of both. */
void match(struct part *part);

#endif
