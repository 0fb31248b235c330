/*
 * The self-test of the stubs libcuda and libnccl: `selftest [part ...]`, in the folder of the
 * stubs.
 *
 * Each test runs in separate processes, one per rank, or in threads of one process. It fails if
 * a check fails, a rank dies, or the time limit passes.
 */
#include "selftest.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The time limit of a test in seconds, also under Valgrind. */
#define LIMIT_S 60
#define MAX_RANKS 4

/* Memory that all processes of a test share. */
static struct shared {
    pthread_barrier_t barrier;
    atomic_int made;
    atomic_int failed;
} *shared;

static char folder[] = "/tmp/dist_stub_selftest.XXXXXX";
static char log_path[64];
static unsigned long expected_misuses;
static int tests;

void check_that(int is_true, const char *text, const char *file, int line)
{
    atomic_fetch_add(&shared->made, 1);
    if (!is_true) {
        atomic_fetch_add(&shared->failed, 1);
        fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, text);
    }
}

void check_result(int actual, int expected, const char *call, const char *file, int line)
{
    if (actual != expected) {
        fprintf(stderr, "%s:%d: %s returned %d, not %d (%s)\n", file, line, call, actual, expected,
                ncclGetLastError(NULL));
    }
    check_that(actual == expected, "the result above", file, line);
}

static unsigned long misuses(void)
{
    struct dist_stub_cuda_counts counts;
    dist_stub_cuda_count(&counts);
    return (unsigned long)counts.misuses + dist_stub_nccl_misuses();
}

static int log_contains(const char *word)
{
    char text[1 << 16];
    int fd = open(log_path, O_RDONLY);
    ssize_t length = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0) {
        close(fd);
    }
    text[length < 0 ? 0 : length] = '\0';
    return strstr(text, word) != NULL;
}

void expect_misuses(unsigned long count, const char *word)
{
    expected_misuses += count;
    CHECK(log_contains(word));
    CHECK(misuses() == expected_misuses);
}

void check_misuse(int actual, int expected, const char *word, const char *call, const char *file, int line)
{
    check_result(actual, expected, call, file, line);
    check_that(misuses() > expected_misuses, "the misuse above is counted", file, line);
    if (!log_contains(word)) {
        fprintf(stderr, "%s:%d: the log does not speak of \"%s\"\n", file, line, word);
        check_that(0, "the log above", file, line);
    }
    expected_misuses = misuses();
}

void barrier(void)
{
    pthread_barrier_wait(&shared->barrier);
}

static void set_barrier(int n)
{
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &attributes, (unsigned)n);
    pthread_barrierattr_destroy(&attributes);
}

/* Checks in each process that a test has released its resources. */
static void check_leftovers(void)
{
    struct dist_stub_cuda_counts counts;
    dist_stub_cuda_count(&counts);
    CHECK(counts.contexts == 0 && counts.streams == 0 && counts.events == 0);
    CHECK(counts.device_allocations == 0 && counts.host_allocations == 0 && counts.registrations == 0);
    CHECK(dist_stub_nccl_alive() == 0);
    CHECK(misuses() == expected_misuses);
}

static struct rank new_rank(int rank, int n, const ncclUniqueId *ids)
{
    return (struct rank){ .rank = rank, .n = n, .id = ids[0], .second = ids[1] };
}

/* Checks that the meeting folders are removed, whether or not the ranks met. */
static void check_folders(const ncclUniqueId *ids)
{
    for (int i = 0; i < 2; i++) {
        const char *path = strchr(ids[i].internal, '/');
        CHECK(path != NULL && (rmdir(path) == 0 || errno == ENOENT));
    }
}

static void report(const char *name, int n, const char *reason, const ncclUniqueId *ids, int failed)
{
    tests++;
    check_folders(ids);
    if (atomic_load(&shared->failed) != failed) {
        fprintf(stderr, "failed: %s with %d %s\n", name, n, reason);
    }
}

