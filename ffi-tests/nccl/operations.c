/*
 * Every collective on devices with every element type and operator, on 1 to 4 ranks. Supported
 * calls give the right result, other calls are refused, and dist_backend_supports agrees. The
 * test runs over NCCL or, with the argument `staging`, with staging through host memory and also
 * with vectors of several pieces. With `staging BACKEND REDUCTIONS`, another back end than the
 * native one transports the data; it has this number of reductions. With `job BACKEND`, the
 * process is one rank of a launcher's job.
 */
#include "ranks.h"

#include <math.h>
#include <stdint.h>

/* The number of elements of a vector or block; a block of the _v forms has up to 3/5 of it. */
static size_t element_count = 5;
#define COUNT element_count
#define MAX_COUNT 520
#define BUFFER_BYTES (MAX_RANKS * (MAX_COUNT + MAX_RANKS) * 16)

/* The number of supported reductions, each a pair of type and operator. */
static int n_supported_reductions;

static const size_t sizes[] = { 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 8, 16, 1, 1, 1 };
#define DTYPES (DIST_I8 + (int)(sizeof sizes / sizeof sizes[0])) /* one after the last type */
#define OPS (DIST_PREMUL_SUM + 1) /* one after the last operator */

static size_t element_size(int dtype)
{
    return sizes[dtype - DIST_I8];
}

/* Encodes a small whole number as a floating-point element with few bits. */
static unsigned encode(double value, int mantissa, int bias)
{
    int exponent;
    double fraction = frexp(value, &exponent);
    unsigned units = (unsigned)ldexp(fraction, mantissa + 1);
    return ((unsigned)(exponent - 1 + bias) << mantissa) + (units - (1u << mantissa));
}

static double decode(unsigned bits, int mantissa, int bias)
{
    unsigned exponent = bits >> mantissa;
    unsigned units = (bits & ((1u << mantissa) - 1)) + (exponent == 0 ? 0 : 1u << mantissa);
    return ldexp(units, (exponent == 0 ? 1 : (int)exponent) - bias - mantissa);
}

/* Writes an element with the value 1, 2 or 3 (0 or 1 for bool). A complex element has the value
 * in both parts. */
static void put_element(int dtype, void *into, int value)
{
    unsigned bits = 0;
    float single = (float)value;
    double parts[2] = { value, value };
    float both[2] = { single, single };
    int64_t integer = value;
    switch (dtype) {
    case DIST_F16:
        bits = encode(value, 10, 15);
        break;
    case DIST_BF16:
        bits = encode(value, 7, 127);
        break;
    case DIST_F8E4M3:
        bits = encode(value, 3, 7);
        break;
    case DIST_F8E5M2:
        bits = encode(value, 2, 15);
        break;
    case DIST_F32:
        memcpy(into, &single, sizeof single);
        return;
    case DIST_F64:
        memcpy(into, parts, sizeof parts[0]);
        return;
    case DIST_C64:
        memcpy(into, both, sizeof both);
        return;
    case DIST_C128:
        memcpy(into, parts, sizeof parts);
        return;
    case DIST_BOOL:
        integer = value != 1;
        memcpy(into, &integer, 1);
        return;
    default:
        memcpy(into, &integer, element_size(dtype));
        return;
    }
    memcpy(into, &bits, element_size(dtype));
}

static double get_element(int dtype, const void *from)
{
    uint64_t bits = 0;
    float single;
    double parts;
    memcpy(&bits, from, element_size(dtype) > 8 ? 8 : element_size(dtype));
    switch (dtype) {
    case DIST_F16:
        return decode((unsigned)bits, 10, 15);
    case DIST_BF16:
        return decode((unsigned)bits, 7, 127);
    case DIST_F8E4M3:
        return decode((unsigned)bits, 3, 7);
    case DIST_F8E5M2:
        return decode((unsigned)bits, 2, 15);
    case DIST_F32:
    case DIST_C64:
        memcpy(&single, from, sizeof single);
        return (double)single;
    case DIST_F64:
    case DIST_C128:
        memcpy(&parts, from, sizeof parts);
        return parts;
    default:
        return (double)bits;
    }
}

/* Returns the value of a rank at an index. */
static int input_value(int rank, size_t index)
{
    return (rank * 2 + (int)index) % 2 + 1;
}

static int raw_bool(int value)
{
    return value != 1;
}

