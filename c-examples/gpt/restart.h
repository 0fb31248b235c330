/* Saves the training in a checkpoint, and continues from one on any number of ranks. */
#ifndef GPT_RESTART_H
#define GPT_RESTART_H

#include "checkpoint.h"
#include "trainer.h"

/* Rank 0 writes the checkpoint. All ranks call it. If a rank dies, the old checkpoint stays. */
void restart_save(trainer_t *trainer);

/* Rank 0 reads the parameters before the other ranks get them, and keeps the states for
 * restart_load_states. */
void restart_load_parameters(trainer_t *trainer, checkpoint_t *checkpoint, void **states);

/* All ranks get the progress of the checkpoint and their states. Frees `states`. */
void restart_load_states(trainer_t *trainer, checkpoint_t *checkpoint, void *states);

#endif
