/*
 * Probes of messages between ranks that are threads: the status of a probe, the life of its
 * handle, and synchronous sends.
 */
#include "check.h"

#define RANKS 2
#define LARGE 300000
#define INVALID_MESSAGE ((dist_message_t *)(uintptr_t)1)

struct rank {
    dist_store_t *store;
    dist_group_t *group;
    int rank;
};

static int32_t numbers[LARGE];

static dist_call_options_t no_wait_options(void)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    options.timeout_ms = DIST_NO_WAIT;
    return options;
}

/* Rank 0 sends small and large messages; rank 1 gets the count first and allocates memory for
 * it. */
static void check_unknown_length(const struct rank *me)
{
    static const size_t counts[] = { 0, 3, LARGE };
    size_t i;
    for (i = 0; i < 3; i++) {
        size_t count = counts[i];
        if (me->rank == 0) {
            CHECK_OK(dist_send(me->group, numbers, count, DIST_I32, 1, 4, NULL, NULL));
        } else {
            dist_recv_status_t found = DIST_RECV_STATUS_INIT;
            dist_recv_status_t actual = DIST_RECV_STATUS_INIT;
            dist_message_t *message = NULL;
            int32_t *room;
            REQUIRE_OK(dist_probe(me->group, DIST_ANY_SOURCE, DIST_ANY_TAG, &found, NULL, &message));
            CHECK(found.source == 0 && found.tag == 4 && found.count == count && found.dtype == DIST_I32);
            CHECK(found.struct_size == sizeof(found) && found.reserved == 0);
            room = malloc((count + 1) * sizeof(*room));
            REQUIRE(room != NULL);
            room[count] = -9;
            CHECK_OK(dist_recv_message(message, room, found.count, found.dtype, &actual, NULL, NULL));
            CHECK(memcmp(&actual, &found, sizeof(actual)) == 0);
            CHECK(memcmp(room, numbers, count * sizeof(*room)) == 0 && room[count] == -9);
            CHECK_REFUSED(dist_recv_message(message, room, count, DIST_I32, NULL, NULL, NULL), DIST_ERR_INVALID_HANDLE,
                          "dist_message_t");
            free(room);
        }
    }
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
}

/* A probe that neither waits nor takes the message. */
static void check_nonblocking_probe(const struct rank *me)
{
    dist_call_options_t options = no_wait_options();
    dist_call_options_t deadline_options = DIST_CALL_OPTIONS_INIT;
    dist_recv_status_t status = DIST_RECV_STATUS_INIT;
    dist_message_t *message = INVALID_MESSAGE;
    int32_t x = 17;
    int i;
    CHECK_STATUS(dist_probe(me->group, DIST_ANY_SOURCE, 5, NULL, &options, &message), DIST_IN_PROGRESS);
    CHECK(message == NULL);
    CHECK_STATUS(dist_probe(me->group, 1 - me->rank, DIST_ANY_TAG, &status, &options, NULL), DIST_IN_PROGRESS);
    CHECK(status.source == 0 && status.count == 0);
    deadline_options.timeout_ms = 20;
    message = INVALID_MESSAGE;
    CHECK_REFUSED(dist_probe(me->group, 1 - me->rank, 5, NULL, &deadline_options, &message), DIST_ERR_TIMEOUT, "tag 5");
    CHECK(message == NULL);
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
    /* A message to the rank itself is available immediately. */
    CHECK_OK(dist_send(me->group, &x, 1, DIST_I32, me->rank, 5, NULL, NULL));
    for (i = 0; i < 2; i++) {
        CHECK_OK(dist_probe(me->group, me->rank, 5, &status, &options, NULL));
        CHECK(status.source == me->rank && status.tag == 5 && status.count == 1);
    }
    x = 0;
    CHECK_OK(dist_recv(me->group, &x, 1, DIST_I32, me->rank, 5, NULL, NULL, NULL));
    CHECK(x == 17);
}

