/*
 * Self-test of the misuse that the stub libnccl detects in the calls of one rank.
 */
#include "selftest.h"

static void handles(struct rank *rank)
{
    ncclComm_t comm;
    ncclResult_t state;
    int value;
    begin(rank);
    comm = rank->comm;
    MISUSE(ncclCommCount(NULL, &value), ncclInvalidArgument, "on no communicator");
    MISUSE(ncclCommCount((ncclComm_t)rank, &value), ncclInvalidArgument, "what is no communicator");
    OK(ncclCommDestroy(comm));
    MISUSE(ncclCommDestroy(comm), ncclInvalidArgument, "ncclCommDestroy on what is no communicator");
    MISUSE(ncclCommAbort(comm), ncclInvalidArgument, "ncclCommAbort on");
    MISUSE(ncclCommGetAsyncError(comm, &state), ncclInvalidArgument, "ncclCommGetAsyncError on");
    MISUSE(ncclCommUserRank(comm, &value), ncclInvalidArgument, "ncclCommUserRank on");
    end_device(rank);
}

static void meetings(struct rank *rank)
{
    ncclUniqueId wrong;
    ncclConfig_t config = new_config();
    memset(&wrong, 0, sizeof wrong);
    OK(cuInit(0));
    MISUSE(ncclCommInitRank(&rank->comm, 1, rank->id, 0), ncclUnhandledCudaError, "without a device");
    begin_device(rank, 0);
    MISUSE(ncclCommInitRank(&rank->comm, 1, wrong, 0), ncclInvalidArgument, "ncclGetUniqueId did not make");
    MISUSE(ncclCommInitRank(&rank->comm, 2, rank->id, 2), ncclInvalidArgument, "rank 2 of 2");
    config.magic = 1;
    MISUSE(ncclCommInitRankConfig(&rank->comm, 1, rank->id, 0, &config), ncclInvalidArgument, "not initialised");
    config = new_config();
    config.size += 64;
    MISUSE(ncclCommInitRankConfig(&rank->comm, 1, rank->id, 0, &config), ncclInvalidArgument, "does not know");
    config = not_blocking();
    RESULT(ncclCommInitRankConfig(&rank->comm, 2, rank->id, 0, &config), ncclInProgress);
    ncclComm_t other = NULL;
    MISUSE(ncclCommDestroy(rank->comm), ncclInvalidArgument, "the call before it is not done");
    OK(ncclCommAbort(rank->comm));
    OK(ncclCommInitRank(&other, 1, rank->second, 0));
    OK(ncclCommDestroy(other));
    end_device(rank);
}

/* Two processes claim rank 0; the second one gets an error. */
static void same_rank(struct rank *rank)
{
    ncclConfig_t config = not_blocking();
    ncclComm_t comms[2];
    ncclResult_t states[2] = { ncclInProgress, ncclInProgress };
    begin_device(rank, 0);
    for (int i = 0; i < 2; i++) {
        RESULT(ncclCommInitRankConfig(&comms[i], 2, rank->id, 0, &config), ncclInProgress);
    }
    while (states[0] == ncclInProgress && states[1] == ncclInProgress) {
        /* These calls are not counted as checks, since their number varies. */
        ncclCommGetAsyncError(comms[0], &states[0]);
        ncclCommGetAsyncError(comms[1], &states[1]);
    }
    CHECK(states[0] == ncclInvalidUsage || states[1] == ncclInvalidUsage);
    expect_misuses(1, "two say that they are rank 0");
    OK(ncclCommAbort(comms[0]));
    OK(ncclCommAbort(comms[1]));
    end_device(rank);
}

