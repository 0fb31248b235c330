/*
 * The smallest libdist program: every rank joins the job, prints its rank, and leaves.
 *
 *     distrun --nproc-per-node 4 ./hello
 */
#include "common/check.h"

int main(void)
{
    check(dist_init(NULL));

    dist_group_t *world = dist_world();
    printf("hello from rank %d of %d, rank %d of %d on this host, libdist %s\n", (int)dist_get_rank(world),
           (int)dist_get_world_size(world), (int)dist_group_local_rank(world), (int)dist_group_local_size(world),
           dist_version_string());

    check(dist_barrier(world, NULL, NULL));
    check(dist_finalize());
    return 0;
}
