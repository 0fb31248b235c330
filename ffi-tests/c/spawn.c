/*
 * Ranks that are forks of this program: their results, their failures, and the resources that
 * remain.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

static dist_status_t spawn(dist_spawn_fn function, void *arg, int nprocs)
{
    dist_spawn_options_t options = DIST_SPAWN_OPTIONS_INIT;
    options.join_timeout_ms = LIMIT_MS;
    return dist_spawn(function, arg, nprocs, &options);
}

/* Returns the number of open descriptors of this process. */
static int open_descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    REQUIRE(folder != NULL);
    while (readdir(folder) != NULL) {
        count++;
    }
    closedir(folder);
    return count;
}

static int is_environment_value(const char *name, const char *value)
{
    const char *found = getenv(name);
    return found != NULL && strcmp(found, value) == 0;
}

/* --- ranks that work together --- */

struct reduce_plan {
    int size;
    int32_t base;
};

static void reduce_once(const struct reduce_plan *reduce_plan, int32_t rank)
{
    int32_t value = reduce_plan->base + rank;
    CHECK_OK(dist_init(NULL));
    CHECK(dist_get_rank(dist_world()) == rank);
    CHECK(dist_get_world_size(dist_world()) == reduce_plan->size);
    CHECK_OK(dist_all_reduce(dist_world(), &value, &value, 1, DIST_I32, DIST_SUM, NULL, NULL));
    CHECK(value == reduce_plan->size * reduce_plan->base + reduce_plan->size * (reduce_plan->size - 1) / 2);
    CHECK_OK(dist_finalize());
}

static int32_t reduce(int32_t rank, void *arg)
{
    const struct reduce_plan *reduce_plan = arg;
    char number[16];
    sigset_t mask;
    checks.failed = 0;
    snprintf(number, sizeof number, "%d", (int)rank);
    CHECK(is_environment_value("RANK", number) && is_environment_value("LOCAL_RANK", number));
    snprintf(number, sizeof number, "%d", reduce_plan->size);
    CHECK(is_environment_value("WORLD_SIZE", number) && is_environment_value("LOCAL_WORLD_SIZE", number));
    CHECK(!dist_is_elastic_launched());
    CHECK(sigprocmask(SIG_BLOCK, NULL, &mask) == 0 && !sigismember(&mask, SIGCHLD));
    /* A process can leave a world group and create it again. */
    reduce_once(reduce_plan, rank);
    CHECK_STATUS(dist_finalize(), DIST_ERR_NOT_INITIALIZED);
    reduce_once(reduce_plan, rank);
    return checks.failed;
}

static void ranks_reduce_together(void)
{
    struct reduce_plan reduce_plan = { 4, 1000 };
    CHECK_OK(spawn(reduce, &reduce_plan, 4));
    reduce_plan.size = 1;
    CHECK_OK(dist_spawn(reduce, &reduce_plan, 1, NULL));
    CHECK(getenv("RANK") == NULL && getenv("DIST_STORE_SECRET_FD") == NULL);
}

static int32_t spawn_nested_ranks(int32_t rank, void *arg)
{
    struct reduce_plan reduce_plan = { 2, 0 };
    (void)arg;
    reduce_plan.base = rank;
    return spawn(reduce, &reduce_plan, 2) == DIST_OK ? 0 : 1;
}

static void ranks_may_spawn_ranks(void)
{
    CHECK_OK(spawn(spawn_nested_ranks, NULL, 2));
}

/* --- ranks that fail --- */

/* The rank in `arg` (or rank 2 of 3) fails; the other ranks wait until the parent ends them. */
static int32_t wait_forever(void)
{
    for (;;) {
        pause();
    }
    return 0;
}

static int32_t fail_by_return(int32_t rank, void *arg)
{
    return rank == 1 ? *(const int32_t *)arg : wait_forever();
}

static int32_t fail_by_exit(int32_t rank, void *arg)
{
    (void)arg;
    if (rank == 0) {
        exit(0);
    }
    if (rank == 1) {
        CHECK_STATUS(dist_group_release((dist_group_t *)(intptr_t)77), DIST_ERR_INVALID_HANDLE);
        exit(3);
    }
    return wait_forever();
}

static int32_t fail_by_signal(int32_t rank, void *arg)
{
    return rank == 2 ? (int32_t)raise(*(const int *)arg) : wait_forever();
}

