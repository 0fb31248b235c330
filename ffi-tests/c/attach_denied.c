/*
 * Ranks of one host whose system forbids reads (process_vm_readv) or writes (process_vm_writev)
 * of each other's memory, as in many containers. Here a system call filter refuses the call on
 * both ranks or on one. The ranks detect this during the rendezvous and work without it, and
 * every result is right. Without a filter they use both calls, so that the test sees the
 * difference.
 *
 * The parent forks the ranks before any of them uses the library, and never uses the library
 * itself.
 */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS 2
#define COUNT (1 << 20) /* floats: 4 MiB, large enough for cross-memory attach */

/* Returns true if this process may read its own memory with the system call. */
static int can_read_own_memory(void)
{
    char from = 'x', to = 0;
    struct iovec remote = { &from, 1 }, local = { &to, 1 };
    return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1;
}

/* Returns true if this process may write its own memory with the system call. */
static int can_write_own_memory(void)
{
    char from = 'x', to = 0;
    struct iovec local = { &from, 1 }, remote = { &to, 1 };
    return process_vm_writev(getpid(), &local, 1, &remote, 1, 0) == 1;
}

/* Makes the kernel refuse a system call from now on; returns 0 if it supports no filters. */
static int deny_syscall(long call)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* Opens the store of all ranks; the first rank serves it and publishes its port. */
static dist_store_t *open_shared_store(int *port, int rank)
{
    dist_store_tcp_options_t where = DIST_STORE_TCP_OPTIONS_INIT;
    where.host = "127.0.0.1";
    where.is_server = rank == 0;
    where.timeout_ms = LIMIT_MS;
    for (int round = 0; rank != 0 && __atomic_load_n(port, __ATOMIC_ACQUIRE) == 0; round++) {
        struct timespec moment = { 0, 1000000 };
        REQUIRE(round < LIMIT_MS);
        nanosleep(&moment, NULL);
    }
    where.port = __atomic_load_n(port, __ATOMIC_ACQUIRE);
    dist_store_t *store = NULL;
    REQUIRE_OK(dist_store_tcp_create(&where, &store));
    if (rank == 0) {
        __atomic_store_n(port, (int)dist_store_port(store), __ATOMIC_RELEASE);
    }
    return store;
}

static int description_contains(const dist_group_t *group, const char *text)
{
    dist_blob_t *json = NULL;
    const void *data = NULL;
    size_t len = 0;
    REQUIRE_OK(dist_group_describe(group, &json));
    REQUIRE_OK(dist_blob_data(json, 0, &data, &len));
    int found = memmem(data, len, text, strlen(text)) != NULL;
    CHECK_OK(dist_blob_release(json));
    return found;
}

static void fill(float *vector, size_t count, float value)
{
    for (size_t i = 0; i < count; i++) {
        vector[i] = value;
    }
}

static int all_equal_to(const float *vector, size_t count, float value)
{
    for (size_t i = 0; i < count; i++) {
        if (vector[i] != value) {
            return 0;
        }
    }
    return 1;
}

/* Operations that would use cross-memory attach: collectives that read peers' inputs or write to
 * peers' results, and a message. */
static void run_operations(dist_group_t *group, int rank)
{
    float *send = malloc(COUNT * sizeof *send);
    float *recv = malloc(RANKS * COUNT * sizeof *recv);
    REQUIRE(send != NULL && recv != NULL);
    fill(send, COUNT, (float)(rank + 1));
    CHECK_OK(dist_all_reduce(group, send, recv, COUNT, DIST_F32, DIST_SUM, NULL, NULL));
    CHECK(all_equal_to(recv, COUNT, 3.0F));
    CHECK_OK(dist_all_gather(group, send, recv, COUNT, DIST_F32, NULL, NULL));
    CHECK(all_equal_to(recv, COUNT, 1.0F) && all_equal_to(recv + COUNT, COUNT, 2.0F));
    /* Blocks of 256 KiB: the receivers read longer blocks directly. */
    CHECK_OK(dist_all_to_all(group, send, recv, COUNT / 16, DIST_F32, NULL, NULL));
    CHECK(all_equal_to(recv, COUNT / 16, 1.0F) && all_equal_to(recv + COUNT / 16, COUNT / 16, 2.0F));
    if (rank == 0) {
        CHECK_OK(dist_send(group, send, COUNT, DIST_F32, 1, 7, NULL, NULL));
    } else {
        CHECK_OK(dist_recv(group, recv, COUNT, DIST_F32, 0, 7, NULL, NULL, NULL));
        CHECK(all_equal_to(recv, COUNT, 1.0F));
    }
    free(send);
    free(recv);
}

/* The access that ranks detect during the rendezvous. */
struct cma_access {
    int can_read, can_write;
};

static int run_rank(int *port, int rank, long denied, struct cma_access expected)
{
    if (denied != 0) {
        REQUIRE(deny_syscall(denied));
        CHECK(!(denied == SYS_process_vm_readv ? can_read_own_memory() : can_write_own_memory()) && errno == EPERM);
    }
    dist_store_t *store = open_shared_store(port, rank);
    dist_group_t *group = NULL;
    REQUIRE_OK(join_group(store, "all", rank, RANKS, &group));
    CHECK(description_contains(group, expected.can_read ? "\"cma_read\":true" : "\"cma_read\":false"));
    CHECK(description_contains(group, expected.can_write ? "\"cma_write\":true" : "\"cma_write\":false"));
    run_operations(group, rank);
    CHECK_OK(dist_group_release(group));
    CHECK_OK(dist_store_release(store));
    return check_report();
}

/* `denied` has a bit for each rank whose call is denied. */
static void run_job(int denied, long call, struct cma_access expected)
{
    int *port = mmap(NULL, sizeof *port, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(port != MAP_FAILED);
    fflush(stdout);
    pid_t ranks[RANKS];
    for (int rank = 0; rank < RANKS; rank++) {
        ranks[rank] = fork();
        REQUIRE(ranks[rank] >= 0);
        if (ranks[rank] == 0) {
            int outcome = run_rank(port, rank, denied >> rank & 1 ? call : 0, expected);
            fflush(stdout);
            _exit(outcome);
        }
    }
    for (int rank = 0; rank < RANKS; rank++) {
        int outcome = 0;
        CHECK(waitpid(ranks[rank], &outcome, 0) == ranks[rank]);
        CHECK(WIFEXITED(outcome) && WEXITSTATUS(outcome) == 0);
    }
    munmap(port, sizeof *port);
}

/* Returns true if the kernel supports filters; a child tests this, since a filter is permanent. */
static int can_filter_syscalls(void)
{
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        _exit(!deny_syscall(SYS_process_vm_readv));
    }
    int outcome = 0;
    return waitpid(child, &outcome, 0) == child && WIFEXITED(outcome) && WEXITSTATUS(outcome) == 0;
}

int main(void)
{
    struct cma_access all = { can_read_own_memory(), can_read_own_memory() && can_write_own_memory() };
    printf("ranks %s read each other's memory here, and %s write it\n", all.can_read ? "may" : "may not",
        all.can_write ? "may" : "may not");
    run_job(0, 0, all);
    if (!can_filter_syscalls()) {
        printf("the kernel takes no filters of system calls: nothing is denied\n");
        return check_report();
    }
    for (int denied = 1; denied < 1 << RANKS; denied++) {
        run_job(denied, SYS_process_vm_readv, (struct cma_access) { 0, 0 });
        run_job(denied, SYS_process_vm_writev, (struct cma_access) { all.can_read, 0 });
    }
    return check_report();
}
