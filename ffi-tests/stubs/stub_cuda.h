/*
 * What the stub libcuda has beyond the driver's interface: for the stub libnccl, and for tests.
 */
#ifndef STUB_CUDA_H
#define STUB_CUDA_H

#ifdef DIST_STUB_REAL_CUDA_H
#include <cuda.h>
#else
#include "cuda_declarations.h"
#endif

/* What is alive on all devices, and how often the library was misused. */
struct dist_stub_cuda_counts {
    long contexts;
    long streams;
    long events;
    long device_allocations;
    long host_allocations;
    long registrations;
    long misuses;
};

/* Says that this is the stub, and which version it plays. */
const char *dist_stub_cuda(void);
void dist_stub_cuda_count(struct dist_stub_cuda_counts *counts);

/* Where device memory can be reached by the processor: NULL unless all bytes are in one allocation. */
void *dist_stub_cuda_alias(const void *pointer, size_t bytes);

/* The handle of the stream NULL of a device, usable in any context. */
CUstream dist_stub_cuda_default_stream(CUdevice device);

/* Makes a stream capture, as between cuStreamBeginCapture and cuStreamEndCapture, or stops that. */
CUresult dist_stub_cuda_capture(CUstream stream, int on);

/* From now on, after `calls` more calls, the named function gives that error, once. NULL takes it back. */
void dist_stub_cuda_fail(const char *function, int calls, CUresult error);

#endif
