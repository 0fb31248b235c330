/*
 * Messages that their receive has refused: the wait for the error that the sender gets.
 */
#ifndef REFUSALS_H
#define REFUSALS_H

#include "check.h"

#define UNUSED_TAG 50
#define MOST_RECEIVES 500

/* Waits until a message call returns the error of a refused message of this rank, `rank`: the report
 * of the receiver takes some time. The calls receive from this rank itself, with a short deadline. */
static void await_refusal(dist_group_t *group, int rank)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    dist_status_t status = DIST_ERR_TIMEOUT;
    int i, x = 0;
    options.timeout_ms = 10;
    for (i = 0; i < MOST_RECEIVES && status == DIST_ERR_TIMEOUT; i++) {
        status = dist_recv(group, &x, 1, DIST_I32, rank, UNUSED_TAG, NULL, &options, NULL);
    }
    CHECK_REFUSED(status, DIST_ERR_MISMATCH, "refused the earlier message");
}

#endif
