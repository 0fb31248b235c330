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
int call_succeeded(const trainer_t *trainer, dist_status_t status);

/*
 * Returns 1 if all ranks have finished the same number of steps.
 *
 * When a rank dies, another rank may have finished one step more than this rank. This rank then
 * repeats the step without new operations. It must not call operations that the other rank has
 * already completed.
 */
int is_at_same_step(const trainer_t *trainer);

#endif
