/*
 * Streams of the stub libcuda. A stream is a queue with a thread that executes the work in order
 * and with a delay after the call, as a device does. Streams and the default stream of their
 * device do not wait for each other; a program that needs an order uses events.
 */
#include "cuda_internal.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void unref_event(struct event *event)
{
    if (event != NULL && --event->references == 0) {
        free(event);
    }
}

/* FNV-1a over words; the result is never 0. */
static unsigned long long checksum(const void *memory, size_t bytes)
{
    const unsigned char *at = memory;
    unsigned long long sum = 0xcbf29ce484222325u, word;
    for (; bytes >= sizeof word; at += sizeof word, bytes -= sizeof word) {
        memcpy(&word, at, sizeof word);
        sum = (sum ^ word) * 0x100000001b3u;
    }
    while (bytes-- > 0) {
        sum = (sum ^ *at++) * 0x100000001b3u;
    }
    return sum | 1;
}

static void perform_work(const struct work *work)
{
    switch (work->kind) {
    case WORK_COPY: {
        stub_sleep_us(stub_env_number("DIST_STUB_CUDA_SLOW_US", 0));
        pthread_mutex_lock(&cuda.lock);
        void *to = host_address(work->to, work->bytes);
        const void *from = host_address(work->from, work->bytes);
        pthread_mutex_unlock(&cuda.lock);
        if (work->sum != 0 && checksum(from, work->bytes) != work->sum) {
            refuse_call(CUDA_SUCCESS, "pinned memory was written before the copy of its %zu bytes was done",
                        work->bytes);
        }
        memmove(to, from, work->bytes);
        break;
    }
    case WORK_FILL:
        pthread_mutex_lock(&cuda.lock);
        void *filled = host_address(work->to, work->bytes);
        pthread_mutex_unlock(&cuda.lock);
        memset(filled, (int)work->sum, work->bytes);
        break;
    case WORK_FUNCTION:
        is_in_host_function = 1;
        work->function(work->argument);
        is_in_host_function = 0;
        break;
    case WORK_RECORD:
    case WORK_WAIT:
        break;
    }
}

/* The caller holds the lock, which the function releases during the work itself. */
static void perform_next(struct stream *stream)
{
    struct work *work = stream->first;
    if (work->kind == WORK_WAIT) {
        while (work->event->completed < work->version) {
            pthread_cond_wait(&cuda.changed, &cuda.lock);
        }
    } else if (work->kind == WORK_RECORD) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        work->event->reached_ns = (unsigned long long)now.tv_sec * 1000000000ULL + (unsigned long long)now.tv_nsec;
        work->event->completed = work->version;
    } else {
        pthread_mutex_unlock(&cuda.lock);
        perform_work(work);
        pthread_mutex_lock(&cuda.lock);
    }
    stream->first = work->next;
    stream->last = stream->first == NULL ? NULL : stream->last;
    stream->finished++;
    unref_event(work->event);
    free(work);
    pthread_cond_broadcast(&cuda.changed);
}

static void *run_stream(void *argument)
{
    struct stream *stream = argument;
    pthread_mutex_lock(&cuda.lock);
    while (stream->first != NULL || !stream->is_destroyed) {
        if (stream->first != NULL) {
            perform_next(stream);
        } else {
            pthread_cond_wait(&stream->arrived, &cuda.lock);
        }
    }
    stream->has_ended = 1;
    pthread_cond_broadcast(&cuda.changed);
    pthread_mutex_unlock(&cuda.lock);
    return NULL;
}

void enqueue(struct stream *stream, struct work work)
{
    struct work *copy = malloc(sizeof *copy);
    if (copy == NULL) {
        abort();
    }
    *copy = work;
    copy->next = NULL;
    if (stream->last == NULL) {
        stream->first = copy;
    } else {
        stream->last->next = copy;
    }
    stream->last = copy;
    stream->enqueued++;
    if (!stream->has_thread) {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, &before);
        stream->has_thread = pthread_create(&stream->thread, NULL, run_stream, stream) == 0;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    pthread_cond_signal(&stream->arrived);
}

/* Frees destroyed streams after their threads have finished. */
static void free_destroyed_streams(void)
{
    struct stream **link = &cuda.streams;
    while (*link != NULL) {
        struct stream *stream = *link;
        if (stream->is_destroyed && (stream->has_ended || !stream->has_thread)) {
            *link = stream->next;
            if (stream->has_thread) {
                pthread_join(stream->thread, NULL);
            }
            pthread_cond_destroy(&stream->arrived);
            free(stream);
        } else {
            link = &stream->next;
        }
    }
}

static void destroy_stream(struct stream *stream)
{
    stub_handle_take(HANDLE_STREAM, stream->handle);
    stream->is_destroyed = 1;
    pthread_cond_signal(&stream->arrived);
    free_destroyed_streams();
}

static struct stream *new_stream(struct device *device, int priority)
{
    free_destroyed_streams();
    struct stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) {
        return NULL;
    }
    stream->device = device;
    stream->priority = priority;
    pthread_cond_init(&stream->arrived, NULL);
    stream->handle = stub_handle_new(HANDLE_STREAM, stream);
    stream->next = cuda.streams;
    cuda.streams = stream;
    return stream;
}

