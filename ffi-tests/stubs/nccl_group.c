/*
 * Group calls of the stub libnccl: ncclGroupEnd starts the calls that a thread made since
 * ncclGroupStart.
 *
 * A call outside of a group is a group of one call. For nonblocking communicators the work
 * continues in the background after the call has returned ncclInProgress. If the caller uses the
 * stream before the communicator reports completion, it overtakes the operation. One thread
 * launches a whole group, in the order of its communicators' first calls.
 */
#include "nccl_internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The delay between the call and the launch of a nonblocking communicator. */
#define LAUNCH_US 300

struct group {
    int depth;
    ncclResult_t error;
    struct plan *first_plan;
    struct plan *last_plan;
    struct job *first_job;
    struct job *last_job;
};

static _Thread_local struct group group;

static _Atomic unsigned long n_launched;

unsigned long dist_stub_nccl_groups(void)
{
    return atomic_load(&n_launched);
}

static pthread_key_t open_group;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void report_open_group(void *unused)
{
    (void)unused;
    refuse_call(ncclInvalidUsage, "a thread ends without ncclGroupEnd");
}

static void make_key(void)
{
    pthread_key_create(&open_group, report_open_group);
}

/* The key's destructor does not run for the thread that ends the process. */
__attribute__((destructor)) static void check_last_thread(void)
{
    if (group.depth > 0) {
        report_open_group(NULL);
    }
}

static void set_depth(int depth)
{
    pthread_once(&once, make_key);
    group.depth = depth;
    pthread_setspecific(open_group, depth > 0 ? &group : NULL);
}

int group_is_open(void)
{
    return group.depth > 0;
}

ncclResult_t group_record_error(ncclResult_t result)
{
    if (group.depth > 0 && group.error == ncclSuccess && result != ncclInProgress) {
        group.error = result;
    }
    return result;
}

ncclResult_t ncclGroupStart(void)
{
    set_depth(group.depth + 1);
    return ncclSuccess;
}

static void ref_comm(struct comm *comm)
{
    pthread_mutex_lock(&nccl.lock);
    comm->references++;
    pthread_mutex_unlock(&nccl.lock);
}

static void free_plan(struct plan *plan)
{
    while (plan->first != NULL) {
        struct operation *operation = plan->first;
        plan->first = operation->next;
        free(operation);
    }
    comm_unref(plan->comm, ncclSuccess);
    free(plan);
}

/* The stream's thread has executed the plan, or never will. */
static void finish_plan(void *argument)
{
    struct plan *plan = argument;
    run_plan(plan);
    pthread_mutex_lock(&nccl.lock);
    plan->comm->plans_finished++;
    pthread_cond_broadcast(&nccl.changed);
    pthread_mutex_unlock(&nccl.lock);
    free_plan(plan);
}

/* Lets the operations' stream wait for the other streams (at the begin), or the other streams
 * for it. */
static CUresult link_streams(struct plan *plan, int is_begin)
{
    CUresult error = plan->n_others == 0 ? CUDA_SUCCESS : cuCtxPushCurrent_v2(plan->comm->context);
    for (int i = 0; i < plan->n_others && error == CUDA_SUCCESS; i++) {
        CUstream from = is_begin ? plan->others[i] : plan->stream, to = is_begin ? plan->stream : plan->others[i];
        CUevent event;
        error = cuEventCreate(&event, 2);
        if (error == CUDA_SUCCESS) {
            error = cuEventRecord(event, from);
            error = error == CUDA_SUCCESS ? cuStreamWaitEvent(to, event, 0) : error;
            cuEventDestroy_v2(event);
        }
    }
    if (plan->n_others > 0) {
        cuCtxPopCurrent_v2(NULL);
    }
    return error;
}

static ncclResult_t launch(struct plan *plan)
{
    struct plan streams = *plan;
    CUresult error = link_streams(&streams, 1);
    /* The lock makes the order of tickets the order in the stream. */
    pthread_mutex_lock(&nccl.lock);
    plan->ticket = plan->comm->plans_launched++;
    error = error == CUDA_SUCCESS ? cuLaunchHostFunc(plan->stream, finish_plan, plan) : error;
    plan->comm->plans_launched -= error != CUDA_SUCCESS;
    pthread_mutex_unlock(&nccl.lock);
    if (error != CUDA_SUCCESS) {
        free_plan(plan);
    }
    /* From here on the stream owns the plan. */
    error = error == CUDA_SUCCESS ? link_streams(&streams, 0) : error;
    if (error != CUDA_SUCCESS) {
        return fail(ncclUnhandledCudaError, "the stream does not take operations: CUDA error %d", (int)error);
    }
    return ncclSuccess;
}