static int32_t ignore_sigterm(int32_t rank, void *arg)
{
    (void)arg;
    if (rank == 0) {
        signal(SIGTERM, SIG_IGN);
    }
    if (dist_init(NULL) != DIST_OK) {
        return 2;
    }
    /* Rank 0 has set its signal handler by now. */
    return rank == 1 ? 9 : wait_forever();
}

static int32_t fail_while_peers_wait(int32_t rank, void *arg)
{
    int32_t value = rank;
    (void)arg;
    if (dist_init(NULL) != DIST_OK) {
        return 2;
    }
    if (rank == 2) {
        raise(SIGKILL);
    }
    return dist_all_reduce(dist_world(), &value, &value, 1, DIST_I32, DIST_SUM, NULL, NULL) == DIST_OK ? 0 : 4;
}

static int32_t fail_with_library_error(int32_t rank, void *arg)
{
    int32_t value = rank;
    (void)arg;
    if (dist_init(NULL) != DIST_OK) {
        return 2;
    }
    return dist_all_reduce(dist_world(), &value, &value, 1, 99, DIST_SUM, NULL, NULL);
}

static void failures_name_the_rank(void)
{
    static const int32_t results[] = { 7, 255, 256, -100 };
    int signals[] = { SIGKILL, SIGTERM };
    char expected[64];
    size_t i;
    for (i = 0; i < sizeof results / sizeof *results; i++) {
        int32_t result = results[i];
        CHECK_STATUS(spawn(fail_by_return, &result, 3), DIST_ERR_PEER_FAILED);
        snprintf(expected, sizeof expected, ") returned %d", (int)result);
        CHECK_MESSAGE("dist_spawn: rank 1 of 3 (pid ");
        CHECK_MESSAGE(expected);
        CHECK(strstr(dist_last_error(), "last error in libdist") == NULL);
    }
    CHECK_REFUSED(spawn(fail_by_exit, NULL, 3), DIST_ERR_PEER_FAILED, "rank 1 of 3");
    CHECK_MESSAGE("ended with exit status 3; its last error in libdist: dist_group_release: ");
    for (i = 0; i < 2; i++) {
        CHECK_REFUSED(spawn(fail_by_signal, &signals[i], 3), DIST_ERR_PEER_FAILED, "rank 2 of 3");
        CHECK_MESSAGE(i == 0 ? "was ended by signal 9 (SIGKILL)" : "was ended by signal 15 (SIGTERM)");
    }
    CHECK_REFUSED(spawn(fail_while_peers_wait, NULL, 3), DIST_ERR_PEER_FAILED, "rank 2 of 3");
    CHECK_MESSAGE("SIGKILL");
    CHECK_REFUSED(spawn(fail_with_library_error, NULL, 2), DIST_ERR_PEER_FAILED, "returned -1; its last error");
    CHECK_MESSAGE("in libdist: dist_all_reduce: ");
}

static void ranks_that_ignore_sigterm_are_killed(void)
{
    dist_spawn_options_t options = DIST_SPAWN_OPTIONS_INIT;
    options.grace_ms = 50;
    CHECK_REFUSED(dist_spawn(ignore_sigterm, NULL, 2, &options), DIST_ERR_PEER_FAILED, "rank 1 of 2");
    CHECK_MESSAGE("returned 9");
    CHECK_MESSAGE("rank 0 did not end after SIGTERM and had to be killed");
}

static int32_t return_before_peers(int32_t rank, void *arg)
{
    (void)arg;
    return rank == 1 ? 0 : wait_forever();
}

/* The limit grows until rank 1 ends within it, which may take seconds on a busy machine under
 * Valgrind. */
static void join_timeout_ends_the_ranks(void)
{
    dist_spawn_options_t options = DIST_SPAWN_OPTIONS_INIT;
    dist_status_t status = DIST_OK;
    int64_t limit;
    for (limit = 300; limit < 60000; limit *= 4) {
        options.join_timeout_ms = limit;
        status = dist_spawn(return_before_peers, NULL, 3, &options);
        if (strstr(dist_last_error(), "ranks 0, 1, 2 of 3") == NULL)
            break;
    }
    CHECK_STATUS(status, DIST_ERR_TIMEOUT);
    CHECK_MESSAGE("ranks 0, 2 of 3 still ran after ");
    CHECK_MESSAGE("join_timeout_ms");
}

/* --- wrong calls --- */

static int32_t fail_if_called(int32_t rank, void *arg)
{
    (void)rank;
    (void)arg;
    return 1;
}

