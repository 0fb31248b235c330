/*
 * The loss curve of a training on several ranks is that of one process on the same batches. The
 * weights have the same bits on all ranks after each epoch, and in the canonical mode for every
 * placement of the ranks on hosts.
 */
#include "check.h"

#include <math.h>
#include <stddef.h>

#define INPUTS 6
#define HIDDEN 40
#define BATCH 48
#define STEPS 100
#define EPOCH 20
#define MOST_RANKS 8

struct place {
    dist_store_t *store;
    dist_group_t *group;
    const char *hosts; /* the host of each rank, a letter; NULL for one host */
    void (*train)(struct place *me);
    int rank, size;
    uint64_t flags;
    uint64_t hash; /* of the weights */
    double losses[STEPS];
};

static uint64_t hash_bytes(const void *bytes, size_t n)
{
    const unsigned char *at = bytes;
    uint64_t hash = 14695981039346656037u;
    size_t i;
    for (i = 0; i < n; i++) {
        hash = (hash ^ at[i]) * 1099511628211u;
    }
    return hash;
}

#define REAL float
#define DTYPE DIST_F32
#define NAME f32
#include "reducer_curve.h"

#define REAL double
#define DTYPE DIST_F64
#define NAME f64
#include "reducer_curve.h"

static void *rank_main(void *arg)
{
    struct place *me = arg;
    char backend_options[32] = "";
    dist_group_options_t options = DIST_GROUP_OPTIONS_INIT;
    if (me->hosts != NULL) {
        sprintf(backend_options, "host_id=%c", me->hosts[me->rank]);
    }
    options.store = me->store;
    options.name = "curve";
    options.fields = DIST_FIELD_RANK;
    options.rank = me->rank;
    options.world_size = me->size;
    options.backend_options = backend_options;
    options.connect_timeout_ms = LIMIT_MS;
    options.timeout_ms = LIMIT_MS;
    REQUIRE_OK(dist_group_create(&options, &me->group));
    me->train(me);
    CHECK_OK(dist_group_release(me->group));
    return NULL;
}

/* Rank 0 of a training. */
static struct place train_on(int size, const char *hosts, uint64_t flags, void (*train)(struct place *me))
{
    static struct place ranks[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    dist_store_t *store = new_store();
    int r;
    memset(ranks, 0, sizeof(ranks));
    for (r = 0; r < size; r++) {
        ranks[r].store = store;
        ranks[r].hosts = hosts;
        ranks[r].train = train;
        ranks[r].rank = r;
        ranks[r].size = size;
        ranks[r].flags = flags;
        REQUIRE(pthread_create(&threads[r], NULL, rank_main, &ranks[r]) == 0);
    }
    for (r = 0; r < size; r++) {
        REQUIRE(pthread_join(threads[r], NULL) == 0);
        CHECK(ranks[r].hash == ranks[0].hash);
    }
    CHECK_OK(dist_store_release(store));
    return ranks[0];
}

static void check_curves(void (*train)(struct place *me), double tolerance)
{
    static const int sizes[] = { 2, 4, 8 };
    struct place one_rank = train_on(1, NULL, 0, train);
    double largest = 0;
    size_t s;
    int step;
    CHECK(one_rank.losses[STEPS - 1] < one_rank.losses[0] / 2);
    for (s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        struct place all_ranks = train_on(sizes[s], NULL, 0, train);
        for (step = 0; step < STEPS; step++) {
            double distance = fabs(all_ranks.losses[step] - one_rank.losses[step]) / one_rank.losses[step];
            largest = distance > largest ? distance : largest;
        }
    }
    printf("the losses differ by %g at most\n", largest);
    CHECK(largest <= tolerance);
}

static void check_placements(void (*train)(struct place *me))
{
    static const char *const hosts[] = { "aaaa", "aabb", "abab", "abbb", "abcd", "abca" };
    struct place first = train_on(4, hosts[0], DIST_REDUCER_CANONICAL, train);
    size_t h;
    for (h = 1; h < sizeof(hosts) / sizeof(hosts[0]); h++) {
        struct place other = train_on(4, hosts[h], DIST_REDUCER_CANONICAL, train);
        CHECK(other.hash == first.hash);
    }
}

int main(void)
{
    check_curves(train_f32, 1e-5);
    check_curves(train_f64, 1e-12);
    check_placements(train_f32);
    check_placements(train_f64);
    return check_report();
}
