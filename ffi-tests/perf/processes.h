/*
 * Processes of a benchmark. They are forked while the parent has one thread, pinned to a core,
 * and released at the same time. They die when their parent or one of them fails. The including
 * program sets `leader` and defines _GNU_SOURCE.
 */
#ifndef PROCESSES_H
#define PROCESSES_H

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The process that starts all others, after it has done so. */
static pid_t leader;

/* Terminates all processes: children die with their parent. */
static void fail(const char *message)
{
    fprintf(stderr, "store_bench: %s\n", message);
    if (leader != 0 && getpid() != leader) {
        kill(leader, SIGKILL);
    }
    _exit(1);
}

static void require(int is_true, const char *message)
{
    if (!is_true) {
        fail(message);
    }
}

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void pin_to_core(int core)
{
    cpu_set_t cores;
    if (core >= 0) {
        CPU_ZERO(&cores);
        CPU_SET(core, &cores);
        require(sched_setaffinity(0, sizeof(cores), &cores) == 0, "sched_setaffinity failed");
    }
}

/* Returns the n-th core that this process may use. */
static int nth_allowed_core(int n)
{
    cpu_set_t cores;
    int core;
    require(sched_getaffinity(0, sizeof(cores), &cores) == 0, "sched_getaffinity failed");
    for (core = 0; core < CPU_SETSIZE; core++) {
        if (CPU_ISSET(core, &cores) && n-- == 0) {
            return core;
        }
    }
    fail("there are not enough cores");
    return -1;
}

/* A fork copies only the calling thread; locks of other threads would stay locked in the child. */
static void require_one_thread(void)
{
    DIR *tasks = opendir("/proc/self/task");
    const struct dirent *task;
    int threads = 0;
    require(tasks != NULL, "/proc/self/task cannot be read");
    while ((task = readdir(tasks)) != NULL) {
        threads += task->d_name[0] != '.';
    }
    closedir(tasks);
    require(threads == 1, "there are threads before the fork");
}

/* Two pipes: children report that they are ready, and wait for a common release. */
struct gate {
    int ready[2];
    int release[2];
};

static struct gate gate_new(void)
{
    struct gate gate;
    require(pipe(gate.ready) == 0 && pipe(gate.release) == 0, "pipe failed");
    return gate;
}

/* Called in a child: only the parent keeps the end whose close is the signal. */
static void gate_enter(struct gate *gate)
{
    close(gate->release[1]);
    close(gate->ready[0]);
}

static void gate_pass(struct gate *gate)
{
    char byte = 0;
    require(write(gate->ready[1], &byte, 1) == 1, "the parent has gone");
    require(read(gate->release[0], &byte, 1) == 0, "the signal is not the pipe's end");
}

/* Called in the parent: releases all children when they are ready. Returns the time of the
 * release. */
static int64_t gate_open(struct gate *gate, int children)
{
    char byte;
    int64_t start;
    int i;
    close(gate->release[0]);
    close(gate->ready[1]);
    for (i = 0; i < children; i++) {
        require(read(gate->ready[0], &byte, 1) == 1, "a client has died");
    }
    start = now_ns();
    close(gate->release[1]);
    close(gate->ready[0]);
    return start;
}

/* Forks a child that dies with its parent. Returns true in the child. */
static int fork_child(pid_t *child, int core)
{
    pid_t parent = getpid();
    require_one_thread();
    fflush(stdout);
    *child = fork();
    require(*child >= 0, "fork failed");
    if (*child != 0) {
        return 0;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    require(getppid() == parent, "the parent has gone");
    pin_to_core(core);
    return 1;
}

static void require_success(pid_t child)
{
    int status = 0;
    require(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0,
            "a child has failed");
}

#endif