static double expected_result(int dtype, int op, int size, size_t index)
{
    double result = 0;
    for (int rank = 0; rank < size; rank++) {
        double value = dtype == DIST_BOOL ? raw_bool(input_value(rank, index)) : input_value(rank, index);
        double scaled = op == DIST_PREMUL_SUM ? value * (rank + 1) : value;
        if (rank == 0) {
            result = scaled;
        } else if (op == DIST_PRODUCT) {
            result *= value;
        } else if (op == DIST_MIN) {
            result = fmin(result, value);
        } else if (op == DIST_MAX) {
            result = fmax(result, value);
        } else if (op == DIST_BAND) {
            result = (int)result & (int)value;
        } else if (op == DIST_BOR) {
            result = (int)result | (int)value;
        } else if (op == DIST_BXOR) {
            result = (int)result ^ (int)value;
        } else {
            result += scaled;
        }
    }
    if (op == DIST_AVG) {
        result /= size;
        return dtype < DIST_F16 ? trunc(result) : result;
    }
    return dtype == DIST_BOOL ? result != 0 : result;
}

/* Types with few bits round values that are no power of two. */
static int is_close(int dtype, double actual, double expected)
{
    double bits = dtype == DIST_F8E5M2 ? 2 : dtype == DIST_F8E4M3 ? 3 : dtype == DIST_BF16 ? 7 : 10;
    return dtype < DIST_F16 || dtype == DIST_BOOL ? actual == expected
        : fabs(actual - expected) <= 2 * expected * ldexp(1, (int)-bits);
}

struct reduction {
    struct rank *self;
    int kind;
    int dtype;
    int op;
    unsigned char *send;
    unsigned char *recv;
};

static dist_status_t run_reduction(const struct reduction *args, const dist_call_options_t *options)
{
    struct rank *self = args->self;
    size_t element = element_size(args->dtype);
    const void *sends[MAX_RANKS];
    size_t counts[MAX_RANKS];
    size_t at = 0;
    for (int rank = 0; rank < self->size; rank++) {
        counts[rank] = COUNT - (size_t)rank;
        sends[rank] = args->send + at * element;
        at += counts[rank];
    }
    switch (args->kind) {
    case DIST_KIND_ALL_REDUCE:
        return dist_all_reduce(self->group, args->send, args->recv, COUNT, args->dtype, args->op, options, NULL);
    case DIST_KIND_REDUCE:
        return dist_reduce(self->group, args->send, args->recv, COUNT, args->dtype, args->op, self->size - 1, options,
                           NULL);
    case DIST_KIND_REDUCE_SCATTER:
        return dist_reduce_scatter(self->group, args->send, args->recv, COUNT, args->dtype, args->op, options, NULL);
    default:
        return dist_reduce_scatter_v(self->group, sends, counts, args->recv, args->dtype, args->op, options, NULL);
    }
}

static void check_reduction(const struct reduction *args)
{
    struct rank *self = args->self;
    size_t element = element_size(args->dtype);
    unsigned char result[BUFFER_BYTES];
    size_t count = COUNT, first = 0;
    if (args->kind == DIST_KIND_REDUCE && self->rank != self->size - 1) {
        return;
    }
    if (args->kind == DIST_KIND_REDUCE_SCATTER) {
        first = (size_t)self->rank * COUNT;
    } else if (args->kind == DIST_KIND_REDUCE_SCATTER_V) {
        count = COUNT - (size_t)self->rank;
        for (int rank = 0; rank < self->rank; rank++) {
            first += COUNT - (size_t)rank;
        }
    }
    read_device(self, result, args->recv, count * element);
    for (size_t i = 0; i < count; i++) {
        double actual = get_element(args->dtype, result + i * element);
        double expected = expected_result(args->dtype, args->op, self->size, first + i);
        if (!CHECK(is_close(args->dtype, actual, expected))) {
            printf("  kind %d, dtype %d, op %d, rank %d of %d, element %zu: %g, and not %g\n", args->kind, args->dtype,
                   args->op, self->rank, self->size, i, actual, expected);
            return;
        }
    }
}

static void check_all_reductions(struct rank *self)
{
    static const int kinds[] = { DIST_KIND_ALL_REDUCE, DIST_KIND_REDUCE, DIST_KIND_REDUCE_SCATTER, DIST_KIND_REDUCE_SCATTER_V };
    unsigned char values[BUFFER_BYTES];
    int done = 0;
    for (int dtype = DIST_I8; dtype < DTYPES; dtype++) {
        for (size_t i = 0; i < MAX_RANKS * COUNT; i++) {
            put_element(dtype, values + i * element_size(dtype), input_value(self->rank, i));
        }
        void *send = device_memory(MAX_RANKS * COUNT * element_size(dtype), values);
        void *recv = device_memory(MAX_RANKS * COUNT * element_size(dtype), NULL);
        for (int op = DIST_SUM; op < OPS; op++) {
            for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
                struct reduction args = { self, kinds[k], dtype, op, send, recv };
                dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
                options.premul_scale = op == DIST_PREMUL_SUM ? self->rank + 1 : 0;
                dist_status_t supported_status = dist_backend_supports(self->group, kinds[k], dtype, op, self->gpu);
                CHECK(supported_status == DIST_OK || supported_status == DIST_ERR_UNSUPPORTED);
                if (CHECK_STATUS(run_reduction(&args, &options), supported_status) && supported_status == DIST_OK) {
                    check_reduction(&args);
                    done++;
                }
            }
        }
        free_device(send);
        free_device(recv);
    }
    CHECK(done == n_supported_reductions);
}

