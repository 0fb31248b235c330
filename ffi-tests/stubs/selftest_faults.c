/*
 * Self-test of the stub libnccl's faults: errors on request, absent ranks, aborts, and
 * mismatching calls.
 */
#include "selftest.h"

#include <time.h>
#include <unistd.h>

/* A reduction of one number; a rank may change its arguments. */
static ncclResult_t start_reduce(struct rank *rank, CUdeviceptr a, size_t count)
{
    return ncclAllReduce(POINTER(a), POINTER(a), count, ncclInt32, ncclSum, rank->comm, rank->stream);
}

/* After the abort of the communicator the stream continues, and the memory can be freed. */
static void abort_and_finish(struct rank *rank, CUdeviceptr a)
{
    CHECK_OK(ncclCommAbort(rank->comm));
    CHECK_OK(cuStreamSynchronize(rank->stream));
    CHECK_OK(cuMemFree(a));
    finish_device(rank);
}

static void error_is_asynchronous(struct rank *rank)
{
    ncclResult_t state = ncclSuccess;
    setenv("DIST_STUB_NCCL_ASYNC_ERROR", "1:2:6", 1);
    start_rank(rank);
    CUdeviceptr a = device_memory(4);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(start_reduce(rank, a, 1));
    }
    if (rank->rank == 1) {
        CHECK_RESULT(await_error(rank->comm), ncclRemoteError);
        CHECK(strstr(ncclGetLastError(rank->comm), "was asked for") != NULL);
        CHECK_RESULT(start_reduce(rank, a, 1), ncclRemoteError);
    } else {
        check_hangs(rank->stream);
        CHECK_OK(ncclCommGetAsyncError(rank->comm, &state));
        CHECK_RESULT(state, ncclSuccess);
    }
    barrier();
    abort_and_finish(rank, a);
}

static void error_can_be_set_by_function(struct rank *rank)
{
    start_rank(rank);
    CUdeviceptr a = device_memory(4);
    dist_stub_nccl_async_error(rank->rank, 0, ncclSystemError);
    CHECK_OK(start_reduce(rank, a, 1));
    CHECK_RESULT(cuStreamQuery(rank->stream), CUDA_ERROR_NOT_READY);
    CHECK_RESULT(await_error(rank->comm), ncclSystemError);
    barrier();
    CHECK_MISUSE(ncclCommDestroy(rank->comm), ncclSystemError, "must be aborted");
    CHECK_OK(cuStreamSynchronize(rank->stream));
    CHECK_OK(cuMemFree(a));
    finish_device(rank);
}

/* Rank 0 stops before an operation; the other ranks wait until the abort. */
static void stalled_operation_waits_for_abort(struct rank *rank)
{
    setenv("DIST_STUB_NCCL_STALL", "0:1", 1);
    start_rank(rank);
    CUdeviceptr a = device_memory(4);
    CHECK_OK(start_reduce(rank, a, 1));
    CHECK_OK(cuStreamSynchronize(rank->stream));
    CHECK_OK(start_reduce(rank, a, 1));
    check_hangs(rank->stream);
    barrier();
    abort_and_finish(rank, a);
}

static void stalled_meeting_waits_for_abort(struct rank *rank)
{
    ncclConfig_t config = nonblocking_config();
    ncclResult_t state;
    start_device(rank, rank->rank);
    dist_stub_nccl_stall(0, -1);
    CHECK_RESULT(ncclCommInitRankConfig(&rank->comm, rank->n, rank->id, rank->rank, &config), ncclInProgress);
    for (int i = 0; i < 20; i++) {
        CHECK_OK(ncclCommGetAsyncError(rank->comm, &state));
        CHECK_RESULT(state, ncclInProgress);
    }
    barrier();
    CHECK_OK(ncclCommAbort(rank->comm));
    /* A rank that arrives later finds no peer. */
    barrier();
    dist_stub_nccl_stall(-1, 0);
    CHECK_RESULT(ncclCommInitRank(&rank->comm, rank->n, rank->id, rank->rank), ncclSystemError);
    CHECK(rank->comm == NULL && strstr(ncclGetLastError(NULL), "nobody waits") != NULL);
    finish_device(rank);
}