/* A wrong argument leaves the handle valid; a release returns the message to matching. */
static void check_handles(const struct rank *me)
{
    dist_message_t *first = NULL;
    dist_message_t *second = NULL;
    dist_recv_status_t status = DIST_RECV_STATUS_INIT;
    dist_work_t *work = NULL;
    int32_t x[2] = { 1, 2 };
    int32_t actual[2] = { 0, 0 };
    float f[2] = { 0, 0 };
    int i;
    for (i = 0; i < 3; i++) {
        x[0] = i;
        CHECK_OK(dist_send(me->group, x, 2, DIST_I32, me->rank, 6, NULL, NULL));
    }
    REQUIRE_OK(dist_probe(me->group, me->rank, 6, NULL, NULL, &first));
    REQUIRE_OK(dist_probe(me->group, me->rank, 6, NULL, NULL, &second));
    CHECK_REFUSED(dist_recv_message(first, actual, 1, DIST_I32, NULL, NULL, NULL), DIST_ERR_MISMATCH, "stays valid");
    CHECK_REFUSED(dist_recv_message(first, f, 2, DIST_F32, NULL, NULL, NULL), DIST_ERR_MISMATCH, "f32");
    CHECK_REFUSED(dist_recv_message(first, NULL, 2, DIST_I32, NULL, NULL, NULL), DIST_ERR_INVALID_ARGUMENT, "buf");
    CHECK_REFUSED(dist_recv_message(first, actual, 2, DIST_I32, &status, NULL, &work), DIST_ERR_INVALID_ARGUMENT,
                  "dist_work_source");
    CHECK(actual[0] == 0 && actual[1] == 0 && f[0] == 0 && work == NULL);
    CHECK_OK(dist_message_release(second));
    CHECK_REFUSED(dist_message_release(second), DIST_ERR_INVALID_HANDLE, "dist_message_t");
    CHECK_OK(dist_recv(me->group, actual, 2, DIST_I32, me->rank, 6, NULL, NULL, NULL));
    CHECK(actual[0] == 1);
    CHECK_OK(dist_recv_message(first, actual, 2, DIST_I32, NULL, NULL, &work));
    CHECK_OK(dist_work_wait(work, 0));
    CHECK(actual[0] == 0 && dist_work_source(work) == me->rank && dist_work_tag(work) == 6);
    CHECK(dist_work_received_count(work) == 2);
    CHECK_OK(dist_work_release(work));
    CHECK_OK(dist_recv(me->group, actual, 2, DIST_I32, me->rank, 6, NULL, NULL, NULL));
    CHECK(actual[0] == 2);
    CHECK_OK(dist_message_release(NULL));
}

/* In a batch the message is received, or returned to matching if the batch may not use the
 * group. */
static void check_batches(const struct rank *me, dist_group_t *other)
{
    dist_call_options_t options = no_wait_options();
    dist_message_t *message = NULL;
    int32_t x = 8;
    int32_t actual = 0;
    CHECK_OK(dist_send(me->group, &x, 1, DIST_I32, me->rank, 7, NULL, NULL));
    REQUIRE_OK(dist_probe(me->group, me->rank, 7, NULL, NULL, &message));
    CHECK_OK(dist_batch_begin(&other, 1));
    CHECK_REFUSED(dist_recv_message(message, &actual, 1, DIST_I32, NULL, NULL, NULL), DIST_ERR_INVALID_ARGUMENT,
                  "batch");
    CHECK_OK(dist_batch_end(NULL));
    CHECK_OK(dist_batch_begin(&me->group, 1));
    CHECK_OK(dist_recv_message(message, &actual, 1, DIST_I32, NULL, NULL, NULL));
    CHECK_STATUS(dist_message_release(message), DIST_ERR_INVALID_HANDLE);
    CHECK(actual == 0);
    CHECK_OK(dist_batch_end(NULL));
    CHECK(actual == 8);
    CHECK_STATUS(dist_probe(me->group, DIST_ANY_SOURCE, 7, NULL, &options, &message), DIST_IN_PROGRESS);
}

/* A synchronous send of any size completes when a receive has matched it. */
static void check_synchronous_sends(const struct rank *me)
{
    static const size_t counts[] = { 0, 1, LARGE };
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    dist_call_options_t deadline_options = DIST_CALL_OPTIONS_INIT;
    static int32_t in[RANKS][LARGE];
    size_t i;
    options.flags = DIST_CALL_SYNCHRONOUS;
    for (i = 0; i < 3; i++) {
        dist_work_t *work = NULL;
        int32_t done = -1;
        if (me->rank == 0) {
            CHECK_OK(dist_send(me->group, numbers, counts[i], DIST_I32, 1, 8, &options, &work));
            CHECK_OK(dist_barrier(me->group, NULL, NULL));
            CHECK_STATUS(dist_work_wait(work, 20), DIST_IN_PROGRESS);
            CHECK_OK(dist_work_test(work, &done));
            CHECK(done == 0);
            CHECK_OK(dist_barrier(me->group, NULL, NULL));
            CHECK_OK(dist_work_wait(work, 0));
            CHECK_OK(dist_work_release(work));
        } else {
            CHECK_OK(dist_barrier(me->group, NULL, NULL));
            CHECK_OK(dist_barrier(me->group, NULL, NULL));
            CHECK_OK(dist_recv(me->group, in[1], counts[i], DIST_I32, 0, 8, NULL, NULL, NULL));
            CHECK(memcmp(in[1], numbers, counts[i] * sizeof(int32_t)) == 0);
        }
    }
    deadline_options.flags = DIST_CALL_SYNCHRONOUS;
    deadline_options.timeout_ms = 20;
    CHECK_REFUSED(dist_send(me->group, numbers, 1, DIST_I32, me->rank, 9, &deadline_options, NULL), DIST_ERR_TIMEOUT,
                  "tag 9");
    CHECK_REFUSED(dist_recv(me->group, in[me->rank], 1, DIST_I32, 0, 8, NULL, &options, NULL), DIST_ERR_INVALID_ARGUMENT,
                  "DIST_CALL_SYNCHRONOUS");
    CHECK_REFUSED(dist_barrier(me->group, &options, NULL), DIST_ERR_INVALID_ARGUMENT, "DIST_CALL_SYNCHRONOUS");
    CHECK_REFUSED(dist_probe(me->group, 0, 8, NULL, &options, NULL), DIST_ERR_INVALID_ARGUMENT, "DIST_CALL_SYNCHRONOUS");
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
}

