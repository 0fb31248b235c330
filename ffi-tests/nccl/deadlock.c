/*
 * One of two ranks of a job of processes, over NCCL or the back end in the third argument. The ranks
 * use two groups in opposite orders, with buffers in device memory. Both calls get the deadlock.
 */
#include "ranks.h"

int main(int argc, char **argv)
{
    REQUIRE(argc == 3 || argc == 4);
    int rank = atoi(argv[1]);
    int i;
    (void)join_device_world(rank, argc == 4 ? argv[3] : "nccl");
    dist_group_t *groups[2] = { NULL, NULL };
    float *memory = device_memory(sizeof(float), NULL);
    for (i = 0; i < 2; i++) {
        REQUIRE_OK(dist_group_new(dist_world(), NULL, 0, NULL, &groups[i]));
        REQUIRE_OK(dist_all_reduce(groups[i], memory, memory, 1, DIST_F32, DIST_SUM, NULL, NULL));
    }
    CHECK_STATUS(dist_all_reduce(groups[rank % 2], memory, memory, 1, DIST_F32, DIST_SUM, NULL, NULL),
                 DIST_ERR_DEADLOCK);
    CHECK_MESSAGE("rank 0 waits for rank 1 in all_reduce #2 of group");
    for (i = 0; i < 2; i++) {
        (void)dist_group_release(groups[i]);
    }
    CHECK_OK(dist_finalize());
    return check_report();
}
