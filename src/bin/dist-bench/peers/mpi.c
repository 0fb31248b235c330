/*
 * The ranks of a peer that speaks MPI: does what dist-bench orders, and waits for the next order in the kernel, so
 * that a library that polls while it waits leaves the processor to others in the meantime.
 *
 *     mpi PLACE
 *
 * Orders come, a line each, from the pipe PLACE.RANK.orders (order.rs has their words); answers go to PLACE.answers,
 * and the stamps of each order to PLACE.RANK.sample. Values and their places are those of values.rs and rank/memory.rs.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define ROOT 0
#define POISON 0xa5

enum { BALL, WHISTLE }; /* tags */

enum op {
    ALL_REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BARRIER, SENDRECV, REDUCE, GATHER, SCATTER, NO_OP
};

static const char *const OPS[] = {"all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all",
                                  "barrier", "sendrecv", "reduce", "gather", "scatter"};

struct dtype {
    const char *name;
    size_t size;
    MPI_Datatype mpi;
    void (*put)(void *at, uint32_t number);
    int (*is)(const void *at, uint32_t number);
};

struct order {
    enum op op;
    const struct dtype *dtype;
    MPI_Op redop;
    int count; /* elements of all blocks */
    int block;
    size_t warm_up, calls;
    uint64_t rewrite;
    int barrier, in_place, verify;
};

struct buffers {
    char *first, *second;
    size_t first_bytes, second_bytes;
};

static int rank, ranks;
static const char *place;

static void fail(const char *what)
{
    fprintf(stderr, "rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

#define ELEMENT(type, word)                                                                                        \
    static void put_##word(void *at, uint32_t number)                                                              \
    {                                                                                                              \
        *(type *)at = (type)number;                                                                                \
    }                                                                                                              \
    static int is_##word(const void *at, uint32_t number)                                                          \
    {                                                                                                              \
        return *(const type *)at == (type)number;                                                                  \
    }

ELEMENT(int8_t, i8)
ELEMENT(uint8_t, u8)
ELEMENT(int16_t, i16)
ELEMENT(uint16_t, u16)
ELEMENT(int32_t, i32)
ELEMENT(uint32_t, u32)
ELEMENT(int64_t, i64)
ELEMENT(uint64_t, u64)
ELEMENT(float, f32)
ELEMENT(double, f64)

#define ROW(word, type, mpi) {#word, sizeof(type), mpi, put_##word, is_##word}

/* MPI's types are values that exist at run time only. */
static const struct dtype *find_dtype(const char *name)
{
    static struct dtype all[10];
    const struct dtype rows[] = {
        ROW(i8, int8_t, MPI_INT8_T),    ROW(u8, uint8_t, MPI_UINT8_T),    ROW(i16, int16_t, MPI_INT16_T),
        ROW(u16, uint16_t, MPI_UINT16_T), ROW(i32, int32_t, MPI_INT32_T), ROW(u32, uint32_t, MPI_UINT32_T),
        ROW(i64, int64_t, MPI_INT64_T), ROW(u64, uint64_t, MPI_UINT64_T), ROW(f32, float, MPI_FLOAT),
        ROW(f64, double, MPI_DOUBLE),
    };
    memcpy(all, rows, sizeof all);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcmp(all[i].name, name) == 0) {
            return &all[i];
        }
    }
    fail("an order names an unknown type");
    return NULL;
}

static uint32_t value(uint32_t of_rank, size_t at)
{
    return ((((uint32_t)at + 1) * 0x9e3779b1u ^ (of_rank + 1) * 0x85ebca6bu) >> 16) % 3;
}

static uint32_t folded(const struct order *order, size_t at)
{
    uint32_t sum = 0, least = 2, most = 0;
    for (int from = 0; from < ranks; from++) {
        uint32_t one = value((uint32_t)from, at);
        sum += one;
        least = one < least ? one : least;
        most = one > most ? one : most;
    }
    return order->redop == MPI_MIN ? least : order->redop == MPI_MAX ? most : sum;
}

