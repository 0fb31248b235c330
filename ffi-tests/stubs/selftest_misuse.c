/*
 * Self-test of the misuse that the stub libnccl detects in the calls of one rank.
 */
#include "selftest.h"

static void check_handles(struct rank *rank)
{
    ncclComm_t comm;
    ncclResult_t state;
    int value;
    start_rank(rank);
    comm = rank->comm;
    CHECK_MISUSE(ncclCommCount(NULL, &value), ncclInvalidArgument, "on no communicator");
    CHECK_MISUSE(ncclCommCount((ncclComm_t)rank, &value), ncclInvalidArgument, "what is no communicator");
    CHECK_OK(ncclCommDestroy(comm));
    CHECK_MISUSE(ncclCommDestroy(comm), ncclInvalidArgument, "ncclCommDestroy on what is no communicator");
    CHECK_MISUSE(ncclCommAbort(comm), ncclInvalidArgument, "ncclCommAbort on");
    CHECK_MISUSE(ncclCommGetAsyncError(comm, &state), ncclInvalidArgument, "ncclCommGetAsyncError on");
    CHECK_MISUSE(ncclCommUserRank(comm, &value), ncclInvalidArgument, "ncclCommUserRank on");
    finish_device(rank);
}

static void check_meetings(struct rank *rank)
{
    ncclUniqueId wrong;
    ncclConfig_t config = new_config();
    memset(&wrong, 0, sizeof wrong);
    CHECK_OK(cuInit(0));
    CHECK_MISUSE(ncclCommInitRank(&rank->comm, 1, rank->id, 0), ncclUnhandledCudaError, "without a device");
    start_device(rank, 0);
    CHECK_MISUSE(ncclCommInitRank(&rank->comm, 1, wrong, 0), ncclInvalidArgument, "ncclGetUniqueId did not make");
    CHECK_MISUSE(ncclCommInitRank(&rank->comm, 2, rank->id, 2), ncclInvalidArgument, "rank 2 of 2");
    config.magic = 1;
    CHECK_MISUSE(ncclCommInitRankConfig(&rank->comm, 1, rank->id, 0, &config), ncclInvalidArgument, "not initialised");
    config = new_config();
    config.size += 64;
    CHECK_MISUSE(ncclCommInitRankConfig(&rank->comm, 1, rank->id, 0, &config), ncclInvalidArgument, "does not know");
    config = nonblocking_config();
    CHECK_RESULT(ncclCommInitRankConfig(&rank->comm, 2, rank->id, 0, &config), ncclInProgress);
    ncclComm_t other = NULL;
    CHECK_MISUSE(ncclCommDestroy(rank->comm), ncclInvalidArgument, "the call before it is not done");
    CHECK_OK(ncclCommAbort(rank->comm));
    CHECK_OK(ncclCommInitRank(&other, 1, rank->second, 0));
    CHECK_OK(ncclCommDestroy(other));
    finish_device(rank);
}

/* Two processes claim rank 0; the second one gets an error. */
static void duplicate_rank_is_refused(struct rank *rank)
{
    ncclConfig_t config = nonblocking_config();
    ncclComm_t comms[2];
    ncclResult_t states[2] = { ncclInProgress, ncclInProgress };
    start_device(rank, 0);
    for (int i = 0; i < 2; i++) {
        CHECK_RESULT(ncclCommInitRankConfig(&comms[i], 2, rank->id, 0, &config), ncclInProgress);
    }
    while (states[0] == ncclInProgress && states[1] == ncclInProgress) {
        /* These calls are not counted as checks, since their number varies. */
        ncclCommGetAsyncError(comms[0], &states[0]);
        ncclCommGetAsyncError(comms[1], &states[1]);
    }
    CHECK(states[0] == ncclInvalidUsage || states[1] == ncclInvalidUsage);
    expect_misuses(1, "two say that they are rank 0");
    CHECK_OK(ncclCommAbort(comms[0]));
    CHECK_OK(ncclCommAbort(comms[1]));
    finish_device(rank);
}

