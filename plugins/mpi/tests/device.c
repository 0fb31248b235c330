/*
 * Tests of the back end "mpi" on device memory, over the stub libcuda: messages, streams, in-place
 * operations and parts of buffers. They also check for which calls MPI gets the device memory.
 * ffi-tests/nccl/operations.c has every operation, type and operator.
 *
 *     mpirun -n N env [LD_PRELOAD=stub] ./device direct | staged | asked_not_to
 *
 * "direct": ffi-tests/stubs/mpi_cuda.c is preloaded, the stub of an MPI that accepts device memory.
 * "staged": the stub is not preloaded. "asked_not_to": the stub is preloaded, but the options
 * request staging.
 */
#include "../../../ffi-tests/nccl/ranks.h"
#include "../../../ffi-tests/nccl/staged.h"

#define COUNT 3000

void dist_stub_mpi_count(long *buffers, long *wrong) __attribute__((weak));

static int is_direct;

static long buffers_passed_to_mpi(void)
{
    long buffers = 0, wrong = 0;
    if (dist_stub_mpi_count != NULL) {
        dist_stub_mpi_count(&buffers, &wrong);
    }
    CHECK(wrong == 0);
    return buffers;
}

static int32_t *numbers(int32_t first, size_t count)
{
    int32_t filled[COUNT];
    for (size_t i = 0; i < count; i++) {
        filled[i] = first + (int32_t)i;
    }
    return device_memory(count * sizeof(int32_t), filled);
}

static int has_values(const int32_t *device, int32_t first, size_t count)
{
    const int32_t *host_view = dist_stub_cuda_alias(device, count * sizeof(int32_t));
    for (size_t i = 0; i < count; i++) {
        if (host_view[i] != first + (int32_t)i) {
            printf("element %zu is %d, not %d\n", i, (int)host_view[i], (int)(first + (int32_t)i));
            return 0;
        }
    }
    return 1;
}

static void description_names_the_path(struct rank *self)
{
    dist_blob_t *json = NULL;
    const void *data = NULL;
    size_t length = 0;
    REQUIRE_OK(dist_group_describe(dist_world(), &json));
    REQUIRE_OK(dist_blob_data(json, 0, &data, &length));
    char *text = calloc(1, length + 1);
    memcpy(text, data, length);
    CHECK(strstr(text, "\"cpu:mpi,cuda:mpi\"") != NULL);
    CHECK((strstr(text, "\"all_to_all\",\"gather_v\"") != NULL || strstr(text, "\"send\",\"recv\"") != NULL) == is_direct);
    CHECK((strstr(text, "\"direct\":[]") != NULL) == !is_direct);
    free(text);
    CHECK_OK(dist_blob_release(json));
    CHECK_OK(dist_backend_supports(dist_world(), DIST_KIND_ALL_REDUCE, DIST_F16, DIST_AVG, self->device));
    CHECK_OK(dist_backend_supports(dist_world(), DIST_KIND_SEND, DIST_F16, 0, self->device));
}

/* Messages around the ring: several pieces, with and without a work, from one and any sender. */
static void check_messages(struct rank *self)
{
    int32_t right = (self->rank + 1) % self->size, left = (self->rank + self->size - 1) % self->size;
    dist_recv_status_t status = DIST_RECV_STATUS_INIT;
    int32_t *out = numbers(1000 * self->rank, COUNT), *in = device_memory(COUNT * sizeof(int32_t), NULL);
    dist_work_t *send = NULL, *receive = NULL;
    CHECK_OK(dist_recv(dist_world(), in, COUNT, DIST_I32, left, 7, NULL, NULL, &receive));
    CHECK_OK(dist_send(dist_world(), out, COUNT, DIST_I32, right, 7, NULL, &send));
    CHECK_OK(dist_work_wait(receive, DIST_WAIT_FOREVER));
    CHECK_OK(dist_work_wait(send, DIST_WAIT_FOREVER));
    CHECK_OK(dist_work_release(receive));
    CHECK_OK(dist_work_release(send));
    CHECK(has_values(in, 1000 * left, COUNT));
    CHECK_OK(dist_send(dist_world(), out + 1, 5, DIST_I32, right, 9, NULL, &send));
    CHECK_OK(dist_recv(dist_world(), in + 2, 5, DIST_I32, DIST_ANY_SOURCE, 9, &status, NULL, NULL));
    CHECK_OK(dist_work_wait(send, DIST_WAIT_FOREVER));
    CHECK_OK(dist_work_release(send));
    CHECK(status.source == left && has_values(in + 2, 1000 * left + 1, 5) && has_values(in, 1000 * left, 2));
    free_device(out);
    free_device(in);
}

