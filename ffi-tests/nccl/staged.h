/*
 * Helpers for the tests of groups that stage device memory through host memory.
 */
#ifndef STAGED_H
#define STAGED_H

#include "ranks.h"

#include <stdatomic.h>
#include <time.h>

/* The minimum size of a piece. */
#define CHUNK 4096
#define OPTIONS "staging.chunk_bytes=4096"
#define MAX_BYTES 40000

static inline long now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static inline unsigned char *bytes_at(void *device, size_t length)
{
    return dist_stub_cuda_alias(device, length);
}

/* A task that delays a stream until the test releases it. */
struct delay {
    atomic_int may_continue;
    atomic_int has_started;
    unsigned char *fill;
    unsigned char value;
    size_t length;
};

static inline void hold_stream(void *argument)
{
    struct delay *delay = argument;
    atomic_store(&delay->has_started, 1);
    long limit = now_ms() + LIMIT_MS;
    while (!atomic_load(&delay->may_continue) && now_ms() < limit) {
        struct timespec nap = { 0, 200000 };
        nanosleep(&nap, NULL);
    }
    if (delay->fill != NULL) {
        memset(delay->fill, delay->value, delay->length);
    }
}

#endif
