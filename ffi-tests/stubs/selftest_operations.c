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
static void put_element(int index, void *into, double value)
{
    float single = (float)value;
    if (types[index].mantissa != 0) {
        int exponent = ilogb(value);
        double fraction = ldexp(value, -exponent) - 1;
        uint64_t bits = (uint64_t)(exponent + types[index].bias) << types[index].mantissa;
        bits += (uint64_t)ldexp(fraction, types[index].mantissa);
        memcpy(into, &bits, types[index].size);
    } else if (types[index].type == ncclFloat32) {
        memcpy(into, &single, sizeof single);
    } else if (types[index].type == ncclFloat64) {
        memcpy(into, &value, sizeof value);
    } else {
        uint64_t bits = (uint64_t)value;
        memcpy(into, &bits, types[index].size);
    }
}

#define N 7

/* Returns 1 or 2, so that results are exact in every type. */
static double element(int rank, size_t i)
{
    return 1 + (double)((i + (size_t)rank) % 2);
}

static double expected_value(ncclRedOp_t op, int n, size_t i, int is_integer)
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

static void check_all_types(struct rank *rank)
{
    start_rank(rank);
    CUdeviceptr send = device_memory(N * 8), receive = device_memory(N * 8);
    for (int index = 0; index < TYPES; index++) {
        size_t size = types[index].size;
        unsigned char own[N * 8], all[N * 8], expected[N * 8];
        for (size_t i = 0; i < N; i++) {
            put_element(index, own + i * size, element(rank->rank, i));
        }
        upload(rank, send, own, N * size);
        for (ncclRedOp_t op = ncclSum; op <= ncclAvg; op++) {
            int is_integer = types[index].type < ncclFloat16;
            if (op == ncclAvg && rank->n == 3 && !is_integer) {
                /* One third is not exact. */
                continue;
            }
            for (size_t i = 0; i < N; i++) {
                put_element(index, expected + i * size, expected_value(op, rank->n, i, is_integer));
            }
            ncclResult_t result =
                ncclAllReduce(POINTER(send), POINTER(receive), N, types[index].type, op, rank->comm, rank->stream);
            if (op == ncclAvg && rank->n == 1 && types[index].type >= ncclFloat8e4m3) {
                /* One rank alone cannot do this, as with NCCL. */
                CHECK(result == ncclInvalidArgument);
                continue;
            }
            CHECK_OK(result);
            download(rank, all, receive, N * size);
            CHECK(memcmp(all, expected, N * size) == 0);
        }
    }
    CHECK_OK(cuMemFree(send));
    CHECK_OK(cuMemFree(receive));
    finish_rank(rank);
}

/* More elements than are published at a time. */
#define LARGE_COUNT 150001

static int32_t input_value(int rank, size_t i)
{
    return (int32_t)(i * 7 + (size_t)rank * 1000003);
}

static void fill_buffer(struct rank *rank, CUdeviceptr to, int rank_or_sum, size_t first, size_t n)
{
    int32_t *values = malloc(n * sizeof *values);
    for (size_t i = 0; i < n; i++) {
        values[i] = input_value(rank_or_sum, first + i);
    }
    upload(rank, to, values, n * sizeof *values);
    free(values);
}

/* Checks the content from an index on: the sum over all ranks, or one rank's values. */
static void check_content(struct rank *rank, CUdeviceptr from, int rank_or_sum, size_t first, size_t n)
{
    int32_t *values = malloc(n * sizeof *values);
    size_t wrong = 0;
    download(rank, values, from, n * sizeof *values);
    for (size_t i = 0; i < n; i++) {
        uint32_t expected = 0;
        for (int other = 0; other < rank->n; other++) {
            expected += rank_or_sum < 0 || other == rank_or_sum ? (uint32_t)input_value(other, first + i) : 0;
        }
        wrong += (uint32_t)values[i] != expected;
    }
    CHECK(wrong == 0);
    free(values);
}
#define SUM (-1)

