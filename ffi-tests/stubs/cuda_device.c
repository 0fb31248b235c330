/*
 * Devices, contexts and errors of the stub libcuda, and the common start and end of every call.
 *
 * A device has only its primary context. A context handle is a token, not an address.
 */
#include "cuda_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VERSION 12080
#define MAX_DEPTH 32

struct cuda cuda = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

_Thread_local int is_in_host_function;

/* The context stack of this thread; the last one is current. */
static _Thread_local struct {
    CUcontext contexts[MAX_DEPTH];
    int depth;
} stack;

static struct stub_fault fault;

CUresult enter_call(const char *function)
{
    if (is_in_host_function) {
        return refuse_call(CUDA_ERROR_NOT_PERMITTED, "%s in a host function of a stream", function);
    }
    if (cuda.is_initialised && cuda.process != getpid()) {
        return refuse_call(CUDA_ERROR_NOT_INITIALIZED, "%s in a fork of the process that called cuInit", function);
    }
    pthread_mutex_lock(&cuda.lock);
    if (!cuda.is_initialised) {
        return leave_call(CUDA_ERROR_NOT_INITIALIZED);
    }
    return stub_fails_now(&fault, function) ? leave_call((CUresult)fault.error) : CUDA_SUCCESS;
}

CUresult leave_call(CUresult result)
{
    pthread_mutex_unlock(&cuda.lock);
    return result;
}

CUresult refuse_call(CUresult error, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    stub_misuse("cuda: %s", text);
    return error;
}

void dist_stub_cuda_fail(const char *function, int calls, CUresult error)
{
    pthread_mutex_lock(&cuda.lock);
    stub_set_fault(&fault, function, calls, (int)error);
    pthread_mutex_unlock(&cuda.lock);
}

const char *dist_stub_cuda(void)
{
    return "stub libcuda 12.8 over host memory";
}

static void find_devices(void)
{
    long count = stub_env_number("DIST_STUB_CUDA_DEVICES", 4);
    count = count < 0 ? 0 : count > MAX_DEVICES ? MAX_DEVICES : count;
    long visible[MAX_DEVICES];
    const char *chosen = getenv("CUDA_VISIBLE_DEVICES");
    int n_chosen = stub_parse_numbers(chosen, ',', visible, MAX_DEVICES);
    for (int i = 0; i < (chosen == NULL ? count : n_chosen); i++) {
        long physical = chosen == NULL ? i : visible[i];
        if (physical < 0 || physical >= count) {
            break;
        }
        struct device *device = &cuda.devices[cuda.n_devices];
        device->ordinal = cuda.n_devices++;
        device->physical = (int)physical;
        device->context = stub_handle_new(HANDLE_CONTEXT, device);
    }
}

CUresult cuInit(unsigned int flags)
{
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&cuda.lock);
    if (cuda.is_initialised && cuda.process != getpid()) {
        return leave_call(refuse_call(CUDA_ERROR_NOT_INITIALIZED, "cuInit in a fork of the process that called it"));
    }
    if (!cuda.is_initialised) {
        cuda.is_initialised = 1;
        cuda.process = getpid();
        stub_read_fault(&fault, "DIST_STUB_CUDA_FAIL");
        find_devices();
    }
    if (stub_fails_now(&fault, __func__)) {
        return leave_call((CUresult)fault.error);
    }
    return leave_call(cuda.n_devices == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS);
}

CUresult cuDriverGetVersion(int *version)
{
    *version = (int)stub_env_number("DIST_STUB_CUDA_VERSION", VERSION);
    return CUDA_SUCCESS;
}