/* Waits at the end of the process, at most 1 s, for the threads of destroyed streams. */
__attribute__((destructor)) static void wait_for_destroyed_streams(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    pthread_mutex_lock(&cuda.lock);
    for (int i = 0; i < cuda.n_devices; i++) {
        destroy_default_stream(&cuda.devices[i]);
    }
    free_destroyed_streams();
    for (struct stream *stream = cuda.streams; stream != NULL; stream = cuda.streams) {
        while (stream != NULL && !stream->is_destroyed) {
            stream = stream->next;
        }
        if (stream == NULL || pthread_cond_timedwait(&cuda.changed, &cuda.lock, &until) == ETIMEDOUT) {
            break;
        }
        free_destroyed_streams();
    }
    pthread_mutex_unlock(&cuda.lock);
}

void destroy_default_stream(struct device *device)
{
    if (device->default_stream != NULL) {
        destroy_stream(device->default_stream);
        device->default_stream = NULL;
    }
}

static struct stream *default_stream(struct device *device)
{
    if (device->default_stream == NULL) {
        device->default_stream = new_stream(device, 0);
    }
    return device->default_stream;
}

CUstream dist_stub_cuda_default_stream(CUdevice ordinal)
{
    pthread_mutex_lock(&cuda.lock);
    CUstream handle = default_stream(&cuda.devices[ordinal])->handle;
    pthread_mutex_unlock(&cuda.lock);
    return handle;
}

struct stream *find_stream(CUstream handle, CUresult *error)
{
    if (handle == NULL || handle == CU_STREAM_LEGACY) {
        struct device *device = current_device(error);
        return device == NULL ? NULL : default_stream(device);
    }
    struct stream *stream = stub_handle_find(HANDLE_STREAM, handle);
    if (stream == NULL) {
        *error = refuse_call(CUDA_ERROR_INVALID_HANDLE, "a stream is used that is none, or was destroyed");
    }
    return stream;
}

void drain_device(struct device *device)
{
    for (struct stream *stream = cuda.streams; stream != NULL;) {
        if (stream->device == device && stream->first != NULL) {
            pthread_cond_wait(&cuda.changed, &cuda.lock);
            /* The list may have changed. */
            stream = cuda.streams;
        } else {
            stream = stream->next;
        }
    }
}

CUresult drain_stream(struct stream *stream)
{
    unsigned long all = stream->enqueued;
    CUstream handle = stream->handle;
    while (stream->finished < all) {
        pthread_cond_wait(&cuda.changed, &cuda.lock);
        if (stub_handle_find(HANDLE_STREAM, handle) != stream) {
            return refuse_call(CUDA_ERROR_INVALID_HANDLE, "a stream is destroyed while a thread waits for it");
        }
    }
    return CUDA_SUCCESS;
}

