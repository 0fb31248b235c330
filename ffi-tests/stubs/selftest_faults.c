/*
 * Self-test of the stub libnccl's faults: errors on request, absent ranks, aborts, and
 * mismatching calls.
 */
#include "selftest.h"

#include <time.h>
#include <unistd.h>

/* A reduction of one number; a rank may change its arguments. */
static ncclResult_t reduce(struct rank *rank, CUdeviceptr a, size_t count)
{
    return ncclAllReduce(POINTER(a), POINTER(a), count, ncclInt32, ncclSum, rank->comm, rank->stream);
}

/* After the abort of the communicator the stream continues, and the memory can be freed. */
static void abort_and_end(struct rank *rank, CUdeviceptr a)
{
    OK(ncclCommAbort(rank->comm));
    OK(cuStreamSynchronize(rank->stream));
    OK(cuMemFree(a));
    end_device(rank);
}

static void asynchronous_error(struct rank *rank)
{
    ncclResult_t state = ncclSuccess;
    setenv("DIST_STUB_NCCL_ASYNC_ERROR", "1:2:6", 1);
    begin(rank);
    CUdeviceptr a = device_memory(4);
    for (int i = 0; i < 3; i++) {
        OK(reduce(rank, a, 1));
    }
    if (rank->rank == 1) {
        RESULT(await_error(rank->comm), ncclRemoteError);
        CHECK(strstr(ncclGetLastError(rank->comm), "was asked for") != NULL);
        RESULT(reduce(rank, a, 1), ncclRemoteError);
    } else {
        check_hangs(rank->stream);
        OK(ncclCommGetAsyncError(rank->comm, &state));
        RESULT(state, ncclSuccess);
    }
    barrier();
    abort_and_end(rank, a);
}

static void error_by_function(struct rank *rank)
{
    begin(rank);
    CUdeviceptr a = device_memory(4);
    dist_stub_nccl_async_error(rank->rank, 0, ncclSystemError);
    OK(reduce(rank, a, 1));
    RESULT(cuStreamQuery(rank->stream), CUDA_ERROR_NOT_READY);
    RESULT(await_error(rank->comm), ncclSystemError);
    barrier();
    MISUSE(ncclCommDestroy(rank->comm), ncclSystemError, "must be aborted");
    OK(cuStreamSynchronize(rank->stream));
    OK(cuMemFree(a));
    end_device(rank);
}

/* Rank 0 stops before an operation; the other ranks wait until the abort. */
static void stall(struct rank *rank)
{
    setenv("DIST_STUB_NCCL_STALL", "0:1", 1);
    begin(rank);
    CUdeviceptr a = device_memory(4);
    OK(reduce(rank, a, 1));
    OK(cuStreamSynchronize(rank->stream));
    OK(reduce(rank, a, 1));
    check_hangs(rank->stream);
    barrier();
    abort_and_end(rank, a);
}

static void stall_in_meeting(struct rank *rank)
{
    ncclConfig_t config = not_blocking();
    ncclResult_t state;
    begin_device(rank, rank->rank);
    dist_stub_nccl_stall(0, -1);
    RESULT(ncclCommInitRankConfig(&rank->comm, rank->n, rank->id, rank->rank, &config), ncclInProgress);
    for (int i = 0; i < 20; i++) {
        OK(ncclCommGetAsyncError(rank->comm, &state));
        RESULT(state, ncclInProgress);
    }
    barrier();
    OK(ncclCommAbort(rank->comm));
    /* A rank that arrives later finds no peer. */
    barrier();
    dist_stub_nccl_stall(-1, 0);
    RESULT(ncclCommInitRank(&rank->comm, rank->n, rank->id, rank->rank), ncclSystemError);
    CHECK(rank->comm == NULL && strstr(ncclGetLastError(NULL), "nobody waits") != NULL);
    end_device(rank);
}

