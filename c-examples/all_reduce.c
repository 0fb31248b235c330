/*
 * Sums a vector over all ranks, and checks the result: element i of rank r is (r + 1) * i, so the
 * sum over P ranks is P * (P + 1) / 2 * i. All values stay below 2^24, where an f32 is exact in
 * any order of addition.
 *
 *     distrun --nproc-per-node 4 ./all_reduce
 */
#include "common/check.h"

#define COUNT 1000

int main(void)
{
    check(dist_init(NULL));

    dist_group_t *world = dist_world();
    int rank = (int)dist_get_rank(world);
    int size = (int)dist_get_world_size(world);

    float values[COUNT];
    for (int i = 0; i < COUNT; i++) {
        values[i] = (float)((rank + 1) * i);
    }

    /* In place: the same buffer is sent and received. A NULL work handle makes the call block
     * until it is done. */
    check(dist_all_reduce(world, values, values, COUNT, DIST_F32, DIST_SUM, NULL, NULL));

    int n_wrong = 0;
    for (int i = 0; i < COUNT; i++) {
        float expected = (float)(size * (size + 1) / 2 * i);
        if (values[i] != expected) {
            fprintf(stderr, "rank %d: element %d is %g, expected %g\n", rank, i, values[i], expected);
            n_wrong++;
        }
    }
    if (n_wrong == 0) {
        printf("rank %d of %d: %d sums correct\n", rank, size, COUNT);
    }

    check(dist_finalize());
    return n_wrong == 0 ? 0 : 1;
}
