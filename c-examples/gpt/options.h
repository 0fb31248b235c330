/* The command line of gpt. */
#ifndef GPT_OPTIONS_H
#define GPT_OPTIONS_H

#include <stdint.h>

typedef struct gpt_options {
    uint64_t layers, heads, width, context; /* the shape of the model */
    uint64_t batch;                         /* sequences of a step, all ranks together */
    uint64_t accumulate;                    /* parts in which a rank computes its sequences */
    uint64_t steps;
    uint64_t seed; /* of the first values and of the text */
    double learning_rate;
    double clip;       /* the largest norm of the gradients */
    uint64_t zero;     /* what the ranks share out: 0 nothing, 1 the states of the optimizer, 2 also the gradients */
    uint64_t copies;   /* ranks that have the same states */
    int survive;       /* go on when ranks die */
    uint64_t die_at;   /* the step in which a rank kills itself, from 1; 0 for none */
    uint64_t die_rank; /* and that rank */
    const char *checkpoint; /* a path, or NULL */
    uint64_t checkpoint_every;
    int resume;
    uint64_t log_every;
} gpt_options_t;

/* Reads the command line. Prints the help and ends the process (0) for --help; names a wrong
 * argument and ends it (2). */
gpt_options_t gpt_options_parse(int argc, char **argv);

#endif
