/*
 * Measures the gain from the fusion of small collectives in a batch: 64 dist_all_reduce of 64
 * bytes (f32, maximum) in one batch. The baseline is a batch that may not fuse the same calls,
 * since each names its algorithm. The program uses only the public header:
 *
 *     cc -std=c99 -O2 -Iinclude ffi-tests/perf/bench_batch.c target/release/libdist.a \
 *         -lpthread -ldl -lm -o target/bench_batch
 *     target/release/distrun --nproc-per-node 2 target/bench_batch [CALLS] [BYTES] [ALGORITHM]
 *
 * Both variants alternate, so that other load on the machine affects both. Rank 0 prints the
 * medians and their ratio.
 */
#define _POSIX_C_SOURCE 200809L

#include <dist.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_CALLS 1024
#define TURNS 501

static void check(dist_status_t status)
{
    if (status != DIST_OK) {
        fprintf(stderr, "%s: %s\n", dist_status_string(status), dist_last_error());
        exit(3);
    }
}

static double now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double time_batch(float *vectors, size_t calls, size_t count, const dist_call_options_t *options)
{
    double start;
    size_t i;
    check(dist_barrier(dist_world(), NULL, NULL));
    start = now_us();
    check(dist_batch_begin(NULL, 0));
    for (i = 0; i < calls; i++) {
        float *vector = vectors + i * count;
        check(dist_all_reduce(dist_world(), vector, vector, count, DIST_F32, DIST_MAX, options, NULL));
    }
    check(dist_batch_end(NULL));
    return now_us() - start;
}

int main(int argc, char **argv)
{
    static double us[2][TURNS];
    size_t calls = argc > 1 ? strtoul(argv[1], NULL, 10) : 64;
    size_t bytes = argc > 2 ? strtoul(argv[2], NULL, 10) : 64;
    dist_call_options_t alone = DIST_CALL_OPTIONS_INIT;
    size_t count = bytes / sizeof(float);
    float *vectors;
    size_t i;
    int turn, fused;
    alone.algorithm = argc > 3 ? argv[3] : "one_shot";
    if (calls == 0 || calls > MAX_CALLS || count == 0) {
        fprintf(stderr, "usage: bench_batch [CALLS (1 to %d)] [BYTES (4 or more)] [ALGORITHM]\n", MAX_CALLS);
        return 2;
    }
    check(dist_init(NULL));
    vectors = malloc(calls * count * sizeof(float));
    if (vectors == NULL) {
        fprintf(stderr, "bench_batch: no memory\n");
        return 3;
    }
    for (i = 0; i < calls * count; i++) {
        vectors[i] = (float)i;
    }
    for (turn = 0; turn < TURNS; turn++) {
        for (fused = 0; fused < 2; fused++) {
            us[fused][turn] = time_batch(vectors, calls, count, fused ? NULL : &alone);
        }
    }
    qsort(us[0], TURNS, sizeof(double), compare_doubles);
    qsort(us[1], TURNS, sizeof(double), compare_doubles);
    if (dist_get_rank(dist_world()) == 0) {
        printf("%zu calls of %zu bytes: alone %.1f us, fused %.1f us, ratio %.2f\n", calls, count * sizeof(float),
               us[0][TURNS / 2], us[1][TURNS / 2], us[0][TURNS / 2] / us[1][TURNS / 2]);
    }
    free(vectors);
    check(dist_finalize());
    return 0;
}
