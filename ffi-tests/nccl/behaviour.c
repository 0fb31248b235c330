/*
 * Tests of groups on devices: streams, works, batches, messages, host and device memory in one
 * group, subgroups, library memory, and the error texts of refused calls. They run over NCCL or,
 * with the argument `staging`, with staging through host memory.
 */
#include "ranks.h"

#include <stdint.h>

#define N 1000
#define BYTES (N * sizeof(float))
#define UNSUPPORTED DIST_ERR_UNSUPPORTED
#define INVALID DIST_ERR_INVALID_ARGUMENT

static int is_staged;

static void fill(float *values, float value)
{
    for (int i = 0; i < N; i++) {
        values[i] = value + (float)(i % 7);
    }
}

static float *floats(float value)
{
    float values[N];
    fill(values, value);
    return device_memory(BYTES, values);
}

static void check_floats(struct rank *self, const float *memory, float factor, float value)
{
    float found[N];
    read_device(self, found, memory, BYTES);
    for (int i = 0; i < N; i++) {
        if (!CHECK(found[i] == value + factor * (float)(i % 7))) {
            printf("  rank %d, element %d: %g, and not %g\n", self->rank, i, (double)found[i],
                   (double)(value + factor * (float)(i % 7)));
            return;
        }
    }
}

/* Returns the sum of 1 for rank 0, 2 for rank 1, and so on. */
static float rank_sum(int size)
{
    return (float)(size * (size + 1) / 2);
}

static void check_streams_and_works(struct rank *self)
{
    float *send = floats((float)(self->rank + 1)), *recv = floats(0);
    dist_call_options_t options = stream_options(self);
    /* Two consecutive calls in the caller's stream, without a wait between them. */
    CHECK_OK(dist_all_reduce(self->group, send, recv, N, DIST_F32, DIST_SUM, &options, NULL));
    CHECK_OK(dist_all_reduce(self->group, recv, recv, N, DIST_F32, DIST_MAX, &options, NULL));
    check_floats(self, recv, (float)self->size, rank_sum(self->size));
    dist_work_t *work = NULL;
    REQUIRE_OK(dist_all_reduce(self->group, send, recv, N, DIST_F32, DIST_SUM, &options, &work));
    CHECK_OK(dist_work_wait(work, 0));
    CHECK_OK(dist_work_synchronize(work, 0));
    CHECK_OK(dist_work_synchronize(work, DIST_NO_WAIT));
    CHECK_OK(dist_work_release(work));
    check_floats(self, recv, (float)self->size, rank_sum(self->size));
    /* The call uses the library's own stream, and the caller gives the device. */
    options.stream = NULL;
    options.flags = DIST_CALL_DEVICE;
    options.device = self->gpu;
    REQUIRE_OK(dist_all_reduce(self->group, send, recv, N, DIST_F32, DIST_SUM, &options, &work));
    CHECK_OK(dist_work_synchronize(work, LIMIT_MS));
    CHECK_OK(dist_work_release(work));
    check_floats(self, recv, (float)self->size, rank_sum(self->size));
    free_device(send);
    free_device(recv);
}

static void check_host_and_device_memory(struct rank *self)
{
    float *send = floats((float)(self->rank + 1)), *recv = floats(0);
    float own[N], all[N];
    fill(own, (float)(self->rank + 1));
    for (int round = 0; round < 3; round++) {
        dist_work_t *works[2];
        REQUIRE_OK(dist_all_reduce(self->group, own, all, N, DIST_F32, DIST_SUM, NULL, &works[0]));
        REQUIRE_OK(dist_all_reduce(self->group, send, recv, N, DIST_F32, DIST_SUM, NULL, &works[1]));
        CHECK(dist_work_sequence(works[1]) == dist_work_sequence(works[0]) + 1);
        CHECK_OK(dist_work_synchronize(works[0], 0));
        CHECK_OK(dist_work_synchronize(works[1], 0));
        CHECK(all[3] == rank_sum(self->size) + 3.0f * (float)self->size);
        check_floats(self, recv, (float)self->size, rank_sum(self->size));
        CHECK_OK(dist_work_release(works[0]));
        CHECK_OK(dist_work_release(works[1]));
        CHECK_OK(dist_barrier(self->group, NULL, NULL));
        /* A call without elements. */
        CHECK_OK(dist_all_reduce(self->group, NULL, NULL, 0, DIST_F32, DIST_SUM, NULL, NULL));
    }
    int host = 7;
    if (self->rank == 0 && self->size > 1) {
        CHECK_OK(dist_send(self->group, &host, 1, DIST_I32, 1, 5, NULL, NULL));
    } else if (self->rank == 1) {
        int actual = 0;
        CHECK_OK(dist_recv(self->group, &actual, 1, DIST_I32, DIST_ANY_SOURCE, 5, NULL, NULL, NULL));
        CHECK(actual == 7);
    }
    free_device(send);
    free_device(recv);
}