static const struct {
    CUresult error;
    const char *name;
    const char *text;
} errors[] = {
#define ERROR(name, text) { name, #name, "stub: " text }
    ERROR(CUDA_SUCCESS, "no error"),
    ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    ERROR(CUDA_ERROR_NOT_INITIALIZED, "not initialised"),
    ERROR(CUDA_ERROR_DEINITIALIZED, "shutting down"),
    ERROR(CUDA_ERROR_NO_DEVICE, "there is no device"),
    ERROR(CUDA_ERROR_INVALID_DEVICE, "no such device"),
    ERROR(CUDA_ERROR_INVALID_CONTEXT, "no context, or none that is valid"),
    ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid handle"),
    ERROR(CUDA_ERROR_NOT_READY, "not ready"),
    ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "illegal address"),
    ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED, "the context is gone"),
    ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "registered already"),
    ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "not registered"),
    ERROR(CUDA_ERROR_LAUNCH_FAILED, "launch failed"),
    ERROR(CUDA_ERROR_NOT_PERMITTED, "not permitted"),
    ERROR(CUDA_ERROR_NOT_SUPPORTED, "not supported"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "not permitted while the stream captures"),
    ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
};

static CUresult describe(CUresult error, const char **name, const char **text)
{
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        if (errors[i].error == error) {
            *name = errors[i].name;
            *text = errors[i].text;
            return CUDA_SUCCESS;
        }
    }
    *name = *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
    const char *text;
    return describe(error, name, &text);
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    const char *name;
    return describe(error, &name, text);
}

static struct device *find_device(CUdevice ordinal)
{
    return ordinal >= 0 && ordinal < cuda.n_devices ? &cuda.devices[ordinal] : NULL;
}

CUresult cuDeviceGetCount(int *count)
{
    ENTER();
    *count = cuda.n_devices;
    return leave_call(CUDA_SUCCESS);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER();
    *device = ordinal;
    return leave_call(find_device(ordinal) == NULL ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS);
}

static CUresult get_uuid(CUuuid *uuid, const struct device *device)
{
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    char text[sizeof uuid->bytes + 1];
    snprintf(text, sizeof text, "stub device %04u", (unsigned)device->physical % 10000u);
    memcpy(uuid->bytes, text, sizeof uuid->bytes);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice ordinal)
{
    ENTER();
    return leave_call(get_uuid(uuid, find_device(ordinal)));
}

#ifdef cuDeviceGetUuid
#undef cuDeviceGetUuid
STUB_API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal);
#endif
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal)
{
    ENTER();
    return leave_call(get_uuid(uuid, find_device(ordinal)));
}

CUresult cuDeviceGetName(char *name, int length, CUdevice ordinal)
{
    ENTER();
    struct device *device = find_device(ordinal);
    if (device == NULL) {
        return leave_call(CUDA_ERROR_INVALID_DEVICE);
    }
    snprintf(name, (size_t)(length < 0 ? 0 : length), "stub device %d", device->physical);
    return leave_call(CUDA_SUCCESS);
}

static CUresult get_attribute(const struct device *device, CUdevice_attribute attribute, int *value)
{
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
        *value = 1;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_INTEGRATED:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = 0;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = 9;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        *value = device->physical + 1;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice ordinal)
{
    ENTER();
    struct device *device = find_device(ordinal);
    if (device == NULL) {
        return leave_call(CUDA_ERROR_INVALID_DEVICE);
    }
    return leave_call(get_attribute(device, attribute, value));
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal)
{
    ENTER();
    struct device *device = find_device(ordinal);
    if (device == NULL) {
        return leave_call(CUDA_ERROR_INVALID_DEVICE);
    }
    device->retained++;
    *context = device->context;
    return leave_call(CUDA_SUCCESS);
}

static int has_streams(const struct device *device)
{
    for (const struct stream *stream = cuda.streams; stream != NULL; stream = stream->next) {
        if (stream->device == device && !stream->is_destroyed && stream != device->default_stream) {
            return 1;
        }
    }
    return 0;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal)
{
    ENTER();
    struct device *device = find_device(ordinal);
    if (device == NULL) {
        return leave_call(CUDA_ERROR_INVALID_DEVICE);
    }
    if (device->retained == 0) {
        return leave_call(refuse_call(CUDA_ERROR_INVALID_CONTEXT, "the context of device %d is released too often",
                                      ordinal));
    }
    if (--device->retained == 0) {
        if (has_streams(device) || has_memory(device)) {
            refuse_call(CUDA_SUCCESS, "the context of device %d is released while it has %s", ordinal,
                        has_memory(device) ? "memory" : "streams");
        }
        destroy_default_stream(device);
    }
    return leave_call(CUDA_SUCCESS);
}

