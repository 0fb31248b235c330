/* Sums one number of each rank, and fails if the sum is wrong. */
#include <dist.h>
#include <stdio.h>

int main(void)
{
    float value = 1.0f;
    if (dist_init(NULL) < 0
        || dist_all_reduce(dist_world(), &value, &value, 1, DIST_F32, DIST_SUM, NULL, NULL) < 0) {
        fprintf(stderr, "%s\n", dist_last_error());
        return 1;
    }
    if (value != (float)dist_get_world_size(dist_world())) {
        fprintf(stderr, "the sum is %g\n", (double)value);
        return 1;
    }
    printf("sum %g\n", (double)value);
    return dist_finalize() < 0;
}
