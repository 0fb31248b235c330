/*
 * Ranks that are forks of the test, and filters that make the kernel refuse system calls.
 *
 * The parent forks the ranks before any of them uses the library, and never uses the library
 * itself. Define _GNU_SOURCE before the first include.
 */
#ifndef FORKED_RANKS_H
#define FORKED_RANKS_H

#include "check.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Memory that the forks share: the port of the store, and the process ids of the ranks. */
struct shared_page {
    int port;
    int pids[64];
};

static inline void nap_ms(int ms)
{
    struct timespec moment = { ms / 1000, ms % 1000 * 1000000L };
    nanosleep(&moment, NULL);
}

/* Makes the kernel fail a system call with this error from now on; 0 if it supports no filters.
 * The filter holds for all threads of the process. */
static inline int fail_syscall(long call, int error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
        && syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

/* Makes the kernel refuse a system call whose first argument is `value`, as fail_syscall. */
static inline int refuse_syscall_on(long call, int value)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)value, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
        && syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

/* Returns true if the kernel supports filters; a child tests this, since a filter is permanent. */
static inline int can_filter_syscalls(void)
{
    int outcome = 0;
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        _exit(!fail_syscall(SYS_process_vm_readv, EPERM));
    }
    return waitpid(child, &outcome, 0) == child && WIFEXITED(outcome) && WEXITSTATUS(outcome) == 0;
}

/* Opens the store of all ranks; the first rank serves it and publishes its port. */
static inline dist_store_t *open_shared_store(struct shared_page *page, int rank)
{
    dist_store_tcp_options_t where = DIST_STORE_TCP_OPTIONS_INIT;
    dist_store_t *store = NULL;
    int round;
    where.host = "127.0.0.1";
    where.is_server = rank == 0;
    where.timeout_ms = LIMIT_MS;
    for (round = 0; rank != 0 && __atomic_load_n(&page->port, __ATOMIC_ACQUIRE) == 0; round++) {
        REQUIRE(round < LIMIT_MS);
        nap_ms(1);
    }
    where.port = __atomic_load_n(&page->port, __ATOMIC_ACQUIRE);
    REQUIRE_OK(dist_store_tcp_create(&where, &store));
    if (rank == 0) {
        __atomic_store_n(&page->port, (int)dist_store_port(store), __ATOMIC_RELEASE);
    }
    return store;
}

/* Runs a function on forks, and expects that all succeed. */
static inline void run_forks(int count, int (*body)(struct shared_page *page, int rank, void *arg), void *arg)
{
    struct shared_page *page =
        mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t children[64];
    int rank;
    REQUIRE(page != MAP_FAILED);
    fflush(stdout);
    for (rank = 0; rank < count; rank++) {
        children[rank] = fork();
        REQUIRE(children[rank] >= 0);
        if (children[rank] == 0) {
            int outcome;
            __atomic_store_n(&page->pids[rank], (int)getpid(), __ATOMIC_RELEASE);
            outcome = body(page, rank, arg);
            fflush(stdout);
            _exit(outcome);
        }
    }
    for (rank = 0; rank < count; rank++) {
        int outcome = 0;
        CHECK(waitpid(children[rank], &outcome, 0) == children[rank]);
        CHECK(WIFEXITED(outcome) && WEXITSTATUS(outcome) == 0);
    }
    munmap(page, sizeof *page);
}

#endif
