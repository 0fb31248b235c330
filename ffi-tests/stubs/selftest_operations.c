/*
 * Self-test of the stub libnccl's operations: all operations, types and operators, small and
 * large, alone and in groups.
 */
#include "selftest.h"

#include <math.h>

static const struct {
    ncclDataType_t type;
    size_t size;
    /* The format of floats with fewer than 32 bits. */
    int mantissa;
    int bias;
} types[] = {
    { ncclInt8, 1, 0, 0 },       { ncclUint8, 1, 0, 0 },     { ncclInt32, 4, 0, 0 },      { ncclUint32, 4, 0, 0 },
    { ncclInt64, 8, 0, 0 },      { ncclUint64, 8, 0, 0 },    { ncclFloat16, 2, 10, 15 },  { ncclFloat32, 4, 0, 0 },
    { ncclFloat64, 8, 0, 0 },    { ncclBfloat16, 2, 7, 127 }, { ncclFloat8e4m3, 1, 3, 7 }, { ncclFloat8e5m2, 1, 2, 15 },
};
#define TYPES (int)(sizeof types / sizeof types[0])

/* Writes a positive number that is exact in the type. */
static void put(int which, void *into, double value)
{
    float single = (float)value;
    if (types[which].mantissa != 0) {
        int exponent = ilogb(value);
        double fraction = ldexp(value, -exponent) - 1;
        uint64_t bits = (uint64_t)(exponent + types[which].bias) << types[which].mantissa;
        bits += (uint64_t)ldexp(fraction, types[which].mantissa);
        memcpy(into, &bits, types[which].size);
    } else if (types[which].type == ncclFloat32) {
        memcpy(into, &single, sizeof single);
    } else if (types[which].type == ncclFloat64) {
        memcpy(into, &value, sizeof value);
    } else {
        uint64_t bits = (uint64_t)value;
        memcpy(into, &bits, types[which].size);
    }
}

#define N 7

/* Returns 1 or 2, so that results are exact in every type. */
static double element(int rank, size_t i)
{
    return 1 + (double)((i + (size_t)rank) % 2);
}

static double expected(ncclRedOp_t op, int n, size_t i, int is_integer)
{
    double sum = 0, product = 1, largest = 0, smallest = 9;
    for (int rank = 0; rank < n; rank++) {
        double value = element(rank, i);
        sum += value;
        product *= value;
        largest = fmax(largest, value);
        smallest = fmin(smallest, value);
    }
    double average = is_integer ? floor(sum / n) : sum / n;
    double results[] = {
        [ncclSum] = sum, [ncclProd] = product, [ncclMax] = largest, [ncclMin] = smallest, [ncclAvg] = average };
    return results[op];
}

static void all_types(struct rank *rank)
{
    begin(rank);
    CUdeviceptr send = device_memory(N * 8), receive = device_memory(N * 8);
    for (int which = 0; which < TYPES; which++) {
        size_t size = types[which].size;
        unsigned char mine[N * 8], all[N * 8], wanted[N * 8];
        for (size_t i = 0; i < N; i++) {
            put(which, mine + i * size, element(rank->rank, i));
        }
        upload(rank, send, mine, N * size);
        for (ncclRedOp_t op = ncclSum; op <= ncclAvg; op++) {
            int is_integer = types[which].type < ncclFloat16;
            if (op == ncclAvg && rank->n == 3 && !is_integer) {
                /* One third is not exact. */
                continue;
            }
            for (size_t i = 0; i < N; i++) {
                put(which, wanted + i * size, expected(op, rank->n, i, is_integer));
            }
            ncclResult_t result =
                ncclAllReduce(POINTER(send), POINTER(receive), N, types[which].type, op, rank->comm, rank->stream);
            if (op == ncclAvg && rank->n == 1 && types[which].type >= ncclFloat8e4m3) {
                /* One rank alone cannot do this, as with NCCL. */
                CHECK(result == ncclInvalidArgument);
                continue;
            }
            OK(result);
            download(rank, all, receive, N * size);
            CHECK(memcmp(all, wanted, N * size) == 0);
        }
    }
    OK(cuMemFree(send));
    OK(cuMemFree(receive));
    end(rank);
}

/* More elements than are published at a time. */
#define MANY 150001

static int32_t value_of(int rank, size_t i)
{
    return (int32_t)(i * 7 + (size_t)rank * 1000003);
}

static void fill(struct rank *rank, CUdeviceptr to, int who, size_t first, size_t n)
{
    int32_t *values = malloc(n * sizeof *values);
    for (size_t i = 0; i < n; i++) {
        values[i] = value_of(who, first + i);
    }
    upload(rank, to, values, n * sizeof *values);
    free(values);
}