static void buffers(struct rank *rank)
{
    begin(rank);
    CUcontext other;
    CUstream stream = rank->stream;
    ncclComm_t comm = rank->comm;
    static int32_t host[16];
    CUdeviceptr a = device_memory(64);
    OK(cuDevicePrimaryCtxRetain(&other, 1));
    OK(cuCtxPushCurrent(other));
    CUdeviceptr b = device_memory(64);
    CUstream second;
    OK(cuStreamCreate(&second, 0));
    MISUSE(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, comm, stream), ncclInvalidUsage,
           "device 1 is current");
    OK(cuCtxPopCurrent(NULL));
    MISUSE(ncclAllReduce(host, POINTER(a), 1, ncclInt32, ncclSum, comm, stream), ncclInvalidArgument,
           "of device memory");
    MISUSE(ncclAllReduce(POINTER(a), POINTER(a), 17, ncclInt32, ncclSum, comm, stream), ncclInvalidArgument,
           "68 bytes");
    MISUSE(ncclAllReduce(POINTER(b), POINTER(a), 1, ncclInt32, ncclSum, comm, stream), ncclInvalidArgument,
           "on device 1");
    MISUSE(ncclAllReduce(POINTER(a), POINTER(a + 4), 8, ncclInt32, ncclSum, comm, stream), ncclInvalidArgument,
           "overlap");
    MISUSE(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, comm, second), ncclInvalidUsage,
           "of another device");
    MISUSE(ncclAllReduce(POINTER(a), POINTER(a), 1, (ncclDataType_t)99, ncclSum, comm, stream),
           ncclInvalidArgument, "type 99");
    MISUSE(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, (ncclRedOp_t)77, comm, stream),
           ncclInvalidArgument, "an operator");
    MISUSE(ncclBroadcast(POINTER(a), POINTER(a), 1, ncclInt32, 1, comm, stream), ncclInvalidArgument, "no rank 1");
    OK(cuStreamDestroy(second));
    MISUSE(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, comm, second), ncclUnhandledCudaError,
           "a stream is used");
    OK(cuMemFree(b));
    OK(cuDevicePrimaryCtxRelease(1));
    OK(ncclAllReduce(POINTER(a), POINTER(a), 16, ncclInt32, ncclSum, comm, stream));
    OK(cuMemFree(a));
    MISUSE(ncclAllReduce(POINTER(a), POINTER(a), 16, ncclInt32, ncclSum, comm, stream), ncclInvalidArgument,
           "of device memory");
    end(rank);
}

static void *use_in_group(void *argument)
{
    struct rank *rank = argument;
    CUdeviceptr a = 0;
    OK(cuCtxSetCurrent(rank->context));
    a = device_memory(4);
    MISUSE(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, rank->comm, rank->stream), ncclInvalidUsage,
           "another thread has it in a group");
    OK(cuMemFree(a));
    OK(ncclGroupStart());
    return NULL;
}

static void groups(struct rank *rank)
{
    pthread_t thread;
    begin(rank);
    CUdeviceptr a = device_memory(4);
    MISUSE(ncclGroupEnd(), ncclInvalidUsage, "without ncclGroupStart");
    OK(ncclGroupStart());
    OK(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, rank->comm, rank->stream));
    MISUSE(ncclCommDestroy(rank->comm), ncclInvalidArgument, "a group with its operations is open");
    CHECK(pthread_create(&thread, NULL, use_in_group, rank) == 0);
    pthread_join(thread, NULL);
    expect_misuses(1, "ends without ncclGroupEnd");
    OK(ncclGroupEnd());
    /* An error in a group fails the whole group, and none of its calls is started. */
    OK(ncclGroupStart());
    OK(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, rank->comm, rank->stream));
    MISUSE(ncclAllReduce(NULL, POINTER(a), 1, ncclInt32, ncclSum, rank->comm, rank->stream),
           ncclInvalidArgument, "device memory");
    RESULT(ncclGroupEnd(), ncclInvalidArgument);
    OK(ncclGroupStart());
    RESULT(ncclGroupEnd(), ncclSuccess);
    CUstream streams[9];
    OK(ncclGroupStart());
    OK(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, rank->comm, rank->stream));
    for (int i = 0; i < 9; i++) {
        OK(cuStreamCreate(&streams[i], 0));
        if (i < 8) {
            OK(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, rank->comm, streams[i]));
        } else {
            MISUSE(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, rank->comm, streams[i]),
                   ncclInvalidUsage, "10 streams");
        }
    }
    RESULT(ncclGroupEnd(), ncclInvalidUsage);
    for (int i = 0; i < 9; i++) {
        OK(cuStreamDestroy(streams[i]));
    }
    OK(cuMemFree(a));
    end(rank);
}

