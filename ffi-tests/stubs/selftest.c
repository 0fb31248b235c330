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
#define MOST 4

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

void check_that(int holds, const char *text, const char *file, int line)
{
    atomic_fetch_add(&shared->made, 1);
    if (!holds) {
        atomic_fetch_add(&shared->failed, 1);
        fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, text);
    }
}

void check_result(int got, int wanted, const char *call, const char *file, int line)
{
    if (got != wanted) {
        fprintf(stderr, "%s:%d: %s returned %d, not %d (%s)\n", file, line, call, got, wanted, ncclGetLastError(NULL));
    }
    check_that(got == wanted, "the result above", file, line);
}

static unsigned long misuses(void)
{
    struct dist_stub_cuda_counts counts;
    dist_stub_cuda_count(&counts);
    return (unsigned long)counts.misuses + dist_stub_nccl_misuses();
}

static int log_speaks_of(const char *word)
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
    CHECK(log_speaks_of(word));
    CHECK(misuses() == expected_misuses);
}

void check_misuse(int got, int wanted, const char *word, const char *call, const char *file, int line)
{
    check_result(got, wanted, call, file, line);
    check_that(misuses() > expected_misuses, "the misuse above is counted", file, line);
    if (!log_speaks_of(word)) {
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
static void check_remains(void)
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

static void report(const char *name, int n, const char *what, const ncclUniqueId *ids, int failed)
{
    tests++;
    check_folders(ids);
    if (atomic_load(&shared->failed) != failed) {
        fprintf(stderr, "failed: %s with %d %s\n", name, n, what);
    }
}

/* Waits for the ranks of a test, and kills them after the time limit. */
static void reap(const char *name, const pid_t *ranks, int n)
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
    pid_t ranks[MOST];
    OK(ncclGetUniqueId(&ids[0]));
    OK(ncclGetUniqueId(&ids[1]));
    set_barrier(n);
    unlink(log_path);
    for (int i = 0; i < n; i++) {
        ranks[i] = fork();
        if (ranks[i] == 0) {
            struct rank rank = new_rank(i, n, ids);
            test(&rank);
            check_remains();
            exit(0);
        }
    }
    reap(name, ranks, n);
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
    struct thread threads[MOST];
    OK(ncclGetUniqueId(&ids[0]));
    OK(ncclGetUniqueId(&ids[1]));
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
        check_remains();
        exit(0);
    }
    reap(name, &process, 1);
    report(name, n, "threads", ids, failed);
}

void begin_device(struct rank *rank, int device)
{
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&rank->context, device));
    OK(cuCtxSetCurrent(rank->context));
    OK(cuStreamCreate(&rank->stream, CU_STREAM_NON_BLOCKING));
}

void end_device(struct rank *rank)
{
    CUdevice device = -1;
    OK(cuCtxGetDevice(&device));
    OK(cuStreamSynchronize(rank->stream));
    OK(cuStreamDestroy(rank->stream));
    OK(cuCtxSetCurrent(NULL));
    OK(cuDevicePrimaryCtxRelease(device));
}

void begin(struct rank *rank)
{
    begin_device(rank, rank->rank);
    OK(ncclCommInitRank(&rank->comm, rank->n, rank->id, rank->rank));
}

void end(struct rank *rank)
{
    OK(ncclCommDestroy(rank->comm));
    end_device(rank);
}

CUdeviceptr device_memory(size_t bytes)
{
    CUdeviceptr pointer = 0;
    OK(cuMemAlloc(&pointer, bytes));
    return pointer;
}

void upload(struct rank *rank, CUdeviceptr to, const void *from, size_t bytes)
{
    OK(cuMemcpyHtoDAsync(to, from, bytes, rank->stream));
    OK(cuStreamSynchronize(rank->stream));
}

void download(struct rank *rank, void *to, CUdeviceptr from, size_t bytes)
{
    OK(cuMemcpyDtoHAsync(to, from, bytes, rank->stream));
    OK(cuStreamSynchronize(rank->stream));
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

ncclConfig_t not_blocking(void)
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
            OK(called);
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
        RESULT(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
        nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
    }
}

static const struct {
    const char *name;
    void (*run)(void);
} parts[] = {
    { "cuda", test_cuda },       { "operations", test_operations }, { "communicators", test_communicators },
    { "faults", test_faults },   { "misuse", test_misuse },
};

static int is_wanted(const char *part, int argc, char **argv)
{
    int is_wanted = argc < 2;
    for (int i = 1; i < argc; i++) {
        is_wanted |= strcmp(argv[i], part) == 0;
    }
    return is_wanted;
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
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (is_wanted(parts[i].name, argc, argv)) {
            parts[i].run();
        }
    }
    unlink(log_path);
    /* rmdir fails if a communicator has left a file. */
    CHECK(rmdir(folder) == 0);
    printf("%d tests, %d checks, %d failed\n", tests, atomic_load(&shared->made), atomic_load(&shared->failed));
    return atomic_load(&shared->failed) != 0 || atomic_load(&shared->made) == 0;
}