static uint32_t expected(const struct order *order, size_t at)
{
    size_t block = (size_t)order->block, own = (size_t)rank * block;
    switch (order->op) {
    case ALL_REDUCE:
    case REDUCE:
        return folded(order, at);
    case REDUCE_SCATTER:
        return folded(order, own + at);
    case BROADCAST:
        return value(ROOT, at);
    case SCATTER:
        return value(ROOT, own + at);
    case ALL_GATHER:
    case GATHER:
        return value((uint32_t)(at / block), at % block);
    case ALL_TO_ALL:
        return value((uint32_t)(at / block), own + at % block);
    case SENDRECV:
        return value((uint32_t)(rank == ROOT), at);
    default:
        return 0;
    }
}

/* The elements of the two buffers on this rank: input in the first, result in the second unless that is empty. */
static void shape(const struct order *order, size_t *first, size_t *second)
{
    size_t all = (size_t)order->count, block = (size_t)order->block;
    int is_root = rank == ROOT, apart = !order->in_place;
    *first = all;
    *second = 0;
    switch (order->op) {
    case BARRIER:
        *first = 0;
        break;
    case ALL_TO_ALL:
    case SENDRECV:
        *second = all;
        break;
    case ALL_REDUCE:
    case REDUCE:
        *second = apart && (is_root || order->op == ALL_REDUCE) ? all : 0;
        break;
    case ALL_GATHER:
    case GATHER:
        is_root = is_root || order->op == ALL_GATHER;
        *first = is_root && !apart ? all : block;
        *second = is_root && apart ? all : 0;
        break;
    case REDUCE_SCATTER:
        *second = apart ? block : 0;
        break;
    case SCATTER:
        *first = is_root ? all : block;
        *second = is_root && apart ? block : 0;
        break;
    default:
        break;
    }
}

static char *allocate(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, bytes) != 0) {
        fail("there is no memory for the buffers");
    }
    memset(memory, 0, bytes);
    return memory;
}

