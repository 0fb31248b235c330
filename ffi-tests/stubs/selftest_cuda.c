/*
 * Self-test of the stub libcuda alone: devices, memory, streams, events, and refused calls.
 */
#include "selftest.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void devices(struct rank *rank)
{
    int count = 0, version = 0, value = -1;
    CUdevice device;
    CUuuid uuid, other;
    char name[32];
    const char *text = NULL;
    RESULT(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    begin_device(rank, 0);
    OK(cuDriverGetVersion(&version));
    OK(cuDeviceGetCount(&count));
    CHECK(count == 4 && version == 12080 && strstr(dist_stub_cuda(), "stub") != NULL);
    OK(cuDeviceGet(&device, 3));
    RESULT(cuDeviceGet(&device, 4), CUDA_ERROR_INVALID_DEVICE);
    OK(cuDeviceGetUuid(&uuid, 0));
    OK(cuDeviceGetUuid(&other, 1));
    CHECK(memcmp(&uuid, &other, sizeof uuid) != 0);
    OK(cuDeviceGetName(name, sizeof name, 2));
    CHECK(strcmp(name, "stub device 2") == 0);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 0));
    CHECK(value == 1);
    OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
    CHECK(strcmp(text, "CUDA_ERROR_OUT_OF_MEMORY") == 0);
    OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    CHECK(strstr(text, "stub") != NULL);
    dist_stub_cuda_fail("cuDeviceGetCount", 1, CUDA_ERROR_UNKNOWN);
    OK(cuDeviceGetCount(&count));
    RESULT(cuDeviceGetCount(&count), CUDA_ERROR_UNKNOWN);
    OK(cuDeviceGetCount(&count));
    end_device(rank);
}

static void visible_devices(struct rank *rank)
{
    int count = 0;
    CUuuid uuid;
    setenv("CUDA_VISIBLE_DEVICES", "2,0", 1);
    setenv("DIST_STUB_CUDA_FAIL", "cuStreamCreate:1:2", 1);
    begin_device(rank, 0);
    CUstream stream;
    RESULT(cuStreamCreate(&stream, 0), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuDeviceGetCount(&count));
    OK(cuDeviceGetUuid(&uuid, 0));
    CHECK(count == 2 && memcmp(uuid.bytes, "stub device 0002", sizeof uuid.bytes) == 0);
    end_device(rank);
}

static void contexts(struct rank *rank)
{
    CUcontext other = NULL, found = NULL;
    CUdevice device;
    begin_device(rank, 0);
    OK(cuDevicePrimaryCtxRetain(&other, 1));
    OK(cuCtxPushCurrent(other));
    OK(cuCtxGetDevice(&device));
    CHECK(device == 1);
    OK(cuCtxPopCurrent(&found));
    CHECK(found == other);
    OK(cuCtxGetCurrent(&found));
    CHECK(found == rank->context);
    OK(cuStreamGetCtx(rank->stream, &found));
    CHECK(found == rank->context);
    OK(cuDevicePrimaryCtxRelease(1));
    MISUSE(cuCtxSetCurrent(other), CUDA_ERROR_INVALID_CONTEXT, "is none, or is gone");
    MISUSE(cuDevicePrimaryCtxRelease(1), CUDA_ERROR_INVALID_CONTEXT, "too often");
    end_device(rank);
    MISUSE(cuCtxPopCurrent(NULL), CUDA_ERROR_INVALID_CONTEXT, "popped");
    RESULT(cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
}

static void memory(struct rank *rank)
{
    begin_device(rank, 1);
    CUdeviceptr pointer = device_memory(10000);
    char text[] = "a text of no importance", back[sizeof text];
    upload(rank, pointer + 100, text, sizeof text);
    OK(cuMemcpyDtoDAsync(pointer + 5000, pointer + 100, sizeof text, rank->stream));
    download(rank, back, pointer + 5000, sizeof text);
    CHECK(memcmp(text, back, sizeof text) == 0);
    OK(cuMemsetD8Async(pointer + 5000, 'x', 3, rank->stream));
    download(rank, back, pointer + 5000, sizeof text);
    CHECK(memcmp(back, "xxxext", 6) == 0);
    MISUSE(cuMemsetD8Async(pointer + 9990, 0, 11, rank->stream), CUDA_ERROR_INVALID_VALUE, "to fill");
    CHECK(dist_stub_cuda_alias(POINTER(pointer), 10000) != NULL);
    CHECK(dist_stub_cuda_alias(POINTER(pointer), 10001) == NULL);
    MISUSE(cuMemcpyHtoDAsync(pointer + 9990, text, sizeof text, rank->stream), CUDA_ERROR_INVALID_VALUE, "leaves");
    MISUSE(cuMemcpyDtoHAsync(back, (CUdeviceptr)(uintptr_t)text, sizeof text, rank->stream), CUDA_ERROR_INVALID_VALUE,
           "is called one from device");
    MISUSE(cuMemFree(pointer + 1), CUDA_ERROR_INVALID_VALUE, "no device memory");
    OK(cuMemFree(pointer));
    MISUSE(cuMemFree(pointer), CUDA_ERROR_INVALID_VALUE, "no device memory");
    RESULT(cuMemAlloc(&pointer, (size_t)5 << 30), CUDA_ERROR_OUT_OF_MEMORY);
    void *host = NULL;
    static char registered[8192];
    OK(cuMemHostAlloc(&host, 100, CU_MEMHOSTALLOC_PORTABLE));
    memset(host, 1, 100);
    OK(cuMemHostRegister(registered, sizeof registered, 0));
    RESULT(cuMemHostRegister(registered + 1, 1, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    OK(cuMemHostUnregister(registered));
    MISUSE(cuMemHostUnregister(registered), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "not registered");
    OK(cuMemFreeHost(host));
    MISUSE(cuMemFreeHost(host), CUDA_ERROR_INVALID_VALUE, "cuMemFreeHost");
    end_device(rank);
}

static void attributes(struct rank *rank)
{
    unsigned type = 0;
    int device = -1;
    CUcontext context = NULL;
    CUpointer_attribute asked[] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL };
    void *answers[] = { &type, &device };
    begin_device(rank, 2);
    CUdeviceptr pointer = device_memory(100);
    void *host = NULL;
    OK(cuMemHostAlloc(&host, 100, 0));
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer + 99));
    OK(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer));
    OK(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, pointer));
    CHECK(type == CU_MEMORYTYPE_DEVICE && device == 2 && context == rank->context);
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)host));
    CHECK(type == CU_MEMORYTYPE_HOST);
    RESULT(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer + 100), CUDA_ERROR_INVALID_VALUE);
    RESULT(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)&type),
           CUDA_ERROR_INVALID_VALUE);
    OK(cuPointerGetAttributes(2, asked, answers, pointer));
    CHECK(type == CU_MEMORYTYPE_DEVICE && device == 2);
    OK(cuPointerGetAttributes(2, asked, answers, (CUdeviceptr)(uintptr_t)&type));
    CHECK(type == 0 && device == -2);
    OK(cuMemFreeHost(host));
    OK(cuMemFree(pointer));
    end_device(rank);
}

