/*
 * Self-test of the stub libcuda alone: devices, memory, streams, events, and refused calls.
 */
#include "selftest.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void check_devices(struct rank *rank)
{
    int count = 0, version = 0, value = -1;
    CUdevice device;
    CUuuid uuid, other;
    char name[32];
    const char *text = NULL;
    CHECK_RESULT(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    start_device(rank, 0);
    CHECK_OK(cuDriverGetVersion(&version));
    CHECK_OK(cuDeviceGetCount(&count));
    CHECK(count == 4 && version == 12080 && strstr(dist_stub_cuda(), "stub") != NULL);
    CHECK_OK(cuDeviceGet(&device, 3));
    CHECK_RESULT(cuDeviceGet(&device, 4), CUDA_ERROR_INVALID_DEVICE);
    CHECK_OK(cuDeviceGetUuid(&uuid, 0));
    CHECK_OK(cuDeviceGetUuid(&other, 1));
    CHECK(memcmp(&uuid, &other, sizeof uuid) != 0);
    CHECK_OK(cuDeviceGetName(name, sizeof name, 2));
    CHECK(strcmp(name, "stub device 2") == 0);
    CHECK_OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 0));
    CHECK(value == 1);
    CHECK_OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
    CHECK(strcmp(text, "CUDA_ERROR_OUT_OF_MEMORY") == 0);
    CHECK_OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    CHECK(strstr(text, "stub") != NULL);
    dist_stub_cuda_fail("cuDeviceGetCount", 1, CUDA_ERROR_UNKNOWN);
    CHECK_OK(cuDeviceGetCount(&count));
    CHECK_RESULT(cuDeviceGetCount(&count), CUDA_ERROR_UNKNOWN);
    CHECK_OK(cuDeviceGetCount(&count));
    finish_device(rank);
}

static void check_visible_devices(struct rank *rank)
{
    int count = 0;
    CUuuid uuid;
    setenv("CUDA_VISIBLE_DEVICES", "2,0", 1);
    setenv("DIST_STUB_CUDA_FAIL", "cuStreamCreate:1:2", 1);
    start_device(rank, 0);
    CUstream stream;
    CHECK_RESULT(cuStreamCreate(&stream, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_OK(cuDeviceGetCount(&count));
    CHECK_OK(cuDeviceGetUuid(&uuid, 0));
    CHECK(count == 2 && memcmp(uuid.bytes, "stub device 0002", sizeof uuid.bytes) == 0);
    finish_device(rank);
}

static void check_contexts(struct rank *rank)
{
    CUcontext other = NULL, found = NULL;
    CUdevice device;
    start_device(rank, 0);
    CHECK_OK(cuDevicePrimaryCtxRetain(&other, 1));
    CHECK_OK(cuCtxPushCurrent(other));
    CHECK_OK(cuCtxGetDevice(&device));
    CHECK(device == 1);
    CHECK_OK(cuCtxPopCurrent(&found));
    CHECK(found == other);
    CHECK_OK(cuCtxGetCurrent(&found));
    CHECK(found == rank->context);
    CHECK_OK(cuStreamGetCtx(rank->stream, &found));
    CHECK(found == rank->context);
    CHECK_OK(cuDevicePrimaryCtxRelease(1));
    CHECK_MISUSE(cuCtxSetCurrent(other), CUDA_ERROR_INVALID_CONTEXT, "is none, or is gone");
    CHECK_MISUSE(cuDevicePrimaryCtxRelease(1), CUDA_ERROR_INVALID_CONTEXT, "too often");
    finish_device(rank);
    CHECK_MISUSE(cuCtxPopCurrent(NULL), CUDA_ERROR_INVALID_CONTEXT, "popped");
    CHECK_RESULT(cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
}

static void check_memory(struct rank *rank)
{
    start_device(rank, 1);
    CUdeviceptr pointer = device_memory(10000);
    char text[] = "a text of no importance", back[sizeof text];
    upload(rank, pointer + 100, text, sizeof text);
    CHECK_OK(cuMemcpyDtoDAsync(pointer + 5000, pointer + 100, sizeof text, rank->stream));
    download(rank, back, pointer + 5000, sizeof text);
    CHECK(memcmp(text, back, sizeof text) == 0);
    CHECK_OK(cuMemsetD8Async(pointer + 5000, 'x', 3, rank->stream));
    download(rank, back, pointer + 5000, sizeof text);
    CHECK(memcmp(back, "xxxext", 6) == 0);
    CHECK_MISUSE(cuMemsetD8Async(pointer + 9990, 0, 11, rank->stream), CUDA_ERROR_INVALID_VALUE, "to fill");
    CHECK(dist_stub_cuda_alias(POINTER(pointer), 10000) != NULL);
    CHECK(dist_stub_cuda_alias(POINTER(pointer), 10001) == NULL);
    CHECK_MISUSE(cuMemcpyHtoDAsync(pointer + 9990, text, sizeof text, rank->stream), CUDA_ERROR_INVALID_VALUE,
                 "leaves");
    CHECK_MISUSE(cuMemcpyDtoHAsync(back, (CUdeviceptr)(uintptr_t)text, sizeof text, rank->stream),
                 CUDA_ERROR_INVALID_VALUE, "is called one from device");
    CHECK_MISUSE(cuMemFree(pointer + 1), CUDA_ERROR_INVALID_VALUE, "no device memory");
    CHECK_OK(cuMemFree(pointer));
    CHECK_MISUSE(cuMemFree(pointer), CUDA_ERROR_INVALID_VALUE, "no device memory");
    CHECK_RESULT(cuMemAlloc(&pointer, (size_t)5 << 30), CUDA_ERROR_OUT_OF_MEMORY);
    void *host = NULL;
    static char registered[8192];
    CHECK_OK(cuMemHostAlloc(&host, 100, CU_MEMHOSTALLOC_PORTABLE));
    memset(host, 1, 100);
    CHECK_OK(cuMemHostRegister(registered, sizeof registered, 0));
    CHECK_RESULT(cuMemHostRegister(registered + 1, 1, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    CHECK_OK(cuMemHostUnregister(registered));
    CHECK_MISUSE(cuMemHostUnregister(registered), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "not registered");
    CHECK_OK(cuMemFreeHost(host));
    CHECK_MISUSE(cuMemFreeHost(host), CUDA_ERROR_INVALID_VALUE, "cuMemFreeHost");
    finish_device(rank);
}

static void check_attributes(struct rank *rank)
{
    unsigned type = 0;
    int device = -1;
    CUcontext context = NULL;
    CUpointer_attribute asked[] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL };
    void *answers[] = { &type, &device };
    start_device(rank, 2);
    CUdeviceptr pointer = device_memory(100);
    void *host = NULL;
    CHECK_OK(cuMemHostAlloc(&host, 100, 0));
    CHECK_OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer + 99));
    CHECK_OK(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer));
    CHECK_OK(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, pointer));
    CHECK(type == CU_MEMORYTYPE_DEVICE && device == 2 && context == rank->context);
    CHECK_OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)host));
    CHECK(type == CU_MEMORYTYPE_HOST);
    CHECK_RESULT(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer + 100),
                 CUDA_ERROR_INVALID_VALUE);
    CHECK_RESULT(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)&type),
                 CUDA_ERROR_INVALID_VALUE);
    CHECK_OK(cuPointerGetAttributes(2, asked, answers, pointer));
    CHECK(type == CU_MEMORYTYPE_DEVICE && device == 2);
    CHECK_OK(cuPointerGetAttributes(2, asked, answers, (CUdeviceptr)(uintptr_t)&type));
    CHECK(type == 0 && device == -2);
    CHECK_OK(cuMemFreeHost(host));
    CHECK_OK(cuMemFree(pointer));
    finish_device(rank);
}