struct device *current_device(CUresult *error)
{
    CUcontext context = stack.depth == 0 ? NULL : stack.contexts[stack.depth - 1];
    struct device *device = context == NULL ? NULL : stub_handle_find(HANDLE_CONTEXT, context);
    if (device == NULL) {
        *error = CUDA_ERROR_INVALID_CONTEXT;
    } else if (device->retained == 0) {
        *error = refuse_call(CUDA_ERROR_CONTEXT_IS_DESTROYED, "the current context, of device %d, was released",
                             device->ordinal);
        device = NULL;
    }
    return device;
}

/* Checks that a context may become current; NULL may as well. */
static CUresult check_context(CUcontext context)
{
    struct device *device = stub_handle_find(HANDLE_CONTEXT, context);
    if (context != NULL && (device == NULL || device->retained == 0)) {
        return refuse_call(CUDA_ERROR_INVALID_CONTEXT, "a context is made current that is none, or is gone");
    }
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    ENTER();
    *context = stack.depth == 0 ? NULL : stack.contexts[stack.depth - 1];
    return leave_call(CUDA_SUCCESS);
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    ENTER();
    CUresult result = check_context(context);
    if (result == CUDA_SUCCESS) {
        /* As in the driver, the call replaces the top of the stack, and NULL removes it. */
        stack.depth -= stack.depth > 0;
        if (context != NULL) {
            stack.contexts[stack.depth++] = context;
        }
    }
    return leave_call(result);
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    ENTER();
    CUresult result = check_context(context);
    if (result == CUDA_SUCCESS && stack.depth == MAX_DEPTH) {
        result = refuse_call(CUDA_ERROR_INVALID_VALUE, "%d contexts are pushed and not popped", MAX_DEPTH);
    }
    if (result == CUDA_SUCCESS) {
        stack.contexts[stack.depth++] = context;
    }
    return leave_call(result);
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    ENTER();
    if (stack.depth == 0) {
        return leave_call(refuse_call(CUDA_ERROR_INVALID_CONTEXT, "a context is popped where none is current"));
    }
    CUcontext popped = stack.contexts[--stack.depth];
    if (context != NULL) {
        *context = popped;
    }
    return leave_call(CUDA_SUCCESS);
}

CUresult cuCtxGetDevice(CUdevice *ordinal)
{
    ENTER();
    CUresult result = CUDA_SUCCESS;
    struct device *device = current_device(&result);
    if (device != NULL) {
        *ordinal = device->ordinal;
    }
    return leave_call(result);
}

CUresult cuCtxSynchronize(void)
{
    ENTER();
    CUresult result = CUDA_SUCCESS;
    struct device *device = current_device(&result);
    if (device != NULL) {
        drain_device(device);
    }
    return leave_call(result);
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    ENTER();
    if (least != NULL) {
        *least = 0;
    }
    if (greatest != NULL) {
        *greatest = -5;
    }
    return leave_call(CUDA_SUCCESS);
}

void dist_stub_cuda_count(struct dist_stub_cuda_counts *counts)
{
    memset(counts, 0, sizeof *counts);
    pthread_mutex_lock(&cuda.lock);
    for (int i = 0; i < cuda.n_devices; i++) {
        counts->contexts += cuda.devices[i].retained;
        counts->streams -= cuda.devices[i].default_stream != NULL;
    }
    counts->streams += stub_handle_count(HANDLE_STREAM);
    counts->events = stub_handle_count(HANDLE_EVENT);
    count_memory(counts);
    counts->misuses = (long)stub_misuses();
    pthread_mutex_unlock(&cuda.lock);
}
