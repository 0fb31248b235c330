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

static int environment_says(const char *name, const char *value)
{
    const char *found = getenv(name);
    return found != NULL && strcmp(found, value) == 0;
}

/* --- ranks that work together --- */

struct plan {
    int size;
    int32_t base;
};

static void reduce_once(const struct plan *plan, int32_t rank)
{
    int32_t value = plan->base + rank;
    CHECK_OK(dist_init(NULL));
    CHECK(dist_get_rank(dist_world()) == rank);
    CHECK(dist_get_world_size(dist_world()) == plan->size);
    CHECK_OK(dist_all_reduce(dist_world(), &value, &value, 1, DIST_I32, DIST_SUM, NULL, NULL));
    CHECK(value == plan->size * plan->base + plan->size * (plan->size - 1) / 2);
    CHECK_OK(dist_finalize());
}

static int32_t reduce(int32_t rank, void *arg)
{
    const struct plan *plan = arg;
    char number[16];
    sigset_t mask;
    checks.failed = 0;
    snprintf(number, sizeof number, "%d", (int)rank);
    CHECK(environment_says("RANK", number) && environment_says("LOCAL_RANK", number));
    snprintf(number, sizeof number, "%d", plan->size);
    CHECK(environment_says("WORLD_SIZE", number) && environment_says("LOCAL_WORLD_SIZE", number));
    CHECK(!dist_is_elastic_launched());
    CHECK(sigprocmask(SIG_BLOCK, NULL, &mask) == 0 && !sigismember(&mask, SIGCHLD));
    /* A process can leave a world group and create it again. */
    reduce_once(plan, rank);
    CHECK_STATUS(dist_finalize(), DIST_ERR_NOT_INITIALIZED);
    reduce_once(plan, rank);
    return checks.failed;
}

static void ranks_work_together(void)
{
    struct plan plan = { 4, 1000 };
    CHECK_OK(spawn(reduce, &plan, 4));
    plan.size = 1;
    CHECK_OK(dist_spawn(reduce, &plan, 1, NULL));
    CHECK(getenv("RANK") == NULL && getenv("DIST_STORE_SECRET_FD") == NULL);
}

static int32_t has_ranks_of_its_own(int32_t rank, void *arg)
{
    struct plan plan = { 2, 0 };
    (void)arg;
    plan.base = rank;
    return spawn(reduce, &plan, 2) == DIST_OK ? 0 : 1;
}

static void ranks_have_ranks_of_their_own(void)
{
    CHECK_OK(spawn(has_ranks_of_its_own, NULL, 2));
}

/* --- ranks that fail --- */

/* The rank in `arg` (or rank 2 of 3) fails; the other ranks wait until they are ended. */
static int32_t wait_for_ever(void)
{
    for (;;) {
        pause();
    }
    return 0;
}

static int32_t returns(int32_t rank, void *arg)
{
    return rank == 1 ? *(const int32_t *)arg : wait_for_ever();
}

static int32_t exits(int32_t rank, void *arg)
{
    (void)arg;
    if (rank == 0) {
        exit(0);
    }
    if (rank == 1) {
        CHECK_STATUS(dist_group_release((dist_group_t *)(intptr_t)77), DIST_ERR_INVALID_HANDLE);
        exit(3);
    }
    return wait_for_ever();
}

static int32_t is_killed(int32_t rank, void *arg)
{
    return rank == 2 ? (int32_t)raise(*(const int *)arg) : wait_for_ever();
}

static int32_t is_deaf(int32_t rank, void *arg)
{
    (void)arg;
    if (rank == 0) {
        signal(SIGTERM, SIG_IGN);
    }
    if (dist_init(NULL) != DIST_OK) {
        return 2;
    }
    /* Rank 0 has set its signal handler by now. */
    return rank == 1 ? 9 : wait_for_ever();
}

static int32_t fails_while_others_wait(int32_t rank, void *arg)
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

static int32_t makes_a_mistake(int32_t rank, void *arg)
{
    int32_t value = rank;
    (void)arg;
    if (dist_init(NULL) != DIST_OK) {
        return 2;
    }
    return dist_all_reduce(dist_world(), &value, &value, 1, 99, DIST_SUM, NULL, NULL);
}

static void failures_are_told(void)
{
    static const int32_t results[] = { 7, 255, 256, -100 };
    int signals[] = { SIGKILL, SIGTERM };
    char expected[64];
    size_t i;
    for (i = 0; i < sizeof results / sizeof *results; i++) {
        int32_t result = results[i];
        CHECK_STATUS(spawn(returns, &result, 3), DIST_ERR_PEER_FAILED);
        snprintf(expected, sizeof expected, ") returned %d", (int)result);
        CHECK_MESSAGE("dist_spawn: rank 1 of 3 (pid ");
        CHECK_MESSAGE(expected);
        CHECK(strstr(dist_last_error(), "last error in libdist") == NULL);
    }
    CHECK_REFUSED(spawn(exits, NULL, 3), DIST_ERR_PEER_FAILED, "rank 1 of 3");
    CHECK_MESSAGE("ended with exit status 3; its last error in libdist: dist_group_release: ");
    for (i = 0; i < 2; i++) {
        CHECK_REFUSED(spawn(is_killed, &signals[i], 3), DIST_ERR_PEER_FAILED, "rank 2 of 3");
        CHECK_MESSAGE(i == 0 ? "was ended by signal 9 (SIGKILL)" : "was ended by signal 15 (SIGTERM)");
    }
    CHECK_REFUSED(spawn(fails_while_others_wait, NULL, 3), DIST_ERR_PEER_FAILED, "rank 2 of 3");
    CHECK_MESSAGE("SIGKILL");
    CHECK_REFUSED(spawn(makes_a_mistake, NULL, 2), DIST_ERR_PEER_FAILED, "returned -1; its last error");
    CHECK_MESSAGE("in libdist: dist_all_reduce: ");
}