/* A read of device memory on the processor crashes the process. */
static void unreadable(struct rank *rank)
{
    begin_device(rank, 0);
    CUdeviceptr pointer = device_memory(100);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        _exit(*(volatile char *)POINTER(pointer) == 0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    OK(cuMemFree(pointer));
    end_device(rank);
}

static void after_fork(struct rank *rank)
{
    int count;
    begin_device(rank, 0);
    pid_t child = fork();
    if (child == 0) {
        _exit(cuDeviceGetCount(&count) != CUDA_ERROR_NOT_INITIALIZED || cuInit(0) != CUDA_ERROR_NOT_INITIALIZED);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    end_device(rank);
}

/* A gate that blocks a stream until it is opened. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    int is_open;
    int passed;
};

static void pass(void *argument)
{
    struct gate *gate = argument;
    pthread_mutex_lock(&gate->lock);
    while (!gate->is_open) {
        pthread_cond_wait(&gate->opened, &gate->lock);
    }
    gate->passed++;
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

static void streams(struct rank *rank)
{
    struct gate gate = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0 };
    CUstream second = NULL;
    CUevent event = NULL;
    CUstreamCaptureStatus status;
    int least, greatest, priority = 0;
    begin_device(rank, 0);
    OK(cuCtxGetStreamPriorityRange(&least, &greatest));
    OK(cuStreamCreateWithPriority(&second, CU_STREAM_NON_BLOCKING, greatest));
    OK(cuStreamGetPriority(second, &priority));
    CHECK(priority == greatest && greatest < least);
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuEventQuery(event));
    OK(cuLaunchHostFunc(rank->stream, pass, &gate));
    OK(cuEventRecord(event, rank->stream));
    OK(cuStreamWaitEvent(second, event, 0));
    OK(cuLaunchHostFunc(second, pass, &gate));
    RESULT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    RESULT(cuStreamQuery(rank->stream), CUDA_ERROR_NOT_READY);
    RESULT(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
    OK(cuStreamIsCapturing(second, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
    open_gate(&gate);
    OK(cuStreamSynchronize(second));
    OK(cuEventSynchronize(event));
    OK(cuEventQuery(event));
    OK(cuStreamQuery(rank->stream));
    CHECK(gate.passed == 2);
    OK(dist_stub_cuda_capture(second, 1));
    OK(cuStreamIsCapturing(second, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    RESULT(cuStreamQuery(second), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    OK(dist_stub_cuda_capture(second, 0));
    CUresult inside = CUDA_SUCCESS;
    OK(cuLaunchHostFunc(second, call_cuda, &inside));
    OK(cuStreamSynchronize(second));
    MISUSE(inside, CUDA_ERROR_NOT_PERMITTED, "in a host function");
    OK(cuStreamDestroy(second));
    MISUSE(cuStreamQuery(second), CUDA_ERROR_INVALID_HANDLE, "a stream is used");
    OK(cuEventDestroy(event));
    MISUSE(cuEventDestroy(event), CUDA_ERROR_INVALID_HANDLE, "an event is used");
    OK(cuStreamSynchronize(NULL));
    end_device(rank);
}

static void two_devices(struct rank *rank)
{
    CUcontext other;
    CUevent event;
    begin_device(rank, 0);
    OK(cuDevicePrimaryCtxRetain(&other, 1));
    OK(cuCtxPushCurrent(other));
    OK(cuEventCreate(&event, 0));
    MISUSE(cuEventRecord(event, rank->stream), CUDA_ERROR_INVALID_HANDLE, "recorded on a stream of device 0");
    CUdeviceptr pointer = device_memory(10);
    OK(cuCtxPopCurrent(NULL));
    MISUSE(cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS, "released while it has memory");
    OK(cuMemFree(pointer));
    OK(cuEventDestroy(event));
    end_device(rank);
}

void test_cuda(void)
{
    run_processes("devices", 1, devices);
    run_processes("visible devices", 1, visible_devices);
    run_processes("contexts", 1, contexts);
    run_processes("memory", 1, memory);
    run_processes("attributes", 1, attributes);
    run_processes("unreadable", 1, unreadable);
    run_processes("after fork", 1, after_fork);
    run_processes("streams", 1, streams);
    run_processes("two devices", 1, two_devices);
}
