/*
 * Ranks that wait for each other get DIST_ERR_DEADLOCK with the whole cycle. A wait that another
 * thread, a deadline or a callback ends is no deadlock. Each rank is a process.
 */
#define _XOPEN_SOURCE 700
#include "deadlock.h"

#define MOST_ELEMENTS 100000

static int values[2][MOST_ELEMENTS];

static dist_status_t receive_within(int from, int tag, uint64_t ms)
{
    dist_call_options_t options = limited_to(ms);
    return dist_recv(dist_world(), values[1], 1, DIST_I32, from, tag, NULL, &options, NULL);
}

static dist_status_t receive(int from, int tag)
{
    return receive_within(from, tag, LONG_MS);
}

static dist_status_t send(int to, int tag)
{
    return dist_send(dist_world(), values[0], 1, DIST_I32, to, tag, NULL, NULL);
}

static dist_status_t send_synchronously(int to)
{
    dist_call_options_t options = limited_to(LONG_MS);
    options.flags |= DIST_CALL_SYNCHRONOUS;
    return dist_send(dist_world(), values[0], 1, DIST_I32, to, 1, &options, NULL);
}

static dist_status_t all_reduce(dist_group_t *group, size_t count)
{
    dist_call_options_t options = limited_to(LONG_MS);
    return dist_all_reduce(group, values[0], values[1], count, DIST_I32, DIST_SUM, &options, NULL);
}

/* A deadlock of the ranks 0 and 1. Rank 2 does nothing, or takes part. */
static dist_status_t groups_in_opposite_orders(void)
{
    return all_reduce(me == 0 ? second : first, 1);
}

static dist_status_t groups_in_opposite_orders_after_calls(void)
{
    int i;
    for (i = 0; i < 20; i++) {
        REQUIRE_OK(all_reduce(first, 1));
        REQUIRE_OK(all_reduce(second, MOST_ELEMENTS));
    }
    return all_reduce(me == 0 ? second : first, MOST_ELEMENTS);
}

static dist_status_t receives_from_each_other(void)
{
    return receive(1 - me, 1);
}

static dist_status_t receives_of_other_tags(void)
{
    REQUIRE_OK(send(1 - me, 7));
    return receive(1 - me, 8);
}

static dist_status_t collective_and_receive(void)
{
    return me == 0 ? dist_barrier(first, NULL, NULL) : receive(0, 1);
}

static dist_status_t synchronous_sends(void)
{
    return send_synchronously(1 - me);
}

static dist_status_t synchronous_send_and_broadcast(void)
{
    if (me == 0) {
        return send_synchronously(1);
    }
    return dist_broadcast(first, values[1], 10, DIST_I32, 0, NULL, NULL);
}

static dist_status_t asynchronous_calls(void)
{
    dist_work_t *work = NULL;
    dist_status_t status;
    if (me == 0) {
        REQUIRE_OK(dist_recv(dist_world(), values[1], 1, DIST_I32, 1, 1, NULL, NULL, &work));
    } else {
        REQUIRE_OK(dist_all_reduce(first, values[0], values[1], 9, DIST_I32, DIST_SUM, NULL, &work));
    }
    status = dist_work_wait(work, LONG_MS);
    /* The call clears no error. */
    CHECK_OK(dist_work_release(work));
    return status;
}

static dist_status_t cycle_of_three(void)
{
    return receive((me + 1) % RANKS, 1);
}

static dist_status_t receive_from_oneself(void)
{
    return me == 0 ? receive(0, 1) : DIST_ERR_DEADLOCK;
}

/* Waits that end. */
static dist_status_t timed_receive(void)
{
    if (me == 0) {
        CHECK_STATUS(receive_within(1, 1, 1500), DIST_ERR_TIMEOUT);
        return send(1, 1);
    }
    return receive(0, 1);
}

static void *send_later(void *group)
{
    CHECK(dist_get_rank(group) == 0);
    nap_ms(1500);
    CHECK_OK(send(1, 1));
    return NULL;
}

static dist_status_t send_of_another_thread(void)
{
    pthread_t thread;
    dist_status_t status;
    if (me == 1) {
        REQUIRE_OK(receive(0, 1));
        return send(0, 2);
    }
    REQUIRE(pthread_create(&thread, NULL, send_later, dist_world()) == 0);
    status = receive(1, 2);
    REQUIRE(pthread_join(thread, NULL) == 0);
    return status;
}

static dist_status_t late_rank(void)
{
    if (me == 0) {
        nap_ms(1500);
    }
    return all_reduce(first, 1);
}

static void send_in_callback(dist_status_t status, const char *message, void *user)
{
    dist_work_t *work = NULL;
    (void)message;
    (void)user;
    CHECK(status == DIST_OK);
    CHECK_OK(dist_send(dist_world(), values[0], 1, DIST_I32, 1, 1, NULL, &work));
    CHECK_OK(dist_work_release(work));
}

static dist_status_t send_of_a_callback(void)
{
    dist_work_t *work = NULL;
    dist_status_t status;
    if (me == 2) {
        nap_ms(1500);
        return send(0, 3);
    }
    if (me == 1) {
        REQUIRE_OK(receive(0, 1));
        return send(0, 2);
    }
    REQUIRE_OK(dist_recv(dist_world(), &values[1][5], 1, DIST_I32, 2, 3, NULL, NULL, &work));
    REQUIRE_OK(dist_work_on_complete(work, send_in_callback, NULL));
    status = receive(1, 2);
    CHECK_OK(dist_work_release(work));
    return status;
}

static const struct test_case cases[] = {
    { "groups in opposite orders", groups_in_opposite_orders, 2, "rank 0 waits for rank 1 in all_reduce #1 of", 0 },
    { "the same after calls", groups_in_opposite_orders_after_calls, 2,
      "rank 0 waits for rank 1 in all_reduce #21 of", 0 },
    { "two receives", receives_from_each_other, 2, "rank 0 waits for rank 1 in receive from rank 1, tag 1", 0 },
    { "receives of other tags", receives_of_other_tags, 2, "rank 0 waits for rank 1 in receive from rank 1, tag 8", 0 },
    { "collective and receive", collective_and_receive, 2, "rank 1 waits for rank 0 in receive from rank 0", 0 },
    { "synchronous sends", synchronous_sends, 2, "rank 0 waits for rank 1 in send to rank 1", 0 },
    { "synchronous send and broadcast", synchronous_send_and_broadcast, 2,
      "rank 1 waits for rank 0 in broadcast #1 of", 0 },
    { "asynchronous calls", asynchronous_calls, 2, "rank 1 waits for rank 0 in all_reduce #1 of", 0 },
    { "cycle of three", cycle_of_three, 3, "rank 2 waits for rank 0 in receive from rank 0", 0 },
    { "receive from oneself", receive_from_oneself, 1, "deadlock: rank 0 waits for rank 0 in receive", 0 },
    { "timed receive", timed_receive, 2, NULL, 1 },
    { "late rank", late_rank, 2, NULL, 0 },
    { "callback", send_of_a_callback, 3, NULL, 1 },
    { "another thread", send_of_another_thread, 2, NULL, 1 },
    { NULL, NULL, 0, NULL, 0 },
};

int main(void)
{
    return run_all(cases);
}
