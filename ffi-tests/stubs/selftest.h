/*
 * Shared parts of the stubs' self-test: checks, and ranks that are processes or threads.
 */
#ifndef SELFTEST_H
#define SELFTEST_H

#include "stub_cuda.h"
#include "stub_nccl.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The plain names of cuda.h. */
#ifndef DIST_STUB_REAL_CUDA_H
#define cuMemAlloc cuMemAlloc_v2
#define cuMemFree cuMemFree_v2
#define cuMemcpyHtoDAsync cuMemcpyHtoDAsync_v2
#define cuMemcpyDtoHAsync cuMemcpyDtoHAsync_v2
#define cuMemcpyDtoDAsync cuMemcpyDtoDAsync_v2
#define cuMemHostRegister cuMemHostRegister_v2
#define cuStreamDestroy cuStreamDestroy_v2
#define cuEventDestroy cuEventDestroy_v2
#define cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2
#define cuCtxPushCurrent cuCtxPushCurrent_v2
#define cuCtxPopCurrent cuCtxPopCurrent_v2
#endif

/* A rank of a test with its own device. */
struct rank {
    int rank;
    int n;
    ncclUniqueId id;
    /* Further ids, for tests with several communicators. */
    ncclUniqueId second;
    CUcontext context;
    CUstream stream;
    ncclComm_t comm;
};

void check_that(int is_true, const char *text, const char *file, int line);
void check_result(int actual, int expected, const char *call, const char *file, int line);
/* Checks that the call returned this error, and that the log reports misuse with this word. */
void check_misuse(int actual, int expected, const char *word, const char *call, const char *file, int line);
#define CHECK(condition) check_that((condition) != 0, #condition, __FILE__, __LINE__)
#define CHECK_RESULT(call, expected) check_result((int)(call), (int)(expected), #call, __FILE__, __LINE__)
#define CHECK_OK(call) CHECK_RESULT(call, 0)
#define CHECK_MISUSE(call, expected, word) check_misuse((int)(call), (int)(expected), word, #call, __FILE__, __LINE__)

/* Checks for misuse that a test expects and that no call returns. */
void expect_misuses(unsigned long count, const char *word);

/* Waits until all ranks of the test have called it. */
void barrier(void);

/* Runs a test with `n` ranks, as processes or threads; each rank's device is its number. */
typedef void (*test_fn)(struct rank *rank);
void run_processes(const char *name, int n, test_fn test);
void run_threads(const char *name, int n, test_fn test);

/* Creates and destroys a context and a stream on a device. */
void start_device(struct rank *rank, int device);
void finish_device(struct rank *rank);
/* Creates and destroys a context, a stream and a communicator. */
void start_rank(struct rank *rank);
void finish_rank(struct rank *rank);

CUdeviceptr device_memory(size_t bytes);
void upload(struct rank *rank, CUdeviceptr to, const void *from, size_t bytes);
void download(struct rank *rank, void *to, CUdeviceptr from, size_t bytes);
#define POINTER(address) ((void *)(uintptr_t)(address))

/* Waits until a call on a nonblocking communicator completes, and returns its result. */
ncclResult_t await(ncclComm_t comm);
/* Waits until a communicator has failed, and returns its error. */
ncclResult_t await_error(ncclComm_t comm);
ncclConfig_t new_config(void);
ncclConfig_t nonblocking_config(void);
/* Checks that a stream does not complete within a short time. */
void check_hangs(CUstream stream);

void test_cuda(void);
void test_operations(void);
void test_communicators(void);
void test_faults(void);
void test_misuse(void);

#endif
