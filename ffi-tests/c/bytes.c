/*
 * Byte strings of any length between ranks that are threads, blocking and with works; messages
 * whose receiver does not know the length; and the barrier that names absent ranks.
 */
#include "check.h"

#define RANKS 3
#define MAX_LENGTH 200003

struct rank {
    dist_store_t *store;
    dist_group_t *group;
    int rank;
};

static const size_t lengths[RANKS] = { 0, 7, MAX_LENGTH };
static char strings[RANKS][MAX_LENGTH];

static void check_string(const dist_blob_t *blob, size_t at, int rank)
{
    const void *data = NULL;
    size_t len = 99;
    CHECK_OK(dist_blob_data(blob, at, &data, &len));
    CHECK(len == lengths[rank] && memcmp(data, strings[rank], len) == 0 && ((const char *)data)[len] == 0);
}

static void check_all(dist_blob_t *blob)
{
    int r;
    CHECK(dist_blob_count(blob) == RANKS);
    for (r = 0; r < RANKS; r++) {
        check_string(blob, (size_t)r, r);
    }
    CHECK_OK(dist_blob_release(blob));
}

static void check_one(dist_blob_t *blob, int rank)
{
    CHECK(dist_blob_count(blob) == 1);
    check_string(blob, 0, rank);
    CHECK_OK(dist_blob_release(blob));
}

static void check_collectives(const struct rank *me)
{
    const void *const all[RANKS] = { NULL, strings[1], strings[2] };
    const void *own = all[me->rank];
    size_t len = lengths[me->rank];
    dist_blob_t *blob = NULL;
    int root;
    CHECK_OK(dist_all_gather_bytes(me->group, own, len, &blob, NULL, NULL));
    check_all(blob);
    for (root = 0; root < RANKS; root++) {
        int is_root = me->rank == root;
        CHECK_OK(dist_broadcast_bytes(me->group, own, len, root, &blob, NULL, NULL));
        check_one(blob, root);
        CHECK_OK(dist_gather_bytes(me->group, own, len, root, is_root ? &blob : NULL, NULL, NULL));
        if (is_root) {
            check_all(blob);
        }
        CHECK_OK(dist_scatter_bytes(me->group, is_root ? all : NULL, is_root ? lengths : NULL, root, &blob, NULL, NULL));
        check_one(blob, me->rank);
    }
    /* The call is refused on all ranks before it has any effect, and sets the output to NULL. */
    blob = (dist_blob_t *)&len;
    CHECK_STATUS(dist_gather_bytes(me->group, own, len, -1, &blob, NULL, NULL), DIST_ERR_INVALID_ARGUMENT);
    CHECK(blob == NULL);
}

/* Calls with works and in a batch: the results are complete when the works are. */
static void check_async_and_batched(const struct rank *me)
{
    const void *own = strings[me->rank];
    size_t len = lengths[me->rank];
    dist_blob_t *blobs[3] = { NULL, NULL, NULL };
    dist_work_t *works[2] = { NULL, NULL };
    CHECK_OK(dist_all_gather_bytes(me->group, own, len, &blobs[0], NULL, &works[0]));
    CHECK_OK(dist_broadcast_bytes(me->group, own, len, 1, &blobs[1], NULL, &works[1]));
    CHECK_OK(dist_work_wait(works[1], 0));
    CHECK_OK(dist_work_wait(works[0], 0));
    CHECK(dist_work_sequence(works[1]) == dist_work_sequence(works[0]) + 2);
    check_all(blobs[0]);
    check_one(blobs[1], 1);
    CHECK_OK(dist_work_release(works[0]));
    CHECK_OK(dist_work_release(works[1]));
    CHECK_OK(dist_batch_begin(NULL, 0));
    CHECK_OK(dist_all_gather_bytes(me->group, own, len, &blobs[2], NULL, NULL));
    CHECK(blobs[2] == NULL);
    CHECK_OK(dist_batch_end(NULL));
    check_all(blobs[2]);
}