static unsigned char expected_byte(int from, int to, size_t index)
{
    return (unsigned char)(from * 61 + to * 17 + (int)index * 3 + 1);
}

struct transfer {
    struct rank *self;
    int kind;
    int dtype;
    int root;
    unsigned char *send;
    unsigned char *recv;
    const void *sends[MAX_RANKS];
    void *recvs[MAX_RANKS];
    size_t send_counts[MAX_RANKS];
    size_t recv_counts[MAX_RANKS];
};

/* Returns the number of elements that one rank sends to another; it may be 0. */
static size_t transfer_count(const struct transfer *args, int from, int to)
{
    size_t fifth = COUNT / 5;
    switch (args->kind) {
    case DIST_KIND_ALL_GATHER_V:
    case DIST_KIND_GATHER_V:
        return (size_t)from * fifth;
    case DIST_KIND_SCATTER_V:
        return (size_t)to * fifth;
    case DIST_KIND_ALL_TO_ALL_V:
        return (size_t)((from + 2 * to) % 4) * fifth;
    default:
        return COUNT;
    }
}

/* Returns true if all ranks receive the same block from a rank. */
static int is_shared(int kind)
{
    return kind == DIST_KIND_ALL_GATHER || kind == DIST_KIND_ALL_GATHER_V || kind == DIST_KIND_BROADCAST
           || kind == DIST_KIND_GATHER || kind == DIST_KIND_GATHER_V;
}

static dist_status_t run_transfer(struct transfer *args)
{
    dist_group_t *group = args->self->group;
    int rank = args->self->rank, dtype = args->dtype, root = args->root;
    switch (args->kind) {
    case DIST_KIND_BROADCAST:
        return dist_broadcast(group, rank == root ? args->send : args->recv, COUNT, dtype, root, NULL, NULL);
    case DIST_KIND_ALL_GATHER:
        return dist_all_gather(group, args->send, args->recv, COUNT, dtype, NULL, NULL);
    case DIST_KIND_GATHER:
        return dist_gather(group, args->send, args->recv, COUNT, dtype, root, NULL, NULL);
    case DIST_KIND_SCATTER:
        return dist_scatter(group, args->send, args->recv, COUNT, dtype, root, NULL, NULL);
    case DIST_KIND_ALL_TO_ALL:
        return dist_all_to_all(group, args->send, args->recv, COUNT, dtype, NULL, NULL);
    case DIST_KIND_ALL_GATHER_V:
        return dist_all_gather_v(group, args->send, args->recvs, args->recv_counts, dtype, NULL, NULL);
    case DIST_KIND_GATHER_V:
        return dist_gather_v(group, args->send, args->send_counts[0], args->recvs, args->recv_counts, dtype, root, NULL,
                             NULL);
    case DIST_KIND_SCATTER_V:
        return dist_scatter_v(group, args->sends, args->send_counts, args->recv, args->recv_counts[root], dtype, root,
                              NULL, NULL);
    default:
        return dist_all_to_all_v(group, args->sends, args->send_counts, args->recvs, args->recv_counts, dtype, NULL,
                                 NULL);
    }
}

static void check_transfer(struct transfer *args)
{
    struct rank *self = args->self;
    size_t element = element_size(args->dtype), at = 0;
    int is_rooted_in = args->kind == DIST_KIND_GATHER || args->kind == DIST_KIND_GATHER_V;
    int from_one =
        args->kind == DIST_KIND_BROADCAST || args->kind == DIST_KIND_SCATTER || args->kind == DIST_KIND_SCATTER_V;
    unsigned char result[BUFFER_BYTES];
    if ((is_rooted_in && self->rank != args->root) || (args->kind == DIST_KIND_BROADCAST && self->rank == args->root)) {
        return;
    }
    read_device(self, result, args->recv, BUFFER_BYTES);
    for (int from = 0; from < self->size; from++) {
        if (from_one && from != args->root) {
            continue;
        }
        size_t count = transfer_count(args, from, self->rank) * element;
        for (size_t i = 0; i < count; i++) {
            unsigned char expected = expected_byte(from, is_shared(args->kind) ? 0 : self->rank, i);
            if (!CHECK(result[at + i] == expected)) {
                printf("  kind %d, dtype %d, rank %d of %d, from %d, byte %zu\n", args->kind, args->dtype, self->rank,
                       self->size, from, i);
                return;
            }
        }
        at += count;
    }
}

