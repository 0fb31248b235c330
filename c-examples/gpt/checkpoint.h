/*
 * A checkpoint in a file: how far the training is, the parameters, and the states of the
 * optimizer.
 *
 * A file is replaced in one step, so that a crash leaves the old one or the new one. Numbers have
 * the byte order of the host. This file knows nothing about libdist.
 */
#ifndef GPT_CHECKPOINT_H
#define GPT_CHECKPOINT_H

#include "options.h"

#include <stddef.h>
#include <stdint.h>

/* Values of `state_format`: the format of the optimizer states. */
enum {
    STATES_WHOLE,  /* two numbers for each parameter, from an optimizer that updates all of them */
    STATES_SHARDED /* the byte string of dist_shard_save */
};

typedef struct checkpoint {
    uint64_t layers, heads, width, context; /* the options that the training keeps */
    uint64_t batch, seed;
    uint64_t finished_steps;
    uint64_t updates; /* of the parameters */
    uint64_t state_format;
    uint64_t state_bytes;
} checkpoint_t;

/* Returns a checkpoint of a training with these options before its first step. */
checkpoint_t checkpoint_for_options(const gpt_options_t *options);

/* Replaces the file. If that fails the process ends with a message. */
void checkpoint_write(const char *path, const checkpoint_t *checkpoint, const float *values, size_t count, const void *states);

/*
 * Reads the file, `count` values, and `*states`, which the caller frees. Returns 0 if there is no
 * file. If the checkpoint is of another training than `*checkpoint`, or has states of another
 * form, the process ends with a message.
 */
int checkpoint_read(const char *path, checkpoint_t *checkpoint, float *values, size_t count, void **states);

#endif
