/*
 * Failures of groups that stage device memory through host memory: mismatching calls, calls that
 * the driver refuses, blocked streams, and aborts. The argument is the name of a case.
 */
#include "staged.h"

/* Mismatching calls give an error, also if they differ only after the first piece, or if one
 * rank has its buffers in host memory. */
static void mismatches_are_errors(struct rank *self)
{
    unsigned char *memory = device_memory(MAX_BYTES, NULL);
    static unsigned char host[MAX_RANKS][MAX_BYTES];
    dist_group_t *other = NULL;
    REQUIRE_OK(dist_group_split(self->group, 0, self->rank, NULL, &other));
    dist_status_t status = dist_all_reduce(self->group, memory, memory, self->rank == 0 ? MAX_BYTES : MAX_BYTES - 1,
                                           DIST_U8, DIST_MAX, NULL, NULL);
    CHECK(status == DIST_ERR_MISMATCH);
    CHECK_MESSAGE("39999");
    void *place = self->rank == 0 ? (void *)memory : (void *)host[self->rank];
    CHECK_STATUS(dist_all_reduce(other, place, place, MAX_BYTES, DIST_U8, DIST_MAX, NULL, NULL), DIST_ERR_MISMATCH);
    CHECK_OK(dist_group_release(other));
    free_device(memory);
}

/* Every driver call that can fail, on the rank that makes it first. */
static const char *failing_function;

static void failed_driver_call_is_reported(struct rank *self)
{
    unsigned char *memory = device_memory(MAX_BYTES, NULL);
    dist_status_t status = dist_all_reduce(self->group, memory, memory, MAX_BYTES, DIST_U8, DIST_MAX, NULL, NULL);
    CHECK(status == DIST_ERR_BACKEND || status == DIST_ERR_OUT_OF_MEMORY || status == DIST_ERR_PEER_FAILED);
    CHECK_MESSAGE(failing_function);
    CHECK(dist_all_reduce(self->group, memory, memory, 1, DIST_U8, DIST_MAX, NULL, NULL) == status);
    free_device(memory);
}

static void failed_driver_call_of_a_message_is_reported(struct rank *self)
{
    unsigned char *memory = device_memory(MAX_BYTES, NULL);
    dist_status_t status = self->rank == 0 ? dist_send(self->group, memory, MAX_BYTES, DIST_U8, 1, 0, NULL, NULL)
                                           : dist_recv(self->group, memory, MAX_BYTES, DIST_U8, 0, 0, NULL, NULL, NULL);
    CHECK(status == DIST_ERR_BACKEND || status == DIST_ERR_OUT_OF_MEMORY || status == DIST_ERR_PEER_FAILED);
    CHECK_MESSAGE(failing_function);
    free_device(memory);
}

static void every_driver_call_may_fail(void)
{
    static const struct {
        const char *function;
        const char *reported_name;
        CUresult code;
    } calls[] = {
        { "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoHAsync", CUDA_ERROR_LAUNCH_FAILED },
        { "cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync", CUDA_ERROR_LAUNCH_FAILED },
        { "cuMemHostAlloc", "cuMemHostAlloc", CUDA_ERROR_OUT_OF_MEMORY },
        { "cuEventQuery", "cuEventQuery", CUDA_ERROR_ILLEGAL_ADDRESS },
    };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        failing_function = calls[i].reported_name;
        dist_stub_cuda_fail(calls[i].function, i % 2 == 0 ? 0 : 2, calls[i].code);
        run_on_ranks_with_options(2, "native", OPTIONS, failed_driver_call_is_reported);
        dist_stub_cuda_fail(NULL, 0, CUDA_SUCCESS);
        dist_stub_cuda_fail(calls[i].function, i % 2 == 0 ? 0 : 2, calls[i].code);
        run_on_ranks_with_options(2, "native", OPTIONS, failed_driver_call_of_a_message_is_reported);
        dist_stub_cuda_fail(NULL, 0, CUDA_SUCCESS);
    }
}

/* The last rank's stream never reaches the operation. */
static void check_blocked_stream(struct rank *self, int64_t timeout_ms, int is_aborted, dist_status_t expected,
                                 const char *word)
{
    unsigned char *memory = device_memory(MAX_BYTES, NULL), *result = device_memory(MAX_BYTES, NULL);
    dist_call_options_t options = stream_options(self);
    struct delay delay = { 0 };
    dist_work_t *works[2] = { NULL, NULL };
    CHECK_OK(dist_all_reduce(self->group, memory, result, MAX_BYTES, DIST_U8, DIST_MAX, &options, NULL));
    memset(bytes_at(result, MAX_BYTES), 7, MAX_BYTES);
    CHECK_OK(dist_barrier(self->group, NULL, NULL));
    if (self->rank == self->size - 1) {
        REQUIRE(cuLaunchHostFunc(self->stream, hold_stream, &delay) == CUDA_SUCCESS);
    }
    options.timeout_ms = timeout_ms;
    REQUIRE_OK(dist_all_reduce(self->group, memory, result, MAX_BYTES, DIST_U8, DIST_MAX, &options, &works[0]));
    dist_status_t posted = self->rank == 0
        ? dist_recv(self->group, result, MAX_BYTES, DIST_U8, self->size - 1, 0, NULL, &options, &works[1])
                                           : DIST_OK;
    REQUIRE_OK(posted);
    if (is_aborted && self->rank == 0) {
        CHECK_STATUS(dist_work_wait(works[0], 100), DIST_IN_PROGRESS);
        CHECK_OK(dist_group_abort(self->group, "no more of this"));
    }
    CHECK_STATUS(dist_work_wait(works[0], LIMIT_MS), expected);
    CHECK_MESSAGE(word);
    if (works[1] != NULL) {
        CHECK_STATUS(dist_work_wait(works[1], LIMIT_MS), expected);
        CHECK_OK(dist_work_release(works[1]));
    }
    CHECK_OK(dist_work_release(works[0]));
    /* The library writes no more data, even after the stream continues. */
    atomic_store(&delay.may_continue, 1);
    REQUIRE(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
    CHECK(bytes_at(result, MAX_BYTES)[0] == 7 && bytes_at(result, MAX_BYTES)[MAX_BYTES - 1] == 7);
    free_device(memory);
    free_device(result);
}

static void blocked_stream_times_out(struct rank *self)
{
    check_blocked_stream(self, 700, 0, DIST_ERR_TIMEOUT, "ms");
}

static void abort_during_an_operation(struct rank *self)
{
    check_blocked_stream(self, 0, 1, DIST_ERR_ABORTED, "no more of this");
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*body)(struct rank *self);
        int min_ranks;
        int max_ranks;
        const char *options;
    } cases[] = {
        { "differences", mismatches_are_errors, 2, 2, OPTIONS },
        { "differences", mismatches_are_errors, 2, 2, OPTIONS ";transport=tcp" },
        { "time_out", blocked_stream_times_out, 2, 3, OPTIONS },
        { "abort", abort_during_an_operation, 3, 3, OPTIONS },
    };
    REQUIRE(argc == 2);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int size = cases[i].min_ranks; size <= cases[i].max_ranks && strcmp(argv[1], cases[i].name) == 0; size++) {
            run_on_ranks_with_options(size, "native", cases[i].options, cases[i].body);
        }
    }
    if (strcmp(argv[1], "failures") == 0) {
        every_driver_call_may_fail();
    }
    check_nothing_leaked();
    return check_report();
}
