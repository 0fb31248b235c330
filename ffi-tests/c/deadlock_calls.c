/*
 * Deadlocks with calls whose needs do not follow from their arguments alone. Examples are receives
 * from any rank, probes, waiting roots, the creation of groups, and monitored barriers. Each rank is
 * a process.
 */
#define _XOPEN_SOURCE 700
#include "deadlock.h"

#define MANY (8 << 20)

static int *many;
static int value[RANKS];

static dist_status_t receive(int from)
{
    dist_call_options_t options = limited_to(LONG_MS);
    return dist_recv(dist_world(), value, 1, DIST_I32, from, 1, NULL, &options, NULL);
}

static dist_status_t send(int to)
{
    return dist_send(dist_world(), value, 1, DIST_I32, to, 1, NULL, NULL);
}

static dist_status_t receive_from_any(void)
{
    return receive(me == 0 ? DIST_ANY_SOURCE : 0);
}

static dist_status_t probe(void)
{
    dist_call_options_t options = limited_to(LONG_MS);
    dist_recv_status_t found = DIST_RECV_STATUS_INIT;
    return me == 0 ? dist_probe(dist_world(), 1, 1, &found, &options, NULL) : receive(0);
}

static dist_status_t probe_any(void)
{
    dist_call_options_t options = limited_to(LONG_MS);
    dist_recv_status_t found = DIST_RECV_STATUS_INIT;
    return me == 0 ? dist_probe(dist_world(), DIST_ANY_SOURCE, 1, &found, &options, NULL) : receive(0);
}

static dist_status_t counts_per_rank(void)
{
    static const size_t counts[] = { 0, 1 };
    dist_call_options_t options = limited_to(LONG_MS);
    const void *sends[] = { value, value };
    void *receives[] = { value, &value[1] };
    if (me == 1) {
        return receive(0);
    }
    return dist_all_to_all_v(first, sends, counts, receives, counts, DIST_I32, &options, NULL);
}

static dist_status_t broadcast_of_much(void)
{
    dist_call_options_t options = limited_to(LONG_MS);
    return me == 1 ? receive(0) : dist_broadcast(first, many, MANY, DIST_I32, 0, &options, NULL);
}

static dist_status_t scatter_of_much(void)
{
    dist_call_options_t options = limited_to(LONG_MS);
    return me == 1 ? receive(0)
                   : dist_scatter(first, many, many, MANY / 2, DIST_I32, 0, &options, NULL);
}

static dist_status_t gather_of_much(void)
{
    dist_call_options_t options = limited_to(LONG_MS);
    return me == 0 ? receive(1)
                   : dist_gather(first, many, NULL, MANY / 2, DIST_I32, 0, &options, NULL);
}

static dist_status_t asynchronous_broadcast_of_much(void)
{
    dist_call_options_t options = limited_to(LONG_MS);
    dist_work_t *work = NULL;
    dist_status_t status;
    if (me == 1) {
        return receive(0);
    }
    REQUIRE_OK(dist_broadcast(first, many, MANY, DIST_I32, 0, &options, &work));
    status = dist_work_wait(work, LONG_MS);
    CHECK_OK(dist_work_release(work));
    return status;
}

static dist_status_t creation_by_all(void)
{
    dist_group_t *group = NULL;
    return me == 1 ? receive(0) : dist_group_new(first, NULL, 0, NULL, &group);
}

static dist_status_t creation_by_members(const char *name)
{
    dist_group_new_options_t options = DIST_GROUP_NEW_OPTIONS_INIT;
    dist_group_t *group = NULL;
    options.name = name;
    options.use_local_synchronization = 1;
    options.connect_timeout_ms = LONG_MS;
    return dist_group_new(first, NULL, 0, &options, &group);
}

static dist_status_t creation_and_receive(void)
{
    return me == 1 ? receive(0) : creation_by_members("pair");
}

static dist_status_t receive_and_creation(void)
{
    return me == 0 ? receive(1) : creation_by_members("pair");
}

static dist_status_t creations_in_opposite_orders(void)
{
    return creation_by_members(me == 0 ? "a" : "b");
}

static dist_status_t monitored_barrier_and_receive(void)
{
    return me == 1 ? receive(0) : dist_monitored_barrier(first, LONG_MS, 1, NULL, NULL);
}

static dist_status_t receive_and_monitored_barrier(void)
{
    return me == 0 ? receive(1) : dist_monitored_barrier(first, LONG_MS, 1, NULL, NULL);
}