static size_t whole_words(size_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

/* Keeps the buffers of the order before, if they have the right size. */
static void provide(struct buffers *buffers, const struct order *order)
{
    size_t first, second;
    shape(order, &first, &second);
    first = whole_words(first * order->dtype->size);
    second = whole_words(second * order->dtype->size);
    if (first != buffers->first_bytes || second != buffers->second_bytes) {
        free(buffers->first);
        free(buffers->second);
        buffers->first_bytes = first;
        buffers->second_bytes = second;
        buffers->first = allocate(first);
        buffers->second = allocate(second);
    }
}

static void fill(struct buffers *buffers, const struct order *order)
{
    size_t size = order->dtype->size, from = 0, length = (size_t)order->count;
    memset(buffers->first, POISON, buffers->first_bytes);
    memset(buffers->second, POISON, buffers->second_bytes);
    if (order->op == ALL_GATHER || order->op == GATHER) {
        length = (size_t)order->block;
        from = order->op == ALL_GATHER && order->in_place ? (size_t)rank * length : 0;
    } else if ((order->op == BROADCAST || order->op == SCATTER) && rank != ROOT) {
        length = 0;
    }
    for (size_t i = 0; i < length; i++) {
        order->dtype->put(buffers->first + (from + i) * size, value((uint32_t)rank, i));
    }
}

static uint64_t count_wrong(const struct buffers *buffers, const struct order *order)
{
    int is_root = rank == ROOT;
    size_t size = order->dtype->size, length = (size_t)order->count;
    const char *result = buffers->second_bytes > 0 ? buffers->second : buffers->first;
    if (order->op == REDUCE_SCATTER || order->op == SCATTER) {
        length = (size_t)order->block;
    } else if ((order->op == REDUCE || order->op == GATHER) && !is_root) {
        length = 0;
    }
    uint64_t wrong = 0;
    for (size_t i = 0; i < length; i++) {
        wrong += !order->dtype->is(result + i * size, expected(order, i));
    }
    return wrong;
}

static void rewrite(struct buffers *buffers, uint64_t word)
{
    uint64_t *words = (uint64_t *)(void *)buffers->first;
    for (size_t i = 0; i < buffers->first_bytes / sizeof word; i++) {
        words[i] = word;
    }
}

static void call(const struct order *order, struct buffers *buffers)
{
    char *a = buffers->first, *b = buffers->second;
    MPI_Datatype type = order->dtype->mpi;
    MPI_Comm world = MPI_COMM_WORLD;
    int n = order->count, k = order->block, is_root = rank == ROOT;
    int has_root = order->op == REDUCE || order->op == GATHER;
    /* Results of others than the root are of no account where there is one. */
    void *from = order->in_place && (is_root || !has_root) ? MPI_IN_PLACE : a;
    void *into = order->in_place ? a : b;
    switch (order->op) {
    case ALL_REDUCE:
        MPI_Allreduce(from, into, n, type, order->redop, world);
        break;
    case REDUCE:
        MPI_Reduce(from, into, n, type, order->redop, ROOT, world);
        break;
    case BROADCAST:
        MPI_Bcast(a, n, type, ROOT, world);
        break;
    case ALL_GATHER:
        MPI_Allgather(from, k, type, into, k, type, world);
        break;
    case REDUCE_SCATTER:
        MPI_Reduce_scatter_block(from, into, k, type, order->redop, world);
        break;
    case ALL_TO_ALL:
        MPI_Alltoall(a, k, type, b, k, type, world);
        break;
    case BARRIER:
        MPI_Barrier(world);
        break;
    case GATHER:
        MPI_Gather(from, k, type, into, k, type, ROOT, world);
        break;
    case SCATTER:
        MPI_Scatter(a, k, type, !is_root ? a : order->in_place ? MPI_IN_PLACE : b, k, type, ROOT, world);
        break;
    case SENDRECV:
        if (is_root) {
            MPI_Send(a, n, type, 1, BALL, world);
            MPI_Recv(b, n, type, 1, BALL, world, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(b, n, type, ROOT, BALL, world, MPI_STATUS_IGNORE);
            MPI_Send(a, n, type, ROOT, BALL, world);
        }
        break;
    default:
        break;
    }
}

/* The ranks that take part come together: for a ping-pong the two of it. */
static void meet(const struct order *order)
{
    char byte = 0;
    if (order->op != SENDRECV) {
        MPI_Barrier(MPI_COMM_WORLD);
    } else if (rank == ROOT) {
        MPI_Recv(&byte, 1, MPI_CHAR, 1, WHISTLE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Send(&byte, 1, MPI_CHAR, ROOT, WHISTLE, MPI_COMM_WORLD);
    }
}

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Makes the calls; the count of wrong elements and the stamps go to `stamps`, which has room. How many these are. */
static size_t carry_out(const struct order *order, struct buffers *buffers, uint64_t *stamps)
{
    size_t used = 1;
    stamps[0] = 0;
    if (order->op == SENDRECV && rank > 1) {
        return used;
    }
    provide(buffers, order);
    if (order->verify) {
        fill(buffers, order);
        call(order, buffers);
        stamps[0] = count_wrong(buffers, order);
    }
    if (order->rewrite != 0) {
        rewrite(buffers, order->rewrite);
    }
    meet(order);
    for (size_t number = 0; number < order->warm_up + order->calls; number++) {
        if (order->rewrite != 0) {
            rewrite(buffers, order->rewrite);
        }
        if (order->barrier) {
            meet(order);
        }
        uint64_t start = now();
        call(order, buffers);
        uint64_t end = now();
        if (number >= order->warm_up) {
            stamps[used++] = start;
            stamps[used++] = end;
        }
    }
    /* Nobody goes to sleep while another rank may still need it. */
    if (order->op != SENDRECV) {
        MPI_Barrier(MPI_COMM_WORLD);
    }
    return used;
}

static int parse(const char *line, struct order *order)
{
    char op[32], dtype[16], redop[8];
    long long count;
    unsigned long long warm_up, calls, word;
    int arena, asynchronous;
    int got = sscanf(line, "run %31s %15s %7s %lld %llu %llu %llu %d %d %d %d %d", op, dtype, redop, &count, &warm_up,
                     &calls, &word, &order->barrier, &order->in_place, &arena, &asynchronous, &order->verify);
    if (got != 12 || count < 0 || count > INT_MAX) {
        return 0;
    }
    for (order->op = 0; order->op < NO_OP && strcmp(op, OPS[order->op]) != 0; order->op++) {
    }
    if (order->op == NO_OP) {
        return 0;
    }
    order->dtype = find_dtype(dtype);
    order->redop = strcmp(redop, "min") == 0 ? MPI_MIN : strcmp(redop, "max") == 0 ? MPI_MAX : MPI_SUM;
    order->count = (int)count;
    order->block = order->count / ranks;
    order->warm_up = (size_t)warm_up;
    order->calls = (size_t)calls;
    order->rewrite = word;
    return 1;
}

static void name(char *path, size_t room, const char *ending)
{
    snprintf(path, room, "%s.%d%s", place, rank, ending);
}

static void save(const uint64_t *numbers, size_t count)
{
    char path[PATH_MAX];
    name(path, sizeof path, ".sample");
    FILE *file = fopen(path, "wb");
    if (file == NULL) {
        fail("the sample cannot be written");
    }
    int failed = 0;
    for (size_t i = 0; i < count; i++) {
        unsigned char bytes[8];
        for (int byte = 0; byte < 8; byte++) {
            bytes[byte] = (unsigned char)(numbers[i] >> (8 * byte));
        }
        failed |= fwrite(bytes, sizeof bytes, 1, file) != 1;
    }
    if (fclose(file) != 0 || failed) {
        fail("the sample cannot be written");
    }
}

static void answer(int answers)
{
    char text[32];
    int length = snprintf(text, sizeof text, "%d ok\n", rank);
    if (write(answers, text, (size_t)length) != length) {
        fail("the answer cannot be written");
    }
}

static void serve(FILE *orders, int answers)
{
    struct buffers buffers = {NULL, NULL, 0, 0};
    char line[256];
    answer(answers);
    while (fgets(line, sizeof line, orders) != NULL && strcmp(line, "quit\n") != 0) {
        struct order order;
        if (!parse(line, &order)) {
            fail("an order cannot be understood");
        }
        uint64_t *stamps = malloc((1 + 2 * order.calls) * sizeof *stamps);
        if (stamps == NULL) {
            fail("there is no memory for the stamps");
        }
        save(stamps, carry_out(&order, &buffers, stamps));
        free(stamps);
        answer(answers);
    }
    free(buffers.first);
    free(buffers.second);
}

/* Stays on one core, as the ranks of the other engines do. */
static void pin(void)
{
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        fail("sched_getaffinity failed");
    }
    int left = rank % CPU_COUNT(&allowed), core = 0;
    while (!CPU_ISSET(core, &allowed) || left-- > 0) {
        core++;
    }
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) {
        fail("sched_setaffinity failed");
    }
}

int main(int argc, char **argv)
{
    char path[PATH_MAX];
    /* Whoever has started this rank has gone: nobody will order anything. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 2) {
        fail("this program is started by dist-bench");
    }
    place = argv[1];
    pin();
    name(path, sizeof path, ".orders");
    FILE *orders = fopen(path, "r");
    snprintf(path, sizeof path, "%s.answers", place);
    int answers = open(path, O_WRONLY);
    if (orders == NULL || answers < 0) {
        fail("the pipes cannot be opened");
    }
    serve(orders, answers);
    MPI_Finalize();
    return 0;
}
