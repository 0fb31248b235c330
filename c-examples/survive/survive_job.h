/* The job of the survive example: which rank dies in which step, and a small launcher that keeps
 * the surviving ranks. */
#ifndef SURVIVE_JOB_H
#define SURVIVE_JOB_H

#include <stdint.h>

#define SURVIVE_MAX_KILLS 64

/* A rank of the world that kills itself in a step, counted from 1. */
typedef struct survive_kill {
    int rank;
    int64_t step;
} survive_kill_t;

typedef struct survive_job {
    int ranks;
    int n_kills;
    survive_kill_t kills[SURVIVE_MAX_KILLS];
    char **argv; /* the whole command line, for the ranks */
} survive_job_t;

/* Removes --ranks and --kill from the command line. On a wrong argument it prints the argument
 * and exits with status 2. */
survive_job_t survive_job_parse(int *argc, char **argv);

/* Returns true if a launcher has started this process as a rank. */
int survive_job_is_rank(void);

/* Returns true if this rank must die in this step. */
int survive_job_kills_rank(const survive_job_t *job, int rank, int64_t train_step);

/*
 * Starts the ranks and their store, and waits for all ranks. Returns the exit status: 0 if all
 * ranks without a --kill option have succeeded.
 */
int survive_job_start(const survive_job_t *job);

#endif
