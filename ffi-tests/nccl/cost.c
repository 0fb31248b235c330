/*
 * Compares the time of all_reduce over a group with direct NCCL calls, for `cargo xtask gpu`.
 * The ranks are threads, each with a device and a stream. They alternate between both ways with
 * the same buffers. The program prints one line per size:
 *
 *     BYTES  enqueue: OURS us, NCCL us, RATIO   done: OURS us, NCCL us, RATIO
 *
 * "Enqueue" is the time per call of a series until the last call returns; "done" is the time of
 * a call and the wait for its stream. Each value is the median of the rounds on the slowest
 * rank. The program checks the results but has no limit for the times. The arguments are the
 * number of ranks and the number of rounds. DIST_NCCL_LIB names NCCL; without it the loader
 * finds it.
 */
#include "ranks.h"

#include <dlfcn.h>
#include <time.h>

#define MAX_ROUNDS 101
#define CALLS_PER_ROUND 50

static struct {
    ncclResult_t (*id)(ncclUniqueId *);
    ncclResult_t (*init)(ncclComm_t *, int, ncclUniqueId, int);
    ncclResult_t (*all_reduce)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
    ncclResult_t (*finalize)(ncclComm_t);
    ncclResult_t (*destroy)(ncclComm_t);
} nccl;

static int rounds;
static pthread_barrier_t rank_barrier;
static ncclUniqueId id;

/* The measured times of each rank, by way (libdist or NCCL), quantity and round. */
static double measured[MAX_RANKS][2][2][MAX_ROUNDS];

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void load_nccl(void)
{
    const char *name = getenv("DIST_NCCL_LIB");
    void *library = dlopen(name != NULL ? name : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    static const char *const names[] = { "ncclGetUniqueId", "ncclCommInitRank", "ncclAllReduce", "ncclCommFinalize",
                                         "ncclCommDestroy" };
    void *found[sizeof names / sizeof names[0]];
    REQUIRE(library != NULL);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        found[i] = dlsym(library, names[i]);
        REQUIRE(found[i] != NULL);
    }
    /* C does not convert between function pointers and object pointers. */
    memcpy(&nccl, found, sizeof nccl);
}

struct calls {
    struct rank *self;
    ncclComm_t comm;
    float *memory;
    size_t count;
};

static void run_call(const struct calls *calls, int is_libdist, const dist_call_options_t *options)
{
    if (is_libdist) {
        CHECK_OK(dist_all_reduce(calls->self->group, calls->memory, calls->memory, calls->count, DIST_F32, DIST_MAX,
                                 options, NULL));
    } else {
        CHECK(nccl.all_reduce(calls->memory, calls->memory, calls->count, ncclFloat32, ncclMax, calls->comm,
                              calls->self->stream)
              == ncclSuccess);
    }
}

static void wait_for_stream(const struct calls *calls)
{
    CHECK(cuStreamSynchronize(calls->self->stream) == CUDA_SUCCESS);
}

static void measure(const struct calls *calls, int is_libdist, int round)
{
    dist_call_options_t options = stream_options(calls->self);
    /* The flag saves the query for the kind of memory. */
    options.flags = DIST_CALL_DEVICE;
    options.device = calls->self->device;
    pthread_barrier_wait(&rank_barrier);
    double start = now_us();
    for (int i = 0; i < CALLS_PER_ROUND; i++) {
        run_call(calls, is_libdist, &options);
    }
    measured[calls->self->rank][is_libdist][0][round] = (now_us() - start) / CALLS_PER_ROUND;
    wait_for_stream(calls);
    pthread_barrier_wait(&rank_barrier);
    start = now_us();
    for (int i = 0; i < CALLS_PER_ROUND; i++) {
        run_call(calls, is_libdist, &options);
        wait_for_stream(calls);
    }
    measured[calls->self->rank][is_libdist][1][round] = (now_us() - start) / CALLS_PER_ROUND;
}

static int compare_doubles(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double median_of_slowest(int size, int is_libdist, int quantity)
{
    double worst[MAX_ROUNDS];
    for (int round = 0; round < rounds; round++) {
        worst[round] = 0;
        for (int rank = 0; rank < size; rank++) {
            double value = measured[rank][is_libdist][quantity][round];
            worst[round] = value > worst[round] ? value : worst[round];
        }
    }
    qsort(worst, (size_t)rounds, sizeof worst[0], compare_doubles);
    return worst[rounds / 2];
}

static void print_times(int size, size_t bytes)
{
    static const char *const words[] = { "enqueue", "done" };
    printf("%11zu ", bytes);
    for (int quantity = 0; quantity < 2; quantity++) {
        double libdist_us = median_of_slowest(size, 1, quantity), nccl_us = median_of_slowest(size, 0, quantity);
        printf("  %s: %9.2f us, NCCL %9.2f us, %5.2f", words[quantity], libdist_us, nccl_us, libdist_us / nccl_us);
    }
    printf("\n");
    fflush(stdout);
}

static void compare_costs(struct rank *self)
{
    static const size_t sizes[] = { 4, 1 << 10, 64 << 10, 1 << 20, 16 << 20 };
    struct calls calls = { .self = self };
    float result = 0;
    if (self->rank == 0) {
        REQUIRE(nccl.id(&id) == ncclSuccess);
    }
    pthread_barrier_wait(&rank_barrier);
    REQUIRE(nccl.init(&calls.comm, self->size, id, self->rank) == ncclSuccess);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        float own = (float)(self->rank + 1);
        calls.count = sizes[i] / sizeof(float);
        calls.memory = device_memory(sizes[i], NULL);
        write_device(self, calls.memory + calls.count - 1, &own, sizeof own);
        /* The first calls connect the ranks. */
        for (int is_libdist = 0; is_libdist < 2; is_libdist++) {
            dist_call_options_t options = stream_options(self);
            pthread_barrier_wait(&rank_barrier);
            run_call(&calls, is_libdist, &options);
            wait_for_stream(&calls);
        }
        for (int round = 0; round < rounds; round++) {
            measure(&calls, round % 2, round);
            measure(&calls, 1 - round % 2, round);
        }
        read_device(self, &result, calls.memory + calls.count - 1, sizeof result);
        CHECK(result == (float)self->size);
        pthread_barrier_wait(&rank_barrier);
        if (self->rank == 0) {
            print_times(self->size, sizes[i]);
        }
        free_device(calls.memory);
        pthread_barrier_wait(&rank_barrier);
    }
    CHECK(nccl.finalize(calls.comm) == ncclSuccess);
    pthread_barrier_wait(&rank_barrier);
    CHECK(nccl.destroy(calls.comm) == ncclSuccess);
}

int main(int argc, char **argv)
{
    REQUIRE(argc == 3);
    int size = atoi(argv[1]);
    rounds = atoi(argv[2]);
    REQUIRE(size >= 1 && size <= MAX_RANKS && rounds >= 1 && rounds <= MAX_ROUNDS);
    load_nccl();
    REQUIRE(pthread_barrier_init(&rank_barrier, NULL, (unsigned)size) == 0);
    run_on_ranks(size, "nccl", compare_costs);
    REQUIRE(pthread_barrier_destroy(&rank_barrier) == 0);
    check_nothing_leaked();
    return check_report();
}
