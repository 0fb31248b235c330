/* The job around the ranks of survive: who is to die when, and a small launcher that lets the rest live. */
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
    int kills;
    survive_kill_t kill[SURVIVE_MAX_KILLS];
    char **argv; /* the whole command line, for the ranks */
} survive_job_t;

/* Takes --ranks and --kill out of the command line. Names a wrong argument and ends the process (2). */
survive_job_t survive_job_parse(int *argc, char **argv);

/* Whether a launcher has made this process a rank. */
int survive_job_is_rank(void);

/* Whether this rank is to die in this step. */
int survive_job_kills(const survive_job_t *job, int rank, int64_t step);

/*
 * Starts the ranks, with the store that they meet in, and waits for all of them. Returns the exit status: 0 where all whom
 * nobody was to kill have ended well.
 */
int survive_job_start(const survive_job_t *job);

#endif
