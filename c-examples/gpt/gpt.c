/*
 * Trains a transformer with the shape of GPT-2, data parallel: every rank holds the whole model and computes the gradients of
 * its own sequences, and a reducer averages them.
 *
 *     distrun --nproc-per-node 4 ./gpt
 *     distrun --nproc-per-node 4 ./gpt --layers 4 --width 128 --context 64 --steps 500 --checkpoint gpt.ckpt --resume
 *     distrun --nproc-per-node 4 --on-failure continue ./gpt --survive --die-at 20 --die-rank 1
 *
 * These files call libdist; read them in this order:
 *
 *   trainer.c             A step. Gradients are reduced while the backward pass computes the next ones.
 *   optimizer.c           The update of the parameters.
 *   recover.c             What the ranks do when one of them dies.
 *   restart.c             Checkpoints of the training.
 *
 * The other files are plain C:
 *
 *   model.c               The parameters: tensors with the names of GPT-2.
 *   pass.c                The memory of a pass through the model.
 *   forward.c             The forward pass.
 *   backward.c            The backward pass.
 *   layers.c              The arithmetic of the layers.
 *   attention.c           The same for attention.
 *   adam.c                AdamW.
 *   checkpoint.c          The file of a checkpoint.
 *   text.c                The text: sentences from a small grammar.
 *   options.c             The command line.
 *
 * The sequences of a step depend on the seed and the number of the step only, and the ranks share them. So every number of
 * ranks computes the same losses, except for rounding.
 */
#include "../common/check.h"
#include "options.h"
#include "trainer.h"

int main(int argc, char **argv)
{
    const gpt_options_t options = gpt_options_parse(argc, argv);
    trainer_t trainer;
    check(dist_init(NULL));
    trainer_create(&trainer, dist_world(), &options);
    trainer_run(&trainer);
    const int is_identical = trainer_report(&trainer);
    trainer_release(&trainer);
    check(dist_finalize());
    return is_identical ? 0 : 1;
}
