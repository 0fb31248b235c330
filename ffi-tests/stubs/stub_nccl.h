/*
 * What the stub libnccl has beyond NCCL's interface, for tests. The README says what the switches do.
 */
#ifndef STUB_NCCL_H
#define STUB_NCCL_H

#ifdef DIST_STUB_REAL_NCCL_H
#include <nccl.h>
#else
#include "nccl_declarations.h"
#endif

/* Says that this is the stub, and which version it plays. */
const char *dist_stub_nccl(void);

/* How often the library was misused, and how many communicators are alive. */
unsigned long dist_stub_nccl_misuses(void);
int dist_stub_nccl_alive(void);

/* How many windows this process's ranks have. */
int dist_stub_nccl_windows(void);

/* How many groups of operations were launched, of which a call outside of any is one. */
unsigned long dist_stub_nccl_groups(void);

/* From now on, in every communicator: on that rank, operation number `operation` (counted for each
 * communicator, from 0) ends with that asynchronous error. A negative rank takes it back. */
void dist_stub_nccl_async_error(int rank, long operation, ncclResult_t error);

/* The same, but the rank never begins it. Operation -1 is the meeting of the ranks. */
void dist_stub_nccl_stall(int rank, long operation);

/* From now on, after `calls` more calls, the named function gives that error, once. NULL takes it back. */
void dist_stub_nccl_fail(const char *function, int calls, ncclResult_t error);

/* Each operation takes so much longer. */
void dist_stub_nccl_slow(long us);

#endif
