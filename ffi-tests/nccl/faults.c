/*
 * Failures on devices: operations that never complete, asynchronous errors, aborts, and calls
 * after them. The argument is the name of a case.
 */
#include "ranks.h"

#include <stdint.h>
#include <time.h>

#define N 100
#define BYTES (N * sizeof(float))

static long now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static dist_status_t reduce_sum(struct rank *self, float *memory, int64_t timeout_ms, dist_work_t **work)
{
    dist_call_options_t options = stream_options(self);
    options.timeout_ms = timeout_ms;
    return dist_all_reduce(self->group, memory, memory, N, DIST_F32, DIST_SUM, &options, work);
}

/* Makes a successful call on all ranks before the failing one. */
static void check_first_call(struct rank *self, float *memory)
{
    CHECK_OK(reduce_sum(self, memory, 0, NULL));
    CHECK_OK(dist_barrier(self->group, NULL, NULL));
}

/* Waits for the failure of a group in which this rank has no call in progress. */
static void await_failure(struct rank *self, const char *word)
{
    char text[2048] = "";
    long limit = now_ms() + LIMIT_MS;
    while (text[0] == '\0' && now_ms() < limit) {
        dist_group_error(self->group, text, sizeof text);
        struct timespec nap = { 0, 1000000 };
        nanosleep(&nap, NULL);
    }
    if (!CHECK(strstr(text, word) != NULL)) {
        printf("  \"%s\" is not in \"%s\"\n", word, text);
    }
}

/* Checks that every call after a failure returns its cause immediately. */
static void check_failed(struct rank *self, float *memory, dist_status_t status)
{
    long start = now_ms();
    CHECK_STATUS(reduce_sum(self, memory, 0, NULL), status);
    CHECK_STATUS(dist_barrier(self->group, NULL, NULL), status);
    CHECK(now_ms() - start < LIMIT_MS / 2);
}

/* The last rank never issues an operation, so the operation reaches its deadline. */
static void absent_rank_times_out_the_group(struct rank *self)
{
    float *memory = device_memory(BYTES, NULL);
    dist_work_t *work = NULL;
    check_first_call(self, memory);
    REQUIRE_OK(reduce_sum(self, memory, 700, &work));
    /* The work completes when the operation is enqueued. */
    CHECK_OK(dist_work_wait(work, 0));
    dist_status_t status = dist_work_synchronize(work, LIMIT_MS);
    CHECK(status == DIST_ERR_TIMEOUT);
    CHECK_MESSAGE("all_reduce #3");
    CHECK_MESSAGE("NCCL 2.30.7");
    CHECK_OK(dist_work_release(work));
    check_failed(self, memory, DIST_ERR_TIMEOUT);
    free_device(memory);
}

/* As absent_rank_times_out_the_group, with calls that block until the device has finished. The
 * environment selects such calls. */
static void absent_rank_times_out_blocking_calls(struct rank *self)
{
    float *memory = device_memory(BYTES, NULL);
    check_first_call(self, memory);
    CHECK_STATUS(reduce_sum(self, memory, 700, NULL), DIST_ERR_TIMEOUT);
    check_failed(self, memory, DIST_ERR_TIMEOUT);
    free_device(memory);
}

/* As absent_rank_times_out_the_group, without error handling: only the waiting caller gets the
 * error, and the group stays usable until it is aborted. */
static void timeout_without_error_handling(struct rank *self)
{
    float *memory = device_memory(BYTES, NULL);
    char text[64] = "";
    dist_work_t *work = NULL;
    check_first_call(self, memory);
    REQUIRE_OK(reduce_sum(self, memory, 300, &work));
    CHECK_STATUS(dist_work_synchronize(work, 0), DIST_ERR_TIMEOUT);
    dist_group_error(self->group, text, sizeof text);
    CHECK(text[0] == '\0');
    CHECK_OK(dist_work_release(work));
    CHECK_OK(dist_barrier(self->group, NULL, NULL));
    if (self->rank == 0) {
        CHECK_OK(dist_group_abort(self->group, "enough"));
    }
    await_failure(self, "enough");
    free_device(memory);
}

/* A blocking operation on a stream of the library. */
static void blocking_call_times_out(struct rank *self)
{
    float *memory = device_memory(BYTES, NULL);
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    check_first_call(self, memory);
    options.timeout_ms = 700;
    CHECK_STATUS(dist_all_reduce(self->group, memory, memory, N, DIST_F32, DIST_SUM, &options, NULL), DIST_ERR_TIMEOUT);
    check_failed(self, memory, DIST_ERR_TIMEOUT);
    free_device(memory);
}