static void barrier_accepts_the_device(struct rank *self)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    options.flags = DIST_CALL_DEVICE;
    options.device = self->gpu;
    CHECK_OK(dist_barrier(self->group, &options, NULL));
}

static void check_byte_strings(struct rank *self)
{
    dist_blob_t *blob = NULL;
    char text[16];
    size_t length = (size_t)snprintf(text, sizeof text, "rank %d", self->rank);
    REQUIRE_OK(dist_all_gather_bytes(self->group, text, length, &blob, NULL, NULL));
    CHECK(dist_blob_count(blob) == (size_t)self->size);
    CHECK_OK(dist_blob_release(blob));
    CHECK_OK(dist_monitored_barrier(self->group, LIMIT_MS, 1, NULL, NULL));
}

static void check_messages(struct rank *self)
{
    int next = (self->rank + 1) % self->size, before = (self->rank + self->size - 1) % self->size;
    float *send = floats((float)self->rank), *recv = floats(0);
    dist_call_options_t options = stream_options(self);
    dist_work_t *work = NULL;
    /* A ring in which each rank sends first; it completes only as one batch. */
    CHECK_OK(dist_batch_begin(NULL, 0));
    CHECK_OK(dist_send(self->group, send, N, DIST_F32, next, 0, &options, NULL));
    CHECK_OK(dist_recv(self->group, recv, N, DIST_F32, before, 0, NULL, &options, NULL));
    REQUIRE_OK(dist_batch_end(&work));
    CHECK_OK(dist_work_synchronize(work, 0));
    CHECK_OK(dist_work_release(work));
    check_floats(self, recv, 1, (float)before);
    /* The same messages as single calls. */
    if (self->size > 1 && self->rank < 2) {
        dist_recv_status_t status = DIST_RECV_STATUS_INIT;
        if (self->rank == 0) {
            CHECK_OK(dist_send(self->group, send, N, DIST_F32, 1, 0, NULL, NULL));
        } else {
            CHECK_OK(dist_recv(self->group, recv, N, DIST_F32, 0, DIST_ANY_TAG, &status, NULL, NULL));
            CHECK(status.source == 0);
            check_floats(self, recv, 1, 0);
        }
    }
    if (!is_staged) {
        CHECK_REFUSED(dist_recv(self->group, recv, N, DIST_F32, DIST_ANY_SOURCE, 0, NULL, NULL, NULL), UNSUPPORTED,
                      "any rank");
        CHECK_REFUSED(dist_send(self->group, send, N, DIST_F32, next, 3, NULL, NULL), UNSUPPORTED, "no tags");
    }
    free_device(send);
    free_device(recv);
}

/* Two groups use one stream; each rank has them in another order in its batch. */
static void two_groups_share_a_stream(struct rank *self)
{
    dist_group_t *other = NULL;
    int key = self->rank;
    REQUIRE_OK(dist_group_split(self->group, 0, key, NULL, &other));
    CHECK(dist_get_world_size(other) == self->size);
    dist_group_t *groups[2] = { self->group, other };
    float *memory[2] = { floats((float)(self->rank + 1)), floats((float)(self->rank + 1)) };
    dist_call_options_t options = stream_options(self);
    dist_work_t *work = NULL;
    CHECK_OK(dist_batch_begin(NULL, 0));
    for (int i = 0; i < 2; i++) {
        int which = (i + self->rank) % 2;
        CHECK_OK(dist_all_reduce(groups[which], memory[which], memory[which], N, DIST_F32, DIST_SUM, &options, NULL));
    }
    REQUIRE_OK(dist_batch_end(&work));
    CHECK_OK(dist_work_synchronize(work, 0));
    CHECK_OK(dist_work_release(work));
    for (int i = 0; i < 2; i++) {
        check_floats(self, memory[i], (float)self->size, rank_sum(self->size));
        free_device(memory[i]);
    }
    CHECK_OK(dist_group_release(other));
}