static void slow_calls_succeed(struct rank *rank)
{
    struct timespec before, after;
    start_rank(rank);
    CUdeviceptr a = device_memory(4);
    dist_stub_nccl_slow(30000);
    clock_gettime(CLOCK_MONOTONIC, &before);
    CHECK_OK(start_reduce(rank, a, 1));
    /* A free waits for the device. */
    CHECK_OK(cuMemFree(a));
    clock_gettime(CLOCK_MONOTONIC, &after);
    CHECK((after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec >= 30000000);
    CHECK_OK(cuStreamQuery(rank->stream));
    finish_rank(rank);
}

/* Calls that fail on request; they have no effect. */
static void requested_failures_have_no_effect(struct rank *rank)
{
    void *memory;
    setenv("DIST_STUB_NCCL_FAIL", "ncclCommInitRank:1:2", 1);
    start_rank(rank);
    ncclComm_t comm = NULL;
    CHECK_RESULT(ncclCommInitRank(&comm, rank->n, rank->second, rank->rank), ncclSystemError);
    CHECK(comm == NULL && strstr(ncclGetLastError(NULL), "was asked to fail") != NULL);
    CUdeviceptr a = device_memory(4);
    dist_stub_nccl_fail("ncclAllReduce", 1, ncclInternalError);
    CHECK_OK(start_reduce(rank, a, 1));
    CHECK_RESULT(start_reduce(rank, a, 1), ncclInternalError);
    dist_stub_nccl_fail("ncclGroupEnd", 0, ncclUnhandledCudaError);
    CHECK_OK(ncclGroupStart());
    CHECK_OK(start_reduce(rank, a, 1));
    CHECK_RESULT(ncclGroupEnd(), ncclUnhandledCudaError);
    dist_stub_nccl_fail("ncclMemAlloc", 0, ncclUnhandledCudaError);
    CHECK_RESULT(ncclMemAlloc(&memory, 8), ncclUnhandledCudaError);
    CHECK_OK(start_reduce(rank, a, 1));
    CHECK_OK(cuMemFree(a));
    finish_rank(rank);
}

/* The death of a rank is not reported. */
static void death_is_not_reported(struct rank *rank)
{
    start_rank(rank);
    CUdeviceptr a = device_memory(4);
    if (rank->rank == 1) {
        _exit(0);
    }
    CHECK_OK(start_reduce(rank, a, 1));
    check_hangs(rank->stream);
    abort_and_finish(rank, a);
}

/* A thread aborts while another thread waits for the stream. */
static void *abort_comm(void *comm)
{
    CHECK_OK(ncclCommAbort(comm));
    return NULL;
}

static void abort_during_collective(struct rank *rank)
{
    pthread_t thread;
    start_rank(rank);
    CUdeviceptr a = device_memory(4);
    if (rank->rank != 0) {
        CHECK_OK(start_reduce(rank, a, 1));
        check_hangs(rank->stream);
        CHECK(pthread_create(&thread, NULL, abort_comm, rank->comm) == 0);
        CHECK_OK(cuStreamSynchronize(rank->stream));
        pthread_join(thread, NULL);
        CHECK_MISUSE(start_reduce(rank, a, 1), ncclInvalidArgument, "was destroyed or aborted");
    } else {
        CHECK_OK(ncclCommAbort(rank->comm));
    }
    CHECK_OK(cuMemFree(a));
    finish_device(rank);
}

static void abort_during_message(struct rank *rank)
{
    start_rank(rank);
    CUdeviceptr a = device_memory(400);
    int peer = (rank->rank + 1) % rank->n;
    CHECK_OK(ncclSend(POINTER(a), 100, ncclInt32, peer, rank->comm, rank->stream));
    check_hangs(rank->stream);
    barrier();
    abort_and_finish(rank, a);
}

/* Two communicators in opposite orders on one stream lead to a deadlock. */
static void opposite_orders_deadlock(struct rank *rank)
{
    ncclComm_t second;
    start_rank(rank);
    CHECK_OK(ncclCommInitRank(&second, rank->n, rank->second, rank->rank));
    CUdeviceptr a = device_memory(8);
    ncclComm_t order[] = { rank->rank == 0 ? rank->comm : second, rank->rank == 0 ? second : rank->comm };
    for (int i = 0; i < 2; i++) {
        void *one = POINTER(a + 4 * (unsigned)i);
        CHECK_OK(ncclAllReduce(one, one, 1, ncclInt32, ncclSum, order[i], rank->stream));
    }
    check_hangs(rank->stream);
    barrier();
    check_hangs(rank->stream);
    barrier();
    CHECK_OK(ncclCommAbort(second));
    abort_and_finish(rank, a);
}

static void differing_counts_hang(struct rank *rank)
{
    start_rank(rank);
    CUdeviceptr a = device_memory(40);
    CHECK_OK(start_reduce(rank, a, rank->rank == 0 ? 10 : 9));
    check_hangs(rank->stream);
    barrier();
    check_hangs(rank->stream);
    expect_misuses(1, "all_reduce of 10 i32");
    barrier();
    abort_and_finish(rank, a);
}

static void differing_kinds_fail(struct rank *rank)
{
    setenv("DIST_STUB_NCCL_MISMATCH", "error", 1);
    start_rank(rank);
    CUdeviceptr a = device_memory(40);
    if (rank->rank == 0) {
        CHECK_OK(start_reduce(rank, a, 10));
    } else {
        CHECK_OK(ncclBroadcast(POINTER(a), POINTER(a), 10, ncclInt32, 1, rank->comm, rank->stream));
    }
    CHECK_RESULT(await_error(rank->comm), ncclInvalidUsage);
    expect_misuses(1, "broadcast of 10 i32");
    barrier();
    abort_and_finish(rank, a);
}

static void differing_messages_hang(struct rank *rank)
{
    start_rank(rank);
    CUdeviceptr a = device_memory(40);
    if (rank->rank == 0) {
        CHECK_OK(ncclSend(POINTER(a), 10, ncclInt32, 1, rank->comm, rank->stream));
    } else {
        CHECK_OK(ncclRecv(POINTER(a), 10, ncclFloat32, 0, rank->comm, rank->stream));
    }
    check_hangs(rank->stream);
    barrier();
    check_hangs(rank->stream);
    if (rank->rank == 1) {
        expect_misuses(1, "receive of 10 f32 where rank 0 does send of 10 i32");
    }
    barrier();
    abort_and_finish(rank, a);
}

void test_faults(void)
{
    run_processes("asynchronous error", 2, error_is_asynchronous);
    run_processes("asynchronous error", 4, error_is_asynchronous);
    run_processes("error by function", 2, error_can_be_set_by_function);
    run_processes("stall", 3, stalled_operation_waits_for_abort);
    run_processes("stall in meeting", 2, stalled_meeting_waits_for_abort);
    run_processes("slow", 2, slow_calls_succeed);
    run_processes("failing calls", 2, requested_failures_have_no_effect);
    run_processes("death", 3, death_is_not_reported);
    run_processes("abort during collective", 3, abort_during_collective);
    run_threads("abort during message", 2, abort_during_message);
    run_processes("opposite orders", 2, opposite_orders_deadlock);
    run_processes("counts differ", 2, differing_counts_hang);
    run_processes("kinds differ, with error", 2, differing_kinds_fail);
    run_processes("messages differ", 2, differing_messages_hang);
}
