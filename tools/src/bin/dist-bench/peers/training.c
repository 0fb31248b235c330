/*
 * A rank of `dist-bench --training` that uses MPI.
 *
 *     training PREFIX
 *
 * The plan is in the file PREFIX.plan (format: training/plan.rs). Each rank writes a sample to
 * PREFIX.RANK.sample. The program has two schemes:
 *
 * openmpi: all gradients are in one vector. After the backward pass, one all-reduce sums the
 * vectors of all ranks. Then each rank divides the sums by the number of ranks.
 *
 * horovod: a thread of each rank wakes once per millisecond. The ranks agree on the gradients that
 * all ranks have computed, by a bitwise AND of one bit per gradient. The thread copies these
 * gradients into a fusion buffer of up to 128 MiB, sums it with one all-reduce, divides it, and
 * copies it back. It reduces a single gradient in place. Unlike Horovod's thread, this thread
 * sleeps between steps, so that it does not disturb steps without communication.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define CYCLE_NS 1000000L
#define FUSION_BYTES ((size_t)128 << 20)
#define WORD_BITS 64

static int rank, ranks;

static struct plan {
    char candidate[16], compute[16];
    long gradient_ns, last_rank_ns;
    int steps, warm_up, n;
    size_t *counts, *offsets, total;
} plan;

static float *gradients;
static uint64_t bytes_copied, wrong;

static void fail(const char *what)
{
    fprintf(stderr, "rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}

static void *allocate(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, bytes + 1) != 0) {
        fail("cannot allocate memory");
    }
    memset(memory, 0, bytes);
    return memory;
}

static void read_plan(const char *path_prefix)
{
    char name[4096];
    FILE *file;
    int i;
    snprintf(name, sizeof(name), "%s.plan", path_prefix);
    file = fopen(name, "r");
    if (file == NULL || fscanf(file, "%15s %15s %ld %ld %d %d %d", plan.candidate, plan.compute, &plan.gradient_ns,
                               &plan.last_rank_ns, &plan.steps, &plan.warm_up, &plan.n) != 7 || plan.n < 1) {
        fail("cannot read the plan");
    }
    plan.counts = allocate(sizeof(size_t) * (size_t)plan.n);
    plan.offsets = allocate(sizeof(size_t) * (size_t)plan.n);
    for (i = 0; i < plan.n; i++) {
        if (fscanf(file, "%zu", &plan.counts[i]) != 1) {
            fail("the plan has too few element counts");
        }
        plan.offsets[i] = plan.total;
        plan.total += plan.counts[i];
    }
    fclose(file);
}

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void sleep_until(int64_t when)
{
    struct timespec time = { when / 1000000000, when % 1000000000 };
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) != 0) {
    }
}

/* Computes one gradient. */
static void compute(void)
{
    long length = rank + 1 == ranks ? plan.last_rank_ns : plan.gradient_ns;
    int64_t end = now_ns() + length;
    if (length == 0 || strcmp(plan.compute, "none") == 0) {
        return;
    }
    if (strcmp(plan.compute, "sleep") == 0) {
        sleep_until(end);
        return;
    }
    while (now_ns() < end) {
    }
}

/* Returns the value of all elements of a gradient without the factor rank + 1. */
static float base_value(int step, int param)
{
    return (float)(1 + (step + param) % 4);
}

static void fill(int step, int param)
{
    float value = (float)(rank + 1) * base_value(step, param), *gradient = gradients + plan.offsets[param];
    size_t i;
    for (i = 0; i < plan.counts[param]; i++) {
        gradient[i] = value;
    }
}

/* Counts the wrong elements among three elements of each averaged gradient. */
static void check(int step)
{
    int param, i;
    for (param = 0; param < plan.n; param++) {
        float wanted = (float)(ranks + 1) / 2 * base_value(step, param), *gradient = gradients + plan.offsets[param];
        size_t last = plan.counts[param] - 1, positions[3] = { 0, last / 2, last };
        for (i = 0; i < 3; i++) {
            float error = gradient[positions[i]] - wanted;
            wrong += !(error < 0.01f * wanted && error > -0.01f * wanted);
        }
    }
}

static void divide(float *values, size_t count)
{
    float factor = 1.0f / (float)ranks;
    size_t i;
    for (i = 0; i < count; i++) {
        values[i] *= factor;
    }
}