/* Waits for the ranks of a test, and kills them after the time limit. */
static void wait_for_ranks(const char *name, const pid_t *ranks, int n)
{
    time_t until = time(NULL) + LIMIT_S;
    for (int rank = 0; rank < n; rank++) {
        int status = 0;
        pid_t ended;
        while ((ended = waitpid(ranks[rank], &status, WNOHANG)) == 0 && time(NULL) < until) {
            nanosleep(&(struct timespec){ 0, 2000000 }, NULL);
        }
        if (ended == 0) {
            fprintf(stderr, "%s: rank %d of %d takes too long\n", name, rank, n);
            kill(ranks[rank], SIGKILL);
            waitpid(ranks[rank], &status, 0);
        }
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            fprintf(stderr, "%s: rank %d of %d ended with status %#x\n", name, rank, n, (unsigned)status);
        }
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

void run_processes(const char *name, int n, test_fn test)
{
    int failed = atomic_load(&shared->failed);
    ncclUniqueId ids[2];
    pid_t ranks[MAX_RANKS];
    CHECK_OK(ncclGetUniqueId(&ids[0]));
    CHECK_OK(ncclGetUniqueId(&ids[1]));
    set_barrier(n);
    unlink(log_path);
    for (int i = 0; i < n; i++) {
        ranks[i] = fork();
        if (ranks[i] == 0) {
            struct rank rank = new_rank(i, n, ids);
            test(&rank);
            check_leftovers();
            exit(0);
        }
    }
    wait_for_ranks(name, ranks, n);
    report(name, n, "processes", ids, failed);
}

struct thread {
    struct rank rank;
    test_fn test;
    pthread_t thread;
};

static void *run_thread(void *argument)
{
    struct thread *thread = argument;
    thread->test(&thread->rank);
    return NULL;
}

/* The threads run in a separate process, so that the parent never calls cuInit. */
void run_threads(const char *name, int n, test_fn test)
{
    int failed = atomic_load(&shared->failed);
    ncclUniqueId ids[2];
    struct thread threads[MAX_RANKS];
    CHECK_OK(ncclGetUniqueId(&ids[0]));
    CHECK_OK(ncclGetUniqueId(&ids[1]));
    set_barrier(n);
    unlink(log_path);
    pid_t process = fork();
    if (process == 0) {
        for (int i = 0; i < n; i++) {
            threads[i] = (struct thread){ .rank = new_rank(i, n, ids), .test = test };
            CHECK(pthread_create(&threads[i].thread, NULL, run_thread, &threads[i]) == 0);
        }
        for (int i = 0; i < n; i++) {
            pthread_join(threads[i].thread, NULL);
        }
        check_leftovers();
        exit(0);
    }
    wait_for_ranks(name, &process, 1);
    report(name, n, "threads", ids, failed);
}

void start_device(struct rank *rank, int device)
{
    CHECK_OK(cuInit(0));
    CHECK_OK(cuDevicePrimaryCtxRetain(&rank->context, device));
    CHECK_OK(cuCtxSetCurrent(rank->context));
    CHECK_OK(cuStreamCreate(&rank->stream, CU_STREAM_NON_BLOCKING));
}

void finish_device(struct rank *rank)
{
    CUdevice device = -1;
    CHECK_OK(cuCtxGetDevice(&device));
    CHECK_OK(cuStreamSynchronize(rank->stream));
    CHECK_OK(cuStreamDestroy(rank->stream));
    CHECK_OK(cuCtxSetCurrent(NULL));
    CHECK_OK(cuDevicePrimaryCtxRelease(device));
}

void start_rank(struct rank *rank)
{
    start_device(rank, rank->rank);
    CHECK_OK(ncclCommInitRank(&rank->comm, rank->n, rank->id, rank->rank));
}

void finish_rank(struct rank *rank)
{
    CHECK_OK(ncclCommDestroy(rank->comm));
    finish_device(rank);
}

CUdeviceptr device_memory(size_t bytes)
{
    CUdeviceptr pointer = 0;
    CHECK_OK(cuMemAlloc(&pointer, bytes));
    return pointer;
}

void upload(struct rank *rank, CUdeviceptr to, const void *from, size_t bytes)
{
    CHECK_OK(cuMemcpyHtoDAsync(to, from, bytes, rank->stream));
    CHECK_OK(cuStreamSynchronize(rank->stream));
}

void download(struct rank *rank, void *to, CUdeviceptr from, size_t bytes)
{
    CHECK_OK(cuMemcpyDtoHAsync(to, from, bytes, rank->stream));
    CHECK_OK(cuStreamSynchronize(rank->stream));
}

/* Returns the structure of 2.27 with any header. Later libraries accept it, and later structures
 * begin with it. */
ncclConfig_t new_config(void)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.size = 72;
    config.version = 22700;
    return config;
}

ncclConfig_t nonblocking_config(void)
{
    ncclConfig_t config = new_config();
    config.blocking = 0;
    return config;
}

static ncclResult_t await_other(ncclComm_t comm, ncclResult_t state)
{
    ncclResult_t now = state;
    for (time_t until = time(NULL) + LIMIT_S / 2; now == state && time(NULL) < until;) {
        ncclResult_t called = ncclCommGetAsyncError(comm, &now);
        if (called != ncclSuccess) {
            CHECK_OK(called);
            return called;
        }
        nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
    }
    return now;
}

ncclResult_t await(ncclComm_t comm)
{
    return await_other(comm, ncclInProgress);
}

ncclResult_t await_error(ncclComm_t comm)
{
    return await_other(comm, ncclSuccess);
}

void check_hangs(CUstream stream)
{
    for (int i = 0; i < 50; i++) {
        CHECK_RESULT(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
        nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
    }
}

static const struct {
    const char *name;
    void (*run)(void);
} sections[] = {
    { "cuda", test_cuda },       { "operations", test_operations }, { "communicators", test_communicators },
    { "faults", test_faults },   { "misuse", test_misuse },
};

static int is_selected(const char *section, int argc, char **argv)
{
    int is_listed = argc < 2;
    for (int i = 1; i < argc; i++) {
        is_listed |= strcmp(argv[i], section) == 0;
    }
    return is_listed;
}

int main(int argc, char **argv)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || mkdtemp(folder) == NULL) {
        perror("the self-test cannot begin");
        return 1;
    }
    snprintf(log_path, sizeof log_path, "%s/log", folder);
    setenv("DIST_STUB_LOG", log_path, 1);
    setenv("DIST_STUB_DIR", folder, 1);
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    for (size_t i = 0; i < sizeof sections / sizeof sections[0]; i++) {
        if (is_selected(sections[i].name, argc, argv)) {
            sections[i].run();
        }
    }
    unlink(log_path);
    /* rmdir fails if a communicator has left a file. */
    CHECK(rmdir(folder) == 0);
    printf("%d tests, %d checks, %d failed\n", tests, atomic_load(&shared->made), atomic_load(&shared->failed));
    return atomic_load(&shared->failed) != 0 || atomic_load(&shared->made) == 0;
}