/* A NCCL error on one rank, which all ranks report. */
static void nccl_error_reaches_all_ranks(struct rank *self)
{
    float *memory = device_memory(BYTES, NULL);
    dist_work_t *work = NULL;
    check_first_call(self, memory);
    /* The rank itself may report the error before another rank calls. */
    dist_status_t status = reduce_sum(self, memory, 0, &work);
    if (status == DIST_OK) {
        status = dist_work_synchronize(work, LIMIT_MS);
        CHECK_OK(dist_work_release(work));
    }
    CHECK(status == DIST_ERR_PEER_FAILED);
    await_failure(self, "another rank failed");
    await_failure(self, "libnccl.so.2");
    check_failed(self, memory, DIST_ERR_PEER_FAILED);
    free_device(memory);
}

static void abort_during_an_operation(struct rank *self)
{
    float *memory = device_memory(BYTES, NULL);
    dist_work_t *work = NULL;
    check_first_call(self, memory);
    REQUIRE_OK(reduce_sum(self, memory, 0, &work));
    CHECK_STATUS(dist_work_synchronize(work, 100), DIST_IN_PROGRESS);
    /* The hanging operation does not affect calls on host memory. */
    CHECK_OK(dist_barrier(self->group, NULL, NULL));
    if (self->rank == 0) {
        CHECK_OK(dist_group_abort(self->group, "no more of this"));
    }
    CHECK_STATUS(dist_work_synchronize(work, LIMIT_MS), DIST_ERR_ABORTED);
    CHECK_MESSAGE("no more of this");
    CHECK_OK(dist_work_release(work));
    check_failed(self, memory, DIST_ERR_ABORTED);
    free_device(memory);
}

/* Releases a group while an operation hangs; the release returns within a bounded time. */
static void release_during_an_operation(struct rank *self)
{
    float *memory = device_memory(BYTES, NULL);
    long start = now_ms();
    dist_group_t *group = NULL;
    REQUIRE_OK(make_group(self, "left", &group));
    self->group = group;
    CHECK_OK(reduce_sum(self, memory, 0, NULL));
    CHECK_OK(reduce_sum(self, memory, 0, NULL));
    CHECK_OK(dist_group_release(group));
    CHECK(now_ms() - start < LIMIT_MS);
    free_device(memory);
}

/* A rank is absent when the communicator is created. */
static void absent_rank_fails_the_creation(struct rank *self)
{
    dist_group_options_t options = DIST_GROUP_OPTIONS_INIT;
    options.store = self->store;
    options.name = "late";
    options.fields = DIST_FIELD_RANK | DIST_FIELD_DEVICE;
    options.rank = self->rank;
    options.world_size = self->size;
    options.device = self->rank;
    options.backend = "nccl";
    options.connect_timeout_ms = 2000;
    options.timeout_ms = LIMIT_MS;
    long start = now_ms();
    CHECK_STATUS(dist_group_create(&options, &self->group), DIST_ERR_TIMEOUT);
    CHECK(now_ms() - start < LIMIT_MS / 2);
}

/* If NCCL refuses a call on one rank, the group fails on all ranks. */
static void refused_call_fails_all_ranks(struct rank *self)
{
    float *memory = device_memory(BYTES, NULL);
    dist_status_t status = reduce_sum(self, memory, 0, NULL);
    CHECK(status == DIST_OK || status == DIST_ERR_BACKEND);
    await_failure(self, "ncclAllReduce");
    check_failed(self, memory, DIST_ERR_BACKEND);
    free_device(memory);
}

static void keep_options(struct rank *self)
{
    (void)self;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*body)(struct rank *self);
        int is_bare;
    } cases[] = {
        { "time_out", absent_rank_times_out_the_group, 0 },
        { "time_out_blocking", absent_rank_times_out_blocking_calls, 0 },
        { "time_out_alone", blocking_call_times_out, 0 },
        { "unhandled", timeout_without_error_handling, 0 },
        { "async_error", nccl_error_reaches_all_ranks, 0 },
        { "abort_under_way", abort_during_an_operation, 0 },
        { "leave_under_way", release_during_an_operation, 1 },
        { "never_meets", absent_rank_fails_the_creation, 1 },
        { "refused_call", refused_call_fails_all_ranks, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (argc != 2 || strcmp(argv[1], cases[i].name) != 0) {
            continue;
        }
        if (cases[i].is_bare) {
            run_on_bare_ranks(3, "nccl", keep_options, cases[i].body);
        } else {
            run_on_ranks(3, "cpu:native,cuda:nccl", cases[i].body);
        }
        check_nothing_leaked();
    }
    return check_report();
}
