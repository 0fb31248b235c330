/*
 * A program of a user of libdist: all ranks sum their rank plus one. Each project in this folder
 * builds this file, or consumer.cpp, in another way.
 */
#include <dist.h>
#include <stdio.h>

static int fail(void)
{
    fprintf(stderr, "%s\n", dist_last_error());
    return 1;
}

int main(void)
{
    int32_t size;
    int32_t sum;
    if (dist_init(NULL) != DIST_OK) {
        return fail();
    }
    size = dist_get_world_size(dist_world());
    sum = dist_get_rank(dist_world()) + 1;
    if (dist_all_reduce(dist_world(), &sum, &sum, 1, DIST_I32, DIST_SUM, NULL, NULL) != DIST_OK) {
        return fail();
    }
    if (dist_finalize() != DIST_OK) {
        return fail();
    }
    printf("libdist %s: sum %d over %d ranks\n", dist_version_string(), (int)sum, (int)size);
    return sum == size * (size + 1) / 2 ? 0 : 1;
}
