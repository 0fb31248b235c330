/*
 * One rank of a job of processes, over NCCL or the back end in the third argument. The last rank
 * exits instead of making the next call. The survivors get an error that names it, long before
 * the deadline of the operation, and continue in a new group.
 */
#include "ranks.h"

#include <time.h>
#include <unistd.h>

#define N 100

int main(int argc, char **argv)
{
    REQUIRE(argc == 3 || argc == 4);
    int rank = atoi(argv[1]), size = atoi(argv[2]);
    int gpu = join_device_world(rank, argc == 4 ? argv[3] : "nccl");
    float *memory = device_memory(N * sizeof(float), NULL);
    CHECK_OK(dist_all_reduce(dist_world(), memory, memory, N, DIST_F32, DIST_SUM, NULL, NULL));
    /* After this barrier all ranks have completed the call; a death fails only incomplete
     * operations. */
    CHECK_OK(dist_barrier(dist_world(), NULL, NULL));
    if (rank == size - 1) {
        /* A barrier of several steps ends on other ranks a little later. */
        struct timespec nap = { 0, 500000000 };
        nanosleep(&nap, NULL);
        _exit(0);
    }
    CHECK_STATUS(dist_all_reduce(dist_world(), memory, memory, N, DIST_F32, DIST_SUM, NULL, NULL), DIST_ERR_PEER_FAILED);
    char rank_text[32];
    snprintf(rank_text, sizeof rank_text, "rank %d", size - 1);
    CHECK_MESSAGE(rank_text);
    dist_shrink_options_t shrink = DIST_SHRINK_OPTIONS_INIT;
    dist_group_t *survivors = NULL;
    REQUIRE_OK(dist_group_shrink(dist_world(), &shrink, &survivors));
    CHECK(dist_get_world_size(survivors) == size - 1);
    CHECK_OK(dist_all_reduce(survivors, memory, memory, N, DIST_F32, DIST_MAX, NULL, NULL));
    CHECK_OK(dist_group_release(survivors));
    CHECK_OK(dist_finalize());
    free_device(memory);
    CHECK(cuCtxSetCurrent(NULL) == CUDA_SUCCESS && cuDevicePrimaryCtxRelease_v2(gpu) == CUDA_SUCCESS);
    check_nothing_leaked();
    return check_report();
}
