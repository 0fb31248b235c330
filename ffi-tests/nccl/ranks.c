/* Runs ranks as threads, and manages their device memory. */
#include "ranks.h"

#include <stdint.h>

static CUdeviceptr address(const void *pointer)
{
    return (CUdeviceptr)(uintptr_t)pointer;
}

dist_status_t make_group(struct rank *self, const char *name, dist_group_t **group)
{
    dist_group_options_t options = DIST_GROUP_OPTIONS_INIT;
    options.store = self->store;
    options.name = name;
    options.fields = DIST_FIELD_RANK | (self->device >= 0 ? DIST_FIELD_DEVICE : 0);
    options.rank = self->rank;
    options.world_size = self->size;
    options.device = self->device >= 0 ? self->device : 0;
    options.backend = self->backend;
    options.backend_options = self->backend_options;
    options.connect_timeout_ms = LIMIT_MS;
    options.timeout_ms = self->timeout_ms;
    return dist_group_create(&options, group);
}

/* Set if several ranks share one GPU. Then the program frees memory only at its end. cuMemFree
 * waits for all work of the GPU, also for an operation of another rank, which may wait for this
 * rank. */
static int is_shared_gpu;
static struct {
    pthread_mutex_t lock;
    CUdeviceptr *pointers;
    size_t count;
} unfreed = { PTHREAD_MUTEX_INITIALIZER, NULL, 0 };

static void free_later(CUdeviceptr pointer)
{
    pthread_mutex_lock(&unfreed.lock);
    unfreed.pointers = realloc(unfreed.pointers, (unfreed.count + 1) * sizeof pointer);
    REQUIRE(unfreed.pointers != NULL);
    unfreed.pointers[unfreed.count++] = pointer;
    pthread_mutex_unlock(&unfreed.lock);
}

static void free_all(void)
{
    while (unfreed.count > 0) {
        CHECK(cuMemFree_v2(unfreed.pointers[--unfreed.count]) == CUDA_SUCCESS);
    }
    free(unfreed.pointers);
    unfreed.pointers = NULL;
}

