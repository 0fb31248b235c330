/*
 * One of two ranks of a job of processes, over NCCL or the back end in the third argument. All
 * buffers are in device memory. The ranks use two groups in opposite orders, or both receive before
 * they send, or both send before they receive. Each call of such a cycle gets the deadlock.
 */
#include "ranks.h"
#include "../c/nap.h"

/* NCCL may copy shorter messages before the peer receives them. */
#define LONG_COUNT ((64 << 20) + 1)

static int me, peer;
static float *memory;

static dist_status_t all_reduce(dist_group_t *group)
{
    return dist_all_reduce(group, memory, memory, 1, DIST_F32, DIST_SUM, NULL, NULL);
}

static dist_status_t receive(dist_group_t *group, size_t count, dist_work_t **work)
{
    return dist_recv(group, memory, count, DIST_F32, peer, 0, NULL, NULL, work);
}

static dist_status_t send(dist_group_t *group, size_t count)
{
    return dist_send(group, memory, count, DIST_F32, peer, 0, NULL, NULL);
}

static dist_status_t synchronize(dist_work_t *work)
{
    dist_status_t status = dist_work_synchronize(work, LIMIT_MS);
    CHECK_OK(dist_work_release(work));
    return status;
}

static dist_status_t receive_first(dist_group_t *group)
{
    return receive(group, 1, NULL);
}

static dist_status_t receive_asynchronously(dist_group_t *group)
{
    dist_work_t *work = NULL;
    REQUIRE_OK(receive(group, 1, &work));
    return synchronize(work);
}

static dist_status_t receive_in_batch(dist_group_t *group)
{
    dist_work_t *batch = NULL;
    REQUIRE_OK(dist_batch_begin(NULL, 0));
    REQUIRE_OK(receive(group, 1, NULL));
    REQUIRE_OK(dist_batch_end(&batch));
    return synchronize(batch);
}

static dist_status_t send_first(dist_group_t *group)
{
    return send(group, LONG_COUNT);
}

static dist_status_t receive_and_all_reduce(dist_group_t *group)
{
    dist_work_t *work = NULL;
    if (me == 0) {
        return receive(group, 1, NULL);
    }
    REQUIRE_OK(dist_all_reduce(group, memory, memory, 1, DIST_F32, DIST_SUM, NULL, &work));
    return synchronize(work);
}

/* Runs a case in a new group, after one message in each direction. */
static void check_deadlock(dist_status_t (*body)(dist_group_t *group), const char *message)
{
    dist_group_t *group = NULL;
    REQUIRE_OK(dist_group_new(dist_world(), NULL, 0, NULL, &group));
    CHECK_OK(me == 0 ? send(group, 1) : receive(group, 1, NULL));
    CHECK_OK(me == 1 ? send(group, 1) : receive(group, 1, NULL));
    CHECK_STATUS(body(group), DIST_ERR_DEADLOCK);
    CHECK_MESSAGE(message);
    (void)dist_group_release(group);
}

/* The peer waits for a message that this rank sends late, while this rank waits for nothing. Before
 * that, this rank waits for a receive of the peer, which comes late too. */
static void check_late_messages(void)
{
    dist_group_t *world = dist_world();
    if (me == 0) {
        nap_ms(1500);
        CHECK_OK(receive(world, 1, NULL));
        CHECK_OK(receive(world, 1, NULL));
    } else {
        CHECK_OK(send(world, 1));
        nap_ms(1500);
        CHECK_OK(send(world, 1));
    }
}

static void check_opposite_orders(void)
{
    dist_group_t *groups[2] = { NULL, NULL };
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(dist_group_new(dist_world(), NULL, 0, NULL, &groups[i]));
        REQUIRE_OK(all_reduce(groups[i]));
    }
    CHECK_STATUS(all_reduce(groups[me]), DIST_ERR_DEADLOCK);
    CHECK_MESSAGE("rank 0 waits for rank 1 in all_reduce #2 of group");
    for (int i = 0; i < 2; i++) {
        (void)dist_group_release(groups[i]);
    }
}

int main(int argc, char **argv)
{
    REQUIRE(argc == 3 || argc == 4);
    const char *backend = argc == 4 ? argv[3] : "nccl";
    me = atoi(argv[1]);
    peer = 1 - me;
    (void)join_device_world(me, backend);
    memory = device_memory(LONG_COUNT * sizeof(float), NULL);
    check_opposite_orders();
    /* A back end between hosts has no messages in device memory. */
    if (strstr(backend, "between=") == NULL) {
        const char *receives = "rank 0 waits for rank 1 in receive from rank 1, tag 0";
        check_late_messages();
        check_deadlock(receive_first, receives);
        check_deadlock(receive_asynchronously, receives);
        check_deadlock(receive_in_batch, receives);
        check_deadlock(receive_and_all_reduce, receives);
        check_deadlock(send_first, "rank 0 waits for rank 1 in send to rank 1, tag 0");
    }
    CHECK_OK(dist_finalize());
    return check_report();
}
