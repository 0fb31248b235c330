/*
 * The error handling of the examples: if a call failed, check() prints the error and the rank, and
 * ends the process with status 3.
 *
 * This is the right reaction for a training job. The calls of the other ranks immediately return
 * DIST_ERR_PEER_FAILED, and the launcher reports the first rank that failed.
 */
#ifndef CHECK_H
#define CHECK_H

#include <dist.h>
#include <stdio.h>
#include <stdlib.h>

static inline void check(dist_status_t status)
{
    if (status == DIST_OK) {
        return;
    }
    /* The message, which begins with the function's name, comes first: dist_get_rank is a call too,
     * and a failing call replaces the message. */
    fprintf(stderr, "%s: %s", dist_status_string(status), dist_last_error());
    fprintf(stderr, " (rank %d)\n", (int)dist_get_rank(dist_world()));
    exit(3);
}

#endif
