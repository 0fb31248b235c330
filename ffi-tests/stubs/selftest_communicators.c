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
    int own_rank = -1, n = 0;
    CHECK_OK(ncclCommUserRank(comm, &own_rank));
    CHECK_OK(ncclCommCount(comm, &n));
    int32_t value = own_rank + 1, sum = 0;
    CUdeviceptr a = device_memory(sizeof value);
    upload(rank, a, &value, sizeof value);
    ncclResult_t result = ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, comm, rank->stream);
    CHECK(result == ncclSuccess || result == ncclInProgress);
    CHECK_RESULT(await(comm), ncclSuccess);
    download(rank, &sum, a, sizeof sum);
    CHECK(sum == n * (n + 1) / 2);
    CHECK_OK(cuMemFree(a));
}

static void check_properties(struct rank *rank)
{
    int value = -1;
    ncclResult_t state = ncclInternalError;
    start_rank(rank);
    CHECK_OK(ncclGetVersion(&value));
    CHECK(value == 23007);
    CHECK_OK(ncclCommCuDevice(rank->comm, &value));
    CHECK(value == rank->rank);
    CHECK_OK(ncclCommGetAsyncError(rank->comm, &state));
    CHECK(state == ncclSuccess && strstr(dist_stub_nccl(), "stub") != NULL);
    CHECK(strstr(ncclGetErrorString(ncclRemoteError), "stub") != NULL);
    check_sum(rank, rank->comm);
    CHECK_OK(ncclCommFinalize(rank->comm));
    finish_rank(rank);
}

static void check_nonblocking_init(struct rank *rank)
{
    ncclConfig_t config = nonblocking_config();
    ncclResult_t state;
    int value;
    /* The delay before a launch; it is set while no thread reads the environment. */
    setenv("DIST_STUB_NCCL_LAUNCH_US", "150000", 1);
    barrier();
    start_device(rank, rank->rank);
    if (rank->rank == 0) {
        CHECK_RESULT(ncclCommInitRankConfig(&rank->comm, rank->n, rank->id, 0, &config), ncclInProgress);
        CHECK_OK(ncclCommGetAsyncError(rank->comm, &state));
        CHECK_RESULT(state, rank->n == 1 ? state : ncclInProgress);
        if (rank->n > 1) {
            CHECK_MISUSE(ncclCommCount(rank->comm, &value), ncclInvalidArgument, "before the call before it is done");
            CHECK_MISUSE(ncclCommFinalize(rank->comm), ncclInvalidArgument, "before the call before it is done");
        }
    }
    barrier();
    if (rank->rank != 0) {
        CHECK_RESULT(ncclCommInitRankConfig(&rank->comm, rank->n, rank->id, rank->rank, &config), ncclInProgress);
    }
    CHECK_RESULT(await(rank->comm), ncclSuccess);
    check_sum(rank, rank->comm);
    /* A group of operations is launched with a delay after the call. */
    int32_t one = 1, sum = 0;
    CUdeviceptr a = device_memory(4);
    upload(rank, a, &one, 4);
    CHECK_OK(ncclGroupStart());
    CHECK_OK(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, rank->comm, rank->stream));
    CHECK_RESULT(ncclGroupEnd(), ncclInProgress);
    CHECK_OK(cuStreamQuery(rank->stream));
    CHECK_RESULT(await(rank->comm), ncclSuccess);
    download(rank, &sum, a, 4);
    CHECK(sum == rank->n);
    CHECK_OK(cuMemFree(a));
    CHECK_RESULT(ncclCommFinalize(rank->comm), ncclInProgress);
    CHECK_RESULT(await(rank->comm), ncclSuccess);
    finish_rank(rank);
}

/* One thread drives all devices. */
static void one_thread_drives_all_devices(struct rank *rank)
{
    enum { DEVICES = 3 };
    struct rank ranks[DEVICES];
    CUdeviceptr memory[DEVICES];
    for (int i = 0; i < DEVICES; i++) {
        ranks[i] = *rank;
        start_device(&ranks[i], i);
        int32_t value = i + 1;
        memory[i] = device_memory(4);
        upload(&ranks[i], memory[i], &value, 4);
    }
    CHECK_OK(ncclGroupStart());
    for (int i = 0; i < DEVICES; i++) {
        CHECK_OK(cuCtxSetCurrent(ranks[i].context));
        CHECK_OK(ncclCommInitRank(&ranks[i].comm, DEVICES, rank->id, i));
    }
    CHECK_OK(ncclGroupEnd());
    CHECK_OK(ncclGroupStart());
    for (int i = 0; i < DEVICES; i++) {
        void *value = POINTER(memory[i]);
        CHECK_OK(ncclAllReduce(value, value, 1, ncclInt32, ncclSum, ranks[i].comm, ranks[i].stream));
    }
    CHECK_OK(ncclGroupEnd());
    for (int i = 0; i < DEVICES; i++) {
        int32_t sum = 0;
        CHECK_OK(cuCtxSetCurrent(ranks[i].context));
        download(&ranks[i], &sum, memory[i], 4);
        CHECK(sum == 6);
        CHECK_OK(cuMemFree(memory[i]));
        CHECK_OK(ncclCommAbort(ranks[i].comm));
        finish_device(&ranks[i]);
    }
}

