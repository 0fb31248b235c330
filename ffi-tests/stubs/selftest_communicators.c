/*
 * Self-test of the stub libnccl's communicators: creation, derivation, registration and
 * finalization, blocking and nonblocking.
 */
#include "selftest.h"

#include <dlfcn.h>
#include <limits.h>
#include <unistd.h>

/* Checks the sum over the ranks of a communicator, to which each rank contributes its number
 * plus 1. */
static void check_sum(struct rank *rank, ncclComm_t comm)
{
    int mine = -1, n = 0;
    OK(ncclCommUserRank(comm, &mine));
    OK(ncclCommCount(comm, &n));
    int32_t value = mine + 1, sum = 0;
    CUdeviceptr a = device_memory(sizeof value);
    upload(rank, a, &value, sizeof value);
    ncclResult_t result = ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, comm, rank->stream);
    CHECK(result == ncclSuccess || result == ncclInProgress);
    RESULT(await(comm), ncclSuccess);
    download(rank, &sum, a, sizeof sum);
    CHECK(sum == n * (n + 1) / 2);
    OK(cuMemFree(a));
}

static void properties(struct rank *rank)
{
    int value = -1;
    ncclResult_t state = ncclInternalError;
    begin(rank);
    OK(ncclGetVersion(&value));
    CHECK(value == 23007);
    OK(ncclCommCuDevice(rank->comm, &value));
    CHECK(value == rank->rank);
    OK(ncclCommGetAsyncError(rank->comm, &state));
    CHECK(state == ncclSuccess && strstr(dist_stub_nccl(), "stub") != NULL);
    CHECK(strstr(ncclGetErrorString(ncclRemoteError), "stub") != NULL);
    check_sum(rank, rank->comm);
    OK(ncclCommFinalize(rank->comm));
    end(rank);
}

static void non_blocking(struct rank *rank)
{
    ncclConfig_t config = not_blocking();
    ncclResult_t state;
    int value;
    /* The delay before a launch; it is set while no thread reads the environment. */
    setenv("DIST_STUB_NCCL_LAUNCH_US", "150000", 1);
    barrier();
    begin_device(rank, rank->rank);
    if (rank->rank == 0) {
        RESULT(ncclCommInitRankConfig(&rank->comm, rank->n, rank->id, 0, &config), ncclInProgress);
        OK(ncclCommGetAsyncError(rank->comm, &state));
        RESULT(state, rank->n == 1 ? state : ncclInProgress);
        if (rank->n > 1) {
            MISUSE(ncclCommCount(rank->comm, &value), ncclInvalidArgument, "before the call before it is done");
            MISUSE(ncclCommFinalize(rank->comm), ncclInvalidArgument, "before the call before it is done");
        }
    }
    barrier();
    if (rank->rank != 0) {
        RESULT(ncclCommInitRankConfig(&rank->comm, rank->n, rank->id, rank->rank, &config), ncclInProgress);
    }
    RESULT(await(rank->comm), ncclSuccess);
    check_sum(rank, rank->comm);
    /* A group of operations is launched with a delay after the call. */
    int32_t one = 1, sum = 0;
    CUdeviceptr a = device_memory(4);
    upload(rank, a, &one, 4);
    OK(ncclGroupStart());
    OK(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, rank->comm, rank->stream));
    RESULT(ncclGroupEnd(), ncclInProgress);
    OK(cuStreamQuery(rank->stream));
    RESULT(await(rank->comm), ncclSuccess);
    download(rank, &sum, a, 4);
    CHECK(sum == rank->n);
    OK(cuMemFree(a));
    RESULT(ncclCommFinalize(rank->comm), ncclInProgress);
    RESULT(await(rank->comm), ncclSuccess);
    end(rank);
}

/* One thread drives all devices. */
static void all_in_one(struct rank *rank)
{
    enum { DEVICES = 3 };
    struct rank ranks[DEVICES];
    CUdeviceptr memory[DEVICES];
    for (int i = 0; i < DEVICES; i++) {
        ranks[i] = *rank;
        begin_device(&ranks[i], i);
        int32_t value = i + 1;
        memory[i] = device_memory(4);
        upload(&ranks[i], memory[i], &value, 4);
    }
    OK(ncclGroupStart());
    for (int i = 0; i < DEVICES; i++) {
        OK(cuCtxSetCurrent(ranks[i].context));
        OK(ncclCommInitRank(&ranks[i].comm, DEVICES, rank->id, i));
    }
    OK(ncclGroupEnd());
    OK(ncclGroupStart());
    for (int i = 0; i < DEVICES; i++) {
        void *value = POINTER(memory[i]);
        OK(ncclAllReduce(value, value, 1, ncclInt32, ncclSum, ranks[i].comm, ranks[i].stream));
    }
    OK(ncclGroupEnd());
    for (int i = 0; i < DEVICES; i++) {
        int32_t sum = 0;
        OK(cuCtxSetCurrent(ranks[i].context));
        download(&ranks[i], &sum, memory[i], 4);
        CHECK(sum == 6);
        OK(cuMemFree(memory[i]));
        OK(ncclCommAbort(ranks[i].comm));
        end_device(&ranks[i]);
    }
}

