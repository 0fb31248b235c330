/*
 * Measures the time of dist_all_reduce for sums of f32 vectors of several sizes, as a sanity
 * figure. The program uses only the public header:
 *
 *     cc -std=c99 -O2 -Iinclude ffi-tests/perf/bench_all_reduce.c target/release/libdist.a \
 *         -lpthread -ldl -lm -o target/bench_all_reduce
 *     target/release/distrun --nproc-per-node 2 target/bench_all_reduce
 *
 * The sizes alternate in turns of several calls, so that other load on the machine affects all
 * sizes. Each call is timed separately on every rank; the table shows the slowest rank. The last
 * result of each turn is checked.
 */
#define _POSIX_C_SOURCE 200809L

#include <dist.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_SIZES 32
#define TURNS 20

struct size {
    size_t bytes;
    size_t count;
    size_t calls;    /* per turn */
    size_t measured; /* samples so far */
    double *us;      /* one sample per call */
};

struct plan {
    struct size sizes[MAX_SIZES];
    size_t n_sizes;
    size_t iterations; /* calls of each size; 0: automatic */
    int is_rewritten;  /* write the input again before each call, as a training step does */
};

static const char HELP[] =
    "usage: distrun --nproc-per-node N bench_all_reduce [options]\n"
    "\n"
    "Times dist_all_reduce (f32, sum, out of place) and prints, in microseconds, the median, the\n"
    "99th percentile and the minimum of each size, on the rank where the median is largest.\n"
    "\n"
    "  --sizes LIST       bytes, separated by commas, with K or M; 4,64,1K,16K,64K,256K,1M,4M\n"
    "  --iterations N     calls of each size; by default 20000, fewer of large ones\n"
    "  --rewrite          write the input anew before each call, outside the time that counts\n"
    "  --help             this text\n"
    "\n"
    "Environment: DIST_SHM_SLOT_BYTES, DIST_SPIN_US and others, see docs/environment.md.\n";

static void check(dist_status_t status)
{
    if (status != DIST_OK) {
        fprintf(stderr, "%s: %s\n", dist_status_string(status), dist_last_error());
        exit(3);
    }
}

static void fail_usage(const char *message, const char *value)
{
    fprintf(stderr, "bench_all_reduce: %s \"%s\"; see --help\n", message, value);
    exit(2);
}

static size_t parse_number(const char *text, const char **end)
{
    char *number_end;
    unsigned long long number = strtoull(text, &number_end, 10);
    if (number_end == text || *text == '-') {
        fail_usage("not a number:", text);
    }
    if (*number_end == 'K' || *number_end == 'M') {
        number <<= *number_end == 'K' ? 10 : 20;
        number_end++;
    }
    *end = number_end;
    return (size_t)number;
}

static void parse_sizes(struct plan *plan, const char *list)
{
    const char *at = list;
    for (plan->n_sizes = 0;; at++) {
        size_t bytes = parse_number(at, &at);
        if (plan->n_sizes == MAX_SIZES || bytes == 0 || bytes % sizeof(float) != 0 || (*at != ',' && *at != '\0')) {
            fail_usage("not a list of sizes, each a multiple of 4:", list);
        }
        memset(&plan->sizes[plan->n_sizes], 0, sizeof(struct size));
        plan->sizes[plan->n_sizes].bytes = bytes;
        plan->sizes[plan->n_sizes].count = bytes / sizeof(float);
        plan->n_sizes++;
        if (*at == '\0') {
            return;
        }
    }
}

static void parse_options(struct plan *plan, int argc, char **argv)
{
    memset(plan, 0, sizeof *plan);
    parse_sizes(plan, "4,64,1K,16K,64K,256K,1M,4M");
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--help") == 0) {
            fputs(HELP, stdout);
            exit(0);
        } else if (strcmp(argv[i], "--rewrite") == 0) {
            plan->is_rewritten = 1;
        } else if (strcmp(argv[i], "--sizes") == 0 && value != NULL) {
            parse_sizes(plan, value);
            i++;
        } else if (strcmp(argv[i], "--iterations") == 0 && value != NULL) {
            const char *end;
            plan->iterations = parse_number(value, &end);
            if (plan->iterations == 0 || *end != '\0') {
                fail_usage("not a number of iterations:", value);
            }
            i++;
        } else {
            fail_usage("unknown or incomplete option", argv[i]);
        }
    }
}

/* Sets the number of calls per size, equal on all ranks, from an estimate of the time of one
 * call. */