static void *run_rank(void *argument)
{
    struct rank *self = argument;
    REQUIRE(cuDevicePrimaryCtxRetain(&self->context, self->gpu) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(self->context) == CUDA_SUCCESS);
    REQUIRE(cuStreamCreate(&self->stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    self->body(self);
    CHECK(cuStreamDestroy_v2(self->stream) == CUDA_SUCCESS);
    CHECK(cuCtxSetCurrent(NULL) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRelease_v2(self->gpu) == CUDA_SUCCESS);
    return NULL;
}

void on_bare_ranks(int size, const char *backend, void (*change)(struct rank *self), void (*body)(struct rank *self))
{
    struct rank ranks[MOST_RANKS] = { { 0 } };
    pthread_t threads[MOST_RANKS];
    const char *most = getenv("DIST_TEST_MOST_RANKS");
    int gpus = 0;
    if (most != NULL && size > atoi(most)) {
        return;
    }
    dist_store_t *store = new_store();
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    REQUIRE(cuDeviceGetCount(&gpus) == CUDA_SUCCESS && gpus > 0);
    is_shared_gpu = size > gpus;
    /* The program retains the context, so that the memory that is freed at the end exists until
     * then. */
    CUcontext first;
    REQUIRE(cuDevicePrimaryCtxRetain(&first, 0) == CUDA_SUCCESS);
    for (int i = 0; i < size; i++) {
        ranks[i].rank = i;
        ranks[i].size = size;
        ranks[i].backend = backend;
        ranks[i].gpu = i % gpus;
        ranks[i].device = ranks[i].gpu;
        ranks[i].timeout_ms = LIMIT_MS;
        ranks[i].store = store;
        ranks[i].body = body;
        if (change != NULL) {
            change(&ranks[i]);
        }
        REQUIRE(pthread_create(&threads[i], NULL, run_rank, &ranks[i]) == 0);
    }
    for (int i = 0; i < size; i++) {
        REQUIRE(pthread_join(threads[i], NULL) == 0);
    }
    CHECK(cuCtxPushCurrent_v2(first) == CUDA_SUCCESS);
    free_all();
    CHECK(cuCtxPopCurrent_v2(&first) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
    CHECK_OK(dist_store_release(store));
}

void on_job(const char *backend, const char *backend_options, void (*body)(struct rank *self))
{
    struct rank self = { .backend = backend, .timeout_ms = LIMIT_MS };
    dist_init_options_t how = DIST_INIT_OPTIONS_INIT;
    const char *local = getenv("OMPI_COMM_WORLD_RANK");
    local = local != NULL ? local : getenv("PMI_RANK");
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    /* Selects one of the stub's devices before this process knows its rank. */
    self.gpu = local != NULL ? atoi(local) % MOST_RANKS : 0;
    self.device = self.gpu;
    how.backend = backend;
    how.backend_options = backend_options;
    how.timeout_ms = LIMIT_MS;
    how.fields = DIST_FIELD_DEVICE;
    how.device = self.device;
    REQUIRE_OK(dist_init(&how));
    self.group = dist_world();
    self.rank = dist_get_rank(self.group);
    self.size = dist_get_world_size(self.group);
    REQUIRE(self.size <= MOST_RANKS && self.device == self.rank);
    REQUIRE(cuDevicePrimaryCtxRetain(&self.context, self.device) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(self.context) == CUDA_SUCCESS);
    REQUIRE(cuStreamCreate(&self.stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    body(&self);
    CHECK(cuStreamDestroy_v2(self.stream) == CUDA_SUCCESS);
    CHECK(cuCtxSetCurrent(NULL) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRelease_v2(self.device) == CUDA_SUCCESS);
    CHECK_OK(dist_finalize());
}

static void (*grouped_body[MOST_RANKS])(struct rank *self);
static const char *grouped_options;
static char own_options[MOST_RANKS][128];

static void with_group(struct rank *self)
{
    self->backend_options = grouped_options;
    if (grouped_options != NULL && grouped_options[strlen(grouped_options) - 1] == '=') {
        snprintf(own_options[self->rank], sizeof own_options[0], "%s%d", grouped_options, self->rank / 2);
        self->backend_options = own_options[self->rank];
    }
    REQUIRE_OK(make_group(self, "ranks", &self->group));
    grouped_body[self->rank](self);
    /* The body may have released the group already. */
    if (self->group != NULL) {
        CHECK_OK(dist_group_release(self->group));
    }
}

void on_ranks(int size, const char *backend, void (*body)(struct rank *self))
{
    on_ranks_with(size, backend, NULL, body);
}

void on_ranks_with(int size, const char *backend, const char *backend_options, void (*body)(struct rank *self))
{
    grouped_options = backend_options;
    for (int i = 0; i < MOST_RANKS; i++) {
        grouped_body[i] = body;
    }
    on_bare_ranks(size, backend, NULL, with_group);
}

void *device_memory(size_t bytes, const void *filled_with)
{
    CUdeviceptr pointer = 0;
    REQUIRE(cuMemAlloc_v2(&pointer, bytes) == CUDA_SUCCESS);
    if (filled_with != NULL) {
        /* The copy uses CUDA's default stream, which the library's own stream waits for; other
         * streams do not wait for it. */
        REQUIRE(cuMemcpyHtoDAsync_v2(pointer, filled_with, bytes, NULL) == CUDA_SUCCESS);
        REQUIRE(cuStreamSynchronize(NULL) == CUDA_SUCCESS);
    }
    return (void *)(uintptr_t)pointer;
}

void free_device(void *pointer)
{
    if (is_shared_gpu) {
        free_later(address(pointer));
        return;
    }
    CHECK(cuMemFree_v2(address(pointer)) == CUDA_SUCCESS);
}

/* A copy of unpinned memory keeps other threads out of the context until the stream reaches the
 * copy. If the ranks share a GPU, this may block the rank that the stream waits for. Therefore
 * the functions wait for the stream first. */
void write_device(struct rank *self, void *into, const void *from, size_t bytes)
{
    REQUIRE(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyHtoDAsync_v2(address(into), from, bytes, self->stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
}

void read_device(struct rank *self, void *into, const void *from, size_t bytes)
{
    REQUIRE(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoHAsync_v2(into, address(from), bytes, self->stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
}

dist_call_options_t on_stream(const struct rank *self)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    options.stream = self->stream;
    return options;
}

unsigned long has_stubs(void)
{
    return dist_stub_nccl != NULL;
}

unsigned long launched_groups(void)
{
    return has_stubs() ? dist_stub_nccl_groups() : 0;
}

void check_nothing_left(void)
{
    struct dist_stub_cuda_counts counts;
    if (!has_stubs()) {
        return;
    }
    dist_stub_cuda_count(&counts);
    CHECK(counts.misuses == 0);
    CHECK(counts.contexts == 0);
    CHECK(counts.streams == 0);
    CHECK(counts.events == 0);
    CHECK(counts.device_allocations == 0);
    CHECK(counts.host_allocations == 0);
    CHECK(dist_stub_nccl_misuses() == 0);
    CHECK(dist_stub_nccl_alive() == 0);
}