struct in_callback {
    dist_group_t *group;
    dist_status_t blocking, nonblocking;
};

static void probe_in_callback(dist_status_t status, const char *message, void *user)
{
    struct in_callback *found = user;
    dist_call_options_t options = no_wait_options();
    (void)message;
    CHECK(status == DIST_OK);
    found->blocking = dist_probe(found->group, DIST_ANY_SOURCE, DIST_ANY_TAG, NULL, NULL, NULL);
    found->nonblocking = dist_probe(found->group, DIST_ANY_SOURCE, DIST_ANY_TAG, NULL, &options, NULL);
}

static void check_refusals(const struct rank *me)
{
    struct in_callback found = { NULL, 0, 0 };
    dist_recv_status_t status = DIST_RECV_STATUS_INIT;
    dist_message_t *message = INVALID_MESSAGE;
    dist_work_t *work = NULL;
    int32_t x = 0;
    CHECK_REFUSED(dist_probe(me->group, RANKS, 0, NULL, NULL, &message), DIST_ERR_INVALID_ARGUMENT, "rank 2");
    CHECK(message == NULL);
    CHECK_REFUSED(dist_probe(me->group, -2, 0, NULL, NULL, NULL), DIST_ERR_INVALID_ARGUMENT, "peer");
    CHECK_REFUSED(dist_probe(me->group, 0, -2, NULL, NULL, NULL), DIST_ERR_INVALID_ARGUMENT, "tag");
    status.struct_size = 8;
    CHECK_REFUSED(dist_probe(me->group, 0, 0, &status, NULL, NULL), DIST_ERR_INVALID_ARGUMENT, "dist_recv_status_t");
    CHECK_REFUSED(dist_recv(me->group, &x, 1, DIST_I32, 0, 0, &status, NULL, NULL), DIST_ERR_INVALID_ARGUMENT,
                  "dist_recv_status_t");
    CHECK_STATUS(dist_recv_message(NULL, &x, 1, DIST_I32, NULL, NULL, NULL), DIST_ERR_INVALID_HANDLE);
    CHECK_STATUS(dist_message_release((dist_message_t *)me->group), DIST_ERR_INVALID_HANDLE);
    found.group = me->group;
    CHECK_OK(dist_barrier(me->group, NULL, &work));
    CHECK_OK(dist_work_on_complete(work, probe_in_callback, &found));
    CHECK_OK(dist_work_wait(work, 0));
    CHECK_OK(dist_work_release(work));
    while (*(volatile dist_status_t *)&found.nonblocking == 0) {
        sched_yield();
    }
    CHECK(found.blocking == DIST_ERR_INVALID_ARGUMENT && found.nonblocking == DIST_IN_PROGRESS);
}

/* The handle outlives its group, but its message does not. */
static void handle_outlives_its_group(const struct rank *me, dist_group_t *group)
{
    dist_message_t *received = NULL;
    dist_message_t *released = NULL;
    int32_t x = 3;
    CHECK_OK(dist_send(group, &x, 1, DIST_I32, me->rank, 1, NULL, NULL));
    CHECK_OK(dist_send(group, &x, 1, DIST_I32, me->rank, 1, NULL, NULL));
    REQUIRE_OK(dist_probe(group, me->rank, 1, NULL, NULL, &received));
    REQUIRE_OK(dist_probe(group, me->rank, 1, NULL, NULL, &released));
    CHECK_OK(dist_group_release(group));
    CHECK_REFUSED(dist_recv_message(received, &x, 1, DIST_I32, NULL, NULL, NULL), DIST_ERR_INVALID_HANDLE, "group");
    CHECK_REFUSED(dist_recv_message(received, &x, 1, DIST_I32, NULL, NULL, NULL), DIST_ERR_INVALID_HANDLE, "live");
    CHECK_OK(dist_message_release(released));
}

static void *run_all_checks(void *arg)
{
    struct rank *me = arg;
    dist_group_t *other = NULL;
    REQUIRE_OK(join_group(me->store, "probes", me->rank, RANKS, &me->group));
    REQUIRE_OK(join_group(me->store, "other", me->rank, RANKS, &other));
    check_unknown_length(me);
    check_nonblocking_probe(me);
    check_handles(me);
    check_batches(me, other);
    check_synchronous_sends(me);
    check_refusals(me);
    handle_outlives_its_group(me, other);
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
    for (r = 0; r < LARGE; r++) {
        numbers[r] = 3 * r + 1;
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