static void check_split(struct rank *rank)
{
    ncclComm_t child = NULL, none = NULL, all = NULL;
    int own_rank = -1, n = -1;
    start_rank(rank);
    CHECK_OK(ncclCommSplit(rank->comm, rank->rank % 2, -rank->rank, &child, NULL));
    CHECK_OK(ncclCommCount(child, &n));
    CHECK_OK(ncclCommUserRank(child, &own_rank));
    int above = (rank->n - 1 - rank->rank) / 2;
    CHECK(n == (rank->n + 1 - rank->rank % 2) / 2 && own_rank == above);
    check_sum(rank, child);
    CHECK_OK(ncclCommSplit(rank->comm, rank->rank == 0 ? NCCL_SPLIT_NOCOLOR : 5, 0, &none, NULL));
    CHECK((none == NULL) == (rank->rank == 0));
    if (none != NULL) {
        check_sum(rank, none);
        CHECK_OK(ncclCommDestroy(none));
    }
    ncclConfig_t config = new_config();
    CHECK_OK(ncclCommSplit(child, 0, 0, &all, &config));
    check_sum(rank, all);
    CHECK_OK(ncclCommDestroy(all));
    CHECK_OK(ncclCommDestroy(child));
    finish_rank(rank);
}

static void check_nonblocking_split(struct rank *rank)
{
    ncclConfig_t config = nonblocking_config();
    ncclComm_t child = NULL;
    start_device(rank, rank->rank);
    ncclCommInitRankConfig(&rank->comm, rank->n, rank->id, rank->rank, &config);
    CHECK_RESULT(await(rank->comm), ncclSuccess);
    CHECK_RESULT(ncclCommSplit(rank->comm, 0, 0, &child, NULL), ncclInProgress);
    CHECK_RESULT(await(rank->comm), ncclSuccess);
    CHECK_RESULT(await(child), ncclSuccess);
    check_sum(rank, child);
    CHECK_OK(ncclCommDestroy(child));
    finish_rank(rank);
}

/* The last rank is absent, with or without an operation in progress. */
static void check_shrink_with_flags(struct rank *rank, int flags)
{
    ncclComm_t smaller = NULL;
    int excluded[] = { rank->n - 1 };
    start_rank(rank);
    CUdeviceptr a = device_memory(4);
    if (rank->rank != rank->n - 1) {
        if (flags == NCCL_SHRINK_ABORT) {
            CHECK_OK(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, rank->comm, rank->stream));
            CHECK_MISUSE(ncclCommShrink(rank->comm, excluded, 1, &smaller, NULL, 0), ncclInvalidUsage, "are under way");
        }
        CHECK_OK(ncclCommShrink(rank->comm, excluded, 1, &smaller, NULL, flags));
        check_sum(rank, smaller);
        CHECK_OK(ncclCommDestroy(smaller));
    } else {
        CHECK_MISUSE(ncclCommShrink(rank->comm, excluded, 1, &smaller, NULL, flags), ncclInvalidArgument,
                     "names the caller");
    }
    if (flags == NCCL_SHRINK_ABORT && rank->rank != rank->n - 1) {
        CHECK_MISUSE(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclInt32, ncclSum, rank->comm, rank->stream),
                     ncclInvalidUsage, "operations were ended");
    }
    CHECK_OK(cuMemFree(a));
    CHECK_OK(flags == NCCL_SHRINK_ABORT ? ncclCommAbort(rank->comm) : ncclCommDestroy(rank->comm));
    finish_device(rank);
}

static void check_shrink(struct rank *rank)
{
    check_shrink_with_flags(rank, NCCL_SHRINK_DEFAULT);
}

static void check_shrink_with_abort(struct rank *rank)
{
    check_shrink_with_flags(rank, NCCL_SHRINK_ABORT);
}

