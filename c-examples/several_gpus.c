/*
 * One process with all GPUs of the machine: each GPU is a rank, and one thread drives all of
 * them.
 *
 *     ./several_gpus [gpus]
 *
 * The creation of a group waits for all of its ranks, so a separate thread creates the group of
 * each rank. Then the main thread takes all groups and makes the call of each rank in turn
 * inside a batch. The library launches the calls of a batch together, so that no GPU waits for a
 * later call of the same thread. Without the batch, the first call would wait for the other
 * calls until its deadline.
 */
#include "common/check.h"

#include <cuda.h>
#include <pthread.h>
#include <stdint.h>

#define MAX_GPUS 16
#define COUNT 1000

/* The resources of one GPU. */
struct gpu {
    int rank;
    int size;
    dist_store_t *store;
    dist_group_t *group;
    void *values;
};

static void check_cuda(CUresult result, const char *call)
{
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "%s: CUDA error %d\n", call, (int)result);
        exit(3);
    }
}

/* Creates the group of one rank; the call waits for the other ranks. */
static void *create_group(void *argument)
{
    struct gpu *gpu = argument;
    dist_group_options_t options = DIST_GROUP_OPTIONS_INIT;
    options.store = gpu->store;
    options.name = "gpus";
    options.fields = DIST_FIELD_RANK | DIST_FIELD_DEVICE;
    options.rank = gpu->rank;
    options.world_size = gpu->size;
    options.device = gpu->rank;
    check(dist_group_create(&options, &gpu->group));
    check(dist_mem_alloc(gpu->group, COUNT * sizeof(float), gpu->rank, &gpu->values));
    return NULL;
}

/* Copies between GPU memory and host memory. */
static void copy_values(const struct gpu *gpu, float *host, int to_gpu)
{
    CUcontext context;
    CUdeviceptr values = (CUdeviceptr)(uintptr_t)gpu->values;
    check_cuda(cuDevicePrimaryCtxRetain(&context, gpu->rank), "cuDevicePrimaryCtxRetain");
    check_cuda(cuCtxPushCurrent(context), "cuCtxPushCurrent");
    check_cuda(to_gpu ? cuMemcpyHtoDAsync(values, host, COUNT * sizeof(float), NULL)
                      : cuMemcpyDtoHAsync(host, values, COUNT * sizeof(float), NULL), "a copy");
    check_cuda(cuStreamSynchronize(NULL), "cuStreamSynchronize");
    check_cuda(cuCtxPopCurrent(&context), "cuCtxPopCurrent");
    check_cuda(cuDevicePrimaryCtxRelease(gpu->rank), "cuDevicePrimaryCtxRelease");
}

int main(int argc, char **argv)
{
    struct gpu gpus[MAX_GPUS] = { { 0 } };
    pthread_t threads[MAX_GPUS];
    float host[COUNT];
    dist_store_t *store;
    dist_work_t *work;
    int size = 0;

    check_cuda(cuInit(0), "cuInit");
    check_cuda(cuDeviceGetCount(&size), "cuDeviceGetCount");
    size = argc > 1 && atoi(argv[1]) < size ? atoi(argv[1]) : size;
    size = size > MAX_GPUS ? MAX_GPUS : size;
    check(dist_store_hash_create(&store));
    for (int i = 0; i < size; i++) {
        gpus[i].rank = i;
        gpus[i].size = size;
        gpus[i].store = store;
        if (pthread_create(&threads[i], NULL, create_group, &gpus[i]) != 0) {
            fprintf(stderr, "there is no thread for GPU %d\n", i);
            return 3;
        }
    }
    for (int i = 0; i < size; i++) {
        pthread_join(threads[i], NULL);
        for (int k = 0; k < COUNT; k++) {
            host[k] = (float)(i + 1);
        }
        copy_values(&gpus[i], host, 1);
    }

    check(dist_batch_begin(NULL, 0));
    for (int i = 0; i < size; i++) {
        check(dist_all_reduce(gpus[i].group, gpus[i].values, gpus[i].values, COUNT, DIST_F32, DIST_SUM, NULL, NULL));
    }
    check(dist_batch_end(&work));
    /* The operations are only enqueued so far; this call waits for the GPUs. */
    check(dist_work_synchronize(work, DIST_WAIT_FOREVER));
    check(dist_work_release(work));

    int n_wrong = 0;
    for (int i = 0; i < size; i++) {
        copy_values(&gpus[i], host, 0);
        for (int k = 0; k < COUNT; k++) {
            n_wrong += host[k] != (float)(size * (size + 1) / 2);
        }
        check(dist_mem_free(gpus[i].values));
    }
    for (int i = 0; i < size; i++) {
        check(dist_group_release(gpus[i].group));
    }
    check(dist_store_release(store));
    printf("%d GPUs have added %d numbers each: %d are wrong\n", size, COUNT, n_wrong);
    return n_wrong != 0;
}