static int has_collective(const struct plan *plan)
{
    const struct operation *operation = plan->first;
    while (operation != NULL && operation->kind >= SEND) {
        operation = operation->next;
    }
    return operation != NULL;
}

/* The ranks of a communicator connect for their first collective; the launch waits until all
 * ranks have called it. */
static void connect_all(struct plan *first)
{
    for (struct plan *plan = first; plan != NULL; plan = plan->next) {
        if (has_collective(plan)) {
            meet_connect(plan->comm);
        }
    }
    for (struct plan *plan = first; plan != NULL; plan = plan->next) {
        if (has_collective(plan)) {
            meet_await_connected(plan->comm);
        }
    }
}

static ncclResult_t run_launch(struct job *job)
{
    stub_sleep_us(stub_env_number("DIST_STUB_NCCL_LAUNCH_US", LAUNCH_US));
    connect_all(job->plan);
    for (struct plan *plan = job->plan, *next; plan != NULL; plan = next) {
        struct comm *comm = plan->comm;
        next = plan->next;
        set_state(comm, launch(plan));
        pthread_mutex_lock(&nccl.lock);
        comm->is_launching = 0;
        pthread_cond_broadcast(&nccl.changed);
        pthread_mutex_unlock(&nccl.lock);
        comm_unref(comm, ncclSuccess);
    }
    return ncclSuccess;
}

ncclResult_t group_submit(struct job job)
{
    struct job *copy = malloc(sizeof *copy);
    if (copy == NULL) {
        abort();
    }
    *copy = job;
    copy->next = NULL;
    ref_comm(copy->comm);
    if (copy->child != NULL && copy->child != copy->comm) {
        ref_comm(copy->child);
    }
    int settled = ncclSuccess;
    atomic_compare_exchange_strong(&copy->comm->state, &settled, ncclInProgress);
    if (group.depth > 0) {
        if (group.last_job == NULL) {
            group.first_job = copy;
        } else {
            group.last_job->next = copy;
        }
        group.last_job = copy;
        return ncclSuccess;
    }
    return copy->comm->is_blocking ? finish_job(copy, copy->run(copy)) : start_job(copy);
}

static struct plan *find_plan(struct comm *comm, CUstream stream)
{
    struct plan *plan = group.first_plan;
    while (plan != NULL && plan->comm != comm) {
        plan = plan->next;
    }
    if (plan != NULL) {
        return plan;
    }
    plan = calloc(1, sizeof *plan);
    if (plan == NULL) {
        abort();
    }
    ref_comm(comm);
    plan->comm = comm;
    plan->stream = stream;
    if (group.last_plan == NULL) {
        group.first_plan = plan;
    } else {
        group.last_plan->next = plan;
    }
    group.last_plan = plan;
    return plan;
}

/* Marks a communicator as used in this thread's open group, unless another thread's group uses
 * it. */
static int join_group(struct comm *comm)
{
    pthread_mutex_lock(&nccl.lock);
    int is_ours = comm->group == NULL || comm->group == &group;
    if (is_ours) {
        comm->group = &group;
    }
    pthread_mutex_unlock(&nccl.lock);
    return is_ours;
}

/* Returns a number for the calling thread. The system's thread identity is no substitute, since
 * it is reused. */
static unsigned long thread_number(void)
{
    static atomic_ulong last;
    static _Thread_local unsigned long own;
    if (own == 0) {
        own = atomic_fetch_add(&last, 1) + 1;
    }
    return own;
}

/* Checks a thread that drives several ranks of a communicator: it must call their collectives
 * within one group. Returns true if the other rank, which the thread has called before, is in
 * this group too, or does not wait for this rank. */
static int may_call_alone(struct comm *comm)
{
    int is_fine = 1;
    pthread_mutex_lock(&nccl.lock);
    for (struct comm *other = nccl.first; other != NULL; other = other->next) {
        int is_ahead = other->collectives > comm->collectives && other->group != &group
                       && atomic_load(&other->wait_state) == WAIT_CONTINUES && strcmp(other->path, comm->path) == 0;
        is_fine &= !(is_ahead && other->last_caller == thread_number());
    }
    comm->collectives++;
    comm->last_caller = thread_number();
    pthread_mutex_unlock(&nccl.lock);
    return is_fine;
}

