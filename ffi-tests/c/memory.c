/*
 * Memory that the library allocates: its use in every kind of call, its limits, and wrong
 * arguments.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <signal.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/time.h>

#define RANKS 3
/* Large enough for direct access between such buffers. */
#define COUNT 20000
#define LARGE ((size_t)2 << 20)

static dist_store_t *store;

static int32_t *allocate(dist_group_t *group, size_t count)
{
    void *ptr = NULL;
    REQUIRE_OK(dist_mem_alloc(group, count * sizeof(int32_t), DIST_DEVICE_HOST, &ptr));
    REQUIRE(ptr != NULL && (uintptr_t)ptr % 64 == 0);
    return ptr;
}

static void fill(int32_t *values, size_t count, int32_t value)
{
    size_t i;
    for (i = 0; i < count; i++) {
        values[i] = value;
    }
}

static int all_equal_to(const int32_t *values, size_t count, int32_t value)
{
    size_t i;
    for (i = 0; i < count && values[i] == value; i++) {
    }
    return i == count;
}

/* --- a buffer like any other --- */

static void check_reduction(dist_group_t *group, int rank, int32_t *own, int32_t *others)
{
    int i;
    fill(own, COUNT, rank + 1);
    CHECK_OK(dist_all_reduce(group, own, own, COUNT, DIST_I32, DIST_SUM, NULL, NULL));
    CHECK(all_equal_to(own, COUNT, 6));
    fill(own, COUNT, rank + 1);
    CHECK_OK(dist_reduce(group, own, others, COUNT, DIST_I32, DIST_MAX, 1, NULL, NULL));
    CHECK(rank != 1 || all_equal_to(others, COUNT, RANKS));
    fill(others, RANKS * COUNT, rank);
    CHECK_OK(dist_reduce_scatter(group, others, own, COUNT, DIST_I32, DIST_SUM, NULL, NULL));
    CHECK(all_equal_to(own, COUNT, 3));
    fill(own, COUNT, 10 * rank);
    CHECK_OK(dist_all_gather(group, own, others, COUNT, DIST_I32, NULL, NULL));
    for (i = 0; i < RANKS; i++) {
        CHECK(all_equal_to(others + i * COUNT, COUNT, 10 * i));
    }
    fill(own, COUNT, rank);
    CHECK_OK(dist_broadcast(group, own, COUNT, DIST_I32, 2, NULL, NULL));
    CHECK(all_equal_to(own, COUNT, 2));
}

static void check_messages(dist_group_t *group, int rank, size_t count, int32_t *own, int32_t *others)
{
    dist_work_t *work = NULL;
    int next = (rank + 1) % RANKS;
    int previous = (rank + RANKS - 1) % RANKS;
    fill(own, count, rank);
    CHECK_OK(dist_send(group, own, count, DIST_I32, next, 5, NULL, &work));
    CHECK_OK(dist_recv(group, others, count, DIST_I32, previous, 5, NULL, NULL, NULL));
    CHECK(all_equal_to(others, count, previous));
    CHECK_OK(dist_work_wait(work, 0));
    CHECK_OK(dist_work_release(work));
}

static void *run_rank(void *arg)
{
    int rank = (int)(intptr_t)arg;
    dist_group_t *group = NULL;
    int32_t *own, *others;
    REQUIRE_OK(join_group(store, "memory", rank, RANKS, &group));
    own = allocate(group, LARGE);
    others = allocate(group, RANKS * COUNT);
    CHECK_OK(dist_mem_register(group, own, LARGE * sizeof(int32_t)));
    check_reduction(group, rank, own, others);
    check_messages(group, rank, COUNT, own, others);
    CHECK_OK(dist_mem_free(others));
    others = allocate(group, LARGE);
    check_messages(group, rank, LARGE, own, others);
    CHECK_OK(dist_mem_deregister(group, own));
    CHECK_OK(dist_mem_free(own));
    CHECK_OK(dist_barrier(group, NULL, NULL));
    CHECK_OK(dist_group_release(group));
    /* The memory outlives its group. */
    fill(others, LARGE, rank);
    CHECK(all_equal_to(others, LARGE, rank));
    CHECK_OK(dist_mem_free(others));
    return NULL;
}

static void ranks_as_threads_share_memory(void)
{
    pthread_t threads[RANKS];
    int rank;
    store = new_store();
    for (rank = 0; rank < RANKS; rank++) {
        REQUIRE(pthread_create(&threads[rank], NULL, run_rank, (void *)(intptr_t)rank) == 0);
    }
    for (rank = 0; rank < RANKS; rank++) {
        REQUIRE(pthread_join(threads[rank], NULL) == 0);
    }
    CHECK_OK(dist_store_release(store));
}

