/*
 * A process that is forked from a user of the library cannot use the library: every call returns
 * an error and none hangs, and the parent is not affected. A fork before the first use is
 * allowed. Opening a store that other processes share is a use.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

static int run_in_child(void (*body)(void))
{
    int status = -1;
    pid_t child;
    fflush(stdout);
    child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        checks.n_made = checks.failed = 0;
        body();
        fflush(stdout);
        _exit(checks.failed != 0);
    }
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void fork_before_first_use_is_allowed(void)
{
    start_world();
    CHECK_OK(dist_barrier(dist_world(), NULL, NULL));
    CHECK_OK(dist_finalize());
}

static void fork_after_use_is_refused(void)
{
    float x[2] = { 1, 2 };
    dist_store_t *store = (dist_store_t *)x;
    CHECK_REFUSED(dist_all_reduce(dist_world(), x, x, 2, DIST_F32, DIST_SUM, NULL, NULL),
                  DIST_ERR_NOT_INITIALIZED, "forked");
    CHECK_REFUSED(dist_init(NULL), DIST_ERR_NOT_INITIALIZED, "forked");
    CHECK_REFUSED(dist_finalize(), DIST_ERR_NOT_INITIALIZED, "exec");
    CHECK_REFUSED(dist_store_hash_create(&store), DIST_ERR_NOT_INITIALIZED, "forked");
    CHECK(dist_get_rank(dist_world()) == -1 && dist_is_initialized() == 0);
    CHECK(dist_world() == NULL);
    /* Functions that only read constants or the thread's message work, so that the child can
     * report the error. */
    CHECK(dist_version() == DIST_VERSION);
    CHECK(strcmp(dist_version_string(), "") != 0);
    CHECK(strcmp(dist_status_string(DIST_ERR_NOT_INITIALIZED), "not initialized") == 0);
    CHECK(dist_last_error_copy(NULL, 0) > 20);
}

/* The child would read the parent's responses from their common connection. */
static void store_of_parent_is_refused_in_child(void)
{
    dist_store_tcp_options_t options = DIST_STORE_TCP_OPTIONS_INIT;
    dist_store_t *store = NULL;
    int64_t sum = 0;
    options.host = "127.0.0.1";
    options.is_server = 1;
    options.timeout_ms = LIMIT_MS;
    REQUIRE_OK(dist_store_tcp_create(&options, &store));
    CHECK(run_in_child(fork_after_use_is_refused));
    CHECK_OK(dist_store_add(store, "n", DIST_TERMINATED, 1, &sum));
    CHECK(sum == 1);
    CHECK_OK(dist_store_release(store));
    CHECK(run_in_child(fork_after_use_is_refused));
}

static int32_t fail_if_called(int32_t rank, void *arg)
{
    (void)rank;
    (void)arg;
    return 1;
}

static int32_t succeed(int32_t rank, void *arg)
{
    (void)rank;
    (void)arg;
    return 0;
}

static char file_store_path[64];

/* Locks are shared like connections, so dist_spawn refuses to fork. A store in memory is copied
 * by a fork. */
static void file_store_prevents_spawn(void)
{
    dist_store_t *store = new_store();
    CHECK_OK(dist_spawn(succeed, NULL, 1, NULL));
    CHECK_OK(dist_store_release(store));
    REQUIRE_OK(dist_store_file_create(file_store_path, 1, NULL, &store));
    CHECK_REFUSED(dist_spawn(fail_if_called, NULL, 2, NULL), DIST_ERR_INVALID_ARGUMENT, "stores");
    CHECK(run_in_child(fork_after_use_is_refused));
    CHECK_OK(dist_store_release(store));
    CHECK_REFUSED(dist_spawn(fail_if_called, NULL, 2, NULL), DIST_ERR_INVALID_ARGUMENT, "dist_store_file_create");
}

static void file_store_in_a_folder_prevents_spawn(void)
{
    char folder[] = "/tmp/dist-fork-XXXXXX";
    REQUIRE(mkdtemp(folder) != NULL);
    snprintf(file_store_path, sizeof file_store_path, "%s/store", folder);
    CHECK(run_in_child(file_store_prevents_spawn));
    /* The last user of the store has removed its file. */
    CHECK(rmdir(folder) == 0);
}

int main(void)
{
    CHECK(run_in_child(fork_before_first_use_is_allowed));
    CHECK(run_in_child(store_of_parent_is_refused_in_child));
    file_store_in_a_folder_prevents_spawn();
    start_world();
    CHECK(run_in_child(fork_after_use_is_refused));
    CHECK_OK(dist_barrier(dist_world(), NULL, NULL));
    CHECK_OK(dist_finalize());
    CHECK(run_in_child(fork_after_use_is_refused));
    start_world();
    CHECK_OK(dist_finalize());
    return check_report();
}
