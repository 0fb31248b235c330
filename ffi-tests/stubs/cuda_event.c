/*
 * Events of the stub libcuda: each event counts how often it was recorded, and up to which
 * record its stream has advanced.
 */
#include "cuda_internal.h"

#include <stdlib.h>

static struct event *find_event(CUevent handle, CUresult *error)
{
    struct event *event = stub_handle_find(HANDLE_EVENT, handle);
    if (event == NULL) {
        *error = refuse_call(CUDA_ERROR_INVALID_HANDLE, "an event is used that is none, or was destroyed");
    }
    return event;
}

CUresult cuEventCreate(CUevent *handle, unsigned int flags)
{
    ENTER();
    CUresult error = CUDA_SUCCESS;
    struct device *device = current_device(&error);
    if (device == NULL) {
        return leave_call(error);
    }
    struct event *event = calloc(1, sizeof *event);
    if (event == NULL || flags > 7) {
        free(event);
        return leave_call(CUDA_ERROR_INVALID_VALUE);
    }
    event->device = device;
    event->flags = flags;
    event->references = 1;
    event->handle = stub_handle_new(HANDLE_EVENT, event);
    *handle = event->handle;
    return leave_call(CUDA_SUCCESS);
}

CUresult cuEventDestroy_v2(CUevent handle)
{
    ENTER();
    CUresult error = CUDA_SUCCESS;
    struct event *event = find_event(handle, &error);
    if (event != NULL) {
        stub_handle_take(HANDLE_EVENT, handle);
        if (--event->references == 0) {
            free(event);
        }
    }
    return leave_call(error);
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle)
{
    ENTER();
    CUresult error = CUDA_SUCCESS;
    struct event *event = find_event(handle, &error);
    struct stream *stream = event == NULL ? NULL : find_stream(stream_handle, &error);
    if (stream == NULL) {
        return leave_call(error);
    }
    if (stream->device != event->device) {
        return leave_call(refuse_call(CUDA_ERROR_INVALID_HANDLE,
                                      "an event of device %d is recorded on a stream of device %d",
                                      event->device->ordinal, stream->device->ordinal));
    }
    event->references++;
    event->recorded++;
    enqueue(stream, (struct work){ .kind = WORK_RECORD, .event = event, .version = event->recorded });
    return leave_call(CUDA_SUCCESS);
}

CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned int flags)
{
    ENTER();
    CUresult error = flags > 1 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    struct event *event = find_event(handle, &error);
    struct stream *stream = event == NULL ? NULL : find_stream(stream_handle, &error);
    if (error == CUDA_SUCCESS && stream != NULL) {
        event->references++;
        enqueue(stream, (struct work){ .kind = WORK_WAIT, .event = event, .version = event->recorded });
    }
    return leave_call(error);
}

CUresult cuEventQuery(CUevent handle)
{
    ENTER();
    CUresult error = CUDA_SUCCESS;
    struct event *event = find_event(handle, &error);
    int is_done = event != NULL && event->completed >= event->recorded;
    return leave_call(event == NULL ? error : is_done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

CUresult cuEventSynchronize(CUevent handle)
{
    ENTER();
    CUresult error = CUDA_SUCCESS;
    struct event *event = find_event(handle, &error);
    if (event == NULL) {
        return leave_call(error);
    }
    unsigned long version = event->recorded;
    event->references++;
    while (event->completed < version) {
        pthread_cond_wait(&cuda.changed, &cuda.lock);
    }
    if (--event->references == 0) {
        free(event);
    }
    return leave_call(CUDA_SUCCESS);
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start_handle, CUevent end_handle)
{
    ENTER();
    CUresult error = CUDA_SUCCESS;
    struct event *start = find_event(start_handle, &error);
    struct event *end = start == NULL ? NULL : find_event(end_handle, &error);
    if (end == NULL) {
        return leave_call(error);
    }
    if (((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0 || start->device != end->device
        || start->recorded == 0 || end->recorded == 0) {
        return leave_call(refuse_call(CUDA_ERROR_INVALID_HANDLE,
                                      "the time between events without times, or of two devices, is asked for"));
    }
    if (start->completed < start->recorded || end->completed < end->recorded) {
        return leave_call(CUDA_ERROR_NOT_READY);
    }
    double ns = (double)end->reached_ns - (double)start->reached_ns;
    *milliseconds = (float)(ns / 1e6);
    return leave_call(CUDA_SUCCESS);
}