static dist_status_t monitored_barriers_in_opposite_orders(void)
{
    return dist_monitored_barrier(me == 0 ? second : first, LONG_MS, 1, NULL, NULL);
}

/* Starts to receive from the other rank, and waits in slices. */
static dist_status_t slices(void)
{
    dist_call_options_t options = limited_to(LONG_MS);
    dist_work_t *work = NULL;
    dist_status_t status;
    REQUIRE_OK(dist_recv(dist_world(), value, 1, DIST_I32, 1 - me, 1, NULL, &options, &work));
    do {
        status = dist_work_wait_slice(work, LONG_MS, 40);
    } while (status == DIST_IN_PROGRESS);
    CHECK_OK(dist_work_release(work));
    return status;
}

/* On two hosts, the root waits for the leader of its host, and the leader for rank 1. */
static dist_status_t broadcast_through_the_leader(void)
{
    dist_call_options_t options = limited_to(LONG_MS);
    return me == 1 ? receive(2) : dist_broadcast(dist_world(), many, MANY, DIST_I32, 2, &options, NULL);
}

/* Waits for the first of two messages, of the two other ranks. */
static dist_status_t any_of_two_works(void)
{
    dist_call_options_t options = limited_to(LONG_MS);
    dist_work_t *works[2] = { NULL, NULL };
    size_t index = 0;
    dist_status_t status;
    int i;
    if (me != 0) {
        return receive(0);
    }
    for (i = 0; i < 2; i++) {
        REQUIRE_OK(dist_recv(dist_world(), &value[i], 1, DIST_I32, i + 1, 1, NULL, &options, &works[i]));
    }
    status = dist_work_wait_any(works, 2, 0, &index);
    for (i = 0; i < 2; i++) {
        CHECK_OK(dist_work_release(works[i]));
    }
    return status;
}

/* Waits in slices for a message or a collective of another group. */
static dist_status_t any_of_two_groups(void)
{
    dist_call_options_t options = limited_to(LONG_MS);
    dist_work_t *works[2] = { NULL, NULL };
    size_t index = 0;
    dist_status_t status;
    if (me == 1) {
        return receive(0);
    }
    REQUIRE_OK(dist_recv(dist_world(), value, 1, DIST_I32, 1, 1, NULL, &options, &works[0]));
    REQUIRE_OK(dist_all_reduce(first, &value[1], &value[1], 1, DIST_I32, DIST_SUM, &options, &works[1]));
    do {
        status = dist_work_wait_any_slice(works, 2, LONG_MS, 40, &index);
    } while (status == DIST_IN_PROGRESS);
    CHECK_OK(dist_work_release(works[0]));
    CHECK_OK(dist_work_release(works[1]));
    return status;
}

/* Of two works, one can end. */
static dist_status_t any_that_ends(void)
{
    dist_work_t *works[2] = { NULL, NULL };
    size_t index = 0;
    if (me == 2) {
        nap_ms(1500);
        return send(0);
    }
    if (me == 1) {
        REQUIRE_OK(receive(0));
        return dist_send(dist_world(), value, 1, DIST_I32, 0, 7, NULL, NULL);
    }
    REQUIRE_OK(dist_recv(dist_world(), value, 1, DIST_I32, 1, 7, NULL, NULL, &works[0]));
    REQUIRE_OK(dist_recv(dist_world(), &value[1], 1, DIST_I32, 2, 1, NULL, NULL, &works[1]));
    REQUIRE_OK(dist_work_wait_any(works, 2, 0, &index));
    CHECK(index == 1);
    REQUIRE_OK(send(1));
    REQUIRE_OK(dist_work_wait(works[0], 0));
    CHECK_OK(dist_work_release(works[0]));
    return dist_work_release(works[1]);
}

static void *call_once(void *unused)
{
    CHECK(dist_get_rank(dist_world()) == me);
    return unused;
}

static dist_status_t thread_that_has_ended(void)
{
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, call_once, NULL) == 0);
    REQUIRE(pthread_join(thread, NULL) == 0);
    return receive(1 - me);
}

/* Waits that end. */
static dist_status_t slices_with_other_calls(void)
{
    dist_work_t *work = NULL;
    dist_status_t status = DIST_IN_PROGRESS;
    int i;
    if (me == 1) {
        REQUIRE_OK(receive(0));
        return send(0);
    }
    REQUIRE_OK(dist_recv(dist_world(), value, 1, DIST_I32, 1, 1, NULL, NULL, &work));
    for (i = 0; i < 60; i++) {
        int32_t done = 0;
        CHECK(dist_work_wait_slice(work, LONG_MS, 25) == DIST_IN_PROGRESS);
        CHECK_OK(dist_work_test(work, &done));
    }
    REQUIRE_OK(send(1));
    while (status == DIST_IN_PROGRESS) {
        status = dist_work_wait_slice(work, LONG_MS, 25);
    }
    CHECK_OK(dist_work_release(work));
    return status;
}