static void check_messages(const struct rank *me)
{
    int to = (me->rank + 1) % RANKS;
    int from = (me->rank + RANKS - 1) % RANKS;
    dist_blob_t *blob = NULL;
    dist_work_t *work = NULL;
    dist_recv_status_t status = DIST_RECV_STATUS_INIT;
    status.source = -7;
    CHECK_OK(dist_recv_bytes(me->group, &blob, 0, DIST_ANY_SOURCE, 4, NULL, NULL, &work));
    CHECK_OK(dist_send_bytes(me->group, strings[me->rank], lengths[me->rank], to, 4, NULL, NULL));
    CHECK_OK(dist_work_wait(work, 0));
    CHECK(dist_work_source(work) == from && dist_work_tag(work) == 4);
    CHECK(dist_work_received_count(work) == lengths[from]);
    CHECK_OK(dist_work_release(work));
    check_one(blob, from);
    /* A message that is too long stays for the next receive. */
    if (me->rank == 2) {
        CHECK_OK(dist_send_bytes(me->group, strings[2], lengths[2], 0, 5, NULL, NULL));
    } else if (me->rank == 0) {
        CHECK_REFUSED(dist_recv_bytes(me->group, &blob, 100, 2, 5, &status, NULL, NULL), DIST_ERR_MISMATCH, "100");
        CHECK(blob == NULL && status.source == -7);
        CHECK_OK(dist_recv_bytes(me->group, &blob, MAX_LENGTH, 2, DIST_ANY_TAG, &status, NULL, NULL));
        CHECK(status.source == 2 && status.tag == 5 && status.dtype == DIST_U8);
        CHECK(status.count == lengths[2]);
        check_one(blob, 2);
    }
}

static void check_barriers(const struct rank *me)
{
    int32_t missing[RANKS] = { -7, -7, -7 };
    size_t n = RANKS;
    CHECK_OK(dist_monitored_barrier(me->group, 0, 1, missing, &n));
    CHECK(n == 0 && missing[0] == -7);
    if (me->rank == 1) {
        /* The rank continues after its peers have their error. */
        CHECK_OK(dist_barrier(me->group, NULL, NULL));
    }
    n = 1;
    CHECK_REFUSED(dist_monitored_barrier(me->group, 100, 1, missing, &n), DIST_ERR_TIMEOUT, "missing: rank 1 (pid ");
    CHECK(n == 1 && missing[0] == 1 && missing[1] == -7);
    if (me->rank != 1) {
        CHECK_OK(dist_barrier(me->group, NULL, NULL));
    }
    CHECK_OK(dist_monitored_barrier(me->group, 0, 0, NULL, NULL));
}

static void *run_all_checks(void *arg)
{
    struct rank *me = arg;
    REQUIRE_OK(join_group(me->store, "bytes", me->rank, RANKS, &me->group));
    check_collectives(me);
    check_async_and_batched(me);
    check_messages(me);
    check_barriers(me);
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
    CHECK_OK(dist_group_release(me->group));
    return NULL;
}

int main(void)
{
    struct rank ranks[RANKS];
    pthread_t threads[RANKS];
    dist_store_t *store = new_store();
    int r;
    int i;
    for (r = 0; r < RANKS; r++) {
        for (i = 0; i < MAX_LENGTH; i++) {
            strings[r][i] = (char)(i * 7 + r);
        }
    }
    for (r = 0; r < RANKS; r++) {
        ranks[r].store = store;
        ranks[r].group = NULL;
        ranks[r].rank = r;
        REQUIRE(pthread_create(&threads[r], NULL, run_all_checks, &ranks[r]) == 0);
    }
    for (r = 0; r < RANKS; r++) {
        REQUIRE(pthread_join(threads[r], NULL) == 0);
    }
    CHECK_OK(dist_store_release(store));
    return check_report();
}
