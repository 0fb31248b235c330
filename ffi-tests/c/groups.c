/*
 * Subgroups: created by all ranks, by the members only, and by splits; the mapping of ranks;
 * refused calls.
 *
 *     groups             ranks are threads
 *     groups processes   this process is one of four processes of a launcher
 *     groups exhaust     as processes; creates groups until no descriptor is left
 */
#include "check.h"

#define RANKS 4
/* More groups than any descriptor limit of a test allows. */
#define MAX_GROUPS 20000

struct rank {
    dist_store_t *store;
    dist_group_t *world;
    int rank;
};

static int has_ranks(dist_group_t *group, const int32_t *ranks, size_t n)
{
    int32_t actual[RANKS + 1];
    int32_t sum = 0;
    int32_t own = 1;
    size_t i;
    int is_match = dist_group_ranks(group, actual, RANKS + 1) == n && memcmp(actual, ranks, n * sizeof(*actual)) == 0;
    for (i = 0; i < n; i++) {
        is_match = is_match && dist_group_rank_to_global(group, (int32_t)i) == ranks[i];
        is_match = is_match && dist_group_rank_from_global(group, ranks[i]) == (int32_t)i;
    }
    CHECK_OK(dist_all_reduce(group, &own, &sum, 1, DIST_I32, DIST_SUM, NULL, NULL));
    return is_match && sum == (int32_t)n && dist_get_world_size(group) == (int32_t)n;
}

static void check_groups_from_lists(const struct rank *me)
{
    static const int32_t listed_ranks[] = { 3, 0 };
    static const int32_t all[] = { 0, 1, 2, 3 };
    dist_group_t *group = NULL;
    dist_group_t *inner = NULL;
    CHECK_OK(dist_group_new(me->world, listed_ranks, 2, NULL, &group));
    CHECK((group != NULL) == (me->rank == 0 || me->rank == 3));
    if (group != NULL) {
        CHECK(has_ranks(group, listed_ranks, 2));
        CHECK(dist_group_rank_from_global(group, 1) == -1 && dist_group_rank_to_global(group, 2) == -1);
        /* The list has ranks of the parent; the result has global ranks. */
        static const int32_t backwards[] = { 1, 0 };
        static const int32_t expected[] = { 0, 3 };
        CHECK_OK(dist_group_new(group, backwards, 2, NULL, &inner));
        CHECK_OK(dist_group_release(group));
        CHECK(has_ranks(inner, expected, 2));
        CHECK_OK(dist_group_release(inner));
    }
    CHECK_OK(dist_group_new(me->world, NULL, 0, NULL, &group));
    CHECK(has_ranks(group, all, RANKS));
    CHECK_OK(dist_group_release(group));
}

static void check_splits(const struct rank *me)
{
    static const int32_t pairs[2][2] = { { 2, 0 }, { 3, 1 } };
    dist_group_t *group = NULL;
    CHECK_OK(dist_group_split(me->world, me->rank % 2, -me->rank, NULL, &group));
    CHECK(has_ranks(group, pairs[me->rank % 2], 2));
    CHECK_OK(dist_group_release(group));
    CHECK_OK(dist_group_split(me->world, DIST_NO_COLOR, 0, NULL, &group));
    CHECK(group == NULL);
}

static void check_groups_of_members(const struct rank *me)
{
    static const int32_t listed_ranks[] = { 1, 2, 3 };
    dist_group_new_options_t options = DIST_GROUP_NEW_OPTIONS_INIT;
    dist_group_t *group = NULL;
    char name[32];
    int i;
    options.use_local_synchronization = 1;
    options.name = "three";
    options.timeout_ms = 12345;
    options.connect_timeout_ms = LIMIT_MS;
    for (i = 0; i < 3 && me->rank != 0; i++) {
        CHECK_OK(dist_group_new(me->world, listed_ranks, 3, &options, &group));
        CHECK(has_ranks(group, listed_ranks, 3));
        CHECK(dist_group_name(group, name, sizeof(name)) == sizeof("three") && strcmp(name, "three") == 0);
        CHECK_OK(dist_group_release(group));
    }
    if (me->rank == 0) {
        CHECK_OK(dist_group_new(me->world, listed_ranks, 3, &options, &group));
        CHECK(group == NULL);
    }
    CHECK_OK(dist_barrier(me->world, NULL, NULL));
}