static int32_t run_process_rank(int32_t rank, void *arg)
{
    int32_t *own, *others;
    (void)arg;
    checks.failed = 0;
    REQUIRE_OK(dist_init(NULL));
    own = allocate(dist_world(), LARGE);
    others = allocate(dist_world(), LARGE);
    check_reduction(dist_world(), (int)rank, own, others);
    check_messages(dist_world(), (int)rank, LARGE, own, others);
    CHECK_OK(dist_mem_free(own));
    CHECK_OK(dist_finalize());
    CHECK_OK(dist_mem_free(others));
    return checks.failed;
}

static void ranks_as_processes_share_memory(void)
{
    dist_spawn_options_t options = DIST_SPAWN_OPTIONS_INIT;
    options.join_timeout_ms = LIMIT_MS;
    CHECK_OK(dist_spawn(run_process_rank, NULL, RANKS, &options));
}

/* --- its places --- */

static void allocations_are_disjoint_aligned_and_reused(void)
{
    enum { MANY = 200 };
    unsigned char *blocks[MANY];
    size_t sizes[MANY];
    void *large, *again;
    size_t i, j;
    for (i = 0; i < MANY; i++) {
        void *ptr = NULL;
        sizes[i] = 1 + i * i % 977;
        REQUIRE_OK(dist_mem_alloc(dist_world(), sizes[i], DIST_DEVICE_HOST, &ptr));
        CHECK((uintptr_t)ptr % 64 == 0);
        blocks[i] = ptr;
        memset(ptr, (int)i, sizes[i]);
    }
    for (i = 0; i < MANY; i++) {
        for (j = 0; j < sizes[i] && blocks[i][j] == (unsigned char)i; j++) {
        }
        CHECK(j == sizes[i]);
        CHECK_OK(dist_mem_free(blocks[i]));
    }
    REQUIRE_OK(dist_mem_alloc(dist_world(), LARGE, DIST_DEVICE_HOST, &large));
    CHECK((uintptr_t)large % LARGE == 0);
    memset(large, 1, LARGE);
    CHECK_OK(dist_mem_free(large));
    REQUIRE_OK(dist_mem_alloc(dist_world(), LARGE, DIST_DEVICE_HOST, &again));
    CHECK(again == large);
    CHECK_OK(dist_mem_free(again));
}

/* --- errors --- */

static void oversized_allocation_names_the_sizes(void)
{
    static const size_t sizes[] = { SIZE_MAX, SIZE_MAX / 2, (size_t)1 << 50 };
    size_t i;
    for (i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char number[32];
        void *ptr = &ptr;
        CHECK_STATUS(dist_mem_alloc(dist_world(), sizes[i], DIST_DEVICE_HOST, &ptr), DIST_ERR_OUT_OF_MEMORY);
        snprintf(number, sizeof number, "%lu bytes", (unsigned long)sizes[i]);
        CHECK_MESSAGE(number);
        CHECK(ptr == NULL);
    }
}