static void split(struct rank *rank)
{
    ncclComm_t child = NULL, none = NULL, all = NULL;
    int mine = -1, n = -1;
    begin(rank);
    OK(ncclCommSplit(rank->comm, rank->rank % 2, -rank->rank, &child, NULL));
    OK(ncclCommCount(child, &n));
    OK(ncclCommUserRank(child, &mine));
    int above = (rank->n - 1 - rank->rank) / 2;
    CHECK(n == (rank->n + 1 - rank->rank % 2) / 2 && mine == above);
    check_sum(rank, child);
    OK(ncclCommSplit(rank->comm, rank->rank == 0 ? NCCL_SPLIT_NOCOLOR : 5, 0, &none, NULL));
    CHECK((none == NULL) == (rank->rank == 0));
    if (none != NULL) {
        check_sum(rank, none);
        OK(ncclCommDestroy(none));
    }
    ncclConfig_t config = new_config();
    OK(ncclCommSplit(child, 0, 0, &all, &config));
    check_sum(rank, all);
    OK(ncclCommDestroy(all));
    OK(ncclCommDestroy(child));
    end(rank);
}

static void split_without_blocking(struct rank *rank)
{
    ncclConfig_t config = not_blocking();
    ncclComm_t child = NULL;
    begin_device(rank, rank->rank);
    ncclCommInitRankConfig(&rank->comm, rank->n, rank->id, rank->rank, &config);
    RESULT(await(rank->comm), ncclSuccess);
    RESULT(ncclCommSplit(rank->comm, 0, 0, &child, NULL), ncclInProgress);
    RESULT(await(rank->comm), ncclSuccess);
    RESULT(await(child), ncclSuccess);
    check_sum(rank, child);
    OK(ncclCommDestroy(child));
    end(rank);
}

/* The last rank is absent, with or without an operation in progress. */
static void shrink_at(struct rank *rank, int flags)
{
    ncclComm_t smaller = NULL;
    int excluded[] = { rank->n - 1 };
    begin(rank);
    CUdeviceptr a = device_memory(4);
    if (rank->rank != rank->n - 1) {
        if (flags == NCCL_SHRINK_ABORT) {
            OK(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, rank->comm, rank->stream));
            MISUSE(ncclCommShrink(rank->comm, excluded, 1, &smaller, NULL, 0), ncclInvalidUsage, "are under way");
        }
        OK(ncclCommShrink(rank->comm, excluded, 1, &smaller, NULL, flags));
        check_sum(rank, smaller);
        OK(ncclCommDestroy(smaller));
    } else {
        MISUSE(ncclCommShrink(rank->comm, excluded, 1, &smaller, NULL, flags), ncclInvalidArgument, "names the caller");
    }
    if (flags == NCCL_SHRINK_ABORT && rank->rank != rank->n - 1) {
        MISUSE(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, rank->comm, rank->stream), ncclInvalidUsage,
               "operations were ended");
    }
    OK(cuMemFree(a));
    OK(flags == NCCL_SHRINK_ABORT ? ncclCommAbort(rank->comm) : ncclCommDestroy(rank->comm));
    end_device(rank);
}

static void shrink(struct rank *rank)
{
    shrink_at(rank, NCCL_SHRINK_DEFAULT);
}

static void shrink_with_abort(struct rank *rank)
{
    shrink_at(rank, NCCL_SHRINK_ABORT);
}

static void registration(struct rank *rank)
{
    void *memory = NULL, *handle = NULL;
    ncclWindow_t window = NULL;
    begin(rank);
    OK(ncclMemAlloc(&memory, 8192));
    CUdeviceptr other = device_memory(100);
    OK(ncclCommRegister(rank->comm, POINTER(other), 100, &handle));
    OK(ncclCommDeregister(rank->comm, handle));
    MISUSE(ncclCommDeregister(rank->comm, handle), ncclInvalidArgument, "ncclCommDeregister");
    MISUSE(ncclCommWindowRegister(rank->comm, POINTER(other), 100, &window, 0), ncclInvalidArgument,
           "ncclMemAlloc did not give");
    OK(ncclCommWindowRegister(rank->comm, memory, 8192, &window, NCCL_WIN_COLL_SYMMETRIC));
    OK(ncclCommWindowDeregister(rank->comm, window));
    if (rank->n > 1) {
        size_t bytes = rank->rank == 0 ? 4096 : 8192;
        MISUSE(ncclCommWindowRegister(rank->comm, memory, bytes, &window, 0), ncclInvalidArgument,
               "registers a window");
        OK(ncclCommAbort(rank->comm));
    } else {
        OK(ncclCommDestroy(rank->comm));
    }
    OK(ncclMemFree(memory));
    MISUSE(ncclMemFree(memory), ncclInvalidArgument, "ncclMemFree");
    OK(cuMemFree(other));
    end_device(rank);
}

