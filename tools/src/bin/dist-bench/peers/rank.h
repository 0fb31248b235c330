/*
 * The common part of all peer ranks in C and C++. A rank executes requests until the driver ends
 * it. It waits for the next request in the kernel, so that an idle rank uses no CPU time even if
 * its library polls during waits.
 *
 * The rank reads requests, one per line, from the pipe PREFIX.RANK.orders (format: request.rs). It
 * writes responses to the pipe PREFIX.answers, and the stamps of each request to the file
 * PREFIX.RANK.sample. The values and the layout of buffers are those of values.rs and
 * rank/memory.rs.
 *
 * This file is independent of the library: the including file defines `fail`, `call`,
 * `sync_participants` and `sync_all`.
 */
#ifndef DIST_BENCH_RANK_H
#define DIST_BENCH_RANK_H

#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ROOT 0
#define POISON 0xa5
#define PAGE 4096

enum op {
    ALL_REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BARRIER, SENDRECV, REDUCE, GATHER, SCATTER, NO_OP
};

static const char *const OPS[] = {"all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all",
                                  "barrier", "sendrecv", "reduce", "gather", "scatter"};

enum redop { SUM, MIN, MAX };

enum kind { I8, U8, I16, U16, I32, U32, I64, U64, F32, F64 };

struct dtype {
    const char *name;
    enum kind kind;
    size_t size;
    void (*put)(void *at, uint32_t number);
    int (*is)(const void *at, uint32_t number);
};

struct request {
    enum op op;
    const struct dtype *dtype;
    enum redop redop;
    int count; /* elements of all blocks together */
    int block;
    size_t warm_up, calls;
    uint64_t rewrite;
    int barrier, in_place, verify;
    int offsets[2]; /* of the buffers in their pages: offsets.rs */
};

struct buffers {
    char *first, *second;
    size_t first_bytes, second_bytes;
    int first_offset, second_offset;
};

static int rank, ranks;
static const char *path_prefix;

/* Ends all ranks and prints the reason. */
static void fail(const char *what);

/* Makes one call. Returns 0, on all ranks alike, if the library does not support the call. */
static int call(const struct request *request, struct buffers *buffers);

/* Synchronises the ranks that take part: all ranks, or the two ranks of a ping-pong. */
static void sync_participants(const struct request *request);

/* Synchronises all ranks. */
static void sync_all(void);

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

#define ROW(word, kind, type) {#word, kind, sizeof(type), put_##word, is_##word}

static const struct dtype DTYPES[] = {
    ROW(i8, I8, int8_t),   ROW(u8, U8, uint8_t),   ROW(i16, I16, int16_t), ROW(u16, U16, uint16_t),
    ROW(i32, I32, int32_t), ROW(u32, U32, uint32_t), ROW(i64, I64, int64_t), ROW(u64, U64, uint64_t),
    ROW(f32, F32, float),  ROW(f64, F64, double),
};

static uint32_t value(uint32_t of_rank, size_t at)
{
    return ((((uint32_t)at + 1) * 0x9e3779b1u ^ (of_rank + 1) * 0x85ebca6bu) >> 16) % 3;
}

static uint32_t reduced_value(const struct request *request, size_t at)
{
    uint32_t sum = 0, least = 2, most = 0;
    for (int from = 0; from < ranks; from++) {
        uint32_t one = value((uint32_t)from, at);
        sum += one;
        least = one < least ? one : least;
        most = one > most ? one : most;
    }
    return request->redop == MIN ? least : request->redop == MAX ? most : sum;
}