static void check_refusals(const struct rank *me)
{
    static const int32_t lists[2][2] = { { 0, 1 }, { 0, 2 } };
    static const int32_t repeated[] = { 1, 1 };
    static const int32_t outside[] = { 0, RANKS };
    static const int32_t negative[] = { -1 };
    dist_group_t *group = me->world;
    CHECK_REFUSED(dist_group_new(me->world, lists[me->rank == 3], 2, NULL, &group), DIST_ERR_MISMATCH, "[0, 1]");
    CHECK_MESSAGE("ranks 0, 1, 2 define");
    CHECK_MESSAGE("rank 3 defines");
    CHECK_MESSAGE("[0, 2]");
    CHECK(group == NULL);
    CHECK_REFUSED(dist_group_new(me->world, repeated, 2, NULL, &group), DIST_ERR_INVALID_ARGUMENT, "rank 1");
    CHECK_REFUSED(dist_group_new(me->world, outside, 2, NULL, &group), DIST_ERR_INVALID_ARGUMENT, "rank 4");
    CHECK_REFUSED(dist_group_new(me->world, negative, 1, NULL, &group), DIST_ERR_INVALID_ARGUMENT, "ranks is -1");
    CHECK_REFUSED(dist_group_split(me->world, -2, 0, NULL, &group), DIST_ERR_INVALID_ARGUMENT, "color is -2");
    CHECK_OK(dist_barrier(me->world, NULL, NULL));
}

static void run_all_checks(const struct rank *me)
{
    check_groups_from_lists(me);
    check_splits(me);
    check_groups_of_members(me);
    check_refusals(me);
    check_groups_from_lists(me);
}

static void *run_rank(void *arg)
{
    struct rank *me = arg;
    REQUIRE_OK(join_group(me->store, "world", me->rank, RANKS, &me->world));
    run_all_checks(me);
    CHECK_OK(dist_group_release(me->world));
    return NULL;
}

static void run_threads(void)
{
    struct rank ranks[RANKS];
    pthread_t running[RANKS];
    dist_store_t *store = new_store();
    int r;
    for (r = 0; r < RANKS; r++) {
        ranks[r].store = store;
        ranks[r].world = NULL;
        ranks[r].rank = r;
        REQUIRE(pthread_create(&running[r], NULL, run_rank, &ranks[r]) == 0);
    }
    for (r = 0; r < RANKS; r++) {
        REQUIRE(pthread_join(running[r], NULL) == 0);
    }
    CHECK_OK(dist_store_release(store));
}

/* Beyond the limit every rank gets an error that names the limit, and the existing groups stay
 * usable. */
static void check_group_limit(const struct rank *me)
{
    static dist_group_t *groups[MAX_GROUPS];
    dist_status_t status = DIST_OK;
    int n;
    int i;
    for (n = 0; n < MAX_GROUPS; n++) {
        status = dist_group_split(dist_world(), 0, 0, NULL, &groups[n]);
        if (status != DIST_OK) {
            break;
        }
    }
    CHECK(status == DIST_ERR_SYSTEM || status == DIST_ERR_PEER_FAILED);
    CHECK_MESSAGE("ulimit -n");
    CHECK(n > 0);
    printf("rank %d has %d groups: %s\n", me->rank, n, dist_last_error());
    CHECK_OK(dist_barrier(dist_world(), NULL, NULL));
    for (i = 0; i < n; i++) {
        CHECK_OK(dist_barrier(groups[i], NULL, NULL));
        CHECK_OK(dist_group_release(groups[i]));
    }
    CHECK_OK(dist_barrier(dist_world(), NULL, NULL));
}

int main(int argc, char **argv)
{
    struct rank me = { NULL, NULL, 0 };
    if (argc < 2) {
        run_threads();
        return check_report();
    }
    REQUIRE_OK(dist_init(NULL));
    me.world = dist_world();
    me.rank = dist_get_rank(me.world);
    if (strcmp(argv[1], "exhaust") == 0) {
        check_group_limit(&me);
    } else {
        run_all_checks(&me);
    }
    CHECK_OK(dist_finalize());
    return check_report();
}