static void duplicates(struct rank *rank)
{
    ncclConfig_t config = not_blocking();
    ncclComm_t comm = NULL;
    begin_device(rank, rank->rank / 2);
    RESULT(ncclCommInitRank(&rank->comm, rank->n, rank->id, rank->rank), ncclInvalidUsage);
    CHECK(rank->comm == NULL && strstr(ncclGetLastError(NULL), "duplicate GPU: rank 0 and rank 1") != NULL);
    RESULT(ncclCommInitRankConfig(&comm, rank->n, rank->second, rank->rank, &config), ncclInProgress);
    RESULT(await(comm), ncclInvalidUsage);
    OK(ncclCommAbort(comm));
    end_device(rank);
}

static void allowed_duplicates(struct rank *rank)
{
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    begin_device(rank, 0);
    OK(ncclCommInitRank(&rank->comm, rank->n, rank->id, rank->rank));
    check_sum(rank, rank->comm);
    end(rank);
}

static void versions(struct rank *rank)
{
    int version = 0, excluded[] = { 1 };
    ncclComm_t comm = NULL;
    setenv("DIST_STUB_NCCL_VERSION", "22005", 1);
    OK(ncclGetVersion(&version));
    CHECK(version == 22005);
    begin(rank);
    CUdeviceptr a = device_memory(4);
    MISUSE(ncclCommShrink(rank->comm, excluded, 1, &comm, NULL, 0), ncclInvalidUsage, "is newer than version 22005");
    MISUSE(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclFloat8e4m3, ncclSum, rank->comm, rank->stream),
           ncclInvalidArgument, "has no type 10");
    ncclConfig_t config = new_config();
    MISUSE(ncclCommSplit(rank->comm, 0, 0, &comm, &config), ncclInvalidArgument, "version 22005 does not know");
    OK(cuMemFree(a));
    end(rank);
    /* Ranks with different versions do not meet. */
    setenv("DIST_STUB_NCCL_VERSION", rank->rank == 0 ? "22005" : "22403", 1);
    begin_device(rank, rank->rank);
    RESULT(ncclCommInitRank(&comm, rank->n, rank->second, rank->rank), ncclInvalidUsage);
    CHECK(comm == NULL && strstr(ncclGetLastError(NULL), "has version") != NULL);
    end_device(rank);
}

/* A library of an old version lacks later functions. */
static void old_library(struct rank *rank)
{
    char path[PATH_MAX + 32] = "";
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX);
    CHECK(length > 0 && rank->rank == 0);
    char *slash = strrchr(path, '/');
    CHECK(slash != NULL);
    memcpy(slash, "/old/libnccl.so.2", sizeof "/old/libnccl.so.2");
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK(library != NULL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return;
    }
    union {
        void *symbol;
        ncclResult_t (*get_version)(int *version);
    } get = { dlsym(library, "ncclGetVersion") };
    int version = 0;
    CHECK(get.symbol != NULL && get.get_version(&version) == ncclSuccess && version == 22005);
    CHECK(dlsym(library, "ncclCommSplit") != NULL && dlsym(library, "ncclMemAlloc") != NULL);
    CHECK(dlsym(library, "ncclCommShrink") == NULL && dlsym(library, "ncclCommWindowRegister") == NULL);
    CHECK(dlsym(library, "ncclCommWindowDeregister") == NULL && dlsym(library, "dist_stub_nccl") != NULL);
}

void test_communicators(void)
{
    for (int n = 1; n <= 4; n++) {
        run_processes("properties", n, properties);
        run_processes("not blocking", n, non_blocking);
        run_processes("registration", n, registration);
    }
    run_threads("not blocking", 3, non_blocking);
    run_processes("all in one", 1, all_in_one);
    for (int n = 2; n <= 4; n++) {
        run_processes("split", n, split);
        run_processes("shrink", n, shrink);
        run_processes("shrink with abort", n, shrink_with_abort);
    }
    run_threads("split", 4, split);
    run_processes("split without blocking", 3, split_without_blocking);
    run_processes("duplicates", 2, duplicates);
    run_processes("allowed duplicates", 2, allowed_duplicates);
    run_processes("versions", 2, versions);
    run_processes("old library", 1, old_library);
}
