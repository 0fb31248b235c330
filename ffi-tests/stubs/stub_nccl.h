/*
 * Additional functions of the stub libnccl for tests. The README describes the switches.
 */
#ifndef STUB_NCCL_H
#define STUB_NCCL_H

#ifdef DIST_STUB_REAL_NCCL_H
#include <nccl.h>
#else
#include "nccl_declarations.h"
#endif

/* Returns a text that identifies the stub and its emulated version. */
const char *dist_stub_nccl(void);

/* Return the number of misuses, and of live communicators. */
unsigned long dist_stub_nccl_misuses(void);
int dist_stub_nccl_alive(void);

/* Returns the number of windows of this process's ranks. */
int dist_stub_nccl_windows(void);

/* Returns the number of launched groups of operations; a call outside of a group counts as one. */
unsigned long dist_stub_nccl_groups(void);

/* Requests an asynchronous error: in every communicator, operation number `operation` of that
 * rank (counted per communicator from 0) ends with the error. A negative rank cancels the
 * request. */
void dist_stub_nccl_async_error(int rank, long operation, ncclResult_t error);

/* As dist_stub_nccl_async_error, but the rank never starts the operation. Operation -1 is the
 * meeting of the ranks. */
void dist_stub_nccl_stall(int rank, long operation);

/* After `calls` more calls, the named function returns that error once. NULL cancels the
 * request. */
void dist_stub_nccl_fail(const char *function, int calls, ncclResult_t error);

/* Adds a delay to each operation. */
void dist_stub_nccl_slow(long us);

#endif
