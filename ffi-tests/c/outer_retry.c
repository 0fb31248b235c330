/*
 * A rank of a training with an outer optimizer; a launcher starts it. One rank is killed in an
 * outer step.
 *
 *     outer_retry DELAY     rank 1 is killed DELAY microseconds after the start of the
 *                           outer step of fragment 1 in round 2
 *
 * After the failure the survivors check that the previously committed fragments are unchanged.
 * At the end all ranks have the same global values. Rank 0 prints the number of ranks in each
 * outer step.
 */
#define _DEFAULT_SOURCE

#include "check.h"

#include <signal.h>
#include <unistd.h>

#define FRAGMENTS 3
#define COUNT 300000 /* elements of each parameter; each fragment has one */
#define SYNC_INTERVAL 6
#define ROUNDS 4

static float values[FRAGMENTS][COUNT], before[FRAGMENTS][COUNT];
static dist_group_t *group;
static dist_outer_t *outer;

static void *kill_after_delay(void *delay)
{
    usleep(*(useconds_t *)delay);
    kill(getpid(), SIGKILL);
    return NULL;
}

static void create_outer(void)
{
    static const char *const names[FRAGMENTS] = { "a", "b", "c" };
    static const dist_param_t init = DIST_PARAM_INIT;
    dist_outer_options_t options = DIST_OUTER_OPTIONS_INIT;
    dist_param_t params[FRAGMENTS];
    int f;
    for (f = 0; f < FRAGMENTS; f++) {
        params[f] = init;
        params[f].name = names[f];
        params[f].data = values[f];
        params[f].count = COUNT;
        params[f].dtype = DIST_F32;
    }
    options.every = SYNC_INTERVAL;
    options.fragments = FRAGMENTS;
    REQUIRE_OK(dist_outer_create(group, params, FRAGMENTS, &options, &outer));
}

static const float *global_values(int fragment)
{
    float *global = NULL;
    REQUIRE_OK(dist_outer_values(outer, (size_t)fragment, &global, NULL, NULL));
    return global;
}

/* All ranks have the same global values. */
static void check_equal_on_all(int fragment)
{
    static float low[COUNT], high[COUNT];
    REQUIRE_OK(dist_all_reduce(group, global_values(fragment), low, COUNT, DIST_F32, DIST_MIN, NULL, NULL));
    REQUIRE_OK(dist_all_reduce(group, global_values(fragment), high, COUNT, DIST_F32, DIST_MAX, NULL, NULL));
    CHECK(memcmp(low, high, sizeof(low)) == 0);
}

static void recover(int due_fragment)
{
    dist_group_t *survivors = NULL;
    int f;
    for (f = 0; f < FRAGMENTS; f++) {
        CHECK(f == due_fragment || memcmp(global_values(f), before[f], sizeof(before[f])) == 0);
    }
    REQUIRE_OK(dist_group_shrink(group, NULL, &survivors));
    group = survivors;
    REQUIRE_OK(dist_outer_regroup(outer, group));
    for (f = 0; f < FRAGMENTS; f++) {
        CHECK(f == due_fragment || memcmp(global_values(f), before[f], sizeof(before[f])) == 0);
    }
}

int main(int argc, char **argv)
{
    static useconds_t delay;
    int step, f, i, origin;
    REQUIRE(argc == 2);
    delay = (useconds_t)atoi(argv[1]);
    REQUIRE_OK(dist_init(NULL));
    group = dist_world();
    origin = dist_get_rank(group);
    create_outer();
    for (step = 1; step <= SYNC_INTERVAL * ROUNDS; step++) {
        int due_fragment = step % 2 == 0 ? (step / 2 - 1) % FRAGMENTS : -1;
        int64_t fragment = -2;
        for (f = 0; f < FRAGMENTS; f++) {
            for (i = 0; i < COUNT; i++) {
                values[f][i] += (float)((i + 7 * origin + step) % 101) * 1e-3f;
            }
        }
        if (step == SYNC_INTERVAL + 4 && origin == 1) {
            pthread_t killer;
            REQUIRE(pthread_create(&killer, NULL, kill_after_delay, &delay) == 0);
        }
        while (dist_outer_step(outer, DIST_VOTE_COMMIT, &fragment, NULL) != DIST_OK) {
            recover(due_fragment);
        }
        CHECK(fragment == due_fragment);
        if (due_fragment >= 0) {
            memcpy(before[due_fragment], global_values(due_fragment), sizeof(before[due_fragment]));
        }
        if (due_fragment >= 0 && origin == 0) {
            printf("step %d ranks %d\n", step, (int)dist_get_world_size(group));
        }
    }
    for (f = 0; f < FRAGMENTS; f++) {
        check_equal_on_all(f);
    }
    CHECK_OK(dist_outer_release(outer));
    CHECK_OK(dist_finalize());
    return check_report();
}