/* Checks the content from an index on: the sum over all ranks, or one rank's values. */
static void expect(struct rank *rank, CUdeviceptr from, int who, size_t first, size_t n)
{
    int32_t *values = malloc(n * sizeof *values);
    size_t wrong = 0;
    download(rank, values, from, n * sizeof *values);
    for (size_t i = 0; i < n; i++) {
        uint32_t wanted = 0;
        for (int other = 0; other < rank->n; other++) {
            wanted += who < 0 || other == who ? (uint32_t)value_of(other, first + i) : 0;
        }
        wrong += (uint32_t)values[i] != wanted;
    }
    CHECK(wrong == 0);
    free(values);
}
#define SUM (-1)

static void large(struct rank *rank)
{
    begin(rank);
    size_t n = (size_t)rank->n, bytes = MANY * sizeof(int32_t);
    CUdeviceptr a = device_memory(bytes * n), b = device_memory(bytes * n);
    size_t mine = (size_t)rank->rank * bytes;
    fill(rank, a, rank->rank, 0, MANY);
    OK(ncclAllReduce(POINTER(a), POINTER(b), MANY, ncclInt32, ncclSum, rank->comm, rank->stream));
    expect(rank, b, SUM, 0, MANY);
    OK(ncclAllReduce(POINTER(a), POINTER(a), MANY, ncclInt32, ncclSum, rank->comm, rank->stream));
    expect(rank, a, SUM, 0, MANY);
    for (int root = 0; root < rank->n; root++) {
        fill(rank, a, rank->rank, 0, MANY);
        OK(ncclBroadcast(POINTER(a), POINTER(b), MANY, ncclInt32, root, rank->comm, rank->stream));
        expect(rank, b, root, 0, MANY);
        void *into = rank->rank == root ? POINTER(b) : NULL;
        OK(ncclReduce(POINTER(a), into, MANY, ncclInt32, ncclSum, root, rank->comm, rank->stream));
        OK(cuStreamSynchronize(rank->stream));
        if (rank->rank == root) {
            expect(rank, b, SUM, 0, MANY);
        }
    }
    OK(ncclAllGather(POINTER(a), POINTER(b), MANY, ncclInt32, rank->comm, rank->stream));
    for (int other = 0; other < rank->n; other++) {
        expect(rank, b + (size_t)other * bytes, other, 0, MANY);
    }
    fill(rank, b + mine, rank->rank, 0, MANY);
    OK(ncclAllGather(POINTER(b + mine), POINTER(b), MANY, ncclInt32, rank->comm, rank->stream));
    expect(rank, b, 0, 0, MANY);
    fill(rank, a, rank->rank, 0, MANY * n);
    OK(ncclReduceScatter(POINTER(a), POINTER(b), MANY, ncclInt32, ncclSum, rank->comm, rank->stream));
    expect(rank, b, SUM, (size_t)rank->rank * MANY, MANY);
    OK(ncclReduceScatter(POINTER(a), POINTER(a + mine), MANY, ncclInt32, ncclSum, rank->comm, rank->stream));
    expect(rank, a + mine, SUM, (size_t)rank->rank * MANY, MANY);
    OK(ncclAllReduce(NULL, NULL, 0, ncclInt32, ncclSum, rank->comm, rank->stream));
    OK(cuMemFree(a));
    OK(cuMemFree(b));
    end(rank);
}

static void messages(struct rank *rank)
{
    begin(rank);
    size_t n = (size_t)rank->n, bytes = MANY * sizeof(int32_t);
    CUdeviceptr a = device_memory(bytes), b = device_memory(bytes * n);
    int next = (rank->rank + 1) % rank->n, previous = (rank->rank + rank->n - 1) % rank->n;
    fill(rank, a, rank->rank, 0, MANY);
    /* A ring with two messages each, in order, and an empty one. */
    OK(ncclGroupStart());
    OK(ncclSend(POINTER(a), MANY, ncclInt32, next, rank->comm, rank->stream));
    OK(ncclSend(POINTER(a), 10, ncclInt32, next, rank->comm, rank->stream));
    OK(ncclSend(NULL, 0, ncclInt32, next, rank->comm, rank->stream));
    OK(ncclRecv(POINTER(b), MANY, ncclInt32, previous, rank->comm, rank->stream));
    OK(ncclRecv(POINTER(b), 10, ncclInt32, previous, rank->comm, rank->stream));
    OK(ncclRecv(NULL, 0, ncclInt32, previous, rank->comm, rank->stream));
    OK(ncclGroupEnd());
    expect(rank, b, previous, 0, MANY);
    /* An all-to-all exchange with a collective in the same group. */
    OK(ncclGroupStart());
    for (int peer = 0; peer < rank->n; peer++) {
        OK(ncclSend(POINTER(a), 1000, ncclInt32, peer, rank->comm, rank->stream));
        OK(ncclRecv(POINTER(b + (size_t)peer * 4000), 1000, ncclInt32, peer, rank->comm, rank->stream));
    }
    OK(ncclGroupEnd());
    for (int peer = 0; peer < rank->n; peer++) {
        expect(rank, b + (size_t)peer * 4000, peer, 0, 1000);
    }
    OK(ncclGroupStart());
    OK(ncclAllReduce(POINTER(a), POINTER(b), 1000, ncclInt32, ncclSum, rank->comm, rank->stream));
    OK(ncclGroupStart());
    OK(ncclBroadcast(POINTER(a + 4000), POINTER(b + 4000), 1000, ncclInt32, 0, rank->comm, rank->stream));
    OK(ncclGroupEnd());
    RESULT(cuStreamQuery(rank->stream), CUDA_SUCCESS);
    OK(ncclGroupEnd());
    expect(rank, b, SUM, 0, 1000);
    expect(rank, b + 4000, 0, 1000, 1000);
    OK(cuMemFree(a));
    OK(cuMemFree(b));
    end(rank);
}

