/*
 * What the files of the back end in backend_store.c have in common: a rank's part of a group, its requests, and what lies
 * in the store.
 */
#ifndef BACKEND_STORE_H
#define BACKEND_STORE_H

#include "backend_store_fold.h"

#include <pthread.h>

#define KEY_BYTES 96
/* How long one question to the store may take. */
#define SOON_MS 20000

/* What comes before the bytes of a rank in its key: what it has called, and then a length for each of `blocks`. */
struct header {
    int32_t kind, dtype, op, root;
    int64_t tag;
    uint64_t count, blocks;
};

struct bytes {
    char *data;
    size_t len;
};

/* A message that no receive has taken yet. */
struct message {
    struct message *next;
    int from;
    struct bytes bytes;
};

struct request {
    struct request *next; /* among the receives that wait, in the order of their posting */
    dist_backend_operation_t what;
    size_t *lists; /* counts and places of the _v forms, copied */
    int seen;      /* of a collective: how many ranks are known to have come, in rank order */
    struct message *message; /* of a receive */
};

struct part {
    int rank, size;
    const dist_backend_host_t *host;
    pthread_mutex_t lock; /* around what follows: messages are sent and looked for by any thread */
    uint64_t *sent, *taken; /* how many messages to and from each rank */
    struct message *unmatched;
    struct request *receives;
};

/* ---- backend_store_keys.c ---- */

/* A failure, with words for the library's caller and the rank to blame (-1 for none); returns the status. */
dist_status_t fail(dist_backend_outcome_t *outcome, dist_status_t status, int culprit, const char *text);
dist_status_t no_memory(dist_backend_outcome_t *outcome);
dist_status_t store_failed(dist_backend_outcome_t *outcome, dist_status_t status);

int is_there(const struct part *part, const char *key);

/* The value of a key, with a header in it; released with free. */
dist_status_t get(const struct part *part, const char *key, struct bytes *bytes);
struct header header_of(const struct bytes *bytes);

/* Where a rank puts what it has in a collective. */
void key_of(char key[KEY_BYTES], const dist_backend_operation_t *what, int rank);

/* Puts what this rank has into the store: a header, the lengths of the blocks in bytes, the bytes. */
dist_status_t publish(const struct part *part, const dist_backend_operation_t *what, const char *key, size_t blocks,
                      dist_backend_outcome_t *outcome);

/* How many blocks it has: one for all ranks, one for each, or none. */
size_t block_count(const struct part *part, const dist_backend_operation_t *what);

/* The bytes that a rank has for rank `to`; nothing where it has none. */
struct bytes block_to(const struct bytes *all, size_t to);

/* ---- backend_store_calls.c ---- */

/* A collective goes on as far as it can. */
dist_status_t look_at_call(struct part *part, struct request *request, dist_backend_outcome_t *outcome);

/* ---- backend_store_messages.c: under the part's lock ---- */

dist_status_t send_message(struct part *part, const dist_backend_operation_t *what, dist_backend_outcome_t *outcome);
dist_status_t look_for_message(struct part *part, struct request *request, dist_backend_outcome_t *outcome);

/* Gives the first message that fits to each receive, in the order of both. */
void match(struct part *part);

#endif