static void the_deaf_are_killed(void)
{
    dist_spawn_options_t options = DIST_SPAWN_OPTIONS_INIT;
    options.grace_ms = 50;
    CHECK_REFUSED(dist_spawn(is_deaf, NULL, 2, &options), DIST_ERR_PEER_FAILED, "rank 1 of 2");
    CHECK_MESSAGE("returned 9");
    CHECK_MESSAGE("rank 0 did not end after SIGTERM and had to be killed");
}

static int32_t leaves_its_others(int32_t rank, void *arg)
{
    (void)arg;
    return rank == 1 ? 0 : wait_for_ever();
}

/* The limit grows until rank 1 ends within it, which may take seconds on a busy machine under
 * Valgrind. */
static void time_is_limited(void)
{
    dist_spawn_options_t options = DIST_SPAWN_OPTIONS_INIT;
    dist_status_t status = DIST_OK;
    int64_t limit;
    for (limit = 300; limit < 60000; limit *= 4) {
        options.join_timeout_ms = limit;
        status = dist_spawn(leaves_its_others, NULL, 3, &options);
        if (strstr(dist_last_error(), "ranks 0, 1, 2 of 3") == NULL)
            break;
    }
    CHECK_STATUS(status, DIST_ERR_TIMEOUT);
    CHECK_MESSAGE("ranks 0, 2 of 3 still ran after ");
    CHECK_MESSAGE("join_timeout_ms");
}

/* --- what callers get wrong --- */

static int32_t never(int32_t rank, void *arg)
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
    CHECK_REFUSED(dist_spawn(never, NULL, 0, NULL), DIST_ERR_INVALID_ARGUMENT, "nprocs is 0");
    CHECK_REFUSED(dist_spawn(never, NULL, -1, NULL), DIST_ERR_INVALID_ARGUMENT, "nprocs is -1");
    CHECK_REFUSED(dist_spawn(never, NULL, 4097, NULL), DIST_ERR_INVALID_ARGUMENT, "1 to 4096");
    CHECK_REFUSED(dist_spawn(NULL, NULL, 2, NULL), DIST_ERR_INVALID_ARGUMENT, "function");
    options.join_timeout_ms = DIST_NO_WAIT;
    CHECK_REFUSED(dist_spawn(never, NULL, 2, &options), DIST_ERR_INVALID_ARGUMENT, "join_timeout_ms");
    options.join_timeout_ms = 0;
    options.grace_ms = -7;
    CHECK_REFUSED(dist_spawn(never, NULL, 2, &options), DIST_ERR_INVALID_ARGUMENT, "grace_ms");
}

static void other_threads_are_refused(void)
{
    pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
    struct plan plan = { 2, 5 };
    pthread_t thread;
    pthread_mutex_lock(&held);
    REQUIRE(pthread_create(&thread, NULL, wait_for_release, &held) == 0);
    CHECK_REFUSED(spawn(never, NULL, 2), DIST_ERR_INVALID_ARGUMENT, "2 threads");
    pthread_mutex_unlock(&held);
    REQUIRE(pthread_join(thread, NULL) == 0);
    /* The additional thread has ended. */
    CHECK_OK(spawn(reduce, &plan, 2));
}

static void processes_that_used_groups_are_refused(void)
{
    start_world();
    CHECK_OK(dist_finalize());
    CHECK_REFUSED(spawn(never, NULL, 2), DIST_ERR_INVALID_ARGUMENT, "has already used groups");
}

static void limit_descriptors(rlim_t most)
{
    struct rlimit limit;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = most == 0 ? limit.rlim_max : most;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

static int32_t reduces_with_room(int32_t rank, void *arg)
{
    limit_descriptors(0);
    return reduce(rank, arg);
}

/* The store takes descriptors first: the parent polls the ranks for which no descriptor is left. */
static void descriptors_are_left_to_the_store(void)
{
    struct plan plan = { 4, 3 };
    struct rlimit before;
    int32_t result = 7;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
    /* The limit is a few descriptors above the need, but fewer than four: open_descriptors()
     * counts three too many. */
    limit_descriptors((rlim_t)open_descriptors() + 2 * 4 + 64 - 2);
    CHECK_OK(spawn(reduces_with_room, &plan, 4));
    CHECK_REFUSED(spawn(returns, &result, 4), DIST_ERR_PEER_FAILED, "rank 1 of 4");
    CHECK_REFUSED(spawn(never, NULL, 40), DIST_ERR_SYSTEM, "ulimit -n");
    REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

/* --- the caller's own affairs --- */

static volatile sig_atomic_t reaped_by_handler;

static void reap_anybody(int number)
{
    (void)number;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
        reaped_by_handler = 1;
    }
}

static int32_t seven(int32_t rank, void *arg)
{
    (void)arg;
    return rank == 0 ? 0 : 7;
}

static void set_handler(void (*handler)(int))
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    REQUIRE(sigaction(SIGCHLD, &action, NULL) == 0);
}