static void check_large_count(struct rank *rank)
{
    start_rank(rank);
    size_t n = (size_t)rank->n, bytes = LARGE_COUNT * sizeof(int32_t);
    CUdeviceptr a = device_memory(bytes * n), b = device_memory(bytes * n);
    size_t own_offset = (size_t)rank->rank * bytes;
    fill_buffer(rank, a, rank->rank, 0, LARGE_COUNT);
    CHECK_OK(ncclAllReduce(POINTER(a), POINTER(b), LARGE_COUNT, ncclInt32, ncclSum, rank->comm, rank->stream));
    check_content(rank, b, SUM, 0, LARGE_COUNT);
    CHECK_OK(ncclAllReduce(POINTER(a), POINTER(a), LARGE_COUNT, ncclInt32, ncclSum, rank->comm, rank->stream));
    check_content(rank, a, SUM, 0, LARGE_COUNT);
    for (int root = 0; root < rank->n; root++) {
        fill_buffer(rank, a, rank->rank, 0, LARGE_COUNT);
        CHECK_OK(ncclBroadcast(POINTER(a), POINTER(b), LARGE_COUNT, ncclInt32, root, rank->comm, rank->stream));
        check_content(rank, b, root, 0, LARGE_COUNT);
        void *into = rank->rank == root ? POINTER(b) : NULL;
        CHECK_OK(ncclReduce(POINTER(a), into, LARGE_COUNT, ncclInt32, ncclSum, root, rank->comm, rank->stream));
        CHECK_OK(cuStreamSynchronize(rank->stream));
        if (rank->rank == root) {
            check_content(rank, b, SUM, 0, LARGE_COUNT);
        }
    }
    CHECK_OK(ncclAllGather(POINTER(a), POINTER(b), LARGE_COUNT, ncclInt32, rank->comm, rank->stream));
    for (int other = 0; other < rank->n; other++) {
        check_content(rank, b + (size_t)other * bytes, other, 0, LARGE_COUNT);
    }
    fill_buffer(rank, b + own_offset, rank->rank, 0, LARGE_COUNT);
    CHECK_OK(ncclAllGather(POINTER(b + own_offset), POINTER(b), LARGE_COUNT, ncclInt32, rank->comm, rank->stream));
    check_content(rank, b, 0, 0, LARGE_COUNT);
    fill_buffer(rank, a, rank->rank, 0, LARGE_COUNT * n);
    CHECK_OK(ncclReduceScatter(POINTER(a), POINTER(b), LARGE_COUNT, ncclInt32, ncclSum, rank->comm, rank->stream));
    check_content(rank, b, SUM, (size_t)rank->rank * LARGE_COUNT, LARGE_COUNT);
    CHECK_OK(ncclReduceScatter(POINTER(a), POINTER(a + own_offset), LARGE_COUNT, ncclInt32, ncclSum, rank->comm,
                               rank->stream));
    check_content(rank, a + own_offset, SUM, (size_t)rank->rank * LARGE_COUNT, LARGE_COUNT);
    CHECK_OK(ncclAllReduce(NULL, NULL, 0, ncclInt32, ncclSum, rank->comm, rank->stream));
    CHECK_OK(cuMemFree(a));
    CHECK_OK(cuMemFree(b));
    finish_rank(rank);
}

static void check_messages(struct rank *rank)
{
    start_rank(rank);
    size_t n = (size_t)rank->n, bytes = LARGE_COUNT * sizeof(int32_t);
    CUdeviceptr a = device_memory(bytes), b = device_memory(bytes * n);
    int next = (rank->rank + 1) % rank->n, previous = (rank->rank + rank->n - 1) % rank->n;
    fill_buffer(rank, a, rank->rank, 0, LARGE_COUNT);
    /* A ring with two messages each, in order, and an empty one. */
    CHECK_OK(ncclGroupStart());
    CHECK_OK(ncclSend(POINTER(a), LARGE_COUNT, ncclInt32, next, rank->comm, rank->stream));
    CHECK_OK(ncclSend(POINTER(a), 10, ncclInt32, next, rank->comm, rank->stream));
    CHECK_OK(ncclSend(NULL, 0, ncclInt32, next, rank->comm, rank->stream));
    CHECK_OK(ncclRecv(POINTER(b), LARGE_COUNT, ncclInt32, previous, rank->comm, rank->stream));
    CHECK_OK(ncclRecv(POINTER(b), 10, ncclInt32, previous, rank->comm, rank->stream));
    CHECK_OK(ncclRecv(NULL, 0, ncclInt32, previous, rank->comm, rank->stream));
    CHECK_OK(ncclGroupEnd());
    check_content(rank, b, previous, 0, LARGE_COUNT);
    /* An all-to-all exchange with a collective in the same group. */
    CHECK_OK(ncclGroupStart());
    for (int peer = 0; peer < rank->n; peer++) {
        CHECK_OK(ncclSend(POINTER(a), 1000, ncclInt32, peer, rank->comm, rank->stream));
        CHECK_OK(ncclRecv(POINTER(b + (size_t)peer * 4000), 1000, ncclInt32, peer, rank->comm, rank->stream));
    }
    CHECK_OK(ncclGroupEnd());
    for (int peer = 0; peer < rank->n; peer++) {
        check_content(rank, b + (size_t)peer * 4000, peer, 0, 1000);
    }
    CHECK_OK(ncclGroupStart());
    CHECK_OK(ncclAllReduce(POINTER(a), POINTER(b), 1000, ncclInt32, ncclSum, rank->comm, rank->stream));
    CHECK_OK(ncclGroupStart());
    CHECK_OK(ncclBroadcast(POINTER(a + 4000), POINTER(b + 4000), 1000, ncclInt32, 0, rank->comm, rank->stream));
    CHECK_OK(ncclGroupEnd());
    CHECK_RESULT(cuStreamQuery(rank->stream), CUDA_SUCCESS);
    CHECK_OK(ncclGroupEnd());
    check_content(rank, b, SUM, 0, 1000);
    check_content(rank, b + 4000, 0, 1000, 1000);
    CHECK_OK(cuMemFree(a));
    CHECK_OK(cuMemFree(b));
    finish_rank(rank);
}

