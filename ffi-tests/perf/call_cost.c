/*
 * One of the two ranks whose calls `cargo xtask cost` counts: dist_all_reduce, dist_send and
 * dist_recv of 4 bytes.
 *
 *     call_cost RANK FOLDER CALLS
 *
 * Rank 0 runs under `valgrind --tool=callgrind`, which counts the instructions inside each of its
 * calls. Rank 1 runs directly on the processor and is not counted. Both share FOLDER, which must
 * be empty: the file `steps` is memory that both map, and the library puts its store there.
 *
 * A count is repeatable only if the measured call never waits. Therefore rank 0 begins each call
 * when its peer's part is done.
 *
 *   dist_send        Rank 1 has received the message before, and is not receiving yet.
 *   dist_recv        Rank 1 has sent the message and reports that in `steps`. Rank 0 polls `steps`
 *                    without a system call. If rank 0 slept instead, its service thread would
 *                    take the message first, on another path.
 *   dist_all_reduce  Rank 1 reports that it is about to call. Rank 0 then sleeps for SETTLE_US.
 *                    In this time rank 1 publishes its value and spins. If the kernel takes the
 *                    core from rank 1 in this time, rank 0 waits in this one call.
 *
 * `cargo xtask cost` takes the smallest frequent count of all calls, so that single calls that
 * wait do not matter.
 *
 * The program compiles with the header of any tree since 0.1: it uses the names of constants, not
 * their numbers, and passes NULL for the optional source or status of dist_recv. Each tree needs a
 * binary of its own, because the numbers differ. HAS_LABELS is defined if the header's call
 * options have a label.
 */
#define _DEFAULT_SOURCE

#include <dist.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define TAG 7
#define SETTLE_US 1000L
#define MAX_WAIT_S 60

/* The number of steps that each rank has reported, in memory that both ranks map. Each counter
 * has its own cache line. */
struct steps {
    struct {
        atomic_long done;
        char padding[64 - sizeof(atomic_long)];
    } of_rank[2];
};

static void fail(const char *action, const char *reason)
{
    fprintf(stderr, "call_cost: %s: %s\n", action, reason);
    exit(1);
}

static void check(dist_status_t status, const char *call)
{
    if (status != DIST_OK) {
        fail(call, dist_last_error());
    }
}

static struct steps *map_steps(const char *folder)
{
    char path[4096];
    int file;
    void *mapped;
    if (snprintf(path, sizeof path, "%s/steps", folder) >= (int)sizeof path) {
        fail(folder, "the path is too long");
    }
    file = open(path, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof(struct steps)) != 0) {
        fail(path, strerror(errno));
    }
    mapped = mmap(NULL, sizeof(struct steps), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) {
        fail(path, strerror(errno));
    }
    close(file);
    return mapped;
}

/* Reports one more step of this rank. */
static void report_step(struct steps *steps, int rank)
{
    atomic_fetch_add(&steps->of_rank[rank].done, 1);
}

/* Waits for the next step of the other rank. */
static void await_step(struct steps *steps, int rank)
{
    static long seen;
    time_t start = time(NULL);
    long looks = 0;
    seen++;
    while (atomic_load(&steps->of_rank[1 - rank].done) < seen) {
        if (++looks % 1000000 == 0 && time(NULL) - start > MAX_WAIT_S) {
            fail("waiting for the other rank", "it has not reported in time");
        }
    }
}

static void wait_for_quiet(void)
{
    struct timespec time = {0, SETTLE_US * 1000};
    while (nanosleep(&time, &time) != 0 && errno == EINTR) {
    }
}

/* Makes one all_reduce. `options` may be NULL. */
static void reduce_value(int rank, struct steps *steps, const dist_call_options_t *options)
{
    float value = (float)(rank + 1);
    if (rank == 0) {
        await_step(steps, rank);
        wait_for_quiet();
    } else {
        report_step(steps, rank);
    }
    check(dist_all_reduce(dist_world(), &value, &value, 1, DIST_F32, DIST_SUM, options, NULL), "dist_all_reduce");
    if (value != 3.0F) {
        fail("dist_all_reduce", "the sum is wrong");
    }
}

/* The return of each of the following functions ends a file of callgrind, so that it must not be
 * inlined. */
static __attribute__((noinline)) void all_reduce(int rank, struct steps *steps)
{
    reduce_value(rank, steps, NULL);
}

#ifdef HAS_LABELS
static __attribute__((noinline)) void labelled_all_reduce(int rank, struct steps *steps)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    options.label = "bucket 0";
    reduce_value(rank, steps, &options);
}
#endif

/* Rank 0 sends, and continues when rank 1 has received the message. */
static __attribute__((noinline)) void send_to_one(int rank, struct steps *steps)
{
    float value = rank == 0 ? 5.0F : 0.0F;
    if (rank == 0) {
        check(dist_send(dist_world(), &value, 1, DIST_F32, 1, TAG, NULL, NULL), "dist_send");
        report_step(steps, rank);
        await_step(steps, rank);
        return;
    }
    await_step(steps, rank);
    check(dist_recv(dist_world(), &value, 1, DIST_F32, 0, TAG, NULL, NULL, NULL), "dist_recv");
    if (value != 5.0F) {
        fail("dist_recv", "the value is wrong");
    }
    report_step(steps, rank);
}

/* Rank 1 sends, and continues when rank 0 has received the message. */
static __attribute__((noinline)) void receive_from_one(int rank, struct steps *steps)
{
    float value = rank == 1 ? 6.0F : 0.0F;
    if (rank == 1) {
        check(dist_send(dist_world(), &value, 1, DIST_F32, 0, TAG, NULL, NULL), "dist_send");
        report_step(steps, rank);
        await_step(steps, rank);
        return;
    }
    await_step(steps, rank);
    check(dist_recv(dist_world(), &value, 1, DIST_F32, 1, TAG, NULL, NULL, NULL), "dist_recv");
    if (value != 6.0F) {
        fail("dist_recv", "the value is wrong");
    }
    report_step(steps, rank);
}

static void join_world(int rank, const char *folder)
{
    char place[4096];
    dist_init_options_t options = DIST_INIT_OPTIONS_INIT;
    if (snprintf(place, sizeof place, "file://%s/store", folder) >= (int)sizeof place) {
        fail(folder, "the path is too long");
    }
    options.init_method = place;
    options.fields = DIST_FIELD_RANK;
    options.rank = rank;
    options.world_size = 2;
    options.backend_options = "transport=shm";
    check(dist_init(&options), "dist_init");
}

int main(int argc, char **argv)
{
    struct steps *steps;
    long calls, call;
    int rank;
    if (argc != 4) {
        fprintf(stderr, "usage: call_cost RANK FOLDER CALLS (started by `cargo xtask cost`)\n");
        return 2;
    }
    rank = atoi(argv[1]) == 0 ? 0 : 1;
    calls = atol(argv[3]);
    steps = map_steps(argv[2]);
    join_world(rank, argv[2]);
    for (call = 0; call < calls; call++) {
        all_reduce(rank, steps);
    }
#ifdef HAS_LABELS
    for (call = 0; call < calls; call++) {
        labelled_all_reduce(rank, steps);
    }
#endif
    for (call = 0; call < calls; call++) {
        send_to_one(rank, steps);
    }
    for (call = 0; call < calls; call++) {
        receive_from_one(rank, steps);
    }
    check(dist_finalize(), "dist_finalize");
    return 0;
}