static void slow(struct rank *rank)
{
    struct timespec before, after;
    begin(rank);
    CUdeviceptr a = device_memory(4);
    dist_stub_nccl_slow(30000);
    clock_gettime(CLOCK_MONOTONIC, &before);
    OK(reduce(rank, a, 1));
    /* A free waits for the device. */
    OK(cuMemFree(a));
    clock_gettime(CLOCK_MONOTONIC, &after);
    CHECK((after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec >= 30000000);
    OK(cuStreamQuery(rank->stream));
    end(rank);
}

/* Calls that fail on request; they have no effect. */
static void failing_calls(struct rank *rank)
{
    void *memory;
    setenv("DIST_STUB_NCCL_FAIL", "ncclCommInitRank:1:2", 1);
    begin(rank);
    ncclComm_t comm = NULL;
    RESULT(ncclCommInitRank(&comm, rank->n, rank->second, rank->rank), ncclSystemError);
    CHECK(comm == NULL && strstr(ncclGetLastError(NULL), "was asked to fail") != NULL);
    CUdeviceptr a = device_memory(4);
    dist_stub_nccl_fail("ncclAllReduce", 1, ncclInternalError);
    OK(reduce(rank, a, 1));
    RESULT(reduce(rank, a, 1), ncclInternalError);
    dist_stub_nccl_fail("ncclGroupEnd", 0, ncclUnhandledCudaError);
    OK(ncclGroupStart());
    OK(reduce(rank, a, 1));
    RESULT(ncclGroupEnd(), ncclUnhandledCudaError);
    dist_stub_nccl_fail("ncclMemAlloc", 0, ncclUnhandledCudaError);
    RESULT(ncclMemAlloc(&memory, 8), ncclUnhandledCudaError);
    OK(reduce(rank, a, 1));
    OK(cuMemFree(a));
    end(rank);
}

/* The death of a rank is not reported. */
static void death(struct rank *rank)
{
    begin(rank);
    CUdeviceptr a = device_memory(4);
    if (rank->rank == 1) {
        _exit(0);
    }
    OK(reduce(rank, a, 1));
    check_hangs(rank->stream);
    abort_and_end(rank, a);
}

/* A thread aborts while another thread waits for the stream. */
static void *abort_it(void *comm)
{
    OK(ncclCommAbort(comm));
    return NULL;
}

static void abort_during_collective(struct rank *rank)
{
    pthread_t thread;
    begin(rank);
    CUdeviceptr a = device_memory(4);
    if (rank->rank != 0) {
        OK(reduce(rank, a, 1));
        check_hangs(rank->stream);
        CHECK(pthread_create(&thread, NULL, abort_it, rank->comm) == 0);
        OK(cuStreamSynchronize(rank->stream));
        pthread_join(thread, NULL);
        MISUSE(reduce(rank, a, 1), ncclInvalidArgument, "was destroyed or aborted");
    } else {
        OK(ncclCommAbort(rank->comm));
    }
    OK(cuMemFree(a));
    end_device(rank);
}

static void abort_during_message(struct rank *rank)
{
    begin(rank);
    CUdeviceptr a = device_memory(400);
    int peer = (rank->rank + 1) % rank->n;
    OK(ncclSend(POINTER(a), 100, ncclInt32, peer, rank->comm, rank->stream));
    check_hangs(rank->stream);
    barrier();
    abort_and_end(rank, a);
}

/* Two communicators in opposite orders on one stream lead to a deadlock. */
static void opposite_orders(struct rank *rank)
{
    ncclComm_t second;
    begin(rank);
    OK(ncclCommInitRank(&second, rank->n, rank->second, rank->rank));
    CUdeviceptr a = device_memory(8);
    ncclComm_t order[] = { rank->rank == 0 ? rank->comm : second, rank->rank == 0 ? second : rank->comm };
    for (int i = 0; i < 2; i++) {
        void *one = POINTER(a + 4 * (unsigned)i);
        OK(ncclAllReduce(one, one, 1, ncclInt32, ncclSum, order[i], rank->stream));
    }
    check_hangs(rank->stream);
    barrier();
    check_hangs(rank->stream);
    barrier();
    OK(ncclCommAbort(second));
    abort_and_end(rank, a);
}

static void counts_differ(struct rank *rank)
{
    begin(rank);
    CUdeviceptr a = device_memory(40);
    OK(reduce(rank, a, rank->rank == 0 ? 10 : 9));
    check_hangs(rank->stream);
    barrier();
    check_hangs(rank->stream);
    expect_misuses(1, "all_reduce of 10 i32");
    barrier();
    abort_and_end(rank, a);
}

static void kinds_differ_with_error(struct rank *rank)
{
    setenv("DIST_STUB_NCCL_MISMATCH", "error", 1);
    begin(rank);
    CUdeviceptr a = device_memory(40);
    if (rank->rank == 0) {
        OK(reduce(rank, a, 10));
    } else {
        OK(ncclBroadcast(POINTER(a), POINTER(a), 10, ncclInt32, 1, rank->comm, rank->stream));
    }
    RESULT(await_error(rank->comm), ncclInvalidUsage);
    expect_misuses(1, "broadcast of 10 i32");
    barrier();
    abort_and_end(rank, a);
}

static void messages_differ(struct rank *rank)
{
    begin(rank);
    CUdeviceptr a = device_memory(40);
    if (rank->rank == 0) {
        OK(ncclSend(POINTER(a), 10, ncclInt32, 1, rank->comm, rank->stream));
    } else {
        OK(ncclRecv(POINTER(a), 10, ncclFloat32, 0, rank->comm, rank->stream));
    }
    check_hangs(rank->stream);
    barrier();
    check_hangs(rank->stream);
    if (rank->rank == 1) {
        expect_misuses(1, "receive of 10 f32 where rank 0 does send of 10 i32");
    }
    barrier();
    abort_and_end(rank, a);
}

void test_faults(void)
{
    run_processes("asynchronous error", 2, asynchronous_error);
    run_processes("asynchronous error", 4, asynchronous_error);
    run_processes("error by function", 2, error_by_function);
    run_processes("stall", 3, stall);
    run_processes("stall in meeting", 2, stall_in_meeting);
    run_processes("slow", 2, slow);
    run_processes("failing calls", 2, failing_calls);
    run_processes("death", 3, death);
    run_processes("abort during collective", 3, abort_during_collective);
    run_threads("abort during message", 2, abort_during_message);
    run_processes("opposite orders", 2, opposite_orders);
    run_processes("counts differ", 2, counts_differ);
    run_processes("kinds differ, with error", 2, kinds_differ_with_error);
    run_processes("messages differ", 2, messages_differ);
}