static void factors(struct rank *rank)
{
    begin(rank);
    ncclRedOp_t op, device_op;
    float value = 1, factor = (float)(rank->rank + 2), wanted = 0, got = 0;
    CUdeviceptr a = device_memory(sizeof value), b = device_memory(sizeof value), scalar = device_memory(sizeof value);
    for (int other = 0; other < rank->n; other++) {
        wanted += (float)(other + 2);
    }
    upload(rank, a, &value, sizeof value);
    upload(rank, scalar, &factor, sizeof factor);
    OK(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat32, ncclScalarHostImmediate, rank->comm));
    OK(ncclRedOpCreatePreMulSum(&device_op, POINTER(scalar), ncclFloat32, ncclScalarDevice, rank->comm));
    factor = 0;
    OK(ncclAllReduce(POINTER(a), POINTER(b), 1, ncclFloat32, op, rank->comm, rank->stream));
    OK(ncclRedOpDestroy(op, rank->comm));
    download(rank, &got, b, sizeof got);
    CHECK(got == wanted);
    OK(ncclAllReduce(POINTER(a), POINTER(b), 1, ncclFloat32, device_op, rank->comm, rank->stream));
    download(rank, &got, b, sizeof got);
    CHECK(got == wanted);
    MISUSE(ncclAllReduce(POINTER(a), POINTER(b), 1, ncclFloat64, device_op, rank->comm, rank->stream),
           ncclInvalidArgument, "or one that is gone");
    MISUSE(ncclRedOpDestroy(op, rank->comm), ncclInvalidArgument, "ncclRedOpDestroy");
    OK(cuMemFree(a));
    OK(cuMemFree(b));
    OK(cuMemFree(scalar));
    end(rank);
}

/* An enqueued operation is not done before all ranks have called it, and later work in the
 * stream waits for it. */
static void enqueued_is_not_done(struct rank *rank)
{
    begin(rank);
    CUevent event;
    CUdeviceptr a = device_memory(4);
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    if (rank->rank == 0) {
        OK(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclMax, rank->comm, rank->stream));
        OK(cuEventRecord(event, rank->stream));
        check_hangs(rank->stream);
        RESULT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    }
    barrier();
    if (rank->rank != 0) {
        OK(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclMax, rank->comm, rank->stream));
        OK(cuEventRecord(event, rank->stream));
    }
    OK(cuEventSynchronize(event));
    OK(cuEventDestroy(event));
    OK(cuMemFree(a));
    end(rank);
}

/* Operations of a communicator keep their order over several streams, including the default
 * stream. */
static void several_streams(struct rank *rank)
{
    begin(rank);
    CUdeviceptr a = device_memory(400);
    fill(rank, a, rank->rank, 0, 100);
    OK(ncclAllReduce(POINTER(a), POINTER(a), 100, ncclInt32, ncclSum, rank->comm, NULL));
    OK(ncclBroadcast(POINTER(a), POINTER(a), 100, ncclInt32, 0, rank->comm, rank->stream));
    expect(rank, a, SUM, 0, 100);
    OK(cuStreamSynchronize(NULL));
    OK(cuMemFree(a));
    end(rank);
}

void test_operations(void)
{
    for (int n = 1; n <= 4; n++) {
        run_processes("all types", n, all_types);
        run_processes("large", n, large);
        run_processes("messages", n, messages);
        run_processes("factors", n, factors);
    }
    run_threads("large", 3, large);
    run_threads("messages", 4, messages);
    run_processes("enqueued is not done", 2, enqueued_is_not_done);
    run_processes("several streams", 2, several_streams);
}