static void library_memory_is_usable(struct rank *self)
{
    void *memory = NULL;
    REQUIRE_OK(dist_mem_alloc(self->group, BYTES, self->gpu, &memory));
    float values[N];
    fill(values, (float)(self->rank + 1));
    write_device(self, memory, values, BYTES);
    CHECK_OK(dist_all_reduce(self->group, memory, memory, N, DIST_F32, DIST_SUM, NULL, NULL));
    check_floats(self, memory, (float)self->size, rank_sum(self->size));
    /* The free waits for all work of the GPU, and another rank may use the same GPU. */
    CHECK_OK(dist_barrier(self->group, NULL, NULL));
    CHECK_OK(dist_mem_free(memory));
    CHECK_OK(dist_barrier(self->group, NULL, NULL));
    /* A device other than the group's has no such memory. */
    CHECK_REFUSED(dist_mem_alloc(self->group, BYTES, self->gpu + 1, &memory), UNSUPPORTED, "device");
}

/* All ranks allocate together and register the memory with NCCL. Each rank allocates twice,
 * since the ranks free the memory in different orders. */
static void memory_is_registered_with_nccl(struct rank *self)
{
    void *memory[2] = { NULL, NULL };
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(dist_mem_alloc(self->group, BYTES, self->device, &memory[i]));
    }
    if (has_stubs()) {
        CHECK(dist_stub_nccl_windows() >= 2);
    }
    float values[N];
    fill(values, (float)(self->rank + 1));
    write_device(self, memory[0], values, BYTES);
    CHECK_OK(dist_all_reduce(self->group, memory[0], memory[1], N, DIST_F32, DIST_SUM, NULL, NULL));
    check_floats(self, memory[1], (float)self->size, rank_sum(self->size));
    CHECK_OK(dist_barrier(self->group, NULL, NULL));
    CHECK_OK(dist_mem_free(memory[self->rank % 2]));
    CHECK_OK(dist_barrier(self->group, NULL, NULL));
    /* One allocation outlives the group. */
    CHECK_OK(dist_group_release(self->group));
    CHECK_OK(dist_mem_free(memory[1 - self->rank % 2]));
    self->group = NULL;
}

/* If a rank does not join a collective allocation, the group fails with a timeout. */
static void absent_rank_times_out_the_allocation(struct rank *self)
{
    void *memory = NULL;
    self->backend_options = "nccl.windows=1";
    self->timeout_ms = 700;
    REQUIRE_OK(make_group(self, "late", &self->group));
    if (self->rank == 0) {
        CHECK_REFUSED(dist_mem_alloc(self->group, BYTES, self->device, &memory), DIST_ERR_TIMEOUT, "ncclCommWindowRegister");
        CHECK(memory == NULL);
        CHECK_STATUS(dist_barrier(self->group, NULL, NULL), DIST_ERR_TIMEOUT);
    } else {
        /* The ranks wait longer than the allocation, whose error becomes the error of the group. */
        dist_call_options_t patient = DIST_CALL_OPTIONS_INIT;
        patient.timeout_ms = 20000;
        CHECK(dist_barrier(self->group, &patient, NULL) != DIST_OK);
    }
    CHECK_OK(dist_group_release(self->group));
}

