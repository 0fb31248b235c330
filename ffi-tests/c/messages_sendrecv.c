/*
 * Simultaneous send and receive around rings of ranks that are threads: all sizes, in place and
 * not, with different lengths, to the rank itself, with a work, in a batch, and errors.
 */
#include "refusals.h"

#define MAX_RANKS 4
#define LARGE 300000
#define EXTRA 100

struct rank {
    dist_store_t *store;
    dist_group_t *group;
    int rank, size;
    int32_t *send_buffer, *recv_buffer;
};

static int32_t element_value(int rank, size_t i)
{
    return (int32_t)(1000000 * (rank + 1)) + (int32_t)i;
}

static void fill(int32_t *buf, int rank, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++) {
        buf[i] = element_value(rank, i);
    }
}

static int has_values_of(const int32_t *buf, int rank, size_t count)
{
    size_t i;
    for (i = 0; i < count && buf[i] == element_value(rank, i); i++) {
    }
    return i == count;
}

/* Rank r sends `count` + r elements to the next rank, from `send` to `recv`; both may overlap. */
static void check_ring(const struct rank *me, int32_t *send, int32_t *recv, size_t count, int with_work)
{
    int next = (me->rank + 1) % me->size;
    int before = (me->rank + me->size - 1) % me->size;
    size_t own_count = count + (size_t)me->rank;
    size_t peer_count = count + (size_t)before;
    dist_recv_status_t status = DIST_RECV_STATUS_INIT;
    dist_work_t *work = NULL;
    recv[count + EXTRA - 1] = -9;
    fill(send, me->rank, own_count);
    if (with_work) {
        CHECK_OK(dist_sendrecv(me->group, send, own_count, next, 3, recv, count + EXTRA - 1, DIST_ANY_SOURCE,
                               DIST_ANY_TAG, DIST_I32, NULL, NULL, &work));
        CHECK_OK(dist_work_wait(work, 0));
        CHECK(dist_work_source(work) == before && dist_work_tag(work) == 3);
        CHECK(dist_work_received_count(work) == peer_count);
        CHECK_OK(dist_work_release(work));
    } else {
        CHECK_OK(dist_sendrecv(me->group, send, own_count, next, 3, recv, count + EXTRA - 1, before, 3, DIST_I32,
                               &status, NULL, NULL));
        CHECK(status.source == before && status.tag == 3 && status.count == peer_count && status.dtype == DIST_I32);
    }
    CHECK(has_values_of(recv, before, peer_count) && recv[count + EXTRA - 1] == -9);
}

static void check_ring_sizes(const struct rank *me)
{
    static const size_t counts[] = { 0, 1, 2000, LARGE };
    size_t i;
    int with_work;
    for (i = 0; i < 4; i++) {
        for (with_work = 0; with_work < 2; with_work++) {
            check_ring(me, me->send_buffer, me->recv_buffer, counts[i], with_work);
            /* In place, and with an overlap on either side. */
            check_ring(me, me->send_buffer, me->send_buffer, counts[i], with_work);
            check_ring(me, me->send_buffer + 7, me->send_buffer, counts[i], with_work);
            check_ring(me, me->send_buffer, me->send_buffer + 7, counts[i], with_work);
        }
    }
}

/* Synchronous: each rank's message waits for the next rank's receive. */
static void check_synchronous_mode(const struct rank *me)
{
    int next = (me->rank + 1) % me->size;
    int before = (me->rank + me->size - 1) % me->size;
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    options.flags = DIST_CALL_SYNCHRONOUS;
    fill(me->send_buffer, me->rank, 5);
    CHECK_OK(dist_sendrecv(me->group, me->send_buffer, 5, next, 1, me->send_buffer, 5, before, 1, DIST_I32, NULL,
                           &options, NULL));
    CHECK(has_values_of(me->send_buffer, before, 5));
}

/* The call in a batch with other calls. */
static void check_batches(const struct rank *me)
{
    int next = (me->rank + 1) % me->size;
    int before = (me->rank + me->size - 1) % me->size;
    int32_t first = me->rank;
    int32_t second = me->rank + 100;
    int32_t actual = -1;
    CHECK_OK(dist_batch_begin(&me->group, 1));
    CHECK_OK(dist_send(me->group, &first, 1, DIST_I32, next, 11, NULL, NULL));
    CHECK_OK(dist_sendrecv(me->group, &second, 1, next, 12, &second, 1, before, 12, DIST_I32, NULL, NULL, NULL));
    CHECK_OK(dist_recv(me->group, &actual, 1, DIST_I32, before, 11, NULL, NULL, NULL));
    CHECK_OK(dist_batch_end(NULL));
    CHECK(actual == before && second == before + 100);
}

