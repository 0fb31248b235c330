/*
 * What every example does with a failed call: say what happened and on which rank, and end the
 * process with status 3.
 *
 * Ending the process is the right reaction for a training job. The other ranks learn of it at once
 * (their calls return DIST_ERR_PEER_FAILED), and the launcher reports the first rank that failed.
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
    /* The message first, which begins with the function's name: asking for the rank is a call
     * too, and a call that fails replaces the message. */
    fprintf(stderr, "%s: %s", dist_status_string(status), dist_last_error());
    fprintf(stderr, " (rank %d)\n", (int)dist_get_rank(dist_world()));
    exit(3);
}

#endif