static void check_registration(struct rank *rank)
{
    void *memory = NULL, *handle = NULL;
    ncclWindow_t window = NULL;
    start_rank(rank);
    CHECK_OK(ncclMemAlloc(&memory, 8192));
    CUdeviceptr other = device_memory(100);
    CHECK_OK(ncclCommRegister(rank->comm, POINTER(other), 100, &handle));
    CHECK_OK(ncclCommDeregister(rank->comm, handle));
    CHECK_MISUSE(ncclCommDeregister(rank->comm, handle), ncclInvalidArgument, "ncclCommDeregister");
    CHECK_MISUSE(ncclCommWindowRegister(rank->comm, POINTER(other), 100, &window, 0), ncclInvalidArgument,
                 "ncclMemAlloc did not give");
    CHECK_OK(ncclCommWindowRegister(rank->comm, memory, 8192, &window, NCCL_WIN_COLL_SYMMETRIC));
    CHECK_OK(ncclCommWindowDeregister(rank->comm, window));
    if (rank->n > 1) {
        size_t bytes = rank->rank == 0 ? 4096 : 8192;
        CHECK_MISUSE(ncclCommWindowRegister(rank->comm, memory, bytes, &window, 0), ncclInvalidArgument,
                     "registers a window");
        CHECK_OK(ncclCommAbort(rank->comm));
    } else {
        CHECK_OK(ncclCommDestroy(rank->comm));
    }
    CHECK_OK(ncclMemFree(memory));
    CHECK_MISUSE(ncclMemFree(memory), ncclInvalidArgument, "ncclMemFree");
    CHECK_OK(cuMemFree(other));
    finish_device(rank);
}

static void duplicate_devices_are_refused(struct rank *rank)
{
    ncclConfig_t config = nonblocking_config();
    ncclComm_t comm = NULL;
    start_device(rank, rank->rank / 2);
    CHECK_RESULT(ncclCommInitRank(&rank->comm, rank->n, rank->id, rank->rank), ncclInvalidUsage);
    CHECK(rank->comm == NULL && strstr(ncclGetLastError(NULL), "duplicate GPU: rank 0 and rank 1") != NULL);
    CHECK_RESULT(ncclCommInitRankConfig(&comm, rank->n, rank->second, rank->rank, &config), ncclInProgress);
    CHECK_RESULT(await(comm), ncclInvalidUsage);
    CHECK_OK(ncclCommAbort(comm));
    finish_device(rank);
}

static void duplicate_devices_may_be_allowed(struct rank *rank)
{
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    start_device(rank, 0);
    CHECK_OK(ncclCommInitRank(&rank->comm, rank->n, rank->id, rank->rank));
    check_sum(rank, rank->comm);
    finish_rank(rank);
}

static void different_versions_are_refused(struct rank *rank)
{
    int version = 0, excluded[] = { 1 };
    ncclComm_t comm = NULL;
    setenv("DIST_STUB_NCCL_VERSION", "22005", 1);
    CHECK_OK(ncclGetVersion(&version));
    CHECK(version == 22005);
    start_rank(rank);
    CUdeviceptr a = device_memory(4);
    CHECK_MISUSE(ncclCommShrink(rank->comm, excluded, 1, &comm, NULL, 0), ncclInvalidUsage,
                 "is newer than version 22005");
    CHECK_MISUSE(ncclAllReduce(POINTER(a), POINTER(a), 1, ncclFloat8e4m3, ncclSum, rank->comm, rank->stream),
                 ncclInvalidArgument, "has no type 10");
    ncclConfig_t config = new_config();
    CHECK_MISUSE(ncclCommSplit(rank->comm, 0, 0, &comm, &config), ncclInvalidArgument, "version 22005 does not know");
    CHECK_OK(cuMemFree(a));
    finish_rank(rank);
    /* Ranks with different versions do not meet. */
    setenv("DIST_STUB_NCCL_VERSION", rank->rank == 0 ? "22005" : "22403", 1);
    start_device(rank, rank->rank);
    CHECK_RESULT(ncclCommInitRank(&comm, rank->n, rank->second, rank->rank), ncclInvalidUsage);
    CHECK(comm == NULL && strstr(ncclGetLastError(NULL), "has version") != NULL);
    finish_device(rank);
}

/* A library of an old version lacks later functions. */
static void old_library_lacks_functions(struct rank *rank)
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
        run_processes("properties", n, check_properties);
        run_processes("not blocking", n, check_nonblocking_init);
        run_processes("registration", n, check_registration);
    }
    run_threads("not blocking", 3, check_nonblocking_init);
    run_processes("all in one", 1, one_thread_drives_all_devices);
    for (int n = 2; n <= 4; n++) {
        run_processes("split", n, check_split);
        run_processes("shrink", n, check_shrink);
        run_processes("shrink with abort", n, check_shrink_with_abort);
    }
    run_threads("split", 4, check_split);
    run_processes("split without blocking", 3, check_nonblocking_split);
    run_processes("duplicates", 2, duplicate_devices_are_refused);
    run_processes("allowed duplicates", 2, duplicate_devices_may_be_allowed);
    run_processes("versions", 2, different_versions_are_refused);
    run_processes("old library", 1, old_library_lacks_functions);
}