static void sum(float *values, size_t count)
{
    if (count > INT32_MAX) {
        fail("too many elements for one MPI_Allreduce");
    }
    MPI_Allreduce(MPI_IN_PLACE, values, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

/*
 * The state that the two threads of Horovod's scheme share. The main thread calls MPI only while
 * `left` is 0.
 */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint64_t *ready_bits, *agreed_bits;
static int words, left, is_over;
static float *fusion;

/* Sums these gradients with one all-reduce. */
static void reduce_fused(const int *params, int n)
{
    size_t at = 0, bytes;
    int i;
    if (n == 1) {
        sum(gradients + plan.offsets[params[0]], plan.counts[params[0]]);
        divide(gradients + plan.offsets[params[0]], plan.counts[params[0]]);
        return;
    }
    for (i = 0; i < n; i++) {
        memcpy(fusion + at, gradients + plan.offsets[params[i]], plan.counts[params[i]] * sizeof(float));
        at += plan.counts[params[i]];
    }
    sum(fusion, at);
    divide(fusion, at);
    bytes_copied += 2 * at * sizeof(float);
    at = 0;
    for (i = 0; i < n; i++) {
        bytes = plan.counts[params[i]] * sizeof(float);
        memcpy(gradients + plan.offsets[params[i]], fusion + at, bytes);
        at += plan.counts[params[i]];
    }
}

/*
 * Runs one cycle: agrees on the gradients that all ranks have, and reduces them. `params` has
 * enough entries for all gradients.
 */
static void cycle(int *params)
{
    int param, n = 0, done = 0;
    size_t bytes = 0;
    pthread_mutex_lock(&lock);
    memcpy(agreed_bits, ready_bits, sizeof(uint64_t) * (size_t)words);
    pthread_mutex_unlock(&lock);
    MPI_Allreduce(MPI_IN_PLACE, agreed_bits, words, MPI_UINT64_T, MPI_BAND, MPI_COMM_WORLD);
    for (param = plan.n - 1; param >= 0; param--) {
        size_t own = plan.counts[param] * sizeof(float);
        if (!(agreed_bits[param / WORD_BITS] >> (param % WORD_BITS) & 1)) {
            continue;
        }
        if (n > 0 && bytes + own > FUSION_BYTES) {
            reduce_fused(params, n);
            n = 0;
            bytes = 0;
        }
        params[n++] = param;
        bytes += own;
        done++;
    }
    if (n > 0) {
        reduce_fused(params, n);
    }
    pthread_mutex_lock(&lock);
    for (param = 0; param < words; param++) {
        ready_bits[param] &= ~agreed_bits[param];
    }
    left -= done;
    if (left == 0) {
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
}

static void *run_cycles(void *params)
{
    int64_t next = 0;
    for (;;) {
        pthread_mutex_lock(&lock);
        while (left == 0 && !is_over) {
            pthread_cond_wait(&changed, &lock);
        }
        if (is_over) {
            pthread_mutex_unlock(&lock);
            return NULL;
        }
        pthread_mutex_unlock(&lock);
        sleep_until(next);
        next = now_ns() + CYCLE_NS;
        cycle(params);
    }
}

static void set_left(int number, int ends)
{
    pthread_mutex_lock(&lock);
    left = number;
    is_over = ends;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void mark_ready(int param)
{
    pthread_mutex_lock(&lock);
    ready_bits[param / WORD_BITS] |= (uint64_t)1 << (param % WORD_BITS);
    pthread_mutex_unlock(&lock);
}

static void await_all(void)
{
    pthread_mutex_lock(&lock);
    while (left > 0) {
        pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
}

/* Runs one step, and returns its time in nanoseconds. */
static int64_t run_step(int step, int communicates, int is_horovod)
{
    int64_t start, end;
    int param;
    MPI_Barrier(MPI_COMM_WORLD);
    start = now_ns();
    bytes_copied = communicates ? 0 : bytes_copied;
    if (communicates && is_horovod) {
        set_left(plan.n, 0);
    }
    for (param = plan.n - 1; param >= 0; param--) {
        compute();
        fill(step, param);
        if (communicates && is_horovod) {
            mark_ready(param);
        }
    }
    if (communicates && is_horovod) {
        await_all();
    } else if (communicates) {
        sum(gradients, plan.total);
        divide(gradients, plan.total);
    }
    end = now_ns();
    if (communicates) {
        check(step);
    }
    return end - start;
}

static long peak_bytes(void)
{
    char line[256];
    long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        sscanf(line, "VmHWM: %ld", &kib);
    }
    if (file != NULL) {
        fclose(file);
    }
    return kib * 1024;
}

static void write_sample(const char *path_prefix, const int64_t *times)
{
    char name[4096];
    FILE *file;
    int i;
    snprintf(name, sizeof(name), "%s.%d.sample", path_prefix, rank);
    file = fopen(name, "w");
    if (file == NULL) {
        fail("cannot write the sample");
    }
    fprintf(file, "%llu %llu %ld\n", (unsigned long long)wrong, (unsigned long long)bytes_copied, peak_bytes());
    for (i = 0; i < plan.steps; i++) {
        fprintf(file, "%lld %lld\n", (long long)times[2 * i], (long long)times[2 * i + 1]);
    }
    if (fclose(file) != 0) {
        fail("cannot write the sample");
    }
}

int main(int argc, char **argv)
{
    int provided, is_horovod, step, *params;
    int64_t *times;
    float *values;
    pthread_t thread;
    size_t i;
    /* If the launcher is killed, the kernel kills this rank. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 2 || provided < MPI_THREAD_SERIALIZED) {
        fail("usage: training PREFIX, with an MPI that supports MPI_THREAD_SERIALIZED");
    }
    read_plan(argv[1]);
    is_horovod = strcmp(plan.candidate, "horovod") == 0;
    /* The values of the parameters, which every candidate allocates. */
    values = allocate(plan.total * sizeof(float));
    gradients = allocate(plan.total * sizeof(float));
    for (i = 0; i < plan.total; i++) {
        values[i] = 1;
    }
    words = (plan.n + WORD_BITS - 1) / WORD_BITS;
    ready_bits = allocate(sizeof(uint64_t) * (size_t)words);
    agreed_bits = allocate(sizeof(uint64_t) * (size_t)words);
    params = allocate(sizeof(int) * (size_t)plan.n);
    times = allocate(sizeof(int64_t) * 2 * (size_t)(plan.steps + plan.warm_up));
    if (is_horovod) {
        fusion = allocate(FUSION_BYTES);
        if (pthread_create(&thread, NULL, run_cycles, params) != 0) {
            fail("cannot create the thread");
        }
    }
    for (step = 0; step < plan.steps + plan.warm_up; step++) {
        times[2 * step] = run_step(step, 1, is_horovod);
        times[2 * step + 1] = run_step(step, 0, is_horovod);
    }
    if (is_horovod) {
        set_left(0, 1);
        pthread_join(thread, NULL);
    }
    write_sample(argv[1], times + 2 * (size_t)plan.warm_up);
    free(values);
    MPI_Finalize();
    return 0;
}
