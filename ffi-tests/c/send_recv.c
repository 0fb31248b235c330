/*
 * Messages between two ranks that are threads: order, wild cards, counts, messages to the rank
 * itself, batches, and refused calls.
 */
#include "refusals.h"

#define RANKS 2
#define MESSAGES 100
#define LARGE 300000

struct rank {
    dist_store_t *store;
    dist_group_t *group;
    int rank;
};

static int32_t element_value(int from, int i)
{
    return (int32_t)(1000 * from + i);
}

/* Messages with one tag are received in sending order. */
static void check_message_order(const struct rank *me, int peer)
{
    int i;
    for (i = 0; i < MESSAGES; i++) {
        int32_t x = element_value(me->rank, i);
        if (me->rank == 0) {
            CHECK_OK(dist_send(me->group, &x, 1, DIST_I32, peer, i % 2, NULL, NULL));
        } else {
            dist_recv_status_t status = DIST_RECV_STATUS_INIT;
            CHECK_OK(dist_recv(me->group, &x, 1, DIST_I32, peer, i % 2, &status, NULL, NULL));
            CHECK(x == element_value(0, i) && status.source == 0 && status.tag == i % 2);
            CHECK(status.count == 1 && status.dtype == DIST_I32);
        }
    }
}

/* Any source and any tag; a message that is shorter than the buffer. */
static void check_wildcards(const struct rank *me, int peer)
{
    int32_t x[4] = { 1, 2, 3, -9 };
    dist_work_t *work = NULL;
    if (me->rank == 0) {
        CHECK_OK(dist_send(me->group, x, 3, DIST_I32, peer, 42, NULL, &work));
        CHECK_OK(dist_work_wait(work, 0));
        CHECK(dist_work_received_count(work) == 0);
    } else {
        int32_t y[4] = { 0, 0, 0, -9 };
        CHECK_OK(dist_recv(me->group, y, 4, DIST_I32, DIST_ANY_SOURCE, DIST_ANY_TAG, NULL, NULL, &work));
        CHECK_OK(dist_work_wait(work, 0));
        CHECK(memcmp(x, y, sizeof(x)) == 0);
        CHECK(dist_work_source(work) == 0 && dist_work_tag(work) == 42 && dist_work_received_count(work) == 3);
    }
    CHECK_OK(dist_work_release(work));
}

/* A message that is too long, or of another type, fails its receive and the next message call of its
 * sender. The message stays, and the group goes on. */
static void mismatch_fails_both_ranks(const struct rank *me, int peer)
{
    int32_t x[2] = { 5, 6 };
    float f = 0;
    if (me->rank == 0) {
        CHECK_OK(dist_send(me->group, x, 2, DIST_I32, peer, 1, NULL, NULL));
        await_refusal(me->group, me->rank);
    } else {
        int32_t y[2] = { 0, 0 };
        CHECK_REFUSED(dist_recv(me->group, y, 1, DIST_I32, peer, 1, NULL, NULL, NULL), DIST_ERR_MISMATCH, "tag 1");
        CHECK_REFUSED(dist_recv(me->group, &f, 1, DIST_F32, peer, 1, NULL, NULL, NULL), DIST_ERR_MISMATCH, "f32");
        CHECK(y[0] == 0);
        CHECK_OK(dist_recv(me->group, y, 2, DIST_I32, peer, 1, NULL, NULL, NULL));
        CHECK(y[0] == 5 && y[1] == 6);
    }
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
}

/* A late message fails only its own receive. */
static void late_message_fails_only_its_receive(const struct rank *me, int peer)
{
    dist_call_options_t deadline_options = DIST_CALL_OPTIONS_INIT;
    int32_t x = 0;
    deadline_options.timeout_ms = 20;
    CHECK_REFUSED(dist_recv(me->group, &x, 1, DIST_I32, peer, 99, NULL, &deadline_options, NULL), DIST_ERR_TIMEOUT,
                  "tag 99");
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
}

/* Both ranks send large messages first, also to themselves: in a batch the order does not
 * matter. */
static void check_exchange(const struct rank *me, int peer)
{
    static int32_t out[RANKS][LARGE];
    static int32_t in[RANKS][LARGE];
    int32_t to_me = 11;
    int32_t from_me = 0;
    int i;
    int has_values = 1;
    for (i = 0; i < LARGE; i++) {
        out[me->rank][i] = element_value(me->rank, i);
    }
    CHECK_OK(dist_batch_begin(&me->group, 1));
    CHECK_OK(dist_send(me->group, out[me->rank], LARGE, DIST_I32, peer, 5, NULL, NULL));
    CHECK_OK(dist_send(me->group, &to_me, 1, DIST_I32, me->rank, 6, NULL, NULL));
    CHECK_OK(dist_recv(me->group, in[me->rank], LARGE, DIST_I32, peer, 5, NULL, NULL, NULL));
    CHECK_OK(dist_recv(me->group, &from_me, 1, DIST_I32, me->rank, 6, NULL, NULL, NULL));
    CHECK_OK(dist_batch_end(NULL));
    for (i = 0; i < LARGE; i++) {
        has_values = has_values && in[me->rank][i] == element_value(peer, i);
    }
    CHECK(has_values && from_me == 11);
}

static void check_refusals(const struct rank *me, int peer)
{
    int32_t x = 0;
    dist_recv_status_t status = DIST_RECV_STATUS_INIT;
    dist_work_t *work = NULL;
    status.source = -7;
    CHECK_REFUSED(dist_send(me->group, &x, 1, DIST_I32, RANKS, 0, NULL, NULL), DIST_ERR_INVALID_ARGUMENT, "rank 2");
    CHECK_REFUSED(dist_send(me->group, &x, 1, DIST_I32, -1, 0, NULL, NULL), DIST_ERR_INVALID_ARGUMENT, "peer");
    CHECK_REFUSED(dist_send(me->group, &x, 1, DIST_I32, peer, -1, NULL, NULL), DIST_ERR_INVALID_ARGUMENT, "tag");
    CHECK_REFUSED(dist_recv(me->group, &x, 1, DIST_I32, -2, 0, NULL, NULL, NULL), DIST_ERR_INVALID_ARGUMENT, "peer");
    CHECK_REFUSED(dist_recv(me->group, &x, 1, DIST_I32, peer, 0, &status, NULL, &work), DIST_ERR_INVALID_ARGUMENT,
                  "dist_work_source");
    CHECK(work == NULL && status.source == -7);
}

static void *run_all_checks(void *arg)
{
    struct rank *me = arg;
    int peer = 1 - me->rank;
    REQUIRE_OK(join_group(me->store, "messages", me->rank, RANKS, &me->group));
    check_message_order(me, peer);
    check_wildcards(me, peer);
    mismatch_fails_both_ranks(me, peer);
    late_message_fails_only_its_receive(me, peer);
    check_exchange(me, peer);
    check_refusals(me, peer);
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