static void wrong_arguments_are_refused(struct rank *self)
{
    float *send = floats(1), host[N];
    float *recv = floats(0);
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    CHECK_REFUSED(dist_all_reduce(self->group, send, host, N, DIST_F32, DIST_SUM, NULL, NULL), INVALID, "in the same memory");
    if (!is_staged) {
        CHECK_REFUSED(dist_all_reduce(self->group, send, recv, N, DIST_I32, DIST_BAND, NULL, NULL), UNSUPPORTED, "bitwise");
    }
    CHECK_REFUSED(dist_all_reduce(self->group, send, recv, N, DIST_F32, DIST_BAND, NULL, NULL), UNSUPPORTED, "BAND");
    CHECK_REFUSED(dist_all_reduce(self->group, send, recv, N, DIST_F32, DIST_PREMUL_SUM, NULL, NULL), INVALID, "premul_scale");
    options.flags = DIST_CALL_CHECK_NAN;
    CHECK_REFUSED(dist_all_reduce(self->group, send, recv, N, DIST_F32, DIST_SUM, &options, NULL), UNSUPPORTED, "NaN");
    options.flags = DIST_CALL_CANONICAL;
    if (is_staged) {
        CHECK_OK(dist_all_reduce(self->group, send, recv, N, DIST_F32, DIST_SUM, &options, NULL));
        check_floats(self, recv, (float)self->size, (float)self->size);
    } else {
        CHECK_REFUSED(dist_all_reduce(self->group, send, recv, N, DIST_F32, DIST_SUM, &options, NULL), UNSUPPORTED,
                      "CANONICAL");
    }
    options.flags = 0;
    options.algorithm = "ring";
    CHECK_REFUSED(dist_all_reduce(self->group, send, recv, N, DIST_F32, DIST_SUM, &options, NULL), UNSUPPORTED, "by name");
    options.algorithm = NULL;
    options.flags = DIST_CALL_DEVICE;
    options.device = self->gpu + 1;
    CHECK_REFUSED(dist_all_reduce(self->group, send, recv, N, DIST_F32, DIST_SUM, &options, NULL), UNSUPPORTED, "device");
    CHECK_REFUSED(dist_barrier(self->group, &options, NULL), UNSUPPORTED, "device");
    CHECK_REFUSED(dist_all_reduce(self->group, send, recv, 0, DIST_F32, DIST_SUM, &options, NULL), UNSUPPORTED, "device");
    options.device = -2;
    CHECK_REFUSED(dist_all_reduce(self->group, send, recv, N, DIST_F32, DIST_SUM, &options, NULL), INVALID, "device");
    options.device = 0;
    options.flags = 0;
    options.reserved = 1;
    CHECK_REFUSED(dist_all_reduce(self->group, send, recv, N, DIST_F32, DIST_SUM, &options, NULL), INVALID, "reserved");
    options = stream_options(self);
    CHECK_REFUSED(dist_all_reduce(self->group, host, host, N, DIST_F32, DIST_SUM, &options, NULL), INVALID, "stream");
    if (has_stubs()) {
        CHECK(dist_stub_cuda_capture(self->stream, 1) == CUDA_SUCCESS);
        CHECK_REFUSED(dist_all_reduce(self->group, send, recv, N, DIST_F32, DIST_SUM, &options, NULL), UNSUPPORTED, "graph");
        CHECK(dist_stub_cuda_capture(self->stream, 0) == CUDA_SUCCESS);
    }
    CHECK_REFUSED(dist_backend_supports(self->group, DIST_KIND_ALL_REDUCE, DIST_F32, DIST_SUM, 99), UNSUPPORTED, "device 99");
    /* The refused calls have no effect on the group. */
    CHECK_OK(dist_all_reduce(self->group, send, recv, N, DIST_F32, DIST_SUM, NULL, NULL));
    check_floats(self, recv, (float)self->size, (float)self->size);
    free_device(send);
    free_device(recv);
}

static void description_names_the_backend(struct rank *self)
{
    dist_blob_t *blob = NULL;
    const void *text = NULL;
    size_t length = 0;
    REQUIRE_OK(dist_group_describe(self->group, &blob));
    CHECK_OK(dist_blob_data(blob, 0, &text, &length));
    char *copy = calloc(length + 1, 1);
    memcpy(copy, text, length);
    if (is_staged) {
        CHECK(strstr(copy, "\"cpu:native,cuda:native\"") != NULL && strstr(copy, "chunk_bytes") != NULL);
    } else {
        CHECK(strstr(copy, "\"cpu:native,cuda:nccl\"") != NULL && strstr(copy, "libnccl.so.2") != NULL);
    }
    free(copy);
    CHECK_OK(dist_blob_release(blob));
}

static void backend_map_is_accepted(struct rank *self)
{
    description_names_the_backend(self);
    check_streams_and_works(self);
    check_host_and_device_memory(self);
    barrier_accepts_the_device(self);
    check_byte_strings(self);
    check_messages(self);
    two_groups_share_a_stream(self);
    library_memory_is_usable(self);
    wrong_arguments_are_refused(self);
}

static void check_nccl_only_group(struct rank *self)
{
    float host[N] = { 0 };
    check_streams_and_works(self);
    check_byte_strings(self);
    CHECK_OK(dist_barrier(self->group, NULL, NULL));
    CHECK_REFUSED(dist_all_reduce(self->group, host, host, N, DIST_F32, DIST_SUM, NULL, NULL), UNSUPPORTED, "cpu:native");
    CHECK_OK(dist_all_reduce(self->group, NULL, NULL, 0, DIST_F32, DIST_SUM, NULL, NULL));
    /* A rank without elements uses the back end for its peers' memory. */
    float *memory = floats((float)self->rank);
    size_t zero[MAX_RANKS] = { 0 }, counts[MAX_RANKS] = { 0 };
    void *blocks[MAX_RANKS] = { memory, memory, memory, memory };
    counts[self->size - 1] = self->rank == 0 ? N : 0;
    CHECK_OK(dist_gather_v(self->group, memory, self->rank == self->size - 1 ? N : 0, blocks, self->rank == 0 ? counts : zero,
                           DIST_F32, 0, NULL, NULL));
    if (self->rank == 0) {
        check_floats(self, memory, 1, (float)(self->size - 1));
    }
    free_device(memory);
}