static void *wait_for_release(void *arg)
{
    pthread_mutex_lock(arg);
    pthread_mutex_unlock(arg);
    return NULL;
}

static void wrong_arguments_are_refused(void)
{
    dist_spawn_options_t options = DIST_SPAWN_OPTIONS_INIT;
    CHECK_REFUSED(dist_spawn(fail_if_called, NULL, 0, NULL), DIST_ERR_INVALID_ARGUMENT, "nprocs is 0");
    CHECK_REFUSED(dist_spawn(fail_if_called, NULL, -1, NULL), DIST_ERR_INVALID_ARGUMENT, "nprocs is -1");
    CHECK_REFUSED(dist_spawn(fail_if_called, NULL, 4097, NULL), DIST_ERR_INVALID_ARGUMENT, "1 to 4096");
    CHECK_REFUSED(dist_spawn(NULL, NULL, 2, NULL), DIST_ERR_INVALID_ARGUMENT, "function");
    options.join_timeout_ms = DIST_NO_WAIT;
    CHECK_REFUSED(dist_spawn(fail_if_called, NULL, 2, &options), DIST_ERR_INVALID_ARGUMENT, "join_timeout_ms");
    options.join_timeout_ms = 0;
    options.grace_ms = -7;
    CHECK_REFUSED(dist_spawn(fail_if_called, NULL, 2, &options), DIST_ERR_INVALID_ARGUMENT, "grace_ms");
}

static void other_threads_are_refused(void)
{
    pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
    struct reduce_plan reduce_plan = { 2, 5 };
    pthread_t thread;
    pthread_mutex_lock(&held);
    REQUIRE(pthread_create(&thread, NULL, wait_for_release, &held) == 0);
    CHECK_REFUSED(spawn(fail_if_called, NULL, 2), DIST_ERR_INVALID_ARGUMENT, "2 threads");
    pthread_mutex_unlock(&held);
    REQUIRE(pthread_join(thread, NULL) == 0);
    /* The additional thread has ended. */
    CHECK_OK(spawn(reduce, &reduce_plan, 2));
}

static void processes_that_used_groups_are_refused(void)
{
    start_world();
    CHECK_OK(dist_finalize());
    CHECK_REFUSED(spawn(fail_if_called, NULL, 2), DIST_ERR_INVALID_ARGUMENT, "has already used groups");
}

static void limit_descriptors(rlim_t max)
{
    struct rlimit limit;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = max == 0 ? limit.rlim_max : max;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

static int32_t reduce_with_spare_descriptors(int32_t rank, void *arg)
{
    limit_descriptors(0);
    return reduce(rank, arg);
}

/* The store takes descriptors first: the parent polls the ranks for which no descriptor is left. */
static void store_gets_descriptors_first(void)
{
    struct reduce_plan reduce_plan = { 4, 3 };
    struct rlimit before;
    int32_t result = 7;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
    /* The limit is a few descriptors above the need, but fewer than four: open_descriptors()
     * counts three too many. */
    limit_descriptors((rlim_t)open_descriptors() + 2 * 4 + 64 - 2);
    CHECK_OK(spawn(reduce_with_spare_descriptors, &reduce_plan, 4));
    CHECK_REFUSED(spawn(fail_by_return, &result, 4), DIST_ERR_PEER_FAILED, "rank 1 of 4");
    CHECK_REFUSED(spawn(fail_if_called, NULL, 40), DIST_ERR_SYSTEM, "ulimit -n");
    REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

/* --- the caller's own affairs --- */

static volatile sig_atomic_t reaped_by_handler;

static void reap_any_child(int number)
{
    (void)number;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
        reaped_by_handler = 1;
    }
}

static int32_t return_seven(int32_t rank, void *arg)
{
    (void)arg;
    return rank == 0 ? 0 : 7;
}

static void set_sigchld_handler(void (*handler)(int))
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    REQUIRE(sigaction(SIGCHLD, &action, NULL) == 0);
}

static void callers_handler_reaps_no_rank(void)
{
    set_sigchld_handler(reap_any_child);
    CHECK_REFUSED(spawn(return_seven, NULL, 2), DIST_ERR_PEER_FAILED, "returned 7");
    CHECK(!reaped_by_handler);
    set_sigchld_handler(SIG_IGN);
    CHECK_REFUSED(spawn(fail_if_called, NULL, 2), DIST_ERR_INVALID_ARGUMENT, "SIGCHLD");
    set_sigchld_handler(SIG_DFL);
}

static void reap_next_child(int number)
{
    (void)number;
    waitpid(-1, NULL, 0);
}

