/*
 * Messages between two ranks: rank 0 sends tasks with the tag TASK. The other ranks answer with
 * the tag RESULT when they have finished, and rank 0 receives the answers in arrival order.
 *
 *     distrun --nproc-per-node 4 ./send_recv
 */
#include "common/check.h"

#define TASK 1
#define RESULT 2
#define COUNT 1000

/* Sends one task to each worker and receives the results: rank r squares the numbers from r on. */
static int distribute_tasks(dist_group_t *world, int size)
{
    int64_t task[COUNT];
    for (int peer = 1; peer < size; peer++) {
        for (int i = 0; i < COUNT; i++) {
            task[i] = peer + i;
        }
        /* Without a work handle the call returns when the buffer is free again, possibly before
         * the peer has the message. */
        check(dist_send(world, task, COUNT, DIST_I64, peer, TASK, NULL, NULL));
    }

    int n_wrong = 0;
    int64_t result[COUNT];
    for (int n_results = 1; n_results < size; n_results++) {
        dist_recv_status_t status = DIST_RECV_STATUS_INIT;
        check(dist_recv(world, result, COUNT, DIST_I64, DIST_ANY_SOURCE, RESULT, &status, NULL, NULL));
        for (int i = 0; i < COUNT; i++) {
            n_wrong += result[i] != (int64_t)(status.source + i) * (status.source + i);
        }
        printf("rank 0: %d squares from rank %d\n", COUNT, (int)status.source);
    }
    return n_wrong;
}

static void process_task(dist_group_t *world)
{
    int64_t numbers[COUNT];
    check(dist_recv(world, numbers, COUNT, DIST_I64, 0, TASK, NULL, NULL, NULL));
    for (int i = 0; i < COUNT; i++) {
        numbers[i] *= numbers[i];
    }
    check(dist_send(world, numbers, COUNT, DIST_I64, 0, RESULT, NULL, NULL));
}

int main(void)
{
    check(dist_init(NULL));
    dist_group_t *world = dist_world();

    int n_wrong = 0;
    if (dist_get_rank(world) == 0) {
        n_wrong = distribute_tasks(world, (int)dist_get_world_size(world));
        printf("rank 0: %s\n", n_wrong == 0 ? "all squares correct" : "WRONG squares");
    } else {
        process_task(world);
    }

    check(dist_finalize());
    return n_wrong == 0 ? 0 : 1;
}