static void check_buffers(struct rank *rank)
{
    start_rank(rank);
    CUcontext other;
    CUstream stream = rank->stream;
    ncclComm_t comm = rank->comm;
    static int32_t host[16];
    CUdeviceptr a = device_memory(64);
    CHECK_OK(cuDevicePrimaryCtxRetain(&other, 1));
    CHECK_OK(cuCtxPushCurrent(other));
    CUdeviceptr b = device_memory(64);
    CUstream second;
    CHECK_OK(cuStreamCreate(&second, 0));
    CHECK_MISUSE(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, comm, stream), ncclInvalidUsage,
                 "device 1 is current");
    CHECK_OK(cuCtxPopCurrent(NULL));
    CHECK_MISUSE(ncclAllReduce(host, POINTER(a), 1, ncclInt32, ncclSum, comm, stream), ncclInvalidArgument,
                 "of device memory");
    CHECK_MISUSE(ncclAllReduce(POINTER(a), POINTER(a), 17, ncclInt32, ncclSum, comm, stream), ncclInvalidArgument,
                 "68 bytes");
    CHECK_MISUSE(ncclAllReduce(POINTER(b), POINTER(a), 1, ncclInt32, ncclSum, comm, stream), ncclInvalidArgument,
                 "on device 1");
    CHECK_MISUSE(ncclAllReduce(POINTER(a), POINTER(a + 4), 8, ncclInt32, ncclSum, comm, stream), ncclInvalidArgument,
                 "overlap");
    CHECK_MISUSE(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, comm, second), ncclInvalidUsage,
                 "of another device");
    CHECK_MISUSE(ncclAllReduce(POINTER(a), POINTER(a), 1, (ncclDataType_t)99, ncclSum, comm, stream),
                 ncclInvalidArgument, "type 99");
    CHECK_MISUSE(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, (ncclRedOp_t)77, comm, stream),
                 ncclInvalidArgument, "an operator");
    CHECK_MISUSE(ncclBroadcast(POINTER(a), POINTER(a), 1, ncclInt32, 1, comm, stream), ncclInvalidArgument,
                 "no rank 1");
    CHECK_OK(cuStreamDestroy(second));
    CHECK_MISUSE(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, comm, second), ncclUnhandledCudaError,
                 "a stream is used");
    CHECK_OK(cuMemFree(b));
    CHECK_OK(cuDevicePrimaryCtxRelease(1));
    CHECK_OK(ncclAllReduce(POINTER(a), POINTER(a), 16, ncclInt32, ncclSum, comm, stream));
    CHECK_OK(cuMemFree(a));
    CHECK_MISUSE(ncclAllReduce(POINTER(a), POINTER(a), 16, ncclInt32, ncclSum, comm, stream), ncclInvalidArgument,
                 "of device memory");
    finish_rank(rank);
}

static void *use_in_group(void *argument)
{
    struct rank *rank = argument;
    CUdeviceptr a = 0;
    CHECK_OK(cuCtxSetCurrent(rank->context));
    a = device_memory(4);
    CHECK_MISUSE(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, rank->comm, rank->stream),
                 ncclInvalidUsage, "another thread has it in a group");
    CHECK_OK(cuMemFree(a));
    CHECK_OK(ncclGroupStart());
    return NULL;
}

static void check_groups(struct rank *rank)
{
    pthread_t thread;
    start_rank(rank);
    CUdeviceptr a = device_memory(4);
    CHECK_MISUSE(ncclGroupEnd(), ncclInvalidUsage, "without ncclGroupStart");
    CHECK_OK(ncclGroupStart());
    CHECK_OK(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, rank->comm, rank->stream));
    CHECK_MISUSE(ncclCommDestroy(rank->comm), ncclInvalidArgument, "a group with its operations is open");
    CHECK(pthread_create(&thread, NULL, use_in_group, rank) == 0);
    pthread_join(thread, NULL);
    expect_misuses(1, "ends without ncclGroupEnd");
    CHECK_OK(ncclGroupEnd());
    /* An error in a group fails the whole group, and none of its calls is started. */
    CHECK_OK(ncclGroupStart());
    CHECK_OK(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, rank->comm, rank->stream));
    CHECK_MISUSE(ncclAllReduce(NULL, POINTER(a), 1, ncclInt32, ncclSum, rank->comm, rank->stream),
                 ncclInvalidArgument, "device memory");
    CHECK_RESULT(ncclGroupEnd(), ncclInvalidArgument);
    CHECK_OK(ncclGroupStart());
    CHECK_RESULT(ncclGroupEnd(), ncclSuccess);
    CUstream streams[9];
    CHECK_OK(ncclGroupStart());
    CHECK_OK(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, rank->comm, rank->stream));
    for (int i = 0; i < 9; i++) {
        CHECK_OK(cuStreamCreate(&streams[i], 0));
        if (i < 8) {
            CHECK_OK(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, rank->comm, streams[i]));
        } else {
            CHECK_MISUSE(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, rank->comm, streams[i]),
                         ncclInvalidUsage, "10 streams");
        }
    }
    CHECK_RESULT(ncclGroupEnd(), ncclInvalidUsage);
    for (int i = 0; i < 9; i++) {
        CHECK_OK(cuStreamDestroy(streams[i]));
    }
    CHECK_OK(cuMemFree(a));
    finish_rank(rank);
}

