/*
 * Processes whose security profile (seccomp) forbids a system call that the library uses, or whose
 * limit on the size of files (ulimit -f) is smaller than a segment of shared memory. Where another
 * way keeps the promises, the ranks take it: TCP instead of shared memory, with one line in the
 * log. Otherwise the error names the call or the limit.
 */
#define _GNU_SOURCE
#include "forked_ranks.h"

#include <sys/resource.h>

#define RANKS 2
#define COUNT 300000
#define FILE_LIMIT 0

struct job {
    const char *name;
    long call; /* FILE_LIMIT for ulimit -f */
    int error;
    int ranks; /* a bit for each rank that is restricted */
    const char *transport; /* the transport that the group must have */
    const char *word; /* the word in the error if the transport is shm; NULL for no error */
};

/* The number of lines about memory that ranks cannot share. */
static int warnings;

static void count_warnings(int32_t level, const char *line, void *user)
{
    (void)user;
    if (level <= DIST_LOG_WARN && strstr(line, "cannot share memory use TCP") != NULL) {
        __atomic_add_fetch(&warnings, 1, __ATOMIC_RELAXED);
    }
}

static void restrict_process(const struct job *job)
{
    struct rlimit limit;
    if (job->call != FILE_LIMIT) {
        REQUIRE(fail_syscall(job->call, job->error));
        return;
    }
    REQUIRE(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    limit.rlim_cur = 8192;
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

static void check_transport(dist_group_t *group, const char *transport)
{
    dist_blob_t *json = NULL;
    const void *data = NULL;
    size_t len = 0;
    char wanted[64];
    sprintf(wanted, "\"transport\":\"%s\"", transport);
    REQUIRE_OK(dist_group_describe(group, &json));
    REQUIRE_OK(dist_blob_data(json, 0, &data, &len));
    if (!CHECK(memmem(data, len, wanted, strlen(wanted)) != NULL)) {
        printf("%s is not in %.*s\n", wanted, (int)len, (const char *)data);
    }
    CHECK_OK(dist_blob_release(json));
}

static void check_sums(dist_group_t *group)
{
    static const size_t counts[] = { 1, 1000, COUNT };
    float *vector = malloc(COUNT * sizeof(float));
    size_t c, i;
    REQUIRE(vector != NULL);
    for (c = 0; c < 3; c++) {
        for (i = 0; i < counts[c]; i++) {
            vector[i] = (float)(i % 100);
        }
        CHECK_OK(dist_all_reduce(group, vector, vector, counts[c], DIST_F32, DIST_SUM, NULL, NULL));
        for (i = 0; i < counts[c]; i++) {
            if (!CHECK(vector[i] == RANKS * (float)(i % 100))) {
                break;
            }
        }
    }
    free(vector);
}

/* Memory that is released and allocated again contains zeros. */
static void check_memory(dist_group_t *group, const struct job *job)
{
    void *memory = NULL;
    int round;
    if (job->word != NULL) {
        dist_status_t status = dist_mem_alloc(group, 1 << 16, DIST_DEVICE_HOST, &memory);
        CHECK(status != DIST_OK);
        CHECK_MESSAGE(job->word);
        return;
    }
    for (round = 0; round < 3; round++) {
        const size_t bytes = 9 << 20;
        size_t i;
        REQUIRE_OK(dist_mem_alloc(group, bytes, DIST_DEVICE_HOST, &memory));
        for (i = 0; i < bytes && ((char *)memory)[i] == 0; i += 64) {
        }
        CHECK(i >= bytes);
        memset(memory, 7, bytes);
        CHECK_OK(dist_mem_free(memory));
    }
}

static int run_rank(struct shared_page *page, int rank, void *arg)
{
    const struct job *job = arg;
    dist_store_t *store;
    dist_group_t *group = NULL, *refused = NULL;
    int is_restricted = job->ranks >> rank & 1;
    if (is_restricted) {
        restrict_process(job);
    }
    REQUIRE_OK(dist_set_log_level(DIST_LOG_WARN));
    REQUIRE_OK(dist_set_log_callback(count_warnings, NULL));
    store = open_shared_store(page, rank);
    REQUIRE_OK(join_group(store, "all", rank, RANKS, &group));
    check_transport(group, job->transport);
    check_sums(group);
    if (is_restricted) {
        check_memory(group, job);
    }
    if (strcmp(job->transport, "tcp") == 0) {
        dist_group_t *second = NULL;
        CHECK_STATUS(join_group_with(store, "shared", rank, RANKS, "transport=shm", &refused), DIST_ERR_UNSUPPORTED);
        CHECK_MESSAGE(job->word);
        REQUIRE_OK(join_group(store, "second", rank, RANKS, &second));
        check_sums(second);
        CHECK_OK(dist_group_release(second));
        CHECK(warnings == 1);
    } else {
        CHECK(warnings == 0);
    }
    CHECK_OK(dist_group_release(group));
    CHECK_OK(dist_store_release(store));
    if (checks.failed > 0) {
        printf("rank %d of the job \"%s\" failed\n", rank, job->name);
    }
    return check_report();
}

int main(void)
{
    static struct job jobs[] = {
        { "memfd_create on both ranks", SYS_memfd_create, EPERM, 3, "tcp", "memfd_create" },
        { "memfd_create on rank 0", SYS_memfd_create, ENOSYS, 1, "tcp", "memfd_create" },
        { "memfd_create on rank 1", SYS_memfd_create, EPERM, 2, "shm", "memfd_create" },
        { "fallocate on both ranks", SYS_fallocate, EPERM, 3, "shm", NULL },
        { "fallocate on rank 0", SYS_fallocate, ENOSYS, 1, "shm", NULL },
        { "sched_getaffinity on both ranks", SYS_sched_getaffinity, EPERM, 3, "shm", NULL },
        { "sched_getaffinity on rank 1", SYS_sched_getaffinity, ENOSYS, 2, "shm", NULL },
        { "the limit on both ranks", FILE_LIMIT, 0, 3, "tcp", "ulimit -f" },
        { "the limit on rank 0", FILE_LIMIT, 0, 1, "tcp", "ulimit -f" },
    };
    int has_filters = can_filter_syscalls();
    size_t j;
    if (!has_filters) {
        printf("the kernel takes no filters of system calls: only the limit is tested\n");
    }
    for (j = 0; j < sizeof(jobs) / sizeof(jobs[0]); j++) {
        if (has_filters || jobs[j].call == FILE_LIMIT) {
            run_forks(RANKS, run_rank, &jobs[j]);
        }
    }
    return check_report();
}