/* A read of device memory on the processor crashes the process. */
static void device_memory_is_unreadable(struct rank *rank)
{
    start_device(rank, 0);
    CUdeviceptr pointer = device_memory(100);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        _exit(*(volatile char *)POINTER(pointer) == 0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    CHECK_OK(cuMemFree(pointer));
    finish_device(rank);
}

static void driver_is_unusable_after_fork(struct rank *rank)
{
    int count;
    start_device(rank, 0);
    pid_t child = fork();
    if (child == 0) {
        _exit(cuDeviceGetCount(&count) != CUDA_ERROR_NOT_INITIALIZED || cuInit(0) != CUDA_ERROR_NOT_INITIALIZED);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    finish_device(rank);
}

/* A gate that blocks a stream until it is opened. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    int is_open;
    int n_passed;
};

static void pass_gate(void *argument)
{
    struct gate *gate = argument;
    pthread_mutex_lock(&gate->lock);
    while (!gate->is_open) {
        pthread_cond_wait(&gate->opened, &gate->lock);
    }
    gate->n_passed++;
    pthread_mutex_unlock(&gate->lock);
}

static void open_gate(struct gate *gate)
{
    pthread_mutex_lock(&gate->lock);
    gate->is_open = 1;
    pthread_cond_broadcast(&gate->opened);
    pthread_mutex_unlock(&gate->lock);
}

static void call_cuda(void *argument)
{
    *(CUresult *)argument = cuStreamQuery(NULL);
}

static void nap_20_ms(void *unused)
{
    struct timespec nap = { 0, 20000000 };
    (void)unused;
    nanosleep(&nap, NULL);
}

/* The time between two events is that of the work between them. */
static void check_event_times(struct rank *rank)
{
    CUevent events[3];
    float ms = 0.0F;
    start_device(rank, 0);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(cuEventCreate(&events[i], i < 2 ? 0 : CU_EVENT_DISABLE_TIMING));
    }
    CHECK_OK(cuEventRecord(events[0], rank->stream));
    CHECK_OK(cuLaunchHostFunc(rank->stream, nap_20_ms, NULL));
    CHECK_OK(cuEventRecord(events[1], rank->stream));
    CHECK_OK(cuEventRecord(events[2], rank->stream));
    CHECK_RESULT(cuEventElapsedTime(&ms, events[0], events[1]), CUDA_ERROR_NOT_READY);
    CHECK_OK(cuStreamSynchronize(rank->stream));
    CHECK_OK(cuEventElapsedTime(&ms, events[0], events[1]));
    CHECK(ms >= 20.0F && ms < 5000.0F);
    CHECK_MISUSE(cuEventElapsedTime(&ms, events[0], events[2]), CUDA_ERROR_INVALID_HANDLE, "events without times");
    for (int i = 0; i < 3; i++) {
        CHECK_OK(cuEventDestroy(events[i]));
    }
    finish_device(rank);
}

static void check_streams(struct rank *rank)
{
    struct gate gate = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0 };
    CUstream second = NULL;
    CUevent event = NULL;
    CUstreamCaptureStatus status;
    int least, greatest, priority = 0;
    start_device(rank, 0);
    CHECK_OK(cuCtxGetStreamPriorityRange(&least, &greatest));
    CHECK_OK(cuStreamCreateWithPriority(&second, CU_STREAM_NON_BLOCKING, greatest));
    CHECK_OK(cuStreamGetPriority(second, &priority));
    CHECK(priority == greatest && greatest < least);
    CHECK_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CHECK_OK(cuEventQuery(event));
    CHECK_OK(cuLaunchHostFunc(rank->stream, pass_gate, &gate));
    CHECK_OK(cuEventRecord(event, rank->stream));
    CHECK_OK(cuStreamWaitEvent(second, event, 0));
    CHECK_OK(cuLaunchHostFunc(second, pass_gate, &gate));
    CHECK_RESULT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    CHECK_RESULT(cuStreamQuery(rank->stream), CUDA_ERROR_NOT_READY);
    CHECK_RESULT(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
    CHECK_OK(cuStreamIsCapturing(second, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
    open_gate(&gate);
    CHECK_OK(cuStreamSynchronize(second));
    CHECK_OK(cuEventSynchronize(event));
    CHECK_OK(cuEventQuery(event));
    CHECK_OK(cuStreamQuery(rank->stream));
    CHECK(gate.n_passed == 2);
    CHECK_OK(dist_stub_cuda_capture(second, 1));
    CHECK_OK(cuStreamIsCapturing(second, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CHECK_RESULT(cuStreamQuery(second), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK_OK(dist_stub_cuda_capture(second, 0));
    CUresult inside = CUDA_SUCCESS;
    CHECK_OK(cuLaunchHostFunc(second, call_cuda, &inside));
    CHECK_OK(cuStreamSynchronize(second));
    CHECK_MISUSE(inside, CUDA_ERROR_NOT_PERMITTED, "in a host function");
    CHECK_OK(cuStreamDestroy(second));
    CHECK_MISUSE(cuStreamQuery(second), CUDA_ERROR_INVALID_HANDLE, "a stream is used");
    CHECK_OK(cuEventDestroy(event));
    CHECK_MISUSE(cuEventDestroy(event), CUDA_ERROR_INVALID_HANDLE, "an event is used");
    CHECK_OK(cuStreamSynchronize(NULL));
    finish_device(rank);
}

static void check_two_devices(struct rank *rank)
{
    CUcontext other;
    CUevent event;
    start_device(rank, 0);
    CHECK_OK(cuDevicePrimaryCtxRetain(&other, 1));
    CHECK_OK(cuCtxPushCurrent(other));
    CHECK_OK(cuEventCreate(&event, 0));
    CHECK_MISUSE(cuEventRecord(event, rank->stream), CUDA_ERROR_INVALID_HANDLE, "recorded on a stream of device 0");
    CUdeviceptr pointer = device_memory(10);
    CHECK_OK(cuCtxPopCurrent(NULL));
    CHECK_MISUSE(cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS, "released while it has memory");
    CHECK_OK(cuMemFree(pointer));
    CHECK_OK(cuEventDestroy(event));
    finish_device(rank);
}

void test_cuda(void)
{
    run_processes("devices", 1, check_devices);
    run_processes("visible devices", 1, check_visible_devices);
    run_processes("contexts", 1, check_contexts);
    run_processes("memory", 1, check_memory);
    run_processes("attributes", 1, check_attributes);
    run_processes("unreadable", 1, device_memory_is_unreadable);
    run_processes("after fork", 1, driver_is_unusable_after_fork);
    run_processes("streams", 1, check_streams);
    run_processes("event times", 1, check_event_times);
    run_processes("two devices", 1, check_two_devices);
}
