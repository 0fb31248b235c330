/*
 * The sampler: defaults from a group, epochs, positions, and wrong arguments. The indices
 * themselves are compared with those of PyTorch in the tests of src/api/reducer/sampler.rs.
 */
#include "ranks.h"

static size_t take_indices(dist_sampler_t *sampler, uint64_t *indices, size_t cap)
{
    size_t n = 0;
    CHECK_OK(dist_sampler_next(sampler, indices, cap, &n));
    return n;
}

/* Each rank of a group takes its share. */
static void ranks_take_disjoint_shares(const struct rank *me)
{
    dist_sampler_t *sampler = NULL;
    dist_sampler_options_t options = DIST_SAMPLER_OPTIONS_INIT;
    uint64_t indices[8];
    size_t n, i;
    options.flags = DIST_SAMPLER_IN_ORDER;
    CHECK_OK(dist_sampler_create(me->group, 10, &options, &sampler));
    CHECK(dist_sampler_len(sampler) == (uint64_t)((10 + me->size - 1) / me->size));
    n = take_indices(sampler, indices, 2);
    CHECK(n == 2 && dist_sampler_position(sampler) == 2);
    for (i = 0; i < n; i++) {
        CHECK(indices[i] == (uint64_t)(me->rank + (int)i * me->size));
    }
    CHECK_OK(dist_sampler_release(sampler));
}

static void check_epochs_and_positions(void)
{
    static const uint64_t first[4] = { 4, 5, 0, 2 };
    dist_sampler_t *sampler = NULL;
    dist_sampler_options_t options = DIST_SAMPLER_OPTIONS_INIT;
    uint64_t indices[8];
    options.fields = DIST_FIELD_RANK;
    options.rank = 0;
    options.num_replicas = 3;
    CHECK_OK(dist_sampler_create(NULL, 10, &options, &sampler));
    CHECK(dist_sampler_len(sampler) == 4);
    CHECK(take_indices(sampler, indices, 8) == 4 && memcmp(indices, first, sizeof first) == 0);
    CHECK(take_indices(sampler, indices, 8) == 0 && take_indices(sampler, NULL, 0) == 0);
    CHECK_OK(dist_sampler_seek(sampler, 3));
    CHECK(take_indices(sampler, indices, 8) == 1 && indices[0] == first[3]);
    CHECK_STATUS(dist_sampler_seek(sampler, 5), DIST_ERR_INVALID_ARGUMENT);
    CHECK_OK(dist_sampler_set_epoch(sampler, 1));
    CHECK(dist_sampler_position(sampler) == 0);
    CHECK(take_indices(sampler, indices, 4) == 4 && memcmp(indices, first, sizeof first) != 0);
    CHECK_OK(dist_sampler_release(sampler));
    CHECK_STATUS(dist_sampler_release(sampler), DIST_ERR_INVALID_HANDLE);
    CHECK(dist_sampler_len(sampler) == 0 && dist_sampler_position(NULL) == 0);
    CHECK_OK(dist_sampler_release(NULL));
}

static void wrong_arguments_are_refused(void)
{
    dist_sampler_t *sampler = NULL;
    dist_sampler_options_t options = DIST_SAMPLER_OPTIONS_INIT;
    CHECK_STATUS(dist_sampler_create(NULL, 10, NULL, &sampler), DIST_ERR_NOT_INITIALIZED);
    options.fields = DIST_FIELD_RANK;
    options.num_replicas = 2;
    options.rank = 2;
    CHECK_REFUSED(dist_sampler_create(NULL, 10, &options, &sampler), DIST_ERR_INVALID_ARGUMENT, "rank 2 of 2");
    CHECK(sampler == NULL);
    options.rank = -1;
    CHECK_STATUS(dist_sampler_create(NULL, 10, &options, &sampler), DIST_ERR_INVALID_ARGUMENT);
    options.rank = 0;
    options.flags = 64;
    CHECK_STATUS(dist_sampler_create(NULL, 10, &options, &sampler), DIST_ERR_UNSUPPORTED);
}

int main(void)
{
    check_epochs_and_positions();
    wrong_arguments_are_refused();
    run_everywhere(ranks_take_disjoint_shares);
    return check_report();
}
