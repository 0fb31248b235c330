/* Continues the training after ranks have died. */
#ifndef GPT_RECOVER_H
#define GPT_RECOVER_H

#include "trainer.h"

/*
 * After a call on the group that returned `status`: the ranks that are left form a new group, and
 * the reducer goes on in it. Then the caller repeats the call. Without --survive, and for a
 * failure that is not the loss of a rank, the process ends.
 */
void recover(trainer_t *trainer, dist_status_t status);

/* Returns 1 for DIST_OK. With --survive, returns 0 if a rank was lost. For any other failure the
 * process ends. */
int is_done(const trainer_t *trainer, dist_status_t status);

/*
 * Returns 1 if all ranks are at the same place between two steps.
 *
 * When a rank dies, another one may have finished a step more than this rank. This rank catches up
 * without an operation of its own, so it must not call operations that the other one has behind
 * it.
 */
int is_in_step_with_others(const trainer_t *trainer);

#endif
