/*
 * Subgroups: created by all ranks, by the members only, and by splits; the mapping of ranks;
 * refused calls.
 *
 *     groups             ranks are threads
 *     groups processes   this process is one of four processes of a launcher
 *     groups exhaust     as processes; creates a group while a rank has no descriptor left
 *     groups many N      as processes; creates N groups, which need no descriptor
 *     groups world       as processes; uses the world once
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#define RANKS 4
/* More descriptors than any limit of a test allows. */
#define MAX_DESCRIPTORS 20000
/* The maximum number of groups that a process has at the same time. */
#define MAX_GROUPS 1000
/* The descriptors of a process for other purposes than its neighbours. */
#define OTHER_DESCRIPTORS 40

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

/* Returns the number of open descriptors of this process. */
static int open_descriptors(void)
{
    struct rlimit limit;
    int count = 0;
    int fd;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    for (fd = 0; fd < (int)limit.rlim_cur; fd++) {
        count += fcntl(fd, F_GETFD) >= 0;
    }
    return count;
}

/* If this rank or the creator of the group's memory has no descriptor left, every rank gets an
 * error that names the limit. The existing groups stay usable, and the next group can be made. */
static void check_exhausted_rank(int exhausted, const struct rank *me)
{
    static int descriptors[MAX_DESCRIPTORS];
    dist_group_t *first = NULL;
    dist_group_t *group = NULL;
    dist_status_t status;
    int n = 0;
    REQUIRE_OK(dist_group_split(dist_world(), 0, 0, NULL, &first));
    while (me->rank == exhausted && n < MAX_DESCRIPTORS) {
        descriptors[n] = dup(0);
        if (descriptors[n] < 0) {
            break;
        }
        n++;
    }
    CHECK_OK(dist_barrier(dist_world(), NULL, NULL));
    status = dist_group_split(dist_world(), 0, 0, NULL, &group);
    CHECK(status == DIST_ERR_SYSTEM || status == DIST_ERR_PEER_FAILED);
    CHECK_MESSAGE("ulimit -n");
    printf("rank %d: %s\n", me->rank, dist_last_error());
    while (n > 0) {
        close(descriptors[--n]);
    }
    CHECK_OK(dist_barrier(dist_world(), NULL, NULL));
    CHECK_OK(dist_barrier(first, NULL, NULL));
    REQUIRE_OK(dist_group_split(dist_world(), 0, 0, NULL, &group));
    CHECK_OK(dist_barrier(group, NULL, NULL));
    CHECK_OK(dist_group_release(group));
    CHECK_OK(dist_group_release(first));
}

/* A process needs one descriptor for each other process of the host. */
static void check_world(const struct rank *me)
{
    const int ranks = dist_get_world_size(me->world);
    float one = 1;
    float sum = 0;
    CHECK_OK(dist_all_reduce(me->world, &one, &sum, 1, DIST_F32, DIST_SUM, NULL, NULL));
    CHECK(sum == (float)ranks);
    CHECK(open_descriptors() <= ranks + OTHER_DESCRIPTORS);
    if (me->rank < 2) {
        printf("rank %d of %d has %d descriptors\n", me->rank, ranks, open_descriptors());
    }
}

/* Uses a group: a collective of all ranks, and a message from rank 0 to rank 1. */
static void use_group(dist_group_t *group, const struct rank *me)
{
    float one = 1;
    float sum = 0;
    CHECK_OK(dist_all_reduce(group, &one, &sum, 1, DIST_F32, DIST_SUM, NULL, NULL));
    CHECK(sum == (float)dist_get_world_size(group));
    CHECK_OK(me->rank == 0 ? dist_send(group, &one, 1, DIST_F32, 1, 0, NULL, NULL) : DIST_OK);
    CHECK_OK(me->rank == 1 ? dist_recv(group, &sum, 1, DIST_F32, 0, 0, NULL, NULL, NULL) : DIST_OK);
}

/* A process needs descriptors for its neighbours and not for its groups. */
static void check_many_groups(int count, const struct rank *me)
{
    static dist_group_t *groups[MAX_GROUPS];
    int before;
    int n;
    REQUIRE(count > 0 && count <= MAX_GROUPS);
    check_world(me);
    use_group(me->world, me);
    CHECK_OK(dist_barrier(me->world, NULL, NULL));
    before = open_descriptors();
    for (n = 0; n < count; n++) {
        REQUIRE_OK(dist_group_split(dist_world(), 0, 0, NULL, &groups[n]));
    }
    /* The first use of a group needs no descriptor either. */
    for (n = 0; n < count; n += 10) {
        use_group(groups[n], me);
    }
    CHECK(open_descriptors() <= before);
    printf("rank %d has %d descriptors with %d groups\n", me->rank, open_descriptors(), count);
    CHECK_OK(dist_barrier(dist_world(), NULL, NULL));
    for (n = 0; n < count; n++) {
        CHECK_OK(dist_group_release(groups[n]));
    }
    CHECK_OK(dist_barrier(dist_world(), NULL, NULL));
    CHECK(open_descriptors() <= before);
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
        check_exhausted_rank(0, &me);
        check_exhausted_rank(1, &me);
    } else if (strcmp(argv[1], "world") == 0) {
        check_world(&me);
    } else if (strcmp(argv[1], "many") == 0) {
        check_many_groups(argc > 2 ? atoi(argv[2]) : 0, &me);
    } else {
        run_all_checks(&me);
    }
    CHECK_OK(dist_finalize());
    return check_report();
}