/* One thread drives both ranks. */
static void one_thread(struct rank *rank)
{
    enum { RANKS = 2 };
    ncclComm_t comms[RANKS];
    CUcontext contexts[RANKS];
    CUdeviceptr memory[RANKS];
    CUstream streams[RANKS];
    begin_device(rank, 0);
    OK(ncclGroupStart());
    for (int i = 0; i < RANKS; i++) {
        OK(cuDevicePrimaryCtxRetain(&contexts[i], i));
        OK(cuCtxPushCurrent(contexts[i]));
        memory[i] = device_memory(4);
        OK(cuStreamCreate(&streams[i], 0));
        OK(ncclCommInitRank(&comms[i], RANKS, rank->id, i));
    }
    OK(ncclGroupEnd());
    for (int round = 0; round < 2; round++) {
        unsigned long before = dist_stub_nccl_groups();
        OK(ncclGroupStart());
        for (int i = 0; i < RANKS; i++) {
            OK(ncclAllReduce(POINTER(memory[i]), POINTER(memory[i]), 1, ncclInt32, ncclSum, comms[i], streams[i]));
        }
        OK(ncclGroupEnd());
        CHECK(dist_stub_nccl_groups() == before + 1);
    }
    OK(cuStreamSynchronize(streams[0]));
    OK(cuStreamSynchronize(streams[1]));
    /* Two separate calls, where the first may wait for the second. */
    OK(ncclAllReduce(POINTER(memory[1]), POINTER(memory[1]), 1, ncclInt32, ncclSum, comms[1], streams[1]));
    OK(cuCtxPushCurrent(contexts[0]));
    MISUSE(ncclAllReduce(POINTER(memory[0]), POINTER(memory[0]), 1, ncclInt32, ncclSum, comms[0], streams[0]),
           ncclInvalidUsage, "outside of this group");
    OK(cuCtxPopCurrent(NULL));
    OK(ncclCommAbort(comms[1]));
    OK(ncclCommAbort(comms[0]));
    for (int i = RANKS - 1; i >= 0; i--) {
        OK(cuMemFree(memory[i]));
        OK(cuStreamDestroy(streams[i]));
        OK(cuCtxPopCurrent(NULL));
        OK(cuDevicePrimaryCtxRelease(i));
    }
    end_device(rank);
}

/* Two threads use one communicator while calls are slow. */
static void *use(void *argument)
{
    struct rank *rank = argument;
    ncclRedOp_t op;
    float factor = 1;
    return (void *)(intptr_t)ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat32, ncclScalarHostImmediate, rank->comm);
}

static void two_threads(struct rank *rank)
{
    enum { THREADS = 3 };
    pthread_t threads[THREADS];
    intptr_t refused = 0;
    begin(rank);
    setenv("DIST_STUB_NCCL_CALL_US", "200000", 1);
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, use, rank) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        CHECK((intptr_t)result == ncclSuccess || (intptr_t)result == ncclInvalidUsage);
        refused += (intptr_t)result == ncclInvalidUsage;
    }
    CHECK(refused > 0);
    expect_misuses((unsigned long)refused, "while another thread is inside");
    end(rank);
}

static void finalized(struct rank *rank)
{
    void *handle;
    begin(rank);
    CUdeviceptr a = device_memory(4);
    OK(ncclCommRegister(rank->comm, POINTER(a), 4, &handle));
    OK(ncclCommFinalize(rank->comm));
    MISUSE(ncclCommFinalize(rank->comm), ncclInvalidUsage, "twice");
    MISUSE(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, rank->comm, rank->stream),
           ncclInvalidUsage, "was finalized");
    MISUSE(ncclCommDestroy(rank->comm), ncclSuccess, "with 1 registrations");
    OK(cuMemFree(a));
    end_device(rank);
}

void test_misuse(void)
{
    run_processes("handles", 1, handles);
    run_processes("meetings", 1, meetings);
    run_processes("same rank", 1, same_rank);
    run_processes("buffers", 1, buffers);
    run_processes("groups", 1, groups);
    run_processes("one thread", 1, one_thread);
    run_processes("two threads", 1, two_threads);
    run_processes("finalized", 1, finalized);
}