static int add_stream(struct plan *plan, CUstream stream)
{
    int is_known = plan->stream == stream;
    for (int i = 0; i < plan->n_others; i++) {
        is_known |= plan->others[i] == stream;
    }
    if (!is_known && plan->n_others == MAX_STREAMS) {
        return 0;
    }
    if (!is_known) {
        plan->others[plan->n_others++] = stream;
    }
    return 1;
}

ncclResult_t group_add(struct comm *comm, CUstream stream, struct operation operation)
{
    if (!join_group(comm)) {
        return refuse_call(ncclInvalidUsage, "a communicator is used while another thread has it in a group");
    }
    if (operation.kind < SEND && !may_call_alone(comm)) {
        return refuse_call(ncclInvalidUsage,
                      "rank %d: this thread has called a collective of another rank before, outside of this group: "
                      "each may wait for the other",
                      comm->rank);
    }
    struct plan *plan = find_plan(comm, stream);
    if (!add_stream(plan, stream)) {
        return refuse_call(ncclInvalidUsage, "%d streams for one communicator in a group, which the stub does not do",
                      MAX_STREAMS + 2);
    }
    struct operation *copy = malloc(sizeof *copy);
    if (copy == NULL) {
        abort();
    }
    *copy = operation;
    copy->next = NULL;
    if (plan->last == NULL) {
        plan->first = copy;
    } else {
        plan->last->next = copy;
    }
    plan->last = copy;
    return ncclSuccess;
}

static void leave_group(struct plan *plan)
{
    pthread_mutex_lock(&nccl.lock);
    plan->comm->group = NULL;
    pthread_mutex_unlock(&nccl.lock);
}

/* Launches on a thread of the first communicator. */
static ncclResult_t submit_launch(struct plan *first)
{
    struct job *job = calloc(1, sizeof *job);
    if (job == NULL) {
        abort();
    }
    *job = (struct job){ .run = run_launch, .comm = first->comm, .plan = first };
    comm_join_thread(first->comm);
    ref_comm(first->comm);
    for (struct plan *plan = first; plan != NULL; plan = plan->next) {
        int settled = ncclSuccess;
        ref_comm(plan->comm);
        atomic_compare_exchange_strong(&plan->comm->state, &settled, ncclInProgress);
    }
    pthread_mutex_lock(&nccl.lock);
    for (struct plan *plan = first; plan != NULL; plan = plan->next) {
        plan->comm->is_launching = 1;
    }
    struct comm *comm = first->comm;
    comm->has_thread = pthread_create(&comm->thread, NULL, run_and_finish_job, job) == 0;
    int has_thread = comm->has_thread;
    pthread_mutex_unlock(&nccl.lock);
    return has_thread ? ncclInProgress : finish_job(job, run_launch(job));
}

static ncclResult_t launch_all(struct plan *first)
{
    atomic_fetch_add(&n_launched, first != NULL);
    ncclResult_t result = ncclSuccess;
    struct plan *lazy = NULL, **last = &lazy;
    for (struct plan *plan = first, *next; plan != NULL; plan = next) {
        next = plan->next;
        leave_group(plan);
        if (plan->comm->is_blocking) {
            result = worse_result(result, launch(plan));
        } else {
            plan->next = NULL;
            *last = plan;
            last = &plan->next;
        }
    }
    return lazy == NULL ? result : worse_result(result, submit_launch(lazy));
}

static ncclResult_t discard_all(struct plan *first_plan, struct job *first_job, ncclResult_t error)
{
    for (struct plan *plan = first_plan, *next; plan != NULL; plan = next) {
        next = plan->next;
        leave_group(plan);
        free_plan(plan);
    }
    for (struct job *job = first_job, *next; job != NULL; job = next) {
        next = job->next;
        finish_job(job, error);
    }
    return error;
}

ncclResult_t ncclGroupEnd(void)
{
    if (group.depth == 0) {
        return refuse_call(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    }
    if (group.depth > 1) {
        set_depth(group.depth - 1);
        return ncclSuccess;
    }
    group_record_error(requested_failure(__func__));
    set_depth(0);
    struct group all = group;
    group = (struct group){ 0 };
    if (all.error == ncclSuccess && all.first_plan != NULL && all.first_job != NULL) {
        all.error = refuse_call(ncclInvalidUsage, "a group of both operations and communicators");
    }
    if (all.error != ncclSuccess) {
        return discard_all(all.first_plan, all.first_job, all.error);
    }
    return all.first_job != NULL ? run_jobs(all.first_job) : launch_all(all.first_plan);
}