/* The call returns the receive's error; the send has already completed. */
static void check_errors(const struct rank *me)
{
    int next = (me->rank + 1) % me->size;
    int before = (me->rank + me->size - 1) % me->size;
    dist_call_options_t deadline_options = DIST_CALL_OPTIONS_INIT;
    dist_recv_status_t status = DIST_RECV_STATUS_INIT;
    int32_t x[2] = { 1, 2 };
    int32_t actual[2] = { 0, 0 };
    dist_work_t *work = NULL;
    deadline_options.timeout_ms = 30;
    CHECK_REFUSED(dist_sendrecv(me->group, x, 2, next, 5, actual, 1, before, 5, DIST_I32, &status, NULL, NULL),
                  DIST_ERR_MISMATCH, "8 bytes");
    CHECK(actual[0] == 0 && status.count == 0);
    /* The next rank has refused this rank's message, too. */
    if (me->size > 1) {
        await_refusal(me->group, me->rank);
    }
    CHECK_OK(dist_recv(me->group, actual, 2, DIST_I32, before, 5, NULL, NULL, NULL));
    CHECK(actual[1] == 2);
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
    CHECK_REFUSED(dist_sendrecv(me->group, x, 2, me->rank, 6, x, 2, before, 7, DIST_I32, NULL, &deadline_options, NULL),
                  DIST_ERR_TIMEOUT, "tag 7");
    CHECK_OK(dist_recv(me->group, actual, 2, DIST_I32, me->rank, 6, NULL, NULL, NULL));
    CHECK(actual[0] == 1 && x[0] == 1);
    deadline_options.flags = DIST_CALL_SYNCHRONOUS;
    CHECK_OK(dist_send(me->group, x, 2, DIST_I32, me->rank, 7, NULL, NULL));
    CHECK_REFUSED(dist_sendrecv(me->group, x, 2, next, 8, actual, 2, me->rank, 7, DIST_I32, NULL, &deadline_options,
                                NULL),
                  DIST_ERR_TIMEOUT, "send to rank");
    CHECK_REFUSED(dist_sendrecv(me->group, x, 2, me->size, 8, actual, 2, before, 8, DIST_I32, NULL, NULL, NULL),
                  DIST_ERR_INVALID_ARGUMENT, "send to rank");
    CHECK_REFUSED(dist_sendrecv(me->group, x, 2, next, -1, actual, 2, before, 8, DIST_I32, NULL, NULL, NULL),
                  DIST_ERR_INVALID_ARGUMENT, "tag");
    CHECK_REFUSED(dist_sendrecv(me->group, x, 2, next, 8, actual, 2, -2, 8, DIST_I32, NULL, NULL, NULL),
                  DIST_ERR_INVALID_ARGUMENT, "source");
    CHECK_REFUSED(dist_sendrecv(me->group, x, 2, next, 8, actual, 2, before, 8, DIST_I32, &status, NULL, &work),
                  DIST_ERR_INVALID_ARGUMENT, "dist_work_source");
    CHECK(work == NULL);
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
}

static void *run_all_checks(void *arg)
{
    struct rank *me = arg;
    char name[32];
    sprintf(name, "ring of %d", me->size);
    me->send_buffer = malloc((LARGE + 2 * EXTRA) * sizeof(int32_t));
    me->recv_buffer = malloc((LARGE + 2 * EXTRA) * sizeof(int32_t));
    REQUIRE(me->send_buffer != NULL && me->recv_buffer != NULL);
    REQUIRE_OK(join_group(me->store, name, me->rank, me->size, &me->group));
    check_ring_sizes(me);
    check_synchronous_mode(me);
    check_batches(me);
    check_errors(me);
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
    CHECK_OK(dist_group_release(me->group));
    free(me->send_buffer);
    free(me->recv_buffer);
    return NULL;
}

int main(void)
{
    struct rank ranks[MAX_RANKS];
    pthread_t threads[MAX_RANKS];
    dist_store_t *store = new_store();
    int r, size;
    for (size = 1; size <= MAX_RANKS; size++) {
        for (r = 0; r < size; r++) {
            ranks[r].store = store;
            ranks[r].group = NULL;
            ranks[r].rank = r;
            ranks[r].size = size;
            REQUIRE(pthread_create(&threads[r], NULL, run_all_checks, &ranks[r]) == 0);
        }
        for (r = 0; r < size; r++) {
            REQUIRE(pthread_join(threads[r], NULL) == 0);
        }
    }
    CHECK_OK(dist_store_release(store));
    return check_report();
}
