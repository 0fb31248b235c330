/*
 * Additional functions of the stub libcuda, for the stub libnccl and for tests.
 */
#ifndef STUB_CUDA_H
#define STUB_CUDA_H

#ifdef DIST_STUB_REAL_CUDA_H
#include <cuda.h>
#else
#include "cuda_declarations.h"
#endif

/* The numbers of live objects on all devices, and of misuses. */
struct dist_stub_cuda_counts {
    long contexts;
    long streams;
    long events;
    long device_allocations;
    long host_allocations;
    long registrations;
    long misuses;
};

/* Returns a text that identifies the stub and its emulated version. */
const char *dist_stub_cuda(void);
void dist_stub_cuda_count(struct dist_stub_cuda_counts *counts);

/* Returns the address at which the processor can access device memory; NULL unless all bytes are
 * in one allocation. */
void *dist_stub_cuda_alias(const void *pointer, size_t bytes);

/* Returns the handle of a device's default stream, which is usable in any context. */
CUstream dist_stub_cuda_default_stream(CUdevice device);

/* Starts or stops the capture of a stream, like cuStreamBeginCapture and cuStreamEndCapture. */
CUresult dist_stub_cuda_capture(CUstream stream, int on);

/* After `calls` more calls, the named function returns that error once. NULL cancels the
 * request. */
void dist_stub_cuda_fail(const char *function, int calls, CUresult error);

#endif