/* A call waits for the earlier work in the caller's stream. */
static void check_stream_order(struct rank *self)
{
    int32_t right = (self->rank + 1) % self->size, left = (self->rank + self->size - 1) % self->size;
    unsigned char *out = device_memory(100, NULL), *in = device_memory(100, NULL), *all = device_memory(400, NULL);
    dist_call_options_t options = stream_options(self);
    struct delay delay = { 1, 0, bytes_at(out, 100), (unsigned char)(self->rank + 1), 100 };
    dist_work_t *send = NULL;
    REQUIRE(cuLaunchHostFunc(self->stream, hold_stream, &delay) == CUDA_SUCCESS);
    CHECK_OK(dist_send(dist_world(), out, 100, DIST_U8, right, 1, &options, &send));
    CHECK_OK(dist_recv(dist_world(), in, 100, DIST_U8, left, 1, NULL, NULL, NULL));
    CHECK_OK(dist_work_wait(send, DIST_WAIT_FOREVER));
    CHECK_OK(dist_work_release(send));
    CHECK(bytes_at(in, 100)[0] == left + 1 && bytes_at(in, 100)[99] == left + 1);
    struct delay later = { 1, 0, bytes_at(out, 100), (unsigned char)(self->rank + 11), 100 };
    REQUIRE(cuLaunchHostFunc(self->stream, hold_stream, &later) == CUDA_SUCCESS);
    CHECK_OK(dist_all_gather(dist_world(), out, all, 100, DIST_U8, &options, NULL));
    for (int rank = 0; rank < self->size; rank++) {
        CHECK(bytes_at(all, 400)[100 * rank] == rank + 11 && bytes_at(all, 400)[100 * rank + 99] == rank + 11);
    }
    free_device(out);
    free_device(in);
    free_device(all);
}

/* If the caller's stream is not ready in time, the message fails alone, and the group continues. */
static void late_stream_fails_only_its_message(struct rank *self)
{
    int32_t *out = numbers(0, 10), right = (self->rank + 1) % self->size;
    struct delay delay = { 0, 0, NULL, 0, 0 };
    dist_call_options_t options = stream_options(self);
    options.timeout_ms = 200;
    REQUIRE(cuLaunchHostFunc(self->stream, hold_stream, &delay) == CUDA_SUCCESS);
    CHECK_REFUSED(dist_send(dist_world(), out, 10, DIST_I32, right, 3, &options, NULL), DIST_ERR_TIMEOUT, " within 2");
    atomic_store(&delay.may_continue, 1);
    REQUIRE(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
    CHECK_OK(dist_barrier(dist_world(), NULL, NULL));
    free_device(out);
}

/* In-place blocks of this rank keep their values; an unmatched receive is cancelled. */
static void in_place_blocks_keep_their_values(struct rank *self)
{
    int32_t *all = numbers(0, COUNT), own = self->rank * 100;
    size_t bytes = COUNT * sizeof(int32_t);
    int32_t *host_view = dist_stub_cuda_alias(all, bytes);
    memset(host_view, 0, bytes);
    for (int i = 0; i < 100; i++) {
        host_view[own + i] = own + i;
    }
    CHECK_OK(dist_all_gather(dist_world(), all + own, all, 100, DIST_I32, NULL, NULL));
    CHECK(has_values(all, 0, (size_t)self->size * 100));
    int root = self->size - 1;
    CHECK_OK(dist_gather(dist_world(), all + own, self->rank == root ? all : NULL, 100, DIST_I32, root, NULL, NULL));
    CHECK(has_values(all, 0, (size_t)self->size * 100));
    for (int i = 0; i < 100; i++) {
        host_view[i] = 1;
    }
    CHECK_OK(dist_all_reduce(dist_world(), all, all, 100, DIST_I32, DIST_SUM, NULL, NULL));
    CHECK(host_view[0] == self->size && host_view[99] == self->size);
    dist_call_options_t short_timeout = DIST_CALL_OPTIONS_INIT;
    short_timeout.timeout_ms = 100;
    CHECK_REFUSED(dist_recv(dist_world(), all, 1, DIST_I32, root, 77, NULL, &short_timeout, NULL), DIST_ERR_TIMEOUT,
                  "not matched");
    CHECK_OK(dist_barrier(dist_world(), NULL, NULL));
    free_device(all);
}

/* The group also serves host memory, and a child group serves the same device. */
static void check_host_memory_and_subgroup(struct rank *self)
{
    int64_t value = self->rank + 1, sum = 0;
    int32_t ranks[MAX_RANKS] = { 0, 1, 2, 3 };
    dist_group_t *group = NULL;
    CHECK_OK(dist_all_reduce(dist_world(), &value, &sum, 1, DIST_I64, DIST_SUM, NULL, NULL));
    CHECK(sum == self->size * (self->size + 1) / 2);
    REQUIRE_OK(dist_group_new(dist_world(), ranks, (size_t)self->size, NULL, &group));
    int32_t *all = numbers(0, 400);
    long before = buffers_passed_to_mpi();
    CHECK_OK(dist_all_gather(group, all + self->rank * 100, all, 100, DIST_I32, NULL, NULL));
    CHECK((buffers_passed_to_mpi() > before) == (is_direct && self->size > 1));
    CHECK(has_values(all, 0, 400));
    free_device(all);
    CHECK_OK(dist_group_release(group));
}

static void run_all_checks(struct rank *self)
{
    long before = buffers_passed_to_mpi();
    description_names_the_path(self);
    check_messages(self);
    CHECK((buffers_passed_to_mpi() > before) == is_direct);
    check_stream_order(self);
    late_stream_fails_only_its_message(self);
    in_place_blocks_keep_their_values(self);
    check_host_memory_and_subgroup(self);
    CHECK((buffers_passed_to_mpi() > before) == is_direct);
}

int main(int argc, char **argv)
{
    REQUIRE(argc == 2);
    is_direct = strcmp(argv[1], "direct") == 0;
    int is_staging_requested = strcmp(argv[1], "asked_not_to") == 0;
    CHECK((dist_stub_mpi_count != NULL) == (is_direct || is_staging_requested));
    run_in_job("mpi",
               is_staging_requested ? "staging.chunk_bytes=4096;device_memory=staged" : "staging.chunk_bytes=4096",
           run_all_checks);
    check_nothing_leaked();
    return check_report();
}