static void the_callers_handler_takes_nothing(void)
{
    set_handler(reap_anybody);
    CHECK_REFUSED(spawn(seven, NULL, 2), DIST_ERR_PEER_FAILED, "returned 7");
    CHECK(!reaped_by_handler);
    set_handler(SIG_IGN);
    CHECK_REFUSED(spawn(never, NULL, 2), DIST_ERR_INVALID_ARGUMENT, "SIGCHLD");
    set_handler(SIG_DFL);
}

static void reap_the_next(int number)
{
    (void)number;
    waitpid(-1, NULL, 0);
}

/* A signal handler waits for rank 0 before the parent can: the signal arrives before the rank
 * ends. */
static int32_t is_reaped_by_another(int32_t rank, void *arg)
{
    (void)arg;
    if (rank == 0) {
        return kill(getppid(), SIGUSR1) == 0 ? 0 : 1;
    }
    return wait_for_ever();
}

static void ranks_that_others_wait_for_are_told(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = reap_the_next;
    action.sa_flags = SA_RESTART;
    REQUIRE(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK_REFUSED(spawn(is_reaped_by_another, NULL, 2), DIST_ERR_SYSTEM, "waitpid(-1");
    action.sa_handler = SIG_DFL;
    REQUIRE(sigaction(SIGUSR1, &action, NULL) == 0);
}

static void the_callers_child_stays_its_own(void)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        _exit(5);
    }
    REQUIRE(child > 0);
    CHECK_STATUS(spawn(seven, NULL, 2), DIST_ERR_PEER_FAILED);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 5);
}

static int32_t prints(int32_t rank, void *arg)
{
    (void)arg;
    printf("<rank %d>", (int)rank);
    return 0;
}

/* Returns how often a text is in a file. */
static int count_in(FILE *file, const char *text)
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

static void output_is_complete_and_not_doubled(void)
{
    FILE *file = tmpfile();
    int console;
    dist_status_t status;
    REQUIRE(file != NULL);
    fflush(stdout);
    console = dup(STDOUT_FILENO);
    REQUIRE(console >= 0 && dup2(fileno(file), STDOUT_FILENO) >= 0);
    printf("<before>");
    status = spawn(prints, NULL, 3);
    printf("<after>");
    fflush(stdout);
    REQUIRE(dup2(console, STDOUT_FILENO) >= 0);
    close(console);
    CHECK_OK(status);
    CHECK(count_in(file, "<before>") == 1 && count_in(file, "<after>") == 1);
    CHECK(count_in(file, "<rank 0>") == 1);
    CHECK(count_in(file, "<rank 1>") == 1);
    CHECK(count_in(file, "<rank 2>") == 1);
    fclose(file);
}

/* --- the caller's death --- */

static int32_t holds_a_pipe(int32_t rank, void *arg)
{
    const int *ends = arg;
    char byte = (char)rank;
    return write(ends[1], &byte, 1) == 1 ? wait_for_ever() : 1;
}

static void ranks_die_with_their_parent(void)
{
    int ends[2];
    char byte;
    int status;
    pid_t parent;
    REQUIRE(pipe(ends) == 0);
    fflush(stdout);
    parent = fork();
    if (parent == 0) {
        _exit(spawn(holds_a_pipe, ends, 3) != DIST_OK);
    }
    REQUIRE(parent > 0);
    close(ends[1]);
    CHECK(read(ends[0], &byte, 1) == 1 && read(ends[0], &byte, 1) == 1 && read(ends[0], &byte, 1) == 1);
    CHECK(kill(parent, SIGKILL) == 0);
    CHECK(waitpid(parent, &status, 0) == parent);
    /* The read returns 0, so no process holds the other end of the pipe. */
    CHECK(read(ends[0], &byte, 1) == 0);
    close(ends[0]);
}

int main(void)
{
    int before;
    wrong_arguments_are_refused();
    before = open_descriptors();
    ranks_work_together();
    ranks_have_ranks_of_their_own();
    failures_are_told();
    the_deaf_are_killed();
    time_is_limited();
    other_threads_are_refused();
    descriptors_are_left_to_the_store();
    the_callers_handler_takes_nothing();
    ranks_that_others_wait_for_are_told();
    the_callers_child_stays_its_own();
    output_is_complete_and_not_doubled();
    ranks_die_with_their_parent();
    CHECK(open_descriptors() == before);
    /* No zombie remains either. */
    CHECK(waitpid(-1, NULL, WNOHANG) == -1);
    processes_that_used_groups_are_refused();
    return check_report();
}