static void check_factors(struct rank *rank)
{
    start_rank(rank);
    ncclRedOp_t op, device_op;
    float value = 1, factor = (float)(rank->rank + 2), expected = 0, actual = 0;
    CUdeviceptr a = device_memory(sizeof value), b = device_memory(sizeof value), scalar = device_memory(sizeof value);
    for (int other = 0; other < rank->n; other++) {
        expected += (float)(other + 2);
    }
    upload(rank, a, &value, sizeof value);
    upload(rank, scalar, &factor, sizeof factor);
    CHECK_OK(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat32, ncclScalarHostImmediate, rank->comm));
    CHECK_OK(ncclRedOpCreatePreMulSum(&device_op, POINTER(scalar), ncclFloat32, ncclScalarDevice, rank->comm));
    factor = 0;
    CHECK_OK(ncclAllReduce(POINTER(a), POINTER(b), 1, ncclFloat32, op, rank->comm, rank->stream));
    CHECK_OK(ncclRedOpDestroy(op, rank->comm));
    download(rank, &actual, b, sizeof actual);
    CHECK(actual == expected);
    CHECK_OK(ncclAllReduce(POINTER(a), POINTER(b), 1, ncclFloat32, device_op, rank->comm, rank->stream));
    download(rank, &actual, b, sizeof actual);
    CHECK(actual == expected);
    CHECK_MISUSE(ncclAllReduce(POINTER(a), POINTER(b), 1, ncclFloat64, device_op, rank->comm, rank->stream),
                 ncclInvalidArgument, "or one that is gone");
    CHECK_MISUSE(ncclRedOpDestroy(op, rank->comm), ncclInvalidArgument, "ncclRedOpDestroy");
    CHECK_OK(cuMemFree(a));
    CHECK_OK(cuMemFree(b));
    CHECK_OK(cuMemFree(scalar));
    finish_rank(rank);
}

/* An enqueued operation is not done before all ranks have called it, and later work in the
 * stream waits for it. */
static void enqueued_operation_is_not_complete(struct rank *rank)
{
    start_rank(rank);
    CUevent event;
    CUdeviceptr a = device_memory(4);
    CHECK_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    if (rank->rank == 0) {
        CHECK_OK(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclMax, rank->comm, rank->stream));
        CHECK_OK(cuEventRecord(event, rank->stream));
        check_hangs(rank->stream);
        CHECK_RESULT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    }
    barrier();
    if (rank->rank != 0) {
        CHECK_OK(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclMax, rank->comm, rank->stream));
        CHECK_OK(cuEventRecord(event, rank->stream));
    }
    CHECK_OK(cuEventSynchronize(event));
    CHECK_OK(cuEventDestroy(event));
    CHECK_OK(cuMemFree(a));
    finish_rank(rank);
}

/* Operations of a communicator keep their order over several streams, including the default
 * stream. */
static void streams_keep_operation_order(struct rank *rank)
{
    start_rank(rank);
    CUdeviceptr a = device_memory(400);
    fill_buffer(rank, a, rank->rank, 0, 100);
    CHECK_OK(ncclAllReduce(POINTER(a), POINTER(a), 100, ncclInt32, ncclSum, rank->comm, NULL));
    CHECK_OK(ncclBroadcast(POINTER(a), POINTER(a), 100, ncclInt32, 0, rank->comm, rank->stream));
    check_content(rank, a, SUM, 0, 100);
    CHECK_OK(cuStreamSynchronize(NULL));
    CHECK_OK(cuMemFree(a));
    finish_rank(rank);
}

void test_operations(void)
{
    for (int n = 1; n <= 4; n++) {
        run_processes("all types", n, check_all_types);
        run_processes("large", n, check_large_count);
        run_processes("messages", n, check_messages);
        run_processes("factors", n, check_factors);
    }
    run_threads("large", 3, check_large_count);
    run_threads("messages", 4, check_messages);
    run_processes("enqueued is not done", 2, enqueued_operation_is_not_complete);
    run_processes("several streams", 2, streams_keep_operation_order);
}