static dist_status_t send_of_the_third_rank(void)
{
    if (me == 2) {
        nap_ms(1500);
        return send(0);
    }
    if (me == 1) {
        return receive(0);
    }
    REQUIRE_OK(receive(DIST_ANY_SOURCE));
    return send(1);
}

static dist_status_t late_member(void)
{
    dist_group_t *group = NULL;
    dist_group_new_options_t options = DIST_GROUP_NEW_OPTIONS_INIT;
    if (me == 2) {
        nap_ms(1500);
    }
    options.use_local_synchronization = 1;
    REQUIRE_OK(dist_group_new(dist_world(), NULL, 0, &options, &group));
    if (me == 1) {
        nap_ms(1500);
    }
    REQUIRE_OK(dist_monitored_barrier(group, LONG_MS, 1, NULL, NULL));
    if (me == 0) {
        nap_ms(1500);
    }
    REQUIRE_OK(dist_broadcast(group, many, MANY, DIST_I32, 1, NULL, NULL));
    return dist_group_release(group);
}

static const struct test_case cases[] = {
    { "any of two", receive_from_any, 2, "rank 0 waits for rank 1 in receive from any rank, tag 1", 0 },
    { "any of three", receive_from_any, 3, "rank 0 waits for any rank in receive from any rank, tag 1", 0 },
    { "probe", probe, 2, "rank 0 waits for rank 1 in probe for a message of rank 1, tag 1", 0 },
    { "probe of any", probe_any, 3, "rank 0 waits for any rank in probe for a message of any rank", 0 },
    { "counts", counts_per_rank, 2, "rank 0 waits for rank 1 in all_to_all_v #1", 0 },
    { "broadcast", broadcast_of_much, 2, "rank 0 waits for rank 1 in broadcast #1", 0 },
    { "scatter", scatter_of_much, 2, "rank 0 waits for rank 1 in scatter #1", 0 },
    { "gather", gather_of_much, 2, "rank 1 waits for rank 0 in gather #1", 0 },
    { "asynchronous broadcast", asynchronous_broadcast_of_much, 2, "rank 0 waits for rank 1 in broadcast #1", 0 },
    { "creation by all", creation_by_all, 2, "rank 0 waits for rank 1 in ", 0 },
    { "creation by members", creation_and_receive, 2, "rank 0 waits for rank 1 in creation of group pair", 0 },
    { "receive and creation", receive_and_creation, 2, "rank 1 waits for rank 0 in creation of group pair", 0 },
    { "two creations", creations_in_opposite_orders, 2, "rank 0 waits for rank 1 in creation of group a", 0 },
    { "monitored barrier", monitored_barrier_and_receive, 2, "rank 0 waits for rank 1 in monitored_barrier #1", 0 },
    { "receive and barrier", receive_and_monitored_barrier, 2, "rank 1 waits for rank 0 in monitored_barrier #1", 0 },
    { "two monitored barriers", monitored_barriers_in_opposite_orders, 2, "rank 0 waits for rank 1 in monitored", 0 },
    { "slices", slices, 2, "rank 0 waits for rank 1 in receive from rank 1", 0 },
    { "ended thread", thread_that_has_ended, 2, "rank 0 waits for rank 1 in receive from rank 1", 0 },
    { "broadcast through the leader", broadcast_through_the_leader, 3, "rank 2 waits for rank 1 in broadcast", 0 },
    { "any of two works", any_of_two_works, 3, "rank 0 waits for rank 1 in receive from rank 1, tag 1", 0 },
    { "any of two groups", any_of_two_groups, 2, "in receive from rank 1, tag 1", 0 },
    { "any that ends", any_that_ends, 3, NULL, 0 },
    { "slices with other calls", slices_with_other_calls, 2, NULL, 0 },
    { "third rank", send_of_the_third_rank, 3, NULL, 0 },
    { "late member", late_member, 3, NULL, 0 },
    { NULL, NULL, 0, NULL, 0 },
};

int main(void)
{
    many = calloc(MANY, sizeof(*many));
    REQUIRE(many != NULL);
    return run_all(cases);
}