static int32_t allocate_with_file_size_limit(int32_t rank, void *arg)
{
    struct rlimit limit;
    void *ptr = &ptr;
    (void)rank;
    (void)arg;
    checks.failed = 0;
    REQUIRE(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    limit.rlim_cur = 1 << 20;
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    REQUIRE_OK(dist_init(NULL));
    CHECK_REFUSED(dist_mem_alloc(dist_world(), 8, DIST_DEVICE_HOST, &ptr), DIST_ERR_OUT_OF_MEMORY, "ulimit -f");
    CHECK(ptr == NULL);
    CHECK_OK(dist_finalize());
    return checks.failed;
}

/* The limit gives an error and not SIGXFSZ. */
static void file_size_limit_is_reported(void)
{
    dist_spawn_options_t options = DIST_SPAWN_OPTIONS_INIT;
    options.join_timeout_ms = LIMIT_MS;
    CHECK_OK(dist_spawn(allocate_with_file_size_limit, NULL, 1, &options));
}

static void ignore_signal(int number)
{
    (void)number;
}

/* Interrupts the process like a sampling profiler. */
static void interrupt_every(suseconds_t microseconds)
{
    struct itimerval timer;
    struct sigaction action;
    memset(&timer, 0, sizeof timer);
    memset(&action, 0, sizeof action);
    timer.it_value.tv_usec = timer.it_interval.tv_usec = microseconds;
    action.sa_handler = ignore_signal;
    action.sa_flags = SA_RESTART;
    REQUIRE(sigaction(SIGALRM, &action, NULL) == 0);
    REQUIRE(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

static int32_t allocate_while_interrupted(int32_t rank, void *arg)
{
    void *ptr = NULL;
    (void)rank;
    (void)arg;
    checks.failed = 0;
    REQUIRE_OK(dist_init(NULL));
    interrupt_every(2000);
    CHECK_OK(dist_mem_alloc(dist_world(), 32 * LARGE, DIST_DEVICE_HOST, &ptr));
    interrupt_every(0);
    CHECK_OK(dist_mem_free(ptr));
    CHECK_OK(dist_finalize());
    return checks.failed;
}

static void signals_do_not_prevent_allocation(void)
{
    dist_spawn_options_t options = DIST_SPAWN_OPTIONS_INIT;
    options.join_timeout_ms = LIMIT_MS;
    CHECK_OK(dist_spawn(allocate_while_interrupted, NULL, 1, &options));
}

static void wrong_pointers_are_refused(void)
{
    int local = 0;
    void *ptr = NULL;
    REQUIRE_OK(dist_mem_alloc(dist_world(), 100, DIST_DEVICE_HOST, &ptr));
    CHECK_REFUSED(dist_mem_free(&local), DIST_ERR_INVALID_ARGUMENT, "dist_mem_alloc");
    CHECK_REFUSED(dist_mem_free((char *)ptr + 64), DIST_ERR_INVALID_ARGUMENT, "inside the allocation");
    CHECK_OK(dist_mem_free(ptr));
    CHECK_REFUSED(dist_mem_free(ptr), DIST_ERR_INVALID_ARGUMENT, "freed before");
    ptr = &local;
    CHECK_OK(dist_mem_alloc(dist_world(), 0, DIST_DEVICE_HOST, &ptr));
    CHECK(ptr == NULL);
    CHECK_OK(dist_mem_free(NULL));
}

static void other_devices_are_refused(void)
{
    void *ptr = &ptr;
    CHECK_REFUSED(dist_mem_alloc(dist_world(), 8, 0, &ptr), DIST_ERR_UNSUPPORTED, "device 0");
    CHECK_MESSAGE("native");
    CHECK(ptr == NULL);
    CHECK_REFUSED(dist_mem_alloc(dist_world(), 8, -2, &ptr), DIST_ERR_INVALID_ARGUMENT, "device is -2");
}

static void registrations_do_not_overlap(void)
{
    static char memory[300];
    dist_store_t *other_store = new_store();
    dist_group_t *other = NULL;
    REQUIRE_OK(join_group(other_store, "other", 0, 1, &other));
    CHECK_OK(dist_mem_register(dist_world(), memory + 100, 100));
    CHECK_REFUSED(dist_mem_register(dist_world(), memory, 101), DIST_ERR_INVALID_ARGUMENT, "overlap");
    CHECK_REFUSED(dist_mem_register(dist_world(), memory + 199, 1), DIST_ERR_INVALID_ARGUMENT, "overlap");
    CHECK_OK(dist_mem_register(dist_world(), memory, 100));
    CHECK_OK(dist_mem_register(dist_world(), memory + 200, 100));
    CHECK_OK(dist_mem_register(other, memory, 300));
    CHECK_REFUSED(dist_mem_deregister(dist_world(), memory + 1), DIST_ERR_INVALID_ARGUMENT, "registered");
    CHECK_OK(dist_mem_deregister(dist_world(), memory));
    CHECK_REFUSED(dist_mem_deregister(dist_world(), memory), DIST_ERR_INVALID_ARGUMENT, "registered");
    CHECK_REFUSED(dist_mem_register(dist_world(), memory, 0), DIST_ERR_INVALID_ARGUMENT, "bytes");
    CHECK_REFUSED(dist_mem_register(dist_world(), memory, SIZE_MAX), DIST_ERR_INVALID_ARGUMENT, "address space");
    CHECK_OK(dist_group_release(other));
    CHECK_OK(dist_store_release(other_store));
}

int main(void)
{
    void *memory = NULL;
    CHECK_STATUS(dist_mem_alloc(dist_world(), 8, DIST_DEVICE_HOST, &memory), DIST_ERR_NOT_INITIALIZED);
    /* These tests fork, so they run before any thread exists. */
    ranks_as_processes_share_memory();
    file_size_limit_is_reported();
    signals_do_not_prevent_allocation();
    ranks_as_threads_share_memory();
    start_world();
    allocations_are_disjoint_aligned_and_reused();
    oversized_allocation_names_the_sizes();
    wrong_pointers_are_refused();
    other_devices_are_refused();
    registrations_do_not_overlap();
    REQUIRE_OK(dist_mem_alloc(dist_world(), 8, DIST_DEVICE_HOST, &memory));
    CHECK_OK(dist_finalize());
    memset(memory, 1, 8);
    CHECK_OK(dist_mem_free(memory));
    return check_report();
}
