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
static size_t count_of_all = 5;
#define COUNT count_of_all
#define MOST_COUNT 520
#define MOST_BYTES (MOST_RANKS * (MOST_COUNT + MOST_RANKS) * 16)

/* The number of supported reductions, each a pair of type and operator. */
static int supported_folds;

static const size_t sizes[] = { 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 8, 16, 1, 1, 1 };
#define DTYPES (DIST_I8 + (int)(sizeof sizes / sizeof sizes[0])) /* one after the last type */
#define OPS (DIST_PREMUL_SUM + 1) /* one after the last operator */

static size_t size_of(int dtype)
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
static void put(int dtype, void *into, int value)
{
    unsigned bits = 0;
    float single = (float)value;
    double twice[2] = { value, value };
    float both[2] = { single, single };
    int64_t whole = value;
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
        memcpy(into, twice, sizeof twice[0]);
        return;
    case DIST_C64:
        memcpy(into, both, sizeof both);
        return;
    case DIST_C128:
        memcpy(into, twice, sizeof twice);
        return;
    case DIST_BOOL:
        whole = value != 1;
        memcpy(into, &whole, 1);
        return;
    default:
        memcpy(into, &whole, size_of(dtype));
        return;
    }
    memcpy(into, &bits, size_of(dtype));
}

static double get(int dtype, const void *from)
{
    uint64_t bits = 0;
    float single;
    double twice;
    memcpy(&bits, from, size_of(dtype) > 8 ? 8 : size_of(dtype));
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
        memcpy(&twice, from, sizeof twice);
        return twice;
    default:
        return (double)bits;
    }
}

/* Returns the value of a rank at an index. */
static int value_of(int rank, size_t place)
{
    return (rank * 2 + (int)place) % 2 + 1;
}

static int raw_bool(int value)
{
    return value != 1;
}

