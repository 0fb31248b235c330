/*
 * Measures the time of a 4-byte dist_all_reduce with a label, compared with the same call
 * without options. The calls use 100 labels in rotation, as the buckets of a model do. The
 * program uses only the public header:
 *
 *     cc -std=c99 -O2 -Iinclude ffi-tests/perf/bench_label.c target/release/libdist.a \
 *         -lpthread -ldl -lm -o target/bench_label
 *     target/release/distrun --nproc-per-node 2 target/bench_label [TURNS]
 *
 * Both kinds of calls alternate in turns of 1,000 calls. Rank 0 prints the medians, and the
 * median and quartiles of the ratio of neighbouring turns.
 */
#define _POSIX_C_SOURCE 200809L

#include <dist.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define CALLS 1000
#define LABELS 100
#define MAX_TURNS 5000

static char labels[LABELS][DIST_LABEL_BYTES + 1];

static void check(dist_status_t status)
{
    if (status != DIST_OK) {
        fprintf(stderr, "%s: %s\n", dist_status_string(status), dist_last_error());
        exit(3);
    }
}

static double now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Returns the nanoseconds per call of one turn. */
static double time_turn(dist_group_t *world, int is_labelled)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    float value = 0;
    double begin = now_ns();
    int i;
    for (i = 0; i < CALLS; i++) {
        options.label = labels[i % LABELS];
        check(dist_all_reduce(world, &value, &value, 1, DIST_F32, DIST_SUM, is_labelled ? &options : NULL, NULL));
    }
    return (now_ns() - begin) / CALLS;
}

int main(int argc, char **argv)
{
    static double plain[MAX_TURNS], labelled[MAX_TURNS], ratio[MAX_TURNS];
    int turns = argc > 1 ? atoi(argv[1]) : 1000;
    dist_group_t *world;
    int i;
    if (turns < 1 || turns > MAX_TURNS) {
        fprintf(stderr, "usage: bench_label [TURNS], 1 to %d\n", MAX_TURNS);
        return 2;
    }
    check(dist_init(NULL));
    world = dist_world();
    for (i = 0; i < LABELS; i++) {
        snprintf(labels[i], sizeof labels[i], "layer%d.attention.weight", i);
    }
    for (i = 0; i < turns; i++) {
        plain[i] = time_turn(world, 0);
        labelled[i] = time_turn(world, 1);
        ratio[i] = labelled[i] / plain[i];
    }
    if (dist_get_rank(world) == 0) {
        qsort(plain, (size_t)turns, sizeof plain[0], compare_doubles);
        qsort(labelled, (size_t)turns, sizeof labelled[0], compare_doubles);
        qsort(ratio, (size_t)turns, sizeof ratio[0], compare_doubles);
        printf("without a label %.0f ns, with a label %.0f ns; ratio %.3f (quartiles %.3f, %.3f)\n", plain[turns / 2],
               labelled[turns / 2], ratio[turns / 2], ratio[turns / 4], ratio[turns * 3 / 4]);
    }
    check(dist_finalize());
    return 0;
}