static void check_default_group(struct rank *self)
{
    float *memory = floats((float)(self->rank + 1));
    float host[N];
    fill(host, 1);
    CHECK_OK(dist_all_reduce(self->group, memory, memory, N, DIST_F32, DIST_SUM, NULL, NULL));
    check_floats(self, memory, (float)self->size, rank_sum(self->size));
    CHECK_OK(dist_all_reduce(self->group, host, host, N, DIST_F32, DIST_SUM, NULL, NULL));
    free_device(memory);
}

static void share_one_gpu(struct rank *self)
{
    self->device = 0;
}

static void creation_is_refused(struct rank *self)
{
    CHECK_REFUSED(make_group(self, "same", &self->group), INVALID, "same GPU");
    CHECK(self->group == NULL);
}

/* If the device of one rank does not exist, all ranks get the same status and the same reason. */
static void missing_device_is_reported_on_all_ranks(struct rank *self)
{
    self->device = self->rank == 1 ? 77 : self->gpu;
    CHECK_REFUSED(make_group(self, "missing", &self->group), DIST_ERR_BACKEND, "device 77 does not exist");
    CHECK_MESSAGE("rank 1");
    CHECK(self->group == NULL);
}

static void use_no_device(struct rank *self)
{
    self->device = -1;
}

/* A group uses the current device. A group without a device refuses calls that name one. */
static void current_device_is_used(struct rank *self)
{
    REQUIRE_OK(make_group(self, "current", &self->group));
    float *memory = floats((float)(self->rank + 1));
    if (self->backend != NULL) {
        CHECK_OK(dist_all_reduce(self->group, memory, memory, N, DIST_F32, DIST_SUM, NULL, NULL));
        check_floats(self, memory, (float)self->size, rank_sum(self->size));
    } else {
        dist_call_options_t options = stream_options(self);
        options.flags = DIST_CALL_DEVICE;
        options.device = self->gpu;
        CHECK_REFUSED(dist_all_reduce(self->group, memory, memory, N, DIST_F32, DIST_SUM, &options, NULL), UNSUPPORTED,
                      "DIST_FIELD_DEVICE");
        options.stream = NULL;
        CHECK_REFUSED(dist_barrier(self->group, &options, NULL), UNSUPPORTED, "DIST_FIELD_DEVICE");
    }
    free_device(memory);
    CHECK_OK(dist_group_release(self->group));
}

static void unknown_backend_names_are_refused(struct rank *self)
{
    self->backend = "cpu:native,cuda:gloo,cuda:nccl";
    CHECK_REFUSED(make_group(self, "odd", &self->group), INVALID, "not a map");
    self->backend = "cpu:unheard-of,cuda:nccl";
    CHECK_REFUSED(make_group(self, "odd", &self->group), DIST_ERR_NOT_FOUND, "unheard-of");
    self->backend = "nccl";
    self->backend_options = "nccl.high_priority=7";
    CHECK_REFUSED(make_group(self, "odd", &self->group), INVALID, "nccl.high_priority");
    self->device = 77;
    self->backend_options = "nccl.high_priority=1;cma=0";
    CHECK_REFUSED(make_group(self, "odd", &self->group), DIST_ERR_BACKEND, "device 77");
    CHECK(dist_backend_is_available("NCCL") == 1);
}

int main(int argc, char **argv)
{
    is_staged = argc > 1 && strcmp(argv[1], "staging") == 0;
    for (int size = 1; size <= MAX_RANKS; size++) {
        run_on_ranks(size, is_staged ? "CPU:gloo,cuda:Native" : "CPU:gloo,cuda:NCCL", backend_map_is_accepted);
    }
    if (is_staged) {
        run_on_bare_ranks(2, "cuda:native", use_no_device, current_device_is_used);
        check_nothing_leaked();
        return check_report();
    }
    for (int size = 1; size <= MAX_RANKS; size++) {
        run_on_ranks_with_options(size, "nccl", "nccl.windows=1", memory_is_registered_with_nccl);
    }
    run_on_bare_ranks(2, "nccl", NULL, absent_rank_times_out_the_allocation);
    run_on_ranks(3, "nccl", check_nccl_only_group);
    run_on_ranks(2, NULL, check_default_group);
    run_on_bare_ranks(3, "nccl", share_one_gpu, creation_is_refused);
    run_on_bare_ranks(3, "nccl", NULL, missing_device_is_reported_on_all_ranks);
    run_on_bare_ranks(2, "nccl", use_no_device, current_device_is_used);
    run_on_bare_ranks(2, NULL, use_no_device, current_device_is_used);
    run_on_bare_ranks(1, NULL, NULL, unknown_backend_names_are_refused);
    check_nothing_leaked();
    return check_report();
}