static double expected(int dtype, int op, int size, size_t place)
{
    double result = 0;
    for (int rank = 0; rank < size; rank++) {
        double value = dtype == DIST_BOOL ? raw_bool(value_of(rank, place)) : value_of(rank, place);
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
static int is_close(int dtype, double got, double wanted)
{
    double bits = dtype == DIST_F8E5M2 ? 2 : dtype == DIST_F8E4M3 ? 3 : dtype == DIST_BF16 ? 7 : 10;
    return dtype < DIST_F16 || dtype == DIST_BOOL ? got == wanted : fabs(got - wanted) <= 2 * wanted * ldexp(1, (int)-bits);
}

struct reduction {
    struct rank *self;
    int kind;
    int dtype;
    int op;
    unsigned char *send;
    unsigned char *recv;
};

static dist_status_t reduce(const struct reduction *it, const dist_call_options_t *options)
{
    struct rank *self = it->self;
    size_t element = size_of(it->dtype);
    const void *sends[MOST_RANKS];
    size_t counts[MOST_RANKS];
    size_t at = 0;
    for (int rank = 0; rank < self->size; rank++) {
        counts[rank] = COUNT - (size_t)rank;
        sends[rank] = it->send + at * element;
        at += counts[rank];
    }
    switch (it->kind) {
    case DIST_KIND_ALL_REDUCE:
        return dist_all_reduce(self->group, it->send, it->recv, COUNT, it->dtype, it->op, options, NULL);
    case DIST_KIND_REDUCE:
        return dist_reduce(self->group, it->send, it->recv, COUNT, it->dtype, it->op, self->size - 1, options, NULL);
    case DIST_KIND_REDUCE_SCATTER:
        return dist_reduce_scatter(self->group, it->send, it->recv, COUNT, it->dtype, it->op, options, NULL);
    default:
        return dist_reduce_scatter_v(self->group, sends, counts, it->recv, it->dtype, it->op, options, NULL);
    }
}

static void check_reduction(const struct reduction *it)
{
    struct rank *self = it->self;
    size_t element = size_of(it->dtype);
    unsigned char result[MOST_BYTES];
    size_t count = COUNT, first = 0;
    if (it->kind == DIST_KIND_REDUCE && self->rank != self->size - 1) {
        return;
    }
    if (it->kind == DIST_KIND_REDUCE_SCATTER) {
        first = (size_t)self->rank * COUNT;
    } else if (it->kind == DIST_KIND_REDUCE_SCATTER_V) {
        count = COUNT - (size_t)self->rank;
        for (int rank = 0; rank < self->rank; rank++) {
            first += COUNT - (size_t)rank;
        }
    }
    read_device(self, result, it->recv, count * element);
    for (size_t i = 0; i < count; i++) {
        double got = get(it->dtype, result + i * element);
        double wanted = expected(it->dtype, it->op, self->size, first + i);
        if (!CHECK(is_close(it->dtype, got, wanted))) {
            printf("  kind %d, dtype %d, op %d, rank %d of %d, element %zu: %g, and not %g\n", it->kind, it->dtype, it->op,
                   self->rank, self->size, i, got, wanted);
            return;
        }
    }
}

static void all_reductions(struct rank *self)
{
    static const int kinds[] = { DIST_KIND_ALL_REDUCE, DIST_KIND_REDUCE, DIST_KIND_REDUCE_SCATTER, DIST_KIND_REDUCE_SCATTER_V };
    unsigned char values[MOST_BYTES];
    int done = 0;
    for (int dtype = DIST_I8; dtype < DTYPES; dtype++) {
        for (size_t i = 0; i < MOST_RANKS * COUNT; i++) {
            put(dtype, values + i * size_of(dtype), value_of(self->rank, i));
        }
        void *send = device_memory(MOST_RANKS * COUNT * size_of(dtype), values);
        void *recv = device_memory(MOST_RANKS * COUNT * size_of(dtype), NULL);
        for (int op = DIST_SUM; op < OPS; op++) {
            for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
                struct reduction it = { self, kinds[k], dtype, op, send, recv };
                dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
                options.premul_scale = op == DIST_PREMUL_SUM ? self->rank + 1 : 0;
                dist_status_t said = dist_backend_supports(self->group, kinds[k], dtype, op, self->gpu);
                CHECK(said == DIST_OK || said == DIST_ERR_UNSUPPORTED);
                if (CHECK_STATUS(reduce(&it, &options), said) && said == DIST_OK) {
                    check_reduction(&it);
                    done++;
                }
            }
        }
        free_device(send);
        free_device(recv);
    }
    CHECK(done == supported_folds);
}

static unsigned char byte_of(int from, int to, size_t place)
{
    return (unsigned char)(from * 61 + to * 17 + (int)place * 3 + 1);
}

struct move {
    struct rank *self;
    int kind;
    int dtype;
    int root;
    unsigned char *send;
    unsigned char *recv;
    const void *sends[MOST_RANKS];
    void *recvs[MOST_RANKS];
    size_t send_counts[MOST_RANKS];
    size_t recv_counts[MOST_RANKS];
};

/* Returns the number of elements that one rank sends to another; it may be 0. */
static size_t count_of(const struct move *it, int from, int to)
{
    size_t fifth = COUNT / 5;
    switch (it->kind) {
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

static dist_status_t carry(struct move *it)
{
    dist_group_t *group = it->self->group;
    int rank = it->self->rank, dtype = it->dtype, root = it->root;
    switch (it->kind) {
    case DIST_KIND_BROADCAST:
        return dist_broadcast(group, rank == root ? it->send : it->recv, COUNT, dtype, root, NULL, NULL);
    case DIST_KIND_ALL_GATHER:
        return dist_all_gather(group, it->send, it->recv, COUNT, dtype, NULL, NULL);
    case DIST_KIND_GATHER:
        return dist_gather(group, it->send, it->recv, COUNT, dtype, root, NULL, NULL);
    case DIST_KIND_SCATTER:
        return dist_scatter(group, it->send, it->recv, COUNT, dtype, root, NULL, NULL);
    case DIST_KIND_ALL_TO_ALL:
        return dist_all_to_all(group, it->send, it->recv, COUNT, dtype, NULL, NULL);
    case DIST_KIND_ALL_GATHER_V:
        return dist_all_gather_v(group, it->send, it->recvs, it->recv_counts, dtype, NULL, NULL);
    case DIST_KIND_GATHER_V:
        return dist_gather_v(group, it->send, it->send_counts[0], it->recvs, it->recv_counts, dtype, root, NULL, NULL);
    case DIST_KIND_SCATTER_V:
        return dist_scatter_v(group, it->sends, it->send_counts, it->recv, it->recv_counts[root], dtype, root, NULL, NULL);
    default:
        return dist_all_to_all_v(group, it->sends, it->send_counts, it->recvs, it->recv_counts, dtype, NULL, NULL);
    }
}

static void check_move(struct move *it)
{
    struct rank *self = it->self;
    size_t element = size_of(it->dtype), at = 0;
    int is_rooted_in = it->kind == DIST_KIND_GATHER || it->kind == DIST_KIND_GATHER_V;
    int from_one = it->kind == DIST_KIND_BROADCAST || it->kind == DIST_KIND_SCATTER || it->kind == DIST_KIND_SCATTER_V;
    unsigned char result[MOST_BYTES];
    if ((is_rooted_in && self->rank != it->root) || (it->kind == DIST_KIND_BROADCAST && self->rank == it->root)) {
        return;
    }
    read_device(self, result, it->recv, MOST_BYTES);
    for (int from = 0; from < self->size; from++) {
        if (from_one && from != it->root) {
            continue;
        }
        size_t count = count_of(it, from, self->rank) * element;
        for (size_t i = 0; i < count; i++) {
            unsigned char wanted = byte_of(from, is_shared(it->kind) ? 0 : self->rank, i);
            if (!CHECK(result[at + i] == wanted)) {
                printf("  kind %d, dtype %d, rank %d of %d, from %d, byte %zu\n", it->kind, it->dtype, self->rank, self->size,
                       from, i);
                return;
            }
        }
        at += count;
    }
}

static void all_moves(struct rank *self)
{
    static const int kinds[] = { DIST_KIND_BROADCAST,    DIST_KIND_ALL_GATHER, DIST_KIND_GATHER,
                                 DIST_KIND_SCATTER,      DIST_KIND_ALL_TO_ALL, DIST_KIND_ALL_GATHER_V,
                                 DIST_KIND_GATHER_V,     DIST_KIND_SCATTER_V,  DIST_KIND_ALL_TO_ALL_V };
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        for (int dtype = DIST_I8; dtype < DTYPES; dtype++) {
            struct move it = { .self = self, .kind = kinds[k], .dtype = dtype, .root = (int)k % self->size };
            unsigned char bytes[MOST_BYTES] = { 0 };
            size_t at = 0, into = 0;
            it.send = device_memory(MOST_BYTES, NULL);
            it.recv = device_memory(MOST_BYTES, NULL);
            for (int other = 0; other < self->size; other++) {
                it.sends[other] = it.send + at;
                it.recvs[other] = it.recv + into;
                it.send_counts[other] = count_of(&it, self->rank, other);
                it.recv_counts[other] = count_of(&it, other, self->rank);
                size_t length = it.send_counts[other] * size_of(dtype);
                for (size_t i = 0; i < length; i++) {
                    bytes[at + i] = byte_of(self->rank, is_shared(it.kind) ? 0 : other, i);
                }
                at += is_shared(it.kind) ? 0 : length;
                into += it.recv_counts[other] * size_of(dtype);
            }
            write_device(self, it.send, bytes, MOST_BYTES);
            CHECK_OK(dist_backend_supports(self->group, it.kind, dtype, 0, self->gpu));
            if (CHECK_OK(carry(&it))) {
                check_move(&it);
            }
            free_device(it.send);
            free_device(it.recv);
        }
    }
}

static void everything(struct rank *self)
{
    all_reductions(self);
    all_moves(self);
    /* The other back end runs this barrier in the same order. */
    CHECK_OK(dist_barrier(self->group, NULL, NULL));
}

/* Runs the tests over one back end, with one piece and with several pieces. */
static void staged(const char *backend, int most_ranks)
{
    char map[64];
    snprintf(map, sizeof map, "cpu:%s,cuda:native", backend);
    for (int size = 1; size <= most_ranks; size++) {
        count_of_all = 5;
        on_ranks(size, size % 2 == 0 ? map : backend, everything);
        /* A piece has at most 4096 bytes for the blocks of all ranks together. */
        count_of_all = 513;
        on_ranks_with(size, backend, "staging.chunk_bytes=4096", everything);
    }
}

static void of_a_job(struct rank *self)
{
    count_of_all = 5;
    everything(self);
    count_of_all = 513;
    everything(self);
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    int is_staged = strcmp(how, "staging") == 0, is_job = strcmp(how, "job") == 0;
    for (int size = 1; size <= MOST_RANKS && !is_staged && !is_job; size++) {
        /* NCCL has 12 types with SUM, PRODUCT, MIN, MAX and AVG. PREMUL_SUM has 8 float types;
         * with one rank it lacks the two 8-bit ones. Two complex types have 2 operators, and
         * bool has 4. */
        supported_folds = 4 * (12 * 5 + (size == 1 ? 6 : 8) + 2 * 2 + 4);
        on_ranks(size, size % 2 == 0 ? "cpu:native,cuda:nccl" : "nccl", everything);
    }
    /* SUM has 17 types; PRODUCT, MIN and MAX have 15; AVG has 16; the bitwise operators have 8
     * and bool; PREMUL_SUM has 8 float types. */
    supported_folds = 4 * (17 + 3 * 15 + 16 + 3 * 9 + 8);
    /* A reduction that the back end lacks is not available at all. */
    supported_folds = argc > 3 ? atoi(argv[3]) : supported_folds;
    if (is_staged) {
        staged(argc > 2 ? argv[2] : "native", argc > 2 ? 2 : MOST_RANKS);
    } else if (is_job) {
        REQUIRE(argc > 2);
        on_job(argv[2], "staging.chunk_bytes=4096", of_a_job);
    }
    check_nothing_left();
    return check_report();
}
