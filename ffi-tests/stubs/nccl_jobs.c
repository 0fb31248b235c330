/*
 * Jobs of the stub libnccl: calls that work in the background for nonblocking communicators, and on
 * threads of a group's end for blocking ones.
 */
#include "nccl_internal.h"

#include <stdlib.h>

void set_state(struct comm *comm, ncclResult_t result)
{
    /* An asynchronous error is not overwritten. */
    int in_progress = ncclInProgress;
    atomic_compare_exchange_strong(&comm->state, &in_progress, result);
}

ncclResult_t finish_job(struct job *job, ncclResult_t result)
{
    struct comm *child = job->child;
    int is_blocking = job->comm->is_blocking;
    if (child != NULL) {
        atomic_store(&child->parent, NULL);
        if (result != ncclSuccess && is_blocking) {
            *job->out = NULL;
            comm_discard(child);
        }
        set_state(child, result);
    }
    if (child != job->comm) {
        /* A caller that waits for a call queries the communicator on which the call was made. */
        set_state(job->comm, is_blocking && child != NULL ? ncclSuccess : result);
    }
    if (child != NULL && child != job->comm) {
        comm_unref(child, ncclSuccess);
    }
    comm_unref(job->comm, ncclSuccess);
    free(job);
    return result;
}

static void *run_job(void *argument)
{
    struct job *job = argument;
    job->result = job->run(job);
    return NULL;
}

void *run_and_finish_job(void *argument)
{
    struct job *job = argument;
    finish_job(job, job->run(job));
    return NULL;
}

/* Starts a job on a thread of the communicator, whose end joins the thread. */
ncclResult_t start_job(struct job *job)
{
    struct comm *comm = job->comm;
    comm_join_thread(comm);
    pthread_mutex_lock(&nccl.lock);
    comm->has_thread = pthread_create(&comm->thread, NULL, run_and_finish_job, job) == 0;
    int has_thread = comm->has_thread;
    pthread_mutex_unlock(&nccl.lock);
    return has_thread ? ncclInProgress : finish_job(job, fail(ncclSystemError, "there is no thread to be had"));
}

ncclResult_t worse_result(ncclResult_t a, ncclResult_t b)
{
    return a == ncclSuccess || (a == ncclInProgress && b != ncclSuccess) ? b : a;
}

/* Starts all jobs at the same time, since each may wait for another. */
ncclResult_t run_jobs(struct job *first)
{
    ncclResult_t result = ncclSuccess;
    struct job *blocking = NULL;
    for (struct job *job = first, *next; job != NULL; job = next) {
        next = job->next;
        if (!job->comm->is_blocking) {
            result = worse_result(result, start_job(job));
        } else if (pthread_create(&job->thread, NULL, run_job, job) != 0) {
            result = worse_result(result, finish_job(job, fail(ncclSystemError, "there is no thread to be had")));
        } else {
            job->next = blocking;
            blocking = job;
        }
    }
    while (blocking != NULL) {
        struct job *job = blocking;
        blocking = job->next;
        pthread_join(job->thread, NULL);
        result = worse_result(result, finish_job(job, job->result));
    }
    return result;
}