static void choose_call_counts(struct plan *plan)
{
    for (size_t i = 0; i < plan->n_sizes; i++) {
        struct size *size = &plan->sizes[i];
        size_t guess = (size_t)(2e5 / (2.0 + (double)size->bytes / 2000.0));
        size_t n_calls = plan->iterations != 0 ? plan->iterations : guess < 20000 ? guess : 20000;
        size->calls = (n_calls + TURNS - 1) / TURNS;
        size->us = malloc(size->calls * TURNS * sizeof(double));
        if (size->us == NULL) {
            fail_usage("no memory for", "the samples");
        }
    }
}

static double now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

/* Fills the input of a rank with small whole numbers, whose sums are exact in f32. */
static void fill(float *vector, size_t count, int rank)
{
    for (size_t i = 0; i < count; i++) {
        vector[i] = (float)((rank + 1) * (int)(i % 7 + 1));
    }
}

static void check_sums(const float *vector, size_t count, int ranks)
{
    for (size_t i = 0; i < count; i++) {
        float expected = (float)(ranks * (ranks + 1) / 2 * (int)(i % 7 + 1));
        if (vector[i] != expected) {
            fprintf(stderr, "wrong result: element %zu of %zu is %g, not %g\n", i, count, vector[i], expected);
            exit(1);
        }
    }
}

/* Measures the calls of one size in one turn. The first call is not counted, since the caches
 * have another size's data. */
static void measure_turn(const struct plan *plan, struct size *size, float *send, float *recv)
{
    int rank = (int)dist_get_rank(dist_world());
    memset(recv, 0, size->bytes);
    fill(send, size->count, rank);
    for (size_t call = 0; call <= size->calls; call++) {
        if (plan->is_rewritten) {
            fill(send, size->count, rank);
        }
        double start = now_us();
        check(dist_all_reduce(dist_world(), send, recv, size->count, DIST_F32, DIST_SUM, NULL, NULL));
        double end = now_us();
        if (call > 0) {
            size->us[size->measured++] = end - start;
        }
    }
    check_sums(recv, size->count, (int)dist_get_world_size(dist_world()));
}

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Returns median, 99th percentile and minimum of the rank with the largest median. */
static void slowest_rank(struct size *size, double statistics[3])
{
    int ranks = (int)dist_get_world_size(dist_world());
    double *all = malloc((size_t)ranks * 3 * sizeof(double));
    if (all == NULL) {
        fail_usage("no memory for", "the figures");
    }
    qsort(size->us, size->measured, sizeof(double), compare_doubles);
    double mine[3] = {size->us[size->measured / 2], size->us[size->measured * 99 / 100], size->us[0]};
    check(dist_all_gather(dist_world(), mine, all, 3, DIST_F64, NULL, NULL));
    memcpy(statistics, all, 3 * sizeof(double));
    for (int rank = 1; rank < ranks; rank++) {
        if (all[3 * rank] > statistics[0]) {
            memcpy(statistics, &all[3 * rank], 3 * sizeof(double));
        }
    }
    free(all);
}

int main(int argc, char **argv)
{
    struct plan plan;
    parse_options(&plan, argc, argv);
    choose_call_counts(&plan);
    check(dist_init(NULL));

    size_t largest = 0;
    for (size_t i = 0; i < plan.n_sizes; i++) {
        largest = plan.sizes[i].bytes > largest ? plan.sizes[i].bytes : largest;
    }
    float *send = malloc(largest), *recv = malloc(largest);
    if (send == NULL || recv == NULL) {
        fail_usage("no memory for", "the vectors");
    }
    for (int turn = 0; turn < TURNS; turn++) {
        for (size_t i = 0; i < plan.n_sizes; i++) {
            measure_turn(&plan, &plan.sizes[i], send, recv);
        }
    }

    int is_first = dist_get_rank(dist_world()) == 0;
    if (is_first) {
        printf("dist_all_reduce, f32, sum, %d ranks, %s input\n", (int)dist_get_world_size(dist_world()),
               plan.is_rewritten ? "rewritten" : "unchanged");
        printf("%10s %10s %8s %11s %11s %11s\n", "bytes", "count", "calls", "median us", "p99 us", "min us");
    }
    for (size_t i = 0; i < plan.n_sizes; i++) {
        struct size *size = &plan.sizes[i];
        double statistics[3];
        slowest_rank(size, statistics);
        if (is_first) {
            printf("%10zu %10zu %8zu %11.2f %11.2f %11.2f\n", size->bytes, size->count, size->measured, statistics[0],
                   statistics[1], statistics[2]);
        }
        free(size->us);
    }
    free(send);
    free(recv);
    check(dist_finalize());
    return 0;
}