static void check_all_transfers(struct rank *self)
{
    static const int kinds[] = { DIST_KIND_BROADCAST,    DIST_KIND_ALL_GATHER, DIST_KIND_GATHER,
                                 DIST_KIND_SCATTER,      DIST_KIND_ALL_TO_ALL, DIST_KIND_ALL_GATHER_V,
                                 DIST_KIND_GATHER_V,     DIST_KIND_SCATTER_V,  DIST_KIND_ALL_TO_ALL_V };
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        for (int dtype = DIST_I8; dtype < DTYPES; dtype++) {
            struct transfer args = { .self = self, .kind = kinds[k], .dtype = dtype, .root = (int)k % self->size };
            unsigned char bytes[BUFFER_BYTES] = { 0 };
            size_t at = 0, into = 0;
            args.send = device_memory(BUFFER_BYTES, NULL);
            args.recv = device_memory(BUFFER_BYTES, NULL);
            for (int other = 0; other < self->size; other++) {
                args.sends[other] = args.send + at;
                args.recvs[other] = args.recv + into;
                args.send_counts[other] = transfer_count(&args, self->rank, other);
                args.recv_counts[other] = transfer_count(&args, other, self->rank);
                size_t length = args.send_counts[other] * element_size(dtype);
                for (size_t i = 0; i < length; i++) {
                    bytes[at + i] = expected_byte(self->rank, is_shared(args.kind) ? 0 : other, i);
                }
                at += is_shared(args.kind) ? 0 : length;
                into += args.recv_counts[other] * element_size(dtype);
            }
            write_device(self, args.send, bytes, BUFFER_BYTES);
            CHECK_OK(dist_backend_supports(self->group, args.kind, dtype, 0, self->gpu));
            if (CHECK_OK(run_transfer(&args))) {
                check_transfer(&args);
            }
            free_device(args.send);
            free_device(args.recv);
        }
    }
}

static void check_all_operations(struct rank *self)
{
    check_all_reductions(self);
    check_all_transfers(self);
    /* The other back end runs this barrier in the same order. */
    CHECK_OK(dist_barrier(self->group, NULL, NULL));
}

/* Runs the tests over one back end, with one piece and with several pieces. */
static void run_staged(const char *backend, int max_ranks)
{
    char map[64];
    snprintf(map, sizeof map, "cpu:%s,cuda:native", backend);
    for (int size = 1; size <= max_ranks; size++) {
        element_count = 5;
        run_on_ranks(size, size % 2 == 0 ? map : backend, check_all_operations);
        /* A piece has at most 4096 bytes for the blocks of all ranks together. */
        element_count = 513;
        run_on_ranks_with_options(size, backend, "staging.chunk_bytes=4096", check_all_operations);
    }
}

static void check_job(struct rank *self)
{
    element_count = 5;
    check_all_operations(self);
    element_count = 513;
    check_all_operations(self);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    int is_staged = strcmp(mode, "staging") == 0, is_job = strcmp(mode, "job") == 0;
    for (int size = 1; size <= MAX_RANKS && !is_staged && !is_job; size++) {
        /* NCCL has 12 types with SUM, PRODUCT, MIN, MAX and AVG. PREMUL_SUM has 8 float types;
         * with one rank it lacks the two 8-bit ones. Two complex types have 2 operators, and
         * bool has 4. */
        n_supported_reductions = 4 * (12 * 5 + (size == 1 ? 6 : 8) + 2 * 2 + 4);
        run_on_ranks(size, size % 2 == 0 ? "cpu:native,cuda:nccl" : "nccl", check_all_operations);
    }
    /* SUM has 17 types; PRODUCT, MIN and MAX have 15; AVG has 16; the bitwise operators have 8
     * and bool; PREMUL_SUM has 8 float types. */
    n_supported_reductions = 4 * (17 + 3 * 15 + 16 + 3 * 9 + 8);
    /* A reduction that the back end lacks is not available at all. */
    n_supported_reductions = argc > 3 ? atoi(argv[3]) : n_supported_reductions;
    if (is_staged) {
        run_staged(argc > 2 ? argv[2] : "native", argc > 2 ? 2 : MAX_RANKS);
    } else if (is_job) {
        REQUIRE(argc > 2);
        run_in_job(argv[2], "staging.chunk_bytes=4096", check_job);
    }
    check_nothing_leaked();
    return check_report();
}
