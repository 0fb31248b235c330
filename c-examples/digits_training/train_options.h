/* The command line of train_digits. */
#ifndef TRAIN_OPTIONS_H
#define TRAIN_OPTIONS_H

#include <stdint.h>

typedef struct train_options {
    const char *data;             /* path of digits.csv */
    uint32_t epochs;              /* passes over the training rows */
    uint32_t batch;               /* rows of a global batch, all ranks together */
    uint32_t hidden;              /* hidden units */
    float learning_rate;
    uint64_t seed;                /* of the initial weights and of the order of the rows */
    int sync;                     /* 0: leave out the exchange of gradients */
    uint32_t sleep_ms_per_epoch;  /* slows training down, for failure tests */
    const char *backend;          /* by its name; NULL for the default */
} train_options_t;

/* Reads the command line. Prints help and ends the process (0) for --help; names a wrong
 * argument and ends it (2). */
train_options_t train_options_parse(int argc, char **argv);

#endif