/* A signal handler waits for rank 0 before the parent can: the signal arrives before the rank
 * ends. */
static int32_t run_reaped_rank(int32_t rank, void *arg)
{
    (void)arg;
    if (rank == 0) {
        return kill(getppid(), SIGUSR1) == 0 ? 0 : 1;
    }
    return wait_forever();
}

static void ranks_reaped_by_others_are_reported(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = reap_next_child;
    action.sa_flags = SA_RESTART;
    REQUIRE(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK_REFUSED(spawn(run_reaped_rank, NULL, 2), DIST_ERR_SYSTEM, "waitpid(-1");
    action.sa_handler = SIG_DFL;
    REQUIRE(sigaction(SIGUSR1, &action, NULL) == 0);
}

static void callers_child_is_not_reaped(void)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        _exit(5);
    }
    REQUIRE(child > 0);
    CHECK_STATUS(spawn(return_seven, NULL, 2), DIST_ERR_PEER_FAILED);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 5);
}

static int32_t print_lines(int32_t rank, void *arg)
{
    (void)arg;
    printf("<rank %d>", (int)rank);
    return 0;
}

/* Returns how often a text is in a file. */
static int count_occurrences(FILE *file, const char *text)
{
    char content[4096];
    const char *at = content;
    size_t length;
    int count = 0;
    rewind(file);
    length = fread(content, 1, sizeof content - 1, file);
    content[length] = '\0';
    while ((at = strstr(at, text)) != NULL) {
        at++;
        count++;
    }
    return count;
}

static void output_is_complete_and_not_duplicated(void)
{
    FILE *file = tmpfile();
    int console;
    dist_status_t status;
    REQUIRE(file != NULL);
    fflush(stdout);
    console = dup(STDOUT_FILENO);
    REQUIRE(console >= 0 && dup2(fileno(file), STDOUT_FILENO) >= 0);
    printf("<before>");
    status = spawn(print_lines, NULL, 3);
    printf("<after>");
    fflush(stdout);
    REQUIRE(dup2(console, STDOUT_FILENO) >= 0);
    close(console);
    CHECK_OK(status);
    CHECK(count_occurrences(file, "<before>") == 1 && count_occurrences(file, "<after>") == 1);
    CHECK(count_occurrences(file, "<rank 0>") == 1);
    CHECK(count_occurrences(file, "<rank 1>") == 1);
    CHECK(count_occurrences(file, "<rank 2>") == 1);
    fclose(file);
}

/* --- the caller's death --- */

static int32_t hold_pipe(int32_t rank, void *arg)
{
    const int *pipe_fds = arg;
    char byte = (char)rank;
    return write(pipe_fds[1], &byte, 1) == 1 ? wait_forever() : 1;
}

static void ranks_die_with_their_parent(void)
{
    int pipe_fds[2];
    char byte;
    int status;
    pid_t parent;
    REQUIRE(pipe(pipe_fds) == 0);
    fflush(stdout);
    parent = fork();
    if (parent == 0) {
        _exit(spawn(hold_pipe, pipe_fds, 3) != DIST_OK);
    }
    REQUIRE(parent > 0);
    close(pipe_fds[1]);
    CHECK(read(pipe_fds[0], &byte, 1) == 1 && read(pipe_fds[0], &byte, 1) == 1 && read(pipe_fds[0], &byte, 1) == 1);
    CHECK(kill(parent, SIGKILL) == 0);
    CHECK(waitpid(parent, &status, 0) == parent);
    /* The read returns 0, so no process holds the other end of the pipe. */
    CHECK(read(pipe_fds[0], &byte, 1) == 0);
    close(pipe_fds[0]);
}

int main(void)
{
    int before;
    wrong_arguments_are_refused();
    before = open_descriptors();
    ranks_reduce_together();
    ranks_may_spawn_ranks();
    failures_name_the_rank();
    ranks_that_ignore_sigterm_are_killed();
    join_timeout_ends_the_ranks();
    other_threads_are_refused();
    store_gets_descriptors_first();
    callers_handler_reaps_no_rank();
    ranks_reaped_by_others_are_reported();
    callers_child_is_not_reaped();
    output_is_complete_and_not_duplicated();
    ranks_die_with_their_parent();
    CHECK(open_descriptors() == before);
    /* No zombie remains either. */
    CHECK(waitpid(-1, NULL, WNOHANG) == -1);
    processes_that_used_groups_are_refused();
    return check_report();
}
