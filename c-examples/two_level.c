/*
 * One back end inside each host and another between hosts, as one group. The program compares the
 * result of an all-reduce with that of the world group, and prints how the group is composed.
 *
 *     distrun --nproc-per-node 4 ./two_level
 *     distrun --nproc-per-node 4 ./two_level inside=native,between=mpi
 *
 * All ranks of one host need no network. To see both levels on one host, let each pair of ranks
 * act as a host: the second argument has the number of ranks of a host.
 *
 *     distrun --nproc-per-node 4 ./two_level inside=native,between=native 2
 */
#include "common/check.h"

#include <string.h>

#define COUNT 100000

static void print_levels(dist_group_t *group)
{
    char name[128];
    const char *between;
    const void *text;
    dist_blob_t *json;
    size_t length;
    (void)dist_group_backend(group, name, sizeof(name));
    check(dist_group_describe(group, &json));
    check(dist_blob_data(json, 0, &text, &length));
    /* The text of a blob ends with a zero byte. */
    between = strstr((const char *)text, "\"between hosts\"");
    printf("%s: %d ranks on %d hosts, %s\n", name, (int)dist_get_world_size(group), (int)dist_group_host_count(group),
           between != NULL ? "two levels" : "one level");
    check(dist_blob_release(json));
}

int main(int argc, char **argv)
{
    static float gradients[COUNT], sums[COUNT], expected[COUNT];
    char options[32];
    dist_group_t *group;
    dist_group_new_options_t new_options = DIST_GROUP_NEW_OPTIONS_INIT;
    int rank, i;

    check(dist_init(NULL));
    rank = (int)dist_get_rank(dist_world());
    new_options.backend = argc > 1 ? argv[1] : "inside=native,between=native";
    if (argc > 2) {
        snprintf(options, sizeof(options), "host_id=%d", rank / atoi(argv[2]));
        new_options.backend_options = options;
    }
    check(dist_group_new(dist_world(), NULL, 0, &new_options, &group));

    for (i = 0; i < COUNT; i++) {
        gradients[i] = (float)((rank + 1) * (i % 10));
    }
    /* The sums are whole numbers, so the order of the additions does not matter. */
    check(dist_all_reduce(group, gradients, sums, COUNT, DIST_F32, DIST_SUM, NULL, NULL));
    check(dist_all_reduce(dist_world(), gradients, expected, COUNT, DIST_F32, DIST_SUM, NULL, NULL));
    if (memcmp(sums, expected, sizeof(sums)) != 0) {
        fprintf(stderr, "rank %d: the sums of the two groups differ\n", rank);
        return 1;
    }
    if (rank == 0) {
        print_levels(group);
        printf("all %d sums are equal to those of the world group\n", COUNT);
    }
    check(dist_group_release(group));
    check(dist_finalize());
    return 0;
}