static CUresult create_stream(CUstream *handle, unsigned int flags, int priority)
{
    CUresult error = CUDA_SUCCESS;
    struct device *device = current_device(&error);
    if (device == NULL) {
        return error;
    }
    if (handle == NULL || flags > CU_STREAM_NON_BLOCKING) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct stream *stream = new_stream(device, priority > 0 ? 0 : priority < -5 ? -5 : priority);
    if (stream == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = stream->handle;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream *handle, unsigned int flags, int priority)
{
    ENTER();
    return leave_call(create_stream(handle, flags, priority));
}

CUresult cuStreamCreate(CUstream *handle, unsigned int flags)
{
    ENTER();
    return leave_call(create_stream(handle, flags, 0));
}

CUresult cuStreamDestroy_v2(CUstream handle)
{
    ENTER();
    CUresult error = CUDA_SUCCESS;
    struct stream *stream = find_stream(handle, &error);
    if (stream != NULL && stream == stream->device->default_stream) {
        return leave_call(refuse_call(CUDA_ERROR_INVALID_HANDLE, "the stream NULL is destroyed"));
    }
    if (stream != NULL) {
        /* The stream still executes its remaining work. */
        destroy_stream(stream);
    }
    return leave_call(error);
}

/* Returns a stream that a call may query or wait for. */
static struct stream *find_waitable_stream(CUstream handle, CUresult *error)
{
    struct stream *stream = find_stream(handle, error);
    if (stream != NULL && stream->is_capturing) {
        *error = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        return NULL;
    }
    return stream;
}

CUresult cuStreamQuery(CUstream handle)
{
    ENTER();
    CUresult error = CUDA_SUCCESS;
    struct stream *stream = find_waitable_stream(handle, &error);
    return leave_call(stream == NULL ? error : stream->first == NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

CUresult cuStreamSynchronize(CUstream handle)
{
    ENTER();
    CUresult error = CUDA_SUCCESS;
    struct stream *stream = find_waitable_stream(handle, &error);
    return leave_call(stream == NULL ? error : drain_stream(stream));
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext *context)
{
    ENTER();
    CUresult error = CUDA_SUCCESS;
    struct stream *stream = find_stream(handle, &error);
    if (stream != NULL) {
        *context = stream->device->context;
    }
    return leave_call(error);
}

CUresult cuStreamGetPriority(CUstream handle, int *priority)
{
    ENTER();
    CUresult error = CUDA_SUCCESS;
    struct stream *stream = find_stream(handle, &error);
    if (stream != NULL) {
        *priority = stream->priority;
    }
    return leave_call(error);
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
    ENTER();
    CUresult error = CUDA_SUCCESS;
    struct stream *stream = find_stream(handle, &error);
    if (stream != NULL) {
        *status = stream->is_capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    }
    return leave_call(error);
}

CUresult dist_stub_cuda_capture(CUstream handle, int on)
{
    ENTER();
    CUresult error = CUDA_SUCCESS;
    struct stream *stream = find_stream(handle, &error);
    if (stream != NULL) {
        stream->is_capturing = on;
    }
    return leave_call(error);
}

/* Returns a stream that accepts work. */
static struct stream *find_usable_stream(CUstream handle, CUresult *error)
{
    struct stream *stream = find_stream(handle, error);
    if (stream != NULL && stream->is_capturing) {
        *error = refuse_call(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "work on a stream that captures");
        return NULL;
    }
    return stream;
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *argument)
{
    ENTER();
    CUresult error = CUDA_SUCCESS;
    struct stream *stream = find_usable_stream(handle, &error);
    if (stream != NULL) {
        enqueue(stream, (struct work){ .kind = WORK_FUNCTION, .function = function, .argument = argument });
    }
    return leave_call(error);
}

static CUresult enqueue_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle)
{
    CUresult error = CUDA_SUCCESS;
    if (current_device(&error) == NULL) {
        return error;
    }
    struct stream *stream = find_usable_stream(handle, &error);
    if (stream == NULL || bytes == 0) {
        return error;
    }
    if (to == 0 || from == 0 || host_address(to, bytes) == NULL || host_address(from, bytes) == NULL) {
        return refuse_call(CUDA_ERROR_INVALID_VALUE, "a copy of %zu bytes leaves its device memory", bytes);
    }
    enum memory_place target = memory_place_of(to, bytes), source = memory_place_of(from, bytes);
    struct work work = { .kind = WORK_COPY, .to = to, .from = from, .bytes = bytes };
    if (source == PLACE_PINNED) {
        work.sum = checksum(host_address(from, bytes), bytes);
    }
    if (target == PLACE_PINNED && source == PLACE_DEVICE) {
        /* A caller that reads the target before the copy is done finds this value. */
        memset(host_address(to, bytes), 0x5A, bytes);
    }
    enqueue(stream, work);
    /* A copy of unpinned memory is synchronous. */
    int is_pinned = target != PLACE_UNKNOWN && source != PLACE_UNKNOWN;
    return is_pinned ? CUDA_SUCCESS : drain_stream(stream);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream handle)
{
    ENTER();
    CUresult error = CUDA_SUCCESS;
    if (current_device(&error) == NULL) {
        return leave_call(error);
    }
    struct stream *stream = find_usable_stream(handle, &error);
    if (stream == NULL || bytes == 0) {
        return leave_call(error);
    }
    if (memory_place_of(to, bytes) != PLACE_DEVICE || host_address(to, bytes) == NULL) {
        return leave_call(refuse_call(CUDA_ERROR_INVALID_VALUE, "%zu bytes to fill leave their device memory", bytes));
    }
    enqueue(stream, (struct work){ .kind = WORK_FILL, .to = to, .bytes = bytes, .sum = value });
    return leave_call(CUDA_SUCCESS);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    ENTER();
    return leave_call(enqueue_copy(to, from, bytes, stream));
}

/* Checks that each address is in the kind of memory that the name of the call implies. */
static CUresult enqueue_checked_copy(CUdeviceptr to, int to_device, CUdeviceptr from, int from_device, size_t bytes,
                                     CUstream stream)
{
    int to_is = memory_place_of(to, 0) == PLACE_DEVICE;
    int from_is = memory_place_of(from, 0) == PLACE_DEVICE;
    if (bytes != 0 && (to_is != to_device || from_is != from_device)) {
        return refuse_call(CUDA_ERROR_INVALID_VALUE, "a copy from %s to %s memory is called one from %s to %s memory",
                           from_is ? "device" : "host", to_is ? "device" : "host", from_device ? "device" : "host",
                           to_device ? "device" : "host");
    }
    return enqueue_copy(to, from, bytes, stream);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    ENTER();
    return leave_call(enqueue_checked_copy(to, 1, (CUdeviceptr)(uintptr_t)from, 0, bytes, stream));
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    ENTER();
    return leave_call(enqueue_checked_copy((CUdeviceptr)(uintptr_t)to, 0, from, 1, bytes, stream));
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    ENTER();
    return leave_call(enqueue_checked_copy(to, 1, from, 1, bytes, stream));
}
