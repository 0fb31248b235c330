/*
 * What every example does with a failed call: say which rank, which call and why, and end the process with status 3.
 *
 * Ending the process is the right reaction for a training job. The other ranks learn of it at once (their calls return
 * DIST_ERR_PEER_FAILED), and the launcher reports the first rank that failed.
 */
#ifndef CHECK_H
#define CHECK_H

#include <dist.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call) check((call), #call)

static inline void check(dist_status_t status, const char *call)
{
    if (status == DIST_OK) {
        return;
    }
    /* The message is printed first: asking for the rank is a call too, and the next failing call replaces the message. */
    fprintf(stderr, "%s: %s: %s", call, dist_status_string(status), dist_last_error());
    fprintf(stderr, " (rank %d)\n", (int)dist_get_rank(NULL));
    exit(3);
}

#endif