static uint32_t expected(const struct request *request, size_t at)
{
    size_t block = (size_t)request->block, own = (size_t)rank * block;
    switch (request->op) {
    case ALL_REDUCE:
    case REDUCE:
        return reduced_value(request, at);
    case REDUCE_SCATTER:
        return reduced_value(request, own + at);
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

/*
 * Computes the numbers of elements of both buffers on this rank. The input is in the first buffer.
 * The result is in the second buffer, or in the first one if the second is empty.
 */
static void shape(const struct request *request, size_t *first, size_t *second)
{
    size_t all = (size_t)request->count, block = (size_t)request->block;
    int is_root = rank == ROOT, is_separate = !request->in_place;
    *first = all;
    *second = 0;
    switch (request->op) {
    case BARRIER:
        *first = 0;
        break;
    case ALL_TO_ALL:
    case SENDRECV:
        *second = all;
        break;
    case ALL_REDUCE:
    case REDUCE:
        *second = is_separate && (is_root || request->op == ALL_REDUCE) ? all : 0;
        break;
    case ALL_GATHER:
    case GATHER:
        is_root = is_root || request->op == ALL_GATHER;
        *first = is_root && !is_separate ? all : block;
        *second = is_root && is_separate ? all : 0;
        break;
    case REDUCE_SCATTER:
        *second = is_separate ? block : 0;
        break;
    case SCATTER:
        *first = is_root ? all : block;
        *second = is_root && is_separate ? block : 0;
        break;
    default:
        break;
    }
}

static char *allocate(size_t bytes, int offset)
{
    void *memory = NULL;
    if (posix_memalign(&memory, PAGE, bytes + (size_t)offset) != 0) {
        fail("cannot allocate memory for the buffers");
    }
    memset(memory, 0, bytes + (size_t)offset);
    return (char *)memory + offset;
}

static void free_buffers(struct buffers *buffers)
{
    if (buffers->first != NULL) {
        free(buffers->first - buffers->first_offset);
        free(buffers->second - buffers->second_offset);
    }
}

static size_t whole_words(size_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

/* Allocates the buffers, unless those of the previous request have the required size. */
static void provide(struct buffers *buffers, const struct request *request)
{
    size_t first, second;
    int first_offset = request->offsets[request->op != SENDRECV && rank != ROOT];
    int second_offset = request->op == SENDRECV ? request->offsets[1] : first_offset;
    shape(request, &first, &second);
    first = whole_words(first * request->dtype->size);
    second = whole_words(second * request->dtype->size);
    if (first != buffers->first_bytes || second != buffers->second_bytes ||
        first_offset != buffers->first_offset || second_offset != buffers->second_offset) {
        free_buffers(buffers);
        buffers->first_bytes = first;
        buffers->second_bytes = second;
        buffers->first_offset = first_offset;
        buffers->second_offset = second_offset;
        buffers->first = allocate(first, first_offset);
        buffers->second = allocate(second, second_offset);
    }
}

static void fill(struct buffers *buffers, const struct request *request)
{
    size_t size = request->dtype->size, from = 0, length = (size_t)request->count;
    memset(buffers->first, POISON, buffers->first_bytes);
    memset(buffers->second, POISON, buffers->second_bytes);
    if (request->op == ALL_GATHER || request->op == GATHER) {
        length = (size_t)request->block;
        from = request->op == ALL_GATHER && request->in_place ? (size_t)rank * length : 0;
    } else if ((request->op == BROADCAST || request->op == SCATTER) && rank != ROOT) {
        length = 0;
    }
    for (size_t i = 0; i < length; i++) {
        request->dtype->put(buffers->first + (from + i) * size, value((uint32_t)rank, i));
    }
}

static uint64_t count_wrong(const struct buffers *buffers, const struct request *request)
{
    int is_root = rank == ROOT;
    size_t size = request->dtype->size, length = (size_t)request->count;
    const char *result = buffers->second_bytes > 0 ? buffers->second : buffers->first;
    if (request->op == REDUCE_SCATTER || request->op == SCATTER) {
        length = (size_t)request->block;
    } else if ((request->op == REDUCE || request->op == GATHER) && !is_root) {
        length = 0;
    }
    uint64_t wrong = 0;
    for (size_t i = 0; i < length; i++) {
        wrong += !request->dtype->is(result + i * size, expected(request, i));
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

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/*
 * Executes a request. Writes the number of wrong elements and the stamps to `stamps`, which is
 * large enough. Returns the number of values written, or 0 if the library does not support the
 * request.
 */
static size_t execute(const struct request *request, struct buffers *buffers, uint64_t *stamps)
{
    size_t used = 1;
    stamps[0] = 0;
    if (request->op == SENDRECV && rank > 1) {
        return used;
    }
    provide(buffers, request);
    if (request->verify) {
        fill(buffers, request);
        if (!call(request, buffers)) {
            return 0;
        }
        stamps[0] = count_wrong(buffers, request);
    }
    if (request->rewrite != 0) {
        rewrite(buffers, request->rewrite);
    }
    sync_participants(request);
    for (size_t number = 0; number < request->warm_up + request->calls; number++) {
        if (request->rewrite != 0) {
            rewrite(buffers, request->rewrite);
        }
        if (request->barrier) {
            sync_participants(request);
        }
        uint64_t start = now();
        int is_supported = call(request, buffers);
        uint64_t end = now();
        if (!is_supported) {
            return 0;
        }
        if (number >= request->warm_up) {
            stamps[used++] = start;
            stamps[used++] = end;
        }
    }
    /* After this, the rank sleeps until a request arrives. No other rank may need it then. */
    if (request->op != SENDRECV) {
        sync_all();
    }
    return used;
}

static int parse(const char *line, struct request *request)
{
    char op[32], dtype[16], redop[8];
    long long count;
    unsigned long long warm_up, calls, word;
    int arena, asynchronous;
    request->offsets[0] = request->offsets[1] = 0;
    int got = sscanf(line, "run %31s %15s %7s %lld %llu %llu %llu %d %d %d %d %d @%d,%d", op, dtype, redop, &count,
                     &warm_up, &calls, &word, &request->barrier, &request->in_place, &arena, &asynchronous,
                     &request->verify, &request->offsets[0], &request->offsets[1]);
    if ((got != 12 && got != 14) || count < 0 || count > INT_MAX) {
        return 0;
    }
    request->op = NO_OP;
    for (int number = 0; number < NO_OP; number++) {
        request->op = strcmp(op, OPS[number]) == 0 ? (enum op)number : request->op;
    }
    request->dtype = NULL;
    for (size_t i = 0; i < sizeof DTYPES / sizeof *DTYPES; i++) {
        request->dtype = strcmp(dtype, DTYPES[i].name) == 0 ? &DTYPES[i] : request->dtype;
    }
    request->redop = strcmp(redop, "min") == 0 ? MIN : strcmp(redop, "max") == 0 ? MAX : SUM;
    request->count = (int)count;
    request->block = request->count / ranks;
    request->warm_up = (size_t)warm_up;
    request->calls = (size_t)calls;
    request->rewrite = word;
    return request->op != NO_OP && request->dtype != NULL;
}

static void name_file(char *path, size_t room, const char *ending)
{
    snprintf(path, room, "%s.%d%s", path_prefix, rank, ending);
}

static void save(const uint64_t *numbers, size_t count)
{
    char path[PATH_MAX];
    name_file(path, sizeof path, ".sample");
    FILE *file = fopen(path, "wb");
    if (file == NULL) {
        fail("cannot write the sample");
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
        fail("cannot write the sample");
    }
}

static void respond(int response_pipe, const char *what)
{
    char text[64];
    int length = snprintf(text, sizeof text, "%d %s\n", rank, what);
    if (write(response_pipe, text, (size_t)length) != length) {
        fail("cannot write the response");
    }
}

static void serve_requests(FILE *requests, int response_pipe)
{
    struct buffers buffers = {NULL, NULL, 0, 0, 0, 0};
    char line[256];
    respond(response_pipe, "ok");
    while (fgets(line, sizeof line, requests) != NULL && strcmp(line, "quit\n") != 0) {
        struct request request;
        if (!parse(line, &request)) {
            fail("not a valid request");
        }
        uint64_t *stamps = (uint64_t *)malloc((1 + 2 * request.calls) * sizeof *stamps);
        if (stamps == NULL) {
            fail("cannot allocate memory for the stamps");
        }
        size_t count = execute(&request, &buffers, stamps);
        save(stamps, count);
        free(stamps);
        respond(response_pipe, count > 0 ? "ok" : "not offered");
    }
    free_buffers(&buffers);
}

/* Pins the rank to one core, like the ranks of the other engines. */
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

/* Runs the rank. The caller has started the library and set `rank` and `ranks`. */
static void serve(const char *prefix)
{
    char path[PATH_MAX];
    path_prefix = prefix;
    pin();
    name_file(path, sizeof path, ".orders");
    FILE *requests = fopen(path, "r");
    snprintf(path, sizeof path, "%s.answers", path_prefix);
    int response_pipe = open(path, O_WRONLY);
    if (requests == NULL || response_pipe < 0) {
        fail("cannot open the request or response pipe");
    }
    serve_requests(requests, response_pipe);
    fclose(requests);
    close(response_pipe);
}

#endif
