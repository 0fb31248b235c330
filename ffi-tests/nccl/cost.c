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

#define MOST_ROUNDS 101
#define IN_A_ROW 50

static struct {
    ncclResult_t (*id)(ncclUniqueId *);
    ncclResult_t (*init)(ncclComm_t *, int, ncclUniqueId, int);
    ncclResult_t (*all_reduce)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
    ncclResult_t (*finalize)(ncclComm_t);
    ncclResult_t (*destroy)(ncclComm_t);
} by_hand;

static int rounds;
static pthread_barrier_t meeting;
static ncclUniqueId id;

/* The measured times of each rank, by way (libdist or NCCL), quantity and round. */
static double measured[MOST_RANKS][2][2][MOST_ROUNDS];

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void load(void)
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
    memcpy(&by_hand, found, sizeof by_hand);
}

struct calls {
    struct rank *self;
    ncclComm_t comm;
    float *memory;
    size_t count;
};

static void call(const struct calls *it, int is_ours, const dist_call_options_t *options)
{
    if (is_ours) {
        CHECK_OK(dist_all_reduce(it->self->group, it->memory, it->memory, it->count, DIST_F32, DIST_MAX, options, NULL));
    } else {
        CHECK(by_hand.all_reduce(it->memory, it->memory, it->count, ncclFloat32, ncclMax, it->comm, it->self->stream)
              == ncclSuccess);
    }
}

static void settle(const struct calls *it)
{
    CHECK(cuStreamSynchronize(it->self->stream) == CUDA_SUCCESS);
}

static void measure(const struct calls *it, int is_ours, int round)
{
    dist_call_options_t options = on_stream(it->self);
    /* The flag saves the query for the kind of memory. */
    options.flags = DIST_CALL_DEVICE;
    options.device = it->self->device;
    pthread_barrier_wait(&meeting);
    double began = now_us();
    for (int i = 0; i < IN_A_ROW; i++) {
        call(it, is_ours, &options);
    }
    measured[it->self->rank][is_ours][0][round] = (now_us() - began) / IN_A_ROW;
    settle(it);
    pthread_barrier_wait(&meeting);
    began = now_us();
    for (int i = 0; i < IN_A_ROW; i++) {
        call(it, is_ours, &options);
        settle(it);
    }
    measured[it->self->rank][is_ours][1][round] = (now_us() - began) / IN_A_ROW;
}

static int ascending(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double median_of_slowest(int size, int is_ours, int what)
{
    double worst[MOST_ROUNDS];
    for (int round = 0; round < rounds; round++) {
        worst[round] = 0;
        for (int rank = 0; rank < size; rank++) {
            double value = measured[rank][is_ours][what][round];
            worst[round] = value > worst[round] ? value : worst[round];
        }
    }
    qsort(worst, (size_t)rounds, sizeof worst[0], ascending);
    return worst[rounds / 2];
}

static void tell(int size, size_t bytes)
{
    static const char *const words[] = { "enqueue", "done" };
    printf("%11zu ", bytes);
    for (int what = 0; what < 2; what++) {
        double ours = median_of_slowest(size, 1, what), nccl = median_of_slowest(size, 0, what);
        printf("  %s: %9.2f us, NCCL %9.2f us, %5.2f", words[what], ours, nccl, ours / nccl);
    }
    printf("\n");
    fflush(stdout);
}

static void compare(struct rank *self)
{
    static const size_t sizes[] = { 4, 1 << 10, 64 << 10, 1 << 20, 16 << 20 };
    struct calls it = { .self = self };
    float result = 0;
    if (self->rank == 0) {
        REQUIRE(by_hand.id(&id) == ncclSuccess);
    }
    pthread_barrier_wait(&meeting);
    REQUIRE(by_hand.init(&it.comm, self->size, id, self->rank) == ncclSuccess);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        float mine = (float)(self->rank + 1);
        it.count = sizes[i] / sizeof(float);
        it.memory = device_memory(sizes[i], NULL);
        write_device(self, it.memory + it.count - 1, &mine, sizeof mine);
        /* The first calls connect the ranks. */
        for (int is_ours = 0; is_ours < 2; is_ours++) {
            dist_call_options_t options = on_stream(self);
            pthread_barrier_wait(&meeting);
            call(&it, is_ours, &options);
            settle(&it);
        }
        for (int round = 0; round < rounds; round++) {
            measure(&it, round % 2, round);
            measure(&it, 1 - round % 2, round);
        }
        read_device(self, &result, it.memory + it.count - 1, sizeof result);
        CHECK(result == (float)self->size);
        pthread_barrier_wait(&meeting);
        if (self->rank == 0) {
            tell(self->size, sizes[i]);
        }
        free_device(it.memory);
        pthread_barrier_wait(&meeting);
    }
    CHECK(by_hand.finalize(it.comm) == ncclSuccess);
    pthread_barrier_wait(&meeting);
    CHECK(by_hand.destroy(it.comm) == ncclSuccess);
}

int main(int argc, char **argv)
{
    REQUIRE(argc == 3);
    int size = atoi(argv[1]);
    rounds = atoi(argv[2]);
    REQUIRE(size >= 1 && size <= MOST_RANKS && rounds >= 1 && rounds <= MOST_ROUNDS);
    load();
    REQUIRE(pthread_barrier_init(&meeting, NULL, (unsigned)size) == 0);
    on_ranks(size, "nccl", compare);
    REQUIRE(pthread_barrier_destroy(&meeting) == 0);
    check_nothing_left();
    return check_report();
}
