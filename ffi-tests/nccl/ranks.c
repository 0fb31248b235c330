/* Runs ranks as threads, and manages their device memory. */
#include "ranks.h"

#include <stdint.h>

static CUdeviceptr device_address(const void *pointer)
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
} deferred_frees = { PTHREAD_MUTEX_INITIALIZER, NULL, 0 };

static void defer_free(CUdeviceptr pointer)
{
    pthread_mutex_lock(&deferred_frees.lock);
    deferred_frees.pointers = realloc(deferred_frees.pointers, (deferred_frees.count + 1) * sizeof pointer);
    REQUIRE(deferred_frees.pointers != NULL);
    deferred_frees.pointers[deferred_frees.count++] = pointer;
    pthread_mutex_unlock(&deferred_frees.lock);
}

static void free_deferred(void)
{
    while (deferred_frees.count > 0) {
        CHECK(cuMemFree_v2(deferred_frees.pointers[--deferred_frees.count]) == CUDA_SUCCESS);
    }
    free(deferred_frees.pointers);
    deferred_frees.pointers = NULL;
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

void run_on_bare_ranks(int size, const char *backend, void (*change)(struct rank *self),
                       void (*body)(struct rank *self))
{
    struct rank ranks[MAX_RANKS] = { { 0 } };
    pthread_t threads[MAX_RANKS];
    const char *max_ranks = getenv("DIST_TEST_MOST_RANKS");
    int gpus = 0;
    if (max_ranks != NULL && size > atoi(max_ranks)) {
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
    free_deferred();
    CHECK(cuCtxPopCurrent_v2(&first) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
    CHECK_OK(dist_store_release(store));
}

void run_in_job(const char *backend, const char *backend_options, void (*body)(struct rank *self))
{
    struct rank self = { .backend = backend, .timeout_ms = LIMIT_MS };
    dist_init_options_t init_options = DIST_INIT_OPTIONS_INIT;
    const char *local = getenv("OMPI_COMM_WORLD_RANK");
    local = local != NULL ? local : getenv("PMI_RANK");
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    /* Selects one of the stub's devices before this process knows its rank. */
    self.gpu = local != NULL ? atoi(local) % MAX_RANKS : 0;
    self.device = self.gpu;
    init_options.backend = backend;
    init_options.backend_options = backend_options;
    init_options.timeout_ms = LIMIT_MS;
    init_options.fields = DIST_FIELD_DEVICE;
    init_options.device = self.device;
    REQUIRE_OK(dist_init(&init_options));
    self.group = dist_world();
    self.rank = dist_get_rank(self.group);
    self.size = dist_get_world_size(self.group);
    REQUIRE(self.size <= MAX_RANKS && self.device == self.rank);
    REQUIRE(cuDevicePrimaryCtxRetain(&self.context, self.device) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(self.context) == CUDA_SUCCESS);
    REQUIRE(cuStreamCreate(&self.stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    body(&self);
    CHECK(cuStreamDestroy_v2(self.stream) == CUDA_SUCCESS);
    CHECK(cuCtxSetCurrent(NULL) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRelease_v2(self.device) == CUDA_SUCCESS);
    CHECK_OK(dist_finalize());
}

static void (*body_with_group[MAX_RANKS])(struct rank *self);
static const char *grouped_options;
static char own_options[MAX_RANKS][128];

static void run_with_group(struct rank *self)
{
    self->backend_options = grouped_options;
    if (grouped_options != NULL && grouped_options[strlen(grouped_options) - 1] == '=') {
        snprintf(own_options[self->rank], sizeof own_options[0], "%s%d", grouped_options, self->rank / 2);
        self->backend_options = own_options[self->rank];
    }
    REQUIRE_OK(make_group(self, "ranks", &self->group));
    body_with_group[self->rank](self);
    /* The body may have released the group already. */
    if (self->group != NULL) {
        CHECK_OK(dist_group_release(self->group));
    }
}

void run_on_ranks(int size, const char *backend, void (*body)(struct rank *self))
{
    run_on_ranks_with_options(size, backend, NULL, body);
}

void run_on_ranks_with_options(int size, const char *backend, const char *backend_options,
                               void (*body)(struct rank *self))
{
    grouped_options = backend_options;
    for (int i = 0; i < MAX_RANKS; i++) {
        body_with_group[i] = body;
    }
    run_on_bare_ranks(size, backend, NULL, run_with_group);
}

void *device_memory(size_t bytes, const void *content)
{
    CUdeviceptr pointer = 0;
    REQUIRE(cuMemAlloc_v2(&pointer, bytes) == CUDA_SUCCESS);
    if (content != NULL) {
        /* The copy uses CUDA's default stream, which the library's own stream waits for; other
         * streams do not wait for it. */
        REQUIRE(cuMemcpyHtoDAsync_v2(pointer, content, bytes, NULL) == CUDA_SUCCESS);
        REQUIRE(cuStreamSynchronize(NULL) == CUDA_SUCCESS);
    }
    return (void *)(uintptr_t)pointer;
}

void free_device(void *pointer)
{
    if (is_shared_gpu) {
        defer_free(device_address(pointer));
        return;
    }
    CHECK(cuMemFree_v2(device_address(pointer)) == CUDA_SUCCESS);
}

/* A copy of unpinned memory keeps other threads out of the context until the stream reaches the
 * copy. If the ranks share a GPU, this may block the rank that the stream waits for. Therefore
 * the functions wait for the stream first. */
void write_device(struct rank *self, void *into, const void *from, size_t bytes)
{
    REQUIRE(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyHtoDAsync_v2(device_address(into), from, bytes, self->stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
}

void read_device(struct rank *self, void *into, const void *from, size_t bytes)
{
    REQUIRE(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoHAsync_v2(into, device_address(from), bytes, self->stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
}

dist_call_options_t stream_options(const struct rank *self)
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

void check_nothing_leaked(void)
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

int join_device_world(int rank, const char *backend)
{
    int gpus = 0;
    CUcontext context;
    dist_init_options_t options = DIST_INIT_OPTIONS_INIT;
    REQUIRE(cuInit(0) == CUDA_SUCCESS && cuDeviceGetCount(&gpus) == CUDA_SUCCESS && gpus > 0);
    REQUIRE(cuDevicePrimaryCtxRetain(&context, rank % gpus) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
    options.backend = backend;
    options.fields = DIST_FIELD_DEVICE;
    options.device = rank % gpus;
    options.timeout_ms = LIMIT_MS;
    options.connect_timeout_ms = LIMIT_MS;
    REQUIRE_OK(dist_init(&options));
    return rank % gpus;
}
