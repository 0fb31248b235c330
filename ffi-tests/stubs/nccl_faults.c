/*
 * The version and the errors of the stub libnccl, and the faults that it injects on request.
 */
#include "nccl_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The number of the ranks' meeting, in place of an operation's number, for a stall. */
#define MEETING (-1)

static struct {
    pthread_mutex_t lock;
    /* The process that has read the environment. */
    pid_t reader_pid;
    long error_rank;
    long error_operation;
    long error;
    long stall_rank;
    long stall_operation;
    long slow_us;
    struct stub_fault call;
    char last_error[512];
} faults = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Takes the lock, and reads the environment once per process, since a fork may change it. */
static void lock_faults(void)
{
    pthread_mutex_lock(&faults.lock);
    if (faults.reader_pid == getpid()) {
        return;
    }
    faults.reader_pid = getpid();
    faults.error_rank = faults.stall_rank = -1;
    long numbers[3];
    if (stub_parse_numbers(getenv("DIST_STUB_NCCL_ASYNC_ERROR"), ':', numbers, 3) == 3) {
        faults.error_rank = numbers[0];
        faults.error_operation = numbers[1];
        faults.error = numbers[2];
    }
    if (stub_parse_numbers(getenv("DIST_STUB_NCCL_STALL"), ':', numbers, 2) == 2) {
        faults.stall_rank = numbers[0];
        faults.stall_operation = numbers[1];
    }
    faults.slow_us = stub_env_number("DIST_STUB_NCCL_SLOW_US", 0);
    stub_read_fault(&faults.call, "DIST_STUB_NCCL_FAIL");
}

static void unlock_faults(void)
{
    pthread_mutex_unlock(&faults.lock);
}

int stub_version(void)
{
    return (int)stub_env_number("DIST_STUB_NCCL_VERSION", STUB_NCCL_VERSION);
}

ncclResult_t ncclGetVersion(int *version)
{
    if (version == NULL) {
        return refuse_call(ncclInvalidArgument, "ncclGetVersion(NULL)");
    }
    *version = stub_version();
    return ncclSuccess;
}

const char *dist_stub_nccl(void)
{
    return "stub libnccl over host memory";
}

const char *ncclGetErrorString(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess:
        return "stub: no error";
    case ncclUnhandledCudaError:
        return "stub: a CUDA call failed";
    case ncclSystemError:
        return "stub: a system call failed";
    case ncclInternalError:
        return "stub: internal error";
    case ncclInvalidArgument:
        return "stub: invalid argument";
    case ncclInvalidUsage:
        return "stub: invalid usage";
    case ncclRemoteError:
        return "stub: another rank failed";
    case ncclInProgress:
        return "stub: in progress";
    default:
        return "stub: no such result";
    }
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    static _Thread_local char copy[sizeof faults.last_error];
    lock_faults();
    memcpy(copy, faults.last_error, sizeof copy);
    unlock_faults();
    return copy;
}

static void save_error_text(char *text, size_t bytes, const char *format, va_list arguments)
{
    vsnprintf(text, bytes, format, arguments);
    lock_faults();
    snprintf(faults.last_error, sizeof faults.last_error, "stub: %s", text);
    unlock_faults();
}

ncclResult_t fail(ncclResult_t error, const char *format, ...)
{
    char text[480];
    va_list arguments;
    va_start(arguments, format);
    save_error_text(text, sizeof text, format, arguments);
    va_end(arguments);
    return error;
}

ncclResult_t refuse_call(ncclResult_t error, const char *format, ...)
{
    char text[480];
    va_list arguments;
    va_start(arguments, format);
    save_error_text(text, sizeof text, format, arguments);
    va_end(arguments);
    stub_misuse("nccl: %s", text);
    return error;
}

unsigned long dist_stub_nccl_misuses(void)
{
    return stub_misuses();
}

int dist_stub_nccl_alive(void)
{
    return stub_handle_count(HANDLE_COMM);
}

int dist_stub_nccl_windows(void)
{
    return stub_handle_count(HANDLE_WINDOW);
}

void dist_stub_nccl_async_error(int rank, long operation, ncclResult_t error)
{
    lock_faults();
    faults.error_rank = rank;
    faults.error_operation = operation;
    faults.error = error;
    unlock_faults();
}

void dist_stub_nccl_stall(int rank, long operation)
{
    lock_faults();
    faults.stall_rank = rank;
    faults.stall_operation = operation;
    unlock_faults();
}

void dist_stub_nccl_fail(const char *function, int calls, ncclResult_t error)
{
    lock_faults();
    stub_set_fault(&faults.call, function, calls, (int)error);
    unlock_faults();
}

ncclResult_t requested_failure(const char *function)
{
    lock_faults();
    ncclResult_t error = stub_fails_now(&faults.call, function) ? (ncclResult_t)faults.call.error : ncclSuccess;
    unlock_faults();
    return error == ncclSuccess ? error : fail(error, "%s was asked to fail", function);
}

void dist_stub_nccl_slow(long us)
{
    lock_faults();
    faults.slow_us = us;
    unlock_faults();
}

enum fault next_fault(struct comm *comm, ncclResult_t *error)
{
    long operation = comm->operations++;
    enum fault fault = FAULT_NONE;
    lock_faults();
    if (faults.error_rank == comm->rank && faults.error_operation == operation) {
        *error = (ncclResult_t)faults.error;
        fault = FAULT_ERROR;
    } else if (faults.stall_rank == comm->rank && faults.stall_operation == operation) {
        fault = FAULT_STALL;
    }
    unlock_faults();
    return fault;
}

int is_stalled_at_meeting(int rank)
{
    lock_faults();
    int stalls = faults.stall_rank == rank && faults.stall_operation == MEETING;
    unlock_faults();
    return stalls;
}

void slow_down(void)
{
    lock_faults();
    long us = faults.slow_us;
    unlock_faults();
    stub_sleep_us(us);
}

int has_hang_on_mismatch(void)
{
    const char *text = getenv("DIST_STUB_NCCL_MISMATCH");
    return text == NULL || strcmp(text, "error") != 0;
}