/* One thread drives both ranks. */
static void one_thread_drives_two_ranks(struct rank *rank)
{
    enum { RANKS = 2 };
    ncclComm_t comms[RANKS];
    CUcontext contexts[RANKS];
    CUdeviceptr memory[RANKS];
    CUstream streams[RANKS];
    start_device(rank, 0);
    CHECK_OK(ncclGroupStart());
    for (int i = 0; i < RANKS; i++) {
        CHECK_OK(cuDevicePrimaryCtxRetain(&contexts[i], i));
        CHECK_OK(cuCtxPushCurrent(contexts[i]));
        memory[i] = device_memory(4);
        CHECK_OK(cuStreamCreate(&streams[i], 0));
        CHECK_OK(ncclCommInitRank(&comms[i], RANKS, rank->id, i));
    }
    CHECK_OK(ncclGroupEnd());
    for (int round = 0; round < 2; round++) {
        unsigned long before = dist_stub_nccl_groups();
        CHECK_OK(ncclGroupStart());
        for (int i = 0; i < RANKS; i++) {
            CHECK_OK(ncclAllReduce(POINTER(memory[i]), POINTER(memory[i]), 1, ncclInt32, ncclSum, comms[i],
                                   streams[i]));
        }
        CHECK_OK(ncclGroupEnd());
        CHECK(dist_stub_nccl_groups() == before + 1);
    }
    CHECK_OK(cuStreamSynchronize(streams[0]));
    CHECK_OK(cuStreamSynchronize(streams[1]));
    /* Two separate calls, where the first may wait for the second. */
    CHECK_OK(ncclAllReduce(POINTER(memory[1]), POINTER(memory[1]), 1, ncclInt32, ncclSum, comms[1], streams[1]));
    CHECK_OK(cuCtxPushCurrent(contexts[0]));
    CHECK_MISUSE(ncclAllReduce(POINTER(memory[0]), POINTER(memory[0]), 1, ncclInt32, ncclSum, comms[0], streams[0]),
                 ncclInvalidUsage, "outside of this group");
    CHECK_OK(cuCtxPopCurrent(NULL));
    CHECK_OK(ncclCommAbort(comms[1]));
    CHECK_OK(ncclCommAbort(comms[0]));
    for (int i = RANKS - 1; i >= 0; i--) {
        CHECK_OK(cuMemFree(memory[i]));
        CHECK_OK(cuStreamDestroy(streams[i]));
        CHECK_OK(cuCtxPopCurrent(NULL));
        CHECK_OK(cuDevicePrimaryCtxRelease(i));
    }
    finish_device(rank);
}

/* Two threads use one communicator while calls are slow. */
static void *use_comm(void *argument)
{
    struct rank *rank = argument;
    ncclRedOp_t op;
    float factor = 1;
    return (void *)(intptr_t)ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat32, ncclScalarHostImmediate, rank->comm);
}

static void two_threads_use_one_comm(struct rank *rank)
{
    enum { THREADS = 3 };
    pthread_t threads[THREADS];
    intptr_t refused = 0;
    start_rank(rank);
    setenv("DIST_STUB_NCCL_CALL_US", "200000", 1);
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, use_comm, rank) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        CHECK((intptr_t)result == ncclSuccess || (intptr_t)result == ncclInvalidUsage);
        refused += (intptr_t)result == ncclInvalidUsage;
    }
    CHECK(refused > 0);
    expect_misuses((unsigned long)refused, "while another thread is inside");
    finish_rank(rank);
}

static void finalized_comm_is_refused(struct rank *rank)
{
    void *handle;
    start_rank(rank);
    CUdeviceptr a = device_memory(4);
    CHECK_OK(ncclCommRegister(rank->comm, POINTER(a), 4, &handle));
    CHECK_OK(ncclCommFinalize(rank->comm));
    CHECK_MISUSE(ncclCommFinalize(rank->comm), ncclInvalidUsage, "twice");
    CHECK_MISUSE(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, rank->comm, rank->stream),
                 ncclInvalidUsage, "was finalized");
    CHECK_MISUSE(ncclCommDestroy(rank->comm), ncclSuccess, "with 1 registrations");
    CHECK_OK(cuMemFree(a));
    finish_device(rank);
}

void test_misuse(void)
{
    run_processes("handles", 1, check_handles);
    run_processes("meetings", 1, check_meetings);
    run_processes("same rank", 1, duplicate_rank_is_refused);
    run_processes("buffers", 1, check_buffers);
    run_processes("groups", 1, check_groups);
    run_processes("one thread", 1, one_thread_drives_two_ranks);
    run_processes("two threads", 1, two_threads_use_one_comm);
    run_processes("finalized", 1, finalized_comm_is_refused);
}
