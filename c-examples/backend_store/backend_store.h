/*
 * Shared declarations of the back end in backend_store.c: a rank's communicator, its requests, and
 * the data in the store.
 */
#ifndef BACKEND_STORE_H
#define BACKEND_STORE_H

#include "backend_store_fold.h"

#include <pthread.h>

#define KEY_BYTES 96
/* The time limit of one call to the store. */
#define STORE_TIMEOUT_MS 20000

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
    dist_backend_operation_t operation;
    size_t *counts_and_displs; /* a copy of the counts and addresses of the _v forms */
    int n_arrived;             /* in a collective: the number of ranks whose data has arrived, in rank order */
    struct message *message; /* in a receive */
};

struct communicator {
    int rank, size;
    const dist_backend_host_t *host;
    pthread_mutex_t lock; /* guards the fields below: any thread sends and receives messages */
    uint64_t *n_sent, *n_received; /* the number of messages to and from each rank */
    struct message *unmatched;
    struct request *receives;
};

/* ---- backend_store_keys.c ---- */

/* Records a failure with a text for the caller and the rank to blame (-1 for none); returns the
 * status. */
dist_status_t fail(dist_backend_outcome_t *outcome, dist_status_t status, int culprit, const char *text);
dist_status_t fail_out_of_memory(dist_backend_outcome_t *outcome);
dist_status_t fail_store_call(dist_backend_outcome_t *outcome, dist_status_t status);

int key_exists(const struct communicator *comm, const char *key);

/* Gets the value of a key, which begins with a header; the caller releases it with free. */
dist_status_t get_value(const struct communicator *comm, const char *key, struct bytes *bytes);
struct header read_header(const struct bytes *bytes);

/* Formats the key of a rank's data in a collective. */
void format_call_key(char key[KEY_BYTES], const dist_backend_operation_t *operation, int rank);

/* Sets this rank's data in the store: a header, the lengths of the blocks in bytes, the bytes. */
dist_status_t publish_data(const struct communicator *comm, const dist_backend_operation_t *operation, const char *key,
                           size_t blocks, dist_backend_outcome_t *outcome);

/* Returns the number of this rank's blocks: one for all ranks, one per rank, or none. */
size_t block_count(const struct communicator *comm, const dist_backend_operation_t *operation);

/* Returns the block of a rank's data for rank `to`; empty if there is none. */
struct bytes find_block(const struct bytes *all, size_t to);

/* ---- backend_store_calls.c ---- */

/* Continues a collective as far as possible without waiting. */
dist_status_t poll_collective(struct communicator *comm, struct request *request, dist_backend_outcome_t *outcome);

/* ---- backend_store_messages.c: under the communicator's lock ---- */

dist_status_t send_message(struct communicator *comm, const dist_backend_operation_t *operation,
                           dist_backend_outcome_t *outcome);
dist_status_t poll_receive(struct communicator *comm, struct request *request, dist_backend_outcome_t *outcome);

/* Matches messages and receives, in the order of both. */
void match_messages(struct communicator *comm);

#endif
