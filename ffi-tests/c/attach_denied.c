/*
 * Ranks of one host whose system forbids reads (process_vm_readv) or writes (process_vm_writev)
 * of each other's memory, as in many containers. Here a system call filter refuses the call on
 * both ranks or on one. The ranks detect this during the rendezvous and work without it, and
 * every result is right. Without a filter they use both calls, so that the test sees the
 * difference.
 */
#define _GNU_SOURCE
#include "forked_ranks.h"

#include <sys/uio.h>

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

struct denial {
    int ranks; /* a bit for each rank whose call is denied */
    long call;
    struct cma_access expected;
};

static int run_rank(struct shared_page *page, int rank, void *arg)
{
    const struct denial *denial = arg;
    if (denial->ranks >> rank & 1) {
        REQUIRE(fail_syscall(denial->call, EPERM));
        CHECK(!(denial->call == SYS_process_vm_readv ? can_read_own_memory() : can_write_own_memory())
              && errno == EPERM);
    }
    dist_store_t *store = open_shared_store(page, rank);
    dist_group_t *group = NULL;
    REQUIRE_OK(join_group(store, "all", rank, RANKS, &group));
    CHECK(description_contains(group, denial->expected.can_read ? "\"cma_read\":true" : "\"cma_read\":false"));
    CHECK(description_contains(group, denial->expected.can_write ? "\"cma_write\":true" : "\"cma_write\":false"));
    run_operations(group, rank);
    CHECK_OK(dist_group_release(group));
    CHECK_OK(dist_store_release(store));
    return check_report();
}

static void run_job(int ranks, long call, struct cma_access expected)
{
    struct denial denial = { ranks, call, expected };
    run_forks(RANKS, run_rank, &denial);
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
